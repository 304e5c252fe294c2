"""The commands that change pending messages: `tidegate abort`, `reschedule`, `pause` and `resume`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from gateway.cli.asking import given, moment, now_ms, refuse_empty, server_options
from gateway.cli.data_folder import counted, is_confirmed, tell

if TYPE_CHECKING:
    from gateway.client import RemotingClient
    from gateway.wire.pending_bodies import AbortOutcome, RescheduleOutcome

_NOTHING_CHANGED: Final = 1
_NOT_ALL: Final = 3

_NARROWING: Final = frozenset({"tag", "begin", "end", "everything"})
_NAMES: Final = ("id", "handle", "key", "topic", "tag", "begin", "end", "everything")


def _selection(verb: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the flags that select messages."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for option in (
            click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
            click.option(
                "--dry-run",
                is_flag=True,
                help="Change nothing; only count the messages of the topic that match.",
            ),
            click.option(
                "--all", "everything", is_flag=True, help="All pending messages of the topic."
            ),
            click.option(
                "--to",
                "end",
                metavar="TIME",
                callback=moment,
                help="Messages due before this time.",
            ),
            click.option(
                "--from",
                "begin",
                metavar="TIME",
                callback=moment,
                help="Messages due at this time or later.",
            ),
            click.option("--tag", metavar="TAG", help="Messages with this tag."),
            click.option(
                "--key",
                metavar="KEY",
                help=f"{verb} the pending messages with this key: at most 1,000, or with --all all of them.",
            ),
            click.option("--topic", metavar="TOPIC", help="The topic of the messages."),
            click.option(
                "--handle", metavar="HANDLE", help="The recall handle that the send returned."
            ),
            click.option("--id", metavar="ID", help="The message with this id."),
        ):
            command = option(command)
        return command

    return add


class _Selection:
    """The messages that the flags of `_selection` select: single ones by id, handle or key, or many."""

    def __init__(self, verb: str, flags: dict[str, Any]) -> None:
        self.flags = {name: flags.pop(name) for name in _NAMES}
        self._dry_run: bool = flags.pop("dry_run")
        self._yes: bool = flags.pop("yes")
        self._verb = verb
        refuse_empty(self.flags)
        asked = {
            name for name, value in self.flags.items() if value is not None and value is not False
        }
        if "key" in asked and "topic" not in asked:
            raise click.UsageError("--key needs --topic: a key means something only in its topic")
        many = bool(asked & _NARROWING) or (self._dry_run and "key" in asked)
        ways = len(asked & {"id", "handle"}) + (many or "key" in asked)
        if ways > 1:
            raise click.UsageError(f"name what to {verb} by only one of --id, --key and --handle")
        if not ways or (many and "topic" not in asked):
            raise click.UsageError(
                f"name what to {verb} by one of --id, --key and --handle, or many with --topic and at least one of "
                "--tag, --from, --to and --all"
            )
        if self._dry_run and not many:
            raise click.UsageError(
                "--dry-run counts messages of a --topic; 'tidegate pending --id ID --state any' shows a single one"
            )
        self.is_many = many

    @property
    def named(self) -> dict[str, str | None]:
        """Return the fields of a request about single messages."""
        return {name: self.flags[name] for name in ("id", "handle", "key", "topic")}

    def change(self, client: RemotingClient, as_json: bool, **how: str | int | None) -> None:
        """Print how many messages match, ask whether to go on, and change them step by step."""
        from gateway.cli import display
        from gateway.client import RefusalError, change_many

        asked = {name: self.flags[name] for name in ("key", "topic", "tag", "begin", "end")}
        count = sum(step.messages for step in change_many(client, action="count", **asked))
        if self._dry_run or not count:
            display.changed(count, "matches" if count == 1 else "match", as_json=as_json)
            if not count:
                sys.exit(_NOT_ALL)
            return
        if not self._yes:
            self._confirm(count)
        steps = change_many(client, action=self._verb, **asked, **how)
        done = f"{self._verb.removesuffix('e')}ed"
        count = 0
        try:
            for step in steps:
                count += step.messages
        except BaseException as error:  # also Ctrl-C: those moved with --by must not be moved twice
            told = f"{counted(count, 'message')} {done}"
            if not isinstance(error, RefusalError):
                tell(f"{told}, and perhaps more: the last step was not answered")
            elif error.may_have_changed:
                tell(
                    f"{told}, and perhaps more: the last step may have been made, at least in part"
                )
            else:
                tell(f"{told} before a step was refused")
            raise
        display.changed(count, done, as_json=as_json)

    def _confirm(self, count: int) -> None:
        question = (
            f"{self._verb.capitalize()} {counted(count, 'message')} of topic {self.flags['topic']}?"
        )
        if not is_confirmed(question):
            tell("nothing was changed")
            sys.exit(_NOTHING_CHANGED)


def _end(
    outcomes: Sequence[AbortOutcome] | Sequence[RescheduleOutcome],
    wanted: str,
    selection: _Selection,
    *,
    as_json: bool,
) -> None:
    """Print the outcomes, and exit with status 3 unless all messages had the outcome that was wanted."""
    from gateway.cli import display
    from gateway.wire.pending_bodies import MAX_CHANGED_BY_KEY

    if as_json:
        display.json_lines(outcomes)
    else:
        display.outcome_table(outcomes, now_ms())
    is_cut = selection.named["key"] is not None and len(outcomes) >= MAX_CHANGED_BY_KEY
    if is_cut:
        tell(
            f"there may be more: a key alone changes at most {MAX_CHANGED_BY_KEY:,} messages; "
            "add --all for all of them"
        )
    if is_cut or not outcomes or any(one.outcome != wanted for one in outcomes):
        sys.exit(_NOT_ALL)


@click.command()
@server_options
@_selection("Abort")
def abort(connection: RemotingClient, as_json: bool, **flags: Any) -> None:
    """Abort pending messages, so that they are never delivered.

    With --id, --handle, or --topic and --key, it prints an outcome for each message: aborted, already
    fired, already aborted or unknown. The exit status is 0 if all were aborted now, 3 if any was not, and
    1 if the gateway could not be asked.

    With --tag, --from, --to or --all it aborts all messages of a topic that match every given flag. It
    shows how many match, and asks before it aborts them.

    \b
    Examples:
      tidegate abort --topic orders --key order-1001
      tidegate abort --id 7F0000010A2B18B4AAC2...
      tidegate abort --handle djEgb3JkZXJz... --json
      tidegate abort --topic orders --tag close --from now --to +30m --dry-run
      tidegate abort --topic orders --tag close --from now --to +30m --yes
    """
    from gateway import client

    selection = _Selection("abort", flags)
    with connection:
        if selection.is_many:
            selection.change(connection, as_json)
            return
        outcomes = client.abort(connection, **selection.named)
    _end(outcomes, "aborted", selection, as_json=as_json)


def _new_time(ctx: click.Context, param: click.Parameter, text: str | None) -> dict[str, int]:
    """Parse a flag's new time into fields of the request. Relative times count from the gateway's clock."""
    if text is None:
        return {}
    if text == "now":
        return {"delay": 0}
    if text[:1] in ("+", "-"):
        return {"delay": _signed_ms(text)}
    due_ms = moment(ctx, param, text)
    assert due_ms is not None
    return {"due": due_ms}


def _shift(ctx: click.Context, param: click.Parameter, text: str | None) -> dict[str, int]:
    """Parse a flag's shift to later or earlier."""
    return {} if text is None else {"shift": _signed_ms(text)}


def _signed_ms(text: str) -> int:
    from gateway.moments import parse_shift

    try:
        return parse_shift(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a distance in time; write one such as +30m, -2h or +1h30m"
        ) from None


@click.command()
@server_options
@_selection("Move")
@click.option(
    "--by",
    "shift",
    metavar="+DURATION|-DURATION",
    callback=_shift,
    help="Move each message by this much, later or earlier.",
)
@click.option("--at", "new_time", metavar="TIME", callback=_new_time, help="The new time.")
def reschedule(
    connection: RemotingClient,
    as_json: bool,
    new_time: dict[str, int],
    shift: dict[str, int],
    **flags: Any,
) -> None:
    """Give pending messages another time.

    --at sets a TIME: ISO 8601 (local time unless it has a zone), relative to now (+30m), `now` or epoch
    ms. --by moves each message from its own time to later (+30m) or earlier (-30m). A time in the past
    delivers at once.

    With --id, --handle, or --topic and --key, it prints an outcome for each message: rescheduled, already
    fired, already aborted or unknown. The exit status is 0 if all were rescheduled, 3 if any was not, and
    1 if the gateway could not be asked. Recall handles of moved messages stay valid.

    With --tag, --from, --to or --all it moves all messages of a topic that match every given flag. It
    shows how many match, and asks before it moves them.

    \b
    Examples:
      tidegate reschedule --topic orders --key order-1001 --at +30m
      tidegate reschedule --id 7F0000010A2B18B4... --at +2h
      tidegate reschedule --topic orders --from now --to +1h --by +2h --dry-run
      tidegate reschedule --topic orders --tag close --by -10m --yes
    """
    from gateway import client

    selection = _Selection("reschedule", flags)
    to = {**new_time, **shift}
    if len(to) != 1:
        raise click.UsageError("name the new time by one of --at TIME and --by +DURATION")
    with connection:
        if selection.is_many:
            selection.change(connection, as_json, **to)
            return
        outcomes = client.reschedule(connection, **selection.named, **to)
    _end(outcomes, "rescheduled", selection, as_json=as_json)


@click.command()
@click.argument("topic", required=False, callback=given("name a topic"))
@server_options
def pause(connection: RemotingClient, topic: str | None, as_json: bool) -> None:
    """Pause a topic: nothing in it fires until it is resumed. Without a topic, list the paused ones.

    Messages that become due during a pause wait. They stay pending, so they can be found, rescheduled and
    aborted. Messages without a delay are delivered as usual, and other topics are not affected. A pause
    survives restarts of the gateway.

    \b
    Examples:
      tidegate pause orders
      tidegate pause
    """
    from gateway import client
    from gateway.cli import display

    with connection:
        if topic is None:
            display.paused_topics(client.paused_topics(connection), now_ms(), as_json=as_json)
        else:
            changed = client.set_paused(connection, topic, paused=True)
            display.pause_set(topic, "paused", changed=changed, as_json=as_json)


@click.command()
@click.argument("topic", callback=given("name a topic"))
@server_options
def resume(connection: RemotingClient, topic: str, as_json: bool) -> None:
    """Resume a paused topic.

    Messages that are overdue fire now, in the order of their due times, in batches that leave room for
    other traffic.

    \b
    Examples:
      tidegate resume orders
      tidegate resume orders --json
    """
    from gateway import client
    from gateway.cli import display

    with connection:
        changed = client.set_paused(connection, topic, paused=False)
    display.pause_set(topic, "resumed", changed=changed, as_json=as_json)


COMMANDS: Final[tuple[Any, ...]] = (abort, reschedule, pause, resume)
"""The commands, which `gateway.cli.main` adds to the command line."""
