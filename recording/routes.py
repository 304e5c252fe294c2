"""Replaces addresses in a name server's answers, so that clients connect to the proxy.

In answers to GET_ROUTEINFO_BY_TOPIC (TopicRouteData) and GET_BROKER_CLUSTER_INFO (ClusterInfo), the addresses in
`brokerAddrs` are replaced in place; every other byte stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from gateway.wire.addresses import parse_address, show_address
from gateway.wire.codes import RequestCode
from gateway.wire.commands import CommandError, decode_command
from gateway.wire.frames import FrameBuffer, FrameError

REWRITTEN: Final = frozenset(
    {RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO}
)
"""The requests whose answers name brokers."""

_CODE: Final = re.compile(rb'"code"\s*:\s*(\d+)')
_MIGHT_BE: Final = frozenset(str(int(code)).encode() for code in REWRITTEN)
_ADDRESSES: Final = re.compile(rb'("brokerAddrs"\s*:\s*\{)([^{}]*)(\})')
_ADDRESS: Final = re.compile(rb'(:\s*")([^"]+)(")')

Address = tuple[str, int]


def asks_for_brokers(frame: bytes) -> int | None:
    """Return the opaque of a client's request whose answer will name brokers; None for any other frame."""
    if frame[4:5] == b"\0":
        # Most frames are no such request, and a search for the code alone is fast.
        found = _CODE.search(frame, 8, 8 + int.from_bytes(frame[5:8], "big"))
        if found is not None and found[1] not in _MIGHT_BE:
            return None
    try:
        (parts,) = FrameBuffer().feed(frame)
        command = decode_command(parts)
    except (FrameError, CommandError, ValueError):
        return None
    if command.code in REWRITTEN and not command.is_response:
        return command.opaque
    return None


def answered(frame: bytes) -> int | None:
    """Return the opaque of the request that a server's frame answers; None when it is no response."""
    try:
        (parts,) = FrameBuffer().feed(frame)
        command = decode_command(parts)
    except (FrameError, CommandError, ValueError):
        return None
    return command.opaque if command.is_response else None


def rewrite(frame: bytes, place_of: Callable[[Address], Address]) -> bytes:
    """Return an answer in which each broker's address is replaced by the one that clients are to use."""
    start = 8 + int.from_bytes(frame[5:8], "big")

    def other(found: re.Match[bytes]) -> bytes:
        try:
            broker = parse_address(found[2].decode("ascii", "replace"))
        except ValueError:
            return found[0]
        return found[1] + show_address(*place_of(broker)).encode() + found[3]

    def others(found: re.Match[bytes]) -> bytes:
        return found[1] + _ADDRESS.sub(other, found[2]) + found[3]

    body = _ADDRESSES.sub(others, frame[start:])
    rest = frame[4:start] + body
    return len(rest).to_bytes(4, "big") + rest
