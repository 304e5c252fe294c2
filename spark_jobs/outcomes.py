"""Says of each delayed message of a recording what has become of it: fired, lost, early, and so on.

A message is identified by topic and UNIQ_KEY. It has fired when it has an offset in its topic's
queue: several deliveries at one offset are one firing, two offsets are two firings. The error of a
firing is its time minus the due time, in ms. There are two such times: when a consumer first got the
message, which includes the consumer's own delay and is in no commit log, and when the broker stored it
in the queue, by the broker's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from gateway.wire.addresses import VIP_CHANNEL_DISTANCE
from spark_jobs.logged_sends import NOT_SENT
from spark_jobs.messages import STORED_CODES
from spark_jobs.pending_changes import changed_in_bulk, held, moved, replaced

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RANGES: Final = (
    (10_000, "under 10 s"),
    (60_000, "10 s to 1 min"),
    (600_000, "1 to 10 min"),
    (3_600_000, "10 min to 1 h"),
    (86_400_000, "1 h to 1 day"),
    (3 * 86_400_000, "1 to 3 days"),
)
"""Upper bounds of delays in ms, and the names of the ranges; longer delays are `over 3 days`."""

_NS_PER_MS: Final = 1_000_000


def outcomes(messages: DataFrame, *, grace_ms: int) -> DataFrame:
    """Return a row for each delayed message with its outcome.

    :param messages: rows of `messages.MESSAGES`.
    :param grace_ms: a message that was due within this time before its queue was last seen is not lost.
    """
    from pyspark.sql import functions as f

    messages = _in_recorders_time(at_brokers(messages))
    by_log = messages.groupBy(log_folder().alias("log")).agg(
        f.max("time_ns").alias("time_ns"),
        f.max("store_ms").alias("store_ms"),
        f.count(f.when(f.col("event") == "rescheduled", 1)).alias("moves"),
        f.count(f.when(f.col("event").isin("replaced", "committed"), 1)).alias("replacings"),
        f.count(f.when(f.col("event") == "changed", 1)).alias("changes"),
        f.count(f.when(f.col("event").isin("paused", "resumed"), 1)).alias("pauses"),
    )
    ends = by_log.collect()

    def there_are(what: str) -> bool:
        return any(row[what] for row in ends)

    asked = _asked(messages)
    asked = (
        moved(asked, messages)
        if there_are("moves")
        else asked.withColumns({"is_moved": f.lit(False), "sent_ns": f.col("time_ns")})
    )
    asked = (
        replaced(asked, messages, grace_ms)
        if there_are("replacings")
        else asked.withColumn("replaced_ms", f.lit(None).cast("long"))
    )
    asked = (
        changed_in_bulk(asked, messages)
        if there_are("changes")
        else asked.withColumns({"is_in_bulk": f.lit(False), "may_be_in_bulk": f.lit(False)})
    )
    asked = (
        held(asked, messages)
        if there_are("pauses")
        else asked.withColumn("held_ms", f.lit(None).cast("long"))
    )
    end_ms = max((row["time_ns"] or 0 for row in ends), default=0) // _NS_PER_MS
    logs = {row["log"]: row["store_ms"] for row in ends if row["log"] is not None}
    table = (
        asked.join(_fired(messages), ["topic", "message_id"], "left")
        .join(_recalled(messages), ["message_id"], "left")
        .join(_unanswered(messages), ["message_id"], "left")
        .join(_watched(messages), ["topic", "queue_id"], "left")
    )
    # A message that was already due when it was sent cannot fire before the send.
    possible_ms = f.greatest(f.col("due_ms"), f.floor(f.col("time_ns") / _NS_PER_MS))
    # A paused topic holds its messages until it resumes. One that arrived before then was not held: it fired as
    # the pause began.
    is_held = f.col("fired_ms").isNull() | (f.col("fired_ms") >= f.col("held_ms"))
    possible_ms = f.greatest(possible_ms, f.when(is_held, f.col("held_ms")))
    return (
        table.withColumn("fired_ms", f.floor(f.col("fired_ns") / _NS_PER_MS))
        .withColumn("possible_ms", possible_ms)
        .withColumn("outcome", _outcome(end_ms, _logged_ms(logs), grace_ms))
        .withColumn("error_ms", f.floor(f.col("got_ns") / _NS_PER_MS) - f.col("possible_ms"))
        .withColumn("stored_error_ms", _stored_ms() - f.col("possible_ms"))
        .withColumn("delay", _range_of_delay())
    )


def at_brokers(table: DataFrame) -> DataFrame:
    """Return rows with the broker as the server also where it is the broker's VIP channel, to which old clients
    send."""
    from pyspark.sql import functions as f

    rows = table.select("server").where("server is not null").distinct().collect()
    # `tidegate capture` puts a word before the address of a broker, but not of a gateway that it was started for.
    servers = {row["server"].rpartition(" ")[2]: row["server"] for row in rows}
    server = f.col("server")
    for address, name in servers.items():
        host, _, port = address.rpartition(":")
        broker = f"{host}:{int(port) + VIP_CHANNEL_DISTANCE}" if port.isdecimal() else ""
        if broker in servers:
            server = f.when(f.col("server") == name, servers[broker]).otherwise(server)
    return table.withColumn("server", server)


def _in_recorders_time(messages: DataFrame) -> DataFrame:
    """Return messages with the `store_ms` of deliveries by the recorder's clock, and `broker_ms` by the broker's.

    A message is stored neither before it was sent nor after it was delivered: a broker's clock is taken to
    be off by the smallest difference that fits this. If that shows that the clock is behind, `latest_ms` is by
    the greatest difference: nobody knows how long messages were on their way. `is_timed` says whether sends
    and deliveries bound the difference. They do not if they contradict each other, as after a clock was set.
    """
    from pyspark.sql import functions as f

    def first_ms(is_wanted: Column, name: str, unit: int = 1) -> Column:
        return f.min(f.when(is_wanted, f.floor(f.col(name) / unit)))

    # Sends with a delay do not count here: the times of delayed messages are what is judged.
    is_sent = (f.col("event") == "sent") & f.col("due_ms").isNull()
    is_delivered = (f.col("event") == "delivered") & (f.col("reconsume_times") == 0)
    stored_ms = first_ms(is_delivered, "store_ms")
    # If it was sent again, nobody knows which send was stored.
    is_sent_once = f.count(f.when(is_sent, 1)) == 1
    after_send = stored_ms - first_ms(is_sent, "time_ns", _NS_PER_MS)
    rows = (
        messages.where(f.col("message_id").isNotNull())
        .groupBy("server", "topic", "message_id")
        .agg(
            f.when(is_sent_once, after_send).alias("after_send"),
            (stored_ms - first_ms(is_delivered, "time_ns", _NS_PER_MS)).alias("after_delivery"),
        )
        .groupBy("server")
        .agg(f.min("after_send").alias("most"), f.max("after_delivery").alias("least"))
        .where("least is not null")
        .collect()
    )
    off_ms = least_ms = f.lit(0)
    is_timed = f.col("event") == "stored"
    for row in rows:
        least, most = row["least"], row["most"]
        is_known = most is not None and least <= most
        is_here = (f.col("event") == "delivered") & f.col("server").eqNullSafe(row["server"])
        smallest = min(max(least, 0), most) if is_known else max(least, 0)
        off_ms = f.when(is_here, smallest).otherwise(off_ms)
        least_ms = f.when(is_here, least if smallest < 0 else smallest).otherwise(least_ms)
        is_timed |= is_here & f.lit(is_known)
    return messages.withColumns(
        {
            "broker_ms": f.col("store_ms"),
            "store_ms": f.col("store_ms") - off_ms,
            "latest_ms": f.col("store_ms") - least_ms,
            "is_timed": is_timed,
        }
    )


def log_folder() -> Column:
    """Return the folder of the commit log that a row was read from; null for other rows."""
    from pyspark.sql import functions as f

    folder = f.coalesce(f.regexp_replace("file", "/[^/]*$", ""), f.lit(""))
    return f.when(f.col("event").isin("stored", "parked", "rolled"), folder)


def is_of_clients() -> Column:
    """Whether a message is in a topic that clients send to, and not in one of the broker's own."""
    from pyspark.sql import functions as f

    return ~f.col("topic").rlike(f"^({'|'.join(NOT_SENT)})")


def _asked(messages: DataFrame) -> DataFrame:
    """Return each delayed message with its due time and how often it was sent."""
    from pyspark.sql import functions as f

    sent = messages.where(
        f.col("event").isin("sent", "parked", "rolled")
        & f.col("due_ms").isNotNull()
        & (f.col("answer_code").isNull() | f.col("answer_code").isin(*STORED_CODES))
        & is_of_clients()
    )
    # A rolled record is no send, and its due time is rounded. It counts where the log with the send is gone.
    is_send = f.col("event") != "rolled"
    is_accepted = f.col("answer_code").isNotNull() | f.col("event").isin("parked", "rolled")
    # A client that got no answer sends the message again with the same id: that is still one message.
    alone = f.when(f.col("message_id").isNull(), f.monotonically_increasing_id())
    return sent.groupBy("topic", "message_id", alone.alias("alone")).agg(
        f.coalesce(f.min(f.when(is_send, f.col("due_ms"))), f.min("due_ms")).alias("due_ms"),
        f.min("time_ns").alias("time_ns"),
        f.min("asked").alias("asked"),
        f.min("asked_value").alias("asked_value"),
        f.greatest(f.count(f.when(is_send, 1)), f.lit(1)).alias("sends"),
        # A client that got no answer may have sent the message to another queue.
        f.max(f.struct(is_accepted, "queue_id"))["queue_id"].alias("queue_id"),
        f.max("keys").alias("keys"),
        f.max("tags").alias("tags"),
        f.max(f.struct("file", "position")).alias("place"),
        f.max(log_folder()).alias("log"),
        f.max(is_accepted).alias("is_accepted"),
    )


def _fired(messages: DataFrame) -> DataFrame:
    """Return when each message was first seen in a queue, when a consumer first got it, and at how many offsets.

    A message that was seen only when it was consumed again has no times and no offsets.
    """
    from pyspark.sql import functions as f

    def at_first(name: str) -> Column:
        return f.when(f.col("reconsume_times") == 0, f.col(name))

    seen = messages.where(f.col("event").isin("delivered", "stored"))
    return seen.groupBy("topic", "message_id").agg(
        f.min(at_first("time_ns")).alias("fired_ns"),
        f.min(f.when(f.col("event") == "delivered", at_first("time_ns"))).alias("got_ns"),
        f.min(at_first("store_ms")).alias("store_ms"),
        f.min(at_first("latest_ms")).alias("latest_ms"),
        f.min(at_first("broker_ms")).alias("broker_ms"),
        f.max("is_timed").alias("is_timed"),
        f.countDistinct(at_first("queue_id"), at_first("queue_offset")).alias("places"),
    )


def _recalled(messages: DataFrame) -> DataFrame:
    """Return when each message was recalled."""
    from pyspark.sql import functions as f

    recalled = messages.where("event = 'recalled'")
    return recalled.groupBy("message_id").agg(f.min("time_ns").alias("recalled_ns"))


def _unanswered(messages: DataFrame) -> DataFrame:
    """Return the messages that a request without an answer may have recalled or rescheduled."""
    from pyspark.sql import functions as f

    asked = messages.where("event = 'unanswered'").select("message_id").distinct()
    return asked.withColumn("is_unsure", f.lit(True))


def _watched(messages: DataFrame) -> DataFrame:
    """Return for each queue and server the periods in which groups that take all messages were watching it.

    A gap in the offsets of a group ends one period and begins another: the group's offset was reset, a consumer
    that was not recorded had the queue, or packets were lost.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    filtered = (
        messages.where("event = 'subscribed' and trim(tags) <> '*'")
        .select("group", "topic")
        .distinct()
    )
    is_drained = f.col("event") == "drained"
    # A server that messages were sent to has the queue too, even if nobody was seen to read it there.
    is_sent = (f.col("event") == "sent") & f.col("answer_code").isin(*STORED_CODES)
    # A message that is consumed again has an offset of another queue.
    is_watching = is_drained | ((f.col("event") == "delivered") & (f.col("reconsume_times") == 0))
    reached = f.when(is_drained, f.floor(f.col("time_ns") / _NS_PER_MS)).otherwise(
        f.col("store_ms")
    )
    of_group = Window.partitionBy("topic", "queue_id", "server", "group")
    by_place = of_group.orderBy("queue_offset")
    # Several brokers have queues with the same numbers, and it is not known in whose queue a message is.
    seen = (
        messages.where(is_watching | is_sent)
        .withColumn("group", f.when(~is_sent, f.col("group")))
        .join(filtered, ["group", "topic"], "left_anti")
        .withColumn("reached_ms", reached)
        .withColumn("next", f.col("queue_offset") + f.when(is_drained, 0).otherwise(1))
    )
    seen_before = f.max("next").over(by_place.rowsBetween(Window.unboundedPreceding, -1))
    is_behind_gap = f.coalesce(f.col("queue_offset") > seen_before, f.lit(False))
    began_ms = f.least("store_ms", "reached_ms")
    # A message that is stored after a pull was sent has an offset past the pull's. After a gap, though, another
    # consumer's pull may have got it.
    asked_ms = f.when(f.col("stretch") == 0, f.floor(f.col("asked_ns") / _NS_PER_MS))
    since = f.when(f.col("queue_offset") == 0, 0).otherwise(f.least(asked_ms, began_ms))
    return (
        seen.withColumn("is_behind_gap", is_behind_gap.cast("int"))
        .withColumn("stretch", f.sum("is_behind_gap").over(by_place))
        .groupBy("topic", "queue_id", "server", "group", "stretch")
        .agg(f.min(since).alias("since_ms"), f.max("reached_ms").alias("until_ms"))
        .groupBy("topic", "queue_id", "server")
        .agg(f.collect_list(f.struct("since_ms", "until_ms")).alias("groups"))
        .groupBy("topic", "queue_id")
        .agg(f.collect_list("groups").alias("servers"))
    )


def _is_watched(grace_ms: int) -> Column:
    """Whether a message's queue was watched from before it was due until `grace_ms` later, on each server."""
    from pyspark.sql import functions as f

    def saw(group: Column) -> Column:
        until_ms = f.col("possible_ms") + grace_ms
        # In the millisecond in which the group began to read, others may have got messages before.
        return (group["since_ms"] < f.col("possible_ms")) & (group["until_ms"] >= until_ms)

    return f.coalesce(f.forall("servers", lambda groups: f.exists(groups, saw)), f.lit(False))


def _logged_ms(logs: Mapping[str, int]) -> Column:
    """Return the time up to which a message's commit log, or else the log that ends first, is complete.

    :param logs: by commit log: when it ends.
    """
    from pyspark.sql import functions as f

    logged_ms = f.lit(min(logs.values(), default=None)).cast("long")
    for name, until_ms in logs.items():
        logged_ms = f.when(f.col("log") == name, f.lit(until_ms)).otherwise(logged_ms)
    return logged_ms


def _is_of_broker() -> Column:
    """Whether a message's due time is by the broker's clock: it was requested as a time, or is from an answer."""
    from pyspark.sql import functions as f

    return (f.col("asked") == "time") | f.col("is_moved")


def _stored_ms() -> Column:
    """Return when a message was stored, by the same clock as its due time."""
    from pyspark.sql import functions as f

    return f.when(_is_of_broker(), f.col("broker_ms")).otherwise(f.col("store_ms"))


def _is_early() -> Column:
    """Whether a message was stored before it was due.

    A due time that counts from a send is by the recorder's clock, which must agree with the broker's. Where no
    send shows that they agree, the time when a consumer got the message counts.
    """
    from pyspark.sql import functions as f

    is_certain = _is_of_broker() | f.col("is_timed") | (f.col("fired_ms") < f.col("due_ms"))
    stored_ms = f.when(_is_of_broker(), f.col("broker_ms")).otherwise(f.col("latest_ms"))
    return is_certain & (f.coalesce(stored_ms, "fired_ms") < f.col("due_ms"))


def _outcome(end_ms: int, logged_ms: Column, grace_ms: int) -> Column:
    """Return the outcome of a message.

    :param end_ms: the end of the recording.
    :param logged_ms: see `_logged_ms`.
    """
    from pyspark.sql import functions as f

    is_fired = f.col("places").isNotNull()
    is_sure = f.col("is_unsure").isNull() & ~f.col("may_be_in_bulk")
    is_seen = _is_watched(grace_ms) | (logged_ms >= f.col("possible_ms") + grace_ms)
    is_fired_later = f.coalesce("store_ms", "fired_ms") > f.col("replaced_ms")
    return (
        f.when(f.col("message_id").isNull(), "without id")
        .when(f.col("replaced_ms").isNotNull() & is_fired & is_fired_later, "fired though replaced")
        .when(f.col("replaced_ms").isNotNull() & ~is_fired, "replaced")
        .when(f.col("recalled_ns").isNotNull() & is_fired, "fired though recalled")
        .when(f.col("recalled_ns").isNotNull(), "recalled")
        .when(f.col("is_in_bulk"), "changed in bulk")
        .when(is_fired & _is_early() & is_sure, "early")
        .when(is_fired & (f.col("places") > f.col("sends")), "doubled")
        .when(is_fired, "fired")
        .when(f.col("possible_ms") > f.lit(end_ms - grace_ms), "not due")
        .when(is_seen & f.col("is_accepted") & is_sure, "lost")
        .when(is_seen, "unanswered")
        .otherwise("not watched")
    )


def _range_of_delay() -> Column:
    """Return the name of the range in `RANGES` that has a message's delay."""
    from pyspark.sql import functions as f

    delay = f.col("due_ms") - f.col("time_ns") / _NS_PER_MS
    ranges = f.lit("over 3 days")
    for bound, name in reversed(RANGES):
        ranges = f.when(delay < bound, name).otherwise(ranges)
    return f.when(delay <= 0, "already due").otherwise(ranges)
