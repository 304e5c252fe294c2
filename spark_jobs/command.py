"""The commands of the pipeline. Each reads its arguments and calls one function.

Exit status: 0 if it succeeded and found nothing wrong; 1 if it failed; 2 for a wrong flag; 3 if
answers differ, messages did not fire as they should, or requests of a replay never left.
"""

from __future__ import annotations

import datetime
import functools
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar

import msgspec
import rich_click as click
from click.exceptions import Exit

from gateway.wire.addresses import parse_address, show_address
from gateway.wire.codes import request_name
from spark_jobs import result_files
from spark_jobs.errors import JobError
from spark_jobs.tasks import explained

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.replay import Plan


class _LocalPath(click.Path):
    """A path on this machine. Without the check, an object store's address would be a local folder `s3a:`, and nothing,
    as of a variable that is not set, the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse an address, and nothing."""
        if not str(value):
            self.fail("it is empty", param, ctx)
        if "://" in str(value):
            said = f"{value} is an address: use a path on this machine, such as of a mounted folder"
            self.fail(said, param, ctx)
        return super().convert(value, param, ctx)


class _Setting(click.ParamType[str]):
    """A setting of Spark, which would tell only after its start that it is wrong.

    :param pattern: of the settings that Spark takes.
    """

    def __init__(self, name: str, pattern: str, example: str) -> None:
        self.name = name
        self._pattern = re.compile(pattern)
        self._example = example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse what the pattern does not match."""
        if not self._pattern.fullmatch(value):
            self.fail(f"{value!r} is not like {self._example}", param, ctx)
        return str(value)


class _Amount(click.FloatRange):
    """A number from 0 on."""

    def __init__(self) -> None:
        super().__init__(0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse what is no number of anything: no range excludes `nan`."""
        amount = super().convert(value, param, ctx)
        if not amount <= _MOST:
            self.fail(f"{value} is not a number up to {_MOST:,}", param, ctx)
        return amount


_FOUND_WRONG: Final = 3
_MOST: Final = 1_000_000_000
"""Seconds, and whatever else is a number in a flag, up to this have room in the 64 bits of a time in ns."""
_LONGEST_SHOWN: Final = 120
"""Characters of a value in a line; an answer may have megabytes."""
_SOURCE: Final = _LocalPath(path_type=Path)
# Whole paths, as a relative one with a colon would be an address to Spark, and its tasks may run in other folders.
_FOLDER: Final = _LocalPath(path_type=Path, file_okay=False, resolve_path=True)
_FILE: Final = _LocalPath(path_type=Path, dir_okay=False)
_MASTER: Final = click.option(
    "--master",
    default="local[*]",
    type=_Setting(
        "master",
        r"local(\[(\*|[1-9]\d*)(, *\d+)?\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+",
        "local[*], local[4], spark://HOST:PORT, k8s://HOST:PORT or yarn",
    ),
    help="Spark master. Default: local[*].",
)
_MEMORY: Final = click.option(
    "--memory",
    default="2g",
    type=_Setting("size", r"\d+[kmgtKMGT]?", "2g or 900m"),
    help="Memory of Spark's driver, as for java -Xmx. Default: 2g.",
)
_Kind = TypeVar("_Kind")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Describe recorded traffic, and check whether another server answers it in the same way."""


def _spark_options(run: Callable[..., None]) -> Callable[..., None]:
    """Add the flags of a command that uses Spark, and make its failures and a Ctrl-C no more than a line."""

    @functools.wraps(run)
    def command(**options: Any) -> None:
        from spark_jobs.session import silent_if_interrupted

        with silent_if_interrupted(), explained():
            if options["json_file"] is not None:
                result_files.check(options["json_file"])
            run(**options)

    for option in (
        _MASTER,
        _MEMORY,
        click.option("--progress", is_flag=True, help="Show Spark's own progress, by stage."),
        click.option(
            "--json", "json_file", type=_FILE, help="Also write the results to this file, as JSON."
        ),
    ):
        option(command)
    return command


def _session(options: dict[str, Any]) -> SparkSession:
    from spark_jobs.session import open_session

    return open_session(options["master"], memory=options["memory"], progress=options["progress"])


def _shown(job: str, spark: SparkSession, options: dict[str, Any]) -> AbstractContextManager[None]:
    """Show one line of progress, unless Spark shows its own."""
    from spark_jobs.progress import shown, tasks_of

    return nullcontext() if options["progress"] else shown(job, tasks_of(spark))


def _tell(found: msgspec.Struct, json_file: Path | None) -> None:
    """Print the verdict of each section of the findings' report, and write the JSON that `report` reads."""
    from spark_jobs import reporting

    _write_json(found, json_file)
    for section in reporting.sections([("", found)]):
        click.echo(f"{section.title}: {section.verdict}")


def _note(notes: list[str], said: str) -> None:
    """Print what limits the findings, and keep it for the report."""
    click.echo(said)
    notes.append(said.strip())


def _write_json(found: Any, json_file: Path | None) -> None:
    if json_file is not None:
        result_files.write(json_file, found)


def _address(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, int]:
    try:
        return parse_address(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _renames(ctx: click.Context, param: click.Parameter, value: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in value:
        old, _, new = text.partition("=")
        if not old or not new:
            raise click.BadParameter(f"{text!r} is not OLD=NEW")
        found[old] = new
    return found


def _levels(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    from spark_jobs.messages import parse_levels

    if value is not None:
        try:
            parse_levels(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
    return value


@cli.command()
@click.argument("sources", nargs=-1, required=True, type=_SOURCE)
@click.option("--out", required=True, type=_FOLDER, help="Folder for the tables.")
@click.option(
    "--port",
    "ports",
    multiple=True,
    type=click.IntRange(1, 65_535),
    help="A server's port in packet captures; packets of other ports are left out. Can be given several times. "
    "Default: all connections are read, and the lower port of one whose start was not captured is the server's.",
)
@click.option(
    "--levels", callback=_levels, help="The broker's messageDelayLevel. Default: RocketMQ's own."
)
@_spark_options
def ingest(
    sources: tuple[Path, ...],
    out: Path,
    ports: tuple[int, ...],
    levels: str | None,
    **options: Any,
) -> None:
    """Read recordings, packet captures (pcap, pcapng) and commit logs into a folder of tables.

    SOURCES are files, or folders to be searched. Files that were read before are not read again.

    \b
    Examples:
      tidegate ingest monday.capture --out tables
      tidegate ingest broker.pcap --port 10911 --port 9876 --out tables
      tidegate ingest /data/rocketmq/store/commitlog --out tables
    """
    from spark_jobs.ingest import has_traffic, planned, read
    from spark_jobs.messages import DEFAULT_LEVELS

    with planned(sources, out, ports=ports, levels=levels or DEFAULT_LEVELS) as reading:
        done = reading.done({})
        if reading.fresh:
            spark = _session(options)
            with _shown("ingest", spark, options):
                done = read(spark, reading)
    click.echo(f"{done.files} files read, {done.known} known before")
    if done.being_written:
        click.echo(
            f"  left for a later run: {done.being_written:,} captures that are being written, or that a killed "
            "recorder completes when it is started again"
        )
    if done.others:
        click.echo(f"  passed over: {done.others:,} files that are no recordings")
    for name, number in sorted(done.counts.items()):
        click.echo(f"  {number:,} {name}")
    _write_json(done._asdict(), options["json_file"])
    if done.files + done.known and not has_traffic(out):
        raise JobError(
            f"{out} has no request, answer or message: were the right ports recorded, and named by --port, and was it "
            "without TLS?"
        )


@cli.command()
@click.argument("tables", type=_FOLDER)
@_spark_options
def profile(tables: Path, **options: Any) -> None:
    """Describe recorded traffic: rates, sizes, delays and busiest seconds, by request code and topic.

    TABLES is the folder that `tidegate ingest` made.

    \b
    Example:
      tidegate profile tables --json profile.json
    """
    from spark_jobs.ingest import check_tables, read_table
    from spark_jobs.profiling import profile as run

    check_tables(tables)
    spark = _session(options)
    with _shown("profile", spark, options):
        found = run(read_table(spark, tables, "pair"), read_table(spark, tables, "messages"))
    _tell(found, options["json_file"])


@cli.command()
@click.argument("folder", type=_FOLDER)
@click.option(
    "--grace",
    default=5.0,
    type=_Amount(),
    metavar="SECONDS",
    help="A message that was due this shortly before its queue was last seen does not count as lost. Default: 5.",
)
@click.option(
    "--levels",
    callback=_levels,
    help="For a replay, the target's messageDelayLevel. Default: RocketMQ's own.",
)
@_spark_options
def verify(folder: Path, grace: float, levels: str | None, **options: Any) -> None:
    """Check that each delayed message fired once, and how far from the requested time.

    FOLDER has the tables of `tidegate ingest`, or the output of `replay --watch`; then the messages that the
    replay sent are checked.

    \b
    Examples:
      tidegate verify tables --json recorded.json
      tidegate verify gateway --json replayed.json
    """
    from spark_jobs import replay as job
    from spark_jobs.firing import verify as run
    from spark_jobs.ingest import LACKING, check_tables, read_table, totals
    from spark_jobs.messages import DEFAULT_LEVELS, parse_levels

    is_replay = (folder / "results").exists()
    if levels is not None and not is_replay:
        raise click.UsageError(
            "--levels is for replays: due times in tables are by the --levels of 'tidegate ingest'"
        )
    check = job.check_watched if is_replay else check_tables
    check(folder)
    spark = _session(options)
    notes: list[str] = []
    if is_replay:
        events = job.read_events(spark, folder, parse_levels(levels or DEFAULT_LEVELS))
        results, sent_before = job.read_answers(spark, folder)
        never_left = job.never_left(results)
        if sent_before:
            _note(
                notes,
                f"{sent_before:,} requests were sent before the replay was interrupted: their messages are not "
                "known, and are left out",
            )
    else:
        events = read_table(spark, folder, "messages")
        never_left = 0
        counts = totals(folder)
        if lacks := [f"{counts[name]:,} {name}" for name in LACKING if counts.get(name)]:
            _note(
                notes,
                f"the recording has gaps ({', '.join(lacks)}): a message counts as lost, early or doubled if what "
                "explains it is missing, such as its recall, its reschedule, another send, or the record of its firing",
            )
    with _shown("verify", spark, options):
        found = run(events, grace_ms=round(grace * 1000))
    found.never_left = never_left
    found.notes = notes
    _tell(found, options["json_file"])
    for one in found.samples:
        click.echo(f"  {one['outcome']}: {one['topic']} {one['message_id']}")
    if not found.is_good:
        sys.exit(_FOUND_WRONG)


@cli.command()
@click.argument("tables", type=_FOLDER)
@click.option(
    "--to",
    "target",
    required=True,
    callback=_address,
    metavar="HOST:PORT",
    help="Name server to send to.",
)
@click.option("--out", required=True, type=_FOLDER, help="Folder for the answers.")
@click.option(
    "--speed",
    default=1.0,
    type=_Amount(),
    help="How many times faster than recorded; 0 is as fast as possible. Default: 1.",
)
@click.option(
    "--rate",
    default=0.0,
    type=_Amount(),
    help="Maximum number of requests per second. Default: 0, which means no limit.",
)
@click.option(
    "--code",
    "codes",
    multiple=True,
    type=int,
    help="Send only this request code. Can be given several times.",
)
@click.option(
    "--without",
    multiple=True,
    type=int,
    help="Do not send this request code. Can be given several times.",
)
@click.option(
    "--delays",
    type=click.Choice(["keep", "scale"]),
    default="keep",
    help="scale divides delays by the speed, except delay levels, which the server defines. Default: keep.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    callback=_renames,
    metavar="OLD=NEW",
    help="Replace the recorded topic OLD by NEW.",
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    callback=_renames,
    metavar="OLD=NEW",
    help="Replace the recorded group OLD by NEW.",
)
@click.option(
    "--lead",
    default=10.0,
    type=_Amount(),
    metavar="SECONDS",
    help="Maximum time that tasks wait for one another. Default: 10.",
)
@click.option(
    "--patience",
    default=30.0,
    type=_Amount(),
    metavar="SECONDS",
    help="Time to wait for an answer. Default: 30.",
)
@click.option(
    "--watch",
    default=0.0,
    type=_Amount(),
    metavar="SECONDS",
    help="Also consume what is sent, until this long after the last request, so that `verify` can check it. "
    "Default: 0, nothing is consumed.",
)
@click.option(
    "--from-log",
    is_flag=True,
    help="Send the messages of commit logs instead of recorded requests.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be sent, and send nothing.")
@_spark_options
def replay(
    tables: Path,
    target: tuple[str, int],
    out: Path,
    speed: float,
    rate: float,
    codes: tuple[int, ...],
    without: tuple[int, ...],
    delays: Any,
    topics: dict[str, str],
    groups: dict[str, str],
    lead: float,
    patience: float,
    watch: float,
    from_log: bool,
    dry_run: bool,
    **options: Any,
) -> None:
    """Send recorded requests again, to a gateway or a broker, with their recorded timing.

    TABLES is the folder that `tidegate ingest` made. Destructive requests, such as the deletion of a topic,
    are sent only if --code names them. To continue an interrupted run, give the same command; nothing is
    sent twice.

    With --from-log the messages in a broker's commit log that clients sent are sent again, each when it was
    stored; a delayed one is sent with its due time, to its real topic.

    \b
    Examples:
      tidegate replay tables --to 127.0.0.1:9876 --out gateway \\
          --speed 10 --dry-run
      tidegate replay tables --to 127.0.0.1:9876 --out gateway \\
          --speed 10 --delays scale
      tidegate replay tables --to 127.0.0.1:9876 --out sends \\
          --speed 0 --rate 1000 --code 310
      tidegate replay log-tables --from-log --to 127.0.0.1:9876 \\
          --out gateway --watch 60
    """
    from spark_jobs import replay as job
    from spark_jobs.firing import recorded_twice
    from spark_jobs.ingest import check_tables, read_table, totals
    from spark_jobs.progress import sent_of, shown
    from spark_jobs.rewriting import Rules
    from spark_jobs.watching import Watcher

    if delays == "scale" and not speed:
        raise click.UsageError(
            "--delays scale divides delays by the speed, which --speed 0 leaves open"
        )
    check_tables(tables)
    with ExitStack() as stack:
        broker = None
        if not dry_run:
            stack.enter_context(job.unfinished(out))
            flags = {
                "TABLES": str(tables),
                "--to": show_address(*target),
                "--speed": f"{speed:g}",
                "--code": " ".join(map(str, sorted(set(codes)))),
                "--without": " ".join(map(str, sorted(set(without)))),
                "--delays": delays,
                "--topic": " ".join("=".join(names) for names in sorted(topics.items())),
                "--group": " ".join("=".join(names) for names in sorted(groups.items())),
                "--watch": "SECONDS" if watch else "",  # another number makes no mixture
                "--from-log": "given" if from_log else "",
            }
            job.keep_flags(out, flags)
            broker = job.find_target(target)
        spark = _session(options)
        requests = read_table(spark, tables, "send" if from_log else "pair")
        chosen, plan = job.choose(requests, codes or None, without)
        notes = _tell_plan(plan, codes, without)
        events = read_table(spark, tables, "messages")
        for column, renamed in (("topic", topics), ("group", groups)):
            for name in job.not_recorded(chosen, events, column, renamed):
                _note(notes, f"  --{column} {name}=...: no request has a {column} of this name")
        if twice := recorded_twice(events.where(f"(event = 'sent') = {not from_log}")):
            _note(
                notes,
                f"  {twice:,} sends are in two recordings of the same traffic, and are sent twice: ingest only one of "
                "them",
            )
        if broker is None:
            for code, number in sorted(plan.by_code.items()):
                click.echo(f"  {number:,} of {_code(code)}")
            return
        if not plan.requests:
            why = _why_none(plan, from_log=from_log, has_log="sends" in totals(tables))
            raise JobError(f"there is no request to send: {why}")
        rules = Rules(job.run_name(out), speed, delays, topics, groups)
        if broker.brokers > 1:
            _note(
                notes,
                f"  the target has {broker.brokers} brokers, or workers: all requests go to the first, "
                f"{show_address(*broker.broker)}, and the others are not tested",
            )
        if watch:
            watched = job.topics_of(events, topics, from_log=from_log)
            stack.enter_context(Watcher(broker, watched, out))
        progress = shown("replay", sent_of(out / job.JOURNAL, plan.requests))
        with nullcontext() if options["progress"] else progress:
            found = job.replay(
                spark,
                chosen,
                broker,
                out,
                rules=rules,
                speed=speed,
                rate=rate,
                lead_s=lead,
                patience_s=patience,
                keeps_sends=watch > 0,
            )
        found.notes = notes
        _tell(found, options["json_file"])  # before the watching, which may be ended by a Ctrl-C
        if watch:
            click.echo(
                f"watching for {watch:g} s more; a Ctrl-C ends that, and what was seen is kept"
            )
            time.sleep(watch)
    if found.never_left:
        sys.exit(_FOUND_WRONG)


def _tell_plan(plan: Plan, codes: Sequence[int], without: Sequence[int]) -> list[str]:
    """Print a replay's plan, and return what of it limits the findings."""
    click.echo(
        f"{plan.requests:,} requests on {plan.connections:,} connections, recorded in "
        f"{plan.seconds:,.1f} s; {sum(plan.left_out.values()):,} left out"
    )
    notes: list[str] = []
    for code, number in sorted(plan.left_out.items()):
        _note(notes, f"  left out: {number:,} of {_code(code)}")
    for flag, chosen_codes in (("code", codes), ("without", without)):
        for code in chosen_codes:
            if code not in plan.by_code and code not in plan.left_out:
                _note(notes, f"  --{flag} {code}: no request of a client has this code")
    if plan.from_servers:
        click.echo(
            f"  not counted: {plan.from_servers:,} requests of servers; the target sends its own"
        )
    if plan.brokers > 1:
        _note(
            notes,
            f"  they were sent to {plan.brokers} brokers, and all go to one: queues of the same number become one, so "
            "compare this with another replay, not with the recording",
        )
    return notes


def _code(code: int) -> str:
    """Return a request code with its name, if it has one."""
    name = request_name(code)
    return f"code {code} ({name})" if name else f"code {code}"


def _why_none(plan: Plan, *, from_log: bool, has_log: bool) -> str:
    if plan.left_out:
        return "all are left out, and --code names those to send"
    if from_log:
        return "the tables have no commit log with messages of clients; for other recordings, omit --from-log"
    if has_log:
        return "to send the messages of commit logs, add --from-log"
    return "the tables have none of a client"


@cli.command()
@click.argument("candidate", type=_FOLDER)
@click.option("--recorded", type=_FOLDER, help="Tables whose recorded answers are the baseline.")
@click.option("--baseline", type=_FOLDER, help="Or a replay, such as to a real broker.")
@click.option("--noise", type=_FOLDER, help="A second replay to the baseline's server.")
@click.option("--ignore", multiple=True, metavar="[CODE:]FIELD", help="Ignore this field.")
@_spark_options
def compare(
    candidate: Path,
    recorded: Path | None,
    baseline: Path | None,
    noise: Path | None,
    ignore: tuple[str, ...],
    **options: Any,
) -> None:
    """Show where the answers to a replay differ from the recording or from another replay.

    CANDIDATE is the --out folder of a `tidegate replay`. With --noise, what also differs between the two runs
    of the baseline's server does not count as a difference.

    \b
    Examples:
      tidegate compare gateway --recorded tables
      tidegate compare gateway --baseline broker --noise broker-again \\
          --json compare.json
    """
    from spark_jobs.comparing import compare as run
    from spark_jobs.ingest import check_tables, read_table
    from spark_jobs.replay import check_results, never_left

    if (recorded is None) == (baseline is None):
        raise click.UsageError("name what to compare with by one of --recorded and --baseline")
    replays = [folder for folder in (candidate, baseline, noise) if folder is not None]
    if len(set(replays)) < len(replays):
        raise click.UsageError(
            "name each replay once: compared with itself, it shows no difference"
        )
    for folder in replays:
        check_results(folder)
    if recorded is not None:
        check_tables(recorded)
    spark = _session(options)
    notes: list[str] = []
    results = _answers(spark, candidate, "candidate", notes)
    if recorded is not None:
        asked = read_table(spark, recorded, "pair").where("asked_ns is not null")
        asked = asked.join(results.select("file", "position"), ["file", "position"], "semi")
        # A request without a recorded answer cannot be compared; a oneway one, which has none, is told apart.
        expected = asked.where("answered_ns is not null or flag & 2 != 0")
        if unseen := asked.count() - expected.count():
            _note(notes, f"{unseen:,} requests have no recorded answer and are left out")
        results = results.join(expected.select("file", "position"), ["file", "position"], "semi")
    else:
        assert baseline is not None
        expected = _answers_to_what_left(spark, baseline, "baseline", notes)
    again = None
    if noise is not None:
        again = _answers_to_what_left(spark, noise, "second run", notes)
    if lacking := never_left(results):
        _note(
            notes,
            f"{lacking:,} requests of the candidate never left, as the target was not there: they count as not "
            "answered",
        )
    with _shown("compare", spark, options):
        found = run(expected, results, again, ignored=ignore)
    named = {name for one in found.differences for name in (one.field, f"{one.code}:{one.field}")}
    for name in ignore:
        if name not in named:
            _note(notes, f"  --ignore {name}: no answer differs in a field of this name")
    if noise is None and not found.is_same:
        _note(
            notes,
            "what differs between any two runs, such as ids, is among the differences: only --noise tells it apart",
        )
    found.notes = notes
    _tell(found, options["json_file"])
    for one in found.differences:
        if one.verdict == "differs":
            click.echo(
                f"  {one.code} {one.field}: {one.differ} of {one.answers}, such as "
                f"{_short(one.expected)} and now {_short(one.found)} ({one.file} at {one.position})"
            )
    if not found.is_same:
        sys.exit(_FOUND_WRONG)


def _short(value: str | None) -> str:
    """Return a value as a part of a line."""
    return (
        repr(value)
        if value is None or len(value) <= _LONGEST_SHOWN
        else f"{value[:_LONGEST_SHOWN]!r}..."
    )


def _answers(spark: SparkSession, folder: Path, run: str, notes: list[str]) -> DataFrame:
    """Return the results of a replay, but for what it had sent before it was interrupted, which is told."""
    from spark_jobs.replay import read_answers

    results, sent_before = read_answers(spark, folder)
    if sent_before:
        _note(
            notes,
            f"{sent_before:,} requests of the {run} were sent before it was interrupted: their answers are not known, "
            "and they are left out",
        )
    return results


def _answers_to_what_left(
    spark: SparkSession, folder: Path, run: str, notes: list[str]
) -> DataFrame:
    """Return the results of those requests that left, and say how many never did: the server has not answered these in
    any way."""
    from spark_jobs.replay import never_left

    results = _answers(spark, folder, run, notes)
    if lacking := never_left(results):
        _note(
            notes,
            f"{lacking:,} requests of the {run} never left, as the target was not there: they are left out",
        )
    return results.where("sent_ns is not null")


@cli.command()
@click.option("--compare", multiple=True, type=_FILE, help="A file from compare --json.")
@click.option("--verify", multiple=True, type=_FILE, help="A file from verify --json.")
@click.option("--replay", multiple=True, type=_FILE, help="A file from replay --json.")
@click.option("--profile", multiple=True, type=_FILE, help="A file from profile --json.")
@click.option(
    "--title",
    default="Replay of recorded traffic",
    help="The page's title. Default: Replay of recorded traffic.",
)
@click.option("--out", required=True, type=_FOLDER, help="Folder for report.html and report.md.")
def report(
    compare: tuple[Path, ...],
    verify: tuple[Path, ...],
    replay: tuple[Path, ...],
    profile: tuple[Path, ...],
    title: str,
    out: Path,
) -> None:
    """Make one report, as HTML and as Markdown, from the --json files of the other commands.

    Each flag can be given several times; each file then has a section with its name.

    \b
    Example:
      tidegate report --compare compare.json --verify recorded.json \\
          --verify replayed.json --out report
    """
    from spark_jobs import pages, reporting
    from spark_jobs.comparing import Comparison
    from spark_jobs.firing import Verdict
    from spark_jobs.profiling import Profile
    from spark_jobs.replay import Outcome

    given: list[tuple[tuple[Path, ...], str, type[msgspec.Struct]]] = [
        (compare, "compare", Comparison),
        (verify, "verify", Verdict),
        (replay, "replay", Outcome),
        (profile, "profile", Profile),
    ]
    findings = []
    for files, command, kind in given:
        stems = Counter(file.stem for file in files)
        for file in files:
            name = file.stem if stems[file.stem] == 1 else str(file)
            findings.append((name, _load(file, command, kind)))
    if not findings:
        raise click.UsageError("name what to report by --profile, --replay, --compare or --verify")
    parts = reporting.sections(findings)
    now = datetime.datetime.now(datetime.UTC)
    result_files.write_text(out / "report.html", pages.html(title, now, parts))
    result_files.write_text(out / "report.md", pages.markdown(title, now, parts))
    click.echo(f"{out / 'report.html'} and {out / 'report.md'}")


@cli.command()
@click.argument("file", type=click.File())
@_MEMORY
@_MASTER
def jobs(file: TextIO, master: str, memory: str) -> None:
    """Run the commands of a file, one per line, in one Spark session; - is standard input.

    A session takes some seconds to start, and its first jobs are slow. A wrong command or flag is told before
    the first command runs. A command that fails ends the run. One that found something wrong (3) does not; the
    exit status at the end is then 3. --master and --memory of a command in the file have no effect.

    \b
    Example, a file:
      ingest /data/capture --out tables
      profile tables --json profile.json
      report --profile profile.json --out report
    """
    from spark_jobs.session import open_session

    lines = _commands_of(file)
    open_session(master, memory=memory)
    status = 0
    for arguments in lines:
        click.echo(f"tidegate {shlex.join(arguments)}")
        try:
            cli.main(arguments, prog_name="tidegate", standalone_mode=False)
        except SystemExit as end:
            if end.code != _FOUND_WRONG:
                raise
            status = _FOUND_WRONG
    sys.exit(status)


def _commands_of(file: TextIO) -> list[list[str]]:
    """Return the commands in the lines of a file, split into arguments.

    :raises JobError: for a line that cannot be split, and for a file that is no text, or without a command.
    :raises click.UsageError: for a command or an argument that does not exist or is wrong.
    """
    try:
        lines = file.readlines()
    except UnicodeDecodeError as error:
        raise JobError(f"{file.name}: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        place = f"{file.name}, line {number}"
        try:
            if arguments := shlex.split(line, comments=True):
                found.append(arguments)
                context = cli.context_class(cli, info_name="tidegate")
                with context, suppress(Exit):  # of --help
                    name, command, rest = cli.resolve_command(context, list(arguments))
                    assert command is not None
                    if command is jobs:
                        raise click.UsageError("a file of commands cannot run another", context)
                    command.make_context(name, rest, context)
        except ValueError as error:
            raise JobError(f"{place}: {error}") from None
        except click.UsageError as error:
            raise click.UsageError(f"{place}: {error.format_message()}", error.ctx) from None
    if not found:
        raise JobError(f"{file.name} has no command")
    return found


def _load(file: Path, command: str, kind: type[_Kind]) -> _Kind:
    """Return what a command wrote with --json. Raises JobError."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except OSError as error:
        raise JobError(f"cannot read {file}: {error.strerror}") from error
    except msgspec.ValidationError as error:
        raise JobError(f"{file} is not from 'tidegate {command} --json': {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise JobError(f"{file}: {error}") from error


def main(arguments: Sequence[str]) -> None:
    """Run one of the commands. A known error is printed as one line and ends the process with its status."""
    try:
        cli.main(list(arguments), prog_name="tidegate", standalone_mode=False)
    except JobError as error:
        _complain(str(error), 1)
    except OSError as error:
        if error.filename is None:
            raise
        _complain(f"cannot use {error.filename}: {error.strerror}", 1)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("pyspark", "pyarrow", "pandas", "numpy", "dpkt"):
            raise
        _complain(
            f"{package} is missing: run pip install '.[spark]' in the folder of Tidegate's source",
            1,
        )
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "tidegate"
        _complain(error.format_message(), error.exit_code, command)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)


def _complain(message: str, status: int, command: str = "tidegate") -> None:
    click.echo(f"{command}: {' '.join(message.split())}", err=True)
    sys.exit(status)
