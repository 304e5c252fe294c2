"""Recurring messages at a gateway: set by sends, fired at their times, listed, changed, and kept over restarts."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.logger import LogLevel, capturedLogs, formatEvent

from gateway.firing import MAX_RECURRED, Recurred
from gateway.handlers import steps
from gateway.monitoring.metrics import Metrics
from gateway.recurring import messages, recurrence
from gateway.recurring.definitions import definition_of, encode_definition
from gateway.recurring.recurrence import Rule
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command
from gateway.wire.messages import Message
from storage import find_recurring, fire_resumed, pause_topic, put_recurring, resume_topic
from storage.keys import planned_key, queue_prefix, recurring_key
from tests.gateway.conftest import MakeGateway
from tests.gateway.faults import commits_fail, damaged_row
from tests.gateway.memory import START_MS, MemoryClient, MemoryGateway, bodies, properties_of
from tests.gateway.tools import query
from tests.storage.folder import change_table

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


@pytest.fixture
def gateway(make_gateway: MakeGateway) -> MemoryGateway:
    """A gateway whose clients may be silent for days."""
    return make_gateway(connection_idle=timedelta(days=365), retention_hours=1000)


def put(client: MemoryClient, body: str = "tick", **properties: str) -> dict[str, str]:
    """Set a recurring message called nightly, and return the fields of the response."""
    answer = try_to_put(client, body, **properties)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer.ext()


def try_to_put(client: MemoryClient, body: str = "tick", **properties: str) -> Command:
    """Send the order for a recurring message, and return the response whatever its code."""
    named = {"name": "nightly"} | properties
    return client.send_message(
        "orders", body, {f"TIDEGATE_{name.upper()}": value for name, value in named.items()}
    )


def order(client: MemoryClient, what: str, name: str = "nightly") -> Command:
    """Pause, resume or delete by a send, as any client can."""
    return client.send_message("orders", "-", {"TIDEGATE_RECURRING": what, "TIDEGATE_NAME": name})


def listed(client: MemoryClient, **fields: str) -> list[dict[str, Any]]:
    """Return what `tidegate recurring list` gets."""
    answer = client.ask(RequestCode.LIST_RECURRING, fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    found: list[dict[str, Any]] = json.loads(answer.body)["recurring"]
    return found


def change(client: MemoryClient, what: str, name: str = "nightly") -> Command:
    """Send the request of `tidegate recurring pause` and similar commands."""
    return client.ask(
        RequestCode.CHANGE_RECURRING, {"topic": "orders", "name": name, "change": what}
    )


def planned(messages: list[Message]) -> list[int]:
    """Return the planned times of messages, in ms since the start of the tests' time."""
    return [int(properties_of(message)["TIDEGATE_PLANNED_MS"]) - START_MS for message in messages]


def entered(messages: list[Message]) -> list[int]:
    """Return when messages entered their queue, in ms since the start of the tests' time."""
    return [message.store_ms - START_MS for message in messages]


def test_it_fires_at_its_times(gateway: MemoryGateway, client: MemoryClient) -> None:
    set_so = {"UNIQ_KEY": "ID", "TIDEGATE_NAME": "nightly", "TIDEGATE_EVERY": "2m"}
    answer = client.send_message(body="tick", properties=set_so).ext()
    assert (answer["recurring"], answer["nextMs"]) == ("set", str(START_MS + 2 * MINUTE))
    assert answer["transactionId"] == "ID", "as a send is answered"
    gateway.advance(2 * MINUTE - 1)
    assert client.pull_all() == []
    gateway.advance(1)
    assert entered(client.pull_all()) == [2 * MINUTE]
    gateway.advance(4 * MINUTE)
    messages = client.pull_all()
    assert planned(messages) == entered(messages) == [2 * MINUTE, 4 * MINUTE, 6 * MINUTE]


def test_what_fires_is_the_message_that_was_left(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    left = {"KEYS": "k1 k2", "TAGS": "close", "color": "red", "UNIQ_KEY": "7F00", "WAIT": "true"}
    client.send_message(
        "orders",
        "template",
        {**left, "TIDEGATE_EVERY": "1s", "TIDEGATE_NAME": "nightly", "TIDEGATE_MISFIRE": "SMART"},
        fields={"queue": 2},
    )
    gateway.advance(3 * SECOND)
    messages = client.pull_all(queue=2)
    assert bodies(messages) == ["template"] * 3
    ids = set()
    for number, message in enumerate(messages, 1):
        properties = properties_of(message)
        ids.add(properties.pop("UNIQ_KEY"))
        time = str(START_MS + number * SECOND)
        assert properties | left == properties | {**left, "UNIQ_KEY": "7F00"}
        assert properties["TIDEGATE_NAME"] == "nightly"
        assert properties["TIDEGATE_PLANNED_MS"] == time
        assert (message.born_ms, message.reconsume_times) == (int(time), 0)
        assert not {"TIDEGATE_EVERY", "TIDEGATE_MISFIRE"} & set(properties)
        assert (message.queue_id, message.flag) == (2, 9 if message.flag else 0)
    assert len(ids) == 3
    assert "7F00" not in ids
    assert query(client, "k1").code == ResponseCode.SUCCESS
    assert client.pull("orders", 2, tags="other") == []


def test_a_waiting_consumer_is_woken(gateway: MemoryGateway, client: MemoryClient) -> None:
    put(client, every="5s")
    opaque = client.park()
    gateway.advance(5 * SECOND)
    answer = client.answer(opaque)
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS


def test_cron_in_a_zone(gateway: MemoryGateway, client: MemoryClient) -> None:
    # The tests' time starts on Friday, 2027-01-15, 8:00 UTC, which is 13:30 in Kolkata.
    answer = put(client, cron="0 14 * * MON-FRI", zone="Asia/Kolkata")
    assert int(answer["nextMs"]) == START_MS + 30 * MINUTE
    gateway.jump(30 * MINUTE)
    gateway.jump(DAY)
    gateway.jump(2 * DAY)
    assert planned(client.pull_all()) == [30 * MINUTE, 3 * DAY + 30 * MINUTE]


def test_many_fire_in_the_order_of_their_times(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    for name, every in (("a", "3s"), ("b", "2s"), ("c", "1s")):
        put(client, name, name=name, every=every)
    gateway.advance(3 * SECOND)
    assert bodies(client.pull_all()) == ["c", "b", "c", "a", "c"]


def test_they_fire_beside_timed_messages(gateway: MemoryGateway, client: MemoryClient) -> None:
    put(client, "recurring", every="2003ms")
    client.send_message("orders", "timed", TIMER_DELAY_MS="3007")
    client.send_message("orders", "first", TIMER_DELAY_MS="1001")
    gateway.advance(5 * SECOND)
    messages = client.pull_all()
    assert bodies(messages) == ["first", "recurring", "timed", "recurring"]
    # Each one is on time whichever is next, though nothing else happens in these milliseconds.
    assert entered(messages) == [1_001, 2_003, 3_007, 4_006]


def test_it_ends_after_a_count(gateway: MemoryGateway, client: MemoryClient) -> None:
    put(client, every="1s", count="2")
    with capturedLogs() as logs:
        gateway.advance(5 * SECOND)
    told = "recurring message nightly of topic orders has come to its end after 2 messages"
    assert [formatEvent(event) for event in logs].count(told) == 1
    assert len(client.pull_all()) == 2
    assert listed(client) == []


def test_a_preview_shows_when_it_would_fire(client: MemoryClient) -> None:
    """Clocks show this time just now, but it would have had to be set before."""
    rule = {"cron": "0 * * * *"}
    preview = client.ask(RequestCode.NEXT_RECURRING, rule | {"times": "2"})
    assert json.loads(preview.body)["times"] == [START_MS + HOUR, START_MS + 2 * HOUR]
    assert put(client, **rule)["nextMs"] == str(START_MS + HOUR)


@pytest.mark.parametrize("start", ["now", "+0s", str(START_MS)])
def test_one_that_starts_now_fires_now(
    gateway: MemoryGateway, client: MemoryClient, start: str
) -> None:
    rule = {"every": "1m", "start": start}
    preview = client.ask(RequestCode.NEXT_RECURRING, rule | {"times": "2"})
    assert json.loads(preview.body)["times"] == [START_MS, START_MS + MINUTE]
    assert put(client, **rule)["nextMs"] == str(START_MS)
    assert put(client, **rule)["recurring"] == "updated"
    gateway.advance(MINUTE)
    assert planned(client.pull_all()) == [0, MINUTE]


def test_it_ends_at_its_end(gateway: MemoryGateway, client: MemoryClient) -> None:
    put(client, every="1m", start="+10s", end="+2m")
    gateway.advance(3 * MINUTE)
    assert planned(client.pull_all()) == [10 * SECOND, 70 * SECOND]
    assert listed(client) == []


# -- set again


def test_set_again_with_the_same_rule_it_goes_on(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    """A program may thus set it at each of its starts, even if it starts more often than the period."""
    put(client, "old", every="10s", count="2")
    gateway.advance(7 * SECOND)
    answer = put(client, "new", every="10s", count="2", misfire="DO_NOTHING")
    assert (answer["recurring"], int(answer["nextMs"])) == ("updated", START_MS + 10 * SECOND)
    gateway.advance(MINUTE)
    messages = client.pull_all()
    assert bodies(messages) == ["new", "new"]
    assert planned(messages) == [10 * SECOND, 20 * SECOND]


def test_set_again_with_another_rule_it_begins_anew(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    put(client, every="10s", count="3")
    gateway.advance(10_500)
    assert put(client, every="1s", count="3")["recurring"] == "replaced"
    gateway.advance(MINUTE)
    assert planned(client.pull_all()) == [10_000, 11_500, 12_500, 13_500]


def test_one_that_is_nearly_over_can_be_set_again(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    """A period without a start time would begin too late if it began now. But it continues the old one."""
    end = str(START_MS + 25 * SECOND)
    put(client, every="10s", end=end)
    gateway.advance(18 * SECOND)
    assert put(client, every="10s", end=end)["recurring"] == "updated"
    gateway.advance(MINUTE)
    assert planned(client.pull_all()) == [10 * SECOND, 20 * SECOND]
    assert "never fires" in (try_to_put(client, every="10s", end=end).remark or "")


def test_topics_have_names_of_their_own(gateway: MemoryGateway, client: MemoryClient) -> None:
    put(client, every="1m")
    client.send_message("other", "x", {"TIDEGATE_EVERY": "1m", "TIDEGATE_NAME": "nightly"})
    assert [one["topic"] for one in listed(client)] == ["orders", "other"]
    assert [(one["tags"], one["keys"]) for one in listed(client)] == [("", "")] * 2
    assert [one["topic"] for one in listed(client, topic="other")] == ["other"]


def test_set_again_a_paused_one_stays_paused(gateway: MemoryGateway, client: MemoryClient) -> None:
    put(client, every="1m")
    change(client, "pause")
    assert put(client, every="1m")["recurringState"] == "paused"
    assert put(client, every="2m")["recurringState"] == "paused"
    gateway.advance(3 * MINUTE)
    assert client.pull_all() == []


# -- changed


def test_pause_and_resume(gateway: MemoryGateway, client: MemoryClient) -> None:
    put(client, every="1m")
    for outcome in ("paused", "already paused"):
        answer = json.loads(change(client, "pause").body)
        assert (answer["outcome"], answer["recurring"]["state"]) == (outcome, "paused")
    gateway.advance(90 * SECOND)
    assert client.pull_all() == []
    (one,) = listed(client)
    assert (one["state"], one["nextMs"]) == ("paused", START_MS + MINUTE)
    assert json.loads(change(client, "resume").body)["outcome"] == "resumed"
    assert json.loads(change(client, "resume").body)["outcome"] == "already active"
    # It was 30 seconds late, which is within the threshold.
    assert planned(client.pull_all()) == [MINUTE]
    gateway.advance(30 * SECOND)
    assert planned(client.pull_all()) == [MINUTE, 2 * MINUTE]


@pytest.mark.parametrize(
    ("misfire", "times"),
    [
        ("SMART", [10]),
        ("FIRE_ONCE_NOW", [10]),
        ("DO_NOTHING", []),
        ("IGNORE_MISFIRE_POLICY", list(range(1, 11))),
    ],
)
def test_what_was_missed_while_it_was_paused(
    gateway: MemoryGateway, client: MemoryClient, misfire: str, times: list[int]
) -> None:
    put(client, every="1m", misfire=misfire)
    change(client, "pause")
    gateway.jump(10 * MINUTE + SECOND)
    change(client, "resume")
    assert planned(client.pull_all()) == [time * MINUTE for time in times]
    gateway.advance(MINUTE)
    assert planned(client.pull_all()) == [time * MINUTE for time in (*times, 11)]


def test_delete(gateway: MemoryGateway, client: MemoryClient) -> None:
    put(client, every="1m")
    gateway.advance(MINUTE)
    deleted = json.loads(change(client, "delete").body)
    assert (deleted["outcome"], deleted["recurring"]["fired"]) == ("deleted", 1)
    answer = change(client, "delete")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark == "topic orders has no recurring message 'nightly'"
    assert (change(client, "delete", "").remark or "").startswith("'' is no name")
    gateway.advance(3 * MINUTE)
    assert len(client.pull_all()) == 1
    assert put(client, every="1m")["recurring"] == "set"


def test_any_client_changes_them_by_sends(gateway: MemoryGateway, client: MemoryClient) -> None:
    put(client, every="1m")
    for what, outcome in (("pause", "paused"), ("resume", "resumed"), ("delete", "deleted")):
        answer = order(client, what)
        assert (answer.code, answer.ext()["recurring"]) == (ResponseCode.SUCCESS, outcome)
    for what in ("pause", "resume", "delete"):
        answer = order(client, what)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert answer.remark == "topic orders has no recurring message 'nightly'"
    assert "'stop' is no order" in (order(client, "stop").remark or "")
    assert client.pull_all() == []


@pytest.mark.parametrize("what", ["pause", "delete"])
def test_a_change_for_later_is_refused(client: MemoryClient, what: str) -> None:
    put(client, every="1m")
    before = listed(client)
    answer = client.send_message(
        *("orders", "-"),
        {"TIDEGATE_RECURRING": what, "TIDEGATE_NAME": "nightly", "TIMER_DELAY_MS": "3600000"},
    )
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "cannot have a delay, TIMER_DELAY_MS" in (answer.remark or "")
    assert listed(client) == before


def test_changes_of_one_turn_are_seen_by_the_next(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    """Nothing of the first order is committed when the second one arrives."""
    properties = "TIDEGATE_EVERY\x011m\x02TIDEGATE_NAME\x01nightly\x02"
    first = client.send(
        RequestCode.SEND_MESSAGE_V2, client.send_fields(properties=properties), b"x"
    )
    fields = {"topic": "orders", "name": "nightly", "change": "pause"}
    second = client.send(RequestCode.CHANGE_RECURRING, fields)
    for opaque in (first, second):
        answer = client.answer(opaque)
        assert answer is not None
        assert answer.code == ResponseCode.SUCCESS
    assert [one["state"] for one in listed(client)] == ["paused"]


# -- queried


def test_list(gateway: MemoryGateway, client: MemoryClient) -> None:
    client.send_message(
        "orders",
        "template",
        {
            "TIDEGATE_CRON": "0 5 * * *",
            "TIDEGATE_ZONE": "Europe/Berlin",
            "TIDEGATE_NAME": "nightly",
            "TIDEGATE_COUNT": "7",
            "TAGS": "t",
            "KEYS": "a b",
            "color": "red",
        },
        fields={"queue": 3},
    )
    next_ms = int(datetime(2027, 1, 16, 4, tzinfo=UTC).timestamp() * 1000)
    told = {
        "topic": "orders",
        "name": "nightly",
        "state": "active",
        "nextMs": next_ms,
        "fired": 0,
        "cron": "0 5 * * *",
        "every": None,
        "zone": "Europe/Berlin",
        "misfire": "SMART",
        "startMs": None,
        "endMs": None,
        "count": 7,
        "setMs": START_MS,
        "queueId": 3,
        "tags": "t",
        "keys": "a b",
        "bodySize": 8,
        "body": None,
        "properties": None,
        "flag": None,
        "sysFlag": None,
    }
    assert listed(client) == [told]
    whole = told | {
        "body": "dGVtcGxhdGU=",
        "properties": {"TAGS": "t", "KEYS": "a b", "color": "red"},
        "flag": 9,
        "sysFlag": 0,
    }
    assert listed(client, full="true") == [whole]
    assert listed(client, topic="orders", name="nightly") == [whole]


@pytest.mark.parametrize(("limit", "size"), [(-1, 1), (0, 1), (1, 1), (2, 2), (3, 3), (4, 3)])
def test_pages(
    client: MemoryClient, monkeypatch: pytest.MonkeyPatch, limit: int, size: int
) -> None:
    monkeypatch.setattr(messages, "MAX_PAGE", 3)
    longest = "%DLQ%" + "g" * 250
    names = [f"{number}".rjust(127, "n") for number in range(7)]
    for name in names:
        rule = {"TIDEGATE_NAME": name, "TIDEGATE_EVERY": "1h"}
        assert client.send_message(longest, "x", rule).code == ResponseCode.SUCCESS
    found, cursor = [], ""
    while cursor is not None:
        fields = {"topic": longest, "limit": str(limit), "cursor": cursor}
        page = json.loads(client.ask(RequestCode.LIST_RECURRING, fields).body)
        found.append([one["name"] for one in page["recurring"]])
        cursor = page["cursor"]
    assert found == [names[at : at + size] for at in range(0, 7, size)]


def test_what_can_be_no_page(client: MemoryClient) -> None:
    put(client, every="1h")
    answer = client.ask(RequestCode.LIST_RECURRING, {"cursor": "nonsense"})
    assert answer.code == ResponseCode.INVALID_PARAMETER
    # These are longer than any key of the store can be.
    assert listed(client, topic="t" * 600) == []
    assert listed(client, cursor="00" * 600) == []


def next_times(client: MemoryClient, **fields: str) -> list[int]:
    """Return what `tidegate recurring next` gets, in ms since the start of the tests' time."""
    answer = client.ask(RequestCode.NEXT_RECURRING, fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return [time - START_MS for time in json.loads(answer.body)["times"]]


def test_next_times(gateway: MemoryGateway, client: MemoryClient) -> None:
    put(client, every="1m", count="4")
    of = {"topic": "orders", "name": "nightly"}
    assert next_times(client, **of, times="2") == [MINUTE, 2 * MINUTE]
    gateway.advance(MINUTE)
    assert next_times(client, **of) == [2 * MINUTE, 3 * MINUTE, 4 * MINUTE]
    assert len(next_times(client, every="1s", times="99999")) == 1_000
    assert next_times(client, **of, times="-1") == [2 * MINUTE], "there is always one"
    assert next_times(client, every="1m", times="-1") == [2 * MINUTE]
    assert next_times(client, cron="0 9 * * *", zone="Europe/Berlin", times="1") == [DAY]
    for fields, says in (
        ({"cron": "0 0 31 2 *"}, "Bad day-of-month"),
        ({"every": "1ms"}, "recurring_min_period"),
        ({}, "either a cron expression or a period"),
        ({"topic": "orders", "name": "none"}, "no recurring message 'none'"),
    ):
        answer = client.ask(RequestCode.NEXT_RECURRING, fields)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert says in (answer.remark or "")


def test_others_have_their_turn_while_times_are_found(
    gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time of a rule that fires once in decades takes milliseconds."""
    question = client.send(RequestCode.NEXT_RECURRING, {"cron": "7 0 * 2 SUN#5", "times": "12"})
    other = gateway.connect()
    other.send(RequestCode.LIST_RECURRING, {})
    gateway.reactor.turn()
    assert (client.transport.value() == b"", other.transport.value() != b"") == (True, True)
    answer = client.answer(question)
    assert answer is not None
    times = json.loads(answer.body)["times"]
    assert len(times) == 12
    assert times == sorted(set(times))
    # A client that does not wait for answers does not pile up work without end.
    monkeypatch.setattr(steps, "MOST", 2)
    sent = [
        client.send(RequestCode.NEXT_RECURRING, {"every": "1m", "times": "9"}) for _ in range(3)
    ]
    answers = [client.answer(opaque) for opaque in sent]
    codes = [answer.code for answer in answers if answer is not None]
    assert codes == [ResponseCode.SUCCESS] * 2 + [ResponseCode.SYSTEM_BUSY]


def test_who_asks_for_times_is_sent_away_by_a_gateway_that_stops(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    question = client.send(RequestCode.NEXT_RECURRING, {"cron": "7 0 * 2 SUN#5", "times": "99"})
    gateway.service.stop()
    answer = client.answer(question)
    assert answer is not None
    assert answer.code == ResponseCode.GO_AWAY
    gateway.running = False


def test_long_requests_that_wait_for_their_turn_do_not_pile_up(
    gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "MOST_BYTES", 2_000)
    fields = {"every": "1m", "zone": "UTC", "more": "x" * 800}
    for _ in range(2):
        sent = [client.send(RequestCode.NEXT_RECURRING, fields) for _ in range(3)]
        answers = [client.answer(opaque) for opaque in sent]
        told = [(answer.code, answer.remark) for answer in answers if answer is not None]
        assert [code for code, _ in told] == [0, 0, ResponseCode.SYSTEM_BUSY]
        assert (told[2][1] or "").endswith(
            "bytes of requests of this kind under way = 2000 is reached"
        )
    # One that is longer than all may be is answered where no other waits.
    answer = client.ask(RequestCode.NEXT_RECURRING, fields | {"more": "x" * 5_000})
    assert answer.code == ResponseCode.SUCCESS


# -- refused


@pytest.mark.parametrize(
    ("topic", "name"),
    [("orders", "n" * 600), ("orders", "a b"), ("o" * 600, "nightly"), ("or\0ders", "nightly")],
)
def test_what_nothing_is_called_is_refused(client: MemoryClient, topic: str, name: str) -> None:
    """The store cannot have so long a key."""
    put(client, every="1m")
    of = {"topic": topic, "name": name}
    says = "is no topic" if name == "nightly" else "is no name"
    for code, fields in (
        (RequestCode.CHANGE_RECURRING, of | {"change": "pause"}),
        (RequestCode.NEXT_RECURRING, of),
        (RequestCode.LIST_RECURRING, of),
    ):
        answer = client.ask(code, fields)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert says in (answer.remark or "")
    if name == "nightly":
        assert listed(client, topic=topic) == []
        client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
    assert len(listed(client)) == 1


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"TIDEGATE_EVERY": "1m"}, "needs a name, the property TIDEGATE_NAME"),
        ({"TIDEGATE_RECURRING": "pause"}, "needs a name"),
        ({"TIDEGATE_EVERY": "1m", "TIDEGATE_NAME": "a b"}, "no blanks"),
        ({"TIDEGATE_EVERY": "1m", "TIDEGATE_NAME": "a\0b"}, "all of them printable"),
        ({"TIDEGATE_EVERY": "1m", "TIDEGATE_NAME": "n" * 128}, "1 to 127 bytes"),
        ({"TIDEGATE_EVERY": "1m", "TIDEGATE_NAME": "."}, "out of an address"),
        ({"TIDEGATE_EVERY": "1m", "TIDEGATE_NAME": ".."}, "out of an address"),
        (
            {"TIDEGATE_EVERY": "1m", "TIDEGATE_NAME": "n", "DELAY": "3"},
            "cannot have a delay, DELAY",
        ),
        (
            {"TIDEGATE_EVERY": "1m", "TIDEGATE_NAME": "n", "TIMER_DELAY_MS": "3"},
            "cannot have a delay, TIMER_DELAY_MS",
        ),
        ({"TIDEGATE_EVERY": "1m", "TIDEGATE_CRON": "* * * * *", "TIDEGATE_NAME": "n"}, "not both"),
        ({"TIDEGATE_CRON": "* * *", "TIDEGATE_NAME": "n"}, "write 5 fields"),
        ({"TIDEGATE_EVERY": "10ms", "TIDEGATE_NAME": "n"}, "recurring_min_period = 1s"),
        (
            {"TIDEGATE_EVERY": "1m", "TIDEGATE_END": "2020-01-01T00:00", "TIDEGATE_NAME": "n"},
            "never fires",
        ),
        (
            {"TIDEGATE_EVERY": "1m", "TIDEGATE_NAME": "n", "TIDEGATE_MISFIRE": "FIRE_ALL"},
            "no misfire policy",
        ),
        (
            {"TIDEGATE_EVERY": "1m", "TIDEGATE_NAME": "n", "TRAN_MSG": "true"},
            "a transaction cannot",
        ),
        (
            {"TIDEGATE_EVERY": "1m", "TIDEGATE_NAME": "n", "TIDEGATE_DEBOUNCE": "k", "KEYS": "kk"},
            "is not one of the keys",
        ),
        ({"TIDEGATE_EVERY": "1m", "TIDEGATE_NAME": "n", "fill": "x" * 32_000}, "too long to recur"),
    ],
)
def test_what_is_refused(
    gateway: MemoryGateway, client: MemoryClient, properties: dict[str, str], says: str
) -> None:
    answer = client.send_message("orders", "x", properties)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert says in (answer.remark or "")
    gateway.advance(3 * MINUTE)
    assert client.pull_all() == []
    assert listed(client) == []


def test_the_longest_properties_have_room_for_what_is_added_when_it_fires(
    make_gateway: MakeGateway,
) -> None:
    gateway = make_gateway(cluster_name="c" * 127)
    client = gateway.connect()
    rule = {"TIDEGATE_EVERY": "1m", "TIDEGATE_NAME": "n" * 127}
    fill = "x" * (31_743 - len("fill\x01\x02"))
    answer = client.send_message("orders", "x", {**rule, "fill": fill + "x"})
    assert "its properties 31743" in (answer.remark or "")
    assert client.send_message("orders", "x", {**rule, "fill": fill}).code == ResponseCode.SUCCESS
    gateway.advance(MINUTE)
    (message,) = client.pull_all()
    assert properties_of(message)["fill"] == fill


def test_a_batch_sets_nothing(gateway: MemoryGateway, client: MemoryClient) -> None:
    answer = client.send_batch(
        [("a", {}), ("b", {"TIDEGATE_EVERY": "1m", "TIDEGATE_NAME": "n"})], "orders"
    )
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "send it alone" in (answer.remark or "")
    assert client.pull_all() == []


def test_a_retry_topic_has_none(gateway: MemoryGateway, client: MemoryClient) -> None:
    answer = client.send_message(
        "%RETRY%consumers", "x", {"TIDEGATE_EVERY": "1m", "TIDEGATE_NAME": "n"}
    )
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


def test_recurring_max(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(recurring_max=2)
    client = gateway.connect()
    put(client, name="a", every="1m")
    put(client, name="b", every="1m", count="1")
    answer = try_to_put(client, name="c", every="1m")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark == "there are 2 recurring messages already; recurring_max = 2"
    put(client, name="a", every="2m")
    gateway.advance(MINUTE)  # the second one ends
    put(client, name="c", every="1m")
    assert try_to_put(client, name="d", every="1m").code == ResponseCode.MESSAGE_ILLEGAL
    order(client, "delete", "c")
    put(client, name="d", every="1m")
    client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    put(client, name="e", every="1m")
    put(client, name="f", every="1m")


def test_what_a_consumer_sends_on_does_not_recur(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    """The name and the planned time alone order nothing: a fired message can be sent again unchanged."""
    put(client, every="1m", count="1")
    gateway.advance(MINUTE)
    (message,) = client.pull_all()
    answer = client.send_message("copies", message.body, properties_of(message))
    assert answer.code == ResponseCode.SUCCESS
    assert [m.topic for m in client.pull_all("copies")] == ["copies"]
    assert listed(client) == []


def test_in_a_paused_topic_they_wait_with_the_others(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    put(client, "recurring", every="2s")
    client.send_message("orders", "timed", TIMER_DELAY_MS="3000")
    pause_topic(gateway.store, b"orders", gateway.now_ms)
    gateway.advance(5 * SECOND)
    assert client.pull_all() == []
    assert [one["dueMs"] - START_MS for one in client.look_up(topic="orders")] == [
        2 * SECOND,
        3 * SECOND,
        4 * SECOND,
    ]
    resume_topic(gateway.store, b"orders")
    fire_resumed(gateway.store, gateway.now_ms, gateway.now_ms, 10)
    gateway.service.broker.committer.change()
    gateway.settle()
    assert bodies(client.pull_all()) == ["recurring", "timed", "recurring"]


# -- down time


@pytest.mark.parametrize(
    ("misfire", "times"),
    [
        ("SMART", [60]),
        ("FIRE_ONCE_NOW", [60]),
        ("DO_NOTHING", []),
        ("IGNORE_MISFIRE_POLICY", list(range(1, 61))),
    ],
)
def test_what_was_missed_in_down_time(
    gateway: MemoryGateway, client: MemoryClient, misfire: str, times: list[int]
) -> None:
    put(client, every="1m", misfire=misfire)
    gateway.stop()
    gateway.elapsed_ms += HOUR + 10 * SECOND
    gateway.reactor.rightNow = gateway.elapsed_ms / 1000
    gateway.start()
    gateway.settle()
    client = gateway.connect()
    assert planned(client.pull_all()) == [time * MINUTE for time in times]
    assert set(entered(client.pull_all())) <= {HOUR + 10 * SECOND}
    gateway.advance(MINUTE)
    assert planned(client.pull_all())[len(times) :] == [61 * MINUTE]


def test_a_short_down_time_loses_nothing(gateway: MemoryGateway, client: MemoryClient) -> None:
    """Up to `recurring_misfire_threshold`, every late time fires, each with its own planned time."""
    put(client, every="1s", misfire="DO_NOTHING")
    gateway.advance(5 * SECOND)
    gateway.stop()
    gateway.elapsed_ms += 30 * SECOND
    gateway.reactor.rightNow = gateway.elapsed_ms / 1000
    gateway.start()
    gateway.settle()
    assert planned(gateway.connect().pull_all()) == [n * SECOND for n in range(1, 36)]


def test_very_many_missed_ones_come_in_bounded_steps(
    gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        put(client, name=name, every="1s", misfire="IGNORE_MISFIRE_POLICY")
    recurring = gateway.service.broker.recurring
    fire_due, steps = recurring.fire_due, []

    def noted(now_ms: int, limit: int) -> Recurred:
        steps.append(fire_due(now_ms, limit))
        return steps[-1]

    monkeypatch.setattr(recurring, "fire_due", noted)
    gateway.jump(700 * SECOND)
    assert [step.messages for step in steps] == [MAX_RECURRED] * (3 * 700 // MAX_RECURRED)
    assert planned(client.pull_all()) == [n * SECOND for n in range(1, 701) for _ in range(3)]
    assert gateway.service.broker.firing.misfired == sum(step.misfired for step in steps) > 1_000


@pytest.mark.parametrize("names", ["a", "abcde"])
def test_large_ones_come_in_smaller_steps(make_gateway: MakeGateway, names: str) -> None:
    """This keeps a batch bounded: some 8 MiB, from bodies of 1 MiB."""
    gateway = make_gateway(connection_idle=timedelta(days=1), map_size_initial=1 << 28)
    client = gateway.connect()
    for name in names:
        put(client, "x" * (1 << 20), name=name, every="1s", misfire="IGNORE_MISFIRE_POLICY")
    recurring = gateway.service.broker.recurring
    assert recurring.fire_due(START_MS + 30 * SECOND, 100) == Recurred(8, 0, more=True)
    gateway.store.abandon()
    recurring.reload()


def test_a_clock_that_is_set(gateway: MemoryGateway, client: MemoryClient) -> None:
    put(client, every="1m")
    gateway.set_clock(-2 * MINUTE)
    gateway.advance(2 * MINUTE)
    assert client.pull_all() == []
    gateway.set_clock(5 * MINUTE)
    gateway.advance(SECOND)
    assert planned(client.pull_all()) == [5 * MINUTE]


def test_a_crash_neither_loses_nor_doubles(gateway: MemoryGateway, client: MemoryClient) -> None:
    put(client, every="1s")
    for _ in range(5):
        gateway.advance(2 * SECOND)
        gateway.crash()
    gateway.advance(SECOND)
    assert planned(gateway.connect().pull_all()) == [n * SECOND for n in range(1, 12)]


def test_commits_that_fail(gateway: MemoryGateway, client: MemoryClient) -> None:
    put(client, every="1s")
    with commits_fail(gateway):
        assert try_to_put(client, name="lost", every="1s").code != ResponseCode.SUCCESS
        gateway.advance(5 * SECOND)
        assert client.pull_all() == []
    gateway.advance(2 * SECOND)
    assert planned(client.pull_all()) == [n * SECOND for n in range(1, 8)]
    assert [one["name"] for one in listed(client)] == ["nightly"]
    assert gateway.service.broker.recurring.count() == 1
    assert gateway.service.broker.firing.recurred == 7


def test_a_full_disk_holds_them_up(gateway: MemoryGateway, client: MemoryClient) -> None:
    put(client, every="1s")
    gateway.service.broker.intake.disk_full = True
    for _ in range(5):
        gateway.service._housekeeping._watch_disk = lambda: None  # type: ignore[method-assign]
        gateway.advance(SECOND)
    assert client.pull_all() == []
    firing = gateway.service.broker.firing
    assert (firing.recurred, firing.misfired) == (0, 0)
    gateway.service.broker.intake.disk_full = False
    gateway.advance(SECOND)
    assert planned(client.pull_all()) == [n * SECOND for n in range(1, 7)]


def test_a_clock_that_is_moved_by_hand(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(clock="manual", connection_idle=timedelta(days=1))
    client = gateway.connect()
    put(client, every="1m")
    gateway.advance(10 * MINUTE)
    assert client.pull_all() == []
    answer = client.ask(RequestCode.CLOCK, {"advance": str(5 * MINUTE)})
    assert json.loads(answer.body)["fired"] == 5
    messages = client.pull_all()
    assert planned(messages) == entered(messages) == [n * MINUTE for n in range(1, 6)]
    assert json.loads(answer.body)["nextDueMs"] == START_MS + 6 * MINUTE


# -- their topics


def test_a_deleted_topic_takes_them_along(gateway: MemoryGateway, client: MemoryClient) -> None:
    put(client, every="1m")
    answer = client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
    assert answer.code == ResponseCode.SUCCESS
    client.send_message("orders", "created again")
    gateway.advance(3 * MINUTE)
    assert bodies(client.pull_all()) == ["created again"]
    assert listed(client) == []


def test_without_its_topic_one_is_deleted(gateway: MemoryGateway, client: MemoryClient) -> None:
    put(client, every="1m")
    gateway.service.broker.topics.delete("orders")
    with capturedLogs() as logs:
        gateway.advance(MINUTE)
    told = "recurring message nightly of topic orders is deleted: its topic is gone"
    assert told in [formatEvent(event) for event in logs]
    assert listed(client) == []
    assert gateway.service.broker.recurring.count() == 0
    firing = gateway.service.broker.firing
    assert (firing.recurred, firing.misfired) == (0, 0)


def test_what_names_no_queue_keeps_its_own(gateway: MemoryGateway, client: MemoryClient) -> None:
    rule = {"TIDEGATE_EVERY": "1s", "TIDEGATE_NAME": "n"}

    def queue_after(queue: int) -> int:
        client.send_message("orders", "x", rule, fields={"queue": queue})
        found: int = listed(client, name="n", topic="orders")[0]["queueId"]
        return found

    assert queue_after(3) == 3
    assert [queue_after(-1) for _ in range(9)] == [3] * 9
    assert queue_after(0) == 0
    assert [queue_after(-1) for _ in range(9)] == [0] * 9
    priority = {**rule, "_SYS_MSG_PRIORITY_": "2"}
    client.send_message("orders", "x", priority, fields={"queue": -1})
    assert listed(client, name="n", topic="orders")[0]["queueId"] == 2


def test_a_half_cannot_recur(client: MemoryClient) -> None:
    fields = client.send_fields(
        sys_flag=4, properties="TIDEGATE_EVERY\x011s\x02TIDEGATE_NAME\x01n\x02"
    )
    answer = client.ask(RequestCode.SEND_MESSAGE_V2, fields, b"x")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert listed(client) == []


@pytest.mark.parametrize(
    ("own", "read", "write", "queue"), [(3, 2, 2, 1), (2, 2, 2, 0), (3, 2, 0, 0), (3, 4, 2, 3)]
)
def test_a_topic_that_was_made_smaller(
    gateway: MemoryGateway, client: MemoryClient, own: int, read: int, write: int, queue: int
) -> None:
    client.send_message(
        "orders", "x", {"TIDEGATE_EVERY": "1s", "TIDEGATE_NAME": "n"}, fields={"queue": own}
    )
    topics = gateway.service.broker.topics
    topic = topics.get("orders")
    assert topic is not None
    topics.put(
        msgspec.structs.replace(topic.settings, read_queue_nums=read, write_queue_nums=write)
    )
    gateway.advance(SECOND)
    assert bodies(client.pull_all(queue=queue)) == ["x"]


def test_settings_change_while_it_serves(gateway: MemoryGateway, client: MemoryClient) -> None:
    broker = gateway.service.broker
    put(client, every="1m", misfire="DO_NOTHING")
    broker.reconfigure(
        broker.config.model_copy(
            update={
                "recurring_misfire_threshold": timedelta(seconds=1),
                "recurring_misfire_threshold_ms": SECOND,
                "max_message_size": 10,
            }
        )
    )
    assert "max_message_size = 10" in (try_to_put(client, "x" * 11, every="1m").remark or "")
    assert put(client, "x" * 10, every="1m", misfire="DO_NOTHING")["recurring"] == "updated"
    gateway.jump(MINUTE + SECOND + 1)
    assert client.pull_all() == []
    assert broker.firing.misfired == 1


def test_two_that_are_a_millisecond_apart_fire_each_in_its_own(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    put(client, every="1m")
    gateway.advance(1)
    put(client, name="other", every="1m")
    gateway.advance(2 * MINUTE)
    messages = client.pull_all()
    assert planned(messages) == entered(messages)
    assert entered(messages) == [MINUTE, MINUTE + 1, 2 * MINUTE, 2 * MINUTE + 1]


def test_a_definition_that_cannot_be_used_is_paused(
    gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An example is a zone that a newer system no longer has. The others continue."""
    put(client, cron="* * * * *", zone="Europe/Berlin")
    put(client, "other", name="other", every="1m")

    def unknown(name: str) -> None:
        raise recurrence.RuleError(f"{name!r} is no time zone")

    monkeypatch.setattr(recurrence, "_zone", unknown)
    gateway.advance(3 * MINUTE)
    assert bodies(client.pull_all()) == ["other"] * 3
    assert {one["name"]: one["state"] for one in listed(client)} == {
        "nightly": "paused",
        "other": "active",
    }
    firing = gateway.service.broker.firing
    assert (firing.recurred, firing.misfired) == (3, 0)


@pytest.mark.parametrize(
    "damage",
    [
        {"rule": Rule(cron="0 x * * *")},
        {"rule": Rule(cron="0 5")},
        {"rule": Rule(every_ms=0)},
        {"rule": Rule(every_ms=1 << 62, start_ms=1 << 62)},
        {"misfire": "NEVER"},
        {"set_ms": -1},
        {"queue_id": -1},
        {"flag": 1 << 31},
        {"sys_flag": 1 << 31},
        {"born_host": b"host"},
    ],
)
def test_a_damaged_definition_is_paused(
    gateway: MemoryGateway, client: MemoryClient, damage: dict[str, Any]
) -> None:
    """Once, each commit ended with a traceback, so that nothing was answered and nothing fired; or the recurring
    message was deleted as one that has come to its end."""
    put(client, every="1m")
    put(client, "other", name="other", every="1m")
    one = find_recurring(gateway.store, b"orders", b"nightly")
    assert one is not None
    definition = definition_of(one)
    assert definition is not None
    damaged = encode_definition(msgspec.structs.replace(definition, **damage))
    put_recurring(gateway.store, one._replace(definition=damaged))
    gateway.store.commit()
    gateway.advance(2 * MINUTE)
    assert client.send_message("orders", "sent").code == ResponseCode.SUCCESS
    assert bodies(client.pull_all()) == ["other", "other", "sent"]
    found = find_recurring(gateway.store, b"orders", b"nightly")
    assert found is not None
    assert found.paused
    put(client, every="1m")
    change(client, "resume")
    gateway.advance(MINUTE)
    assert "tick" in bodies(gateway.connect().pull_all())


def test_one_that_cannot_be_read_is_not_taken_for_absent(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    put(client, every="1m")
    one = find_recurring(gateway.store, b"orders", b"nightly")
    assert one is not None
    put_recurring(gateway.store, one._replace(definition=b"of a later version"))
    gateway.store.commit()
    place = {"topic": "orders", "name": "nightly"}
    for code in (RequestCode.LIST_RECURRING, RequestCode.NEXT_RECURRING):
        assert client.ask(code, place).code == ResponseCode.ILLEGAL_OPERATION
    refused = change(client, "delete")
    assert refused.code == ResponseCode.ILLEGAL_OPERATION
    assert refused.remark == (
        "the recurring message 'nightly' of topic orders is damaged, or another version of Tidegate stored it: set it "
        "again at broker-a"
    )
    put(client, every="1m")
    assert change(client, "delete").code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("damaged", "fired"), [("recurring", 0), ("recurrences", 0), ("planned", 1)]
)
def test_a_damaged_row_fires_nothing_and_keeps_nobody_busy(
    gateway: MemoryGateway, client: MemoryClient, damaged: str, fired: int
) -> None:
    """Until the repair the others continue, each at its times. Once, steps followed each other without a pause, or each
    step fired the message of such a row long before its time."""
    put(client, every="4m")
    put(client, "other", name="other", every="1m")
    txn, tables = gateway.store.batch_transaction(), gateway.store.tables
    key = recurring_key(b"orders", b"nightly")
    if damaged == "planned":
        txn.put(planned_key(START_MS + MINUTE, key), b"", db=tables.planned)
    else:
        txn.delete(key, db=getattr(tables, damaged))
    gateway.store.commit()
    gateway.advance(5 * MINUTE)
    assert bodies(client.pull_all()) == ["other"] * 3 + ["tick"] * fired + ["other"] * 2
    gateway.stop()


@pytest.mark.parametrize("damaged", ["recurrences", "times it has fired", "planned"])
def test_a_row_that_cannot_be_read_keeps_nothing_else_from_being_stored(
    gateway: MemoryGateway, client: MemoryClient, damaged: str
) -> None:
    """Each batch was refused once such a message was due, whatever else was in the batch, and nothing fired."""
    put(client, every="1m")
    put(client, "other", name="other", every="1m")
    table, key = "recurrences", recurring_key(b"orders", b"nightly")
    if damaged == "planned":
        table, key = "planned", bytes(8)

    def damage(row: bytes) -> bytes:
        return row[:8] + b"\xff" * 8 + row[16:] if damaged == "times it has fired" else b""

    with damaged_row(gateway, table, key, damage):
        gateway.advance(2 * MINUTE)
        client = gateway.connect()
        assert client.send_message("orders", "sent").code == ResponseCode.SUCCESS
        both = ["tick", "other"] if damaged == "planned" else ["other"]
        assert bodies(client.pull_all()) == [*both, *both, "sent"]
        assert [one["name"] for one in listed(client)] == sorted(
            {"tick": "nightly", "other": "other"}[body] for body in both
        )
        assert len(gateway.store.damaged) == 1


def test_one_whose_row_cannot_be_read_can_be_set_anew(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    put(client, every="1m")
    gateway.stop()
    change_table(
        gateway.data,
        "recurrences",
        lambda txn, db: txn.put(recurring_key(b"orders", b"nightly"), b"short", db=db),
    )
    gateway.start()
    client = gateway.connect()
    assert put(client, every="1m")["recurring"] == "set"
    assert gateway.service.broker.recurring.count() == 1
    gateway.advance(2 * MINUTE)
    assert bodies(client.pull_all()) == ["tick"] * 2
    assert change(client, "delete").code == ResponseCode.SUCCESS
    assert gateway.service.broker.recurring.count() == 0


def test_a_message_that_cannot_be_taken_in_is_paused(
    gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An example is one that was set before its property for debouncing was checked. Everything else continues."""
    monkeypatch.setattr(gateway.service.broker.intake, "check_planned", lambda *_: None)
    put(client, every="1m", debounce="k")
    put(client, "other", name="other", every="1m")
    gateway.advance(3 * MINUTE)
    assert bodies(client.pull_all()) == ["other"] * 3
    assert {one["name"]: one["state"] for one in listed(client)} == {
        "nightly": "paused",
        "other": "active",
    }
    firing = gateway.service.broker.firing
    assert (firing.recurred, firing.misfired) == (3, 0)


def test_who_changed_what_is_in_the_audit_log(gateway: MemoryGateway, client: MemoryClient) -> None:
    put(client, every="1m")
    put(client, every="2m")
    for what in ("pause", "pause", "resume", "resume", "delete", "delete"):
        change(client, what)
    lines = [json.loads(line) for line in (gateway.data / "audit.jsonl").read_text().splitlines()]
    noted = [(line["action"], line["topic"], line["name"]) for line in lines]
    assert noted == [
        (f"recurring {done}", "orders", "nightly")
        for done in ("set", "replaced", "paused", "resumed", "deleted")
    ]
    assert lines[1]["every"] == "2m"


def test_metrics(make_gateway: MakeGateway) -> None:
    gateway = make_gateway()
    client = gateway.connect()
    put(client, every="1m")
    gateway.advance(2 * MINUTE)
    gateway.jump(10 * MINUTE)
    service = gateway.service
    metrics = Metrics(service.broker, lambda: 1, lambda: service.recorded, service.not_ready)
    text = b"".join(metrics.pieces()).decode()
    figures = {
        line.partition("{")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("tidegate_recurring")
    }
    assert figures == {
        "tidegate_recurring": 1,
        "tidegate_recurring_fired_total": 3,
        "tidegate_recurring_misfires_total": 1,
    }


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("advance"), st.integers(1, 20_000)),
        st.tuples(st.just("jump"), st.integers(1, 30_000)),
        st.just(("crash", 0)),
        st.just(("restart", 0)),
        st.just(("again", 0)),
    ),
    max_size=8,
)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.integers(1_000, 9_000), STEPS)
def test_whatever_happens_each_time_fires_once(
    make_gateway: MakeGateway, every_ms: int, steps: list[tuple[str, int]]
) -> None:
    gateway = make_gateway(recurring_misfire_threshold=timedelta(hours=1))
    client = gateway.connect()
    put(client, every=f"{every_ms}ms")
    for step, value in steps:
        match step:
            case "advance":
                gateway.advance(value)
            case "jump":
                gateway.jump(value)
            case "crash":
                gateway.crash()
            case "restart":
                gateway.restart()
            case "again":
                put(gateway.connect(), every=f"{every_ms}ms")
    times = planned(gateway.connect().pull_all())
    assert times == [n * every_ms for n in range(1, gateway.elapsed_ms // every_ms + 1)]
    gateway.close()


def test_while_its_queue_cannot_be_read_it_is_paused_and_others_go_on(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    for topic in ("orders", "others"):
        client.send_message(topic, "x", {"TIDEGATE_EVERY": "1m", "TIDEGATE_NAME": "steady"})
    with damaged_row(gateway, "ends", queue_prefix(b"orders", 0), lambda _: b"short"):
        with capturedLogs() as logs:
            gateway.advance(MINUTE)
        told = [formatEvent(event) for event in logs if event["log_level"] is LogLevel.error]
        assert len(told) == 1
        assert (
            "steady of topic orders cannot go on and is paused: queue 0 of topic orders" in told[0]
        )
        assert bodies(gateway.connect().pull("others")) == ["x"]
    assert change(gateway.connect(), "resume", "steady").code == ResponseCode.SUCCESS
    gateway.advance(0)
    assert planned(gateway.connect().pull()) == [MINUTE]
