"""In responses that name brokers, only the addresses are changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.codes import RequestCode
from gateway.wire.commands import decode_command, encode_command, encode_response
from gateway.wire.frames import FrameBuffer
from recording.format import Kind, read_capture
from recording.routes import answered, asks_for_brokers, rewrite

RECORDED = Path(__file__).parent.parent / "wire" / "recorded"
SPACED = (
    b'{"brokerDatas":[{"brokerAddrs":{"0" : "10.0.0.1:10911","1":"10.0.0.2:10911"},"cluster":"c"}]}'
)


def here(broker: tuple[str, int]) -> tuple[str, int]:
    return "127.0.0.9", broker[1] + 1


def body_of(frame: bytes) -> bytes:
    (parts,) = FrameBuffer().feed(frame)
    return decode_command(parts).body


def test_each_address_is_replaced() -> None:
    frame = encode_response(7, 0, body=SPACED)
    changed = SPACED.replace(b"10.0.0.1:10911", b"127.0.0.9:10912")
    changed = changed.replace(b"10.0.0.2:10911", b"127.0.0.9:10912")
    assert body_of(rewrite(frame, here)) == changed
    assert answered(rewrite(frame, here)) == 7


def test_a_broker_with_an_ipv6_address_is_known_by_it_and_so_is_the_place_for_it() -> None:
    asked = []

    def place_of(broker: tuple[str, int]) -> tuple[str, int]:
        asked.append(broker)
        return "::1", broker[1]

    body = b'{"brokerAddrs":{0:"[2001:db8::7]:10911"}}'
    changed = rewrite(encode_response(7, 0, body=body), place_of)
    assert asked == [("2001:db8::7", 10911)]
    assert body_of(changed) == b'{"brokerAddrs":{0:"[::1]:10911"}}'


@pytest.mark.parametrize("address", ["10.0.0.1", "10.0.0.1:0", "10.0.0.1:65536", ":10911"])
def test_what_is_no_address_stays(address: str) -> None:
    frame = encode_response(7, 0, body=b'{"brokerAddrs":{0:"%b"}}' % address.encode())
    assert rewrite(frame, here) == frame


@given(st.binary(max_size=200))
def test_what_names_no_broker_stays(body: bytes) -> None:
    frame = encode_response(7, 0, body=body)
    assert rewrite(frame, here) == frame


@pytest.mark.parametrize("name", ["java-5.5.0", "java-4.9.8", "cpp", "mqadmin"])
def test_a_real_name_servers_answers(name: str) -> None:
    questions: set[tuple[int, int]] = set()
    changed = 0
    for record in read_capture(RECORDED / f"{name}.capture"):
        if record.kind == Kind.FROM_CLIENT:
            (parts,) = FrameBuffer().feed(record.data)
            code = decode_command(parts).code
            opaque = asks_for_brokers(record.data)
            names_brokers = code in (
                RequestCode.GET_ROUTEINFO_BY_TOPIC,
                RequestCode.GET_BROKER_CLUSTER_INFO,
            )
            assert (opaque is not None) == (names_brokers and not decode_command(parts).is_response)
            if opaque is not None:
                questions.add((record.connection, opaque))
        elif record.kind == Kind.FROM_SERVER:
            is_answer = (record.connection, answered(record.data)) in questions
            result = rewrite(record.data, here) if is_answer else record.data
            if b'"brokerAddrs":{' in result and is_answer:
                assert b"127.0.0.9:" in result
                assert b'0:"127.0.0.2:' not in body_of(result)
                changed += 1
    assert changed >= 1


def test_a_binary_header_is_understood() -> None:
    question = encode_command(RequestCode.GET_ROUTEINFO_BY_TOPIC, 9, ext={"topic": "orders"})
    assert asks_for_brokers(question) == 9
    assert asks_for_brokers(encode_command(RequestCode.HEART_BEAT, 9)) is None
    assert asks_for_brokers(b"\0\0\0\x04none") is None
