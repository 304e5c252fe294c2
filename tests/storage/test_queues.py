"""Sending to a queue and reading from it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import (
    Queue,
    State,
    StorageError,
    Store,
    find_by_id,
    find_by_key,
    fire_due,
    newest_stored_ms,
    scan_fired,
)
from storage.keys import pack_u64, queue_prefix
from storage.queues import MAX_BYTES_JUDGED, MAX_RECORDS_JUDGED, MAX_ROWS_FILTERED, Page
from tests.storage.folder import Folder, scratch_data
from tests.storage.sample import (
    TOPIC,
    Sample,
    body_of,
    clean_up,
    fire,
    hold,
    hold_all,
    id_of,
    ids_in,
    numbered,
    send,
)

UNLIMITED = 1 << 30


def ids_of(page: Page) -> list[bytes]:
    return [id_of(message.record) for message in page.messages]


def ends(queue: Queue) -> tuple[int, int, int]:
    return queue.first, queue.visible, queue.next


def test_a_queue_nobody_wrote_to_is_empty_and_begins_at_0(store: Store) -> None:
    queue = store.queue(TOPIC, 3)
    assert ends(queue) == (0, 0, 0)
    assert store.read(queue, 0, 10, UNLIMITED) == Page([], 0)
    assert store.read(queue, 7, 10, UNLIMITED) == Page([], 7)
    assert store.offset_at(queue, 0) == 0
    assert store.stored_ms(queue, 0) is None


def test_what_was_sent_is_read_as_it_was_with_its_place(store: Store) -> None:
    message = Sample(b"a", body=bytes(range(256)))
    sequence = store.next_sequence
    assert send(store, message, stored_ms=5) == 0
    assert send(store, Sample(b"b"), stored_ms=6) == 1
    store.commit()
    page = store.read(store.queue(TOPIC, 0), 0, 10, UNLIMITED)
    first, second = page.messages
    assert (first.offset, first.stored_ms, first.sequence) == (0, 5, sequence)
    assert first.record == message.record(5)
    assert body_of(first.record) == bytes(range(256))
    assert (second.offset, second.stored_ms, second.sequence) == (1, 6, sequence + 1)
    assert page.next_offset == 2


def test_queues_and_topics_with_similar_names_do_not_mix(store: Store) -> None:
    places = [(b"a", 0), (b"a", 1), (b"a", 256), (b"aa", 0), (b"b", 0)]
    for topic, queue in places:
        for number in range(3):
            assert send(store, Sample(b"%b-%d-%d" % (topic, queue, number), topic, queue)) == number
    store.commit()
    for topic, queue in places:
        expected = [b"%b-%d-%d" % (topic, queue, number) for number in range(3)]
        assert ids_in(store, topic, queue) == expected


def test_the_ends_of_a_queue_are_found_again(store: Store, reopen: Callable[[], Store]) -> None:
    for queue in (0, 1, 0, 0):
        send(store, Sample(b"m", queue=queue))
    store.commit()
    store = reopen()
    assert [ends(store.queue(TOPIC, queue)) for queue in range(3)] == [
        (0, 3, 3),
        (0, 1, 1),
        (0, 0, 0),
    ]
    assert send(store, Sample(b"m")) == 3


def test_one_message_may_carry_the_same_key_twice(store: Store) -> None:
    send(store, Sample(b"a", keys=(b"k", b"k")))
    store.commit()
    assert ids_in(store) == [b"a"]


def test_an_empty_message_without_id_and_keys_is_a_message(store: Store) -> None:
    send(store, Sample(b""))
    hold(store, Sample(b""), 5)
    store.commit()
    assert fire(store, 5) == 1
    assert ids_in(store) == [b"", b""]


class TestPaging:
    """What one read returns from ten messages of roughly 100 bytes."""

    @pytest.fixture
    def queue(self, store: Store) -> Queue:
        for number, message_id in enumerate(numbered(10)):
            send(store, Sample(message_id, tag_hash=number % 3, body=b"x" * 100), stored_ms=number)
        store.commit()
        return store.queue(TOPIC, 0)

    def test_limit(self, store: Store, queue: Queue) -> None:
        page = store.read(queue, 2, 3, UNLIMITED)
        assert ids_of(page) == numbered(10)[2:5]
        assert page.next_offset == 5

    def test_reading_on_from_each_page_sees_everything_once(
        self, store: Store, queue: Queue
    ) -> None:
        seen, offset = [], 0
        while offset < queue.visible:
            page = store.read(queue, offset, 3, UNLIMITED)
            seen += ids_of(page)
            offset = page.next_offset
        assert seen == numbered(10)

    def test_bytes(self, store: Store, queue: Queue) -> None:
        size = len(store.read(queue, 0, 1, UNLIMITED).messages[0].record)
        for room, expected in ((3 * size, 3), (3 * size + 1, 3), (4 * size - 1, 3), (4 * size, 4)):
            page = store.read(queue, 0, 100, room)
            assert (len(page.messages), page.next_offset) == (expected, expected)

    @pytest.mark.parametrize("room", [0, 1])
    def test_one_message_comes_however_large_it_is(
        self, store: Store, queue: Queue, room: int
    ) -> None:
        page = store.read(queue, 4, 100, room)
        assert ids_of(page) == numbered(10)[4:5]
        assert page.next_offset == 5

    def test_behind_the_end(self, store: Store, queue: Queue) -> None:
        assert store.read(queue, 10, 5, UNLIMITED) == Page([], 10)
        assert store.read(queue, 99, 5, UNLIMITED) == Page([], 99)

    def test_an_offset_before_the_first_is_the_first(self, store: Store, queue: Queue) -> None:
        assert ids_of(store.read(queue, -5, 2, UNLIMITED)) == numbered(10)[:2]

    def test_tags(self, store: Store, queue: Queue) -> None:
        page = store.read(queue, 0, 100, UNLIMITED, {1})
        assert [message.offset for message in page.messages] == [1, 4, 7]
        assert page.next_offset == 10
        page = store.read(queue, 0, 100, UNLIMITED, {0, 2})
        assert [message.offset for message in page.messages] == [0, 2, 3, 5, 6, 8, 9]

    def test_tags_with_a_limit_go_on_behind_the_last_match(
        self, store: Store, queue: Queue
    ) -> None:
        page = store.read(queue, 0, 2, UNLIMITED, {1})
        assert [message.offset for message in page.messages] == [1, 4]
        assert page.next_offset == 5

    def test_no_match_moves_on_past_what_was_skipped(self, store: Store, queue: Queue) -> None:
        assert store.read(queue, 0, 100, UNLIMITED, {77}) == Page([], 10)

    def test_tags_stop_before_the_match_that_does_not_fit(self, store: Store, queue: Queue) -> None:
        size = len(store.read(queue, 0, 1, UNLIMITED).messages[0].record)
        page = store.read(queue, 0, 100, size + size // 2, {1})
        assert [message.offset for message in page.messages] == [1]
        assert page.next_offset == 4

    @pytest.mark.parametrize(
        ("asked_ms", "offset"), [(-1, 0), (0, 0), (1, 1), (9, 9), (10, 10), (1 << 60, 10)]
    )
    def test_offset_at(self, store: Store, queue: Queue, asked_ms: int, offset: int) -> None:
        assert store.offset_at(queue, asked_ms) == offset

    def test_stored_ms(self, store: Store, queue: Queue) -> None:
        assert [store.stored_ms(queue, offset) for offset in (0, 9, 10)] == [0, 9, None]


def test_a_filtered_read_looks_at_a_bounded_number_of_rows(store: Store) -> None:
    for _ in range(MAX_ROWS_FILTERED + 1):
        send(store, Sample(b"dull"))
    send(store, Sample(b"wanted", tag_hash=1))
    store.commit()
    queue = store.queue(TOPIC, 0)
    page = store.read(queue, 0, 10, UNLIMITED, {1})
    assert page == Page([], MAX_ROWS_FILTERED)
    assert ids_of(store.read(queue, page.next_offset, 10, UNLIMITED, {1})) == [b"wanted"]


def test_negative_tag_hashes_are_kept(store: Store) -> None:
    send(store, Sample(b"low", tag_hash=-(1 << 31)))
    hold(store, Sample(b"timed", tag_hash=-1), 5)
    store.commit()
    fire(store, 5)
    queue = store.queue(TOPIC, 0)
    assert ids_of(store.read(queue, 0, 9, UNLIMITED, {-(1 << 31)})) == [b"low"]
    assert ids_of(store.read(queue, 0, 9, UNLIMITED, {-1})) == [b"timed"]


def test_records_are_judged_one_by_one_a_bounded_number_at_a_time(store: Store) -> None:
    for message_id in numbered(MAX_RECORDS_JUDGED):
        send(store, Sample(message_id))
    send(store, Sample(b"wanted"))
    send(store, Sample(b"more"))
    store.commit()
    queue = store.queue(TOPIC, 0)

    def wanted(record: bytes) -> bool:
        return id_of(record) == b"wanted"

    page = store.read(queue, 0, 10, UNLIMITED, matches=wanted)
    assert page == Page([], MAX_RECORDS_JUDGED)
    page = store.read(queue, page.next_offset, 10, UNLIMITED, matches=wanted)
    assert ids_of(page) == [b"wanted"]
    assert page.next_offset == MAX_RECORDS_JUDGED + 2


def test_a_filter_may_be_shown_fewer_records(store: Store) -> None:
    for message_id in numbered(4):
        send(store, Sample(message_id))
    store.commit()
    queue = store.queue(TOPIC, 0)
    page = store.read(queue, 0, 10, UNLIMITED, matches=lambda _: False, most_judged=3)
    assert page == Page([], 3)


def test_large_records_are_judged_a_bounded_number_of_bytes_at_a_time(store: Store) -> None:
    for _ in range(4):
        send(store, Sample(b"large", body=bytes(MAX_BYTES_JUDGED // 2)))
    store.commit()
    page = store.read(store.queue(TOPIC, 0), 0, 10, UNLIMITED, matches=lambda _: False)
    assert page == Page([], 2)


def test_a_filter_that_is_shown_fewer_records_is_shown_fewer_bytes(store: Store) -> None:
    """Without this, a pull with a long expression took 0.5 s where messages had 32 KB of properties."""
    for _ in range(4):
        send(store, Sample(b"large", body=bytes(MAX_BYTES_JUDGED // 8)))
    store.commit()
    few = MAX_RECORDS_JUDGED // 4
    queue = store.queue(TOPIC, 0)
    page = store.read(queue, 0, 10, UNLIMITED, matches=lambda _: False, most_judged=few)
    assert page == Page([], 2)


@given(times=st.lists(st.integers(0, 5), max_size=30).map(sorted), asked_ms=st.integers(-1, 7))
def test_offset_at_is_the_first_of_several_in_one_millisecond(
    times: list[int], asked_ms: int
) -> None:
    with scratch_data() as folder:
        store = folder.open()
        for stored_ms in times:
            send(store, Sample(b"m"), stored_ms)
        store.commit()
        expected = sum(stored_ms < asked_ms for stored_ms in times)
        assert store.offset_at(store.queue(TOPIC, 0), asked_ms) == expected


class TestDamage:
    @pytest.mark.parametrize("value", [None, b"short", bytes(16), b"\xff" * 16])
    def test_where_there_are_messages_their_rows_tell_where_a_queue_ends(
        self, folder: Folder, value: bytes | None
    ) -> None:
        store = folder.open()
        for number in range(4):
            send(store, Sample(b"%d" % number), number)
        store.commit()
        clean_up(store, 2, 10, lambda _: False)
        store.commit()
        prefix = queue_prefix(TOPIC, 0)
        store = folder.damage("ends", prefix, value)
        queue = store.queue(TOPIC, 0)
        assert (queue.first, queue.next) == (2, 4)
        assert send(store, Sample(b"4"), 4) == 4
        store.commit()
        folder.damage("ends", prefix, pack_u64(2) + pack_u64(4))

    @pytest.mark.parametrize("offset", [pack_u64(1) + b"\0", pack_u64((1 << 63) - 1)])
    def test_no_offset_is_given_again_or_behind_all_that_clients_know(
        self, folder: Folder, offset: bytes
    ) -> None:
        store = folder.open()
        for message_id in (b"a", b"b"):
            send(store, Sample(message_id))
        store.commit()
        key = queue_prefix(TOPIC, 0) + offset
        store = folder.damage("queues", key, b"")
        with pytest.raises(StorageError, match="queue 0 of topic orders cannot be read"):
            store.queue(TOPIC, 0)
        folder.damage("queues", key, None)

    def test_it_is_read_up_to_a_row_that_cannot_be(self, folder: Folder) -> None:
        store = folder.open()
        for number in range(4):
            send(store, Sample(b"%d" % number))
        store.commit()
        key = queue_prefix(TOPIC, 0) + pack_u64(2)
        whole = store.reader().get(key, db=store.tables.queues)
        store = folder.damage("queues", key, b"short")
        queue = store.queue(TOPIC, 0)
        page = store.read(queue, 0, 10, 1 << 20)
        assert ([id_of(one.record) for one in page.messages], page.next_offset) == ([b"0", b"1"], 2)
        with pytest.raises(StorageError, match="see 'tidegate fsck'"):
            store.read(queue, 2, 10, 1 << 20)
        page = store.read(queue, 3, 10, 1 << 20)
        assert [(id_of(one.record), one.offset) for one in page.messages] == [(b"3", 3)]
        folder.damage("queues", key, whole)

    @pytest.mark.parametrize("gone", [1, 3, 4, 20, 38])
    def test_it_is_read_up_to_a_row_that_is_gone(self, folder: Folder, gone: int) -> None:
        """No message of another queue is read instead, and each message has its own offset."""
        ids = numbered(40)
        store = folder.open()
        for name in ids:
            send(store, Sample(name))
        send(store, Sample(b"other", queue=1))
        store.commit()
        key = queue_prefix(TOPIC, 0) + pack_u64(gone)
        whole = store.reader().get(key, db=store.tables.queues)
        store = folder.damage("queues", key, None)
        queue = store.queue(TOPIC, 0)
        assert ids_of(store.read(queue, 0, 100, UNLIMITED)) == ids[:gone]
        assert len(list(store.rows(queue, 0, 100))) == gone
        with pytest.raises(StorageError, match=f"offset {gone} has no row that is whole"):
            store.read(queue, gone, 100, UNLIMITED)
        assert ids_of(store.read(queue, gone + 1, 100, UNLIMITED)) == ids[gone + 1 :]
        places = [found.offset for name in ids for found in find_by_id(store, name)]
        assert {place - offset for offset, place in enumerate(places) if place >= 0} == {0}
        folder.damage("queues", key, whole)

    @pytest.mark.parametrize("is_last", [False, True])
    def test_offsets_behind_the_last_row_of_a_queue_cannot_be_read(
        self, folder: Folder, is_last: bool
    ) -> None:
        """Without this, a consumer of the last queue of the table got empty answers there for ever."""
        store = folder.open()
        send(store, Sample(b"0"))
        if not is_last:
            send(store, Sample(b"other", queue=1))
        store.commit()
        prefix = queue_prefix(TOPIC, 0)
        store = folder.damage("ends", prefix, pack_u64(0) + pack_u64(3))
        queue = store.queue(TOPIC, 0)
        assert store.read(queue, 0, 100, UNLIMITED).next_offset == 1
        with pytest.raises(StorageError, match="offset 1 has no row that is whole"):
            store.read(queue, 1, 100, UNLIMITED)
        with pytest.raises(StorageError, match="offset 2 has no row that is whole"):
            list(store.rows(queue, 2, 100))
        folder.damage("ends", prefix, None)

    def test_a_first_row_whose_key_is_none_does_not_tell_where_a_queue_begins(
        self, folder: Folder
    ) -> None:
        store = folder.open()
        send(store, Sample(b"0"))
        store.commit()
        key = queue_prefix(TOPIC, 0) + b"\0"
        store = folder.damage("queues", key, b"")
        with pytest.raises(StorageError, match="a row of it has a wrong key"):
            store.queue(TOPIC, 0)
        folder.damage("queues", key, None)

    def test_a_row_between_others_whose_key_is_none_moves_none_of_them(
        self, folder: Folder
    ) -> None:
        ids = numbered(10)
        store = folder.open()
        for name in ids:
            send(store, Sample(name))
        store.commit()
        key = queue_prefix(TOPIC, 0) + pack_u64(5)
        row = store.reader().get(key, db=store.tables.queues)
        store = folder.damage("queues", key + b"\0", row)
        queue = store.queue(TOPIC, 0)
        first = store.read(queue, 0, 100, UNLIMITED)
        messages = [*first.messages, *store.read(queue, first.next_offset, 100, UNLIMITED).messages]
        assert [(id_of(one.record), one.offset) for one in messages] == [
            (name, offset) for offset, name in enumerate(ids)
        ]
        folder.damage("queues", key + b"\0", None)

    @pytest.mark.parametrize("at", [16, -8])
    def test_a_time_or_an_offset_that_no_client_could_read_is_none(
        self, folder: Folder, at: int
    ) -> None:
        """Without this, after a start every message needed that time or a later one, and each send was refused."""
        store = folder.open()
        send(store, Sample(b"0"))
        store.commit()
        key = queue_prefix(TOPIC, 0) + pack_u64(0)
        whole = store.reader().get(key, db=store.tables.queues) or b""
        row = bytearray(whole if at > 0 else key)
        row[at] |= 0x80
        if at > 0:
            store = folder.damage("queues", key, bytes(row))
            assert newest_stored_ms(store) == 1
        else:
            folder.damage("queues", key, None)
            store = folder.damage("queues", bytes(row), whole)
            with pytest.raises(StorageError, match="queue 0 of topic orders cannot be read"):
                store.queue(TOPIC, 0)
            folder.damage("queues", bytes(row), None)
        folder.damage("queues", key, whole)

    @pytest.mark.parametrize("value", [None, b"short"])
    def test_a_row_that_tells_no_time_hides_nothing_before_it(
        self, folder: Folder, value: bytes | None
    ) -> None:
        """A search by time does not end up behind the row, and fired messages are found and listed."""
        store = folder.open()
        hold_all(store, numbered(5), 10)
        for stored_ms in range(10, 15):
            assert fire_due(store, 10, stored_ms, 1).messages == 1
        store.commit()
        key = queue_prefix(TOPIC, 0) + pack_u64(2)
        whole = store.reader().get(key, db=store.tables.queues)
        store = folder.damage("queues", key, value)
        place = store.queue(TOPIC, 0)
        wanted = {9: 0, 10: 0, 11: 1, 13: 2, 14: 4, 15: 5}
        assert {ms: store.offset_at(place, ms) for ms in wanted} == wanted
        (found,) = find_by_id(store, b"m00000")
        assert (found.state, found.offset, found.moved_ms) == (State.FIRED, 0, 10)
        page = scan_fired(
            store, [place], begin_ms=0, end_ms=14, tag_hash=None, cursor=None, limit=10
        )
        assert [one.offset for one in page.found] == [3, 1, 0]
        page = scan_fired(
            store, [place], begin_ms=0, end_ms=99, tag_hash=None, cursor=page.cursor, limit=2
        )
        assert [one.offset for one in page.found] == [4, 3]
        page = scan_fired(
            store, [place], begin_ms=0, end_ms=99, tag_hash=None, cursor=page.cursor, limit=9
        )
        assert [one.offset for one in page.found] == [1, 0]
        folder.damage("queues", key, whole)

    def test_where_the_last_row_tells_no_time_a_search_ends_there(self, folder: Folder) -> None:
        store = folder.open()
        for stored_ms in range(3):
            send(store, Sample(b"x"), stored_ms)
        send(store, Sample(b"of another queue", queue=1), 0)
        store.commit()
        key = queue_prefix(TOPIC, 0) + pack_u64(2)
        whole = store.reader().get(key, db=store.tables.queues)
        store = folder.damage("queues", key, b"short")
        assert [store.offset_at(store.queue(TOPIC, 0), ms) for ms in (1, 2, 9)] == [1, 2, 2]
        folder.damage("queues", key, whole)

    def test_a_queue_that_cannot_be_read_keeps_no_message_from_being_found(
        self, folder: Folder
    ) -> None:
        store = folder.open()
        for queue in (0, 1):
            hold(store, Sample(b"%d" % queue, queue=queue, keys=(b"k",)), 10)
        store.commit()
        assert fire(store, 10) == 2
        key = queue_prefix(TOPIC, 0) + pack_u64(0)
        whole = store.reader().get(key, db=store.tables.queues)
        store = folder.damage("queues", key + b"\0", b"")
        found = find_by_key(store, [TOPIC], b"k", 10)
        assert [(one.state, one.offset, one.moved_ms) for one in found] == [
            (State.FIRED, 0, 10),
            (State.FIRED, -1, 0),
        ]
        assert store.damaged == {queue_prefix(TOPIC, 0)}
        folder.damage("queues", key + b"\0", None)
        folder.damage("queues", key, whole)


def test_what_was_added_to_a_queue_is_counted_from_when_it_was_first_seen(folder: Folder) -> None:
    first = Sample(b"m1", body=b"x" * 100)
    later = Sample(b"m2", body=b"y" * 50)
    store = folder.open()
    send(store, first, 1_000)
    hold(store, later, 5_000, 1_000)
    store.commit()
    queue = store.queue(TOPIC, 0)
    size = len(first.record(1_000))
    assert (queue.opened, queue.visible, queue.added_bytes) == (0, 1, size)
    fire(store, 5_000)
    store.commit()
    size += len(later.record(1_000))
    assert (queue.opened, queue.visible, queue.added_bytes) == (0, 2, size)
    assert (store.open_topics(), list(store.open_queues(TOPIC))) == ([TOPIC], [queue])
    again = folder.open().queue(TOPIC, 0)
    assert (again.opened, again.visible, again.added_bytes) == (2, 2, 0)
