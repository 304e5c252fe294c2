"""`tidegate log-level`: shows or changes what a running gateway logs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import rich_click as click

from gateway.cli.asking import server_options

if TYPE_CHECKING:
    from gateway.client import RemotingClient

LEVELS = ("debug", "info", "warn", "error")


@click.command("log-level")
@click.argument("level", type=click.Choice(LEVELS), required=False)
@server_options
def log_level(connection: RemotingClient, level: str | None, as_json: bool) -> None:
    """Show the log level of a running gateway, or change it until its next start.

    With debug, each request is a line. To keep a level, set log_level in the gateway's settings.

    \b
    Examples:
      tidegate log-level
      tidegate log-level debug
      tidegate log-level info --server 127.0.0.1:9876
    """
    from gateway.client import change_setting, setting

    with connection:
        if level is not None:
            change_setting(connection, "log_level", level)
        shown = setting(connection, "log_level")
    click.echo(json.dumps({"log_level": shown}) if as_json else shown)
