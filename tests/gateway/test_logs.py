"""The log as lines for programs."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.logger import Logger, globalLogPublisher

from gateway.monitoring.logs import MOST_ALIKE, Logs
from gateway.router import Call
from gateway.settings.config import Config
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import decode_command, encode_command
from gateway.wire.recall import RecallHandle
from tests.gateway.access.signed import SignedClient
from tests.gateway.conftest import MakeGateway
from tests.gateway.tools import ok

Log = tuple[Logger, Logs, io.StringIO]
MakeLog = Callable[..., Log]


def make(**settings: Any) -> Log:
    stream = io.StringIO()
    logs = Logs(Config(data=Path("unused"), **settings), stream)
    observer: Any = logs.observe
    return Logger("gateway.here", observer=observer), logs, stream


class Peer:
    host, address = b"\x7f\0\0\1\0\0\0\1", "192.0.2.7:5123"
    source = "192.0.2.7"
    open, congested = True, False

    def send(self, frame: bytes) -> None:
        raise NotImplementedError


def test_a_line_of_json() -> None:
    log, _, stream = make(log_format="json")
    log.info("stored {count} of\n{what}", count=3, what="grün", beside=None)
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "gateway.here",
        "message": "stored 3 of\ngrün",
        "count": 3,
        "what": "grün",
        "beside": "None",
    }
    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize(
    ("form", "named"),
    [
        ("text", "[tidegate-1 gateway.here#warn] stored 3\n"),
        ("logfmt", 'logger=gateway.here message="stored 3" broker=tidegate-1 count=3\n'),
        ("json", '"message": "stored 3", "broker": "tidegate-1", "count": 3}\n'),
    ],
)
def test_lines_of_workers_name_them(form: Any, named: str) -> None:
    stream = io.StringIO()
    logs = Logs(Config(data=Path("unused"), log_format=form), stream, "tidegate-1")
    observer: Any = logs.observe
    Logger("gateway.here", observer=observer).warn("stored {count}", count=3)
    assert stream.getvalue().endswith(named)


@pytest.mark.parametrize(("level", "told"), [("debug", 2), ("info", 1), ("warn", 1), ("error", 0)])
def test_what_ports_tell_of_themselves_is_for_debugging(level: str, told: int) -> None:
    _, logs, stream = make(log_level=level)
    observer: Any = logs.observe
    log = Logger("log_legacy", observer=observer)
    log.info("Factory starting on 9876")
    log.warn("something is odd")
    assert stream.getvalue().count("\n") == told


def test_a_line_of_logfmt() -> None:
    log, _, stream = make(log_format="logfmt")
    log.warn('is "{what}"\n{empty}', what="a=b", empty="", path="/a/b-1.c")
    _, _, rest = stream.getvalue().partition(" ")
    assert rest == (
        'level=warn logger=gateway.here message="is \\"a=b\\"\\n" what="a=b" empty="" path=/a/b-1.c\n'
    )


@pytest.mark.parametrize("form", ["json", "logfmt"])
def test_a_traceback_is_one_line(form: str) -> None:
    log, _, stream = make(log_format=form)
    try:
        raise ZeroDivisionError("by nothing")
    except ZeroDivisionError:
        log.failure("it failed")
    assert stream.getvalue().count("\n") == 1
    assert "by nothing" in stream.getvalue()
    assert "test_logs.py" in stream.getvalue()


def test_the_request_is_named() -> None:
    log, logs, stream = make(log_format="json")
    command = decode_command((0, encode_command(25, 17)[8:], b""))
    logs.actor = lambda: Call(command, None, Peer())
    log.info("changed")
    assert json.loads(stream.getvalue())["request"] == "192.0.2.7:5123#17"


def test_secrets_are_not_logged(make_gateway: MakeGateway, tmp_path: Path) -> None:
    """No level logs signatures, passwords or the content of messages."""
    file = tmp_path / "first.json"
    file.write_text(json.dumps({"username": "root", "password": "secret of root"}))
    stream = io.StringIO()
    logs = Logs(Config(data=Path("unused"), log_format="json", log_level="debug"), stream)
    observer: Any = logs.observe
    globalLogPublisher.addObserver(observer)
    try:
        gateway = make_gateway(authentication=True, initial_user_file=file, log_level="debug")
        root = SignedClient(gateway, "root", "secret of root")
        user = json.dumps({"username": "a", "password": "secret of a", "userType": "Normal"})
        ok(root.ask(3001, {"username": "a"}, user.encode()))
        ok(root.send_message(body=b"secret body", KEYS="secret-key", TIMER_DELAY_SEC="60"))
        SignedClient(gateway, "root", "secret wrong").ask(26)
    finally:
        globalLogPublisher.removeObserver(observer)
    lines = stream.getvalue()
    assert '"code": 3001' in lines
    assert "secret" not in lines
    assert "ignature" not in lines.replace("check signature failed", "")


def test_a_refusal_is_told_with_its_reason(make_gateway: MakeGateway) -> None:
    stream = io.StringIO()
    logs = Logs(Config(data=Path("unused"), log_format="json", log_level="debug"), stream)
    observer: Any = logs.observe
    globalLogPublisher.addObserver(observer)
    try:
        client = make_gateway(log_level="debug").connect()
        refused = client.ask(RequestCode.GET_MAX_OFFSET, {"topic": "TG", "queueId": "one"})
        ok(client.send_message(TIMER_DELAY_MS="1000", UNIQ_KEY="A"))
        handle = RecallHandle("orders", "broker-a", 0, "B").encode()
        late = [
            client.send_message(TIMER_DELAY_MS="1", TIMER_DEL_UNIQKEY="B"),
            client.send_message(TIMER_DELAY_MS="1", TIDEGATE_RESCHEDULE="B"),
            client.recall("orders", handle),
        ]
    finally:
        globalLogPublisher.removeObserver(observer)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    for answer in (refused, *late):
        assert f"refused: {answer.code} {answer.remark}" in stream.getvalue()


def test_who_is_refused_before_a_request_is_handled_is_told(
    make_gateway: MakeGateway, tmp_path: Path
) -> None:
    """Such as a client with a wrong key, whose owner looks for the reason in the log."""
    file = tmp_path / "first.json"
    file.write_text(json.dumps({"username": "root", "password": "secret of root"}))
    stream = io.StringIO()
    logs = Logs(Config(data=Path("unused"), log_format="json", log_level="debug"), stream)
    gateway = make_gateway(
        authentication=True, authorization=True, initial_user_file=file, log_level="debug"
    )
    audit = gateway.service.broker.audit
    logs.actor = lambda: audit.actor
    root = SignedClient(gateway, "root", "secret of root")
    user = json.dumps({"username": "a", "password": "secret of a", "userType": "Normal"})
    ok(root.ask(3001, {"username": "a"}, user.encode()))
    observer: Any = logs.observe
    globalLogPublisher.addObserver(observer)
    try:
        refused = [
            SignedClient(gateway, "root", "secret wrong").ask(26),
            SignedClient(gateway, "a", "secret of a").ask(26),
            SignedClient(gateway, "root", "secret of root").ask(RequestCode.GET_MAX_OFFSET),
            SignedClient(gateway, "root", "secret of root").ask(99_999),
        ]
    finally:
        globalLogPublisher.removeObserver(observer)
    assert [answer.code for answer in refused] == [16, 16, 1, 3]
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    told = [line for line in lines if line["logger"] == "gateway.router.Router"]
    for answer, asked, why in zip(refused, told[::2], told[1::2], strict=True):
        assert why["message"] == f"refused: {answer.code} {answer.remark}"
        assert asked["request"] == why["request"]
        assert asked["request"].endswith(f"#{answer.opaque}")
    assert [line["code"] for line in told[::2]] == [26, 26, RequestCode.GET_MAX_OFFSET, 99_999]
    assert [line.get("user") for line in told[::2]] == [None, "a", "root", None]


def test_the_level_is_changed_on_the_way() -> None:
    log, logs, stream = make(log_format="logfmt", log_level="error")
    log.warn("one")
    logs.configure(Config(data=Path("unused"), log_format="logfmt", log_level="debug"))
    log.debug("two")
    logs.configure(Config(data=Path("unused"), log_format="logfmt", log_level="info"))
    log.debug("three")
    assert [line.split()[3] for line in stream.getvalue().splitlines()] == ["message=two"]


def test_many_lines_that_are_alike_are_counted() -> None:
    log, logs, stream = make(log_format="json", log_level="debug")
    observer: Any = logs.observe
    logs.log = Logger("gateway.log", observer=observer)

    def told() -> list[str]:
        lines = [json.loads(line)["message"] for line in stream.getvalue().splitlines()]
        stream.seek(0)
        stream.truncate()
        return lines

    for _ in range(2):
        for number in range(MOST_ALIKE + 3):
            log.warn("closed {peer}", peer=number)
            log.debug("read {bytes}", bytes=number)
        log.warn("another line")
        lines = told()
        assert [line for line in lines if "closed" in line] == [
            f"closed {number}" for number in range(MOST_ALIKE)
        ]
        assert lines.count("another line") == 1
        assert sum("read" in line for line in lines) == MOST_ALIKE + 3
        logs.end_span()
        assert told() == [
            f"3 more lines like this one were left out: closed {MOST_ALIKE + 2}",
        ]
    logs.end_span()
    assert told() == []


def test_the_form_is_changed_on_the_way() -> None:
    """The leader does this when it adopts the settings with which its workers start."""
    log, logs, stream = make(log_format="text")
    log.info("one")
    logs.configure(Config(data=Path("unused"), log_format="json"))
    log.info("two")
    first, second = stream.getvalue().splitlines()
    assert first.endswith("[gateway.here#info] one")
    assert json.loads(second)["message"] == "two"
