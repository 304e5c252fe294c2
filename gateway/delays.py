"""Works out when a message is due: its properties and the current time give a due time, or an error. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from gateway.limits import MAX_DELAY, origin
from gateway.router import InvalidError, illegal
from gateway.wire import properties as names
from gateway.wire.codes import ResponseCode
from gateway.wire.properties import remove

TIMER_PROPERTIES = (names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS)
"""The properties of timer messages, in the order of precedence (HookUtils.handleScheduleMessage)."""

TIMES = (*TIMER_PROPERTIES, names.START_DELIVER_TIME)
"""All properties that ask for a delivery time, in the order of precedence."""

REQUESTS = (names.DELAY, *TIMES)
"""All properties that ask for a later delivery."""

_INT = (-(1 << 31), (1 << 31) - 1)
_LONG = (-(1 << 63), (1 << 63) - 1)
"""The smallest and the largest number of Java's types."""
_LONG_DIGITS = 19


class Delay(msgspec.Struct, gc=False):
    """A delivery in the future.

    :param due_ms: epoch ms; the message is delivered then, and never before.
    :param properties: the message's properties as they will be stored.
    :param by_level: whether a delay level asked for it, rather than a time.
    """

    due_ms: int
    properties: str
    by_level: bool


class DelayRules(NamedTuple):
    """The delay of each level, level 1 first, and the longest delay that is accepted; all in ms.

    `limit` says where the longest delay can be changed. The longest delay bounds levels only if it is the topic's own
    (`for_levels`): the levels of the gateway may be longer than its setting.
    """

    level_ms: tuple[int, ...]
    max_delay_ms: int
    limit: str = origin(MAX_DELAY, None)
    for_levels: bool = False


def asks_for_delay(properties: str) -> bool:
    """Return False if a property string certainly asks for no delay: the names of all such properties have `DEL`."""
    return "DEL" in properties


def delay_of(
    properties: str, values: Mapping[str, str], now_ms: int, rules: DelayRules
) -> Delay | None:
    """Return the delay that a message asks for; None if it is to be delivered at once.

    A level above 0 wins over the times, and `TIMER_PROPERTIES` are then dropped. Among the times, seconds win over
    milliseconds, these over an absolute time, and that over `__STARTDELIVERTIME`. Relative times count from `now_ms`. A
    message whose time has passed is delivered at once.

    :param values: the values of the properties, by name.
    :raises RequestError: when a value cannot be read, or lies too far ahead.
    """
    if names.DELAY in values:
        level = _number(values[names.DELAY], ResponseCode.SYSTEM_ERROR, names.DELAY, _INT)
        if level > 0:
            delay = _level_delay(properties, min(level, len(rules.level_ms)), level, now_ms, rules)
            if rules.for_levels:
                check_distance(delay.due_ms - now_ms, rules.max_delay_ms, names.DELAY, rules.limit)
            return delay
    for name in TIMES:
        if name in values:
            break
    else:
        return None
    value = _number(values[name], ResponseCode.MESSAGE_ILLEGAL, name, _LONG)
    if name == names.TIMER_DELAY_SEC:
        due_ms = now_ms + value * 1000
    elif name == names.TIMER_DELAY_MS:
        due_ms = now_ms + value
    else:
        due_ms = value
    if due_ms <= now_ms:
        return None
    check_distance(due_ms - now_ms, rules.max_delay_ms, name, rules.limit)
    return Delay(due_ms, properties, by_level=False)


def check_distance(distance_ms: int, max_delay_ms: int, name: str, limit: str) -> None:
    """Refuse a time that is too far ahead.

    :param name: the name of the property or field that asks for it.
    :param limit: says where the longest delay can be changed.
    """
    if distance_ms > max_delay_ms:
        raise illegal(
            f"timer message illegal, the delay time should not be bigger than the max delay "
            f"{max_delay_ms}ms ({limit}); {name} asks for {distance_ms}ms"
        )


def _level_delay(properties: str, level: int, asked: int, now_ms: int, rules: DelayRules) -> Delay:
    dropped = [name for name in TIMER_PROPERTIES if name in properties]
    if dropped:
        properties = remove(properties, dropped)
    if asked != level:
        properties = remove(properties, [names.DELAY]) + f"{names.DELAY}\x01{level}\x02"
    return Delay(now_ms + rules.level_ms[level - 1], properties, by_level=True)


def _number(text: str, code: int, name: str, limits: tuple[int, int]) -> int:
    """Parse a Java int or long: decimal digits with an optional sign, and nothing else. As in Java these may be the
    digits of any script, which `String.format` writes for some languages."""
    digits = text[1:] if text[0] in "+-" else text
    if len(digits) > _LONG_DIGITS:
        # Python is slow to parse numbers of thousands of digits, and refuses them in the end.
        digits = digits.lstrip("0") or "0"
    if len(digits) <= _LONG_DIGITS and digits.isdecimal():
        number = -int(digits) if text[0] == "-" else int(digits)
        smallest, largest = limits
        if smallest <= number <= largest:
            return number
    reason = (
        "timer message illegal" if code == ResponseCode.MESSAGE_ILLEGAL else "NumberFormatException"
    )
    raise InvalidError(code, f'{reason}, {name} is not a number: "{text[:64]}"')
