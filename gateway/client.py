"""A small blocking client of the remoting protocol, for the command line and for tests.

`RemotingClient` sends any request, one at a time. Most functions below it send requests that only Tidegate answers.
"""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

import msgspec

from gateway.wire.addresses import show_address
from gateway.wire.clock_bodies import ClockState
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command, CommandError, decode_command, encode_command
from gateway.wire.frames import FrameBuffer, FrameError
from gateway.wire.pending_bodies import (
    MAY_HAVE_CHANGED,
    AbortAnswer,
    AbortOutcome,
    BulkAnswer,
    HeldPage,
    PauseAnswer,
    PausedTopic,
    PausedTopics,
    RescheduleAnswer,
    RescheduleOutcome,
)
from gateway.wire.signatures import ACCESS_KEY, SIGNATURE, sign

if TYPE_CHECKING:
    import ssl

_Answer = TypeVar("_Answer")
_CHUNK: Final = 256 * 1024
_IS_IT_ONE: Final = (
    "check that a gateway listens there for clients, and not for HTTP, and see its log"
)
_CERTIFICATE_REQUIRED: Final = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
"""The reason of an `SSLError`."""

_WHAT_TO_DO: Final = {  # texts of a RocketMQ broker too
    "username cannot be null.": " Give a user's --access-key and --secret-key",
    "check signature failed.": " Check the --secret-key: it is not that of this user",
}


class ClientError(Exception):
    """The server cannot be reached or does not answer. The text is one line and says what to do."""


class NoAnswerError(ClientError):
    """The request was sent, but the answer did not come in time."""


class RemotingClient:
    """A connection to the gateway, or to any RocketMQ broker or name server.

    `with` opens it, and so does a request while it is closed. An error closes it.

    :param timeout: how many seconds connecting may take, and each whole answer.
    :param tls: makes it use TLS; see `tls_context`.
    :param credentials: a user's access key and secret key, to sign requests with.
    :param flag: the command's flag for the address, for texts of errors.
    """

    def __init__(
        self,
        host: str,
        port: int,
        timeout: float = 5.0,
        tls: ssl.SSLContext | None = None,
        credentials: tuple[str, str] | None = None,
        flag: str = "--server",
    ) -> None:
        self._address = (host, port)
        self._timeout = timeout
        self._tls = tls
        self._credentials = credentials
        self._flag = flag
        self._socket: socket.socket | None = None
        self._frames = FrameBuffer()
        self._has_answered = False
        self._opaques = itertools.count(1)

    def __enter__(self) -> Self:
        self._connected()
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, if it is open."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def ask(self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"") -> Command:
        """Send one request and return its answer, whatever the answer's code. Requests from the server are ignored.

        :raises ClientError: when there is no answer in time, or none that can be read.
        """
        opaque = next(self._opaques)
        deadline = time.monotonic() + self._timeout
        connection = self._connected()
        if self._credentials is not None:
            name, key = self._credentials
            ext = {**(ext or {}), ACCESS_KEY: name}
            ext = {**ext, SIGNATURE: sign(ext, body, key.encode())}
        try:
            connection.settimeout(self._timeout)
            connection.sendall(encode_command(code, opaque, ext=ext, body=body, language="PYTHON"))
            while True:
                for command in self._take(connection, deadline):
                    if command.is_response and command.opaque == opaque:
                        self._has_answered = True
                        return command
        except TimeoutError:
            self.close()
            raise NoAnswerError(
                f"{self._name} did not answer in {self._timeout:g} s; {self._what_to_check}"
            ) from None
        except (FrameError, CommandError) as error:
            self.close()
            raise ClientError(
                f"{self._name} sent an answer that cannot be read: {error}; {_IS_IT_ONE}"
            ) from None
        except OSError as error:
            self.close()
            if getattr(error, "reason", None) == _CERTIFICATE_REQUIRED:
                raise ClientError(
                    f"{self._name} closed the connection: with TLS it lets in only clients that have a certificate "
                    "(tls_client_ca), and this command has none; ask without TLS"
                ) from None
            raise ClientError(
                f"{self._name} closed the connection: {error.strerror or error}; {self._what_to_check}"
            ) from None

    def _take(self, connection: socket.socket, deadline: float) -> list[Command]:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        connection.settimeout(remaining)
        data = connection.recv(_CHUNK)
        if not data:
            may_lack_tls = self._tls is None and not self._has_answered
            hint = "; if it requires TLS, add --tls" if may_lack_tls else ""
            raise ConnectionError(f"it sent no answer{hint}")
        return [decode_command(frame) for frame in self._frames.feed(data)]

    def _connected(self) -> socket.socket:
        if self._socket is None:
            try:
                connection = socket.create_connection(self._address, self._timeout)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._socket = self._secured(connection)
                self._frames = FrameBuffer()
            except ConnectionRefusedError:
                raise ClientError(
                    f"nothing listens on {self._name}; start the gateway with 'tidegate serve', "
                    f"or give its address with {self._flag} HOST:PORT"
                ) from None
            except TimeoutError:
                raise ClientError(
                    f"{self._name} could not be reached in {self._timeout:g} s; "
                    "check the address and the network"
                ) from None
            except (OSError, UnicodeError) as error:
                # UnicodeError: the name is not valid for a host.
                reason = error.strerror if isinstance(error, OSError) else "it is not a host name"
                raise ClientError(
                    f"{self._name} cannot be reached: {reason or error}; check the address"
                ) from None
        return self._socket

    def _secured(self, connection: socket.socket) -> socket.socket:
        """Return the connection, after the TLS handshake if TLS is used."""
        if self._tls is None:
            return connection
        import ssl

        try:
            return self._tls.wrap_socket(connection, server_hostname=self._address[0])
        except ssl.SSLCertVerificationError as error:
            connection.close()
            raise ClientError(
                f"the certificate of {self._name} is not trusted: {error.verify_message}; "
                "check that --tls-ca has the file of its CA, that it has not expired, and that "
                f"{self._flag} has a name or address that it is for"
            ) from None
        except TimeoutError:
            connection.close()
            raise ClientError(
                f"{self._name} did not answer by TLS in {self._timeout:g} s; {_IS_IT_ONE}"
            ) from None
        except (ssl.SSLError, ConnectionError) as error:
            connection.close()
            raise ClientError(
                f"{self._name} did not answer by TLS: {error.strerror or error}; "
                "check that the gateway's setting tls is not disabled, and that the address is not one "
                "that several workers share, which has no TLS"
            ) from None

    @property
    def _what_to_check(self) -> str:
        return "it may have been stopped: see its log" if self._has_answered else _IS_IT_ONE

    @property
    def _name(self) -> str:
        return show_address(*self._address)


def tls_context(authority: Path | None) -> ssl.SSLContext:
    """Return a TLS context that trusts the certificates in a PEM file and those that they have signed. Without a file
    it accepts any certificate, which is also the default of RocketMQ's clients.

    :raises ClientError: when the file cannot be used.
    """
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if authority is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    try:
        context.load_verify_locations(authority)
    except OSError as error:
        raise ClientError(f"cannot use --tls-ca {authority}: {error.strerror or error}") from None
    return context


class RefusalError(Exception):
    """The server answered a request with an error. The text is one line: its code and remark.

    :param may_have_changed: whether a change may have been made nevertheless, in whole or in part.
    """

    def __init__(self, text: str, *, may_have_changed: bool = False) -> None:
        super().__init__(text)
        self.may_have_changed = may_have_changed


def look_up(client: RemotingClient, **asked: str | int | None) -> HeldPage:
    """Return one page of the messages that match all given criteria; None is no criterion.

    Keywords: id, key, topic, tag, begin and end (due time in epoch ms; inclusive, exclusive), state
    (pending, fired, aborted or any), limit, cursor. Raises ClientError and RefusalError.
    """
    return ask_for(client, RequestCode.LOOK_UP_TIMERS, asked, HeldPage)


def reschedule(client: RemotingClient, **asked: str | int | None) -> list[RescheduleOutcome]:
    """Reschedule messages, named by id, by handle, or by key and topic. Return the outcome for each message.

    The new time is one of due (epoch ms), delay (ms from now) and shift (ms). Raises ClientError and RefusalError.
    """
    return ask_for(client, RequestCode.RESCHEDULE_TIMERS, asked, RescheduleAnswer).results


def change_many(client: RemotingClient, **asked: str | int | None) -> Iterator[BulkAnswer]:
    """Count, abort or reschedule the pending messages of a topic that match, step by step. Yield each step's answer.

    Keywords: action (count, abort or reschedule); topic, key, tag, begin and end as in `look_up`; a new time as in
    `reschedule`. Raises ClientError and RefusalError.
    """
    cursor: str | None = ""
    while cursor is not None:
        step = ask_for(
            client, RequestCode.BULK_CHANGE_TIMERS, {**asked, "cursor": cursor or None}, BulkAnswer
        )
        yield step
        cursor = step.cursor


def set_paused(client: RemotingClient, topic: str, *, paused: bool) -> bool:
    """Pause or resume the firing of a topic. Return whether that changed anything.

    Raises ClientError and RefusalError.
    """
    code = RequestCode.PAUSE_TOPIC if paused else RequestCode.RESUME_TOPIC
    return ask_for(client, code, {"topic": topic}, PauseAnswer).changed


def paused_topics(client: RemotingClient) -> list[PausedTopic]:
    """Return the paused topics. Raises ClientError and RefusalError."""
    return ask_for(client, RequestCode.LIST_PAUSED_TOPICS, {}, PausedTopics).topics


def abort(client: RemotingClient, **asked: str | int | None) -> list[AbortOutcome]:
    """Abort messages, named by id, by handle, or by key and topic. Return the outcome for each message.

    Raises ClientError and RefusalError.
    """
    return ask_for(client, RequestCode.ABORT_TIMERS, asked, AbortAnswer).results


def move_clock(client: RemotingClient, **asked: int | None) -> ClockState:
    """Return the state of a gateway's clock, after moving it by `advance` (ms) or to `to` (epoch ms) if one is given.

    Raises ClientError and RefusalError.
    """
    return ask_for(client, RequestCode.CLOCK, asked, ClockState)


def setting(client: RemotingClient, name: str) -> str:
    """Return a setting of a running gateway, as `getBrokerConfig` shows it.

    Raises ClientError and RefusalError.
    """
    body = successful(client.ask(RequestCode.GET_BROKER_CONFIG)).body.decode()
    for line in body.splitlines():
        key, assigns, value = line.partition("=")
        if assigns and key == name:
            return value
    raise RefusalError(f"the server has no setting {name}; is it of another version?")


def change_setting(client: RemotingClient, name: str, value: str) -> None:
    """Change a setting of a running gateway until its next start.

    Raises ClientError and RefusalError.
    """
    successful(client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=f"{name}={value}".encode()))


def ask_for(
    client: RemotingClient, code: int, asked: Mapping[str, str | int | None], kind: type[_Answer]
) -> _Answer:
    """Send a request and return its answer's JSON body as `kind`. Fields that are None are left out.

    Raises ClientError and RefusalError.
    """
    ext = {name: str(value) for name, value in asked.items() if value is not None}
    answer = successful(client.ask(code, ext))
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RefusalError(
            f"the server's answer is not understood: {error}; is it of another version?",
            may_have_changed=True,
        ) from None


def successful(answer: Command) -> Command:
    """Return an answer, unless it is an error.

    :raises RefusalError: when it is.
    """
    if answer.code != ResponseCode.SUCCESS:
        remark = " ".join((answer.remark or "no reason given").split())
        if (
            answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            and "is for one broker" not in remark  # text of the address that several workers share
        ):
            remark += "; only a Tidegate gateway answers this request"
        remark += _WHAT_TO_DO.get(remark, "")
        raise RefusalError(
            f"the server refused (code {answer.code}): {remark}",
            may_have_changed=answer.ext().get(MAY_HAVE_CHANGED) == "true",
        )
    return answer
