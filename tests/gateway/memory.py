"""A whole gateway without sockets, threads or waiting: the real parts, a real LMDB, and a clock that tests move.

Time stands still until `advance` or `jump`. A client's request is handled at once. Its answer is there when `ask`
returns, because `ask` runs the reactor until it is idle.
"""

from __future__ import annotations

import itertools
import json
import socket
import struct
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure

from gateway.clock import Clock
from gateway.service import Gateway
from gateway.settings.config import Config
from gateway.settings.values import HostPort
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command, decode_command, encode_command
from gateway.wire.frames import FrameBuffer
from gateway.wire.messages import BatchItem, Message, decode_messages, encode_batch
from gateway.wire.properties import parse
from gateway.workers.siblings import SharedAddress
from storage import Store, find_faults

START_MS = 1_800_000_000_000
"""The time at which tests begin."""

PROPERTY = "\x01"
END = "\x02"

MOST_TURNS = 20_000
"""Turns within one moment after which something must be rescheduling itself for ever."""

_ports = itertools.count(50_000)


def property_string(properties: Mapping[str, str]) -> str:
    """Return properties as a request carries them, empty values included."""
    return "".join(f"{name}{PROPERTY}{value}{END}" for name, value in properties.items())


def properties_of(message: Message) -> dict[str, str]:
    """Return a message's properties by name."""
    return parse(message.properties)


def bodies(messages: Iterable[Message]) -> list[str]:
    """Return the bodies of messages as text."""
    return [message.body.decode() for message in messages]


class TurnReactor(MemoryReactorClock):
    """A fake reactor that runs turn by turn: a call scheduled for now during a turn waits for the next turn."""

    calls: list[Any]
    rests = 0.0
    """Seconds that the last commit let it rest."""

    def rest(self, seconds: float) -> None:
        """Note it: time passes only when a test says so."""
        self.rests = seconds

    def turn(self) -> bool:
        """Make the calls that are due. Return whether there were any."""
        due = [call for call in self.calls if call.getTime() <= self.seconds()]
        for call in due:
            if call in self.calls:
                self.calls.remove(call)
                call.called = 1
                call.func(*call.args, **call.kw)
        return bool(due)


class ReactorClock(Clock):
    """Returns epoch milliseconds from the reactor's fake seconds; `offset_ms` is how far the wall clock was set."""

    def __init__(self, reactor: TurnReactor, offset_ms: int) -> None:
        self._reactor = reactor
        self.offset_ms = offset_ms
        super().__init__()

    def now_ms(self) -> int:
        return START_MS + self.offset_ms + round(self._reactor.seconds() * 1000)

    def _measure(self) -> int:
        return self.offset_ms


class MemoryTransport(StringTransport):
    """The gateway's end of a connection. It pauses its producer and closes as Twisted's TCP transport does.

    `reads` is whether the client reads; while it does not, output collects here. `taken` is how many bytes the client's
    machine has acknowledged meanwhile.
    """

    BUFFER = 1 << 16

    def __init__(self, reactor: TurnReactor, host: str) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            peerAddress=IPv4Address("TCP", host, next(_ports)), lenient=True
        )
        self.reactor = reactor
        self.protocol: Any = None
        self.reads = True
        self.taken = 0
        self.producer_paused = False

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Do nothing: nothing is delayed here."""

    def write(self, data: bytes) -> None:
        if self.connected:
            super().write(data)  # type: ignore[no-untyped-call]
            if self.producer is not None and not self.reads and self.unread > self.BUFFER:
                self.producer_paused = True
                self.producer.pauseProducing()

    def writeSomeData(self, data: bytes) -> int | Exception:
        """Write what the client reads: everything, or nothing while it does not read. Return how many bytes, or the
        error that ended the connection."""
        if not self.reads:
            return 0
        self.write(data)
        return len(data)

    @property
    def dataBuffer(self) -> bytes:
        """The bytes that are not written yet."""
        return b"" if self.reads else self.value()  # type: ignore[no-untyped-call]

    def doWrite(self) -> None:
        """Do nothing: everything is written at once."""

    def getHandle(self) -> Self:
        """Return a socket, which is only asked how many bytes were acknowledged."""
        return self

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        """Return Linux' `tcp_info`, as long as kernels make it."""
        assert (level, option) == (socket.IPPROTO_TCP, socket.TCP_INFO)
        return struct.pack("=120xQ", self.taken)[:size]

    def unregisterProducer(self) -> None:
        """Forget the producer, if there is one."""
        self.producer = None

    def loseConnection(self) -> None:
        if self.connected and not self.disconnecting:
            self.disconnecting = True
            self._close_if_drained()

    def abortConnection(self) -> None:
        self.disconnecting = True
        self.reactor.callLater(0, self.lost, Failure(ConnectionLost()))  # type: ignore[no-untyped-call]

    def drained(self) -> None:
        """Handle that the client has read everything."""
        if self.producer is not None and self.producer_paused:
            self.producer_paused = False
            self.producer.resumeProducing()
        elif self.disconnecting:
            self._close_if_drained()

    def lost(self, reason: Failure) -> None:
        """End the connection, whichever side closed it."""
        if self.connected:
            self.connected = False
            protocol, self.protocol, self.producer = self.protocol, None, None
            protocol.connectionLost(reason)

    @property
    def unread(self) -> int:
        """Bytes that the client has not read."""
        return self.io.tell()

    def _close_if_drained(self) -> None:
        if self.reads or not self.unread:
            self.reactor.callLater(0, self.lost, Failure(ConnectionDone()))  # type: ignore[no-untyped-call]


class MemoryClient:
    """One connection of a client."""

    def __init__(self, gateway: MemoryGateway, host: str = "127.0.0.1") -> None:
        self._gateway = gateway
        self._frames = FrameBuffer()
        self._opaque = 0
        self.received: list[Command] = []
        self.transport: Any = MemoryTransport(gateway.reactor, host)
        self.protocol = gateway.service.factory.buildProtocol(None)
        self.refused = self.protocol is None
        if not self.refused:
            self.transport.protocol = self.protocol
            self.protocol.makeConnection(self.transport)

    def send(
        self,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        oneway: bool = False,
        version: int = 513,
        language: str = "JAVA",
    ) -> int:
        """Send a request. Return its opaque."""
        self._opaque += 1
        self.raw(
            encode_command(
                code,
                self._opaque,
                flag=2 if oneway else 0,
                ext=ext,
                body=body,
                version=version,
                language=language,
            )
        )
        return self._opaque

    def raw(self, data: bytes) -> None:
        """Send bytes."""
        assert self.transport.connected, "the connection is lost"
        self.protocol.dataReceived(data)

    def take(self) -> list[Command]:
        """Return what has arrived since the last call, after the reactor is idle."""
        self._gateway.settle()
        data = self.transport.value()
        self.transport.clear()
        self.transport.drained()
        arrived = [decode_command(frame) for frame in self._frames.feed(data)]
        self.received += arrived
        return arrived

    def answer(self, opaque: int) -> Command | None:
        """Return the answer to a request, if it has arrived."""
        self.take()
        found = [one for one in self.received if one.is_response and one.opaque == opaque]
        assert len(found) <= 1, "a request was answered twice"
        return found[0] if found else None

    def ask(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", **options: Any
    ) -> Command:
        """Send a request and return its answer."""
        answer = self.answer(self.send(code, ext, body, **options))
        assert answer is not None, f"no answer to {code}"
        return answer

    def requests(self) -> list[Command]:
        """Return the requests that the gateway has sent to this client since the last call."""
        return [command for command in self.take() if not command.is_response]

    @property
    def closed(self) -> bool:
        """Whether the connection is lost."""
        self._gateway.settle()
        return not self.transport.connected

    def stop_reading(self) -> None:
        """Read nothing that arrives until `take`."""
        self.transport.reads = False

    def disconnect(self) -> None:
        """Disconnect without any request."""
        self.transport.lost(Failure(ConnectionLost()))  # type: ignore[no-untyped-call]

    # -- requests of clients

    def send_fields(
        self,
        topic: str = "orders",
        *,
        queue: int = 0,
        reconsume: int = 0,
        max_reconsume: int | None = None,
        sys_flag: int = 0,
        topic_queues: int = 4,
        template: str = "TBW102",
        batch: bool = False,
        properties: str = "",
    ) -> dict[str, str]:
        """Return the fields of a send as Java writes them (310, 320)."""
        ext = {
            "a": "producers",
            "b": topic,
            "c": template,
            "d": str(topic_queues),
            "e": str(queue),
            "f": str(sys_flag),
            "g": str(START_MS - 7),
            "h": "9",
            "i": properties,
            "j": str(reconsume),
            "k": "false",
            "m": "true" if batch else "false",
        }
        if max_reconsume is not None:
            ext["l"] = str(max_reconsume)
        return ext

    def send_message(
        self,
        topic: str = "orders",
        body: bytes | str = b"hello",
        properties: Mapping[str, str] | None = None,
        *,
        version: int = 513,
        fields: Mapping[str, Any] | None = None,
        **more_properties: str,
    ) -> Command:
        """Send a message (310); `fields` are options of `send_fields`."""
        text = property_string({**(properties or {}), **more_properties})
        ext = self.send_fields(topic, **{"properties": text, **(fields or {})})
        data = body.encode() if isinstance(body, str) else body
        return self.ask(RequestCode.SEND_MESSAGE_V2, ext, data, version=version)

    def send_batch(
        self, items: Iterable[tuple[str, Mapping[str, str]]], topic: str = "orders", **fields: Any
    ) -> Command:
        """Send messages, each a body and its properties, in one request (320)."""
        batch = encode_batch(
            BatchItem(0, body.encode(), property_string(properties)) for body, properties in items
        )
        ext = self.send_fields(topic, batch=True, **fields)
        return self.ask(RequestCode.SEND_BATCH_MESSAGE, ext, batch)

    def pull_request(
        self,
        topic: str = "orders",
        queue: int = 0,
        offset: int = 0,
        *,
        group: str = "consumers",
        tags: str | None = "*",
        most: int = 32,
        most_bytes: int | None = None,
        wait_ms: int = 0,
        commit: int | None = None,
        sub_version: int = 0,
    ) -> dict[str, str]:
        """Return the fields of a pull (11). With `tags` None, the group's heartbeats give the subscription."""
        flags = (4 if tags is not None else 0) | (2 if wait_ms else 0)
        flags |= 1 if commit is not None else 0
        ext = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue),
            "queueOffset": str(offset),
            "maxMsgNums": str(most),
            "sysFlag": str(flags),
            "commitOffset": str(commit or 0),
            "suspendTimeoutMillis": str(wait_ms),
            "subVersion": str(sub_version),
        }
        if tags is not None:
            ext["subscription"] = tags
        if most_bytes is not None:
            ext["maxMsgBytes"] = str(most_bytes)
        return ext

    def ask_pull(self, *args: Any, **options: Any) -> Command:
        """Pull, and return the answer."""
        return self.ask(RequestCode.PULL_MESSAGE, self.pull_request(*args, **options))

    def park(self, *args: Any, wait_ms: int = 15_000, **options: Any) -> int:
        """Send a pull that waits. Return its opaque, for `answer`."""
        request = self.pull_request(*args, wait_ms=wait_ms, **options)
        opaque = self.send(RequestCode.PULL_MESSAGE, request)
        assert self.answer(opaque) is None, "the pull did not wait"
        return opaque

    def pull(self, *args: Any, **options: Any) -> list[Message]:
        """Return the messages that a pull without waiting finds."""
        answer = self.ask_pull(*args, **options)
        return decode_messages(answer.body) if answer.code == ResponseCode.SUCCESS else []

    def pull_all(self, topic: str = "orders", queue: int = 0) -> list[Message]:
        """Return all messages of a queue."""
        messages: list[Message] = []
        while page := self.pull(topic, queue, len(messages)):
            messages += page
        return messages

    def recall(self, topic: str, handle: str) -> Command:
        """Recall a message by its handle (370)."""
        return self.ask(RequestCode.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle})

    def abort(self, **fields: str) -> list[dict[str, Any]]:
        """Abort as `tidegate abort` does. Return the results."""
        answer = self.ask(RequestCode.ABORT_TIMERS, fields)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        results: list[dict[str, Any]] = json.loads(answer.body)["results"]
        return results

    def look_up(self, **fields: object) -> list[dict[str, Any]]:
        """Look up as `tidegate pending` does. Return the messages of one page."""
        return self.look_up_page(**fields)[0]

    def look_up_page(self, **fields: object) -> tuple[list[dict[str, Any]], str | None]:
        """Return a page of a look-up, and the cursor that continues it."""
        ext = {name: str(value) for name, value in fields.items()}
        answer = self.ask(RequestCode.LOOK_UP_TIMERS, ext)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        page = json.loads(answer.body)
        return page["messages"], page["cursor"]

    def heartbeat(
        self,
        client_id: str,
        group: str = "consumers",
        subscriptions: Mapping[str, str] | None = None,
        *,
        model: str | int = "CLUSTERING",
        sub_version: int | str = 1,
        producers: Iterable[str] = (),
        language: str = "JAVA",
        version: int = 513,
    ) -> Command:
        """Send a heartbeat (34): of a consumer of topics with tags, of a producer, or both."""
        topics = {"orders": "*"} if subscriptions is None else subscriptions
        consumer = {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": model,
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [
                {
                    "topic": topic,
                    "subString": tags,
                    "subVersion": sub_version,
                    "expressionType": "TAG",
                }
                for topic, tags in topics.items()
            ],
        }
        body = {
            "clientID": client_id,
            "consumerDataSet": [consumer] if group else [],
            "producerDataSet": [{"groupName": name} for name in producers],
        }
        return self.ask(
            RequestCode.HEART_BEAT,
            None,
            json.dumps(body).encode(),
            language=language,
            version=version,
        )


class MemoryGateway:
    """A gateway on a fake reactor."""

    def __init__(self, data: Path, **settings: Any) -> None:
        self.data = data
        self.shared: SharedAddress | None = settings.pop("shared", None)
        self.settings = settings
        self.offset_ms = 0
        self.elapsed_ms = 0
        self.running = False
        self.reactor: Any = TurnReactor()  # type: ignore[no-untyped-call]
        self.start()

    def start(self) -> None:
        """Open the data folder and serve."""
        self.clock = ReactorClock(self.reactor, self.offset_ms)
        # Commits are not delayed unless a test says so: an answer is then there when its turn ends.
        settings: dict[str, Any] = {"vip_channel": False, "commit_wait": timedelta(0)}
        settings |= self.settings
        config = Config(data=self.data, listen=HostPort("127.0.0.1", 9876), **settings)
        self.service = Gateway(config, self.reactor, self.clock, shared=self.shared)
        self.service.start()
        self.running = True
        self.settle()

    def stop(self) -> None:
        """Stop cleanly; connections are lost."""
        self.settle()
        stopped = self.service.stop()
        self.settle()
        if not stopped.called:
            self.advance(5_000)
        assert stopped.called, "the gateway does not stop"
        self.running = False

    def restart(self) -> None:
        """Stop cleanly and start again on the same folder."""
        self.stop()
        self.start()

    def crash(self) -> None:
        """End at once like a killed process, so that everything not committed is lost. Then start again."""
        self.store.environment.close()
        self.service.broker.audit.close()
        self.reactor = TurnReactor()  # type: ignore[no-untyped-call]
        self.reactor.rightNow = self.elapsed_ms / 1000
        self.start()

    def checkpoint(self) -> None:
        """Make everything stored visible to other processes, as a gateway does every second."""
        self.store.checkpoint()

    @property
    def store(self) -> Store:
        """The gateway's store."""
        return self.service.broker.store

    @property
    def now_ms(self) -> int:
        """The gateway's wall clock."""
        return self.clock.now_ms()

    def connect(self, host: str = "127.0.0.1") -> MemoryClient:
        """Return a new client connection."""
        return MemoryClient(self, host)

    def settle(self) -> None:
        """Run the reactor's turns until nothing is left to do now."""
        for _ in range(MOST_TURNS):
            if not self.reactor.turn():
                return
        raise AssertionError("the reactor does not come to rest")

    def advance(self, ms: int) -> None:
        """Let time pass; everything scheduled meanwhile happens at its own time."""
        self.elapsed_ms += ms
        end = self.elapsed_ms / 1000
        while True:
            next_call = min((call.getTime() for call in self.reactor.calls), default=end + 1)
            if next_call > end + 1e-6:  # sums of fractions are not exact
                break
            self._reach(next_call)
        self._reach(end)

    def jump(self, ms: int) -> None:
        """Let time pass as in one long stall: what was scheduled meanwhile happens once, late."""
        self.elapsed_ms += ms
        self._reach(self.elapsed_ms / 1000)

    def _reach(self, seconds: float) -> None:
        self.reactor.rightNow = max(self.reactor.rightNow, seconds)
        self.settle()

    def set_clock(self, ms: int) -> None:
        """Set the wall clock forward or back, without letting time pass."""
        self.offset_ms += ms
        self.clock.offset_ms = self.offset_ms

    def queued(self) -> int:
        """Return how many messages are in queues."""
        return self.store.reader().stat(self.store.tables.queues)["entries"]

    def check(self) -> None:
        """Check every table against every other."""
        self.settle()
        assert find_faults(self.store) == []

    def close(self) -> None:
        """Check, and stop."""
        if self.running:
            try:
                self.check()
            finally:
                self.stop()
