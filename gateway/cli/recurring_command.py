"""`tidegate recurring`: sets, shows and changes the recurring messages of a running gateway."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any

import rich_click as click

from gateway.cli.asking import SOURCE, given, lines_of, now_ms, server_options
from gateway.cli.data_folder import FAULTY

if TYPE_CHECKING:
    from gateway.client import RemotingClient

_given = given("give one, or leave the flag out")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def recurring() -> None:
    """Set, show, pause and delete recurring messages.

    A recurring message is set once, with a cron expression or a period, and fires at each of its times. Any
    client can set one, by properties of a message: docs/recurring.md.

    \b
    Examples:
      tidegate recurring add --topic reports --name nightly \\
          --cron '0 5 * * MON-FRI' --zone Europe/Berlin --body go
      tidegate recurring list
      tidegate recurring pause --topic reports --name nightly
    """


def _named(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--name", required=True, metavar="NAME", help="Its name in that topic."),
        click.option("--topic", required=True, metavar="TOPIC", help="The topic that it fires in."),
    ):
        command = option(command)
    return command


def _rule(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option(
            "--end", metavar="TIME", callback=_given, help="Fire nothing after this time."
        ),
        click.option(
            "--start", metavar="TIME", callback=_given, help="Fire nothing before this time."
        ),
        click.option(
            "--zone",
            metavar="ZONE",
            callback=_given,
            help="Time zone of the cron expression and of times, such as Europe/Berlin. Default: UTC.",
        ),
        click.option(
            "--every",
            metavar="PERIOD",
            callback=_given,
            help="Repeat at this period: 30s, 2m, 1h30m, 7d.",
        ),
        click.option(
            "--cron",
            metavar="EXPRESSION",
            callback=_given,
            help="Repeat by cron: minute hour day-of-month month day-of-week, or six fields with the second first.",
        ),
    ):
        command = option(command)
    return command


@recurring.command("list")
@server_options
@click.option("--topic", metavar="TOPIC", callback=_given, help="Only those in this topic.")
@click.option(
    "--full", is_flag=True, help="With --json, also print bodies (base64) and properties."
)
def list_(connection: RemotingClient, topic: str | None, full: bool, as_json: bool) -> None:
    """List recurring messages by topic and name.

    With --json each line is one recurring message, with times in epoch ms. With --full the lines also have
    the bodies, in base64, and can be imported.

    \b
    Examples:
      tidegate recurring list --topic reports
      tidegate recurring list --full --json > recurring.jsonl
    """
    from gateway.cli import display
    from gateway.cli.recurring_client import list_recurring

    with connection:
        found = list_recurring(connection, topic=topic, full=full)
    if as_json:
        display.json_lines(found)
    else:
        display.recurring_table(found, now_ms())


@recurring.command()
@server_options
@_named
@_rule
@click.option("--count", metavar="NUMBER", callback=_given, help="End after this many messages.")
@click.option(
    "--misfire",
    metavar="POLICY",
    callback=_given,
    help="What to do with missed ones: SMART, FIRE_ONCE_NOW, DO_NOTHING or IGNORE_MISFIRE_POLICY (fire all).",
)
@click.option("--body", metavar="TEXT", help="The message's body.")
@click.option("--body-file", type=SOURCE, metavar="FILE", help="The message's body, from a file.")
@click.option("--tag", metavar="TAG", callback=_given, help="The message's tag.")
@click.option(
    "--keys", metavar="KEYS", callback=_given, help="The message's keys, separated by blanks."
)
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="A property of the message. Can be given several times.",
)
@click.option(
    "--queue",
    type=click.IntRange(0),
    default=None,
    metavar="NUMBER",
    help="The queue that it fires in. Default: the gateway chooses one and keeps to it.",
)
def add(
    connection: RemotingClient,
    topic: str,
    name: str,
    body: str | None,
    body_file: IO[bytes] | None,
    tag: str | None,
    keys: str | None,
    properties: tuple[str, ...],
    queue: int | None,
    as_json: bool,
    **rule: str | None,
) -> None:
    """Set a recurring message, or replace the one with the same topic and name.

    If the rule is the same as before, times and count go on, and only the message and the misfire policy
    change. A TIME is ISO 8601 (in --zone unless it has its own), relative (+30m) or epoch ms.

    \b
    Examples:
      tidegate recurring add --topic reports --name nightly \\
          --cron '0 5 * * *' --zone Europe/Berlin --body go
      tidegate recurring add --topic beats --name pulse --every 2m \\
          --body-file pulse.json --tag pulse --count 10
    """
    from gateway.cli import display
    from gateway.cli.recurring_client import set_recurring

    if (body is None) == (body_file is None):
        raise click.UsageError("give the message's body by --body or by --body-file")
    content = (
        body.encode() if body is not None else b"".join(lines_of(body_file)) if body_file else b""
    )
    if not content:
        raise click.UsageError("a message without a body cannot be sent")
    own = dict(_pair(one) for one in properties)
    own |= {name: value for name, value in (("TAGS", tag), ("KEYS", keys)) if value is not None}
    with connection:
        done = set_recurring(connection, topic, name, content, own, rule, queue)
    display.recurring_change(done, now_ms(), as_json=as_json)


def _pair(text: str) -> tuple[str, str]:
    name, assigns, value = text.partition("=")
    if not name or not assigns or not value:
        raise click.UsageError(f"{text!r} is not NAME=VALUE")
    return name, value


def _change(order: str, meaning: str) -> None:
    @recurring.command(
        order,
        help=f"{meaning}\n\nPrints what was done, even if nothing had to change.\n\n"
        f"\b\nExample:\n  tidegate recurring {order} --topic reports --name nightly",
    )
    @server_options
    @_named
    def change(connection: RemotingClient, topic: str, name: str, as_json: bool) -> None:
        from gateway.cli import display
        from gateway.cli.recurring_client import change_recurring

        with connection:
            done = change_recurring(connection, change=order, topic=topic, name=name)
        display.recurring_change(done, now_ms(), as_json=as_json)


_change("pause", "Pause a recurring message: it does not fire until it is resumed.")
_change("resume", "Resume a recurring message. Its misfire policy decides about what it missed.")
_change("delete", "Delete a recurring message. Messages that have fired stay in their queue.")


@recurring.command("next")
@server_options
@click.option("--topic", metavar="TOPIC", help="The topic of a recurring message.")
@click.option("--name", metavar="NAME", help="Its name in that topic.")
@_rule
@click.option(
    "--times",
    type=click.IntRange(1, 1000),
    default=10,
    metavar="NUMBER",
    help="How many times to show. Default: 10.",
)
def next_(connection: RemotingClient, as_json: bool, times: int, **asked: Any) -> None:
    """Show when a recurring message fires next, or when a rule would fire if it were set now.

    Nothing is set, so use it to see what an expression means, also when daylight saving time begins or ends.

    \b
    Examples:
      tidegate recurring next --topic reports --name nightly
      tidegate recurring next --cron '0 5 31 * *' --zone Europe/Berlin --times 3
    """
    from gateway.cli import display
    from gateway.cli.recurring_client import next_times

    if (asked["topic"] is None) != (asked["name"] is None):
        raise click.UsageError("give --topic and --name together, or a rule")
    rule = [value for flag, value in asked.items() if flag not in ("topic", "name")]
    if asked["name"] is not None and any(rule):
        raise click.UsageError("ask about --topic and --name, or about a rule, and not both")
    with connection:
        found = next_times(connection, times=times, **asked)
    display.recurring_times(found, now_ms(), as_json=as_json)


@recurring.command("import")
@server_options
@click.argument("source", type=SOURCE)
def import_(connection: RemotingClient, source: IO[bytes], as_json: bool) -> None:
    """Set the recurring messages of a file that `list --full --json` wrote, at this gateway or another one.

    One that the gateway does not have with the same rule begins anew: its count at 0, and a period without a
    start now. Paused ones are paused. Each refused line is named on standard error, and the exit status is
    then 4.

    \b
    Example:
      tidegate recurring import recurring.jsonl --server 192.0.2.7:9876
    """
    import msgspec

    from gateway.cli import display
    from gateway.cli.recurring_client import restore_recurring
    from gateway.client import RefusalError
    from gateway.wire.recurring_bodies import RecurringMessage

    failed = 0
    with connection:
        for number, line in enumerate(lines_of(source), 1):
            if not line.strip():
                continue
            try:
                one = msgspec.json.decode(line, type=RecurringMessage)
                done = restore_recurring(connection, one)
            except (msgspec.DecodeError, UnicodeDecodeError, RefusalError) as error:
                failed += 1
                click.echo(f"line {number}: {' '.join(str(error).split())}", err=True)
                continue
            display.recurring_change(done, now_ms(), as_json=as_json)
    if failed:
        click.echo(f"{failed:,} could not be set", err=True)
        sys.exit(FAULTY)
