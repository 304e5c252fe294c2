"""The response codes that docs/clients.md lists for sends and recalls: each is returned in its case."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.wire.codes import RequestCode
from tests.gateway.conftest import MakeGateway
from tests.gateway.memory import MemoryGateway
from tests.gateway.tools import create_topic, ok

NOT_TRIED = {1500}
"""Returned while a gateway stops: see tests/gateway/test_lifecycle.py."""


def test_each_code_is_answered(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(max_delay="1d")
    client = gateway.connect()
    ok(create_topic(client, "few", attributes="+max.held.messages=1"))
    ok(create_topic(client, "slow", attributes="+max.send.rate=1"))
    later = {"TIMER_DELAY_SEC": "60"}
    handle = ok(client.send_message(properties=later)).ext()["recallHandle"]
    ok(client.send_message("few", properties=later))
    ok(client.send_message("slow"))
    codes = {
        0: client.recall("orders", handle).code,
        1: client.send_message("few", properties=later).code,
        2: client.send_message("slow").code,
        3: client.ask(4_711).code,
        13: client.send_message(TIMER_DELAY_SEC="86401").code,
        14: without_room(gateway),
        16: client.send_message("SCHEDULE_TOPIC_XXXX").code,
        17: client.send_message("new", fields={"template": "none"}).code,
        29: client.send_message(fields={"queue": 99}).code,
        604: client.recall("orders", handle).code,
    }
    assert codes == {code: code for code in codes}
    text = (Path(__file__).parents[2] / "docs" / "clients.md").read_text()
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert listed == {*codes, *NOT_TRIED}


def without_room(gateway: MemoryGateway) -> int:
    """Return the response code of a send while the disk is nearly full."""
    client = gateway.connect()
    ok(client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"disk_reserve=64TiB"))
    gateway.advance(2_000)
    code = client.send_message().code
    ok(client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"disk_reserve=0"))
    gateway.advance(2_000)
    return code
