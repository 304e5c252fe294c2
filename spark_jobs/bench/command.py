"""The command line of the benchmark: `python -m spark_jobs.bench`."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import rich_click as click
from rich.console import Console

from compat.bench.machine import describe
from compat.children import StartError
from spark_jobs import result_files
from spark_jobs.bench import figures, plots, runs
from spark_jobs.bench.figures import Machine, Measurement, Results
from spark_jobs.errors import JobError

_PROJECT: Final = Path(__file__).parents[2]
_RECORDED: Final = _PROJECT / "tests" / "wire" / "recorded"
_FILE_WIDTH: Final = 140
_FOLDER: Final = _PROJECT / ".tools" / "bench-spark"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--frames",
    "sizes",
    multiple=True,
    type=click.IntRange(1000),
    default=(1_000_000,),
    show_default=True,
    help="Frames of the capture to ingest. Can be given several times.",
)
@click.option(
    "--master", default="local[1]", show_default=True, help="Spark master for ingest and compare."
)
@click.option(
    "--spread",
    multiple=True,
    metavar="MASTER",
    help="Ingest the largest capture on this Spark master too.",
)
@click.option(
    "--requests",
    type=click.IntRange(100),
    default=20_000,
    show_default=True,
    help="Number of sends to replay, as fast as possible and at 1,000 per second.",
)
@click.option("--without-replay", is_flag=True, help="Only ingest and compare.")
@click.option("--recorded", type=click.Path(path_type=Path), default=_RECORDED, hidden=True)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
@click.option("--plots", "plot_folder", type=click.Path(path_type=Path, file_okay=False))
def bench(
    sizes: tuple[int, ...],
    master: str,
    spread: tuple[str, ...],
    requests: int,
    without_replay: bool,
    recorded: Path,
    output: Path | None,
    plot_folder: Path | None,
) -> None:
    """Measure the jobs on recorded traffic: ingest, compare, replay.

    The input is the captures of real clients in tests/wire/recorded, multiplied.

    \b
    Examples:
      make bench-spark
      python -m spark_jobs.bench --requests 50000
      python -m spark_jobs.bench --frames 1000000 --frames 10000000 --plots docs/plots
      python -m spark_jobs.bench --spread 'local-cluster[2,1,1024]' --without-replay
    """
    console = Console()
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    file = output or _FOLDER / "results.json"
    try:
        result_files.check(file)
        if plot_folder is not None:
            plot_folder.mkdir(parents=True, exist_ok=True)
        found = _measure(sizes, master, spread, 0 if without_replay else requests, recorded)
    except (JobError, OSError, StartError) as error:
        click.echo(f"bench-spark: {error}", err=True)
        sys.exit(1)
    figures.show(console, found)
    result_files.write(file, found)
    console.print(f"results: {file}", soft_wrap=True)
    if plot_folder is not None:
        for plot in plots.write(found, plot_folder):
            console.print(f"plot: {plot}", soft_wrap=True)


def _measure(
    sizes: tuple[int, ...], master: str, spread: tuple[str, ...], requests: int, recorded: Path
) -> Results:
    measurements: list[Measurement] = []
    _FOLDER.mkdir(parents=True, exist_ok=True)
    machine = describe(_FOLDER)
    with _scratch() as folder, ExitStack() as stack:
        captures = [(size, runs.make_capture(recorded, folder, size)) for size in sorted(sizes)]
        session = runs.Session(stack)
        session.use(master)
        runs.warm_up(session, recorded, folder)
        for size, capture in captures:
            tables = folder / f"tables-{size}"
            measurements.append(runs.ingest_once(session, capture, tables))
            if size != min(sizes):
                shutil.rmtree(tables)
        # After ingest: Java keeps the memory that comparing takes, and the figures of ingest must not include it.
        measurements.append(runs.compare_once(session, folder / f"tables-{min(sizes)}"))
        if requests:
            session.use("local[2]")
            measurements += runs.replays(session, recorded, folder, requests)
        for other in spread:
            session.use(other)
            tables = folder / "tables-spread"
            measurements.append(runs.ingest_once(session, captures[-1][1], tables))
            shutil.rmtree(tables)
    return Results(
        machine=Machine(cpu=machine.cpu, cores=machine.cores, load_average=machine.load_average),
        measurements=measurements,
        goals=figures.goals(measurements),
    )


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=_FOLDER, prefix="run-") as name:
        yield Path(name)
