"""The results of a benchmark as they are kept in a file: facts and figures, without a verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from compat.bench.machine import Limits, Machine
from compat.bench.records import Ledger, Spread
from compat.bench.scenarios import Scenario

FORMAT: Final = 1
"""Changes if a field changes its meaning or is removed, but not with a new optional field."""


class ResultsError(Exception):
    """A results file cannot be read or written, or a plot cannot be drawn; the text is one line."""


class Storm(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes of the many messages that were due in one second."""

    ledger: Ledger
    firing: Spread | None
    stored: Spread | None


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a server that begins with a folder full of messages."""

    fill_seconds: float
    """How long filling the folder took. The server has no part in it."""
    disk_bytes: int
    """How many bytes the messages occupied on disk before the start."""
    start_seconds: float
    """From the start of the process to its first answer. The files were not in the page cache."""
    by_id: Spread | None
    """Look-ups of one message by its id, from the request to the answer; None without held messages."""
    by_key: Spread | None
    by_range: Spread | None
    """Look-ups of the first page of one topic's messages that are due in an hour chosen at random."""
    disk_read: Spread | None = None
    """How long the disk took for reads of 4 KiB from random places of the gateway's tables. The benchmark made them
    before the gateway's start. None without held messages, and in files that are older than this field."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run of one scenario on one system."""

    scenario: str
    system: str
    sends_per_second: float
    """Acknowledged sends over the time from the first send's start to the last one's answer."""
    send: Spread | None
    """From a send's start to its answer; at a given rate, from when it should have started."""
    firing: Spread | None
    """From the due time to the listener's call. For a message without a delay: from its send's start."""
    stored: Spread | None
    """From the due time to the server's own store time."""
    ledger: Ledger
    seconds: float
    """From the first send to the last message, or to the last answer if nothing is consumed."""
    cpu_seconds: float
    """The server's CPU time in these seconds."""
    written_bytes: int
    """Bytes written by the server in these seconds, by its count in the kernel: see `processes.device_bytes`."""
    held_bytes: int
    """By how much the files grew on disk in these seconds."""
    own_memory_bytes: int
    """The most resident memory without the page cache."""
    resident_bytes: int
    """The most resident memory in all."""
    failures: dict[str, int]
    """By the start of the error's text: how many sends failed."""
    client_gc_ms: int
    client_cpu_seconds: float = 0.0
    """The load's own CPU time in these seconds."""
    device_bytes: int | None = None
    """Bytes written to the disk in these seconds by all processes; None if the data folder is on no disk."""
    clock_step_ms: float = 0.0
    """The largest step of the wall clock. Firing errors include it, because they are measured by the wall clock."""
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
        """Return the outcomes of all runs of a scenario on a system."""
        return [o for o in self.outcomes if o.scenario == scenario and o.system == system]


def save(results: Results, file: Path) -> None:
    """Write a results file. Raises ResultsError if it cannot be written; what it had before stays then."""
    content = msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n"
    # Follow a link, such as /dev/stdout, so that the link itself stays.
    place = file.resolve()
    unfinished = place.with_name(f".{place.name}.unfinished")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists() and not place.is_file():
            place.write_bytes(content)
            return
        try:
            unfinished.write_bytes(content)
            unfinished.replace(place)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise ResultsError(f"cannot write {file}: {error.strerror}") from error


def load(file: Path) -> Results:
    """Read a results file. Raises ResultsError if it cannot be read, is none, or has another format."""
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
