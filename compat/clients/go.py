"""The Go client, `github.com/apache/rocketmq-client-go/v2`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from compat.clients.base import FROM, Client, Consumer, From, Puller, Reply
from compat.clients.driver import PATIENCE_S, Driver
from compat.toolchain import go_client

_HEARTBEAT_S: Final = 1.5


def go_driver() -> Driver:
    """A process with the client, not started yet; any number of clients of one server share it."""

    def environment(folder: Path) -> Mapping[str, str]:
        return {"HOME": str(folder)}  # where the offsets of broadcasts are

    return Driver("go", lambda _: [go_client()], environment)


class GoClient(Client):
    """It can neither recall nor look up; its topics must be there before it consumes."""

    def __init__(
        self,
        namesrv: str,
        *,
        driver: Driver | None = None,
        vip_channel: bool = False,
        trace: bool = False,
        namespace: str = "",
        **options: Any,
    ) -> None:
        """`options` are those of Client."""
        settings = {"vipChannel": vip_channel, "trace": trace, "namespace": namespace}
        super().__init__(namesrv, driver, go_driver, settings=settings, **options)

    def request(self, topic: str, body: bytes, timeout: float = PATIENCE_S, **wanted: Any) -> Reply:
        """Like that of Client; a reply finds it only after its heartbeat, a second after its start."""
        self._sender()
        time.sleep(_HEARTBEAT_S)
        return super().request(topic, body, timeout, **wanted)

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
    ) -> Consumer:
        """Start a push consumer; see JavaClient.consume. There is no telling when it has its queues."""
        replying = {} if reply is None else {"reply": msgspec.to_builtins(reply)}
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
            **{"from": FROM[start], **replying},
        )
        return Consumer(self._driver, name, lambda: self._close(name))

    def puller(self, group: str) -> Puller:
        """Start a pull consumer, of one topic at a time."""
        return Puller(self._driver, self._start("puller", group=group))
