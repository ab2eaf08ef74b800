"""Hercules, Fig. 14: latency-bounded throughput of its search over the baselines', by model, and what the gain is from.

The baselines are DeepRecSys on hosts (a worker on every core, the best batch size) and Baymax on accelerators
(co-location without fusion). On this machine with small tables, and on the analytic T2 and T7.

On this machine each model is searched (`measured_here`), and the winner is measured against the baseline in turns.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.progress import Progress

from hebe.machine.pinning import available_cores
from hebe.planning.server_split.search import (
    Configuration,
    Evaluate,
    Limits,
    Reached,
    SearchResult,
    baymax_search,
    deeprecsys_search,
    gradient_search,
)
from hebe.planning.server_split.space import ParallelismSpace, host_placements
from hebe.profiling.evaluator import QUICK
from hebe.profiling.steady_machine import SteadyMachine
from hebe.report.document import Block, Cell, Heading, Picture, Table
from hebe.report.figures import Figure, ratio_of_medians
from hebe.report.plots.style import INK, QUIET, SERIES, drawing, name_places, plain_ticks, to_svg
from hebe.report.progress_bar import bar_of
from hebe.report.tables import format_number
from hebe.server_configuration import Placement
from hebe.simulation.analytic.configuration_search import COARSE, SearchGrid, baseline_configuration, evaluation_on
from hebe.simulation.sweep import sweep
from hebe.spec import SlaTarget
from hebe_lab.baselines.gain_by_cause import GainByCause, gain_by_cause
from hebe_lab.studies.hercules.fleet import ABOUT_SERVERS, ENTRIES, server_of
from hebe_lab.studies.hercules.live import (
    FIRST_LOOK,
    alternated,
    live_server,
    make_model,
    measured_by_model,
    target_within_reach,
    winner_in_turns,
)
from hebe_lab.studies.hercules.servers import ABOUT_LANES, STATED_GAINS, lane_words
from hebe_lab.study import StudyOptions, StudyResult

DESCRIPTION = "Hercules, Fig. 14: throughput of its search over DeepRecSys and Baymax, six models, by cause."

MODELS_HERE = tuple(ENTRIES)

SERVER_TYPES = ("T2", "T7")

CAUSES: Mapping[str, str] = {
    "op_parallelism": "op-parallelism",
    "pipeline": "S-D pipeline",
    "accelerator": "accelerator",
    "fusion": "fusion",
}
"""Fields of `GainByCause`, in words."""


@dataclass(frozen=True, slots=True)
class Effort:
    """What is measured here: models, bytes of their tables, batch sizes, whether the accelerator's placements are in
    the space, and how often the winner and the baseline are measured anew."""

    models: tuple[str, ...]
    table_bytes: int
    batch_sizes: tuple[int, ...]
    accelerator: bool
    repeats: int


EFFORTS = (
    Effort(("RMC1",), 16 << 20, (256,), accelerator=False, repeats=1),
    Effort(tuple(ENTRIES), 512 << 20, (64, 256, 1024), accelerator=False, repeats=5),
    Effort(tuple(ENTRIES), 2 << 30, (16, 64, 256, 1024), accelerator=True, repeats=9),
)


@dataclass(frozen=True, slots=True)
class Modelled:
    """One model on one analytic server; `gain` is None where the baseline cannot keep the SLA target."""

    gain: GainByCause | None
    qps: float
    best: str
    evaluations: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One model on this machine.

    `gain` as the search was told; `baseline_qps` and `best_qps` were measured anew in turns, of what both ended at.
    `machine_words` says what disturbed this machine meanwhile.
    """

    sla: SlaTarget
    gain: GainByCause | None
    baseline: str
    best: str
    baseline_qps: Sequence[float]
    best_qps: Sequence[float]
    evaluations: int
    machine_words: str = ""

    @property
    def ratio(self) -> tuple[float, float, float] | None:
        """The best over the baseline, with its interval; None where the baseline keeps no target."""
        if min(self.baseline_qps, default=0.0) <= 0:
            return None
        if self.ends_at_baseline:
            return 1.0, 1.0, 1.0
        return ratio_of_medians(self.best_qps, self.baseline_qps)

    @property
    def ends_at_baseline(self) -> bool:
        """Nothing was found that is better than what the baseline's search ends at."""
        return self.best == self.baseline

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Measured:
        """The inverse of `dataclasses.asdict`."""
        gain = data["gain"]
        return cls(**{**data, "sla": SlaTarget(**data["sla"]), "gain": None if gain is None else GainByCause(**gain)})


def run(options: StudyOptions, progress: Progress) -> StudyResult:
    """Search the analytic servers, then this one."""
    effort = options.pick(*EFFORTS)
    cases = [(name, kind, options.quick) for kind in SERVER_TYPES for name in ENTRIES]
    answers = sweep(searched, cases, bar_of(progress, "searches of analytic servers"))
    modelled = {(name, kind): answer for (name, kind, _), answer in zip(cases, answers, strict=True)}
    here = measured_by_model(ENTRIES, effort, options, progress, measured_here, Measured.from_dict)
    return told(modelled, here, effort)


def searched(case: tuple[str, str, bool]) -> Modelled:
    """Hercules' search of one analytic server for one model, against the baseline; `quick` on a coarser grid."""
    name, kind, quick = case
    server = server_of(name, kind)
    sla, grid = server.model.sla, COARSE if quick else SearchGrid()
    placements = tuple(Placement) if server.server.accelerator is not None else host_placements(server.server.cores)
    space = ParallelismSpace(server.server.cores, grid.batch_sizes, placements)
    simple = baseline_configuration(server, sla, grid)
    reached = Reached(simple.qps, simple.power_watts)
    baseline = SearchResult(simple.lanes, reached, simple.lanes, {simple.lanes: reached}, (), 1)
    found = gradient_search(space, evaluation_on(server, sla))
    gain = gain_by_cause(baseline, found)
    best = found.closest if found.reached.qps >= simple.qps else simple.lanes
    return Modelled(gain, max(found.reached.qps, simple.qps), split_words(best), found.evaluations)


def split_words(configuration: Configuration) -> str:
    """``pipeline-on-host 1 x 1 d 256 k 1``."""
    return ", ".join(map(lane_words, configuration))


def told(modelled: Mapping[tuple[str, str], Modelled], here: Mapping[str, Measured], effort: Effort) -> StudyResult:
    """What the searches come to."""
    figures = [
        Figure(
            f"hercules.server.{kind.lower()}.{name.lower()}", answer.gain.total, "ratio",
            paper=STATED_GAINS.get((name, kind)),
            note=f"{answer.qps:,.0f} queries/s on the analytic {kind}, baseline {answer.gain.baseline_qps:,.0f}",
        )
        for (name, kind), answer in modelled.items()
        if answer.gain is not None
    ]  # fmt: skip
    for name, measured in here.items():
        if measured.ratio is not None:
            value, low, high = measured.ratio
            compared = "the baseline's own" if measured.ends_at_baseline else f"over {measured.baseline}"
            note = f"{measured.best}, {compared}, within {measured.sla.latency_ms:g} ms"
            figures.append(
                Figure(
                    f"hercules.server.live.{name.lower()}", value, "ratio", low, high, len(measured.best_qps), note=note
                )
            )
    content: list[Block] = [ABOUT_SERVERS]
    for kind in SERVER_TYPES:
        gains = {name: modelled[name, kind].gain for name in ENTRIES if (name, kind) in modelled}
        on = "DeepRecSys on 20 cores" if kind == "T2" else "Baymax on a V100, with DeepRecSys beside it"
        content += [
            Heading(f"Fig. 14: the analytic {kind}"),
            Picture(
                _picture(
                    gains, {name: STATED_GAINS.get((name, kind)) for name in gains}, f"Over the baseline on {kind}"
                ),
                f"The baseline is {on}. Parts multiply to the whole, and each says what one more freedom adds to those "
                "below it; the axis is logarithmic. Diamonds: the paper's.",
            ),
        ]
    content.append(_modelled_table(modelled))
    content += [
        Heading("The same on this machine"),
        f"Layers are those of production size, tables have at most {effort.table_bytes / 2**20:,.0f} MiB. Each search "
        "asked this machine; then its winner and the baseline's best were measured anew in turns, and their ratio is "
        "what counts: the best of many noisy measurements is too good. SLA targets are the models' own, or longer "
        f"where a single large query takes too long here. {_accelerator_words(effort)}",
        Picture(
            _picture_here(here),
            "Measured anew in turns, with the interval of the medians. Hollow: the search ended at the baseline's own "
            "configuration.",
        ),
        _live_table(here),
    ]
    return StudyResult(figures, content, lead=[f.name for f in figures if ".live." in f.name][:4])


def _accelerator_words(effort: Effort) -> str:
    if effort.accelerator:
        return (
            "The baseline is the better one of DeepRecSys and Baymax. Where PyTorch finds no GPU, the accelerator is a "
            "second device on this CPU with a memory budget of its own: that shows that its placements work, not what "
            "a GPU would gain."
        )
    return "The baseline is DeepRecSys. Placements on the host only; --full adds those of the accelerator."


def _modelled_table(modelled: Mapping[tuple[str, str], Modelled]) -> Table:
    rows: list[list[Cell]] = [
        [name, kind, *_gain_cells(answer.gain), STATED_GAINS.get((name, kind)), answer.qps, answer.best]
        for (name, kind), answer in modelled.items()
    ]
    return Table(
        "Gain by cause on analytic servers",
        ["model", "server", "gain", *CAUSES.values(), "the paper", "queries/s", "best"],
        rows,
        f"Empty where the baseline cannot keep the SLA target. {ABOUT_LANES}",
    )


def _live_table(here: Mapping[str, Measured]) -> Table:
    rows: list[list[Cell]] = []
    for name, measured in here.items():
        if measured.ratio is None:
            shown = "out of reach" if measured.gain is None else "not reached again"
        elif measured.ends_at_baseline:
            shown = "1, the baseline's"
        else:
            shown = "{:.2f} ({:.2f} to {:.2f})".format(*measured.ratio)
        causes = _gain_cells(measured.gain)[1:]
        rows.append([name, measured.sla.latency_ms, shown, *causes, measured.baseline, measured.best])
    return Table(
        "Gain by cause on this machine",
        ["model", "SLA target (ms)", "gain, in turns", *CAUSES.values(), "baseline", "Hercules"],
        rows,
        "Gain with the interval of its medians; causes as the search was told. Not reached again: what the search "
        "found the baseline to reach, it did not reach when measured anew, as on a machine that others use. "
        + " ".join(f"{name}: {each.machine_words}" for name, each in here.items()),
    )


def _gain_cells(gain: GainByCause | None) -> list[Cell]:
    if gain is None:
        return [None] * (1 + len(CAUSES))
    return [gain.total, *(getattr(gain, field) for field in CAUSES)]


def _picture(gains: Mapping[str, GainByCause | None], paper: Mapping[str, float | None], title: str) -> str:
    """Stacked bars on a logarithmic axis, on which a product's parts add up."""
    with drawing(height=4.2) as (canvas, axes):
        for place, gain in enumerate(gains.values()):
            below = 1.0
            for number, (field, words) in enumerate(CAUSES.items()):
                above = below if gain is None else below * getattr(gain, field)
                label = None if place else words
                axes.bar(place, above - below, 0.6, bottom=below, color=SERIES[number], label=label)
                below = above
            axes.annotate(
                "no baseline" if gain is None else f"{gain.total:.2f}", (place, below), xytext=(0, 4),
                textcoords="offset points", ha="center", fontsize=9,
            )  # fmt: skip
        stated = {place: paper.get(name) for place, name in enumerate(gains)}
        known = {place: value for place, value in stated.items() if value is not None}
        if known:
            axes.plot(list(known), list(known.values()), "D", color=INK, label="the paper")
        axes.set_yscale("log")
        highest = max([2.0, *known.values(), *(gain.total for gain in gains.values() if gain is not None)])
        axes.set_ylim(1.0, 1.25 * highest)
        axes.set_yticks([tick for tick in (1, 1.5, 2, 3, 5, 10, 20, 50) if tick <= 1.25 * highest])
        axes.minorticks_off()
        plain_ticks(axes.yaxis, format_number)
        name_places(axes, list(gains))
        axes.set_ylabel("throughput over the baseline's")
        axes.set_title(title)
        canvas.legend(loc="outside lower center", ncols=5)
        return to_svg(canvas, f"{title}: {', '.join(gains)}")


def _picture_here(here: Mapping[str, Measured]) -> str:
    """The gain in turns, with its interval."""
    title = "Over the baseline on this machine"
    with drawing(height=4.2) as (canvas, axes):
        for place, measured in enumerate(here.values()):
            if measured.ratio is None:
                axes.annotate("no baseline", (place, 1.0), xytext=(0, 6), textcoords="offset points", ha="center")
                continue
            value, low, high = measured.ratio
            filled = "none" if measured.ends_at_baseline else SERIES[0]
            axes.errorbar(place, value, [[value - low], [high - value]], fmt="o", color=SERIES[0], capsize=4,
                          markerfacecolor=filled)  # fmt: skip
            axes.annotate(f"{value:.2f}", (place, value), xytext=(10, -4), textcoords="offset points", fontsize=9)
        axes.axhline(1.0, color=QUIET, linewidth=1.0, zorder=0)
        axes.set_xlim(-0.6, len(here) - 0.4)
        name_places(axes, list(here))
        axes.set_ylabel("throughput over the baseline's")
        axes.set_title(title)
        return to_svg(canvas, f"{title}: {', '.join(here)}")


FEW_CORES = 4
"""With more, the search keeps to Algorithm 1's steps: each evaluation takes a measurement."""


def space_of(cores: int, effort: Effort) -> ParallelismSpace:
    """What is searched on so many cores."""
    placements = host_placements(cores)
    if effort.accelerator and cores > 1:
        placements += (Placement.SPARSE_ON_HOST, Placement.HOT_SPARSE_ON_ACCELERATOR)
    return ParallelismSpace(cores, effort.batch_sizes, placements, co_located=(1, 2), fused_items=(0, 4096))


def measured_here(
    entry: str, effort: Effort, quick: bool, machine: SteadyMachine, directory: Path, progress: Progress
) -> Measured:
    """Catalog model `entry`: both searches, then what they ended at, measured anew in turns."""
    machine.forget()
    repository = make_model(entry, effort.table_bytes, directory, progress)
    space = space_of(len(available_cores()), effort)
    task = progress.add_task(f"measuring {entry} (measurements)", total=None)
    try:
        sla = target_within_reach(repository, entry, machine=machine)
        each = FIRST_LOOK if quick else QUICK
        advance = partial(progress.advance, task)
        with live_server(repository, entry, sla, each, advance=advance, machine=machine) as server:
            # once each: what both searches end at is measured again, in turns
            measured = both_searches(space, server, Limits(noise=server.noise, runs=1), sla, effort.repeats)
            return replace(measured, machine_words=server.machine_words)
    finally:
        progress.remove_task(task)
        shutil.rmtree(repository)


def both_searches(
    space: ParallelismSpace, evaluate: Evaluate, limits: Limits, sla: SlaTarget, repeats: int
) -> Measured:
    """DeepRecSys' search, or with an accelerator the better one of that and Baymax', then Hercules'. What they end at
    is held against each other in turns, and the winner and the baseline are measured `repeats` times more.
    """
    baseline = deeprecsys_search(space, evaluate, limits)
    asked = baseline.evaluations
    if space.on_accelerator:
        baymax = baymax_search(space, evaluate, limits)
        asked += baymax.evaluations
        baseline = max(baseline, baymax, key=lambda search: search.reached.qps)
    found = gradient_search(space, evaluate, limits, refines=space.cores <= FEW_CORES)
    simple = baseline.closest
    best = winner_in_turns(evaluate, simple, found.closest)
    in_turns = alternated(evaluate, (simple, best), repeats)
    return Measured(
        sla, gain_by_cause(baseline, found), split_words(simple), split_words(best), in_turns[simple], in_turns[best],
        asked + found.evaluations,
    )  # fmt: skip
