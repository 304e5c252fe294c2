"""Recurring messages: lists (Tidegate's own 31010), changes (31011) and the next times (31012).

Sends with properties set them: `Sending`.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from gateway.broker import Broker
from gateway.handlers.steps import Steps
from gateway.reactor import Reactor
from gateway.recurring.messages import Upcoming
from gateway.router import Call
from gateway.wire.cursors import own_cursor
from gateway.wire.headers import ChangeRecurring, ListRecurring, NextRecurring
from gateway.wire.recurring_bodies import RecurringList, RecurringTimes

TIMES_AT_ONCE = 5
"""Next times found in one turn of the reactor, some 10 ms of work if there is one in decades."""


class RecurringRequests:
    """Answers requests about recurring messages."""

    def __init__(self, broker: Broker, reactor: Reactor) -> None:
        self._broker = broker
        self._steps = Steps(reactor, broker.committer)
        self._recurring = broker.recurring

    def list(self, call: Call) -> None:
        """Answer with a page of the recurring messages that the sender may read, or with the one that has a name."""
        fields: ListRecurring = call.fields
        cursor = own_cursor(fields.cursor, self._broker.config.broker_name)
        if fields.name:
            page = RecurringList([self._recurring.get(fields.topic, fields.name)])
        elif cursor is None:
            page = RecurringList([])
        else:
            page = self._recurring.page(
                call.may, fields.topic, cursor=cursor, limit=fields.limit, full=fields.full
            )
        call.answer(body=msgspec.json.encode(page))

    def change(self, call: Call) -> None:
        """Pause, resume or delete a recurring message, and answer with what was done."""
        fields: ChangeRecurring = call.fields
        change = self._recurring.change(fields.change, fields.topic, fields.name)
        self._broker.committer.answer(call, call.encode(body=msgspec.json.encode(change)))

    def next_times(self, call: Call) -> None:
        """Answer with the next times of a recurring message, or of a rule that the request gives."""
        fields: NextRecurring = call.fields
        if fields.name:
            found = self._recurring.next_times(fields.topic, fields.name, fields.times)
        else:
            found = self._recurring.preview(
                fields.times,
                cron=fields.cron,
                every=fields.every,
                zone=fields.zone,
                start=fields.start,
                end=fields.end,
            )
        self._steps.begin(self._all_times(found, call), call)

    def _all_times(self, found: Upcoming, call: Call) -> Iterator[None]:
        times: list[int] = []
        for time_ms in found.times:
            times.append(time_ms)
            if len(times) % TIMES_AT_ONCE == 0:
                yield
        call.answer(body=msgspec.json.encode(RecurringTimes(times, found.zone)))
