"""Bulk changes: the preview, its confirmation, and the job that follows."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest
from twisted.logger import capturedLogs, formatEvent

from gateway.monitoring.audit import read_lines
from gateway.pending.bulk import BulkChanges
from gateway.settings.values import parse_host_port
from gateway.web import bulk, timeline
from gateway.web.endpoints import ApiError, Asker
from gateway.wire.codes import RequestCode, ResponseCode
from storage import timeline as stored_timeline
from tests.gateway.conftest import MakeGateway
from tests.gateway.faults import commits_fail
from tests.gateway.memory import START_MS, MemoryGateway
from tests.gateway.tools import ok
from tests.gateway.transactions import COMMIT, begin, end
from tests.web.http import HTTP_PORT, HttpClient, api_endpoints

HOUR_MS = 3_600_000


@pytest.fixture
def held(gateway: MemoryGateway) -> MemoryGateway:
    """A gateway with 24 pending messages, one due each hour, in two topics, with keys and tags."""
    client = gateway.connect()
    for hour in range(1, 25):
        client.send_message(
            "orders" if hour % 2 else "bills",
            TIMER_DELIVER_MS=str(START_MS + hour * HOUR_MS),
            TAGS="even" if hour % 4 == 0 else "odd",
            KEYS=f"k{hour % 3}",
        )
    return gateway


def preview(http: HttpClient, **selection: object) -> Any:
    """Preview an abort of the selected messages."""
    return http.post("/bulk/preview", {"action": "abort", "selection": selection})


def pending(http: HttpClient) -> int:
    """Count the pending messages."""
    return len(http.get("/messages", limit=1000)["messages"])


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"topic": "orders"}, 12),
        ({"key": "k1"}, 8),
        ({"key": "k1", "topic": "orders"}, 4),
        ({"tag": "even"}, 6),
        ({"begin": "+90m", "end": "+4h"}, 2),
        ({"begin": START_MS, "end": START_MS + 2 * HOUR_MS}, 1),
        ({"end": START_MS + 2 * HOUR_MS + 1}, 2),
        ({"begin": "+90m", "topic": "bills"}, 12),
        ({"begin": "+2h", "end": "+1h"}, 0),
        ({"begin": "+1ms", "end": "+2ms"}, 0),
        ({"begin": START_MS + HOUR_MS + 1, "end": START_MS + HOUR_MS + 2}, 0),
        ({"begin": -1}, 24),
        ({"begin": "1969-12-31T12:00"}, 24),
        ({"end": 0}, 0),
        ({"end": "1969-12-31T12:00"}, 0),
        ({"topic": "nothing"}, 0),
    ],
)
def test_a_preview_counts_and_the_job_takes_as_many(
    held: MemoryGateway, http: HttpClient, selection: dict[str, object], expected: int
) -> None:
    shown = preview(http, **selection)
    assert (shown["count"], shown["isExact"]) == (expected, True)
    assert len(shown["sample"]) == min(expected, bulk.SAMPLE)
    assert pending(http) == 24, "a preview changes nothing"
    job = http.post("/bulk", {"token": shown["token"]})
    held.settle()
    job = http.get(f"/bulk/{job['id']}")
    assert (job["state"], job["done"], job["missed"]) == ("done", expected, 0)
    assert job["endedMs"] == job["startedMs"]
    assert pending(http) == 24 - expected


def test_what_came_after_the_preview_stays(held: MemoryGateway, http: HttpClient) -> None:
    shown = preview(http, topic="orders")
    held.connect().send_message("orders", TIMER_DELAY_SEC="60")
    http.post("/bulk", {"token": shown["token"]})
    held.settle()
    assert [one["topic"] for one in http.get("/messages", topic="orders")["messages"]] == ["orders"]


@pytest.mark.parametrize(("most", "counted"), [(7, 8), (8, 8), (9, 8)])
def test_of_many_the_least_there_are_is_told_and_all_are_taken(
    held: MemoryGateway,
    http: HttpClient,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    counted: int,
) -> None:
    monkeypatch.setattr(bulk, "MAX_COUNTED", most)
    monkeypatch.setattr(bulk, "PIECE", 4)
    shown = preview(http, key="k1")
    assert (shown["count"], shown["isExact"]) == (counted, most == 9)
    job = http.post("/bulk", {"token": shown["token"]})
    assert job["isExact"] == shown["isExact"]
    held.settle()
    assert http.get(f"/bulk/{job['id']}")["done"] == 8


def test_a_count_that_gives_up_at_the_edge_of_a_span_is_not_exact(
    held: MemoryGateway, http: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages before and after the ten seconds that have a total are counted one by one."""
    client = held.connect()
    for _ in range(30):
        client.send_message("orders", TIMER_DELIVER_MS=str(START_MS + 5_000))
    monkeypatch.setattr(stored_timeline, "MAX_ROWS", 1)
    monkeypatch.setattr(timeline, "MAX_COUNTED", 20)
    span = {"begin": START_MS + 5_000, "end": START_MS + 20_000}
    shown = preview(http, **span)
    assert (shown["count"], shown["isExact"]) == (20, False)


def test_a_selection_names_something(http: HttpClient) -> None:
    problem = http.refusal("POST", "/bulk/preview", {"action": "abort", "selection": {}})
    assert "name a topic" in problem["detail"]


@pytest.mark.parametrize("name", ["topic", "key", "tag"])
def test_an_empty_name_does_not_select_all(http: HttpClient, name: str) -> None:
    """As from an unset variable of a script."""
    body = {"action": "abort", "selection": {name: "", "end": "+1d"}}
    problem = http.refusal("POST", "/bulk/preview", body)
    assert problem["detail"].startswith(f"selection.{name}: ")


@pytest.mark.parametrize("waits_ms", [0, 5])
def test_a_transaction_that_is_committed_after_the_preview_stays(
    held: MemoryGateway, http: HttpClient, waits_ms: int
) -> None:
    """Its message keeps the sequence of its half message, which came before."""
    client = held.connect()
    delay = {"TIMER_DELAY_SEC": "3600"}
    early, late = (begin(client, body, "orders", **delay) for body in ("early", "late"))
    ok(end(client, early, COMMIT))
    held.advance(waits_ms)
    seen = preview(http, topic="orders")
    held.advance(waits_ms)
    ok(end(client, late, COMMIT))
    http.post("/bulk", {"token": seen["token"]})
    held.settle()
    assert (seen["count"], pending(http)) == (13, 12 + 1)


def test_only_tokens_of_previews_count(held: MemoryGateway, http: HttpClient) -> None:
    shown = preview(http, topic="orders")
    token = shown["token"]
    for wrong in ("", "x", token[:-4] + "AAAA", "A" * 60, "?"):
        assert http.refusal("POST", "/bulk", {"token": wrong})["status"] == 400
    held.advance(bulk.TOKEN_MINUTES * 60_000)
    assert shown["expiresMs"] == held.now_ms
    http.post("/bulk", {"token": token})
    held.advance(1)
    assert http.refusal("POST", "/bulk", {"token": token})["status"] == 409


def test_a_job_goes_on_in_pieces_and_can_be_cancelled(
    held: MemoryGateway, http: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PIECE", 5)
    shown = preview(http, begin="now")
    handlers = {one.handler.__name__: one.handler for one in api_endpoints(held)}
    start, cancel = handlers["start_bulk"], handlers["cancel_job"]
    asker = Asker(None, "127.0.0.1")
    job = start(asker, bulk.ConfirmBody(token=shown["token"]))
    while not job.done:
        assert held.reactor.turn()
    assert (job.state, job.done) == ("running", 5)
    cancel(asker, bulk.JobQuery(id=job.id))
    held.settle()
    assert (job.state, pending(http)) == ("cancelled", 24 - job.done)
    assert job.ended_ms is not None
    assert 5 <= job.done <= 10


def test_a_turn_has_one_piece_of_all_jobs(
    held: MemoryGateway, http: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking a hundred messages up takes 5 ms, and changing them 10."""
    monkeypatch.setattr(bulk, "PIECE", 5)
    tokens = [preview(http, topic=topic, begin="now")["token"] for topic in ("orders", "bills")]
    pieces: list[str] = []
    for name in ("select", "change"):
        work = getattr(BulkChanges, name)

        def worked(*args: Any, name: str = name, work: Any = work) -> Any:
            pieces.append(name)
            return work(*args)

        monkeypatch.setattr(BulkChanges, name, worked)
    handlers = {one.handler.__name__: one.handler for one in api_endpoints(held)}
    jobs = [
        handlers["start_bulk"](Asker(None, "127.0.0.1"), bulk.ConfirmBody(token=token))
        for token in tokens
    ]
    before = len(pieces)
    assert before == 0
    while held.reactor.turn():
        assert len(pieces) - before <= 1
        before = len(pieces)
    assert [job.done for job in jobs] == [12, 12]
    assert pieces.count("change") == 6


def test_few_run_at_once(
    held: MemoryGateway, http: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MAX_RUNNING", 2)
    monkeypatch.setattr(bulk, "PIECE", 1)
    handlers = {one.handler.__name__: one.handler for one in api_endpoints(held)}
    start, asker = handlers["start_bulk"], Asker(None, "127.0.0.1")
    bodies = [
        bulk.ConfirmBody(token=preview(http, topic=topic, begin="now")["token"])
        for topic in ("orders", "bills", "orders")
    ]
    jobs = [start(asker, body) for body in bodies[:2]]
    with pytest.raises(ApiError, match="2 jobs are running") as refused:
        start(asker, bodies[2])
    assert refused.value.problem.status == HTTPStatus.CONFLICT
    held.settle()
    assert [(job.state, job.done) for job in jobs] == [("done", 12)] * 2
    # A refused confirmation can be sent again.
    assert start(asker, bodies[2]).state == "running"


def test_a_job_whose_changes_cannot_be_stored_says_so(
    held: MemoryGateway, http: HttpClient
) -> None:
    shown = preview(http, topic="orders")
    with commits_fail(held):
        number = http.post("/bulk", {"token": shown["token"]})["id"]
        held.settle()
    job = http.get(f"/bulk/{number}")
    assert (job["state"], job["done"]) == ("failed", 0)
    assert job["error"]
    assert job["endedMs"] is not None
    assert pending(http) == 24


def test_the_last_jobs_are_remembered(
    held: MemoryGateway, http: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MAX_JOBS", 5)
    numbers = []
    for _ in range(7):
        job = http.post("/bulk", {"token": preview(http, topic="nothing")["token"]})
        numbers.append(job["id"])
        held.settle()
    assert [job["id"] for job in http.get("/bulk")["jobs"]] == numbers[:1:-1]
    assert numbers == sorted(set(numbers))


def test_where_recall_is_off_nothing_is_aborted(
    make_gateway: MakeGateway,
) -> None:
    gateway = make_gateway(http=parse_host_port(HTTP_PORT), recall_enabled=False)
    body = {"action": "abort", "selection": {"topic": "orders"}}
    assert HttpClient(gateway).refusal("POST", "/bulk/preview", body)["status"] == 403


def test_a_preview_is_of_no_use_once_recall_is_off(held: MemoryGateway, http: HttpClient) -> None:
    token = preview(http, topic="orders")["token"]
    client = held.connect()
    assert client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"recallMessageEnable=false").code == 0
    number = http.post("/bulk", {"token": token})["id"]
    held.settle()
    job = http.get(f"/bulk/{number}")
    assert (job["state"], job["done"], pending(http)) == ("failed", 0, 24)
    assert "recall_enabled" in job["error"]


def test_who_did_it_is_noted(held: MemoryGateway, http: HttpClient) -> None:
    job = http.post("/bulk", {"token": preview(http, key="k1", topic="orders")["token"]})
    held.settle()
    (left, *_) = http.get("/messages", topic="orders")["messages"]
    http.post(f"/messages/{left['offsetMsgId']}/abort")
    lines = list(read_lines(held.data))
    assert [line["action"] for line in lines] == ["bulk abort", *["abort"] * 5]
    assert (lines[0]["job"], job["user"]) == (job["id"], None)
    assert (lines[0]["key"], lines[0]["topic"]) == ("k1", "orders")
    assert {line["from"] for line in lines} == {"127.0.0.1"}
    assert lines[-1]["msgId"] == left["msgId"]


def test_many_are_given_another_time_once(held: MemoryGateway, http: HttpClient) -> None:
    body = {
        "action": "reschedule",
        "selection": {"topic": "orders", "begin": "now"},
        "to": {"shift": "10d"},
    }
    before = [one["dueMs"] for one in http.get("/messages", topic="orders")["messages"]]
    for days in (10, 20):  # the second job comes at the same time
        job = http.post("/bulk", {"token": http.post("/bulk/preview", body)["token"]})
        held.settle()
        job = http.get(f"/bulk/{job['id']}")
        assert (job["state"], job["done"], job["missed"]) == ("done", 12, 0)
        after = [one["dueMs"] for one in http.get("/messages", topic="orders")["messages"]]
        assert after == [due_ms + days * 24 * HOUR_MS for due_ms in before]


@pytest.mark.parametrize("page", [1, 5, 12])
def test_what_it_moves_ahead_of_itself_is_moved_once(
    held: MemoryGateway, http: HttpClient, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(bulk, "PIECE", page)
    before = [one["dueMs"] for one in http.get("/messages", topic="orders")["messages"]]
    selection = {"topic": "orders", "begin": "now"}
    body = {"action": "reschedule", "selection": selection, "to": {"shift": "3h"}}
    job = http.post("/bulk", {"token": http.post("/bulk/preview", body)["token"]})
    held.settle()
    job = http.get(f"/bulk/{job['id']}")
    assert (job["state"], job["done"], job["missed"]) == ("done", 12, 0)
    after = [one["dueMs"] for one in http.get("/messages", topic="orders")["messages"]]
    assert after == [due_ms + 3 * HOUR_MS for due_ms in before]


def test_a_token_that_is_brought_twice_counts_once(held: MemoryGateway, http: HttpClient) -> None:
    body = {"action": "reschedule", "selection": {"topic": "orders"}, "to": {"shift": "10d"}}
    before = [one["dueMs"] for one in http.get("/messages", topic="orders")["messages"]]
    for times in (1, 2):
        token = http.post("/bulk/preview", body)["token"]
        first = http.post("/bulk", {"token": token})
        assert http.post("/bulk", {"token": token})["id"] == first["id"]
        held.settle()
        again = http.post("/bulk", {"token": token})
        assert (again["id"], again["state"], again["done"]) == (first["id"], "done", 12)
        held.settle()
        after = [one["dueMs"] for one in http.get("/messages", topic="orders")["messages"]]
        assert after == [due_ms + times * 240 * HOUR_MS for due_ms in before]
        held.advance(1)


def test_messages_of_a_paused_topic_are_among_them(held: MemoryGateway, http: HttpClient) -> None:
    http.post("/topics/orders/pause")
    held.jump(4 * HOUR_MS)
    shown = preview(http, topic="orders")
    assert shown["count"] == 12
    job = http.post("/bulk", {"token": shown["token"]})
    held.settle()
    assert http.get(f"/bulk/{job['id']}")["done"] == 12


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"action": "reschedule", "selection": {"topic": "orders"}}, "name the new time in to"),
        (
            {"action": "abort", "selection": {"topic": "orders"}, "to": {"at": "now"}},
            "belongs to reschedule alone",
        ),
        ({"action": "reschedule", "selection": {"topic": "orders"}, "to": {}}, "either at or"),
    ],
)
def test_changes_that_are_none(http: HttpClient, body: object, words: str) -> None:
    refused = http.refusal("POST", "/bulk/preview", body)
    assert refused["status"] == 400
    assert words in refused["detail"]


@pytest.mark.parametrize("to", [{"at": "+5000d"}, {"shift": "5000d"}])
def test_a_preview_of_a_time_too_far_ahead_is_refused(
    held: MemoryGateway, http: HttpClient, to: dict[str, str]
) -> None:
    """The job would be: a token that it refuses is of no use."""
    body = {"action": "reschedule", "selection": {"topic": "orders"}, "to": to}
    refused = http.refusal("POST", "/bulk/preview", body)
    assert (refused["status"], refused["code"]) == (400, ResponseCode.MESSAGE_ILLEGAL)
    assert "max_delay" in refused["detail"]


def test_redeliveries_are_not_changed_by_the_way(held: MemoryGateway, http: HttpClient) -> None:
    held.connect().send_message("%RETRY%workers", DELAY="5", fields={"reconsume": 1})
    shown = preview(http, begin="now")
    assert shown["count"] == 24
    assert {one["topic"] for one in shown["sample"]} == {"orders", "bills"}
    shown = preview(http, topic="%RETRY%workers")
    assert (shown["count"], len(shown["sample"])) == (1, 1)
    http.post("/bulk", {"token": preview(http, begin="now")["token"]})
    held.settle()
    assert pending(http) == 1


def test_a_job_ends_with_the_gateway(
    held: MemoryGateway, http: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PIECE", 1)
    handlers = {one.handler.__name__: one.handler for one in api_endpoints(held)}
    token = preview(http, begin="now")["token"]
    job = handlers["start_bulk"](Asker(None, "127.0.0.1"), bulk.ConfirmBody(token=token))
    held.service.broker.committer.stop()
    held.settle()
    assert job.state == "cancelled"
    assert job.done < job.expected


@pytest.mark.parametrize("turns", range(7))
def test_how_far_a_job_was_when_the_gateway_stopped_is_told(
    held: MemoryGateway, http: HttpClient, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """After the next start nobody knows the job, and a client that looks for it is only told so."""
    monkeypatch.setattr(bulk, "PIECE", 5)
    handlers = {one.handler.__name__: one.handler for one in api_endpoints(held)}
    token = preview(http, begin="now")["token"]
    handlers["start_bulk"](Asker(None, "127.0.0.1"), bulk.ConfirmBody(token=token))
    for _ in range(turns):
        held.reactor.turn()
    with capturedLogs() as logged:
        held.service.stop()
    held.restart()
    changed = 24 - pending(http)
    assert changed < 24
    (line,) = [line for line in map(formatEvent, logged) if " (abort): " in line]
    assert f": {changed} messages are changed, of about 24;" in line
    noted = [one for one in read_lines(held.data) if one["action"] == "abort"]
    assert len(noted) == changed
