"""RocketMQ's Java client of the gRPC protocol, which speaks to RocketMQ's Proxy."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from compat.clients.driver import PATIENCE_S, Driver
from compat.toolchain.jars import GRPC_CLIENT, classpath
from compat.toolchain.java import compile_java, light_java

Decided = Literal["commit", "rollback", "none"]
"""What a producer says of its transaction when it has sent the message."""

_SOURCES: Final = Path(__file__).with_name("java")
_PROGRAM: Final = ("Conversation", "grpc/GrpcDriver")

_names = itertools.count(1)


def grpc_driver() -> Driver:
    """A JVM with the client, not started yet; any number of producers and consumers share it."""

    def command(folder: Path) -> Sequence[str | Path]:
        libraries = classpath(GRPC_CLIENT)
        sources = [_SOURCES / f"{name}.java" for name in _PROGRAM]
        classes = compile_java(sources, libraries, "driver-grpc")
        paths = os.pathsep.join(str(path) for path in (classes, *libraries))
        return [*light_java(folder), "-cp", paths, "GrpcDriver"]

    return Driver("grpc", command)


class Receipt(msgspec.Struct, rename="camel"):
    """What the client tells of a send."""

    message_id: str
    recall_handle: str


class View(msgspec.Struct, rename="camel", kw_only=True):
    """A message as the client handed it to its user.

    `attempt` counts from one; `held` is the driver's number of one that a simple consumer received.
    """

    message_id: str
    body: bytes
    attempt: int
    message_group: str | None = None
    deliver_time_ms: int | None = None
    received_ms: int
    held: int = 0


class _Part:
    """A producer or consumer in the driver, as long as that runs."""

    def __init__(self, driver: Driver, what: str, proxy: str, **fields: object) -> None:
        """`proxy` is the Proxy's `ip:port`."""
        self._driver = driver
        self._name = f"{what}-{next(_names)}"
        self._call(what, endpoints=proxy, **fields)

    def _call(self, do: str, **fields: Any) -> Any:
        return self._driver.call(do, name=self._name, **fields)


class Producer(_Part):
    """A producer for one topic."""

    def __init__(self, driver: Driver, proxy: str, topic: str) -> None:
        super().__init__(driver, "producer", proxy, topic=topic)
        self._topic = topic

    def send(
        self,
        body: bytes,
        *,
        group: str | None = None,
        deliver_time_ms: int | None = None,
        failures: int = 0,
        decided: Decided | None = None,
        asked: Literal["COMMIT", "ROLLBACK", "UNKNOWN"] = "UNKNOWN",
    ) -> Receipt:
        """Send a message and wait. Raises ClientFailure.

        `failures` is how often a push consumer's listener refuses it. With `decided` it is sent in a transaction;
        `asked` is what is said of that when the server asks.
        """
        fields: Mapping[str, object] = {
            "messageGroup": group,
            "deliverTimeMs": deliver_time_ms,
            "decision": decided,
        }
        answer = self._call(
            "send",
            topic=self._topic,
            body=msgspec.to_builtins(body),
            properties={"failures": str(failures), "asked": asked},
            **{name: value for name, value in fields.items() if value is not None},
        )
        return msgspec.convert(answer, Receipt)

    def recall(self, handle: str) -> str:
        """Take back a message; its id. Raises ClientFailure."""
        message_id: str = self._call("recall", topic=self._topic, handle=handle)
        return message_id


class SimpleConsumer(_Part):
    """A consumer of one topic that asks for messages and says what became of each."""

    def __init__(self, driver: Driver, proxy: str, topic: str, group: str) -> None:
        super().__init__(driver, "simple", proxy, topic=topic, group=group)

    def receive(self, invisible_ms: int) -> list[View]:
        """What there is, or comes within five seconds; nobody else is given it for a time. Raises ClientFailure."""
        return msgspec.convert(self._call("receive", invisibleMs=invisible_ms), list[View])

    def ack(self, message: View) -> None:
        """Say that a message is done. Raises ClientFailure."""
        self._call("ack", held=message.held)

    def change_invisible_duration(self, message: View, invisible_ms: int) -> None:
        """Have a message come again when another time from now is over. Raises ClientFailure."""
        self._call("hide", held=message.held, invisibleMs=invisible_ms)


class PushConsumer(_Part):
    """A consumer of one topic whose listener refuses a message as often as that says."""

    def __init__(self, driver: Driver, proxy: str, topic: str, group: str) -> None:
        super().__init__(driver, "push", proxy, topic=topic, group=group)

    def wait_for(self, count: int, timeout: float = PATIENCE_S) -> list[View]:
        """All that came, in order of arrival, once there are so many. Raises DriverError after seconds."""
        return msgspec.convert(self._call("received", count=count, timeout=timeout), list[View])
