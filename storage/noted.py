"""Messages as the indexes lead to them: by an id or a key to their sequences, and by a sequence to the record and what
`ids` says of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import lmdb

from storage.keys import IdRow, Terms, id_key, term, timer_key
from storage.read_ahead import Rows
from storage.reader import Reader
from storage.records import read_record
from storage.store import Store

READ_AT_ONCE = 64
"""Messages that are read together."""

MOST_KEPT = 1 << 16
"""Bytes of a record that is kept from when its terms are read until it is asked for; a larger one is read again."""


class Noted(NamedTuple):
    """A message that `ids` knows. `number` is its sequence, packed."""

    number: bytes
    record: bytes
    terms: Terms
    row: IdRow

    @property
    def sequence(self) -> int:
        """Its sequence, as a number."""
        return int.from_bytes(self.number)

    @property
    def id_key(self) -> bytes:
        """Key of its row in `ids`."""
        return id_key(term(self.terms.message_id), self.number)

    @property
    def timer_key(self) -> bytes:
        """Key that its timer has while it is pending."""
        return timer_key(
            self.row.due_ms, self.terms.topic, self.sequence, term(self.terms.message_id)
        )


def read_noted(store: Store, txn: Reader, numbers: Iterable[bytes]) -> Iterator[Noted]:
    """Those messages with these sequences, packed, that `ids` knows: not the half of a transaction. Where they and
    their timers are not in memory, they are read side by side."""
    tables, ahead = store.tables, store.environment.ahead
    numbers = iter(numbers)
    while some := list(islice(numbers, READ_AT_ONCE)):
        ahead.touch(txn, Rows(tables.messages, some))
        stored = []
        for number in some:
            record = read_record(txn, tables, number)
            if record is not None:
                terms = store.terms_of(record)
                # Of the larger ones no more than one is in memory at a time.
                stored.append((number, record if len(record) <= MOST_KEPT else b"", terms))
        keys = [id_key(term(terms.message_id), number) for number, _, terms in stored]
        ahead.touch(txn, Rows(tables.ids, keys))
        known = [
            Noted(*message, IdRow.unpack(value))
            for message, key in zip(stored, keys, strict=True)
            if (value := txn.get(key, db=tables.ids)) is not None
        ]
        timers = [one.timer_key for one in known if one.row.due_ms and not one.row.aborted_ms]
        ahead.touch(txn, Rows(tables.timers, timers))
        for one in known:
            if one.record:
                yield one
            elif (record := read_record(txn, tables, one.number)) is not None:
                yield one._replace(record=record)


def numbers_with_id(store: Store, txn: Reader, message_id: bytes) -> Iterator[bytes]:
    """The sequences, packed, of the messages with an id, the newest first."""
    return newest_first(txn, store.tables.ids, id_key(term(message_id), b""))


def newest_first(txn: Reader, table: lmdb._Database, prefix: bytes) -> Iterator[bytes]:
    """The sequences, packed, of an index's rows with a prefix, from the last to the first."""
    cursor = txn.cursor(db=table)
    alive = cursor.prev() if cursor.set_range(prefix + b"\xff" * 9) else cursor.last()
    while alive and cursor.key().startswith(prefix):
        # A key that holds a zero byte can stand among the rows of a shorter one.
        if len(cursor.key()) == len(prefix) + 8:
            yield cursor.key()[-8:]
        alive = cursor.prev()
