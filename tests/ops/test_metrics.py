"""The metrics that Prometheus reads are right, and the dashboard uses only existing ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from twisted.logger import LogLevel, capturedLogs, formatEvent

from gateway.monitoring import client_metrics
from gateway.monitoring.client_metrics import version_name
from gateway.monitoring.meter import Distribution
from gateway.monitoring.metrics import SAMPLES_AT_ONCE
from gateway.wire.codes import RequestCode, ResponseCode
from storage import RestartNeededError, logged
from storage.keys import pack_u64, queue_prefix
from tests.gateway.conftest import MakeGateway
from tests.gateway.faults import commits_fail, damaged_page, damaged_row
from tests.gateway.memory import MemoryClient, MemoryGateway
from tests.gateway.metrics import Scrape, metrics_of
from tests.gateway.popping import pop_fields
from tests.gateway.tools import create_topic, ok
from tests.storage.faults import disk_takes_no_checkpoint, lmdb_cannot_be_written

ROOT = Path(__file__).parent.parent.parent


def hold(gateway: MemoryGateway, delay_ms: int, topic: str = "orders", **properties: str) -> None:
    answer = gateway.connect().send_message(
        topic, properties={"TIMER_DELIVER_MS": str(gateway.now_ms + delay_ms), **properties}
    )
    assert answer.code == 0


def test_held_messages_by_topic(gateway: MemoryGateway) -> None:
    hold(gateway, 60_000)
    assert Scrape(gateway).by("rocketmq_timing_messages", "topic") == {"orders": 1}
    # From here on the gateway updates its counts instead of counting anew.
    hold(gateway, 60_000, UNIQ_KEY="A")
    hold(gateway, 9_000_000, "later")
    scrape = Scrape(gateway)
    assert scrape.by("rocketmq_timing_messages", "topic") == {"orders": 2, "later": 1}
    assert scrape.by("rocketmq_timer_enqueue_total", "topic") == {"orders": 2, "later": 1}
    gateway.connect().abort(id="A")
    assert Scrape(gateway).by("rocketmq_timing_messages", "topic") == {"orders": 1, "later": 1}
    gateway.advance(60_000)
    scrape = Scrape(gateway)
    assert scrape.by("rocketmq_timing_messages", "topic") == {"later": 1}
    assert scrape.by("rocketmq_timer_dequeue_total", "topic") == {"orders": 1}


def test_what_there_is_much_of_comes_in_pieces_and_topics_may_come_and_go_meanwhile(
    gateway: MemoryGateway,
) -> None:
    client = gateway.connect()
    topics = [f"T{number}" for number in range(2 * SAMPLES_AT_ONCE + 1)]
    for topic in topics:
        client.send_message(topic)
        client.heartbeat("client", f"G{topic}", {topic: "*"})
    pieces = []
    for piece in metrics_of(gateway).pieces():
        pieces.append(piece)
        if len(pieces) == 5:
            ok(client.ask(215, {"topic": "T500"}))
            client.send_message("new")
    assert max(piece.count(b"\n") for piece in pieces) <= SAMPLES_AT_ONCE + 2
    families = list(text_string_to_metric_families(b"".join(pieces).decode()))
    assert len({family.name for family in families}) == len(families)
    (entered,) = [family for family in families if family.name == "rocketmq_messages_in"]
    assert {sample.labels["topic"] for sample in entered.samples} >= set(topics[:500])


def test_others_have_turns_while_topics_that_rest_or_are_paused_are_looked_at(
    gateway: MemoryGateway,
) -> None:
    client = gateway.connect()
    for number in range(2 * SAMPLES_AT_ONCE + 1):
        create_topic(client, f"T{number}")
        gateway.store.queue(b"T%d" % number, 0)
        ok(client.ask(RequestCode.PAUSE_TOPIC, {"topic": f"T{number}"}))
    pieces = list(metrics_of(gateway).pieces())
    for family in (b"rocketmq_messages_in_total", b"tidegate_paused_messages"):
        first = next(at for at, piece in enumerate(pieces) if family in piece)
        assert pieces[first - 2 : first] == [b"", b""]


def test_what_is_due_soon_is_counted_by_upstreams_bounds(gateway: MemoryGateway) -> None:
    gateway.advance(3_700)  # into a span of time, so that spans and bounds do not match
    for seconds in (1, 5, 6, 50, 200, 290, 1_000, 80_000, 200_000):
        hold(gateway, seconds * 1_000, f"T{seconds % 3}")
    counts = Scrape(gateway).by("rocketmq_timer_message_snapshot", "timer_bound_s")
    assert counts == {
        "5": 2,
        "60": 2,
        "300": 2,
        "900": 0,
        "3600": 1,
        "14400": 0,
        "28800": 0,
        "86400": 1,
    }
    gateway.advance(10_000)
    assert Scrape(gateway).by("rocketmq_timer_message_snapshot", "timer_bound_s")["5"] == 0
    assert Scrape(gateway)["rocketmq_timer_enqueue_lag"] == 0


def test_too_much_to_count_is_left_out(
    gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.soon._MOST_ROWS", 0)
    assert Scrape(gateway).by("rocketmq_timer_message_snapshot", "timer_bound_s") == {}


def test_messages_that_wait_in_a_paused_topic(gateway: MemoryGateway) -> None:
    client = gateway.connect()
    hold(gateway, 500)
    hold(gateway, 60_000)
    client.ask(RequestCode.PAUSE_TOPIC, {"topic": "orders"})
    assert Scrape(gateway).by("tidegate_paused_messages", "topic") == {"orders": 0}
    gateway.advance(500)
    scrape = Scrape(gateway)
    assert scrape.by("tidegate_paused_messages", "topic") == {"orders": 1}
    assert scrape.by("rocketmq_timing_messages", "topic") == {"orders": 2}
    assert scrape["rocketmq_timer_dequeue_latency"] == 0
    client.ask(RequestCode.RESUME_TOPIC, {"topic": "orders"})
    scrape = Scrape(gateway)
    assert scrape.by("tidegate_paused_messages", "topic") == {}
    assert scrape["rocketmq_timer_dequeue_total"] == 1


def test_refused_batches_count_for_nothing_else(gateway: MemoryGateway) -> None:
    hold(gateway, 60_000)
    assert Scrape(gateway).by("rocketmq_timing_messages", "topic") == {"orders": 1}
    with commits_fail(gateway):
        answer = gateway.connect().send_message(TIMER_DELAY_SEC="60")
        assert answer.code != ResponseCode.SUCCESS
    scrape = Scrape(gateway)
    assert scrape.by("rocketmq_timing_messages", "topic") == {"orders": 1}
    assert (scrape["tidegate_refused_batches_total"], scrape["rocketmq_timer_enqueue_total"]) == (
        1,
        1,
    )


def test_what_is_not_committed_is_not_counted(gateway: MemoryGateway) -> None:
    """Prometheus takes a counter that goes down for a restart, and then adds all of it once more."""
    client = gateway.connect()
    ok(client.send_message("orders", "kept"))
    hold(gateway, 1_000)
    names = (
        "tidegate_accepted_total",
        "rocketmq_messages_in_total",
        "rocketmq_throughput_in_total",
    )
    scrape = Scrape(gateway)
    before = [scrape[name] for name in names]
    with commits_fail(gateway):
        gateway.advance(3_500)
        opaque = client.send(RequestCode.SEND_MESSAGE_V2, client.send_fields("orders"), b"lost")
        scrape = Scrape(gateway)
        assert [scrape[name] for name in names] == before
        assert client.answer(opaque) is not None
        scrape = Scrape(gateway)
        assert [scrape[name] for name in names] == before


def test_traffic_by_topic_and_group(gateway: MemoryGateway) -> None:
    client = gateway.connect()
    for _ in range(3):
        client.send_message("orders", "hello")
    client.pull("orders", group="one")
    client.pull("orders", group="two", most=2)
    scrape = Scrape(gateway)
    assert scrape.by("rocketmq_messages_in_total", "topic") == {"orders": 3}
    assert scrape.by("rocketmq_messages_out_total", "topic", "consumer_group") == {
        "orders@one": 3,
        "orders@two": 2,
    }
    assert scrape.by("rocketmq_throughput_in_total", "topic")["orders"] > 3 * len("hello")
    assert scrape["tidegate_accepted_total"] == 3
    assert scrape["tidegate_connections"] == 1


def test_firing_error_counts_messages(gateway: MemoryGateway) -> None:
    for delay_ms in (60_000, 60_000, 60_030):
        hold(gateway, delay_ms)
    gateway.jump(60_040)
    buckets = Scrape(gateway).by("tidegate_firing_error_seconds_bucket", "le")
    assert (buckets["0.02"], buckets["0.05"], buckets["+Inf"]) == (0, 3, 3)


def test_overdue_is_told_while_nothing_can_be_fired(gateway: MemoryGateway) -> None:
    hold(gateway, 1_000)
    with commits_fail(gateway):
        gateway.jump(3_000)
        assert Scrape(gateway)["rocketmq_timer_dequeue_latency"] == 2_000
        assert Scrape(gateway)["rocketmq_timer_dequeue_lag"] == 1
    gateway.advance(2_000)
    assert Scrape(gateway)["rocketmq_timer_dequeue_lag"] == 0
    assert Scrape(gateway)["rocketmq_timer_dequeue_latency"] == 0


def test_commits_are_measured(gateway: MemoryGateway) -> None:
    before = Scrape(gateway)["tidegate_commit_seconds_count"]
    gateway.connect().send_message()
    scrape = Scrape(gateway)
    assert scrape["tidegate_commit_seconds_count"] == before + 1
    assert 0 < scrape["tidegate_write_seconds_sum"] < scrape["tidegate_commit_seconds_sum"]
    assert scrape["tidegate_batch_requests_sum"] >= 1


def test_checkpoints_are_measured(gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logged, "CHECKPOINT_SECONDS", 3_600)
    client = gateway.connect()
    client.send_message()
    before = Scrape(gateway)
    monkeypatch.setattr(logged, "CHECKPOINT_SECONDS", 0)
    client.send_message()
    gateway.store.environment.durable.wait()
    with lmdb_cannot_be_written(gateway.store):
        client.send_message()
    after = Scrape(gateway)
    name = "tidegate_checkpoint_seconds"
    assert after[f"{name}_count"] == before[f"{name}_count"] + 1
    assert after[f"{name}_sum"] > before[f"{name}_sum"]
    failed = "tidegate_failed_checkpoints_total"
    assert (before[failed], after[failed]) == (0, 1)


def test_what_the_disk_takes_for_a_checkpoint_is_measured(
    gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logged, "CHECKPOINT_SECONDS", 3_600)
    name = "tidegate_checkpoint_sync_seconds"
    client = gateway.connect()
    gateway.store.environment.durable.wait()
    client.send_message()
    before = Scrape(gateway)
    gateway.checkpoint()
    client.send_message()
    after = Scrape(gateway)
    assert after[f"{name}_count"] == before[f"{name}_count"] + 1
    assert after[f"{name}_sum"] > before[f"{name}_sum"]
    with disk_takes_no_checkpoint(gateway.data):
        with pytest.raises(RestartNeededError):
            gateway.checkpoint()
        gateway.service.broker.committer.checkpoint()
        assert Scrape(gateway)[f"{name}_count"] == after[f"{name}_count"]
    gateway.restart()


def test_storage_is_measured(gateway: MemoryGateway) -> None:
    hold(gateway, 60_000)
    scrape = Scrape(gateway)
    assert scrape["tidegate_stored_messages"] == 1
    parts = scrape["tidegate_lmdb_used_bytes"] + scrape["tidegate_lmdb_free_bytes"]
    assert 0 < scrape["tidegate_lmdb_used_bytes"] <= parts == scrape["tidegate_lmdb_size_bytes"]
    file = gateway.data / "data.mdb"
    assert scrape["tidegate_lmdb_size_bytes"] <= file.stat().st_size + 16 * 4096
    assert scrape["process_resident_memory_bytes"] > 1 << 20


def test_labels_are_upstreams(make_gateway: MakeGateway) -> None:
    gateway = make_gateway(broker_name="gate-1", cluster_name="harbour")
    hold(gateway, 60_000)
    (sample,) = [one for one in Scrape(gateway).samples if one.name == "rocketmq_timing_messages"]
    assert sample.labels == {
        "cluster": "harbour",
        "node_type": "broker",
        "node_id": "gate-1",
        "topic": "orders",
    }


def test_a_distribution_counts_up_to_its_bounds() -> None:
    values = Distribution((1, 2))
    for value in (0.5, 1, 1.5, 3):
        values.add(value)
    values.add(2, times=10)
    assert values.cumulative() == [("1", 2), ("2", 13), ("+Inf", 14)]
    assert values.total == 26


def dashboard_panels() -> list[dict[str, Any]]:
    panels: list[dict[str, Any]] = json.loads((ROOT / "docs/grafana-dashboard.json").read_text())[
        "panels"
    ]
    return panels


def series_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:rocketmq|tidegate|process)_\w+", expression))


def test_dashboard_names_real_series(gateway: MemoryGateway) -> None:
    client = gateway.connect()
    client.send_message()
    client.heartbeat("one")
    client.pull()
    hold(gateway, 1_000)
    gateway.advance(1_000)
    ok(create_topic(client, "full", attributes="+max.held.bytes=1"))
    client.send_message("full", TIMER_DELAY_SEC="60")
    hold(gateway, 60_000)
    there = {sample.name for sample in Scrape(gateway).samples}
    asked = [target["expr"] for panel in dashboard_panels() for target in panel["targets"]]
    named = {name for expr in asked for name in series_in(expr)}
    assert named - there == set()
    assert len(named) > 15
    # The process metrics have no such labels, and other programs export the same names.
    assert [expr for expr in asked if 'node_id=~"$node"' not in expr] == []
    labels = {label for sample in Scrape(gateway).samples for label in sample.labels}
    assert {"cluster", "node_id", "topic", "le"} <= labels


def test_the_dashboard_shows_numbers_of_a_gateway_at_rest(gateway: MemoryGateway) -> None:
    there = {sample.name for sample in Scrape(gateway).samples}
    shown = [
        target["expr"]
        for panel in dashboard_panels()
        if panel["type"] == "stat"
        for target in panel["targets"]
    ]
    assert len(shown) > 3
    for expr in shown:
        assert any(series_in(either) <= there for either in expr.split(" or ")), expr


def test_the_dashboard_tells_lines_of_several_gateways_apart() -> None:
    targets = [target for panel in dashboard_panels() for target in panel["targets"]]
    adds_up = re.compile(r"(sum|max|topk|histogram_quantile)\b")
    each = [target["legendFormat"] for target in targets if not adds_up.match(target["expr"])]
    assert len(each) > 5
    assert [legend for legend in each if not re.match(r"{{(node_id|instance)}} ", legend)] == []


def test_the_alerts_are_about_real_series(gateway: MemoryGateway) -> None:
    """Those of the file are those of the table in docs/monitoring.md, but for what only the log says."""
    rules = (ROOT / "docs/prometheus-alerts.yml").read_text()
    asked = re.findall(r"^ +expr: (.+)$", rules, re.MULTILINE)
    named = {name for expr in asked for name in series_in(expr)}
    assert named - {"tidegate_worker_up"} <= {sample.name for sample in Scrape(gateway).samples}
    table = (ROOT / "docs/monitoring.md").read_text().split("## Alerts")[1].split("\n## ")[0]
    conditions = {row.split("|")[1] for row in table.splitlines() if row.startswith("| `")}
    assert named == {name for condition in conditions for name in series_in(condition)}


def test_a_gateway_that_is_not_ready_says_so_to_prometheus(gateway: MemoryGateway) -> None:
    """Prometheus does not read /ready."""
    assert Scrape(gateway)["tidegate_ready"] == 1
    with commits_fail(gateway):
        gateway.connect().send_message()
        assert Scrape(gateway)["tidegate_ready"] == 0


def test_the_documented_scrapes_are_close_enough_for_the_alerts() -> None:
    """A rate needs two scrapes in its range, and should have four: one may be missed."""
    text = (ROOT / "docs/monitoring.md").read_text()
    (interval,) = re.findall(r"scrape_interval: (\d+)s", text)
    minutes = [int(range_) for range_ in re.findall(r"\[(\d+)m\][`) ]", text)]
    assert len(minutes) > 2
    assert min(minutes) * 60 >= 4 * int(interval)


def test_a_topic_with_a_limit_counts_refusals_from_0(gateway: MemoryGateway) -> None:
    """Prometheus sees no increase to the first value of a row that was not there before."""
    client = gateway.connect()
    ok(create_topic(client, "full", attributes="+max.held.bytes=1,+max.delay=1h"))
    name = "tidegate_quota_refusals_total"
    assert Scrape(gateway).by(name, "topic", "limit") == {"full@max.held.bytes": 0}
    client.send_message("full", TIMER_DELAY_SEC="60")
    assert Scrape(gateway).by(name, "topic", "limit") == {"full@max.held.bytes": 1}
    ok(client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "full"}))
    gateway.advance(20_000)
    assert Scrape(gateway).by(name, "topic", "limit") == {}


def test_every_series_is_explained() -> None:
    """docs/monitoring.md has a row for each series, and no other row."""
    text = (ROOT / "docs/monitoring.md").read_text()
    names = re.findall(r"^\| `((?:rocketmq|tidegate)_\w+)", text, re.MULTILINE)
    explained = {name.removesuffix("_total") for name in names}
    files = ("gateway/monitoring/metrics.py", "gateway/monitoring/client_metrics.py")
    source = "".join((ROOT / file).read_text() for file in files)
    made = set(re.findall(r'"((?:rocketmq|tidegate)_\w+)"', source))
    assert explained == made


def confirm(client: MemoryClient, offset: int, queue: int = 0) -> None:
    place = {"consumerGroup": "readers", "topic": "orders", "queueId": str(queue)}
    ok(client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, place | {"commitOffset": str(offset)}))


def test_who_is_connected(gateway: MemoryGateway) -> None:
    for number, language in enumerate(("JAVA", "JAVA", "CPP")):
        client = gateway.connect()
        client.heartbeat(f"client-{number}", "readers", producers=["writers"], language=language)
    scrape = Scrape(gateway)
    producers = scrape.by("rocketmq_producer_connections", "language", "version")
    assert producers == {"java@v5_5_0": 2, "cpp@v5_5_0": 1}
    labels = ("consumer_group", "language", "consume_mode", "is_system")
    consumers = scrape.by("rocketmq_consumer_connections", *labels)
    assert consumers == {"readers@java@push@false": 2, "readers@cpp@push@false": 1}


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (30_000, "higher_version"),
        (612, "higher_version"),
        (611, "v5_9_9"),
        (513, "v5_5_0"),
        (475, "v5_3_1"),
        (474, "v5_3_1_snapshot"),
        (413, "v5_0_0"),
        (409, "v4_9_8"),
        (317, "v4_5_2"),
        (232, "v4_1_0_snapshot"),
        (121, "121"),
    ],
)
def test_versions_are_called_as_upstream_calls_them(version: int, name: str) -> None:
    assert version_name(version) == name


def test_what_upstream_tells_of_its_storage(gateway: MemoryGateway) -> None:
    assert "rocketmq_storage_message_reserve_time" not in {
        sample.name for sample in Scrape(gateway).samples
    }
    gateway.connect().send_message("orders")
    gateway.advance(5_000)
    scrape = Scrape(gateway)
    assert scrape["rocketmq_storage_message_reserve_time"] == 5_000
    assert scrape["rocketmq_storage_size"] > scrape["tidegate_lmdb_used_bytes"]
    assert scrape["rocketmq_topic_number"] == sum(1 for _ in gateway.service.broker.topics)


def test_how_far_consumers_are_behind(gateway: MemoryGateway) -> None:
    client = gateway.connect()
    client.send_message("orders")
    client.heartbeat("one", "readers")
    gateway.advance(1_000)
    for _ in range(2):
        client.send_message("orders")
        gateway.advance(1_000)
    labels = ("consumer_group", "topic", "is_retry", "is_system")
    lag, latency = "rocketmq_consumer_lag_messages", "rocketmq_consumer_lag_latency"
    assert Scrape(gateway).by(lag, *labels) == {"readers@orders@false@false": 0}
    confirm(client, 1)
    scrape = Scrape(gateway)
    assert scrape.by(lag, *labels) == {"readers@orders@false@false": 2}
    assert scrape.by(latency, *labels) == {"readers@orders@false@false": 2_000}
    # An operator who removes queues first forbids writing to them, and then waits until they are consumed.
    fields = {"topic": "orders", "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG"}
    fields |= {"readQueueNums": "4", "writeQueueNums": "0", "perm": "6", "order": "false"}
    client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    assert Scrape(gateway).by(lag, *labels) == {"readers@orders@false@false": 2}
    confirm(client, 3)
    assert Scrape(gateway).by(latency, *labels) == {"readers@orders@false@false": 0}


def test_others_have_turns_while_many_queues_of_consumers_are_looked_at(
    gateway: MemoryGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_metrics, "QUEUES_AT_ONCE", 10)
    client = gateway.connect()
    for topic in ("wide", "wider"):
        create_topic(client, topic, 100)
    client.heartbeat("one", "readers", {"wide": "*", "wider": "*"})
    pieces = list(metrics_of(gateway).pieces())
    family = b"rocketmq_consumer_lag_messages"
    first = next(at for at, piece in enumerate(pieces) if family in piece)
    assert not any(pieces[first - 20 : first])
    assert pieces[first].count(b"\n" + family + b"{") == 2


def test_what_comes_back_to_consumers_that_pop_is_behind_again(gateway: MemoryGateway) -> None:
    client = gateway.connect()
    client.send_message("orders")
    client.heartbeat("one", "readers")
    fields = pop_fields(gateway, consumerGroup="readers", invisibleTime=1_000)
    ok(client.ask(RequestCode.POP_MESSAGE, fields))
    lag = ("rocketmq_consumer_lag_messages", "topic", "is_retry")
    assert Scrape(gateway).by(*lag) == {"orders@false": 0}
    gateway.advance(2_000)
    assert Scrape(gateway).by(*lag) == {"orders@false": 0, "orders@true": 1}


def test_a_queue_that_cannot_be_read_keeps_no_figure_from_being_told(
    gateway: MemoryGateway,
) -> None:
    client = gateway.connect()
    client.send_message("orders")
    client.send_message("orders", fields={"queue": 1})
    client.heartbeat("one", "readers")
    confirm(client, 0)
    confirm(client, 0, queue=1)
    gateway.advance(10_000)
    row = queue_prefix(b"orders", 0) + bytes(9)  # its key is too long
    with damaged_row(gateway, "queues", row, lambda _: b""):
        gateway.connect().heartbeat("one", "readers")
        assert Scrape(gateway).by("rocketmq_consumer_lag_messages", "topic") == {"orders": 1}


def test_a_page_that_lmdb_cannot_read_keeps_no_other_figure_from_being_told(
    gateway: MemoryGateway,
) -> None:
    gateway.connect().send_message("orders")
    with damaged_page(gateway, "messages", pack_u64(1)), capturedLogs() as told:
        scrape = Scrape(gateway)
        assert scrape.by("rocketmq_storage_message_reserve_time") == {}
        assert scrape.by("tidegate_damaged_messages_total") == {"": 0}
        assert scrape.by("tidegate_connections") == {"": 0}
        (error,) = [formatEvent(one) for one in told if one["log_level"] is LogLevel.error]
        assert error.startswith("some metrics are left out: LMDB cannot read what is stored: ")
