"""Takes a message in: its delay, its properties, its record, and into the store's batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import msgspec

from gateway.audit import AuditLog
from gateway.clock import Clock
from gateway.config import Config
from gateway.delays import REQUESTS, DelayRules, asks_for_delay, delay_of
from gateway.firing import Firing
from gateway.limits import MAX_DELAY, origin
from gateway.quotas import Quotas
from gateway.router import RequestError
from gateway.topics import CHECKED_OUT_TOPIC, HALF_TOPIC, Topic
from gateway.transactions import ADDED_LATER, half_properties, own_immunity_ms
from gateway.wire import properties as names
from gateway.wire.codes import ResponseCode, SysFlag
from gateway.wire.messages import (
    MAX_PROPERTIES,
    Message,
    decode_message,
    encode_message,
    java_hash,
    uniq_key,
)
from gateway.wire.properties import find, parse, remove
from storage import (
    MAX_LOOKED_AT,
    Store,
    Terms,
    can_replace,
    note_older,
    put_half,
    replace_pending,
    replaceable,
    take_half,
)

REGION = "DefaultRegion"
"""Upstream's default for the region of a broker; clients put it into their traces."""

SET_ANEW = (
    *REQUESTS,
    *(names.TIMER_OUT_MS, names.REAL_TOPIC, names.REAL_QID),
    *(names.MSG_REGION, names.TRACE_ON, names.CLUSTER),
)
"""Properties of a message that comes in once more which are set anew, or asked for a delay it has had."""

MOST_RETRIES = (1 << 31) - 1
"""The largest number of retries that a record has room for."""

NO_LIMIT_MS = 1 << 63
"""Longer than any delay can be."""


class NewMessage(msgspec.Struct, gc=False):
    """A message as it comes in. `properties` is their string; `values` are what it holds, by name, taken apart once;
    `born_host` has 8 bytes."""

    queue_id: int
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    reconsume_times: int
    body: bytes
    properties: str
    values: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        self.values = parse(self.properties)


class Accepted(msgspec.Struct, gc=False):
    """A message in the store's batch. `offset` is -1 and `due_ms` is set where it waits for its time; `replaced` says
    of how many messages it took the place where it asked to do so.
    """

    sequence: int
    message_id: str
    offset: int
    due_ms: int | None
    replaced: int | None = None


class _Prepared(msgspec.Struct, gc=False):
    """A message that will be stored: its final properties, as text and as bytes, when it is due, and the key with which
    others are to be aborted in favour of it."""

    topic: Topic
    message: NewMessage
    message_id: str
    properties: str
    encoded: bytes
    due_ms: int | None
    debounced: bytes | None

    @property
    def size(self) -> int:
        """Bytes that count against what its topic may hold."""
        return len(self.encoded) + len(self.message.body)


def too_long(max_body: int) -> RequestError:
    """What is said of a message or a batch whose body or properties are too long (SendMessageProcessor)."""
    return RequestError(
        ResponseCode.MESSAGE_ILLEGAL,
        "the message is illegal, maybe msg body or properties length not matched. "
        f"msg body length limit {max_body}B, msg properties length limit 32KB.",
    )


class Intake:
    """Puts messages into the store's batch.

    :param store_host: the advertised address as records have it, 8 bytes: clients look messages up there.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        firing: Firing,
        quotas: Quotas,
        audit: AuditLog,
        config: Config,
        store_host: bytes,
    ) -> None:
        self._audit = audit
        self._quotas = quotas
        self._store = store
        self._clock = clock
        self._firing = firing
        self._store_host = store_host
        self.disk_full = False
        """Set by the housekeeping: sends are refused, nothing recurs, and everything else goes on."""
        self.configure(config)
        self._added = (
            f"{names.MSG_REGION}\x01{REGION}\x02{names.TRACE_ON}\x01true\x02"
            f"{names.CLUSTER}\x01{config.cluster_name}\x02"
        )

    def configure(self, config: Config) -> None:
        """Take messages in by these settings."""
        self._rules = DelayRules(config.delay_level_ms, config.max_delay_ms)
        # What a half asks for was accepted with it: no setting and no clock may refuse it later.
        self._rules_of_commits = DelayRules(config.delay_level_ms, NO_LIMIT_MS)
        self._transaction_timeout_ms = config.transaction_timeout_ms
        self._max_body = config.max_message_size
        self._recall_enabled = config.recall_enabled

    def rules_of(self, topic: Topic | None) -> DelayRules:
        """How far ahead a topic's messages may be, and what the delay levels mean; None is a topic that was deleted."""
        if topic is None or topic.is_of_group or topic.limits.max_delay_ms is None:
            # A retry waits as long as its level says: no limit of its topic refuses it.
            return self._rules
        own_ms = topic.limits.max_delay_ms
        return DelayRules(self._rules.level_ms, own_ms, origin(MAX_DELAY, own_ms), for_levels=True)

    def accept(self, topic: Topic, message: NewMessage) -> Accepted:
        """Take in a single message, now or for later as its properties ask.

        :raises RequestError: when its delay, its body or its properties cannot be accepted.
        """
        prepared = self._prepare(topic, message, self._added, self.rules_of(topic))
        self._check(prepared, topic.most_properties)
        self._admit(topic, [prepared])
        return self._store_message(prepared)

    def accept_again(self, topic: Topic, message: NewMessage) -> Accepted:
        """Take in a message that was taken in before, for those who did not consume it: `max_message_size` may be less
        by now, and nobody is there to be refused. Where its properties have no room for those that a single message is
        given, it goes without, as those of a batch do.

        :raises RequestError: when its properties cannot be accepted.
        """
        prepared = self._prepare(topic, message, self._added, self.rules_of(topic))
        if len(prepared.encoded) > topic.most_properties:
            prepared = self._prepare(topic, message, "", self.rules_of(topic))
        if len(prepared.encoded) > topic.most_properties:
            raise too_long(self._max_body)
        return self._store_message(prepared)

    def accept_batch(self, topic: Topic, messages: list[NewMessage]) -> list[Accepted]:
        """Take in all items of a batch, or none. They are not given the properties that single messages are given.

        Upstream delivers an item that asks for a delay at once; here it waits.

        :raises RequestError: when one of them cannot be accepted.
        """
        rules = self.rules_of(topic)
        prepared = [self._prepare(topic, message, "", rules) for message in messages]
        for one in prepared:
            self._check(one, MAX_PROPERTIES)
        self._admit(topic, prepared)
        return [self._store_message(one) for one in prepared]

    def check_planned(self, topic: Topic, message: NewMessage) -> None:
        """Refuse a message that could not be taken in whenever it recurs.

        :raises RequestError: when it could not.
        """
        self._check_debounce(self._prepare(topic, message, self._added, None))

    def accept_planned(self, topic: Topic, message: NewMessage, planned_ms: int) -> Accepted:
        """Take in a message that is due, and was found good when it was left here to recur: no limit counts.

        :param planned_ms: its place among those that wait while their topic is paused, epoch ms.
        :raises RequestError: when it was left to a version that did not look whether it was good.
        """
        prepared = self._prepare(topic, message, self._added, None)
        if topic.stored_name in self._store.paused:
            prepared.due_ms = planned_ms
        return self._store_message(prepared)

    def accept_half(self, topic: Topic, message: NewMessage) -> Accepted:
        """Take in the first half of a transaction. It waits, and its producer is asked about it
        when its time without checks is over, until `release_half`.

        :raises RequestError: as from `accept`: what could not be stored later is refused now.
        """
        prepared = self._prepare(topic, message, self._added, self.rules_of(topic))
        message_id = prepared.message_id
        properties = half_properties(prepared.properties, topic.name, message.queue_id, message_id)
        prepared.encoded = properties.encode()
        self._check(prepared, topic.most_properties - ADDED_LATER)
        self._admit(topic, [prepared])
        stored_ms = self._clock.stored_ms()
        sequence = self._store.new_sequence()
        record = self._record(
            HALF_TOPIC.encode(),
            msgspec.structs.replace(
                message, queue_id=0, sys_flag=message.sys_flag & ~SysFlag.TRANSACTION_MASK
            ),
            prepared.encoded,
            stored_ms,
            sequence,
            queue_offset=sequence,
        )
        timeout_ms = self._transaction_timeout_ms
        immunity_ms = own_immunity_ms(properties, timeout_ms) or timeout_ms
        put_half(self._store, sequence, record, self._clock.now_ms() + immunity_ms)
        return Accepted(sequence, message_id, sequence, None)

    def release_half(
        self, sequence: int, topic: Topic, message: NewMessage, *, delayed: bool
    ) -> bool:
        """Put the message of a half where it belongs.

        :param delayed: whether the delay that it asks for begins now; else it is stored at once.
        :returns: False when the half no longer waits, or the properties have become too long; then nothing is stored.
        """
        rules = self._rules_of_commits if delayed else None
        prepared = self._prepare(topic, message, "", rules)
        if len(prepared.encoded) > MAX_PROPERTIES or not take_half(self._store, sequence):
            return False
        self._store_message(prepared, sequence)
        return True

    def _prepare(
        self, topic: Topic, message: NewMessage, added: str, rules: DelayRules | None
    ) -> _Prepared:
        """What is to be stored; without rules no delay counts.

        :raises RequestError: when the delay cannot be accepted.
        :raises StorageError: when its queue cannot be read.
        """
        properties, values = message.properties, message.values
        if properties and properties[-1] != "\x02":
            properties += "\x02"
        if names.POP_CK in properties:
            properties = remove(properties, [names.POP_CK])
        if names.TRANSIENT_PREFIX in properties:
            transient = [name for name in values if name.startswith(names.TRANSIENT_PREFIX)]
            properties = remove(properties, transient)
        due_ms = None
        if rules is not None and asks_for_delay(properties):
            delay = delay_of(properties, values, self._clock.now_ms(), rules)
            if delay is not None:
                due_ms = delay.due_ms
                properties = (
                    f"{delay.properties}{names.REAL_TOPIC}\x01{topic.name}\x02"
                    f"{names.REAL_QID}\x01{message.queue_id}\x02"
                )
                if not delay.by_level:
                    properties += f"{names.TIMER_OUT_MS}\x01{due_ms}\x02"
        message_id = values.get(names.UNIQ_KEY)
        if message_id is None:
            message_id = uniq_key(self._clock.now_ms())
            added = f"{added}{names.UNIQ_KEY}\x01{message_id}\x02"
        properties += added
        debounced = None
        if names.DEBOUNCE in values and not topic.is_of_group and topic.name != CHECKED_OUT_TOPIC:
            # What nobody decided about comes to that topic from a group's as well, where anything is taken.
            debounced = _debounced(values)
        if due_ms is None:
            # One that cannot be read must not be met where a half is gone already, or what others were aborted for.
            self._store.queue(topic.stored_name, message.queue_id)
        encoded = properties.encode()
        return _Prepared(topic, message, message_id, properties, encoded, due_ms, debounced)

    def _admit(self, topic: Topic, prepared: list[_Prepared]) -> None:
        keys: set[bytes] = set()
        timed = size = 0
        for one in prepared:
            if one.due_ms is not None:
                timed += 1
                size += one.size
            if one.debounced is not None:
                keys.add(one.debounced)
        if not keys:
            self._quotas.admit(topic, len(prepared), timed, size)
            return
        lasting = _lasting(prepared)
        size = sum(one.size for one in lasting)
        replaced = partial(self._replaced, topic, keys)
        self._quotas.admit(topic, len(prepared), len(lasting), size, replaced)

    def _replaced(self, topic: Topic, keys: Iterable[bytes]) -> list[int]:
        """The bytes of each message that waits and is to be aborted for others with these keys."""
        found: dict[int, int] = {}
        for key in keys:
            found |= replaceable(self._store, topic.stored_name, key)
        return list(found.values())

    def _check(self, prepared: _Prepared, most_properties: int) -> None:
        """Refuse what is too long, and a debounce that may not be or would have too much to look through."""
        if len(prepared.message.body) > self._max_body or len(prepared.encoded) > most_properties:
            raise too_long(self._max_body)
        topic, key = prepared.topic, prepared.debounced
        if key is None:
            return
        self._check_debounce(prepared)
        if not can_replace(self._store, topic.stored_name, key):
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"more than {MAX_LOOKED_AT} messages of topic {topic.name} have come with the key that "
                f"{names.DEBOUNCE} names and without {names.DEBOUNCE}: choose another key",
            )

    def _check_debounce(self, prepared: _Prepared) -> None:
        """Refuse to abort messages in favour of another where none may be taken back."""
        if prepared.debounced is not None and not self._recall_enabled:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                "debounce failed, operation is forbidden (setting recall_enabled)",
            )

    def _store_message(self, prepared: _Prepared, half: int | None = None) -> Accepted:
        """Into a queue, or among those that wait for their time.

        :param half: the sequence of the half that this is the message of.
        """
        topic, message, due_ms = prepared.topic, prepared.message, prepared.due_ms
        tag = message.values.get(names.TAGS)
        tag_hash = java_hash(tag) if tag is not None else 0
        keys_text = message.values.get(names.KEYS)
        keys = keys_text.encode().split() if keys_text is not None else ()
        message_id = prepared.message_id.encode()
        store = self._store
        stored_ms = self._clock.stored_ms()
        sequence = store.new_sequence() if half is None else half
        record = self._record(
            topic.stored_name,
            message,
            prepared.encoded,
            stored_ms,
            sequence,
            prepared_offset=half or 0,
        )
        replaced = None
        if half is not None and keys:
            note_older(store, topic.stored_name, keys, sequence)
        if prepared.debounced is not None:
            replaced = replace_pending(
                store, topic.stored_name, prepared.debounced, sequence, stored_ms
            )
            if replaced:
                self._audit.note(
                    "debounce", topic=topic.name, msgId=prepared.message_id, replaced=replaced
                )
        if due_ms is None:
            queue = store.queue(topic.stored_name, message.queue_id)
            offset = store.append(queue, sequence, record, tag_hash, message_id, keys, stored_ms)
            return Accepted(sequence, prepared.message_id, offset, None, replaced)
        store.schedule(
            due_ms,
            topic.stored_name,
            message.queue_id,
            sequence,
            record,
            tag_hash,
            message_id,
            keys,
        )
        self._firing.due_at(due_ms)
        return Accepted(sequence, prepared.message_id, -1, due_ms, replaced)

    def _record(
        self,
        topic: bytes,
        message: NewMessage,
        properties: bytes,
        stored_ms: int,
        sequence: int,
        *,
        queue_offset: int = 0,
        prepared_offset: int = 0,
    ) -> bytes:
        return encode_message(
            topic=topic,
            queue_id=message.queue_id,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_ms=message.born_ms,
            born_host=message.born_host,
            store_ms=stored_ms,
            store_host=self._store_host,
            reconsume_times=message.reconsume_times,
            prepared_offset=prepared_offset,
            physical_offset=sequence,
            queue_offset=queue_offset,
            body=message.body,
            properties=properties,
        )


def _debounced(values: Mapping[str, str]) -> bytes:
    """The key that a message is debounced by.

    :raises RequestError: when it is not one of its keys.
    """
    key = values[names.DEBOUNCE]
    # In bytes, as the store has them: in text other characters divide as well.
    if key.encode() not in values.get(names.KEYS, "").encode().split():
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f'{names.DEBOUNCE} = "{key[:64]}" is not one of the keys of the message: set it as a key as well',
        )
    return key.encode()


def _lasting(prepared: list[_Prepared]) -> list[_Prepared]:
    """The messages of a batch that wait once all are stored: a later one may take the place of earlier ones."""
    lasting = []
    replaced: set[bytes] = set()
    for one in reversed(prepared):
        keys = one.message.values.get(names.KEYS, "").encode().split()
        if one.due_ms is not None and replaced.isdisjoint(keys):
            lasting.append(one)
        if one.debounced is not None:
            replaced.add(one.debounced)
    return lasting


def retried(message: Message, queue_id: int, properties: str) -> NewMessage:
    """A message as it comes in once more, for those who did not consume it."""
    return NewMessage(
        queue_id,
        message.flag,
        message.sys_flag,
        message.born_ms,
        message.born_host,
        # Its sender may have said any number.
        min(message.reconsume_times + 1, MOST_RETRIES),
        message.body,
        properties,
    )


def terms_of(record: bytes) -> Terms:
    """By what the store finds a record: see `storage.Terms`."""
    message = decode_message(record)
    keys = find(message.properties, names.KEYS)
    tag = find(message.properties, names.TAGS)
    return Terms(
        message.topic.encode(),
        message.queue_id,
        message.store_ms,
        (find(message.properties, names.UNIQ_KEY) or "").encode(),
        keys.encode().split() if keys is not None else (),
        java_hash(tag) if tag is not None else 0,
    )
