"""Bodies of the answers to Tidegate's own requests about messages that have not fired; JSON, names in camel case."""

from __future__ import annotations

import msgspec


class HeldMessage(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A message as look-ups tell of it. Times are epoch ms; `body_size` is bytes.

    `moved_ms` is when it fired or was aborted, and `queue_offset` its place in its queue once it
    fired.
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


class HeldPage(msgspec.Struct, frozen=True):
    """One page of a look-up; `cursor` asks for the next one and is None on the last."""

    messages: list[HeldMessage]
    cursor: str | None = None


class AbortOutcome(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What became of one message that was to be aborted.

    `outcome` is "aborted", "already fired", "already aborted" or "unknown". `due_ms` is epoch ms.
    """

    outcome: str
    msg_id: str | None = None
    topic: str | None = None
    due_ms: int | None = None


class AbortAnswer(msgspec.Struct, frozen=True):
    """One outcome for each message."""

    results: list[AbortOutcome]
