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


def test_new_folders(scratch: Path) -> None:
    check_folder_of_one(config(scratch / "one"))
    assert check_folders_of_workers(config(scratch / "many" / "data", 2)) == []
    lock_folder_of_workers(scratch / "many" / "data").close()
    assert (scratch / "many" / "data").is_dir()


def test_one_in_a_folder_of_incremental_backups(scratch: Path) -> None:
    """A gateway would begin without messages where somebody looks for those of the backup."""
    scratch.mkdir(exist_ok=True)
    (scratch / "0000.json").write_text("{}")
    with pytest.raises(StartError, match=f"'tidegate restore --from {scratch} --data NEW'"):
        check_folder_of_one(config(scratch))


def test_workers_in_the_folder_of_one(scratch: Path) -> None:
    hold(scratch)
    check_folder_of_one(config(scratch))
    with pytest.raises(StartError, match="is that of one gateway") as caught:
        check_folders_of_workers(config(scratch, 4))
    assert f"move its files to {scratch / 'worker-0'}" in str(caught.value)


def test_one_in_the_folder_of_workers(scratch: Path) -> None:
    for number in (0, 1, 10):
        hold(worker_folder(scratch, number))
    hold(scratch / "worker-of-mine")
    with pytest.raises(StartError, match="is that of 3 workers; set workers to 11"):
        check_folder_of_one(config(scratch))
    check_folder_of_one(config(worker_folder(scratch, 0)))
    assert check_folders_of_workers(config(scratch, 11)) == []


def test_one_in_the_folder_of_workers_of_which_one_is_left(scratch: Path) -> None:
    """The user asked for one worker, so advice to set `workers` to one would not help."""
    hold(worker_folder(scratch, 0))
    with pytest.raises(StartError, match=f"of only one; set data to {scratch / 'worker-0'}"):
        check_folder_of_one(config(scratch))


def test_fewer_workers_than_there_were(scratch: Path) -> None:
    for number in range(4):
        hold(worker_folder(scratch, number))
    left_over = check_folders_of_workers(config(scratch, 2))
    assert [folder.name for folder in left_over] == ["worker-2", "worker-3"]


def test_a_second_leader_is_kept_away(scratch: Path) -> None:
    """Its workers would each wait until a worker of the first leader restarts, and take over its folder."""
    with lock_folder_of_workers(scratch), pytest.raises(StartError, match="is in use by process"):
        lock_folder_of_workers(scratch)
    lock_folder_of_workers(scratch).close()


def test_a_folder_that_cannot_be_made(scratch: Path) -> None:
    (scratch / "file").touch()
    with pytest.raises(StartError, match="cannot write to the data folder"):
        lock_folder_of_workers(scratch / "file" / "data")
