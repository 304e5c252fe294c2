"""Finding messages by the requests of existing tools (12, 33), before and after they fire."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.handlers import queries
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command
from gateway.wire.messages import decode_message, decode_messages, parse_offset_msg_id
from gateway.wire.properties import parse
from storage import Found, Store, find_by_key
from tests.gateway.memory import START_MS, MemoryClient, MemoryGateway, bodies
from tests.gateway.tools import query

HOUR_MS = 3_600_000


def found(client: MemoryClient, key: str, topic: str = "orders", **options: object) -> list[str]:
    """Return the bodies of the messages that a query finds."""
    answer = query(client, key, topic, **options)  # type: ignore[arg-type]
    if answer.code != ResponseCode.SUCCESS:
        assert (answer.code, answer.remark) == (
            ResponseCode.QUERY_NOT_FOUND,
            "can not find message, maybe time range not correct",
        )
        assert answer.ext().keys() == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}
        return []
    return bodies(decode_messages(answer.body))


BY_ID = [{"_UNIQUE_KEY_QUERY": "true"}, {"indexType": "U"}]
BY_KEY: list[dict[str, str]] = [{}, {"indexType": "K"}]


@pytest.mark.parametrize("kind", [*BY_KEY, {"indexType": "U"}])
@pytest.mark.parametrize("most", [0, -1])
def test_who_asks_for_no_message_gets_none(
    client: MemoryClient, most: int, kind: dict[str, str]
) -> None:
    client.send_message("orders", "one", KEYS="a", UNIQ_KEY="a")
    assert found(client, "a", most=1, **kind) == ["one"]
    assert found(client, "a", most=most, **kind) == []


@pytest.mark.parametrize("most", [1, 0, -1])
def test_by_id_all_are_found_whatever_number_is_asked_for(client: MemoryClient, most: int) -> None:
    for body in ("one", "two"):
        client.send_message("orders", body, UNIQ_KEY="a")
    assert sorted(found(client, "a", most=most, _UNIQUE_KEY_QUERY="true")) == ["one", "two"]


def test_an_answer_has_no_more_messages_than_clients_take_at_once(client: MemoryClient) -> None:
    for number in range(5):
        client.send_message("orders", bytes([number]) * 4_000_000, KEYS="large")
    answer = query(client, "large")
    assert answer.code == ResponseCode.SUCCESS
    messages = decode_messages(answer.body)
    assert [message.body[0] for message in messages] == [1, 2, 3, 4]


def test_by_tag_is_refused(client: MemoryClient) -> None:
    """A message with that text as its key would be a wrong result."""
    client.send_message("orders", KEYS="red")
    answer = query(client, "red", indexType="T")
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "by tag" in (answer.remark or "")


class TestByKey:
    @pytest.mark.parametrize("options", BY_KEY)
    def test_before_and_after_firing(
        self, gateway: MemoryGateway, client: MemoryClient, options: dict[str, str]
    ) -> None:
        client.send_message("orders", "timed", KEYS="k1 k2", TIMER_DELAY_MS="500")
        for key in ("k1", "k2"):
            assert found(client, key, **options) == ["timed"]
        [parked] = decode_messages(query(client, "k1").body)
        assert (parked.topic, parked.queue_offset, parked.store_ms) == ("orders", 0, START_MS)
        client.send_message("orders", "first")
        gateway.advance(500)
        [fired] = decode_messages(query(client, "k1").body)
        assert (fired.topic, fired.queue_offset) == ("orders", 1)
        assert fired.store_ms == START_MS + 500
        assert fired.physical_offset == parked.physical_offset

    @pytest.mark.parametrize("state", ["pending", "aborted"])
    def test_what_has_not_fired_is_not_behind_any_group(
        self, client: MemoryClient, state: str
    ) -> None:
        """Tools say that a group has consumed the messages before its offset."""
        client.send_message("orders", "timed", KEYS="k", UNIQ_KEY="ID1", TIMER_DELAY_MS="500")
        for _ in range(3):
            client.send_message("orders", "consumed")
        if state == "aborted":
            client.abort(id="ID1")
        [timed] = decode_messages(query(client, "k").body)
        assert parse(timed.properties)["TIDEGATE_STATE"] == state
        assert (timed.queue_offset, timed.store_ms) == (3, START_MS)

    @pytest.mark.parametrize("space", ["\t", "\n", "\r", "\v", "\f", "\u3000"])
    def test_only_blanks_divide_keys(
        self, gateway: MemoryGateway, client: MemoryClient, space: str
    ) -> None:
        client.send_message("orders", "timed", KEYS=f" a{space}b  c ", TIMER_DELAY_MS="500")
        for _ in range(2):
            assert found(client, f"a{space}b") == found(client, "c") == ["timed"]
            assert found(client, "a") == found(client, "b") == []
            gateway.advance(500)

    @pytest.mark.parametrize("options", BY_KEY)
    def test_an_id_is_found_where_no_message_has_it_as_a_key(
        self, client: MemoryClient, options: dict[str, str]
    ) -> None:
        client.send_message("orders", "one", UNIQ_KEY="ID1", KEYS="k")
        client.send_message("others", "two", UNIQ_KEY="ID1")
        assert found(client, "ID1", **options) == ["one"]
        assert found(client, "ID1", most=0, **options) == []
        client.send_message("orders", "three", UNIQ_KEY="ID3", KEYS="ID1")
        assert found(client, "ID1", **options) == ["three"]

    def test_untimed(self, client: MemoryClient) -> None:
        client.send_message("orders", "hello", KEYS="k")
        answer = query(client, "k")
        assert bodies(decode_messages(answer.body)) == ["hello"]
        assert set(answer.ext()) >= {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}

    def test_of_its_topic_only(self, client: MemoryClient) -> None:
        client.send_message("orders", "1", KEYS="k")
        client.send_message("bills", "2", KEYS="k")
        assert found(client, "k", "bills") == ["2"]
        assert found(client, "k", "none") == []
        assert found(client, "K", "bills") == []

    def test_the_newest_and_the_oldest_of_them_first(self, client: MemoryClient) -> None:
        for number in range(70):
            client.send_message("orders", str(number), KEYS="k")
        assert found(client, "k") == [str(number) for number in range(6, 70)]
        assert found(client, "k", most=2) == ["68", "69"]
        assert len(found(client, "k", most=1_000)) == 64

    def test_what_does_not_match_takes_no_place(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        client.send_message("orders", "old", KEYS="k")
        gateway.advance(1_000)
        client.send_message("orders", "new", KEYS="k")
        assert found(client, "k", most=1, end=START_MS + 500) == ["old"]
        assert found(client, "k", most=2) == ["old", "new"]

    @pytest.mark.parametrize("topic", ["rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"])
    def test_where_upstream_parks_messages(
        self, gateway: MemoryGateway, client: MemoryClient, topic: str
    ) -> None:
        client.send_message("orders", "1", KEYS="k", TIMER_DELAY_MS="500")
        client.send_message("bills", "2", KEYS="k", DELAY="1")
        client.send_message("bills", "3", KEYS="k")
        assert sorted(found(client, "k", topic)) == ["1", "2"]
        gateway.advance(500)
        assert found(client, "k", topic) == ["2"]

    def test_there_only_topics_with_pending_messages_are_searched(
        self, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client.send_message("bills", KEYS="k")
        client.send_message("orders", "1", KEYS="k", TIMER_DELAY_MS="500")
        searched: list[bytes] = []

        def note(store: Store, topics: list[bytes], *others: Any) -> list[Found]:
            searched.extend(topics)
            return find_by_key(store, topics, *others)

        monkeypatch.setattr(queries, "find_by_key", note)
        assert found(client, "k", "SCHEDULE_TOPIC_XXXX") == ["1"]
        assert searched == [b"orders"]


class TestById:
    @pytest.mark.parametrize("options", BY_ID)
    def test_before_and_after_firing(
        self, gateway: MemoryGateway, client: MemoryClient, options: dict[str, str]
    ) -> None:
        client.send_message("orders", "timed", UNIQ_KEY="ID1", TIMER_DELAY_MS="500")
        client.send_message("orders", "other", UNIQ_KEY="ID10")
        assert found(client, "ID1", **options) == ["timed"]
        assert found(client, "ID1", "rmq_sys_wheel_timer", **options) == ["timed"]
        gateway.advance(500)
        assert found(client, "ID1", **options) == ["timed"]
        assert found(client, "ID1", "rmq_sys_wheel_timer", **options) == []

    def test_of_its_topic_only(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        """A retry has the id of the message that it repeats."""
        client.send_message("orders", "original", UNIQ_KEY="ID1")
        client.send_message("%RETRY%workers", "retry", UNIQ_KEY="ID1")
        assert found(client, "ID1", indexType="U") == ["original"]
        assert found(client, "ID1", "%RETRY%workers", indexType="U") == ["retry"]
        assert found(client, "ID1", "none", indexType="U") == []

    def test_is_no_key(self, client: MemoryClient) -> None:
        client.send_message("orders", "1", UNIQ_KEY="ID1", KEYS="k")
        assert found(client, "k", indexType="U") == []

    def test_aborted(self, client: MemoryClient) -> None:
        client.send_message("orders", UNIQ_KEY="ID1", KEYS="k", TIMER_DELAY_MS="500")
        client.abort(id="ID1")
        assert found(client, "ID1", indexType="U") == ["hello"]
        assert found(client, "k") == ["hello"]


class TestState:
    def test_is_told_in_the_properties(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        due = gateway.now_ms + 500
        for key in ("fired", "aborted"):
            client.send_message(KEYS=key, UNIQ_KEY=key, TIMER_DELAY_MS="500")
        client.send_message(KEYS="pending", DELAY="1")
        client.send_message(KEYS="untimed")
        client.abort(id="aborted")
        gateway.advance(500)
        for key in ("pending", "fired", "aborted"):
            (message,) = decode_messages(query(client, key).body)
            properties = parse(message.properties)
            assert properties["TIDEGATE_STATE"] == key
            assert properties["TIDEGATE_DUE_MS"] == str(due + (500 if key == "pending" else 0))
        assert "TIDEGATE" not in decode_messages(query(client, "untimed").body)[0].properties


class TestTimes:
    @pytest.mark.parametrize(
        ("begin", "end", "expected"),
        [
            (START_MS, START_MS, 1),
            (START_MS - HOUR_MS, START_MS + HOUR_MS, 1),
            (START_MS + 1, START_MS + HOUR_MS, 0),
            (0, START_MS - 1, 0),
            (-5, 2**63 - 1, 1),
            (START_MS + 5, START_MS - 5, 0),
        ],
    )
    def test_of_acceptance(self, client: MemoryClient, begin: int, end: int, expected: int) -> None:
        client.send_message(KEYS="k", UNIQ_KEY="ID1", TIMER_DELAY_MS="86400000")
        assert len(found(client, "k", begin=begin, end=end)) == expected
        assert len(found(client, "ID1", begin=begin, end=end, indexType="U")) == expected

    def test_of_firing(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        """A search around the time of delivery finds the message, and so does one around the time of sending."""
        client.send_message(KEYS="k", TIMER_DELAY_MS=str(48 * HOUR_MS))
        gateway.jump(48 * HOUR_MS)
        client = gateway.connect()
        fired_ms = START_MS + 48 * HOUR_MS
        assert len(found(client, "k", begin=fired_ms - 1_000, end=fired_ms + 1_000)) == 1
        assert len(found(client, "k", begin=START_MS - 1_000, end=START_MS + 1_000)) == 1
        assert found(client, "k", begin=START_MS + HOUR_MS, end=fired_ms - HOUR_MS) == []


class TestView:
    def view(self, client: MemoryClient, offset: int | str) -> Command:
        return client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})

    def test_before_and_after_firing(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        answer = client.send_message("orders", "timed", TIMER_DELAY_MS="500")
        _, offset = parse_offset_msg_id(answer.ext()["msgId"])
        parked = decode_message(self.view(client, offset).body)
        assert (parked.body, parked.topic, parked.physical_offset) == (b"timed", "orders", offset)
        client.send_message("orders", "first")
        gateway.advance(500)
        fired = decode_message(self.view(client, offset).body)
        assert fired.body == b"timed"
        assert (fired.queue_offset, fired.store_ms) == (1, START_MS + 500)
        assert fired.physical_offset == offset

    def test_of_every_state(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        answer = client.send_message("orders", "x", UNIQ_KEY="ID1", TIMER_DELAY_MS="500")
        _, offset = parse_offset_msg_id(answer.ext()["msgId"])
        client.abort(id="ID1")
        assert self.view(client, offset).code == ResponseCode.SUCCESS

    def test_what_a_pull_gave(self, client: MemoryClient) -> None:
        client.send_batch((str(number), {}) for number in range(5))
        pulled = client.pull()
        assert len(pulled) == 5
        for message in pulled:
            viewed = decode_message(self.view(client, message.physical_offset).body)
            assert viewed == message

    @pytest.mark.parametrize("offset", [0, 77, -1, 2**63 - 1, -(2**63)])
    def test_unknown(self, client: MemoryClient, offset: int) -> None:
        client.send_message()
        answer = self.view(client, offset)
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            f"can not find message by the offset, {offset}",
        )

    def test_no_number(self, client: MemoryClient) -> None:
        assert self.view(client, "first").code == ResponseCode.SYSTEM_ERROR

    def test_after_retention(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        client.send_message(KEYS="k", UNIQ_KEY="ID1")
        [message] = client.pull()
        gateway.jump(80 * HOUR_MS)
        client = gateway.connect()
        assert self.view(client, message.physical_offset).code == ResponseCode.SYSTEM_ERROR
        assert found(client, "k") == []
        assert found(client, "ID1", indexType="U") == []


@pytest.mark.parametrize("name", ["topic", "key", "maxNum", "beginTimestamp", "endTimestamp"])
def test_a_field_is_missing(client: MemoryClient, name: str) -> None:
    ext = {"topic": "t", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "9"}
    del ext[name]
    answer = client.ask(RequestCode.QUERY_MESSAGE, ext)
    assert (answer.code, answer.remark) == (1, f"the field {name} is missing")


def test_many_with_one_key(gateway: MemoryGateway, client: MemoryClient) -> None:
    client.send_batch((str(number), {"KEYS": "k"}) for number in range(1_500))
    assert found(client, "k")[-1] == "1499"
    assert len(found(client, "k")) == 64
