"""Batches between two checkpoints: they are in the redo log and in LMDB's open transaction, and both can fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import lmdb
import pytest

from storage import (
    DataFolderError,
    RestartNeededError,
    StorageError,
    StorageFullError,
    Store,
    abort,
    back_up,
    compact,
    copies,
    find_by_id,
    find_faults,
    logged,
    read_pending,
)
from storage.durable import Durable
from storage.environment import Environment
from storage.keys import STAMP
from storage.logged import LoggedTransaction
from storage.redo_log import LOG_FILES, MAX_LOG, TORN
from tests.storage.faults import (
    commits_fail,
    disk_takes_no_checkpoint,
    lmdb_cannot_be_written,
    log_cannot_be_written,
)
from tests.storage.folder import Folder, change_table, damage_log
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


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """Have a checkpoint follow every commit, and finish on disk only after the event is set."""
    monkeypatch.setattr(logged, "CHECKPOINT_SECONDS", 0)
    is_fast = Event()
    save = Durable._save

    def save_slowly(durable: Durable) -> None:
        is_fast.wait(60)
        save(durable)

    is_fast.set()
    monkeypatch.setattr(Durable, "_save", save_slowly)
    yield is_fast
    is_fast.set()


def in_lmdb(folder: Folder) -> int:
    """Count the messages that the last checkpoint left in LMDB's file."""
    assert folder.store is not None
    with folder.store.environment.view() as txn:
        return txn.stat(folder.store.tables.messages)["entries"]


def hold_one(store: Store, message_id: bytes, size: int = 10) -> None:
    hold(store, Sample(message_id, body=b"x" * size), 1_000)
    store.commit()


def test_a_killed_process_loses_no_batch(folder: Folder) -> None:
    store = folder.open()
    for message_id in numbered(50):
        hold_one(store, message_id)
    abort(store, numbered(50)[0], 5)
    store.commit()
    assert in_lmdb(folder) == 0
    store = folder.reopen_after_crash()
    assert pending_ids(store) == numbered(50)[1:]
    assert in_lmdb(folder) == 0


def test_killed_again_and_again(folder: Folder) -> None:
    store = folder.open()
    for number, message_id in enumerate(numbered(30)):
        hold_one(store, message_id)
        if number % 7 == 6:
            store.checkpoint()
        store = folder.reopen_after_crash()
    assert pending_ids(store) == numbered(30)


def test_a_checkpoint_puts_all_into_lmdb(folder: Folder) -> None:
    store = folder.open()
    hold_all(store, numbered(20), 1_000)
    store.checkpoint()
    assert in_lmdb(folder) == 20
    assert store.environment.log.size == 0
    hold_one(store, b"more")
    assert in_lmdb(folder) == 20
    assert len(pending_ids(folder.reopen_after_crash())) == 21


def test_a_stop_is_a_checkpoint(folder: Folder) -> None:
    hold_all(folder.open(), numbered(20), 1_000)
    folder.close()
    (folder.path / LOG_FILES[0]).write_bytes(b"")
    assert pending_ids(folder.open()) == numbered(20)


def test_it_is_due_after_so_many_rows(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logged, "CHECKPOINT_ROWS", 40)
    monkeypatch.setattr(logged, "CHECKPOINT_SECONDS", 3_600)
    assert not store.checkpoint_if_due()
    hold_all(store, numbered(10), 1_000)
    assert not store.checkpoint_if_due()
    hold_all(store, numbered(10), 1_000)
    assert store.checkpoint_if_due()
    assert not store.checkpoint_if_due()


def test_it_is_due_after_so_many_bytes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logged, "CHECKPOINT_BYTES", 4 << 20)
    monkeypatch.setattr(logged, "CHECKPOINT_SECONDS", 3_600)
    for message_id in numbered(4):
        assert not store.checkpoint_if_due()
        hold_one(store, message_id, 1 << 20)
    assert store.checkpoint_if_due()


def test_it_is_due_after_a_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logged, "CHECKPOINT_SECONDS", 0)
    assert not store.checkpoint_if_due()
    hold_one(store, b"a")
    hold(store, Sample(b"b"), 1_000)
    assert not store.checkpoint_if_due(), "a batch is open"
    store.commit()
    assert store.checkpoint_if_due()


@pytest.mark.parametrize("sync", [False, True])
def test_without_sync_it_is_due_sooner_where_the_log_is_large(
    folder: Folder, sync: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logged, "CHECKPOINT_SECONDS", 3_600)
    monkeypatch.setattr(logged, "EARLY_SECONDS", 0)
    monkeypatch.setattr(logged, "EARLY_BYTES", 4_000)
    store = folder.open(sync=sync)
    hold_one(store, b"small")
    assert not store.checkpoint_if_due()
    hold_one(store, b"large", 6_000)
    assert store.checkpoint_if_due() is not sync


def test_what_the_disk_does_not_hold_without_sync(folder: Folder, slow_disk: Event) -> None:
    store = folder.open()
    unheld_seconds = store.environment.unheld_seconds
    assert not unheld_seconds()
    hold_one(store, b"by the log")
    assert unheld_seconds()
    store.sync()
    assert not unheld_seconds()
    hold_one(store, b"by a checkpoint")
    slow_disk.clear()
    assert store.checkpoint_if_due()
    first = unheld_seconds()
    assert first
    hold_one(store, b"behind it")
    assert unheld_seconds() > first, "the disk may not hold what was before the checkpoint"
    slow_disk.set()
    store.environment.durable.wait()
    assert unheld_seconds() > 0, "the disk may not hold what came behind the checkpoint"
    store.checkpoint()
    assert not unheld_seconds()


def test_with_sync_the_disk_holds_all(folder: Folder) -> None:
    store = folder.open(sync=True)
    hold_one(store, b"a")
    assert not store.environment.unheld_seconds()


def test_a_batch_that_is_larger_than_the_log(folder: Folder) -> None:
    store = folder.open()
    hold_one(store, b"small")
    hold_one(store, b"large", MAX_LOG)
    assert in_lmdb(folder) == 2
    hold_one(store, b"after")
    assert set(pending_ids(folder.reopen_after_crash())) == {b"small", b"large", b"after"}


def test_without_a_log_each_batch_is_a_checkpoint(folder: Folder) -> None:
    store = folder.open()
    with log_cannot_be_written(store):
        for message_id in numbered(3):
            hold_one(store, message_id)
            assert in_lmdb(folder) == len(pending_ids(store))
    assert pending_ids(folder.reopen_after_crash()) == numbered(3)


def test_a_refused_batch_takes_nothing_with_it(folder: Folder) -> None:
    """The earlier content of the open transaction is restored from the log."""
    store = folder.open()
    hold_all(store, numbered(20), 1_000)
    with commits_fail(store):
        hold(store, Sample(b"refused"), 1_000)
        with pytest.raises(StorageFullError):
            store.commit()
    assert pending_ids(store) == numbered(20)
    hold_one(store, b"later")
    assert find_faults(store) == []
    assert set(pending_ids(folder.reopen_after_crash())) == {*numbered(20), b"later"}


def test_an_abandoned_batch_takes_nothing_with_it(folder: Folder) -> None:
    store = folder.open()
    hold_all(store, numbered(20), 1_000)
    store.put_topic(b"t", b"{}")
    store.abandon()
    assert store.topics() == []
    assert pending_ids(store) == numbered(20)


def test_a_checkpoint_that_fails_loses_nothing(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logged, "CHECKPOINT_SECONDS", 0)
    monkeypatch.setattr(logged, "RETRY_SECONDS", 3_600)
    store = folder.open()
    hold_all(store, numbered(20), 1_000)
    with lmdb_cannot_be_written(store):
        with pytest.raises(StorageError, match="a checkpoint could not be written"):
            store.checkpoint()
        assert pending_ids(store) == numbered(20)
        hold_one(store, b"meanwhile")
        assert not store.checkpoint_if_due(), "it is not tried at once again"
    assert len(pending_ids(folder.reopen_after_crash())) == 21


def test_a_full_log_refuses_what_lmdb_cannot_take(folder: Folder) -> None:
    store = folder.open()
    with lmdb_cannot_be_written(store):
        for message_id in numbered(3):
            hold_one(store, message_id, MAX_LOG // 4)
        hold(store, Sample(b"refused", body=bytes(MAX_LOG // 4)), 1_000)
        with pytest.raises(StorageFullError):
            store.commit()
        assert pending_ids(store) == numbered(3)
    hold_one(store, b"fits again", MAX_LOG // 4)
    assert len(pending_ids(folder.reopen_after_crash())) == 4


def test_a_map_that_a_killed_process_had_made_larger(folder: Folder) -> None:
    store = folder.open(map_size=1 << 30)
    for message_id in numbered(12):
        hold_one(store, message_id, 1 << 20)
    folder.reopen_after_crash()
    folder.store.environment.close()  # type: ignore[union-attr]
    folder.store = None
    store = folder.open(map_size=1 << 20)
    assert pending_ids(store) == numbered(12)
    hold_one(store, b"more", 1 << 20)


def test_a_log_for_which_the_address_space_has_no_room(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start says so, and nothing is lost."""
    store = folder.open()
    for message_id in numbered(12):
        hold_one(store, message_id, 1 << 20)
    store.environment.close()
    folder.store = None

    def fail(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as small:
        small.setattr("mmap.mmap", fail)
        with pytest.raises(StorageFullError, match=r"map cannot grow .* Cannot allocate memory"):
            folder.open(map_size=1 << 20)
    assert pending_ids(folder.open(map_size=1 << 20)) == numbered(12)


def test_the_map_grows_between_two_batches(folder: Folder) -> None:
    store = folder.open(map_size=1 << 20)
    for message_id in numbered(40):
        hold_one(store, message_id, 100_000)
    assert pending_ids(store) == numbered(40)
    assert pending_ids(folder.reopen_after_crash()) == numbered(40)


def test_the_map_grows_for_what_joins_batches_that_are_open(folder: Folder) -> None:
    store = folder.open(map_size=1 << 20)
    for message_id in numbered(80):
        store.put_note(b"first", message_id)
        hold_one(store, message_id, 50_000)
    assert pending_ids(store) == numbered(80)


_DIE = """
import os, sys
from pathlib import Path
from storage import Store
from tests.storage.sample import Sample, hold, numbered, terms_of
store = Store(Path(sys.argv[1]), terms_of)
for message_id in numbered(20):
    hold(store, Sample(message_id), 1_000)
    store.commit()
os._exit(9)
"""


@pytest.fixture
def died(tmp_path: Path) -> Path:
    """A folder whose process died before a checkpoint."""
    data = tmp_path / "died"
    subprocess.run([sys.executable, "-c", _DIE, data], check=False)
    assert (data / LOG_FILES[0]).stat().st_size > 0
    return data


@pytest.mark.parametrize("work", [back_up, compact], ids=["backup", "compact"])
def test_what_works_on_the_folder_of_a_dead_process_has_all(
    work: Callable[..., object], died: Path, tmp_path: Path
) -> None:
    if work is back_up:
        work(died, tmp_path / "backup")
        died = tmp_path / "backup"
    else:
        work(died)
    assert [terms_of(one.record).message_id for one in read_pending(died, terms_of)] == numbered(20)


def test_a_damaged_log_is_read_up_to_the_damage(died: Path) -> None:
    damage_log(died, numbered(20)[10])
    folder = Folder(died)
    store = folder.open()
    assert store.environment.log.has_gap
    assert pending_ids(store) == numbered(20)[:10]
    folder.check()


def test_a_last_record_that_is_not_whole_is_told(died: Path) -> None:
    """The record may have been acknowledged, and its loss was once not reported at all."""
    damage_log(died, numbered(20)[19])
    folder = Folder(died)
    store = folder.open()
    assert store.log_trouble == TORN
    assert pending_ids(store) == numbered(20)[:19]
    hold(store, Sample(b"after"), 1_000)
    store.commit()
    assert folder.reopen_after_crash().log_trouble is None
    folder.check()


@pytest.mark.parametrize("name", LOG_FILES)
def test_without_a_file_of_the_log_the_folder_is_refused(
    died: Path, tmp_path: Path, name: str
) -> None:
    """What was acknowledged last would be missing without a word, and putting the file back later would not help."""
    (died / name).rename(tmp_path / "mislaid")
    for _ in range(2):
        for work in (Environment, compact, lambda data: back_up(data, tmp_path / "backup")):
            with pytest.raises(DataFolderError, match=f"{name} is missing"):
                work(died)
    (tmp_path / "mislaid").rename(died / name)
    folder = Folder(died)
    assert pending_ids(folder.open()) == numbered(20)
    folder.check()


def test_a_log_that_is_lost_is_gone_on_without(died: Path) -> None:
    (died / LOG_FILES[0]).unlink()
    (died / LOG_FILES[0]).touch()
    folder = Folder(died)
    assert pending_ids(folder.open()) == []
    folder.check()


def test_what_is_lost_behind_a_damage_is_told_before_it_is_passed_over(
    died: Path, tmp_path: Path
) -> None:
    """A backup does not skip the damage. The gateway or an inspection does, and their reports are read."""
    damage_log(died, numbered(20)[0])
    for _ in range(2):
        with pytest.raises(StorageError, match="a record that cannot be read, and others behind"):
            back_up(died, tmp_path / "backup")
    environment = Environment(died)
    environment.catch_up(past_gap=True)
    assert environment.log.has_gap
    environment.close()
    back_up(died, tmp_path / "backup")


def test_a_damaged_log_that_cannot_be_begun_anew(
    died: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing stays open, so the next try begins like the first."""
    damage_log(died, numbered(20)[10])
    folder = Folder(died)
    with monkeypatch.context() as broken:
        broken.setattr(LoggedTransaction, "checkpoint", fail_to_write)
        for _ in range(2):
            with pytest.raises(StorageError, match=r"a new redo log cannot be started: .* full"):
                folder.open()
    assert pending_ids(folder.open()) == numbered(20)[:10]
    folder.check()


def fail_to_write(_: LoggedTransaction) -> None:
    raise lmdb.DiskError("the disk is full")


def test_what_follows_a_damage_does_not_come_back(died: Path) -> None:
    """They stay gone even where a new record ends exactly where they begin."""
    damage_log(died, numbered(20)[10])
    folder = Folder(died)
    store = folder.open()
    hold(store, Sample(numbered(20)[10]), 1_000)
    store.commit()
    store = folder.reopen_after_crash()
    assert not store.environment.log.has_gap
    assert pending_ids(store) == numbered(20)[:11]
    folder.check()


def test_a_log_that_cannot_be_read_at_times(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is refused meanwhile, and nothing that was stored is lost."""
    store = folder.open()
    hold_all(store, numbered(20), 1_000)

    def fail(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr("os.pread", fail)
        store.put_topic(b"t", b"{}")
        store.abandon()
        with pytest.raises(StorageError, match="cannot be read again"):
            store.topics()
        with pytest.raises(StorageError, match="cannot be read again"):
            hold_one(store, b"refused")
    assert pending_ids(store) == numbered(20)
    hold_one(store, b"later")
    assert set(pending_ids(folder.reopen_after_crash())) == {*numbered(20), b"later"}


def test_what_was_stored_is_there_although_the_disk_took_no_checkpoint(folder: Folder) -> None:
    store = folder.open()
    hold_one(store, b"a")
    store.checkpoint()
    hold_one(store, b"b")
    with disk_takes_no_checkpoint(folder.path):
        with pytest.raises(RestartNeededError, match="did not take"):
            store.checkpoint()
        with pytest.raises(RestartNeededError):
            store.checkpoint_if_due()
        with pytest.raises(RestartNeededError):
            hold_one(store, b"refused")
        with pytest.raises(StorageError):
            folder.close()
    assert pending_ids(folder.open()) == [b"a", b"b"]


def crashed_meanwhile(folder: Folder, slow_disk: Event) -> Folder:
    """Return what a process leaves that dies while the disk takes its first checkpoint. The checkpoint has the first of
    twenty messages, and the second file of the log has the others. The next checkpoint waits."""
    store = folder.open()
    slow_disk.clear()
    for message_id in numbered(20):
        hold_one(store, message_id)
        store.checkpoint_if_due()
    assert store.environment.durable.is_busy
    assert in_lmdb(folder) == 1
    crashed = folder.path.with_name("crashed")
    shutil.copytree(folder.path, crashed)
    slow_disk.set()
    return Folder(crashed)


def test_what_is_stored_while_the_disk_takes_its_time(folder: Folder, slow_disk: Event) -> None:
    after = crashed_meanwhile(folder, slow_disk)
    assert pending_ids(after.open()) == numbered(20)
    assert in_lmdb(after) == 20
    after.check()


def test_a_damaged_log_whose_checkpoint_is_lost(folder: Folder, slow_disk: Event) -> None:
    """The damage is at the beginning of the log's second file."""
    after = crashed_meanwhile(folder, slow_disk)
    damage_log(after.path, numbered(20)[1])
    store = after.open()
    assert store.environment.log.has_gap
    assert pending_ids(store) == numbered(20)[:1]
    after.check()


def test_pages_in_memory_are_bounded_though_the_disk_takes_its_time(
    folder: Folder, slow_disk: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint then waits for the one before."""
    monkeypatch.setattr(logged, "MOST_ROWS", 60)
    store = folder.open()
    slow_disk.clear()
    hold_one(store, b"a")
    assert store.checkpoint_if_due()
    hold_all(store, numbered(20), 1_000)
    assert not store.checkpoint_if_due()
    hold_all(store, numbered(20), 1_000)
    assert store._txn.is_due
    slow_disk.set()
    assert store.checkpoint_if_due()


def test_lmdb_that_has_given_up(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    store = folder.open()
    hold_one(store, b"a")

    class GivenUp:
        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

        def begin(self, write: bool = False) -> object:
            raise lmdb.PanicError("mdb_txn_begin: MDB_PANIC")

    real = store.environment.lmdb
    with monkeypatch.context() as broken:
        broken.setattr(store.environment, "lmdb", GivenUp())
        store.put_topic(b"t", b"{}")
        store.abandon()
        with pytest.raises(RestartNeededError, match="MDB_PANIC"):
            store.reopen()
        with pytest.raises(RestartNeededError):
            hold_one(store, b"refused")
    assert pending_ids(folder.reopen_after_crash()) == [b"a"]


_READ = """
import sys
from pathlib import Path
import lmdb
with lmdb.open(sys.argv[1], readonly=True, max_dbs=32) as environment:
    messages = environment.open_db(b"messages", create=False)
    with environment.begin() as txn:
        print(txn.stat(messages)["entries"], flush=True)
        sys.stdin.read()
        print(sum(1 for _ in txn.cursor(messages)), flush=True)
"""

_SERVE = """
import sys
from pathlib import Path
from storage import Store
from tests.storage.sample import Sample, hold, terms_of
store = Store(Path(sys.argv[1]), terms_of)
print("open", flush=True)
for line in sys.stdin:
    if line == "checkpoint\\n":
        store.checkpoint()
    else:
        hold(store, Sample(line.strip().encode()), 1_000)
        store.commit()
    print("done", flush=True)
"""


def test_whoever_reads_beside_a_gateway_waits_for_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped gateway makes no checkpoint."""
    data = tmp_path / "data"
    with subprocess.Popen(
        [sys.executable, "-c", _SERVE, data], stdin=-1, stdout=-1, text=True
    ) as serving:
        assert serving.stdin is not None
        assert serving.stdout is not None

        def do(what: str) -> None:
            print(what, file=serving.stdin, flush=True)
            assert serving.stdout is not None
            assert serving.stdout.readline() == "done\n"

        assert serving.stdout.readline() == "open\n"
        do("a")
        with monkeypatch.context() as patched:
            patched.setattr(copies, "sleep", lambda seconds: do("checkpoint"))
            back_up(data, tmp_path / "backup")
        do("b")
        with monkeypatch.context() as patched:
            patched.setattr(copies, "CHECKPOINT_PATIENCE", -1)
            with pytest.raises(StorageError, match="has not written a checkpoint"):
                back_up(data, tmp_path / "none")
        serving.stdin.close()
    backup = Folder(tmp_path / "backup")
    assert pending_ids(backup.open()) == [b"a"]
    backup.close()


_SLOW_DISK = """
import os, sys, time
from pathlib import Path
from storage import Store
from tests.storage.sample import Sample, hold, terms_of

def sync(file):
    if os.readlink(f"/proc/self/fd/{file}").endswith("data.mdb"):
        time.sleep(0.2)

os.fdatasync = sync
store = Store(Path(sys.argv[1]), terms_of, sync=False)
for number in range(1_000):
    hold(store, Sample(b"%d" % number), 1_000)
    store.commit()
    if number == 5:
        print("stored", flush=True)
    store.checkpoint()
"""
"""Code of a process that makes each checkpoint as soon as the disk has the one before, as a busy gateway does."""


def test_the_last_checkpoint_may_never_be_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    monkeypatch.setattr(copies, "CHECKPOINT_PATIENCE", 2)
    with subprocess.Popen(
        [sys.executable, "-c", _SLOW_DISK, data], stdout=-1, text=True
    ) as serving:
        assert serving.stdout is not None
        assert serving.stdout.readline() == "stored\n"
        try:
            back_up(data, tmp_path / "backup")
        finally:
            serving.kill()
    backup = Folder(tmp_path / "backup")
    assert len(pending_ids(backup.open())) >= 6
    backup.close()


def test_a_process_that_died_while_somebody_read_keeps_no_lock(tmp_path: Path) -> None:
    """A serving process always holds LMDB's writer lock, and a reader keeps the lock file alive."""
    data = tmp_path / "data"
    with (
        subprocess.Popen(
            [sys.executable, "-c", _SERVE, data], stdin=-1, stdout=-1, text=True
        ) as serving,
    ):
        assert serving.stdin is not None
        assert serving.stdout is not None
        assert serving.stdout.readline() == "open\n"
        for line in ("a", "checkpoint", "b"):
            print(line, file=serving.stdin, flush=True)
            assert serving.stdout.readline() == "done\n"
        with subprocess.Popen(
            [sys.executable, "-c", _READ, data], stdin=-1, stdout=-1, text=True
        ) as reading:
            assert reading.stdin is not None
            assert reading.stdout is not None
            assert reading.stdout.readline() == "1\n"
            serving.kill()
            serving.wait()
            folder = Folder(data)
            assert pending_ids(folder.open()) == [b"a", b"b"]
            hold_one(folder.open(), b"c")
            folder.close()
            reading.stdin.close()
            assert reading.stdout.readline() == "1\n", "what the others do, a view does not see"
    assert pending_ids(folder.open()) == [b"a", b"b", b"c"]
    folder.check()


def test_an_older_program_would_not_do_it_again(folder: Folder) -> None:
    folder.open()
    folder.close()
    with lmdb.open(str(folder.path), max_dbs=32) as environment:
        meta = environment.open_db(b"meta", create=False)
        with environment.begin() as txn:
            assert int(txn.get(b"format", db=meta) or 0) >= 4


def test_a_log_that_cannot_be_opened(folder: Folder) -> None:
    folder.open()
    folder.close()
    (folder.path / LOG_FILES[0]).unlink(missing_ok=True)
    (folder.path / LOG_FILES[0]).mkdir()
    with pytest.raises(DataFolderError, match=LOG_FILES[0]):
        folder.open()
    (folder.path / LOG_FILES[0]).rmdir()
    (folder.path / LOG_FILES[0]).touch()


def test_queues_go_on_after_a_crash(folder: Folder) -> None:
    store = folder.open()
    for round_ in range(3):
        for message_id in numbered(3):
            send(store, Sample(b"%d-" % round_ + message_id), stored_ms=round_)
        store.commit()
        store = folder.reopen_after_crash()
    assert len(ids_in(store)) == 9


@pytest.mark.parametrize("before", [[], [b"before"]], ids=["one file", "both files"])
@pytest.mark.parametrize("stamp", [None, b"short"])
def test_without_the_stamp_a_start_says_that_batches_may_be_gone(
    folder: Folder, stamp: bytes | None, before: list[bytes]
) -> None:
    """Whether one file of the log has records or both have."""
    store = folder.open()
    for message_id in before:
        hold_one(store, message_id)
        store.checkpoint()
    hold_all(store, [b"after"], 1_000)
    store.environment.close()
    folder.store = None

    def damage(txn: lmdb.Transaction, meta: lmdb._Database) -> None:
        if stamp is None:
            txn.delete(STAMP, db=meta)
        else:
            txn.put(STAMP, stamp, db=meta)

    change_table(folder.path, "meta", damage)
    store = folder.open()
    assert store.environment.log.has_gap
    assert pending_ids(store) == before
    assert not folder.open().environment.log.has_gap


@pytest.mark.parametrize("stamp", [None, b"short"])
def test_what_follows_is_stored_where_the_stamp_is_lost_and_the_log_empty(
    folder: Folder, stamp: bytes | None
) -> None:
    """As in a folder that was restored from a backup, which has no log."""
    folder.open()
    store = folder.damage("meta", STAMP, stamp)
    assert store.environment.log.trouble is None
    hold_all(store, [b"a", b"b"], 1_000)
    assert pending_ids(folder.reopen_after_crash()) == [b"a", b"b"]


def test_who_meets_a_page_that_cannot_be_read_has_nobody_else_refused(folder: Folder) -> None:
    """LMDB refuses further use of a transaction that met such a page, and all reads and writes share one."""
    store = folder.open()
    hold_all(store, [b"a"], 1_000)
    store.put_group(b"g", b"settings" * 9)
    store.commit()
    store.checkpoint()
    file = folder.path / "data.mdb"
    content = file.read_bytes()
    size = store.reader().stat()["psize"]
    places = [at for at in range(0, len(content), size) if b"settings" in content[at : at + size]]

    def have_flags(flags: list[bytes]) -> None:
        with file.open("r+b") as data:
            for place, own in zip(places, flags, strict=True):
                data.seek(place + 10)
                data.write(own)

    # These are flags of neither a leaf nor a branch page.
    have_flags([b"\4\0"] * len(places))
    for work in (
        lambda: hold_all(store, [b"b"], 1_000),
        lambda: find_by_id(store, b"a"),
        lambda: fire(store, 500),
    ):
        with pytest.raises(lmdb.CorruptedError):
            store.groups()
        work()
    assert pending_ids(store) == [b"a", b"b"]
    have_flags([content[place + 10 : place + 12] for place in places])
    assert dict(store.groups()) == {b"g": b"settings" * 9}
