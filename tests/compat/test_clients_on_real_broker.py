"""The drivers of real clients work as documented on a real broker, before they are used to measure the gateway."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.clients.cpp import CppClient
from compat.clients.driver import ClientFailure, Driver, Outgoing, Sent, until
from compat.clients.java import VERSIONS, JavaClient, Version
from compat.java_tools import Mqadmin
from compat.real_broker import RealBroker
from compat.scenarios.queries import is_found

pytestmark = [pytest.mark.live, pytest.mark.oracle]

NOT_WRITTEN = 13
"""ResponseCode.MESSAGE_ILLEGAL: a broker's response to a time beyond its limit."""


@pytest.fixture
def java55(drivers: dict[Version, Driver], real_broker: RealBroker) -> Iterator[JavaClient]:
    """The current Java client on the real broker."""
    yield from _java("5.5.0", drivers, real_broker)


@pytest.fixture(params=VERSIONS)
def java(
    request: pytest.FixtureRequest, drivers: dict[Version, Driver], real_broker: RealBroker
) -> Iterator[JavaClient]:
    """The Java client on the real broker, in each of its generations."""
    yield from _java(request.param, drivers, real_broker)


def _java(
    version: Version, drivers: dict[Version, Driver], broker: RealBroker
) -> Iterator[JavaClient]:
    drivers[version].start()
    with JavaClient(broker.namesrv_address, version, driver=drivers[version]) as client:
        yield client


@pytest.fixture
def cpp(cpp_process: Driver, real_broker: RealBroker) -> Iterator[CppClient]:
    """The C++ client on the real broker."""
    cpp_process.start()
    with CppClient(real_broker.namesrv_address, driver=cpp_process) as client:
        yield client


@pytest.fixture
def topic(java55: JavaClient, request: pytest.FixtureRequest) -> str:
    """A topic for this test alone, which exists."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    java55.create_topic(name)
    return name


def test_java_sends_in_every_way_and_receives(java: JavaClient, topic: str) -> None:
    consumer = java.consume(topic, f"G-{topic}")
    sync = java.send(topic, b"sync", tags="red", keys="k1", properties={"colour": "blue"})
    (asynchronous,) = java.send_all([Outgoing(topic=topic, body=b"async")], "async")
    batch = java.send_batch([Outgoing(topic=topic, body=body) for body in (b"b1", b"b2")])
    java.send_oneway(Outgoing(topic=topic, body=b"oneway"))
    received = {message.body: message for message in consumer.wait_for(5)}
    assert set(received) == {b"sync", b"async", b"b1", b"b2", b"oneway"}
    message = received[b"sync"]
    assert (message.tags, message.keys, message.properties["colour"]) == ("red", "k1", "blue")
    assert (message.msg_id, message.offset_msg_id) == (sync.msg_id, sync.offset_msg_id)
    assert message.born_ms <= message.received_ms
    assert isinstance(asynchronous, Sent)
    assert received[b"async"].msg_id == asynchronous.msg_id
    assert batch.msg_id.split(",") == [received[b"b1"].msg_id, received[b"b2"].msg_id]


def test_java_asks_for_times(java: JavaClient, topic: str) -> None:
    consumer = java.consume(topic, f"G-{topic}")
    asked = time.time_ns() // 1_000_000 + 2_000
    java.send(topic, b"level", level=1)
    java.send(topic, b"ms", delay_time_ms=2_000)
    java.send(topic, b"sec", delay_time_sec=2)
    java.send(topic, b"at", deliver_time_ms=asked)
    received = {message.body: message for message in consumer.wait_for(4)}
    assert received[b"level"].properties["DELAY"] == "1"
    assert received[b"ms"].properties["TIMER_DELAY_MS"] == "2000"
    assert received[b"sec"].properties["TIMER_DELAY_SEC"] == "2"
    assert received[b"at"].properties["TIMER_DELIVER_MS"] == str(asked)
    assert received[b"at"].properties["REAL_TOPIC"] == topic


def test_java_recalls(java55: JavaClient, topic: str) -> None:
    consumer = java55.consume(topic, f"G-{topic}")
    taken_back = java55.send(topic, b"taken back", delay_time_sec=3)
    assert taken_back.recall_handle is not None
    java55.recall(topic, taken_back.recall_handle)
    java55.send(topic, b"kept", delay_time_sec=4)
    assert [message.body for message in consumer.wait_for(1)] == [b"kept"]


def test_java_tells_a_refusal_with_its_code(java: JavaClient, topic: str) -> None:
    with pytest.raises(ClientFailure) as refusal:
        java.send(topic, delay_time_sec=10**9)
    assert refusal.value.kind == "MQBrokerException"
    assert refusal.value.code == NOT_WRITTEN


def test_java_long_bodies_arrive_whole(java: JavaClient, topic: str) -> None:
    consumer = java.consume(topic, f"G-{topic}")
    java.send(topic, b"ab" * 5_000)
    (compressed,) = consumer.wait_for(1)
    assert compressed.body_sha256 == hashlib.sha256(b"ab" * 5_000).hexdigest()
    assert compressed.body == b"ab" * 5_000
    java.send_all([Outgoing(topic=topic, size=1_000_000)])
    assert consumer.wait_for(2)[1].body_length == 1_000_000


@pytest.mark.parametrize("orderly", [False, True])
def test_java_refuses_as_often_as_it_is_told(java55: JavaClient, topic: str, orderly: bool) -> None:
    consumer = java55.consume(topic, f"G-{topic}", orderly=orderly, fail_first=1, retry_level=1)
    java55.send(topic, b"again")
    first, second = consumer.wait_for(2)
    assert (first.reconsume_times, second.reconsume_times) == (0, 1)
    assert (first.msg_id, first.body) == (second.msg_id, second.body)


def test_the_broker_rests_after_a_transaction(
    java55: JavaClient, topic: str, real_broker: RealBroker
) -> None:
    """By default it would take a whole core from then on, until it ends."""
    java55.transactor(f"P-{topic}").send(topic, b"one", "commit")
    time.sleep(7)  # in the first 3 s decisions are collected, in the next 3 s it would still wait
    before = cpu_of_decisions(real_broker)
    time.sleep(1)
    assert cpu_of_decisions(real_broker) - before < 0.05


def cpu_of_decisions(broker: RealBroker) -> float:
    """Return the CPU seconds so far of the broker's thread that writes down what producers decided."""
    (thread,) = (
        task
        for task in Path(f"/proc/{broker.pids[0]}/task").iterdir()
        if (task / "comm").read_text().strip() == "TransactionalOpBatchService"[:15]
    )
    user, system = (thread / "stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def test_java_pulls_filters_and_keeps_offsets(java: JavaClient, topic: str) -> None:
    for number in range(4):
        java.send(topic, b"%d" % number, tags="even" if number % 2 == 0 else "odd", queue=1)
    puller = java.puller(f"G-{topic}")
    assert puller.queues(topic) == 4
    # The broker puts a message into its queue a moment after its response to the sender.
    until(lambda: puller.offset(topic, 1, "max") == 4, "four messages in the queue")
    pulled = puller.pull(topic, 1, 0, expression="even")
    assert pulled.status == "FOUND"
    assert [message.body for message in pulled.messages] == [b"0", b"2"]
    assert (pulled.next_offset, pulled.min_offset, pulled.max_offset) == (4, 0, 4)
    assert puller.pull(topic, 1, 4).status == "NO_NEW_MSG"
    assert (puller.offset(topic, 1, "min"), puller.offset(topic, 1, "max")) == (0, 4)
    third = puller.pull(topic, 1, 2).messages[0]
    assert puller.offset(topic, 1, "earliestTime") <= third.stored_ms
    assert puller.offset_at(topic, 1, third.stored_ms) <= 2
    puller.commit(topic, 1, 3)
    # The client commits by a oneway request.
    until(lambda: puller.offset(topic, 1, "committed") == 3, "the commit")


def test_java_polls(java: JavaClient, topic: str) -> None:
    java.send(topic, b"polled")
    poller = java.poller(topic, f"G-{topic}")
    assert [message.body for message in poller.wait_for(1)] == [b"polled"]


def test_java_finds_messages(java: JavaClient, topic: str) -> None:
    sent = java.send(topic, b"find me", keys="k1")
    assert sent.offset_msg_id is not None
    until(lambda: is_found(java, topic, "k1"), "the index")
    assert java.view(topic, sent.msg_id).body == b"find me"
    assert java.view(topic, sent.offset_msg_id).body == b"find me"
    assert [message.msg_id for message in java.query(topic, "k1")] == [sent.msg_id]


def test_mqadmin_finds_a_message(java55: JavaClient, topic: str, real_broker: RealBroker) -> None:
    sent = java55.send(topic, b"find me", keys="k1")
    until(lambda: is_found(java55, topic, "k1"), "the index")
    with Mqadmin(real_broker.namesrv_address) as tool:
        found = tool.run("queryMsgByUniqueKey", "-t", topic, "-i", sent.msg_id)
    assert re.search(rf"^Topic: +{topic}$", found, re.MULTILINE)
    assert re.search(r"^Keys: +\[k1\]$", found, re.MULTILINE)


def test_cpp_sends_in_every_way_and_receives(cpp: CppClient, topic: str) -> None:
    consumer = cpp.consume(topic, f"G-{topic}")
    sent = cpp.send(topic, b"sync", tags="red", keys="k1")
    cpp.send(topic, b"level", level=1)
    cpp.send(topic, b"ms", delay_time_ms=2_000)
    cpp.send(topic, b"ab" * 5_000)
    cpp.send_oneway(Outgoing(topic=topic, body=b"oneway"))
    received = {message.body: message for message in consumer.wait_for(5)}
    assert set(received) == {b"sync", b"level", b"ms", b"ab" * 5_000, b"oneway"}
    message = received[b"sync"]
    assert (message.tags, message.keys, message.msg_id) == ("red", "k1", sent.msg_id)
    assert received[b"ms"].properties["TIMER_DELAY_MS"] == "2000"


def test_cpp_refuses_as_often_as_it_is_told(cpp: CppClient, topic: str) -> None:
    consumer = cpp.consume(topic, f"G-{topic}", orderly=True, fail_first=1)
    cpp.send(topic, b"again")
    assert {message.body for message in consumer.wait_for(2)} == {b"again"}
    consumer.close()


def test_cpp_tells_a_refusal(cpp: CppClient, topic: str) -> None:
    with pytest.raises(ClientFailure, match=r"^ProducerSendSyncFailed"):
        cpp.send(topic, delay_time_sec=10**9)
