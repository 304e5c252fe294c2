"""`verify`: checks that each delayed message fired once, and compares the time with the due time.

A message is identified by topic and UNIQ_KEY. It has fired when it has an offset in its topic's
queue: several deliveries at one offset are one firing, two offsets are two firings. The error of a
firing is its time minus the due time, in ms. There are two such times: when a consumer first got the
message, which includes the consumer's own delay, and when the broker stored it in the queue, by the
broker's clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gateway.wire.group_topics import RETRY_PREFIX
from spark_jobs.logged_sends import NOT_SENT
from spark_jobs.messages import STORED_CODES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PERCENTILES: Final = (0.5, 0.9, 0.99, 0.999)

RANGES: Final = (
    (10_000, "under 10 s"),
    (60_000, "10 s to 1 min"),
    (600_000, "1 to 10 min"),
    (3_600_000, "10 min to 1 h"),
    (86_400_000, "1 h to 1 day"),
    (3 * 86_400_000, "1 to 3 days"),
)
"""Upper bounds of delays in ms, and the names of the ranges; longer delays are `over 3 days`."""

_BAD: Final = ("lost", "doubled", "early", "fired though recalled", "fired though replaced")
_NS_PER_MS: Final = 1_000_000
_NEVER_MS: Final = 1 << 52
"""A time after all others."""
_STEPS_NS: Final = 60_000_000_000
"""A minute, within which the steps of a bulk change are treated as one."""


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
    recorded_twice: int = 0
    """Sends, also without a delay, that are in two recordings: whether their messages were doubled is not known."""
    groups: list[Errors]
    notes: list[str] = []
    """What limits the findings, such as requests whose answers nobody knows."""
    samples: list[dict[str, Any]]
    """Some of the messages that were lost, doubled or early, or fired though recalled or replaced."""

    @property
    def is_good(self) -> bool:
        """Whether no message was lost, doubled or early, or fired though recalled or replaced."""
        fired_in_vain = self.fired_though_recalled or self.fired_though_replaced
        return not (self.lost or self.doubled or self.early or fired_in_vain)


def recorded_twice(messages: DataFrame) -> int:
    """Count the sends that occur more than once because two recordings have the same traffic.

    A capture and a commit log are no such two: they record different things of the same message. A client that
    repeats a send because it got no answer gives it another born time.

    :param messages: rows of `messages.MESSAGES`.
    """
    from pyspark.sql import functions as f

    is_accepted = (f.col("event") == "sent") & f.col("answer_code").isin(*STORED_CODES)
    of_clients = ~f.col("topic").rlike(f"^({'|'.join(NOT_SENT)})")
    is_logged = f.col("event").isin("parked", "stored") & of_clients
    accepted = messages.where((f.col("born_ms") > 0) & (is_accepted | is_logged))
    # A log has a message again when it has fired; the log of another folder, such as a slave's, has a copy.
    place = f.struct(f.coalesce(_log(), "file").alias("recording"), "connection")

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
        (f.col("event") == "sent")
        & f.col("due_ms").isNotNull()
        & ~f.col("topic").startswith(RETRY_PREFIX)
    )
    by_message = sends.groupBy("topic", "message_id", alone.alias("alone"))
    return by_message.agg(f.bool_and(is_refused).alias("is_refused")).where("is_refused").count()


def outcomes(messages: DataFrame, *, grace_ms: int) -> DataFrame:
    """Return a row for each delayed message with its outcome.

    :param messages: rows of `messages.MESSAGES`.
    :param grace_ms: a message that was due within this time before its queue was last seen is not lost.
    """
    from pyspark.sql import functions as f

    messages = _in_recorders_time(messages)
    by_log = messages.groupBy(_log().alias("log")).agg(
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
    has_moves = there_are("moves")
    asked = _moved(asked, messages) if has_moves else asked.withColumn("is_moved", f.lit(False))
    asked = (
        _replaced(asked, messages, grace_ms)
        if there_are("replacings")
        else asked.withColumn("replaced_ms", f.lit(None).cast("long"))
    )
    asked = (
        _changed_in_bulk(asked, messages)
        if there_are("changes")
        else asked.withColumns({"is_in_bulk": f.lit(False), "may_be_in_bulk": f.lit(False)})
    )
    asked = (
        _held(asked, messages)
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
        .withColumn("error_ms", f.col("fired_ms") - f.col("possible_ms"))
        .withColumn("stored_error_ms", _stored_ms() - f.col("possible_ms"))
        .withColumn("delay", _range_of_delay())
    )


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


def _log() -> Column:
    """Return the folder of the commit log that a row was read from; null for other rows."""
    from pyspark.sql import functions as f

    folder = f.coalesce(f.regexp_replace("file", "/[^/]*$", ""), f.lit(""))
    return f.when(f.col("event").isin("stored", "parked", "rolled"), folder)


def _asked(messages: DataFrame) -> DataFrame:
    """Return each delayed message with its due time and how often it was sent."""
    from pyspark.sql import functions as f

    sent = messages.where(
        f.col("event").isin("sent", "parked", "rolled")
        & f.col("due_ms").isNotNull()
        & (f.col("answer_code").isNull() | f.col("answer_code").isin(*STORED_CODES))
        & ~f.col("topic").startswith(RETRY_PREFIX)
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
        f.max(_log()).alias("log"),
        f.max(is_accepted).alias("is_accepted"),
    )


def _fired(messages: DataFrame) -> DataFrame:
    """Return when each message was first seen in a queue, and at how many offsets.

    A message that was seen only when it was consumed again has no times and no offsets.
    """
    from pyspark.sql import functions as f

    def at_first(name: str) -> Column:
        return f.when(f.col("reconsume_times") == 0, f.col(name))

    seen = messages.where(f.col("event").isin("delivered", "stored"))
    return seen.groupBy("topic", "message_id").agg(
        f.min(at_first("time_ns")).alias("fired_ns"),
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
        # Old clients send to another port of a broker, the VIP channel.
        .withColumn("server", f.regexp_replace("server", ":10909$", ":10911"))
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


def _moved(asked: DataFrame, messages: DataFrame) -> DataFrame:
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


def _replaced(asked: DataFrame, messages: DataFrame, grace_ms: int) -> DataFrame:
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
    sent_ns = f.col("sent_ns") if "sent_ns" in asked.columns else f.col("time_ns")
    places = asked.select(
        *("topic", "message_id", "due_ms"),
        sent_ns.alias("at_ns"),
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


def _changed_in_bulk(asked: DataFrame, messages: DataFrame) -> DataFrame:
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


def _held(asked: DataFrame, messages: DataFrame) -> DataFrame:
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
