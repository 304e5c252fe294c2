"""Finds the latest time that a store has noted: the times that a new process notes must not be earlier."""

from __future__ import annotations

import struct

import lmdb

from storage.errors import cannot_read
from storage.keys import QUEUE_VALUE
from storage.records import read_terms, record_in
from storage.shapes import is_queued
from storage.store import Store


def newest_stored_ms(store: Store) -> int:
    """Return the latest time at which a message was accepted or entered its queue; 0 in an empty store.

    :raises DataFolderError: when a row cannot be read.
    """
    try:
        return _newest_stored_ms(store)
    except (lmdb.Error, struct.error) as error:
        raise cannot_read(store.environment.path, error) from error


def _newest_stored_ms(store: Store) -> int:
    txn = store.settled_reader()
    messages = txn.cursor(db=store.tables.messages)
    # Leave it to `find_faults` to report a record that cannot be read.
    last = (
        record_in(txn, store.tables, messages.key(), messages.value()) if messages.last() else None
    )
    terms = read_terms(store.terms_of, last)
    newest_ms = terms.stored_ms if terms is not None else 0
    cursor = txn.cursor(db=store.tables.queues)
    alive = cursor.last()
    while alive:
        if not is_queued(cursor.key(), cursor.value()):
            # The row needs a repair, and leads to no other queue.
            alive = cursor.prev()
            continue
        newest_ms = max(newest_ms, QUEUE_VALUE.unpack(cursor.value())[3])
        # From a queue's last row to the last row of the queue before it.
        alive = cursor.set_range(cursor.key()[:-8]) and cursor.prev()
    return newest_ms
