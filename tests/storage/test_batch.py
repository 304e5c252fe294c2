"""One batch: consumers see none of it before its commit, all of it after, and nothing after a failure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from struct import error

import lmdb
import pytest

from storage import (
    Aborted,
    Fired,
    Growth,
    StorageError,
    StorageFullError,
    Store,
    Terms,
    abort,
    find_by_id,
    find_by_key,
    find_by_sequence,
    find_faults,
    fire_due,
    put_half,
    take_half,
)
from storage.keys import pack_u64
from tests.storage.faults import commits_fail
from tests.storage.folder import Folder, change_table
from tests.storage.sample import (
    TOPIC,
    Sample,
    clean_up,
    fire,
    hold,
    hold_all,
    ids_in,
    numbered,
    pending_ids,
    send,
    states,
    terms_of,
)

NOT_A_NUMBER_OF_ITS_SIZE = r"format requires|argument out of range"


def change_everything(store: Store) -> int:
    """Make a batch that touches every table, and return the sequence of its first message.

    The store must hold one message `old` that is pending for 1_000, and one message `sent` in the queue.
    """
    sequence = send(store, Sample(b"new", keys=(b"k",)), stored_ms=1_000)
    sequence = hold(store, Sample(b"held", keys=(b"k",)), 2_000)
    hold(store, Sample(b"taken back"), 3_000)
    abort(store, b"taken back", 900)
    fire_due(store, 1_000, 1_000, 10)
    clean_up(store, 500, 10, lambda topic: False)
    store.put_topic(b"new topic", b"{}")
    store.put_group(b"new group", b"{}")
    return sequence - 1


@pytest.fixture
def filled(store: Store) -> Store:
    """A store in which `old` is pending and `sent` is in the queue."""
    send(store, Sample(b"sent", keys=(b"k",)), stored_ms=100)
    hold(store, Sample(b"old", keys=(b"k",)), 1_000)
    store.commit()
    return store


def assert_unchanged(store: Store) -> None:
    """Check that the store holds what `filled` stored, and nothing of `change_everything`."""
    assert ids_in(store) == [b"sent"]
    assert pending_ids(store) == [b"old"]
    assert states(store, b"sent") == ["untimed"]
    assert states(store, b"old") == ["pending"]
    for stranger in (b"new", b"held", b"taken back"):
        assert states(store, stranger) == []
    assert len(find_by_key(store, [TOPIC], b"k", 10)) == 2
    assert store.held_totals() == {TOPIC: 1}
    queue = store.queue(TOPIC, 0)
    assert (queue.first, queue.visible) == (0, 1)
    assert store.topics() == []
    assert store.groups() == []
    assert find_faults(store) == []


def assert_changed(store: Store) -> None:
    """Check that the store holds what `change_everything` makes of `filled`."""
    assert ids_in(store) == [b"new", b"old"]
    assert pending_ids(store) == [b"held"]
    assert states(store, b"sent") == []
    assert states(store, b"taken back") == ["aborted"]
    assert store.held_totals() == {TOPIC: 1}
    queue = store.queue(TOPIC, 0)
    assert (queue.first, queue.visible, queue.next) == (1, 3, 3)
    assert store.topics() == [(b"new topic", b"{}")]
    assert store.groups() == [(b"new group", b"{}")]


def test_consumers_see_nothing_before_the_commit(filled: Store) -> None:
    change_everything(filled)
    assert ids_in(filled) == []  # retention's removals are visible at once
    filled.commit()
    assert_changed(filled)


def test_a_look_up_has_the_batch_committed(filled: Store, folder: Folder) -> None:
    """What a look-up returns is on disk."""
    sequence = change_everything(filled)
    assert find_by_sequence(filled, sequence) is not None
    assert not filled.has_changes
    assert_changed(filled)
    assert_changed(folder.reopen_after_crash())


def test_whoever_keeps_the_answers_commits_for_a_look_up(filled: Store) -> None:
    grown: list[Growth] = []
    filled.settle = lambda: grown.extend(filled.commit())
    change_everything(filled)
    assert pending_ids(filled) == [b"held"]
    assert [growth.queue.topic for growth in grown] == [TOPIC]
    assert pending_ids(filled) == [b"held"]
    assert len(grown) == 1


def test_nothing_is_left_after_abandoning(filled: Store, reopen: Callable[[], Store]) -> None:
    change_everything(filled)
    filled.abandon()
    assert not filled.has_changes
    assert filled.batch_bytes == 0
    assert_unchanged(filled)
    assert_unchanged(reopen())


def test_nothing_is_left_when_the_process_dies(filled: Store, folder: Folder) -> None:
    change_everything(filled)
    assert_unchanged(folder.reopen_after_crash())


def test_everything_is_there_after_a_restart(filled: Store, reopen: Callable[[], Store]) -> None:
    change_everything(filled)
    filled.commit()
    assert_changed(reopen())


def test_offsets_and_sequences_of_an_abandoned_batch_are_given_again(filled: Store) -> None:
    sequence = filled.next_sequence
    assert send(filled, Sample(b"x")) == 1
    assert send(filled, Sample(b"y", queue=9)) == 0
    fire_due(filled, 1_000, 1_000, 10)
    filled.abandon()
    assert filled.next_sequence == sequence
    assert filled.queue(TOPIC, 0).next == 1
    assert send(filled, Sample(b"z", queue=9)) == 0
    assert fire(filled, 1_000) == 1
    assert ids_in(filled) == [b"sent", b"old"]
    assert ids_in(filled, queue=9) == [b"z"]


def test_a_batch_with_nothing_in_it(filled: Store) -> None:
    assert not filled.has_changes
    assert filled.commit() == []
    filled.abandon()
    assert_unchanged(filled)


def test_the_batch_knows_whether_and_how_much_it_holds(store: Store) -> None:
    assert (store.has_changes, store.batch_bytes) == (False, 0)
    send(store, Sample(b"a", body=b"x" * 1_000))
    assert store.has_changes
    small = store.batch_bytes
    assert small >= 1_000
    hold(store, Sample(b"b", body=b"x" * 5_000), 10)
    assert store.batch_bytes >= small + 5_000
    store.commit()
    assert (store.has_changes, store.batch_bytes) == (False, 0)
    fire_due(store, 10, 10, 1)
    assert store.has_changes
    assert store.batch_bytes > 0
    store.abandon()
    store.spoil(ValueError("a request failed half-way"))
    assert store.has_changes, "the commit refuses what is answered with this batch"
    with pytest.raises(StorageError, match="half-way"):
        store.commit()
    assert not store.has_changes


@pytest.mark.parametrize("more", [True, False])
def test_fired_messages_count_into_the_batch(store: Store, more: bool) -> None:
    hold_all(store, numbered(100), 10)
    assert fire_due(store, 10, 10, 99 if more else 100).more is more
    assert store.batch_bytes >= 99 * 100


def test_sequences_go_up_by_one_and_are_kept_over_a_restart(
    store: Store, reopen: Callable[[], Store]
) -> None:
    first = store.next_sequence
    assert first > 0
    assert [store.new_sequence() for _ in range(3)] == [first, first + 1, first + 2]
    store.abandon()
    for expected in range(first, first + 3):
        assert hold(store, Sample(b"a"), 10) == expected
    store.commit()
    assert reopen().next_sequence == first + 3


def test_records_out_of_order_are_refused_as_a_whole(filled: Store) -> None:
    # LMDB appends only behind the last key. It reports a refused row only by a lower count.
    later, earlier = filled.new_sequence() + 1, filled.next_sequence - 1
    for sequence in (later, earlier):
        record = Sample(b"x").record(1)
        filled.append(filled.queue(TOPIC, 0), sequence, record, 0, b"x", (), 1)
    with pytest.raises(StorageError, match="not in order"):
        filled.commit()
    assert_unchanged(filled)


def break_timers(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the next access to the batch's transaction fail, as LMDB does on a broken disk."""

    def fail() -> lmdb.Transaction:
        raise lmdb.Error("mdb_cursor_get: Input/output error")

    monkeypatch.setattr(store, "batch_transaction", fail)


class TestFailure:
    """A change that fails in the middle of a batch, while others wait for that batch's commit."""

    def test_commit_refuses_the_batch_and_the_store_goes_on(
        self, filled: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        send(filled, Sample(b"waits for the commit"))
        with monkeypatch.context() as broken:
            break_timers(filled, broken)
            with pytest.raises(StorageError, match="Input/output"):
                abort(filled, b"old", 5)
        send(filled, Sample(b"waits, too"))
        with pytest.raises(StorageError, match="Input/output"):
            filled.put_topic(b"t", b"{}")
        with pytest.raises(StorageError, match="Input/output"):
            filled.commit()
        assert_unchanged(filled)
        change_everything(filled)
        filled.commit()
        assert_changed(filled)

    def test_a_change_that_was_alone_leaves_no_batch_behind(
        self, filled: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as broken:
            break_timers(filled, broken)
            for change in (
                lambda: abort(filled, b"old", 5),
                lambda: filled.delete_topic(b"t"),
                lambda: clean_up(filled, 500, 10, lambda topic: False),
            ):
                with pytest.raises(StorageError):
                    change()
                assert not filled.has_changes
        assert_unchanged(filled)
        change_everything(filled)
        filled.commit()
        assert_changed(filled)

    def test_firing_that_fails_spoils_the_batch(
        self, filled: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        send(filled, Sample(b"waits for the commit"))
        with monkeypatch.context() as broken:
            break_timers(filled, broken)
            with pytest.raises(StorageError):
                fire_due(filled, 1_000, 1_000, 10)
        with pytest.raises(StorageError):
            filled.commit()
        assert_unchanged(filled)
        assert fire(filled, 1_000) == 1

    def test_a_row_that_cannot_be_read_has_the_reason_name_what_helps(self, tmp_path: Path) -> None:
        folder = Folder(tmp_path)
        store = folder.open(inbox_size=0)
        sequence = store.new_sequence()
        put_half(store, sequence, Sample(b"a").record(1), 1_000)
        store.commit()
        folder.close()

        def cut_short(txn: lmdb.Transaction, halves: lmdb._Database) -> None:
            txn.put(pack_u64(sequence), b"short", db=halves)

        change_table(tmp_path, "halves", cut_short)
        store = folder.open(inbox_size=0)
        with pytest.raises(StorageError, match=r"cannot be read .*: see 'tidegate fsck'"):
            take_half(store, sequence)
        folder.close()

    def test_an_abort_of_several_messages_is_not_stored_by_halves(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hold_all(store, [b"a", b"a"], 1_000)
        asked: list[bytes] = []

        def fail_at_second(record: bytes) -> Terms:
            asked.append(record)
            if len(asked) == 2:
                raise RuntimeError("at the second")
            return terms_of(record)

        with monkeypatch.context() as broken:
            broken.setattr(store, "terms_of", fail_at_second)
            with pytest.raises(StorageError, match="at the second"):
                abort(store, b"a", 5)
        assert states(store, b"a") == ["pending", "pending"]
        assert abort(store, b"a", 5)[0].outcome is Aborted.ABORTED

    def test_a_name_that_lmdb_cannot_take_does_no_harm(self, filled: Store) -> None:
        for name in (b"", b"x" * 600):
            with pytest.raises(StorageError):
                filled.put_topic(name, b"{}")
            with pytest.raises(StorageError):
                filled.put_group(name, b"{}")
        hold(filled, Sample(b"x", topic=b"x" * 600), 5)
        with pytest.raises(StorageError):
            filled.commit()
        assert_unchanged(filled)

    @pytest.mark.parametrize("queue", [-1, 1 << 32])
    def test_a_message_for_no_queue_does_not_enter_the_batch(
        self, filled: Store, queue: int
    ) -> None:
        with pytest.raises(error, match=NOT_A_NUMBER_OF_ITS_SIZE):
            hold(filled, Sample(b"x", queue=queue), 5)
        filled.abandon()
        assert_unchanged(filled)

    def test_a_message_that_cannot_be_written_down_leaves_no_half(self, filled: Store) -> None:
        too_large = 1 << 31
        message = Sample(b"x", tag_hash=too_large)
        with pytest.raises(error, match=NOT_A_NUMBER_OF_ITS_SIZE):
            send(filled, message)
        with pytest.raises(error, match=NOT_A_NUMBER_OF_ITS_SIZE):
            hold(filled, message, 5)
        filled.commit()
        assert_unchanged(filled)


class TestDiskTrouble:
    """The disk refuses the commit itself."""

    @pytest.mark.parametrize(
        ("trouble", "expected"),
        [
            (lmdb.DiskError("mdb_txn_commit: No space left on device"), StorageFullError),
            (lmdb.MapFullError("mdb_txn_commit: MDB_MAP_FULL"), StorageFullError),
            (lmdb.Error("mdb_txn_commit: Input/output error"), StorageError),
        ],
        ids=["disk full", "map full", "broken"],
    )
    def test_nothing_is_stored_and_the_store_goes_on(
        self,
        filled: Store,
        trouble: lmdb.Error,
        expected: type[StorageError],
    ) -> None:
        sequence = filled.next_sequence
        with commits_fail(filled, trouble):
            change_everything(filled)
            with pytest.raises(expected) as raised:
                filled.commit()
        assert type(raised.value) is expected
        assert str(trouble) in str(raised.value)
        assert filled.next_sequence == sequence
        assert_unchanged(filled)
        change_everything(filled)
        filled.commit()
        assert_changed(filled)


def test_settings_of_topics_and_groups(store: Store, reopen: Callable[[], Store]) -> None:
    store.put_topic(b"b", b"1")
    store.put_topic(b"a", b"\0\xff")
    store.put_topic(b"b", b"2")
    store.put_group(b"g", b"3")
    store.put_group(b"gone", b"4")
    store.commit()
    store.delete_group(b"gone")
    store.delete_group(b"never was")
    store.put_topic(b"c", b"5")
    store.delete_topic(b"c")
    store.commit()
    store = reopen()
    assert store.topics() == [(b"a", b"\0\xff"), (b"b", b"2")]
    assert store.groups() == [(b"g", b"3")]
    store.delete_topic(b"a")
    store.commit()
    assert store.topics() == [(b"b", b"2")]


def test_a_deleted_topics_messages_stay_until_retention_comes_by(store: Store) -> None:
    store.put_topic(TOPIC, b"{}")
    send(store, Sample(b"a"))
    store.commit()
    store.delete_topic(TOPIC)
    store.commit()
    assert ids_in(store) == [b"a"]


def test_a_step_that_fires_nothing_is_a_batch_that_commits(store: Store) -> None:
    assert fire_due(store, 5, 5, 10) == Fired(0, more=False)
    assert store.commit() == []
    assert find_by_id(store, b"a") == []
