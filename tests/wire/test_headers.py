"""The fields of each request."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire import headers
from gateway.wire.codes import RequestCode
from gateway.wire.commands import decode_command, encode_command
from gateway.wire.fields import FieldError, Fields, to_ext
from gateway.wire.frames import ROCKETMQ, FrameBuffer
from gateway.wire.headers import FIELDS_OF_REQUESTS, SendMessage, SendMessageV2
from tests.wire.binary import binary_header
from tests.wire.strategies import fields_of

REQUESTS = sorted(FIELDS_OF_REQUESTS.items())


@settings(max_examples=300)
@given(st.sampled_from(REQUESTS), st.data())
def test_fields_come_back(asked: tuple[int, type[Fields]], data: st.DataObject) -> None:
    code, kind = asked
    fields = data.draw(fields_of(kind))
    [frame] = FrameBuffer().feed(encode_command(code, 1, ext=to_ext(fields)))
    command = decode_command(frame)
    assert command.fields(kind) == fields
    assert command.ext() == to_ext(fields)


@given(fields_of(SendMessageV2))
def test_binary_fields_come_back(fields: Fields) -> None:
    # In this form an empty text is no value, so a mandatory field with an empty text is missing.
    ext = to_ext(fields)
    command = decode_command((ROCKETMQ, binary_header(310, 1, ext), b""))
    if all(ext.get(letter) != "" for letter in "bin"):
        assert command.fields(SendMessageV2) == fields
    elif ext["b"] == "":
        with pytest.raises(FieldError):
            command.fields(SendMessageV2)


def test_letters_stand_for_the_names() -> None:
    # Written out, because two exchanged letters would pass every other test (SendMessageRequestHeaderV2).
    assert to_ext(SendMessageV2("a", "b", "c", 4, 5, 6, 7, 8, "i", 10, True, 12, False, "n")) == {
        "a": "a",
        "b": "b",
        "c": "c",
        "d": "4",
        "e": "5",
        "f": "6",
        "g": "7",
        "h": "8",
        "i": "i",
        "j": "10",
        "k": "true",
        "l": "12",
        "m": "false",
        "n": "n",
    }
    assert SendMessage.__struct_fields__ == SendMessageV2.__struct_fields__


# The names on the wire from RocketMQ's header classes, with ! after the mandatory ones.
NAMES = {
    RequestCode.SEND_MESSAGE: "producerGroup! topic! defaultTopic! defaultTopicQueueNums! queueId! sysFlag! "
    "bornTimestamp! flag! properties reconsumeTimes unitMode maxReconsumeTimes batch bname",
    RequestCode.PULL_MESSAGE: "consumerGroup! topic! queueId! queueOffset! maxMsgNums! sysFlag! commitOffset! "
    "suspendTimeoutMillis! subscription subVersion! expressionType maxMsgBytes requestSource "
    "proxyFrowardClientId liteTopic",
    RequestCode.QUERY_MESSAGE: "topic! key! maxNum! beginTimestamp! endTimestamp! indexType lastKey "
    "_UNIQUE_KEY_QUERY",
    RequestCode.QUERY_CONSUMER_OFFSET: "consumerGroup! topic! queueId! setZeroIfNotFound",
    # The last two are mandatory too, but the broker itself answers if they are missing.
    RequestCode.UPDATE_CONSUMER_OFFSET: "consumerGroup! topic! queueId commitOffset",
    RequestCode.UPDATE_AND_CREATE_TOPIC: "topic! defaultTopic! readQueueNums! writeQueueNums! perm! "
    "topicFilterType! topicSysFlag order attributes force",
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: "topic! queueId! timestamp! boundaryType",
    RequestCode.GET_MAX_OFFSET: "topic! queueId! committed",
    RequestCode.GET_MIN_OFFSET: "topic! queueId!",
    RequestCode.GET_EARLIEST_MSG_STORETIME: "topic! queueId!",
    RequestCode.VIEW_MESSAGE_BY_ID: "offset! topic",
    RequestCode.UNREGISTER_CLIENT: "clientID! producerGroup consumerGroup",
    RequestCode.CONSUMER_SEND_MSG_BACK: "offset! group! delayLevel! originMsgId originTopic unitMode "
    "maxReconsumeTimes",
    RequestCode.END_TRANSACTION: "producerGroup! tranStateTableOffset! commitLogOffset! commitOrRollback! msgId "
    "fromTransactionCheck transactionId topic",
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: "consumerGroup!",
    RequestCode.GET_ROUTEINFO_BY_TOPIC: "topic! acceptStandardJsonOnly",
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: "topic! group! timestamp! isForce! queueId offset",
    RequestCode.DELETE_SUBSCRIPTIONGROUP: "groupName! cleanOffset",
    RequestCode.VIEW_BROKER_STATS_DATA: "statsName! statsKey!",
    RequestCode.CLONE_GROUP_OFFSET: "srcGroup! destGroup! topic offline",
    RequestCode.RECALL_MESSAGE: "topic! recallHandle! producerGroup",
}


@pytest.mark.parametrize(("code", "listed"), NAMES.items(), ids=[code.name for code in NAMES])
def test_names_on_the_wire(code: RequestCode, listed: str) -> None:
    kind = FIELDS_OF_REQUESTS[code]
    mandatory = len(kind.__struct_fields__) - len(kind.__struct_defaults__)
    names = [
        name + ("!" if number < mandatory else "")
        for number, name in enumerate(kind.__struct_encode_fields__)
    ]
    assert sorted(names) == sorted(listed.split())


def test_each_structure_names_its_codes() -> None:
    for code, kind in REQUESTS:
        assert kind.__doc__ is not None
        assert re.search(rf"\b{int(code)}\b", kind.__doc__), kind


def test_all_structures_are_offered_in_one_place() -> None:
    assert {kind.__name__ for kind in FIELDS_OF_REQUESTS.values()} <= set(headers.__all__)
