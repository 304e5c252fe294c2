"""Sending what was exported, to servers whose answers are canned."""

from __future__ import annotations

import pytest

from gateway.client import ClientError, RemotingClient
from gateway.transfer import HeldLine, Sender
from gateway.wire.commands import Command
from tests.cli.fake import FakeGateway, success

LINE = HeldLine(topic="t", queue_id=0, due_ms=1, msg_id="A", properties={}, body=b"a")


@pytest.mark.parametrize("address", ["broker", "broker:", "broker:x", "broker:" + "9" * 5_000])
def test_a_route_to_no_address_is_a_wrong_answer(address: str) -> None:
    route = {
        "queueDatas": [{"brokerName": "b", "writeQueueNums": 4}],
        "brokerDatas": [{"brokerName": "b", "brokerAddrs": {"0": address}}],
    }

    def answer(command: Command) -> bytes:
        return success(command, route)

    with (
        FakeGateway(answer) as gateway,
        Sender(gateway.address, RemotingClient) as sender,
        pytest.raises(ClientError, match=r"answer is not understood: .* is not HOST:PORT"),
    ):
        sender.send(LINE)
