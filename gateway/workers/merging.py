"""THE TABLE of requests that are answered for several workers at once: request code -> how their answers become one.

Workers get the requests unchanged, for they may be signed; fields that tell the sender's address are only added
(`gateway.workers.vouching`). So a list is returned page by page, with a cursor that has a part for each worker
(`gateway.wire.cursors`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from gateway.wire.admin_bodies import encode_changes, encode_table, parse_changes
from gateway.wire.bodies import as_client_reads_it, read_body
from gateway.wire.clock_bodies import ClockState
from gateway.wire.codes import RequestCode as Code
from gateway.wire.codes import ResponseCode
from gateway.wire.commands import Command
from gateway.wire.cursors import join_cursors
from gateway.wire.headers import ListRecurring, LookUpTimers, NextRecurring
from gateway.wire.pending_bodies import (
    IN_PART,
    AbortAnswer,
    BulkAnswer,
    HeldPage,
    PauseAnswer,
    PausedTopics,
    RescheduleAnswer,
)
from gateway.wire.recurring_bodies import (
    MAX_TIMES,
    RecurringChange,
    RecurringList,
    RecurringTimes,
)
from gateway.workers.merged_pages import add_up, held_page, recurring_page

_Body = TypeVar("_Body")
_Results = TypeVar("_Results", AbortAnswer, RescheduleAnswer)


class Part(NamedTuple):
    """A worker's answer with code SUCCESS. `broker` is the worker's name."""

    broker: str
    answer: Command

    def body(self, kind: type[_Body]) -> _Body:
        """Decode the answer's body."""
        return msgspec.json.decode(self.answer.body, type=kind)


class Whole(NamedTuple):
    """The one answer that the workers' answers make together."""

    body: bytes = b""
    ext: Mapping[str, str] | None = None
    code: int = ResponseCode.SUCCESS
    remark: str | None = None


class Merge(NamedTuple):
    """How the answers to one request become one.

    :param make: makes the answer from the workers' answers that say success. There is at least one of these, and they
        are in the workers' order.
    :param needs_all: whether an answer that leaves out a worker, or a worker's refusal, would be false.
    :param absent: the codes by which a worker says only that it does not have what the request names.
    :param changes: whether a worker that says success has changed something, unless it was only to count.
    """

    make: Callable[[Sequence[Part], Command], Whole]
    needs_all: bool = True
    absent: frozenset[int] = frozenset()
    changes: bool = False

    def decide(self, answers: Mapping[str, Command | None], command: Command) -> Whole:
        """Return the answer to a request.

        :param answers: the workers' answers by their names; None for a worker that does not answer.
        """
        given = {broker: answer for broker, answer in answers.items() if answer is not None}
        silent = [broker for broker in answers if broker not in given]
        parts = [
            Part(broker, answer)
            for broker, answer in given.items()
            if answer.code == ResponseCode.SUCCESS
        ]
        done = [part.broker for part in parts]
        changed = done if self.changes and not _only_counts(command) else None
        if not given or (self.needs_all and silent):
            return Whole(
                code=ResponseCode.SERVICE_NOT_AVAILABLE,
                remark=unanswered(silent, len(answers), changed),
                ext=IN_PART if changed is not None else None,
            )
        refusals = [one for one in given.items() if one[1].code != ResponseCode.SUCCESS]
        objections = [one for one in refusals if one[1].code not in self.absent]
        if parts and not (self.needs_all and objections):
            return self.make(parts, command)
        broker, refusal = (objections or refusals)[0]
        remark, ext = refusal.remark, refusal.ext()
        if done:
            remark = refused_by(broker, remark or "", changed)
        if changed:
            ext = {**ext, **IN_PART}
        return Whole(refusal.body, ext, refusal.code, remark)


def unserved(lacking: Sequence[str], number: int) -> str:
    """Return the remark for a request that was sent to no worker, because some are known not to serve.

    :param number: how many workers there are.
    """
    return (
        f"{len(lacking)} of {number} workers do not serve ({', '.join(lacking)}): "
        "none was asked; ask again"
    )


def unanswered(silent: Sequence[str], number: int, done: Sequence[str] | None = None) -> str:
    """Return the remark for a request that some workers have not answered.

    :param number: how many workers got the request.
    :param done: the workers that have done their part of a change; None where nothing was to be changed.
    """
    lack = f"{len(silent)} of {number} workers do not answer ({', '.join(silent)})"
    if done is None:
        return f"{lack}; ask again"
    return (
        f"{lack} and may still make the change; done by {', '.join(done) or 'none'}: "
        "check what has changed before you ask again"
    )


def refused_by(broker: str, reason: str, done: Sequence[str] | None) -> str:
    """Return the remark for a request that one worker refuses, though others have carried it out.

    :param done: as for `unanswered`.
    """
    refusal = f"{broker} refused: {reason}"
    return refusal if done is None else f"{refusal}; done by {', '.join(done)}"


# --- where topics and brokers are -------------------------------------------------------------------


def _routes(parts: Sequence[Part], command: Command) -> Whole:
    """Merge the queues of a topic at every worker that has it."""
    routes = [read_body(part.answer.body, dict[str, Any]) for part in parts]
    merged = {
        "brokerDatas": [broker for route in routes for broker in route["brokerDatas"]],
        "filterServerTable": {},
        "queueDatas": [queues for route in routes for queues in route["queueDatas"]],
    }
    return Whole(as_client_reads_it(msgspec.json.encode(merged), command))


def _clusters(parts: Sequence[Part], command: Command) -> Whole:
    clusters = [read_body(part.answer.body, dict[str, Any]) for part in parts]
    brokers: dict[str, object] = {}
    members: dict[str, list[str]] = {}
    for cluster in clusters:
        brokers |= cluster["brokerAddrTable"]
        for name, own in cluster["clusterAddrTable"].items():
            members.setdefault(name, []).extend(own)
    merged = {"brokerAddrTable": brokers, "clusterAddrTable": members}
    return Whole(as_client_reads_it(msgspec.json.encode(merged), command))


def _topics(parts: Sequence[Part], _: Command) -> Whole:
    """Merge names, each once; the other fields are the first worker's."""
    bodies = [part.body(dict[str, Any]) for part in parts]
    names = dict.fromkeys(name for body in bodies for name in body["topicList"])
    return Whole(msgspec.json.encode(bodies[0] | {"topicList": list(names)}))


def _first(parts: Sequence[Part], _: Command) -> Whole:
    """Return the first answer, as all workers answer the same."""
    return Whole(parts[0].answer.body, parts[0].answer.ext())


def _counts(parts: Sequence[Part], _: Command) -> Whole:
    """Add up fields that count what was done."""
    exts = [part.answer.ext() for part in parts]
    return Whole(ext={name: str(sum(int(ext[name]) for ext in exts)) for name in exts[0]})


def _table(parts: Sequence[Part], _: Command) -> Whole:
    tables = [part.body(dict[str, dict[str, str]])["table"] for part in parts]
    return Whole(
        encode_table({name: text for one in reversed(tables) for name, text in one.items()})
    )


# --- settings ---------------------------------------------------------------------------------------


def _settings(parts: Sequence[Part], _: Command) -> Whole:
    """Merge settings by name; where workers differ, list all values in the workers' order."""
    values: dict[str, dict[str, None]] = {}
    for part in parts:
        for name, value in parse_changes(part.answer.body).items():
            values.setdefault(name, {})[value] = None
    body = encode_changes({name: ",".join(different) for name, different in values.items()})
    return Whole(body, parts[0].answer.ext())


# --- messages that have not fired -------------------------------------------------------------------


def _held(parts: Sequence[Part], command: Command) -> Whole:
    asked = command.fields(LookUpTimers)
    whole = held_page(
        [(part.broker, part.body(HeldPage)) for part in parts],
        named=bool(asked.id or asked.key),
        state=asked.state,
        limit=asked.limit,
        given=asked.cursor,
    )
    return Whole(msgspec.json.encode(whole))


def _outcomes(kind: type[_Results]) -> Callable[[Sequence[Part], Command], Whole]:
    """Merge what became of the messages; it is "unknown" only where no worker has any of them."""

    def make(parts: Sequence[Part], _: Command) -> Whole:
        results = [result for part in parts for result in part.body(kind).results]
        known = [result for result in results if result.outcome != "unknown"]
        return Whole(msgspec.json.encode({"results": known or results[:1]}))

    return make


def _only_counts(command: Command) -> bool:
    """Return whether a request is a step of a bulk change that only counts messages."""
    return command.code == Code.BULK_CHANGE_TIMERS and command.ext().get("action") == "count"


def _bulk_step(parts: Sequence[Part], _: Command) -> Whole:
    """Merge the steps that the workers have made; the cursor has a part for each worker that has more to do."""
    steps = [(part.broker, part.body(BulkAnswer)) for part in parts]
    cursors = {broker: step.cursor for broker, step in steps if step.cursor is not None}
    messages = sum(step.messages for _, step in steps)
    return Whole(msgspec.json.encode(BulkAnswer(messages, join_cursors(cursors) or None)))


def _pauses(parts: Sequence[Part], _: Command) -> Whole:
    return Whole(
        msgspec.json.encode(PauseAnswer(any(part.body(PauseAnswer).changed for part in parts)))
    )


def _paused(parts: Sequence[Part], _: Command) -> Whole:
    lists = [part.body(PausedTopics) for part in parts]
    topics = add_up(one for each in lists for one in each.topics)
    return Whole(msgspec.json.encode(PausedTopics(topics)))


def _clock(parts: Sequence[Part], _: Command) -> Whole:
    """Return when the next message of all workers is due. They go by the machine's clock: a manual one is refused with
    several workers."""
    states = [part.body(ClockState) for part in parts]
    due = [state.next_due_ms for state in states if state.next_due_ms is not None]
    whole = msgspec.structs.replace(states[0], next_due_ms=min(due, default=None))
    return Whole(msgspec.json.encode(whole))


# --- recurring messages -----------------------------------------------------------------------------


def _recurring(parts: Sequence[Part], command: Command) -> Whole:
    asked = command.fields(ListRecurring)
    whole = recurring_page(
        [(part.broker, part.body(RecurringList)) for part in parts],
        limit=asked.limit,
        given=asked.cursor,
    )
    return Whole(msgspec.json.encode(whole))


def recurring_change(changes: Sequence[RecurringChange]) -> RecurringChange:
    """Return what was done by the worker that has the recurring message. Where several have one of that name, return
    the first change that was not "already" made."""
    return min(changes, key=lambda change: change.outcome.startswith("already "))


def _recurring_change(parts: Sequence[Part], _: Command) -> Whole:
    whole = recurring_change([part.body(RecurringChange) for part in parts])
    return Whole(msgspec.json.encode(whole))


def _recurring_times(parts: Sequence[Part], command: Command) -> Whole:
    """Return any worker's times of a rule, or the next times at all workers of a recurring message."""
    answers = [part.body(RecurringTimes) for part in parts]
    asked = command.fields(NextRecurring)
    if not asked.name:
        return Whole(msgspec.json.encode(answers[0]))
    times = sorted({time for answer in answers for time in answer.times})
    most = max(1, min(asked.times, MAX_TIMES))
    return Whole(msgspec.json.encode(RecurringTimes(times[:most], answers[0].zone)))


def _first_name(parts: Sequence[Part], _: Command) -> Whole:
    """Return the name of the first worker that has what the request names."""
    return Whole(parts[0].broker.encode())


_NO_TOPIC: Final = frozenset({ResponseCode.TOPIC_NOT_EXIST})
_NO_VALUE: Final = frozenset({ResponseCode.QUERY_NOT_FOUND})
_NO_RECURRING: Final = frozenset({ResponseCode.MESSAGE_ILLEGAL})
_OTHER_BROKER: Final = frozenset({ResponseCode.ILLEGAL_OPERATION})
"""A recall handle belongs to one broker; the others refuse it."""

MERGES: Final[dict[int, Merge]] = {
    # name server
    Code.GET_ROUTEINFO_BY_TOPIC: Merge(_routes, needs_all=False),
    Code.GET_BROKER_CLUSTER_INFO: Merge(_clusters, needs_all=False),
    Code.GET_ALL_TOPIC_LIST: Merge(_topics, needs_all=False),
    Code.GET_TOPICS_BY_CLUSTER: Merge(_topics, needs_all=False),
    Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: Merge(_topics),
    Code.GET_UNIT_TOPIC_LIST: Merge(_topics),
    Code.GET_HAS_UNIT_SUB_TOPIC_LIST: Merge(_topics),
    Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: Merge(_topics),
    Code.DELETE_TOPIC_IN_NAMESRV: Merge(_first, changes=True),
    Code.WIPE_WRITE_PERM_OF_BROKER: Merge(_counts, changes=True),
    Code.ADD_WRITE_PERM_OF_BROKER: Merge(_counts, changes=True),
    Code.PUT_KV_CONFIG: Merge(_first, changes=True),
    Code.GET_KV_CONFIG: Merge(_first, absent=_NO_VALUE),
    Code.DELETE_KV_CONFIG: Merge(_first, changes=True),
    Code.GET_KVLIST_BY_NAMESPACE: Merge(_table, absent=_NO_VALUE),
    Code.GET_NAMESRV_CONFIG: Merge(_settings),
    Code.UPDATE_NAMESRV_CONFIG: Merge(_first, changes=True),
    # settings
    Code.GET_BROKER_CONFIG: Merge(_settings),
    Code.UPDATE_BROKER_CONFIG: Merge(_first, changes=True),
    # messages that have not fired
    Code.LOOK_UP_TIMERS: Merge(_held),
    Code.ABORT_TIMERS: Merge(_outcomes(AbortAnswer), absent=_OTHER_BROKER, changes=True),
    Code.RESCHEDULE_TIMERS: Merge(_outcomes(RescheduleAnswer), absent=_OTHER_BROKER, changes=True),
    Code.BULK_CHANGE_TIMERS: Merge(_bulk_step, changes=True),
    Code.PAUSE_TOPIC: Merge(_pauses, absent=_NO_TOPIC, changes=True),
    Code.RESUME_TOPIC: Merge(_pauses, absent=_NO_TOPIC, changes=True),
    Code.LIST_PAUSED_TOPICS: Merge(_paused),
    Code.CLOCK: Merge(_clock),
    # recurring messages
    Code.LIST_RECURRING: Merge(_recurring, absent=_NO_RECURRING),
    Code.CHANGE_RECURRING: Merge(_recurring_change, absent=_NO_RECURRING, changes=True),
    Code.NEXT_RECURRING: Merge(_recurring_times, absent=_NO_RECURRING),
}
"""The requests that are answered for all workers at once."""

ONE_WORKER: Final = Merge(_first, changes=True)
"""For a request that goes to only one worker."""

WHERE_IT_RECURS: Final = Merge(_first_name, absent=_NO_RECURRING)
"""For the question which worker has a recurring message. The answer's body is the worker's name."""
