"""The record in which a message is stored and pulled, batches, and ids (MessageDecoder).

    offset  bytes                             offset  bytes
     0      4  size of the record             48      8  born host: IPv4, int32 port
     4      4  magic                          56      8  store time, epoch ms
     8      4  CRC-32 of the body, 31 bits    64      8  store host: IPv4, int32 port
    12      4  queue id                       72      4  reconsume times
    16      4  flag of the user               76      8  offset of the prepared transaction
    20      8  offset in the queue            84      4  body length, and the body
    28      8  physical offset                        1  topic length (2 in V2), and the topic
    36      4  sysFlag                                2  properties length, and the properties
    40      8  born time, epoch ms

All numbers are big-endian and signed. With SysFlag.BORN_HOST_V6 or STORE_HOST_V6 that host has 20 bytes in place of 8,
and all that follows moves on. Go and C++ clients can read neither such hosts nor V2, so hosts are written as IPv4.
"""

from __future__ import annotations

import functools
import ipaddress
import itertools
import os
import re
import struct
import time
import zlib
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from gateway.wire.codes import SysFlag

MAGIC_V1: Final = 0xDAA320A7 - (1 << 32)
MAGIC_V2: Final = 0xDAA320AB - (1 << 32)
"""As V1, but with two bytes of topic length, for topics over 127 bytes (MessageVersion)."""

MAX_PROPERTIES: Final = 32_767
"""Most bytes of a record's properties: their length is a signed 16-bit number."""

CRC_MASK: Final = 0x7FFFFFFF
"""A record has 31 bits of its body's CRC-32 (UtilAll.crc32)."""

_MAX_TOPIC_V1: Final = 127
_QUEUE_OFFSET: Final = 20
_STORE_TIME: Final = 56
_BODY_SIZE: Final = 84
_FIXED_SIZE: Final = 91
"""Bytes of a V1 record with IPv4 hosts, without its body, topic and properties."""
_OFFSET_MSG_ID: Final = re.compile("[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}")

_V6_HOSTS: Final = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
_HEADS: Final = {
    store_bit | born_bit: struct.Struct(f">iiIiiqqiq{born}sq{store}siqi")
    for store_bit, store in ((0, 8), (SysFlag.STORE_HOST_V6, 20))
    for born_bit, born in ((0, 8), (SysFlag.BORN_HOST_V6, 20))
}
"""All in front of the body, by the bits of sysFlag that tell how many bytes the hosts have."""
_LAST_OF_SYS_FLAG: Final = 39
"""Where the byte of these bits stands."""

_pack_head = _HEADS[0].pack
_pack_long = struct.Struct(">q").pack
_put_long = struct.Struct(">q").pack_into
_unpack_size_and_offset = struct.Struct(">i24xq").unpack_from
_pack_uniq = struct.Struct(">HIIH").pack
_unpack_item = struct.Struct(">iiIii").unpack_from


class MessageError(ValueError):
    """Bytes that are not a record or a batch, or text that is not an id."""


class Message(msgspec.Struct, gc=False, kw_only=True):
    """A decoded record. Times are epoch ms; hosts are packed as by `pack_host`."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    store_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int
    body: bytes
    body_crc: int
    """CRC-32 of the body as the record has it; only `decode_stored` verifies it."""
    properties: str


def encode_message(
    *,
    topic: bytes,
    queue_id: int,
    flag: int,
    sys_flag: int,
    born_ms: int,
    born_host: bytes,
    store_ms: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_offset: int,
    physical_offset: int,
    queue_offset: int,
    body: bytes,
    properties: bytes,
) -> bytes:
    """Return the record of a message. Hosts have 8 bytes; sysFlag bits that say otherwise are cleared.

    :raises MessageError: when the topic or the properties are too long, or a host is not IPv4.
    """
    topic_size = len(topic)
    properties_size = len(properties)
    if properties_size > MAX_PROPERTIES:
        raise MessageError(f"{properties_size} bytes of properties; {MAX_PROPERTIES} are possible")
    if len(born_host) != 8 or len(store_host) != 8:
        raise MessageError("the hosts of a record have 8 bytes: IPv4 address and port")
    magic = MAGIC_V1
    size = _FIXED_SIZE + len(body) + topic_size + properties_size
    if topic_size > _MAX_TOPIC_V1:
        if topic_size > 32_767:
            raise MessageError(f"a topic of {topic_size} bytes; 32767 are possible")
        magic = MAGIC_V2
        size += 1
    head = _pack_head(
        size,
        magic,
        zlib.crc32(body) & CRC_MASK,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag & ~_V6_HOSTS,
        born_ms,
        born_host,
        store_ms,
        store_host,
        reconsume_times,
        prepared_offset,
        len(body),
    )
    return b"".join(
        (
            head,
            body,
            topic_size.to_bytes(1 if magic == MAGIC_V1 else 2, "big"),
            topic,
            properties_size.to_bytes(2, "big"),
            properties,
        )
    )


def encode_again(message: Message) -> bytes:
    """Return the record of a message that was decoded, and perhaps changed since.

    :raises MessageError: as from `encode_message`.
    """
    return encode_message(
        topic=message.topic.encode(),
        queue_id=message.queue_id,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_ms=message.born_ms,
        born_host=message.born_host,
        store_ms=message.store_ms,
        store_host=message.store_host,
        reconsume_times=message.reconsume_times,
        prepared_offset=message.prepared_offset,
        physical_offset=message.physical_offset,
        queue_offset=message.queue_offset,
        body=message.body,
        properties=message.properties.encode(),
    )


def stamp(record: bytes, queue_offset: int, store_ms: int) -> bytes:
    """Return the record with its queue offset and store time set; its born host must be IPv4."""
    stamped = bytearray(record)
    stamp_at(stamped, 0, queue_offset, store_ms)
    return bytes(stamped)


def stamp_at(records: bytearray, position: int, queue_offset: int, store_ms: int) -> None:
    """Set the queue offset and store time of the record that begins at `position`."""
    _put_long(records, position + _QUEUE_OFFSET, queue_offset)
    _put_long(records, position + _STORE_TIME, store_ms)


def add_properties(record: bytes, properties: str) -> bytes:
    """Return the record with more properties after its own, or the record unchanged if they do not fit."""
    added = properties.encode()
    own_size = len(decode_message(record).properties.encode())
    size = own_size + len(added)
    if size > MAX_PROPERTIES:
        return record
    at = len(record) - own_size - 2
    parts = (record[4:at], size.to_bytes(2, "big"), record[at + 2 :], added)
    return b"".join(((len(record) + len(added)).to_bytes(4, "big"), *parts))


def decode_message(record: bytes) -> Message:
    """Decode one whole record.

    :raises MessageError: when it is not exactly one record.
    """
    message, end = _decode_at(record, 0)
    if end != len(record):
        raise MessageError(f"{len(record) - end} bytes follow the record")
    return message


def decode_stored(record: bytes) -> Message:
    """Decode one whole record from the disk. No client verifies the checksum of the body, so it is done here.

    :raises MessageError: when it is not exactly one record, or its body was changed.
    """
    message = decode_message(record)
    if zlib.crc32(message.body) & CRC_MASK != message.body_crc:
        raise MessageError("the body does not have the record's checksum")
    return message


def decode_messages(records: bytes) -> list[Message]:
    """Decode records that follow one another, as in the body of a pull's answer.

    :raises MessageError: when the bytes are anything else.
    """
    messages = []
    position = 0
    while position < len(records):
        message, position = _decode_at(records, position)
        messages.append(message)
    return messages


def physical_offsets(records: bytes) -> list[int]:
    """Return the physical offsets of records as `decode_messages` takes them, up to what is no record."""
    found = []
    position = 0
    while position + _FIXED_SIZE <= len(records):
        size, offset = _unpack_size_and_offset(records, position)
        if size < _FIXED_SIZE:
            break
        found.append(offset)
        position += size
    return found


def stored_properties(record: bytes) -> str:
    """Return the properties of a record with IPv4 hosts, as from `encode_message`, without decoding the rest."""
    at = _BODY_SIZE + 4 + int.from_bytes(record[_BODY_SIZE : _BODY_SIZE + 4], "big")
    if record[7] == MAGIC_V1 & 0xFF:
        at += 1 + record[at]
    else:
        at += 2 + int.from_bytes(record[at : at + 2], "big")
    return record[at + 2 :].decode(errors="replace")


def _decode_at(data: bytes, start: int) -> tuple[Message, int]:
    try:
        head = _HEADS[data[start + _LAST_OF_SYS_FLAG] & _V6_HOSTS]
        (
            size,
            magic,
            crc,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_ms,
            born_host,
            store_ms,
            store_host,
            reconsume_times,
            prepared_offset,
            body_size,
        ) = head.unpack_from(data, start)
        body_start = start + head.size
        body_end = body_start + body_size
        if magic == MAGIC_V1:
            topic_start = body_end + 1
            topic_end = topic_start + data[body_end]
        elif magic == MAGIC_V2:
            topic_start = body_end + 2
            topic_end = topic_start + int.from_bytes(data[body_end:topic_start], "big")
        else:
            raise MessageError(f"a record at byte {start} has magic {magic & 0xFFFFFFFF:#x}")
    except (IndexError, struct.error) as error:
        raise MessageError(f"a record at byte {start} is cut off") from error
    properties_start = topic_end + 2
    end = properties_start + int.from_bytes(data[topic_end:properties_start], "big")
    if body_size < 0 or end != start + size or end > len(data):
        raise MessageError(f"the lengths in the record at byte {start} do not fit its size {size}")
    message = Message(
        topic=data[topic_start:topic_end].decode(errors="replace"),
        queue_id=queue_id,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        flag=flag,
        sys_flag=sys_flag,
        born_ms=born_ms,
        born_host=born_host,
        store_ms=store_ms,
        store_host=store_host,
        reconsume_times=reconsume_times,
        prepared_offset=prepared_offset,
        body=data[body_start:body_end],
        body_crc=crc,
        properties=data[properties_start:end].decode(errors="replace"),
    )
    return message, end


class BatchItem(NamedTuple):
    """One message of a batch; all share the topic and queue of the request."""

    flag: int
    body: bytes
    properties: str


def split_batch(body: bytes, most: int | None = None) -> list[BatchItem]:
    """Return the messages in the body of a batch, in their order.

        | item size 4 | magic 4 | CRC 4 | flag 4 |
        | body size 4 | body | properties size 2 | properties |

    Senders leave magic and CRC at 0. The size is not read, as by RocketMQ (MessageExtEncoder): it counts itself, but
    not in the Erlang client.

    :param most: the highest number of messages.
    :raises MessageError: when the lengths do not fit, or there are too many messages.
    """
    items: list[BatchItem] = []
    position = 0
    while position < len(body):
        if len(items) == most:
            raise MessageError(f"it has more than {most} messages")
        try:
            _, _, _, flag, body_size = _unpack_item(body, position)
        except struct.error as error:
            raise MessageError(f"the batch is cut off at byte {position}") from error
        body_end = position + 20 + body_size
        properties_end = body_end + 2 + int.from_bytes(body[body_end : body_end + 2], "big")
        if body_size < 0 or properties_end > len(body):
            raise MessageError(f"the lengths in the batch's item at byte {position} do not fit")
        items.append(
            BatchItem(
                flag,
                body[position + 20 : body_end],
                body[body_end + 2 : properties_end].decode(errors="replace"),
            )
        )
        position = properties_end
    return items


def encode_batch(items: Iterable[BatchItem]) -> bytes:
    """Return the body of a batch of these messages.

    :raises MessageError: when the properties of one are too long.
    """
    parts = []
    for flag, body, properties in items:
        encoded = properties.encode()
        if len(encoded) > MAX_PROPERTIES:
            raise MessageError(f"{len(encoded)} bytes of properties; {MAX_PROPERTIES} are possible")
        size = 22 + len(body) + len(encoded)
        parts.append(struct.pack(">iiIii", size, 0, 0, flag, len(body)))
        parts.append(body)
        parts.append(len(encoded).to_bytes(2, "big"))
        parts.append(encoded)
    return b"".join(parts)


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`, over UTF-16 units; filters compare this hash of a message's tag."""
    return _short_hash(text) if len(text) <= _SHORT else _hash(text)


def _hash(text: str) -> int:
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


_SHORT: Final = 256
"""Most characters of a text whose hash is cached: a client can send thousands of long ones."""
_short_hash = functools.lru_cache(maxsize=4096)(_hash)


def pack_host(host: str, port: int) -> bytes:
    """Return an address as in records and ids: the IP in 4 or 16 bytes, the port in 4.

    :raises ValueError: when `host` is not an IP address.
    """
    return ipaddress.ip_address(host).packed + port.to_bytes(4, "big")


def unpack_host(host: bytes) -> tuple[str, int]:
    """Return the IP address and port of a packed host of 8 or 20 bytes."""
    return str(ipaddress.ip_address(host[:-4])), int.from_bytes(host[-4:], "big")


def offset_msg_id(host: bytes, physical_offset: int) -> str:
    """Return the id that a server gives to a stored message: host and physical offset in upper-case hex."""
    return (host + _pack_long(physical_offset)).hex().upper()


def parse_offset_msg_id(text: str) -> tuple[bytes, int]:
    """Return the host and physical offset of an offset id. A UNIQ_KEY can look the same and gives arbitrary numbers.

    :raises MessageError: when it is not 32 or 56 hex digits.
    """
    if not _OFFSET_MSG_ID.fullmatch(text):
        raise MessageError(f"no message id: {text[:80]!r}")
    packed = bytes.fromhex(text)
    return packed[:-8], int.from_bytes(packed[-8:], "big", signed=True)


_uniq_place: Final = os.urandom(4)
_uniq_numbers = itertools.count(int.from_bytes(os.urandom(6), "big"))


def uniq_key(born_ms: int) -> str:
    """Return a new UNIQ_KEY for a message whose sender gave it none (MessageClientIDSetter), in upper-case hex.

        | random, where clients have their IP 4 | process 2 |
        | count, high part 4 | ms since the month began 4 | count, low part 2 |

    The month is that of local time at `born_ms`, epoch ms. Tools estimate from the key when a message was born, and
    search around that time.
    """
    count = next(_uniq_numbers) & 0xFFFF_FFFF_FFFF
    born = time.localtime(born_ms // 1000)
    month = time.mktime((born.tm_year, born.tm_mon, 1, 0, 0, 0, 0, 0, -1))
    key = _uniq_place + _pack_uniq(
        os.getpid() & 0xFFFF,
        count >> 16,
        (born_ms - int(month) * 1000) & 0xFFFF_FFFF,
        count & 0xFFFF,
    )
    return key.hex().upper()
