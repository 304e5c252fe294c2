"""The benchmark's tools: multiplied recordings, and goals."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.wire.codes import RequestCode
from gateway.wire.properties import parse
from spark_jobs.bench.figures import Machine, Measurement, Results, goals
from spark_jobs.bench.making import multiply
from spark_jobs.bench.plots import write
from spark_jobs.exchanges import decode_frame
from tests.spark.conftest import RECORDED
from tests.spark.making import as_records

SEND = int(RequestCode.SEND_MESSAGE_V2)


def test_a_multiplied_recording_has_the_frames_of_real_clients(tmp_path: Path) -> None:
    file = tmp_path / "many.capture"
    recorded = RECORDED / "java-5.5.0.capture"
    made = multiply([recorded], file, 500, start_ns=10**18, per_second=1000.0, lanes=2)
    records, once = as_records(file), as_records(recorded)
    assert made.frames == len(records) == 3 * len(once)
    assert made.size == file.stat().st_size
    assert [len(one.data) for one in records] == [len(one.data) for one in once] * 3
    assert [one.time_ns for one in records] == [10**18 + at * 10**6 for at in range(len(records))]
    assert {one.connection for one in records[: len(once)]}.isdisjoint(
        one.connection for one in records[len(once) : 2 * len(once)]
    )


def test_only_wanted_requests_are_multiplied_and_their_ids_differ(tmp_path: Path) -> None:
    file = tmp_path / "sends.capture"
    made = multiply(
        [RECORDED / "java-5.5.0.capture"], file, 60, start_ns=10**18, codes=[SEND], lanes=1
    )
    headers = [decode_frame(one.data)[0] for one in as_records(file)]
    asked = [header for header in headers if not (header.flag or 0) & 1]
    assert {header.code for header in asked} == {SEND}
    assert len(asked) == made.requests
    ids = [parse((header.ext or {})["i"]).get("UNIQ_KEY") for header in asked]
    named = [one for one in ids if one is not None]
    assert len(named) > 10
    assert len(set(named)) == len(named)


def measurement(job: str, number: int, cpu_s: float, peak: int, **details: float) -> Measurement:
    return Measurement(
        job=job,
        master="local[1]",
        number=number,
        unit="frames",
        wall_s=2 * cpu_s,
        cpu_s=cpu_s,
        peak_bytes=peak,
        details=details,
    )


@pytest.mark.parametrize(
    ("cpu_s", "peak", "met"),
    [
        (90.0, 1100, [True, True, True]),
        (110.0, 1100, [False, True, False]),
        (90.0, 9000, [True, False, True]),
    ],
)
def test_goals_are_held_against_the_largest_input(cpu_s: float, peak: int, met: list[bool]) -> None:
    some = [measurement("ingest", 10**6, 8.5, 1000), measurement("ingest", 10**7, cpu_s, peak)]
    assert [goal.is_met for goal in goals(some)] == met


def test_plots_are_small_and_say_what_was_measured(tmp_path: Path) -> None:
    some = [measurement("ingest", 10**6, 8.0, 1 << 30)]
    machine = Machine(cpu="any", cores=2, load_average=0.0)
    speed, memory = write(Results(machine=machine, measurements=some, goals=[]), tmp_path)
    assert "125,000" in speed.read_text()
    assert "1,024" in memory.read_text()
