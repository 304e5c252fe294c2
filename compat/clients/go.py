"""The Go client, `github.com/apache/rocketmq-client-go/v2`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from compat.clients.base import Client, Consumer, Consuming, Puller
from compat.clients.driver import Driver
from compat.toolchain.go import go_client


def go_driver() -> Driver:
    """Return a driver for the client, not started yet. Any number of clients of one server can share it."""

    def environment(folder: Path) -> Mapping[str, str]:
        return {"HOME": str(folder)}  # the client writes the offsets of broadcasts there

    return Driver("go", lambda _: [go_client()], environment)


class GoClient(Client):
    """The Go client. It can neither recall nor look up messages. A topic must exist before it consumes."""

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
        """Make the client. `options` are those of Client."""
        settings = {"vipChannel": vip_channel, "trace": trace, "namespace": namespace}
        super().__init__(namesrv, driver, go_driver, settings=settings, **options)

    def consume(self, topic: str, group: str, **consuming: Unpack[Consuming]) -> Consumer:
        """Start a push consumer. The client does not show when it has its queues."""
        name = self._start_consumer(topic, group, consuming)
        return Consumer(self._driver, name, lambda: self._close(name))

    def puller(self, group: str) -> Puller:
        """Start a pull consumer, which pulls from one topic at a time."""
        return Puller(self._driver, self._start("puller", group=group))
