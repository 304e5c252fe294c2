"""Topics, groups and rates through the API."""

from __future__ import annotations

from itertools import count
from typing import Any, cast

import pytest
from twisted.internet.defer import ensureDeferred

from gateway.settings.values import parse_host_port
from gateway.topics import SYSTEM_GROUPS
from gateway.web import topics, turns
from gateway.web.endpoints import Asker
from gateway.web.topics import GroupList, Listings, ListQuery, _page
from gateway.web.turns import Turns
from gateway.wire.codes import RequestCode, ResponseCode
from storage.keys import queue_prefix
from storage.paused import PausedTopics
from tests.gateway.conftest import MakeGateway
from tests.gateway.consuming import send_back
from tests.gateway.faults import commits_fail, damaged_row
from tests.gateway.memory import START_MS, MemoryGateway
from tests.gateway.popping import pop_fields
from tests.gateway.tools import commit_offset, create_topic, ok, put_group
from tests.web.http import HTTP_PORT, HttpClient


def test_how_far_groups_are(gateway: MemoryGateway, http: HttpClient) -> None:
    client = gateway.connect()
    for _ in range(5):
        client.send_message("orders", fields={"queue": 0})
        gateway.advance(1_000)
    client.heartbeat("worker-1", "workers")
    client.pull("orders", 0, 3, group="workers", commit=3)
    client.pull("orders", 0, 5, group="done", commit=5)
    groups = {one["name"]: one for one in http.get("/groups")["groups"]}
    assert (groups["workers"]["lag"], groups["workers"]["members"]) == (2, ["worker-1"])
    (topic,) = groups["workers"]["topics"]
    assert (topic["topic"], topic["waitingSinceMs"]) == ("orders", START_MS + 3_000)
    first = {"broker": "broker-a", "queue": 0, "first": 0, "end": 5, "offset": 3, "lag": 2}
    assert topic["queues"][0] == first
    assert (groups["done"]["lag"], groups["done"]["members"]) == (0, [])
    client.heartbeat("worker-1", "workers", {})
    groups = {one["name"]: one for one in http.get("/groups")["groups"]}
    assert groups["workers"]["lag"] == 2, "a pull consumer that is given its queues"
    client.heartbeat("worker-1", "workers", {"bills": "*"})
    groups = {one["name"]: one for one in http.get("/groups")["groups"]}
    assert groups["workers"]["topics"] == []


def test_what_came_back_to_a_group_that_is_gone_is_still_to_be_consumed(
    gateway: MemoryGateway, http: HttpClient
) -> None:
    """Java's consumers pull from the topic of their retries only half a minute after that began."""
    client = gateway.connect()
    client.send_message("orders")
    client.heartbeat("worker-1", "workers", {"orders": "*", "%RETRY%workers": "*"})
    (message,) = client.pull("orders", 0, 0, group="workers", commit=1)
    assert send_back(client, message, level=1).code == ResponseCode.SUCCESS
    assert_lags(http, {"orders": 0})
    gateway.advance(2_000)
    assert_lags(http, {"orders": 0, "%RETRY%workers": 1})
    client.transport.loseConnection()
    gateway.settle()
    assert_lags(http, {"orders": 0, "%RETRY%workers": 1})


def assert_lags(http: HttpClient, lags: dict[str, int]) -> None:
    (group,) = http.get("/groups", contains="workers")["groups"]
    assert {one["topic"]: one["lag"] for one in group["topics"]} == lags
    assert group["lag"] == sum(lags.values())


def test_what_comes_back_to_groups_that_pop_is_still_to_be_consumed(
    gateway: MemoryGateway, http: HttpClient
) -> None:
    client = gateway.connect()
    client.send_message("orders")
    client.heartbeat("popper-1", "poppers")
    fields = pop_fields(gateway, consumerGroup="poppers", invisibleTime=1_000)
    ok(client.ask(RequestCode.POP_MESSAGE, fields))
    gateway.advance(2_000)
    (group,) = http.get("/groups", contains="poppers")["groups"]
    assert {one["topic"]: one["lag"] for one in group["topics"]} == {
        "%RETRY%poppers_orders": 1,
        "orders": 0,
    }


def test_what_is_gone_or_was_never_there_is_not_still_to_be_consumed(
    make_gateway: MakeGateway,
) -> None:
    gateway = make_gateway(http=parse_host_port(HTTP_PORT), retention_hours=1)
    client, http = gateway.connect(), HttpClient(gateway)
    for _ in range(3):
        client.send_message("orders")
    client.pull("orders", 0, 1, group="behind", commit=1)
    client.pull("orders", 0, 1, group="ahead", commit=9)
    gateway.jump(2 * 3_600_000)
    gateway.connect().send_message("orders")
    groups = {one["name"]: one for one in http.get("/groups")["groups"]}
    for name, offset, lag in (("behind", 1, 1), ("ahead", 9, 0)):
        assert groups[name]["lag"] == lag
        queue = groups[name]["topics"][0]["queues"][0]
        assert (queue["first"], queue["end"], queue["offset"], queue["lag"]) == (3, 4, offset, lag)
    (row,) = http.get("/topics", contains="orders")["topics"]
    assert row["stored"] == 1


def test_groups_are_those_that_are_known_online_or_have_progress(
    make_gateway: MakeGateway,
) -> None:
    gateway = make_gateway(http=parse_host_port(HTTP_PORT), auto_create_group=False)
    client, http = gateway.connect(), HttpClient(gateway)
    client.send_message("orders")
    for group in ("known", "deleted", "online"):
        ok(put_group(client, group))
    for group in ("known", "deleted"):
        ok(commit_offset(client, "orders", 0, 1, group))
    client.heartbeat("worker-1", "online")
    for group in ("deleted", "online"):
        ok(client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": group}))
    names = {one["name"] for one in http.get("/groups")["groups"]}
    assert names - set(SYSTEM_GROUPS) == {"deleted", "known", "online"}


def test_lists_come_in_pages(gateway: MemoryGateway, http: HttpClient) -> None:
    client = gateway.connect()
    for number in range(5):
        client.send_message(f"Page{number}")
    names, cursor = [], ""
    while cursor is not None:
        page = http.get("/topics", contains="page", limit=2, cursor=cursor)
        assert len(page["topics"]) <= 2
        names += [one["name"] for one in page["topics"]]
        cursor = page["cursor"]
    assert names == [f"Page{number}" for number in range(5)]


def test_a_page_of_groups_ends_with_the_one_that_has_too_many_queues(
    gateway: MemoryGateway, http: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer about one group in 100 topics of 10,000 queues had 52 MB, and there may be 100 groups."""
    monkeypatch.setattr(topics, "MAX_QUEUES_AT_A_TIME", 10)
    client = gateway.connect()
    for topic, queues in (("a", 4), ("b", 8), ("c", 2)):
        create_topic(client, topic, queues)
        client.send_message(topic)
    for group in ("many-1", "many-2", "many-3"):
        ok(put_group(client, group))
        for topic in ("a", "c") if group != "many-2" else ("a", "b", "c"):
            ok(commit_offset(client, topic, 1, 0, group))
    shown, cursor = [], ""
    while cursor is not None:
        page = http.get("/groups", contains="many", cursor=cursor)
        shown.append({one["name"]: one["topics"] for one in page["groups"]})
        cursor = page["cursor"]
    assert [list(groups) for groups in shown] == [["many-1", "many-2"], ["many-3"]]
    of_second = {one["topic"]: (len(one["queues"]), one["lag"]) for one in shown[0]["many-2"]}
    assert of_second == {"a": (4, 1), "b": (0, 1), "c": (0, 1)}


def test_what_topics_hold(gateway: MemoryGateway, http: HttpClient) -> None:
    client = gateway.connect()
    client.send_message("orders")
    client.send_message("orders", TIMER_DELAY_SEC="60")
    (row,) = http.get("/topics", contains="orders")["topics"]
    assert (row["held"], row["stored"], row["entered"], row["isSystem"]) == (1, 1, 1, False)


def test_a_page_looks_only_at_the_pauses_of_its_topics(
    gateway: MemoryGateway, http: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = gateway.connect()
    for number in range(3):
        client.send_message(f"Page{number}")
        http.post(f"/topics/Page{number}/pause")
    looks = count()
    items = PausedTopics.items
    monkeypatch.setattr(PausedTopics, "items", lambda paused: (items(paused), next(looks))[0])
    rows = http.get("/topics", contains="page")["topics"]
    assert [row["pause"]["topic"] for row in rows] == ["Page0", "Page1", "Page2"]
    assert next(looks) == 0, "there may be thousands"


def test_rates_and_status(gateway: MemoryGateway, http: HttpClient) -> None:
    client = gateway.connect()
    for _ in range(20):
        client.send_message("orders", TIMER_DELAY_MS="500")
    gateway.advance(10_000)
    rates = http.get("/rates")
    assert (rates["accepted"]["total"], rates["fired"]["total"]) == (20, 20)
    assert (rates["timedTotal"], rates["held"], rates["overdueMs"]) == (20, 0, 0)
    assert rates["fired"]["minute"] == 2
    assert sum(rates["firingError"]["counts"]) == 20
    assert len(rates["firingError"]["counts"]) == len(rates["firingError"]["bounds"]) + 1
    client.send_message("orders", TIMER_DELAY_MS="500")
    with commits_fail(gateway):
        gateway.advance(3_000)
        assert http.get("/rates")["overdueMs"] == 2_500
    gateway.advance(1_000)
    status = http.get("/status")
    assert (status["broker"], status["user"], status["reasons"]) == ("broker-a", None, [])


def test_it_is_asked_of_no_more_names_than_a_page_takes_whether_they_may_be_seen(
    gateway: MemoryGateway,
) -> None:
    names = [f"t{number:02}" for number in reversed(range(100))]
    asked: list[str] = []
    pieces = Turns(gateway.reactor, gateway.service.broker.committer)

    def may(name: str) -> bool:
        asked.append(name)
        return name != "t11"

    def page(query: ListQuery) -> object:
        paging = ensureDeferred(_page(names, query, 3, may, pieces.begin()))
        gateway.settle()
        return paging.result

    assert page(ListQuery(contains="T", cursor="t09")) == (["t10", "t12", "t13"], "t13")
    assert asked == ["t10", "t11", "t12", "t13", "t14"]
    assert page(ListQuery(cursor="t97")) == (["t98", "t99"], None)


def test_others_have_their_turn_while_a_user_with_many_policies_is_told_what_may_be_seen(
    gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "PIECE_SECONDS", 0)
    asked: list[str] = []
    work = Turns(gateway.reactor, gateway.service.broker.committer).begin()

    def may(name: str) -> bool:
        asked.append(name)
        return False

    paging = ensureDeferred(_page("abc", ListQuery(), 3, may, work))
    for expected in ("a", "ab", "abc"):
        gateway.reactor.turn()
        assert asked == [*expected]
    assert paging.result == ([], None)


def test_others_have_their_turn_while_many_queues_of_a_group_are_looked_at(
    gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "PIECE_SECONDS", 0)
    client = gateway.connect()
    create_topic(client, "wide", 100)
    client.pull("wide", 0, 0, group="workers", commit=0)
    broker, unused = gateway.service.broker, cast(Any, None)
    listings = Listings(broker, unused, unused, Turns(gateway.reactor, broker.committer))
    listing = ensureDeferred(listings.list_groups(Asker(None, ""), ListQuery(contains="workers")))
    for _ in range(100):
        gateway.reactor.turn()
    assert not listing.called
    gateway.settle()
    (group,) = cast(GroupList, listing.result).groups
    assert len(group.topics[0].queues) == 100


@pytest.mark.parametrize("turn", range(4))
def test_a_topic_that_is_deleted_while_a_list_is_made_is_left_out(
    gateway: MemoryGateway, http: HttpClient, monkeypatch: pytest.MonkeyPatch, turn: int
) -> None:
    """Others have their turn between two topics: each may have a thousand queues."""
    monkeypatch.setattr(turns, "PIECE_SECONDS", 0)
    client = gateway.connect()

    def delete_in(left: int) -> None:
        if left:
            gateway.reactor.callLater(0, delete_in, left - 1)
        else:
            client.send(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "job-2"})

    def list_meanwhile(path: str, contains: str) -> list[dict[str, Any]]:
        for topic in ("job-1", "job-2", "job-3"):
            client.send_message(topic)
            client.pull(topic, 0, 1, group="workers", commit=1)
        gateway.reactor.callLater(0, delete_in, turn)
        rows: list[dict[str, Any]] = http.get(path, contains=contains)[path.removeprefix("/")]
        client.take()
        return rows

    topics = list_meanwhile("/topics", "job")
    assert [one["name"] for one in topics] == ["job-1", "job-3"]
    (group,) = list_meanwhile("/groups", "workers")
    assert [one["topic"] for one in group["topics"]] == ["job-1", "job-3"]


def test_what_cannot_be_read_keeps_no_other_from_being_listed(
    gateway: MemoryGateway, http: HttpClient
) -> None:
    client = gateway.connect()
    for queue in (0, 1, 1):
        client.send_message("orders", fields={"queue": queue})
    ok(put_group(client, "consumers"))
    ok(commit_offset(client, "orders", 1, 1, "consumers"))
    key = queue_prefix(b"orders", 0) + bytes(8) + b"x"
    with damaged_row(gateway, "queues", key, lambda _: b"short"):
        assert http.get("/topics", contains="orders")["topics"][0]["stored"] == 2
        (group,) = http.get("/groups", contains="consumers")["groups"]
        assert [one["queue"] for one in group["topics"][0]["queues"]] == [1, 2, 3]
