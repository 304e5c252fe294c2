"""Responses to a client that belong together are written by one call, before any other work."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from twisted.internet.error import ConnectionLost

from gateway.connections.connection import MOST_UNWRITTEN_BYTES
from gateway.connections.unwritten import Unwritten
from gateway.wire.codes import RequestCode
from storage import Growth
from tests.gateway.memory import MemoryClient, MemoryGateway, TurnReactor


def send(client: MemoryClient) -> int:
    """Send a message without waiting for the response, and return the request's number."""
    return client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields(), b"body")


@pytest.fixture
def left(gateway: MemoryGateway, writes: list[bytes], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record how many writes were made whenever the store looks for a due checkpoint."""
    left: list[int] = []

    def checkpoint() -> bool:
        left.append(len(writes))
        return False

    monkeypatch.setattr(gateway.store, "checkpoint_if_due", checkpoint)
    return left


def test_the_answers_of_a_commit_are_written_at_once(
    gateway: MemoryGateway, client: MemoryClient, writes: list[bytes]
) -> None:
    # What was written before does not count as gathered.
    client.send_message(body=bytes(MOST_UNWRITTEN_BYTES))
    assert len(client.pull()) == 1
    writes.clear()
    requests = [send(client) for _ in range(5)]
    assert not writes
    gateway.reactor.turn()
    assert len(writes) == 1
    assert all(client.answer(request) is not None for request in requests)


def test_they_have_left_before_a_checkpoint(
    gateway: MemoryGateway, client: MemoryClient, left: list[int]
) -> None:
    send(client)
    gateway.reactor.turn()
    assert left == [1]


def test_and_before_one_between_commits_that_wake_somebody_who_sends(
    gateway: MemoryGateway,
    client: MemoryClient,
    left: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def grown(growth: Growth) -> None:
        if len(left) < 3:
            send(client)

    monkeypatch.setattr(gateway.service.broker.parked, "grown", grown)
    send(client)
    gateway.settle()
    # The second and third commit are followed by a look before they wake somebody, and by one afterwards.
    assert left == [1, 2, 2, 3, 3]


def test_what_is_answered_without_a_commit_is_written_with_the_last_frame_that_came(
    client: MemoryClient, writes: list[bytes]
) -> None:
    client.send_message()
    client.ask_pull()  # the first pull creates the group
    writes.clear()
    asked = [client.send(RequestCode.GET_MAX_OFFSET, {"topic": "orders", "queueId": "0"})]
    assert len(writes) == 1
    asked.append(client.send(RequestCode.PULL_MESSAGE, client.pull_request()))
    assert len(writes) == 2
    assert all(client.answer(request) is not None for request in asked)


def test_what_a_client_does_not_take_at_once_comes_later_in_its_order(
    client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.send_message()
    tried: list[int] = []

    def take_little(data: bytes) -> int:
        tried.append(len(data))
        client.transport.write(data[:10])
        return 10

    monkeypatch.setattr(client.transport, "writeSomeData", take_little)
    # The second response is left to the transport. By then all of it is written, so the third is tried directly again.
    for tries in (1, 1, 2):
        client.send_message()
        assert len(tried) == tries


def test_much_goes_straight_to_the_socket_as_little_does(
    client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it got that much at once, the transport would treat the client as one that does not read."""
    client.send_message(body="x" * 2 * MOST_UNWRITTEN_BYTES)
    taken: list[int] = []
    take: Callable[[bytes], int | Exception] = client.transport.writeSomeData

    def note(data: bytes) -> int | Exception:
        taken.append(len(data))
        return take(data)

    monkeypatch.setattr(client.transport, "writeSomeData", note)
    assert len(client.pull()) == 1
    assert max(taken) > 2 * MOST_UNWRITTEN_BYTES


def test_what_cannot_be_written_is_left_to_the_transport(
    client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.send_message()
    monkeypatch.setattr(client.transport, "writeSomeData", lambda data: ConnectionLost())
    client.send_message()


class Connection:
    """Counts how often it has to write."""

    def __init__(self) -> None:
        self.flushed = 0

    def flush(self) -> None:
        self.flushed += 1


def test_outside_of_a_gathering_the_turn_ends_first() -> None:
    reactor = TurnReactor()  # type: ignore[no-untyped-call]
    unwritten, connection = Unwritten(reactor), Connection()
    unwritten.add(connection)
    assert connection.flushed == 0
    reactor.turn()
    assert connection.flushed == 1


def test_what_comes_after_an_inner_gathering_is_written_too() -> None:
    reactor = TurnReactor()  # type: ignore[no-untyped-call]
    unwritten, first, second = Unwritten(reactor), Connection(), Connection()
    with unwritten:
        with unwritten:
            unwritten.add(first)
        assert first.flushed == 1
        unwritten.add(second)
    assert second.flushed == 1
    reactor.turn()
    assert (first.flushed, second.flushed) == (1, 1)


def test_an_error_within_keeps_nothing_back() -> None:
    reactor = TurnReactor()  # type: ignore[no-untyped-call]
    unwritten, connection = Unwritten(reactor), Connection()

    def fail() -> None:
        with unwritten:
            unwritten.add(connection)
            raise ValueError("within")

    with pytest.raises(ValueError, match="within"):
        fail()
    assert connection.flushed == 1
