"""Checks the shape of rows. A row without its table's shape, as `keys` lists it, cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import lmdb

from storage.environment import Tables
from storage.keys import (
    ENDS_VALUE,
    EXPIRED_VALUE_SIZE,
    HALF_VALUE,
    ID_ROWS,
    MARK,
    MAX_KEY,
    MAX_TOPIC,
    NEXT_SEQUENCE,
    PART_KEY,
    PAUSE_VALUE,
    QUEUE_VALUE,
    RECURRENCE_VALUE,
    TIMER_VALUE,
    TOTAL_VALUE,
)

_LONG: Final = 8
"""Bytes of a sequence, a time or an offset."""

_LAST_SEQUENCE: Final = (1 << 63) - (1 << 32)
"""Clients read sequences and offsets as signed numbers. Those that follow must have room too."""

IsShaped = Callable[[bytes, bytes], bool]


class Misshapen(NamedTuple):
    """A row that cannot be read, and the name of its table."""

    table: str
    key: bytes
    value: bytes


def find_misshapen(txn: lmdb.Transaction, tables: Tables) -> Iterator[Misshapen]:
    """Return every row without the shape of its table. Values that callers define are not checked: settings,
    definitions, notes."""
    for name, is_shaped in _SHAPES.items():
        for key, value in txn.cursor(db=getattr(tables, name)):
            if not is_shaped(key, value):
                yield Misshapen(name, key, value)


def find_unordered(txn: lmdb.Transaction, tables: Tables) -> list[str]:
    """Return the names of the tables whose keys are not in order. A search there does not find all rows."""
    found = []
    for name, table in zip(tables._fields, tables, strict=True):
        before = b""
        for key in txn.cursor(db=table).iternext(values=False):
            if key <= before:
                found.append(name)
                break
            before = key
    return found


def is_name(name: bytes) -> bool:
    """Whether it can be a topic's name."""
    return 0 < len(name) <= MAX_TOPIC and b"\0" not in name and _is_text(name)


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_queue(key: bytes) -> bool:
    """topic | 0 | queue 4"""
    return key[-5:-4] == b"\0" and is_name(key[:-5])


def is_message(key: bytes, value: bytes) -> bool:
    """Whether a key and value can be a row of `messages`."""
    return len(key) == _LONG and 0 < int.from_bytes(key) <= _LAST_SEQUENCE


def is_part(key: bytes, value: bytes) -> bool:
    """Whether a key and value can be a row of `parts`."""
    return len(key) == PART_KEY.size and is_message(key[:_LONG], value) and bool(value)


def is_timer(key: bytes, value: bytes) -> bool:
    """Whether a key and value can be a row of `timers`."""
    topic, zero, rest = key[_LONG:].partition(b"\0")
    return is_name(topic) and len(zero + rest) > _LONG and len(value) == TIMER_VALUE.size


def is_waiting(key: bytes, value: bytes) -> bool:
    """Whether a key and value can be a row of `waiting`."""
    topic, zero, rest = key.partition(b"\0")
    return is_name(topic) and len(zero + rest) > 2 * _LONG and len(value) == TIMER_VALUE.size


def is_id(key: bytes, value: bytes) -> bool:
    """Whether a key and value can be a row of `ids`."""
    return key[-9:-8] == b"\0" and len(value) in ID_ROWS


def _is_key(key: bytes, value: bytes) -> bool:
    topic, zero, rest = key.partition(b"\0")
    return is_name(topic) and bool(zero) and rest[-9:-8] == b"\0" and not value


def is_queued(key: bytes, value: bytes) -> bool:
    """Whether a key and value can be a row of `queues`."""
    return is_offset(key[-_LONG:]) and _is_queue(key[:-_LONG]) and is_queued_value(value)


def is_offset(packed: bytes) -> bool:
    """Whether bytes can be an offset, which others can follow."""
    return len(packed) == _LONG and int.from_bytes(packed) <= _LAST_SEQUENCE


def is_queued_value(value: bytes) -> bool:
    """Whether a value can be that of a row of `queues`."""
    # Clients read a time as a signed number.
    return len(value) == QUEUE_VALUE.size and value[16] < 0x80


def is_end(key: bytes, value: bytes) -> bool:
    """Whether a key and value can be a row of `ends`."""
    if not _is_queue(key) or len(value) != ENDS_VALUE.size:
        return False
    first, next_offset = ENDS_VALUE.unpack(value)
    return bool(first <= next_offset <= _LAST_SEQUENCE)


def _is_count(key: bytes, value: bytes) -> bool:
    return key[-9:-8] == b"\0" and is_name(key[:-9]) and len(value) == _LONG


def _is_hour(key: bytes, value: bytes) -> bool:
    return is_name(key[_LONG:]) and len(value) == _LONG


def _is_total(key: bytes, value: bytes) -> bool:
    return is_name(key) and len(value) == TOTAL_VALUE.size


def is_pause(key: bytes, value: bytes) -> bool:
    """Whether a key and value can be a row of `paused`."""
    return is_name(key) and len(value) == PAUSE_VALUE.size and value[-1] <= 1


def _is_debounced(key: bytes, value: bytes) -> bool:
    topic, zero, _ = key.partition(b"\0")
    return is_name(topic) and bool(zero) and len(value) == _LONG


def is_moment(key: bytes, value: bytes) -> bool:
    """Whether a key and value can be a row of `aborted` or `checks`: time 8 | sequence 8"""
    return len(key) == 2 * _LONG and not value


def _is_expired(key: bytes, value: bytes) -> bool:
    """sequence 8 without its last byte"""
    return (
        len(key) == _LONG - 1 and key[0] < 0x80 and len(value) == EXPIRED_VALUE_SIZE and any(value)
    )


def _is_half(key: bytes, value: bytes) -> bool:
    return len(key) == _LONG and len(value) == HALF_VALUE.size


def is_pop(key: bytes, value: bytes) -> bool:
    """Whether a key and value can be a row of `pops`."""
    return is_progress(key[_LONG:-_LONG], value)


def is_progress(key: bytes, value: bytes) -> bool:
    """Whether a key and value can be a row of `offsets`: group | 0 | topic | 0 | queue 4"""
    names = key[:-5]
    is_place = key[-5:-4] == b"\0" and names.count(b"\0") == 1 and _is_text(names)
    return is_place and len(value) == _LONG and value[0] < 0x80


def _is_recurring(key: bytes, value: bytes) -> bool:
    topic, _, name = key.partition(b"\0")
    # Its key in `planned` has a time in front.
    has_room = len(key) <= MAX_KEY - _LONG
    return has_room and is_name(topic) and bool(name) and b"\0" not in name and _is_text(name)


def is_recurrence(key: bytes, value: bytes) -> bool:
    """Whether a key and value can be a row of `recurrences`."""
    if not _is_recurring(key, value) or len(value) != RECURRENCE_VALUE.size or value[-1] > 1:
        return False
    # A time or a number of occurrences to which nothing can be added would fail every batch.
    return value[0] < 0x80 and value[8] < 0x80


def is_planned(key: bytes, value: bytes) -> bool:
    """Whether a key and value can be a row of `planned`."""
    return key[:1] < b"\x80" and _is_recurring(key[_LONG:], value) and not value


def _has_name(key: bytes, value: bytes) -> bool:
    return is_name(key)


def is_meta(key: bytes, value: bytes) -> bool:
    """Whether a key and value can be a row of `meta`."""
    return key not in (MARK, NEXT_SEQUENCE) or (
        len(value) == _LONG and int.from_bytes(value) <= _LAST_SEQUENCE
    )


_SHAPES: Final[dict[str, IsShaped]] = {
    "messages": is_message,
    "parts": is_part,
    "timers": is_timer,
    "ids": is_id,
    "keys": _is_key,
    "queues": is_queued,
    "ends": is_end,
    "held": _is_count,
    "hours": _is_hour,
    "totals": _is_total,
    "paused": is_pause,
    "waiting": is_waiting,
    "debounced": _is_debounced,
    "aborted": is_moment,
    "expired": _is_expired,
    "halves": _is_half,
    "checks": is_moment,
    "pops": is_pop,
    "recurring": _is_recurring,
    "recurrences": is_recurrence,
    "planned": is_planned,
    "offsets": is_progress,
    "topics": _has_name,
    "groups": _has_name,
    "meta": is_meta,
}
"""The check for each table, by the table's name."""
