"""The redo log by itself: a reader gets every appended record up to the first that is not whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.redo_log import LOG_FILES, MAX_LOG, TORN, RedoLog, Row, has_records, new_stamp
from tests.scratch import scratch_folder
from tests.storage.faults import left_open_by_failures

STAMP = b"stampone"
RECORDS: list[dict[str, list[Row]]] = [
    {"messages": [(b"1", b"record"), (b"2", b"")]},
    {"timers": [(b"k", None)], "ids": [(b"", b"\xff" * 300)]},
    {"meta": [(b"a", b"b"), (b"a", None), (b"a", b"c")]},
]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RedoLog]:
    yield from opened(tmp_path, sync=False)


@pytest.fixture
def synced(tmp_path: Path) -> Iterator[RedoLog]:
    yield from opened(tmp_path, sync=True)


def opened(folder: Path, *, sync: bool) -> Iterator[RedoLog]:
    """Open an empty log for one test."""
    log = RedoLog(folder, sync=sync)
    assert list(log.records(STAMP)) == []
    yield log
    log.close()


def again(folder: Path, stamp: bytes = STAMP) -> tuple[list[dict[str, list[Row]]], bool]:
    """Return what the next process reads, and whether it finds a gap."""
    log = RedoLog(folder, sync=True)
    try:
        return list(log.records(stamp)), log.has_gap
    finally:
        log.close()


def fill(log: RedoLog) -> list[int]:
    """Append all records, and return where each one ends."""
    ends = []
    for record in RECORDS:
        assert log.append(record)
        ends.append(log.size)
    return ends


def append_two_and_sync_one(log: RedoLog, *, second_stays: bool) -> None:
    """Append two records, of which the second is refused because the disk does not sync it.

    :param second_stays: whether the second record cannot be overwritten either.
    """
    assert log.append(RECORDS[0])
    with pytest.MonkeyPatch.context() as patch:

        def fail(file: int, *_: object) -> int:
            if second_stays:
                patch.setattr("os.pwrite", fail)
            raise OSError(5, "Input/output error")

        patch.setattr("os.fdatasync", fail)
        with pytest.raises(OSError, match="Input/output"):
            log.append(RECORDS[1])


def test_what_was_appended_is_read_again(log: RedoLog, tmp_path: Path) -> None:
    assert not has_records(tmp_path, STAMP)
    fill(log)
    assert again(tmp_path) == (RECORDS, False)
    assert has_records(tmp_path, STAMP)


@pytest.mark.parametrize("file", [0, 1])
def test_what_follows_is_appended_behind_it(log: RedoLog, tmp_path: Path, file: int) -> None:
    stamp = STAMP
    if file == 1:
        stamp = new_stamp()
        log.restart(stamp)
    fill(log)
    other = RedoLog(tmp_path, sync=True)
    list(other.records(stamp))
    assert other.append({"ids": [(b"later", b"")]})
    other.close()
    assert again(tmp_path, stamp) == ([*RECORDS, {"ids": [(b"later", b"")]}], False)


def test_what_was_read_is_on_the_disk(
    log: RedoLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that wrote the records may have died before syncing them."""
    fill(log)
    synced: list[int] = []
    monkeypatch.setattr("os.fdatasync", lambda file: synced.append(os.fstat(file).st_ino))
    assert again(tmp_path) == (RECORDS, False)
    assert (tmp_path / LOG_FILES[0]).stat().st_ino in synced


def test_a_checkpoint_leaves_nothing_to_do(log: RedoLog, tmp_path: Path) -> None:
    fill(log)
    stamp = new_stamp()
    log.restart(stamp)
    assert again(tmp_path, stamp) == ([], False)
    assert log.append(RECORDS[1])
    assert again(tmp_path, stamp) == ([RECORDS[1]], False)


@given(st.data())
def test_it_ends_at_the_first_record_that_is_not_whole(data: st.DataObject) -> None:
    """Any byte may be the changed one. The reader reports a gap if more records follow."""
    with scratch_folder() as folder:
        log = RedoLog(folder, sync=False)
        list(log.records(STAMP))
        ends = fill(log)
        log.close()
        file = folder / LOG_FILES[0]
        content = bytearray(file.read_bytes())
        at = data.draw(st.integers(0, ends[-1] - 1))
        content[at] ^= data.draw(st.integers(1, 255))
        file.write_bytes(content)
        whole = sum(end <= at for end in ends)
        read, has_gap = again(folder)
        assert read == RECORDS[:whole]
        assert has_gap == (whole < len(RECORDS) - 1)


@given(st.integers(0, 400))
def test_a_file_that_is_cut_short(size: int) -> None:
    with scratch_folder() as folder:
        log = RedoLog(folder, sync=False)
        list(log.records(STAMP))
        ends = fill(log)
        log.close()
        file = folder / LOG_FILES[0]
        file.write_bytes(file.read_bytes()[:size])
        whole = sum(end <= size for end in ends)
        # What follows may have been acknowledged. That cannot be told where the file ends between records.
        is_within_one = whole < len(RECORDS) and size >= [0, *ends][whole] + 16
        assert again(folder) == (RECORDS[:whole], is_within_one)


SECOND = b"stamptwo"


def fill_two(folder: Path) -> tuple[int, int]:
    """Append records before a checkpoint, which is lost, and after it. Return where the records of either file end."""
    log = RedoLog(folder, sync=False)
    assert list(log.records(STAMP)) == []
    before = fill(log)[-1]
    log.restart(SECOND)
    after = fill(log)[-1]
    log.close()
    return before, after


def test_without_the_checkpoint_both_files_are_read(tmp_path: Path) -> None:
    fill_two(tmp_path)
    log = RedoLog(tmp_path, sync=True)
    for _ in range(2):
        assert list(log.records(STAMP)) == [*RECORDS, *RECORDS]
        assert log.needs_checkpoint
        assert not log.has_gap
    log.restart(new_stamp())
    assert not log.needs_checkpoint
    log.close()
    assert again(tmp_path, SECOND) == (RECORDS, False)


def test_a_checkpoint_without_records_before_it(tmp_path: Path) -> None:
    log = RedoLog(tmp_path, sync=False)
    assert list(log.records(STAMP)) == []
    log.restart(SECOND)
    fill(log)
    log.close()
    assert again(tmp_path) == (RECORDS, False)


def test_what_follows_two_checkpoints_does_not_follow_the_first(tmp_path: Path) -> None:
    log = RedoLog(tmp_path, sync=False)
    assert list(log.records(STAMP)) == []
    fill(log)
    log.restart(SECOND)
    fill(log)
    log.restart(b"stamp-3-")
    assert log.append(RECORDS[1])
    log.close()
    assert again(tmp_path, SECOND) == ([*RECORDS, RECORDS[1]], False)
    assert again(tmp_path, STAMP)[0] == []


@given(st.data())
def test_two_files_end_at_the_first_record_that_is_not_whole(data: st.DataObject) -> None:
    with scratch_folder() as folder:
        ends = fill_two(folder)
        number = data.draw(st.integers(0, 1))
        file = folder / LOG_FILES[number]
        content = bytearray(file.read_bytes())
        # Any byte, and often one of the first record, which says what the file follows.
        at = data.draw(st.integers(0, 63) | st.integers(0, ends[number] - 1))
        content[at] ^= data.draw(st.integers(1, 255))
        file.write_bytes(content)
        read, has_gap = again(folder)
        assert read == [*RECORDS, *RECORDS][: len(read)]
        assert len(read) < 6 if number else len(read) < 3
        # If the damage hides which record it follows, the first record behind the checkpoint could as well be an older
        # one.
        if number == 0 or 3 < len(read) < 5 or (len(read) == 3 and at >= 32):
            assert has_gap
        elif len(read) == 5:
            assert not has_gap, "the last one was being written"


@pytest.mark.parametrize("byte", range(4))
def test_a_last_record_with_a_damaged_length_is_torn(tmp_path: Path, byte: int) -> None:
    """It seems to end behind its file, which was not cut short."""
    log = RedoLog(tmp_path, sync=False)
    assert list(log.records(STAMP)) == []
    *_, last, _ = fill(log)
    log.close()
    file = tmp_path / LOG_FILES[0]
    content = bytearray(file.read_bytes())
    content[last + byte] ^= 0x80
    file.write_bytes(content)
    assert again(tmp_path) == (RECORDS[:-1], False)


def test_the_last_record_of_two_files_is_torn(tmp_path: Path) -> None:
    fill_two(tmp_path)
    file = tmp_path / LOG_FILES[1]
    content = file.read_bytes().rstrip(b"\0")
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    log = RedoLog(tmp_path, sync=True)
    assert list(log.records(STAMP)) == [*RECORDS, *RECORDS[:-1]]
    assert log.trouble == TORN
    log.close()


def test_the_last_record_behind_two_checkpoints_is_torn(tmp_path: Path) -> None:
    """The other file says what its records followed, which is over."""
    log = RedoLog(tmp_path, sync=False)
    list(log.records(STAMP))
    for stamp in (SECOND, b"stamp-3-"):
        fill(log)
        log.restart(stamp)
    ends = fill(log)
    log.close()
    file = tmp_path / LOG_FILES[0]
    content = bytearray(file.read_bytes())
    content[ends[-1] - 1] ^= 1
    file.write_bytes(content)
    log = RedoLog(tmp_path, sync=True)
    assert list(log.records(b"stamp-3-")) == RECORDS[:-1]
    assert log.trouble == TORN
    log.close()


@pytest.mark.parametrize("written", range(1, 15))
def test_the_first_record_after_a_checkpoint_is_not_written_to_its_end(
    tmp_path: Path, written: int
) -> None:
    """No sender has its response yet, so nothing is missing. Any of the record's four sectors may be written, and the
    others may still have the old bytes, as a disk may leave them."""
    log = RedoLog(tmp_path, sync=True)
    list(log.records(STAMP))
    for _ in range(4):
        fill(log)
    log.restart(SECOND)
    fill(log)
    log.restart(b"stamp-3-")
    file = tmp_path / LOG_FILES[0]
    before = file.read_bytes()
    assert log.append({"ids": [(b"later", b"\xff" * 1_900)]})
    assert 3 * 512 < log.size <= 4 * 512
    log.close()
    sectors = [bytearray(before), bytearray(file.read_bytes())]
    for number in range(4):
        part = slice(512 * number, 512 * (number + 1))
        sectors[0][part] = sectors[written >> number & 1][part]
    file.write_bytes(sectors[0])
    assert again(tmp_path, SECOND) == (RECORDS, False)


def test_the_first_record_after_a_checkpoint_is_refused(synced: RedoLog, tmp_path: Path) -> None:
    assert synced.append(RECORDS[0])
    synced.restart(SECOND)
    with pytest.MonkeyPatch.context() as patch:

        def fail(file: int) -> None:
            raise OSError(5, "Input/output error")

        patch.setattr("os.fdatasync", fail)
        with pytest.raises(OSError, match="Input/output"):
            synced.append(RECORDS[1])
    assert again(tmp_path) == ([RECORDS[0]], False)


def test_what_does_not_fit_is_not_written(log: RedoLog, tmp_path: Path) -> None:
    assert not log.append({"messages": [(b"k", bytes(MAX_LOG))]})
    assert log.size == 0
    half: list[Row] = [(b"k", bytes(MAX_LOG // 2))]
    assert log.append({"messages": half})
    assert not log.append({"messages": half})
    assert again(tmp_path) == ([{"messages": half}], False)
    assert (tmp_path / LOG_FILES[0]).stat().st_size <= MAX_LOG


def test_it_is_written_from_its_beginning_again(log: RedoLog, tmp_path: Path) -> None:
    fill(log)
    size = (tmp_path / LOG_FILES[0]).stat().st_size
    for _ in range(1_000):
        log.restart(new_stamp())
        fill(log)
    assert (tmp_path / LOG_FILES[0]).stat().st_size == size


def test_a_file_grows_page_by_page(log: RedoLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the page cache has it in large folios, each of which may be written whole for a few bytes."""
    write, sizes = os.pwrite, []

    def noted(file: int, content: bytes, at: int) -> int:
        sizes.append(len(content))
        return write(file, content, at)

    monkeypatch.setattr("os.pwrite", noted)
    assert log.append(RECORDS[0])
    assert log.append(RECORDS[1])
    *grown, first, second = sizes
    assert set(grown) == {4096}
    assert first + second == log.size


def test_a_record_that_could_not_be_synced_is_not_done_again(
    synced: RedoLog, tmp_path: Path
) -> None:
    """The record's batch was refused."""
    append_two_and_sync_one(synced, second_stays=False)
    assert again(tmp_path) == ([RECORDS[0]], False)
    assert synced.append(RECORDS[2])
    assert again(tmp_path) == ([RECORDS[0], RECORDS[2]], False)


def test_a_record_that_is_written_in_part_is_refused(
    synced: RedoLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk whose file system writes nothing over what is there."""
    assert synced.append(RECORDS[0])
    write = os.pwrite
    with monkeypatch.context() as full:
        full.setattr("os.pwrite", lambda file, content, at: write(file, content[:-1], at))
        with pytest.raises(OSError, match="No space left"):
            synced.append(RECORDS[1])
    assert again(tmp_path) == ([RECORDS[0]], False)


def test_a_folder_without_a_log_has_no_records(tmp_path: Path) -> None:
    assert not has_records(tmp_path, STAMP)


def test_a_record_that_stays_although_it_was_refused(synced: RedoLog, tmp_path: Path) -> None:
    """The disk can be read, but not written."""
    append_two_and_sync_one(synced, second_stays=True)
    assert again(tmp_path) == (RECORDS[:2], False)
    assert list(synced.records(STAMP)) == [RECORDS[0]]
    assert synced.append(RECORDS[2])
    assert again(tmp_path) == ([RECORDS[0], RECORDS[2]], False)


def test_what_could_not_be_read_is_read_later(
    log: RedoLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log)

    def fail(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr("os.pread", fail)
        with pytest.raises(OSError, match="Input/output"):
            list(log.records(STAMP))
    assert list(log.records(STAMP)) == RECORDS


def test_a_reader_that_ends_early_takes_nothing_away(log: RedoLog, tmp_path: Path) -> None:
    fill(log)
    size = log.size
    next(log.records(STAMP))
    assert log.size == size
    other = RedoLog(tmp_path, sync=False)
    next(other.records(STAMP))
    assert list(other.records(STAMP)) == RECORDS
    other.close()


def test_what_was_read_before_and_is_damaged_now(log: RedoLog, tmp_path: Path) -> None:
    fill(log)
    file = tmp_path / LOG_FILES[0]
    content = bytearray(file.read_bytes())
    content[log.size - 1] ^= 1
    file.write_bytes(content)
    with pytest.raises(OSError, match="not what was written"):
        list(log.records(STAMP))


@pytest.mark.parametrize("is_other_there", [False, True])
def test_the_disk_has_the_name_of_a_new_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_other_there: bool
) -> None:
    """Also where a lost file is made anew beside the other one."""
    if is_other_there:
        (tmp_path / LOG_FILES[1]).write_bytes(b"records")
    synced: list[int] = []
    sync = os.fsync

    def note(file: int) -> None:
        synced.append(os.fstat(file).st_ino)
        sync(file)

    monkeypatch.setattr("os.fsync", note)
    RedoLog(tmp_path, sync=True).close()
    assert synced == [tmp_path.stat().st_ino]


def test_a_start_that_fails_leaves_no_file_open(tmp_path: Path) -> None:
    left = left_open_by_failures(tmp_path, lambda: RedoLog(tmp_path, sync=True))
    # The start opens two files and the folder, syncs the folder, and reads the size of both files.
    assert left == [0] * 6


def test_a_refused_record_is_taken_back_on_the_disk_too(
    synced: RedoLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut could bring it back: it was written, and only its sync failed."""
    assert synced.append(RECORDS[0])
    end = synced.size
    headers: list[bytes] = []
    sync = os.fdatasync

    def fail_once(file: int) -> None:
        headers.append(os.pread(file, 16, end))
        if len(headers) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(file)

    monkeypatch.setattr(os, "fdatasync", fail_once)
    with pytest.raises(OSError, match="Input/output error"):
        synced.append(RECORDS[1])
    assert any(headers[0])
    assert headers[1:] == [bytes(16)]
