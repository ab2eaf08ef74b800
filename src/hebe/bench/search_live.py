"""The search for this server's split against trying everything, measured: real models under real load.

Every configuration of a small space is measured once, and all searches ask these measurements: what they find is
compared by the same numbers, and what noise there is, favours the one that tried everything.
"""

from __future__ import annotations

from rich.progress import Progress

from hebe.bench.bench_model import bench_repository
from hebe.bench.search_modelled import MODELS, search_figures
from hebe.load_generator.qps_search import Workload
from hebe.planning.gain_by_cause import gain_by_cause
from hebe.planning.guided_search import guided_search
from hebe.planning.parallelism import (
    Configuration,
    Limits,
    Reached,
    SearchResult,
    deeprecsys_search,
    exhaustive_search,
    gradient_search,
)
from hebe.planning.parallelism_space import ParallelismSpace, host_placements
from hebe.profiling.live_evaluation import live_evaluator
from hebe.profiling.prediction import predictor
from hebe.report.configuration_words import configuration_words
from hebe.report.figures import Figure
from hebe.runtime.pinning import available_cores
from hebe.runtime.processor_meter import BusyMachine, busy_machine
from hebe.workload.key_skew import ReuseKeys

SCALE = 0.01
"""Of the rows of the small models: what differs between configurations is not how many rows there are."""
BATCH_SIZES = (16, 64, 256, 1024)
_QUICK_BATCH_SIZES = (64, 256)
_QUICK_MODELS = ("dlrm-rmc1",)
_MANY_CORES = 16
"""From so many on the paper's gain over DeepRecSys is asked of the DLRMs."""


def live_figures(quick: bool, progress: Progress) -> list[Figure]:
    """Measure `search.*.live` and `hercules.over_deeprecsys.*`. With `quick` one model and two batch sizes."""
    figures = []
    for model in _QUICK_MODELS if quick else MODELS:
        figures += _figures(model, _QUICK_BATCH_SIZES if quick else BATCH_SIZES, progress)
    return figures


def _figures(model: str, batch_sizes: tuple[int, ...], progress: Progress) -> list[Figure]:
    cores = len(available_cores())
    space = ParallelismSpace(cores, batch_sizes, host_placements(cores))
    repository = bench_repository(model, "small", progress, SCALE)
    workload = Workload(keys=ReuseKeys())
    with live_evaluator(repository, model, None, workload, None, quick=True) as live:
        predict = predictor(live, space, workload.sizes, live.sla)
        task = progress.add_task(f"all configurations of {model}", total=space.size())

        def told(configuration: Configuration) -> Reached:
            progress.advance(task)
            return live(configuration)

        every = exhaustive_search(space, told)
        progress.remove_task(task)
        busy = busy_machine(3.0)
    if not every.reached.qps:
        # Not all do: a query of dlrm-rmc2 looks up millions of rows, which two cores cannot in 50 ms.
        progress.console.print(f"{model} keeps {live.sla.latency_ms:g} ms in no configuration: no figures of it")
        return []
    measured = every.tried.__getitem__
    found = gradient_search(space, measured)
    guided = guided_search(space, predict, measured, Limits(noise=live.noise, runs=1))
    simple = deeprecsys_search(space, measured)
    return [
        *search_figures(f"{model}.live", found, every, "Algorithm 1, refined; each measured once"),
        *search_figures(f"{model}.live.guided", guided, every, "by measured service times"),
        _gain(model, cores, simple, every, busy),
    ]


def _gain(model: str, cores: int, simple: SearchResult, every: SearchResult, busy: BusyMachine) -> Figure:
    """Over DeepRecSys, and what of it is due to what."""
    gain = gain_by_cause(simple, every)
    many = cores >= _MANY_CORES and model.startswith("dlrm")
    note = f"nothing keeps the SLA with {configuration_words(simple.closest)}, DeepRecSys' best"
    if gain is not None:
        note = (
            f"{every.reached.qps:,.0f} queries/s with {configuration_words(every.closest)}, DeepRecSys "
            f"{gain.baseline_qps:,.0f} with {configuration_words(simple.closest)}; of it by workers and cores per "
            f"worker {gain.op_parallelism:.2f}, by the S-D pipeline "
            f"{gain.pipeline:.2f}; {cores} cores, where only the host computes nothing is fused"
        )
    return Figure(
        f"hercules.over_deeprecsys.{model}",
        gain.total if gain is not None else 1.0,
        "ratio",
        target=">= 1.3" if many else ">= 1.0",
        paper="1.35 to 2.64" if model.startswith("dlrm") else None,
        note=f"{note}; afterwards {busy}",
    )
