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
"""What a producer decides about its transaction right after the send."""

_SOURCES: Final = Path(__file__).with_name("java")
_PROGRAM: Final = ("Conversation", "grpc/GrpcDriver")

_names = itertools.count(1)


def grpc_driver() -> Driver:
    """Return a driver for the client, not started yet. Any number of producers and consumers can share it."""

    def command(folder: Path) -> Sequence[str | Path]:
        libraries = classpath(GRPC_CLIENT)
        sources = [_SOURCES / f"{name}.java" for name in _PROGRAM]
        classes = compile_java(sources, libraries, "driver-grpc")
        paths = os.pathsep.join(str(path) for path in (classes, *libraries))
        return [*light_java(folder), "-cp", paths, "GrpcDriver"]

    return Driver("grpc", command)


class Receipt(msgspec.Struct, rename="camel"):
    """The client's result of a send."""

    message_id: str
    recall_handle: str


class View(msgspec.Struct, rename="camel", kw_only=True):
    """A message as the client handed it to its user.

    `attempt` counts from one. `held` is the driver's number of a message that a simple consumer received.
    """

    message_id: str
    body: bytes
    attempt: int
    message_group: str | None = None
    deliver_time_ms: int | None = None
    received_ms: int
    held: int = 0


class _Part:
    """A producer or consumer in the driver, which lives as long as the driver runs."""

    def __init__(self, driver: Driver, what: str, proxy: str, **fields: object) -> None:
        """Start the part. `proxy` is the Proxy's `ip:port`."""
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

        `failures` is how often a push consumer's listener refuses the message. With `decided` the
        message is sent in a transaction, and `asked` is the answer to the server's checks of it.
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
        """Recall a message and return its id. Raises ClientFailure."""
        message_id: str = self._call("recall", topic=self._topic, handle=handle)
        return message_id


class SimpleConsumer(_Part):
    """A consumer of one topic that receives messages on request and acknowledges each."""

    def __init__(self, driver: Driver, proxy: str, topic: str, group: str) -> None:
        super().__init__(driver, "simple", proxy, topic=topic, group=group)

    def receive(self, invisible_ms: int) -> list[View]:
        """Return the messages that are there or arrive within five seconds. Raises ClientFailure.

        They are invisible to other consumers for `invisible_ms`.
        """
        return msgspec.convert(self._call("receive", invisibleMs=invisible_ms), list[View])

    def ack(self, message: View) -> None:
        """Acknowledge a message. Raises ClientFailure."""
        self._call("ack", held=message.held)

    def change_invisible_duration(self, message: View, invisible_ms: int) -> None:
        """Make a message visible again `invisible_ms` from now. Raises ClientFailure."""
        self._call("hide", held=message.held, invisibleMs=invisible_ms)


class PushConsumer(_Part):
    """A consumer of one topic whose listener refuses a message as often as the message's `failures` say."""

    def __init__(self, driver: Driver, proxy: str, topic: str, group: str) -> None:
        super().__init__(driver, "push", proxy, topic=topic, group=group)

    def wait_for(self, count: int, timeout: float = PATIENCE_S) -> list[View]:
        """Wait for `count` messages and return all, in order of arrival. Raises DriverError after `timeout` seconds."""
        return msgspec.convert(self._call("received", count=count, timeout=timeout), list[View])
