"""Takes a message in: its delay, its properties, its record, and into the store's batch."""

from __future__ import annotations

from typing import NamedTuple

from gateway.clock import Clock
from gateway.committer import Committer
from gateway.config import Config
from gateway.delays import DelayRules, asks_for_delay, delay_of
from gateway.router import RequestError
from gateway.topics import Topic
from gateway.wire import properties as names
from gateway.wire.codes import ResponseCode
from gateway.wire.messages import (
    MAX_PROPERTIES,
    decode_message,
    encode_message,
    java_hash,
    uniq_key,
)
from gateway.wire.properties import find, parse, remove
from storage import Store, Terms

REGION = "DefaultRegion"
"""Upstream's default for the region of a broker; clients put it into their traces."""


class NewMessage(NamedTuple):
    """A message as it comes in. `properties` is their string; `born_host` has 8 bytes."""

    queue_id: int
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    reconsume_times: int
    body: bytes
    properties: str


class Accepted(NamedTuple):
    """A message in the store's batch. `offset` is -1 and `due_ms` is set where it waits for its time."""

    sequence: int
    message_id: str
    offset: int
    due_ms: int | None


class _Prepared(NamedTuple):
    """A message that will be stored: its final properties, as text and as bytes, and when it is due."""

    topic: Topic
    message: NewMessage
    message_id: str
    properties: str
    encoded: bytes
    due_ms: int | None


class Intake:
    """Puts messages into the store's batch.

    :param store_host: the advertised address as records have it, 8 bytes: clients look messages up there.
    """

    def __init__(
        self, store: Store, clock: Clock, committer: Committer, config: Config, store_host: bytes
    ) -> None:
        self._store = store
        self._clock = clock
        self._committer = committer
        self._store_host = store_host
        self._rules = DelayRules(config.delay_level_ms, config.max_delay_ms)
        self._max_body = config.max_message_size
        self._added = (
            f"{names.MSG_REGION}\x01{REGION}\x02{names.TRACE_ON}\x01true\x02"
            f"{names.CLUSTER}\x01{config.cluster_name}\x02"
        )

    def accept(self, topic: Topic, message: NewMessage) -> Accepted:
        """Take in a single message, now or for later as its properties ask.

        :raises RequestError: when its delay, its body or its properties cannot be accepted.
        """
        return self._store_message(self._prepare(topic, message, self._added))

    def accept_batch(self, topic: Topic, messages: list[NewMessage]) -> list[Accepted]:
        """Take in all items of a batch, or none. They are not given the properties that single messages are given.

        Upstream delivers an item that asks for a delay at once; here it waits.

        :raises RequestError: when one of them cannot be accepted.
        """
        prepared = [self._prepare(topic, message, "") for message in messages]
        return [self._store_message(one) for one in prepared]

    def _prepare(self, topic: Topic, message: NewMessage, added: str) -> _Prepared:
        """All that can be refused, before anything is stored."""
        properties = message.properties
        if properties and properties[-1] != "\x02":
            properties += "\x02"
        if names.POP_CK in properties:
            properties = remove(properties, [names.POP_CK])
        if names.TRANSIENT_PREFIX in properties:
            transient = [
                name for name in parse(properties) if name.startswith(names.TRANSIENT_PREFIX)
            ]
            properties = remove(properties, transient)
        due_ms = None
        if asks_for_delay(properties):
            delay = delay_of(properties, self._clock.now_ms(), self._rules)
            if delay is not None:
                due_ms = delay.due_ms
                properties = (
                    f"{delay.properties}{names.REAL_TOPIC}\x01{topic.name}\x02"
                    f"{names.REAL_QID}\x01{message.queue_id}\x02"
                )
                if not delay.by_level:
                    properties += f"{names.TIMER_OUT_MS}\x01{due_ms}\x02"
        message_id = find(properties, names.UNIQ_KEY)
        if message_id is None:
            message_id = uniq_key()
            added = f"{added}{names.UNIQ_KEY}\x01{message_id}\x02"
        properties += added
        encoded = properties.encode()
        if len(message.body) > self._max_body or len(encoded) > MAX_PROPERTIES:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                "the message is illegal, maybe msg body or properties length not matched. "
                f"msg body length limit {self._max_body}B, msg properties length limit 32KB.",
            )
        return _Prepared(topic, message, message_id, properties, encoded, due_ms)

    def _store_message(self, prepared: _Prepared) -> Accepted:
        topic, message, message_id, properties, encoded, due_ms = prepared
        tag = find(properties, names.TAGS)
        tag_hash = java_hash(tag) if tag is not None else 0
        keys_text = find(properties, names.KEYS)
        keys = keys_text.encode().split() if keys_text is not None else ()
        store = self._store
        stored_ms = self._clock.stored_ms()
        sequence = store.new_sequence()
        record = encode_message(
            topic=topic.stored_name,
            queue_id=message.queue_id,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_ms=message.born_ms,
            born_host=message.born_host,
            store_ms=stored_ms,
            store_host=self._store_host,
            reconsume_times=message.reconsume_times,
            prepared_offset=0,
            physical_offset=sequence,
            queue_offset=0,
            body=message.body,
            properties=encoded,
        )
        if due_ms is None:
            queue = store.queue(topic.stored_name, message.queue_id)
            offset = store.append(
                queue, sequence, record, tag_hash, message_id.encode(), keys, stored_ms
            )
            return Accepted(sequence, message_id, offset, None)
        store.schedule(
            due_ms,
            topic.stored_name,
            message.queue_id,
            sequence,
            record,
            tag_hash,
            message_id.encode(),
            keys,
        )
        self._committer.due_at(due_ms)
        return Accepted(sequence, message_id, -1, due_ms)


def terms_of(record: bytes) -> Terms:
    """By what the store finds a record: see `storage.Terms`."""
    message = decode_message(record)
    keys = find(message.properties, names.KEYS)
    return Terms(
        message.topic.encode(),
        message.queue_id,
        message.store_ms,
        (find(message.properties, names.UNIQ_KEY) or "").encode(),
        keys.encode().split() if keys is not None else (),
    )
