"""The common part of the real clients: each is a set of producers and consumers in a driver, by name."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Self, TypedDict

import msgspec

from compat.clients.driver import (
    PATIENCE_S,
    ClientFailure,
    Decision,
    Driver,
    DriverError,
    Outgoing,
    Received,
    Sent,
    signing_fields,
    until,
)

From = Literal["first", "last"]
"""Where a group without an offset for a queue begins."""

FROM: Final = {"first": "CONSUME_FROM_FIRST_OFFSET", "last": "CONSUME_FROM_LAST_OFFSET"}
"""By `From`: its name on the wire (ConsumeFromWhere)."""

Mode = Literal["sync", "async"]


class Consuming(TypedDict, total=False):
    """The options of a push consumer that most of the real clients have."""

    expression: str
    """An expression of tags, `*` by default, or with `sql` one of SQL92."""
    sql: bool
    orderly: bool
    start: From
    fail_first: int
    """How often the consumer refuses each message."""
    retry_level: int
    """The delay level of the retry; with 0, the default, the server chooses."""
    max_reconsume_times: int
    """With -1, the default, the server chooses."""
    broadcast: bool
    reply: bytes | None
    """The body of the reply to each message, for messages of Client.request. With it, none is refused."""


_LARGEST_BODY: Final = 8 * 1024 * 1024

_names = itertools.count(1)


class Client:
    """One user of a real client: a producer, and any number of consumers.

    An action that a client does not support raises ClientFailure.

    `driver` is a running process to share. Without it, the driver that `own` makes is started, and
    `close` ends it. With `credentials`, an access key and its secret key, requests are signed.
    `group` is the producer's. `settings` are fields of the start of every producer and consumer.
    """

    def __init__(
        self,
        namesrv: str,
        driver: Driver | None,
        own: Callable[[], Driver],
        *,
        group: str = "senders",
        send_timeout_ms: int = 60_000,
        retries: int = 2,
        credentials: tuple[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._settings: dict[str, Any] = {
            "namesrv": namesrv,
            **signing_fields(credentials),
            **(settings or {}),
        }
        self._group = group
        self._sending: dict[str, Any] = {
            "timeoutMs": send_timeout_ms,
            "retries": retries,
            "maxMessageSize": _LARGEST_BODY,
        }
        self._owned: Driver | None = None
        if driver is None:
            driver = self._owned = own()
            driver.start()
        self._driver = driver
        self._open: list[str] = []
        self._producer: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Shut down everything that was started. If that fails, end the process."""
        try:
            for name in reversed(self._open):
                self._driver.call("close", name=name)
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
        self, messages: Sequence[Outgoing], mode: Mode = "sync", timeout: float = PATIENCE_S
    ) -> list[Sent | ClientFailure]:
        """Send messages, one after the other or all at once, and return the result of each, in order."""
        return [_sent(result) for result in self._send(messages, mode, timeout)]

    def send_oneway(self, *messages: Outgoing) -> None:
        """Send messages without waiting for an answer."""
        self._send(messages, "oneway")

    def send_batch(self, messages: Sequence[Outgoing]) -> Sent:
        """Send messages to one queue as a batch. The ids in the result are joined by commas."""
        return _one([_sent(result) for result in self._send(messages, "batch")])

    def transactor(self, group: str) -> Transactor:
        """Start a producer of transactions."""
        name = self._start("transactor", group=group, **self._sending)
        return Transactor(self._driver, name, lambda: self._close(name))

    def request(self, topic: str, body: bytes, timeout: float = PATIENCE_S, **wanted: Any) -> Reply:
        """Send a request message and wait for its reply. Raises ClientFailure."""
        message = Outgoing(topic=topic, body=body, **wanted).as_json()
        answer = self._driver.call(
            "request", name=self._sender(), timeoutMs=int(timeout * 1000), **message
        )
        return msgspec.convert(answer, Reply)

    # --- consuming ---

    def poller(self, topic: str, group: str) -> Poller:
        """Start a lite pull consumer of one topic."""
        fields = {"from": FROM["first"]}
        name = self._start("poller", group=group, topic=topic, expression="*", **fields)
        return Poller(self._driver, name)

    def _start_consumer(
        self, topic: str, group: str, consuming: Consuming, **fields: object
    ) -> str:
        """Start a push consumer of one topic and return its name. `fields` are those of one client only."""
        reply = consuming.get("reply")
        return self._start(
            "consume",
            group=group,
            subscriptions={topic: consuming.get("expression", "*")},
            sql=consuming.get("sql", False),
            orderly=consuming.get("orderly", False),
            failFirst=consuming.get("fail_first", 0),
            retryLevel=consuming.get("retry_level", 0),
            maxReconsumeTimes=consuming.get("max_reconsume_times", -1),
            broadcast=consuming.get("broadcast", False),
            **{"from": FROM[consuming.get("start", "first")], **fields},
            **({} if reply is None else {"reply": msgspec.to_builtins(reply)}),
        )

    def _send(
        self, messages: Sequence[Outgoing], mode: str, timeout: float = PATIENCE_S
    ) -> list[dict[str, Any]]:
        wanted = [message.as_json() for message in messages]
        results: list[dict[str, Any]] = self._driver.call(
            "send", name=self._sender(), mode=mode, messages=wanted, timeout=timeout
        )
        return results

    def _sender(self) -> str:
        if self._producer is None:
            self._producer = self._start("producer", group=self._group, **self._sending)
        return self._producer

    def _start(self, what: str, **fields: Any) -> str:
        name = f"{what}-{os.getpid()}-{next(_names)}"
        self._driver.call(what, name=name, instance=name, **self._settings, **fields)
        self._open.append(name)
        return name

    def _close(self, name: str) -> None:
        self._open.remove(name)
        self._driver.call("close", name=name)


class Listener:
    """A consumer or producer in a driver that reports the messages that it gets."""

    def __init__(self, driver: Driver, name: str, close: Callable[[], None]) -> None:
        self._driver = driver
        self._name = name
        self._inbox = driver.inbox(name)
        self.close = close
        """Shut it down in good order, so that it leaves its group."""


class Consumer(Listener):
    """A running push consumer and the messages that it has received."""

    def messages(self) -> list[Received]:
        """Return all messages so far, in order of arrival."""
        return self._inbox.messages()

    def wait_for(self, count: int, timeout: float = PATIENCE_S) -> list[Received]:
        """Wait for `count` messages and return all. Raises TimeoutError after `timeout` seconds."""
        return self._inbox.wait_until(lambda messages: len(messages) >= count, timeout)

    def wait_until(
        self, is_enough: Callable[[list[Received]], bool], timeout: float = PATIENCE_S
    ) -> list[Received]:
        """Wait until the messages are enough and return all. Raises TimeoutError after `timeout` seconds."""
        return self._inbox.wait_until(is_enough, timeout)


class Transactor(Listener):
    """A running producer of transactions."""

    def send(self, topic: str, body: bytes, *decisions: Decision, **wanted: Any) -> Sent:
        """Send a message in a transaction. `wanted` are fields of Outgoing.

        The first of `decisions` is made at once, and the next ones at the server's checks. The last
        one is repeated.
        """
        properties = {"decisions": ",".join(decisions), **wanted.pop("properties", {})}
        message = Outgoing(topic=topic, body=body, properties=properties, **wanted).as_json()
        return msgspec.convert(self._driver.call("transact", name=self._name, **message), Sent)

    def checks(self, count: int, timeout: float = PATIENCE_S) -> list[Received]:
        """Wait until the server has made `count` checks and return the messages that it checked."""
        return self._inbox.wait_until(lambda messages: len(messages) >= count, timeout)


class Pulled(msgspec.Struct, rename="camel", kw_only=True):
    """The answer to a pull. `status` is a name of the Java client's PullStatus."""

    status: str
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[Received]


class Puller:
    """A running pull consumer."""

    def __init__(self, driver: Driver, name: str) -> None:
        self._driver = driver
        self._name = name

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
        """Pull from one queue. With `block` the server waits up to 20 s for a message."""
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


class Poller:
    """A running lite pull consumer of one topic."""

    def __init__(self, driver: Driver, name: str) -> None:
        self._driver = driver
        self._name = name

    def poll(self, timeout: float = 5) -> list[Received]:
        """Return the messages that arrive within `timeout` seconds; an empty list if none does."""
        found = self._driver.call("poll", name=self._name, timeoutMs=int(timeout * 1000))
        return msgspec.convert(found, list[Received])

    def wait_for(self, count: int) -> list[Received]:
        """Poll until there are `count` messages and return all. Raises TimeoutError after `PATIENCE_S` seconds."""
        messages: list[Received] = []

        def are_enough() -> bool:
            messages.extend(self.poll())
            return len(messages) >= count

        until(are_enough, f"{count} polled messages")
        return messages


class Reply(msgspec.Struct):
    """The reply to a request message."""

    body: bytes
    properties: dict[str, str]


def _sent(result: Mapping[str, Any]) -> Sent | ClientFailure:
    if "error" in result:
        return ClientFailure.of(result["error"])
    return msgspec.convert(result, Sent)


def _one(results: Sequence[Sent | ClientFailure]) -> Sent:
    (result,) = results
    if isinstance(result, ClientFailure):
        raise result
    return result
