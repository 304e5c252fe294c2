"""Attributes of topics and of consumer groups, and how tools change them (AttributeUtil).

They are stored for the tools and clients that set and read them. The gateway itself uses only those of `limits` and,
for pops, `message.type` and `priority.factor`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from gateway import limits
from gateway.router import RequestError
from gateway.wire.codes import ResponseCode

Check = Callable[[str], object]
"""Checks a value: raises a ValueError whose text says what is valid."""

_LAST: Final = (1 << 63) - 1


def _one_of(*values: str) -> Check:
    def check(text: str) -> None:
        if text not in values:
            raise ValueError(f"one of {', '.join(values)}")

    return check


def _number(least: int, most: int = _LAST) -> Check:
    def check(text: str) -> None:
        digits = text.removeprefix("-")
        is_number = digits.isascii() and digits.isdigit() and len(digits) <= len(str(_LAST))
        if not is_number or not least <= int(text) <= most:
            raise ValueError(f"a number from {least} to {most}")

    return check


OF_TOPICS: Final[Mapping[str, Check]] = {
    "queue.type": _one_of("SimpleCQ"),
    "cleanup.policy": _one_of("DELETE"),
    "message.type": _one_of(
        *("UNSPECIFIED", "MIXED", "TRANSACTION", "PRIORITY", "FIFO", "DELAY", "LITE", "NORMAL")
    ),
    "reserve.time": _number(-1),
    "lite.topic.expiration": _number(-1, 30 * 24 * 60),
    **limits.ATTRIBUTES,
}
"""The attributes of topics (TopicAttributes), with checks of their values. Messages of all types may be sent to every
topic. The other type of queue, BatchCQ, and the other policy, COMPACTION, are refused, as the gateway has neither."""

OF_GROUPS: Final[Mapping[str, Check]] = {
    "priority.factor": _number(0, 100),
    "lite.bind.topic": str,
    "lite.sub.model": _one_of("Shared", "Exclusive"),
    "lite.sub.reset.offset.exclusive": _one_of("true", "false"),
    "lite.sub.reset.offset.unsubscribe": _one_of("true", "false"),
    "lite.sub.client.quota": _number(-1),
    "lite.sub.client.max.event.cnt": _number(10),
    "lite.sub.wildcard": str,
}
"""The attributes of consumer groups (SubscriptionGroupAttributes), with checks of their values."""

UNCHANGEABLE: Final = frozenset({"queue.type", "cleanup.policy"})
"""Attributes that can only be set when a topic is created."""


def changed(
    current: Mapping[str, str] | None, changes: Mapping[str, str], known: Mapping[str, Check]
) -> dict[str, str]:
    """Return attributes after changes.

    :param current: the attributes until now; None for a topic or group that is being created.
    :param changes: `+name` with a value sets an attribute, `-name` removes one.
    :param known: the attributes that exist.
    :raises RequestError: when a change is not possible; the remark names the attribute.
    """
    attributes = dict(current or {})
    named = set()
    for change, value in changes.items():
        sign, name = change[:1], change[1:]
        if not name or sign not in ("+", "-"):
            raise _refusal(f"wrong format key: {change[:60]}; it is +name to set, -name to remove")
        if name in named:
            raise _refusal(f"alter duplication key. key: {name[:60]}")
        named.add(name)
        if current is None and sign == "-":
            raise _refusal(f"only add attribute is supported while creating. key: {name[:60]}")
        if sign == "-" and name not in attributes:
            raise _refusal(f"attempt to delete a nonexistent key: {name[:60]}")
        if current is not None and name in UNCHANGEABLE:
            raise _refusal(f"attempt to update an unchangeable attribute. key: {name}")
        if sign == "-":
            del attributes[name]
        else:
            _check(name, value, known)
            attributes[name] = value
    return attributes


def _check(name: str, value: str, known: Mapping[str, Check]) -> None:
    if name not in known:
        raise _refusal(f"unsupported key: {name[:60]}")
    try:
        known[name](value)
    except ValueError as error:
        raise _refusal(f"the value of {name} is {error}, not {value[:60]}") from None


def _refusal(remark: str) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, remark)
