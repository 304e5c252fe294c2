"""How a message's properties say that it is to recur."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from gateway.delays import REQUESTS
from gateway.recurring.recurrence import Misfire, Rule, RuleError, make_rule, parse_misfire
from gateway.router import illegal
from gateway.wire import properties as names

OWN = (
    names.RECUR_CRON,
    names.RECUR_EVERY,
    names.RECUR_ZONE,
    names.RECUR_START,
    names.RECUR_END,
    names.RECUR_COUNT,
    names.RECUR_MISFIRE,
    names.RECUR_CHANGE,
    names.RECUR_NAME,
    names.PLANNED_MS,
)
"""Properties that say how a message recurs. What the sender wrote in them is on no message that fires."""

RECURRING_REQUESTS = frozenset({names.RECUR_CRON, names.RECUR_EVERY, names.RECUR_CHANGE})
"""Properties that make a message an order about a recurring message."""


class Order(NamedTuple):
    """How a message is to recur."""

    name: str
    rule: Rule
    misfire: Misfire = Misfire.SMART


def asks_to_recur(values: Mapping[str, str]) -> bool:
    """Whether a message is an order about a recurring message, by its properties."""
    return not RECURRING_REQUESTS.isdisjoint(values)


def refuse_delay(values: Mapping[str, str]) -> None:
    """Refuse an order about a recurring message, by its properties, when it also asks for a delay.

    :raises RequestError: in this case.
    """
    for name in REQUESTS:
        if name in values:
            raise illegal(
                f"a recurring message cannot have a delay, {name}; {names.RECUR_START} says when it begins, and it is "
                "paused, resumed or deleted at once"
            )


def read_order(values: Mapping[str, str], now_ms: int) -> Order:
    """Read from a message's properties how it is to recur.

    :raises RequestError: when they do not say that correctly.
    """
    with refusing():
        rule = make_rule(
            now_ms,
            cron=values.get(names.RECUR_CRON),
            every=values.get(names.RECUR_EVERY),
            zone=values.get(names.RECUR_ZONE),
            start=values.get(names.RECUR_START),
            end=values.get(names.RECUR_END),
            count=values.get(names.RECUR_COUNT),
        )
        misfire = parse_misfire(values.get(names.RECUR_MISFIRE))
    return Order(name_of(values), rule, misfire)


def name_of(values: Mapping[str, str]) -> str:
    """Return the name that a message's properties give a recurring message.

    :raises RequestError: when there is none.
    """
    name = values.get(names.RECUR_NAME)
    if name is None:
        raise illegal(
            f"a recurring message needs a name, the property {names.RECUR_NAME}: "
            "by it it is replaced, paused and deleted"
        )
    return name


@contextmanager
def refusing() -> Iterator[None]:
    """Turn an error about a rule that is not valid, or never fires, into the refusal of the request."""
    try:
        yield
    except RuleError as error:
        raise illegal(str(error)) from error
