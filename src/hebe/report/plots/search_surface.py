"""The search for a server's split, drawn over what its configurations reached (as Hercules, Figures 11 and 12)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.patches import Rectangle

from hebe.report.plots.style import INK, QUIET, SERIES, drawing, to_svg
from hebe.report.tables import format_number
from hebe.server_configuration import Lane, Placement

Configuration = Sequence[Lane]
_Kind = tuple[int, Placement]
"""How many lanes there are, and the placement of the last one."""

_BATCH_SIZE, _DENSE_WORKERS, _FUSED_ITEMS = "batch size", "dense workers", "fused items"

MOST_PANELS = 9
"""That are drawn: those with most configurations."""

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


@dataclass(frozen=True, slots=True)
class _View:
    """One panel's look at a configuration: `split`, its placement and cores per worker in words, by which the panel's
    title begins, that title, its axes, and the cell that the configuration has."""

    split: str
    title: str
    across: str
    upwards: str
    cell: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Kinds:
    """Which kinds are drawn by what, since several values of it were tried: others by workers and batch sizes, as whole
    models are. What is drawn `by_fusion`, co-located workers and fused items, is drawn by its workers on the host too
    where it is in `by_host`."""

    by_allotment: Collection[_Kind]
    by_fusion: Collection[_Kind]
    by_host: Collection[_Kind]

    @classmethod
    def of(cls, configurations: Sequence[Configuration]) -> _Kinds:
        """Of all that were tried."""
        lanes: dict[_Kind, list[Lane]] = {}
        for configuration in configurations:
            lanes.setdefault((len(configuration), configuration[-1].placement), []).append(configuration[-1])
        return cls(
            {kind for kind, own in lanes.items() if kind[1] is not Placement.MODEL_ON_HOST and _allotments(own) > 2},
            {kind for kind, own in lanes.items() if len({lane.fused_items for lane in own}) > 1},
            {kind for kind, own in lanes.items() if len({(lane.workers, lane.batch_size) for lane in own}) > 1},
        )

    def views(self, configuration: Configuration) -> list[_View]:
        """The panels that a configuration is in."""
        lane = configuration[-1]
        kind = len(configuration), lane.placement
        each = "1 core each" if lane.cores_per_worker == 1 else f"{lane.cores_per_worker} cores each"
        split = f"{'beside it ' if len(configuration) > 1 else ''}{lane.placement}, {each}"
        workers = "workers" if lane.placement is Placement.MODEL_ON_HOST else "sparse workers"
        by_batch = _View(split, split, workers, _BATCH_SIZE, (lane.workers, lane.batch_size))
        if kind in self.by_fusion:
            fused = lane.dense_workers, lane.fused_items
            on_device = _View(split, f"{split}: the accelerator", "co-located workers", _FUSED_ITEMS, fused)
            return [replace(by_batch, title=f"{split}: the host"), on_device] if kind in self.by_host else [on_device]
        if kind in self.by_allotment:
            return [_View(split, split, workers, _DENSE_WORKERS, (lane.workers, lane.dense_workers))]
        return [by_batch]


def _allotments(lanes: Sequence[Lane]) -> int:
    return len({(lane.workers, lane.dense_workers) for lane in lanes})


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
    """The panels that are drawn, by their titles, and the path over them."""

    kinds: _Kinds
    panels: Mapping[str, _Panel]
    axes: Mapping[str, Axes]
    numbered: bool

    def draw_move(self, start: Configuration | None, end: Configuration) -> None:
        """A line between two configurations in each panel of both; a hollow dot where none leads to the second one."""
        began = {} if start is None else {view.title: view for view in self.kinds.views(start)}
        for view in self.kinds.views(end):
            if view.title not in self.axes:
                continue
            if view.title not in began:
                self._mark(view, "o", 6.5, "none")
            elif view != began[view.title]:
                xs, ys = zip(self._place(began[view.title]), self._place(view), strict=True)
                axes = self.axes[view.title]
                axes.plot(xs, ys, color=SERIES[1], linewidth=1.6, solid_capstyle="round", zorder=3)
                axes.plot(xs[1:], ys[1:], "o", color=SERIES[1], markersize=3.5, zorder=4)

    def mark_best(self, configuration: Configuration) -> None:
        """A star on its cells."""
        for view in self.kinds.views(configuration):
            self._mark(view, "*", 13.0, SERIES[1])

    def _mark(self, view: _View, marker: str, size: float, filling: str) -> None:
        x, y = self._place(view)
        self.axes[view.title].plot(
            [x], [y], marker, color=SERIES[1], markersize=size, markerfacecolor=filling, markeredgewidth=1.4, zorder=5
        )

    def _place(self, view: _View) -> tuple[float, float]:
        """The middle of its cell; below its number where it has one."""
        x, y = self.panels[view.title].place(view.cell)
        return (x + 0.28, y - 0.2) if self.numbered else (x, y)


def search_surface(
    tried: Sequence[tuple[Configuration, float]],
    moves: Sequence[tuple[Configuration | None, Configuration]],
    best: Configuration | None,
    title: str = "Search",
) -> str:
    """One `<svg>`: a panel for each placement and count of cores per worker, its cells batch size by workers; for a
    pipeline, dense workers by sparse workers. Where several bounds of fusion were tried on an accelerator, two panels:
    batch size by workers on the host, and fused items by co-located workers.

    `tried` is each configuration with the queries/s that it reached within limits, 0: none. `moves` are the steps of
    the search, from where it stood, None where it began, to where it went: a line with a hollow dot at its beginning;
    panels that none leads to are left out, and without any all are drawn, `MOST_PANELS` at most. What is left out is
    told.
    `best` is marked by a star. What was not tried stays empty; where several configurations share a cell, in a
    pipeline those of all batch sizes, it shows the best of them. Two lanes are drawn by the second one's settings.
    """
    kinds = _Kinds.of([configuration for configuration, _ in tried])
    panels: dict[str, dict[str, _Panel]] = {}  # of each split, by title
    counts: Counter[str] = Counter()
    for configuration, qps in tried:
        views = kinds.views(configuration)
        counts[views[0].split] += 1
        for view in views:
            of_split = panels.setdefault(view.split, {})
            panel = of_split.setdefault(view.title, _Panel(view.title, view.across, view.upwards))
            panel.cells[view.cell] = max(qps, panel.cells.get(view.cell, 0.0))
    led_to = {kinds.views(end)[0].split for _, end in moves} or set(panels)
    of_best = kinds.views(best)[0].split if best else ""
    led_to |= {of_best} & set(panels)
    chosen = _chosen({split: len(panels[split]) for split in led_to}, counts, of_best)
    shown = {title: panel for split, own in panels.items() if split in chosen for title, panel in own.items()}
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
        surface = _Surface(kinds, shown, drawn, numbered)
        for start, end in moves:
            surface.draw_move(start, end)
        if best:
            surface.mark_best(best)
        canvas.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
        aside = sum(counts[split] for split in panels if split not in led_to)
        caption = _caption(bool(moves), aside, sum(counts[split] for split in led_to - chosen))
        canvas.supxlabel(caption, x=0.01, ha="left", fontsize=9, color=QUIET)
        path = ", and the path between them" if moves else ""
        return to_svg(canvas, f"{title}: queries per second of {len(tried)} configurations{path}")


def _chosen(panels: Mapping[str, int], counts: Mapping[str, int], of_best: str) -> set[str]:
    """The splits that are drawn, of which there are so many `panels` each: that of the best one, then those of most
    configurations, as far as there is room."""
    chosen: set[str] = set()
    left = MOST_PANELS
    for split in sorted(panels, key=lambda split: (split != of_best, -counts[split], split)):
        left -= panels[split]
        if left < 0:
            break
        chosen.add(split)
    return chosen


def _caption(has_path: bool, aside: int, no_room: int) -> str:
    """What the marks mean; and how many configurations are not drawn, `aside` of the path or since there is no room."""
    path = "Circle: where a climb began, or came from another panel; line: what it took; star: the best."
    lines = ["Darker: more queries/s within the SLA; –: none.", path if has_path else "Star: the best."]
    if aside:
        lines.append(f"Not drawn: {_counted(aside)} with placements and cores per worker that no step led to.")
    if no_room:
        lines.append(f"Not drawn for want of room: {_counted(no_room)} with other placements and cores per worker.")
    return "\n".join(lines)


def _counted(configurations: int) -> str:
    return f"{configurations:,} configuration{'' if configurations == 1 else 's'}"


def _span(panel: _Panel, panels: Sequence[_Panel]) -> None:
    """Its axes: all counts of workers up to the most, and the rows of all panels that have the same."""
    columns = [column for column, _ in panel.cells]
    panel.columns = list(range(min(columns), max(columns) + 1))
    if panel.upwards == _DENSE_WORKERS:
        panel.rows = list(range(1, max(row for _, row in panel.cells) + 1))
    else:
        panel.rows = sorted({row for other in panels if other.upwards == panel.upwards for _, row in other.cells})


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
) -> dict[str, Axes]:
    """The axes of each panel, by its title."""
    drawn: dict[str, Axes] = {}
    parts = canvas.subfigures(max(len(rows), 1), 1, squeeze=False, height_ratios=heights or None)[:, 0]
    for part, row in zip(parts, rows, strict=False):
        widths = [panel.inches(cell_inches) for panel in row]
        left = canvas.get_figwidth() - sum(widths)
        if left > _FILLER_INCHES:
            widths.append(left)
        every = part.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0]
        for axes, panel in zip(every, row, strict=False):
            _draw_cells(axes, panel, most, numbered)
            drawn[panel.title] = axes
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
    alone = {0: "a query"} if panel.upwards == _FUSED_ITEMS else {}
    axes.set_yticks(range(len(panel.rows)), [alone.get(row, format_number(row)) for row in panel.rows])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_title(panel.title, fontsize=10, fontweight="normal", pad=6)
    axes.set_xlabel(panel.across, fontsize=9, loc="left")
    axes.set_ylabel(panel.upwards, fontsize=9, loc="bottom")
