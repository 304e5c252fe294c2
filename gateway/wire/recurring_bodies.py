"""Bodies of the answers to Tidegate's own requests about recurring messages; JSON with names in camel case."""

from __future__ import annotations

import msgspec

MAX_TIMES = 1_000
"""Most times in one answer."""


class RecurringMessage(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A recurring message in a list. Times are epoch ms; `body_size` is bytes.

    It has either `cron` or `every`. `state` is "active" or "paused"; while paused, `next_ms` is when it would have
    fired. `fired` counts the messages that it has put into their queue. `body`, `properties`, `flag` and `sys_flag` are
    there only on request. In JSON the body is base64, and compressed by its sender if `sys_flag` says so.
    """

    topic: str
    name: str
    state: str
    next_ms: int
    fired: int
    cron: str | None = None
    every: str | None = None
    zone: str
    misfire: str
    start_ms: int | None = None
    end_ms: int | None = None
    count: int | None = None
    set_ms: int
    queue_id: int
    tags: str
    keys: str
    body_size: int
    body: bytes | None = None
    properties: dict[str, str] | None = None
    flag: int | None = None
    sys_flag: int | None = None


class RecurringList(msgspec.Struct, frozen=True):
    """One page of a list; `cursor` requests the next page and is None on the last."""

    recurring: list[RecurringMessage]
    cursor: str | None = None


class RecurringChange(msgspec.Struct, frozen=True):
    """The change of a recurring message, and its state afterwards, or before its deletion.

    `outcome` is "set", "replaced", "updated", "paused", "already paused", "resumed", "already active" or "deleted".
    """

    outcome: str
    recurring: RecurringMessage


class RecurringTimes(msgspec.Struct, frozen=True):
    """The next times of a recurring message or of a rule, epoch ms, and the rule's zone."""

    times: list[int]
    zone: str
