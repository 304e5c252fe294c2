"""Recurring messages through the API."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import pytest

from tests.gateway.faults import commits_fail
from tests.gateway.memory import START_MS, MemoryGateway, bodies
from tests.gateway.tools import create_topic, ok
from tests.web.http import API, HttpClient

MINUTE_MS = 60_000
PATH = "/recurring/reports/nightly"


def put(http: HttpClient, path: str = PATH, **fields: object) -> Any:
    """Set a recurring message, by default one that fires every two minutes."""
    body = {"every": "2m", "body": "report", **fields}
    answer = http.ask("PUT", API + path, {key: value for key, value in body.items() if value})
    assert answer.status == 200, answer
    return answer.json


def test_one_is_set_listed_and_fires(gateway: MemoryGateway, http: HttpClient) -> None:
    change = put(http, tags="late", keys="k1", properties={"colour": "red"})
    assert change["outcome"] == "set"
    assert change["recurring"]["nextMs"] == START_MS + 2 * MINUTE_MS
    (listed,) = http.get("/recurring")["recurring"]
    assert (listed["topic"], listed["name"], listed["every"]) == ("reports", "nightly", "2m")
    page = http.get(PATH)
    assert base64.b64decode(page["recurring"]["body"]) == b"report"
    properties = page["recurring"]["properties"]
    assert [properties[name] for name in ("colour", "TAGS", "KEYS")] == ["red", "late", "k1"]
    assert page["times"][:2] == [START_MS + 2 * MINUTE_MS, START_MS + 4 * MINUTE_MS]
    gateway.advance(5 * MINUTE_MS)
    client = gateway.connect()
    fired = [one for queue in range(8) for one in client.pull_all("reports", queue)]
    assert bodies(fired) == ["report", "report"]
    assert http.get(PATH)["recurring"]["fired"] == 2


def test_one_is_paused_resumed_and_deleted(http: HttpClient) -> None:
    put(http)
    for order, outcome in (
        ("pause", "paused"),
        ("pause", "already paused"),
        ("resume", "resumed"),
        ("resume", "already active"),
    ):
        assert http.post(f"{PATH}/{order}")["outcome"] == outcome
    assert http.ask("DELETE", API + PATH).json["outcome"] == "deleted"
    assert http.get("/recurring")["recurring"] == []
    assert http.refusal("DELETE", PATH)["status"] == 404


@pytest.mark.parametrize(
    ("method", "path"), [("POST", f"{PATH}/pause"), ("DELETE", PATH), ("PUT", PATH)]
)
def test_a_change_is_answered_when_it_is_on_disk(
    gateway: MemoryGateway, http: HttpClient, method: str, path: str
) -> None:
    put(http)
    with commits_fail(gateway):
        problem = http.refusal(method, path, {"every": "9m", "body": "other"})
        assert problem["status"] in (500, 503)
    recurring = http.get(PATH)["recurring"]
    assert (recurring["state"], recurring["every"]) == ("active", "2m")


def test_one_is_replaced(http: HttpClient) -> None:
    put(http)
    assert put(http, body="other")["outcome"] == "updated"
    assert put(http, every="", cron="0 5 * * *", zone="Europe/Berlin")["outcome"] == "replaced"
    assert http.get(PATH)["recurring"]["zone"] == "Europe/Berlin"


def test_times_are_epoch_ms_as_well(http: HttpClient) -> None:
    begin_ms, end_ms = START_MS + MINUTE_MS, START_MS + 5 * MINUTE_MS
    one = put(http, start=begin_ms, end=str(end_ms))["recurring"]
    assert (one["startMs"], one["endMs"], one["nextMs"]) == (begin_ms, end_ms, begin_ms)
    assert http.get("/recurring-times", every="2m", start=begin_ms)["times"][0] == begin_ms


def test_zero_is_the_beginning_so_that_a_period_falls_on_whole_units(http: HttpClient) -> None:
    week_ms = 7 * 24 * 60 * MINUTE_MS
    fields = {"every": "7d", "body": "report", "start": 0}
    answer = http.ask("PUT", API + PATH, fields)
    assert answer.status == 200, answer
    one = answer.json["recurring"]
    assert (one["startMs"], one["nextMs"] % week_ms) == (0, 0)
    assert http.get("/recurring-times", every="7d", start=0)["times"][0] == one["nextMs"]


def test_one_that_is_set_again_keeps_its_queue(http: HttpClient) -> None:
    put(http, queue=3)
    for fields in ({"body": "other"}, {"every": "5m"}) * 4:
        assert put(http, **fields)["recurring"]["queueId"] == 3
    assert put(http, queue=5)["recurring"]["queueId"] == 5


def test_its_queue_is_kept_as_long_as_the_topic_has_it(
    gateway: MemoryGateway, http: HttpClient
) -> None:
    ok(create_topic(gateway.connect(), "reports", 4))
    put(http, queue=3)
    ok(create_topic(gateway.connect(), "reports", 3))
    assert put(http, body="other")["recurring"]["queueId"] in range(3)


def test_what_a_page_has_of_one_sets_it_again(gateway: MemoryGateway, http: HttpClient) -> None:
    packed = base64.b64encode(zlib.compress(b"report" * 9)).decode()
    put(http, body=packed, encoding="base64", queue=3, flag=7, sysFlag=1)
    one = http.get(PATH)["recurring"]
    assert (one["body"], one["queueId"], one["flag"], one["sysFlag"]) == (packed, 3, 7, 1)
    gateway.advance(2 * MINUTE_MS)
    (fired,) = gateway.connect().pull_all("reports", 3)
    assert (fired.flag, fired.sys_flag, zlib.decompress(fired.body)) == (7, 1, b"report" * 9)


def test_a_rule_is_tried_out(http: HttpClient) -> None:
    times = http.get("/recurring-times", cron="*/5 * * * *")
    assert (len(times["times"]), times["zone"]) == (10, "UTC")
    assert times["times"][1] - times["times"][0] == 5 * MINUTE_MS
    for wrong in ({}, {"cron": "x"}, {"every": "0s"}, {"cron": "* * * * *", "every": "1m"}):
        assert http.refusal("GET", "/recurring-times", **wrong)["status"] == 400


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (PATH, {"every": "soon"}),
        (PATH, {"every": ""}),
        (PATH, {"misfire": "odd"}),
        (PATH, {"queue": 99}),
        (PATH, {"sysFlag": 4}),
        ("/recurring/reports/a%20b", {}),
        ("/recurring/%25RETRY%25group/a", {}),
        ("/recurring/a%20b/a", {}),
    ],
)
def test_what_cannot_recur(
    gateway: MemoryGateway, http: HttpClient, path: str, fields: dict[str, str]
) -> None:
    body = {"every": "2m", "body": "x", **fields}
    answer = http.ask("PUT", API + path, {key: value for key, value in body.items() if value})
    assert (answer.status, bool(answer.json["detail"])) == (400, True)
    assert gateway.service.broker.stats.put == 0  # the template is not delivered instead


def test_one_that_is_over_at_once(gateway: MemoryGateway, http: HttpClient) -> None:
    assert put(http, start="now", count=1) == {"outcome": "set", "recurring": None}
    fired = [one for queue in range(8) for one in gateway.connect().pull_all("reports", queue)]
    assert bodies(fired) == ["report"]


def test_setting_one_never_deletes_it(http: HttpClient) -> None:
    put(http)
    body = {"every": "2m", "body": "x", "properties": {"TIDEGATE_RECURRING": "delete"}}
    assert http.refusal("PUT", PATH, body)["status"] == 400
    assert http.get(PATH)["recurring"]["state"] == "active"


def test_unknown_ones(http: HttpClient) -> None:
    assert http.refusal("GET", "/recurring/reports/none")["status"] == 404
    assert http.refusal("POST", "/recurring/reports/none/pause", {})["status"] == 404
    assert http.refusal("POST", f"{PATH}/explode", {})["status"] == 400
