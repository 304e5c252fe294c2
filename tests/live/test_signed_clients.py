"""Servers that require users, the gateway and a real RocketMQ 5.5.0, and real clients that sign their requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from compat.clients.cpp import CppClient
from compat.clients.driver import ClientFailure, Received
from compat.clients.go import GoClient
from compat.clients.java import VERSIONS, JavaClient, Version
from compat.real_broker import PATIENT, RealBroker
from compat.toolchain.cpp import has_cpp_client
from compat.toolchain.go import has_go_client
from gateway.client import RemotingClient
from gateway.wire.codes import RequestCode, ResponseCode
from tests.live.conftest import JavaMaker
from tests.live.process import LIMIT_S, GatewayProcess

pytestmark = pytest.mark.live

ROOT: Final = ("root", "root-secret")
ALICE: Final = ("alice", "alice-secret")
IMPOSTOR: Final = ("alice", "guessed")

_ROOT_USER: Final = json.dumps({"username": ROOT[0], "password": ROOT[1]})


class Guarded(NamedTuple):
    """A server with access control, where alice may use topics whose names begin with `her`, in any group."""

    address: str
    """The address that clients are configured with."""


@contextmanager
def _gateway(folder: Path) -> Iterator[tuple[str, str]]:
    user = folder / "user.json"
    user.write_text(_ROOT_USER)
    flags = ("--authentication", "--authorization", "--initial-user-file", str(user))
    with GatewayProcess(folder / "data", *flags) as gateway:
        yield gateway.address, gateway.address


@contextmanager
def _rocketmq(_: Path) -> Iterator[tuple[str, str]]:
    provider = "org.apache.rocketmq.auth.{0}.provider.Local{1}MetadataProvider"
    settings = {
        **PATIENT,
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationMetadataProvider": provider.format("authentication", "Authentication"),
        "authorizationMetadataProvider": provider.format("authorization", "Authorization"),
        "initAuthenticationUser": _ROOT_USER,
        "innerClientAuthenticationCredentials": json.dumps(
            {"accessKey": ROOT[0], "secretKey": ROOT[1]}
        ),
    }
    with RealBroker(settings=settings) as broker:
        yield broker.namesrv_address, broker.address


@pytest.fixture(scope="module", params=[_gateway, _rocketmq])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    with request.param(tmp_path_factory.mktemp("guarded")) as (address, broker):
        host, _, port = broker.rpartition(":")
        with RemotingClient(host, int(port), LIMIT_S, credentials=ROOT) as root:
            alice = {"username": ALICE[0], "password": ALICE[1], "userType": "Normal"}
            _do(root, RequestCode.AUTH_CREATE_USER, {"username": ALICE[0]}, alice)
            entries = [
                {"resource": place, "actions": ["Pub", "Sub"], "decision": "Allow"}
                for place in ("Topic:her*", "Group:*")
            ]
            acl = {"subject": "User:alice", "policies": [{"entries": entries}]}
            _do(root, RequestCode.AUTH_CREATE_ACL, {"subject": "User:alice"}, acl)
        yield Guarded(address)


def _do(root: RemotingClient, code: int, ext: dict[str, str], body: object) -> None:
    answer = root.ask(code, ext, json.dumps(body).encode())
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def all_came_again(received: list[Received]) -> bool:
    """Whether each of three messages came, was refused, and came again."""
    again = {one.body for one in received if one.reconsume_times}
    return again == {b"now", b"later", b"transaction"}


@pytest.mark.parametrize("version", VERSIONS)
def test_java(guarded: Guarded, java_client: JavaMaker, version: Version) -> None:
    """The Java client sends, also for later and in a transaction, consumes, refuses, pulls and looks up, all signed."""
    topic = f"her-{version.replace('.', '_')}"
    java_client(guarded, version, credentials=ROOT).create_topic(topic, 1)
    alice: JavaClient = java_client(guarded, version, credentials=ALICE)
    consumer = alice.consume(topic, f"{topic}-g", fail_first=1, retry_level=1)
    sent = alice.send(topic, b"now", keys="k")
    alice.send(topic, b"later", delay_time_ms=1_000)
    alice.transactor(f"{topic}-t").send(topic, b"transaction", "commit")
    consumer.wait_until(all_came_again)
    assert alice.puller(f"{topic}-p").pull(topic, 0, 0).messages[0].body == b"now"
    assert alice.view(topic, sent.msg_id).body == b"now"
    assert [one.body for one in alice.query(topic, "k")] == [b"now"]


@pytest.mark.parametrize("version", VERSIONS)
def test_java_is_refused(guarded: Guarded, java_client: JavaMaker, version: Version) -> None:
    """A client without a user name, or with a wrong key, may do nothing. Users may do only what a policy permits."""
    root = java_client(guarded, version, credentials=ROOT)
    root.create_topic("his", 1)
    for credentials in (None, IMPOSTOR, ALICE):
        client = java_client(guarded, version, credentials=credentials, retries=0)
        with pytest.raises(ClientFailure):
            client.send("his", b"no")
    assert root.puller("checkers").offset("his", 0, "max") == 0


@pytest.mark.skipif(not has_cpp_client(), reason="the C++ client does not run here")
def test_cpp(guarded: Guarded, java_client: JavaMaker) -> None:
    """The C++ client and its Python package sign in the same way, as producers and as consumers."""
    java_client(guarded, credentials=ROOT).create_topic("her-cpp", 1)
    with (
        CppClient(guarded.address, credentials=ALICE) as alice,
        CppClient(guarded.address, credentials=IMPOSTOR) as impostor,
    ):
        consumer = alice.consume("her-cpp", "her-cpp-g")
        assert alice.send("her-cpp", b"now").status == "OK"
        with pytest.raises(ClientFailure):
            impostor.send("her-cpp", b"no")
        assert [one.body for one in consumer.wait_for(1)] == [b"now"]


@pytest.mark.skipif(not has_go_client(), reason="there is no Go to build the Go client with")
def test_go(guarded: Guarded, java_client: JavaMaker) -> None:
    """The Go client sends, also for later and in a transaction, consumes and refuses, all of it signed."""
    topic, group = "her-go", "her-go-g"
    java_client(guarded, credentials=ROOT).create_topic(topic, 1)
    # At its start the client looks for its group's retry topic. It looks again only half a minute later.
    java_client(guarded, credentials=ALICE).consume(topic, group).close()
    with (
        GoClient(guarded.address, credentials=ALICE) as alice,
        GoClient(guarded.address, credentials=IMPOSTOR, retries=0) as impostor,
        GoClient(guarded.address, retries=0) as nobody,
    ):
        consumer = alice.consume(topic, group, fail_first=1, retry_level=1)
        alice.send(topic, b"now")
        alice.send(topic, b"later", delay_time_ms=1_000)
        alice.transactor(f"{topic}-t").send(topic, b"transaction", "commit")
        for stranger in (impostor, nobody):
            with pytest.raises(ClientFailure):
                stranger.send(topic, b"no")
        consumer.wait_until(all_came_again)
