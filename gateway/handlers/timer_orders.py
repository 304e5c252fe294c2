"""Messages that are orders about another message: abort it (`TIMER_DEL_UNIQKEY`), or give it another time
(`TIDEGATE_RESCHEDULE`). Any client can send them. The gateway carries an order out, answers whether that worked, and
never delivers the order. An order names its target by the client's id or by the offset id: some clients learn only the
latter of the messages that they send.
"""

from __future__ import annotations

from collections.abc import Mapping

from twisted.logger import Logger

from gateway.broker import Broker
from gateway.delays import REQUESTS, TIMER_PROPERTIES, delay_of
from gateway.intake import NewMessage
from gateway.moments import is_in_seconds
from gateway.pending.abort import abort_remark, best_outcome
from gateway.pending.messages import PendingMessages, Place
from gateway.pending.rescheduling import NewTime, Rescheduling
from gateway.router import REFUSED, Call, illegal
from gateway.topics import Topic
from gateway.wire import properties as names
from gateway.wire.codes import ResponseCode
from gateway.wire.commands import send_response
from gateway.wire.messages import offset_msg_id
from gateway.wire.recall import RecallHandle
from storage import Aborted, Rescheduled, RescheduleResult

_BEST_FIRST = (
    Rescheduled.RESCHEDULED,
    Rescheduled.ALREADY_ABORTED,
    Rescheduled.ALREADY_FIRED,
    Rescheduled.UNKNOWN,
)

_REMARKS = {
    Rescheduled.ALREADY_FIRED: "reschedule failed, the message has already fired: {}",
    Rescheduled.ALREADY_ABORTED: "reschedule failed, the message was already aborted: {}",
    Rescheduled.UNKNOWN: "reschedule failed, no such message: {}",
}


def is_order(values: Mapping[str, str]) -> bool:
    """Return whether a message with these properties is an order.

    Upstream takes `TIMER_DEL_UNIQKEY` for an order only together with a time (HookUtils.handleScheduleMessage).
    """
    return names.RESCHEDULE in values or (
        names.TIMER_DEL_UNIQKEY in values and any(name in values for name in TIMER_PROPERTIES)
    )


class TimerOrders:
    """Carries out orders."""

    log = Logger()

    def __init__(
        self, broker: Broker, pending: PendingMessages, rescheduling: Rescheduling
    ) -> None:
        self._broker = broker
        self._pending = pending
        self._rescheduling = rescheduling

    def carry_out(self, call: Call, topic: Topic, order: NewMessage) -> None:
        """Carry out an order in the topic that it was sent to, and answer once the change is on disk."""
        target = order.values.get(names.TIMER_DEL_UNIQKEY)
        if target is None:
            self._reschedule(call, topic, order)
        else:
            # With upstream's appendTopicForTimerDeleteKey the topic and a plus precede the id.
            self._abort(call, topic, order, target.removeprefix(f"{topic.name}+"))

    def _abort(self, call: Call, topic: Topic, order: NewMessage, target: str) -> None:
        """Abort the target. Unlike upstream, the order need not name the target's time, the answer says what happened,
        and the setting `recall_enabled` applies."""
        self._pending.check_enabled()
        message_id = target
        outcome = best_outcome(self._pending.abort(target, topic.name))
        if outcome is Aborted.UNKNOWN and (known := self._pending.client_id(target, topic.name)):
            message_id = known
            outcome = best_outcome(self._pending.abort(known, topic.name))
        if outcome is Aborted.ABORTED:
            self._done(call, order, message_id)
        else:
            self._not_done(call, abort_remark(outcome, target))

    def _reschedule(self, call: Call, topic: Topic, order: NewMessage) -> None:
        self._rescheduling.check_enabled()
        target = order.values[names.RESCHEDULE]
        if order.values.keys().isdisjoint(REQUESTS):
            raise illegal(
                f"{names.RESCHEDULE} names a message, but nothing says when that is to be delivered: set one of "
                f"{', '.join(REQUESTS)}"
            )
        now_ms = self._broker.clock.now_ms()
        rules = self._broker.intake.rules_of(topic)
        delay = delay_of(order.properties, order.values, now_ms, rules)
        if delay is None:
            _refuse_seconds(order.values)
        to = NewTime(due_ms=delay.due_ms if delay is not None else now_ms)
        message_id = target
        best = min(self._rescheduling.move(Place(target, topic.name), to), key=_rank)
        if best.outcome is Rescheduled.UNKNOWN and (
            known := self._pending.client_id(target, topic.name)
        ):
            message_id = known
            best = min(self._rescheduling.move(Place(known, topic.name), to), key=_rank)
        if best.outcome is Rescheduled.RESCHEDULED:
            broker = self._broker.config.broker_name
            handle = RecallHandle(topic.name, broker, best.due_ms, message_id).encode()
            self._done(call, order, message_id, handle)
        else:
            self._not_done(call, _REMARKS[best.outcome].format(target))

    def _done(
        self, call: Call, order: NewMessage, message_id: str, handle: str | None = None
    ) -> None:
        frame = send_response(
            call.command.opaque,
            offset_msg_id(self._broker.host, 0),
            order.queue_id,
            0,
            order.values.get(names.UNIQ_KEY, message_id),
            handle,
        )
        self._broker.committer.answer(call, frame)

    def _not_done(self, call: Call, remark: str) -> None:
        self.log.debug(REFUSED, code=ResponseCode.MESSAGE_ILLEGAL, remark=remark)
        frame = call.encode(code=ResponseCode.MESSAGE_ILLEGAL, remark=remark)
        self._broker.committer.answer(call, frame)


def _refuse_seconds(values: Mapping[str, str]) -> None:
    """Refuse an instant in seconds: it would fire a message at once that is to fire later. A send with such an instant
    is delivered at once, as by RocketMQ, but this order is Tidegate's own.

    :raises RequestError: when the instant is in seconds.
    """
    for name in (names.TIMER_DELIVER_MS, names.START_DELIVER_TIME):
        text = values.get(name, "")
        if text.isdecimal() and len(text) < 20 and is_in_seconds(int(text)):
            raise illegal(f"{name} = {text} is in seconds: epoch ms of it are {text}000")


def _rank(result: RescheduleResult) -> int:
    """Return a result's rank. One answer covers all messages with an id: a client's repeated send can leave several."""
    return _BEST_FIRST.index(result.outcome)
