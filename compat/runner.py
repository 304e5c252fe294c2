"""Runs scenarios against two servers at once, and compares the results."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from compat import differences
from compat.clients.cpp import cpp_driver
from compat.clients.driver import Driver
from compat.clients.go import go_driver
from compat.clients.java import OLD_VERSIONS, VERSIONS, java_driver
from compat.comparison import RAW, Finding, Spoken, compare, spoken
from compat.exchanges import Exchange, exchanges, tag
from compat.peers import Peer
from compat.scenarios import SCENARIOS, Scenario, Stage
from compat.scenarios.stage import DASHBOARD
from compat.toolchain.cpp import has_cpp_client
from compat.toolchain.go import has_go_client
from gateway.wire.codes import ResponseCode
from gateway.wire.commands import Command

LANES: Final = 4
"""How many scenarios run at a time. They spend most of their time waiting."""

_OPTIONAL: Final = {
    "cpp": (has_cpp_client, "its library is for Linux on x86-64 with glibc"),
    "go": (has_go_client, "no Go 1.22 or newer is on the path"),
}
"""By client that not every machine can run: a check whether this machine can, and the reason if not."""

_FAILED: Final = "(failed)"
"""The name of the last step of a scenario that ended early."""


class Run(NamedTuple):
    """A scenario for one client."""

    scenario: Scenario
    client: str
    tag: str

    @property
    def name(self) -> str:
        return f"{self.scenario.name} [{self.client}]"


class Performance(NamedTuple):
    """A run on both servers."""

    run: Run
    stages: tuple[Stage, Stage]
    before: Sequence[str] = ()
    """If this is a second try: the errors that ended the first one early, each with its server's name."""

    @property
    def failures(self) -> list[str]:
        """The errors that ended it early, on the first server and on the second."""
        return [stage.seen[_FAILED] for stage in self.stages if _FAILED in stage.seen]


class Judged(NamedTuple):
    """A finding, and the number of the deliberate difference that covers it, if any."""

    finding: Finding
    difference: int | None


class Outcome(NamedTuple):
    """The result of a run."""

    run: Run
    findings: list[Judged]
    requests: Mapping[tuple[str, int], bool]
    """By client and request code: whether the gateway supports the request."""
    before: Sequence[str] = ()
    """The errors that ended a first try early, each with its server's name."""

    @property
    def passed(self) -> bool:
        return all(judged.difference is not None for judged in self.findings)


Tell = Callable[[Run, bool], None]
"""Called for each run when it begins (False) and when it is done on both servers (True)."""


def plan(names: Sequence[str] = ()) -> list[Run]:
    """Return the runs of the scenarios with these names, or of all scenarios without names.

    The name of a file means all of its scenarios. Runs of clients that this machine cannot run are
    not returned; see `left_out`. Raises KeyError with an unknown name.
    """
    missing = _missing()
    runs = [
        (one, client) for one in _chosen(names) for client in one.clients if client not in missing
    ]
    runs.sort(key=lambda each: each[0].is_alone)
    return [Run(one, client, tag(number)) for number, (one, client) in enumerate(runs, 1)]


def left_out(names: Sequence[str] = ()) -> list[str]:
    """Return a line for each client that this machine cannot run: its skipped scenarios and the reason."""
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
    """Run the processes with the real clients that the runs need."""
    wanted = {run.client for run in runs}
    # Raw scenarios and those of tools may prepare topics and messages with the current Java client.
    found = {"java-5.5.0": java_driver("5.5.0")}
    for version in (*VERSIONS, *OLD_VERSIONS):
        if f"java-{version}" in wanted:
            found[f"java-{version}"] = java_driver(version)
    if "cpp" in wanted:
        found["cpp"] = cpp_driver()
    if "go" in wanted:
        # Its producers of message traces share one connection per process, even to different servers.
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
) -> list[Performance]:
    """Run everything on both servers.

    A run that ended early on either server is tried once more at the end, alone: its waits have time
    limits, and on a machine that is busy with other runs they may not suffice.
    """

    def act(run: Run, pool: ThreadPoolExecutor) -> Performance:
        tell(run, False)
        one, other = (
            Stage(peer, side, run.client, run.tag, processes) for side, peer in enumerate(peers)
        )
        for future in [pool.submit(_act, run, stage) for stage in (one, other)]:
            future.result()
        tell(run, True)
        return Performance(run, (one, other))

    with ThreadPoolExecutor(2 * LANES) as pool, ThreadPoolExecutor(LANES) as lanes:
        together = [run for run in runs if not run.scenario.is_alone]
        alone = [run for run in runs if run.scenario.is_alone]
        done = list(lanes.map(act, together, itertools.repeat(pool)))
        done += [act(run, pool) for run in alone]
        numbers = itertools.count(len(runs) + 1)
        for place, first in enumerate(done):
            if first.failures:
                again = act(first.run._replace(tag=tag(next(numbers))), pool)
                before = [
                    f"{stage.peer.name}: {stage.seen[_FAILED]}"
                    for stage in first.stages
                    if _FAILED in stage.seen
                ]
                done[place] = again._replace(before=before)
    return done


def _act(run: Run, stage: Stage) -> None:
    try:
        try:
            run.scenario.act(stage)
            stage.wait_for_answers()
        finally:
            stage.close()
    except Exception as failure:  # noqa: BLE001  whatever a scenario raises is its failure
        said = " ".join(str(failure).split())[:300]
        stage.see(_FAILED, f"{type(failure).__name__}: {said}")


def judge(performed: Sequence[Performance], peers: tuple[Peer, Peer]) -> list[Outcome]:
    """Compare what clients saw and, where it was recorded, the servers' answers.

    The answers to the dashboard are not compared: its scenarios note each result, with only their
    own entries of a server's lists.
    """
    recorded = [_by_tag(peer.capture) for peer in peers]
    outcomes = []
    for one in performed:
        run, stages = one.run, one.stages
        said: list[Spoken] = [
            spoken(
                stage.seen,
                stage.codes,
                () if run.client in DASHBOARD else record.get(run.tag, ()),
            )
            for stage, record in zip(stages, recorded, strict=True)
        ]
        found = compare(*said)
        failures = one.failures
        if len(failures) == 2 and failures[0] == failures[1]:
            # The same on both, but a scenario that ends early has shown nothing.
            found.append(Finding(None, f"seen/{_FAILED}", failures[0], failures[1]))
        judged = [Judged(finding, differences.number_of(run.name, finding)) for finding in found]
        requests = _requests(run, stages[1], recorded[1].get(run.tag, ()))
        outcomes.append(Outcome(run, judged, requests, one.before))
    return outcomes


def _by_tag(capture: Path | None) -> Mapping[str, list[Exchange]]:
    found: dict[str, list[Exchange]] = defaultdict(list)
    if capture is not None:
        for exchange in exchanges(capture):
            found[exchange.tag].append(exchange)
    return found


def _requests(run: Run, stage: Stage, said: Sequence[Exchange]) -> Mapping[tuple[str, int], bool]:
    """Return the requests of a run, and whether the gateway supports each.

    A raw request counts only if a step noted its answer: the others only prepare the scenario.
    """
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
