"""`report`: what the other jobs found, as one HTML page that needs nothing else, and as Markdown."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, Final, NamedTuple

import msgspec

from spark_jobs.comparing import Comparison
from spark_jobs.firing import Verdict
from spark_jobs.profiling import Profile
from spark_jobs.replay import Outcome

_BAR_WIDTH: Final = 420
_ROW_HEIGHT: Final = 22
_MOST_ROWS: Final = 200

_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1080px; margin: 2rem auto; padding: 0 1rem;
       color: #1c2430; background: #fff }
h1 { font-size: 1.6rem } h2 { margin-top: 2.2rem; border-bottom: 1px solid #d5dbe3 }
table { border-collapse: collapse; margin: .8rem 0; font-size: 13px; display: block; overflow-x: auto }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #e6eaf0; text-align: left;
         vertical-align: top; overflow-wrap: anywhere }
th { background: #f4f6f9 } td.number { text-align: right; font-variant-numeric: tabular-nums }
.good { color: #0a6b3d } .bad { color: #a8221c } .verdict { font-size: 1.15rem; font-weight: 600 }
svg { width: 100%; max-width: 860px }
svg text { font: 12px system-ui, sans-serif; fill: #1c2430 } svg rect { fill: #3d6fb4 }
@media (prefers-color-scheme: dark) {
  body { background: #14181f; color: #dde3ec } th { background: #1e242e }
  th, td { border-color: #2b3340 } svg text { fill: #dde3ec } svg rect { fill: #6c9ce0 }
  .good { color: #5cc98f } .bad { color: #f08a84 } }
"""


class Table(NamedTuple):
    """Rows under a title. Cells are texts and numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


class Plot(NamedTuple):
    """Bars, one for each name."""

    title: str
    unit: str
    bars: Sequence[tuple[str, float]]


class Section(NamedTuple):
    """A part of the report. `is_good` is None where there is nothing to judge."""

    title: str
    verdict: str
    is_good: bool | None
    parts: Sequence[Table | Plot]


class Findings(NamedTuple):
    """What there is to report; None is left out."""

    profile: Profile | None = None
    replay: Outcome | None = None
    comparison: Comparison | None = None
    firing: Verdict | None = None


def findings_of(found: msgspec.Struct) -> Findings:
    """What one job found, alone."""
    return Findings(
        found if isinstance(found, Profile) else None,
        found if isinstance(found, Outcome) else None,
        found if isinstance(found, Comparison) else None,
        found if isinstance(found, Verdict) else None,
    )


def sections(findings: Findings) -> list[Section]:
    """The report's parts, the judged ones first."""
    makers: list[tuple[Any, Callable[[Any], Section]]] = [
        (findings.comparison, _comparison),
        (findings.firing, _firing),
        (findings.replay, _replay),
        (findings.profile, _profile),
    ]
    return [make(found) for found, make in makers if found is not None]


def _comparison(found: Comparison) -> Section:
    differ = [code for code in found.codes if code.verdict == "differs"]
    said = f"{found.compared:,} answers compared: "
    if differ:
        said += f"the answers to {len(differ)} of {len(found.codes)} request codes differ"
    else:
        said += "the same" + (", but for what differs between two runs anyway" * found.has_noise)
    if found.only_in_baseline or found.only_in_candidate:
        said += f"; {found.only_in_baseline} only in the baseline"
        said += f", {found.only_in_candidate} only in the candidate"
    columns = ("field", "verdict", "kind", "differ", "noise", "of", "expected", "found", "sample")
    rows = [
        (
            f"{one.code} {one.field}",
            *(one.verdict, one.kind, one.differ, one.noise, one.answers),
            *(_short(one.expected), _short(one.found), f"{one.file} at {one.position}"),
        )
        for one in found.differences
    ]
    codes = [(code.code, code.name, code.answers, code.verdict) for code in found.codes]
    parts = [
        Table("By request code", ("code", "request", "answers", "verdict"), codes),
        Table("Differences", columns, rows),
    ]
    return Section("Answers", said, found.is_same, parts)


def _firing(found: Verdict) -> Section:
    said = (
        f"{found.messages:,} delayed messages: {found.fired:,} fired, {found.lost:,} lost, "
        f"{found.doubled:,} doubled, {found.early:,} early, {found.recalled:,} recalled, "
        f"{found.fired_though_recalled:,} fired though recalled; {found.not_due:,} were not due, "
        f"{found.not_watched:,} had nobody to see them, {found.without_id:,} had no id"
    )
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
        for one in found.groups
    ]
    bars = [
        (one.name, one.p99) for one in found.groups if one.by == "delay" and one.p99 is not None
    ]
    samples = [
        (one["outcome"], one["topic"], one["message_id"], one["due_ms"], one["fired_ms"])
        for one in found.samples
    ]
    parts: list[Table | Plot] = [
        Plot("Lateness by delay, P99", "ms", bars),
        Table("Lateness in ms, as consumers saw it and as the broker stored it", columns, rows),
        Table("Samples", ("outcome", "topic", "message", "due, ms", "fired, ms"), samples),
    ]
    return Section("Firing of delayed messages", said, found.is_good, parts)


def _replay(found: Outcome) -> Section:
    total = sum(found.outcomes.values())
    said = f"{total:,} requests, {found.rate:,.0f} per second"
    if found.pacing_p99_ms is not None:
        said += f"; they left {found.pacing_p99_ms:.1f} ms late at P99"
    return Section(
        "Replay",
        said,
        None,
        [
            Table("What became of them", ("outcome", "requests"), sorted(found.outcomes.items())),
            Table(
                "Fields that kept recorded values, as no answer of the run told others",
                ("field", "requests"),
                sorted(found.unmapped.items()),
            ),
        ],
    )


def _profile(found: Profile) -> Section:
    said = (
        f"{found.requests:,} requests on {found.connections:,} connections in {found.seconds:,.1f} s "
        f"({found.request_rate:,.1f} per s, at most {found.peak_requests:,}); {found.sent:,} messages "
        f"sent, {found.delayed:,} of them delayed, at most {found.peak_due:,} due in one second and "
        f"{found.pending_at_most:,} waiting; {found.stored_bytes_a_day / 1e9:,.3f} GB of bodies a day"
    )
    codes = [
        (
            *(one.code, one.name, "client" if one.from_client else "server", one.requests),
            *(f"{one.share:.1%}", one.unanswered, one.refused, one.bytes, one.p50_ms, one.p99_ms),
        )
        for one in found.codes
    ]
    topics = [tuple(msgspec.structs.astuple(one)) for one in found.topics]
    delays = [(one.asked, one.delay, one.messages) for one in found.delays]
    columns = (
        *("code", "request", "from", "requests", "share", "unanswered", "refused", "bytes"),
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
            Plot("Requests by code", "", [(one.name, one.requests) for one in found.codes[:15]]),
            Table("Requests", columns, codes),
            Plot("Delays", "messages", list(by_range.items())),
            Table("Delays by how they were asked for", ("asked as", "delay", "messages"), delays),
            Table(
                "Topics",
                ("topic", "sent", "delivered", "delayed", "bytes", "largest", "groups"),
                topics,
            ),
        ],
    )


def html(title: str, made_at: datetime.datetime, parts: Sequence[Section]) -> str:
    """The report as a page without scripts, and without anything from elsewhere."""
    body = [f"<h1>{escape(title)}</h1><p>Made {made_at:%Y-%m-%d %H:%M} UTC</p>"]
    for section in parts:
        mark = {True: "good", False: "bad", None: ""}[section.is_good]
        body.append(f"<h2>{escape(section.title)}</h2>")
        body.append(f'<p class="verdict {mark}">{escape(section.verdict)}</p>')
        body += [_svg(part) if isinstance(part, Plot) else _table(part) for part in section.parts]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _table(table: Table) -> str:
    if not table.rows:
        return f"<h3>{escape(table.title)}</h3><p>None.</p>"
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    rows = []
    for row in table.rows[:_MOST_ROWS]:
        cells = "".join(
            f'<td class="number">{escape(_shown(cell))}</td>'
            if isinstance(cell, int | float)
            else f"<td>{escape(_shown(cell))}</td>"
            for cell in row
        )
        rows.append(f"<tr>{cells}</tr>")
    more = _more(table.rows)
    return (
        f"<h3>{escape(table.title)}</h3><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>{f'<p>{more}</p>' if more else ''}"
    )


def _svg(plot: Plot) -> str:
    if not plot.bars:
        return ""
    most = max(value for _, value in plot.bars) or 1
    height = len(plot.bars) * _ROW_HEIGHT
    bars = []
    for row, (name, value) in enumerate(plot.bars):
        y = row * _ROW_HEIGHT
        width = max(1.0, value / most * _BAR_WIDTH)
        bars.append(
            f'<text x="300" y="{y + 15}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="308" y="{y + 4}" width="{width:.1f}" height="14"/>'
            f'<text x="{314 + width:.1f}" y="{y + 15}">{_shown(value)} {escape(plot.unit)}</text>'
        )
    return (
        f'<h3>{escape(plot.title)}</h3><svg role="img" aria-label="{escape(plot.title)}" '
        f'viewBox="0 0 860 {height}">{"".join(bars)}</svg>'
    )


def markdown(title: str, made_at: datetime.datetime, parts: Sequence[Section]) -> str:
    """The same as Markdown; plots become tables."""
    lines = [f"# {title}", "", f"Made {made_at:%Y-%m-%d %H:%M} UTC"]
    for section in parts:
        mark = {True: "OK: ", False: "NOT OK: ", None: ""}[section.is_good]
        lines += ["", f"## {section.title}", "", mark + section.verdict]
        for part in section.parts:
            if isinstance(part, Plot):
                continue
            lines += ["", f"### {part.title}", ""]
            lines += _markdown_table(part) if part.rows else ["None."]
    return "\n".join(lines) + "\n"


def _markdown_table(table: Table) -> Iterable[str]:
    yield _markdown_row(table.columns)
    yield _markdown_row(["---"] * len(table.columns))
    for row in table.rows[:_MOST_ROWS]:
        yield _markdown_row([_shown(cell) for cell in row])
    if more := _more(table.rows):
        yield from ("", more)


def _markdown_row(cells: Sequence[str]) -> str:
    safe = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(safe)} |"


def _more(rows: Sequence[Any]) -> str:
    return f"{len(rows) - _MOST_ROWS:,} more rows" if len(rows) > _MOST_ROWS else ""


def _shown(cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:,.1f}"
    return f"{cell:,}" if isinstance(cell, int) and abs(cell) < 10**12 else str(cell)


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= 120 else f"{text[:117]}..."
