"""`compare`: finds answers that differ, and separates differences from noise.

Three runs of the same requests are compared: a baseline, a candidate, and a second run of the
baseline's server. Fields that also differ between the baseline and its second run, such as ids and
offsets, are noise, and are reported as such (the idea of Twitter's Diffy).
"""

from __future__ import annotations

import json
import math
import operator
import zlib
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from gateway.wire import properties as names
from gateway.wire.codes import CommandFlag, RequestCode, ResponseCode, request_name
from gateway.wire.dialect import to_json
from gateway.wire.messages import Message, MessageError, decode_messages
from gateway.wire.properties import find, parse
from recording.format import LONGEST_FRAME
from spark_jobs.errors import JobError
from spark_jobs.features import feature
from spark_jobs.messages import PULLS
from spark_jobs.replaying import ONEWAY
from spark_jobs.schemas import ddl

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_RECORDS: Final = tuple(
    sorted(
        int(code)
        for code in PULLS
        | {RequestCode.POP_MESSAGE, RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID}
    )
)
"""Codes of requests whose answers have messages."""
_SECRET: Final = (int(RequestCode.AUTH_GET_USER), int(RequestCode.AUTH_LIST_USER))
"""Codes of requests whose answers have secret keys."""
_ADDRESSES: Final = "brokerAddrs"
"""The name in routes for the addresses of brokers by their ids. No two servers have the same, so only the ids are
compared."""
_NOT_SHOWN: Final = "(not shown, as it may have secret keys)"
_RESERVED: Final = {value for name, value in vars(names).items() if name.isupper()} - {
    names.KEYS,
    names.SHARDING_KEY,
    names.SHARDING_KEY_GO,
}
"""Names of properties with a meaning to clients and servers. The values of many differ from run to run."""
_CANDIDATE, _NOISE = 1, 2
"""Numbers of the runs; the baseline has 0."""
_OLD, _NEW, _AGAIN = 1, 2, 4
"""Flags, summed, of the runs that have a request: baseline, candidate, second run. It may be unanswered there."""
_BOTH: Final = _OLD | _NEW
_ONEWAY: Final = 8
"""In place of those flags: the request was oneway in one of the runs, so there is no answer."""
_SIGNIFICANT: Final = 3.0
"""By how many standard deviations a rate of differences must exceed the rate of the noise."""

_SIDE_BY_SIDE: Final = (
    *("run", "file", "position", "code", "feature", "asked_ns", "is_oneway"),
    *("answer_code", "answer_remark", "names", "values", "answer_body"),
)
_TALLIES: Final = pa.schema(
    [
        ("code", pa.int32()),
        ("feature", pa.string()),
        ("field", pa.string()),
        ("runs", pa.int32()),
        ("number", pa.int64()),
        ("kind", pa.string()),
        ("first_ns", pa.int64()),
        ("last_ns", pa.int64()),
        ("file", pa.string()),
        ("position", pa.int64()),
        ("expected", pa.string()),
        ("found", pa.string()),
    ]
)
"""The counts of a task. A row without a `field` counts the requests that exactly these runs have. Any other
row counts the differences of one `_kind` between the baseline and one run, with the first as a sample."""


class Difference(msgspec.Struct, kw_only=True):
    """How one field of the answers to one request code differs."""

    code: int
    field: str
    """`answered`, `code`, `remark`, `ext.NAME` or `body.WHAT`."""
    kind: str
    """The sample's difference: `missing` or `added` in the candidate, or `changed`."""
    answers: int
    """How many answers of this code both runs have. If the field differs no more than noise over all features, but
    in some it does, only the answers of these are counted, here and below."""
    differ: int
    """In how many of them the field differs. If all these are within the noise, but some kinds of difference are
    not (missing or added, or one code in place of another), only those kinds are counted."""
    noise: int
    """How many answers differ in the same way between the two runs of the baseline's server."""
    verdict: str
    """`differs`, `noise` or `ignored`."""
    first_ns: int | None
    """When the first and last requests were recorded whose answers differ in this field; epoch ns."""
    last_ns: int | None
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
    """`same`, `noise` (all differences are noise or ignored) or `differs`."""
    baseline_ms: tuple[float, float] | None = None
    """How long the baseline's answers took, P50 and P99; None without answers that have times. Not judged."""
    candidate_ms: tuple[float, float] | None = None
    """How long the candidate's answers took, in the same way."""


class FeatureVerdict(msgspec.Struct, kw_only=True):
    """Whether the answers to the requests that use one feature are the same."""

    name: str
    """A name that `features.feature` gives."""
    answers: int
    differ: int
    """How many answers differ in the field that differs most."""
    verdict: str
    """As in `CodeVerdict`."""
    fields: list[str]
    """Request code and name of the fields that differ."""
    first_ns: int | None
    """The recorded time of the first request whose answer differs, epoch ns."""


class Comparison(msgspec.Struct, kw_only=True):
    """The differences between the answers of two runs."""

    compared: int
    only_in_baseline: int
    only_in_candidate: int
    oneway: int = 0
    """Requests that are left out, as they have no answer."""
    has_noise: bool
    """Whether there was a second run to measure the noise."""
    late_ms: dict[str, float] = {}
    """By run (`baseline`, `candidate`, `noise`), if it is a replay: how late its requests were sent, P99."""
    codes: list[CodeVerdict]
    features: list[FeatureVerdict]
    differences: list[Difference]
    notes: list[str] = []
    """What limits the findings, such as requests that are left out."""

    @property
    def is_same(self) -> bool:
        """Whether nothing differs but noise."""
        return all(code.verdict != "differs" for code in self.codes)


def body_facts(code: int, old: bytes, new: bytes) -> tuple[dict[str, str], dict[str, str]]:
    """Return the facts to compare of the bodies of two answers: contents of messages, or each key of JSON.

    Each message is compared with the same one in the other answer. If an answer only begins or ends
    with another message, as it does when the request comes a moment later, only `body.messages`
    differs. If no message is the same, messages at the same offset of a queue are compared. Lists in
    JSON are compared as sets: they have queues, clients or addresses in the order of a hash table.
    The addresses of brokers are not compared.
    """
    if code not in _RECORDS:
        return _facts(old), _facts(new)
    found: list[dict[str, str]] = []
    told: list[list[_Told]] = []
    places: list[list[tuple[int, int]]] = []
    for body in (old, new):
        facts: dict[str, str] = {}
        messages: list[Message] = []
        try:
            messages = decode_messages(body)
            if messages:
                facts["body.messages"] = str(len(messages))
        except MessageError as error:
            facts["body.unreadable"] = str(error)
        found.append(facts)
        told.append([_told(message) for message in messages])
        places.append([(message.queue_id, message.queue_offset) for message in messages])
    if not told[0] or not told[1]:
        return found[0], found[1]
    shift = _shift(*told)
    if shift is None:
        shift = _shift(*places)
    if shift is None:
        found[1]["body.messages"] += ", others"
        return found[0], found[1]
    if shift:
        found[1]["body.messages"] += f", {abs(shift)} {'later' if shift > 0 else 'earlier'}"
    start, end = max(0, -shift), min(len(told[0]), len(told[1]) - shift)
    same = told[0][start:end], told[1][start + shift : end + shift]
    for facts, some in zip(found, same, strict=True):
        for name, values in zip(_Told._fields, zip(*some, strict=True), strict=True):
            facts[f"body.{name}"] = ",".join(values)
    return found[0], found[1]


class _Told(NamedTuple):
    """The facts to compare of a message."""

    contents: str
    """A CRC of the body. The record's own CRC is of the stored body, whatever body is returned."""
    tags: str
    properties: str
    topics: str
    reconsumed: str


def _told(message: Message) -> _Told:
    return _Told(
        f"{zlib.crc32(message.body):08x}",
        find(message.properties, names.TAGS) or "",
        json.dumps(_own(message), sort_keys=True),
        message.topic,
        str(message.reconsume_times),
    )


def _shift(old: Sequence[Hashable], new: Sequence[Hashable]) -> int | None:
    """Return by how many places most of the common items are further on in `new`; None without common items."""
    if all(map(operator.eq, old, new)):
        return 0
    places: dict[Hashable, list[int]] = {}
    for place, one in enumerate(new):
        places.setdefault(one, []).append(place)
    shifts = Counter(
        place - before for before, one in enumerate(old) for place in places.get(one, ())
    )
    return max(shifts, key=lambda shift: (shifts[shift], -abs(shift)), default=None)


def _facts(body: bytes) -> dict[str, str]:
    """Return the facts to compare of a body without messages."""
    if not body:
        return {}
    try:
        value = _value(body)
    except (ValueError, RecursionError):
        long = f"{len(body)} bytes, CRC {zlib.crc32(body):08x}"
        return {"body.bytes": body.hex() if len(body) <= 64 else long}
    if not isinstance(value, dict) or not value:
        return {"body.value": json.dumps(_unordered(value), sort_keys=True)}
    return {
        f"body.{name}": json.dumps(_unordered(part), sort_keys=True) for name, part in value.items()
    }


def _value(body: bytes) -> Any:
    """Return the value of a body that is JSON, of any size. Raises ValueError or RecursionError for any other."""
    try:
        return json.loads(body)
    except ValueError:  # RocketMQ writes some maps in its own dialect
        return json.loads(to_json(body, LONGEST_FRAME))


def _own(message: Message) -> dict[str, str]:
    """Return the keys of a message, and the properties that only its users give a meaning."""
    properties = parse(message.properties)
    return {name: value for name, value in properties.items() if name not in _RESERVED}


def _unordered(value: Any) -> Any:
    """Return a value of JSON with all that is compared of it, in an order of its own."""
    if isinstance(value, list):
        return sorted(map(_unordered, value), key=lambda one: json.dumps(one, sort_keys=True))
    if isinstance(value, dict):
        return {
            name: sorted(part)
            if name == _ADDRESSES and isinstance(part, dict)
            else _unordered(part)
            for name, part in value.items()
        }
    return value


def compare(
    baseline: DataFrame,
    candidate: DataFrame,
    noise: DataFrame | None = None,
    *,
    ignored: Iterable[str] = (),
) -> Comparison:
    """Compare the answers of two runs of the same requests.

    :param noise: a second run of the baseline's server; without one every difference counts.
    :param ignored: fields that do not count, as `FIELD` or `CODE:FIELD`.
    :raises JobError: if baseline and candidate have no request in common.
    """
    runs = [baseline, candidate] if noise is None else [baseline, candidate, noise]
    tallied = _side_by_side(runs).mapInArrow(
        partial(_tally, has_noise=noise is not None), ddl(_TALLIES)
    )
    compared: dict[str, _Compared] = {}
    by_runs: Counter[int] = Counter()
    oneway = 0
    differ: list[_Tally] = []
    noisy: list[_Tally] = []
    for row in tallied.collect():
        if row["field"] is not None:
            (differ if row["runs"] == _CANDIDATE else noisy).append(row.asDict())
            continue
        if row["runs"] == _ONEWAY:
            oneway += row["number"]
            continue
        by_runs[row["runs"] & _BOTH] += row["number"]
        if row["runs"] & _BOTH == _BOTH:
            of_feature = compared.setdefault(row["feature"], _Compared(Counter(), Counter()))
            of_feature.answers[row["code"]] += row["number"]
            of_feature.again[row["code"]] += row["number"] if row["runs"] & _AGAIN else 0
    if not compared:
        raise JobError(
            "the two have no request in common that has an answer, so there is nothing to compare"
        )
    whole = _Compared(
        sum((one.answers for one in compared.values()), Counter()),
        sum((one.again for one in compared.values()), Counter()),
    )
    took = _took(baseline), _took(candidate)
    late = zip(("baseline", "candidate", "noise"), map(_late_ms, runs), strict=False)
    skip = set(ignored)
    by_feature = {
        name: _judged(_of(differ, name), _of(noisy, name), number, skip)
        for name, number in sorted(compared.items())
    }
    in_features: dict[tuple[int, str], list[Difference]] = {}
    for found in by_feature.values():
        for one in found:
            if one.verdict == "differs":
                in_features.setdefault((one.code, one.field), []).append(one)
    differences = [
        _of_features(in_features[one.code, one.field])
        if one.verdict == "noise" and (one.code, one.field) in in_features
        else one
        for one in _judged(differ, noisy, whole, skip)
    ]
    return Comparison(
        compared=whole.answers.total(),
        only_in_baseline=by_runs[_OLD],
        only_in_candidate=by_runs[_NEW],
        oneway=oneway,
        has_noise=noise is not None,
        late_ms={name: late_ms for name, late_ms in late if late_ms is not None},
        codes=[
            _code_verdict(code, number, differences, (took[0].get(code), took[1].get(code)))
            for code, number in sorted(whole.answers.items())
        ],
        features=[
            _feature_verdict(name, compared[name].answers.total(), found)
            for name, found in by_feature.items()
        ],
        differences=sorted(
            differences, key=lambda one: (one.verdict != "differs", one.code, one.field)
        ),
    )


def _took(answers: DataFrame) -> dict[int, tuple[float, float]]:
    """Return by request code how long the answers of a run took, P50 and P99 in ms."""
    from pyspark.sql import functions as f

    left = "sent_ns" if "sent_ns" in answers.columns else "asked_ns"
    took = (f.col("answered_ns") - f.col(left)) / 1_000_000
    rows = (
        answers.where(took.isNotNull())
        .groupBy("code")
        .agg(f.percentile_approx(took, [0.5, 0.99]).alias("took"))
        .collect()
    )
    return {row["code"]: (row["took"][0], row["took"][1]) for row in rows}


def _late_ms(answers: DataFrame) -> float | None:
    """Return how late the requests of a replay were sent, P99 in ms; None for a recording."""
    from pyspark.sql import functions as f

    if "due_ns" not in answers.columns:
        return None
    late = f.percentile_approx((f.col("sent_ns") - f.col("due_ns")) / 1_000_000, 0.99)
    found: float | None = answers.agg(late).collect()[0][0]
    return found


def _side_by_side(runs: Sequence[DataFrame]) -> DataFrame:
    """Return the answers of all runs, sorted so that the answers to one request are adjacent."""
    from pyspark.sql import functions as f

    def of_request(answers: DataFrame, run: int) -> DataFrame:
        if run:
            # The baseline's rows have these two, and come first.
            none = {"feature": f.lit(None).cast("string"), "asked_ns": f.lit(None).cast("bigint")}
            return answers.withColumns(none)
        return answers if "feature" in answers.columns else answers.withColumn("feature", feature())

    def is_oneway(answers: DataFrame) -> Column:
        found = (
            f.col("outcome") == ONEWAY
            if "outcome" in answers.columns
            else f.col("flag").bitwiseAND(int(CommandFlag.ONEWAY)) != 0
        )
        return f.coalesce(found, f.lit(False)).cast("int")

    rows = [
        of_request(answers, run)
        .withColumn("is_oneway", is_oneway(answers))
        .withColumns({"names": f.map_keys("answer_ext"), "values": f.map_values("answer_ext")})
        .withColumn("run", f.lit(run))
        .select(*_SIDE_BY_SIDE)
        for run, answers in enumerate(runs)
    ]
    together = rows[0]
    for more in rows[1:]:
        together = together.unionAll(more)
    return together.repartition("position", "file").sortWithinPartitions("position", "file", "run")


_Tally = dict[str, Any]
"""A row of `_TALLIES`."""
_Answer = list[Any]
"""Code, remark, names and values of the fields, body; the code is `_NO_NUMBER` if there was no answer."""
_NO_NUMBER: Final = -(1 << 40)
"""Stands for null. It is smaller than any code or time."""


class _Compared(NamedTuple):
    """How many answers were compared, by request code."""

    answers: Counter[int]
    """Baseline answers compared with the candidate's."""
    again: Counter[int]
    """How many of them were also compared with the second run's."""


class _Request(NamedTuple):
    file: str
    position: int
    code: int
    feature: str
    asked_ns: int
    """`_NO_NUMBER` if the recording does not have it."""


def _tally(batches: Iterable[pa.RecordBatch], has_noise: bool) -> Iterator[pa.RecordBatch]:
    """Compare the answers to each request, and yield the counts as one batch of `_TALLIES`."""
    counts: Counter[tuple[int, str, int]] = Counter()
    found: dict[tuple[int, str, int, str, str], _Tally] = {}
    for request, (old, new, again), is_oneway in _by_request(batches):
        if is_oneway:
            counts[request.code, request.feature, _ONEWAY] += 1
            continue
        there = zip((_OLD, _NEW, _AGAIN), (old, new, again), strict=True)
        runs = sum(run for run, answer in there if answer is not None)
        counts[request.code, request.feature, runs] += 1
        if old is None or new is None:
            continue
        if old != new:
            for field, *values in _differences(request.code, old, new):
                _count(found, _CANDIDATE, request, field, values)
        if has_noise and again is not None and old != again:
            for field, *values in _differences(request.code, old, again):
                _count(found, _NOISE, request, field, values)
    rows: list[_Tally] = [
        {"code": code, "feature": name, "runs": runs, "number": number}
        for (code, name, runs), number in counts.items()
    ]
    yield pa.RecordBatch.from_pylist(rows + list(found.values()), schema=_TALLIES)


def _count(
    found: dict[tuple[int, str, int, str, str], _Tally],
    run: int,
    request: _Request,
    field: str,
    values: Sequence[str | None],
) -> None:
    """Count a difference. The sample is the first one in the recording."""
    file, position, code, name, _ = request
    asked_ns = None if request.asked_ns == _NO_NUMBER else request.asked_ns
    kind = _kind(field, values)
    known = found.get((run, name, code, field, kind))
    if known is None:
        found[run, name, code, field, kind] = {
            "code": code,
            "feature": name,
            "field": field,
            "runs": run,
            "number": 1,
            "kind": kind,
            "first_ns": asked_ns,
            "last_ns": asked_ns,
            "file": file,
            "position": position,
            "expected": values[0],
            "found": values[1],
        }
        return
    known["number"] += 1
    if asked_ns is not None:
        known["first_ns"] = min(asked_ns, known["first_ns"] or asked_ns)
        known["last_ns"] = max(asked_ns, known["last_ns"] or asked_ns)
    if (file, position) < (known["file"], known["position"]):
        known |= {"file": file, "position": position, "expected": values[0], "found": values[1]}


def _kind(field: str, values: Sequence[str | None]) -> str:
    """Return the kind of a difference if such differences are judged on their own; else an empty text.

    The kinds are `one-sided`, if one of the two answers lacks the field, and for a code the two
    codes, sorted: runs that differ only in timing swap the two in both directions.
    """
    if None in values:
        return "one-sided"
    return "/".join(sorted(map(str, values))) if field == "code" else ""


def _by_request(
    batches: Iterable[pa.RecordBatch],
) -> Iterator[tuple[_Request, list[_Answer | None], bool]]:
    """Yield each request with its answers in the three runs, and whether it was oneway in one of them."""
    last: tuple[str, int] | None = None
    request: _Request | None = None
    answers: list[_Answer | None] = [None, None, None]
    is_oneway = False
    for batch in batches:
        for run, file, position, code, name, asked_ns, has_none, *answer in _rows(batch):
            if last != (file, position):
                if request is not None:
                    yield request, answers, is_oneway
                last = (file, position)
                request = _Request(file, position, code, name or "", asked_ns)
                answers = [None, None, None]
                is_oneway = False
            answers[run] = answer
            is_oneway |= bool(has_none)
    if request is not None:
        yield request, answers, is_oneway


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Return a batch's rows, converted by whole columns: `to_pylist` makes an extra object for each value."""
    columns: dict[str, Any] = {}
    for name in _SIDE_BY_SIDE:
        column = batch.column(name)
        if pa.types.is_list(column.type):
            values = column.values.to_numpy(zero_copy_only=False).tolist()
            ends = column.offsets.to_numpy().tolist()
            columns[name] = [values[begin:end] for begin, end in pairwise(ends)]
        elif pa.types.is_integer(column.type):
            numbers = column.cast(pa.int64()).fill_null(_NO_NUMBER)
            columns[name] = numbers.to_numpy().tolist()
        else:
            columns[name] = column.to_numpy(zero_copy_only=False).tolist()
    return zip(*columns.values(), strict=True)


def _differences(
    code: int, old: _Answer, new: _Answer
) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield the fields in which two answers differ, with both values.

    If one of the two is missing, that is all in which they differ: `answered` and `code`, and the `remark`, which of a
    request that never left says why. No client reads the remark of a success.
    """
    is_one_missing = (old[0] == _NO_NUMBER) != (new[0] == _NO_NUMBER)
    if old[0] != new[0]:
        before, after = (None if one[0] == _NO_NUMBER else str(one[0]) for one in (old, new))
        if is_one_missing:
            yield "answered", _truth(before is not None), _truth(after is not None)
        yield "code", before, after
    if old[1] != new[1] and not old[0] == new[0] == ResponseCode.SUCCESS:
        yield "remark", old[1], new[1]
    if is_one_missing:
        return
    if old[2:4] != new[2:4]:
        had, has = (dict(zip(one[2], one[3], strict=True)) for one in (old, new))
        for name in had.keys() | has.keys():
            if had.get(name) != has.get(name):
                yield f"ext.{name}", had.get(name), has.get(name)
    if (old[4] or b"") != (new[4] or b""):
        had, has = body_facts(code, old[4] or b"", new[4] or b"")
        for name in had.keys() | has.keys():
            if had.get(name) != has.get(name):
                before, after = had.get(name), has.get(name)
                if code in _SECRET:
                    before, after = before and _NOT_SHOWN, after and _NOT_SHOWN
                yield name, before, after


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _number(tallies: Iterable[_Tally]) -> int:
    return sum(one["number"] for one in tallies)


def _of_kind(tallies: Iterable[_Tally], kind: str) -> list[_Tally]:
    return [one for one in tallies if one["kind"] == kind]


def _of(tallies: Iterable[_Tally], name: str) -> list[_Tally]:
    return [one for one in tallies if one["feature"] == name]


def _judged(
    differ: Iterable[_Tally], noisy: Iterable[_Tally], compared: _Compared, ignored: set[str]
) -> list[Difference]:
    """Judge the counts of the tasks by code and field."""
    noise: dict[tuple[int, str], list[_Tally]] = {}
    for row in noisy:
        noise.setdefault((row["code"], row["field"]), []).append(row)
    by_field: dict[tuple[int, str], list[_Tally]] = {}
    for row in differ:
        by_field.setdefault((row["code"], row["field"]), []).append(row)
    return [
        _difference(code, field, rows, noise.get((code, field), []), compared, ignored)
        for (code, field), rows in by_field.items()
    ]


def _difference(
    code: int,
    field: str,
    rows: list[_Tally],
    noisy: list[_Tally],
    compared: _Compared,
    ignored: set[str],
) -> Difference:
    def is_more(rows: list[_Tally], noisy: list[_Tally]) -> bool:
        return exceeds(_number(rows), compared.answers[code], _number(noisy), compared.again[code])

    verdict = "differs"
    if not is_more(rows, noisy):
        of_kinds = [
            (_of_kind(rows, kind), _of_kind(noisy, kind))
            for kind in sorted({row["kind"] for row in rows} - {""})
        ]
        more = [both for both in of_kinds if is_more(*both)]
        verdict = "differs" if more else "noise"
        if more:
            rows, noisy = ([row for some in one for row in some] for one in zip(*more, strict=True))
    sample = min(rows, key=lambda row: (row["file"], row["position"]))
    expected, found = sample["expected"], sample["found"]
    if field in ignored or f"{code}:{field}" in ignored:
        verdict = "ignored"
    return Difference(
        code=code,
        field=field,
        kind="missing" if found is None else "added" if expected is None else "changed",
        answers=compared.answers[code],
        differ=_number(rows),
        noise=_number(noisy),
        verdict=verdict,
        first_ns=min((at for row in rows if (at := row["first_ns"]) is not None), default=None),
        last_ns=max((at for row in rows if (at := row["last_ns"]) is not None), default=None),
        file=sample["file"],
        position=sample["position"],
        expected=expected,
        found=found,
    )


def _of_features(some: Sequence[Difference]) -> Difference:
    """Return the differences of one field in the features that differ in it, as one."""
    sample = min(some, key=lambda one: (one.file, one.position))
    return msgspec.structs.replace(
        sample,
        answers=sum(one.answers for one in some),
        differ=sum(one.differ for one in some),
        noise=sum(one.noise for one in some),
        first_ns=min((one.first_ns for one in some if one.first_ns is not None), default=None),
        last_ns=max((one.last_ns for one in some if one.last_ns is not None), default=None),
    )


def exceeds(differ: int, of: int, noise: int, noise_of: int) -> bool:
    """Whether `differ` differences in `of` answers are more than the noise explains.

    Without noise, one difference suffices. Otherwise the rate must exceed that of the noise by more
    than three standard deviations.
    """
    if noise == 0:
        return differ > 0
    rate = (differ + noise) / (of + noise_of)
    deviation = math.sqrt(rate * (1 - rate) * (1 / of + 1 / noise_of))
    return differ / of - noise / noise_of > _SIGNIFICANT * deviation


def _code_verdict(
    code: int,
    answers: int,
    differences: list[Difference],
    took: tuple[tuple[float, float] | None, tuple[float, float] | None],
) -> CodeVerdict:
    found = {one.verdict for one in differences if one.code == code}
    verdict = "differs" if "differs" in found else "noise" if found else "same"
    return CodeVerdict(
        code=code,
        name=request_name(code) or "unknown",
        answers=answers,
        verdict=verdict,
        baseline_ms=took[0],
        candidate_ms=took[1],
    )


def _feature_verdict(name: str, answers: int, found: list[Difference]) -> FeatureVerdict:
    differs = [one for one in found if one.verdict == "differs"]
    return FeatureVerdict(
        name=name,
        answers=answers,
        differ=max((one.differ for one in differs), default=0),
        verdict="differs" if differs else "noise" if found else "same",
        fields=sorted(f"{one.code} {one.field}" for one in differs),
        first_ns=min((one.first_ns for one in differs if one.first_ns is not None), default=None),
    )
