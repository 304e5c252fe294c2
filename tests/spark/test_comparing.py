"""Responses of two runs: real differences, and differences between any two runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from gateway.wire.codes import RequestCode, ResponseCode
from gateway.wire.dialect import MAX_TEXT
from spark_jobs import replaying, reporting
from spark_jobs.comparing import body_facts, compare, exceeds
from spark_jobs.errors import JobError
from spark_jobs.features import feature
from spark_jobs.ingest import read_table
from spark_jobs.pages import Table
from tests.spark.making import log_bytes

SEND = int(RequestCode.SEND_MESSAGE_V2)
PULL = int(RequestCode.PULL_MESSAGE)


def answers(spark: SparkSession, rows: list[dict[str, Any]]) -> DataFrame:
    names = replaying.RESULTS.names
    return spark.createDataFrame(
        [tuple(row.get(name) for name in names) for row in rows], replaying.DDL
    )


def run(name: str, *, broken: bool = False) -> list[dict[str, Any]]:
    """Return 200 sends. Each run has ids of its own, and a broken one a few other responses."""
    rows: list[dict[str, Any]] = []
    for at in range(200):
        ext = {"msgId": f"{name}{at}", "queueId": "3", "MSG_REGION": "DefaultRegion"}
        row = {"file": "a", "position": at, "code": SEND, "answer_code": 0, "answer_ext": ext}
        row |= {"feature": "recall" if at % 2 else "sends", "asked_ns": 1000 + at}
        if broken and at == 7:
            row["answer_code"] = 1
            row["answer_remark"] = "no"
        if broken and at == 9:
            del ext["MSG_REGION"]
        rows.append(row)
    return rows


def test_what_two_runs_of_one_server_differ_in_is_noise(spark: SparkSession) -> None:
    baseline, again = answers(spark, run("a")), answers(spark, run("b"))
    good = compare(baseline, answers(spark, run("c")), again)
    assert good.is_same
    assert good.compared == 200
    assert [(one.field, one.differ, one.noise, one.verdict) for one in good.differences] == [
        ("ext.msgId", 200, 200, "noise")
    ]
    bad = compare(baseline, answers(spark, run("c", broken=True)[:-1]), again)
    assert not bad.is_same
    assert (bad.compared, bad.only_in_baseline) == (199, 1)
    found = {one.field: one for one in bad.differences if one.verdict == "differs"}
    assert set(found) == {"code", "remark", "ext.MSG_REGION"}
    assert (found["code"].expected, found["code"].found, found["code"].position) == ("0", "1", 7)
    assert (found["ext.MSG_REGION"].kind, found["remark"].kind) == ("missing", "added")
    assert [code.verdict for code in bad.codes] == ["differs"]
    assert (found["code"].first_ns, found["ext.MSG_REGION"].last_ns) == (1007, 1009)
    by_feature = {one.name: one for one in bad.features}
    assert by_feature["sends"].verdict == "noise"
    assert by_feature["recall"].verdict == "differs"
    assert by_feature["recall"].first_ns == 1007
    assert by_feature["recall"].fields == [
        f"{SEND} {name}" for name in ("code", "ext.MSG_REGION", "remark")
    ]
    assert [one.answers for one in bad.features] == [99, 100]
    ignored = compare(
        baseline,
        answers(spark, run("c", broken=True)),
        again,
        ignored=["code", f"{SEND}:remark", "ext.MSG_REGION"],
    )
    assert ignored.is_same


def test_a_remark_counts_where_a_client_reads_it(spark: SparkSession) -> None:
    """Brokers put words beside a success that mean nothing, such as `not set any response code`."""

    def remarked(remark: str | None) -> DataFrame:
        codes = (int(ResponseCode.SUCCESS), int(ResponseCode.SYSTEM_ERROR))
        row = {"file": "a", "feature": "sends", "asked_ns": 1, "code": SEND, "answer_ext": {}}
        return answers(
            spark,
            [
                row | {"position": code, "answer_code": code, "answer_remark": remark}
                for code in codes
            ],
        )

    [one] = compare(remarked("not set any response code"), remarked(None)).differences
    assert (one.field, one.position, one.differ) == ("remark", int(ResponseCode.SYSTEM_ERROR), 1)


def test_a_recording_is_the_same_as_itself(spark: SparkSession, tables: Path) -> None:
    pairs = read_table(spark, tables, "pair").where("asked_ns is not null and from_client")
    found = compare(pairs, pairs)
    assert found.is_same
    assert found.differences == []
    oneway = pairs.where("flag & 2 != 0").count()
    assert oneway > 0
    assert (found.compared, found.oneway) == (pairs.count() - oneway, oneway)


@pytest.mark.parametrize(
    ("differ", "noise", "noise_of", "expected"),
    [
        (1, 0, 1000, True),
        (0, 0, 1000, False),
        (1, 0, 0, True),
        (1000, 1000, 1000, False),
        (1000, 300, 300, False),
        (510, 500, 1000, False),
        (700, 500, 1000, True),
        (400, 500, 1000, False),
    ],
)
def test_differences_must_exceed_the_noise(
    differ: int, noise: int, noise_of: int, expected: bool
) -> None:
    assert exceeds(differ, 1000, noise, noise_of) is expected


@pytest.mark.parametrize("code", [RequestCode.AUTH_GET_USER, RequestCode.AUTH_LIST_USER])
def test_secret_keys_are_compared_and_not_shown(spark: SparkSession, code: RequestCode) -> None:
    def users(password: str) -> DataFrame:
        user: Any = {"username": "orders", "password": password}
        body = json.dumps(user if code == RequestCode.AUTH_GET_USER else [user]).encode()
        row = {"file": "a", "position": 0, "code": int(code), "feature": "admin", "asked_ns": 1}
        return answers(spark, [row | {"answer_code": 0, "answer_ext": {}, "answer_body": body}])

    assert compare(users("secret-1"), users("secret-1")).is_same
    found = compare(users("secret-1"), users("secret-2"))
    assert not found.is_same
    assert b"secret-" not in msgspec.json.encode(found)


def test_a_field_that_is_missing_is_no_noise_however_its_values_change(spark: SparkSession) -> None:
    bare = run("c")
    for row in bare:
        row["answer_ext"] = dict(row["answer_ext"])
        del row["answer_ext"]["msgId"]
    found = compare(answers(spark, run("a")), answers(spark, bare), answers(spark, run("b")))
    assert [(one.field, one.kind, one.verdict) for one in found.differences] == [
        ("ext.msgId", "missing", "differs")
    ]


def test_the_sample_of_a_field_that_is_missing_once_is_that_one(spark: SparkSession) -> None:
    bare = run("c")
    bare[120]["answer_ext"].pop("msgId")
    bare[150]["answer_ext"].pop("msgId")
    found = compare(answers(spark, run("a")), answers(spark, bare), answers(spark, run("b")))
    [one] = found.differences
    assert (one.verdict, one.kind, one.differ, one.noise) == ("differs", "missing", 2, 0)
    assert (one.position, one.expected, one.found) == (120, "a120", None)
    assert (one.first_ns, one.last_ns) == (1120, 1150)


def test_what_differs_in_a_feature_alone_is_not_the_same(spark: SparkSession) -> None:
    def offsets(name: str, steady: str) -> list[dict[str, Any]]:
        rows = run(name)
        for row in rows:
            row["feature"] = "recall" if row["position"] < 5 else "sends"
            row["answer_ext"] = {
                "at": steady if row["position"] < 5 else row["answer_ext"]["msgId"]
            }
        return rows

    runs = (offsets("a", "7"), offsets("c", "8"), offsets("b", "7"))
    found = compare(*(answers(spark, one) for one in runs))
    assert [(one.name, one.verdict) for one in found.features] == [
        ("recall", "differs"),
        ("sends", "noise"),
    ]
    assert not found.is_same
    [one] = found.differences
    assert (one.verdict, one.differ, one.answers, one.noise) == ("differs", 5, 5, 0), "its own"
    assert (one.position, one.expected, one.found) == (0, "7", "8")
    assert (one.first_ns, one.last_ns) == (1000, 1004)


def test_a_missing_answer_does_not_differ_in_each_field(spark: SparkSession) -> None:
    """Without the baseline's answer nobody knows whether the candidate's fields are others, whatever noise there is."""
    silent, refused = run("a"), run("b")
    for row in silent[:5]:
        row |= {"answer_code": None, "answer_ext": None}
    for row in refused[:5]:
        row |= {"answer_code": 24, "answer_ext": {}}
    found = compare(answers(spark, silent), answers(spark, run("a")), answers(spark, refused))
    assert {(one.field, one.differ, one.noise, one.verdict) for one in found.differences} == {
        ("answered", 5, 5, "noise"),
        ("code", 5, 5, "noise"),
    }


def test_oneway_requests_are_counted_apart(spark: SparkSession) -> None:
    """One of them never left in the candidate, and one neither in the baseline."""

    def with_oneway(name: str, *outcomes: str) -> DataFrame:
        row = {"file": "b", "code": SEND, "feature": "sends", "asked_ns": 5}
        said = [
            {"position": at, "outcome": outcome, "answer_remark": outcome}
            for at, outcome in enumerate(outcomes)
        ]
        return answers(spark, run(name) + [row | one for one in said])

    baseline = with_oneway("a", "oneway", "oneway", "not connected")
    found = compare(baseline, with_oneway("a", "oneway", "not connected", "oneway"))
    assert (found.compared, found.oneway, found.differences) == (200, 3, [])
    assert "3 oneway requests, which have no answer" in reporting.sections([("", found)])[0].verdict


def test_of_several_features_that_differ_alone_the_differences_are_summed(
    spark: SparkSession,
) -> None:
    def offsets(name: str, steady: str) -> list[dict[str, Any]]:
        rows = run(name)
        for row in rows:
            at = row["position"]
            row["feature"] = "sends" if at < 194 else "recall" if at < 197 else "offsets"
            row["answer_ext"] = {"at": name if at < 194 else steady}
        return rows

    runs = (offsets("a", "7"), offsets("c", "8"), offsets("b", "7"))
    [one] = compare(*(answers(spark, rows) for rows in runs)).differences
    assert (one.verdict, one.differ, one.answers, one.noise) == ("differs", 6, 6, 0)
    assert (one.position, one.first_ns, one.last_ns) == (194, 1194, 1199)


def test_a_second_run_of_some_requests_alone_tells_their_noise(spark: SparkSession) -> None:
    again = answers(spark, run("b")[:60])
    assert compare(answers(spark, run("a")), answers(spark, run("c")), again).is_same


def test_runs_without_a_common_request_are_not_the_same(spark: SparkSession) -> None:
    other = answers(spark, [row | {"file": "b"} for row in run("a")])
    with pytest.raises(JobError, match="no request in common"):
        compare(answers(spark, run("a")), other)


def facts(code: int, body: bytes) -> dict[str, str]:
    """Return the compared facts of a body, with the same body on the other side."""
    return body_facts(code, body, body)[0]


def differ(code: int, old: bytes, new: bytes) -> dict[str, tuple[str | None, str | None]]:
    """Return the names of the facts that differ between two bodies, with both values."""
    had, has = body_facts(code, old, new)
    names = sorted(had.keys() | has.keys())
    return {
        name: (had.get(name), has.get(name)) for name in names if had.get(name) != has.get(name)
    }


def test_bodies_are_compared_by_what_they_mean() -> None:
    records = log_bytes([("t", b"one", "TAGS\x01red\x02"), ("t", b"two", "")])
    moved = log_bytes([("t", b"one", "TAGS\x01red\x02"), ("t", b"two", "")], base=1 << 20)
    assert differ(PULL, records, moved) == {}
    assert facts(PULL, records)["body.tags"] == "red,"
    assert "body.unreadable" in facts(PULL, records[:-1])
    damaged = records.replace(b"two", b"twx")
    assert list(differ(PULL, records, damaged)) == ["body.contents"], "by an old sum"
    assert facts(int(RequestCode.POP_MESSAGE), records) == facts(PULL, records)
    assert facts(41, b'{"set":[{"q":0},{"q":1}]}') == facts(41, b'{"set":[{"q":1},{"q":0}]}')
    assert facts(105, b'{"b":{0:"x"},"a":1}') == {"body.b": '{"0": "x"}', "body.a": "1"}
    assert facts(26, b"\xff\x00") == {"body.bytes": "ff00"}
    assert facts(26, b"limit=10\n" * 9) != facts(26, b"limit=20\n" * 9)
    assert facts(106, b"{}") == {"body.value": "{}"}, "and not as if there were none"
    assert facts(106, b'{"t":{"c":["a","b"]}}') == facts(106, b'{"t":{"c":["b","a"]}}')


def test_the_addresses_of_brokers_are_not_compared() -> None:
    """No two servers have the same, and they would hide other differences of their routes."""

    def route(name: str, addresses: str) -> bytes:
        data = f'[{{"brokerAddrs":{{{addresses}}},"brokerName":"{name}"}}]'
        return f'{{"brokerDatas":{data},"queueDatas":[]}}'.encode()

    one = route("a", '0:"10.0.0.1:10911"')
    assert differ(105, one, route("a", '0:"10.0.0.2:9876"')) == {}
    assert list(differ(105, one, route("b", '0:"10.0.0.1:10911"'))) == ["body.brokerDatas"]
    slave = route("a", '0:"10.0.0.1:10911",1:"10.0.0.2:10911"')
    assert list(differ(105, one, slave)) == ["body.brokerDatas"]


def test_long_bodies_are_compared_by_what_they_mean() -> None:
    def topics(*numbers: int) -> bytes:
        table = {f"topic-{number:05}": {"perm": 6, "readQueueNums": 8} for number in numbers}
        return json.dumps({"topicConfigTable": table, "dataVersion": 1}).encode()

    def offsets(*queues: int) -> bytes:
        entries = ",".join(f'{{"queueId":{queue},"topic":"{"t" * 40}"}}:1' for queue in queues)
        return f'{{"offsetTable":{{{entries}}}}}'.encode()

    for of, name in ((topics, "body.topicConfigTable"), (offsets, "body.offsetTable")):
        body = of(*range(8_000))
        assert len(body) > MAX_TEXT
        assert differ(21, body, of(*range(7_999, -1, -1))) == {}
        assert list(differ(21, body, of(*range(7_999)))) == [name]


def test_an_answer_that_begins_or_ends_elsewhere_has_the_same_messages() -> None:
    def of(names: str, changed: str = "") -> bytes:
        return log_bytes([("t", one.encode(), "C\x011\x02" * (one in changed)) for one in names])

    assert differ(PULL, of("abc"), of("ab")) == {"body.messages": ("3", "2")}
    assert differ(PULL, of("abcd"), of("cdef")) == {"body.messages": ("4", "4, 2 earlier")}
    assert differ(PULL, of("cdef"), of("abcd")) == {"body.messages": ("4", "4, 2 later")}
    assert differ(PULL, of("abc"), b"") == {"body.messages": ("3", None)}
    assert list(differ(PULL, of("abc"), of("bc", "c"))) == ["body.messages", "body.properties"]
    elsewhere = of("uvxyz")[len(of("uv")) :]
    assert differ(PULL, of("ab"), elsewhere) == {"body.messages": ("2", "3, others")}
    for wrong in ("acb", "abxc", "ac", "abbc", "axc", "xyz"):
        assert "body.contents" in differ(PULL, of("abc"), of(wrong)), wrong
    assert list(differ(PULL, of("aaaa"), of("aaaa", "a"))) == ["body.properties"]


def test_what_a_message_says_of_itself_is_compared_without_what_each_run_has_anew() -> None:
    def found(properties: str) -> str:
        return facts(PULL, log_bytes([("t", b"one", properties)]))["body.properties"]

    whole = found("KEYS\x01k1\x02color\x01red\x02UNIQ_KEY\x01A\x02MSG_REGION\x01r\x02")
    assert whole == '{"KEYS": "k1", "color": "red"}'
    assert found("color\x01red\x02KEYS\x01k1\x02UNIQ_KEY\x01B\x02") == whole
    assert found("KEYS\x01k1\x02UNIQ_KEY\x01A\x02") != whole
    assert found("__SHARDINGKEY\x01order-7\x02") != found("")


def test_a_code_that_noise_never_has_is_no_noise(spark: SparkSession) -> None:
    def pulls(name: str, *found: int) -> DataFrame:
        rows = run(name)
        for row, code in zip(rows, found, strict=False):
            row |= {"code": PULL, "answer_code": code, "answer_ext": {}}
        return answers(spark, rows)

    baseline, again = pulls("a", *[0, 19] * 20), pulls("b", *[19, 0] * 20)
    assert compare(baseline, pulls("c", *[0] * 40), again, ignored=["ext.msgId"]).is_same
    found = compare(baseline, pulls("c", *[0] * 9, 1, *[0] * 30), again)
    [one] = [one for one in found.differences if one.verdict == "differs"]
    assert (one.field, one.expected, one.found, one.differ, one.noise) == ("code", "19", "1", 1, 0)


USES: list[tuple[RequestCode, dict[str, str] | None, str]] = [
    (RequestCode.SEND_MESSAGE_V2, {"b": "t", "i": "DELAY\x013\x02"}, "delay levels"),
    (RequestCode.SEND_MESSAGE_V2, {"b": "t", "i": "A\x01DELAY\x02"}, "sends"),
    (
        RequestCode.SEND_MESSAGE,
        {"topic": "t", "properties": "a\x01b\x02TIMER_DELAY_MS\x015\x02"},
        "arbitrary times",
    ),
    (
        RequestCode.SEND_MESSAGE_V2,
        {"b": "t", "i": "DELAY\x013\x02TRAN_MSG\x01true\x02"},
        "transactions",
    ),
    (RequestCode.SEND_MESSAGE_V2, {"b": "%RETRY%g", "i": "DELAY\x013\x02"}, "retries"),
    (RequestCode.SEND_BATCH_MESSAGE, {"b": "t"}, "batches"),
    (RequestCode.SEND_MESSAGE_V2, {"b": "t", "m": "true"}, "batches"),
    (RequestCode.PULL_MESSAGE, {"subscription": "*"}, "pulls"),
    (RequestCode.PULL_MESSAGE, {"subscription": "red || blue"}, "filters"),
    (RequestCode.PULL_MESSAGE, {"topic": "%RETRY%g", "subscription": "red"}, "retries"),
    (RequestCode.POP_MESSAGE, None, "pops"),
    (RequestCode.RECALL_MESSAGE, {}, "recall"),
    (RequestCode.LOCK_BATCH_MQ, None, "ordered consumption"),
    (RequestCode.GET_CONSUME_STATS, {}, "admin"),
]


def test_what_a_request_makes_use_of(spark: SparkSession) -> None:
    given = [(int(code), ext) for code, ext, _ in USES]
    rows = spark.createDataFrame(given, "code int, ext map<string,string>")
    found = [row[0] for row in rows.select(feature()).collect()]
    assert found == [name for _, _, name in USES]


def test_how_long_answers_took_is_told_of_both_runs(spark: SparkSession) -> None:
    def taking(name: str, ms: int) -> DataFrame:
        rows = run(name)
        for row in rows:
            row |= {"sent_ns": 5_000_000, "answered_ns": 5_000_000 + ms * 1_000_000}
        return answers(spark, rows)

    recorded = taking("a", 3).withColumn("asked_ns", f.col("sent_ns")).drop("sent_ns", "due_ns")
    [code] = compare(recorded, taking("b", 40), ignored=["ext.msgId"]).codes
    assert (code.verdict, code.baseline_ms, code.candidate_ms) == ("noise", (3, 3), (40, 40))
    section = reporting.sections(
        [("", compare(answers(spark, run("a")), taking("b", 40), ignored=["ext.msgId"]))]
    )[0]
    table = next(part for part in section.parts if part.title.startswith("By request code"))
    assert isinstance(table, Table)
    assert table.rows == [("SEND_MESSAGE_V2", str(SEND), "noise", 200, None, None, 40.0, 40.0)]


def test_it_is_told_how_late_each_run_was(spark: SparkSession) -> None:
    def late(name: str, ms: int) -> DataFrame:
        times = {"due_ns": 5_000_000, "sent_ns": 5_000_000 + ms * 1_000_000}
        return answers(spark, [row | times for row in run(name)])

    found = compare(late("a", 1), late("b", 300), late("c", 2))
    assert found.late_ms == {"baseline": 1.0, "candidate": 300.0, "noise": 2.0}
    said = reporting.sections([("", found)])[0].verdict
    assert "left late at P99 by 1.0 ms (baseline), 300.0 ms (candidate), 2.0 ms (noise)" in said
    recorded = answers(spark, run("a")).drop("due_ns", "sent_ns")
    assert compare(recorded, late("b", 300)).late_ms == {"candidate": 300.0}
