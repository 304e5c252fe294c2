"""Repairs of files with wrong pages: what can be read is kept, what is lost is told, and nothing comes back that was
aborted, removed or delivered."""

from __future__ import annotations

import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from storage import (
    DataFolderError,
    Findings,
    Inspection,
    Recurring,
    StorageError,
    abort,
    pause_topic,
    put_recurring,
)
from storage.environment import FOLDER_FILES, STORED_FILES
from storage.meta_pages import DATA_FILE, newest_state, page_size_of
from storage.pages import _nodes, _tree_in, readable_rows
from storage.redo_log import GAP
from tests.storage.folder import Folder, damage_log
from tests.storage.pages import ZEROS, content_of, leaves_of, overwrite, tree_of
from tests.storage.repairing import MUCH, NOW_MS, READER, Held, later, now_held, rows_of
from tests.storage.sample import Sample, clean_up, fire, hold, hold_all, numbered, send

LATER_MS = NOW_MS + 1_000
COUNT = 400
ABORTED = numbered(COUNT)[::10]
JUNK = random.Random(2).randbytes(mmap.PAGESIZE)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Held]:
    """A folder as a gateway leaves it that was stopped, and what it holds. Each of the large tables has several pages.
    Of the messages half have fired, and some of the others were aborted."""
    folder = Folder(tmp_path_factory.mktemp("whole") / "data")
    store = folder.open(inbox_size=0)
    store.put_topic(b"orders", b"{}")
    for message_id in numbered(COUNT, b"f"):
        hold(store, later(message_id, 1_000), 1_000, 100)
    store.commit()
    fire(store, 2_000)
    for number, message_id in enumerate(numbered(COUNT)):
        hold(store, later(message_id, LATER_MS + number), LATER_MS + number, 3_000)
    store.commit()
    for message_id in ABORTED:
        abort(store, message_id, 4_000)
    put_recurring(store, Recurring(b"orders", b"daily", LATER_MS, 0, False, b"long" * 1_000))
    store.commit()
    folder.close()
    copy = folder.path.with_name("copy")
    shutil.copytree(folder.path, copy)
    return folder.path, now_held(copy)


@pytest.fixture
def data(whole: tuple[Path, Held], tmp_path: Path) -> Path:
    """A copy of that folder."""
    shutil.copytree(whole[0], tmp_path / "data")
    return tmp_path / "data"


def repair(data: Path) -> tuple[Findings, Findings]:
    """Repair a folder with wrong pages. No fault may be left. Return what was found and what was done."""
    inspection = Inspection(data, READER, NOW_MS)
    try:
        found = inspection.find()
        assert found.made == 1
        done = inspection.repair(data / "repairs.jsonl")
    finally:
        inspection.close()
    assert done.left == []
    inspection = Inspection(data, READER, NOW_MS)
    assert inspection.find() == Findings([], [], 0, [])
    inspection.close()
    assert {file.name for file in data.iterdir()} == {*FOLDER_FILES, "repairs.jsonl"}
    return found, done


def not_its_own(page: int) -> str:
    """Return the fault of a wrong page."""
    return f"the structure of data.mdb is damaged: page {page} is not the one that belongs there"


def ids_on(data: Path, page: int) -> set[bytes]:
    """Return the ids of the messages whose records begin on a page of `messages`."""
    content = content_of(data, page)
    ids = {key[-8:]: key[:-9] for key, _ in rows_of(data, "ids")}
    rows = rows_of(data, "messages")
    return {ids[number] for number, record in rows if number + record in content}


def without(held: Held, lost: set[bytes]) -> Held:
    """Return what is held without some messages."""
    return held._replace(
        pending={name: due_ms for name, due_ms in held.pending.items() if name not in lost},
        queued={place: name for place, name in held.queued.items() if name not in lost},
        aborted=held.aborted - lost,
        cut={number: name for number, name in held.cut.items() if name not in lost},
    )


@pytest.mark.parametrize("wrong", [ZEROS, JUNK], ids=["zeros", "junk"])
@pytest.mark.parametrize("place", [0, 1, -1], ids=["first", "second", "last"])
def test_a_lost_page_of_messages_takes_only_what_is_on_it(
    whole: tuple[Path, Held], data: Path, wrong: bytes, place: int
) -> None:
    page = leaves_of(data, "messages")[place]
    lost = ids_on(data, page)
    overwrite(data, page, wrong)
    found, done = repair(data)
    told = f"{len(lost)} of {2 * COUNT} rows cannot be read (page {page})"
    assert found.faults == [not_its_own(page), f"messages: {told}"]
    assert done.made > len(lost)
    assert now_held(data) == without(whole[1], lost)


@pytest.mark.parametrize("place", [0, 1, -1], ids=["first", "second", "last"])
@pytest.mark.parametrize("table", ["timers", "queues", "ids", "keys"])
def test_a_lost_page_of_a_table_that_others_repeat_takes_nothing(
    whole: tuple[Path, Held], data: Path, table: str, place: int
) -> None:
    overwrite(data, leaves_of(data, table)[place])
    repair(data)
    assert now_held(data) == whole[1]


@pytest.mark.parametrize("table", ["timers", "queues", "ids", "keys", "aborted", "held", "totals"])
def test_a_lost_root_of_a_table_that_others_repeat_takes_nothing(
    whole: tuple[Path, Held], data: Path, table: str
) -> None:
    tree = tree_of(data, table)
    overwrite(data, tree.root)
    found, _ = repair(data)
    told = f"{tree.rows:,} of {tree.rows:,} rows cannot be read (page {tree.root})"
    assert found.faults == [not_its_own(tree.root), f"{table}: {told}"]
    assert now_held(data) == whole[1]


def test_numbers_of_lost_messages_are_not_used_again(data: Path) -> None:
    """A client that has a lost message, or half of one, names it by its number."""
    overwrite(data, tree_of(data, "messages").root)
    repair(data)
    folder = Folder(data)
    assert folder.open().next_sequence == 2 * COUNT + 1
    folder.check()


def test_a_lost_page_of_parts_takes_the_messages_that_were_cut_there(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "data")
    store = folder.open()
    for message_id in numbered(3):
        hold(store, Sample(message_id, body=MUCH), LATER_MS)
    store.commit()
    folder.close()
    content = (folder.path / DATA_FILE).read_bytes()
    number, part = rows_of(folder.path, "parts")[-1]
    page = content.rindex(part) // mmap.PAGESIZE
    overwrite(folder.path, page)
    found, done = repair(folder.path)
    assert found.faults[0] == not_its_own(page)
    assert f"message {number[7]}: its record cannot be read" in "".join(done.repairs)
    assert list(now_held(folder.path).pending) == numbered(2)


@pytest.mark.parametrize("place", [0, -1], ids=["first", "last"])
def test_what_was_read_from_a_queue_does_not_fire_again(tmp_path: Path, place: int) -> None:
    """Its timers were only in memory, so only its queue says that it has fired. Nor does a new message get an offset
    that a consumer has read already."""
    folder = Folder(tmp_path / "data")
    store = folder.open()
    for number, message_id in enumerate(numbered(COUNT)):
        hold(store, later(message_id, 1_000 + number), 1_000 + number, 100)
    fire(store, 2_000)
    store.progress.note(b"group", b"orders", 0, COUNT)
    store.progress.include()
    store.commit()
    folder.close()
    page = leaves_of(folder.path, "messages")[place]
    lost = ids_on(folder.path, page)
    overwrite(folder.path, page)
    overwrite(folder.path, leaves_of(folder.path, "queues")[place])
    repair(folder.path)
    held = now_held(folder.path)
    expected = [name for name in numbered(COUNT) if name not in lost]
    assert list(held.queued.values()) == expected
    assert folder.open().queue(b"orders", 0).next == COUNT
    folder.close()


def test_a_queue_that_was_emptied_continues_where_its_groups_are(tmp_path: Path) -> None:
    """From 0 on, they would skip what is sent next. Only the lost page said where the queue ends."""
    folder = Folder(tmp_path / "data")
    store = folder.open()
    for queue, count in enumerate((COUNT, 1)):
        for number in range(count):
            send(store, Sample(b"%d-%d" % (queue, number), queue=queue))
        store.progress.note(b"group", b"orders", queue, count)
    store.progress.note(b"behind", b"orders", 0, 7)
    store.progress.note(b"wrong", b"orders", 1, 1 << 62)
    store.progress.include()
    store.commit()
    while clean_up(store, 1_000, COUNT, lambda topic: False).messages:
        store.commit()
    folder.close()
    overwrite(folder.path, tree_of(folder.path, "ends").root)
    repair(folder.path)
    store = folder.open()
    assert store.queue(b"orders", 0).next == COUNT
    assert store.queue(b"orders", 1).next == COUNT + 2, "as many as there were messages at most"
    folder.check()


@pytest.mark.parametrize("table", ["messages", "keys"])
def test_a_page_with_rows_of_another_one_gives_none(
    whole: tuple[Path, Held], data: Path, table: str
) -> None:
    """Its number is right, as that of a page that is what it was before. LMDB cannot put its rows in order, and they
    must not bring back what was removed."""
    wrong, other = leaves_of(data, table)[2:4]
    lost = ids_on(data, wrong) if table == "messages" else set()
    overwrite(data, wrong, content_of(data, wrong)[:8] + content_of(data, other)[8:])
    found, _ = repair(data)
    assert found.faults[0] == f"{table}: its keys are not in order"
    assert found.faults[-1].endswith(f" rows cannot be read (page {wrong})")
    assert now_held(data) == without(whole[1], lost)


def test_rows_on_the_half_of_a_page_that_a_disk_has_written_are_kept(
    whole: tuple[Path, Held], data: Path
) -> None:
    torn, zeros = leaves_of(data, "messages")[2], leaves_of(data, "ids")[0]
    overwrite(data, torn, content_of(data, torn)[: mmap.PAGESIZE // 2] + bytes(mmap.PAGESIZE // 2))
    overwrite(data, zeros)
    repair(data)
    after = now_held(data)
    left = len(after.pending) + len(after.queued) + len(after.aborted)
    lost = 2 * COUNT - left
    assert 0 < lost < len(whole[1].queued)


def test_a_page_that_the_disk_cannot_read_is_a_lost_one(
    whole: tuple[Path, Held], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = leaves_of(data, "timers")[1]
    read = os.pread

    def fail(file: int, size: int, at: int) -> bytes:
        if at == page * mmap.PAGESIZE:
            raise OSError(5, "Input/output error")
        return read(file, size, at)

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", fail)
        inspection = Inspection(data, READER, NOW_MS)
        found = inspection.find()
        assert found.faults[0].endswith("Input/output error")
        assert found.faults[1].endswith(f"(page {page})")
        assert inspection.repair(data / "repairs.jsonl").left == []
        inspection.close()
    assert now_held(data) == whole[1]


@pytest.mark.parametrize("lost", [True, False], ids=["zeros", "another"])
def test_a_page_in_the_place_of_a_long_value_takes_that_row(tmp_path: Path, lost: bool) -> None:
    """LMDB would free the pages whose number the other page has."""
    folder = Folder(tmp_path / "data")
    store = folder.open()
    definitions = [name * 2_000 for name in (b"one", b"two")]
    for definition in definitions:
        put_recurring(store, Recurring(b"orders", definition[:3], 80_000, 0, False, definition))
    store.commit()
    folder.close()
    content = (folder.path / DATA_FILE).read_bytes()
    one, other = (content.index(text) // mmap.PAGESIZE for text in definitions)
    overwrite(folder.path, one, ZEROS if lost else content_of(folder.path, other))
    found, done = repair(folder.path)
    assert found.faults == [
        not_its_own(one),
        f"recurring: 1 of 2 rows cannot be read (page {one})",
    ]
    assert "recurring b'orders\\x00one': has no definition and goes" in done.repairs
    assert list(now_held(folder.path).recurring) == [b"two"]


def test_a_page_in_the_place_of_another_one(whole: tuple[Path, Held], data: Path) -> None:
    """As when a disk has written it to a wrong place. LMDB would free the page whose number it has, which is in use."""
    timers, ids = leaves_of(data, "timers")[0], leaves_of(data, "ids")[0]
    overwrite(data, timers, content_of(data, ids))
    found, _ = repair(data)
    assert found.faults[0] == not_its_own(timers)
    assert now_held(data) == whole[1]


@pytest.mark.parametrize("stranger", ["ids", "recurring", "list of tables"])
def test_a_page_that_is_what_it_was_when_another_table_had_it(
    whole: tuple[Path, Held], data: Path, stranger: str
) -> None:
    """As when a disk has lost a write. With such a row, LMDB would delete the long value, or the table, that the row
    belongs to."""
    timers = leaves_of(data, "timers")[0]
    if stranger == "list of tables":
        with (data / DATA_FILE).open("rb") as file:
            (other,) = struct.unpack_from("=Q", newest_state(file.fileno()), 88)
    else:
        other = leaves_of(data, stranger)[0]
    overwrite(data, timers, content_of(data, timers)[:8] + content_of(data, other)[8:])
    found, _ = repair(data)
    assert found.faults[0].startswith("the structure of data.mdb is damaged: ")
    assert now_held(data) == whole[1]


def test_a_page_of_which_a_disk_has_written_half(whole: tuple[Path, Held], data: Path) -> None:
    """The rows on the other half have no keys, and LMDB would garble those before when it deletes them."""
    page = leaves_of(data, "timers")[0]
    overwrite(data, page, content_of(data, page)[: mmap.PAGESIZE // 2] + bytes(mmap.PAGESIZE // 2))
    found, _ = repair(data)
    assert found.faults[0] == not_its_own(page)
    assert now_held(data) == whole[1]


@pytest.mark.parametrize("table", ["keys", "timers"])
def test_a_row_that_begins_within_another(whole: tuple[Path, Held], data: Path, table: str) -> None:
    """If LMDB deleted it, it would garble the other rows of the page."""
    page = leaves_of(data, table)[1]
    content = content_of(data, page)
    begin = int.from_bytes(content[26:28], sys.byteorder) - 30
    overwrite(data, page, content[:26] + begin.to_bytes(2, sys.byteorder) + content[28:])
    found, _ = repair(data)
    assert found.faults[0] == not_its_own(page)
    assert now_held(data) == whole[1]


def test_a_page_of_no_known_type(whole: tuple[Path, Held], data: Path) -> None:
    """Its number is right."""
    page = leaves_of(data, "timers")[0]
    content = content_of(data, page)
    overwrite(data, page, content[:10] + b"\4\0" + content[12:])
    found, _ = repair(data)
    assert found.faults[0] == not_its_own(page)
    assert now_held(data) == whole[1]


@pytest.mark.parametrize("content", [ZEROS, JUNK], ids=["zeros", "junk"])
def test_a_folder_whose_format_is_lost_needs_a_backup(data: Path, content: bytes) -> None:
    """A repair was advised, by fsck itself, and refused."""
    overwrite(data, leaves_of(data, "meta")[0], content)
    with pytest.raises(DataFolderError, match=r"its format cannot be read: restore a backup$"):
        Inspection(data, READER, NOW_MS)


def test_a_folder_whose_format_only_lmdb_can_read_needs_a_backup(data: Path) -> None:
    """The new file would have no format: a repair was announced, and refused as for a file of another program."""
    (page,) = leaves_of(data, "meta")
    overwrite(data, page, b"\xff" + content_of(data, page)[1:])
    inspection = Inspection(data, READER, NOW_MS)
    found = inspection.find()
    inspection.close()
    fault = f"{not_its_own(page)}: its format cannot be read: restore a backup"
    assert found == Findings([fault], [], 0, [fault])


def test_a_folder_whose_list_of_tables_is_lost_needs_a_backup(data: Path) -> None:
    with (data / DATA_FILE).open("rb") as file:
        (root,) = struct.unpack_from("=Q", newest_state(file.fileno()), 88)
    inspection = Inspection(data, READER, NOW_MS)
    overwrite(data, root)
    found = inspection.find()
    inspection.close()
    fault = f"{not_its_own(root)}: the list of its tables cannot be read: restore a backup"
    assert found == Findings([fault], [], 0, [fault])


@pytest.mark.parametrize("wrong", [b"\0", b"\xff"], ids=["low", "high"])
@pytest.mark.parametrize("place", [1, -1], ids=["second", "last"])
@pytest.mark.parametrize("table", ["messages", "timers", "ids"])
def test_a_wrong_key_above_a_page_takes_nothing(
    whole: tuple[Path, Held], data: Path, table: str, place: int, wrong: bytes
) -> None:
    """All rows are there, but LMDB does not find some of them by their keys: they must not count as missing."""
    root = tree_of(data, table).root
    content = content_of(data, root)
    key, *_ = _nodes(content)[place]
    overwrite(data, root, content.replace(key, wrong * len(key)))
    found, _ = repair(data)
    (fault,) = found.faults
    assert fault.endswith(" is not where its rows are looked for")
    assert now_held(data) == whole[1]


def test_a_row_in_the_wrong_place_is_one_that_was_removed_if_there_are_too_many(data: Path) -> None:
    """The page that has it may be what it was before."""
    tree, last = tree_of(data, "messages"), leaves_of(data, "messages")[-1]
    (first, *_), (second, *_), *_ = _nodes(content_of(data, last))
    above = content_of(data, tree.root)
    overwrite(data, tree.root, above.replace(first, second))
    with (data / DATA_FILE).open("rb") as file:
        state = newest_state(file.fileno())
        for count, expected in ((tree.rows, True), (tree.rows - 1, False)):
            rows = readable_rows(file.fileno(), state, tree._replace(rows=count), [])
            assert (first in dict(rows)) == expected


@pytest.mark.parametrize("harm", ["key above", "order"])
def test_a_lost_page_and_another_that_is_harmed(
    whole: tuple[Path, Held], data: Path, harm: str
) -> None:
    root, (_, page, *_, last) = tree_of(data, "messages").root, leaves_of(data, "messages")
    lost = ids_on(data, last)
    overwrite(data, last)
    content, above = content_of(data, page), content_of(data, root)
    (first, *_), *_ = _nodes(content)
    if harm == "order":
        overwrite(data, page, content[:16] + content[18:20] + content[16:18] + content[20:])
        lost |= {key[:-9] for key, _ in rows_of(data, "ids") if key.endswith(first)}
    else:
        (_, (key, *_), *_) = _nodes(above)
        overwrite(data, root, above.replace(key, b"\xff" * len(key)))
    found, _ = repair(data)
    assert f"messages: {len(lost)} of {2 * COUNT} rows cannot be read" in found.faults[1]
    assert now_held(data) == without(whole[1], lost)


def test_a_table_that_goes_round_in_a_circle(tmp_path: Path) -> None:
    """The reference to its second page leads to the first one again."""
    folder = Folder(tmp_path / "data")
    store = folder.open(inbox_size=0)
    hold_all(store, numbered(200), LATER_MS)
    folder.close()
    file = folder.path / "data.mdb"
    content = file.read_bytes()
    first_of: dict[int, bytes] = {}
    rows = rows_of(folder.path, "messages")
    for key, record in rows:
        first_of.setdefault(content.index(key + record) // mmap.PAGESIZE, key)
    (page, _), (second_page, key), (_, third), *_ = first_of.items()
    # The layout is that of `pages`: the number of the page below, and the length of the key.
    branch = struct.Struct("=HHHH")
    before, after = (branch.pack(number, 0, 0, len(key)) + key for number in (second_page, page))
    assert before in content
    file.write_bytes(content.replace(before, after))
    found, _ = repair(folder.path)
    assert found.faults[0] == not_its_own(page)
    on_second = sum(key <= number < third for number, _ in rows)
    assert len(now_held(folder.path).pending) == 200 - on_second


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda page, node: bytes(len(page)), " is not the one that belongs there"),
        (lambda page, node: page[:16] + b"\xff\xff" + page[18:], "is damaged: "),
        (
            lambda page, node: page[:node] + bytes(8) + page[node + 8 :],
            " pages are listed as free, and",
        ),
        (
            lambda page, node: page[: node + 8] + b"\xff" * 7 + b"\0" + page[node + 16 :],
            "is listed as free",
        ),
        (lambda page, node: page[: node + 8] + b"\2" + page[node + 9 :], "is listed as free"),
    ],
    ids=["lost", "torn", "too few", "a page that the file does not have", "a page in use"],
)
def test_a_list_of_free_pages_that_is_wrong_is_not_used(
    tmp_path: Path, damage: Callable[[bytes, int], bytes], fault: str
) -> None:
    """LMDB would write to the pages that it names, or to none at all. Rows are lost nowhere."""
    folder = Folder(tmp_path / "data")
    hold_all(folder.open(), numbered(20), LATER_MS)
    folder.close()
    with (folder.path / "data.mdb").open("r+b") as file:
        state = newest_state(file.fileno())
        size, root = page_size_of(state), _tree_in(state, 0).root
        page = os.pread(file.fileno(), size, root * size)
        # The layout is that of `pages`: the place of the first node, and its key of 8 bytes.
        node = int.from_bytes(page[16:18], sys.byteorder) + 16
        os.pwrite(file.fileno(), damage(page, node), root * size)
    found, _ = repair(folder.path)
    (told,) = found.faults
    assert fault in told
    assert list(now_held(folder.path).pending) == numbered(20)


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A folder as a gateway leaves it that was killed: the last message and the last abort are only in the log."""
    folder = Folder(tmp_path / "served")
    store = folder.open(inbox_size=0)
    hold_all(store, numbered(COUNT), LATER_MS)
    store.checkpoint()
    store.environment.durable.wait()
    hold_all(store, [b"last"], LATER_MS)
    abort(store, b"m00200", 4_000)
    store.commit()
    shutil.copytree(folder.path, tmp_path / "data")
    folder.close()
    return tmp_path / "data"


def test_the_redo_log_is_applied_to_the_new_file_alone(crashed: Path) -> None:
    """LMDB could write to pages that are in use."""
    page = leaves_of(crashed, "ids")[1]
    overwrite(crashed, page)
    before = files_of(crashed)
    inspection = Inspection(crashed, READER, NOW_MS)
    assert inspection.find().faults[0] == not_its_own(page)
    inspection.close()
    assert files_of(crashed) == before
    repair(crashed)
    held = now_held(crashed)
    assert sorted(held.pending) == sorted({*numbered(COUNT), b"last"} - {b"m00200"})
    assert held.aborted == {b"m00200"}


def test_a_gap_in_the_redo_log_is_told(crashed: Path) -> None:
    overwrite(crashed, leaves_of(crashed, "ids")[1])
    damage_log(crashed, b"last")
    _, done = repair(crashed)
    assert GAP in done.repairs
    assert sorted(now_held(crashed).pending) == numbered(COUNT)


def files_of(data: Path) -> dict[str, bytes]:
    """Return the files of a folder that hold what is stored."""
    return {name: (data / name).read_bytes() for name in STORED_FILES}


_KILLED = """
import os, signal, sys
from pathlib import Path
from storage import Inspection
from tests.storage.repairing import NOW_MS, READER
data = Path(sys.argv[1])
inspection = Inspection(data, READER, NOW_MS)
inspection.find()
Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
inspection.repair(data / "repairs.jsonl")
"""
"""Code of a process that is killed just before the new file replaces the old one."""


def test_a_killed_repair_leaves_the_folder_as_it_was(crashed: Path) -> None:
    overwrite(crashed, leaves_of(crashed, "timers")[1])
    before = files_of(crashed)
    killed = subprocess.run([sys.executable, "-c", _KILLED, crashed], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert files_of(crashed) == before
    assert not (crashed / "repairs.jsonl").exists()
    (crashed / "repairs.jsonl.unfinished").unlink()
    repair(crashed)
    assert not (crashed / "repairs.jsonl.unfinished").exists()
    assert b"last" in now_held(crashed).pending


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(28, "No space left on device")])
@pytest.mark.parametrize("place", ["storage.inspection.shutil.copyfile", "storage.copies.sync"])
def test_a_repair_that_is_cut_short_leaves_the_folder_as_it_was(
    crashed: Path,
    monkeypatch: pytest.MonkeyPatch,
    failure: type[BaseException] | BaseException,
    place: str,
) -> None:
    overwrite(crashed, leaves_of(crashed, "timers")[1])
    before, names = files_of(crashed), set(crashed.iterdir())
    inspection = Inspection(crashed, READER, NOW_MS)
    inspection.find()

    def fail(*_: object) -> None:
        raise failure

    with monkeypatch.context() as patched:
        patched.setattr(place, fail)
        with pytest.raises((StorageError, KeyboardInterrupt)):
            inspection.repair(crashed / "repairs.jsonl")
    inspection.close()
    assert files_of(crashed) == before
    assert set(crashed.iterdir()) == names
    repair(crashed)


def test_there_must_be_room_for_the_new_file_and_the_copy(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overwrite(data, leaves_of(data, "timers")[1])
    size = (data / DATA_FILE).stat().st_size
    inspection = Inspection(data, READER, NOW_MS)
    inspection.find()
    monkeypatch.setattr("storage.inspection.free_bytes", lambda _: size)
    inspection.check_room(None)
    with pytest.raises(StorageError, match=r"the repair needs [\d,]+ bytes beside .*/data.mdb"):
        inspection.check_room(data.parent / "new" / "copy")
    monkeypatch.setattr("storage.inspection.free_bytes", lambda _: 0)
    before = files_of(data)
    with pytest.raises(StorageError, match="and the disk has 0 free"):
        inspection.repair(data / "repairs.jsonl")
    inspection.close()
    assert files_of(data) == before


@pytest.mark.parametrize("table", ["topics", "groups"])
def test_settings_on_a_lost_page_are_to_be_set_again(tmp_path: Path, table: str) -> None:
    """A topic that has messages must not count as deleted: they would be removed."""
    folder = Folder(tmp_path / "data")
    store = folder.open()
    store.put_topic(b"orders", b"{}")
    store.put_topic(b"unused", b"{}")
    store.put_group(b"group", b"{}")
    send(store, Sample(b"sent"))
    store.progress.note(b"group", b"orders", 0, 1)
    store.progress.include()
    store.commit()
    folder.close()
    overwrite(folder.path, tree_of(folder.path, table).root)
    reader = READER._replace(is_readable=lambda table, name, value: bool(value))
    inspection = Inspection(folder.path, reader, NOW_MS)
    inspection.find()
    (fault,) = inspection.repair(tmp_path / "repairs.jsonl").left
    inspection.close()
    name = {"topics": "orders", "groups": "group"}[table]
    assert fault.startswith(f"{table} b'{name}': the settings cannot be read")


def test_what_was_paused_by_a_row_on_a_lost_page_stays_paused(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "data")
    store = folder.open()
    for topic in (b"mails", b"orders"):
        store.put_topic(topic, b"{}")
        hold(store, Sample(b"in " + topic, topic), 1_000)
    pause_topic(store, b"orders", 600)
    store.commit()
    folder.close()
    overwrite(folder.path, tree_of(folder.path, "paused").root)
    _, done = repair(folder.path)
    assert "paused orders: is paused until it is resumed, as its row cannot be read" in done.repairs
    store = folder.open()
    assert fire(store, NOW_MS) == 0
    folder.close()
