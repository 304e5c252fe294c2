"""Messages whose retention is over: they have left their queue, or the aborted messages, and are still to be removed.

Messages expire in the order in which they fired, but lie in the order in which they were accepted. If each was removed
as soon as it expires, it would change a page of records, one of ids and one of keys of its own. So it is only noted
here, and removed together with its neighbours (`retention.remove_expired`). Until then no look-up finds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, takewhile
from typing import Final

from storage.environment import Tables
from storage.keys import (
    EXPIRED_VALUE_SIZE,
    QUEUE_VALUE,
    U64,
    IdRow,
    Terms,
    pack_u64,
    queue_prefix,
)
from storage.logged import LoggedTransaction
from storage.reader import Reader
from storage.shapes import is_queued_value

LAST: Final = b"\xff" * U64.size
"""The last packed sequence that there can be."""


def note_expired(txn: LoggedTransaction, tables: Tables, numbers: Iterable[bytes]) -> None:
    """Note that messages have expired.

    :param numbers: their sequences, packed.
    """
    for chunk, bits in _by_chunk(numbers):
        _put(txn, tables, chunk, _bits(txn, tables, chunk) | bits)


def forget_expired(txn: LoggedTransaction, tables: Tables, numbers: Iterable[bytes]) -> None:
    """Forget that messages have expired, because they are removed.

    :param numbers: their sequences, packed.
    """
    for chunk, bits in _by_chunk(numbers):
        _put(txn, tables, chunk, _bits(txn, tables, chunk) & ~bits)


def is_expired(txn: Reader, tables: Tables, number: bytes, terms: Terms, row: IdRow) -> bool:
    """Whether a message has expired. Where it is noted here, but its queue says that it cannot have left, or it is
    still noted as aborted, a damaged row was read.

    :param number: its sequence, packed.
    :param row: its row in `ids`.
    """
    if not _bits(txn, tables, _chunk_of(number)) >> number[-1] & 1:
        return False
    if row.aborted_ms:
        return txn.get(pack_u64(row.aborted_ms) + number, db=tables.aborted) is None
    oldest_ms = oldest_in_queue(txn, tables, queue_prefix(terms.topic, terms.queue))
    return can_have_left(oldest_ms, row.due_ms, terms)


def can_have_left(oldest_ms: int | None, due_ms: int, terms: Terms) -> bool:
    """Whether a message can have left its queue: what entered a queue later than its oldest message is still there.

    :param oldest_ms: from `oldest_in_queue`.
    """
    return oldest_ms is None or max(due_ms, terms.stored_ms) <= oldest_ms


def oldest_in_queue(txn: Reader, tables: Tables, prefix: bytes) -> int | None:
    """Return when a queue's oldest message entered it: None if it is empty, 0 if its first row cannot be read.

    :param prefix: of the queue's rows.
    """
    cursor = txn.cursor(db=tables.queues)
    if not cursor.set_range(prefix) or cursor.key()[:-8] != prefix:
        return None
    value = cursor.value()
    return QUEUE_VALUE.unpack(value)[3] if is_queued_value(value) else 0


def expired_numbers(
    txn: Reader, tables: Tables, begin: bytes = b"", last: bytes = LAST
) -> Iterator[bytes]:
    """Return the packed sequences of expired messages in their order, from one on and up to another. Nothing may
    be changed meanwhile."""
    cursor = txn.cursor(db=tables.expired)
    if not cursor.set_range(_chunk_of(begin)):
        return
    numbers = (number for row in cursor for number in numbers_in(*row))
    for number in takewhile(lambda number: number <= last, numbers):
        if number >= begin:
            yield number


def numbers_in(chunk: bytes, value: bytes) -> Iterator[bytes]:
    """Return the packed sequences that a row of `expired` notes, in their order."""
    bits = int.from_bytes(value)
    while bits:
        lowest = bits & -bits
        yield chunk + bytes((lowest.bit_length() - 1,))
        bits ^= lowest


def rows_of(numbers: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Return the rows of `expired` that note these packed sequences."""
    for chunk, bits in _by_chunk(numbers):
        yield chunk, bits.to_bytes(EXPIRED_VALUE_SIZE)


def _chunk_of(number: bytes) -> bytes:
    return number[:-1]


def _by_chunk(numbers: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    """Return the chunks of these packed sequences, each with the bits of those that are in it."""
    for chunk, own in groupby(sorted(set(numbers)), _chunk_of):
        yield chunk, sum(1 << number[-1] for number in own)


def _bits(txn: Reader, tables: Tables, chunk: bytes) -> int:
    value = txn.get(chunk, db=tables.expired)
    # A damaged row may be longer.
    return int.from_bytes(value[-EXPIRED_VALUE_SIZE:]) if value is not None else 0


def _put(txn: LoggedTransaction, tables: Tables, chunk: bytes, bits: int) -> None:
    if bits:
        txn.put(chunk, bits.to_bytes(EXPIRED_VALUE_SIZE), db=tables.expired)
    else:
        txn.delete(chunk, db=tables.expired)
