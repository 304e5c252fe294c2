"""A topic's queue: what is known of it in memory, and reading what it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from itertools import chain, islice
from typing import NamedTuple

import lmdb

from storage.environment import Tables
from storage.errors import DamagedError
from storage.keys import ENDS_VALUE, QUEUE_VALUE, pack_u64, queue_prefix, split_queue_key
from storage.read_ahead import ReadAhead, Rows
from storage.reader import Reader
from storage.shapes import is_end, is_queued_value

MAX_ROWS_FILTERED = 2_000
"""Rows one read looks at when a tag filter skips most of them (upstream's bound is 800: 16,000
bytes of 20-byte units)."""

MAX_RECORDS_JUDGED = 500
"""Messages one read shows to a filter that needs the whole of each."""

MAX_BYTES_JUDGED = 4 << 20
"""Bytes of them, some milliseconds of reading, after which a read ends; with a filter that is shown fewer messages, as
each takes it longer, as much less."""

MAX_ROWS_SEARCHED = 20_000
"""Rows behind its due time among which a fired message is looked for, some 5 ms."""


class Queue:
    """One queue's ends. Offsets count messages, from 0.

    `first` is the oldest offset still held, `next` the one that the next message gets, and
    `visible` the end of what is committed: consumers never see beyond it. `opened` is what it was when
    this process first saw the queue or last began to count anew, and `added_bytes` the size of what
    has been committed since; `next_bytes` counts what the open batch adds as well.
    """

    __slots__ = (
        "added_bytes",
        "first",
        "next",
        "next_bytes",
        "number",
        "opened",
        "prefix",
        "topic",
        "visible",
    )

    def __init__(self, topic: bytes, number: int, first: int, next_offset: int) -> None:
        self.topic = topic
        self.number = number
        self.prefix = queue_prefix(topic, number)
        self.first = first
        self.next = next_offset
        self.visible = next_offset
        self.opened = next_offset
        self.added_bytes = self.next_bytes = 0

    def count_anew(self) -> None:
        """From now on count what is added."""
        self.opened = self.visible
        self.next_bytes -= self.added_bytes
        self.added_bytes = 0


class StoredMessage(NamedTuple):
    """A message at its place in a queue."""

    record: bytes
    offset: int
    stored_ms: int
    sequence: int


_Row = tuple[bytes, int, int, int]
"""The sequence of a message, packed, its offset, size, and when it was stored, in epoch ms."""


class Page(NamedTuple):
    """What one read of a queue found; `next_offset` is where the next read goes on, past the rows
    that a filter skipped."""

    messages: list[StoredMessage]
    next_offset: int


def open_queue(txn: Reader, tables: Tables, topic: bytes, number: int) -> Queue:
    """Find a queue's ends on disk; a queue that was never written to begins and ends at 0. Where it holds messages,
    their rows tell, whatever became of that of `ends`.

    :raises DamagedError: when they cannot be told.
    """
    prefix = queue_prefix(topic, number)
    ends = txn.get(prefix, db=tables.ends)
    noted = ENDS_VALUE.unpack(ends) if ends is not None and is_end(prefix, ends) else None
    cursor = txn.cursor(db=tables.queues)
    if cursor.set_range(prefix) and cursor.key().startswith(prefix):
        first, last = cursor.key(), last_key_below(txn, tables, prefix + b"\xff" * 9) or b""
        if len(first) != len(last) or len(last) != len(prefix) + 8 or last[-8] >= 0x80:
            raise cannot_read_queue(topic, number, "a row of it has a wrong key")
        behind = int.from_bytes(last[-8:]) + 1
        return Queue(
            topic, number, int.from_bytes(first[-8:]), max(behind, noted[1] if noted else 0)
        )
    if ends is not None and noted is None:
        raise cannot_read_queue(topic, number, "nothing tells where it ends")
    return Queue(topic, number, *(noted or (0, 0)))


def cannot_read_queue(topic: bytes, number: int, reason: object) -> DamagedError:
    """What is said of a queue of which a row is damaged."""
    name = topic.decode(errors="backslashreplace")
    return DamagedError(
        f"queue {number} of topic {name} cannot be read ({reason}): see 'tidegate fsck'"
    )


def cannot_read_row(queue: Queue, offset: int) -> DamagedError:
    """What is said of a queue of which one row is missing or damaged."""
    return cannot_read_queue(queue.topic, queue.number, f"offset {offset} has no row that is whole")


def count_queues(txn: Reader, tables: Tables, topic: bytes) -> int:
    """One more than the highest number of a topic's queues that hold messages; 0 where none does."""
    last = last_key_below(txn, tables, topic + b"\1") or b""
    return split_queue_key(last)[1] + 1 if last[:-13] == topic and len(last) > 13 else 0


def last_key_below(txn: Reader, tables: Tables, bound: bytes) -> bytes | None:
    """The greatest key of the queues' table that is less than `bound`."""
    cursor = txn.cursor(db=tables.queues)
    found = cursor.prev() if cursor.set_range(bound) else cursor.last()
    return cursor.key() if found else None


def read_page(
    txn: Reader,
    tables: Tables,
    ahead: ReadAhead,
    queue: Queue,
    offset: int,
    limit: int,
    max_bytes: int,
    tag_hashes: AbstractSet[int] | None,
    matches: Callable[[bytes], bool] | None,
    most_judged: int,
    record_of: Callable[[bytes], bytes | None],
) -> Page:
    """Messages of a queue from an offset on, at most `limit` and `max_bytes`, but at least one
    however large it is.

    :param tag_hashes: where given, only messages whose tag has one of these hashes; the others are
        skipped by their row, without reading the message.
    :param matches: where given, only messages whose record it selects.
    :param most_judged: how many messages are shown to it, at most `MAX_RECORDS_JUDGED`; of `MAX_BYTES_JUDGED` it is
        shown the same share.
    :param record_of: see `Store.record`; a message without one is passed over.
    :raises DamagedError: when the row there cannot be read; what is before such a row is read.
    """
    offset = max(offset, queue.first)
    count = queue.visible - offset
    if tag_hashes is not None:
        count = min(count, MAX_ROWS_FILTERED)
    most_judged = min(most_judged, MAX_RECORDS_JUDGED)
    if matches is not None:
        count = min(count, most_judged)
    messages: list[StoredMessage] = []
    cursor = txn.cursor(db=tables.queues)
    if count <= 0 or not cursor.set_range(queue.prefix + pack_u64(offset)):
        return Page(messages, offset)
    rows = _whole_rows(islice(cursor, count), queue.prefix, offset)
    begin = offset
    taken = judged = 0
    while not messages or (len(messages) < limit and taken < max_bytes):
        chosen, next_offset = _choose(rows, offset, limit - len(messages), max_bytes, tag_hashes)
        if next_offset == offset:
            break
        offset = next_offset
        ahead.touch(txn, Rows(tables.messages, [number for number, _, _, _ in chosen]))
        for number, place, size, stored_ms in chosen:
            if messages and taken + size > max_bytes:
                return Page(messages, place)
            record = record_of(number)
            if record is not None and (matches is None or matches(record)):
                messages.append(StoredMessage(record, place, stored_ms, int.from_bytes(number)))
                taken += size
            if matches is not None:
                judged += size
                if judged >= MAX_BYTES_JUDGED * most_judged // MAX_RECORDS_JUDGED:
                    return Page(messages, place + 1)
    if offset == begin:
        raise cannot_read_row(queue, offset)
    return Page(messages, offset)


def _whole_rows(rows: Iterator[tuple[bytes, bytes]], prefix: bytes, offset: int) -> Iterator[bytes]:
    """The values of a queue's rows from an offset on, up to the first that is missing or cannot be read: those behind
    it have other offsets, or are of another queue."""
    for key, value in rows:
        if not is_queued_value(value) or key != prefix + pack_u64(offset):
            return
        yield value
        offset += 1


def _choose(
    rows: Iterator[bytes],
    offset: int,
    limit: int,
    max_bytes: int,
    tag_hashes: AbstractSet[int] | None,
) -> tuple[list[_Row], int]:
    """The next rows of a queue whose tags are wanted, about as many as have `max_bytes`; and the offset behind them.

    :param offset: that of the first of `rows`.
    """
    chosen: list[_Row] = []
    total = 0
    for value in rows:
        _, tag_hash, size, stored_ms = QUEUE_VALUE.unpack(value)
        if tag_hashes is None or tag_hash in tag_hashes:
            chosen.append((value[:8], offset, size, stored_ms))
            total += size
            if len(chosen) == limit or total >= max_bytes:
                return chosen, offset + 1
        offset += 1
    return chosen, offset


def offset_at(txn: Reader, tables: Tables, queue: Queue, stored_ms: int) -> int:
    """The first offset whose message was stored at `stored_ms` or later; the queue's end when there
    is none.

    Rows are in the order of their times, so this is a binary search. In place of a row that is missing or cannot be
    read, the next one behind it tells.
    """
    cursor = txn.cursor(db=tables.queues)
    low, high = queue.first, queue.visible
    while low < high:
        middle = (low + high) // 2
        told = _first_told(cursor, queue.prefix, middle)
        if told is not None and told[0] < high and told[1] < stored_ms:
            low = told[0] + 1
        else:
            high = middle
    return low


def _first_told(cursor: lmdb.Cursor, prefix: bytes, offset: int) -> tuple[int, int] | None:
    """The offset of the first row of a queue, from an offset on, that can be read, and when its message was stored."""
    alive = cursor.set_range(prefix + pack_u64(offset))
    while alive and cursor.key().startswith(prefix):
        key, value = cursor.key(), cursor.value()
        if len(key) == len(prefix) + 8 and is_queued_value(value):
            return int.from_bytes(key[-8:]), int.from_bytes(value[-8:])
        alive = cursor.next()
    return None


def row_at(txn: Reader, tables: Tables, queue: Queue, offset: int) -> tuple[int, int] | None:
    """Sequence and stored ms of one offset; None where nothing tells."""
    value = txn.get(queue.prefix + pack_u64(offset), db=tables.queues)
    if value is None or not is_queued_value(value):
        return None
    sequence, _, _, stored_ms = QUEUE_VALUE.unpack(value)
    return sequence, stored_ms


def rows_from(
    txn: Reader, tables: Tables, queue: Queue, offset: int, limit: int
) -> Iterator[tuple[int, int, int]]:
    """Sequence, tag hash and bytes of the messages from an offset on, at most `limit`, without reading them.

    :raises DamagedError: when the row there cannot be read; those before such a row are told.
    """
    count = min(limit, queue.visible - offset)
    cursor = txn.cursor(db=tables.queues)
    if count <= 0 or not cursor.set_range(queue.prefix + pack_u64(offset)):
        return
    rows = _whole_rows(islice(cursor, count), queue.prefix, offset)
    first = next(rows, None)
    if first is None:
        raise cannot_read_row(queue, offset)
    for value in chain((first,), rows):
        yield QUEUE_VALUE.unpack(value)[:3]


def find_sequence(
    txn: Reader, tables: Tables, queue: Queue, sequence: int, not_before_ms: int
) -> tuple[int, int] | None:
    """Offset and stored ms of a message known to have entered this queue at `not_before_ms` or
    later.

    A fired message has no row of its own that tells when: it stands in its queue just behind its
    due time. Where very many were due at once it can be further behind than is worth the time, and
    is not found.
    """
    offset = offset_at(txn, tables, queue, not_before_ms)
    cursor = txn.cursor(db=tables.queues)
    if not cursor.set_range(queue.prefix + pack_u64(offset)):
        return None
    count = max(0, min(queue.visible - offset, MAX_ROWS_SEARCHED))
    number = pack_u64(sequence)
    for value in islice(cursor.iternext(keys=False, values=True), count):
        if value[:8] == number and is_queued_value(value):
            # Where rows are missing, this is behind the offset that was counted, or in another queue.
            key = cursor.key()
            is_here = key[:-8] == queue.prefix
            return (int.from_bytes(key[-8:]), int.from_bytes(value[-8:])) if is_here else None
    return None
