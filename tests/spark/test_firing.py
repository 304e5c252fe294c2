"""Whether delayed messages fired once and in time, on events of our own and of real clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark_jobs import messages
from spark_jobs.firing import Verdict, outcomes, verify
from spark_jobs.ingest import read_table
from spark_jobs.profiling import profile

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


def drained(at_ms: int, group: str = "billing") -> dict[str, Any]:
    time_ns = (START + at_ms) * MS
    return {
        "event": "drained",
        "topic": "orders",
        "group": group,
        "queue_id": 0,
        "time_ns": time_ns,
    }


def recalled(name: str) -> dict[str, Any]:
    return {"event": "recalled", "message_id": name, "time_ns": START * MS}


def table(spark: SparkSession, *rows: dict[str, Any]) -> Any:
    filled = [tuple(row.get(name) for name in messages.MESSAGES.names) for row in rows]
    return spark.createDataFrame(filled, messages.DDL)


CASES: list[tuple[list[dict[str, Any]], str]] = [
    ([sent("a", 1000), got("a", 1003, 7)], "fired"),
    ([sent("a", 1000), got("a", 1003, 7), got("a", 1500, 7)], "fired"),
    ([sent("a", 1000), got("a", 1003, 7), got("a", 1500, 8)], "doubled"),
    ([sent("a", 1000), sent("a", 1000), got("a", 1003, 7), got("a", 1003, 8)], "fired"),
    ([sent("a", 1000), got("a", 1003, 7), got("a", 9000, 8, reconsume_times=1)], "fired"),
    ([sent("a", 1000), got("a", 999, 7)], "early"),
    ([sent("a", -1000), got("a", 3, 7)], "fired"),
    ([sent("a", 1000), drained(6000)], "lost"),
    ([sent("a", 1000), got("b", 6000, 7)], "lost"),
    ([sent("a", 8000), drained(9000)], "not due"),
    ([sent("a", 1000), drained(5999)], "not watched"),
    ([sent("a", 1000), {**drained(9000), "queue_id": 1}], "not watched"),
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
]


def test_what_became_of_each_message(spark: SparkSession) -> None:
    """Each case is a topic of its own, so that one look is enough for all."""
    rows = [
        {
            **row,
            "topic": str(number),
            "message_id": row.get("message_id") and f"{number}{row['message_id']}",
        }
        for number, (events, _) in enumerate(CASES)
        for row in events
    ]
    found = outcomes(table(spark, *rows, drained(9000)), grace_ms=5_000).collect()
    assert {row["topic"]: row["outcome"] for row in found} == {
        str(number): expected for number, (_, expected) in enumerate(CASES)
    }


def test_a_refused_send_is_no_message(spark: SparkSession) -> None:
    assert outcomes(table(spark, sent("a", 1000, answer_code=13)), grace_ms=0).count() == 0


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
    assert found.peak_requests == max(second["requests"] for second in found.hot_seconds)
    assert found.delayed == sum(figures.delayed for figures in found.topics) == 14
