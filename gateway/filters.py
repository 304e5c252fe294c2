"""Filters of subscriptions: by tags, without reading the messages, or by SQL92 expressions on their properties."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from gateway.router import RequestError
from gateway.sql92 import MAX_LENGTH, SqlError, compile_sql
from gateway.wire.bodies import Subscription, tags_in
from gateway.wire.codes import ResponseCode
from gateway.wire.messages import java_hash, stored_properties
from storage import MAX_RECORDS_JUDGED

TAG: Final = "TAG"
"""The expression type of tag filters. An empty type, or none, means the same (ExpressionType.isTagType)."""

SQL92: Final = "SQL92"

ALL_TAGS: Final = "*"

LONG: Final = 1_000
"""An expression with more characters is long."""

MOST_LONG: Final = 16 * MAX_LENGTH
"""Most characters, in total, of the long expressions whose filters are cached."""


CHARACTERS_OF_ONE: Final = 100
"""An expression counts once more, as a waiting request or as a subscription, for each so many characters: the filter
for one takes 20 to 80 bytes."""


class FilterError(ValueError):
    """A subscription is not valid; the text says why."""


class Filter(NamedTuple):
    """Selects the messages that pass both tests; a test that is None passes all."""

    tag_hashes: frozenset[int] | None = None
    """Selects messages whose tag has one of these hashes. Hashes collide, so clients compare the tag itself."""
    matches: Callable[[bytes], bool] | None = None
    """Returns whether a message's record is selected."""
    most_judged: int = MAX_RECORDS_JUDGED
    """Most messages that one read passes to `matches`, some 0.1 s of work: a long expression takes 10 ms for each."""


class Expression(NamedTuple):
    """What a subscription selects messages by."""

    text: str
    type: str


def expression_of(subscription: Subscription) -> Expression:
    """Return the expression of a group's subscription."""
    if subscription.class_filter_mode:
        return Expression(ALL_TAGS, TAG)
    return Expression(subscription.sub_string, subscription.expression_type or TAG)


def weight_of(expression: str) -> int:
    """Return as how many waiting requests, or subscriptions, one with an expression of its own counts."""
    return 1 + len(expression) // CHARACTERS_OF_ONE


def is_tag_type(expression_type: str | None) -> bool:
    """Return whether a subscription is by tags."""
    return not expression_type or expression_type == TAG


def unsupported(expression_type: str | None) -> RequestError:
    """Return the refusal of a filter that is not by tags while the setting property_filter is off; upstream's text."""
    return RequestError(
        ResponseCode.SYSTEM_ERROR,
        f"The broker does not support consumer to filter message by {expression_type} (setting property_filter)",
    )


def filter_of(expression: str, expression_type: str | None) -> Filter:
    """Return the filter of a subscription. Filters are cached, so an expression is seldom parsed twice.

    :raises FilterError: when the subscription is not valid.
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
    """Caches the filters of the long expressions that were used last, as many as `MOST_LONG` allows. A filter is at
    least as large as its expression, and a client can send thousands of different ones."""

    def __init__(self, read: Callable[[str], Filter]) -> None:
        self._read = read
        self._kept: dict[str, Filter] = {}  # ordered by their last use, the latest last
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
    """Return a decorator that caches the filters of at most `most` short expressions, and of long ones by `_Long`."""

    def keeping(read: Callable[[str], Filter]) -> Callable[[str], Filter]:
        short, long = lru_cache(maxsize=most)(read), _Long(read)
        return lambda expression: (short if len(expression) <= LONG else long)(expression)

    return keeping


@_kept(4096)
def _by_tags(expression: str) -> Filter:
    """Return a filter by the tags in `A || B`. `*` and an empty expression select all messages, blanks select none.

    :raises FilterError: when there are only bars.
    """
    if expression in ("", ALL_TAGS):
        return Filter()
    if not any(expression.split("||")):
        raise FilterError(f"there are no tags in {expression[:64]!r}")
    return Filter(tag_hashes=frozenset(map(java_hash, tags_in(expression))))


@_kept(1024)
def _by_properties(expression: str) -> Filter:
    selects = compile_sql(expression)
    return Filter(
        matches=lambda record: selects(stored_properties(record)),
        most_judged=max(1, MAX_RECORDS_JUDGED * LONG // max(LONG, len(expression))),
    )
