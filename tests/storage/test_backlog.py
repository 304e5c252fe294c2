"""Random work while more is due than a step fires, compared with a model: whatever arrives, moves, is taken back or
refused meanwhile, each topic fires in the order of due times, and nothing early, twice or never."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from random import Random

import pytest

from storage import (
    INBOX_SIZE,
    StorageError,
    abort_sequences,
    fire_crowded_out,
    fire_due,
    fire_resumed,
    firing,
    inbox,
    pause_topic,
    reschedule_sequences,
    resume_topic,
)
from tests.storage.faults import nothing_can_be_written
from tests.storage.folder import Folder, check
from tests.storage.sample import Sample, hold

TOPICS = (b"a", b"a-1", b"aa", b"b", b"storm")


@dataclass
class World:
    """Due time and topic of each pending message by its sequence, what each topic has fired, and the paused topics."""

    pending: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    fired: dict[bytes, list[int]] = field(default_factory=lambda: {topic: [] for topic in TOPICS})
    paused: set[bytes] = field(default_factory=set)

    def due(self, topic: bytes, now_ms: int) -> list[int]:
        """Return a topic's due messages, in the order in which they fire."""
        own = [
            one
            for one, (due_ms, name) in self.pending.items()
            if name == topic and due_ms <= now_ms
        ]
        return sorted(own, key=lambda one: (self.pending[one], one))


class Backlog:
    """A store and its model, which do the same."""

    def __init__(self, folder: Folder, chance: Random, inbox_size: int) -> None:
        self.folder = folder
        self.chance = chance
        self.inbox_size = inbox_size
        self.store = folder.open(inbox_size=inbox_size)
        self.stored, self.world = World(), World()
        self.now_ms = self.latest_ms = 100_000
        self.span_ms = chance.choice([50, 3_000, 40_000])
        self.behind = b""

    def turn(self) -> bool:
        """Change something, fire, and end the batch in some way. Return whether more is due."""
        for _ in range(self.chance.choice([0, 0, 1, 3, 12])):
            self._change()
        self.now_ms += self.chance.choice([0, 0, 0, 1, self.span_ms // 4, -self.span_ms // 8])
        more = self._fire()
        how = self.chance.random()
        if how < 0.7:
            self._commit(more=more)
        elif how < 0.9:
            with nothing_can_be_written(self.store):
                try:
                    self.store.commit()
                except StorageError:
                    self.world = deepcopy(self.stored)
                else:
                    self._is_stored(more=more)
        elif how < 0.95:
            self.store = self.folder.reopen_after_crash(inbox_size=self.inbox_size)
            self.world = deepcopy(self.stored)
        else:
            self._commit(more=more)
            self.store = self.folder.open(inbox_size=self.inbox_size)
        return more

    def end(self) -> None:
        """Let everything fire."""
        for topic in TOPICS:
            resume_topic(self.store, topic)
        self.now_ms += 2 * self.span_ms
        more = True
        while more:
            more = self._fire()
            self._commit(more=more)
        assert not self.world.pending

    def _change(self) -> None:
        store, world, chance = self.store, self.world, self.chance
        kind = chance.random()
        due_ms = self.now_ms + chance.randrange(-self.span_ms, self.span_ms)
        topic = chance.choice([*TOPICS, b"storm"])
        if kind < 0.6 or not world.pending:
            world.pending[hold(store, Sample(b"x", topic), due_ms, self.now_ms)] = due_ms, topic
            return
        one = chance.choice(list(world.pending))
        if kind < 0.75:
            assert abort_sequences(store, [one], self.now_ms) == {one}
            del world.pending[one]
        elif kind < 0.95:
            assert one in reschedule_sequences(store, [one], lambda _: due_ms, self.now_ms)
            world.pending[one] = due_ms, world.pending[one][1]
        elif chance.random() < 0.5:
            pause_topic(store, topic, self.now_ms)
            world.paused.add(topic)
        else:
            resume_topic(store, topic)

    def _fire(self) -> bool:
        """Fire as the gateway does in one step. Return whether more is due."""
        self.latest_ms = max(self.latest_ms, self.now_ms)
        more = fire_due(self.store, self.now_ms, self.latest_ms, 3).more
        if more:
            _, self.behind = fire_crowded_out(
                self.store, self.now_ms, self.latest_ms, 2, self.behind
            )
        return fire_resumed(self.store, self.latest_ms, self.latest_ms, 3).more or more

    def _commit(self, *, more: bool) -> None:
        self.store.commit()
        self._is_stored(more=more)

    def _is_stored(self, *, more: bool) -> None:
        """Compare what the batch has fired with what it was to fire."""
        world = self.world
        for topic, fired in world.fired.items():
            entered = [
                row[0] for row in self.store.rows(self.store.queue(topic, 0), len(fired), 999)
            ]
            due = world.due(topic, self.now_ms)
            if topic in world.paused:
                # What waits while the clock is set back counts as due.
                waited = [one for one in world.due(topic, self.latest_ms) if one in entered]
                assert entered == waited
            else:
                assert entered == due[: len(entered)]
                assert more or entered == due
            fired.extend(entered)
            for one in entered:
                del world.pending[one]
        assert self.store.pending_count() == len(world.pending)
        world.paused = set(self.store.paused.topics())
        self.stored = deepcopy(world)


@pytest.mark.parametrize("inbox_size", [0, 4, INBOX_SIZE])
@pytest.mark.parametrize("seed", range(6))
def test_each_topic_fires_in_order(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, inbox_size: int, seed: int
) -> None:
    monkeypatch.setattr(firing, "LEAPS", 3)
    monkeypatch.setattr(firing, "LEAPS_OVER_OTHERS", 6)
    monkeypatch.setattr(firing, "TOPICS_AT_ONCE", 2)
    monkeypatch.setattr(firing, "MOST_AT_ONCE", 6)
    monkeypatch.setattr(inbox, "MOVED_AT_ONCE", 5)
    backlog = Backlog(folder, Random(seed), inbox_size)
    for turn in range(120):
        backlog.turn()
        if turn % 20 == 0:
            check(backlog.store)
    backlog.end()
    folder.check()
