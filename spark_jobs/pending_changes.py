"""Finds what was done to delayed messages while they were pending: they were rescheduled, replaced by others with one
of their keys, included in a bulk change, or held because their topic was paused.

Each function takes the delayed messages of a recording, one row each, and all its `messages`, and adds columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NS_PER_MS: Final = 1_000_000
_NEVER_MS: Final = 1 << 52
"""A time after all others."""
_STEPS_NS: Final = 60_000_000_000
"""A minute, within which the steps of a bulk change are treated as one."""


def moved(asked: DataFrame, messages: DataFrame) -> DataFrame:
    """Return each message with its last due time, as if it had been sent when that was set."""
    from pyspark.sql import functions as f

    moved = (
        messages.where("event = 'rescheduled' and answer_code = 0")
        .groupBy("topic", "message_id")
        .agg(f.max_by("due_ms", "time_ns").alias("moved_ms"), f.max("time_ns").alias("moved_ns"))
    )
    return (
        asked.join(moved, ["topic", "message_id"], "left")
        .withColumn("is_moved", f.col("moved_ns").isNotNull())
        .withColumn("due_ms", f.coalesce("moved_ms", "due_ms"))
        .withColumn("sent_ns", f.col("time_ns"))
        .withColumn("time_ns", f.coalesce("moved_ns", "time_ns"))
    )


def replaced(asked: DataFrame, messages: DataFrame, grace_ms: int) -> DataFrame:
    """Return each message with the time when another message replaced it, epoch ms, or null.

    :param grace_ms: within this time an unanswered commit is done, and a message that is due has fired.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    columns = ("topic", "keys", "message_id", "time_ns", "store_ms")
    done_ms = f.coalesce("store_ms", f.floor(f.col("time_ns") / _NS_PER_MS) + grace_ms)
    commits = (
        messages.where("event = 'committed'")
        .groupBy("message_id")
        .agg(f.min("time_ns").alias("time_ns"), f.min(done_ms).alias("store_ms"))
    )
    halves = messages.where("event = 'prepared'").select("topic", "keys", "message_id")
    by = (
        messages.where("event = 'replaced'")
        .select(*columns)
        .unionByName(halves.join(commits, "message_id").select(*columns))
        .groupBy("topic", f.col("keys").alias("key"), f.col("message_id").alias("by"))
        .agg(f.min("time_ns").alias("at_ns"), f.min("store_ms").alias("by_ms"))
    )
    of_key = Window.partitionBy("topic", "key")
    next_one = f.lag(f.struct("at_ns", "by_ms")).over(of_key.orderBy(f.desc("at_ns")))
    by = by.select(
        *("topic", "key", "at_ns"),
        f.struct("by", "at_ns", "by_ms", next_one.alias("next")).alias("taker"),
    )
    places = asked.select(
        *("topic", "message_id", "due_ms"),
        f.col("sent_ns").alias("at_ns"),
        f.explode(f.split("keys", " ")).alias("key"),
    )
    # Find the first other message that took its place after it was sent. A plain join by the key would
    # pair every message of a key that is used all day with every other.
    from_the_end = of_key.orderBy(f.desc("at_ns"), f.col("message_id").isNotNull())
    taker = f.last("taker", ignorenulls=True).over(
        from_the_end.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    is_other = f.col("taker.by") != f.col("message_id")
    replaced = (
        by.unionByName(places, allowMissingColumns=True)
        .withColumn("taker", taker)
        .where("message_id is not null")
        .withColumn(
            "by_ns", f.when(is_other, f.col("taker.at_ns")).otherwise(f.col("taker.next.at_ns"))
        )
        .withColumn(
            "by_ms", f.when(is_other, f.col("taker.by_ms")).otherwise(f.col("taker.next.by_ms"))
        )
        # Much later the message had fired already, or was lost.
        .where(f.col("by_ns") / _NS_PER_MS <= f.col("due_ms") + grace_ms)
        .groupBy("topic", "message_id")
        .agg(f.min("by_ms").alias("replaced_ms"))
    )
    return asked.join(replaced, ["topic", "message_id"], "left")


def changed_in_bulk(asked: DataFrame, messages: DataFrame) -> DataFrame:
    """Return each message with whether it was pending during a bulk change whose conditions it meets.

    `is_in_bulk` is for changes with an answer, `may_be_in_bulk` for requests without one.
    """
    from pyspark.sql import functions as f

    # A bulk change has many steps with the same conditions.
    wanted = ("topic", "tags", "keys", "asked_value", "due_ms")
    changes = (
        messages.where("event = 'changed'")
        .withColumn("is_answered", f.col("answer_code").isNotNull())
        .groupBy(*wanted, "is_answered", f.floor(f.col("time_ns") / _STEPS_NS))
        .agg(f.min("time_ns").alias("first_ns"), f.max("time_ns").alias("last_ns"))
        .select(
            *(f.col(name).alias(f"changed_{name}") for name in wanted),
            *("is_answered", "first_ns", "last_ns"),
        )
    )
    is_meant = (
        (f.col("topic") == f.col("changed_topic"))
        & (f.col("time_ns") <= f.col("last_ns"))
        & (f.col("due_ms") >= f.floor(f.col("first_ns") / _NS_PER_MS))
        & (f.col("due_ms") >= f.col("changed_asked_value"))
        & (f.col("changed_due_ms").isNull() | (f.col("due_ms") < f.col("changed_due_ms")))
        & (f.col("changed_tags").isNull() | (f.col("tags") == f.col("changed_tags")))
        & (
            f.col("changed_keys").isNull()
            | f.array_contains(f.split("keys", " "), f.col("changed_keys"))
        )
    )
    meant = (
        asked.join(changes, is_meant)
        .groupBy("topic", "message_id")
        .agg(
            f.bool_or("is_answered").alias("is_in_bulk"),
            f.bool_or(~f.col("is_answered")).alias("may_be_in_bulk"),
        )
    )
    return asked.join(meant, ["topic", "message_id"], "left").na.fill(
        False, ["is_in_bulk", "may_be_in_bulk"]
    )


def held(asked: DataFrame, messages: DataFrame) -> DataFrame:
    """Return each message with the end, epoch ms, of the pause of its topic in which it was due, or null.

    The end is `_NEVER_MS` if it was not recorded.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    of_topic = Window.partitionBy("topic").orderBy("time_ns")
    at_ms = f.floor(f.col("time_ns") / _NS_PER_MS)
    resumed_ms = f.min(f.when(f.col("event") == "resumed", at_ms))
    later = of_topic.rowsBetween(Window.currentRow, Window.unboundedFollowing)
    is_paused = f.col("event") == "paused"
    # A topic whose first event is a resume was paused before the recording began.
    is_first = f.row_number().over(of_topic) == 1
    pauses = (
        messages.where("event in ('paused', 'resumed')")
        .withColumn("until_ms", f.coalesce(resumed_ms.over(later), f.lit(_NEVER_MS)))
        .withColumn("since_ms", f.when(is_paused, at_ms).when(is_first, f.lit(0)))
        .where("since_ms is not null")
        .select(f.col("topic").alias("paused_topic"), "since_ms", "until_ms")
    )
    is_in = (
        (f.col("topic") == f.col("paused_topic"))
        & (f.greatest(f.col("due_ms"), at_ms) >= f.col("since_ms"))
        & (f.col("due_ms") < f.col("until_ms"))
        & (at_ms < f.col("until_ms"))
    )
    held = (
        asked.join(pauses, is_in)
        .groupBy("topic", "message_id")
        .agg(f.max("until_ms").alias("held_ms"))
    )
    return asked.join(held, ["topic", "message_id"], "left")
