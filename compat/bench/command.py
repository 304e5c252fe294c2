"""The command line of the benchmark."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

import rich_click as click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from compat import children
from compat.bench import campaign, load, report, results, scenarios
from compat.bench.campaign import Step
from compat.bench.holding import FillError
from compat.bench.load import LoadError
from compat.bench.records import RecordError
from compat.bench.results import Results, ResultsError
from compat.bench.systems import SYSTEMS, TITLES
from compat.children import StartError
from compat.real_broker import RealBrokerError
from compat.toolchain.folder import TOOLS, ToolchainError
from gateway.client import ClientError, RefusalError

_PIPED_WIDTH: Final = 120
_FOLDER: Final = TOOLS / "bench"

_KNOWN_ERRORS: Final = (
    ClientError,
    FillError,
    LoadError,
    OSError,
    RealBrokerError,
    RecordError,
    RefusalError,
    ResultsError,
    StartError,
    ToolchainError,
)

Tell = Callable[[load.Progress], None]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--quick",
    "extent",
    flag_value="quick",
    help="The main scenarios, about 3 minutes. This is the default.",
)
@click.option("--full", "extent", flag_value="full", help="All scenarios, about 40 minutes.")
@click.option(
    "--only", type=click.Choice(list(TITLES)), help="Measure only this system, not all in turn."
)
@click.option(
    "--scenario",
    "names",
    multiple=True,
    metavar="NAME",
    help="Run only this scenario, of --quick or --full, or held-N with any number N of messages. Can be given several "
    "times. A scenario that is compared with another one runs that one too.",
)
@click.option(
    "--repeat",
    type=click.IntRange(1, 100),
    default=1,
    metavar="TIMES",
    help="Run each scenario this many times and show the medians. Default: 1.",
)
@click.option(
    "--data",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=_FOLDER,
    metavar="DIR",
    help="Folder for the servers' data while they run, on the disk to be measured. "
    "Default: .tools/bench.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File for the results, as JSON. Default: a file named by the time, in .tools/bench.",
)
@click.option(
    "--compare",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Show the figures of an earlier results file next to the new ones.",
)
@click.option(
    "--show",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Run nothing: show a results file.",
)
@click.option(
    "--plots",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Also draw plots of the figures, as SVG files in this folder.",
)
def bench(
    extent: str | None,
    only: str | None,
    names: tuple[str, ...],
    repeat: int,
    folder: Path,
    output: Path | None,
    compare: Path | None,
    show: Path | None,
    plots: Path | None,
) -> None:
    """Measure the gateway and a real RocketMQ broker, under load from the official Java client.

    Both get the same load, one after the other, each freshly started and on loopback. Run `make
    setup-clients` first; a Java runtime and jars are downloaded if they are missing.

    \b
    Examples:
      tidegate bench
      tidegate bench --full --output before.json
      tidegate bench --only tidegate --scenario life-1000-sync \\
          --compare before.json
      tidegate bench --show before.json --plots docs/plots
    """
    # A pipe has no width, and figures must not be cut.
    console = Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    try:
        earlier = results.load(compare) if compare else None
        if plots is not None:
            _check_plots(plots)
        if show:
            found = results.load(show)
            report.show(console, found, earlier)
            _draw(console, found, plots)
            return
        chosen = choose(extent, names)
        file = output or _FOLDER / f"{datetime.now().astimezone():%Y%m%d-%H%M%S}.json"
        systems = [only] if only else list(SYSTEMS)
        found, failed = _run(chosen, systems, repeat, folder, file)
        report.show(console, found, earlier)
        console.print(f"\nresults: {file}", soft_wrap=True)
        for reason in failed:
            click.echo(f"tidegate bench: {reason}", err=True)
        _draw(console, found, plots)
    except _KNOWN_ERRORS as error:
        click.echo(f"tidegate bench: {_line(error)}", err=True)
        sys.exit(1)
    sys.exit(1 if failed else 0)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _check_plots(folder: Path) -> None:
    """Make the folder for plots before anything is measured. Raises ResultsError if plots cannot be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ResultsError("--plots needs matplotlib: run make setup-clients")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResultsError(f"cannot make {folder}: {error.strerror}") from error


def _draw(console: Console, found: Results, folder: Path | None) -> None:
    if folder is None:
        return
    from compat.bench.plots import draw

    for picture in draw(found, folder):
        console.print(f"plot: {picture}", soft_wrap=True)


def choose(extent: str | None, names: Sequence[str]) -> list[scenarios.Scenario]:
    """Return the scenarios of an extent, or those with these names and the ones they are compared with."""
    if not names:
        return scenarios.full() if extent == "full" else scenarios.quick()
    # In the quick run a scenario of the same name is shorter, so it takes precedence.
    known = {s.name: s for s in scenarios.full()}
    if extent != "full":
        known |= {s.name: s for s in scenarios.quick()}
    known |= {name: found for name in names if (found := scenarios.named(name))}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise click.UsageError(f"no scenario {unknown[0]!r}; there are: {', '.join(known)}")
    chosen: list[scenarios.Scenario] = []
    for name in names:
        # The scenario to compare with runs first.
        for needed in (known[name].beside, name):
            if needed and known[needed] not in chosen:
                chosen.append(known[needed])
    return chosen


def _run(
    chosen: Sequence[scenarios.Scenario],
    systems: Sequence[str],
    repeat: int,
    folder: Path,
    file: Path,
) -> tuple[Results, list[str]]:
    """Run all steps and return the results, with a line for each step that failed.

    A failed step does not end the run, because the results of the others have cost up to an hour.
    """
    plan = campaign.steps(chosen, systems, repeat)
    if not plan:
        names = ", ".join(scenario.name for scenario in chosen)
        raise click.UsageError(f"nothing to run: {names} would say nothing of {systems[0]}")
    children.end_in_order()
    load.prepare()
    with campaign.scratch_folder(folder) as scratch, _progress(plan) as begin:
        found = campaign.gather(chosen, scratch)
        # Before the first step: a file that cannot be written must fail before the measuring.
        results.save(found, file)
        failed: list[str] = []
        for step in plan:
            try:
                found.outcomes.append(campaign.run_step(step, scratch, begin(step)))
            except _KNOWN_ERRORS as error:
                failed.append(f"{step.scenario.name} on {step.system}: {_line(error)}")
            # After each step, so that a run that is stopped half-way keeps its results so far.
            results.save(found, file)
    return found, failed


@contextlib.contextmanager
def _progress(plan: Sequence[Step]) -> Iterator[Callable[[Step], Tell]]:
    """Show the progress on standard error: as a bar on a terminal, else as one line per step."""
    console = Console(stderr=True)
    total = sum(step.scenario.expected_seconds for step in plan)
    if not console.is_terminal:
        number = iter(range(1, len(plan) + 1))

        def line(step: Step) -> Tell:
            name = TITLES[step.system]
            console.print(
                f"[{next(number)}/{len(plan)}] {step.scenario.title}: {name}", markup=False
            )
            return lambda progress: None

        console.print(f"about {total / 60:.0f} min")
        yield line
        return

    bars = Progress(
        BarColumn(20),
        TimeElapsedColumn(),
        TextColumn("of about {task.fields[about]}"),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
    )
    about = f"{int(total) // 60}:{int(total) % 60:02}"
    with bars:
        task = bars.add_task("measuring the machine itself", total=total, about=about)
        done = 0.0

        def bar(step: Step) -> Tell:
            nonlocal done
            teller = _Bar(bars, task, step, done)
            done += step.scenario.expected_seconds
            return teller

        yield bar


class _Bar:
    """Moves the bar through one step."""

    def __init__(self, bars: Progress, task: TaskID, step: Step, done: float) -> None:
        self._bars, self._task, self._step, self._done = bars, task, step, done
        self._begin = time.monotonic()

    def __call__(self, progress: load.Progress) -> None:
        scenario = self._step.scenario
        counts = f": {progress.sent:,} sent" if progress.sent else ""
        if progress.received:
            counts += f", {progress.received:,} received"
        passed = min(time.monotonic() - self._begin, scenario.expected_seconds)
        self._bars.update(
            self._task,
            completed=self._done + passed,
            description=f"{scenario.title} · {TITLES[self._step.system]} · {progress.phase}{counts}",
        )
