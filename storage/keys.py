"""The layout of every key and value in the database: the one file that shows what is on disk.

All integers are big-endian, so that the order of bytes is the order of meaning.

    table     key                                     value
    messages  sequence 8                              the record, as a pull returns it, packed: see `records`
    timers    due ms 8 | topic | 0 | sequence 8 | id  queue 4 | tag hash 4 | size 4
              (those of messages accepted lately are in memory: see `inbox`)
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
    halves    sequence 8                              next check ms 8 | checks made 4
    checks    next check ms 8 | sequence 8            (empty)
    pops      back ms 8 | group | 0 | topic | 0 | queue 4 | offset 8
                                                      popped ms 8
    recurring topic | 0 | name                        definition, opaque to this room
    recurrences
              topic | 0 | name                        next ms 8 | fired 8 | paused 1
    planned   next ms 8 | topic | 0 | name            (empty)
    offsets   group | 0 | topic | 0 | queue 4         offset 8
    topics    topic                                   settings, opaque to this room
    groups    group                                   settings, opaque to this room
    meta      name                                    see below: `FORMAT` to `NOTE`

`sequence` numbers accepted messages in the order of acceptance. Within one millisecond and topic
the timers fire in that order, because the sequence stands before the id.

A message that becomes due while its topic has a row in `paused` moves from `timers` to `waiting`,
and is still pending there. The row of a topic that was resumed goes when none of its messages waits.

`debounced` says of a key that no message of the topic with it that is pending was accepted before
`sequence`.

A message in `halves` is the first half of a transaction: it waits in `messages` and in no index
until it is committed, and then takes its place like any other, under the sequence that it has.

A row of `pops` is a message that a consumer popped and has not acknowledged; at `back ms` it is
moved to the group's retry topic. The group's progress is behind it already.

A recurring message has a row in `recurring`, written when it is set, and one in `recurrences`,
written with every occurrence. While it is not paused it has one in `planned` as well.

A row of `queues` whose sequence is 0 is an offset that has no message any more: a damaged folder was
repaired.

`ends` is written when retention shortens a queue; without a row, a queue begins at 0 and ends
behind its last row.

LMDB's keys are at most 511 bytes. Topics are at most 255 bytes; ids and keys are cut by `term`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha1
from struct import Struct
from typing import NamedTuple

MAX_TERM = 200
"""Longest id or key, in bytes, that is stored as it is."""

MAX_TOPIC = 255
"""Longest topic or group name, in bytes (`TopicValidator`: retry and dead-letter topics)."""

MAX_KEY = 511
"""Longest key, in bytes, that LMDB takes."""

MAX_OFFSET_NAMES = MAX_KEY - 6
"""Longest group and topic together, in bytes, for which an offset can be kept."""

MAX_POP_NAMES = MAX_KEY - 22
"""Longest group and topic together, in bytes, for which a popped message can be noted."""

HELD_SPAN_MS = 10_000
"""Length of the spans of time in which `held` counts. Shorter ones let a listing of one topic leap more exactly over
the others', longer ones let messages of a batch share their rows: with spans of a second and delays of an hour
or two, nearly each message dirtied a page for its count alone."""

NO_MESSAGE = 0
"""The sequence, in `queues`, of an offset that has no message."""

HELD_SPANS_OF_AN_HOUR = 360
"""Spans of `held` in a row of `hours`, which serves counts of many days. There the time stands before the topic: what
fires changes neighbours, however many topics it is of."""

HOUR_MS = HELD_SPAN_MS * HELD_SPANS_OF_AN_HOUR

U32 = Struct(">I")
U64 = Struct(">Q")
TIMER_VALUE = Struct(">Iii")
"""queue and perhaps `NEVER_MOVED`, tag hash, size"""
NEVER_MOVED = 1 << 31
"""Added to a timer's queue: its message was never given another time, so its row in `ids` says no more than the timer
does. Formats before 6 have timers of such messages without it."""
QUEUE_VALUE = Struct(">QiiQ")
"""sequence, tag hash, size, stored ms"""
QUEUE_COLUMNS = Struct(">iiQ")
"""What follows the sequence in a queue's row: tag hash, size, stored ms."""
PAUSE_VALUE = Struct(">QQ?")
"""since ms, messages that wait, resumed"""
TOTAL_VALUE = Struct(">QQ")
"""messages, bytes of their records"""
ENDS_VALUE = Struct(">QQ")
NOT_TIMED = b"\0\0\0\0\0\0\0\0"
"""The due ms, in `ids`, of a message for now."""
HALF_VALUE = Struct(">QI")
"""next check ms, checks made"""
RECURRENCE_VALUE = Struct(">QQ?")
"""next ms, fired, paused"""

FORMAT = b"format"
"""Name in `meta`: the version of what this page shows (`upgrades`), in decimal digits."""
STAMP = b"redo log"
"""Name in `meta`: the stamp of the records of the redo log that are to be done again. It is random, so that no record
of another time or folder has it."""
MARK = b"timers are complete before"
"""Name in `meta`: the first sequence, packed, whose timer may be missing from `timers` (`inbox`)."""
INBOX_COPY = b"inbox"
"""Name in `meta`: what the last stop left of the inbox (`inbox_copy`)."""
NEXT_SEQUENCE = b"next sequence"
"""Name in `meta`: the sequence that follows the last one given out, packed, noted whenever messages are removed."""
NOTE = b"note "
"""Names in `meta` that begin so are the caller's own, from `Store.put_note`."""

pack_u64 = U64.pack


class Terms(NamedTuple):
    """What the indexes hold of a message: its queue, when it was accepted, its id, its keys and the
    hash of its tag."""

    topic: bytes
    queue: int
    stored_ms: int
    message_id: bytes
    keys: Sequence[bytes]
    tag_hash: int


TermsOf = Callable[[bytes], Terms]
"""Reads the terms out of a record, or raises ValueError: the store itself does not know how a
record is laid out."""


_ID_ROW_SIZES = (8, 16, 32)


class IdRow(NamedTuple):
    """What `ids` says of a message. A time of 0 stands for none: never timed, not aborted, never rescheduled."""

    due_ms: int
    aborted_ms: int = 0
    rescheduled_ms: int = 0
    due_before_ms: int = 0

    @classmethod
    def unpack(cls, value: bytes) -> IdRow:
        """Read a row, of one, two or four columns.

        :raises ValueError: when it has not as many.
        """
        if len(value) not in _ID_ROW_SIZES:
            raise ValueError(f"a row of ids has {len(value)} bytes")
        return cls(*(int.from_bytes(value[at : at + 8]) for at in range(0, len(value), 8)))

    def pack(self) -> bytes:
        """The row with as many columns as it needs."""
        columns = 4 if self.rescheduled_ms else 2 if self.aborted_ms else 1
        return b"".join(map(pack_u64, self[:columns]))


def term(text: bytes) -> bytes:
    """An id or key as it stands in an index: itself, or its beginning and a hash where it is longer
    than `MAX_TERM`."""
    if len(text) <= MAX_TERM:
        return text
    return text[: MAX_TERM - 40] + sha1(text, usedforsecurity=False).hexdigest().encode()


def id_key(message_id: bytes, number: bytes) -> bytes:
    """Key in `ids`; the id as `term` gives it, and the sequence, packed."""
    return message_id + b"\0" + number


def timer_key(due_ms: int, topic: bytes, sequence: int, message_id: bytes) -> bytes:
    """Key of a message that has not fired."""
    return b"%b%b\0%b%b" % (pack_u64(due_ms), topic, pack_u64(sequence), message_id)


def split_timer_key(key: bytes) -> tuple[int, bytes, int, bytes]:
    """Due ms, topic, sequence, id."""
    end = key.index(0, 8)
    return (
        int.from_bytes(key[:8]),
        key[8:end],
        int.from_bytes(key[end + 1 : end + 9]),
        key[end + 9 :],
    )


def timer_topic(key: bytes) -> bytes:
    """The topic in the key of a message that has not fired."""
    return key[8 : key.index(0, 8)]


def timer_value(terms: Terms, row: IdRow, size: int) -> bytes:
    """Value in `timers` of a message that has not fired, with this row in `ids` and a record of this size."""
    queue = terms.queue if row.rescheduled_ms else terms.queue | NEVER_MOVED
    return TIMER_VALUE.pack(queue, terms.tag_hash, size)


def without_mark(timer: bytes) -> bytes:
    """The value of a timer whose message may have been given another time."""
    return bytes((timer[0] & 0x7F,)) + timer[1:]


def waiting_key(timer: bytes) -> bytes:
    """Key in `waiting` of a message with this key in `timers`: the topic stands before the due time."""
    end = timer.index(0, 8) + 1
    return timer[8:end] + timer[:8] + timer[end:]


def timer_key_of(waiting: bytes) -> bytes:
    """Key in `timers` of a message with this key in `waiting`."""
    end = waiting.index(0) + 1
    return waiting[end : end + 8] + waiting[:end] + waiting[end + 8 :]


def debounce_key(topic: bytes, key: bytes) -> bytes:
    """Key of a debounced key; `key` as `term` gives it."""
    return topic + b"\0" + key


def queue_prefix(topic: bytes, queue: int) -> bytes:
    """What every row of a queue begins with."""
    return topic + b"\0" + U32.pack(queue)


def split_queue_key(key: bytes) -> tuple[bytes, int, int]:
    """Topic, queue, offset."""
    return key[:-13], int.from_bytes(key[-12:-8]), int.from_bytes(key[-8:])


def key_prefix(topic: bytes, key: bytes) -> bytes:
    """What the rows of a topic's messages with one key begin with; `key` as `term` gives it."""
    return topic + b"\0" + key + b"\0"


def held_key(topic: bytes, span: int) -> bytes:
    """Key of the number of messages of a topic that are due in one span of time: due ms divided by `HELD_SPAN_MS`."""
    return topic + b"\0" + pack_u64(span)


def hour_key(hour: int, topic: bytes) -> bytes:
    """Key of the number of messages of a topic that are due in one hour since the epoch."""
    return pack_u64(hour) + topic


def offset_key(group: bytes, topic: bytes, queue: int) -> bytes:
    """Key of a consumer group's progress in a queue."""
    return b"%b\0%b\0%b" % (group, topic, U32.pack(queue))


def split_offset_key(key: bytes) -> tuple[bytes, bytes, int]:
    """Group, topic, queue."""
    group, topic = key[:-5].split(b"\0")
    return group, topic, int.from_bytes(key[-4:])


def pop_key(back_ms: int, group: bytes, topic: bytes, queue: int, offset: int) -> bytes:
    """Key of a message that was popped and comes back."""
    return b"%b%b\0%b\0%b%b" % (pack_u64(back_ms), group, topic, U32.pack(queue), pack_u64(offset))


def split_pop_key(key: bytes) -> tuple[int, bytes, bytes, int, int]:
    """Back ms, group, topic, queue, offset."""
    group, topic = key[8:-13].split(b"\0")
    return (
        int.from_bytes(key[:8]),
        group,
        topic,
        int.from_bytes(key[-12:-8]),
        int.from_bytes(key[-8:]),
    )


def recurring_key(topic: bytes, name: bytes) -> bytes:
    """Key of a recurring message; the name has no zero byte."""
    return topic + b"\0" + name


def split_recurring_key(key: bytes) -> tuple[bytes, bytes]:
    """Topic, name."""
    topic, name = key.split(b"\0")
    return topic, name


def planned_key(next_ms: int, key: bytes) -> bytes:
    """Place, in the order of time, of the recurring message with a key."""
    return pack_u64(next_ms) + key


def split_planned_key(key: bytes) -> tuple[int, bytes]:
    """Next ms, and the key of the recurring message."""
    return int.from_bytes(key[:8]), key[8:]
