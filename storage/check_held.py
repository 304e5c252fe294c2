"""Checks the sums of pending messages against the rows that they sum up. Memory use does not grow with their number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby

import lmdb

from storage.environment import Tables
from storage.keys import (
    HELD_SPAN_MS,
    HOUR_MS,
    TOTAL_VALUE,
    held_key,
    hour_key,
    pack_u64,
    timer_topic,
)
from storage.reader import Reader
from storage.sums import sum_topics
from storage.timers import seek_topic


def check_held(txn: Reader, tables: Tables, faults: list[str]) -> None:
    """Check that `held`, `hours` and `totals` agree with `timers` and `waiting`."""
    _check_spans(
        txn, tables, faults, tables.held, HELD_SPAN_MS, lambda span, topic: held_key(topic, span)
    )
    _check_spans(txn, tables, faults, tables.hours, HOUR_MS, hour_key)
    _check_totals(txn, tables, faults)


def _check_spans(
    txn: Reader,
    tables: Tables,
    faults: list[str],
    table: lmdb._Database,
    width_ms: int,
    key_of: Callable[[int, bytes], bytes],
) -> None:
    name = "held" if table is tables.held else "hours"
    found = 0
    for span, keys in _timers_by_span(txn, tables, width_ms):
        for topic, counted in Counter(map(timer_topic, keys)).items():
            key = key_of(span, topic)
            value = txn.get(key, db=table)
            noted = int.from_bytes(value) if value is not None else 0
            found += value is not None
            if noted != counted:
                faults.append(f"{name} {key!r}: {noted} noted, {counted} counted")
    if found == txn.stat(table)["entries"]:
        return
    for key, value in txn.cursor(db=table):
        span, topic = _split(name, key)
        if not _has_timer(txn, tables, topic, span * width_ms, (span + 1) * width_ms):
            faults.append(f"{name} {key!r}: {int.from_bytes(value)} noted, 0 counted")


def _timers_by_span(
    txn: Reader, tables: Tables, width_ms: int
) -> Iterator[tuple[int, Iterator[bytes]]]:
    keys = txn.cursor(db=tables.timers).iternext(values=False)
    return groupby(keys, lambda key: int.from_bytes(key[:8]) // width_ms)


def _split(name: str, key: bytes) -> tuple[int, bytes]:
    """Return span and topic of a row of `held` or of `hours`."""
    if name == "held":
        return int.from_bytes(key[-8:]), key[:-9]
    return int.from_bytes(key[:8]), key[8:]


def _has_timer(txn: Reader, tables: Tables, topic: bytes, begin_ms: int, end_ms: int) -> bool:
    if end_ms >= 1 << 64:
        return False
    cursor = txn.cursor(db=tables.timers)
    cursor.set_range(pack_u64(begin_ms) + topic)
    return seek_topic(cursor, topic + b"\0", pack_u64(end_ms)) is not None


def _check_totals(txn: Reader, tables: Tables, faults: list[str]) -> None:
    counted = sum_topics(txn, timers=tables.timers, waiting=tables.waiting)
    for topic, value in txn.cursor(db=tables.totals):
        noted, found = TOTAL_VALUE.unpack(value), counted.pop(topic, (0, 0))
        if noted != found:
            faults.append(f"total of {topic!r}: {_show(noted)} noted, {_show(found)} counted")
    for topic, found in counted.items():
        faults.append(f"total of {topic!r}: none noted, {_show(found)} counted")


def _show(total: tuple[int, int]) -> str:
    return f"{total[0]} messages of {total[1]} bytes"
