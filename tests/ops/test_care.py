"""`tidegate fsck`, `backup`, `restore` and `export` on the folder of a running or stopped gateway."""

from __future__ import annotations

import base64
import errno
import fcntl
import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import pytest
import rich_click as click
from twisted.logger import capturedLogs, formatEvent

from gateway.cli import transfer_commands
from gateway.cli.data_folder import rough_size
from gateway.cli.transfer import LineError, export_lines, parse_lines
from gateway.wire.codes import RequestCode
from gateway.wire.recurring_bodies import RecurringMessage
from storage.keys import FORMAT, TIMER_VALUE, timer_key
from storage.upgrades import FORMAT_VERSION
from tests.gateway.conftest import MakeGateway
from tests.gateway.memory import START_MS, MemoryGateway, bodies
from tests.gateway.tools import ok
from tests.ops.conftest import Command
from tests.storage.folder import change_table, clear_first_record

PAGE = resource.getpagesize()

DUE_MS = START_MS + 3_600_000


@pytest.fixture
def gateway(make_gateway: MakeGateway) -> MemoryGateway:
    """A gateway with three pending messages: two due in an hour, one later."""
    gateway = make_gateway()
    client = gateway.connect()
    for number, due_ms in enumerate((DUE_MS, DUE_MS, DUE_MS + 5_000)):
        properties = {
            "TIMER_DELIVER_MS": str(due_ms),
            "KEYS": f"order-{number} all",
            "TAGS": "close",
            "UNIQ_KEY": f"ID{number}",
            "colour": "grün",
        }
        assert client.send_message(body=f"body {number}", properties=properties).code == 0
    gateway.checkpoint()
    return gateway


def damage(data: Path, table: str) -> None:
    """Delete the first row of a table directly in the file."""

    def take_first(txn: lmdb.Transaction, database: lmdb._Database) -> None:
        cursor = txn.cursor(db=database)
        assert cursor.first()
        cursor.delete()

    change_table(data, table, take_first)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["fsck"], 0), (["export", "--to", "{target}"], 0), (["serve", "--flush", "perhaps"], 2)],
)
def test_a_full_disk_behind_standard_error_changes_nothing(
    gateway: MemoryGateway, tmp_path: Path, arguments: list[str], status: int
) -> None:
    """As when its lines are appended to a log on another disk."""
    gateway.stop()
    target = tmp_path / "held.jsonl"
    words = [word.format(target=target) for word in arguments]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gateway", *words, "--data", str(gateway.data)],
            stdout=subprocess.PIPE,
            stderr=full,
            timeout=180,
            check=False,
        )
    assert (done.returncode, done.stdout) == (status, b"")
    assert not target.exists() or target.read_bytes().count(b"\n") == 3


def test_fsck_of_a_sound_folder(gateway: MemoryGateway, tidegate: Command) -> None:
    for _ in range(2):
        gateway.connect().send_message(body="now")
    gateway.stop()
    done = tidegate("fsck", "--data", gateway.data)
    assert (done.returncode, done.stdout) == (0, "")
    looked_at = [line.split()[-1] for line in done.stderr.splitlines()]
    assert looked_at[:3] == ["pages", "rows", "timers"]
    assert "checking 3 timers" in done.stderr
    assert "checking 2 messages in queues" in done.stderr
    assert done.stderr.endswith("no faults\n")


@pytest.mark.parametrize("table", ["messages", "ids", "keys"])
def test_fsck_names_faults(gateway: MemoryGateway, tidegate: Command, table: str) -> None:
    gateway.stop()
    damage(gateway.data, table)
    done = tidegate("fsck", "--data", gateway.data)
    assert done.returncode == 4
    assert done.stdout.count("\n") >= 1
    assert "restore a backup" in done.stderr


def test_fsck_names_a_timer_without_a_message(gateway: MemoryGateway, tidegate: Command) -> None:
    gateway.stop()
    key, value = timer_key(1, b"orders", 99, b"id"), TIMER_VALUE.pack(0, 0, 1)
    change_table(gateway.data, "timers", lambda txn, timers: txn.put(key, value, db=timers))
    done = tidegate("fsck", "--data", gateway.data)
    assert done.returncode == 4
    assert "timer of message 99: the message is missing" in done.stdout


def test_fsck_names_a_record_that_cannot_be_read(gateway: MemoryGateway, tidegate: Command) -> None:
    gateway.stop()
    clear_first_record(gateway.data)
    done = tidegate("fsck", "--data", gateway.data)
    assert done.returncode == 4
    assert "its record cannot be read" in done.stdout


def test_fsck_leaves_a_serving_gateway_alone(gateway: MemoryGateway, tidegate: Command) -> None:
    done = tidegate("fsck", "--data", gateway.data)
    assert done.returncode == 1
    assert "in use by process" in done.stderr


@pytest.mark.parametrize("command", ["fsck", "export", "backup", "restore"])
def test_what_is_no_data_folder_stays_as_it_is(
    tmp_path: Path, tidegate: Command, command: str
) -> None:
    target = tmp_path / "target"
    arguments: dict[str, tuple[object, ...]] = {
        "fsck": ("--data", tmp_path / "none"),
        "export": ("--data", tmp_path / "none"),
        "backup": ("--data", tmp_path / "none", "--to", target),
        "restore": ("--from", tmp_path / "none", "--data", target),
    }
    done = tidegate(command, *arguments[command])
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "is not a data folder" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_upgrade_is_told_once(gateway: MemoryGateway, tidegate: Command) -> None:
    def make_older() -> None:
        gateway.stop()
        change_table(gateway.data, "meta", lambda txn, meta: txn.put(FORMAT, b"7", db=meta))

    told = f"the data folder {gateway.data} was upgraded from format 7 to {FORMAT_VERSION}: "
    make_older()
    assert told in tidegate("fsck", "--data", gateway.data).stderr
    assert told not in tidegate("fsck", "--data", gateway.data).stderr
    gateway.start()
    make_older()
    with capturedLogs() as events:
        gateway.start()
    assert [one for one in events if (formatEvent(one) or "").startswith(told)]
    assert len(gateway.connect().look_up()) == 3


@pytest.mark.parametrize("command", ["fsck", "export", "backup", "compact", "drain"])
def test_incremental_backups_are_restored_before_they_are_used(
    gateway: MemoryGateway, tmp_path: Path, tidegate: Command, command: str
) -> None:
    gateway.stop()
    backups = tmp_path / "backups"
    assert (
        tidegate("backup", "--data", gateway.data, "--to", backups, "--incremental").returncode == 0
    )
    before = sorted(backups.iterdir())
    target = {"export": tmp_path / "out", "backup": tmp_path / "out", "drain": "127.0.0.1:1"}
    to = ("--to", target[command]) if command in target else ()
    done = tidegate(command, "--data", backups, *to)
    assert done.returncode == 1
    assert f"'tidegate restore --from {backups} --data NEW'" in done.stderr
    assert sorted(backups.iterdir()) == before


@pytest.mark.parametrize("command", ["fsck", "export", "backup", "restore", "compact"])
def test_an_empty_file_is_not_a_sound_one(tmp_path: Path, tidegate: Command, command: str) -> None:
    """A copy that a full disk cut short at once is such a file."""
    data, target = tmp_path / "data", tmp_path / "target"
    data.mkdir()
    (data / "data.mdb").touch()
    arguments: dict[str, tuple[object, ...]] = {
        "backup": ("--data", data, "--to", target),
        "restore": ("--from", data, "--data", target),
    }
    done = tidegate(command, *arguments.get(command, ("--data", data)))
    assert done.returncode == 1
    assert done.stderr == (
        f"tidegate: {data}/data.mdb is empty: copy it again, or restore a backup\n"
    )
    assert [file.name for file in data.iterdir()] == ["data.mdb"]
    assert not target.exists()


def test_the_folder_of_several_workers_is_named_as_such(
    gateway: MemoryGateway, tidegate: Command, tmp_path: Path
) -> None:
    (tmp_path / "worker-0").symlink_to(gateway.data)
    for command in ("fsck", "export", "audit"):
        done = tidegate(command, "--data", tmp_path)
        assert done.returncode == 1
        assert f"name one of them, such as {tmp_path / 'worker-0'}" in done.stderr


def test_drill_a_lost_disk(
    gateway: MemoryGateway, make_gateway: MakeGateway, tidegate: Command, tmp_path: Path
) -> None:
    """Back up while serving, lose the folder, restore, check, serve: no pending message is missing."""
    backup, again = tmp_path / "backup", tmp_path / "again"
    assert tidegate("backup", "--data", gateway.data, "--to", backup).returncode == 0
    gateway.close()
    assert tidegate("restore", "--from", backup, "--data", again).returncode == 0
    assert tidegate("fsck", "--data", again).returncode == 0
    restored = MemoryGateway(again)
    try:
        client = restored.connect()
        assert [one["msgId"] for one in client.look_up(topic="orders")] == ["ID0", "ID1", "ID2"]
        restored.jump(3_600_000)
        assert bodies(restored.connect().pull_all()) == ["body 0", "body 1"]
    finally:
        restored.close()


def test_drill_backups_of_changes(
    gateway: MemoryGateway, tidegate: Command, tmp_path: Path
) -> None:
    """Make one backup after the other into one folder while serving. Any of them can be restored."""
    command = ("backup", "--data", gateway.data, "--to", tmp_path / "hourly", "--incremental")
    assert "backup 0000, " in tidegate(*command).stderr
    gateway.connect().abort(id="ID0")
    gateway.checkpoint()
    done = tidegate(*command)
    assert done.returncode == 0, done.stderr
    assert "backup 0001, " in done.stderr
    gateway.close()
    restore = ("restore", "--from", tmp_path / "hourly", "--data")
    assert tidegate(*restore, tmp_path / "last").returncode == 0
    assert tidegate(*restore, tmp_path / "first", "--number", "0").returncode == 0
    for name, ids in (("first", ["ID0", "ID1", "ID2"]), ("last", ["ID1", "ID2"])):
        restored = MemoryGateway(tmp_path / name)
        try:
            found = restored.connect().look_up(topic="orders")
            assert [one["msgId"] for one in found] == ids
        finally:
            restored.close()
    refused = tidegate("restore", "--from", tmp_path / "last", "--data", "x", "--number", "1")
    assert refused.returncode == 2
    assert "has no backups of" in refused.stderr


def test_backup_does_not_hold_up_the_gateway(
    gateway: MemoryGateway, tidegate: Command, tmp_path: Path
) -> None:
    assert tidegate("backup", "--data", gateway.data, "--to", tmp_path / "backup").returncode == 0
    assert gateway.connect().abort(id="ID0")[0]["outcome"] == "aborted"
    gateway.jump(3_600_000)
    assert bodies(gateway.connect().pull_all()) == ["body 1"]


def test_a_copy_that_cannot_be_written_says_where_to(
    gateway: MemoryGateway, tmp_path: Path
) -> None:
    """The operator has to look at the copy's disk, not at the gateway's."""
    target = tmp_path / "backup"
    done = subprocess.run(
        [
            # Without -B, Python keeps compiled modules, cut to the limit, and the next process cannot import them.
            *(sys.executable, "-Bm", "gateway", "backup"),
            *("--data", str(gateway.data), "--to", str(target)),
        ],
        capture_output=True,
        text=True,
        # The limit on the size of files is reported like a full disk.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)),
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"tidegate: {gateway.data} could not be copied to {target}: ")
    assert done.stderr.endswith("File too large\n")
    assert not target.exists()


def test_restore_overwrites_nothing(
    gateway: MemoryGateway, tidegate: Command, tmp_path: Path
) -> None:
    tidegate("backup", "--data", gateway.data, "--to", tmp_path / "backup")
    done = tidegate("restore", "--from", tmp_path / "backup", "--data", gateway.data)
    assert done.returncode == 1
    assert "is not empty" in done.stderr


def test_export_has_all_of_a_message(gateway: MemoryGateway, tidegate: Command) -> None:
    done = tidegate("export", "--data", gateway.data)
    lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["msgId"], line["dueMs"]) for line in lines] == [
        ("ID0", DUE_MS),
        ("ID1", DUE_MS),
        ("ID2", DUE_MS + 5_000),
    ]
    first = lines[0]
    assert base64.b64decode(first["body"]) == b"body 0"
    assert (first["topic"], first["queueId"]) == ("orders", 0)
    assert first["properties"]["KEYS"] == "order-0 all"
    assert first["properties"]["colour"] == "grün"
    assert first["bornHost"].startswith("127.0.0.1:")
    assert done.stderr == "3 messages\n"


def test_export_leaves_out_what_fired_or_was_aborted(
    gateway: MemoryGateway, tidegate: Command
) -> None:
    gateway.connect().abort(id="ID0")
    gateway.jump(3_600_000)
    gateway.checkpoint()
    done = tidegate("export", "--data", gateway.data)
    assert [json.loads(line)["msgId"] for line in done.stdout.splitlines()] == ["ID2"]


@pytest.mark.parametrize("is_in_table", [False, True])
def test_export_goes_on_behind_what_cannot_be_read(
    gateway: MemoryGateway, tidegate: Command, is_in_table: bool
) -> None:
    """The message's timer may be in the table, as after a reschedule, or among those that were accepted lately."""
    if is_in_table:
        ok(
            gateway.connect().ask(
                RequestCode.RESCHEDULE_TIMERS, {"id": "ID0", "due": str(DUE_MS - 1)}
            )
        )
    gateway.stop()
    clear_first_record(gateway.data)
    done = tidegate("export", "--data", gateway.data)
    assert done.returncode == 4
    assert [json.loads(line)["msgId"] for line in done.stdout.splitlines()] == ["ID1", "ID2"]
    assert "left out, as they cannot be read: 1;" in done.stderr


@pytest.mark.parametrize("table", ["timers", "ids"])
def test_and_behind_a_row_that_has_not_the_shape_of_its_table(
    gateway: MemoryGateway, tidegate: Command, table: str
) -> None:
    if table == "timers":
        for number in range(3):
            due = str(DUE_MS + number)
            ok(
                gateway.connect().ask(
                    RequestCode.RESCHEDULE_TIMERS, {"id": f"ID{number}", "due": due}
                )
            )
    gateway.stop()

    def misshape(txn: lmdb.Transaction, database: lmdb._Database) -> None:
        cursor = txn.cursor(db=database)
        assert cursor.first()
        txn.put(cursor.key(), cursor.value() + b"\0", db=database)

    change_table(gateway.data, table, misshape)
    done = tidegate("export", "--data", gateway.data)
    assert done.returncode == 4
    assert [json.loads(line)["msgId"] for line in done.stdout.splitlines()] == ["ID1", "ID2"]
    assert "left out, as they cannot be read: 1;" in done.stderr


def test_a_message_that_the_ids_lack_is_counted_by_an_export(
    gateway: MemoryGateway, tidegate: Command
) -> None:
    """A recently accepted message is pending if its row in the ids says so. An undecided half has no such row."""
    half = {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "HALF"}
    assert gateway.connect().send_message(properties=half).code == 0
    gateway.stop()
    damage(gateway.data, "ids")
    done = tidegate("export", "--data", gateway.data)
    assert done.returncode == 4
    assert len(done.stdout.splitlines()) == 2
    assert "left out, as they cannot be read: 1;" in done.stderr


def test_a_row_that_tells_nothing_of_a_message_is_counted_by_an_export(
    gateway: MemoryGateway, tidegate: Command
) -> None:
    gateway.stop()
    change_table(gateway.data, "waiting", lambda txn, database: txn.put(b"x", b"y", db=database))
    done = tidegate("export", "--data", gateway.data)
    assert done.returncode == 4
    assert [json.loads(line)["msgId"] for line in done.stdout.splitlines()] == ["ID0", "ID1", "ID2"]
    assert "left out, as they cannot be read: 1;" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_device_that_takes_no_export_is_named(gateway: MemoryGateway, tidegate: Command) -> None:
    gateway.checkpoint()
    done = tidegate("export", "--data", str(gateway.data), "--to", "/dev/full")
    assert (done.returncode, done.stderr) == (
        1,
        "tidegate: /dev/full could not be written: No space left on device\n",
    )


@pytest.mark.parametrize("name", ["held.jsonl", "held.parquet"])
@pytest.mark.parametrize("kind", ["no data", "full disk"])
def test_an_export_that_fails_leaves_what_was_there(
    gateway: MemoryGateway, tmp_path: Path, kind: str, name: str
) -> None:
    gateway.checkpoint()
    folder = tmp_path / "exports"
    folder.mkdir()
    file = folder / name
    file.write_bytes(b"an older export")
    data = gateway.data if kind == "full disk" else tmp_path / "none"
    done = subprocess.run(
        # Without -B, Python keeps compiled modules, cut to the limit, and the next process cannot import them.
        [sys.executable, "-Bm", "gateway", "export", "--data", str(data), "--to", str(file)],
        capture_output=True,
        text=True,
        # The limit on the size of files is reported like a full disk.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
        check=False,
    )
    assert done.returncode == 1
    if kind == "full disk":
        assert done.stderr == f"tidegate: {file} could not be written: File too large\n"
    assert [(one.name, one.read_bytes()) for one in folder.iterdir()] == [
        (name, b"an older export")
    ]


def test_an_export_to_a_file_that_another_is_writing_is_refused(tmp_path: Path) -> None:
    """This happens if a timer starts one export before the last has ended. A file with parts of both is no export."""
    file = tmp_path / "held.jsonl"
    with transfer_commands._written(file) as first:
        first.write(b"one\n")
        with pytest.raises(click.ClickException, match="another export to"):
            transfer_commands._written(file).__enter__()
        first.write(b"two\n")
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [
        ("held.jsonl", b"one\ntwo\n")
    ]


def test_one_that_ends_while_another_begins_keeps_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other export has the file open that just got its final name."""
    file = tmp_path / "held.jsonl"
    first = transfer_commands._written(file)
    first.__enter__().write(b"one\n")
    flock = fcntl.flock

    def end_before(*arguments: Any) -> None:
        first.__exit__(None, None, None)
        flock(*arguments)

    monkeypatch.setattr(fcntl, "flock", end_before)
    with pytest.raises(click.ClickException, match="another export to"):
        transfer_commands._written(file).__enter__()
    assert file.read_bytes() == b"one\n"


def test_an_export_says_where_the_disk_does_not_take_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> None:
        assert (folder / "held.jsonl").exists()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("storage.sync", fail)
    with (
        pytest.raises(click.ClickException, match="could not be written: Input/output error"),
        transfer_commands._written(tmp_path / "held.jsonl") as file,
    ):
        file.write(b"one\n")


def test_an_export_says_that_a_data_file_is_a_link_to_itself(
    tidegate: Command, tmp_path: Path
) -> None:
    (tmp_path / "data.mdb").symlink_to("data.mdb")
    done = tidegate("export", "--data", tmp_path, "--to", tmp_path / "held.jsonl")
    assert done.returncode == 1
    assert "Too many levels of symbolic links" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["data.mdb", "redo.log", "audit.jsonl"])
def test_an_export_takes_the_place_of_nothing_that_a_gateway_has(
    gateway: MemoryGateway, tidegate: Command, tmp_path: Path, name: str
) -> None:
    gateway.checkpoint()
    (tmp_path / "link").symlink_to(gateway.data)
    file = gateway.data / name
    file.touch()
    before = file.stat().st_ino
    done = tidegate("export", "--data", gateway.data, "--to", tmp_path / "link" / name)
    assert done.returncode == 2
    assert "is a file of the data folder itself" in done.stderr
    assert file.stat().st_ino == before


def test_an_export_goes_on_where_one_was_killed(tmp_path: Path) -> None:
    (tmp_path / ".held.jsonl.unfinished").write_bytes(b"more than comes now\n")
    with transfer_commands._written(tmp_path / "held.jsonl") as file:
        assert file.tell() == 0
        file.write(b"one\n")
    assert [one.read_bytes() for one in tmp_path.iterdir()] == [b"one\n"]


def test_an_export_to_a_link_stands_where_it_leads(
    gateway: MemoryGateway, tidegate: Command, tmp_path: Path
) -> None:
    gateway.checkpoint()
    (tmp_path / "latest").symlink_to("held.jsonl")
    assert tidegate("export", "--data", gateway.data, "--to", tmp_path / "latest").returncode == 0
    assert (tmp_path / "latest").is_symlink()
    assert len((tmp_path / "held.jsonl").read_bytes().splitlines()) == 3
    assert tidegate("export", "--data", gateway.data, "--to", "/dev/null").returncode == 0
    assert Path("/dev/null").is_char_device()


def test_lines_are_read_back(gateway: MemoryGateway) -> None:
    gateway.stop()
    lines = list(export_lines(gateway.data, set()))
    assert [line.body for line in parse_lines(lines)] == [b"body 0", b"body 1", b"body 2"]


@pytest.mark.parametrize("line", [b"nonsense", b"{}", b'{"topic": 1}', b"\xff"])
def test_a_line_that_is_none_is_named(line: bytes) -> None:
    with pytest.raises(LineError, match="line 2"):
        list(parse_lines([b"\n", line + b"\n"]))


def test_a_recurring_message_is_said_to_be_one() -> None:
    one = RecurringMessage(
        topic="orders",
        name="daily",
        state="active",
        next_ms=DUE_MS,
        fired=0,
        every="1d",
        zone="UTC",
        misfire="fire",
        set_ms=START_MS,
        queue_id=0,
        tags="",
        keys="",
        body_size=1,
    )
    with pytest.raises(LineError, match="line 1 is a recurring message: 'tidegate recurring imp"):
        list(parse_lines([msgspec.json.encode(one)]))


@pytest.mark.parametrize(
    ("size", "text"),
    [(172_032, "168KiB"), (1_400_983_552, "1.305GiB"), (5 * 1024**2, "5MiB"), (1024**4, "1TiB")],
)
def test_sizes_are_told_roughly(size: int, text: str) -> None:
    assert rough_size(size) == text


def test_a_long_export_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(transfer_commands, "_TELL_EVERY_S", -1.0)
    assert list(transfer_commands._told(range(2_500))) == list(range(2_500))
    assert capsys.readouterr().err == "1,000 messages so far\n2,000 messages so far\n"


def test_a_page_that_lmdb_cannot_read_is_told_in_a_line(
    gateway: MemoryGateway, tidegate: Command
) -> None:
    """This also holds if nothing reads the page before the folder is open."""
    gateway.connect().send_message()
    gateway.stop()
    rows: list[tuple[bytes, bytes]] = []
    change_table(gateway.data, "topics", lambda txn, db: rows.extend(txn.cursor(db=db)))
    file = gateway.data / "data.mdb"
    content = file.read_bytes()
    pages = [content[at : at + PAGE] for at in range(0, len(content), PAGE)]
    # Its flags are those of neither a leaf nor a branch page.
    damaged = [
        page[:10] + b"\4\0" + page[12:] if b"".join(rows[0]) in page else page for page in pages
    ]
    assert damaged != pages
    file.write_bytes(b"".join(damaged))
    done = tidegate("serve", "--data", gateway.data, "--listen", "127.0.0.1:0")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("tidegate: LMDB cannot read what is stored: ")
    assert last.endswith(
        "; data.mdb is damaged: restore a backup, unless 'tidegate fsck --repair' can repair it"
    )
