"""Messages for later: their sends, the answers, and what arrives."""

from __future__ import annotations

import time

from compat.clients.driver import Received
from compat.scenarios.stage import ABLE, JAVA5, OFFICIAL, OFFICIAL_AND_OLD, RAW, Stage, scenario

TOO_FAR_S = 3 * 365 * 24 * 60 * 60
DAY_S = 24 * 60 * 60


def arrived(messages: list[Received]) -> list[dict[str, object]]:
    """Return what a consumer's user sees of each message, sorted by body: they may arrive in any order."""
    return [
        {
            "body": message.body,
            "tags": message.tags,
            "keys": message.keys,
            "properties": {
                name: value
                for name, value in message.properties.items()
                if name not in ("MIN_OFFSET", "MAX_OFFSET")  # the queue's state at that moment
            },
            "reconsume times": message.reconsume_times,
            "sys flag": message.sys_flag,
        }
        for message in sorted(messages, key=lambda each: each.body or b"")
    ]


@scenario(*OFFICIAL_AND_OLD)
def levels(stage: Stage) -> None:
    """A message with a delay level arrives after its delay, and keeps the level property."""
    topic = stage.topic()
    stage.java().create_topic(topic, 1)
    client = stage.official()
    begin = time.time_ns() // 1_000_000
    stage.see("status", client.send(topic, b"level 1", tags="t", keys="k", level=1).status)
    stage.see("highest", client.send(topic, b"level 18", level=18).status)
    stage.see("beyond", client.send(topic, b"level 99", level=99).status)
    messages = client.consume(topic, stage.topic("g")).wait_for(1)
    stage.see("too early", messages[0].stored_ms < begin + 1_000)
    stage.see("arrived", arrived(messages))


@scenario(*OFFICIAL_AND_OLD)
def times(stage: Stage) -> None:
    """A message for a time arrives at that time, whichever property asked for it."""
    topic = stage.topic()
    stage.java().create_topic(topic, 1)
    client = stage.official()
    begin = time.time_ns() // 1_000_000
    stage.see("seconds", client.send(topic, b"seconds", delay_time_sec=1).status)
    stage.see("milliseconds", client.send(topic, b"milliseconds", delay_time_ms=1_200).status)
    due = time.time_ns() // 1_000_000 + 3_000  # a busy machine might send it after a nearer time
    stage.see("an instant", client.send(topic, b"an instant", deliver_time_ms=due).status)
    messages = client.consume(topic, stage.topic("g")).wait_for(3)
    dues = {b"seconds": begin + 1_000, b"milliseconds": begin + 1_200, b"an instant": due}
    early = [one.body for one in messages if one.stored_ms < dues[one.body or b""] - 1_000]
    stage.see("too early", early)  # RocketMQ counts by the second
    stage.see("arrived", arrived(messages))


@scenario(*ABLE)
def the_past(stage: Stage) -> None:
    """A message whose time has passed at the send arrives at once, and cannot be recalled."""
    topic = stage.topic()
    stage.java().create_topic(topic, 1)
    client = stage.able()
    stage.see("sent", client.send(topic, b"past", deliver_time_ms=1_000))
    stage.see("level 0", client.send(topic, b"zero", level=0))
    stage.raw().wait_for(topic, 2)
    stage.see("stored", client.puller(stage.topic("g")).pull(topic, 0, 0))


@scenario(*OFFICIAL)
def too_far(stage: Stage) -> None:
    """A message beyond the longest delay is refused."""
    topic = stage.topic()
    # As many queues as of a new topic: the C++ client uses the route of new ones if it waits 5 s for this one's. Of
    # a queue that there is not, it is told that instead.
    stage.java().create_topic(topic, 4)
    client = stage.official()
    stage.attempt("three years", lambda: client.send(topic, delay_time_sec=TOO_FAR_S))
    stage.attempt("two days", lambda: client.send(topic, delay_time_sec=2 * DAY_S).status)


@scenario(*RAW)
def answers_to_delayed_sends(stage: Stage) -> None:
    """The answer names the real queue; only messages with a time have a recall handle."""
    topic = stage.topic()
    raw = stage.raw()
    for step, properties in (
        ("level", "DELAY\x015\x02"),
        ("level 0", "DELAY\x010\x02"),
        ("negative level", "DELAY\x01-1\x02"),
        ("empty level", "DELAY\x01\x02"),
        ("seconds", "TIMER_DELAY_SEC\x0160\x02"),
        ("seconds in Arabic digits", "TIMER_DELAY_SEC\x01\u0666\u0660\x02"),
        ("negative seconds", "TIMER_DELAY_SEC\x01-5\x02"),
        ("seconds before an instant", "TIMER_DELIVER_MS\x011\x02TIMER_DELAY_SEC\x0160\x02"),
        ("milliseconds before an instant", "TIMER_DELIVER_MS\x011\x02TIMER_DELAY_MS\x0160000\x02"),
        ("a level before a time", "TIMER_DELAY_SEC\x0160\x02DELAY\x014\x02"),
    ):
        stage.send(step, raw, topic, properties=properties)


@scenario(*RAW)
def times_that_are_none(stage: Stage) -> None:
    """Levels and times that are not numbers are refused, each with its code."""
    topic = stage.topic()
    raw = stage.raw()
    for name in ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"):
        stage.send(name, raw, topic, properties=f"{name}\x01soon\x02")


@scenario(*JAVA5)
def an_order_of_times(stage: Stage) -> None:
    """Messages for different times arrive in the order of their times."""
    topic = stage.topic()
    client = stage.java()
    client.create_topic(topic, 1)
    client.send(topic, b"0")  # the client connects with its first send
    now = time.time_ns() // 1_000_000
    for seconds in (6, 4, 5):
        client.send(topic, b"%d" % seconds, deliver_time_ms=now + seconds * 1_000)
    messages = client.consume(topic, stage.topic("g")).wait_for(4)
    # Sorted by queue offset: a consumer's threads hand messages over in any order.
    messages.sort(key=lambda message: message.queue_offset)
    stage.see("order", [message.body for message in messages])
