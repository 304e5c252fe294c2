"""Offsets: a group's progress (14, 15), and a queue's ends and times (29, 30, 31, 32)."""

from __future__ import annotations

from gateway.broker import Broker
from gateway.router import Call, RequestError
from gateway.topics import MAX_QUEUES
from gateway.wire.codes import ResponseCode
from gateway.wire.headers import (
    GetEarliestStoreTime,
    GetMaxOffset,
    GetMinOffset,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)
from storage import Queue

NO_QUEUE = Queue(b"", 0, 0, 0)


class Offsets:
    """Answers requests about offsets."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store

    def query(self, call: Call) -> None:
        """Answer with a group's progress in a queue. A group without progress starts at the queue's first message if
        that is still there, whatever the client's settings say. If it is gone, the client decides
        (ConsumerManageProcessor.queryConsumerOffset).

        Where the queue is empty, all clients would decide to start at its end. They are told it at once: upstream they
        have to ask for it, and skip the messages that come in between.
        """
        fields: QueryConsumerOffset = call.fields
        offset = self._store.progress.get(
            fields.consumer_group.encode(), fields.topic.encode(), fields.queue_id
        )
        if offset is None:
            if fields.set_zero_if_not_found is False:
                raise RequestError(
                    ResponseCode.QUERY_NOT_FOUND,
                    "Not found, do not set to zero, maybe this group boot first",
                )
            queue = self._queue(fields.topic, fields.queue_id)
            begin = self._broker.topics.begin_of(fields.topic, fields.queue_id)
            offset = max(begin, queue.first)
            if queue is NO_QUEUE or offset not in (begin, queue.visible):
                raise RequestError(
                    ResponseCode.QUERY_NOT_FOUND,
                    "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
                )
        call.answer({"offset": str(offset)})

    def update(self, call: Call) -> None:
        """Record a group's progress; it is on disk within a second (upstream: five)."""
        fields: UpdateConsumerOffset = call.fields
        if self._broker.groups.get(fields.consumer_group) is None:
            # Unlike a pull, this does not create the group (ConsumerManageProcessor.updateConsumerOffset).
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"Group {fields.consumer_group} not exist!",
            )
        if self._broker.topics.get(fields.topic) is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {fields.topic} not exist!")
        queue_id, offset = fields.queue_id, fields.commit_offset
        if queue_id is None or offset is None:
            missing = "QueueId" if queue_id is None else "Offset"
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, f"{missing} is null, topic is {fields.topic}"
            )
        if queue_id >= MAX_QUEUES:
            # Upstream takes any number. Here each is a row that stays, in memory too. Lower ones count even if the
            # topic has no such queue now, as it may have had it, or get it again.
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"topic {fields.topic} cannot have a queue {queue_id}; topics have up to {MAX_QUEUES}",
            )
        resets = self._broker.resets
        if resets.find(fields.consumer_group, fields.topic, queue_id) is not None:
            call.answer(remark="Offset has been previously reset")
            return
        if offset == -1:
            # The Go client (2.1.2) sends this for a queue that it has got no message from yet. Upstream then forgets
            # the group's progress.
            call.answer()
            return
        try:
            self._store.progress.note(
                fields.consumer_group.encode(), fields.topic.encode(), queue_id, offset
            )
        except ValueError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        call.answer()

    def search(self, call: Call) -> None:
        """Answer with the first offset stored at a time or later, or the queue's end. With `upper`, answer with the
        last offset stored up to that time, or the first one that the queue holds."""
        fields: SearchOffset = call.fields
        queue = self._queue(fields.topic, fields.queue_id)
        if fields.boundary_type is not None and fields.boundary_type.lower() == "upper":
            offset = max(queue.first, self._store.offset_at(queue, fields.timestamp + 1) - 1)
        else:
            offset = self._store.offset_at(queue, fields.timestamp)
        call.answer({"offset": str(offset)})

    def max_offset(self, call: Call) -> None:
        """Answer with the offset of a queue's next message, or 0 for an unknown queue."""
        fields: GetMaxOffset = call.fields
        call.answer({"offset": str(self._queue(fields.topic, fields.queue_id).visible)})

    def min_offset(self, call: Call) -> None:
        """Answer with the oldest offset that a queue holds, or 0 for an unknown queue."""
        fields: GetMinOffset = call.fields
        call.answer({"offset": str(self._queue(fields.topic, fields.queue_id).first)})

    def earliest_time(self, call: Call) -> None:
        """Answer with the time at which a queue's oldest message was stored, or -1 if the queue is empty."""
        fields: GetEarliestStoreTime = call.fields
        queue = self._queue(fields.topic, fields.queue_id)
        stored_ms = self._store.stored_ms(queue, queue.first)
        call.answer({"timestamp": str(-1 if stored_ms is None else stored_ms)})

    def _queue(self, name: str, number: int) -> Queue:
        """Return a queue. For one that does not exist, return an empty queue without asking the store, which would keep
        it in memory."""
        topic = self._broker.topics.get(name)
        if topic is None or not 0 <= number < topic.queues:
            return NO_QUEUE
        return self._store.queue(topic.stored_name, number)
