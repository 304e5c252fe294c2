"""Pending messages: they are aborted, rescheduled or changed in bulk, named in all possible ways. The answer must be
the outcome for each message."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command
from tests.gateway.model.machine import TAGS, TOPICS, Machine, picks, topics
from tests.gateway.model.world import MADE_FOR_GROUPS, Message
from tests.gateway.tools import read


class Pending(Machine):
    """The requests about messages before they fire."""

    @precondition(lambda self: self.world.messages)
    @rule(pick=picks, by=st.sampled_from(["id", "own id", "key", "handle", "recall", "order"]))
    def abort(self, pick: int, by: str) -> None:
        world = self.world
        one = self._some_message(pick)
        if by in ("recall", "order"):
            self._abort_one(one, by)
            return
        fields, meant = self._named(one, by)
        expected = []
        for each in meant:
            due_ms = each.due_ms
            expected.append((world.abort(each, self.now_ms), each.message_id, each.topic, due_ms))
        results = self.client.abort(**fields)
        found = [(each["outcome"], each["msgId"], each["topic"], each["dueMs"]) for each in results]
        assert found == (expected or [("unknown", fields["id"], "", 0)])

    def _named(self, one: Message, by: str) -> tuple[dict[str, str], list[Message]]:
        """Return the fields by which a request names a message, and all messages that these fields mean."""
        world = self.world
        if by == "handle" and one.handle:
            return {"handle": one.handle}, world.with_id(one.message_id, one.topic)
        if by == "own id":
            fields = {"id": one.message_id, "topic": one.topic}
            return fields, world.with_id(one.message_id, one.topic)
        if by == "key" and one.keys:
            fields = {"topic": one.topic, "key": one.keys[0]}
            found = world.with_key(one.topic, one.keys[0])
        else:
            fields = {"id": one.message_id}
            found = [
                each
                for each in world.with_id(one.message_id)
                if not each.topic.startswith(MADE_FOR_GROUPS)
            ]
        names = sorted({(each.message_id, each.topic) for each in found})
        return fields, [each for name in names for each in world.with_id(*name)]

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

    @staticmethod
    def _check_outcome(
        answer: Command, outcomes: set[str], success: str, failure: str, failed: int
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
        one = self._some_message(pick)
        if by == "order":
            self._reschedule_by_order(one, ms)
            return
        fields, meant = self._named(one, by)
        expected = []
        for each in meant:
            before_ms = each.due_ms
            wanted_ms = before_ms + ms if kind == "shift" else now_ms + ms
            outcome = world.move(each, max(wanted_ms, now_ms), now_ms)
            expected.append((outcome, each.message_id, each.topic, each.due_ms, before_ms))
        value = now_ms + ms if kind == "due" else ms
        answer = self.client.ask(RequestCode.RESCHEDULE_TIMERS, {**fields, kind: str(value)})
        found = [
            (each["outcome"], each["msgId"], each["topic"], each["dueMs"], each["dueBeforeMs"])
            for each in read(answer)["results"]
        ]
        assert found == (expected or [("unknown", fields["id"], "", 0, 0)])

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
            fields["cursor"] = cursor
            answer = read(self.client.ask(RequestCode.BULK_CHANGE_TIMERS, fields))
            count += answer["messages"]
            cursor = answer["cursor"]
        assert count == len(meant)
        for one in meant:
            if action == "abort":
                self.world.abort(one, now_ms)
            elif action == "reschedule":
                self.world.move(one, now_ms + ms, now_ms)
