"""`compare`: what is answered differently, with what differs anyway told apart.

Three runs of the same requests are compared: a baseline, a candidate, and a second run of the
baseline's server. What also differs between the baseline and its second run, such as ids and
offsets, is noise, and is told as such (the idea of Twitter's Diffy).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from gateway.wire import properties as names
from gateway.wire.codes import RequestCode
from gateway.wire.dialect import DialectError, to_json
from gateway.wire.messages import MessageError, decode_messages
from gateway.wire.properties import find
from spark_jobs.messages import PULLS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_NAMES: Final = {int(code): code.name for code in RequestCode}
_RECORDS: Final = tuple(
    sorted(
        int(code) for code in PULLS | {RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID}
    )
)
"""Requests that are answered with messages."""
_KEY: Final = ("file", "position", "code")
_SIGNIFICANT: Final = 3.0
"""Standard deviations by which a rate of differences must be above the noise's."""

_BODY_FACTS: Final = pa.schema(
    [
        ("file", pa.string()),
        ("position", pa.int64()),
        ("code", pa.int32()),
        ("facts", pa.map_(pa.string(), pa.string())),
    ]
)
_BODY_DDL: Final = "file string, position bigint, code int, facts map<string,string>"


class Difference(msgspec.Struct, kw_only=True):
    """How one field of the answers to one request code differs."""

    code: int
    field: str
    """`answered`, `code`, `remark`, `ext.NAME` or `body.WHAT`."""
    kind: str
    """`missing` or `added` in the candidate, or `changed`; of the sample."""
    answers: int
    """Of this code that both runs have."""
    differ: int
    noise: int
    """How many differ between the two runs of the baseline's server."""
    verdict: str
    """`differs`, `noise` or `ignored`."""
    file: str
    position: int
    """The request of the sample."""
    expected: str | None
    found: str | None


class CodeVerdict(msgspec.Struct, kw_only=True):
    """Whether the answers to one request code are the same."""

    code: int
    name: str
    answers: int
    verdict: str
    """`same`, `noise` (nothing differs but what differs anyway) or `differs`."""


class Comparison(msgspec.Struct, kw_only=True):
    """What two runs answered differently."""

    compared: int
    only_in_baseline: int
    only_in_candidate: int
    has_noise: bool
    """Whether there was a second run to tell noise by."""
    codes: list[CodeVerdict]
    differences: list[Difference]

    @property
    def is_same(self) -> bool:
        """Whether nothing differs but noise."""
        return all(code.verdict != "differs" for code in self.codes)


def facts(answers: DataFrame) -> DataFrame:
    """Each answer as a map from field to value, by the request's file, position and code.

    :param answers: rows with at least the columns of `replaying.RESULTS` that begin with `answer`.
    """
    from pyspark.sql import functions as f

    is_answered = f.col("answer_code").isNotNull()
    plain = f.create_map(
        f.lit("answered"),
        is_answered.cast("string"),
        f.lit("code"),
        f.col("answer_code").cast("string"),
        f.lit("remark"),
        f.col("answer_remark"),
    )
    ext = f.transform_keys(
        f.coalesce("answer_ext", f.create_map().cast("map<string,string>")),
        lambda name, _: f.concat(f.lit("ext."), name),
    )
    has_body = f.length("answer_body") > 0
    heads = answers.select(*_KEY, f.map_concat(plain, ext).alias("facts"))
    bodies = answers.where(has_body).select(*_KEY, "answer_code", "answer_body")
    read = bodies.mapInArrow(_body_facts, _BODY_DDL).withColumnRenamed("facts", "body_facts")
    no_body = f.create_map().cast("map<string,string>")
    return heads.join(read, [*_KEY], "left").select(
        *_KEY, f.map_concat("facts", f.coalesce("body_facts", no_body)).alias("facts")
    )


def _body_facts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = batch.to_pylist()
        found = [list(body_facts(row["code"], row["answer_body"]).items()) for row in rows]
        arrays = [batch.column(name) for name in _KEY] + [pa.array(found, _BODY_FACTS[3].type)]
        yield pa.RecordBatch.from_arrays(arrays, schema=_BODY_FACTS)


def body_facts(code: int, body: bytes) -> dict[str, str]:
    """What is compared of an answer's body: of messages their contents, of JSON each key."""
    if code in _RECORDS:
        try:
            messages = decode_messages(body)
        except MessageError as error:
            return {"body.unreadable": str(error)}
        return {
            "body.messages": str(len(messages)),
            "body.contents": ",".join(f"{message.body_crc:08x}" for message in messages),
            "body.tags": ",".join(find(one.properties, names.TAGS) or "" for one in messages),
            "body.topics": ",".join(message.topic for message in messages),
            "body.reconsumed": ",".join(str(message.reconsume_times) for message in messages),
        }
    try:
        value = json.loads(to_json(body))
    except (DialectError, ValueError, RecursionError):
        return {"body.bytes": body.hex() if len(body) <= 64 else f"{len(body)} bytes"}
    if not isinstance(value, dict):
        return {"body.value": json.dumps(value, sort_keys=True)}
    return {f"body.{name}": json.dumps(part, sort_keys=True) for name, part in value.items()}


def compare(
    baseline: DataFrame,
    candidate: DataFrame,
    noise: DataFrame | None = None,
    *,
    ignored: Iterable[str] = (),
) -> Comparison:
    """Compare answers of two runs of the same requests.

    :param noise: a second run of the baseline's server; without one everything that differs counts.
    :param ignored: fields that do not count, as `FIELD` or `CODE:FIELD`.
    """
    from pyspark.sql import functions as f

    old = facts(baseline).withColumnRenamed("facts", "old")
    new = facts(candidate).withColumnRenamed("facts", "new")
    both = old.join(new, [*_KEY], "full")
    if noise is None:
        both = both.withColumn("again", f.col("old"))
    else:
        again = facts(noise).withColumnRenamed("facts", "again")
        both = both.join(again, [*_KEY], "left")
    both = both.cache()
    try:
        present = both.select(
            "code", f.col("old").isNotNull().alias("a"), f.col("new").isNotNull().alias("b")
        )
        counts = present.groupBy("code", "a", "b").count().collect()
        answers = {row["code"]: row["count"] for row in counts if row["a"] and row["b"]}
        compared = both.where("old is not null and new is not null")
        differ = _differences(compared, "new")
        noisy: dict[tuple[int, str], int] = {}
        if noise is not None:
            among = compared.where("again is not null")
            noisy = {(row["code"], row["field"]): row["n"] for row in _differences(among, "again")}
    finally:
        both.unpersist()
    skip = set(ignored)
    differences = [_judged(row, answers, noisy, skip) for row in differ]
    return Comparison(
        compared=sum(answers.values()),
        only_in_baseline=sum(row["count"] for row in counts if not row["b"]),
        only_in_candidate=sum(row["count"] for row in counts if not row["a"]),
        has_noise=noise is not None,
        codes=[
            _code_verdict(code, number, differences) for code, number in sorted(answers.items())
        ],
        differences=sorted(
            differences, key=lambda one: (one.verdict != "differs", one.code, one.field)
        ),
    )


def _differences(both: DataFrame, other: str) -> list[Any]:
    """For each code and field in which `old` and another differ: how often, and a sample."""
    from pyspark.sql import functions as f

    def pair(_: Column, old: Column, new: Column) -> Column:
        return f.struct(old.alias("old"), new.alias("new"))

    def is_different(_: Column, value: Column) -> Column:
        return ~value["old"].eqNullSafe(value["new"])

    changed = f.map_filter(f.map_zip_with("old", other, pair), is_different)
    return (
        both.select(*_KEY, changed.alias("changed"))
        .where(f.size("changed") > 0)
        .select(*_KEY, f.explode("changed").alias("field", "values"))
        .groupBy("code", "field")
        .agg(
            f.count("*").alias("n"),
            f.min(f.struct("file", "position", "values")).alias("sample"),
        )
        .collect()
    )


def _judged(
    row: Any, answers: dict[int, int], noisy: dict[tuple[int, str], int], ignored: set[str]
) -> Difference:
    code, field, sample = row["code"], row["field"], row["sample"]
    expected, found = sample["values"]["old"], sample["values"]["new"]
    noise = noisy.get((code, field), 0)
    verdict = "differs" if exceeds(row["n"], noise, answers[code]) else "noise"
    if field in ignored or f"{code}:{field}" in ignored:
        verdict = "ignored"
    kind = "missing" if found is None else "added" if expected is None else "changed"
    return Difference(
        code=code,
        field=field,
        kind=kind,
        answers=answers[code],
        differ=row["n"],
        noise=noise,
        verdict=verdict,
        file=sample["file"],
        position=sample["position"],
        expected=expected,
        found=found,
    )


def exceeds(differ: int, noise: int, of: int) -> bool:
    """Whether so many differences are more than the noise explains.

    Without any noise one is; else the two rates must differ by three standard deviations.
    """
    if noise == 0:
        return differ > 0
    rate = (differ + noise) / (2 * of)
    deviation = math.sqrt(2 * of * rate * (1 - rate))
    return differ - noise > _SIGNIFICANT * deviation


def _code_verdict(code: int, answers: int, differences: list[Difference]) -> CodeVerdict:
    found = {one.verdict for one in differences if one.code == code}
    verdict = "differs" if "differs" in found else "noise" if found else "same"
    return CodeVerdict(
        code=code, name=_NAMES.get(code, "unknown"), answers=answers, verdict=verdict
    )
