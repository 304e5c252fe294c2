"""Admits or refuses HTTP requests: checks the user, the page they come from, and the name they use for this host."""

from __future__ import annotations

import base64
import hmac
import ipaddress
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import urlsplit

from gateway.access.guard import Caller
from gateway.access.users import Users
from gateway.settings.config import Config
from gateway.web.endpoints import ApiError, Asker
from gateway.workers.vouching import vouched_host

ASK_FOR_KEYS = 'Basic realm="tidegate", charset="UTF-8"'
ASK_FOR_BEARER = 'Bearer realm="tidegate"'

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
"""Names of this machine in a browser on the machine itself."""

Header = Callable[[str], str | None]
"""Returns a header of the request by its name."""


class Doorkeeper:
    """Checks the credentials of requests.

    With users, a request needs the credentials of a user; else the token, if there is one; else none, which is safe
    only on a loopback address.

    :param users: all users; with `authentication` every request must be some user's.
    :param token: what `http_token_file` holds.
    :param key: the key by which a worker believes its leader where a request came from; None without a leader.
    """

    def __init__(
        self, config: Config, users: Users, token: str | None, key: bytes | None = None
    ) -> None:
        assert config.http is not None
        self._users = users if config.authentication else None
        self._token = token.encode() if token is not None else None
        self._key = key
        self._is_free = not config.authorization
        self._is_local = ipaddress.ip_address(config.http.host).is_loopback
        self._names = (*LOCAL_NAMES, config.http.host)  # such as 127.0.0.2
        self._is_closed = config.is_api_closed

    @property
    def challenge(self) -> str:
        """The challenge sent to a client without credentials."""
        return ASK_FOR_KEYS if self._users is not None else ASK_FOR_BEARER

    def admit(self, method: str, header: Header, peer: str) -> Asker:
        """Return who sends the request.

        :param peer: the IP address of the connection; a leader of several workers tells where the request came from.
        :raises ApiError: when the credentials are missing or wrong, or the request comes from a foreign page.
        """
        if self._is_closed:
            raise ApiError(
                HTTPStatus.FORBIDDEN,
                "the API is closed: http is not a loopback address, and neither http_token_file nor "
                "authentication = true protects it; set one of them",
            )
        if self._is_local:
            self._check_host(header("host") or "")
        self._check_origin(method, header)
        credentials = header("authorization") or ""
        source = vouched_host(header, self._key) or peer
        if self._users is not None:
            return Asker(self._caller(self._users, credentials, source), source)
        if self._token is not None and not _is_token(credentials, self._token):
            wrong = "wrong" if credentials else "missing"
            raise ApiError(HTTPStatus.UNAUTHORIZED, f"the token of http_token_file is {wrong}")
        return Asker(None, source)

    def _check_host(self, host: str) -> None:
        """Refuse a host name that is not this machine's own. The owner of a foreign name can point it at any machine;
        to a browser, the owner's pages and this API would then be of one origin."""
        try:
            name = urlsplit(f"//{host}").hostname
        except ValueError:
            name = None
        if name not in self._names:
            raise ApiError(
                HTTPStatus.FORBIDDEN,
                f"the header Host must be localhost, 127.0.0.1 or [::1], not {host!r}",
            )

    @staticmethod
    def _check_origin(method: str, header: Header) -> None:
        """Refuse requests from pages of other origins. The browser's own header about that is valid also behind a proxy
        that sends another `Host`."""
        site = header("sec-fetch-site")
        origin = header("origin")
        if site is None:
            foreign = origin is not None and _place_of(origin) != (header("host") or "")
        else:
            foreign = site not in ("same-origin", "none")
        if foreign:
            raise ApiError(HTTPStatus.FORBIDDEN, "pages of other origins are not served")
        if method in ("POST", "PUT"):
            # No form can send this type. A script of another origin needs a preflight, which is never granted.
            kind = (header("content-type") or "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise ApiError(
                    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                    "a change needs the header Content-Type: application/json",
                )

    def _caller(self, users: Users, credentials: str, source: str) -> Caller:
        name, key = _basic(credentials)
        user = users.get(name)
        # Compare also for an unknown user, so that it takes the same time.
        fits = hmac.compare_digest(user.key if user is not None else b"\0", key)
        if user is None or user.is_disabled or not fits:
            raise ApiError(
                HTTPStatus.UNAUTHORIZED, "access key and secret key of a user are missing or wrong"
            )
        return Caller(users, user, source, is_free=self._is_free)


def _place_of(origin: str) -> str | None:
    """Return the host and port of an origin, or None if it is not valid."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _is_token(credentials: str, token: bytes) -> bool:
    scheme, _, given = credentials.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token)


def _basic(credentials: str) -> tuple[str, bytes]:
    """Return name and key of Basic credentials (RFC 7617); both are empty when there are none."""
    scheme, _, given = credentials.partition(" ")
    if scheme.lower() != "basic":
        return "", b""
    try:
        name, _, key = base64.b64decode(given.strip(), validate=True).partition(b":")
        return name.decode(), key
    except ValueError:  # not base64, or not text
        return "", b""
