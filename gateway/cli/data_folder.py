"""Shared parts of the commands that work on a data folder: the flag that names it, messages, exit statuses."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

import rich_click as click

FAULTY: Final = 4
"""Exit status when faults were found, or not everything could be done; `gateway.cli.main` lists all statuses."""


class NamedPath(click.Path):
    """A path. An empty one, as from an unset variable of a script, would be the current folder."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        if value == "":
            self.fail(f"it is empty: name a {'file' if self.file_okay else 'folder'}", param, ctx)
        return super().convert(value, param, ctx)


FOLDER: Final = NamedPath(path_type=Path, file_okay=False)


def is_of_store(file: Path, data: Path) -> bool:
    """Whether a file is one that a gateway writes in its data folder, perhaps through a link, or would have the place
    of one in a folder below it, such as a worker's."""
    from gateway.monitoring.audit import FILE
    from storage import FOLDER_FILES

    names = (*FOLDER_FILES, FILE)
    place = Path(os.path.realpath(file))
    is_below = place.name in names and place.is_relative_to(os.path.realpath(data))
    return is_below or place in {Path(os.path.realpath(data / name)) for name in names}


def _one_folder(ctx: click.Context, param: click.Parameter, data: Path) -> Path:
    from storage import DATA_FILE, is_chain

    # Each of several workers has a folder below theirs (gateway/workers/worker_folders.py).
    workers = sorted(file.parent for file in data.glob(f"worker-*/{DATA_FILE}"))
    is_one = (data / DATA_FILE).exists()
    if workers and not is_one:
        raise click.ClickException(
            f"{data} has a folder for each of {len(workers)} workers; name one of them, such as {workers[0]}"
        )
    if not is_one and is_chain(data):
        raise click.ClickException(
            f"{data} has incremental backups, and is no data folder; make one with "
            f"'tidegate restore --from {data} --data NEW'"
        )
    is_new = not os.access(data, os.F_OK)
    ctx.call_on_close(lambda: _keep_owner(data, is_new=is_new))
    return data


def _keep_owner(data: Path, *, is_new: bool) -> None:
    """Give files that root has created in a folder to the folder's owner: a gateway that runs as another user could not
    write them. A new folder of a worker is given to the owner of the gateway's folder.

    :param is_new: whether the folder was missing before the command.
    """
    if os.geteuid() != 0 or not data.is_dir():
        return
    if is_new and fnmatch(data.name, "worker-*"):
        above = data.absolute().parent.stat()
        os.chown(data, above.st_uid, above.st_gid)
    owner = data.stat()
    if owner.st_uid == 0:
        return
    for file in data.iterdir():
        # A running gateway may have removed the file, and root may lack the right, as in some containers.
        with suppress(FileNotFoundError, PermissionError):
            found = file.lstat()
            # A file with other names may belong elsewhere, and is not given away.
            if found.st_uid == 0 and stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
                os.chown(file, owner.st_uid, owner.st_gid, follow_symlinks=False)


data_option = click.option(
    "--data",
    required=True,
    envvar="TIDEGATE_DATA",
    type=FOLDER,
    metavar="DIR",
    callback=_one_folder,
    help="The gateway's data folder. Variable: TIDEGATE_DATA.",
)
"""Adds the flag that names the folder to a command."""


def tell(text: str) -> None:
    """Print a message on standard error: standard output is for results."""
    click.echo(text, err=True)


def counted(number: int, thing: str) -> str:
    """Format a number of things, such as `1 message` and `2,000 messages`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def rough_size(size: int) -> str:
    """Format a number of bytes for people, such as `1.305GiB`."""
    amount, unit = size / 1024, "KiB"
    for larger in ("MiB", "GiB", "TiB"):
        if amount >= 1024:
            amount, unit = amount / 1024, larger
    return f"{amount:.4g}{unit}"


def is_confirmed(question: str) -> bool:
    """Ask the user whether to go on. At a terminal Ctrl-C and Ctrl-D mean no.

    :raises click.UsageError: when there is no terminal to ask at.
    """
    try:
        return click.confirm(question, err=True)
    except (click.Abort, RuntimeError):
        # RuntimeError: standard input is closed.
        if sys.stdin is not None and sys.stdin.isatty():
            tell("")  # ends the line of the question
            return False
        raise click.UsageError("--yes is needed where nobody can be asked") from None
