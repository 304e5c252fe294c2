"""Writes the generated parts of the documents: deliberate differences, requests by client, and scenarios."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from compat.report import difference_lines
from compat.runner import Outcome
from compat.toolchain.folder import PROJECT
from gateway.wire.codes import request_name

DIFFERENCES_FILE: Final = PROJECT / "docs" / "compatibility.md"
TABLES_FILE: Final = PROJECT / "docs" / "compatibility-tables.md"
CLIENTS: Final = (
    *("java-5.5.0", "java-4.9.8", "java-4.5.2", "java-4.2.0", "cpp", "go"),
    *("mqadmin", "dashboard", "raw"),
)

_BEGIN: Final = "<!-- written by tidegate compat --write-docs -->"
_END: Final = "<!-- end -->"


def write(outcomes: Sequence[Outcome]) -> None:
    """Replace the tables between the marks of both files."""
    _replace(DIFFERENCES_FILE, "\n".join(difference_lines()) + "\n")
    _replace(TABLES_FILE, tables(outcomes))


def _replace(file: Path, generated: str) -> None:
    text = file.read_text()
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    file.write_text(f"{before}{_BEGIN}\n\n{generated}\n{_END}{after}")


def tables(outcomes: Sequence[Outcome]) -> str:
    """Return the requests by client, and the scenarios, as Markdown."""
    lines = ["## Requests by client", ""]
    lines.append("| request | " + " | ".join(CLIENTS) + " |")
    lines.append("|---" * (1 + len(CLIENTS)) + "|")
    cells = _cells(outcomes)
    for request in sorted({request for _, request in cells}):
        row = [cells.get((client, request), "") for client in CLIENTS]
        lines.append(f"| {request} {request_name(request) or ''} | " + " | ".join(row) + " |")
    lines += ["", "## Scenarios", "", "| scenario | clients | promise |", "|---|---|---|"]
    for scenario in dict.fromkeys(outcome.run.scenario for outcome in outcomes):
        clients = ", ".join(scenario.clients)
        lines.append(f"| {scenario.name} | {clients} | {scenario.promise} |")
    return "\n".join(lines) + "\n"


def _cells(outcomes: Sequence[Outcome]) -> Mapping[tuple[str, int], str]:
    supported: dict[tuple[str, int], bool] = {}
    numbers: dict[tuple[str, int], set[int | None]] = defaultdict(set)
    for outcome in outcomes:
        for asked, is_supported in outcome.requests.items():
            supported[asked] = supported.get(asked, True) and is_supported
            for finding, number in outcome.findings:
                if finding.request == asked[1]:
                    numbers[asked].add(number)
    return {asked: _cell(is_supported, numbers[asked]) for asked, is_supported in supported.items()}


def _cell(is_supported: bool, numbers: set[int | None]) -> str:
    if not is_supported:
        return "not supported"
    if None in numbers:
        return "DIFFERENT"
    listed = ", ".join(str(number) for number in sorted(each for each in numbers if each))
    return f"different ({listed})" if listed else "same"
