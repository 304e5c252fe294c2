"""Bodies of the answers to Tidegate's own requests about messages that have not fired; JSON, names in camel case."""

from __future__ import annotations

import msgspec


class HeldMessage(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A message as look-ups tell of it. Times are epoch ms; `body_size` is bytes.

    `moved_ms` is when it fired or was aborted, and `queue_offset` its place in its queue once it
    fired. `rescheduled_ms` is when it was given another time for the last time, and `due_before_ms`
    its time until then; 0 where it never was.
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
    """A topic of which nothing fires: since when, in epoch ms, and how many of its messages are due and wait.

    `resumed` says that its pause has ended and that they are on their way.
    """

    topic: str
    since_ms: int
    waiting: int
    resumed: bool = False


class PausedTopics(msgspec.Struct, frozen=True):
    """All topics of which nothing fires, by name."""

    topics: list[PausedTopic]


class PauseAnswer(msgspec.Struct, frozen=True):
    """Whether a topic was paused, or resumed, just now; false where it was before."""

    changed: bool


class HeldPage(msgspec.Struct, frozen=True):
    """One page of a look-up; `cursor` asks for the next one and is None on the last.

    `paused` has the topics of these messages, or the one asked for, of which nothing fires for now.
    """

    messages: list[HeldMessage]
    cursor: str | None = None
    paused: list[PausedTopic] = []


class AbortOutcome(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What became of one message that was to be aborted.

    `outcome` is "aborted", "already fired", "already aborted" or "unknown". `due_ms` is epoch ms.
    """

    outcome: str
    msg_id: str | None = None
    topic: str | None = None
    due_ms: int | None = None


class RescheduleOutcome(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What became of one message that was to be given another time.

    `outcome` is "rescheduled", "already fired", "already aborted" or "unknown". `due_ms` is when it fires now, or was
    to fire, and `due_before_ms` when it would have fired; epoch ms.
    """

    outcome: str
    msg_id: str | None = None
    topic: str | None = None
    due_ms: int | None = None
    due_before_ms: int | None = None


class RescheduleAnswer(msgspec.Struct, frozen=True):
    """One outcome for each message."""

    results: list[RescheduleOutcome]


class BulkAnswer(msgspec.Struct, frozen=True):
    """How many messages one step counted, aborted or rescheduled; `cursor` asks for the next step and is None after
    the last."""

    messages: int
    cursor: str | None = None


class AbortAnswer(msgspec.Struct, frozen=True):
    """One outcome for each message."""

    results: list[AbortOutcome]
