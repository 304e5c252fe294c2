"""Renders a report's parts as one self-contained HTML page, and as Markdown."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final, NamedTuple

_MOST_ROWS: Final = 200
_LONG: Final = 36
"""A longer text in a cell may wrap."""
_MARKDOWN_BAR: Final = 30
"""The length of the longest bar in characters."""

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2430; --paper: #fff; --faint: #5b6675; --line: #dfe4eb;
        --head: #f3f5f8; --bar: #3d6fb4; --good: #0a6b3d; --good-back: #e5f4ec; --bad: #a8221c;
        --bad-back: #fbe9e7 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #dde3ec; --paper: #14181f; --faint: #97a3b4; --line: #2b3340; --head: #1d232d;
          --bar: #6c9ce0; --good: #5cc98f; --good-back: #163225; --bad: #f08a84;
          --bad-back: #3a1c1a } }
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1120px; margin: 0 auto; padding: 1.5rem 1rem 4rem;
       color: var(--ink); background: var(--paper) }
h1 { font-size: 1.6rem; margin: 0 0 .2rem } h2 { margin: 2.6rem 0 .6rem; font-size: 1.25rem }
h3 { margin: 1.6rem 0 .4rem; font-size: 1rem } .made { color: var(--faint); margin: 0 }
.verdict { margin: .4rem 0; padding: .55rem .8rem; border-left: 4px solid var(--line); background: var(--head);
           overflow-wrap: anywhere }
.verdict.good { border-color: var(--good); background: var(--good-back) }
.verdict.bad { border-color: var(--bad); background: var(--bad-back) }
.summary .verdict strong { display: block }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 4px }
table { border-collapse: collapse; font-size: 13px; width: 100% }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top }
tbody tr:last-child td { border-bottom: 0 }
th { background: var(--head); white-space: nowrap }
td { white-space: nowrap } td.long { white-space: normal; min-width: 15rem; overflow-wrap: anywhere }
summary { cursor: pointer; font-weight: 600; margin: 1.6rem 0 .4rem }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
.good-word { color: var(--good) } .bad-word { color: var(--bad); font-weight: 600 }
.plot { display: grid; grid-template-columns: minmax(8rem, max-content) 1fr max-content; gap: .25rem .7rem;
        font-size: 13px; max-width: 860px; align-items: center; margin: 0 }
.plot svg { width: 100%; height: 14px; display: block } .plot rect { fill: var(--bar) }
.plot .value { font-variant-numeric: tabular-nums; text-align: right }
@media (max-width: 600px) {
  .plot { grid-template-columns: 1fr max-content } .plot .name { grid-column: 1 / 3; margin-top: .3rem } }
@media print { .scroll { overflow: visible } }
"""

_GOOD_WORDS: Final = {"same"}
_BAD_WORDS: Final = frozenset(
    ("differs", "lost", "doubled", "early", "fired though recalled", "fired though replaced")
)


class Table(NamedTuple):
    """Rows under a title. Cells are texts and numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    is_folded: bool = False
    """Whether the rows are hidden until the reader opens the table."""


class Plot(NamedTuple):
    """Bars, one for each name."""

    title: str
    unit: str
    bars: Sequence[tuple[str, float]]


class Section(NamedTuple):
    """A part of the report. `is_good` is None if there is nothing to judge."""

    title: str
    verdict: str
    is_good: bool | None
    parts: Sequence[Table | Plot]
    notes: Sequence[str] = ()
    """What limits the verdict."""


def html(title: str, made_at: datetime.datetime, sections: Sequence[Section]) -> str:
    """Return the report as an HTML page without scripts or external resources."""
    body = [f'<h1>{escape(title)}</h1><p class="made">{_made(made_at)}</p>']
    judged = [section for section in sections if section.is_good is not None]
    if judged:
        said = "".join(_verdict(one, f"<strong>{escape(one.title)}</strong>") for one in judged)
        body.append(f'<div class="summary">{said}</div>')
    for section in sections:
        body.append(f"<h2>{escape(section.title)}</h2>")
        if section.is_good is None:
            body.append(_verdict(section))
        body += [_bars(part) if isinstance(part, Plot) else _table(part) for part in section.parts]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _made(at: datetime.datetime) -> str:
    return f"Made {at:%Y-%m-%d %H:%M}. All times are UTC."


def _verdict(section: Section, head: str = "") -> str:
    mark = {True: " good", False: " bad", None: ""}[section.is_good]
    said = "<br>".join(map(escape, (section.verdict, *section.notes)))
    return f'<p class="verdict{mark}">{head}{said}</p>'


def _table(table: Table) -> str:
    if not table.rows:
        return f"<h3>{escape(table.title)}</h3><p>None.</p>"
    shown = table.rows[:_MOST_ROWS]
    numeric = {
        place
        for place in range(len(table.columns))
        if all(isinstance(row[place], int | float | None) for row in shown)
    }
    head = "".join(
        f"<th{_class(place, numeric)}>{escape(name)}</th>"
        for place, name in enumerate(table.columns)
    )
    rows = [
        "".join(
            f"<td{_class(place, numeric, text)}>{_word(text)}</td>"
            for place, text in enumerate(map(_shown, row))
        )
        for row in shown
    ]
    more = _more(table.rows)
    inner = (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody></table></div>"
        f"{f'<p>{more}</p>' if more else ''}"
    )
    if table.is_folded:
        said = f"{escape(table.title)} ({len(table.rows):,})"
        return f"<details><summary>{said}</summary>{inner}</details>"
    return f"<h3>{escape(table.title)}</h3>{inner}"


def _class(place: int, numeric: set[int], text: str = "") -> str:
    if place in numeric:
        return ' class="number"'
    return ' class="long"' if len(text) > _LONG else ""


def _word(text: str) -> str:
    if text in _BAD_WORDS:
        return f'<span class="bad-word">{escape(text)}</span>'
    if text in _GOOD_WORDS:
        return f'<span class="good-word">{escape(text)}</span>'
    return escape(text)


def _bars(plot: Plot) -> str:
    if not plot.bars:
        return ""
    most = _most(plot)
    rows = [
        f'<span class="name">{escape(name)}</span>'
        f'<svg viewBox="0 0 100 14" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{max(0.3, value / most * 100):.2f}" height="14"/></svg>'
        f'<span class="value">{_shown(value)} {escape(plot.unit)}</span>'
        for name, value in plot.bars
    ]
    return f'<h3>{escape(plot.title)}</h3><div class="plot">{"".join(rows)}</div>'


def _most(plot: Plot) -> float:
    """Return the value of the longest bar. Negative values, such as of early messages, have no bar."""
    return max(0, *(value for _, value in plot.bars)) or 1


def markdown(title: str, made_at: datetime.datetime, sections: Sequence[Section]) -> str:
    """Return the report as Markdown, with bars made of characters."""
    # Markdown would treat `<...>` as a tag and not show it.
    lines = [f"# {escape(title, quote=False)}", "", _made(made_at)]
    for section in sections:
        mark = {True: "OK: ", False: "NOT OK: ", None: ""}[section.is_good]
        lines += ["", f"## {escape(section.title, quote=False)}"]
        for said in (mark + section.verdict, *section.notes):
            lines += ["", escape(said, quote=False)]
        for part in section.parts:
            if isinstance(part, Plot) and not part.bars:
                continue
            lines += ["", f"### {part.title}", ""]
            if isinstance(part, Plot):
                lines += _text_bars(part)
            else:
                lines += _markdown_table(part) if part.rows else ["None."]
    return "\n".join(lines) + "\n"


def _text_bars(plot: Plot) -> Iterable[str]:
    most = _most(plot)
    width = max(len(name) for name, _ in plot.bars)
    yield "```"
    for name, value in plot.bars:
        bar = "#" * max(1, round(max(value, 0) / most * _MARKDOWN_BAR))
        yield f"{name:<{width}}  {bar:<{_MARKDOWN_BAR}}  {_shown(value)} {plot.unit}".rstrip()
    yield "```"


def _markdown_table(table: Table) -> Iterable[str]:
    yield _markdown_row(table.columns)
    yield _markdown_row(["---"] * len(table.columns))
    for row in table.rows[:_MOST_ROWS]:
        yield _markdown_row([_shown(cell) for cell in row])
    if more := _more(table.rows):
        yield from ("", more)


def _markdown_row(cells: Sequence[str]) -> str:
    lines = (" ".join(escape(cell, quote=False).splitlines()) for cell in cells)
    safe = (line.replace("|", "\\|") for line in lines)
    return f"| {' | '.join(safe)} |"


def _more(rows: Sequence[Any]) -> str:
    return f"{len(rows) - _MOST_ROWS:,} more rows" if len(rows) > _MOST_ROWS else ""


def _shown(cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:,.1f}"
    return f"{cell:,}" if isinstance(cell, int) and abs(cell) < 10**12 else str(cell)
