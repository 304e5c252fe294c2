"""Messages through the API: sent, found, shown, and aborted."""

from __future__ import annotations

import base64
import gzip
import re
import zlib
from typing import Any
from urllib.parse import quote

import pytest

from gateway.monitoring.audit import read_lines
from gateway.pending import messages
from gateway.pending.messages import PendingMessages, Wanted
from gateway.settings.values import parse_host_port
from gateway.web import sending
from gateway.web.messages import MAX_PREVIEW
from gateway.wire.codes import ResponseCode
from gateway.wire.messages import pack_host
from storage import FoundPage
from tests.gateway.conftest import MakeGateway
from tests.gateway.faults import batches_cannot_begin, commits_fail
from tests.gateway.memory import START_MS, MemoryGateway
from tests.web.http import API, HTTP_PORT, HttpClient

HOUR_MS = 3_600_000


def send(http: HttpClient, **fields: object) -> Any:
    """Send a message that is due in an hour, unless told otherwise."""
    return http.post("/messages", {"topic": "orders", "body": "hello", "at": "+1h", **fields})


def test_a_sent_message_is_found_and_shown(http: HttpClient) -> None:
    sent = send(http, tags="late", keys="k1 k2", properties={"colour": "red"})
    (found,) = http.get("/messages", topic="orders")["messages"]
    assert (found["msgId"], found["offsetMsgId"]) == (sent["msgId"], sent["offsetMsgId"])
    assert (found["state"], found["dueMs"]) == ("pending", START_MS + HOUR_MS)
    assert found["recallHandle"] == sent["recallHandle"]
    page = http.get(f"/messages/{sent['offsetMsgId']}")
    assert page["message"] == found
    assert page["properties"]["colour"] == "red"
    assert page["body"]["text"] == "hello"
    kinds = [(event["kind"], event["atMs"]) for event in page["history"]]
    assert kinds == [("born", START_MS), ("accepted", START_MS), ("due", START_MS + HOUR_MS)]


def test_a_send_that_debounces_tells_how_many_messages_it_has_replaced(http: HttpClient) -> None:
    debounced = {"keys": "k1", "properties": {"TIDEGATE_DEBOUNCE": "k1"}}
    answers = [send(http, keys="k1"), send(http, **debounced), send(http, **debounced)]
    answers.append(send(http, at="-1s", **debounced))
    answers.append(send(http, **debounced))
    assert [sent["replaced"] for sent in answers] == [None, 1, 1, 1, 0]


@pytest.mark.parametrize(
    "query",
    [
        {"key": "k1"},
        {"key": "k1", "topic": "orders"},
        {"tag": "late"},
        {"topic": "orders"},
        {"begin": "+50m", "end": "+70m"},
        {"begin": START_MS + HOUR_MS, "end": START_MS + HOUR_MS + 1},
    ],
)
def test_messages_are_found_by(query: dict[str, Any], http: HttpClient) -> None:
    sent = send(http, tags="late", keys="k1")
    send(http, topic="others", at="+3h")
    found = http.get("/messages", **query)["messages"]
    assert [one["msgId"] for one in found] == [sent["msgId"]]


def test_a_key_may_be_given_as_a_property(http: HttpClient) -> None:
    sent = send(http, properties={"KEYS": "k1"})
    (found,) = http.get("/messages", key="k1")["messages"]
    assert found["msgId"] == sent["msgId"]


def test_pages_follow_one_another(http: HttpClient) -> None:
    sent = [send(http, at=f"+{minute}m")["msgId"] for minute in range(1, 6)]
    found = []
    cursor = ""
    while cursor is not None:
        page = http.get("/messages", limit=2, cursor=cursor)
        assert len(page["messages"]) <= 2
        found += [one["msgId"] for one in page["messages"]]
        cursor = page["cursor"]
    assert found == sent


def test_what_became_of_a_message(gateway: MemoryGateway, http: HttpClient) -> None:
    fired, aborted = send(http), send(http)
    answer = http.post(f"/messages/{aborted['offsetMsgId']}/abort")
    assert [one["outcome"] for one in answer["results"]] == ["aborted"]
    gateway.jump(HOUR_MS)
    assert _events(http, fired)[-1] == ("fired", START_MS + HOUR_MS)
    assert ("aborted", START_MS) in _events(http, aborted)
    for sent, outcome in ((fired, "already fired"), (aborted, "already aborted")):
        answer = http.post(f"/messages/{sent['offsetMsgId']}/abort")
        assert [one["outcome"] for one in answer["results"]] == [outcome]


def test_messages_are_changed_by_their_key(gateway: MemoryGateway, http: HttpClient) -> None:
    """A key may have characters that end a part of a path."""
    sent = [send(http, keys=f"other 50%/{number}?")["msgId"] for number in (1, 2, 2)]
    send(http, topic="others", keys="50%/2?")
    path = f"/topics/orders/keys/{quote('50%/2?', safe='')}"
    moved = http.post(f"{path}/reschedule", {"shift": "10m"})["results"]
    assert sorted(one["msgId"] for one in moved) == sorted(sent[1:])
    assert {(one["outcome"], one["dueMs"]) for one in moved} == {
        ("rescheduled", START_MS + HOUR_MS + 600_000)
    }
    for outcome in ("aborted", "already aborted"):
        results = http.post(f"{path}/abort")["results"]
        assert sorted(one["msgId"] for one in results) == sorted(sent[1:])
        assert {one["outcome"] for one in results} == {outcome}
    gateway.jump(HOUR_MS)
    fired = http.post(f"/topics/orders/keys/{quote('50%/1?', safe='')}/abort")["results"]
    assert [(one["msgId"], one["outcome"]) for one in fired] == [(sent[0], "already fired")]
    noted = [(one["action"], one["from"]) for one in read_lines(gateway.data)]
    assert noted == [("reschedule", "127.0.0.1")] * 2 + [("abort", "127.0.0.1")] * 2
    for topic, key in (("orders", "none"), ("none", "other")):
        for order, body in (("abort", {}), ("reschedule", {"at": "+2h"})):
            refused = http.refusal("POST", f"/topics/{topic}/keys/{key}/{order}", body)
            assert (refused["status"], key in refused["detail"]) == (404, True)


def test_a_clients_id_is_told_from_an_offset_id(http: HttpClient) -> None:
    sent = send(http, at="now")
    problem = http.refusal("GET", f"/messages/{sent['msgId']}")
    assert problem["status"] == 404
    (path,) = re.findall(r"/messages\?\S+", problem["detail"])
    (found,) = http.get(path)["messages"]
    assert found["offsetMsgId"] == sent["offsetMsgId"]


def test_of_a_message_without_a_time_there_is_none(
    gateway: MemoryGateway, http: HttpClient
) -> None:
    answer = gateway.connect().send_message("orders", "x").ext()
    page = http.get(f"/messages/{answer['msgId']}")
    assert [event["kind"] for event in page["history"]] == ["born", "stored"]


def test_groups_behind_a_message_are_named(gateway: MemoryGateway, http: HttpClient) -> None:
    sent = send(http, at="now", queue=0)
    pending = send(http, queue=0)
    assert http.get(f"/messages/{sent['offsetMsgId']}")["receivers"] == []
    client = gateway.connect()
    client.pull(group="behind", offset=0, commit=0)
    client.pull(group="there", offset=0, commit=1)
    client.pull(group="elsewhere", queue=1, offset=0, commit=0)
    gateway.settle()
    receivers = http.get(f"/messages/{sent['offsetMsgId']}")["receivers"]
    assert [(one["group"], one["isPast"]) for one in receivers] == [
        ("there", True),
        ("behind", False),
    ]
    # A pending message has no place that a group could be past.
    assert http.get(f"/messages/{pending['offsetMsgId']}")["receivers"] == []


@pytest.mark.parametrize(
    ("peer", "born"), [("192.0.2.7", "192.0.2.7"), ("2001:db8::7", "127.0.0.1")]
)
def test_a_message_comes_from_who_sent_it(gateway: MemoryGateway, peer: str, born: str) -> None:
    send(HttpClient(gateway, peer), at=None, queue=0)
    (message,) = gateway.connect().pull("orders", 0)
    assert message.born_host == pack_host(born, 0)


@pytest.mark.parametrize(("order", "body"), [("abort", {}), ("reschedule", {"at": "+2h"})])
@pytest.mark.parametrize("by_key", [False, True])
def test_a_change_is_answered_when_it_is_on_disk(
    gateway: MemoryGateway, http: HttpClient, order: str, body: object, by_key: bool
) -> None:
    sent = send(http, keys="k1")
    place = "topics/orders/keys/k1" if by_key else f"messages/{sent['offsetMsgId']}"
    with commits_fail(gateway):
        problem = http.refusal("POST", f"/{place}/{order}", body)
        assert problem["status"] in (500, 503)
    with batches_cannot_begin():
        at_once = http.refusal("POST", f"/{place}/{order}", body)
        assert (at_once["status"], at_once["code"]) == (503, 14)
    message = http.get(f"/messages/{sent['offsetMsgId']}")["message"]
    assert (message["state"], message["dueMs"]) == ("pending", START_MS + HOUR_MS)


def test_what_a_limit_refuses_is_no_error_of_the_server(make_gateway: MakeGateway) -> None:
    limits = {"max_held_messages": 1, "max_send_rate": 2}
    http = HttpClient(make_gateway(http=parse_host_port(HTTP_PORT), **limits))
    send(http)
    held = http.refusal("POST", "/messages", {"topic": "orders", "body": "x", "at": "+1h"})
    assert (held["status"], held["code"], "max_held_messages" in held["detail"]) == (429, 1, True)
    send(http, at="now")
    rate = http.refusal("POST", "/messages", {"topic": "orders", "body": "x"})
    assert (rate["status"], rate["code"], "max_send_rate" in rate["detail"]) == (429, 2, True)


def test_a_send_that_is_not_stored_is_an_error(gateway: MemoryGateway, http: HttpClient) -> None:
    with commits_fail(gateway):
        assert http.refusal("POST", "/messages", {"topic": "orders", "body": "x"})["status"] >= 500


def test_properties_that_are_too_long_are_not_put_together(
    http: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a million of them, which fit into a request, held up all clients for 0.7 s."""
    monkeypatch.delattr(sending, "join")
    many = {f"property-{number}": "x" for number in range(3_000)}
    problem = http.refusal(
        "POST", "/messages", {"topic": "orders", "body": "x", "properties": many}
    )
    assert (problem["status"], problem["code"]) == (400, ResponseCode.MESSAGE_ILLEGAL)
    assert "msg properties length limit 32KB" in problem["detail"]


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"topic": "orders"}, 400, "body"),
        ({"topic": "", "body": "x"}, 400, "topic"),
        ({"topic": "a b", "body": "x"}, 400, "illegal characters"),
        ({"topic": "%RETRY%group", "body": "x"}, 400, "consumer group"),
        ({"topic": "rmq_sys_wheel_timer", "body": "x"}, 403, "forbidden"),
        # Nobody could decide it, and no consumer ever saw it.
        ({"topic": "orders", "body": "x", "properties": {"TRAN_MSG": "true"}}, 400, "half message"),
        # The answer would name a message, and none was sent.
        (
            {"topic": "orders", "body": "x", "properties": {"TIDEGATE_CRON": "0 5 * * *"}},
            400,
            "PUT /api/v1/recurring/{topic}/{name}",
        ),
        ({"topic": "orders", "body": "x", "at": "soon"}, 400, "not a time"),
        (
            {"topic": "orders", "body": "x", "properties": {"DELAY": "soon"}},
            400,
            "DELAY is not a number",
        ),
        ({"topic": "orders", "body": "x", "at": 1_896_078_600}, 400, "write 1896078600000"),
        ({"topic": "orders", "body": "x", "at": "+900d"}, 400, "timer"),
        # The property would win, and the message would come an hour early.
        (
            {"topic": "orders", "body": "x", "at": "+1h", "properties": {"TIMER_DELAY_SEC": "5"}},
            400,
            "not by both",
        ),
        ({"topic": "orders", "body": "?", "encoding": "base64"}, 400, "base64"),
        ({"topic": "orders", "body": "é", "encoding": "base64"}, 400, "base64"),
        ({"topic": "orders", "body": "x", "properties": {"a": "\x01"}}, 400, "property"),
        *(
            (
                {"topic": "orders", "body": "x", "at": "+1h", "properties": {name: ""}},
                400,
                f"{name} is empty",
            )
            for name in ("TIDEGATE_RESCHEDULE", "TIDEGATE_DEBOUNCE", "TIMER_DEL_UNIQKEY")
        ),
        ({"topic": "orders", "body": "x", "more": 1}, 400, "more"),
    ],
)
def test_what_cannot_be_sent(body: object, status: int, text: str, http: HttpClient) -> None:
    problem = http.refusal("POST", "/messages", body)
    assert problem["status"] == status
    assert text in problem["detail"]


@pytest.mark.parametrize(
    ("data", "encoding", "text"),
    [
        ("ein Gruß".encode(), "utf-8", "ein Gruß"),
        (b"\xff\x00\x10", "hex", "ff0010"),
        (gzip.compress(b"x", mtime=0)[:4], "hex", "1f8b0800"),
        # Nothing says that the body is compressed.
        (zlib.compress(b"x"), "hex", zlib.compress(b"x").hex()),
    ],
)
def test_bodies_are_text_or_hex(data: bytes, encoding: str, text: str, http: HttpClient) -> None:
    sent = send(http, body=base64.b64encode(data).decode(), encoding="base64")
    body = http.get(f"/messages/{sent['offsetMsgId']}")["body"]
    assert (body["encoding"], body["text"], body["isWhole"]) == (encoding, text, True)
    assert body["shown"] == body["size"] == len(data)
    assert not body["isCompressed"]


def test_a_long_body_is_cut_between_characters(http: HttpClient) -> None:
    sent = send(http, body="ä" * MAX_PREVIEW)
    body = http.get(f"/messages/{sent['offsetMsgId']}")["body"]
    assert body["text"] == "ä" * (MAX_PREVIEW // 2)
    assert (body["isWhole"], body["size"]) == (False, 2 * MAX_PREVIEW)
    sent = send(http, body="x" + "ä" * MAX_PREVIEW)
    body = http.get(f"/messages/{sent['offsetMsgId']}")["body"]
    assert body["text"] == "x" + "ä" * (MAX_PREVIEW // 2 - 1)
    assert body["shown"] == MAX_PREVIEW - 1


def test_a_compressed_body_is_shown_as_it_was(gateway: MemoryGateway, http: HttpClient) -> None:
    bomb = zlib.compress(b"A" * (8 << 20))
    gateway.connect().send_message(body=bomb, fields={"sys_flag": 1}, TIMER_DELAY_SEC="60")
    (found,) = http.get("/messages", topic="orders")["messages"]
    body = http.get(f"/messages/{found['offsetMsgId']}")["body"]
    assert body["isCompressed"]
    assert not body["isWhole"]
    assert body["text"] == "A" * MAX_PREVIEW


def test_unknown_messages(http: HttpClient) -> None:
    assert http.refusal("GET", "/messages/" + "0" * 32)["status"] == 404
    assert http.refusal("GET", "/messages/none")["status"] == 400
    assert http.refusal("POST", "/messages/" + "0" * 32 + "/abort", {})["status"] == 404


def test_what_has_happened_is_listed_the_last_first(
    gateway: MemoryGateway, http: HttpClient
) -> None:
    aborted = [send(http, at="+2h", tags="late") for _ in range(3)]
    for one in aborted:
        gateway.advance(1_000)
        http.post(f"/messages/{one['offsetMsgId']}/abort")
    fired = [send(http, at=f"+{minute}m", tags=f"t{minute % 2}") for minute in range(1, 8)]
    send(http, at="now", body="not timed by its sender")
    gateway.connect().send_message("orders", "not timed at all")
    gateway.advance(8 * 60_000)
    gateway.jump(3 * HOUR_MS)

    def listed(**query: object) -> list[str]:
        ids, cursor = [], ""
        while cursor is not None:
            page = http.get("/messages", limit=2, cursor=cursor, **query)
            ids += [one["msgId"] for one in page["messages"]]
            cursor = page["cursor"]
        return ids

    everything = [one["msgId"] for one in reversed(fired)]
    assert listed(topic="orders", state="fired")[:7] == everything
    assert listed(topic="orders", state="fired", tag="t1") == everything[::2]
    begin, end = START_MS + 3_000 + 2 * 60_000, START_MS + 3_000 + 4 * 60_000
    assert listed(topic="orders", state="fired", begin=begin, end=end) == everything[4:6]
    assert listed(topic="nothing", state="fired") == []
    taken_back = [one["msgId"] for one in reversed(aborted)]
    assert listed(state="aborted") == listed(state="aborted", topic="orders") == taken_back
    assert listed(state="aborted", tag="late", begin=START_MS + 2_000) == taken_back[:2]
    assert listed(state="aborted", end=START_MS + 2_000) == taken_back[2:]
    assert listed(state="aborted", topic="nothing") == []


@pytest.mark.parametrize("query", [{"state": "fired"}, {"state": "any", "topic": "orders"}])
def test_listings_that_need_more(http: HttpClient, query: dict[str, str]) -> None:
    problem = http.refusal("GET", "/messages", **query)
    assert (problem["status"], "name one" in problem["detail"]) == (400, True)


def _events(http: HttpClient, sent: Any) -> list[tuple[str, int]]:
    page = http.get(f"/messages/{sent['offsetMsgId']}")
    return [(event["kind"], event["atMs"]) for event in page["history"]]


def test_a_message_is_given_another_time(gateway: MemoryGateway, http: HttpClient) -> None:
    sent = send(http)
    path = f"/messages/{sent['offsetMsgId']}"
    gateway.advance(1_000)
    (moved,) = http.post(f"{path}/reschedule", {"at": "+2h"})["results"]
    assert (moved["outcome"], moved["dueMs"]) == ("rescheduled", START_MS + 2 * HOUR_MS + 1_000)
    (moved,) = http.post(f"{path}/reschedule", {"shift": "-30m"})["results"]
    assert moved["dueMs"] == START_MS + HOUR_MS + 1_800_000 + 1_000
    assert ("rescheduled", START_MS + 1_000) in _events(http, sent)
    gateway.jump(2 * HOUR_MS)
    (late,) = http.post(f"{path}/reschedule", {"at": "+1h"})["results"]
    assert late["outcome"] == "already fired"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"at": "+1h", "shift": "1m"},
        {"at": "soon"},
        {"at": 1_896_078_600},
        {"shift": "x"},
        {"shift": "--10"},
        {"shift": "-+10m"},
        {"at": "+900d"},
    ],
)
def test_new_times_that_are_none(body: dict[str, object], http: HttpClient) -> None:
    sent = send(http)
    problem = http.refusal("POST", f"/messages/{sent['offsetMsgId']}/reschedule", body)
    assert problem["status"] == 400
    if "shift" in body and "at" not in body:
        assert "write one such as 10m, -2h or 1h30m" in problem["detail"]


def test_a_topic_is_paused_and_resumed(gateway: MemoryGateway, http: HttpClient) -> None:
    send(http)
    send(http, topic="others")
    with commits_fail(gateway):
        assert http.refusal("POST", "/topics/orders/pause", {})["status"] in (500, 503)
    assert http.post("/topics/orders/pause") == {"changed": True}
    assert http.post("/topics/orders/pause") == {"changed": False}
    with commits_fail(gateway):
        assert http.refusal("POST", "/topics/orders/resume", {})["status"] in (500, 503)
    gateway.jump(HOUR_MS)
    (waiting,) = http.get("/messages", topic="orders")["messages"]
    assert http.get(f"/messages/{waiting['offsetMsgId']}")["isPaused"]
    rows = {one["name"]: one for one in http.get("/topics", contains="r")["topics"]}
    assert (rows["orders"]["held"], rows["orders"]["pause"]["waiting"]) == (1, 1)
    assert (rows["others"]["held"], rows["others"]["pause"]) == (0, None)
    for end in (START_MS + 2 * HOUR_MS, START_MS + HOUR_MS + 1_000):
        counted = http.get("/timeline", begin=START_MS + HOUR_MS - 1_000, end=end)
        assert (counted["total"], counted["firstDueMs"]) == (1, START_MS + HOUR_MS)
    assert len(http.get("/messages", topic="orders")["messages"]) == 1
    assert http.post("/topics/orders/resume") == {"changed": True}
    gateway.advance(1_000)
    assert http.get("/messages", topic="orders")["messages"] == []
    assert http.refusal("POST", "/topics/nothing/pause", {})["status"] == 404


def test_of_many_searches_one_has_its_turn_at_a_time(
    gateway: MemoryGateway, http: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred messages take 5 ms, and a page of a thousand takes ten turns."""
    for _ in range(7):
        send(http)
    searches: list[Wanted] = []
    select = PendingMessages.select

    def looked(pending: PendingMessages, wanted: Wanted, *args: Any) -> FoundPage:
        searches.append(wanted)
        return select(pending, wanted, *args)

    monkeypatch.setattr(PendingMessages, "select", looked)
    monkeypatch.setattr(messages, "PIECE", 3)
    asking = [http.connect() for _ in range(5)]
    for connection in asking:
        head = f"GET {API}/messages?topic=orders HTTP/1.1\r\nHost: {HTTP_PORT}\r\n\r\n"
        connection.protocol.dataReceived(head.encode())
    before = len(searches)
    assert before == 0
    while gateway.reactor.turn():
        assert len(searches) - before <= 1
        before = len(searches)
    assert before == 5 * 3
    for one in asking:
        assert b"HTTP/1.1 200" in one.value()
        assert one.value().count(b'"msgId"') == 7
