"""Reads a capture as requests with their answers, each with the tag of its scenario.

The topics and groups of a scenario begin with its tag, so a connection belongs to the scenario whose
tag is in one of its frames. The client's frames are searched first, because a server may list names
of other scenarios. A connection without a tag, such as the broker's own, belongs to no scenario.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from gateway.wire.commands import Command, CommandError, decode_command
from gateway.wire.frames import FrameBuffer, FrameError
from recording.format import Kind, read_capture

TAG: Final = re.compile(rb"cmp[0-9]{3,}x")
"""Matches what `tag` returns."""


class Exchange(NamedTuple):
    """A request and its answer, if it got one."""

    tag: str
    is_from_server: bool
    """Whether the server made the request, for the client to answer."""
    request: Command
    answer: Command | None


def tag(number: int) -> str:
    """Return the prefix of all names of the scenario with that number."""
    return f"cmp{number:03}x"


def exchanges(file: Path) -> Iterator[Exchange]:
    """Yield the exchanges of a capture that belong to a scenario, connection by connection."""
    connections: dict[int, list[tuple[Kind, bytes]]] = defaultdict(list)
    for record in read_capture(file):
        if record.kind in (Kind.FROM_CLIENT, Kind.FROM_SERVER):
            connections[record.connection].append((record.kind, record.data))
    for frames in connections.values():
        asked = [frame for frame in frames if frame[0] == Kind.FROM_CLIENT]
        owner = next((found for _, data in (*asked, *frames) if (found := TAG.search(data))), None)
        if owner is not None:
            yield from _paired(owner[0].decode(), frames)


def _paired(owner: str, frames: Iterable[tuple[Kind, bytes]]) -> Iterator[Exchange]:
    """Pair clients' requests with answers: an answer has the `opaque` of its request on the same connection. Of a
    server's requests only relayed ones are answered, and those answers are the client's."""
    waiting: dict[int, Command] = {}
    for kind, data in frames:
        command = command_in(data)
        if command is None:
            continue
        if kind == Kind.FROM_CLIENT:
            if not command.is_response:
                waiting[command.opaque] = command
        elif not command.is_response:
            yield Exchange(owner, is_from_server=True, request=command, answer=None)
        elif (request := waiting.pop(command.opaque, None)) is not None:
            yield Exchange(owner, is_from_server=False, request=request, answer=command)
    for request in waiting.values():
        yield Exchange(owner, is_from_server=False, request=request, answer=None)


def command_in(data: bytes) -> Command | None:
    """Return the command in a frame; None for bytes that are no command, which a scenario may send."""
    try:
        (frame,) = FrameBuffer().feed(data)
        return decode_command(frame)
    except (FrameError, CommandError, ValueError):
        return None
