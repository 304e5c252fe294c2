"""Messages that have not fired: recall (370), abort and look-up (Tidegate's own 31002 and 31001), counts (61)."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.abort import abort_remark, best_outcome
from gateway.access import PUB, READ
from gateway.broker import Broker
from gateway.intake import REGION, terms_of
from gateway.router import Call, RequestError
from gateway.topics import DLQ_PREFIX, RETRY_PREFIX
from gateway.wire import properties as names
from gateway.wire.codes import ResponseCode
from gateway.wire.headers import AbortTimers, LookUpTimers, RecallMessage
from gateway.wire.messages import (
    decode_message,
    java_hash,
    offset_msg_id,
    parse_offset_msg_id,
    unpack_host,
)
from gateway.wire.properties import find
from gateway.wire.recall import RecallHandle, RecallHandleError
from storage import (
    Aborted,
    Found,
    FoundPage,
    State,
    find_by_id,
    find_by_key,
    find_by_sequence,
    held_by_topic,
    scan_pending,
)

MAX_PAGE = 1_000
"""Most messages in one answer to a look-up."""

MAX_WITH_KEY = 10_000
"""Most messages with one key that a look-up by key considers, the newest first."""

MAX_ABORTED_BY_KEY = 1_000
"""Most messages that one abort by key takes on."""

_LATEST_MS = (1 << 63) - 1


class Timers:
    """Finds and aborts what has not fired."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store

    def recall(self, call: Call) -> None:
        """Abort by the handle that the send was answered with. Success means: it was pending, and never fires."""
        try:
            self._recall(call)
        except RequestError as error:
            error.ext = {names.MSG_REGION: REGION}
            raise

    def _recall(self, call: Call) -> None:
        fields: RecallMessage = call.fields
        topic = self._broker.topics.get(fields.topic)
        self._check_enabled()
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{fields.topic}] not exist"
            )
        handle = self._handle(fields.recall_handle, fields.topic)
        now_ms = self._broker.clock.now_ms()
        results = self._store.abort(handle.message_id.encode(), now_ms, topic.stored_name)
        outcome = best_outcome(results)
        aborted = outcome is Aborted.ABORTED
        ext = {
            "msgId": handle.message_id,
            "outcome": outcome.value,
            names.MSG_REGION: REGION,
        }
        frame = call.encode(
            ext,
            code=ResponseCode.SUCCESS if aborted else ResponseCode.ILLEGAL_OPERATION,
            remark=None if aborted else abort_remark(outcome, handle.message_id),
        )
        self._broker.committer.answer(call, frame)

    def abort(self, call: Call) -> None:
        """Abort by handle, by id (the client's or the offset id), or by topic and key; one result for each message."""
        fields: AbortTimers = call.fields
        self._check_enabled()
        if fields.handle:
            handle = self._handle(fields.handle)
            results = self._abort_ids({(handle.message_id, handle.topic)})
        elif fields.id:
            places = self._places_of(fields.id, fields.topic)
            results = self._abort_ids(self._permitted(call, places))
            results = results or [_result(fields.id, fields.topic or "", 0, Aborted.UNKNOWN)]
        elif fields.key and fields.topic:
            found = find_by_key(
                self._store, [fields.topic.encode()], fields.key.encode(), MAX_WITH_KEY
            )
            # What is pending first, so that a second request gets at what the first one left.
            found.sort(key=lambda one: one.state is not State.PENDING)
            places = {self._place(message) for message in found[:MAX_ABORTED_BY_KEY]}
            results = self._abort_ids(places)
            results = results or [_result("", fields.topic, 0, Aborted.UNKNOWN)]
        else:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, "name a handle, an id, or a topic and a key"
            )
        body = msgspec.json.encode({"results": results})
        self._broker.committer.answer(call, call.encode(body=body))

    def look_up(self, call: Call) -> None:
        """A page of messages by id, by key, or by due time, each with its state; the next due first."""
        fields: LookUpTimers = call.fields
        limit = max(1, min(fields.limit, MAX_PAGE))
        if fields.id or fields.key:
            page = self._page_of(self._named(fields), fields, limit)
        elif fields.state == State.PENDING.value:
            page = scan_pending(
                self._store,
                topic=fields.topic.encode() or None,
                begin_ms=max(0, fields.begin),
                end_ms=_end_of(fields),
                tag_hash=java_hash(fields.tag) if fields.tag else None,
                cursor=_parse_cursor(fields.cursor),
                limit=limit,
            )
        else:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                "only pending messages can be listed by topic or time: name an id or a key",
            )
        messages = [self._describe(one) for one in page.found]
        messages = [message for message in messages if call.may(READ, message["topic"])]
        if fields.tag:
            # The scan compares hashes, and two tags can share one.
            messages = [message for message in messages if message["tags"] == fields.tag]
        cursor = page.cursor.hex() if page.cursor is not None else None
        call.answer(body=msgspec.json.encode({"messages": messages, "cursor": cursor}))

    def _named(self, fields: LookUpTimers) -> list[Found]:
        """The messages with the id or the key that a look-up names."""
        if fields.id:
            return self._find_by_id(fields.id)
        topics = [fields.topic] if fields.topic else self._broker.topics.names()
        names_of_topics = [name.encode() for name in topics]
        return find_by_key(self._store, names_of_topics, fields.key.encode(), MAX_WITH_KEY)

    @staticmethod
    def _page_of(found: list[Found], fields: LookUpTimers, limit: int) -> FoundPage:
        """What matches the rest of a look-up, in the order of due times, from its cursor on."""
        behind = _parse_cursor(fields.cursor) or b""
        end_ms = _end_of(fields)
        matching = []
        for one in found:
            place = _place_of(one)
            if (
                fields.state in ("any", one.state.value)
                and fields.begin <= one.due_ms < end_ms
                and fields.topic in ("", terms_of(one.record).topic.decode())
                and place > behind
            ):
                matching.append((place, one))
        matching.sort(key=lambda entry: entry[0])
        rest = matching[:limit]
        cursor = rest[-1][0] if len(matching) > limit else None
        return FoundPage([one for _, one in rest], cursor)

    def metrics(self, call: Call) -> None:
        """How many messages of each topic have not fired (61)."""
        now_ms = self._broker.clock.now_ms()
        counts = {
            topic.decode(): {"count": count, "timeStamp": now_ms}
            for topic, count in held_by_topic(self._store).items()
        }
        version = {"counter": 0, "stateVersion": 0, "timestamp": now_ms}
        call.answer(body=msgspec.json.encode({"dataVersion": version, "timingCount": counts}))

    def _check_enabled(self) -> None:
        if not self._broker.config.recall_enabled:
            raise RequestError(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")

    def _handle(self, text: str, topic: str | None = None) -> RecallHandle:
        """Read a handle and check it in upstream's order (RecallMessageProcessor)."""
        try:
            handle = RecallHandle.parse(text)
        except RecallHandleError as error:
            raise RequestError(ResponseCode.ILLEGAL_OPERATION, str(error)) from error
        if topic not in (None, handle.topic):
            raise RequestError(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker != self._broker.config.broker_name:
            raise RequestError(
                ResponseCode.ILLEGAL_OPERATION, "recall failed, broker service not available"
            )
        return handle

    def _find_by_id(self, message_id: str) -> list[Found]:
        """By the client's id, or else by the offset id: both look the same, so both are tried."""
        found = find_by_id(self._store, message_id.encode())
        if found:
            return found
        try:
            _, sequence = parse_offset_msg_id(message_id)
        except ValueError:
            return []
        one = find_by_sequence(self._store, sequence)
        return [one] if one is not None else []

    def _places_of(self, message_id: str, topic: str) -> set[tuple[str, str]]:
        """Id and topic of the messages with an id. Redeliveries to consumers are not aborted by the way."""
        places = {self._place(found) for found in self._find_by_id(message_id)}
        if topic:
            return {place for place in places if place[1] == topic}
        return {place for place in places if not place[1].startswith((RETRY_PREFIX, DLQ_PREFIX))}

    @staticmethod
    def _place(found: Found) -> tuple[str, str]:
        terms = terms_of(found.record)
        return terms.message_id.decode(), terms.topic.decode()

    @staticmethod
    def _permitted(call: Call, places: set[tuple[str, str]]) -> set[tuple[str, str]]:
        """The places that the sender may abort at. Of a message that they may not even read, they learn nothing.

        :raises RequestError: when they may read one that they may not abort.
        """
        permitted = {place for place in places if call.may(PUB, place[1])}
        for _, topic in places - permitted:
            if call.may(READ, topic):
                raise RequestError(
                    ResponseCode.NO_PERMISSION,
                    f"a message of topic {topic} has this id, and you have no permission to send to it",
                )
        return permitted

    def _abort_ids(self, places: set[tuple[str, str]]) -> list[dict[str, str | int]]:
        now_ms = self._broker.clock.now_ms()
        return [
            _result(message_id, topic, result.due_ms, result.outcome)
            for message_id, topic in sorted(places)
            for result in self._store.abort(message_id.encode(), now_ms, topic.encode())
        ]

    def _describe(self, found: Found) -> dict[str, Any]:
        message = decode_message(found.record)
        message_id = find(message.properties, names.UNIQ_KEY) or ""
        handle = None
        if found.state is State.PENDING:
            handle = RecallHandle(
                message.topic, self._broker.config.broker_name, found.due_ms, message_id
            ).encode()
        return {
            "msgId": message_id,
            "offsetMsgId": offset_msg_id(self._broker.host, found.sequence),
            "topic": message.topic,
            "queueId": message.queue_id,
            "tags": find(message.properties, names.TAGS) or "",
            "keys": find(message.properties, names.KEYS) or "",
            "dueMs": found.due_ms,
            "state": found.state.value,
            "movedMs": found.moved_ms,
            "queueOffset": found.offset,
            "storeMs": message.store_ms,
            "bornMs": message.born_ms,
            "bornHost": "{}:{}".format(*unpack_host(message.born_host)),
            "bodySize": len(message.body),
            "recallHandle": handle,
        }


def _result(message_id: str, topic: str, due_ms: int, outcome: Aborted) -> dict[str, str | int]:
    return {"msgId": message_id, "topic": topic, "dueMs": due_ms, "outcome": outcome.value}


def _place_of(found: Found) -> bytes:
    """A message's place in the order of due times, as a cursor holds it."""
    return found.due_ms.to_bytes(8) + found.sequence.to_bytes(8)


def _end_of(fields: LookUpTimers) -> int:
    return _LATEST_MS if fields.end is None else max(0, fields.end)


def _parse_cursor(text: str) -> bytes | None:
    if not text:
        return None
    try:
        cursor = bytes.fromhex(text)
    except ValueError:
        cursor = b""
    if len(cursor) < 9:
        raise RequestError(ResponseCode.INVALID_PARAMETER, "the cursor is not one of this gateway")
    return cursor
