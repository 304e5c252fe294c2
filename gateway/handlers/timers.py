"""Messages that have not fired: recall (370) and counts (61). Requests of Tidegate's own: look-up (31001), abort
(31002), reschedule (31003), bulk changes (31007), and pauses of topics (31004 to 31006)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial

import msgspec
from twisted.logger import Logger

from gateway.access.policies import READ
from gateway.broker import Broker
from gateway.handlers.steps import Steps
from gateway.intake import REGION
from gateway.pending.abort import abort_remark, best_outcome
from gateway.pending.bulk import BulkChanges
from gateway.pending.messages import Outcome, PendingMessages, Wanted
from gateway.pending.pauses import Pauses
from gateway.pending.rescheduling import NewTime, Rescheduling
from gateway.reactor import Reactor
from gateway.router import REFUSED, Call, RequestError
from gateway.wire import properties as names
from gateway.wire.admin_bodies import DataVersion
from gateway.wire.codes import ResponseCode
from gateway.wire.cursors import own_cursor
from gateway.wire.headers import (
    AbortTimers,
    BulkChangeTimers,
    LookUpTimers,
    RecallMessage,
    RescheduleTimers,
)
from gateway.wire.pending_bodies import (
    AbortAnswer,
    BulkAnswer,
    HeldPage,
    PauseAnswer,
    PausedTopics,
    RescheduleAnswer,
)
from storage import Aborted


def _nothing_named() -> RequestError:
    return RequestError(
        ResponseCode.INVALID_PARAMETER, "name a handle, an id, or a topic and a key"
    )


def _new_time(fields: RescheduleTimers | BulkChangeTimers) -> NewTime:
    to = NewTime(fields.due, fields.delay, fields.shift)
    to.check()
    return to


class Timers:
    """Answers questions about messages that have not fired, and changes them."""

    log = Logger()

    def __init__(
        self,
        broker: Broker,
        pending: PendingMessages,
        rescheduling: Rescheduling,
        bulk: BulkChanges,
        pauses: Pauses,
        reactor: Reactor,
    ) -> None:
        self._broker = broker
        self._steps = Steps(reactor, broker.committer)
        self._store = broker.store
        self._pending = pending
        self._rescheduling = rescheduling
        self._bulk = bulk
        self._pauses = pauses

    def recall(self, call: Call) -> None:
        """Abort a message by the handle in the answer to its send. Success means: it was pending, and never fires."""
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
        code, remark = ResponseCode.SUCCESS, None
        if outcome is not Aborted.ABORTED:
            code = ResponseCode.ILLEGAL_OPERATION
            remark = abort_remark(outcome, handle.message_id)
            self.log.debug(REFUSED, code=code, remark=remark)
        ext = {
            "msgId": handle.message_id,
            "outcome": outcome.value,
            names.MSG_REGION: REGION,
        }
        frame = call.encode(ext, code=code, remark=remark)
        self._broker.committer.answer(call, frame)

    def abort(self, call: Call) -> None:
        """Abort by handle, by id (the client's or the offset id), or by topic and key. Answer with one result for each
        message."""
        fields: AbortTimers = call.fields
        if fields.handle:
            results = self._pending.abort_by_handle(fields.handle, call.may)
        elif fields.id:
            results = self._pending.abort_by_id(fields.id, fields.topic, call.may)
        elif fields.key and fields.topic:
            change = self._pending.abort_by_key(fields.topic, fields.key, call.may, call)
            self._steps.change(self._changed(call, change, AbortAnswer), call)
            return
        else:
            raise _nothing_named()
        self._answer(call, AbortAnswer(results))

    def reschedule(self, call: Call) -> None:
        """Reschedule by handle, by id, or by topic and key. Answer with one result for each message."""
        fields: RescheduleTimers = call.fields
        to = _new_time(fields)
        if fields.handle:
            results = self._rescheduling.by_handle(fields.handle, to, call.may)
        elif fields.id:
            results = self._rescheduling.by_id(fields.id, fields.topic, to, call.may)
        elif fields.key and fields.topic:
            change = self._rescheduling.by_key(fields.topic, fields.key, to, call.may, call)
            self._steps.change(self._changed(call, change, RescheduleAnswer), call)
            return
        else:
            raise _nothing_named()
        self._answer(call, RescheduleAnswer(results))

    def change_many(self, call: Call) -> None:
        """Count, abort or reschedule one step of a topic's pending messages that match."""
        fields: BulkChangeTimers = call.fields
        cursor = own_cursor(fields.cursor, self._broker.config.broker_name)
        wanted = Wanted(
            key=fields.key,
            topic=fields.topic,
            tag=fields.tag,
            begin_ms=fields.begin,
            end_ms=fields.end,
        )
        if cursor is None:
            self._answer(call, BulkAnswer(0))
        elif fields.action == "count":
            self._steps.once(partial(self._count, call, wanted, cursor), call)
        elif fields.action == "abort":
            self._in_turn(call, partial(self._bulk.abort, wanted, call.may, cursor))
        else:
            to = _new_time(fields)
            self._in_turn(call, partial(self._bulk.reschedule, wanted, to, call.may, cursor))

    def _count(self, call: Call, wanted: Wanted, cursor: str) -> None:
        answer = self._bulk.count(wanted, call.may, cursor)
        call.answer(body=msgspec.json.encode(answer))

    def pause(self, call: Call) -> None:
        """Pause a topic: none of its messages fires until it is resumed."""
        self._answer(call, PauseAnswer(self._pauses.pause(call.fields.topic)))

    def resume(self, call: Call) -> None:
        """Resume a topic: its messages fire again."""
        self._answer(call, PauseAnswer(self._pauses.resume(call.fields.topic)))

    def paused(self, call: Call) -> None:
        """Answer with the paused topics that the sender may read."""
        topics = [one for one in self._pending.paused() if call.may(READ, one.topic)]
        call.answer(body=msgspec.json.encode(PausedTopics(topics)))

    def _in_turn(self, call: Call, change: Callable[[], msgspec.Struct]) -> None:
        """Change many messages, one such change a turn. Answer with what `change` returns."""

        def made() -> Iterator[None]:
            with self._broker.audit.acting(call):
                try:
                    self._answer(call, change())
                finally:
                    self._broker.committer.settle()
            yield from ()

        self._steps.change(made(), call)

    def _changed(
        self,
        call: Call,
        change: Generator[None, None, list[Outcome]],
        answer: Callable[[list[Outcome]], msgspec.Struct],
    ) -> Iterator[None]:
        """Take the steps of a change, and answer with what the last one returns."""
        try:
            outcomes = yield from change
            self._answer(call, answer(outcomes))
        finally:
            self._broker.committer.settle()

    def _answer(self, call: Call, body: msgspec.Struct) -> None:
        """Answer once the change is on disk."""
        self._broker.committer.answer(call, call.encode(body=msgspec.json.encode(body)))

    def look_up(self, call: Call) -> None:
        """Answer with a page of messages by id, by key, or by due time, the next due first, each with its state."""
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
        cursor = own_cursor(fields.cursor, self._broker.config.broker_name)
        if cursor is None:
            call.answer(body=msgspec.json.encode(HeldPage([])))
        else:
            self._steps.begin(self._find(call, wanted, fields.limit, cursor), call)

    def _find(self, call: Call, wanted: Wanted, limit: int, cursor: str) -> Iterator[None]:
        page = yield from self._pending.look_up(wanted, call.may, limit=limit, cursor=cursor)
        call.answer(body=msgspec.json.encode(page))

    def metrics(self, call: Call) -> None:
        """Answer with the number of messages of each topic that have not fired (61)."""
        now_ms = self._broker.clock.now_ms()
        counts = {
            topic.decode(): {"count": count, "timeStamp": now_ms}
            for topic, count in self._store.held_totals().items()
        }
        answer = {"dataVersion": DataVersion(0, now_ms), "timingCount": counts}
        call.answer(body=msgspec.json.encode(answer))
