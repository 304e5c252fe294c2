"""Shared parts of the commands that send requests to a running gateway: address, TLS, credentials, and times."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import rich_click as click

from gateway.wire.addresses import parse_address

if TYPE_CHECKING:
    from gateway.client import RemotingClient

    Connect = Callable[[str, int], RemotingClient]
    """Makes a connection to a host and a port. `with` opens it, or else the first request."""


def server_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags that name the gateway and the way to connect, and `--json`, to a command. The command gets
    `as_json` and `connection`, which is opened by `with`."""

    @wraps(command)
    def asking(*, server: tuple[str, int], connect: Connect, **others: Any) -> None:
        command(connection=connect(*server), **others)

    asking = click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")(
        asking
    )
    return click.option(
        "--server",
        envvar="TIDEGATE_SERVER",
        default="127.0.0.1:9876",
        metavar="HOST:PORT",
        callback=address,
        help="The gateway to ask. Default: 127.0.0.1:9876. Variable: TIDEGATE_SERVER.",
    )(connection_options("--server")(asking))


def connection_options(flag: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the flags that say how to connect to a server to a command, which gets `connect`.

    :param flag: the flag that names the server's address.
    """

    def adding(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def connecting(
            *,
            timeout: float,
            tls: bool,
            tls_ca: Path | None,
            access_key: str | None,
            secret_key: str | None,
            **others: Any,
        ) -> None:
            from gateway.client import RemotingClient, tls_context

            if (access_key is None) != (secret_key is None):
                raise click.UsageError("give --access-key and --secret-key together")
            context = tls_context(tls_ca) if tls or tls_ca else None
            credentials = (access_key, secret_key) if access_key and secret_key else None

            def connect(host: str, port: int) -> RemotingClient:
                return RemotingClient(host, port, timeout, context, credentials, flag)

            command(connect=connect, **others)

        for option in _CONNECTION_FLAGS:
            connecting = option(connecting)
        return connecting

    return adding


def _seconds(ctx: click.Context, param: click.Parameter, value: float) -> float:
    # NaN compares with nothing, so no range excludes it.
    if math.isnan(value):
        raise click.BadParameter(f"{value} is not a number of seconds")
    return value


_CONNECTION_FLAGS: Final = (
    click.option(
        "--timeout",
        type=click.FloatRange(0.1, 3600),
        default=5.0,
        metavar="SECONDS",
        callback=_seconds,
        help="Time to wait for each answer. Default: 5.",
    ),
    click.option(
        "--secret-key",
        envvar="TIDEGATE_SECRET_KEY",
        metavar="KEY",
        help="That user's secret key. Use the variable TIDEGATE_SECRET_KEY instead: other users can see flags.",
    ),
    click.option(
        "--access-key",
        envvar="TIDEGATE_ACCESS_KEY",
        metavar="NAME",
        help="Sign requests as this user. Variable: TIDEGATE_ACCESS_KEY.",
    ),
    click.option(
        "--tls-ca",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Use TLS, and trust only the certificates in this PEM file.",
    ),
    click.option("--tls", is_flag=True, help="Use TLS, and accept any certificate."),
)


def address(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, int]:
    """Parse a flag's HOST:PORT; the host may be a name."""
    try:
        return parse_address(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def moment(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Parse a flag's time, as people write it, into epoch ms."""
    from gateway.moments import parse_moment

    if value is None:
        return None
    try:
        return parse_moment(value, now_ms())
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def given(advice: str) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """Return the callback of a flag or an argument that refuses an empty text, as from an unset variable of a script.
    Otherwise it would count as left out.

    :param advice: what to do instead.
    """

    def check(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if value == "":
            raise click.BadParameter(f"it is empty: {advice}")
        return value

    return check


class _Source(click.File):
    """A file to read, or with `-` standard input."""

    def convert(
        self,
        value: str | os.PathLike[str] | IO[Any],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> IO[Any]:
        if value == "-" and sys.stdin is None:
            self.fail("standard input is closed: name a file", param, ctx)
        return super().convert(value, param, ctx)


SOURCE: Final = _Source("rb")


def refuse_empty(flags: Mapping[str, object]) -> None:
    """Refuse empty names, as from unset variables of a script: they would not narrow the selection.

    :raises click.UsageError: when one is.
    """
    for name in ("id", "handle", "key", "topic", "tag", "who", "action"):
        if flags.get(name) == "":
            raise click.UsageError(f"--{name} is empty: name one, or leave it out")


def lines_of(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file that a command was given.

    :raises click.ClickException: when the file cannot be read.
    """
    try:
        yield from file
    except OSError as error:
        raise click.ClickException(
            f"cannot read {file.name}: {error.strerror}; check the path, and the disk that it is on"
        ) from None


def now_ms() -> int:
    """Return this machine's time, in epoch ms."""
    return time.time_ns() // 1_000_000
