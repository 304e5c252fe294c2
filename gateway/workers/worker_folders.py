"""Keeps the data folder of one gateway apart from the folder that holds the folders of several workers."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Final

from gateway.process import StartError
from gateway.settings.config import Config
from storage import DATA_FILE, DataFolderError, is_chain, lock_folder

_PREFIX: Final = "worker-"


def worker_folder(data: Path, number: int) -> Path:
    """Return a worker's data folder, below the folder of the setting `data`."""
    return data / f"{_PREFIX}{number}"


def check_folder_of_one(config: Config) -> None:
    """Check that a single gateway is not started on the folder of several workers, nor on one of incremental backups:
    it would serve none of their data.

    :raises StartError: when it is.
    """
    if (config.data / DATA_FILE).exists():
        return
    if is_chain(config.data):
        raise StartError(
            f"{config.data} has incremental backups, and is no data folder; make one with "
            f"'tidegate restore --from {config.data} --data NEW', and set data to that"
        )
    folders = _worker_folders(config.data)
    if folders:
        one = folders[min(folders)]
        if max(folders) == 0:
            raise StartError(
                f"the data folder {config.data} is that of several workers, but has the folder of only one; "
                f"set data to {one}"
            )
        raise StartError(
            f"the data folder {config.data} is that of {len(folders)} workers; "
            f"set workers to {max(folders) + 1}, or data to one of theirs, such as {one}"
        )


def check_folders_of_workers(config: Config) -> list[Path]:
    """Check that several workers are not started on the folder of one gateway: they would not serve its data.

    :returns: folders of workers beyond the present number of workers; nobody serves from them now.
    :raises StartError: when they are.
    """
    data = config.data
    if (data / DATA_FILE).exists():
        raise StartError(
            f"the data folder {data} is that of one gateway, and {config.workers} workers would not serve what is in "
            f"it; move its files to {worker_folder(data, 0)} (docs/workers.md), or set data to another folder"
        )
    folders = _worker_folders(data)
    return [folders[number] for number in sorted(folders) if number >= config.workers]


def lock_folder_of_workers(data: Path) -> ExitStack:
    """Keep other leaders from the folder that holds the workers' folders, until the returned stack is closed. Their
    workers would take over the folder of each worker that is just being restarted.

    :raises StartError: when another leader has it, or it cannot be written to.
    """
    try:
        return lock_folder(data)
    except DataFolderError as failure:
        raise StartError(str(failure)) from failure


def _worker_folders(data: Path) -> dict[int, Path]:
    """Return the folders in which workers have had data, by the workers' numbers."""
    found = (file.parent for file in data.glob(f"{_PREFIX}*/{DATA_FILE}"))
    numbers = ((folder.name.removeprefix(_PREFIX), folder) for folder in found)
    return {int(text): folder for text, folder in numbers if text.isdecimal()}
