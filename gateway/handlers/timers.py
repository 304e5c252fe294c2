"""Messages that have not fired: recall (370), abort and look-up (Tidegate's own 31002 and 31001), counts (61)."""

from __future__ import annotations

import msgspec

from gateway.abort import abort_remark, best_outcome
from gateway.broker import Broker
from gateway.intake import REGION
from gateway.pending import PendingMessages, Wanted
from gateway.router import Call, RequestError
from gateway.wire import properties as names
from gateway.wire.codes import ResponseCode
from gateway.wire.headers import AbortTimers, LookUpTimers, RecallMessage
from gateway.wire.pending_bodies import AbortAnswer
from storage import Aborted


class Timers:
    """Answers questions and orders about what has not fired."""

    def __init__(self, broker: Broker, pending: PendingMessages) -> None:
        self._broker = broker
        self._store = broker.store
        self._pending = pending

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
        self._pending.check_enabled()
        if topic is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{fields.topic}] not exist"
            )
        handle = self._pending.read_handle(fields.recall_handle, fields.topic)
        results = self._pending.abort(handle.message_id, topic.name)
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
        if fields.handle:
            results = self._pending.abort_by_handle(fields.handle, call.may)
        elif fields.id:
            results = self._pending.abort_by_id(fields.id, fields.topic, call.may)
        elif fields.key and fields.topic:
            results = self._pending.abort_by_key(fields.topic, fields.key, call.may)
        else:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, "name a handle, an id, or a topic and a key"
            )
        body = msgspec.json.encode(AbortAnswer(results))
        self._broker.committer.answer(call, call.encode(body=body))

    def look_up(self, call: Call) -> None:
        """A page of messages by id, by key, or by due time, each with its state; the next due first."""
        fields: LookUpTimers = call.fields
        wanted = Wanted(
            id=fields.id,
            key=fields.key,
            topic=fields.topic,
            tag=fields.tag,
            begin_ms=fields.begin,
            end_ms=fields.end,
            state=fields.state,
        )
        page = self._pending.look_up(wanted, call.may, limit=fields.limit, cursor=fields.cursor)
        call.answer(body=msgspec.json.encode(page))

    def metrics(self, call: Call) -> None:
        """How many messages of each topic have not fired (61)."""
        now_ms = self._broker.clock.now_ms()
        counts = {
            topic.decode(): {"count": count, "timeStamp": now_ms}
            for topic, count in self._store.held_totals().items()
        }
        version = {"counter": 0, "stateVersion": 0, "timestamp": now_ms}
        call.answer(body=msgspec.json.encode({"dataVersion": version, "timingCount": counts}))
