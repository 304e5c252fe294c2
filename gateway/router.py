"""Brings each request to its handler, and every error to an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from twisted.logger import Logger

from gateway.access import Action
from gateway.config import Config
from gateway.wire.codes import ResponseCode
from gateway.wire.commands import Command, encode_response
from gateway.wire.fields import FieldError
from gateway.wire.frames import FRAME_LIMIT
from gateway.wire.headers import FIELDS_OF_REQUESTS
from storage import RestartNeededError, StorageError, StorageFullError, as_told


class RequestError(Exception):
    """A request that is answered with an error; the connection goes on.

    :param code: a `ResponseCode`.
    :param remark: what a client's developer reads.
    :param ext: what a client's program reads.
    """

    def __init__(self, code: int, remark: str, ext: Mapping[str, str] | None = None) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
        self.ext = ext


class NotFoundError(RequestError):
    """One about something that there is not, where the protocol's code says only that it cannot be carried out."""


class TooMuchError(RequestError):
    """One about what there is too much of now, where the protocol's code says only that it cannot be carried out."""


def not_available(error: StorageError) -> RequestError:
    """What a request is answered with that the store cannot carry out."""
    is_full = isinstance(error, StorageFullError)
    code = ResponseCode.SERVICE_NOT_AVAILABLE if is_full else ResponseCode.SYSTEM_ERROR
    return RequestError(code, f"service not available now: {error}")


def overloaded(setting: str, limit: int) -> RequestError:
    """The error for what would pass a limit, as upstream words it where a queue of requests is full
    (NettyRemotingAbstract): clients slow down and try again.

    :param setting: the limit's name.
    """
    return RequestError(
        ResponseCode.SYSTEM_BUSY,
        f"[OVERLOAD]system busy, start flow control for a while: {setting} = {limit} is reached",
    )


class Peer(Protocol):
    """The connection a request came by, as far as handlers know it."""

    host: bytes
    """Address of the peer as a message's bornHost has it: IPv4 and port, 8 bytes."""
    address: str
    """The same as `1.2.3.4:5678`."""
    open: bool
    congested: bool
    """The client does not read what was sent to it; what is sent now only piles up."""

    def send(self, frame: bytes) -> None:
        """Queue a whole frame to be written; nothing happens once the connection is lost."""


class Caller(Protocol):
    """Whose request it is, as far as handlers know it."""

    @property
    def name(self) -> str:
        """The user."""

    @property
    def is_super(self) -> bool:
        """Whether they may do everything."""

    def may(self, actions: frozenset[Action], topic: str) -> bool:
        """Whether they may do one of these to a topic."""


class Call:
    """One request, to be answered exactly once, now or later. A oneway request swallows its answer.

    `caller` is None where nobody is asked for a name. `most_bytes` is the largest answer: a client closes the
    connection over a larger frame, and what asks does not learn why.
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
        """Whether the sender may do one of these to a topic."""
        return self.caller is None or self.caller.may(actions, topic)

    @property
    def name(self) -> str:
        """The user that asks; empty where nobody is asked for a name."""
        return self.caller.name if self.caller is not None else ""

    @property
    def address(self) -> str:
        """Where the request came from."""
        return self.peer.address

    @property
    def request(self) -> str:
        """By what the request is known in logs: the address, and the number that its sender gave it."""
        return f"{self.peer.address}#{self.command.opaque}"

    def send(self, frame: bytes) -> None:
        """Answer with a frame made beforehand."""
        if not self.command.is_oneway:
            self.peer.send(frame)

    def answer(
        self,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
    ) -> None:
        """Answer with a code, fields, a remark and a body.

        :raises RequestError: when that is more than a client takes.
        """
        frame = self.encode(ext, body, code=code, remark=remark)
        self.check_size(len(frame))
        self.send(frame)

    def check_size(self, size: int) -> None:
        """:raises RequestError: when an answer of so many bytes is more than a client takes."""
        if size > self.most_bytes:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the answer would have more than the {self.most_bytes} bytes that clients take of one: "
                "ask for less at once",
            )

    def encode(
        self,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
    ) -> bytes:
        """The frame that `answer` would send, for sending it later."""
        return encode_response(self.command.opaque, code, ext=ext, remark=remark, body=body)

    def fail(self, code: int, remark: str) -> None:
        """Answer with an error."""
        self.answer(code=code, remark=remark)


def answer_failure(call: Call, error: Exception, log: Logger) -> None:
    """Answer a request that was not carried out, while the error is handled that kept it from that; log what its sender
    has nothing to do with."""
    code, peer = call.command.code, call.peer.address
    error = as_told(error)
    if isinstance(error, RequestError):
        call.answer(error.ext, code=error.code, remark=error.remark)
    elif isinstance(error, StorageError):
        # Where a restart is needed, the gateway is about to end, and has said why.
        if not isinstance(error, RestartNeededError):
            text = "request {code} from {peer} failed: {error}"
            log.error(text, code=code, peer=peer, error=str(error))
        refusal = not_available(error)
        call.fail(refusal.code, refusal.remark)
    else:
        log.failure("request {code} from {peer} failed", code=code, peer=peer)
        call.fail(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")


Handler = Callable[[Call], None]
"""What answers one request code; the call has the fields that `FIELDS_OF_REQUESTS` tells, if any."""


class Gate(Protocol):
    """What requests must pass before their handlers. Both methods raise RequestError."""

    def authenticate(self, call: Call) -> None:
        """Set whose request it is; its fields are not read yet."""

    def authorize(self, call: Call) -> None:
        """Hold the request against what its sender may do."""


class Witness(Protocol):
    """Told of each request whose it is, and when it was carried out."""

    def begin(self, actor: Call) -> None:
        """What is done from now on is this request's doing."""

    def handled(self, call: Call) -> None:
        """The request was carried out: its handler raised nothing."""

    def end(self) -> None:
        """What is done from now on is nobody's doing."""


class Router:
    """Dispatches commands by the table of `routes`.

    :param witness: is told of each request that has a handler.
    :param gate: what they must pass; None lets everybody do everything.
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
        """Log, and answer, by these settings: clients that send larger frames take larger ones too."""
        self.tells = config.log_level == "debug"
        self._most_bytes = max(FRAME_LIMIT, config.max_frame_size)

    def dispatch(self, command: Command, peer: Peer) -> None:
        """Handle one request. Whatever goes wrong harms only this request."""
        route = self._table.get(command.code)
        call = Call(command, None, peer, self._most_bytes)
        if route is None:
            # The leading blank is upstream's (NettyRemotingAbstract.processRequestCommand).
            call.fail(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f" request type {command.code} not supported",
            )
            return
        fields, handler = route
        gate = self._gate
        try:
            if gate is not None:
                gate.authenticate(call)
            if fields is not None:
                call.fields = command.fields(fields)
            if gate is not None:
                gate.authorize(call)
            self._witness.begin(call)
            if self.tells:
                self.log.debug("request {code}", code=command.code, bytes=len(command.body))
            handler(call)
            self._witness.handled(call)
        except FieldError as error:
            self._failed(call, RequestError(ResponseCode.SYSTEM_ERROR, str(error)))
        except Exception as error:  # noqa: BLE001 - no request may harm another
            self._failed(call, error)
        finally:
            self._witness.end()

    def _failed(self, call: Call, error: Exception) -> None:
        if self.tells and isinstance(error, RequestError):
            self.log.debug("refused: {code} {remark}", code=error.code, remark=error.remark)
        answer_failure(call, error, self.log)
