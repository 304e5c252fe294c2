"""Messages that were popped and not acknowledged. Each comes back at its time, unless it is acknowledged before."""

from __future__ import annotations

from typing import NamedTuple

from storage.keys import MAX_POP_NAMES, SUSPENDED, U64, pack_u64, pop_key, split_pop_key
from storage.shapes import is_pop
from storage.store import Store, in_batch


class Pop(NamedTuple):
    """A popped message: when it comes back, in epoch ms, the group that has it, and its place."""

    back_ms: int
    group: bytes
    topic: bytes
    queue: int
    offset: int


class PopDue(NamedTuple):
    """A popped message that is due to come back, when it was popped, in epoch ms, and whether its consumer put it off
    without having tried it."""

    pop: Pop
    popped_ms: int
    suspended: bool


@in_batch
def put_pops(store: Store, pops: list[Pop], popped_ms: int, *, suspended: bool = False) -> None:
    """Note that messages were popped, or, if `suspended`, that their consumer put them off without having tried them.

    :raises ValueError: when a group and a topic together are too long to be stored.
    """
    txn = store.batch_transaction()
    value = pack_u64(popped_ms | SUSPENDED if suspended else popped_ms)
    for pop in pops:
        if len(pop.group) + len(pop.topic) > MAX_POP_NAMES:
            raise ValueError(f"group {pop.group!r} and topic {pop.topic!r} are too long")
        txn.put(pop_key(*pop), value, db=store.tables.pops)
        store.count_bytes(200)


@in_batch
def take_pop(store: Store, pop: Pop) -> bool:
    """Delete a popped message's row, because the message was acknowledged, or is to come back at another time.

    :returns: False when it has no row, or no longer.
    """
    store.count_bytes(200)
    return store.batch_transaction().delete(pop_key(*pop), db=store.tables.pops)


def due_pops(store: Store, now_ms: int, limit: int) -> list[PopDue]:
    """Return the messages that are due to come back, the earliest first, at most `limit`, with the changes of the
    batch. Rows that cannot be read are left to a repair."""
    bound = pack_u64(now_ms + 1)
    due: list[PopDue] = []
    for key, value in store.reader().cursor(db=store.tables.pops):
        if key >= bound or len(due) == limit:
            break
        if is_pop(key, value):
            (popped_ms,) = U64.unpack(value)
            suspended = bool(popped_ms & SUSPENDED)
            due.append(PopDue(Pop(*split_pop_key(key)), popped_ms & ~SUSPENDED, suspended))
        else:
            store.damaged.add(key)
    return due
