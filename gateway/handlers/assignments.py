"""Assignments of queues to the members of a group, for pulls or for pops (400, 401)."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

from gateway.broker import Broker
from gateway.pops.consume_modes import POP, PULL
from gateway.router import Call, RequestError
from gateway.topics import PERM_READ
from gateway.wire.admin_bodies import ConsumeMode
from gateway.wire.bodies import MessageQueue, read_body
from gateway.wire.codes import ResponseCode
from gateway.wire.group_topics import RETRY_PREFIX
from gateway.wire.pops import AssignmentRequest, encode_assignments
from gateway.workers.siblings import Siblings

ANY_QUEUE = -1
AVERAGELY, IN_TURN = "AVG", "AVG_BY_CIRCLE"
"""Strategies of sharing out queues: in blocks, or one by one (AllocateMessageQueueStrategy)."""


_Queue = TypeVar("_Queue")


class Assignments:
    """Shares out the queues of topics for clients that leave this to the broker. A client asks one of several workers,
    and gets the queues of all workers.

    :param siblings: the workers, if this gateway is one of several.
    """

    def __init__(self, broker: Broker, siblings: Siblings | None) -> None:
        self._broker = broker
        self._siblings = siblings

    def set_mode(self, call: Call) -> None:
        """Set how a group's members get a topic's messages: by pulls or by pops (401)."""
        asked = read_body(call.command.body, ConsumeMode)
        if asked.topic.startswith(RETRY_PREFIX):
            raise RequestError(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if asked.mode not in (PULL, POP):
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, f"the mode is {PULL} or {POP}, not {asked.mode!r}"
            )
        self._broker.topics.need(asked.topic)
        self._broker.groups.need(asked.consumer_group)
        self._broker.modes.put(asked)
        self._broker.committer.answer(call, call.encode())

    def query(self, call: Call) -> None:
        """Answer with the queues of one member (400)."""
        asked = read_body(call.command.body, AssignmentRequest)
        answer = partial(self._answer, call, asked)
        if self._siblings is None:
            answer(self._own_queues(asked.topic))
        else:
            call.shed()
            self._siblings.readable_queues(asked.topic, answer)

    def _answer(
        self, call: Call, asked: AssignmentRequest, queues: list[MessageQueue] | None
    ) -> None:
        mode = self._broker.modes.get(asked.topic, asked.consumer_group)
        if queues is not None and asked.message_model != "BROADCASTING":
            queues = self._part(queues, asked, mode)
        call.answer(body=encode_assignments(queues, mode.mode))

    def _own_queues(self, name: str) -> list[MessageQueue] | None:
        topic = self._broker.topics.get(name)
        if topic is None or not topic.settings.perm & PERM_READ:
            return None
        numbers = range(topic.settings.read_queue_nums)
        return [self._broker.message_queue(name, number) for number in numbers]

    def _part(
        self, queues: list[MessageQueue], asked: AssignmentRequest, mode: ConsumeMode
    ) -> list[MessageQueue] | None:
        """Return a member's part, or None if it cannot be computed: then the client keeps the queues that it has."""
        group = self._broker.clients.consumer_group(asked.consumer_group)
        if group is None or asked.strategy_name not in (AVERAGELY, IN_TURN):
            return None
        return _share(queues, sorted(group.members), asked, mode)


def _share(
    queues: list[MessageQueue], members: list[str], asked: AssignmentRequest, mode: ConsumeMode
) -> list[MessageQueue]:
    count = len(members)
    if mode.mode == POP and not 0 < mode.pop_share_queue_num < count - 1:
        brokers = dict.fromkeys(queue.broker_name for queue in queues)
        return [MessageQueue(asked.topic, broker, ANY_QUEUE) for broker in brokers]
    if asked.client_id not in members:
        return []
    place = members.index(asked.client_id)
    in_turn = asked.strategy_name == IN_TURN
    if mode.mode != POP:
        return part_of(queues, place, count, in_turn=in_turn)
    if count > len(queues):
        return queues[place % len(queues) :][:1] if queues else []
    shared = {
        queue
        for next_one in range(mode.pop_share_queue_num + 1)
        for queue in part_of(queues, (place + next_one) % count, count, in_turn=in_turn)
    }
    return [queue for queue in queues if queue in shared]


def part_of(queues: list[_Queue], place: int, count: int, *, in_turn: bool) -> list[_Queue]:
    """Return the queues of one of `count` members: all have equally many, except that the first ones have one more."""
    if in_turn:
        return queues[place::count]
    size, more = divmod(len(queues), count)
    begin = place * size + min(place, more)
    return queues[begin : begin + size + (place < more)]
