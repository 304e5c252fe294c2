"""Consumers that pull: they receive the messages of a queue from an offset on, at once or when they arrive. They commit
their group's progress, and send messages back, which are retried or become dead letters."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command
from gateway.wire.messages import decode_messages
from tests.gateway.memory import MemoryClient
from tests.gateway.model.machine import LEVEL_MS, MOST_RETRIES, Machine, picks, queues, topics
from tests.gateway.model.world import Message, Place
from tests.gateway.tools import by_queue, commit_offset, ok, read

SWEEP_MS = 500

wanted_tags = st.sampled_from(["*", "A", "A || B"])


def _wants(tags: str, one: Message) -> bool:
    return tags == "*" or one.tag in tags.split(" || ")


class WaitingPull(NamedTuple):
    """A pull that has found nothing yet, and when it ends, in ms of the reactor."""

    client: MemoryClient
    opaque: int
    place: Place
    offset: int
    tags: str
    end_ms: int


class Consumers(Machine):
    """The requests of consumers of queues, and of operators about their progress."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting_pulls: list[WaitingPull] = []

    @rule(
        topic=topics,
        queue=queues,
        offset=st.integers(-3, 12),
        most=st.integers(1, 4),
        tags=wanted_tags,
        commit=st.none() | st.integers(0, 9),
    )
    def pull(
        self, topic: str, queue: int, offset: int, most: int, tags: str, commit: int | None
    ) -> None:
        world = self.world
        rows = world.rows((topic, queue))
        offset = max(0, rows.first + offset)
        answer = self.client.ask_pull(
            topic, queue, offset, group="readers", tags=tags, most=most, commit=commit
        )
        if topic not in world.topics:
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
            return
        ext = answer.ext()
        assert (int(ext["minOffset"]), int(ext["maxOffset"])) == (rows.first, rows.end)
        key = ("readers", topic, queue)
        reset = world.resets.pop(key, None)
        if reset is not None and world.progress.get(key) == reset:
            assert answer.code == ResponseCode.PULL_OFFSET_MOVED
            assert int(ext["nextBeginOffset"]) == reset
            return
        if commit is not None:
            world.tell(key, commit)
        expected: list[Message] = []
        if rows.first <= offset <= rows.end:
            while offset < rows.end and len(expected) < most:
                one = rows.messages[offset - rows.first]
                expected += [one] if _wants(tags, one) else []
                offset += 1
        else:
            offset = rows.first if offset < rows.first else rows.end
            assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert int(ext["nextBeginOffset"]) == offset
        self._check_pulled(answer, expected)

    def _check_pulled(self, answer: Command, expected: list[Message]) -> None:
        found = decode_messages(answer.body) if answer.code == ResponseCode.SUCCESS else []
        assert [record.queue_offset for record in found] == [one.offset for one in expected]
        for record, one in zip(found, expected, strict=True):
            self._check_record(record, one)

    @rule(
        topic=topics, queue=queues, tags=wanted_tags, wait_ms=st.sampled_from([300, 3_000, 15_000])
    )
    def pull_and_wait(self, topic: str, queue: int, tags: str, wait_ms: int) -> None:
        """Pull at the end of a queue, and wait for the next message."""
        if topic not in self.world.topics:
            return
        offset = self.world.rows((topic, queue)).end
        opaque = self.client.park(topic, queue, offset, group="waiters", tags=tags, wait_ms=wait_ms)
        end_ms = self.gateway.elapsed_ms + wait_ms
        self.waiting_pulls.append(
            WaitingPull(self.client, opaque, (topic, queue), offset, tags, end_ms)
        )

    def _check_waiting_pulls(self) -> None:
        """Check that each waiting pull is answered with the first wanted message that arrived, and perhaps more, or
        with none only at its end."""
        for one in list(self.waiting_pulls):
            rows = self.world.rows(one.place)
            if one.client is not self.client:
                self.waiting_pulls.remove(one)
                continue
            came = [
                each
                for each in rows.messages
                if each.offset >= one.offset and _wants(one.tags, each)
            ]
            answer = one.client.answer(one.opaque)
            left_ms = one.end_ms - self.gateway.elapsed_ms
            if answer is None:
                assert not came or one.place[0] not in self.world.topics, "a pull was not told"
                assert left_ms + SWEEP_MS >= 0, "a pull waits for ever"
                continue
            self.waiting_pulls.remove(one)
            if answer.code == ResponseCode.SUCCESS:
                self._check_pulled(answer, came[: len(decode_messages(answer.body)) or 1])
            elif answer.code == ResponseCode.TOPIC_NOT_EXIST:
                assert one.place[0] not in self.world.topics
            else:
                assert left_ms <= 0, "a pull was let go too early"

    @rule(
        topic=topics,
        queue=queues,
        offset=st.integers(0, 9),
        group=st.sampled_from(["readers", "poppers", "ordered"]),
    )
    def report(self, topic: str, queue: int, offset: int, group: str) -> None:
        world, key = self.world, (group, topic, queue)
        answer = commit_offset(self.client, topic, queue, offset, group)
        if topic not in world.topics:
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
            return
        ok(answer)
        reset = world.resets.get(key)
        if reset is not None and world.progress.get(key) == reset:
            assert answer.remark == "Offset has been previously reset"
        else:
            world.tell(key, offset)

    @rule(
        topic=topics,
        group=st.sampled_from(["readers", "poppers", "ordered"]),
        back_ms=st.none() | st.sampled_from([0, 1_000, 10_000]),
    )
    def reset(self, topic: str, group: str, back_ms: int | None) -> None:
        world = self.world
        at_ms = -1 if back_ms is None else self.now_ms - back_ms
        fields = {"topic": topic, "group": group, "timestamp": str(at_ms), "isForce": "true"}
        answer = self.client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        if topic not in world.topics:
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
            return
        expected = {}
        for number in range(world.topics[topic]):
            rows, key = world.rows((topic, number)), (group, topic, number)
            earlier = [one for one in rows.messages if one.moved_ms < at_ms or at_ms < 0]
            expected[topic, number] = rows.first + len(earlier)
            world.advance(key, expected[topic, number])
            world.resets[key] = expected[topic, number]
            world.orders.pop(key, None)
        world.woken.add(topic)
        assert by_queue(read(answer)["offsetTable"]) == expected

    @precondition(lambda self: any(rows.messages for rows in self.world.queues.values()))
    @rule(pick=picks, level=st.sampled_from([-1, 0, 1, 2]), most=st.none() | st.integers(0, 3))
    def send_back(self, pick: int, level: int, most: int | None) -> None:
        world, group = self.world, "workers"
        entered = [one for rows in world.queues.values() for one in rows.messages]
        one = self._pick(sorted(entered, key=lambda one: (one.moved_ms, one.sequence)), pick)
        if one.topic not in world.topics or self._view(one.sequence) is None:
            return
        known = set(world.messages)
        ext = {"offset": str(one.sequence), "group": group, "delayLevel": str(level)}
        if most is not None:
            ext["maxReconsumeTimes"] = str(most)
        ok(self.client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext))
        copy = Message(0, one.message_id, "", 0, one.body, one.tag, one.keys, one.retries + 1)
        if one.retries >= (MOST_RETRIES if most is None else most) or level < 0:
            copy.topic = f"%DLQ%{group}"
            world.topics.setdefault(copy.topic, 1)
            [record] = self._new_rows((copy.topic, 0))
            copy.sequence = record.physical_offset
            world.enqueue(copy, record.store_ms)
            self._check_record(record, copy)
            return
        copy.topic = f"%RETRY%{group}"
        world.topics.setdefault(copy.topic, 1)
        found = self.client.look_up(id=one.message_id, topic=copy.topic, state="pending")
        [copy.sequence] = {self._sequence(each) for each in found} - known
        world.hold(copy, self.now_ms + LEVEL_MS[level or 3 + one.retries], self.now_ms)
