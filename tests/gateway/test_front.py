"""The address that workers share, before they listen and for what it does not answer."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.testing import MemoryReactorClock

from gateway.config import Config
from gateway.front import Front
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command, decode_command, encode_command
from gateway.wire.frames import FrameBuffer


class Client:
    """A connection, as far as the front knows it."""

    host = bytes(8)
    address = "192.0.2.7:50000"
    open = True
    congested = False

    def __init__(self) -> None:
        self.answers: list[Command] = []

    def send(self, frame: bytes) -> None:
        (whole,) = FrameBuffer().feed(frame)
        self.answers.append(decode_command(whole))


class Shared:
    """The address of two workers that have not listened yet."""

    def __init__(self) -> None:
        reactor: Any = MemoryReactorClock()  # type: ignore[no-untyped-call]
        front = Front(reactor, Config(), ("broker-a-0", "broker-a-1"), lambda _: None)
        self._asked: Any = front.clients.on_command

    def ask(self, code: int, ext: dict[str, str] | None = None, *, flag: int = 0) -> list[Command]:
        """The answers to one request."""
        client = Client()
        (frame,) = FrameBuffer().feed(encode_command(code, 7, flag=flag, ext=ext))
        self._asked(decode_command(frame), client)
        return client.answers


def send(properties: str) -> dict[str, str]:
    """The fields of a send."""
    ext = {"a": "g", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0"}
    return ext | {"h": "0", "i": properties}


@pytest.mark.parametrize(
    "code",
    [RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.LOOK_UP_TIMERS, RequestCode.LIST_RECURRING],
)
def test_nobody_answers_yet(code: int) -> None:
    (answer,) = Shared().ask(code, {"topic": "orders"})
    assert (answer.code, answer.opaque) == (ResponseCode.SERVICE_NOT_AVAILABLE, 7)
    assert answer.remark == "2 of 2 workers do not answer; ask again"


def test_what_recurs_is_left_with_the_first_one() -> None:
    order = send("TIDEGATE_NAME\x01n\x02TIDEGATE_EVERY\x012m\x02")
    (answer,) = Shared().ask(RequestCode.SEND_MESSAGE_V2, order)
    assert answer.remark == "1 of 1 workers do not answer; ask again"


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.SEND_MESSAGE_V2, send("KEYS\x01TIDEGATE_EVERY\x02")),
        (RequestCode.SEND_MESSAGE_V2, {"i": "TIDEGATE_EVERY\x012m\x02"}),
        (RequestCode.PULL_MESSAGE, {}),
        (99_999, {}),
    ],
)
def test_what_is_for_one_broker_is_refused(code: int, ext: dict[str, str]) -> None:
    (answer,) = Shared().ask(code, ext)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "ask one of them; mqadmin clusterList tells where they are" in (answer.remark or "")


@pytest.mark.parametrize("flag", [1, 2])
def test_nothing_is_said_to_answers_and_oneway_requests(flag: int) -> None:
    assert Shared().ask(RequestCode.LOOK_UP_TIMERS, flag=flag) == []
