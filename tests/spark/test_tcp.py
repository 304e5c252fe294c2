"""Streams put together from segments, and frames found in them."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.commands import encode_command
from spark_jobs.tcp import FrameScanner, Gap, Piece, Skipped, Stream

FRAMES = st.lists(
    st.builds(
        lambda code, body: encode_command(code, code, ext={"k": "v"}, body=body),
        st.integers(0, 400),
        st.binary(max_size=60),
    ),
    min_size=1,
    max_size=8,
)
STARTS = st.sampled_from([0, 1, 1000, (1 << 32) - 5, (1 << 31) - 3])


def segments_of(data: bytes, first: int, sizes: random.Random) -> list[tuple[int, bytes]]:
    """Cut the data into segments, some of which overlap and repeat data."""
    found = []
    at = 0
    while at < len(data):
        size = sizes.randint(1, 40)
        begin = max(0, at - sizes.choice([0, 0, 0, 7]))
        found.append(((first + begin) & 0xFFFFFFFF, data[begin : at + size]))
        at += size
    found += sizes.sample(found, len(found) // 4)
    return found


@given(FRAMES, STARTS, st.randoms(use_true_random=False))
def test_any_order_and_repetition_gives_the_stream(
    frames: list[bytes], first: int, order: random.Random
) -> None:
    data = b"".join(frames)
    segments = segments_of(data, first, order)
    order.shuffle(segments)
    stream = Stream(first)
    scanner = FrameScanner(in_step=True)
    pieces = [piece for sequence, part in segments for piece in stream.add(sequence, part)]
    assert list(stream.end()) == []
    told = [piece.data for piece in pieces if isinstance(piece, Piece)]
    assert [found for data_ in told for found in scanner.feed(data_)] == frames
    assert b"".join(told) == data
    assert list(scanner.end()) == []


@given(FRAMES, st.lists(st.integers(1, 30), max_size=40))
def test_frames_come_whole_however_the_bytes_come(frames: list[bytes], sizes: list[int]) -> None:
    data = b"".join(frames)
    scanner = FrameScanner(in_step=True)
    found: list[bytes | Skipped] = []
    at = 0
    for size in [*sizes, len(data)]:
        found += scanner.feed(data[at : at + size])
        at += size
    assert found == frames
    assert list(scanner.end()) == []


@given(FRAMES, st.integers(1, 60), st.integers(1, 50))
def test_a_beginning_within_a_frame_costs_only_that_frame(
    frames: list[bytes], cut: int, step: int
) -> None:
    data = (encode_command(1, 1, body=b"\x01" * 60) + b"".join(frames))[cut:]
    scanner = FrameScanner(in_step=False)
    found = [one for at in range(0, len(data), step) for one in scanner.feed(data[at : at + step])]
    found += scanner.end()
    assert [one for one in found if isinstance(one, bytes)] == frames
    skipped = [one.size for one in found if isinstance(one, Skipped)]
    assert sum(skipped) + sum(map(len, frames)) == len(data)


def test_a_frame_of_a_cpp_client_is_found_too() -> None:
    """Its headers end with a line break."""
    header = b'{"code":34,"flag":0,"language":"CPP","opaque":1,"version":60}\n'
    length = len(header).to_bytes(4, "big")
    frame = (4 + len(header) + 7).to_bytes(4, "big") + length + header + b"content"
    scanner = FrameScanner(in_step=False)
    assert list(scanner.feed(b"the rest" + frame)) == [
        Skipped(8, "the connection began before the recording"),
        frame,
    ]


def test_what_was_lost_is_a_gap_and_the_next_frame_is_found() -> None:
    frames = [encode_command(number, number, body=b"x" * 50) for number in range(5)]
    data = b"".join(frames)
    stream = Stream(0)
    scanner = FrameScanner(in_step=True)
    lost = range(len(frames[0]) + 30, len(frames[0]) + 50)  # within the second frame
    pieces = [*stream.add(0, data[: lost.start]), *stream.add(lost.stop, data[lost.stop :])]
    pieces += stream.end()
    assert pieces[1] == Gap(len(lost))
    found: list[bytes | Skipped] = []
    for piece in pieces:
        found += scanner.gap(piece.size) if isinstance(piece, Gap) else scanner.feed(piece.data)
    assert [one for one in found if isinstance(one, bytes)] == [frames[0], *frames[2:]]
    told = sum(one.size for one in found if isinstance(one, Skipped))
    assert told + len(lost) == len(frames[1])


def test_patience_is_bounded() -> None:
    stream = Stream(0, patience=100)
    told = [piece for at in range(10, 200, 10) for piece in stream.add(at, b"0123456789")]
    assert told[0] == Gap(10)
    assert sum(len(piece.data) for piece in told if isinstance(piece, Piece)) == 190


@given(st.binary(max_size=300), st.booleans())
def test_every_byte_is_accounted_for(data: bytes, in_step: bool) -> None:
    scanner = FrameScanner(in_step=in_step)
    found = [*scanner.feed(data), *scanner.end()]
    assert sum(len(one) if isinstance(one, bytes) else one.size for one in found) == len(data)
