"""Capture files: rotation, numbers that run on over files, a full disk, and what a killed recorder left."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

import pytest

from recording import writer as module
from recording.format import MAGIC, OPEN_SUFFIX, SUFFIX, Kind, Record, read_capture, run_of
from recording.writer import CaptureWriter, Rotation
from tests.recording.waiting import wait_until

FRAME = b"\0\0\0\x10" + b"x" * 16


def write(writer: CaptureWriter, *frame: bytes) -> None:
    """Record a frame that differs from the last one, and wait until it is in a file."""
    writer.record(1, Kind.FROM_CLIENT, *frame)
    whole = b"".join(frame)
    wait_until(lambda: any(ends_with(file, whole) for file in writer.folder.glob("*.*")))


def ends_with(file: Path, data: bytes) -> bool:
    try:
        return file.read_bytes().endswith(data)
    except FileNotFoundError:
        return False  # it was just renamed


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}"))


def frames(folder: Path) -> list[Record]:
    return [
        record
        for file in files(folder)
        for record in read_capture(file)
        if record.kind in (Kind.FROM_CLIENT, Kind.FROM_SERVER)
    ]


def test_a_new_file_begins_with_the_open_connections(tmp_path: Path) -> None:
    with CaptureWriter(tmp_path, Rotation(file_bytes=200)) as writer:
        writer.opened(1, "broker")
        writer.opened(2, "gone")
        writer.closed(2)
        for number in range(20):
            write(writer, FRAME[:4], FRAME[4:-1], bytes([number]))
        assert writer.counts.connections == 1
    written = files(tmp_path)
    assert len(written) == writer.counts.files > 3
    assert {run_of(file.name) for file in written} == {run_of(written[0].name)}
    for file in written[1:]:
        first, *others = read_capture(file)
        assert first == (first.time_ns, 1, Kind.OPENED, b"broker")
        assert {record.connection for record in others} <= {1}
    assert [record.data[-1] for record in frames(tmp_path)] == list(range(20))
    assert writer.counts.bytes == sum(file.stat().st_size for file in written)
    assert writer.counts.lost == 0


def test_an_old_file_is_followed_by_another(tmp_path: Path) -> None:
    with CaptureWriter(tmp_path, Rotation(seconds=0.0)) as writer:
        write(writer, FRAME)
        write(writer, FRAME, b"next")
    assert len(files(tmp_path)) == 2


def test_the_oldest_files_go(tmp_path: Path) -> None:
    with CaptureWriter(tmp_path, Rotation(file_bytes=1, keep=2)) as writer:
        for number in range(5):
            write(writer, FRAME[:-1], bytes([number]))
    assert [run_of(file.name) for file in files(tmp_path)] == [run_of(files(tmp_path)[0].name)] * 2
    assert len(frames(tmp_path)) == 2


def test_the_oldest_files_go_whosever_they_are(tmp_path: Path) -> None:
    """Several workers record into one folder."""
    newer = tmp_path / f"20260101T000000Z-1-00009{SUFFIX}"
    older = tmp_path / f"20260101T000000Z-2-00001{SUFFIX}"
    for at, file in enumerate((older, newer), 1):
        file.write_bytes(b"")
        os.utime(file, (at, at))
    with CaptureWriter(tmp_path, Rotation(keep=2)):
        assert (older.exists(), newer.exists()) == (False, True)
        with CaptureWriter(tmp_path, Rotation(keep=2)):
            assert not newer.exists(), "what each worker is writing counts too"


def test_times_do_not_go_back(tmp_path: Path) -> None:
    with CaptureWriter(tmp_path, Rotation(file_bytes=1)) as writer:
        for number in range(1, 100):
            writer.opened(number, "s")
            writer.record(number, Kind.FROM_CLIENT, FRAME)
            time.sleep(0.002)
    times = [record.time_ns for file in files(tmp_path) for record in read_capture(file)]
    assert times == sorted(times)


def test_a_full_disk_loses_records_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_TRY_AGAIN_S", 0.05)
    real = os.write

    def full(descriptor: int, data: bytes | memoryview) -> int:
        if len(data) > 3:
            return real(descriptor, data[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    with CaptureWriter(tmp_path) as writer:
        writer.opened(7, "broker")
        writer.record(7, Kind.FROM_CLIENT, FRAME)
        wait_until(lambda: writer.counts.bytes > 60)
        monkeypatch.setattr(os, "write", full)
        for _ in range(3):
            writer.record(7, Kind.FROM_CLIENT, FRAME)
        wait_until(lambda: writer.counts.trouble is not None)
        assert writer.counts.trouble is not None
        assert "No space left" in writer.counts.trouble
        writer.record(7, Kind.FROM_SERVER, FRAME)
        writer.opened(8, "meanwhile")
        wait_until(lambda: writer.counts.lost == 5)
        monkeypatch.setattr(os, "write", real)
        wait_until(lambda: writer.counts.trouble is None)
        writer.record(7, Kind.FROM_CLIENT, FRAME)
    # Both files are whole, and the second says what is in neither.
    assert len(files(tmp_path)) >= 2
    assert [record.kind for record in frames(tmp_path)] == [Kind.FROM_CLIENT] * 2
    last = list(read_capture(files(tmp_path)[-1]))
    assert [record.kind for record in last] == [
        *(Kind.OPENED, Kind.OPENED, Kind.LOST, Kind.FROM_CLIENT)
    ]
    assert [record.data for record in last[:2]] == [b"broker", b"meanwhile"]
    assert last[2].connection in (7, 8), "no record is without"
    assert int.from_bytes(last[2].data, "big") == 5


def test_records_of_a_file_that_the_disk_does_not_take_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may accept all writes, and fail only when it brings them to the disk."""

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with CaptureWriter(tmp_path) as writer:
        writer.opened(1, "broker")
        write(writer, FRAME)
        assert writer.counts.lost == 0
        monkeypatch.setattr(os, "fsync", fail)
    assert writer.counts.lost == 2
    assert files(tmp_path) == [], "ingest would read it as a whole one"


def test_a_folder_that_is_away_counts_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens while a disk is mounted anew."""
    monkeypatch.setattr(module, "_TRY_AGAIN_S", 0.0)
    folder, away = tmp_path / "captures", tmp_path / "away"
    with CaptureWriter(folder, Rotation(file_bytes=1)) as writer:
        write(writer, FRAME)
        folder.rename(away)
        for lost in range(1, 4):
            writer.record(1, Kind.FROM_CLIENT, FRAME)
            wait_until(lambda lost=lost: writer.counts.lost == lost)  # type: ignore[misc]
        away.rename(folder)
        write(writer, FRAME, b"back")
        assert writer.counts.files == 2
    assert files(folder)[-1].stem.endswith("-00002")


def test_a_file_that_somebody_deletes_is_followed_by_another(tmp_path: Path) -> None:
    """As when somebody makes room: nobody could find what would be written to it."""
    with CaptureWriter(tmp_path) as writer:
        writer.opened(1, "broker")
        write(writer, FRAME)
        [file] = tmp_path.iterdir()
        file.unlink()
        write(writer, FRAME, b"later")
        assert writer.counts.lost == 0
    [left] = files(tmp_path)
    assert [record.data for record in read_capture(left)] == [b"broker", FRAME + b"later"]


def test_room_that_is_to_stay_free_stays_free(tmp_path: Path) -> None:
    with CaptureWriter(tmp_path, least_free=1 << 60) as writer:
        writer.record(1, Kind.FROM_CLIENT, FRAME)
        wait_until(lambda: writer.counts.lost == 1)
        assert "bytes free" in (writer.counts.trouble or "")
    assert frames(tmp_path) == []


def test_memory_is_bounded_while_the_disk_is_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_WAITING", 1000)
    monkeypatch.setattr(module, "_WRITE_EVERY_S", 3600)
    with CaptureWriter(tmp_path) as writer:
        for _ in range(100):
            writer.record(1, Kind.FROM_CLIENT, FRAME)
        assert 0 < writer.counts.lost < 100
    told = [record for record in read_capture(files(tmp_path)[0]) if record.kind == Kind.LOST]
    assert sum(int.from_bytes(record.data, "big") for record in told) == writer.counts.lost
    assert {record.connection for record in told} == {1}, "no record is without"
    assert len(frames(tmp_path)) + writer.counts.lost == 100


def test_what_a_killed_recorder_left_is_kept(tmp_path: Path) -> None:
    left = tmp_path / f"20260101T000000Z-1-00001{OPEN_SUFFIX}"
    left.write_bytes(b"tidegate capture 1\nabc")
    with CaptureWriter(tmp_path) as first, CaptureWriter(tmp_path) as second:
        assert left.with_suffix(SUFFIX).read_bytes() == b"tidegate capture 1\nabc"
        assert len(list(tmp_path.glob(f"*{OPEN_SUFFIX}"))) == 2, "a file in use is left alone"
        first.record(1, Kind.FROM_CLIENT, FRAME)
        second.record(1, Kind.FROM_CLIENT, FRAME)
    left.with_suffix(SUFFIX).unlink()
    assert len(frames(tmp_path)) == 2


def test_recorders_that_are_killed_at_once_replace_no_recordings(tmp_path: Path) -> None:
    with CaptureWriter(tmp_path, Rotation(file_bytes=1)) as writer:
        for _ in range(3):
            write(writer, FRAME)
    recorded = files(tmp_path)
    for beginning in (b"", MAGIC[:9], MAGIC):
        left = tmp_path / f"20990101T000000Z-{len(beginning)}-00001{OPEN_SUFFIX}"
        left.write_bytes(beginning)
        with CaptureWriter(tmp_path, Rotation(keep=4)):
            assert not left.exists()
            assert files(tmp_path) == recorded
        for ended in {*files(tmp_path)} - {*recorded}:
            ended.unlink()


def test_what_a_killed_recorder_left_is_another_ones_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several workers start at once."""
    left = tmp_path / f"20260101T000000Z-1-00001{OPEN_SUFFIX}"
    left.write_bytes(b"")
    lock = fcntl.flock

    def adopted_before(descriptor: int, operation: int) -> None:
        if left.exists():
            left.rename(left.with_suffix(SUFFIX))
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", adopted_before)
    with CaptureWriter(tmp_path) as writer:
        writer.record(1, Kind.FROM_CLIENT, FRAME)
    left.with_suffix(SUFFIX).unlink()
    assert len(frames(tmp_path)) == 1


def test_only_the_owner_may_read(tmp_path: Path) -> None:
    with CaptureWriter(tmp_path) as writer:
        write(writer, FRAME)
    (file,) = files(tmp_path)
    assert file.stat().st_mode & 0o777 == 0o600
