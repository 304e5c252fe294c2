"""Incremental backups: restored together, each gives the data file of its moment, and damage is detected."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict
from hashlib import blake2b, sha256
from itertools import count
from pathlib import Path

import lmdb
import pytest

from storage import (
    DataFolderError,
    Increment,
    StorageError,
    Store,
    abort,
    back_up_changes,
    compact,
    expire_messages,
    find_faults,
    is_chain,
    read_chain,
    remove_expired,
    restore_changes,
)
from storage.environment import Tables
from storage.keys import IDENTITY
from tests.storage.folder import Folder
from tests.storage.sample import Sample, fire, hold, send

BACK_UP = """
import sys
import tracemalloc
from pathlib import Path
from storage import back_up_changes
back_up_changes(Path(sys.argv[1]), Path(sys.argv[2]))
"""

Contents = dict[str, list[tuple[bytes, bytes]]]


def contents(data: Path) -> Contents:
    """Return every row of every table."""
    with lmdb.open(str(data), max_dbs=32, readonly=True, map_size=1 << 28) as environment:
        rows: Contents = {}
        for name in Tables._fields:
            table = environment.open_db(name.encode(), create=False)
            with environment.begin() as txn:
                rows[name] = list(txn.cursor(db=table))
        return rows


def work(store: Store, random_: random.Random, step: int) -> None:
    """Make changes of every kind: ones that add, change and delete rows."""
    for number in range(random_.randrange(200)):
        name = b"%d-%d" % (step, number)
        message = Sample(name, queue=number % 3, keys=(b"k",), body=random_.randbytes(200))
        if random_.random() < 0.3:
            send(store, message, step * 1_000)
        else:
            hold(store, message, step * 1_000 + random_.randrange(20_000), step * 1_000)
        if random_.random() < 0.2:
            abort(store, name, step * 1_000)
    store.commit()
    fire(store, step * 1_000)
    remove_expired(store, step * 1_000, 1_000)
    expire_messages(store, (step - 3) * 1_000, 1_000, lambda topic: False)
    store.commit()


def restored(folder: Path, data: Path, number: int | None = None) -> Contents:
    """Restore a backup, check that its folder is sound, and return its rows."""
    restore_changes(folder, data, number)
    found = contents(data)
    copy = Folder(data)
    assert find_faults(copy.open()) == []
    copy.close()
    return found


@pytest.fixture
def chain(folder: Folder, tmp_path: Path) -> tuple[Path, list[Contents]]:
    """Eight backups, and what the store held at each."""
    random_ = random.Random(5)
    held = []
    for step in range(1, 9):
        store = folder.open(inbox_size=random_.choice((1, 10, 1_000)))
        work(store, random_, step)
        folder.close()
        back_up_changes(folder.path, tmp_path / "backups")
        held.append(contents(folder.path))
    return tmp_path / "backups", held


def test_each_backup_is_what_was_there(chain: tuple[Path, list[Contents]], tmp_path: Path) -> None:
    backups, held = chain
    for number, expected in enumerate(held):
        assert restored(backups, tmp_path / f"again{number}", number) == expected
    assert restored(backups, tmp_path / "last") == held[-1]


def test_only_what_changed_is_kept(folder: Folder, tmp_path: Path) -> None:
    store = folder.open()
    random_ = random.Random(5)
    for number in range(3_000):
        hold(store, Sample(b"%d" % number, body=random_.randbytes(500)), 10_000)
    store.commit()
    folder.close()
    first = back_up_changes(folder.path, tmp_path / "backups")
    assert first.changed == first.pages > 400
    again = back_up_changes(folder.path, tmp_path / "backups")
    assert again.changed == 0
    store = folder.open()
    hold(store, Sample(b"one more"), 20_000)
    folder.close()
    later = back_up_changes(folder.path, tmp_path / "backups")
    assert 0 < later.changed < 60
    assert [one.number for one in read_chain(tmp_path / "backups")] == [0, 1, 2]
    assert later.size == sum(
        (tmp_path / "backups" / f"0002.{kind}").stat().st_size for kind in ("pages", "hashes")
    )
    # What says so is the number alone: that backup was the same as the one before it.
    (tmp_path / "backups" / "0001.json").unlink()
    with pytest.raises(DataFolderError, match="0002 does not build on the one before it"):
        read_chain(tmp_path / "backups")


def test_a_gateway_may_write_meanwhile(folder: Folder, tmp_path: Path) -> None:
    """Each backup has the last checkpoint before it, and nothing of an open batch."""
    store = folder.open()
    random_ = random.Random(7)
    for step in range(1, 4):
        work(store, random_, step)
        store.checkpoint()
        hold(store, Sample(b"not committed %d" % step), 50_000)
        subprocess.run([sys.executable, "-c", BACK_UP, folder.path, tmp_path / "b"], check=True)
        store.commit()
        before = f"not committed {step}".encode()
        copy = restored(tmp_path / "b", tmp_path / f"again{step}")
        ids = [key for key, _ in copy["ids"]]
        assert any(key.startswith(b"%d-" % step) for key in ids)
        assert not any(key.startswith(before) for key in ids)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


def shorten(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


each_harm = pytest.mark.parametrize(
    "harm", [flip, shorten, Path.unlink], ids=["flip", "shorten", "remove"]
)
each_kind = pytest.mark.parametrize("kind", ["pages", "hashes", "json"])


@each_harm
@each_kind
def test_a_damaged_backup_is_refused(
    chain: tuple[Path, list[Contents]], tmp_path: Path, harm: Callable[[Path], None], kind: str
) -> None:
    """Nothing is restored from a file that has changed."""
    backups, _ = chain
    harm(backups / f"0000.{kind}")
    with pytest.raises(DataFolderError):
        restore_changes(backups, tmp_path / "again", 0)
    assert not (tmp_path / "again").exists()


@each_harm
@each_kind
def test_those_before_a_damaged_one_can_be_restored(
    chain: tuple[Path, list[Contents]], tmp_path: Path, harm: Callable[[Path], None], kind: str
) -> None:
    backups, held = chain
    harm(backups / f"0005.{kind}")
    for number in range(5):
        assert restored(backups, tmp_path / f"again{number}", number) == held[number]
    with pytest.raises(DataFolderError, match=r"an older one.* --number"):
        restore_changes(backups, tmp_path / "again", 5)


@pytest.mark.parametrize(
    ("name", "wrong"), [("page_size", "4096"), ("changed", None), ("pages", 1.5)]
)
def test_what_says_what_a_backup_is_may_be_of_the_wrong_kind(
    backups: Path, folder: Folder, tmp_path: Path, name: str, wrong: object
) -> None:
    path = backups / "0000.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: wrong}))
    refusal = rf"0000\.json is damaged \(.*`\$\.{name}`\): begin a new backup"
    with pytest.raises(DataFolderError, match=refusal):
        restore_changes(backups, tmp_path / "again")
    with pytest.raises(DataFolderError, match=refusal):
        back_up_changes(folder.path, backups)


def test_a_backup_that_lacks_one_before_it_is_refused(
    chain: tuple[Path, list[Contents]], tmp_path: Path
) -> None:
    backups, held = chain
    (backups / "0003.pages").unlink()
    with pytest.raises(DataFolderError, match=r"0003\.pages cannot be read"):
        restore_changes(backups, tmp_path / "again")
    assert restored(backups, tmp_path / "before", 2) == held[2]
    (backups / "0003.json").unlink()
    with pytest.raises(DataFolderError, match="0004 does not build on the one before it"):
        restore_changes(backups, tmp_path / "again")
    with pytest.raises(DataFolderError, match="has no backups"):
        restore_changes(tmp_path / "before", tmp_path / "again")


def test_a_backup_that_lacks_the_first_one_is_said_to_be_one(
    chain: tuple[Path, list[Contents]], tmp_path: Path
) -> None:
    backups, _ = chain
    (backups / "0000.json").unlink()
    assert is_chain(backups)
    with pytest.raises(DataFolderError, match="0001 does not build on the one before it"):
        restore_changes(backups, tmp_path / "again")


@pytest.mark.parametrize("harm", [shorten, Path.unlink], ids=["shorten", "remove"])
def test_no_backup_builds_on_one_that_lacks_its_pages(
    chain: tuple[Path, list[Contents]], folder: Folder, harm: Callable[[Path], None]
) -> None:
    """No backup that followed could be restored."""
    backups, _ = chain
    before = sorted(backups.iterdir())
    harm(backups / "0001.pages")
    with pytest.raises(
        DataFolderError, match=r"0001\.pages .*begin a new backup in another folder"
    ):
        back_up_changes(folder.path, backups)
    assert {*backups.iterdir()} | {backups / "0001.pages"} == {*before}


@pytest.fixture
def backups(folder: Folder, tmp_path: Path) -> Path:
    """The folder with the backups, after one backup."""
    folder.open()
    folder.close()
    back_up_changes(folder.path, tmp_path / "backups")
    return tmp_path / "backups"


def test_a_backup_that_is_cut_short_does_not_count(
    folder: Folder, backups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("storage.increments.sync", fail)
        with pytest.raises(StorageError, match=": No space left"):
            back_up_changes(folder.path, backups)
    assert len(read_chain(backups)) == 1
    # What a kill leaves.
    (backups / "0001.pages").write_bytes(b"half of it")
    (backups / ".0001.json").write_text('{"number":')
    assert back_up_changes(folder.path, backups).number == 1
    assert restored(backups, tmp_path / "again") == contents(folder.path)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("number", [2, 4])
def test_one_that_fails_leaves_nothing(
    folder: Folder,
    backups: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    error: BaseException,
) -> None:
    """The second file that is synced has the hashes, and the fourth one makes the backup count.

    :param number: of the sync that fails.
    """
    before = sorted(backups.iterdir())
    fsync, syncs = os.fsync, count(1)

    def fail(descriptor: int) -> None:
        file = Path(f"/proc/self/fd/{descriptor}").readlink()
        if backups in (file, file.parent) and next(syncs) == number:
            raise error
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises((StorageError, KeyboardInterrupt)):
        back_up_changes(folder.path, backups)
    assert sorted(backups.iterdir()) == before


def test_one_whose_name_the_disk_did_not_take_does_not_count(
    folder: Folder, backups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        if (path / "0001.json").exists():
            raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr("storage.increments.sync", fail)
        with pytest.raises(StorageError, match="Input/output error"):
            back_up_changes(folder.path, backups)
    assert restored(backups, tmp_path / "before") == contents(folder.path)
    assert back_up_changes(folder.path, backups).number == 1
    assert restored(backups, tmp_path / "again") == contents(folder.path)


def test_a_disk_that_can_only_be_read_from_then_on_is_told_by_what_came_first(
    folder: Folder, backups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError(5, "Input/output error")

    def refuse(path: Path, *, missing_ok: bool) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr("storage.increments.sync", fail)
        patched.setattr(Path, "unlink", refuse)
        with pytest.raises(StorageError, match=r"could not be copied to .*Input/output error"):
            back_up_changes(folder.path, backups)
    assert len(read_chain(backups)) == 1
    assert back_up_changes(folder.path, backups).number == 1


def test_a_new_file_system_is_a_place_for_them(folder: Folder, tmp_path: Path) -> None:
    folder.open()
    folder.close()
    (tmp_path / "backups" / "lost+found").mkdir(parents=True)
    assert back_up_changes(folder.path, tmp_path / "backups").number == 0


def test_what_a_killed_first_backup_has_left_is_written_over(
    folder: Folder, tmp_path: Path
) -> None:
    folder.open()
    folder.close()
    (tmp_path / "backups").mkdir()
    for name in ("0000.pages", "0000.hashes", ".0000.json"):
        (tmp_path / "backups" / name).write_bytes(b"cut sho")
    assert back_up_changes(folder.path, tmp_path / "backups").number == 0
    assert restored(tmp_path / "backups", tmp_path / "again") == contents(folder.path)


def test_what_is_no_folder_for_backups_is_refused(folder: Folder, tmp_path: Path) -> None:
    folder.open()
    folder.close()
    with pytest.raises(DataFolderError, match="has other things in it"):
        back_up_changes(folder.path, folder.path)
    with pytest.raises(DataFolderError, match="is not a data folder"):
        back_up_changes(tmp_path / "none", tmp_path / "backups")
    assert not (tmp_path / "backups").exists()
    assert not is_chain(folder.path)
    made = back_up_changes(folder.path, tmp_path / "backups")
    with pytest.raises(DataFolderError, match="has the backups 0 to 0, not 1"):
        restore_changes(tmp_path / "backups", tmp_path / "again", 1)
    with pytest.raises(DataFolderError, match="is not empty"):
        restore_changes(tmp_path / "backups", folder.path)
    file = tmp_path / "backups" / "0000.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"page_size": 65_536}))
    with pytest.raises(DataFolderError, match="another page size: choose another folder"):
        back_up_changes(folder.path, tmp_path / "backups")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 2}))
    with pytest.raises(DataFolderError, match="by a later version"):
        read_chain(tmp_path / "backups")
    assert isinstance(made, Increment)


def test_a_chain_goes_on_with_copies_of_its_folder_and_with_no_other(
    folder: Folder, tmp_path: Path
) -> None:
    other = Folder(tmp_path / "other")
    for one in (folder, other):
        one.open()
        one.close()
    backups = tmp_path / "backups"
    back_up_changes(folder.path, backups)
    with pytest.raises(DataFolderError, match=r"backups of another data folder than .*other"):
        back_up_changes(other.path, backups)
    restore_changes(backups, tmp_path / "again")
    copy = Folder(tmp_path / "again")
    hold(copy.open(), Sample(b"later"), 20_000)
    copy.close()
    compact(copy.path)
    assert back_up_changes(copy.path, backups).number == 1


def test_a_folder_of_an_earlier_version_gets_its_identity_with_its_next_checkpoint(
    folder: Folder, tmp_path: Path
) -> None:
    folder.open()
    folder.damage("meta", IDENTITY, None)
    folder.close()
    backups = tmp_path / "backups"
    assert back_up_changes(folder.path, backups).identity is None
    hold(folder.open(), Sample(b"later"), 20_000)
    folder.close()
    assert back_up_changes(folder.path, backups).identity is not None
    assert len(read_chain(backups)) == 2


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """A file of 100 GB has 400 MB of hashes."""
    folder = tmp_path / "backups"
    folder.mkdir()
    pages, page_size = 100_000, 16
    hashes = blake2b(bytes(page_size), digest_size=16).digest() * pages
    (folder / "0000.hashes").write_bytes(hashes)
    (folder / "0000.pages").touch()
    digest = sha256(hashes).hexdigest()
    one = Increment(0, 1, page_size, pages, changed=0, digest=digest, before=None)
    (folder / "0000.json").write_text(json.dumps(asdict(one)))
    size = len(hashes)
    del hashes
    tracemalloc.start()
    assert restore_changes(folder, tmp_path / "data") == pages * page_size
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < size / 4
