"""How near the search for a server's split comes to trying every lane alone, and at what share of the evaluations.

On analytic servers of 20 cores (Hercules' T2, and T7 with an accelerator), where every lane can be tried. On T2 these
are all configurations. On T7 the search may add a lane on the cores that the accelerator's leaves, so it can find more;
pairs of lanes are too many to try all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from types import MappingProxyType

from rich.progress import Progress

from hebe.models.catalog import entry
from hebe.planning.server_split.search import (
    Configuration,
    Reached,
    SearchResult,
    deeprecsys_search,
    exhaustive_search,
    gradient_search,
)
from hebe.planning.server_split.space import FINE_BATCH_SIZES, ParallelismSpace
from hebe.report.configuration_words import configuration_words
from hebe.report.figures import Figure, ratio_of_medians
from hebe.server_configuration import Placement
from hebe.simulation.analytic.analytic_server import AnalyticServer
from hebe.simulation.analytic.configuration_search import evaluation_on
from hebe.simulation.analytic.server_types import HERCULES
from hebe.workload.reuse_profile import PRODUCTION_2021
from hebe_lab.studies.hercules.fleet import query_sizes

MODELS = ("dlrm-rmc1", "dlrm-rmc2", "dlrm-rmc3", "mt-wnd", "din", "dien")
_QUICK_BATCH_SIZES = (16, 64, 256, 1024)
_HOST, _ACCELERATED = "T2", "T7"


def modelled_figures(quick: bool, progress: Progress) -> list[Figure]:
    """Measure `search.*` of modelled servers. With `quick` fewer batch sizes, and no accelerator."""
    figures: list[Figure] = []
    for server_type in (_HOST,) if quick else (_HOST, _ACCELERATED):
        for model in MODELS:
            figures += _figures(model, server_type, _QUICK_BATCH_SIZES if quick else FINE_BATCH_SIZES, progress)
    return figures


def _figures(model: str, server_type: str, batch_sizes: tuple[int, ...], progress: Progress) -> list[Figure]:
    spec = entry(model, "production")
    server = AnalyticServer(HERCULES[server_type], spec, query_sizes(), PRODUCTION_2021)
    placements = tuple(
        placement for placement in Placement if server.server.accelerator or not placement.on_accelerator
    )
    space = ParallelismSpace(server.server.cores, batch_sizes, placements)
    evaluate = evaluation_on(server, spec.sla)
    found = gradient_search(space, evaluate)
    exact = gradient_search(space, evaluate, refines=False)
    simple = deeprecsys_search(space, evaluate)
    task = progress.add_task(f"every lane of {model} on {server_type}", total=space.size())

    def told(configuration: Configuration) -> Reached:
        progress.advance(task)
        return evaluate(configuration)

    every = exhaustive_search(space, told)
    progress.remove_task(task)
    if not every.reached.qps:
        raise RuntimeError(f"{model} keeps {spec.sla.latency_ms:g} ms in no lane alone of {server_type}")
    name = model if server_type == _HOST else f"{model}.{server_type}"
    return [
        *search_figures(name, found, every, f"Algorithm 1, refined, at {spec.sla.latency_ms:g} ms"),
        Figure(
            f"search.algorithm_1_over_exhaustive.{name}",
            _over(exact, every),
            "ratio",
            note=f"without the refinement; {exact.evaluations:,} evaluations",
        ),
        Figure(
            f"search.deeprecsys_over_exhaustive.{name}",
            _over(simple, every),
            "ratio",
            note=configuration_words(simple.closest),
        ),
    ]


def search_figures(
    name: str,
    found: SearchResult,
    every: SearchResult,
    how: str,
    in_turns: Mapping[Configuration, Sequence[float]] = MappingProxyType({}),
) -> list[Figure]:
    """What a search found by asking, over what asking for every lane alone found, and how often it asked, repeats
    included, over how many lanes there are.

    `in_turns`: what configurations reached as they were measured anew, which counts if those of both were. `how` says
    in the notes which search it was, and what they reach.
    """
    size, repeats = len(every.tried), found.evaluations - len(found.tried)
    value, low, high, runs, turns = _over(found, every), None, None, 1, ""
    own, best = in_turns.get(found.closest), in_turns.get(every.closest)
    if found.closest != every.closest and own and best:
        value, low, high = ratio_of_medians(own, best)
        runs, turns = len(own), f"; in turns {median(own):,.0f} and {median(best):,.0f}"
    return [
        Figure(
            f"search.over_exhaustive.{name}",
            value,
            "ratio",
            low=low,
            high=high,
            runs=runs,
            target=">= 0.97",
            note=f"{how}: {found.reached.qps:,.0f} queries/s with {configuration_words(found.closest)}; "
            f"of every lane alone, {size:,} configurations, the best reaches {every.reached.qps:,.0f}{turns}",
        ),
        Figure(
            f"search.evaluations_share.{name}",
            found.evaluations / size,
            "ratio",
            target="<= 0.20",
            note=f"{how}: {len(found.tried):,} configurations, where lanes alone are {size:,}; {repeats:,} repeats, "
            "which count as well",
        ),
    ]


def _over(search: SearchResult, every: SearchResult) -> float:
    """A configuration is as good as itself, however often each search measured it."""
    return 1.0 if search.closest == every.closest else search.reached.qps / every.reached.qps
