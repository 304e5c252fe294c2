"""Messages that have not fired: recall (370), abort and look-up (Tidegate's own 31002 and 31001), counts (61)."""

from __future__ import annotations

import time

import msgspec

from gateway.abort import abort_remark, best_outcome
from gateway.broker import Broker
from gateway.intake import terms_of
from gateway.router import Call, RequestError
from gateway.topics import DLQ_PREFIX, RETRY_PREFIX
from gateway.wire import properties as names
from gateway.wire.codes import ResponseCode
from gateway.wire.headers import AbortTimers, LookUpTimers, RecallMessage
from gateway.wire.messages import decode_message, java_hash, offset_msg_id, parse_offset_msg_id
from gateway.wire.properties import find
from gateway.wire.recall import RecallHandle, RecallHandleError
from storage import (
    Aborted,
    Found,
    State,
    find_by_id,
    find_by_key,
    find_by_sequence,
    held_by_topic,
    scan_pending,
)

MAX_PAGE = 1_000
"""Most messages in one answer to a look-up."""

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
        fields: RecallMessage = call.fields
        topic = self._broker.topics.get(fields.topic)
        self._check_enabled()
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{fields.topic}] not exist"
            )
        handle = self._handle(fields.recall_handle)
        if handle.topic != fields.topic:
            raise RequestError(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        now_ms = self._broker.clock.now_ms()
        results = self._store.abort(handle.message_id.encode(), now_ms, topic.stored_name)
        outcome = best_outcome(results)
        aborted = outcome is Aborted.ABORTED
        ext = {"msgId": handle.message_id, "outcome": outcome.value}
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
            results = self._abort_ids(self._places_of(fields.id, fields.topic))
            results = results or [_result(fields.id, fields.topic or "", 0, Aborted.UNKNOWN)]
        elif fields.key and fields.topic:
            found = find_by_key(
                self._store, [fields.topic.encode()], fields.key.encode(), MAX_ABORTED_BY_KEY
            )
            results = self._abort_ids({self._place(message) for message in found})
            results = results or [_result("", fields.topic, 0, Aborted.UNKNOWN)]
        else:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, "name a handle, an id, or a topic and a key"
            )
        body = msgspec.json.encode({"results": results})
        self._broker.committer.answer(call, call.encode(body=body))

    def look_up(self, call: Call) -> None:
        """A page of messages by id, by key, or by due time, each with its state."""
        fields: LookUpTimers = call.fields
        limit = max(1, min(fields.limit, MAX_PAGE))
        states = None if fields.state == "any" else {State(fields.state)}
        cursor: str | None = None
        if fields.id:
            found = self._find_by_id(fields.id)
            found = [one for one in found if fields.topic in ("", decode_message(one.record).topic)]
        elif fields.key:
            topics = [fields.topic] if fields.topic else self._broker.topics.names()
            found = find_by_key(
                self._store, [name.encode() for name in topics], fields.key.encode(), limit
            )
        else:
            if states != {State.PENDING}:
                raise RequestError(
                    ResponseCode.INVALID_PARAMETER,
                    "only pending messages can be listed by topic or time: name an id or a key",
                )
            page = scan_pending(
                self._store,
                topic=fields.topic.encode() or None,
                begin_ms=max(0, fields.begin),
                end_ms=_LATEST_MS if fields.end is None else max(0, fields.end),
                tag_hash=java_hash(fields.tag) if fields.tag else None,
                cursor=_parse_cursor(fields.cursor),
                limit=limit,
            )
            found = page.found
            cursor = page.cursor.hex() if page.cursor is not None else None
        messages = [self._describe(one) for one in found if states is None or one.state in states]
        if fields.tag:
            messages = [one for one in messages if one["tags"] == fields.tag]
        call.answer(body=msgspec.json.encode({"messages": messages[:limit], "cursor": cursor}))

    def metrics(self, call: Call) -> None:
        """How many messages of each topic have not fired (61)."""
        now_ms = int(time.time() * 1000)
        counts = {
            topic.decode(): {"count": count, "timeStamp": now_ms}
            for topic, count in held_by_topic(self._store).items()
        }
        version = {"counter": 0, "stateVersion": 0, "timestamp": now_ms}
        call.answer(body=msgspec.json.encode({"dataVersion": version, "timingCount": counts}))

    def _check_enabled(self) -> None:
        if not self._broker.config.recall_enabled:
            raise RequestError(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")

    def _handle(self, text: str) -> RecallHandle:
        try:
            handle = RecallHandle.parse(text)
        except RecallHandleError as error:
            raise RequestError(
                ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid"
            ) from error
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

    def _abort_ids(self, places: set[tuple[str, str]]) -> list[dict[str, str | int]]:
        now_ms = self._broker.clock.now_ms()
        return [
            _result(message_id, topic, result.due_ms, result.outcome)
            for message_id, topic in sorted(places)
            for result in self._store.abort(message_id.encode(), now_ms, topic.encode())
        ]

    def _describe(self, found: Found) -> dict[str, str | int | None]:
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
            "bodySize": len(message.body),
            "recallHandle": handle,
        }


def _result(message_id: str, topic: str, due_ms: int, outcome: Aborted) -> dict[str, str | int]:
    return {"msgId": message_id, "topic": topic, "dueMs": due_ms, "outcome": outcome.value}


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
