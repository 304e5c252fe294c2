"""Calls the handler of each request, and turns every error into an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from twisted.logger import Logger

from gateway.access.policies import Action
from gateway.settings.config import Config
from gateway.wire.codes import ResponseCode
from gateway.wire.commands import Command, encode_response
from gateway.wire.fields import FieldError
from gateway.wire.frames import FRAME_LIMIT
from gateway.wire.headers import FIELDS_OF_REQUESTS
from storage import RestartNeededError, StorageError, StorageFullError, as_told

REFUSED = "refused: {code} {remark}"
"""What the log says of a refusal at the level debug. C++ and Python clients show only that a send failed."""

LAST_VERSION_WITHOUT_GO_AWAY = 475
"""MQVersion V5_3_1: newer clients understand the answer GO_AWAY (NettyRemotingAbstract)."""


class RequestError(Exception):
    """An error that is the answer to a request; the connection stays open.

    :param code: a `ResponseCode`.
    :param remark: text for the client's developer.
    :param ext: fields for the client's program.
    """

    def __init__(self, code: int, remark: str, ext: Mapping[str, str] | None = None) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
        self.ext = ext


class NotFoundError(RequestError):
    """Something does not exist, where the protocol's code says only that the request cannot be carried out."""


class TooMuchError(RequestError):
    """There is too much of something now, where the protocol's code says only that the request cannot be carried
    out."""


class InvalidError(RequestError):
    """Something is not what it must be, where the protocol's code says only that the request cannot be carried out."""


def check_number(what: str, count: int, most: int) -> None:
    """Refuse a request that would hold up all other work.

    :raises RequestError: when the count is above the limit.
    """
    if count > most:
        raise RequestError(ResponseCode.INVALID_PARAMETER, f"{count} {what}; {most} are possible")


def illegal(remark: str) -> RequestError:
    """Return the refusal of a message that cannot be what its sender wants it to be."""
    return RequestError(ResponseCode.MESSAGE_ILLEGAL, remark)


def not_available(error: StorageError) -> RequestError:
    """Return the answer to a request that the store cannot carry out."""
    is_full = isinstance(error, StorageFullError)
    code = ResponseCode.SERVICE_NOT_AVAILABLE if is_full else ResponseCode.SYSTEM_ERROR
    return RequestError(code, f"service not available now: {error}")


def overloaded(setting: str, limit: int) -> RequestError:
    """Return the error for a request beyond a limit, worded as upstream's for a full queue of requests
    (NettyRemotingAbstract): clients slow down and try again.

    :param setting: name of the limit.
    """
    return RequestError(
        ResponseCode.SYSTEM_BUSY,
        f"[OVERLOAD]system busy, start flow control for a while: {setting} = {limit} is reached",
    )


class Peer(Protocol):
    """The connection that a request came by, as handlers see it."""

    host: bytes
    """Address of the peer as a message's bornHost has it: IPv4 and port, 8 bytes."""
    address: str
    """The same as `1.2.3.4:5678`, for logs and texts; or what a PROXY header tells, which anybody can send."""
    source: str
    """The IP address that the connection itself came from. Policies are about it."""
    open: bool
    congested: bool
    """Whether the client does not read what was sent to it; further frames would only pile up."""

    def send(self, frame: bytes) -> None:
        """Queue a whole frame to be written; do nothing once the connection is lost."""


class Caller(Protocol):
    """The user who sent a request, as handlers see them."""

    @property
    def name(self) -> str:
        """The user's name."""

    @property
    def is_super(self) -> bool:
        """Whether the user may do everything."""

    def may(self, actions: frozenset[Action], topic: str) -> bool:
        """Whether the user may do one of these actions to a topic."""


class Call:
    """One request, to be answered exactly once, now or later. The answer to a oneway request is dropped.

    `caller` is None where nobody has to authenticate. `most_bytes` is the size of the largest answer: a client closes
    the connection when a frame is larger, and the code that sent the request does not learn why.
    """

    __slots__ = ("caller", "command", "fields", "most_bytes", "peer")

    def __init__(
        self, command: Command, fields: Any, peer: Peer, most_bytes: int = FRAME_LIMIT
    ) -> None:
        self.command = command
        self.fields = fields
        self.peer = peer
        self.most_bytes = most_bytes
        self.caller: Caller | None = None

    def may(self, actions: frozenset[Action], topic: str) -> bool:
        """Whether the sender may do one of these actions to a topic."""
        return self.caller is None or self.caller.may(actions, topic)

    @property
    def name(self) -> str:
        """The name of the user who sent the request; empty where nobody has to authenticate."""
        return self.caller.name if self.caller is not None else ""

    @property
    def address(self) -> str:
        """Where the request came from."""
        return self.peer.address

    @property
    def request(self) -> str:
        """The request's name in logs: the sender's address, and the number that the sender gave it."""
        return f"{self.peer.address}#{self.command.opaque}"

    def send(self, frame: bytes) -> None:
        """Answer with a frame that was encoded before."""
        if not self.command.is_oneway:
            self.peer.send(frame)

    def shed(self) -> None:
        """Drop the request's header and body, which may have MBs: it will wait, and needs its fields alone."""
        self.command.shed()

    def answer(
        self,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
    ) -> None:
        """Answer with a code, fields, a remark and a body.

        :raises RequestError: when the answer is larger than clients accept.
        """
        frame = self.encode(ext, body, code=code, remark=remark)
        self.check_size(len(frame))
        self.send(frame)

    def check_size(self, size: int) -> None:
        """:raises RequestError: when an answer of so many bytes is larger than clients accept."""
        check_answer(size, self.most_bytes)

    def encode(
        self,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
    ) -> bytes:
        """Return the frame that `answer` would send, to be sent later."""
        return encode_response(self.command.opaque, code, ext=ext, remark=remark, body=body)

    def fail(self, code: int, remark: str) -> None:
        """Answer with an error."""
        self.answer(code=code, remark=remark)


def largest_answer(config: Config) -> int:
    """Return the size of the largest answer, in bytes: clients that send larger frames accept larger ones too."""
    return max(FRAME_LIMIT, config.max_frame_size)


def check_answer(size: int, most: int) -> None:
    """Refuse a request whose answer would be larger than clients accept.

    :param most: see `largest_answer`.
    :raises RequestError: when it would.
    """
    if size > most:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the answer would be longer than the {most} bytes that clients accept: ask for less at once",
        )


def answer_failure(call: Call, error: Exception, log: Logger) -> None:
    """Answer a request that failed. Log an error that is not the sender's fault. To be called while the error is
    handled."""
    code, peer = call.command.code, call.peer.address
    error = as_told(error)
    if isinstance(error, RequestError):
        call.answer(error.ext, code=error.code, remark=error.remark)
    elif isinstance(error, StorageError):
        # An error that takes a restart is logged already, and the gateway is about to end.
        if not isinstance(error, RestartNeededError):
            text = "request {code} from {peer} failed: {error}"
            log.error(text, code=code, peer=peer, error=str(error))
        refusal = not_available(error)
        call.fail(refusal.code, refusal.remark)
    else:
        log.failure("request {code} from {peer} failed", code=code, peer=peer)
        call.fail(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")


def send_away(command: Command, peer: Peer) -> None:
    """Answer a request that is not carried out because the gateway stops. Clients that do not understand the answer get
    none: their connection closes."""
    if command.version > LAST_VERSION_WITHOUT_GO_AWAY and not command.is_oneway:
        remark = "the gateway is stopping"
        peer.send(encode_response(command.opaque, ResponseCode.GO_AWAY, remark=remark))


Handler = Callable[[Call], None]
"""Answers one request code. The call has the fields that `FIELDS_OF_REQUESTS` names, if any."""


class Gate(Protocol):
    """Checks requests before their handlers. Both methods raise RequestError."""

    def authenticate(self, call: Call) -> None:
        """Set the caller of a request; the request's fields are not read yet."""

    def authorize(self, call: Call) -> None:
        """Check that the caller may do what the request asks for."""


class Actor(Protocol):
    """The sender of a request; a `Call` is one."""

    @property
    def name(self) -> str:
        """The user; empty without authentication."""

    @property
    def address(self) -> str:
        """The address that the request came from."""


class Named(NamedTuple):
    """An actor by name and address."""

    name: str
    address: str


GATEWAY: Final = Named("", "gateway")
"""The actor of changes outside of any request."""


class Witness(Protocol):
    """Follows the requests: who sent each, and whether it was carried out."""

    actor: Actor
    """To whom what is done is attributed: the sender of the current request, if there is one."""

    def handled(self, call: Call) -> None:
        """Note that a request was carried out: its handler raised nothing."""


class Router:
    """Dispatches commands by the table of `routes`.

    :param witness: follows each request that has a handler and passes the gate.
    :param gate: checks the requests; None lets everybody do everything.
    """

    log = Logger()

    def __init__(
        self, table: Mapping[int, Handler], witness: Witness, gate: Gate | None = None
    ) -> None:
        self._table = {
            code: (FIELDS_OF_REQUESTS.get(code), handler) for code, handler in table.items()
        }
        self._witness = witness
        self.tells = False
        """Whether every request is logged."""
        self._gate = gate
        self._most_bytes = FRAME_LIMIT

    def configure(self, config: Config) -> None:
        """Log and limit answers by these settings."""
        self.tells = config.log_level == "debug"
        self._most_bytes = largest_answer(config)

    def dispatch(self, command: Command, peer: Peer) -> None:
        """Handle one request. An error harms only this request."""
        route = self._table.get(command.code)
        call = Call(command, None, peer, self._most_bytes)
        gate = self._gate
        self._witness.actor = call
        try:
            try:
                if gate is not None and route is not None:
                    gate.authenticate(call)
            finally:
                # After the sender is known, and also where it is not.
                if self.tells:
                    self.log.debug("request {code}", code=command.code, bytes=len(command.body))
            if route is None:
                # The leading blank is upstream's (NettyRemotingAbstract.processRequestCommand).
                raise RequestError(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    f" request type {command.code} not supported",
                )
            fields, handler = route
            if fields is not None:
                call.fields = command.fields(fields)
            if gate is not None:
                gate.authorize(call)
            handler(call)
            self._witness.handled(call)
        except FieldError as error:
            self._failed(call, RequestError(ResponseCode.SYSTEM_ERROR, str(error)))
        except Exception as error:  # noqa: BLE001 - no request may harm another
            self._failed(call, error)
        finally:
            self._witness.actor = GATEWAY

    def _failed(self, call: Call, error: Exception) -> None:
        if self.tells and isinstance(error, RequestError):
            self.log.debug(REFUSED, code=error.code, remark=error.remark)
        answer_failure(call, error, self.log)
