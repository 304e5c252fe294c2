"""Several workers behind one address: real clients use all of them, one may die, and all may be restarted."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from compat.clients.driver import until
from gateway.client import RemotingClient
from gateway.wire.codes import RequestCode, ResponseCode
from tests.live.conftest import JavaMaker
from tests.live.process import GatewayProcess

pytestmark = pytest.mark.live

FAR_MS = time.time_ns() // 1_000_000 + 3_600_000


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    """Two workers."""
    with GatewayProcess(tmp_path / "data", "--workers", "2") as gateway:
        yield gateway


def workers(gateway: GatewayProcess) -> dict[str, int]:
    """The ports of the workers that serve, by their names."""
    with gateway.client() as client:
        answer = client.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    if answer.code != ResponseCode.SUCCESS:
        return {}
    brokers = msgspec.json.decode(answer.body)["brokerAddrTable"]
    return {
        name: int(broker["brokerAddrs"]["0"].rpartition(":")[2]) for name, broker in brokers.items()
    }


def processes(gateway: GatewayProcess) -> list[int]:
    """The workers' processes."""
    children = Path(f"/proc/{gateway.pid}/task/{gateway.pid}/children").read_text()
    return [int(one) for one in children.split()]


def hold(port: int, message_id: str, due_ms: int) -> None:
    """Send a timed message to one worker."""
    properties = f"UNIQ_KEY\x01{message_id}\x02KEYS\x01order\x02TIMER_DELIVER_MS\x01{due_ms}\x02"
    ext = {"a": "g", "b": "held", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0"}
    with RemotingClient("127.0.0.1", port) as client:
        answer = client.ask(RequestCode.SEND_MESSAGE_V2, ext | {"i": properties}, b"x")
    assert answer.code == ResponseCode.SUCCESS


def held(gateway: GatewayProcess, limit: int, **asked: str) -> list[str]:
    """The ids of what the gateway holds, as the shared address tells it page by page."""
    found: list[str] = []
    cursor = ""
    with gateway.client() as client:
        while True:
            ext = {"topic": "held", "limit": str(limit), "cursor": cursor} | asked
            page = msgspec.json.decode(client.ask(RequestCode.LOOK_UP_TIMERS, ext).body)
            found += [message["msgId"] for message in page["messages"]]
            cursor = page["cursor"]
            if not cursor:
                return found


def test_clients_use_all_workers(gateway: GatewayProcess, java_client: JavaMaker) -> None:
    java = java_client(gateway)
    java.create_topic("shared", queues=4)
    consumer = java.consume("shared", "group")
    for number in range(40):
        java.send("shared", b"%d" % number, delay_time_ms=1_000)
    with gateway.client() as client:
        route = client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "shared"})
    assert len(msgspec.json.decode(route.body)["queueDatas"]) == 2
    bodies = {message.body for message in consumer.wait_for(40)}
    assert bodies == {b"%d" % number for number in range(40)}


def test_tools_see_what_all_hold(gateway: GatewayProcess) -> None:
    ports = list(workers(gateway).values())
    for number in range(12):
        hold(ports[number % 3 % 2], f"M{number:02}", FAR_MS + number // 2)
    expected = [f"M{number:02}" for number in range(12)]
    assert sorted(held(gateway, 5)) == expected
    assert held(gateway, 100) == held(gateway, 1) == held(gateway, 5)
    assert held(gateway, 5, key="order") == held(gateway, 100, key="order")
    with gateway.client() as client:
        answer = client.ask(RequestCode.ABORT_TIMERS, {"id": "M07"})
        unknown = client.ask(RequestCode.ABORT_TIMERS, {"id": "nobody"})
        refused = client.ask(RequestCode.GET_MAX_OFFSET, {"topic": "held", "queueId": "0"})
    outcomes = [one["outcome"] for one in msgspec.json.decode(answer.body)["results"]]
    assert outcomes == ["aborted"]
    assert [one["outcome"] for one in msgspec.json.decode(unknown.body)["results"]] == ["unknown"]
    assert refused.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    expected.remove("M07")
    assert sorted(held(gateway, 100)) == expected


def test_a_worker_that_dies_is_started_again(gateway: GatewayProcess) -> None:
    before = workers(gateway)
    for number, port in enumerate(before.values()):
        hold(port, f"M{number}", FAR_MS + number)
    victim = processes(gateway)[0]
    os.kill(victim, signal.SIGKILL)
    with gateway.client() as client:
        assert client.ask(RequestCode.LOOK_UP_TIMERS).code == ResponseCode.SERVICE_NOT_AVAILABLE
        # Its place is known meanwhile, so that clients wait for it.
        assert workers(gateway) == before
        until(
            lambda: client.ask(RequestCode.LOOK_UP_TIMERS).code == ResponseCode.SUCCESS,
            "another process in its place",
            30,
        )
    assert held(gateway, 100) == ["M0", "M1"]
    assert victim not in processes(gateway)


def test_workers_stop_when_their_leader_is_gone(gateway: GatewayProcess) -> None:
    orphans = processes(gateway)
    os.kill(gateway.pid, signal.SIGKILL)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in orphans), "they stop", 30)


def test_a_rolling_restart_refuses_no_send(gateway: GatewayProcess, java_client: JavaMaker) -> None:
    java = java_client(gateway)
    java.create_topic("rolling", queues=4)
    java.send("rolling", b"first")  # it knows both workers
    first = processes(gateway)
    sent = [b"first"]
    over = threading.Event()

    def send() -> None:
        while not over.is_set():
            body = b"%d" % len(sent)
            java.send("rolling", body, delay_time_ms=500)
            sent.append(body)

    sender = threading.Thread(target=send)
    sender.start()
    os.kill(gateway.pid, signal.SIGHUP)
    try:
        until(
            lambda: len(set(processes(gateway)) - set(first)) == 2,
            "both are restarted",
            60,
        )
    finally:
        over.set()
        sender.join()
    assert len(sent) > 10
    consumer = java.consume("rolling", "group")
    assert {message.body for message in consumer.wait_for(len(sent))} == set(sent)
