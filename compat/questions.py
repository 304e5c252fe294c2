"""What servers were asked and have not answered yet, while they are being recorded.

Some requests are made behind a scenario's back: whoever sends a reply is answered only after the
one who asked has it, and traces are sent when there is time. A client that is shut down waits for
none of those answers, so whether they are recorded would be chance.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field

from compat.exchanges import TAG, command_in
from recording.format import Kind


@dataclass
class _Connection:
    """One that is open."""

    owner: str | None = None
    """The scenario whose tag the client has said first."""
    open: dict[int, tuple[int, str]] = field(default_factory=dict)
    """By the request's number: its code, and the language that it says it is of."""


class Questions:
    """The open questions of all connections to one server; a recorder tells of what passes."""

    def __init__(self) -> None:
        self._connections: dict[int, _Connection] = {}
        self._changed = threading.Condition()

    def passed(self, connection: int, kind: Kind, frame: bytes) -> None:
        """A frame has passed, from the client or from the server."""
        command = command_in(frame)
        with self._changed:
            known = self._connections.setdefault(connection, _Connection())
            if kind == Kind.FROM_CLIENT and known.owner is None and (found := TAG.search(frame)):
                known.owner = found[0].decode()
            if command is None:
                return
            if kind == Kind.FROM_CLIENT and not (command.is_response or command.is_oneway):
                known.open[command.opaque] = command.code, command.language
            elif kind == Kind.FROM_SERVER and command.is_response:
                known.open.pop(command.opaque, None)
                self._changed.notify_all()

    def closed(self, connection: int) -> None:
        """A connection has ended: nothing more is answered there."""
        with self._changed:
            self._connections.pop(connection, None)
            self._changed.notify_all()

    def wait_until_answered(
        self, tag: str, limit_s: float, *, but: Collection[int], not_of: str
    ) -> bool:
        """Wait until all that a scenario's clients have asked is answered; whether it was in time.

        :param but: codes of requests that are not waited for.
        :param not_of: the language whose requests are not waited for.
        """

        def is_answered() -> bool:
            return all(
                code in but or language == not_of
                for one in self._connections.values()
                if one.owner == tag
                for code, language in one.open.values()
            )

        with self._changed:
            return self._changed.wait_for(is_answered, limit_s)
