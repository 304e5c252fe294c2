"""Looking up pending messages, and what became of the others."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import pytest

from gateway.monitoring.audit import read_lines
from gateway.pending import messages as pending
from gateway.pending.messages import PendingMessages
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.properties import join
from gateway.wire.recall import RecallHandle
from storage import lookup, scan_with_key, topics_with_key
from storage import pending as scan
from storage.keys import id_key, pack_u64
from tests.gateway.conftest import MakeGateway
from tests.gateway.faults import commits_fail, damaged_row
from tests.gateway.memory import START_MS, MemoryClient, MemoryGateway


def schedule(
    client: MemoryClient, name: str, delay_ms: int, topic: str = "orders", **more: str
) -> None:
    """Send a timed message with this id."""
    answer = client.send_message(
        topic, name, UNIQ_KEY=name, TIMER_DELAY_MS=str(delay_ms), properties=more
    )
    assert answer.code == ResponseCode.SUCCESS


def ids(messages: list[dict[str, object]]) -> list[object]:
    """Return the ids of the messages found."""
    return [message["msgId"] for message in messages]


class TestOne:
    def test_all_that_is_known_of_it(self, gateway: MemoryGateway) -> None:
        client = gateway.connect("192.0.2.9")
        gateway.advance(250)
        answer = client.send_message(
            "orders",
            "12345",
            UNIQ_KEY="ID1",
            TAGS="red",
            KEYS="k1 k2",
            TIMER_DELAY_MS="1000",
            fields={"queue": 3},
        )
        [message] = client.look_up(id="ID1")
        handle = message.pop("recallHandle")
        host, port = client.protocol.address.split(":")
        assert message == {
            "msgId": "ID1",
            "offsetMsgId": answer.ext()["msgId"],
            "topic": "orders",
            "queueId": 3,
            "tags": "red",
            "keys": "k1 k2",
            "dueMs": START_MS + 1_250,
            "state": "pending",
            "movedMs": 0,
            "queueOffset": -1,
            "storeMs": START_MS + 250,
            "bornMs": START_MS - 7,
            "bornHost": f"{host}:{port}",
            "bodySize": 5,
            "rescheduledMs": 0,
            "dueBeforeMs": 0,
        }
        assert handle == answer.ext()["recallHandle"]
        assert client.recall("orders", handle).code == ResponseCode.SUCCESS

    def test_fired(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        client.send_message("orders", "before")
        schedule(client, "ID1", 500)
        gateway.advance(900)
        assert client.look_up(id="ID1") == []
        [message] = client.look_up(id="ID1", state="fired")
        assert message["state"] == "fired"
        assert message["dueMs"] == START_MS + 500
        assert message["movedMs"] == START_MS + 500
        assert message["queueOffset"] == 1
        assert message["recallHandle"] is None

    def test_aborted(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        schedule(client, "ID1", 500)
        gateway.advance(100)
        client.abort(id="ID1")
        assert client.look_up(id="ID1") == []
        [message] = client.look_up(id="ID1", state="aborted")
        assert (message["state"], message["movedMs"]) == ("aborted", START_MS + 100)
        assert (message["queueOffset"], message["recallHandle"]) == (-1, None)

    def test_never_timed(self, client: MemoryClient) -> None:
        client.send_message(UNIQ_KEY="ID1")
        [message] = client.look_up(id="ID1", state="any")
        assert (message["state"], message["dueMs"]) == ("untimed", 0)
        assert message["queueOffset"] == 0

    def test_by_offset_id(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        answer = client.send_message(UNIQ_KEY="ID1", TIMER_DELAY_MS="500")
        offset_id = answer.ext()["msgId"]
        assert ids(client.look_up(id=offset_id)) == ["ID1"]
        assert ids(client.look_up(id=offset_id.lower())) == ["ID1"]
        # The id stays valid when the message fires.
        gateway.advance(500)
        assert ids(client.look_up(id=offset_id, state="fired")) == ["ID1"]

    def test_by_offset_id_after_the_address_was_changed(self, make_gateway: MakeGateway) -> None:
        gateway = make_gateway(advertise="192.0.2.7:9876")
        answer = gateway.connect().send_message(UNIQ_KEY="ID1", TIMER_DELAY_MS="500")
        told = answer.ext()["msgId"]
        gateway.settings["advertise"] = "192.0.2.8:9876"
        gateway.restart()
        client = gateway.connect()
        [message] = client.look_up(id=told)
        now = message["offsetMsgId"]
        assert now != told
        assert ids(client.look_up(id=now)) == ["ID1"]
        # The id of another gateway, which has its own message with this number.
        assert client.look_up(id=told.replace("C0000207", "C0000209")) == []

    @pytest.mark.parametrize(
        "message_id",
        ["none", "7F00000100002694000000000000FFFF", "F" * 32, "0" * 32, "zz", "a b", "é" * 300],
    )
    def test_unknown(self, client: MemoryClient, message_id: str) -> None:
        client.send_message(TIMER_DELAY_MS="500")
        assert client.look_up(id=message_id, state="any") == []

    def test_an_id_that_begins_like_another(self, client: MemoryClient) -> None:
        schedule(client, "ID1", 500)
        schedule(client, "ID10", 500)
        schedule(client, "I", 500)
        assert ids(client.look_up(id="ID1")) == ["ID1"]

    def test_a_long_id(self, client: MemoryClient) -> None:
        name = "x" * 5_000
        schedule(client, name, 500)
        schedule(client, name + "y", 500)
        assert ids(client.look_up(id=name)) == [name]

    def test_several_with_one_id(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        schedule(client, "ID1", 500)
        schedule(client, "ID1", 100)
        schedule(client, "ID1", 900, "bills")
        gateway.advance(100)
        found = client.look_up(id="ID1", state="any")
        assert [(one["topic"], one["state"]) for one in found] == [
            ("orders", "fired"),
            ("orders", "pending"),
            ("bills", "pending"),
        ]
        assert [one["topic"] for one in client.look_up(id="ID1", topic="bills")] == ["bills"]

    def test_very_many_with_one_id(self, client: MemoryClient) -> None:
        properties = {"UNIQ_KEY": "ID1", "TIMER_DELAY_MS": "500"}
        client.send_batch((str(n), properties) for n in range(1_100))
        assert len(client.look_up(id="ID1", limit=1_000)) == 1_000

    def test_after_a_restart(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        schedule(client, "pending", 900)
        schedule(client, "fired", 100)
        schedule(client, "aborted", 900)
        client.abort(id="aborted")
        gateway.advance(100)
        gateway.crash()
        client = gateway.connect()
        for state in ("pending", "fired", "aborted"):
            assert [one["state"] for one in client.look_up(id=state, state="any")] == [state]


class TestKey:
    def test_every_key_of_a_message(self, client: MemoryClient) -> None:
        schedule(client, "A", 500, KEYS="k1 k2")
        schedule(client, "B", 100, KEYS="k2  k3 k3")
        assert ids(client.look_up(key="k1")) == ["A"]
        assert ids(client.look_up(key="k2")) == ["B", "A"]
        assert ids(client.look_up(key="k3")) == ["B"]
        assert client.look_up(key="k") == []
        assert client.look_up(key="k1 k2") == []

    def test_no_more_than_the_newest_wherever_they_are(
        self, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pending, "MAX_WITH_KEY", 2)
        for name, topic in (("A", "orders"), ("B", "more"), ("C", "orders"), ("D", "most")):
            schedule(client, name, 100, topic=topic, KEYS="k")
        assert ids(client.look_up(key="k")) == ["C", "D"]

    def test_of_large_ones_no_more_than_the_newest_are_read(
        self, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("A", "B", "C"):
            schedule(client, name, 100, KEYS="k")
        monkeypatch.setattr(pending, "PIECE", 2)
        monkeypatch.setattr(pending, "MAX_BYTES_SCANNED", 1)
        assert ids(client.look_up(key="k")) == ["B", "C"]

    @pytest.mark.parametrize("piece", [1, 2, 3, 5, 9])
    def test_many_with_one_key_are_found_piece_by_piece(
        self, client: MemoryClient, monkeypatch: pytest.MonkeyPatch, piece: int
    ) -> None:
        monkeypatch.setattr(pending, "PIECE", piece)
        for number in range(9):
            tag = "red" if number % 3 else "blue"
            schedule(client, str(number), 900 - number * 100, KEYS="k", TAGS=tag)
        assert ids(client.look_up(key="k")) == list("876543210")
        page, cursor = client.look_up_page(key="k", limit=4)
        assert ids(page) == list("8765")
        page, cursor = client.look_up_page(key="k", limit=5, cursor=cursor)
        assert (ids(page), cursor) == (list("43210"), None)
        assert ids(client.look_up(key="k", tag="blue")) == list("630")

    def test_what_changes_between_two_pieces_is_shown_as_it_is_then(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pending, "PIECE", 1)
        for number in range(3):
            schedule(client, str(number), 60_000 + number, KEYS="k")
        asked = client.send(RequestCode.LOOK_UP_TIMERS, {"key": "k"})
        for _ in range(2):
            gateway.reactor.turn()
        gateway.connect().ask(RequestCode.ABORT_TIMERS, {"id": "1"})
        gateway.settle()
        answer = client.answer(asked)
        assert answer is not None
        assert ids(json.loads(answer.body)["messages"]) == ["0", "2"]

    def test_only_topics_where_any_is_pending_are_searched(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """There may be a hundred thousand others, and a count of many messages searches them for each page."""
        searched: list[list[bytes]] = []
        search = scan_with_key

        def note(store: Any, topics: Iterable[bytes], *rest: Any, **options: Any) -> Any:
            searched.append(sorted(topics))
            return search(store, searched[-1], *rest, **options)

        monkeypatch.setattr(pending, "scan_with_key", note)
        schedule(client, "A", 500, KEYS="k")
        client.send_message("more", "now", KEYS="k")
        assert ids(client.look_up(key="k")) == ["A"]
        # One whose send is still in the open batch counts too.
        last = {"KEYS": "k", "UNIQ_KEY": "B", "TIMER_DELAY_MS": "900"}
        other = gateway.connect()
        other.send(
            RequestCode.SEND_MESSAGE_V2,
            other.send_fields("last", properties=join(last)),
            b"body",
        )
        assert ids(client.look_up(key="k")) == ["A", "B"]
        assert searched == [[b"orders"], [b"last", b"orders"]]
        gateway.advance(1_000)
        assert client.look_up(key="k") == []
        assert ids(client.look_up(key="k", state="fired")) == ["A", "B"]

    @pytest.mark.parametrize("state", ["pending", "any"])
    def test_in_a_deleted_topic(self, client: MemoryClient, state: str) -> None:
        schedule(client, "A", 500, KEYS="k")
        client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
        assert ids(client.look_up(key="k", state=state)) == ["A"]

    def test_large_messages_page_by_page(
        self, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lookup, "MAX_FOUND_BYTES", 1)
        for name, delay_ms in (("A", 300), ("B", 100), ("C", 200)):
            schedule(client, name, delay_ms, KEYS="k")
        found: list[object] = []
        cursor: str | None = ""
        while cursor is not None:
            page, cursor = client.look_up_page(key="k", cursor=cursor)
            assert len(page) == 1
            found += ids(page)
        assert found == ["B", "C", "A"]
        assert {one["msgId"] for one in client.abort(topic="orders", key="k")} == {"A", "B", "C"}

    def test_topic(self, client: MemoryClient) -> None:
        schedule(client, "A", 500, KEYS="k")
        schedule(client, "B", 100, "bills", KEYS="k")
        assert ids(client.look_up(key="k")) == ["B", "A"]
        assert ids(client.look_up(key="k", topic="orders")) == ["A"]
        assert client.look_up(key="k", topic="none") == []

    def test_states(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        schedule(client, "A", 100, KEYS="k")
        schedule(client, "B", 900, KEYS="k")
        schedule(client, "C", 900, KEYS="k")
        client.send_message(UNIQ_KEY="D", KEYS="k")
        client.abort(id="C")
        gateway.advance(100)
        for state, expected in (
            ("pending", ["B"]),
            ("fired", ["A"]),
            ("aborted", ["C"]),
            ("any", ["D", "A", "B", "C"]),
        ):
            assert ids(client.look_up(key="k", state=state)) == expected

    def test_time_and_tag(self, client: MemoryClient) -> None:
        schedule(client, "A", 100, KEYS="k", TAGS="red")
        schedule(client, "B", 200, KEYS="k", TAGS="blue")
        schedule(client, "C", 300, KEYS="k", TAGS="red")
        assert ids(client.look_up(key="k", tag="red")) == ["A", "C"]
        assert ids(client.look_up(key="k", begin=START_MS + 200)) == ["B", "C"]
        assert ids(client.look_up(key="k", end=START_MS + 200)) == ["A"]

    def test_pages(self, client: MemoryClient) -> None:
        client.send_batch(
            (f"{n}", {"UNIQ_KEY": f"{n}", "KEYS": "k", "TIMER_DELAY_MS": str(10 + n // 2)})
            for n in range(25)
        )
        found: list[dict[str, object]] = []
        cursor: str | None = ""
        pages = 0
        while cursor is not None:
            page, cursor = client.look_up_page(key="k", limit=10, cursor=cursor)
            found += page
            pages += 1
        assert ids(found) == [str(n) for n in range(25)]
        assert pages == 3


class TestScan:
    def test_all_in_the_order_of_due_times(self, client: MemoryClient) -> None:
        schedule(client, "C", 300)
        schedule(client, "A", 100, "bills")
        schedule(client, "B", 200)
        client.send_message("orders", "untimed")
        assert ids(client.look_up()) == ["A", "B", "C"]

    def test_topic(self, client: MemoryClient) -> None:
        for number in range(30):
            schedule(client, str(number), 100 * (number % 7) + 500, f"topic{number % 3}")
        for topic in range(3):
            expected = sorted(
                (number for number in range(30) if number % 3 == topic),
                key=lambda number: (number % 7, number),
            )
            assert ids(client.look_up(topic=f"topic{topic}")) == [str(n) for n in expected]
        assert client.look_up(topic="topic") == []
        assert client.look_up(topic="topic00") == []

    def test_tag(self, client: MemoryClient) -> None:
        # These two have the same hash.
        schedule(client, "A", 100, TAGS="Aa")
        schedule(client, "B", 100, TAGS="BB")
        schedule(client, "C", 100)
        assert ids(client.look_up(tag="Aa")) == ["A"]
        assert ids(client.look_up(tag="BB")) == ["B"]
        assert client.look_up(tag="C#") == []
        assert client.look_up(tag="none") == []

    @pytest.mark.parametrize("topic", ["", "orders"])
    def test_time_range(self, client: MemoryClient, topic: str) -> None:
        for delay_ms in (999, 1_000, 1_001, 1_999, 2_000, 5_000):
            schedule(client, str(delay_ms), delay_ms)
        found = client.look_up(begin=START_MS + 1_000, end=START_MS + 2_000, topic=topic)
        assert ids(found) == ["1000", "1001", "1999"]
        assert ids(client.look_up(begin=START_MS + 2_001, topic=topic)) == ["5000"]
        assert client.look_up(begin=START_MS + 2_000, end=START_MS + 2_000, topic=topic) == []
        assert client.look_up(end=0, topic=topic) == []
        assert len(client.look_up(begin=-5, topic=topic)) == 6

    def test_limit(self, client: MemoryClient) -> None:
        client.send_batch((f"{n}", {"TIMER_DELAY_MS": "100"}) for n in range(1_100))
        assert len(client.look_up()) == 100
        assert len(client.look_up(limit=7)) == 7
        assert len(client.look_up(limit=0)) == 1
        assert len(client.look_up(limit=-3)) == 1
        assert len(client.look_up(limit=100_000)) == 1_000

    @pytest.mark.parametrize("asked", [{"state": "fired"}, {"state": "any", "topic": "orders"}])
    def test_not_every_state_is_listed(self, client: MemoryClient, asked: dict[str, str]) -> None:
        answer = client.ask(RequestCode.LOOK_UP_TIMERS, asked)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert answer.remark is not None
        assert "name one" in answer.remark

    def test_handles(self, client: MemoryClient) -> None:
        schedule(client, "A", 100)
        [message] = client.look_up()
        handle = RecallHandle.parse(message["recallHandle"])
        assert handle == RecallHandle("orders", "broker-a", START_MS + 100, "A")


class TestCursor:
    def pages(self, client: MemoryClient, **fields: object) -> list[list[object]]:
        """Return all pages of a look-up."""
        found = []
        cursor: str | None = ""
        while cursor is not None:
            page, cursor = client.look_up_page(cursor=cursor, **fields)
            found.append(ids(page))
        return found

    @pytest.mark.parametrize("topic", ["", "orders"])
    def test_every_message_once(self, client: MemoryClient, topic: str) -> None:
        for number in range(23):
            schedule(client, str(number), 100 + number // 5)
            schedule(client, f"other{number}", 100 + number // 5, "bills")
        pages = self.pages(client, limit=4, topic=topic)
        found = [one for page in pages for one in page if not str(one).startswith("other")]
        assert found == [str(number) for number in range(23)]
        assert max(len(page) for page in pages) == 4

    def test_while_messages_fire_and_arrive(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        """Messages that were always there are listed exactly once, whatever happens before or behind the cursor."""
        for number in range(12):
            schedule(client, f"s{number:02}", 1_000 + 100 * number)
        for number in range(5):
            schedule(client, f"f{number}", 100 * number + 50)
        seen: list[object] = []
        cursor: str | None = ""
        step = 0
        while cursor is not None:
            page, cursor = client.look_up_page(limit=3, cursor=cursor)
            seen += ids(page)
            gateway.advance(150)
            schedule(client, f"early{step}", 10)
            schedule(client, f"late{step}", 60_000 + step)
            client.abort(id=f"late{step - 1}")
            step += 1
            assert step < 30
        steady = [one for one in seen if str(one).startswith("s")]
        # A message that fires before its page is requested is rightly missing.
        expected = [f"s{number:02}" for number in range(12)]
        assert steady == [one for one in expected if one in set(steady)]
        assert len(seen) == len(set(seen))

    def test_the_message_under_the_cursor_goes(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        for number in range(6):
            schedule(client, str(number), 1_000 + number)
        page, cursor = client.look_up_page(limit=3)
        assert cursor is not None
        client.abort(id="2")
        assert ids(page) + ids(client.look_up(cursor=cursor)) == ["0", "1", "2", "3", "4", "5"]

    def test_survives_a_restart(self, gateway: MemoryGateway, client: MemoryClient) -> None:
        for number in range(6):
            schedule(client, str(number), 1_000 + number)
        _, cursor = client.look_up_page(limit=3)
        gateway.restart()
        assert ids(gateway.connect().look_up(cursor=cursor)) == ["3", "4", "5"]

    def test_a_tag_filter_does_not_end_the_pages(self, client: MemoryClient) -> None:
        for number in range(20):
            schedule(client, str(number), 1_000 + number, TAGS="Aa" if number % 2 else "BB")
        pages = self.pages(client, limit=3, tag="Aa")
        assert [one for page in pages for one in page] == [str(n) for n in range(1, 20, 2)]

    @pytest.mark.parametrize("cursor", ["x", "abc", "00", "zz" * 20, "00" * 8])
    def test_rubbish(self, client: MemoryClient, cursor: str) -> None:
        answer = client.ask(RequestCode.LOOK_UP_TIMERS, {"cursor": cursor})
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert answer.remark == "the cursor is not one of this gateway"

    @pytest.mark.parametrize("cursor", ["ff" * 9, "ff" * 600, "00" * 16, "00" * 5_000])
    def test_any_bytes_do_no_harm(self, client: MemoryClient, cursor: str) -> None:
        schedule(client, "A", 100)
        for fields in ({}, {"topic": "orders"}, {"key": "k"}, {"id": "A"}):
            answer = client.ask(RequestCode.LOOK_UP_TIMERS, {"cursor": cursor, **fields})
            assert answer.code == ResponseCode.SUCCESS
        assert ids(client.look_up()) == ["A"]


@pytest.mark.parametrize(
    "fields",
    [
        {"state": "gone"},
        {"limit": "many"},
        {"begin": "yesterday"},
        {"end": str(2**63)},
        {"limit": str(2**31)},
    ],
)
def test_fields_that_cannot_be_read(client: MemoryClient, fields: dict[str, str]) -> None:
    assert client.ask(RequestCode.LOOK_UP_TIMERS, fields).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    "fields",
    [{"topic": "t" * 600}, {"key": "k" * 9_000}, {"tag": "t" * 9_000}, {"end": str(2**63 - 1)}],
)
def test_long_values(client: MemoryClient, fields: dict[str, str]) -> None:
    schedule(client, "A", 100)
    answer = client.ask(RequestCode.LOOK_UP_TIMERS, fields)
    assert answer.code == ResponseCode.SUCCESS
    assert ids(json.loads(answer.body)["messages"]) == (["A"] if "end" in fields else [])


def test_counts_by_topic(gateway: MemoryGateway, client: MemoryClient) -> None:
    """Request 61 counts pending messages, and is never negative."""
    schedule(client, "A", 100)
    schedule(client, "B", 200)
    schedule(client, "C", 200, "bills")
    schedule(client, "D", 900, "bills")
    client.abort(id="D")
    client.abort(id="D")

    def counts() -> dict[str, int]:
        answer = client.ask(RequestCode.GET_TIMER_METRICS)
        timing = json.loads(answer.body)["timingCount"]
        return {topic: entry["count"] for topic, entry in timing.items()}

    assert counts() == {"orders": 2, "bills": 1}
    gateway.advance(100)
    assert counts() == {"orders": 1, "bills": 1}
    gateway.advance(100)
    assert counts() == {}


def test_one_whose_row_cannot_be_read_keeps_no_other_from_being_found(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    """No response says that there is no such message, because it may still fire."""
    for name in ("ID1", "ID2"):
        schedule(client, name, 1_000, KEYS="k")
    handle = RecallHandle("orders", "broker-a", START_MS + 1_000, "ID1").encode()
    row = id_key(b"ID1", (1).to_bytes(8))
    with damaged_row(gateway, "ids", row, lambda _: b"short"):
        client = gateway.connect()
        assert ids(client.look_up(topic="orders", key="k", state="any")) == ["ID2"]
        for answer in (
            client.ask(RequestCode.LOOK_UP_TIMERS, {"id": "ID1"}),
            client.ask(RequestCode.ABORT_TIMERS, {"id": "ID1"}),
            client.ask(RequestCode.ABORT_TIMERS, {"handle": handle}),
            client.ask(RequestCode.RESCHEDULE_TIMERS, {"id": "ID1", "delay": "0"}),
            client.ask(RequestCode.RESCHEDULE_TIMERS, {"handle": handle, "delay": "0"}),
            client.recall("orders", handle),
        ):
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "message 1 cannot be read: see 'tidegate fsck'" in (answer.remark or "")
        assert client.abort(topic="orders", key="k")[0]["outcome"] == "aborted"
        assert len(gateway.store.damaged) == 1


@pytest.mark.parametrize(
    ("table", "key"), [("ids", id_key(b"ID1", pack_u64(1))), ("messages", pack_u64(1))]
)
def test_nobody_who_names_one_that_cannot_be_read_is_told_that_there_is_none(
    gateway: MemoryGateway, client: MemoryClient, table: str, key: bytes
) -> None:
    """The damage may be in the record or in the row that leads to it. The message may still fire, or may have fired."""
    schedule(client, "ID1", 1_000, KEYS="k")
    with damaged_row(gateway, table, key, lambda _: b"short"):
        client = gateway.connect()
        for names in ({"id": "ID1"}, {"topic": "orders", "key": "k"}):
            for answer in (
                client.ask(RequestCode.ABORT_TIMERS, names),
                client.ask(RequestCode.RESCHEDULE_TIMERS, {**names, "delay": "0"}),
            ):
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert "message 1 cannot be read: see 'tidegate fsck'" in (answer.remark or "")
        assert client.abort(topic="orders", key="none")[0]["outcome"] == "unknown"


BY_KEY = {"topic": "orders", "key": "k"}
MANY = {"topic": "orders"}
CHANGES = [
    (RequestCode.ABORT_TIMERS, BY_KEY),
    (RequestCode.RESCHEDULE_TIMERS, {**BY_KEY, "delay": "1"}),
    (RequestCode.BULK_CHANGE_TIMERS, {**MANY, "action": "abort"}),
    (RequestCode.BULK_CHANGE_TIMERS, {**MANY, "action": "reschedule", "delay": "1"}),
]
"""Requests that change many messages, and wait for a turn while others have theirs."""


class TestManyAtOnce:
    """A hundred messages take 5 ms, and hundreds of clients may ask for them in the same turn."""

    @pytest.fixture
    def looks(self, monkeypatch: pytest.MonkeyPatch) -> list[object]:
        """Return a list that gets an item with each step of a look-up, a count or a change, and each change by key."""
        looks: list[object] = []
        for kind, name in (
            (PendingMessages, "select"),
            (pending, "find_by_sequences"),
            (PendingMessages, "places_with_key"),
        ):
            look = getattr(kind, name)

            def looked(*args: Any, look: Any = look, **options: Any) -> Any:
                looks.append(args)
                return look(*args, **options)

            monkeypatch.setattr(kind, name, looked)
        return looks

    @pytest.mark.parametrize(
        ("code", "ext", "changes"),
        [
            (RequestCode.LOOK_UP_TIMERS, {"topic": "orders"}, False),
            (RequestCode.BULK_CHANGE_TIMERS, {"action": "count", "topic": "orders"}, False),
            *((code, ext, True) for code, ext in CHANGES),
        ],
    )
    def test_one_has_its_turn_at_a_time_and_who_is_gone_has_only_changes_made(
        self,
        gateway: MemoryGateway,
        looks: list[object],
        code: int,
        ext: dict[str, str],
        *,
        changes: bool,
    ) -> None:
        schedule(gateway.connect(), "ID1", 60_000)
        clients = [gateway.connect() for _ in range(5)]
        asked = [client.send(code, ext) for client in clients]
        # The first change need not wait: its client's next request comes after it.
        assert len(looks) == (1 if changes else 0)
        clients.pop(2).disconnect()
        asked.pop(2)
        before = len(looks)
        while gateway.reactor.turn():
            assert len(looks) - before <= 1
            before = len(looks)
        assert before == (5 if changes else 4)
        for client, opaque in zip(clients, asked, strict=True):
            answer = client.answer(opaque)
            assert answer is not None
            assert answer.code == ResponseCode.SUCCESS

    def test_a_page_takes_a_turn_for_each_piece(
        self, gateway: MemoryGateway, looks: list[object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pending, "PIECE", 3)
        clients = [gateway.connect() for _ in range(2)]
        for number in range(8):
            schedule(clients[0], str(number), 60_000 + number)
        asked = [client.send(RequestCode.LOOK_UP_TIMERS, {"limit": "7"}) for client in clients]
        before = 0
        while gateway.reactor.turn():
            assert len(looks) - before <= 1
            before = len(looks)
        assert before == 2 * 3
        for client, opaque in zip(clients, asked, strict=True):
            answer = client.answer(opaque)
            assert answer is not None
            page = json.loads(answer.body)
            assert ids(page["messages"]) == [str(number) for number in range(7)]
            assert ids(client.look_up(cursor=page["cursor"])) == ["7"]

    def test_topics_are_searched_for_a_key_some_a_turn(
        self, gateway: MemoryGateway, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Of 100,000 all take 110 ms."""
        searched: list[int] = []
        search = topics_with_key

        def note(store: Any, topics: list[bytes], key: bytes) -> list[bytes]:
            searched.append(len(topics))
            return search(store, topics, key)

        monkeypatch.setattr(pending, "topics_with_key", note)
        monkeypatch.setattr(pending, "TOPICS_AT_ONCE", 2)
        for number in range(5):
            schedule(client, str(number), 60_000 + number, f"t{number}", KEYS=f"k{number % 2}")
        asked = client.send(RequestCode.LOOK_UP_TIMERS, {"key": "k0"})
        before = 0
        while gateway.reactor.turn():
            assert len(searched) - before <= 1
            before = len(searched)
        assert searched == [2, 2, 1]
        answer = client.answer(asked)
        assert answer is not None
        assert ids(json.loads(answer.body)["messages"]) == ["0", "2", "4"]

    def test_a_page_ends_after_some_turns_however_little_is_found(
        self, client: MemoryClient, looks: list[object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(scan, "MAX_TIMERS_SCANNED", 2)
        monkeypatch.setattr(pending, "MAX_PIECES", 3)
        for number in range(8):
            schedule(client, str(number), 60_000 + number, TAGS="wanted" if number > 4 else "other")
        page, cursor = client.look_up_page(tag="wanted")
        assert (ids(page), len(looks)) == (["5"], 3)
        page, cursor = client.look_up_page(tag="wanted", cursor=cursor)
        assert (ids(page), cursor) == (["6", "7"], None)

    def test_a_change_waits_too_in_the_turn_in_which_another_had_its_own(
        self, gateway: MemoryGateway, looks: list[object]
    ) -> None:
        clients = [gateway.connect() for _ in range(3)]
        for client in clients[:2]:
            client.send(RequestCode.ABORT_TIMERS, BY_KEY)
        gateway.reactor.turn()
        assert len(looks) == 2
        clients[2].send(RequestCode.ABORT_TIMERS, BY_KEY)
        assert len(looks) == 2
        gateway.reactor.turn()
        assert len(looks) == 3

    @pytest.mark.parametrize(
        ("code", "ext"),
        [
            (RequestCode.ABORT_TIMERS, BY_KEY),
            (RequestCode.RESCHEDULE_TIMERS, {**BY_KEY, "shift": "1000"}),
        ],
    )
    def test_a_change_of_many_with_a_key_is_made_in_parts(
        self,
        gateway: MemoryGateway,
        client: MemoryClient,
        monkeypatch: pytest.MonkeyPatch,
        code: int,
        ext: dict[str, str],
    ) -> None:
        """A thousand take 200 ms. What is on disk when one part is refused stays so, and is told."""
        monkeypatch.setattr(pending, "PIECE", 3)
        for number in range(8):
            schedule(client, str(number), 60_000, KEYS="k")
        commits = gateway.store.commits
        answer = client.ask(code, ext)
        results = json.loads(answer.body)["results"]
        assert ids(results) == list("01234567")
        assert {one["outcome"] for one in results} <= {"aborted", "rescheduled"}
        assert gateway.store.commits == commits + 3
        lines = [line for line in read_lines(gateway.data) if "msgId" in line]
        assert [(line["msgId"], line["from"]) for line in lines] == [
            (number, client.protocol.address) for number in "01234567"
        ]

    @pytest.mark.parametrize("stored", [0, 1, 2])
    def test_a_part_that_is_refused_ends_it_and_what_was_made_before_is_told(
        self,
        gateway: MemoryGateway,
        client: MemoryClient,
        monkeypatch: pytest.MonkeyPatch,
        stored: int,
    ) -> None:
        monkeypatch.setattr(pending, "PIECE", 3)
        for number in range(8):
            schedule(client, str(number), 60_000, KEYS="k")
        parts: list[object] = []
        abort_places = PendingMessages._abort_places

        with ExitStack() as fault:

            def aborted(*args: Any) -> Any:
                if len(parts) == stored:
                    fault.enter_context(commits_fail(gateway))
                parts.append(args)
                return abort_places(*args)

            monkeypatch.setattr(PendingMessages, "_abort_places", aborted)
            answer = client.ask(RequestCode.ABORT_TIMERS, BY_KEY)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert len(parts) == stored + 1
        assert (answer.ext().get("mayHaveChanged") == "true") == bool(stored)
        assert ("; a part of the change was made before" in str(answer.remark)) == bool(stored)
        assert len(client.look_up(key="k", state="aborted")) == 3 * stored

    @pytest.mark.parametrize("leaves", [False, True], ids=["oneway", "gone"])
    @pytest.mark.parametrize(("code", "ext"), CHANGES)
    def test_a_change_is_made_though_its_client_waits_for_no_answer(
        self, gateway: MemoryGateway, code: int, ext: dict[str, str], *, leaves: bool
    ) -> None:
        clients = [gateway.connect() for _ in range(3)]
        schedule(clients[0], "ID1", 60_000, KEYS="k")
        clients[0].send(RequestCode.ABORT_TIMERS, {"topic": "orders", "key": "other"})
        clients[1].send(code, ext, oneway=not leaves)
        clients[1].disconnect()
        gateway.settle()
        [found] = clients[2].look_up(id="ID1", state="any")
        assert found["rescheduledMs"] or found["state"] == "aborted"
        [line] = read_lines(gateway.data)
        assert line["from"] == clients[1].protocol.address

    @pytest.mark.parametrize(("code", "ext"), CHANGES)
    def test_what_is_sent_behind_a_change_comes_after_it(
        self, gateway: MemoryGateway, client: MemoryClient, code: int, ext: dict[str, str]
    ) -> None:
        schedule(client, "old", 60_000, KEYS="k")
        client.send(code, ext)
        schedule(client, "new", 60_000, KEYS="k")
        [found] = client.look_up(id="new")
        assert (found["dueMs"], found["rescheduledMs"]) == (START_MS + 60_000, 0)
        if "delay" not in ext:
            assert client.look_up(id="old") == []

    @pytest.mark.parametrize("version", [513, 475])
    @pytest.mark.parametrize(("code", "ext"), CHANGES)
    def test_none_is_made_once_the_gateway_stops(
        self, gateway: MemoryGateway, code: int, ext: dict[str, str], version: int
    ) -> None:
        clients = [gateway.connect() for _ in range(4)]
        schedule(clients[0], "ID1", 60_000, KEYS="k")
        asked = [clients[0].send(RequestCode.ABORT_TIMERS, {"topic": "orders", "key": "other"})]
        asked += [client.send(code, ext, version=version) for client in clients[1:]]
        clients.pop().disconnect()
        stopped = gateway.service.stop()
        first, *others = [
            client.answer(opaque) for client, opaque in zip(clients, asked, strict=False)
        ]
        assert first is not None
        assert first.code == ResponseCode.SUCCESS
        told = [other and (other.code, other.remark) for other in others]
        refused = (ResponseCode.GO_AWAY, "the gateway is stopping") if version > 475 else None
        assert told == [refused] * 2
        gateway.settle()
        assert stopped.called
        assert list(read_lines(gateway.data)) == []
        gateway.start()
        [found] = gateway.connect().look_up(id="ID1")
        assert found["rescheduledMs"] == 0
