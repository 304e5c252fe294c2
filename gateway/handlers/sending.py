"""Sends: single messages (10, 310), batches (320, or any send with the batch flag), and messages that a consumer sends
back (36)."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import partial

from gateway.broker import Broker
from gateway.delays import REQUESTS, TIMER_PROPERTIES
from gateway.handlers.timer_orders import TimerOrders, is_order
from gateway.intake import REGION, SET_ANEW, Accepted, NewMessage, retried, too_long
from gateway.recurring.orders import (
    RECURRING_REQUESTS,
    asks_to_recur,
    name_of,
    read_order,
    refuse_delay,
)
from gateway.router import Call, RequestError, illegal
from gateway.settings.values import show_size
from gateway.topics import (
    FORBIDDEN_TO_SEND,
    MAX_NAME,
    NOT_FOUND_HELP,
    PERM_WRITE,
    Topic,
    check_topic_name,
)
from gateway.transactions import is_half
from gateway.wire import properties as names
from gateway.wire.bodies import GroupSettings
from gateway.wire.codes import ResponseCode, SysFlag
from gateway.wire.commands import send_response
from gateway.wire.group_topics import DLQ_PREFIX, RETRY_PREFIX, group_of, is_of_group
from gateway.wire.headers import ConsumerSendMsgBack, SendMessage
from gateway.wire.messages import (
    BatchItem,
    Message,
    MessageError,
    decode_message,
    offset_msg_id,
    split_batch,
)
from gateway.wire.properties import find, keys_in, parse, remove
from gateway.wire.recall import RecallHandle
from storage import find_record

MIN_VERSION_WITH_MAX_RECONSUME = 121
"""MQVersion V3_4_9: from this version on, clients send the highest number of retries themselves."""

HOSTS_V6 = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
"""Flags that are never stored: hosts are written as IPv4, which every client can read."""

UNUSUAL = RECURRING_REQUESTS | {
    names.INNER_NUM,
    names.TRAN_MSG,
    names.RESCHEDULE,
    names.TIMER_DEL_UNIQKEY,
}
"""Properties that make a message more than one to store: a recurring message, a batch in one record, a half message, or
an order to reschedule or abort."""

UNUSUAL_FLAGS = SysFlag.INNER_BATCH | SysFlag.TRANSACTION_PREPARED
"""Bits of sysFlag that do the same."""

MAX_BATCH_ITEMS = 30_000
"""Most messages in one batch. A batch is stored in one step while all other work waits, some 15 us for each message.
30,000 messages of 140 bytes each, the id included, fill the 4 MiB that a batch may have."""

MAX_BATCH_KEYS = 200_000
"""Most keys of all messages in a batch, some 0.5 us for each. 30,000 messages with six keys each stay below it."""

MAX_BATCH_DEBOUNCED = 3_000
"""Most messages of a batch that debounce. Each takes 70 us when it replaces an earlier message."""

RETRY_LEVEL_BASE = 3
"""The delay level of the first retry; each further retry waits one level longer (AbstractSendMessageProcessor)."""

REWRITTEN_ON_RETRY = (
    *SET_ANEW,
    *(names.RETRY_TOPIC, names.ORIGIN_MESSAGE_ID, names.WAIT, names.DEBOUNCE),
)
"""Properties that are written anew in a message that is sent back."""

IN_EVERY_ANSWER = {names.MSG_REGION: REGION, names.TRACE_ON: "true"}
"""Fields that upstream's answers to sends have even when they refuse (SendMessageProcessor.preSend)."""

HIGHEST_PRIORITY = (1 << 31) - 1
"""A higher priority counts as none: upstream reads an int of 32 bits (Message.getPriority)."""

_PRIORITY = re.compile(r"\+?0*(\d{1,10})")

NO_PRIORITY = (names.DELAY, *TIMER_PROPERTIES, names.SHARDING_KEY)
"""A message with one of these is delayed or in order, and has no priority (TopicMessageType)."""

NO_SPACE = "service not available now, maybe disk full: less than disk_reserve = {reserve} is free"


class Sending:
    """Stores the messages that clients send.

    :param has_locks: returns whether a group, given by its name, has locked queues.
    """

    def __init__(
        self, broker: Broker, orders: TimerOrders, has_locks: Callable[[str], bool]
    ) -> None:
        self._broker = broker
        self._orders = orders
        self._has_locks = has_locks
        self._topics = broker.topics
        self._intake = broker.intake
        self._committer = broker.committer

    def send(self, call: Call) -> None:
        """Store a message, and answer once it is on disk."""
        try:
            self._send(call)
        except RequestError as error:
            # For a SYSTEM_ERROR upstream throws an exception, and its answer has no fields.
            if error.code != ResponseCode.SYSTEM_ERROR:
                error.ext = IN_EVERY_ANSWER
            raise

    def _send(self, call: Call) -> None:
        fields: SendMessage = call.fields
        if not call.command.body:  # check this first: looking up the topic may create it
            raise RequestError(ResponseCode.SYSTEM_ERROR, "a message without a body cannot be sent")
        topic = self.topic_of(fields)
        queue_id = self.queue_of(topic, fields.queue_id, call)
        if fields.batch:
            self._send_batch(call, topic, queue_id)
            return
        message = new_message(call, queue_id)
        if names.PRIORITY in message.values:
            put_by_priority(message, topic)
        if message.sys_flag & UNUSUAL_FLAGS or not UNUSUAL.isdisjoint(message.values):
            self._send_unusual(call, topic, message)
            return
        if names.REPLY_TO_CLIENT in message.values:
            self._introduce(call, message)
        accept = self._intake.accept
        if topic.is_retry:
            topic = self._retry_or_dead(call, topic, message)
            accept = self._intake.accept_again
        self._answer(call, topic, message, accept(topic, message))

    def _introduce(self, call: Call, message: NewMessage) -> None:
        """Learn the client id of who sends a request that is to be replied to. Java 5.5.0 makes itself known only up to
        30 s after its first send, if its name server has the broker's address."""
        fields: SendMessage = call.fields
        self._broker.clients.introduce(
            message.values[names.REPLY_TO_CLIENT],
            fields.producer_group,
            call.peer,
            call.command.language,
            call.command.version,
        )

    def _send_unusual(self, call: Call, topic: Topic, message: NewMessage) -> None:
        """Store a half message, carry out an order, or refuse a message that is not what its sender takes it for."""
        values = message.values
        refuse_inner_batch(message)
        if asks_to_recur(values):
            self._recurring(call, topic, message)
            return
        half = is_half(values, message.reconsume_times)
        self._check_transaction(message, half)
        accept = self._intake.accept_half if half else self._intake.accept
        if topic.is_retry:
            topic = self._retry_or_dead(call, topic, message)
            if not half:
                accept = self._intake.accept_again
        if is_order(values):
            self._orders.carry_out(call, topic, message)
            return
        self._answer(call, topic, message, accept(topic, message))

    def _recurring(self, call: Call, topic: Topic, message: NewMessage) -> None:
        """Set, pause, resume or delete a recurring message. The message with the order is not delivered itself."""
        values = message.values
        recurring = self._broker.recurring
        if is_half(values, message.reconsume_times):
            raise illegal("a transaction cannot set a recurring message")
        refuse_delay(values)
        order = values.get(names.RECUR_CHANGE)
        if order is not None:
            change = recurring.change(order, topic.name, name_of(values))
        else:
            now_ms = self._broker.clock.now_ms()
            change = recurring.put(
                topic,
                read_order(values, now_ms),
                message,
                now_ms,
                any_queue=call.fields.queue_id < 0 and names.PRIORITY not in values,
            )
        ext = {
            "msgId": offset_msg_id(self._broker.host, 0),
            "queueId": str(message.queue_id),
            "queueOffset": "0",
            "recurring": change.outcome,
            "recurringState": change.recurring.state,
            "nextMs": str(change.recurring.next_ms),
            **IN_EVERY_ANSWER,
        }
        uniq = values.get(names.UNIQ_KEY)
        if uniq is not None:
            ext["transactionId"] = uniq
        self._committer.answer(call, call.encode(ext))

    def _check_transaction(self, message: NewMessage, half: bool) -> None:
        """Refuse a half message that is not allowed, and a message that its sender wrongly takes for a half message."""
        if half:
            if self._broker.config.reject_transactions:
                raise RequestError(
                    ResponseCode.NO_PERMISSION,
                    f"the broker[{self._broker.advertised.host}] sending transaction message is forbidden",
                )
            if is_order(message.values):
                raise illegal("a transaction cannot abort or reschedule a message")
        elif (
            message.sys_flag & SysFlag.TRANSACTION_PREPARED and names.TRAN_MSG not in message.values
        ):
            # Upstream stores such a message where no consumer ever reads it.
            raise illegal(
                f"sysFlag says that the message is half of a transaction, but it has no {names.TRAN_MSG}"
            )

    def _answer(self, call: Call, topic: Topic, message: NewMessage, accepted: Accepted) -> None:
        """Answer with the place of the message, once it is on disk."""
        handle = None
        if accepted.due_ms is not None and not topic.is_retry:
            handle = RecallHandle(
                topic.name, self._broker.config.broker_name, accepted.due_ms, accepted.message_id
            ).encode()
        frame = send_response(
            call.command.opaque,
            offset_msg_id(self._broker.host, accepted.sequence),
            message.queue_id,
            _place(accepted),
            accepted.message_id,
            handle,
            accepted.replaced,
        )
        # Memory that is free at once is still in the processor's caches when the next request needs some.
        call.shed()
        call.fields = None
        self._committer.answer(call, frame)

    def topic_of(self, fields: SendMessage) -> Topic:
        """Return the topic of a send; the first send to a topic creates it. As upstream, one without write permission
        takes what still comes: clients keep away once they have its new route.

        :raises RequestError: when sends to this topic are refused.
        """
        if self._intake.disk_full:
            raise RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                NO_SPACE.format(reserve=show_size(self._broker.config.disk_reserve)),
            )
        name = fields.topic
        if name in FORBIDDEN_TO_SEND:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden."
            )
        topic = self._topics.get(name)
        if topic is None:
            check_topic_name(name)
            template = fields.default_topic, fields.default_topic_queue_nums
            if is_of_group(name):
                if self._broker.groups.get(group_of(name)) is None:
                    self._topics.check_room(name)
                topic = self._topics.ensure_on_send(name, *template)
            else:
                topic = self._topics.create_on_send(name, *template)
        return topic

    def queue_of(self, topic: Topic, asked: int, call: Call) -> int:
        """Return the queue that a send asks for, or a random one if it asks for none.

        :raises RequestError: when the topic has no such queue.
        """
        if asked >= topic.queues:
            settings = topic.settings
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{asked}] is illegal, TopicConfig [topicName={topic.name}, "
                f"readQueueNums={settings.read_queue_nums}, writeQueueNums={settings.write_queue_nums}] "
                f"Producer: {call.peer.address}",
            )
        if asked < 0:
            return random.randrange(max(1, topic.settings.write_queue_nums))
        return asked

    def _retry_or_dead(self, call: Call, topic: Topic, message: NewMessage) -> Topic:
        """Return the topic that a message for a retry topic really goes to: the dead letter topic after its last retry,
        and for every message of a group that consumes in order: its clients send only messages that they have given
        up."""
        group = self._group(topic.name[len(RETRY_PREFIX) :])
        spent = message.reconsume_times > _most_retries(call, group)
        if not spent and not self._has_locks(group.group_name):
            return topic
        message.queue_id = 0
        # The client set the delay of one more retry.
        undelayed = remove(message.properties, REQUESTS)
        message.properties = f"{undelayed}{names.DELAY}\x01-1\x02"
        message.values = parse(message.properties)
        return self._topics.ensure(DLQ_PREFIX + group.group_name)

    def _group(self, name: str) -> GroupSettings:
        group = self._broker.groups.find(name)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {name} {NOT_FOUND_HELP}",
            )
        return group

    def _send_batch(self, call: Call, topic: Topic, queue_id: int) -> None:
        fields: SendMessage = call.fields
        self._check_batch(call, topic)
        messages = [
            NewMessage(
                queue_id,
                item.flag,
                fields.sys_flag & ~HOSTS_V6,
                fields.born_timestamp,
                call.peer.host,
                fields.reconsume_times,
                item.body,
                item.properties,
            )
            for item in self._items(call.command.body)
        ]
        _check_items(messages)
        accepted = self._intake.accept_batch(topic, messages)
        host = self._broker.host
        uniq = find(fields.properties or "", names.UNIQ_KEY)
        replaced = [one.replaced for one in accepted if one.replaced is not None]
        frame = send_response(
            call.command.opaque,
            ",".join(offset_msg_id(host, one.sequence) for one in accepted),
            queue_id,
            _place(accepted[0]),
            uniq,
            None,
            sum(replaced) if replaced else None,
        )
        self._committer.answer(call, frame)

    def _check_batch(self, call: Call, topic: Topic) -> None:
        """Refuse what cannot be sent as a batch, whatever its messages are."""
        fields: SendMessage = call.fields
        if topic.is_retry:
            raise illegal(f"batch request does not support retry group {topic.name}")
        if len(topic.name) > MAX_NAME:
            raise illegal(f"a batch cannot be sent to topic {topic.name}")
        if fields.sys_flag & SysFlag.TRANSACTION_MASK:
            # As CommitLog.asyncPutMessages, which answers that the message is too long.
            raise illegal("a batch cannot be part of a transaction: send its messages one by one")
        if len(call.command.body) > self._broker.config.max_message_size:
            raise too_long(self._broker.config.max_message_size)

    @staticmethod
    def _items(body: bytes) -> list[BatchItem]:
        try:
            return split_batch(body, MAX_BATCH_ITEMS)
        except MessageError as error:
            raise illegal(f"the batch cannot be read: {error}") from error

    def send_back(self, call: Call) -> None:
        """Take back a message from a consumer (36): deliver it again later, or move it to the dead letter topic."""
        fields: ConsumerSendMsgBack = call.fields
        group = self._group(fields.group)
        if group.retry_queue_nums <= 0:
            call.answer()
            return
        retry_name = RETRY_PREFIX + group.group_name
        known = self._topics.get(retry_name)
        if known is not None and not known.settings.perm & PERM_WRITE:
            raise RequestError(
                ResponseCode.NO_PERMISSION, f"the topic[{retry_name}] sending message is forbidden"
            )
        record = find_record(self._broker.store, fields.offset)
        if record is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {fields.offset}"
            )
        message = decode_message(record)
        if message.reconsume_times >= _most_retries(call, group) or fields.delay_level < 0:
            topic = self._topics.ensure(DLQ_PREFIX + group.group_name)
            level = 0
        else:
            topic = self._topics.ensure(retry_name, group.retry_queue_nums)
            level = fields.delay_level or RETRY_LEVEL_BASE + message.reconsume_times
        # The group may have more retry queues now than when its retry topic was created.
        queues = max(1, min(group.retry_queue_nums, topic.settings.read_queue_nums))
        queue_id = random.randrange(queues) if topic.is_retry else 0
        origin = find(message.properties, names.RETRY_TOPIC) or message.topic
        properties = self._retry_properties(message, origin, level)
        self._intake.accept_again(topic, retried(message, queue_id, properties))
        self._committer.once_stored(partial(self._broker.stats.sent_back, origin, group.group_name))
        self._committer.answer(call, call.encode())

    def _retry_properties(self, message: Message, origin_topic: str, level: int) -> str:
        """Return the properties of the copy that is delivered again, with its origin and its delay."""
        properties = message.properties
        origin_id = find(properties, names.ORIGIN_MESSAGE_ID) or offset_msg_id(
            self._broker.host, message.physical_offset
        )
        properties = remove(properties, REWRITTEN_ON_RETRY)
        return (
            f"{properties}{names.RETRY_TOPIC}\x01{origin_topic}\x02"
            f"{names.ORIGIN_MESSAGE_ID}\x01{origin_id}\x02"
            f"{names.WAIT}\x01false\x02{names.DELAY}\x01{level}\x02"
        )


def put_by_priority(message: NewMessage, topic: Topic) -> None:
    """Put a message with a priority into the queue of that number, or into the last one if there are fewer. The
    priority of a message that is delayed, in order or part of a transaction is dropped (SendMessageProcessor)."""
    values = message.values
    found = _PRIORITY.fullmatch(values[names.PRIORITY])
    if found is None or (priority := int(found[1])) > HIGHEST_PRIORITY:
        return
    if values.get(names.TRAN_MSG, "").lower() == "true" or not values.keys().isdisjoint(
        NO_PRIORITY
    ):
        message.properties = remove(message.properties, [names.PRIORITY])
        message.values = parse(message.properties)
        return
    message.queue_id = min(priority, max(0, topic.settings.write_queue_nums - 1))


def refuse_inner_batch(message: NewMessage) -> None:
    """Refuse a batch in one record, which only topics with a batch queue accept (HookUtils.checkInnerBatch).

    Consumers would split the body of such a message, whatever it holds.

    :raises RequestError: when the message is such a batch.
    """
    if message.sys_flag & SysFlag.INNER_BATCH or names.INNER_NUM in message.values:
        raise illegal(
            f"a message with the sysFlag {SysFlag.INNER_BATCH} or the property {names.INNER_NUM} is a batch in one "
            "record; there are no topics for those here"
        )


def _most_retries(call: Call, group: GroupSettings) -> int:
    """Return how often a group's message is retried: as the request says, or else as the group's settings say."""
    fields: SendMessage | ConsumerSendMsgBack = call.fields
    own = fields.max_reconsume_times
    if call.command.version >= MIN_VERSION_WITH_MAX_RECONSUME and own is not None:
        return own
    return group.retry_max_times


def new_message(call: Call, queue_id: int) -> NewMessage:
    """Return the message of a send that is not a batch."""
    fields: SendMessage = call.fields
    return NewMessage(
        queue_id,
        fields.flag,
        fields.sys_flag & ~HOSTS_V6,
        fields.born_timestamp,
        call.peer.host,
        fields.reconsume_times,
        call.command.body,
        fields.properties or "",
    )


def _check_items(messages: list[NewMessage]) -> None:
    """Refuse a batch with a message that is more than one to store, or one that would hold up all other work far longer
    than most batches with as many messages.

    :raises RequestError: when it has such a message, or too many keys, or too many messages that debounce.
    """
    for message in messages:
        refuse_inner_batch(message)
    if any(is_order(message.values) for message in messages):
        raise illegal(
            f"{names.RESCHEDULE} and {names.TIMER_DEL_UNIQKEY} work in messages that are sent one by one, "
            "not in a batch"
        )
    if any(asks_to_recur(message.values) for message in messages):
        raise illegal("a batch cannot set a recurring message: send it alone")
    keys = sum(len(keys_in(message.values.get(names.KEYS, ""))) for message in messages)
    if keys > MAX_BATCH_KEYS:
        raise illegal(
            f"the messages of the batch have {keys} keys; {MAX_BATCH_KEYS} are possible: send smaller batches"
        )
    debounced = sum(names.DEBOUNCE in message.values for message in messages)
    if debounced > MAX_BATCH_DEBOUNCED:
        raise illegal(
            f"{debounced} messages of the batch have {names.DEBOUNCE}; {MAX_BATCH_DEBOUNCED} are possible: "
            "send smaller batches"
        )


def _place(accepted: Accepted) -> int:
    """Return the queueOffset of the answer. For a delayed message upstream answers with the place where it waits; here
    that is its sequence."""
    return accepted.offset if accepted.due_ms is None else accepted.sequence
