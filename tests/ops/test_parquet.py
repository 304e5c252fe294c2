"""Parquet files of pending messages: written, read by other programs, and imported again."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gateway.cli.parquet import SCHEMA, read_held, write_held
from gateway.cli.transfer import HeldLine, LineError, export_held
from gateway.wire.codes import SysFlag
from tests.gateway.memory import START_MS, MemoryGateway
from tests.ops.conftest import Command


def test_all_of_a_message_is_there(gateway: MemoryGateway, tmp_path: Path) -> None:
    client = gateway.connect()
    for number in range(3):
        client.send_message(
            body=bytes([number, 255]),
            properties={"TIMER_DELIVER_MS": str(START_MS + 60_000 + number), "colour": "grün"},
            fields={"queue": 1, "sys_flag": SysFlag.MULTI_TAGS, "reconsume": 3},
        )
    gateway.stop()
    held = list(export_held(gateway.data, set()))
    first = held[0]
    assert (first.topic, first.queue_id, first.flag, first.sys_flag) == ("orders", 1, 9, 2)
    assert (first.reconsume_times, first.born_host) == (3, client.protocol.address)
    assert (first.born_ms, first.store_ms) == (START_MS - 7, START_MS)
    with (tmp_path / "held.parquet").open("wb") as file:
        assert write_held(held, file) == 3
    with (tmp_path / "held.parquet").open("rb") as file:
        assert list(read_held(file)) == held
    table = pq.read_table(tmp_path / "held.parquet")
    assert table.schema.equals(SCHEMA)
    assert table["dueMs"].to_pylist() == [START_MS + 60_000 + number for number in range(3)]
    assert dict(table["properties"][0].as_py())["colour"] == "grün"
    assert table["body"][1].as_py() == b"\x01\xff"


def test_groups_are_written_one_by_one() -> None:
    lines = [
        HeldLine(topic="T", queue_id=0, due_ms=n, msg_id="", properties={}, body=b"")
        for n in range(12_000)
    ]
    file = io.BytesIO()
    assert write_held(lines, file) == 12_000
    assert pq.ParquetFile(file).num_row_groups == 3
    assert [line.due_ms for line in read_held(file)] == list(range(12_000))


@pytest.mark.parametrize("kind", ["text", "other columns", "wrong type"])
def test_another_file_is_refused(kind: str) -> None:
    file = io.BytesIO(b"topic,body\n")
    if kind != "text":
        file = io.BytesIO()
        rows = {"topic": [1]} if kind == "wrong type" else {"name": ["x"]}
        pq.write_table(pa.table(rows), file)
    with pytest.raises(LineError, match="not of an export"):
        list(read_held(file))


@pytest.mark.parametrize("kind", ["no UTF-8", "a property twice"])
def test_a_file_of_another_program_with_what_no_message_has_is_refused(kind: str) -> None:
    row = msgspec.to_builtins(
        HeldLine(topic="T", queue_id=0, due_ms=1, msg_id="", properties={}, body=b""),
        builtin_types=(bytes,),
    )
    row["properties"] = [("a", "b"), ("a", "c")] if kind == "a property twice" else []
    table = pa.Table.from_pylist([row], SCHEMA)
    if kind == "no UTF-8":
        buffers = pa.array([b"\xff"]).buffers()
        table = table.set_column(0, "topic", pa.Array.from_buffers(pa.string(), 1, buffers))
    file = io.BytesIO()
    pq.write_table(table, file)
    with pytest.raises(LineError, match="not of an export"):
        list(read_held(file))


def test_the_commands(gateway: MemoryGateway, tidegate: Command, tmp_path: Path) -> None:
    gateway.connect().send_message(TIMER_DELAY_SEC="60", UNIQ_KEY="A")
    gateway.checkpoint()
    file = tmp_path / "held.parquet"
    done = tidegate("export", "--data", gateway.data, "--to", file)
    assert (done.returncode, done.stderr) == (0, "1 message\n")
    assert pq.read_table(file)["msgId"].to_pylist() == ["A"]
    # Nothing listens on that port. The error shows that the file was read and its message was about to be sent.
    done = tidegate("import", file, "--to", "127.0.0.1:1", "--timeout", "1")
    assert done.returncode == 1
    assert "nothing listens on 127.0.0.1:1" in done.stderr
    assert "give its address with --to HOST:PORT" in done.stderr
    done = tidegate("import", "--format", "parquet", "--to", "127.0.0.1:1", text="x")
    assert done.returncode == 1
    assert "from a file only, not from a pipe" in done.stderr
    wrong = tidegate("import", "--format", "parquet", tmp_path / "x.jsonl", "--to", "127.0.0.1:1")
    assert wrong.returncode == 2


def test_an_export_that_fails_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    def lines(number: int) -> Iterator[HeldLine]:
        for n in range(number):
            yield HeldLine(topic="T", queue_id=0, due_ms=n, msg_id="", properties={}, body=b"")
        raise OSError("the disk")

    file = tmp_path / "held.parquet"
    with file.open("wb") as target, pytest.raises(OSError, match="the disk"):
        write_held(lines(7_000), target)
    assert file.stat().st_size == 0


def test_without_pyarrow_the_fix_is_told(
    gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from click.testing import CliRunner

    from gateway.cli.transfer_commands import export

    monkeypatch.setattr("gateway.cli.transfer_commands.importlib.util.find_spec", lambda name: None)
    done = CliRunner().invoke(
        export, ["--data", str(gateway.data), "--to", str(tmp_path / "held.parquet")]
    )
    assert done.exit_code == 1
    assert "pip install '.[parquet]'" in done.output
