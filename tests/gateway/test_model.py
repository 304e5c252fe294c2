"""Random work of clients at a whole gateway, compared after each step with a plain account of what there is."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.topics import CHECKED_OUT_TOPIC, HALF_TOPIC
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command
from gateway.wire.messages import Message as Record
from gateway.wire.messages import decode_message, decode_messages, parse_offset_msg_id
from gateway.wire.pops import parse_handle
from storage import usage_of
from tests.gateway.conftest import scratch_place
from tests.gateway.memory import (
    MemoryGateway,
    properties_of,
    property_string,
)
from tests.gateway.test_pop import handle_fields, handles, pop_fields
from tests.gateway.tools import by_queue, commit_offset, create_topic, ok, put_group, read
from tests.gateway.world import (
    ABORTED,
    PENDING,
    Message,
    Order,
    Place,
    Pop,
    Recurrence,
    World,
)

TOPICS = ("a", "b")
IDS = ("ID0", "ID1", "ID2", "ID3")
KEYS = ("k", "kk")
TAGS = ("", "A", "B")
LEVEL_MS = (0, 1_000, 5_000, 10_000, 30_000, 60_000)
MOST_RETRIES = 1

RETENTION_MS = 60_000
CLEAN_UP_MS = 10_000
REVIVAL_MS = 200
PROGRESS_MS = 1_000
CHECK_MS, CHECKS = 5_000, 2
MISFIRE_MS = 60_000

SETTINGS = {
    "connection_idle": timedelta(days=365),
    "retention_hours": RETENTION_MS / 3_600_000,
    "transaction_timeout": timedelta(milliseconds=CHECK_MS),
    "transaction_check_interval": timedelta(milliseconds=CHECK_MS),
    "transaction_check_max": CHECKS,
}

picks = st.integers(0, 40)
"""Which one of what there is, the newest first."""
topics = st.sampled_from(("a", "a", "a", "b"))
queues = st.integers(0, 1)
ids = st.sampled_from(IDS)
keys = st.sampled_from(("k", "k", "k", "kk"))
delays = st.none() | st.sampled_from([-5, 1, 2, 3, 1_000, 2_500, 20_000])


class GatewayAndModel(RuleBasedStateMachine):
    """Each rule does the same to both. Whatever is answered must be what the model says, and what happens of itself
    must be found in the gateway at its time, once."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="tidegate-model-", dir=scratch_place()))
        self.gateway = MemoryGateway(self.path / "data", **SETTINGS)
        self.client = self.gateway.connect()
        self.world = World()
        self.bodies = 0
        self.handles: list[tuple[str, str, str]] = []  # group, topic, and the client's handle
        self.highest_ms = self.gateway.now_ms
        self.before_ms = self.gateway.now_ms
        self.before_elapsed_ms = 0
        self.is_late = False
        self.regular_since = 0
        self.expirable: dict[int, int] = {}

    # -- beginnings

    @initialize()
    def begin(self) -> None:
        for topic in TOPICS:
            self.create(topic, 2)
        for group in ("readers", "poppers", "ordered", "workers"):
            ok(put_group(self.client, group, retryMaxTimes=MOST_RETRIES))

    @property
    def now_ms(self) -> int:
        return self.gateway.now_ms

    def _stalled(self) -> None:
        """What was due until now may have been late."""
        self.is_late = True
        self.regular_since = self.gateway.elapsed_ms

    # -- sends

    def _ensure(self, topic: str) -> None:
        """As a send does: it makes a topic of 4 queues, where there is none."""
        if topic not in self.world.topics:
            self.world.make(topic, 4)

    def _message(
        self, topic: str, queue: int, message_id: str, tag: str = "", keys: tuple[str, ...] = ()
    ) -> tuple[Message, dict[str, str]]:
        self.bodies += 1
        one = Message(0, message_id, topic, queue, f"m{self.bodies}", tag, keys)
        properties = {"UNIQ_KEY": message_id}
        if tag:
            properties["TAGS"] = tag
        if keys:
            properties["KEYS"] = " ".join(keys)
        return one, properties

    def _timing(self, kind: str, delay_ms: int | None) -> tuple[dict[str, str], int | None]:
        """The properties that ask for a delay, and what it is in ms; None for none."""
        if delay_ms is None:
            return {}, None
        if kind == "level":
            level = delay_ms % 4
            return {"DELAY": str(level)}, LEVEL_MS[level] or None
        if kind == "deliver":
            at = {"TIMER_DELIVER_MS": str(self.now_ms + delay_ms)}
            return at, delay_ms if delay_ms > 0 else None
        return {"TIMER_DELAY_MS": str(delay_ms)}, delay_ms if delay_ms > 0 else None

    def _sent(self, one: Message, answered: str, place: str, delay_ms: int | None) -> None:
        """A message was accepted."""
        one.sequence = parse_offset_msg_id(answered)[1]
        assert one.sequence not in self.world.messages
        if delay_ms is not None:
            self.world.hold(one, self.now_ms + delay_ms, self.now_ms)
            return
        assert int(place) == self.world.rows((one.topic, one.queue)).end
        self.world.enqueue(one, self._stored_ms(one.sequence))

    def _stored_ms(self, sequence: int) -> int:
        """When a message was stored; that is never before another that was stored earlier."""
        record = self._view(sequence)
        assert record is not None
        assert self.now_ms <= record.store_ms <= self.highest_ms
        return record.store_ms

    @rule(
        topic=topics,
        queue=queues,
        message_id=ids,
        tag=st.sampled_from(TAGS),
        keys=st.sets(keys).map(lambda found: tuple(sorted(found))),
        kind=st.sampled_from(["level", "delay", "deliver"]),
        delay_ms=delays,
        debounces=st.booleans(),
    )
    def send(
        self,
        topic: str,
        queue: int,
        message_id: str,
        tag: str,
        keys: tuple[str, ...],
        kind: str,
        delay_ms: int | None,
        debounces: bool,
    ) -> None:
        one, properties = self._message(topic, queue, message_id, tag, keys)
        timing, delay_ms = self._timing(kind, delay_ms)
        replaced = None
        self._ensure(topic)
        if debounces and keys:
            properties["TIDEGATE_DEBOUNCE"] = keys[0]
        answer = ok(
            self.client.send_message(
                topic, one.body, {**properties, **timing}, fields={"queue": queue}
            )
        )
        ext = answer.ext()
        if debounces and keys:
            replaced = str(self.world.debounce(topic, keys[0], self.now_ms))
        assert ext.get("replaced") == replaced
        self._sent(one, ext["msgId"], ext["queueOffset"], delay_ms)
        one.handle = ext.get("recallHandle", "")
        assert bool(one.handle) == (delay_ms is not None)

    @rule(topic=topics, queue=queues, delays_ms=st.lists(delays, min_size=1, max_size=3))
    def send_batch(self, topic: str, queue: int, delays_ms: list[int | None]) -> None:
        self._ensure(topic)
        items = []
        for number, asked_ms in enumerate(delays_ms):
            one, properties = self._message(topic, queue, f"B{number}")
            timing, delay_ms = self._timing("delay", asked_ms)
            items.append((one, {**properties, **timing}, delay_ms))
        answer = ok(
            self.client.send_batch(
                [(one.body, properties) for one, properties, _ in items], topic, queue=queue
            )
        )
        for (one, _, delay_ms), msg_id in zip(items, answer.ext()["msgId"].split(","), strict=True):
            place = str(self.world.rows((topic, queue)).end)
            self._sent(one, msg_id, place, delay_ms)

    # -- what is pending

    def _pick(self, found: list[Any], pick: int) -> Any:
        return found[-1 - pick % len(found)]

    @precondition(lambda self: self.world.messages)
    @rule(pick=picks, by=st.sampled_from(["id", "own id", "key", "handle", "recall", "order"]))
    def abort(self, pick: int, by: str) -> None:
        world = self.world
        one = self._pick(sorted(world.messages.values(), key=lambda one: one.sequence), pick)
        if by in ("recall", "order"):
            self._abort_one(one, by)
            return
        fields, named = self._named(one, by)
        expected = []
        for message_id, topic in named:
            for each in world.with_id(message_id, topic):
                due_ms = each.due_ms
                outcome = world.abort(each, self.now_ms)
                expected.append((outcome, each.message_id, each.topic, due_ms))
        results = self.client.abort(**fields)
        found = [(each["outcome"], each["msgId"], each["topic"], each["dueMs"]) for each in results]
        assert found == (expected or [("unknown", *self._unknown(fields), 0)])

    def _named(self, one: Message, by: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
        """How a request names a message, and the ids and topics that it means."""
        world = self.world
        if by == "handle" and one.handle:
            return {"handle": one.handle}, [(one.message_id, one.topic)]
        if by == "key" and one.keys:
            found = world.with_key(one.topic, one.keys[0])
            named = sorted({(each.message_id, each.topic) for each in found})
            return {"topic": one.topic, "key": one.keys[0]}, named
        named = sorted({(each.message_id, each.topic) for each in world.with_id(one.message_id)})
        if by == "own id":
            fields = {"id": one.message_id, "topic": one.topic}
            return fields, [(one.message_id, one.topic)]
        named = [each for each in named if not each[1].startswith(("%RETRY%", "%DLQ%"))]
        return {"id": one.message_id}, named

    @staticmethod
    def _unknown(fields: dict[str, str]) -> tuple[str, str]:
        return fields.get("id", ""), fields.get("topic", "")

    def _abort_one(self, one: Message, by: str) -> None:
        world = self.world
        if one.topic not in world.topics or one.topic not in TOPICS or not one.handle:
            return
        found = world.with_id(one.message_id, one.topic)
        outcomes = {world.abort(each, self.now_ms) for each in found}
        if by == "recall":
            answer = self.client.recall(one.topic, one.handle)
            failed = ResponseCode.ILLEGAL_OPERATION
        else:
            order = {"TIMER_DEL_UNIQKEY": one.message_id, "TIMER_DELAY_MS": "1000"}
            answer = self.client.send_message(one.topic, "x", order)
            failed = ResponseCode.MESSAGE_ILLEGAL
        self._check_outcome(answer, outcomes, "aborted", "recall failed", failed)

    def _check_outcome(
        self, answer: Command, outcomes: set[str], success: str, failure: str, failed: int
    ) -> None:
        if success in outcomes:
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            return
        best = "was already aborted" if "already aborted" in outcomes else "has already fired"
        assert answer.code == failed
        assert (answer.remark or "").startswith(f"{failure}, the message {best}: ")

    @precondition(lambda self: self.world.messages)
    @rule(
        pick=picks,
        by=st.sampled_from(["id", "own id", "key", "handle", "order"]),
        kind=st.sampled_from(["due", "delay", "shift"]),
        ms=st.sampled_from([-3_000, 0, 1, 2, 1_500, 20_000]),
    )
    def reschedule(self, pick: int, by: str, kind: str, ms: int) -> None:
        world, now_ms = self.world, self.now_ms
        one = self._pick(sorted(world.messages.values(), key=lambda one: one.sequence), pick)
        if by == "order":
            self._reschedule_by_order(one, ms)
            return
        fields, named = self._named(one, by)
        expected = []
        for message_id, topic in named:
            for each in world.with_id(message_id, topic):
                before_ms = each.due_ms
                wanted_ms = before_ms + ms if kind == "shift" else now_ms + ms
                outcome = world.move(each, max(wanted_ms, now_ms), now_ms)
                expected.append((outcome, message_id, topic, each.due_ms, before_ms))
        value = now_ms + ms if kind == "due" else ms
        answer = self.client.ask(RequestCode.RESCHEDULE_TIMERS, {**fields, kind: str(value)})
        results = read(answer)["results"]
        found = [
            (each["outcome"], each["msgId"], each["topic"], each["dueMs"], each["dueBeforeMs"])
            for each in results
        ]
        assert found == (expected or [("unknown", *self._unknown(fields), 0, 0)])

    def _reschedule_by_order(self, one: Message, ms: int) -> None:
        world, now_ms = self.world, self.now_ms
        if one.topic not in TOPICS or one.topic not in world.topics:
            return
        outcomes = {
            world.move(each, max(now_ms, now_ms + ms), now_ms)
            for each in world.with_id(one.message_id, one.topic)
        }
        order = {"TIDEGATE_RESCHEDULE": one.message_id, "TIMER_DELAY_MS": str(ms)}
        answer = self.client.send_message(one.topic, "x", order)
        self._check_outcome(
            answer, outcomes, "rescheduled", "reschedule failed", ResponseCode.MESSAGE_ILLEGAL
        )

    @rule(
        topic=topics,
        action=st.sampled_from(["count", "abort", "reschedule"]),
        tag=st.sampled_from(TAGS),
        begin_ms=st.sampled_from([0, 1_000, 3_000]),
        ms=st.sampled_from([0, 1_500]),
    )
    def change_many(self, topic: str, action: str, tag: str, begin_ms: int, ms: int) -> None:
        now_ms = self.now_ms
        meant = [
            one
            for one in self.world.pending(topic)
            if tag in ("", one.tag) and one.due_ms >= now_ms + begin_ms
        ]
        fields = {"topic": topic, "action": action, "tag": tag, "begin": str(now_ms + begin_ms)}
        if action == "reschedule":
            fields["delay"] = str(ms)
        count, cursor = 0, ""
        while cursor is not None:
            answer = read(
                self.client.ask(RequestCode.BULK_CHANGE_TIMERS, {**fields, "cursor": cursor})
            )
            count += answer["messages"]
            cursor = answer["cursor"]
        assert count == len(meant)
        for one in meant:
            if action == "abort":
                self.world.abort(one, now_ms)
            elif action == "reschedule":
                self.world.move(one, now_ms + ms, now_ms)

    @rule(topic=topics)
    def pause(self, topic: str) -> None:
        answer = self.client.ask(RequestCode.PAUSE_TOPIC, {"topic": topic})
        if topic not in self.world.topics:
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
            return
        assert read(answer)["changed"] == (topic not in self.world.paused)
        self.world.paused.add(topic)

    @rule(topic=topics)
    def resume(self, topic: str) -> None:
        answer = self.client.ask(RequestCode.RESUME_TOPIC, {"topic": topic})
        assert read(answer)["changed"] == (topic in self.world.paused)
        self._resumed(topic)

    def _resumed(self, topic: str) -> None:
        if topic in self.world.paused:
            self.world.paused.remove(topic)
            for one in self.world.pending(topic):
                one.from_ms = max(one.from_ms, self.now_ms)

    # -- transactions

    @rule(
        topic=topics,
        queue=queues,
        message_id=ids,
        key=st.none() | keys,
        kind=st.sampled_from(["level", "delay"]),
        delay_ms=delays,
        debounces=st.booleans(),
    )
    def prepare(
        self,
        topic: str,
        queue: int,
        message_id: str,
        key: str | None,
        kind: str,
        delay_ms: int | None,
        debounces: bool,
    ) -> None:
        one, properties = self._message(topic, queue, message_id, "", (key,) if key else ())
        timing, one.delay_ms = self._timing(kind, delay_ms)
        properties |= {"TRAN_MSG": "true", "PGROUP": "payers", **timing}
        if debounces and key:
            properties["TIDEGATE_DEBOUNCE"] = one.debounce = key
        self._ensure(topic)
        fields = {"queue": queue, "sys_flag": 4, "properties": property_string(properties)}
        answer = ok(self.client.send_message(topic, one.body, fields=fields))
        one.sequence = parse_offset_msg_id(answer.ext()["msgId"])[1]
        assert answer.ext()["queueOffset"] == str(one.sequence)
        assert one.sequence not in self.world.messages
        one.from_ms = self.now_ms
        self.world.halves[one.sequence] = one

    @rule(pick=picks, decision=st.sampled_from([8, 12, 0]), wrong=st.integers(0, 9))
    def decide(self, pick: int, decision: int, wrong: int) -> None:
        world = self.world
        known = sorted({*world.halves, *world.messages})
        if not known:
            return
        sequence = (
            self._pick(sorted(world.halves), pick)
            if world.halves and wrong < 8
            else known[-1 - pick % len(known)]
        )
        fields = {
            "producerGroup": "others" if wrong == 7 else "payers",
            "tranStateTableOffset": str(sequence),
            "commitLogOffset": str(sequence),
            "commitOrRollback": str(decision),
            "fromTransactionCheck": "false",
            "msgId": "",
            "transactionId": "",
        }
        answer = self.client.ask(RequestCode.END_TRANSACTION, fields)
        if decision == 0:
            ok(answer)
        elif sequence not in world.halves or wrong == 7:
            assert answer.code == ResponseCode.SYSTEM_ERROR
        else:
            ok(answer)
            one = world.halves.pop(sequence)
            if decision == 8:
                self._committed(one)

    def _committed(self, one: Message) -> None:
        if one.debounce:
            self.world.debounce(one.topic, one.debounce, self.now_ms)
        if one.delay_ms is not None:
            self.world.hold(one, self.now_ms + one.delay_ms, self.now_ms)
        else:
            self.world.enqueue(one, self._stored_ms(one.sequence))

    # -- consumers

    @rule(
        topic=topics,
        queue=queues,
        offset=st.integers(-3, 12),
        most=st.integers(1, 4),
        tags=st.sampled_from(["*", "A", "A || B"]),
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
        if key in world.resets:
            reset = world.resets.pop(key)
            if world.progress.get(key) == reset:
                assert (answer.code, int(ext["nextBeginOffset"])) == (21, reset)
                return
        if commit is not None:
            self._tell(key, commit)
        found = decode_messages(answer.body) if answer.code == ResponseCode.SUCCESS else []
        expected: list[Message] = []
        at = offset
        if rows.first <= offset <= rows.end:
            while at < rows.end and len(expected) < most:
                one = rows.messages[at - rows.first]
                if tags == "*" or one.tag in tags.split(" || "):
                    expected.append(one)
                at += 1
        else:
            at = rows.first if offset < rows.first else rows.end
            assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert [record.queue_offset for record in found] == [one.offset for one in expected]
        for record, one in zip(found, expected, strict=True):
            self._check_record(record, one)
        assert int(ext["nextBeginOffset"]) == at

    def _check_record(self, record: Record, one: Message) -> None:
        """Whether what a consumer gets is the message."""
        assert record.body.decode() == one.body
        assert record.physical_offset == one.sequence
        assert record.reconsume_times == one.retries
        assert record.store_ms == one.moved_ms
        properties = properties_of(record)
        assert properties["UNIQ_KEY"] == one.message_id
        assert properties.get("TAGS", "") == one.tag
        assert tuple(properties.get("KEYS", "").split()) == one.keys

    def _tell(self, key: tuple[str, str, int], offset: int) -> None:
        """Progress is told, which is stored soon."""
        world = self.world
        if world.progress.get(key) != offset:
            world.unsure.setdefault(key, set()).add(world.progress.get(key))
            world.progress[key] = offset

    def _advance(self, key: tuple[str, str, int], offset: int) -> None:
        """Progress is stored at once."""
        self.world.progress[key] = offset
        self.world.unsure.pop(key, None)

    @rule(
        topic=topics,
        queue=queues,
        offset=st.integers(0, 9),
        group=st.sampled_from(["readers", "poppers"]),
    )
    def report(self, topic: str, queue: int, offset: int, group: str) -> None:
        key = (group, topic, queue)
        answer = commit_offset(self.client, topic, queue, offset, group)
        if topic not in self.world.topics:
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
            return
        ok(answer)
        reset = self.world.resets.get(key)
        if reset is not None and self.world.progress.get(key) == reset:
            assert answer.remark == "Offset has been previously reset"
        else:
            self._tell(key, offset)

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
            self._advance(key, expected[topic, number])
            world.resets[key] = expected[topic, number]
            world.orders.pop(key, None)
        assert by_queue(read(answer)["offsetTable"]) == expected

    @precondition(lambda self: any(rows.messages for rows in self.world.queues.values()))
    @rule(pick=picks, level=st.sampled_from([-1, 0, 1, 2]), most=st.none() | st.integers(0, 3))
    def send_back(self, pick: int, level: int, most: int | None) -> None:
        world, group = self.world, "workers"
        entered = [one for rows in world.queues.values() for one in rows.messages]
        if not entered:
            return
        one = self._pick(sorted(entered, key=lambda one: (one.moved_ms, one.sequence)), pick)
        if one.sequence in self.expirable or one.topic not in world.topics:
            return
        known = set(world.messages)
        ext = {"offset": str(one.sequence), "group": group, "delayLevel": str(level)}
        if most is not None:
            ext["maxReconsumeTimes"] = str(most)
        ok(self.client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext))
        copy = Message(0, one.message_id, "", 0, one.body, one.tag, one.keys, one.retries + 1)
        if one.retries >= (MOST_RETRIES if most is None else most) or level < 0:
            copy.topic = f"%DLQ%{group}"
            self.world.topics.setdefault(copy.topic, 1)
            [record] = self._new_rows((copy.topic, 0))
            assert record.reconsume_times == copy.retries
            copy.sequence = record.physical_offset
            world.enqueue(copy, record.store_ms)
            self._check_record(record, copy)
            return
        copy.topic = f"%RETRY%{group}"
        self.world.topics.setdefault(copy.topic, 1)
        found = self.client.look_up(id=one.message_id, topic=copy.topic, state="pending")
        new = [each for each in found if self._sequence(each) not in known]
        assert len(new) == 1
        copy.sequence = self._sequence(new[0])
        world.hold(copy, self.now_ms + LEVEL_MS[level or 3 + one.retries], self.now_ms)

    @staticmethod
    def _sequence(held: dict[str, Any]) -> int:
        return parse_offset_msg_id(held["offsetMsgId"])[1]

    # -- pops

    @rule(
        topic=topics,
        queue=st.sampled_from([-1, 0, 1]),
        most=st.integers(1, 4),
        invisible_ms=st.sampled_from([0, 1, 1_000, 3_000, 30_000]),
        wait_ms=st.sampled_from([0, 3_000 + REVIVAL_MS]),
    )
    def pop(self, topic: str, queue: int, most: int, invisible_ms: int, wait_ms: int) -> None:
        world, group = self.world, "poppers"
        answer = self._ask_pop(group, topic, queue, most, invisible_ms)
        if answer is None:
            return
        back_in = f"%RETRY%{group}_{topic}"
        numbers = range(world.topics[topic]) if queue < 0 else [queue]
        places = [(back_in, 0), *((topic, number) for number in numbers)]
        taken: dict[Place, list[int]] = {place: [] for place in places}
        for text, record in self._popped(answer):
            handle = parse_handle(text)
            place = (back_in if handle.retried == "1" else topic, handle.queue)
            taken[place].append(handle.offset)
            one = world.rows(place).at(handle.offset)
            assert one is not None
            self._check_record(record, one)
            self.handles.append((group, topic, text))
            pop = Pop(group, place, handle.offset, self.now_ms + invisible_ms, one)
            if pop not in world.pops:
                world.pops.append(pop)
        rest = 0
        for place, offsets in taken.items():
            rows, key = world.rows(place), (group, *place)
            world.resets.pop(key, None)
            begin = self._next_of(key, notes=not place[0].startswith("%RETRY%"))
            assert offsets == list(range(begin, begin + len(offsets)))
            if offsets:
                self._advance(key, begin + len(offsets))
            rest += rows.end - begin - len(offsets)
        count = sum(map(len, taken.values()))
        assert count == most or rest == 0
        assert int(answer.ext()["restNum"]) == rest
        self.gateway.advance(wait_ms)

    def _next_of(self, key: tuple[str, str, int], *, notes: bool) -> int:
        """Where a group goes on that pops."""
        rows = self.world.rows(key[1:])
        progress = self.world.progress.get(key)
        if progress is None:
            if notes:
                self._tell(key, rows.first)
            return rows.first
        if progress > rows.end:
            self._tell(key, rows.end)
        return max(rows.first, min(progress, rows.end))

    def _ask_pop(
        self, group: str, topic: str, queue: int, most: int, invisible_ms: int, **more: object
    ) -> Command | None:
        """A pop's answer; None where the topic is not there."""
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
        """The messages of a pop, each with the handle that a client makes for it."""
        if answer.code != ResponseCode.SUCCESS:
            return []
        return list(zip(handles(answer), decode_messages(answer.body), strict=True))

    @rule(
        topic=topics,
        queue=queues,
        most=st.integers(1, 3),
        invisible_ms=st.sampled_from([1, 1_000, 3_000]),
    )
    def pop_in_order(self, topic: str, queue: int, most: int, invisible_ms: int) -> None:
        world, group, now_ms = self.world, "ordered", self.now_ms
        answer = self._ask_pop(group, topic, queue, most, invisible_ms, order="true")
        if answer is None:
            return
        key, rows = (group, topic, queue), world.rows((topic, queue))
        found = self._popped(answer)
        world.resets.pop(key, None)
        begin = self._next_of(key, notes=True)
        order = world.orders.get(key)
        if order is not None and order.blocks(now_ms):
            assert found == []
            return
        expected = rows.messages[begin - rows.first :][:most]
        assert [parse_handle(text).offset for text, _ in found] == [one.offset for one in expected]
        for (text, record), one in zip(found, expected, strict=True):
            self._check_record(record, one)
            self.handles.append((group, topic, text))
        if expected:
            until_ms = now_ms + invisible_ms
            world.orders[key] = Order(now_ms, {one.offset: until_ms for one in expected})
            self._advance(key, begin)

    @precondition(lambda self: self.handles)
    @rule(pick=picks, invisible_ms=st.none() | st.sampled_from([0, 1, 500, 4_000]))
    def acknowledge(self, pick: int, invisible_ms: int | None) -> None:
        """Consume a message, or have it come back at another time."""
        group, topic, text = self._pick(self.handles, pick)
        world, handle = self.world, parse_handle(text)
        fields = handle_fields(text, group, topic)
        place = (fields["topic"], handle.queue)
        if invisible_ms is None:
            answer = self.client.ask(RequestCode.ACK_MESSAGE, fields)
        else:
            fields["invisibleTime"] = str(invisible_ms)
            answer = self.client.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)
        if place[0] not in world.topics:
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
            return
        rows = world.rows(place)
        if not rows.first <= handle.offset <= rows.end:
            assert answer.code == ResponseCode.NO_MESSAGE
            return
        ok(answer)
        if group == "ordered":
            self._acknowledge_in_order(
                (group, *place), handle.offset, handle.pop_time, invisible_ms
            )
            return
        if invisible_ms is not None:
            self.handles.append((group, topic, self._renewed(text, answer)))
        back_ms = handle.pop_time + handle.invisible_time
        for pop in [pop for pop in world.pops if pop[:4] == (group, place, handle.offset, back_ms)]:
            world.pops.remove(pop)
            if invisible_ms is not None:
                again = pop._replace(back_ms=self.now_ms + invisible_ms)
                if again not in world.pops:
                    world.pops.append(again)

    @staticmethod
    def _renewed(text: str, answer: Command) -> str:
        start, _, _, _, *rest = text.split(" ")
        ext = answer.ext()
        return " ".join([start, ext["popTime"], ext["invisibleTime"], ext["reviveQid"], *rest])

    def _acknowledge_in_order(
        self, key: tuple[str, str, int], offset: int, popped_ms: int, invisible_ms: int | None
    ) -> None:
        world = self.world
        order = world.orders.get(key)
        if order is None or order.popped_ms != popped_ms or offset not in order.until_ms:
            return
        if offset < world.progress.get(key, -1):
            return
        if invisible_ms is None:
            order.until_ms[offset] = None
            self._advance(key, order.next_offset)
        elif order.until_ms[offset] is not None:
            order.until_ms[offset] = self.now_ms + invisible_ms

    # -- what recurs

    @rule(
        topic=topics, queue=queues, name=st.sampled_from("xy"), every_s=st.sampled_from([1, 2, 7])
    )
    def recur(self, topic: str, queue: int, name: str, every_s: int) -> None:
        world = self.world
        self._ensure(topic)
        self.bodies += 1
        body = f"m{self.bodies}"
        properties = {"KEYS": name, "TIDEGATE_NAME": name, "TIDEGATE_EVERY": f"{every_s}s"}
        answer = ok(self.client.send_message(topic, body, properties, fields={"queue": queue}))
        before = world.recurring.get((topic, name))
        new = Recurrence(queue, body, every_s * 1_000, self.now_ms + every_s * 1_000)
        outcome = "set"
        if before is not None:
            outcome, new.paused = "replaced", before.paused
            if before.every_ms == new.every_ms:
                outcome, new.next_ms = "updated", before.next_ms
        world.recurring[topic, name] = new
        assert answer.ext()["recurring"] == outcome
        assert int(answer.ext()["nextMs"]) == new.next_ms

    @rule(
        topic=topics,
        name=st.sampled_from("xy"),
        what=st.sampled_from(["pause", "resume", "delete"]),
    )
    def change_recurring(self, topic: str, name: str, what: str) -> None:
        world = self.world
        fields = {"topic": topic, "name": name, "change": what}
        answer = self.client.ask(RequestCode.CHANGE_RECURRING, fields)
        one = world.recurring.get((topic, name))
        if one is None:
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            return
        outcome = read(answer)["outcome"]
        if what == "delete":
            del world.recurring[topic, name]
            assert outcome == "deleted"
        elif what == "pause":
            assert outcome == ("already paused" if one.paused else "paused")
            one.paused = True
        else:
            assert outcome == ("resumed" if one.paused else "already active")
            if one.paused:
                one.paused, self.is_late = False, True

    # -- topics

    @rule(topic=topics, queues=st.integers(2, 4))
    def create(self, topic: str, queues: int) -> None:
        """Make a topic, or give it more queues."""
        queues = max(queues, self.world.topics.get(topic, 0))
        ok(create_topic(self.client, topic, queues))
        self.world.make(topic, queues)

    @rule(topic=topics)
    def delete(self, topic: str) -> None:
        world = self.world
        groups = {group for group, name, _ in world.progress if name == topic}
        ok(self.client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}))
        self._resumed(topic)
        world.delete(topic)
        for group in groups:
            world.delete(f"%RETRY%{group}_{topic}")

    # -- time, and ends

    @rule(ms=st.sampled_from([0, 1, 2, 500, 1_000, 4_000, 12_000]))
    def advance(self, ms: int) -> None:
        self.gateway.advance(ms)

    @rule(ms=st.sampled_from([700, 5_000, 30_000, 200_000]))
    def stall(self, ms: int) -> None:
        """Time goes by, and the process gets no part of it."""
        self.gateway.jump(ms)
        self._stalled()

    @rule(ms=st.sampled_from([-20_000, -300, 400, 30_000, 100_000]))
    def step_clock(self, ms: int) -> None:
        """The wall clock is set; the gateway looks at it every second."""
        self.gateway.set_clock(ms)
        self.gateway.advance(1_000)
        self._stalled()

    @rule(ms=st.sampled_from([0, 10, 6_000, 100_000]))
    def restart(self, ms: int) -> None:
        self.gateway.stop()
        self.gateway.jump(ms)
        self._started()
        self.gateway.start()
        self.client = self.gateway.connect()
        self.world.unsure.clear()
        self.gateway.check()

    @rule(sends=st.booleans(), topic=topics)
    def crash(self, sends: bool, topic: str) -> None:
        """The process is killed, perhaps while it has a message that nobody was told of."""
        if sends:
            fields = self.client.send_fields(topic)
            self.client.send(RequestCode.SEND_MESSAGE_V2, fields, b"never answered")
        self._started()
        self.gateway.crash()
        self.client = self.gateway.connect()
        for key, told in self.world.unsure.items():
            group, name, queue = key
            found = self.gateway.store.progress.get(group.encode(), name.encode(), queue)
            assert found in {self.world.progress.get(key), *told}
            if found is None:
                del self.world.progress[key]
            else:
                self.world.progress[key] = found
        self.world.unsure.clear()
        self.gateway.check()

    def _started(self) -> None:
        self.world.resets.clear()
        self._stalled()

    # -- what happens of itself, and what there is

    @invariant()
    def compare(self) -> None:
        self.highest_ms = max(self.highest_ms, self.now_ms)
        if self.gateway.elapsed_ms - self.before_elapsed_ms > PROGRESS_MS:
            self.world.unsure.clear()
        self._expired()
        self._entered()
        self._check_overdue()
        self._check_found()
        self._check_counts()
        self.is_late = False
        self.before_ms, self.before_elapsed_ms = self.now_ms, self.gateway.elapsed_ms

    def _new_rows(self, place: Place) -> list[Record]:
        """What entered a queue since it was looked at."""
        rows = self.world.rows(place)
        found: list[Record] = []
        offset = rows.end
        while True:
            answer = self.client.ask_pull(*place, offset, group="watchers")
            assert int(answer.ext()["minOffset"]) == rows.first
            if answer.code != ResponseCode.SUCCESS:
                assert answer.code == ResponseCode.PULL_NOT_FOUND
                return found
            records = decode_messages(answer.body)
            assert [record.queue_offset for record in records] == list(
                range(offset, offset + len(records))
            )
            offset += len(records)
            found += records

    def _entered(self) -> None:
        """Explain every message that entered a queue of itself: each was due, in its turn, and at its time."""
        world = self.world
        self._enter_deleted()
        for topic in (
            CHECKED_OUT_TOPIC,
            *(f"%RETRY%poppers_{name}" for name in TOPICS),
            "%DLQ%poppers",
        ):
            if topic not in world.topics and self._exists(topic):
                world.topics[topic] = 1
        for place in list(world.places()):
            last = (0, 0, 0)
            for record in self._new_rows(place):
                one = world.messages.get(record.physical_offset)
                if one is not None:
                    assert (one.state, one.topic, one.queue) == (PENDING, *place), one
                    assert one.topic not in world.paused, one
                    turn = (record.store_ms, one.due_ms, one.sequence)
                    assert turn > last, "out of turn"
                    last = turn
                    self._check_moment(record.store_ms, max(one.due_ms, one.from_ms))
                else:
                    one = self._born(place, record)
                world.enqueue(one, record.store_ms)
                self._check_record(record, one)

    def _exists(self, topic: str) -> bool:
        return self.client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": topic}).code == 0

    def _check_moment(self, stored_ms: int, expected_ms: int, late_ms: int = 0) -> None:
        """Whether something happened when it was to happen: never early, and late only where nothing could happen."""
        assert expected_ms <= stored_ms <= self.highest_ms, "early, or in the future"
        behind = self.highest_ms > self.now_ms
        was_regular = self.before_elapsed_ms - self.regular_since >= late_ms
        if was_regular and not self.is_late and not behind:
            assert stored_ms <= expected_ms + late_ms, "late"

    def _enter_deleted(self) -> None:
        """What is due in a topic that was deleted enters its queue all the same, to be removed with it."""
        for one in self.world.pending():
            if one.topic in self.world.topics or one.due_ms > self.highest_ms:
                continue
            found = self._look(one)
            if found is not None and found["state"] == PENDING:
                continue
            assert one.due_ms <= max(self.now_ms, self.before_ms)
            self.world.enqueue(one, found["movedMs"] if found is not None else self.now_ms)
            if found is None:
                self.world.forget(one)

    def _look(self, one: Message) -> dict[str, Any] | None:
        found = self.client.look_up(id=one.message_id, topic=one.topic, state="any", limit=1_000)
        return next((each for each in found if self._sequence(each) == one.sequence), None)

    def _born(self, place: Place, record: Record) -> Message:
        """A message that the gateway made of another one."""
        properties = properties_of(record)
        one = Message(
            record.physical_offset,
            properties["UNIQ_KEY"],
            *place,
            record.body.decode(),
            properties.get("TAGS", ""),
            tuple(properties.get("KEYS", "").split()),
            record.reconsume_times,
        )
        if place[0] == CHECKED_OUT_TOPIC:
            half = self.world.halves.pop(one.sequence)
            assert (one.body, one.keys) == (half.body, half.keys)
        elif one.is_of_group:
            self._revived(one, record.store_ms)
        else:
            self._recurred(one, int(properties["TIDEGATE_PLANNED_MS"]), record.store_ms)
            assert one.topic not in self.world.paused
        return one

    def _recurred(self, one: Message, planned_ms: int, fired_ms: int) -> None:
        """A message came of a recurring one."""
        found = [
            each
            for (topic, _), each in self.world.recurring.items()
            if (topic, each.queue, each.body) == (one.topic, one.queue, one.body)
        ]
        assert len(found) == 1, "nothing recurs so"
        [recurrence] = found
        assert not recurrence.paused
        assert planned_ms >= recurrence.next_ms, "twice"
        late_ms = (planned_ms - recurrence.next_ms) % recurrence.every_ms
        assert late_ms == 0
        if planned_ms > recurrence.next_ms:
            assert self.is_late
        if not self.is_late and one.topic not in self.world.paused:
            self._check_moment(fired_ms, planned_ms)
        recurrence.next_ms = planned_ms + recurrence.every_ms

    def _revived(self, one: Message, stored_ms: int) -> None:
        """A message came back that was popped and not acknowledged in time."""
        world = self.world
        candidates = []
        for pop in world.pops:
            popped = pop.message
            if pop.back_ms > self.highest_ms:
                continue
            origin = pop.place[0].removeprefix("%RETRY%poppers_")
            back_in = f"%RETRY%poppers_{origin}"
            if popped.retries >= MOST_RETRIES:
                back_in = "%DLQ%poppers"
            if (popped.body, popped.retries + 1, back_in) == (one.body, one.retries, one.topic):
                candidates.append(pop)
        assert candidates, "came back without having been popped"
        pop = min(candidates, key=lambda pop: pop.back_ms)
        world.pops.remove(pop)
        self._check_moment(stored_ms, pop.back_ms, REVIVAL_MS)

    def _check_overdue(self) -> None:
        """Nothing is left that should have happened."""
        world, now_ms = self.world, self.now_ms
        for one in world.pending():
            if one.topic not in world.paused:
                assert one.due_ms > now_ms, ("overdue", one)
        regular_ms = self.gateway.elapsed_ms - self.regular_since
        for pop in list(world.pops):
            if world.rows(pop.place).at(pop.offset) is None:
                if pop.back_ms <= now_ms:
                    world.pops.remove(pop)
            elif min(now_ms - pop.back_ms, regular_ms) > REVIVAL_MS:
                raise AssertionError(("did not come back", pop))
        for (topic, name), each in world.recurring.items():
            if each.paused or each.next_ms > now_ms:
                continue
            assert topic in world.paused, ("overdue", each)
            for held in self.client.look_up(topic=topic, key=name, limit=1_000):
                sequence = self._sequence(held)
                if sequence in world.messages or each.next_ms > now_ms:
                    continue
                new = Message(sequence, held["msgId"], topic, each.queue, each.body, "", (name,))
                self._recurred(new, held["dueMs"], held["dueMs"])
                world.hold(new, held["dueMs"], held["dueMs"])
            assert each.next_ms > now_ms, ("overdue", each)

    # -- what is removed

    def _expired(self) -> None:
        """What is old enough may be gone, and has to go soon."""
        world = self.world
        cutoff_ms = max(self.now_ms, self.before_ms) - RETENTION_MS
        for sequence, one in world.messages.items():
            is_deleted = one.topic not in world.topics and one.offset >= 0
            if one.state != PENDING and (one.moved_ms < cutoff_ms or is_deleted):
                self.expirable.setdefault(sequence, self.gateway.elapsed_ms)
        self.expirable = {
            sequence: since
            for sequence, since in self.expirable.items()
            if sequence in world.messages
        }
        gone = []
        for sequence, since in self.expirable.items():
            one = world.messages[sequence]
            if self._view(sequence) is None:
                gone.append(one)
                continue
            waited_ms = self.gateway.elapsed_ms - max(since, self.regular_since)
            is_old = one.topic not in world.topics or one.moved_ms < self.now_ms - RETENTION_MS
            assert waited_ms <= CLEAN_UP_MS or not is_old, ("not removed", one)
        for one in sorted(gone, key=lambda one: one.offset):
            world.forget(one)

    def _view(self, sequence: int) -> Record | None:
        answer = self.client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(sequence)})
        return decode_message(answer.body) if answer.code == ResponseCode.SUCCESS else None

    # -- what can be looked up

    def _check_found(self) -> None:
        world = self.world
        for message_id in IDS:
            found = self.client.look_up(id=message_id, state="any", limit=1_000)
            expected = sorted(world.with_id(message_id), key=lambda one: (one.due_ms, one.sequence))
            assert [self._sequence(each) for each in found] == [one.sequence for one in expected]
            for each, one in zip(found, expected, strict=True):
                self._check_held(each, one)
        for topic in TOPICS:
            for key in KEYS:
                found = self.client.look_up(topic=topic, key=key, state="any", limit=1_000)
                assert sorted(map(self._sequence, found)) == sorted(
                    one.sequence for one in world.with_key(topic, key)
                )
        found = self.client.look_up(limit=1_000)
        assert [self._sequence(each) for each in found] == [one.sequence for one in world.pending()]
        for sequence in world.halves:
            record = self._view(sequence)
            if record is None or record.topic != HALF_TOPIC:
                raise AssertionError(("a half is gone", sequence))

    def _check_held(self, held: dict[str, Any], one: Message) -> None:
        if one.state == ABORTED and held["movedMs"] != one.moved_ms:
            # Who takes another's place notes a time that never goes back.
            assert one.moved_ms <= held["movedMs"] <= self.highest_ms
            one.moved_ms = held["movedMs"]
        moved_ms = 0 if one.state == PENDING else one.moved_ms
        state = (held["state"], held["topic"], held["queueId"], held["queueOffset"])
        assert state == (one.state, one.topic, one.queue, one.offset)
        times = (held["dueMs"], held["movedMs"], held["dueBeforeMs"])
        assert times == (one.due_ms, moved_ms, one.due_before_ms)
        assert bool(held["rescheduledMs"]) == bool(one.due_before_ms)

    def _check_counts(self) -> None:
        world = self.world
        held = Counter(one.topic for one in world.pending())
        counts = read(self.client.ask(RequestCode.GET_TIMER_METRICS))["timingCount"]
        assert {topic: each["count"] for topic, each in counts.items()} == held
        paused = read(self.client.ask(RequestCode.LIST_PAUSED_TOPICS))["topics"]
        waiting = dict.fromkeys(world.paused, 0)
        waiting |= Counter(
            one.topic
            for one in world.pending()
            if one.topic in waiting and one.due_ms <= self.now_ms
        )
        assert {each["topic"] for each in paused} == waiting.keys()
        if self.highest_ms == self.now_ms:
            assert {each["topic"]: each["waiting"] for each in paused} == waiting
        usage = usage_of(self.gateway.store)
        assert usage.halves == len(world.halves)
        assert usage.messages == len(world.messages) + len(world.halves)
        recurring = read(self.client.ask(RequestCode.LIST_RECURRING))["recurring"]
        assert {(each["topic"], each["name"]) for each in recurring} == world.recurring.keys()
        for group in ("readers", "poppers", "ordered"):
            table = by_queue(read(self.client.ask(208, {"consumerGroup": group}))["offsetTable"])
            consumed = {topic for name, topic, _ in world.progress if name == group}
            assert {place: row["brokerOffset"] for place, row in table.items()} == {
                place: world.rows(place).end for place in world.places() if place[0] in consumed
            }
            assert {place: row["consumerOffset"] for place, row in table.items()} == {
                place: world.progress.get((group, *place), 0)
                for place in world.places()
                if place[0] in consumed
            }

    def teardown(self) -> None:
        try:
            self.gateway.close()
        finally:
            shutil.rmtree(self.path)


TestGatewayAndModel = GatewayAndModel.TestCase
TestGatewayAndModel.settings = settings(max_examples=60, stateful_step_count=40, derandomize=True)
