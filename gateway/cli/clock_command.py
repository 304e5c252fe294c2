"""`tidegate clock`: shows and moves the clock of a gateway for tests."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import rich_click as click

from gateway.cli.asking import now_ms, server_options

if TYPE_CHECKING:
    from gateway.client import RemotingClient


@click.command()
@click.argument("action", type=click.Choice(("advance", "set")), required=False)
@click.argument("value", required=False, metavar="[DURATION|TIME]")
@server_options
def clock(connection: RemotingClient, action: str | None, value: str | None, as_json: bool) -> None:
    """Show a gateway's clock, or move the manual clock of a gateway for tests.

    The clock of a gateway that was started with --clock manual stands still until it is moved. Messages
    that come due on the way fire at exactly their times, one after the other, and the command ends when
    all of them are stored. It waits for at most --timeout; the gateway goes on after that, and
    'advance 0s' waits for the rest.

    A DURATION is written as 30m, 1h30m or 500ms. A TIME is ISO 8601 (local time unless it has a zone), `now`
    (the time of this machine) or epoch ms. After the clock is set back, nothing fires until it has reached
    the old time again.

    \b
    Examples:
      tidegate serve --clock manual --data /tmp/test-data
      tidegate clock
      tidegate clock advance 30m
      tidegate clock advance 0s --timeout 600
      tidegate clock set 2030-01-31T09:30:00Z --json
    """
    from gateway.cli import display
    from gateway.client import NoAnswerError, move_clock

    if action is not None and value is None:
        raise click.UsageError("say how far: 'tidegate clock advance 30m', or set and a time")
    asked: dict[str, int | None] = {"advance": None, "to": None}
    if action == "advance":
        asked["advance"] = _duration_ms(value or "")
    elif action == "set":
        asked["to"] = _time(value or "")
    with connection:
        try:
            state = move_clock(connection, **asked)
        except NoAnswerError as error:
            if action is None:
                raise
            raise click.ClickException(
                f"{error}. The gateway goes on moving the clock. Do not repeat 'tidegate clock advance', or it "
                "moves the clock again: 'tidegate clock' shows how far it is, and 'tidegate clock advance 0s' with a "
                "longer --timeout waits for it"
            ) from None
    display.clock(state, as_json=as_json)


def _duration_ms(text: str) -> int:
    from gateway.settings.values import parse_duration

    try:
        return parse_duration(text) // timedelta(milliseconds=1)
    except ValueError:
        raise click.UsageError(
            f"{text!r} is not a duration; write one such as 30m, 1h30m or 500ms"
        ) from None


def _time(text: str) -> int:
    from gateway.moments import parse_moment

    if text[:1] in ("+", "-"):  # relative to this machine's clock, not the gateway's
        raise click.UsageError(
            f"{text!r} is a distance, not a time; for that use 'tidegate clock advance 30m'"
        )
    try:
        return parse_moment(text, now_ms())
    except ValueError as error:
        raise click.UsageError(str(error)) from None
