"""First halves of transactions: held, checked, committed to a queue or for a later time, and rolled back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import (
    Aborted,
    AbortResult,
    Half,
    Store,
    abort,
    find_by_id,
    find_by_key,
    find_by_sequence,
    find_faults,
    find_half,
    halves_to_check,
    put_half,
    put_off_check,
    remove_half,
    take_half,
)
from storage.keys import MARK, pack_u64
from tests.storage.folder import Folder, scratch_data
from tests.storage.sample import (
    TOPIC,
    Sample,
    clean_up,
    fire,
    hold,
    ids_in,
    pending_ids,
    send,
    states,
)

HALVES = b"halves"


def half(store: Store, message_id: bytes = b"h", check_ms: int = 1_000, body: bytes = b"") -> int:
    """Store and commit a half that waits, and return its sequence."""
    sequence = store.new_sequence()
    put_half(store, sequence, Sample(message_id, HALVES, body=body).record(1), check_ms)
    store.commit()
    return sequence


def commit(store: Store, sequence: int, message: Sample, due_ms: int | None = None) -> bool:
    """Take a half and give its message a place, for now or for later. The caller commits."""
    if not take_half(store, sequence):
        return False
    place = store.queue(message.topic, message.queue)
    rest = (message.tag_hash, message.message_id, message.keys)
    if due_ms is None:
        store.append(place, sequence, message.record(50), *rest, 50)
    else:
        store.schedule(due_ms, TOPIC, message.queue, sequence, message.record(50), *rest)
    return True


class TestWaiting:
    def test_a_half_is_found_by_its_sequence_only(self, store: Store) -> None:
        sequence = half(store, b"h", 1_000)

        found = find_half(store, sequence)

        assert found == Half(sequence, Sample(b"h", HALVES).record(1), 1_000, 0)
        assert find_by_sequence(store, sequence) is None
        assert find_by_id(store, b"h") == []
        assert ids_in(store, HALVES) == []
        assert pending_ids(store) == []

    def test_a_half_of_a_batch_that_is_refused_is_no_half(self, store: Store) -> None:
        sequence = store.new_sequence()
        put_half(store, sequence, Sample(b"h", HALVES).record(1), 1_000)
        assert find_half(store, sequence) is not None
        store.abandon()
        assert find_half(store, sequence) is None

    def test_what_is_no_half_is_not_found_as_one(self, store: Store) -> None:
        send(store, Sample(b"a"))
        store.commit()
        assert find_half(store, 1) is None
        assert find_half(store, 77) is None
        assert not take_half(store, 1)
        store.commit()
        assert ids_in(store) == [b"a"]

    def test_halves_stay_whatever_retention_removes(self, store: Store) -> None:
        sequence = half(store)
        send(store, Sample(b"a"))
        store.commit()
        assert clean_up(store, 1 << 60, 100, lambda topic: True).messages == 1
        store.commit()
        assert find_half(store, sequence) is not None

    def test_an_abort_does_not_reach_a_half(self, store: Store) -> None:
        half(store, b"h")
        assert abort(store, b"h", 5) == [AbortResult(Aborted.UNKNOWN, 0)]

    def test_halves_stand_between_messages_of_one_batch(self, store: Store) -> None:
        send(store, Sample(b"a"))
        sequence = store.new_sequence()
        put_half(store, sequence, Sample(b"h", HALVES).record(1), 9)
        send(store, Sample(b"b"))
        hold(store, Sample(b"c"), 77)
        store.commit()
        assert ids_in(store) == [b"a", b"b"]
        assert pending_ids(store) == [b"c"]
        assert find_half(store, sequence) is not None


class TestCommitting:
    def test_a_committed_half_is_a_message_under_the_same_sequence(self, store: Store) -> None:
        sequence = half(store)
        send(store, Sample(b"between"))
        store.commit()

        message = Sample(b"h", queue=3, keys=(b"k",), tag_hash=7, body=b"final")
        assert commit(store, sequence, message)
        store.commit()

        assert find_half(store, sequence) is None
        (found,) = store.read(store.queue(TOPIC, 3), 0, 10, 1 << 20, {7}).messages
        assert (found.record, found.sequence) == (message.record(50), sequence)
        assert [one.sequence for one in find_by_key(store, [TOPIC], b"k", 10)] == [sequence]
        assert states(store, b"h") == ["untimed"]

    def test_a_half_committed_for_later_fires_then_and_can_be_aborted(self, store: Store) -> None:
        kept, taken = half(store, b"kept"), half(store, b"taken")
        for sequence, name in ((kept, b"kept"), (taken, b"taken")):
            assert commit(store, sequence, Sample(name), due_ms=2_000)
        store.commit()
        assert pending_ids(store) == [b"kept", b"taken"]

        assert abort(store, b"taken", 5) == [AbortResult(Aborted.ABORTED, 2_000)]
        store.commit()
        assert fire(store, 1_999) == 0
        assert fire(store, 2_000) == 1
        assert ids_in(store) == [b"kept"]

    def test_a_half_is_committed_once(self, store: Store) -> None:
        sequence = half(store)
        assert commit(store, sequence, Sample(b"h"))
        assert not commit(store, sequence, Sample(b"h")), "in the same batch"
        store.commit()
        assert not commit(store, sequence, Sample(b"h")), "in the next one"
        store.commit()
        assert ids_in(store) == [b"h"]

    def test_a_commit_that_is_not_written_leaves_the_half(self, folder: Folder) -> None:
        store = folder.open()
        sequence = half(store)
        commit(store, sequence, Sample(b"h"))
        store = folder.reopen_after_crash()
        assert find_half(store, sequence) is not None
        assert ids_in(store) == []
        assert find_faults(store) == []
        assert commit(store, sequence, Sample(b"h"))
        store.commit()
        assert ids_in(store) == [b"h"]

    def test_commits_and_new_messages_share_a_batch(self, store: Store) -> None:
        early, late = half(store, b"early"), half(store, b"late")
        send(store, Sample(b"a"), 50)
        commit(store, late, Sample(b"late"))
        send(store, Sample(b"b"), 50)
        commit(store, early, Sample(b"early"))
        store.commit()
        assert ids_in(store) == [b"a", b"late", b"b", b"early"]

    @pytest.mark.parametrize("due_ms", [None, 7_000])
    @pytest.mark.parametrize("is_last", [False, True])
    def test_a_half_can_be_committed_in_its_own_batch(
        self, folder: Folder, due_ms: int | None, is_last: bool
    ) -> None:
        """A client that guesses a number must not get the batch of others refused."""
        store = folder.open()
        if is_last:
            send(store, Sample(b"a"))
        sequence = store.new_sequence()
        put_half(store, sequence, Sample(b"h", HALVES).record(1), 9)
        if not is_last:
            send(store, Sample(b"a"))
        assert commit(store, sequence, Sample(b"h"), due_ms)
        send(store, Sample(b"b"), 50)
        store.commit()
        assert states(store, b"h") == ["untimed" if due_ms is None else "pending"]
        assert [one for one in ids_in(store) if one != b"h"] == [b"a", b"b"]
        folder.check()

    def test_after_a_crash_nothing_fires_again_that_fired_before_an_older_half_was_committed(
        self, folder: Folder
    ) -> None:
        """The half is the first message that a start reads, and its record has the later time."""
        store = folder.open()
        sequence = half(store)
        hold(store, Sample(b"fired"), 20, 10)
        hold(store, Sample(b"waits"), 90, 10)
        store.commit()
        assert fire(store, 20) == 1
        commit(store, sequence, Sample(b"h"))
        store.commit()

        store = folder.reopen_after_crash()

        assert pending_ids(store) == [b"waits"]
        assert fire(store, 100) == 1
        assert ids_in(store) == [b"fired", b"h", b"waits"]
        folder.check()

    def test_after_a_crash_one_is_held_that_was_committed_for_later_behind_the_mark(
        self, folder: Folder
    ) -> None:
        """For messages in front of the mark, a start looks for timers in the table only."""
        store = folder.open(inbox_size=2)
        sequence = half(store)
        mark = b""
        while mark <= pack_u64(sequence):
            send(store, Sample(b"now"))
            store.commit()
            mark = store.settled_reader().get(MARK, db=store.tables.meta) or b""
        commit(store, sequence, Sample(b"h"), due_ms=7_000)
        store.commit()

        store = folder.reopen_after_crash()

        assert pending_ids(store) == [b"h"]
        folder.check()

    def test_a_half_that_outgrows_the_map_is_stored_all_the_same(self, folder: Folder) -> None:
        store = folder.open(map_size=1 << 20)
        sequences = [half(store, b"%d" % number, body=bytes(900_000)) for number in range(4)]
        for sequence in sequences:
            commit(store, sequence, Sample(b"m", body=bytes(900_000)))
        store.commit()
        assert len(ids_in(store)) == 4


class TestTakingBack:
    def test_a_half_that_is_taken_back_is_gone(self, store: Store) -> None:
        sequence = half(store)
        assert remove_half(store, sequence)
        assert not remove_half(store, sequence)
        store.commit()
        assert find_half(store, sequence) is None
        assert halves_to_check(store, 1 << 60, 10, 1 << 20) == []

    def test_its_sequence_is_never_used_again(self, folder: Folder) -> None:
        store = folder.open()
        sequence = half(store)
        remove_half(store, sequence)
        store.commit()
        assert folder.open().next_sequence == sequence + 1


class TestChecks:
    def test_a_check_is_due_in_its_millisecond(self, store: Store) -> None:
        sequence = half(store, check_ms=1_000)
        assert halves_to_check(store, 999, 10, 1 << 20) == []
        assert [one.sequence for one in halves_to_check(store, 1_000, 10, 1 << 20)] == [sequence]

    def test_the_longest_due_come_first_up_to_a_limit(self, store: Store) -> None:
        late, early, later = (half(store, check_ms=at) for at in (200, 100, 300))
        found = [one.sequence for one in halves_to_check(store, 1_000, 2, 1 << 20)]
        assert found == [early, late]
        assert len(halves_to_check(store, 1_000, 9, 1)) == 1, "one at least, however large"
        assert [one.sequence for one in halves_to_check(store, 1_000, 9, 1 << 20)][2] == later

    def test_a_check_put_off_is_due_later_and_counted(self, folder: Folder) -> None:
        store = folder.open()
        sequence = half(store, check_ms=1_000)
        assert put_off_check(store, sequence, 31_000, 1)
        store.commit()
        store = folder.open()
        assert halves_to_check(store, 30_999, 10, 1 << 20) == []
        (found,) = halves_to_check(store, 31_000, 10, 1 << 20)
        assert (found.check_ms, found.checks) == (31_000, 1)

    def test_one_whose_message_is_gone_keeps_no_other_from_its_check(self, folder: Folder) -> None:
        store = folder.open()
        gone, kept = half(store, b"gone"), half(store, b"kept")
        message = store.reader().get(pack_u64(gone), db=store.tables.messages)
        store = folder.damage("messages", pack_u64(gone), None)
        assert find_half(store, gone) is None
        assert [one.sequence for one in halves_to_check(store, 1_000, 10, 1 << 20)] == [kept]
        folder.damage("messages", pack_u64(gone), message)

    def test_nothing_is_put_off_for_a_half_that_is_gone(self, store: Store) -> None:
        sequence = half(store)
        remove_half(store, sequence)
        assert not put_off_check(store, sequence, 5_000, 1)
        store.commit()
        assert halves_to_check(store, 1 << 60, 10, 1 << 20) == []


STEP = st.tuples(
    st.sampled_from(["half", "commit", "later", "remove", "put off", "write", "crash", "reopen"]),
    st.integers(0, 5),
)


@given(st.lists(STEP, max_size=40))
def test_any_order_of_steps_leaves_each_half_in_one_place(steps: list[tuple[str, int]]) -> None:
    """A model of what waits, is queued and is pending, on disk and in the open batch."""
    with scratch_data() as folder:
        store = folder.open()
        places: dict[int, str] = {}
        written: dict[int, str] = {}
        for step, choice in steps:
            known = sorted(written)
            sequence = known[choice % len(known)] if known else 1_000
            waits = places.get(sequence) == "half"
            name = b"%d" % sequence
            match step:
                case "half":
                    sequence = store.new_sequence()
                    put_half(store, sequence, Sample(b"%d" % sequence, HALVES).record(1), 9)
                    places[sequence] = "half"
                case "commit":
                    assert commit(store, sequence, Sample(name)) == waits
                    places |= {sequence: "queued"} if waits else {}
                case "later":
                    assert commit(store, sequence, Sample(name), due_ms=7_000) == waits
                    places |= {sequence: "pending"} if waits else {}
                case "remove":
                    assert remove_half(store, sequence) == waits
                    places |= {sequence: "gone"} if waits else {}
                case "put off":
                    assert put_off_check(store, sequence, 50, 3) == waits
                case "crash":
                    store = folder.reopen_after_crash()
                    places = dict(written)
                case _:
                    store.commit()
                    store = folder.open() if step == "reopen" else store
                    written = dict(places)
        store.commit()
        for sequence, place in places.items():
            assert (find_half(store, sequence) is not None) == (place == "half")
        named = {
            place: sorted(b"%d" % one for one, where in places.items() if where == place)
            for place in ("queued", "pending")
        }
        assert sorted(ids_in(store)) == named["queued"]
        assert sorted(pending_ids(store)) == named["pending"]


@pytest.mark.parametrize(
    ("plant", "fault"),
    [
        ("message", "half 1: the message is missing"),
        ("check", "half 1: halves and checks disagree"),
        ("second check", "half 1 is to be checked twice"),
        ("half", "check of half 1: no such half"),
        ("id", "half 1 is in the ids"),
    ],
)
def test_the_check_finds_faults(tmp_path: Path, plant: str, fault: str) -> None:
    store = Folder(tmp_path / "data").open()
    half(store, b"h", 1_000)
    number, tables = pack_u64(1), store.tables
    txn = store.batch_transaction()
    match plant:
        case "message":
            txn.delete(number, db=tables.messages)
        case "check":
            txn.delete(pack_u64(1_000) + number, db=tables.checks)
        case "second check":
            txn.put(pack_u64(2_000) + number, b"", db=tables.checks)
        case "half":
            txn.delete(number, db=tables.halves)
        case _:
            txn.put(b"h\0" + number, bytes(8), db=tables.ids)
    assert fault in find_faults(store)
    store.close()
