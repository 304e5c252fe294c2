"""Requests about messages that could be popped, which take none of them: 200052, 200054, 200055."""

from __future__ import annotations

from gateway.broker import Broker
from gateway.filters import Filter
from gateway.pops.queues import MAX_MESSAGES, PopQueue, PopQueues, Search, check_attempt
from gateway.pops.waits import PopWaits, Waited, time_left_ms
from gateway.router import Call
from gateway.wire.codes import ResponseCode
from gateway.wire.headers import Notification, PeekMessage, PollingInfo
from gateway.wire.messages import stamp
from storage import DamagedError


class PopViews:
    """Answers whether there are messages to pop, and which."""

    def __init__(self, broker: Broker, queues: PopQueues, waits: PopWaits) -> None:
        self._broker = broker
        self._store = broker.store
        self._queues = queues
        self._waits = waits

    def peek(self, call: Call) -> None:
        """Answer with the messages that a pop would find, without taking them (200052). More than a pop may take are
        not refused, but not given either."""
        fields: PeekMessage = call.fields
        queues = self._queues.find(call, fields.consumer_group, fields.topic, fields.queue_id)
        left = min(fields.max_msg_nums, MAX_MESSAGES)
        left_bytes = self._broker.config.max_pull_bytes
        records: list[bytes] = []
        rest = 0
        for one in queues:
            begin = self._queues.progress(fields.consumer_group, one, 0, pops=False)
            if left > 0 and left_bytes > 0:
                try:
                    page = self._store.read(one.queue, begin, left, left_bytes)
                except DamagedError:
                    continue  # as with a pop
                found = [stamp(each.record, each.offset, each.stored_ms) for each in page.messages]
                records += found
                left -= len(found)
                left_bytes -= sum(map(len, found))
            rest += max(0, one.queue.visible - begin)
        # The rest includes the messages of this answer, as upstream's does: nobody has taken them.
        ext = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": str(rest)}
        if records:
            call.answer(ext, b"".join(records), remark="FOUND")
        else:
            call.answer(ext, code=ResponseCode.PULL_NOT_FOUND, remark="NO_MESSAGE_IN_QUEUE")

    def notification(self, call: Call) -> None:
        """Answer as soon as there is a message to pop, or that there is none when the wait is over (200054)."""
        fields: Notification = call.fields
        check_attempt(fields.attempt_id)
        queues = self._queues.find(call, fields.consumer_group, fields.topic, fields.queue_id)
        wanted = self._queues.filter(fields.exp, fields.exp_type)
        if self._notify(call, queues, wanted):
            return
        left_ms = time_left_ms(self._broker.clock, fields.born_time, fields.poll_time)
        left_ms = min(left_ms, fields.poll_time)
        if left_ms <= 0:
            _tell(call, has_message=False)
        elif not self._waits.wait(
            call,
            Waited(fields.consumer_group, fields.topic, fields.queue_id, notifies=True),
            queues,
            left_ms / 1000,
            lambda one: self._notify(call, [one], wanted),
            lambda: _tell(call, has_message=False),
        ):
            _tell(call, has_message=False, full=True)

    def _notify(self, call: Call, queues: list[PopQueue], wanted: Filter) -> bool:
        """Answer that there is a message to pop; return False when there is none.

        :raises RequestError: when the topic was deleted while the request waited: nobody may read what it still holds.
        """
        fields: Notification = call.fields
        self._broker.topics.need(fields.topic)
        search = Search(self._store, wanted)
        for one in queues:
            begin = self._queues.progress(fields.consumer_group, one, 0, pops=False)
            if fields.order and self._queues.blocks(
                fields.consumer_group, one.queue, fields.attempt_id, self._broker.clock.now_ms()
            ):
                continue
            try:
                page = search.read(one, begin, 1, 1)
            except DamagedError:
                continue  # as with a pop
            if page.messages or search.is_over:
                _tell(call, has_message=True)
                return True
        return False

    def polling_info(self, call: Call) -> None:
        """Answer with the number of pops that wait for messages (200055)."""
        fields: PollingInfo = call.fields
        self._queues.find(call, fields.consumer_group, fields.topic, fields.queue_id)
        waited = Waited(fields.consumer_group, fields.topic, fields.queue_id)
        call.answer({"pollingNum": str(self._waits.count(waited))})


def _tell(call: Call, *, has_message: bool, full: bool = False) -> None:
    call.answer({"hasMsg": str(has_message).lower(), "pollingFull": str(full).lower()})
