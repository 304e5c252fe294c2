"""Pauses the firing of a topic, and resumes it."""

from __future__ import annotations

from storage.errors import DamagedError
from storage.firing import Fired
from storage.keys import NEVER_MOVED, TIMER_VALUE, timer_key_of
from storage.paused import Pause
from storage.shapes import is_waiting
from storage.store import Store, in_batch


@in_batch
def pause_topic(store: Store, topic: bytes, now_ms: int) -> bool:
    """Let no message of a topic fire until `resume_topic`. Messages that become due wait, and are still pending.

    :returns: False when the topic was already paused; its pause goes on.
    """
    before = store.paused.get(topic)
    if before is not None and not before.resumed:
        return False
    store.batch_transaction()
    waiting = before.waiting if before is not None else 0
    store.paused.put(topic, Pause(now_ms, waiting, resumed=False))
    return True


@in_batch
def resume_topic(store: Store, topic: bytes) -> bool:
    """End a topic's pause. `fire_resumed` then fires the waiting messages step by step.

    :returns: False when the topic was not paused.
    """
    before = store.paused.get(topic)
    if before is None or before.resumed:
        return False
    store.batch_transaction()
    store.paused.put(topic, before._replace(resumed=True))
    return True


@in_batch
def fire_resumed(store: Store, now_ms: int, stored_ms: int, limit: int) -> Fired:
    """Move waiting messages of resumed topics into their queues, the earliest of each first, at most `limit`. The
    topics share a step. If there are more than `limit`, those with the fewest messages are first. Messages that cannot
    be fired are put aside, and those that are not due at `now_ms`, as the clock was set back, go back into `timers`.
    Call this after `fire_due`, which adds the messages that have become due.

    :param stored_ms: the time to note in the queues; never less than in an earlier call.
    """
    txn = store.batch_transaction()
    resumed = store.paused.resumed()
    share = max(1, limit // max(1, len(resumed)))
    count, more = 0, len(resumed) > limit
    for topic in resumed[:limit]:
        name = topic + b"\0"
        cursor = txn.cursor(db=store.tables.waiting)
        cursor.set_range(name)
        left = share
        while left and cursor.key().startswith(name):
            key, value = cursor.key(), cursor.value()
            if not is_waiting(key, value):
                # The row is left to a repair.
                cursor.next()
                continue
            left -= 1
            queue_number, tag_hash, size = TIMER_VALUE.unpack(value)
            txn.delete_at(cursor, db=store.tables.waiting)
            store.paused.count(topic, -1)
            store.held.count_waiting(topic, -1, size)
            timer = timer_key_of(key)
            if int.from_bytes(timer[:8]) > now_ms:
                store.put_back(txn, timer, value)
                store.count_bytes(400)
                continue
            try:
                queue = store.queue(topic, queue_number & ~NEVER_MOVED)
            except DamagedError:
                store.put_aside(txn, timer, value)
                continue
            number = key[len(name) + 8 : len(name) + 16]
            store.enqueue(queue, number, tag_hash, size, stored_ms)
            count += 1
        if cursor.key().startswith(name):
            more = True
        else:
            store.paused.remove(topic)
    return Fired(count, more)
