"""Records, batches and ids."""

from __future__ import annotations

import os
import struct
import sys
import time
import zlib
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.codes import SysFlag
from gateway.wire.messages import (
    MAX_PROPERTIES,
    BatchItem,
    Message,
    MessageError,
    add_properties,
    decode_message,
    decode_messages,
    encode_again,
    encode_batch,
    encode_message,
    java_hash,
    offset_msg_id,
    pack_host,
    parse_offset_msg_id,
    physical_offsets,
    split_batch,
    stamp,
    stored_properties,
    uniq_key,
    unpack_host,
)
from tests.wire.strategies import HOSTS, INT32, INT64, TEXT

HOST = pack_host("127.0.0.2", 10911)
PLAIN: dict[str, Any] = {
    "topic": b"T",
    "queue_id": 3,
    "flag": 7,
    "sys_flag": 1,
    "born_ms": 1_795_251_732_949,
    "born_host": pack_host("10.0.0.2", 40_000),
    "store_ms": 1_795_251_732_950,
    "store_host": HOST,
    "reconsume_times": 2,
    "prepared_offset": 9,
    "physical_offset": 2349,
    "queue_offset": 5,
    "body": b"hello",
    "properties": b"TAGS\x01A\x02",
}


def message(**changes: Any) -> bytes:
    """Return a record with some parts changed."""
    return encode_message(**(PLAIN | changes))


RECORDS = st.fixed_dictionaries(
    {
        "topic": TEXT.map(str.encode),
        "queue_id": INT32,
        "flag": INT32,
        "sys_flag": INT32.map(lambda flag: flag & ~0x30),
        "born_ms": INT64,
        "born_host": HOSTS,
        "store_ms": INT64,
        "store_host": HOSTS,
        "reconsume_times": INT32,
        "prepared_offset": INT64,
        "physical_offset": INT64,
        "queue_offset": INT64,
        "body": st.binary(max_size=300),
        "properties": TEXT.map(str.encode),
    }
)


def parts_of(decoded: Message) -> dict[str, Any]:
    """Return the arguments with which `encode_message` would make it."""
    parts = {name: getattr(decoded, name) for name in PLAIN}
    return parts | {
        "topic": decoded.topic.encode(),
        "properties": decoded.properties.encode(),
    }


def test_every_byte_of_a_record() -> None:
    # Put together by hand from the layout of MessageDecoder.
    expected = b"".join(
        [
            struct.pack(">i", 91 + 5 + 1 + 7),
            bytes.fromhex("DAA320A7"),
            struct.pack(">I", zlib.crc32(b"hello") & 0x7FFFFFFF),
            struct.pack(">ii", 3, 7),
            struct.pack(">qq", 5, 2349),
            struct.pack(">i", 1),
            struct.pack(">q", 1_795_251_732_949),
            bytes([10, 0, 0, 2]) + struct.pack(">i", 40_000),
            struct.pack(">q", 1_795_251_732_950),
            bytes([127, 0, 0, 2]) + struct.pack(">i", 10_911),
            struct.pack(">i", 2),
            struct.pack(">q", 9),
            struct.pack(">i", 5) + b"hello",
            b"\x01T",
            b"\x00\x07TAGS\x01A\x02",
        ]
    )
    assert message() == expected


def test_crc_has_31_bits() -> None:
    body = b"a"
    assert zlib.crc32(body) > 0x7FFFFFFF
    assert decode_message(message(body=body)).body_crc == zlib.crc32(body) - 0x80000000


def test_long_topic_takes_the_second_form() -> None:
    longest, longer = message(topic=b"t" * 127), message(topic=b"t" * 128)
    assert longest[4:8] == bytes.fromhex("DAA320A7")
    assert longer[4:8] == bytes.fromhex("DAA320AB")
    assert len(longer) == len(longest) + 2
    for size in (127, 128, 300, 32_767):
        record = message(topic=b"t" * size)
        assert decode_message(record).topic == "t" * size
        assert stored_properties(record) == "TAGS\x01A\x02"


@pytest.mark.parametrize(
    "changes",
    [
        {"properties": b"p" * 32_768},  # Java reads the length as a signed number of 16 bits
        {"topic": b"t" * 32_768},
        {"born_host": b"\x00" * 20},
        {"store_host": b"\x00" * 7},
    ],
)
def test_what_no_record_can_hold(changes: dict[str, bytes]) -> None:
    with pytest.raises(MessageError):
        message(**changes)


def test_longest_properties() -> None:
    record = message(properties=b"p" * 32_767)
    assert len(decode_message(record).properties) == 32_767


def test_flags_of_long_hosts_are_cleared() -> None:
    record = message(sys_flag=SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6 | SysFlag.COMPRESSED)
    assert decode_message(record).sys_flag == SysFlag.COMPRESSED


def test_record_with_ipv6_hosts() -> None:
    record = message()
    born, store = pack_host("::1", 1), pack_host("2001:db8::2", 2)
    longer = bytearray(record[:48] + born + record[56:64] + store + record[72:])
    longer[:4] = struct.pack(">i", len(longer))
    longer[36:40] = struct.pack(">i", SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
    decoded = decode_message(bytes(longer))
    assert decoded.born_host == born
    assert decoded.store_host == store
    assert (decoded.body, decoded.topic, decoded.store_ms) == (b"hello", "T", 1_795_251_732_950)


def test_blank_filler_is_no_record() -> None:
    blank = struct.pack(">iI", 100, 0xCBD43194) + b"\x00" * 92
    with pytest.raises(MessageError, match="magic"):
        decode_messages(blank)


@given(RECORDS)
def test_records_come_back(parts: dict[str, Any]) -> None:
    assert parts_of(decode_message(encode_message(**parts))) == parts


@given(RECORDS)
def test_records_are_encoded_again(parts: dict[str, Any]) -> None:
    record = encode_message(**parts)
    assert encode_again(decode_message(record)) == record


@given(st.lists(RECORDS, max_size=4))
def test_records_in_a_row(several: list[dict[str, Any]]) -> None:
    data = b"".join(encode_message(**parts) for parts in several)
    assert [parts_of(decoded) for decoded in decode_messages(data)] == several
    assert physical_offsets(data) == [parts["physical_offset"] for parts in several]


@given(RECORDS, INT64, INT64)
def test_stamp(parts: dict[str, Any], queue_offset: int, store_ms: int) -> None:
    expected = encode_message(**(parts | {"queue_offset": queue_offset, "store_ms": store_ms}))
    assert stamp(encode_message(**parts), queue_offset, store_ms) == expected


@given(RECORDS, st.data())
def test_damaged_records_are_read_or_refused(parts: dict[str, Any], data: st.DataObject) -> None:
    record = bytearray(encode_message(**parts))
    for _ in range(data.draw(st.integers(1, 4))):
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(record[: data.draw(st.integers(0, len(record)))])
    assert len(physical_offsets(damaged)) <= 1 + len(damaged) // 91
    try:
        decoded = decode_messages(damaged)
    except MessageError:
        return
    assert sum(len(one.body) for one in decoded) <= len(damaged)


@given(st.binary(max_size=200))
def test_any_bytes_are_records_or_refused(data: bytes) -> None:
    with suppress(MessageError):
        assert bool(decode_messages(data)) is bool(data)


def test_bytes_behind_a_record() -> None:
    with pytest.raises(MessageError, match=r"^1 bytes follow"):
        decode_message(message() + b"\x00")


def without_body(size: int) -> bytes:
    """Return bytes that are a record if a body may end before it begins, within its own length."""
    head = message(body=b"")[4:84]
    return struct.pack(">i", 346 + size) + head + struct.pack(">i", size) + bytes(258 + size)


@pytest.mark.parametrize(
    "record",
    [
        struct.pack(">i", len(message()) + 1) + message()[4:],
        struct.pack(">i", len(message()) - 1) + message()[4:],
        message()[:-1],
        without_body(-4),
        without_body(-1),
    ],
)
def test_a_record_whose_lengths_do_not_fit_is_refused(record: bytes) -> None:
    with pytest.raises(MessageError, match="the lengths in the record at byte 0 do not fit"):
        decode_messages(record)


ITEMS = st.lists(st.builds(BatchItem, INT32, st.binary(max_size=50), TEXT), max_size=5)


def test_every_byte_of_a_batch() -> None:
    assert encode_batch([BatchItem(5, b"ab", "K\x01v")]) == bytes.fromhex(
        "0000001b 00000000 00000000 00000005 00000002 6162 0003 4b0176"
    )


@given(ITEMS)
def test_batches_come_back(items: list[BatchItem]) -> None:
    assert split_batch(encode_batch(items)) == items


@given(ITEMS.filter(bool), st.data())
def test_cut_batches_are_refused(items: list[BatchItem], data: st.DataObject) -> None:
    whole = encode_batch(items)
    ends = {len(encode_batch(items[:count])) for count in range(len(items) + 1)}
    cut = data.draw(st.integers(0, len(whole)).filter(lambda at: at not in ends))
    with pytest.raises(MessageError):
        split_batch(whole[:cut])


@given(st.binary(max_size=100))
def test_any_bytes_are_a_batch_or_refused(data: bytes) -> None:
    try:
        items = split_batch(data)
    except MessageError:
        return
    assert len(items) <= len(data) // 22


@pytest.mark.parametrize("size", [0, 23, 27, -1])
def test_the_size_of_a_batch_item_is_not_read(size: int) -> None:
    """The Erlang client's (rocketmq-client-erl) does not count itself: 23."""
    items = [BatchItem(5, b"ab", "K\x01v"), BatchItem(0, b"c", "")]
    whole = encode_batch(items)
    assert split_batch(struct.pack(">i", size) + whole[4:]) == items


@pytest.mark.parametrize(
    "body_size",
    [
        -22,  # the next item would begin where this one does
        -20,
        21,
    ],
)
def test_a_batch_whose_lengths_do_not_fit_is_refused(body_size: int) -> None:
    item = struct.pack(">iiIii", 22 + body_size, 0, 0, 0, body_size) + bytes(22)
    with pytest.raises(MessageError, match="the batch's item at byte 24 do not fit"):
        split_batch(encode_batch([BatchItem(0, b"ab", "")]) + item, most=9)


def test_batch_item_that_is_too_long() -> None:
    with pytest.raises(MessageError):
        encode_batch([BatchItem(0, b"", "p" * (MAX_PROPERTIES + 1))])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("A", 65),
        ("TagA", 2598919),
        ("polygenelubricants", -2147483648),
        ("\U0001f600", 1772899),
    ],
)
def test_java_hash(text: str, expected: int) -> None:
    # The first three values are computed by hand, the last two are from Java.
    assert java_hash(text) == expected


def test_java_hash_keeps_no_long_text() -> None:
    text = "A" * 100_000
    before = sys.getrefcount(text)
    java_hash(text)
    assert sys.getrefcount(text) == before


@given(TEXT, TEXT)
def test_java_hash_of_joined_texts(first: str, second: str) -> None:
    units = len(second.encode("utf-16-be")) // 2
    joined = java_hash(first) * 31**units + java_hash(second)
    assert (java_hash(first + second) - joined) % (1 << 32) == 0
    assert -(1 << 31) <= java_hash(first) < 1 << 31


def test_offset_msg_id_from_the_protocol() -> None:
    # From upstream's response to a send to 127.0.0.2:21911, at offset 0.
    host = pack_host("127.0.0.2", 0x5597)
    assert offset_msg_id(host, 0) == "7F000002000055970000000000000000"
    assert parse_offset_msg_id("7F000002000055970000000000000000") == (host, 0)


@given(HOSTS | st.binary(min_size=20, max_size=20), INT64)
def test_offset_msg_ids_come_back(host: bytes, offset: int) -> None:
    assert parse_offset_msg_id(offset_msg_id(host, offset)) == (host, offset)


@pytest.mark.parametrize("text", ["", "7F", "7F" * 17, "zz" * 16, "7F " * 16, "7F" * 15 + " 7"])
def test_no_offset_msg_id(text: str) -> None:
    with pytest.raises(MessageError):
        parse_offset_msg_id(text)


@given(st.ip_addresses(), st.integers(0, 65_535))
def test_hosts_come_back(address: Any, port: int) -> None:
    assert unpack_host(pack_host(str(address), port)) == (str(address), port)


def test_uniq_keys_differ_and_tell_the_time_of_the_month() -> None:
    born_ms = 1_795_251_732_949
    keys = [uniq_key(born_ms) for _ in range(70_000)]
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 32 and key == key.upper() for key in keys)
    month = time.localtime(born_ms // 1000)[:2]
    began = time.mktime((*month, 1, 0, 0, 0, 0, 0, -1))
    assert int(keys[0][20:28], 16) == born_ms - began * 1000


def test_a_uniq_key_in_a_process_with_a_high_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 4_194_303)
    assert uniq_key(0)[8:12] == "FFFF"


@given(st.binary(max_size=50), st.integers(0, 2**31), st.integers(0, 2**40))
def test_more_properties_behind_its_own(body: bytes, queue_offset: int, store_ms: int) -> None:
    record = stamp(message(body=body, properties=b"a\x01b\x02"), queue_offset, store_ms)
    found = decode_message(add_properties(record, "c\x01d\x02"))
    assert found.properties == "a\x01b\x02c\x01d\x02"
    assert (found.body, found.queue_offset, found.store_ms) == (body, queue_offset, store_ms)


def test_more_properties_only_where_they_fit() -> None:
    for size in (MAX_PROPERTIES - 4, MAX_PROPERTIES - 3):
        properties = b"a\x01" + b"b" * (size - 3) + b"\x02"
        record = message(properties=properties)
        fits = size + 4 <= MAX_PROPERTIES
        assert (add_properties(record, "c\x01d\x02") != record) == fits
