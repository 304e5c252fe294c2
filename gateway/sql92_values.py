"""Operands and operations of SQL92 filters (ComparisonExpression, LogicExpression).

A property is always a string, or null where the message has none. The rules are exactly those of the Java broker: a
filter that selected other messages here than there would be worse than none.

- Beside a number, a string is read as a number of the same kind: `'1.5'` cannot be read for `a > 1`, but it can for
  `a > 1.0`. Where the string is no such number, the whole filter gives up, and the message is not selected.
- A comparison with null is null, except that null on the right of `=` is false, and null equals null.
- AND, OR and NOT take null as "unknown". A filter that is null in the end does not select the message.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

Value = str | int | float | None
"""Booleans count as ints."""

Properties = Mapping[str, str]
"""A message's properties. They are parsed once, however many names an expression has: to search 32 KB of empty pairs
for one takes milliseconds."""

Evaluate = Callable[[Properties], Value]
"""An operand's value for a message with these properties."""

MAX_DEPTH: Final = 200
"""Most operations nested within one another; the Java broker's limit is its stack."""


class SqlError(ValueError):
    """An expression is not a valid filter; the text says what is wrong with it."""


class IncomparableError(Exception):
    """Two values that cannot be compared: the message is not selected, whatever else the filter says."""


class Long(int):
    """A whole number beyond 32 bits. A string compared with it may have 64 bits, with other whole numbers only 32."""


class Operand:
    """A part of an expression. `depth` counts nested operations."""

    __slots__ = ("depth", "evaluate")

    def __init__(self, evaluate: Evaluate, *inner: Operand) -> None:
        self.evaluate = evaluate
        self.depth: int = 1 + max((one.depth for one in inner), default=0)
        if self.depth > MAX_DEPTH:
            raise SqlError(f"more than {MAX_DEPTH} operations are nested")


class Condition(Operand):
    """An operand that is true, false or null."""

    __slots__ = ()


class Property(Operand):
    """A property of the message."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__(lambda properties: properties.get(name))
        self.name = name


class Constant(Operand):
    """A string or a number."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        super().__init__(lambda _: value)
        self.value = value


class ConditionConstant(Condition, Constant):
    """TRUE, FALSE or NULL."""

    __slots__ = ()


def equal(left: Operand, right: Operand) -> Condition:
    """`left = right`."""
    for side in (left, right):
        if isinstance(side, Constant) and side.value is None:
            raise SqlError("NULL cannot be compared; write IS NULL")
    if (
        isinstance(left, ConditionConstant)
        and isinstance(right, Constant)
        and not isinstance(right, ConditionConstant)
    ):
        raise SqlError("TRUE and FALSE cannot be compared with a string or a number")
    if isinstance(left, Property) and isinstance(right, Constant) and type(right.value) is str:
        return _property_is(left.name, right.value)
    return _same(left, right)


def is_null(left: Operand) -> Condition:
    """`left IS NULL`."""
    return _same(left, ConditionConstant(None))


def _property_is(name: str, wanted: str) -> Condition:
    """The most common filter, a property compared with a string, without the rest of `_same`."""

    def evaluate(properties: Properties) -> Value:
        value = properties.get(name)
        return None if value is None else value == wanted

    return Condition(evaluate)


def _same(left: Operand, right: Operand) -> Condition:
    left_value, right_value = left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> Value:
        one = left_value(properties)
        other = right_value(properties)
        if one is None:
            return True if other is None else None
        return other is not None and _compare(one, other) == 0

    return Condition(evaluate, left, right)


_ORDERS: Final[dict[str, Callable[[int, int], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}


def ordered(left: Operand, symbol: str, right: Operand) -> Condition:
    """`left > right` and the like, for numbers and strings that can be read as numbers."""
    for side in (left, right):
        is_number = isinstance(side, Constant) and type(side.value) in (int, Long, float)
        if isinstance(side, Condition | Constant) and not is_number:
            raise SqlError(f"only numbers can be compared by {symbol}")
    holds = _ORDERS[symbol]
    left_value, right_value = left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> Value:
        one = left_value(properties)
        other = right_value(properties)
        if one is None or other is None:
            return None
        if type(one) is str and type(other) is str:
            return holds(_compare(_read_number(one, float), _read_number(other, float)), 0)
        return holds(_compare(one, other), 0)

    return Condition(evaluate, left, right)


def between(value: Operand, low: Operand, high: Operand) -> Condition:
    """`value BETWEEN low AND high`, both included."""
    inside = both([ordered(value, ">=", low), ordered(value, "<=", high)])
    match low, high:
        case Constant(), Constant() if _compare(high.value, low.value) < 0:
            raise SqlError(f"nothing is BETWEEN {low.value} AND {high.value}")
    return inside


def outside(value: Operand, low: Operand, high: Operand) -> Condition:
    """`value NOT BETWEEN low AND high`."""
    return either([ordered(value, "<", low), ordered(value, ">", high)])


def one_of(left: Operand, wanted: Sequence[str], negated: bool) -> Condition:
    """`left [NOT] IN (...)`."""
    if not isinstance(left, Property):
        raise SqlError("only a property can be IN a list")
    name, strings = left.name, frozenset(wanted)

    def evaluate(properties: Properties) -> Value:
        value = properties.get(name)
        return None if value is None else (value in strings) is not negated

    return Condition(evaluate, left)


SEARCHES: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def search(left: Operand, word: str, wanted: str, negated: bool) -> Condition:
    """`left [NOT] CONTAINS 'wanted'` and the like. For null it is false, not null, and so is its negation."""
    holds = SEARCHES[word]
    left_value = left.evaluate

    def evaluate(properties: Properties) -> Value:
        value = left_value(properties)
        return type(value) is str and wanted != "" and holds(value, wanted) is not negated

    return Condition(evaluate, left)


def both(conditions: Sequence[Condition]) -> Condition:
    """`a AND b AND ...`, evaluated only as far as needed."""
    return _joined(conditions, stop=False)


def either(conditions: Sequence[Condition]) -> Condition:
    """`a OR b OR ...`, evaluated only as far as needed."""
    return _joined(conditions, stop=True)


def _joined(conditions: Sequence[Condition], *, stop: bool) -> Condition:
    parts = tuple(condition.evaluate for condition in conditions)

    def evaluate(properties: Properties) -> Value:
        result: Value = not stop
        for part in parts:
            value = part(properties)
            if value is stop:
                return stop
            if value is None:
                result = None
        return result

    return Condition(evaluate, *conditions)


def negation(condition: Condition) -> Condition:
    """`NOT condition`."""
    inner = condition.evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        return None if value is None else not value

    return Condition(evaluate, condition)


def negative(operand: Operand) -> Operand:
    """`-operand`; null for anything but numbers. The result is not a constant, so some checks do not cover it."""
    inner = operand.evaluate

    def evaluate(properties: Properties) -> Value:
        value = inner(properties)
        kind = type(value)
        if kind is Long:
            return Long(-operator.index(value))  # type: ignore[arg-type]
        return -value if kind is int or kind is float else None  # type: ignore[operator]

    return Operand(evaluate, operand)


def as_condition(operand: Operand) -> Condition:
    """Return an operand as a condition. A property is a string, so it is never true: it is false, or null."""
    if isinstance(operand, Condition):
        return operand
    if not isinstance(operand, Property):
        raise SqlError("a condition is expected where there is only a value")
    name = operand.name

    def evaluate(properties: Properties) -> Value:
        return None if properties.get(name) is None else False

    return Condition(evaluate, operand)


def _compare(left: Any, right: Any) -> int:
    """Return less than, equal to or greater than 0, as `left` is to `right`; neither is null. Values of different kinds
    are converted as Java converts them. Where Java does not, the left one counts as less.

    :raises IncomparableError: where Java fails.
    """
    kind: Any = type(left)
    other: Any = type(right)
    if kind is not other:
        if kind is bool:
            if other is str:
                raise IncomparableError
            return -1
        if kind is str:
            left = left.lower() == "true" if other is bool else _read_number(left, other)
        elif other is bool:
            return -1
        elif other is str:
            right = _read_number(right, kind)
        elif kind is float or other is float:
            left, right = float(left), float(right)
    if type(left) is float:
        # Double.compareTo: NaN equals itself and is greater than all else; -0.0 is less than 0.0.
        if math.isnan(left) or math.isnan(right):
            left, right = math.isnan(left), math.isnan(right)
        elif left == right == 0.0:
            left, right = math.copysign(1.0, left), math.copysign(1.0, right)
    return int(left > right) - int(left < right)


# 19 digits can be more than 64 bits; a longer number is refused without being read.
_WHOLE = re.compile(r"([+-]?)(\d+)")
_BITS: Final[dict[type, int]] = {int: 31, Long: 63}
# No digit can match two parts of the pattern. Otherwise refusing a text would take the square of its length.
_DECIMAL = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)"
)
_HEXADECIMAL = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+(?:\.[0-9a-fA-F]*)?|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
)
_JAVA_BLANKS: Final = "".join(map(chr, range(33)))


@lru_cache(maxsize=64)  # an expression may read the same 32 KB string thousands of times
def _read_number(text: str, kind: type) -> int | float:
    """Read a string as a number of a kind, as Java's Integer, Long and Double do."""
    if kind is not float:
        whole = _WHOLE.fullmatch(text)
        if whole:
            digits = whole[2].lstrip("0") or "0"
            number = int(whole[1] + digits) if len(digits) <= 19 else 1 << 63
            if -(1 << _BITS[kind]) <= number < 1 << _BITS[kind]:
                return number
        raise IncomparableError
    text = text.strip(_JAVA_BLANKS)
    if _DECIMAL.fullmatch(text):
        return float(text if text[-1] in "Ny" else text.rstrip("fFdD"))
    hexadecimal = _HEXADECIMAL.fullmatch(text)
    if hexadecimal:
        try:
            return float.fromhex(hexadecimal[1])
        except OverflowError:
            return math.inf if text[0] != "-" else -math.inf
    raise IncomparableError
