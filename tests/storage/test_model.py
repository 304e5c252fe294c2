"""Random work on a store, compared at every commit with a model made of plain dicts and lists."""

from __future__ import annotations

import random
import shutil
import tempfile
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from storage import (
    MAX_LOOKED_AT,
    Aborted,
    AbortResult,
    Found,
    Pause,
    Rescheduled,
    RescheduleResult,
    State,
    StorageFullError,
    Store,
    abort,
    count_candidates,
    expire_messages,
    find_by_id,
    find_by_key,
    find_by_sequence,
    find_faults,
    fire_due,
    fire_resumed,
    pause_topic,
    remove_expired,
    replace_pending,
    reschedule,
    resume_topic,
)
from storage.inbox import INBOX_SIZE
from tests.scratch import scratch_place
from tests.storage.faults import nothing_can_be_written
from tests.storage.folder import Folder
from tests.storage.sample import FOREVER_MS, Sample, hold, pending_page, send

TOPICS = (b"a", b"aa", b"b")
QUEUES = (0, 1)
IDS = (b"x", b"y", b"x\0y", b"long" * 100)
KEYS = (b"k", b"kk", b"k\0k")
GROUPS = (b"g", b"gg")

MAP_SIZE = 8 << 20
"""Larger than one run can fill. Other tests cover how the map grows."""

Place = tuple[bytes, int]


@dataclass
class Message:
    """A message in the model; `state` says where it is."""

    message: Sample
    record: bytes
    due_ms: int
    state: State
    moved_ms: int = 0
    offset: int = -1
    rescheduled_ms: int = 0
    due_before_ms: int = 0
    waits: bool = False


@dataclass
class Row:
    """One offset of a queue."""

    sequence: int
    stored_ms: int


@dataclass
class World:
    """Everything a store holds, except consumers' progress."""

    next_sequence: int = 1
    messages: dict[int, Message] = field(default_factory=dict)
    firsts: dict[Place, int] = field(default_factory=dict)
    rows: dict[Place, list[Row]] = field(default_factory=dict)
    paused: dict[bytes, tuple[int, bool]] = field(default_factory=dict)

    def enqueue(self, sequence: int, now_ms: int) -> int:
        one = self.messages[sequence]
        place = (one.message.topic, one.message.queue)
        rows = self.rows.setdefault(place, [])
        one.waits = False
        one.offset = self.firsts.setdefault(place, 0) + len(rows)
        one.moved_ms = now_ms
        rows.append(Row(sequence, now_ms))
        return one.offset

    def end(self, place: Place) -> int:
        return self.firsts.get(place, 0) + len(self.rows.get(place, []))

    def pending(self) -> list[int]:
        """Return the sequences in the order in which they fire."""
        waiting = [
            (one.due_ms, one.message.topic, sequence)
            for sequence, one in self.messages.items()
            if one.state is State.PENDING
        ]
        return [sequence for _, _, sequence in sorted(waiting)]

    def found(self, sequence: int) -> Found:
        one = self.messages[sequence]
        return Found(
            sequence,
            one.record,
            one.state,
            one.due_ms,
            one.moved_ms,
            one.offset,
            one.rescheduled_ms,
            one.due_before_ms,
        )

    def waiting(self, topic: bytes) -> list[int]:
        """Return the sequences that are due in a paused topic, in the order in which they fire."""
        return [
            sequence
            for sequence in self.pending()
            if self.messages[sequence].waits and self.messages[sequence].message.topic == topic
        ]

    def abort(self, sequence: int, now_ms: int) -> None:
        one = self.messages[sequence]
        one.state, one.moved_ms, one.waits = State.ABORTED, now_ms, False


class StoreAndModel(RuleBasedStateMachine):
    """Each rule does the same to the store and the model. Results must agree at once, committed content at commits."""

    @initialize(inbox_size=st.sampled_from([0, 3, INBOX_SIZE]))
    def begin(self, inbox_size: int) -> None:
        self.inbox_size = inbox_size
        self.path = Path(tempfile.mkdtemp(prefix="storage-model-", dir=scratch_place()))
        self.folder = Folder(self.path)
        self.store = self._opened()
        self.now_ms = 1_000
        self.committed = World()
        self.batch = World()
        self.progress: dict[tuple[bytes, bytes, int], int] = {}
        self.progress_on_disk: dict[tuple[bytes, bytes, int], int] = {}
        self.includes_progress = False
        self.forgotten: dict[tuple[bytes, bytes, int], int] = {}

    def _opened(self) -> Store:
        store = self.folder.open(map_size=MAP_SIZE, inbox_size=self.inbox_size)
        store.settle = self._settle
        return store

    def _settle(self) -> None:
        """A look-up commits the batch."""
        self.store.commit()
        self._is_committed()

    # -- changes

    @rule(
        topic=st.sampled_from(TOPICS),
        queue=st.sampled_from(QUEUES),
        message_id=st.sampled_from(IDS),
        keys=st.lists(st.sampled_from(KEYS), max_size=3).map(tuple),
        tag_hash=st.sampled_from([0, 1, -1]),
        size=st.sampled_from([0, 10, 1_300, 3_000, 9_000]),
        delay_ms=st.none() | st.sampled_from([0, 1, 2, 5, 1_500, 200_000]),
    )
    def accept(
        self,
        topic: bytes,
        queue: int,
        message_id: bytes,
        keys: tuple[bytes, ...],
        tag_hash: int,
        size: int,
        delay_ms: int | None,
    ) -> None:
        message = Sample(
            message_id, topic, queue, keys, tag_hash, random.Random(size).randbytes(size)
        )
        sequence = self.batch.next_sequence
        assert self.store.next_sequence == sequence
        record = message.record(self.now_ms)
        self.batch.next_sequence += 1
        if delay_ms is None:
            self.batch.messages[sequence] = Message(message, record, 0, State.UNTIMED)
            expected = self.batch.enqueue(sequence, self.now_ms)
            assert send(self.store, message, self.now_ms) == expected
        else:
            due_ms = self.now_ms + delay_ms
            self.batch.messages[sequence] = Message(message, record, due_ms, State.PENDING)
            assert hold(self.store, message, due_ms, self.now_ms) == sequence

    @rule(message_id=st.sampled_from(IDS), topic=st.none() | st.sampled_from(TOPICS))
    def abort(self, message_id: bytes, topic: bytes | None) -> None:
        expected = []
        for one in reversed(self.batch.messages.values()):
            if one.message.message_id != message_id or topic not in (None, one.message.topic):
                continue
            if one.state is State.PENDING:
                one.state, one.moved_ms, one.waits = State.ABORTED, self.now_ms, False
                outcome = Aborted.ABORTED
            elif one.state is State.ABORTED:
                outcome = Aborted.ALREADY_ABORTED
            else:
                outcome = Aborted.ALREADY_FIRED
            expected.append(AbortResult(outcome, one.due_ms))
        unknown = [AbortResult(Aborted.UNKNOWN, 0)]
        assert abort(self.store, message_id, self.now_ms, topic) == (expected or unknown)

    @rule(
        message_id=st.sampled_from(IDS),
        topic=st.none() | st.sampled_from(TOPICS),
        later_ms=st.sampled_from([-2_000, 0, 1, 2, 1_500, 20_000]),
    )
    def reschedule(self, message_id: bytes, topic: bytes | None, later_ms: int) -> None:
        due_ms = max(1, self.now_ms + later_ms)
        expected = []
        for one in reversed(self.batch.messages.values()):
            if one.message.message_id != message_id or topic not in (None, one.message.topic):
                continue
            before_ms = one.due_ms
            if one.state is State.PENDING:
                one.due_ms, one.due_before_ms = due_ms, before_ms
                one.rescheduled_ms, one.waits = self.now_ms, False
                outcome = Rescheduled.RESCHEDULED
            elif one.state is State.ABORTED:
                outcome = Rescheduled.ALREADY_ABORTED
            else:
                outcome = Rescheduled.ALREADY_FIRED
            expected.append(RescheduleResult(outcome, one.due_ms, before_ms))
        unknown = [RescheduleResult(Rescheduled.UNKNOWN, 0, 0)]
        results = reschedule(self.store, message_id, lambda _: due_ms, self.now_ms, topic)
        assert results == (expected or unknown)

    @rule(
        topic=st.sampled_from(TOPICS),
        message_id=st.sampled_from(IDS),
        key=st.sampled_from(KEYS),
        delay_ms=st.none() | st.sampled_from([0, 2, 1_500]),
    )
    def debounce(self, topic: bytes, message_id: bytes, key: bytes, delay_ms: int | None) -> None:
        older = [
            sequence
            for sequence in self.batch.pending()
            if self.batch.messages[sequence].message.topic == topic
            and key in self.batch.messages[sequence].message.keys
        ]
        for sequence in older:
            self.batch.abort(sequence, self.now_ms)
        assert len(older) <= count_candidates(self.store, topic, key) <= MAX_LOOKED_AT
        sequence = self.store.next_sequence
        assert replace_pending(self.store, topic, key, sequence, self.now_ms) == len(older)
        self.accept(topic, 0, message_id, (key,), 0, 10, delay_ms)

    @rule(topic=st.sampled_from(TOPICS))
    def pause(self, topic: bytes) -> None:
        is_new = self.batch.paused.get(topic, (0, True))[1]
        if is_new:
            self.batch.paused[topic] = (self.now_ms, False)
        assert pause_topic(self.store, topic, self.now_ms) == is_new

    @rule(topic=st.sampled_from(TOPICS))
    def resume(self, topic: bytes) -> None:
        since_ms, resumed = self.batch.paused.get(topic, (0, True))
        if not resumed:
            self.batch.paused[topic] = (since_ms, True)
        assert resume_topic(self.store, topic) == (not resumed)

    @rule(limit=st.sampled_from([1, 2, 100]))
    def let_go(self, limit: int) -> None:
        resumed = [topic for topic, (_, is_resumed) in self.batch.paused.items() if is_resumed]
        resumed.sort(key=lambda topic: (len(self.batch.waiting(topic)), topic))
        share = max(1, limit // max(1, len(resumed)))
        count, more = 0, len(resumed) > limit
        for topic in resumed[:limit]:
            waiting = self.batch.waiting(topic)
            for sequence in waiting[:share]:
                self.batch.messages[sequence].state = State.FIRED
                self.batch.enqueue(sequence, self.now_ms)
            count += len(waiting[:share])
            if len(waiting) > share:
                more = True
            else:
                del self.batch.paused[topic]
        assert fire_resumed(self.store, self.now_ms, self.now_ms, limit) == (count, more)

    @rule(later_ms=st.sampled_from([0, 1, 3, 2_000]), limit=st.sampled_from([1, 3, 100]))
    def fire(self, later_ms: int, limit: int) -> None:
        self.now_ms += later_ms
        due = [
            sequence
            for sequence in self.batch.pending()
            if self.batch.messages[sequence].due_ms <= self.now_ms
            and not self.batch.messages[sequence].waits
        ]
        count = 0
        for sequence in due[:limit]:
            one = self.batch.messages[sequence]
            if one.message.topic in self.batch.paused:
                one.waits = True
                continue
            count += 1
            one.state = State.FIRED
            self.batch.enqueue(sequence, self.now_ms)
        fired = fire_due(self.store, self.now_ms, self.now_ms, limit)
        assert fired == (count, len(due) > limit)

    @rule(
        age_ms=st.sampled_from([0, 1, 2_000]),
        limit=st.sampled_from([1, 4, 100]),
        deleted=st.none() | st.sampled_from(TOPICS),
    )
    def expire(self, age_ms: int, limit: int, deleted: bytes | None) -> None:
        before_ms = self.now_ms - age_ms
        world, removed = self.batch, 0
        for place in sorted(world.rows):
            rows = world.rows[place]
            while (
                rows and removed < limit and (place[0] == deleted or rows[0].stored_ms < before_ms)
            ):
                del world.messages[rows.pop(0).sequence]
                world.firsts[place] += 1
                removed += 1
        aborted = sorted(
            (one.moved_ms, sequence)
            for sequence, one in world.messages.items()
            if one.state is State.ABORTED and one.moved_ms < before_ms
        )
        for _, sequence in aborted[: limit - removed]:
            del world.messages[sequence]
            removed += 1
        is_deleted = {deleted}.__contains__
        assert expire_messages(self.store, before_ms, limit, is_deleted).messages == removed

    @rule(limit=st.integers(1, 5), begin=st.integers(0, 20))
    def remove(self, limit: int, begin: int) -> None:
        """Remove some of what has expired: nobody sees a difference."""
        remove_expired(self.store, FOREVER_MS, limit, begin.to_bytes(8))

    @rule(
        group=st.sampled_from(GROUPS),
        topic=st.sampled_from(TOPICS),
        queue=st.sampled_from(QUEUES),
        offset=st.integers(0, 5),
    )
    def note_progress(self, group: bytes, topic: bytes, queue: int, offset: int) -> None:
        self.store.progress.note(group, topic, queue, offset)
        self.progress[group, topic, queue] = offset

    @rule(group=st.sampled_from(GROUPS))
    def forget_progress(self, group: bytes) -> None:
        list(self.store.progress.forget_group(group))
        gone = {place: at for place, at in self.progress.items() if place[0] == group}
        self.forgotten = gone | self.forgotten
        self.progress = {place: at for place, at in self.progress.items() if place[0] != group}
        self.includes_progress = self.store.progress.has_changes

    @rule()
    def include_progress(self) -> None:
        self.store.progress.include()
        self.includes_progress = self.store.progress.has_changes

    # -- the batch's end

    @rule()
    def commit(self) -> None:
        places = [(topic, queue) for topic in TOPICS for queue in QUEUES]
        grown = {place for place in places if self.batch.end(place) > self.committed.end(place)}
        result = self.store.commit()
        assert {(one.queue.topic, one.queue.number) for one in result} == grown
        self._is_committed()
        self.compare()

    @rule()
    def fail_to_commit(self) -> None:
        """Neither the log nor LMDB can be written."""
        with nothing_can_be_written(self.store):
            try:
                self.store.commit()
            except StorageFullError:
                self._is_refused()
            else:
                # There was nothing to write.
                self._is_committed()
        self.compare()

    @rule()
    def abandon(self) -> None:
        self.store.abandon()
        self._is_refused()
        self.compare()

    @rule()
    def restart(self) -> None:
        self.store = self._opened()
        self.includes_progress = True
        self._is_committed()
        self.compare()

    @rule()
    def crash(self) -> None:
        self.store = self.folder.reopen_after_crash(inbox_size=self.inbox_size)
        self.store.settle = self._settle
        self.batch = deepcopy(self.committed)
        self.progress = dict(self.progress_on_disk)
        self.includes_progress = False
        self.forgotten = {}
        self.compare()

    @rule()
    def checkpoint(self) -> None:
        self.commit()
        self.store.checkpoint()
        self.compare()

    def _is_refused(self) -> None:
        self.batch = deepcopy(self.committed)
        self.progress |= self.forgotten
        self.forgotten = {}

    def _is_committed(self) -> None:
        self.committed = deepcopy(self.batch)
        self.forgotten = {}
        if self.includes_progress:
            self.progress_on_disk = dict(self.progress)
            self.includes_progress = False

    # -- what can be read

    @rule(
        topic=st.sampled_from(TOPICS),
        queue=st.sampled_from(QUEUES),
        offset=st.integers(0, 20),
        limit=st.integers(1, 5),
        tags=st.none() | st.sets(st.sampled_from([0, 1, -1])),
    )
    def read(
        self, topic: bytes, queue: int, offset: int, limit: int, tags: set[int] | None
    ) -> None:
        world, place = self.committed, (topic, queue)
        held_from = world.firsts.get(place, 0)
        first = self.batch.firsts.get(place, 0)
        expected: list[tuple[int, int, int]] = []
        at = offset
        if offset < world.end(place):
            at = max(first, offset)
            for row in world.rows[place][at - held_from :]:
                if len(expected) == limit:
                    break
                if tags is None or world.messages[row.sequence].message.tag_hash in tags:
                    expected.append((row.sequence, at, row.stored_ms))
                at += 1
        page = self.store.read(self.store.queue(topic, queue), offset, limit, 1 << 30, tags)
        assert [(one.sequence, one.offset, one.stored_ms) for one in page.messages] == expected
        assert page.next_offset == at
        for one in page.messages:
            assert one.record == world.messages[one.sequence].record

    @rule(topic=st.none() | st.sampled_from(TOPICS), limit=st.integers(1, 4))
    def scan(self, topic: bytes | None, limit: int) -> None:
        self.store.settled_reader()
        world = self.committed
        expected = [
            world.found(sequence)
            for sequence in world.pending()
            if topic in (None, world.messages[sequence].message.topic)
        ]
        seen: list[Found] = []
        cursor, ended = None, False
        while not ended:
            page = pending_page(self.store, topic=topic, cursor=cursor, limit=limit)
            seen += page.found
            cursor = page.cursor
            ended = cursor is None
        assert seen == expected

    def compare(self) -> None:
        """Compare everything that is committed."""
        store, world = self.store, self.committed
        assert find_faults(store) == []
        assert store.next_sequence == self.batch.next_sequence
        for sequence in range(1, world.next_sequence + 1):
            known = sequence in world.messages
            expected = world.found(sequence) if known else None
            assert find_by_sequence(store, sequence) == expected
        for message_id in IDS:
            assert find_by_id(store, message_id) == [
                world.found(sequence)
                for sequence, one in reversed(world.messages.items())
                if one.message.message_id == message_id
            ]
        for topic in TOPICS:
            for key in KEYS:
                assert find_by_key(store, [topic], key, 1_000) == [
                    world.found(sequence)
                    for sequence, one in reversed(world.messages.items())
                    if one.message.topic == topic and key in one.message.keys
                ]
            for number in QUEUES:
                self._compare_queue(topic, number)
        waiting = {topic: len(world.waiting(topic)) for topic in world.paused}
        assert store.paused.items() == [
            (topic, Pause(since_ms, waiting[topic], resumed))
            for topic, (since_ms, resumed) in sorted(world.paused.items())
        ]
        pending = world.pending()
        timed = [sequence for sequence in pending if not world.messages[sequence].waits]
        assert store.next_due() == (world.messages[timed[0]].due_ms if timed else None)
        held: dict[bytes, int] = {}
        for sequence in pending:
            topic = world.messages[sequence].message.topic
            held[topic] = held.get(topic, 0) + 1
        assert store.held_totals() == held
        progress = {(group, topic, queue): at for group, topic, queue, at in store.progress.rows()}
        assert progress == self.progress

    def _compare_queue(self, topic: bytes, number: int) -> None:
        store, world, place = self.store, self.committed, (topic, number)
        queue = store.queue(topic, number)
        first = world.firsts.get(place, 0)
        assert (queue.first, queue.visible) == (first, world.end(place))
        assert queue.next == self.batch.end(place)
        rows = world.rows.get(place, [])
        for asked_ms in {row.stored_ms for row in rows} | {0, self.now_ms + 1}:
            earlier = sum(row.stored_ms < asked_ms for row in rows)
            assert store.offset_at(queue, asked_ms) == first + earlier

    def teardown(self) -> None:
        """Whatever the last batch was, the folder must be sound when it is closed and opened again."""
        if hasattr(self, "folder"):
            try:
                self.folder.check()
            finally:
                shutil.rmtree(self.path)


TestStoreAndModel = StoreAndModel.TestCase
TestStoreAndModel.settings = settings(max_examples=80, stateful_step_count=40)
