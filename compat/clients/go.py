"""The Go client, `github.com/apache/rocketmq-client-go/v2`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from compat.clients.base import Client, Consumer, Consuming, Puller
from compat.clients.driver import Driver
from compat.toolchain.go import go_client


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

    def consume(self, topic: str, group: str, **consuming: Unpack[Consuming]) -> Consumer:
        """Start a push consumer. There is no telling when it has its queues."""
        name = self._start_consumer(topic, group, consuming)
        return Consumer(self._driver, name, lambda: self._close(name))

    def puller(self, group: str) -> Puller:
        """Start a pull consumer, of one topic at a time."""
        return Puller(self._driver, self._start("puller", group=group))
