"""The commands that maintain a data folder: `backup`, `restore` and `compact`; `fsck` is in `gateway.cli.fsck`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import rich_click as click

from gateway.cli.data_folder import FOLDER, data_option, rough_size, tell
from gateway.cli.fsck import fsck


@click.command()
@data_option
@click.option(
    "--to",
    "target",
    required=True,
    type=FOLDER,
    metavar="DIR",
    help="New folder for the backup; with --incremental, the folder that holds all backups.",
)
@click.option(
    "--incremental",
    is_flag=True,
    help="Write only the pages that have changed since the last backup in that folder.",
)
def backup(data: Path, target: Path, *, incremental: bool) -> None:
    """Make a consistent copy of a data folder, while a gateway serves from it or not.

    The copy has every message that was acknowledged before the command began: it waits for the gateway's
    next checkpoint, a second or so. Free pages are left out. The copy is itself a data folder that you can
    check, export from and serve from. To copy the files by hand, stop the gateway first, and copy all of
    them together.

    With --incremental the folder holds a series of backups. The first one has the whole data file with its
    free pages; each later one has only the pages that have changed. The whole file is read each
    time. `tidegate restore` restores any of them, and checks every page.

    \b
    Examples:
      tidegate backup --data ./data --to /backups/$(date +%F)
      tidegate backup --data ./data --to /backups/hourly --incremental
    """
    from storage import back_up, back_up_changes

    if incremental:
        made = back_up_changes(data, target)
        changed = f"{made.changed:,} of {made.pages:,} pages"
        tell(f"{target}: backup {made.number:04}, {changed}, {made.size:,} bytes")
        return
    size = back_up(data, target)
    tell(f"{target}: {rough_size(size)}")


@click.command()
@click.option(
    "--from", "source", required=True, type=FOLDER, metavar="DIR", help="The backup's folder."
)
@click.option(
    "--number",
    type=click.IntRange(min=0),
    metavar="N",
    help="Which incremental backup to restore. Default: the last one.",
)
@data_option
def restore(source: Path, data: Path, number: int | None) -> None:
    """Make a new data folder from a backup. A folder that is not empty is not touched.

    Messages that fired after the backup was made fire again when a gateway serves from the folder.

    \b
    Examples:
      tidegate restore --from /backups/2030-01-31 --data ./data
      tidegate restore --from /backups/hourly --number 12 --data ./data
    """
    from storage import check_command, is_chain, restore_changes
    from storage import restore as put_back

    if is_chain(source):
        size = restore_changes(source, data, number)
    elif number is not None:
        raise click.UsageError(f"--number: {source} has no backups of `backup --incremental`")
    else:
        size = put_back(source, data)
    tell(
        f"{data}: {rough_size(size)} restored; now run '{check_command(data)}' and start the gateway"
    )


@click.command()
@data_option
def compact(data: Path) -> None:
    """Shrink a data file: rewrite it without its free pages. No gateway may be serving from it.

    The file never shrinks by itself: fired and removed messages leave free pages, which are reused. The
    disk needs room for the new file next to the old one, which stays until the new one is complete.
    If the gateway was killed, its redo log is replayed first.

    \b
    Example:
      tidegate compact --data ./data
    """
    from storage import compact as rewrite

    sizes = rewrite(data)
    tell(f"{data}: {rough_size(sizes.before)} before, {rough_size(sizes.after)} now")


COMMANDS: Final[tuple[Any, ...]] = (fsck, backup, restore, compact)
"""These commands and `fsck`, which `gateway.cli.main` adds to the command line."""
