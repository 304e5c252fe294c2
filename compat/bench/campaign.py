"""Runs scenarios on the systems in turn and gathers the results."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from compat.bench import holding, load, machine
from compat.bench.load import Measured, Progress
from compat.bench.records import Received, Sent, balance, lateness, send_times
from compat.bench.results import FORMAT, Held, Outcome, Results, Storm
from compat.bench.scenarios import Scenario
from compat.bench.systems import SYSTEMS
from compat.toolchain.folder import PROJECT
from compat.toolchain.jars import CLIENT_VERSIONS
from compat.toolchain.java import java, java_version

_LIMITS_S: Final = 1.5
"""How long to measure each of the machine's own limits."""


class Step(NamedTuple):
    """One scenario on one system."""

    scenario: Scenario
    system: str


def steps(scenarios: Sequence[Scenario], systems: Sequence[str], repeat: int) -> list[Step]:
    """Return the steps of a run, in order.

    The systems take turns at going first, so that a machine that becomes slower or faster favours none.
    """
    found = []
    for turn in range(repeat):
        for number, scenario in enumerate(scenarios):
            order = systems if (turn + number) % 2 == 0 else systems[::-1]
            found += [Step(scenario, system) for system in order if _says(scenario, system)]
    return found


def _says(scenario: Scenario, system: str) -> bool:
    """Whether a scenario is meaningful for a system."""
    match system:
        case "tidegate":
            return True
        case "answers":
            return scenario.kind == "sends"
    return not scenario.alone


@contextlib.contextmanager
def scratch_folder(parent: Path) -> Iterator[Path]:
    """Make a new folder for the servers' data, and remove it afterwards, as well as those that killed runs left."""
    parent.mkdir(parents=True, exist_ok=True)
    for left in parent.glob("run-*"):
        with contextlib.suppress(OSError), _locked(left):
            shutil.rmtree(left, ignore_errors=True)
    # Not relative: the servers run in other folders.
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=parent.resolve()))
    try:
        with _locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which ends with this process, however that ends. Raises OSError if another has it."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)


def run_step(step: Step, folder: Path, tell: Callable[[Progress], None]) -> Outcome:
    """Start the system fresh, put the load on it, stop it and remove its data.

    Raises StartError or LoadError.
    """
    scratch = folder / f"{step.system}-{step.scenario.name}"
    filling = step.scenario.held > 0
    tell(Progress("filling its folder" if filling else "starting the server"))
    try:
        with SYSTEMS[step.system](scratch / "server", step.scenario) as system:
            held = None
            if step.scenario.kind == "held":
                tell(Progress("looking up"))
                held = holding.measure(
                    system.address,
                    step.scenario.held,
                    start_seconds=system.start_seconds,
                    fill_seconds=system.fill_seconds,
                    disk_bytes=system.filled_bytes,
                    disk_read=system.disk_read,
                )
            measured = load.run(step.scenario, system, scratch, tell)
        return judge(step, measured, held)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def judge(step: Step, measured: Measured, held: Held | None = None) -> Outcome:
    """Return the figures of one run."""
    ledger = balance(measured.sent, measured.received)
    if not step.scenario.consume:
        # Nothing was consumed, so nothing is lost.
        ledger = msgspec.structs.replace(ledger, lost=0)
    received = measured.received
    return Outcome(
        scenario=step.scenario.name,
        system=step.system,
        sends_per_second=ledger.acknowledged / measured.send_seconds,
        send=send_times(measured.sent),
        firing=lateness(received.asked, received.received),
        stored=lateness(received.asked, received.stored),
        ledger=ledger,
        seconds=measured.after.at - measured.before.at,
        cpu_seconds=measured.after.cpu - measured.before.cpu,
        written_bytes=measured.after.written - measured.before.written,
        held_bytes=measured.held_after - measured.held_before,
        own_memory_bytes=measured.peak_own_memory,
        resident_bytes=measured.peak_resident,
        failures=measured.failures,
        client_gc_ms=measured.client_gc_ms,
        client_cpu_seconds=measured.client_cpu,
        device_bytes=measured.device_bytes,
        clock_step_ms=measured.clock_step_ms,
        storm=_judge_storm(*measured.storm) if measured.storm else None,
        held=held,
    )


def _judge_storm(sent: Sent, received: Received) -> Storm:
    return Storm(
        ledger=balance(sent, received),
        firing=lateness(received.asked, received.received),
        stored=lateness(received.asked, received.stored),
    )


def gather(scenarios: Sequence[Scenario], folder: Path) -> Results:
    """Return the results of a run before its first step: its date, versions and machine."""
    return Results(
        format=FORMAT,
        began=datetime.now().astimezone().isoformat(timespec="seconds"),
        versions=_versions(),
        machine=machine.describe(folder),
        limits=machine.measure_limits(folder, _LIMITS_S),
        scenarios=list(scenarios),
        outcomes=[],
    )


def _versions() -> dict[str, str]:
    own = version("tidegate")
    if revision := _revision():
        own += f" ({revision})"
    return {
        "tidegate": own,
        "RocketMQ and client": CLIENT_VERSIONS[0],
        "Python": platform.python_version(),
        "Java": str(java_version(java())),
    }


def _revision() -> str:
    """Return the measured commit, with a plus sign if files differ from it; an empty text outside of git."""
    git = shutil.which("git")
    if git is None:
        return ""
    done = subprocess.run(
        [git, "describe", "--always", "--dirty=+"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()
