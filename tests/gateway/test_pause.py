"""Pausing the firing of a topic, and resuming it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway import firing
from gateway.wire.codes import RequestCode, ResponseCode
from tests.gateway.memory import START_MS, MemoryClient, MemoryGateway, bodies


def schedule(client: MemoryClient, name: str, delay_ms: int, topic: str = "orders") -> None:
    """Send a timed message."""
    client.send_message(topic, name, UNIQ_KEY=name, KEYS=name, TIMER_DELAY_MS=str(delay_ms))


def set_paused(client: MemoryClient, code: int, topic: str = "orders") -> bool:
    """Pause or resume, and return whether that changed anything."""
    answer = client.ask(code, {"topic": topic})
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return bool(json.loads(answer.body)["changed"])


def pause(client: MemoryClient, topic: str = "orders") -> bool:
    """Pause a topic."""
    return set_paused(client, RequestCode.PAUSE_TOPIC, topic)


def resume(client: MemoryClient, topic: str = "orders") -> bool:
    """Resume a topic."""
    return set_paused(client, RequestCode.RESUME_TOPIC, topic)


def paused(client: MemoryClient) -> list[dict[str, Any]]:
    """Return all paused topics."""
    answer = client.ask(RequestCode.LIST_PAUSED_TOPICS)
    topics: list[dict[str, Any]] = json.loads(answer.body)["topics"]
    return topics


def test_a_look_up_says_that_what_it_shows_or_asks_about_is_paused(client: MemoryClient) -> None:
    schedule(client, "a", 100)
    schedule(client, "b", 100, "bills")
    pause(client)
    for fields, topics in (
        ({"id": "a"}, ["orders"]),
        ({"topic": "orders", "key": "none"}, ["orders"]),
        ({"id": "b"}, []),
    ):
        page = json.loads(client.ask(RequestCode.LOOK_UP_TIMERS, fields).body)
        assert [one["topic"] for one in page["paused"]] == topics


def test_nothing_fires_until_it_is_resumed(gateway: MemoryGateway, client: MemoryClient) -> None:
    for name, delay_ms in (("c", 300), ("a", 100), ("b", 200), ("later", 5_000)):
        schedule(client, name, delay_ms)
    assert pause(client)
    gateway.advance(1_000)
    assert client.pull() == []
    assert paused(client) == [
        {"topic": "orders", "sinceMs": START_MS, "waiting": 3, "resumed": False}
    ]
    assert resume(client)
    # They arrive when the topic resumes, in the order of due times.
    assert bodies(client.pull()) == ["a", "b", "c"]
    assert paused(client) == []
    assert [one["movedMs"] for one in client.look_up(key="a", state="fired")] == [START_MS + 1_000]
    gateway.advance(4_000)
    assert bodies(client.pull()) == ["a", "b", "c", "later"]


def test_other_topics_fire_at_their_millisecond(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    for number in range(1_200):
        client.send_message("orders", str(number), TIMER_DELAY_MS="100")
    pause(client)
    schedule(client, "bill", 101, "bills")
    gateway.advance(101)
    assert bodies(client.pull("bills")) == ["bill"]
    [message] = client.look_up(key="bill", state="fired")
    assert message["movedMs"] == START_MS + 101
    assert client.pull() == []


def test_messages_for_now_are_delivered(client: MemoryClient) -> None:
    client.send_message("orders", "before")
    pause(client)
    client.send_message("orders", "now")
    assert bodies(client.pull()) == ["before", "now"]


def test_what_waits_is_found_counted_moved_and_aborted(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    for name in ("a", "b", "c"):
        schedule(client, name, 100)
    pause(client)
    gateway.advance(500)
    page = json.loads(client.ask(RequestCode.LOOK_UP_TIMERS, {"topic": "orders"}).body)
    assert [(one["msgId"], one["state"]) for one in page["messages"]] == [
        ("a", "pending"),
        ("b", "pending"),
        ("c", "pending"),
    ]
    assert page["paused"] == paused(client)
    assert [one["msgId"] for one in client.look_up(key="b")] == ["b"]
    assert client.abort(id="b")[0]["outcome"] == "aborted"
    answer = client.send_message(TIDEGATE_RESCHEDULE="c", TIMER_DELAY_MS="300")
    assert answer.code == ResponseCode.SUCCESS
    assert paused(client)[0]["waiting"] == 1
    timing = json.loads(client.ask(RequestCode.GET_TIMER_METRICS).body)["timingCount"]
    assert timing["orders"]["count"] == 2
    resume(client)
    assert bodies(client.pull()) == ["a"]
    gateway.advance(300)
    assert bodies(client.pull()) == ["a", "c"]


@pytest.mark.parametrize("end", ["crash", "restart"])
def test_survives(gateway: MemoryGateway, client: MemoryClient, end: str) -> None:
    schedule(client, "a", 100)
    schedule(client, "b", 900)
    pause(client)
    gateway.advance(500)
    getattr(gateway, end)()
    client = gateway.connect()
    gateway.advance(1_000)
    assert client.pull() == []
    assert [(one["sinceMs"], one["waiting"]) for one in paused(client)] == [(START_MS, 2)]
    resume(client)
    assert bodies(client.pull()) == ["a", "b"]


def test_letting_go_is_in_steps_and_survives_a_crash(
    gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(firing, "MAX_FIRED", 10)
    for number in range(35):
        schedule(client, f"{number:02}", 100 + number)
    pause(client)
    gateway.advance(1_000)
    client.send(RequestCode.RESUME_TOPIC, {"topic": "orders"})
    for _ in range(3):
        gateway.reactor.turn()
    fired = gateway.service.broker.firing.fired
    assert 0 < fired < 35
    gateway.crash()
    gateway.advance(1_000)
    client = gateway.connect()
    found = bodies(client.pull_all())
    assert sorted(found) == found
    assert len(found) == 35
    assert paused(client) == []


def test_the_answers_are_true(client: MemoryClient) -> None:
    client.send_message()
    assert not resume(client)
    assert pause(client)
    assert not pause(client)
    assert resume(client)
    assert not resume(client)
    for code in (RequestCode.PAUSE_TOPIC, RequestCode.RESUME_TOPIC):
        answer = client.ask(code, {"topic": "none"})
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert answer.remark == "there is no topic none: check its name"


def test_a_long_overdue_message_does_not_count_as_late(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    """The figures measure how well the gateway fires, not how long somebody paused the topic."""
    schedule(client, "a", 100)
    pause(client)
    gateway.advance(60_000)
    assert gateway.service.broker.firing.next_due_ms is None
    resume(client)
    assert gateway.service.broker.firing.fired == 1
    assert gateway.service.broker.committer.meter.firing_error.total == 0


def test_ends_when_the_topic_is_deleted(gateway: MemoryGateway, client: MemoryClient) -> None:
    """The waiting messages go too, and a new topic with the name is not paused."""
    schedule(client, "old", 100)
    pause(client)
    gateway.advance(1_000)
    answer = client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    assert answer.code == ResponseCode.SUCCESS
    gateway.advance(11_000)
    assert paused(client) == []
    assert gateway.store.pending_count() == 0
    assert client.look_up(id="old", state="any") == []
    schedule(client, "new", 100)
    gateway.advance(100)
    assert bodies(client.pull("orders", 0, 1)) == ["new"]


@pytest.mark.parametrize("is_down", [False, True])
def test_what_waits_does_not_fire_before_its_time_where_the_clock_was_set_back(
    gateway: MemoryGateway, client: MemoryClient, is_down: bool
) -> None:
    schedule(client, "early", 1_000)
    schedule(client, "late", 5_000)
    pause(client)
    gateway.advance(6_000)
    if is_down:
        gateway.stop()
    gateway.set_clock(-4_000)
    if is_down:
        gateway.start()
        client = gateway.connect()
    assert resume(client)
    assert bodies(client.pull()) == ["early"]
    assert [one["msgId"] for one in client.look_up()] == ["late"]
    assert paused(client) == []
    gateway.check()
    gateway.advance(2_999)
    assert bodies(client.pull()) == ["early"]
    gateway.advance(1)
    assert bodies(client.pull()) == ["early", "late"]
    gateway.check()
