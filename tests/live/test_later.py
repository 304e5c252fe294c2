"""Reschedule, debounce and pause with the official Java client, and a kill -9 in between."""

from __future__ import annotations

import time

import pytest

from compat.clients.driver import ClientFailure
from gateway.client import look_up, paused_topics, set_paused
from gateway.intake import terms_of
from storage import Store, find_faults
from tests.live.conftest import JavaMaker
from tests.live.process import GatewayProcess

pytestmark = pytest.mark.live

HOUR_MS = 3_600_000


def test_what_was_asked_before_a_crash_holds_after_it(
    java_client: JavaMaker, own_gateway: GatewayProcess
) -> None:
    java = java_client(own_gateway)
    for topic in ("moved", "held-up"):
        java.create_topic(topic)
    consumer = java.consume("moved", "G-moved")
    waiting = java.consume("held-up", "G-held-up")

    moved = java.send("moved", b"moved", delay_time_ms=HOUR_MS)
    taken = java.send("moved", b"taken", delay_time_ms=HOUR_MS)
    assert moved.recall_handle is not None
    assert taken.recall_handle is not None
    due_ms = time.time_ns() // 1_000_000 + 6_000
    for sent, new_ms in ((moved, due_ms), (taken, due_ms + 2 * HOUR_MS)):
        order = java.send(
            "moved",
            b"order",
            properties={"TIDEGATE_RESCHEDULE": sent.msg_id},
            deliver_time_ms=new_ms,
        )
        assert order.status == "SEND_OK"
    with pytest.raises(ClientFailure, match="no such message"):
        java.send(
            "moved", b"order", properties={"TIDEGATE_RESCHEDULE": "none"}, delay_time_ms=1_000
        )
    for number in range(3):
        java.send(
            "moved",
            b"debounced %d" % number,
            keys="cart-1",
            properties={"TIDEGATE_DEBOUNCE": "cart-1"},
            deliver_time_ms=due_ms,
        )
    with own_gateway.client() as client:
        assert set_paused(client, "held-up", paused=True)
        java.send("held-up", b"held up", delay_time_ms=100)

    own_gateway.kill()
    own_gateway.start()

    assert java.recall("moved", taken.recall_handle) == taken.msg_id
    received = consumer.wait_for(2)
    assert sorted(message.body or b"" for message in received) == [b"debounced 2", b"moved"]
    assert all((message.received_ms or 0) >= due_ms for message in received)
    with own_gateway.client() as client:
        [found] = look_up(client, id=moved.msg_id, state="fired").messages
        assert found.due_ms == due_ms < found.due_before_ms
        states = [one.state for one in look_up(client, key="cart-1", state="any").messages]
        assert sorted(states) == ["aborted", "aborted", "fired"]
        # Its message was due long before the others.
        [paused] = paused_topics(client)
        assert (paused.topic, paused.waiting) == ("held-up", 1)
        assert set_paused(client, "held-up", paused=False)
    assert [message.body for message in waiting.wait_for(1)] == [b"held up"]
    assert len(consumer.wait_for(2)) == 2
    java.close()
    assert own_gateway.terminate() == 0
    store = Store(own_gateway.data, terms_of)
    try:
        assert find_faults(store) == []
    finally:
        store.close()
