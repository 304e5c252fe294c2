"""The reactor's turns: however many sockets are ready, one turn reads from only some."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.abstract import FileDescriptor
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import ProcessProtocol, ServerFactory
from twisted.internet.tcp import Port

from gateway import reactor as turns
from gateway.reactor import FEW_SOCKETS, SOCKETS_AT_ONCE, TurnReactor

MANY = SOCKETS_AT_ONCE + SOCKETS_AT_ONCE // 2


class _Cpu:
    """Stands in for the module `time`; its CPU time grows by the cost of each read, and its other time by sleeping and
    by long reads."""

    def __init__(self) -> None:
        self.seconds = self.slept = 0.0
        self.each = 0.0
        """CPU seconds that one reader takes."""
        self.long = 0.0
        """Seconds that one reader takes."""

    def thread_time(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.slept

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


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
        self._cpu.slept += self._cpu.long

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


class _Namesake(FileDescriptor):
    """Another reader with a reader's number."""

    def __init__(self, reactor: Any, heard: Counter[int], namesake: _Reader) -> None:
        super().__init__(reactor)
        self._heard = heard
        self._number = namesake.fileno()

    def fileno(self) -> int:
        return self._number

    def doRead(self) -> None:
        self._heard[self._number] += 1


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


def in_a_turn(reactor: Any, heard: Counter[int], timeout: float | None = 0) -> int:
    """Run one turn, and return how many readers it called."""
    before = heard.total()
    reactor.doIteration(timeout)
    return heard.total() - before


def test_many_sockets_have_their_share_in_several_turns(reactor: Any, heard: Counter[int]) -> None:
    assert in_a_turn(reactor, heard) == SOCKETS_AT_ONCE
    # Readers that were not called come first, though the others are ready again.
    reactor.doIteration(0)
    assert len(heard) == MANY


def test_a_turn_ends_where_sockets_have_much_to_say(
    reactor: Any, heard: Counter[int], cpu: _Cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "HEARING_SECONDS", 1.0)
    cpu.each = 1 / 30
    assert [in_a_turn(reactor, heard) for _ in range(6)] == [32] * 6
    assert len(heard) == 6 * 32, "the next turn goes on with the others"
    cpu.each = 1.0
    assert [in_a_turn(reactor, heard) for _ in range(8)] == [FEW_SOCKETS] * 8
    assert len(heard) == SOCKETS_AT_ONCE
    cpu.each = 0.0
    assert in_a_turn(reactor, heard) == SOCKETS_AT_ONCE
    assert len(heard) == MANY


def test_a_turn_ends_after_one_socket_that_took_long(
    reactor: Any, heard: Counter[int], cpu: _Cpu
) -> None:
    cpu.long = 0.1
    assert [in_a_turn(reactor, heard) for _ in range(5)] == [1] * 5
    assert len(heard) == 5, "the next turn goes on with the others"
    cpu.long = 0.02
    assert [in_a_turn(reactor, heard) for _ in range(5)] == [3] * 5
    cpu.long = 0.0
    in_a_turn(reactor, heard)
    assert len(heard) == SOCKETS_AT_ONCE


def test_a_socket_that_was_closed_before_its_turn_is_not_heard(
    reactor: Any, heard: Counter[int], cpu: _Cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is another one that has its number now."""
    monkeypatch.setattr(turns, "HEARING_SECONDS", 1.0)
    cpu.each = 1.0
    assert in_a_turn(reactor, heard) == FEW_SOCKETS
    later = [one for one in reactor.getReaders() if isinstance(one, _Reader)]
    later = [one for one in later if not heard[one.fileno()]]
    for reader in later:
        reactor.removeReader(reader)
    others: Counter[int] = Counter()
    for reader in later:
        reactor.addReader(_Namesake(reactor, others, reader))
    cpu.each = 0.0
    assert in_a_turn(reactor, heard) == 0
    assert not others
    in_a_turn(reactor, heard)
    assert others


def test_it_rests_until_the_next_turn_may_begin(
    reactor: Any, heard: Counter[int], cpu: _Cpu
) -> None:
    in_a_turn(reactor, heard)
    reactor.rest(0.25)
    cpu.slept += 0.125  # the turn itself took so long
    assert in_a_turn(reactor, heard, None) == SOCKETS_AT_ONCE
    assert cpu.slept == 0.25
    in_a_turn(reactor, heard, None)
    assert cpu.slept == 0.25, "it rests once"


def test_it_does_not_rest_while_a_call_is_due(reactor: Any, heard: Counter[int], cpu: _Cpu) -> None:
    in_a_turn(reactor, heard)
    reactor.rest(0.25)
    in_a_turn(reactor, heard, 0)
    assert cpu.slept == 0
    in_a_turn(reactor, heard, 0.125)
    assert cpu.slept == 0.125


def test_it_does_not_rest_while_sockets_wait_for_their_share(
    reactor: Any, heard: Counter[int], cpu: _Cpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "HEARING_SECONDS", 1.0)
    cpu.each = 1.0
    in_a_turn(reactor, heard)
    reactor.rest(0.25)
    in_a_turn(reactor, heard, None)
    assert cpu.slept == 0


def test_of_two_that_bind_an_address_at_the_same_time_the_second_is_told_that_it_is_taken(
    reactor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Late(socket.socket):
        def listen(self, *_: int) -> None:
            other.listen()
            super().listen()

    with socket.socket() as other, Late() as late:
        for one in (other, late):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        monkeypatch.setattr(Port, "createInternetSocket", lambda _: late)
        with pytest.raises(CannotListenError) as caught:
            reactor.listenTCP(other.getsockname()[1], ServerFactory(), interface="127.0.0.1")
    assert caught.value.socketError.errno == errno.EADDRINUSE


def test_nobody_can_connect_where_nobody_listens(
    reactor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel lets it listen, and not watch the port."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = free.getsockname()
    monkeypatch.setattr(TurnReactor, "addReader", full)
    with pytest.raises(CannotListenError) as caught:
        reactor.listenTCP(address[1], ServerFactory(), interface="127.0.0.1")
    assert caught.value.socketError.errno == errno.ENOSPC
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_a_process_that_cannot_be_heard_does_not_run(
    reactor: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It would keep the data folder that the next try is to open."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files = Path("/proc/self/fd")
    open_before = sorted(files.iterdir())
    monkeypatch.setattr(reactor, "addReader", refuse)
    command = [sys.executable, "-c", "import time; time.sleep(3600)", str(tmp_path)]
    with pytest.raises(OSError, match="No space"):
        reactor.spawnProcess(ProcessProtocol(), command[0], command, os.environ, childFDs={1: "r"})
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(FileNotFoundError, ProcessLookupError):  # others end meanwhile
            assert os.fsencode(tmp_path) not in file.read_bytes()
    assert sorted(files.iterdir()) == open_before
