"""The data folder: who may open it, which folders are refused, and how the map grows."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb
import pytest

from storage import (
    DataFolderError,
    StorageError,
    StorageFullError,
    Store,
    abort,
    back_up,
    find_faults,
    fire_due,
)
from storage.durable import NOTE_FILE
from storage.environment import LOCK_FILE
from storage.upgrades import FORMAT_VERSION
from tests.storage.folder import Folder, change_table
from tests.storage.sample import (
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

ROOT = Path(__file__).parents[2]
TINY_MAP = 256 << 10
BODY = b"x" * 10_000


def refused(path: Path, match: str) -> None:
    """Check that the folder cannot be opened, and that the reason is one line that names it."""
    with pytest.raises(DataFolderError, match=match) as raised:
        Folder(path).open()
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


class TestOpening:
    def test_missing_folders_are_made(self, tmp_path: Path) -> None:
        folder = Folder(tmp_path / "a" / "b")
        send(folder.open(), Sample(b"a"))
        folder.check()

    def test_in_use_by_this_process(self, store: Store, folder: Folder) -> None:
        send(store, Sample(b"a"))
        refused(folder.path, "in use by process")
        store.commit()
        assert ids_in(store) == [b"a"]

    def test_in_use_though_somebody_removed_the_lock_file(
        self, store: Store, folder: Folder
    ) -> None:
        """A second process would wait for LMDB for ever without a message, or undo what the first one has written."""
        (folder.path / LOCK_FILE).unlink()
        refused(folder.path, r"in use by process \?:")
        send(store, Sample(b"a"))
        store.commit()
        folder.close()
        assert ids_in(folder.open()) == [b"a"]

    def test_in_use_by_another_process_which_is_named(self, folder: Folder) -> None:
        script = (
            "import sys; from pathlib import Path; from tests.storage.folder import Folder;"
            "folder = Folder(Path(sys.argv[1])); folder.open(); print('open', flush=True);"
            "sys.stdin.read()"
        )
        owner = subprocess.Popen(
            [sys.executable, "-c", script, str(folder.path)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"open\n"
            refused(folder.path, f"in use by process {owner.pid}:")
            # The kernel releases the folder however its owner ends.
            owner.kill()
            owner.wait()
        assert pending_ids(folder.open()) == []

    def test_a_file_system_without_locks_is_no_other_process(
        self, folder: Folder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder.open()
        folder.close()

        def fail(*_: object) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        monkeypatch.setattr(fcntl, "flock", fail)
        refused(folder.path, f"cannot lock the data folder {folder.path}: No locks available")
        target = folder.path.with_name("copy")
        with pytest.raises(DataFolderError, match=r"cannot lock .*: No locks available"):
            back_up(folder.path, target)
        assert not target.exists()

    def test_another_format(self, folder: Folder) -> None:
        write_format(folder, b"%d" % (FORMAT_VERSION + 1))
        refused(
            folder.path,
            f"format {FORMAT_VERSION + 1}, this program reads format {FORMAT_VERSION}",
        )
        # A refused folder is released: with the right format it opens.
        restore_format(folder)
        folder.open()

    def test_a_foreign_lmdb_file_is_left_as_it_is(self, tmp_path: Path) -> None:
        with lmdb.open(str(tmp_path)) as foreign, foreign.begin(write=True) as txn:
            txn.put(b"meta", b"somebody's")
        refused(tmp_path, "was not written by Tidegate")
        with lmdb.open(str(tmp_path)) as foreign, foreign.begin() as txn:
            assert list(txn.cursor()) == [(b"meta", b"somebody's")]

    @pytest.mark.parametrize("name", [b"messages", b"meta"])
    def test_a_foreign_lmdb_file_with_tables_named_like_ours(
        self, tmp_path: Path, name: bytes
    ) -> None:
        with lmdb.open(str(tmp_path), max_dbs=2) as foreign:
            foreign.open_db(name)
        refused(tmp_path, "was not written by Tidegate")

    @pytest.mark.parametrize("version", [b"json", b"0", b"\xff"])
    def test_a_file_with_a_format_that_never_was(self, folder: Folder, version: bytes) -> None:
        """The error once denied that Tidegate had written the folder, though only Tidegate writes such files."""
        write_format(folder, version)
        (folder.path / NOTE_FILE).touch()
        refused(folder.path, "is damaged, and its format cannot be read: restore a backup")
        with pytest.raises(DataFolderError, match="it is damaged, or was not written by Tidegate"):
            back_up(folder.path, folder.path.with_name("copy"))
        restore_format(folder)

    @pytest.mark.parametrize("content", [b"not a database", b"\0" * 8192])
    def test_a_file_that_is_no_lmdb_file(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "data.mdb").write_bytes(content)
        refused(tmp_path, f"cannot open the data folder {tmp_path}: MDB_INVALID")
        refused(
            tmp_path,
            "; data.mdb is damaged: restore a backup, unless 'tidegate fsck --repair' can repair it",
        )
        assert (tmp_path / "data.mdb").read_bytes() == content

    def test_a_path_that_is_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"")
        refused(path, "cannot write to the data folder")
        refused(path / "below", "cannot write to the data folder")

    def test_a_folder_whose_lock_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / LOCK_FILE).mkdir()
        refused(tmp_path, "cannot write to the data folder")

    def test_a_folder_that_a_full_disk_has_no_room_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(path: Path, mode: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr("storage.environment.make_folder", fail)
        refused(tmp_path / "new", "No space left on device; make room on its disk")

    @pytest.mark.parametrize(
        ("error", "advice"),
        [
            (errno.EACCES, "run this as the owner of the folder"),
            (errno.EROFS, "copy it to a disk that can be written to"),
        ],
    )
    def test_a_folder_that_cannot_be_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, advice: str
    ) -> None:
        """The error once asked for another folder, though this one has the messages."""

        def fail(path: Path, mode: int) -> None:
            raise OSError(error, os.strerror(error))

        monkeypatch.setattr("storage.environment.make_folder", fail)
        refused(tmp_path, f"{os.strerror(error)}; {advice}")
        refused(tmp_path / "missing", f"{os.strerror(error)}; choose a folder that this user may")

    def test_a_link_to_what_is_missing(self, tmp_path: Path) -> None:
        """As to a disk that is not mounted: a new folder there would be on the wrong disk."""
        link = tmp_path / "link"
        link.symlink_to("missing")
        refused(link, "it is a link to missing, which does not exist")
        assert list(tmp_path.iterdir()) == [link]

    @pytest.mark.parametrize("name", ["data.mdb", "durable", "redo.log", "redo-2.log"])
    def test_a_pipe_with_the_name_of_a_file(self, tmp_path: Path, name: str) -> None:
        """Reading it would take until somebody writes to it."""
        data = tmp_path / "data"
        Folder(data).open().close()
        (data / name).unlink()
        os.mkfifo(data / name)
        refused(data, f"cannot open the data folder {data}: {name} is no file")
        with pytest.raises(DataFolderError, match="is no file"):
            back_up(data, tmp_path / "copy")

    def test_a_folder_whose_database_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "data.mdb").mkdir()
        refused(tmp_path, "cannot open the data folder")

    def test_a_map_that_the_address_space_cannot_hold(self, tmp_path: Path) -> None:
        with pytest.raises(DataFolderError, match="more address space \\(ulimit -v") as raised:
            Folder(tmp_path).open(map_size=1 << 60)
        assert str(raised.value).startswith("cannot open the data folder")
        Folder(tmp_path).open().close()
        with address_space_of(1 << 30), pytest.raises(DataFolderError, match="more address space"):
            back_up(tmp_path, tmp_path / "copy")

    def test_a_full_disk_without_room_for_lmdbs_lock(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """LMDB would kill the process (SIGBUS)."""
        monkeypatch.setattr("storage.environment.free_bytes", lambda path: 0)
        refused(tmp_path, f"cannot open the data folder {tmp_path}: No space left on device")

    def test_a_full_disk_can_still_be_read_from(self, folder: Folder) -> None:
        send(folder.open(), Sample(b"a"))
        folder.close()
        with nothing_more_fits():
            store = folder.open()
            found = ids_in(store)
        assert found == [b"a"]

    def test_what_is_free_is_what_the_disk_says(self, store: Store) -> None:
        assert store.environment.disk_free() > 0

    def test_what_is_free_where_the_file_is_on_another_disk(
        self, folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder.open()
        folder.close()
        other = tmp_path / "other"
        other.mkdir()
        file = folder.path / "data.mdb"
        file.symlink_to(file.rename(other / "data.mdb"))
        store = folder.open()
        free = {folder.path: 7, other: 900}
        monkeypatch.setattr(
            "storage.environment.free_bytes",
            lambda descriptor: free[Path(f"/proc/self/fd/{descriptor}").readlink()],
        )
        assert store.environment.disk_free() == 7
        free[folder.path], free[other] = 900, 7
        assert store.environment.disk_free() == 7

    def test_closing_in_a_batch_keeps_it(self, store: Store, folder: Folder) -> None:
        send(store, Sample(b"a"))
        hold(store, Sample(b"b"), 5)
        store = folder.open()
        assert ids_in(store) == [b"a"]
        assert pending_ids(store) == [b"b"]

    def test_closing_lets_go_of_the_folder_even_if_the_batch_does_not_fit(
        self, store: Store, folder: Folder
    ) -> None:
        send(store, Sample(b"kept"))
        store.commit()
        send(store, Sample(b"lost", body=BODY * 100))
        with nothing_more_fits(folder), pytest.raises(StorageError):
            folder.close()
        assert ids_in(folder.open()) == [b"kept"]


def write_format(folder: Folder, version: bytes) -> None:
    """Write the folder's format as another version of the program would."""
    store = folder.open()
    store.batch_transaction().put(b"format", version, db=store.tables.meta)
    store.commit()
    folder.close()


def restore_format(folder: Folder) -> None:
    """Write the folder's format as this program does."""
    change_table(
        folder.path,
        "meta",
        lambda txn, meta: txn.put(b"format", b"%d" % FORMAT_VERSION, db=meta),
    )


@contextmanager
def nothing_more_fits(folder: Folder | None = None) -> Iterator[None]:
    """Have the kernel refuse files larger than the database's current size. Without `folder`, have it refuse every
    write to a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (folder.path / "data.mdb").stat().st_size if folder is not None else 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def address_space_of(further: int) -> Iterator[None]:
    """Let the process map only so many bytes more than it has mapped."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + further
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class TestGrowth:
    def test_a_small_map_takes_batch_after_batch(self, folder: Folder) -> None:
        store = folder.open(map_size=TINY_MAP)
        sent = []
        for batch, count in enumerate((1, 100, 3, 400, 20)):
            for message_id in numbered(count, b"%d-" % batch):
                send(store, Sample(message_id, body=BODY))
                sent.append(message_id)
            store.commit()
        assert ids_in(store) == sent
        # The folder has outgrown the size that its map begins with.
        store = folder.open(map_size=TINY_MAP)
        assert ids_in(store) == sent
        send(store, Sample(b"more", body=BODY * 100))
        store.commit()
        assert ids_in(store) == [*sent, b"more"]

    def test_firing_aborting_and_small_rows_grow_it_too(self, folder: Folder) -> None:
        store = folder.open(map_size=TINY_MAP)
        keys = tuple(b"key %d" % number * 20 for number in range(10))
        for batch in range(20):
            for message_id in numbered(50, b"%d-" % batch):
                hold(store, Sample(message_id, keys=keys), 1_000)
            abort(store, b"%d-00007" % batch, 5)
            store.commit()
        assert fire(store, 1_000) == 20 * 49

    def test_a_message_larger_than_the_map(self, folder: Folder) -> None:
        store = folder.open(map_size=TINY_MAP)
        send(store, Sample(b"large", body=b"x" * (4 << 20)))
        store.commit()
        assert ids_in(store) == [b"large"]

    def test_a_batch_that_grows_after_its_transaction_began_fits_the_second_time(
        self, folder: Folder
    ) -> None:
        store = folder.open(map_size=TINY_MAP)
        hold_all(store, [b"a"], 1_000)

        def late_batch() -> None:
            abort(store, b"a", 5)
            for message_id in numbered(300):
                send(store, Sample(message_id, body=BODY))
            store.commit()

        with pytest.raises(StorageFullError):
            late_batch()
        assert ids_in(store) == []
        assert states(store, b"a") == ["pending"]
        late_batch()
        assert ids_in(store) == numbered(300)
        assert states(store, b"a") == ["aborted"]

    def test_no_larger_map_can_be_had(self, folder: Folder) -> None:
        store = folder.open(map_size=64 << 20)
        hold_all(store, [b"held"], 1_000)
        with address_space_of(32 << 20):
            for message_id in numbered(1_000):
                send(store, Sample(message_id, body=BODY))
            with pytest.raises(StorageFullError, match="cannot grow"):
                store.commit()
            # The store continues with the room it has: it reads, fires and stores what fits.
            assert ids_in(store) == []
            assert fire(store, 1_000) == 1
            send(store, Sample(b"small"), stored_ms=1_000)
            store.commit()
            assert ids_in(store) == [b"held", b"small"]
            for message_id in numbered(1_000):
                send(store, Sample(message_id, body=BODY), stored_ms=1_000)
            with pytest.raises(StorageFullError, match="cannot grow"):
                fire_due(store, 2_000, 2_000, 10)
            with pytest.raises(StorageFullError, match="cannot grow"):
                store.commit()
        for message_id in numbered(1_000):
            send(store, Sample(message_id, body=BODY), stored_ms=1_000)
        store.commit()
        assert ids_in(store) == [b"held", b"small", *numbered(1_000)]


class TestFull:
    """LMDB itself finds no room, in its map (which is kept from growing) or on the disk."""

    @pytest.fixture
    def crowded(self, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Store:
        store = folder.open(map_size=TINY_MAP)
        hold_all(store, [b"held"], 1_000)
        monkeypatch.setattr(store.environment, "make_room", lambda batch_bytes: None)
        return store

    def too_much(self, store: Store) -> None:
        for message_id in numbered(100):
            send(store, Sample(message_id, body=BODY))
            hold(store, Sample(message_id, body=BODY), 2_000)

    def assert_untouched(self, store: Store) -> None:
        assert not store.has_changes
        assert ids_in(store) == []
        assert pending_ids(store) == [b"held"]
        assert find_faults(store) == []
        send(store, Sample(b"small"))
        store.commit()
        assert ids_in(store) == [b"small"]
        assert fire(store, 1_000) == 1
        assert ids_in(store) == [b"small", b"held"]

    def test_commit(self, crowded: Store) -> None:
        sequence = crowded.next_sequence
        self.too_much(crowded)
        with pytest.raises(StorageFullError, match="no room for the batch"):
            crowded.commit()
        assert crowded.next_sequence == sequence
        self.assert_untouched(crowded)

    def test_firing(self, crowded: Store) -> None:
        self.too_much(crowded)
        with pytest.raises(StorageFullError, match="no room for the batch"):
            fire_due(crowded, 1_000, 1_000, 10)
        with pytest.raises(StorageFullError, match="no room for the batch"):
            crowded.commit()
        self.assert_untouched(crowded)

    def test_aborting(self, crowded: Store) -> None:
        self.too_much(crowded)
        with pytest.raises(StorageFullError, match="no room for the batch"):
            abort(crowded, b"held", 5)
        # Whoever waits for the commit must get the error too.
        with pytest.raises(StorageFullError, match="no room for the batch"):
            crowded.commit()
        self.assert_untouched(crowded)

    def test_again_and_again(self, crowded: Store) -> None:
        for _ in range(5):
            self.too_much(crowded)
            with pytest.raises(StorageFullError):
                crowded.commit()
        self.assert_untouched(crowded)

    def test_the_file_cannot_grow(self, store: Store, folder: Folder) -> None:
        hold_all(store, [b"held"], 1_000)
        with nothing_more_fits(folder):
            self.too_much(store)
            with pytest.raises(StorageError):
                store.commit()
        self.assert_untouched(store)

    def test_the_file_cannot_grow_and_consumers_keep_their_progress(
        self, store: Store, folder: Folder
    ) -> None:
        store.progress.note(b"g", TOPIC, 0, 7)
        with nothing_more_fits(folder):
            self.too_much(store)
            with pytest.raises(StorageError):
                store.commit()
        assert store.progress.get(b"g", TOPIC, 0) == 7
        assert folder.open().progress.get(b"g", TOPIC, 0) == 7


def test_a_folder_that_makes_no_sense_is_refused_with_what_looks_through_it(
    folder: Folder, tmp_path: Path
) -> None:
    store = folder.open()
    store.batch_transaction().put(b"\xff" * 9, b"y", db=store.tables.messages)
    store.commit()
    folder.close()
    path = folder.path.rename(tmp_path / "old data")
    with pytest.raises(DataFolderError, match=r"damaged.*tidegate fsck --data '.*/old data'"):
        Folder(path).open()
    # The folder is not kept locked.
    with pytest.raises(DataFolderError, match="is damaged"):
        Folder(path).open()
