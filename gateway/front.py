"""The address that several workers share: where the brokers are, and what all of them hold.

Each worker is a broker with a port, a name and a data folder of its own. Clients ask here for routes, as they ask a
name server, and then talk to the workers themselves. What tools ask here is asked of every worker, and the answers are
made one: `gateway.merging` has the table.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from twisted.internet.protocol import ClientCreator

from gateway.connection import RemotingConnection, RemotingFactory
from gateway.merging import MERGES, ONE_WORKER, Merge
from gateway.outgoing import Outgoing
from gateway.recurring_orders import asks_to_recur
from gateway.router import Peer
from gateway.setting_values import HostPort
from gateway.wire.codes import RequestCode as Code
from gateway.wire.codes import ResponseCode
from gateway.wire.commands import Command, FieldError, encode_response
from gateway.wire.headers import SendMessageV2

PATIENCE: Final = 5.0
"""Seconds that a worker has to answer. One that is starting again does not, and the others answer without it."""


class Link:
    """The way to one worker: a connection that is opened when something is to be asked, and kept.

    :param broker: the worker's name.
    :param address: where the worker listens.
    """

    MOST_REMEMBERED: Final = 10_000

    def __init__(
        self, reactor: Any, factory: RemotingFactory, broker: str, address: HostPort
    ) -> None:
        self.broker = broker
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
    :param changed: told of a change of settings that all workers have made (request 25).
    """

    def __init__(
        self,
        reactor: Any,
        make_factory: Callable[
            [Callable[[Command, RemotingConnection], None], Callable[[RemotingConnection], None]],
            RemotingFactory,
        ],
        changed: Callable[[Command], None],
    ) -> None:
        self._reactor = reactor
        self._changed = changed
        self._outgoing = Outgoing(reactor)
        self.clients = make_factory(self._asked, lambda _: None)
        self._to_workers = make_factory(self._outgoing.answered, self._outgoing.disconnected)
        self._links: dict[int, Link] = {}

    def joined(self, number: int, broker: str, address: HostPort) -> None:
        """A worker listens: for the first time, or again where it did before."""
        if number not in self._links:
            self._links[number] = Link(self._reactor, self._to_workers, broker, address)

    def _asked(self, command: Command, client: Peer) -> None:
        if command.is_response or command.is_oneway:
            return
        links = [self._links[number] for number in sorted(self._links)]
        merge = MERGES.get(command.code)
        if merge is None and _sets_a_recurring_message(command):
            # It must be found where it is when it is set again, and recurs at one of them only.
            merge, links = ONE_WORKER, links[:1]
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
        Question(self._outgoing, command, client, merge, self._done).put(links)

    def _done(self, command: Command) -> None:
        if command.code == Code.UPDATE_BROKER_CONFIG:
            self._changed(command)


def _sets_a_recurring_message(command: Command) -> bool:
    """Whether a request is a send by which a tool has a message recur, or pauses or deletes such a one."""
    if command.code != Code.SEND_MESSAGE_V2:
        return False
    try:
        return asks_to_recur(command.fields(SendMessageV2).properties or "")
    except FieldError:
        return False


class Question:
    """One request that is put to workers, and answered when all have answered or had their time.

    :param done: told of the request where all that were asked have done it.
    """

    def __init__(
        self,
        outgoing: Outgoing,
        command: Command,
        client: Peer,
        merge: Merge,
        done: Callable[[Command], None],
    ) -> None:
        self._outgoing = outgoing
        self._command = command
        self._client = client
        self._merge = merge
        self._done = done
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
        answers = {link.broker: answer for link, answer in self._answers.items()}
        whole = self._merge.decide(answers, self._command)
        self._client.send(
            encode_response(
                self._command.opaque,
                whole.code,
                ext=whole.ext,
                remark=whole.remark,
                body=whole.body,
            )
        )
        if whole.code == ResponseCode.SUCCESS:
            self._done(self._command)
