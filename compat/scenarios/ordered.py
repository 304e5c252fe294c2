"""Messages in order, and the locks that keep it."""

from __future__ import annotations

import json
import time

from compat.clients.driver import until
from compat.scenarios.stage import ABLE, JAVA, OFFICIAL_AND_OLD, RAW, Stage, scenario
from gateway.wire.codes import RequestCode

_RENEWED_S = 2
"""In this time a new consumer has renewed its locks for the first time (ConsumeMessageOrderlyService: after 1 s, then
every 20 s). A consumer that stops meanwhile may send the renewal after the unlocking, and keeps the lock."""

_GIVEN_BACK_S = 30
"""In this time a consumer that stops has given back its locks. A lock that is not given back lasts for 60 s."""


@scenario(*OFFICIAL_AND_OLD)
def one_after_the_other(stage: Stage) -> None:
    """An orderly consumer gets the messages of a queue in their order."""
    topic = stage.topic()
    java = stage.java()
    java.create_topic(topic, 1)
    for number in range(10):
        java.send(topic, b"%d" % number, queue=0)
    consumer = stage.official().consume(topic, stage.topic("g"), orderly=True)
    stage.see("order", [message.body for message in consumer.wait_for(10)])


@scenario(*ABLE)
def a_refused_one_holds_the_rest(stage: Stage) -> None:
    """A message that an orderly consumer refuses is redelivered before the next ones."""
    topic = stage.topic()
    stage.java().create_topic(topic, 1)
    client = stage.able()
    consumer = client.consume(topic, stage.topic("g"), orderly=True, fail_first=1)
    for number in range(3):
        client.send(topic, b"%d" % number, queue=0)
    messages = consumer.wait_until(lambda all_: sum(one.reconsume_times > 0 for one in all_) >= 3)
    stage.see("order", [one.body for one in messages if one.reconsume_times])


def lock_body(topic: str, group: str, client: str) -> bytes:
    """Return the body of a request to lock or unlock a topic's first queue for a client."""
    queue = {"brokerName": "broker-a", "queueId": 0, "topic": topic}
    return json.dumps({"consumerGroup": group, "clientId": client, "mqSet": [queue]}).encode()


@scenario(*JAVA)
def the_next_takes_over(stage: Stage) -> None:
    """When an orderly consumer stops, its locks go to the next one."""
    topic, group = stage.topic(), stage.topic("g")
    client = stage.java()
    client.create_topic(topic, 1)
    first = client.consume(topic, group, orderly=True)
    client.send(topic, b"1", queue=0)
    first.wait_for(1)
    time.sleep(_RENEWED_S)
    first.close()
    raw, body = stage.raw(), lock_body(topic, group, "another")

    def is_free() -> bool:
        return bool(json.loads(raw.ask(RequestCode.LOCK_BATCH_MQ, body=body).body)["lockOKMQSet"])

    until(is_free, "the lock, before it expires", _GIVEN_BACK_S)
    raw.ask(RequestCode.UNLOCK_BATCH_MQ, body=body)
    second = client.consume(topic, group, orderly=True)
    client.send(topic, b"2", queue=0)
    # The first message is redelivered if its consumer had not committed it yet.
    second.wait_until(lambda all_: all_[-1:] != [] and all_[-1].body == b"2")
    until(lambda: second.assigned(topic) == {0}, "the queue")


@scenario(*RAW)
def locks(stage: Stage) -> None:
    """A queue is locked for one client of a group at a time."""
    topic, group = stage.topic(), stage.topic("g")
    raw = stage.raw()
    raw.send(topic)

    def wish(client: str) -> bytes:
        return lock_body(topic, group, client)

    stage.ask("first", raw, RequestCode.LOCK_BATCH_MQ, body=wish("one"))
    stage.ask("again", raw, RequestCode.LOCK_BATCH_MQ, body=wish("one"))
    stage.ask("another", raw, RequestCode.LOCK_BATCH_MQ, body=wish("two"))
    stage.ask("unlock by another", raw, RequestCode.UNLOCK_BATCH_MQ, body=wish("two"))
    stage.ask("still locked", raw, RequestCode.LOCK_BATCH_MQ, body=wish("two"))
    stage.ask("unlock", raw, RequestCode.UNLOCK_BATCH_MQ, body=wish("one"))
    stage.ask("free", raw, RequestCode.LOCK_BATCH_MQ, body=wish("two"))
