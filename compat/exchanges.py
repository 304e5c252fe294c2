"""What a capture holds: each request with its answer, by the scenario and the client that it is of.

A scenario's topics and groups begin with its tag, so a connection belongs to the scenario whose tag
is in one of its frames: in what the client sent, if it is there, since a server may list what is
others'. What no tag is in, such as a broker's own talk, is nobody's.
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

TAG: Final = re.compile(rb"cmp[0-9]{3}x")
"""What `tag` makes."""


class Exchange(NamedTuple):
    """A request and its answer, if one came."""

    tag: str
    is_from_server: bool
    """Whether the server asked and the client answered."""
    request: Command
    answer: Command | None


def tag(number: int) -> str:
    """What the names of the scenario of that number begin with."""
    return f"cmp{number:03}x"


def exchanges(file: Path) -> Iterator[Exchange]:
    """All of a capture that belong to a scenario, connection by connection."""
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
    """Requests with their answers: an answer has the number of its request on the same connection."""
    waiting: dict[tuple[Kind, int], Command] = {}
    for kind, data in frames:
        command = command_in(data)
        if command is None:
            continue
        if command.is_response:
            asker = Kind.FROM_CLIENT if kind == Kind.FROM_SERVER else Kind.FROM_SERVER
            request = waiting.pop((asker, command.opaque), None)
            if request is not None:
                yield Exchange(owner, asker == Kind.FROM_SERVER, request, command)
        elif command.is_oneway or kind == Kind.FROM_SERVER:
            # Nobody answers the server's own but for the relays, whose answers the client makes.
            yield Exchange(owner, kind == Kind.FROM_SERVER, command, None)
        else:
            waiting[kind, command.opaque] = command
    for (kind, _), request in waiting.items():
        yield Exchange(owner, kind == Kind.FROM_SERVER, request, None)


def command_in(data: bytes) -> Command | None:
    """The command in a frame; None for what is none, as a scenario may send on purpose."""
    try:
        (frame,) = FrameBuffer().feed(data)
        return decode_command(frame)
    except (FrameError, CommandError, ValueError):
        return None
