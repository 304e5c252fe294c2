"""Popped messages: acknowledged (200051, 200151), put off (200053), or delivered again.

Messages popped in order have handles of their own, see `ordered_pops`."""

from __future__ import annotations

from functools import partial

from twisted.logger import Logger

from gateway.broker import Broker
from gateway.handlers.ordered_pops import OrderedPops
from gateway.intake import SET_ANEW, NewMessage, retried
from gateway.pops.orders import ORDERED_QUEUE, Place
from gateway.pops.queues import LONGEST_INVISIBLE_MS
from gateway.router import Call, Peer, RequestError, check_number
from gateway.wire import properties as names
from gateway.wire.codes import ResponseCode
from gateway.wire.group_topics import DLQ_PREFIX, RETRY_PREFIX, retry_topic
from gateway.wire.headers import AckMessage, ChangeInvisibleTime
from gateway.wire.messages import decode_message
from gateway.wire.pops import (
    NORMAL,
    BatchAck,
    Handle,
    parse_batch_acks,
    parse_handle,
)
from gateway.wire.properties import find, remove
from storage import Page, Pop, PopDue, StorageError, due_pops, put_pops, take_pop

MAX_REVIVED = 200
"""Messages that come back in one commit, so that no send waits long for it."""

MAX_REVIVED_BYTES = 4 << 20
"""No more messages come back in a commit once they have so many bytes together."""

RETRY_MS = 60_000
"""Time until the next attempt for a message that cannot come back because a row of its queue cannot be read."""

MAX_ACKED = 10_000
"""Messages that one request acknowledges, some 50 ms of work. Clients put a few pops into one request, each of at most
32 messages."""


class PopAcks:
    """Acknowledges popped messages, and delivers again those that nobody acknowledges in time."""

    log = Logger()

    def __init__(self, broker: Broker, ordered: OrderedPops) -> None:
        self._broker = broker
        self._store = broker.store
        self._ordered = ordered

    def ack(self, call: Call) -> None:
        """Acknowledge a message (200051). If nobody waits for the acknowledgement any more, that is no error."""
        fields: AckMessage = call.fields
        pop, handle = self._pop_of(call, fields)
        if handle.revive_queue == ORDERED_QUEUE:
            place = Place(fields.consumer_group, fields.topic, fields.queue_id)
            self._ordered.acknowledge(place, fields.offset, handle.pop_time, call.peer)
        else:
            take_pop(self._store, pop)
        self._broker.committer.answer(call, call.encode())

    def ack_batch(self, call: Call) -> None:
        """Acknowledge messages (200151)."""
        acks = parse_batch_acks(call.command.body)
        if not acks:
            call.answer(code=ResponseCode.NO_MESSAGE)
            return
        count = sum(max(1, ack.count) for ack in acks)
        check_number("messages are acknowledged at once", count, MAX_ACKED)
        for ack in acks:
            self._ack_one(ack, call.peer)
        self._broker.committer.answer(call, call.encode())

    def _ack_one(self, ack: BatchAck, peer: Peer) -> None:
        name = ack.topic if str(ack.retried) == NORMAL else retry_topic(ack.topic, ack.group)
        topic = self._broker.topics.get(name)
        if topic is None or not 0 <= ack.queue < topic.settings.read_queue_nums:
            return
        queue = self._store.queue(topic.stored_name, ack.queue)
        back_ms = ack.pop_time + ack.invisible_time
        if ack.start_offset < 0 or not 0 <= back_ms < 1 << 63:
            return
        for offset in ack.offsets(queue.visible):
            if ack.revive_queue == ORDERED_QUEUE:
                place = Place(ack.group, topic.name, ack.queue)
                self._ordered.acknowledge(place, offset, ack.pop_time, peer)
                continue
            take_pop(
                self._store,
                Pop(back_ms, ack.group.encode(), topic.stored_name, ack.queue, offset),
            )

    def change_invisible_time(self, call: Call) -> None:
        """Set another time for a message to come back (200053)."""
        fields: ChangeInvisibleTime = call.fields
        try:
            pop, handle = self._pop_of(call, fields)
        except RequestError as error:
            error.ext = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0"}
            raise
        now_ms = self._broker.clock.now_ms()
        invisible_ms = max(0, min(fields.invisible_time, LONGEST_INVISIBLE_MS))
        if handle.revive_queue == ORDERED_QUEUE:
            place = Place(fields.consumer_group, fields.topic, fields.queue_id)
            until_ms = now_ms + invisible_ms
            self._ordered.put_off(call, place, fields.offset, handle.pop_time, until_ms)
            return
        if take_pop(self._store, pop):
            later = pop._replace(back_ms=now_ms + invisible_ms)
            put_pops(self._store, [later], now_ms, suspended=fields.suspend)
        frame = call.encode(
            {
                "popTime": str(now_ms),
                "invisibleTime": str(invisible_ms),
                "reviveQid": str(handle.revive_queue),
            }
        )
        self._broker.committer.answer(call, frame)

    def _pop_of(self, call: Call, fields: AckMessage) -> tuple[Pop, Handle]:
        """Return the popped message that a request is about, and its handle.

        :raises RequestError: when there cannot be such a message (AckMessageProcessor).
        """
        topic = self._broker.topics.need(fields.topic)
        count = topic.settings.read_queue_nums
        if not 0 <= fields.queue_id < count:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{fields.queue_id}] is illegal, topic:[{fields.topic}] "
                f"topicConfig.readQueueNums:[{count}] consumer:[/{call.peer.address}]",
            )
        queue = self._store.queue(topic.stored_name, fields.queue_id)
        if not queue.first <= fields.offset <= queue.visible:
            raise RequestError(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{fields.topic}@{fields.queue_id}, commit:{fields.offset}, "
                f"store:{queue.first}~{queue.visible}",
            )
        handle = parse_handle(fields.extra_info)
        back_ms = handle.pop_time + handle.invisible_time
        if not 0 <= back_ms < 1 << 63:
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the handle has impossible times")
        pop = Pop(
            back_ms,
            fields.consumer_group.encode(),
            topic.stored_name,
            fields.queue_id,
            fields.offset,
        )
        return pop, handle

    def revive_due(self) -> bool:
        """Deliver messages again whose invisible time is over: at most `MAX_REVIVED`, and no more once they have
        `MAX_REVIVED_BYTES` together. Called now and then. Return True when there may be more."""
        committer, now_ms = self._broker.committer, self._broker.clock.now_ms()
        if committer.failing or not due_pops(self._store, now_ms, 1):
            return False
        if self._store.has_changes:
            # Commit first, so that a page that LMDB cannot read does not make earlier changes fail. For the same reason
            # all messages are read before any change.
            committer.commit()
        due: list[tuple[PopDue, Page | StorageError]] = []
        size = 0
        for one in due_pops(self._store, now_ms, MAX_REVIVED):
            found = self._find(one.pop)
            due.append((one, found))
            if isinstance(found, Page):
                size += sum(len(message.record) for message in found.messages)
            if size >= MAX_REVIVED_BYTES:
                break
        waits_on: StorageError | None = None
        for one, found in due:
            take_pop(self._store, one.pop)
            try:
                self._revive(one, found)
            except StorageError as error:
                # This message waits for a repair; the others do not.
                later = one.pop._replace(back_ms=now_ms + RETRY_MS)
                put_pops(self._store, [later], one.popped_ms, suspended=one.suspended)
                waits_on = error
        if waits_on is not None:
            # Many may wait like this one: a line for each would fill the log.
            self.log.error(
                "popped messages cannot be delivered again yet: {error}", error=str(waits_on)
            )
        committer.change()
        return len(due) == MAX_REVIVED or size >= MAX_REVIVED_BYTES

    def _find(self, pop: Pop) -> Page | StorageError:
        """Return the message that was popped, or the error that prevents reading it."""
        try:
            return self._store.read(self._store.queue(pop.topic, pop.queue), pop.offset, 1, 1)
        except StorageError as error:
            return error

    def _revive(self, due: PopDue, found: Page | StorageError) -> None:
        if isinstance(found, StorageError):
            raise found
        pop = due.pop
        group = self._broker.groups.get(pop.group.decode())
        name = pop.topic.decode()
        if group is None or self._broker.topics.get(name) is None or not found.messages:
            return  # deleted meanwhile, or too old: nobody could pop it
        if found.messages[0].offset != pop.offset:
            return
        message = decode_message(found.messages[0].record)
        came_back = name.startswith(RETRY_PREFIX)
        back_in = name if came_back else retry_topic(name, group.group_name)
        origin = name.removeprefix(retry_topic("", group.group_name))
        counted = not due.suspended
        dead = counted and message.reconsume_times >= group.retry_max_times
        own = properties = remove(message.properties, (*SET_ANEW, names.ORIGIN_GROUP))
        if find(properties, names.FIRST_POP_TIME) is None:
            properties += f"{names.FIRST_POP_TIME}\x01{due.popped_ms}\x02"
        properties += f"{names.ORIGIN_GROUP}\x01{group.group_name}\x02"
        again = retried(message, 0, properties, counted=counted)
        if dead or not self._comes_in(back_in, again):
            grave = DLQ_PREFIX + group.group_name
            properties = remove(properties, [names.RETRY_TOPIC])
            properties += f"{names.RETRY_TOPIC}\x01{origin}\x02"
            if not self._comes_in(grave, retried(message, 0, properties)):
                # The message matters more than the properties added here. It has had room with its own ones before.
                self._comes_in(grave, retried(message, 0, own))
        self._broker.committer.once_stored(
            partial(self._broker.stats.sent_back, origin, group.group_name)
        )

    def _comes_in(self, name: str, message: NewMessage) -> bool:
        """Store a message in a topic again; return False when its properties are too long for that."""
        try:
            self._broker.intake.accept_again(self._broker.topics.ensure(name), message)
        except RequestError:
            return False
        return True
