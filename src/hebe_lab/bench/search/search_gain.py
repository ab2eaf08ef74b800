"""What the search for a server's split gains over DeepRecSys' on a server of many cores, live.

There are too many ways to split such a server to try them all, as `live` does, and of most it needs no measuring
that they leave cores idle: of workers of 1, 2, 4... cores so many are tried as there are cores for, the front end's own
core left out or not. The search is `guided`, the default of `hebe profile`: batches are timed on workers of each kind,
a simulation ranks all configurations, the best are measured. What it ends at and DeepRecSys' best are held against each
other in turns; then the winner and DeepRecSys' best are measured anew.
"""

from __future__ import annotations

from datetime import datetime

from rich.progress import Progress

from hebe.load_generator.search.qps_search import Workload
from hebe.machine.pinning import available_cores
from hebe.planning.server_split.guided_search import guided_search
from hebe.planning.server_split.search import QUICK_RUNS, Configuration, Limits, Reached, deeprecsys_search
from hebe.planning.server_split.space import ParallelismSpace, host_placements
from hebe.profiling.error import ProfilingError
from hebe.profiling.live_evaluation import live_evaluator
from hebe.profiling.prediction import predictor
from hebe.profiling.steady_machine import steady_machine
from hebe.report.figures import Figure
from hebe.workload.key_skew import ReuseKeys
from hebe_lab.baselines.gain_by_cause import gain_by_cause
from hebe_lab.bench.search.live import PATIENCE_S, SCALE, gain_figure
from hebe_lab.bench.serving.bench_model import bench_repository
from hebe_lab.studies.hercules.live import alternated, target_within_reach, winner_in_turns

_BATCH_SIZES = (64, 256, 1024)
_QUICK_BATCH_SIZES = (256, 1024)
_TURNS = 5
_QUICK_TURNS = 3
_MOST_MEASURED = 0.05
"""Of the space, by the search: predictions tell the rest apart well enough."""


def gain_figures(model: str, quick: bool, progress: Progress) -> list[Figure]:
    """Measure `hercules.over_deeprecsys.MODEL` and what it took. With `quick` two batch sizes and fewer turns.

    Raises `ProfilingError` where DeepRecSys' split or the search's keeps no SLA target.
    """

    def tell(words: str) -> None:
        progress.console.print(f"{datetime.now():%H:%M:%S} {words}", soft_wrap=True, markup=False)

    cores = len(available_cores())
    machine = steady_machine(available_cores(), 0.0 if quick else PATIENCE_S, tell)
    space = space_of(cores, _QUICK_BATCH_SIZES if quick else _BATCH_SIZES)
    repository = bench_repository(model, "small", progress, SCALE)
    workload = Workload(keys=ReuseKeys())
    sla = target_within_reach(repository, model, machine=machine)
    machine.forget()
    measured: dict[Configuration, Reached] = {}
    with live_evaluator(repository, model, None, workload, sla, quick=True, machine=machine) as live:
        task = progress.add_task(f"measuring {model} (measurements)", total=None)

        def ask(configuration: Configuration) -> Reached:
            if configuration not in measured:
                progress.advance(task)
                measured[configuration] = live(configuration)
            return measured[configuration]

        limits = Limits(noise=live.noise, runs=QUICK_RUNS, latency_ms=live.sla.latency_ms)
        simple = deeprecsys_search(space, ask, limits)
        tell(f"DeepRecSys reaches {simple.reached.qps:,.0f} queries/s; timing batches on workers of each kind")
        predict = predictor(live.busy_profiles, space, workload.sizes, live.sla)
        tell(f"predicting {space.size()} configurations")
        found = guided_search(space, predict, ask, limits, most_share=_MOST_MEASURED)
        tell(f"the search reaches {found.reached.qps:,.0f}; both anew, in turns")
        best = winner_in_turns(live, simple.closest, found.closest)
        in_turns = alternated(live, (simple.closest, best), _QUICK_TURNS if quick else _TURNS)
        progress.remove_task(task)
    gain = gain_by_cause(simple, found)
    if gain is None or min(map(min, in_turns.values())) <= 0:
        raise ProfilingError(
            f"{model} within {sla.latency_ms:g} ms: what was measured is no figure; {machine.disturbance}"
        )
    told = (
        f"p{sla.percentile:g} within {sla.latency_ms:g} ms; {len(measured)} of {space.size()} configurations measured; "
        f"{machine.disturbance}"
    )
    return [gain_figure(model, cores, simple.closest, best, in_turns, gain, told)]


def space_of(cores: int, batch_sizes: tuple[int, ...]) -> ParallelismSpace:
    """What is searched: workers of 1, 2, 4... cores, as many as there are cores for, or for one core less."""
    return ParallelismSpace(
        cores,
        batch_sizes,
        host_placements(cores),
        cores_per_worker=tuple(1 << power for power in range(cores.bit_length())),
        most_spare=1,
    )
