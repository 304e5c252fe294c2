"""Reads the load's records: percentiles of the measured times, and a ledger of the messages.

The module does not depend on servers or processes: it turns two files into plain values.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

_SENT_COLUMNS = 3
_RECEIVED_COLUMNS = 4
_NUMBER_BYTES = 8


class RecordError(Exception):
    """A records file is incomplete; the text is one line."""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """The distribution of one quantity over a run, in ms."""

    count: int
    mean: float
    min: float
    p50: float
    p90: float
    p99: float
    p999: float
    max: float


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes of the messages of a run, counted by id."""

    acknowledged: int
    """Sends that were answered with success."""
    refused: int
    """Sends that were answered otherwise, or not at all."""
    received: int
    """Different messages that a listener got."""
    lost: int
    """Messages that were acknowledged and never received."""
    doubled: int
    """Receipts of a message that had been received before."""
    early: int
    """Receipts before the due time."""


class Sent(NamedTuple):
    """The columns of the sends: id, due time in epoch ms, latency in ns (-1: refused)."""

    ids: array[int]
    asked: array[int]
    latency: array[int]


class Received(NamedTuple):
    """The columns of the receipts: id, due time, time of receipt and store time; times are epoch ms."""

    ids: array[int]
    asked: array[int]
    received: array[int]
    stored: array[int]


def read_sent(file: Path) -> Sent:
    """Read the sends that `Load.java` wrote. Raises RecordError if the file is cut off."""
    return Sent(*_columns(file, _SENT_COLUMNS))


def read_received(file: Path) -> Received:
    """Read the receipts that `Load.java` wrote. Raises RecordError if the file is cut off."""
    return Received(*_columns(file, _RECEIVED_COLUMNS))


def _columns(file: Path, width: int) -> list[array[int]]:
    data = file.read_bytes()
    if len(data) % (width * _NUMBER_BYTES):
        raise RecordError(f"{file.name} is cut off: {len(data)} bytes are no whole rows of {width}")
    numbers = array("q", data)
    if sys.byteorder == "little":
        numbers.byteswap()
    return [numbers[column::width] for column in range(width)]


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the least of the ordered values that at least this share (0 to 1) of them do not exceed."""
    return ordered[max(math.ceil(share * len(ordered)), 1) - 1]


def spread(values: Sequence[float]) -> Spread | None:
    """Return the distribution of values in ms; None if there are none."""
    if not values:
        return None
    ordered = sorted(values)
    return Spread(
        count=len(ordered),
        mean=math.fsum(ordered) / len(ordered),
        min=ordered[0],
        p50=percentile(ordered, 0.5),
        p90=percentile(ordered, 0.9),
        p99=percentile(ordered, 0.99),
        p999=percentile(ordered, 0.999),
        max=ordered[-1],
    )


def send_times(sent: Sent) -> Spread | None:
    """Return how long the acknowledged sends took."""
    return spread([latency / 1e6 for latency in sent.latency if latency >= 0])


def lateness(asked: Sequence[int], happened: Sequence[int]) -> Spread | None:
    """Return how long after the due times something happened; negative is early."""
    return spread([then - due for due, then in zip(asked, happened, strict=True)])


def balance(sent: Sent, received: Received) -> Ledger:
    """Compare the received messages with the acknowledged ones, by id.

    A message whose send counts as refused may still arrive, if its answer was late: that is no fault.
    """
    acknowledged = {
        message for message, latency in zip(sent.ids, sent.latency, strict=True) if latency >= 0
    }
    arrived = set(received.ids)
    return Ledger(
        acknowledged=len(acknowledged),
        refused=len(sent.ids) - len(acknowledged),
        received=len(arrived),
        lost=len(acknowledged - arrived),
        doubled=len(received.ids) - len(arrived),
        early=sum(then < due for due, then in zip(received.asked, received.received, strict=True)),
    )
