"""Finding messages by id, key and sequence, whatever their state."""

from __future__ import annotations

import random
from typing import Any

import pytest

from storage import (
    Found,
    FoundPage,
    State,
    Store,
    abort,
    abort_sequences,
    find_by_id,
    find_by_key,
    find_by_sequence,
    find_by_sequences,
    fire_due,
    history,
    lookup,
    pending,
    queues,
    scan_aborted,
    scan_fired,
    scan_with_key,
)
from storage.keys import id_key, key_prefix, pack_u64, queue_prefix
from storage.noted import newest_first
from tests.storage.folder import Folder
from tests.storage.sample import (
    TOPIC,
    Sample,
    fire,
    hold,
    hold_all,
    id_of,
    numbered,
    pending_ids,
    pending_page,
    send,
    states,
)


class TestById:
    def test_each_state_with_its_times_and_place(self, store: Store) -> None:
        message = Sample(b"a", queue=3)
        send(store, Sample(b"other", queue=3), stored_ms=40)
        sent = store.next_sequence
        send(store, message, stored_ms=50)
        fired, taken, waiting = (hold(store, message, due_ms, 60) for due_ms in (100, 200, 300))
        store.commit()
        fire_due(store, 100, 110, 10)
        store.commit()
        abort(store, b"a", 120)
        store.commit()
        hold(store, message, 400, 130)
        store.commit()
        late = waiting + 1
        assert find_by_id(store, b"a") == [
            Found(late, message.record(130), State.PENDING, 400, 0, -1),
            Found(waiting, message.record(60), State.ABORTED, 300, 120, -1),
            Found(taken, message.record(60), State.ABORTED, 200, 120, -1),
            Found(fired, message.record(60), State.FIRED, 100, 110, 2),
            Found(sent, message.record(50), State.UNTIMED, 0, 50, 1),
        ]

    def test_unknown(self, store: Store) -> None:
        hold_all(store, [b"ab"], 5)
        assert [find_by_id(store, other) for other in (b"a", b"abc", b"", b"x" * 999)] == [[]] * 4

    def test_a_message_among_many_of_its_millisecond(self, store: Store) -> None:
        ids = numbered(500)
        hold_all(store, ids, 1_000)
        fire(store, 1_000)
        for number in (0, 250, 499):
            (found,) = find_by_id(store, ids[number])
            assert (found.state, found.moved_ms, found.offset) == (State.FIRED, 1_000, number)

    def test_a_message_that_fired_long_after_it_was_due(self, store: Store) -> None:
        hold_all(store, [b"late"], 1_000)
        for stored_ms in (2_000, 3_000):
            send(store, Sample(b"x"), stored_ms)
        fire_due(store, 5_000, 5_000, 10)
        send(store, Sample(b"x"), 5_000)
        store.commit()
        (found,) = find_by_id(store, b"late")
        assert (found.moved_ms, found.offset) == (5_000, 2)


class TestBySequence:
    def test_every_state(self, store: Store) -> None:
        sequences = [hold(store, Sample(b"%d" % due_ms), due_ms) for due_ms in (100, 200, 300)]
        store.commit()
        fire(store, 100)
        abort(store, b"200", 150)
        store.commit()
        found = [find_by_sequence(store, sequence) for sequence in sequences]
        assert [one.state.value for one in found if one] == ["fired", "aborted", "pending"]
        assert [one.sequence for one in found if one] == sequences

    def test_unknown(self, store: Store) -> None:
        assert find_by_sequence(store, 0) is None
        assert find_by_sequence(store, (1 << 64) - 1) is None


class TestByKey:
    def test_newest_first_up_to_the_limit(self, store: Store) -> None:
        for number in range(3):
            for topic in (b"t1", b"t2"):
                message_id = b"%b-%d" % (topic, number)
                hold(store, Sample(message_id, topic, keys=(b"k", b"n%d" % number)), 100 + number)
        store.commit()
        fire(store, 101)

        def found(topics: list[bytes], key: bytes, limit: int = 99) -> list[bytes]:
            return [id_of(one.record) for one in find_by_key(store, topics, key, limit)]

        assert found([b"t1"], b"k") == [b"t1-2", b"t1-1", b"t1-0"]
        assert found([b"t2", b"t1"], b"k", 4) == [b"t2-2", b"t1-2", b"t2-1", b"t1-1"]
        assert found([b"t1"], b"n1") == [b"t1-1"]
        assert found([b"t1"], b"k", 0) == []
        assert found([b"t1", b"t3"], b"unknown") == []
        assert found([], b"k") == []
        assert [one.state.value for one in find_by_key(store, [b"t1"], b"k", 9)] == [
            "pending",
            "fired",
            "fired",
        ]

    def test_a_search_of_many_topics_looks_at_no_more_than_one_of_one(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lookup, "MAX_WITH_KEY_SCANNED", 3)
        topics = [b"t%d" % number for number in range(4)]
        for topic in [*topics, *topics]:
            send(store, Sample(b"of " + topic, topic, keys=(b"k",)))
        store.commit()
        looked_at: list[bytes] = []

        def wanted(one: Found) -> bool:
            looked_at.append(id_of(one.record))
            return False

        assert find_by_key(store, topics, b"k", 10, wanted) == []
        assert looked_at == [b"of t3", b"of t2", b"of t1"]

    def test_one_cursor_serves_all_topics(self, store: Store) -> None:
        """Whenever LMDB closes a cursor, it goes through all open ones."""
        topics = [b"t%d" % number for number in range(4)]
        for topic in [*topics, *topics]:
            send(store, Sample(b"of " + topic, topic, keys=(b"k",)))
        store.commit()
        reader = store.settled_reader()
        opened: list[object] = []

        class Counted:
            def cursor(self, db: Any) -> Any:
                opened.append(db)
                return reader.cursor(db=db)

        txn: Any = Counted()
        prefixes = [key_prefix(topic, b"k") for topic in topics]
        numbers = list(newest_first(txn, store.tables.keys, prefixes))
        assert (numbers, len(numbers), len(opened)) == (sorted(numbers, reverse=True), 8, 1)

    @pytest.mark.parametrize("most_bytes", [1, lookup.MAX_FOUND_BYTES])
    def test_page_by_page(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, most_bytes: int
    ) -> None:
        monkeypatch.setattr(lookup, "MAX_FOUND_BYTES", most_bytes)
        for number in range(7):
            send(store, Sample(b"%d" % number, b"t%d" % (number % 2), keys=(b"k",)))
        store.commit()
        found: list[bytes] = []
        cursor: bytes | None = None
        while len(found) < 7:
            page = scan_with_key(store, [b"t0", b"t1"], b"k", cursor=cursor, limit=2)
            found += [id_of(one.record) for one in page.found]
            cursor = page.cursor
        assert cursor is None or most_bytes == 1
        assert found == [b"6", b"5", b"4", b"3", b"2", b"1", b"0"]
        assert scan_with_key(store, [b"t0"], b"k", cursor=b"", limit=2) == FoundPage([], None)

    def test_keys_that_begin_alike_stay_apart(self, store: Store) -> None:
        keys = [b"k", b"kk", b"k\0", b"k\0longer than a sequence", b"k\0\xff" * 20, b"", b"x" * 300]
        for key in [*keys, *keys]:
            send(store, Sample(b"id of " + key, keys=(key,)))
        store.commit()
        for key in keys:
            found = [id_of(one.record) for one in find_by_key(store, [TOPIC], key, 99)]
            assert found == [b"id of " + key] * 2

    def test_topics_that_begin_alike_stay_apart(self, store: Store) -> None:
        for topic in (b"t", b"tt", b"u"):
            send(store, Sample(topic, topic, keys=(b"k",)))
        store.commit()
        assert [id_of(one.record) for one in find_by_key(store, [b"t"], b"k", 9)] == [b"t"]


def test_a_place_is_found_however_long_the_queue_is(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exception is a place among very many messages that were due at once."""
    monkeypatch.setattr(queues, "MAX_ROWS_SEARCHED", 3)
    monkeypatch.setattr(queues, "ROWS_AT_ONCE", 1)
    ids = numbered(20)
    for number, name in enumerate(ids):
        send(store, Sample(name), stored_ms=number + 1)
    hold(store, Sample(b"timed"), 5_000)
    store.commit()
    fire(store, 5_000)
    at_once = numbered(5, b"at once")
    hold_all(store, at_once, 6_000)
    fire(store, 6_000)
    offsets = [find_by_id(store, name)[0].offset for name in (*ids, b"timed", *at_once)]
    assert offsets == [*range(24), -1, -1]


def test_a_look_up_of_many_examines_each_row_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All fired at once. Where a look-up has examined enough, the rest is found without a place."""
    names = numbered(60)
    for number, name in enumerate(names):
        hold(store, Sample(name, keys=(b"k",)), 5_000 + number)
        send(store, Sample(b"untimed"), stored_ms=5_000 + number)
    store.commit()
    fire(store, 6_000)
    monkeypatch.setattr(queues, "MAX_ROWS_OF_SEARCH", 61)
    monkeypatch.setattr(queues, "ROWS_AT_ONCE", 1)
    found = find_by_key(store, [TOPIC], b"k", 100)
    assert [one.offset for one in found] == list(reversed(range(60, 120)))
    assert {one.moved_ms for one in found} == {6_000}
    monkeypatch.setattr(queues, "MAX_ROWS_OF_SEARCH", 42)
    found = find_by_key(store, [TOPIC], b"k", 100)
    assert [one.offset for one in found] == [-1] * 19 + list(reversed(range(60, 101)))
    assert {one.state for one in found} == {State.FIRED}
    monkeypatch.setattr(queues, "MAX_ROWS_OF_SEARCH", 120)
    monkeypatch.setattr(queues, "MAX_ROWS_SEARCHED", 60)
    found = find_by_key(store, [TOPIC], b"k", 100)
    assert [one.offset for one in found] == [-1, *reversed(range(60, 119))]


def test_messages_far_apart_do_not_cost_the_rows_between_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "ROWS_AT_ONCE", 3)
    monkeypatch.setattr(queues, "MAX_ROWS_OF_SEARCH", 60)
    for number in range(200):
        keys = (b"k",) if number % 10 == 0 else ()
        send(store, Sample(b"%d" % number, keys=keys), stored_ms=number)
    store.commit()
    found = find_by_key(store, [TOPIC], b"k", 100)
    assert [one.offset for one in found] == list(range(190, -1, -10))


def test_messages_of_two_moments_in_turn_do_not_cost_their_rows_again_and_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where each order has a message in the morning and one in the evening, with the same key."""
    monkeypatch.setattr(queues, "ROWS_AT_ONCE", 10)
    monkeypatch.setattr(queues, "MAX_ROWS_OF_SEARCH", 120)
    for number in range(60):
        for due_ms in (5_000, 9_000):
            keys = (b"k",) if number % 10 == 0 else ()
            hold(store, Sample(b"%d-%d" % (number, due_ms), keys=keys), due_ms)
    store.commit()
    fire(store, 5_000)
    fire(store, 9_000)
    found = find_by_key(store, [TOPIC], b"k", 100)
    assert [one.offset for one in found] == [
        offset for number in range(50, -1, -10) for offset in (number + 60, number)
    ]


@pytest.mark.parametrize("searched", [3, 20, 1_000])
@pytest.mark.parametrize("at_once", [1, 7, 50])
def test_places_are_what_a_search_row_by_row_finds(
    store: Store, monkeypatch: pytest.MonkeyPatch, searched: int, at_once: int
) -> None:
    monkeypatch.setattr(queues, "MAX_ROWS_SEARCHED", searched)
    monkeypatch.setattr(queues, "ROWS_AT_ONCE", at_once)
    chance = random.Random(searched + at_once)
    now_ms = 1_000
    times: list[int] = []
    begins: dict[int, int] = {}
    for _ in range(200):
        now_ms += chance.choice([0, 0, 1, 30])
        due_ms = now_ms - chance.choice([0, 1, 100])
        times.append(now_ms)
        begins[hold(store, Sample(b"x"), due_ms)] = sum(ms < due_ms for ms in times)
        fire_due(store, now_ms, now_ms, 1)
    store.commit()
    offsets = {sequence: offset for offset, sequence in enumerate(begins)}
    for order in (list(begins), list(reversed(begins)), chance.sample(list(begins), 200)):
        for one in find_by_sequences(store, order):
            offset = offsets[one.sequence]
            is_near = offset < begins[one.sequence] + searched
            assert (one.offset, one.moved_ms) in (
                (offset, times[offset]),
                (offset, times[offset]) if is_near else (-1, 0),
            )


def test_where_a_row_is_missing_no_wrong_place_is_found(folder: Folder) -> None:
    store = folder.open()
    for name in numbered(9):
        send(store, Sample(name), stored_ms=5)
    store.commit()
    key = queue_prefix(TOPIC, 0) + pack_u64(4)
    row = store.settled_reader().get(key, db=store.tables.queues)
    store = folder.damage("queues", key, None)
    offsets = [find_by_id(store, name)[0].offset for name in numbered(9)]
    assert offsets == [0, 1, 2, 3, -1, -1, -1, -1, -1]
    folder.damage("queues", key, row)


def test_nothing_is_found_that_is_not_committed(store: Store) -> None:
    sequence = hold(store, Sample(b"a", keys=(b"k",)), 5)
    assert states(store, b"a") == []
    assert find_by_sequence(store, sequence) is None
    assert find_by_key(store, [TOPIC], b"k", 9) == []
    assert pending_ids(store) == []
    assert store.held_totals() == {}


class TestLargeMessages:
    """One call has at most `MAX_FOUND_BYTES` of messages in memory."""

    @pytest.fixture(autouse=True)
    def _two_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        two = 2 * len(Sample(b"0").record(1))
        monkeypatch.setattr(lookup, "MAX_FOUND_BYTES", two)
        monkeypatch.setattr(pending, "MAX_FOUND_BYTES", two)
        monkeypatch.setattr(history, "MAX_FOUND_BYTES", two)

    @pytest.mark.parametrize("state", [State.PENDING, State.FIRED, State.ABORTED])
    def test_pages_end_early(self, state: State, store: Store) -> None:
        sequences = hold_all(store, numbered(5), 10_000)
        if state is State.ABORTED:
            abort_sequences(store, sequences, 7)
            store.commit()
        if state is State.FIRED:
            fire(store, 10_000)
        found: list[int] = []
        cursor = None
        pages = 0
        while pages == 0 or cursor is not None:
            page = self._page(store, state, cursor)
            found += [one.sequence for one in page.found]
            pages, cursor = pages + 1, page.cursor
        assert found == (sequences if state is State.PENDING else sequences[::-1])
        assert pages == 3

    @staticmethod
    def _page(store: Store, state: State, cursor: bytes | None) -> FoundPage:
        end_ms = 1 << 40
        if state is State.PENDING:
            return pending_page(store, cursor=cursor)
        if state is State.ABORTED:
            return scan_aborted(
                store, topic=None, begin_ms=0, end_ms=end_ms, cursor=cursor, limit=99
            )
        queues = [store.queue(TOPIC, Sample(b"").queue)]
        return scan_fired(
            store, queues, begin_ms=0, end_ms=end_ms, tag_hash=None, cursor=cursor, limit=99
        )

    def test_the_newest_with_an_id(self, store: Store) -> None:
        sequences = hold_all(store, [b"0"] * 5, 10_000)
        found = [one.sequence for one in find_by_id(store, b"0")]
        assert found == [sequences[4], sequences[3]]

    def test_the_newest_with_a_key_that_are_wanted(self, store: Store) -> None:
        sequences = [
            hold(store, Sample(b"%d" % number, keys=(b"k",)), 10_000) for number in range(5)
        ]
        abort_sequences(store, sequences[3:], 7)
        store.commit()
        found = find_by_key(store, [TOPIC], b"k", 9, lambda one: one.state is State.PENDING)
        assert [one.sequence for one in found] == [sequences[2], sequences[1]]

    def test_a_search_among_those_with_a_key_ends(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sequences = [
            hold(store, Sample(b"%d" % number, keys=(b"k",)), 10_000) for number in range(5)
        ]
        store.commit()
        asked: list[int] = []

        def note(one: Found) -> bool:
            asked.append(one.sequence)
            return False

        three = 3 * len(Sample(b"0", keys=(b"k",)).record(1))
        monkeypatch.setattr(lookup, "MAX_BYTES_SCANNED", three)
        assert find_by_key(store, [TOPIC], b"k", 9, note) == []
        assert asked == sequences[:1:-1]


def test_a_row_of_what_was_aborted_that_cannot_be_read_is_passed_over(folder: Folder) -> None:
    key = b"\0\1"
    folder.open()
    store = folder.damage("aborted", key, b"")
    page = scan_aborted(store, topic=None, begin_ms=0, end_ms=1 << 62, cursor=None, limit=9)
    assert page.found == []
    folder.damage("aborted", key, None)


def test_one_whose_row_of_the_ids_cannot_be_read_is_left_out(folder: Folder) -> None:
    store = folder.open()
    for message_id in (b"a", b"b"):
        send(store, Sample(message_id, keys=(b"k",)))
    store.commit()
    key = id_key(b"a", pack_u64(1))
    whole = store.reader().get(key, db=store.tables.ids)
    store = folder.damage("ids", key, b"short")
    assert find_by_id(store, b"a") == []
    assert [id_of(one.record) for one in find_by_key(store, [TOPIC], b"k", 9)] == [b"b"]
    assert store.damaged == {pack_u64(1)}
    folder.damage("ids", key, whole)
