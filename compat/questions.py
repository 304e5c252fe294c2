"""Tracks the requests that a server has not answered yet, while its traffic is recorded.

Clients make some requests that a scenario does not wait for: the sender of a reply is answered only
after the requester has the reply, and traces are sent in the background. A client that is shut down
does not wait for those answers, so without this it would be chance whether they are recorded.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field

from compat.exchanges import TAG, command_in
from recording.format import Kind


@dataclass
class _Connection:
    """An open connection."""

    owner: str | None = None
    """The tag of its scenario: the first in the client's frames."""
    open: dict[int, tuple[int, str]] = field(default_factory=dict)
    """By the `opaque` of an unanswered request: its code and the `language` in its header."""


class Questions:
    """The unanswered requests of all connections to one server. A recorder reports the frames that pass."""

    def __init__(self) -> None:
        self._connections: dict[int, _Connection] = {}
        self._changed = threading.Condition()

    def passed(self, connection: int, kind: Kind, frame: bytes) -> None:
        """Note a frame that passed, from the client or from the server."""
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
        """Note that a connection has ended: nothing more is answered on it."""
        with self._changed:
            self._connections.pop(connection, None)
            self._changed.notify_all()

    def wait_until_answered(
        self, tag: str, limit_s: float, *, but: Collection[int], not_of: str
    ) -> bool:
        """Wait until all requests of a scenario's clients are answered; return False if time ran out.

        :param but: codes of requests to ignore.
        :param not_of: the language of requests to ignore.
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
