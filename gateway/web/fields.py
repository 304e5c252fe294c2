"""Fields that several requests of the API share, and the functions that read them."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Literal

from msgspec import Meta

from gateway.clock import Clock
from gateway.moments import LATEST_EPOCH_MS, parse_moment, parse_shift
from gateway.pending.rescheduling import NewTime
from gateway.web.endpoints import OFFSET_ID, ApiError, Fields

Moment = Annotated[
    int | str,
    Meta(
        description="A time: epoch milliseconds, ISO 8601 (of the gateway's time zone unless it has one), `now`, "
        "or one from now such as `+30m` or `-2h`.",
        examples=["+30m"],
    ),
]

TopicName = Annotated[str, Meta(description="Name of a topic.", max_length=255)]
MessageId = Annotated[
    str,
    Meta(
        description="The offset id of a message (`offsetMsgId`), which no other message has.",
        pattern=OFFSET_ID,
    ),
]
Contains = Annotated[
    str, Meta(description="Only those that have this text in their name.", max_length=255)
]
Limit = Annotated[int, Meta(description="Most items in the answer.", ge=1, le=1000)]
# The longest one, of 64 workers, has three places of up to 1,022 digits (`gateway.wire.cursors`).
Cursor = Annotated[str, Meta(description="`cursor` of the answer before.", max_length=4096)]
SearchedState = Annotated[
    Literal["pending", "fired", "aborted", "any"],
    Meta(description="State; `any` needs an id or a key, and `fired` these or a topic."),
]


class NewTimeFields(Fields):
    """A new time for messages, by exactly one of the two fields."""

    at: Annotated[
        int | str | None, Meta(description="When they are to fire, as in queries: `+30m`.")
    ] = None
    shift: Annotated[
        str | None,
        Meta(description="How much later than now planned, such as `10m`; earlier: `-10m`."),
    ] = None

    def read(self, clock: Clock) -> NewTime:
        """Return the new time.

        :raises ApiError: when it is not valid, or both fields or none are set.
        """
        if (self.at is None) == (self.shift is None):
            raise ApiError(HTTPStatus.BAD_REQUEST, "name the new time by either at or shift")
        if self.shift is None:
            assert self.at is not None
            return NewTime(due_ms=read_moment(self.at, clock))
        try:
            return NewTime(shift_ms=parse_shift(self.shift))
        except ValueError as error:
            raise ApiError(
                HTTPStatus.BAD_REQUEST,
                f"shift = {self.shift!r} is not a distance in time; write one such as 10m, -2h or 1h30m",
            ) from error


def read_bound(moment: int | str | None, clock: Clock) -> int | None:
    """Return the bound of a span of time in epoch ms, not before 1970, or None if it is left out.

    :raises ApiError: when it is not a time.
    """
    return max(0, read_moment(moment, clock)) if moment is not None else None


def read_moment(moment: int | str, clock: Clock) -> int:
    """Return a time in epoch ms.

    :raises ApiError: when it is not a time.
    """
    if moment == "0" or (isinstance(moment, int) and -LATEST_EPOCH_MS <= moment <= 0):
        return int(moment)
    try:
        return parse_moment(str(moment), clock.now_ms())
    except ValueError as error:
        hint = "; in an address write %2B for the +" if _has_lost_its_plus(str(moment)) else ""
        raise ApiError(HTTPStatus.BAD_REQUEST, f"{error}{hint}") from error


def _has_lost_its_plus(text: str) -> bool:
    """Whether a text would be a time if its blanks were pluses: in an address a plus stands for a blank."""
    if " " not in text:
        return False
    try:
        parse_moment(text.replace(" ", "+"), 0)
    except ValueError:
        return False
    return True
