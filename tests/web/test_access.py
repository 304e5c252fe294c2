"""Who may use the API: by token, by users' keys, from which pages, and under which host name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from twisted.logger import capturedLogs, formatEvent

from gateway.process import StartError
from gateway.settings.values import parse_host_port
from gateway.web import bulk, site
from tests.gateway.access.signed import ROOT, ROOT_KEY, SignedClient, create_user, put_acl
from tests.gateway.conftest import MakeGateway
from tests.gateway.memory import MemoryGateway
from tests.gateway.tools import commit_offset, put_group
from tests.web.http import API, HTTP_PORT, HttpClient, basic

TOKEN = "abcdefghijklmnopqrstuvwx"
ANYWHERE = parse_host_port("0.0.0.0:9877")
LOOPBACK = parse_host_port(HTTP_PORT)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """A file with a token."""
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    return file


@pytest.fixture
def guarded(make_gateway: MakeGateway, tmp_path: Path) -> MemoryGateway:
    """A gateway with users and policies, whose HTTP port is open to the world."""
    file = tmp_path / "initial-user.json"
    file.write_text(json.dumps({"username": ROOT, "password": ROOT_KEY}))
    return make_gateway(
        authentication=True, authorization=True, initial_user_file=file, http=ANYWHERE
    )


@pytest.mark.parametrize("host", [ANYWHERE, LOOPBACK])
def test_a_token_lets_in(make_gateway: MakeGateway, token_file: Path, host: object) -> None:
    gateway = make_gateway(http=host, http_token_file=token_file)
    for credentials in (
        "",
        f"Bearer {TOKEN}x",
        f"Basic {TOKEN}",
        "Bearer",
        "Bearer ä",
        "Bearer \udcff",
    ):
        answer = HttpClient(gateway, Authorization=credentials).ask("GET", f"{API}/status")
        assert answer.status == 401, credentials
        assert answer.json["detail"].endswith("is wrong" if credentials else "is missing")
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert HttpClient(gateway, Authorization=f"Bearer {TOKEN}").get("/status")["user"] is None


def test_uploads_without_the_token_use_up_no_memory(
    make_gateway: MakeGateway, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "MAX_BODIES", 1_000)
    gateway = make_gateway(http=ANYWHERE, http_token_file=token_file)
    body = {"topic": "orders", "body": "x" * 400}
    head = f"POST {API}/messages HTTP/1.1\r\nHost: a\r\nContent-Length: 700\r\n\r\n".encode()
    client = HttpClient(gateway, Authorization=f"Bearer {TOKEN}")
    client.connect().protocol.dataReceived(head + b" " * 690)
    client.post("/messages", body)
    admitted = head.replace(b"\r\n\r\n", f"\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
    client.connect().protocol.dataReceived(admitted + b" " * 690)
    assert client.refusal("POST", "/messages", body)["status"] == 503


def test_open_to_the_world_without_a_token_there_is_no_api(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(http=ANYWHERE)
    assert gateway.service.config.is_api_closed
    problem = HttpClient(gateway).refusal("GET", "/status")
    assert problem["status"] == 403
    assert "http_token_file" in problem["detail"]
    assert HttpClient(gateway).ask("GET", "/health").status == 200


def test_open_to_the_world_any_name_is_served(make_gateway: MakeGateway, token_file: Path) -> None:
    gateway = make_gateway(http=ANYWHERE, http_token_file=token_file)
    http = HttpClient(gateway, Authorization=f"Bearer {TOKEN}", Host="gateway.example:9877")
    assert http.ask("GET", f"{API}/status").status == 200


def test_a_token_as_an_editor_of_windows_saves_it(
    make_gateway: MakeGateway, token_file: Path
) -> None:
    token_file.write_bytes(b"\xef\xbb\xbf" + TOKEN.encode() + b"\r\n")
    gateway = make_gateway(http=ANYWHERE, http_token_file=token_file)
    HttpClient(gateway, Authorization=f"Bearer {TOKEN}").get("/status")


@pytest.mark.parametrize("text", ["", "short", "ä" * 20, "a token of letters\nand another one"])
def test_a_token_that_is_none(make_gateway: MakeGateway, tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(StartError, match="has no token of 16 letters"):
        make_gateway(http=ANYWHERE, http_token_file=tmp_path / "token")
    with pytest.raises(StartError, match="check the path"):
        make_gateway(http=ANYWHERE, http_token_file=tmp_path / "missing")


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:9877", "127.0.0.1.evil.example", "", "[", "10.0.0.1", "\udcff"],
)
def test_on_loopback_only_its_own_names_are_served(gateway: MemoryGateway, host: str) -> None:
    problem = HttpClient(gateway, Host=host).refusal("GET", "/status")
    assert (problem["status"], "localhost" in problem["detail"]) == (403, True)


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:9877", "[::1]:80"])
def test_whatever_the_port_is_called(gateway: MemoryGateway, host: str) -> None:
    HttpClient(gateway, Host=host).get("/status")


def test_another_loopback_address_is_served_by_its_own_name(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(http=parse_host_port("127.0.0.2:9877"))
    for host in ("127.0.0.2:9877", "localhost:9877"):
        HttpClient(gateway, Host=host).get("/status")
    assert HttpClient(gateway, Host="127.0.0.3:9877").refusal("GET", "/status")["status"] == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Origin": "http://\udcff"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": ""}, 403),
        ({"Origin": f"http://{HTTP_PORT}", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "https://proxy.example", "Host": "localhost"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, 415),
        ({"Content-Type": ""}, 415),
        ({"Content-Type": "application/json\udcff"}, 415),
        ({"Origin": f"http://{HTTP_PORT}"}, 200),
        ({"Origin": f"http://{HTTP_PORT}", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none", "Content-Type": "application/json; charset=utf-8"}, 200),
        (
            {
                "Origin": "https://proxy.example",
                "Host": "localhost",
                "Sec-Fetch-Site": "same-origin",
            },
            200,
        ),
    ],
)
def test_other_pages_change_nothing(
    gateway: MemoryGateway, http: HttpClient, headers: dict[str, str], status: int
) -> None:
    body = {"topic": "orders", "body": "x", "at": "+1h"}
    assert http.ask("POST", f"{API}/messages", body, headers).status == status
    assert len(http.get("/messages")["messages"]) == (status == 200)


def test_nothing_is_granted_to_scripts_of_other_origins(http: HttpClient) -> None:
    answer = http.ask("OPTIONS", f"{API}/messages", headers={"Origin": "http://evil.example"})
    assert answer.status >= 400
    assert not any(name.startswith("access-control") for name in answer.headers)


def test_users_are_known_by_their_keys(guarded: MemoryGateway) -> None:
    root = SignedClient(guarded, ROOT, ROOT_KEY)
    assert create_user(root, "alice").code == 0
    assert create_user(root, "bob", userStatus="disable").code == 0
    wrong = ["", "Basic ?", basic(ROOT, "no"), basic("nobody", ""), basic("bob", "secret")]
    wrong.append(basic(ROOT, ROOT_KEY).replace("Basic", "Bearer"))
    for credentials in (*wrong, f"Bearer {ROOT_KEY}", "Basic " + ROOT, "Basic ä", "Basic \udcff"):
        answer = HttpClient(guarded, Authorization=credentials).ask("GET", f"{API}/status")
        assert answer.status == 401, credentials
        assert answer.headers["www-authenticate"].startswith("Basic")
    alice = HttpClient(guarded, Authorization=basic("alice", "secret"))
    assert alice.get("/status")["user"] == "alice"


def test_the_console_asks_for_names_itself(guarded: MemoryGateway) -> None:
    answer = HttpClient(guarded, **{"Tidegate-Console": "1"}).ask("GET", f"{API}/status")
    assert answer.status == 401
    assert answer.headers["www-authenticate"].startswith("Console-Basic")


def test_users_see_and_change_what_they_may(guarded: MemoryGateway) -> None:
    root = SignedClient(guarded, ROOT, ROOT_KEY)
    everything = HttpClient(guarded, Authorization=basic(ROOT, ROOT_KEY))
    sent = {
        topic: everything.post("/messages", {"topic": topic, "body": "x", "at": "+1h"})
        for topic in ("orders", "bills", "secrets")
    }
    nightly = {"every": "2h", "body": "x"}
    for topic in sent:
        assert everything.ask("PUT", f"{API}/recurring/{topic}/nightly", nightly).status == 200
    assert create_user(root, "alice").code == 0
    assert put_acl(root, "alice", "Topic:orders", ["Pub", "Get"]).code == 0
    assert put_acl(root, "alice", "Topic:bills", ["Get"]).code == 0
    alice = HttpClient(guarded, Authorization=basic("alice", "secret"))

    assert {one["topic"] for one in alice.get("/messages")["messages"]} == {"orders", "bills"}
    assert {one["topic"] for one in alice.get("/timeline", end="+2h")["topics"]} == {
        "orders",
        "bills",
    }
    assert {one["name"] for one in alice.get("/topics")["topics"]} == {"orders", "bills"}
    assert alice.get("/groups")["groups"] == []
    recurring = alice.get("/recurring")["recurring"]
    assert {one["topic"] for one in recurring} == {"orders", "bills"}
    for path in ("/recurring/bills/nightly", f"/messages/{sent['bills']['offsetMsgId']}"):
        alice.get(path)
    assert alice.post("/recurring/orders/nightly/pause")["outcome"] == "paused"
    refused = [
        ("GET", f"/messages/{sent['secrets']['offsetMsgId']}", None),
        ("POST", f"/messages/{sent['secrets']['offsetMsgId']}/abort", {}),
        ("POST", f"/messages/{sent['bills']['offsetMsgId']}/abort", {}),
        ("POST", f"/messages/{sent['bills']['offsetMsgId']}/reschedule", {"at": "+2h"}),
        ("POST", "/topics/bills/keys/none/abort", {}),
        ("POST", "/topics/secrets/keys/none/reschedule", {"at": "+2h"}),
        ("POST", "/messages", {"topic": "bills", "body": "x"}),
        ("GET", "/recurring/secrets/nightly", None),
        ("PUT", "/recurring/bills/nightly", nightly),
        ("DELETE", "/recurring/bills/nightly", None),
        ("POST", "/recurring/bills/nightly/pause", {}),
        ("POST", "/topics/orders/pause", {}),
        ("POST", "/topics/orders/resume", {}),
        ("POST", "/bulk/preview", {"action": "abort", "selection": {"topic": "bills"}}),
        ("GET", "/rates", None),
        ("GET", "/timeline?topic=secrets", None),
    ]
    for method, path, body in refused:
        problem = alice.refusal(method, path, body)
        assert (problem["status"], "permission" in problem["detail"]) == (403, True), path

    preview = alice.post("/bulk/preview", {"action": "abort", "selection": {"begin": "now"}})
    assert (preview["count"], [one["topic"] for one in preview["sample"]]) == (1, ["orders"])
    number = alice.post("/bulk", {"token": preview["token"]})["id"]
    guarded.settle()
    job = alice.get(f"/bulk/{number}")
    assert (job["state"], job["done"], job["missed"], job["user"]) == ("done", 1, 0, "alice")
    assert everything.get(f"/bulk/{number}") == job
    left = everything.get("/messages")["messages"]
    assert {one["topic"] for one in left} == {"bills", "secrets"}
    states = {one["topic"]: one["state"] for one in everything.get("/recurring")["recurring"]}
    assert states == {"orders": "paused", "bills": "active", "secrets": "active"}


def test_groups_behind_a_message_are_told_to_who_may_know_them(guarded: MemoryGateway) -> None:
    root = SignedClient(guarded, ROOT, ROOT_KEY)
    everything = HttpClient(guarded, Authorization=basic(ROOT, ROOT_KEY))
    sent = everything.post("/messages", {"topic": "orders", "body": "x", "queue": 0})
    for group in ("shipping", "fraud"):
        put_group(root, group)
        assert commit_offset(root, "orders", 0, 1, group).code == 0
    guarded.settle()
    assert create_user(root, "alice").code == 0
    assert put_acl(root, "alice", "Topic:orders", ["Get"]).code == 0
    assert put_acl(root, "alice", "Group:shipping", ["Get"]).code == 0
    path = f"/messages/{sent['offsetMsgId']}"
    alice = HttpClient(guarded, Authorization=basic("alice", "secret"))
    assert [one["group"] for one in everything.get(path)["receivers"]] == ["fraud", "shipping"]
    assert [one["group"] for one in alice.get(path)["receivers"]] == ["shipping"]


def test_policies_by_ipv4_address_count_where_ipv6_is_listened_for_too(
    guarded: MemoryGateway,
) -> None:
    root = SignedClient(guarded, ROOT, ROOT_KEY)
    assert create_user(root, "alice").code == 0
    assert put_acl(root, "alice", "*", ["All"]).code == 0
    assert put_acl(root, "alice", "Topic:orders", ["All"], "Deny", ips=["192.0.2.0/24"]).code == 0
    credentials = basic("alice", "secret")
    for peer, status in (("::ffff:192.0.2.7", 403), ("192.0.2.7", 403), ("2001:db8::7", 200)):
        client = HttpClient(guarded, peer, Authorization=credentials)
        answer = client.ask("POST", f"{API}/messages", {"topic": "orders", "body": "x"})
        assert answer.status == status, peer


def test_who_may_only_read_a_topic_ends_no_change_to_it(
    guarded: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PIECE", 1)
    root = SignedClient(guarded, ROOT, ROOT_KEY)
    everything = HttpClient(guarded, Authorization=basic(ROOT, ROOT_KEY))
    for _ in range(3):
        everything.post("/messages", {"topic": "bills", "body": "x", "at": "+1h"})
    for name, actions in (("alice", ["Get"]), ("bob", ["Get", "Pub"])):
        assert create_user(root, name).code == 0
        assert put_acl(root, name, "Topic:bills", actions).code == 0
    alice = HttpClient(guarded, Authorization=basic("alice", "secret"))
    bob = HttpClient(guarded, Authorization=basic("bob", "secret"))
    preview = everything.post("/bulk/preview", {"action": "abort", "selection": {"topic": "bills"}})
    job = everything.post("/bulk", {"token": preview["token"]})
    assert alice.get(f"/bulk/{job['id']}")["user"] == ROOT
    assert alice.refusal("DELETE", f"/bulk/{job['id']}")["status"] == 403
    assert bob.ask("DELETE", f"{API}/bulk/{job['id']}").status == 200


def test_who_may_not_read_a_topic_is_not_told_that_it_is_paused(guarded: MemoryGateway) -> None:
    root = SignedClient(guarded, ROOT, ROOT_KEY)
    everything = HttpClient(guarded, Authorization=basic(ROOT, ROOT_KEY))
    everything.post("/messages", {"topic": "secrets", "body": "x", "at": "+1h"})
    everything.post("/topics/secrets/pause")
    assert len(everything.get("/messages", topic="secrets")["paused"]) == 1
    assert create_user(root, "alice").code == 0
    alice = HttpClient(guarded, Authorization=basic("alice", "secret"))
    assert alice.get("/messages", topic="secrets")["paused"] == []


def test_who_may_not_read_a_topic_is_not_told_when_its_messages_are_due(
    guarded: MemoryGateway,
) -> None:
    root = SignedClient(guarded, ROOT, ROOT_KEY)
    everything = HttpClient(guarded, Authorization=basic(ROOT, ROOT_KEY))
    everything.post("/messages", {"topic": "secrets", "body": "x", "at": "+1h"})
    assert everything.get("/timeline")["firstDueMs"] is not None
    assert create_user(root, "alice").code == 0
    alice = HttpClient(guarded, Authorization=basic("alice", "secret"))
    seen = alice.get("/timeline")
    assert (seen["total"], seen["firstDueMs"], seen["lastDueMs"]) == (0, None, None)


def test_who_may_not_read_a_topic_gets_no_cursor_into_it(guarded: MemoryGateway) -> None:
    root = SignedClient(guarded, ROOT, ROOT_KEY)
    everything = HttpClient(guarded, Authorization=basic(ROOT, ROOT_KEY))
    for _ in range(3):
        everything.post("/messages", {"topic": "secrets", "body": "x", "at": "+1h"})
    assert everything.get("/messages", limit=1)["cursor"] is not None
    assert create_user(root, "alice").code == 0
    alice = HttpClient(guarded, Authorization=basic("alice", "secret"))
    for query in ({}, {"topic": "secrets"}, {"topic": "secrets", "state": "aborted"}):
        page = alice.get("/messages", limit=1, **query)
        assert (page["messages"], page["cursor"], page["paused"]) == ([], None, [])


def test_an_offset_id_tells_no_topic(guarded: MemoryGateway) -> None:
    root = SignedClient(guarded, ROOT, ROOT_KEY)
    everything = HttpClient(guarded, Authorization=basic(ROOT, ROOT_KEY))
    sent = everything.post("/messages", {"topic": "secrets", "body": "x", "at": "+1h"})
    assert create_user(root, "alice").code == 0
    alice = HttpClient(guarded, Authorization=basic("alice", "secret"))
    problem = alice.refusal("GET", f"/messages/{sent['offsetMsgId']}")
    assert problem["status"] == 403
    assert "secrets" not in problem["detail"]


def test_jobs_are_private(guarded: MemoryGateway) -> None:
    root = SignedClient(guarded, ROOT, ROOT_KEY)
    everything = HttpClient(guarded, Authorization=basic(ROOT, ROOT_KEY))
    preview = everything.post("/bulk/preview", {"action": "abort", "selection": {"begin": "now"}})
    job = everything.post("/bulk", {"token": preview["token"]})
    assert create_user(root, "alice").code == 0
    alice = HttpClient(guarded, Authorization=basic("alice", "secret"))
    assert alice.get("/bulk")["jobs"] == []
    assert alice.refusal("GET", f"/bulk/{job['id']}")["status"] == 404
    assert alice.refusal("DELETE", f"/bulk/{job['id']}")["status"] == 404


def test_why_tls_with_the_port_failed_is_logged(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(http=parse_host_port(HTTP_PORT), http_tls=True)
    with capturedLogs() as events:
        transport = HttpClient(gateway).connect()
        transport.protocol.dataReceived(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        gateway.settle()
    assert not transport.connected
    told = [formatEvent(event) for event in events]
    assert re.fullmatch(r"TLS with 127\.0\.0\.1:\d+ failed: http request", told[-1])
