"""Batches: stored whole or not at all, in one queue, at consecutive offsets."""

from __future__ import annotations

import pytest

from gateway import intake
from gateway.handlers import sending
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.messages import BatchItem, encode_batch, offset_msg_id
from gateway.wire.properties import find
from storage import Store, count_candidates
from tests.gateway.memory import (
    START_MS,
    MemoryClient,
    MemoryGateway,
    bodies,
    properties_of,
    property_string,
)
from tests.gateway.tools import ok


def test_answer_and_records(client: MemoryClient) -> None:
    client.send_message(fields={"queue": 2})
    answer = client.send_batch([("a", {"TAGS": "red"}), ("b", {}), ("c", {"KEYS": "k"})], queue=2)
    assert answer.code == ResponseCode.SUCCESS
    ext = answer.ext()
    assert (ext["queueId"], ext["queueOffset"]) == ("2", "1")
    assert "transactionId" not in ext
    messages = client.pull(queue=2, offset=1)
    assert bodies(messages) == ["a", "b", "c"]
    assert [message.queue_offset for message in messages] == [1, 2, 3]
    assert ext["msgId"].split(",") == [
        offset_msg_id(message.store_host, message.physical_offset) for message in messages
    ]
    assert find(messages[0].properties, "TAGS") == "red"
    added = {"MSG_REGION", "TRACE_ON", "CLUSTER"}
    assert not any(added & set(properties_of(message)) for message in messages)


def test_the_id_in_the_header_comes_back(client: MemoryClient) -> None:
    answer = client.send_batch([("a", {})], properties=property_string({"UNIQ_KEY": "BATCH"}))
    assert answer.ext()["transactionId"] == "BATCH"


def test_a_header_may_have_no_properties(client: MemoryClient) -> None:
    fields = client.send_fields(batch=True)
    del fields["i"]
    body = encode_batch([BatchItem(0, b"a", "")])
    ok(client.ask(RequestCode.SEND_BATCH_MESSAGE, fields, body))
    assert bodies(client.pull()) == ["a"]


@pytest.mark.parametrize(
    ("code", "batch", "stored"),
    [
        (RequestCode.SEND_MESSAGE_V2, True, ["a", "b"]),
        (RequestCode.SEND_BATCH_MESSAGE, False, None),
    ],
)
def test_the_flag_decides_and_not_the_code(
    client: MemoryClient, code: int, batch: bool, stored: list[str] | None
) -> None:
    body = bytes.fromhex(
        "00000017 00000000 00000000 00000000 00000001 61 0000"
        "00000017 00000000 00000000 00000000 00000001 62 0000"
    )
    assert client.ask(code, client.send_fields(batch=batch), body).code == ResponseCode.SUCCESS
    messages = client.pull()
    if stored is None:
        assert [message.body for message in messages] == [body]
    else:
        assert bodies(messages) == stored


def test_items_wait_for_their_own_time(gateway: MemoryGateway, client: MemoryClient) -> None:
    items: list[tuple[str, dict[str, str]]] = [
        ("later", {"TIMER_DELAY_MS": "2000"}),
        ("now", {}),
        ("level", {"DELAY": "1"}),
        ("past", {"TIMER_DELIVER_MS": "5"}),
    ]
    answer = client.send_batch(items)
    # The first item is parked. The response has its place among the parked messages, as for a single message.
    assert int(answer.ext()["queueOffset"]) > 0
    assert bodies(client.pull()) == ["now", "past"]
    gateway.advance(1_000)
    assert bodies(client.pull()) == ["now", "past", "level"]
    gateway.advance(1_000)
    assert bodies(client.pull()) == ["now", "past", "level", "later"]


def test_a_time_in_the_header_changes_nothing(client: MemoryClient) -> None:
    client.send_batch([("a", {})], properties=property_string({"TIMER_DELIVER_MS": "9" * 15}))
    assert bodies(client.pull()) == ["a"]


@pytest.mark.parametrize(
    "bad",
    [
        {"TIMER_DELAY_MS": "soon"},
        {"DELAY": "x"},
        {"TIMER_DELIVER_MS": str(START_MS * 2)},
        {"p": "x" * 32_760},
    ],
)
def test_one_bad_item_refuses_all(
    gateway: MemoryGateway, client: MemoryClient, bad: dict[str, str]
) -> None:
    answer = client.send_batch([("a", {}), ("b", {"DELAY": "1"}), ("c", bad)])
    assert answer.code in (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SYSTEM_ERROR)
    gateway.advance(1_000)
    assert client.pull() == []
    assert client.look_up() == []


@pytest.mark.parametrize("topic", ["%RETRY%workers", "%DLQ%" + "g" * 130])
def test_topics_that_take_no_batch(client: MemoryClient, topic: str) -> None:
    assert client.send_batch([("a", {})], topic).code == ResponseCode.MESSAGE_ILLEGAL


def test_no_batch_within_a_batch(client: MemoryClient) -> None:
    answer = client.send_batch([("a", {}), ("b", {"INNER_NUM": "2"})])
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert client.pull() == []


@pytest.mark.parametrize("flag", [4, 8, 12])
def test_no_part_of_a_transaction(client: MemoryClient, flag: int) -> None:
    answer = client.send_batch([("a", {"TRAN_MSG": "true", "PGROUP": "payers"})], sys_flag=flag)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert client.pull() == []


@pytest.mark.parametrize(
    "body",
    [
        b"\0",
        b"\0\0\0\x17",
        bytes.fromhex("00000017 00000000 00000000 00000000 00000001 61 0001"),
        bytes.fromhex("00000017 00000000 00000000 00000000 ffffffff 61 0000"),
        bytes.fromhex("00000017 00000000 00000000 00000000 00000001 61 0000 00"),
    ],
)
def test_a_body_that_is_no_batch(client: MemoryClient, body: bytes) -> None:
    answer = client.ask(RequestCode.SEND_BATCH_MESSAGE, client.send_fields(batch=True), body)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark is not None
    assert answer.remark.startswith("the batch cannot be read: ")
    assert client.pull() == []


def test_no_body(client: MemoryClient) -> None:
    answer = client.ask(RequestCode.SEND_BATCH_MESSAGE, client.send_fields(batch=True))
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_too_large_as_a_whole(client: MemoryClient) -> None:
    answer = client.send_batch(("x" * (1 << 20), {}) for _ in range(4))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark is not None
    assert "4194304B" in answer.remark


def test_too_many_keys(client: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two million keys, which fit into 4 MiB, held up all other clients for 0.9 s."""
    monkeypatch.setattr(sending, "MAX_BATCH_KEYS", 3)
    assert client.send_batch([("a", {"KEYS": "x y"}), ("b", {"KEYS": "x"})]).code == 0
    answer = client.send_batch([("a", {"KEYS": "x y"}), ("b", {"KEYS": "x z"})])
    assert (answer.code, answer.remark) == (
        ResponseCode.MESSAGE_ILLEGAL,
        "the messages of the batch have 4 keys; 3 are possible: send smaller batches",
    )


def test_too_many_that_debounce(client: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of 30,000 held up all other clients for 2 s."""
    monkeypatch.setattr(sending, "MAX_BATCH_DEBOUNCED", 2)
    one = ("a", {"KEYS": "x", "TIDEGATE_DEBOUNCE": "x", "TIMER_DELAY_SEC": "60"})
    assert client.send_batch([one, one, ("b", {"KEYS": "x"})]).code == ResponseCode.SUCCESS
    answer = client.send_batch([one, one, one])
    assert (answer.code, answer.remark) == (
        ResponseCode.MESSAGE_ILLEGAL,
        "3 messages of the batch have TIDEGATE_DEBOUNCE; 2 are possible: send smaller batches",
    )


def test_debounces_that_would_examine_too_many(
    client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of 3,000 with 66 keys each, and one of 3,000 with a key of 2,000 others, held up all other clients for
    2 s and longer."""
    monkeypatch.setattr(intake, "MAX_EXAMINED", 6)

    def one(keys: str, key: str) -> tuple[str, dict[str, str]]:
        return ("a", {"KEYS": keys, "TIDEGATE_DEBOUNCE": key, "TIMER_DELAY_SEC": "60"})

    later = ("a", {"KEYS": "x", "TIMER_DELAY_SEC": "60"})
    # The seven that debounce by x examine one each, except for the first.
    assert client.send_batch([one("x", "x")] * 7).code == ResponseCode.SUCCESS
    assert client.send_batch([later] * 3).code == ResponseCode.SUCCESS
    # Those that debounce by x examine four and two, those by y one and two.
    batch = [one("x y", "x"), one("x y", "y"), one("x y", "x"), one("x y", "y")]
    answer = client.send_batch(batch)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark is not None
    assert "TIDEGATE_DEBOUNCE would have to examine more than 6 messages" in answer.remark
    assert client.send_batch(batch[:2]).code == ResponseCode.SUCCESS
    assert len(client.look_up(key="x")) == 1


def test_a_batch_counts_what_a_key_replaces_once(
    client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = []

    def counted(store: Store, topic: bytes, key: bytes) -> int:
        keys.append(key)
        return count_candidates(store, topic, key)

    monkeypatch.setattr(intake, "count_candidates", counted)
    one = ("a", {"KEYS": "x", "TIDEGATE_DEBOUNCE": "x", "TIMER_DELAY_SEC": "60"})
    assert client.send_batch([one] * 50).code == ResponseCode.SUCCESS
    assert keys == [b"x"]


def test_too_many_messages(client: MemoryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "MAX_BATCH_ITEMS", 3)
    assert client.send_batch([("a", {})] * 3).code == ResponseCode.SUCCESS
    answer = client.send_batch([("b", {})] * 4)
    assert (answer.code, answer.remark) == (
        ResponseCode.MESSAGE_ILLEGAL,
        "the batch cannot be read: it has more than 3 messages",
    )
    assert bodies(client.pull()) == ["a"] * 3


def test_a_large_batch_survives_a_crash(gateway: MemoryGateway, client: MemoryClient) -> None:
    client.send_batch([(str(n), {}) for n in range(2_000)])
    gateway.crash()
    assert bodies(gateway.connect().pull_all()) == [str(n) for n in range(2_000)]
