"""The official Java client, in both generations, in ordinary work with a real gateway process."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from random import Random

import pytest

from compat.clients.driver import ClientFailure, Outgoing, Sent, until
from compat.clients.java import JavaClient
from gateway.cli.asking import now_ms
from tests.live.conftest import JavaMaker, bodies
from tests.live.process import GatewayProcess

pytestmark = pytest.mark.live

ASKED = "asked-ms"
"""Property in which a test stores the time that it asked for."""


def all_sent(results: list[Sent | ClientFailure]) -> list[Sent]:
    """Check that every result is a success, and return the results."""
    assert all(isinstance(result, Sent) and result.status == "SEND_OK" for result in results), (
        results
    )
    return [result for result in results if isinstance(result, Sent)]


def test_messages_for_now_arrive_as_they_were_sent(java: JavaClient, topic: str) -> None:
    java.create_topic(topic)
    consumer = java.consume(topic, f"G-{topic}")
    sent = java.send(topic, b"sync", tags="red", keys="k1 k2", properties={"colour": "blue"})
    assert sent.status == "SEND_OK"
    asynchronous = [Outgoing(topic=topic, body=b"async-%d" % n) for n in range(5)]
    all_sent(java.send_all(asynchronous, "async"))
    java.send_oneway(*(Outgoing(topic=topic, body=b"oneway-%d" % n) for n in range(5)))
    java.send_batch([Outgoing(topic=topic, body=b"batch-%d" % n) for n in range(5)])
    received = consumer.wait_for(16)
    kinds = {b"async": 5, b"oneway": 5, b"batch": 5}
    wanted = [b"sync"] + [
        b"%b-%d" % (kind, n) for kind, count in kinds.items() for n in range(count)
    ]
    assert bodies(received) == sorted(wanted)
    first = next(message for message in received if message.body == b"sync")
    assert (first.tags, first.keys, first.msg_id) == ("red", "k1 k2", sent.msg_id)
    assert first.properties["colour"] == "blue"
    assert first.queue_offset == sent.queue_offset


def test_a_topic_comes_to_be_with_its_first_message(java: JavaClient, topic: str) -> None:
    java.send(topic, b"first")
    assert bodies(java.consume(topic, f"G-{topic}").wait_for(1)) == [b"first"]


def test_every_level_is_accepted_and_the_first_two_arrive_on_time(
    java: JavaClient, topic: str
) -> None:
    java.create_topic(topic)
    consumer = java.consume(topic, f"G-{topic}")
    begun = now_ms()
    messages = [Outgoing(topic=topic, body=b"%d" % level, level=level) for level in range(1, 19)]
    all_sent(java.send_all(messages))
    received = consumer.wait_for(2)
    assert bodies(received) == [b"1", b"2"]
    delays = {b"1": 1_000, b"2": 5_000}
    for message in received:
        assert message.body is not None
        assert message.received_ms >= begun + delays[message.body]
        assert message.stored_ms >= message.born_ms + delays[message.body]
        assert message.properties["DELAY"] == message.body.decode()
        assert message.properties["REAL_TOPIC"] == topic


def test_arbitrary_times_are_kept_to_the_millisecond(java: JavaClient, topic: str) -> None:
    java.create_topic(topic)
    consumer = java.consume(topic, f"G-{topic}")
    base = now_ms()
    messages = []
    for n in range(40):
        due = base + 1_500 + 37 * n
        asked = {ASKED: str(due)}
        if java.version == "5.5.0" and n % 2:
            messages.append(
                Outgoing(topic=topic, body=b"%d" % n, deliver_time_ms=due, properties=asked)
            )
        else:
            asked["TIMER_DELIVER_MS"] = str(due)
            messages.append(Outgoing(topic=topic, body=b"%d" % n, properties=asked))
    all_sent(java.send_all(messages))
    for message in consumer.wait_for(len(messages)):
        asked_ms = int(message.properties[ASKED])
        assert message.received_ms >= asked_ms
        assert message.stored_ms >= asked_ms


def test_relative_delays(java: JavaClient, topic: str) -> None:
    java.create_topic(topic)
    consumer = java.consume(topic, f"G-{topic}")
    messages = [
        Outgoing(topic=topic, body=b"past", properties={"TIMER_DELIVER_MS": "1000"}),
        Outgoing(topic=topic, body=b"ms", properties={"TIMER_DELAY_MS": "1300"}),
        Outgoing(topic=topic, body=b"sec", properties={"TIMER_DELAY_SEC": "2"}),
    ]
    if java.version == "5.5.0":
        messages.append(Outgoing(topic=topic, body=b"setDelayTimeMs", delay_time_ms=1_300))
        messages.append(Outgoing(topic=topic, body=b"setDelayTimeSec", delay_time_sec=2))
    begun = now_ms()
    all_sent(java.send_all(messages))
    delays = {b"ms": 1_300, b"setDelayTimeMs": 1_300, b"sec": 2_000, b"setDelayTimeSec": 2_000}
    received = consumer.wait_for(len(messages))
    assert min(received, key=lambda message: message.stored_ms).body == b"past"
    for message in received:
        assert message.received_ms >= begun + delays.get(message.body or b"", 0)


def test_a_new_topic_waits_for_a_busy_server(
    java_client: JavaMaker, gateway: GatewayProcess, topic: str
) -> None:
    client = java_client(gateway)
    client.send(topic)
    with gateway.stopped_for(7):
        client.create_topic(f"{topic}-new")


def test_what_is_asked_for_too_far_ahead_is_refused_by_name(java: JavaClient, topic: str) -> None:
    three_years = str(now_ms() + 3 * 365 * 86_400_000)
    with pytest.raises(ClientFailure, match="max_delay") as refused:
        java.send(topic, properties={"TIMER_DELIVER_MS": three_years})
    assert refused.value.code == 13


def test_a_group_shares_the_queues_and_takes_over_from_one_that_leaves(
    java: JavaClient, topic: str
) -> None:
    java.create_topic(topic, queues=8)
    group = f"G-{topic}"
    first, second = java.consume(topic, group), java.consume(topic, group)
    until(
        lambda: len(first.assigned(topic)) == len(second.assigned(topic)) == 4,
        "half of the queues with each",
    )
    assert first.assigned(topic).isdisjoint(second.assigned(topic))
    messages = [Outgoing(topic=topic, body=b"%d" % n, queue=n % 8) for n in range(80)]
    all_sent(java.send_all(messages))
    until(lambda: len(first.messages()) + len(second.messages()) >= 80, "all messages")
    assert bodies(first.messages() + second.messages()) == bodies_of(messages)
    assert len(first.messages()) == len(second.messages()) == 40
    second.close()
    until(lambda: len(first.assigned(topic)) == 8, "all queues with the one that stays")
    all_sent(java.send_all([Outgoing(topic=topic, body=b"x%d" % n, queue=n) for n in range(8)]))
    first.wait_until(lambda messages: sum(m.body[:1] == b"x" for m in messages if m.body) == 8)


def bodies_of(messages: list[Outgoing]) -> list[bytes]:
    """Return the bodies sent, in the order of `bodies`."""
    return sorted(message.body for message in messages)


def test_tags_are_filtered(java: JavaClient, topic: str) -> None:
    java.create_topic(topic)
    consumer = java.consume(topic, f"G-{topic}", expression="red || blue")
    for tag in ("red", "green", "blue", None):
        java.send(topic, (tag or "none").encode(), tags=tag)
    java.send(topic, b"last", tags="red", properties={"TIMER_DELAY_MS": "500"})
    assert bodies(consumer.wait_for(3)) == [b"blue", b"last", b"red"]


def test_pull_consumers(java: JavaClient, topic: str) -> None:
    java.create_topic(topic, queues=1)
    for n in range(5):
        java.send(topic, b"%d" % n)
    puller = java.puller(f"P-{topic}")
    assert puller.queues(topic) == 1
    pulled = puller.pull(topic, 0, 0, limit=3)
    assert [message.body for message in pulled.messages] == [b"0", b"1", b"2"]
    assert (pulled.status, pulled.next_offset, pulled.max_offset) == ("FOUND", 3, 5)
    assert puller.pull(topic, 0, 5).status == "NO_NEW_MSG"
    assert puller.pull(topic, 0, 99).status == "OFFSET_ILLEGAL"
    assert (puller.offset(topic, 0, "min"), puller.offset(topic, 0, "max")) == (0, 5)
    puller.commit(topic, 0, 4)
    until(lambda: puller.offset(topic, 0, "committed") == 4, "the commit")
    poller = java.poller(topic, f"L-{topic}")
    assert bodies(poller.wait_for(5)) == [b"0", b"1", b"2", b"3", b"4"]


def test_large_and_compressed_bodies(java: JavaClient, topic: str) -> None:
    java.create_topic(topic)
    consumer = java.consume(topic, f"G-{topic}")
    largest = 4 * 1024 * 1024
    java.send_all([Outgoing(topic=topic, size=size) for size in (5_000, 100_000)])
    received = consumer.wait_for(2)
    assert sorted(message.body_length for message in received) == [5_000, 100_000]
    with pytest.raises(ClientFailure) as refused:
        java.send(topic, Random(1).randbytes(largest + 1))  # compression cannot shrink it
    assert refused.value.code == 13
    body = Random(2).randbytes(largest - 10_000)
    java.send(topic, body)
    biggest = consumer.wait_for(3)[-1]
    assert biggest.body_sha256 == hashlib.sha256(body).hexdigest()


def test_messages_are_found_before_and_after_they_fire(java: JavaClient, topic: str) -> None:
    java.create_topic(topic)
    key = f"key-{topic}"
    sent = java.send(topic, b"found", keys=key, properties={"TIMER_DELAY_MS": "3000"})
    assert java.query(topic, key)[0].msg_id == sent.msg_id
    assert sent.offset_msg_id is not None
    assert java.view(topic, sent.offset_msg_id).body == b"found"
    fired = java.consume(topic, f"G-{topic}").wait_for(1)[0]
    assert fired.msg_id == sent.msg_id
    assert java.query(topic, key)[0].stored_ms == fired.stored_ms
    assert java.view(topic, sent.msg_id).queue_offset == fired.queue_offset


def test_a_failing_message_comes_again_and_ends_in_the_dead_letter_topic(
    java: JavaClient, topic: str
) -> None:
    java.create_topic(topic)
    group = f"G-{topic}"
    consumer = java.consume(topic, group, fail_first=99, retry_level=1, max_reconsume_times=1)
    java.send(topic, b"poison", keys="bad")
    received = consumer.wait_for(2)
    assert [message.reconsume_times for message in received] == [0, 1]
    assert {message.topic for message in received} == {topic}
    dead = java.puller(f"P-{topic}")
    until(lambda: dead.offset(f"%DLQ%{group}", 0, "max") == 1, "a dead letter")
    buried = dead.pull(f"%DLQ%{group}", 0, 0).messages[0]
    assert (buried.body, buried.properties["RETRY_TOPIC"]) == (b"poison", topic)


def test_recall_tells_the_truth(
    java_client: JavaMaker, gateway: GatewayProcess, topic: str
) -> None:
    java = java_client(gateway)
    java.create_topic(topic)
    consumer = java.consume(topic, f"G-{topic}")
    kept = java.send(topic, b"kept", delay_time_ms=1_000)
    timed = java.send(topic, b"timed", delay_time_ms=5_000)  # long enough for a busy machine
    level = java.send(topic, b"level", level=2)
    assert timed.recall_handle is not None
    assert level.recall_handle is not None
    assert java.recall(topic, timed.recall_handle) == timed.msg_id
    assert java.recall(topic, level.recall_handle) == level.msg_id
    with pytest.raises(ClientFailure, match="already aborted"):
        java.recall(topic, timed.recall_handle)
    consumer.wait_for(1)
    assert kept.recall_handle is not None
    with pytest.raises(ClientFailure, match="already fired"):
        java.recall(topic, kept.recall_handle)
    java.send(topic, b"end", delay_time_ms=5_500)
    assert bodies(consumer.wait_for(2)) == [b"end", b"kept"]


def test_the_vip_channel_of_old_clients(
    java_client: JavaMaker, gateway: GatewayProcess, topic: str
) -> None:
    java = java_client(gateway, "4.9.8", vip_channel=True)
    assert java.send(topic, b"vip").status == "SEND_OK"


@pytest.mark.parametrize("version", ["5.5.0", "4.9.8"])
def test_clients_go_on_after_a_restart(
    java_client: JavaMaker, own_gateway: GatewayProcess, version: str, topic: str
) -> None:
    java = java_client(own_gateway, version, heartbeat_ms=1_000)
    java.create_topic(topic)
    consumer = java.consume(topic, f"G-{topic}")
    java.send(topic, b"before")
    consumer.wait_for(1)
    java.send(topic, b"due while down", properties={"TIMER_DELAY_MS": "700"})
    java.send(topic, b"due later", properties={"TIMER_DELAY_MS": "4000"})
    assert own_gateway.terminate() == 0
    time.sleep(1)
    own_gateway.start()
    until(lambda: _sends(java, topic), "a send after the restart")
    wanted = {b"before", b"due while down", b"due later", b"after"}
    received = consumer.wait_until(lambda found: {one.body for one in found} >= wanted)
    # A message that was consumed but not yet committed may come again, from the same place.
    places = {(message.body, message.queue, message.queue_offset) for message in received}
    counts = Counter(body for body, _, _ in places)
    assert counts[b"due while down"] == counts[b"due later"] == 1


def _sends(java: JavaClient, topic: str) -> bool:
    try:
        java.send(topic, b"after")
    except ClientFailure:
        return False
    return True
