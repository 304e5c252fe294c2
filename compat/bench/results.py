"""What a benchmark found, as it is kept in a file: facts and figures, no judgement."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from compat.bench.machine import Limits, Machine
from compat.bench.records import Ledger, Spread
from compat.bench.scenarios import Scenario

FORMAT: Final = 1
"""Changes when a field changes its meaning or leaves; a new optional field does not change it."""


class ResultsError(Exception):
    """A results file that cannot be read; the text is one line."""


class Storm(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the many messages that were due in one second."""

    ledger: Ledger
    firing: Spread | None
    stored: Spread | None


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """How a server does that begins with a folder full of messages."""

    fill_seconds: float
    """How long filling the folder took: no figure of the server's."""
    disk_bytes: int
    """What the messages occupied on disk before the start."""
    start_seconds: float
    """From the start of the process to its first answer. The files were not in the page cache."""
    by_id: Spread | None
    """Look-ups of one message by its id, from the question to the answer; None where none is held."""
    by_key: Spread | None
    by_range: Spread | None
    """First pages of one topic's messages that are due in an hour chosen at random."""
    disk_read: Spread | None = None
    """Reads of 4 KiB from random places of the gateway's tables, before its start, by nobody but the benchmark: what
    the disk took for each at the time. None where none is held, and in files of before this was measured."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario on one system, once."""

    scenario: str
    system: str
    sends_per_second: float
    """Acknowledged sends over the time from the first send's start to the last one's answer."""
    send: Spread | None
    """From a send's start to its answer; at a given rate, from when it should have started."""
    firing: Spread | None
    """From the asked time to the listener's call. For a message for now: from its send's start."""
    stored: Spread | None
    """From the asked time to the server's own store time."""
    ledger: Ledger
    seconds: float
    """From the first send to the last message, or to the last answer where nothing is consumed."""
    cpu_seconds: float
    """The server's, in that time."""
    written_bytes: int
    """By the server, in that time, as the kernel accounts for a process: see `processes.device_bytes`."""
    held_bytes: int
    """By how much the files grew on disk in that time."""
    own_memory_bytes: int
    """The most that was resident beside the page cache."""
    resident_bytes: int
    """The most that was resident in all."""
    failures: dict[str, int]
    """Failed sends, by the start of the error's text."""
    client_gc_ms: int
    client_cpu_seconds: float = 0.0
    """The load's own, in the time that the server's is measured in."""
    device_bytes: int | None = None
    """Written to the disk in that time, by anybody; None where no disk is behind the data folder."""
    clock_step_ms: float = 0.0
    """The largest step of the wall clock: firing errors hold it, for it is the wall clock that they are told by."""
    storm: Storm | None = None
    held: Held | None = None


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the benchmark."""

    format: int
    began: str
    """ISO 8601, with the zone."""
    versions: dict[str, str]
    machine: Machine
    limits: Limits
    scenarios: list[Scenario]
    outcomes: list[Outcome]

    def of(self, scenario: str, system: str) -> list[Outcome]:
        """Each time that the scenario was run on the system."""
        return [o for o in self.outcomes if o.scenario == scenario and o.system == system]


def save(results: Results, file: Path) -> None:
    """Writes a results file. Raises ResultsError when that cannot be."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
    except OSError as error:
        raise ResultsError(f"cannot write {file}: {error.strerror}") from error


def load(file: Path) -> Results:
    """Reads a results file. Raises ResultsError when it is none, or of another format."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ResultsError(f"cannot read {file}: {error.strerror}") from None
    try:
        found = msgspec.json.decode(data, type=_Format).format
        if found != FORMAT:
            raise ResultsError(f"{file} has format {found}; this version reads format {FORMAT}")
        return msgspec.json.decode(data, type=Results)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ResultsError(f"{file} is no results file: {error}") from None


class _Format(msgspec.Struct):
    format: int
