"""Recurring messages: each fires at its times, by period or cron. Several missed times may be fired as one. It fires
until it is paused, deleted, or has fired as often as it should."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from gateway.wire.codes import RequestCode, ResponseCode
from tests.gateway.model.machine import Machine, queues, topics
from tests.gateway.model.world import Message, Recurrence
from tests.gateway.tools import ok, read

names = st.sampled_from("xy")


class Recurrences(Machine):
    """The requests about recurring messages."""

    @rule(
        topic=topics,
        queue=queues,
        name=names,
        every_s=st.sampled_from([1, 2, 6]),
        cron=st.booleans(),
        count=st.none() | st.integers(1, 4),
    )
    def recur(
        self, topic: str, queue: int, name: str, every_s: int, cron: bool, count: int | None
    ) -> None:
        """Set a recurring message; with cron, at the full seconds that `every_s` divides."""
        world, every_ms = self.world, every_s * 1_000
        self._ensure(topic)
        message, _ = self._message(topic, queue, "")
        next_ms = self.now_ms + every_ms
        timing = {"TIDEGATE_EVERY": f"{every_s}s"}
        if cron:
            next_ms -= next_ms % every_ms
            timing = {"TIDEGATE_CRON": f"*/{every_s} * * * * *"}
        if count is not None:
            timing["TIDEGATE_COUNT"] = str(count)
        properties = {"KEYS": name, "TIDEGATE_NAME": name, **timing}
        answer = self.client.send_message(topic, message.body, properties, fields={"queue": queue})
        ext = ok(answer).ext()
        new = Recurrence(queue, message.body, timing, every_ms, next_ms, count=count)
        before = world.recurring.get((topic, name))
        outcome = "set"
        if before is not None:
            outcome, new.paused = "replaced", before.paused
            if before.rule == new.rule:
                outcome, new.next_ms, new.fired = "updated", before.next_ms, before.fired
        world.recurring[topic, name] = new
        assert ext["recurring"] == outcome
        assert int(ext["nextMs"]) == new.next_ms

    @rule(topic=topics, name=names, what=st.sampled_from(["pause", "resume", "delete"]))
    def change_recurring(self, topic: str, name: str, what: str) -> None:
        fields = {"topic": topic, "name": name, "change": what}
        answer = self.client.ask(RequestCode.CHANGE_RECURRING, fields)
        one = self.world.recurring.get((topic, name))
        if one is None:
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            return
        outcome = read(answer)["outcome"]
        if what == "delete":
            del self.world.recurring[topic, name]
            assert outcome == "deleted"
        elif what == "pause":
            assert outcome == ("already paused" if one.paused else "paused")
            one.paused = True
        else:
            assert outcome == ("resumed" if one.paused else "already active")
            if one.paused:
                one.paused, self.is_late = False, True

    def _recurred(self, one: Message, planned_ms: int, fired_ms: int) -> None:
        """Note that a recurring message fired."""
        recurring = self.world.recurring
        [name] = [
            name
            for name, each in recurring.items()
            if (name[0], each.queue, each.body) == (one.topic, one.queue, one.body)
        ]
        recurrence = recurring[name]
        assert not recurrence.paused
        assert planned_ms >= recurrence.next_ms, "twice"
        assert (planned_ms - recurrence.next_ms) % recurrence.every_ms == 0
        if planned_ms > recurrence.next_ms:
            assert self.is_late, "one was left out"
        if not self.is_late and one.topic not in self.world.paused:
            self._check_moment(fired_ms, planned_ms)
        recurrence.next_ms = planned_ms + recurrence.every_ms
        recurrence.fired += 1
        if recurrence.fired == recurrence.count:
            del recurring[name]

    def _check_recurring(self) -> None:
        """Check that no recurring message is overdue. Occurrences in a paused topic wait, and are pending."""
        world, now_ms = self.world, self.now_ms
        for (topic, name), each in list(world.recurring.items()):
            if each.paused or each.next_ms > now_ms:
                continue
            assert topic in world.paused, ("overdue", each)
            for held in self.client.look_up(topic=topic, key=name, limit=1_000):
                sequence = self._sequence(held)
                is_due = world.recurring.get((topic, name)) is each and each.next_ms <= now_ms
                if sequence not in world.messages and is_due:
                    new = Message(
                        sequence, held["msgId"], topic, each.queue, each.body, "", (name,)
                    )
                    self._recurred(new, held["dueMs"], held["dueMs"])
                    world.hold(new, held["dueMs"], held["dueMs"])
            is_over = world.recurring.get((topic, name)) is not each
            assert is_over or each.next_ms > now_ms, ("overdue", each)
        found = read(self.client.ask(RequestCode.LIST_RECURRING))["recurring"]
        assert {
            (each["topic"], each["name"]): (each["state"], each["nextMs"], each["fired"])
            for each in found
        } == {
            name: ("paused" if each.paused else "active", each.next_ms, each.fired)
            for name, each in world.recurring.items()
        }
