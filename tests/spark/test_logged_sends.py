"""Replaying a commit log: each message that a client sent, once, with its time and its true topic."""

from __future__ import annotations

import shutil
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gateway.wire.codes import RequestCode, ResponseCode, SysFlag
from gateway.wire.commands import encode_command, encode_response
from gateway.wire.messages import Message, decode_message
from gateway.wire.properties import find, parse
from spark_jobs.capture import FROM_CLIENT, FROM_SERVER, OPENED
from spark_jobs.command import main
from spark_jobs.firing import recorded_twice
from spark_jobs.ingest import ingest, read_table
from spark_jobs.logged_sends import send_of
from spark_jobs.messages import DEFAULT_LEVELS
from spark_jobs.replay import choose, topics_of
from spark_jobs.rewriting import Rewriter, Rules, new_id
from spark_jobs.sources import read_sends
from tests.gateway.conftest import MakeGateway
from tests.gateway.memory import START_MS, bodies
from tests.spark.making import capture_bytes, log_bytes
from tests.spark.recorded import replay

SCHEDULE, WHEEL = "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"
STORED_MS = 1_000_005
"""When the first record of `log_bytes` was stored. Each following one was stored a millisecond later."""
KEYS = [f"{number:032X}" for number in range(8)]


def properties(key: str, **more: str) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in {"UNIQ_KEY": key, **more}.items())


PLACE = {"REAL_TOPIC": "orders", "REAL_QID": "2"}
AT = str(STORED_MS + 2_000)
LOG = [
    (
        "orders",
        b"plain",
        properties(KEYS[0], TAGS="red", KEYS="k", MSG_REGION="r", TRACE_ON="true"),
    ),
    (SCHEDULE, b"level", properties(KEYS[1], DELAY="1", **PLACE)),
    (WHEEL, b"at", properties(KEYS[2], TIMER_DELIVER_MS=AT, TIMER_OUT_MS=AT, **PLACE)),
    (WHEEL, b"after", properties(KEYS[3], TIMER_DELAY_SEC="3", TIMER_OUT_MS="9", **PLACE)),
    (WHEEL, b"rolled", properties(KEYS[3], TIMER_DELAY_SEC="3", TIMER_ROLL_TIMES="1", **PLACE)),
    ("orders", b"level", properties(KEYS[1], DELAY="1", **PLACE)),
    ("orders", b"at", properties(KEYS[2], TIMER_DELIVER_MS=AT)),
    ("RMQ_SYS_TRANS_HALF_TOPIC", b"half", properties(KEYS[4], TRAN_MSG="true", **PLACE)),
    ("orders", b"committed", properties(KEYS[4], TRAN_MSG="true", PGROUP="payers")),
    ("%RETRY%billing", b"again", properties(KEYS[0])),
    ("RMQ_SYS_TRACE_TOPIC", b"trace", properties(KEYS[5])),
    (WHEEL, b"", properties(KEYS[6], TIMER_DELIVER_MS=AT, TIMER_DEL_UNIQKEY=KEYS[2], **PLACE)),
]
SENT = ["plain", "level", "at", "after", "committed", "x"]


def log_file(folder: Path) -> Path:
    file = folder / f"{0:020}"
    file.write_bytes(log_bytes(LOG) + bytes(1_000))
    return file


def test_what_clients_sent_is_found_once(tmp_path: Path) -> None:
    file = log_file(tmp_path)
    rows = [row for batch in read_sends(file, 0, 1 << 40) for row in batch.to_pylist()]
    assert [row["body"].decode() for row in rows] == SENT
    plain, level, at, after, committed, order = (dict(row["ext"]) for row in rows)
    assert {row["code"] for row in rows} == {RequestCode.SEND_MESSAGE_V2}
    assert {row["connection"] for row in rows} == {"log#127.0.0.1:10911"}
    assert [row["asked_ns"] for row in rows][:2] == [STORED_MS * 10**6, (STORED_MS + 1) * 10**6]
    assert parse(plain["i"]) == {"UNIQ_KEY": KEYS[0], "TAGS": "red", "KEYS": "k"}
    assert (level["b"], level["e"]) == ("orders", "2")
    assert parse(level["i"]) == {"UNIQ_KEY": KEYS[1], "DELAY": "1"}
    assert parse(at["i"]) == {"UNIQ_KEY": KEYS[2], "TIMER_DELIVER_MS": AT}
    assert parse(after["i"]) == {"UNIQ_KEY": KEYS[3], "TIMER_DELAY_SEC": "3"}
    assert (committed["a"], find(committed["i"], "TRAN_MSG")) == ("payers", None)
    assert find(order["i"], "TIMER_DEL_UNIQKEY") == KEYS[2]
    edges = [0, 100, 333, 1_000, 1 << 40]
    parts = [
        row
        for start, end in pairwise(edges)
        for batch in read_sends(file, start, end)
        for row in batch.to_pylist()
    ]
    assert parts == rows


@pytest.mark.parametrize(
    ("flag", "kept"),
    [
        (
            SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZSTD,
            SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZSTD,
        ),
        (SysFlag.BORN_HOST_V6 | SysFlag.TRANSACTION_COMMIT, 0),
    ],
)
def test_flags_that_belong_to_the_record_alone_are_left_out(flag: int, kept: int) -> None:
    found = send_of(changed(sys_flag=flag))
    assert found is not None
    assert found["ext"]["f"] == str(kept)
    assert send_of(changed(sys_flag=SysFlag.INNER_BATCH)) is None


@pytest.mark.parametrize(
    ("more", "is_sent"),
    [
        ({"TIMER_DELIVER_MS": "999999"}, True),
        ({"TIMER_DELIVER_MS": "1000001"}, False),
        ({"TIMER_DELAY_SEC": "0"}, True),
        ({"TIMER_DELAY_MS": "5"}, False),
        ({"DELAY": "0"}, True),
        ({"TIMER_DELIVER_MS": "999999", **PLACE}, False),
    ],
)
def test_what_was_due_already_was_stored_at_once(more: dict[str, str], is_sent: bool) -> None:
    """The record was made at 1,000,000. Those that are not sent have fired."""
    text = properties(KEYS[0], **more)
    found = send_of(decode_message(log_bytes([("orders", b"late", text)])))
    assert (found is not None) == is_sent
    if found is not None:
        assert (found["ext"]["b"], found["ext"]["i"]) == ("orders", text)


def changed(sys_flag: int) -> Message:
    message = decode_message(log_bytes(LOG[:1]))
    message.sys_flag = sys_flag
    return message


def test_they_are_sent_to_a_gateway_at_their_times(
    make_gateway: MakeGateway, tmp_path: Path
) -> None:
    target = make_gateway()
    rows = [
        row | {"answer_ext": [], "answer_body": b""}
        for batch in read_sends(log_file(tmp_path), 0, 1 << 40)
        for row in batch.to_pylist()
    ]
    client, unmapped = replay(rows, Rewriter(Rules("run")), target)
    assert set(unmapped) == {()}
    assert {pair["answer_code"] for pair in client.pairs} == {ResponseCode.SUCCESS}
    began_ms = target.now_ms - (rows[-1]["asked_ns"] - rows[0]["asked_ns"]) // 1_000_000
    assert began_ms == START_MS
    assert bodies(client.pull(queue=0)) == ["plain", "committed"]
    target.advance(980)
    assert bodies(client.pull(queue=2)) == []
    target.advance(30)
    assert bodies(client.pull(queue=2)) == ["level"]
    target.advance(10_000)
    messages = client.pull(queue=2)
    assert bodies(messages) == ["level", "after"], "what was taken back in the log is so here"
    ids = [find(message.properties, "UNIQ_KEY") for message in messages]
    assert ids == [new_id(KEYS[1], "run"), new_id(KEYS[3], "run")]


def test_a_log_is_replayed_when_that_is_asked_for(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log_file(tmp_path)
    tables = tmp_path / "tables"
    counts = ingest(spark, [tmp_path], tables, levels=DEFAULT_LEVELS).counts
    assert counts["sends"] == len(SENT)
    _, plan = choose(read_table(spark, tables, "send"), None)
    assert (plan.requests, plan.connections) == (len(SENT), 1)
    events = read_table(spark, tables, "messages")
    assert topics_of(events, {"orders": "copy"}, from_log=True) == ["copy"]
    command = ("replay", str(tables), "--to", "127.0.0.1:1", "--out", str(tmp_path / "out"))
    main([*command, "--from-log", "--dry-run"])
    main([*command, "--dry-run"])
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if "requests on" in line] == [
        "6 requests on 1 connections, recorded in 0.0 s; 0 left out",
        "0 requests on 0 connections, recorded in 0.0 s; 0 left out",
    ]


def test_a_log_and_its_copy_are_told(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a broker and its slave."""
    log = tmp_path / "broker"
    log.mkdir()
    log_file(log)
    shutil.copytree(log, tmp_path / "slave")
    for name, recordings in (("one", [log]), ("both", [log, tmp_path / "slave"])):
        tables = tmp_path / name
        ingest(spark, recordings, tables, levels=DEFAULT_LEVELS)
        out = str(tmp_path / "out")
        main(
            ["replay", str(tables), "--from-log", "--to", "127.0.0.1:1", "--out", out, "--dry-run"]
        )
        said = capsys.readouterr().out
        assert ("sends are in two recordings of the same traffic" in said) is (name == "both")
    with suppress(SystemExit):
        main(["verify", str(tables)])
    assert "it cannot be told which messages were doubled" in capsys.readouterr().out


def test_a_capture_and_a_log_of_the_same_messages_are_not_the_same_twice(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Nor are the folders of a log that lies in several: a message waits in one and has fired in another."""
    rows = [
        row for batch in read_sends(log_file(tmp_path), 0, 1 << 40) for row in batch.to_pylist()
    ]
    records = [(STORED_MS, 1, OPENED, b"broker")]
    for number, row in enumerate(rows):
        asked = encode_command(row["code"], number, ext=dict(row["ext"]), body=row["body"])
        records.append((row["asked_ns"], 1, FROM_CLIENT, asked))
        records.append((row["asked_ns"] + 1, 1, FROM_SERVER, encode_response(number, 0)))
    (tmp_path / "a.capture").write_bytes(capture_bytes(records))
    later = [("orders", b"other", properties(KEYS[7])), LOG[5]]  # born when the parked one was
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / f"{1 << 30:020}").write_bytes(log_bytes(later, 1 << 30))
    ingest(spark, [tmp_path], tmp_path / "tables", levels=DEFAULT_LEVELS)
    events = read_table(spark, tmp_path / "tables", "messages")
    of_one = events.where(f"message_id = '{KEYS[1]}' and born_ms = 1000001")
    assert sorted(row["event"] for row in of_one.collect()) == ["parked", "sent", "stored"]
    assert recorded_twice(events) == 0
    sent = events.where("event = 'sent'").count()
    assert sent == len(SENT) - 1, "the last is a recall"
    shutil.copytree(tmp_path / "more", tmp_path / "slave")
    shutil.copy(tmp_path / "a.capture", tmp_path / "b.capture")
    both = tmp_path / "both"
    ingest(spark, [tmp_path], both, levels=DEFAULT_LEVELS)
    assert recorded_twice(read_table(spark, both, "messages")) == sent + 1
