"""A study for the tests: the mean wait of an M/M/1 queue, simulated beside its formula."""

import numpy as np
from matplotlib.ticker import NullLocator

from hebe.report.document import Heading, Picture, Table
from hebe.report.figures import Figure
from hebe.report.plots.latency import grouped_bars
from hebe.report.plots.style import drawing, to_svg
from hebe_lab.study import StudyResult

DESCRIPTION = "The mean wait of an M/M/1 queue: simulated beside its formula."
DATA = "note.txt"


def run(options, progress):
    loads = [0.3, 0.5, 0.7]
    queries = options.pick(2_000, 20_000, 200_000)
    task = progress.add_task("loads", total=len(loads))
    rows, bars = [], {}
    for load in loads:
        rng = np.random.default_rng(1)
        steps = rng.exponential(1.0, queries) - rng.exponential(1.0 / load, queries)
        walk = np.cumsum(steps)
        simulated = float(np.mean(walk - np.minimum.accumulate(np.minimum(walk, 0.0))))
        formula = load / (1.0 - load)
        rows.append([f"{load:.0%}", formula, simulated, simulated / formula, queries, None])
        bars[f"{load:.0%}"] = {"formula": formula, "simulated": simulated}
        progress.advance(task)
    with drawing() as (canvas, axes):
        mesh = axes.pcolormesh(np.outer(loads, loads), cmap="viridis", rasterized=True)
        canvas.colorbar(mesh)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_title("Loads by loads")
        heat_map = to_svg(canvas, "Loads by loads")
    name = "queueing.ratio.high_load"
    note = "one seed" if options.data is None else options.data_file("note.txt").read_text()
    return StudyResult(
        figures=[
            Figure(name, rows[-1][3], "ratio", target=">= 0.5", paper=1.0, note=note),
            Figure("queueing.wait.low_load", rows[0][2], "services", low=0.1, high=1.0, paper="about 0.43"),
        ],
        content=[
            "Queries come as a Poisson process & wait for <one> server.",
            Heading("Waiting by load"),
            Picture(grouped_bars(bars, "mean wait (services)", "Mean wait"), "The bars should be of equal height."),
            Table(
                "Mean wait",
                ["load", "the paper", "ours", "ratio", "queries", "error"],
                rows,
                "In service times; the start is empty, so ours is a little low.",
            ),
            Heading("A heat map"),
            Picture(heat_map),
        ],
        lead=[name],
    )
