"""The command `tidegate`: serves, shows settings, and shows and changes the messages of a running gateway.

Exit status: 0 done; 1 the server could not be reached or refused; 2 a wrong flag or setting; 3 a message was not
aborted or rescheduled as asked; 4 a data folder has faults, or not everything could be imported.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import rich_click as click
from click.exceptions import NoArgsIsHelpError
from rich_click import RichCommand, RichOption

from gateway.apart import COMMANDS, run_apart
from gateway.cli import change_commands, folder_commands, transfer_commands
from gateway.cli.asking import moment, now_ms, refuse_empty, server_options
from gateway.cli.audit_command import audit
from gateway.cli.capturing import capture
from gateway.cli.clock_command import clock
from gateway.cli.log_command import log_level
from gateway.cli.manual import completion, man
from gateway.cli.recurring_command import recurring

if TYPE_CHECKING:
    from gateway.client import RemotingClient
    from gateway.settings.loading import Loaded
    from gateway.wire.pending_bodies import PausedTopic

STATES: Final = ("pending", "fired", "aborted", "any")
_JOBS: Final = {
    "ingest": "Read recordings, packet captures and commit logs into tables.",
    "profile": "Describe recorded traffic: rates, sizes, delays.",
    "replay": "Send recorded requests again, to a gateway or a broker.",
    "compare": "Show which answers differ between two runs.",
    "verify": "Check that each delayed message fired once, and when.",
    "report": "Make one page of the results of the other jobs.",
    "jobs": "Run several of these commands in one Spark session.",
}
_CARE_OF_DATA: Final = (*folder_commands.COMMANDS, *transfer_commands.COMMANDS)
_FAILED: Final = 1
_WRONG: Final = 2
_LAST_STANDARD: Final = 2
"""The descriptor of standard error, the highest of the three standard ones."""
_UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of writing to standard output, or to an open file: the disk or a quota is full, the file too large, or the
disk or the terminal gone."""


# Set for all commands: commands of other packages are groups of their own, which inherit nothing from this one.
click.rich_click.TEXT_PARAGRAPH_LINEBREAKS = "\n\n"
click.rich_click.PADDING_HELPTEXT = (0, 1, 1, 1)
click.rich_click.PADDING_HELPTEXT_FIRST_LINE = (0, 0, 1, 0)


class SettingsCommand(RichCommand):
    """A command that also takes every setting as a flag.

    The flags are built only when they are needed, so that other commands start without importing the settings.
    """

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the command's own parameters, and a flag for each setting."""
        from gateway.settings.loading import FILE_VARIABLE

        file = RichOption(
            ["--config", "file"],
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="TOML file with settings. 'tidegate config --toml' prints a sample. "
            f"Variable: {FILE_VARIABLE}.",
            panel="Settings file",
        )
        inherited = super().get_params(ctx)
        return [*inherited[:-1], file, *_setting_options(), inherited[-1]]


def _setting_options() -> Iterator[RichOption]:
    from gateway.settings.config import descriptions

    for entry in descriptions().values():
        flags = f"{entry.flag}/--no-{entry.flag[2:]}" if entry.is_switch else entry.flag
        default = entry.show(entry.default)
        yield RichOption(
            [flags, entry.name],
            default=None,
            is_flag=entry.is_switch,
            metavar=None if entry.is_switch else entry.kind.metavar,
            help=entry.meaning + (f" Default: {default}." if default else ""),
            panel=entry.about.group,
        )


def _settle(file: Path | None, flags: dict[str, object]) -> Loaded:
    from gateway.settings.loading import ConfigError, load

    try:
        return load(flags, os.environ, file)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.command_panel(
    "Running a gateway", commands=["serve", "config", "version", "completion", "man"]
)
@click.command_panel(
    "Messages and state of a running gateway",
    commands=[
        "pending",
        "abort",
        "reschedule",
        "pause",
        "resume",
        "recurring",
        "clock",
        "log-level",
    ],
)
@click.command_panel(
    "Data folders", commands=[*(command.name or "" for command in _CARE_OF_DATA), "audit"]
)
@click.command_panel("Comparing with a real broker", commands=["bench", "compat"])
@click.command_panel("Recorded traffic", commands=["capture", *_JOBS])
@click.version_option(package_name="tidegate", message="%(prog)s %(version)s")
def cli() -> None:
    """A gateway for RocketMQ clients, with delayed and scheduled messages.

    A message is delivered at its millisecond, up to years ahead. Until then it can be found, moved and
    aborted.

    \b
    Start a gateway and look into it:
      tidegate serve --data ./data
      tidegate pending --topic orders
      tidegate abort --topic orders --key order-1001
    """


@cli.command(cls=SettingsCommand)
def serve(file: Path | None, **flags: object) -> None:
    """Start the gateway and serve until it is stopped (Ctrl-C or SIGTERM).

    RocketMQ clients use its address as their name server address. Every setting can be given as a flag,
    as an environment variable (TIDEGATE_LISTEN for --listen) or in the settings file. Flags override
    variables, and variables override the file.

    \b
    Examples:
      tidegate serve
      tidegate serve --data ./data --listen 127.0.0.1:0    # a free port, printed
      tidegate serve --listen 0.0.0.0:9876 --advertise 192.0.2.7
      tidegate serve --config tidegate.toml --flush async
    """
    config = _settle(file, flags).config
    if config.workers > 1:
        from gateway.workers import leader

        sys.exit(leader.run(config, _as_variables(file, flags)))
    from gateway.service import run

    sys.exit(run(config))


def _as_variables(file: Path | None, flags: dict[str, object]) -> dict[str, str]:
    """Return the environment variables that have the same effect as these flags."""
    from gateway.settings.config import descriptions
    from gateway.settings.loading import FILE_VARIABLE

    settings = descriptions()
    found = {
        settings[name].variable: str(value) for name, value in flags.items() if value is not None
    }
    return found if file is None else {**found, FILE_VARIABLE: str(file)}


@cli.command(cls=SettingsCommand)
@click.option(
    "--toml",
    "form",
    flag_value="toml",
    panel="Output",
    help="Print a settings file that explains each setting.",
)
@click.option(
    "--json", "form", flag_value="json", panel="Output", help="Print JSON: one object per setting."
)
def config(file: Path | None, form: str | None, **flags: object) -> None:
    """Show every setting: its value, where the value comes from, its default and its meaning.

    Takes the flags of `tidegate serve` but starts nothing, so it can also check settings.

    \b
    Examples:
      tidegate config
      tidegate config --config tidegate.toml --flush async
      tidegate config --toml > tidegate.toml
      tidegate config --json | jq .listen.value
    """
    from gateway.cli import display
    from gateway.settings.config import toml_sample

    loaded = _settle(file, flags)
    if form == "toml":
        click.echo(toml_sample(loaded.config, chosen=frozenset(loaded.origins)), nl=False)
    elif form == "json":
        click.echo(display.settings_json(loaded))
    else:
        display.settings_table(loaded)


@cli.command()
def version() -> None:
    """Show the versions of tidegate, of Python and of the main libraries."""
    import platform
    from importlib.metadata import version as version_of

    parts = ", ".join(f"{name} {version_of(name)}" for name in ("Twisted", "lmdb", "msgspec"))
    click.echo(f"tidegate {version_of('tidegate')} (Python {platform.python_version()}, {parts})")


@cli.command()
@server_options
@click.option("--id", metavar="ID", help="Message id: the client's id or the offset id.")
@click.option("--key", metavar="KEY", help="Messages with this key; of more than 2,000 the newest.")
@click.option("--topic", metavar="TOPIC", help="Messages of this topic.")
@click.option("--tag", metavar="TAG", help="Messages with this tag.")
@click.option("--from", "begin", metavar="TIME", callback=moment, help="Due at this time or later.")
@click.option("--to", "end", metavar="TIME", callback=moment, help="Due before this time.")
@click.option(
    "--state",
    type=click.Choice(STATES),
    default="pending",
    help="Messages in this state. Default: pending (not fired).",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 1000),
    default=50,
    metavar="NUMBER",
    help="Messages per page, at most 1000. Default: 50.",
)
@click.option("--cursor", metavar="CURSOR", help="Continue where an earlier page ended.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="All pages; with --json each is printed as it arrives.",
)
def pending(
    connection: RemotingClient,
    as_json: bool,
    cursor: str | None,
    everything: bool,
    **asked: Any,
) -> None:
    """Show pending messages, the next one due first.

    A TIME is ISO 8601 (local time unless it has a zone), relative (+30m, -2h), `now` or epoch ms.

    With --state fired and a --topic, or with --state aborted, --from and --to are the times when messages
    fired or were aborted, and the last one comes first. --state any needs --id or --key, and also finds
    messages without a delay: these are untimed.

    With --json each line is one message, with times in epoch ms. If there are more messages and --all is
    not given, the last line is {"cursor": "..."}, for --cursor.

    \b
    Examples:
      tidegate pending
      tidegate pending --topic orders --key order-1001
      tidegate pending --topic orders --tag close --from now --to +30m
      tidegate pending --from 2030-01-31T00:00 --all --json > january.jsonl
      tidegate pending --id 7F0000010A2B18B4AAC2... --state any
    """
    from gateway.cli import display
    from gateway.client import look_up, paused_topics

    refuse_empty(asked)
    none = "no message matches"
    if asked["state"] == "pending" and (asked["id"] or asked["key"]):
        none = "no pending message matches; --state any shows also those that have fired or were aborted"
    shown = display.MessageLines() if as_json else display.MessageTable(now_ms(), none)
    names: set[str] = set()
    paused: list[PausedTopic] = []
    with connection:
        while True:
            page = look_up(connection, cursor=cursor, **asked)
            shown.add(page.messages)
            names |= {one.topic for one in page.paused}
            cursor = page.cursor
            if cursor is None or not everything:
                break
        if names and not as_json:
            # With several workers, a page counts only what waits at those that have messages on it.
            paused = [one for one in paused_topics(connection) if one.topic in names]
    shown.end(cursor)
    display.paused_note(paused, now_ms())


@cli.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: tuple[str, ...]) -> None:
    """Measure the gateway and a real RocketMQ broker. `tidegate bench --help` says more."""
    # Imported only here: other commands do not need real clients and a broker.
    from compat.bench.command import bench as measure

    measure.main(args=arguments, prog_name="tidegate bench", standalone_mode=False)


@cli.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def compat(arguments: tuple[str, ...]) -> None:
    """Compare how the gateway and a real RocketMQ broker behave. `tidegate compat --help` says more."""
    from compat.command import compat as compare

    compare.main(args=arguments, prog_name="tidegate compat", standalone_mode=False)


for command in (
    *(*_CARE_OF_DATA, *change_commands.COMMANDS, audit, clock, log_level, recurring),
    *(capture, completion, man),
):
    cli.add_command(command)


def _add_job(name: str, meaning: str) -> None:
    @cli.command(
        name,
        help=f"{meaning} `tidegate {name} --help` says more.",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True},
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def job(arguments: tuple[str, ...]) -> None:
        # Imported only here: it needs the extra `spark`.
        from spark_jobs.command import main as run

        run([name, *arguments])


for _name, _meaning in _JOBS.items():
    _add_job(_name, _meaning)


def main() -> None:
    """Run the command as a process: see `run`."""
    _fill_standard_descriptors()
    _heed_no_failure_of_standard_error()
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name in COMMANDS:
        run_apart(run, lambda text: _complain(text, f"tidegate {name}"))
    else:
        run()


def run() -> None:
    """Run the command. Errors of known kinds are printed as one line on standard error."""
    try:
        try:
            cli.main(prog_name="tidegate", standalone_mode=False)
        finally:
            # What is still buffered would fail at the interpreter's exit, with a traceback. It is None if standard
            # output is closed.
            if sys.stdout is not None:
                sys.stdout.flush()
    except NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "tidegate"
        _complain(error.format_message(), command)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except UnicodeEncodeError as error:
        letters = error.object[error.start : error.end]
        if error.encoding == "utf-8":
            _complain(f"{letters!a} in the arguments is not UTF-8", "tidegate")
            sys.exit(_WRONG)
        _complain(
            f"standard output is {error.encoding}, which has no {letters!a}: set PYTHONIOENCODING=utf-8",
            "tidegate",
        )
        sys.exit(_FAILED)
    except BrokenPipeError:
        # The reader of a pipe, such as `head`, has closed it.
        _leave_unwritten()
        sys.exit(_FAILED)
    except OSError as error:
        if error.filename is not None:
            # Such as a folder that root restored for a gateway with a user of its own.
            who = "; run this as its owner, or make it this user's (chown)"
            advice = who if isinstance(error, PermissionError) else ""
            _complain(f"cannot use {error.filename}: {error.strerror}{advice}", "tidegate")
        elif error.errno in _UNWRITABLE:
            _complain(f"cannot write to standard output: {error.strerror}", "tidegate")
            _leave_unwritten()
        else:
            raise
        sys.exit(_FAILED)
    except Exception as error:
        from gateway.client import ClientError, RefusalError
        from storage import StorageError, as_told

        told = as_told(error)
        if not isinstance(told, ClientError | RefusalError | StorageError):
            raise
        _complain(str(told), "tidegate")
        sys.exit(_FAILED)


def _fill_standard_descriptors() -> None:
    """Open /dev/null for each of standard input, output and error that is closed. Otherwise a file that is opened later
    would get its descriptor, and what is written to standard output or error."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:
        pass
    os.close(opened)


class _StandardError(io.FileIO):
    """Standard error, without what a full disk or a terminal that is gone does not take. It has progress and reasons,
    and no backup fails because nobody can read them."""

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        """Write bytes, or drop them."""
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _heed_no_failure_of_standard_error() -> None:
    before = sys.stderr
    if before is not None:
        raw = _StandardError(before.fileno(), "w", closefd=False)
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(raw),
            encoding=before.encoding,
            errors=before.errors,
            line_buffering=True,
        )


def _leave_unwritten() -> None:
    """Discard the rest of standard output: flushing it at exit would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str, command: str) -> None:
    from gateway.cli.display import printable

    click.echo(f"{command}: {printable(' '.join(message.split()))}", err=True)
