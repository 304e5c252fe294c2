"""An endpoint of the API: its path, its fields, its answer, and its errors."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Awaitable, Callable
from functools import cached_property
from http import HTTPStatus
from typing import Any

import msgspec

from gateway.access.guard import Caller
from gateway.access.permissions import GET, group_need, topic_need
from gateway.access.policies import Action, Need
from gateway.router import InvalidError, NotFoundError, RequestError, TooMuchError
from gateway.wire.codes import ResponseCode

PLACEHOLDER = re.compile(r"\{(\w+)\}")

OFFSET_ID = "^[0-9A-Fa-f]{32}$"
"""The pattern of a message's offset id."""

_MISFIT = re.compile(r"(.*) - at `\$\.(\S+)`", re.DOTALL)
"""msgspec's text about a value of the wrong type or form, and the value's place."""

STATUS_OF = {
    ResponseCode.SYSTEM_BUSY: HTTPStatus.TOO_MANY_REQUESTS,
    ResponseCode.NO_PERMISSION: HTTPStatus.FORBIDDEN,
    ResponseCode.TOPIC_NOT_EXIST: HTTPStatus.NOT_FOUND,
    ResponseCode.QUERY_NOT_FOUND: HTTPStatus.NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: HTTPStatus.NOT_FOUND,
    ResponseCode.MESSAGE_ILLEGAL: HTTPStatus.BAD_REQUEST,
    ResponseCode.INVALID_PARAMETER: HTTPStatus.BAD_REQUEST,
    ResponseCode.ILLEGAL_OPERATION: HTTPStatus.CONFLICT,
    ResponseCode.SERVICE_NOT_AVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
}
"""HTTP status codes for the protocol's response codes; any other code is an internal error."""


class Problem(msgspec.Struct, frozen=True):
    """Why a request failed (RFC 9457). `code` is the response code of RocketMQ's protocol, if there is one."""

    title: str
    status: int
    detail: str
    code: int | None = None


class ApiError(Exception):
    """An error with an HTTP status and a sentence."""

    def __init__(self, status: HTTPStatus, detail: str, code: int | None = None) -> None:
        super().__init__(detail)
        self.problem = Problem(status.phrase, status, detail, code)

    @classmethod
    def of(cls, error: RequestError) -> ApiError:
        """Return the same refusal with an HTTP status."""
        code = ResponseCode(error.code)
        status = STATUS_OF.get(code, HTTPStatus.INTERNAL_SERVER_ERROR)
        if isinstance(error, NotFoundError):
            status = HTTPStatus.NOT_FOUND
        elif isinstance(error, InvalidError):
            status = HTTPStatus.BAD_REQUEST
        elif isinstance(error, TooMuchError):
            status = HTTPStatus.TOO_MANY_REQUESTS
        return cls(status, error.remark, code)


class Asker:
    """The user that sends a request, and its origin.

    :param caller: None where requests need no user.
    :param host: the IP address that the request came from.
    """

    def __init__(self, caller: Caller | None, host: str) -> None:
        self.caller = caller
        self.host = host

    @property
    def name(self) -> str:
        """The user's name; empty where requests need no user."""
        return self.caller.name if self.caller is not None else ""

    @property
    def address(self) -> str:
        """The origin of the request, for the audit log."""
        return self.host

    @property
    def may_everything(self) -> bool:
        """Whether the user may do everything."""
        return self.caller is None or self.caller.may_everything

    def may(self, actions: frozenset[Action], topic: str) -> bool:
        """Return whether the user may do one of these actions to a topic."""
        return self.caller is None or self.caller.may(actions, topic)

    def may_see_group(self, name: str) -> bool:
        """Return whether the user may see a consumer group."""
        return self.caller is None or self.caller.objection(group_need(name, GET)) is None

    def check(self, need: Need) -> None:
        """Refuse a request that the user has no permission for.

        :raises ApiError: when it is not permitted.
        """
        objection = self.caller.objection(need) if self.caller is not None else None
        if objection is not None:
            raise ApiError(HTTPStatus.FORBIDDEN, objection, ResponseCode.NO_PERMISSION)

    def check_topic(self, actions: frozenset[Action], topic: str) -> None:
        """Refuse a request unless the user may do one of these actions to a topic.

        :raises ApiError: when it is not permitted.
        """
        self.check(topic_need(topic, actions))


class Fields(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Fields of a request, in its path and query or in its body. Names are in camel case."""


class Shown(msgspec.Struct, rename="camel", kw_only=True):
    """Fields of an answer. Names are in camel case."""


Handler = Callable[..., Any]


class Endpoint:
    """One row of the table.

    The handler's annotations define the rest, so that they cannot differ from the documentation. Its parameter `query`
    has the fields of the path and the query, and `body` those of the JSON body. The answer is what the handler returns,
    or what its coroutine returns. The first paragraph of its docstring is the summary.

    :param method: GET, POST, PUT or DELETE.
    :param path: relative to the path of the API, with placeholders such as `{id}`.
    :param group: the heading in the documentation.
    """

    def __init__(self, method: str, path: str, handler: Handler, group: str) -> None:
        self.method = method
        self.path = path
        self.handler = handler
        self.group = group
        hints = typing.get_type_hints(handler)
        self.query: type[Fields] | None = hints.get("query")
        self.body: type[Fields] | None = hints.get("body")
        self.answer: Any = hints["return"]

    @cached_property
    def segments(self) -> tuple[str, ...]:
        """The parts of the path."""
        return tuple(self.path.strip("/").split("/"))

    @cached_property
    def name(self) -> str:
        """The operation id, after which generated clients name the function."""
        first, *rest = self.handler.__name__.split("_")
        return first + "".join(word.title() for word in rest)

    @cached_property
    def summary(self) -> str:
        """The first paragraph of the handler's docstring, in one line."""
        return (inspect.getdoc(self.handler) or "").partition("\n\n")[0].replace("\n", " ")

    @cached_property
    def description(self) -> str:
        """The rest of the handler's docstring."""
        return (inspect.getdoc(self.handler) or "").partition("\n\n")[2]

    def match(self, segments: tuple[str, ...]) -> dict[str, str] | None:
        """Return the values of the placeholders if the path is this endpoint's, else None."""
        if len(segments) != len(self.segments):
            return None
        values = {}
        for own, given in zip(self.segments, segments, strict=True):
            placeholder = PLACEHOLDER.fullmatch(own)
            if placeholder is not None and given:
                values[placeholder[1]] = given
            elif own != given:
                return None
        return values

    def call(self, asker: Asker, texts: dict[str, str], body: bytes) -> Any | Awaitable[Any]:
        """Handle a request.

        :param texts: the values of path and query.
        :raises ApiError: when these or the body are not valid.
        """
        arguments: dict[str, Any] = {}
        kind: type[Fields] | None = None
        try:
            if self.query is not None:
                kind = self.query
                arguments["query"] = msgspec.convert(texts, kind, strict=False)
            elif texts:
                raise ApiError(
                    HTTPStatus.BAD_REQUEST, f"there is no parameter {next(iter(texts))!r} here"
                )
            if self.body is not None:
                kind = self.body
                arguments["body"] = msgspec.json.decode(body or b"{}", type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ApiError(HTTPStatus.BAD_REQUEST, _explain(error, kind)) from error
        return self.handler(asker, **arguments)


def _explain(error: Exception, kind: Any) -> str:
    """Return msgspec's error in words that the author of the request understands.

    :param kind: the structure that the request was decoded into.
    """
    if not isinstance(error, msgspec.ValidationError):
        return f"the body is not JSON: {error}"
    text = str(error).replace("Object contains ", "").replace("Object missing ", "missing ")
    text = text.replace(
        f"`str` matching regex {OFFSET_ID!r}", "an offset id, 32 hexadecimal digits"
    )
    misfit = _MISFIT.fullmatch(text)
    if misfit is not None:
        text = f"{misfit[2]}: {misfit[1]}"
    if not str(error).startswith("Object contains unknown field"):
        return text
    for name in misfit[2].split(".") if misfit is not None else ():
        hint = typing.get_type_hints(kind).get(name)
        inner = (typing.get_args(hint) or (hint,))[0]
        # The name of the unknown field may look like a place.
        if not (isinstance(inner, type) and issubclass(inner, Fields)):
            break
        kind = inner
    return f"{text}; there are {', '.join(kind.__struct_encode_fields__)}"
