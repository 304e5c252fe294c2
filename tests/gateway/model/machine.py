"""Runs a gateway and its model side by side, with helpers for the rules of all kinds.

Each rule does the same to both. Every answer must agree with the model. What happens without a request must be found in
the gateway at its time, once (`comparing`).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.messages import Message as Record
from gateway.wire.messages import decode_message, decode_messages, parse_offset_msg_id
from tests.gateway.memory import MemoryClient, MemoryGateway, properties_of
from tests.gateway.model.world import Message, Place, World
from tests.scratch import scratch_place

TOPICS = ("a", "b")
IDS = ("ID0", "ID1", "ID2", "ID3")
KEYS = ("k", "kk")
TAGS = ("", "A", "B")
LEVEL_MS = (0, 1_000, 5_000, 10_000, 30_000, 60_000)
MOST_RETRIES = 1

RETENTION_MS = 60_000
CHECK_MS, CHECKS = 5_000, 2

SETTINGS = {
    "connection_idle": timedelta(days=365),
    "retention_hours": RETENTION_MS / 3_600_000,
    "transaction_timeout": timedelta(milliseconds=CHECK_MS),
    "transaction_check_interval": timedelta(milliseconds=CHECK_MS),
    "transaction_check_max": CHECKS,
}

picks = st.integers(0, 40)
"""A number that picks one of several items; 0 picks the newest."""
topics = st.sampled_from(("a", "a", "a", "b"))
queues = st.integers(0, 1)
ids = st.sampled_from(IDS)
keys = st.sampled_from(("k", "k", "k", "kk"))
delays = st.none() | st.sampled_from([-5, 1, 2, 3, 1_000, 2_500, 20_000])


class Machine(RuleBasedStateMachine):
    """The gateway and the model, with requests and model changes that several rules need."""

    client: MemoryClient

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="tidegate-model-", dir=scratch_place()))
        self.gateway = MemoryGateway(self.path / "data", **SETTINGS)
        self.client = self.gateway.connect()
        self.world = World()
        self.bodies = 0
        self.last_sequence = -1
        self.highest_ms = self.gateway.now_ms
        self.before_highest_ms = self.gateway.now_ms
        self.before_ms = self.gateway.now_ms
        self.before_elapsed_ms = 0
        self.is_late = False
        self.regular_since = 0

    def teardown(self) -> None:
        try:
            self.gateway.close()
        finally:
            shutil.rmtree(self.path)

    # -- time

    @property
    def now_ms(self) -> int:
        return self.gateway.now_ms

    def _stalled(self) -> None:
        """Note that everything due until now may have been late."""
        self.is_late = True
        self.regular_since = self.gateway.elapsed_ms

    def _check_moment(self, stored_ms: int, expected_ms: int, late_ms: int = 0) -> None:
        """Check that something happened at its time: never early, and late only when nothing could happen."""
        assert expected_ms <= stored_ms <= self.highest_ms, "early, or in the future"
        was_regular = self.before_elapsed_ms - self.regular_since >= late_ms
        if was_regular and not self.is_late:
            # After the clock was set back, noted times continue from the highest one.
            assert stored_ms <= max(expected_ms + late_ms, self.before_highest_ms), "late"

    # -- messages

    def _ensure(self, topic: str) -> None:
        """Create a missing topic with 4 queues, as a send does."""
        if topic not in self.world.topics:
            self.world.make(topic, 4)

    def _message(
        self, topic: str, queue: int, message_id: str, tag: str = "", keys: Iterable[str] = ()
    ) -> tuple[Message, dict[str, str]]:
        """Return a new message, and its properties."""
        self.bodies += 1
        one = Message(0, message_id, topic, queue, f"m{self.bodies}", tag, tuple(sorted(keys)))
        properties = {"UNIQ_KEY": message_id, "TAGS": tag, "KEYS": " ".join(one.keys)}
        return one, {name: value for name, value in properties.items() if value}

    def _timing(self, kind: str, delay_ms: int | None) -> tuple[dict[str, str], int | None]:
        """Return the properties that request a delay, and the delay in ms; None for none."""
        if delay_ms is None:
            return {}, None
        if kind == "level":
            level = delay_ms % 4
            return {"DELAY": str(level)}, LEVEL_MS[level] or None
        if kind == "deliver":
            at = {"TIMER_DELIVER_MS": str(self.now_ms + delay_ms)}
            return at, delay_ms if delay_ms > 0 else None
        return {"TIMER_DELAY_MS": str(delay_ms)}, delay_ms if delay_ms > 0 else None

    @staticmethod
    def _debouncing(one: Message, debounces: bool) -> dict[str, str]:
        """Return the property by which a message replaces those with its first key, if it is to do so and has a key."""
        if not debounces or not one.keys:
            return {}
        one.debounce = one.keys[0]
        return {"TIDEGATE_DEBOUNCE": one.debounce}

    def _told(self, message_id: str) -> int:
        """Return a message's sequence from the id in the answer to its send. Sequences must grow."""
        sequence = parse_offset_msg_id(message_id)[1]
        assert sequence > self.last_sequence
        self.last_sequence = sequence
        return sequence

    def _accepted(self, one: Message, delay_ms: int | None) -> None:
        """Note that a message was accepted, or its half message committed."""
        if delay_ms is not None:
            self.world.hold(one, self.now_ms + delay_ms, self.now_ms)
            return
        record = self._view(one.sequence)
        assert record is not None
        # Store times never go back.
        assert self.now_ms <= record.store_ms <= self.highest_ms
        self.world.enqueue(one, record.store_ms)

    def _some_message(self, pick: int) -> Message:
        """Return one of the messages that are held."""
        messages = self.world.newest_first()
        return messages[pick % len(messages)]

    @staticmethod
    def _pick(found: list[Any], pick: int) -> Any:
        return found[-1 - pick % len(found)]

    # -- what the gateway has

    def _view(self, sequence: int) -> Record | None:
        answer = self.client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(sequence)})
        return decode_message(answer.body) if answer.code == ResponseCode.SUCCESS else None

    @staticmethod
    def _sequence(held: dict[str, Any]) -> int:
        """Return the sequence of a message that a look-up found."""
        return parse_offset_msg_id(held["offsetMsgId"])[1]

    def _new_rows(self, place: Place) -> list[Record]:
        """Return the messages that entered a queue since the last comparison."""
        rows = self.world.rows(place)
        found: list[Record] = []
        while True:
            answer = self.client.ask_pull(*place, rows.end + len(found), group="watchers")
            assert int(answer.ext()["minOffset"]) == rows.first
            if answer.code != ResponseCode.SUCCESS:
                assert answer.code == ResponseCode.PULL_NOT_FOUND
                assert [record.queue_offset for record in found] == [
                    rows.end + number for number in range(len(found))
                ]
                return found
            found += decode_messages(answer.body)

    def _check_record(self, record: Record, one: Message) -> None:
        """Check that a consumer receives the message of the model."""
        assert record.body.decode() == one.body
        assert record.physical_offset == one.sequence
        assert record.reconsume_times == one.retries
        assert record.store_ms == one.moved_ms
        properties = properties_of(record)
        assert properties["UNIQ_KEY"] == one.message_id
        assert properties.get("TAGS", "") == one.tag
        assert tuple(properties.get("KEYS", "").split()) == one.keys
