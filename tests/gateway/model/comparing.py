"""Compares the gateway with the model after each step. Every message that entered a queue must have been in turn and on
time, nothing may be overdue, and look-ups, counts and lists must be right."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis.stateful import invariant

from gateway.topics import CHECKED_OUT_TOPIC, HALF_TOPIC
from gateway.wire.codes import RequestCode
from gateway.wire.group_topics import retry_topic
from gateway.wire.messages import Message as Record
from storage import usage_of
from tests.gateway.memory import properties_of
from tests.gateway.model.consumers import Consumers
from tests.gateway.model.machine import IDS, KEYS, RETENTION_MS, TOPICS
from tests.gateway.model.pops import Pops
from tests.gateway.model.recurring import Recurrences
from tests.gateway.model.world import ABORTED, FIRED, PENDING, Message, Place
from tests.gateway.tools import by_queue, read

PROGRESS_MS = 1_000
CLEAN_UP_MS = 10_000


class Comparing(Consumers, Pops, Recurrences):
    """Compares the gateway with the model."""

    def __init__(self) -> None:
        super().__init__()
        self.expirable: dict[tuple[int, bool], int] = {}
        """Since when each may be removed, in ms of the reactor, by its sequence and whether its topic is deleted."""

    @invariant()
    def compare(self) -> None:
        self.highest_ms = max(self.highest_ms, self.now_ms)
        if self.gateway.elapsed_ms - self.before_elapsed_ms > PROGRESS_MS:
            self.world.unsure.clear()
        self._check_removed()
        self._check_entered()
        self._check_waiting_pulls()
        self._check_waiting_pops()
        for one in self.world.pending():
            assert one.topic in self.world.paused or one.due_ms > self.now_ms, ("overdue", one)
        self._check_revived()
        self._check_recurring()
        self._check_found()
        self._check_counts()
        self._check_progress()
        self.gateway.check()
        self.is_late = False
        self.before_highest_ms = self.highest_ms
        self.before_ms, self.before_elapsed_ms = self.now_ms, self.gateway.elapsed_ms

    # -- messages that entered queues

    def _check_entered(self) -> None:
        """Explain every message that entered a queue without a request: each must have been due, in turn and on
        time."""
        world = self.world
        self._enter_deleted()
        for topic in (CHECKED_OUT_TOPIC, *self._made_by_pops()):
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

    def _enter_deleted(self) -> None:
        """Put due messages of a deleted topic into its queue as well; they are removed with it."""
        for one in self.world.pending():
            if one.topic in self.world.topics or one.due_ms > self.highest_ms:
                continue
            found = self._look(one)
            if found is not None and found["state"] == PENDING:
                continue
            self.world.enqueue(one, found["movedMs"] if found is not None else self.now_ms)
            if found is None:
                self.world.forget(one)

    def _look(self, one: Message) -> dict[str, Any] | None:
        found = self.client.look_up(id=one.message_id, topic=one.topic, state="any", limit=1_000)
        return next((each for each in found if self._sequence(each) == one.sequence), None)

    def _born(self, place: Place, record: Record) -> Message:
        """Return a message that the gateway made from another one."""
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

    # -- messages that were removed

    def _check_removed(self) -> None:
        """Check that only messages that are old enough are gone, and that old ones are removed soon."""
        world = self.world
        cutoff_ms = max(self.now_ms, self.before_ms) - RETENTION_MS
        for sequence, one in world.messages.items():
            is_deleted = one.topic not in world.topics and one.offset >= 0
            if one.state != PENDING and (one.moved_ms < cutoff_ms or is_deleted):
                self.expirable.setdefault((sequence, is_deleted), self.gateway.elapsed_ms)
        gone = {}
        for (sequence, is_deleted), since in list(self.expirable.items()):
            if sequence not in world.messages:
                del self.expirable[sequence, is_deleted]
                continue
            one = world.messages[sequence]
            if self._view(sequence) is None:
                gone[sequence] = one
                continue
            waited_ms = self.gateway.elapsed_ms - max(since, self.regular_since)
            if not is_deleted:
                # After a step back of the clock it may be too young again for a while.
                waited_ms = min(waited_ms, self.now_ms - RETENTION_MS - one.moved_ms)
            assert waited_ms <= CLEAN_UP_MS, ("not removed", one)
        for one in sorted(gone.values(), key=lambda one: one.offset):
            world.forget(one)

    # -- answers to queries

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
        for topic in world.topics.keys() & TOPICS:
            for state in (FIRED, ABORTED):
                found = self.client.look_up(topic=topic, state=state, limit=1_000)
                assert sorted(map(self._sequence, found)) == sorted(
                    one.sequence
                    for one in world.messages.values()
                    if (one.topic, one.state) == (topic, state)
                )
        for sequence in world.halves:
            record = self._view(sequence)
            assert record is not None, ("a half is gone", sequence)
            assert record.topic == HALF_TOPIC

    def _check_held(self, held: dict[str, Any], one: Message) -> None:
        if one.state == ABORTED and held["movedMs"] != one.moved_ms:
            # The time noted for the abort of a replaced message never goes back.
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
        counts = read(self.client.ask(RequestCode.GET_TIMER_METRICS))["timingCount"]
        assert {topic: each["count"] for topic, each in counts.items()} == Counter(
            one.topic for one in world.pending()
        )
        paused = read(self.client.ask(RequestCode.LIST_PAUSED_TOPICS))["topics"]
        assert {each["topic"] for each in paused} == world.paused
        if self.highest_ms == self.now_ms:
            due = Counter(one.topic for one in world.pending() if one.due_ms <= self.now_ms)
            for each in paused:
                assert each["waiting"] == due[each["topic"]]
        usage = usage_of(self.gateway.store)
        assert usage.halves == len(world.halves)
        assert usage.messages == len(world.messages) + len(world.halves)

    def _check_progress(self) -> None:
        world = self.world
        for group in ("readers", "poppers", "ordered"):
            table = by_queue(read(self.client.ask(208, {"consumerGroup": group}))["offsetTable"])
            consumed = {topic for name, topic, _ in world.progress if name == group}
            consumed |= {retry_topic(topic, group) for topic in consumed}
            assert {
                place: (row["brokerOffset"], row["consumerOffset"]) for place, row in table.items()
            } == {
                place: (world.rows(place).end, world.progress.get((group, *place), 0))
                for place in world.places()
                if place[0] in consumed
            }
