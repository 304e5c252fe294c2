"""Bulk changes: many pending messages are counted, aborted or rescheduled, step by step.

A step is a bounded piece of work, so that sends and pulls are handled between two steps. Messages that fire or are
aborted meanwhile are not changed. In the remoting protocol each step is a request, and its answer has the cursor of the
next one. In the HTTP API all steps are a job (`gateway.web.bulk`).
"""

from __future__ import annotations

from gateway.access.policies import May
from gateway.pending.messages import PendingMessages, Wanted, check_may_send, parse_cursor
from gateway.pending.rescheduling import NewTime, Rescheduling
from gateway.router import RequestError
from gateway.wire.codes import ResponseCode
from gateway.wire.pending_bodies import BulkAnswer
from storage import Found, FoundPage, State

STEP = 100
"""Messages that one step changes, some 15 ms of work."""

COUNTED = 200
"""Messages that one step counts, as much work as `STEP`: each message is read."""


class BulkChanges:
    """Changes the pending messages that `Wanted` describes, by topic, key, tag or due time."""

    def __init__(self, pending: PendingMessages, rescheduling: Rescheduling) -> None:
        self._pending = pending
        self._rescheduling = rescheduling

    def begin(self) -> int:
        """Begin a change of due times. Return the time of its beginning, `begun_ms` of each `select`."""
        return self._rescheduling.begin()

    def select(
        self, wanted: Wanted, limit: int, behind: bytes | None, begun_ms: int | None = None
    ) -> FoundPage:
        """Return the messages of one step; with a key, those among `limit` messages that have it.

        :param behind: the cursor of the previous step.
        :param begun_ms: leave out messages that were rescheduled since the change began: a message that it has moved
            may be met again at its new time.
        """
        select = self._pending.select_with_key if wanted.key else self._pending.select
        page = select(wanted, limit, behind)
        if begun_ms is None:
            return page
        found = [one for one in page.found if not self._rescheduling.has_moved(one, begun_ms)]
        return page._replace(found=found)

    def check(self, found: list[Found], to: NewTime) -> None:
        """Refuse a new time that is too far ahead for one of these messages."""
        self._rescheduling.check(found, to)

    def change(self, found: list[Found], to: NewTime | None) -> int:
        """Reschedule messages, or abort them if there is no new time. Return how many were still pending."""
        if to is not None:
            return self._rescheduling.move_found(found, to)
        return self._pending.abort_found(found)

    def count(self, wanted: Wanted, may: May, cursor: str = "") -> BulkAnswer:
        """Return how many messages a step would change, without changing them."""
        page = self.select(_checked(wanted, may), COUNTED, parse_cursor(cursor))
        return BulkAnswer(len(page.found), _text(page.cursor))

    def abort(self, wanted: Wanted, may: May, cursor: str = "") -> BulkAnswer:
        """Abort messages; each is noted in the audit log."""
        page = self.select(_checked(wanted, may), STEP, parse_cursor(cursor))
        return BulkAnswer(self.change(page.found, None), _text(page.cursor))

    def reschedule(self, wanted: Wanted, to: NewTime, may: May, cursor: str = "") -> BulkAnswer:
        """Reschedule messages. A message that was moved since the first step began is not moved again, even if its new
        time is in the range."""
        wanted = _checked(wanted, may)
        # A cursor begins with the time at which the first step began.
        parsed = parse_cursor(cursor) or self.begin().to_bytes(8)
        begun = parsed[:8]
        page = self.select(wanted, STEP, parsed[8:] or None, int.from_bytes(begun))
        moved = self.change(page.found, to)
        return BulkAnswer(moved, _text(begun + page.cursor if page.cursor is not None else None))


def _checked(wanted: Wanted, may: May) -> Wanted:
    """Return the selection, narrowed to pending messages, if the sender may change messages of its topic.

    :raises RequestError: when the sender may not, or names no topic.
    """
    if not wanted.topic:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER, "name the topic whose messages are to be changed"
        )
    check_may_send(may, wanted.topic)
    return wanted._replace(id="", state=State.PENDING.value)


def _text(cursor: bytes | None) -> str | None:
    return cursor.hex() if cursor is not None else None
