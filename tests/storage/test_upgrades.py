"""Upgrades of data folders as earlier versions left them on disk; their files are in `formats`.

Each folder has 40 messages of `orders`, ten minutes apart from the tenth hour on, of which the first fired and the last
was aborted. It has ten messages of `bills`, a second apart from then on, of which six were due, and one message for
now. In format 2 `bills` is paused, all these timers are in `timers` or `waiting`, and the inbox has one message more,
which from format 4 on is in the redo log of a killed process. From format 5 on, two messages of `orders` were put off
by a minute, the second of them in that log. In format 6 that log is the second one. In format 7 records are packed. In
format 8 two of them have more than half a page: one is in that log. In format 9 these are in `parts`. The
folder of format 10 is that one, upgraded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from storage import Columns, DataFolderError, count_due, find_faults, read_pending
from storage.copies import back_up, restore
from storage.increments import back_up_changes, restore_changes
from storage.keys import FORMAT, MARK
from storage.upgrades import FORMAT_VERSION, STEPS
from tests.storage.folder import Folder, change_table, unpack
from tests.storage.sample import (
    Sample,
    fire,
    hold,
    ids_in,
    pending_ids,
    pending_page,
    send,
    terms_of,
)

HOUR_MS = 3_600_000
ORDERS, BILLS = b"orders", b"bills"
OLDER = range(1, FORMAT_VERSION)


@pytest.mark.parametrize("version", OLDER)
def test_all_is_there_and_sound(folder: Folder, version: int) -> None:
    unpack(folder, version)
    store = folder.open()
    assert store.upgraded == (
        f"the data folder {folder.path} was upgraded from format {version} to {FORMAT_VERSION}: "
        "earlier versions of Tidegate cannot use it any more"
    )
    bills, late = (4, []) if version == 1 else (10, [b"late"])
    assert find_faults(store) == []
    assert store.held_totals() == {ORDERS: 38 + len(late), BILLS: bills}
    expected = {b"a%d" % number for number in range(1, 39)} | {*late}
    assert set(pending_ids(store, topic=ORDERS)) == expected
    assert ids_in(store, ORDERS) == [b"now", b"a0"]
    assert store.progress.get(b"group", ORDERS, 0) == 1
    txn = store.settled_reader()
    assert txn.get(FORMAT, db=store.tables.meta) == b"%d" % FORMAT_VERSION
    assert txn.get(MARK, db=store.tables.meta) is not None


@pytest.mark.parametrize("version", OLDER)
def test_its_bytes_are_those_of_the_records(folder: Folder, version: int) -> None:
    unpack(folder, version)
    sizes = dict(folder.open().held.sizes)
    folder.close()
    counted: Counter[bytes] = Counter()
    for one in read_pending(folder.path, terms_of):
        counted[terms_of(one.record).topic] += len(one.record)
    assert sizes == counted != {}


@pytest.mark.parametrize("version", OLDER)
def test_wide_columns_count_it(folder: Folder, version: int) -> None:
    unpack(folder, version)
    store = folder.open()
    counted = count_due(store, Columns(0, HOUR_MS, 24), topic=ORDERS).counts
    late = int(version > 1)
    assert counted == {
        (ORDERS, 10): 5,
        (ORDERS, 11): 6,
        (ORDERS, 12): 6 + late,
        **{(ORDERS, hour): 6 for hour in (13, 14, 15)},
        (ORDERS, 16): 3,
    }


@pytest.mark.parametrize("version", OLDER)
def test_it_goes_on_from_there(folder: Folder, version: int) -> None:
    unpack(folder, version)
    store = folder.open(inbox_size=0)
    hold(store, Sample(b"new", ORDERS), 11 * HOUR_MS)
    store.commit()
    assert fire(store, 17 * HOUR_MS) == store.queue(ORDERS, 0).visible - 2 + (
        4 if version == 1 else 0
    )
    assert ids_in(store, ORDERS)[:3] == [b"now", b"a0", b"a1"]
    assert store.held_totals() == ({} if version == 1 else {BILLS: 10})


@pytest.mark.parametrize("version", OLDER)
def test_what_comes_after_it_outlasts_a_crash(folder: Folder, version: int) -> None:
    unpack(folder, version)
    store = folder.open()
    send(store, Sample(b"sent", ORDERS), 17 * HOUR_MS)
    hold(store, Sample(b"held", ORDERS), HOUR_MS, 17 * HOUR_MS)
    store.commit()
    store = folder.reopen_after_crash()
    assert ids_in(store, ORDERS) == [b"now", b"a0", b"sent"]
    assert pending_ids(store, topic=ORDERS)[0] == b"held"


@pytest.mark.parametrize("version", OLDER)
def test_a_map_of_the_files_size_has_room_for_it(folder: Folder, version: int) -> None:
    """The file is larger than the map with which a gateway begins."""
    unpack(folder, version)
    assert find_faults(folder.open(map_size=1)) == []


@pytest.mark.parametrize("version", [5, 6, 7, 8])
def test_what_was_put_off_is_known(folder: Folder, version: int) -> None:
    """Timers of format 5 had no marks for this."""
    unpack(folder, version)
    found = pending_page(folder.open(), topic=ORDERS).found
    put_off = {one.sequence: one.rescheduled_ms for one in found if one.rescheduled_ms}
    assert put_off == {6: 9 * HOUR_MS + 5, 7: 9 * HOUR_MS + 6}


@pytest.mark.parametrize(
    ("make", "again"), [(back_up, restore), (back_up_changes, restore_changes)]
)
def test_it_can_be_backed_up_before(
    folder: Folder,
    tmp_path: Path,
    make: Callable[[Path, Path], object],
    again: Callable[[Path, Path], object],
) -> None:
    unpack(folder, 3)
    make(folder.path, tmp_path / "backup")
    again(tmp_path / "backup", tmp_path / "again")
    copy = Folder(tmp_path / "again")
    assert "was upgraded from format 3" in (copy.open().upgraded or "")
    copy.close()


def test_an_upgrade_that_is_cut_short_leaves_the_old_folder(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpack(folder, 1)
    with monkeypatch.context() as broken:

        def fail(*_: object) -> None:
            raise MemoryError("no")

        broken.setitem(STEPS, 2, fail)
        with pytest.raises(DataFolderError, match="cannot open the data folder"):
            folder.open()
    assert find_faults(folder.open()) == []


def test_a_damaged_one_is_refused_with_what_to_do(folder: Folder) -> None:
    unpack(folder, 2)
    change_table(folder.path, "timers", lambda txn, table: txn.put(b"no timer", b"", db=table))
    for _ in range(2):
        with pytest.raises(
            DataFolderError, match="format is too old to be repaired: restore a backup"
        ):
            folder.open()
    change_table(folder.path, "timers", lambda txn, table: txn.delete(b"no timer", db=table))


def test_a_folder_of_an_older_format_is_not_read_beside_a_gateway(folder: Folder) -> None:
    unpack(folder, 2)
    with pytest.raises(DataFolderError, match=f"has format 2, and {FORMAT_VERSION} is needed"):
        next(read_pending(folder.path, terms_of))
