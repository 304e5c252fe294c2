"""What a power cut leaves is whole: every batch up to one, and each batch that was reported as on disk."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from storage import (
    Found,
    RestartNeededError,
    StorageError,
    abort,
    back_up,
    expire_messages,
    find_by_id,
    fire_due,
    logged,
    read_pending,
    redo_log,
    remove_expired,
)
from storage.durable import NOTE_FILE
from storage.inbox import INBOX_SIZE
from storage.meta_pages import DATA_FILE
from tests.scratch import scratch_place
from tests.storage.disk import Disk, Worker
from tests.storage.folder import Folder, check, unpack
from tests.storage.sample import (
    TOPIC,
    Sample,
    hold,
    id_of,
    ids_in,
    pending_ids,
    send,
    terms_of,
)

QUEUES: Final = (0, 1)
MAP_SIZE: Final = 8 << 20
MAX_LOG: Final = 32 << 10
"""Bytes of a file of the redo log: some batches do not fit."""

NUMBER: Final = b"batch"

STEPS: Final = st.sampled_from([None, 0, 1, 2, 3])
"""How far a checkpoint got, if one was begun: from 1 on at the sync of LMDB's file, from 2 on at the sync of the note,
from 3 on at its end."""


class Cut(NamedTuple):
    """How the power is cut."""

    way: int
    """The seed for how written and unwritten sectors are mixed."""
    is_copied: bool = False
    """Whether to back up what is left before anybody opens it."""
    starts: tuple[int, ...] = ()
    """At which of its syncs each of the next starts is cut, the last start first."""


CUTS: Final = st.builds(
    Cut,
    st.integers(0, 1 << 16),
    st.booleans(),
    st.lists(st.integers(1, 6), max_size=2).map(tuple),
)


class Seen(NamedTuple):
    """All that a store holds after a batch."""

    batch: int
    messages: dict[bytes, list[Found]]
    queues: list[list[bytes]]
    pending: list[bytes]


class PowerCuts(RuleBasedStateMachine):
    """Work on a store whose power is cut again and again, also while it starts."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="storage-power-", dir=scratch_place()))
        self.folder = Folder(self.root / "0")
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(logged, "CHECKPOINT_ROWS", 1)
        self.patch.setattr(redo_log, "MAX_LOG", MAX_LOG)
        self.patch.setattr(redo_log, "_FIRST_GROWTH", 4 << 10)
        self.disk = Disk(self.patch)
        self.disk.hold(self.folder.path)
        self.folders = 0
        self.batch = 0
        self.now_ms = 1_000
        self.ids: list[bytes] = []
        self.states = [Seen(0, {}, [[] for _ in QUEUES], [])]
        self.sure = 0
        """The last of these states that is surely on disk."""
        self.is_committing = False
        self.is_copied = False
        self.starts: list[int] = []
        self.left: Path | None = None
        """The folder that a power cut has just left."""
        self.bounds = (0, 0)
        """The first and the last of the states that this folder can be in."""

    @initialize(sync=st.booleans(), inbox_size=st.sampled_from([0, 3, INBOX_SIZE]))
    def begin(self, sync: bool, inbox_size: int) -> None:
        self.inbox_size = inbox_size
        self._start(0, sync)

    # -- work

    @rule(
        sent=st.integers(0, 2),
        held=st.integers(0, 3),
        size=st.sampled_from([10, 700, 3_000, 6_000, MAX_LOG]),
        delay_ms=st.sampled_from([1, 5, 50, 100_000]),
        aborted=st.lists(st.integers(0, 100), max_size=2),
        later_ms=st.sampled_from([0, 2, 60]),
        expired=st.sampled_from([0, 3]),
        removed=st.sampled_from([0, 2]),
    )
    def store_batch(
        self,
        sent: int,
        held: int,
        size: int,
        delay_ms: int,
        aborted: list[int],
        later_ms: int,
        expired: int,
        removed: int,
    ) -> None:
        self.batch += 1
        self.now_ms += later_ms
        store, now_ms = self.store, self.now_ms
        store.put_note(NUMBER, b"%d" % self.batch)
        for number in range(sent + held):
            message_id = b"%d-%d" % (self.batch, number)
            self.ids.append(message_id)
            body = Random(self.batch).randbytes(300 if number else size)
            message = Sample(message_id, queue=number % len(QUEUES), body=body)
            if number < sent:
                send(store, message, now_ms)
            else:
                hold(store, message, now_ms + delay_ms, now_ms)
        for number in aborted:
            if self.ids:
                abort(store, self.ids[-1 - number % len(self.ids)], now_ms)
        fire_due(store, now_ms, now_ms, 100)
        if expired:
            expire_messages(store, now_ms - 100, expired, lambda topic: False)
        if removed:
            remove_expired(store, now_ms, removed)
        self.is_committing = True
        try:
            store.commit()
        finally:
            self.is_committing = False
        self.states.append(self._look())
        self._go_on()

    @rule(steps=STEPS)
    def work(self, steps: int | None = None) -> None:
        """Store a plain batch, and begin a checkpoint if `steps` is given."""
        self.store_batch(2, 2, 700, 5, [0], 2, 0, 0)
        if steps is not None:
            self.store.checkpoint_if_due()
            for _ in range(steps):
                self._worker().step()
        self._go_on()

    @rule()
    def go_on_with_checkpoint(self) -> None:
        self._worker().step()
        self._go_on()

    @rule()
    def make_checkpoint(self) -> None:
        self.store.checkpoint()
        self._go_on()

    @rule()
    def sync_log(self) -> None:
        self.store.sync()
        self._go_on()

    @rule(sync=st.booleans())
    def stop_and_start(self, sync: bool) -> None:
        self.folder.close()
        self.sure = self._last
        self._start(self._last, sync)
        self._go_on()

    @rule(steps=STEPS, sync=st.booleans())
    def kill_and_start(self, steps: int | None, sync: bool) -> None:
        """After a kill the kernel still has everything written, and the next process may rely on it."""
        if steps is not None:
            self.work(steps)
        self._kill()
        self._start(self._last, sync)
        self._go_on()

    # -- power

    @rule(steps=STEPS, cut=CUTS)
    def cut_power(self, steps: int | None, cut: Cut) -> None:
        """Cut the power between two batches."""
        if steps is not None:
            self.work(steps)
        self._plan(cut)
        self._cut()
        self._go_on()

    @rule(syncs=st.integers(1, 8), cut=CUTS)
    def have_power_cut(self, syncs: int, cut: Cut) -> None:
        """Have the power cut in the middle of later work."""
        self._plan(cut)
        self.disk.before_sync(syncs, self._cut)

    def _plan(self, cut: Cut) -> None:
        self.random, self.is_copied, self.starts = Random(cut.way), cut.is_copied, [*cut.starts]

    def _cut(self) -> None:
        self.left = self._new_folder()
        self.bounds = (self.sure, self._last + self.is_committing)
        self.disk.cut_power(self.left, self.random)

    def _go_on(self) -> None:
        """Open what a power cut has left, if there was one."""
        self.disk.look()
        if self.left is None and not self.store.environment.unheld_seconds():
            self.sure = self._last
        while (left := self.left) is not None:
            self.left = None
            self._kill()
            shutil.rmtree(self.folder.path)
            self.folder = Folder(left)
            self.disk.hold(left)
            copied = self._pending_in_copy() if self.is_copied else ()
            if self.starts:
                self.disk.before_sync(self.starts.pop(), self._cut)
            first, last = self.bounds
            self._start(first, self.sync, last)
            # The power may have been cut again meanwhile. Everything that was found had been on disk.
            self.bounds = (self.sure, self.sure)
            # Without `sync` the log can have a gap, and then no copy is made.
            assert not (self.sync and self.store.environment.log.has_gap)
            assert copied in (
                (),
                None if self.store.environment.log.has_gap else self.states[-1].pending,
            )

    def _start(self, first: int, sync: bool, last: int | None = None) -> None:
        """Open the folder, and check that it is in one of these states. From now on that state is sure."""
        self.store = self.folder.open(sync=sync, map_size=MAP_SIZE, inbox_size=self.inbox_size)
        # The thread's first task has nothing to sync. No checkpoint is due before it is done.
        self._worker().step()
        seen = self._look()
        batches = [state.batch for state in self.states]
        assert seen.batch in batches[first : (first if last is None else last) + 1]
        found = batches.index(seen.batch)
        assert seen == self.states[found]
        check(self.store)
        del self.states[found + 1 :]
        self.sure = found
        if self.left is None:
            # Otherwise the previous process wrote what is left.
            self.sync = sync

    def _kill(self) -> None:
        """Leave the store as a killed process does."""
        if self.folder.store is not None:
            self._worker().kill()
            self.folder.store = None
            self.store.environment.close()

    # -- what there is

    @property
    def _last(self) -> int:
        return len(self.states) - 1

    def _look(self) -> Seen:
        messages = {message_id: find_by_id(self.store, message_id) for message_id in self.ids}
        return Seen(
            int(dict(self.store.notes()).get(NUMBER, b"0")),
            {message_id: found for message_id, found in messages.items() if found},
            [ids_in(self.store, TOPIC, queue) for queue in QUEUES],
            pending_ids(self.store),
        )

    def _pending_in_copy(self) -> list[bytes] | None:
        """Return what is pending in an unopened backup of the folder, or None if the folder's log has a gap."""
        left, backup = self._new_folder(), self._new_folder()
        shutil.copytree(self.folder.path, left)
        try:
            back_up(left, backup)
        except StorageError as error:
            if "has a record that cannot be read, and others behind it" not in str(error):
                raise
            return None
        return [id_of(one.record) for one in read_pending(backup, terms_of)]

    def _worker(self) -> Worker:
        worker = self.store.environment.durable._thread
        assert isinstance(worker, Worker)
        return worker

    def _new_folder(self) -> Path:
        self.folders += 1
        return self.root / str(self.folders)

    def teardown(self) -> None:
        self._kill()
        self.patch.undo()
        shutil.rmtree(self.root)


TestPowerCuts = PowerCuts.TestCase
TestPowerCuts.settings = settings(max_examples=60, stateful_step_count=20, deadline=None)


# -- plain cases, each with many ways in which the sectors may be mixed

WAYS: Final = range(8)


@pytest.fixture(params=[True, False], ids=["sync", "async"])
def cuts(request: pytest.FixtureRequest) -> Iterator[PowerCuts]:
    """A store that has made some checkpoints, so that LMDB reuses pages."""
    cuts = PowerCuts()
    cuts.begin(sync=request.param, inbox_size=0)
    for _ in range(4):
        cuts.work(3)
    yield cuts
    cuts.teardown()


@pytest.mark.parametrize("steps", range(4))
def test_within_a_checkpoint(cuts: PowerCuts, steps: int) -> None:
    for way in WAYS:
        cuts.work(0)
        for _ in range(steps):
            cuts.go_on_with_checkpoint()
            cuts.work()
        cuts.cut_power(None, Cut(way, is_copied=True))


@pytest.mark.parametrize("syncs", range(1, 5))
@pytest.mark.parametrize("is_full", [False, True], ids=["asked for", "log is full"])
def test_while_a_checkpoint_waits_for_the_one_before(
    cuts: PowerCuts, syncs: int, is_full: bool
) -> None:
    for way in WAYS:
        cuts.work(0)
        cuts.have_power_cut(syncs, Cut(way))
        if is_full:
            cuts.store_batch(1, 0, MAX_LOG, 0, [], 0, 0, 0)
        else:
            cuts.make_checkpoint()


@pytest.mark.parametrize("syncs", range(1, 7))
def test_within_a_start(cuts: PowerCuts, syncs: int) -> None:
    for way in WAYS:
        cuts.work(0)
        cuts.cut_power(None, Cut(way, starts=(1, syncs)))


@pytest.mark.parametrize("steps", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("then", [None, 0], ids=["at once", "within a checkpoint"])
def test_after_a_kill(cuts: PowerCuts, steps: int | None, then: int | None) -> None:
    """What the previous process wrote but did not sync can be lost as well."""
    for way in WAYS:
        cuts.work()
        cuts.kill_and_start(steps, sync=not cuts.sync)
        cuts.cut_power(then, Cut(way))


@pytest.mark.parametrize("name", [DATA_FILE, NOTE_FILE])
def test_after_a_sync_that_failed(cuts: PowerCuts, name: str) -> None:
    for way in WAYS:
        cuts.disk.break_once(name)
        cuts.work(0)
        cuts.work()
        for refused in (cuts.make_checkpoint, cuts.work):
            with pytest.raises(RestartNeededError):
                refused()
        cuts.cut_power(None, Cut(way))


# The start that makes the folder syncs seven times, and one that brings a folder of format 4 up to date eleven times.
@pytest.mark.parametrize(
    ("version", "syncs"),
    [*((None, syncs) for syncs in range(1, 8)), *((4, syncs) for syncs in range(1, 12))],
)
def test_within_the_first_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int | None, syncs: int
) -> None:
    for way in WAYS:
        folder, left = Folder(tmp_path / f"{way}"), Folder(tmp_path / f"{way}-left")
        if version is not None:
            unpack(folder, version)
        with monkeypatch.context() as patch:
            disk = Disk(patch)
            disk.hold(folder.path)
            disk.before_sync(syncs, partial(disk.cut_power, left.path, Random(way)))
            expected = pending_ids(folder.open(sync=True, map_size=MAP_SIZE))
            folder.close()
        assert left.path.exists(), "the start syncs less often"
        assert pending_ids(left.open()) == expected
        left.check()
