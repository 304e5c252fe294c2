"""The parts of POP consumption besides its fields: handles, places in an answer, and JSON bodies."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from gateway.wire.bodies import BodyError, MessageQueue, read_body
from gateway.wire.fields import FieldError, Int32, Int64

NORMAL, RETRIED, RETRIED_V2 = "0", "1", "2"
"""Kinds of topics in a pop: the topic of the request, or the one where its unacknowledged messages come back. The last
kind is upstream's enableRetryTopicV2, which is off there too (ExtraInfoUtil)."""

_encode = msgspec.json.Encoder().encode


class Handle(NamedTuple):
    """A handle, with which a client acknowledges a message (ExtraInfoUtil.buildExtraInfo). Its text has eight parts in
    this order, separated by blanks. `pop_time` is epoch ms, `invisible_time` ms."""

    start_offset: int
    pop_time: int
    invisible_time: int
    revive_queue: int
    retried: str
    broker_name: str
    queue: int
    offset: int

    def encode(self) -> str:
        """Return the handle as text."""
        return " ".join(map(str, self))


def parse_handle(text: str) -> Handle:
    """Read a handle. Some clients leave out the last part, which is 0 then. RocketMQ's Proxy adds another part, the
    message's place in the commit log (ReceiptHandle), which is ignored.

    :raises FieldError: when the text is not a handle.
    """
    parts = text.split(" ")
    if len(parts) == len(Handle._fields) - 1:
        parts.append("0")
    try:
        start, popped, invisible, revive, retried, broker, queue, offset, *_ = parts
        handle = Handle(
            int(start),
            int(popped),
            int(invisible),
            int(revive),
            retried,
            broker,
            int(queue),
            int(offset),
        )
    except ValueError as error:
        raise FieldError(f"the field extraInfo is no handle: {text[:200]!r}") from error
    return handle


class Popped(NamedTuple):
    """The messages that a pop took from one queue, at least one: the kind of the topic, the start offset, and the
    messages' offsets."""

    retried: str
    queue: int
    start_offset: int
    offsets: list[int]


def start_offset_info(pops: Iterable[Popped]) -> str:
    """Return the field startOffsetInfo: `kind queue start` of each queue, joined by semicolons."""
    return ";".join(f"{pop.retried} {pop.queue} {pop.start_offset}" for pop in pops)


def message_offset_info(pops: Iterable[Popped]) -> str:
    """Return the field msgOffsetInfo: `kind queue offset,offset,…` of each queue, joined by semicolons."""
    return ";".join(f"{pop.retried} {pop.queue} {','.join(map(str, pop.offsets))}" for pop in pops)


def order_count_info(retried: str, queue: int, counts: dict[int, int], popped: int) -> str:
    """Return the field orderCountInfo of one queue: how often messages popped in order had been delivered before. It
    has `kind qoQUEUE%OFFSET count` for each of `counts`, and for older clients `kind QUEUE count` with the lowest
    count, which is 0 if a message is new.

    :param popped: the number of messages, including new ones.
    """
    least = min(counts.values()) if len(counts) == popped else 0
    each = [f"{retried} qo{queue}%{offset} {count}" for offset, count in counts.items()]
    return ";".join([*each, f"{retried} {queue} {least}"])


class BatchAck(msgspec.Struct):
    """The messages of one pop and queue that a client acknowledges together (BatchAck)."""

    group: str = msgspec.field(name="c")
    topic: str = msgspec.field(name="t")
    queue: Int32 = msgspec.field(name="q")
    start_offset: Int64 = msgspec.field(name="so")
    pop_time: Int64 = msgspec.field(name="pt")
    invisible_time: Int64 = msgspec.field(name="it")
    retried: str | int = msgspec.field(name="r", default=NORMAL)
    revive_queue: Int32 = msgspec.field(name="rq", default=0)
    bits: str = msgspec.field(name="b", default="")
    """Base64 of a little-endian bit set: bit n stands for the start offset plus n."""

    @property
    def count(self) -> int:
        """The number of acknowledged messages.

        :raises BodyError: when the bit set cannot be read.
        """
        return int.from_bytes(self._set(), "little").bit_count()

    def offsets(self, end: int) -> Iterator[int]:
        """Yield the acknowledged offsets before `end`.

        :raises BodyError: when the bit set cannot be read.
        """
        for at, byte in enumerate(self._set()):
            first = self.start_offset + 8 * at
            if first >= end:
                return
            for bit in range(min(8, end - first)) if byte else ():
                if byte >> bit & 1:
                    yield first + bit

    def _set(self) -> bytes:
        try:
            return base64.b64decode(self.bits, validate=True)
        except ValueError as error:  # of other letters than ASCII; binascii.Error is one too
            raise BodyError(f"the bits of a batch are not base64: {error}") from error


class _BatchAcks(msgspec.Struct):
    acks: list[BatchAck] | None = None


class AssignmentRequest(msgspec.Struct, rename="camel"):
    """A client's request for its share of a topic's queues (QueryAssignmentRequestBody), request 400."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str | None = None
    message_model: str = "CLUSTERING"


def parse_batch_acks(body: bytes) -> list[BatchAck]:
    """Read the body of request 200151 (BatchAckMessageRequestBody).

    :raises BodyError: when it is not such a body.
    """
    return (read_body(body, _BatchAcks) if body else _BatchAcks()).acks or []


def encode_assignments(queues: Iterable[MessageQueue] | None, mode: str) -> bytes:
    """Return the answer to 400 (QueryAssignmentResponseBody): the queues to pull or to pop. None makes the client keep
    the queues that it has."""
    if queues is None:
        return b"{}"
    assignments = [{"messageQueue": queue, "mode": mode} for queue in queues]
    return _encode({"messageQueueAssignments": assignments})
