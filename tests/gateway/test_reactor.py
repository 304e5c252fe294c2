"""The reactor's turns: however many sockets are ready, one turn hears of some."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from twisted.internet.abstract import FileDescriptor

from gateway.reactor import SOCKETS_AT_ONCE, TurnReactor

MANY = SOCKETS_AT_ONCE + SOCKETS_AT_ONCE // 2


class _Reader(FileDescriptor):
    """A pipe with a byte in it, which is never read: it is ready in each turn."""

    def __init__(self, reactor: Any, heard: Counter[int]) -> None:
        super().__init__(reactor)
        self._heard = heard
        self._read, self._write = os.pipe()
        os.write(self._write, b"x")

    def fileno(self) -> int:
        return self._read

    def doRead(self) -> None:
        self._heard[self._read] += 1

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


@pytest.fixture
def reactor() -> Iterator[Any]:
    reactor: Any = TurnReactor()
    yield reactor
    reactor.removeAll()
    for waker in reactor._internalReaders:
        waker.connectionLost(None)
    reactor._poller._epoll.close()


def test_many_sockets_have_their_share_in_several_turns(reactor: Any) -> None:
    heard: Counter[int] = Counter()
    with ExitStack() as pipes:
        for _ in range(MANY):
            reader = _Reader(reactor, heard)
            pipes.callback(reader.close)
            reactor.addReader(reader)
        reactor.doIteration(0)
        assert heard.total() == SOCKETS_AT_ONCE
        # Those that had none are first, though the others are ready again.
        reactor.doIteration(0)
        assert len(heard) == MANY
        reactor.removeAll()
