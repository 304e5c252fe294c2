"""Delays through the gateway: a message is visible at its millisecond and not one earlier, with the right record."""

from __future__ import annotations

import pytest

from gateway.wire.codes import ResponseCode
from tests.gateway.conftest import MakeGateway
from tests.gateway.memory import START_MS, MemoryClient, MemoryGateway, bodies, properties_of

LEVELS_S = (1, 5, 10, 30, *(60 * n for n in range(1, 11)), 1_200, 1_800, 3_600, 7_200)


def test_every_level_at_its_time(gateway: MemoryGateway, client: MemoryClient) -> None:
    gateway.advance(123)
    for level in range(1, 19):
        answer = client.send_message("orders", str(level), DELAY=str(level))
        assert answer.code == ResponseCode.SUCCESS
    sent_ms = gateway.now_ms
    for level, seconds in enumerate(LEVELS_S, 1):
        gateway.jump(sent_ms + seconds * 1_000 - 1 - gateway.now_ms)
        client = gateway.connect()
        assert len(client.pull()) == level - 1, "early"
        gateway.advance(1)
        assert bodies(client.pull())[level - 1 :] == [str(level)]


@pytest.mark.parametrize(
    ("properties", "delay_ms"),
    [
        ({"TIMER_DELAY_SEC": "2"}, 2_000),
        ({"TIMER_DELAY_MS": "1"}, 1),
        ({"TIMER_DELAY_MS": "1234"}, 1_234),
        ({"TIMER_DELIVER_MS": str(START_MS + 777)}, 777),
        ({"__STARTDELIVERTIME": str(START_MS + 4_001)}, 4_001),
    ],
)
def test_never_early(
    gateway: MemoryGateway, client: MemoryClient, properties: dict[str, str], delay_ms: int
) -> None:
    client.send_message(properties=properties)
    gateway.advance(delay_ms - 1)
    assert client.pull() == []
    gateway.advance(1)
    [message] = client.pull()
    assert message.store_ms == START_MS + delay_ms


def test_the_longest_delay(gateway: MemoryGateway, client: MemoryClient) -> None:
    two_years_ms = 730 * 86_400_000
    assert client.send_message(TIMER_DELAY_MS=str(two_years_ms + 1)).code == (
        ResponseCode.MESSAGE_ILLEGAL
    )
    assert client.send_message(TIMER_DELAY_MS=str(two_years_ms)).code == ResponseCode.SUCCESS
    gateway.jump(two_years_ms - 1)
    assert gateway.connect().pull() == []
    gateway.advance(1)
    assert len(gateway.connect().pull()) == 1


def test_a_longest_delay_of_ones_own(make_gateway: MakeGateway) -> None:
    client = make_gateway(max_delay="10s").connect()
    assert client.send_message(TIMER_DELAY_SEC="10").code == ResponseCode.SUCCESS
    answer = client.send_message(TIMER_DELAY_SEC="11")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark is not None
    assert "max_delay" in answer.remark
    assert "10000ms" in answer.remark
    # The operator defines the levels, so the limit does not apply to them.
    assert client.send_message(DELAY="18").code == ResponseCode.SUCCESS


def test_a_level_table_of_ones_own(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(delay_levels="2s 3m 1d")
    client = gateway.connect()
    client.send_message("orders", "first", DELAY="1")
    client.send_message("orders", "clamped", DELAY="4")
    [first, clamped] = client.look_up()
    assert first["dueMs"] == START_MS + 2_000
    assert clamped["dueMs"] == START_MS + 86_400_000
    gateway.jump(86_400_000)
    assert properties_of(gateway.connect().pull()[1])["DELAY"] == "3"


class TestRecord:
    def test_while_it_waits_and_when_it_fired(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        answer = client.send_message(
            "orders",
            UNIQ_KEY="ID1",
            TAGS="red",
            TIMER_DELAY_MS="500",
            fields={"queue": 2},
        )
        assert answer.ext()["queueId"] == "2"
        gateway.advance(500)
        [message] = client.pull(queue=2)
        assert (message.topic, message.queue_id, message.queue_offset) == ("orders", 2, 0)
        assert message.born_ms == START_MS - 7
        assert message.store_ms == START_MS + 500
        properties = properties_of(message)
        assert properties["UNIQ_KEY"] == "ID1"
        assert properties["TAGS"] == "red"
        assert properties["TIMER_DELAY_MS"] == "500"
        assert properties["TIMER_OUT_MS"] == str(START_MS + 500)
        assert properties["REAL_TOPIC"] == "orders"
        assert properties["REAL_QID"] == "2"

    def test_of_a_level(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        client.send_message(DELAY="99", TIMER_DELAY_SEC="5", TIMER_DELIVER_MS="1")
        gateway.jump(7_200_000)
        properties = properties_of(gateway.connect().pull()[0])
        assert properties["DELAY"] == "18"
        assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("orders", "0")
        assert not {"TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TIMER_OUT_MS"} & set(properties)

    def test_a_senders_real_topic_does_not_count(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.send_message(TIMER_DELAY_MS="5", REAL_TOPIC="elsewhere", REAL_QID="7")
        gateway.advance(5)
        properties = properties_of(client.pull()[0])
        assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("orders", "0")

    def test_a_senders_timer_out_ms_does_not_count(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.send_message("orders", "timed", TIMER_OUT_MS="1", TIMER_DELAY_MS="50")
        client.send_message("orders", "plain", TIMER_OUT_MS=str(START_MS + 10_000))
        assert bodies(client.pull()) == ["plain"]
        gateway.advance(50)
        assert bodies(client.pull()) == ["plain", "timed"]
        assert properties_of(client.pull(offset=1)[0])["TIMER_OUT_MS"] == str(START_MS + 50)

    def test_a_fired_message_can_be_sent_on(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        """A consumer may send a received message again for another time, with all its properties."""
        client.send_message("orders", TIMER_DELAY_MS="50")
        gateway.advance(50)
        received = properties_of(client.pull()[0])
        client.send_message("next", properties=received | {"TIMER_DELAY_MS": "70"})
        gateway.advance(69)
        assert client.pull("next") == []
        gateway.advance(1)
        properties = properties_of(client.pull("next")[0])
        assert properties["TIMER_OUT_MS"] == str(START_MS + 120)
        assert properties["REAL_TOPIC"] == "next"


class TestAtOnce:
    @pytest.mark.parametrize(
        "properties",
        [
            {"TIMER_DELIVER_MS": "0"},
            {"TIMER_DELIVER_MS": "-9"},
            {"TIMER_DELIVER_MS": str(START_MS)},
            {"TIMER_DELAY_SEC": "0"},
            {"TIMER_DELAY_MS": "-1"},
            {"__STARTDELIVERTIME": "1"},
            {"DELAY": "0"},
            {"DELAY": "-3"},
            {"DELAY": ""},
        ],
    )
    def test_delivered(self, client: MemoryClient, properties: dict[str, str]) -> None:
        answer = client.send_message(properties=properties)
        assert answer.code == ResponseCode.SUCCESS
        assert "recallHandle" not in answer.ext()
        [message] = client.pull()
        stored = properties_of(message)
        assert not {"TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID"} & set(stored)
        assert {name: stored.get(name, "") for name in properties} == properties


class TestRefused:
    @pytest.mark.parametrize(
        ("properties", "code"),
        [
            ({"DELAY": "two"}, ResponseCode.SYSTEM_ERROR),
            ({"DELAY": str(2**31)}, ResponseCode.SYSTEM_ERROR),
            ({"TIMER_DELAY_SEC": "two"}, ResponseCode.MESSAGE_ILLEGAL),
            ({"TIMER_DELAY_MS": str(2**63)}, ResponseCode.MESSAGE_ILLEGAL),
            ({"TIMER_DELIVER_MS": str(2**63 - 1)}, ResponseCode.MESSAGE_ILLEGAL),
            ({"__STARTDELIVERTIME": "tomorrow"}, ResponseCode.MESSAGE_ILLEGAL),
        ],
    )
    def test_stores_nothing(
        self, client: MemoryClient, properties: dict[str, str], code: int
    ) -> None:
        answer = client.send_message(properties=properties)
        assert answer.code == code
        assert client.pull() == []
        assert client.look_up() == []


def test_a_relative_time_counts_from_the_gateways_clock(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    gateway.set_clock(3_600_000)
    client.send_message(TIMER_DELAY_MS="100")
    assert client.look_up()[0]["dueMs"] == START_MS + 3_600_100


def test_many_topics_and_queues(gateway: MemoryGateway, client: MemoryClient) -> None:
    for n in range(60):
        client.send_message(
            f"topic{n % 5}", str(n), TIMER_DELAY_MS=str(100 + n), fields={"queue": n % 3}
        )
    gateway.advance(160)
    for topic in range(5):
        for queue in range(3):
            expected = [str(n) for n in range(60) if n % 5 == topic and n % 3 == queue]
            assert bodies(client.pull(f"topic{topic}", queue)) == expected


def test_a_wait_until_due_and_pulled(gateway: MemoryGateway, client: MemoryClient) -> None:
    client.send_message("orders", "now")
    client.send_message("orders", "later", TIMER_DELAY_MS="2500")
    waiting = client.park(offset=1)
    gateway.advance(2_499)
    assert client.answer(waiting) is None
    gateway.advance(1)
    assert client.answer(waiting) is not None
