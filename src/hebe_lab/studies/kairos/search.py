"""Kairos, Fig. 10 and 11: how many pools must be measured until the best is found.

Fig. 10 runs the same search, Kairos+ (Algorithm 1), under every distribution policy; Fig. 11 looks for the best pool
under Kairos' matching with other searches, which all skip sub-pools of what they measured, as in the paper. A pool is
measured by simulation, once in a run of the study: searches of one model and policy share what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from matplotlib.axes import Axes
from rich.progress import Progress

from hebe.planning.pool.fluid_pool import fluid_bounds
from hebe.planning.pool.pool import kairos_bounds, pools_within
from hebe.planning.pool.pool_problem import Ints
from hebe.report.document import Cell, Heading, Picture, Table
from hebe.report.figures import Figure
from hebe.report.plots.style import INK, SERIES, drawing, name_places, plain_ticks, to_svg
from hebe.report.progress_bar import bar_of
from hebe.report.tables import format_number
from hebe.simulation.sweep import sweep
from hebe_lab.baselines.pool_search import (
    Evaluate,
    SearchResult,
    annealing_search,
    bayesian_search,
    genetic_search,
    kairos_plus,
    random_search,
)
from hebe_lab.studies.kairos.contenders import CLOCKWORK, DRS, KAIROS, KAIROS_PLUS, RIBBON, SPLITTING, Counts, pool_text
from hebe_lab.studies.kairos.evaluation import pool_evaluator, pool_judge
from hebe_lab.studies.kairos.setting import GRID, MODELS, TYPES, Setting, about, settings
from hebe_lab.study import StudyOptions, StudyResult

DESCRIPTION = "Kairos, Fig. 10 and 11: pools measured until the best is found, by policy and by search."
DATA = "kairos/"

_IN_GRID = math.prod(GRID)
SCHEMES = (KAIROS, SPLITTING, CLOCKWORK, DRS, RIBBON)
Search = Callable[[Ints, Evaluate, np.random.Generator], SearchResult]
SEARCHES: Mapping[str, Search] = {
    "RAND": random_search,
    "GENE": genetic_search,
    "annealing": annealing_search,
    "Bayesian": bayesian_search,
}
_COLOURS = dict(zip((KAIROS_PLUS, *SEARCHES), SERIES, strict=False))
PAPER_10: Mapping[str, str] = {KAIROS: "< 1%", RIBBON: "5% to 30%", DRS: "5% to 30%"}
PAPER_11 = "significantly more than Kairos+"
_FOUND = 0.99
"""A search has found the best pool where it measured so much of its throughput: rates are found to one percent."""


@dataclass(frozen=True, slots=True)
class _Effort:
    """Models; queries of the trace that a pool is measured on (short ones flatter: few queries queue up); seeds of
    each search by chance, and of the random one, whose pools cost little to judge; schemes of Fig. 10; searches of
    Fig. 11."""

    models: tuple[str, ...]
    queries: int
    seeds: int
    random_seeds: int
    schemes: tuple[str, ...]
    searches: tuple[str, ...]


EFFORTS = (
    _Effort(("rm2",), 1_200, 1, 10, (KAIROS, SPLITTING, RIBBON), ("RAND", "Bayesian")),
    _Effort(("rm2", "wnd", "dien"), 2_000, 1, 20, SCHEMES, tuple(SEARCHES)),
    _Effort(MODELS, 5_000, 5, 50, SCHEMES, tuple(SEARCHES)),
)


@dataclass(frozen=True, slots=True)
class _Case:
    """One model under one scheme: Kairos+, and under Kairos' matching the other searches as well."""

    setting: Setting
    scheme: str
    queries: int
    seeds: int
    random_seeds: int
    searches: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Answer:
    """`pools` within the budget; Kairos+' evaluations and best pool, with its bound, whether it ruled out all others,
    and its path; by search the evaluations until the best was found, of each seed; and the path of the first seed."""

    pools: int
    evaluations: int
    best: Counts
    best_qps: float
    bound_qps: float
    complete: bool
    path: tuple[float, ...]
    until: Mapping[str, tuple[int, ...]]
    paths: Mapping[str, tuple[float, ...]]


class _FoundIt(Exception):
    """The search has measured a pool that is as good as the best."""


def run(options: StudyOptions, progress: Progress) -> StudyResult:
    """Every model under every scheme."""
    effort = options.pick(*EFFORTS)
    given = settings(options, effort.models)
    keys = [(scheme, model) for scheme in effort.schemes for model in given]
    cases = [
        _Case(given[model], scheme, effort.queries, effort.seeds, effort.random_seeds, effort.searches)
        for scheme, model in keys
    ]
    answers = dict(zip(keys, sweep(_search, cases, bar_of(progress, "searches")), strict=True))
    models = list(given)
    return StudyResult(
        figures=_figures(answers),
        content=[
            f"A pool is measured by simulating {effort.queries:,} queries at some ten rates; what counts is how many "
            f"pools are. {about(options)}",
            Heading("Fig. 10: pools that Kairos+ measures under each policy"),
            Picture(
                _policies_plot(answers, models, effort.schemes),
                "Of the pools within the budget, logarithmic; the line is 1% of the artifact's grid of 12,096. Hebe is "
                "splitting, searched by the fluid bound. The paper's bars stand in its plot only.",
            ),
            Table(
                "Pools measured until no other can be better",
                [
                    "model", "policy", "measured", "of all in the budget", "of the grid", "the paper", "best pool",
                    "queries/s",
                ],
                [_policy_row(model, scheme, answer) for (scheme, model), answer in answers.items()],
                f"Pools: counts of {', '.join(TYPES)}. Kairos' bound is an estimate: the best is the best that the "
                "search measured.",
            ),
            Heading("Fig. 11: Kairos+ against other searches"),
            Picture(
                _searches_plot(answers, models, effort.searches),
                "Pools measured until one within 1% of Kairos+' best was; bars are medians, points the seeds.",
            ),
            Picture(
                _paths_plot(answers[KAIROS, models[0]], models[0]),
                "The best so far, first seed of each search that goes by throughput.",
            ),
            Table(
                "Pools measured until the best is found (median of seeds)",
                ["model", KAIROS_PLUS, "until found", *effort.searches],
                [_search_row(model, answers[KAIROS, model]) for model in models],
                f"Kairos+: until all others are ruled out, then until its best was measured. The paper: {PAPER_11}.",
            ),
            _explanation(answers, models),
        ],
        lead=[f"kairos.fig10.evaluated_share.kairos.{model}" for model in models],
    )  # fmt: skip


def _explanation(answers: Mapping[tuple[str, str], _Answer], models: Sequence[str]) -> str:
    of_kairos = [answers[KAIROS, model] for model in models]
    first = sum(_plus_until(answer) == 1 for answer in of_kairos)
    medians = {
        name: float(np.median([np.median(answer.until[name]) / _plus_until(answer) for answer in of_kairos]))
        for name in of_kairos[0].until
    }
    searches = ", ".join(f"{name} {format_number(times)}" for name, times in sorted(medians.items(), key=itemgetter(1)))
    met = [
        f"{scheme} {format_number(float(np.median(shares)))}%"
        for scheme in dict.fromkeys(scheme for scheme, _ in answers)
        if (shares := [100 * one.best_qps / max(one.bound_qps, 1e-9) for (s, _), one in answers.items() if s == scheme])
    ]
    return (
        "Where ours differs. The paper does not say of which grid its shares are; ours are of the artifact's 12,096 "
        "combinations, and beside them of those that the budget buys. A bound rules out a pool only if some pool was "
        "measured above it: the best that was found is, of the bound of its own pool and in the middle of the models, "
        f"{', '.join(met)}. The farther below, the more is left for skipping sub-pools alone. On {first} of "
        f"{len(models)} models the pool of the highest bound, where Kairos+ begins, is the best already. Pools that "
        f"the other searches measure for one of Kairos+'s, in the middle: {searches}. Why one of them is quicker than "
        "another was not tested. Skipping sub-pools takes for granted that one more server never hurts. Under Ribbon's "
        "policy it does: kairos-distribution, which tries all pools, finds better ones for it that leave budget over."
    )


def _search(case: _Case) -> _Answer:
    problem = case.setting.problem
    pools = pools_within(problem, case.setting.budget_per_hour)
    bounds = fluid_bounds(problem, pools) if case.scheme == SPLITTING else kairos_bounds(problem, pools)
    evaluate = pool_evaluator(case.setting, case.scheme, case.queries, pools, bounds)
    plus = kairos_plus(pools, bounds, evaluate)
    until: dict[str, tuple[int, ...]] = {}
    paths: dict[str, tuple[float, ...]] = {}
    if case.scheme == KAIROS:
        judge = pool_judge(case.setting, case.scheme, case.queries, pools, plus.best_qps, _FOUND)
        for name in case.searches:
            # Random search goes by no value, so whether a pool is as good as the best is all that must be known.
            seeds, judged = (case.random_seeds, judge) if name == "RAND" else (case.seeds, evaluate)
            values = [_until_found(SEARCHES[name], pools, judged, plus.best_qps, seed) for seed in range(seeds)]
            until[name] = tuple(map(len, values))
            if judged is evaluate:
                paths[name] = values[0]
    path = tuple(qps for _, qps in plus.path)
    bound_qps = float(bounds[int(np.flatnonzero((pools == np.array(plus.best)).all(axis=1))[0])])
    return _Answer(
        len(pools), plus.evaluations, plus.best, plus.best_qps, bound_qps, plus.complete, path, until, paths
    )  # fmt: skip


def _until_found(search: Search, pools: Ints, evaluate: Evaluate, best_qps: float, seed: int) -> tuple[float, ...]:
    """What a search measured, up to the first pool that is as good as the best."""
    path: list[float] = []

    def watched(pool: Counts) -> float:
        value = evaluate(pool)
        path.append(value)
        if value >= _FOUND * best_qps:
            raise _FoundIt
        return value

    with suppress(_FoundIt):
        search(pools, watched, np.random.default_rng(seed))
    return tuple(path)


def _figures(answers: Mapping[tuple[str, str], _Answer]) -> list[Figure]:
    figures = []
    for (scheme, model), answer in answers.items():
        figures.append(
            Figure(
                f"kairos.fig10.evaluated_share.{scheme.lower()}.{model}", answer.evaluations / _IN_GRID, "share",
                target="< 0.01" if scheme == KAIROS else None, paper=PAPER_10.get(scheme),
                note=f"{answer.evaluations} of the grid's {_IN_GRID:,} pools, by Kairos+'s search",
            )
        )  # fmt: skip
        for name, until in answer.until.items():
            spread = (min(until) / _plus_until(answer), max(until) / _plus_until(answer))
            low, high, seeds = (*spread, "median and range of seeds") if len(until) > 1 else (None, None, "one seed")
            figures.append(
                Figure(
                    f"kairos.fig11.{name.lower()}_over_kairos_plus.{model}",
                    float(np.median(until)) / _plus_until(answer), "ratio", low, high, len(until), paper=PAPER_11,
                    note=f"pools measured until the best was, over Kairos+'s; {seeds}",
                )
            )  # fmt: skip
    return figures


def _plus_until(answer: _Answer) -> int:
    """Pools that Kairos+ measured up to the first that is as good as its best."""
    return 1 + next(at for at, qps in enumerate(answer.path) if qps >= _FOUND * answer.best_qps)


def _policy_row(model: str, scheme: str, answer: _Answer) -> list[Cell]:
    return [
        model, scheme, answer.evaluations, f"{100 * answer.evaluations / answer.pools:.1f}%",
        f"{100 * answer.evaluations / _IN_GRID:.2f}%", PAPER_10.get(scheme), pool_text(answer.best), answer.best_qps,
    ]  # fmt: skip


def _search_row(model: str, answer: _Answer) -> list[Cell]:
    medians = [f"{float(np.median(until)):g}" for until in answer.until.values()]
    return [model, str(answer.evaluations), str(_plus_until(answer)), *medians]


def _policies_plot(answers: Mapping[tuple[str, str], _Answer], models: Sequence[str], schemes: Sequence[str]) -> str:
    with drawing(width=8.0, height=4.2) as (canvas, axes):
        for number, scheme in enumerate(schemes):
            heights = [answers[scheme, model].evaluations for model in models]
            _bars(axes, heights, number, len(schemes), SERIES[number], scheme)
        axes.axhline(_IN_GRID / 100, color=INK, linestyle="--", linewidth=1.0)
        _log_axes(axes, models, "pools measured")
        axes.set_title("Kairos+'s search under each policy")
        canvas.legend(loc="outside lower center", ncols=len(schemes))
        return to_svg(canvas, "Pools that Kairos+ measures under each policy, by model")


def _searches_plot(answers: Mapping[tuple[str, str], _Answer], models: Sequence[str], searches: Sequence[str]) -> str:
    with drawing(width=8.0, height=4.2) as (canvas, axes):
        names = [KAIROS_PLUS, *searches]
        for number, name in enumerate(names):
            each = [
                (_plus_until(answers[KAIROS, model]),) if number == 0 else answers[KAIROS, model].until[name]
                for model in models
            ]
            medians = [float(np.median(until)) for until in each]
            tops = [max(until) for until in each]
            places = _bars(axes, medians, number, len(names), _COLOURS[name], name, tops)
            for place, until in zip(places, each, strict=True):
                axes.plot([place] * len(until), until, "o", color=INK, markersize=2.2, alpha=0.6)
        _log_axes(axes, models, "pools measured")
        axes.set_title("Searches for the best pool under Kairos' matching")
        canvas.legend(loc="outside lower center", ncols=len(names))
        return to_svg(canvas, "Pools measured until the best was, by search and model")


def _bars(
    axes: Axes,
    heights: Sequence[float],
    number: int,
    of: int,
    colour: str,
    name: str,
    tops: Sequence[float] | None = None,
) -> list[float]:
    """A bar a model, the `number`th `of` so many, with their numbers above them, or above `tops` where something stands
    on them; returns their places."""
    width = 0.8 / of
    places = [at - 0.4 + (number + 0.5) * width for at in range(len(heights))]
    axes.bar(places, heights, 0.92 * width, color=colour, label=name)
    for place, height, top in zip(places, heights, tops or heights, strict=True):
        axes.annotate(format_number(height), (place, top), xytext=(0, 3), textcoords="offset points", ha="center",
                      fontsize=8)  # fmt: skip
    return places


def _log_axes(axes: Axes, models: Sequence[str], label: str) -> None:
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.8)
    plain_ticks(axes.yaxis, format_number)
    name_places(axes, models)
    axes.set_ylabel(label)


def _paths_plot(answer: _Answer, model: str) -> str:
    with drawing(height=4.2) as (canvas, axes):
        for name, path in {KAIROS_PLUS: answer.path, **answer.paths}.items():
            best, colour = np.maximum.accumulate(path), _COLOURS[name]
            places = np.arange(1, len(best) + 1)
            axes.step(places, best, where="post", color=colour, label=name)
            axes.plot(places[-1], best[-1], "o", color=colour)
        axes.set_xscale("log")
        plain_ticks(axes.xaxis, format_number)
        axes.set_xlim(left=0.9)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("pools measured")
        axes.set_ylabel("queries/s of the best")
        axes.set_title(f"{model}: the best pool so far")
        canvas.legend(loc="outside lower center", ncols=1 + len(answer.paths))
        return to_svg(canvas, f"{model}: throughput of the best pool so far by pools measured, for each search")
