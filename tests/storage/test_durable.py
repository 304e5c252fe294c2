"""Which state of LMDB's file is on disk, and how a start returns to it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen

import lmdb
import pytest

from storage import (
    DataFolderError,
    RestartNeededError,
    Store,
    back_up,
    back_up_changes,
    compact,
    copies,
    read_pending,
    restore,
    restore_changes,
)
from storage.durable import NOTE_FILE, Durable, check_file, go_back, transaction_ahead
from storage.environment import Environment
from storage.errors import FolderInUseError
from storage.meta_pages import DATA_FILE, newest_of, newest_state, read_states, transaction_of
from tests.storage.faults import (
    disk_takes_no_checkpoint,
    left_open_by_failures,
    no_more_threads,
)
from tests.storage.folder import Folder
from tests.storage.sample import hold_all, numbered, pending_ids, terms_of


def transaction(data: Path) -> int:
    """Return the number of the transaction that made the current state."""
    with (data / DATA_FILE).open("rb") as file:
        return transaction_of(newest_state(file.fileno()))


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Environment]:
    environment = Environment(tmp_path / "data")
    yield environment
    environment.close()


@pytest.fixture
def ahead(environment: Environment, tmp_path: Path) -> Path:
    """A folder as a power cut leaves it: the file has a state that the note does not have."""
    put(environment, b"on disk")
    environment.durable.hold()
    put(environment, b"not on disk")
    shutil.copytree(environment.path, tmp_path / "ahead")
    (tmp_path / "ahead" / "lock.mdb").unlink()
    return tmp_path / "ahead"


def put(environment: Environment, value: bytes) -> None:
    with environment.lmdb.begin(write=True) as txn:
        txn.put(b"name", value, db=environment.tables.meta)


def value(environment: Environment) -> bytes | None:
    with environment.lmdb.begin() as txn:
        return txn.get(b"name", db=environment.tables.meta)


def test_a_start_goes_back(ahead: Path, environment: Environment) -> None:
    assert transaction_ahead(ahead) == transaction(environment.path)
    reopened = Environment(ahead)
    assert value(reopened) == b"on disk"
    assert transaction_ahead(ahead) is None
    put(reopened, b"again")
    reopened.durable.hold()
    reopened.close()
    reopened = Environment(ahead)
    assert value(reopened) == b"again"
    reopened.close()


def test_what_is_noted_stays(environment: Environment) -> None:
    put(environment, b"on disk")
    environment.durable.hold()
    assert transaction_ahead(environment.path) is None
    go_back(environment.path)
    assert value(environment) == b"on disk"


def test_a_change_is_noted_when_it_is_made(environment: Environment) -> None:
    with environment.change() as txn:
        txn.put(b"name", b"value", db=environment.tables.meta)
    assert transaction_ahead(environment.path) is None


def test_a_note_that_was_cut_short_leaves_the_one_before(ahead: Path) -> None:
    """The earlier note is in the other of the two places."""
    with (ahead / DATA_FILE).open("rb") as file:
        states = read_states(file.fileno())
    newest = newest_of(states)
    with (ahead / NOTE_FILE).open("r+b") as note:
        note.seek(512 * (transaction_of(states[newest]) & 1))
        note.write(b"half" + states[newest])
    assert transaction_ahead(ahead) == transaction(ahead)


@pytest.mark.parametrize("is_noted", [True, False], ids=["another", "none"])
def test_a_copy_that_is_put_in_place_of_the_file(
    ahead: Path, tmp_path: Path, is_noted: bool
) -> None:
    """If there is a note, it belongs to another file."""
    folder = Folder(tmp_path / "other")
    hold_all(folder.open(), numbered(5), 1_000)
    folder.close()
    for name in ("redo.log", "redo-2.log"):
        (ahead / name).unlink()
    (folder.path / DATA_FILE).replace(ahead / DATA_FILE)
    if not is_noted:
        (ahead / NOTE_FILE).unlink()
    assert transaction_ahead(ahead) is None
    other = Folder(ahead)
    assert pending_ids(other.open()) == numbered(5)
    other.close()
    assert transaction_ahead(ahead) is None
    other.check()


def test_a_compacted_file_whose_transactions_begin_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    environment = Environment(data)
    for _ in range(20):
        put(environment, b"before")
        environment.durable.hold()
    environment.close()
    compact(data)
    environment = Environment(data)
    for _ in range(3):
        # From the first start on, neither place has anything of the earlier file.
        assert transaction_ahead(data) is None
        put(environment, b"not on disk")
        assert transaction_ahead(data) == transaction(data) < 20
        environment.durable.hold()
    environment.close()


def test_the_disk_has_the_name_of_a_new_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder has everything but the note. Without a note no start could go back after a power cut."""
    data = tmp_path / "data"
    Environment(data).close()
    (data / NOTE_FILE).unlink()
    synced: list[int] = []
    sync = os.fsync

    def note(file: int) -> None:
        if (data / NOTE_FILE).exists():
            synced.append(os.fstat(file).st_ino)
        sync(file)

    monkeypatch.setattr("os.fsync", note)
    Durable(data).close()
    assert synced == [data.stat().st_ino]


def test_a_start_has_the_disk_take_the_note_once_more(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may take it for written although an earlier sync of it failed."""
    put(environment, b"on disk")
    environment.durable.hold()
    note = environment.path / NOTE_FILE
    content = note.read_bytes()
    seen: list[bytes] = []
    write = os.pwrite

    def pwrite(file: int, written: bytes, at: int) -> int:
        if os.fstat(file).st_ino == note.stat().st_ino:
            seen.append(written)
        return write(file, written, at)

    def fdatasync(file: int) -> None:
        if os.fstat(file).st_ino == note.stat().st_ino:
            seen.append(b"synced")

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    Durable(environment.path).close()
    assert seen == [content, b"synced"]


def test_a_backup_of_it(ahead: Path, tmp_path: Path) -> None:
    back_up(ahead, tmp_path / "backup")
    backup = Environment(tmp_path / "backup")
    assert value(backup) == b"on disk"
    backup.close()


_READ = """
import sys
import lmdb
with lmdb.open(sys.argv[1], readonly=True, max_readers=64, max_dbs=32) as environment:
    if sys.argv[2] == "at once":
        txn = environment.begin()
    print("open", flush=True)
    sys.stdin.readline()
    if sys.argv[2] == "later":
        meta = environment.open_db(b"meta", create=False)
        print(environment.begin().get(b"name", db=meta).decode(), flush=True)
"""


@contextmanager
def reader(data: Path, when: str) -> Iterator[Popen[str]]:
    """A process that has LMDB's file open, and reads at once or later."""
    with Popen(
        [sys.executable, "-c", _READ, data, when], stdin=-1, stdout=-1, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process


def test_it_does_not_go_back_while_somebody_reads_the_later_state(ahead: Path) -> None:
    """Going back would overwrite the pages of the reader's state."""
    with (
        reader(ahead, "at once") as process,
        pytest.raises(FolderInUseError, match=f"copied by process {process.pid}:"),
    ):
        Environment(ahead)
    reopened = Environment(ahead)
    assert value(reopened) == b"on disk"
    reopened.close()


def test_a_backup_beside_such_a_reader_says_what_it_waits_for(
    ahead: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No gateway serves, and none could start."""
    monkeypatch.setattr(copies, "CHECKPOINT_PATIENCE", 0.1)
    with (
        reader(ahead, "at once") as process,
        pytest.raises(FolderInUseError, match=f"copied by process {process.pid}:"),
    ):
        back_up(ahead, tmp_path / "backup")


def test_whoever_has_it_open_reads_what_comes_then(ahead: Path) -> None:
    """LMDB keeps the number of the last transaction in memory that all its processes share."""
    with reader(ahead, "later") as process:
        reopened = Environment(ahead)
        put(reopened, b"again")
        reopened.durable.hold()
        assert transaction_ahead(ahead) is None
        assert process.communicate("\n")[0] == "again\n"
        put(reopened, b"not on disk")
        assert transaction_ahead(ahead) is not None
        reopened.close()
    reopened = Environment(ahead)
    assert value(reopened) == b"again"
    reopened.close()


def test_whoever_has_it_open_keeps_out_no_later_start(ahead: Path) -> None:
    """As where a check has gone back, and had nothing to write. The number that LMDB's processes share stays ahead."""
    with reader(ahead, "later") as process:
        Environment(ahead).close()
        reopened = Environment(ahead)
        put(reopened, b"again")
        reopened.durable.hold()
        reopened.close()
        assert process.communicate("\n")[0] == "again\n"
    reopened = Environment(ahead)
    assert value(reopened) == b"again"
    reopened.close()


@pytest.mark.parametrize("more", [0, 1])
def test_a_file_in_place_of_one_that_somebody_still_reads(tmp_path: Path, more: int) -> None:
    """LMDB would choose a meta page by the number of the other file's last transaction, such as the meta page that says
    that the file is empty."""
    folder, other = Folder(tmp_path / "data"), Folder(tmp_path / "other")
    hold_all(other.open(), numbered(5), 1_000)
    other.close()
    store = folder.open()
    for _ in range(1 + more):
        hold_all(store, numbered(1), 1_000)
        store.checkpoint()
    folder.close()
    back_up(other.path, tmp_path / "backup")
    with reader(folder.path, "at once") as process:
        for name in (NOTE_FILE, "redo.log", "redo-2.log"):
            (folder.path / name).unlink()
        (tmp_path / "backup" / DATA_FILE).replace(folder.path / DATA_FILE)
        with pytest.raises(FolderInUseError, match=f"copied by process {process.pid}:"):
            folder.open()
    assert pending_ids(folder.open()) == numbered(5)
    folder.check()


def test_what_the_disk_does_not_take(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Durable, "_save", fail)
    with (
        pytest.raises(RestartNeededError, match="the disk did not take a checkpoint"),
        environment.change() as txn,
    ):
        txn.put(b"name", b"value", db=environment.tables.meta)
    assert environment.durable.has_failed


def test_a_system_without_threads(tmp_path: Path) -> None:
    with no_more_threads(), pytest.raises(DataFolderError, match="can't start new thread"):
        Environment(tmp_path)
    Environment(tmp_path).close()


def test_checkpoints_need_no_new_thread(store: Store) -> None:
    hold_all(store, numbered(3), 10_000)
    with no_more_threads():
        store.checkpoint()
    assert not store.environment.durable.is_busy


def test_how_long_the_disk_takes(environment: Environment) -> None:
    durable = environment.durable
    assert list(durable.take_seconds()) == []
    for value in (b"a", b"b"):
        put(environment, value)
        durable.hold()
    times = list(durable.take_seconds())
    assert len(times) == 2
    assert min(times) > 0
    assert list(durable.take_seconds()) == []
    put(environment, b"c")
    with disk_takes_no_checkpoint(environment.path), pytest.raises(RestartNeededError):
        durable.hold()
    assert list(durable.take_seconds()) == []


def test_a_start_that_fails_leaves_no_file_open(ahead: Path) -> None:
    def start() -> Durable:
        (ahead / NOTE_FILE).unlink(missing_ok=True)
        return Durable(ahead)

    left = left_open_by_failures(ahead, start)
    assert left == [0] * len(left)
    # The start opens two files, reads one and syncs three times.
    assert len(left) > 6


class TestFileThatIsNotWhole:
    """Such a file is refused: LMDB would begin a new one, or a missing page would kill the process."""

    @pytest.fixture
    def data(self, tmp_path: Path) -> Path:
        folder = Folder(tmp_path / "data")
        hold_all(folder.open(), numbered(500), 1_000)
        folder.close()
        return folder.path

    def refused(self, data: Path, match: str) -> None:
        with pytest.raises(DataFolderError, match=match):
            Environment(data)

    @pytest.mark.parametrize("left", [8_192, 20_000, -4_096])
    def test_cut_short(self, data: Path, left: int) -> None:
        file = data / DATA_FILE
        size = file.stat().st_size
        with file.open("r+b") as opened:
            opened.truncate(left if left > 0 else size + left)
        self.refused(data, f"it has {file.stat().st_size} of {size} bytes")
        with pytest.raises(DataFolderError, match="was cut short"):
            list(read_pending(data, terms_of))

    @pytest.mark.parametrize("left", [8_192, 20_000, -4_096])
    def test_a_backup_cut_short(self, data: Path, tmp_path: Path, left: int) -> None:
        """It has no note, because nobody has opened it yet."""
        copy = tmp_path / "copy"
        size = back_up(data, copy)
        with (copy / DATA_FILE).open("r+b") as opened:
            opened.truncate(left if left > 0 else size + left)
        self.refused(copy, f"it has {(copy / DATA_FILE).stat().st_size} of {size} bytes")
        with pytest.raises(DataFolderError, match="was cut short"):
            restore(copy, tmp_path / "again")

    @pytest.mark.parametrize("left", [8_192, 20_000, -4_096, -1])
    def test_a_copy_of_an_incremental_backup_cut_short(
        self, data: Path, tmp_path: Path, left: int
    ) -> None:
        """It has no note either, and many transactions made it."""
        back_up_changes(data, tmp_path / "backups")
        size = restore_changes(tmp_path / "backups", tmp_path / "copy")
        with (tmp_path / "copy" / DATA_FILE).open("r+b") as opened:
            opened.truncate(left if left > 0 else size + left)
        self.refused(tmp_path / "copy", "was cut short")
        with pytest.raises(DataFolderError, match="was cut short"):
            back_up(tmp_path / "copy", tmp_path / "again")

    def test_what_is_free_at_its_end_may_be_missing(self, tmp_path: Path) -> None:
        value = b"x" * 100
        rows = [b"%d" % number for number in range(3_000)]
        with lmdb.open(str(tmp_path), map_size=1 << 28, sync=False) as environment:
            for value_now in (b"small", value):
                with environment.begin(write=True) as txn:
                    for row in rows:
                        txn.put(row, value_now)
            page_size = environment.stat()["psize"]
            file = tmp_path / DATA_FILE
            (tmp_path / "cut").mkdir()
            (tmp_path / "cut" / DATA_FILE).write_bytes(file.read_bytes()[:-page_size])
            with pytest.raises(DataFolderError, match="was cut short"):
                check_file(tmp_path / "cut")
            with environment.begin(write=True) as txn:
                for row in rows[3:]:
                    txn.delete(row)
            # These take the place of pages that are free by now.
            for _ in range(5):
                with environment.begin(write=True) as txn:
                    txn.put(rows[0], value)
        free = 0
        with suppress(DataFolderError):
            while True:
                os.truncate(file, file.stat().st_size - page_size)
                check_file(tmp_path)
                free += 1
        os.truncate(file, file.stat().st_size + page_size)
        assert free > 10
        with lmdb.open(str(tmp_path), map_size=1 << 28) as environment, environment.begin() as txn:
            assert [txn.get(row) for row in rows] == [value] * 3 + [None] * 2_997

    def test_gone(self, data: Path) -> None:
        (data / DATA_FILE).unlink()
        self.refused(data, r"data\.mdb is missing")
        assert not (data / DATA_FILE).exists()

    def test_empty(self, data: Path) -> None:
        (data / DATA_FILE).write_bytes(b"")
        self.refused(data, r"data\.mdb is empty")

    def test_a_smaller_one_in_its_place_is_another_one(self, data: Path, tmp_path: Path) -> None:
        other = Folder(tmp_path / "other")
        hold_all(other.open(), numbered(3), 1_000)
        other.close()
        shutil.copy(other.path / DATA_FILE, data)
        folder = Folder(data)
        assert pending_ids(folder.open()) == numbered(3)
        folder.close()

    @pytest.mark.parametrize("missing", [0, 1])
    def test_what_an_earlier_version_noted_has_no_size(self, data: Path, missing: int) -> None:
        note = (data / NOTE_FILE).read_bytes()
        (data / NOTE_FILE).write_bytes(note[:116].ljust(512, b"\0") + note[512:628])
        with (data / DATA_FILE).open("ab") as file:
            file.truncate(file.tell() - missing)
        assert transaction_ahead(data) is None
        if missing:
            self.refused(data, "was cut short")
            return
        folder = Folder(data)
        assert len(pending_ids(folder.open())) == 500
        folder.close()
