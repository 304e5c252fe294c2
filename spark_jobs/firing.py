"""`verify`: checks that each delayed message fired once, and compares the time with the due time. `outcomes` says what
that means.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from spark_jobs.messages import STORED_CODES
from spark_jobs.outcomes import is_of_clients, log_folder, outcomes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PERCENTILES: Final = (0.5, 0.9, 0.99, 0.999)

_BAD: Final = ("lost", "doubled", "early", "fired though recalled", "fired though replaced")


class Errors(msgspec.Struct, kw_only=True):
    """How late the firings of a group of messages were, in ms; negative is early."""

    by: str
    """What the messages of the group have in common: all, topic, asked (the kind of delay) or delay."""
    name: str
    messages: int
    fired: int
    lost: int
    doubled: int
    early: int
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    p999: float | None = None
    max: float | None = None
    """The errors p50 to max are of the times when consumers got the messages."""
    stored_p50: float | None = None
    stored_p99: float | None = None
    stored_max: float | None = None
    """The three stored errors are of the times when the broker stored the messages."""


class Verdict(msgspec.Struct, kw_only=True):
    """The outcomes of the delayed messages of a recording."""

    messages: int
    fired: int
    lost: int
    """Due, but not in its queue, although the queue was watched up to a later time."""
    doubled: int
    early: int
    recalled: int
    fired_though_recalled: int
    not_due: int
    """Due after the recording's end, or too shortly before it."""
    not_watched: int
    """Due, but no consumer that takes all of its queue was recorded up to that time, so nothing is known."""
    unanswered: int = 0
    """Due and not in its queue, but perhaps rightly so: no answer says that it was accepted, or a request that may
    have recalled, rescheduled or replaced it got no answer."""
    without_id: int
    """Sent without an id, so nothing is known about them."""
    rescheduled: int = 0
    """Rescheduled while pending; they are judged by their last due time."""
    replaced: int = 0
    """A later message with one of their keys replaced them before they were due."""
    fired_though_replaced: int = 0
    changed_in_bulk: int = 0
    """A bulk change while they were pending may have included them: it does not list its messages."""
    refused: int = 0
    """Sent, but accepted by no answer. They need not fire, and are not counted in `messages`."""
    never_left: int = 0
    """Requests of a replay that were not sent, as the target was not there; nothing is known of messages among them."""
    recorded_twice: int = 0
    """Sends, also without a delay, that are in two recordings: whether their messages were doubled is not known."""
    groups: list[Errors]
    notes: list[str] = []
    """What limits the findings, such as requests whose answers nobody knows."""
    samples: list[dict[str, Any]]
    """Some of the messages that were lost, doubled or early, or fired though recalled or replaced."""

    @property
    def is_good(self) -> bool:
        """Whether no message was lost, doubled or early, or fired though recalled or replaced, none never left, and not
        all were refused."""
        fired_in_vain = self.fired_though_recalled or self.fired_though_replaced
        is_wrong = self.lost or self.doubled or self.early or fired_in_vain or self.never_left
        return not (is_wrong or (self.refused and not self.messages))


def recorded_twice(messages: DataFrame) -> int:
    """Count the sends that occur more than once because two recordings have the same traffic.

    A capture and a commit log are no such two: they record different things of the same message. A client that
    repeats a send because it got no answer gives it another born time.

    :param messages: rows of `messages.MESSAGES`.
    """
    from pyspark.sql import functions as f

    is_accepted = (f.col("event") == "sent") & f.col("answer_code").isin(*STORED_CODES)
    is_logged = f.col("event").isin("parked", "stored") & is_of_clients()
    accepted = messages.where((f.col("born_ms") > 0) & (is_accepted | is_logged))
    # A log has a message again when it has fired; the log of another folder, such as a slave's, has a copy.
    place = f.struct(f.coalesce(log_folder(), "file").alias("recording"), "connection")

    def in_two(event: str) -> Column:
        at = f.when(f.col("event") == event, place)
        return f.coalesce(f.min(at) != f.max(at), f.lit(False))

    # A log may lie in several folders: one of them has a message that waits, another the same one as it fired.
    is_twice = in_two("sent") | in_two("parked") | in_two("stored")
    sends = accepted.groupBy("message_id", "topic", "born_ms").agg(is_twice.alias("is_twice"))
    return sends.where("message_id is not null and is_twice").count()


def _refused(messages: DataFrame) -> int:
    """Return how many delayed messages were refused each time they were sent."""
    from pyspark.sql import functions as f

    is_refused = f.coalesce(~f.col("answer_code").isin(*STORED_CODES), f.lit(False))
    alone = f.when(f.col("message_id").isNull(), f.monotonically_increasing_id())
    sends = messages.where(
        (f.col("event") == "sent") & f.col("due_ms").isNotNull() & is_of_clients()
    )
    by_message = sends.groupBy("topic", "message_id", alone.alias("alone"))
    return by_message.agg(f.bool_and(is_refused).alias("is_refused")).where("is_refused").count()


def verify(messages: DataFrame, *, grace_ms: int = 5_000, samples: int = 20) -> Verdict:
    """Return the outcomes of the delayed messages, with the errors by topic, kind of delay and length of delay."""
    from pyspark.sql import functions as f

    table = outcomes(messages, grace_ms=grace_ms).cache()
    try:
        rows = table.groupBy("outcome", "is_moved").count().collect()
        by_outcome = Counter[str]()
        for row in rows:
            by_outcome[row["outcome"]] += row["count"]
        groups = _errors(table)
        bad = table.where(f.col("outcome").isin(*_BAD))
        columns = ("outcome", "topic", "message_id", "due_ms", "fired_ms", "places", "place")
        shown = [
            row.asDict(recursive=True) for row in bad.select(*columns).limit(samples).collect()
        ]
    finally:
        table.unpersist()
    fired = ("fired", "doubled", "early")
    return Verdict(
        messages=sum(by_outcome.values()),
        fired=sum(by_outcome[name] for name in fired),
        lost=by_outcome["lost"],
        doubled=by_outcome["doubled"],
        early=by_outcome["early"],
        recalled=by_outcome["recalled"],
        fired_though_recalled=by_outcome["fired though recalled"],
        not_due=by_outcome["not due"],
        not_watched=by_outcome["not watched"],
        unanswered=by_outcome["unanswered"],
        without_id=by_outcome["without id"],
        rescheduled=sum(row["count"] for row in rows if row["is_moved"]),
        replaced=by_outcome["replaced"],
        fired_though_replaced=by_outcome["fired though replaced"],
        changed_in_bulk=by_outcome["changed in bulk"],
        refused=_refused(messages),
        recorded_twice=recorded_twice(messages),
        groups=groups,
        samples=shown,
    )


def _errors(table: DataFrame) -> list[Errors]:
    """Return the errors of all groups, in one pass. Each message is in one group of each kind."""
    from pyspark.sql import functions as f

    level = f.concat(f.lit("level "), f.col("asked_value").cast("string"))
    asked = f.when(f.col("asked") == "level", level).otherwise(f.col("asked"))
    kinds = {"all": f.lit("all"), "topic": f.col("topic"), "asked": asked, "delay": f.col("delay")}
    group = f.explode(
        f.array(
            *(f.struct(f.lit(by).alias("by"), name.alias("name")) for by, name in kinds.items())
        )
    )
    is_fired = f.col("outcome").isin("fired", "doubled", "early")
    error = f.when(is_fired, f.col("error_ms"))
    stored = f.when(is_fired, f.col("stored_error_ms"))

    def number(outcome: str) -> Any:
        return f.sum((f.col("outcome") == outcome).cast("int"))

    rows = (
        table.withColumn("group", group)
        .groupBy("group.by", "group.name")
        .agg(
            f.count("*").alias("messages"),
            f.sum(is_fired.cast("int")).alias("fired"),
            number("lost").alias("lost"),
            number("doubled").alias("doubled"),
            number("early").alias("early"),
            f.percentile(error, f.array(*(f.lit(share) for share in PERCENTILES))).alias("shares"),
            f.max(error).alias("max"),
            f.percentile(stored, f.array(f.lit(0.5), f.lit(0.99))).alias("stored"),
            f.max(stored).alias("stored_max"),
        )
        .collect()
    )
    found = []
    order = list(kinds)
    for row in sorted(rows, key=lambda row: (order.index(row["by"]), row["name"] or "")):
        shares = row["shares"] or (None,) * len(PERCENTILES)
        found.append(
            Errors(
                by=row["by"],
                name=row["name"] or "",
                messages=row["messages"],
                fired=row["fired"],
                lost=row["lost"],
                doubled=row["doubled"],
                early=row["early"],
                p50=shares[0],
                p90=shares[1],
                p99=shares[2],
                p999=shares[3],
                max=row["max"],
                stored_p50=(row["stored"] or (None,))[0],
                stored_p99=(row["stored"] or (None,))[-1],
                stored_max=row["stored_max"],
            )
        )
    return found
