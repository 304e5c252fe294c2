"""`tidegate capture`: a proxy between clients and their RocketMQ that records the traffic."""

from __future__ import annotations

import ipaddress
import os
import re
import sys
from datetime import timedelta
from pathlib import Path
from typing import Final

import rich_click as click

from gateway.cli.asking import address
from gateway.cli.data_folder import FOLDER

_FAILED: Final = 1
_LEAST_FILE_SIZE: Final = 1024
"""With less, as with 0, each write would begin a file."""
_PANEL: Final = "Files"


def _listen(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, int]:
    from gateway.settings.values import parse_host_port

    try:
        host, port = parse_host_port(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: {error}; write HOST:PORT") from None
    return host, port


def _size(ctx: click.Context, param: click.Parameter, value: str) -> int:
    from gateway.settings.values import parse_size

    try:
        return parse_size(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: {error}; write 256MiB or 1GiB") from None


def _file_size(ctx: click.Context, param: click.Parameter, value: str) -> int:
    size = _size(ctx, param, value)
    if size < _LEAST_FILE_SIZE:
        raise click.BadParameter(f"{value!r} is less than 1KiB; write 256MiB or 1GiB")
    return size


def _duration(ctx: click.Context, param: click.Parameter, value: str) -> timedelta:
    from gateway.settings.values import parse_duration

    try:
        duration = parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: {error}; write 10m or 1h") from None
    if duration <= timedelta():
        raise click.BadParameter(f"{value!r} is not longer than 0; write 10m or 1h")
    return duration


def _advertised(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    # The proxy adds brackets to an IPv6 address where it writes a port after it.
    host = value.removeprefix("[").removesuffix("]")
    try:
        is_host = not ipaddress.ip_address(host).is_unspecified
    except ValueError:
        is_host = re.fullmatch(r"[A-Za-z0-9._-]+", host) is not None
    if not is_host:
        raise click.BadParameter(
            f"{value!r} is not a host that clients can connect to; write an address or a name, without a port"
        )
    return host


@click.command()
@click.option(
    "--listen",
    required=True,
    callback=_listen,
    metavar="HOST:PORT",
    help="Address to listen on; clients use it as their name server. Port 0 picks a free port.",
)
@click.option(
    "--to",
    "server",
    required=True,
    callback=address,
    metavar="HOST:PORT",
    help="The name server, or the gateway, that clients used before.",
)
@click.option(
    "--out",
    required=True,
    type=FOLDER,
    metavar="DIR",
    help="Folder for the capture files.",
)
@click.option(
    "--advertise",
    callback=_advertised,
    metavar="HOST",
    help="Host that clients are given as the brokers' address. Default: the address that each client connected to.",
)
@click.option(
    "--file-size",
    default="256MiB",
    callback=_file_size,
    metavar="SIZE",
    help="Size at which the next file begins. Default: 256MiB.",
    panel=_PANEL,
)
@click.option(
    "--file-time",
    default="1h",
    callback=_duration,
    metavar="DURATION",
    help="Time after which the next file begins. Default: 1h.",
    panel=_PANEL,
)
@click.option(
    "--keep",
    default=0,
    type=click.IntRange(0),
    metavar="NUMBER",
    help="Number of files to keep; the oldest are removed. Default: 0, which keeps all.",
    panel=_PANEL,
)
@click.option(
    "--least-free",
    default="1GiB",
    callback=_size,
    metavar="SIZE",
    help="Record nothing while the disk has less than this free. Default: 1GiB.",
    panel=_PANEL,
)
def capture(
    listen: tuple[str, int],
    server: tuple[str, int],
    out: Path,
    advertise: str | None,
    file_size: int,
    file_time: timedelta,
    keep: int,
    least_free: int,
) -> None:
    """Record the traffic between clients and their RocketMQ as a proxy, for `tidegate ingest`.

    Clients use --listen as their name server. Their requests are forwarded to --to, and the answers are
    returned unchanged, except for brokers' addresses: clients are told to reach the brokers through the
    proxy too. It opens a port for each broker when that is first named: the broker's own port if it is
    free, else any. A broker sees this machine as the client's address.

    Traffic never waits for the disk. If the disk is too slow or full, traffic goes on, and frames that were
    not recorded are counted, here and in the files. TLS connections are forwarded but cannot be read, and
    clients that look up brokers over TLS get the real addresses. Stop the proxy with Ctrl-C or
    SIGTERM; it closes the open connections, and clients reconnect.

    The exit status is 0 if everything that can be read was recorded, and 1 if not.

    \b
    Examples:
      tidegate capture --listen 0.0.0.0:9877 --to 192.0.2.7:9876 \\
          --out /data/capture
      tidegate capture --listen 127.0.0.1:9877 --to 127.0.0.1:9876 \\
          --out monday --keep 24
    """
    from gateway.settings.values import HostPort
    from recording.running import run
    from recording.writer import CaptureWriter, Rotation

    if server == listen and listen[1]:
        raise click.UsageError(
            "--to and --listen are the same address: give --to the address of the name server"
        )
    rotation = Rotation(file_size, file_time.total_seconds(), keep)
    writer = CaptureWriter(out, rotation, least_free=least_free)
    try:
        run(listen, server, writer, advertise=advertise)
    except OSError as error:
        # Only errors of the folder's files have a file name. Python adds an address to the text of errors of sockets.
        reason = os.strerror(error.errno) if error.errno is not None else str(error)
        if error.filename is not None:
            text = f"cannot record into {out}: {reason}; give --out a folder that can be written to"
        else:
            at = HostPort(*listen)
            text = f"cannot listen on {at}: {reason}; stop what uses it, or give --listen another address"
        raise click.ClickException(text) from None
    sys.exit(_FAILED if writer.counts.lost else 0)
