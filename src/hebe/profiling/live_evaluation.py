"""What configurations of this server reach, measured: an `Evaluate` of `planning.server_split.search` (Hercules, IV.B).

One model is loaded once; for each configuration a driver is started, since what a scheduler has learned of one, such as
how late it was under too high a load, is not to decide about the next; and the load generator's open loop ramps to the
latency-bounded throughput. Queries reach the driver within the process: what front ends cost is not in it, and as
while serving, they have the cores that no worker has, or share the workers'.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from hebe.load_generator.error import LoadError
from hebe.load_generator.open_loop.interruptible import run_interruptible
from hebe.load_generator.open_loop.open_loop import garbage_set_aside
from hebe.load_generator.search.qps_search import LatencyBoundedThroughput, OnProbe, Probe, QpsSearch, Workload
from hebe.load_generator.search.rate_search import Crossing, Phase
from hebe.machine.meters.cache_allocation import CacheAllocationError, limited_to_ways
from hebe.machine.meters.memory_bandwidth import BandwidthMeter, cache_ways
from hebe.machine.meters.power import PowerMeter
from hebe.machine.meters.processor import ProcessorMeter
from hebe.machine.pinning import (
    PlacedLane,
    PlacedServer,
    available_cores,
    beside_front_end,
    front_end_cores,
    pinned,
    place_lanes,
)
from hebe.machine.process_limits import handed_over_soon, keep_large_allocations
from hebe.machine.this_server import this_server
from hebe.models.hot_rows import Frequencies
from hebe.planning.server_split.search import Configuration, Limits, Reached
from hebe.profile import LatencyProfile, ScalabilityProfile
from hebe.profiling.error import MeasurementError, ProfilingError, StartFailed
from hebe.profiling.evaluator import QUICK, Effort
from hebe.profiling.files.op_use import OpUse
from hebe.profiling.files.points import MeasurePoint, ScalabilityPoint
from hebe.profiling.measurements.busy_service import busy_service_times
from hebe.profiling.measurements.driver_sender import DriverSender, inputs_of, query_of
from hebe.profiling.measurements.op_times import measure_op_times
from hebe.profiling.measurements.query_times import ask_alone, times_alone
from hebe.profiling.measurements.service_measurement import measure_service_times
from hebe.profiling.steady_machine import Disturbance, RunDisturbance, SteadyMachine, steady_machine
from hebe.query import Query
from hebe.runtime.accelerator import Accelerator
from hebe.runtime.loaded_model import LoadedModel, LoadOptions
from hebe.runtime.tier_state import row_format
from hebe.scheduling.events import Stage
from hebe.scheduling.node.node import NodeConfig
from hebe.server_configuration import LANES, Lane, Placement
from hebe.serving.engine.driver import NodeDriver
from hebe.serving.hosting.model_index import reason_of
from hebe.serving.requests.errors import QueryFailed, QueryRefused
from hebe.spec import ModelSpec, ServerSpec, SlaTarget
from hebe.workload.arrivals import arrival_remarks
from hebe.workload.key_frequencies import key_frequencies

NOISE = 0.06
"""Relative differences of throughput that say nothing, on a machine that is otherwise idle."""
_FEWEST_ROUNDS = 2
_ASKED_ALONE = 6
"""Queries, of which the first warms up."""
_OP_WORKERS = (2, 3, 4)
"""Of which idle shares are told, as in Hercules' Figure 5."""
_SIZES_DRAWN = 1000
"""Of queries, to find the size of a large one."""


class LiveEvaluator:
    """Asked what a configuration reaches, measures it. Made by `live_evaluator`.

    `machine` decides which measurements count. `admission`: whether queries that cannot be in time are refused at once,
    as while serving; they count as late.
    """

    def __init__(
        self,
        model: LoadedModel,
        workload: Workload,
        sla: SlaTarget,
        cores: Sequence[int],
        effort: Effort,
        machine: SteadyMachine,
        accelerator: Accelerator | None = None,
        on_probe: OnProbe | None = None,
        power_meter: PowerMeter | None = None,
        *,
        admission: bool = True,
    ) -> None:
        self.sla, self.cores = sla, tuple(cores)
        self.machine = machine
        self.found: LatencyBoundedThroughput | None = None
        self.noise = NOISE
        self._model, self._workload, self._effort = model, workload, effort
        self._accelerator, self._on_probe, self._admission = accelerator, on_probe, admission
        self._power = power_meter
        self._power_estimated, self._power_source = True, "not metered"
        if power_meter is not None:
            self._read_power(power_meter)
        self._driver: NodeDriver | None = None
        self._rehearsed: set[Placement] = set()
        """Where the model has run: of many workers it takes seconds to warm up each as if it were the first."""
        self._pool = workload.pool(inputs_of(model.spec, sla))
        self._best_qps = 0.0
        self._items_sent = 0
        self._bandwidth = BandwidthMeter()
        self._processors = ProcessorMeter(self.cores)

    @property
    def spec(self) -> ModelSpec:
        """The model."""
        return self._model.spec

    @property
    def version(self) -> int:
        """Its version."""
        return self._model.version

    @property
    def identity(self) -> str:
        """The checksum of its files."""
        return self._model.identity

    @property
    def lowest_qps(self) -> float:
        """The least rate that is tried before a configuration is said to reach nothing."""
        return self._qps_search().lowest_qps

    @property
    def power_source(self) -> str:
        """Where watts are from, by the last reading."""
        return self._power_source

    @property
    def power_unreadable(self) -> tuple[str, ...]:
        """What of the power cannot be read, why, and what would help, a sentence each."""
        return () if self._power is None else self._power.unreadable

    @property
    def power_estimated(self) -> bool:
        """Whether these could not be read."""
        return self._power_estimated

    @property
    def bandwidth_source(self) -> str:
        """Where memory traffic is from, or what it is estimated from and why."""
        counted = self._bandwidth
        return counted.source or f"estimated from the rows of the items' lookups: {counted.unreadable}"

    @property
    def disturbance(self) -> Disturbance:
        """What disturbed the measurements so far."""
        return self.machine.disturbance

    @property
    def disturbances(self) -> Sequence[RunDisturbance]:
        """What disturbed each measurement so far that counts, in their order."""
        return self.machine.disturbances

    def remarks(self, found_qps: float) -> tuple[str, ...]:
        """What to know of a throughput that was found, a sentence each: whether probes at that rate were long enough,
        where the recording that arrivals follow has gaps, and where tables have caches, whether these are warmer than
        other queries would find them."""
        too_short = self._qps_search().remarks(self._workload.arrivals, found_qps)
        remarks = [f"{words} (hebe load --find-qps has that option)" for words in too_short]
        remarks += arrival_remarks(self._workload.arrivals)
        tiered = self._model.hierarchy.tiers is not None
        if tiered and (shortages := self._pool.key_shortages(self._items_sent)):
            worst = min(shortages, key=lambda shortage: shortage.drawn / shortage.wanted)
            others = f" (and {len(shortages) - 1} more inputs)" if len(shortages) > 1 else ""
            remarks.append(
                f"{worst.name}{others}: the queries of all probes named at most {worst.drawn:,.0f} different keys,"
                f" where independent ones would have named {worst.wanted:,.0f}, and what one configuration brought into"
                " the tables' caches the next ones found there: the throughput may be too high, and not alike for the"
                " first ones; measure it by hebe load --find-qps --pool-memory, on a server that was just started"
            )
        return tuple(remarks)

    @property
    def driver(self) -> NodeDriver:
        """What runs the model, in the configuration that was asked for last. Raises ValueError before the first."""
        if self._driver is None:
            raise ValueError("no configuration was asked for yet")
        return self._driver

    def __call__(self, configuration: Configuration) -> Reached:
        """The configuration's latency-bounded throughput, and the peak power and the use of the cores close to it.

        Raises `MeasurementError` for one that does not settle in time, whose workers cannot start, or that fails.
        """
        with _naming(configuration):
            return self.machine.measure(lambda: self._reached(configuration))

    def _reached(self, configuration: Configuration) -> Reached:
        self.close()
        cores = self.configure(configuration)
        with pinned(cores):
            self.found = found = self._search()
            watts = 0.0 if self._power is None else self._read_power(self._power)
            traffic, processors = self._bandwidth.read().bytes_per_s, self._processors.read()
            crossing = found.crossing
            if crossing is None or (found.interrupted and found.rounds < _FEWEST_ROUNDS):
                raise MeasurementError(
                    configuration,
                    f"it did not settle within {self._effort.longest_s:g} s, and the last probe was at "
                    f"{found.probes[-1].rate_qps if found.probes else 0.0:,.1f} queries/s: is the machine busy?",
                )
            passed = [probe for probe in found.probes if probe.passed]
            if crossing.qps > 0 and passed:
                tail_ms = min(passed, key=lambda probe: probe.rate_qps).report.tail_latency_ms
            else:
                tail_ms = self._alone_ms()
        self._best_qps = max(self._best_qps, crossing.qps)
        return Reached(
            crossing.qps, watts, tail_ms, crossing.low_qps, crossing.high_qps,
            power_source=self._power_source, power_estimated=self._power_estimated,
            bandwidth_bytes_per_s=self._traffic_of_rows(found) if traffic is None else traffic,
            bandwidth_estimated=traffic is None,
            cpu_share=processors.cores if processors.ticks else None,
        )  # fmt: skip

    def _read_power(self, meter: PowerMeter) -> float:
        """The peak since it was read last, watts; where that is from is noted."""
        peak = meter.read().peak
        self._power_estimated, self._power_source = peak.estimated, peak.source
        return peak.watts

    def _traffic_of_rows(self, found: LatencyBoundedThroughput) -> float | None:
        """Of the items that the rate found brings, by the last probe's mean, bytes/s: an estimate of memory traffic
        where the system does not tell it."""
        row_bytes = row_format(self._model).row_bytes
        item_bytes = sum(each.lookups * row_bytes(self.spec.table(each.table).dim) for each in self.spec.features)
        report = found.probes[-1].report
        if found.crossing is None or not report.answered_in_window:
            return None
        return found.crossing.qps * report.items_in_window / report.answered_in_window * item_bytes

    def _alone_ms(self) -> float:
        """What a large query takes with none beside it, of a size that as large a share of queries has at most as the
        SLA target is for; infinite where it has no answer within a minute.

        The latency of what nothing can be asked of: of the answers under load only those are left that were let in.
        """
        drawn = self._workload.sizes.draw(_SIZES_DRAWN, np.random.default_rng(0))
        try:
            alone = times_alone(self.driver, self.queries(int(np.percentile(drawn, self.sla.percentile))))
        except (QueryFailed, QueryRefused):
            return math.inf
        return 1e3 * float(np.median([each.latency_s for each in alone]))

    def queries(self, items: int, count: int = _ASKED_ALONE) -> list[Query]:
        """So many of `items`, with keys as the load's."""
        offsets = self._pool.offsets(np.full(count, items), np.random.default_rng(0))
        return [query_of(self._pool, self.spec, items, int(offset)) for offset in offsets]

    def configure(self, configuration: Configuration) -> tuple[int, ...]:
        """Split the server in this way, while it runs if it does; returns the cores that are left for the front end."""
        placed = self._placed(configuration)
        if self._driver is None:
            self._driver = self._new_driver(placed, admission=self._admission)
        else:
            self._driver.reconfigure(placed.lanes, threads=placed.threads, gives_way=placed.gives_way)
        return front_end_cores(placed.workers, self.cores)

    def _placed(self, configuration: Configuration) -> PlacedServer:
        return beside_front_end(place_lanes(configuration, self.cores), self.cores)

    def _new_driver(self, placed: PlacedServer, *, admission: bool) -> NodeDriver:
        config = NodeConfig(
            placed.lanes[0].lane.batch_size,
            sla_s=self.sla.latency_s,
            percentile=self.sla.percentile,
            admission=admission,
        )
        placements = {each.lane.placement for each in placed.lanes}
        try:
            driver = NodeDriver(
                self._model, config, placed.lanes, threads=placed.threads, gives_way=placed.gives_way,
                max_items=self._workload.sizes.largest, accelerator=self._accelerator,
                rehearsed=placements <= self._rehearsed,
            )  # fmt: skip
        except Exception as fault:  # the model's own, of a score that is not finite, say, or the system's
            configuration = tuple(each.lane for each in placed.lanes)
            raise StartFailed(configuration, f"its workers cannot start: {reason_of(fault)}") from fault
        self._rehearsed |= placements
        return driver

    def _qps_search(self) -> QpsSearch:
        effort = self._effort
        return QpsSearch(
            self.sla, effort.probe_s, effort.warm_up_s, effort.rounds, effort.resolution, effort.highest_qps
        )

    def _search(self) -> LatencyBoundedThroughput:
        effort, driver, search = self._effort, self.driver, self._qps_search()
        phase = Phase.RAMP

        def on_probe(probe: Probe, crossing: Crossing | None) -> None:
            nonlocal phase
            if phase is not Phase.ROUND and probe.phase is Phase.ROUND:
                self._begin_meters()  # from here on the load is close to what is found
            phase = probe.phase
            self._items_sent += probe.report.items_sent
            if self._on_probe is not None:
                self._on_probe(probe, crossing)

        async def run(stop: asyncio.Event) -> LatencyBoundedThroughput:
            asyncio.get_running_loop().call_later(effort.longest_s, stop.set)
            start_qps = self._best_qps / 2 or 0.5 / await self._one_at_a_time_s()
            sender = DriverSender(driver, self._pool)
            try:
                return await search.run(self._workload, self._pool, sender, start_qps, stop, on_probe)
            finally:
                await sender.close()

        self._begin_meters()
        return run_interruptible(run, catch_interrupt=False)

    def _begin_meters(self) -> None:
        """What is read next is of what follows."""
        if self._power is not None:
            self._power.read()
        self._bandwidth.read()
        self._processors.read()

    async def _one_at_a_time_s(self) -> float:
        sizes = self._workload.sizes.draw(10, np.random.default_rng(0))
        answers = [await ask_alone(self.driver, query) for items in sizes for query in self.queries(int(items), 1)]
        return float(np.median([answer.latency_s for answer in answers]))

    def latency_profiles(self, configuration: Configuration) -> dict[str, LatencyProfile]:
        """Service times by batch size of a worker that nothing runs beside, by what it runs: `whole`, or `sparse` and
        `dense`. Of two lanes, the first one's; the second one's as `beside_...`.
        """
        profiles: dict[str, LatencyProfile] = {}
        for prefix, placed in zip(LANES, place_lanes(configuration, self.cores), strict=False):
            measured = self.machine.measure(partial(self._times_alone, placed))
            profiles |= {f"{prefix}{stage}": profile for stage, profile in measured.items()}
        return profiles

    def _times_alone(self, placed: PlacedLane) -> dict[str, LatencyProfile]:
        largest = self._workload.sizes.largest
        return measure_service_times(self._model, placed, self._pool, largest, self._accelerator)

    def busy_profiles(self, lane: Lane, batch_sizes: Sequence[int]) -> dict[Stage, LatencyProfile]:
        """Service times by batch size of a worker of `lane` while all of them are busy, as the scheduler sees them, by
        stage; threads that share a worker count as one. Its batch size is left aside, and so are sizes beyond what is
        drawn of a query.

        Starts the server anew for each size. Raises `MeasurementError` as `__call__` does.
        """
        with _naming((lane,)):
            return self.machine.measure(lambda: self._busy_profiles(lane, batch_sizes))

    def _busy_profiles(self, lane: Lane, batch_sizes: Sequence[int]) -> dict[Stage, LatencyProfile]:
        sizes = sorted({min(size, self._pool.items) for size in batch_sizes})
        found: dict[Stage, list[tuple[float, float]]] = {}
        for size in sizes:
            of_size = replace(lane, batch_size=size, fused_items=size if lane.fused_items else 0)
            placed = self._placed((of_size,))
            for stage, (typical_s, spread_s) in self._busy_times(placed, size).items():
                found.setdefault(stage, []).append((typical_s / placed.threads, spread_s / placed.threads))
        return {stage: LatencyProfile(tuple(sizes), *zip(*times, strict=True)) for stage, times in found.items()}

    def _busy_times(self, placed: PlacedServer, items: int) -> dict[Stage, tuple[float, float]]:
        self.close()
        driver = self._new_driver(placed, admission=False)

        async def run(_stop: asyncio.Event) -> dict[Stage, tuple[float, float]]:
            return await busy_service_times(driver, self._pool, items)

        try:
            with pinned(front_end_cores(placed.workers, self.cores)):
                return run_interruptible(run, catch_interrupt=False)
        finally:
            driver.close()

    def op_use(self, items: int) -> OpUse:
        """Where the time of a batch of so many goes, on one core; workers are stopped meanwhile. Raises what torch
        raises for a DenseNet that it cannot export."""
        self.close()
        times = self.machine.measure(lambda: measure_op_times(self._model, self._model.plain_dense_net(), items))
        seconds = {str(of): taken_s for of, taken_s in times.by_class().items() if taken_s > 0}
        return OpUse(items, seconds, {workers: times.idle_share(workers) for workers in _OP_WORKERS})

    def scalability_point(self, configuration: Configuration, cache_ways: int | None = None) -> ScalabilityPoint:
        """What the configuration reaches with so many ways of the last-level cache (None: all), and memory traffic.

        One that reaches nothing is measured once more where a search would doubt it. Traffic is read where the system
        tells it; else it is that of the rows and numbers of the items, and `estimated`. Raises `CacheAllocationError`
        where this user may not share the cache out.
        """
        with nullcontext() if cache_ways is None else limited_to_ways(cache_ways):
            reached = self(configuration)
            if Limits(latency_ms=self.sla.latency_ms).doubts(reached):
                reached = self(configuration)
        traffic = reached.bandwidth_bytes_per_s or 0.0
        return ScalabilityPoint(reached.qps, traffic, reached.bandwidth_estimated, reached.power_watts)

    def scalability(self, lane: Lane, measure: MeasurePoint | None = None) -> ScalabilityProfile:
        """Latency-bounded throughput of 1, 2, 4, ... workers that run the whole model, with the cores per worker and
        the batch size of `lane`, and memory traffic: by `measure`, which is `scalability_point` unless given.
        What is resident meanwhile is estimated.

        Most workers are measured with fewer ways of the last-level cache too, where that can be shared out.
        """
        measure = measure or self.scalability_point
        # A control group may allow less than all of these cores' time: more workers than that would share it.
        counts = _doubling(1, max(this_server(self.cores).cores // lane.cores_per_worker, 1))
        by_workers = [
            (Lane(Placement.MODEL_ON_HOST, workers, lane.cores_per_worker, lane.batch_size),) for workers in counts
        ]
        points = [measure(each, None) for each in by_workers]
        qps = tuple(point.qps for point in points)
        traffic = tuple(point.bandwidth_bytes_per_s for point in points)
        ways, by_ways = _by_cache_ways(by_workers[-1], qps[-1], measure)
        rows = ((),) * (len(counts) - 1) + (by_ways,)
        estimated = any(point.estimated for point in points)
        resident = [
            float(self._model.serving_bytes(workers, lane.batch_size, self._placed(each).threads))
            for workers, each in zip(counts, by_workers, strict=True)
        ]
        # Few workers may have more threads each than many.
        memory = tuple(itertools.accumulate(resident, max))
        return ScalabilityProfile(
            self.spec.name, counts, qps, traffic, ways, rows, memory, estimated, lane.cores_per_worker
        )

    def close(self) -> None:
        """Stop the workers."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None


@contextmanager
def _naming(configuration: Configuration) -> Iterator[None]:
    """What a measurement fails with says of which configuration it was."""
    try:
        yield
    except MeasurementError:
        raise
    except (ProfilingError, LoadError, QueryFailed, QueryRefused) as fault:
        raise MeasurementError(configuration, str(fault)) from fault


def _by_cache_ways(
    configuration: Configuration, qps: float, measure: MeasurePoint
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Counts of ways, and throughput with so many; the last one, which reaches `qps`, is the whole cache."""
    there = cache_ways()
    counts = _doubling(there.fewest, there.count) if there.count else (1,)
    try:
        return counts, (*(measure(configuration, count).qps for count in counts[:-1]), qps)
    except CacheAllocationError:  # there, but not this user's to share out
        return counts[-1:], (qps,)


def _doubling(first: int, last: int) -> tuple[int, ...]:
    """`first`, twice that, and so on, and `last`."""
    return (*itertools.takewhile(lambda count: count < last, (first << power for power in itertools.count())), last)


@contextmanager
def live_evaluator(
    directory: Path,
    model: str,
    version: int | None,
    workload: Workload,
    sla: SlaTarget | None,
    *,
    quick: bool = False,
    cores: Sequence[int] | None = None,
    on_probe: OnProbe | None = None,
    load_options: LoadOptions | None = None,
    accelerator: torch.device | None = None,
    accelerator_bytes: int | None = None,
    frequencies: Callable[[], Frequencies] | None = None,
    admission: bool = True,
    effort: Effort | None = None,
    machine: SteadyMachine | None = None,
    server: ServerSpec | None = None,
) -> Iterator[LiveEvaluator]:
    """A model of a repository, loaded and ready to be measured on `cores` (default: all that may be used).

    `sla`: the model's own unless given. `accelerator`: its device (default: the GPU if there is one).
    `accelerator_bytes`: its memory for hot rows (default: `default_memory_bytes`). `frequencies`: how often each row is
    looked up (default: as `workload` draws keys). `effort`: another than that of `quick`. `machine` decides which
    measurements count (default: all, however disturbed). `server`: states the power to estimate from where it cannot be
    read. Raises as `LoadedModel.load` does.
    """
    own = tuple(cores) if cores is not None else available_cores()
    loaded = LoadedModel.load(directory, model, version, load_options, threads=len(own))
    try:
        spec = loaded.spec
        hot = Accelerator(accelerator_bytes, frequencies or (lambda: key_frequencies(spec, workload.keys)), accelerator)
        keep_large_allocations()
        with handed_over_soon(), PowerMeter(server=server, cores=own) as meter:
            evaluator = LiveEvaluator(
                loaded, workload, sla or spec.sla, own, effort or (QUICK if quick else Effort()),
                machine or steady_machine(own), hot, on_probe, meter, admission=admission,
            )  # fmt: skip
            try:
                with garbage_set_aside():
                    yield evaluator
            finally:
                evaluator.close()
    finally:
        loaded.close()
