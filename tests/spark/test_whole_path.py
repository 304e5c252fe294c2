"""From real clients to the report: recorded in three ways, replayed to a gateway and a real broker, and compared."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from compat.demo.jobs import AGAIN, BASELINE, jobs
from compat.demo.recording import record
from compat.real_broker import RealBroker
from gateway.wire.properties import find
from spark_jobs.command import main
from spark_jobs.ingest import read_table
from tests.browser import Browser
from tests.live.process import GatewayProcess

SENT = "event = 'sent' and not startswith(topic, '%RETRY%') and message_id is not null"


def status_of(job: list[str]) -> int:
    try:
        main(job)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def ids(spark: SparkSession, tables: Path, which: str) -> set[tuple[Any, ...]]:
    """Return topic, id and requested time of some messages of the tables."""
    messages = read_table(spark, tables, "messages").where(which)
    return {tuple(row) for row in messages.select("topic", "message_id", "asked").collect()}


@pytest.mark.live
@pytest.mark.oracle
@pytest.mark.timeout(600)
def test_the_whole_path(
    spark: SparkSession, tmp_path: Path, real_broker: RealBroker, browser: Browser
) -> None:
    said: list[str] = []
    recorded = record(tmp_path, said.append, briefly=True)
    if shutil.which("tcpdump") is None:
        assert any("packets are NOT recorded" in line for line in said)
    with GatewayProcess(tmp_path / "data") as gateway:
        broker = real_broker.namesrv_address
        targets = {"tidegate": gateway.address, BASELINE: broker, AGAIN: broker}
        lines = jobs(tmp_path, recorded, targets, candidate="tidegate", speed=8.0, patience=2.0)
        statuses = [status_of(line) for line in lines]
    # `compare` finds the intended differences of the gateway.
    assert [line[0] for line, status in zip(lines, statuses, strict=True) if status] == ["compare"]

    captured = ids(spark, tmp_path / "tables-capture", SENT)
    assert len(captured) > 70
    if recorded.packets is not None:
        assert ids(spark, tmp_path / "tables-packets", SENT) == captured
    stored = "event in ('stored', 'parked') and startswith(topic, 'demo-')"
    in_log = {row[:2] for row in ids(spark, tmp_path / "tables-commitlog", stored)}
    # A rolled back transaction, and a recalled message, never reached its topic.
    missing = {row[:2] for row in captured} - in_log
    assert {topic for topic, _ in missing} == {"demo-payments"}
    assert len(missing) == 1
    in_sends = {
        (ext["b"], find(ext["i"], "UNIQ_KEY"))
        for ext in (
            dict(row["ext"])
            for row in read_table(spark, tmp_path / "tables-commitlog", "send").collect()
        )
    }
    assert {row[:2] for row in captured} - in_sends == missing
    assert not {topic for topic, _ in in_sends if not topic.startswith("demo-")}

    firing = json.loads((tmp_path / "recorded.json").read_text())
    assert (firing["lost"], firing["doubled"], firing["recalled"]) == (0, 0, 4)
    assert firing["fired"] > 30
    for name in targets:
        outcomes = json.loads((tmp_path / f"replay-{name}.json").read_text())["outcomes"]
        assert outcomes["answered"] > 200
        assert not {"closed", "not connected"} & outcomes.keys()
        replayed = json.loads((tmp_path / f"replayed-{name}.json").read_text())
        assert (replayed["lost"], replayed["doubled"], replayed["early"]) == (0, 0, 0)
        # At this speed sends may arrive before their topic exists; a real broker creates topics slowly.
        assert replayed["fired"] > (30 if name == "tidegate" else 0)
    features = {
        one["name"]: one["verdict"]
        for one in json.loads((tmp_path / "compare.json").read_text())["features"]
    }
    assert {
        "delay levels",
        "arbitrary times",
        "transactions",
        "recall",
        "filters",
    } <= features.keys()

    page = browser.open(tmp_path / "report" / "report.html")
    assert browser.errors() == []
    text = page.find_element("tag name", "body").text
    assert "arbitrary times" in text
    assert "Firing of delayed messages" in text
