"""Sends: a message is in its queue when it is answered, or waits until it is due. The same holds for messages of a
batch. Of a debounced key only the last message stays pending."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.gateway.model.machine import TAGS, Machine, delays, ids, keys, queues, topics
from tests.gateway.tools import ok


class Sending(Machine):
    """The requests of producers without transactions."""

    @rule(
        topic=topics,
        queue=queues,
        message_id=ids,
        tag=st.sampled_from(TAGS),
        keys=st.sets(keys),
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
        keys: set[str],
        kind: str,
        delay_ms: int | None,
        debounces: bool,
    ) -> None:
        self._ensure(topic)
        one, properties = self._message(topic, queue, message_id, tag, keys)
        timing, delay_ms = self._timing(kind, delay_ms)
        properties |= timing | self._debouncing(one, debounces)
        answer = self.client.send_message(topic, one.body, properties, fields={"queue": queue})
        ext = ok(answer).ext()
        replaced = None
        if one.debounce:
            replaced = str(self.world.debounce(topic, one.debounce, self.now_ms))
        assert ext.get("replaced") == replaced
        if delay_ms is None:
            assert int(ext["queueOffset"]) == self.world.rows((topic, queue)).end
        one.sequence = self._told(ext["msgId"])
        self._accepted(one, delay_ms)
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
        batch = [(one.body, properties) for one, properties, _ in items]
        answer = ok(self.client.send_batch(batch, topic, queue=queue))
        for (one, _, delay_ms), msg_id in zip(items, answer.ext()["msgId"].split(","), strict=True):
            one.sequence = self._told(msg_id)
            self._accepted(one, delay_ms)
