"""The reactor's turns: however many sockets are ready, one turn reads from only some."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from twisted.internet.abstract import FileDescriptor

from gateway import reactor as turns
from gateway.reactor import FEW_SOCKETS, SOCKETS_AT_ONCE, TurnReactor

MANY = SOCKETS_AT_ONCE + SOCKETS_AT_ONCE // 2


class _Cpu:
    """Stands in for the module `time`; its CPU time grows by the cost of each read."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.each = 0.0
        """CPU seconds that one reader takes."""

    def thread_time(self) -> float:
        return self.seconds


class _Reader(FileDescriptor):
    """A pipe with a byte that is never read, so it is ready in each turn."""

    def __init__(self, reactor: Any, heard: Counter[int], cpu: _Cpu) -> None:
        super().__init__(reactor)
        self._heard = heard
        self._cpu = cpu
        self._read, self._write = os.pipe()
        os.write(self._write, b"x")

    def fileno(self) -> int:
        return self._read

    def doRead(self) -> None:
        self._heard[self._read] += 1
        self._cpu.seconds += self._cpu.each

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
    reactor._poller.close()


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> _Cpu:
    cpu = _Cpu()
    monkeypatch.setattr(turns, "time", cpu)
    return cpu


@pytest.fixture
def heard(reactor: Any, cpu: _Cpu) -> Iterator[Counter[int]]:
    """Count how often each of `MANY` readers was called."""
    heard: Counter[int] = Counter()
    with ExitStack() as pipes:
        for _ in range(MANY):
            reader = _Reader(reactor, heard, cpu)
            pipes.callback(reader.close)
            reactor.addReader(reader)
        yield heard
        reactor.removeAll()


def in_a_turn(reactor: Any, heard: Counter[int]) -> int:
    """Run one turn, and return how many readers it called."""
    before = heard.total()
    reactor.doIteration(0)
    return heard.total() - before


def test_many_sockets_have_their_share_in_several_turns(reactor: Any, heard: Counter[int]) -> None:
    assert in_a_turn(reactor, heard) == SOCKETS_AT_ONCE
    # Readers that were not called come first, though the others are ready again.
    reactor.doIteration(0)
    assert len(heard) == MANY


def test_where_sockets_have_much_to_say_a_turn_hears_of_fewer(
    reactor: Any, heard: Counter[int], cpu: _Cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "HEARING_SECONDS", 1.0)
    cpu.each = 1 / 32
    assert in_a_turn(reactor, heard) == SOCKETS_AT_ONCE
    # This continues as long as the readers take that time.
    assert [in_a_turn(reactor, heard) for _ in range(5)] == [32, 64, 32, 64, 32]
    cpu.each = 1.0
    in_a_turn(reactor, heard)
    few = FEW_SOCKETS
    assert [in_a_turn(reactor, heard) for _ in range(5)] == [few, 2 * few, few, 2 * few, few]
    # While hardly any sockets are ready, the reactor cannot know how long the others will take.
    _, *silent = (one for one in reactor.getReaders() if isinstance(one, _Reader))
    for reader in silent:
        reactor.removeReader(reader)
    assert [in_a_turn(reactor, heard) for _ in range(3)] == [1, 1, 1]
    for reader in silent:
        reactor.addReader(reader)
    assert in_a_turn(reactor, heard) == 2 * few
    cpu.each = 0.0
    assert [in_a_turn(reactor, heard) for _ in range(6)][-1] == SOCKETS_AT_ONCE
