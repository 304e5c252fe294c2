"""Timers of recently accepted messages: kept in memory, found again after a crash, moved to the table in time."""

from __future__ import annotations

import random

import pytest

from storage import (
    StorageError,
    StorageFullError,
    Store,
    abort,
    compact,
    find_faults,
    fire_crowded_out,
    fire_due,
    inbox,
)
from storage.inbox import MOVED_AT_ONCE
from storage.keys import (
    INBOX_COPY,
    MARK,
    NEXT_SEQUENCE,
    IdRow,
    id_key,
    pack_u64,
    timer_key,
    timer_topic,
)
from tests.storage.faults import commits_fail
from tests.storage.folder import Folder, change_table
from tests.storage.sample import (
    FOREVER_MS,
    TOPIC,
    Sample,
    fire,
    hold,
    hold_all,
    ids_in,
    numbered,
    pending_ids,
    send,
    states,
)


def in_table(store: Store) -> int:
    """Count the rows of `timers`."""
    txn = store.settled_reader()
    return int(txn.stat(store.tables.timers)["entries"])


def test_a_timer_that_fires_soon_never_enters_the_table(folder: Folder) -> None:
    store = folder.open()
    hold(store, Sample(b"a"), 1_000)
    store.commit()
    assert in_table(store) == 0
    assert store.next_due() == 1_000
    assert pending_ids(store) == [b"a"]
    assert fire(store, 1_000) == 1
    assert in_table(store) == 0
    assert ids_in(store) == [b"a"]
    folder.check()


def test_what_there_is_no_room_for_moves_on_in_steps_the_latest_first(folder: Folder) -> None:
    count = 3 * MOVED_AT_ONCE
    store = folder.open(inbox_size=count)
    dues = list(range(1, count + 1))
    random.Random(1).shuffle(dues)
    for due_ms in dues:
        hold(store, Sample(b"%d" % due_ms), due_ms)
        store.commit()
    for step in range(1, 4):
        for number in range(MOVED_AT_ONCE):
            assert in_table(store) == (step - 1) * MOVED_AT_ONCE
            dues.append(number % 10 * count + step)
            hold(store, Sample(b"%d" % dues[-1]), dues[-1])
            store.commit()
        assert in_table(store) == step * MOVED_AT_ONCE
        assert len(store.inbox) == count
        in_memory = {int.from_bytes(key[:8]) for key, _ in store.inbox.rows()}
        assert in_memory.issuperset(range(1, (3 - step) * MOVED_AT_ONCE + 1))
        assert find_faults(store) == []
    assert [int(one) for one in pending_ids(store)] == sorted(dues)
    assert fire(store, FOREVER_MS) == 2 * count
    assert [int(one) for one in ids_in(store)] == sorted(dues)
    folder.check()


@pytest.mark.parametrize("is_refused", ["accepted", "fired"])
def test_refused_batches_leave_nothing_that_delays_the_move(
    folder: Folder, is_refused: str
) -> None:
    size = 20
    store = folder.open(inbox_size=size)
    for message_id in numbered(30):
        hold(store, Sample(message_id), 1_000)
        store.commit()
    with commits_fail(store):
        for number in range(100):
            if is_refused == "fired":
                fire_due(store, 1_000, 1_000, 10)
            else:
                for message_id in numbered(30):
                    hold(store, Sample(message_id), 5_000 + number)
            with pytest.raises(StorageError):
                store.commit()
    for number in range(10 * size):
        hold(store, Sample(b"more %d" % number), 500)
        store.commit()
        assert len(store.inbox) <= 2 * size
    assert fire(store, 5_000) == 30 + 10 * size
    folder.check()


def test_where_there_is_room_only_those_move_on_that_wait_long(folder: Folder) -> None:
    """As many messages fire as arrive. Those that fire soon never enter the table, and the mark still advances."""
    size = 4 * MOVED_AT_ONCE
    store = folder.open(inbox_size=size)
    hold(store, Sample(b"late"), FOREVER_MS - 1)
    for now_ms in range(8 * size):
        hold(store, Sample(b"%d" % now_ms), now_ms + 100)
        fire(store, now_ms)
        store.commit()
        assert len(store.inbox) <= 102
    assert in_table(store) == 1
    txn = store.settled_reader()
    mark = int.from_bytes(txn.get(MARK, db=store.tables.meta) or b"")
    assert store.next_sequence - mark < 3 * size
    folder.check()


def test_many_of_one_span_move_on_in_their_order(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The earliest timers are mixed among the others, and some have fired or were aborted meanwhile."""
    monkeypatch.setattr(inbox, "_MANY", 10)
    monkeypatch.setattr(inbox, "MOVED_AT_ONCE", 7)
    count = 400
    store = folder.open(inbox_size=count)
    chance = random.Random(3)
    dues = [*chance.sample(range(60_000, 75_000), count - 1), 200_000]
    for due_ms in dues:
        hold(store, Sample(b"%d" % due_ms), due_ms)
    store.commit()
    pending = sorted(dues)
    now_ms = 60_000
    while pending:
        if aborted := chance.choice([0, 0, chance.choice(pending)]):
            abort(store, b"%d" % aborted, 1)
            pending.remove(aborted)
        now_ms += 150
        fire(store, now_ms)
        pending = [due_ms for due_ms in pending if due_ms > now_ms]
        assert [int(one) for one in pending_ids(store)] == pending
        waits = [int.from_bytes(key[:8]) for key, _ in store.inbox.rows()]
        moved = sorted(set(pending) - set(waits))
        assert not moved or not waits or max(waits) < moved[0]
        assert store.next_due() == (pending[0] if pending else None)
        now_ms = 200_000 if pending == [200_000] else now_ms
    folder.check()


@pytest.mark.parametrize("seed", range(5))
def test_the_first_timers_are_known_whatever_comes_and_goes(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spans are begun, divided, left before they are done, and moved from both ends."""
    monkeypatch.setattr(inbox, "_MANY", 8)
    monkeypatch.setattr(inbox, "_FEW", 4)
    monkeypatch.setattr(inbox, "MOVED_AT_ONCE", 7)
    chance = random.Random(seed)
    timers = inbox.Inbox(60, [])
    topics = [b"a", b"b"]
    stored: dict[bytes, bytes] = {}
    now_ms = 1_000_000
    for sequence in range(1, 3_000):
        now = dict(stored)
        for _ in range(chance.choice([0, 1, 1, 2])):
            due_ms = now_ms + chance.choice([50, 3_000, 100_000, 10_000_000]) * chance.randrange(9)
            key = timer_key(due_ms, chance.choice(topics), sequence, b"%d" % chance.randrange(99))
            timers.add(key, b"value")
            now[key] = b"value"
        until, most = pack_u64(now_ms + chance.choice([-300, 0, 50, 10**9])), chance.randrange(4)
        fired = timers.take_before(until, most)
        assert fired == sorted(row for row in now.items() if row[0] < until)[:most]
        for key, _ in fired:
            del now[key]
        gone = [timers.first()] * chance.randrange(2) + chance.sample(sorted(now), len(now) // 40)
        for key in filter(None, gone):
            assert (timers.take(key) is None) == (now.pop(key, None) is None)
        if chance.random() < 0.1:
            timers.abandon()
        else:
            if timers.is_ripe:
                timers.ripen()
            moved = [key for key, _ in timers.take_latest()]
            assert moved == sorted(moved)
            stored = {key: value for key, value in now.items() if key not in moved}
            timers.commit(2)
        assert len(timers) < 70
        assert sorted(timers.rows()) == sorted(stored.items())
        assert timers.first() == min(stored, default=b"")
        bound = pack_u64(now_ms + 1_000)
        due = {timer_topic(key) for key in stored if key < bound}
        assert timers.topics_before(bound, b"", 2) == due
        for topic in topics:
            of_topic = (key for key in stored if timer_topic(key) == topic)
            assert timers.first_of(topic) == min(of_topic, default=b"")
        now_ms += chance.choice([0, 20, 400])


def test_those_that_move_next_still_do_once_one_of_them_is_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inbox, "MOVED_AT_ONCE", 1)
    timers = inbox.Inbox(4, [])
    keys = [timer_key(1_000 + number, b"topic", number, b"id") for number in range(8)]
    for key in keys[:4]:
        timers.add(key, b"value")
    timers.commit(4)
    timers.ripen()
    moved: list[bytes] = []
    for key in keys[4:]:
        timers.add(key, b"value")
        moved += [one for one, _ in timers.take_latest()]
        timers.commit(0)
        assert timers.first() == min(set(keys[: keys.index(key) + 1]) - set(moved))
    assert moved == keys[3::-1]


def test_large_batches_do_not_fill_the_inbox(folder: Folder) -> None:
    store = folder.open(inbox_size=MOVED_AT_ONCE)
    due_ms = 0
    for _ in range(5):
        for _ in range(3 * MOVED_AT_ONCE):
            due_ms += 1
            hold(store, Sample(b"%d" % due_ms), due_ms)
        store.commit()
        assert len(store.inbox) <= 3 * MOVED_AT_ONCE
    assert fire(store, FOREVER_MS) == due_ms
    folder.check()


def test_topics_fire_in_order_while_their_timers_move_on(folder: Folder) -> None:
    store = folder.open(inbox_size=60)
    chance = random.Random(2)
    topics = [b"a", b"b", b"c"]
    hours_ms = 3 * 3_600_000
    now_ms = 0
    waiting: dict[bytes, int] = {}
    fired: list[bytes] = []
    for number in range(1, 600):
        message_id = b"%d" % number
        waiting[message_id] = now_ms + chance.randrange(1, hours_ms)
        hold(store, Sample(message_id, chance.choice(topics)), waiting[message_id])
        if number % 7 == 0:
            gone = chance.choice(list(waiting))
            assert abort(store, gone, 1)
            del waiting[gone]
        if number % 11 == 0:
            store.commit()
            # What an abandoned batch added or took does not move on with the others.
            hold(store, Sample(b"refused"), now_ms + chance.randrange(1, hours_ms))
            fire_due(store, FOREVER_MS, now_ms, 5)
            store.abandon()
        if number % 13 == 0:
            store.commit()
            now_ms = sorted(waiting.values())[4]
            due = [one for one, due_ms in waiting.items() if due_ms <= now_ms]
            assert store.next_due() == min(waiting.values())
            assert fire(store, now_ms) == len(due)
            fired += due
            for one in due:
                del waiting[one]
    assert in_table(store) > 0
    assert fire(store, FOREVER_MS) == len(waiting)
    arrived = [message_id for topic in topics for message_id in ids_in(store, topic)]
    assert sorted(arrived) == sorted([*fired, *waiting])
    folder.check()


def test_timers_of_both_places_fire_in_one_order(folder: Folder) -> None:
    store = folder.open(inbox_size=0)
    for due_ms in (2, 4, 6):
        hold(store, Sample(b"%d" % due_ms), due_ms)
    store.commit()
    store = folder.open(inbox_size=100)
    for due_ms in (1, 3, 5, 7):
        hold(store, Sample(b"%d" % due_ms), due_ms)
    store.commit()
    assert in_table(store) == 3
    assert fire(store, 5, limit=2) == 2
    assert fire(store, 5) == 3
    assert ids_in(store) == [b"1", b"2", b"3", b"4", b"5"]
    assert pending_ids(store) == [b"6", b"7"]
    folder.check()


@pytest.mark.parametrize("moves_on", [False, True])
def test_a_crowded_out_topic_has_its_turn_from_the_inbox(folder: Folder, moves_on: bool) -> None:
    store = folder.open(inbox_size=0)
    for number in range(10):
        hold(store, Sample(b"storm %d" % number), 1_000)
    store.commit()
    store = folder.open()
    hold(store, Sample(b"other", b"theirs"), 1_001)
    hold(store, Sample(b"later", b"theirs"), 1_003)
    store.commit()
    if moves_on:
        store.inbox.ripen()
    assert fire_crowded_out(store, 1_002, 1_002, 5).messages == 1
    store.commit()
    assert ids_in(store, b"theirs") == [b"other"]
    folder.check()


def test_a_crash_takes_no_timer_and_brings_none_back(folder: Folder) -> None:
    store = folder.open(inbox_size=20)
    for number in range(50):
        hold(
            store,
            Sample(b"%d" % number, tag_hash=number),
            1_000 + number,
            stored_ms=number,
        )
        send(store, Sample(b"now"), stored_ms=number)
        store.commit()
    abort(store, b"30", 100)
    fire(store, 1_009)
    hold(store, Sample(b"lost"), 1_500)
    store = folder.reopen_after_crash(inbox_size=20)
    expected = [b"%d" % number for number in range(10, 50) if number != 30]
    assert pending_ids(store) == expected
    assert store.held_totals() == {TOPIC: 39}
    assert find_faults(store) == []
    assert fire(store, FOREVER_MS) == 39
    folder.check()


@pytest.mark.parametrize("topic", [None, TOPIC])
def test_what_an_open_batch_takes_and_adds_is_read_as_before_it(
    store: Store, topic: bytes | None
) -> None:
    hold(store, Sample(b"a"), 1_000)
    hold(store, Sample(b"other", b"others"), 1_000)
    store.commit()
    fire_due(store, 1_000, 1_000, 10)
    hold(store, Sample(b"b"), 2_000)
    before = [b"a", b"other"] if topic is None else [b"a"]
    assert pending_ids(store, topic=topic) == before
    assert (states(store, b"a"), states(store, b"b")) == (["pending"], [])
    assert store.has_changes
    store.commit()
    assert pending_ids(store, topic=topic) == [b"b"]
    assert (states(store, b"a"), states(store, b"b")) == (["fired"], ["pending"])


def test_an_abandoned_batch_leaves_the_inbox_as_it_was(folder: Folder) -> None:
    store = folder.open(inbox_size=2)
    for number in range(6):
        hold(store, Sample(b"%d" % number), 1_000 + number)
    store.commit()
    before = pending_ids(store)
    hold(store, Sample(b"new"), 900)
    abort(store, b"3", 5)
    fire_due(store, 1_001, 1_001, 10)
    store.abandon()
    assert pending_ids(store) == before
    assert store.next_due() == 1_000
    assert fire(store, 1_002) == 3
    folder.check()


def test_the_mark_moves_on_when_nothing_is_timed(folder: Folder) -> None:
    store = folder.open(inbox_size=2)
    for _ in range(20):
        send(store, Sample(b"now"))
        store.commit()
    txn = store.settled_reader()
    assert int.from_bytes(txn.get(MARK, db=store.tables.meta) or b"") > 8
    folder.check()


def test_a_clean_stop_leaves_what_the_next_start_needs(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = folder.open(inbox_size=20)
    for number in range(50):
        hold(store, Sample(b"%d" % number), 1_000 + number)
        store.commit()
    abort(store, b"30", 100)
    store.commit()
    before = sorted(store.inbox.rows())
    with monkeypatch.context() as without:
        without.setattr("storage.store.recover", lambda *_: iter(()))
        for _ in range(2):
            store = folder.open(inbox_size=20)
            assert sorted(store.inbox.rows()) == before != []
        assert store.held_totals() == {TOPIC: 49}
    folder.check()


def test_what_a_stop_left_counts_for_nothing_after_the_next_commit(folder: Folder) -> None:
    store = folder.open()
    hold(store, Sample(b"a"), 1_000)
    hold(store, Sample(b"b"), 2_000)
    store.commit()
    store = folder.open()
    assert fire(store, 1_000) == 1
    store = folder.reopen_after_crash()
    assert pending_ids(store) == [b"b"]
    folder.check()


def test_a_stop_without_room_for_it_is_a_stop(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = folder.open()
    hold(store, Sample(b"a"), 1_000)
    store.commit()
    with monkeypatch.context() as full:

        def fail(*_: object) -> None:
            raise StorageFullError("no room")

        full.setattr(store.environment, "make_room", fail)
        folder.close()
    assert pending_ids(folder.open()) == [b"a"]
    folder.check()


def test_what_a_stop_left_is_old_in_a_compacted_file_that_counts_to_its_transaction(
    folder: Folder,
) -> None:
    store = folder.open()
    for number in range(5):
        hold(store, Sample(b"%d" % number), 1_000)
        store.commit()
        store.checkpoint()
    folder.close()
    compact(folder.path)
    store = folder.open()
    with store.environment.view() as txn:
        left = txn.get(INBOX_COPY, db=store.tables.meta) or b""
        assert txn.id() < int.from_bytes(left[:8])

    fire(store, 1_000)
    while store.environment.lmdb.info()["last_txnid"] < int.from_bytes(left[:8]):
        send(store, Sample(b"now"), 1_000)
        store.commit()
        store.checkpoint()

    store = folder.open()
    assert pending_ids(store) == []
    folder.check()


@pytest.mark.parametrize("mark", [b"\xff" * 8, pack_u64(4), b"short"])
def test_a_mark_that_cannot_be_right_keeps_nothing_from_firing(folder: Folder, mark: bytes) -> None:
    """Messages accepted before the mark was damaged fire, and so do later ones. The operator gets a report."""
    store = folder.open()
    hold_all(store, [b"a", b"b"], 1_000)
    store.checkpoint()
    store = folder.damage("meta", MARK, mark)
    assert pending_ids(store) == [b"a", b"b"]
    assert store.damaged == {MARK}
    hold_all(store, [b"c"], 1_000)
    assert store.damaged == {MARK}, "it counts what was met, mended or not"
    store.checkpoint()
    store = folder.reopen_after_crash()
    assert store.damaged == set()
    assert fire(store, 1_000) == 3


@pytest.mark.parametrize("value", [None, b"short"])
def test_a_message_whose_row_in_ids_cannot_be_read_is_told(
    folder: Folder, value: bytes | None
) -> None:
    """Nothing else says for sure when it is due, so only a repair lets it fire. The others fire."""
    hold_all(folder.open(), [b"a", b"b", b"c"], 1_000)
    key = id_key(b"b", pack_u64(2))
    store = folder.damage("ids", key, value)
    assert store.damaged == {pack_u64(2)}
    assert fire(store, 1_000) == 2
    assert ids_in(store) == [b"a", b"c"]
    folder.damage("ids", key, IdRow(1_000).pack())


@pytest.mark.parametrize("is_key", [False, True])
@pytest.mark.parametrize("others", [[], [b"b", b"c"]])
def test_what_fired_does_not_fire_again_although_its_row_cannot_be_read(
    folder: Folder, others: list[bytes], *, is_key: bool
) -> None:
    """The row in its queue, which is the last one or has others behind it."""
    store = folder.open()
    hold_all(store, [b"a", *others], 1_000)
    fire(store, 1_000)
    key, value = next(iter(store.settled_reader().cursor(db=store.tables.queues)))
    damaged = (key + b"x", value) if is_key else (key, value[:8] + bytes(8))
    folder.damage("queues", key, None)
    store = folder.damage("queues", *damaged)
    assert pending_ids(store) == []
    folder.damage("queues", damaged[0], None)
    folder.damage("queues", key, value)


def test_a_message_that_cannot_be_read_but_has_fired_keeps_nothing_from_firing(
    folder: Folder,
) -> None:
    """So a start does not tell of it."""
    store = folder.open()
    hold_all(store, [b"a"], 1_000)
    fire(store, 1_000)
    hold_all(store, [b"b"], 2_000)
    number = pack_u64(1)
    whole = store.settled_reader().get(number, db=store.tables.messages)
    store = folder.damage("messages", number, b"broken")
    assert store.damaged == set()
    assert pending_ids(store) == [b"b"]
    folder.damage("messages", number, whole)


@pytest.mark.parametrize("noted", [b"\xff" * 8, b"\xff" * 9, b"no"])
def test_a_next_number_that_can_be_none_is_not_used(folder: Folder, noted: bytes) -> None:
    store = folder.open()
    hold_all(store, [b"a"], 1_000)
    store = folder.damage("meta", NEXT_SEQUENCE, noted)
    assert store.damaged == {NEXT_SEQUENCE}
    assert hold_all(store, [b"b"], 1_000) == [2]
    folder.damage("meta", NEXT_SEQUENCE, None)


@pytest.mark.parametrize("left", [b"\0", b"\0\x05short", b"\0\x09orders\0xx" + bytes(12)])
def test_timers_that_the_last_stop_left_and_cannot_be_read_are_found_again(
    folder: Folder, left: bytes
) -> None:
    store = folder.open()
    hold_all(store, [b"a", b"b"], 1_000)
    folder.close()
    change_table(
        folder.path,
        "meta",
        lambda txn, db: txn.put(INBOX_COPY, pack_u64(txn.id()) + left, db=db),
    )
    assert pending_ids(folder.open()) == [b"a", b"b"]
