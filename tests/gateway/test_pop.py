"""Pops: each message goes to one consumer for some time, and is then acknowledged, postponed or delivered again."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.handlers.assignments import part_of
from gateway.pops.queues import LONGEST_INVISIBLE_MS
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command
from gateway.wire.fields import FieldError
from gateway.wire.messages import MAX_PROPERTIES, decode_messages
from gateway.wire.pops import Handle, parse_batch_acks, parse_handle
from storage import MAX_RECORDS_JUDGED, MAX_ROWS_FILTERED, Page, Queue, Store
from storage.keys import pop_key, queue_prefix
from tests.gateway.conftest import MakeGateway
from tests.gateway.faults import commits_fail, damaged_page, damaged_row
from tests.gateway.memory import START_MS, MemoryClient, MemoryGateway, bodies, properties_of
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
from tests.gateway.tools import commit_offset, create_topic, offset_of, ok, put_group


class TestPop:
    def test_a_message_is_one_consumers(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a", "b")
        assert bodies(pop(gateway, client, maxMsgNums=1)) == ["a"]
        assert bodies(pop(gateway, gateway.connect())) == ["b"]
        assert pop(gateway, client) == []

    def test_all_queues_or_one(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        for queue in range(4):
            send(client, str(queue), queue=queue)
        assert bodies(pop(gateway, client, queueId=2)) == ["2"]
        assert sorted(bodies(pop(gateway, client))) == ["0", "1", "3"]

    def test_no_queue_waits_for_the_end_of_another(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        for queue in (0, 1):
            send(client, *[str(queue)] * 30, queue=queue)
        popped = [bodies(pop(gateway, client, maxMsgNums=1)) for _ in range(30)]
        assert ["0"] in popped
        assert ["1"] in popped

    def test_what_it_takes_of_all_queues_fits_into_an_answer(
        self, make_gateway: MakeGateway
    ) -> None:
        gateway = make_gateway(max_pull_bytes=1_400)
        client = gateway.connect()
        for queue in range(4):
            send(client, "x" * 600, queue=queue)
        answers = [ask_pop(gateway, client) for _ in range(2)]
        assert [len(decode_messages(answer.body)) for answer in answers] == [2, 2]

    def test_the_answer(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a", "b", "c")
        answer = ask_pop(gateway, client, maxMsgNums=2)
        assert answer.remark == "FOUND"
        assert answer.ext() == {
            "popTime": str(gateway.now_ms),
            "invisibleTime": "10000",
            "reviveQid": "0",
            "restNum": "1",
            "startOffsetInfo": "0 0 0",
            "msgOffsetInfo": "0 0 0,1",
        }

    def test_counts_as_had_by_the_group(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a", "b")
        pop(gateway, client)
        had = {"statsName": "GROUP_GET_NUMS", "statsKey": "orders@consumers"}
        assert json.loads(ok(client.ask(315, had)).body)["statsMinute"]["sum"] == 2

    def test_nothing_there(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a")
        pop(gateway, client)
        answer = ask_pop(gateway, client)
        assert (answer.code, answer.remark) == (210, "NO_MESSAGE_IN_QUEUE")
        assert answer.ext() == {
            "popTime": str(gateway.now_ms),
            "invisibleTime": "10000",
            "reviveQid": "0",
            "restNum": "0",
            "startOffsetInfo": "",
            "msgOffsetInfo": "",
        }

    def test_filters(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "x", TAGS="X")
        send(client, "y", TAGS="Y", size="3")
        assert bodies(pop(gateway, client, exp="Y")) == ["y"]
        # A message that the filter skipped is skipped for good.
        assert pop(gateway, client) == []
        sql = {"consumerGroup": "other", "expType": "SQL92", "exp": "size > 2"}
        assert bodies(pop(gateway, client, **sql)) == ["y"]

    def test_one_pop_looks_at_a_bounded_number_of_messages(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        for _ in range(6):
            client.send_batch([("-", {"size": "1"})] * 100)
        send(client, "last", size="3")
        wanted = {"queueId": 0, "expType": "SQL92", "exp": "size > 2", "pollTime": 15_000}
        answer = ask_pop(gateway, client, **wanted)
        assert (answer.code, answer.ext()["restNum"]) == (210, "101")
        assert bodies(pop(gateway, client, **wanted)) == ["last"]

    @pytest.mark.parametrize(
        ("kind", "expression", "bound"),
        [("TAG", "rare", MAX_ROWS_FILTERED), ("SQL92", "size > 2", MAX_RECORDS_JUDGED)],
    )
    def test_one_pop_looks_at_no_more_where_queues_are_many(
        self, gateway: MemoryGateway, client: MemoryClient, kind: str, expression: str, bound: int
    ) -> None:
        queues, each = 6, bound // 3
        ok(create_topic(client, "wide", queues))
        for queue in range(queues):
            client.send_batch([("-", {})] * each, "wide", queue=queue)
        wanted = {"topic": "wide", "expType": kind, "exp": expression, "pollTime": 15_000}
        # A notification takes no message: it only reports that a pop would find one.
        told = client.ask(RequestCode.NOTIFICATION, pop_fields(gateway, **wanted))
        assert told.ext()["hasMsg"] == "true"
        answer = ask_pop(gateway, client, **wanted)
        assert (answer.code, answer.ext()["restNum"]) == (210, str(2 * each))
        waiting = client.send(RequestCode.POP_MESSAGE, pop_fields(gateway, **wanted))
        assert client.answer(waiting) is None

    def test_a_queue_with_more_than_fits_leaves_no_room_for_others(
        self, make_gateway: MakeGateway
    ) -> None:
        gateway = make_gateway(max_pull_bytes=4096)
        client = gateway.connect()
        for queue in (0, 0, 1, 1):
            send(client, "x" * 2500, queue=queue)
        assert len(pop(gateway, client)) == 1

    def test_what_a_group_or_a_topic_does_not_allow(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a")
        ok(put_group(client, "halted", consumeEnable=False))
        answer = ask_pop(gateway, client, consumerGroup="halted")
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark == "subscription group no permission, halted"
        ok(create_topic(client, "orders", 4, perm="2"))
        answer = ask_pop(gateway, client)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark == "the topic[orders] peeking message is forbidden"
        ok(create_topic(client, "orders", 4))
        answer = ask_pop(gateway, client, queueId=4)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert (answer.remark or "").startswith("queueId[4] is illegal, topic:[orders] ")
        assert ask_pop(gateway, client, queueId=3).code != ResponseCode.INVALID_PARAMETER

    def test_property_filters_that_are_switched_off(self, make_gateway: MakeGateway) -> None:
        gateway = make_gateway(property_filter=False)
        client = gateway.connect()
        send(client, "a", size="3")
        answer = ask_pop(gateway, client, expType="SQL92", exp="size > 2")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "does not support" in (answer.remark or "")
        assert bodies(pop(gateway, client)) == ["a"]

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"topic": "nope"}, 17),
            ({"queueId": 9}, 29),
            ({"maxMsgNums": 33}, 29),
            ({"expType": "SQL92", "exp": "a >"}, 23),
            ({"expType": "XX", "exp": "a"}, 23),
            ({"bornTime": START_MS - 5_000, "pollTime": 1_000}, 210),
            ({"invisibleTime": -1}, 29),
            ({"consumerGroup": "g" * 121}, 26),
        ],
    )
    def test_refused(
        self,
        gateway: MemoryGateway,
        client: MemoryClient,
        fields: dict[str, object],
        code: int,
    ) -> None:
        send(client, "a")
        answer = ask_pop(gateway, client, **fields)
        assert answer.code == code
        assert answer.ext()["restNum"] == "0"

    def test_a_topic_whose_messages_would_have_nowhere_to_come_back_to_is_refused(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        topic = "%DLQ%" + "t" * 150
        client.send_message(topic)
        assert ask_pop(gateway, client, topic=topic, consumerGroup="g" * 92).code == 0
        answer = ask_pop(gateway, client, topic=topic, consumerGroup="g" * 93)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert "is longer than 255" in (answer.remark or "")

    def test_an_unknown_topic_is_refused_in_rocketmqs_words(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        assert ask_pop(gateway, client, topic="nope").remark == (
            "topic[nope] not exist, apply first please! \n"
            "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
        )

    def test_a_new_group_that_begins_at_the_newest(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a", "b")
        # The queue still has its first message, so it is young. The group gets all its messages.
        assert bodies(pop(gateway, client, initMode=1)) == ["a", "b"]
        client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
        send(client, "c", "d")
        assert bodies(pop(gateway, client, initMode=1)) == ["c", "d"]

    def test_the_newest_of_a_queue_that_has_lost_its_first(self, make_gateway: MakeGateway) -> None:
        gateway = make_gateway(retention_hours=1)
        send(gateway.connect(), "old")
        gateway.jump(2 * 3_600_000)
        client = gateway.connect()
        send(client, "a", "b")
        assert bodies(pop(gateway, client, consumerGroup="newest", initMode=1)) == ["b"]
        assert bodies(pop(gateway, client, consumerGroup="oldest")) == ["a", "b"]

    @pytest.mark.parametrize("order", ["false", "true"])
    @pytest.mark.parametrize("wait_ms", [0, 15_000])
    def test_a_new_group_that_finds_nothing_gets_all_that_comes(
        self, make_gateway: MakeGateway, order: str, wait_ms: int
    ) -> None:
        gateway = make_gateway(retention_hours=1)
        send(gateway.connect(), "old")
        gateway.jump(2 * 3_600_000)
        client, waiting = gateway.connect(), gateway.connect()
        ask = {"initMode": 1, "queueId": 0, "order": order}
        wanted = pop_fields(gateway, **ask, pollTime=wait_ms)
        opaque = waiting.send(RequestCode.POP_MESSAGE, wanted)
        gateway.advance(wait_ms)
        answer = waiting.answer(opaque)
        assert answer is not None
        assert answer.code == ResponseCode.POLLING_TIMEOUT
        send(client, "a", "b", "c")
        assert bodies(pop(gateway, client, **ask)) == ["a", "b", "c"]

    def test_a_queue_that_a_full_pop_left_for_later_begins_there(
        self, make_gateway: MakeGateway
    ) -> None:
        gateway = make_gateway(retention_hours=1)
        send(gateway.connect(), "old")
        gateway.jump(2 * 3_600_000)
        client = gateway.connect()
        assert ask_pop(gateway, client, initMode=1, maxMsgNums=0).ext()["restNum"] == "0"
        send(client, "a", "b", "c")
        assert bodies(pop(gateway, client, initMode=1)) == ["a", "b", "c"]

    @pytest.mark.parametrize("order", ["false", "true"])
    def test_takes_up_a_reset_and_a_look_does_not(
        self, gateway: MemoryGateway, client: MemoryClient, order: str
    ) -> None:
        """Until then, offsets that a consumer commits are from before the reset."""
        send(client, "a", "b")
        pop(gateway, client)
        reset = {"topic": "orders", "group": "consumers", "timestamp": "0", "isForce": "true"}
        ok(client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset))
        ok(client.ask(RequestCode.PEEK_MESSAGE, pop_fields(gateway)))
        report = commit_offset(client, "orders", 0, 2, "consumers")
        assert report.remark == "Offset has been previously reset"
        assert bodies(pop(gateway, client, queueId=0, order=order)) == ["a", "b"]
        assert commit_offset(client, "orders", 0, 2, "consumers").remark is None

    @pytest.mark.parametrize("order", ["false", "true"])
    @pytest.mark.parametrize("wait_ms", [0, 15_000])
    def test_progress_past_the_end_passes_over_nothing_that_comes(
        self, gateway: MemoryGateway, client: MemoryClient, order: str, wait_ms: int
    ) -> None:
        """A pulling consumer committed its offset when the queue was longer, for example before a copy was restored."""
        send(client, "old")
        ok(put_group(client, "consumers"))
        ok(commit_offset(client, "orders", 0, 9, "consumers"))
        waiting = gateway.connect()
        wanted = pop_fields(gateway, queueId=0, order=order, pollTime=wait_ms)
        opaque = waiting.send(RequestCode.POP_MESSAGE, wanted)
        gateway.settle()
        assert offset_of(client, "orders", 0, "consumers") == 1
        send(client, "a")
        if wait_ms:
            answer = waiting.answer(opaque)
            assert answer is not None
            assert bodies(decode_messages(answer.body)) == ["a"]
        else:
            assert bodies(pop(gateway, client, queueId=0, order=order)) == ["a"]

    def test_a_refused_commit_takes_progress_back(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a")
        with commits_fail(gateway):
            assert ask_pop(gateway, client).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert bodies(pop(gateway, client)) == ["a"]


class TestPriority:
    def fill(self, client: MemoryClient, attributes: str = "+message.type=PRIORITY") -> None:
        """Put a message into each of a topic's queues."""
        ok(create_topic(client, "orders", 8, attributes=attributes))
        for queue in range(8):
            send(client, str(queue), queue=queue)

    def popped(self, gateway: MemoryGateway, client: MemoryClient) -> list[str]:
        """Return the messages of eight pops, each of one message."""
        return [body for _ in range(8) for body in bodies(pop(gateway, client, maxMsgNums=1))]

    def test_the_highest_comes_first(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        self.fill(client)
        assert self.popped(gateway, client) == list("76543210")

    def test_what_came_back_is_last(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        self.fill(client)
        assert bodies(pop(gateway, client, maxMsgNums=1)) == ["7"]
        gateway.advance(INVISIBLE_MS + 1_000)
        assert self.popped(gateway, client) == list("65432107")

    def test_only_in_topics_of_that_type(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        self.fill(client, "+message.type=NORMAL")
        # In any order: this one comes up once in 40,320 times.
        assert self.popped(gateway, client) != list("76543210")

    def test_a_group_may_do_without(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        ok(put_group(client, "consumers", attributes={"+priority.factor": "0"}))
        self.fill(client)
        assert self.popped(gateway, client) != list("76543210")


class TestWaiting:
    def park(self, gateway: MemoryGateway, client: MemoryClient, **fields: object) -> int:
        opaque = client.send(
            RequestCode.POP_MESSAGE, pop_fields(gateway, **{"pollTime": 15_000, **fields})
        )
        assert client.answer(opaque) is None
        return opaque

    def test_until_a_message_comes(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a")
        pop(gateway, client)
        first, second = gateway.connect(), gateway.connect()
        opaque, other = self.park(gateway, first), self.park(gateway, second)
        send(client, "b", queue=3)
        answer = first.answer(opaque)
        assert answer is not None
        assert bodies(decode_messages(answer.body)) == ["b"]
        assert second.answer(other) is None

    @pytest.mark.parametrize("code", [RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION])
    def test_a_message_has_only_its_own_queue_looked_at(
        self,
        gateway: MemoryGateway,
        client: MemoryClient,
        monkeypatch: pytest.MonkeyPatch,
        code: RequestCode,
    ) -> None:
        create_topic(client, "wide", queues=50)
        wanted = pop_fields(gateway, topic="wide", pollTime=15_000)
        waiting = [gateway.connect() for _ in range(3)]
        opaques = [one.send(code, wanted) for one in waiting]
        looked_at = []
        read = Store.read

        def note(store: Store, queue: Queue, *rest: Any) -> Page:
            looked_at.append(queue.number)
            return read(store, queue, *rest)

        monkeypatch.setattr(Store, "read", note)
        client.send_message("wide", fields={"queue": 31})
        assert waiting[0].answer(opaques[0]) is not None
        assert set(looked_at) == {31}

    def test_of_those_who_want_the_same_one_looks_first(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each message once made all of a group look, some 8 us each."""
        ok(create_topic(client, "orders"))
        alike = [self.park(gateway, client) for _ in range(5)]
        others = [
            self.park(gateway, client, **fields)
            for fields in ({"consumerGroup": "others"}, {"exp": "x"})
        ]
        looks = 0
        read = Store.read

        def count(*arguments: Any) -> Page:
            nonlocal looks
            looks += 1
            return read(*arguments)

        monkeypatch.setattr(Store, "read", count)
        send(client, "a")
        assert [client.answer(one) is None for one in alike] == [False, True, True, True, True]
        assert [client.answer(one) is None for one in others] == [False, True]
        # Of the five the first finds it, and the second nothing. Nobody in the other group follows.
        assert looks == 4

    def test_what_one_leaves_the_next_gets(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        ok(create_topic(client, "orders"))
        clients = [gateway.connect() for _ in range(40)]
        waiting = [(one, self.park(gateway, one, maxMsgNums=2)) for one in clients]
        clients[0].disconnect()
        for count in (61, 16):
            client.send_batch(("a", {}) for _ in range(count))
        answers = [one.answer(opaque) for one, opaque in waiting[1:]]
        counts = [len(decode_messages(one.body)) for one in answers if one is not None]
        assert sorted(counts) == [1] + 38 * [2]

    def test_until_just_before_the_end(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        """The client may not listen any more at the end of the time that it gave."""
        send(client, "a")
        pop(gateway, client, invisibleTime=60_000)
        # A client whose clock is ahead waits no longer than the others.
        waiting = [self.park(gateway, client, bornTime=gateway.now_ms + ms) for ms in (0, 60_000)]
        gateway.advance(14_449)
        assert [client.answer(opaque) for opaque in waiting] == [None, None]
        gateway.advance(501)
        for opaque in waiting:
            answer = client.answer(opaque)
            assert answer is not None
            assert (answer.code, answer.remark) == (210, "NO_MESSAGE_IN_QUEUE")

    @pytest.mark.parametrize("since_sweep_ms", [0, 450])
    def test_for_less_time_than_between_two_sweeps(
        self, gateway: MemoryGateway, client: MemoryClient, since_sweep_ms: int
    ) -> None:
        send(client, "a")
        pop(gateway, client, invisibleTime=60_000)
        gateway.advance(since_sweep_ms)
        opaque = self.park(gateway, client, pollTime=300)
        gateway.advance(249)
        assert client.answer(opaque) is None
        gateway.advance(1)
        answer = client.answer(opaque)
        assert answer is not None
        assert (answer.code, answer.remark) == (210, "NO_MESSAGE_IN_QUEUE")

    def test_at_the_end_of_its_time_nothing_waits(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a")
        pop(gateway, client)
        assert ask_pop(gateway, client, bornTime=gateway.now_ms - 400, pollTime=400).code == 210

    @pytest.mark.parametrize(("clock", "born_ms"), [("real", 0), ("manual", 1)])
    def test_where_nobody_can_tell_how_old_it_is_it_waits_for_all_of_its_time(
        self, make_gateway: MakeGateway, clock: str, born_ms: int
    ) -> None:
        gateway = make_gateway(clock=clock)
        client = gateway.connect()
        ok(create_topic(client, "orders"))
        opaque = self.park(gateway, client, bornTime=born_ms, queueId=0)
        send(client, "a")
        answer = client.answer(opaque)
        assert answer is not None
        assert bodies(decode_messages(answer.body)) == ["a"]

    def test_how_many_wait(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a")
        pop(gateway, client)
        waiting = [gateway.connect() for _ in range(2)]
        for one in waiting:
            self.park(gateway, one)
        where = {"consumerGroup": "consumers", "topic": "orders", "queueId": "-1"}
        # A notification takes no message, and does not count as a pop.
        told = {**where, "pollTime": "5000", "bornTime": str(gateway.now_ms)}
        gateway.connect().send(RequestCode.NOTIFICATION, told)
        for left in ("2", "1", "0"):
            assert client.ask(RequestCode.POLLING_INFO, where).ext() == {"pollingNum": left}
            send(client, "b")

    def test_too_many(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("gateway.pops.waits.MAX_WAITING", 2)
        send(client, "a")
        pop(gateway, client)
        for _ in range(2):
            self.park(gateway, client)
        assert ask_pop(gateway, client, pollTime=15_000).code == ResponseCode.POLLING_FULL
        # Other groups and queues have limits of their own, and so have notifications.
        self.park(gateway, client, queueId=1)
        told = pop_fields(gateway, pollTime=15_000)
        for _ in range(2):
            assert client.answer(client.send(RequestCode.NOTIFICATION, told)) is None
        answer = client.ask(RequestCode.NOTIFICATION, told)
        assert answer.ext() == {"hasMsg": "false", "pollingFull": "true"}

    def test_no_longer_than_clients_wait_for_an_answer(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a")
        pop(gateway, client, invisibleTime=600_000)
        opaque = client.send(RequestCode.POP_MESSAGE, pop_fields(gateway, pollTime=600_000))
        gateway.advance(29_999)
        assert client.answer(opaque) is None
        gateway.advance(1_001)
        answer = client.answer(opaque)
        assert answer is not None
        assert answer.code == ResponseCode.POLLING_TIMEOUT

    def test_a_client_that_left_takes_nothing(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a")
        pop(gateway, client)
        leaving = gateway.connect()
        self.park(gateway, leaving)
        leaving.disconnect()
        send(client, "b")
        assert bodies(pop(gateway, client)) == ["b"]
        gateway.advance(1_000)
        where = {"consumerGroup": "consumers", "topic": "orders", "queueId": "-1"}
        assert client.ask(RequestCode.POLLING_INFO, where).ext() == {"pollingNum": "0"}

    def test_who_leaves_just_before_a_message_comes_counts_no_more(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        """A pop in order waits at its queue alone, and is not woken again after a message arrived there."""
        send(client, "a")
        pop(gateway, client)
        leaving = gateway.connect()
        self.park(gateway, leaving, queueId=0, order="true")
        leaving.disconnect()
        send(client, "b")
        gateway.advance(60_000)
        where = {"consumerGroup": "consumers", "topic": "orders", "queueId": "0"}
        assert client.ask(RequestCode.POLLING_INFO, where).ext() == {"pollingNum": "0"}


class TestBack:
    def test_what_is_not_acknowledged_comes_back(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a", "b", TAGS="X")
        answer = ask_pop(gateway, client)
        popped_ms = gateway.now_ms
        assert ack(client, handles(answer)[0]).code == ResponseCode.SUCCESS
        gateway.advance(INVISIBLE_MS - 100)
        assert pop(gateway, client) == []
        gateway.advance(1_000)
        # It comes back to the group even if that wants other messages by now.
        answer = ask_pop(gateway, client, exp="Y")
        (message,) = decode_messages(answer.body)
        assert (message.topic, message.body, message.reconsume_times) == ("orders", b"b", 1)
        properties = properties_of(message)
        assert properties["1ST_POP_TIME"] == str(popped_ms)
        assert properties["ORIGIN_GROUP"] == "consumers"
        assert properties["TAGS"] == "X"
        # The message carries its handle, because the client cannot make one from another topic's name.
        assert [properties["POP_CK"]] == handles(answer)
        assert answer.ext()["startOffsetInfo"] == "1 0 0"
        rate = {"statsName": "SNDBCK_PUT_NUMS", "statsKey": "orders@consumers"}
        assert json.loads(ok(client.ask(315, rate)).body)["statsMinute"]["sum"] == 1
        assert ack(client, properties["POP_CK"]).code == ResponseCode.SUCCESS
        gateway.advance(2 * INVISIBLE_MS)
        assert pop(gateway, client) == []

    def test_it_says_where_it_is_now(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a", "b")
        pop(gateway, client)
        gateway.advance(INVISIBLE_MS + 500)
        messages = pop(gateway, client)
        assert [(one.queue_id, one.queue_offset) for one in messages] == [(0, 0), (0, 1)]

    def test_it_says_when_it_was_popped_first(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a")
        popped_ms = gateway.now_ms
        for _ in range(2):
            pop(gateway, client)
            gateway.advance(INVISIBLE_MS + 1_000)
        (message,) = decode_messages(ask_pop(gateway, client).body)
        assert properties_of(message)["1ST_POP_TIME"] == str(popped_ms)

    def test_many_come_back_soon(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("gateway.handlers.pop_acks.MAX_REVIVED", 2)
        send(client, *map(str, range(21)))
        assert len(pop(gateway, client)) == 21
        gateway.advance(INVISIBLE_MS + 500)
        assert len(pop(gateway, client)) == 21

    def test_large_ones_come_back_a_few_at_a_time(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        """200 of 1 MB in one step took 760 MiB of memory, and 1.5 s in which nothing else went on."""
        sizes = [3 << 20, 2 << 20, 1 << 20, 3 << 20, 1 << 20]
        for size in sizes:
            ok(client.send_message(body=bytes(size)))
            assert len(pop(gateway, client)) == 1

        def back() -> int:
            return gateway.store.queue(b"%RETRY%consumers_orders", 0).visible

        gateway.advance(INVISIBLE_MS)
        assert back() == 2
        gateway.advance(20)
        assert back() == 4
        gateway.advance(20)
        assert back() == 5
        assert [len(pop(gateway, client, maxMsgNums=1)[0].body) for _ in sizes] == sizes

    def test_whatever_is_damaged_of_one_the_others_come_back(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        # The record is too large to be packed, so it has no checksum that would show the damage.
        send(client, "x" * 6_000, "a")
        assert len(pop(gateway, client)) == 2
        with damaged_row(gateway, "messages", (1).to_bytes(8), lambda stored: stored[:-5]):
            gateway.advance(INVISIBLE_MS + 1_000)
            assert bodies(pop(gateway, gateway.connect())) == ["a"]

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            (bytes(3), bytes(8)),
            (pop_key(1, b"consumers", b"orders", 0, 9), b"short"),
            (pop_key(1, b"\xff", b"orders", 0, 9), bytes(8)),
        ],
        ids=["key", "value", "name"],
    )
    def test_whatever_row_cannot_be_read_the_others_come_back(
        self, gateway: MemoryGateway, client: MemoryClient, key: bytes, value: bytes
    ) -> None:
        send(client, "a", "b")
        with damaged_row(gateway, "pops", key, lambda _: value):
            assert len(pop(gateway, gateway.connect())) == 2
            gateway.advance(INVISIBLE_MS + 1_000)
            assert bodies(pop(gateway, gateway.connect())) == ["a", "b"]
            assert gateway.store.damaged == {key}

    def test_one_that_is_damaged_once_it_came_back_keeps_no_other_from_being_popped(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "x" * 6_000, "a")
        assert len(pop(gateway, client)) == 2
        gateway.advance(INVISIBLE_MS + 1_000)
        with damaged_row(gateway, "messages", (3).to_bytes(8), lambda stored: stored[:-5]):
            assert bodies(pop(gateway, gateway.connect())) == ["a"]

    @pytest.mark.parametrize(
        ("table", "offset"),
        [("ends", b""), ("queues", bytes(8)), ("queues", b"\x7f" + b"\xff" * 7)],
        ids=["ends", "queues", "last offset"],
    )
    def test_out_of_a_queue_that_cannot_be_read_once_it_can_be(
        self, gateway: MemoryGateway, client: MemoryClient, table: str, offset: bytes
    ) -> None:
        for topic in ("orders", "others"):
            for body in ("a", "b"):
                client.send_message(topic, body)
            assert len(pop(gateway, client, topic=topic)) == 2
        key = queue_prefix(b"orders", 0) + offset
        with damaged_row(gateway, table, key, lambda _: b"short"):
            gateway.advance(INVISIBLE_MS + 1_000)
            assert bodies(pop(gateway, gateway.connect(), topic="others")) == ["a", "b"]
        gateway.advance(60_000)
        assert sorted(bodies(pop(gateway, gateway.connect()))) == ["a", "b"]

    @pytest.mark.parametrize("table", ["ends", "queues"])
    def test_a_queue_that_cannot_be_read_has_no_message_of_another_popped_for_nobody(
        self, gateway: MemoryGateway, client: MemoryClient, table: str
    ) -> None:
        create_topic(client, "orders", 3)
        for queue in (0, 2):
            send(client, f"in {queue}", queue=queue)
        key = queue_prefix(b"orders", 1) + (bytes(8) if table == "queues" else b"")
        with damaged_row(gateway, table, key, lambda _: b"short"):
            client = gateway.connect()
            popped = pop(gateway, client)
            assert sorted(bodies(popped)) == ["in 0", "in 2"]
            assert pop(gateway, client) == []
            if table == "ends":
                answer = ask_pop(gateway, client, queueId=1)
                assert "queue 1 of topic orders cannot be read" in (answer.remark or "")
            assert client.send_message("others").code == ResponseCode.SUCCESS

    def test_out_of_a_page_that_lmdb_cannot_read_once_it_can_be(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a", "b")
        assert len(pop(gateway, client)) == 2
        with damaged_page(gateway, "messages", (1).to_bytes(8)):
            gateway.advance(INVISIBLE_MS + 3_000)
        gateway.advance(60_000)
        assert sorted(bodies(pop(gateway, gateway.connect()))) == ["a", "b"]

    @pytest.mark.parametrize("kind", ["topic", "group"])
    def test_what_was_deleted_meanwhile_does_not(
        self, gateway: MemoryGateway, client: MemoryClient, kind: str
    ) -> None:
        send(client, "a")
        pop(gateway, client)
        if kind == "topic":
            ok(client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}))
        else:
            ok(client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "consumers"}))
        gateway.advance(INVISIBLE_MS + 500)
        send(client, "b")
        assert bodies(pop(gateway, client)) == ["b"]

    def test_what_had_come_back_goes_with_its_topic(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        create_topic(client, "c")
        for topic, group in (("orders", "a"), ("b_c", "a"), ("c", "none")):
            ok(client.send_message(topic, body=topic))
            assert len(pop(gateway, client, topic=topic, consumerGroup=group)) == 1
        put_group(client, "a_b")  # its retry topic for c would have the name of a's for b_c
        gateway.advance(INVISIBLE_MS + 500)
        for topic in ("orders", "c"):
            ok(client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}))
        client.send_message("orders", body="new")
        assert bodies(pop(gateway, client, consumerGroup="a")) == ["new"]
        assert bodies(pop(gateway, client, topic="b_c", consumerGroup="a")) == ["b_c"]

    def test_nor_does_it_while_it_is_still_to_be_removed(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("gateway.topics.CLEARED_AT_ONCE", 2)
        send(client, "a", "b", "c")
        assert len(pop(gateway, client)) == 3
        gateway.advance(INVISIBLE_MS + 500)
        ok(client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}))
        while client.send_message("orders", body="new").code == ResponseCode.SYSTEM_BUSY:
            pass
        came_back = gateway.store.queue(b"%RETRY%consumers_orders", 0)
        assert (came_back.first, came_back.visible) == (0, 3)
        assert bodies(pop(gateway, client)) == ["new"]
        gateway.advance(INVISIBLE_MS + 500)
        assert bodies(pop(gateway, client)) == ["new"]

    def test_few_are_removed_at_once_however_many_groups_had_them(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With 40 groups of 500 messages each, the deletion of the topic held up all other requests for 0.3 s."""
        monkeypatch.setattr("gateway.topics.CLEARED_AT_ONCE", 4)
        send(client, "a", "b", "c")
        for group in ("g1", "g2", "g3"):
            assert len(pop(gateway, client, consumerGroup=group)) == 3
        gateway.advance(INVISIBLE_MS + 500)
        assert gateway.queued() == 12
        ok(client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}))
        assert gateway.queued() == 8
        assert gateway.store.queue(b"orders", 0).first == 3  # the topic itself comes first
        gateway.advance(20_000)
        assert gateway.queued() == 0

    def test_what_another_group_sent_back_stays_when_a_topic_is_deleted(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        ok(client.send_message("orders", body="popped"))
        assert len(pop(gateway, client, consumerGroup="a")) == 1
        put_group(client, "a_orders")
        retries = "%RETRY%a_orders"
        ok(client.send_message(retries, body="sent back"))
        ok(client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}))
        assert bodies(client.pull(retries, group="a_orders")) == ["sent back"]

    @pytest.mark.parametrize("later", [[], ["b"]])
    def test_what_retention_removed_meanwhile_does_not(
        self, make_gateway: MakeGateway, later: list[str]
    ) -> None:
        gateway = make_gateway(retention_hours=1)
        client = gateway.connect()
        send(client, "a")
        assert bodies(pop(gateway, client, invisibleTime=7_200_000)) == ["a"]
        gateway.jump(5_400_000)
        client = gateway.connect()
        send(client, *later)
        gateway.advance(20_000)
        gateway.jump(1_800_000)
        assert bodies(pop(gateway, gateway.connect())) == later

    def test_over_a_crash(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a", "b")
        acked, _ = handles(ask_pop(gateway, client))
        ack(client, acked)
        gateway.crash()
        client = gateway.connect()
        assert pop(gateway, client) == []
        gateway.advance(INVISIBLE_MS + 500)
        assert bodies(pop(gateway, client)) == ["b"]

    def test_as_often_as_the_group_may_and_then_dead(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        settings = {"groupName": "consumers", "retryMaxTimes": 2}
        client.ask(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, json.dumps(settings).encode()
        )
        send(client, "a", KEYS="k", TAGS="t")
        times = []
        for _ in range(5):
            times += [message.reconsume_times for message in pop(gateway, client)]
            gateway.advance(INVISIBLE_MS + 500)
        assert times == [0, 1, 2]
        (dead,) = client.pull_all("%DLQ%consumers")
        assert dead.body == b"a"
        kept = {"RETRY_TOPIC": "orders", "KEYS": "k", "TAGS": "t"}
        assert kept.items() <= properties_of(dead).items()

    def test_a_sender_that_claims_countless_retries_keeps_no_other_message_away(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.send_message(body="a", fields={"reconsume": 2**31 - 1})
        send(client, "b")
        assert len(pop(gateway, client)) == 2
        gateway.advance(INVISIBLE_MS + 500)
        assert bodies(pop(gateway, client)) == ["b"]
        assert bodies(client.pull_all("%DLQ%consumers")) == ["a"]

    def test_one_that_could_not_be_sent_any_more(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.send_message(body="a" * 5_000)
        pop(gateway, client)
        assert client.ask(RequestCode.UPDATE_BROKER_CONFIG, None, b"maxMessageSize=2048").code == 0
        gateway.advance(INVISIBLE_MS + 500)
        assert bodies(pop(gateway, client)) == ["a" * 5_000]

    def test_one_that_has_no_room_for_its_handle_is_dead(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a", padding="x" * 32_550)
        send(client, "b")
        assert len(pop(gateway, client)) == 2
        gateway.advance(INVISIBLE_MS + 500)
        assert bodies(pop(gateway, client)) == ["b"]
        (dead,) = client.pull_all("%DLQ%consumers")
        assert (dead.body, properties_of(dead)["RETRY_TOPIC"]) == (b"a", "orders")

    @pytest.mark.parametrize("in_a_batch", [False, True])
    def test_one_that_has_no_room_for_anything_is_dead_all_the_same(
        self, gateway: MemoryGateway, client: MemoryClient, *, in_a_batch: bool
    ) -> None:
        for size in range(MAX_PROPERTIES - 24, MAX_PROPERTIES - 300, -20):
            properties = {"UNIQ_KEY": f"{size}", "padding": "x" * size}
            if in_a_batch:
                client.send_batch([(f"{size}", properties)])
            else:
                client.send_message("orders", f"{size}", properties)
        kept = []
        while popped := bodies(pop(gateway, client)):
            kept += popped
        assert len(kept) > 3
        gateway.advance(INVISIBLE_MS + 1_000)
        dead = client.pull_all("%DLQ%consumers")
        assert sorted(bodies(dead)) == sorted(kept)
        assert {len(properties_of(one)["padding"]) for one in dead} == set(map(int, kept))

    def test_nobody_puts_one_without_room_for_its_handle_among_those_that_came_back(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        for size in (32_600, 32_300):
            client.send_message("%RETRY%consumers_orders", padding="x" * size)
        send(client, "b")
        assert sorted(bodies(pop(gateway, client))) == ["b", "hello"]

    def test_a_delayed_message_is_not_delayed_again(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a", TIMER_DELAY_MS="5000")
        gateway.advance(6_000)
        assert bodies(pop(gateway, client)) == ["a"]
        gateway.advance(INVISIBLE_MS + 500)
        [again] = pop(gateway, client)
        assert again.body == b"a"
        assert properties_of(again)["TIMER_OUT_MS"] == str(START_MS + 5_000)

    def test_wakes_who_waits(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a")
        pop(gateway, client, invisibleTime=3_000)
        opaque = client.send(RequestCode.POP_MESSAGE, pop_fields(gateway, pollTime=15_000))
        gateway.advance(3_500)
        answer = client.answer(opaque)
        assert answer is not None
        assert bodies(decode_messages(answer.body)) == ["a"]


class TestPutOff:
    def change(self, client: MemoryClient, text: str, ms: int, **more: str) -> Command:
        fields = {**handle_fields(text), "invisibleTime": str(ms), **more}
        return client.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)

    def test_until_later(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a")
        (handle,) = handles(ask_pop(gateway, client))
        gateway.advance(1_000)
        answer = self.change(client, handle, 60_000)
        changed_ms = gateway.now_ms
        assert answer.ext() == {
            "popTime": str(changed_ms),
            "invisibleTime": "60000",
            "reviveQid": "0",
        }
        gateway.advance(INVISIBLE_MS)
        assert pop(gateway, client) == []
        parsed = parse_handle(handle)
        new = parsed._replace(pop_time=changed_ms, invisible_time=60_000).encode()
        ack(client, new)
        gateway.advance(120_000)
        assert pop(gateway, client) == []

    def test_then_it_comes_back(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a")
        (handle,) = handles(ask_pop(gateway, client))
        self.change(client, handle, 60_000)
        gateway.crash()
        client = gateway.connect()
        gateway.advance(59_999)
        assert pop(gateway, client) == []
        gateway.advance(501)
        (again,) = pop(gateway, client)
        assert (again.body, again.reconsume_times) == (b"a", 1)

    def test_one_that_was_only_put_off_is_no_retry(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        put_group(client, "consumers", retryMaxTimes=1)
        send(client, "a")
        answer = ask_pop(gateway, client)
        for suspend, retries in (("true", 0), ("true", 0), ("false", 1), ("true", 1)):
            (handle,) = handles(answer)
            ok(self.change(client, handle, 1_000, suspend=suspend))
            gateway.crash()
            client = gateway.connect()
            gateway.advance(1_500)
            answer = ask_pop(gateway, client)
            assert [one.reconsume_times for one in decode_messages(answer.body)] == [retries]

    def test_no_longer_than_a_pop_may_last(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a")
        (handle,) = handles(ask_pop(gateway, client))
        answer = self.change(client, handle, (1 << 63) - 1)
        assert answer.ext()["invisibleTime"] == str(LONGEST_INVISIBLE_MS)

    def test_a_time_below_zero_is_now(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a")
        (handle,) = handles(ask_pop(gateway, client))
        assert self.change(client, handle, -5_000).ext()["invisibleTime"] == "0"
        gateway.advance(500)
        assert bodies(pop(gateway, client)) == ["a"]

    def test_refused(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a")
        (handle,) = handles(ask_pop(gateway, client))
        fields = {**handle_fields(handle), "invisibleTime": "100"}
        for wrong, code in (
            ({"topic": "nope"}, 17),
            ({"queueId": "4"}, 13),
            ({"offset": "9"}, 208),
        ):
            answer = client.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, {**fields, **wrong})
            assert answer.code == code
            assert answer.ext() == {"popTime": "0", "invisibleTime": "0", "reviveQid": "0"}

    def test_what_was_acknowledged_stays_so(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a")
        (handle,) = handles(ask_pop(gateway, client))
        ack(client, handle)
        assert self.change(client, handle, 100).code == ResponseCode.SUCCESS
        gateway.advance(1_000)
        assert pop(gateway, client) == []


class TestAck:
    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"topic": "nope"}, 17),
            ({"queueId": "9"}, 13),
            ({"offset": "99"}, 208),
            ({"extraInfo": "1 2"}, 1),
            ({"extraInfo": f"0 {2**63 - 1} 1 0 0 broker-a 0 0"}, 1),
            ({"extraInfo": "0 -2 1 0 0 broker-a 0 0"}, 1),
        ],
    )
    def test_refused(
        self, gateway: MemoryGateway, client: MemoryClient, fields: dict[str, str], code: int
    ) -> None:
        send(client, "a")
        (handle,) = handles(ask_pop(gateway, client))
        request = {**handle_fields(handle), **fields}
        assert client.ask(RequestCode.ACK_MESSAGE, request).code == code

    def test_many(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, *"abcdefghij")
        answer = ask_pop(gateway, client)
        ext = answer.ext()
        bits = base64.b64encode((0b11_1111_0110).to_bytes(2, "little")).decode()
        acks: list[dict[str, Any]] = [
            {
                "c": "consumers",
                "t": "orders",
                "r": "0",
                "so": 0,
                "q": 0,
                "rq": 0,
                "pt": int(ext["popTime"]),
                "it": INVISIBLE_MS,
                "b": bits,
            }
        ]
        body = json.dumps({"brokerName": "tidegate", "acks": acks}).encode()
        assert client.ask(RequestCode.BATCH_ACK_MESSAGE, None, body).code == 0
        gateway.advance(INVISIBLE_MS + 500)
        assert bodies(pop(gateway, client)) == ["a", "d"]

    @pytest.mark.parametrize(("acks", "size"), [(1, 1_251), (10_001, 0), (5_001, 1)])
    def test_too_many(self, client: MemoryClient, acks: int, size: int) -> None:
        bits = base64.b64encode(b"\xff" * size).decode()
        ack = {"c": "consumers", "t": "orders", "q": 0, "so": 0, "pt": 1, "it": 1, "b": bits}
        body = json.dumps({"acks": [ack] * acks}).encode()
        answer = client.ask(RequestCode.BATCH_ACK_MESSAGE, None, body)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert "10000 are possible" in (answer.remark or "")

    @pytest.mark.parametrize(
        "other", [{"t": "bills"}, {"q": 4}, {"q": -1}, {"r": "1"}, {"so": -1}, {"pt": -START_MS}]
    )
    def test_of_a_batch_what_cannot_be_is_passed_over(
        self, gateway: MemoryGateway, client: MemoryClient, other: dict[str, object]
    ) -> None:
        send(client, "a")
        pop(gateway, client)
        ack = {"c": "consumers", "t": "orders", "q": 0, "so": 0, "pt": gateway.now_ms}
        ack |= {"it": INVISIBLE_MS, "b": base64.b64encode(b"\x01").decode(), **other}
        ok(client.ask(RequestCode.BATCH_ACK_MESSAGE, None, json.dumps({"acks": [ack]}).encode()))
        gateway.advance(INVISIBLE_MS + 500)
        assert bodies(pop(gateway, client)) == ["a"]

    @pytest.mark.parametrize("bits", ["é", "A", "?"])
    def test_bits_that_are_none(self, client: MemoryClient, bits: str) -> None:
        send(client, "a")
        ack = {"c": "consumers", "t": "orders", "q": 0, "so": 0, "pt": START_MS, "it": 1, "b": bits}
        answer = client.ask(
            RequestCode.BATCH_ACK_MESSAGE, None, json.dumps({"acks": [ack]}).encode()
        )
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").startswith("the bits of a batch are not base64")

    @pytest.mark.parametrize("body", [b"", b'{"acks":[]}'])
    def test_none(self, client: MemoryClient, body: bytes) -> None:
        assert client.ask(RequestCode.BATCH_ACK_MESSAGE, None, body).code == 208


def test_peeking_takes_nothing(gateway: MemoryGateway, client: MemoryClient) -> None:
    send(client, "a", "b")
    where = {"consumerGroup": "consumers", "topic": "orders", "queueId": "-1", "maxMsgNums": "9"}
    answer = client.ask(RequestCode.PEEK_MESSAGE, where)
    assert bodies(decode_messages(answer.body)) == ["a", "b"]
    assert answer.ext()["restNum"] == "2"
    assert bodies(pop(gateway, client)) == ["a", "b"]
    assert client.ask(RequestCode.PEEK_MESSAGE, where).code == ResponseCode.PULL_NOT_FOUND


def test_a_look_shows_at_most_what_one_pop_takes(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    send(client, *map(str, range(33)))
    peeked = ok(client.ask(RequestCode.PEEK_MESSAGE, pop_fields(gateway, maxMsgNums=33)))
    assert bodies(decode_messages(peeked.body)) == [str(number) for number in range(32)]
    assert peeked.ext()["restNum"] == "33"


@pytest.mark.parametrize("number", [0, -1])
def test_who_asks_for_no_message_gets_none(
    gateway: MemoryGateway, client: MemoryClient, number: int
) -> None:
    send(client, "a")
    answer = ask_pop(gateway, client, maxMsgNums=number)
    assert answer.code == ResponseCode.POLLING_TIMEOUT
    assert answer.ext()["restNum"] == "1"
    where = {"consumerGroup": "consumers", "topic": "orders", "queueId": "-1"}
    peeked = client.ask(RequestCode.PEEK_MESSAGE, {**where, "maxMsgNums": str(number)})
    assert peeked.code == ResponseCode.PULL_NOT_FOUND
    assert bodies(pop(gateway, client)) == ["a"]


def test_looks_pass_over_a_queue_that_cannot_be_read(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    """Pops skip it too. Clients that waited by a notification once got an error, and no notice of later messages."""
    for queue in (0, 1):
        send(client, "a", queue=queue)
    row = queue_prefix(b"orders", 0) + bytes(8)
    with damaged_row(gateway, "queues", row, lambda _: b"short"):
        client = gateway.connect()
        peeked = ok(client.ask(RequestCode.PEEK_MESSAGE, pop_fields(gateway)))
        assert (len(decode_messages(peeked.body)), peeked.ext()["restNum"]) == (1, "1")
        told = client.ask(RequestCode.NOTIFICATION, pop_fields(gateway))
        assert ok(told).ext()["hasMsg"] == "true"
        assert len(pop(gateway, client)) == 1
        waiting = client.send(RequestCode.NOTIFICATION, pop_fields(gateway, pollTime=5_000))
        assert client.answer(waiting) is None
        send(client, "b", queue=1)
        told_later = client.answer(waiting)
        assert told_later is not None
        assert told_later.ext()["hasMsg"] == "true"


def test_notifications(gateway: MemoryGateway, client: MemoryClient) -> None:
    send(client, "a")
    pop(gateway, client)
    where = pop_fields(gateway, pollTime=0)
    nothing = {"hasMsg": "false", "pollingFull": "false"}
    assert client.ask(RequestCode.NOTIFICATION, where).ext() == nothing
    opaque = client.send(RequestCode.NOTIFICATION, {**where, "pollTime": "5000"})
    assert client.answer(opaque) is None
    send(client, "b")
    answer = client.answer(opaque)
    assert answer is not None
    assert answer.ext() == {"hasMsg": "true", "pollingFull": "false"}
    assert bodies(pop(gateway, client)) == ["b"]


class TestAssignments:
    def ask(self, client: MemoryClient, client_id: str, **fields: str) -> object:
        body = {"topic": "orders", "consumerGroup": "consumers", "clientId": client_id}
        body |= {"strategyName": "AVG", "messageModel": "CLUSTERING", **fields}
        answer = client.ask(RequestCode.QUERY_ASSIGNMENT, None, json.dumps(body).encode())
        assert answer.code == ResponseCode.SUCCESS
        queues = json.loads(answer.body).get("messageQueueAssignments")
        if queues is None:
            return None
        return [(one["mode"], one["messageQueue"]["queueId"]) for one in queues]

    def choose(self, client: MemoryClient, mode: str = "POP", share: int = 0) -> None:
        body = {
            "topic": "orders",
            "consumerGroup": "consumers",
            "mode": mode,
            "popShareQueueNum": share,
        }
        answer = client.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, None, json.dumps(body).encode())
        assert answer.code == ResponseCode.SUCCESS

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"topic": "nope"}, ResponseCode.TOPIC_NOT_EXIST),
            ({"consumerGroup": "no group"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
            ({"topic": "%RETRY%consumers"}, ResponseCode.NO_PERMISSION),
            ({"mode": "PUSH"}, ResponseCode.INVALID_PARAMETER),
        ],
    )
    def test_a_mode_is_for_a_topic_and_a_group_that_there_are(
        self, client: MemoryClient, fields: dict[str, str], code: int
    ) -> None:
        send(client, "a")
        body = {"topic": "orders", "consumerGroup": "consumers", "mode": "POP", **fields}
        answer = client.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, None, json.dumps(body).encode())
        assert answer.code == code

    def test_pulled_queues_are_shared_out(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        send(client, "a")
        assert self.ask(client, "one") is None
        for name in ("one", "two", "three"):
            gateway.connect().heartbeat(name)
        assert self.ask(client, "one") == [("PULL", 0), ("PULL", 1)]
        assert self.ask(client, "three") == [("PULL", 2)]
        assert self.ask(client, "two", strategyName="AVG_BY_CIRCLE") == [("PULL", 2)]
        assert self.ask(client, "four") == []
        assert self.ask(client, "one", strategyName="XX") is None
        assert self.ask(client, "one", topic="nope") is None

    def test_all_queues_are_each_ones_who_gets_every_message(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        create_topic(client, "orders", 3)
        for name in ("one", "two"):
            gateway.connect().heartbeat(name)
        every = [("PULL", 0), ("PULL", 1), ("PULL", 2)]
        assert self.ask(client, "two", messageModel="BROADCASTING") == every
        create_topic(client, "orders", 3, perm="2")
        assert self.ask(client, "two", messageModel="BROADCASTING") is None

    def test_more_members_than_queues_to_pop(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        create_topic(client, "orders", 2)
        for name in ("a", "b", "c", "d"):
            gateway.connect().heartbeat(name)
        self.choose(client, share=2)
        places = [self.ask(client, name) for name in ("a", "b", "c", "d")]
        assert places == [[("POP", number % 2)] for number in range(4)]
        self.choose(client, share=3)
        assert self.ask(client, "a") == [("POP", -1)]

    def test_popped_queues(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        send(client, "a")
        for name in ("a", "b", "c", "d"):
            gateway.connect().heartbeat(name)
        self.choose(client)
        assert self.ask(client, "a") == [("POP", -1)]
        self.choose(client, share=1)
        assert self.ask(client, "a") == [("POP", 0), ("POP", 1)]
        assert self.ask(client, "d") == [("POP", 0), ("POP", 3)]
        gateway.restart()
        client = gateway.connect()
        client.heartbeat("a")
        assert self.ask(client, "a") == [("POP", -1)]
        self.choose(client, "PULL")
        assert self.ask(client, "a") == [("PULL", queue) for queue in range(4)]

    @pytest.mark.parametrize(
        ("code", "fields"),
        [
            (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}),
            (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "consumers"}),
        ],
    )
    def test_what_was_chosen_for_a_topic_or_group_goes_with_it(
        self, gateway: MemoryGateway, client: MemoryClient, code: int, fields: dict[str, str]
    ) -> None:
        send(client, "a")
        client.heartbeat("a")
        self.choose(client)
        before = len(gateway.store.notes())
        ok(client.ask(code, fields))
        assert len(gateway.store.notes()) == before - 1
        send(client, "b")
        put_group(client, "consumers")
        assert self.ask(client, "a") == [("PULL", queue) for queue in range(4)]
        gateway.restart()
        client = gateway.connect()
        client.heartbeat("a")
        assert self.ask(client, "a") == [("PULL", queue) for queue in range(4)]


@given(st.integers(0, 20), st.integers(1, 8), st.booleans())
def test_every_queue_is_one_members(queues: int, count: int, in_turn: bool) -> None:
    numbers = list(range(queues))
    parts = [part_of(numbers, place, count, in_turn=in_turn) for place in range(count)]
    assert sorted(queue for part in parts for queue in part) == numbers
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_handles_are_read_back() -> None:
    handle = Handle(3, 1_700, 60_000, 0, "1", "tidegate", 2, 5)
    assert parse_handle(handle.encode()) == handle
    without_offset = handle.encode().rpartition(" ")[0]  # as of some clients
    assert parse_handle(without_offset) == handle._replace(offset=0)
    of_the_proxy = handle.encode() + " 4711"
    assert parse_handle(of_the_proxy) == handle
    for text in ("1 2 3 4 5 6 7 x", handle.encode().rsplit(" ", 2)[0]):
        with pytest.raises(FieldError):
            parse_handle(text)


@given(st.sets(st.integers(0, 40)), st.integers(0, 60), st.integers(0, 120))
def test_the_bits_of_a_batch_are_offsets(numbers: set[int], start: int, end: int) -> None:
    bits = sum(1 << number for number in numbers).to_bytes(6, "little")
    body = {"c": "G", "t": "T", "q": 0, "so": start, "pt": 0, "it": 0}
    body["b"] = base64.b64encode(bits).decode()
    (ack,) = parse_batch_acks(json.dumps({"acks": [body]}).encode())
    assert ack.count == len(numbers)
    offsets = sorted(start + number for number in numbers)
    assert list(ack.offsets(end)) == [offset for offset in offsets if offset < end]
