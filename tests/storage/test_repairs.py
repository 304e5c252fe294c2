"""Repairs of damaged folders: no fault is left, what was pending is pending at its time, and nothing fires twice."""

from __future__ import annotations

import errno
import json
import mmap
import os
import random
from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest

from storage import (
    Findings,
    Inspection,
    Recurring,
    RestartNeededError,
    StorageError,
    Store,
    abort,
    back_up,
    expire_messages,
    find_faults,
    pause_topic,
    put_half,
    put_pops,
    put_recurring,
    remove_expired,
    replace_pending,
    reschedule,
)
from storage.durable import Durable
from storage.environment import Tables
from storage.inbox import INBOX_SIZE
from storage.keys import (
    INBOX_COPY,
    MARK,
    MAX_KEY,
    PART_KEY,
    PAUSE_VALUE,
    QUEUE_VALUE,
    RECURRENCE_VALUE,
    SUSPENDED,
    TIMER_VALUE,
    IdRow,
    debounce_key,
    id_key,
    pack_u64,
    planned_key,
    recurring_key,
    split_queue_key,
    split_timer_key,
)
from storage.pops import Pop
from storage.records import pack, unpack
from tests.storage.folder import Folder, change_table
from tests.storage.repairing import (
    DUE,
    HALF,
    MUCH,
    NOW_MS,
    READER,
    Held,
    held,
    later,
    now_held,
    rows_of,
)
from tests.storage.sample import (
    Sample,
    fire,
    hold,
    hold_all,
    ids_in,
    numbered,
    pending_ids,
    send,
    terms_of,
)

RECORDS = ("messages", "parts")
"""Tables whose rows nothing else repeats."""
SPARED = ("meta", "topics", "groups")
"""Tables whose rows only the caller can judge, and the one that marks LMDB's file as Tidegate's."""


def fill(store: Store) -> None:
    """Store messages in every state, in several queues, one of which retention shortened."""
    for number in range(12):
        send(store, Sample(b"old%d" % number, b"orders", number % 2, (b"all",)), 10 + number)
    store.commit()
    expire_messages(store, 15, 100, lambda topic: False)
    remove_expired(store, 15, 3)
    store.commit()
    for number in range(30):
        due_ms = 1_000 + 97 * number if number % 3 else 3_600_000 + 7_919 * number
        message = later(b"timed%d" % number, due_ms, (b"orders", b"mails")[number % 2], number % 4)
        hold(store, message, due_ms, 100 + number)
        if number % 5 == 0:
            store.commit()
    store.commit()
    for number in range(6):
        send(store, Sample(b"new%d" % number, b"mails", 1, (b"all", b"new")), 500 + number)
    send(store, Sample(b"large", b"mails", 1, body=MUCH), 506)
    hold(store, Sample(b"later", b"mails", 1, body=DUE + b"7000001 " + MUCH), 7_000_001, 507)
    store.commit()
    pause_topic(store, b"paused", 600)
    for number in range(4):
        due_ms = 900 + number
        hold(store, later(b"waits%d" % number, due_ms, b"paused"), due_ms, 600)
    for number in (0, 3):
        abort(store, b"timed%d" % number, 700)
    reschedule(store, b"timed6", lambda due_ms: 7_200_000, 800)
    store.commit()
    for now_ms in range(1_000, 4_500, 500):
        fire(store, now_ms)
    for number in range(2):
        sequence = store.new_sequence()
        record = Sample(b"half%d" % number, b"halves", body=HALF).record(4_500)
        put_half(store, sequence, record, 90_000 + number)
    store.commit()
    sequence = hold(store, later(b"debounced", 7_000_000), 7_000_000, 4_600)
    store.commit()
    replace_pending(store, b"orders", b"of debounced", sequence, 4_600)
    put_pops(store, [Pop(60_000, b"g", b"orders", 0, 3)], 4_700)
    put_recurring(store, Recurring(b"orders", b"nightly", 80_000, 3, False, b"at night"))
    put_recurring(store, Recurring(b"orders", b"asleep", 80_000, 3, True, b"never"))
    store.progress.note(b"g", b"orders", 0, 2)
    store.progress.include()
    store.put_topic(b"orders", b"{}")
    store.commit()


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[bytes, Held]]:
    """The file of a sound folder and what it holds: with all timers in the table, and with the last ones in memory."""
    made = {}
    for inbox_size in (0, INBOX_SIZE):
        folder = Folder(tmp_path_factory.mktemp("whole") / "data")
        store = folder.open(inbox_size=inbox_size)
        fill(store)
        assert find_faults(store) == []
        holds = held(store)
        folder.close()
        made[inbox_size] = (folder.path / "data.mdb").read_bytes(), holds
    return made


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[bytes], Path]:
    """A function that makes a data folder from a file."""
    count = iter(range(1_000_000))

    def make(file: bytes) -> Path:
        data = tmp_path / f"data{next(count)}"
        data.mkdir()
        (data / "data.mdb").write_bytes(file)
        return data

    return make


def delete(data: Path, table: str, *keys: bytes) -> None:
    def how(txn: lmdb.Transaction, database: lmdb._Database) -> None:
        assert all(txn.delete(key, db=database) for key in keys)

    change_table(data, table, how)


def put(data: Path, table: str, *rows: tuple[bytes, bytes]) -> None:
    change_table(data, table, lambda txn, database: txn.cursor(db=database).putmulti(rows))


def repair(data: Path) -> Findings:
    """Inspect the folder, repair it and open it. It must be sound, and every announced repair must have been made."""
    inspection = Inspection(data, READER, NOW_MS)
    try:
        found = inspection.find()
        done = inspection.repair(data / "repairs.jsonl")
        assert done == found._replace(faults=[])
        assert done.left == []
        assert inspection.find() == Findings([], [], 0, [])
    finally:
        inspection.close()
    return found


SIZES = pytest.mark.parametrize("inbox_size", [0, INBOX_SIZE], ids=["in table", "in memory"])
TABLES = [name for name in Tables._fields if name not in SPARED]
EACH = pytest.mark.parametrize("table", TABLES)
ROWS = 2
"""How many rows of each table are damaged, one after the other."""


@SIZES
def test_a_sound_folder_has_nothing_to_repair(
    wholes: dict[int, tuple[bytes, Held]], copy: Callable[[bytes], Path], inbox_size: int
) -> None:
    file, holds = wholes[inbox_size]
    data = copy(file)
    assert repair(data) == Findings([], [], 0, [])
    assert (data / "repairs.jsonl").read_text() == ""
    assert now_held(data) == holds
    # Without some messages in each state the tests below would prove little.
    assert len(holds.pending) > 10
    assert len(holds.aborted) == 2
    assert len({place[:2] for place in holds.queued}) == 5
    assert (len(holds.halves), len(holds.recurring)) == (2, 2)
    assert sorted(holds.cut.values()) == [b"large", b"later"]


@SIZES
@EACH
def test_a_row_that_is_lost_comes_back(
    wholes: dict[int, tuple[bytes, Held]],
    copy: Callable[[bytes], Path],
    inbox_size: int,
    table: str,
) -> None:
    """The exceptions are rows that nothing else repeats: a message itself, and a recurring message."""
    file, holds = wholes[inbox_size]
    rows = rows_of(copy(file), table)
    for key, value in random.Random(table).sample(rows, min(ROWS, len(rows))):
        data = copy(file)
        delete(data, table, key)
        repair(data)
        now = now_held(data)
        if table == "expired":
            # Nothing tells its messages from lost ones, and these are delivered rather than lost.
            again = {place: one for place, one in now.queued.items() if place not in holds.queued}
            assert sorted(again.values()) == [b"old3", b"old4"]
            now = now._replace(queued=holds.queued)
        assert now == left_without(holds, table, key, value), key


@SIZES
@EACH
def test_a_row_that_is_scrambled_is_put_right(
    wholes: dict[int, tuple[bytes, Held]],
    copy: Callable[[bytes], Path],
    inbox_size: int,
    table: str,
) -> None:
    """One byte of the row is changed. Everything pending stays so at its time, and nothing fires twice."""
    file, holds = wholes[inbox_size]
    rows = rows_of(copy(file), table)
    random_ = random.Random(table)
    for key, value in random_.sample(rows, min(ROWS, len(rows))):
        data = copy(file)
        scramble(data, table, key, value, random_)
        repair(data)
        now = now_held(data)
        if table in ("messages", "parts", "recurring", "recurrences", "planned"):
            # Nothing else contradicts what these rows say: a message, or a time.
            continue
        if table == "ids" and inbox_size == INBOX_SIZE:
            # Nothing tells a changed time there from a reschedule.
            now, expected = now._replace(pending={}), holds._replace(pending={})
            assert now == expected, key
            continue
        assert now == holds, key


@SIZES
def test_what_waits_in_a_paused_topic_has_its_place_put_right(
    wholes: dict[int, tuple[bytes, Held]], copy: Callable[[bytes], Path], inbox_size: int
) -> None:
    """The message would otherwise fire into another queue."""
    data = copy(wholes[inbox_size][0])
    rows = rows_of(data, "waiting")
    assert rows != []
    wrong = [(key, TIMER_VALUE.pack(3, 1, 1)) for key, _ in rows]
    put(data, "waiting", *wrong)
    assert rows_of(data, "waiting") == wrong
    repair(data)
    assert rows_of(data, "waiting") == rows


def test_ids_that_know_a_half_forget_it(
    wholes: dict[int, tuple[bytes, Held]], copy: Callable[[bytes], Path]
) -> None:
    """A look-up of its id would otherwise find a message that is not sent yet."""
    file, holds = wholes[0]
    data = copy(file)
    number, _ = rows_of(data, "halves")[0]
    row = id_key(b"half0", number), IdRow(0).pack()
    put(data, "ids", row)
    assert [fault for fault in repair(data).faults if fault.endswith("is in the ids")] != []
    assert now_held(data) == holds


def test_a_pop_of_what_is_not_in_its_queue_goes(
    wholes: dict[int, tuple[bytes, Held]], copy: Callable[[bytes], Path]
) -> None:
    data = copy(wholes[0][0])
    (sound,) = rows_of(data, "pops")
    row = sound[0][:-8] + pack_u64(99), sound[1]
    put(data, "pops", row)
    repair(data)
    assert rows_of(data, "pops") == [sound]


@pytest.mark.parametrize("put_off", [0, SUSPENDED])
def test_a_pop_was_made_before_its_message_comes_back(
    wholes: dict[int, tuple[bytes, Held]], copy: Callable[[bytes], Path], put_off: int
) -> None:
    data = copy(wholes[0][0])
    ((key, _),) = rows_of(data, "pops")
    put(data, "pops", (key, pack_u64(60_001 | put_off)))
    repair(data)
    assert rows_of(data, "pops") == [(key, pack_u64(60_000 | put_off))]


def test_a_topic_whose_pause_cannot_be_read_stays_paused(
    wholes: dict[int, tuple[bytes, Held]], copy: Callable[[bytes], Path]
) -> None:
    """This also holds while no message of the topic waits."""
    data = copy(wholes[0][0])
    put(data, "paused", (b"idle", b"short"))
    repair(data)
    (row,) = (value for key, value in rows_of(data, "paused") if key == b"idle")
    assert PAUSE_VALUE.unpack(row)[1:] == (0, False)


@pytest.mark.parametrize(
    ("planned_ms", "next_ms", "fired", "repaired"),
    [
        (80_000, 80_000, (1 << 64) - 1, (80_000, 0, False)),
        (80_000, (1 << 64) - 1, 3, (80_000, 0, False)),
        ((1 << 64) - 1, (1 << 64) - 1, 3, (NOW_MS, 0, True)),
    ],
)
def test_a_recurring_message_with_an_impossible_number_is_planned_anew_or_paused(
    wholes: dict[int, tuple[bytes, Held]],
    copy: Callable[[bytes], Path],
    planned_ms: int,
    next_ms: int,
    fired: int,
    repaired: tuple[int, int, bool],
) -> None:
    data = copy(wholes[0][0])
    key = recurring_key(b"orders", b"nightly")
    delete(data, "planned", planned_key(80_000, key))
    put(data, "planned", (planned_key(planned_ms, key), b""))
    put(data, "recurrences", (key, RECURRENCE_VALUE.pack(next_ms, fired, False)))
    repair(data)
    assert RECURRENCE_VALUE.unpack(dict(rows_of(data, "recurrences"))[key]) == repaired


def test_a_debounced_key_begins_at_the_first_that_is_pending(tmp_path: Path) -> None:
    """Where none is pending because all have fired, the beginning stays the same."""
    folder = Folder(tmp_path / "data")
    store = folder.open(inbox_size=0)
    fired, first, second = (
        hold(store, later(message_id, due_ms), due_ms)
        for message_id, due_ms in ((b"fired", 1_000), (b"first", 90_000), (b"second", 91_000))
    )
    store.commit()
    fire(store, 1_000)
    folder.close()
    shared, own = debounce_key(b"orders", b"all"), debounce_key(b"orders", b"of fired")
    wrong = [(shared, pack_u64(second)), (own, pack_u64(fired))]
    put(folder.path, "debounced", *wrong)
    repair(folder.path)
    assert rows_of(folder.path, "debounced") == [(shared, pack_u64(first)), (own, pack_u64(fired))]


def id_of(stored: bytes) -> bytes:
    """Return the id of a message as `messages` has it."""
    record = unpack(stored)
    assert record is not None
    return terms_of(record).message_id


def left_without(held: Held, table: str, key: bytes, value: bytes) -> Held:
    """Return what is left when a row is lost. No message changes its offset."""
    if table in ("messages", "parts"):
        lost = held.cut.get(key[:8]) or id_of(value)
        return held._replace(
            cut={number: one for number, one in held.cut.items() if one != lost},
            pending={one: ms for one, ms in held.pending.items() if one != lost},
            queued={place: one for place, one in held.queued.items() if one != lost},
            aborted=held.aborted - {lost},
            halves=held.halves - {lost},
        )
    name = key.partition(b"\0")[2]
    if table == "recurring":
        return held._replace(recurring={n: ms for n, ms in held.recurring.items() if n != name})
    if table == "recurrences" and name == b"asleep":
        # Nothing else says when a paused recurring message would have fired.
        return held._replace(recurring=held.recurring | {name: NOW_MS})
    return held


def scramble(data: Path, table: str, key: bytes, value: bytes, random_: random.Random) -> None:
    """Change one byte of a row."""
    in_key = not value or random_.random() < 0.5
    scrambled = bytearray(key if in_key else value)
    scrambled[random_.randrange(len(scrambled))] ^= random_.randrange(1, 256)

    def how(txn: lmdb.Transaction, database: lmdb._Database) -> None:
        txn.delete(key, db=database)
        row = (bytes(scrambled), value) if in_key else (key, bytes(scrambled))
        txn.put(*row, db=database)

    change_table(data, table, how)


@SIZES
@pytest.mark.parametrize("seed", range(6))
def test_many_rows_are_lost_at_once(
    wholes: dict[int, tuple[bytes, Held]],
    copy: Callable[[bytes], Path],
    inbox_size: int,
    seed: int,
) -> None:
    """Up to four tables lose half their rows, or all. Everything pending fires, and every message in a queue keeps its
    offset where some row gives it."""
    file, holds = wholes[inbox_size]
    data = copy(file)
    random_ = random.Random(seed)
    told = list(holds.queued)
    for table in random_.sample([name for name in TABLES if name not in RECORDS], 4):
        share = random_.choice((0.5, 1))
        lost = [key for key, _ in rows_of(data, table) if random_.random() < share]
        delete(data, table, *lost)
        if table == "queues":
            places = {split_queue_key(key) for key in lost}
            told = [place for place in told if place not in places]
    before = rows_of(data, "messages")
    repair(data)
    now = now_held(data)
    assert rows_of(data, "messages") == before
    for message_id, due_ms in holds.pending.items():
        if due_ms <= NOW_MS:
            # It fires if both facts are lost: that it waits, and that its topic is paused.
            assert message_id in {*now.pending, *now.queued.values()}
        elif message_id == b"timed6":
            # If its new time is lost, its due time is the one in its record.
            assert now.pending[message_id] in (due_ms, 3_647_514)
        else:
            assert now.pending[message_id] == due_ms
    assert {place: now.queued.get(place) for place in told} == {
        place: holds.queued[place] for place in told
    }
    everywhere = [*now.queued.values(), *now.pending, *now.aborted]
    assert len(everywhere) == len(set(everywhere))


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("parts", ["message 1: its record cannot be read: it is moved to repairs-TIME.jsonl"]),
        ("messages", []),
    ],
)
def test_all_parts_of_a_record_are_one_repair(folder: Folder, table: str, told: list[str]) -> None:
    """A record of 4 MiB has 1,000 of them: other repairs would not be shown. Its number is not used again."""
    send(folder.open(), Sample(b"a", b"orders", 0, (b"k",), 0, MUCH))
    folder.close()
    lost, *_ = rows_of(folder.path, table)
    delete(folder.path, table, lost[0])
    left = rows_of(folder.path, "parts")
    found = repair(folder.path)
    moved = f"message 1: parts of its record ({len(left)}) are moved to repairs-TIME.jsonl"
    assert found.repairs[: len(told) + 1] == [*told, moved]
    assert found.made == len(found.repairs)
    lines = (folder.path / "repairs.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    journal = [(bytes.fromhex(row["key"]), bytes.fromhex(row["value"])) for row in rows]
    assert [row for row in journal if len(row[0]) == PART_KEY.size] == left
    assert folder.open().next_sequence == 2


@SIZES
@pytest.mark.parametrize("table", ["ids", "aborted"])
def test_one_of_two_tables_is_enough_for_an_abort(
    wholes: dict[int, tuple[bytes, Held]],
    copy: Callable[[bytes], Path],
    inbox_size: int,
    table: str,
) -> None:
    file, holds = wholes[inbox_size]
    data = copy(file)
    numbers = {key[8:] for key, _ in rows_of(data, "aborted")}
    lost = [key for key, _ in rows_of(data, table) if key[-8:] in numbers]
    assert len(lost) == len(holds.aborted)
    delete(data, table, *lost)
    repair(data)
    assert now_held(data) == holds


def test_what_has_its_timer_was_not_aborted(
    wholes: dict[int, tuple[bytes, Held]], copy: Callable[[bytes], Path]
) -> None:
    """This holds whatever the ids say, as long as the other table of aborted messages does not name it."""
    file, holds = wholes[0]
    data = copy(file)
    timer, _ = rows_of(data, "timers")[0]
    due_ms, _, sequence, message_id = split_timer_key(timer)
    key, value = id_key(message_id, pack_u64(sequence)), IdRow(due_ms, aborted_ms=700).pack()
    put(data, "ids", (key, value))
    repair(data)
    assert now_held(data) == holds


@pytest.mark.parametrize(
    "record",
    [
        Sample(b"x", queue=-1).record(1),
        Sample(b"x", queue=1 << 31).record(1),
        Sample(b"x").record(-1),
        Sample(b"x").record(1 << 63),
        Sample(b"x", b"").record(1),
    ],
    ids=["queue below 0", "queue too large", "time below 0", "time too large", "no topic"],
)
def test_a_record_that_tells_of_no_place_is_moved_aside(
    wholes: dict[int, tuple[bytes, Held]], copy: Callable[[bytes], Path], record: bytes
) -> None:
    data = copy(wholes[0][0])
    key, _ = rows_of(data, "messages")[0]
    put(data, "messages", (key, pack(record)))
    repair(data)
    assert key not in dict(rows_of(data, "messages"))


def test_what_was_still_to_fire_does_so_in_its_turn(tmp_path: Path) -> None:
    """The message was due while no gateway ran, and its timer is lost. Only the count of its span of time shows it."""
    folder = Folder(tmp_path / "data")
    store = folder.open(inbox_size=0)
    for message_id, due_ms in ((b"first", 1_000), (b"second", 2_000), (b"last", 90_000)):
        hold(store, later(message_id, due_ms), due_ms)
        store.commit()
    folder.close()
    _, (second, _), _ = rows_of(folder.path, "timers")
    delete(folder.path, "timers", second)
    repair(folder.path)
    store = folder.open()
    assert pending_ids(store) == [b"first", b"second", b"last"]
    fire(store, NOW_MS)
    assert ids_in(store) == [b"first", b"second"]
    folder.close()


@SIZES
def test_rows_of_a_queue_that_name_what_is_pending_or_a_wrong_size(
    tmp_path: Path, inbox_size: int
) -> None:
    """The pending message cannot have fired: it has its timer, or is due after the repair."""
    folder = Folder(tmp_path / "data")
    store = folder.open(inbox_size=inbox_size)
    *ids, last_id = numbered(4)
    for message_id in ids:
        hold(store, later(message_id, 10_000), 10_000, 500)
    due_ms = NOW_MS + 1 if inbox_size else NOW_MS - 1
    pending = hold(store, later(last_id, due_ms), due_ms, 500)
    store.commit()
    fire(store, 10_000)
    folder.close()
    rows = [(key, QUEUE_VALUE.unpack(value)) for key, value in rows_of(folder.path, "queues")]
    (_, (_, *columns)), (_, (last, tag_hash, size, stored_ms)) = rows[1:]
    put(folder.path, "queues", (rows[1][0], QUEUE_VALUE.pack(pending, *columns)))
    put(folder.path, "queues", (rows[2][0], QUEUE_VALUE.pack(last, tag_hash, size + 1, stored_ms)))
    repair(folder.path)
    store = folder.open()
    assert ids_in(store) == ids
    assert pending_ids(store) == [last_id]
    folder.close()


def test_what_is_in_its_queue_does_not_fire_again_although_its_timer_is_there(
    tmp_path: Path,
) -> None:
    folder = Folder(tmp_path / "data")
    hold_all(folder.open(inbox_size=0), [b"a"], 1_000)
    folder.close()
    timers = rows_of(folder.path, "timers")
    fire(folder.open(), 1_000)
    folder.close()
    put(folder.path, "timers", *timers)
    repair(folder.path)
    store = folder.open()
    assert pending_ids(store) == []
    assert ids_in(store) == [b"a"]
    folder.close()


@pytest.mark.parametrize(("queue", "stored_ms"), [(0, 600), (1, 500)])
def test_two_rows_that_name_one_message(tmp_path: Path, queue: int, stored_ms: int) -> None:
    """It is at the one in its own queue, and there at the one with its time."""
    folder = Folder(tmp_path / "data")
    store = folder.open()
    send(store, Sample(b"a", b"orders", 0), 500)
    number = pack_u64(store.next_sequence)
    send(store, Sample(b"b", b"orders", queue), stored_ms)
    store.commit()
    queued = [ids_in(store, b"orders", own) for own in (0, 1)]
    folder.close()
    key, value = rows_of(folder.path, "queues")[0]
    put(folder.path, "queues", (key, number + value[8:]))
    repair(folder.path)
    store = folder.open()
    assert [ids_in(store, b"orders", own) for own in (0, 1)] == queued
    folder.close()


def test_the_offset_of_a_message_that_is_moved_aside_is_given_to_no_other(tmp_path: Path) -> None:
    """The row of the next one is lost, which has the same time, tag and size."""
    folder = Folder(tmp_path / "data")
    store = folder.open()
    first, *others = numbered(3)
    for message_id in (first, *others):
        send(store, Sample(message_id, b"orders"), 500)
    store.commit()
    folder.close()
    (number, _), *_ = rows_of(folder.path, "messages")
    put(folder.path, "messages", (number, b"broken"))
    delete(folder.path, "queues", rows_of(folder.path, "queues")[1][0])
    repair(folder.path)
    store = folder.open()
    queue = store.queue(b"orders", 0)
    messages = store.read(queue, 0, 10, 1 << 20).messages
    assert [(one.offset, terms_of(one.record).message_id) for one in messages] == [
        (1, others[0]),
        (2, others[1]),
    ]
    folder.close()


def test_the_latest_of_several_was_still_to_fire(tmp_path: Path) -> None:
    """The row of the one that fired is lost too. The one that fires later was stored first."""
    folder = Folder(tmp_path / "data")
    store = folder.open(inbox_size=0)
    for message_id, due_ms in ((b"second", 2_000), (b"first", 1_000)):
        hold(store, later(message_id, due_ms), due_ms, 500)
    store.commit()
    fire(store, 1_500)
    folder.close()
    for table in ("timers", "queues"):
        ((key, _),) = rows_of(folder.path, table)
        delete(folder.path, table, key)
    repair(folder.path)
    store = folder.open()
    assert pending_ids(store) == [b"second"]
    assert ids_in(store) == [b"first"]
    folder.close()


@SIZES
def test_a_mark_behind_the_next_message_goes(
    wholes: dict[int, tuple[bytes, Held]], copy: Callable[[bytes], Path], inbox_size: int
) -> None:
    """A start would not look for the timers of messages in front of the mark."""
    file, holds = wholes[inbox_size]
    data = copy(file)
    put(data, "meta", (MARK, pack_u64(1 << 40)))
    found = repair(data)
    assert any(fault.startswith("the mark is at message 1099511627776") for fault in found.faults)
    assert now_held(data) == holds


@pytest.mark.parametrize("left", [b"", b"\0", b"\0\x05short"])
def test_timers_that_the_last_stop_left_are_checked(
    wholes: dict[int, tuple[bytes, Held]], copy: Callable[[bytes], Path], left: bytes
) -> None:
    """The next start would trust them, because nothing was written after them."""
    file, holds = wholes[INBOX_SIZE]
    data = copy(file)
    change_table(
        data, "meta", lambda txn, db: txn.put(INBOX_COPY, pack_u64(txn.id()) + left, db=db)
    )
    found = repair(data)
    assert found.faults == ["the timers that the last stop saved do not match the messages"]
    assert found.made == 1
    assert now_held(data) == holds


def test_timers_that_an_earlier_stop_left_are_not_those_of_a_repaired_folder(
    tmp_path: Path,
) -> None:
    """A restored file counts its transactions from 1 again. When the repair has the number of the one that left the
    timers, a start would take them for the last thing written."""
    folder = Folder(tmp_path / "data")
    sequence, *_ = hold_all(folder.open(), numbered(3), NOW_MS + 1_000)
    folder.close()
    ((_, left),) = [row for row in rows_of(folder.path, "meta") if row[0] == INBOX_COPY]
    restored = tmp_path / "restored"
    back_up(folder.path, restored)
    for _ in range(int.from_bytes(left[:8]) - 2):
        put(restored, "messages", (pack_u64(sequence), b"broken"))
    repair(restored)
    assert list(now_held(restored).pending) == numbered(3)[1:]


def test_rows_are_written_down_as_they_were(
    wholes: dict[int, tuple[bytes, Held]], copy: Callable[[bytes], Path]
) -> None:
    """The file has the whole unreadable record, and the record's offset stays empty."""
    file, holds = wholes[0]
    data = copy(file)
    number, record = next(row for row in rows_of(data, "messages") if id_of(row[1]) == b"new3")
    broken = b"{" + record[1:]

    put(data, "messages", (number, broken))
    found = repair(data)
    assert f"message {int.from_bytes(number)}: its record cannot be read" in found.faults
    lines = [json.loads(line) for line in (data / "repairs.jsonl").read_text().splitlines()]
    moved = next(line for line in lines if line["table"] == "messages")
    assert (bytes.fromhex(moved["key"]), bytes.fromhex(moved["value"])) == (number, broken)
    assert now_held(data) == left_without(holds, "messages", number, record)
    assert [one for one in found.repairs if one.endswith("has nothing, its message is lost")]


def pages_of(data: Path, table: str) -> list[int]:
    """Return where the pages with the rows of a table begin in the file, in the order of the rows."""
    content = (data / "data.mdb").read_bytes()
    places = [content.rindex(key + value) for key, value in rows_of(data, table)]
    return list(dict.fromkeys(place // mmap.PAGESIZE * mmap.PAGESIZE for place in places))


@pytest.fixture
def timed(tmp_path: Path) -> Folder:
    """A folder with timers on several pages."""
    folder = Folder(tmp_path / "data")
    store = folder.open(inbox_size=0)
    for number, name in enumerate(numbered(200)):
        due_ms = NOW_MS + 1_000 + number
        hold(store, later(name, due_ms), due_ms, 100)
    store.commit()
    folder.close()
    # A checkpoint more frees what the last one has replaced.
    put(folder.path, "topics", (b"orders", b"{}"))
    return folder


@pytest.mark.parametrize("table", ["timers", "messages"])
def test_rows_that_no_search_finds_are_put_where_they_belong(timed: Folder, table: str) -> None:
    """A bit of a key has changed: those behind it are not found either."""
    first, *_ = pages_of(timed.path, table)
    rows = rows_of(timed.path, table)
    key, value = rows[3]
    # In a sequence, or in a time: there is no row with the new one.
    at = 6
    changed = key[:at] + bytes((key[at] ^ 0x80,)) + key[at + 1 :]
    with (timed.path / "data.mdb").open("r+b") as file:
        page = os.pread(file.fileno(), mmap.PAGESIZE, first)
        assert page.count(key + value) == 1
        os.pwrite(file.fileno(), page.replace(key + value, changed + value), first)
    found = repair(timed.path)
    assert found.faults[0] == f"{table}: its keys are not in order"
    due = {name: NOW_MS + 1_000 + number for number, name in enumerate(numbered(200))}
    assert now_held(timed.path).pending == due


def test_a_number_of_a_message_that_was_moved_is_not_used_again(
    wholes: dict[int, tuple[bytes, Held]], copy: Callable[[bytes], Path]
) -> None:
    file, _ = wholes[0]
    data = copy(file)
    number, _ = rows_of(data, "messages")[-1]
    put(data, "messages", (number, b"broken"))
    repair(data)
    folder = Folder(data)
    assert folder.open().next_sequence == int.from_bytes(number) + 1
    folder.check()


def test_a_message_with_the_last_number_is_moved_and_leaves_numbers_for_others(
    wholes: dict[int, tuple[bytes, Held]], copy: Callable[[bytes], Path]
) -> None:
    """Once it was kept, and no message could be sent any more."""
    file, _ = wholes[0]
    data = copy(file)
    number, record = rows_of(data, "messages")[-1]
    put(data, "messages", (pack_u64((1 << 63) - 1), record))
    repair(data)
    folder = Folder(data)
    assert folder.open().next_sequence == int.from_bytes(number) + 1
    folder.check()


def test_a_repair_that_fails_leaves_no_file_of_what_it_did(
    wholes: dict[int, tuple[bytes, Held]],
    copy: Callable[[bytes], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk does not sync the file's name here. Without that the file may be gone after a power cut."""
    data = copy(wholes[0][0])
    delete(data, "timers", rows_of(data, "timers")[0][0])
    before = {table: rows_of(data, table) for table in TABLES}
    synced: list[Path] = []

    def fail(path: Path) -> None:
        synced.append(path)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    inspection = Inspection(data, READER, NOW_MS)
    monkeypatch.setattr("storage.inspection.sync", fail)
    with pytest.raises(StorageError, match="Input/output error"):
        inspection.repair(data / "repairs.jsonl")
    assert synced == [data]
    assert not (data / "repairs.jsonl").exists()
    inspection.close()
    assert {table: rows_of(data, table) for table in TABLES} == before
    monkeypatch.undo()
    assert repair(data).made > 0


@pytest.mark.parametrize("end", [KeyboardInterrupt(), RestartNeededError("the disk failed")])
def test_a_repair_that_ends_while_the_disk_takes_it_keeps_the_rows_that_it_removed(
    wholes: dict[int, tuple[bytes, Held]],
    copy: Callable[[bytes], Path],
    monkeypatch: pytest.MonkeyPatch,
    end: BaseException,
) -> None:
    """They are nowhere else. By then the repairs are committed."""
    data = copy(wholes[0][0])
    put(data, "timers", (b"no timer", b""))
    inspection = Inspection(data, READER, NOW_MS)

    def fail(_: object) -> None:
        raise end

    monkeypatch.setattr(Durable, "hold", fail)
    with pytest.raises(type(end)):
        inspection.repair(data / "repairs.jsonl")
    inspection.close()
    (row,) = map(json.loads, (data / "repairs.jsonl.unfinished").read_text().splitlines())
    assert bytes.fromhex(row["key"]) == b"no timer"
    assert not (data / "repairs.jsonl").exists()


def test_a_refused_repair_changes_nothing(
    wholes: dict[int, tuple[bytes, Held]], copy: Callable[[bytes], Path]
) -> None:
    """The file for the removed rows exists already."""
    data = copy(wholes[0][0])
    delete(data, "timers", rows_of(data, "timers")[0][0])
    before = {table: rows_of(data, table) for table in TABLES}
    (data / "repairs.jsonl").write_text("of before")
    inspection = Inspection(data, READER, NOW_MS)
    assert inspection.find().made > 0
    with pytest.raises(StorageError, match=r"repairs\.jsonl could not be written: File exists"):
        inspection.repair(data / "repairs.jsonl")
    inspection.close()
    assert {table: rows_of(data, table) for table in TABLES} == before
    assert (data / "repairs.jsonl").read_text() == "of before"


@pytest.mark.parametrize("table", ["paused", "totals", "topics", "groups"])
def test_a_topic_whose_name_is_no_text_goes(
    wholes: dict[int, tuple[bytes, Held]], copy: Callable[[bytes], Path], table: str
) -> None:
    """With such a row no list of all topics could be shown, and nobody can set the settings of such a topic again."""
    data = copy(wholes[0][0])
    values = [value for _, value in rows_of(data, table)]
    put(data, table, (b"\xff\xff", values[0] if values else b"{}"))
    repair(data)
    assert b"\xff\xff" not in dict(rows_of(data, table))


def test_a_recurring_message_whose_name_is_too_long_to_plan_it_goes(
    wholes: dict[int, tuple[bytes, Held]], copy: Callable[[bytes], Path]
) -> None:
    """LMDB takes no such key, and would refuse all other repairs with it."""
    file, holds = wholes[0]
    data = copy(file)
    key = b"orders\0" + b"n" * (MAX_KEY - 14)
    put(data, "recurring", (key, b"at night"))
    put(data, "recurrences", (key, RECURRENCE_VALUE.pack(80_000, 0, False)))
    delete(data, "totals", *(topic for topic, _ in rows_of(data, "totals")))
    repair(data)
    assert now_held(data) == holds
    assert key not in dict(rows_of(data, "recurring"))
