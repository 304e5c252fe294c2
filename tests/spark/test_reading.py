"""Captures and commit logs, whole and damaged: nothing is dropped silently."""

from __future__ import annotations

import mmap
import tracemalloc
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.wire.commands import encode_command, encode_response
from recording.format import MAGIC, Kind
from recording.proxy import Splitter
from recording.writer import CaptureWriter
from spark_jobs.capture import Record, read_records
from spark_jobs.commitlog import Found, read_log
from spark_jobs.errors import Damage, JobError
from spark_jobs.exchanges import Pairer, decode_frame
from spark_jobs.messages import asked_time
from spark_jobs.seams import stitch
from spark_jobs.sources import (
    Part,
    certain,
    guess,
    parts_of_run,
    read_commit_log,
    read_part,
    read_sends,
    survey_again,
)
from spark_jobs.tables import PartWriter, receipts, write_file_counts
from tests.spark.conftest import RECORDED
from tests.spark.making import (
    LEVELS,
    Tables,
    as_records,
    capture_bytes,
    exchange,
    log_bytes,
    tables_of,
)

NOW_NS = 1_700_000_000_000_000_000
ONE_FILE = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def read_capture(file: Path, folder: Path) -> Tables:
    part = Part(number=0, file=str(file), run=file.name, start=0, end=file.stat().st_size)
    return tables_of(folder / "out", read_part(part, folder / "out", LEVELS))


def a_capture(count: int = 6) -> bytes:
    records = [(NOW_NS, 1, 0, b"broker")]
    for number in range(count):
        asked, answered = exchange(number)
        records.append((NOW_NS + 10 * number, 1, 1, asked))
        records.append((NOW_NS + 10 * number + 5, 1, 2, answered))
    return capture_bytes(records)


@pytest.mark.parametrize("file", sorted(RECORDED.glob("*.capture")), ids=lambda file: file.stem)
def test_all_frames_of_real_clients_are_in_pairs(file: Path, tmp_path: Path) -> None:
    read = read_capture(file, tmp_path)
    assert read.counts["frames"] == read.frames == len(as_records(file))
    assert read.counts["aside"] == 0
    for row in read.pairs:
        assert row["answered_ns"] is None or row["answered_ns"] >= row["asked_ns"]
    assert sum(row["answer_code"] == 0 for row in read.pairs) > len(read.pairs) / 3


def test_a_number_that_is_used_again_is_paired_in_order(tmp_path: Path) -> None:
    asked, answered = exchange(7)
    late = encode_response(7, 1)
    file = tmp_path / "again.capture"
    kinds = [(1, asked), (1, asked), (2, answered), (1, asked), (2, late), (2, late)]
    file.write_bytes(
        capture_bytes((NOW_NS + at, 1, kind, data) for at, (kind, data) in enumerate(kinds))
    )
    read = read_capture(file, tmp_path)
    seen = [(row["asked_ns"], row["answered_ns"]) for row in read.pairs]
    assert sorted(seen, key=str) == sorted(
        [
            (NOW_NS, None),
            (NOW_NS + 1, NOW_NS + 2),
            (NOW_NS + 3, NOW_NS + 4),
            (None, NOW_NS + 5),
        ],
        key=str,
    )
    counts = read.counts
    assert (counts["paired"], counts["unanswered"], counts["unasked"]) == (2, 1, 1)


@pytest.mark.parametrize("fields", ['"a":"x"', '"a":1'])
def test_a_request_whose_code_is_null_has_code_0(fields: str) -> None:
    """As for a server. No plan of a replay could tell how many requests of no code there are."""
    header = b'{"code":null,"opaque":1,"extFields":{%b}}' % fields.encode()
    size = 4 + len(header)
    found, _ = decode_frame(size.to_bytes(4, "big") + len(header).to_bytes(4, "big") + header)
    assert (found.code, found.opaque) == (0, 1)


def test_a_clock_that_goes_back_is_told(tmp_path: Path) -> None:
    file = tmp_path / "back.capture"
    asked, answered = exchange(1)
    file.write_bytes(capture_bytes([(NOW_NS, 1, 1, asked), (NOW_NS - 10**9, 1, 2, answered)]))
    read = read_capture(file, tmp_path)
    assert read.counts["clock went back"] == 1
    assert read.counts["paired"] == 1


@given(cut=st.integers(len(MAGIC), len(a_capture())))
@ONE_FILE
def test_a_cut_capture_loses_only_its_last_record(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "cut.capture"
    file.write_bytes(a_capture()[:cut])
    found = list(read_records(file))
    whole = [one for one in found if isinstance(one, Record)]
    damage = [one for one in found if isinstance(one, Damage)]
    sizes = sum(17 + len(record.data) for record in whole) + sum(one.size for one in damage)
    assert len(MAGIC) + sizes == cut
    assert len(damage) <= 1
    assert all("ends within a record" in one.reason for one in damage)


@given(at=st.integers(len(MAGIC), len(a_capture()) - 1), bit=st.integers(0, 7))
@ONE_FILE
def test_a_flipped_bit_costs_little_and_is_told(tmp_path: Path, at: int, bit: int) -> None:
    data = bytearray(a_capture())
    data[at] ^= 1 << bit
    file = tmp_path / "flipped.capture"
    file.write_bytes(data)
    found = list(read_records(file))
    sizes = [17 + len(one.data) if isinstance(one, Record) else one.size for one in found]
    assert len(MAGIC) + sum(sizes) == len(data)
    read = read_capture(file, tmp_path)
    assert read.counts["frames"] == read.frames
    assert read.counts["frames"] >= 12 - 2


def test_a_frame_larger_than_servers_take_by_default_is_read(tmp_path: Path) -> None:
    with CaptureWriter(tmp_path) as writer:
        writer.opened(1, "broker")
        for frame in Splitter().feed(encode_command(310, 1, body=bytes(17 << 20))):
            writer.record(1, Kind.FROM_CLIENT, frame)
    [file] = tmp_path.glob("*.capture")
    read = read_capture(file, tmp_path)
    assert [len(row["body"]) for row in read.pairs] == [17 << 20]
    assert read.counts["aside"] == 0


def test_a_record_of_an_impossible_time_is_damage(tmp_path: Path) -> None:
    data = bytearray(a_capture())
    at = data.index(exchange(3)[0]) - 17
    data[at] |= 0x80
    file = tmp_path / "never.capture"
    file.write_bytes(data)
    read = read_capture(file, tmp_path)
    assert read.counts["frames"] == 11
    assert [(one["position"], one["reason"]) for one in read.asides] == [(at, "no record")]


def busy_capture(events: list[tuple[int, int, int, int]]) -> bytes:
    """Return a capture of drawn requests, responses, one-way requests, openings and closings."""
    records = []
    for at, (connection, kind, opaque, what) in enumerate(events):
        if what == 0:
            data = [b"broker", b"", b"", b""][0 if kind in (0, 1) else 3]
            records.append((NOW_NS + at, connection, 0 if kind in (0, 1) else 3, data))
        else:
            data = (
                encode_response(opaque, 0, body=b"x" * opaque)
                if what > 5
                else encode_command(10, opaque, flag=2 if what == 5 else 0, body=MAGIC * what)
            )
            records.append((NOW_NS + at, connection, kind % 2 + 1, data))
    return capture_bytes(records)


EVENTS = st.lists(
    st.tuples(st.integers(1, 2), st.integers(0, 3), st.integers(1, 3), st.integers(0, 9)),
    max_size=40,
)


@given(
    events=EVENTS, cuts=st.lists(st.integers(20, 2500), max_size=6), flipped=st.integers(0, 9000)
)
@example(events=[(2, 1, 2, 1), (2, 2, 1, 0), (2, 0, 2, 6)], cuts=[20], flipped=0)  # closed between
@example(events=[(1, 0, 1, 0), (1, 0, 1, 1)], cuts=[20], flipped=19)  # opened in another time
@ONE_FILE
def test_a_capture_in_parts_is_as_one(
    tmp_path: Path, events: list[tuple[int, int, int, int]], cuts: list[int], flipped: int
) -> None:
    data = bytearray(busy_capture(events))
    if len(MAGIC) <= flipped < len(data):
        data[flipped] ^= 0x41
    file = tmp_path / "busy.capture"
    file.write_bytes(data)
    edges = [0, *sorted({cut for cut in cuts if cut < len(data)}), len(data)]
    spans = [(str(file), start, end) for start, end in pairwise(edges)]
    surveys = certain(spans, [guess(span) for span in spans], survey_again)
    parts = parts_of_run(file.name, spans, surveys)
    folder = tmp_path / "parts"
    for number, part in enumerate(parts):
        part.number = number
    in_parts = tables_of(folder, *(read_part(part, folder, LEVELS) for part in parts))
    whole = read_capture(file, tmp_path)
    assert in_parts == whole
    assert in_parts.frames == in_parts.counts["frames"]


def test_a_connection_that_was_closed_is_open_in_no_later_file(tmp_path: Path) -> None:
    """Each file of a run begins with the openings of the connections that are open then."""
    opened = [(NOW_NS, number, 0, b"broker") for number in (1, 2, 3)]
    closed = [(NOW_NS, number, 3, b"") for number in (1, 2)]
    spans = []
    for number, records in enumerate(
        [opened[:2], [*opened[:2], closed[0], opened[2]], [*opened[1:], closed[1]], opened[2:]]
    ):
        file = tmp_path / f"run-{number:05}.capture"
        file.write_bytes(capture_bytes(records))
        spans.append((str(file), 0, file.stat().st_size))
    parts = parts_of_run("run", spans, [guess(span) for span in spans])
    assert [sorted(part.connections) for part in parts] == [[], [1, 2], [2, 3], [3]]


def test_pairs_across_files_need_no_more_memory_the_more_files_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as long polls of many consumers, which wait wherever a file ends."""
    monkeypatch.setattr("spark_jobs.seams.BATCH_ROWS", 50)
    connections = range(1, 101)
    peaks = []
    for count in (4, 16):
        spans = []
        for number in range(count):
            records = [(NOW_NS + number, one, 0, b"broker") for one in connections]
            for one in connections:
                records.append((NOW_NS + number, one, 2, encode_response(number - 1, 19)))
                records.append((NOW_NS + number, one, 1, encode_command(11, number, body=b"{}")))
            file = tmp_path / f"run-{number:05}.capture"
            file.write_bytes(capture_bytes(records))
            spans.append((str(file), 0, file.stat().st_size))
        parts = parts_of_run("run", spans, [guess(span) for span in spans])
        for number, part in enumerate(parts):
            part.number = number
        folder = tmp_path / str(count)
        receipts = [read_part(part, folder, LEVELS) for part in parts]
        tracemalloc.start()
        stitched = Counter[str]()
        for _, counts in stitch(folder, receipts, LEVELS):
            stitched.update(counts)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert stitched == {"paired": 100 * (count - 1)}
        assert receipts[0].counts["unasked"] == 100
    assert peaks[1] < 1.3 * peaks[0]


def test_a_part_that_two_tasks_write_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark may run a task again while its first run, on another machine, has the same process id."""
    monkeypatch.setattr("spark_jobs.tables._ROW_GROUP_ROWS", 1)
    writers = [PartWriter(tmp_path, 0, LEVELS) for _ in range(2)]
    for writer in writers:
        pairer = Pairer("a.capture")
        connection = pairer.open(1, "a#1", "broker")
        for at, frame in enumerate(exchange(7)):
            pairer.frame(at, NOW_NS + at, connection, at == 0, frame)
        writer.write_pairs("a.capture", pairer.take()[0])
    receipts = [writer.end("a.capture", "a", pairer) for writer in writers]
    assert len(tables_of(tmp_path, receipts[1]).pairs) == 1


@pytest.mark.parametrize("place", ["rows/kind=pair", "messages", "receipts", "rows/kind=file"])
def test_a_full_disk_is_told_by_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: "x")
    (tmp_path / place).mkdir(parents=True)
    for name in (".part-000000-x", "part-000000.parquet"):
        (tmp_path / place / name).symlink_to("/dev/full")
    file = tmp_path / "a.capture"
    file.write_bytes(a_capture())
    part = Part(number=0, file=str(file), run="a", start=0, end=file.stat().st_size)

    def read() -> None:
        receipt = read_part(part, tmp_path, LEVELS)
        write_file_counts(tmp_path, {receipt.file: receipt.counts})

    with pytest.raises(JobError, match=f"cannot write to {tmp_path / place}: No space left"):
        read()
    assert not receipts(tmp_path) or place == "rows/kind=file"


def test_what_is_no_capture_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "no.capture"
    file.write_bytes(b"something else entirely")
    with pytest.raises(JobError, match="is not a capture"):
        list(read_records(file))


MESSAGES = [
    ("orders", b"one", "UNIQ_KEY\x01A\x02"),
    ("SCHEDULE_TOPIC_XXXX", b"two", "UNIQ_KEY\x01B\x02DELAY\x013\x02REAL_TOPIC\x01orders\x02"),
    ("orders", b"two", "UNIQ_KEY\x01B\x02DELAY\x013\x02REAL_TOPIC\x01orders\x02"),
    ("orders", b"x" * 500, "UNIQ_KEY\x01C\x02"),
]
ROLLED = [
    (
        "rmq_sys_wheel_timer",
        b"far",
        f"UNIQ_KEY\x01{name}\x02REAL_TOPIC\x01orders\x02TIMER_OUT_MS\x01900000000\x02{asked}\x01{mark}\x02",
    )
    for name, asked, mark in (
        ("D", "TIMER_DELAY_SEC\x01899000\x02TIMER_ROLL_TIMES", "2"),
        ("E", "TIMER_DELIVER_MS\x01900000500\x02TIMER_ROLL_LABEL", "R"),
    )
]


def log_file(folder: Path, data: bytes, base: int = 0) -> Path:
    file = folder / f"{base:020}"
    file.write_bytes(data)
    return file


def test_a_log_tells_what_was_parked_and_fired(tmp_path: Path) -> None:
    base = 1 << 30
    file = log_file(tmp_path, log_bytes(MESSAGES, base) + bytes(5000), base)
    batches = read_commit_log(file, 0, 1 << 40, LEVELS)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [(row["event"], row["topic"], row["message_id"]) for row in rows] == [
        ("stored", "orders", "A"),
        ("parked", "orders", "B"),
        ("stored", "orders", "B"),
        ("stored", "orders", "C"),
    ]
    assert [(row["asked"], row["asked_value"]) for row in rows][1] == ("level", 3)


def test_a_log_tells_what_was_rolled_with_its_true_due_time(tmp_path: Path) -> None:
    """A delay counts from the send, which the broker stored days before it wrote such a record."""
    file = log_file(tmp_path, log_bytes(ROLLED))
    [batch] = read_commit_log(file, 0, 1 << 40, LEVELS)
    assert [
        (row["event"], row["topic"], row["asked"], row["due_ms"]) for row in batch.to_pylist()
    ] == [
        ("rolled", "orders", "seconds", 900_000_000),
        ("rolled", "orders", "time", 900_000_500),
    ]


@given(cuts=st.lists(st.integers(1, 1200), max_size=5), damaged=st.integers(0, 1300))
@ONE_FILE
def test_ranges_of_a_log_give_each_record_once(
    tmp_path: Path, cuts: list[int], damaged: int
) -> None:
    whole = bytearray(log_bytes(MESSAGES * 3))
    whole[min(damaged, len(whole) - 1)] ^= 0x55
    file = log_file(tmp_path, bytes(whole) + bytes(1000))
    at_once = list(read_log(file, 0, 1 << 40))
    sizes = [one.size for one in at_once if isinstance(one, Damage)]
    assert sum(isinstance(one, Found) for one in at_once) >= 11
    assert len(sizes) <= 1
    edges = [0, *sorted(set(cuts)), 1 << 40]
    in_parts = [one for start, end in pairwise(edges) for one in read_log(file, start, end)]
    assert in_parts == at_once


@pytest.mark.parametrize(
    ("at", "flipped", "reason"),
    [
        (56, 0x40, "a record with an impossible time"),
        (56, 0x80, "a record with an impossible time"),
        (88, ord("b"), "a record whose body is not as it was stored, by its CRC"),
        (111, 2, "a record whose end was not written"),
    ],
)
def test_a_record_of_a_log_that_is_not_as_it_was_stored_is_damage(
    tmp_path: Path, at: int, flipped: int, reason: str
) -> None:
    log = bytearray(log_bytes([("orders", b"body", "UNIQ_KEY\x01A\x02")] * 3))
    size = len(log) // 3
    log[size + at] ^= flipped  # of the second record's store time, body or properties
    file = tmp_path / ("0" * 20)
    file.write_bytes(log)
    rows = [
        row for batch in read_commit_log(file, 0, len(log), LEVELS) for row in batch.to_pylist()
    ]
    assert [row["event"] for row in rows] == ["stored", "unreadable", "stored"]
    assert rows[1]["reason"] == f"{size} bytes: {reason}"
    assert [batch.num_rows for batch in read_sends(file, 0, len(log))] == [2]


def test_no_search_in_a_log_reaches_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a search reads behind the end in some versions of Python, and crashes if nothing is mapped there."""

    class Mapping(mmap.mmap):
        def find(self, *found: Any) -> int:
            assert found[2] < len(self)
            return super().find(*found)

    file = log_file(tmp_path, log_bytes(MESSAGES) + bytes(8192))
    monkeypatch.setattr(mmap, "mmap", Mapping)
    assert list(read_log(file, 4096, 8192)) == []


def test_a_cut_log_is_told(tmp_path: Path) -> None:
    file = log_file(tmp_path, log_bytes(MESSAGES)[:-30])
    *records, damage = read_log(file, 0, 1 << 40)
    assert len(records) == 3
    assert isinstance(damage, Damage)
    assert "none follows" in damage.reason


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ("DELAY\x012\x02TIMER_DELAY_MS\x019\x02", ("level", 2, 6_000)),
        ("DELAY\x0199\x02", ("level", 99, 7_201_000)),
        ("DELAY\x010\x02TIMER_DELAY_MS\x019\x02", ("milliseconds", 9, 1_009)),
        ("TIMER_DELAY_SEC\x012\x02TIMER_DELIVER_MS\x019\x02", ("seconds", 2, 3_000)),
        ("TIMER_DELIVER_MS\x019000\x02", ("time", 9_000, 9_000)),
        ("__STARTDELIVERTIME\x019000\x02", ("time", 9_000, 9_000)),
        ("TIMER_DELIVER_MS\x01soon\x02", (None, None, None)),
        (f"TIMER_DELAY_SEC\x01{-(1 << 63)}\x02", (None, None, None)),
    ],
)
def test_when_a_message_is_asked_for(
    properties: str, expected: tuple[str | None, int | None, int | None]
) -> None:
    assert asked_time(properties, 1_000, LEVELS) == expected


@pytest.mark.parametrize(("field", "value"), [("e", 1 << 31), ("g", 1 << 63), ("j", -(1 << 40))])
def test_a_number_too_large_makes_a_send_unreadable(tmp_path: Path, field: str, value: int) -> None:
    file = tmp_path / "large.capture"
    ext = {"a": "G", "b": "orders", "i": "", field: str(value)}
    file.write_bytes(capture_bytes([(NOW_NS, 1, 1, encode_command(310, 1, ext=ext, body=b"x"))]))
    folder = tmp_path / "out"
    part = Part(number=0, file=str(file), run="large", start=0, end=file.stat().st_size)
    read_part(part, folder, LEVELS)
    [event] = pq.read_table(folder / "messages").to_pylist()
    assert event["event"] == "unreadable"
    assert str(value) in event["reason"]
