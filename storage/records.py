"""Records as `messages` has them: packed, as a third to a half of each is what nearly all of them have in common.

A small record is a frame of zstd with a dictionary of what a record begins with and of the properties that clients and
brokers give; a larger one stays as it is. A record begins with its length, so none begins with zstd's magic number. The
frame has a checksum: a record that has changed by a bit is no record any more.
"""

from __future__ import annotations

from typing import Final

import zstandard

from storage.environment import Tables
from storage.keys import Terms, TermsOf
from storage.reader import Reader

MOST_PACKED: Final = 4_096
"""Bytes of a record over which it stays as it is: clients pack larger bodies themselves (compressMsgBodyOverHowmuch),
and packing them again would hold everybody up."""

LEVEL: Final = -1
"""Of zstd's levels: 2 to 3 us for a record, and 0.4 to unpack it. Level 1 takes 5 to 8, for up to 5 % less."""

DICTIONARY: Final = (
    b"CORRELATION_ID\x01\x02REPLY_TO_CLIENT\x01\x02TTL\x013000\x02TRAN_MSG\x01true\x02PGROUP\x01\x02INSTANCE_ID\x01\x02"
    b"ORIGIN_MESSAGE_ID\x01\x02RETRY_TOPIC\x01\x02REAL_TOPIC\x01%RETRY%\x02"
    b"TIMER_DELAY_SEC\x01\x02TIMER_DELAY_MS\x01\x02DELAY\x01\x02"
    # Length, magic number and CRC-32; queue, flag, offsets and system flag; when and where it was born and stored.
    b"\x00\x00\x02\x58\xda\xa3\x20\xa7\x12\x34\x56\x78"
    + bytes(28)
    + b"\x00\x00\x01\x9a\xaa\xbb\xcc\xdd"
    b"\x7f\x00\x00\x01\x00\x00\xa1\x22\x00\x00\x01\x9a\xa1\xb1\xc1\xd1\x7f\x00\x00\x01\x00\x00\x2a\x9f"
    + bytes(12)
    + b"\x00\x00\x01\x00"
    b"KEYS\x01order-1\x02UNIQ_KEY\x017F00000104D2\x02WAIT\x01true\x02TIMER_DELIVER_MS\x011763801000000\x02"
    b"TAGS\x01close\x02REAL_TOPIC\x01t\x02REAL_QID\x010\x02TIMER_OUT_MS\x011763801000000\x02"
    b"MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"
)
"""What records have in common; what most of them have stands last. What was packed with it is unpacked with it alone:
it changes with the format (`upgrades`) or never."""

_dictionary = zstandard.ZstdCompressionDict(DICTIONARY, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
_dictionary.precompute_compress(level=LEVEL)
_compress = zstandard.ZstdCompressor(
    level=LEVEL, dict_data=_dictionary, write_dict_id=False, write_checksum=True
).compress
_decompress = zstandard.ZstdDecompressor(dict_data=_dictionary).decompress


def pack(record: bytes) -> bytes:
    """What is stored of a record."""
    if len(record) > MOST_PACKED:
        return record
    packed = _compress(record)
    return packed if len(packed) < len(record) else record


def unpack(stored: bytes) -> bytes | None:
    """The record that is stored so; None where it is damaged."""
    if not stored.startswith(zstandard.FRAME_HEADER):
        return stored
    try:
        return _decompress(stored)
    except (zstandard.ZstdError, MemoryError):
        # A damaged frame can claim any size.
        return None


def read_record(txn: Reader, tables: Tables, number: bytes) -> bytes | None:
    """The record of a message; None where there is none, or none that can be read: the check of a folder tells.

    :param number: its sequence, packed.
    """
    stored = txn.get(number, db=tables.messages)
    return unpack(stored) if stored is not None else None


def read_terms(terms_of: TermsOf, record: bytes | None) -> Terms | None:
    """The terms of a record; None where there is no record, or none that can be read."""
    try:
        return terms_of(record) if record is not None else None
    except ValueError:
        return None
