"""Recurring messages, for whoever asks: set, listed, paused, resumed, deleted, and fired.

Handlers of the remoting protocol, properties of sends and the HTTP API bring the same orders here. Changes join the
store's batch: an answer may leave once the batch is committed. What cannot be done raises `RequestError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

import msgspec
from twisted.logger import Logger

from gateway.audit import AuditLog
from gateway.clock import Clock
from gateway.config import Config
from gateway.delays import REQUESTS
from gateway.firing import Recurred
from gateway.intake import Intake, NewMessage
from gateway.recurrence import Misfire, Rule, RuleError, make_rule, parse_misfire
from gateway.router import RequestError
from gateway.topics import MAX_PREFIXED_NAME, RETRY_PREFIX, Topic, Topics
from gateway.wire import properties as names
from gateway.wire.codes import ResponseCode, SysFlag
from gateway.wire.messages import MAX_PROPERTIES
from gateway.wire.properties import find, parse, remove
from gateway.wire.recurring_bodies import RecurringChange, RecurringList, RecurringMessage
from storage import (
    Recurring,
    StorageError,
    Store,
    count_recurring,
    current_recurring,
    delete_recurring,
    delete_recurring_of,
    due_recurring,
    find_recurring,
    next_planned,
    next_recurring_due,
    plan_recurring,
    put_recurring,
    scan_recurring,
)

MAX_PAGE = 1_000
"""Most recurring messages in one answer to a list."""

MAX_TIMES = 1_000
"""Most times in one preview."""

MAX_NAME = 127
"""Longest name of a recurring message, in bytes."""

MAX_CURSOR = MAX_PREFIXED_NAME + 1 + MAX_NAME
"""Longest cursor of a page, in bytes: a topic and a name."""

MAX_STEP_BYTES = 8 << 20
"""A step of firing ends once the messages that it fired have more than this together."""

ROOM_SECONDS = 1
"""How long nothing fires, while the disk is full, until it is looked at again."""

ADDED_LATER = 1_024
"""Bytes that properties grow by when a message fires: name, planned time, id, and what every message is given."""

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
"""Properties that say how a message recurs; none of them is left on what fires as its sender wrote it."""

_ASKS = (names.RECUR_CRON, names.RECUR_EVERY, names.RECUR_CHANGE)


class Order(NamedTuple):
    """How a message is to recur."""

    name: str
    rule: Rule
    misfire: Misfire = Misfire.SMART


class _Definition(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is stored of a recurring message: its rule and the message. `set_ms` is when the rule began."""

    rule: Rule
    misfire: str
    set_ms: int
    queue_id: int
    flag: int
    sys_flag: int
    born_host: bytes
    body: bytes
    properties: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Definition).decode


def asks_to_recur(properties: str) -> bool:
    """Whether a message is an order about a recurring one."""
    return "TIDEGATE_" in properties and any(find(properties, name) is not None for name in _ASKS)


def read_order(properties: str, now_ms: int) -> Order:
    """How a message's properties say that it is to recur.

    :raises RequestError: when they say something else, or something besides.
    """
    for name in REQUESTS:
        if find(properties, name) is not None:
            raise _illegal(
                f"a recurring message cannot have a delay, {name}; {names.RECUR_START} says when it begins"
            )
    with _refusing():
        rule = make_rule(
            now_ms,
            cron=find(properties, names.RECUR_CRON),
            every=find(properties, names.RECUR_EVERY),
            zone=find(properties, names.RECUR_ZONE),
            start=find(properties, names.RECUR_START),
            end=find(properties, names.RECUR_END),
            count=find(properties, names.RECUR_COUNT),
        )
        misfire = parse_misfire(find(properties, names.RECUR_MISFIRE))
    return Order(name_of(properties), rule, misfire)


def name_of(properties: str) -> str:
    """The name that a message's properties give a recurring one.

    :raises RequestError: when there is none.
    """
    name = find(properties, names.RECUR_NAME)
    if name is None:
        raise _illegal(
            f"a recurring message needs a name, the property {names.RECUR_NAME}: "
            "by it it is replaced, paused and deleted"
        )
    return name


class RecurringMessages:
    """Everything that recurs. It is what `Firing` calls `Recurrences`."""

    log = Logger()

    def __init__(
        self,
        store: Store,
        clock: Clock,
        intake: Intake,
        topics: Topics,
        audit: AuditLog,
        config: Config,
    ) -> None:
        self._store = store
        self._clock = clock
        self._intake = intake
        self._topics = topics
        self._audit = audit
        self.disk_full = False
        """Set by the housekeeping: nothing fires until there is room again."""
        self.configure(config)
        self.reload()

    def configure(self, config: Config) -> None:
        """Set and fire by these settings."""
        self._most = config.recurring_max
        self._min_period_ms = config.recurring_min_period_ms
        self._threshold_ms = config.recurring_misfire_threshold_ms
        self._max_body = config.max_message_size

    # -- what is asked for

    def put(self, topic: Topic, order: Order, message: NewMessage) -> RecurringChange:
        """Have a message recur, in place of the topic's recurring message of that name, if there is one.

        With the same rule as before only the message and the policy are new: its times and its count go on, and a
        paused one stays paused, so that a program may set it whenever it starts.

        :param message: the template; its times count for nothing.
        :returns: "set", "replaced", or "updated" where the rule was the same.
        """
        name, rule, misfire = order
        _check_name(name)
        if topic.name.startswith(RETRY_PREFIX):
            raise _illegal(
                f"a message of {topic.name} cannot recur: send it to a topic of your own"
            )
        if message.sys_flag & SysFlag.TRANSACTION_MASK:
            raise _illegal("a transaction cannot set a recurring message")
        properties = remove(message.properties, (*OWN, names.UNIQ_KEY))
        size = len(properties.encode())
        if len(message.body) > self._max_body or size > MAX_PROPERTIES - ADDED_LATER:
            raise _illegal(
                f"the message is too long to recur: its body has at most max_message_size = {self._max_body} "
                f"bytes, its properties {MAX_PROPERTIES - ADDED_LATER}"
            )
        old = current_recurring(self._store, topic.stored_name, name.encode())
        if old is None and self._count >= self._most:
            raise _illegal(
                f"there are {self._count} recurring messages already; recurring_max = {self._most}"
            )
        before = _definition_of(old)
        goes_on = old is not None and before is not None and before.rule == rule
        now_ms = self._clock.now_ms()
        if not goes_on:
            with _refusing():
                rule.check(now_ms, self._min_period_ms)
        set_ms = before.set_ms if goes_on and before is not None else now_ms
        definition = _Definition(
            rule,
            misfire.value,
            set_ms,
            message.queue_id,
            message.flag,
            message.sys_flag,
            message.born_host,
            message.body,
            properties,
        )
        if goes_on and old is not None:
            new = old._replace(definition=_encode(definition))
        else:
            next_ms = rule.next_after(now_ms, now_ms) or now_ms
            paused = old is not None and old.paused
            new = Recurring(
                topic.stored_name, name.encode(), next_ms, 0, paused, _encode(definition)
            )
        put_recurring(self._store, new)
        self._count += old is None
        self._wake_for(new)
        outcome = "set" if old is None else "updated" if goes_on else "replaced"
        self._audit.note(
            f"recurring {outcome}", topic=topic.name, name=name, cron=rule.cron, every=rule.every
        )
        return RecurringChange(outcome, _describe(new, definition))

    def pause(self, topic: str, name: str) -> RecurringChange:
        """Let it rest. :returns: "paused" or "already paused"."""
        one, definition = self._current(topic, name)
        if not one.paused:
            plan_recurring(self._store, *one[:4], paused=True)
            self._audit.note("recurring paused", topic=topic, name=name)
        outcome = "already paused" if one.paused else "paused"
        return RecurringChange(outcome, _describe(one._replace(paused=True), definition))

    def resume(self, topic: str, name: str) -> RecurringChange:
        """Let it fire again. What it missed meanwhile is up to its misfire policy.

        :returns: "resumed" or "already active".
        """
        one, definition = self._current(topic, name)
        outcome = "resumed" if one.paused else "already active"
        one = one._replace(paused=False)
        if outcome == "resumed":
            plan_recurring(self._store, *one[:4], paused=False)
            self._wake_for(one)
            self._audit.note("recurring resumed", topic=topic, name=name)
        return RecurringChange(outcome, _describe(one, definition))

    def delete(self, topic: str, name: str) -> RecurringChange:
        """Forget it; what has fired stays where it is. :returns: "deleted"."""
        one, definition = self._current(topic, name)
        self._delete(one)
        self._audit.note("recurring deleted", topic=topic, name=name)
        return RecurringChange("deleted", _describe(one, definition))

    def forget_topic(self, topic: str) -> int:
        """Forget what recurs in a topic; how many that were."""
        if not _can_be_a_topic(topic):
            return 0
        deleted = delete_recurring_of(self._store, topic.encode())
        self._count -= deleted
        return deleted

    def change(self, order: str, topic: str, name: str) -> RecurringChange:
        """Carry out an order by its name: pause, resume or delete."""
        orders = {"pause": self.pause, "resume": self.resume, "delete": self.delete}
        if order not in orders:
            raise _illegal(f"{order!r} is no order; write pause, resume or delete")
        return orders[order](topic, name)

    # -- what is told

    def page(
        self, topic: str = "", *, cursor: str = "", limit: int = 100, full: bool = False
    ) -> RecurringList:
        """A page of what recurs, by topic and name.

        :param topic: where not empty, only this topic's.
        :param cursor: of the page before.
        :param full: with bodies and properties.
        """
        try:
            behind = bytes.fromhex(cursor)
        except ValueError:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, "the cursor is not one of this gateway"
            ) from None
        if not _can_be_a_topic(topic) or len(behind) > MAX_CURSOR:
            return RecurringList([])
        page = scan_recurring(
            self._store, topic.encode() or None, behind or None, max(1, min(limit, MAX_PAGE))
        )
        found = [
            _describe(one, definition, full=full)
            for one in page.found
            if (definition := _definition_of(one)) is not None
        ]
        return RecurringList(found, page.cursor.hex() if page.cursor is not None else None)

    def get(self, topic: str, name: str) -> RecurringMessage:
        """One of them, with its body and properties."""
        return _describe(*self._found(topic, name), full=True)

    def next_times(self, topic: str, name: str, count: int) -> list[int]:
        """When it fires next, at most `count` times, epoch ms; of a paused one, when it would."""
        one, definition = self._found(topic, name)
        if definition.rule.count is not None:
            count = min(count, definition.rule.count - one.fired)
        with _refusing():
            following = definition.rule.times_after(one.next_ms, definition.set_ms)
            return [one.next_ms, *islice(following, max(0, min(count, MAX_TIMES) - 1))]

    def preview(self, rule: Rule, count: int) -> list[int]:
        """When a rule would fire if it were set now, at most `count` times, epoch ms."""
        now_ms = self._clock.now_ms()
        if rule.count is not None:
            count = min(count, rule.count)
        with _refusing():
            rule.check(now_ms, self._min_period_ms)
            return [*islice(rule.times_after(now_ms, now_ms), max(1, min(count, MAX_TIMES)))]

    def count(self) -> int:
        """How many there are, paused ones too."""
        return self._count

    def _found(self, topic: str, name: str) -> tuple[Recurring, _Definition]:
        """One as it was committed last."""
        _check_place(topic, name)
        return _readable(find_recurring(self._store, topic.encode(), name.encode()), topic, name)

    def _current(self, topic: str, name: str) -> tuple[Recurring, _Definition]:
        """One that is going to be changed."""
        _check_place(topic, name)
        return _readable(current_recurring(self._store, topic.encode(), name.encode()), topic, name)

    def _delete(self, one: Recurring) -> None:
        self._count -= delete_recurring(self._store, one.topic, one.name)

    # -- what `Firing` asks for

    @property
    def next_due_ms(self) -> int | None:
        """When the first of them is due, or was until it was paused or deleted."""
        return self._next_due_ms

    def reload(self) -> None:
        """Take over what is stored."""
        self._next_due_ms = next_recurring_due(self._store)
        self._count = count_recurring(self._store)

    def fire_due(self, now_ms: int, limit: int) -> Recurred:
        """Put what is due at `now_ms` into its queues, and plan the next times; at most `limit` of it.

        :raises StorageError: nothing of the whole batch is stored.
        """
        if self.disk_full:
            self._next_due_ms = now_ms + ROOM_SECONDS * 1000
            return Recurred(0, 0, more=False)
        try:
            return self._fire_due(now_ms, limit)
        except StorageError:
            self._store.abandon()
            raise

    def _fire_due(self, now_ms: int, limit: int) -> Recurred:
        handled = messages = misfired = size = 0
        while handled < limit and size < MAX_STEP_BYTES:
            due = due_recurring(self._store, now_ms, limit - handled, MAX_STEP_BYTES - size)
            if not due:
                break
            for one in due:
                fired, was_late = self._fire(one, now_ms)
                messages += fired
                misfired += was_late
                size += len(one.definition)
            handled += len(due)
        self._next_due_ms = next_planned(self._store)
        more = self._next_due_ms is not None and self._next_due_ms <= now_ms
        return Recurred(messages, misfired, more)

    def _fire(self, one: Recurring, now_ms: int) -> tuple[bool, bool]:
        """Whether one that is due put a message into its queue, and whether it was too late."""
        definition = _definition_of(one)
        topic = self._topics.get(one.topic.decode())
        try:
            if definition is None:
                raise RuleError("it was stored by another version")
            turn = definition.rule.turn(
                Misfire(definition.misfire),
                one.next_ms,
                now_ms,
                definition.set_ms,
                self._threshold_ms,
            )
        except ValueError as error:
            plan_recurring(self._store, *one[:4], paused=True)
            self.log.error(
                "{recurring} cannot go on and is paused: {error}",
                recurring=_called(one),
                error=str(error),
            )
            return False, False
        if topic is None:
            self._delete(one)
            self.log.warn("{recurring} is deleted: its topic is gone", recurring=_called(one))
            return False, False
        if turn.planned_ms is not None:
            message = _occurrence(topic, one, definition, turn.planned_ms)
            self._intake.accept_planned(topic, message, turn.planned_ms)
        fired = one.fired + (turn.planned_ms is not None)
        if turn.next_ms is None or fired == definition.rule.count:
            self._delete(one)
            self.log.info(
                "{recurring} has come to its end after {fired} messages",
                recurring=_called(one),
                fired=fired,
            )
        else:
            plan_recurring(self._store, one.topic, one.name, turn.next_ms, fired, paused=False)
        return turn.planned_ms is not None, turn.misfired

    def _wake_for(self, one: Recurring) -> None:
        if not one.paused and (self._next_due_ms is None or one.next_ms < self._next_due_ms):
            self._next_due_ms = one.next_ms


def _illegal(remark: str) -> RequestError:
    return RequestError(ResponseCode.MESSAGE_ILLEGAL, remark)


@contextmanager
def _refusing() -> Iterator[None]:
    """A rule that is none, or never fires, is a request that cannot be carried out."""
    try:
        yield
    except RuleError as error:
        raise _illegal(str(error)) from error


def _called(one: Recurring) -> str:
    return f"recurring message {one.name.decode()} of topic {one.topic.decode()}"


def _readable(one: Recurring | None, topic: str, name: str) -> tuple[Recurring, _Definition]:
    definition = _definition_of(one)
    if one is None or definition is None:
        raise _illegal(f"topic {topic} has no recurring message {name!r}")
    return one, definition


def _can_be_a_topic(name: str) -> bool:
    """Whether the store can be asked about it at all: it cannot about a key that is too long."""
    return len(name.encode()) <= MAX_PREFIXED_NAME and "\0" not in name


def _check_place(topic: str, name: str) -> None:
    _check_name(name)
    if not _can_be_a_topic(topic):
        raise _illegal(f"{topic[:MAX_NAME]!r} is no topic")


def _check_name(name: str) -> None:
    if not name or " " in name or not name.isprintable() or len(name.encode()) > MAX_NAME:
        raise _illegal(
            f"{name[:MAX_NAME]!r} is no name: it has 1 to {MAX_NAME} bytes, all of them printable and no blanks"
        )


def _definition_of(one: Recurring | None) -> _Definition | None:
    """What is stored; None where there is nothing, or nothing that this version can read."""
    if one is None:
        return None
    try:
        return _decode(one.definition)
    except msgspec.DecodeError:
        return None


def _occurrence(
    topic: Topic, one: Recurring, definition: _Definition, planned_ms: int
) -> NewMessage:
    """The message that enters the queue. It was born when it was planned for."""
    settings = topic.settings
    queue_id = definition.queue_id
    if queue_id >= max(settings.read_queue_nums, settings.write_queue_nums):
        # The topic has been made smaller since.
        queue_id %= max(1, settings.write_queue_nums)
    return NewMessage(
        queue_id,
        definition.flag,
        definition.sys_flag,
        planned_ms,
        definition.born_host,
        0,
        definition.body,
        f"{definition.properties}{names.RECUR_NAME}\x01{one.name.decode()}\x02"
        f"{names.PLANNED_MS}\x01{planned_ms}\x02",
    )


def _describe(one: Recurring, definition: _Definition, *, full: bool = False) -> RecurringMessage:
    rule = definition.rule
    return RecurringMessage(
        topic=one.topic.decode(),
        name=one.name.decode(),
        state="paused" if one.paused else "active",
        next_ms=one.next_ms,
        fired=one.fired,
        cron=rule.cron,
        every=rule.every,
        zone=rule.zone,
        misfire=definition.misfire,
        start_ms=rule.start_ms,
        end_ms=rule.end_ms,
        count=rule.count,
        set_ms=definition.set_ms,
        queue_id=definition.queue_id,
        tags=find(definition.properties, names.TAGS) or "",
        keys=find(definition.properties, names.KEYS) or "",
        body_size=len(definition.body),
        body=definition.body if full else None,
        properties=parse(definition.properties) if full else None,
    )
