"""TCP streams put together from packets, and frames found in them.

`Stream` takes segments of one direction in any order, some of them twice, and gives the bytes in
order; what never came is a gap. `FrameScanner` takes these bytes and gives frames. It begins
anywhere: where it does not stand at a frame's beginning it looks for the next one.
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
"""Least size of a ROCKETMQ header: its fixed part and an empty remark and ext."""


class Piece(NamedTuple):
    """Bytes of a stream, with the place of the packet that they came in."""

    position: int
    time_ns: int
    """When they came, or later, when what was missing in front of them came."""
    data: bytes


class Gap(NamedTuple):
    """Bytes of a stream that are not there."""

    size: int


class Stream:
    """The segments of one direction of one connection.

    :param first: the sequence number of the first byte; None where its beginning was not seen.
    :param patience: how many bytes may wait for missing ones before these are given up.
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
        """Take a segment; what can be told in order now."""
        if not data:
            return
        if self._next is None:
            self._next = sequence
        ahead = (sequence - self._next) & _SEQUENCE_MASK
        if ahead >= _HALF:
            data = data[_SEQUENCE_MASK + 1 - ahead :]  # its beginning was here before
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
        """The other side has everything in front of a byte: what is missing of that was not recorded."""
        if self._next is not None and 0 < (sequence - self._next) & _SEQUENCE_MASK < _HALF:
            self._acknowledged = sequence
            yield from self._give_up()

    def end(self) -> Iterator[Piece | Gap]:
        """What still waits, with the gaps in front of it."""
        while self._waiting:
            yield from self._skip()

    def _give_up(self) -> Iterator[Piece | Gap]:
        """Tell what waits for nothing but what was acknowledged."""
        while self._waiting and self._acknowledged is not None:
            assert self._next is not None
            acknowledged = (self._acknowledged - self._next) & _SEQUENCE_MASK
            if not 0 < acknowledged < _HALF or self._missing() > acknowledged:
                return
            yield from self._skip()

    def _missing(self) -> int:
        """Bytes in front of the first that waits."""
        assert self._next is not None
        return min((sequence - self._next) & _SEQUENCE_MASK for sequence in self._waiting)

    def _skip(self) -> Iterator[Piece | Gap]:
        assert self._next is not None
        size = self._missing()
        self._next = (self._next + size) & _SEQUENCE_MASK
        yield Gap(size)
        yield from self._follow(0)

    def _follow(self, time_ns: int) -> Iterator[Piece]:
        """Tell what waited for what has come, and forget what has come by other ways.

        :param time_ns: when that came; what follows it is later, so that times tell the order.
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
    """Bytes in front of a frame, or at the end, that belong to no whole frame."""

    size: int
    reason: str


class FrameScanner:
    """Frames, with their length fields, out of a stream's bytes.

    :param in_step: whether the first byte begins a frame.
    """

    def __init__(self, *, in_step: bool) -> None:
        self._buffer = bytearray()
        self._in_step = in_step
        self._skipped = 0
        self._reason = "the connection began before the recording"

    def feed(self, data: bytes) -> Iterator[bytes | Skipped]:
        """Take the next bytes; the frames that they complete."""
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
        """Some bytes are missing here: what has begun is lost, and the next frame is looked for."""
        lost = len(self._buffer) + self._skipped
        self._buffer.clear()
        self._skipped = 0
        self._in_step = False
        self._reason = f"it is behind {size} bytes that were not recorded"
        if lost:
            yield Skipped(lost, f"{size} bytes behind it were not recorded")

    def end(self) -> Iterator[Skipped]:
        """What remains is no whole frame."""
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
    """Whether a frame begins at or behind a byte, and where; else from where to look on later."""
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
        return (
            size > 1
            and buffer.startswith(b'{"', at)
            and (at + size > len(buffer) or buffer[at + size - 1] == ord("}"))
        )
    if size < _BINARY_HEAD or buffer[at + 2] > 13:
        return False
    remark = int.from_bytes(buffer[at + 13 : at + 17], "big")
    return remark <= size - _BINARY_HEAD
