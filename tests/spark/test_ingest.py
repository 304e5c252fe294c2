"""Recordings to tables: complete, each record once, and again so after a kill."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from gateway.wire.commands import encode_command, encode_response
from spark_jobs.capture import FROM_CLIENT, FROM_SERVER, OPENED
from spark_jobs.errors import JobError
from spark_jobs.ingest import MISSING, batches, find_sources, ingest, read_table, totals
from spark_jobs.messages import DEFAULT_LEVELS
from spark_jobs.sources import Part, ranges, read_part
from spark_jobs.tables import Receipt, receipts
from tests.spark.conftest import RECORDED
from tests.spark.making import capture_bytes, exchange, log_bytes, packet, pcap_bytes, pcapng_bytes


def test_every_frame_is_in_a_table(spark: SparkSession, tables: Path) -> None:
    counts = totals(tables)
    pairs = read_table(spark, tables, "pair")
    both = pairs.where("asked_ns is not null and answered_ns is not null").count()
    assert counts["files"] == 4
    assert both == counts["paired"]
    assert 2 * both + (pairs.count() - both) + counts["aside"] == counts["frames"]


def test_messages_of_real_clients_are_found(spark: SparkSession, tables: Path) -> None:
    messages = read_table(spark, tables, "messages")
    asked = {
        (row["asked"], row["topic"])
        for row in messages.where("event = 'sent' and asked is not null").collect()
    }
    for topic in ("recorded-550", "recorded-498", "recorded-cpp"):
        assert {(how, topic) for how in ("level", "seconds", "milliseconds", "time")} <= asked
    assert messages.where("event = 'recalled'").count() == 1
    assert messages.where("event = 'unreadable'").count() == 0
    sent = messages.where("event = 'sent' and answer_code = 0").select("message_id", "topic")
    got = messages.where("event = 'delivered'").select("message_id", "topic")
    assert sent.join(got, ["message_id", "topic"]).select("message_id").distinct().count() > 20


def test_a_disk_that_is_full_before_anything_is_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unused: Any = None

    def fail(file: Path, *_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("write_bytes", "write_text"):
        monkeypatch.setattr(Path, name, fail)
    with pytest.raises(JobError, match=r"cannot write .*plan\.json: No space left on device"):
        ingest(unused, [RECORDED], tmp_path, levels=DEFAULT_LEVELS)


def test_a_folder_that_cannot_be_locked_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unused: Any = None

    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", fail)
    with pytest.raises(JobError, match=f"cannot lock {tmp_path}: No locks available; use"):
        ingest(unused, [RECORDED], tmp_path, levels=DEFAULT_LEVELS)


def test_files_are_read_once_and_what_a_kill_left_is_not_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    recordings = tmp_path / "recordings"
    recordings.mkdir()
    folder = tmp_path / "tables"
    shutil.copy(RECORDED / "mqadmin.capture", recordings)
    assert ingest(spark, [recordings], folder, levels=DEFAULT_LEVELS).files == 1
    (folder / ".unfinished-batch=00002" / "rows").mkdir(parents=True)
    (folder / ".unfinished-batch=00002" / "rows" / "rubbish.parquet").write_bytes(b"half of it")
    shutil.copy(RECORDED / "cpp.capture", recordings)
    done = ingest(spark, [recordings], folder, levels=DEFAULT_LEVELS)
    assert (done.files, done.known) == (1, 1)
    assert len(batches(folder)) == 2
    files = read_table(spark, folder, "file").select("file").collect()
    assert sorted(Path(row["file"]).name for row in files) == ["cpp.capture", "mqadmin.capture"]
    assert ingest(spark, [recordings], folder, levels=DEFAULT_LEVELS).files == 0
    with (recordings / "cpp.capture").open("ab") as file:
        file.write(b"more")
    with pytest.raises(JobError, match="has changed"):
        ingest(spark, [recordings], folder, levels=DEFAULT_LEVELS)


def test_recordings_of_the_same_name_have_connections_of_their_own(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Else a replay would take their clients for one."""
    frames = list(zip((FROM_CLIENT, FROM_SERVER), exchange(1), strict=True))
    packets = [packet(99, frames[0][1]), packet(499, frames[1][1], from_client=False)]
    folders = tmp_path / "one", tmp_path / "two"
    for number, folder in enumerate(folders):
        folder.mkdir()
        records = [(at, 1, kind, frame) for at, (kind, frame) in enumerate(frames, number + 1)]
        (folder / "monday.capture").write_bytes(capture_bytes(records))
        (folder / "monday.pcap").write_bytes(pcap_bytes((number, data) for data in packets))
    ingest(spark, folders, tmp_path / "tables", levels=DEFAULT_LEVELS)
    pairs = read_table(spark, tmp_path / "tables", "pair")
    assert pairs.count() == pairs.select("connection").distinct().count() == 4


def test_a_run_that_ends_before_its_last_step_is_gone_on_with(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = (1, 1, OPENED, b"a:1")
    for number, kind, frame in zip((1, 2), (FROM_CLIENT, FROM_SERVER), exchange(1), strict=True):
        file = tmp_path / f"run-{number:05}.capture"
        file.write_bytes(capture_bytes([opened, (number, 1, kind, frame)]))
    tables = tmp_path / "tables"

    def interrupt(path: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ingest(spark, [tmp_path], tables, levels=DEFAULT_LEVELS)
    assert ingest(spark, [tmp_path], tables, levels=DEFAULT_LEVELS).counts["paired"] == 1
    assert read_table(spark, tables, "pair").count() == 1
    assert not list(tables.glob("*/seams"))


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_compressed_recording_is_not_passed_over(tmp_path: Path, ending: str) -> None:
    def write(name: str, data: bytes) -> Path:
        with pa.output_stream(str(tmp_path / name), compression="detect") as stream:
            stream.write(data)
        return tmp_path / name

    shutil.copy(RECORDED / "cpp.capture", tmp_path)
    write(f"broker.log.{ending}", b"what a broker has to say")
    (tmp_path / f"cut.{ending}").write_bytes(b"no such thing")
    assert len(find_sources([tmp_path])) == 1
    for name, data in (
        ("x-00001.capture", (RECORDED / "cpp.capture").read_bytes()),
        ("trace.pcap", pcap_bytes([])),
        ("trace.pcapng", pcapng_bytes([])),
        (f"{0:020}", log_bytes([("t", b"one", "")])),
    ):
        file = write(f"{name}.{ending}", data)
        for path in (tmp_path, file):
            with pytest.raises(JobError, match="compressed recording: unpack it first"):
                find_sources([path])
        file.unlink()


def test_two_runs_do_not_read_into_one_folder_at_a_time(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tables"
    refused: list[str] = []

    def ingest_meanwhile(folder_of_parts: Path) -> dict[int, Receipt]:
        monkeypatch.setattr("spark_jobs.ingest.receipts", receipts)
        with pytest.raises(JobError) as refusal:
            ingest(spark, [RECORDED / "cpp.capture"], folder, levels=DEFAULT_LEVELS)
        refused.append(str(refusal.value))
        return receipts(folder_of_parts)

    monkeypatch.setattr("spark_jobs.ingest.receipts", ingest_meanwhile)
    ingest(spark, [RECORDED / "mqadmin.capture"], folder, levels=DEFAULT_LEVELS)
    assert refused == [f"another 'tidegate ingest' reads into {folder}: wait until it is done"]
    assert ingest(spark, [RECORDED / "cpp.capture"], folder, levels=DEFAULT_LEVELS).files == 1
    assert len(batches(folder)) == 2


def test_what_was_read_is_not_read_again_with_other_flags(
    spark: SparkSession, tmp_path: Path
) -> None:
    """To pass over it would leave due times of other levels, and packets of other ports."""
    capture, packets = RECORDED / "mqadmin.capture", tmp_path / "trace.pcap"
    packets.write_bytes(pcap_bytes([]))
    tables = tmp_path / "tables"
    ingest(spark, [capture, packets], tables, ports=[9876, 10911], levels=DEFAULT_LEVELS)
    with pytest.raises(JobError, match=r"capture was read with another --levels: use another"):
        ingest(spark, [capture], tables, levels="1s 2s")
    with pytest.raises(JobError, match=r"trace\.pcap was read with another --port: use another"):
        ingest(spark, [capture, packets], tables, ports=[10911], levels=DEFAULT_LEVELS)
    for ports, paths in (([10911, 9876], [capture, packets]), ([], [capture])):
        assert ingest(spark, paths, tables, ports=ports, levels=DEFAULT_LEVELS).files == 0


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / "cpp.capture"
    shutil.copy(RECORDED / file.name, tmp_path)
    (tmp_path / "link.capture").symlink_to(file)
    [found] = find_sources([tmp_path, file, tmp_path / ".." / tmp_path.name])
    assert found.path == str(file)


def test_of_a_whole_store_the_commit_log_is_read(tmp_path: Path) -> None:
    name = "00000000000000000000"
    for folder in ("commitlog", "consumequeue/orders/0", "timerlog"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / name).write_bytes(log_bytes([("orders", b"one", "")]))
    assert [source.path for source in find_sources([tmp_path])] == [
        str(tmp_path / "commitlog" / name)
    ]


def read_or_die(part: Part, folder: Path, levels: tuple[int, ...]) -> Receipt:
    """Read a part like a task whose process is killed with `kill -9` in its second part."""
    if part.number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return read_part(part, folder, levels)


def test_a_killed_run_is_gone_on_with(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recordings = tmp_path / "recordings"
    recordings.mkdir()
    for name in ("cpp.capture", "mqadmin.capture"):
        shutil.copy(RECORDED / name, recordings)
    folder = tmp_path / "tables"
    with monkeypatch.context() as patch:
        patch.setattr("spark_jobs.ingest.read_part", read_or_die)
        with pytest.raises(JobError, match="exited unexpectedly"):
            ingest(spark, [recordings], folder, levels=DEFAULT_LEVELS)
    assert batches(folder) == []
    [written] = folder.rglob("rows/kind=pair/part-000000.parquet")
    before = written.stat().st_mtime_ns
    (written.parent / ".part-000001-77").write_bytes(b"half of it")
    assert ingest(spark, [recordings], folder, levels=DEFAULT_LEVELS).files == 2
    [batch] = batches(folder)
    kept = batch / "rows" / "kind=pair" / "part-000000.parquet"
    assert kept.stat().st_mtime_ns == before, "what was whole is not read again"
    assert not list(batch.rglob(".part-*")), "what was not takes up the disk"
    assert totals(folder)["frames"] == 187 + 63


def test_files_that_are_missing_between_others_are_told(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One of a run's files, and one of a commit log's; files before the first may have been deleted."""
    recordings, log = tmp_path / "recordings", log_bytes([("orders", b"one", "")])
    recordings.mkdir()
    for number in (2, 3, 5):
        (recordings / f"run-{number:05}.capture").write_bytes(capture_bytes([]))
    (recordings / "alone.capture").write_bytes(capture_bytes([]))
    folder = tmp_path / "tables"
    ingest(spark, [recordings], folder, levels=DEFAULT_LEVELS)
    assert totals(folder)[MISSING] == 1
    for base in (0, len(log), 3 * len(log)):
        more = log_bytes([("orders", b"one", "")], base)
        (recordings / f"{base:020}").write_bytes(more)
    ingest(spark, [recordings], folder, levels=DEFAULT_LEVELS)
    assert totals(folder)[MISSING] == 2
    (recordings / "run-00004.capture").write_bytes(capture_bytes([]))
    ingest(spark, [recordings], folder, levels=DEFAULT_LEVELS)
    assert totals(folder)[MISSING] == 1


def test_a_capture_is_split_among_tasks(
    spark: SparkSession, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_jobs.ingest.ranges", lambda size: ranges(size, 20_000))
    folder = tmp_path / "tables"
    file = RECORDED / "java-5.5.0.capture"
    split = ingest(spark, [file], folder, levels=DEFAULT_LEVELS)
    parts = list(folder.rglob("rows/kind=pair/part-*.parquet"))
    assert len(parts) == 5, "one for each range, and one of the pairs across them"
    whole, found = (
        read_table(spark, place, "pair")
        .where(f"file = '{file.resolve()}'")
        .toArrow()
        .sort_by("position")
        for place in (tables, folder)
    )
    assert found.to_pylist() == whole.to_pylist()
    assert split.counts["frames"] == 220


def test_a_commit_log_becomes_messages_and_damage_is_told(
    spark: SparkSession, tmp_path: Path
) -> None:
    log = tmp_path / "store" / "commitlog"
    log.mkdir(parents=True)
    data = bytearray(log_bytes([("orders", b"x" * 100, f"UNIQ_KEY\x01{n}\x02") for n in range(50)]))
    data[3] ^= 1
    (log / f"{0:020}").write_bytes(data + bytes(100_000))
    done = ingest(spark, [tmp_path / "store"], tmp_path / "tables", levels=DEFAULT_LEVELS)
    assert done.counts == {"messages stored": 49, "messages unreadable": 1, "sends": 49}
    messages = read_table(spark, tmp_path / "tables", "messages")
    [damage] = messages.where("event = 'unreadable'").collect()
    assert damage["position"] == 0
    assert "the lengths in the record" in damage["reason"]


def test_messages_of_a_capture_that_cannot_be_read_are_told(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Within a file, and with the answer in the next one. Without its deliveries, a message counts as lost."""
    fields = {"consumerGroup": "consumers", "topic": "orders", "queueId": "0"}
    first, second = (
        (encode_command(11, number, ext=fields), encode_response(number, 0, body=b"no record"))
        for number in (1, 2)
    )
    times = (1, 1, OPENED, b"a:1"), (2, 1, FROM_CLIENT, first[0]), (3, 1, FROM_SERVER, first[1])
    (tmp_path / "run-00001.capture").write_bytes(
        capture_bytes([*times, (4, 1, FROM_CLIENT, second[0])])
    )
    (tmp_path / "run-00002.capture").write_bytes(
        capture_bytes([times[0], (5, 1, FROM_SERVER, second[1])])
    )
    tables = tmp_path / "tables"
    done = ingest(spark, [tmp_path], tables, levels=DEFAULT_LEVELS)
    assert done.counts["messages unreadable"] == 2
    told = [dict(row["counts"]) for row in read_table(spark, tables, "file").collect()]
    assert sum(one.get("messages unreadable", 0) for one in told) == 2
    assert read_table(spark, tables, "messages").where("event = 'unreadable'").count() == 2


def test_what_cannot_be_read_is_refused_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    """The check is made before a task fails, which Spark would report with a traceback."""
    (tmp_path / "notes.txt").write_text("no recording")
    (tmp_path / "cut.pcap").write_bytes(pcap_bytes([])[:20])
    (tmp_path / "cut.pcapng").write_bytes(pcapng_bytes([])[:11])
    for name in ("notes.txt", "cut.pcap", "cut.pcapng"):
        with pytest.raises(JobError, match=f"{name} is no capture"):
            find_sources([tmp_path / name])
    with pytest.raises(JobError, match="does not exist"):
        find_sources([tmp_path / "nowhere"])
    os.mkfifo(tmp_path / "pipe")  # as the shell makes for <(zcat broker.pcap.gz)
    with pytest.raises(JobError, match="pipe is a pipe or a device: give a file"):
        find_sources([tmp_path / "pipe"])
    assert find_sources([tmp_path]) == []
    (tmp_path / "newer.capture").write_bytes(b"tidegate capture 2\n" + bytes(40))
    for path in (tmp_path, tmp_path / "newer.capture"):
        with pytest.raises(JobError, match=r"newer\.capture is not a capture"):
            find_sources([path])
    with pytest.raises(JobError, match="run 'tidegate ingest'"):
        read_table(spark, tmp_path, "pair")


def test_a_capture_that_is_being_written_is_left_for_later(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It is told, and so is what is no recording, or no more: damage may be at its beginning. A shell's pattern
    may name it, too."""
    recordings = tmp_path / "recordings"
    recordings.mkdir()
    shutil.copy(RECORDED / "cpp.capture", recordings / "20260101T000000Z-abc-00001.capture")
    shutil.copy(RECORDED / "cpp.capture", recordings / "20260101T000000Z-abc-00002.open")
    (recordings / "damaged.capture").write_bytes(bytes(100))
    (recordings / "notes.txt").touch()
    assert [Path(source.path).suffix for source in find_sources([recordings])] == [".capture"]
    done = ingest(spark, [recordings], tmp_path / "tables", levels=DEFAULT_LEVELS)
    assert (done.files, done.being_written, done.others) == (1, 1, 2)
    named = ingest(
        spark, sorted(recordings.glob("*-abc-*")), tmp_path / "tables", levels=DEFAULT_LEVELS
    )
    assert (named.files, named.known, named.being_written, named.others) == (0, 1, 1, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_folder_that_may_not_be_read_is_not_passed_over() -> None:
    """Recorders let only their owner read what they write."""
    with TemporaryDirectory() as place:
        closed = Path(place, "captures")
        closed.mkdir(mode=0o700)
        shutil.copy(RECORDED / "cpp.capture", closed)
        Path(place).chmod(0o755)
        os.seteuid(65534)
        try:
            with pytest.raises(PermissionError, match=str(closed)):
                find_sources([Path(place)])
        finally:
            os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_folder_of_recordings_may_be_a_file_system_of_its_own() -> None:
    """Then it has a folder that only root may read."""
    with TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        shutil.copy(RECORDED / "cpp.capture", place)
        lost = Path(place, "lost+found")
        lost.mkdir(mode=0o700)
        shutil.copy(RECORDED / "cpp.capture", lost / "#12")
        os.seteuid(65534)
        try:
            [found] = find_sources([Path(place)])
        finally:
            os.seteuid(0)
        assert Path(found.path).name == "cpp.capture"
        [found] = find_sources([lost])
        assert Path(found.path).name == "#12"


def test_links_to_folders_and_files_are_followed(spark: SparkSession, tmp_path: Path) -> None:
    """A recording that was moved to a larger disk is read from there, and once. A link that leads nowhere, such as to a
    disk that is not mounted, is told."""
    recordings, disk = tmp_path / "recordings", tmp_path / "disk"
    for folder in (recordings, disk):
        folder.mkdir()
    shutil.copy(RECORDED / "cpp.capture", disk)
    (recordings / "monday").symlink_to(disk)
    (recordings / "again").symlink_to(disk)
    (recordings / "one.capture").symlink_to(disk / "cpp.capture")
    (disk / "back").symlink_to(recordings)
    (recordings / "tuesday").symlink_to(tmp_path / "not mounted")
    [found] = find_sources([recordings])
    assert found.path == str(disk / "cpp.capture")
    done = ingest(spark, [recordings], tmp_path / "tables", levels=DEFAULT_LEVELS)
    assert (done.files, done.others) == (1, 1)


def test_files_of_a_run_may_be_named_in_any_order(spark: SparkSession, tmp_path: Path) -> None:
    asked, answered = exchange(1)
    opening = (1, 1, OPENED, b"broker")
    first, second = tmp_path / "run-99999.capture", tmp_path / "run-100000.capture"
    first.write_bytes(capture_bytes([opening, (2, 1, FROM_CLIENT, asked)]))
    second.write_bytes(capture_bytes([opening, (3, 1, FROM_SERVER, answered)]))
    other = tmp_path / "other.capture"
    other.write_bytes(capture_bytes([opening]))
    named = [second, other, first]
    counts = ingest(spark, named, tmp_path / "tables", levels=DEFAULT_LEVELS).counts
    assert (counts["paired"], counts["unanswered"], counts["unasked"]) == (1, 0, 0)
