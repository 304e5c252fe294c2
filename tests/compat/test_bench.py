"""The benchmark: its arithmetic, its tables, and one tiny run against a gateway."""

from __future__ import annotations

import asyncio
import errno
import io
import math
import os
import resource
import signal
import socketserver
import struct
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from compat import children
from compat.bench import (
    campaign,
    holding,
    machine,
    plots,
    recording,
    report,
    results,
    scenarios,
    systems,
    waiting,
)
from compat.bench.command import bench, choose
from compat.bench.figures import CPU, FIGURES, RATE, Goal, goals
from compat.bench.holding import FillError
from compat.bench.load import LoadError, Progress
from compat.bench.machine import Limits, Machine, describe, measure_limits, random_reads
from compat.bench.plots import draw
from compat.bench.processes import Usage, held_bytes, usage
from compat.bench.records import (
    Ledger,
    Received,
    RecordError,
    Sent,
    Spread,
    balance,
    lateness,
    percentile,
    read_received,
    read_sent,
    send_times,
    spread,
)
from compat.bench.results import FORMAT, Held, Outcome, Results, ResultsError, Storm
from compat.bench.scenarios import Scenario
from compat.children import StartError
from compat.real_broker import RealBrokerError
from gateway.client import ClientError, RefusalError
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import decode_command, encode_response
from gateway.wire.frames import FrameBuffer

NUMBERS = st.integers(-(2**63), 2**63 - 1)


def numbers(values: Sequence[int]) -> array[int]:
    return array("q", values)


# --- percentiles ---


def test_percentiles_of_a_thousand_are_read_off() -> None:
    found = spread([float(n) for n in range(1000, 0, -1)])
    assert found == Spread(
        count=1000, mean=500.5, min=1, p50=500, p90=900, p99=990, p999=999, max=1000
    )


def test_percentiles_of_one_value_are_that_value() -> None:
    found = spread([7.0])
    assert found is not None
    assert {found.min, found.mean, found.p50, found.p90, found.p99, found.p999, found.max} == {7.0}


def test_nothing_has_no_spread() -> None:
    assert spread([]) is None


@given(
    st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=300).map(sorted),
    st.sampled_from([0.5, 0.9, 0.99, 0.999, 1.0]),
)
def test_a_percentile_is_the_least_value_that_the_share_does_not_exceed(
    ordered: list[float], share: float
) -> None:
    found = percentile(ordered, share)
    # The check uses integers, so that rounding plays no part.
    needed = round(share * 1000) * len(ordered)
    assert sum(value <= found for value in ordered) * 1000 >= needed
    assert sum(value < found for value in ordered) * 1000 < needed


# --- records ---


@given(rows=st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS)))
def test_sends_are_read_as_the_load_writes_them(
    rows: list[tuple[int, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("records") / "sent.bin"
    file.write_bytes(b"".join(struct.pack(">3q", *row) for row in rows))
    sent = read_sent(file)
    assert list(zip(sent.ids, sent.asked, sent.latency, strict=True)) == rows


def test_receipts_are_read_as_the_load_writes_them(tmp_path: Path) -> None:
    file = tmp_path / "received.bin"
    file.write_bytes(struct.pack(">8q", 1, 2, 3, 4, -1, -2, -3, -4))
    assert read_received(file) == Received(
        numbers([1, -1]), numbers([2, -2]), numbers([3, -3]), numbers([4, -4])
    )


def test_a_cut_off_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "received.bin"
    file.write_bytes(bytes(33))
    with pytest.raises(RecordError, match="cut off"):
        read_received(file)


# --- the ledger ---


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(-5, 5)), max_size=60),
    st.randoms(use_true_random=False),
)
def test_the_ledger_counts_each_fate(fates: list[tuple[bool, int, int]], random: Random) -> None:
    """A fate says whether the send was acknowledged, how often the message was received, and how late."""
    due = 1_000_000
    sent = Sent(
        numbers(range(len(fates))),
        numbers([due] * len(fates)),
        numbers([5 if acknowledged else -1 for acknowledged, _, _ in fates]),
    )
    receipts = [
        (id_, due, due + late, due)
        for id_, (_, times, late) in enumerate(fates)
        for _ in range(times)
    ]
    random.shuffle(receipts)
    received = Received(*(numbers([row[column] for row in receipts]) for column in range(4)))
    assert balance(sent, received) == Ledger(
        acknowledged=sum(acknowledged for acknowledged, _, _ in fates),
        refused=sum(not acknowledged for acknowledged, _, _ in fates),
        received=sum(times > 0 for _, times, _ in fates),
        lost=sum(acknowledged and times == 0 for acknowledged, times, _ in fates),
        doubled=sum(max(times - 1, 0) for _, times, _ in fates),
        early=sum(times for _, times, late in fates if late < 0),
    )


def test_refused_sends_have_no_time() -> None:
    sent = Sent(numbers([1, 2, 3]), numbers([0, 0, 0]), numbers([2_000_000, -1, 4_000_000]))
    found = send_times(sent)
    assert found is not None
    assert (found.count, found.min, found.mean, found.max) == (2, 2.0, 3.0, 4.0)


def test_lateness_is_negative_when_early() -> None:
    found = lateness(numbers([100, 100]), numbers([99, 104]))
    assert found is not None
    assert (found.min, found.max) == (-1, 4)


# --- what a server used ---


def test_usage_counts_children(tmp_path: Path) -> None:
    worker = """
import time
held = bytearray(b"x") * (64 << 20)
while time.process_time() < 0.4:  # /proc counts in steps of 10 ms, each thread's by itself
    pass
print("busy enough", flush=True)
input()
"""
    parent = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {worker!r}])
"""
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        used = usage(process.pid)
        process.communicate(b"\n")
    assert used.cpu >= 0.3
    assert used.own_memory >= 64 << 20
    assert used.resident > used.own_memory


def test_a_server_that_ended_is_noticed() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ProcessLookupError, match="has ended"):
        usage(process.pid)
    process.wait()
    with pytest.raises(ProcessLookupError, match="has ended"):
        usage(process.pid)
    process.stdout.close()


def test_holes_of_sparse_files_are_not_held(tmp_path: Path) -> None:
    inner = tmp_path / "store" / "commitlog"
    inner.mkdir(parents=True)
    with (inner / "0").open("wb") as file:
        file.write(b"x" * (1 << 20))
        file.truncate(1 << 30)
        os.fsync(file.fileno())
    assert 1 << 20 <= held_bytes(tmp_path) < 2 << 20


def test_the_machine_is_described_and_its_limits_are_found(tmp_path: Path) -> None:
    found = describe(tmp_path)
    assert found.cores >= 1
    assert found.file_system != "unknown"
    limits = measure_limits(tmp_path, 0.05)
    assert limits.overwrites_per_second > 0
    assert limits.append_p50_ms <= limits.append_p99_ms
    assert limits.round_trips_per_second > 0
    assert not list(tmp_path.iterdir())


def test_appends_end_before_they_fill_a_file_system_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compat.bench.machine._MOST_BYTES", 10 * 4096)
    monkeypatch.setattr(os, "fdatasync", lambda _: None)
    assert len(machine._sync_times(tmp_path, 60, step=4096)) == 9


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}'"):
        measure_limits(tmp_path, 0.05)


def test_random_reads_are_of_different_pages_that_the_kernel_was_made_to_forget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, advise = os.pread, os.posix_fadvise
    pages: list[tuple[int, int]] = []
    done: list[object] = []

    def note_read(descriptor: int, size: int, place: int) -> bytes:
        found = read(descriptor, size, place)
        pages.append((place, len(found)))
        done.append("read")
        return found

    def note_advice(descriptor: int, begin: int, size: int, advice: int) -> None:
        done.append(advice)
        advise(descriptor, begin, size, advice)

    monkeypatch.setattr(os, "pread", note_read)
    monkeypatch.setattr(os, "posix_fadvise", note_advice)
    file = tmp_path / "data"
    file.write_bytes(bytes(50 * 4096 + 1))
    found = random_reads(file, math.inf)
    assert found is not None
    assert found.count == 50
    assert sorted(pages) == [(page * 4096, 4096) for page in range(50)]
    assert pages != sorted(pages)
    forget, alone = os.POSIX_FADV_DONTNEED, os.POSIX_FADV_RANDOM
    assert done == [forget, alone, *["read"] * 50, forget]


@pytest.mark.parametrize(("size", "seconds", "count"), [(5 << 20, math.inf, 1_000), (8192, 0, 1)])
def test_random_reads_end(tmp_path: Path, size: int, seconds: float, count: int) -> None:
    file = tmp_path / "data"
    file.write_bytes(bytes(size))
    found = random_reads(file, seconds)
    assert found is not None
    assert found.count == count


def test_a_file_of_less_than_a_page_has_no_random_reads(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(bytes(4095))
    assert random_reads(file, 1) is None


# --- scenarios ---


@pytest.mark.parametrize("chosen", [scenarios.quick(), scenarios.full()], ids=["quick", "full"])
def test_scenarios_have_names_figures_and_goals_of_their_own(chosen: list[Scenario]) -> None:
    assert len({scenario.name for scenario in chosen}) == len(chosen)
    for scenario in chosen:
        keys = [figure.key for figure in FIGURES[scenario.kind]]
        assert len(set(keys)) == len(keys)
        assert set(goals(scenario)) <= set(keys)


def test_every_quick_scenario_is_in_the_full_run() -> None:
    full = {scenario.name for scenario in scenarios.full()}
    assert {scenario.name for scenario in scenarios.quick()} <= full


def test_the_systems_take_turns_at_going_first() -> None:
    first, second = scenarios.quick()[:2]
    plan = campaign.steps([first, second], ["tidegate", "rocketmq"], repeat=2)
    assert [(step.scenario, step.system) for step in plan] == [
        (first, "tidegate"),
        (first, "rocketmq"),
        (second, "rocketmq"),
        (second, "tidegate"),
        (first, "rocketmq"),
        (first, "tidegate"),
        (second, "tidegate"),
        (second, "rocketmq"),
    ]


def test_what_says_nothing_of_the_broker_is_not_run_on_it() -> None:
    plan = campaign.steps([scenarios.held(10)], ["tidegate", "rocketmq"], repeat=2)
    assert [step.system for step in plan] == ["tidegate", "tidegate"]


def test_what_keeps_nothing_only_answers_sends() -> None:
    chosen = [SENDS, LIFE]
    plan = campaign.steps(chosen, ["tidegate", "answers"], repeat=1)
    assert [(step.scenario.name, step.system) for step in plan] == [
        (SENDS.name, "tidegate"),
        (SENDS.name, "answers"),
        (LIFE.name, "tidegate"),
    ]


def test_any_number_can_be_held() -> None:
    found = scenarios.named("held-12345")
    assert found is not None
    assert (found.held, found.beside) == (12_345, "held-0")
    assert scenarios.named("held-many") is None
    assert scenarios.named("sends-12") is None


def test_what_a_scenario_is_held_against_is_run_before_it() -> None:
    full = [scenario.name for scenario in scenarios.full()]
    for scenario in scenarios.full():
        if scenario.beside:
            assert full.index(scenario.beside) < full.index(scenario.name)
    chosen = choose(None, ["held-70", "waiting-100", "waiting-1"])
    assert [s.name for s in chosen] == ["held-0", "held-70", "waiting-1", "waiting-100"]


# --- figures and goals ---

SENDS = next(s for s in scenarios.full() if s.name == "sends-16-sync")
LIFE = next(s for s in scenarios.full() if s.name == "life-1000-sync")


def outcome(
    scenario: Scenario = SENDS,
    system: str = "tidegate",
    rate: float = 9_000,
    cpu: float = 0.4,
    lost: int = 0,
    firing: float = 3,
) -> Outcome:
    even = Spread(count=3, mean=1.5, min=1, p50=1, p90=2, p99=2.5, p999=2.75, max=3)
    late = Spread(
        count=3, mean=firing, min=0, p50=firing, p90=firing, p99=firing, p999=firing, max=firing
    )
    return Outcome(
        scenario=scenario.name,
        system=system,
        sends_per_second=rate,
        send=even,
        firing=late if scenario.consume else None,
        stored=late if scenario.consume else None,
        ledger=Ledger(
            acknowledged=10_000, refused=0, received=10_000 - lost, lost=lost, doubled=0, early=0
        ),
        seconds=2.0,
        cpu_seconds=cpu,
        written_bytes=30_000_000,
        device_bytes=10_240_000,
        held_bytes=5_120_000,
        own_memory_bytes=64 << 20,
        resident_bytes=128 << 20,
        failures={},
        client_gc_ms=0,
    )


def run(*outcomes: Outcome, chosen: Sequence[Scenario] = (SENDS,), load: float = 0.1) -> Results:
    return Results(
        format=FORMAT,
        began="2026-01-31T12:34:56+00:00",
        versions={"tidegate": "0.1.0", "Java": "17"},
        machine=Machine(
            cpu="A CPU",
            cores=2,
            memory_bytes=8 << 30,
            system="Linux 6",
            file_system="ext4",
            load_average=load,
        ),
        limits=Limits(
            overwrites_per_second=9_000,
            appends_per_second=1_234,
            append_p50_ms=0.5,
            append_p99_ms=2,
            round_trips_per_second=45_678,
        ),
        scenarios=list(chosen),
        outcomes=list(outcomes),
    )


def shown(found: Results, earlier: Results | None = None) -> str:
    console = Console(file=io.StringIO(), width=120)
    report.show(console, found, earlier)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def cells(text: str, label: str) -> list[str]:
    """The cells of the one table row with this label."""
    (row,) = [
        parts
        for line in text.splitlines()
        if "│" in line and (parts := [cell.strip() for cell in line.split("│")])[1] == label
    ]
    return row[2:-1]


def test_several_runs_give_the_median_of_a_figure_and_the_sum_of_faults() -> None:
    runs = [outcome(LIFE, rate=rate, lost=lost) for rate, lost in ((10, 1), (90, 0), (20, 2))]
    lost = next(figure for figure in FIGURES["life"] if figure.key == "lost")
    assert RATE.over(runs) == 20
    assert lost.over(runs) == 3
    assert RATE.over([]) is None


@pytest.mark.parametrize(
    ("goal", "own", "other", "met"),
    [
        (Goal(limit=40), 40, None, True),
        (Goal(limit=40), 40.1, 1, False),
        (Goal(ratio=0.5), 50, 100, True),
        (Goal(ratio=0.5), 51, 100, False),
        (Goal(ratio=0.5), 51, None, None),
        (Goal(limit=40, ratio=0.5), 39, 70, False),
        (Goal(limit=40, ratio=0.5), 35, 70, True),
        (Goal(limit=0), 0, None, True),
        (Goal(limit=0), None, None, None),
    ],
)
def test_a_goal_for_less(goal: Goal, own: float | None, other: float | None, met: bool) -> None:
    assert goal.is_met(CPU, own, other) is met


@pytest.mark.parametrize(
    ("own", "beside", "met"), [(79, 100, False), (80, 100, True), (80, None, None)]
)
def test_a_goal_beside_another_scenario(own: float, beside: float | None, met: bool) -> None:
    assert Goal(beside=0.8).is_met(RATE, own, None, beside) is met


@pytest.mark.parametrize(("own", "met"), [(199, False), (200, True)])
def test_a_goal_for_more(own: float, met: bool) -> None:
    assert Goal(ratio=2).is_met(RATE, own, 100) is met


# --- tables ---


def test_systems_stand_side_by_side_with_ratio_and_goal() -> None:
    text = shown(run(outcome(rate=9_000), outcome(system="rocketmq", rate=3_000, cpu=2.0)))
    assert cells(text, "sends per s") == ["9,000", "3,000", "3.00", "≥ 2x", "yes"]
    assert cells(text, "server CPU a message, µs") == ["40.0", "200.0", "0.20", "≤ 40", "yes"]
    assert cells(text, "disk written a message, bytes") == [
        *("1,024", "1,024", "1.00", "≤ 0.5x", "no")
    ]
    assert SENDS.title in text
    assert "1,234 fdatasync" in text
    assert "45,678 round trips" in text
    assert "Others were using" not in text


@pytest.mark.parametrize(
    ("own", "other", "text"),
    [
        (3, 1000, "0.003"),
        (1, 3, "0.33"),
        (3, 1, "3.00"),
        (12_345, 10, "1,234"),
        (1, 0, ""),
        (None, 1, ""),
        (0, 1, "0"),
    ],
)
def test_a_ratio_shows_two_digits_that_matter(own: float | None, other: float, text: str) -> None:
    assert report.ratio(own, other) == text


def test_a_scenario_stands_beside_another() -> None:
    alone, filtered = (s for s in scenarios.full() if s.kind == "waiting")
    found = run(outcome(alone, cpu=0.2), outcome(filtered, cpu=0.5), chosen=[alone, filtered])
    assert report.comparisons(found, alone) == []
    assert report.comparisons(found, filtered) == [
        "Tidegate: server CPU a message, µs: 2.50 times that of waiting-1"
    ]
    assert "≤ 2x the other's" in shown(found)


def test_one_system_alone_has_no_ratio() -> None:
    text = shown(run(outcome()))
    assert cells(text, "sends per s") == ["9,000", "≥ 2x", ""]
    text = shown(run(outcome(system="rocketmq")))
    assert cells(text, "sends per s") == ["9,000"]


def test_a_lost_message_fails_its_goal() -> None:
    text = shown(run(outcome(LIFE, lost=1), chosen=[LIFE]))
    assert cells(text, "lost") == ["1", "0", "no"]
    assert cells(text, "doubled") == ["0", "0", "yes"]
    assert cells(text, "firing error P99, ms") == ["3", "≤ 20", "yes"]


@pytest.mark.parametrize(("rate", "met"), [(940, "no"), (950, "yes")])
def test_figures_of_a_rate_that_was_not_reached_are_not_those_of_that_rate(
    rate: float, met: str
) -> None:
    text = shown(run(outcome(LIFE, rate=rate), chosen=[LIFE]))
    assert cells(text, "sends per s") == [str(rate), "≥ 950", met]


def test_a_storm_that_was_refused_in_part_is_seen_to_be_smaller() -> None:
    scenario = next(s for s in scenarios.full() if s.kind == "storm")
    ledger = Ledger(acknowledged=1, refused=499_999, received=1, lost=0, doubled=0, early=0)
    storm = Storm(ledger=ledger, firing=None, stored=None)
    found = msgspec.structs.replace(outcome(scenario), storm=storm)
    assert cells(shown(run(found, chosen=[scenario])), "storm refused") == ["499,999", "0", "no"]


def test_an_earlier_run_stands_beside() -> None:
    text = shown(run(outcome(rate=9_000)), run(outcome(rate=6_000)))
    assert cells(text, "sends per s")[:2] == ["9,000", "6,000 (+50%)"]


def test_an_earlier_run_without_the_scenario_leaves_a_dash() -> None:
    text = shown(run(outcome(LIFE), chosen=[LIFE]), run(outcome(SENDS)))
    assert cells(text, "sends per s")[:2] == ["9,000", "-"]


def test_an_earlier_run_of_another_load_is_pointed_out() -> None:
    (quick,) = (one for one in scenarios.quick() if one.name == LIFE.name)
    assert (quick.seconds, LIFE.seconds) == (8, 15)
    text = shown(run(outcome(quick), chosen=[quick]), run(outcome(LIFE), chosen=[LIFE]))
    assert "before: another load, with " in text
    assert "seconds 15 (now 8)" in " ".join(text.split())
    renamed = msgspec.structs.replace(LIFE, title="Another title")
    text = shown(run(outcome(LIFE), chosen=[LIFE]), run(outcome(LIFE), chosen=[renamed]))
    assert "another load" not in text


def test_data_in_memory_is_pointed_out() -> None:
    found = run(outcome())
    assert "in memory" not in shown(found)
    on_none = msgspec.structs.replace(found.machine, file_system="tmpfs")
    assert "data was in memory (tmpfs)" in shown(msgspec.structs.replace(found, machine=on_none))


def test_a_busy_machine_is_pointed_out() -> None:
    assert "Others were using the machine (load average 3.0" in shown(run(outcome(), load=3.0))


@pytest.mark.parametrize(("step_ms", "told"), [(0.4, False), (129.0, True)])
def test_a_wall_clock_that_was_set_is_pointed_out(step_ms: float, told: bool) -> None:
    found = msgspec.structs.replace(outcome(LIFE), clock_step_ms=step_ms)
    assert ("stepped by 129 ms" in shown(run(found, chosen=[LIFE]))) is told


def test_what_keeps_nothing_stands_behind_the_ratio_of_the_others() -> None:
    text = shown(run(outcome(), outcome(system="rocketmq", rate=3_000), outcome(system="answers")))
    assert cells(text, "sends per s") == ["9,000", "3,000", "9,000", "3.00", "≥ 2x", "yes"]


# --- the cost of recording ---


def test_a_server_that_says_no_more_ends_the_measurement() -> None:
    async def measure() -> None:
        has_ended = asyncio.Event()

        async def say_no_more(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write_eof()
            await reader.read()
            writer.close()
            await writer.wait_closed()
            has_ended.set()

        async with await asyncio.start_server(say_no_more, "127.0.0.1", 0) as server:
            try:
                await recording._ask_many(server.sockets[0].getsockname())
            finally:
                await asyncio.wait_for(has_ended.wait(), 60)

    with pytest.raises(ConnectionError):
        asyncio.run(measure())


def test_a_request_that_is_refused_is_not_counted_as_a_cheap_one() -> None:
    class Refusing(socketserver.BaseRequestHandler):
        """Refuses every request."""

        def handle(self) -> None:
            frames = FrameBuffer()
            while data := self.request.recv(65_536):
                for command in map(decode_command, frames.feed(data)):
                    self.request.sendall(encode_response(command.opaque, ResponseCode.SYSTEM_BUSY))

    with served(Refusing) as address, pytest.raises(RefusalError):
        asyncio.run(recording._ask_many(address))
    with served(Refusing) as address, pytest.raises(RefusalError):
        recording._latency_us(address)


# --- plots ---


def test_plots_show_what_was_measured(tmp_path: Path) -> None:
    some = [scenarios.held(count) for count in (0, 1_000)]
    found = run(outcome(LIFE), outcome(LIFE, "rocketmq"), *map(outcome, some), chosen=[LIFE, *some])
    pictures = {file.name: file.read_text() for file in draw(found, tmp_path / "new")}
    assert pictures.keys() == {"rates.svg", "firing.svg", "held.svg"}
    assert ">9,000<" in pictures["rates.svg"]
    assert ">life-1000-sync<" in pictures["rates.svg"]
    assert ">RocketMQ, life-1000-sync<" in pictures["firing.svg"]
    assert ">messages held<" in pictures["held.svg"]
    again = {file.name: file.read_text() for file in draw(found, tmp_path)}
    assert again == pictures


def test_what_was_not_measured_is_not_drawn(tmp_path: Path) -> None:
    found = run(outcome(SENDS))
    assert [file.name for file in draw(found, tmp_path)] == ["rates.svg"]


def test_what_failed_is_not_drawn_as_if_it_had_taken_nothing(tmp_path: Path) -> None:
    lost = msgspec.structs.replace(outcome(LIFE), firing=None)
    found = run(lost, outcome(LIFE, "rocketmq"), chosen=[LIFE])
    pictures = {file.name: file.read_text() for file in draw(found, tmp_path)}
    assert ">RocketMQ, life-1000-sync<" in pictures["firing.svg"]
    assert ">Tidegate, life-1000-sync<" not in pictures["firing.svg"]
    held = [scenarios.held(count) for count in (0, 1_000, 2_000)]
    picture = plots._held(run(outcome(held[0]), outcome(held[2]), chosen=held))
    assert picture is not None
    for axes in picture.axes[:2]:
        (line,) = axes.lines
        assert np.asarray(line.get_xdata()).tolist() == [0, 2_000]


# --- the results file ---


def test_results_are_read_as_they_were_saved(tmp_path: Path) -> None:
    found = run(outcome(LIFE, lost=2), outcome(SENDS), chosen=[LIFE, SENDS])
    file = tmp_path / "new folder" / "results.json"
    results.save(found, file)
    assert results.load(file) == found


def test_a_full_disk_does_not_cost_the_results_so_far(tmp_path: Path) -> None:
    """They are saved after each step of some minutes, and the servers' data may fill the disk."""
    file = tmp_path / "results.json"
    found = run(outcome(LIFE))
    results.save(found, file)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size, hard))
    try:
        with pytest.raises(ResultsError, match=f"cannot write {file}: File too large"):
            results.save(run(outcome(LIFE), outcome(SENDS), chosen=[LIFE, SENDS]), file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert results.load(file) == found
    assert list(tmp_path.iterdir()) == [file]


def test_a_device_stays_one(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.symlink_to("/dev/null")
    results.save(run(outcome()), file)
    assert file.readlink() == Path("/dev/null")
    assert file.is_char_device()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no results file"),
        (b"[1]", "no results file"),
        (b'{"format": 1}', "no results file"),
        (b'{"format": 1, "began": "\xff"}', "no results file"),
        (b'{"format": 99}', "format 99; this version reads format 1"),
    ],
)
def test_what_is_no_results_file_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "results.json"
    file.write_bytes(content)
    with pytest.raises(ResultsError, match=reason):
        results.load(file)


def test_a_results_file_of_before_random_reads_were_measured_is_read(tmp_path: Path) -> None:
    even = Spread(count=3, mean=1.5, min=1, p50=1, p90=2, p99=2.5, p999=2.75, max=3)
    scenario = scenarios.held(1_000)
    held = Held(
        fill_seconds=1,
        disk_bytes=1 << 20,
        start_seconds=0.5,
        by_id=even,
        by_key=even,
        by_range=even,
        disk_read=even,
    )
    found = run(msgspec.structs.replace(outcome(scenario), held=held), chosen=[scenario])
    old = msgspec.to_builtins(found)
    del old["outcomes"][0]["held"]["disk_read"]
    file = tmp_path / "old.json"
    file.write_bytes(msgspec.json.encode(old))
    earlier = results.load(file)
    assert earlier.outcomes[0].held == msgspec.structs.replace(held, disk_read=None)
    label = "disk: 4 KiB at random P99, ms"
    assert cells(shown(found, earlier), label)[:2] == ["2.50", "-"]
    assert cells(shown(earlier, found), label)[:2] == ["-", "2.50"]


# --- the command ---


def without_servers(monkeypatch: pytest.MonkeyPatch, run_step: Callable[..., Outcome]) -> None:
    """Let the command run `run_step` in place of servers and their load, and measure no machine."""
    monkeypatch.setattr(campaign, "run_step", run_step)
    monkeypatch.setattr(campaign, "gather", lambda chosen, _: run(chosen=chosen))
    monkeypatch.setattr("compat.bench.load.prepare", lambda: None)


def test_the_command_shows_a_results_file(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    results.save(run(outcome()), file)
    done = CliRunner().invoke(bench, ["--show", str(file), "--compare", str(file)])
    assert done.exit_code == 0
    assert cells(done.output, "sends per s")[:2] == ["9,000", "9,000 (+0%)"]


def test_the_command_refuses_in_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(bench, ["--compare", str(tmp_path / "none.json")])
    assert done.exit_code == 1
    assert done.stderr == (
        f"tidegate bench: cannot read {tmp_path / 'none.json'}: No such file or directory\n"
    )


def test_the_command_names_the_scenarios_it_knows() -> None:
    done = CliRunner().invoke(bench, ["--scenario", "sends-1-sync"])
    assert done.exit_code == 2
    assert "sends-16-sync" in done.stderr


def test_a_run_of_nothing_is_refused() -> None:
    done = CliRunner().invoke(bench, ["--only", "rocketmq", "--scenario", "workers-2"])
    assert done.exit_code == 2
    assert "workers-1, workers-2 would say nothing of rocketmq" in " ".join(done.stderr.split())


@pytest.mark.parametrize("flag", ["--data", "--output", "--plots"])
def test_what_cannot_be_written_is_noticed_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    def run_step(step: campaign.Step, *_: object) -> Outcome:
        pytest.fail("it was measured")

    without_servers(monkeypatch, run_step)
    (tmp_path / "file").touch()
    below = tmp_path / "file" / "below"
    done = CliRunner().invoke(bench, ["--data", str(tmp_path / "data"), flag, str(below)])
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1].startswith("tidegate bench: ")
    assert str(below) in done.stderr


@pytest.mark.parametrize(
    "kind", [ClientError, FillError, LoadError, OSError, RealBrokerError, RecordError, StartError]
)
def test_what_fails_leaves_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def run_step(step: campaign.Step, *_: object) -> Outcome:
        if step.scenario.name == "workers-2":
            raise kind("the server has ended:\nno memory")
        return outcome(step.scenario)

    without_servers(monkeypatch, run_step)
    chosen = ["--scenario", "workers-2", "--scenario", "workers-4"]
    done = CliRunner().invoke(
        bench, ["--only", "tidegate", *chosen, "--output", str(tmp_path / "results.json")]
    )
    assert done.exit_code == 1
    assert done.stderr.endswith(
        "tidegate bench: workers-2 on tidegate: the server has ended: no memory\n"
    )
    names = [one.scenario for one in results.load(tmp_path / "results.json").outcomes]
    assert names == ["workers-1", "workers-4"]
    assert "workers = 4" in done.output
    assert "workers = 2" not in done.stdout


def test_plots_that_cannot_be_drawn_cost_nothing_that_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_servers(monkeypatch, lambda step, *_: outcome(step.scenario, step.system))
    (tmp_path / "rates.svg").mkdir()
    file = tmp_path / "results.json"
    wanted = ["--scenario", "sends-16-sync", "--output", str(file), "--plots", str(tmp_path)]
    done = CliRunner().invoke(bench, wanted)
    assert isinstance(done.exception, SystemExit)
    assert done.exit_code == 1
    assert "tidegate bench: [Errno 21] Is a directory: " in done.stderr
    assert f"results: {file}" in done.stdout
    assert cells(done.stdout, "sends per s")[:2] == ["9,000", "9,000"]


def test_results_are_not_in_the_folder_of_the_servers_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_servers(monkeypatch, lambda step, *_: outcome(step.scenario, step.system))
    monkeypatch.setattr("compat.bench.command._FOLDER", tmp_path / "results")
    data = tmp_path / "data"
    done = CliRunner().invoke(bench, ["--scenario", "sends-16-sync", "--data", str(data)])
    assert done.exit_code == 0
    assert list(data.iterdir()) == []
    (file,) = (tmp_path / "results").iterdir()
    assert f"results: {file}" in done.stdout


def test_the_folder_of_the_servers_data_may_be_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The servers run in folders of their own."""
    monkeypatch.chdir(tmp_path)
    with campaign.scratch_folder(Path("data")) as folder:
        assert folder.is_absolute()
        assert folder.parent == tmp_path / "data"
    assert list((tmp_path / "data").iterdir()) == []


def test_what_a_killed_run_left_is_removed_and_what_another_run_uses_is_not(tmp_path: Path) -> None:
    left = tmp_path / "run-killed"
    (left / "server").mkdir(parents=True)
    with campaign.scratch_folder(tmp_path) as first:
        assert not left.exists()
        with campaign.scratch_folder(tmp_path) as second:
            assert first.exists()
            assert second.exists()
    assert list(tmp_path.iterdir()) == []


# --- a tiny run ---

TINY = Scenario(
    name="tiny",
    kind="life",
    title="A tiny run",
    flush="sync",
    threads=2,
    rate=100,
    delay_ms=(500, 1_000),
    seconds=1,
    warmup=0.5,
    queues=2,
)


@pytest.mark.live
def test_a_tiny_run_loses_doubles_and_hurries_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases: list[str] = []
    done: list[str] = []

    def note_usage(pid: int) -> Usage:
        done.append("usage")
        return usage(pid)

    monkeypatch.setattr(os, "sync", lambda: done.append("sync"))
    monkeypatch.setattr("compat.bench.load.usage", note_usage)
    found = campaign.run_step(
        campaign.Step(TINY, "tidegate"), tmp_path, lambda progress: phases.append(progress.phase)
    )
    assert found.ledger == Ledger(
        acknowledged=100, refused=0, received=100, lost=0, doubled=0, early=0
    )
    assert found.firing is not None
    assert found.stored is not None
    assert found.firing.min >= found.stored.min >= 0
    assert found.cpu_seconds > 0
    # A synced message is on disk before its send is answered.
    assert found.written_bytes >= found.held_bytes >= 100 * TINY.body
    assert phases[:2] == ["starting the server", "warming up"]
    assert phases[-1] == "counting"
    # The sync takes as long as the warm-up has left pages, and the server's idle threads run on meanwhile.
    assert done[:2] == ["sync", "usage"]
    assert not list(tmp_path.iterdir())
    assert "A tiny run" in shown(run(found, chosen=[TINY]))


@pytest.mark.live
@pytest.mark.parametrize("system", ["tidegate", "answers"])
def test_a_tiny_run_of_sends_alone_waits_for_nothing(system: str, tmp_path: Path) -> None:
    scenario = Scenario(
        name="tiny-sends",
        kind="sends",
        title="A tiny run of sends",
        flush="async",
        threads=2,
        delay_ms=(60_000, 120_000),
        consume=False,
        seconds=0.5,
        warmup=0.2,
    )
    found = campaign.run_step(campaign.Step(scenario, system), tmp_path, lambda _: None)
    assert found.ledger.acknowledged > 0
    assert found.client_cpu_seconds > 0
    assert (found.ledger.refused, found.ledger.received, found.ledger.lost) == (0, 0, 0)
    assert found.firing is None
    assert found.send is not None
    assert found.send.count == found.ledger.acknowledged


@pytest.mark.live
def test_a_full_folder_is_searched_before_it_is_sent_to(tmp_path: Path) -> None:
    scenario = msgspec.structs.replace(
        scenarios.held(3_000), seconds=0.5, warmup=0.2, threads=2, flush="async"
    )
    found = campaign.run_step(campaign.Step(scenario, "tidegate"), tmp_path, lambda _: None)
    assert found.ledger.acknowledged > 0
    assert found.held is not None
    assert found.held.disk_bytes > 3_000 * 256
    assert found.held.start_seconds > 0
    assert found.held.disk_read is not None
    assert 1 <= found.held.disk_read.count <= 1_000
    for spread_ in (found.held.by_id, found.held.by_key, found.held.by_range):
        assert spread_ is not None
        assert spread_.count == 200
    text = shown(run(found, chosen=[scenario]))
    assert cells(text, "look-up by id P50, ms")[1] == "≤ 10"


@pytest.mark.live
def test_filtered_pulls_that_wait_get_every_message_once(tmp_path: Path) -> None:
    full = {scenario.name: scenario for scenario in scenarios.full()}
    scenario = msgspec.structs.replace(
        full["waiting-100"], consumers=5, rate=100, seconds=1, warmup=0.2
    )
    found = campaign.run_step(campaign.Step(scenario, "tidegate"), tmp_path, lambda _: None)
    assert found.ledger == Ledger(
        acknowledged=100, refused=0, received=100, lost=0, doubled=0, early=0
    )
    assert found.firing is not None
    assert found.firing.min >= 0


@pytest.mark.parametrize(("count", "is_told"), [(10, False), (1_000, True)])
def test_pages_without_messages_are_no_measurement(
    monkeypatch: pytest.MonkeyPatch, count: int, is_told: bool
) -> None:
    def look_up(_: object, **asked: object) -> SimpleNamespace:
        return SimpleNamespace(messages=[] if "begin" in asked else ["one"])

    monkeypatch.setattr(holding, "connect", nullcontext)
    monkeypatch.setattr(holding, "look_up", look_up)
    facts: dict[str, Any] = {"start_seconds": 1, "fill_seconds": 1, "disk_bytes": 1}
    expected = pytest.raises(FillError, match="no page") if is_told else nullcontext()
    with expected:
        holding.measure("127.0.0.1:1", count, **facts, disk_read=None)


@contextmanager
def served(handler: type[socketserver.BaseRequestHandler]) -> Iterator[tuple[str, int]]:
    """Serve connections with this handler at the address that is returned."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield "127.0.0.1", server.server_address[1]
        finally:
            server.shutdown()


def test_a_pull_that_is_refused_is_made_again_at_its_offset() -> None:
    """From the beginning of the queue, its messages would count as doubled."""
    offsets: list[str] = []
    is_enough = threading.Event()

    class Busy(socketserver.BaseRequestHandler):
        """Moves the first pull to another offset, and refuses the second."""

        def handle(self) -> None:
            frames = FrameBuffer()
            while data := self.request.recv(65_536):
                for command in map(decode_command, frames.feed(data)):
                    offsets.append(command.ext()["queueOffset"])
                    if len(offsets) == 1:
                        code, ext = ResponseCode.PULL_OFFSET_MOVED, {"nextBeginOffset": "7"}
                    elif len(offsets) == 2:
                        code, ext = ResponseCode.SYSTEM_BUSY, {}
                    else:
                        is_enough.set()
                        continue
                    self.request.sendall(encode_response(command.opaque, code, ext=ext))

    with served(Busy) as address:
        load = waiting.Load(address, "t", 1, 64)
        deadline = time.monotonic() + 60
        while not is_enough.is_set():
            assert time.monotonic() < deadline
            load.idle(0.01)
        load.close()
    assert offsets == ["0", "7", "7"]


def test_a_send_that_is_never_answered_is_counted_as_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_PATIENCE_S", 3.0)

    class Forgetful(socketserver.BaseRequestHandler):
        """Answers three of four sends, and no pull."""

        def handle(self) -> None:
            frames = FrameBuffer()
            while data := self.request.recv(65_536):
                for command in map(decode_command, frames.feed(data)):
                    if command.code == RequestCode.SEND_MESSAGE_V2 and command.opaque % 4:
                        self.request.sendall(encode_response(command.opaque, 0))

    with served(Forgetful) as address:
        load = waiting.Load(address, "t", 1, 64)
        load.send(waiting._FIRST_ID, 400, 0.1, tell=False)
        load.close()
    (tmp_path / "sent.bin").write_bytes(load.sent)
    (tmp_path / "received.bin").write_bytes(load.received)
    ledger = balance(read_sent(tmp_path / "sent.bin"), read_received(tmp_path / "received.bin"))
    assert (ledger.acknowledged, ledger.refused) == (30, 10)
    assert load.failures == {"no answer": 10}


@pytest.mark.live
def test_a_small_storm_is_counted_apart(tmp_path: Path) -> None:
    # The more there are, the longer a JVM that has only just started takes to send them, before they are due.
    scenario = msgspec.structs.replace(TINY, kind="storm", seconds=6, storm=20)
    found = campaign.run_step(campaign.Step(scenario, "tidegate"), tmp_path, lambda _: None)
    assert found.storm is not None
    assert found.storm.firing is not None
    whole = Ledger(acknowledged=0, refused=0, received=0, lost=0, doubled=0, early=0)
    assert found.storm.ledger == msgspec.structs.replace(whole, acknowledged=20, received=20)
    assert found.ledger == msgspec.structs.replace(whole, acknowledged=600, received=600)
    text = shown(run(found, chosen=[scenario]))
    assert cells(text, "storm lost") == ["0", "0", "yes"]


@pytest.mark.live
def test_refused_sends_are_counted_and_their_reason_is_shown(tmp_path: Path) -> None:
    # The client may send 5 MiB; a gateway accepts 4 MiB by default.
    scenario = msgspec.structs.replace(
        TINY, rate=4, seconds=1, warmup=0, body=4 * (1 << 20) + 1, delay_ms=(0, 0)
    )
    found = campaign.run_step(campaign.Step(scenario, "tidegate"), tmp_path, lambda _: None)
    assert (found.ledger.acknowledged, found.ledger.refused, found.ledger.lost) == (0, 4, 0)
    assert sum(found.failures.values()) == 4
    text = shown(run(found, chosen=[scenario]))
    assert cells(text, "sends refused") == ["4", "0", "no"]
    assert cells(text, "server CPU a message, µs")[0] == "-"
    (reason,) = found.failures
    assert reason.startswith(f"code {ResponseCode.MESSAGE_ILLEGAL}, ")
    assert f"Tidegate: 4 sends: {reason}" in " ".join(text.split())


@pytest.mark.live
def test_a_load_that_fails_says_why(tmp_path: Path) -> None:
    scenario = msgspec.structs.replace(TINY, body=1 << 40)
    with pytest.raises(LoadError, match=r"NumberFormatException"):
        campaign.run_step(campaign.Step(scenario, "tidegate"), tmp_path, lambda _: None)


@pytest.mark.live
@pytest.mark.parametrize("name", ["sends-16-async", "waiting-1"])
def test_a_load_that_is_done_waits_until_its_usage_has_been_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = {scenario.name: scenario for scenario in scenarios.full()}
    scenario = msgspec.structs.replace(full[name], threads=1, rate=50, seconds=0.4, warmup=0.1)

    def slowly(pid: int) -> Usage:
        time.sleep(1)
        return usage(pid)

    monkeypatch.setattr("compat.bench.load.usage", slowly)
    found = campaign.run_step(campaign.Step(scenario, "tidegate"), tmp_path, lambda _: None)
    assert found.ledger.acknowledged == 20


@pytest.mark.live
def test_a_gateway_that_dies_under_load_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []

    @contextmanager
    def remembered(folder: Path, scenario: Scenario) -> Iterator[systems.System]:
        with systems.tidegate(folder, scenario) as system:
            pids.append(system.pid)
            yield system

    monkeypatch.setitem(systems.SYSTEMS, "tidegate", remembered)

    def kill(progress: Progress) -> None:
        if progress.phase == "sending":
            os.kill(pids[0], signal.SIGKILL)

    ended = r"^the server, process \d+, has ended: .*listening on"
    with pytest.raises(LoadError, match=ended):
        campaign.run_step(campaign.Step(TINY, "tidegate"), tmp_path, kill)


@pytest.mark.live
def test_a_load_that_somebody_kills_did_not_take_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the kernel does for want of memory."""
    started: list[subprocess.Popen[bytes]] = []
    start = children.start

    def remember(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(start(*arguments, **options))
        return started[-1]

    def kill(progress: Progress) -> None:
        if progress.phase == "sending":
            started[-1].kill()

    monkeypatch.setattr(children, "start", remember)
    with pytest.raises(LoadError, match="somebody killed the load"):
        campaign.run_step(campaign.Step(TINY, "tidegate"), tmp_path, kill)
