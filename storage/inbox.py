"""Timed messages that were accepted lately, held in memory in front of the table `timers`.

If delays are spread over hours, each message's timer is on a page of its own, and a checkpoint would write a page for
each of them. So a batch writes only the messages and their ids, which lie side by side, and the timers wait here. When
the inbox is full, the timers that have waited longest move into the table in the order of their due times, the latest
first, so that neighbours share a page. A timer that fires before it has to move is never written to the table.

A crash loses nothing of the inbox: `recover` rebuilds the same timers from the messages, starting at a mark. The mark
is in `meta`, and moves forward once all timers before it are in the table or done.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from heapq import heapify, heappop, heappush, nsmallest
from itertools import chain, islice

from storage.environment import Tables
from storage.expired import is_expired
from storage.keys import (
    IdRow,
    Terms,
    TermsOf,
    id_key,
    pack_u64,
    term,
    timer_key,
    timer_topic,
    timer_value,
)
from storage.ordered import OrderedKeys
from storage.parts import Touch, touch_records
from storage.paused import has_timer
from storage.read_ahead import Rows
from storage.reader import Reader
from storage.records import read_terms, record_in
from storage.sequences import first_in_memory
from storage.shapes import is_queued, is_queued_value
from storage.timers import earlier

INBOX_SIZE = 64_000
"""The most timers in the inbox, besides those of a batch and `MOVED_AT_ONCE`: some 20 MB. Recovering them at start
takes some 10 us each."""

MOVED_AT_ONCE = 250
"""Timers that move together, 1 to 2 ms of work; more when a batch accepts more. With fewer, each would cost more, as
fewer neighbours share a row of `held`."""

CHANGES_PER_TIMER = 2
"""After so many messages accepted and fired, per timer of the inbox's size, all timers held before have moved into the
table, even when there is room for them. `recover` reads that many messages, and as many again."""

MAX_ORDERED = 32
"""Topics whose timers are kept in order, for listings. One more topic drops the one that was added first."""

READ_AT_ONCE = 1_000
"""Messages that `recover` handles together, so that the rows it needs are read in parallel."""

_SPAN = 6
"""First bytes of the due time that the keys of one span, 65.5 s, share."""

_NARROW_SPAN = 7
"""First bytes that the keys of a narrow span, 256 ms, share."""

_MANY = 1_000
"""Keys above which a span is divided into narrow ones, in some 0.3 ms."""

_FEW = 1_000
"""Keys of a topic that have left the inbox and are dropped one by one, in 2 ms. If there are more, all of its keys are
gone through, some 10 ms where it has all of a full inbox. And the most topics that are rid of such keys together."""

_NO_SEQUENCE = b"\xff" * 8


class Generation:
    """Timers that are collected, and later moved, together. It has their keys, and some keys that have already left the
    inbox.

    Of keys that are not due soon only the span is known. A heap of all keys took 2 us for each that fires, as most of
    them are in none of the processor's caches. So only those of the first span are a heap, and those of the last one
    are sorted when they move.
    """

    def __init__(self) -> None:
        self.heaps: defaultdict[bytes, list[bytes]] = defaultdict(list)
        """For each topic a heap of its keys."""
        self._spans: dict[bytes, list[bytes]] = {}
        # Spans that were the first ones once. Their keys are heaps.
        self._opened: dict[bytes, list[bytes]] = {}
        self._divided: set[bytes] = set()
        # A heap of the names of both, with some that are no longer there.
        self._names: list[bytes] = []
        # The names of spans that are still to move, and the keys that move next, in order.
        self._order: list[bytes] = []
        self._back: deque[bytes] = deque()

    def put(self, topic: bytes, key: bytes) -> None:
        """Add a key. Not after `set_out`."""
        heappush(self.heaps[topic], key)
        name = key[:_SPAN]
        if name in self._divided:
            name = key[:_NARROW_SPAN]
        span = self._opened.get(name)
        if span is not None:
            heappush(span, key)
        else:
            span = self._span(name)
            span.append(key)
        if len(span) > _MANY and len(name) == _SPAN:
            self._divide(name)

    def _span(self, name: bytes) -> list[bytes]:
        span = self._spans.get(name)
        if span is None:
            span = self._spans[name] = []
            heappush(self._names, name)
        return span

    def _divide(self, name: bytes) -> None:
        self._divided.add(name)
        for key in self._opened.pop(name, None) or self._spans.pop(name):
            self._span(key[:_NARROW_SPAN]).append(key)

    def front(self, here: Container[bytes]) -> list[bytes]:
        """Return the first keys as a heap; its first one is still in the inbox. All others come behind them. Empty when
        there is none. The caller may remove the first ones, and nothing else."""
        while self._names or self._take_back():
            name = self._names[0]
            if name in self._spans:
                self._opened[name] = [key for key in self._spans.pop(name) if key in here]
                heapify(self._opened[name])
            heap = self._opened.get(name, [])
            while heap and heap[0] not in here:
                heappop(heap)
            if heap:
                return heap
            self._opened.pop(name, None)
            heappop(self._names)
        return []

    def _take_back(self) -> bool:
        """Make a span of the keys that were to move next, as there is no other. Return whether there were any."""
        if not self._back:
            return False
        name = self._back[0][:_SPAN]
        self._opened[name] = list(self._back)
        self._names.append(name)
        self._order.append(name)
        self._back.clear()
        return True

    def first_of(self, topic: bytes, here: Container[bytes]) -> bytes:
        """Return a topic's first key that is still in the inbox; empty when there is none. Keys before it are
        dropped."""
        heap = self.heaps.get(topic, [])
        dropped = 0
        while heap and heap[0] not in here:
            if dropped < _FEW:
                heappop(heap)
                dropped += 1
            else:
                heap[:] = [key for key in heap if key in here]
                heapify(heap)
        if heap:
            return heap[0]
        self.heaps.pop(topic, None)
        return b""

    def topics_before(self, bound: bytes, here: Container[bytes]) -> list[bytes]:
        """Return the topics with a key before `bound` that is still in the inbox. If many topics have keys there that
        are not, some of them are returned too, until a later call."""
        due: list[bytes] = []
        gone: list[bytes] = []
        for topic, heap in self.heaps.items():
            if heap[0] < bound:
                found = due if heap[0] in here else gone
                found.append(topic)
        due += (topic for topic in gone[:_FEW] if b"" < self.first_of(topic, here) < bound)
        return due + gone[_FEW:]

    def set_out(self) -> None:
        """Begin to move: no other key will be added."""
        self._order = sorted((*self._spans, *self._opened))

    def latest(self, count: int) -> list[bytes]:
        """Remove up to `count` of the latest keys, and return them in order; none when all have moved."""
        while self._order and len(self._back) < count:
            name = self._order.pop()
            span = self._spans.pop(name, None) or self._opened.pop(name, [])
            self._back.extendleft(sorted(span, reverse=True))
        latest = [self._back.pop() for _ in range(min(count, len(self._back)))]
        latest.reverse()
        return latest

    @property
    def has_moved(self) -> bool:
        """Whether no key is left."""
        return not (self._spans or self._opened or self._back)


class Inbox:
    """Timers by key, as in `timers`, including those of the open batch.

    :param size: see `INBOX_SIZE`.
    :param rows: what `recover` found.
    """

    def __init__(self, size: int, rows: Iterable[tuple[bytes, bytes]]) -> None:
        self._size = size
        self._changes = 0
        self._most_changes = size * CHANGES_PER_TIMER
        self._added: set[bytes] = set()
        self._taken: dict[bytes, bytes] = {}
        # Keys in order for topics that were listed lately; None stands for all topics.
        self._ordered: dict[bytes | None, OrderedKeys] = {}
        self._gather(rows)

    def _gather(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Begin with these timers, none of which moves yet."""
        self._rows: dict[bytes, bytes] = {}
        self._gathering = Generation()
        self._moving = Generation()
        self._lowest = _NO_SEQUENCE
        for key, value in rows:
            self._put(key, value)
        self._gathered = len(self._rows)
        # Keys that refused batches have left in the generations.
        self._left = 0

    def __len__(self) -> int:
        return len(self._rows)

    # -- changes, undone by `abandon`

    def add(self, key: bytes, value: bytes) -> None:
        """Add a timer."""
        self._put(key, value)
        self._added.add(key)

    def take(self, key: bytes) -> bytes | None:
        """Remove a timer. Return its value, or None when it is not here."""
        value = self._rows.pop(key, None)
        if value is not None:
            self._taken[key] = value
        return value

    def take_before(self, bound: bytes, most: int) -> list[tuple[bytes, bytes]]:
        """Remove the timers with keys before `bound`, at most `most` of them. Return them in the order of keys."""
        rows, taken = self._rows, self._taken
        found: list[tuple[bytes, bytes]] = []
        one, other = self._moving.front(rows), self._gathering.front(rows)
        while len(found) < most and (one or other):
            heap = one if one and (not other or one[0] < other[0]) else other
            if heap[0] >= bound:
                break
            key = heappop(heap)
            value = rows.pop(key, None)
            if value is not None:
                taken[key] = value
                found.append((key, value))
            if not heap:
                one, other = self._moving.front(rows), self._gathering.front(rows)
        return found

    def take_latest(self) -> list[tuple[bytes, bytes]]:
        """Remove the timers that must now move into the table: those of the moving generation for which there is no
        room. Return them in the order of keys."""
        if self._moving.has_moved:
            if self._moving.heaps:
                # They have only keys that are gone.
                self._moving = Generation()
            return []
        room = min(self._size, self._most_changes - self._changes)
        over = len(self._rows) - room
        count = over - over % min(MOVED_AT_ONCE, self._size or 1)
        if count <= 0:
            return []
        taken = ((key, self.take(key)) for key in self._moving.latest(count))
        return [(key, value) for key, value in taken if value is not None]

    def commit(self, changes: int) -> None:
        """Note that the batch is stored, and how many messages it accepted and fired."""
        self._gathered += len(self._added)
        self._changes += changes
        if self._ordered:
            self._keep_ordered()
        self._added.clear()
        self._taken.clear()

    def abandon(self) -> None:
        """Undo the changes of the batch."""
        for key, value in self._taken.items():
            self._put(key, value)
        for key in self._added:
            self._rows.pop(key, None)
        self._left += len(self._added) + len(self._taken)
        self._added.clear()
        self._taken.clear()
        if self._left > self._size:
            # The disk may be full for days, and each batch that is refused leaves more.
            self._gather(self._rows.items())

    # -- moving into the table

    @property
    def is_ripe(self) -> bool:
        """Whether the collected timers must begin to move."""
        if not self._moving.has_moved:
            return False
        gathered = self._gathered + len(self._added)
        return gathered >= self._size or self._changes >= self._most_changes

    def ripen(self) -> bytes | None:
        """Start moving all timers that are here now, the latest first.

        :returns: the lowest of their sequences, packed; None when there are no timers.
        """
        self._moving, self._gathering = self._gathering, Generation()
        self._moving.set_out()
        lowest, self._lowest = self._lowest, _NO_SEQUENCE
        self._gathered = self._changes = 0
        return lowest if self._rows else None

    # -- reading, with the changes of the batch

    def __contains__(self, key: bytes) -> bool:
        return key in self._rows

    def first(self) -> bytes:
        """Return the key of the earliest timer; empty when there is none."""
        fronts = (self._moving.front(self._rows), self._gathering.front(self._rows))
        return min((heap[0] for heap in fronts if heap), default=b"")

    def first_of(self, topic: bytes) -> bytes:
        """Return the key of the earliest timer of one topic; empty when there is none."""
        generations = (self._moving, self._gathering)
        return earlier(*(one.first_of(topic, self._rows) for one in generations))

    def topics_before(self, bound: bytes, behind: bytes, most: int) -> set[bytes]:
        """Return topics that have a timer here with a key before `bound`: the first ones by name behind a topic, at
        least `most` if there are so many. Some 5 ms where tens of thousands have one."""
        found: set[bytes] = set()
        for one in (self._moving, self._gathering):
            due = (topic for topic in one.topics_before(bound, self._rows) if topic > behind)
            found.update(nsmallest(most, due))
        return found

    # -- reading the state of the last commit

    def holds(self, key: bytes) -> bool:
        """Whether a timer is here."""
        return (key in self._rows or key in self._taken) and key not in self._added

    def rows(self) -> list[tuple[bytes, bytes]]:
        """Return all timers, in no order."""
        return [
            row
            for rows in (self._rows, self._taken)
            for row in rows.items()
            if row[0] not in self._added
        ]

    def keys(self, topic: bytes | None = None) -> list[bytes]:
        """Return the keys of all timers, or of those of one topic, in no order."""
        found: Iterable[bytes] = self._rows
        if topic is not None:
            heaps = (self._moving.heaps, self._gathering.heaps)
            # A key is twice in the heaps when a refused batch had taken it.
            found = {key for heap in heaps for key in heap.get(topic, ()) if key in self._rows}
        taken = (key for key in self._taken if topic in (None, timer_topic(key)))
        return [key for key in chain(found, taken) if key not in self._added]

    def between(
        self, start: bytes, end: bytes, topic: bytes | None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Return the timers from `start` on and before `end`, of one topic or of all, in the order of keys. Only the
        timers that the caller consumes are examined. Consume them before the next change."""
        rows, taken = self._rows, self._taken
        for key in self._in_order(topic).between(start, end):
            yield key, rows.get(key) or taken[key]

    def _in_order(self, topic: bytes | None) -> OrderedKeys:
        ordered = self._ordered.get(topic)
        if ordered is None:
            if len(self._ordered) == MAX_ORDERED:
                del self._ordered[next(iter(self._ordered))]
            ordered = self._ordered[topic] = OrderedKeys(self.keys(topic), self._is_here)
        return ordered

    def _is_here(self, key: bytes) -> bool:
        return key in self._rows or key in self._taken

    def _keep_ordered(self) -> None:
        """Add the batch's timers to the ordered keys. Drop ordered keys that grew too much without being read."""
        for key in self._added:
            for topic in (None, timer_topic(key)):
                ordered = self._ordered.get(topic)
                if ordered is not None:
                    ordered.add(key)
                    if len(ordered) > 4 * self._size:
                        del self._ordered[topic]

    def _put(self, key: bytes, value: bytes) -> None:
        self._rows[key] = value
        end = key.index(0, 8)
        self._gathering.put(key[8:end], key)
        number = key[end + 1 : end + 9]
        if number < self._lowest:
            self._lowest = number


def _leave(_txn: Reader, *_rows: Rows) -> bool:
    """Read nothing ahead."""
    return False


def recover(
    txn: Reader,
    tables: Tables,
    terms_of: TermsOf,
    touch: Touch = _leave,
    damaged: set[bytes] | None = None,
    read: ReadRecord | None = None,
) -> Iterator[tuple[bytes, bytes]]:
    """Return the timers, keys and values, that are not in `timers` and belong to messages that have not fired. A
    message is skipped if its record, or its row in `ids`, is missing or cannot be read; `find_faults` reports it.

    :param touch: see `ReadAhead.touch`.
    :param damaged: receives the packed sequences of skipped messages that are in no queue, and the mark's name if the
        mark cannot be right.
    :param read: reads records one by one, for where pages of them are wrong, of the messages that `ids` names. None
        reads all in their order.
    """
    damaged = set() if damaged is None else damaged
    messages = _unqueued_since_mark(txn, tables, terms_of, touch, damaged, read)
    while some := list(islice(messages, READ_AT_ONCE)):
        id_keys = [id_key(term(terms.message_id), number) for number, terms, _ in some]
        touch(txn, Rows(tables.ids, id_keys))
        timers: list[tuple[bytes, bytes]] = []
        for (number, terms, size), noted in zip(some, id_keys, strict=True):
            value = txn.get(noted, db=tables.ids)
            try:
                row = IdRow.unpack(value) if value is not None else None
            except ValueError:
                damaged.add(number)
                continue
            if row is None:
                if txn.get(number, db=tables.halves) is None:
                    damaged.add(number)
                continue
            if row.aborted_ms or not row.due_ms or is_expired(txn, tables, number, terms, row):
                continue
            key = timer_key(row.due_ms, terms.topic, int.from_bytes(number), term(terms.message_id))
            timers.append((key, timer_value(terms, row, size)))
        touch(txn, Rows(tables.timers, [key for key, _ in timers]))
        for key, timer in timers:
            if not has_timer(txn, tables, key):
                yield key, timer


ReadRecord = Callable[[bytes], bytes | None]
"""Reads the record of a packed sequence; None when it cannot be read."""

_Message = tuple[bytes, Terms, int]
"""A message's packed sequence, its terms, and the size of its record."""


def _unqueued_since_mark(
    txn: Reader,
    tables: Tables,
    terms_of: TermsOf,
    touch: Touch,
    damaged: set[bytes],
    read: ReadRecord | None,
) -> Iterator[_Message]:
    """Return the messages from the mark on that are in no queue."""
    mark = first_in_memory(txn, tables, damaged)
    since_ms = 1 << 64
    queued: set[bytes] = set()
    records: Iterator[tuple[bytes, bytes | None]]
    if read is None:
        records = _records_since(txn, tables, mark, touch, queued)
    else:
        # Those that cannot be read do not say when they were stored.
        since_ms = 0
        queued |= _queued_since(txn, tables, since_ms)
        named = _named_since(txn, tables, mark)
        records = ((number, read(number)) for number in named if number not in queued)
    messages = _with_terms(records, terms_of, damaged)
    while some := list(islice(messages, READ_AT_ONCE)):
        # A committed half message has the time of its commit, later than many messages behind it.
        earliest_ms = min(terms.stored_ms for _, terms, _ in some)
        if earliest_ms < since_ms:
            since_ms = earliest_ms
            # Messages that fired, or that were sent without a delay, since the first of these was stored.
            queued |= _queued_since(txn, tables, since_ms)
        yield from (message for message in some if message[0] not in queued)
    damaged -= queued


def _records_since(
    txn: Reader, tables: Tables, mark: bytes, touch: Touch, queued: Container[bytes]
) -> Iterator[tuple[bytes, bytes | None]]:
    """Return the packed sequences and records of the messages from the mark on, except those already known to be in a
    queue when the loop reaches them."""
    cursor = txn.cursor(db=tables.messages)
    if not (cursor.set_range(mark) if mark else cursor.first()):
        return
    untouched = b""
    for number, value in cursor:
        if number >= untouched:
            first = int.from_bytes(number)
            numbers = [pack_u64(first + place) for place in range(READ_AT_ONCE)]
            touch_records(touch, txn, tables, numbers, numbers)
            untouched = pack_u64(first + READ_AT_ONCE)
        if number not in queued:
            yield number, record_in(txn, tables, number, value)


def _named_since(txn: Reader, tables: Tables, mark: bytes) -> list[bytes]:
    """Return the packed sequences, in order, of the messages from the mark on that may be pending by `ids`."""
    named = []
    for name, value in txn.cursor(db=tables.ids):
        with suppress(ValueError):
            row = IdRow.unpack(value)
            if name[-8:] >= mark and row.due_ms and not row.aborted_ms:
                named.append(name[-8:])
    return sorted(named)


def _with_terms(
    records: Iterator[tuple[bytes, bytes | None]], terms_of: TermsOf, damaged: set[bytes]
) -> Iterator[_Message]:
    for number, record in records:
        terms = read_terms(terms_of, record)
        if record is None or terms is None:
            damaged.add(number)
            continue
        yield number, terms, len(record)


def _queued_since(txn: Reader, tables: Tables, since_ms: int) -> set[bytes]:
    """Return the packed sequences of all messages that entered a queue at `since_ms` or later."""
    since = pack_u64(since_ms)
    found: set[bytes] = set()
    cursor = txn.cursor(db=tables.queues)
    alive = cursor.last()
    while alive:
        if not is_queued(cursor.key(), cursor.value()):
            # The row needs a repair, and leads to no other queue. The message that it may name must not fire again.
            found.add(cursor.value()[:8])
            alive = cursor.prev()
            continue
        queue = cursor.key()[:-8]
        while (
            alive
            and cursor.key()[:-8] == queue
            and (cursor.value()[-8:] >= since or not is_queued_value(cursor.value()))
        ):
            found.add(cursor.value()[:8])
            alive = cursor.prev()
        if alive and cursor.key()[:-8] == queue:
            alive = cursor.set_range(queue + b"\0" * 8) and cursor.prev()
    return found
