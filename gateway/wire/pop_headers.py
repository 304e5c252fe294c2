"""The fields of the requests of POP consumption; `headers` re-exports them."""

from __future__ import annotations

from typing import ClassVar

from gateway.wire.fields import Fields, Int32, Int64


class PopMessage(Fields):
    """200050, PopMessageRequestHeader."""

    unsent: ClassVar = {"pollTime": "0", "bornTime": "0", "initMode": "0"}

    consumer_group: str
    topic: str
    queue_id: Int32
    """-1 means any queue."""
    max_msg_nums: Int32
    invisible_time: Int64
    """Milliseconds after which an unacknowledged message comes back."""
    poll_time: Int64
    """Milliseconds to wait for a message."""
    born_time: Int64
    """When the client sent the request, epoch ms; 0 means now."""
    init_mode: Int32
    """Where a group without progress starts: 0 at the oldest message, 1 at the newest."""
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None
    """Identical in a repeated request, whose first answer may have been lost."""


class AckMessage(Fields):
    """200051, AckMessageRequestHeader."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    """The message's handle, see `pops`."""
    offset: Int64


class ChangeInvisibleTime(AckMessage, kw_only=True):
    """200053, ChangeInvisibleTimeRequestHeader."""

    invisible_time: Int64
    """Milliseconds from now."""
    suspend: bool = False
    """Whether the message is only put off: then its coming back does not count as a retry. In order this makes no
    difference (processChangeInvisibleTimeForOrder)."""


class PeekMessage(Fields):
    """200052, PeekMessageRequestHeader."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32


class Notification(Fields):
    """200054, NotificationRequestHeader."""

    unsent: ClassVar = {"pollTime": "0", "bornTime": "0"}

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class PollingInfo(Fields):
    """200055, PollingInfoRequestHeader."""

    consumer_group: str
    topic: str
    queue_id: Int32
