"""Measures a server that begins with a full folder: how soon it answers, and how long look-ups take."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from compat import children
from compat.bench import fill as filler
from compat.bench import machine
from compat.bench.processes import held_bytes
from compat.bench.records import Spread, spread
from compat.bench.results import Held
from gateway.client import RemotingClient, look_up, successful
from gateway.wire.addresses import parse_address
from gateway.wire.codes import RequestCode

_LOOK_UPS: Final = 200
_SURELY_FOUND: Final = 1_000
"""With so many messages, 14 are expected on all pages together that are looked up; none there is no chance."""
_HOUR_MS: Final = 3_600_000
_ANSWER_LIMIT_S: Final = 60
_TABLES: Final = "data.mdb"
"""The file of a gateway's data folder that look-ups read."""
_DISK_S: Final = 1.0


class FillError(Exception):
    """The folder could not be filled; the text is one line."""


def fill(data: Path, count: int) -> int:
    """Fill a gateway's data folder, in a process of its own.

    :returns: the bytes that its files then occupy on disk.
    :raises FillError: if that process fails.
    """
    process = children.start(
        [sys.executable, "-m", "compat.bench.fill", data, str(count)],
        folder=data.parent,
        stderr=subprocess.PIPE,
    )
    _, complaints = process.communicate()
    if process.returncode:
        lines = complaints.decode(errors="replace").strip().splitlines() or ["it was killed"]
        raise FillError(f"the folder could not be filled: {lines[-1]}")
    return held_bytes(data)


def disk_reads(data: Path) -> Spread | None:
    """Measure how long the disk takes to read random pages of a folder's tables, as look-ups do.

    No process may use the folder.
    """
    return machine.random_reads(data / _TABLES, _DISK_S)


def connect(address: str) -> RemotingClient:
    """Open a connection to a server's address."""
    return RemotingClient(*parse_address(address), timeout=_ANSWER_LIMIT_S)


def wait_for_answer(address: str) -> None:
    """Wait for the server's first answer. Raises ClientError."""
    with connect(address) as client:
        successful(client.ask(RequestCode.GET_BROKER_CLUSTER_INFO))


def measure(
    address: str,
    count: int,
    *,
    start_seconds: float,
    fill_seconds: float,
    disk_bytes: int,
    disk_read: Spread | None,
) -> Held:
    """Measure look-ups of messages. Raises ClientError, RefusalError, or FillError if a message is missing."""
    chance = random.Random(count)
    now_ms = time.time_ns() // 1_000_000
    by_id = by_key = by_range = None
    on_pages = 0
    if count:
        with connect(address) as client:

            def find_id() -> None:
                number = chance.randrange(count)
                _expect_one(look_up(client, id=filler.message_id(number)).messages)

            def find_key() -> None:
                number = chance.randrange(0, count, filler.KEYED)
                page = look_up(client, topic=filler.topic(number), key=filler.key(number))
                _expect_one(page.messages)

            def find_page() -> None:
                nonlocal on_pages
                topic = filler.topic(chance.randrange(min(count, filler.TOPICS)))
                begin = now_ms + filler.SOONEST_MS + chance.randrange(filler.SPAN_MS - _HOUR_MS)
                page = look_up(client, topic=topic, begin=begin, end=begin + _HOUR_MS, limit=20)
                on_pages += len(page.messages)

            by_id, by_key, by_range = (_time(one) for one in (find_id, find_key, find_page))
        if count >= _SURELY_FOUND and not on_pages:
            raise FillError("no page of a topic had a message")
    return Held(
        fill_seconds=fill_seconds,
        disk_bytes=disk_bytes,
        start_seconds=start_seconds,
        by_id=by_id,
        by_key=by_key,
        by_range=by_range,
        disk_read=disk_read,
    )


def _expect_one(found: Sequence[object]) -> None:
    if len(found) != 1:
        raise FillError(f"{len(found)} messages were found in place of 1")


def _time(ask: Callable[[], None]) -> Spread | None:
    times = []
    for _ in range(_LOOK_UPS):
        begin = time.monotonic()
        ask()
        times.append((time.monotonic() - begin) * 1_000)
    return spread(times)
