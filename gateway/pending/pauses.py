"""Pausing and resuming the firing of a topic, for any caller; see `storage.paused` for how it is done."""

from __future__ import annotations

from gateway.broker import Broker
from gateway.router import RequestError
from gateway.topics import Topic
from gateway.wire.codes import ResponseCode
from storage import pause_topic, resume_topic


class Pauses:
    """Pauses topics. Nothing of a paused topic fires; what is due waits, and can be found, rescheduled and aborted."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def pause(self, topic: str) -> bool:
        """Let nothing of a topic fire from now on. Return False when the topic is paused already.

        :raises RequestError: when there is no such topic.
        """
        known = self._known(topic)
        changed = pause_topic(self._broker.store, known.stored_name, self._broker.clock.now_ms())
        if changed:
            self._broker.audit.note("pause", topic=topic)
        return changed

    def resume(self, topic: str) -> bool:
        """Let a topic fire again, first what waits, in the order of due times. Return False when it is not paused.

        :raises RequestError: when there is no such topic.
        """
        changed = resume_topic(self._broker.store, topic.encode())
        if changed:
            self._broker.audit.note("resume", topic=topic)
        else:
            self._known(topic)
        return changed

    def _known(self, topic: str) -> Topic:
        known = self._broker.topics.get(topic)
        if known is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"there is no topic {topic}: check its name"
            )
        return known
