"""Runs the jobs as users do, and measures each once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from compat import children
from gateway.wire.addresses import parse_address
from gateway.wire.codes import RequestCode
from spark_jobs.bench.figures import Measurement
from spark_jobs.bench.making import multiply
from spark_jobs.bench.measuring import measured
from spark_jobs.comparing import compare
from spark_jobs.errors import JobError
from spark_jobs.ingest import ingest, read_table
from spark_jobs.messages import DEFAULT_LEVELS
from spark_jobs.replay import Outcome, choose, find_target, replay, run_name
from spark_jobs.rewriting import Rules
from spark_jobs.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_START_NS: Final = 1_760_000_000_000_000_000
_PACED_PER_S: Final = 1000
_PACED_MOST_S: Final = 20


class Session:
    """The Spark session of the benchmark, with one master after the other."""

    def __init__(self, stack: ExitStack) -> None:
        self._spark: SparkSession | None = None
        self.master = ""
        stack.callback(self.stop)

    def use(self, master: str) -> None:
        """Continue with a new session on this master."""
        self.stop()
        self.master = master
        self._spark = open_session(master, memory="2g")

    @property
    def spark(self) -> SparkSession:
        """The session of the master."""
        assert self._spark is not None
        return self._spark

    def stop(self) -> None:
        """End the session, if there is one."""
        if self._spark is not None:
            self._spark.stop()
            self._spark = None


def _recordings(recorded: Path) -> list[Path]:
    files = sorted(recorded.glob("*.capture"))
    if not files:
        raise JobError(f"{recorded} has no captures")
    return files


def make_capture(recorded: Path, folder: Path, frames: int) -> Path:
    """Make a capture of at least `frames` frames."""
    file = folder / f"{frames}.capture"
    multiply(_recordings(recorded), file, frames, start_ns=_START_NS)
    return file


def warm_up(session: Session, recorded: Path, folder: Path) -> None:
    """Run a first job, so that Spark's one-time start-up is not measured."""
    ingest(session.spark, _recordings(recorded), folder / "warm", levels=DEFAULT_LEVELS)


def ingest_once(session: Session, capture: Path, tables: Path) -> Measurement:
    """Ingest a capture."""
    with measured("ingest", session.master, "frames") as found:
        counts = ingest(session.spark, [capture], tables, levels=DEFAULT_LEVELS).counts
    found.number = counts["frames"]
    found.details = {"MB": capture.stat().st_size / 1e6}
    return found


def compare_once(session: Session, tables: Path) -> Measurement:
    """Compare recorded answers with two copies of themselves in which some values are changed."""
    from pyspark.sql import functions as f

    answers = read_table(session.spark, tables, "pair").where("asked_ns is not null")

    def changed(every: int, prefix: str) -> DataFrame:
        ids = f.transform_values(
            "answer_ext",
            lambda name, value: f.when(
                name.isin("msgId", "nextBeginOffset"), f.concat(f.lit(prefix), value)
            ).otherwise(value),
        )
        code = f.when(f.col("position") % every == 0, 99).otherwise(f.col("answer_code"))
        return answers.withColumns({"answer_ext": ids, "answer_code": code})

    with measured("compare", session.master, "frames") as found:
        result = compare(answers, changed(997, "2"), changed(1_000_003, "3"))
    found.number = 3 * result.compared
    found.details = {"answers": result.compared, "fields that differ": len(result.differences)}
    return found


def replays(session: Session, recorded: Path, folder: Path, requests: int) -> Iterator[Measurement]:
    """Replay sends of real clients to a gateway process: as fast as possible, and at 1,000 per second."""
    sends = [int(RequestCode.SEND_MESSAGE_V2)]
    for name, number, speed in (
        ("replay, as fast as possible", requests, 0.0),
        ("replay, at its times", min(requests, _PACED_PER_S * _PACED_MOST_S), 1.0),
    ):
        file = folder / f"{number}-{speed}.capture"
        # A send is two frames.
        multiply(
            _recordings(recorded),
            file,
            2 * number,
            start_ns=_START_NS,
            codes=sends,
            per_second=2.0 * _PACED_PER_S,
        )
        tables, out = folder / f"sends-{speed}", folder / f"replayed-{speed}"
        ingest(session.spark, [file], tables, levels=DEFAULT_LEVELS)
        data, log = folder / f"gateway-{speed}", folder / f"gateway-{speed}.log"
        words = ("gateway", "serve", "--data", data, "--listen", "127.0.0.1:0")
        with children.server(*words, output=log) as gateway:
            target = find_target(parse_address(gateway.address))
            chosen, plan = choose(read_table(session.spark, tables, "pair"), sends)
            with measured(name, session.master, "requests", beside=gateway.pid) as found:
                outcome = replay(
                    session.spark, chosen, target, out, rules=Rules(run_name(out)), speed=speed
                )
        found.number = plan.requests
        found.details = _details(outcome)
        yield found


def _details(outcome: Outcome) -> dict[str, float]:
    return {
        "rate": outcome.rate,
        "pacing P50, ms": outcome.pacing_p50_ms or 0.0,
        "pacing P99, ms": outcome.pacing_p99_ms or 0.0,
        **outcome.outcomes,
    }
