"""One server shared by several models: who gets how many workers and cache ways, and what each then serves.

What a model does alone is measured (`ScalabilityProfile`); what a set of models does together is predicted:

- cores and cache ways are partitioned, so a model with w workers and k ways can serve `qps[w, k]`, as alone; a worker
  takes as many cores as it had when the model was profiled;
- memory bandwidth cannot be partitioned: of that, each keeps what `BandwidthContention` says with all of them at work;
- what is resident must fit into the server's memory.

`best_splits` finds, for many sets of models at once, the partition that is worth most under given weights. With the
weights 1 / (what each model serves alone) that worth is Hera's effective machine utilization (EMU); with the dual
prices of a demand it is the pricing problem of column generation.

How much models that share a memory slow each other down follows from how each slows itself down alone. A model that
moves much memory shows the memory's latency in its own profile: each further worker serves less than the one before,
long before the bandwidth is used up. The model that moves the most gives the curve, by how much a core is slowed down
at a given traffic. Every model follows it as far as it depends on memory: in the proportion of what its core moves to
what a core moves at most. (Hera's Algorithm 1 knows no slowdown below the full bandwidth.)

    factor of a model     1 + share * (slowdown - 1)
    demand of a model     its traffic alone * its factor alone: what it would move were memory unloaded
    together              slowdown at the sum of all demands; each serves (factor alone / factor together) of its own
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, pairwise

import numpy as np
import numpy.typing as npt

from hebe.planning.error import PlanningError
from hebe.profile import ScalabilityProfile

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]


MOST_CORES, _MOST_CACHE_WAYS = 768, 32
"""Of a server: every way to share them out between two models is tried, which takes memory."""
_CHUNK_CELLS = 4_000_000
"""Sets are worked on in chunks of about this many (set, split) pairs, which bounds the memory taken."""


@dataclass(frozen=True, slots=True)
class ServerResources:
    """What the models on one server share: cores, cache ways, memory bandwidth, memory.

    `memory_bytes` may be infinite where memory is no limit.
    """

    cores: int
    cache_ways: int
    bandwidth_bytes_per_s: float
    memory_bytes: float = math.inf

    def __post_init__(self) -> None:
        for name, count, most in (
            ("cores", self.cores, MOST_CORES), ("cache_ways", self.cache_ways, _MOST_CACHE_WAYS)
        ):  # fmt: skip
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise PlanningError(f"server: {name} is {count!r}: must be a whole number of at least 1")
            if count > most:
                raise PlanningError(f"server: {name} is {count:,}: must be at most {most:,}")
        for name, value in (("bandwidth_bytes_per_s", self.bandwidth_bytes_per_s), ("memory_bytes", self.memory_bytes)):
            if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
                raise PlanningError(f"server: {name} is {value!r}: must be a positive number")


@dataclass(frozen=True)
class ScalabilityTables:
    """Profiles of several models on one kind of server as arrays, over 0..cores cores and 0..cache_ways ways.

    `qps` is float64 `[models, cores + 1, ways + 1]`, `traffic` (bytes/s at that qps) and `memory` (bytes) float64
    `[models, cores + 1]`, `workers` the workers that are really used on so many cores, `[models, cores + 1]`, none
    where one worker takes more; `cores_per_worker` is what each takes, `[models]`; `alone` is what each model serves
    with the whole server, `[models]`. All models fit the server alone. `contention` says how they slow each other down.
    """

    server: ServerResources
    models: tuple[str, ...]
    qps: FloatArray
    traffic: FloatArray
    memory: FloatArray
    workers: IntArray
    cores_per_worker: IntArray
    alone: FloatArray
    contention: BandwidthContention

    @classmethod
    def of(cls, profiles: Sequence[ScalabilityProfile], server: ServerResources) -> ScalabilityTables:
        """Raises `PlanningError` for no or duplicate models and for a profile that this server cannot have given."""
        if not profiles:
            raise PlanningError("profiles: there is none; give a scalability profile for each model")
        names = tuple(profile.model for profile in profiles)
        if twice := [name for at, name in enumerate(names) if name in names[:at]]:
            raise PlanningError(f"profiles: model {twice[0]} has more than one")
        shape = (len(profiles), server.cores + 1)
        qps = np.zeros((*shape, server.cache_ways + 1))
        traffic, memory, workers = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=np.intp)
        each = np.array([profile.cores_per_worker for profile in profiles], dtype=np.intp)
        for row, profile in enumerate(profiles):
            check_memory(profile)
            _check_measured_on(server, profile)
            table, resident = profile.qps_table(), profile.memory_table()
            used = _workers_used(profile, table, resident, server)
            workers[row] = used
            qps[row] = table[used]
            traffic[row] = profile.bandwidth_table()[used]
            memory[row] = resident[used]
        busy_cores = (workers * each[:, None]).astype(np.float64)
        contention = BandwidthContention.of(qps[:, :, -1], traffic, busy_cores, server.bandwidth_bytes_per_s)
        return cls(server, names, qps, traffic, memory, workers, each, qps[:, -1, -1].copy(), contention)

    def only(self, rows: IntArray) -> ScalabilityTables:
        """The tables of some of the models."""
        names = tuple(self.models[row] for row in rows)
        tables = (self.qps[rows], self.traffic[rows], self.memory[rows], self.workers[rows])
        return ScalabilityTables(
            self.server, names, *tables, self.cores_per_worker[rows], self.alone[rows], self.contention.only(rows)
        )

    def index_of(self, model: str) -> int:
        """The row of a model; raises `PlanningError`."""
        try:
            return self.models.index(model)
        except ValueError:
            raise PlanningError(f"model {model}: has no scalability profile") from None


@dataclass(frozen=True, slots=True)
class BestSplits:
    """For each set of models its best split: `value` float64 `[sets]` (-inf: the set does not fit the server).

    `cores`, `cache_ways` and `qps` are `[sets, size]`, members in the order of the set: the share of each member and
    the rate that it serves. Meaningless where `value` is -inf.
    """

    value: FloatArray
    cores: IntArray
    cache_ways: IntArray
    qps: FloatArray


def check_memory(profile: ScalabilityProfile) -> None:
    """Raise `PlanningError` where more workers are said to need less memory, which what fits a server rests on."""
    counted = zip(profile.workers, profile.memory_bytes, strict=False)
    for (fewer, held), (more, holds) in pairwise(counted):
        if holds < held:
            raise PlanningError(
                f"scalability profile of {profile.model}: memory_bytes falls from {held:g} with {fewer} workers to"
                f" {holds:g} with {more}: more workers need as much at least; measure it again"
            )


def all_sets(count: int, size: int) -> IntArray:
    """Every set of `size` out of `count` models, intp `[sets, size]`, members increasing."""
    flat = [member for chosen in combinations(range(count), size) for member in chosen]
    return np.array(flat, dtype=np.intp).reshape(-1, size)


def splits_of(tables: ScalabilityTables, size: int) -> int:
    """How many partitions `best_splits` tries for a set of `size` models: a measure of its work."""
    return len(_splits(size, tables.server.cores, tables.server.cache_ways, _memory_binds(tables, size))[0])


def best_splits(tables: ScalabilityTables, sets: IntArray, weights: FloatArray) -> BestSplits:
    """The split of each set (intp `[sets, size]`) with the largest sum of weight x qps.

    `weights` is float64 `[models]`, none negative. Every member gets at least one core and one cache way; of equally
    good splits the first one wins, so the answer is always the same.
    """
    size = sets.shape[1]
    server, contention = tables.server, tables.contention
    memory_binds = _memory_binds(tables, size)
    cores, ways = _splits(size, server.cores, server.cache_ways, memory_binds)
    if not len(cores):
        none = np.zeros((len(sets), size), dtype=np.intp)
        return BestSplits(np.full(len(sets), -np.inf), none, none, np.zeros(sets.shape))
    # What each model would do in each place of each split, looked up once and not once a set.
    models, sets = np.unique(sets, return_inverse=True)
    sets, weights, row = sets.reshape(-1, size), weights[models], models[:, None]
    capacity = [tables.qps[row, cores[:, place], ways[:, place]] for place in range(size)]
    worths = [weights[:, None] * rates for rates in capacity]
    demand = [contention.demand[row, cores[:, place]] for place in range(size)]
    memory = [tables.memory[row, cores[:, place]] for place in range(size)] if memory_binds else None
    quiet = contention.quiet_bytes_per_s

    value, at = np.empty(len(sets)), np.empty(len(sets), dtype=np.intp)
    step = max(1, _CHUNK_CELLS // (len(cores) * size))
    for start in range(0, len(sets), step):
        chunk = sets[start : start + step]
        worth = _summed(worths, chunk)
        rows, splits = np.nonzero(_summed(demand, chunk) > quiet)
        if rows.size:
            members = chunk[rows]
            own = np.stack([worths[place][members[:, place], splits] for place in range(size)], axis=1)
            worth[rows, splits] = (own * contention.kept_on(models[members], cores[splits])).sum(axis=1)
        if memory is not None:
            worth[_summed(memory, chunk) > server.memory_bytes] = -np.inf
        at[start : start + step] = best = worth.argmax(axis=1)
        value[start : start + step] = worth[np.arange(len(chunk)), best]
    rates = np.stack([capacity[place][sets[:, place], at] for place in range(size)], axis=1)
    return BestSplits(value, cores[at], ways[at], rates * contention.kept_on(models[sets], cores[at]))


def rates_of(tables: ScalabilityTables, sets: IntArray, cores: IntArray, ways: IntArray) -> FloatArray:
    """What the members of sets serve together on so many cores and cache ways: all `[sets, size]`."""
    return np.asarray(tables.qps[sets, cores, ways] * tables.contention.kept_on(sets, cores))


def all_splits(tables: ScalabilityTables, sets: IntArray) -> tuple[IntArray, IntArray, FloatArray]:
    """Every split of each set (intp `[sets, size]`): cores and cache ways, intp `[splits, size]`, and the rates that
    the members serve, float64 `[sets, splits, size]`, all 0 where the set does not fit the memory."""
    size = sets.shape[1]
    cores, ways = _splits(size, tables.server.cores, tables.server.cache_ways, _memory_binds(tables, size))
    members = np.repeat(sets, len(cores), axis=0)
    cores_of, ways_of = (np.tile(part, (len(sets), 1)) for part in (cores, ways))
    fits = tables.memory[members, cores_of].sum(axis=1, keepdims=True) <= tables.server.memory_bytes
    rates = rates_of(tables, members, cores_of, ways_of) * fits
    return cores, ways, rates.reshape(len(sets), len(cores), size)


def _summed(by_place: Sequence[FloatArray], sets: IntArray) -> FloatArray:
    """What the members of each set add up to in each split, float64 `[sets, splits]`."""
    total = by_place[0][sets[:, 0]]
    for place in range(1, len(by_place)):
        total += by_place[place][sets[:, place]]
    return total


def _memory_binds(tables: ScalabilityTables, size: int) -> bool:
    """Whether some set of `size` models would not fit the memory if each had all the workers it can use."""
    return bool(np.sort(tables.memory[:, -1])[-size:].sum() > tables.server.memory_bytes)


@lru_cache(maxsize=32)
def _splits(size: int, cores: int, ways: int, may_idle: bool) -> tuple[IntArray, IntArray]:
    """All partitions of cores and ways over `size` members, at least one each: two intp `[splits, size]`.

    All ways are given out, and all cores unless `may_idle` (where memory is short, idle cores may be the price of
    fitting at all).
    """
    by_cores = _compositions(cores, size)
    if may_idle:
        by_cores = np.concatenate([_compositions(fewer, size) for fewer in range(cores, size - 1, -1)] or [by_cores])
    by_ways = _compositions(ways, size)
    return np.repeat(by_cores, len(by_ways), axis=0), np.tile(by_ways, (len(by_cores), 1))


def _compositions(total: int, parts: int) -> IntArray:
    """All ways to write `total` as a sum of `parts` numbers of at least 1, intp `[ways, parts]`."""
    shape = (math.comb(total - 1, parts - 1), parts - 1)
    cuts = np.array(list(combinations(range(1, total), parts - 1)), dtype=np.intp).reshape(shape)
    edges = np.column_stack([np.zeros(len(cuts), dtype=np.intp), cuts, np.full(len(cuts), total, dtype=np.intp)])
    return np.diff(edges, axis=1)


def _check_measured_on(server: ServerResources, profile: ScalabilityProfile) -> None:
    """Raise `PlanningError` for a profile that this server cannot have given, before tables of its counts are made."""
    where = f"scalability profile of {profile.model}"
    most, each = profile.workers[-1], profile.cores_per_worker
    if most * each > server.cores:
        of_several = f" of {each} cores each" if each > 1 else ""
        raise PlanningError(f"{where}: workers go up to {most}{of_several}: the server has {server.cores} cores")
    if profile.cache_ways[-1] != server.cache_ways:
        raise PlanningError(
            f"{where}: cache_ways go up to {profile.cache_ways[-1]}: the server has {server.cache_ways};"
            " profile the model on this kind of server"
        )
    if max(profile.bandwidth_bytes_per_s) > server.bandwidth_bytes_per_s:
        raise PlanningError(
            f"{where}: bandwidth_bytes_per_s goes up to {max(profile.bandwidth_bytes_per_s):g}: the server has"
            f" {server.bandwidth_bytes_per_s:g}; give the server's as it was when the model was profiled"
        )
    if math.isfinite(server.memory_bytes) and not profile.memory_bytes:
        raise PlanningError(
            f"{where}: memory_bytes is not known, but the server's is, {server.memory_bytes:g}: profile the model"
            " again, or leave out the server's, and memory is no limit"
        )
    if (most + 1) * each <= server.cores and _with_one_more(profile) <= server.memory_bytes:
        # Else the model would be taken for one that no more workers help, and its throughput for the whole server's.
        raise PlanningError(
            f"{where}: workers go up to {most}: the server has cores and memory for more; profile the model with all"
            " that fit this kind of server, or give the server's cores and memory_bytes as they were then"
        )


def _with_one_more(profile: ScalabilityProfile) -> float:
    """Bytes resident with one worker more than were measured, going by the last ones; 0 if not known."""
    if not profile.memory_bytes:
        return 0.0
    (before, held), (most, holds) = ((0, 0.0), *zip(profile.workers, profile.memory_bytes, strict=True))[-2:]
    return holds + (holds - held) / (most - before)


def _workers_used(
    profile: ScalabilityProfile, qps: FloatArray, memory: FloatArray, server: ServerResources
) -> IntArray:
    """For 0..cores cores the fewest workers that serve as much with any number of ways: intp `[cores + 1]`.

    `qps` and `memory` are the profile's tables, over workers.
    """
    most = int(np.flatnonzero(memory <= server.memory_bytes)[-1])
    if most == 0:
        raise PlanningError(
            f"scalability profile of {profile.model}: memory_bytes is {memory[1]:g} with one worker:"
            f" the server has {server.memory_bytes:g}"
        )
    counts = np.minimum(np.arange(server.cores + 1) // profile.cores_per_worker, most)
    rises = np.append(False, (np.diff(qps, axis=0) > 0).any(axis=1))
    return np.maximum.accumulate(np.where(rises, np.arange(len(qps)), 0))[counts]


@dataclass(frozen=True)
class BandwidthContention:
    """For some models, each with 0..cores cores, float64 `[models, cores + 1]` each.

    `demand`: bytes/s were memory unloaded; `share`: how far a core depends on memory, 0 to 1; `alone`: the factor by
    which its own traffic slows each down. `demands` and `slowdowns` are the knots of the memory's curve.
    """

    bandwidth_bytes_per_s: float
    demand: FloatArray
    share: FloatArray
    alone: FloatArray
    demands: FloatArray
    slowdowns: FloatArray

    @classmethod
    def of(cls, qps: FloatArray, traffic: FloatArray, busy: FloatArray, bandwidth: float) -> BandwidthContention:
        """From what each model serves and moves alone, and how many of the cores are then `busy` with it, float64
        `[models, cores + 1]` each."""
        moved, slowdowns = _curve(qps, traffic, busy)
        factor = np.interp(traffic, moved, slowdowns)
        a_core = np.divide(traffic * factor, busy, out=np.zeros_like(traffic), where=busy > 0)
        most = float(a_core.max(initial=0.0))
        share = a_core / most if most > 0 else a_core
        alone = 1.0 + share * (factor - 1.0)
        last = float(slowdowns[-1])
        # Beyond what was measured nothing is known but that the bandwidth is the end: from there on all wait in turn.
        ends = np.array([1.0, 64.0]) * bandwidth * last
        demands = np.concatenate([moved * slowdowns, ends])
        return cls(bandwidth, traffic * alone, share, alone, demands, np.concatenate([slowdowns, ends / bandwidth]))

    def only(self, rows: npt.NDArray[np.intp]) -> BandwidthContention:
        """Of some of the models, by the same curve."""
        of_models = (self.demand[rows], self.share[rows], self.alone[rows])
        return BandwidthContention(self.bandwidth_bytes_per_s, *of_models, self.demands, self.slowdowns)

    @property
    def quiet_bytes_per_s(self) -> float:
        """The largest demand that slows nobody down."""
        return float(self.demands[self.slowdowns <= 1.0][-1])

    def kept_on(self, models: IntArray, cores: IntArray | int) -> FloatArray:
        """`kept` by models, intp `[sets, size]`, that run together on so many cores each."""
        at = models, cores
        return self.kept(self.demand[at], self.share[at], self.alone[at])

    def kept(self, demand: FloatArray, share: FloatArray, alone: FloatArray) -> FloatArray:
        """What is kept of their throughput by models that run together, all float64 `[sets, size]`, in (0, 1].

        A model of its own keeps all of it: between the curve's knots its factor may come out below that measured
        alone, which is the least that it is.
        """
        slowdown = np.interp(demand.sum(axis=1), self.demands, self.slowdowns)[:, None]
        factor = np.maximum(1.0 + share * (slowdown - 1.0), alone)
        moved = (demand / factor).sum(axis=1, keepdims=True)
        # Who waits less than the curve says moves more; the bandwidth is the end all the same.
        fit = self.bandwidth_bytes_per_s / np.maximum(moved, self.bandwidth_bytes_per_s)
        return np.asarray(alone / factor * fit)


def _curve(qps: FloatArray, traffic: FloatArray, busy: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The memory's slowdown by what is moved, both increasing, from (0, 1): of the model that moves the most."""
    hungriest = int(traffic.max(axis=1).argmax())
    served, moved, counts = qps[hungriest], traffic[hungriest], busy[hungriest]
    a_core = np.divide(served, counts, out=np.zeros_like(served), where=counts > 0)
    best = int(a_core.argmax())
    # Fewer cores than serve best each are short of something else: queries wait for a worker.
    used = np.arange(len(counts)) > best
    used &= (a_core > 0) & (moved > moved[best])
    slowdowns = np.maximum.accumulate(a_core[best] / a_core[used])
    rising = np.maximum.accumulate(moved[used])
    knots, at = np.unique(np.concatenate([[0.0, moved[best]], rising]), return_index=True)
    return knots, np.concatenate([[1.0, 1.0], slowdowns])[at]
