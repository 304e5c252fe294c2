"""Pops (200050): messages from any queue of a topic, each for one consumer for some time; in order,
only when nothing popped before from the same queue is still under way."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final, NamedTuple

from gateway.broker import Broker
from gateway.filters import Filter
from gateway.pop_orders import ORDERED_QUEUE, Place
from gateway.pop_queues import LONGEST_INVISIBLE_MS, MAX_MESSAGES, PopQueue, PopQueues, Search
from gateway.pop_waits import PopWaits, Waited, time_left_ms
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
"""A pop is refused that comes so long after its own end (PopMessageRequestHeader.isTimeoutTooMuch)."""

RETRIES_FIRST: Final = 5
"""One in so many pops looks for messages that came back before it looks for new ones; the others
after (popFromRetryProbability)."""

REVIVE_QUEUE: Final = 0
"""Upstream spreads what it notes of pops over queues, and clients show the number again; here it
means nothing."""

REFUSED: Final = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": "0"}
"""What upstream's answers have that refuse a pop."""


class Found(NamedTuple):
    """What a pop took: the records, where they were, how many more there are, and, in order, how
    often they had been delivered before."""

    records: list[bytes]
    places: list[Popped]
    rest: int
    counts: list[str]


class Popping:
    """Hands messages out, each to one consumer at a time."""

    def __init__(self, broker: Broker, queues: PopQueues, waits: PopWaits) -> None:
        self._broker = broker
        self._store = broker.store
        self._queues = queues
        self._waits = waits

    def pop(self, call: Call) -> None:
        """Answer with messages that nobody else has; when there are none, wait for one if the client lets us, and there
        is a queue where one may come."""
        fields: PopMessage = call.fields
        left_ms = time_left_ms(self._broker.clock, fields.born_time, fields.poll_time)
        try:
            self._check(fields, left_ms)
            queues = self._queues.find(call, fields.consumer_group, fields.topic, fields.queue_id)
            wanted = self._queues.filter(fields.exp, fields.exp_type)
        except RequestError as error:
            error.ext = REFUSED
            raise
        queues = _in_turn(queues, in_order=fields.order)
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

    def _retry(self, call: Call, one: PopQueue, wanted: Filter) -> bool:
        """Look again for a pop that has waited; False when it is to wait on.

        :raises RequestError: when its topic was deleted meanwhile: what is left of that is nobody's.
        """
        try:
            self._broker.topics.need(call.fields.topic)
        except RequestError as error:
            error.ext = REFUSED
            raise
        return self._deliver(call, [one], wanted)

    def _deliver(self, call: Call, queues: list[PopQueue], wanted: Filter) -> bool:
        """Answer with what there is; False when there is nothing."""
        now_ms = self._broker.clock.now_ms()
        found = self._take(call.fields, queues, wanted, now_ms)
        if found.records:
            ext = _places(call.fields, now_ms, found)
            self._broker.committer.answer(
                call, call.encode(ext, b"".join(found.records), remark="FOUND")
            )
        elif found.rest:
            # The filter skipped as much as one pop may look at, or none was asked for: the client comes back for
            # the rest.
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
        """Take messages: they are invisible from now on, and the group's progress is behind them."""
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
                continue  # what is in there wakes nobody, so it is not left over for anyone either
            if left > 0 and left_bytes > 0 and not search.is_over:
                try:
                    page = search.read(one, begin, left, left_bytes)
                except DamagedError:
                    continue  # it waits for a repair, and the others not for it
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
                # In order the group's progress goes on with the acknowledgements.
                behind = begin if fields.order and page.messages else offset
                if behind != begin or (fields.order and page.messages):
                    group = fields.consumer_group.encode()
                    self._store.progress.advance(group, queue.topic, queue.number, behind)
            rest += max(0, queue.visible - offset)
        return Found(records, places, rest, counts)

    def _note(self, fields: PopMessage, one: PopQueue, page: Page, now_ms: int) -> None:
        """Note who has the messages."""
        queue, group = one.queue, fields.consumer_group
        back_ms = now_ms + fields.invisible_time
        pops = [
            Pop(back_ms, group.encode(), queue.topic, queue.number, each.offset)
            for each in page.messages
        ]
        put_pops(self._store, pops, now_ms)

    def _note_order(self, fields: PopMessage, one: PopQueue, page: Page, now_ms: int) -> str:
        """Note which messages are under way; how often they had been delivered before."""
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
        """Messages as they are answered."""
        queue, group = one.queue, fields.consumer_group
        size = sum(len(each.record) for each in page.messages)
        self._broker.stats.handed_out(
            queue.topic.decode(), group, queue.number, page.next_offset, len(page.messages), size
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
        """A message that came back under the topic that was asked for. It brings its handle with it;
        for the others the client makes it."""
        message = decode_message(record)
        message.topic = fields.topic
        message.store_ms = stored_ms
        message.queue_offset = handle.offset
        properties = remove(message.properties, [names.POP_CK])
        message.properties = f"{properties}{names.POP_CK}\x01{handle.encode()}\x02"
        return encode_again(message)


def _in_turn(queues: list[PopQueue], *, in_order: bool) -> list[PopQueue]:
    """The queues in the order in which a pop looks at them. What is popped in order stays in its queue, and never
    comes back elsewhere."""
    normal = [one for one in queues if one.kind == NORMAL]
    random.shuffle(normal)
    if in_order:
        return normal
    back = [one for one in queues if one.kind == RETRIED]
    return back + normal if random.randrange(RETRIES_FIRST) == 0 else normal + back


def _places(fields: PopMessage, now_ms: int, found: Found) -> Mapping[str, str]:
    """What an answer says of a pop beside its messages; clients make the messages' handles of it."""
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
