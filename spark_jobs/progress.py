"""Shows the progress of a job: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BAR_EVERY_S: Final = 0.5
_LINE_EVERY_S: Final = 10.0


class Done(NamedTuple):
    """How much of a job is done. `what` follows the numbers, as in `3 of 8 tasks`."""

    done: int
    total: int
    what: str

    def __str__(self) -> str:
        return f"{self.done:,} of {self.total:,} {self.what}"


Look = Callable[[], Done | None]
"""Returns the progress of a job; None while it is not known."""


@contextmanager
def shown(job: str, look: Look, console: Console | None = None) -> Iterator[None]:
    """Show a job's progress on standard error while the block runs."""
    console = console or Console(stderr=True)
    ended = threading.Event()
    show = _bar if console.is_terminal else _lines
    thread = threading.Thread(target=show, args=(job, look, console, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _bar(job: str, look: Look, console: Console, ended: threading.Event) -> None:
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(20),
        TextColumn("{task.fields[said]}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    with bars:
        task = bars.add_task(job, total=None, said="")
        while not ended.wait(_BAR_EVERY_S):
            found = look()
            if found is not None:
                bars.update(task, completed=found.done, total=found.total, said=str(found))


def _lines(job: str, look: Look, console: Console, ended: threading.Event) -> None:
    began = time.monotonic()
    while not ended.wait(_LINE_EVERY_S):
        found = look()
        took = datetime.timedelta(seconds=round(time.monotonic() - began))
        said = f"{job}: {found or 'working'}, {took} so far"
        console.print(said, markup=False, highlight=False, soft_wrap=True)


def tasks_of(spark: SparkSession) -> Look:
    """Return a look at Spark's progress with the tasks of its current step. A job has several steps."""
    from py4j.protocol import Py4JError

    tracker = spark.sparkContext.statusTracker()
    seen: set[int] = set()

    def look() -> Done | None:
        try:
            seen.update(tracker.getActiveJobsIds())
            stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
        except (Py4JError, OSError):
            return None  # the session is ending, or its Java process was killed
        known = [stage for stage in stages if stage is not None]
        if not known:
            return None
        done = sum(stage.numCompletedTasks for stage in known)
        return Done(done, sum(stage.numTasks for stage in known), f"tasks of step {len(seen)}")

    return look


def sent_of(folder: Path, requests: int) -> Look:
    """Return a look at how many of its requests a replay has sent.

    :param folder: the folder of the replay's journal.
    """
    from spark_jobs.replaying import MARK_BYTES

    def look() -> Done | None:
        size = sum(file.stat().st_size for file in folder.glob("*.sent"))
        return Done(size // MARK_BYTES, requests, "requests sent")

    return look
