"""A gateway whose time stands still until a request moves it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.moments import LATEST_DATE_MS
from gateway.process import StartError
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command
from tests.gateway.conftest import MakeGateway
from tests.gateway.faults import batches_cannot_begin, commits_fail
from tests.gateway.memory import START_MS, MemoryClient, MemoryGateway, bodies

MINUTE_MS = 60_000


@pytest.fixture
def gateway(make_gateway: MakeGateway) -> MemoryGateway:
    return make_gateway(clock="manual")


def move(client: MemoryClient, **fields: int) -> dict[str, Any]:
    """Move the clock, and return its new state."""
    return shown(
        client.ask(RequestCode.CLOCK, {name: str(value) for name, value in fields.items()})
    )


def shown(answer: Command) -> dict[str, Any]:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    state: dict[str, Any] = json.loads(answer.body)
    return state


def test_time_stands_still(gateway: MemoryGateway, client: MemoryClient) -> None:
    client.send_message(TIMER_DELAY_SEC="60")
    gateway.advance(10 * MINUTE_MS)
    client = gateway.connect()
    assert client.pull() == []
    assert move(client) == {
        "clock": "manual",
        "nowMs": START_MS,
        "nextDueMs": START_MS + MINUTE_MS,
        "fired": 0,
    }


def test_what_was_aborted_or_paused_is_not_due(client: MemoryClient) -> None:
    client.send_message(UNIQ_KEY="A", TIMER_DELAY_SEC="60")
    client.send_message(UNIQ_KEY="B", TIMER_DELAY_SEC="90")
    client.ask(RequestCode.ABORT_TIMERS, {"id": "A"})
    assert move(client)["nextDueMs"] == START_MS + 90_000
    client.ask(RequestCode.ABORT_TIMERS, {"id": "B"})
    assert move(client)["nextDueMs"] is None
    again = {"TIDEGATE_EVERY": "1h", "TIDEGATE_NAME": "n"}
    client.send_message("orders", "x", again)
    client.send_message("orders", "x", {"TIDEGATE_RECURRING": "pause", "TIDEGATE_NAME": "n"})
    assert move(client)["nextDueMs"] is None


def test_what_is_due_fires_to_the_millisecond(client: MemoryClient) -> None:
    client.send_message(TIMER_DELAY_SEC="60")
    assert move(client, advance=MINUTE_MS - 1)["fired"] == 0
    assert client.pull() == []
    assert move(client, advance=1) == {
        "clock": "manual",
        "nowMs": START_MS + MINUTE_MS,
        "nextDueMs": None,
        "fired": 1,
    }
    assert bodies(client.pull()) == ["hello"]


def test_a_long_way_is_gone_step_by_step(client: MemoryClient) -> None:
    """Each message fires at its own time, and has that as its store time."""
    due = [START_MS + minutes * MINUTE_MS for minutes in range(1, 51)]
    for due_ms in due:
        client.send_message(body=str(due_ms), TIMER_DELIVER_MS=str(due_ms))
    assert move(client, advance=60 * MINUTE_MS)["fired"] == 50
    messages = client.pull_all()
    assert [int(message.body) for message in messages] == due
    assert [message.store_ms for message in messages] == due


def test_more_than_one_step_fires_is_fired(client: MemoryClient) -> None:
    properties = {"TIMER_DELIVER_MS": str(START_MS + 1000)}
    for _ in range(12):
        client.send_batch([(str(n), properties) for n in range(100)])
    assert move(client, advance=1000)["fired"] == 1200


def test_what_waits_in_a_resumed_topic_fires_before_the_clock_moves_on(
    client: MemoryClient,
) -> None:
    topic = {"topic": "orders"}
    for _ in range(12):
        client.send_batch([("early", {"TIMER_DELAY_MS": "1000"})] * 100)
    client.send_message(body="late", TIMER_DELAY_MS="3000")
    client.ask(RequestCode.PAUSE_TOPIC, topic)
    assert move(client, advance=2_000)["fired"] == 0
    client.send(RequestCode.RESUME_TOPIC, topic)
    assert move(client, advance=2_000)["fired"] == 1_201
    messages = client.pull_all()
    assert len(messages) == 1_201
    assert {message.store_ms - START_MS for message in messages[:-1]} == {2_000}
    assert (messages[-1].body, messages[-1].store_ms - START_MS) == (b"late", 3_000)


def test_it_is_set_forward_and_back(client: MemoryClient) -> None:
    client.send_message(TIMER_DELIVER_MS=str(START_MS + MINUTE_MS))
    assert move(client, to=START_MS - 1000)["nowMs"] == START_MS - 1000
    # A relative time counts from the time of the clock.
    client.send_message(body="relative", TIMER_DELAY_SEC="2")
    assert move(client, to=START_MS + 1000)["fired"] == 1
    assert bodies(client.pull()) == ["relative"]


def test_requests_wait_for_one_another(gateway: MemoryGateway) -> None:
    client, other = gateway.connect(), gateway.connect()
    for second in range(60):
        client.send_message(TIMER_DELIVER_MS=str(START_MS + second * 1000))
    first = client.send(RequestCode.CLOCK, {"advance": str(MINUTE_MS)})
    second = other.send(RequestCode.CLOCK, {"advance": "1"})
    answers = [client.answer(first), other.answer(second)]
    states = [shown(answer) for answer in answers if answer is not None]
    assert [state["nowMs"] - START_MS for state in states] == [MINUTE_MS, MINUTE_MS + 1]


def test_no_distance_waits_for_what_is_under_way(gateway: MemoryGateway) -> None:
    client, other = gateway.connect(), gateway.connect()
    for second in range(60):
        client.send_message(TIMER_DELIVER_MS=str(START_MS + second * 1000))
    client.send(RequestCode.CLOCK, {"advance": str(MINUTE_MS)})
    client.disconnect()
    state = move(other, advance=0)
    assert (state["nowMs"], state["nextDueMs"]) == (START_MS + MINUTE_MS, None)


@pytest.mark.parametrize(
    "fields", [{"advance": "-1"}, {"to": "-1"}, {"to": "0"}, {"to": "253402300800000"}]
)
def test_nonsense_is_refused(client: MemoryClient, fields: dict[str, str]) -> None:
    answer = client.ask(RequestCode.CLOCK, fields)
    assert answer.code == ResponseCode.INVALID_PARAMETER


def test_at_the_earliest_time_an_aborted_message_is_one(client: MemoryClient) -> None:
    move(client, to=1)
    client.send_message(UNIQ_KEY="A", TIMER_DELAY_SEC="60")
    assert client.abort(id="A")[0]["outcome"] == "aborted"
    assert client.abort(id="A")[0]["outcome"] == "already aborted"


def test_a_step_that_cannot_be_stored_is_told_and_not_gone(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    client.send_message(TIMER_DELAY_SEC="60")
    with commits_fail(gateway):
        answer = client.ask(RequestCode.CLOCK, {"advance": str(MINUTE_MS)})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert move(client)["nowMs"] == START_MS
    gateway.advance(2_000)
    assert client.pull() == []
    assert move(client, advance=MINUTE_MS)["nowMs"] == START_MS + MINUTE_MS
    assert bodies(client.pull()) == ["hello"]


def test_after_a_step_that_could_not_begin_others_are_gone(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    with batches_cannot_begin():
        answer = client.ask(RequestCode.CLOCK, {"advance": str(MINUTE_MS)})
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert move(client, advance=MINUTE_MS)["nowMs"] == START_MS + MINUTE_MS


def test_the_time_outlives_a_restart(gateway: MemoryGateway) -> None:
    move(gateway.connect(), advance=MINUTE_MS)
    gateway.restart()
    assert move(gateway.connect())["nowMs"] == START_MS + MINUTE_MS
    move(gateway.connect(), advance=MINUTE_MS)
    gateway.crash()
    assert move(gateway.connect())["nowMs"] == START_MS + 2 * MINUTE_MS


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the machine's time zone nine hours ahead of UTC."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "JST-9")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_tokyo")
def test_the_last_day_of_all_is_the_next_year_where_the_machine_is(gateway: MemoryGateway) -> None:
    move(gateway.connect(), to=LATEST_DATE_MS)
    gateway.advance(20_000)
    gateway.restart()
    assert move(gateway.connect())["nowMs"] == LATEST_DATE_MS


def test_undecided_transactions_go_by_it(gateway: MemoryGateway, client: MemoryClient) -> None:
    client.heartbeat("P1", group="", producers=["producers"])
    client.send_message(TRAN_MSG="true", PGROUP="producers", fields={"sys_flag": 4})
    gateway.advance(60_000)
    assert client.requests() == []
    move(client, advance=6_000)
    gateway.advance(1_000)
    assert [request.code for request in client.requests()] == [RequestCode.CHECK_TRANSACTION_STATE]


def test_recurring_messages_go_by_it(client: MemoryClient) -> None:
    client.send_message(properties={"TIDEGATE_EVERY": "2m", "TIDEGATE_NAME": "often"})
    assert move(client, advance=7 * MINUTE_MS)["fired"] == 3
    at = [message.store_ms - START_MS for message in client.pull_all()]
    assert at == [2 * MINUTE_MS, 4 * MINUTE_MS, 6 * MINUTE_MS]


def test_popped_messages_come_back_by_it(gateway: MemoryGateway, client: MemoryClient) -> None:
    client.send_message()
    pop = {
        "consumerGroup": "G",
        "topic": "orders",
        "queueId": "0",
        "maxMsgNums": "1",
        "invisibleTime": "60000",
        "pollTime": "0",
        "bornTime": "0",
        "initMode": "0",
    }
    assert client.ask(RequestCode.POP_MESSAGE, pop).code == ResponseCode.SUCCESS
    gateway.advance(61_000)
    assert client.ask(RequestCode.POP_MESSAGE, pop).code != ResponseCode.SUCCESS
    move(client, advance=MINUTE_MS)
    gateway.advance(1_000)
    assert client.ask(RequestCode.POP_MESSAGE, pop).code == ResponseCode.SUCCESS


def test_pops_of_clients_that_go_by_the_machines_clock(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    move(client, advance=30 * MINUTE_MS)
    asked = {
        "consumerGroup": "G",
        "topic": "orders",
        "queueId": "0",
        "maxMsgNums": "1",
        "invisibleTime": "60000",
        "pollTime": "15000",
        "bornTime": str(START_MS),
        "initMode": "0",
    }
    client.send_message()
    assert client.ask(RequestCode.POP_MESSAGE, asked).code == ResponseCode.SUCCESS
    told, popped = (gateway.connect() for _ in range(2))
    told.send(RequestCode.NOTIFICATION, asked)
    popped.send(RequestCode.POP_MESSAGE, asked)
    gateway.advance(14_000)
    assert told.take() == popped.take() == []


class TestFolders:
    def test_real_data_is_left_alone(self, make_gateway: MakeGateway) -> None:
        gateway = make_gateway()
        gateway.connect().send_message(TIMER_DELAY_SEC="60")
        gateway.stop()
        gateway.settings["clock"] = "manual"
        with pytest.raises(StartError, match="holds real data; set data to a folder"):
            gateway.start()
        gateway.settings["clock"] = "real"
        gateway.start()
        assert len(gateway.connect().look_up()) == 1

    def test_a_folder_that_is_empty_again_was_real(self, make_gateway: MakeGateway) -> None:
        gateway = make_gateway(auto_create_group=True, retention_hours=0)
        gateway.connect().send_message()
        gateway.advance(20_000)
        gateway.stop()
        with pytest.raises(StartError, match="holds real data"):
            MemoryGateway(gateway.data, clock="manual")
        gateway.start()

    def test_a_folder_of_tests_stays_one(self, gateway: MemoryGateway) -> None:
        gateway.stop()
        with pytest.raises(StartError, match="set clock to manual, or data to another folder"):
            MemoryGateway(gateway.data)
        gateway.start()

    def test_a_folder_that_was_only_served_from_is_free(self, tmp_path: Path) -> None:
        MemoryGateway(tmp_path / "data").close()
        MemoryGateway(tmp_path / "data", clock="manual").close()


def test_the_machines_clock_is_shown_and_not_moved(make_gateway: MakeGateway) -> None:
    client = make_gateway().connect()
    assert move(client)["clock"] == "real"
    answer = client.ask(RequestCode.CLOCK, {"advance": "1"})
    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    assert "clock = manual can be moved" in (answer.remark or "")
