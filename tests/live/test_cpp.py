"""rocketmq-client-python 2.0.0, the C++ client, in ordinary work with a real gateway process."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from random import Random

import msgspec
import pytest

from compat.clients.cpp import CppClient
from compat.clients.driver import ClientFailure, Driver, Outgoing, Sent, until
from gateway.cli.asking import now_ms
from gateway.wire.codes import RequestCode, ResponseCode
from tests.live.conftest import bodies
from tests.live.process import GatewayProcess

pytestmark = pytest.mark.live


@pytest.fixture
def cpp(cpp_process: Driver, gateway: GatewayProcess) -> Iterator[CppClient]:
    """The client, on the shared gateway."""
    cpp_process.start()
    with CppClient(gateway.address, driver=cpp_process) as client:
        yield client


@pytest.fixture
def topic(topic: str, gateway: GatewayProcess) -> str:
    """A topic for this test alone, which exists."""
    create_topic(gateway, topic)
    return topic


def create_topic(gateway: GatewayProcess, topic: str) -> None:
    """Make a topic of four queues."""
    ext = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4"}
    ext |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false"}
    with gateway.client() as client:
        assert client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext).code == ResponseCode.SUCCESS


def all_sent(results: list[Sent | ClientFailure]) -> None:
    """Check that every send succeeded."""
    assert [result for result in results if not isinstance(result, Sent)] == []


def test_messages_for_now_arrive_as_they_were_sent(cpp: CppClient, topic: str) -> None:
    consumer = cpp.consume(topic, f"G-{topic}")
    sent = cpp.send(topic, b"sync", tags="red", keys="k1", properties={"colour": "blue"})
    cpp.send_oneway(*(Outgoing(topic=topic, body=b"oneway-%d" % n) for n in range(5)))
    long = Random(1).randbytes(3_000).hex().encode()
    compressible = b"again " * 5_000
    all_sent(cpp.send_all([Outgoing(topic=topic, body=body) for body in (long, compressible)]))
    received = consumer.wait_for(8)
    oneway = [b"oneway-%d" % n for n in range(5)]
    assert sorted(message.body_length for message in received if message.body is None) == [30_000]
    assert bodies([one for one in received if one.body]) == sorted([b"sync", long, *oneway])
    first = next(message for message in received if message.body == b"sync")
    assert (first.tags, first.keys, first.msg_id) == ("red", "k1", sent.msg_id)
    assert first.properties["colour"] == "blue"


def test_a_topic_comes_to_be_with_its_first_message(cpp: CppClient, topic: str) -> None:
    assert cpp.send(f"{topic}-new", b"first").status


def test_levels_and_times_are_kept(cpp: CppClient, topic: str) -> None:
    consumer = cpp.consume(topic, f"G-{topic}")
    begun = now_ms()
    levels = [Outgoing(topic=topic, body=b"level-%d" % n, level=n) for n in range(1, 19)]
    times = [
        Outgoing(topic=topic, body=b"ms", properties={"TIMER_DELAY_MS": "1300"}),
        Outgoing(topic=topic, body=b"sec", properties={"TIMER_DELAY_SEC": "2"}),
        Outgoing(topic=topic, body=b"at", properties={"TIMER_DELIVER_MS": str(begun + 2_500)}),
        Outgoing(topic=topic, body=b"past", properties={"TIMER_DELIVER_MS": "1000"}),
    ]
    all_sent(cpp.send_all(levels + times))
    delays = {b"level-1": 1_000, b"level-2": 5_000}
    delays |= {b"ms": 1_300, b"sec": 2_000, b"at": 2_500, b"past": 0}
    received = consumer.wait_for(len(delays))
    assert bodies(received) == sorted(delays)
    for message in received:
        assert message.stored_ms >= begun + delays[message.body or b""]


def test_a_group_shares_the_queues_and_one_leaves(
    cpp: CppClient, gateway: GatewayProcess, topic: str
) -> None:
    group = f"G-{topic}"
    first = cpp.consume(topic, group)
    with CppClient(gateway.address) as other:
        second = other.consume(topic, group)
        until(lambda: len(members(gateway, group)) == 2, "two members")
        numbers = itertools.count()

        def is_shared() -> bool:
            cpp.send(topic, b"%d" % next(numbers))
            return bool(first.messages() and second.messages())

        until(is_shared, "messages for each of them", pause=0.01)
        sent = next(numbers)
        until(lambda: len(first.messages()) + len(second.messages()) >= sent, "all messages")
    # The first one then pulls the messages of the other. Its client drops the responses, also with a real broker, so
    # the test cannot wait for them.
    until(lambda: len(members(gateway, group)) == 1, "one member")


def members(gateway: GatewayProcess, group: str) -> list[str]:
    """Return the ids of the online members of a group."""
    with gateway.client() as client:
        answer = client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    return list(msgspec.json.decode(answer.body)["consumerIdList"]) if answer.body else []


def test_tags_are_filtered(cpp: CppClient, topic: str) -> None:
    consumer = cpp.consume(topic, f"G-{topic}", expression="red || blue")
    for tag in ("red", "green", "blue"):
        cpp.send(topic, tag.encode(), tags=tag)
    assert bodies(consumer.wait_for(2)) == [b"blue", b"red"]


def test_a_failing_message_comes_again(cpp: CppClient, topic: str) -> None:
    consumer = cpp.consume(topic, f"G-{topic}", fail_first=1)
    cpp.send(topic, b"again")
    received = consumer.wait_for(2)
    assert [message.reconsume_times for message in received] == [0, 1]


def test_the_largest_body(cpp: CppClient, topic: str) -> None:
    consumer = cpp.consume(topic, f"G-{topic}")
    body = Random(2).randbytes(2_000_000).hex().encode()
    cpp.send(topic, body)
    assert consumer.wait_for(1)[0].body_length == len(body)


def test_a_transaction_waits_for_a_busy_server(
    cpp: CppClient, gateway: GatewayProcess, topic: str
) -> None:
    group = f"P-{topic}"
    sender = cpp.transactor(group)
    first = sender.send(topic, b"first", "commit")
    with gateway.client() as client:
        asked = {"producerGroup": group}
        until(
            lambda: client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, asked).code == 0,
            "the heartbeat, for whose answer the library waits 3 s before it closes the connection",
        )
    with gateway.stopped_for(4):
        second = sender.send(topic, b"second", "commit")
    assert second.queue_offset == first.queue_offset + 1  # it was not sent again meanwhile


def test_transactions_go_to_the_server_of_their_client(
    cpp: CppClient, gateway: GatewayProcess, own_gateway: GatewayProcess, cpp_process: Driver
) -> None:
    """Without names of their own, all such producers of a process share one connection."""
    topic = "T-transactions-of-two-servers"
    with CppClient(own_gateway.address, driver=cpp_process) as other:
        for server in (gateway, own_gateway):
            create_topic(server, topic)
        senders = [client.transactor(f"P-{topic}") for client in (cpp, other)]
        for sender, body in zip(senders, (b"here", b"there"), strict=True):
            sender.send(topic, body, "commit")
        for client, body in ((cpp, b"here"), (other, b"there")):
            assert bodies(client.consume(topic, f"G-{topic}").wait_for(1)) == [body]


def test_it_goes_on_after_a_restart(cpp_process: Driver, own_gateway: GatewayProcess) -> None:
    topic = "T-restart-cpp"
    create_topic(own_gateway, topic)
    cpp_process.start()
    with CppClient(own_gateway.address, driver=cpp_process) as cpp:
        consumer = cpp.consume(topic, "G-restart-cpp")
        cpp.send(topic, b"before")
        consumer.wait_for(1)
        cpp.send(topic, b"while down", properties={"TIMER_DELAY_MS": "700"})
        assert own_gateway.terminate() == 0
        time.sleep(1)
        own_gateway.start()
        consumer.wait_until(lambda found: b"while down" in {one.body for one in found})
        until(lambda: sends(cpp, topic), "a send after the restart")


def sends(cpp: CppClient, topic: str) -> bool:
    """Whether a send succeeds."""
    try:
        cpp.send(topic, b"after")
    except ClientFailure:
        return False
    return True
