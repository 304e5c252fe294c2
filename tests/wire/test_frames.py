"""Frames, however their bytes arrive."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.frames import (
    FRAME_LIMIT,
    Frame,
    FrameBuffer,
    FrameError,
    join_frame,
)
from tests.wire.strategies import FRAMES

CUTS = st.lists(st.integers(0, 2000), max_size=8)


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut the data into pieces, some of which may be empty."""
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(places)]


def feed_all(buffer: FrameBuffer, pieces: list[bytes]) -> tuple[list[Frame], str | None]:
    """Return all frames, and the error that ended them."""
    frames = []
    for piece in pieces:
        try:
            frames += buffer.feed(piece)
        except FrameError as error:
            return frames + error.frames, str(error)
    return frames, None


def expect(data: bytes, frames: list[Frame], error: str | None = None) -> None:
    """Check that the bytes give the same result when fed whole, byte by byte, and with more bytes after them."""
    for pieces in ([data], [data[at : at + 1] for at in range(len(data))]):
        buffer = FrameBuffer()
        got, reason = feed_all(buffer, pieces)
        assert got == frames
        assert (reason is None) if error is None else (reason is not None and error in reason)
        assert buffer.pending == 0
    buffer = FrameBuffer()
    got, reason = feed_all(buffer, [data + b"\x00\x00\x00"])
    assert got == frames
    assert buffer.pending == (3 if error is None else 0)


def test_layout_of_a_frame() -> None:
    # length 14 = 4 + 7 + 3; type 0 and header length 7 in one word
    assert join_frame(0, b'{"a":1}', b"xyz") == b'\x00\x00\x00\x0e\x00\x00\x00\x07{"a":1}xyz'
    assert join_frame(1, b"hh") == b"\x00\x00\x00\x06\x01\x00\x00\x02hh"


def test_one_frame() -> None:
    expect(join_frame(0, b"{}", b"body"), [(0, b"{}", b"body")])


def test_a_frame_with_nothing_in_it() -> None:
    expect(join_frame(0, b""), [(0, b"", b"")])


def test_many_frames() -> None:
    frames = [(number % 2, b"h" * number, b"b" * (number * 7 % 40)) for number in range(50)]
    expect(b"".join(join_frame(*frame) for frame in frames), frames)


@pytest.mark.parametrize("length", [0, 1, 3, -1, -(1 << 31), FRAME_LIMIT - 3, (1 << 31) - 1])
def test_impossible_length(length: int) -> None:
    good = join_frame(0, b"{}", b"1")
    expect(good + struct.pack(">i", length), [(0, b"{}", b"1")], f"length {length}")


@pytest.mark.parametrize("kind", [2, 3, 0x7F, 0xFF])
def test_unknown_serialize_type(kind: int) -> None:
    good = join_frame(1, b"x")
    expect(good + join_frame(kind, b"{}"), [(1, b"x", b"")], f"type {kind}")


def test_header_longer_than_its_frame() -> None:
    expect(struct.pack(">ii", 6, 3) + b"ab", [], "header of 3 bytes")


@pytest.mark.parametrize("cuts", [[], [3], [6], [22], [26]])
def test_limit_counts_the_whole_frame(cuts: list[int]) -> None:
    longest = join_frame(0, b"{}", b"x" * 10)
    frame = (0, b"{}", b"x" * 10)
    assert feed_all(FrameBuffer(limit=20), pieces_of(longest * 3, cuts)) == ([frame] * 3, None)
    longer = longest + join_frame(0, b"{}", b"x" * 11)
    refused = "a frame of length 17; lengths are from 4 to 16"
    assert feed_all(FrameBuffer(limit=20), pieces_of(longer, cuts)) == ([frame], refused)


def test_too_long_a_frame_is_refused_before_it_arrives() -> None:
    with pytest.raises(FrameError):
        FrameBuffer(limit=1000).feed(struct.pack(">i", 1000))


@pytest.mark.parametrize("kind", [0, 1])
def test_too_long_a_header_is_refused(kind: int) -> None:
    good = join_frame(kind, b"h" * 100, b"body")
    data = join_frame(0, b"{}") + join_frame(kind, b"h" * 101, b"body")
    for cuts in ([], [50], [120]):
        fed = feed_all(FrameBuffer(header_limit=100), pieces_of(good, cuts))
        assert fed == ([(kind, b"h" * 100, b"body")], None)
        frames, reason = feed_all(FrameBuffer(header_limit=100), pieces_of(data, cuts))
        assert frames == [(0, b"{}", b"")]
        assert reason is not None
        assert "a header of 101 bytes" in reason


def test_after_an_error_nothing_is_read() -> None:
    buffer = FrameBuffer()
    with pytest.raises(FrameError):
        buffer.feed(b"\xff\xff\xff\xff")
    with pytest.raises(FrameError) as again:
        buffer.feed(join_frame(0, b"{}"))
    assert again.value.frames == []


def test_big_frame_in_pieces_between_small_ones() -> None:
    body = bytes(range(256)) * 8192
    data = join_frame(0, b"1") + join_frame(0, b"{}", body) + join_frame(1, b"2") + b"\x00\x00"
    buffer = FrameBuffer()
    frames, _ = feed_all(buffer, [data[at : at + 65_536] for at in range(0, len(data), 65_536)])
    assert frames == [(0, b"1", b""), (0, b"{}", body), (1, b"2", b"")]
    assert buffer.pending == 2


def test_pending_tells_what_is_held() -> None:
    buffer = FrameBuffer()
    data = join_frame(0, b"{}", b"12345678")
    for fed in range(1, len(data)):
        assert buffer.feed(data[fed - 1 : fed]) == []
        assert buffer.pending == fed
    assert len(buffer.feed(data[-1:])) == 1
    assert buffer.pending == 0


@given(st.lists(FRAMES, max_size=6), CUTS)
def test_frames_come_back_however_they_are_cut(frames: list[Frame], cuts: list[int]) -> None:
    data = b"".join(join_frame(*frame) for frame in frames)
    assert feed_all(FrameBuffer(), pieces_of(data, cuts)) == (frames, None)


@given(st.lists(FRAMES, max_size=3), st.binary(max_size=60), CUTS)
def test_any_bytes_give_frames_or_the_error_alike_in_all_cuts(
    frames: list[Frame], garbage: bytes, cuts: list[int]
) -> None:
    data = b"".join(join_frame(*frame) for frame in frames) + garbage
    whole = FrameBuffer()
    got, error = feed_all(whole, [data])
    assert got[: len(frames)] == frames
    cut = FrameBuffer()
    assert feed_all(cut, pieces_of(data, cuts)) == (got, error)
    assert cut.pending == whole.pending
    if error is None:
        assert b"".join(join_frame(*frame) for frame in got) == data[: len(data) - whole.pending]
