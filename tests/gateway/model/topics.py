"""Topics: creating them, adding queues, deleting them with all messages in their queues, and pausing them so that
nothing fires."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from gateway.wire.codes import RequestCode, ResponseCode
from tests.gateway.model.machine import MOST_RETRIES, TOPICS, Machine, topics
from tests.gateway.tools import create_topic, ok, put_group, read


class Topics(Machine):
    """The requests of operators about topics."""

    @initialize()
    def begin(self) -> None:
        for topic in TOPICS:
            self.create(topic, 2)
        for group in ("readers", "poppers", "ordered", "workers"):
            ok(put_group(self.client, group, retryMaxTimes=MOST_RETRIES))

    @rule(topic=topics, queues=st.integers(2, 4))
    def create(self, topic: str, queues: int) -> None:
        """Create a topic, or add queues to it."""
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
        if topic not in self.world.topics:
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
            return
        assert read(answer)["changed"] == (topic in self.world.paused)
        self._resumed(topic)

    def _resumed(self, topic: str) -> None:
        if topic in self.world.paused:
            self.world.paused.remove(topic)
            for one in self.world.pending(topic):
                one.from_ms = max(one.from_ms, self.now_ms)
