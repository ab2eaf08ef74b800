"""Hercules' models on this machine: made with small tables, loaded, and asked what configurations reach.

It imports torch: studies import it within `run`. A `Point` is what a configuration of a server reaches, measured or
modelled, as the studies of Hercules' single server show it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Protocol, TypeVar

import numpy as np
from rich.progress import Progress

from hebe.load_generator.search.qps_search import Probe, Workload
from hebe.load_generator.search.rate_search import Crossing, Phase
from hebe.machine.meters.processor import ProcessorMeter
from hebe.machine.pinning import available_cores
from hebe.models import catalog
from hebe.models.repository.initial_model import write_initial_model
from hebe.models.repository.repository import ModelRepository
from hebe.planning.server_split.search import Configuration, Evaluate, Reached
from hebe.profiling.error import ProfilingError, StartFailed
from hebe.profiling.evaluator import Effort
from hebe.profiling.live_evaluation import LiveEvaluator, live_evaluator
from hebe.profiling.measurements.query_times import times_alone
from hebe.profiling.steady_machine import SteadyMachine, steady_machine
from hebe.server_configuration import Lane, Placement
from hebe.spec import SlaTarget
from hebe.workload.key_skew import ReuseKeys
from hebe.workload.query_sizes import ProductionSizes
from hebe_lab.saved_parts import Dataclass
from hebe_lab.studies.hercules.fleet import query_sizes
from hebe_lab.studies.hps.setting import scratch_directory
from hebe_lab.study import StudyOptions

WORKLOAD = Workload(ProductionSizes(), keys=ReuseKeys())
"""As on analytic servers: `fleet.ABOUT_SERVERS`."""

PATIENCE_S = 1800.0
"""For waiting and for measuring anew where others disturb this machine."""

SLACK = 2.5
"""An SLA target of so many times the latency of a large query alone can be kept at some load."""

FIRST_LOOK = Effort(probe_s=0.3, warm_up_s=0.1, rounds=2, resolution=0.15, longest_s=40.0)
"""A measurement of a few seconds."""


def make_model(name: str, table_bytes: int, directory: Path, progress: Progress) -> Path:
    """A repository under `directory` with catalog model `name` alone, of tables of about so many bytes."""
    whole = catalog.entry(name, "production")
    spec = catalog.entry(name, "production", min(1.0, table_bytes / whole.table_bytes))
    task = progress.add_task(f"making {name}", total=spec.table_bytes)
    repository = ModelRepository(directory / name)
    write_initial_model(
        repository, spec, 1, "hebe study", lambda done, total: progress.update(task, completed=done, total=total)
    )
    progress.remove_task(task)
    return repository.root


@dataclass(slots=True)
class _UseWhileFound:
    """What the cores are busy in the probes of the last phase, close to the load that is found."""

    meter: ProcessorMeter
    shares: list[float]

    def __call__(self, probe: Probe, _crossing: Crossing | None) -> None:
        use = self.meter.read()
        if probe.phase is Phase.ROUND:
            self.shares.append(use.cores)


class LiveServer:
    """This machine with one model loaded; made by `live_server`."""

    def __init__(self, live: LiveEvaluator, use: _UseWhileFound, advance: Callable[[], object]) -> None:
        self.live, self._use, self._advance = live, use, advance

    @property
    def noise(self) -> float:
        """The relative difference of throughput that says nothing."""
        return self.live.noise

    @property
    def machine_words(self) -> str:
        """Where watts are from, and what disturbed the machine, in sentences; once something was measured."""
        estimated = "estimated, " if self.live.power_estimated else ""
        return f"Power is {estimated}from {self.live.power_source}. Meanwhile {self.live.disturbance}."

    def point(self, configuration: Configuration) -> Point | None:
        """What a configuration reaches; None where it did not settle in time. Raises `StartFailed`."""
        self._use.shares.clear()
        self._use.meter.read()
        try:
            reached = self.live(configuration)
        except StartFailed:
            raise
        except ProfilingError:
            return None
        finally:
            self._advance()
        shares = self._use.shares
        return Point(reached.qps, reached.power_watts, median(shares) if shares else 0.0, reached.power_estimated)

    def __call__(self, configuration: Configuration) -> Reached:
        """An `Evaluate` of `planning.server_split.search`; what does not settle in time reaches nothing.

        Raises `StartFailed`, which says nothing of what a configuration reaches.
        """
        try:
            return self.live(configuration)
        except StartFailed:
            raise
        except ProfilingError:
            return Reached(0.0)
        finally:
            self._advance()


def patient_machine(quick: bool, progress: Progress) -> SteadyMachine:
    """This machine, whose measurements wait until it is steady, unless `quick`."""
    return steady_machine(available_cores(), 0.0 if quick else PATIENCE_S, progress.console.print)


class _ModelsOf(Protocol):
    """How thorough a study is: which models it measures."""

    @property
    def models(self) -> tuple[str, ...]:
        """By the paper's names."""


_Effort = TypeVar("_Effort", bound=_ModelsOf)
_Measured = TypeVar("_Measured", bound=Dataclass)


def measured_by_model(
    entries: Mapping[str, str],
    effort: _Effort,
    options: StudyOptions,
    progress: Progress,
    measure: Callable[[str, _Effort, bool, SteadyMachine, Path, Progress], _Measured],
    read: Callable[[Mapping[str, Any]], _Measured],
) -> dict[str, _Measured]:
    """What `measure` finds of each model on this machine that was chosen, by its name; `entries` has the catalog's.
    What a run before has kept of it is `read` instead."""
    machine = patient_machine(options.quick, progress)
    with scratch_directory() as directory:
        return {
            name: options.parts.part(
                name, partial(measure, entries[name], effort, options.quick, machine, directory, progress), read
            )
            for name in progress.track(options.models or effort.models, description="models on this machine")
        }


@contextmanager
def live_server(
    repository: Path,
    name: str,
    sla: SlaTarget,
    effort: Effort,
    *,
    accelerator_bytes: int | None = None,
    advance: Callable[[], object] = lambda: None,
    machine: SteadyMachine | None = None,
) -> Iterator[LiveServer]:
    """Model `name` loaded and ready to be measured, under `sla`; `advance` is called after each measurement. `machine`
    decides which measurements count (default: all).

    Raises as `live_evaluator` does.
    """
    use = _UseWhileFound(ProcessorMeter(), [])
    with live_evaluator(
        repository,
        name,
        None,
        WORKLOAD,
        sla,
        on_probe=use,
        accelerator_bytes=accelerator_bytes,
        effort=effort,
        machine=machine,
    ) as live:
        yield LiveServer(live, use, advance)


def every_core(batch_size: int = 256) -> Configuration:
    """DeepRecSys' split of this machine: a worker on each core."""
    return (Lane(Placement.MODEL_ON_HOST, len(available_cores()), 1, batch_size),)


def target_within_reach(
    repository: Path,
    name: str,
    configuration: Configuration | None = None,
    accelerator_bytes: int | None = None,
    machine: SteadyMachine | None = None,
) -> SlaTarget:
    """The model's own SLA target, or a longer one where this machine, of fewer or slower cores than the paper's, takes
    too long for a single large query in that configuration (default: DeepRecSys')."""
    own = catalog.entry(name, "production").sla
    with live_server(repository, name, own, FIRST_LOOK, accelerator_bytes=accelerator_bytes, machine=machine) as server:
        return longer_target(own, query_ms(server.live, configuration or every_core(), size_at(own.percentile)))


def query_ms(live: LiveEvaluator, configuration: Configuration, items: int) -> float:
    """What a query of so many items takes with nothing beside it."""
    live.configure(configuration)
    times = live.machine.measure(lambda: times_alone(live.driver, live.queries(items)))
    return 1e3 * median(each.latency_s for each in times)


def longer_target(own: SlaTarget, large_query_ms: float) -> SlaTarget:
    """`own`, or `SLACK` times what a large query takes if that is more, in two digits."""
    needed_ms = SLACK * large_query_ms
    return own if needed_ms <= own.latency_ms else SlaTarget(float(f"{needed_ms:.2g}"), own.percentile)


def size_at(percentile: float) -> int:
    """The query size that so many per cent of the queries do not exceed."""
    return int(np.percentile(query_sizes(), percentile))


def alternated(
    server: Evaluate, configurations: Iterable[Configuration], repeats: int
) -> dict[Configuration, list[float]]:
    """Queries/s of each configuration, measured so often in turns that what slows the machine slows all alike.

    What reaches nothing is asked once more: a search found before that it reaches something.
    """
    found: dict[Configuration, list[float]] = {configuration: [] for configuration in configurations}
    for _ in range(repeats):
        for configuration, values in found.items():
            values.append(server(configuration).qps or server(configuration).qps)
    return found


_TURNS_TO_WIN = 3


def winner_in_turns(server: Evaluate, first: Configuration, second: Configuration) -> Configuration:
    """Which of the two reaches more in turns; of equals the first.

    For what searches end at that measure once: while a machine's speed changes they may prefer what was lucky. The
    winner is to be measured anew, since the better of two measurements is too good.
    """
    if first == second:
        return first
    found = alternated(server, (first, second), _TURNS_TO_WIN)
    return max(found, key=lambda each: median(found[each]))


class Pointed(Protocol):
    """What is asked in turns: a `LiveServer`."""

    def point(self, configuration: Configuration) -> Point | None:
        """What a configuration reaches; None where it did not settle."""


_Contender = TypeVar("_Contender", bound=Hashable)


def best_in_turns(
    server: Pointed, candidates: Mapping[_Contender, Sequence[Configuration]], repeats: int
) -> dict[_Contender, Point | None]:
    """Each contender with the best of its candidates, measured anew `repeats` times in turns: medians.

    What chose the best is left out of them, since the best of several measurements is too good.
    """
    every = dict.fromkeys(configuration for own in candidates.values() for configuration in own)
    tried: dict[Configuration, float] = {}
    if any(len(own) > 1 for own in candidates.values()):
        for configuration in every:
            point = server.point(configuration)
            tried[configuration] = -1.0 if point is None else point.qps
    best = {name: max(own, key=lambda each: tried.get(each, 0.0)) for name, own in candidates.items()}
    runs: dict[Configuration, list[Point]] = {configuration: [] for configuration in best.values()}
    for _ in range(repeats):
        for configuration, points in runs.items():
            if (point := server.point(configuration)) is not None:
                points.append(point)
    return {name: _typical(runs[configuration]) for name, configuration in best.items()}


def _typical(points: Sequence[Point]) -> Point | None:
    """Medians; estimated is what any of them estimated."""
    if not points:
        return None
    return Point(
        median(point.qps for point in points),
        median(point.power_watts for point in points),
        median(point.utilization for point in points),
        watts_estimated(points),
    )


WATTS_ESTIMATED = "watts estimated"
"""What is said of all that is per watt, where `watts_estimated`."""


@dataclass(frozen=True, slots=True)
class Point:
    """Latency-bounded throughput, 0 where the SLA target is out of reach; power, and the share of the cores' time that
    is used, 0 to 1, close to it. `power_estimated` if the power is of this machine, which does not tell it."""

    qps: float
    power_watts: float
    utilization: float
    power_estimated: bool = False

    @property
    def efficiency(self) -> float:
        """Queries/s per watt."""
        return self.qps / self.power_watts if self.power_watts > 0 else 0.0


def watts_estimated(points: Iterable[Point | None]) -> bool:
    """Whether the power of any of them was."""
    return any(point is not None and point.power_estimated for point in points)
