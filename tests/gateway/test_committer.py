"""How a commit waits for more messages of senders that are likely to send again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gateway.pace import OFTEN
from gateway.wire.codes import RequestCode
from tests.gateway.conftest import MakeGateway
from tests.gateway.memory import MemoryClient, MemoryGateway

WAIT_MS = 5
SENDERS = 8


@pytest.fixture
def gateway(make_gateway: MakeGateway) -> MemoryGateway:
    """A gateway whose commits wait for more senders."""
    return make_gateway(commit_wait=timedelta(milliseconds=WAIT_MS))


def send(client: MemoryClient) -> int:
    """Send a message without waiting for the response, and return the request's number."""
    ext = {"a": "g", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
    return client.send(RequestCode.SEND_MESSAGE_V2, ext, b"body")


def answered(client: MemoryClient, requests: list[int]) -> int:
    """Count the requests that have their response."""
    return sum(client.answer(request) is not None for request in requests)


def test_a_single_sender_never_waits(client: MemoryClient) -> None:
    for _ in range(3):
        assert answered(client, [send(client)]) == 1


def test_a_commit_waits_for_those_that_were_answered_together(client: MemoryClient) -> None:
    assert answered(client, [send(client) for _ in range(SENDERS)]) == SENDERS
    back = [send(client) for _ in range(SENDERS - 1)]
    assert answered(client, back) == 0
    back.append(send(client))
    assert answered(client, back) == SENDERS


def test_they_may_be_waited_for_less_than_a_millisecond(make_gateway: MakeGateway) -> None:
    client = make_gateway(commit_wait="0.5ms").connect()
    assert answered(client, [send(client) for _ in range(SENDERS)]) == SENDERS
    assert answered(client, [send(client)]) == 0


def test_but_not_for_long(gateway: MemoryGateway, client: MemoryClient) -> None:
    assert answered(client, [send(client) for _ in range(SENDERS)]) == SENDERS
    back = [send(client) for _ in range(2)]
    gateway.advance(WAIT_MS - 1)
    assert answered(client, back) == 0
    gateway.advance(1)
    assert answered(client, back) == 2


def test_those_that_stay_away_are_forgotten(gateway: MemoryGateway, client: MemoryClient) -> None:
    assert answered(client, [send(client) for _ in range(SENDERS)]) == SENDERS
    for _ in range(SENDERS):
        send(client)
        gateway.advance(WAIT_MS)
    assert answered(client, [send(client)]) == 1


def test_sends_that_come_often_and_evenly_let_the_reactor_rest(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    for _ in range(3_000):
        for _ in range(5):
            send(client)
        gateway.advance(1)
        if gateway.reactor.rests:
            break
    assert gateway.reactor.rests == pytest.approx(5 / OFTEN)
    assert answered(client, [send(client)]) == 1, "and nobody waits for others"


def test_what_is_due_does_not_wait(gateway: MemoryGateway, client: MemoryClient) -> None:
    client.send_message(TIMER_DELAY_MS="100")
    assert answered(client, [send(client) for _ in range(SENDERS)]) == SENDERS
    gateway.advance(98)
    late = send(client)
    assert answered(client, [late]) == 0
    gateway.advance(2)
    assert answered(client, [late]) == 1
    assert len(client.pull()) == SENDERS + 2


def test_who_waits_is_answered_before_the_end(gateway: MemoryGateway, client: MemoryClient) -> None:
    assert answered(client, [send(client) for _ in range(SENDERS)]) == SENDERS
    last = send(client)
    gateway.service.stop()
    assert answered(client, [last]) == 1
    gateway.start()
    assert len(gateway.connect().pull()) == SENDERS + 1
