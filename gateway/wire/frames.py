"""Cuts a connection's bytes into frames (RemotingCommand, NettyDecoder).

    +----------+------+-----------------+----------+----------+
    | length 4 | type | header length 3 | header n | body ... |
    +----------+------+-----------------+----------+----------+

All numbers are big-endian. `length` counts the bytes after it. `type` is the encoding of the header.
"""

from __future__ import annotations

import struct
from typing import Final

Frame = tuple[int, bytes, bytes]
"""The encoding of the header (`JSON` or `ROCKETMQ`), the header, the body."""

JSON: Final = 0
ROCKETMQ: Final = 1
"""Serialize types; ROCKETMQ is the binary encoding of a header (SerializeType)."""

FRAME_LIMIT: Final = 16_777_216
"""Most bytes of a frame, including the length's own four (com.rocketmq.remoting.frameMaxLength)."""

HEADER_LIMIT: Final = 1 << 20
"""Most bytes of a request's header. A header is decoded in one step while all other work waits: up to 90 ms for this
size, 3 s for a whole frame. The largest useful header, a subscription of 65,536 characters as JSON escapes, has less
than half of it. Responses may have longer headers: the answer to a batch has the ids of all its messages."""

_LENGTH_SIZE: Final = 4
_HEADER_LENGTH_MASK: Final = 0xFFFFFF
_length = struct.Struct(">i").unpack_from
_length_and_word = struct.Struct(">iI").unpack_from


class FrameError(Exception):
    """The bytes are not frames, and nothing after them can be read.

    The connection is to be closed without an answer, as upstream does. `frames` holds the whole frames that the same
    bytes brought before the bad one.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.frames: list[Frame] = []


class FrameBuffer:
    """Keeps the bytes of an incomplete frame until the rest arrives.

    :param limit: most bytes of a whole frame; a longer one is refused when its length arrives.
    :param header_limit: most bytes of a header; a frame with a longer one is refused when it has arrived.
    """

    __slots__ = ("_error", "_header_limit", "_limit", "_partial", "_wanted")

    def __init__(self, limit: int = FRAME_LIMIT, header_limit: int = FRAME_LIMIT) -> None:
        self._limit = limit
        self._header_limit = header_limit
        self._error: str | None = None
        # The start of a frame, and the number of its bytes needed for the next step: first its length, then the whole
        # frame. A bytearray takes many small pieces without an object for each.
        self._partial = bytearray()
        self._wanted = _LENGTH_SIZE

    @property
    def pending(self) -> int:
        """Bytes held of a frame that is not complete."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[Frame]:
        """Take the next bytes, in pieces of any size, and return the frames that they complete.

        :raises FrameError: when a length or a serialize type is not valid, or a header is too long. Every later call
            raises it as well.
        """
        if self._error is not None:
            raise FrameError(self._error)
        frames: list[Frame] = []
        end = len(data)
        limit = self._limit
        position = 0
        try:
            if self._partial:
                position = self._complete(data, frames)
            while end - position >= 8:
                length, word = _length_and_word(data, position)
                following = position + _LENGTH_SIZE + length
                if length < 4 or following - position > limit:
                    raise _bad_length(length, limit)
                if following > end:
                    self._wanted = following - position
                    self._partial += memoryview(data)[position:]
                    return frames
                header = word & _HEADER_LENGTH_MASK
                body = position + 8 + header
                if word >> 24 > ROCKETMQ or header > self._header_limit or body > following:
                    raise _bad_word(word, length, self._header_limit)
                frames.append((word >> 24, data[position + 8 : body], data[body:following]))
                position = following
            if position < end:
                # Too few bytes for both lengths: `_complete` checks what is there.
                self._complete(data[position:], frames)
        except FrameError as error:
            self._error = str(error)
            self._partial = bytearray()
            error.frames = frames
            raise
        return frames

    def _complete(self, data: bytes, frames: list[Frame]) -> int:
        """Continue the incomplete frame, and return how many of the bytes belong to it."""
        partial = self._partial
        view = memoryview(data)
        position = 0
        while True:
            missing = self._wanted - len(partial)
            partial += view[position : position + missing]
            position = min(position + missing, len(data))
            if len(partial) < self._wanted:
                return position
            if self._wanted != _LENGTH_SIZE:
                break
            (length,) = _length(partial)
            if length < 4 or length + _LENGTH_SIZE > self._limit:
                raise _bad_length(length, self._limit)
            self._wanted = length + _LENGTH_SIZE
        length, word = _length_and_word(partial)
        header = word & _HEADER_LENGTH_MASK
        body = 8 + header
        if word >> 24 > ROCKETMQ or header > self._header_limit or body > len(partial):
            raise _bad_word(word, length, self._header_limit)
        with memoryview(partial) as whole:
            frames.append((word >> 24, bytes(whole[8:body]), bytes(whole[body:])))
        self._partial = bytearray()
        self._wanted = _LENGTH_SIZE
        return position


def join_frame(kind: int, header: bytes, body: bytes = b"") -> bytes:
    """Return a frame as it is sent.

    :param kind: `JSON` or `ROCKETMQ`.
    """
    word = (kind << 24) | len(header)
    return struct.pack(">iI", 4 + len(header) + len(body), word) + header + body


def _bad_length(length: int, limit: int) -> FrameError:
    return FrameError(f"a frame of length {length}; lengths are from 4 to {limit - _LENGTH_SIZE}")


def _bad_word(word: int, length: int, limit: int) -> FrameError:
    return FrameError(
        f"serialize type {word >> 24} with a header of {word & _HEADER_LENGTH_MASK} bytes "
        f"in a frame of length {length}; headers have up to {limit}"
    )
