"""`profile`: describes recorded traffic and the capacity that it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from gateway.wire.codes import CommandFlag, request_name
from spark_jobs.messages import STORED_CODES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_TOPICS: Final = 100
_SECONDS: Final = 10
_NS: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000


class CodeFigures(msgspec.Struct, kw_only=True):
    """The requests of one code from one side."""

    code: int
    name: str
    from_client: bool
    requests: int
    share: float
    """The share of all requests."""
    unanswered: int
    """Requests without an answer, except oneway requests, which have none."""
    refused: int
    """Requests answered with a code other than 0, including pulls that found nothing."""
    bytes: int
    """The size of the bodies of requests and answers."""
    p50_ms: float | None
    p99_ms: float | None
    """Times from the request to its answer; a pull may wait on purpose."""


class TopicFigures(msgspec.Struct, kw_only=True):
    """The messages sent to one topic and delivered from it."""

    topic: str
    sent: int
    delivered: int
    delayed: int
    bytes: int
    largest: int
    groups: int
    """How many consumer groups got its messages."""


class DelayFigures(msgspec.Struct, kw_only=True):
    """The messages with one kind of delay and one range of its length."""

    asked: str
    delay: str
    messages: int


class Profile(msgspec.Struct, kw_only=True):
    """The description of recorded traffic. Rates are per second of the recording."""

    seconds: float
    connections: int
    requests: int
    request_rate: float
    sent: int
    send_rate: float
    delayed: int
    peak_requests: int
    """Requests in the busiest second; `peak_sent` and `peak_due` are for their busiest seconds."""
    peak_sent: int
    peak_due: int
    """Messages that were recalled or replaced before they were due do not count."""
    pending_at_most: int
    """The most delayed messages that were pending at one time."""
    stored_bytes_a_day: float
    """Bytes of message bodies a day, at the recording's mean rate."""
    languages: dict[str, int]
    codes: list[CodeFigures]
    topics: list[TopicFigures]
    """Those with the most messages."""
    more_topics: int = 0
    """How many others there are."""
    delays: list[DelayFigures]
    hot_seconds: list[dict[str, int]]
    """The busiest seconds, in epoch seconds, with their numbers of requests."""


def profile(pairs: DataFrame, messages: DataFrame) -> Profile:
    """Return the figures of a recording.

    :param pairs: rows of `exchanges.ROWS`.
    :param messages: rows of `messages.MESSAGES`.
    """
    from pyspark.sql import functions as f

    from spark_jobs.outcomes import is_of_clients, outcomes

    asked = pairs.where("asked_ns is not null")
    whole = asked.agg(
        f.count("*"), f.min("asked_ns"), f.max("asked_ns"), f.countDistinct("connection")
    ).collect()[0]
    events = messages.agg(f.min("time_ns"), f.max("time_ns")).collect()[0]
    starts = [at for at in (whole[1], events[0]) if at is not None]
    ends = [at for at in (whole[2], events[1]) if at is not None]
    seconds = max((max(ends) - min(starts)) / _NS, 1e-9) if starts else 0.0
    requests = int(whole[0])
    # A commit log has no sends, only the records that they left.
    has_sends = messages.where("event = 'sent'").limit(1).count() > 0
    is_sent = f.col("event") == "sent"
    if not has_sends:
        is_parked = f.col("event") == "parked"
        is_plain = (f.col("event") == "stored") & f.col("asked").isNull()
        is_sent = (is_parked | is_plain) & is_of_clients()
    sent = messages.where(is_sent & f.coalesce(f.col("answer_code"), f.lit(0)).isin(*STORED_CODES))
    sums = sent.agg(f.count("*"), f.sum("body_size"), f.count("asked")).collect()[0]
    hot = _by_second(asked, _second("asked_ns")).orderBy(f.desc("count")).limit(_SECONDS).collect()
    language = f.coalesce("language", f.lit("unknown"))  # the header has null
    timed = _timed(outcomes(messages, grace_ms=0)).cache()
    try:
        delays = timed.groupBy("asked", "delay").count().orderBy("asked", "delay").collect()
        peak_due = _peak(
            _by_second(timed.where("until_ms = possible_ms"), _second_of_ms("until_ms"))
        )
        pending_at_most = _pending_at_most(timed)
    finally:
        timed.unpersist()
    topics, more_topics = _topics(messages, sent)
    return Profile(
        seconds=seconds,
        connections=int(whole[3]),
        requests=requests,
        request_rate=requests / seconds if seconds else 0.0,
        sent=int(sums[0]),
        send_rate=int(sums[0]) / seconds if seconds else 0.0,
        delayed=int(sums[2]),
        peak_requests=int(hot[0]["count"]) if hot else 0,
        peak_sent=_peak(_by_second(sent, _second("time_ns"))),
        peak_due=peak_due,
        pending_at_most=pending_at_most,
        stored_bytes_a_day=(sums[1] or 0) / seconds * 86_400 if seconds else 0.0,
        languages={
            row["language"]: row["count"]
            for row in asked.groupBy(language.alias("language")).count().collect()
        },
        codes=_codes(asked, requests),
        topics=topics,
        more_topics=more_topics,
        delays=[
            DelayFigures(asked=row["asked"], delay=row["delay"], messages=row["count"])
            for row in delays
        ],
        hot_seconds=[{"second": row["second"], "requests": row["count"]} for row in hot],
    )


def _second(ns: str) -> Column:
    """Return the second of a time in ns."""
    from pyspark.sql import functions as f

    return f.floor(f.col(ns) / _NS)


def _second_of_ms(ms: str) -> Column:
    """Return the second of a time in ms. In ns, a bigint has no room for times after 2262."""
    from pyspark.sql import functions as f

    return f.floor(f.col(ms) / 1000)


def _timed(delayed: DataFrame) -> DataFrame:
    """Return when each delayed message began and ceased to be pending: a recalled or replaced one does before it can
    fire."""
    from pyspark.sql import functions as f

    recalled_ms = f.floor(f.col("recalled_ns") / _NS_PER_MS)
    until_ms = f.least("possible_ms", recalled_ms, "replaced_ms")
    return delayed.select("asked", "delay", "sent_ns", "possible_ms", until_ms.alias("until_ms"))


def _by_second(table: DataFrame, second: Column) -> DataFrame:
    return table.where(second.isNotNull()).groupBy(second.alias("second")).count()


def _peak(by_second: DataFrame) -> int:
    from pyspark.sql import functions as f

    return int(by_second.agg(f.max("count")).collect()[0][0] or 0)


def _pending_at_most(timed: DataFrame) -> int:
    """Return the most pending messages: each counts from the second of its send to that in which it ceases to be."""
    from pyspark.sql import functions as f
    from pyspark.sql.window import Window

    changes = (
        timed.select(_second("sent_ns").alias("second"), f.lit(1).alias("change"))
        .union(timed.select(_second_of_ms("until_ms").alias("second"), f.lit(-1)))
        .groupBy("second")
        .agg(f.sum("change").alias("change"))
    )
    # One partition is enough: there is one row per second of the recording.
    running = f.sum("change").over(Window.orderBy("second"))
    return int(changes.select(running.alias("n")).agg(f.max("n")).collect()[0][0] or 0)


def _codes(asked: DataFrame, requests: int) -> list[CodeFigures]:
    from pyspark.sql import functions as f

    is_oneway = f.coalesce("flag", f.lit(0)).bitwiseAND(int(CommandFlag.ONEWAY)) != 0
    took = (f.col("answered_ns") - f.col("asked_ns")) / 1_000_000
    size = f.coalesce(f.length("body"), f.lit(0)) + f.coalesce(f.length("answer_body"), f.lit(0))
    rows = (
        asked.groupBy("code", "from_client")
        .agg(
            f.count("*").alias("requests"),
            f.sum((f.col("answered_ns").isNull() & ~is_oneway).cast("int")).alias("unanswered"),
            f.sum((f.col("answer_code") > 0).cast("int")).alias("refused"),
            f.sum(size).alias("bytes"),
            f.percentile_approx(took, [0.5, 0.99]).alias("took"),
        )
        .orderBy(f.desc("requests"), "code")
        .collect()
    )
    return [
        CodeFigures(
            code=row["code"],
            name=request_name(row["code"]) or "unknown",
            from_client=row["from_client"],
            requests=row["requests"],
            share=row["requests"] / requests,
            unanswered=row["unanswered"],
            refused=row["refused"] or 0,
            bytes=row["bytes"],
            p50_ms=row["took"][0] if row["took"] else None,
            p99_ms=row["took"][1] if row["took"] else None,
        )
        for row in rows
    ]


def _topics(messages: DataFrame, sent: DataFrame) -> tuple[list[TopicFigures], int]:
    """Return the figures of the topics with the most messages, and how many others there are."""
    from pyspark.sql import functions as f

    out = sent.groupBy("topic").agg(
        f.count("*").alias("sent"),
        f.count("asked").alias("delayed"),
        f.sum("body_size").alias("bytes"),
        f.max("body_size").alias("largest"),
    )
    got = (
        messages.where("event = 'delivered'")
        .groupBy("topic")
        .agg(f.count("*").alias("delivered"), f.countDistinct("group").alias("groups"))
    )
    found = out.join(got, ["topic"], "full").where("topic is not null").fillna(0)
    rows: list[Any] = found.orderBy(f.desc("sent"), f.desc("delivered")).limit(_TOPICS).collect()
    more = found.count() - len(rows) if len(rows) == _TOPICS else 0
    fields = TopicFigures.__struct_fields__
    return [TopicFigures(**{name: row[name] for name in fields}) for row in rows], more
