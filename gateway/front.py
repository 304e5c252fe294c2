"""The address that several workers share: where the brokers are, and what all of them hold.

Each worker is a broker with a port, a name and a data folder of its own. Clients ask here for routes, as they ask a
name server, and then talk to the workers themselves. What tools ask here of messages that have not fired is asked of
every worker, and the answers are made one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from operator import itemgetter
from typing import Any, Final

import msgspec
from twisted.internet.protocol import ClientCreator
from twisted.logger import Logger

from gateway.connection import RemotingConnection, RemotingFactory
from gateway.outgoing import Outgoing
from gateway.router import Peer
from gateway.setting_values import HostPort
from gateway.wire.codes import RequestCode as Code
from gateway.wire.codes import ResponseCode
from gateway.wire.commands import Command, encode_response
from gateway.wire.messages import parse_offset_msg_id
from gateway.wire.pending_bodies import (
    AbortAnswer,
    AbortOutcome,
    HeldMessage,
    HeldPage,
    PauseAnswer,
    PausedTopic,
    PausedTopics,
    RescheduleAnswer,
    RescheduleOutcome,
)

PATIENCE: Final = 5.0
"""Seconds that a worker has to answer. One that is starting again does not, and the others answer without it."""

Answers = list[bytes]
"""The bodies of the workers that answered success, in the workers' order."""


class Link:
    """The way to one worker: a connection that is opened when something is to be asked, and kept.

    :param address: where the worker listens.
    """

    MOST_REMEMBERED: Final = 10_000

    def __init__(self, reactor: Any, factory: RemotingFactory, address: HostPort) -> None:
        creator: Any = ClientCreator
        self._creator = creator(reactor, factory.buildProtocol, address)
        self._address = address
        self._connection: RemotingConnection | None = None
        self._remembered: dict[tuple[int, str | None], Command] = {}

    def answer(self, command: Command, answer: Command | None) -> Command | None:
        """What to go by: where the worker is known to be, that counts also while it is starting again.

        Otherwise clients would forget it meanwhile, and had nowhere to turn to when the next one starts again.
        """
        if answer is not None and answer.code == ResponseCode.GO_AWAY:
            answer = None  # it is stopping
        if command.code not in (Code.GET_ROUTEINFO_BY_TOPIC, Code.GET_BROKER_CLUSTER_INFO):
            return answer
        question = (command.code, command.ext().get("topic"))
        if answer is None:
            return self._remembered.get(question)
        if answer.code == ResponseCode.SUCCESS and len(self._remembered) < self.MOST_REMEMBERED:
            self._remembered[question] = answer
        return answer

    def use(self, ready: Callable[[RemotingConnection | None], None]) -> None:
        """Call with an open connection; with None where there is none to be had."""
        if self._connection is not None and self._connection.open:
            ready(self._connection)
            return
        opening = self._creator.connectTCP(*self._address, PATIENCE)
        opening.addCallbacks(
            lambda connection: self._opened(connection, ready), lambda _: ready(None)
        )

    def _opened(
        self, connection: RemotingConnection, ready: Callable[[RemotingConnection | None], None]
    ) -> None:
        self._connection = connection
        ready(connection)


class Front:
    """Answers at the shared address.

    :param make_factory: a factory of connections, given what to do with a command and with a lost connection.
    """

    log = Logger()

    def __init__(
        self,
        reactor: Any,
        make_factory: Callable[
            [Callable[[Command, RemotingConnection], None], Callable[[RemotingConnection], None]],
            RemotingFactory,
        ],
    ) -> None:
        self._reactor = reactor
        self._outgoing = Outgoing(reactor)
        self.clients = make_factory(self._asked, lambda _: None)
        self._to_workers = make_factory(self._outgoing.answered, self._outgoing.disconnected)
        self._links: dict[int, Link] = {}

    def joined(self, number: int, address: HostPort) -> None:
        """A worker listens: for the first time, or again where it did before."""
        if number not in self._links:
            self._links[number] = Link(self._reactor, self._to_workers, address)

    def _asked(self, command: Command, client: Peer) -> None:
        if command.is_response or command.is_oneway:
            return
        merge = MERGES.get(command.code)
        if merge is None:
            remark = (
                f"request type {command.code} is for one broker, and this is the address that several workers share; "
                "clusterInfo tells where they are"
            )
            client.send(
                encode_response(
                    command.opaque, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark
                )
            )
            return
        Question(self._outgoing, command, client, merge).put(
            [self._links[number] for number in sorted(self._links)]
        )


class Question:
    """One request that is put to every worker, and answered when all have answered or had their time."""

    def __init__(
        self,
        outgoing: Outgoing,
        command: Command,
        client: Peer,
        merge: Callable[[Answers, Command], bytes],
    ) -> None:
        self._outgoing = outgoing
        self._command = command
        self._client = client
        self._merge = merge
        self._answers: dict[Link, Command | None] = {}
        self._missing = 0

    def put(self, links: list[Link]) -> None:
        """Ask."""
        self._missing = len(links)
        if not links:
            self._finish()
        self._answers = dict.fromkeys(links)
        for link in links:
            link.use(partial(self._ask, link))

    def _ask(self, link: Link, connection: RemotingConnection | None) -> None:
        if connection is None:
            self._answered(link, None)
            return
        command = self._command
        self._outgoing.request(
            *(connection, command.code, command.ext(), command.body, PATIENCE),
            partial(self._answered, link),
        )

    def _answered(self, link: Link, answer: Command | None) -> None:
        self._answers[link] = link.answer(self._command, answer)
        self._missing -= 1
        if not self._missing:
            self._finish()

    def _finish(self) -> None:
        answers = [answer for answer in self._answers.values() if answer is not None]
        bodies = [answer.body for answer in answers if answer.code == ResponseCode.SUCCESS]
        opaque = self._command.opaque
        if not answers or (self._command.code in NEED_ALL and len(answers) < len(self._answers)):
            silent = len(self._answers) - len(answers)
            frame = encode_response(
                opaque,
                ResponseCode.SERVICE_NOT_AVAILABLE,
                remark=f"{silent} of {len(self._answers)} workers do not answer; ask again",
            )
        elif bodies:
            frame = encode_response(
                opaque, ResponseCode.SUCCESS, body=self._merge(bodies, self._command)
            )
        else:
            # As they all refuse, what one says will do.
            refusal = answers[0]
            frame = encode_response(
                opaque, refusal.code, ext=refusal.ext(), remark=refusal.remark, body=refusal.body
            )
        self._client.send(frame)


def _merge_route(bodies: Answers, _: Command) -> bytes:
    """A topic's queues at every worker that has it."""
    routes = [msgspec.json.decode(body) for body in bodies]
    merged = {
        "brokerDatas": [broker for route in routes for broker in route["brokerDatas"]],
        "filterServerTable": {},
        "queueDatas": [queues for route in routes for queues in route["queueDatas"]],
    }
    return msgspec.json.encode(merged)


def _merge_clusters(bodies: Answers, _: Command) -> bytes:
    clusters = [msgspec.json.decode(body) for body in bodies]
    brokers: dict[str, object] = {}
    members: dict[str, list[str]] = {}
    for cluster in clusters:
        brokers |= cluster["brokerAddrTable"]
        for name, own in cluster["clusterAddrTable"].items():
            members.setdefault(name, []).extend(own)
    return msgspec.json.encode({"brokerAddrTable": brokers, "clusterAddrTable": members})


def _merge_topics(bodies: Answers, _: Command) -> bytes:
    names = {name: None for body in bodies for name in msgspec.json.decode(body)["topicList"]}
    return msgspec.json.encode({"topicList": list(names)})


def _merge_pages(bodies: Answers, command: Command) -> bytes:
    """One page of what all hold, the next due first.

    A worker's cursor says up to where it has told everything. Behind the least of them nobody knows what comes
    between, so the merged page ends there, or at its limit.
    """
    pages = [msgspec.json.decode(body, type=HeldPage) for body in bodies]
    ext = command.ext()
    is_scan = not (ext.get("id") or ext.get("key"))
    messages = sorted(
        ((_place(message, is_scan), message) for page in pages for message in page.messages),
        key=_first,
    )
    ends = [bytes.fromhex(page.cursor) for page in pages if page.cursor is not None]
    told = [entry for entry in messages if not ends or entry[0] <= min(ends)]
    limit = int(ext.get("limit", len(told)))
    cursor: str | None = None
    if len(told) > limit:
        # Two workers can have messages at the same place; a cursor cannot stand between them.
        end = told[limit - 1][0]
        told = [entry for entry in told if entry[0] <= end]
        cursor = end.hex()
    elif ends:
        cursor = min(ends).hex()
    paused = _add_up(topic for page in pages for topic in page.paused)
    return msgspec.json.encode(HeldPage([message for _, message in told], cursor, paused))


_first = itemgetter(0)


def _place(message: HeldMessage, is_scan: bool) -> bytes:
    """Where a message stands in the order of its worker's pages, as a cursor has it (`PendingMessages.look_up`)."""
    _, sequence = parse_offset_msg_id(message.offset_msg_id)
    due = message.due_ms.to_bytes(8)
    number = sequence.to_bytes(8)
    if not is_scan:
        return due + number
    return due + message.topic.encode() + b"\0" + number + message.msg_id.encode()


def _add_up(topics: Iterable[PausedTopic]) -> list[PausedTopic]:
    """Each paused topic once: since its first pause, with what waits anywhere."""
    found: dict[str, PausedTopic] = {}
    for topic in topics:
        known = found.setdefault(topic.topic, topic)
        if known is not topic:
            found[topic.topic] = msgspec.structs.replace(
                known,
                since_ms=min(known.since_ms, topic.since_ms),
                waiting=known.waiting + topic.waiting,
                resumed=known.resumed and topic.resumed,
            )
    return [found[name] for name in sorted(found)]


def _merge_aborts(bodies: Answers, _: Command) -> bytes:
    """What became of the messages; "unknown" only where no worker knows any."""
    results: list[AbortOutcome] = []
    for body in bodies:
        results += msgspec.json.decode(body, type=AbortAnswer).results
    known = [result for result in results if result.outcome != "unknown"]
    return msgspec.json.encode(AbortAnswer(known or results[:1]))


def _merge_reschedules(bodies: Answers, _: Command) -> bytes:
    results: list[RescheduleOutcome] = []
    for body in bodies:
        results += msgspec.json.decode(body, type=RescheduleAnswer).results
    known = [result for result in results if result.outcome != "unknown"]
    return msgspec.json.encode(RescheduleAnswer(known or results[:1]))


def _merge_pauses(bodies: Answers, _: Command) -> bytes:
    answers = [msgspec.json.decode(body, type=PauseAnswer) for body in bodies]
    return msgspec.json.encode(PauseAnswer(any(answer.changed for answer in answers)))


def _merge_paused(bodies: Answers, _: Command) -> bytes:
    lists = [msgspec.json.decode(body, type=PausedTopics) for body in bodies]
    return msgspec.json.encode(PausedTopics(_add_up(one for each in lists for one in each.topics)))


MERGES: Final[dict[int, Callable[[Answers, Command], bytes]]] = {
    Code.GET_ROUTEINFO_BY_TOPIC: _merge_route,
    Code.GET_BROKER_CLUSTER_INFO: _merge_clusters,
    Code.GET_ALL_TOPIC_LIST: _merge_topics,
    Code.GET_TOPICS_BY_CLUSTER: _merge_topics,
    Code.LOOK_UP_TIMERS: _merge_pages,
    Code.ABORT_TIMERS: _merge_aborts,
    Code.RESCHEDULE_TIMERS: _merge_reschedules,
    Code.PAUSE_TOPIC: _merge_pauses,
    Code.RESUME_TOPIC: _merge_pauses,
    Code.LIST_PAUSED_TOPICS: _merge_paused,
}
"""What is answered at the shared address, and how the workers' answers become one."""

NEED_ALL: Final = frozenset(code for code in MERGES if code >= Code.LOOK_UP_TIMERS)
"""Of these an answer that leaves a worker out would not be true."""
