"""Recalls of messages for later."""

from __future__ import annotations

import time
from base64 import urlsafe_b64encode

from compat.scenarios.stage import JAVA5, RAW, Stage, scenario
from gateway.wire.codes import RequestCode


@scenario(*JAVA5)
def by_its_handle(stage: Stage) -> None:
    """A recalled message never arrives; the others do."""
    topic = stage.topic()
    client = stage.java()
    client.create_topic(topic, 1)
    kept = client.send(topic, b"kept", delay_time_ms=6_000)
    taken = client.send(topic, b"taken", delay_time_ms=5_500)  # long, for busy machines
    stage.see("handles", [bool(kept.recall_handle), bool(taken.recall_handle)])
    assert taken.recall_handle is not None
    handle = taken.recall_handle
    stage.attempt("recall", lambda: client.recall(topic, handle) == taken.msg_id)
    stage.attempt("again", lambda: client.recall(topic, handle) == taken.msg_id)
    messages = client.consume(topic, stage.topic("g")).wait_for(1)
    stage.see("arrived", [message.body for message in messages])
    stage.see("stored", stage.raw().max_offset(topic))  # the recalled one was due before


@scenario(*RAW)
def what_is_no_handle(stage: Stage) -> None:
    """Each way in which a handle can be wrong has its own answer."""
    topic = stage.topic()
    raw = stage.raw()
    raw.send(topic)
    due = time.time_ns() // 1_000_000 + 60_000

    def ask(step: str, handle: str, name: str = topic) -> None:
        ext = {"producerGroup": "g", "topic": name, "recallHandle": handle}
        stage.ask(step, raw, RequestCode.RECALL_MESSAGE, ext)

    def handle(text: str) -> str:
        return urlsafe_b64encode(text.encode()).decode()

    ask("no topic", handle(f"v1 {topic} broker-a {due} id"), topic + "-none")
    ask("no base64", "%%%")
    ask("another version", handle(f"v2 {topic} broker-a {due} id"))
    ask("too short", handle(f"v1 {topic} broker-a"))
    ask("another topic", handle(f"v1 other broker-a {due} id"))
    ask("another broker", handle(f"v1 {topic} broker-b {due} id"))
    ask("no time", handle(f"v1 {topic} broker-a soon id"))
    ask("the past", handle(f"v1 {topic} broker-a 1000 id"))
    ask("never sent", handle(f"v1 {topic} broker-a {due} id"))
    stage.ask("no fields", raw, RequestCode.RECALL_MESSAGE)
