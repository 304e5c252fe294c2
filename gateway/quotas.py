"""Checks each message that is to be accepted against the limits of its topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from gateway.limits import HELD_BYTES, HELD_MESSAGES, SEND_RATE, Limits, origin, without_own
from gateway.router import RequestError, TooMuchError
from gateway.settings.config import Config
from gateway.settings.values import show_size
from gateway.topics import Topic
from gateway.wire.codes import ResponseCode
from storage import Store

COUNTED: Final = (HELD_MESSAGES, HELD_BYTES, SEND_RATE)
"""The limits of which refusals are counted."""


class Quotas:
    """Refuses messages beyond a topic's limits.

    :param seconds: steady time for the rates, which count real seconds whatever clock the messages go by.
    """

    def __init__(self, store: Store, config: Config, seconds: Callable[[], float]) -> None:
        self._store = store
        self._seconds = seconds
        self._tokens: dict[str, tuple[float, float]] = {}
        self.refusals: Counter[tuple[str, str]] = Counter()
        """How often sends were refused, by topic and attribute."""
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Use these settings where a topic has no limit of its own."""
        self._default = without_own(config)

    def forget_topic(self, topic: str) -> None:
        """Drop the counts of a topic that no longer exists."""
        self._tokens.pop(topic, None)
        for limit in COUNTED:
            del self.refusals[topic, limit]

    def admit(
        self,
        topic: Topic,
        messages: int,
        timed: int,
        timed_bytes: int,
        replaced: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        """Count messages against the topic's limits. A topic may hold more than a limit, as one that was lowered: it
        still accepts what does not add to that.

        :param messages: how many are to be accepted, together or not at all.
        :param timed: how many of them are for later.
        :param timed_bytes: bytes of the bodies and properties of those for later.
        :param replaced: returns the bytes of each message that they replace; called only when there is no room.
        :raises RequestError: when there are too many.
        """
        if topic.is_of_group:
            # What consumers send back is not refused: it was accepted before.
            return
        own, default = topic.limits, self._default
        if timed:
            most = default.held_messages if own.held_messages is None else own.held_messages
            if most:
                held = self._store.held.messages_of(topic.stored_name)
                room = max(0, most - held)
                if timed > room and timed - len(replaced()) > room:
                    self._refuse_held(
                        topic, HELD_MESSAGES, f"{held} messages", str(most), own.held_messages
                    )
            most = default.held_bytes if own.held_bytes is None else own.held_bytes
            if most:
                held = self._store.held.sizes_of(topic.stored_name)
                room = max(0, most - held)
                if timed_bytes > room and timed_bytes - sum(replaced()) > room:
                    size = f"{held} bytes of messages"
                    self._refuse_held(topic, HELD_BYTES, size, show_size(most), own.held_bytes)
        rate = default.send_rate if own.send_rate is None else own.send_rate
        if rate:
            self._take_tokens(topic, messages, rate, own)

    def _refuse_held(
        self, topic: Topic, limit: str, held: str, most: str, own: int | None
    ) -> NoReturn:
        self.refusals[topic.name, limit] += 1
        # The code is upstream's for timers under flow control (SendMessageProcessor).
        raise TooMuchError(
            ResponseCode.SYSTEM_ERROR,
            f"timer message is under flow control: topic {topic.name} holds {held} that have not fired, "
            f"and may hold {most} ({origin(limit, own)})",
        )

    def _take_tokens(self, topic: Topic, messages: int, rate: int, own: Limits) -> None:
        """Take tokens from a bucket of one second's messages, which fills at the rate. A batch that is larger than the
        bucket needs it full."""
        now = self._seconds()
        tokens, filled = self._tokens.get(topic.name, (float(rate), now))
        tokens = min(float(rate), tokens + (now - filled) * rate)
        if tokens < min(messages, rate):
            self.refusals[topic.name, SEND_RATE] += 1
            raise RequestError(
                ResponseCode.SYSTEM_BUSY,
                f"broker busy, start flow control for a while: topic {topic.name} takes {rate} messages "
                f"a second ({origin(SEND_RATE, own.send_rate)})",
            )
        self._tokens[topic.name] = (tokens - messages, now)
