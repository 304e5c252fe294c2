"""The commands that take unfired messages out of a data folder and to another server: `export`, `import` and `drain`.

Exit status 4, beside those of `gateway.cli.main`: not every message could be written or sent.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

import rich_click as click

from gateway.cli.asking import SOURCE, address, connection_options, lines_of, now_ms
from gateway.cli.data_folder import FAULTY, NamedPath, counted, data_option, is_of_store, tell

if TYPE_CHECKING:
    from gateway.cli.asking import Connect

_TELL_EVERY_S: Final = 1.0
"""Seconds between two reports of progress on standard error."""

_LOOK_EVERY: Final = 1_000
"""Messages of an export between two looks at the clock."""

_Message = TypeVar("_Message")


class _Reports:
    """Says when it is time for a report of progress."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def are_due(self) -> bool:
        """Whether to report now; the next report is then due `_TELL_EVERY_S` later."""
        now = time.monotonic()
        is_due = now - self._last > _TELL_EVERY_S
        if is_due:
            self._last = now
        return is_due


def _told(messages: Iterable[_Message]) -> Iterator[_Message]:
    """Yield the same messages, and report on standard error how many there were."""
    reports = _Reports()
    for count, message in enumerate(messages, 1):
        yield message
        if count % _LOOK_EVERY == 0 and reports.are_due():
            tell(f"{count:,} messages so far")


_format = click.option(
    "--format",
    "form",
    type=click.Choice(("jsonl", "parquet")),
    help="JSON lines or Parquet. Default: Parquet if the file's name ends in .parquet, else JSON lines.",
)


def _is_parquet(form: str | None, name: str) -> bool:
    """Whether a file is to be Parquet, by format or name. Fail if it is and pyarrow is missing."""
    if form != "parquet" and (form is not None or not name.endswith(".parquet")):
        return False
    if importlib.util.find_spec("pyarrow") is None:
        raise click.ClickException(
            "Parquet needs pyarrow: run pip install '.[parquet]' in the folder of Tidegate's source"
        )
    return True


@contextmanager
def _written(target: Path) -> Iterator[IO[bytes]]:
    """Open a file to write. It gets its name once the disk has all of it. Otherwise it is removed, and a file that had
    the name before stays as it was. Standard output, a pipe or a device is written directly."""
    from storage import sync

    if str(target) == "-":
        if sys.stdout is None:
            raise click.ClickException("standard output is closed: name a file with --to")
        yield sys.stdout.buffer
        return
    if target.exists() and not target.is_file():
        try:
            with target.open("wb") as file:
                yield file
        except OSError as error:
            raise _unwritten(target, error) from error
        return
    # Follow a link, so that the link itself stays. `resolve` would fail at one to itself.
    target = Path(os.path.realpath(target))
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        with unfinished.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Another export that ends just now has given this file its name, or removed it.
                is_free = os.path.samestat(os.fstat(file.fileno()), unfinished.stat())
            except (BlockingIOError, FileNotFoundError):
                is_free = False
            if not is_free:
                raise click.ClickException(f"another export to {target} is being made")
            try:
                # Drop what an earlier attempt left that was killed.
                file.seek(0)
                file.truncate()
                yield file
                file.flush()
                os.fsync(file.fileno())
                unfinished.replace(target)
            except BaseException:
                unfinished.unlink(missing_ok=True)
                raise
            sync(target.parent)
    except OSError as error:
        raise _unwritten(target, error) from error


def _unwritten(target: Path, error: OSError) -> click.ClickException:
    return click.ClickException(f"{target} could not be written: {error.strerror}")


@click.command()
@data_option
@click.option(
    "--to",
    "target",
    type=NamedPath(path_type=Path, allow_dash=True, dir_okay=False),
    default="-",
    metavar="FILE",
    help="File to write. Default: -, which is standard output.",
)
@_format
def export(data: Path, target: Path, form: str | None) -> None:
    """Write all pending messages as JSON lines or as Parquet, the next due first.

    A gateway may be serving from the folder; the export then waits for its next checkpoint, a second or so.
    In JSON, bodies are base64; times are epoch ms. Messages that cannot be read are left out, and the exit
    status is then 4. The file gets its name once it is complete.

    \b
    Examples:
      tidegate export --data ./data --to held.jsonl
      tidegate export --data ./data --to held.parquet
      tidegate export --data ./data | jq -r '[.dueMs, .topic, .msgId] | @tsv'
    """
    from gateway.cli.transfer import export_held, export_lines

    if is_of_store(target, data):
        raise click.UsageError(f"--to {target} is a file of the data folder itself: name another")
    count = 0
    damaged: set[bytes] = set()
    is_parquet = _is_parquet(form, str(target))
    with _written(target) as file:
        if is_parquet:
            from gateway.cli.parquet import write_held

            count = write_held(_told(export_held(data, damaged)), file)
        else:
            for line in _told(export_lines(data, damaged)):
                file.write(line)
                count += 1
        file.flush()
    tell(counted(count, "message"))
    if damaged:
        tell(f"left out, as they cannot be read: {len(damaged):,}; see 'tidegate fsck'")
        sys.exit(FAULTY)


_to_server = click.option(
    "--to",
    "server",
    required=True,
    callback=address,
    metavar="HOST:PORT",
    help="The gateway, or the name server of a cluster of RocketMQ 5.",
)


@click.command("import")
@click.argument("source", type=SOURCE, default="-", metavar="[FILE]")
@_format
@_to_server
@connection_options("--to")
def import_(connect: Connect, source: IO[bytes], form: str | None, server: tuple[str, int]) -> None:
    """Send exported messages, with their times, to a gateway or to a RocketMQ cluster.

    Ids, keys, tags, bodies and retry counts are kept. Overdue messages are delivered at once. An import that
    was interrupted can be repeated: a gateway is asked first whether it already has a message. A RocketMQ
    broker cannot be asked, so repeated messages are there twice.

    Each refused message, such as one due later than a broker's limit of 3 days, is a line on standard output,
    and the exit status is then 4.

    \b
    Examples:
      tidegate import held.jsonl --to 127.0.0.1:9876
      tidegate import held.parquet --to 127.0.0.1:9876
      tidegate export --data ./data | tidegate import --to namesrv.example:9876
    """
    from gateway.cli.display import printable
    from gateway.cli.transfer import LineError, Sender, parse_lines
    from gateway.client import RefusalError

    if _is_parquet(form, str(source.name)):
        if not source.seekable():
            raise click.ClickException("Parquet can be read from a file only, not from a pipe")
        from gateway.cli.parquet import read_held

        messages = read_held(source)
    else:
        messages = parse_lines(lines_of(source))
    sent = known = refused = 0
    reports = _Reports()
    with Sender(server, connect) as sender:
        try:
            for line in messages:
                try:
                    if sender.send(line):
                        sent += 1
                    else:
                        known += 1
                except RefusalError as error:
                    refused += 1
                    click.echo(printable(f"{line.topic} {line.msg_id} due {line.due_ms}: {error}"))
                if reports.are_due():
                    tell(f"{sent:,} sent, {known:,} were there already so far")
        except LineError as error:
            raise click.ClickException(str(error)) from None
        finally:
            tell(f"{sent:,} sent, {known:,} were there already, {refused:,} refused")
    if refused:
        sys.exit(FAULTY)


@click.command()
@data_option
@_to_server
@connection_options("--to")
def drain(connect: Connect, data: Path, server: tuple[str, int]) -> None:
    """Move all pending messages from a data folder to another gateway or to a RocketMQ cluster.

    No gateway may be serving from the folder. A message that the other side has acknowledged is aborted in
    the folder, so only one of the two delivers it. A message that it refuses stays, and is a line on
    standard output. The exit status is 4 if a message was refused or could not be read. Recurring messages,
    undecided transactions, and popped messages that nobody has acknowledged stay too. Overdue messages are
    delivered at once, even if their topic is paused. A drain that was interrupted can be repeated; a
    RocketMQ broker then gets the last few messages twice.

    \b
    Example:
      tidegate drain --data ./data --to namesrv.example:9876
    """
    from gateway.cli.display import printable
    from gateway.cli.draining import drain as hand_over
    from gateway.cli.transfer import Sender
    from gateway.intake import terms_of
    from storage import Store, count_recurring, data_file, usage_of

    data_file(data)
    store = Store(data, terms_of)
    if store.upgraded is not None:
        tell(store.upgraded)
    if store.log_trouble is not None:
        tell(store.log_trouble)
    recurring = count_recurring(store)
    usage = usage_of(store)
    paused = [topic.decode() for topic, pause in store.paused.items() if not pause.resumed]
    if paused:
        tell(
            "topics paused here, whose due messages the target delivers at once, paused there or not: "
            + ", ".join(paused)
        )
    sent = stay = 0
    reports = _Reports()
    try:
        with closing(store), Sender(server, connect) as sender:
            for handed in hand_over(store, sender.send, now_ms):
                if reports.are_due():
                    tell(f"{sent:,} handed over so far")
                if handed.refusal is None:
                    sent += 1
                    continue
                stay += 1
                line = handed.line
                click.echo(
                    printable(f"{line.topic} {line.msg_id} due {line.due_ms}: {handed.refusal}")
                )
    finally:
        tell(f"{sent:,} handed over, {stay:,} refused")
        _tell_left(len(store.damaged), recurring, usage.halves, usage.popped)
    if stay or store.damaged:
        sys.exit(FAULTY)


def _tell_left(damaged: int, recurring: int, undecided: int, popped: int) -> None:
    """Report what a drain has left in the folder, and what to do with it."""
    if damaged:
        tell(f"left behind, as they cannot be read: {damaged:,}; 'tidegate fsck' names them")
    if recurring:
        tell(
            f"{counted(recurring, 'recurring message')} left here: RocketMQ has none; "
            "'tidegate recurring list' and 'import' take them to another gateway"
        )
    if undecided:
        tell(
            f"{counted(undecided, 'undecided transaction')} left here: serve the folder until all are decided"
        )
    if popped:
        tell(
            f"{counted(popped, 'popped message')} left here that nobody has acknowledged: "
            "serve the folder until all are consumed"
        )


COMMANDS: Final[tuple[Any, ...]] = (export, import_, drain)
"""All commands of this file, for the command line."""
