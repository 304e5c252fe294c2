"""Plots a run as small SVG files for the documentation."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from spark_jobs.bench.figures import Results

_WIDTH, _ROW, _LEFT, _RIGHT, _TOP = 720, 30, 250, 130, 40
_STYLE: Final = (
    "text{font:14px system-ui,sans-serif;fill:#555}.t{font-weight:600}"
    "rect{fill:#3572b0}line{stroke:#c0392b;stroke-dasharray:4 3}"
)


def write(results: Results, folder: Path) -> list[Path]:
    """Write the plots and return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    speeds = [
        (f"{one.job}, {one.master}, {one.number:,}", one.per_cpu_s)
        for one in results.measurements
        if one.job in ("ingest", "compare")
    ]
    memory = [
        (f"{one.job}, {one.master}, {one.number:,}", one.peak_bytes / 2**20)
        for one in results.measurements
        if one.job == "ingest"
    ]
    written = []
    for name, title, bars in (
        ("speed.svg", "Frames per second of a core", speeds),
        ("memory.svg", "Most memory of driver, Java and workers, MiB", memory),
    ):
        if bars:
            file = folder / name
            file.write_text(_plot(title, bars), encoding="utf-8")
            written.append(file)
    return written


def _plot(title: str, bars: Sequence[tuple[str, float]]) -> str:
    most = max(value for _, value in bars)
    height = _TOP + _ROW * len(bars) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<text class="t" x="10" y="22">{escape(title)}</text>',
    ]
    for at, (name, value) in enumerate(bars):
        y = _TOP + at * _ROW
        width = (_WIDTH - _LEFT - _RIGHT) * value / most
        parts.append(f'<text x="10" y="{y + 17}">{escape(name)}</text>')
        parts.append(f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="22"/>')
        parts.append(f'<text x="{_LEFT + width + 8:.1f}" y="{y + 17}">{value:,.0f}</text>')
    return "\n".join([*parts, "</svg>", ""])
