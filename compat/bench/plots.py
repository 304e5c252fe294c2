"""Plots a run as SVG files that are small enough to be kept with the documentation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from compat.bench.figures import CPU, FIRING_FIGURES, HELD_FIGURES, RATE, RESOURCES, Figure
from compat.bench.results import Results
from compat.bench.scenarios import Scenario

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

_SYSTEMS: Final = {"tidegate": ("Tidegate", "#0b7285"), "rocketmq": ("RocketMQ", "#e8590c")}
_COMPARED: Final = ("sends", "life", "levels", "normal", "workers", "waiting")
_PERCENTILES: Final = FIRING_FIGURES[:4]
_READ_P99: Final = tuple(figure for figure in HELD_FIGURES if figure.key.endswith(".p99"))
_BAR: Final = 0.4
_ROW_INCHES: Final = 0.42


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw the plots for which a run has figures.

    :returns: those of the files `rates.svg`, `firing.svg` and `held.svg` in `folder` that were drawn.
    """
    import matplotlib as mpl

    # Text stays text, and the same figures result in the same bytes.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "tidegate", "font.size": 9})
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for name, picture in (
        ("rates", _rates(results)),
        ("firing", _firing(results)),
        ("held", _held(results)),
    ):
        if picture is not None:
            file = folder / f"{name}.svg"
            picture.savefig(file, metadata={"Date": None})
            found.append(file)
    return found


def _rates(results: Results) -> Picture | None:
    """Plot rates and CPU per message: a row for each scenario, with a bar for each system."""
    chosen = [s for s in results.scenarios if s.kind in _COMPARED]
    if not chosen:
        return None
    picture = _new(10, 1.4 + _ROW_INCHES * len(chosen))
    left, right = picture.subplots(1, 2, sharey=True)
    _bars(left, results, chosen, RATE)
    _bars(right, results, chosen, CPU)
    left.set_yticks(range(len(chosen)), [scenario.name for scenario in chosen])
    left.invert_yaxis()
    left.legend(loc="lower right")
    return picture


def _bars(axes: Axes, results: Results, chosen: Sequence[Scenario], figure: Figure) -> None:
    for number, (system, (title, colour)) in enumerate(_SYSTEMS.items()):
        values = [figure.over(results.of(scenario.name, system)) for scenario in chosen]
        if not any(values):
            continue
        places = [row + (number - 0.5) * _BAR for row in range(len(chosen))]
        bars = axes.barh(places, [value or 0 for value in values], _BAR, color=colour, label=title)
        labels = ["" if value is None else f"{value:,.0f}" for value in values]
        axes.bar_label(bars, labels, padding=2, fontsize=7)
    axes.set_xlabel(figure.label)
    axes.margins(x=0.15)


def _firing(results: Results) -> Picture | None:
    """Plot how late messages arrive, by percentile, with a line for each scenario and system."""
    chosen = [s for s in results.scenarios if s.kind == "life"]
    if not chosen:
        return None
    picture = _new(7, 4)
    axes = picture.subplots()
    styles = ("-", "--", ":", "-.", (0, (5, 1)), (0, (1, 1)))
    for scenario, style in zip(chosen, styles * len(chosen), strict=False):
        for system, (title, colour) in _SYSTEMS.items():
            outcomes = results.of(scenario.name, system)
            values = [figure.over(outcomes) for figure in _PERCENTILES]
            # A logarithmic axis cannot show zero.
            heights = [max(value, 0.5) for value in values if value is not None]
            if not heights:
                continue
            label = f"{title}, {scenario.name}"
            axes.plot(range(len(heights)), heights, "o", ls=style, color=colour, ms=3, label=label)
    axes.set_yscale("log")
    names = [figure.key.removeprefix("firing.").upper() for figure in _PERCENTILES]
    axes.set_xticks(range(len(names)), names)
    axes.set_ylabel("firing error, ms")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(fontsize=7)
    return picture


def _held(results: Results) -> Picture | None:
    """Plot the costs of a send and of a look-up over the number of pending messages."""
    chosen = [s for s in results.scenarios if s.kind == "held"]
    if len(chosen) < 2:
        return None
    chosen.sort(key=lambda scenario: scenario.held)
    picture = _new(10, 3.2)
    one, two, three = picture.subplots(1, 3)
    colour = _SYSTEMS["tidegate"][1]

    def line(axes: Axes, figure: Figure, **style: Any) -> None:
        points = [
            (scenario.held, value)
            for scenario in chosen
            if (value := figure.over(results.of(scenario.name, "tidegate"))) is not None
        ]
        if points:
            axes.plot([x for x, _ in points], [y for _, y in points], "o-", **style)

    for axes, figure in ((one, CPU), (two, RESOURCES[0])):
        line(axes, figure, color=colour)
        axes.set_ylabel(figure.label)
    for figure in _READ_P99:
        line(three, figure, label=figure.label)
    if three.lines:
        three.legend(fontsize=7)
    for axes in (one, two, three):
        axes.set_xscale("symlog", linthresh=10_000)
        axes.set_xlabel("messages held")
        axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
    return picture


def _new(width: float, height: float) -> Picture:
    """Make an empty picture, in inches, without a window system."""
    from matplotlib.figure import Figure as Picture

    return Picture(figsize=(width, height), layout="constrained")
