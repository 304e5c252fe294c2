"""Every request may be oneway, and then gets no response, whatever its outcome."""

from __future__ import annotations

import pytest

from gateway.wire.codes import RequestCode
from tests.gateway.memory import MemoryClient, MemoryGateway


@pytest.mark.parametrize("code", list(RequestCode), ids=lambda code: code.name)
def test_no_answer_even_to_what_is_wrong(
    gateway: MemoryGateway, client: MemoryClient, code: RequestCode
) -> None:
    fields = {"topic": "orders", "queueId": "0", "consumerGroup": "g"}
    for body in (b"", b"{}", b"no such thing"):
        client.send(code, {}, body, oneway=True)
        client.send(code, fields, body, oneway=True)
    gateway.advance(60_000)
    assert [one for one in client.take() if one.is_response] == []
    assert client.ask(RequestCode.GET_BROKER_CLUSTER_INFO).code == 0


def test_what_is_right_is_done(client: MemoryClient) -> None:
    client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields(), b"hello", oneway=True)
    pull = client.send(RequestCode.PULL_MESSAGE, client.pull_request(), oneway=True)
    assert client.answer(pull) is None
    assert [message.body for message in client.pull()] == [b"hello"]
