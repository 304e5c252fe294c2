"""The audit log: who changed what, written once the change is on disk."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.logger import capturedLogs, formatEvent

from gateway.monitoring.audit import read_lines
from gateway.router import Named
from gateway.wire.codes import RequestCode, ResponseCode
from tests.gateway.access.signed import SignedClient
from tests.gateway.conftest import MakeGateway
from tests.gateway.faults import commits_fail
from tests.gateway.memory import START_MS, MemoryClient, MemoryGateway
from tests.gateway.tools import create_topic


def lines(gateway: MemoryGateway) -> list[dict[str, Any]]:
    return list(read_lines(gateway.data))


def hold(client: MemoryClient, message_id: str, keys: str = "") -> str:
    """Send a message for later, and return its recall handle."""
    answer = client.send_message(TIMER_DELAY_SEC="60", UNIQ_KEY=message_id, KEYS=keys)
    return answer.ext()["recallHandle"]


def test_aborts_by_any_way(gateway: MemoryGateway, client: MemoryClient) -> None:
    handle = hold(client, "A")
    hold(client, "B")
    hold(client, "C", "c")
    hold(client, "D")
    client.recall("orders", handle)
    client.abort(id="B")
    client.abort(topic="orders", key="c")
    client.send_message(TIMER_DEL_UNIQKEY="D", TIMER_DELIVER_MS=str(START_MS + 60_000))
    first = lines(gateway)[0]
    address = "{0.host}:{0.port}".format(client.transport.getPeer())
    assert first.pop("from") == address
    assert first.pop("request").startswith(f"{address}#")
    assert first == {
        "at": "2027-01-15T08:00:00.000Z",
        "who": "",
        "action": "abort",
        "topic": "orders",
        "msgId": "A",
        "dueMs": START_MS + 60_000,
    }
    assert [line["msgId"] for line in lines(gateway)] == ["A", "B", "C", "D"]
    assert {line["from"] for line in lines(gateway)} == {address}


def test_other_times_debounce_and_pauses(gateway: MemoryGateway, client: MemoryClient) -> None:
    hold(client, "A", "k")
    client.ask(RequestCode.RESCHEDULE_TIMERS, {"id": "A", "delay": "5000"})
    client.send_message(TIDEGATE_RESCHEDULE="A", TIMER_DELAY_MS="7000")
    client.send_message(UNIQ_KEY="B", KEYS="k", TIDEGATE_DEBOUNCE="k", TIMER_DELAY_MS="9000")
    client.send_batch([("x", {"UNIQ_KEY": "C", "KEYS": "k", "TIDEGATE_DEBOUNCE": "k"})])
    client.send_message(UNIQ_KEY="D", KEYS="k", TIDEGATE_DEBOUNCE="k", TIMER_DELAY_MS="9000")
    for code in (RequestCode.PAUSE_TOPIC, RequestCode.RESUME_TOPIC):
        for _ in range(2):
            client.ask(code, {"topic": "orders"})
    about = ("at", "who", "from", "request", "topic")
    found = [{n: v for n, v in line.items() if n not in about} for line in lines(gateway)]
    moved = {"action": "reschedule", "msgId": "A"}
    assert found == [
        moved | {"dueMs": START_MS + 5_000, "fromMs": START_MS + 60_000},
        moved | {"dueMs": START_MS + 7_000, "fromMs": START_MS + 5_000},
        {"action": "debounce", "msgId": "B", "replaced": 1},
        {"action": "debounce", "msgId": "C", "replaced": 1},
        {"action": "pause"},
        {"action": "resume"},
    ]


def test_debounces_by_a_commit_and_by_what_recurs(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    hold(client, "A", "k")
    debounce = {"KEYS": "k", "TIDEGATE_DEBOUNCE": "k"}
    prepared = {"UNIQ_KEY": "B", "TRAN_MSG": "true", "PGROUP": "p", **debounce}
    half = client.send_message(properties=prepared).ext()
    place = {"msgId": "B", "tranStateTableOffset": half["queueOffset"]}
    place |= {"commitLogOffset": half["queueOffset"]}
    decision = {"producerGroup": "p", "commitOrRollback": "8", "fromTransactionCheck": "false"}
    assert lines(gateway) == []
    assert client.ask(RequestCode.END_TRANSACTION, place | decision).code == ResponseCode.SUCCESS
    client.send_message(properties={"TIDEGATE_NAME": "n", "TIDEGATE_EVERY": "10s", **debounce})
    hold(client, "C", "k")
    gateway.advance(10_000)
    first, _, last = lines(gateway)
    assert (first["action"], first["msgId"], first["replaced"]) == ("debounce", "B", 1)
    assert first["from"] != "gateway"
    assert (last["action"], last["from"], last["replaced"]) == ("debounce", "gateway", 1)


def test_what_changed_nothing_is_not_noted(gateway: MemoryGateway, client: MemoryClient) -> None:
    hold(client, "A")
    client.abort(id="A")
    client.abort(id="A")
    client.abort(id="unknown")
    client.look_up()
    client.pull()
    assert len(lines(gateway)) == 1


def test_a_line_waits_for_its_batch(gateway: MemoryGateway, client: MemoryClient) -> None:
    hold(client, "A")
    with commits_fail(gateway):
        answer = client.ask(RequestCode.ABORT_TIMERS, {"id": "A"})
        assert answer.code != ResponseCode.SUCCESS
    assert [line["stored"] for line in lines(gateway)] == [False]
    client.abort(id="A")
    assert [line.get("stored") for line in lines(gateway)] == [False, None]


@pytest.mark.parametrize(
    ("code", "fields", "body"),
    [
        (RequestCode.UPDATE_BROKER_CONFIG, {}, b"maxMessageSize=1000000"),
        (RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}, b""),
        (RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}, b""),
    ],
)
def test_a_line_of_a_change_in_memory_waits_for_no_batch(
    gateway: MemoryGateway,
    client: MemoryClient,
    code: RequestCode,
    fields: dict[str, str],
    body: bytes,
) -> None:
    with commits_fail(gateway):
        send = client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields(), b"refused")
        assert client.ask(code, fields, body).code == ResponseCode.SUCCESS
        answer = client.answer(send)
        assert answer is not None
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    (line,) = lines(gateway)
    assert (line["action"], line.get("stored")) == (code.name.lower(), None)


def test_administration_is_noted_by_its_fields(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    create_topic(client, "orders")
    client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"recallMessageEnable=false")
    refused = client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"noSuchSetting=1")
    assert refused.code == ResponseCode.INVALID_PARAMETER
    created, changed = lines(gateway)
    assert (created["action"], created["topic"]) == ("update_and_create_topic", "orders")
    assert (changed["action"], changed["body"]) == (
        "update_broker_config",
        "recallMessageEnable=false",
    )


def test_no_field_of_a_request_passes_for_the_lines_own(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    forged = ("at", "who", "from", "action", "request", "stored", "body", "self")
    answer = client.ask(
        RequestCode.UPDATE_BROKER_CONFIG, dict.fromkeys(forged, "x"), b"recallMessageEnable=false"
    )
    assert answer.code == ResponseCode.SUCCESS
    (line,) = lines(gateway)
    assert line.pop("self") == "x"
    assert "x" not in line.values()
    assert "stored" not in line
    assert (line["action"], line["body"]) == ("update_broker_config", "recallMessageEnable=false")


def test_users_are_named_and_their_keys_are_not(make_gateway: MakeGateway, tmp_path: Path) -> None:
    file = tmp_path / "first.json"
    file.write_text(json.dumps({"username": "root", "password": "secret of root"}))
    gateway = make_gateway(authentication=True, initial_user_file=file)
    root = SignedClient(gateway, "root", "secret of root")
    body = {"username": "alice", "password": "secret of alice", "userType": "Normal"}
    answer = root.ask(
        RequestCode.AUTH_CREATE_USER, {"username": "alice"}, json.dumps(body).encode()
    )
    assert answer.code == ResponseCode.SUCCESS
    body = {"username": "alice", "userStatus": "disable"}
    answer = root.ask(
        RequestCode.AUTH_UPDATE_USER, {"username": "alice"}, json.dumps(body).encode()
    )
    assert answer.code == ResponseCode.SUCCESS
    created, changed = lines(gateway)
    assert (created["who"], created["username"]) == ("root", "alice")
    assert created["action"] == "auth_create_user"
    assert json.loads(created["body"]) == {
        "username": "alice",
        "password": "***",
        "userType": "Normal",
    }
    assert changed["action"] == "auth_update_user"
    assert json.loads(changed["body"]) == body
    text = (gateway.data / "audit.jsonl").read_text()
    assert "secret of" not in text
    assert "Signature" not in text


def test_acting_for_somebody(gateway: MemoryGateway) -> None:
    audit = gateway.service.broker.audit
    with audit.acting(Named("bob", "192.0.2.1:80")):
        audit.note("reschedule", topic="orders", msgId="A", dueMs=1)
    audit.note("abort")
    first, second = lines(gateway)
    assert (first["who"], first["from"]) == ("bob", "192.0.2.1:80")
    assert (second["who"], second["from"]) == ("", "gateway")


def test_files_are_put_aside(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(audit_file_size=1024, audit_files=3)
    audit = gateway.service.broker.audit
    for number in range(100):
        audit.note("abort", number=number)
    files = sorted(file.name for file in gateway.data.glob("audit*"))
    assert files == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert all((gateway.data / file).stat().st_size <= 1024 for file in files)
    assert all((gateway.data / file).stat().st_mode & 0o777 == 0o600 for file in files)
    numbers = [line["number"] for line in lines(gateway)]
    assert numbers == list(range(numbers[0], 100))
    assert len(numbers) > 20


def test_files_that_are_put_aside_while_they_are_read_are_read_once(
    make_gateway: MakeGateway,
) -> None:
    gateway = make_gateway(audit_file_size=1 << 10, audit_files=100)
    audit = gateway.service.broker.audit
    for number in range(50):
        audit.note("abort", msgId=f"A{number}", topic="t" * 100)
    lines = read_lines(gateway.data)
    found = [next(lines)["msgId"]]
    for number in range(50, 80):
        audit.note("abort", msgId=f"A{number}", topic="t" * 100)
    found += [line["msgId"] for line in lines]
    assert found == [f"A{number}" for number in range(80)]


def test_a_broken_line_hides_no_other(gateway: MemoryGateway) -> None:
    audit = gateway.service.broker.audit
    audit.note("abort", number=1)
    with (gateway.data / "audit.jsonl").open("ab") as file:
        file.write(b'{"at": "20\n\xff\n[]\n')
    audit.note("abort", number=2)
    assert [line["number"] for line in lines(gateway)] == [1, 2]


def test_a_file_that_cannot_be_written_holds_nothing_up(
    gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(client, "A")
    (gateway.data / "audit.jsonl").mkdir()
    with capturedLogs() as events:
        assert client.abort(id="A")[0]["outcome"] == "aborted"
    assert [formatEvent(event) for event in events] == [
        "cannot write to audit.jsonl: Is a directory; lines lost: 1"
    ]


def test_a_full_disk_takes_lines_whole_or_not_at_all(
    gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = gateway.service.broker.audit
    audit.note("abort", number=1)
    with capturedLogs() as events, monkeypatch.context() as patch:
        patch.setattr(os, "write", write_of_a_full_disk(room=30))
        audit.note("abort", number=2)
        audit.note("abort", number=3)
        gateway.restart()
    told = [text for text in map(formatEvent, events) if "audit.jsonl" in text]
    assert told == ["cannot write to audit.jsonl: No space left on device; lines lost: 1"] * 2
    gateway.service.broker.audit.note("abort", number=4)
    assert [line["number"] for line in lines(gateway)] == [1, 4]
    assert (gateway.data / "audit.jsonl").read_bytes().count(b"\n") == 2


def is_audit_file(descriptor: int) -> bool:
    """Whether a descriptor is that of the audit log."""
    return Path(f"/proc/self/fd/{descriptor}").readlink().name == "audit.jsonl"


def write_of_a_full_disk(room: int) -> Callable[[int, bytes], int]:
    """Return what `os.write` does when audit files have room for so many bytes."""
    real = os.write

    def write(descriptor: int, data: bytes) -> int:
        nonlocal room
        if not is_audit_file(descriptor):
            return real(descriptor, data)
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = real(descriptor, data[:room])
        room -= done
        return done

    return write


def test_a_line_after_one_that_a_power_cut_has_cut_is_whole(gateway: MemoryGateway) -> None:
    gateway.service.broker.audit.note("abort", number=1)
    with (gateway.data / "audit.jsonl").open("ab") as file:
        file.write(b'{"at": "20')
    gateway.restart()
    gateway.service.broker.audit.note("abort", number=2)
    assert [line["number"] for line in lines(gateway)] == [1, 2]


def test_a_disk_that_fails_when_the_log_is_closed_does_not_disturb_the_stop(
    gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.service.broker.audit.note("abort", number=1)
    real = os.close

    def close(descriptor: int) -> None:
        failing = is_audit_file(descriptor)
        real(descriptor)
        if failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with capturedLogs() as events, monkeypatch.context() as patch:
        patch.setattr(os, "close", close)
        gateway.service.broker.audit.close()
    assert [formatEvent(event) for event in events] == [
        "the last lines may not have been written to audit.jsonl: Input/output error"
    ]


def test_it_can_be_left_out(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(audit=False)
    client = gateway.connect()
    hold(client, "A")
    client.abort(id="A")
    assert not (gateway.data / "audit.jsonl").exists()
