"""rocketmq-client-python 2.0.0, which is the C++ client called from Python."""

from __future__ import annotations

import itertools
import os
import sys
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
    Outgoing,
    Received,
    Sent,
    signing_fields,
)
from compat.toolchain import cpp_client

_PROGRAM: Final = Path(__file__).with_name("cpp_driver.py")
_CLOSE_LIMIT_S: Final = 20

_names = itertools.count(1)


def cpp_driver() -> Driver:
    """A process with the client, not started yet; any number of clients share it."""

    def environment(folder: Path) -> Mapping[str, str]:
        return {
            "PYTHONPATH": str(cpp_client()),
            "ROCKETMQ_CLIENT_LOG_DIR": str(folder),
            "HOME": str(folder),
        }

    return Driver("cpp", lambda _: [sys.executable, _PROGRAM], environment)


class CppClient:
    """One user of the client: a producer, and push consumers as they are asked for.

    It can neither pull, recall nor look up. A body is a C string: a zero byte ends it. `driver` is
    a running process to share; else one is started, and ended by `close`.
    """

    def __init__(
        self,
        namesrv: str,
        *,
        driver: Driver | None = None,
        send_timeout_ms: int = 10_000,
        credentials: tuple[str, str] | None = None,
    ) -> None:
        """With `credentials`, an access key and its secret key, requests are signed."""
        self._namesrv = namesrv
        self._signing = signing_fields(credentials)
        self._send_timeout_ms = send_timeout_ms
        self._owned: Driver | None = None
        if driver is None:
            driver = self._owned = cpp_driver()
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
        """Shut everything down that was started; ends the process when that does not work."""
        try:
            for name in reversed(self._open):
                self._driver.call("close", name=name, timeout=_CLOSE_LIMIT_S)
        except (DriverError, ClientFailure):
            self._driver.close()
        self._open.clear()
        if self._owned:
            self._owned.close()

    def send(self, topic: str, body: bytes = b"-", **wanted: Any) -> Sent:
        """Send one message and wait; `wanted` are fields of Outgoing. Raises ClientFailure."""
        (result,) = self.send_all([Outgoing(topic=topic, body=body, **wanted)])
        if isinstance(result, ClientFailure):
            raise result
        return result

    def send_all(
        self, messages: Sequence[Outgoing], timeout: float = CALL_LIMIT_S
    ) -> list[Sent | ClientFailure]:
        """Send several, one after the other; what became of each, in order."""
        return [
            ClientFailure.of(result["error"])
            if "error" in result
            else msgspec.convert(result, Sent)
            for result in self._send(messages, "sync", timeout)
        ]

    def send_oneway(self, *messages: Outgoing) -> None:
        """Send without an answer."""
        self._send(messages, "oneway", CALL_LIMIT_S)

    def transactor(self, group: str) -> CppTransactor:
        """Start a producer of transactions."""
        return CppTransactor(self._driver, self._start("transactor", group=group))

    def consume(
        self,
        topic: str,
        group: str,
        *,
        expression: str = "*",
        orderly: bool = False,
        fail_first: int = 0,
        broadcast: bool = False,
    ) -> CppConsumer:
        """Start a push consumer that refuses each message `fail_first` times.

        There is no telling when it has its queues. A group that is new to a topic begins with what
        is there.
        """
        name = self._start(
            "consume",
            group=group,
            subscriptions={topic: expression},
            orderly=orderly,
            failFirst=fail_first,
            broadcast=broadcast,
        )
        return CppConsumer(self._driver, name, lambda: self._close(name))

    def _send(
        self, messages: Sequence[Outgoing], mode: Literal["sync", "oneway"], timeout: float
    ) -> list[dict[str, Any]]:
        if self._producer is None:
            self._producer = self._start(
                "producer",
                group="senders",
                timeoutMs=self._send_timeout_ms,
                maxMessageSize=8 * 1024 * 1024,
            )
        wanted = [message.as_json() for message in messages]
        results: list[dict[str, Any]] = self._driver.call(
            "send", name=self._producer, mode=mode, messages=wanted, timeout=timeout
        )
        return results

    def _start(self, what: str, **fields: Any) -> str:
        name = f"{what}-{os.getpid()}-{next(_names)}"
        self._driver.call(
            what, name=name, instance=name, namesrv=self._namesrv, **self._signing, **fields
        )
        self._open.append(name)
        return name

    def _close(self, name: str) -> None:
        self._open.remove(name)
        self._driver.call("close", name=name, timeout=_CLOSE_LIMIT_S)


class CppTransactor:
    """A running TransactionMQProducer."""

    def __init__(self, driver: Driver, name: str) -> None:
        self._driver = driver
        self._name = name
        self._inbox = driver.inbox(name)

    def send(self, topic: str, body: bytes, *decisions: Decision, **wanted: Any) -> Sent:
        """Send a message in a transaction. The first of `decisions` is made at once, the next ones
        when the server asks; the last one is repeated. `wanted` are fields of Outgoing."""
        properties = {"decisions": ",".join(decisions), **wanted.pop("properties", {})}
        message = Outgoing(topic=topic, body=body, properties=properties, **wanted).as_json()
        return msgspec.convert(self._driver.call("transact", name=self._name, **message), Sent)

    def checks(self, count: int, timeout: float = 30) -> list[Received]:
        """The messages that the server has asked about, once it asked so often."""
        return self._inbox.wait_until(lambda messages: len(messages) >= count, timeout)


class CppConsumer:
    """A running PushConsumer and what it has received."""

    def __init__(self, driver: Driver, name: str, close: Callable[[], None]) -> None:
        self._inbox = driver.inbox(name)
        self.close = close
        """Shut it down, as one that leaves its group in good order."""

    def messages(self) -> list[Received]:
        """All that came so far, in order of arrival."""
        return self._inbox.messages()

    def wait_for(self, count: int, timeout: float = 45) -> list[Received]:
        """All that came, once there are so many. Raises TimeoutError after seconds."""
        return self._inbox.wait_until(lambda messages: len(messages) >= count, timeout)

    def wait_until(
        self, is_enough: Callable[[list[Received]], bool], timeout: float = 45
    ) -> list[Received]:
        """All that came, once it is enough. Raises TimeoutError after seconds."""
        return self._inbox.wait_until(is_enough, timeout)
