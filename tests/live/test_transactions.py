"""Transactions and requests of real clients, with a real gateway process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.clients.cpp import CppClient
from compat.clients.driver import ClientFailure, Driver, Received, until
from compat.clients.java import VERSIONS, JavaClient, JavaPuller, Version
from gateway.cli.asking import now_ms
from gateway.client import RemotingClient
from gateway.topics import CHECKED_OUT_TOPIC
from gateway.wire.codes import RequestCode, ResponseCode
from tests.live.conftest import JavaMaker, bodies
from tests.live.process import GatewayProcess

pytestmark = pytest.mark.live

TIMEOUT_MS = 1_000
QUICK = (
    *("--transaction-timeout", f"{TIMEOUT_MS}ms"),
    *("--transaction-check-interval", "250ms"),
)
PATIENT = (*QUICK, "--transaction-check-max", "5000")
"""On a busy machine, or after a restart, producers take a while to register for checks."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that checks transactions soon, and does not give up."""
    with GatewayProcess(tmp_path_factory.mktemp("gateway") / "data", *PATIENT) as gateway:
        yield gateway


@pytest.fixture
def own_gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    """Another such gateway, which a test may kill."""
    with GatewayProcess(tmp_path / "data", *PATIENT) as gateway:
        yield gateway


def test_only_committed_messages_are_delivered(java: JavaClient, topic: str) -> None:
    java.create_topic(topic)
    consumer = java.consume(topic, f"G-{topic}")
    transactor = java.transactor(f"P-{topic}")
    committed = transactor.send(topic, b"committed", "commit", tags="red", keys="k1")
    transactor.send(topic, b"rolled back", "rollback")
    transactor.send(topic, b"late", "unknown", "unknown", "commit")
    transactor.send(topic, b"late rolled back", "unknown", "rollback")

    received = consumer.wait_for(2)
    undecided = {b"late", b"late rolled back"}
    until(lambda: set(bodies(transactor.checks(1))) >= undecided, "a question about each")

    assert bodies(received) == [b"committed", b"late"]
    first = next(message for message in received if message.body == b"committed")
    assert (first.msg_id, first.tags, first.keys) == (committed.msg_id, "red", "k1")
    assert first.commit_log_offset == committed.queue_offset, "its number stays"
    assert first.sys_flag == 8
    assert {message.topic for message in transactor.checks(3)} == {topic}
    java.send(topic, b"after")
    assert len(consumer.wait_for(3)) == 3


def test_a_delay_begins_with_the_commit(
    java_client: JavaMaker, gateway: GatewayProcess, topic: str
) -> None:
    # The client 5.5.0 itself refuses delays in transactions, and 4.9.8 drops delay levels.
    java = java_client(gateway, "4.9.8")
    java.create_topic(topic)
    consumer = java.consume(topic, f"G-{topic}")
    transactor = java.transactor(f"P-{topic}")
    begun = now_ms()
    transactor.send(topic, b"late", "unknown", "commit", delay_time_sec=5)
    transactor.send(topic, b"prompt", "commit", delay_time_ms=3_000)
    transactor.send(topic, b"past", "unknown", "commit", deliver_time_ms=begun + 1)

    arrived = {message.body: message for message in consumer.wait_for(3)}

    assert arrived[b"past"].stored_ms >= begun + TIMEOUT_MS
    assert arrived[b"prompt"].stored_ms >= begun + 3_000
    assert arrived[b"late"].stored_ms >= begun + TIMEOUT_MS + 5_000
    assert arrived[b"late"].properties["REAL_TOPIC"] == topic


@pytest.mark.parametrize("version", VERSIONS)
def test_what_nobody_decides_is_put_aside(
    java_client: JavaMaker, tmp_path: Path, topic: str, version: Version
) -> None:
    group = f"P-{topic}"
    with GatewayProcess(tmp_path / "data", *QUICK, "--transaction-check-max", "4") as gateway:
        java = java_client(gateway, version, heartbeat_ms=1_000)
        java.create_topic(topic)
        aside = java.puller(f"A-{topic}")
        transactor = java.transactor(group)
        transactor.send(topic, b"known from here on", "commit")
        with gateway.client() as tool:
            until(lambda: is_known(tool, group), "the producer's heartbeat")
        transactor.send(topic, b"undecided", "unknown")
        transactor.checks(4)
        until(
            lambda: bodies(put_aside(aside)) == [b"undecided"],
            "the message in the topic of undecided transactions",
        )
        java.close()


def is_known(tool: RemotingClient, group: str) -> bool:
    """Whether a producer of the group is registered for checks."""
    asked = {"producerGroup": group}
    return tool.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, asked).code == ResponseCode.SUCCESS


def put_aside(puller: JavaPuller) -> list[Received]:
    """Return the messages of the transactions given up so far."""
    try:
        return puller.pull(CHECKED_OUT_TOPIC, 0, 0).messages
    except ClientFailure:
        return []  # the first message creates the topic


def test_transactions_survive_kill_9(java_client: JavaMaker, own_gateway: GatewayProcess) -> None:
    java = java_client(own_gateway, heartbeat_ms=1_000)
    java.create_topic("orders")
    transactor = java.transactor("payers")
    for number in range(20):
        transactor.send("orders", b"undecided-%d" % number, "unknown", "unknown", "commit")
    transactor.send("orders", b"committed", "commit")
    transactor.send("orders", b"rolled back", "rollback")
    java.send("orders", b"plain")  # after the decisions, so that they have arrived

    own_gateway.kill()
    own_gateway.start()

    received = java.consume("orders", "readers").wait_for(22)
    undecided = [b"undecided-%d" % number for number in range(20)]
    assert bodies(received) == sorted([*undecided, b"committed", b"plain"])


def test_cpp(
    cpp_process: Driver, gateway: GatewayProcess, java_client: JavaMaker, topic: str
) -> None:
    java = java_client(gateway)
    java.create_topic(topic)
    consumer = java.consume(topic, f"G-{topic}")
    cpp_process.start()
    with CppClient(gateway.address, driver=cpp_process) as cpp:
        transactor = cpp.transactor(f"P-{topic}")
        transactor.send(topic, b"committed", "commit", tags="red")
        transactor.send(topic, b"rolled back", "rollback")
        transactor.send(topic, b"late", "unknown", "commit")
        begun = now_ms()
        transactor.send(topic, b"level", "commit", level=2)
        received = consumer.wait_for(3)
        assert bodies(received) == [b"committed", b"late", b"level"]
        assert b"late" in bodies(transactor.checks(1))
        (level,) = (message for message in received if message.body == b"level")
        assert level.stored_ms >= begun + 5_000


def test_a_request_is_answered(java: JavaClient, topic: str) -> None:
    java.create_topic(topic)
    replier = java.consume(topic, f"G-{topic}", reply=b"pong")
    reply = java.request(topic, b"ping")
    assert reply.body == b"pong"
    assert "PUSH_REPLY_TIME" in reply.properties
    assert bodies(replier.wait_for(1)) == [b"ping"]


def test_long_replies_come_whole(java: JavaClient, topic: str) -> None:
    java.create_topic(topic)
    long = b"pong " * 100_000
    java.consume(topic, f"G-{topic}", reply=long)
    assert java.request(topic, b"ping").body == long
