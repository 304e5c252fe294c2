"""Many pending messages at once: counted, aborted or rescheduled, step by step.

A step is a bounded piece of work, so that sends and pulls have their turn between two of them. What fires or is aborted
meanwhile is not part of it. By the remoting protocol each step is a request, whose cursor asks for the next; by the
HTTP API they are a job (`gateway.web.bulk`).
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.access import May
from gateway.broker import Broker
from gateway.pending import PendingMessages, Wanted, check_may_send, parse_cursor
from gateway.rescheduling import NewTime, Rescheduling
from gateway.router import RequestError
from gateway.wire.codes import ResponseCode
from gateway.wire.pending_bodies import BulkAnswer
from storage import Found, FoundPage, State

STEP = 500
"""Messages that one step changes, some 30 ms of work."""

COUNTED = 2_000
"""Messages that one step counts."""


class _Page(NamedTuple):
    """The messages of one step, and the cursor of the next, which begins with when the first one began."""

    found: list[Found]
    cursor: str | None


class BulkChanges:
    """Changes what `Wanted` describes: pending messages, all of them or by topic, key, tag or due time."""

    def __init__(
        self, broker: Broker, pending: PendingMessages, rescheduling: Rescheduling
    ) -> None:
        self._broker = broker
        self._pending = pending
        self._rescheduling = rescheduling

    def select(
        self, wanted: Wanted, limit: int, behind: bytes | None, unmoved_since_ms: int | None
    ) -> FoundPage:
        """The messages of one step.

        :param behind: cursor of the step before.
        :param unmoved_since_ms: leave those out that were given another time since then: what a change has moved may
            come by again, at its new time.
        """
        page = self._pending.select(wanted, limit, behind)
        if unmoved_since_ms is None:
            return page
        found = [one for one in page.found if one.rescheduled_ms < unmoved_since_ms]
        return page._replace(found=found)

    def change(self, found: list[Found], to: NewTime | None) -> int:
        """Give messages another time, or abort them where there is none; how many were still pending."""
        if to is not None:
            return self._rescheduling.move_found(found, to)
        return self._pending.abort_found(found)

    def count(self, wanted: Wanted, may: May, cursor: str = "") -> BulkAnswer:
        """How many messages a step would change; nothing is changed."""
        page = self._page(wanted, may, cursor, COUNTED)
        return BulkAnswer(len(page.found), page.cursor)

    def abort(self, wanted: Wanted, may: May, cursor: str = "") -> BulkAnswer:
        """Abort messages; each is noted in the audit log."""
        self._pending.check_enabled()
        page = self._page(wanted, may, cursor, STEP)
        return BulkAnswer(self.change(page.found, None), page.cursor)

    def reschedule(self, wanted: Wanted, to: NewTime, may: May, cursor: str = "") -> BulkAnswer:
        """Give messages another time. One that was moved since the first step began is not moved again, wherever in the
        range its new time is."""
        page = self._page(wanted, may, cursor, STEP)
        return BulkAnswer(self.change(page.found, to), page.cursor)

    def _page(self, wanted: Wanted, may: May, cursor: str, limit: int) -> _Page:
        if not wanted.topic:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, "name the topic whose messages are to be changed"
            )
        check_may_send(may, wanted.topic)
        begun, behind = self._parse(cursor)
        wanted = wanted._replace(id="", state=State.PENDING.value)
        page = self.select(wanted, limit, behind, int.from_bytes(begun))
        return _Page(page.found, (begun + page.cursor).hex() if page.cursor is not None else None)

    def _parse(self, cursor: str) -> tuple[bytes, bytes | None]:
        """When the first step began, as it is packed, and where to go on."""
        parsed = parse_cursor(cursor)
        if parsed is None:
            return self._broker.clock.stored_ms().to_bytes(8), None
        return parsed[:8], parsed[8:]
