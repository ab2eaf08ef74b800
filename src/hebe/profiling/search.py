"""What `hebe profile` does: asks a running server for one configuration after another, and keeps what it learns."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import Progress

from hebe.machine.gpu import CPU, device_name, find_accelerator
from hebe.machine.meters.processor import BusyMachine, busy_machine
from hebe.machine.pinning import available_cores
from hebe.machine.this_server import core_layout, this_server, with_power
from hebe.models.repository.repository import ModelRepository, StoredModel
from hebe.planning.error import PlanningError
from hebe.planning.server_split.guided_search import Prediction, guided_search
from hebe.planning.server_split.search import (
    QUICK_RUNS,
    RUNS,
    Configuration,
    Evaluate,
    Limits,
    Reached,
    SearchResult,
    baymax_search,
    beating,
    deeprecsys_search,
    exhaustive_search,
    gradient_search,
    held_against,
    random_search,
    typical,
)
from hebe.planning.server_split.space import BATCH_SIZES, ParallelismSpace, host_placements
from hebe.profile import EfficiencyTuple, LatencyProfile, ScalabilityProfile
from hebe.profiling.error import MeasurementError, ProfilingError
from hebe.profiling.files.accelerator_use import AcceleratorUse, HotShare
from hebe.profiling.files.journal import Journal, open_journal
from hebe.profiling.files.op_use import OpUse
from hebe.profiling.files.points import MeasurePoint, ScalabilityPoint
from hebe.profiling.files.profiled_model import ProfileSubject
from hebe.profiling.files.server_profile import ServerProfile, check_replaceable, lane_to_scale
from hebe.profiling.steady_machine import STEADY_SHARE, Disturbance, RunDisturbance, steady_machine
from hebe.profiling.strategies import ALGORITHM_1, BAYMAX, DEEPRECSYS, GUIDED, HERCULES
from hebe.report.configuration_words import configuration_words
from hebe.report.tables import format_number
from hebe.runtime.accelerator import default_memory_bytes
from hebe.scheduling.events import Stage
from hebe.server_configuration import AcceleratorChoice, Placement, to_dict
from hebe.spec import ModelSpec, ServerSpec, SlaTarget

if TYPE_CHECKING:
    import torch

    from hebe.load_generator.search.qps_search import Probe, Workload
    from hebe.load_generator.search.rate_search import Crossing
    from hebe.profiling.evaluator import ServerEvaluator
    from hebe.profiling.files.points import TimeBatches
    from hebe.runtime.loaded_model import LoadOptions

_INTERRUPTED = 128 + signal.SIGINT
"""The exit code after Ctrl-C."""


BUSY_SHARE = 0.1
"""What others may take of the cores before it is said that they disturb."""

RANDOM_SHARE = 0.2
"""Of the space, what the random search tries unless it is told how much: what Hercules' search takes at most."""


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """What `hebe profile` was asked for. Empty `placements` and `batch_sizes`, and None, stand for the defaults.

    `loading` says how the model is brought into memory. `keys` is the form of the load's key skew, `load` says in words
    what the queries are like, for the journal and the profile. `accelerator_bytes` and `key_trace` say what the
    accelerator has for hot rows, and by what they are chosen. `patience_s` is how long it may wait in all for a machine
    that others disturb. `output` is where the profile shall be written, and `replaces` whether that may be over what is
    lost then. `power_watts`: of this server, idle and at full load, where they are stated.
    """

    directory: Path
    model: str
    version: int | None
    loading: LoadOptions
    workload: Workload
    keys: str
    load: str
    sla_ms: float | None
    percentile: float | None
    power_budget_watts: float
    placements: tuple[Placement, ...]
    strategy: str
    seed: int
    evaluations: int | None
    batch_sizes: tuple[int, ...]
    cores: tuple[int, ...] | None
    accelerator_bytes: int | None
    key_trace: Path | None
    journal: Path
    fresh: bool
    quick: bool
    patience_s: float
    output: Path
    replaces: bool = False
    accelerator: AcceleratorChoice = AcceleratorChoice.AUTO
    power_watts: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class ProfileMade:
    """What came of it; `profile` is None where no configuration keeps the limits. `busy` is what others took of the
    machine before it began, `disturbance` what disturbed the measurements that it is from, those that the journal
    answered included, `bandwidth_source` where memory traffic is from, `lowest_qps` the least rate that was tried,
    `quick` whether by shorter measurements. `remarks`: what else to know of the throughput, a sentence each;
    `power_unreadable`: what of the power could not be read, and why. `hot_share` is of the hot rows, where there may be
    some."""

    subject: ProfileSubject
    server: ServerSpec
    space: ParallelismSpace
    limits: Limits
    strategy: str
    search: SearchResult
    answered: int
    profile: ServerProfile | None
    busy: BusyMachine
    disturbance: Disturbance
    bandwidth_source: str
    lowest_qps: float
    quick: bool
    remarks: tuple[str, ...] = ()
    power_unreadable: tuple[str, ...] = ()
    hot_share: HotShare | None = None


def busy_words(busy: BusyMachine) -> str:
    """A warning, empty where others take next to nothing."""
    if busy.share < BUSY_SHARE:
        return ""
    return (
        f"This machine is busy: {busy}. What is measured now may be too low: end that, and profile anew with --fresh."
    )


def was_busy_words(busy_share: float) -> str:
    """A warning of what was measured in a session before, empty where others took next to nothing."""
    if busy_share < BUSY_SHARE:
        return ""
    return (
        f"When some of this was measured, others took {busy_share:.0%} of this machine's cores. It may be too low: "
        "profile anew with --fresh."
    )


def speed_words(slowest_share: float) -> str:
    """A warning, empty where the machine stayed about as fast as it was."""
    if slowest_share >= STEADY_SHARE:
        return ""
    return (
        f"While this was measured, the machine did the same work {1 / slowest_share:.1f} times as fast at one time as "
        "at another: others use its memory or its processors. Configurations may have been measured at unlike speeds: "
        "profile anew with --fresh when it is steady."
    )


def hot_words(share: HotShare) -> str:
    """What hot rows get, and a warning where that is no more than other rows would."""
    words = f"Hot rows take {share.bytes:.0%} of the tables' bytes, and {share.lookups:.0%} of the lookups go to them"
    if share.is_hotter:
        return f"{words}."
    return (
        f"{words}: little more than any others would, so that what is measured says little of hot rows. Let them be"
        " chosen by keys as your queries have them: --keys reuse, reuse:FILE or zipf:ALPHA, without --key-trace."
    )


class ProfileInterrupted(Exception):
    """Ctrl-C, or a signal that ends the process with `exit_code`; what was measured until then, `kept` of them, is in
    the journal.

    `goes_on` says how many, where, and how to go on with them.
    """

    def __init__(
        self, goes_on: str, kept: int, evaluations: int, best: tuple[Configuration, Reached] | None, exit_code: int
    ) -> None:
        super().__init__(f"interrupted after {evaluations} evaluations")
        self.goes_on, self.kept = goes_on, kept
        self.evaluations, self.best, self.exit_code = evaluations, best, exit_code

    @property
    def how(self) -> str:
        """The first word to say."""
        return "Interrupted" if self.exit_code == _INTERRUPTED else "Terminated"


def _note(progress: Progress, words: str) -> None:
    """Say on stderr what the bars would show, where there is no terminal for them."""
    if progress.disable:
        progress.console.print(words, soft_wrap=True, markup=False)


class _Watched:
    """Evaluations as they come, with the best of them, on a progress bar, or a line each without a terminal. `runs` are
    all of them."""

    def __init__(self, evaluate: Evaluate, limits: Limits, progress: Progress, total: int | None) -> None:
        self.evaluations = 0
        self.runs: dict[Configuration, list[Reached]] = {}
        self.best: tuple[Configuration, Reached] | None = None
        self._evaluate, self._limits, self._progress = evaluate, limits, progress
        self._task = progress.add_task("measuring (evaluations)", total=total)

    def __call__(self, configuration: Configuration) -> Reached:
        reached = self._evaluate(configuration)
        self.evaluations += 1
        self.runs.setdefault(configuration, []).append(reached)
        if self._limits.keeps(reached) and (self.best is None or reached.qps > self.best[1].qps):
            self.best = configuration, reached
            told = f"best {format_number(reached.qps)} queries/s: {configuration_words(configuration)} (evaluations)"
            self._progress.update(self._task, description=told)
        self._progress.advance(self._task)
        told = f"{format_number(reached.qps)} queries/s" if reached.qps else "late"
        _note(self._progress, f"evaluation {self.evaluations}: {configuration_words(configuration)}: {told}")
        return reached


@dataclass(frozen=True, slots=True)
class _Task:
    """What a search is given; `predict` makes what `guided` goes by."""

    request: ProfileRequest
    space: ParallelismSpace
    evaluate: Evaluate
    limits: Limits
    predict: Callable[[], Prediction]


def _random(task: _Task) -> SearchResult:
    count = task.request.evaluations or round(RANDOM_SHARE * task.space.size())
    return random_search(task.space, task.evaluate, count, task.request.seed, task.limits)


FINDING = (GUIDED, HERCULES)
"""Strategies that are to find the best there is; the others are for comparison, and end where they end."""

CLIMBING = (HERCULES, ALGORITHM_1, GUIDED)
"""Strategies that begin with a worker of each stage."""

SEARCHES: dict[str, Callable[[_Task], SearchResult]] = {
    GUIDED: lambda task: guided_search(task.space, task.predict(), task.evaluate, task.limits),
    HERCULES: lambda task: gradient_search(task.space, task.evaluate, task.limits),
    ALGORITHM_1: lambda task: gradient_search(task.space, task.evaluate, task.limits, refines=False),
    DEEPRECSYS: lambda task: deeprecsys_search(task.space, task.evaluate, task.limits),
    BAYMAX: lambda task: baymax_search(task.space, task.evaluate, task.limits),
    "exhaustive": lambda task: exhaustive_search(task.space, task.evaluate, task.limits),
    "random": _random,
}


def make_profile(request: ProfileRequest, progress: Progress) -> ProfileMade:
    """Search, and measure the winner.

    Raises `ProfileInterrupted` on Ctrl-C and SIGTERM, `PlanningError` for a placement that the cores do not suffice
    for, and what the model repository, the journal, the server and `check_replaceable` raise.
    """
    stored = ModelRepository(request.directory).open(request.model, request.version)
    server = this_server(request.cores)
    if request.power_watts is not None:
        server = with_power(server, *request.power_watts)
    space = _space(request, server.cores)
    device = find_accelerator(request.accelerator) if space.on_accelerator else CPU
    use = _accelerator(request, stored.spec, device)
    load = request.load
    if space.on_accelerator:
        load += f", {use.words}"
        if use.gpu:
            progress.console.print(f"The accelerator is {use.gpu}.", soft_wrap=True, markup=False)
    elif gpu := device_name(find_accelerator()):
        words = f"{gpu} is left idle: --placement {Placement.SPARSE_ON_HOST} --placement "
        words += f"{Placement.HOT_SPARSE_ON_ACCELERATOR}, beside those of the host, try what it gains."
        progress.console.print(words, style="yellow", soft_wrap=True, markup=False)
    hot_share = None
    if Placement.HOT_SPARSE_ON_ACCELERATOR in space.placements:
        hot_share = use.hot_share(stored.spec, request.loading)  # what is wrong with a trace is told now
        style = None if hot_share.is_hotter else "yellow"
        progress.console.print(hot_words(hot_share), style=style, soft_wrap=True, markup=False)
    subject = ProfileSubject(
        stored.name,
        stored.version,
        stored.identity,
        request.loading.words(),
        server.name,
        _sla(request, stored.spec.sla),
        load,
        core_layout(request.cores),
    )
    if not request.replaces:
        check_replaceable(request.output, subject)
    watched: _Watched | None = None
    journal: Journal | None = None
    try:
        busy = busy_machine(cores=request.cores)
        if warning := busy_words(busy):
            progress.console.print(warning, style="yellow", soft_wrap=True, markup=False)
        with (
            open_journal(request.journal, subject, fresh=request.fresh) as journal,
            _running(request, stored, subject.sla, use, device, server, progress) as live,
        ):
            runs = QUICK_RUNS if request.quick else RUNS
            journal.noting(lambda: _of_session(live, busy)[-1])
            limits = Limits(request.power_budget_watts, live.noise, runs, subject.sla.latency_ms)
            total = space.size() if request.strategy == "exhaustive" else None
            watched = _Watched(journal.evaluating(live, live.power_source), limits, progress, total)
            time_batches = journal.timing(live.busy_profiles)

            def predict() -> Prediction:
                return _predicting(request, space, subject.sla, time_batches, progress)

            search = SEARCHES[request.strategy](_Task(request, space, watched, limits, predict))
            beside = _Beside(request.strategy, space, watched, limits)
            search = beside.against(search, journal.beside(live.power_source))
            search, scalability = _with_scalability(search, live, journal, beside, progress)
            profile = _profile(request, subject, server, search, scalability, live, time_batches, use, progress)
            disturbance = Disturbance.of([*journal.disturbances, *_of_session(live, busy)])
            profile = None if profile is None else replace(profile, disturbance=disturbance)
            bandwidth_source, lowest_qps = live.bandwidth_source, live.lowest_qps
            remarks = (*beside.remarks, *live.remarks(search.reached.qps))
            unreadable = live.power_unreadable
    except (KeyboardInterrupt, SystemExit) as end:
        code = end.code if isinstance(end, SystemExit) else _INTERRUPTED
        if not isinstance(code, int):
            raise
        evaluations, best = (0, None) if watched is None else (watched.evaluations, watched.best)
        kept = 0 if journal is None else journal.kept
        raise ProfileInterrupted(goes_on_words(request, kept), kept, evaluations, best, code) from None
    except MeasurementError as failed:
        raise ProfilingError(_failed_words(failed, 0 if journal is None else journal.kept, request)) from failed
    return ProfileMade(
        subject, server, space, limits, request.strategy, search, journal.answered, profile, busy, disturbance,
        bandwidth_source, lowest_qps, request.quick, remarks, unreadable, hot_share,
    )  # fmt: skip


def _of_session(live: ServerEvaluator, busy: BusyMachine) -> list[RunDisturbance]:
    """What disturbed the measurements of this session."""
    return [replace(each, busy=busy.share) for each in live.disturbances]


def goes_on_words(request: ProfileRequest, kept: int) -> str:
    """Where so many measurements are, and how to go on with them."""
    measurements = f"{kept} measurements are" if kept > 1 else "1 measurement is"
    how = f"the same command{' without --fresh' if request.fresh else ''} goes on."
    return f"{measurements} in {request.journal}: {how}"


def _failed_words(failed: MeasurementError, kept: int, request: ProfileRequest) -> str:
    """What failed, and what is left of the search."""
    words = f"{configuration_words(failed.configuration)}: {failed.why}"
    if not kept:
        return words
    return f"{words}{'' if words.endswith('?') else '.'} {goes_on_words(request, kept)}"


def _space(request: ProfileRequest, cores: int) -> ParallelismSpace:
    batch_sizes = request.batch_sizes or BATCH_SIZES
    placements = request.placements
    if not placements and request.strategy == BAYMAX:
        placements = (Placement.HOT_SPARSE_ON_ACCELERATOR,)
    space = ParallelismSpace(cores, batch_sizes, placements or host_placements(cores))
    for placement in space.placements:
        begins = request.strategy not in CLIMBING or space.first_lanes(placement, 1)
        if not begins or next(space.lanes(placement), None) is None:
            raise PlanningError(f"{cores} cores are too few for {placement}")
    return space


def _accelerator(request: ProfileRequest, spec: ModelSpec, device: torch.device) -> AcceleratorUse:
    """What hot rows there may be, and where."""
    given = request.accelerator_bytes
    memory_bytes = default_memory_bytes(spec, device) if given is None else given
    trace = None if request.key_trace is None else str(request.key_trace.absolute())
    return AcceleratorUse.now(memory_bytes, request.keys, trace, device_name(device))


def _sla(request: ProfileRequest, own: SlaTarget) -> SlaTarget:
    """What was asked for, completed by the model's own."""
    return SlaTarget(
        own.latency_ms if request.sla_ms is None else request.sla_ms,
        own.percentile if request.percentile is None else request.percentile,
    )


@contextmanager
def _running(
    request: ProfileRequest,
    stored: StoredModel,
    sla: SlaTarget,
    use: AcceleratorUse,
    device: torch.device,
    server: ServerSpec,
    progress: Progress,
) -> Iterator[ServerEvaluator]:
    """The server to ask."""
    from hebe.profiling.live_evaluation import live_evaluator

    task = progress.add_task("starting the model (probes)", total=None)

    def show(probe: Probe, _crossing: Crossing | None) -> None:
        verdict = "holds" if probe.passed else "does not hold"
        told = f"{verdict} at {format_number(probe.rate_qps)} queries/s (probes)"
        progress.update(task, description=told, advance=1)

    def tell(words: str) -> None:
        progress.console.print(words, style="yellow", soft_wrap=True)

    with live_evaluator(
        request.directory,
        stored.name,
        stored.version,
        request.workload,
        sla,
        quick=request.quick,
        cores=request.cores,
        on_probe=show,
        load_options=request.loading,
        accelerator=device,
        accelerator_bytes=use.memory_bytes,
        frequencies=lambda: use.frequencies(stored.spec),
        machine=steady_machine(request.cores or available_cores(), request.patience_s, tell),
        server=None if request.power_watts is None else server,
    ) as live:
        if (live.version, live.identity) != (stored.version, stored.identity):
            raise ProfilingError(f"{stored.path} was written anew just now: run the command again")
        yield live


def _predicting(
    request: ProfileRequest, space: ParallelismSpace, sla: SlaTarget, time_batches: TimeBatches, progress: Progress
) -> Prediction:
    """What configurations should reach, told as it goes."""
    from hebe.profiling.prediction import predictor

    task = progress.add_task("timing batches on workers of each kind", total=None)
    _note(progress, "timing batches on workers of each kind")
    predict = predictor(time_batches, space, request.workload.sizes, sla, on_run=lambda: progress.advance(task))
    progress.update(task, description="simulating configurations (runs)")
    return predict


@dataclass(slots=True)
class _Beside:
    """What was measured beside a search, held against its best; what is to be said of that is added to `remarks`."""

    strategy: str
    space: ParallelismSpace
    watched: _Watched
    limits: Limits
    remarks: list[str] = field(default_factory=list)

    def against(self, search: SearchResult, others: Mapping[Configuration, Sequence[Reached]]) -> SearchResult:
        """`search`, or where others of its space beat its best, what came of measuring both again; a strategy that is
        there for comparison keeps its best, and that is said."""
        rivals = {other: runs for other, runs in others.items() if self.space.holds(other)}
        ahead = beating(search, rivals, self.limits)
        if ahead and self.strategy not in FINDING:
            than = "where it found nothing that keeps the limits" if search.best is None else "more than its best"
            self.remarks.append(
                f"Beside this search {self._reached_words(rivals, ahead[0])}, {than}: --strategy {self.strategy} keeps "
                f"to its own way. --strategy {GUIDED} takes the better one."
            )
            return search
        held = held_against(search, self.watched.runs, rivals, self.watched, self.limits)
        for step in held.steps[len(search.steps) :]:
            (rival,) = step.candidates
            told, which = "nothing that it tried keeps the limits. That was", "best"
            if search.best is not None:
                told, which = f"its best reached {format_number(search.reached.qps)}. Both were", "better"
            self.remarks.append(
                f"Beside this search {self._reached_words(rivals, rival)}, where {told} measured again, and by the "
                f"medians the {which} one is {configuration_words(step.taken or step.at or rival)}."
            )
        return held

    def _reached_words(self, runs: Mapping[Configuration, Sequence[Reached]], configuration: Configuration) -> str:
        """`model-on-host, 2 workers of 1 core, batches of 64 reached 350 queries/s`, by the median of its runs."""
        qps = format_number(typical(runs[configuration], self.limits.noise).qps)
        return f"{configuration_words(configuration)} reached {qps} queries/s"


def _noting(measure: MeasurePoint, points: dict[Configuration, list[Reached]], limits: Limits) -> MeasurePoint:
    """`measure`, which notes in `points` what configurations reach with the whole cache: a run each. With a power
    budget only where the watts are known, which journals of older versions lack."""

    def noted(configuration: Configuration, cache_ways: int | None) -> ScalabilityPoint:
        point = measure(configuration, cache_ways)
        known = point.power_watts > 0 or not isfinite(limits.power_budget_watts)
        if cache_ways is None and known:
            points[configuration] = [Reached(point.qps, point.power_watts)]
        return point

    return noted


def _with_scalability(
    search: SearchResult, live: ServerEvaluator, journal: Journal, beside: _Beside, progress: Progress
) -> tuple[SearchResult, ScalabilityProfile | None]:
    """The scalability profile of the winner, None if there is none; and `search`, held against that."""
    if search.best is not None:
        _note(progress, "measuring fewer workers")
    task = progress.add_task("measuring fewer workers", total=None)
    scalability = None
    while search.best is not None:
        points: dict[Configuration, list[Reached]] = {}
        measure = _noting(journal.scaling(live.scalability_point, search.tried), points, beside.limits)
        scalability = live.scalability(lane_to_scale(search.best, search.tried), measure)
        if (held := beside.against(search, points)) is search:
            break
        search = held
    progress.remove_task(task)
    return search, scalability


def _profile(
    request: ProfileRequest,
    subject: ProfileSubject,
    server: ServerSpec,
    search: SearchResult,
    scalability: ScalabilityProfile | None,
    live: ServerEvaluator,
    time_batches: TimeBatches,
    use: AcceleratorUse,
    progress: Progress,
) -> ServerProfile | None:
    """The winner's, None if there is none."""
    best = search.best
    if best is None:
        return None
    task = progress.add_task("measuring service times", total=None)
    _note(progress, "measuring service times")
    latency = live.latency_profiles(best)
    busy_latency = _busy_latency(best, latency, time_batches)
    op_use = _op_use(live, lane_to_scale(best, search.tried).batch_size, progress)
    progress.remove_task(task)
    efficiency = EfficiencyTuple(
        subject.model,
        server.name,
        search.reached.qps,
        search.reached.power_watts,
        to_dict(best),
        estimated=search.reached.power_estimated,
    )
    created = datetime.now(UTC).isoformat(timespec="seconds")
    used = use if any(lane.placement.on_accelerator for lane in best) else None
    power_source = search.reached.power_source or live.power_source
    some = request.cores is not None and set(request.cores) != set(available_cores())
    return ServerProfile(
        subject, server, request.strategy, created, efficiency, power_source, latency, scalability, search, used,
        cores=request.cores if some else None,
        busy_latency=busy_latency, op_use=op_use,
        power_budget_watts=request.power_budget_watts if isfinite(request.power_budget_watts) else None,
    )  # fmt: skip


def _op_use(live: ServerEvaluator, items: int, progress: Progress) -> OpUse | None:
    """Of a batch of so many; None, and why is told, where the DenseNet cannot be taken apart."""
    try:
        return live.op_use(items)
    except Exception as fault:  # torch has many for what it cannot export: none is worth the search's result
        words = f"Time by class of op is left out: {fault}"[:300]
        progress.console.print(words, style="yellow", soft_wrap=True, markup=False)
        return None


def _busy_latency(
    best: Configuration, alone: Mapping[str, LatencyProfile], time_batches: TimeBatches
) -> dict[str, LatencyProfile]:
    """Service times while all workers are busy, of the batch sizes that were timed `alone`; nothing of configurations
    of which a query's time is not that of one batch, since none is planned by them."""
    lane, *beside = best
    if beside or lane.placement is not Placement.MODEL_ON_HOST:
        return {}
    sizes = alone[Stage.WHOLE].batch_sizes
    return {str(stage): profile for stage, profile in time_batches(lane, sizes).items()}
