"""How a job's progress is shown to people and in logs."""

from __future__ import annotations

import re
import threading
import time
from io import StringIO
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from spark_jobs import progress
from spark_jobs.progress import Done, sent_of, shown, tasks_of
from spark_jobs.replaying import Journal

LIMIT_S = 60.0


class Looks:
    """Reports progress, and notes when it was asked so often that something has been shown."""

    def __init__(self) -> None:
        self.number = 0
        self.enough = threading.Event()

    def __call__(self) -> Done | None:
        self.number += 1
        if self.number == 4:
            self.enough.set()
        return None if self.number == 1 else Done(1_000 + self.number, 8_000, "tasks of step 1")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_is_done_of_how_much_is_said(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    monkeypatch.setattr(progress, "_BAR_EVERY_S", 0.001)
    monkeypatch.setattr(progress, "_LINE_EVERY_S", 0.001)
    looks = Looks()
    said = StringIO()
    console = Console(file=said, force_terminal=is_terminal, width=100, _environ={"TERM": "xterm"})
    with shown("ingest", looks, console):
        assert looks.enough.wait(LIMIT_S)
    text = said.getvalue()
    assert "ingest" in text
    assert "of 8,000 tasks of step 1" in text
    if not is_terminal:
        first, second, *_ = text.splitlines()
        assert re.fullmatch(r"ingest: working, \d+:\d\d:\d\d so far", first)
        assert second.startswith("ingest: 1,002 of 8,000 tasks of step 1, ")


def test_a_quick_job_says_nothing() -> None:
    said = StringIO()
    with shown("verify", lambda: Done(1, 2, "tasks"), Console(file=said)):
        pass
    assert said.getvalue() == ""


def test_sent_requests_are_counted_in_the_journal(tmp_path: Path) -> None:
    look = sent_of(tmp_path, 5)
    assert look() == Done(0, 5, "requests sent")
    with Journal(tmp_path, "part") as journal:
        for position in (1, 2, 3):
            journal.note("a", position)
        assert look() == Done(3, 5, "requests sent")


def test_tasks_are_those_of_the_step_that_spark_is_at(spark: SparkSession, tmp_path: Path) -> None:
    look = tasks_of(spark)
    assert look() is None
    go_on = str(tmp_path / "go on")

    def wait(number: int) -> int:
        deadline = time.monotonic() + LIMIT_S
        while number and not Path(go_on).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return number

    def work() -> None:
        spark.sparkContext.parallelize([0, 1, 2], 3).map(wait).collect()

    job = threading.Thread(target=work)
    job.start()
    try:
        deadline = time.monotonic() + LIMIT_S
        while (found := look()) is None or found.done == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert found == Done(1, 3, "tasks of step 1")
    finally:
        Path(go_on).touch()
        job.join()
