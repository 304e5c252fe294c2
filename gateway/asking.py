"""What the commands that ask a running gateway share: its address, TLS, credentials, and how times are written."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import rich_click as click

if TYPE_CHECKING:
    from gateway.client import RemotingClient


class Connection(TypedDict):
    """What the flags of `connection_options` say."""

    timeout: float
    tls: bool
    tls_ca: Path | None
    access_key: str | None
    secret_key: str | None


def server_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the flags of `connect`, and `--json`, to a command."""
    command = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")(
        command
    )
    return click.option(
        "--server",
        envvar="TIDEGATE_SERVER",
        default="127.0.0.1:9876",
        metavar="HOST:PORT",
        callback=address,
        help="The gateway to ask. Default: 127.0.0.1:9876. Variable: TIDEGATE_SERVER.",
    )(connection_options(command))


def connection_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the flags of `connector` to a command."""
    for option in (
        click.option(
            "--timeout",
            type=click.FloatRange(0.1, 3600),
            default=5.0,
            metavar="SECONDS",
            help="How long to wait for each answer. Default: 5.",
        ),
        click.option(
            "--secret-key",
            envvar="TIDEGATE_SECRET_KEY",
            metavar="KEY",
            help="That user's secret key. Better given as the variable TIDEGATE_SECRET_KEY: others see flags.",
        ),
        click.option(
            "--access-key",
            envvar="TIDEGATE_ACCESS_KEY",
            metavar="NAME",
            help="Ask as this user. Variable: TIDEGATE_ACCESS_KEY.",
        ),
        click.option(
            "--tls-ca",
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="Use TLS, and believe only what this PEM file vouches for.",
        ),
        click.option("--tls", is_flag=True, help="Use TLS, and believe any certificate."),
    ):
        command = option(command)
    return command


def address(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, int]:
    """Reads a flag's HOST:PORT; the host may be a name."""
    host, _, port = value.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) <= 65_535):
        raise click.BadParameter(f"{value!r} is not HOST:PORT, such as 127.0.0.1:9876")
    return host.removeprefix("[").removesuffix("]"), int(port)


def connect(server: tuple[str, int], **how: Unpack[Connection]) -> RemotingClient:
    """The gateway that `server_options` name; opened by `with`."""
    return connector(**how)(*server)


def connector(**how: Unpack[Connection]) -> Callable[[str, int], RemotingClient]:
    """What makes connections to a host and a port in the way that `connection_options` say; they are opened by `with`,
    or by the first question."""
    from gateway.client import RemotingClient, tls_context

    access_key, secret_key = how["access_key"], how["secret_key"]
    if (access_key is None) != (secret_key is None):
        raise click.UsageError("give --access-key and --secret-key together")
    context = tls_context(how["tls_ca"]) if how["tls"] or how["tls_ca"] else None
    credentials = (access_key, secret_key) if access_key and secret_key else None
    return lambda host, port: RemotingClient(host, port, how["timeout"], context, credentials)


def moment(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A flag's callback: a time as a person writes it, in epoch ms."""
    from gateway.moments import parse_moment

    if value is None:
        return None
    try:
        return parse_moment(value, now_ms())
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def now_ms() -> int:
    """The time of this machine, in epoch ms."""
    return time.time_ns() // 1_000_000
