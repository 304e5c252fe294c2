"""What the commands that work on a data folder share: which one, what they say, how they end."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

import rich_click as click

FAULTY: Final = 4
"""Exit status when faults were found, or not everything could be done, beside those of `gateway.cli`."""


class _Folder(click.Path):
    """A folder's path. An empty one, as a script's variable leaves that is not set, would be the folder one is in."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        if value == "":
            self.fail("it is empty: name a folder", param, ctx)
        return super().convert(value, param, ctx)


FOLDER: Final = _Folder(path_type=Path, file_okay=False)


def _one_folder(ctx: click.Context, param: click.Parameter, data: Path) -> Path:
    # Several workers have a folder each below the one that they were started with (gateway/worker_folders.py).
    workers = sorted(file.parent for file in data.glob("worker-*/data.mdb"))
    if workers and not (data / "data.mdb").exists():
        raise click.ClickException(
            f"{data} has a folder for each of {len(workers)} workers; name one of them, such as {workers[0]}"
        )
    ctx.call_on_close(lambda: _keep_owner(data))
    return data


def _keep_owner(data: Path) -> None:
    """Give what root has made in a folder to its owner: a gateway with a user of its own could not write it."""
    if os.geteuid() != 0 or not data.is_dir():
        return
    owner = data.stat()
    if owner.st_uid == 0:
        return
    for file in data.iterdir():
        # A gateway that serves may have removed it, and root may lack the right, as in some containers.
        with suppress(FileNotFoundError, PermissionError):
            found = file.lstat()
            # A file with another name is perhaps one from elsewhere, which is not to be given away.
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
    """Say something on standard error: standard output is for what was asked for."""
    click.echo(text, err=True)


def counted(number: int, thing: str) -> str:
    """So many things, such as `1 message` and `2,000 messages`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def rough_size(size: int) -> str:
    """A number of bytes as people read it, such as `1.305GiB`."""
    amount, unit = size / 1024, "KiB"
    for larger in ("MiB", "GiB", "TiB"):
        if amount >= 1024:
            amount, unit = amount / 1024, larger
    return f"{amount:.4g}{unit}"


def is_confirmed(question: str) -> bool:
    """Ask whether to go on.

    :raises click.UsageError: where nobody can be asked.
    """
    try:
        return click.confirm(question, err=True)
    except (click.Abort, RuntimeError):
        # RuntimeError: standard input is closed.
        raise click.UsageError("--yes is needed where nobody can be asked") from None
