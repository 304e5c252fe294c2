"""`tidegate fsck --repair`: damage is named, copied and repaired; and the drill of docs/disaster-recovery.md."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import click
import lmdb
import msgspec
import pytest
from click.testing import CliRunner, Result

from gateway.cli.fsck import fsck
from gateway.cli.records import due_of, is_half
from gateway.cli.transfer_commands import drain
from gateway.wire.bodies import TopicSettings
from storage import find_by_id, logged
from storage.environment import STORED_FILES
from storage.redo_log import GAP
from tests.gateway.conftest import MakeGateway
from tests.gateway.memory import START_MS, MemoryGateway, bodies
from tests.gateway.tools import create_topic
from tests.ops.conftest import Command
from tests.storage.folder import change_table, damage_log
from tests.storage.pages import leaves_of, overwrite

DUE_MS = START_MS + 3_600_000


@pytest.fixture
def gateway(make_gateway: MakeGateway) -> MemoryGateway:
    """A gateway that has fired one message and has three pending: two due in an hour, one later."""
    gateway = make_gateway()
    client = gateway.connect()
    client.send_message(body="fired", TIMER_DELAY_SEC="1", UNIQ_KEY="FIRED")
    gateway.jump(2_000)
    for number, due_ms in enumerate((DUE_MS, DUE_MS, DUE_MS + 5_000)):
        properties = {"TIMER_DELIVER_MS": str(due_ms), "KEYS": "all", "UNIQ_KEY": f"ID{number}"}
        assert client.send_message(body=f"body {number}", properties=properties).code == 0
    return gateway


def empty(data: Path, table: str) -> None:
    change_table(data, table, lambda txn, database: txn.drop(database, delete=False))


def break_record(data: Path, number: int) -> None:
    """Overwrite a message's record."""
    key = number.to_bytes(8)
    change_table(data, "messages", lambda txn, database: txn.put(key, b"\0" * 100, db=database))


def test_drill_a_damaged_folder(gateway: MemoryGateway, tidegate: Command, tmp_path: Path) -> None:
    """Three tables are lost. The repair rebuilds them from the others, and every message fires once at its time."""
    gateway.stop()
    for table in ("ids", "queues", "keys"):
        empty(gateway.data, table)
    before = tidegate("fsck", "--data", gateway.data)
    assert before.returncode == 4
    assert "message 2 is missing from the ids" in before.stdout
    assert "would be repaired, by " in before.stdout
    assert "message 2: is found by its key b'all'" in before.stdout
    assert "would be left" not in before.stdout

    done = tidegate("fsck", "--data", gateway.data, "--repair", "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout == before.stdout
    assert "no faults are left" in done.stderr
    assert tidegate("fsck", "--data", gateway.data).returncode == 0
    (copy,) = gateway.data.parent.glob(f"{gateway.data.name}.before-repair-*")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o700
    assert tidegate("fsck", "--data", copy).stdout == before.stdout

    gateway.start()
    client = gateway.connect()
    assert bodies(client.pull_all()) == ["fired"]
    assert [one["msgId"] for one in client.look_up(topic="orders")] == ["ID0", "ID1", "ID2"]
    gateway.jump(3_600_000)
    assert bodies(gateway.connect().pull_all()) == ["fired", "body 0", "body 1"]
    assert [found.due_ms for found in find_by_id(gateway.store, b"ID1")] == [DUE_MS]


def test_a_record_that_cannot_be_read_is_moved_aside(
    gateway: MemoryGateway,
) -> None:
    gateway.stop()
    break_record(gateway.data, 2)
    done = run("--data", gateway.data, "--repair", "--yes", "--no-copy")
    assert done.exit_code == 0, done.stderr
    assert "message 2: its record cannot be read: it is moved to repairs-TIME.jsonl" in done.stdout
    (journal,) = gateway.data.glob("repairs-*.jsonl")
    moved = [json.loads(line) for line in journal.read_text().splitlines()]
    assert {"table": "messages", "key": f"{2:016x}", "value": "00" * 100} in moved
    assert not list(gateway.data.parent.glob("*.before-repair-*"))
    gateway.start()
    gateway.jump(3_600_000)
    assert bodies(gateway.connect().pull_all()) == ["fired", "body 1"]


def test_a_large_body_with_a_bit_that_has_changed_is_not_delivered(
    gateway: MemoryGateway, tidegate: Command, tmp_path: Path
) -> None:
    """Records of this size are not packed, and clients do not verify the checksum."""
    client = gateway.connect()
    due = {"TIMER_DELIVER_MS": str(DUE_MS), "UNIQ_KEY": "LARGE"}
    client.send_message(body="x" * 20_000, properties=due)
    client.send_message(body="y" * 20_000, properties=due | {"UNIQ_KEY": "WHOLE"})
    gateway.stop()

    def flip(txn: lmdb.Transaction, database: lmdb._Database) -> None:
        key, part = next(row for row in txn.cursor(db=database) if b"x" * 1_000 in row[1])
        txn.put(key, part.replace(b"xx", b"xy", 1), db=database)

    change_table(gateway.data, "parts", flip)
    assert "message 5: its record cannot be read" in run("--data", gateway.data).stdout
    pending = tmp_path / "pending.jsonl"
    export = tidegate("export", "--data", gateway.data, "--to", pending)
    assert export.returncode == 4, export.stderr
    assert [json.loads(line)["msgId"] for line in pending.read_text().splitlines()] == [
        *("ID0", "ID1", "WHOLE", "ID2")
    ]
    gateway.start()
    gateway.jump(3_600_000)
    bodies_now = bodies(gateway.connect().pull_all())
    assert bodies_now == ["fired", "body 0", "body 1", "y" * 20_000]
    assert len(gateway.store.damaged) == 1
    gateway.stop()
    assert run("--data", gateway.data, "--repair", "--yes", "--no-copy").exit_code == 0
    gateway.start()
    assert bodies(gateway.connect().pull_all()) == bodies_now


def run(*arguments: object, text: str = "") -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(fsck, [str(argument) for argument in arguments], input=text)


def read(gateway: MemoryGateway) -> list[str]:
    """Return what the first queue has from its first offset on."""
    client, offset = gateway.connect(), gateway.store.queue(b"orders", 0).first
    found: list[str] = []
    while page := client.pull(offset=offset):
        found += bodies(page)
        offset = page[-1].queue_offset + 1
    return found


def test_drill_lost_pages(make_gateway: MakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """What can be read goes into a new file. What was delivered or aborted stays so, and the rest fires."""
    gateway = make_gateway()
    client = gateway.connect()
    for number in range(300):
        properties = {"TIMER_DELAY_SEC": "1" if number % 2 else "3600", "UNIQ_KEY": f"ID{number}"}
        client.send_message(body=f"body {number}", properties=properties)
    gateway.jump(2_000)
    before = bodies(client.pull_all())
    for name in ("ID4", "ID8"):
        client.abort(id=name)
    gateway.stop()
    data = gateway.data
    page = leaves_of(data, "messages")[2]
    overwrite(data, page)
    for table in ("ids", "queues", "topics"):
        overwrite(data, leaves_of(data, table)[0])
    # Otherwise all of these are due in the future.
    monkeypatch.setattr("gateway.cli.fsck.now_ms", lambda: gateway.now_ms)
    told = run("--data", data)
    assert told.exit_code == 4
    assert f" of 300 rows cannot be read (page {page})\n" in told.stdout
    assert "data.mdb is written anew with the rows that can be read" in told.stdout
    assert "restore a backup, or repair: " in told.stderr
    files = {name: (data / name).read_bytes() for name in STORED_FILES}

    done = run("--data", data, "--repair", "--yes")
    # The topic's settings are to be set again.
    assert done.exit_code == 4, done.stderr
    assert done.stdout.startswith(told.stdout)
    assert "1 fault left" in done.stderr
    (copy,) = data.parent.glob(f"{data.name}.before-repair-*")
    assert {file.name: file.read_bytes() for file in copy.iterdir()} == files
    assert stat.S_IMODE(copy.stat().st_mode) == 0o700

    gateway.start()
    create_topic(gateway.connect(), "orders", 4)
    gateway.advance(20_000)
    pulled = read(gateway)
    lost = set(before) - set(pulled)
    assert 0 < len(lost) < 20
    assert pulled == [body for body in before if body not in lost]
    gateway.jump(3_600_000)
    fired = read(gateway)[len(pulled) :]
    pending = {f"body {number}" for number in range(0, 300, 2)} - {"body 4", "body 8"}
    lost |= pending - set(fired)
    assert f"messages: {len(lost)} of 300 rows" in told.stdout
    assert set(fired) < pending
    gateway.stop()
    assert run("--data", data).exit_code == 0


def test_nothing_is_repaired_unless_somebody_says_so(gateway: MemoryGateway) -> None:
    gateway.stop()
    empty(gateway.data, "ids")
    before = run("--data", gateway.data).stdout
    asked = run("--data", gateway.data, "--repair")
    assert asked.exit_code == 2
    assert "--yes is needed where nobody can be asked" in asked.stderr
    denied = run("--data", gateway.data, "--repair", text="n\n")
    assert denied.exit_code == 4
    assert denied.stderr.endswith("nothing was changed\n")
    assert run("--data", gateway.data).stdout == before
    agreed = run("--data", gateway.data, "--repair", "--no-copy", text="y\n")
    assert agreed.exit_code == 0, agreed.stderr
    assert run("--data", gateway.data).exit_code == 0


def test_the_copy_of_a_repair_that_was_killed_goes(
    gateway: MemoryGateway, tidegate: Command
) -> None:
    gateway.stop()
    empty(gateway.data, "ids")
    name = f".{gateway.data.name}.before-repair-20300131T093000Z.unfinished"
    left = gateway.data.with_name(name)
    left.mkdir()
    (left / "data.mdb").write_bytes(b"half of it")
    done = tidegate("fsck", "--data", gateway.data, "--repair", "--yes")
    assert done.returncode == 0, done.stderr
    assert not left.exists()


def test_nobody_can_be_asked_where_standard_input_is_closed(
    gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.stop()
    empty(gateway.data, "ids")
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(click.UsageError, match="--yes is needed where nobody can be asked"):
        fsck.main(["--data", str(gateway.data), "--repair"], standalone_mode=False)


def test_a_copy_that_cannot_be_made_is_no_repair(
    gateway: MemoryGateway, tidegate: Command, tmp_path: Path
) -> None:
    gateway.stop()
    empty(gateway.data, "ids")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").write_text("mine")
    repair = ("--data", gateway.data, "--repair", "--yes")
    done = tidegate("fsck", *repair, "--copy-to", tmp_path / "full")
    assert done.returncode == 1
    assert "nothing was repaired: name another folder with --copy-to" in done.stderr
    assert run("--data", gateway.data).exit_code == 4
    assert run("--data", gateway.data, *repair[2:], "--copy-to", tmp_path / "copy").exit_code == 0
    assert run("--data", tmp_path / "copy").exit_code == 4


@pytest.mark.parametrize("flags", [(), ("--no-copy",)], ids=["copy", "no-copy"])
def test_no_copy_elsewhere_is_advised_where_that_would_not_help(
    gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    """The new file needs room beside the damaged one."""
    gateway.stop()
    overwrite(gateway.data, leaves_of(gateway.data, "messages")[0])
    monkeypatch.setattr("storage.inspection.free_bytes", lambda _: 0)
    done = run("--data", gateway.data, "--repair", "--yes", *flags)
    assert done.exit_code == 1
    assert str(done.exception).endswith(
        "nothing was repaired: make room, or copy the folder to another disk and repair it there"
    )


def test_a_sound_folder_is_left_as_it_is(gateway: MemoryGateway) -> None:
    gateway.stop()
    before = (gateway.data / "data.mdb").read_bytes()
    done = run("--data", gateway.data, "--repair")
    assert (done.exit_code, done.stdout) == (0, "")
    assert (gateway.data / "data.mdb").read_bytes() == before
    assert not list(gateway.data.glob("repairs-*"))


def test_a_serving_gateway_is_left_alone(gateway: MemoryGateway, tidegate: Command) -> None:
    done = tidegate("fsck", "--data", gateway.data, "--repair", "--yes")
    assert done.returncode == 1
    assert "in use by process" in done.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--yes",), "go with --repair"),
        (("--copy-to", "x"), "go with --repair"),
        (("--repair", "--no-copy", "--copy-to", "x"), "either --copy-to or --no-copy"),
    ],
)
def test_options_that_do_not_go_together(
    tmp_path: Path, options: tuple[str, ...], told: str
) -> None:
    done = run("--data", tmp_path, *options)
    assert done.exit_code == 2
    assert told in done.stderr


def test_a_record_tells_its_time(make_gateway: MakeGateway) -> None:
    """The time is the one that the gateway stored, in whatever way the client asked for it."""
    gateway = make_gateway()
    client = gateway.connect()
    client.send_message(body="a", UNIQ_KEY="A", TIMER_DELAY_SEC="60")
    client.send_message(body="b", UNIQ_KEY="B", TIMER_DELIVER_MS=str(START_MS + 5_000))
    client.send_message(body="c", UNIQ_KEY="C", DELAY="5")
    client.send_message(body="d", UNIQ_KEY="D")
    client.send_message(body="e", UNIQ_KEY="E", DELAY="+" + "0" * 5_000 + "5")
    client.send_message(body="f", UNIQ_KEY="F", DELAY="0" * 5_000)
    client.send_message(body="g", UNIQ_KEY="G", TIMER_OUT_MS=str(START_MS + 5_000))
    for name in (b"A", b"B", b"C", b"D", b"E", b"F", b"G"):
        (found,) = find_by_id(gateway.store, name)
        assert due_of(found.record) == found.due_ms
        assert not is_half(found.record)


@pytest.mark.parametrize(
    ("command", "further"), [(fsck, []), (drain, ["--to", "127.0.0.1:1"])], ids=["fsck", "drain"]
)
def test_a_log_with_a_gap_is_told(
    gateway: MemoryGateway,
    monkeypatch: pytest.MonkeyPatch,
    command: click.Command,
    further: list[str],
) -> None:
    """The first program that skips the gap reports it. The folder is sound without the lost messages."""
    monkeypatch.setattr(logged, "CHECKPOINT_SECONDS", 3600)
    gateway.checkpoint()
    client = gateway.connect()
    for name in ("first", "second"):
        client.send_message(UNIQ_KEY=name)
    gateway.store.environment.close()
    damage_log(gateway.data, b"first")
    arguments = ["--data", str(gateway.data), *further]
    assert GAP in CliRunner().invoke(command, arguments).stderr.splitlines()
    assert GAP not in CliRunner().invoke(command, arguments).stderr
    assert run("--data", gateway.data).exit_code == 0
    gateway.crash()


@pytest.mark.parametrize("damaged", [b"{", msgspec.json.encode(TopicSettings("ordars", 4, 4, 6))])
def test_settings_that_cannot_be_read_are_named_and_not_guessed(
    gateway: MemoryGateway, tidegate: Command, damaged: bytes
) -> None:
    gateway.stop()
    change_table(
        gateway.data, "topics", lambda txn, database: txn.put(b"orders", damaged, db=database)
    )
    for repair in ((), ("--repair", "--yes")):
        done = tidegate("fsck", "--data", gateway.data, *repair)
        assert done.returncode == 4
        assert "topics b'orders': the settings cannot be read" in done.stdout
        assert "would be repaired" not in done.stdout
        last = done.stderr.splitlines()[-1]
        assert last == "this cannot be repaired: see docs/disaster-recovery.md"
    gateway.start()
    create_topic(gateway.connect(), "orders", 4)
    gateway.stop()
    assert tidegate("fsck", "--data", gateway.data).returncode == 0


def test_a_recurring_message_that_cannot_be_read_is_named(gateway: MemoryGateway) -> None:
    """It is paused once it is due, and fires no more."""
    recurring = {"TIDEGATE_EVERY": "1m", "TIDEGATE_NAME": "nightly"}
    assert gateway.connect().send_message("orders", "tick", recurring).code == 0
    gateway.stop()
    assert run("--data", gateway.data).exit_code == 0
    change_table(
        gateway.data,
        "recurring",
        lambda txn, database: txn.put(b"orders\0nightly", b"{", db=database),
    )
    done = run("--data", gateway.data)
    assert done.exit_code == 4
    assert done.stdout.splitlines()[0] == (
        "recurring b'orders\\x00nightly': its definition cannot be read, and it does not fire: set it again"
    )
    gateway.start()
    assert gateway.connect().send_message("orders", "tick", recurring).code == 0
    gateway.stop()
    assert run("--data", gateway.data).exit_code == 0
