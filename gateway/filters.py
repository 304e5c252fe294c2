"""What a subscription selects of a topic: by tags, which needs no message to be read, or by SQL92 on the properties."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from gateway.router import RequestError
from gateway.sql92 import MAX_LENGTH, SqlError, compile_sql
from gateway.wire.codes import ResponseCode
from gateway.wire.messages import java_hash, stored_properties
from storage import MAX_RECORDS_JUDGED

TAG: Final = "TAG"
"""The expression type of tag filters; none and an empty one mean the same (ExpressionType.isTagType)."""

SQL92: Final = "SQL92"

ALL_TAGS: Final = "*"

LONG: Final = 1_000
"""Characters of an expression above which it is long."""

MOST_LONG: Final = 16 * MAX_LENGTH
"""Characters of the long expressions, together, whose filters are kept."""


class FilterError(ValueError):
    """A subscription that nothing can be selected by; the text says why."""


class Filter(NamedTuple):
    """What is selected: all that passes both, as far as they are given."""

    tag_hashes: frozenset[int] | None = None
    """The hash of the message's tag is one of these. Hashes collide: the client looks at the tag itself again."""
    matches: Callable[[bytes], bool] | None = None
    """The message's record is one that this selects."""
    most_judged: int = MAX_RECORDS_JUDGED
    """Messages that one read may show to it, some 0.1 s of work: a long expression takes 10 ms for each."""


def is_tag_type(expression_type: str | None) -> bool:
    """Whether a subscription is by tags."""
    return not expression_type or expression_type == TAG


def unsupported(expression_type: str | None) -> RequestError:
    """The error for a subscription on properties where they are not to be looked at; upstream's words."""
    return RequestError(
        ResponseCode.SYSTEM_ERROR,
        f"The broker does not support consumer to filter message by {expression_type} (setting property_filter)",
    )


def filter_of(expression: str, expression_type: str | None) -> Filter:
    """The filter of a subscription. Each expression is read once, however often it is asked for.

    :raises FilterError: when it is none.
    """
    if is_tag_type(expression_type):
        if len(expression) > MAX_LENGTH:
            raise FilterError(f"{len(expression)} characters of tags; {MAX_LENGTH} are possible")
        return _by_tags(expression)
    if expression_type != SQL92:
        raise FilterError(
            f"there are no filters of type {expression_type}; TAG and SQL92 are known"
        )
    if not expression:
        raise FilterError("the expression is empty")
    try:
        return _by_properties(expression)
    except SqlError as error:
        raise FilterError(f"the expression is not SQL92: {error}") from error


class _Long:
    """Keeps the filters of the long expressions that were asked for last, as many as `MOST_LONG` allows: each is as
    large as its expression, or more, and anybody can make up thousands of them."""

    def __init__(self, read: Callable[[str], Filter]) -> None:
        self._read = read
        self._kept: dict[str, Filter] = {}  # the one that was asked for last is the last
        self._characters = 0

    def __call__(self, expression: str) -> Filter:
        kept = self._kept.pop(expression, None)
        if kept is None:
            kept = self._read(expression)
            self._characters += len(expression)
        self._kept[expression] = kept
        while self._characters > MOST_LONG:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            self._characters -= len(oldest)
        return kept


def _kept(most: int) -> Callable[[Callable[[str], Filter]], Callable[[str], Filter]]:
    """Keeps the filters of so many short expressions, and of long ones as `_Long` does."""

    def keeping(read: Callable[[str], Filter]) -> Callable[[str], Filter]:
        short, long = lru_cache(maxsize=most)(read), _Long(read)
        return lambda expression: (short if len(expression) <= LONG else long)(expression)

    return keeping


@_kept(4096)
def _by_tags(expression: str) -> Filter:
    """The tags in `A || B`; all messages for `*` and for nothing, none for blanks (FilterAPI.buildSubscriptionData).

    :raises FilterError: where there are only bars.
    """
    if expression in ("", ALL_TAGS):
        return Filter()
    parts = expression.split("||")
    if not any(parts):
        raise FilterError(f"there are no tags in {expression[:64]!r}")
    tags = [part.strip() for part in parts]
    return Filter(tag_hashes=frozenset(java_hash(tag) for tag in tags if tag))


@_kept(1024)
def _by_properties(expression: str) -> Filter:
    selects = compile_sql(expression)
    return Filter(
        matches=lambda record: selects(stored_properties(record)),
        most_judged=max(1, MAX_RECORDS_JUDGED * LONG // max(LONG, len(expression))),
    )
