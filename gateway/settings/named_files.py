"""Reads the files that settings name when a gateway starts: certificates, its first user, a token."""

from __future__ import annotations

from codecs import BOM_UTF8
from pathlib import Path
from typing import Any, Final

from gateway.access.users import SUPER
from gateway.connections.tls import Certificates, TlsError, TlsLayers
from gateway.process import SettingsError, StartError
from gateway.settings.config import Config
from gateway.wire.access_bodies import UserInfo
from gateway.wire.bodies import BodyError, read_body

SHORTEST_TOKEN: Final = 16
"""Fewest characters of the HTTP API's token."""


def tls_layers(config: Config, reactor: Any) -> TlsLayers | None:
    """Return the TLS layers for clients; None where TLS is disabled.

    :raises StartError: when a file cannot be used.
    """
    if config.tls == "disabled":
        return None
    try:
        certificates = Certificates(
            reactor, config.tls_certificate, config.tls_key, config.tls_client_ca
        )
    except TlsError as failure:
        raise StartError(str(failure)) from failure
    return TlsLayers(reactor, certificates)


def initial_user(config: Config) -> UserInfo | None:
    """Return the first super user, if the settings name one.

    :raises StartError: when the file cannot be read, or names no user.
    """
    file = config.initial_user_file
    if file is None:
        return None
    try:
        user = read_body(file.read_bytes().removeprefix(BOM_UTF8), UserInfo)
    except OSError as failure:
        raise StartError(
            f"cannot read initial_user_file = {file}: {failure.strerror}; check the path"
        ) from failure
    except BodyError:
        user = UserInfo()
    if not (user.username and user.username.strip() and user.password):
        raise StartError(
            f'initial_user_file = {file} names no user; write {{"username": "...", "password": "..."}}'
        )
    if ":" in user.username:
        raise StartError(
            f"initial_user_file = {file} names the user {user.username!r}, which could not use the console: "
            "there a colon ends the name; choose a name without one"
        )
    user.user_type = SUPER
    return user


def no_user(data: Path) -> SettingsError:
    """Return the error of a gateway that does not start because it would let nobody in."""
    return SettingsError(
        f"authentication = true, but there is no user in {data}; set initial_user_file to a file with one"
    )


def http_token(config: Config) -> str | None:
    """Return the token that requests of the HTTP API must have, if one is set.

    :raises StartError: when the file cannot be read, or has no token.
    """
    file = config.http_token_file
    if file is None:
        return None
    try:
        token = file.read_text("utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as failure:
        reason = getattr(failure, "strerror", None) or failure
        raise StartError(
            f"cannot read http_token_file = {file}: {reason}; check the path"
        ) from failure
    if len(token) < SHORTEST_TOKEN or not (token.isascii() and token.isprintable()):
        raise StartError(
            f"http_token_file = {file} has no token of {SHORTEST_TOKEN} letters or more on one line; "
            "make one, for example with: openssl rand -hex 24"
        )
    return token
