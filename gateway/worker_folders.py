"""The data folder of one gateway and the folders of several workers below one: neither is taken for the other."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Final

from gateway.config import Config
from gateway.process import StartError
from storage import DATA_FILE, DataFolderError, lock_folder

_PREFIX: Final = "worker-"


def worker_folder(data: Path, number: int) -> Path:
    """Where a worker has its data, below the folder of the setting `data`."""
    return data / f"{_PREFIX}{number}"


def check_folder_of_one(config: Config) -> None:
    """See that a gateway by itself is not started on what several workers hold, and would serve none of it.

    :raises StartError: when it is.
    """
    folders = _worker_folders(config.data)
    if folders and not (config.data / DATA_FILE).exists():
        one = folders[min(folders)]
        if max(folders) == 0:
            raise StartError(
                f"the data folder {config.data} is that of several workers, of which one is left; set data to {one}"
            )
        raise StartError(
            f"the data folder {config.data} is that of {len(folders)} workers; "
            f"set workers to {max(folders) + 1}, or data to one of theirs, such as {one}"
        )


def check_folders_of_workers(config: Config) -> list[Path]:
    """See that several workers do not leave what one gateway holds unserved.

    :returns: folders of workers that there were once more of; nobody serves from them now.
    :raises StartError: when they would.
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
    """Keep other leaders from the folder below which workers have theirs, until what is returned is closed.
    Their workers would take the folder of each that is just being started again.

    :raises StartError: when another one has it, or it cannot be written to.
    """
    try:
        return lock_folder(data)
    except DataFolderError as failure:
        raise StartError(str(failure)) from failure


def _worker_folders(data: Path) -> dict[int, Path]:
    """Folders in which workers have had data, by the workers' numbers."""
    found = (file.parent for file in data.glob(f"{_PREFIX}*/{DATA_FILE}"))
    numbers = ((folder.name.removeprefix(_PREFIX), folder) for folder in found)
    return {int(text): folder for text, folder in numbers if text.isdecimal()}
