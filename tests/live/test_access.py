"""A real gateway that requires users: mqadmin 5.5.0 manages users and sends as them, and so does the command."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from compat.clients.driver import until
from compat.java_tools import Mqadmin
from gateway.client import RemotingClient
from gateway.settings.network import WORKER_PORT_DISTANCE
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.signatures import ACCESS_KEY, SENDER, SENDER_PROOF, SIGNATURE, sign
from tests.live.process import LIMIT_S, GatewayProcess

pytestmark = pytest.mark.live


def pending(address: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `tidegate pending` with credentials in its environment."""
    command = [sys.executable, "-m", "gateway", "pending", "--server", address, "--json"]
    return subprocess.run(
        command,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


ALICE = "alice", "secret99"


def said_of_a_send(gateway: GatewayProcess, topic: str) -> tuple[str, str]:
    """Return what mqadmin prints of a topic's status, and then of a send to it, both by Alice. Its own limit of 3 s is
    too short for the first command in a JVM on a busy machine, and it can send only once in one
    (tests/compat/test_mqadmin.py)."""
    status = said = ""

    def is_in_time() -> bool:
        nonlocal status, said
        with Mqadmin(gateway.address, ALICE) as alice:
            status = alice.run("topicStatus", "-t", topic)
            said = alice.run("sendMessage", "-t", topic, "-p", "hello")
        return "timeout" not in said

    until(is_in_time, "a send by mqadmin in its time")
    return status, said


def test_mqadmin_manages_users_and_works_as_them(tmp_path: Path) -> None:
    user = tmp_path / "user.json"
    user.write_text(json.dumps({"username": "root", "password": "root-secret"}))
    flags = ("--authentication", "--authorization", "--initial-user-file", str(user))
    with GatewayProcess(tmp_path / "data", *flags) as gateway:
        at = ("-b", gateway.address)
        with Mqadmin(gateway.address, ("root", "root-secret")) as root:
            made = root.run("createUser", *at, "-u", "alice", "-p", "secret99", "-t", "Normal")
            assert "success" in made, made
            assert "alice" in root.run("listUser", *at)
            root.run("updateTopic", *at, "-t", "orders", "-r", "1", "-w", "1")
            root.run("updateTopic", *at, "-t", "secret", "-r", "1", "-w", "1")
            subject = ("-s", "User:alice")
            rights = ("-r", "Topic:ord*", "-a", "Pub,Sub", "-d", "Allow")
            granted = root.run("createAcl", *at, *subject, *rights)
            assert "success" in granted, granted
            assert "Topic:ord*" in root.run("getAcl", *at, *subject)
            assert "Topic:ord*" in root.run("listAcl", *at)
            assert "SEND_OK" in said_of_a_send(gateway, "orders")[1]
            for said in said_of_a_send(gateway, "secret"):
                assert "no permission to access" in said
            withdrawn = root.run("deleteAcl", *at, *subject, "-r", "Topic:ord*")
            assert "success" in withdrawn, withdrawn
            assert "no permission to access" in said_of_a_send(gateway, "orders")[1]
            root.run("updateUser", *at, "-u", "alice", "-s", "disable")
            assert "disable" in root.run("getUser", *at, "-u", "alice")
            deleted = root.run("deleteUser", *at, "-u", "alice")
            assert "success" in deleted, deleted
        stranger = pending(gateway.address)
        assert stranger.returncode == 1
        assert "username cannot be null." in stranger.stderr
        keys = {"TIDEGATE_ACCESS_KEY": "root", "TIDEGATE_SECRET_KEY": "root-secret"}
        assert pending(gateway.address, **keys).returncode == 0


FAR = "127.0.0.9"
"""Another address than that from which the leader connects to its workers."""

BY_ADDRESS: dict[str, list[dict[str, object]]] = {
    "local": [{"decision": "Allow", "sourceIps": ["127.0.0.1"]}],
    "banned": [{"decision": "Allow"}, {"decision": "Deny", "sourceIps": [FAR]}],
}
"""Entries of users, who may do everything to the topic `orders`, but not from everywhere."""


def pause_by_http(port: int, user: str) -> int:
    """Pause a topic. Return the status of the answer."""
    keys = base64.b64encode(f"{user}:secret".encode()).decode()
    headers = {"Content-Type": "application/json", "Authorization": f"Basic {keys}"}
    connection = http.client.HTTPConnection("127.0.0.1", port, LIMIT_S)
    connection.request("POST", "/api/v1/topics/orders/pause", headers=headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_policies_by_address_are_about_the_sender_whoever_passes_a_request_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = tmp_path / "user.json"
    user.write_text(json.dumps({"username": "root", "password": "root-secret"}))
    flags = ("--authentication", "--authorization", "--initial-user-file", str(user))
    several = ("--workers", "2", "--http", "127.0.0.1:0")
    with GatewayProcess(tmp_path / "data", *flags, *several) as gateway:
        http_port = int(gateway.line().split("/")[2].split(":")[1])
        ports = [gateway.port + WORKER_PORT_DISTANCE * number for number in range(3)]
        topic = {"topic": "orders", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
        topic |= {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
        for port in ports[1:]:
            with RemotingClient("127.0.0.1", port, LIMIT_S, None, ("root", "root-secret")) as root:
                made = [root.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)]
                for name, entries in BY_ADDRESS.items():
                    body = json.dumps({"password": "secret", "userType": "Normal"}).encode()
                    made.append(root.ask(RequestCode.AUTH_CREATE_USER, {"username": name}, body))
                    whole = [
                        {"resource": "Topic:orders", "actions": ["All"], **one} for one in entries
                    ]
                    acl = {"subject": f"User:{name}", "policies": [{"entries": whole}]}
                    body = json.dumps(acl).encode()
                    ext = {"subject": f"User:{name}"}
                    made.append(root.ask(RequestCode.AUTH_CREATE_ACL, ext, body))
                assert {answer.code for answer in made} == {ResponseCode.SUCCESS}

        def paused(port: int, user: str, **more: str) -> int:
            ext = {"topic": "orders", ACCESS_KEY: user}
            ext[SIGNATURE] = sign(ext, b"", b"secret")
            with RemotingClient("127.0.0.1", port, LIMIT_S) as client:
                return client.ask(RequestCode.PAUSE_TOPIC, ext | more).code

        forged = {SENDER: "127.0.0.1", SENDER_PROOF: "forged"}
        for name in BY_ADDRESS:
            for more in ({}, forged):
                done = {paused(port, name, **more) for port in ports}
                assert done == {ResponseCode.SUCCESS}
            assert pause_by_http(http_port, name) == 200
        connect = socket.create_connection

        def from_afar(address: tuple[str, int], timeout: float, *_: object) -> socket.socket:
            connection = connect(address, timeout, (FAR, 0))
            connection.sendall(begin)
            return connection

        monkeypatch.setattr(socket, "create_connection", from_afar)
        begin = b""
        for name in BY_ADDRESS:
            for more in ({}, forged):
                refused = {paused(port, name, **more) for port in ports}
                assert refused == {ResponseCode.NO_PERMISSION}
            assert pause_by_http(http_port, name) == 403
        begin = b"PROXY TCP4 127.0.0.1 127.0.0.1 51000 9876\r\n"
        for name in BY_ADDRESS:
            assert {paused(port, name) for port in ports} == {ResponseCode.NO_PERMISSION}
