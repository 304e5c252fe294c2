"""Pops: a message is invisible to the rest of a group for some time, whether it was popped at once or when it arrived.
An acknowledged message is done. A postponed or unacknowledged one comes back at its time, and becomes a dead letter
after too many times. With pops in order, no message of a queue overtakes the invisible ones."""

from __future__ import annotations

import base64
import json
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from gateway.pops.waits import LET_GO_BEFORE
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command
from gateway.wire.messages import Message as Record
from gateway.wire.messages import decode_messages
from gateway.wire.pops import Handle, parse_handle
from tests.gateway.memory import MemoryClient
from tests.gateway.model.machine import MOST_RETRIES, TOPICS, Machine, picks, queues, topics
from tests.gateway.model.world import Message, Order, Place
from tests.gateway.popping import handle_fields, handles, pop_fields

GROUP, IN_ORDER = "poppers", "ordered"

REVIVAL_MS = 200
WAITING_INVISIBLE_MS = 60_000
"""The invisible time of pops that wait: long enough that their messages are compared before they come back."""


class Taken(NamedTuple):
    """A message from a pop: the topic of the request, and the client's handle."""

    group: str
    topic: str
    text: str

    @property
    def handle(self) -> Handle:
        """The parsed handle."""
        return parse_handle(self.text)

    @property
    def place(self) -> Place:
        """The queue in which the message is."""
        return self.fields()["topic"], self.handle.queue

    def fields(self) -> dict[str, str]:
        """Return the fields of a request about the message."""
        return handle_fields(self.text, self.group, self.topic)

    def renewed(self, answer: Command) -> Taken:
        """Return the message with its new handle after it was postponed."""
        start, _, _, _, *rest = self.text.split(" ")
        ext = answer.ext()
        parts = [start, ext["popTime"], ext["invisibleTime"], ext["reviveQid"], *rest]
        return self._replace(text=" ".join(parts))


class WaitingPop(NamedTuple):
    """A pop that has found nothing yet, and when it ends, in ms of the reactor."""

    client: MemoryClient
    opaque: int
    topic: str
    places: list[Place]
    end_ms: int


def _back_in(group: str, topic: str) -> str:
    return f"%RETRY%{group}_{topic}"


class Pops(Machine):
    """The requests of consumers that pop."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Taken] = []
        self.waiting_pops: list[WaitingPop] = []

    # -- in any order

    @rule(
        topic=topics,
        queue=st.sampled_from([-1, 0, 1]),
        most=st.integers(1, 4),
        invisible_ms=st.sampled_from([0, 1, 1_000, 3_000, 30_000]),
        wait_ms=st.sampled_from([0, 3_000 + REVIVAL_MS]),
    )
    def pop(self, topic: str, queue: int, most: int, invisible_ms: int, wait_ms: int) -> None:
        answer = self._ask_pop(GROUP, topic, queue, most, invisible_ms)
        if answer is None:
            return
        places = self._popped_from(topic, queue)
        count, rest = self._take(answer, topic, places, invisible_ms)
        assert count == most or rest == 0
        assert int(answer.ext()["restNum"]) == rest
        self.gateway.advance(wait_ms)

    @rule(topic=topics, queue=st.sampled_from([-1, 0, 1]), wait_ms=st.sampled_from([300, 15_000]))
    def pop_and_wait(self, topic: str, queue: int, wait_ms: int) -> None:
        """Pop when there is no message, and wait for the next one."""
        fields = pop_fields(
            self.gateway,
            consumerGroup=GROUP,
            topic=topic,
            queueId=queue,
            invisibleTime=WAITING_INVISIBLE_MS,
            pollTime=wait_ms,
        )
        places = self._popped_from(topic, queue)
        if topic not in self.world.topics or any(map(self._left, places)):
            return
        opaque = self.client.send(RequestCode.POP_MESSAGE, fields)
        assert self.client.answer(opaque) is None, "the pop did not wait"
        end_ms = self.gateway.elapsed_ms + wait_ms
        self.waiting_pops.append(WaitingPop(self.client, opaque, topic, places, end_ms))
        for place in places:
            self._begin_of(GROUP, place)

    def _check_waiting_pops(self) -> None:
        """Check that each waiting pop is answered with the first messages that entered one of its queues, or with none
        only near its end."""
        for one in list(self.waiting_pops):
            if one.client is not self.client:
                self.waiting_pops.remove(one)
                continue
            answer = one.client.answer(one.opaque)
            looked_at = one.places
            if answer is not None:
                self.waiting_pops.remove(one)
                if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                    assert one.topic not in self.world.topics
                    continue
                before = len(self.taken)
                self._take(answer, one.topic, [], WAITING_INVISIBLE_MS)
                came = {taken.place for taken in self.taken[before:]}
                is_over = one.end_ms - 1_000 * LET_GO_BEFORE <= self.gateway.elapsed_ms
                assert came or is_over, "a pop was let go too early"
                looked_at = [place for place in looked_at if came and place <= max(came)]
            elif one.topic in self.world.woken:
                # If the topic was deleted meanwhile, and made again, its queues have no progress until then.
                for place in looked_at:
                    self._begin_of(GROUP, place)
            # The waiting pop looked again at each queue whose progress was reset, one after the other.
            for place in looked_at:
                self.world.resets.pop((GROUP, *place), None)
        self.world.woken.clear()

    def _popped_from(self, topic: str, queue: int) -> list[Place]:
        numbers = range(self.world.topics.get(topic, 0)) if queue < 0 else [queue]
        return [(_back_in(GROUP, topic), 0), *((topic, number) for number in numbers)]

    def _take(
        self, answer: Command, topic: str, places: list[Place], invisible_ms: int
    ) -> tuple[int, int]:
        """Make a pop's messages invisible from now on. Return how many there are, and how many are left in the places
        examined."""
        world = self.world
        found: dict[Place, list[int]] = {place: [] for place in places}
        for text, record in self._popped(answer):
            one = Taken(GROUP, topic, text)
            handle, place = one.handle, one.place
            found.setdefault(place, []).append(handle.offset)
            message = world.rows(place).at(handle.offset)
            assert message is not None
            self._check_record(record, message)
            assert handle.invisible_time == invisible_ms
            self.taken.append(one)
            world.pop(GROUP, place, message, handle.pop_time + invisible_ms)
        rest = 0
        for place, offsets in found.items():
            world.resets.pop((GROUP, *place), None)
            begin = self._begin_of(GROUP, place)
            assert offsets == list(range(begin, begin + len(offsets)))
            if offsets:
                world.advance((GROUP, *place), begin + len(offsets))
            rest += world.rows(place).end - begin - len(offsets)
        return sum(map(len, found.values())), rest

    def _left(self, place: Place) -> bool:
        """Whether a queue has messages left for the group."""
        rows = self.world.rows(place)
        return self.world.progress.get((GROUP, *place), rows.first) < rows.end

    def _begin_of(self, group: str, place: Place) -> int:
        """Return the offset at which a group that pops continues."""
        world, rows, key = self.world, self.world.rows(place), (group, *place)
        progress = world.progress.get(key)
        if progress is None:
            if not place[0].startswith("%RETRY%"):
                world.tell(key, rows.first)
            return rows.first
        if progress > rows.end:
            world.tell(key, rows.end)
        return max(rows.first, min(progress, rows.end))

    def _ask_pop(
        self, group: str, topic: str, queue: int, most: int, invisible_ms: int, **more: object
    ) -> Command | None:
        """Return a pop's answer; None when the topic does not exist."""
        fields = pop_fields(
            self.gateway,
            consumerGroup=group,
            topic=topic,
            queueId=queue,
            maxMsgNums=most,
            invisibleTime=invisible_ms,
            **more,
        )
        answer = self.client.ask(RequestCode.POP_MESSAGE, fields)
        if topic not in self.world.topics:
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
            return None
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT), answer.remark
        return answer

    @staticmethod
    def _popped(answer: Command) -> list[tuple[str, Record]]:
        """Return the messages of a pop, each with the handle that a client makes for it."""
        if answer.code != ResponseCode.SUCCESS:
            return []
        return list(zip(handles(answer), decode_messages(answer.body), strict=True))

    # -- in order

    @rule(
        topic=topics,
        queue=queues,
        most=st.integers(1, 3),
        invisible_ms=st.sampled_from([1, 1_000, 3_000]),
    )
    def pop_in_order(self, topic: str, queue: int, most: int, invisible_ms: int) -> None:
        world, now_ms = self.world, self.now_ms
        answer = self._ask_pop(IN_ORDER, topic, queue, most, invisible_ms, order="true")
        if answer is None:
            return
        key, rows = (IN_ORDER, topic, queue), world.rows((topic, queue))
        found = self._popped(answer)
        world.resets.pop(key, None)
        begin = self._begin_of(IN_ORDER, (topic, queue))
        order = world.orders.get(key)
        if order is not None and order.blocks(now_ms):
            assert found == []
            return
        expected = rows.messages[begin - rows.first :][:most]
        assert [parse_handle(text).offset for text, _ in found] == [one.offset for one in expected]
        for (text, record), one in zip(found, expected, strict=True):
            self._check_record(record, one)
            self.taken.append(Taken(IN_ORDER, topic, text))
        if expected:
            until_ms = now_ms + invisible_ms
            world.orders[key] = Order(now_ms, {one.offset: until_ms for one in expected})
            world.advance(key, begin)

    # -- acknowledgements

    @precondition(lambda self: self.taken)
    @rule(
        pick=picks,
        invisible_ms=st.none() | st.sampled_from([0, 1, 500, 4_000]),
        suspend=st.booleans(),
    )
    def acknowledge(self, pick: int, invisible_ms: int | None, suspend: bool) -> None:
        """Acknowledge a message, or change when it comes back, and whether that is a retry."""
        one: Taken = self._pick(self.taken, pick)
        handle, fields = one.handle, one.fields()
        if invisible_ms is None:
            answer = self.client.ask(RequestCode.ACK_MESSAGE, fields)
        else:
            fields |= {"invisibleTime": str(invisible_ms), "suspend": str(suspend).lower()}
            answer = self.client.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)
        rows = self.world.rows(one.place)
        expected: int = ResponseCode.SUCCESS
        if one.place[0] not in self.world.topics:
            expected = ResponseCode.TOPIC_NOT_EXIST
        elif not rows.first <= handle.offset <= rows.end:
            expected = ResponseCode.NO_MESSAGE
        elif one.group == IN_ORDER:
            expected = self._acknowledge_in_order(one, invisible_ms)
        else:
            if invisible_ms is not None:
                self.taken.append(one.renewed(answer))
            self._acknowledged(one, handle.offset, invisible_ms, suspend=suspend)
        assert answer.code == expected, answer.remark

    @precondition(lambda self: any(one.group == GROUP for one in self.taken))
    @rule(pick=picks, bits=st.integers(1, 15))
    def acknowledge_many(self, pick: int, bits: int) -> None:
        """Acknowledge messages of a pop by a set of bits, perhaps including messages that it did not return."""
        one: Taken = self._pick([one for one in self.taken if one.group == GROUP], pick)
        handle = one.handle
        batch = {
            "c": GROUP,
            "t": one.topic,
            "r": handle.retried,
            "q": handle.queue,
            "so": handle.offset,
            "pt": handle.pop_time,
            "it": handle.invisible_time,
            "rq": handle.revive_queue,
            "b": base64.b64encode(bytes([bits])).decode(),
        }
        body = json.dumps({"brokerName": handle.broker_name, "acks": [batch]}).encode()
        answer = self.client.ask(RequestCode.BATCH_ACK_MESSAGE, None, body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        for bit in range(4):
            if bits >> bit & 1:
                self._acknowledged(one, handle.offset + bit, None)

    def _acknowledged(
        self, one: Taken, offset: int, invisible_ms: int | None, *, suspend: bool = False
    ) -> None:
        world, handle = self.world, one.handle
        back_ms = handle.pop_time + handle.invisible_time
        for pop in [pop for pop in world.pops if pop[:4] == (GROUP, one.place, offset, back_ms)]:
            world.pops.remove(pop)
            if invisible_ms is not None:
                back_ms = self.now_ms + invisible_ms
                world.pop(GROUP, pop.place, pop.message, back_ms, suspended=suspend)

    def _acknowledge_in_order(self, one: Taken, invisible_ms: int | None) -> int:
        """Return the expected response code."""
        world, offset = self.world, one.handle.offset
        key = (IN_ORDER, *one.place)
        order = world.orders.get(key)
        if order is None or order.popped_ms != one.handle.pop_time:
            return ResponseCode.SUCCESS
        if offset < world.progress.get(key, -1):
            return ResponseCode.SUCCESS
        if offset not in order.until_ms:
            # The message is from another pop within the same millisecond.
            return ResponseCode.MESSAGE_ILLEGAL if invisible_ms is None else ResponseCode.SUCCESS
        if invisible_ms is None:
            order.until_ms[offset] = None
            world.advance(key, order.next_offset)
        elif order.until_ms[offset] is not None:
            order.until_ms[offset] = self.now_ms + invisible_ms
        return ResponseCode.SUCCESS

    # -- messages that come back

    def _revived(self, one: Message, stored_ms: int) -> None:
        """Note that a popped message came back because it was not acknowledged in time."""
        world = self.world
        candidates = []
        for pop in world.pops:
            popped = pop.message
            back_in = _back_in(GROUP, pop.place[0].removeprefix(_back_in(GROUP, "")))
            if popped.retries >= MOST_RETRIES and not pop.suspended:
                back_in = f"%DLQ%{GROUP}"
            retries = popped.retries + (not pop.suspended)
            came = (popped.body, retries, back_in) == (one.body, one.retries, one.topic)
            if came and pop.back_ms <= self.highest_ms:
                candidates.append(pop)
        assert candidates, "came back without having been popped"
        pop = min(candidates, key=lambda pop: pop.back_ms)
        world.pops.remove(pop)
        self._check_moment(stored_ms, pop.back_ms, REVIVAL_MS)

    def _check_revived(self) -> None:
        """Check that no message is overdue to come back."""
        world, now_ms = self.world, self.now_ms
        regular_ms = self.gateway.elapsed_ms - self.regular_since
        for pop in list(world.pops):
            if world.rows(pop.place).at(pop.offset) is None:
                if pop.back_ms <= now_ms:
                    world.pops.remove(pop)
            else:
                late_ms = min(now_ms - pop.back_ms, regular_ms)
                assert late_ms <= REVIVAL_MS, ("did not come back", pop)

    @staticmethod
    def _made_by_pops() -> list[str]:
        """Return the topics that pops create."""
        return [*(_back_in(GROUP, topic) for topic in TOPICS), f"%DLQ%{GROUP}"]
