"""Moves due messages into their queues."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from heapq import nsmallest
from typing import NamedTuple

import lmdb

from storage.errors import DamagedError
from storage.keys import HELD_SPAN_MS, NEVER_MOVED, TIMER_VALUE, U64, held_key, pack_u64
from storage.logged import LoggedTransaction
from storage.reader import Reader
from storage.store import Store, in_batch
from storage.timers import earlier, seek_topic

TOPICS_AT_ONCE = 100
"""The most topics, besides those at the front, whose messages one step fires."""

MOST_AT_ONCE = 500
"""The most messages of these topics that one step fires."""

LEAPS = 2_000
"""Leaps from one topic with timed messages to the next, some 3 ms, after which a step stops looking."""

LEAPS_OVER_OTHERS = 10_000
"""Leaps over other topics' timers, some 5 ms, after which a step stops looking for those of its topics. The next one
goes on from there."""


class Fired(NamedTuple):
    """The result of one step: how many messages it fired, and whether more are due."""

    messages: int
    more: bool


@in_batch
def fire_due(store: Store, now_ms: int, stored_ms: int, limit: int) -> Fired:
    """Move messages that are due at `now_ms` into their queues, the earliest first, at most `limit`. Messages that
    cannot be fired are put aside: see `Store.put_aside`.

    :param stored_ms: the time to note in the queues; never less than in an earlier call.
    """
    txn = store.batch_transaction()
    bound = pack_u64(now_ms + 1)
    cursor = txn.cursor(db=store.tables.timers)
    store.first_timer(cursor)
    fired = 0
    for key, value, at in _due(store, cursor, bound, limit):
        messages = _fire(store, txn, key, value, stored_ms, at)
        if messages is None:
            store.fronts.of_all = key + b"\0"
        fired += messages or 0
    key = earlier(cursor.key(), store.inbox.first())
    if b"" < key < bound:
        return Fired(fired, more=True)
    store.fronts.forget_topics()
    return Fired(fired, more=False)


def _due(
    store: Store, cursor: lmdb.Cursor, bound: bytes, limit: int
) -> Iterator[tuple[bytes, bytes, lmdb.Cursor | None]]:
    """Return the timers before `bound`, keys and values, at most `limit`, for `_fire` to take before it asks for the
    next one. Those of the inbox are no longer there. Those in `timers` come with the cursor, which is at them.

    :param cursor: in `timers`, at the first timer there that is to fire.
    """
    while limit:
        reached = min(cursor.key() or bound, bound)
        lately = store.inbox.take_before(reached, limit)
        for key, value in lately:
            yield key, value, None
        limit -= len(lately)
        if not limit or reached == bound:
            return
        yield reached, cursor.value(), cursor
        limit -= 1


class CrowdedOut(NamedTuple):
    """The result of one step for the topics that are not at the front: how many messages it fired, and the topic behind
    which the next step continues. An empty topic stands for the beginning."""

    messages: int
    behind: bytes


@in_batch
def fire_crowded_out(
    store: Store, now_ms: int, stored_ms: int, limit: int, behind: bytes = b""
) -> CrowdedOut:
    """Fire messages of the topics that are not at the front, at most `limit` of each. Call this while more messages are
    due than one step can fire, so that no topic waits for another topic's backlog. If there are many such topics, a
    step takes only some of them, and fewer messages of each.

    :param behind: where the previous step ended.
    """
    txn = store.batch_transaction()
    cursor = txn.cursor(db=store.tables.timers)
    earliest = store.first_timer(cursor)
    bound = pack_u64(now_ms + 1)
    topics, behind = _topics_due(store, txn, earliest, bound, behind)
    share = min(limit, MOST_AT_ONCE // max(1, len(topics)))
    count = 0
    for topic, begin in topics:
        name = topic + b"\0"
        if earliest.startswith(name, 8) or topic in store.paused:
            continue
        cursor.set_range(max(earliest, begin, store.fronts.of(topic)))
        leaps = LEAPS_OVER_OTHERS // len(topics)
        for _ in range(share):
            leapt = seek_topic(cursor, name, bound, leaps)
            leaps -= leaps if leapt is None else leapt
            reached = min(cursor.key() or bound, bound)
            # What is in the inbox must not overtake what the search has not reached yet.
            key = store.inbox.first_of(topic)
            if key and key < reached:
                value = store.inbox.take(key)
                assert value is not None
                count += _fire(store, txn, key, value, stored_ms) or 0
            elif leapt is None:
                break
            else:
                count += _fire(store, txn, reached, cursor.value(), stored_ms, cursor) or 0
        store.fronts.advance(topic, min(cursor.key() or bound, bound))
    return CrowdedOut(count, behind)


def _topics_due(
    store: Store, txn: Reader, earliest: bytes, bound: bytes, behind: bytes
) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return the next topics that may have due messages, in the order of their names, each with a key before which
    `timers` has none of them; and the topic to continue behind. An empty topic stands for the beginning.

    :param earliest: the first key of all that are to fire.
    :param bound: a key behind all that are due.
    """
    first_span = int.from_bytes(earliest[:8]) // HELD_SPAN_MS
    bound_ms = int.from_bytes(bound)
    found: dict[bytes, bytes] = {}
    held = txn.cursor(db=store.tables.held)
    alive = held.set_range(behind + b"\0" + b"\xff" * 9) if behind else held.first()
    leaps = 0
    reached = behind
    while alive and len(found) < TOPICS_AT_ONCE and leaps < LEAPS:
        reached = held.key()[:-9]
        # Its messages before the earliest of all cannot be fired.
        if held.set_range(held_key(reached, first_span)) and held.key()[:-9] == reached:
            begin_ms = int.from_bytes(held.key()[-8:]) * HELD_SPAN_MS
            if begin_ms < bound_ms:
                found[reached] = pack_u64(begin_ms) + reached
        leaps += 1
        alive = held.set_range(reached + b"\0" + b"\xff" * 9)
    entered = {topic: key for topic, key in store.fronts.entered.items() if key < bound}
    lately = store.inbox.topics_before(bound, behind, TOPICS_AT_ONCE)
    lately.update(topic for topic in entered if topic > behind)
    for topic in lately:
        if not (alive and topic > reached):
            found[topic] = min(entered.get(topic, bound), found.get(topic, bound))
    topics = nsmallest(TOPICS_AT_ONCE, found.items())
    if len(topics) < TOPICS_AT_ONCE:
        return topics, reached if alive else b""
    return topics, topics[-1][0]


def _fire(
    store: Store,
    txn: LoggedTransaction,
    key: bytes,
    value: bytes,
    stored_ms: int,
    cursor: lmdb.Cursor | None = None,
) -> int | None:
    """Move a message into its queue or, while its topic is paused, into `waiting`.

    :param key: of its timer, like the value. The inbox no longer has it.
    :param cursor: in `timers`, at this timer if it is there. It moves on to the next one.
    :returns: how many messages fired; None when this one cannot be fired and was put aside.
    """
    try:
        end = key.index(0, 8)
        topic, number = key[8:end], key[end + 1 : end + 9]
        if not topic or len(number) < U64.size:
            raise ValueError(f"{key!r} is no timer's key")
        queue_number, tag_hash, size = TIMER_VALUE.unpack(value)
        queue = store.queue(topic, queue_number & ~NEVER_MOVED)
    except (DamagedError, struct.error, ValueError):
        store.put_aside(txn, key, value)
        if cursor is not None:
            cursor.next()
        return None
    if cursor is not None:
        txn.delete_at(cursor, db=store.tables.timers)
        store.held.count_timer(topic, int.from_bytes(key[:8]), -1, size)
    if topic in store.paused:
        store.paused.put_aside(txn, topic, key, value)
        store.held.count_waiting(topic, 1, size)
        store.count_bytes(200)
        return 0
    store.enqueue(queue, number, tag_hash, size, stored_ms)
    return 1
