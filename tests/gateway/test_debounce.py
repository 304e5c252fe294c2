"""Debounce by property: the last message with a key replaces the earlier ones."""

from __future__ import annotations

import pytest

from gateway.wire.codes import RequestCode, ResponseCode, SysFlag
from gateway.wire.commands import Command
from storage.keys import id_key, queue_prefix
from tests.gateway.faults import damaged_row
from tests.gateway.memory import START_MS, MemoryClient, MemoryGateway, bodies
from tests.gateway.tools import create_topic, ok
from tests.gateway.transactions import Half, begin, end


def debounced(
    client: MemoryClient,
    body: str,
    delay_ms: int | None,
    key: str = "k",
    topic: str = "orders",
    **more: str,
) -> Command:
    """Send a message that replaces the others with its key."""
    time = {"TIMER_DELAY_MS": str(delay_ms)} if delay_ms is not None else {}
    properties = {"UNIQ_KEY": body, "KEYS": key, "TIDEGATE_DEBOUNCE": key, **time, **more}
    return client.send_message(topic, body, properties)


def test_the_last_one_wins(gateway: MemoryGateway, client: MemoryClient) -> None:
    for number, replaced in enumerate(("0", "1", "1")):
        answer = debounced(client, f"m{number}", 1_000)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert answer.ext()["replaced"] == replaced
        gateway.advance(400)
    assert [one["state"] for one in client.look_up(key="k", state="any")] == [
        "aborted",
        "aborted",
        "pending",
    ]
    gateway.advance(599)
    assert client.pull() == []
    gateway.advance(1)
    assert bodies(client.pull()) == ["m2"]
    gateway.advance(10_000)
    assert len(client.pull()) == 1
    # A fired message is not replaced.
    assert debounced(client, "next", 1_000).ext()["replaced"] == "0"


def test_nothing_is_replaced_by_what_has_no_queue_that_can_be_read(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    ok(debounced(client, "a", 1_000))
    with damaged_row(gateway, "ends", queue_prefix(b"orders", 0), lambda _: b"short"):
        refused = debounced(gateway.connect(), "b", None)
        assert "see 'tidegate fsck'" in (refused.remark or "")
    gateway.advance(1_000)
    assert bodies(gateway.connect().pull()) == ["a"]


def test_one_whose_row_cannot_be_read_has_no_batch_refused(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    client.send_message("orders", "a", {"UNIQ_KEY": "a", "KEYS": "k", "TIMER_DELAY_MS": "1000"})
    with damaged_row(gateway, "ids", id_key(b"a", (1).to_bytes(8)), lambda _: b"short"):
        client = gateway.connect()
        ok(debounced(client, "b", 1_000))
        assert ok(debounced(client, "c", 1_000)).ext()["replaced"] == "1"
    # Nothing here repairs what the debounce skipped, so the message is aborted.
    gateway.connect().abort(id="a")


@pytest.mark.parametrize("space", ["\t", "\u3000"])
def test_only_blanks_divide_keys(client: MemoryClient, space: str) -> None:
    key = f"k{space}k"
    ok(debounced(client, "a", 1_000, key))
    assert debounced(client, "b", 1_000, key).ext()["replaced"] == "1"
    refused = debounced(client, "c", 1_000, "k", KEYS=key)
    assert "is not one of the keys" in (refused.remark or "")


def test_nothing_is_replaced_where_nothing_may_be_taken_back(client: MemoryClient) -> None:
    ok(debounced(client, "a", 1_000))
    ok(client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"recallMessageEnable=false"))
    recurring = {"TIDEGATE_EVERY": "1h", "TIDEGATE_NAME": "n"}
    transaction = {"TRAN_MSG": "true", "PGROUP": "producers"}
    for more in ({}, recurring, transaction):
        refused = debounced(client, "b", None if more else 1_000, **more)
        assert refused.code == ResponseCode.NO_PERMISSION
        assert "recall_enabled" in (refused.remark or "")
    [message] = client.look_up(key="k", state="any")
    assert (message["msgId"], message["state"]) == ("a", "pending")
    ok(client.send_message(properties=recurring))


class TestLimits:
    """The messages that it replaces make room for it."""

    def test_one_that_replaces_another_needs_no_room(self, client: MemoryClient) -> None:
        ok(create_topic(client, "orders", attributes="+max.held.messages=2"))
        ok(debounced(client, "a", 1_000, "k1"))
        ok(debounced(client, "b", 1_000, "k2"))
        assert debounced(client, "c", 1_000, "k1").ext()["replaced"] == "1"
        refused = debounced(client, "d", 1_000, "k3")
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "holds 2 messages" in (refused.remark or "")
        # One message is replaced, but two would be added.
        both = {"KEYS": "k2 x", "TIDEGATE_DEBOUNCE": "k2", "TIMER_DELAY_MS": "1000"}
        other = {"TIMER_DELAY_MS": "1000"}
        assert client.send_batch([("e", both), ("f", other)]).code == ResponseCode.SYSTEM_ERROR
        assert sorted(one["msgId"] for one in client.look_up()) == ["b", "c"]

    def test_what_has_fired_or_was_aborted_makes_none(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        ok(create_topic(client, "orders", attributes="+max.held.messages=1"))
        ok(debounced(client, "a", 100))
        gateway.advance(100)
        ok(hold(client, "b"))
        assert debounced(client, "c", 1_000).code == ResponseCode.SYSTEM_ERROR
        client.abort(id="b")
        ok(debounced(client, "c", 1_000))
        ok(client.ask(RequestCode.RESCHEDULE_TIMERS, {"id": "c", "delay": "5000"}))
        assert debounced(client, "d", 1_000).ext()["replaced"] == "1"
        client.abort(id="d")
        ok(hold(client, "e"))
        assert debounced(client, "f", 1_000).code == ResponseCode.SYSTEM_ERROR

    def test_what_waits_in_a_paused_topic_does(
        self, gateway: MemoryGateway, client: MemoryClient
    ) -> None:
        ok(create_topic(client, "orders", attributes="+max.held.messages=1"))
        ok(client.ask(RequestCode.PAUSE_TOPIC, {"topic": "orders"}))
        ok(debounced(client, "a", 100))
        gateway.advance(1_000)
        assert debounced(client, "b", 100).ext()["replaced"] == "1"

    def test_of_a_batch_the_last_one_is_counted(self, client: MemoryClient) -> None:
        ok(create_topic(client, "orders", attributes="+max.held.messages=1"))
        last = {"KEYS": "k", "TIDEGATE_DEBOUNCE": "k", "TIMER_DELAY_MS": "1000"}
        for _ in range(2):
            ok(client.send_batch([("1", last), ("2", last), ("3", last)]))
        assert len(client.look_up()) == 1

    def test_what_comes_with_it_for_now_counts_for_nothing(self, client: MemoryClient) -> None:
        ok(create_topic(client, "orders", attributes="+max.held.messages=1"))
        later = {"KEYS": "k", "TIDEGATE_DEBOUNCE": "k", "TIMER_DELAY_MS": "1000"}
        ok(client.send_batch([("now", {}), ("later", later)]))
        assert bodies(client.pull()) == ["now"]
        assert len(client.look_up()) == 1

    @pytest.mark.parametrize("limit", ["max.held.messages=1", "max.held.bytes=50"])
    def test_one_that_replaces_as_much_needs_no_room_above_a_limit_that_was_lowered(
        self, client: MemoryClient, limit: str
    ) -> None:
        for name in "abc":
            ok(debounced(client, name, 1_000, f"k{name}", UNIQ_KEY=name))
        ok(create_topic(client, "orders", attributes=f"+{limit}"))
        assert debounced(client, "d", 1_000, "ka", UNIQ_KEY="d").ext()["replaced"] == "1"
        refused = debounced(client, "e", 1_000, "ke", UNIQ_KEY="e")
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert debounced(client, "f", 1_000, "kb", UNIQ_KEY="f").ext()["replaced"] == "1"

    def test_bytes(self, client: MemoryClient) -> None:
        ok(create_topic(client, "orders", attributes="+max.held.bytes=64KiB"))
        ok(debounced(client, "a" * 40_000, 1_000, UNIQ_KEY="a"))
        refused = debounced(client, "b" * 40_000, 1_000, "other", UNIQ_KEY="b")
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert debounced(client, "c" * 40_000, 1_000, UNIQ_KEY="c").ext()["replaced"] == "1"


def hold(client: MemoryClient, name: str) -> Command:
    """Send a message for later that replaces no other."""
    return client.send_message("orders", name, UNIQ_KEY=name, TIMER_DELAY_MS="60000")


def test_others_are_left_alone(gateway: MemoryGateway, client: MemoryClient) -> None:
    debounced(client, "a", 500, "k1")
    debounced(client, "b", 500, "k2")
    debounced(client, "c", 500, "k1", "bills")
    client.send_message("orders", "d", UNIQ_KEY="d", TIMER_DELAY_MS="500")
    assert debounced(client, "e", 500, "k1").ext()["replaced"] == "1"
    gateway.advance(500)
    assert bodies(client.pull()) == ["b", "d", "e"]
    assert bodies(client.pull("bills")) == ["c"]


def test_messages_that_were_sent_without_are_replaced(client: MemoryClient) -> None:
    for name in ("a", "b"):
        client.send_message("orders", name, UNIQ_KEY=name, KEYS="x k", TIMER_DELAY_MS="500")
    assert debounced(client, "c", 500).ext()["replaced"] == "2"


def test_a_message_for_now_takes_their_place_too(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    debounced(client, "later", 500)
    assert debounced(client, "now", None).ext()["replaced"] == "1"
    gateway.advance(500)
    assert bodies(client.pull()) == ["now"]


def test_sends_in_one_turn(gateway: MemoryGateway) -> None:
    """The sends are in one batch, and the later one still replaces the earlier ones."""
    clients = [gateway.connect() for _ in range(3)]
    opaques = []
    for number, client in enumerate(clients):
        ext = client.send_fields(
            properties=f"KEYS\x01k\x02TIDEGATE_DEBOUNCE\x01k\x02TIMER_DELAY_MS\x01{100 - number}\x02"
        )
        opaques.append(client.send(310, ext, b"%d" % number))
    answers = [client.answer(opaque) for client, opaque in zip(clients, opaques, strict=True)]
    assert [answer.ext()["replaced"] for answer in answers if answer] == ["0", "1", "1"]
    gateway.advance(100)
    assert bodies(clients[0].pull()) == ["2"]


def test_items_of_a_batch(gateway: MemoryGateway, client: MemoryClient) -> None:
    properties = {"KEYS": "k", "TIDEGATE_DEBOUNCE": "k", "TIMER_DELAY_MS": "100"}
    assert (
        "replaced" not in client.send_batch([("0", properties | {"TIDEGATE_DEBOUNCE": ""})]).ext()
    )
    answer = client.send_batch((str(number), properties) for number in range(4))
    assert answer.ext()["replaced"] == "4", "one from before and three of the batch"
    gateway.advance(100)
    assert bodies(client.pull()) == ["3"]


def test_the_key_must_be_one_of_the_message(client: MemoryClient) -> None:
    answer = client.send_message(KEYS="kk other", TIDEGATE_DEBOUNCE="k", TIMER_DELAY_MS="100")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "is not one of the keys of the message" in (answer.remark or "")
    assert client.look_up() == []


def test_too_many_to_look_through(client: MemoryClient) -> None:
    client.send_batch((str(n), {"KEYS": "k", "TIMER_DELAY_MS": "9000"}) for n in range(2_001))
    answer = debounced(client, "x", 500)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "choose another key" in (answer.remark or "")
    assert len(client.look_up(limit=1_000)) == 1_000


def test_a_moved_message_is_replaced(gateway: MemoryGateway, client: MemoryClient) -> None:
    debounced(client, "a", 500)
    client.send_message(TIDEGATE_RESCHEDULE="a", TIMER_DELAY_MS="5000")
    assert debounced(client, "b", 500).ext()["replaced"] == "1"
    gateway.advance(10_000)
    assert bodies(client.pull()) == ["b"]


def test_retries_do_not_replace_one_another(gateway: MemoryGateway, client: MemoryClient) -> None:
    """Each original was delivered, so each failed one has to come back."""
    client.heartbeat("c1")
    for name in ("a", "b"):
        debounced(client, name, None)
    for message in client.pull():
        answer = client.ask(
            36,
            {"offset": str(message.physical_offset), "group": "consumers", "delayLevel": "1"},
        )
        assert answer.code == ResponseCode.SUCCESS
    gateway.advance(1_000)
    assert sorted(bodies(client.pull("%RETRY%consumers"))) == ["a", "b"]


def test_nor_do_those_that_clients_send(gateway: MemoryGateway, client: MemoryClient) -> None:
    """Java clients send such retries if they cannot send a message back, with its properties and a delay."""
    client.heartbeat("c1")
    for name in ("a", "b"):
        ok(debounced(client, name, None, topic="%RETRY%consumers", DELAY="1"))
    gateway.advance(1_000)
    assert bodies(client.pull("%RETRY%consumers")) == ["a", "b"]


def test_survives_a_crash(gateway: MemoryGateway, client: MemoryClient) -> None:
    debounced(client, "a", 500)
    gateway.crash()
    client = gateway.connect()
    assert debounced(client, "b", 500).ext()["replaced"] == "1"
    gateway.crash()
    gateway.advance(500)
    assert bodies(gateway.connect().pull()) == ["b"]
    assert gateway.now_ms == START_MS + 500


def begun(client: MemoryClient, **properties: str) -> Half:
    """Send the first half of a transaction for the message H."""
    return begin(client, "half", UNIQ_KEY="H", KEYS="k", **properties)


def test_a_transaction_debounces_when_it_is_committed(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    half = begun(client, TIDEGATE_DEBOUNCE="k", TIMER_DELAY_MS="500")
    debounced(client, "a", 9_000)
    ok(end(client, half, SysFlag.TRANSACTION_COMMIT))
    assert [one["msgId"] for one in client.look_up()] == ["H"]
    assert debounced(client, "b", 700).ext()["replaced"] == "1"
    gateway.advance(1_000)
    assert bodies(client.pull()) == ["b"]


def test_what_was_sent_before_and_committed_after_the_last_one_is_replaced(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    half = begun(client, TIMER_DELAY_MS="500")
    debounced(client, "a", 500)
    ok(end(client, half, SysFlag.TRANSACTION_COMMIT))
    assert debounced(client, "b", 500).ext()["replaced"] == "2"
    gateway.advance(500)
    assert bodies(client.pull()) == ["b"]
