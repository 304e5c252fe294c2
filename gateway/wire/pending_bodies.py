"""Bodies of the answers to Tidegate's own requests about pending messages; JSON with names in camel case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

MAX_CHANGED_BY_KEY: Final = 1_000
"""Most messages that one abort or reschedule by key takes on."""

MAY_HAVE_CHANGED: Final = "mayHaveChanged"
"""A field of refusals; see `IN_PART`."""

IN_PART: Final[Mapping[str, str]] = {MAY_HAVE_CHANGED: "true"}
"""The fields of a refusal though a part of the change may have been made: by some of several workers, or in commits
before."""


class HeldMessage(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A message in the result of a look-up. Times are epoch ms; `body_size` is bytes.

    `moved_ms` is when it fired or was aborted, and `queue_offset` its offset in its queue once it has fired.
    `rescheduled_ms` is when it was last rescheduled, and `due_before_ms` its due time until then; both are 0 if it
    never was.
    """

    msg_id: str
    offset_msg_id: str
    topic: str
    queue_id: int
    due_ms: int
    state: str
    store_ms: int
    born_ms: int
    body_size: int
    tags: str | None = None
    keys: str | None = None
    born_host: str | None = None
    recall_handle: str | None = None
    moved_ms: int | None = None
    queue_offset: int | None = None
    rescheduled_ms: int = 0
    due_before_ms: int = 0


class PausedTopic(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A paused topic: none of its messages fires. `since_ms` is when the pause began, in epoch ms, and `waiting` counts
    the messages that are due.

    `resumed` means that the pause has ended and that these messages are being delivered.
    """

    topic: str
    since_ms: int
    waiting: int
    resumed: bool = False


class PausedTopics(msgspec.Struct, frozen=True):
    """All topics that are paused, or resumed with messages that still wait, by name."""

    topics: list[PausedTopic]


class PauseAnswer(msgspec.Struct, frozen=True):
    """The answer to a pause or a resumption: `changed` is false if the topic already was in that state."""

    changed: bool


class HeldPage(msgspec.Struct, frozen=True):
    """One page of a look-up; `cursor` requests the next page and is None on the last.

    `paused` lists those of the messages' topics, or the requested topic, that `PausedTopics` would list. With several
    workers, `waiting` may leave out those that have nothing on this page.
    """

    messages: list[HeldMessage]
    cursor: str | None = None
    paused: list[PausedTopic] = []


class AbortOutcome(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The result of aborting one message.

    `outcome` is "aborted", "already fired", "already aborted" or "unknown". `due_ms` is epoch ms.
    """

    outcome: str
    msg_id: str | None = None
    topic: str | None = None
    due_ms: int | None = None


class RescheduleOutcome(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The result of rescheduling one message.

    `outcome` is "rescheduled", "already fired", "already aborted" or "unknown". `due_ms` is the due time now, or the
    last one, and `due_before_ms` the due time before; epoch ms.
    """

    outcome: str
    msg_id: str | None = None
    topic: str | None = None
    due_ms: int | None = None
    due_before_ms: int | None = None


class RescheduleAnswer(msgspec.Struct, frozen=True):
    """One result for each message."""

    results: list[RescheduleOutcome]


class BulkAnswer(msgspec.Struct, frozen=True):
    """The number of messages that one step counted, aborted or rescheduled. `cursor` requests the next step and is None
    after the last."""

    messages: int
    cursor: str | None = None


class AbortAnswer(msgspec.Struct, frozen=True):
    """One result for each message."""

    results: list[AbortOutcome]
