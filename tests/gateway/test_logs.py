"""What is logged, as lines for programs."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from twisted.logger import Logger

from gateway.config import Config
from gateway.logs import Logs
from gateway.router import Call
from gateway.wire.commands import decode_command, encode_command

Log = tuple[Logger, Logs, io.StringIO]
MakeLog = Callable[..., Log]


def make(**settings: Any) -> Log:
    stream = io.StringIO()
    logs = Logs(Config(data=Path("unused"), **settings), stream)
    observer: Any = logs.observe
    return Logger("gateway.here", observer=observer), logs, stream


class Peer:
    host, address = b"\x7f\0\0\1\0\0\0\1", "192.0.2.7:5123"
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


def test_the_level_is_changed_on_the_way() -> None:
    log, logs, stream = make(log_format="logfmt", log_level="error")
    log.warn("one")
    logs.configure(Config(data=Path("unused"), log_level="debug"))
    log.debug("two")
    logs.configure(Config(data=Path("unused"), log_level="info"))
    log.debug("three")
    assert [line.split()[3] for line in stream.getvalue().splitlines()] == ["message=two"]
