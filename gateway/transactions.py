"""What makes a message a transaction's half message, and how its properties change. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.wire import properties as names
from gateway.wire.properties import find, remove

ADDED_LATER = 64
"""Bytes that a half message's properties may still grow by: how often it was checked, and its due time."""

_PLACE = (names.REAL_TOPIC, names.REAL_QID)


def is_half(values: Mapping[str, str], reconsume_times: int) -> bool:
    """Whether a message is to wait for its producer's decision.

    The property decides, in upper or lower case, not sysFlag (SendMessageProcessor). Clients before 4.6.1 left the
    property on messages that they send again for a consumer that failed: such a message is no half message.
    """
    if values.get(names.TRAN_MSG, "").lower() != "true":
        return False
    retried = reconsume_times > 0 and values.get(names.DELAY, "0") != "0"
    return not retried


def half_properties(properties: str, topic: str, queue_id: int, message_id: str) -> str:
    """Return the properties of a half message that waits, with its topic and queue and its transaction's id."""
    properties = remove(properties, (*_PLACE, names.TIMER_OUT_MS, names.TRANSACTION_ID))
    return (
        f"{properties}{names.TRANSACTION_ID}\x01{message_id}\x02"
        f"{names.REAL_TOPIC}\x01{topic}\x02{names.REAL_QID}\x01{queue_id}\x02"
    )


def place_of(properties: str) -> tuple[str, int]:
    """Return the topic and queue that a half message belongs to."""
    return find(properties, names.REAL_TOPIC) or "", int(find(properties, names.REAL_QID) or 0)


def without_place(properties: str) -> str:
    """Return the properties of a half message that has arrived where it belongs."""
    return remove(properties, _PLACE)


def with_checks(properties: str, checks: int) -> str:
    """Return the properties with the number of times that the producer was asked; 0 is left out."""
    if not checks:
        return properties
    return (
        remove(properties, (names.TRANSACTION_CHECK_TIMES,))
        + f"{names.TRANSACTION_CHECK_TIMES}\x01{checks}\x02"
    )


def own_immunity_ms(properties: str, timeout_ms: int) -> int | None:
    """Return how long a half message itself asks not to be checked, in ms; None where it does not ask.

    Less than `timeout_ms`, or a text that is no time, counts as `timeout_ms` (TransactionalMessageUtil).
    """
    text = find(properties, names.CHECK_IMMUNITY_TIME_IN_SECONDS)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 10:
        return timeout_ms
    return max(int(text) * 1000, timeout_ms)
