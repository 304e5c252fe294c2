"""Requests of the gateway to its clients: numbers, responses, deadlines, lost connections."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.connections import outgoing as module
from gateway.connections.outgoing import Outgoing
from gateway.router import RequestError
from gateway.wire.commands import Command, decode_command, encode_response
from gateway.wire.frames import FrameBuffer
from tests.gateway.memory import MemoryClient, MemoryGateway, TurnReactor

CODE = 307


class FakePeer:
    """A connection that keeps the commands sent to it."""

    def __init__(self) -> None:
        self.host = bytes(8)
        self.address = "1.2.3.4:5"
        self.source = "1.2.3.4"
        self.open = True
        self.congested = False
        self.sent: list[Command] = []

    def send(self, frame: bytes) -> None:
        """Keep a frame."""
        self.sent += [decode_command(one) for one in FrameBuffer().feed(frame)]


def answer_to(request: Command) -> Command:
    """Return a client's response to the request."""
    (frame,) = FrameBuffer().feed(encode_response(request.opaque, 0, body=b"yes"))
    return decode_command(frame)


@pytest.fixture
def reactor() -> Any:
    """A reactor whose time stands still."""
    return TurnReactor()  # type: ignore[no-untyped-call]


@pytest.fixture
def out(reactor: Any) -> Outgoing:
    """Outgoing requests on it."""
    return Outgoing(reactor)


class Asked:
    """A request with the responses it got."""

    def __init__(self, out: Outgoing, peer: FakePeer, timeout: float = 10) -> None:
        self.answers: list[Command | None] = []
        out.request(peer, CODE, {"a": "b"}, b"body", timeout, self.answers.append)
        self.command = peer.sent[-1]


def test_a_request_is_an_ordinary_command_with_a_number_of_its_own(out: Outgoing) -> None:
    peer = FakePeer()
    first, second = Asked(out, peer).command, Asked(out, peer).command

    assert (first.code, first.ext(), first.body) == (CODE, {"a": "b"}, b"body")
    assert not first.is_response
    assert not first.is_oneway
    assert first.opaque != second.opaque


def test_oneway_requests_say_so_and_wait_for_nothing(out: Outgoing, reactor: Any) -> None:
    peer = FakePeer()
    out.oneway(peer, 40, {"consumerGroup": "g"})

    assert peer.sent[0].is_oneway
    assert peer.sent[0].ext() == {"consumerGroup": "g"}
    assert reactor.getDelayedCalls() == []


def test_answers_are_matched_by_number_in_any_order(out: Outgoing) -> None:
    peer = FakePeer()
    first, second = Asked(out, peer), Asked(out, peer)

    out.answered(answer_to(second.command), peer)
    assert first.answers == []
    assert [one.body for one in second.answers if one] == [b"yes"]

    out.answered(answer_to(first.command), peer)
    assert len(first.answers) == 1


def test_only_the_client_that_was_asked_can_answer(out: Outgoing) -> None:
    peer = FakePeer()
    asked = Asked(out, peer)

    out.answered(answer_to(asked.command), FakePeer())

    assert asked.answers == []


def test_a_request_without_an_answer_ends_at_its_deadline(out: Outgoing, reactor: Any) -> None:
    peer = FakePeer()
    asked = Asked(out, peer, timeout=3)

    reactor.advance(2.9)
    assert asked.answers == []
    reactor.advance(0.2)
    assert asked.answers == [None]

    out.answered(answer_to(asked.command), peer)
    assert asked.answers == [None], "a late answer counts for nothing"


def test_an_answer_ends_the_wait(out: Outgoing, reactor: Any) -> None:
    peer = FakePeer()
    asked = Asked(out, peer)
    out.answered(answer_to(asked.command), peer)
    out.answered(answer_to(asked.command), peer)
    reactor.advance(100)

    assert len(asked.answers) == 1
    assert reactor.getDelayedCalls() == []


def test_nothing_is_kept_of_clients_that_have_answered(out: Outgoing) -> None:
    for _ in range(3):
        peer = FakePeer()
        first, second = Asked(out, peer), Asked(out, peer)
        out.answered(answer_to(first.command), peer)
        assert list(out._waiting) == [peer]
        out.answered(answer_to(second.command), peer)
        assert not out._waiting


def test_a_lost_connection_ends_all_its_requests_at_once(out: Outgoing, reactor: Any) -> None:
    peer, other = FakePeer(), FakePeer()
    lost, also_lost, kept = Asked(out, peer), Asked(out, peer), Asked(out, other)

    out.disconnected(peer)

    assert lost.answers == also_lost.answers == [None]
    assert kept.answers == []
    out.stop()
    assert kept.answers == [None]
    assert reactor.getDelayedCalls() == []


def test_asking_a_client_that_is_gone_fails_but_not_before_the_call_returns(
    out: Outgoing, reactor: Any
) -> None:
    peer = FakePeer()
    peer.open = False
    asked = Asked(out, peer)

    assert asked.answers == []
    reactor.advance(0)
    assert asked.answers == [None]


def test_numbers_begin_again_but_not_with_one_that_is_in_use(
    out: Outgoing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_OPAQUE", 2)
    peer = FakePeer()
    first = Asked(out, peer)
    second = Asked(out, peer)
    out.answered(answer_to(second.command), peer)
    third = Asked(out, peer)

    assert (first.command.opaque, third.command.opaque) == (1, 2)


def test_an_error_in_handling_an_answer_harms_nobody_else(
    gateway: MemoryGateway, client: MemoryClient, failures: list[str]
) -> None:
    client.heartbeat("one")
    group = gateway.service.broker.clients.consumer_group("consumers")
    assert group is not None

    def explode(answer: Command | None) -> None:
        raise RuntimeError("boom")

    out = gateway.service.broker.outgoing
    out.request(group.members["one"].peer, CODE, None, b"", 1, explode)
    (request,) = [one for one in client.requests() if one.code == CODE]
    client.raw(encode_response(request.opaque, 0))

    (logged,) = failures
    assert "RuntimeError: boom" in logged
    failures.clear()
    assert not client.closed


def test_more_bytes_than_may_wait_for_answers_are_refused(reactor: Any) -> None:
    out, peer = Outgoing(reactor, most_bytes=13), FakePeer()
    first, second = Asked(out, peer), Asked(out, peer)  # five bytes each
    with pytest.raises(RequestError, match="bytes of requests to clients = 13 is reached"):
        Asked(out, peer)
    out.answered(answer_to(first.command), peer)
    Asked(out, peer)
    reactor.advance(10)
    assert second.answers == [None]
    # One that is alone may have more, and so may what no answer is waited for.
    out.request(peer, CODE, None, b"x" * 14, 10, lambda _: None)
    out.oneway(peer, CODE, None, b"x" * 14)
