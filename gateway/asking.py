"""What the commands that ask a running gateway share: its address, TLS, credentials, and how times are written."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from gateway.wire.addresses import parse_address

if TYPE_CHECKING:
    from gateway.client import RemotingClient

    Connect = Callable[[str, int], RemotingClient]
    """Makes a connection to a host and a port, which is opened by `with`, or by the first question."""


def server_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the flags that say which gateway is asked, and how, and `--json`, to a command. It gets `as_json` and
    `connection`, which is opened by `with`."""

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
    """Adds the flags that say how a server is asked to a command, which gets `connect`.

    :param flag: the one that names the server's address.
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
    # No range leaves it out, as it compares with nothing.
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
    """Reads a flag's HOST:PORT; the host may be a name."""
    try:
        return parse_address(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def moment(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A flag's callback: a time as a person writes it, in epoch ms."""
    from gateway.moments import parse_moment

    if value is None:
        return None
    try:
        return parse_moment(value, now_ms())
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def given(advice: str) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """The callback of a flag or an argument that refuses an empty text, as a script's variable leaves it that is not
    set: it would count as left out.

    :param advice: what to do instead.
    """

    def check(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
        if value == "":
            raise click.BadParameter(f"it is empty: {advice}")
        return value

    return check


def refuse_empty(flags: Mapping[str, object]) -> None:
    """Refuse names that are empty, as a script's variable leaves them that is not set: they would narrow nothing.

    :raises click.UsageError: when one is.
    """
    for name in ("id", "handle", "key", "topic", "tag", "who", "action"):
        if flags.get(name) == "":
            raise click.UsageError(f"--{name} is empty: name one, or leave it out")


def now_ms() -> int:
    """The time of this machine, in epoch ms."""
    return time.time_ns() // 1_000_000
