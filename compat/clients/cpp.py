"""rocketmq-client-python 2.0.0, which is the C++ client called from Python."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from compat.clients.base import Client, Consumer, Consuming
from compat.clients.driver import Driver
from compat.toolchain.cpp import cpp_client

_PROGRAM: Final = Path(__file__).with_name("cpp_driver.py")


def cpp_driver() -> Driver:
    """Return a driver for the client, not started yet. Any number of clients can share it."""

    def environment(folder: Path) -> Mapping[str, str]:
        return {
            "PYTHONPATH": str(cpp_client()),
            "ROCKETMQ_CLIENT_LOG_DIR": str(folder),
            "HOME": str(folder),
        }

    return Driver("cpp", lambda _: [sys.executable, _PROGRAM], environment)


class CppClient(Client):
    """The C++ client. It cannot pull, recall, look up messages, send batches or send asynchronously.

    A body is a C string: a zero byte ends it.
    """

    def __init__(self, namesrv: str, *, driver: Driver | None = None, **options: Any) -> None:
        """Make the client. `options` are those of Client, but the number of retries is the library's own."""
        super().__init__(namesrv, driver, cpp_driver, **options)

    def consume(
        self,
        topic: str,
        group: str,
        *,
        expression: str = "*",
        orderly: bool = False,
        fail_first: int = 0,
        broadcast: bool = False,
    ) -> Consumer:
        """Start a push consumer that refuses each message `fail_first` times.

        The client does not show when it has its queues. A group that is new to a topic begins with
        the messages that are there.
        """
        name = self._start_consumer(
            topic,
            group,
            Consuming(
                expression=expression, orderly=orderly, fail_first=fail_first, broadcast=broadcast
            ),
        )
        return Consumer(self._driver, name, lambda: self._close(name))
