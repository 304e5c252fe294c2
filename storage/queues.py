"""A topic's queue: its ends, which are kept in memory, and reads of its messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from itertools import chain, count, islice
from typing import NamedTuple

import lmdb

from storage.environment import Tables
from storage.errors import DamagedError
from storage.keys import ENDS_VALUE, QUEUE_VALUE, pack_u64, queue_prefix, split_queue_key
from storage.parts import LARGE, touch_records
from storage.read_ahead import ReadAhead
from storage.reader import Reader
from storage.shapes import is_end, is_offset, is_queued_value

MAX_ROWS_FILTERED = 2_000
"""Rows that one read examines when a tag filter skips most of them (upstream's limit is 800: 16,000 bytes of 20-byte
units)."""

MAX_RECORDS_JUDGED = 500
"""Messages that one read passes to a filter that needs whole messages."""

MAX_BYTES_JUDGED = 4 << 20
"""Bytes of such messages, some milliseconds of reading, after which a read ends. A filter that gets fewer messages,
because it takes longer for each, also gets a proportional share of the bytes."""

MAX_ROWS_SEARCHED = 20_000
"""Rows behind its due time among which a fired message is searched, some 6 ms."""

MAX_ROWS_OF_SEARCH = 100_000
"""Rows that one look-up of many messages examines for their places, some 30 ms."""

ROWS_AT_ONCE = 32
"""Rows of a block, which a search examines together."""


class Queue:
    """The ends of one queue. Offsets count messages, from 0.

    `first` is the oldest offset still held, `next` the offset of the next message, and `visible` the end of what is
    committed: consumers never see beyond it. `opened` is the value of `visible` when this process opened the queue or
    last called `count_anew`. `added_bytes` is the size of the messages committed since then; `next_bytes` also counts
    those of the open batch.
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
        """Restart the count of what is added."""
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
"""A message's packed sequence, its offset, its size, and when it was stored, in epoch ms."""


class Page(NamedTuple):
    """The result of one read of a queue. The next read continues at `next_offset`, behind the rows that a filter
    skipped."""

    messages: list[StoredMessage]
    next_offset: int


def open_queue(txn: Reader, tables: Tables, topic: bytes, number: int) -> Queue:
    """Read a queue's ends from disk; a queue that was never written to begins and ends at 0. Where it holds messages,
    their rows decide, even if its row in `ends` is damaged.

    :raises DamagedError: when they cannot be determined.
    """
    prefix = queue_prefix(topic, number)
    ends = txn.get(prefix, db=tables.ends)
    noted = ENDS_VALUE.unpack(ends) if ends is not None and is_end(prefix, ends) else None
    cursor = txn.cursor(db=tables.queues)
    if cursor.set_range(prefix) and cursor.key().startswith(prefix):
        first, last = cursor.key(), last_key_below(txn, tables, prefix + b"\xff" * 9) or b""
        if len(first) != len(last) or len(last) != len(prefix) + 8 or not is_offset(last[-8:]):
            raise cannot_read_queue(topic, number, "a row of it has a wrong key")
        behind = int.from_bytes(last[-8:]) + 1
        return Queue(
            topic, number, int.from_bytes(first[-8:]), max(behind, noted[1] if noted else 0)
        )
    if ends is not None and noted is None:
        raise cannot_read_queue(topic, number, "the row with its end is damaged")
    return Queue(topic, number, *(noted or (0, 0)))


def cannot_read_queue(topic: bytes, number: int, reason: object) -> DamagedError:
    """Return the error for a queue with a damaged row."""
    name = topic.decode(errors="backslashreplace")
    return DamagedError(
        f"queue {number} of topic {name} cannot be read ({reason}): see 'tidegate fsck'"
    )


def cannot_read_row(queue: Queue, offset: int) -> DamagedError:
    """Return the error for a queue with one row that is missing or damaged."""
    return cannot_read_queue(queue.topic, queue.number, f"offset {offset} has no row that is whole")


def count_queues(txn: Reader, tables: Tables, topic: bytes) -> int:
    """Return one more than the highest number of a topic's queues that hold messages; 0 when none does."""
    last = last_key_below(txn, tables, topic + b"\1") or b""
    return split_queue_key(last)[1] + 1 if last[:-13] == topic and len(last) > 13 else 0


def last_key_below(txn: Reader, tables: Tables, bound: bytes) -> bytes | None:
    """Return the greatest key in table `queues` that is less than `bound`."""
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
    """Read messages of a queue from an offset on, at most `limit` and `max_bytes`, but at least one, however large.

    :param tag_hashes: when given, only messages whose tag has one of these hashes. The others are skipped by their row,
        without reading the message.
    :param matches: when given, only messages whose record it accepts.
    :param most_judged: how many messages `matches` gets, at most `MAX_RECORDS_JUDGED`. It gets the same share of
        `MAX_BYTES_JUDGED`.
    :param record_of: see `Store.record`; a message without a record is skipped.
    :raises DamagedError: when the first row cannot be read. The messages before such a row are returned.
    """
    offset = max(offset, queue.first)
    count = queue.visible - offset
    if tag_hashes is not None:
        count = min(count, MAX_ROWS_FILTERED)
    most_judged = min(most_judged, MAX_RECORDS_JUDGED)
    if matches is not None:
        count = min(count, most_judged)
    messages: list[StoredMessage] = []
    if count <= 0:
        return Page(messages, offset)
    cursor = txn.cursor(db=tables.queues)
    if not cursor.set_range(queue.prefix + pack_u64(offset)):
        raise cannot_read_row(queue, offset)
    rows = _whole_rows(islice(cursor, count), queue.prefix, offset)
    begin = offset
    taken = judged = 0
    while not messages or (len(messages) < limit and taken < max_bytes):
        chosen, next_offset = _choose(rows, offset, limit - len(messages), max_bytes, tag_hashes)
        if next_offset == offset:
            break
        offset = next_offset
        numbers = [number for number, _, _, _ in chosen]
        large = [number for number, _, size, _ in chosen if size > LARGE]
        touch_records(ahead.touch, txn, tables, numbers, large)
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
    """Return the values of a queue's rows from an offset on, up to the first that is missing or cannot be read. The
    rows behind it have other offsets, or belong to another queue."""
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
    """Return the next rows of a queue whose tags are wanted, about as many as have `max_bytes`, and the offset behind
    them.

    :param offset: the offset of the first of `rows`.
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
    """Return the first offset whose message was stored at `stored_ms` or later, or the queue's end when there is none.

    Rows are ordered by time, so this is a binary search. Where a row is missing or cannot be read, the next readable
    row stands in for it.
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
    """Return the offset and stored time of a queue's first readable row from an offset on."""
    alive = cursor.set_range(prefix + pack_u64(offset))
    while alive and cursor.key().startswith(prefix):
        key, value = cursor.key(), cursor.value()
        if len(key) == len(prefix) + 8 and is_queued_value(value):
            return int.from_bytes(key[-8:]), int.from_bytes(value[-8:])
        alive = cursor.next()
    return None


def row_at(txn: Reader, tables: Tables, queue: Queue, offset: int) -> tuple[int, int] | None:
    """Return the sequence and stored ms of one offset; None when its row is missing or cannot be read."""
    value = txn.get(queue.prefix + pack_u64(offset), db=tables.queues)
    if value is None or not is_queued_value(value):
        return None
    sequence, _, _, stored_ms = QUEUE_VALUE.unpack(value)
    return sequence, stored_ms


def rows_from(
    txn: Reader, tables: Tables, queue: Queue, offset: int, limit: int
) -> Iterator[tuple[int, int, int]]:
    """Return sequence, tag hash and size of the messages from an offset on, at most `limit`, without reading the
    messages.

    :raises DamagedError: when the first row cannot be read. The rows before such a row are returned.
    """
    count = min(limit, queue.visible - offset)
    if count <= 0:
        return
    cursor = txn.cursor(db=tables.queues)
    if not cursor.set_range(queue.prefix + pack_u64(offset)):
        raise cannot_read_row(queue, offset)
    rows = _whole_rows(islice(cursor, count), queue.prefix, offset)
    first = next(rows, None)
    if first is None:
        raise cannot_read_row(queue, offset)
    for value in chain((first,), rows):
        yield QUEUE_VALUE.unpack(value)[:3]


class PlaceSearch:
    """Finds the places of messages in their queues, for one look-up.

    No row gives the offset of a fired message: it is in its queue just behind its due time, or where firing went on
    after a pause. Where very many messages entered a queue at once, it can be too far behind to search for, and is not
    found. Rows are examined in blocks, each block once for all messages of the look-up.
    """

    def __init__(self, txn: Reader, tables: Tables) -> None:
        self._txn = txn
        self._tables = tables
        # The offsets of the examined rows, by packed sequence.
        self._offsets: dict[bytes, int] = {}
        self._examined: set[bytes] = set()
        self._rows_left = MAX_ROWS_OF_SEARCH

    def find(self, queue: Queue, sequence: int, not_before_ms: int) -> tuple[int, int] | None:
        """Return offset and stored ms of a message known to have entered this queue at `not_before_ms` or later."""
        number = pack_u64(sequence)
        if number not in self._offsets:
            self._search(queue, number, not_before_ms)
        offset = self._offsets.get(number)
        row = row_at(self._txn, self._tables, queue, offset) if offset is not None else None
        # Where a row is missing, no place behind it is right: the row there is of another message.
        if offset is None or row is None or row[0] != sequence:
            return None
        return offset, row[1]

    def _search(self, queue: Queue, number: bytes, not_before_ms: int) -> None:
        """Examine blocks of rows until one has a packed sequence."""
        begin = offset_at(self._txn, self._tables, queue, not_before_ms)
        end = min(queue.visible, begin + MAX_ROWS_SEARCHED)
        cursor = self._txn.cursor(db=self._tables.queues)
        for block in range(begin - begin % ROWS_AT_ONCE, end, ROWS_AT_ONCE):
            first = max(block, queue.first)
            key = queue.prefix + pack_u64(first)
            if key in self._examined or not cursor.set_range(key):
                continue
            self._examined.add(key)
            most = min(block + ROWS_AT_ONCE, queue.visible) - first
            rows = islice(cursor.iternext(keys=False), min(most, self._rows_left))
            numbers = [value[:8] for value in rows]
            self._rows_left -= len(numbers)
            self._offsets.update(zip(numbers, count(first), strict=False))
            if number in self._offsets or not self._rows_left:
                return
