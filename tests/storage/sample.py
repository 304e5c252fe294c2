"""Sample messages for the storage tests: helpers to send, hold and find them, in one line each.

The store does not know the layout of a record. Here a record consists of the message's own columns, one after the
other, so that a test can read all of them back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from storage import (
    FoundPage,
    Step,
    Store,
    Terms,
    expire_messages,
    find_by_id,
    fire_due,
    remove_expired,
    scan_pending,
)

TOPIC = b"orders"
FOREVER_MS = 1 << 62


@dataclass(frozen=True)
class Sample:
    """A message that a test sends or schedules."""

    message_id: bytes
    topic: bytes = TOPIC
    queue: int = 0
    keys: tuple[bytes, ...] = ()
    tag_hash: int = 0
    body: bytes = b""

    def record(self, stored_ms: int) -> bytes:
        """Return the message's record."""
        columns = [
            self.topic.hex(),
            self.queue,
            stored_ms,
            self.message_id.hex(),
            [key.hex() for key in self.keys],
            self.tag_hash,
        ]
        return json.dumps(columns).encode() + b"\n" + self.body


def terms_of(record: bytes) -> Terms:
    """Read the terms out of a record."""
    topic, queue, stored_ms, message_id, keys, tag_hash = json.loads(record[: record.index(b"\n")])
    return Terms(
        bytes.fromhex(topic),
        queue,
        stored_ms,
        bytes.fromhex(message_id),
        [bytes.fromhex(key) for key in keys],
        tag_hash,
    )


def body_of(record: bytes) -> bytes:
    """Return the body in a record."""
    return record[record.index(b"\n") + 1 :]


def id_of(record: bytes) -> bytes:
    """Return the id in a record."""
    return terms_of(record).message_id


def send(store: Store, message: Sample, stored_ms: int = 1) -> int:
    """Put a message at the end of its queue. Return its offset. The test commits."""
    return store.append(
        store.queue(message.topic, message.queue),
        store.new_sequence(),
        message.record(stored_ms),
        message.tag_hash,
        message.message_id,
        message.keys,
        stored_ms,
    )


def hold(store: Store, message: Sample, due_ms: int, stored_ms: int = 1) -> int:
    """Hold a message until it is due. Return its sequence. The test commits."""
    sequence = store.new_sequence()
    store.schedule(
        due_ms,
        message.topic,
        message.queue,
        sequence,
        message.record(stored_ms),
        message.tag_hash,
        message.message_id,
        message.keys,
    )
    return sequence


def fire(store: Store, now_ms: int, limit: int = 1_000_000) -> int:
    """Fire all due messages, and commit. Return how many fired."""
    fired = fire_due(store, now_ms, now_ms, limit)
    store.commit()
    return fired.messages


def ids_in(store: Store, topic: bytes = TOPIC, queue: int = 0) -> list[bytes]:
    """Return the ids of the messages that consumers can read from a queue, in order."""
    place = store.queue(topic, queue)
    page = store.read(place, place.first, 1_000_000, 1 << 30)
    return [id_of(message.record) for message in page.messages]


def states(store: Store, message_id: bytes) -> list[str]:
    """Return the state of every message with an id, the newest first."""
    return [found.state.value for found in find_by_id(store, message_id)]


def pending_page(
    store: Store,
    *,
    topic: bytes | None = None,
    begin_ms: int = 0,
    end_ms: int = FOREVER_MS,
    tag_hash: int | None = None,
    cursor: bytes | None = None,
    limit: int = 1_000_000,
    readable: Callable[[bytes], bool] | None = None,
) -> FoundPage:
    """Return a page of the pending messages; by default, of all of them."""
    return scan_pending(
        store,
        topic=topic,
        begin_ms=begin_ms,
        end_ms=end_ms,
        tag_hash=tag_hash,
        cursor=cursor,
        limit=limit,
        readable=readable,
    )


def pending_ids(store: Store, *, topic: bytes | None = None) -> list[bytes]:
    """Return the ids of the pending messages, in the order in which they will fire."""
    return [id_of(found.record) for found in pending_page(store, topic=topic).found]


def numbered(count: int, prefix: bytes = b"m") -> list[bytes]:
    """Return `count` ids in ascending order."""
    return [b"%b%05d" % (prefix, number) for number in range(count)]


def hold_all(store: Store, ids: Iterable[bytes], due_ms: int, topic: bytes = TOPIC) -> list[int]:
    """Hold one message for each id, and commit. Return their sequences."""
    sequences = [hold(store, Sample(message_id, topic), due_ms) for message_id in ids]
    store.commit()
    return sequences


def clean_up(
    store: Store,
    before_ms: int,
    limit: int,
    is_deleted: Callable[[bytes], bool] = lambda _: False,
    own_before_ms: Callable[[bytes], int | None] = lambda _: None,
    begin: bytes = b"",
    begin_of: Callable[[bytes, int], int] = lambda _, __: 0,
) -> Step:
    """Let messages expire, as one step of `expire_messages` does, and remove all that have expired."""
    step = expire_messages(store, before_ms, limit, is_deleted, own_before_ms, begin, begin_of)
    behind: bytes | None = b""
    while behind is not None:
        behind = remove_expired(store, FOREVER_MS, limit, behind).behind
    return step
