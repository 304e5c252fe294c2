"""The official Java client, of the current and of the older generation."""

from __future__ import annotations

import itertools
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

import msgspec

from compat.clients.driver import (
    CALL_LIMIT_S,
    ClientFailure,
    Decision,
    Driver,
    DriverError,
    Inbox,
    Outgoing,
    Received,
    Sent,
    signing_fields,
    until,
)
from compat.toolchain import SERVER, classpath, compile_java, java

Version = Literal["5.5.0", "4.9.8"]
From = Literal["first", "last"]

VERSIONS: Final[tuple[Version, ...]] = ("5.5.0", "4.9.8")

_SOURCES: Final = Path(__file__).with_name("java")
_GENERATIONS: Final = {"5.5.0": "gen5", "4.9.8": "gen4"}
_FROM: Final = {"first": "CONSUME_FROM_FIRST_OFFSET", "last": "CONSUME_FROM_LAST_OFFSET"}
_ASSIGNMENT_LIMIT_S: Final = 60
_CLOSE_LIMIT_S: Final = 20

# Without it the tool logs its own logging's set-up to standard output.
_QUIET_LOG: Final = """<configuration>
<statusListener class="org.apache.rocketmq.logging.ch.qos.logback.core.status.NopStatusListener"/>
</configuration>"""

_names = itertools.count(1)


class Pulled(msgspec.Struct, rename="camel", kw_only=True):
    """The answer to a pull. `status` is the Java client's PullStatus."""

    status: str
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[Received]


class Reply(msgspec.Struct):
    """What a request was answered with."""

    body: bytes
    properties: dict[str, str]


def java_driver(version: Version = "5.5.0", heap: str = "512m") -> Driver:
    """A JVM with one generation of the client, not started yet; any number of clients share it."""

    def command(folder: Path) -> Sequence[str | Path]:
        libraries = classpath(f"client-{version}")
        sources = [
            _SOURCES / "Driver.java",
            _SOURCES / "Decisions.java",
            _SOURCES / "Generation.java",
            _SOURCES / _GENERATIONS[version] / "ClientGeneration.java",
        ]
        classes = compile_java(sources, libraries, f"driver-{version}")
        paths = os.pathsep.join(str(path) for path in (classes, *libraries))
        return [
            *(java(), f"-Xmx{heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *(f"-Duser.home={folder}", f"-Drocketmq.client.logRoot={folder}"),
            *("-cp", paths, "Driver"),
        ]

    return Driver(f"java-{version}", command)


class JavaClient:
    """One user of the official client: a producer, and consumers as they are asked for.

    `driver` is a running JVM to share; else one is started, and ended by `close`.
    """

    def __init__(
        self,
        namesrv: str,
        version: Version = "5.5.0",
        *,
        driver: Driver | None = None,
        vip_channel: bool = False,
        tls: bool = False,
        retries: int = 2,
        send_timeout_ms: int = 10_000,
        credentials: tuple[str, str] | None = None,
    ) -> None:
        """`retries` is how often a failed send is tried again. With `credentials`, an access key
        and its secret key, requests are signed."""
        self.version: Version = version
        self._namesrv = namesrv
        self._vip_channel = vip_channel
        self._tls = tls
        self._signing = signing_fields(credentials)
        self._retries = retries
        self._send_timeout_ms = send_timeout_ms
        self._owned: Driver | None = None
        if driver is None:
            driver = self._owned = java_driver(version)
            driver.start()
        self._driver = driver
        self._open: list[str] = []
        self._producer: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Shut everything down that was started; ends the JVM when that does not work."""
        try:
            for name in reversed(self._open):
                self._driver.call("close", name=name, timeout=_CLOSE_LIMIT_S)
        except (DriverError, ClientFailure):
            self._driver.close()
        self._open.clear()
        if self._owned:
            self._owned.close()

    # --- sending ---

    def send(self, topic: str, body: bytes = b"-", **wanted: Any) -> Sent:
        """Send one message and wait; `wanted` are fields of Outgoing. Raises ClientFailure."""
        return _one(self.send_all([Outgoing(topic=topic, body=body, **wanted)]))

    def send_all(
        self,
        messages: Sequence[Outgoing],
        mode: Literal["sync", "async"] = "sync",
        timeout: float = CALL_LIMIT_S,
    ) -> list[Sent | ClientFailure]:
        """Send several, one after the other or all at once; what became of each, in order."""
        return [_sent(result) for result in self._send(messages, mode, timeout)]

    def send_oneway(self, *messages: Outgoing) -> None:
        """Send without an answer."""
        self._send(messages, "oneway", CALL_LIMIT_S)

    def send_batch(self, messages: Sequence[Outgoing]) -> Sent:
        """Send several to one queue as one; the ids of the result are joined by commas."""
        return _one([_sent(result) for result in self._send(messages, "batch", CALL_LIMIT_S)])

    def _send(
        self, messages: Sequence[Outgoing], mode: str, timeout: float
    ) -> list[dict[str, Any]]:
        wanted = [message.as_json() for message in messages]
        results: list[dict[str, Any]] = self._driver.call(
            "send", name=self._sender(), mode=mode, messages=wanted, timeout=timeout
        )
        return results

    def recall(self, topic: str, handle: str) -> str:
        """Take back a message; its id. Raises ClientFailure, always for the older generation."""
        message_id: str = self._driver.call(
            "recall", name=self._sender(), topic=topic, handle=handle
        )
        return message_id

    def transactor(self, group: str) -> JavaTransactor:
        """Start a TransactionMQProducer."""
        name = self._start(
            "transactor",
            group=group,
            timeoutMs=self._send_timeout_ms,
            maxMessageSize=8 * 1024 * 1024,
            retries=self._retries,
        )
        return JavaTransactor(self._driver, name, lambda: self._close(name))

    def request(self, topic: str, body: bytes, timeout: float = 10, **wanted: Any) -> Reply:
        """Send a message and wait for the message that answers it. Raises ClientFailure."""
        message = Outgoing(topic=topic, body=body, **wanted).as_json()
        answer = self._driver.call(
            "request", name=self._sender(), timeoutMs=int(timeout * 1000), **message
        )
        return msgspec.convert(answer, Reply)

    # --- topics and look-up ---

    def create_topic(self, topic: str, queues: int = 4) -> None:
        """Make a topic by way of the one that brokers make others from."""
        self._driver.call(
            "createTopic", name=self._sender(), like="TBW102", topic=topic, queues=queues
        )

    def view(self, topic: str, message_id: str) -> Received:
        """The message with either of its ids. Raises ClientFailure when there is none."""
        found = self._driver.call("view", name=self._sender(), topic=topic, of=message_id)
        return msgspec.convert(found, Received)

    def query(
        self, topic: str, key: str, limit: int = 32, begin_ms: int = 0, end_ms: int | None = None
    ) -> list[Received]:
        """The messages with a key, stored within the time. Raises ClientFailure when none is."""
        end = end_ms if end_ms is not None else time.time_ns() // 1_000_000 + 60_000
        found = self._driver.call(
            "query",
            name=self._sender(),
            topic=topic,
            key=key,
            limit=limit,
            begin=begin_ms,
            end=end,
        )
        return msgspec.convert(found, list[Received])

    # --- consuming ---

    def consume(
        self,
        topic: str,
        group: str,
        *,
        expression: str = "*",
        sql: bool = False,
        orderly: bool = False,
        start: From = "first",
        fail_first: int = 0,
        retry_level: int = 0,
        max_reconsume_times: int = -1,
        broadcast: bool = False,
        reply: bytes | None = None,
        pop_invisible_ms: int | None = None,
        wait: bool = True,
    ) -> JavaConsumer:
        """Start a push consumer.

        `sql` says that the expression is SQL92 rather than tags. The consumer refuses each message
        `fail_first` times; `retry_level` is the delay level that it asks for then, 0 for the
        server's choice. With `reply` it refuses none, and answers each message with that, as those
        expect that JavaClient.request sends. With `pop_invisible_ms` it leaves its queues to the
        server (5.x only), and asks for that time if it is to pop; do not `wait` then. With `wait`,
        returns once it has queues of the topic and knows where its group's retry topic is.
        """
        replying = {} if reply is None else {"reply": msgspec.to_builtins(reply)}
        popping = {} if pop_invisible_ms is None else {"popInvisibleMs": pop_invisible_ms}
        name = self._start(
            "consume",
            group=group,
            subscriptions={topic: expression},
            sql=sql,
            orderly=orderly,
            failFirst=fail_first,
            retryLevel=retry_level,
            maxReconsumeTimes=max_reconsume_times,
            broadcast=broadcast,
            **{"from": _FROM[start], **replying, **popping},
        )
        consumer = JavaConsumer(self._driver, name, lambda: self._close(name))
        if wait:
            wanted = {topic} if broadcast else {topic, f"%RETRY%{group}"}
            until(
                lambda: consumer.knows(wanted) and bool(consumer.assigned(topic)),
                f"a queue of {topic}, and routes of {wanted}, for the consumer of {group}",
                _ASSIGNMENT_LIMIT_S,
            )
        return consumer

    def puller(self, group: str) -> JavaPuller:
        """Start a DefaultMQPullConsumer."""
        return JavaPuller(self._driver, self._start("puller", group=group))

    def poller(
        self, topic: str, group: str, expression: str = "*", start: From = "first"
    ) -> JavaPoller:
        """Start a DefaultLitePullConsumer of one topic."""
        fields = {"from": _FROM[start]}
        name = self._start("poller", group=group, topic=topic, expression=expression, **fields)
        return JavaPoller(self._driver, name)

    def _sender(self) -> str:
        if self._producer is None:
            self._producer = self._start(
                "producer",
                group="senders",
                timeoutMs=self._send_timeout_ms,
                maxMessageSize=8 * 1024 * 1024,
                retries=self._retries,
            )
        return self._producer

    def _start(self, what: str, **fields: Any) -> str:
        name = f"{what}-{os.getpid()}-{next(_names)}"
        self._driver.call(
            what,
            name=name,
            instance=name,
            namesrv=self._namesrv,
            vipChannel=self._vip_channel,
            tls=self._tls,
            **self._signing,
            **fields,
        )
        self._open.append(name)
        return name

    def _close(self, name: str) -> None:
        self._open.remove(name)
        self._driver.call("close", name=name, timeout=_CLOSE_LIMIT_S)


class JavaConsumer:
    """A running DefaultMQPushConsumer and what it has received."""

    def __init__(self, driver: Driver, name: str, close: Callable[[], None]) -> None:
        self._driver = driver
        self._name = name
        self._inbox: Inbox = driver.inbox(name)
        self.close = close
        """Shut it down, as one that leaves its group in good order."""

    def messages(self) -> list[Received]:
        """All that came so far, in order of arrival."""
        return self._inbox.messages()

    def wait_for(self, count: int, timeout: float = 30) -> list[Received]:
        """All that came, once there are so many. Raises TimeoutError after seconds."""
        return self._inbox.wait_until(lambda messages: len(messages) >= count, timeout)

    def wait_until(
        self, is_enough: Callable[[list[Received]], bool], timeout: float = 30
    ) -> list[Received]:
        """All that came, once it is enough. Raises TimeoutError after seconds."""
        return self._inbox.wait_until(is_enough, timeout)

    def assigned(self, topic: str) -> set[int]:
        """The queues of a topic that it has, after it has looked for changes at once."""
        state = self._driver.call("assigned", name=self._name)
        found = (queue.rpartition(":") for queue in state["queues"])
        return {int(number) for name, _, number in found if name == topic}

    def knows(self, topics: set[str]) -> bool:
        """Whether it has routes of all these topics, after it has looked for changes at once."""
        state = self._driver.call("assigned", name=self._name)
        return topics <= set(state["topics"])


class JavaTransactor:
    """A running TransactionMQProducer."""

    def __init__(self, driver: Driver, name: str, close: Callable[[], None]) -> None:
        self._driver = driver
        self._name = name
        self._inbox: Inbox = driver.inbox(name)
        self.close = close
        """Shut it down, as one that leaves its group in good order."""

    def send(self, topic: str, body: bytes, *decisions: Decision, **wanted: Any) -> Sent:
        """Send a message in a transaction. The first of `decisions` is made at once, the next ones
        when the server asks; the last one is repeated. `wanted` are fields of Outgoing."""
        properties = {"decisions": ",".join(decisions), **wanted.pop("properties", {})}
        message = Outgoing(topic=topic, body=body, properties=properties, **wanted).as_json()
        return msgspec.convert(self._driver.call("transact", name=self._name, **message), Sent)

    def checks(self, count: int, timeout: float = 30) -> list[Received]:
        """The messages that the server has asked about, once it asked so often."""
        return self._inbox.wait_until(lambda messages: len(messages) >= count, timeout)


class JavaPuller:
    """A running DefaultMQPullConsumer."""

    def __init__(self, driver: Driver, name: str) -> None:
        self._driver = driver
        self._name = name

    def queues(self, topic: str) -> int:
        """How many queues a topic has."""
        count: int = self._driver.call("queues", name=self._name, topic=topic)
        return count

    def pull(
        self,
        topic: str,
        queue: int,
        offset: int,
        *,
        limit: int = 32,
        expression: str = "*",
        block: bool = False,
    ) -> Pulled:
        """Pull from one queue; with `block` the server waits up to 20 s for something to come."""
        answer = self._driver.call(
            "pull",
            name=self._name,
            topic=topic,
            queue=queue,
            offset=offset,
            limit=limit,
            expression=expression,
            block=block,
        )
        return msgspec.convert(answer, Pulled)

    def offset(
        self,
        topic: str,
        queue: int,
        which: Literal["min", "max", "earliestTime", "committed"],
    ) -> int:
        """One of the server's figures of a queue; `earliestTime` is in milliseconds."""
        return self._offset(topic, queue, which)

    def offset_at(self, topic: str, queue: int, timestamp_ms: int) -> int:
        """The offset of the first message stored at a time or after it."""
        return self._offset(topic, queue, "at", timestampMs=timestamp_ms)

    def _offset(self, topic: str, queue: int, which: str, **fields: Any) -> int:
        found: int = self._driver.call(
            "offset", name=self._name, topic=topic, queue=queue, which=which, **fields
        )
        return found

    def commit(self, topic: str, queue: int, offset: int) -> None:
        """Store the group's offset on the server."""
        self._driver.call("commit", name=self._name, topic=topic, queue=queue, offset=offset)


class JavaPoller:
    """A running DefaultLitePullConsumer."""

    def __init__(self, driver: Driver, name: str) -> None:
        self._driver = driver
        self._name = name

    def poll(self, timeout: float = 5) -> list[Received]:
        """What comes within seconds; empty when nothing does."""
        found = self._driver.call("poll", name=self._name, timeoutMs=int(timeout * 1000))
        return msgspec.convert(found, list[Received])


def mqadmin(namesrv: str, command: str, *arguments: str, timeout: float = 60) -> str:
    """What RocketMQ's own `mqadmin` prints for a command such as `queryMsgById`."""
    with tempfile.TemporaryDirectory(prefix="tidegate-mqadmin-") as folder:
        Path(folder, "rmq.logback-test.xml").write_text(_QUIET_LOG)
        paths = [folder, *(str(path) for path in classpath(SERVER))]
        done = subprocess.run(
            [
                *(str(java()), "-Xmx256m", f"-Duser.home={folder}"),
                *(f"-Drocketmq.home.dir={folder}", "-cp", os.pathsep.join(paths)),
                *("org.apache.rocketmq.tools.command.MQAdminStartup", command),
                *("-n", namesrv, *arguments),
            ],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    return done.stdout + done.stderr


def _sent(result: Mapping[str, Any]) -> Sent | ClientFailure:
    if "error" in result:
        return ClientFailure.of(result["error"])
    return msgspec.convert(result, Sent)


def _one(results: Sequence[Sent | ClientFailure]) -> Sent:
    (result,) = results
    if isinstance(result, ClientFailure):
        raise result
    return result
