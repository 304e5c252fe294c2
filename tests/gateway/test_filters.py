"""Subscriptions by SQL92 and by tag, in pulls and in checks of a subscription."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.filters import Filter, FilterError, filter_of
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command
from gateway.wire.messages import decode_messages, encode_message, java_hash, stored_properties
from tests.gateway.conftest import MakeGateway
from tests.gateway.memory import MemoryClient, MemoryGateway, bodies

RED = "colour = 'red' AND size > 3"


def sql_fields(client: MemoryClient, expression: str, **options: Any) -> dict[str, str]:
    fields = client.pull_request(tags=expression, **options)
    return {**fields, "expressionType": "SQL92"}


def pull_sql(client: MemoryClient, expression: str, **options: Any) -> Command:
    """Send a pull that has its expression in itself."""
    return client.ask(RequestCode.PULL_MESSAGE, sql_fields(client, expression, **options))


def subscribe(client: MemoryClient, expression: str, **more: object) -> None:
    """Send a heartbeat with this subscription of the group."""
    subscription = {"topic": "orders", "subString": expression, "subVersion": 5, **more}
    consumer = {"groupName": "consumers", "subscriptionDataSet": [subscription]}
    body = {"clientID": "one", "consumerDataSet": [consumer]}
    answer = client.ask(RequestCode.HEART_BEAT, None, json.dumps(body).encode())
    assert answer.code == ResponseCode.SUCCESS


def check(client: MemoryClient, expression: str, expression_type: str | None = "SQL92") -> Command:
    subscription = {"topic": "orders", "subString": expression, "expressionType": expression_type}
    body = {"clientId": "one", "group": "consumers", "subscriptionData": subscription}
    return client.ask(RequestCode.CHECK_CLIENT_CONFIG, None, json.dumps(body).encode())


def send_colours(client: MemoryClient) -> None:
    for body, colour, size in (("a", "red", "2"), ("b", "red", "4"), ("c", "blue", "9")):
        client.send_message(body=body, properties={"colour": colour, "size": size})


def test_a_pull_brings_its_expression(client: MemoryClient) -> None:
    send_colours(client)
    answer = pull_sql(client, RED)
    assert answer.code == ResponseCode.SUCCESS
    assert bodies(decode_messages(answer.body)) == ["b"]
    assert answer.ext()["nextBeginOffset"] == "3"


def test_tags_are_a_property_too(client: MemoryClient) -> None:
    for tag in ("A", "B"):
        client.send_message(body=tag, TAGS=tag)
    answer = pull_sql(client, "TAGS IN ('B', 'C')")
    assert bodies(decode_messages(answer.body)) == ["B"]


def test_a_pull_by_the_expression_of_the_heartbeat(client: MemoryClient) -> None:
    send_colours(client)
    subscribe(client, RED, expressionType="SQL92")
    assert bodies(client.pull(tags=None, sub_version=5)) == ["b"]


def test_when_nothing_matches_the_client_goes_on_behind_it(client: MemoryClient) -> None:
    send_colours(client)
    answer = pull_sql(client, "size > 100")
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.ext()["nextBeginOffset"] == "3"


def test_a_waiting_pull_gets_the_first_message_that_matches(client: MemoryClient) -> None:
    send_colours(client)
    fields = sql_fields(client, RED, offset=3, wait_ms=15_000)
    opaque = client.send(RequestCode.PULL_MESSAGE, fields)
    assert client.answer(opaque) is None
    client.send_message(body="d", properties={"colour": "red", "size": "1"})
    assert client.answer(opaque) is None
    client.send_message(body="e", properties={"colour": "red", "size": "8"})
    answer = client.answer(opaque)
    assert answer is not None
    assert bodies(decode_messages(answer.body)) == ["e"]


def test_timed_messages_are_filtered_when_they_fire(
    gateway: MemoryGateway, client: MemoryClient
) -> None:
    later = {"TIMER_DELAY_MS": "1000"}
    client.send_message(body="a", properties={"colour": "blue", "size": "7", **later})
    client.send_message(body="b", properties={"colour": "red", "size": "7", **later})
    gateway.advance(1_000)
    assert bodies(decode_messages(pull_sql(client, RED).body)) == ["b"]


def test_one_pull_looks_at_a_bounded_number_of_messages(client: MemoryClient) -> None:
    for _ in range(7):
        client.send_batch([("-", {"colour": "blue"})] * 100)
    client.send_message(body="last", properties={"colour": "red", "size": "7"})
    answer = pull_sql(client, RED)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    offset = int(answer.ext()["nextBeginOffset"])
    assert 0 < offset < 700
    answer = pull_sql(client, RED, offset=offset)
    assert bodies(decode_messages(answer.body)) == ["last"]


def test_one_pull_looks_at_fewer_messages_by_a_long_expression(client: MemoryClient) -> None:
    client.send_batch([("-", {"colour": "blue"})] * 100)
    reds = ",".join(["'red'"] * 10_900)
    long = f"colour IN ({reds})"
    assert pull_sql(client, long).ext()["nextBeginOffset"] == "7"


def test_one_pull_reads_a_bounded_number_of_bytes(client: MemoryClient) -> None:
    for _ in range(6):
        client.send_message(body=b"x" * 1_000_000, properties={"colour": "blue"})
    answer = pull_sql(client, RED)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.ext()["nextBeginOffset"] == "5"


@pytest.mark.parametrize("expression", ["", "colour = ", "size > 'x'"])
def test_a_wrong_expression_of_a_pull(client: MemoryClient, expression: str) -> None:
    client.send_message()
    answer = pull_sql(client, expression)
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "parse the consumer's subscription failed" in (answer.remark or "")


def test_a_wrong_expression_of_a_heartbeat(client: MemoryClient) -> None:
    client.send_message()
    subscribe(client, "colour = ", expressionType="SQL92")
    answer = client.ask_pull(tags=None, sub_version=5)
    assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST


def test_filters_of_unknown_type(client: MemoryClient) -> None:
    client.send_message()
    fields = {**client.pull_request(tags="x"), "expressionType": "XPATH"}
    answer = client.ask(RequestCode.PULL_MESSAGE, fields)
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "XPATH" in (answer.remark or "")


def test_a_class_filter_selects_everything(client: MemoryClient) -> None:
    send_colours(client)
    subscribe(client, "com.example.Filter", classFilterMode=True)
    fields = client.pull_request(tags=None, sub_version=5)
    answer = client.ask(RequestCode.PULL_MESSAGE, {**fields, "sysFlag": "8"})
    assert bodies(decode_messages(answer.body)) == ["a", "b", "c"]


def test_checking_an_expression(client: MemoryClient) -> None:
    assert check(client, RED).code == ResponseCode.SUCCESS
    assert check(client, "A || B", None).code == ResponseCode.SUCCESS
    assert client.ask(RequestCode.CHECK_CLIENT_CONFIG, None, b"{}").code == ResponseCode.SUCCESS
    answer = check(client, "colour = ")
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "column 10" in (answer.remark or "")


def test_property_filters_can_be_switched_off(make_gateway: MakeGateway) -> None:
    client = make_gateway(property_filter=False).connect()
    client.send_message()
    for answer in (pull_sql(client, RED), check(client, RED)):
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "does not support" in (answer.remark or "")
    assert bodies(client.pull()) == ["hello"]


def test_filters_by_tag() -> None:
    assert filter_of("*", "TAG") == filter_of("", None) == Filter()
    nothing = Filter(tag_hashes=frozenset())
    assert filter_of(" ", "TAG") == filter_of(" || ", "") == nothing
    assert filter_of(" * ", "TAG") == Filter(tag_hashes=frozenset([java_hash("*")]))
    for bars in ("||", "||||"):
        with pytest.raises(FilterError, match="no tags"):
            filter_of(bars, "TAG")
    both = Filter(tag_hashes=frozenset((java_hash("A"), java_hash("B C"))))
    assert filter_of(" A ||B C|| ", "TAG") == both
    assert filter_of("\tA\n||\0B C\x1f", "TAG") == both


@pytest.mark.parametrize("space", ["\u3000", "\xa0", "\x85", "\u2028"])
def test_spaces_that_java_does_not_trim_are_part_of_a_tag(client: MemoryClient, space: str) -> None:
    tag = f"{space}A{space}"
    client.send_message(body="with", TAGS=tag)
    client.send_message(body="without", TAGS="A")
    assert bodies(client.pull(tags=f"B || {tag}")) == ["with"]


def test_an_expression_is_read_once() -> None:
    assert filter_of(RED, "SQL92").matches is filter_of(RED, "SQL92").matches
    with pytest.raises(FilterError):
        filter_of("", "SQL92")


def test_long_expressions_are_kept_as_far_as_they_have_room() -> None:
    long = [f"{'A' * 2_000}{number:03}" for number in range(100)]
    kept = [filter_of(one, "TAG") for one in long]
    assert all(filter_of(one, "TAG") is before for one, before in zip(long, kept, strict=True))
    for number in range(15):
        filter_of("B" * 65_530 + str(number), "TAG")
        assert filter_of(long[0], "TAG") is kept[0]
    assert filter_of(long[1], "TAG") is not kept[1]
    assert filter_of(long[0], "TAG") is kept[0]
    for number in range(16):
        filter_of("C" * 65_530 + str(number), "TAG")
    assert filter_of(long[0], "TAG") is not kept[0]
    with pytest.raises(FilterError, match="characters of tags"):
        filter_of("A" * 70_000, "TAG")


@pytest.mark.parametrize("topic", [b"orders", b"%RETRY%" + b"g" * 200])
def test_the_properties_of_a_record(topic: bytes) -> None:
    record = encode_message(
        topic=topic,
        queue_id=1,
        flag=2,
        sys_flag=0,
        born_ms=3,
        born_host=bytes(8),
        store_ms=4,
        store_host=bytes(8),
        reconsume_times=0,
        prepared_offset=0,
        physical_offset=5,
        queue_offset=6,
        body=b"body" * 100,
        properties="stadt\x01Köln\x02".encode(),
    )
    assert stored_properties(record) == "stadt\x01Köln\x02"
