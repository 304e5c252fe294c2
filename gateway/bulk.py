"""Many pending messages at once: counted, aborted or rescheduled, step by step.

A step is a bounded piece of work, so that sends and pulls have their turn between two of them. What fires or is aborted
meanwhile is not part of it. By the remoting protocol each step is a request, whose cursor asks for the next; by the
HTTP API they are a job (`gateway.web.bulk`).
"""

from __future__ import annotations

from gateway.access import May
from gateway.pending import PendingMessages, Wanted, check_may_send, parse_cursor
from gateway.rescheduling import NewTime, Rescheduling
from gateway.router import RequestError
from gateway.wire.codes import ResponseCode
from gateway.wire.pending_bodies import BulkAnswer
from storage import Found, FoundPage, State

STEP = 200
"""Messages that one step changes, some 15 ms of work."""

COUNTED = 500
"""Messages that one step counts, as much work: each is read."""


class BulkChanges:
    """Changes what `Wanted` describes: pending messages, all of them or by topic, key, tag or due time."""

    def __init__(self, pending: PendingMessages, rescheduling: Rescheduling) -> None:
        self._pending = pending
        self._rescheduling = rescheduling

    def begin(self) -> int:
        """Begin to give messages another time; each `select` is told of it."""
        return self._rescheduling.begin()

    def select(
        self, wanted: Wanted, limit: int, behind: bytes | None, begun_ms: int | None = None
    ) -> FoundPage:
        """The messages of one step; with a key, those among `limit` that have it.

        :param behind: cursor of the step before.
        :param begun_ms: leave those out that were given another time since the change began: what it has moved may
            come by again, at its new time.
        """
        select = self._pending.select_with_key if wanted.key else self._pending.select
        page = select(wanted, limit, behind)
        if begun_ms is None:
            return page
        found = [one for one in page.found if not self._rescheduling.has_moved(one, begun_ms)]
        return page._replace(found=found)

    def change(self, found: list[Found], to: NewTime | None) -> int:
        """Give messages another time, or abort them where there is none; how many were still pending."""
        if to is not None:
            return self._rescheduling.move_found(found, to)
        return self._pending.abort_found(found)

    def count(self, wanted: Wanted, may: May, cursor: str = "") -> BulkAnswer:
        """How many messages a step would change; nothing is changed."""
        page = self.select(_checked(wanted, may), COUNTED, parse_cursor(cursor))
        return BulkAnswer(len(page.found), _text(page.cursor))

    def abort(self, wanted: Wanted, may: May, cursor: str = "") -> BulkAnswer:
        """Abort messages; each is noted in the audit log."""
        page = self.select(_checked(wanted, may), STEP, parse_cursor(cursor))
        return BulkAnswer(self.change(page.found, None), _text(page.cursor))

    def reschedule(self, wanted: Wanted, to: NewTime, may: May, cursor: str = "") -> BulkAnswer:
        """Give messages another time. One that was moved since the first step began is not moved again, wherever in the
        range its new time is."""
        wanted = _checked(wanted, may)
        # A cursor begins with when the first step began.
        parsed = parse_cursor(cursor) or self.begin().to_bytes(8)
        begun = parsed[:8]
        page = self.select(wanted, STEP, parsed[8:] or None, int.from_bytes(begun))
        moved = self.change(page.found, to)
        return BulkAnswer(moved, _text(begun + page.cursor if page.cursor is not None else None))


def _checked(wanted: Wanted, may: May) -> Wanted:
    """The pending messages of a topic that are wanted, if whoever asks may change them.

    :raises RequestError: when they may not, or name no topic.
    """
    if not wanted.topic:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER, "name the topic whose messages are to be changed"
        )
    check_may_send(may, wanted.topic)
    return wanted._replace(id="", state=State.PENDING.value)


def _text(cursor: bytes | None) -> str | None:
    return cursor.hex() if cursor is not None else None
