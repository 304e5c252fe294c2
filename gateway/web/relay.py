"""Puts what is asked at the HTTP port that several workers share to their own ports, and reads what they answer.

Requests go on with the headers that tell who asks and from which page, so that each worker lets them in, or not, as if
they had come to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from twisted.internet.defer import Deferred, gatherResults

from gateway.merging import refused_by, unanswered, unserved
from gateway.web.doorkeeper import ASK_FOR_BEARER, ASK_FOR_KEYS, Header
from gateway.web.endpoints import ApiError, Asker, Problem

PASSED_ON: Final = ("authorization", "content-type", "host", "origin", "sec-fetch-site")
"""Headers by which a worker knows who asks (`Doorkeeper`)."""

_Answer = TypeVar("_Answer")


class Reply(NamedTuple):
    """What a worker answered."""

    status: int
    body: bytes


Ask = Callable[[str, str, Mapping[str, str], bytes], "Deferred[Reply | None]"]
"""Asks one worker: method, path with query, headers and body. None when it does not answer."""


class ForwardedAsker(Asker):
    """Whoever asks, as workers are to see them."""

    def __init__(self, headers: Mapping[str, str], host: str) -> None:
        super().__init__(None, host)
        self.headers = headers


class OpenDoor:
    """Lets everybody on to the workers, whose own doors they have to pass."""

    def __init__(self, *, by_keys: bool) -> None:
        self.by_keys = by_keys
        """Whether workers ask for a user's keys."""

    @property
    def challenge(self) -> str:
        """See `Doorkeeper.challenge`."""
        return ASK_FOR_KEYS if self.by_keys else ASK_FOR_BEARER

    def admit(self, method: str, header: Header, peer: str) -> Asker:
        """Who asks: see `Doorkeeper.admit`."""
        given = {name: header(name) for name in PASSED_ON}
        # A header is one line, whatever somebody has put into its value.
        known = {name: " ".join(text.split()) for name, text in given.items() if text is not None}
        return ForwardedAsker(known, peer)


class Relay:
    """Asks workers for whoever came to the shared port.

    :param workers: the way to each worker by its name, in their order.
    :param serves: whether the worker of a name is known to serve.
    """

    def __init__(self, workers: Mapping[str, Ask], serves: Callable[[str], bool]) -> None:
        self._workers = workers
        self._serves = serves

    @property
    def names(self) -> list[str]:
        """The workers."""
        return list(self._workers)

    @property
    def first(self) -> str:
        """The worker that has what is sent or set here."""
        return next(iter(self._workers))

    def need(self, names: Collection[str]) -> None:
        """See that workers may be asked for what needs all of them.

        :raises ApiError: when one of them is known not to serve.
        """
        lacking = [name for name in names if not self._serves(name)]
        if lacking:
            raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, unserved(lacking, len(names)))

    async def replies(
        self,
        asker: Asker,
        method: str,
        path: str,
        values: Mapping[str, Mapping[str, object]],
        bodies: Mapping[str, bytes] | None = None,
    ) -> dict[str, Reply | None]:
        """What workers answer, whatever it is, by their names.

        :param path: below the API's own.
        :param values: for each worker that is asked the fields of the query; None is left out.
        :param bodies: what they are sent, if anything.
        """
        assert isinstance(asker, ForwardedAsker)
        asked = []
        for name, fields in values.items():
            query = urlencode({field: text for field, text in fields.items() if text is not None})
            whole = f"/api/v1{path}?{query}" if query else f"/api/v1{path}"
            body = bodies[name] if bodies is not None else b""
            asked.append(self._workers[name](method, whole, asker.headers, body))
        answers = await gatherResults(asked)
        return dict(zip(values, answers, strict=True))

    async def all(
        self,
        asker: Asker,
        method: str,
        path: str,
        kind: type[_Answer],
        values: Mapping[str, object] | None = None,
        *,
        body: bytes = b"",
        may_lack: bool = False,
        changes: bool = True,
        each: Mapping[str, Mapping[str, object]] | None = None,
    ) -> list[tuple[str, _Answer]]:
        """What each worker answers, in their order; an answer that left one out would not be true.

        :param values: the fields of the query.
        :param may_lack: whether a worker that answers 404 says only that what is asked about is not at it.
        :param changes: whether what is no GET changes something.
        :param each: instead of `values`, the fields for each worker that is asked.
        :raises ApiError: when one does not serve, and then none was asked; when one does not answer, or refuses.
        """
        each = dict.fromkeys(self._workers, values or {}) if each is None else each
        self.need(each)
        bodies = dict.fromkeys(each, body)
        replies = await self.replies(asker, method, path, each, bodies)
        given = {name: reply for name, reply in replies.items() if reply is not None}
        found = [
            (name, msgspec.json.decode(reply.body, type=kind))
            for name, reply in given.items()
            if reply.status < HTTPStatus.BAD_REQUEST
        ]
        done = [name for name, _ in found] if changes and method != "GET" else None
        silent = [name for name in replies if name not in given]
        if silent:
            raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, unanswered(silent, len(replies), done))
        refusals = []
        for name, reply in given.items():
            if reply.status < HTTPStatus.BAD_REQUEST:
                continue
            failure = refusal(reply)
            if may_lack and reply.status == HTTPStatus.NOT_FOUND:
                refusals.append(failure)
            elif found:
                problem = failure.problem
                detail = refused_by(name, problem.detail, done)
                raise ApiError(HTTPStatus(problem.status), detail, problem.code)
            else:
                raise failure
        if refusals and not found:
            raise refusals[0]
        return found

    async def one(
        self,
        asker: Asker,
        name: str,
        method: str,
        path: str,
        kind: type[_Answer],
        *,
        body: bytes = b"",
    ) -> _Answer:
        """What one worker answers.

        :raises ApiError: when it does not answer, or refuses.
        """
        ((_, answer),) = await self.all(asker, method, path, kind, body=body, each={name: {}})
        return answer


def refusal(reply: Reply) -> ApiError:
    """A worker's refusal, as it was told."""
    problem = msgspec.json.decode(reply.body, type=Problem)
    return ApiError(HTTPStatus(problem.status), problem.detail, problem.code)


def below(*segments: object) -> str:
    """A path of these segments, whatever letters they have."""
    return "".join("/" + quote(str(segment), safe="") for segment in segments)


def fields_of(query: msgspec.Struct, *but: str) -> dict[str, Any]:
    """The fields of a query as they are asked for, but those that the path has."""
    fields: dict[str, Any] = msgspec.to_builtins(query)
    return {name: value for name, value in fields.items() if name not in but}
