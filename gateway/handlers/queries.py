"""Look-ups of stored messages: by key or unique key (12), by offset id (33)."""

from __future__ import annotations

from contextlib import suppress

from gateway.access.policies import READ
from gateway.broker import Broker
from gateway.router import Call, RequestError
from gateway.topics import SCHEDULE_TOPIC, TIMER_TOPIC
from gateway.wire import properties as names
from gateway.wire.codes import ResponseCode
from gateway.wire.headers import QueryMessage, ViewMessage
from gateway.wire.messages import add_properties, decode_message, stamp
from storage import DamagedError, Found, State, find_by_id, find_by_key, find_by_sequence, find_half

MAX_FOUND = 64
"""Most messages in one answer (MessageStoreConfig.maxMsgsNumBatch)."""

HEADER_ROOM = 1024
"""Bytes of a frame that the header of such an answer may take."""

INDEX_FIGURES = {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}
"""Fields of every answer to a query. Clients only hand them on, and the index here is never behind."""

BY_TAG = "T"
"""The index type of a query for the messages with a tag; there is no such index here."""

PARKING_TOPICS = (TIMER_TOPIC, SCHEDULE_TOPIC)
"""Topics where tools look for messages that have not fired. Here their real topic finds them as well."""


class Queries:
    """Finds messages, fired or not."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store

    def query(self, call: Call) -> None:
        """Answer with a topic's messages that have a key or a client's id. This includes messages that have not fired
        or never will; the properties of a timed message give its state. A query by key returns the newest matches, the
        oldest of them first."""
        fields: QueryMessage = call.fields
        if fields.index_type == BY_TAG:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                "messages are found by key and by id (12); by tag: tidegate pending --tag",
            )
        # A query by id returns all matches: upstream ignores the number asked for (QueryMessageProcessor).
        limit = MAX_FOUND if fields.unique_key_query else min(fields.max_num, MAX_FOUND)
        records: list[bytes] = []
        room = call.most_bytes - HEADER_ROOM
        for one in self._find(call, limit) if limit > 0 else ():
            record = self._at_its_place(one)
            room -= len(record)
            if room < 0 and records:
                break
            records.append(record)
        if not records:
            raise RequestError(
                ResponseCode.QUERY_NOT_FOUND,
                "can not find message, maybe time range not correct",
                INDEX_FIGURES,
            )
        if not _is_by_id(fields):
            records.reverse()
        call.answer(INDEX_FIGURES, b"".join(records))

    def _find(self, call: Call, limit: int) -> list[Found]:
        """Return the messages that a query asks for. One by key finds an id where there is no such key: upstream has
        one index for both (IndexService), and people look for either."""
        by_key = [] if _is_by_id(call.fields) else self._with_key(call, limit)
        return by_key or self._with_id(call, limit)

    def _with_id(self, call: Call, limit: int) -> list[Found]:
        fields: QueryMessage = call.fields
        found = find_by_id(self._store, fields.key.encode())
        matching = [one for one in found if self._matches(fields, one)]
        return [one for one in matching if call.may(READ, _topic_of(one))][:limit]

    def _with_key(self, call: Call, limit: int) -> list[Found]:
        fields: QueryMessage = call.fields
        parked = fields.topic in PARKING_TOPICS
        topics = self._broker.topics_with_pending() if parked else [fields.topic]
        topics = [topic for topic in topics if call.may(READ, topic)]
        return find_by_key(
            self._store,
            [topic.encode() for topic in topics],
            fields.key.encode(),
            limit,
            lambda one: self._matches(fields, one),
        )

    def view(self, call: Call) -> None:
        """Answer with the message that has an offset id, which may be an undecided half of a transaction."""
        fields: ViewMessage = call.fields
        offset = max(0, fields.offset)
        found = find_by_sequence(self._store, offset)
        if found is not None:
            call.answer(body=self._at_its_place(found))
            return
        half = find_half(self._store, offset)
        if half is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {fields.offset}"
            )
        call.answer(body=half.record)

    def _at_its_place(self, found: Found) -> bytes:
        """Return the record with its place in its queue, and with the state and due time of a timed message. The place
        of one that has not fired is the queue's end: tools say that what lies before a group's offset is consumed."""
        record = found.record
        if found.offset >= 0:
            record = stamp(record, found.offset, found.moved_ms)
        elif found.state is not State.FIRED:
            message = decode_message(record)
            with suppress(DamagedError):
                queue = self._store.queue(message.topic.encode(), message.queue_id)
                record = stamp(record, queue.visible, message.store_ms)
        if found.due_ms:
            state = f"{names.STATE}\x01{found.state.value}\x02{names.DUE_MS}\x01{found.due_ms}\x02"
            record = add_properties(record, state)
        return record

    @staticmethod
    def _matches(fields: QueryMessage, found: Found) -> bool:
        message = decode_message(found.record)
        # Tools search by the time of birth or by the time of delivery, so either may match.
        times = (message.store_ms, found.moved_ms or message.store_ms)
        if not any(fields.begin_timestamp <= ms <= fields.end_timestamp for ms in times):
            return False
        parked = fields.topic in PARKING_TOPICS and found.state is State.PENDING
        return parked or message.topic == fields.topic


def _is_by_id(fields: QueryMessage) -> bool:
    return fields.unique_key_query or fields.index_type == "U"


def _topic_of(found: Found) -> str:
    return decode_message(found.record).topic
