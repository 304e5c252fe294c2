"""Rescheduling pending messages: by id, handle, key, and by a message that any client can send."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.recall import RecallHandle
from tests.gateway.conftest import MakeGateway
from tests.gateway.memory import START_MS, MemoryClient, MemoryGateway, bodies
from tests.gateway.tools import create_topic, ok

DAY_MS = 86_400_000


def schedule(
    client: MemoryClient, name: str, delay_ms: int, topic: str = "orders", **more: str
) -> str:
    """Send a timed message with this id, and return its handle."""
    answer = client.send_message(
        topic, name, UNIQ_KEY=name, TIMER_DELAY_MS=str(delay_ms), properties=more
    )
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer.ext()["recallHandle"]


def reschedule(client: MemoryClient, **fields: object) -> list[dict[str, Any]]:
    """Send the request of `tidegate reschedule`, and return the results."""
    ext = {name: str(value) for name, value in fields.items()}
    answer = client.ask(RequestCode.RESCHEDULE_TIMERS, ext)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    results: list[dict[str, Any]] = json.loads(answer.body)["results"]
    return results


class TestOutcomes:
    def test_later(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        schedule(client, "A", 500)
        gateway.advance(100)
        [result] = reschedule(client, id="A", due=START_MS + 2_000)
        assert result == {
            "outcome": "rescheduled",
            "msgId": "A",
            "topic": "orders",
            "dueMs": START_MS + 2_000,
            "dueBeforeMs": START_MS + 500,
        }
        gateway.advance(1_899)
        assert client.pull() == []
        gateway.advance(1)
        [message] = client.pull()
        assert message.body == b"A"

    def test_earlier(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        schedule(client, "A", 60_000)
        reschedule(client, id="A", delay=20)
        gateway.advance(19)
        assert client.pull() == []
        gateway.advance(1)
        assert bodies(client.pull()) == ["A"]

    @pytest.mark.parametrize("to", [{"due": 5}, {"delay": -7}, {"shift": -DAY_MS}, {"delay": 0}])
    def test_a_time_that_has_passed_is_now(
        self, gateway: MemoryGateway, client: MemoryClient, to: dict[str, int]
    ) -> None:
        schedule(client, "A", 60_000)
        gateway.advance(10)
        [result] = reschedule(client, id="A", **to)
        assert (result["outcome"], result["dueMs"]) == ("rescheduled", START_MS + 10)
        assert bodies(client.pull()) == ["A"]

    def test_by_a_distance_from_its_time(self, client: MemoryClient) -> None:
        schedule(client, "A", 500)
        assert reschedule(client, id="A", shift=250)[0]["dueMs"] == START_MS + 750
        assert reschedule(client, id="A", shift=-50)[0]["dueMs"] == START_MS + 700

    def test_already_fired(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        schedule(client, "A", 500)
        gateway.advance(500)
        assert reschedule(client, id="A", delay=500)[0]["outcome"] == "already fired"
        gateway.advance(1_000)
        assert bodies(client.pull()) == ["A"]

    def test_already_aborted(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        schedule(client, "A", 500)
        client.abort(id="A")
        assert reschedule(client, id="A", delay=500)[0]["outcome"] == "already aborted"
        gateway.advance(1_000)
        assert client.pull() == []

    def test_unknown(self, client: MemoryClient) -> None:
        assert reschedule(client, id="A", delay=500)[0]["outcome"] == "unknown"
        schedule(client, "A", 500)
        assert reschedule(client, id="A", topic="bills", delay=500)[0]["outcome"] == "unknown"

    def test_aborted_after_it_was_moved(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        handle = schedule(client, "A", 500)
        reschedule(client, id="A", delay=5_000)
        assert client.recall("orders", handle).code == ResponseCode.SUCCESS
        gateway.advance(10_000)
        assert client.pull() == []

    def test_survives_a_crash(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        handle = schedule(client, "A", 500)
        reschedule(client, id="A", delay=5_000)
        gateway.crash()
        client = gateway.connect()
        gateway.advance(4_999)
        assert client.pull() == []
        assert reschedule(client, handle=handle, delay=100)[0]["outcome"] == "rescheduled"
        gateway.advance(100)
        assert bodies(client.pull()) == ["A"]


class TestNames:
    def test_handle_of_the_send_and_of_a_later_look_up(self, client: MemoryClient) -> None:
        handle = schedule(client, "A", 500)
        for _ in range(2):
            assert reschedule(client, handle=handle, shift=100)[0]["outcome"] == "rescheduled"
        [message] = client.look_up(id="A")
        assert RecallHandle.parse(message["recallHandle"]).due_ms == START_MS + 700
        results = reschedule(client, handle=message["recallHandle"], shift=100)
        assert results[0]["dueMs"] == START_MS + 800

    def test_offset_id(self, client: MemoryClient) -> None:
        answer = client.send_message(UNIQ_KEY="A", DELAY="3")
        [result] = reschedule(client, id=answer.ext()["msgId"], delay=50)
        assert (result["outcome"], result["msgId"]) == ("rescheduled", "A")

    def test_key(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        schedule(client, "A", 100, KEYS="k")
        schedule(client, "B", 500, KEYS="k x")
        schedule(client, "C", 500, KEYS="x")
        schedule(client, "D", 500, "bills", KEYS="k")
        gateway.advance(100)
        results = reschedule(client, topic="orders", key="k", delay=9_000)
        assert {one["msgId"]: one["outcome"] for one in results} == {
            "A": "already fired",
            "B": "rescheduled",
        }
        [none] = reschedule(client, topic="orders", key="none", delay=9_000)
        assert (none["outcome"], none["topic"]) == ("unknown", "orders")

    @pytest.mark.parametrize(
        ("fields", "remark"),
        [
            ({"delay": 5}, "name a handle, an id, or a topic and a key"),
            ({"key": "k", "delay": 5}, "name a handle, an id, or a topic and a key"),
            ({"topic": "orders", "delay": 5}, "name a handle, an id, or a topic and a key"),
            ({"id": "A"}, "by one of due (epoch ms), delay (ms from now) and shift (ms)"),
            ({"id": "A", "due": 5, "delay": 5}, "by one of due"),
            ({"id": "A", "due": 1_896_078_600}, "epoch ms of it are 1896078600000"),
        ],
    )
    def test_what_is_not_said(
        self, client: MemoryClient, fields: dict[str, object], remark: str
    ) -> None:
        ext = {name: str(value) for name, value in fields.items()}
        answer = client.ask(RequestCode.RESCHEDULE_TIMERS, ext)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert remark in (answer.remark or "")


class TestLimits:
    def test_no_further_than_a_send(self, make_gateway: MakeGateway) -> None:
        gateway = make_gateway()
        client = gateway.connect()
        schedule(client, "A", 500)
        too_far = str(731 * DAY_MS)
        for ext in ({"id": "A", "delay": too_far}, {"id": "A", "shift": too_far}):
            answer = client.ask(RequestCode.RESCHEDULE_TIMERS, ext)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert "setting max_delay" in (answer.remark or "")
        [message] = client.look_up(id="A")
        assert (message["dueMs"], message["rescheduledMs"]) == (START_MS + 500, 0)

    def test_what_fires_no_more_is_held_against_none(self, client: MemoryClient) -> None:
        schedule(client, "A", 729 * DAY_MS)
        client.abort(id="A")
        [result] = reschedule(client, id="A", shift=2 * DAY_MS)
        assert result["outcome"] == "already aborted"

    def test_no_further_in_a_topic_that_was_deleted(self, client: MemoryClient) -> None:
        schedule(client, "A", 60_000)
        client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
        answer = client.ask(RequestCode.RESCHEDULE_TIMERS, {"id": "A", "shift": str((1 << 63) - 1)})
        assert "setting max_delay" in (answer.remark or "")
        [found] = client.look_up(id="A")
        assert found["dueMs"] == START_MS + 60_000

    def test_no_further_behind_many_with_its_id(self, client: MemoryClient) -> None:
        schedule(client, "A", 60_000)
        assert client.send_batch([("b", {"UNIQ_KEY": "A"})] * 999).code == ResponseCode.SUCCESS
        answer = client.ask(RequestCode.RESCHEDULE_TIMERS, {"id": "A", "shift": str((1 << 63) - 1)})
        assert "setting max_delay" in (answer.remark or "")

    def test_what_has_the_id_in_another_topic_does_not_count(self, client: MemoryClient) -> None:
        ok(create_topic(client, "short", attributes="+max.delay=1h"))
        for topic in ("orders", "short"):
            schedule(client, "A", 60_000, topic)
        [result] = reschedule(client, id="A", topic="orders", delay=7_200_000)
        assert (result["outcome"], result["topic"]) == ("rescheduled", "orders")
        answer = client.ask(RequestCode.RESCHEDULE_TIMERS, {"id": "A", "delay": "7200000"})
        assert "attribute max.delay of the topic" in (answer.remark or "")

    def test_not_what_too_many_have_as_their_id(self, client: MemoryClient) -> None:
        schedule(client, "A", 60_000)
        assert client.send_batch([("b", {"UNIQ_KEY": "A"})] * 1_000).code == ResponseCode.SUCCESS
        order = client.send_message(TIDEGATE_RESCHEDULE="A", TIMER_DELAY_SEC="5")
        answer = client.ask(RequestCode.RESCHEDULE_TIMERS, {"id": "A", "delay": "5"})
        for refused in (order, answer):
            assert refused.code == ResponseCode.INVALID_PARAMETER
            assert "more than 1000 messages have the id A" in (refused.remark or "")

    def test_only_where_messages_may_be_taken_back(self, make_gateway: MakeGateway) -> None:
        client = make_gateway(recall_enabled=False).connect()
        schedule(client, "A", 500)
        for code, named in (
            (RequestCode.RESCHEDULE_TIMERS, {"id": "A"}),
            (RequestCode.RESCHEDULE_TIMERS, {"id": "unknown"}),
            (RequestCode.RESCHEDULE_TIMERS, {"topic": "orders", "key": "unknown"}),
            (RequestCode.BULK_CHANGE_TIMERS, {"topic": "orders", "action": "reschedule"}),
        ):
            answer = client.ask(code, {**named, "delay": "5"})
            assert answer.code == ResponseCode.NO_PERMISSION
            assert "recall_enabled" in (answer.remark or "")
        order = client.send_message(TIDEGATE_RESCHEDULE="A", TIMER_DELAY_SEC="5")
        assert order.code == ResponseCode.NO_PERMISSION


class TestHistory:
    def test_is_found(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        schedule(client, "A", 500)
        gateway.advance(100)
        reschedule(client, id="A", due=START_MS + 900)
        gateway.advance(50)
        reschedule(client, id="A", due=START_MS + 700)
        [message] = client.look_up(id="A")
        expected = {"storeMs": 0, "dueMs": 700, "rescheduledMs": 150, "dueBeforeMs": 900}
        assert {name: message[name] - START_MS for name in expected} == expected
        gateway.advance(1_000)
        [message] = client.look_up(id="A", state="fired")
        assert {name: message[name] - START_MS for name in expected} == expected
        assert message["movedMs"] == START_MS + 700

    def test_in_a_listing(self, client: MemoryClient) -> None:
        schedule(client, "A", 500)
        reschedule(client, id="A", delay=900)
        assert [one["dueBeforeMs"] for one in client.look_up()] == [START_MS + 500]


class TestByProperty:
    """A message with TIDEGATE_RESCHEDULE and a time, from any client."""

    def order(self, client: MemoryClient, target: str, topic: str = "orders", **time: str) -> Any:
        return client.send_message(
            topic, "order", UNIQ_KEY="ORDER", TIDEGATE_RESCHEDULE=target, properties=time
        )

    @pytest.mark.parametrize(
        ("time", "delay_ms"),
        [
            ({"TIMER_DELAY_MS": "250"}, 250),
            ({"TIMER_DELAY_SEC": "2"}, 2_000),
            ({"TIMER_DELIVER_MS": str(START_MS + 300)}, 300),
            ({"__STARTDELIVERTIME": str(START_MS + 300)}, 300),
            ({"DELAY": "1"}, 1_000),
            ({"TIMER_DELIVER_MS": "5"}, 0),
        ],
    )
    def test_moves_it(
        self,
        gateway: MemoryGateway,
        client: MemoryClient,
        time: dict[str, str],
        delay_ms: int,
    ) -> None:
        schedule(client, "A", 60_000)
        answer = self.order(client, "A", **time)
        assert answer.code == ResponseCode.SUCCESS
        assert answer.ext()["transactionId"] == "ORDER"
        handle = RecallHandle.parse(answer.ext()["recallHandle"])
        assert handle == RecallHandle("orders", "broker-a", START_MS + delay_ms, "A")
        if delay_ms:
            gateway.advance(delay_ms - 1)
            assert client.pull() == []
            gateway.advance(1)
        # The order itself is never delivered.
        assert bodies(client.pull()) == ["A"]
        gateway.advance(100_000)
        assert len(client.pull()) == 1

    def test_by_offset_id(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        """A client that gives its messages no id has only this name. The new handle then names the message."""
        sent = client.send_message("orders", "A", TIMER_DELAY_MS="60000").ext()
        answer = self.order(client, sent["msgId"], TIMER_DELAY_MS="250")
        assert answer.code == ResponseCode.SUCCESS
        [result] = reschedule(client, handle=answer.ext()["recallHandle"], delay=100)
        assert result["outcome"] == "rescheduled"
        gateway.advance(100)
        assert bodies(client.pull()) == ["A"]

    def test_its_answer_is_true(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        schedule(client, "fired", 10)
        schedule(client, "aborted", 10)
        client.abort(id="aborted")
        gateway.advance(10)
        for target, remark in (
            ("fired", "the message has already fired"),
            ("aborted", "the message was already aborted"),
            ("none", "no such message"),
        ):
            answer = self.order(client, target, TIMER_DELAY_MS="500")
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert answer.remark == f"reschedule failed, {remark}: {target}"

    def test_of_several_with_one_id_the_one_that_was_moved_is_answered(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        schedule(client, "A", 10)
        gateway.advance(10)
        schedule(client, "A", 500)
        answer = self.order(client, "A", TIMER_DELAY_MS="900")
        assert answer.code == ResponseCode.SUCCESS
        handle = RecallHandle.parse(answer.ext()["recallHandle"])
        assert handle == RecallHandle("orders", "broker-a", START_MS + 910, "A")

    def test_only_in_the_topic_that_it_is_sent_to(self, client: MemoryClient) -> None:
        schedule(client, "A", 500)
        answer = self.order(client, "A", "bills", TIMER_DELAY_MS="900")
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "no such message" in (answer.remark or "")

    def test_seconds_are_no_time_to_fire_at(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        schedule(client, "A", 500)
        for name in ("TIMER_DELIVER_MS", "__STARTDELIVERTIME"):
            answer = self.order(client, "A", **{name: "1896078600"})
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert "epoch ms of it are 1896078600000" in (answer.remark or "")
        assert client.look_up(id="A")[0]["state"] == "pending"

    def test_without_a_time(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        schedule(client, "A", 500)
        answer = self.order(client, "A")
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "nothing says when" in (answer.remark or "")

    def test_too_far(self, client: MemoryClient) -> None:
        schedule(client, "A", 500)
        answer = self.order(client, "A", TIMER_DELAY_MS=str(731 * DAY_MS))
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "max_delay" in (answer.remark or "")

    def test_not_in_a_batch_and_not_in_a_transaction(self, client: MemoryClient) -> None:
        schedule(client, "A", 500)
        properties = {"TIDEGATE_RESCHEDULE": "A", "TIMER_DELAY_MS": "900"}
        answer = client.send_batch([("x", {}), ("y", properties)])
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        half = client.send_message(
            properties=properties | {"TRAN_MSG": "true", "PGROUP": "p"}, fields={"sys_flag": 4}
        )
        assert half.code == ResponseCode.MESSAGE_ILLEGAL
        assert client.look_up(id="A")[0]["dueMs"] == START_MS + 500
