"""Several workers behind one address: real clients use all of them, one may die, and all may be restarted."""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from compat.clients.driver import until
from gateway.cli.recurring_client import set_recurring
from gateway.client import ClientError, RemotingClient, paused_topics, setting, tls_context
from gateway.intake import terms_of
from gateway.settings.loading import LEADER_VARIABLE
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.messages import BatchItem, encode_batch
from gateway.workers.worker_port import PATIENCE
from storage import INBOX_SIZE, Store
from tests.command import Tidegate
from tests.live.conftest import JavaMaker
from tests.live.process import LIMIT_S, GatewayProcess

pytestmark = pytest.mark.live

FAR_MS = time.time_ns() // 1_000_000 + 24 * 3_600_000


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Two workers, for tests that do not disturb them; their console uses TLS."""
    flags = ("--workers", "2", "--http", "127.0.0.1:0", "--http-tls")
    with GatewayProcess(tmp_path_factory.mktemp("workers") / "data", *flags) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def console(gateway: GatewayProcess) -> str:
    """The address of the console of all workers, as the process prints it."""
    lines = [gateway.line() for _ in range(2)]
    found = re.fullmatch(r"console on (https://127\.0\.0\.1:\d+/)\n", lines[1])
    assert found is not None, lines
    return found[1]


def fetch(url: str, body: object = None) -> str:
    """Send a GET, or with a body a POST, to the console's port, and return the response's body."""
    data = json.dumps(body).encode() if body is not None else None
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with urllib.request.urlopen(request, context=context, timeout=LIMIT_S) as answer:
        found: str = answer.read().decode()
        return found


@pytest.fixture
def own_gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    """Two workers for one test."""
    with GatewayProcess(tmp_path / "data", "--workers", "2") as gateway:
        yield gateway


def workers(gateway: GatewayProcess) -> dict[str, int]:
    """Return the ports of the workers that serve, by name."""
    with gateway.client() as client:
        answer = client.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    if answer.code != ResponseCode.SUCCESS:
        return {}
    brokers = msgspec.json.decode(answer.body)["brokerAddrTable"]
    return {
        name: int(broker["brokerAddrs"]["0"].rpartition(":")[2]) for name, broker in brokers.items()
    }


def processes(gateway: GatewayProcess) -> list[int]:
    """Return the process ids of the workers."""
    children = Path(f"/proc/{gateway.pid}/task/{gateway.pid}/children").read_text()
    return [int(one) for one in children.split()]


def hold(port: int, message_id: str, due_ms: int, topic: str = "held") -> None:
    """Send a timed message to one worker."""
    properties = f"UNIQ_KEY\x01{message_id}\x02KEYS\x01order\x02TIMER_DELIVER_MS\x01{due_ms}\x02"
    ext = {"a": "g", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0"}
    with RemotingClient("127.0.0.1", port, timeout=LIMIT_S) as client:
        answer = client.ask(RequestCode.SEND_MESSAGE_V2, ext | {"i": properties}, b"x")
    assert answer.code == ResponseCode.SUCCESS


def held(gateway: GatewayProcess, limit: int, **asked: str) -> list[str]:
    """Return the ids of the pending messages, read page by page at the shared address."""
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


@pytest.mark.parametrize("signs", [False, True])
def test_each_worker_tells_a_consumer_its_queues_at_all_of_them(
    tmp_path: Path, *, signs: bool
) -> None:
    root = ("root", "root-secret") if signs else None
    user = tmp_path / "user.json"
    user.write_text('{"username": "root", "password": "root-secret"}')
    flags = ("--authentication", "--authorization", "--initial-user-file", str(user))
    with ExitStack() as opened:
        gateway = opened.enter_context(
            GatewayProcess(tmp_path / "data", "--workers", "2", *(flags if signs else ()))
        )
        with RemotingClient("127.0.0.1", gateway.port, LIMIT_S, credentials=root) as client:
            cluster = msgspec.json.decode(client.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body)
        addresses = [one["brokerAddrs"]["0"] for one in cluster["brokerAddrTable"].values()]
        ports = [int(address.rpartition(":")[2]) for address in addresses]
        both = [
            opened.enter_context(RemotingClient("127.0.0.1", port, LIMIT_S, credentials=root))
            for port in ports
        ]

        def queues(worker: RemotingClient, topic: str) -> list[tuple[str, int]] | None:
            asked = {"topic": topic, "consumerGroup": "g", "clientId": "c", "strategyName": "AVG"}
            answer = worker.ask(RequestCode.QUERY_ASSIGNMENT, {}, msgspec.json.encode(asked))
            assert answer.code == ResponseCode.SUCCESS
            found = msgspec.json.decode(answer.body).get("messageQueueAssignments")
            if found is None:
                return None
            return [
                (one["messageQueue"]["brokerName"], one["messageQueue"]["queueId"]) for one in found
            ]

        topic = {"readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}
        topic |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
        consumer = {"groupName": "g", "subscriptionDataSet": [{"topic": "here", "subString": "*"}]}
        heartbeat = {"clientID": "c", "consumerDataSet": [consumer]}
        for number, worker in enumerate(both):
            for name in ("everywhere", "here")[: 2 - number]:
                made = worker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic | {"topic": name})
                assert made.code == ResponseCode.SUCCESS
            worker.ask(RequestCode.HEART_BEAT, {}, msgspec.json.encode(heartbeat))
        of_both = [(f"broker-a-{number}", queue) for number in range(2) for queue in range(2)]
        for worker in both:
            assert queues(worker, "everywhere") == of_both
            assert queues(worker, "here") == of_both[:2]
            assert queues(worker, "nowhere") is None


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


def test_a_command_is_told_where_tls_is(gateway: GatewayProcess) -> None:
    """The workers have it."""
    with (
        pytest.raises(ClientError, match="one that several workers share, which has no TLS"),
        RemotingClient("127.0.0.1", gateway.port, LIMIT_S, tls_context(None)),
    ):
        pass
    for port in workers(gateway).values():
        with RemotingClient("127.0.0.1", port, LIMIT_S, tls_context(None)) as client:
            assert paused_topics(client) == []


def test_one_console_shows_all(gateway: GatewayProcess, console: str) -> None:
    for number, port in enumerate(workers(gateway).values()):
        hold(port, f"M{number}", FAR_MS + number, "shown")
    assert "<!doctype html>" in fetch(console)
    api = f"{console}api/v1"
    found = json.loads(fetch(f"{api}/messages?topic=shown"))["messages"]
    assert [one["msgId"] for one in found] == ["M0", "M1"]
    for one in found:
        page = json.loads(fetch(f"{api}/messages/{one['offsetMsgId']}"))
        assert page["message"] == one
    preview = json.loads(
        fetch(f"{api}/bulk/preview", {"action": "abort", "selection": {"topic": "shown"}})
    )
    job = json.loads(fetch(f"{api}/bulk", {"token": preview["token"]}))["id"]
    until(
        lambda: json.loads(fetch(f"{api}/bulk/{job}"))["state"] == "done",
        "both workers have aborted theirs",
    )
    assert held(gateway, 10, topic="shown") == []
    assert json.loads(fetch(f"{console}ready")) == {"ready": True, "reasons": []}
    assert fetch(f"{console}metrics").count("} 1\n") == 2


Told = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def told(tidegate: Tidegate) -> Told:
    """Run a command at the shared address with `--json`, and return its output."""

    def run(gateway: GatewayProcess, *arguments: str) -> list[dict[str, Any]]:
        return tidegate(*arguments, "--json", server=gateway.address).told()

    return run


def recur(port: int, name: str) -> None:
    """Set a recurring message at one worker."""
    with RemotingClient("127.0.0.1", port, timeout=LIMIT_S) as client:
        set_recurring(client, "many", name, b"x", {}, {"every": "1h"})


def test_commands_change_what_all_hold(gateway: GatewayProcess, told: Told) -> None:
    ports = list(workers(gateway).values())
    for number in range(6):
        hold(ports[number % 2], f"M{number}", FAR_MS + number, "many")
    hold(ports[1], "later", FAR_MS + 59_000, "many")
    few = ("--topic", "many", "--from", str(FAR_MS), "--to", str(FAR_MS + 1_000))
    assert told(gateway, "abort", *few, "--dry-run") == [{"messages": 6}]
    assert told(gateway, "reschedule", *few, "--by", "+1m", "--yes") == [{"messages": 6}]
    assert held(gateway, 3, topic="many") == ["later", *(f"M{number}" for number in range(6))]
    assert told(gateway, "abort", "--topic", "many", "--all", "--yes") == [{"messages": 7}]
    assert held(gateway, 100, topic="many") == []
    assert len(held(gateway, 2, topic="many", state="aborted")) == 7

    told(gateway, "pause", "many")
    assert [one["topic"] for one in told(gateway, "pause")] == ["many"]
    for port in ports:
        with RemotingClient("127.0.0.1", port, timeout=LIMIT_S) as client:
            assert [one.topic for one in paused_topics(client)] == ["many"]
    told(gateway, "resume", "many")
    assert told(gateway, "pause") == []

    for port, name in zip(ports, ("b", "a"), strict=True):
        recur(port, name)
    recurring = ("--topic", "many", "--name")
    added = ("recurring", "add", *recurring, "c", "--every", "2h", "--body", "x")
    assert told(gateway, *added)[0]["outcome"] == "set"
    assert told(gateway, *added)[0]["outcome"] == "updated"
    again = ("recurring", "add", *recurring, "a", "--every", "2h", "--body", "x")
    assert told(gateway, *again)[0]["outcome"] == "replaced"
    assert [one["name"] for one in told(gateway, "recurring", "list")] == ["a", "b", "c"]
    assert told(gateway, "recurring", "pause", *recurring, "a")[0]["outcome"] == "paused"
    told(gateway, "recurring", "delete", *recurring, "b")
    states = [(one["name"], one["state"]) for one in told(gateway, "recurring", "list")]
    assert states == [("a", "paused"), ("c", "active")]


def test_a_worker_that_dies_is_started_again(own_gateway: GatewayProcess, told: Told) -> None:
    before = workers(own_gateway)
    assert told(own_gateway, "log-level", "debug") == [{"log_level": "debug"}]
    for number, port in enumerate(before.values()):
        hold(port, f"M{number}", FAR_MS + number)
    victim = processes(own_gateway)[0]
    os.kill(victim, signal.SIGKILL)
    with own_gateway.client() as client:
        assert client.ask(RequestCode.LOOK_UP_TIMERS).code == ResponseCode.SERVICE_NOT_AVAILABLE
        # Its address stays in the cluster information, so that clients wait for it.
        assert workers(own_gateway) == before
        until(
            lambda: client.ask(RequestCode.LOOK_UP_TIMERS).code == ResponseCode.SUCCESS,
            "another process in its place",
        )
    assert held(own_gateway, 100) == ["M0", "M1"]
    assert victim not in processes(own_gateway)
    for port in before.values():
        with RemotingClient("127.0.0.1", port, timeout=LIMIT_S) as worker:
            assert setting(worker, "log_level") == "debug"


def test_workers_share_the_memory_of_one(own_gateway: GatewayProcess) -> None:
    port = workers(own_gateway)["broker-a-0"]
    properties = f"TIMER_DELIVER_MS\x01{FAR_MS}\x02"
    batch = encode_batch(BatchItem(0, b"x", properties) for _ in range(1_000))
    ext = {"a": "g", "b": "held", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0"}
    with RemotingClient("127.0.0.1", port, timeout=LIMIT_S) as client:
        for _ in range(INBOX_SIZE // 2_000 + 1):
            answer = client.ask(RequestCode.SEND_BATCH_MESSAGE, ext | {"m": "true"}, batch)
            assert answer.code == ResponseCode.SUCCESS
    own_gateway.terminate()
    store = Store(own_gateway.data / "worker-0", terms_of)
    assert store.settled_reader().stat(store.tables.timers)["entries"] == 1_000
    store.close()


def test_a_worker_that_hangs_does_not_serve(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path / "data", "--workers", "2", "--http", "127.0.0.1:0") as gateway:
        metrics = gateway.line().split()[-1]

        def serving() -> list[str]:
            lines = fetch(metrics).splitlines()
            return [line[-1] for line in lines if line.startswith("tidegate_worker_up")]

        brokers = workers(gateway)
        hanging = processes(gateway)[0]
        os.kill(hanging, signal.SIGSTOP)
        try:
            until(lambda: sorted(serving()) == ["0", "1"], "one does not serve")
            # Nobody has to wait for it. A request that is passed on to it takes 30 s by HTTP.
            begun = time.monotonic()
            assert workers(gateway) == brokers
            assert "broker-a-0 does not answer" in fetch(
                metrics.replace("/metrics", "/api/v1/status")
            )
            assert time.monotonic() - begun < PATIENCE
        finally:
            os.kill(hanging, signal.SIGCONT)
        until(lambda: serving() == ["1", "1"], "it serves again")
        assert hanging in processes(gateway)


def test_no_change_begins_once_a_worker_has_forgotten_its_preview(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path / "data", "--workers", "2", "--http", "127.0.0.1:0") as gateway:
        http = gateway.line().split()[-1].removesuffix("/metrics")
        for number, port in enumerate(workers(gateway).values()):
            hold(port, f"M{number}", FAR_MS + number)
        asked = {"action": "abort", "selection": {"topic": "held"}}
        preview = json.loads(fetch(f"{http}/api/v1/bulk/preview", asked))
        victim = processes(gateway)[1]
        os.kill(victim, signal.SIGKILL)
        until(
            lambda: (
                victim not in processes(gateway) and fetch(f"{http}/metrics").count("} 1\n") == 2
            ),
            "another process in its place",
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            fetch(f"{http}/api/v1/bulk", {"token": preview["token"]})
        assert "nothing was changed" in json.loads(refused.value.read())["detail"]
        assert held(gateway, 100) == ["M0", "M1"]


def test_workers_stop_when_their_leader_is_gone(own_gateway: GatewayProcess) -> None:
    orphans = processes(own_gateway)
    os.kill(own_gateway.pid, signal.SIGKILL)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in orphans), "they stop")


def test_a_ctrl_c_stops_leader_and_workers(own_gateway: GatewayProcess) -> None:
    """A terminal signals all of them at once, and then the leader signals its workers again."""
    members = processes(own_gateway)
    for pid in (own_gateway.pid, *members):
        os.kill(pid, signal.SIGINT)
    assert own_gateway.ended() == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in members)
    assert "Traceback" not in own_gateway.log.read_text()


def test_a_closed_terminal_restarts_the_workers_one_by_one(own_gateway: GatewayProcess) -> None:
    """It signals all of them at once. Workers that ended by that would be away together."""
    for pid in (own_gateway.pid, *processes(own_gateway)):
        os.kill(pid, signal.SIGHUP)
    until(lambda: "all workers were restarted" in own_gateway.log.read_text(), "they are")
    assert "is started again in" not in own_gateway.log.read_text()


def test_a_rolling_restart_refuses_no_send(
    own_gateway: GatewayProcess, java_client: JavaMaker
) -> None:
    java = java_client(own_gateway)
    java.create_topic("rolling", queues=4)
    java.send("rolling", b"first")  # the client knows both workers now
    first = processes(own_gateway)
    sent = [b"first"]
    over = threading.Event()

    def send() -> None:
        while not over.is_set():
            body = b"%d" % len(sent)
            java.send("rolling", body, delay_time_ms=500)
            sent.append(body)

    sender = threading.Thread(target=send)
    sender.start()
    os.kill(own_gateway.pid, signal.SIGHUP)
    try:
        # A consumer that does not find both workers looks for them again only after 20 s.
        until(lambda: "all workers were restarted" in own_gateway.log.read_text(), "they are")
    finally:
        over.set()
        sender.join()
    assert len(set(processes(own_gateway)) - set(first)) == 2
    assert len(sent) > 10
    consumer = java.consume("rolling", "group")
    assert {message.body for message in consumer.wait_for(len(sent))} == set(sent)


def test_no_worker_is_stopped_to_ask_for_users_that_there_are_not(tmp_path: Path) -> None:
    settings = tmp_path / "tidegate.toml"
    settings.touch()
    with GatewayProcess(tmp_path / "data", "--workers", "2", "--config", str(settings)) as gateway:
        first = processes(gateway)
        settings.write_text("authentication = true\n")
        for number, port in enumerate(workers(gateway).values()):
            os.kill(gateway.pid, signal.SIGHUP)
            lack = f"authentication = true, but there is no user in {gateway.data}/worker-{number};"
            until(lambda lack=lack: lack in gateway.log.read_text(), "it is told")  # type: ignore[misc]
            assert processes(gateway) == first
            with RemotingClient("127.0.0.1", port, timeout=LIMIT_S) as client:
                root = b'{"username": "root", "password": "root-secret", "userType": "Super"}'
                made = client.ask(RequestCode.AUTH_CREATE_USER, {"username": "root"}, root)
            assert made.code == ResponseCode.SUCCESS
        os.kill(gateway.pid, signal.SIGHUP)
        until(lambda: "all workers were restarted" in gateway.log.read_text(), "they ask for users")
        with gateway.client() as client:
            refused = client.ask(RequestCode.LOOK_UP_TIMERS)
        assert refused.code == ResponseCode.NO_PERMISSION


def test_a_worker_without_its_folder_is_not_ready_nor_begun_anew(tmp_path: Path) -> None:
    with GatewayProcess(tmp_path / "data", "--workers", "2", "--http", "127.0.0.1:0") as gateway:
        metrics = gateway.line().split()[-1]

        def ready() -> str:
            try:
                return fetch(metrics.replace("/metrics", "/ready"))
            except urllib.error.HTTPError as refusal:
                return refusal.read().decode()

        until(lambda: '"ready":true' in ready(), "all are ready")
        folder, away = gateway.data / "worker-0", tmp_path / "away"
        folder.rename(away)
        until(lambda: "broker-a-0 is not ready" in ready(), "it is known")
        os.kill(processes(gateway)[0], signal.SIGKILL)
        until(lambda: "worker 0 has no data" in gateway.log.read_text(), "it is not started")
        assert "broker-a-0 does not serve" in ready()
        assert not folder.exists()
        away.rename(folder)
        until(lambda: '"ready":true' in ready(), "all are ready again")


def test_a_worker_whose_leader_dies_before_it_serves_stops(tmp_path: Path) -> None:
    environment = {LEADER_VARIABLE: "1"}
    with GatewayProcess(tmp_path / "data", environment=environment) as worker:
        assert worker.ended() == 0
