"""A copied file or folder gets its name only once the disk holds it: a power cut leaves all or nothing of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from storage import back_up, back_up_changes, compact, restore, restore_changes
from tests.storage.folder import Folder
from tests.storage.sample import hold_all, numbered

Content = bytes | dict[str, int]
"""The bytes of a file; for a folder, the names in it with their inodes."""


class Syncs:
    """Records what is surely on disk because it was synced, and which files were named before that."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.named_too_early: list[str] = []
        self._held: dict[int, Content] = {}
        self._sync = os.fsync
        patch.setattr(os, "fsync", self._note)
        for name in ("rename", "replace"):
            patch.setattr(os, name, self._naming(getattr(os, name)))

    def hold(self, path: Path) -> bool:
        """Whether the disk surely holds the file, or the folder with all that is in it, under its name."""
        return self._hold_content(path) and self._hold_name(path)

    def _hold_content(self, path: Path) -> bool:
        is_held = self._held.get(path.stat().st_ino) == _content(path)
        return is_held and (path.is_file() or all(map(self._hold_content, path.iterdir())))

    def _hold_name(self, path: Path) -> bool:
        names = self._held.get(path.parent.stat().st_ino)
        return isinstance(names, dict) and names.get(path.name) == path.stat().st_ino

    def _note(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        self._held[path.stat().st_ino] = _content(path)
        self._sync(descriptor)

    def _naming(self, rename: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
        def named(path: Path, target: Path) -> None:
            # A backup of a chain is three files. It counts once the last of them has its name.
            others = [
                file for file in path.parent.iterdir() if file.suffix in (".pages", ".hashes")
            ]
            if not (self._hold_content(path) and all(map(self.hold, others))):
                self.named_too_early.append(target.name)
            rename(path, target)

        return named


def _content(path: Path) -> Content:
    if path.is_file():
        return path.read_bytes()
    return {file.name: file.stat().st_ino for file in path.iterdir()}


@pytest.fixture
def data(folder: Folder) -> Path:
    """A data folder of a gateway that has stopped."""
    hold_all(folder.open(), numbered(20), 2_000)
    folder.close()
    return folder.path


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    return Syncs(monkeypatch)


@pytest.fixture(params=["new", "empty"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    target = tmp_path / "target"
    if request.param == "empty":
        target.mkdir()
    return target


def test_a_backup(data: Path, target: Path, syncs: Syncs) -> None:
    back_up(data, target)
    assert syncs.hold(target / "data.mdb")
    assert syncs.named_too_early == []


def test_a_folder_that_is_restored(
    data: Path, tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(data, tmp_path / "backup")
    syncs = Syncs(monkeypatch)
    restore(tmp_path / "backup", target)
    assert syncs.hold(target / "data.mdb")
    assert syncs.named_too_early == []


def test_backups_of_changes(data: Path, target: Path, syncs: Syncs) -> None:
    for _ in range(2):
        made = back_up_changes(data, target)
        files = list(target.glob(f"{made.number:04}.*"))
        assert len(files) == 3
        assert all(map(syncs.hold, files))
    assert syncs.named_too_early == []


def test_a_folder_that_is_restored_from_backups_of_changes(
    data: Path, tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up_changes(data, tmp_path / "backups")
    syncs = Syncs(monkeypatch)
    restore_changes(tmp_path / "backups", target)
    assert syncs.hold(target / "data.mdb")
    assert syncs.named_too_early == []


def test_a_compacted_file(data: Path, syncs: Syncs) -> None:
    compact(data)
    assert syncs.hold(data / "data.mdb")
    assert syncs.named_too_early == []
