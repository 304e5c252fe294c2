"""A whole gateway without sockets, threads or waiting: real parts, real LMDB, a clock that tests move.

Time stands still until `advance`. What a client sends is handled at once; its answer is there when `ask` returns, because
`ask` lets the reactor's turn end.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionLost
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure

from gateway.clock import Clock
from gateway.config import Config, HostPort
from gateway.service import Gateway
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command, decode_command, encode_command
from gateway.wire.frames import FrameBuffer
from gateway.wire.messages import Message, decode_messages
from storage import Store, find_faults

START_MS = 1_800_000_000_000
"""Where the tests' time begins."""

PROPERTY = "\x01"
END = "\x02"


class ReactorClock(Clock):
    """Epoch milliseconds by the reactor's fake seconds; `offset_ms` steps the wall clock."""

    def __init__(self, reactor: MemoryReactorClock) -> None:
        self._reactor = reactor
        self.offset_ms = 0
        super().__init__()

    def now_ms(self) -> int:
        return START_MS + self.offset_ms + round(self._reactor.seconds() * 1000)

    def _measure(self) -> int:
        return self.offset_ms


class MemoryTransport(StringTransport):
    """What a server's transport has beyond `StringTransport`."""

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Nothing to delay here."""


class MemoryClient:
    """One connection."""

    def __init__(self, gateway: MemoryGateway, host: str = "127.0.0.1") -> None:
        self._gateway = gateway
        self._frames = FrameBuffer()
        self._opaque = 0
        self.received: list[Command] = []
        self.transport: Any = MemoryTransport(  # type: ignore[no-untyped-call]
            peerAddress=IPv4Address("TCP", host, 50_001)
        )
        self.protocol = gateway.service.factory.buildProtocol(None)
        self.protocol.makeConnection(self.transport)

    def send(
        self,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        oneway: bool = False,
        version: int = 513,
    ) -> int:
        """Send a request; its opaque."""
        self._opaque += 1
        self.raw(
            encode_command(
                code, self._opaque, flag=2 if oneway else 0, ext=ext, body=body, version=version
            )
        )
        return self._opaque

    def raw(self, data: bytes) -> None:
        """Send bytes."""
        self.protocol.dataReceived(data)

    def take(self) -> list[Command]:
        """What has arrived since the last time, once the turn is over."""
        self._gateway.settle()
        data = self.transport.value()
        self.transport.clear()
        arrived = [decode_command(frame) for frame in self._frames.feed(data)]
        self.received += arrived
        return arrived

    def answer(self, opaque: int) -> Command | None:
        """The answer to a request, if it is there."""
        self.take()
        found = [one for one in self.received if one.is_response and one.opaque == opaque]
        assert len(found) <= 1, "a request was answered twice"
        return found[0] if found else None

    def ask(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", **options: Any
    ) -> Command:
        """Send a request and give its answer."""
        answer = self.answer(self.send(code, ext, body, **options))
        assert answer is not None, f"no answer to {code}"
        return answer

    @property
    def closed(self) -> bool:
        """Whether the gateway closed the connection."""
        return self.transport.disconnecting

    def disconnect(self) -> None:
        """Leave without a word."""
        self.protocol.connectionLost(Failure(ConnectionLost()))  # type: ignore[no-untyped-call]

    # -- what clients do

    def send_message(
        self,
        topic: str = "orders",
        body: bytes = b"hello",
        *,
        queue: int = 0,
        reconsume: int = 0,
        max_reconsume: int | None = None,
        sys_flag: int = 0,
        **properties: str,
    ) -> Command:
        """Send a message as the Java client does (310)."""
        ext = {
            "a": "producers",
            "b": topic,
            "c": "TBW102",
            "d": "4",
            "e": str(queue),
            "f": str(sys_flag),
            "g": str(START_MS),
            "h": "0",
            "i": "".join(f"{k}{PROPERTY}{v}{END}" for k, v in properties.items()),
            "j": str(reconsume),
            "k": "false",
            "m": "false",
        }
        if max_reconsume is not None:
            ext["l"] = str(max_reconsume)
        return self.ask(RequestCode.SEND_MESSAGE_V2, ext, body)

    def pull_request(
        self,
        topic: str = "orders",
        queue: int = 0,
        offset: int = 0,
        *,
        group: str = "consumers",
        tags: str = "*",
        most: int = 32,
        wait_ms: int = 0,
        commit: int | None = None,
    ) -> dict[str, str]:
        """The fields of a pull (11)."""
        flags = 4 | (2 if wait_ms else 0) | (1 if commit is not None else 0)
        return {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue),
            "queueOffset": str(offset),
            "maxMsgNums": str(most),
            "sysFlag": str(flags),
            "commitOffset": str(commit or 0),
            "suspendTimeoutMillis": str(wait_ms),
            "subscription": tags,
            "subVersion": "0",
        }

    def pull(self, *args: Any, **options: Any) -> list[Message]:
        """The messages that a pull without waiting finds."""
        answer = self.ask(RequestCode.PULL_MESSAGE, self.pull_request(*args, **options))
        return decode_messages(answer.body) if answer.code == ResponseCode.SUCCESS else []


class MemoryGateway:
    """A gateway on a fake reactor."""

    def __init__(self, data: Path, **settings: Any) -> None:
        self.data = data
        self.settings = settings
        self.reactor: Any = MemoryReactorClock()  # type: ignore[no-untyped-call]
        self.start()

    def start(self) -> None:
        """Open the data folder and serve."""
        self.clock = ReactorClock(self.reactor)
        config = Config(
            data=self.data, listen=HostPort("127.0.0.1", 9876), vip_channel=False, **self.settings
        )
        self.service = Gateway(config, self.reactor, self.clock)
        self.service.start()

    def restart(self) -> None:
        """Stop in good order and start again on the same folder."""
        self.service.stop()
        self.start()

    @property
    def store(self) -> Store:
        """The store behind it."""
        return self.service.broker.store

    @property
    def now_ms(self) -> int:
        """The gateway's wall clock."""
        return self.clock.now_ms()

    def connect(self, host: str = "127.0.0.1") -> MemoryClient:
        """A client's connection."""
        return MemoryClient(self, host)

    def settle(self) -> None:
        """Let the reactor's turns go by until nothing is left to do now."""
        for _ in range(20):
            self.reactor.advance(0)

    def advance(self, ms: float) -> None:
        """Let time pass, with everything that happens meanwhile."""
        end = self.reactor.seconds() + ms / 1000
        while True:
            calls = [call.getTime() for call in self.reactor.getDelayedCalls()]
            next_call = min(calls, default=end)
            if next_call >= end:
                break
            self.reactor.advance(max(0.0, next_call - self.reactor.seconds()))
        self.reactor.advance(max(0.0, end - self.reactor.seconds()))
        self.settle()

    def close(self) -> None:
        """Stop, after holding every table against every other."""
        self.settle()
        faults = find_faults(self.store)
        self.service.stop()
        assert faults == []
