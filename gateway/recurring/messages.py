"""Recurring messages, for any caller: set, listed, paused, resumed, deleted, and fired.

Handlers of the remoting protocol, properties of sends and the HTTP API all use this module. Changes join the store's
batch: an answer may leave once the batch is committed. What cannot be done raises `RequestError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import chain, islice
from typing import NamedTuple

from twisted.logger import Logger

from gateway.access.policies import READ, May
from gateway.clock import Clock
from gateway.firing import Recurred
from gateway.intake import Intake, NewMessage
from gateway.monitoring.audit import AuditLog
from gateway.recurring.definitions import (
    ADDED_LATER,
    Definition,
    definition_of,
    describe,
    encode_definition,
    occurrence,
)
from gateway.recurring.orders import OWN, Order, refusing
from gateway.recurring.recurrence import Misfire, Rule, RuleError, make_rule
from gateway.router import NotFoundError, RequestError, illegal
from gateway.settings.config import Config
from gateway.topics import MAX_PREFIXED_NAME, Topic, Topics
from gateway.wire import properties as names
from gateway.wire.codes import ResponseCode, SysFlag
from gateway.wire.messages import MAX_PROPERTIES
from gateway.wire.properties import remove
from gateway.wire.recurring_bodies import (
    MAX_TIMES,
    RecurringChange,
    RecurringList,
    RecurringMessage,
)
from storage import (
    DamagedError,
    Recurring,
    Store,
    count_recurring,
    current_recurring,
    delete_recurring,
    delete_recurring_of,
    due_recurring,
    find_recurring,
    next_recurring_due,
    plan_recurring,
    put_recurring,
    scan_recurring,
)

MAX_PAGE = 1_000
"""Most recurring messages in one answer to a list."""

MAX_NAME = 127
"""Longest name of a recurring message, in bytes."""

NO_NAMES = (".", "..")
"""Names that no recurring message gets: browsers take them out of an address, also as `%2E`, so the console could
neither show nor change it."""

MAX_CURSOR = MAX_PREFIXED_NAME + 1 + MAX_NAME
"""Longest cursor of a page, in bytes: a topic and a name."""

MAX_STEP_BYTES = 8 << 20
"""A step of firing ends once its messages have more bytes than this together."""

ROOM_SECONDS = 1
"""Seconds that nothing fires while the disk is full, until it is checked again."""


class Upcoming(NamedTuple):
    """When a rule fires next, epoch ms, and its time zone. Each time is found when it is taken, which needs up to 2 ms
    where there is one in decades, as for a fifth Sunday in February. It may raise RequestError."""

    times: Iterator[int]
    zone: str


class RecurringMessages:
    """All recurring messages. `Firing` uses this class as its `Recurrences`.

    :param once_stored: see `Committer`.
    """

    log = Logger()

    def __init__(
        self,
        store: Store,
        clock: Clock,
        intake: Intake,
        topics: Topics,
        audit: AuditLog,
        config: Config,
        once_stored: Callable[[Callable[[], None]], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._intake = intake
        self._topics = topics
        self._audit = audit
        self._once_stored = once_stored
        self.configure(config)
        self.next_due_ms: int | None
        """When the first recurring message is due, or was until it was paused or deleted."""
        self.reload()

    def configure(self, config: Config) -> None:
        """Use these settings to set and fire recurring messages."""
        self._most = config.recurring_max
        self._min_period_ms = config.recurring_min_period_ms
        self._threshold_ms = config.recurring_misfire_threshold_ms
        self._max_body = config.max_message_size
        self._broker_name = config.broker_name

    # -- changes

    def put(
        self,
        topic: Topic,
        order: Order,
        message: NewMessage,
        now_ms: int,
        *,
        any_queue: bool = False,
    ) -> RecurringChange:
        """Set a recurring message. It replaces the topic's recurring message of that name, if there is one.

        Where the rule is the same as before, only the message and the policy change. Its times and its count go on, and
        a paused one stays paused, so a program may set its recurring messages at each start.

        :param message: the template; its times are ignored.
        :param now_ms: the time by which the order was parsed.
        :param any_queue: whether the sender named no queue: then a recurring message that was there keeps its own.
        :returns: "set", "replaced", or "updated" where the rule was the same.
        """
        name, rule, misfire = order
        _check_name(name)
        if name in NO_NAMES:
            raise illegal(f"{name!r} is no name: browsers take it out of an address")
        properties = remove(message.properties, (*OWN, names.UNIQ_KEY))
        self._check_template(topic, message, properties)
        old = current_recurring(self._store, topic.stored_name, name.encode())
        if old is None and (count := self.count()) >= self._most:
            raise illegal(
                f"there are {count} recurring messages already; recurring_max = {self._most}"
            )
        before = definition_of(old)
        if old is not None and before is not None and before.rule == rule:
            outcome, new, set_ms = "updated", old, before.set_ms
        else:
            with refusing():
                rule.check(now_ms, self._min_period_ms)
            outcome, set_ms = "set" if old is None else "replaced", now_ms
            next_ms = rule.first(now_ms) or now_ms
            paused = old is not None and old.paused
            new = Recurring(topic.stored_name, name.encode(), next_ms, 0, paused, b"")
        if any_queue and before is not None and before.queue_id < topic.queues:
            message.queue_id = before.queue_id
        definition = Definition(
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
        new = new._replace(definition=encode_definition(definition))
        put_recurring(self._store, new)
        self._wake_for(new)
        self._audit.note(
            f"recurring {outcome}", topic=topic.name, name=name, cron=rule.cron, every=rule.every
        )
        return RecurringChange(outcome, describe(new, definition))

    def _check_template(self, topic: Topic, message: NewMessage, properties: str) -> None:
        """Refuse a message that cannot recur, or that could not be accepted when it recurs.

        :param properties: the properties that it is stored with.
        """
        if topic.is_retry:
            raise illegal(f"a message of {topic.name} cannot recur: send it to a topic of your own")
        if message.sys_flag & SysFlag.TRANSACTION_MASK:
            raise illegal("a transaction cannot set a recurring message")
        size = len(properties.encode())
        if len(message.body) > self._max_body or size > MAX_PROPERTIES - ADDED_LATER:
            raise illegal(
                f"the message is too long to recur: its body has at most max_message_size = {self._max_body} "
                f"bytes, its properties {MAX_PROPERTIES - ADDED_LATER}"
            )
        self._intake.check_planned(topic, message)

    def pause(self, topic: str, name: str) -> RecurringChange:
        """Pause a recurring message. :returns: "paused" or "already paused"."""
        one, definition = self._current(topic, name)
        if not one.paused:
            plan_recurring(self._store, *one[:4], paused=True)
            self._audit.note("recurring paused", topic=topic, name=name)
        outcome = "already paused" if one.paused else "paused"
        return RecurringChange(outcome, describe(one._replace(paused=True), definition))

    def resume(self, topic: str, name: str) -> RecurringChange:
        """Resume a recurring message. Its misfire policy decides about the times that it missed meanwhile.

        :returns: "resumed" or "already active".
        """
        one, definition = self._current(topic, name)
        outcome = "resumed" if one.paused else "already active"
        one = one._replace(paused=False)
        if outcome == "resumed":
            plan_recurring(self._store, *one[:4], paused=False)
            self._wake_for(one)
            self._audit.note("recurring resumed", topic=topic, name=name)
        return RecurringChange(outcome, describe(one, definition))

    def delete(self, topic: str, name: str) -> RecurringChange:
        """Delete a recurring message; messages that have fired stay. :returns: "deleted"."""
        one, definition = self._current(topic, name)
        delete_recurring(self._store, one.topic, one.name)
        self._audit.note("recurring deleted", topic=topic, name=name)
        return RecurringChange("deleted", describe(one, definition))

    def forget_topic(self, topic: str) -> None:
        """Delete the recurring messages of a topic."""
        delete_recurring_of(self._store, topic.encode())

    def change(self, order: str, topic: str, name: str) -> RecurringChange:
        """Carry out an order by its name: pause, resume or delete."""
        orders = {"pause": self.pause, "resume": self.resume, "delete": self.delete}
        if order not in orders:
            raise illegal(f"{order!r} is no order; write pause, resume or delete")
        return orders[order](topic, name)

    # -- reads

    def page(
        self, may: May, topic: str = "", *, cursor: str = "", limit: int = 100, full: bool = False
    ) -> RecurringList:
        """Return a page of the recurring messages that the caller may read, by topic and name.

        :param topic: where not empty, only this topic's.
        :param cursor: the cursor of the page before.
        :param full: whether to return bodies and properties too.
        """
        try:
            behind = bytes.fromhex(cursor)
        except ValueError:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, "the cursor is not one of this gateway"
            ) from None
        if not _can_be_a_topic(topic) or len(behind) > MAX_CURSOR:
            return RecurringList([])
        readable = cache(lambda name: may(READ, name.decode(errors="replace")))
        page = scan_recurring(
            self._store,
            topic.encode() or None,
            behind or None,
            max(1, min(limit, MAX_PAGE)),
            readable,
        )
        found = [
            describe(one, definition, full=full)
            for one in page.found
            if (definition := definition_of(one)) is not None
        ]
        return RecurringList(found, page.cursor.hex() if page.cursor is not None else None)

    def get(self, topic: str, name: str) -> RecurringMessage:
        """Return a recurring message, with its body and properties."""
        return describe(*self._found(topic, name), full=True)

    def next_times(self, topic: str, name: str, count: int) -> Upcoming:
        """Return when a recurring message fires next, at most `count` times; for a paused one, when it would."""
        one, definition = self._found(topic, name)
        if definition.rule.count is not None:
            count = min(count, definition.rule.count - one.fired)
        following = _times_after(definition.rule, one.next_ms, definition.set_ms)
        following = islice(following, max(0, min(count, MAX_TIMES) - 1))
        return Upcoming(chain([one.next_ms], following), definition.rule.zone)

    def preview(
        self,
        count: int,
        *,
        cron: str | None,
        every: str | None,
        zone: str | None,
        start: str | None,
        end: str | None,
    ) -> Upcoming:
        """Return when a rule would fire if it were set now, at most `count` times. The other parameters are those of
        `make_rule`."""
        now_ms = self._clock.now_ms()
        with refusing():
            rule = make_rule(now_ms, cron=cron, every=every, zone=zone, start=start, end=end)
            rule.check(now_ms, self._min_period_ms)
            first_ms = rule.first(now_ms) or now_ms
        times = _times_after(rule, first_ms - 1, now_ms)
        return Upcoming(islice(times, max(1, min(count, MAX_TIMES))), rule.zone)

    def count(self) -> int:
        """Return how many recurring messages there are, paused ones included."""
        return count_recurring(self._store)

    def _found(self, topic: str, name: str) -> tuple[Recurring, Definition]:
        """Return a recurring message as of the last commit."""
        return self._readable(find_recurring, topic, name)

    def _current(self, topic: str, name: str) -> tuple[Recurring, Definition]:
        """Return a recurring message that is to be changed, with the changes of the batch."""
        return self._readable(current_recurring, topic, name)

    def _readable(
        self, find: Callable[[Store, bytes, bytes], Recurring | None], topic: str, name: str
    ) -> tuple[Recurring, Definition]:
        _check_place(topic, name)
        one = find(self._store, topic.encode(), name.encode())
        if one is None:
            raise NotFoundError(
                ResponseCode.MESSAGE_ILLEGAL, f"topic {topic} has no recurring message {name!r}"
            )
        definition = definition_of(one)
        if definition is None:
            # Another code than for one that is absent: of several workers, no other may set one of this name.
            raise RequestError(
                ResponseCode.ILLEGAL_OPERATION,
                f"the recurring message {name!r} of topic {topic} is damaged, or another version of Tidegate stored "
                f"it: set it again at {self._broker_name}",
            )
        return one, definition

    # -- what `Firing` calls

    def reload(self) -> None:
        """Read again when the first recurring message is due."""
        self.next_due_ms = next_recurring_due(self._store)

    def fire_due(self, now_ms: int, limit: int) -> Recurred:
        """Put occurrences that are due at `now_ms` into their queues, and plan the next times. Handle at most `limit`
        recurring messages."""
        if self._intake.disk_full:
            self.next_due_ms = now_ms + ROOM_SECONDS * 1000
            return Recurred(0, 0, more=False)
        handled = messages = misfired = size = from_ms = 0
        while handled < limit and size < MAX_STEP_BYTES:
            due = due_recurring(self._store, now_ms, limit - handled, MAX_STEP_BYTES - size)
            if not due:
                # Rows that are still planned for an earlier time are damaged.
                from_ms = now_ms + 1
                break
            for one in due:
                fired, was_late = self._fire(one, now_ms)
                messages += fired
                misfired += was_late
                size += len(one.definition)
            handled += len(due)
        self.next_due_ms = next_recurring_due(self._store, from_ms)
        more = self.next_due_ms is not None and self.next_due_ms <= now_ms
        return Recurred(messages, misfired, more)

    def _fire(self, one: Recurring, now_ms: int) -> tuple[bool, bool]:
        """Fire a recurring message that is due. Return whether a message entered its queue, and whether it was a
        misfire."""
        definition = definition_of(one)
        topic = self._topics.get(one.topic.decode())
        try:
            if definition is None:
                raise RuleError(
                    "it is damaged, or another version of Tidegate stored it; set it again and resume it"
                )
            turn = definition.rule.turn(
                Misfire(definition.misfire),
                one.next_ms,
                now_ms,
                definition.set_ms,
                self._threshold_ms,
            )
        except ValueError as error:
            self._rest(one, error)
            return False, False
        if topic is None:
            delete_recurring(self._store, one.topic, one.name)
            self._log(self.log.warn, "{recurring} is deleted: its topic is gone", one)
            return False, False
        if turn.planned_ms is not None:
            message = occurrence(topic, one, definition, turn.planned_ms)
            try:
                self._intake.accept_planned(topic, message, turn.planned_ms)
            except (RequestError, DamagedError) as error:
                self._rest(one, error)
                return False, False
        fired = one.fired + (turn.planned_ms is not None)
        if turn.next_ms is None or fired == definition.rule.count:
            delete_recurring(self._store, one.topic, one.name)
            text = "{recurring} has come to its end after {fired} messages"
            self._log(self.log.info, text, one, fired=fired)
        else:
            plan_recurring(self._store, one.topic, one.name, turn.next_ms, fired, paused=False)
        return turn.planned_ms is not None, turn.misfired

    def _rest(self, one: Recurring, error: Exception) -> None:
        """Pause a recurring message that cannot go on until it is set anew."""
        plan_recurring(self._store, *one[:4], paused=True)
        text = "{recurring} cannot go on and is paused: {error}"
        self._log(self.log.error, text, one, error=str(error))

    def _log(self, write: Callable[..., None], text: str, one: Recurring, **values: object) -> None:
        """Log what became of a recurring message, once that is stored."""
        called = f"recurring message {one.name.decode()} of topic {one.topic.decode()}"
        self._once_stored(partial(write, text, recurring=called, **values))

    def _wake_for(self, one: Recurring) -> None:
        if not one.paused and (self.next_due_ms is None or one.next_ms < self.next_due_ms):
            self.next_due_ms = one.next_ms


def _times_after(rule: Rule, after_ms: int, set_ms: int) -> Iterator[int]:
    with refusing():
        yield from rule.times_after(after_ms, set_ms)


def _can_be_a_topic(name: str) -> bool:
    """Whether the store can look up the name: it cannot if the name is too long for a key."""
    return len(name.encode()) <= MAX_PREFIXED_NAME and "\0" not in name


def _check_place(topic: str, name: str) -> None:
    _check_name(name)
    if not _can_be_a_topic(topic):
        raise illegal(f"{topic[:MAX_NAME]!r} is no topic")


def _check_name(name: str) -> None:
    if not name or " " in name or not name.isprintable() or len(name.encode()) > MAX_NAME:
        raise illegal(
            f"{name[:MAX_NAME]!r} is no name: it has 1 to {MAX_NAME} bytes, all of them printable and no blanks"
        )
