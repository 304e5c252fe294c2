"""Whether delayed messages fired once and in time, from made-up events and from those of real clients."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from gateway.wire.codes import RequestCode, ResponseCode, SysFlag
from gateway.wire.commands import Command
from gateway.wire.properties import find
from spark_jobs import messages, profiling
from spark_jobs.exchanges import DDL, ROWS
from spark_jobs.firing import Verdict, verify
from spark_jobs.ingest import read_table
from spark_jobs.outcomes import at_brokers, outcomes
from spark_jobs.profiling import Profile, profile
from spark_jobs.reporting import sections
from spark_jobs.rewriting import Rewriter, Rules, new_id
from tests.gateway.memory import MemoryClient, MemoryGateway
from tests.gateway.popping import ask_pop, pop_fields
from tests.gateway.transactions import begin, end
from tests.spark.recorded import RecordedClient, replay

MS = 1_000_000
START = 1_700_000_000_000


def sent(name: str, delay_ms: int, **more: Any) -> dict[str, Any]:
    return {
        "event": "sent",
        "topic": "orders",
        "queue_id": 0,
        "message_id": name,
        "time_ns": START * MS,
        "asked": "milliseconds",
        "asked_value": delay_ms,
        "due_ms": START + delay_ms,
        "answer_code": 0,
        "body_size": 10,
        **more,
    }


def got(name: str, at_ms: int, offset: int, **more: Any) -> dict[str, Any]:
    return {
        "event": "delivered",
        "topic": "orders",
        "group": "billing",
        "queue_id": 0,
        "queue_offset": offset,
        "message_id": name,
        "time_ns": (START + at_ms + 2) * MS,
        "store_ms": START + at_ms,
        "reconsume_times": 0,
        **more,
    }


def on_time(wrong_ms: int = 0) -> list[dict[str, Any]]:
    """Return a message without a delay, on a broker whose clock is wrong by this much."""
    without = {"asked": None, "asked_value": None, "due_ms": None}
    stored = got("now", 1 + wrong_ms, 5, time_ns=(START + 2) * MS)
    return [{**sent("now", 0), **without}, stored]


def drained(at_ms: int, group: str = "billing", **more: Any) -> dict[str, Any]:
    time_ns = (START + at_ms) * MS
    return {
        "event": "drained",
        "topic": "orders",
        "group": group,
        "queue_id": 0,
        "queue_offset": 0,
        "time_ns": time_ns,
        **more,
    }


def recalled(name: str) -> dict[str, Any]:
    return {"event": "recalled", "message_id": name, "time_ns": START * MS}


def unanswered(name: str) -> dict[str, Any]:
    return {"event": "unanswered", "message_id": name, "time_ns": START * MS}


def moved(name: str, to_ms: int, at_ms: int = 500, answer_code: int = 0) -> dict[str, Any]:
    return {
        "event": "rescheduled",
        "topic": "orders",
        "message_id": name,
        "time_ns": (START + at_ms) * MS,
        "due_ms": START + to_ms,
        "answer_code": answer_code,
    }


def replaced(key: str, at_ms: int) -> dict[str, Any]:
    return {
        "event": "replaced",
        "topic": "orders",
        "message_id": "by",
        "keys": key,
        "time_ns": (START + at_ms) * MS,
        "store_ms": START + at_ms + 1,
    }


def changed(
    at_ms: int, begin_ms: int = 0, end_ms: int | None = None, **more: Any
) -> dict[str, Any]:
    return {
        "event": "changed",
        "topic": "orders",
        "time_ns": (START + at_ms) * MS,
        "asked_value": START + begin_ms,
        "due_ms": None if end_ms is None else START + end_ms,
        "answer_code": 0,
        **more,
    }


def paused(at_ms: int, event: str = "paused") -> dict[str, Any]:
    return {"event": event, "topic": "orders", "time_ns": (START + at_ms) * MS}


def half(key: str) -> dict[str, Any]:
    return {**sent("by", 0), "event": "prepared", "keys": key, "due_ms": None}


def committed(at_ms: int, done_ms: int | None = None) -> dict[str, Any]:
    return {
        "event": "committed",
        "message_id": "by",
        "time_ns": (START + at_ms) * MS,
        "store_ms": None if done_ms is None else START + done_ms,
    }


DELAY = 3 * 86_400_000
FIRED_IN_VAIN = "fired though replaced"
RECALLED_IN_VAIN = "fired though recalled"
IN_BULK = "changed in bulk"


def table(spark: SparkSession, *rows: dict[str, Any]) -> Any:
    filled = [tuple(row.get(name) for name in messages.MESSAGES.names) for row in rows]
    return spark.createDataFrame(filled, messages.DDL)


def counted(spark: SparkSession, rows: list[dict[str, Any]], grace_ms: int = 5_000) -> Counter[str]:
    """Return how many messages have each outcome."""
    found = outcomes(table(spark, *rows), grace_ms=grace_ms).select("outcome").collect()
    return Counter(row["outcome"] for row in found)


CASES: list[tuple[list[dict[str, Any]], str]] = [
    ([sent("a", 1000), got("a", 1003, 7)], "fired"),
    ([sent("a", 1000), got("a", 1003, 7), got("a", 1500, 7)], "fired"),
    ([sent("a", 1000), got("a", 1003, 7), got("a", 1500, 8)], "doubled"),
    ([sent("a", 1000), sent("a", 1000), got("a", 1003, 7), got("a", 1003, 8)], "fired"),
    ([sent("a", 1000), got("a", 1003, 7), got("a", 9000, 8, reconsume_times=1)], "fired"),
    ([sent("a", 1000), got("a", 999, 7), *on_time()], "early"),
    ([sent("a", 1000), got("a", 997, 7)], "early"),
    ([sent("a", 1000, asked="time"), got("a", 999, 7)], "early"),
    # The broker's clock is behind by 2 s.
    ([sent("a", 1000), got("a", -990, 7, time_ns=(START + 1010) * MS)], "fired"),
    ([sent("a", 1000), got("a", -990, 7, time_ns=(START + 3000) * MS), *on_time(-2000)], "fired"),
    ([sent("a", 1000), got("a", -1600, 7, time_ns=(START + 3000) * MS), *on_time(-2000)], "early"),
    # The message without a delay may have been on its way for 1 ms longer than this one.
    ([sent("a", 1000), got("a", -1000, 7, time_ns=(START + 1003) * MS), *on_time(-2000)], "fired"),
    # The message without a delay was sent again: how long it took is not known.
    (
        [
            sent("a", 1000),
            got("a", -150, 7, time_ns=(START + 1002) * MS),
            *on_time(-1150),
            {**on_time()[0], "time_ns": (START - 3000) * MS, "answer_code": None},
        ],
        "fired",
    ),
    # Two times contradict each other, because a message was sent again or a clock was set.
    ([sent("a", 1000), got("a", 990, 7, time_ns=(START + 1010) * MS), *on_time(-9000)], "fired"),
    # The broker's clock is ahead.
    (
        [
            sent("a", 60_000),
            moved("a", 3000),
            got("a", 3001, 7, time_ns=(START + 1003) * MS),
            *on_time(2000),
        ],
        "fired",
    ),
    ([sent("a", 1000), got("a", 2500, 7, time_ns=(START + 600) * MS), *on_time(2000)], "early"),
    (
        [sent("a", 2000), got("b", 20_000, 0, time_ns=(START + 1500) * MS), *on_time(18_500)],
        "not watched",
    ),
    ([sent("a", -1000), got("a", 3, 7)], "fired"),
    ([sent("a", 1000), got("a", 9000, 8, reconsume_times=1)], "fired"),
    ([sent("a", 1000), recalled("a"), got("a", 9000, 8, reconsume_times=1)], RECALLED_IN_VAIN),
    ([sent("a", 1000), drained(6000)], "lost"),
    ([sent("a", -1000), drained(4999)], "not watched"),
    ([sent("a", -1000, time_ns=(START + 9000) * MS), drained(9500)], "not due"),
    ([sent("a", 1000), got("b", 6000, 7)], "not watched"),
    ([sent("a", 1000), got("b", 6000, 0)], "lost"),
    ([sent("a", 1000), got("b", 6000, 7, asked_ns=(START + 999) * MS)], "lost"),
    ([sent("a", 1000), got("b", 6000, 7, asked_ns=(START + 1000) * MS)], "not watched"),
    # Of the messages that were stored in one millisecond, the group may have got only the later ones.
    ([sent("a", 1000), got("b", 1000, 7), got("c", 6000, 8)], "not watched"),
    ([sent("a", 1000), got("b", 900, 7), got("c", 6000, 8)], "lost"),
    ([sent("a", 1000), got("b", 900, 7), got("c", 6000, 8, group="other")], "not watched"),
    # The messages at the offsets between went to a consumer that was not recorded, or were skipped.
    ([sent("a", 1000), got("b", 900, 7), got("c", 6000, 9)], "not watched"),
    ([sent("a", 1000), got("b", 900, 7), drained(6000, queue_offset=9)], "not watched"),
    (
        [sent("a", 1000), got("b", 900, 7), got("c", 6000, 9, asked_ns=(START + 950) * MS)],
        "not watched",
    ),
    ([sent("a", 1000), got("b", 900, 7), drained(6000, queue_offset=8)], "lost"),
    ([sent("a", 1000), got("b", 100, 5), got("c", 900, 7), got("d", 6000, 8)], "lost"),
    (
        [sent("a", 1000), got("b", 900, 7), got("b", 901, 8, reconsume_times=1), got("c", 6000, 9)],
        "not watched",
    ),
    ([sent("a", 1000), drained(6000, queue_offset=7)], "not watched"),
    ([sent("a", 1000), drained(6000, queue_offset=7, asked_ns=START * MS)], "lost"),
    ([sent("a", 8000), drained(9000)], "not due"),
    ([sent("a", 1000), drained(5999)], "not watched"),
    ([sent("a", 1000, answer_code=None), drained(6000)], "unanswered"),
    ([sent("a", 1000, answer_code=None), sent("a", 1000), drained(6000)], "lost"),
    ([sent("a", 1000, answer_code=None), drained(5999)], "not watched"),
    # The queue of the first send, which nobody answered, is not the message's.
    (
        [
            sent("a", 1000, answer_code=None, queue_id=3),
            sent("a", 1000),
            {**drained(6000), "queue_id": 3},
        ],
        "not watched",
    ),
    ([sent("a", 1000, answer_code=None), got("a", 1003, 7)], "fired"),
    ([sent("a", 1000), unanswered("a"), drained(6000)], "unanswered"),
    ([sent("a", 1000), unanswered("a"), got("a", 500, 7)], "fired"),
    ([sent("a", 1000), unanswered("a"), recalled("a"), drained(6000)], "recalled"),
    ([sent("a", 1000), {**drained(9000), "queue_id": 1}], "not watched"),
    (
        [sent("a", 1000), {**drained(900), "server": "b"}, {**drained(9000), "server": "a"}],
        "not watched",
    ),
    (
        [
            sent("a", 1000, server="a"),
            {**drained(6000), "server": "b"},
            {**drained(9000), "server": "a"},
        ],
        "lost",
    ),
    # The other broker's queue was not read.
    ([sent("a", 1000, server="b"), {**drained(9000), "server": "a"}], "not watched"),
    # Old clients send to another port of the broker.
    ([sent("a", 1000, server="b:20919"), {**drained(9000), "server": "b:20921"}], "lost"),
    (
        [
            sent("a", 1000),
            drained(9000),
            {"event": "subscribed", "topic": "orders", "group": "billing", "tags": "red"},
        ],
        "not watched",
    ),
    ([sent("a", 1000), recalled("a"), drained(9000)], "recalled"),
    (
        [sent("a", 1000), recalled("a"), got("a", 1000, 7)],
        "fired though recalled",
    ),
    ([sent("a", 1000, message_id=None), drained(9000)], "without id"),
    ([sent("a", 1000), moved("a", 3000), got("a", 3002, 7)], "fired"),
    ([sent("a", 60_000), moved("a", 1000), got("a", 1002, 7)], "fired"),
    ([sent("a", 1000), moved("a", 3000), got("a", 1002, 7)], "early"),
    ([sent("a", 60_000), moved("a", 1000), drained(6000)], "lost"),
    ([sent("a", 1000), moved("a", 60_000), drained(9000)], "not due"),
    ([sent("a", 1000), moved("a", 5000), moved("a", 2000, 600), got("a", 2001, 7)], "fired"),
    ([sent("a", 1000), moved("a", 5000, answer_code=13), got("a", 1001, 7)], "fired"),
    ([sent("a", 1000, keys="k1 k2"), replaced("k2", 500), drained(9000)], "replaced"),
    ([sent("a", 1000, keys="k1 k2"), replaced("k2", 500), got("a", 1001, 7)], FIRED_IN_VAIN),
    ([sent("a", 1000, keys="k1"), replaced("k1", 2000), got("a", 1001, 7)], "fired"),
    ([sent("a", 1000, keys="k1"), replaced("k1", -10), got("a", 1001, 7)], "fired"),
    ([sent("a", 1000, keys="k1"), replaced("k2", 500), drained(9000)], "lost"),
    (
        [sent("a", 1000, keys="k1"), moved("a", 3000, 600), replaced("k1", 500), drained(9000)],
        "replaced",
    ),
    ([sent("a", 1000, keys="k1"), half("k1"), committed(500), drained(9000)], "replaced"),
    ([sent("a", 1000, keys="k1"), half("k1"), drained(9000)], "lost"),
    ([sent("a", 1000, keys="k1"), replaced("k1", 6500), drained(9000)], "lost"),
    (
        [
            sent("a", 1000, keys="k1"),
            {**replaced("k1", 0), "message_id": "a"},
            {**replaced("k1", 10), "message_id": "a"},
            got("a", 1001, 7),
        ],
        "fired",
    ),
    (
        [
            sent("a", 1000, keys="k1"),
            {**replaced("k1", 0), "message_id": "a"},
            replaced("k1", 500),
            replaced("k1", 2000),
            drained(9000),
        ],
        "replaced",
    ),
    ([sent("a", 1000, keys="k1"), half("k1"), committed(6500), drained(9000)], "lost"),
    ([sent("a", 1000, keys="k1"), half("k1"), committed(999, 1002), got("a", 1001, 7)], "fired"),
    (
        [sent("a", 1000, keys="k1"), half("k1"), committed(500, 501), got("a", 1001, 7)],
        FIRED_IN_VAIN,
    ),
    ([sent("a", 1000), paused(500), drained(9000)], "not due"),
    ([sent("a", 1000), paused(500), got("a", 1000, 7)], "fired"),
    ([sent("a", 1000), paused(1500), drained(9000)], "lost"),
    ([sent("a", 1000), paused(500), paused(2000, "resumed"), drained(9000)], "lost"),
    ([sent("a", 1000), paused(500), paused(2000, "resumed"), drained(6999)], "not watched"),
    ([sent("a", 1000), paused(2000, "resumed"), drained(6999)], "not watched"),
    ([sent("a", 1000), paused(500), paused(900, "resumed"), drained(6000)], "lost"),
    (
        [
            sent("a", 1000),
            paused(500),
            paused(600),
            paused(700, "resumed"),
            paused(900),
            drained(9000),
        ],
        "not due",
    ),
    ([sent("a", 1000), changed(500), drained(9000)], IN_BULK),
    ([sent("a", 1000), changed(500), changed(510), got("a", 700, 7)], IN_BULK),
    ([sent("a", 1000), changed(500, 1001), drained(9000)], "lost"),
    ([sent("a", 1000), changed(500, 0, 1000), drained(9000)], "lost"),
    ([sent("a", 1000), changed(1500), drained(9000)], "lost"),
    ([sent("a", 1000, time_ns=(START + 600) * MS), changed(500), drained(9000)], "lost"),
    ([sent("a", 1000, tags="x"), changed(500, tags="x"), drained(9000)], IN_BULK),
    ([sent("a", 1000), changed(500, tags="x"), drained(9000)], "lost"),
    ([sent("a", 1000, keys="k1 k2"), changed(500, keys="k2"), drained(9000)], IN_BULK),
    ([sent("a", 1000, keys="k1"), changed(500, keys="k2"), drained(9000)], "lost"),
    ([sent("a", 1000), moved("a", 5000, 600), changed(500), got("a", 5001, 7)], "fired"),
    ([sent("a", 1000), changed(500, answer_code=None), drained(9000)], "unanswered"),
    ([sent("a", 1000), changed(500, answer_code=None), got("a", 700, 7)], "fired"),
    ([sent("a", 1000), changed(500, answer_code=None), changed(510), drained(9000)], IN_BULK),
]


def test_what_became_of_each_message(spark: SparkSession) -> None:
    """Each case is a topic and a server of its own, so one run covers all."""
    rows = [
        {
            **row,
            "topic": str(number),
            "server": f"{number}{row.get('server', '')}",
            "message_id": row.get("message_id") and f"{number}{row['message_id']}",
        }
        for number, (events, _) in enumerate(CASES)
        for row in events
    ]
    found = outcomes(table(spark, *rows, drained(9000)), grace_ms=5_000).collect()
    assert {row["topic"]: row["outcome"] for row in found} == {
        str(number): expected for number, (_, expected) in enumerate(CASES)
    }


def test_a_vip_channel_is_no_server_of_its_own(spark: SparkSession) -> None:
    """The proxy puts a word before the addresses of brokers, but not of a gateway that it was started for."""
    servers = {
        "broker 10.0.0.1:10909": "broker 10.0.0.1:10911",
        "broker 10.0.0.1:10911": "broker 10.0.0.1:10911",
        "broker 10.0.0.2:9874": "10.0.0.2:9876",
        "10.0.0.2:9876": "10.0.0.2:9876",
        "broker 10.0.0.3:10909": "broker 10.0.0.3:10909",
        "broker-a": "broker-a",
    }
    rows = [drained(0, server=server, group=server) for server in servers]
    found = at_brokers(table(spark, *rows)).select("group", "server").collect()
    assert {row["group"]: row["server"] for row in found} == servers


def test_what_a_log_does_not_reach_is_not_lost(spark: SparkSession) -> None:
    """There are the logs of two brokers, one of which was copied earlier than the other."""

    def of(event: str, name: str, broker: str, at_ms: int, **more: Any) -> dict[str, Any]:
        file = f"/{broker}/commitlog/{0:020}"
        stored = {"file": file, "store_ms": START + at_ms, "reconsume_times": 0}
        return {**sent(name, 1000), **stored, "event": event, "answer_code": None, **more}

    rows = [of("parked", name, "one", 0) for name in ("a", "b")]
    rows.append(of("parked", "c", "two", 0))
    rows.append(of("stored", "a", "one", 1001, queue_offset=0))
    later = START + 20_000
    rows.append(of("stored", "d", "two", 20_000, time_ns=later * MS, due_ms=None))
    found = outcomes(table(spark, *rows), grace_ms=5_000).collect()
    assert {row["message_id"]: row["outcome"] for row in found} == {
        "a": "fired",
        "b": "not watched",
        "c": "lost",
    }


def test_what_a_broker_rolled_in_its_log_is_no_send(spark: SparkSession) -> None:
    def of(event: str, name: str, at_ms: int, offset: int = 0, **more: Any) -> dict[str, Any]:
        place = {"event": event, "file": f"/store/commitlog/{0:020}", "queue_offset": offset}
        times = {"time_ns": (START + at_ms) * MS, "store_ms": START + at_ms, "reconsume_times": 0}
        return {**sent(name, DELAY), "answer_code": None, **place, **times, **more}

    def rolled(name: str) -> dict[str, Any]:
        return of("rolled", name, DELAY // 2, due_ms=START + DELAY - 1000)

    rows = [of("parked", "whole", 0), rolled("whole"), of("stored", "whole", DELAY)]
    rows += [of("parked", "twice", 0), rolled("twice")]
    rows += [of("stored", "twice", DELAY, offset) for offset in (1, 2)]
    # The files with their sends were deleted.
    rows += [rolled("later"), of("stored", "later", DELAY - 1, 3), rolled("lost")]
    rows.append(of("stored", "now", DELAY + 60_000, 4, asked=None, due_ms=None))
    events = table(spark, *rows)
    found = outcomes(events, grace_ms=5_000).collect()
    assert {row["message_id"]: (row["outcome"], row["stored_error_ms"]) for row in found} == {
        "whole": ("fired", 0),
        "twice": ("doubled", 0),
        "later": ("fired", 999),
        "lost": ("lost", None),
    }
    figures = profile(spark.createDataFrame([], DDL), events)
    assert (figures.sent, figures.delayed, figures.pending_at_most) == (3, 2, 4)


def test_what_a_broker_keeps_in_its_log_for_itself_is_no_message(spark: SparkSession) -> None:
    """For each pop it has a timer; the retry of a message is not another message."""
    rows = []
    for topic in ("orders", "rmq_sys_REVIVE_LOG_DefaultCluster", "%RETRY%billing_orders"):
        of_topic = {**sent(topic, 1000), "topic": topic, "answer_code": None, "store_ms": START}
        rows.append({**of_topic, "event": "parked"})
        rows.append({**of_topic, "event": "stored", "asked": None, "due_ms": None})
    rows[1] |= {"asked": "milliseconds"}  # a message that was pending has its delay in its record
    events = table(spark, *rows)
    assert verify(events).messages == 1
    figures = profile(spark.createDataFrame([], DDL), events)
    assert (figures.sent, figures.delayed) == (1, 1)
    assert [one.topic for one in figures.topics] == ["orders"]


def test_topics_that_a_profile_leaves_out_are_told(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling, "_TOPICS", 1)
    events = table(spark, sent("a", 1000), sent("b", 1000), sent("c", 1000) | {"topic": "bills"})
    figures = profile(spark.createDataFrame([], DDL), events)
    assert ([one.topic for one in figures.topics], figures.more_topics) == (["orders"], 1)
    [section] = sections([("", figures)])
    assert section.notes == ["1 topics with fewer messages are not shown"]


def test_a_refused_send_is_no_message(spark: SparkSession) -> None:
    assert outcomes(table(spark, sent("a", 1000, answer_code=13)), grace_ms=0).count() == 0


def test_what_was_refused_each_time_is_counted(spark: SparkSession) -> None:
    """Else all is well where a target takes nothing."""
    busy = [sent(name, 100, answer_code=2) for name in ("A", "B", "C", "A")]
    again = [sent("B", 100), sent("C", 100, answer_code=None)]
    now = {**sent("now", 0, answer_code=2), "due_ms": None}
    found = verify(table(spark, *busy, *again, now))
    assert (found.messages, found.refused, found.is_good) == (2, 1, True)
    found = verify(table(spark, *busy, now))
    assert (found.messages, found.refused, found.is_good) == (0, 3, False)
    assert msgspec.structs.replace(found, refused=0).is_good, "there is nothing to judge"


def test_messages_without_an_id_are_counted_one_by_one(spark: SparkSession) -> None:
    rows = [sent("", 1000, message_id=None) for _ in range(5)]
    verdict = verify(table(spark, *rows, sent("a", 1000), drained(9000)))
    assert (verdict.messages, verdict.without_id, verdict.lost) == (6, 5, 1)


def test_errors_are_told_by_group(spark: SparkSession) -> None:
    rows = [sent(f"m{n}", 1000 if n < 50 else 60_000) for n in range(100)]
    rows += [got(f"m{n}", (1000 if n < 50 else 60_000) + n, n) for n in range(100)]
    verdict = verify(table(spark, *rows))
    assert verdict.is_good
    assert (verdict.messages, verdict.fired) == (100, 100)
    errors = {(group.by, group.name): group for group in verdict.groups}
    everything = errors["all", "all"]
    assert everything.max == 99 + 2
    assert everything.stored_max == 99
    assert everything.p50 == pytest.approx(49.5 + 2)
    assert everything.p99 == pytest.approx(98.01 + 2)
    assert errors["delay", "under 10 s"].max == 49 + 2
    assert errors["delay", "1 to 10 min"].messages == 50
    assert errors["asked", "milliseconds"].fired == errors["topic", "orders"].fired == 100


def test_a_log_does_not_tell_when_consumers_got_messages(spark: SparkSession) -> None:
    """The time at which a broker stored a message is not theirs, also where the log lies beside a recording of them."""
    sends = [sent(name, 1000) for name in ("a", "b")]
    place = {"event": "stored", "file": f"/store/commitlog/{0:020}"}
    log = [got("a", 1003, 7, **place), got("b", 1004, 8, **place)]
    alone, *_ = verify(table(spark, *sends, *log)).groups
    assert (alone.fired, alone.stored_max) == (2, 4)
    assert (alone.p50, alone.p999, alone.max) == (None, None, None)
    late = got("a", 1003, 7, time_ns=(START + 1_500) * MS)
    both, *_ = verify(table(spark, *sends, *log, late)).groups
    assert (both.fired, both.stored_max, both.p50, both.max) == (2, 4, 500, 500)


def test_what_was_taken_back_is_no_longer_pending(spark: SparkSession) -> None:
    """Of the timeouts that close orders, most are recalled, long before they are due. They were never pending at once,
    and a rescheduled message is due only once."""

    def order(name: str, at_ms: int, **more: Any) -> dict[str, Any]:
        due_ms = START + at_ms + 1_800_000
        return sent(name, 1_800_000, time_ns=(START + at_ms) * MS, due_ms=due_ms, **more)

    rows = []
    for number in range(10):
        name, at_ms = f"paid-{number}", number * 10_000
        recall = {**recalled(name), "time_ns": (START + at_ms + 5_000) * MS}
        rows += [order(name, at_ms), recall]
    rows += [order("unpaid", 0), order("cart", 0, keys="k"), replaced("k", 2_000)]
    rows += [order("later", 0), moved("later", 1_900_000), moved("later", 1_950_000, 600)]
    # This one was due long before it was sent.
    rows.append({**order("past", 500_000), "due_ms": START - 1_000_000})
    found = profile(spark.createDataFrame([], DDL), table(spark, *rows))
    assert (found.delayed, found.pending_at_most, found.peak_due) == (14, 4, 1)


def test_a_request_without_a_language_is_counted(spark: SparkSession) -> None:
    row = {"from_client": True, "asked_ns": START * MS, "code": 34, "connection": "a#1"}
    pairs = spark.createDataFrame([tuple(row.get(field.name) for field in ROWS)], DDL)
    found = profile(pairs, table(spark))
    assert found.languages == {"unknown": 1}
    assert msgspec.json.decode(msgspec.json.encode(found), type=Profile) == found


@pytest.mark.parametrize("due_ms", [9_999_999_999_999, (1 << 63) // 2000 - 1])
def test_a_message_due_in_centuries_is_counted(spark: SparkSession, due_ms: int) -> None:
    far = sent("far", due_ms, asked="time", due_ms=due_ms, answer_code=None)
    found = profile(spark.createDataFrame([], DDL), table(spark, far, sent("a", 1000)))
    assert (found.sent, found.pending_at_most, found.peak_due) == (2, 2, 1)


@pytest.fixture
def memory() -> Iterator[MemoryGateway]:
    with tempfile.TemporaryDirectory() as folder:
        gateway = MemoryGateway(Path(folder) / "data")
        yield gateway
        gateway.close()


def test_what_a_gateway_changes_is_understood(spark: SparkSession, memory: MemoryGateway) -> None:
    """Each way to reschedule, recall and replace a message, with the gateway's responses."""
    client = RecordedClient(memory)

    def send(name: str, delay_ms: int | None, **properties: str) -> Command:
        time = {"TIMER_DELAY_MS": str(delay_ms)} if delay_ms is not None else {}
        return client.send_message("orders", name, {"UNIQ_KEY": name, **time, **properties})

    def ids(outcome: str) -> set[str]:
        return {row["message_id"] for row in found if row["outcome"] == outcome}

    for name in ("moved", "by-id", "by-handle", "aborted", "ordered-off", "fired"):
        handle = send(name, 1_000).ext()["recallHandle"]
        if name == "by-handle":
            client.ask(RequestCode.RESCHEDULE_TIMERS, {"handle": handle, "shift": "2000"})
    send("order", 5_000, TIDEGATE_RESCHEDULE="moved")
    client.ask(RequestCode.RESCHEDULE_TIMERS, {"id": "by-id", "due": str(memory.now_ms + 4_000)})
    client.ask(RequestCode.ABORT_TIMERS, {"id": "aborted"})
    send("order-off", 1_000, TIMER_DEL_UNIQKEY="ordered-off")
    for name in ("first", "second", "last"):
        send(name, 3_000, KEYS="cart", TIDEGATE_DEBOUNCE="cart")
        memory.advance(100)
    both = {"KEYS": "box", "TIDEGATE_DEBOUNCE": "box"}
    both["TIMER_DELAY_MS"] = "4000"
    client.send_batch([(name, {"UNIQ_KEY": name, **both}) for name in ("one", "two")])
    memory.advance(1_500)
    send("too-late", 5_000, TIDEGATE_RESCHEDULE="fired")
    memory.advance(20_000)
    client.pull()
    client.pull(offset=100)
    events = [event for pair in client.pairs for event in messages.messages_of_pair(pair, ())]
    found = outcomes(table(spark, *events), grace_ms=1_000).collect()
    assert ids("fired") == {"moved", "by-id", "by-handle", "fired", "last", "two"}
    assert ids("recalled") == {"aborted", "ordered-off"}
    assert ids("replaced") == {"first", "second", "one"}
    assert len(found) == 11
    verdict = verify(table(spark, *events), grace_ms=1_000)
    assert verdict.is_good
    assert (verdict.rescheduled, verdict.replaced, verdict.fired) == (3, 3, 6)
    errors = {group.name: group for group in verdict.groups}
    assert (errors["all"].stored_max or 0) < 100, "by the new times"
    # Without the reschedules, the messages would be late by seconds.
    unmoved = [event for event in events if event["event"] != messages.RESCHEDULED]
    late = outcomes(table(spark, *unmoved), grace_ms=1_000).select("stored_error_ms").collect()
    assert max(row["stored_error_ms"] or 0 for row in late) > 1_000


def test_a_paused_topic_holds_its_messages(spark: SparkSession, memory: MemoryGateway) -> None:
    """One topic stays paused to the end. The other resumes; its messages could not fire before, so none is late."""
    client = RecordedClient(memory)
    client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "resumed", "perm": "6"})
    for topic in ("orders", "resumed"):
        client.send_message(topic, topic, {"UNIQ_KEY": topic, "TIMER_DELAY_MS": "1000"})
        client.ask(RequestCode.PAUSE_TOPIC, {"topic": topic})
    memory.advance(60_000)
    client.ask(RequestCode.RESUME_TOPIC, {"topic": "resumed"})
    memory.advance(10)
    queues = [client.pull("resumed", queue) for queue in range(8)]
    assert sum(map(len, queues)) == 1
    memory.advance(60_000)
    client.pull(offset=100)
    events = [event for pair in client.pairs for event in messages.messages_of_pair(pair, ())]
    seen = [drained(0, time_ns=memory.now_ms * MS)]
    verdict = verify(table(spark, *events, *seen), grace_ms=1_000)
    assert (verdict.fired, verdict.not_due, verdict.lost) == (1, 1, 0)
    assert max(group.stored_max or 0 for group in verdict.groups) < 1_000


def test_what_was_not_answered_may_have_been_done(
    spark: SparkSession, memory: MemoryGateway
) -> None:
    """A server may be killed between a change and its response. A refused order changes nothing."""
    client = RecordedClient(memory)
    names = ("recalled", "aborted", "ordered-off", "moved", "refused", "lost")
    many = ("aborted-by-key", "moved-by-key", "replaced", "in-bulk")
    delay = {"TIMER_DELAY_MS": "1000"}
    handles = {
        name: client.send_message(
            "orders", name, {"UNIQ_KEY": name, "KEYS": f"key {name}-key", **delay}
        ).ext()["recallHandle"]
        for name in names + many
    }
    requests = len(client.pairs)
    memory.advance(1)
    client.recall("orders", handles["recalled"])
    client.ask(RequestCode.ABORT_TIMERS, {"handle": handles["aborted"]})
    client.ask(RequestCode.RESCHEDULE_TIMERS, {"id": "moved", "delay": "90000"})
    by_key = {name: {"topic": "orders", "key": f"{name}-key"} for name in many}
    client.ask(RequestCode.ABORT_TIMERS, by_key["aborted-by-key"])
    client.ask(RequestCode.RESCHEDULE_TIMERS, by_key["moved-by-key"] | {"delay": "90000"})
    client.ask(RequestCode.BULK_CHANGE_TIMERS, by_key["in-bulk"] | {"action": "abort"})
    counted = {"topic": "orders", "key": "lost-key", "action": "count"}
    client.ask(RequestCode.BULK_CHANGE_TIMERS, counted)
    key = "replaced-key"
    by = {"UNIQ_KEY": "by", "KEYS": key, "TIDEGATE_DEBOUNCE": key}
    client.send_message("orders", "by", by | delay)
    for name in ("ordered-off", "refused"):
        order = {"UNIQ_KEY": f"order {name}", "TIMER_DELAY_MS": "1000", "TIMER_DEL_UNIQKEY": name}
        client.send_message("orders", "x", order)
    missing = {"answered_ns": None, "answer_code": None, "answer_ext": None, "answer_body": None}
    for pair in client.pairs[requests:]:
        pair.update(missing)
    client.pairs[-1] |= {"answer_code": ResponseCode.SYSTEM_BUSY}
    memory.advance(20_000)
    client.pull(offset=100)
    events = [event for pair in client.pairs for event in messages.messages_of_pair(pair, ())]
    found = outcomes(table(spark, *events, drained(0, time_ns=memory.now_ms * MS)), grace_ms=1_000)
    assert {row["message_id"]: row["outcome"] for row in found.collect()} == {
        **dict.fromkeys((*names[:4], *many, "by"), "unanswered"),
        **dict.fromkeys(names[4:], "lost"),
    }


def test_a_pause_without_an_answer_may_hold_what_is_due(
    spark: SparkSession, memory: MemoryGateway
) -> None:
    client = RecordedClient(memory)
    client.send_message("orders", "a", {"UNIQ_KEY": "a", "TIMER_DELAY_MS": "1000"})
    client.ask(RequestCode.PAUSE_TOPIC, {"topic": "orders"})
    client.pairs[-1] |= {"answered_ns": None, "answer_code": None, "answer_body": None}
    memory.advance(20_000)
    events = [event for pair in client.pairs for event in messages.messages_of_pair(pair, ())]
    events.append(drained(0, time_ns=memory.now_ms * MS))
    assert counted(spark, events) == {"not due": 1}


def test_changes_of_many_are_set_aside(spark: SparkSession, memory: MemoryGateway) -> None:
    client = RecordedClient(memory)

    def send(name: str, **properties: str) -> None:
        client.send_message(
            "orders", name, {"UNIQ_KEY": name, "TIMER_DELAY_MS": "1000", **properties}
        )

    def change(action: str, **asked: str) -> None:
        client.ask(RequestCode.BULK_CHANGE_TIMERS, {"topic": "orders", "action": action, **asked})

    for name, tag in (("aborted", "off"), ("moved", "later"), ("fired", "stays")):
        send(name, TAGS=tag)
    change("count")
    change("abort", tag="off", begin=str(memory.now_ms), end=str(memory.now_ms + 5_000))
    change("reschedule", tag="later", shift="-500")
    change("abort", tag="nobody")
    memory.advance(20_000)
    assert len(client.pull()) == 2
    client.pull(offset=100)
    events = [event for pair in client.pairs for event in messages.messages_of_pair(pair, ())]
    verdict = verify(table(spark, *events), grace_ms=1_000)
    assert verdict.is_good
    assert (verdict.messages, verdict.fired, verdict.changed_in_bulk) == (3, 1, 2)


def test_what_a_commit_replaces_is_not_lost(spark: SparkSession, memory: MemoryGateway) -> None:
    client = RecordedClient(memory)
    waiting = {"UNIQ_KEY": "first", "KEYS": "cart", "TIMER_DELAY_MS": "5000"}
    client.send_message("orders", "first", waiting)
    by = begin(client, KEYS="cart", TIDEGATE_DEBOUNCE="cart", UNIQ_KEY="by")
    kept = begin(client, KEYS="cart", TIDEGATE_DEBOUNCE="cart", UNIQ_KEY="kept")
    end(client, kept, SysFlag.TRANSACTION_ROLLBACK)
    memory.advance(1_000)
    end(client, by, SysFlag.TRANSACTION_COMMIT)
    memory.advance(20_000)
    assert len(client.pull()) == 1
    client.pull(offset=100)
    events = [event for pair in client.pairs for event in messages.messages_of_pair(pair, ())]
    assert counted(spark, events, grace_ms=1_000) == {"replaced": 1}


def test_who_asks_with_a_filter_does_not_see_the_whole_queue(
    spark: SparkSession, memory: MemoryGateway
) -> None:
    """The heartbeats of pull consumers subscribe to `*`, whatever filter they pull with."""
    client = RecordedClient(memory)
    client.heartbeat("c")
    for tag in ("red", "blue"):
        client.send_message("orders", tag, UNIQ_KEY=tag, TAGS=tag, TIMER_DELAY_MS="1000")
    memory.advance(20_000)
    assert len(client.pull(tags="red")) == 1
    client.pull(offset=2, tags="red")
    ask_pop(memory, client, consumerGroup="poppers", exp="red")
    events = [event for pair in client.pairs for event in messages.messages_of_pair(pair, ())]
    assert {event["tags"] for event in events if event["event"] == "subscribed"} == {"*", "red"}
    assert {event["group"] for event in events if event["event"] == "delivered"} == {
        "consumers",
        "poppers",
    }
    assert counted(spark, events, grace_ms=1_000) == {"fired": 1, "not watched": 1}


def test_a_pop_does_not_see_what_others_of_its_group_popped_while_it_waited(
    spark: SparkSession, memory: MemoryGateway
) -> None:
    """The pop asks before all messages are stored; another consumer, which is not recorded, gets the first one."""
    client = RecordedClient(memory)
    client.send_message("orders", "a", UNIQ_KEY="a", TIMER_DELAY_MS="1000")
    client.send_message("orders", "b", UNIQ_KEY="b", TIMER_DELAY_MS="8000")
    asked_ns = memory.now_ms * MS
    memory.advance(3_000)
    MemoryClient(memory).ask(
        RequestCode.POP_MESSAGE, pop_fields(memory, consumerGroup="poppers", maxMsgNums=1)
    )
    memory.advance(9_000)
    ask_pop(memory, client, consumerGroup="poppers")
    client.pairs[-1]["asked_ns"] = asked_ns
    events = [event for pair in client.pairs for event in messages.messages_of_pair(pair, ())]
    assert [event["message_id"] for event in events if event["event"] == "delivered"] == ["b"]
    assert counted(spark, events, grace_ms=1_000) == {"fired": 1, "not watched": 1}


def test_halves_of_transactions_are_not_waited_for(
    spark: SparkSession, memory: MemoryGateway
) -> None:
    client = RecordedClient(memory)
    committed, rolled_back, _ = (begin(client, TIMER_DELAY_MS="1000") for _ in range(3))
    memory.advance(3_000)
    end(client, committed, SysFlag.TRANSACTION_COMMIT)
    end(client, rolled_back, SysFlag.TRANSACTION_ROLLBACK)
    memory.advance(20_000)
    assert len(client.pull()) == 1
    client.pull(offset=100)
    events = [event for pair in client.pairs for event in messages.messages_of_pair(pair, ())]
    assert counted(spark, events, grace_ms=1_000) == {}


def test_orders_in_a_replay_name_its_messages(memory: MemoryGateway) -> None:
    """A recorded order, and requests by id and handle, change the messages of the run."""
    client = RecordedClient(memory)
    keys = [f"{number:032X}" for number in range(4)]
    for key in keys:
        handle = client.send_message("orders", key, UNIQ_KEY=key, TIMER_DELAY_MS="90000")
    order = {"UNIQ_KEY": "F" * 32, "TIMER_DELAY_MS": "1000", "TIDEGATE_RESCHEDULE": keys[0]}
    client.send_message("orders", "x", order)
    memory.advance(1_000)
    client.ask(RequestCode.RESCHEDULE_TIMERS, {"id": keys[1], "due": str(memory.now_ms + 10)})
    client.ask(RequestCode.ABORT_TIMERS, {"id": keys[2]})
    ext = {"handle": handle.ext()["recallHandle"], "delay": "5"}
    client.ask(RequestCode.RESCHEDULE_TIMERS, ext)
    memory.advance(100_000)
    assert len(memory.connect().pull()) == 3  # those that were not aborted
    again, unmapped = replay(client.pairs, Rewriter(Rules("run")), memory)
    assert set(unmapped) == {()}
    assert [
        json.loads(pair["answer_body"])["results"][0]["outcome"] for pair in again.pairs[-3:]
    ] == [
        "rescheduled",
        "aborted",
        "rescheduled",
    ]
    memory.advance(50)
    ids = {find(one.properties, "UNIQ_KEY") for one in memory.connect().pull(offset=3)}
    assert ids == {new_id(keys[number], "run") for number in (0, 1, 3)}


def test_real_clients_and_a_real_broker(spark: SparkSession, tables: Path) -> None:
    events = read_table(spark, tables, "messages")
    verdict: Verdict = verify(events)
    assert verdict.is_good, verdict.samples
    assert verdict.recalled == 1
    assert verdict.fired >= 9
    found = profile(read_table(spark, tables, "pair"), events)
    assert found.requests == 381
    assert {figures.name for figures in found.codes} >= {"SEND_MESSAGE_V2", "PULL_MESSAGE"}
    assert sum(figures.requests for figures in found.codes) == found.requests
    of_code = {figures.name: figures for figures in found.codes}
    commits = of_code["UPDATE_CONSUMER_OFFSET"]  # one-way
    assert (commits.requests > 0, commits.unanswered) == (True, 0)
    assert found.peak_requests == max(second["requests"] for second in found.hot_seconds)
    assert found.delayed == sum(figures.delayed for figures in found.topics) == 14
