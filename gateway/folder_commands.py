"""The commands that look after a data folder: `fsck` (see there), `backup`, `restore` and `compact`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import rich_click as click

from gateway.data_folder import FOLDER, data_option, tell
from gateway.fsck import fsck


@click.command()
@data_option
@click.option(
    "--to",
    "target",
    required=True,
    type=FOLDER,
    metavar="DIR",
    help="A folder to be made; with --incremental one for all backups.",
)
@click.option(
    "--incremental",
    is_flag=True,
    help="Write only the pages that changed since the last backup in that folder.",
)
def backup(data: Path, target: Path, *, incremental: bool) -> None:
    """Copy a data folder while a gateway serves from it, as it is at one moment.

    Every message that was acknowledged before the command began is in the copy: it waits for the gateway's
    next checkpoint, a second or so. Free pages are left out. The copy is itself a data folder: it can be
    checked, exported from and served from. Copying the files by hand is right only while no gateway serves,
    and only all of them together.

    With --incremental the folder takes one backup after the other: the first has the whole data file, free
    pages included, and each later one the pages that are not as they were. The whole file is read each
    time. `tidegate restore` puts any of them together, and checks every page.

    \b
    Examples:
      tidegate backup --data ./data --to /backups/$(date +%F)
      tidegate backup --data ./data --to /backups/hourly --incremental
    """
    from gateway.setting_values import show_size
    from storage import back_up, back_up_changes

    if incremental:
        made = back_up_changes(data, target)
        changed = f"{made.changed:,} of {made.pages:,} pages"
        tell(f"{target}: backup {made.number:04}, {changed}, {made.size:,} bytes")
        return
    size = back_up(data, target)
    tell(f"{target}: {show_size(size)}")


@click.command()
@click.option(
    "--from", "source", required=True, type=FOLDER, metavar="DIR", help="What `backup` made."
)
@click.option(
    "--number",
    type=click.IntRange(min=0),
    metavar="N",
    help="Which of the backups of `backup --incremental`. Default: the last one.",
)
@data_option
def restore(source: Path, data: Path, number: int | None) -> None:
    """Make a new data folder of a backup. One that holds anything is not touched.

    Messages that fired after the backup was taken fire again when a gateway serves from the folder.

    \b
    Examples:
      tidegate restore --from /backups/2030-01-31 --data ./data
      tidegate restore --from /backups/hourly --number 12 --data ./data
    """
    from gateway.setting_values import show_size
    from storage import is_chain, restore_changes
    from storage import restore as put_back

    if is_chain(source):
        size = restore_changes(source, data, number)
    elif number is not None:
        raise click.UsageError(f"--number: {source} has no backups of `backup --incremental`")
    else:
        size = put_back(source, data)
    tell(f"{data}: {show_size(size)}; now 'tidegate fsck --data {data}' and start the gateway")


@click.command()
@data_option
def compact(data: Path) -> None:
    """Make a data file smaller: rewrite it without its free pages. No gateway may be serving from it.

    A file never shrinks by itself: what fired or was removed leaves pages that are used again. It needs
    room on the disk for the new file beside the old one; the old one stays until the new one is whole.
    The redo log of a gateway that was killed is done again first.

    \b
    Example:
      tidegate compact --data ./data
    """
    from gateway.setting_values import show_size
    from storage import compact as rewrite

    sizes = rewrite(data)
    tell(f"{data}: {show_size(sizes.before)} before, {show_size(sizes.after)} now")


COMMANDS: Final[tuple[Any, ...]] = (fsck, backup, restore, compact)
"""All of them, for the command line to take up."""
