"""Runs the load, a Java program with the official client, and samples the server meanwhile."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from compat import children
from compat.bench.processes import Usage, device_bytes, held_bytes, usage
from compat.bench.records import Received, Sent, read_received, read_sent
from compat.bench.scenarios import Scenario
from compat.bench.systems import System
from compat.toolchain.jars import classpath
from compat.toolchain.java import LOG_TO_STDERR, compile_java, java

CLIENT: Final = "client-5.5.0"
_PATIENCE_S: Final = 30
"""How long after the last due time to wait for a message before it counts as lost."""

_GRACE_S: Final = 120
"""Extra time that a run may take beyond the expected time, for starts and slow machines."""


class LoadError(Exception):
    """The load could not be run to its end; the text is one line."""


class Progress(NamedTuple):
    """The progress of a run."""

    phase: str
    sent: int = 0
    received: int = 0


class Measured(NamedTuple):
    """The measurements of a run."""

    sent: Sent
    received: Received
    storm: tuple[Sent, Received] | None
    """Sends and receipts of the storm, if there is one."""
    send_seconds: float
    failures: dict[str, int]
    """How many sends failed, by the start of the error's text."""
    client_gc_ms: int
    """How long garbage collection stopped the client in all."""
    client_cpu: float
    """CPU seconds of the client between `before` and `after`."""
    device_bytes: int | None
    """Bytes written to the disk between `before` and `after`; None if the folder is on no disk."""
    clock_step_ms: float
    """The largest step that the wall clock made, forward or back."""
    before: Usage
    after: Usage
    held_before: int
    held_after: int
    peak_own_memory: int
    peak_resident: int


class _Program(NamedTuple):
    java: Path
    paths: str


@functools.cache
def prepare() -> _Program:
    """Get the client and compile the load. Raises ToolchainError."""
    libraries = classpath(CLIENT)
    classes = compile_java([Path(__file__).with_name("Load.java")], libraries, "bench")
    return _Program(java(), os.pathsep.join(str(path) for path in (classes, *libraries)))


def run(
    scenario: Scenario,
    system: System,
    scratch: Path,
    tell: Callable[[Progress], None],
) -> Measured:
    """Put one load on a running server, and measure the server from the first send to the last message.

    Raises LoadError if the load or the server ends early, or the run takes too long.
    """
    records = scratch / "records"
    shutil.rmtree(records, ignore_errors=True)
    records.mkdir(parents=True)
    errors = scratch / "load.err"
    with errors.open("wb") as complaints:
        process = children.start(
            _command(scenario, system.address, records, scratch),
            folder=scratch,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
        )
    limit_s = scenario.expected_seconds + _PATIENCE_S + _GRACE_S
    begin = time.monotonic()
    watch = threading.Timer(limit_s, process.kill)
    watch.start()
    try:
        with process:
            try:
                return _watch(process, scenario, system, records, tell)
            except ProcessLookupError as error:
                raise LoadError(f"{error}: {_last_words(system.output)}") from None
            except _CutOffError:
                status = process.wait()
                reason = _last_words(errors)
                if status == -signal.SIGKILL:
                    is_late = time.monotonic() >= begin + limit_s
                    reason = "it took too long" if is_late else "somebody killed the load"
                raise LoadError(reason) from None
            finally:
                # After its last event it only waits for its end, so that its CPU can be read until then.
                process.kill()
    finally:
        watch.cancel()


class _CutOffError(Exception):
    """The load's output ended before its last event."""


def _watch(
    process: subprocess.Popen[bytes],
    scenario: Scenario,
    system: System,
    records: Path,
    tell: Callable[[Progress], None],
) -> Measured:
    assert process.stdin is not None
    assert process.stdout is not None
    events = _events(process.stdout)
    tell(Progress("warming up"))
    event = next(events, {})
    if event.get("event") != "ready":
        raise _CutOffError
    written_before, held_before = _written(system.folder), held_bytes(system.folder)
    clock = _WallClock()
    before, client_before = usage(system.pid), _usage_of_load(process)
    process.stdin.write(b"go\n")
    process.stdin.flush()

    after, client_after, written_after = before, client_before, written_before
    held_after = held_before
    peak_own, peak_resident = before.own_memory, before.resident
    # The final sync to disk comes only once nothing fires any more.
    end = "drained" if scenario.consume else "sent"
    phase = "sending"
    send_seconds = 0.0
    for event in events:
        clock.look()
        now = usage(system.pid)
        peak_own = max(peak_own, now.own_memory)
        peak_resident = max(peak_resident, now.resident)
        match event["event"]:
            case "progress":
                tell(Progress(phase, event["sent"], event["received"]))
            case "sent":
                send_seconds = event["seconds"]
                phase = "waiting for the last"
            case "done":
                break
        if event["event"] == end:
            after, client_after = now, _usage_of_load(process)
            written_after, held_after = _written(system.folder), held_bytes(system.folder)
    else:
        raise _CutOffError
    tell(Progress("counting"))
    return Measured(
        sent=read_sent(records / "sent.bin"),
        received=read_received(records / "received.bin"),
        storm=(
            (read_sent(records / "storm-sent.bin"), read_received(records / "storm-received.bin"))
            if scenario.storm
            else None
        ),
        send_seconds=send_seconds,
        failures=event["failures"],
        client_gc_ms=event["gc_ms"],
        client_cpu=client_after.cpu - client_before.cpu,
        device_bytes=_between(written_before, written_after),
        clock_step_ms=clock.largest_step_ms,
        before=before,
        after=after,
        held_before=held_before,
        held_after=held_after,
        peak_own_memory=peak_own,
        peak_resident=peak_resident,
    )


def _usage_of_load(process: subprocess.Popen[bytes]) -> Usage:
    try:
        return usage(process.pid)
    except ProcessLookupError:
        raise _CutOffError from None


def _written(folder: Path) -> int | None:
    """Write all dirty pages to disk, and return the bytes written to the disk so far."""
    os.sync()
    return device_bytes(folder)


def _between(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


class _WallClock:
    """Detects steps of the wall clock, by comparing it with the monotonic clock at each look."""

    def __init__(self) -> None:
        self._distance_ns = self._measure()
        self.largest_step_ms = 0.0

    def look(self) -> None:
        distance_ns = self._measure()
        step_ms = abs(distance_ns - self._distance_ns) / 1e6
        self._distance_ns = distance_ns
        self.largest_step_ms = max(self.largest_step_ms, step_ms)

    @staticmethod
    def _measure() -> int:
        """Return how far the wall clock is ahead, from the quickest of a few readings: one can be interrupted."""
        readings = []
        for _ in range(5):
            begin = time.monotonic_ns()
            wall = time.time_ns()
            end = time.monotonic_ns()
            readings.append((end - begin, wall - (begin + end) // 2))
        return min(readings)[1]


def _command(scenario: Scenario, address: str, records: Path, scratch: Path) -> list[str]:
    plan: dict[str, object] = {
        "namesrv": address,
        "topic": f"bench-{scenario.name}",
        "records": records,
        "queues": scenario.queues,
        "brokers": scenario.workers,
        "threads": scenario.threads,
        "rate": scenario.rate,
        "body": scenario.body,
        "seconds": scenario.seconds,
        "warmup": scenario.warmup,
        "delay_min": scenario.delay_ms[0],
        "delay_max": scenario.delay_ms[1],
        "levels": ",".join(str(level) for level in scenario.levels),
        "consume": str(scenario.consume).lower(),
        "patience": _PATIENCE_S,
        "storm": scenario.storm,
    }
    if scenario.kind == "waiting":
        return [
            *(sys.executable, "-m", "compat.bench.waiting", address, str(plan["topic"])),
            *(str(records), str(scenario.consumers), str(scenario.rate), str(scenario.warmup)),
            *(str(scenario.seconds), str(scenario.body)),
        ]
    program = prepare()
    return [
        str(program.java),
        *LOG_TO_STDERR,
        # One size from the start: a growing heap pauses the client, and its pauses look like the server's.
        "-Xms512m",
        "-Xmx512m",
        # The client writes its logs there.
        f"-Duser.home={scratch}",
        "-classpath",
        program.paths,
        "Load",
        *(f"{name}={value}" for name, value in plan.items()),
    ]


def _events(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            raise _CutOffError from None


def _last_words(file: Path) -> str:
    """Return the first line of the last exception in an error output, or else its last line."""
    lines = [line for line in file.read_text(errors="replace").splitlines() if line.strip()]
    exceptions = [line for line in lines if "Exception" in line and not line.startswith("\t")]
    found = (exceptions or lines or ["it ended without a word"])[-1]
    return found.strip()[:300]
