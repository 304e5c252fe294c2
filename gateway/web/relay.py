"""Forwards requests from the HTTP port that several workers share to the workers' own ports, and reads the answers.

Requests keep the headers that identify the user and the page they come from, and get others with the address that they
come from. So each worker admits or refuses them as if it had received them directly.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from twisted.internet.defer import Deferred, gatherResults

from gateway.web.doorkeeper import ASK_FOR_BEARER, ASK_FOR_KEYS, Header
from gateway.web.endpoints import ApiError, Asker, Problem
from gateway.web.site import BASE
from gateway.workers.merging import refused_by, unanswered, unserved
from gateway.workers.vouching import vouched

PASSED_ON: Final = ("authorization", "content-type", "host", "origin", "sec-fetch-site")
"""Headers from which a worker identifies who asks (`Doorkeeper`)."""

_Answer = TypeVar("_Answer")


class Reply(NamedTuple):
    """A worker's answer."""

    status: int
    body: bytes


Ask = Callable[[str, str, Mapping[str, str], bytes], "Deferred[Reply | None]"]
"""Sends a request to one worker: method, path with query, headers and body. Returns None when it does not answer."""


class ForwardedAsker(Asker):
    """The sender of a request, with the headers to forward to workers."""

    def __init__(self, headers: Mapping[str, str], host: str) -> None:
        super().__init__(None, host)
        self.headers = headers


class OpenDoor:
    """Admits everybody; the workers themselves check requests.

    :param key: the key by which the workers believe where a request came from.
    """

    def __init__(self, key: bytes, *, by_keys: bool) -> None:
        self._key = key
        self.by_keys = by_keys
        """Whether workers ask for a user's keys."""

    @property
    def challenge(self) -> str:
        """See `Doorkeeper.challenge`."""
        return ASK_FOR_KEYS if self.by_keys else ASK_FOR_BEARER

    def admit(self, method: str, header: Header, peer: str) -> Asker:
        """Return who sends the request: see `Doorkeeper.admit`."""
        given = {name: header(name) for name in PASSED_ON}
        # Keep each header on one line, whatever its value contains.
        known = {name: " ".join(text.split()) for name, text in given.items() if text is not None}
        return ForwardedAsker(known | vouched(peer, self._key), peer)


class Relay:
    """Forwards requests from the shared port to workers.

    :param workers: sends a request to a worker, by the worker's name, in the order of workers.
    :param serves: returns whether the worker with a name is known to serve.
    :param starts: returns how many processes have served as the worker with a name.
    """

    def __init__(
        self,
        workers: Mapping[str, Ask],
        serves: Callable[[str], bool],
        starts: Callable[[str], int],
    ) -> None:
        self._workers = workers
        self._serves = serves
        self._starts = starts

    @property
    def names(self) -> list[str]:
        """The names of the workers."""
        return list(self._workers)

    @property
    def first(self) -> str:
        """The worker that gets all messages and new recurring messages sent here."""
        return next(iter(self._workers))

    @property
    def starts(self) -> dict[str, int]:
        """How many processes have served as each worker: a later one does not know what an earlier one told."""
        return {name: self._starts(name) for name in self._workers}

    def need(self, names: Collection[str]) -> None:
        """Refuse a request that needs all of these workers when one of them does not serve.

        :raises ApiError: when one of them is known not to serve.
        """
        lacking = [name for name in names if not self._serves(name)]
        if lacking:
            raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, unserved(lacking, len(names)))

    async def check(self, asker: Asker) -> None:
        """Have a worker check who asks, for an answer that needs no worker otherwise.

        :raises ApiError: when it refuses, or no worker answers.
        """
        for name in self._workers:
            reply = (await self.replies(asker, "GET", "/bulk", {name: {}}))[name]
            if reply is None:
                continue
            if reply.status != HTTPStatus.OK:
                raise refusal(reply)
            return
        raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "no worker answers; ask again")

    async def replies(
        self,
        asker: Asker,
        method: str,
        path: str,
        values: Mapping[str, Mapping[str, object]],
        bodies: Mapping[str, bytes] | None = None,
    ) -> dict[str, Reply | None]:
        """Return the workers' answers of any status by worker name, or None for a worker that does not answer.

        :param path: relative to the path of the API.
        :param values: the fields of the query for each worker to ask; a field that is None is left out.
        :param bodies: the request's body for each worker, if any.
        """
        assert isinstance(asker, ForwardedAsker)
        asked = []
        for name, fields in values.items():
            query = urlencode({field: text for field, text in fields.items() if text is not None})
            whole = f"{BASE}{path}?{query}" if query else f"{BASE}{path}"
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
        """Return each worker's answer, in the order of workers. Fail if one is missing: a partial answer would be
        wrong.

        :param values: the fields of the query.
        :param may_lack: whether an answer 404 only means that the worker does not have the object.
        :param changes: whether a method other than GET changes anything.
        :param each: in place of `values`, the fields for each worker to ask.
        :raises ApiError: when a worker does not serve, before any worker is asked; when one does not answer, or
            refuses.
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
            if may_lack and reply.status == HTTPStatus.NOT_FOUND:
                refusals.append(refusal(reply))
            else:
                raise refusal(reply, name if found else None, done)
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
        """Return one worker's answer.

        :raises ApiError: when it does not answer, or refuses.
        """
        ((_, answer),) = await self.all(asker, method, path, kind, body=body, each={name: {}})
        return answer


def refusal(reply: Reply, by: str | None = None, done: Sequence[str] | None = None) -> ApiError:
    """Return a worker's refusal as an error with the same text.

    :param by: the worker, to be named where others have not refused.
    :param done: see `refused_by`.
    """
    problem = msgspec.json.decode(reply.body, type=Problem)
    detail = problem.detail if by is None else refused_by(by, problem.detail, done)
    return ApiError(HTTPStatus(problem.status), detail, problem.code)


def below(*segments: object) -> str:
    """Return a path of these segments, with special characters quoted."""
    return "".join("/" + quote(str(segment), safe="") for segment in segments)


def fields_of(query: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a query by their names in the API."""
    fields: dict[str, Any] = msgspec.to_builtins(query)
    return fields
