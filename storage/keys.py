"""The layout of every key and value in the database: the one file that shows what is on disk.

All integers are big-endian, so that the order of bytes is the order of the numbers.

    table     key                                     value
    messages  sequence 8                              the record, as a pull returns it, packed: see `records`;
                                                      or 0xff | its packed size 4 | its beginning, if it was cut
    parts     sequence 8 | number 4                   a part of the rest: see `parts`
    timers    due ms 8 | topic | 0 | sequence 8 | id  queue 4, perhaps with `NEVER_MOVED` | tag hash 4 | size 4
              (timers of messages accepted lately are in memory: see `inbox`)
    ids       id | 0 | sequence 8                     due ms 8 (0: not timed) [| aborted ms 8 (0: not)
                                                      [| rescheduled ms 8 | due before ms 8]]
    keys      topic | 0 | key | 0 | sequence 8        (empty)
    queues    topic | 0 | queue 4 | offset 8          sequence 8 | tag hash 4 | size 4 | stored ms 8
    ends      topic | 0 | queue 4                     first offset 8 | next offset 8
    held      topic | 0 | due span 8                  rows in `timers` 8
    hours     due hour 8 | topic                      rows in `timers` 8
    totals    topic                                   rows in `timers` and `waiting` 8 | bytes of their messages 8
    paused    topic                                   since ms 8 | rows in `waiting` 8 | resumed 1
    waiting   topic | 0 | due ms 8 | sequence 8 | id  as in `timers`
    debounced topic | 0 | key                         sequence 8
    aborted   aborted ms 8 | sequence 8               (empty)
    expired   sequence 8 without its last byte        a bit for each value of that byte, 32 bytes in all: see `expired`
    halves    sequence 8                              next check ms 8 | checks made 4
    checks    next check ms 8 | sequence 8            (empty)
    pops      back ms 8 | group | 0 | topic | 0 | queue 4 | offset 8
                                                      popped ms 8, perhaps with `SUSPENDED`
    recurring topic | 0 | name                        definition, defined by the caller
    recurrences
              topic | 0 | name                        next ms 8 | fired 8 | paused 1
    planned   next ms 8 | topic | 0 | name            (empty)
    offsets   group | 0 | topic | 0 | queue 4         offset 8
    topics    topic                                   settings, defined by the caller
    groups    group                                   settings, defined by the caller
    meta      name                                    see below: `FORMAT` to `NOTE`

`sequence` numbers accepted messages in the order of acceptance. Within one millisecond and topic, timers fire in that
order, because the sequence stands before the id.

A message that becomes due while its topic has a row in `paused` moves to `waiting`, and is still pending there. After a
resume, the topic's row is deleted once none of its messages waits.

A message with a bit in `expired` is in no queue, and among the aborted no more; it is to be removed.

A row of `debounced` says that no pending message of the topic with that key was accepted before `sequence`.

A message in `halves` is the half message of a transaction. Until it is committed, it is in `messages` and in no index.
Then it is indexed like any other message, under the sequence that it already has.

A row of `pops` is a message that a consumer popped and has not acknowledged. At `back ms` it is moved to the group's
retry topic. The group's progress is already behind the message.

A recurring message has a row in `recurring`, written when it is set, and one in `recurrences`, written with every
occurrence. While it is not paused it also has one in `planned`.

A row of `queues` with sequence 0 is an offset without a message: a damaged folder was repaired.

`ends` is written when retention shortens a queue, or a repair corrects it. Without a row, a queue begins at 0 and ends
behind its last row.

LMDB's keys are at most 511 bytes. Topics are at most 255 bytes; ids and keys are cut by `term`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha1
from struct import Struct
from typing import NamedTuple

MAX_TERM = 200
"""The longest id or key, in bytes, that is stored unchanged."""

MAX_TOPIC = 255
"""The longest topic or group name, in bytes (`TopicValidator`: retry and dead-letter topics)."""

MAX_KEY = 511
"""The longest key, in bytes, that LMDB accepts."""

MAX_OFFSET_NAMES = MAX_KEY - 6
"""The most bytes of group and topic together for which an offset can be kept."""

MAX_POP_NAMES = MAX_KEY - 22
"""The most bytes of group and topic together for which a popped message can be stored."""

HELD_SPAN_MS = 10_000
"""Length of the time spans in which `held` counts. With shorter spans, the listing of one topic can leap over other
topics' timers more exactly; with longer ones, messages of a batch share rows. With spans of a second, and delays of an
hour or two, nearly each message dirtied a page for its count alone."""

NO_MESSAGE = 0
"""The sequence, in `queues`, of an offset that has no message."""

HELD_SPANS_OF_AN_HOUR = 360
"""Spans of `held` in a row of `hours`, which is for counts over many days. In `hours` the time stands before the topic,
so messages that fire together change neighbouring rows, however many topics they are of."""

HOUR_MS = HELD_SPAN_MS * HELD_SPANS_OF_AN_HOUR

U32 = Struct(">I")
U64 = Struct(">Q")
TIMER_VALUE = Struct(">Iii")
"""queue and perhaps `NEVER_MOVED`, tag hash, size"""
NEVER_MOVED = 1 << 31
"""Added to a timer's queue: its message was never rescheduled, so its row in `ids` adds nothing to the timer. Timers of
such messages lack it in formats before 6."""
PART_KEY = Struct(">QI")
"""sequence, number of the part from 0"""
QUEUE_VALUE = Struct(">QiiQ")
"""sequence, tag hash, size, stored ms"""
QUEUE_COLUMNS = Struct(">iiQ")
"""The rest of a queue's row after the sequence: tag hash, size, stored ms."""
SUSPENDED = 1 << 62
"""Added to the time in a row of `pops`: its consumer put the message off, which is no failed attempt."""
PAUSE_VALUE = Struct(">QQ?")
"""since ms, messages that wait, resumed"""
TOTAL_VALUE = Struct(">QQ")
"""messages, bytes of their records"""
ENDS_VALUE = Struct(">QQ")
"""first offset, next offset"""
EXPIRED_VALUE_SIZE = 32
"""Bytes of a row of `expired`: 256 bits."""
NOT_TIMED = b"\0\0\0\0\0\0\0\0"
"""The due ms in `ids` of a message without a due time."""
HALF_VALUE = Struct(">QI")
"""next check ms, checks made"""
RECURRENCE_VALUE = Struct(">QQ?")
"""next ms, fired, paused"""

FORMAT = b"format"
"""Name in `meta`: the version of the layout in this file (`upgrades`), in decimal digits."""
STAMP = b"redo log"
"""Name in `meta`: the stamp of the redo log's records that a restart must apply. It is random, so that no record of
another time or folder has it."""
IDENTITY = b"identity"
"""Name in `meta`: 16 random bytes, the same in all copies of a folder and in no other folder."""
MARK = b"timers are complete before"
"""Name in `meta`: the first sequence, packed, whose timer may be missing from `timers` (`inbox`)."""
INBOX_COPY = b"inbox"
"""Name in `meta`: the copy of the inbox that the last stop left (`inbox_copy`)."""
NEXT_SEQUENCE = b"next sequence"
"""Name in `meta`: the packed sequence after the last one handed out, written whenever messages are removed."""
NOTE = b"note "
"""Names in `meta` with this prefix belong to the caller (`Store.put_note`)."""

pack_u64 = U64.pack


class Terms(NamedTuple):
    """A message's terms for the indexes: its queue, when it was accepted, its id, its keys and the hash of its tag."""

    topic: bytes
    queue: int
    stored_ms: int
    message_id: bytes
    keys: Sequence[bytes]
    tag_hash: int


TermsOf = Callable[[bytes], Terms]
"""Reads the terms out of a record, or raises ValueError. The store does not know the layout of a record."""


ID_ROWS = {8: Struct(">Q"), 16: Struct(">QQ"), 32: Struct(">QQQQ")}
"""Rows of `ids` by their bytes: they have one, two or four columns."""


class IdRow(NamedTuple):
    """A row of `ids`. A time of 0 stands for none: never timed, not aborted, never rescheduled."""

    due_ms: int
    aborted_ms: int = 0
    rescheduled_ms: int = 0
    due_before_ms: int = 0

    @classmethod
    def unpack(cls, value: bytes) -> IdRow:
        """Read a row of one, two or four columns.

        :raises ValueError: when it has another size.
        """
        if len(value) not in ID_ROWS:
            raise ValueError(f"a row of ids has {len(value)} bytes")
        return cls(*ID_ROWS[len(value)].unpack(value))

    def pack(self) -> bytes:
        """Return the row with as many columns as it needs."""
        columns = 4 if self.rescheduled_ms else 2 if self.aborted_ms else 1
        return b"".join(map(pack_u64, self[:columns]))


def term(text: bytes) -> bytes:
    """Return an id or key as the indexes store it: unchanged, or its beginning and a hash if it is longer than
    `MAX_TERM`."""
    if len(text) <= MAX_TERM:
        return text
    return text[: MAX_TERM - 40] + sha1(text, usedforsecurity=False).hexdigest().encode()


def id_key(message_id: bytes, number: bytes) -> bytes:
    """Return a key in `ids`. The id must come from `term`, and the sequence is packed."""
    return message_id + b"\0" + number


def timer_key(due_ms: int, topic: bytes, sequence: int, message_id: bytes) -> bytes:
    """Return the key in `timers` of a pending message."""
    return b"%b%b\0%b%b" % (pack_u64(due_ms), topic, pack_u64(sequence), message_id)


def split_timer_key(key: bytes) -> tuple[int, bytes, int, bytes]:
    """Return due ms, topic, sequence, id."""
    end = key.index(0, 8)
    return (
        int.from_bytes(key[:8]),
        key[8:end],
        int.from_bytes(key[end + 1 : end + 9]),
        key[end + 9 :],
    )


def time_of(key: bytes) -> int:
    """Return the time that a key begins with, epoch ms. A damaged key that is shorter has the time of its place."""
    return int.from_bytes(key[:8].ljust(8, b"\0"))


def timer_topic(key: bytes) -> bytes:
    """Return the topic from a pending message's key."""
    return key[8 : key.index(0, 8)]


def timer_value(terms: Terms, row: IdRow, size: int) -> bytes:
    """Return the value in `timers` of a pending message with this row in `ids` and a record of this size."""
    queue = terms.queue if row.rescheduled_ms else terms.queue | NEVER_MOVED
    return TIMER_VALUE.pack(queue, terms.tag_hash, size)


def without_mark(timer: bytes) -> bytes:
    """Return a timer's value for a message that may have been rescheduled: without `NEVER_MOVED`."""
    return bytes((timer[0] & 0x7F,)) + timer[1:]


def waiting_key(timer: bytes) -> bytes:
    """Return the key in `waiting` for a key in `timers`: the topic stands before the due time."""
    end = timer.index(0, 8) + 1
    return timer[8:end] + timer[:8] + timer[end:]


def timer_key_of(waiting: bytes) -> bytes:
    """Return the key in `timers` for a key in `waiting`."""
    end = waiting.index(0) + 1
    return waiting[end : end + 8] + waiting[:end] + waiting[end + 8 :]


def debounce_key(topic: bytes, key: bytes) -> bytes:
    """Return the key in `debounced`. `key` must come from `term`."""
    return topic + b"\0" + key


def queue_prefix(topic: bytes, queue: int) -> bytes:
    """Return the prefix of all rows of a queue."""
    return topic + b"\0" + U32.pack(queue)


def split_queue_key(key: bytes) -> tuple[bytes, int, int]:
    """Return topic, queue, offset."""
    return key[:-13], int.from_bytes(key[-12:-8]), int.from_bytes(key[-8:])


def key_prefix(topic: bytes, key: bytes) -> bytes:
    """Return the prefix of the rows in `keys` of a topic's messages with one key. `key` must come from `term`."""
    return topic + b"\0" + key + b"\0"


def held_key(topic: bytes, span: int) -> bytes:
    """Return the key in `held` that counts a topic's messages due in one span: due ms divided by `HELD_SPAN_MS`."""
    return topic + b"\0" + pack_u64(span)


def hour_key(hour: int, topic: bytes) -> bytes:
    """Return the key in `hours` that counts a topic's messages due in one hour since the epoch."""
    return pack_u64(hour) + topic


def offset_key(group: bytes, topic: bytes, queue: int) -> bytes:
    """Return the key of a consumer group's progress in a queue."""
    return b"%b\0%b\0%b" % (group, topic, U32.pack(queue))


def split_offset_key(key: bytes) -> tuple[bytes, bytes, int]:
    """Return group, topic, queue."""
    group, topic = key[:-5].split(b"\0")
    return group, topic, int.from_bytes(key[-4:])


def pop_key(back_ms: int, group: bytes, topic: bytes, queue: int, offset: int) -> bytes:
    """Return the key of a popped message that comes back at `back_ms`."""
    return b"%b%b\0%b\0%b%b" % (pack_u64(back_ms), group, topic, U32.pack(queue), pack_u64(offset))


def split_pop_key(key: bytes) -> tuple[int, bytes, bytes, int, int]:
    """Return back ms, group, topic, queue, offset."""
    group, topic = key[8:-13].split(b"\0")
    return (
        int.from_bytes(key[:8]),
        group,
        topic,
        int.from_bytes(key[-12:-8]),
        int.from_bytes(key[-8:]),
    )


def recurring_key(topic: bytes, name: bytes) -> bytes:
    """Return the key of a recurring message. The name has no zero byte."""
    return topic + b"\0" + name


def split_recurring_key(key: bytes) -> tuple[bytes, bytes]:
    """Return topic and name."""
    topic, name = key.split(b"\0")
    return topic, name


def planned_key(next_ms: int, key: bytes) -> bytes:
    """Return the key in `planned` of the recurring message with a key."""
    return pack_u64(next_ms) + key


def split_planned_key(key: bytes) -> tuple[int, bytes]:
    """Return next ms, and the key of the recurring message."""
    return time_of(key), key[8:]
