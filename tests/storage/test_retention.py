"""What retention removes, and what it must never remove."""

from __future__ import annotations

from collections.abc import Callable

import lmdb
import pytest

from storage import (
    Store,
    abort,
    begin_queue,
    cut_topic,
    emptied_queues,
    expire_messages,
    expire_topic,
    expired_bounds,
    find_by_key,
    find_by_sequence,
    fire_due,
    remove_expired,
    reschedule,
    scan_fired,
)
from storage.keys import IdRow, id_key, pack_u64, queue_prefix
from storage.retention import BYTES_AT_ONCE, KEYS_PER_MESSAGE, QUEUES_AT_ONCE
from tests.storage.folder import Folder, change_table
from tests.storage.sample import (
    FOREVER_MS,
    TOPIC,
    Sample,
    clean_up,
    fire,
    hold,
    hold_all,
    id_of,
    ids_in,
    numbered,
    pending_ids,
    send,
    states,
)


def expire(store: Store, before_ms: int, limit: int = 1_000_000, deleted: bytes = b"") -> int:
    """Remove what is older, commit, and return the number of messages removed."""
    removed = clean_up(store, before_ms, limit, lambda topic: topic == deleted).messages
    store.commit()
    return removed


def send_ten(store: Store, topic: bytes = TOPIC, queue: int = 0) -> list[bytes]:
    """Store messages at 0 to 9 ms, and return their ids."""
    ids = numbered(10, prefix=b"%b-%d-" % (topic, queue))
    for number, message_id in enumerate(ids):
        send(store, Sample(message_id, topic, queue, (b"k",)), stored_ms=number)
    store.commit()
    return ids


def test_an_empty_store_has_nothing_to_remove(store: Store) -> None:
    assert expire(store, FOREVER_MS) == 0


def test_the_head_of_a_queue_goes_and_offsets_stay(store: Store) -> None:
    ids = send_ten(store)
    assert expire(store, 4) == 4
    queue = store.queue(TOPIC, 0)
    assert (queue.first, queue.visible, queue.next) == (4, 10, 10)
    page = store.read(queue, 0, 3, 1 << 20)
    assert [(id_of(one.record), one.offset) for one in page.messages] == [
        (ids[4], 4),
        (ids[5], 5),
        (ids[6], 6),
    ]
    assert page.next_offset == 7
    assert store.stored_ms(queue, 3) is None
    assert store.offset_at(queue, 0) == 4
    assert store.offset_at(queue, 6) == 6
    assert expire(store, 4) == 0


def test_a_removed_message_is_found_nowhere(store: Store) -> None:
    sequence = store.next_sequence
    (first, *rest) = send_ten(store)
    expire(store, 1)
    assert states(store, first) == []
    assert find_by_sequence(store, sequence) is None
    assert [id_of(one.record) for one in find_by_key(store, [TOPIC], b"k", 99)] == rest[::-1]


def test_fired_messages_age_from_their_firing(store: Store) -> None:
    hold_all(store, [b"a"], 1_000)
    fire(store, 1_000)
    assert expire(store, 1_000) == 0
    assert expire(store, 1_001) == 1
    assert states(store, b"a") == []


def test_pending_messages_stay_however_old(store: Store, reopen: Callable[[], Store]) -> None:
    hold_all(store, [b"a"], 1_000)
    assert expire(store, FOREVER_MS) == 0
    assert expire(store, FOREVER_MS, deleted=TOPIC) == 0
    store = reopen()
    assert pending_ids(store) == [b"a"]
    assert fire(store, 5_000) == 1
    assert ids_in(store) == [b"a"]


def test_aborted_messages_age_from_their_abort(store: Store) -> None:
    hold_all(store, [b"a", b"b"], FOREVER_MS)
    reschedule(store, b"a", lambda due_ms: due_ms - 1, 50)
    abort(store, b"a", 100)
    abort(store, b"b", 200)
    store.commit()
    assert expire(store, 100) == 0
    assert expire(store, 101) == 1
    assert (states(store, b"a"), states(store, b"b")) == ([], ["aborted"])
    assert expire(store, 201) == 1
    assert states(store, b"b") == []


def test_a_deleted_topics_messages_go_whatever_their_age(store: Store) -> None:
    send_ten(store, b"gone", 0)
    send_ten(store, b"gone", 7)
    kept = send_ten(store, b"kept")
    assert expire(store, 0, deleted=b"gone") == 20
    assert ids_in(store, b"gone", 0) == ids_in(store, b"gone", 7) == []
    assert ids_in(store, b"kept") == kept


def test_a_deleted_topic_is_cleared_in_steps(store: Store) -> None:
    """Each step removes as many as it may, over all queues of the topic. It removes fewer only once nothing is left."""
    kept = send_ten(store, b"gone-2", 7)[5:]
    expire(store, 5)
    for queue in range(3):
        send_ten(store, b"gone", queue)
    assert [expire_topic(store, b"gone", 12) for _ in range(4)] == [
        (12, b"gone\0"),
        (12, b"gone\0"),
        (6, None),
        (0, None),
    ]
    store.commit()
    assert ids_in(store, b"gone-2", 7) == kept
    assert emptied_queues(store, b"gone") == dict.fromkeys(range(3), 10)


def test_a_step_looks_at_no_more_queues_than_it_clears(folder: Folder) -> None:
    """A topic can have thousands, and each send to it tries such a step until it is clear."""
    store = folder.open()
    for queue in range(6):
        send_ten(store, b"gone", queue)
    store = folder.open()
    assert expire_topic(store, b"gone", 12) == (12, b"gone\0")
    assert [queue.number for queue in store.open_queues(b"gone")] == [0, 1]
    store.commit()


def test_what_a_cut_topic_held_is_removed_at_any_age(store: Store) -> None:
    kept = send_ten(store, b"gone-2")
    send_ten(store, b"gone", 0)
    send_ten(store, b"gone", 2)
    expire_topic(store, b"gone", 3)
    begins = cut_topic(store, b"gone")
    assert begins == {0: 10, 2: 10}
    new = send_ten(store, b"gone", 2)
    assert ids_in(store, b"gone", 0) == []
    assert ids_in(store, b"gone", 2) == new
    removed = []
    behind: bytes | None = b""
    while behind is not None:
        step = clean_up(
            store,
            0,
            5,
            lambda topic: False,
            begin=behind,
            begin_of=lambda topic, queue: begins.get(queue, 0) if topic == b"gone" else 0,
        )
        store.commit()
        behind = step.behind
        removed.append(step.messages)
        assert ids_in(store, b"gone", 2) == new
    assert sum(removed) == 17
    assert ids_in(store, b"gone-2") == kept


def test_what_a_cut_topic_held_is_in_no_list_of_its_messages(store: Store) -> None:
    hold_all(store, numbered(3), 10)
    fire(store, 10)
    cut_topic(store, TOPIC)
    hold_all(store, [b"new"], 20)
    fire(store, 20)
    queue = store.queue(TOPIC, 0)
    page = scan_fired(
        store, [queue], begin_ms=0, end_ms=FOREVER_MS, tag_hash=None, cursor=None, limit=9
    )
    assert [id_of(one.record) for one in page.found] == [b"new"]


def test_a_batch_that_is_not_stored_cuts_nothing(store: Store) -> None:
    ids = send_ten(store)
    assert cut_topic(store, TOPIC) == {0: 10}
    store.abandon()
    assert ids_in(store) == ids


def test_a_queue_begins_where_it_was_cut_after_a_start(
    store: Store, reopen: Callable[[], Store]
) -> None:
    ids = send_ten(store)
    store = reopen()
    assert begin_queue(store, TOPIC, 0, 7)
    assert ids_in(store) == ids[7:]
    assert begin_queue(store, TOPIC, 0, 3)
    assert ids_in(store) == ids[7:]
    assert not begin_queue(store, TOPIC, 0, 11)
    assert ids_in(store) == ids[7:]
    assert begin_queue(store, TOPIC, 0, 10)
    assert ids_in(store) == []


def test_every_queue_is_shortened(store: Store) -> None:
    places = [(b"a", 0), (b"a", 1), (b"aa", 0), (b"b", 3)]
    ids = {place: send_ten(store, *place) for place in places}
    assert expire(store, 6) == 24
    for place in places:
        assert ids_in(store, *place) == ids[place][6:]


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
def test_steps_remove_what_one_step_would(store: Store, limit: int) -> None:
    send_ten(store, b"a")
    send_ten(store, b"b")
    hold_all(store, numbered(5), 1_000)
    for message_id in numbered(4):
        abort(store, message_id, 3)
    store.commit()
    removed: list[int] = []
    while not removed or removed[-1] == limit:
        removed.append(expire(store, 5, limit))
    assert sum(removed) == 14
    assert all(count == limit for count in removed[:-1])
    assert pending_ids(store) == [b"m00004"]
    assert [len(ids_in(store, topic)) for topic in (b"a", b"b")] == [5, 5]


def test_thousands_go_in_one_step(store: Store) -> None:
    hold_all(store, numbered(3_000), 10)
    fire(store, 10)
    send(store, Sample(b"young"), 20)
    store.commit()
    assert expire(store, 11) == 3_000
    assert ids_in(store) == [b"young"]


class TestEverythingGone:
    """Nothing is left of what was sent. Later messages must not reuse its numbers."""

    @pytest.fixture
    def emptied(self, store: Store) -> Store:
        send_ten(store)
        hold_all(store, [b"a"], 1_000)
        abort(store, b"a", 5)
        store.commit()
        assert expire(store, 100) == 11
        return store

    def test_offsets_go_on(self, emptied: Store, reopen: Callable[[], Store]) -> None:
        store = emptied
        for _ in range(2):
            queue = store.queue(TOPIC, 0)
            assert (queue.first, queue.visible, queue.next) == (10, 10, 10)
            assert store.read(queue, 0, 9, 1 << 20).messages == []
            assert store.offset_at(queue, 0) == 10
            store = reopen()
        assert send(store, Sample(b"next")) == 10
        store.commit()
        assert ids_in(reopen()) == [b"next"]

    def test_sequences_go_on(self, emptied: Store, reopen: Callable[[], Store]) -> None:
        sequence = emptied.next_sequence
        assert sequence > 11
        assert reopen().next_sequence == sequence

    def test_again_and_again(self, emptied: Store, reopen: Callable[[], Store]) -> None:
        store = emptied
        sequence = store.next_sequence
        for number in range(3):
            assert send(store, Sample(b"x"), stored_ms=200) == 10 + number
            store.commit()
            assert expire(store, 201) == 1
            store = reopen()
        assert store.next_sequence == sequence + 3
        queue = store.queue(TOPIC, 0)
        assert (queue.first, queue.next) == (13, 13)

    def test_the_newest_alone_gone_keeps_the_sequence(
        self, store: Store, reopen: Callable[[], Store]
    ) -> None:
        hold_all(store, [b"old"], FOREVER_MS)
        send(store, Sample(b"new"), stored_ms=1)
        store.commit()
        sequence = store.next_sequence
        assert expire(store, 2) == 1
        assert reopen().next_sequence == sequence


class TestManyQueues:
    """A step looks at a bounded number of queues."""

    QUEUES = 2 * QUEUES_AT_ONCE + 1

    def steps(self, store: Store, before_ms: int, limit: int) -> list[int]:
        """Let what is older expire in as many steps as needed, and return how many messages each step took."""
        counts = []
        begin: bytes | None = b""
        while begin is not None:
            messages, begin = expire_messages(store, before_ms, limit, lambda _: False, begin=begin)
            store.commit()
            counts.append(messages)
        return counts

    def removals(self, store: Store, limit: int) -> list[int]:
        """Remove what has expired in as many steps as needed, and return how many messages each step removed."""
        counts = []
        begin: bytes | None = b""
        while begin is not None:
            messages, begin = remove_expired(store, FOREVER_MS, limit, begin)
            store.commit()
            counts.append(messages)
        return counts

    def test_are_looked_at_in_steps(self, store: Store) -> None:
        for number in range(self.QUEUES):
            send(store, Sample(b"%d" % number, TOPIC, number), stored_ms=number)
        store.commit()
        assert self.steps(store, 0, 9_999) == [0, 0, 0]
        last_ms = self.QUEUES - 1
        assert self.steps(store, last_ms, 9_999) == [QUEUES_AT_ONCE, QUEUES_AT_ONCE, 0]
        assert ids_in(store, TOPIC, self.QUEUES - 1) == [b"%d" % last_ms]

    def test_with_many_keys_are_removed_in_more_steps(self, store: Store) -> None:
        """Without this, a topic's deletion, and each step of a clean-up, took 3 s if messages had thousands of keys."""
        keys = tuple(numbered(KEYS_PER_MESSAGE, prefix=b"k"))
        for queue in range(2):
            for number in range(6):
                send(store, Sample(b"%d" % number, TOPIC, queue, keys * 2), stored_ms=number)
        hold_all(store, [b"a", b"b", b"c"], 1_000)
        for message_id in (b"a", b"b", b"c"):
            abort(store, message_id, 1)
        store.commit()
        assert self.steps(store, 4, 99) == [11]
        assert self.removals(store, 3) == [2, 2, 2, 2, 3]
        assert ids_in(store, TOPIC, 0) == ids_in(store, TOPIC, 1) == [b"4", b"5"]
        assert expire_topic(store, TOPIC, 3) == (3, TOPIC + b"\0")
        assert expire_topic(store, TOPIC, 3) == (1, None)
        assert emptied_queues(store, TOPIC) == {0: 6, 1: 6}

    def test_that_are_large_are_removed_in_more_steps(self, store: Store) -> None:
        """Without this, a step of 200 messages of 4 MiB read 800 MiB."""
        for number in range(3):
            send(store, Sample(b"%d" % number, body=bytes(BYTES_AT_ONCE // 2)), stored_ms=number)
            hold(store, Sample(b"a%d" % number, body=bytes(BYTES_AT_ONCE // 2)), 1_000)
            abort(store, b"a%d" % number, 1)
        store.commit()
        assert self.steps(store, 4, 99) == [6]
        assert self.removals(store, 99) == [2, 2, 2]
        assert ids_in(store) == []

    def test_a_step_that_finds_nothing_opens_no_batch(self, store: Store) -> None:
        send_ten(store)
        hold(store, Sample(b"a"), 1_000)
        abort(store, b"a", 5)
        store.commit()
        assert clean_up(store, 0, 99, lambda _: False) == (0, None)
        assert not store.has_changes

    def test_steps_end_with_what_was_aborted(self, store: Store) -> None:
        send_ten(store)
        send_ten(store, b"other")
        hold_all(store, [b"a", b"b", b"c"], 1_000)
        for message_id in (b"a", b"b", b"c"):
            abort(store, message_id, 1)
        store.commit()
        assert self.steps(store, 5, 4) == [4, 4, 4, 1]
        assert self.steps(store, 5, 4) == [0]


class TestInABatch:
    def test_readers_see_it_at_once(self, store: Store) -> None:
        """The rows are gone for all readers, so the queue's first offset must change at once."""
        ids = send_ten(store)
        assert clean_up(store, 5, 99, lambda topic: False).messages == 5
        assert store.queue(TOPIC, 0).first == 5
        assert ids_in(store) == ids[5:]
        store.commit()
        assert store.queue(TOPIC, 0).first == 5
        assert ids_in(store) == ids[5:]

    def test_abandoning_brings_everything_back(self, store: Store) -> None:
        ids = send_ten(store)
        hold_all(store, [b"a"], 1_000)
        abort(store, b"a", 1)
        store.commit()
        assert clean_up(store, 5, 99, lambda topic: False).messages == 6
        store.abandon()
        assert store.queue(TOPIC, 0).first == 0
        assert ids_in(store) == ids
        assert states(store, b"a") == ["aborted"]
        assert expire(store, 5) == 6

    def test_two_steps_and_sends_and_firing_in_one_batch(self, store: Store) -> None:
        ids = send_ten(store)
        hold_all(store, [b"fired"], 20)
        clean_up(store, 9, 4, lambda topic: False)
        send(store, Sample(b"sent"), stored_ms=20)
        fire_due(store, 20, 20, 9)
        clean_up(store, 9, 4, lambda topic: False)
        store.commit()
        assert ids_in(store) == [*ids[8:], b"sent", b"fired"]
        assert store.held_totals() == {}

    def test_what_the_same_batch_sent_to_a_deleted_topic(self, store: Store) -> None:
        send(store, Sample(b"a"), 5)
        hold(store, Sample(b"b"), 5)
        fire_due(store, 5, 5, 9)
        send(store, Sample(b"c", queue=1), 5)
        assert clean_up(store, 0, 9, lambda topic: True).messages == 3
        store.commit()
        queue = store.queue(TOPIC, 0)
        assert (queue.first, queue.visible, queue.next) == (2, 2, 2)
        assert ids_in(store) == ids_in(store, queue=1) == []


def test_messages_may_be_kept_for_longer_than_there_has_been_time(store: Store) -> None:
    ids = send_ten(store)
    hold_all(store, [b"a"], 1_000)
    abort(store, b"a", 1)
    store.commit()
    assert expire(store, -5_000) == 0
    assert ids_in(store) == ids
    assert states(store, b"a") == ["aborted"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (queue_prefix(b"a", 0) + bytes(8), b"short"),
        (b"\1", b""),
        (b"\0" * 3, b""),
        (b"a\xff\0" + bytes(12), b"short"),
    ],
)
def test_a_damaged_row_keeps_only_its_own_queue(folder: Folder, key: bytes, value: bytes) -> None:
    store = folder.open()
    for topic in (b"a", b"b"):
        send(store, Sample(b"1", topic), 10)
        send(store, Sample(b"2", topic), 10)
    store.commit()
    folder.close()
    whole: list[bytes | None] = []

    def damage(txn: lmdb.Transaction, queues: lmdb._Database) -> None:
        whole.append(txn.get(key, db=queues))
        txn.put(key, value, db=queues)

    def mend(txn: lmdb.Transaction, queues: lmdb._Database) -> None:
        if whole[0] is None:
            txn.delete(key, db=queues)
        else:
            txn.put(key, whole[0], db=queues)

    change_table(folder.path, "queues", damage)
    store = folder.open()
    assert clean_up(store, 20, 100, lambda topic: False) == (2 if whole[0] else 4, None)
    store.commit()
    assert ids_in(store, b"b") == []
    folder.close()
    change_table(folder.path, "queues", mend)


@pytest.mark.parametrize("size", [3, 8, 15, 17])
def test_a_damaged_row_of_an_abort_goes(folder: Folder, size: int) -> None:
    """Without this, each clean-up ended at it: nothing at all was removed any more."""
    store = folder.open()
    hold(store, Sample(b"a"), 1_000, 10)
    store.commit()
    abort(store, b"a", 10)
    store.commit()
    folder.close()
    change_table(folder.path, "aborted", lambda txn, aborted: txn.put(bytes(size), b"", db=aborted))
    store = folder.open()
    assert expire(store, 20) == 2
    assert states(store, b"a") == []


def test_what_was_aborted_and_has_no_row_in_ids_stays_for_a_repair(folder: Folder) -> None:
    store = folder.open()
    number = pack_u64(hold(store, Sample(b"a"), 1_000, 10))
    hold(store, Sample(b"b"), 1_000, 10)
    store.commit()
    for message_id in (b"a", b"b"):
        abort(store, message_id, 10)
    store.commit()
    store = folder.damage("ids", id_key(b"a", number), None)
    assert expire(store, 20) == 2
    assert (store.record(number) is None, states(store, b"b")) == (False, [])
    folder.damage("ids", id_key(b"a", number), IdRow(1_000, 10).pack())


@pytest.mark.parametrize("table", ["queues", "aborted"])
def test_a_row_that_names_another_message_has_it_stay(folder: Folder, table: str) -> None:
    """One bit of the row's sequence has changed, and the message that it names now is pending."""
    store = folder.open()
    wrong = hold(store, Sample(b"held"), 1_000, 10)
    if table == "queues":
        send(store, Sample(b"sent", keys=(b"k",)), 10)
    else:
        hold(store, Sample(b"aborted"), 1_000, 10)
        store.commit()
        abort(store, b"aborted", 10)
    store.commit()
    folder.close()
    sound: list[tuple[bytes, bytes]] = []

    def damage(txn: lmdb.Transaction, database: lmdb._Database) -> None:
        ((key, value),) = list(txn.cursor(db=database))
        sound.append((key, value))
        txn.delete(key, db=database)
        if table == "queues":
            txn.put(key, pack_u64(wrong) + value[8:], db=database)
        else:
            txn.put(key[:8] + pack_u64(wrong), value, db=database)

    change_table(folder.path, table, damage)
    store = folder.open()
    expire_messages(store, 20, 100, lambda topic: False)
    remove_expired(store, 20, 100)
    store.commit()
    assert store.record(pack_u64(wrong)) is not None
    folder.close()

    def mend(txn: lmdb.Transaction, database: lmdb._Database) -> None:
        txn.put(*sound[0], db=database)

    change_table(folder.path, table, mend)
    change_table(folder.path, "expired", lambda txn, expired: txn.drop(expired, delete=False))
    if table == "queues":
        change_table(folder.path, "ends", lambda txn, ends: txn.drop(ends, delete=False))


class TestExpired:
    """Messages that have expired, and are still to be removed."""

    @pytest.fixture
    def expired(self, store: Store) -> Store:
        """Two messages that have expired, one of them aborted, between two that have not, all with the key `k`."""
        hold(store, Sample(b"pending", keys=(b"k",)), 1_000)
        hold(store, Sample(b"fired", keys=(b"k",)), 5)
        hold(store, Sample(b"aborted", keys=(b"k",)), 1_000)
        hold(store, Sample(b"kept", keys=(b"k",)), 20)
        store.commit()
        assert fire(store, 5) == 1
        abort(store, b"aborted", 5)
        store.commit()
        assert fire(store, 20) == 1
        assert expire_messages(store, 10, 99, lambda _: False).messages == 2
        store.commit()
        return store

    def numbers(self, store: Store) -> list[int]:
        rows = store.reader().cursor(db=store.tables.messages).iternext(values=False)
        return [int.from_bytes(number) for number in rows]

    def test_are_found_nowhere(self, expired: Store) -> None:
        assert self.numbers(expired) == [1, 2, 3, 4]
        assert [states(expired, one) for one in (b"fired", b"aborted")] == [[], []]
        assert [one.sequence for one in find_by_key(expired, [TOPIC], b"k", 9)] == [4, 1]
        assert find_by_sequence(expired, 2) is None
        assert abort(expired, b"fired", 30) == abort(expired, b"nobody", 30)

    def test_do_not_fire_again_after_a_crash(
        self, expired: Store, reopen: Callable[[], Store]
    ) -> None:
        store = reopen()
        assert pending_ids(store) == [b"pending"]
        assert fire(store, 900) == 0

    def test_are_removed_with_all_about_them(self, expired: Store) -> None:
        assert remove_expired(expired, 20, 99) == (2, None)
        expired.commit()
        assert self.numbers(expired) == [1, 4]
        assert expired_bounds(expired) is None
        assert remove_expired(expired, 20, 99) == (0, None)

    def test_are_removed_in_the_order_of_acceptance(self, store: Store) -> None:
        count = 600
        for number in range(count):
            hold(store, Sample(b"%d" % number), 1 + 7 * number % count)
        store.commit()
        for now_ms in range(1, count + 1):
            fire(store, now_ms)
        assert expire_messages(store, 1 + count // 2, 999, lambda _: False).messages == 300
        store.commit()
        expected = [number + 1 for number in range(count) if 7 * number % count < 300]
        first, last = expired_bounds(store) or (b"", b"")
        assert int.from_bytes(first) == expected[0]
        assert int.from_bytes(last) >= expected[-1]
        gone: list[int] = []
        begin: bytes | None = first
        while begin is not None:
            before = set(self.numbers(store))
            begin = remove_expired(store, count, 70, begin, last).behind
            store.commit()
            gone += sorted(before - set(self.numbers(store)))
        assert gone == expected

    def test_are_left_where_a_round_ends(self, expired: Store) -> None:
        assert remove_expired(expired, 20, 99, last=pack_u64(2)) == (1, None)
        assert self.numbers(expired) == [1, 3, 4]

    def test_abandoning_brings_them_back(self, expired: Store) -> None:
        remove_expired(expired, 20, 99)
        expired.abandon()
        assert self.numbers(expired) == [1, 2, 3, 4]
        assert remove_expired(expired, 20, 99).messages == 2

    @pytest.mark.parametrize("wrong", [1, 4, 9])
    def test_a_damaged_note_removes_nothing_else(self, folder: Folder, wrong: int) -> None:
        """It names a pending message, one in its queue, or none."""
        store = folder.open()
        hold(store, Sample(b"pending"), 1_000)
        for number in range(3):
            send(store, Sample(b"%d" % number), stored_ms=10 * number)
        store.commit()
        assert expire_messages(store, 5, 99, lambda _: False).messages == 1
        store.commit()
        store = folder.damage("expired", bytes(7), (4 | 1 << wrong).to_bytes(32))
        assert remove_expired(store, 20, 99).messages == 1
        store.commit()
        assert self.numbers(store) == [1, 3, 4]
        # What may have left its queue stays noted until its time has come.
        assert remove_expired(store, 20, 99).messages == 0
        expire_messages(store, 30, 99, lambda _: False)
        assert remove_expired(store, 30, 99).messages == 2
        store.commit()
        assert (self.numbers(store), pending_ids(store)) == ([1], [b"pending"])
