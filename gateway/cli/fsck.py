"""`tidegate fsck`: checks a data folder and, with `--repair`, repairs it.

The exit status is 4 if faults were found, or are left; the other ones are in `gateway.cli.main`.
"""

from __future__ import annotations

import shutil
import sys
import time
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

import rich_click as click

from gateway.cli.asking import now_ms
from gateway.cli.data_folder import FAULTY, FOLDER, counted, data_option, is_confirmed, tell

if TYPE_CHECKING:
    from storage import Findings, Inspection

MOST_SHOWN: Final = 100
"""Most faults, and most repairs, that are printed; a damaged file can have millions."""


@click.command()
@data_option
@click.option("--repair", is_flag=True, help="Repair what can be repaired, after asking.")
@click.option("--yes", is_flag=True, help="Repair without asking.")
@click.option(
    "--copy-to",
    type=FOLDER,
    metavar="DIR",
    help="New folder for a copy from before the repair. Default: one next to the data folder.",
)
@click.option(
    "--no-copy", is_flag=True, help="Repair without a copy, if the disk has no room for one."
)
def fsck(data: Path, *, repair: bool, yes: bool, copy_to: Path | None, no_copy: bool) -> None:
    """Check that all tables of a data folder agree. No gateway may be serving from it.

    Each fault is a line on standard output; after the faults come the repairs that --repair would make.
    Of more than 100, the first 100 are shown. Without --repair nothing is changed, except that the redo
    log of a killed gateway is replayed first, unless pages are wrong. The exit status is 0 if the folder
    is sound, and 4 if it is not. To check a gateway that is serving, make a backup and check that.

    With --repair the folder is first copied without its free pages; then all repairs are made in one
    transaction. No message is deleted: a record that cannot be read is moved to the file
    repairs-TIME.jsonl in the folder, which holds every row that was removed or changed, as it was before.
    The exit status is 4 if a fault is left.

    If pages of data.mdb are wrong, a new file is written beside it with the rows that can be read. It is
    repaired, and then replaces the old one. The copy has the old files as they are, free pages too. The disk
    needs room for both, and is looked at first. docs/damage.md says what is lost then.

    \b
    Examples:
      tidegate fsck --data ./data
      tidegate backup --data ./data --to /tmp/copy && \\
          tidegate fsck --data /tmp/copy
      tidegate fsck --data ./data --repair
      tidegate fsck --data ./data --repair --yes --copy-to /backups/before-repair
    """
    from gateway.cli.records import READER
    from storage import Inspection, data_file

    if not repair and (yes or no_copy or copy_to is not None):
        raise click.UsageError("--yes, --copy-to and --no-copy go with --repair")
    if no_copy and copy_to is not None:
        raise click.UsageError("either --copy-to or --no-copy")
    data_file(data)
    inspection = Inspection(data, READER, now_ms())
    try:
        if inspection.upgraded is not None:
            tell(inspection.upgraded)
        found = inspection.find(_progress)
        if inspection.log_trouble is not None:
            tell(inspection.log_trouble)
        if not found.faults:
            tell("no faults")
            return
        _show(found.faults, len(found.faults))
        tell(counted(len(found.faults), "fault"))
        _foretell(found)
        if not repair or not found.made:
            ways = "restore a backup, or repair" if found.made else "this cannot be repaired"
            tell(f"{ways}: see docs/disaster-recovery.md")
            sys.exit(FAULTY)
        if not yes and not is_confirmed(f"Make {counted(found.made, 'change')} in {data}?"):
            tell("nothing was changed")
            sys.exit(FAULTY)
        if _repair(inspection, data, found, copy_to, no_copy=no_copy).left:
            sys.exit(FAULTY)
    finally:
        inspection.close()


def _foretell(found: Findings) -> None:
    if found.made:
        click.echo()
        click.echo(f"would be repaired, by {counted(found.made, 'change')}:")
        _show(found.repairs, found.made)
    if found.left:
        click.echo()
        click.echo("would be left, as no repair is known that loses nothing:")
        _show(found.left, len(found.left))


def _repair(
    inspection: Inspection, data: Path, found: Findings, copy_to: Path | None, *, no_copy: bool
) -> Findings:
    from storage import StorageError

    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    whole = data.resolve()
    beside = f"{whole.name}.before-repair-"
    target = copy_to or whole.with_name(f"{beside}{moment}")
    try:
        inspection.check_room(None)
    except StorageError as error:
        raise StorageError(
            f"{error}; nothing was repaired: make room, or copy the folder to another disk and repair it there"
        ) from error
    if not no_copy:
        try:
            inspection.check_room(target)
            # The unfinished copies of killed repairs: no other repair is running on this folder.
            for left in whole.parent.glob(f".{escape(beside)}*.unfinished"):
                shutil.rmtree(left, ignore_errors=True)
            inspection.copy(target)
        except StorageError as error:
            raise StorageError(
                f"{error}; nothing was repaired: name another folder with --copy-to, or make no copy, with --no-copy"
            ) from error
        tell(f"{target}: the folder before the repair")
    journal = data / f"repairs-{moment}.jsonl"
    done = inspection.repair(journal, _progress)
    if done.repairs != found.repairs:
        # What the rows of a file with wrong pages contradict is only known once they are in a new one.
        click.echo()
        click.echo(f"was repaired, by {counted(done.made, 'change')}:")
        _show(done.repairs, done.made)
    tell(f"{counted(done.made, 'change')} made; {journal} has what was there before")
    tell(f"{counted(len(done.left), 'fault')} left" if done.left else "no faults are left")
    return done


def _progress(name: str, rows: int) -> None:
    tell(f"checking {rows:,} {name}")


def _show(sentences: list[str], count: int) -> None:
    from gateway.cli.display import printable

    for sentence in sentences[:MOST_SHOWN]:
        click.echo(printable(sentence))
    if count > MOST_SHOWN:
        click.echo(f"and {count - MOST_SHOWN:,} more")
