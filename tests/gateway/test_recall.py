"""Recalls: the response is true, by whatever name the message is recalled."""

from __future__ import annotations

import base64

import pytest

from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.recall import RecallHandle
from tests.gateway.conftest import MakeGateway
from tests.gateway.memory import START_MS, MemoryClient, MemoryGateway, bodies


def handle_of(client: MemoryClient, **properties: str) -> str:
    """Send a timed message, and return its handle."""
    answer = client.send_message(properties=properties)
    assert answer.code == ResponseCode.SUCCESS
    return answer.ext()["recallHandle"]


def encode(text: str) -> str:
    """Return a handle with this text."""
    return base64.urlsafe_b64encode(text.encode()).decode()


class TestHandle:
    @pytest.mark.parametrize(
        ("properties", "delay_ms"),
        [
            ({"DELAY": "2"}, 5_000),
            ({"TIMER_DELAY_SEC": "7"}, 7_000),
            ({"TIMER_DELAY_MS": "1500"}, 1_500),
            ({"TIMER_DELIVER_MS": str(START_MS + 2_345)}, 2_345),
            ({"__STARTDELIVERTIME": str(START_MS + 9)}, 9),
        ],
    )
    def test_is_handed_out_and_works(
        self,
        gateway: MemoryGateway,
        client: MemoryClient,
        properties: dict[str, str],
        delay_ms: int,
    ) -> None:
        handle = handle_of(client, UNIQ_KEY="ID1", **properties)
        assert RecallHandle.parse(handle) == RecallHandle(
            "orders", "broker-a", START_MS + delay_ms, "ID1"
        )
        answer = client.recall("orders", handle)
        assert answer.code == ResponseCode.SUCCESS
        assert answer.ext()["msgId"] == "ID1"
        gateway.advance(delay_ms + 5_000)
        assert client.pull() == []

    def test_for_a_message_without_an_id_of_its_own(self, client: MemoryClient) -> None:
        answer = client.send_message(TIMER_DELAY_MS="500")
        recalled = client.recall("orders", answer.ext()["recallHandle"])
        assert recalled.code == ResponseCode.SUCCESS
        assert recalled.ext()["msgId"] == answer.ext()["transactionId"]

    def test_padding_does_not_matter(self, client: MemoryClient) -> None:
        handle = handle_of(client, UNIQ_KEY="ID1", TIMER_DELAY_MS="500")
        assert client.recall("orders", handle.rstrip("=")).code == ResponseCode.SUCCESS

    def test_an_id_may_have_blanks(self, client: MemoryClient) -> None:
        handle = handle_of(client, UNIQ_KEY="an id of my own", TIMER_DELAY_MS="500")
        recalled = client.recall("orders", handle)
        assert recalled.code == ResponseCode.SUCCESS
        assert recalled.ext()["msgId"] == "an id of my own"

    def test_up_to_the_last_millisecond(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        handle = handle_of(client, TIMER_DELAY_MS="500")
        gateway.advance(499)
        assert client.recall("orders", handle).code == ResponseCode.SUCCESS
        gateway.advance(1_000)
        assert client.pull() == []


class TestOutcomes:
    """Responses to a stock client if there is nothing to recall (a real broker responds with success)."""

    def expect(self, client: MemoryClient, handle: str, remark: str, outcome: str) -> None:
        answer = client.recall("orders", handle)
        assert answer.code == ResponseCode.ILLEGAL_OPERATION
        assert answer.remark == f"recall failed, {remark}: ID1"
        assert answer.ext() == {
            "msgId": "ID1",
            "outcome": outcome,
            "MSG_REGION": "DefaultRegion",
        }

    def test_already_fired(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        handle = handle_of(client, UNIQ_KEY="ID1", TIMER_DELAY_MS="500")
        gateway.advance(500)
        self.expect(client, handle, "the message has already fired", "already fired")
        assert len(client.pull()) == 1

    def test_already_aborted(self, client: MemoryClient) -> None:
        handle = handle_of(client, UNIQ_KEY="ID1", TIMER_DELAY_MS="500")
        client.recall("orders", handle)
        self.expect(client, handle, "the message was already aborted", "already aborted")

    def test_unknown(self, client: MemoryClient) -> None:
        client.send_message("orders", UNIQ_KEY="ID2")
        handle = RecallHandle("orders", "broker-a", START_MS + 500, "ID1").encode()
        self.expect(client, handle, "no such message", "unknown")

    def test_the_same_id_under_another_topic(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.send_message("orders", UNIQ_KEY="other")
        client.send_message("bills", UNIQ_KEY="ID1", TIMER_DELAY_MS="500")
        handle = RecallHandle("orders", "broker-a", START_MS + 500, "ID1").encode()
        self.expect(client, handle, "no such message", "unknown")
        gateway.advance(500)
        assert len(client.pull("bills")) == 1

    def test_a_send_that_the_client_repeated(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        """A client that got no response sends again with the same id. One recall aborts both messages."""
        handle_of(client, UNIQ_KEY="ID1", TIMER_DELAY_MS="500")
        handle = handle_of(client, UNIQ_KEY="ID1", TIMER_DELAY_MS="600")
        assert client.recall("orders", handle).code == ResponseCode.SUCCESS
        gateway.advance(1_000)
        assert client.pull() == []

    def test_survives_a_restart(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        handle = handle_of(client, UNIQ_KEY="ID1", TIMER_DELAY_MS="500")
        client.recall("orders", handle)
        gateway.crash()
        client = gateway.connect()
        self.expect(client, handle, "the message was already aborted", "already aborted")
        gateway.advance(1_000)
        assert client.pull() == []

    def test_the_same_id_can_be_sent_again(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.recall("orders", handle_of(client, UNIQ_KEY="ID1", TIMER_DELAY_MS="500"))
        client.send_message("orders", "again", UNIQ_KEY="ID1", TIMER_DELAY_MS="500")
        gateway.advance(500)
        assert bodies(client.pull()) == ["again"]

    def test_and_taken_back_again(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        """If several messages have the id, the outcome depends on whether one was still pending."""
        for _ in range(3):
            handle = handle_of(client, UNIQ_KEY="ID1", TIMER_DELAY_MS="500")
            assert client.recall("orders", handle).code == ResponseCode.SUCCESS
        client.send_message("orders", "fires", UNIQ_KEY="ID1", TIMER_DELAY_MS="100")
        gateway.advance(100)
        handle = handle_of(client, UNIQ_KEY="ID1", TIMER_DELAY_MS="500")
        assert client.recall("orders", handle).code == ResponseCode.SUCCESS
        gateway.advance(1_000)
        assert bodies(client.pull()) == ["fires"]


class TestRefusals:
    """Checks are in the order of RecallMessageProcessor: of two faults, the first one is named."""

    @pytest.mark.parametrize(
        ("topic", "text", "code", "remark"),
        [
            ("none", "rubbish", 17, "recall failed, the topic[none] not exist"),
            ("orders", "v2 orders broker-a 1 ID1", 604, "recall handle is invalid"),
            ("orders", "v1 orders broker-a 1", 604, "recall handle is invalid"),
            ("orders", "v1 orders", 604, "recall handle is invalid"),
            ("orders", "", 604, "recall handle is invalid"),
            ("orders", "v1 bills broker-b 1 ID1", 604, "recall failed, topic not match"),
            (
                "orders",
                "v1 orders broker-b 1 ID1",
                604,
                "recall failed, broker service not available",
            ),
            ("orders", "v1 orders broker-a soon ID1", 604, "recall failed, timestamp invalid"),
        ],
    )
    def test_refusal(
        self, client: MemoryClient, topic: str, text: str, code: int, remark: str
    ) -> None:
        client.send_message()
        answer = client.recall(topic, encode(text))
        assert (answer.code, answer.remark) == (code, remark)
        assert answer.ext() == {"MSG_REGION": "DefaultRegion"}

    @pytest.mark.parametrize("handle", ["not base64!", "====", "v1 orders broker-a 1 ID1", "é"])
    def test_not_base64(self, client: MemoryClient, handle: str) -> None:
        client.send_message()
        answer = client.recall("orders", handle)
        assert (answer.code, answer.remark) == (604, "recall handle is invalid")

    @pytest.mark.parametrize("missing", ["topic", "recallHandle"])
    def test_a_field_is_missing(self, client: MemoryClient, missing: str) -> None:
        ext = {"topic": "orders", "recallHandle": "x"}
        del ext[missing]
        answer = client.ask(RequestCode.RECALL_MESSAGE, ext)
        assert (answer.code, answer.remark) == (1, f"the field {missing} is missing")

    def test_switched_off(self, make_gateway: MakeGateway) -> None:
        gateway = make_gateway(recall_enabled=False)
        client = gateway.connect()
        handle = handle_of(client, UNIQ_KEY="ID1", KEYS="k", TIMER_DELAY_MS="500")
        for topic in ("orders", "none"):
            answer = client.recall(topic, handle)
            assert (answer.code, answer.remark) == (
                16,
                "recall failed, operation is forbidden (setting recall_enabled)",
            )
        for named in ({"id": "ID1"}, {"handle": handle}, {"topic": "orders", "key": "k"}):
            assert client.ask(RequestCode.ABORT_TIMERS, named).code == 16
        many = {"topic": "orders", "action": "abort"}
        assert client.ask(RequestCode.BULK_CHANGE_TIMERS, many).code == 16
        gateway.advance(500)
        assert len(client.pull()) == 1


class TestDeleteOrder:
    """A message with TIMER_DEL_UNIQKEY."""

    def order(self, client: MemoryClient, target: str, topic: str = "orders") -> tuple[int, str]:
        answer = client.send_message(
            topic, TIMER_DEL_UNIQKEY=target, TIMER_DELIVER_MS=str(START_MS + 500), UNIQ_KEY="DEL"
        )
        return answer.code, answer.remark or ""

    @pytest.mark.parametrize("target", ["ID1", "orders+ID1"])
    def test_aborts(self, gateway: MemoryGateway, client: MemoryClient, target: str) -> None:
        handle_of(client, UNIQ_KEY="ID1", TIMER_DELAY_MS="500")
        assert self.order(client, target) == (0, "")
        gateway.advance(1_000)
        assert client.pull() == []
        assert client.look_up(id="ID1", state="any")[0]["state"] == "aborted"
        assert client.look_up(id="DEL", state="any") == []

    def test_by_offset_id(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        """A client that gives its messages no id has only this name."""
        target = client.send_message(TIMER_DELAY_MS="500").ext()["msgId"]
        no_such = (13, f"recall failed, no such message: {target}")
        assert self.order(client, target, "bills") == no_such
        assert self.order(client, target) == (0, "")
        aborted = (13, f"recall failed, the message was already aborted: {target}")
        assert self.order(client, target) == aborted
        gateway.advance(1_000)
        assert client.pull() == []

    def test_need_not_name_the_time(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        handle_of(client, UNIQ_KEY="ID1", DELAY="3")
        assert self.order(client, "ID1") == (0, "")

    def test_says_what_is(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        assert self.order(client, "ID1") == (13, "recall failed, no such message: ID1")
        handle_of(client, UNIQ_KEY="ID1", TIMER_DELAY_MS="500")
        assert self.order(client, "ID1", "bills") == (13, "recall failed, no such message: ID1")
        self.order(client, "ID1")
        assert self.order(client, "ID1") == (
            13,
            "recall failed, the message was already aborted: ID1",
        )
        handle_of(client, UNIQ_KEY="ID2", TIMER_DELAY_MS="500")
        gateway.advance(500)
        assert self.order(client, "ID2") == (
            13,
            "recall failed, the message has already fired: ID2",
        )

    def test_where_recall_is_off(self, make_gateway: MakeGateway) -> None:
        client = make_gateway(recall_enabled=False).connect()
        handle_of(client, UNIQ_KEY="ID1", TIMER_DELAY_MS="500")
        assert self.order(client, "ID1") == (
            16,
            "recall failed, operation is forbidden (setting recall_enabled)",
        )
        assert [one["state"] for one in client.look_up(id="ID1")] == ["pending"]

    def test_not_in_a_batch(self, client: MemoryClient) -> None:
        """The response to a batch could not say whether the recall succeeded."""
        handle_of(client, UNIQ_KEY="ID1", TIMER_DELAY_MS="500")
        order = {"TIMER_DEL_UNIQKEY": "ID1", "TIMER_DELAY_MS": "1"}
        answer = client.send_batch([("x", {}), ("y", order)])
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "TIMER_DEL_UNIQKEY" in (answer.remark or "")
        assert client.pull() == []
        assert [one["state"] for one in client.look_up(id="ID1")] == ["pending"]

    def test_without_a_time_it_is_an_ordinary_message(self, client: MemoryClient) -> None:
        handle_of(client, UNIQ_KEY="ID1", TIMER_DELAY_MS="500")
        client.send_message("orders", "plain", TIMER_DEL_UNIQKEY="ID1")
        assert bodies(client.pull()) == ["plain"]
        assert len(client.look_up(id="ID1")) == 1


class TestAbort:
    """Tidegate's own request, behind `tidegate abort`."""

    def test_by_id(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        handle_of(client, UNIQ_KEY="ID1", TIMER_DELAY_MS="500")
        expected = {"msgId": "ID1", "topic": "orders", "dueMs": START_MS + 500}
        assert client.abort(id="ID1") == [expected | {"outcome": "aborted"}]
        assert client.abort(id="ID1") == [expected | {"outcome": "already aborted"}]
        gateway.advance(1_000)
        assert client.pull() == []

    def test_by_offset_id(self, client: MemoryClient) -> None:
        answer = client.send_message(UNIQ_KEY="ID1", TIMER_DELAY_MS="500")
        [result] = client.abort(id=answer.ext()["msgId"])
        assert (result["msgId"], result["outcome"]) == ("ID1", "aborted")

    def test_by_handle(self, client: MemoryClient) -> None:
        handle = handle_of(client, UNIQ_KEY="ID1", TIMER_DELAY_MS="500")
        [result] = client.abort(handle=handle)
        assert (result["msgId"], result["outcome"]) == ("ID1", "aborted")

    def test_by_key(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        for number in range(3):
            delay_ms = 50 + 100 * number
            handle_of(client, UNIQ_KEY=f"ID{number}", KEYS="a b", TIMER_DELAY_MS=str(delay_ms))
        gateway.advance(50)
        client.send_message("bills", UNIQ_KEY="ID9", KEYS="a", TIMER_DELAY_MS="100")
        client.abort(id="ID2")
        results = client.abort(key="a", topic="orders")
        assert {result["msgId"]: result["outcome"] for result in results} == {
            "ID0": "already fired",
            "ID1": "aborted",
            "ID2": "already aborted",
        }
        gateway.advance(1_000)
        assert len(client.pull()) == 1
        assert len(client.pull("bills")) == 1

    @pytest.mark.parametrize(
        "message_id",
        ["none", "0" * 32, "F" * 32, "7F000001000026940000000000000063", "é", "x" * 999],
    )
    def test_unknown_id(self, client: MemoryClient, message_id: str) -> None:
        [result] = client.abort(id=message_id)
        assert (result["msgId"], result["outcome"]) == (message_id, "unknown")

    def test_unknown_key(self, client: MemoryClient) -> None:
        client.send_message()
        [result] = client.abort(key="none", topic="orders")
        assert (result["topic"], result["outcome"]) == ("orders", "unknown")

    def test_fired(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        handle_of(client, UNIQ_KEY="ID1", TIMER_DELAY_MS="500")
        gateway.advance(500)
        [result] = client.abort(id="ID1")
        assert result["outcome"] == "already fired"
        assert result["dueMs"] == START_MS + 500

    def test_the_topic_narrows_an_id(self, client: MemoryClient) -> None:
        for topic in ("orders", "bills"):
            client.send_message(topic, UNIQ_KEY="ID1", TIMER_DELAY_MS="500")
        [result] = client.abort(id="ID1", topic="bills")
        assert (result["topic"], result["outcome"]) == ("bills", "aborted")
        assert [message["topic"] for message in client.look_up(id="ID1")] == ["orders"]

    def test_redeliveries_are_not_aborted_by_the_way(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        """A retried message keeps its id. An abort of the original must not lose the retry."""
        client.send_message("orders", UNIQ_KEY="ID1")
        [message] = client.pull()
        client.ask(
            RequestCode.CONSUMER_SEND_MSG_BACK,
            {"offset": str(message.physical_offset), "group": "workers", "delayLevel": "1"},
        )
        [result] = client.abort(id="ID1")
        assert (result["topic"], result["outcome"]) == ("orders", "already fired")
        gateway.advance(1_000)
        assert len(client.pull("%RETRY%workers")) == 1

    def test_a_redelivery_by_its_topic(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        client.send_message("%RETRY%workers", UNIQ_KEY="ID1", DELAY="3")
        [result] = client.abort(id="ID1", topic="%RETRY%workers")
        assert result["outcome"] == "aborted"

    @pytest.mark.parametrize("fields", [{}, {"key": "a"}, {"topic": "orders"}, {"handle": ""}])
    def test_nothing_named(self, client: MemoryClient, fields: dict[str, str]) -> None:
        answer = client.ask(RequestCode.ABORT_TIMERS, fields)
        assert answer.code == ResponseCode.INVALID_PARAMETER

    def test_a_bad_handle(self, client: MemoryClient) -> None:
        answer = client.ask(RequestCode.ABORT_TIMERS, {"handle": "rubbish"})
        assert (answer.code, answer.remark) == (604, "recall handle is invalid")

    def test_not_what_too_many_have_as_their_id(self, client: MemoryClient) -> None:
        items = [("x", {"UNIQ_KEY": "ID1", "TIMER_DELAY_SEC": "60"}) for _ in range(1_001)]
        client.send_batch(items)
        order = client.send_message(TIMER_DEL_UNIQKEY="ID1", TIMER_DELAY_SEC="60")
        for refused in (order, client.ask(RequestCode.ABORT_TIMERS, {"id": "ID1"})):
            assert refused.code == ResponseCode.INVALID_PARAMETER
            assert "more than 1000 messages have the id ID1" in (refused.remark or "")

    def test_many_with_one_key(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        items = [("x", {"KEYS": "k", "TIMER_DELAY_SEC": "60"}) for _ in range(1_200)]
        client.send_batch(items)
        results = client.abort(key="k", topic="orders")
        assert [result["outcome"] for result in results] == ["aborted"] * 1_000
        results = client.abort(key="k", topic="orders")
        assert sorted(result["outcome"] for result in results) == (
            ["aborted"] * 200 + ["already aborted"] * 800
        )
        assert client.look_up() == []


class TestAgainstFiring:
    def test_in_the_turn_in_which_it_is_due(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        """Either the abort or the firing wins, and the response says which."""
        handle = handle_of(client, TIMER_DELAY_MS="500")
        gateway.advance(499)
        gateway.reactor.rightNow += 0.001
        answer = client.recall("orders", handle)
        gateway.settle()
        delivered = len(client.pull())
        assert (answer.code, delivered) in {(ResponseCode.SUCCESS, 0), (604, 1)}

    def test_of_all_in_one_batch(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        handles = [handle_of(client, TIMER_DELAY_MS="500") for _ in range(20)]
        gateway.advance(499)
        opaques = [
            client.send(RequestCode.RECALL_MESSAGE, {"topic": "orders", "recallHandle": handle})
            for handle in handles[::2]
        ]
        gateway.advance(1)
        for opaque in opaques:
            answer = client.answer(opaque)
            assert answer is not None
            assert answer.code == ResponseCode.SUCCESS
        assert len(client.pull()) == 10

    def test_a_send_and_its_recall_in_one_turn(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        ext = client.send_fields(properties="UNIQ_KEY\x01ID1\x02TIMER_DELAY_MS\x01500\x02")
        client.send_message()
        sent = client.send(RequestCode.SEND_MESSAGE_V2, ext, b"x")
        recalled = client.send(RequestCode.ABORT_TIMERS, {"id": "ID1"})
        answers = [client.answer(sent), client.answer(recalled)]
        assert all(answer is not None and answer.code == 0 for answer in answers)
        gateway.advance(1_000)
        pulled = len(client.pull(offset=1))
        [message] = client.look_up(id="ID1", state="any")
        assert (pulled, message["state"]) in {(0, "aborted"), (1, "fired")}
