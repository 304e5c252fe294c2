"""`report`: turns the findings of the other jobs into the parts of one report; `pages` renders them."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from spark_jobs.comparing import Comparison
from spark_jobs.firing import Errors, Verdict
from spark_jobs.pages import Plot, Section, Table
from spark_jobs.profiling import Profile
from spark_jobs.replay import Outcome

Finding = tuple[str, msgspec.Struct]
"""The findings of one job, with a name that distinguishes them from others of the same kind."""


def sections(findings: Sequence[Finding]) -> list[Section]:
    """Return the report's sections, first those with a verdict."""
    makers: list[tuple[type[Any], Callable[[Any], Section]]] = [
        (Comparison, _comparison),
        (Verdict, _firing),
        (Outcome, _replay),
        (Profile, _profile),
    ]
    made = []
    for kind, make in makers:
        of_kind = [(name, found) for name, found in findings if isinstance(found, kind)]
        for name, found in of_kind:
            section = make(found)
            if len(of_kind) > 1:
                section = section._replace(title=f"{section.title}: {name}")
            made.append(section)
    return made


def _comparison(found: Comparison) -> Section:
    differ = [code for code in found.codes if code.verdict == "differs"]
    said = f"{found.compared:,} answers compared: "
    if differ:
        said += f"the answers to {len(differ)} of {len(found.codes)} request codes differ"
        used = [one.name for one in found.features if one.verdict == "differs"]
        said += f", in {', '.join(used)}"
        if since := [one.first_ns for one in found.features if one.first_ns is not None]:
            said += f", since {_moment(min(since))} UTC"
    else:
        said += "the same" + (", but for what differs between two runs anyway" * found.has_noise)
    if found.only_in_baseline or found.only_in_candidate:
        said += f"; {found.only_in_baseline} only in the baseline"
        said += f", {found.only_in_candidate} only in the candidate"
    if found.oneway:
        said += f"; {found.oneway:,} oneway requests, which have no answer, are left out"
    if found.late_ms:
        late = (f"{late_ms:,.1f} ms ({name})" for name, late_ms in found.late_ms.items())
        said += f"; requests left late at P99 by {', '.join(late)}"
    columns = (
        *("field", "verdict", "expected", "found", "kind", "differ", "of", "noise"),
        *("since", "until", "sample"),
    )
    rows = [
        (
            f"{one.code} {one.field}",
            *(one.verdict, _short(one.expected), _short(one.found)),
            *(one.kind, one.differ, one.answers, one.noise if found.has_noise else None),
            *(_moment(one.first_ns), _moment(one.last_ns)),
            f"{Path(one.file).name} at {one.position}",
        )
        for one in found.differences
    ]
    codes = [
        (
            *(code.name, str(code.code), code.verdict, code.answers),
            *(code.baseline_ms or (None, None)),
            *(code.candidate_ms or (None, None)),
        )
        for code in found.codes
    ]
    features = [
        (
            one.name,
            one.verdict,
            one.answers,
            one.differ,
            _moment(one.first_ns),
            ", ".join(one.fields),
        )
        for one in found.features
    ]
    counted = sum(one.verdict == "differs" for one in found.differences)
    parts: list[Table | Plot] = [
        Table(
            "By feature",
            ("feature", "verdict", "answers", "differ", "since", "fields that differ"),
            features,
        ),
        Table(
            "By request code, and the ms until the answer, which are not judged",
            (
                *("request", "code", "verdict", "answers"),
                *("baseline P50", "baseline P99", "candidate P50", "candidate P99"),
            ),
            codes,
        ),
        Table("Differences", columns, rows[:counted]),
    ]
    if rows[counted:]:
        parts.append(Table("What differs anyway, or is ignored", columns, rows[counted:], True))
    return Section("Answers", said, found.is_same, parts, found.notes)


def _firing(found: Verdict) -> Section:
    others = (
        (found.recalled, "recalled"),
        (found.fired_though_recalled, "fired though recalled"),
        (found.replaced, "replaced"),
        (found.fired_though_replaced, "fired though replaced"),
        (found.changed_in_bulk, "changed in bulk"),
        (found.not_due, "not due"),
        (found.not_watched, "had nobody to see them"),
        (found.unanswered, "did not come and had an answer missing"),
        (found.without_id, "had no id"),
    )
    said = (
        f"{found.messages:,} delayed messages: {found.fired:,} fired, {found.lost:,} lost, "
        f"{found.doubled:,} doubled, {found.early:,} early"
    )
    said += "".join(f", {number:,} {what}" for number, what in others if number)
    if found.rescheduled:
        said += f"; {found.rescheduled:,} were judged by a new time"
    if found.refused:
        said += f"; {found.refused:,} more were refused when they were sent"
    if found.recorded_twice:
        said += (
            f"; {found.recorded_twice:,} sends are in two recordings of the same traffic, so it cannot be told which "
            "messages were doubled"
        )
    for one in found.groups:
        if one.by == "all" and one.p99 is not None and one.max is not None:
            said += f"; consumers had them {one.p99:,.0f} ms late at P99, {one.max:,.0f} ms at most"
        if one.by == "all" and one.stored_p99 is not None and one.stored_max is not None:
            said += f"; the broker stored them {one.stored_p99:,.0f} ms late at P99, {one.stored_max:,.0f} ms at most"
    if found.never_left:
        said += f"; {found.never_left:,} requests never left, as the target was not there: their messages are left out"
    columns = (
        *("by", "name", "messages", "fired", "lost", "doubled", "early"),
        *("P50", "P90", "P99", "P999", "max", "stored P50", "stored P99", "stored max"),
    )
    rows = [
        (
            *(one.by, one.name, one.messages, one.fired, one.lost, one.doubled, one.early),
            *(one.p50, one.p90, one.p99, one.p999, one.max),
            *(one.stored_p50, one.stored_p99, one.stored_max),
        )
        for one in sorted(found.groups, key=_prominence)
    ]
    bars = [
        (one.name, one.p99) for one in found.groups if one.by == "delay" and one.p99 is not None
    ]
    shares = [
        (name, value)
        for one in found.groups
        if one.by == "all"
        for name, value in (
            *(("P50", one.p50), ("P90", one.p90), ("P99", one.p99), ("P999", one.p999)),
            ("longest", one.max),
        )
        if value is not None
    ]
    samples = [
        (
            *(one["outcome"], one["topic"], one["message_id"]),
            *(_moment_ms(one["due_ms"]), _moment_ms(one["fired_ms"])),
        )
        for one in found.samples
    ]
    parts: list[Table | Plot] = [
        Plot("Lateness, as consumers saw it", "ms", shares),
        Plot("Lateness by delay, P99", "ms", bars),
        Table("Lateness in ms, as consumers saw it and as the broker stored it", columns, rows),
        Table("Samples", ("outcome", "topic", "message", "due", "fired"), samples),
    ]
    return Section("Firing of delayed messages", said, found.is_good, parts, found.notes)


def _prominence(group: Errors) -> tuple[bool, int]:
    """Return a key by which groups are sorted: topics last, as there may be more than are shown, the worst first."""
    return group.by == "topic", -(group.lost + group.doubled + group.early)


def _replay(found: Outcome) -> Section:
    total = sum(found.outcomes.values())
    became = ", ".join(f"{number:,} {name}" for name, number in sorted(found.outcomes.items()))
    said = f"{total:,} requests ({became}), {found.rate:,.0f} per second"
    if found.pacing_p99_ms is not None:
        said += f"; they left {found.pacing_p99_ms:.1f} ms late at P99"
    if found.never_left:
        said += f"; {found.never_left:,} never left, as the target was not there"
    return Section(
        "Replay",
        said,
        False if found.never_left else None,
        [
            Table("What became of them", ("outcome", "requests"), sorted(found.outcomes.items())),
            Table(
                "Fields that kept recorded values, as no answer of the run told others",
                ("field", "requests"),
                sorted(found.unmapped.items()),
            ),
        ],
        found.notes,
    )


def _profile(found: Profile) -> Section:
    said = (
        f"{found.requests:,} requests on {found.connections:,} connections in {found.seconds:,.1f} s "
        f"({found.request_rate:,.1f} per s, at most {found.peak_requests:,}); {found.sent:,} messages "
        f"sent, {found.delayed:,} of them delayed, at most {found.peak_due:,} due in one second and "
        f"{found.pending_at_most:,} waiting; at that rate {found.stored_bytes_a_day / 1e9:,.3f} GB of bodies a day"
    )
    codes = [
        (
            *(one.name, str(one.code), "client" if one.from_client else "server", one.requests),
            *(f"{one.share:.1%}", one.unanswered, one.refused, one.bytes, one.p50_ms, one.p99_ms),
        )
        for one in found.codes
    ]
    topics = [tuple(msgspec.structs.astuple(one)) for one in found.topics]
    delays = [(one.asked, one.delay, one.messages) for one in found.delays]
    columns = (
        *("request", "code", "from", "requests", "share", "unanswered", "answer not 0", "bytes"),
        *("P50 ms", "P99 ms"),
    )
    by_range: dict[str, float] = {}
    for one in found.delays:
        by_range[one.delay] = by_range.get(one.delay, 0) + one.messages
    return Section(
        "Traffic",
        said,
        None,
        [
            Plot("Requests", "", [(one.name, one.requests) for one in found.codes[:15]]),
            Table("By request code", columns, codes),
            Plot("Delays", "messages", list(by_range.items())),
            Table("Delays by how they were asked for", ("asked as", "delay", "messages"), delays),
            Table(
                "Topics",
                ("topic", "sent", "delivered", "delayed", "bytes", "largest", "groups"),
                topics,
            ),
        ],
        [f"{found.more_topics:,} topics with fewer messages are not shown"]
        if found.more_topics
        else (),
    )


def _moment(moment_ns: int | None) -> str:
    return "" if moment_ns is None else _moment_ms(moment_ns // 1_000_000)


def _moment_ms(moment_ms: int | None) -> str:
    if moment_ms is None:
        return ""
    try:
        moment = datetime.datetime.fromtimestamp(moment_ms / 1000, datetime.UTC)
    except (ValueError, OverflowError):  # past the year 9999: a sender may request any number
        return str(moment_ms)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment_ms % 1000:03}"


def _short(text: str | None) -> str:
    """Return a value as a cell. An absent value and an empty one look different."""
    if text is None:
        return "(absent)"
    return (text if len(text) <= 120 else f"{text[:117]}...") or "(empty)"
