"""A change between one gateway and several workers must not leave stored messages unserved."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.process import StartError
from gateway.settings.config import Config
from gateway.workers.worker_folders import (
    check_folder_of_one,
    check_folders_of_workers,
    lock_folder_of_workers,
    worker_folder,
)
from storage import DATA_FILE


def hold(folder: Path) -> None:
    """Make a folder look like one that was served from."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DATA_FILE).touch()


def config(data: Path, workers: int = 1) -> Config:
    return Config(data=data, workers=workers)


def test_new_folders(tmp_path: Path) -> None:
    check_folder_of_one(config(tmp_path / "one"))
    assert check_folders_of_workers(config(tmp_path / "many" / "data", 2)) == []
    lock_folder_of_workers(tmp_path / "many" / "data").close()
    assert (tmp_path / "many" / "data").is_dir()


def test_one_in_a_folder_of_incremental_backups(tmp_path: Path) -> None:
    """A gateway would begin without messages where somebody looks for those of the backup."""
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "0000.json").write_text("{}")
    with pytest.raises(StartError, match=f"'tidegate restore --from {tmp_path} --data NEW'"):
        check_folder_of_one(config(tmp_path))


def test_workers_in_the_folder_of_one(tmp_path: Path) -> None:
    hold(tmp_path)
    check_folder_of_one(config(tmp_path))
    with pytest.raises(StartError, match="is that of one gateway") as caught:
        check_folders_of_workers(config(tmp_path, 4))
    assert f"move its files to {tmp_path / 'worker-0'}" in str(caught.value)


def test_one_in_the_folder_of_workers(tmp_path: Path) -> None:
    for number in (0, 1, 10):
        hold(worker_folder(tmp_path, number))
    hold(tmp_path / "worker-of-mine")
    with pytest.raises(StartError, match="is that of 3 workers; set workers to 11"):
        check_folder_of_one(config(tmp_path))
    check_folder_of_one(config(worker_folder(tmp_path, 0)))
    assert check_folders_of_workers(config(tmp_path, 11)) == []


def test_one_in_the_folder_of_workers_of_which_one_is_left(tmp_path: Path) -> None:
    """The user asked for one worker, so advice to set `workers` to one would not help."""
    hold(worker_folder(tmp_path, 0))
    with pytest.raises(StartError, match=f"of only one; set data to {tmp_path / 'worker-0'}"):
        check_folder_of_one(config(tmp_path))


def test_fewer_workers_than_there_were(tmp_path: Path) -> None:
    for number in range(4):
        hold(worker_folder(tmp_path, number))
    left_over = check_folders_of_workers(config(tmp_path, 2))
    assert [folder.name for folder in left_over] == ["worker-2", "worker-3"]


def test_a_second_leader_is_kept_away(tmp_path: Path) -> None:
    """Its workers would each wait until a worker of the first leader restarts, and take over its folder."""
    with lock_folder_of_workers(tmp_path), pytest.raises(StartError, match="is in use by process"):
        lock_folder_of_workers(tmp_path)
    lock_folder_of_workers(tmp_path).close()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match="cannot write to the data folder"):
        lock_folder_of_workers(tmp_path / "file" / "data")
