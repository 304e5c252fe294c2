"""Reschedules messages that have not fired, for any caller.

As with `gateway.pending.messages`, both the handlers of the remoting protocol and the HTTP API use this module.
Changes join the store's batch: an answer may leave once the batch is committed.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from functools import partial
from typing import Final, NamedTuple

from gateway.access.policies import May
from gateway.broker import Broker
from gateway.delays import check_distance
from gateway.moments import is_in_seconds
from gateway.notes import read_note
from gateway.pending.messages import PendingMessages, Place, check_may_send
from gateway.router import Actor, RequestError
from gateway.wire.codes import ResponseCode
from gateway.wire.pending_bodies import RescheduleOutcome
from storage import (
    Found,
    Rescheduled,
    RescheduleResult,
    State,
    all_with_id,
    check_readable,
    reschedule,
    reschedule_sequences,
)

_NOTE: Final = b"bulk change"
"""Name of the note with the time that the last change of several steps began with, as text in epoch ms."""

_UNKNOWN: Final = RescheduleResult(Rescheduled.UNKNOWN, 0, 0)


class NewTime(NamedTuple):
    """When a message is to fire from now on, in ms: `due_ms` since 1970, `delay_ms` from now, or `shift_ms` later than
    its due time so far (earlier, if negative). Exactly one is given."""

    due_ms: int | None = None
    delay_ms: int | None = None
    shift_ms: int | None = None

    def check(self) -> None:
        """:raises RequestError: unless exactly one is given, or when `due_ms` is in seconds."""
        if self.count(None) != 2:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                "name the new time by one of due (epoch ms), delay (ms from now) and shift (ms)",
            )
        if self.due_ms is not None and is_in_seconds(self.due_ms):
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"due = {self.due_ms} is in seconds: epoch ms of it are {self.due_ms}000",
            )

    def of(self, due_ms: int, now_ms: int) -> int:
        """Return a message's new due time, epoch ms. A time that has passed becomes now."""
        if self.due_ms is not None:
            new_ms = self.due_ms
        elif self.delay_ms is not None:
            new_ms = now_ms + self.delay_ms
        else:
            new_ms = due_ms + (self.shift_ms or 0)
        return max(new_ms, now_ms)


class Rescheduling:
    """Reschedules pending messages. What cannot be done raises `RequestError`."""

    def __init__(self, broker: Broker, pending: PendingMessages) -> None:
        self._broker = broker
        self._store = broker.store
        self._pending = pending
        self._noted_ms = broker.clock.stored_ms()
        read_note(self._store, _NOTE, b"", "time of the last bulk change", self._continue_from)

    def _continue_from(self, _name: bytes, noted: bytes) -> None:
        self._noted_ms = max(self._noted_ms, int(noted))

    def begin(self) -> int:
        """Begin a change of several steps, and return the time to call `has_moved` with. It is later than the time
        noted for any move so far, even while the clock stands still, also over a restart. The change joins the store's
        batch."""
        self._noted_ms = max(self._broker.clock.stored_ms(), self._noted_ms + 1)
        self._store.put_note(_NOTE, b"%d" % self._noted_ms)
        return self._noted_ms

    def has_moved(self, found: Found, begun_ms: int) -> bool:
        """Whether a message was rescheduled since a change began. A noted time that lies ahead is from before the clock
        was set back, and does not count."""
        return begun_ms <= found.rescheduled_ms <= self._stored_ms()

    def _stored_ms(self) -> int:
        """Return the time to note for a move."""
        self._noted_ms = max(self._broker.clock.stored_ms(), self._noted_ms)
        return self._noted_ms

    def by_handle(self, text: str, to: NewTime, may: May) -> list[RescheduleOutcome]:
        """Move the message whose send was answered with this recall handle. The handle stays valid."""
        handle = self._pending.read_handle(text)
        check_may_send(may, handle.topic)
        return self._move_places({Place(handle.message_id, handle.topic)}, to)

    def by_id(self, message_id: str, topic: str, to: NewTime, may: May) -> list[RescheduleOutcome]:
        """Move the messages with an id, the client's or the offset id.

        :param topic: where not empty, only messages of this topic count.
        """
        places = self._pending.places_of(message_id, topic, may)
        return self._move_places(places, to) or [_outcome(Place(message_id, topic), _UNKNOWN)]

    def by_key(
        self, topic: str, key: str, to: NewTime, may: May, actor: Actor
    ) -> Generator[None, None, list[RescheduleOutcome]]:
        """Move a topic's messages with a key, as many as one abort by key takes on, pending ones first, step by step.
        None is moved if one of them would fire too far ahead.

        :param actor: whom the audit log names.
        """
        self.check_enabled()
        parts = yield from self._pending.places_with_key(topic, key, may)
        check, move = partial(self._check_places, to=to), partial(self._move_places, to=to)
        outcomes = yield from self._pending.change_in_parts(parts, check, move, actor)
        return outcomes or [_outcome(Place("", topic), _UNKNOWN)]

    def _move_places(self, places: Collection[Place], to: NewTime) -> list[RescheduleOutcome]:
        self._check_places(places, to)
        return [
            _outcome(place, result) for place in sorted(places) for result in self.move(place, to)
        ]

    def _check_places(self, places: Iterable[Place], to: NewTime) -> None:
        self.check_enabled()
        for place in places:
            self._pending.check_number(place.message_id)
            # Check all that may be moved: `find` returns only some of very many.
            found = all_with_id(self._store, place.message_id.encode())
            self.check((one for one in found if Place.of(one).topic == place.topic), to)

    def move(self, place: Place, to: NewTime) -> list[RescheduleResult]:
        """Move a topic's messages with a client's id, without checking permissions. Note each move in the audit log.

        The caller has checked that messages may be moved, and that the new time is not too far ahead.
        """
        self._pending.check_number(place.message_id)
        now_ms = self._broker.clock.now_ms()
        results = reschedule(
            self._store,
            place.message_id.encode(),
            lambda due_ms: to.of(due_ms, now_ms),
            self._stored_ms(),
            place.topic.encode(),
        )
        if results[0].outcome is Rescheduled.UNKNOWN:
            check_readable(self._store, place.message_id.encode())
        for result in results:
            self._moved(place, result)
        return results

    def move_found(self, found: list[Found], to: NewTime) -> int:
        """Move those of these messages that are still pending. Return how many these were.

        :raises RequestError: when one of them would fire too far ahead; then none is moved.
        """
        self.check_enabled()
        self.check(found, to)
        now_ms = self._broker.clock.now_ms()
        results = reschedule_sequences(
            self._store,
            (one.sequence for one in found),
            lambda due_ms: to.of(due_ms, now_ms),
            self._stored_ms(),
        )
        return sum(
            self._moved(Place.of(one), results[one.sequence])
            for one in found
            if one.sequence in results
        )

    def _moved(self, place: Place, result: RescheduleResult) -> bool:
        if result.outcome is not Rescheduled.RESCHEDULED:
            return False
        self._broker.firing.due_at(result.due_ms)
        self._broker.audit.note(
            "reschedule",
            topic=place.topic,
            msgId=place.message_id,
            dueMs=result.due_ms,
            fromMs=result.due_before_ms,
        )
        return True

    def check_enabled(self) -> None:
        """Refuse unless the setting `recall_enabled` lets messages be taken back: moving a message by years does the
        same."""
        if not self._broker.config.recall_enabled:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                "reschedule failed, operation is forbidden (setting recall_enabled)",
            )

    def check(self, found: Iterable[Found], to: NewTime) -> None:
        """Check the new times against the topic's longest delay, as for sends.

        :raises RequestError: when one is too far ahead, or `NewTime.check` refuses it.
        """
        to.check()
        now_ms = self._broker.clock.now_ms()
        for one in found:
            if one.state is State.PENDING:
                topic = self._broker.topics.get(Place.of(one).topic)
                rules = self._broker.intake.rules_of(topic)
                distance_ms = to.of(one.due_ms, now_ms) - now_ms
                check_distance(distance_ms, rules.max_delay_ms, "the new time", rules.limit)


def _outcome(place: Place, result: RescheduleResult) -> RescheduleOutcome:
    return RescheduleOutcome(
        outcome=result.outcome.value,
        msg_id=place.message_id,
        topic=place.topic,
        due_ms=result.due_ms,
        due_before_ms=result.due_before_ms,
    )
