"""Assembles TCP streams from segments, and finds the frames in them.

`Stream` takes segments of one direction in any order, some of them twice, and yields the bytes in
order; missing bytes are a gap. `FrameScanner` takes these bytes and yields frames. It may begin
anywhere: if it is not at the beginning of a frame, it searches for the next one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

_lengths = struct.Struct(">II").unpack_from
_HEADER_MASK: Final = 0xFFFFFF
_LONGEST: Final = 16_777_216
_SEQUENCE_MASK: Final = 0xFFFFFFFF
_HALF: Final = 1 << 31
_BINARY_HEAD: Final = 21
"""The least size of a ROCKETMQ header: its fixed part with an empty remark and ext."""


class Piece(NamedTuple):
    """Bytes of a stream, with the place of their packet."""

    position: int
    time_ns: int
    """When they arrived, or when the missing bytes before them did, if that was later."""
    data: bytes


class Gap(NamedTuple):
    """Missing bytes of a stream."""

    size: int


class Stream:
    """The segments of one direction of one connection.

    :param first: the sequence number of the first byte; None if the beginning was not recorded.
    :param patience: how many bytes may wait for missing ones before the missing ones are given up.
    """

    def __init__(self, first: int | None, patience: int = 4 * 1024 * 1024) -> None:
        self._next = first
        self._patience = patience
        self._waiting: dict[int, Piece] = {}
        self._waiting_size = 0
        self._acknowledged: int | None = None

    def add(
        self, sequence: int, data: bytes, position: int = 0, time_ns: int = 0
    ) -> Iterator[Piece | Gap]:
        """Take a segment, and yield the pieces that are in order now."""
        if not data:
            return
        if self._next is None:
            self._next = sequence
        ahead = (sequence - self._next) & _SEQUENCE_MASK
        if ahead >= _HALF:
            data = data[_SEQUENCE_MASK + 1 - ahead :]  # its first bytes are known already
            sequence = self._next
            if not data:
                return
            ahead = 0
        if ahead:
            known = self._waiting.get(sequence)
            known_size = 0 if known is None else len(known.data)
            if known_size < len(data):
                self._waiting[sequence] = Piece(position, time_ns, data)
                self._waiting_size += len(data) - known_size
            yield from self._give_up()
            while self._waiting_size > self._patience:
                yield from self._skip()
            return
        self._next = (self._next + len(data)) & _SEQUENCE_MASK
        yield Piece(position, time_ns, data)
        yield from self._follow(time_ns)

    def acknowledge(self, sequence: int) -> Iterator[Piece | Gap]:
        """Note that the other side has all bytes before `sequence`: missing ones were not recorded."""
        if self._next is not None and 0 < (sequence - self._next) & _SEQUENCE_MASK < _HALF:
            self._acknowledged = sequence
            yield from self._give_up()

    def end(self) -> Iterator[Piece | Gap]:
        """Yield the pieces that still wait, with the gaps before them."""
        while self._waiting:
            yield from self._skip()

    def _give_up(self) -> Iterator[Piece | Gap]:
        """Yield the pieces that wait only for bytes that were acknowledged, with their gaps."""
        while self._waiting and self._acknowledged is not None:
            assert self._next is not None
            acknowledged = (self._acknowledged - self._next) & _SEQUENCE_MASK
            if not 0 < acknowledged < _HALF or self._missing() > acknowledged:
                return
            yield from self._skip()

    def _missing(self) -> int:
        """Return how many bytes are missing before the first piece that waits."""
        assert self._next is not None
        return min((sequence - self._next) & _SEQUENCE_MASK for sequence in self._waiting)

    def _skip(self) -> Iterator[Piece | Gap]:
        assert self._next is not None
        size = self._missing()
        self._next = (self._next + size) & _SEQUENCE_MASK
        yield Gap(size)
        yield from self._follow(0)

    def _follow(self, time_ns: int) -> Iterator[Piece]:
        """Yield the waiting pieces that are in order now, and drop bytes that are known already.

        :param time_ns: when the bytes before them arrived. Each following piece gets a later time, so
            that times show the order.
        """
        assert self._next is not None
        found = True
        while found and self._waiting:
            found = False
            for sequence in list(self._waiting):
                behind = (self._next - sequence) & _SEQUENCE_MASK
                if behind < _HALF:
                    piece = self._waiting.pop(sequence)
                    self._waiting_size -= len(piece.data)
                    if fresh := piece.data[behind:]:
                        self._next = (self._next + len(fresh)) & _SEQUENCE_MASK
                        time_ns = max(time_ns + 1, piece.time_ns)
                        yield Piece(piece.position, time_ns, fresh)
                        found = True


class Skipped(NamedTuple):
    """Bytes before a frame, or at the end, that belong to no whole frame."""

    size: int
    reason: str


class FrameScanner:
    """Finds frames, with their length fields, in a stream's bytes.

    :param in_step: whether the first byte begins a frame.
    """

    def __init__(self, *, in_step: bool) -> None:
        self._buffer = bytearray()
        self._in_step = in_step
        self._skipped = 0
        self._reason = "the connection began before the recording"

    def feed(self, data: bytes) -> Iterator[bytes | Skipped]:
        """Take the next bytes, and yield the frames that they complete."""
        self._buffer += data
        position = 0
        buffer = self._buffer
        while True:
            if not self._in_step:
                found, position = _look_for_frame(buffer, position)
                if not found:
                    break
                self._in_step = True
                skipped = self._skipped + position
                self._drop(position)
                position = 0
                self._skipped = 0
                if skipped:
                    yield Skipped(skipped, self._reason)
            if len(buffer) - position < 8:
                break
            length, word = _lengths(buffer, position)
            if not _can_be(length, word):
                self._in_step = False
                self._reason = "no frame"
                self._drop(position)
                position = 1
                continue
            end = position + 4 + length
            if end > len(buffer):
                break
            yield bytes(buffer[position:end])
            position = end
        if not self._in_step:
            self._skipped += position
        self._drop(position)

    def gap(self, size: int) -> Iterator[Skipped]:
        """Note that bytes are missing here: an unfinished frame is lost, and the next one is searched."""
        lost = len(self._buffer) + self._skipped
        self._buffer.clear()
        self._skipped = 0
        self._in_step = False
        self._reason = f"it is behind {size} bytes that were not recorded"
        if lost:
            yield Skipped(lost, f"{size} bytes behind it were not recorded")

    def end(self) -> Iterator[Skipped]:
        """End the stream: the remaining bytes are no whole frame."""
        lost = len(self._buffer) + self._skipped
        self._buffer.clear()
        self._skipped = 0
        if lost:
            yield Skipped(
                lost, "the recording ends within a frame" if self._in_step else "no frame"
            )

    def _drop(self, size: int) -> None:
        if size:
            del self._buffer[:size]


def _can_be(length: int, word: int) -> bool:
    return 4 <= length <= _LONGEST - 4 and word >> 24 <= 1 and (word & _HEADER_MASK) <= length - 4


def _look_for_frame(buffer: bytearray, position: int) -> tuple[bool, int]:
    """Search for a frame from a byte on; whether there is one, and its place or where to continue later."""
    last = len(buffer) - 8 - _BINARY_HEAD
    while position <= last:
        length, word = _lengths(buffer, position)
        if _can_be(length, word) and _is_header(buffer, position + 8, word):
            return True, position
        position += 1
    return False, position


def _is_header(buffer: bytearray, at: int, word: int) -> bool:
    size = word & _HEADER_MASK
    if word >> 24 == 0:
        end = at + size
        # A C++ client ends its headers with a line break.
        is_closed = end > len(buffer) or buffer[end - 2 : end].rstrip(b"\n").endswith(b"}")
        return size > 1 and buffer.startswith(b'{"', at) and is_closed
    if size < _BINARY_HEAD or buffer[at + 2] > 13:
        return False
    remark = int.from_bytes(buffer[at + 13 : at + 17], "big")
    return remark <= size - _BINARY_HEAD
