"""The report of a comparison: on the terminal, as Markdown and as HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from compat.comparison import Finding
from compat.differences import DIFFERENCES
from compat.runner import Outcome
from compat.scenarios import Scenario
from gateway.wire.codes import request_name

_UNFOLDED: Final = 220

MOST_SHOWN: Final = 300

_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem; border-bottom: 1px solid #ccc }
td { overflow-wrap: anywhere } .failed { color: #b00020 } .passed { color: #00701a }
code { font-size: 13px }
"""


def listing(console: Console, scenarios: Sequence[Scenario]) -> None:
    """Print every scenario with its clients and its promise."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in ("Scenario", "Clients", "Promise"):
        table.add_column(column, overflow="fold")
    for one in scenarios:
        table.add_row(one.name, " ".join(one.clients), one.promise)
    console.print(table)


def show(
    console: Console,
    outcomes: Sequence[Outcome],
    titles: tuple[str, str],
    notes: Sequence[str] = (),
) -> None:
    """Print the differences that are not deliberate, each with both values, and then the summary.

    `notes` has lines about what the outcomes do not show, such as the scenarios that could not run here.
    """
    if not console.is_terminal:
        console = Console(width=_UNFOLDED, highlight=False, file=console.file)
    failed = [outcome for outcome in outcomes if not outcome.passed]
    if failed:
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for column in ("Scenario", "Where", *titles):
            table.add_column(column, overflow="fold")
        for outcome in failed:
            for finding in undeclared(outcome):
                table.add_row(
                    *(
                        Text(shown(each))
                        for each in (outcome.run.name, where(finding), finding.left, finding.right)
                    )
                )
        console.print(table)
    style = "bold red" if failed else "bold green"
    console.print(Text(summary(outcomes), style=style))
    for line in notes:
        console.print(Text(line, style="bold yellow"))


def unseen(outcomes: Sequence[Outcome]) -> list[str]:
    """Return a line for each deliberate difference that a run of everything did not show."""
    seen = {found.difference for outcome in outcomes for found in outcome.findings}
    return [
        f"not seen: deliberate difference {number}: {one.what}"
        for number, one in enumerate(DIFFERENCES, 1)
        if number not in seen
    ]


def summary(outcomes: Sequence[Outcome]) -> str:
    """Summarise the outcomes in one line."""
    failed = sum(not outcome.passed for outcome in outcomes)
    scenarios = {outcome.run.scenario.name for outcome in outcomes}
    numbers = {found.difference for outcome in outcomes for found in outcome.findings}
    tried_again = sum(bool(outcome.before) for outcome in outcomes)
    return (
        f"{len(scenarios)} scenarios, {len(outcomes)} runs: {len(outcomes) - failed} alike but for "
        f"{len(numbers - {None})} deliberate differences, {failed} with others"
        + f"; {tried_again} ended early and were tried again"
        * bool(tried_again)
    )


def undeclared(outcome: Outcome) -> Iterator[Finding]:
    """Return the findings that are no deliberate difference."""
    return (judged.finding for judged in outcome.findings if judged.difference is None)


def where(finding: Finding) -> str:
    """Return a finding's place with the name of its request."""
    return (
        finding.place
        if finding.request is None
        else f"{request_name(finding.request) or ''} {finding.place}"
    )


def write(
    folder: Path,
    outcomes: Sequence[Outcome],
    titles: tuple[str, str],
    notes: Sequence[str] = (),
) -> None:
    """Write `report.md` and `report.html`."""
    folder.joinpath("report.md").write_text(_markdown(outcomes, titles, notes))
    folder.joinpath("report.html").write_text(_html(outcomes, titles, notes))


def _markdown(outcomes: Sequence[Outcome], titles: tuple[str, str], notes: Sequence[str]) -> str:
    lines = [f"# {titles[0]} and {titles[1]}", "", summary(outcomes), ""]
    lines += [f"- {line}" for line in notes] + [""] * bool(notes)
    lines += ["| scenario | promise | result |", "|---|---|---|"]
    for outcome in outcomes:
        cells = (outcome.run.name, outcome.run.scenario.promise, _result(outcome))
        lines.append("| " + " | ".join(_cell(each) for each in cells) + " |")
    failed = [outcome for outcome in outcomes if not outcome.passed]
    if failed:
        lines += ["", "## Differences that are in no table", ""]
        lines += [f"| scenario | where | {titles[0]} | {titles[1]} |", "|---|---|---|---|"]
        for outcome in failed:
            for found in undeclared(outcome):
                cells4 = (outcome.run.name, where(found), found.left, found.right)
                lines.append("| " + " | ".join(_cell(each) for each in cells4) + " |")
    lines += ["", "## Deliberate differences", "", *difference_lines()]
    return "\n".join(lines) + "\n"


def difference_lines() -> list[str]:
    """Return the table of deliberate differences as lines of Markdown."""
    lines = ["| | what | why |", "|---|---|---|"]
    for number, one in enumerate(DIFFERENCES, 1):
        lines.append(f"| {number} | {_cell(one.what)} | {_cell(one.reason)} |")
    return lines


def _cell(text: str) -> str:
    return shown(text).replace("|", "\\|")


def shown(text: str) -> str:
    """Return a value as the report shows it: escaped where it is not printable, and cut if it is long."""
    text = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
    return text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "…"


def _result(outcome: Outcome) -> str:
    numbers = sorted({each.difference for each in outcome.findings if each.difference is not None})
    listed = f"deliberately different ({', '.join(map(str, numbers))})" if numbers else "same"
    result = listed if outcome.passed else "DIFFERENT"
    return f"{result}; second try, after {' | '.join(outcome.before)}" if outcome.before else result


def _html(outcomes: Sequence[Outcome], titles: tuple[str, str], notes: Sequence[str]) -> str:
    def row(cells: Sequence[str], tag: str = "td", kind: str = "") -> str:
        inner = "".join(f"<{tag}>{escape(shown(cell))}</{tag}>" for cell in cells)
        return f'<tr class="{kind}">{inner}</tr>'

    rows = [
        row(
            (outcome.run.name, outcome.run.scenario.promise, _result(outcome)),
            kind="passed" if outcome.passed else "failed",
        )
        for outcome in outcomes
    ]
    found = [
        row((outcome.run.name, where(finding), finding.left, finding.right))
        for outcome in outcomes
        for finding in undeclared(outcome)
    ]
    deliberate = [
        row((str(number), one.what, one.reason)) for number, one in enumerate(DIFFERENCES, 1)
    ]
    title = f"{titles[0]} and {titles[1]}"
    parts = [
        f'<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>',
        f"<style>{_STYLE}</style><h1>{escape(title)}</h1><p>{escape(summary(outcomes))}</p>",
        *(f"<p>{escape(line)}</p>" for line in notes),
    ]
    for heading, columns, body in (
        ("Differences that are in no table", ("scenario", "where", *titles), found),
        ("Scenarios", ("scenario", "promise", "result"), rows),
        ("Deliberate differences", ("", "what", "why"), deliberate),
    ):
        if body:
            parts.append(f"<h2>{heading}</h2><table>{row(columns, 'th')}{''.join(body)}</table>")
    return "".join(parts) + "</html>\n"
