"""Clients of the gRPC protocol on a real gateway process, through RocketMQ's own Proxy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress

import pytest

from compat.clients.driver import ClientFailure, Driver, until
from compat.clients.grpc import Producer, PushConsumer, Receipt, SimpleConsumer, View, grpc_driver
from compat.real_proxy import RealProxy
from gateway.cli.asking import now_ms
from gateway.wire.codes import RequestCode, ResponseCode
from tests.live.process import GatewayProcess

pytestmark = pytest.mark.live

LONG_MS = 600_000
"""Longer than a test takes: a message that is invisible for so long does not come again in it."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that checks transactions soon, and does not give up."""
    flags = ("--transaction-timeout", "1s", "--transaction-check-interval", "1s")
    data = tmp_path_factory.mktemp("gateway") / "data"
    with GatewayProcess(data, *flags, "--transaction-check-max", "1000") as gateway:
        yield gateway


@pytest.fixture(scope="module")
def proxy(gateway: GatewayProcess) -> Iterator[RealProxy]:
    """A Proxy for the gateway. It lets a message be invisible for less than ten seconds, and registers producers for
    transaction checks every second instead of every twenty."""
    settings = {"minInvisibleTimeMillsForRecv": 1_000, "transactionHeartbeatPeriodSecond": 1}
    with RealProxy(gateway.address, settings) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    """A JVM with the client, for all tests of the file."""
    with grpc_driver() as driver:
        yield driver


class Clients:
    """A test's topic and group, and the clients that use them."""

    def __init__(
        self, driver: Driver, proxy: RealProxy, gateway: GatewayProcess, topic: str
    ) -> None:
        self._gateway = gateway
        self._topic = topic
        self._group = f"G-{topic}"
        self._producer = driver, proxy.address, topic
        self._consumer = *self._producer, self._group

    def make_topic(self, message_type: str) -> None:
        """Make the topic with one queue, so that the order shows which message would have come before."""
        ext = {"topic": self._topic, "defaultTopic": "TBW102", "perm": "6", "order": "false"}
        ext |= {"readQueueNums": "1", "writeQueueNums": "1", "topicFilterType": "SINGLE_TAG"}
        ext |= {"attributes": f"+message.type={message_type}"}
        with self._gateway.client() as client:
            assert client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext).code == ResponseCode.SUCCESS

    def make_ordered_group(self) -> None:
        """Make the group, with consumption in order."""
        group = json.dumps({"groupName": self._group, "consumeMessageOrderly": True}).encode()
        with self._gateway.client() as client:
            made = client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, group)
        assert made.code == ResponseCode.SUCCESS

    def producer(self) -> Producer:
        return Producer(*self._producer)

    def simple_consumer(self) -> SimpleConsumer:
        return SimpleConsumer(*self._consumer)

    def push_consumer(self) -> PushConsumer:
        return PushConsumer(*self._consumer)


@pytest.fixture
def clients(driver: Driver, proxy: RealProxy, gateway: GatewayProcess, topic: str) -> Clients:
    return Clients(driver, proxy, gateway, topic)


def received(consumer: SimpleConsumer, count: int, invisible_ms: int = LONG_MS) -> list[View]:
    """Receive so many messages, or more."""
    messages: list[View] = []

    def are_enough() -> bool:
        with suppress(ClientFailure):  # while the gateway does not serve
            messages.extend(consumer.receive(invisible_ms))
        return len(messages) >= count

    until(are_enough, f"{count} messages")
    return messages


def test_another_time_until_a_message_comes_again(clients: Clients) -> None:
    clients.make_topic("NORMAL")
    producer, consumer = clients.producer(), clients.simple_consumer()
    producer.send(b"a")
    (message,) = received(consumer, 1)
    hidden_ms = now_ms()

    consumer.change_invisible_duration(message, 1_500)

    (again,) = received(consumer, 1)
    assert (again.message_id, again.attempt) == (message.message_id, 2)
    assert again.received_ms >= hidden_ms + 1_500
    consumer.change_invisible_duration(again, LONG_MS)
    consumer.ack(again)


def test_what_is_acknowledged_is_not_seen_again(clients: Clients) -> None:
    clients.make_topic("NORMAL")
    producer, consumer = clients.producer(), clients.simple_consumer()
    sent = [producer.send(body).message_id for body in (b"done", b"not done")]
    done, not_done = received(consumer, 2, 5_000)
    assert [done.message_id, not_done.message_id] == sent
    assert (done.body, done.attempt) == (b"done", 1)

    consumer.ack(done)

    # The invisible time of the other message, which came before it, was over too.
    (again,) = received(consumer, 1)
    assert (again.message_id, again.body, again.attempt) == (sent[1], b"not done", 2)


def test_a_message_with_a_time_comes_at_it(clients: Clients) -> None:
    clients.make_topic("DELAY")
    producer, consumer = clients.producer(), clients.simple_consumer()
    due_ms = now_ms() + 2_000
    sent = producer.send(b"later", deliver_time_ms=due_ms)
    (message,) = received(consumer, 1)
    assert (message.body, message.message_id) == (b"later", sent.message_id)
    assert message.deliver_time_ms == due_ms
    assert message.received_ms >= due_ms


def test_what_is_recalled_never_comes(clients: Clients) -> None:
    clients.make_topic("DELAY")
    producer, consumer = clients.producer(), clients.simple_consumer()
    due_ms = now_ms() + 8_000
    recalled = producer.send(b"recalled", deliver_time_ms=due_ms)
    producer.send(b"kept", deliver_time_ms=due_ms)

    assert producer.recall(recalled.recall_handle) == recalled.message_id
    with pytest.raises(ClientFailure, match="already aborted"):
        producer.recall(recalled.recall_handle)

    # Of two messages for the same time, the one sent first would have come first.
    assert [message.body for message in received(consumer, 1)] == [b"kept"]


def test_only_committed_messages_are_delivered(clients: Clients) -> None:
    clients.make_topic("TRANSACTION")
    producer, consumer = clients.producer(), clients.simple_consumer()
    producer.send(b"rolled back", decided="rollback")
    producer.send(b"late rolled back", decided="none", asked="ROLLBACK")
    producer.send(b"committed", decided="commit")
    producer.send(b"late", decided="none", asked="COMMIT")
    assert [message.body for message in received(consumer, 2)] == [b"committed", b"late"]


def test_a_message_group_comes_in_order_also_when_one_fails(clients: Clients) -> None:
    clients.make_topic("FIFO")
    clients.make_ordered_group()
    producer, consumer = clients.producer(), clients.push_consumer()
    for number in range(5):
        for group in ("x", "y"):
            producer.send(b"%d" % number, group=group, failures=int((number, group) == (2, "x")))
    messages = consumer.wait_for(11)
    attempts = {
        group: [(one.body, one.attempt) for one in messages if one.message_group == group]
        for group in ("x", "y")
    }
    assert attempts == {
        "x": [(b"0", 1), (b"1", 1), (b"2", 1), (b"2", 2), (b"3", 1), (b"4", 1)],
        "y": [(b"%d" % number, 1) for number in range(5)],
    }


def test_a_push_consumer_is_given_again_what_its_listener_refused(clients: Clients) -> None:
    clients.make_topic("NORMAL")
    producer, consumer = clients.producer(), clients.push_consumer()
    refused = producer.send(b"refused", failures=1)
    accepted = producer.send(b"accepted")
    messages = consumer.wait_for(3)
    assert sorted((one.message_id, one.attempt) for one in messages) == sorted(
        ((refused.message_id, 1), (refused.message_id, 2), (accepted.message_id, 1))
    )


def test_a_gateway_that_was_killed_goes_on_with_the_same_clients(
    clients: Clients, gateway: GatewayProcess
) -> None:
    clients.make_topic("DELAY")
    producer, consumer = clients.producer(), clients.simple_consumer()
    past_ms, due_ms = now_ms() - 1, now_ms() + 4_000
    before = [producer.send(b"due", deliver_time_ms=past_ms)]
    (due,) = received(consumer, 1)
    before.append(producer.send(b"later", deliver_time_ms=due_ms))
    consumer.ack(due)

    gateway.kill()
    gateway.start()

    (later,) = received(consumer, 1)
    assert [due.message_id, later.message_id] == [sent.message_id for sent in before]
    assert later.received_ms >= due_ms
    consumer.ack(later)
    after: list[Receipt] = []

    def is_sent() -> bool:
        with suppress(ClientFailure):  # until the Proxy has connected again
            after.append(producer.send(b"after", deliver_time_ms=past_ms))
        return bool(after)

    until(is_sent, "a message that is taken")
    (last,) = received(consumer, 1)
    assert last.body == b"after"
