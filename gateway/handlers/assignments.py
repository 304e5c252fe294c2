"""Which queues a member of a group gets, and whether by pulls or by pops (400, 401)."""

from __future__ import annotations

from gateway.broker import Broker
from gateway.consume_modes import POP, PULL, ConsumeModes
from gateway.router import Call, RequestError
from gateway.topics import PERM_READ, RETRY_PREFIX
from gateway.wire.admin_bodies import ConsumeMode, parse_consume_mode
from gateway.wire.bodies import MessageQueue
from gateway.wire.codes import ResponseCode
from gateway.wire.pops import AssignmentRequest, encode_assignments, parse_assignment_request

ANY_QUEUE = -1
AVERAGELY, IN_TURN = "AVG", "AVG_BY_CIRCLE"
"""How queues are shared out: in blocks, or one by one (AllocateMessageQueueStrategy)."""


class Assignments:
    """Shares out the queues of topics, for clients that leave it to the server."""

    def __init__(self, broker: Broker, modes: ConsumeModes) -> None:
        self._broker = broker
        self._modes = modes

    def set_mode(self, call: Call) -> None:
        """Choose how a group's members get a topic's messages (401)."""
        asked = parse_consume_mode(call.command.body)
        if asked.topic.startswith(RETRY_PREFIX):
            raise RequestError(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if asked.mode not in (PULL, POP):
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, f"the mode is {PULL} or {POP}, not {asked.mode!r}"
            )
        self._modes.put(asked)
        self._broker.committer.answer(call, call.encode())

    def query(self, call: Call) -> None:
        """The queues of one member (400)."""
        asked = parse_assignment_request(call.command.body)
        mode = self._modes.get(asked.topic, asked.consumer_group)
        call.answer(body=encode_assignments(self._queues(asked, mode), mode.mode))

    def _queues(self, asked: AssignmentRequest, mode: ConsumeMode) -> list[MessageQueue] | None:
        """None where nothing can be said: the client goes on with what it has."""
        topic = self._broker.topics.get(asked.topic)
        if topic is None or not topic.settings.perm & PERM_READ:
            return None
        numbers = list(range(topic.settings.read_queue_nums))
        if asked.message_model != "BROADCASTING":
            group = self._broker.clients.consumer_group(asked.consumer_group)
            if group is None or asked.strategy_name not in (AVERAGELY, IN_TURN):
                return None
            numbers = _share(numbers, sorted(group.members), asked, mode)
        return [self._broker.message_queue(asked.topic, number) for number in numbers]


def _share(
    queues: list[int], members: list[str], asked: AssignmentRequest, mode: ConsumeMode
) -> list[int]:
    count = len(members)
    if mode.mode == POP and not 0 < mode.pop_share_queue_num < count - 1:
        return [ANY_QUEUE] if queues else []
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
    return sorted(shared)


def part_of(queues: list[int], place: int, count: int, *, in_turn: bool) -> list[int]:
    """The queues of one of `count` members: each has the same number, the first ones one more."""
    if in_turn:
        return queues[place::count]
    size, more = divmod(len(queues), count)
    begin = place * size + min(place, more)
    return queues[begin : begin + size + (place < more)]
