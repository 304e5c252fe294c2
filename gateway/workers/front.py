"""The shared address of several workers: it answers requests for routes and for what all workers hold together.

Each worker is a broker with its own port, name and data folder. Clients ask here for routes, as they ask a name server,
and then talk to the workers directly. Requests of tools are passed to every worker, and the answers are merged:
`gateway.workers.merging` has the table.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from twisted.internet.defer import Deferred, ensureDeferred, gatherResults
from twisted.logger import Logger

from gateway.connections.connection import RemotingFactory
from gateway.connections.outgoing import MAX_OPAQUE, Outgoing
from gateway.recurring.orders import asks_to_recur
from gateway.router import (
    Peer,
    RequestError,
    check_answer,
    check_number,
    largest_answer,
    overloaded,
)
from gateway.settings.config import Config
from gateway.settings.values import HostPort
from gateway.wire import properties as names
from gateway.wire.admin_bodies import encode_changes, parse_changes
from gateway.wire.bodies import encode_cluster_info
from gateway.wire.codes import RequestCode as Code
from gateway.wire.codes import ResponseCode
from gateway.wire.commands import Command, encode_command, encode_response, request, with_fields
from gateway.wire.fields import FieldError
from gateway.wire.frames import HEADER_LIMIT, JSON, join_frame
from gateway.wire.headers import SendMessageV2
from gateway.wire.pending_bodies import IN_PART
from gateway.wire.properties import parse
from gateway.workers.link import Link
from gateway.workers.merging import (
    MERGES,
    ONE_WORKER,
    WHERE_IT_RECURS,
    Merge,
    Whole,
    unserved,
)
from gateway.workers.siblings import signed
from gateway.workers.taking_turns import TakingTurns
from gateway.workers.vouching import vouched

PATIENCE: Final = 4.0
"""Seconds that a worker has to answer. Tools wait five (`--timeout`, DefaultMQAdminExt), and should learn which worker
does not answer."""

ROUTE_PATIENCE: Final = 2.0
"""Likewise for requests that the other workers can answer without it: clients wait three
(ClientConfig.mqClientApiTimeout)."""

SMALL: Final = 4 << 10
"""Bytes of the header and the body of a small request, such as one for a route."""

MAX_BYTES: Final = 32 << 20
"""Most bytes of larger requests that wait for workers. Each is kept until all workers have answered, and there may be
`max_asked_clients` of them."""

BEFORE_HEADER: Final = len(join_frame(JSON, b""))
"""Bytes of a frame before its header."""

NEEDED_BY_CLIENTS: Final = (Code.GET_ROUTEINFO_BY_TOPIC, Code.GET_BROKER_CLUSTER_INFO)
"""Requests that clients cannot do without. Each takes a worker 0.1 ms, while those of tools may take much longer."""

_LET_IN: Final = (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)
"""The codes with which a worker answers a request for a route if the sender may see it."""


class WorkerLink(Link):
    """The connection to one worker, and its last answers."""

    MOST_REMEMBERED: Final = 10_000

    def __init__(
        self, reactor: Any, factory: RemotingFactory, outgoing: Outgoing, address: HostPort
    ) -> None:
        super().__init__(reactor, factory, outgoing, address)
        self._remembered: dict[tuple[int, str | None], Command] = {}
        self.serves = False
        """Whether the worker is known to serve. If not, nothing waits for it."""

    def told(self, command: Command, answer: Command | None) -> Command | None:
        """Remember a successful answer about routes or the cluster. Return the answer; None from a worker that is
        stopping."""
        if answer is None or answer.code == ResponseCode.GO_AWAY:
            return None
        if command.code in NEEDED_BY_CLIENTS:
            question = _question(command)
            if answer.code in _LET_IN:
                self._remembered.pop(question, None)
            if answer.code == ResponseCode.SUCCESS:
                if len(self._remembered) >= self.MOST_REMEMBERED:
                    del self._remembered[next(iter(self._remembered))]
                self._remembered[question] = answer
        return answer

    def remembered(self, command: Command) -> Command | None:
        """Return the last successful answer to a request about routes or the cluster, to use while the worker restarts.

        Without it clients would forget the worker, and would know none when the next one restarts.
        """
        return self._remembered.get(_question(command))


def _question(command: Command) -> tuple[int, str | None]:
    """Return what tells a request from others that are answered differently. Fields that mean nothing do not count."""
    is_about_a_topic = command.code == Code.GET_ROUTEINFO_BY_TOPIC
    return command.code, command.ext().get("topic") if is_about_a_topic else None


class Front:
    """Answers requests at the shared address.

    :param brokers: the workers' names, in their order.
    :param changed: called with a change of settings that all workers have made (request 25).
    :param key: the key by which the workers recognize this process.
    """

    def __init__(
        self,
        reactor: Any,
        config: Config,
        brokers: Iterable[str],
        changed: Callable[[Command], None],
        key: str,
    ) -> None:
        self._reactor = reactor
        self._changed = changed
        self._key = key.encode()
        # What waits for workers is counted here, and not once for each worker.
        self._outgoing = Outgoing(reactor, sys.maxsize)
        self.clients = RemotingFactory(reactor, self._asked, lambda _: None, config)
        self._to_workers = RemotingFactory(
            *(reactor, self._outgoing.answered, self._outgoing.disconnected, config),
            always_reads=True,
        )
        # None until the worker's address is known.
        self._links: dict[str, WorkerLink | None] = dict.fromkeys(brokers)
        self._held = 0
        self._turns = TakingTurns(reactor)
        self.port = config.listen.port
        """The port that clients are configured with."""
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Apply new settings."""
        self._is_open = not config.authentication
        self._cluster = config.cluster_name
        self._most_bytes = largest_answer(config)
        self._outgoing.configure(config)
        self.clients.configure(config)
        self._to_workers.configure(config)

    def expected(self, broker: str, address: HostPort, advertised: HostPort) -> None:
        """Note where a worker listens, or will listen.

        :param advertised: the address that it gives to clients. Tools get it also while the worker does not serve:
            otherwise they would leave it out of a change of all brokers, and report success.
        """
        link = self._links[broker]
        if link is None:
            link = self._links[broker] = WorkerLink(
                self._reactor, self._to_workers, self._outgoing, address
            )
        where = encode_cluster_info(self._cluster, broker, str(advertised))
        link.told(Command(code=Code.GET_BROKER_CLUSTER_INFO), Command(body=where))

    def joined(self, broker: str, address: HostPort, advertised: HostPort) -> None:
        """Note that a worker listens, for the first time or again. For the parameters see `expected`."""
        self.expected(broker, address, advertised)
        self.serves(broker)

    def serves(self, broker: str) -> None:
        """Note that a worker that has joined serves, perhaps again."""
        link = self._links[broker]
        if link is not None:
            link.serves = True

    def left(self, broker: str) -> None:
        """Note that a worker has stopped serving, or hangs: it gets no requests."""
        link = self._links[broker]
        if link is not None:
            link.serves = False

    def worker_for(self, client: object, topic: str, name: str) -> Deferred[str]:
        """Return which worker a recurring message is to be set at: the one that has the one of that name, so that it is
        replaced; for a new one, the first worker. They are asked in the workers' own name: a sender's signature is for
        the send alone, and who may set a recurring message need not be permitted to read it.

        :param client: who asks: clients take turns.
        :returns: the worker's name, or a RequestError where that cannot be told.
        """
        answer: Deferred[str] = Deferred()

        def found(whole: Whole) -> None:
            if whole.code == ResponseCode.SUCCESS:
                answer.callback(whole.body.decode())
            elif whole.code == ResponseCode.MESSAGE_ILLEGAL:
                answer.callback(next(iter(self._links)))
            else:
                answer.errback(RequestError(whole.code, whole.remark or "", whole.ext))

        fields = {"topic": topic, "name": name, "times": "1"}
        look = request(Code.NEXT_RECURRING, signed(fields, self._key))
        self._pass_on(look, client, WHERE_IT_RECURS, self._links, found)
        return answer

    async def without_users(self) -> list[int]:
        """Return the numbers of the workers that report no users. Workers that refuse to answer, or do not answer, are
        not among them; call this while authentication is off."""
        links = {
            number: link
            for number, link in enumerate(self._links.values())
            if link is not None and link.serves
        }
        answers = await gatherResults([self._users(link) for link in links.values()])
        return [
            number
            for number, answer in zip(links, answers, strict=True)
            if answer is not None and answer.code == ResponseCode.SUCCESS and not answer.body
        ]

    def _users(self, link: WorkerLink) -> Deferred[Command | None]:
        answer: Deferred[Command | None] = Deferred()
        link.ask(Code.AUTH_LIST_USER, {}, b"", PATIENCE, answer.callback)
        return answer

    def _asked(self, command: Command, client: Peer) -> None:
        if command.is_response or command.is_oneway:
            return
        # Fields that cannot be read as text end the connection here, before anything is counted.
        command.ext()
        if not self._is_open:
            command = with_fields(command, vouched(client.source, self._key))
        held = _held_by(command)
        try:
            self._check_size(command, held)
        except RequestError as error:
            self._answer(command, client, 0, Whole(code=error.code, remark=error.remark))
            return
        self._held += held
        answer = partial(self._answer, command, client, held)
        merge = MERGES.get(command.code)
        if merge is not None:
            self._pass_on(command, client, merge, self._links, answer)
            return
        recurring = _recurring_message_of(command)
        if recurring is not None:
            ensureDeferred(self._pass_on_where_it_recurs(command, client, recurring, answer))
            return
        remark = (
            f"request type {command.code} is for one broker, and this is the address that several workers share; "
            "send it to one of them; mqadmin clusterList shows their addresses"
        )
        answer(Whole(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark))

    async def _pass_on_where_it_recurs(
        self,
        command: Command,
        client: Peer,
        recurring: tuple[str, str],
        answer: Callable[[Whole], None],
    ) -> None:
        """Pass on a send that sets a recurring message.

        :param recurring: its topic and name.
        """
        try:
            broker = await self.worker_for(client, *recurring)
        except RequestError as error:
            answer(Whole(ext=error.ext, code=error.code, remark=error.remark))
            return
        owner = {broker: self._links[broker]}
        self._pass_on(command, client, ONE_WORKER, owner, answer)

    def _pass_on(
        self,
        command: Command,
        client: object,
        merge: Merge,
        links: Mapping[str, WorkerLink | None],
        answer: Callable[[Whole], None],
    ) -> None:
        """Pass a request on to workers: one that clients need at once, and one of a tool when it is its turn."""
        patience = PATIENCE if merge.needs_all else ROUTE_PATIENCE

        def answered(whole: Whole) -> None:
            self._turns.done()
            answer(whole)

        def give_up() -> None:
            remark = f"the workers were busy for {patience:g} s: none was asked; ask again"
            answer(Whole(code=ResponseCode.SYSTEM_BUSY, remark=remark))

        try:
            self._outgoing.check_room(len(links) + self._turns.waiting)
            if command.code in NEEDED_BY_CLIENTS:
                Question(command, merge, links, self._is_open, answer).put(patience)
            else:
                question = Question(command, merge, links, self._is_open, answered)
                self._turns.put(client, patience, question.put, give_up)
        except RequestError as error:
            answer(Whole(code=error.code, remark=error.remark))

    def _check_size(self, command: Command, held: int) -> None:
        """Refuse a large request while others wait that are too large together, or while a worker that serves has not
        read the last one. Refuse one that grows too large when it is passed on, as by escapes: a worker would close the
        connection, on which the requests of others wait too.

        :raises RequestError: in these cases.
        """
        if not held:
            return
        head = len(encode_command(command.code, MAX_OPAQUE, ext=command.ext()))
        check_number("bytes of a header as JSON", head - BEFORE_HEADER, HEADER_LIMIT)
        check_number("bytes of a request", head + len(command.body), self.clients.max_frame_size)
        links = self._links.values()
        is_congested = any(link is not None and link.serves and link.is_congested for link in links)
        if is_congested or (self._held and self._held + held > MAX_BYTES):
            raise overloaded("bytes of requests that wait for workers", MAX_BYTES)

    def _answer(self, command: Command, client: Peer, held: int, whole: Whole) -> None:
        self._held -= held
        if command.code == Code.GET_NAMESRV_CONFIG and whole.code == ResponseCode.SUCCESS:
            # Each worker has told its own port, and it is not the workers that are asked as a name server.
            settings = parse_changes(whole.body) | {"listenPort": str(self.port)}
            whole = whole._replace(body=encode_changes(settings))
        frame = _frame(command, whole)
        try:
            check_answer(len(frame), self._most_bytes)
        except RequestError as error:
            merge, refusal = MERGES.get(command.code), Whole(code=error.code, remark=error.remark)
            if merge is not None and merge.changes:
                refusal = refusal._replace(remark=f"done, but {error.remark}", ext=IN_PART)
            frame = _frame(command, refusal)
        client.send(frame)
        if command.code == Code.UPDATE_BROKER_CONFIG and whole.code == ResponseCode.SUCCESS:
            self._changed(command)


def _frame(command: Command, whole: Whole) -> bytes:
    return encode_response(
        command.opaque, whole.code, ext=whole.ext, remark=whole.remark, body=whole.body
    )


def _held_by(command: Command) -> int:
    """Return the bytes that a request takes while it waits; 0 if it is small."""
    size = len(command.header) + len(command.body)
    return size if size > SMALL else 0


def _recurring_message_of(command: Command) -> tuple[str, str] | None:
    """Return topic and name of the recurring message that a send sets, pauses or deletes; None for any other
    request."""
    if command.code != Code.SEND_MESSAGE_V2:
        return None
    try:
        fields = command.fields(SendMessageV2)
    except FieldError:
        return None
    properties = parse(fields.properties or "")
    if not asks_to_recur(properties):
        return None
    return fields.topic, properties.get(names.RECUR_NAME, "")


class Question:
    """A request that is passed to workers, and answered when all have answered or their time is over.

    :param links: the connections to these workers; None for a worker whose address is not known yet, which counts as
        not answering.
    :param is_open: whether everybody may have a worker's remembered answers; otherwise each request asks the workers.
    :param answer: called once with the answer.
    """

    log = Logger()

    def __init__(
        self,
        command: Command,
        merge: Merge,
        links: Mapping[str, WorkerLink | None],
        is_open: bool,
        answer: Callable[[Whole], None],
    ) -> None:
        self._command = command
        self._merge = merge
        self._links = links
        self._is_open = is_open
        self._answer = answer
        self._answers: dict[str, Command | None] = dict.fromkeys(links)
        self._missing = len(links)

    def put(self, patience: float) -> None:
        """Pass the request to the workers. If it needs all workers and one is known not to serve, pass it to none:
        otherwise a change would be made in part.

        :param patience: seconds that the workers have to answer.
        """
        serving = {
            broker: link for broker, link in self._links.items() if link is not None and link.serves
        }
        lacking = [broker for broker in self._links if broker not in serving]
        if lacking and self._merge.needs_all:
            remark = unserved(lacking, len(self._links))
            self._answer(Whole(code=ResponseCode.SERVICE_NOT_AVAILABLE, remark=remark))
            return
        for broker in lacking:
            self._answered(broker, None)
        command = self._command
        for broker, link in serving.items():
            told = partial(self._told, broker, link)
            link.ask(command.code, command.ext(), command.body, patience, told)

    def _told(self, broker: str, link: WorkerLink, answer: Command | None) -> None:
        self._answered(broker, link.told(self._command, answer))

    def _answered(self, broker: str, answer: Command | None) -> None:
        self._answers[broker] = answer
        self._missing -= 1
        if not self._missing:
            self._finish()

    def _finish(self) -> None:
        answers = self._answers
        given = [answer for answer in answers.values() if answer is not None]
        if self._is_open or any(answer.code in _LET_IN for answer in given):
            for broker, link in self._links.items():
                if answers[broker] is None and link is not None:
                    answers[broker] = link.remembered(self._command)
        try:
            whole = self._merge.decide(answers, self._command)
        except Exception as error:  # noqa: BLE001 - without an answer the request would count as waiting for ever
            self.log.failure("the answers to request {code} have no whole", code=self._command.code)
            whole = Whole(
                code=ResponseCode.SYSTEM_ERROR,
                remark=f"{type(error).__name__}: {error}",
                ext=IN_PART if self._merge.changes else None,
            )
        self._answer(whole)
