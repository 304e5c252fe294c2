"""Looks up messages through the indexes: sequences by an id or a key, and the record and its row in `ids` by a
sequence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from itertools import islice
from typing import NamedTuple

import lmdb

from storage.expired import is_expired
from storage.keys import IdRow, Terms, id_key, pack_u64, term, timer_key, timer_value
from storage.parts import touch_records
from storage.read_ahead import Rows
from storage.reader import Reader
from storage.shapes import is_id
from storage.store import Store

READ_AT_ONCE = 64
"""Messages that are read together."""

BYTES_AT_ONCE = 1 << 20
"""Bytes of messages that are read together; if they are large, fewer are read together."""


class Noted(NamedTuple):
    """A message with a row in `ids`. `number` is its sequence, packed."""

    number: bytes
    record: bytes
    terms: Terms
    row: IdRow

    @property
    def sequence(self) -> int:
        """The sequence as a number."""
        return int.from_bytes(self.number)

    @property
    def id_key(self) -> bytes:
        """The key of the message's row in `ids`."""
        return id_key(term(self.terms.message_id), self.number)

    @property
    def timer_key(self) -> bytes:
        """The key of the message's timer while it is pending."""
        return timer_key(
            self.row.due_ms, self.terms.topic, self.sequence, term(self.terms.message_id)
        )

    @property
    def timer_value(self) -> bytes:
        """The value of that timer."""
        return timer_value(self.terms, self.row, len(self.record))


def read_noted(store: Store, txn: Reader, numbers: Iterable[bytes]) -> Iterator[Noted]:
    """Return the messages with these packed sequences that have a row in `ids` and have not expired. Half messages of
    transactions have no such row. A message whose row there cannot be read is left out, for a repair. Messages and
    timers that are not in memory are read in parallel."""
    numbers = iter(numbers)
    while some := list(islice(numbers, READ_AT_ONCE)):
        touch_records(store.environment.ahead.touch, txn, store.tables, some, some)
        left = iter(some)
        while messages := _read(store, left):
            yield from _known(store, txn, messages)


_Message = tuple[bytes, bytes, Terms]
"""A message's packed sequence, its record and its terms."""


def _read(store: Store, numbers: Iterator[bytes]) -> list[_Message]:
    """Return the next of these messages, until they have `BYTES_AT_ONCE` together."""
    messages: list[_Message] = []
    size = 0
    for number in numbers:
        if (found := store.record_with_terms(number)) is not None:
            messages.append((number, *found))
            size += len(found[0])
            if size >= BYTES_AT_ONCE:
                break
    return messages


def _known(store: Store, txn: Reader, messages: list[_Message]) -> list[Noted]:
    """Return the messages that have a row in `ids` and have not expired."""
    tables, ahead = store.tables, store.environment.ahead
    keys = [id_key(term(terms.message_id), number) for number, _, terms in messages]
    ahead.touch(txn, Rows(tables.ids, keys))
    known: list[Noted] = []
    for message, key in zip(messages, keys, strict=True):
        value = txn.get(key, db=tables.ids)
        if value is None:
            continue
        if is_id(key, value):
            row = IdRow.unpack(value)
            if not is_expired(txn, tables, message[0], message[2], row):
                known.append(Noted(*message, row))
        else:
            # Its state is unknown.
            store.damaged.add(message[0])
    timers = [one.timer_key for one in known if one.row.due_ms and not one.row.aborted_ms]
    ahead.touch(txn, Rows(tables.timers, timers))
    return known


def numbers_with_id(store: Store, txn: Reader, message_id: bytes) -> Iterator[bytes]:
    """Return the packed sequences of the messages with an id, the newest first."""
    return newest_first(txn, store.tables.ids, [id_key(term(message_id), b"")])


def newest_first(
    txn: Reader, table: lmdb._Database, prefixes: Iterable[bytes], before: bytes = b"\xff" * 9
) -> Iterator[bytes]:
    """Return the packed sequences of an index's rows with any of these prefixes, from the greatest to the least. One
    cursor serves all prefixes: there can be as many as there are topics.

    :param before: only sequences less than this.
    """
    cursor = txn.cursor(db=table)
    heads = [
        (-int.from_bytes(number), prefix)
        for prefix in prefixes
        if (number := _last(cursor, prefix, before))
    ]
    heapify(heads)
    while heads:
        newest, prefix = heads[0]
        number = pack_u64(-newest)
        yield number
        if following := _last(cursor, prefix, number):
            heapreplace(heads, (-int.from_bytes(following), prefix))
        else:
            heappop(heads)


def _last(cursor: lmdb.Cursor, prefix: bytes, before: bytes) -> bytes:
    """Return the greatest packed sequence, less than `before`, of the rows with a prefix; empty when there is none."""
    alive = cursor.prev() if cursor.set_range(prefix + before) else cursor.last()
    while alive and cursor.key().startswith(prefix):
        # A key that contains a zero byte can stand among the rows of a shorter one.
        if len(cursor.key()) == len(prefix) + 8:
            return cursor.key()[-8:]
        alive = cursor.prev()
    return b""
