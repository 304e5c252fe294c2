"""`replay`: sends recorded requests to another server, from Spark's tasks, with their recorded timing."""

from __future__ import annotations

import itertools
import json
import secrets
import socket
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import pyarrow as pa

from gateway.wire.addresses import parse_address, show_address
from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.commands import Command, CommandError, decode_command, encode_command
from gateway.wire.dialect import to_json
from gateway.wire.frames import FrameBuffer, FrameError
from spark_jobs import messages
from spark_jobs.errors import JobError
from spark_jobs.features import feature
from spark_jobs.ingest import batches
from spark_jobs.locks import alone_in
from spark_jobs.logged_sends import NOT_SENT
from spark_jobs.outcomes import at_brokers
from spark_jobs.replaying import (
    DDL,
    NAME_SERVER_CODES,
    SENT_BEFORE,
    Journal,
    Pacing,
    Player,
    Target,
)
from spark_jobs.result_files import write_text
from spark_jobs.rewriting import DESTRUCTIVE, GROUP_FIELDS, TOPIC_FIELDS, Rules
from spark_jobs.tables import read_parquet
from spark_jobs.watching import WATCHED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JOURNAL: Final = "journal"
"""The folder, within that of a replay, with the marks of sent requests."""
_ASK_TIMEOUT_S: Final = 10.0
_GATE_POLL_S: Final = 0.02
_HEAD_START_NS: Final = 200_000_000
"""The time between the agreement on a start and the start, so that every task reads it in time."""
_NEVER_LEFT: Final = f"sent_ns is null and outcome != '{SENT_BEFORE}'"
"""Selects the results of requests that were not sent, as the target was not there."""
_COLUMNS: Final = (
    *("file", "position", "connection", "asked_ns", "code", "flag", "version", "language"),
    *("server", "ext", "body", "answer_code", "answer_ext", "answer_body"),
)


class Plan(msgspec.Struct, kw_only=True):
    """The requests that a replay would send, or has sent."""

    requests: int
    connections: int
    seconds: float
    """The length of the recording."""
    by_code: dict[int, int]
    left_out: dict[int, int]
    """By code: how many requests are not sent."""
    from_servers: int
    """Recorded requests of servers to clients; the target sends its own."""
    brokers: int
    """To how many brokers they were sent in the recording; a replay sends all to one."""


class Outcome(msgspec.Struct, kw_only=True):
    """The result of a replay."""

    outcomes: dict[str, int]
    never_left: int = 0
    """How many requests were not sent, as the target was not there."""
    unmapped: dict[str, int]
    """By field: how many requests were sent with its recorded value."""
    pacing_p50_ms: float | None
    pacing_p99_ms: float | None
    """How late requests were sent; None if they had no times, as fast as possible."""
    rate: float
    """Requests sent per second, from the first to the last."""
    notes: list[str] = []
    """What limits the replay, such as requests that are left out."""


class Gate(NamedTuple):
    """A folder, shared by all tasks, where they wait for one another before the start."""

    folder: str
    tasks: int
    patience_s: float

    def wait(self, name: str) -> int:
        """Report this task as ready, wait for the others, and return the time when all begin, epoch ns."""
        folder = Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.ready").touch()
        deadline = time.monotonic() + self.patience_s
        start = folder / "start"
        while not start.exists():
            ready = len(list(folder.glob("*.ready")))
            if ready >= self.tasks or time.monotonic() > deadline:
                proposal = folder / f"{name}.proposal"
                proposal.write_text(str(time.time_ns() + _HEAD_START_NS))
                with suppress(FileExistsError):
                    start.hardlink_to(proposal)  # atomic, and only the first task succeeds
            time.sleep(_GATE_POLL_S)
        return int(start.read_text())


def choose(
    pairs: DataFrame, codes: Collection[int] | None, without: Collection[int] = ()
) -> tuple[DataFrame, Plan]:
    """Return the requests to send, and a plan that describes them.

    :param codes: send only these codes; None means all except `rewriting.DESTRUCTIVE`.
    """
    from pyspark.sql import functions as f

    asked = pairs.where("asked_ns is not null")
    wanted = f.col("from_client") & ~f.col("code").isin(*without)
    if codes is None:
        wanted &= ~f.col("code").isin(*(int(code) for code in DESTRUCTIVE))
    else:
        wanted &= f.col("code").isin(*codes)
    chosen = at_brokers(asked.where(wanted))
    for_brokers = ~f.col("code").isin(*(int(code) for code in NAME_SERVER_CODES))
    brokers = chosen.where(for_brokers).select("server").where("server is not null")
    whole = chosen.agg(
        f.count("*"), f.countDistinct("connection"), f.max("asked_ns") - f.min("asked_ns")
    ).collect()[0]
    kinds = asked.groupBy("code", "from_client", wanted.alias("is_chosen")).count().collect()
    of_clients = [row for row in kinds if row["from_client"]]
    return chosen, Plan(
        requests=whole[0],
        connections=whole[1],
        seconds=(whole[2] or 0) / 1e9,
        by_code={row["code"]: row["count"] for row in of_clients if row["is_chosen"]},
        left_out={row["code"]: row["count"] for row in of_clients if not row["is_chosen"]},
        from_servers=sum(row["count"] for row in kinds if not row["from_client"]),
        brokers=brokers.distinct().count(),
    )


def replay(
    spark: SparkSession,
    chosen: DataFrame,
    target: Target,
    folder: Path,
    *,
    rules: Rules,
    speed: float = 1.0,
    rate: float = 0.0,
    lead_s: float = 10.0,
    patience_s: float = 30.0,
    keeps_sends: bool = False,
) -> Outcome:
    """Send the requests and write their results to `folder/results`.

    All tasks run at once, as many as there are cores; each connection is in one of them. They begin
    together when all are ready, or `lead_s` after the first one is. A folder with an interrupted run
    is continued: requests that were sent are not sent again.

    :raises JobError: when there is nothing to send.
    """
    from pyspark.sql import functions as f

    results = folder / "results"
    first_ns, connections = chosen.agg(f.min("asked_ns"), f.countDistinct("connection")).collect()[
        0
    ]
    if first_ns is None:
        raise JobError("there is no request to send")
    tasks = max(1, spark.sparkContext.defaultParallelism)
    pacing = Pacing(
        start_ns=0,  # the tasks agree on it
        first_ns=first_ns,
        speed=speed,
        rate=rate / min(tasks, connections),  # at most so many tasks have requests
        patience_s=patience_s,
        keeps_sends=keeps_sends,
    )
    # The explicit number keeps adaptive execution from merging small partitions: the gate waits for that many tasks.
    parts = chosen.select(*_COLUMNS, feature()).repartition(tasks, "connection")
    ordered = parts.sortWithinPartitions("asked_ns", "file", "position")
    play = partial(
        _play,
        target=target,
        pacing=pacing,
        rules=rules,
        journal=str(folder / JOURNAL),
        gate=Gate(str(folder / f"start-{secrets.token_hex(4)}"), tasks, lead_s),
    )
    ordered.mapInArrow(play, DDL).write.mode("overwrite").parquet(str(results))
    found = outcome(read_parquet(spark, DDL, results))
    if not speed and not rate:  # all of it was due at once
        found.pacing_p50_ms = found.pacing_p99_ms = None
    return found


@contextmanager
def unfinished(folder: Path) -> Iterator[None]:
    """Reserve a folder for one replay: a second one at the same time would send everything again.

    :raises JobError: when the folder has tables or a finished replay, or another run replays into it.
    """
    if batches(folder):
        raise JobError(
            f"{folder} has tables, for which 'verify' would take the replay: use another folder"
        )
    with alone_in(folder, f"another 'tidegate replay' writes into {folder}: use another folder"):
        if (folder / "results" / "_SUCCESS").exists():
            raise JobError(f"{folder} has a finished replay: use another folder")
        yield


def keep_flags(folder: Path, flags: Mapping[str, str]) -> None:
    """Keep the flags of a replay that say what is sent, where and when: a run that continues it needs the same.

    :param flags: by name; empty if not given.
    :raises JobError: if requests were sent with others, so that the results would be a mixture.
    """
    file = folder / "flags.json"
    has_sent = any(marks.stat().st_size for marks in (folder / JOURNAL).glob("*.sent"))
    # An earlier version, or a full disk, may have left none.
    if has_sent and file.exists() and file.stat().st_size:
        before = json.loads(file.read_text())
        for flag, value in flags.items():
            if (was := before.get(flag, value)) != value:
                with_it = f"{flag} {was}" if was else f"no {flag}"
                raise JobError(
                    f"{folder} has an interrupted replay with {with_it}: continue it so, or use another folder"
                )
    write_text(file, json.dumps(flags, indent=1))


def run_name(folder: Path) -> str:
    """Return the name of a folder's run, from which its ids are made. A continued run keeps its name."""
    file = folder / "run"
    # A full disk may have left it empty: runs of the same name would make the same ids.
    if not file.exists() or not file.stat().st_size:
        write_text(file, secrets.token_hex(8))
    return file.read_text()


def check_results(folder: Path) -> None:
    """Raise JobError if a folder has no finished replay."""
    if not (folder / "results" / "_SUCCESS").exists():
        raise JobError(f"{folder} has no finished replay: run 'tidegate replay' into it first")


def check_watched(folder: Path) -> None:
    """Raise JobError if a folder has no finished replay, or one that was not watched."""
    check_results(folder)
    if not (folder / WATCHED).exists():
        raise JobError(
            f"{folder} has a replay without consumers: replay again with --watch SECONDS"
        )


def read_results(spark: SparkSession, folder: Path) -> DataFrame:
    """Return the results of a finished replay, as rows of `replaying.RESULTS`.

    :raises JobError: as `check_results`.
    """
    check_results(folder)
    return read_parquet(spark, DDL, folder / "results")


def read_answers(spark: SparkSession, folder: Path) -> tuple[DataFrame, int]:
    """Return the results except those of an interrupted run, and how many requests that run had sent.

    :raises JobError: as `check_results`.
    """
    from pyspark.sql import functions as f

    results = read_results(spark, folder)
    known = results.where(f.col("outcome") != SENT_BEFORE)
    return known, results.count() - known.count()


def never_left(results: DataFrame) -> int:
    """Return how many requests of a replay were not sent, as the target was not there."""
    return results.where(_NEVER_LEFT).count()


def read_events(spark: SparkSession, folder: Path, levels: tuple[int, ...]) -> DataFrame:
    """Return the events of the messages of a watched replay, as rows of `messages.MESSAGES`.

    :raises JobError: as `check_watched`.
    """
    from pyspark.sql import functions as f

    check_watched(folder)
    sends = (
        read_results(spark, folder)
        .where("ext is not null")
        .withColumn("asked_ns", f.col("sent_ns"))
    )
    sent = sends.mapInArrow(partial(messages.messages_of_pairs, levels=levels), messages.DDL)
    return sent.unionByName(read_parquet(spark, messages.DDL, folder / WATCHED))


def topics_of(
    events: DataFrame, renamed: Mapping[str, str], *, from_log: bool = False
) -> list[str]:
    """Return the topics that a replay sends to.

    :param events: rows of `messages.MESSAGES`.
    :param from_log: whether it sends the messages of commit logs.
    """
    from pyspark.sql import functions as f

    kinds = (messages.PARKED, messages.STORED) if from_log else (messages.SENT,)
    sent = events.where(f.col("event").isin(*kinds) & f.col("topic").isNotNull())
    rows = sent.select("topic").distinct().collect()
    found = [row["topic"] for row in rows if not row["topic"].startswith(NOT_SENT)]
    return sorted(renamed.get(topic, topic) for topic in found)


def not_recorded(
    requests: DataFrame,
    events: DataFrame,
    column: str,
    names: Collection[str],
) -> list[str]:
    """Return those names of topics, or of groups, that no request has.

    :param column: `topic` or `group`.
    :param requests: rows of `exchanges.ROWS`.
    :param events: rows of `messages.MESSAGES`, which also have the names in bodies.
    """
    from pyspark.sql import functions as f

    if not names:
        return []
    fields = TOPIC_FIELDS if column == "topic" else GROUP_FIELDS
    in_fields = f.explode(f.array(*(f.col("ext")[field] for field in fields)))
    used = requests.select(in_fields.alias("name")).union(events.select(column))
    found = used.where(f.col("name").isin(*names)).distinct().collect()
    return sorted(set(names) - {row["name"] for row in found})


def _play(
    batches: Iterable[pa.RecordBatch],
    *,
    target: Target,
    pacing: Pacing,
    rules: Rules,
    journal: str,
    gate: Gate,
) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    context = TaskContext.get()
    name = f"part-{context.partitionId() if context else 0}"
    with Journal(Path(journal), name) as sent:
        batches = iter(batches)
        first = next(batches, None)  # it arrives only after all rows are sorted
        start_ns = gate.wait(name)
        if first is not None:
            player = Player(target, pacing._replace(start_ns=start_ns), rules, sent)
            yield from player.play(itertools.chain([first], batches))


def outcome(results: DataFrame) -> Outcome:
    """Sum up the results of a replay, which are rows of `replaying.RESULTS`."""
    from pyspark.sql import functions as f

    outcomes = {
        row["outcome"]: row["count"] for row in results.groupBy("outcome").count().collect()
    }
    fields = results.select(f.explode(f.split("unmapped", ",")).alias("field"))
    late = (f.col("sent_ns") - f.col("due_ns")) / 1_000_000
    sums = results.agg(
        f.percentile_approx(late, [0.5, 0.99]),
        f.count("sent_ns"),
        f.max("sent_ns") - f.min("sent_ns"),
        f.count_if(f.expr(_NEVER_LEFT)),
    ).collect()[0]
    return Outcome(
        outcomes=outcomes,
        never_left=sums[3],
        unmapped={row["field"]: row["count"] for row in fields.groupBy("field").count().collect()},
        pacing_p50_ms=sums[0][0] if sums[0] else None,
        pacing_p99_ms=sums[0][1] if sums[0] else None,
        rate=sums[1] / (sums[2] / 1e9) if sums[2] else 0.0,
    )


def find_target(name_server: tuple[str, int]) -> Target:
    """Ask a name server, or a gateway, for its first broker.

    :raises JobError: if it does not answer, refuses, has no broker, or has one that cannot be reached.
    """
    shown = show_address(*name_server)
    try:
        answer = _ask(name_server, encode_command(RequestCode.GET_BROKER_CLUSTER_INFO, 1))
        if answer.code != ResponseCode.SUCCESS:
            raise JobError(
                f"{shown} does not name its brokers: {answer.remark} (code {answer.code}); --to must be a name "
                "server or a gateway, and one that needs no signature"
            )
        table = json.loads(to_json(answer.body or b"{}")).get("brokerAddrTable") or {}
    except OSError as error:
        raise JobError(f"{shown} cannot be asked for its brokers: {error}") from error
    except (FrameError, CommandError, ValueError) as error:
        raise JobError(
            f"{shown} does not answer as a name server of RocketMQ does, which --to must name: {error}"
        ) from error
    for broker in table.values():
        for address in broker.get("brokerAddrs", {}).values():
            try:
                target = Target(name_server, parse_address(address), len(table))
                socket.create_connection(target.broker, _ASK_TIMEOUT_S).close()
            except (OSError, ValueError) as error:
                raise JobError(
                    f"{shown} names the broker {address}, which cannot be reached from here: {error}"
                ) from error
            return target
    raise JobError(f"{shown} knows no broker")


def _ask(address: tuple[str, int], request: bytes) -> Command:
    frames = FrameBuffer()
    with socket.create_connection(address, _ASK_TIMEOUT_S) as connection:
        connection.sendall(request)
        while data := connection.recv(65_536):
            for frame in frames.feed(data):
                return decode_command(frame)
    raise OSError(
        "it closed the connection, as a server that requires TLS does; the target must accept plain connections"
    )
