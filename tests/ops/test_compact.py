"""`tidegate compact`: the file gets smaller, and nothing is lost, whatever interrupts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage import DataFolderError, StorageError, compact
from tests.gateway.conftest import MakeGateway
from tests.gateway.memory import MemoryGateway, bodies
from tests.ops.conftest import Command


@pytest.fixture
def gateway(make_gateway: MakeGateway) -> MemoryGateway:
    """A gateway with one pending message, which also had a megabyte of messages that are gone."""
    gateway = make_gateway(retention_hours=0)
    client = gateway.connect()
    for _ in range(20):
        client.send_message(body=os.urandom(50_000))
    client.send_message(body="kept", TIMER_DELAY_SEC="3600")
    gateway.checkpoint()
    gateway.advance(20_000)
    return gateway


def size(gateway: MemoryGateway) -> int:
    return (gateway.data / "data.mdb").stat().st_size


def names(data: Path) -> list[str]:
    """Return the names of the files that matter."""
    return sorted({file.name for file in data.iterdir()} - {"audit.jsonl", "lock.mdb"})


def test_it_gets_smaller_and_keeps_what_is_held(gateway: MemoryGateway, tidegate: Command) -> None:
    gateway.stop()
    before, files = size(gateway), names(gateway.data)
    done = tidegate("compact", "--data", gateway.data)
    assert done.returncode == 0, done.stderr
    assert size(gateway) < before - 900_000
    assert names(gateway.data) == files
    assert tidegate("fsck", "--data", gateway.data).returncode == 0
    gateway.start()
    gateway.jump(3_600_000)
    assert bodies(gateway.connect().pull()) == []  # retention (0 hours) has already removed it
    assert gateway.service.broker.firing.fired == 1


def test_who_may_read_it_stays_the_same(
    gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has users' secret keys. Nor may others read the new file while it is being made."""
    gateway.stop()
    file = gateway.data / "data.mdb"
    file.chmod(0o640)
    folder_modes = []

    def sync(path: Path) -> None:
        folder_modes.append(path.parent.stat().st_mode & 0o777)

    monkeypatch.setattr("storage.copies.sync", sync)
    compact(gateway.data)
    assert file.stat().st_mode & 0o777 == 0o640
    assert folder_modes[0] == 0o700


@pytest.mark.parametrize("name", ["data.mdb", "orders.mdb"])
def test_a_link_to_another_disk_stays_one(
    gateway: MemoryGateway, tidegate: Command, tmp_path: Path, name: str
) -> None:
    gateway.stop()
    other = tmp_path / "other"
    other.mkdir()
    link, file = gateway.data / "data.mdb", other / name
    file.write_bytes(link.read_bytes())
    link.unlink()
    link.symlink_to(file)
    before = file.stat().st_size
    if os.geteuid() == 0:
        os.chown(file, 65534, 65534)
    owner = file.stat().st_uid
    done = tidegate("compact", "--data", gateway.data)
    assert done.returncode == 0, done.stderr
    assert link.readlink() == file
    assert file.stat().st_size < before - 900_000
    assert file.stat().st_uid == owner
    assert list(other.iterdir()) == [file]
    gateway.start()
    assert len(gateway.connect().look_up()) == 1


_READ = """
import sys
import lmdb
with lmdb.open(sys.argv[1], readonly=True, max_readers=64, max_dbs=32) as environment:
    messages = environment.open_db(b"messages", create=False)
    with environment.begin() as txn:
        print(txn.stat(messages)["entries"], flush=True)
        sys.stdin.readline()
        print(sum(1 for _ in txn.cursor(db=messages)), flush=True)
"""
"""Code of a process that reads, as a long backup does, until it gets a line."""


@pytest.mark.parametrize("more", [0, 1])
def test_a_backup_goes_on_in_the_old_file(gateway: MemoryGateway, more: int) -> None:
    """LMDB's processes share the number of the last transaction. In the new file its number is 1 again, and the meta
    page with an even number says that the file is empty."""
    for _ in range(more):
        gateway.connect().send_message(body="another", TIMER_DELAY_SEC="3600")
        gateway.checkpoint()
    gateway.stop()
    with subprocess.Popen(
        [sys.executable, "-c", _READ, gateway.data], stdin=-1, stdout=-1, text=True
    ) as backup:
        assert backup.stdout is not None
        assert int(backup.stdout.readline()) == 1 + more
        compact(gateway.data)
        gateway.start()
        assert len(gateway.connect().look_up()) == 1 + more
        for _ in range(3):
            gateway.connect().send_message(body="later", TIMER_DELAY_SEC="3600")
            gateway.checkpoint()
        assert backup.communicate("\n")[0] == f"{1 + more}\n"
    assert len(gateway.connect().look_up()) == 4 + more


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_makes_is_the_folders_owners(
    gateway: MemoryGateway, tidegate: Command, tmp_path: Path
) -> None:
    gateway.stop()
    restored = tmp_path / "restored"
    restored.mkdir()
    workers = tmp_path / "workers"
    workers.mkdir()
    for path in (gateway.data, *gateway.data.iterdir(), restored, workers):
        os.chown(path, 65534, 65534)
    one = workers / "worker-3"
    elsewhere = gateway.data.parent / "elsewhere"
    elsewhere.write_text("root's")
    (gateway.data / "linked").hardlink_to(elsewhere)
    for command in (
        ("compact", "--data", gateway.data),
        ("backup", "--data", gateway.data, "--to", tmp_path / "copy"),
        ("restore", "--from", tmp_path / "copy", "--data", restored),
        ("fsck", "--data", restored),
        ("restore", "--from", tmp_path / "copy", "--data", one),
        ("restore", "--from", tmp_path / "copy", "--data", workers / "other"),
    ):
        done = tidegate(*command)
        assert done.returncode == 0, done.stderr
    owners = {
        file.name: file.stat().st_uid
        for folder in (gateway.data, restored, one)
        for file in (folder, *folder.iterdir())
    }
    assert owners.pop("linked") == 0
    assert "data.mdb" in owners
    assert set(owners.values()) == {65534}
    assert (tmp_path / "copy" / "data.mdb").stat().st_uid == 0
    assert (workers / "other").stat().st_uid == 0


def test_a_serving_gateway_is_left_alone(gateway: MemoryGateway, tidegate: Command) -> None:
    done = tidegate("compact", "--data", gateway.data)
    assert done.returncode == 1
    assert "in use by process" in done.stderr
    assert len(gateway.connect().look_up()) == 1


def test_a_disk_without_room_is_told_before(
    gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.stop()
    before = (gateway.data / "data.mdb").read_bytes()
    real = os.statvfs(gateway.data)

    class Full:
        f_bavail, f_frsize = 3, real.f_frsize

    with monkeypatch.context() as patched:
        patched.setattr("storage.copies.os.statvfs", lambda path: Full)
        with pytest.raises(StorageError, match="make room, or back up to another disk"):
            compact(gateway.data)
    assert (gateway.data / "data.mdb").read_bytes() == before
    gateway.start()


def test_what_an_interrupted_attempt_left_is_no_hindrance(
    gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.stop()

    def fail(path: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("storage.copies.sync", fail)
        with pytest.raises(StorageError, match="No space left"):
            compact(gateway.data)
    assert ".compact" not in names(gateway.data)
    (gateway.data / ".compact").mkdir()
    (gateway.data / ".compact" / "data.mdb").write_bytes(b"half of it")
    sizes = compact(gateway.data)
    assert sizes.after < sizes.before
    gateway.start()
    assert len(gateway.connect().look_up()) == 1


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(5, "Input/output error")])
@pytest.mark.parametrize("synced", [0, 1])
def test_one_that_is_cut_short_leaves_nothing_beside(
    gateway: MemoryGateway,
    monkeypatch: pytest.MonkeyPatch,
    failure: type[BaseException] | BaseException,
    synced: int,
) -> None:
    gateway.stop()
    files = names(gateway.data)
    outcomes = iter([None] * synced + [failure])

    def sync(path: Path) -> None:
        if (outcome := next(outcomes)) is not None:
            raise outcome

    monkeypatch.setattr("storage.copies.sync", sync)
    with pytest.raises((StorageError, KeyboardInterrupt)):
        compact(gateway.data)
    assert names(gateway.data) == files
    gateway.start()
    assert len(gateway.connect().look_up()) == 1


def test_what_is_no_data_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataFolderError, match="is not a data folder"):
        compact(tmp_path)
    assert list(tmp_path.iterdir()) == []
