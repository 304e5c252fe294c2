"""Pops in order: one at a time for a queue and a group, repeated from the first message that is not acknowledged."""

from __future__ import annotations

import base64
import json
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.handlers import ordered_pops
from gateway.handlers.ordered_pops import OrderedPops
from gateway.pops.orders import Place
from gateway.pops.queues import PopQueues
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command
from gateway.wire.group_topics import retry_topic
from gateway.wire.messages import decode_messages
from gateway.wire.pops import parse_handle
from storage.keys import queue_prefix
from tests.gateway.faults import batches_cannot_begin, commits_fail, damaged_row
from tests.gateway.memory import MemoryClient, MemoryGateway, bodies
from tests.gateway.popping import (
    INVISIBLE_MS,
    ack,
    ask_pop,
    handle_fields,
    handles,
    pop,
    pop_fields,
    send,
)
from tests.gateway.tools import create_topic, ok
from tests.scratch import scratch_folder

ORDER = {"order": "true", "queueId": 0}


def pop_texts(gateway: MemoryGateway, client: MemoryClient, **fields: object) -> list[str]:
    return bodies(pop(gateway, client, **{**ORDER, **fields}))


def put_off(client: MemoryClient, handle: str, ms: int) -> Command:
    fields = {**handle_fields(handle), "invisibleTime": str(ms)}
    return client.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)


class TestOneAtATime:
    def test_the_answer(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a", "b", "c")
        answer = ask_pop(gateway, client, **ORDER, maxMsgNums=2)
        assert bodies(decode_messages(answer.body)) == ["a", "b"]
        assert answer.ext() == {
            "popTime": str(gateway.now_ms),
            "invisibleTime": "10000",
            "reviveQid": "999",
            "restNum": "1",
            "startOffsetInfo": "0 0 0",
            "msgOffsetInfo": "0 0 0,1",
            "orderCountInfo": "0 0 0",
        }

    def test_nothing_more_until_all_is_acknowledged(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a", "b", "c")
        first, second = handles(ask_pop(gateway, client, **ORDER, maxMsgNums=2))
        blocked = ask_pop(gateway, client, **ORDER)
        assert (blocked.code, blocked.ext()["restNum"]) == (ResponseCode.POLLING_TIMEOUT, "0")
        ack(client, second)
        assert pop_texts(gateway, client) == []
        ack(client, first)
        assert pop_texts(gateway, client) == ["c"]

    def test_other_queues_and_groups_go_on(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a", "b")
        send(client, "x", queue=1)
        assert pop_texts(gateway, client, maxMsgNums=1) == ["a"]
        assert pop_texts(gateway, client, queueId=-1) == ["x"]
        assert pop_texts(gateway, client, consumerGroup="other", maxMsgNums=1) == ["a"]

    def test_an_acknowledgement_wakes_who_waits(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a", "b")
        (handle,) = handles(ask_pop(gateway, client, **ORDER, maxMsgNums=1))
        waiting = gateway.connect()
        opaque = waiting.send(
            RequestCode.POP_MESSAGE, pop_fields(gateway, **ORDER, pollTime=15_000)
        )
        assert waiting.answer(opaque) is None
        ack(client, handle)
        answer = waiting.answer(opaque)
        assert answer is not None
        assert bodies(decode_messages(answer.body)) == ["b"]

    def test_notifications(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a", "b")
        (handle,) = handles(ask_pop(gateway, client, **ORDER, maxMsgNums=1))
        where = pop_fields(gateway, **ORDER, pollTime=0)
        assert client.ask(RequestCode.NOTIFICATION, where).ext()["hasMsg"] == "false"
        ack(client, handle)
        assert client.ask(RequestCode.NOTIFICATION, where).ext()["hasMsg"] == "true"

    def test_filters_pass_over(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "x", TAGS="X")
        send(client, "y", TAGS="Y")
        assert pop_texts(gateway, client, exp="Z") == []
        assert pop_texts(gateway, client, exp="*") == []

    def test_a_repeated_request(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a", "b")
        for _ in range(2):
            answer = ask_pop(gateway, client, **ORDER, maxMsgNums=1, attemptId="once")
            assert bodies(decode_messages(answer.body)) == ["a"]
            assert answer.ext()["orderCountInfo"] == "0 0 0"
        assert pop_texts(gateway, client, attemptId="twice") == []
        gateway.advance(INVISIBLE_MS)
        for _ in range(2):
            answer = ask_pop(gateway, client, **ORDER, maxMsgNums=1, attemptId="twice")
            assert bodies(decode_messages(answer.body)) == ["a"]
            assert answer.ext()["orderCountInfo"] == "0 qo0%0 1;0 0 1"

    def test_the_id_of_an_attempt_is_of_a_bounded_length(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a")
        answer = ask_pop(gateway, client, **ORDER, attemptId="x" * 1_001)
        assert (answer.code, answer.remark) == (
            ResponseCode.INVALID_PARAMETER,
            "1001 characters of an attempt's id; 1000 are possible",
        )
        wanted = pop_fields(gateway, **ORDER, attemptId="x" * 1_001)
        assert client.ask(RequestCode.NOTIFICATION, wanted).code == answer.code
        answer = ask_pop(gateway, client, **ORDER, attemptId="x" * 1_000)
        assert bodies(decode_messages(answer.body)) == ["a"]

    def test_a_topic_that_nobody_may_read_a_queue_of(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        """There is no queue to wait at. Such a client never got a response, and counted as waiting for ever."""
        create_topic(client, "orders", readQueueNums="0")
        anywhere = {"order": "true", "queueId": -1}
        for _ in range(2):
            answer = ask_pop(gateway, client, **anywhere, pollTime=5_000)
            assert answer.code == ResponseCode.POLLING_TIMEOUT
        where = {"consumerGroup": "consumers", "topic": "orders", "queueId": "-1"}
        assert ok(client.ask(RequestCode.POLLING_INFO, where)).ext() == {"pollingNum": "0"}

    def test_an_acknowledgement_that_was_refused_for_want_of_room_does_not_count(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a", "b")
        (handle,) = handles(ask_pop(gateway, client, **ORDER, maxMsgNums=1))
        with batches_cannot_begin():
            assert ack(client, handle).code == ResponseCode.SERVICE_NOT_AVAILABLE
            late = put_off(client, handle, 3 * INVISIBLE_MS)
            assert late.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert pop_texts(gateway, client) == []
        gateway.advance(INVISIBLE_MS)
        assert pop_texts(gateway, client) == ["a", "b"]

    def test_where_what_comes_back_cannot_be_read(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        """That queue has nothing for pops in order, so no other queue is left out because of it."""
        send(client, "a")
        come_back = queue_prefix(retry_topic("orders", "consumers").encode(), 0)
        with damaged_row(gateway, "ends", come_back, lambda _: b"short"):
            assert pop_texts(gateway, gateway.connect()) == ["a"]


class TestAgain:
    def test_from_the_first_that_is_not_acknowledged(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a", "b", "c")
        first, _, _ = handles(ask_pop(gateway, client, **ORDER))
        ack(client, first)
        send(client, "d")
        gateway.advance(INVISIBLE_MS)
        answer = ask_pop(gateway, client, **ORDER)
        assert bodies(decode_messages(answer.body)) == ["b", "c", "d"]
        assert answer.ext()["orderCountInfo"] == "0 qo0%1 1;0 qo0%2 1;0 0 0"
        gateway.advance(INVISIBLE_MS)
        answer = ask_pop(gateway, client, **ORDER)
        assert answer.ext()["orderCountInfo"] == "0 qo0%1 2;0 qo0%2 2;0 qo0%3 1;0 0 1"

    def test_an_old_handle_is_as_good(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a", "b")
        (old,) = handles(ask_pop(gateway, client, **ORDER, maxMsgNums=1))
        gateway.advance(INVISIBLE_MS)
        (new,) = handles(ask_pop(gateway, client, **ORDER, maxMsgNums=1))
        assert ack(client, old).code == ResponseCode.SUCCESS
        assert pop_texts(gateway, client) == []
        assert ack(client, new).code == ResponseCode.SUCCESS
        assert ack(client, new).code == ResponseCode.SUCCESS
        assert pop_texts(gateway, client) == ["b"]

    def test_the_end_of_a_time_wakes_who_waits(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a")
        pop_texts(gateway, client, invisibleTime=3_000)
        gateway.crash()
        client = gateway.connect()
        for _ in range(2):
            fields = pop_fields(gateway, **ORDER, invisibleTime=3_000, pollTime=15_000)
            opaque = client.send(RequestCode.POP_MESSAGE, fields)
            gateway.advance(2_600)
            assert client.answer(opaque) is None
            gateway.advance(700)
            answer = client.answer(opaque)
            assert answer is not None
            assert bodies(decode_messages(answer.body)) == ["a"]

    @pytest.mark.parametrize("why", ["put off", "popped after it"])
    def test_the_end_of_a_time_that_has_become_a_later_one_wakes_who_waits(
        self, gateway: MemoryGateway, client: MemoryClient, why: str
    ) -> None:
        send(client, "a", "b")
        wanted = {"invisibleTime": 3_000, "maxMsgNums": 1}
        (handle,) = handles(ask_pop(gateway, client, **ORDER, **wanted))
        gateway.advance(1_000)
        if why == "put off":
            ok(put_off(client, handle, 3_000))
        else:
            ok(ack(client, handle))
            assert pop_texts(gateway, client, **wanted) == ["b"]
        opaque = client.send(
            RequestCode.POP_MESSAGE, pop_fields(gateway, **ORDER, **wanted, pollTime=15_000)
        )
        gateway.advance(2_900)
        assert client.answer(opaque) is None
        gateway.advance(500)
        answer = client.answer(opaque)
        assert answer is not None
        assert bodies(decode_messages(answer.body)) == ["a" if why == "put off" else "b"]

    def test_the_end_of_a_time_wakes_who_waits_whatever_other_queue_cannot_be_read(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        in_order = {"order": "true", "invisibleTime": 3_000}
        for queue in (0, 1):
            send(client, f"in {queue}", queue=queue)
            assert len(pop_texts(gateway, client, **in_order, queueId=queue)) == 1
        with damaged_row(gateway, "queues", queue_prefix(b"orders", 0) + bytes(9), lambda _: b"x"):
            client = gateway.connect()
            fields = pop_fields(gateway, **in_order, queueId=1, pollTime=15_000)
            opaque = client.send(RequestCode.POP_MESSAGE, fields)
            gateway.advance(3_300)
            answer = client.answer(opaque)
            assert answer is not None
            assert bodies(decode_messages(answer.body)) == ["in 1"]

    def test_of_many_times_that_are_over_some_are_looked_at_in_each_turn(
        self, gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ordered_pops, "MAX_RELEASED", 2)
        broker = gateway.service.broker
        for queue in range(5):
            place = Place("g", "orders", queue)
            broker.orders.note(place, None, gateway.now_ms, INVISIBLE_MS, [0])
        woken: list[list[int]] = [[]]
        monkeypatch.setattr(
            broker.parked, "wake", lambda queues, _: woken[-1].extend(one.number for one in queues)
        )
        gateway.advance(INVISIBLE_MS - 1)
        gateway.reactor.rightNow += 0.001
        release = OrderedPops(broker).release_due
        while release():
            woken.append([])
        assert woken == [[0, 1], [2, 3], [4], []]

    def test_what_is_popped_over_and_over_is_watched_once(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        orders = gateway.service.broker.orders
        for _ in range(20):
            send(client, "a")
            (handle,) = handles(ask_pop(gateway, client, **ORDER, invisibleTime=60_000))
            ack(client, handle)
        assert len(orders._releases) == 1
        gateway.advance(61_000)
        assert orders._releases == []

    def test_an_acknowledgement_wakes_its_own_group_only(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        send(client, "a", "b")
        (handle,) = handles(ask_pop(gateway, client, **ORDER, maxMsgNums=1))
        pop_texts(gateway, client, consumerGroup="others")
        fields = pop_fields(gateway, **ORDER, pollTime=15_000)
        for group in ("consumers", "others"):
            client.send(RequestCode.POP_MESSAGE, fields | {"consumerGroup": group})
        looks = []
        blocks = PopQueues.blocks

        def note(queues: PopQueues, group: str, *rest: Any) -> bool:
            looks.append(group)
            return blocks(queues, group, *rest)

        monkeypatch.setattr(PopQueues, "blocks", note)
        ack(client, handle)
        assert looks == ["consumers"]

    def test_over_a_crash(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a", "b", "c")
        first, _ = handles(ask_pop(gateway, client, **ORDER, maxMsgNums=2))
        ack(client, first)
        gateway.crash()
        client = gateway.connect()
        assert pop_texts(gateway, client) == []
        gateway.advance(INVISIBLE_MS)
        answer = ask_pop(gateway, client, **ORDER)
        assert bodies(decode_messages(answer.body)) == ["b", "c"]
        assert answer.ext()["orderCountInfo"] == "0 qo0%1 1;0 0 0"

    def test_an_acknowledgement_before_its_turn_is_on_disk(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a", "b", "c")
        first, second = handles(ask_pop(gateway, client, **ORDER, maxMsgNums=2))
        ack(client, second)
        gateway.crash()
        client = gateway.connect()
        ack(client, first)
        assert pop_texts(gateway, client) == ["c"]

    def test_a_refused_commit_is_no_pop(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a")
        with commits_fail(gateway):
            assert ask_pop(gateway, client, **ORDER).code == ResponseCode.SERVICE_NOT_AVAILABLE
        answer = ask_pop(gateway, client, **ORDER)
        assert bodies(decode_messages(answer.body)) == ["a"]
        assert answer.ext()["orderCountInfo"] == "0 0 0"


class TestAck:
    def test_what_the_pop_did_not_bring(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a", "b")
        (handle,) = handles(ask_pop(gateway, client, **ORDER, maxMsgNums=1))
        wrong = {**handle_fields(handle), "offset": "1"}
        assert client.ask(RequestCode.ACK_MESSAGE, wrong).code == ResponseCode.MESSAGE_ILLEGAL

    def test_what_was_never_popped_moves_nothing(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a", "b")
        never = f"0 {gateway.now_ms} {INVISIBLE_MS} 999 0 broker-a 0 1"
        assert ack(client, never).code == ResponseCode.SUCCESS
        assert pop_texts(gateway, client) == ["a", "b"]

    def test_many(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a", "b", "c")
        (first, *_) = handles(ask_pop(gateway, client, **ORDER, maxMsgNums=2))
        handle = parse_handle(first)
        acks = {
            "c": "consumers",
            "t": "orders",
            "r": "0",
            "so": 0,
            "q": 0,
            "rq": handle.revive_queue,
            "pt": handle.pop_time,
            "it": handle.invisible_time,
            "b": base64.b64encode(b"\x03").decode(),
        }
        body = json.dumps({"brokerName": "broker-a", "acks": [acks]}).encode()
        assert client.ask(RequestCode.BATCH_ACK_MESSAGE, None, body).code == ResponseCode.SUCCESS
        assert pop_texts(gateway, client) == ["c"]

    def test_after_a_reset(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a", "b", "c")
        (handle,) = handles(ask_pop(gateway, client, **ORDER, maxMsgNums=1))
        ack(client, handle)
        (handle,) = handles(ask_pop(gateway, client, **ORDER, maxMsgNums=1))
        reset = {
            "topic": "orders",
            "group": "consumers",
            "queueId": "0",
            "offset": "0",
            "timestamp": "-1",
            "isForce": "true",
        }
        answer = client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
        assert answer.code == ResponseCode.SUCCESS
        # Neither the block nor the acknowledgement of messages popped before the reset counts.
        assert ack(client, handle).code == ResponseCode.SUCCESS
        assert pop_texts(gateway, client) == ["a", "b", "c"]

    def test_another_topic_that_is_deleted_ends_no_block(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a")
        assert pop_texts(gateway, client) == ["a"]
        client.send_message("bills")
        client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "bills"})
        assert pop_texts(gateway, client) == []

    def test_a_deleted_group_begins_anew(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a")
        pop_texts(gateway, client)
        gone = {"groupName": "consumers", "cleanOffset": "true"}
        client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, gone)
        gateway.crash()
        assert pop_texts(gateway, gateway.connect()) == ["a"]

    def test_a_deleted_topic_begins_anew(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a")
        pop_texts(gateway, client)
        client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
        # Nothing is visible again when the time of what was deleted is over.
        gateway.advance(2 * INVISIBLE_MS)
        send(client, "b")
        assert pop_texts(gateway, client) == ["b"]


class TestPutOff:
    def test_for_longer(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a", "b")
        popped_ms = gateway.now_ms
        (handle,) = handles(ask_pop(gateway, client, **ORDER, maxMsgNums=1))
        gateway.advance(1_000)
        assert put_off(client, handle, 30_000).ext() == {
            "popTime": str(popped_ms),
            "invisibleTime": "31000",
            "reviveQid": "999",
        }
        gateway.crash()
        client = gateway.connect()
        gateway.advance(INVISIBLE_MS)
        assert pop_texts(gateway, client) == []
        assert ack(client, handle).code == ResponseCode.SUCCESS
        assert pop_texts(gateway, client) == ["b"]

    def test_the_last_that_is_visible_ends_the_block(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a", "b")
        first, _ = handles(ask_pop(gateway, client, **ORDER))
        put_off(client, first, 1_000)
        gateway.advance(INVISIBLE_MS - 1)
        assert pop_texts(gateway, client) == []
        gateway.advance(1)
        assert pop_texts(gateway, client) == ["a", "b"]

    def test_for_less(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a")
        (handle,) = handles(ask_pop(gateway, client, **ORDER))
        opaque = client.send(RequestCode.POP_MESSAGE, pop_fields(gateway, **ORDER, pollTime=15_000))
        put_off(gateway.connect(), handle, 1_000)
        gateway.advance(1_500)
        answer = client.answer(opaque)
        assert answer is not None
        assert bodies(decode_messages(answer.body)) == ["a"]
        # The invisible time of the first pop ends before that of the second, and wakes nobody.
        opaque = client.send(RequestCode.POP_MESSAGE, pop_fields(gateway, **ORDER, pollTime=15_000))
        gateway.advance(INVISIBLE_MS - 1_000)
        assert client.answer(opaque) is None
        gateway.advance(1_500)
        assert client.answer(opaque) is not None

    def test_those_that_are_left_end_the_block(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a", "b", "c", "d")
        first, second, third = handles(ask_pop(gateway, client, **ORDER, maxMsgNums=3))
        opaque = client.send(RequestCode.POP_MESSAGE, pop_fields(gateway, **ORDER, pollTime=15_000))
        ack(client, first)
        put_off(client, second, INVISIBLE_MS // 2)
        ack(client, third)
        gateway.advance(INVISIBLE_MS // 2 + 1_000)
        answer = client.answer(opaque)
        assert answer is not None
        assert bodies(decode_messages(answer.body)) == ["b", "c", "d"]

    def test_what_is_acknowledged(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a", "b")
        (handle,) = handles(ask_pop(gateway, client, **ORDER, maxMsgNums=1))
        ack(client, handle)
        assert put_off(client, handle, 60_000).ext()["invisibleTime"] == "0"
        assert pop_texts(gateway, client) == ["b"]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 7)), max_size=12))
def test_no_message_overtakes_another(steps: list[tuple[int, int]]) -> None:
    """Whatever is popped and acknowledged, each message is first delivered after all earlier ones."""
    with scratch_folder() as folder, closing(MemoryGateway(folder)) as gateway:
        client = gateway.connect()
        texts = [str(number) for number in range(8)]
        send(client, *texts)
        delivered: list[str] = []
        for most, acked in steps:
            answer = ask_pop(gateway, client, **ORDER, maxMsgNums=most)
            assert answer.code == ResponseCode.SUCCESS or delivered == texts
            if answer.code == ResponseCode.SUCCESS:
                new = [
                    text for text in bodies(decode_messages(answer.body)) if text not in delivered
                ]
                delivered += new
                for place, handle in enumerate(handles(answer)):
                    if acked >> place & 1:
                        ack(client, handle)
            gateway.advance(INVISIBLE_MS)
        assert delivered == texts[: len(delivered)]
