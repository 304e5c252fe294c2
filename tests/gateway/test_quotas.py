"""Limits of topics: pending messages, rate, furthest time and retention."""

from __future__ import annotations

import json

import pytest

from gateway.limits import Limits
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command
from tests.gateway.conftest import MakeGateway
from tests.gateway.faults import commits_fail
from tests.gateway.memory import START_MS, MemoryClient, MemoryGateway
from tests.gateway.metrics import Scrape
from tests.gateway.tools import create_topic, ok


def limit(client: MemoryClient, *changes: str, topic: str = "orders") -> None:
    ok(create_topic(client, topic, attributes=",".join(changes)))


def hold(client: MemoryClient, topic: str = "orders", message_id: str = "") -> Command:
    properties = {"UNIQ_KEY": message_id} if message_id else {}
    return client.send_message(topic, properties=properties, TIMER_DELAY_SEC="60")


def test_topics_without_limits_share_that_they_have_none(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    ok(client.send_message("A"))
    ok(client.send_message("B"))
    topics = gateway.service.broker.topics
    assert topics.need("A").limits is topics.need("B").limits == Limits()


def test_messages_that_only_change_something_are_not_counted(client: MemoryClient) -> None:
    ok(hold(client, message_id="A"))
    limit(client, "+max.held.messages=1", "+max.held.bytes=1", "+max.send.rate=1", "+max.delay=1h")
    assert hold(client).code == ResponseCode.SYSTEM_ERROR
    ok(client.send_message())
    assert client.send_message().code == ResponseCode.SYSTEM_BUSY
    ok(client.send_message(TIDEGATE_NAME="report", TIDEGATE_EVERY="2h"))
    ok(client.send_message(TIDEGATE_RESCHEDULE="A", TIMER_DELAY_SEC="90"))
    too_far = client.send_message(TIDEGATE_RESCHEDULE="A", TIMER_DELAY_SEC="7200")
    assert too_far.code == ResponseCode.MESSAGE_ILLEGAL
    ok(client.send_message(TIMER_DEL_UNIQKEY="orders+A", TIMER_DELAY_SEC="1"))


class TestHeldMessages:
    def test_one_too_many_is_refused(self, client: MemoryClient) -> None:
        limit(client, "+max.held.messages=2")
        ok(hold(client))
        ok(hold(client, message_id="A"))
        refused = hold(client)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert refused.remark == (
            "timer message is under flow control: topic orders holds 2 messages that have not fired, "
            "and may hold 2 (attribute max.held.messages of the topic)"
        )
        limit(client, "+max.held.messages=1", "+max.held.bytes=1")
        ok(client.send_message())  # a message that is not for later is not counted
        limit(client, "+max.held.messages=2", "-max.held.bytes")
        ok(hold(client, "bills"))
        client.abort(id="A")
        ok(hold(client))

    def test_what_fires_makes_room(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        limit(client, "+max.held.messages=1")
        ok(hold(client))
        gateway.advance(60_000)
        ok(hold(client))

    def test_many_in_one_turn_are_counted(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        """The count is right even before the batch is committed."""
        limit(client, "+max.held.messages=3")
        ext = client.send_fields(properties="TIMER_DELAY_SEC\x0160\x02")
        opaques = [client.send(RequestCode.SEND_MESSAGE_V2, ext, b"x") for _ in range(5)]
        answers = [client.answer(opaque) for opaque in opaques]
        assert [answer.code for answer in answers if answer] == [0, 0, 0, 1, 1]

    def test_a_batch_goes_in_whole_or_not(self, client: MemoryClient) -> None:
        limit(client, "+max.held.messages=2")
        late = {"TIMER_DELAY_SEC": "60"}
        assert client.send_batch([("1", late), ("2", late), ("3", late)]).code == 1
        ok(client.send_batch([("1", late), ("2", late), ("3", {})]))

    def test_counts_outlive_a_restart(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        limit(client, "+max.held.messages=2")
        ok(hold(client))
        ok(hold(client))
        gateway.crash()
        assert hold(gateway.connect()).code == ResponseCode.SYSTEM_ERROR

    def test_a_refused_batch_does_not_count(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        limit(client, "+max.held.messages=1")
        with commits_fail(gateway):
            assert hold(client).code != ResponseCode.SUCCESS
        ok(hold(client))

    def test_a_setting_for_all_topics(self, make_gateway: MakeGateway) -> None:
        client = make_gateway(max_held_messages=1).connect()
        limit(client, "+max.held.messages=0", topic="free")
        for _ in range(3):
            ok(hold(client, "free"))
        ok(hold(client, "one"))
        ok(hold(client, "two"))
        assert "(setting max_held_messages)" in (hold(client, "two").remark or "")
        ok(client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"max_held_messages=2"))
        ok(hold(client, "two"))

    def test_a_half_counts_and_its_commit_does_not(self, client: MemoryClient) -> None:
        limit(client, "+max.held.messages=1")
        half = ok(
            client.send_message(
                TRAN_MSG="true", PGROUP="P", TIMER_DELAY_SEC="60", fields={"sys_flag": 4}
            )
        ).ext()
        ok(hold(client))
        end = {
            "producerGroup": "P",
            "tranStateTableOffset": half["queueOffset"],
            "commitLogOffset": str(int(half["msgId"][16:], 16)),
            "commitOrRollback": "8",
            "msgId": half.get("transactionId", ""),
        }
        ok(client.ask(RequestCode.END_TRANSACTION, end))
        assert len(client.look_up()) == 2
        refused = client.send_message(TRAN_MSG="true", PGROUP="P", TIMER_DELAY_SEC="60")
        assert "under flow control" in (refused.remark or "")

    def test_retries_are_not_refused(self, make_gateway: MakeGateway) -> None:
        client = make_gateway(max_held_messages=1, max_send_rate=1).connect()
        client.heartbeat("C1")
        sent = ok(client.send_message()).ext()
        offset = str(int(sent["msgId"][16:], 16))
        back = {"offset": offset, "group": "consumers", "delayLevel": "3"}
        for _ in range(3):
            ok(client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back))
        limit(client, "+max.delay=1s", topic="%RETRY%consumers")
        ok(client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back))
        for _ in range(3):
            ok(hold(client, "%DLQ%consumers"))


class TestHeldBytes:
    def test_one_too_many_is_refused(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        ok(client.send_message(body=b"x" * 30_000, TIMER_DELAY_SEC="60"))
        limit(client, "+max.held.bytes=64KiB")
        ok(client.send_message(body=b"x" * 30_000, TIMER_DELAY_SEC="60", UNIQ_KEY="A"))
        refused = client.send_message(body=b"x" * 30_000, TIMER_DELAY_SEC="60")
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "bytes of messages that have not fired, and may hold 64KiB" in (refused.remark or "")
        assert "(attribute max.held.bytes of the topic)" in (refused.remark or "")
        ok(hold(client))
        client.abort(id="A")
        ok(client.send_message(body=b"x" * 30_000, TIMER_DELAY_SEC="60"))
        gateway.advance(60_000)
        assert gateway.store.held.sizes_of(b"orders") == 0
        hold(client)
        size = gateway.store.held.sizes_of(b"orders")
        assert Scrape(gateway).by("tidegate_held_bytes", "topic") == {"orders": size}

    def test_what_just_fits_is_taken(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        ok(hold(client))
        size = gateway.store.held.sizes_of(b"orders")
        limit(client, f"+max.held.bytes={2 * size}")
        ok(hold(client))
        assert gateway.store.held.sizes_of(b"orders") == 2 * size
        assert hold(client).code == ResponseCode.SYSTEM_ERROR

    def test_a_batch_goes_in_whole_or_not(self, client: MemoryClient) -> None:
        limit(client, "+max.held.bytes=64KiB")
        body, timed = "x" * 30_000, {"TIMER_DELAY_SEC": "60"}
        refused = client.send_batch([(body, timed)] * 3)
        assert "bytes of messages that have not fired" in (refused.remark or "")
        assert client.look_up(topic="orders") == []
        ok(client.send_batch([(body, timed), (body, timed), (body, {})]))

    def test_the_count_is_what_is_there(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        """The count stays right whatever happens to messages, and over restarts."""
        for number in range(20):
            client.send_message(UNIQ_KEY=f"A{number}", TIMER_DELAY_SEC=str(10 + number))
        first = gateway.store.held.sizes_of(b"orders")
        assert first > 20 * len(b"hello")
        gateway.advance(15_000)
        client.abort(id="A19")
        with commits_fail(gateway):
            hold(client)
        kept = gateway.store.held.sizes_of(b"orders")
        assert 0 < kept < first
        gateway.restart()
        assert gateway.store.held.sizes_of(b"orders") == kept
        gateway.crash()
        assert gateway.store.held.sizes_of(b"orders") == kept

    def test_a_setting_for_all_topics(self, make_gateway: MakeGateway) -> None:
        client = make_gateway(max_held_bytes="1KiB", max_send_rate=2).connect()
        assert client.send_message(body=b"x" * 1_024).code == ResponseCode.SUCCESS
        refused = client.send_message(body=b"x" * 1_024, TIMER_DELAY_SEC="60")
        assert "(setting max_held_bytes)" in (refused.remark or "")
        limit(client, "+max.held.bytes=0", "+max.send.rate=0", topic="free")
        for _ in range(3):
            ok(client.send_message("free", b"x" * 1_024, TIMER_DELAY_SEC="60"))


class TestRate:
    def test_a_second_has_so_many(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        limit(client, "+max.send.rate=2")
        ok(client.send_message())
        ok(hold(client))
        refused = client.send_message()
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert refused.remark == (
            "broker busy, start flow control for a while: topic orders takes 2 messages a second "
            "(attribute max.send.rate of the topic)"
        )
        ok(client.send_message("bills"))
        gateway.advance(500)
        ok(client.send_message())
        assert client.send_message().code == ResponseCode.SYSTEM_BUSY

    def test_a_half_counts_unless_it_is_refused(self, client: MemoryClient) -> None:
        limit(client, "+max.send.rate=1")
        half = {"TRAN_MSG": "true", "PGROUP": "P"}
        refused = client.send_message(properties=half | {"x": "x" * 32_700})
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        ok(client.send_message(properties=half))
        assert client.send_message(properties=half).code == ResponseCode.SYSTEM_BUSY

    def test_a_large_batch_is_paid_for_afterwards(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        limit(client, "+max.send.rate=2")
        ok(client.send_batch([(str(n), {}) for n in range(6)]))
        gateway.advance(2_400)
        assert client.send_message().code == ResponseCode.SYSTEM_BUSY
        gateway.advance(200)
        ok(client.send_message())

    def test_who_rests_saves_up_no_more_than_a_second(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        limit(client, "+max.send.rate=2")
        ok(client.send_message())
        gateway.advance(60_000)
        for _ in range(2):
            ok(client.send_message())
        assert client.send_message().code == ResponseCode.SYSTEM_BUSY

    def test_one_that_is_made_again_owes_nothing(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        limit(client, "+max.send.rate=2")
        ok(client.send_batch([(str(n), {}) for n in range(99)]))
        ok(client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}))
        gateway.advance(20_000)
        limit(client, "+max.send.rate=2")
        ok(client.send_message())

    def test_it_goes_by_real_time(self, make_gateway: MakeGateway) -> None:
        gateway = make_gateway(clock="manual", max_send_rate=1)
        client = gateway.connect()
        ok(client.send_message())
        assert client.send_message().code == ResponseCode.SYSTEM_BUSY
        gateway.advance(1_000)
        ok(client.send_message())


def test_the_furthest_time(client: MemoryClient) -> None:
    limit(client, "+max.delay=1m")
    ok(client.send_message(TIMER_DELAY_SEC="60"))
    for properties in ({"TIMER_DELAY_SEC": "61"}, {"DELAY": "6"}):
        refused = client.send_message(properties=properties)
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert "60000ms (attribute max.delay of the topic)" in (refused.remark or "")
    ok(client.send_message(DELAY="5"))
    limit(client, "+max.delay=3650d")
    ok(client.send_message(TIMER_DELIVER_MS=str(START_MS + 3_000 * 86_400_000)))


def test_retention_of_a_topic(gateway: MemoryGateway, client: MemoryClient) -> None:
    limit(client, "+retention=1h")
    ok(client.send_message())
    ok(client.send_message("bills"))
    gateway.jump(3_600_000 - 20_000)
    gateway.advance(10_000)
    assert len(gateway.connect().pull()) == 1
    gateway.advance(25_000)
    client = gateway.connect()
    assert client.ask_pull().code == ResponseCode.PULL_OFFSET_MOVED
    assert len(client.pull("bills")) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("+max.held.messages=-1", "the value of max.held.messages is a whole number"),
        ("+max.send.rate=fast", "the value of max.send.rate is a whole number"),
        (f"+max.send.rate={10**18}", "the value of max.send.rate is a whole number"),
        ("+max.send.rate=٣", "the value of max.send.rate is a whole number"),
        ("+max.held.bytes=much", "the value of max.held.bytes is a size"),
        (f"+max.held.bytes={1 << 60}", "the value of max.held.bytes is a size"),
        ("+max.delay=0", "the value of max.delay is a duration"),
        ("+max.delay=0.5ms", "the value of max.delay is a duration from 1ms to 100 years"),
        ("+retention=36500d1s", "the value of retention is a duration"),
        ("+max.sends=1", "unsupported key: max.sends"),
    ],
)
def test_wrong_values_are_refused(client: MemoryClient, change: str, says: str) -> None:
    answer = create_topic(client, "orders", attributes=change)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert says in (answer.remark or "")


def test_the_highest_values(client: MemoryClient) -> None:
    limit(client, f"+max.held.messages={10**18 - 1}", f"+max.send.rate={10**18 - 1}")
    limit(client, f"+max.held.bytes={(1 << 60) - 1024}", "+max.delay=36500d", "+retention=36500d")
    ok(hold(client))


def test_limits_stay_and_go(gateway: MemoryGateway, client: MemoryClient) -> None:
    limit(client, "+max.held.messages=1", "+retention=1h")
    gateway.restart()
    client = gateway.connect()
    limit(client, "-retention")
    answer = ok(client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "orders"}))
    assert json.loads(answer.body)["attributes"] == {"max.held.messages": "1"}
    ok(hold(client))
    assert hold(client).code == ResponseCode.SYSTEM_ERROR


def test_limits_and_refusals_are_measured(gateway: MemoryGateway, client: MemoryClient) -> None:
    limit(client, "+max.held.messages=1", "+retention=1h")
    ok(hold(client))
    hold(client)
    ok(create_topic(client, "bills", attributes="+max.send.rate=1"))
    ok(client.send_message("bills"))
    client.send_message("bills")
    scrape = Scrape(gateway)
    assert scrape.by("tidegate_topic_limit", "topic", "limit") == {
        "orders@max.held.messages": 1,
        "orders@retention": 3_600_000,
        "bills@max.send.rate": 1,
    }
    assert scrape.by("tidegate_quota_refusals_total", "topic", "limit") == {
        "orders@max.held.messages": 1,
        "bills@max.send.rate": 1,
    }
    ok(client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "bills"}))
    gateway.advance(20_000)
    assert Scrape(gateway).by("tidegate_quota_refusals_total", "topic", "limit") == {
        "orders@max.held.messages": 1
    }
