"""The official Java client, of the current and of the older generation."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Unpack

import msgspec

from compat.clients.base import Client, Consumer, Consuming, Puller
from compat.clients.driver import Driver, Received, until
from compat.toolchain.jars import classpath
from compat.toolchain.java import compile_java, light_java

Version = Literal["5.5.0", "4.9.8", "4.5.2", "4.2.0"]

VERSIONS: Final[tuple[Version, ...]] = ("5.5.0", "4.9.8")
"""The generations in use."""

OLD_VERSIONS: Final[tuple[Version, ...]] = ("4.5.2", "4.2.0")
"""They can send, push and pull. The last is the oldest that this server is for."""

Compression = Literal["LZ4", "ZSTD", "ZLIB"]

COMPRESSIONS: Final[tuple[Compression, ...]] = ("LZ4", "ZSTD", "ZLIB")
"""How the client 5.x can compress."""

_SOURCES: Final = Path(__file__).with_name("java")
_DRIVER: Final = ("Driver", "Conversation", "Extras", "Generation")
_MODERN: Final = (*_DRIVER, "ModernGeneration", "Modern", "Decisions")
_PROGRAMS: Final[Mapping[Version, tuple[str, ...]]] = {
    "5.5.0": (*_MODERN, "gen5/ClientGeneration"),
    "4.9.8": (*_MODERN, "Generation4", "gen4/ClientGeneration"),
    "4.5.2": (*_DRIVER, "Generation4", "gen42/ClientGeneration"),
    "4.2.0": (*_DRIVER, "Generation4", "gen42/ClientGeneration"),
}
"""The sources of the driver for each version."""

# Netty 4.0 looks into the runtime, which has been closed to that since Java 16.
_OPEN: Final = ("--add-opens=java.base/java.nio=ALL-UNNAMED",)
_DOORS: Final[Mapping[Version, tuple[str, ...]]] = dict.fromkeys(OLD_VERSIONS, _OPEN)


def java_driver(version: Version = "5.5.0") -> Driver:
    """A JVM with one generation of the client, not started yet; any number of clients share it."""

    def command(folder: Path) -> Sequence[str | Path]:
        libraries = classpath(f"client-{version}")
        sources = [_SOURCES / f"{name}.java" for name in _PROGRAMS[version]]
        classes = compile_java(sources, libraries, f"driver-{version}")
        paths = os.pathsep.join(str(path) for path in (classes, *libraries))
        return [
            *light_java(folder, "512m"),
            f"-Drocketmq.client.logRoot={folder}",
            # Of those that trace: else they trace sends and consumption only.
            "-Dcom.rocketmq.recall.default.trace.enable=true",
            *_DOORS.get(version, ()),
            *("-cp", paths, "Driver"),
        ]

    return Driver(f"java-{version}", command)


class JavaClient(Client):
    """The official client: it can do everything."""

    def __init__(
        self,
        namesrv: str,
        version: Version = "5.5.0",
        *,
        driver: Driver | None = None,
        vip_channel: bool = False,
        tls: bool = False,
        trace: bool = False,
        namespace: str | None = None,
        namespace_v2: str | None = None,
        compression: Compression | None = None,
        heartbeat_ms: int | None = None,
        **options: Any,
    ) -> None:
        """`namespace_v2` and `compression` are for 5.x. `heartbeat_ms` is how often it tells brokers that it is there
        instead of every 30 s: a broker that was restarted does not know it before. `options` are those of Client."""
        self.version: Version = version
        settings = {
            "vipChannel": vip_channel,
            "tls": tls,
            "trace": trace,
            "namespace": namespace,
            "namespaceV2": namespace_v2,
            **({"compression": compression} if compression else {}),
            **({"heartbeatMs": heartbeat_ms} if heartbeat_ms else {}),
        }
        # What the server calls its topics and groups with.
        self._space = f"{namespace}%" if namespace else ""
        super().__init__(
            namesrv, driver, lambda: java_driver(version), settings=settings, **options
        )

    def recall(self, topic: str, handle: str) -> str:
        """Take back a message; its id. Raises ClientFailure, always for the older generation."""
        message_id: str = self._driver.call(
            "recall", name=self._sender(), topic=topic, handle=handle
        )
        return message_id

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
        since: int | None = None,
        pop_invisible_ms: int | None = None,
        wait: bool = True,
        **consuming: Unpack[Consuming],
    ) -> JavaConsumer:
        """Start a push consumer.

        With `since`, an epoch second, a group that is new begins there and not where `start` says. With
        `pop_invisible_ms` it leaves its queues to the server (5.x only), and asks for that time if it
        is to pop; do not `wait` then. With `wait`, returns once it has queues of the topic and knows
        where its group's retry topic is.
        """
        fields: dict[str, Any] = {}
        if since is not None:
            fields["since"] = time.strftime("%Y%m%d%H%M%S", time.localtime(since))
        if pop_invisible_ms is not None:
            fields["popInvisibleMs"] = pop_invisible_ms
        name = self._start_consumer(topic, group, consuming, **fields)
        consumer = JavaConsumer(self._driver, name, lambda: self._close(name))
        if wait:
            full = f"{self._space}{topic}"
            wanted = (
                {full} if consuming.get("broadcast") else {full, f"%RETRY%{self._space}{group}"}
            )
            until(
                lambda: consumer.knows(wanted) and bool(consumer.assigned(full)),
                f"a queue of {full}, and routes of {wanted}, for the consumer of {group}",
            )
        return consumer

    def puller(self, group: str) -> JavaPuller:
        """Start a DefaultMQPullConsumer."""
        return JavaPuller(self._driver, self._start("puller", group=group))


class JavaConsumer(Consumer):
    """A running DefaultMQPushConsumer."""

    def assigned(self, topic: str) -> set[int]:
        """The queues of a topic that it has, after it has looked for changes at once."""
        state = self._driver.call("assigned", name=self._name)
        found = (queue.rpartition(":") for queue in state["queues"])
        return {int(number) for name, _, number in found if name == topic}

    def knows(self, topics: set[str]) -> bool:
        """Whether it has routes of all these topics, after it has looked for changes at once."""
        state = self._driver.call("assigned", name=self._name)
        return topics <= set(state["topics"])


class JavaPuller(Puller):
    """A running DefaultMQPullConsumer."""

    def queues(self, topic: str) -> int:
        """How many queues a topic has."""
        count: int = self._driver.call("queues", name=self._name, topic=topic)
        return count

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
