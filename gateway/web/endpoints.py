"""What one request of the API is: its path, its fields, its answer, and how it fails."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Awaitable, Callable
from functools import cached_property
from http import HTTPStatus
from typing import Any

import msgspec

from gateway.access import Action, Need
from gateway.guard import Caller
from gateway.permissions import GET, group_need, topic_need
from gateway.router import NotFoundError, RequestError, TooMuchError
from gateway.wire.codes import ResponseCode

PLACEHOLDER = re.compile(r"\{(\w+)\}")

OFFSET_ID = "^[0-9A-Fa-f]{32}$"
"""What the offset id of a message looks like."""

_MISFIT = re.compile(r"(.*) - at `\$\.(\S+)`", re.DOTALL)
"""What msgspec says of a value that is not what it should be, and of which."""

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
"""HTTP's word for the protocol's codes; any other is an internal error."""


class Problem(msgspec.Struct, frozen=True):
    """Why a request was not done (RFC 9457). `code` is the protocol's, where it has one."""

    title: str
    status: int
    detail: str
    code: int | None = None


class ApiError(Exception):
    """A request that ends with a status and a sentence."""

    def __init__(self, status: HTTPStatus, detail: str, code: int | None = None) -> None:
        super().__init__(detail)
        self.problem = Problem(status.phrase, status, detail, code)

    @classmethod
    def of(cls, error: RequestError) -> ApiError:
        """The same refusal in HTTP's words."""
        code = ResponseCode(error.code)
        status = STATUS_OF.get(code, HTTPStatus.INTERNAL_SERVER_ERROR)
        if isinstance(error, NotFoundError):
            status = HTTPStatus.NOT_FOUND
        elif isinstance(error, TooMuchError):
            status = HTTPStatus.TOO_MANY_REQUESTS
        return cls(status, error.remark, code)


class Asker:
    """Whose request it is, and where it came from.

    :param caller: None where nobody is asked for a name.
    :param host: the IP address that it came from.
    """

    def __init__(self, caller: Caller | None, host: str) -> None:
        self.caller = caller
        self.host = host

    @property
    def name(self) -> str:
        """The user; empty where nobody is asked for a name."""
        return self.caller.name if self.caller is not None else ""

    @property
    def address(self) -> str:
        """Where the request came from, for the audit log."""
        return self.host

    @property
    def may_everything(self) -> bool:
        """Whether nothing is kept from them."""
        return self.caller is None or self.caller.may_everything

    def may(self, actions: frozenset[Action], topic: str) -> bool:
        """Whether they may do one of these to a topic."""
        return self.caller is None or self.caller.may(actions, topic)

    def may_see_group(self, name: str) -> bool:
        """Whether they may see a consumer group."""
        return self.caller is None or self.caller.objection(group_need(name, GET)) is None

    def check(self, need: Need) -> None:
        """Refuse what they may not do.

        :raises ApiError: when it is not permitted.
        """
        objection = self.caller.objection(need) if self.caller is not None else None
        if objection is not None:
            raise ApiError(HTTPStatus.FORBIDDEN, objection, ResponseCode.NO_PERMISSION)

    def check_topic(self, actions: frozenset[Action], topic: str) -> None:
        """Refuse unless they may do one of these to a topic.

        :raises ApiError: when it is not permitted.
        """
        self.check(topic_need(topic, actions))


class Fields(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """What a request brings, in its path and query or in its body. Names are in camel case."""


class Shown(msgspec.Struct, rename="camel", kw_only=True):
    """What an answer shows. Names are in camel case."""


Handler = Callable[..., Any]


class Endpoint:
    """One row of the table.

    The handler's annotations say the rest, so that they cannot differ from what is documented: its parameter `query`
    has the fields of the path and the query, `body` those of the JSON body, and what it returns, or what the
    coroutine that it returns does, is the answer. The first line of its documentation is the summary.

    :param method: GET, POST, PUT or DELETE.
    :param path: below the API's own, with placeholders such as `{id}`.
    :param group: under what the documentation lists it.
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
        """What programs made from the documentation call it."""
        first, *rest = self.handler.__name__.split("_")
        return first + "".join(word.title() for word in rest)

    @cached_property
    def summary(self) -> str:
        """What it does, in a line."""
        return (inspect.getdoc(self.handler) or "").partition("\n\n")[0].replace("\n", " ")

    @cached_property
    def description(self) -> str:
        """What else there is to know."""
        return (inspect.getdoc(self.handler) or "").partition("\n\n")[2]

    def match(self, segments: tuple[str, ...]) -> dict[str, str] | None:
        """The placeholders' values, where a path is this one's."""
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
        """Have a request handled.

        :param texts: the values of path and query.
        :raises ApiError: when they, or the body, are not what they should be.
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
    """What msgspec says, in the words of whoever wrote the request.

    :param kind: the structure that the request's fields were to be.
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
        # What the field was called may look like a place.
        if not (isinstance(inner, type) and issubclass(inner, Fields)):
            break
        kind = inner
    return f"{text}; there are {', '.join(kind.__struct_encode_fields__)}"
