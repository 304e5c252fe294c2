"""Transactions: the producer's decision (37), and checks with producers that have not decided (39)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache, partial

import msgspec
from twisted.logger import Logger

from gateway.access.policies import PUB
from gateway.broker import Broker
from gateway.clients import Client
from gateway.intake import NewMessage
from gateway.router import Call, RequestError
from gateway.topics import CHECKED_OUT_TOPIC, HALF_TOPIC, PERM_READ, PERM_WRITE, Topic
from gateway.transactions import own_immunity_ms, place_of, with_checks, without_place
from gateway.wire import properties as names
from gateway.wire.bodies import TopicSettings
from gateway.wire.codes import RequestCode, ResponseCode, SysFlag
from gateway.wire.headers import EndTransaction
from gateway.wire.messages import Message, decode_message, encode_again, offset_msg_id
from gateway.wire.properties import find
from storage import DamagedError, Half, find_half, halves_to_check, put_off_check, remove_half

MAX_CHECKS = 500
"""Halves checked in one step, some 20 ms of work."""

MAX_CHECK_BYTES = 4 << 20
"""Bytes of halves that one step sends to their producers, so that a few large halves do not fill the output of a
connection."""

UNREAD_MS = 1_000
"""Time until the next check when the producer does not read its connection now."""


class Transactions:
    """Ends transactions, and checks those that nobody ends.

    A half is identified by its sequence, which stands for both of upstream's offsets. Unlike those, it does not change
    with each check, so a decision is understood however late it arrives.
    """

    log = Logger()

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store

    def end(self, call: Call) -> None:
        """Carry out the producer's decision: deliver the message or remove it. A producer that does not know yet is
        asked later."""
        fields: EndTransaction = call.fields
        decision = fields.commit_or_rollback
        if decision == 0:
            call.answer()
            return
        if decision not in (SysFlag.TRANSACTION_COMMIT, SysFlag.TRANSACTION_ROLLBACK):
            # As EndTransactionRequestHeader.checkFields.
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the field commitOrRollback is 8, 12 or 0, not {decision}",
            )
        half = find_half(self._store, max(0, fields.commit_log_offset))
        if half is None:
            raise _unknown_half()
        message = decode_message(half.record)
        self._check_decision(fields, half, message)
        if decision == SysFlag.TRANSACTION_COMMIT:
            name, queue_id = place_of(message.properties)
            done = self._release(half, message, self._topic(name), queue_id, committed=True)
        else:
            done = remove_half(self._store, half.sequence)
        if not done:
            # The properties have become too long (`release_half`): the half stays undecided; answer with an error.
            raise _unknown_half()
        self._broker.committer.answer(call, call.encode())

    def _check_decision(self, fields: EndTransaction, half: Half, message: Message) -> None:
        """Refuse a decision as EndTransactionProcessor does. Most producers never see the answer.

        :raises RequestError: when the decision is late or names another transaction.
        """
        properties = message.properties
        timeout_ms = self._broker.config.transaction_timeout_ms
        immunity_ms = own_immunity_ms(properties, timeout_ms)
        age_ms = self._broker.clock.now_ms() - message.store_ms
        if not fields.from_transaction_check and immunity_ms is not None and age_ms > immunity_ms:
            # From here on the broker checks with the producer, and only the reply to a check counts.
            raise RequestError(
                ResponseCode.ILLEGAL_OPERATION,
                f"the transaction of message {find(properties, names.UNIQ_KEY)} was not decided "
                f"within its {names.CHECK_IMMUNITY_TIME_IN_SECONDS}; wait for the broker's check",
            )
        if find(properties, names.PGROUP) != fields.producer_group:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if fields.tran_state_table_offset != half.sequence:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong"
            )

    def check_due(self) -> None:
        """Check with the producers of transactions whose time has come. Called now and then."""
        if self._broker.committer.failing:
            return
        now_ms = self._broker.clock.now_ms()
        halves = halves_to_check(self._store, now_ms, MAX_CHECKS, MAX_CHECK_BYTES)
        unasked: Counter[str] = Counter()
        # Thousands of producers can be in the group of all these halves.
        members_of = cache(lambda group: list(self._broker.clients.producers(group)))
        for half in halves:
            message = decode_message(half.record)
            group = _producer_group(message)
            if half.checks >= self._broker.config.transaction_check_max:
                self._give_up(half, message, now_ms)
            elif not self._check(half, message, members_of(group), now_ms):
                unasked[group] += 1
        if halves:
            self._broker.committer.change()
        for group, count in unasked.items():
            # A program that ended can leave thousands of halves: a line for each would fill the log.
            self.log.warn(
                "undecided transactions cannot be checked ({count}): producer group {group} has no client "
                "online that may send to their topic",
                count=count,
                group=group,
            )

    def _check(self, half: Half, message: Message, members: Sequence[Client], now_ms: int) -> bool:
        """Ask one of its producers about a half. Return False when there is none to ask."""
        producer = _producer(half, message, members)
        if producer is not None and producer.peer.congested:
            # The producer was not asked, so this check does not count.
            put_off_check(self._store, half.sequence, now_ms + UNREAD_MS, half.checks)
            return True
        self._put_off(half, now_ms, half.checks + 1)
        if producer is not None:
            self._ask(half, message, producer)
        return producer is not None

    def _put_off(self, half: Half, now_ms: int, checks: int) -> None:
        next_ms = now_ms + self._broker.config.transaction_check_interval_ms
        put_off_check(self._store, half.sequence, next_ms, checks)

    def _ask(self, half: Half, message: Message, producer: Client) -> None:
        """Send a half to a producer."""
        place = str(half.sequence)
        uniq = find(message.properties, names.UNIQ_KEY) or ""
        self._broker.outgoing.oneway(
            producer.peer,
            RequestCode.CHECK_TRANSACTION_STATE,
            {
                "topic": HALF_TOPIC,
                "tranStateTableOffset": place,
                "commitLogOffset": place,
                "msgId": uniq,
                "transactionId": uniq,
                "offsetMsgId": offset_msg_id(self._broker.host, half.sequence),
                "bname": self._broker.config.broker_name,
            },
            _as_sent(half, message),
        )

    def _give_up(self, half: Half, message: Message, now_ms: int) -> None:
        """Move a half that nobody decides to the topic where an operator can find it."""
        try:
            topic = self._broker.topics.ensure(CHECKED_OUT_TOPIC)
            self._release(half, message, topic, 0, committed=False)
        except DamagedError as error:
            # This half waits for a repair; the others do not.
            self.log.error(
                "an undecided transaction cannot be given up yet: {error}", error=str(error)
            )
            self._put_off(half, now_ms, half.checks)
            return
        self._broker.committer.once_stored(
            partial(
                self.log.warn,
                "message {uniq} of producer group {group} goes to {topic}: its transaction was not "
                "decided after {checks} checks",
                uniq=find(message.properties, names.UNIQ_KEY),
                group=find(message.properties, names.PGROUP),
                topic=topic.name,
                checks=half.checks,
            )
        )

    def _release(
        self, half: Half, message: Message, topic: Topic, queue_id: int, *, committed: bool
    ) -> bool:
        properties = with_checks(message.properties, half.checks)
        return self._broker.intake.release_half(
            half.sequence,
            topic,
            NewMessage(
                queue_id,
                message.flag,
                message.sys_flag | (SysFlag.TRANSACTION_COMMIT if committed else 0),
                message.born_ms,
                message.born_host,
                message.reconsume_times,
                message.body,
                without_place(properties) if committed else properties,
            ),
            delayed=committed,
        )

    def _topic(self, name: str) -> Topic:
        """Return the topic of a half. If it was deleted meanwhile, the message shares the fate of the topic's other
        messages: nobody reads it, and it is removed."""
        topic = self._broker.topics.get(name)
        return topic or Topic(TopicSettings(name, 1, 1, PERM_READ | PERM_WRITE))


def _producer(half: Half, message: Message, members: Sequence[Client]) -> Client | None:
    """Return the one of these producers to ask about a half. Each check asks the next one, as the connection to one may
    be broken. A producer that does not read its connection is asked only if all others do not either. Any client can
    claim to be in the group, so only producers that may send to the half's topic get to see it."""
    topic, _ = place_of(message.properties)
    first = half.sequence + half.checks
    unread: Client | None = None
    for number in range(first, first + len(members)):
        one = members[number % len(members)]
        if one.caller is None or one.caller.may(PUB, topic):
            if not one.peer.congested:
                return one
            unread = one
    return unread


def _producer_group(message: Message) -> str:
    return find(message.properties, names.PGROUP) or ""


def _unknown_half() -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")


def _as_sent(half: Half, message: Message) -> bytes:
    """Return the record of a half under its own topic, as its producer knows it."""
    topic, queue_id = place_of(message.properties)
    properties = with_checks(message.properties, half.checks + 1)
    return encode_again(
        msgspec.structs.replace(message, topic=topic, queue_id=queue_id, properties=properties)
    )
