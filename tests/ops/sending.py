"""Sends to a gateway in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.wire.codes import RequestCode
from gateway.wire.properties import join
from tests.live.process import GatewayProcess

TOPIC = "transfer"


def send(
    gateway: GatewayProcess,
    message_id: str,
    due_ms: int,
    fields: Mapping[str, str] | None = None,
    body: bytes = b"x",
    **properties: str,
) -> dict[str, str]:
    """Send a message for later, with other fields of the send if given, and return the fields of the response."""
    text = join({"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": message_id, **properties})
    ext = {"a": "p", "b": TOPIC, "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "7", "h": "9"}
    ext |= {"i": text, "j": "0", "k": "false", "m": "false"} | dict(fields or {})
    with gateway.client() as client:
        answer = client.ask(RequestCode.SEND_MESSAGE_V2, ext, body)
        assert answer.code == 0, answer.remark
        return answer.ext()
