"""Pops (200050): return messages from any queue of a topic, each to one consumer for a limited time. A pop in order
gets messages of a queue only when no message that was popped from it before is still under way."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from gateway.broker import Broker
from gateway.filters import Filter
from gateway.pops.orders import ORDERED_QUEUE, Place
from gateway.pops.queues import (
    LONGEST_INVISIBLE_MS,
    MAX_MESSAGES,
    PopQueue,
    PopQueues,
    Search,
    check_attempt,
)
from gateway.pops.waits import PopWaits, Waited, time_left_ms
from gateway.router import Call, RequestError
from gateway.wire import properties as names
from gateway.wire.codes import ResponseCode
from gateway.wire.headers import PopMessage
from gateway.wire.messages import decode_message, encode_again, stamp
from gateway.wire.pops import (
    NORMAL,
    RETRIED,
    Handle,
    Popped,
    message_offset_info,
    order_count_info,
    start_offset_info,
)
from gateway.wire.properties import remove
from storage import DamagedError, Page, Pop, put_pops

LATE_MS: Final = 500
"""A pop that arrives this long after its own deadline is refused (PopMessageRequestHeader.isTimeoutTooMuch)."""

RETRIES_FIRST: Final = 5
"""One in this many pops looks for messages that came back before it looks for new ones. The other pops look for them
afterwards (popFromRetryProbability)."""

ALL_POPS: Final = 100
"""The percentage of pops that go by priority, unless the group has another (SubscriptionGroupAttributes)."""

REVIVE_QUEUE: Final = 0
"""Upstream spreads its records of pops over several revive queues, and clients send the number back. Here the number
has no meaning."""

REFUSED: Final = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": "0"}
"""Fields of the answers with which upstream refuses a pop."""


class Found(NamedTuple):
    """The messages that a pop took: their records, their places, the number of messages left, and, in order, how often
    they had been delivered before."""

    records: list[bytes]
    places: list[Popped]
    rest: int
    counts: list[str]


class Popping:
    """Answers pops: hands each message out to one consumer at a time."""

    def __init__(self, broker: Broker, queues: PopQueues, waits: PopWaits) -> None:
        self._broker = broker
        self._store = broker.store
        self._queues = queues
        self._waits = waits

    def pop(self, call: Call) -> None:
        """Answer with messages that no other consumer has. If there are none, wait for one, provided that the client
        allows it and there is a queue where one may arrive."""
        fields: PopMessage = call.fields
        left_ms = time_left_ms(self._broker.clock, fields.born_time, fields.poll_time)
        try:
            self._check(fields, left_ms)
            queues = self._queues.find(call, fields.consumer_group, fields.topic, fields.queue_id)
            wanted = self._queues.filter(fields.exp, fields.exp_type)
        except RequestError as error:
            error.ext = REFUSED
            raise
        queues = self._in_turn(fields, queues)
        if self._deliver(call, queues, wanted):
            return
        left_ms = min(left_ms, fields.poll_time)
        if left_ms <= 0 or not queues:
            self._answer_nothing(call)
        elif not self._waits.wait(
            call,
            Waited(fields.consumer_group, fields.topic, fields.queue_id),
            queues,
            left_ms / 1000,
            lambda one: self._retry(call, one, wanted),
            lambda: self._answer_nothing(call),
        ):
            self._answer_nothing(call, code=ResponseCode.POLLING_FULL)

    def _check(self, fields: PopMessage, left_ms: int) -> None:
        check_attempt(fields.attempt_id)
        host = self._broker.advertised.host
        if left_ms < -LATE_MS:
            raise RequestError(
                ResponseCode.POLLING_TIMEOUT, f"the broker[{host}] pop message is timeout too much"
            )
        if fields.max_msg_nums > MAX_MESSAGES:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{host}] pop message's num is greater than {MAX_MESSAGES}",
            )
        if not 0 <= fields.invisible_time < LONGEST_INVISIBLE_MS:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"a message cannot be invisible for {fields.invisible_time} ms",
            )

    def _in_turn(self, fields: PopMessage, queues: list[PopQueue]) -> list[PopQueue]:
        """Return the queues in the order in which a pop reads them. A message that was popped in order stays in its
        queue and never comes back in another."""
        normal = [one for one in queues if one.kind == NORMAL]
        back = [one for one in queues if one.kind == RETRIED]
        if not fields.order and self._goes_by_priority(fields):
            return normal[::-1] + back
        random.shuffle(normal)
        if fields.order:
            return normal
        return back + normal if random.randrange(RETRIES_FIRST) == 0 else normal + back

    def _goes_by_priority(self, fields: PopMessage) -> bool:
        """Return whether a pop takes the messages with the highest priority first, which are in the queue with the
        highest number."""
        topic = self._broker.topics.need(fields.topic)
        if topic.settings.attributes.get("message.type") != "PRIORITY":
            return False
        group = self._broker.groups.need(fields.consumer_group)
        return random.randrange(100) < int(group.attributes.get("priority.factor", ALL_POPS))

    def _retry(self, call: Call, one: PopQueue, wanted: Filter) -> bool:
        """Look again for messages for a waiting pop; return False when it has to wait on.

        :raises RequestError: when the group may not pop any more, as where its topic was deleted: nobody may read what
            the topic still holds.
        """
        try:
            self._queues.check_again(call.fields.consumer_group, call.fields.topic)
        except RequestError as error:
            error.ext = REFUSED
            raise
        return self._deliver(call, [one], wanted)

    def _deliver(self, call: Call, queues: list[PopQueue], wanted: Filter) -> bool:
        """Answer with the messages that are there; return False when there are none."""
        now_ms = self._broker.clock.now_ms()
        found = self._take(call.fields, queues, wanted, now_ms)
        if found.records:
            ext = _places(call.fields, now_ms, found)
            self._broker.committer.answer(
                call, call.encode(ext, b"".join(found.records), remark="FOUND")
            )
        elif found.rest:
            # The filter skipped as many messages as one pop may look at, or the pop asked for no messages: the client
            # asks again for the rest.
            self._answer_nothing(call, rest=found.rest)
        else:
            return False
        return True

    def _answer_nothing(
        self, call: Call, *, rest: int = 0, code: int = ResponseCode.POLLING_TIMEOUT
    ) -> None:
        self._broker.stats.missed += 1
        ext = _places(call.fields, self._broker.clock.now_ms(), Found([], [], rest, []))
        call.answer(ext, code=code, remark="NO_MESSAGE_IN_QUEUE")

    def _take(
        self, fields: PopMessage, queues: list[PopQueue], wanted: Filter, now_ms: int
    ) -> Found:
        """Take messages: make them invisible from now on, and move the group's progress past them unless in order."""
        left, left_bytes = fields.max_msg_nums, self._broker.config.max_pull_bytes
        records: list[bytes] = []
        places: list[Popped] = []
        counts: list[str] = []
        rest = 0
        search = Search(self._store, wanted)
        for one in queues:
            queue = one.queue
            begin = offset = self._queues.progress(
                fields.consumer_group, one, fields.init_mode, pops=True
            )
            if fields.order and self._queues.blocks(
                fields.consumer_group, queue, fields.attempt_id, now_ms
            ):
                continue  # these messages wake nobody, so they do not count as left either
            if left > 0 and left_bytes > 0 and not search.is_over:
                try:
                    page = search.read(one, begin, left, left_bytes)
                except DamagedError:
                    continue  # this queue waits for a repair; the others do not
                offset = page.next_offset
                if page.messages:
                    if fields.order:
                        counts.append(self._note_order(fields, one, page, now_ms))
                    else:
                        self._note(fields, one, page, now_ms)
                    taken = self._records(fields, one, page, begin, now_ms)
                    records += taken
                    places.append(
                        Popped(
                            one.kind, queue.number, begin, [each.offset for each in page.messages]
                        )
                    )
                    left -= len(taken)
                    left_bytes -= sum(map(len, taken))
                # In order, acknowledgements move the group's progress.
                behind = begin if fields.order and page.messages else offset
                if behind != begin or (fields.order and page.messages):
                    group = fields.consumer_group.encode()
                    self._store.progress.advance(group, queue.topic, queue.number, behind)
            rest += max(0, queue.visible - offset)
        return Found(records, places, rest, counts)

    def _note(self, fields: PopMessage, one: PopQueue, page: Page, now_ms: int) -> None:
        """Record which group has the messages, and until when."""
        queue, group = one.queue, fields.consumer_group
        back_ms = now_ms + fields.invisible_time
        pops = [
            Pop(back_ms, group.encode(), queue.topic, queue.number, each.offset)
            for each in page.messages
        ]
        put_pops(self._store, pops, now_ms)

    def _note_order(self, fields: PopMessage, one: PopQueue, page: Page, now_ms: int) -> str:
        """Record which messages are under way; return how often they had been delivered before."""
        queue = one.queue
        pop = self._broker.orders.note(
            Place(fields.consumer_group, queue.topic.decode(), queue.number),
            fields.attempt_id,
            now_ms,
            fields.invisible_time,
            [each.offset for each in page.messages],
        )
        return order_count_info(one.kind, queue.number, pop.delivered, len(pop.offsets))

    def _records(
        self, fields: PopMessage, one: PopQueue, page: Page, begin: int, now_ms: int
    ) -> list[bytes]:
        """Return the messages as the answer holds them."""
        queue, group = one.queue, fields.consumer_group
        size = sum(len(each.record) for each in page.messages)
        self._broker.committer.once_stored(
            partial(
                self._broker.stats.handed_out,
                queue.topic.decode(),
                group,
                queue.number,
                page.next_offset,
                len(page.messages),
                size,
            )
        )
        if one.kind == NORMAL:
            return [stamp(each.record, each.offset, each.stored_ms) for each in page.messages]
        return [
            self._as_asked_for(
                fields,
                each.record,
                each.stored_ms,
                Handle(
                    begin,
                    now_ms,
                    fields.invisible_time,
                    REVIVE_QUEUE,
                    one.kind,
                    self._broker.config.broker_name,
                    queue.number,
                    each.offset,
                ),
            )
            for each in page.messages
        ]

    @staticmethod
    def _as_asked_for(fields: PopMessage, record: bytes, stored_ms: int, handle: Handle) -> bytes:
        """Return a message that came back under the topic that the client asked for. It carries its handle; for other
        messages the client builds the handle."""
        message = decode_message(record)
        message.topic = fields.topic
        message.store_ms = stored_ms
        message.queue_offset = handle.offset
        properties = remove(message.properties, [names.POP_CK])
        message.properties = f"{properties}{names.POP_CK}\x01{handle.encode()}\x02"
        return encode_again(message)


def _places(fields: PopMessage, now_ms: int, found: Found) -> Mapping[str, str]:
    """Return the fields of a pop's answer; clients build the messages' handles from them."""
    places = {
        "popTime": str(now_ms),
        "invisibleTime": str(fields.invisible_time),
        "reviveQid": str(ORDERED_QUEUE if fields.order else REVIVE_QUEUE),
        "restNum": str(found.rest),
        "startOffsetInfo": start_offset_info(found.places),
        "msgOffsetInfo": message_offset_info(found.places),
    }
    if fields.order:
        places["orderCountInfo"] = ";".join(found.counts)
    return places
