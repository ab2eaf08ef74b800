"""The search for a server's split, drawn over what its configurations reached (as Hercules, Figures 11 and 12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import Rectangle

from hebe.report.plot_style import INK, QUIET, SERIES, drawing, to_svg
from hebe.report.tables import format_number
from hebe.server_configuration import Lane, Placement

Configuration = Sequence[Lane]
_Key = tuple[object, ...]
_Kinds = set[tuple[int, Placement]]
"""Counts of lanes and placements of the last one."""

_BATCH_SIZE = "batch size"

_MOST_NUMBERED = 12
"""Cells side by side that are wide enough for a number each."""

_MOST_INCHES = 11.0
"""Of all panels side by side."""

_LEAST_INCHES = 6.6
"""What the title takes, and the words below."""

_FEWEST_COLUMNS = 2
"""A panel of fewer is as wide as one with so many."""

_BESIDE_CELLS_INCHES = 1.2
_CELL_HEIGHT_INCHES = 0.4
_FILLER_INCHES = 0.3
_LETTER_INCHES = 0.085
"""What stands beside a panel's cells, and what a letter of its title takes."""


@dataclass(slots=True)
class _Panel:
    """A matrix of cells: queries/s by (column, row), which are values of the two axes."""

    title: str
    across: str
    upwards: str
    cells: dict[tuple[int, int], float] = field(default_factory=dict)
    columns: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def inches(self, cell_inches: float) -> float:
        """How wide it is with cells so wide."""
        cells = cell_inches * max(len(self.columns), _FEWEST_COLUMNS)
        return _BESIDE_CELLS_INCHES + max(cells, _LETTER_INCHES * len(self.title) - 0.5)

    def place(self, cell: tuple[int, int]) -> tuple[float, float]:
        """Where the middle of a cell is."""
        return self.columns.index(cell[0]), self.rows.index(cell[1])


@dataclass(frozen=True, slots=True)
class _Surface:
    """The panels that are drawn, and the path over them."""

    by_allotment: _Kinds
    panels: Mapping[_Key, _Panel]
    axes: Mapping[_Key, Axes]
    numbered: bool

    def draw_move(self, start: Configuration | None, end: Configuration) -> None:
        """A line between two configurations of a panel; a hollow dot where none leads to the second one."""
        key = _key(end, self.by_allotment)
        if start is None or _key(start, self.by_allotment) != key:
            self.mark(end, "o", 6.5, "none")
            return
        xs, ys = zip(*(self._place(each) for each in (start, end)), strict=True)
        self.axes[key].plot(xs, ys, color=SERIES[1], linewidth=1.6, solid_capstyle="round", zorder=3)
        self.axes[key].plot(xs[1:], ys[1:], "o", color=SERIES[1], markersize=3.5, zorder=4)

    def mark(self, configuration: Configuration, marker: str, size: float, filling: str) -> None:
        """A mark on its cell."""
        x, y = self._place(configuration)
        axes = self.axes[_key(configuration, self.by_allotment)]
        axes.plot(
            [x], [y], marker, color=SERIES[1], markersize=size, markerfacecolor=filling, markeredgewidth=1.4, zorder=5
        )

    def _place(self, configuration: Configuration) -> tuple[float, float]:
        """The middle of its cell; below its number where it has one."""
        panel = self.panels[_key(configuration, self.by_allotment)]
        x, y = panel.place(_cell(configuration, self.by_allotment))
        return (x + 0.28, y - 0.2) if self.numbered else (x, y)


def search_surface(
    tried: Sequence[tuple[Configuration, float]],
    moves: Sequence[tuple[Configuration | None, Configuration]],
    best: Configuration | None,
    title: str = "Search",
) -> str:
    """One `<svg>`: a panel for each placement and count of cores per worker, its cells batch size by workers; for a
    pipeline, sparse workers by dense workers.

    `tried` is each configuration with the queries/s that it reached within limits, 0: none. `moves` are the steps of
    the search, from where it stood, None where it began, to where it went: a line with a hollow dot at its beginning.
    `best` is marked by a star. What was not tried stays empty; where several configurations share a cell, in a
    pipeline those of all batch sizes, it shows the best of them. Two lanes are drawn by the second one's settings.
    """
    by_allotment = _drawn_by_allotment([configuration for configuration, _ in tried])
    panels: dict[_Key, _Panel] = {}
    for configuration, qps in tried:
        panel = panels.setdefault(_key(configuration, by_allotment), _panel(configuration, by_allotment))
        cell = _cell(configuration, by_allotment)
        panel.cells[cell] = max(qps, panel.cells.get(cell, 0.0))
    on_the_way = {_key(end, by_allotment) for _, end in moves} | ({_key(best, by_allotment)} if best else set())
    shown = {key: panel for key, panel in panels.items() if key in on_the_way} or panels
    for panel in shown.values():
        _span(panel, list(shown.values()))
    numbered = max((len(panel.columns) for panel in shown.values()), default=0) <= _MOST_NUMBERED
    cell_inches = 0.56 if numbered else 0.32
    rows = _in_rows(list(shown.values()), cell_inches)
    width = max((sum(panel.inches(cell_inches) for panel in row) for row in rows), default=0.0)
    heights = [_CELL_HEIGHT_INCHES * max(len(panel.rows) for panel in row) + 1.1 for row in rows]
    with drawing(max(width, _LEAST_INCHES), 1.1 + sum(heights)) as (canvas, axes):
        axes.remove()
        most = max((qps for _, qps in tried), default=0.0)
        drawn = _draw_panels(canvas, rows, heights, cell_inches, most, numbered)
        surface = _Surface(by_allotment, shown, {key: drawn[id(panel)] for key, panel in shown.items()}, numbered)
        for start, end in moves:
            surface.draw_move(start, end)
        if best:
            surface.mark(best, "*", 13.0, SERIES[1])
        canvas.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
        canvas.supxlabel(_caption(len(panels) - len(shown)), x=0.01, ha="left", fontsize=9, color=QUIET)
        return to_svg(canvas, f"{title}: queries per second of {len(tried)} configurations, and the path between them")


def _caption(left_out: int) -> str:
    """What the marks mean."""
    lines = [
        "Darker: more queries/s within the SLA; –: none.",
        "Circle: where a climb began; line: what it took; star: the best.",
    ]
    if left_out:
        lines.append(f"Not drawn: {left_out} other counts of cores each, which were only looked into.")
    return "\n".join(lines)


def _drawn_by_allotment(configurations: Sequence[Configuration]) -> _Kinds:
    """The pipelines of which several allotments were tried; others differ by batch sizes, as whole models do."""
    allotments: dict[tuple[int, Placement], set[tuple[int, int]]] = {}
    for configuration in configurations:
        lane = configuration[-1]
        kind = len(configuration), lane.placement
        allotments.setdefault(kind, set()).add((lane.workers, lane.dense_workers))
    pipelines = {kind: pairs for kind, pairs in allotments.items() if kind[1] is not Placement.MODEL_ON_HOST}
    return {kind for kind, pairs in pipelines.items() if len(pairs) > 2}


def _key(configuration: Configuration, by_allotment: _Kinds) -> _Key:
    """Which panel a configuration belongs to."""
    lane = configuration[-1]
    kind = len(configuration), lane.placement
    return kind if kind in by_allotment else (*kind, lane.cores_per_worker)


def _cell(configuration: Configuration, by_allotment: _Kinds) -> tuple[int, int]:
    lane = configuration[-1]
    if (len(configuration), lane.placement) in by_allotment:
        return lane.workers, lane.dense_workers
    return lane.workers, lane.batch_size


def _panel(configuration: Configuration, by_allotment: _Kinds) -> _Panel:
    lane = configuration[-1]
    beside = "beside it " if len(configuration) > 1 else ""
    pipeline = lane.placement is not Placement.MODEL_ON_HOST
    workers = "sparse workers" if pipeline else "workers"
    if (len(configuration), lane.placement) in by_allotment:
        return _Panel(f"{beside}{lane.placement}", workers, "dense workers")
    each = "1 core each" if lane.cores_per_worker == 1 else f"{lane.cores_per_worker} cores each"
    return _Panel(f"{beside}{lane.placement}, {each}", workers, _BATCH_SIZE)


def _span(panel: _Panel, panels: Sequence[_Panel]) -> None:
    """Its axes: all counts of workers up to the most, and the rows of all panels that have the same."""
    columns = [column for column, _ in panel.cells]
    panel.columns = list(range(min(columns), max(columns) + 1))
    if panel.upwards == _BATCH_SIZE:
        panel.rows = sorted({row for other in panels if other.upwards == _BATCH_SIZE for _, row in other.cells})
    else:
        panel.rows = list(range(1, max(row for _, row in panel.cells) + 1))


def _in_rows(panels: Sequence[_Panel], cell_inches: float) -> list[list[_Panel]]:
    rows: list[list[_Panel]] = []
    for panel in panels:
        if rows and sum(other.inches(cell_inches) for other in [*rows[-1], panel]) <= _MOST_INCHES:
            rows[-1].append(panel)
        else:
            rows.append([panel])
    return rows


def _draw_panels(
    canvas: Drawing,
    rows: Sequence[Sequence[_Panel]],
    heights: Sequence[float],
    cell_inches: float,
    most: float,
    numbered: bool,
) -> dict[int, Axes]:
    """The axes of each panel, by the panel's `id`."""
    drawn: dict[int, Axes] = {}
    parts = canvas.subfigures(max(len(rows), 1), 1, squeeze=False, height_ratios=heights or None)[:, 0]
    for part, row in zip(parts, rows, strict=False):
        widths = [panel.inches(cell_inches) for panel in row]
        left = canvas.get_figwidth() - sum(widths)
        if left > _FILLER_INCHES:
            widths.append(left)
        every = part.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0]
        for axes, panel in zip(every, row, strict=False):
            _draw_cells(axes, panel, most, numbered)
            drawn[id(panel)] = axes
        if len(every) > len(row):  # so that cells are as wide as those of other rows
            every[-1].set_axis_off()
    return drawn


def _draw_cells(axes: Axes, panel: _Panel, most: float, numbered: bool) -> None:
    for cell, qps in panel.cells.items():
        across, up = panel.place(cell)
        # Never so strong that the number could not be read, by day or by night.
        alpha = 0.06 + 0.49 * (qps / most if most > 0 else 0.0)
        axes.add_patch(Rectangle((across - 0.48, up - 0.48), 0.96, 0.96, facecolor=SERIES[0], alpha=alpha, linewidth=0))
        if not qps:
            axes.text(across, up, "–", ha="center", va="center", color=QUIET, fontsize=8)
        elif numbered:
            text = format_number(float(f"{qps:.3g}"))
            axes.text(across - 0.42, up + 0.24, text, va="center", color=INK, fontsize=8, zorder=6)
    axes.set_xlim(-0.55, max(len(panel.columns), _FEWEST_COLUMNS) - 0.45)
    axes.set_ylim(-0.55, len(panel.rows) - 0.45)
    axes.set_xticks(range(len(panel.columns)), [str(column) for column in panel.columns])
    axes.set_yticks(range(len(panel.rows)), [format_number(row) for row in panel.rows])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_title(panel.title, fontsize=10, fontweight="normal", pad=6)
    axes.set_xlabel(panel.across, fontsize=9, loc="left")
    axes.set_ylabel(panel.upwards, fontsize=9, loc="bottom")
