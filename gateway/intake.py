"""Accepts messages: works out the delay, the final properties and the record, and adds it to the store's batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import msgspec

from gateway.clock import Clock
from gateway.delays import REQUESTS, DelayRules, asks_for_delay, delay_of
from gateway.firing import Firing
from gateway.limits import MAX_DELAY, origin
from gateway.monitoring.audit import AuditLog
from gateway.quotas import Quotas
from gateway.router import RequestError, illegal
from gateway.settings.config import Config
from gateway.topics import CHECKED_OUT_TOPIC, HALF_TOPIC, Topic
from gateway.transactions import ADDED_LATER, half_properties, own_immunity_ms
from gateway.wire import properties as names
from gateway.wire.codes import ResponseCode, SysFlag
from gateway.wire.messages import (
    MAX_PROPERTIES,
    Message,
    decode_stored,
    encode_message,
    java_hash,
    uniq_key,
)
from gateway.wire.properties import find, keys_in, parse, remove
from storage import (
    MAX_LOOKED_AT,
    Store,
    Terms,
    count_candidates,
    note_older,
    put_half,
    replace_pending,
    replaceable,
    take_half,
)

REGION = "DefaultRegion"
"""Upstream's default for the region of a broker; clients put it into their traces."""

MAX_EXAMINED = 10_000
"""Messages that all debounces of a batch may examine, some 25 us each. A debounce examines the messages that have come
with its key since the last one, that one included; a single send keeps to `MAX_LOOKED_AT`."""

SET_ANEW = (
    *REQUESTS,
    *(names.REAL_TOPIC, names.REAL_QID, names.MSG_REGION, names.TRACE_ON, names.CLUSTER),
)
"""Properties that are dropped from a message that is accepted again: they are set anew, or asked for a delay that is
over. TIMER_OUT_MS stays, as in RocketMQ: it tells the consumer the time for which the message was sent."""

MOST_RETRIES = (1 << 31) - 1
"""The largest number of retries that a record has room for."""

NO_LIMIT_MS = 1 << 63
"""Longer than any possible delay."""


class NewMessage(msgspec.Struct, gc=False):
    """A message as received. `properties` is the property string, and `values` has the same properties by name, parsed
    once. `born_host` has 8 bytes."""

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
    """A message in the store's batch. If it is pending, `offset` is -1 and `due_ms` is set. If it is debounced,
    `replaced` is the number of messages that it replaced.
    """

    sequence: int
    message_id: str
    offset: int
    due_ms: int | None
    replaced: int | None = None


class _Prepared(msgspec.Struct, gc=False):
    """A message ready to be stored: its final properties as text and as bytes, its due time, and the key of the pending
    messages that it replaces."""

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
    """Return the refusal of a message or batch whose body or properties are too long (text as in
    SendMessageProcessor)."""
    return illegal(
        "the message is illegal, maybe msg body or properties length not matched. "
        f"msg body length limit {max_body}B, msg properties length limit 32KB."
    )


class Intake:
    """Puts messages into the store's batch.

    :param store_host: the advertised address as stored in records, 8 bytes: clients look messages up there.
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
        """Set by the housekeeping. While it is set, sends are refused and recurring messages wait; all else goes on."""
        self.configure(config)
        self._added = (
            f"{names.MSG_REGION}\x01{REGION}\x02{names.TRACE_ON}\x01true\x02"
            f"{names.CLUSTER}\x01{config.cluster_name}\x02"
        )

    def configure(self, config: Config) -> None:
        """Accept messages by these settings."""
        self._rules = DelayRules(config.delay_level_ms, config.max_delay_ms)
        # The delay of a half message was accepted with it: neither a changed setting nor the clock may refuse it later.
        self._rules_of_commits = DelayRules(config.delay_level_ms, NO_LIMIT_MS)
        self._transaction_timeout_ms = config.transaction_timeout_ms
        self._max_body = config.max_message_size
        self._recall_enabled = config.recall_enabled

    def rules_of(self, topic: Topic | None) -> DelayRules:
        """Return the longest delay of a topic's messages and the delay levels; None stands for a deleted topic."""
        if topic is None or topic.is_of_group or topic.limits.max_delay_ms is None:
            # A retry waits as long as its level says: no limit of its topic refuses it.
            return self._rules
        own_ms = topic.limits.max_delay_ms
        return DelayRules(self._rules.level_ms, own_ms, origin(MAX_DELAY, own_ms), for_levels=True)

    def accept(self, topic: Topic, message: NewMessage) -> Accepted:
        """Accept a single message, for now or later as its properties ask.

        :raises RequestError: when its delay, its body or its properties cannot be accepted.
        """
        prepared = self._prepare(topic, message, self._added, self.rules_of(topic))
        self._check(prepared, topic.most_properties)
        if prepared.debounced is None:
            timed = prepared.due_ms is not None
            self._quotas.admit(topic, 1, timed, prepared.size if timed else 0)
        else:
            self._check_debounces(topic, [prepared])
            self._admit(topic, [prepared])
        return self._store_message(prepared)

    def accept_again(self, topic: Topic, message: NewMessage) -> Accepted:
        """Accept a message again for a group that has not consumed it. `max_message_size` does not count: it may be
        smaller by now, and a consumer that cannot send back a message gets no further. If its properties have no room
        for those that the gateway adds to a single message, it is stored without them, as messages of a batch are.

        :raises RequestError: when its properties cannot be accepted.
        """
        prepared = self._prepare(topic, message, self._added, self.rules_of(topic))
        if len(prepared.encoded) > topic.most_properties:
            prepared = self._prepare(topic, message, "", self.rules_of(topic))
        if len(prepared.encoded) > topic.most_properties:
            raise too_long(self._max_body)
        return self._store_message(prepared)

    def accept_batch(self, topic: Topic, messages: list[NewMessage]) -> list[Accepted]:
        """Accept all messages of a batch, or none. They do not get the properties that are added to a single message.

        Upstream delivers a delayed message of a batch at once; here it waits.

        :raises RequestError: when one of them cannot be accepted.
        """
        rules = self.rules_of(topic)
        prepared = [self._prepare(topic, message, "", rules) for message in messages]
        for one in prepared:
            self._check(one, MAX_PROPERTIES)
        self._check_debounces(topic, prepared)
        self._admit(topic, prepared)
        return [self._store_message(one) for one in prepared]

    def check_planned(self, topic: Topic, message: NewMessage) -> None:
        """Check that a recurring message could be accepted each time.

        :raises RequestError: when it could not.
        """
        self._check_debounce(self._prepare(topic, message, self._added, None))

    def accept_planned(self, topic: Topic, message: NewMessage, planned_ms: int) -> Accepted:
        """Accept a recurring message that is due. It was checked when it was set, so no limit counts.

        :param planned_ms: its due time, epoch ms; it orders the messages that wait while their topic is paused.
        :raises RequestError: when an older version set it without this check.
        """
        prepared = self._prepare(topic, message, self._added, None)
        if topic.stored_name in self._store.paused:
            prepared.due_ms = planned_ms
        return self._store_message(prepared)

    def accept_half(self, topic: Topic, message: NewMessage) -> Accepted:
        """Accept a half message. It waits until `release_half`. Once its time without checks is over, its producer is
        asked about it.

        :raises RequestError: as `accept` does: a message that could not be stored later is refused now.
        """
        prepared = self._prepare(topic, message, self._added, self.rules_of(topic))
        message_id = prepared.message_id
        properties = half_properties(prepared.properties, topic.name, message.queue_id, message_id)
        prepared.encoded = properties.encode()
        self._check(prepared, topic.most_properties - ADDED_LATER)
        self._check_debounces(topic, [prepared])
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
        """Store the message of a half message.

        :param delayed: whether its delay begins now; otherwise it goes into its queue at once.
        :returns: False when the half message no longer waits, or the properties have become too long; then nothing is
            stored.
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
        """Return the message ready to be stored. Without rules its delay is ignored.

        :raises RequestError: when the delay cannot be accepted.
        :raises StorageError: when its queue cannot be read.
        """
        properties, values = message.properties, message.values
        if properties and properties[-1] != "\x02":
            properties += "\x02"
        if names.POP_CK in properties:
            properties = remove(properties, [names.POP_CK])
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
            # A group's topic accepts any value, so CHECKED_OUT_TOPIC must too: undecided half messages of it end there.
            debounced = _debounced(values)
        if due_ms is None:
            # An unreadable queue must be found here, before the half message is gone or other messages are aborted.
            self._store.queue(topic.stored_name, message.queue_id)
        encoded = properties.encode()
        return _Prepared(topic, message, message_id, properties, encoded, due_ms, debounced)

    def _admit(self, topic: Topic, prepared: list[_Prepared]) -> None:
        """Count messages that are accepted together against their topic's limits.

        :raises RequestError: when there are too many.
        """
        keys = {one.debounced for one in prepared if one.debounced is not None}
        timed = _lasting(prepared) if keys else [one for one in prepared if one.due_ms is not None]
        size = sum([one.size for one in timed])
        replaced = partial(self._replaced, topic, keys)
        self._quotas.admit(topic, len(prepared), len(timed), size, replaced)

    def _replaced(self, topic: Topic, keys: Iterable[bytes]) -> list[int]:
        """Return the sizes in bytes of the pending messages that messages with these keys replace."""
        found: dict[int, int] = {}
        for key in keys:
            found |= replaceable(self._store, topic.stored_name, key)
        return list(found.values())

    def _check(self, prepared: _Prepared, most_properties: int) -> None:
        """Refuse a message that is too long."""
        if len(prepared.message.body) > self._max_body or len(prepared.encoded) > most_properties:
            raise too_long(self._max_body)

    def _check_debounces(self, topic: Topic, prepared: list[_Prepared]) -> None:
        """Refuse messages that are accepted together if one of them debounces where that is not allowed, or if their
        debounces would have to examine too many messages."""
        for one in prepared:
            self._check_debounce(one)
        examined = _examined_of_these(prepared)
        for key in {one.debounced: None for one in prepared if one.debounced is not None}:
            count = count_candidates(self._store, topic.stored_name, key)
            if count > MAX_LOOKED_AT:
                raise illegal(
                    f"more than {MAX_LOOKED_AT} messages of topic {topic.name} have come with the key that "
                    f"{names.DEBOUNCE} names and without {names.DEBOUNCE}: choose another key"
                )
            examined += count
            if examined > MAX_EXAMINED:
                raise illegal(
                    f"the messages of the batch with {names.DEBOUNCE} would have to examine more than {MAX_EXAMINED} "
                    "messages with their keys: send smaller batches"
                )

    def _check_debounce(self, prepared: _Prepared) -> None:
        """Refuse a debounce where recalls are disabled."""
        if prepared.debounced is not None and not self._recall_enabled:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                "debounce failed, operation is forbidden (setting recall_enabled)",
            )

    def _store_message(self, prepared: _Prepared, half: int | None = None) -> Accepted:
        """Store a message in its queue, or as pending.

        :param half: the sequence of its half message, if it had one.
        """
        topic, message, due_ms = prepared.topic, prepared.message, prepared.due_ms
        tag = message.values.get(names.TAGS)
        tag_hash = java_hash(tag) if tag is not None else 0
        keys_text = message.values.get(names.KEYS)
        keys = keys_in(keys_text) if keys_text is not None else ()
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
    """Return the key by which a message is debounced.

    :raises RequestError: when it is not one of its keys.
    """
    key = values[names.DEBOUNCE]
    if key.encode() not in keys_in(values.get(names.KEYS, "")):
        raise illegal(
            f'{names.DEBOUNCE} = "{key[:64]}" is not one of the keys of the message: set it as a key as well'
        )
    return key.encode()


def _examined_of_these(prepared: list[_Prepared]) -> int:
    """Return how many messages of a batch its own debounces examine: each message is stored before the next one."""
    since = {one.debounced: 0 for one in prepared if one.debounced is not None}
    if not since:
        return 0
    examined = 0
    for one in prepared:
        if one.debounced is not None:
            examined += since[one.debounced]
            since[one.debounced] = 0
        for key in since.keys() & keys_in(one.message.values.get(names.KEYS, "")):
            since[key] += 1
    return examined


def _lasting(prepared: list[_Prepared]) -> list[_Prepared]:
    """Return the messages of a batch that are pending once all are stored: a later one may replace earlier ones."""
    lasting = []
    replaced: set[bytes] = set()
    for one in reversed(prepared):
        keys = keys_in(one.message.values.get(names.KEYS, ""))
        if one.due_ms is not None and replaced.isdisjoint(keys):
            lasting.append(one)
        if one.debounced is not None:
            replaced.add(one.debounced)
    return lasting


def retried(
    message: Message, queue_id: int, properties: str, *, counted: bool = True
) -> NewMessage:
    """Return a message as it is accepted again for a group that has not consumed it.

    :param counted: whether this is another retry.
    """
    return NewMessage(
        queue_id,
        message.flag,
        message.sys_flag,
        message.born_ms,
        message.born_host,
        # The sender may have set any number of retries.
        min(message.reconsume_times + counted, MOST_RETRIES),
        message.body,
        properties,
    )


def terms_of(record: bytes) -> Terms:
    """Return the terms by which the store finds a record: see `storage.Terms`."""
    message = decode_stored(record)
    keys = find(message.properties, names.KEYS)
    tag = find(message.properties, names.TAGS)
    return Terms(
        message.topic.encode(),
        message.queue_id,
        message.store_ms,
        (find(message.properties, names.UNIQ_KEY) or "").encode(),
        keys_in(keys) if keys is not None else (),
        java_hash(tag) if tag is not None else 0,
    )
