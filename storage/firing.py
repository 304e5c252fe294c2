"""Moving messages that are due into their queues."""

from __future__ import annotations

from typing import NamedTuple

import lmdb

from storage.keys import HELD_SPAN_MS, TIMER_VALUE, pack_u64
from storage.logged import LoggedTransaction
from storage.reader import Reader
from storage.store import Store, in_batch
from storage.timers import earlier, seek_topic


class Fired(NamedTuple):
    """What one step of firing did: how many messages left, and whether more are due."""

    messages: int
    more: bool


@in_batch
def fire_due(store: Store, now_ms: int, stored_ms: int, limit: int) -> Fired:
    """Move messages that are due at `now_ms` into their queues, the earliest first, at most
    `limit` of them.

    :param stored_ms: the time to note in the queues; never less than the one before it.
    """
    txn = store.batch_transaction()
    bound = pack_u64(now_ms + 1)
    cursor = txn.cursor(db=store.tables.timers)
    cursor.first()
    fired = 0
    for count in range(limit + 1):
        key = earlier(cursor.key(), store.inbox.first())
        if not key or key >= bound:
            return Fired(fired, more=False)
        if count < limit:
            fired += _fire(store, txn, cursor, key, stored_ms)
    return Fired(fired, more=True)


@in_batch
def fire_crowded_out(store: Store, now_ms: int, stored_ms: int, limit: int) -> int:
    """While more is due than one step can fire: move messages of the topics that are not at
    the front, at most `limit` of each, so that no topic waits behind another's storm.

    :returns: how many messages left.
    """
    txn = store.batch_transaction()
    cursor = txn.cursor(db=store.tables.timers)
    cursor.first()
    earliest = earlier(cursor.key(), store.inbox.first())
    bound = pack_u64(now_ms + 1)
    count = 0
    for topic in _topics_due(store, txn, now_ms):
        name = topic + b"\0"
        if earliest.startswith(name, 8) or topic in store.paused:
            continue
        cursor.set_range(earliest)
        for _ in range(limit):
            in_table = cursor.key() if seek_topic(cursor, name, bound) else b""
            key = earlier(in_table, store.inbox.first_of(topic))
            if not key or key >= bound:
                break
            count += _fire(store, txn, cursor, key, stored_ms)
    return count


def _topics_due(store: Store, txn: Reader, now_ms: int) -> set[bytes]:
    """The topics that may have something due."""
    topics = set(store.inbox.topics())
    held = txn.cursor(db=store.tables.held)
    alive = held.first()
    while alive:
        key = held.key()
        if int.from_bytes(key[-8:]) * HELD_SPAN_MS <= now_ms:
            topics.add(key[:-9])
        alive = held.set_range(key[:-8] + b"\xff" * 9)
    return topics


def _fire(
    store: Store, txn: LoggedTransaction, cursor: lmdb.Cursor, key: bytes, stored_ms: int
) -> int:
    """Move a message into its queue; or, while its topic is paused, to those that wait.

    :param cursor: in `timers`. Where it stands on this key, it goes on to the next; else the
        key is in the inbox.
    :returns: how many messages fired.
    """
    end = key.index(0, 8)
    topic = key[8:end]
    if cursor.key() == key:
        value = cursor.value()
        txn.delete_at(cursor, db=store.tables.timers)
        store.held.count_timer(topic, int.from_bytes(key[:8]), -1, TIMER_VALUE.unpack(value)[2])
    else:
        taken = store.inbox.take(key)
        assert taken is not None
        value = taken
    if topic in store.paused:
        store.paused.put_aside(txn, topic, key, value)
        store.held.count_waiting(topic, 1, TIMER_VALUE.unpack(value)[2])
        store.count_bytes(200)
        return 0
    store.enqueue(topic, key[end + 1 : end + 9], value, stored_ms)
    return 1
