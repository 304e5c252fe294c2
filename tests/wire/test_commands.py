"""Headers: read in both forms, however clients write them, and written as clients can read them."""

from __future__ import annotations

import json
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.wire.codes import LanguageCode, RequestCode, ResponseCode
from gateway.wire.commands import (
    Command,
    CommandError,
    decode_command,
    encode_command,
    encode_response,
    pull_response,
    send_response,
)
from gateway.wire.fields import FieldError, Fields
from gateway.wire.frames import JSON, ROCKETMQ, FrameBuffer
from gateway.wire.headers import (
    FIELDS_OF_REQUESTS,
    GetRouteInfo,
    LookUpTimers,
    PullMessage,
    SendMessage,
    SendMessageV2,
)
from tests.wire.binary import binary_header
from tests.wire.strategies import INT32, TEXT

EXT = st.dictionaries(TEXT, TEXT, max_size=6)

# Sent by Java 5.5.0, with shortened properties.
JAVA_SEND = (
    rb'{"code":310,"extFields":{"a":"PG","b":"T","c":"TBW102","d":"4","e":"3","f":"0",'
    rb'"g":"1795251732949","h":"0","i":"KEYS\u0001k1\u0002WAIT\u0001true\u0002","j":"0",'
    rb'"k":"false","m":"false","n":"broker-a"},"flag":0,"language":"JAVA","opaque":5,'
    rb'"serializeTypeCurrentRPC":"JSON","version":513}'
)
# Sent by the C++ core: numbers among texts, 0 and 1 for booleans, empty ACL fields, a newline.
CPP_SEND = (
    b'{"code":310,"extFields":{"AccessKey":"","OnsChannel":"ALIYUN","Signature":"","a":"PG","b":"T",'
    b'"c":"TBW102","d":4,"e":3,"f":0,"g":1795251732949,"h":0,"i":"WAIT\\u0001true\\u0002","j":0,'
    b'"k":"0","l":16,"m":"1"},"flag":0,"language":"CPP","opaque":5,"remark":"","version":333}\n'
)
JAVA_FIELDS = SendMessageV2(
    producer_group="PG",
    topic="T",
    default_topic="TBW102",
    default_topic_queue_nums=4,
    queue_id=3,
    sys_flag=0,
    born_timestamp=1_795_251_732_949,
    flag=0,
    properties="KEYS\x01k1\x02WAIT\x01true\x02",
    broker_name="broker-a",
)


def read(header: bytes, body: bytes = b"") -> Command:
    """Decode a JSON header."""
    return decode_command((JSON, header, body))


def read_frame(data: bytes) -> Command:
    """Decode one whole frame."""
    [frame] = FrameBuffer().feed(data)
    return decode_command(frame)


def json_of(frame: bytes) -> Any:
    """Return the header of a JSON frame, read by Python's own reader."""
    size = int.from_bytes(frame[5:8], "big")
    assert frame[4] == JSON
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return json.loads(frame[8 : 8 + size])


def test_send_of_java() -> None:
    command = read(JAVA_SEND, b"hello")
    assert (command.code, command.opaque, command.version) == (310, 5, 513)
    assert (command.language, command.remark, command.body) == ("JAVA", None, b"hello")
    assert not command.is_response
    assert not command.is_oneway
    assert command.fields(SendMessageV2) == JAVA_FIELDS
    assert command.ext() == json.loads(JAVA_SEND)["extFields"]


def test_send_of_cpp() -> None:
    command = read(CPP_SEND)
    fields = command.fields(SendMessageV2)
    assert (fields.queue_id, fields.born_timestamp, fields.max_reconsume_times) == (
        3,
        1_795_251_732_949,
        16,
    )
    assert fields.batch is True
    assert fields.unit_mode is False
    assert (command.language, command.version, command.remark) == ("CPP", 333, "")
    assert command.ext()["d"] == "4"
    assert command.ext()["AccessKey"] == ""


def test_members_in_any_order_and_with_blanks() -> None:
    shuffled = json.dumps(dict(reversed(json.loads(JAVA_SEND).items())), indent=1).encode()
    assert read(shuffled).fields(SendMessageV2) == JAVA_FIELDS


def test_numbers_and_booleans_where_text_is_due() -> None:
    header = b'{"code":310,"extFields":{"a":12,"b":true,"c":1.50,"d":"4","e":"0","f":"0","g":"1","h":"0"}}'
    fields = read(header).fields(SendMessageV2)
    assert (fields.producer_group, fields.topic, fields.default_topic) == ("12", "true", "1.50")
    assert read(header).ext()["c"] == "1.50"


def test_null_fields_are_left_out() -> None:
    header = b'{"code":105,"extFields":{"topic":"T","acceptStandardJsonOnly":null,"x":null}}'
    command = read(header)
    assert command.ext() == {"topic": "T"}
    assert command.fields(GetRouteInfo) == GetRouteInfo("T")


def test_nested_values_stay_their_text() -> None:
    assert read(b'{"extFields":{"a":{"b":[1,null]},"c":[]}}').ext() == {
        "a": '{"b":["1",null]}',
        "c": "[]",
    }


@pytest.mark.parametrize(
    "header",
    [
        b"{}",
        b'{"extFields":null}',
        b'{"extFields":""}',
        b'{"code":34,"extFields":{}}',
        b'{"opaque":"","flag":"","version":""}',
    ],
)
def test_what_is_absent_has_defaults(header: bytes) -> None:
    command = read(header)
    assert command.ext() == {}
    assert (command.opaque, command.flag, command.version) == (0, 0, 0)


def test_characters_of_control_need_no_escapes() -> None:
    header = JAVA_SEND.replace(rb"\u0001", b"\x01").replace(rb"\u0002", b"\x02") + b"\0"
    command = read(header, b"hello")
    assert command.fields(SendMessageV2) == JAVA_FIELDS
    assert (command.opaque, command.body) == (5, b"hello")


def test_numbers_of_a_header_may_be_text() -> None:
    command = read(b'{"code":"105","opaque":"7","flag":"2","version":null,"language":1}')
    assert (command.code, command.opaque, command.version) == (105, 7, 0)
    assert command.is_oneway
    assert command.language == "CPP"


@example(-(1 << 31), (1 << 31) - 1, {}, None, None)
@given(INT32, INT32, EXT, TEXT | st.none(), st.sampled_from(["GO", None]))
def test_values_of_any_type_in_place_of_text_or_numbers(
    low: int, high: int, ext: dict[str, str], remark: str | None, language: str | None
) -> None:
    numbers = {"code": str(low), "opaque": high, "flag": str(high), "version": str(low)}
    ext.pop("null", None)
    others = {"true": True, "false": False, "null": None, "half": 0.5, "list": [1, True]}
    header = {**numbers, "extFields": {**ext, **others}, "remark": remark, "language": language}
    command = read(json.dumps(header).encode())
    assert (command.code, command.opaque, command.flag, command.version) == (low, high, high, low)
    assert (command.remark, command.language) == (remark, language or "JAVA")
    texts = {"true": "true", "false": "false", "half": "0.5", "list": '["1",true]'}
    assert command.ext() == {**ext, **texts}


def test_half_a_surrogate_pair_becomes_a_question_mark() -> None:
    header = b'{"code":105,"extFields":{"topic":"a\\ud800b","y":"\\ud83d\\ude00"}}'
    assert read(header).ext() == {"topic": "a?b", "y": "\U0001f600"}
    assert read(header).fields(GetRouteInfo).topic == "a?b"


def test_bytes_that_are_no_utf8_harm_only_their_text() -> None:
    assert read(b'{"code":105,"extFields":{"topic":"a\xff"}}').ext() == {"topic": "a\ufffd"}


def test_private_members_are_not_read_from_a_header() -> None:
    command = read(b'{"code":34,"#body":"eHh4","#header":"eHh4"}', b"real")
    assert command.body == b"real"


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b"1",
        b'"x"',
        b"{",
        b'{"code":105',
        b'{"code":105}}',
        b'{"code":"x"}',
        b'{"code":1.5}',
        b'{"code":[]}',
        b'{"opaque":2147483648}',
        b'{"flag":-2147483649}',
        b'{"code":105,"extFields":[]}',
        b'{"code":105,"extFields":"x"}',
        b'{"a":' * 100_000,
        b'{"code":105,"extFields":{"x":' + b"[" * 100_000,
        b'{"code":' + b"9" * 5000 + b"}",
    ],
)
def test_no_header(header: bytes) -> None:
    with pytest.raises(CommandError):
        read(header)


def test_missing_field() -> None:
    header = JAVA_SEND.replace(b'"b":"T",', b"")
    with pytest.raises(FieldError, match=r"^the field b \(topic\) is missing$"):
        read(header).fields(SendMessageV2)
    with pytest.raises(FieldError, match=r"^the field topic is missing$"):
        read(b'{"code":105}').fields(GetRouteInfo)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"d":"4"', b'"d":"x"', "d (default_topic_queue_nums) is a number of 32 bits, not 'x'"),
        (b'"d":"4"', b'"d":"2147483648"', "32 bits, not '2147483648'"),
        (b'"g":"1795251732949"', b'"g":"9223372036854775808"', "64 bits"),
        (b'"g":"1795251732949"', b'"g":"1.5"', "g (born_timestamp) is a number of 64 bits"),
        (b'"e":"3"', b'"e":"1_0"', "32 bits, not '1_0'"),
        (b'"e":"3"', b'"e":""', "e (queue_id)"),
        (b'"e":"3"', b'"e":null', "e (queue_id) is missing"),
    ],
)
def test_field_that_cannot_be_read(old: bytes, new: bytes, said: str) -> None:
    with pytest.raises(FieldError) as error:
        read(JAVA_SEND.replace(old, new)).fields(SendMessageV2)
    assert said in str(error.value)


@pytest.mark.parametrize("written", ["+3", "03", "\uff13", "+0003"])
def test_numbers_as_java_reads_them(written: str) -> None:
    header = JAVA_SEND.replace(b'"e":"3"', f'"e":"{written}"'.encode())
    assert read(header).fields(SendMessageV2) == JAVA_FIELDS


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        *(("true", True), ("TRUE", True), ("tRue", True), ("1", True)),
        *(("yes", False), ("", False), ("2", False), ("null", False)),
    ],
)
@pytest.mark.parametrize("number", ["3", "+3"])
def test_booleans_as_java_reads_them(written: str, meant: bool, number: str) -> None:
    """Also where another field is not in its usual form."""
    header = JAVA_SEND.replace(b'"m":"false"', f'"m":"{written}"'.encode())
    header = header.replace(b'"e":"3"', f'"e":"{number}"'.encode())
    assert read(header).fields(SendMessageV2).batch is meant


@pytest.mark.parametrize("topic", ["007", "+7", "\uff17"])
def test_a_name_that_looks_like_a_number_stays_what_it_is(topic: str) -> None:
    header = JAVA_SEND.replace(b'"b":"T"', f'"b":"{topic}"'.encode())
    for written in (header, header.replace(b'"e":"3"', b'"e":"+3"')):
        assert read(written).fields(SendMessageV2).topic == topic


def test_fields_that_need_not_be_sent() -> None:
    header = JAVA_SEND
    for unsent in (b'"a":"PG",', b'"c":"TBW102",', b'"d":"4",'):
        header = header.replace(unsent, b"")
    sent = read(header).fields(SendMessageV2)
    assert (sent.producer_group, sent.default_topic, sent.default_topic_queue_nums) == ("", "", 4)
    assert (sent.topic, sent.queue_id) == ("T", 3)


@pytest.mark.parametrize(("code", "kind"), sorted(FIELDS_OF_REQUESTS.items()))
def test_what_need_not_be_sent_can_be_read(code: int, kind: type[Fields]) -> None:
    needed = {field.encode_name for field in msgspec.structs.fields(kind) if field.required}
    assert needed >= set(kind.unsent)
    ext = dict.fromkeys(needed - set(kind.unsent), "1")
    for field in msgspec.structs.fields(kind):
        if field.required and get_origin(field.type) is Literal:
            ext[field.encode_name] = get_args(field.type)[0]
    read(json.dumps({"code": code, "extFields": ext}).encode()).fields(kind)


def test_a_word_that_is_none_of_those_possible() -> None:
    with pytest.raises(
        FieldError, match=r"^the field state is one of pending, fired, aborted, any, not 'held'$"
    ):
        read(b'{"code":31001,"extFields":{"state":"held"}}').fields(LookUpTimers)


def test_fields_of_another_structure_than_the_codes() -> None:
    assert read(b'{"code":310,"extFields":{"topic":"T"}}').fields(GetRouteInfo).topic == "T"


def test_every_byte_of_a_binary_header() -> None:
    header = bytes.fromhex(
        "0069"  # code 105
        "09"  # GO
        "013d"  # version 317
        "00000007"  # opaque
        "00000002"  # flag
        "00000002 6f6b"  # remark "ok"
        "0000001a 0005 746f706963 00000001 54"  # topic T
        "0001 78 00000000"  # x without a value
        "0001 79 00000000"  # y without a value
    )
    with pytest.raises(CommandError):
        decode_command((ROCKETMQ, header[:-1], b""))
    command = decode_command((ROCKETMQ, header, b"body"))
    assert (command.code, command.language, command.version) == (105, "GO", 317)
    assert (command.opaque, command.flag, command.remark) == (7, 2, "ok")
    assert command.ext() == {"topic": "T"}
    assert command.body == b"body"
    assert command.fields(GetRouteInfo) == GetRouteInfo("T")


def test_what_is_behind_a_binary_header_is_not_read() -> None:
    header = binary_header(105, 7, {"topic": "T"})
    command = decode_command((ROCKETMQ, header + b"\0\0", b"body"))
    assert (command.opaque, command.ext(), command.body) == (7, {"topic": "T"}, b"body")
    with pytest.raises(CommandError, match="do not fit"):
        decode_command((ROCKETMQ, header[:-1], b""))
    longer = header[:-2] + b"\x02T\0\0"  # by its own length the value goes on behind the fields
    with pytest.raises(CommandError, match="does not fit"):
        decode_command((ROCKETMQ, longer, b""))


def test_binary_send_of_java() -> None:
    # Sent by Java 5.5.0 to a real broker with rocketmq.serialize.type=ROCKETMQ.
    header = bytes.fromhex(
        "01360002010000002f0000000000000000000000e80001610000000773656e646572730001620000000154"
        "00016300000006544257313032000164000000013400016500000001310001660000000130000167000000"
        "0d3137393532363339353833323200016800000001300001690000005b4b455953016b3102554e49515f4b"
        "45590146443030303030303030303030303030303030303030303030303030303030323536394434453045"
        "3246324136394141323533313030303002574149540174727565025441475301410200016a000000013000"
        "016b0000000566616c736500016d0000000566616c736500016e0000000862726f6b65722d61"
    )
    command = decode_command((ROCKETMQ, header, b"hello"))
    assert (command.code, command.opaque, command.language) == (310, 47, "JAVA")
    assert (command.version, command.flag, command.remark) == (513, 0, None)
    assert command.fields(SendMessageV2) == SendMessageV2(
        producer_group="senders",
        topic="T",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=1,
        sys_flag=0,
        born_timestamp=1_795_263_958_322,
        flag=0,
        properties="KEYS\x01k1\x02"
        "UNIQ_KEY\x01FD000000000000000000000000000002569D4E0E2F2A69AA25310000\x02"
        "WAIT\x01true\x02TAGS\x01A\x02",
        broker_name="broker-a",
    )
    assert header == binary_header(310, 47, command.ext())


def test_binary_code_has_16_bits() -> None:
    header = binary_header(200_050 - 3 * 65_536, 1, {})
    assert decode_command((ROCKETMQ, header, b"")).code == 3442


@given(
    st.integers(-(1 << 15), (1 << 15) - 1),
    INT32,
    INT32,
    st.integers(0, 255),
    st.integers(-(1 << 15), (1 << 15) - 1),
    TEXT,
    EXT,
)
def test_binary_headers_come_back(
    code: int, opaque: int, flag: int, language: int, version: int, remark: str, ext: dict[str, str]
) -> None:
    header = binary_header(
        code, opaque, ext, flag=flag, language=language, version=version, remark=remark
    )
    command = decode_command((ROCKETMQ, header, b""))
    assert (command.code, command.opaque, command.flag) == (code, opaque, flag)
    assert (command.version, command.remark) == (version, remark or None)
    known = {int(one): one.name for one in LanguageCode}
    assert command.language == known.get(language, "OTHER")
    assert command.ext() == {name: value for name, value in ext.items() if value}


@given(INT32, INT32, INT32, EXT | st.none(), st.binary(max_size=50), TEXT | st.none(), INT32)
def test_commands_come_back(
    code: int,
    opaque: int,
    flag: int,
    ext: dict[str, str] | None,
    body: bytes,
    remark: str | None,
    version: int,
) -> None:
    frame = encode_command(
        code, opaque, flag=flag, ext=ext, body=body, remark=remark, language="GO", version=version
    )
    command = read_frame(frame)
    assert (command.code, command.opaque, command.flag) == (code, opaque, flag)
    assert (command.body, command.remark, command.version) == (body, remark, version)
    assert command.language == "GO"
    assert command.ext() == (ext or {})
    absent = {name for name, value in (("extFields", ext), ("remark", remark)) if value is None}
    assert {"extFields", "remark"} - set(json_of(frame)) == absent


@given(INT32, st.sampled_from(ResponseCode), EXT | st.none(), st.binary(max_size=50), TEXT)
def test_answers_come_back(
    opaque: int, code: ResponseCode, ext: dict[str, str] | None, body: bytes, remark: str
) -> None:
    command = read_frame(encode_response(opaque, code, ext=ext, remark=remark, body=body))
    assert (command.code, command.opaque, command.remark) == (code, opaque, remark)
    assert (command.ext(), command.body) == (ext or {}, body)
    assert command.is_response
    assert not command.is_oneway


def test_answers_always_have_fields() -> None:
    assert json_of(encode_response(1, ResponseCode.SUCCESS)) == {
        "code": 0,
        "extFields": {},
        "flag": 1,
        "language": "JAVA",
        "opaque": 1,
        "serializeTypeCurrentRPC": "JSON",
        "version": 513,
    }


def test_answer_to_a_send_from_the_protocol() -> None:
    frame = send_response(5, "7F000002000055970000000000000000", 3, 0, "ABC123", None)
    assert json_of(frame) == {
        "code": 0,
        "extFields": {
            "msgId": "7F000002000055970000000000000000",
            "queueId": "3",
            "queueOffset": "0",
            "transactionId": "ABC123",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        },
        "flag": 1,
        "language": "JAVA",
        "opaque": 5,
        "serializeTypeCurrentRPC": "JSON",
        "version": 513,
    }


def test_answer_to_a_batch_has_no_transaction_id() -> None:
    ext = json_of(send_response(5, "AA,BB", 3, 0, None))["extFields"]
    assert ext["msgId"] == "AA,BB"
    assert "transactionId" not in ext
    assert "recallHandle" not in ext


@given(
    INT32,
    INT32,
    st.integers(0, (1 << 63) - 1),
    TEXT | st.none(),
    st.none() | st.just("djE="),
    st.none() | st.integers(0, 9),
)
def test_answers_to_sends_come_back(
    opaque: int,
    queue_id: int,
    offset: int,
    transaction_id: str | None,
    handle: str | None,
    replaced: int | None,
) -> None:
    command = read_frame(
        send_response(opaque, "0A", queue_id, offset, transaction_id, handle, replaced)
    )
    ext = command.ext()
    assert (command.code, command.opaque, command.is_response) == (0, opaque, True)
    assert (ext["msgId"], ext["queueId"], ext["queueOffset"]) == ("0A", str(queue_id), str(offset))
    assert ext.get("transactionId") == transaction_id
    assert ext.get("recallHandle") == handle
    assert ext.get("replaced") == (None if replaced is None else str(replaced))


@given(INT32, TEXT, *[st.integers(0, (1 << 63) - 1)] * 3, st.binary(max_size=9))
def test_answers_to_pulls_come_back(
    opaque: int, remark: str, following: int, first: int, last: int, body: bytes
) -> None:
    code = ResponseCode.PULL_OFFSET_MOVED
    command = read_frame(pull_response(opaque, code, remark, following, first, last, body))
    assert (command.code, command.opaque, command.is_response) == (code, opaque, True)
    assert (command.remark, command.body) == (remark, body)
    assert command.ext() == {
        "nextBeginOffset": str(following),
        "minOffset": str(first),
        "maxOffset": str(last),
        "suggestWhichBrokerId": "0",
        "topicSysFlag": "0",
        "groupSysFlag": "0",
    }


@given(st.integers(0, 1), st.binary(max_size=80))
def test_any_bytes_are_a_header_or_refused(kind: int, header: bytes) -> None:
    try:
        command = decode_command((kind, header, b""))
    except CommandError:
        return
    assert isinstance(command.ext(), dict)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
MEMBERS = st.sampled_from(["code", "opaque", "flag", "version", "language", "remark", "extFields"])
CODES = st.sampled_from([*RequestCode]) | st.integers(-5, 5)


@given(
    CODES,
    st.dictionaries(MEMBERS, JSON_VALUES),
    st.dictionaries(st.sampled_from("abcdefg"), JSON_VALUES),
)
def test_any_json_is_a_header_or_refused(
    code: int, members: dict[str, Any], ext: dict[str, Any]
) -> None:
    header = json.dumps({"code": code, "extFields": ext} | members, separators=(",", ":")).encode()
    try:
        command = read(header)
    except CommandError:
        return
    found = command.ext()
    assert all(isinstance(text, str) for pair in found.items() for text in pair)
    for kind in (SendMessage, SendMessageV2, PullMessage, GetRouteInfo):
        try:
            assert isinstance(command.fields(kind), kind)
        except FieldError:
            continue


@given(st.binary(max_size=30), st.data())
def test_damaged_binary_headers_are_read_or_refused(noise: bytes, data: st.DataObject) -> None:
    header = bytearray(binary_header(310, 5, {"a": "b", "c": "d"}, remark="r"))
    for byte in noise:
        header[data.draw(st.integers(0, len(header) - 1))] = byte
    try:
        command = decode_command((ROCKETMQ, bytes(header), b""))
    except CommandError:
        return
    assert len(command.ext()) <= 2
