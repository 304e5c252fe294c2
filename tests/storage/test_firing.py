"""Messages that are held until they are due, and then fire."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from storage import (
    Aborted,
    AbortResult,
    Fired,
    Growth,
    StorageError,
    Store,
    abort,
    find_by_id,
    fire_crowded_out,
    fire_due,
    fire_resumed,
    firing,
    pause_topic,
    reschedule,
    resume_topic,
)
from storage.firing import MOST_AT_ONCE, TOPICS_AT_ONCE
from storage.inbox import INBOX_SIZE
from storage.keys import HELD_SPAN_MS, held_key, pack_u64, queue_prefix, timer_key, waiting_key
from tests.storage.faults import commits_fail
from tests.storage.folder import Folder, change_table
from tests.storage.sample import (
    TOPIC,
    Sample,
    fire,
    hold,
    hold_all,
    id_of,
    ids_in,
    numbered,
    pending_ids,
    pending_page,
    send,
    states,
)


class TestFiring:
    def test_nothing_is_due_in_an_empty_store(self, store: Store) -> None:
        assert store.next_due() is None
        assert fire_due(store, 1 << 60, 1, 10) == Fired(0, more=False)

    def test_a_message_fires_in_its_millisecond_and_not_before(self, store: Store) -> None:
        hold(store, Sample(b"a", queue=2), 1_000)
        store.commit()
        assert store.next_due() == 1_000
        assert fire(store, 999) == 0
        assert ids_in(store, queue=2) == []
        assert fire(store, 1_000) == 1
        assert ids_in(store, queue=2) == [b"a"]
        assert store.next_due() is None
        assert fire(store, 1 << 60) == 0

    def test_a_fired_message_is_as_it_was_sent_and_noted_when_it_fired(self, store: Store) -> None:
        message = Sample(b"a", keys=(b"k",), tag_hash=7, body=b"\0body\xff")
        sequence = hold(store, message, 1_000, stored_ms=5)
        store.commit()
        fire_due(store, 1_000, 1_234, 10)
        store.commit()
        (found,) = store.read(store.queue(TOPIC, 0), 0, 10, 1 << 20, {7}).messages
        assert found.record == message.record(5)
        assert (found.offset, found.stored_ms, found.sequence) == (0, 1_234, sequence)

    def test_the_earliest_is_next_whatever_the_order_of_arrival(self, store: Store) -> None:
        for due_ms in (500, 300, 400):
            hold(store, Sample(b"%d" % due_ms), due_ms)
            store.commit()
        assert store.next_due() == 300
        assert fire(store, 450) == 2
        assert store.next_due() == 500
        assert fire(store, 500) == 1
        assert ids_in(store) == [b"300", b"400", b"500"]

    def test_one_millisecond_and_topic_fire_in_the_order_of_acceptance(self, store: Store) -> None:
        # The ids run backwards, and the messages arrive in several batches. Neither may affect the order.
        ids = numbered(300)[::-1]
        for start in range(0, 300, 100):
            hold_all(store, ids[start : start + 100], 1_000)
        assert fire(store, 1_000) == 300
        assert ids_in(store) == ids

    def test_fired_and_sent_messages_share_a_queue_without_gaps(self, store: Store) -> None:
        hold(store, Sample(b"timed"), 10)
        send(store, Sample(b"sent before"))
        fire_due(store, 10, 10, 10)
        send(store, Sample(b"sent after"), stored_ms=10)
        store.commit()
        assert ids_in(store) == [b"sent before", b"timed", b"sent after"]

    def test_firing_goes_in_bounded_steps(self, store: Store) -> None:
        ids = numbered(25)
        hold_all(store, ids, 1_000)
        steps = []
        for _ in range(4):
            steps.append(fire_due(store, 1_000, 1_000, 10))
            store.commit()
        assert steps == [
            Fired(10, more=True),
            Fired(10, more=True),
            Fired(5, more=False),
            Fired(0, more=False),
        ]
        assert ids_in(store) == ids

    def test_a_step_that_takes_the_last_one_says_so(self, store: Store) -> None:
        hold_all(store, numbered(10), 1_000)
        hold_all(store, [b"later"], 1_001)
        assert fire_due(store, 1_000, 1_000, 10) == Fired(10, more=False)

    def test_two_steps_in_one_batch(self, store: Store) -> None:
        hold_all(store, numbered(10), 1_000)
        assert fire_due(store, 1_000, 1_000, 4) == Fired(4, more=True)
        assert fire_due(store, 1_000, 1_000, 9) == Fired(6, more=False)
        store.commit()
        assert ids_in(store) == numbered(10)

    def test_thousands_in_one_step_cross_every_page_of_the_table(self, store: Store) -> None:
        ids = numbered(6_000)
        hold_all(store, ids, 1_000)
        hold_all(store, [b"later"], 2_000)
        assert fire(store, 1_999) == 6_000
        assert ids_in(store) == ids
        assert pending_ids(store) == [b"later"]

    def test_a_message_that_is_due_already_fires_in_the_batch_that_accepts_it(
        self, store: Store
    ) -> None:
        hold(store, Sample(b"late"), 5)
        assert fire_due(store, 10, 10, 10) == Fired(1, more=False)
        store.commit()
        assert states(store, b"late") == ["fired"]
        assert store.held_totals() == {}

    def test_commit_names_the_queues_that_grew(self, store: Store) -> None:
        hold(store, Sample(b"a", queue=1, tag_hash=7), 10)
        send(store, Sample(b"before", queue=2))
        assert store.commit() == [Growth(store.queue(TOPIC, 2), 0, {0})]
        fire_due(store, 10, 10, 10)
        send(store, Sample(b"b", queue=2, tag_hash=8))
        send(store, Sample(b"c", queue=2, tag_hash=9))
        assert store.commit() == [
            Growth(store.queue(TOPIC, 1), 0, {7}),
            Growth(store.queue(TOPIC, 2), 1, {8, 9}),
        ]
        assert store.commit() == []

    def test_what_is_held_survives_and_fires_after_a_restart(
        self, store: Store, reopen: Callable[[], Store]
    ) -> None:
        hold_all(store, numbered(5), 1_000)
        store = reopen()
        assert store.next_due() == 1_000
        assert store.held_totals() == {TOPIC: 5}
        assert fire(store, 1_000) == 5
        assert ids_in(store) == numbered(5)


@pytest.mark.parametrize("due_ms", [1, 999, 1_000, (1 << 63) - 1])
def test_any_time_may_be_asked_for(store: Store, due_ms: int) -> None:
    hold(store, Sample(b"a"), due_ms)
    store.commit()
    assert fire(store, due_ms - 1) == 0
    assert fire(store, due_ms) == 1
    (found,) = find_by_id(store, b"a")
    assert (id_of(found.record), found.due_ms, found.moved_ms) == (b"a", due_ms, due_ms)


class TestCrowdedOut:
    def storm(self, store: Store, times_ms: Iterable[int]) -> None:
        """Hold a message of one topic for each of these times."""
        for due_ms in times_ms:
            hold_all(store, [b"%d" % due_ms], due_ms, b"storm")

    def test_topics_behind_a_storm_get_their_turn(self, store: Store) -> None:
        hold_all(store, numbered(20), 1_000, b"storm")
        for due_ms in (1_001, 1_002, 1_003, 2_000):
            hold_all(store, [b"b%d" % due_ms], due_ms, b"behind")
        hold_all(store, [b"z"], 1_002, b"zebra")
        store.commit()
        assert fire_due(store, 1_500, 1_500, 5) == Fired(5, more=True)
        assert fire_crowded_out(store, 1_500, 1_500, 2).messages == 3
        store.commit()
        assert ids_in(store, b"behind") == [b"b1001", b"b1002"]
        assert ids_in(store, b"zebra") == [b"z"]
        assert ids_in(store, b"storm") == numbered(5)
        assert fire_crowded_out(store, 1_500, 1_500, 2).messages == 1
        assert fire_crowded_out(store, 1_500, 1_500, 2).messages == 0
        store.commit()

    def test_many_topics_take_turns(self, store: Store) -> None:
        """A step fires a few messages each of some of the topics, and no topic is left out."""
        hold_all(store, numbered(20), 1_000, b"a storm")
        topics = [b"t%d" % number for number in range(3 * TOPICS_AT_ONCE - 1)]
        for topic in topics:
            hold_all(store, numbered(10, prefix=topic), 1_001, topic)
        store.commit()
        share = MOST_AT_ONCE // TOPICS_AT_ONCE
        behind = b""
        for others in (TOPICS_AT_ONCE - 1, TOPICS_AT_ONCE, TOPICS_AT_ONCE):
            fired, behind = fire_crowded_out(store, 1_500, 1_500, 100, behind)
            store.commit()
            assert fired == share * others
        assert {len(ids_in(store, topic)) for topic in topics} == {share}
        assert fire_crowded_out(store, 1_500, 1_500, 100, behind) == (0, b"")
        store.commit()

    def test_topics_with_nothing_due_are_passed_over_in_steps(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(firing, "LEAPS", 10)
        monkeypatch.setattr(firing, "TOPICS_AT_ONCE", 2)
        store = folder.open(inbox_size=0)
        hold_all(store, numbered(2), 1_000, b"a storm")
        for number in range(10, 30):
            hold_all(store, [b"%d" % number], 1_000_000, b"later-%d" % number)
        hold_all(store, [b"z"], 1_001, b"zebra")
        store.commit()
        first = fire_crowded_out(store, 1_500, 1_500, 100)
        second = fire_crowded_out(store, 1_500, 1_500, 100, first.behind)
        third = fire_crowded_out(store, 1_500, 1_500, 100, second.behind)
        assert [first, second, third] == [(0, b"later-18"), (0, b"later-28"), (1, b"")]
        store.commit()

    def test_each_fires_in_order_and_none_early(self, folder: Folder) -> None:
        store = folder.open(inbox_size=0)
        hold_all(store, numbered(20), 9_000, b"a storm")
        now_ms = HELD_SPAN_MS
        due = {b"b": (9_100, 9_900, now_ms + 1), b"c": (9_200, 9_300), b"d": (now_ms,)}
        for topic, times in due.items():
            for due_ms in times:
                hold_all(store, [b"%d" % due_ms], due_ms, topic)
        assert fire_crowded_out(store, now_ms, now_ms, 9).messages == 5
        store.commit()
        assert [ids_in(store, topic) for topic in due] == [
            [b"9100", b"9900"],
            [b"9200", b"9300"],
            [b"10000"],
        ]

    def test_none_is_left_out_wherever_its_messages_wait(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They may wait in the table or in the inbox, and their topic's name may begin with another's."""
        monkeypatch.setattr(firing, "LEAPS", 2)
        store = folder.open(inbox_size=0)
        hold_all(store, numbered(20), 1_000, b"storm")
        for topic, due_ms in ((b"a", 50_000), (b"b", 50_000), (b"b-1", 1_001), (b"b-1-2", 1_001)):
            hold_all(store, [b"%b in the table" % topic], due_ms, topic)
        store = folder.open()
        for topic in (b"a-1", b"b", b"zebra"):
            hold_all(store, [b"%b in the inbox" % topic], 1_001, topic)
        fired: list[int] = []
        behind = b""
        while not fired or behind:
            count, behind = fire_crowded_out(store, 1_500, 1_500, 9, behind)
            store.commit()
            fired.append(count)
        assert fired == [2, 2, 1]
        assert set(store.held_totals()) == {b"storm", b"a", b"b"}

    def test_those_with_nothing_due_in_memory_take_no_turn(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(firing, "TOPICS_AT_ONCE", 2)
        hold_all(store, numbered(20), 1_000, b"storm")
        for topic in (b"a", b"b", b"c"):
            hold_all(store, [b"later"], 5_000, topic)
        hold_all(store, [b"z"], 1_001, b"zebra")
        store.commit()
        assert fire_crowded_out(store, 1_500, 1_500, 9).messages == 1
        store.commit()

    def test_a_search_over_a_long_backlog_goes_on_where_it_ended(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No step examines what an earlier one has, and a message in memory does not overtake an earlier one in the
        table that is not found yet."""
        monkeypatch.setattr(firing, "LEAPS_OVER_OTHERS", 10)
        store = folder.open(inbox_size=0)
        self.storm(store, range(1_000, 1_045))
        hold_all(store, [b"1041"], 1_041, b"other")
        store = folder.open()
        hold_all(store, [b"1043"], 1_043, b"other")
        store.commit()
        assert fire_due(store, 1_500, 1_500, 1) == Fired(1, more=True)
        fired: list[int] = []
        while sum(fired) < 2:
            fired.append(fire_crowded_out(store, 1_500, 1_500, 9).messages)
            store.commit()
        assert fired == [0] * 7 + [1, 1]
        assert ids_in(store, b"other") == [b"1041", b"1043"]
        folder.check()

    def test_what_enters_the_table_behind_a_search_has_its_turn(self, folder: Folder) -> None:
        store = folder.open(inbox_size=0)
        self.storm(store, range(1_000, 1_020))
        hold_all(store, [b"moved"], 5_000, b"other")
        assert fire_due(store, 1_500, 1_500, 1) == Fired(1, more=True)
        assert fire_crowded_out(store, 1_500, 1_500, 9).messages == 0
        assert reschedule(store, b"moved", lambda _: 1_010, 1_500) is not None
        store.commit()
        with commits_fail(store):
            assert fire_crowded_out(store, 1_500, 1_500, 9).messages == 1
            with pytest.raises(StorageError):
                store.commit()
        assert fire_crowded_out(store, 1_500, 1_500, 9).messages == 1
        store.commit()
        assert ids_in(store, b"other") == [b"moved"]
        folder.check()

    @pytest.mark.parametrize("inbox_size", [0, INBOX_SIZE], ids=["in table", "in memory"])
    def test_what_the_same_batch_puts_into_the_table_is_not_overtaken(
        self, folder: Folder, inbox_size: int
    ) -> None:
        store = folder.open(inbox_size=0)
        self.storm(store, range(1_000, 1_020))
        hold_all(store, [b"moved"], 3 * HELD_SPAN_MS, b"other")
        store = folder.open(inbox_size=inbox_size)
        hold_all(store, [b"later"], HELD_SPAN_MS, b"other")
        assert reschedule(store, b"moved", lambda _: 1_010, 1_500) is not None
        now_ms = 2 * HELD_SPAN_MS
        assert fire_due(store, now_ms, now_ms, 1) == Fired(1, more=True)
        assert fire_crowded_out(store, now_ms, now_ms, 9).messages == 2
        store.commit()
        assert ids_in(store, b"other") == [b"moved", b"later"]
        folder.check()

    def test_a_count_for_a_time_that_is_none_has_no_batch_refused(self, folder: Folder) -> None:
        store = folder.open(inbox_size=0)
        hold_all(store, numbered(5), 1_000)
        key = held_key(b"bills", (1 << 64) - 1)
        store = folder.damage("held", key, pack_u64(1))
        hold_all(store, [b"a"], 1_001, b"bills")
        assert fire_crowded_out(store, 1_001, 1_001, 2).messages == 1
        store.commit()
        store = folder.damage("held", key, None)
        assert fire(store, 1_001) == 5

    def test_a_search_begins_where_the_topic_has_messages(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(firing, "LEAPS_OVER_OTHERS", 3)
        store = folder.open(inbox_size=0)
        self.storm(store, range(HELD_SPAN_MS - 50, HELD_SPAN_MS + 2))
        hold_all(store, [b"other"], HELD_SPAN_MS + 1, b"other")
        now_ms = HELD_SPAN_MS + 500
        assert fire_crowded_out(store, now_ms, now_ms, 9).messages == 1
        store.commit()

    def test_nobody_else_is_there(self, store: Store) -> None:
        assert fire_crowded_out(store, 1_500, 1_500, 2).messages == 0
        hold_all(store, [b"s"], 1_000, b"storm")
        store.commit()
        assert fire_crowded_out(store, 1_500, 1_500, 2).messages == 0
        store.commit()


class TestWhatCannotFire:
    @pytest.mark.parametrize("inbox_size", [0, INBOX_SIZE], ids=["in table", "in memory"])
    @pytest.mark.parametrize("is_paused", [False, True])
    def test_for_its_queue_is_pending_and_keeps_nothing_else(
        self, folder: Folder, inbox_size: int, is_paused: bool
    ) -> None:
        store = folder.open(inbox_size=inbox_size)
        for message_id, queue in ((b"a", 0), (b"b", 1), (b"c", 0), (b"d", 0)):
            hold(store, Sample(message_id, queue=queue), 1_000)
        hold(store, Sample(b"moved", queue=1), 5_000)
        hold(store, Sample(b"late", b"bills"), 2_000)
        if is_paused:
            pause_topic(store, TOPIC, 900)
        store.commit()
        if is_paused:
            assert fire(store, 1_000) == 0
        store = folder.damage("ends", queue_prefix(TOPIC, 0), b"short")
        if is_paused:
            resume_topic(store, TOPIC)
            fire_resumed(store, 1_000, 1_000, 10)
            store.commit()
        else:
            assert fire(store, 1_000, limit=2) + fire(store, 1_000) == 1
        assert ids_in(store, queue=1) == [b"b"]
        assert fire(store, 1_000) == 0
        # The next due time is that of a message that can fire.
        assert store.next_due() == 2_000
        assert pending_ids(store) == [b"a", b"c", b"d", b"late", b"moved"]
        assert len(store.damaged) == 4, "the three, and their queue"
        assert len(abort(store, b"c", 1_001)) == 1
        assert reschedule(store, b"moved", lambda _: 900, 1_001) is not None
        store.commit()
        assert fire(store, 1_500) == 1
        assert ids_in(store, queue=1) == [b"b", b"moved"]
        with commits_fail(store):
            fire_due(store, 2_000, 2_000, 10)
            with pytest.raises(StorageError):
                store.commit()
        assert fire(store, 2_000) == 1
        store = folder.damage("ends", queue_prefix(TOPIC, 0), None)
        assert fire(store, 2_000) == 2
        assert ids_in(store) == [b"a", b"d"]

    @pytest.mark.parametrize("limit", [1, 100])
    def test_is_none_of_those_that_are_crowded_out(self, folder: Folder, limit: int) -> None:
        store = folder.open(inbox_size=0)
        hold_all(store, numbered(10), 1_000)
        hold(store, Sample(b"a", b"bills"), 1_001)
        hold(store, Sample(b"b", b"bills", 1), 1_001)
        store.commit()
        store = folder.damage("ends", queue_prefix(b"bills", 0), b"short")
        fire_due(store, 1_001, 1_001, 5)
        assert fire_crowded_out(store, 1_001, 1_001, limit).messages == limit // 100
        store.commit()
        assert fire(store, 1_001) == 6 - limit // 100
        folder.damage("ends", queue_prefix(b"bills", 0), None)

    @pytest.mark.parametrize(
        "row",
        [
            (pack_u64(1_000) + b"orders", bytes(12)),
            (pack_u64(1_000) + b"orders\0short", bytes(12)),
            (pack_u64(1_000) + b"\0" + pack_u64(1) + b"a", bytes(12)),
            (timer_key(1_000, TOPIC, 9, b"a"), b"short"),
        ],
    )
    def test_as_its_own_row_cannot_be_read_stays(
        self, folder: Folder, row: tuple[bytes, bytes]
    ) -> None:
        store = folder.open()
        hold(store, Sample(b"b"), 1_000)
        store.commit()
        store = folder.damage("timers", *row)
        assert pending_ids(store) == [b"b"]
        readable = pending_page(store, readable=lambda topic: topic == TOPIC)
        assert [id_of(found.record) for found in readable.found] == [b"b"]
        assert fire(store, 1_000) == 1
        assert (ids_in(store), store.next_due()) == ([b"b"], None)
        folder.damage("timers", row[0], None)

    @pytest.mark.parametrize("table", ["timers", "waiting"])
    @pytest.mark.parametrize("is_resumed", [False, True])
    def test_can_be_taken_back_and_moved(
        self, folder: Folder, table: str, is_resumed: bool
    ) -> None:
        """Whatever the timer's row says, the record has enough. Nobody else's batch is refused because of the row."""
        store = folder.open(inbox_size=0)
        sequences = hold_all(store, [b"a", b"b"], 1_000)
        pause_topic(store, TOPIC, 900)
        store.commit()
        if table == "waiting":
            assert fire(store, 1_000) == 0
        for sequence, message_id in zip(sequences, (b"a", b"b"), strict=True):
            timer = timer_key(1_000, TOPIC, sequence, message_id)
            folder.damage(table, waiting_key(timer) if table == "waiting" else timer, b"short")
        assert folder.store is not None
        store = folder.store
        if is_resumed:
            resume_topic(store, TOPIC)
            store.commit()
            fire_resumed(store, 1_000, 1_000, 10)
            store.commit()
        send(store, Sample(b"c", b"bills"))
        assert abort(store, b"a", 1_001) == [AbortResult(Aborted.ABORTED, 1_000)]
        reschedule(store, b"b", lambda _: 2_000, 1_001)
        store.commit()
        assert ids_in(store, b"bills") == [b"c"]
        assert pending_ids(store) == [b"b"]
        if not is_resumed:
            resume_topic(store, TOPIC)
            fire_resumed(store, 1_001, 1_001, 10)
            store.commit()
        assert fire(store, 2_000) == 1
        assert ids_in(store) == [b"b"]

    @pytest.mark.parametrize("table", ["held", "hours", "totals"])
    @pytest.mark.parametrize("value", [None, bytes(8), b"\xff" * 8, b"short"])
    def test_does_not_follow_from_damaged_sums(
        self, folder: Folder, table: str, value: bytes | None
    ) -> None:
        store = folder.open(inbox_size=0)
        hold_all(store, [b"a", b"b"], 1_000)
        hold_all(store, [b"c"], 2_000)
        wanted = value * 2 if table == "totals" and value and len(value) == 8 else value
        rows: list[tuple[bytes, bytes]] = []
        folder.close()
        change_table(folder.path, table, lambda txn, db: rows.extend(txn.cursor(db=db)))
        for key, _ in rows:
            folder.damage(table, key, wanted)
        store = folder.open(inbox_size=0)
        assert fire(store, 1_000) == 2
        hold_all(store, [b"d"], 3_000)
        assert fire(store, 3_000) == 2
        assert store.pending_count() >= 0
        for key, _ in rows:
            folder.damage(table, key, None)
