"""Pulls (11, 361): return messages from a queue, at once or as soon as there are any."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from functools import partial

from twisted.logger import Logger

from gateway.broker import Broker
from gateway.filters import (
    TAG,
    Expression,
    Filter,
    FilterError,
    expression_of,
    filter_of,
    is_tag_type,
    unsupported,
    weight_of,
)
from gateway.reactor import Reactor
from gateway.router import Call, Peer, RequestError, answer_failure
from gateway.settings.config import Config
from gateway.topics import NOT_FOUND_HELP, PERM_READ, Topic
from gateway.wire.bodies import GroupSettings
from gateway.wire.codes import PullSysFlag, ResponseCode
from gateway.wire.commands import pull_response
from gateway.wire.headers import PullMessage
from gateway.wire.messages import stamp_at
from storage import Queue, StoredMessage

LONGEST_SUSPENSION = 25.0
"""Longest wait of a pull in seconds: Java's clients give up after 30 s."""

_GROUP_FORBIDDEN, _TOPIC_FORBIDDEN, _BROADCASTING_FORBIDDEN = 2, 3, 4
"""What forbids a pull: the group, the topic, or broadcasting (ForbiddenType)."""

_NO_FILTER_ASKED_FOR = (
    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    "parse the consumer's subscription failed",
)
_NO_FILTER_KNOWN = (
    ResponseCode.FILTER_DATA_NOT_EXIST,
    "The broker's consumer filter data is not exist!Your expression may be wrong!",
)


class Pull:
    """A pull that waits in the `ParkingLot` for its queue to grow."""

    __slots__ = (
        "_pulling",
        "call",
        "deadline",
        "filter",
        "offset",
        "queue",
        "subscribed",
        "weight",
    )

    kind = None
    """Each pull has its own offset."""

    def __init__(
        self,
        pulling: Pulling,
        call: Call,
        queue: Queue,
        offset: int,
        wanted: Filter,
        subscribed: Expression | None,
    ) -> None:
        self._pulling = pulling
        self.call = call
        self.queue = queue
        self.offset = offset
        self.filter = wanted
        # The group's expression that the filter is of; None where the pull brought another one.
        self.subscribed = subscribed
        self.deadline = 0.0
        # The expression of a group counted with its heartbeat.
        self.weight = 1 if subscribed is not None else weight_of(call.fields.subscription or "")

    @property
    def peer(self) -> Peer:
        """See `Parked`."""
        return self.call.peer

    @property
    def alive(self) -> bool:
        """False once the client has disconnected."""
        return self.call.peer.open

    @property
    def tag_hashes(self) -> AbstractSet[int] | None:
        """Hashes of the tags that the pull accepts; None for any tag."""
        return self.filter.tag_hashes

    def retry(self, first: int) -> bool:
        """See `Parked`."""
        return self._pulling.retry(self, first)

    def give_up(self) -> None:
        """Answer that there are no messages."""
        # No message that the filter rejects has woken this pull: skip them.
        self.offset = max(self.offset, self.queue.visible)
        self._pulling.give_up(self)

    def fail(self, error: Exception) -> None:
        """See `Parked`."""
        answer_failure(self.call, error, Pulling.log)


class Pulling:
    """Answers pulls."""

    log = Logger()

    def __init__(self, broker: Broker, reactor: Reactor) -> None:
        self._broker = broker
        self._reactor = reactor
        self._store = broker.store
        broker.follow(self._configure)

    def _configure(self, config: Config) -> None:
        self._max_messages = config.max_pull_messages
        self._max_bytes = config.max_pull_bytes
        self._by_properties = config.property_filter

    def pull(self, call: Call) -> None:
        """Answer with messages from an offset on. If there are none, wait for one, provided that the client allows
        it."""
        fields: PullMessage = call.fields
        wanted, subscribed = self._check(call)
        queue = self._store.queue(fields.topic.encode(), fields.queue_id)
        if self._broker.resets.offsets and self.answer_reset(call, queue):
            return
        if fields.sys_flag & PullSysFlag.COMMIT_OFFSET and fields.commit_offset >= 0:
            self._store.progress.note(
                fields.consumer_group.encode(), queue.topic, queue.number, fields.commit_offset
            )
        offset = fields.queue_offset
        pull = Pull(self, call, queue, offset, wanted, subscribed)
        if not self._is_in_range(pull) or (offset < queue.visible and self.deliver(pull)):
            return
        # When the filter skipped messages, answer at once, so that the client can commit the new offset.
        has_skipped = pull.offset != offset
        may_wait = fields.sys_flag & PullSysFlag.SUSPEND and fields.suspend_timeout_millis > 0
        if may_wait and not has_skipped:
            self._broker.parked.check_room(pull.weight, call.peer)
            wait = min(fields.suspend_timeout_millis / 1000, LONGEST_SUSPENSION)
            pull.deadline = self._reactor.seconds() + wait
            call.shed()
            # The first two are in the filter, and the others mean nothing here; a client can fill them with 1 MB.
            fields.subscription = fields.expression_type = None
            fields.proxy_froward_client_id = fields.lite_topic = None
            self._broker.parked.park(pull)
        else:
            self.answer_nothing(pull)

    def retry(self, pull: Pull, first: int) -> bool:
        """Look again for messages for a waiting pull; return False when it has to wait on.

        :raises RequestError: when the client may not pull any more, as where its topic was deleted: nobody may read
            what the topic still holds.
        """
        fields: PullMessage = pull.call.fields
        self._check_permissions(fields, self._broker.groups.get(fields.consumer_group))
        if self._broker.resets.offsets and self.answer_reset(pull.call, pull.queue):
            return True
        if self._is_outdated(pull):
            # Its client pulls again, and then the new expression counts, also for what came meanwhile.
            self.answer_nothing(pull)
            return True
        pull.offset = max(pull.offset, first)
        return self.deliver(pull)

    def give_up(self, pull: Pull) -> None:
        """Answer a pull that has waited in vain; to one that goes by a subscription that is gone, say that instead."""
        fields: PullMessage = pull.call.fields
        if not fields.sys_flag & PullSysFlag.SUBSCRIPTION:
            try:
                self._subscription(fields, may_broadcast=True)
            except RequestError as error:
                pull.fail(error)
                return
        self.answer_nothing(pull)

    def _is_outdated(self, pull: Pull) -> bool:
        """Whether a pull waits for what its group has subscribed to before, or its client: that one would drop what its
        expression of then does not match."""
        fields: PullMessage = pull.call.fields
        group = self._broker.clients.consumer_group(fields.consumer_group)
        if pull.subscribed is None or group is None or fields.topic not in group.subscriptions:
            return False
        now = expression_of(group.subscriptions[fields.topic])
        return now != pull.subscribed or group.has_newer(
            fields.topic, pull.call.peer, fields.sub_version
        )

    def _subscribed(self, fields: PullMessage) -> Expression | None:
        """Return the expression by which the group subscribes to the topic now; None if it does not."""
        group = self._broker.clients.consumer_group(fields.consumer_group)
        subscription = group.subscriptions.get(fields.topic) if group is not None else None
        return expression_of(subscription) if subscription is not None else None

    def deliver(self, pull: Pull) -> bool:
        """Answer with the messages at the pull's offset; return False when none matches yet."""
        fields: PullMessage = pull.call.fields
        queue = pull.queue
        page = self._store.read(
            queue,
            pull.offset,
            max(1, min(fields.max_msg_nums, self._max_messages)),
            self._most_bytes(fields.max_msg_bytes),
            *pull.filter,
        )
        pull.offset = page.next_offset
        if page.messages:
            body = _body(page.messages)
            self._broker.stats.handed_out(
                fields.topic,
                fields.consumer_group,
                queue.number,
                pull.offset,
                len(page.messages),
                len(body),
            )
            self._answer(pull, ResponseCode.SUCCESS, "FOUND", body)
            return True
        if pull.offset < queue.visible:
            # One read skipped as many messages as it may: the client pulls again for the rest.
            self._answer(pull, ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
            return True
        return False

    def _most_bytes(self, asked: int | None) -> int:
        """Return the most bytes of an answer. RocketMQ 5.5.0 ignores what a pull asks for; 0 or less sets no limit."""
        return self._max_bytes if asked is None or asked <= 0 else min(asked, self._max_bytes)

    def answer_reset(self, call: Call, queue: Queue) -> bool:
        """Answer with the offset that an operator reset the group to, once the reset is on disk. Return False when no
        reset waits for the client."""
        fields: PullMessage = call.fields
        place = (fields.consumer_group, fields.topic, queue.number)
        resets, committer = self._broker.resets, self._broker.committer
        offset = resets.find(*place)
        if offset is None:
            return False
        committer.once_stored(partial(resets.picked_up, *place, offset))
        frame = pull_response(
            call.command.opaque,
            ResponseCode.PULL_OFFSET_MOVED,
            "OFFSET_RESET",
            offset,
            queue.first,
            queue.visible,
        )
        committer.answer(call, frame)
        return True

    def answer_nothing(self, pull: Pull) -> None:
        """Answer that there are no messages, or none that match."""
        if pull.offset != pull.call.fields.queue_offset:
            self._answer(pull, ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
            return
        remark = "OFFSET_OVERFLOW_ONE" if pull.queue.visible else "NO_MESSAGE_IN_QUEUE"
        self._answer(pull, ResponseCode.PULL_NOT_FOUND, remark)

    def _answer(self, pull: Pull, code: int, remark: str, body: bytes | bytearray = b"") -> None:
        call, queue = pull.call, pull.queue
        if not body:
            self._broker.stats.missed += 1
        call.send(
            pull_response(
                call.command.opaque,
                code,
                remark,
                pull.offset,
                queue.first,
                queue.visible,
                body,
            )
        )

    def _is_in_range(self, pull: Pull) -> bool:
        """Return whether the queue holds the offset or ends at it. If not, answer with the offset to go on from."""
        queue, offset = pull.queue, pull.offset
        if queue.first <= offset <= queue.visible:
            return True
        if offset < queue.first:
            pull.offset, remark = queue.first, "OFFSET_TOO_SMALL"
        elif queue.visible == 0:
            pull.offset, remark = 0, "NO_MESSAGE_IN_QUEUE"
        else:
            pull.offset, remark = queue.visible, "OFFSET_OVERFLOW_BADLY"
        self._answer(pull, ResponseCode.PULL_OFFSET_MOVED, remark)
        return False

    def _check_permissions(self, fields: PullMessage, group: GroupSettings | None) -> Topic:
        """Return the topic of a pull.

        :raises RequestError: when there is none, or the topic or the group may not be read.
        """
        if group is not None and not group.consume_enable:
            raise _forbidden(
                _GROUP_FORBIDDEN, f"subscription group no permission, {fields.consumer_group}"
            )
        topic = self._broker.topics.need(fields.topic)
        if not topic.settings.perm & PERM_READ:
            raise _forbidden(
                _TOPIC_FORBIDDEN, f"the topic[{fields.topic}] pulling message is forbidden"
            )
        return topic

    def _check(self, call: Call) -> tuple[Filter, Expression | None]:
        """Return the filter of a pull, and the expression of its group that it is of, None where the pull has another.

        :raises RequestError: when the client may not pull here (PullMessageProcessor).
        """
        fields: PullMessage = call.fields
        group = self._broker.groups.need(fields.consumer_group)
        topic = self._check_permissions(fields, group)
        if not 0 <= fields.queue_id < topic.settings.read_queue_nums:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{fields.queue_id}] is illegal, topic:[{fields.topic}] "
                f"topicConfig.readQueueNums:[{topic.settings.read_queue_nums}] "
                f"consumer:[/{call.peer.address}]",
            )
        if fields.sys_flag & PullSysFlag.SUBSCRIPTION:
            expression = Expression(fields.subscription or "", fields.expression_type or TAG)
            subscribed = self._subscribed(fields)
            if subscribed != expression:
                subscribed = None
            code, remark = _NO_FILTER_ASKED_FOR
        else:
            expression = subscribed = self._subscription(
                fields, may_broadcast=group.consume_broadcast_enable
            )
            code, remark = _NO_FILTER_KNOWN
        try:
            wanted = filter_of(*expression)
        except FilterError as error:
            raise RequestError(code, f"{remark}: {error}") from error
        if not self._by_properties and not is_tag_type(expression.type):
            raise unsupported(expression.type)
        return wanted, subscribed

    def _subscription(self, fields: PullMessage, *, may_broadcast: bool) -> Expression:
        """Return the expression that the group's heartbeats subscribe with, and its type."""
        group = self._broker.clients.consumer_group(fields.consumer_group)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group info not exist{NOT_FOUND_HELP}",
            )
        if group.data.is_broadcasting and not may_broadcast:
            raise _forbidden(
                _BROADCASTING_FORBIDDEN,
                f"the consumer group[{fields.consumer_group}] can not consume by broadcast way",
            )
        subscription = group.subscriptions.get(fields.topic)
        if subscription is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist{NOT_FOUND_HELP}",
            )
        if subscription.sub_version < fields.sub_version:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        return expression_of(subscription)


def _body(messages: list[StoredMessage]) -> bytearray:
    """Return messages as an answer holds them: one record after the other, each with its place in the queue."""
    body = bytearray().join([message.record for message in messages])
    position = 0
    for record, offset, stored_ms, _ in messages:
        stamp_at(body, position, offset, stored_ms)
        position += len(record)
    return body


def _forbidden(by: int, remark: str) -> RequestError:
    return RequestError(ResponseCode.NO_PERMISSION, remark, {"forbiddenType": str(by)})
