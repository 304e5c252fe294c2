"""The command line of the comparison."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import rich_click as click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from compat import children, peers, report, report_docs, runner
from compat.children import StartError
from compat.clients.driver import DriverError
from compat.peers import PeerError
from compat.real_broker import RealBrokerError
from compat.runner import Outcome, Run
from compat.scenarios import SCENARIOS
from compat.toolchain.folder import ToolchainError
from gateway.client import ClientError
from gateway.wire.addresses import parse_address

_KNOWN_ERRORS = (
    *(ClientError, DriverError, OSError, PeerError),
    *(RealBrokerError, StartError, ToolchainError),
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1)
@click.option(
    "--against",
    nargs=2,
    metavar="ADDRESS ADDRESS",
    help="Compare these two name servers (HOST:PORT) instead of a real RocketMQ and the gateway. "
    "Then only what clients see is compared, as their traffic cannot be recorded.",
)
@click.option("--list", "listed", is_flag=True, help="Show the scenarios and run nothing.")
@click.option(
    "--report",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write report.md, report.html and the two captures to this folder.",
)
@click.option("--write-docs", is_flag=True, help="Update the tables of docs/compatibility*.md.")
def compat(
    names: tuple[str, ...],
    against: tuple[str, str] | None,
    listed: bool,
    folder: Path | None,
    write_docs: bool,
) -> None:
    """Compare the gateway with a real RocketMQ 5.5.0: the same scenarios with the same real clients.

    NAMES are scenarios (`sending.one-message`) or groups of them (`sending`); without NAMES, all are
    run. The exit status is 0 if there are no differences except deliberate ones, and 1 otherwise.

    \b
    Examples:
      tidegate compat
      tidegate compat --list
      tidegate compat sending later.past --report ./comparison
      tidegate compat --against 192.0.2.1:9876 192.0.2.2:9876
    """
    console = Console()
    if listed:
        report.listing(console, list(SCENARIOS.values()))
        return
    if write_docs and (names or against):
        raise click.UsageError("--write-docs takes a run of everything, without names or --against")
    try:
        runs, left_out = runner.plan(names), runner.left_out(names)
    except KeyError as error:
        raise click.UsageError(
            f"no scenario {error.args[0]!r}; 'tidegate compat --list' shows them"
        ) from None
    if write_docs and left_out:
        raise click.UsageError(f"--write-docs takes a run of everything; {left_out[0]}")
    children.end_in_order()
    try:
        outcomes, titles = _compare(runs, against, folder)
        is_everything = not (names or against or left_out)
        notes = report.unseen(outcomes) if is_everything else left_out
        report.show(console, outcomes, titles, notes)
        if folder:
            report.write(folder, outcomes, titles, notes)
            console.print(f"report: {folder / 'report.html'}", soft_wrap=True)
        if write_docs:
            report_docs.write(outcomes)
            for file in (report_docs.DIFFERENCES_FILE, report_docs.TABLES_FILE):
                console.print(f"written: {file}", soft_wrap=True)
    except _KNOWN_ERRORS as error:
        click.echo(f"tidegate compat: {' '.join(str(error).split())}", err=True)
        sys.exit(1)
    if not all(outcome.passed for outcome in outcomes):
        sys.exit(1)


def _compare(
    runs: Sequence[Run], against: tuple[str, str] | None, folder: Path | None
) -> tuple[list[Outcome], tuple[str, str]]:
    # Asked first: it takes minutes to fetch the clients.
    running = (_running(against[0]), _running(against[1])) if against else None
    with contextlib.ExitStack() as stack:
        if folder is None:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-compat-"))
            captures = Path(scratch)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            captures = folder
        tell = stack.enter_context(_progress(len(runs)))
        processes = stack.enter_context(runner.drivers(runs))
        with contextlib.ExitStack() as servers:
            if running:
                pair = running
            else:
                data = servers.enter_context(
                    tempfile.TemporaryDirectory(prefix="tidegate-compat-data-")
                )
                pair = servers.enter_context(peers.built_in_pair(captures, Path(data)))
            performed = runner.perform(runs, pair, processes, tell)
        # The captures are complete now that the recorders have ended.
        return runner.judge(performed, pair), (pair[0].name, pair[1].name)


def _running(address: str) -> peers.Peer:
    try:
        place = parse_address(address)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return peers.running(address, place)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[runner.Tell]:
    """Show the progress on standard error: as a bar on a terminal, else as one line per scenario."""
    console = Console(stderr=True)
    if not console.is_terminal:

        def line(run: Run, is_done: bool) -> None:
            if is_done:
                console.print(f"done: {run.name}", markup=False, highlight=False)

        console.print(f"{total} scenarios by client; starting servers and clients")
        yield line
        return

    bars = Progress(
        BarColumn(20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        transient=True,
    )
    with bars:
        task = bars.add_task("starting servers and clients", total=total)
        running: list[str] = []

        def bar(run: Run, is_done: bool) -> None:
            if is_done:
                running.remove(run.name)
            else:
                running.append(run.name)
            bars.update(task, advance=int(is_done), description=", ".join(running)[:100])

        yield bar
