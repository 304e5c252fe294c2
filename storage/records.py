"""Records as `messages` stores them: packed, because nearly all records have a third to a half of their bytes in
common.

A small record is a frame of zstd. Its dictionary has the beginning of a record, the properties that clients and brokers
set, and how often letters, lengths and distances occur in packed records. A larger record is stored unchanged. A record
begins with its length, so it never begins with zstd's magic number. The frame has a checksum: a record in which a bit
has changed can no longer be read.
"""

from __future__ import annotations

import struct
from typing import Final

import zstandard

from storage.environment import Tables
from storage.keys import Terms, TermsOf
from storage.parts import join
from storage.reader import Reader

MOST_PACKED: Final = 5_120
"""Bytes of a record above which it is stored unchanged: 4 KiB of body and 1 KiB of the rest. Clients compress larger
bodies themselves (compressMsgBodyOverHowmuch), and compressing them again would delay everybody."""

LEVEL: Final = 2
"""The level of zstd. Level 1 takes as long, for up to 6 % more bytes; level 3 takes a third longer, for as many."""

CONTENT: Final = (
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
"""What records have in common, with the most frequent parts last. A record can only be unpacked with the dictionary
that packed it, so this changes only with the format (`upgrades`)."""

_MAGIC_AND_ID: Final = struct.pack("<II", 0xEC30A437, 1)
"""A dictionary's magic number, and its id, which frames do not repeat."""

_TABLES: Final = bytes.fromhex(
    "4010a8a2da06303333333321620623c69199446ad6709a888444dd46a6bfb26bff5eff0db14da4ffff2c4e77f7dc0a656666"
    "66a64ca41590ee8c090230c6981d531303400834194e257703000004404bd38f0e63d3b17490619898861844000000004000"
    "0000000000040f0000000044ea0364e2a5b260601488c86252104761148cb121841a0000"
)
"""The entropy tables of a dictionary (RFC 8878, section 5): Huffman's for literals, then FSE's for offsets, match
lengths and literal lengths. With them no frame needs tables of its own. They are those that ZDICT_finalizeDictionary
(level 2) makes for `CONTENT` of 8,000 records with all kinds of properties and bodies of text."""

_FIRST_OFFSETS: Final = struct.pack("<III", 1, 4, 8)
"""The offsets with which each frame begins: those of a frame without a dictionary."""

# Frames of format 7 were packed with the content alone. They refer only to that, so they are unpacked just the same.
_dictionary = zstandard.ZstdCompressionDict(
    _MAGIC_AND_ID + _TABLES + _FIRST_OFFSETS + CONTENT, dict_type=zstandard.DICT_TYPE_FULLDICT
)
_dictionary.precompute_compress(level=LEVEL)
_compress = zstandard.ZstdCompressor(
    level=LEVEL, dict_data=_dictionary, write_dict_id=False, write_checksum=True
).compress
_decompress = zstandard.ZstdDecompressor(dict_data=_dictionary).decompress


def pack(record: bytes) -> bytes:
    """Return the stored form of a record."""
    if len(record) > MOST_PACKED:
        return record
    packed = _compress(record)
    return packed if len(packed) < len(record) else record


def unpack(stored: bytes) -> bytes | None:
    """Return the record of a stored form; None when it is damaged."""
    if not stored.startswith(zstandard.FRAME_HEADER):
        return stored
    try:
        return _decompress(stored)
    except (zstandard.ZstdError, MemoryError):
        # A damaged frame can claim any size.
        return None


def read_record(txn: Reader, tables: Tables, number: bytes) -> bytes | None:
    """Return a message's record; None when there is none, or when it cannot be read, which the check of a folder
    reports.

    :param number: its sequence, packed.
    """
    value = txn.get(number, db=tables.messages)
    return record_in(txn, tables, number, value) if value is not None else None


def record_in(txn: Reader, tables: Tables, number: bytes, value: bytes) -> bytes | None:
    """Return the record in a row of `messages`; None when it cannot be read."""
    stored = join(txn, tables, number, value)
    return unpack(stored) if stored is not None else None


def read_terms(terms_of: TermsOf, record: bytes | None) -> Terms | None:
    """Return the terms of a record; None when there is no record, or it cannot be read."""
    try:
        return terms_of(record) if record is not None else None
    except ValueError:
        return None
