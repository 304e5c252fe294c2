"""Backups taken while a gateway writes: they are restored, and read for what has not fired."""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event, get_ident
from typing import Any

import lmdb
import pytest

from storage import (
    DataFolderError,
    StorageError,
    Store,
    abort,
    back_up,
    back_up_changes,
    compact,
    copies,
    find_faults,
    read_pending,
    restore,
    restore_changes,
)
from storage.copies import alone_in, copy_open
from storage.keys import pack_u64
from tests.storage.folder import Folder
from tests.storage.sample import (
    Sample,
    fire,
    hold,
    hold_all,
    id_of,
    numbered,
    pending_ids,
    terms_of,
)

BACK_UP = """
import sys
from pathlib import Path
from storage import back_up
print(back_up(Path(sys.argv[1]), Path(sys.argv[2])))
"""


RESTORE_SLOWLY = """
import shutil, sys
from pathlib import Path
from storage import copies

def copy(source, target):
    with open(source, "rb") as file, open(target, "wb") as made:
        made.write(file.read(2 * 4096))
        print("begun", flush=True)
        sys.stdin.readline()
        made.write(file.read())

shutil.copyfile = copy
copies.restore(Path(sys.argv[1]), Path(sys.argv[2]))
"""


HOLD_NUMBER = """
import fcntl, sys
with open(sys.argv[1], "r+b") as lock:
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(sys.argv[2]))
    print("held", flush=True)
    sys.stdin.readline()
"""


def back_up_beside(data: Path, target: Path) -> int:
    """Back up in another process, as LMDB forbids one process to open a file twice."""
    done = subprocess.run(
        [sys.executable, "-c", BACK_UP, data, target], check=True, capture_output=True, text=True
    )
    return int(done.stdout)


def test_backup_of_an_open_store_has_its_last_commit(folder: Folder, tmp_path: Path) -> None:
    store = folder.open()
    hold_all(store, numbered(500), 2_000)
    store.checkpoint()
    hold(store, Sample(b"not committed"), 3_000)
    size = back_up_beside(folder.path, tmp_path / "backup")
    store.commit()
    assert (tmp_path / "backup" / "data.mdb").stat().st_size == size
    copy = Folder(tmp_path / "backup")
    assert pending_ids(copy.open()) == numbered(500)
    copy.check()


def test_store_goes_on_after_a_backup(folder: Folder, tmp_path: Path) -> None:
    store = folder.open()
    hold_all(store, numbered(50), 2_000)
    store.checkpoint()
    back_up_beside(folder.path, tmp_path / "backup")
    assert fire(store, 2_000) == 50
    assert [find_faults(store), pending_ids(store)] == [[], []]


def test_backup_leaves_free_pages_behind(folder: Folder, tmp_path: Path) -> None:
    store = folder.open()
    hold_all(store, numbered(3_000), 2_000)
    for message_id in numbered(2_990):
        abort(store, message_id, 1)
    store.commit()
    folder.close()
    before = (folder.path / "data.mdb").stat().st_size
    assert 0 < back_up(folder.path, tmp_path / "backup") <= before


def test_restored_folder_is_the_one_backed_up(folder: Folder, tmp_path: Path) -> None:
    hold_all(folder.open(), numbered(20), 2_000)
    folder.close()
    back_up(folder.path, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "again")
    copy = Folder(tmp_path / "again")
    assert pending_ids(copy.open()) == numbered(20)
    copy.check()
    assert (tmp_path / "backup" / "data.mdb").exists()


@pytest.mark.parametrize("is_there", [False, True])
def test_what_a_killed_backup_left_is_begun_anew(
    folder: Folder, tmp_path: Path, is_there: bool
) -> None:
    hold_all(folder.open(), numbered(20), 2_000)
    folder.close()
    target = tmp_path / "backup"
    left = (target if is_there else tmp_path) / ".backup.unfinished"
    left.mkdir(parents=True)
    (left / "data.mdb").write_bytes(b"half of it")
    back_up(folder.path, target)
    assert not left.exists()
    copy = Folder(target)
    assert pending_ids(copy.open()) == numbered(20)
    copy.check()


def test_the_folder_of_a_gateway_that_serves_can_be_restored_from(
    folder: Folder, tmp_path: Path
) -> None:
    """This is not the intended use, but the copy has what the gateway held when the copy began."""
    store = folder.open()
    hold_all(store, numbered(1_000), 2_000)
    store.checkpoint()
    command = [sys.executable, "-c", RESTORE_SLOWLY, str(folder.path), str(tmp_path / "again")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as copying:
        assert copying.stdout is not None
        assert copying.stdout.readline() == "begun\n"
        for message_id in numbered(5):
            abort(store, message_id, 1)
            store.commit()
            store.checkpoint()
        copying.communicate("\n")
    copy = Folder(tmp_path / "again")
    assert pending_ids(copy.open()) == numbered(1_000)
    copy.check()


@pytest.mark.parametrize("kind", ["folder", "link", "where one stands"])
def test_an_empty_folder_may_be_the_target(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The folder itself is kept, because a disk may be mounted there."""
    folder.open()
    folder.close()
    place = tmp_path / "place"
    place.mkdir()
    target = {"folder": place, "link": tmp_path / "link", "where one stands": Path()}[kind]
    (tmp_path / "link").symlink_to(place)
    monkeypatch.chdir(place)
    before = place.stat().st_ino
    assert back_up(folder.path, target) > 0
    assert place.stat().st_ino == before
    assert [file.name for file in place.iterdir()] == ["data.mdb"]
    assert list(read_pending(place, terms_of)) == []


@pytest.mark.parametrize("is_there", [True, False])
def test_what_a_killed_attempt_left_is_no_hindrance(
    folder: Folder, tmp_path: Path, *, is_there: bool
) -> None:
    """Nor is a `lost+found`, which a new file system has, in the target."""
    folder.open()
    folder.close()
    place = tmp_path / "place"
    if is_there:
        (place / "lost+found").mkdir(parents=True)
    script = (
        f"import os, shutil, sys; {RESTORE_SLOWLY.replace('sys.stdin.readline()', 'os._exit(9)')}"
    )
    command = [sys.executable, "-c", script, str(folder.path), str(place)]
    assert subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode == 9
    left = place / ".place.unfinished" if is_there else tmp_path / ".place.unfinished"
    with alone_in(left), pytest.raises(DataFolderError, match="another copy is being made"):
        restore(folder.path, place)
    restore(folder.path, place)
    assert not left.exists()
    assert list(read_pending(place, terms_of)) == []


@pytest.mark.parametrize("name", ["durable", "redo.log"])
def test_a_file_that_the_disk_cannot_read_is_told_as_such(
    folder: Folder, tmp_path: Path, name: str
) -> None:
    folder.open()
    folder.close()
    damaged = shutil.copytree(folder.path, tmp_path / "damaged")
    (damaged / name).unlink()
    # Nothing is mapped at the address 0, so that reading it is an input/output error.
    (damaged / name).symlink_to("/proc/self/mem")
    told = f"cannot read the data folder {damaged}: .*Input/output error"
    with pytest.raises(DataFolderError, match=told):
        back_up(damaged, tmp_path / "backup")
    with pytest.raises(DataFolderError, match=told):
        compact(damaged)


def test_a_restore_that_fails_names_both_folders(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of either may be the one that fails."""
    folder.open()
    folder.close()
    back_up(folder.path, tmp_path / "backup")

    def fail(source: Path, target: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("storage.copies.shutil.copyfile", fail)
    told = f"{tmp_path}/backup could not be copied to {tmp_path}/restored: Input/output error"
    with pytest.raises(StorageError, match=told):
        restore(tmp_path / "backup", tmp_path / "restored")
    assert list(tmp_path.glob("*restored*")) == []


def test_nothing_is_overwritten(folder: Folder, tmp_path: Path) -> None:
    folder.open()
    folder.close()
    target = tmp_path / "backup"
    target.mkdir()
    (target / "precious").write_text("mine")
    with pytest.raises(DataFolderError, match="is not empty"):
        back_up(folder.path, target)
    with pytest.raises(DataFolderError, match="is not empty"):
        restore(folder.path, target)
    assert [entry.name for entry in target.iterdir()] == ["precious"]


def test_a_link_to_what_is_missing_is_no_target(folder: Folder, tmp_path: Path) -> None:
    """As to a disk that is not mounted."""
    folder.open()
    folder.close()
    link = tmp_path / "link"
    link.symlink_to("missing")
    for copy in (back_up, restore):
        with pytest.raises(DataFolderError, match="it is a link to missing, which does not exist"):
            copy(folder.path, link)
    assert link.is_symlink()
    assert not (tmp_path / ".link.unfinished").exists()


def test_a_failed_copy_leaves_nothing(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.open()
    folder.close()

    def fail(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("storage.copies.sync", fail)
    (tmp_path / "place").mkdir()
    with pytest.raises(StorageError, match="No space left"):
        back_up(folder.path, tmp_path / "place" / "backup")
    assert list((tmp_path / "place").iterdir()) == []


def test_a_ctrl_c_ends_a_copy_at_once_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB itself copies on to the end, which can take minutes."""
    is_awaited = Event()

    class Pool(ThreadPoolExecutor):
        """A pool that tells when its work is awaited."""

        def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
            future = super().submit(*args, **kwargs)
            is_awaited.set()
            return future

    class Endless:
        """Stands for LMDB, which copies a file without an end. It gives up where nothing ends it."""

        gave_up = False

        def copyfd(self, descriptor: int, *, compact: bool) -> None:
            is_awaited.wait()
            # As one that comes just before the main thread waits, it does not end the wait.
            signal.pthread_kill(get_ident(), signal.SIGINT)
            until = time.monotonic() + 60
            try:
                while time.monotonic() < until:
                    os.write(descriptor, b"")
            except OSError as error:
                raise lmdb.Error(str(error)) from error
            self.gave_up = True

    monkeypatch.setattr(copies, "ThreadPoolExecutor", Pool)
    endless: Any = Endless()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            copy_open(endless, tmp_path / "copy")
    finally:
        signal.signal(signal.SIGINT, before)
    assert not endless.gave_up
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_there", [True, False])
def test_nor_does_one_whose_name_the_disk_did_not_take(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_there: bool
) -> None:
    folder.open()
    folder.close()
    target = tmp_path / "place" / "backup"
    (target if is_there else target.parent).mkdir(parents=True)

    def fail(path: Path) -> None:
        if path.is_dir():
            raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr("storage.copies.sync", fail)
        with pytest.raises(StorageError, match="Input/output error"):
            back_up(folder.path, target)
    assert [*target.parent.rglob("*")] == ([target] if is_there else [])
    back_up(folder.path, target)


def test_a_reader_of_the_same_number_in_another_container(folder: Folder, tmp_path: Path) -> None:
    """LMDB locks the byte of its lock file whose number is the process id."""
    folder.open()
    folder.close()
    command = [sys.executable, "-c", HOLD_NUMBER, str(folder.path / "lock.mdb"), str(os.getpid())]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(DataFolderError, match="of the same number in another container"):
            back_up(folder.path, tmp_path / "backup")
        other.communicate("\n")


def test_a_backup_on_a_full_disk_can_be_read(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup has no lock file of LMDB's. Where the disk has no room for one, LMDB would kill the process (SIGBUS)."""
    hold_all(folder.open(), numbered(20), 2_000)
    folder.close()
    backup = tmp_path / "backup"
    back_up(folder.path, backup)
    monkeypatch.setattr("storage.environment.free_bytes", lambda path: 0)
    assert len(list(read_pending(backup, terms_of))) == 20
    restore(backup, tmp_path / "again")
    assert [file.name for file in backup.iterdir()] == ["data.mdb"]
    assert (tmp_path / "again" / "data.mdb").exists()


@pytest.mark.parametrize("kind", ["missing", "empty", "no database", "not ours", "newer"])
def test_what_is_no_data_folder_is_refused(tmp_path: Path, kind: str) -> None:
    data = tmp_path / "data"
    if kind != "missing":
        data.mkdir()
    if kind == "no database":
        (data / "data.mdb").write_bytes(b"nothing of LMDB's" * 1000)
    elif kind in ("not ours", "newer"):
        with lmdb.open(str(data), max_dbs=1) as environment, environment.begin(write=True) as txn:
            name = b"meta" if kind == "newer" else b"theirs"
            txn.put(b"format", b"999", db=environment.open_db(name, txn=txn))
    with pytest.raises(DataFolderError):
        restore(data, tmp_path / "again")
    with pytest.raises(DataFolderError):
        back_up(data, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("was_read", [False, True])
def test_a_folder_that_may_not_be_written_says_which_file_keeps_it_from_being_read(
    folder: Folder, tmp_path: Path, was_read: bool
) -> None:
    folder.open()
    folder.close()
    # Only root may enter the folders above pytest's own temporary one.
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        backup = Path(place, "backup")
        back_up(folder.path, backup)
        if was_read:
            restore(backup, tmp_path / "first")
        os.seteuid(65534)
        try:
            with pytest.raises(
                DataFolderError, match=r"cannot write .*/backup/lock\.mdb, in which"
            ):
                restore(backup, tmp_path / "second")
        finally:
            os.seteuid(0)


def test_a_copy_of_an_older_format_can_be_restored(folder: Folder, tmp_path: Path) -> None:
    """The copy is upgraded when it is opened. Reading it without opening it fails with an error that says so."""
    store = folder.open()
    store.batch_transaction().put(b"format", b"1", db=store.tables.meta)
    store.commit()
    folder.close()
    back_up(folder.path, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "again")
    with pytest.raises(DataFolderError, match="'tidegate fsck' or 'tidegate serve' brings it"):
        list(read_pending(tmp_path / "again", terms_of))
    Store(tmp_path / "again", terms_of).close()
    assert list(read_pending(tmp_path / "again", terms_of)) == []
    Store(folder.path, terms_of).close()


def lose_pages(data: Path, content: bytes) -> None:
    """Overwrite the pages that have this content with zeros, as a disk does that loses a write."""
    file = (data / "data.mdb").read_bytes()
    pages = (file[at : at + mmap.PAGESIZE] for at in range(0, len(file), mmap.PAGESIZE))
    kept = (bytes(len(page)) if content in page else page for page in pages)
    (data / "data.mdb").write_bytes(b"".join(kept))


@pytest.mark.parametrize("lost", [b"redo log", b"checks"], ids=["settings", "names of tables"])
def test_a_folder_that_lmdb_cannot_read_is_told_to_be_damaged(tmp_path: Path, lost: bytes) -> None:
    """It was told not to be Tidegate's."""
    folder = Folder(tmp_path / "data")
    hold_all(folder.open(), [b"a"], 1_000)
    folder.close()
    lose_pages(folder.path, lost)
    told = "cannot read the data folder .*; data.mdb is damaged: restore a backup, unless 'tidegate fsck"
    with pytest.raises(DataFolderError, match=told):
        back_up(folder.path, tmp_path / "backup")
    with pytest.raises(DataFolderError, match=told):
        list(read_pending(folder.path, terms_of))


@pytest.mark.parametrize("inbox_size", [0, 1_000])
def test_what_is_on_other_pages_than_a_lost_one_is_read(tmp_path: Path, inbox_size: int) -> None:
    """It is all that is left of a damaged folder without a backup: one of it cannot be made. What has fired or was
    aborted is not missed."""
    folder = Folder(tmp_path / "data")
    store = folder.open(inbox_size=inbox_size)
    ids = numbered(200)
    hold_all(store, ids[:49], 1_000)
    hold_all(store, [b"fired", b"aborted"], 500)
    abort(store, b"aborted", 400)
    fire(store, 500)
    store.commit()
    for some in (ids[49:150], ids[150:]):
        hold_all(store, some, 1_000)
    number = pack_u64(50)
    row = store.settled_reader().get(number, db=store.tables.messages)
    assert row is not None
    folder.close()
    lose_pages(folder.path, number + row)
    damaged: set[bytes] = set()
    found = [id_of(one.record) for one in read_pending(folder.path, terms_of, damaged)]
    assert set(found) < set(ids)
    assert len(found) + len(damaged) == len(ids)
    assert 1 < len(damaged) < 100
    told = "could not be copied .*; data.mdb is damaged: restore a backup, unless 'tidegate fsck"
    with pytest.raises(StorageError, match=told):
        back_up(folder.path, tmp_path / "backup")


def test_pending_are_read_in_the_order_of_their_times(folder: Folder) -> None:
    store: Store = folder.open()
    for due_ms, message_id in ((3_000, b"third"), (1_000, b"fired"), (2_000, b"second")):
        hold(store, Sample(message_id), due_ms)
    store.commit()
    fire(store, 1_000)
    folder.close()
    found = list(read_pending(folder.path, terms_of))
    assert [(one.due_ms, id_of(one.record)) for one in found] == [
        (2_000, b"second"),
        (3_000, b"third"),
    ]


def test_the_disk_holds_the_names_of_all_folders_that_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = set()
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").resolve())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    data = tmp_path / "a" / "data"
    Folder(data).open().close()
    back_up(data, tmp_path / "b" / "c" / "copy")
    back_up_changes(data, tmp_path / "d" / "chain")
    assert {tmp_path, *(tmp_path / name for name in ("a", "b", "b/c", "d"))} <= synced


@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
def test_data_folders_that_are_made_are_for_their_owner_alone(tmp_path: Path, mask: int) -> None:
    """Data folders hold the keys of users. Others may read a backup, as they may have to copy it."""
    data, backup, chain = (tmp_path / name for name in ("data", "one", "chain"))
    restored = (tmp_path / "first", tmp_path / "second")
    before = os.umask(mask)
    try:
        Store(data, terms_of).close()
        back_up(data, backup)
        back_up_changes(data, chain)
        restore(backup, restored[0])
        restore_changes(chain, restored[1])
    finally:
        os.umask(before)
    for folder in (data, *restored):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for folder in (backup, chain):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o777 & ~mask
