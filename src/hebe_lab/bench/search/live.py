"""The search for this server's split, measured: real models under real load.

`live_figures` holds it against trying everything. Every configuration of a small space is measured once, and all
searches ask these measurements: that which `hebe profile` uses by default, and Algorithm 1, each step of which is a
good part of so small a space. They ask as `hebe profile --quick` does, which asks again where two candidates are within
the noise, or where a measurement is doubted: then it is measured anew, once for all searches that ask so often, as else
what was lucky would win. What each of them found is measured again, in turns, and compared by that alone: the best of
many measurements is too good, and a machine that others use is not as fast at the end of them as it was at their begin.
The SLA target is the model's own, or a longer one where a single large query takes too long on so few cores.

`gain_figures` finds what it gains over DeepRecSys' on a server of many cores. There are too many ways to split such a
server to try them all, and of most it needs no measuring that they leave cores idle: of workers of 1, 2, 4... cores so
many are tried as there are cores for, the front end's own core left out or not. The search is `guided`, the default of
`hebe profile`: batches are timed on workers of each kind, a simulation ranks all configurations, the best are measured.
What it ends at and DeepRecSys' best are held against each other in turns; then the winner and DeepRecSys' best are
measured anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from statistics import median

from rich.progress import Progress

from hebe.load_generator.search.qps_search import Workload
from hebe.machine.pinning import available_cores
from hebe.planning.server_split.guided_search import guided_search
from hebe.planning.server_split.search import (
    QUICK_RUNS,
    Configuration,
    Evaluate,
    Limits,
    Reached,
    deeprecsys_search,
    exhaustive_search,
    gradient_search,
)
from hebe.planning.server_split.space import BATCH_SIZES, ParallelismSpace, host_placements
from hebe.profiling.error import ProfilingError
from hebe.profiling.live_evaluation import live_evaluator
from hebe.profiling.prediction import predictor
from hebe.profiling.steady_machine import MOST_DENIED, steady_machine
from hebe.report.configuration_words import configuration_words
from hebe.report.figures import Figure, ratio_of_medians
from hebe.workload.key_skew import ReuseKeys
from hebe_lab.baselines.gain_by_cause import GainByCause, gain_by_cause
from hebe_lab.bench.search.modelled import search_figures
from hebe_lab.bench.serving.bench_model import bench_repository
from hebe_lab.studies.hercules.live import alternated, target_within_reach, winner_in_turns

SCALE = 0.01
"""Of the rows of the small models: what differs between configurations is not how many rows there are."""
_QUICK_BATCH_SIZES = (64, 256)
_TURNS = 3
PATIENCE_S = 1200.0
"""For waiting and for measuring anew where others disturb the machine, in all: about what the measurements take."""
_SLOWEST_IN_TURNS = 0.5
"""Of the fastest speed: what is measured in turns bears that, since it slows all that is compared."""
_MANY_CORES = 16
"""From so many on the paper's gain over DeepRecSys is asked of the DLRMs."""


class Measured:
    """Measurements of configurations in their order, the first of each in `once`; more are made by `measure` when a
    search asks for a configuration more often than it was measured."""

    def __init__(self, once: Mapping[Configuration, Reached], measure: Evaluate) -> None:
        self._runs = {configuration: [reached] for configuration, reached in once.items()}
        self._measure = measure

    def one_search(self) -> Evaluate:
        """What one search asks: each time the next measurement of the configuration, from the first on."""
        asked: Counter[Configuration] = Counter()

        def ask(configuration: Configuration) -> Reached:
            runs = self._runs[configuration]
            asked[configuration] += 1
            if asked[configuration] > len(runs):
                runs.append(self._measure(configuration))
            return runs[asked[configuration] - 1]

        return ask


def live_figures(model: str, quick: bool, progress: Progress) -> list[Figure]:
    """Measure `search.*.live` and `hercules.over_deeprecsys.*` of a model. With `quick` two batch sizes.

    Raises `ProfilingError` where others disturbed the machine so much that what was measured is no figure, and where
    no configuration keeps the SLA target.
    """

    def tell(words: str) -> None:
        progress.console.print(f"{datetime.now():%H:%M:%S} {words}", soft_wrap=True, markup=False)

    machine = steady_machine(available_cores(), 0.0 if quick else PATIENCE_S, tell)
    batch_sizes = _QUICK_BATCH_SIZES if quick else BATCH_SIZES
    cores = len(available_cores())
    space = ParallelismSpace(cores, batch_sizes, host_placements(cores))
    repository = bench_repository(model, "small", progress, SCALE)
    workload = Workload(keys=ReuseKeys())
    sla = target_within_reach(repository, model, machine=machine)
    machine.forget()  # how long the target was looked for
    with live_evaluator(repository, model, None, workload, sla, quick=True, machine=machine) as live:
        predict = predictor(live.busy_profiles, space, workload.sizes, live.sla)
        task = progress.add_task(f"all configurations of {model}", total=space.size())

        def told(configuration: Configuration) -> Reached:
            progress.advance(task)
            return live(configuration)

        every = exhaustive_search(space, told, Limits(runs=1))
        progress.remove_task(task)
        if not every.reached.qps:
            raise ProfilingError(f"{model} keeps {live.sla.latency_ms:g} ms in no configuration: no figures of it")
        limits = Limits(noise=live.noise, runs=QUICK_RUNS, latency_ms=live.sla.latency_ms)
        task = progress.add_task(f"what searches of {model} ask again", total=None)
        measured = Measured(every.tried, told)
        found = gradient_search(space, measured.one_search(), limits)
        guided = guided_search(space, predict, measured.one_search(), limits)
        simple = deeprecsys_search(space, measured.one_search(), limits)
        progress.remove_task(task)
        searching = machine.disturbance
        machine.forget()  # what is compared is measured from here on
        picks = [search.closest for search in (simple, every, found, guided)]
        in_turns = alternated(live, picks, 1 if quick else _TURNS)
    target = f"p{sla.percentile:g} within {sla.latency_ms:g} ms"
    disturbance = machine.disturbance
    told_of_host = f"in turns {disturbance}; while all was tried {searching}"
    gain = gain_by_cause(simple, found)
    no_figure = f"{model}, {target}: what was measured is no figure: "
    if disturbance.denied >= MOST_DENIED or disturbance.slowest_share < _SLOWEST_IN_TURNS:
        raise ProfilingError(no_figure + told_of_host)
    if gain is None or min(map(min, in_turns.values())) <= 0:
        reached = " and ".join(", ".join(f"{qps:,.0f}" for qps in turns) for turns in in_turns.values())
        raise ProfilingError(f"{no_figure}in turns what was found reached {reached} queries/s; {told_of_host}")

    return [
        *search_figures(
            f"{model}.live",
            guided,
            every,
            f"{target}, --strategy guided, the default (by measured service times)",
            in_turns,
        ),
        *search_figures(
            f"{model}.live.hercules",
            found,
            every,
            f"{target}, --strategy hercules (Algorithm 1, refined)",
            in_turns,
        ),
        gain_figure(model, cores, simple.closest, found.closest, in_turns, gain, f"{target}; {told_of_host}"),
    ]


def gain_figure(
    model: str,
    cores: int,
    baseline: Configuration,
    best: Configuration,
    in_turns: Mapping[Configuration, list[float]],
    gain: GainByCause,
    told: str,
) -> Figure:
    """Over DeepRecSys by what both reached in turns, and what of it is due to what by what was measured before. Of many
    cores more is expected, and it has a name of its own.
    """
    many = cores >= _MANY_CORES and model.startswith("dlrm")
    if baseline == best:
        value = low = high = 1.0
        compared = "as DeepRecSys"
    else:
        value, low, high = ratio_of_medians(in_turns[best], in_turns[baseline])
        compared = f"DeepRecSys {median(in_turns[baseline]):,.0f} with {configuration_words(baseline)}"
    note = (
        f"{median(in_turns[best]):,.0f} queries/s with {configuration_words(best)}, {compared}; as the search measured "
        f"them {gain.total:.2f}, by workers and cores per worker {gain.op_parallelism:.2f}, by the S-D pipeline "
        f"{gain.pipeline:.2f}; {cores} cores and no accelerator, where fusion would be a cause of its own"
    )
    return Figure(
        f"hercules.over_deeprecsys.{model}" + (f".{cores}_cores" if many else ""),
        value,
        "ratio",
        low=low,
        high=high,
        runs=len(in_turns[best]),
        target=">= 1.3" if many else ">= 1.0",
        paper="1.35 to 2.64" if model.startswith("dlrm") else None,
        note=f"{note}; {told}",
    )


_GAIN_BATCH_SIZES = (64, 256, 1024)
_GAIN_QUICK_BATCH_SIZES = (256, 1024)
_GAIN_TURNS = 5
_GAIN_QUICK_TURNS = 3
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
    space = space_of(cores, _GAIN_QUICK_BATCH_SIZES if quick else _GAIN_BATCH_SIZES)
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
        in_turns = alternated(live, (simple.closest, best), _GAIN_QUICK_TURNS if quick else _GAIN_TURNS)
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
