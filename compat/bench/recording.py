"""Measures the cost of recording: `python -m compat.bench.recording`.

One client asks a gateway directly, a gateway whose own tap records, and a gateway through `tidegate
capture`. Requests are heartbeats of 1 KiB: the gateway does almost nothing for one, so the share of
the recording is as large as possible. Only the processor time of the gateway or the capture counts, so
a busy machine does not change the figures.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from compat import children
from compat.bench.processes import usage
from gateway.client import RemotingClient, successful
from gateway.wire.addresses import parse_address, show_address
from gateway.wire.codes import RequestCode
from gateway.wire.commands import decode_command, encode_command
from gateway.wire.frames import FrameBuffer

_REQUESTS: Final = 20_000
_IN_FLIGHT: Final = 64
_ONE_BY_ONE: Final = 2_000
_ROUNDS: Final = 3

Address = tuple[str, int]


class _Way(NamedTuple):
    """The address to ask, and the process whose processor time counts."""

    address: Address
    pid: int


@contextmanager
def _running(output: Path, *arguments: object) -> Iterator[_Way]:
    with children.server("gateway", *arguments, output=output) as server:
        yield _Way(parse_address(server.address), server.pid)


def _serving(folder: Path, name: str, *flags: object) -> AbstractContextManager[_Way]:
    words = ("serve", "--data", folder / name, "--listen", "127.0.0.1:0", *flags)
    return _running(folder / f"{name}.log", *words)


async def _ask_many(address: Address) -> None:
    """Send all requests, with several in flight. Raises RefusalError if one is refused, which would take less time."""
    reader, writer = await asyncio.open_connection(*address)
    frames = FrameBuffer()
    body = b'{"clientID":"bench","consumerDataSet":[],"producerDataSet":[]}'.ljust(1024)
    sent = answered = 0
    with closing(writer):
        while answered < _REQUESTS:
            while sent < _REQUESTS and sent - answered < _IN_FLIGHT:
                sent += 1
                writer.write(encode_command(RequestCode.HEART_BEAT, sent, body=body))
            data = await reader.read(1 << 20)
            if not data:
                raise ConnectionError("the server closed the connection")
            for frame in frames.feed(data):
                successful(decode_command(frame))
                answered += 1


def _latency_us(address: Address) -> float:
    """Return the median time of one request, with no other in flight, in microseconds."""
    took = []
    with RemotingClient(*address) as client:
        for _ in range(_ONE_BY_ONE):
            began = time.perf_counter()
            answer = client.ask(RequestCode.HEART_BEAT, body=b'{"clientID":"bench"}')
            took.append(time.perf_counter() - began)
            successful(answer)
    return median(took) * 1e6


def main() -> None:
    """Measure all ways and print a Markdown table."""
    with tempfile.TemporaryDirectory(prefix="tidegate-recording-") as scratch:
        folder = Path(scratch)
        with (
            _serving(folder, "plain") as plain,
            _serving(folder, "tapped", "--capture", folder / "tap") as tapped,
            _running(
                folder / "capture.log",
                *("capture", "--listen", "127.0.0.1:0", "--to", show_address(*plain.address)),
                *("--out", folder / "capture"),
            ) as proxied,
        ):
            ways = {"a gateway": plain, "one that taps": tapped, "tidegate capture": proxied}
            costs: dict[str, list[float]] = {name: [] for name in ways}
            latencies: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(_ROUNDS):
                for name, way in ways.items():
                    before = usage(way.pid).cpu
                    asyncio.run(_ask_many(way.address))
                    costs[name].append((usage(way.pid).cpu - before) / _REQUESTS * 1e6)
                    latencies[name].append(_latency_us(way.address))
    print("| process | processor time per request | median latency, one at a time |")
    print("|---|---|---|")
    for name in ways:
        print(f"| {name} | {median(costs[name]):.0f} us | {median(latencies[name]):.0f} us |")


if __name__ == "__main__":
    main()
