"""Compares what two servers did in one scenario: first what the client saw, then the answers.

The clients' clocks decide when they poll and retry, so answers are not compared by position. All
answers to one request code are taken together: for each field the set of its values, made comparable
by `normal`, must be the same on both sides. Where a race decides which of two right answers a client
gets (`RACING`), only the answers with codes that both servers gave for the same topic are compared, but
a refusal that no race explains must come from both. The answers to raw requests are part of what the
client saw, so they are compared one by one, step by step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from compat import normal
from compat.exchanges import TAG, Exchange
from gateway.wire.codes import RequestCode as Code
from gateway.wire.codes import ResponseCode
from gateway.wire.commands import Command

ABSENT: Final = "(absent)"
RAW: Final = "OTHER"
"""The `language` in the header of raw requests."""

RACING: Final = frozenset(
    {
        Code.PULL_MESSAGE,
        Code.LITE_PULL_MESSAGE,
        Code.QUERY_CONSUMER_OFFSET,
        Code.UPDATE_CONSUMER_OFFSET,
        Code.HEART_BEAT,
        Code.GET_CONSUMER_LIST_BY_GROUP,
        Code.GET_ROUTEINFO_BY_TOPIC,
        Code.GET_MAX_OFFSET,
        Code.LOCK_BATCH_MQ,
        Code.UNLOCK_BATCH_MQ,
        Code.NOTIFY_CONSUMER_IDS_CHANGED,
        Code.CHECK_TRANSACTION_STATE,
        Code.END_TRANSACTION,
        Code.CONSUMER_SEND_MSG_BACK,
        Code.GET_CONSUMER_CONNECTION_LIST,
        Code.GET_PRODUCER_CONNECTION_LIST,
        Code.UNREGISTER_CLIENT,
    }
)
"""Codes of requests whose number and time depend on the clocks of clients and servers."""

_UNANSWERED: Final = "-"

_RACED: Final = frozenset(
    {
        _UNANSWERED,
        *(
            str(int(code))
            for code in (
                ResponseCode.SUCCESS,
                ResponseCode.TOPIC_NOT_EXIST,
                ResponseCode.PULL_NOT_FOUND,
                ResponseCode.PULL_RETRY_IMMEDIATELY,
                ResponseCode.PULL_OFFSET_MOVED,
                ResponseCode.QUERY_NOT_FOUND,
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                ResponseCode.CONSUMER_NOT_ONLINE,
            )
        ),
    }
)
"""The answer codes between which a race decides."""

_NOBODY_THERE: Final = frozenset(
    {
        Code.GET_CONSUMER_LIST_BY_GROUP,
        Code.GET_CONSUMER_CONNECTION_LIST,
        Code.GET_PRODUCER_CONNECTION_LIST,
    }
)
"""Codes of requests that are answered with a system error while a group has no members."""

_FIGURES: Final = frozenset(
    {"ext.maxOffset", "ext.nextBeginOffset", "ext.offset", "ext.queueOffset", "remark"}
)
"""Fields whose values depend on how far sending and consuming had got at the time of the answer."""

_NOT_ALWAYS: Final = "TRANSACTION_CHECK_TIMES"
"""A property that a message has only if a check was sent before the transaction was decided."""

Values = dict[str, set[str]]
"""By field: the values that it had, as text."""


class Finding(NamedTuple):
    """One field that the servers do not agree on."""

    request: int | None
    """The request code; None for what a client saw."""
    place: str
    """`seen/STEP.PATH`, or `REQUEST/ANSWER CODE/FIELD`."""
    left: str
    right: str


class Spoken(NamedTuple):
    """What one server sent to one client in a scenario."""

    seen: Mapping[str, Any]
    codes: Mapping[str, int]
    """By step, for the steps that are answers to a raw request: the request code."""
    answers: Mapping[int, Mapping[str, Values]]
    """By request code and answer code; `_UNANSWERED` for a request without an answer."""


def spoken(
    seen: Mapping[str, Any], codes: Mapping[str, int], exchanges: Iterable[Exchange]
) -> Spoken:
    """Gather what is compared of one server."""
    answers: dict[int, dict[str, Values]] = defaultdict(lambda: defaultdict(dict))
    for exchange in exchanges:
        if exchange.request.language == RAW and not exchange.is_from_server:
            continue
        request = exchange.request.code
        said: Command | None = exchange.answer
        answer = _UNANSWERED if said is None else str(said.code)
        if exchange.is_from_server:
            said = exchange.request  # the answer is the client's, not the server's
        if request in RACING and (about := _subject(exchange.request)):
            answer = f"{answer} {about}"
        values = answers[request][answer]
        if said is not None:
            for path, value in normal.facts(_of_clients(exchange, said)):
                if request in RACING and (path.endswith(_NOT_ALWAYS) or value == []):
                    continue  # is absent, or not there yet
                is_figure = request in RACING and path in _FIGURES
                values.setdefault(path, set()).add("<offset>" if is_figure else _text(value))
    return Spoken(seen, codes, answers)


def _subject(request: Command) -> str:
    """Return the topic or group of a racing request, so that routes of different topics stay apart."""
    ext = request.ext()
    return ext.get("topic") or ext.get("b") or ext.get("consumerGroup") or ""


def _of_clients(exchange: Exchange, said: Command) -> dict[str, Any]:
    known = normal.command(exchange.request.code, said)
    known.pop("code", None)
    asked = exchange.request.ext()
    if known["ext"].get("queueId") in (asked.get("e"), asked.get("queueId")):
        known["ext"].pop("queueId", None)  # the client's own choice, returned to it
    topic = asked.get("b") or asked.get("topic")
    if topic and not TAG.search(topic.encode()):
        known["ext"].pop("queueOffset", None)  # in a topic that others send to, such as traces
    return known


def compare(left: Spoken, right: Spoken) -> list[Finding]:
    """Return every difference between the two servers."""
    codes = {**left.codes, **right.codes}
    seen = _compare_seen(left.seen, right.seen, codes)
    return [*seen, *_compare_answers(left.answers, right.answers)]


def _compare_seen(
    left: Mapping[str, Any], right: Mapping[str, Any], codes: Mapping[str, int]
) -> Iterable[Finding]:
    for step in dict.fromkeys((*left, *right)):
        answers = (left.get(step, ABSENT), right.get(step, ABSENT))
        if step in codes and (found := _codes_differ(codes[step], step, *answers)):
            yield found
            continue
        ours, theirs = (dict(normal.flat(each)) for each in answers)
        for path in sorted(ours.keys() | theirs.keys()):
            one, other = ours.get(path, ABSENT), theirs.get(path, ABSENT)
            if one != other:
                place = f"seen/{step}/{path}"
                yield Finding(codes.get(step), place, _text(one), _text(other))


def _codes_differ(request: int, step: str, left: Any, right: Any) -> Finding | None:
    """Return the one finding that matters when two answers differ in their codes.

    The other differences of such answers follow from the codes.
    """
    if isinstance(left, Mapping) and isinstance(right, Mapping) and left["code"] != right["code"]:
        one, other = (f"{each['code']} {each.get('remark', '')}".strip() for each in (left, right))
        return Finding(request, f"seen/{step}/code", one, other)
    return None


def _compare_answers(
    left: Mapping[int, Mapping[str, Values]], right: Mapping[int, Mapping[str, Values]]
) -> Iterable[Finding]:
    for request in sorted(left.keys() | right.keys()):
        ours, theirs = left.get(request, {}), right.get(request, {})
        if any(not _is_raced(request, code) for code in ours.keys() ^ theirs.keys()):
            yield Finding(request, f"{request}/codes", _listed(ours), _listed(theirs))
        for code in sorted(ours.keys() & theirs.keys()):
            for field in sorted(ours[code].keys() | theirs[code].keys()):
                one, other = ours[code].get(field, {ABSENT}), theirs[code].get(field, {ABSENT})
                if one != other:
                    place = f"{request}/{code}/{field}"
                    yield Finding(request, place, _listed(one), _listed(other))


def _is_raced(request: int, answer: str) -> bool:
    """Whether it may be chance that only one server gave this answer."""
    code = answer.partition(" ")[0]
    if request in _NOBODY_THERE and code == str(int(ResponseCode.SYSTEM_ERROR)):
        return True
    return request in RACING and code in _RACED


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _listed(values: Iterable[str]) -> str:
    return " | ".join(sorted(values)) or "(none)"
