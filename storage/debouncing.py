"""Debouncing: of a topic's messages with one key, the last one wins.

A message replaces the pending messages with its key in the same batch. `debounced` stores the last message that did so.
Nothing older with the key is pending, so the next message only has to look at those accepted since then.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from storage.aborting import abort_sequences
from storage.keys import debounce_key, key_prefix, pack_u64, term
from storage.noted import read_noted
from storage.paused import has_timer
from storage.reader import rows_with_prefix
from storage.store import Store, in_batch

MAX_LOOKED_AT = 2_000
"""Messages with a key that one debounce examines, some 50 ms. Only messages sent without debounce reach this number."""


@in_batch
def count_candidates(store: Store, topic: bytes, key: bytes) -> int:
    """Return how many messages with a key were accepted since its last debounce, that one included. `replace_pending`
    examines all of them if they are at most `MAX_LOOKED_AT`; if there are more, this is one more."""
    return len(_candidates(store, topic, term(key)))


@in_batch
def replace_pending(store: Store, topic: bytes, key: bytes, sequence: int, now_ms: int) -> int:
    """Abort all pending messages of a topic with a key, because another message replaces them.

    :param sequence: of the replacing message, which has the key.
    :returns: how many were aborted. If there are more candidates than it examines, only some are.
    """
    txn = store.batch_transaction()
    store.count_bytes(400)
    key = term(key)
    candidates = _candidates(store, topic, key)
    others = (other for other in candidates[:MAX_LOOKED_AT] if other != sequence)
    replaced = len(abort_sequences(store, others, now_ms))
    first = sequence
    if len(candidates) > MAX_LOOKED_AT:
        # A committed half message can be older than messages accepted before its commit.
        first = min(sequence, candidates[MAX_LOOKED_AT])
    txn.put(debounce_key(topic, key), pack_u64(first), db=store.tables.debounced)
    return replaced


@in_batch
def replaceable(store: Store, topic: bytes, key: bytes) -> dict[int, int]:
    """Return what `replace_pending` would abort now: the bytes of each message by its sequence."""
    txn = store.batch_transaction()
    found: dict[int, int] = {}
    candidates = _candidates(store, topic, term(key))[:MAX_LOOKED_AT]
    for noted in read_noted(store, txn, map(pack_u64, candidates)):
        timer = noted.timer_key
        if timer in store.inbox or has_timer(txn, store.tables, timer):
            found[noted.sequence] = len(noted.record)
    return found


def _candidates(store: Store, topic: bytes, key: bytes) -> list[int]:
    """Return the sequences of messages with a key, among which are all pending ones. At most one more is returned than
    one debounce examines."""
    txn = store.batch_transaction()
    before = txn.get(debounce_key(topic, key), db=store.tables.debounced)
    prefix = key_prefix(topic, key)
    rows = rows_with_prefix(txn, store.tables.keys, prefix, prefix + (before or b""))
    sequences = (int.from_bytes(row[-8:]) for row, _ in rows if len(row) == len(prefix) + 8)
    return list(islice(sequences, MAX_LOOKED_AT + 1))


@in_batch
def note_older(store: Store, topic: bytes, keys: Iterable[bytes], sequence: int) -> None:
    """Note that a message becomes pending whose sequence was handed out long ago, like the half message of a
    transaction."""
    txn = store.batch_transaction()
    number = pack_u64(sequence)
    for key in keys:
        name = debounce_key(topic, term(key))
        before = txn.get(name, db=store.tables.debounced)
        if before is not None and number < before:
            txn.put(name, number, db=store.tables.debounced)
