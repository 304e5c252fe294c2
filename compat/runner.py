"""Runs scenarios against two servers at once, and compares what came of each."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from compat import differences
from compat.clients.cpp import cpp_driver
from compat.clients.driver import ClientFailure, Driver, DriverError
from compat.clients.go import go_driver
from compat.clients.java import OLD_VERSIONS, VERSIONS, java_driver
from compat.comparison import RAW, Finding, Spoken, compare, spoken
from compat.exchanges import Exchange, exchanges, tag
from compat.java_tools import ToolError
from compat.peers import Peer
from compat.scenarios import SCENARIOS, Scenario, Stage
from compat.scenarios.stage import DASHBOARD
from compat.toolchain import has_cpp_client, has_go_client
from gateway.wire.codes import ResponseCode
from gateway.wire.commands import Command

LANES: Final = 4
"""How many scenarios run at a time: most of each is waiting."""

_FAILURES: Final = (
    *(ClientFailure, DriverError, ToolError),
    *(OSError, ValueError, LookupError, AssertionError),
)
"""What ends a scenario, to be told as a failure of it; TimeoutError is an OSError."""

_OPTIONAL: Final = {
    "cpp": (has_cpp_client, "its library is for Linux on x86-64 with glibc"),
    "go": (has_go_client, "no Go 1.22 or newer is on the path"),
}
"""Clients that not every machine can run: whether this one can, and why not."""

FAILED: Final = "seen/(failed)"


class Run(NamedTuple):
    """A scenario for one client."""

    scenario: Scenario
    client: str
    tag: str

    @property
    def name(self) -> str:
        return f"{self.scenario.name} [{self.client}]"


class Judged(NamedTuple):
    """A finding, and which of the deliberate differences it is, if it is one."""

    finding: Finding
    difference: int | None


class Outcome(NamedTuple):
    """What came of a run."""

    run: Run
    findings: list[Judged]
    requests: Mapping[tuple[str, int], bool]
    """Who asked for what: client and request code; and whether the gateway supports it."""

    @property
    def passed(self) -> bool:
        return all(judged.difference is not None for judged in self.findings)


Tell = Callable[[Run, bool], None]
"""Told of each run when it begins (False) and when both servers are through with it (True)."""


def plan(names: Sequence[str] = ()) -> list[Run]:
    """The runs of the scenarios of these names: all without any; a file's name means all of it.

    Those for clients that cannot run here are `left_out`. Raises KeyError with a name that is none.
    """
    missing = _missing()
    runs = [
        (one, client) for one in _chosen(names) for client in one.clients if client not in missing
    ]
    runs.sort(key=lambda each: each[0].is_alone)
    return [Run(one, client, tag(number)) for number, (one, client) in enumerate(runs, 1)]


def left_out(names: Sequence[str] = ()) -> list[str]:
    """What of the plan is skipped here: a line for each client that cannot run, with the reason."""
    lines = []
    for client, reason in _missing().items():
        if count := sum(client in one.clients for one in _chosen(names)):
            lines.append(f"skipped: {count} scenarios with the client {client}: {reason}")
    return lines


def _missing() -> Mapping[str, str]:
    return {client: reason for client, (is_here, reason) in _OPTIONAL.items() if not is_here()}


def _chosen(names: Sequence[str]) -> list[Scenario]:
    chosen: list[Scenario] = []
    for name in names:
        found = [one for one in SCENARIOS.values() if name in (one.name, one.name.split(".")[0])]
        if not found:
            raise KeyError(name)
        chosen += [one for one in found if one not in chosen]
    return chosen or list(SCENARIOS.values())


@contextmanager
def drivers(runs: Sequence[Run]) -> Iterator[Mapping[str, Driver]]:
    """The processes with the real clients that the runs need, all started."""
    wanted = {run.client for run in runs}
    # Raw scenarios and those of tools may set their scene with the current Java client.
    found = {"java-5.5.0": java_driver("5.5.0")}
    for version in (*VERSIONS, *OLD_VERSIONS):
        if f"java-{version}" in wanted:
            found[f"java-{version}"] = java_driver(version)
    if "cpp" in wanted:
        # Its producers of transactions share one connection in a process, whatever their server is.
        found |= {f"cpp-{side}": cpp_driver() for side in (0, 1)}
    if "go" in wanted:
        # Likewise those of message traces.
        found |= {f"go-{side}": go_driver() for side in (0, 1)}
    try:
        for driver in found.values():
            driver.start()
        yield found
    finally:
        for driver in found.values():
            driver.close()


def perform(
    runs: Sequence[Run], peers: tuple[Peer, Peer], processes: Mapping[str, Driver], tell: Tell
) -> list[tuple[Stage, Stage]]:
    """Run everything on both servers; what each run saw on the one and on the other."""
    begun = threading.Semaphore(LANES)
    together = [run for run in runs if not run.scenario.is_alone]
    alone = [run for run in runs if run.scenario.is_alone]
    results: dict[str, tuple[Stage, Stage]] = {}

    def act(run: Run, pool: ThreadPoolExecutor) -> tuple[Stage, Stage]:
        with begun:
            tell(run, False)
            stages = tuple(
                Stage(peer, side, run.client, run.tag, processes) for side, peer in enumerate(peers)
            )
            futures: list[Future[None]] = [pool.submit(_act, run, stage) for stage in stages]
            for future in futures:
                future.result()
            tell(run, True)
            return stages[0], stages[1]

    with ThreadPoolExecutor(2 * LANES) as pool, ThreadPoolExecutor(LANES) as lanes:
        waiting = {run.tag: lanes.submit(act, run, pool) for run in together}
        results = {name: future.result() for name, future in waiting.items()}
        for run in alone:
            results[run.tag] = act(run, pool)
    return [results[run.tag] for run in runs]


def _act(run: Run, stage: Stage) -> None:
    try:
        try:
            run.scenario.act(stage)
        finally:
            stage.close()
    except _FAILURES as failure:
        said = " ".join(str(failure).split())[:300]
        stage.see("(failed)", f"{type(failure).__name__}: {said}")


def judge(
    runs: Sequence[Run], stages: Sequence[tuple[Stage, Stage]], peers: tuple[Peer, Peer]
) -> list[Outcome]:
    """Compare what was seen and, where it was recorded, what was said: except to the dashboard, whose
    pages note every result, and what of a server's lists is theirs."""
    recorded = [_by_tag(peer.capture) for peer in peers]
    outcomes = []
    for run, pair in zip(runs, stages, strict=True):
        said: list[Spoken] = [
            spoken(
                stage.seen,
                stage.codes,
                () if run.client in DASHBOARD else record.get(run.tag, ()),
            )
            for stage, record in zip(pair, recorded, strict=True)
        ]
        found = compare(*said)
        failures = [stage.seen["(failed)"] for stage in pair if "(failed)" in stage.seen]
        if len(failures) == 2 and failures[0] == failures[1]:
            # Alike, but a scenario that ends early has shown nothing.
            found.append(Finding(None, FAILED, failures[0], failures[1]))
        judged = [Judged(finding, differences.number_of(run.name, finding)) for finding in found]
        outcomes.append(Outcome(run, judged, _requests(run, pair[1], recorded[1].get(run.tag, ()))))
    return outcomes


def _by_tag(capture: Path | None) -> Mapping[str, list[Exchange]]:
    found: dict[str, list[Exchange]] = defaultdict(list)
    if capture is not None:
        for exchange in exchanges(capture):
            found[exchange.tag].append(exchange)
    return found


def _requests(run: Run, stage: Stage, said: Sequence[Exchange]) -> Mapping[tuple[str, int], bool]:
    """Raw requests count where their answers were noted: others only set the scene."""
    found = {
        (run.client, exchange.request.code): _is_supported(exchange.answer)
        for exchange in said
        if exchange.request.language != RAW
    }
    for step, code in stage.codes.items():
        answer = stage.seen[step]
        found["raw", code] = answer.get("code") != ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    return found


def _is_supported(answer: Command | None) -> bool:
    return answer is None or answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED
