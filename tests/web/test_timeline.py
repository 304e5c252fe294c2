"""The timeline: how many messages are due when, in columns of any width."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.error import ConnectionLost
from twisted.python.failure import Failure

import storage.timeline
from gateway.web import timeline, turns
from gateway.web.timeline import MAX_TOPICS, WIDTHS, Counted, columns_for
from storage import count_due
from tests.gateway.memory import START_MS, MemoryGateway
from tests.web.http import API, HTTP_PORT, HttpClient

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


@pytest.fixture
def later(gateway: MemoryGateway) -> MemoryGateway:
    """A gateway with messages of two topics, due from a second to a year ahead."""
    client = gateway.connect()
    for topic, tag, times in (
        ("orders", "a", (SECOND, SECOND + 5, MINUTE, HOUR, DAY, 365 * DAY)),
        ("bills", "b", (SECOND + 5, 2 * HOUR)),
    ):
        for due_ms in times:
            client.send_message(topic, TIMER_DELIVER_MS=str(START_MS + due_ms), TAGS=tag)
    return gateway


def counts(answer: Any) -> dict[str, dict[int, int]]:
    """Return by topic the columns that have messages, as ms from the start."""
    return {
        one["topic"]: {
            answer["beginMs"] + column * answer["widthMs"] - START_MS: number
            for column, number in enumerate(one["counts"])
            if number
        }
        for one in answer["topics"]
    }


@pytest.mark.parametrize(
    ("end", "columns", "width", "expected"),
    [
        (START_MS + 2 * SECOND, 2000 // 5, 5, {"orders": {1000: 1, 1005: 1}, "bills": {1005: 1}}),
        (START_MS + MINUTE + 1, 7, 10 * SECOND, {"orders": {0: 2, MINUTE: 1}, "bills": {0: 1}}),
        ("+3h", 3, HOUR, {"orders": {0: 3, HOUR: 1}, "bills": {0: 1, 2 * HOUR: 1}}),
    ],
)
def test_columns(
    later: MemoryGateway,
    http: HttpClient,
    end: object,
    columns: int,
    width: int,
    expected: dict[str, dict[int, int]],
) -> None:
    answer = http.get("/timeline", begin="now", end=end, columns=columns)
    assert answer["widthMs"] == width
    assert counts(answer) == expected
    assert answer["isWhole"]


def test_years(later: MemoryGateway, http: HttpClient) -> None:
    answer = http.get("/timeline", begin="now", end="+700d", columns=100)
    assert answer["total"] == 8
    assert [one["topic"] for one in answer["topics"]] == ["orders", "bills"]
    assert (answer["firstDueMs"], answer["lastDueMs"]) == (START_MS + SECOND, START_MS + 365 * DAY)


def test_one_topic_or_one_tag(later: MemoryGateway, http: HttpClient) -> None:
    for query in ({"topic": "bills"}, {"tag": "b"}, {"topic": "bills", "tag": "b"}):
        for end in ("+3h", "+2s"):
            answer = http.get("/timeline", end=end, **query)
            assert list(counts(answer)) == ["bills"]
    assert http.get("/timeline", end="+3h", topic="bills", tag="a")["total"] == 0


def test_what_fired_or_was_aborted_is_gone(later: MemoryGateway, http: HttpClient) -> None:
    later.advance(2 * SECOND)
    (found,) = http.get("/messages", topic="bills")["messages"]
    http.post(f"/messages/{found['offsetMsgId']}/abort")
    assert counts(http.get("/timeline", begin=START_MS, end=START_MS + 3 * HOUR, columns=3)) == {
        "orders": {0: 1, HOUR: 1}
    }


def test_nothing_is_held(http: HttpClient) -> None:
    answer = http.get("/timeline")
    assert (answer["total"], answer["topics"], answer["firstDueMs"]) == (0, [], None)


def test_it_may_begin_at_the_beginning(later: MemoryGateway, http: HttpClient) -> None:
    whole = http.get("/timeline", end="+700d")["total"]
    assert http.get("/timeline", begin=0, end="+700d")["total"] == whole
    assert http.refusal("GET", "/timeline", begin="00")["status"] == 400


@pytest.mark.parametrize("end", ["+2s", "+3h", "+700d"])
def test_pieces_add_up(
    later: MemoryGateway, http: HttpClient, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    whole = http.get("/timeline", end=end)
    later.advance(1)
    monkeypatch.setattr(storage.timeline, "MAX_ROWS", 1)
    assert http.get("/timeline", begin=START_MS, end=end)["total"] == whole["total"]


@pytest.mark.parametrize(("most", "is_whole"), [(2, False), (3, False), (9, True)])
def test_a_count_that_takes_too_long_says_that_it_is_not_whole(
    later: MemoryGateway,
    http: HttpClient,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    is_whole: bool,
) -> None:
    monkeypatch.setattr(storage.timeline, "MAX_ROWS", 1)
    monkeypatch.setattr(timeline, "MAX_COUNTED", most)
    answer = http.get("/timeline", end="+2s")
    assert (answer["isWhole"], answer["total"]) == (is_whole, min(most, 3))
    preview = {"action": "abort", "selection": {"begin": "now", "end": START_MS + 2 * SECOND}}
    shown = http.post("/bulk/preview", preview)
    assert (shown["isExact"], shown["count"]) == (is_whole, min(most, 3))


def test_a_count_has_the_columns_that_have_messages_alone() -> None:
    """A number for each of 720 columns of 20,000 topics took 100 MB, and a second to add up."""
    counted = Counted()
    counted.add({(b"orders", 719): 1})
    counted.add({(b"orders", 719): 1, (b"bills", 0): 1})
    assert counted.by_topic == {"orders": {719: 2}, "bills": {0: 1}}


def test_topics_beyond_the_first_are_summed_up(gateway: MemoryGateway, http: HttpClient) -> None:
    client = gateway.connect()
    for number in range(MAX_TOPICS + 3):
        client.send_message(f"topic{number:02}", TIMER_DELAY_SEC="60")
    answer = http.get("/timeline")
    assert len(answer["topics"]) == MAX_TOPICS
    assert sum(answer["others"]) == 3
    assert answer["total"] == MAX_TOPICS + 3


@given(begin=st.integers(0, 1 << 42), span=st.integers(1, 1 << 42), most=st.integers(1, 1_000))
def test_columns_cover_what_was_asked_for(begin: int, span: int, most: int) -> None:
    columns = columns_for(begin, begin + span, most)
    assert columns.begin_ms <= begin
    assert columns.end_ms >= begin + span
    assert begin - columns.begin_ms < columns.width_ms
    assert columns.number <= most + 1
    assert columns.width_ms in WIDTHS or columns.width_ms % WIDTHS[-1] == 0


def test_wide_columns_are_those_that_are_counted() -> None:
    assert all(columns_for(7, 7 + width, 1).fit_held for width in WIDTHS if width >= 10_000)


def count_pieces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets an item with each piece that is counted of a timeline."""
    pieces: list[str] = []

    def counted(*args: Any, **options: Any) -> Any:
        pieces.append("piece")
        return count_due(*args, **options)

    monkeypatch.setattr(timeline, "count_due", counted)
    monkeypatch.setattr(storage.timeline, "MAX_ROWS", 2)
    return pieces


def hold_ten(gateway: MemoryGateway) -> None:
    """Send ten messages that are due within the next two minutes."""
    client = gateway.connect()
    for number in range(10):
        client.send_message("orders", TIMER_DELAY_MS=str(60_000 + number))


def begin_to_ask(http: HttpClient, **query: str) -> Any:
    """Ask for a timeline of the next two minutes, and return the connection without waiting for the answer."""
    asked = urlencode({"begin": "now", "end": "+2m", "columns": "1000", **query})
    connection = http.connect()
    head = f"GET {API}/timeline?{asked} HTTP/1.1\r\nHost: {HTTP_PORT}\r\n\r\n"
    connection.protocol.dataReceived(head.encode())
    return connection


def test_of_many_that_are_counted_one_has_its_turn_at_a_time(
    gateway: MemoryGateway, http: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_ten(gateway)
    pieces = count_pieces(monkeypatch)
    asking = [begin_to_ask(http, tag=f"t{number}") for number in range(5)]
    before = len(pieces)
    assert before == 0
    while gateway.reactor.turn():
        assert len(pieces) - before <= 1
        before = len(pieces)
    assert before >= 25
    assert all(b"HTTP/1.1 200" in one.value() for one in asking)


def test_many_topics_are_added_up_in_several_turns(
    gateway: MemoryGateway, http: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To add up 50,000 topics held up all other requests for 60 ms."""
    client = gateway.connect()
    for number in range(40):
        client.send_message(f"topic{number:02}", TIMER_DELAY_SEC="60")
    begin_to_ask(http)
    gateway.settle()
    monkeypatch.setattr(turns, "PIECE_SECONDS", 0)
    asking = begin_to_ask(http)  # the count is kept from before
    taken = 0
    while gateway.reactor.turn():
        taken += 1
    assert taken >= 40
    assert b"HTTP/1.1 200" in asking.value()


def test_who_is_gone_is_counted_nothing(
    gateway: MemoryGateway, http: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_ten(gateway)
    pieces = count_pieces(monkeypatch)
    asking = begin_to_ask(http)
    gateway.reactor.turn()
    assert len(pieces) == 1
    asking.lost(Failure(ConnectionLost()))  # type: ignore[no-untyped-call]
    gateway.settle()
    assert len(pieces) == 1
    assert http.get("/timeline", begin="now", end="+2m")["total"] == 10
