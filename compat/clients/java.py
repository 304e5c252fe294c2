"""The official Java client, in versions of the current and of older generations."""

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
"""The versions of the generations in use."""

OLD_VERSIONS: Final[tuple[Version, ...]] = ("4.5.2", "4.2.0")
"""Older versions, which can send, and consume by push and pull. The last is the oldest that is compared."""

Compression = Literal["LZ4", "ZSTD", "ZLIB"]

COMPRESSIONS: Final[tuple[Compression, ...]] = ("LZ4", "ZSTD", "ZLIB")
"""The compressions of the 5.x client."""

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

# Netty 4.0 reaches into internals of the runtime, which Java 16 and later close to it.
_OPEN: Final = ("--add-opens=java.base/java.nio=ALL-UNNAMED",)
_DOORS: Final[Mapping[Version, tuple[str, ...]]] = dict.fromkeys(OLD_VERSIONS, _OPEN)


def java_driver(version: Version = "5.5.0") -> Driver:
    """Return a driver for one version of the client, not started yet. Any number of clients can share it."""

    def command(folder: Path) -> Sequence[str | Path]:
        libraries = classpath(f"client-{version}")
        sources = [_SOURCES / f"{name}.java" for name in _PROGRAMS[version]]
        classes = compile_java(sources, libraries, f"driver-{version}")
        paths = os.pathsep.join(str(path) for path in (classes, *libraries))
        return [
            *light_java(folder, "512m"),
            f"-Drocketmq.client.logRoot={folder}",
            # Without it, clients that trace do not trace recalls.
            "-Dcom.rocketmq.recall.default.trace.enable=true",
            "-Dcom.rocketmq.remoting.client.connect.timeout=60000",
            *_DOORS.get(version, ()),
            *("-cp", paths, "Driver"),
        ]

    return Driver(f"java-{version}", command)


class JavaClient(Client):
    """The official client, which supports every action."""

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
        """Make the client. `options` are those of Client; `namespace_v2` and `compression` are for 5.x.

        `heartbeat_ms` is the time between heartbeats, 30 s by default. A broker that was restarted
        does not know a client until its next heartbeat.
        """
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
        # The prefix of its topics and groups on the server.
        self._space = f"{namespace}%" if namespace else ""
        super().__init__(
            namesrv, driver, lambda: java_driver(version), settings=settings, **options
        )

    def recall(self, topic: str, handle: str) -> str:
        """Recall a message and return its id. Raises ClientFailure, always with the older generations."""
        message_id: str = self._driver.call(
            "recall", name=self._sender(), topic=topic, handle=handle
        )
        return message_id

    # --- topics and look-up ---

    def create_topic(self, topic: str, queues: int = 4) -> None:
        """Create a topic from TBW102, the template topic of brokers."""
        self._driver.call(
            "createTopic", name=self._sender(), like="TBW102", topic=topic, queues=queues
        )

    def view(self, topic: str, message_id: str) -> Received:
        """Look up a message by either of its ids. Raises ClientFailure if there is none."""
        found = self._driver.call("view", name=self._sender(), topic=topic, of=message_id)
        return msgspec.convert(found, Received)

    def query(
        self, topic: str, key: str, limit: int = 32, begin_ms: int = 0, end_ms: int | None = None
    ) -> list[Received]:
        """Look up the messages with a key that were stored in that time. Raises ClientFailure if there are none."""
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

        With `since`, an epoch second, a new group begins there instead of at `start`. With
        `pop_invisible_ms` the server assigns the queues (5.x only), and pops ask for that invisible
        time; do not `wait` then. With `wait`, return once the consumer has queues of the topic and
        the route of its group's retry topic.
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
        """Make the consumer update its routes and rebalance, and return its queues of a topic."""
        state = self._driver.call("assigned", name=self._name)
        found = (queue.rpartition(":") for queue in state["queues"])
        return {int(number) for name, _, number in found if name == topic}

    def knows(self, topics: set[str]) -> bool:
        """Make the consumer update its routes, and return whether it has those of all these topics."""
        state = self._driver.call("assigned", name=self._name)
        return topics <= set(state["topics"])


class JavaPuller(Puller):
    """A running DefaultMQPullConsumer."""

    def queues(self, topic: str) -> int:
        """Return how many queues a topic has."""
        count: int = self._driver.call("queues", name=self._name, topic=topic)
        return count

    def offset(
        self,
        topic: str,
        queue: int,
        which: Literal["min", "max", "earliestTime", "committed"],
    ) -> int:
        """Ask for one of the server's offsets of a queue; `earliestTime` is a time in milliseconds."""
        return self._offset(topic, queue, which)

    def offset_at(self, topic: str, queue: int, timestamp_ms: int) -> int:
        """Ask for the offset of the first message stored at a time or after it."""
        return self._offset(topic, queue, "at", timestampMs=timestamp_ms)

    def _offset(self, topic: str, queue: int, which: str, **fields: Any) -> int:
        found: int = self._driver.call(
            "offset", name=self._name, topic=topic, queue=queue, which=which, **fields
        )
        return found

    def commit(self, topic: str, queue: int, offset: int) -> None:
        """Store the group's offset on the server."""
        self._driver.call("commit", name=self._name, topic=topic, queue=queue, offset=offset)
