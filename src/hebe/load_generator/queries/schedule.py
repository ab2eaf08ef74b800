"""What one run sends, and when each query of it is due; the same for the same plan and pool."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hebe.load_generator.queries.query_pool import QueryPool
from hebe.spec import SlaTarget
from hebe.workload.arrivals import ArrivalProcess, Times, over_window
from hebe.workload.query_sizes import QuerySizes

Query = tuple[float, int, int]
"""When it is due (seconds after the start), items, offset in the pool."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What one run sends. `stop_when_failing`: end the run when the SLA can no longer be met."""

    rate_qps: float
    duration_s: float
    warm_up_s: float
    arrivals: ArrivalProcess
    sizes: QuerySizes
    seed: int
    sla: SlaTarget | None = None
    answer_timeout_s: float = 30.0
    stop_when_failing: bool = False

    @property
    def total_s(self) -> float:
        """Warm-up and measured window."""
        return self.warm_up_s + self.duration_s

    def has_arrivals(self) -> bool:
        """Whether any query is due in the measured window."""
        rng, _ = _streams(self)
        return any(times[-1] >= self.warm_up_s for times in _arrivals(self, rng))


class Schedule:
    """The queries of one run, drawn block by block as they are taken."""

    def __init__(self, plan: RunPlan, pool: QueryPool) -> None:
        self._plan, self._pool = plan, pool
        arrivals_rng, self._queries_rng = _streams(plan)
        self._blocks = _arrivals(plan, arrivals_rng)
        self._times: Times = np.empty(0)
        self._sizes = np.empty(0, dtype=np.int64)
        self._before = self._items_before = 0

    def queries(self) -> Iterator[Query]:
        """All of them in the order of their times; to be taken once."""
        for times in self._blocks:
            sizes = self._plan.sizes.draw(len(times), self._queries_rng)
            offsets = self._pool.offsets(sizes, self._queries_rng)
            self._before += len(self._times)
            self._items_before += int(self._sizes.sum())
            self._times, self._sizes = times, sizes
            yield from zip(times.tolist(), sizes.tolist(), offsets.tolist(), strict=True)

    def items_of(self, taken: int) -> int:
        """Items of the first `taken` queries, as many as were sent of those that `queries` gave."""
        return self._items_before + int(self._sizes[: taken - self._before].sum())

    def times_after(self, taken: int) -> Iterator[Times]:
        """When all after the first `taken` are due, block after block; `queries` is not to be asked any more."""
        yield self._times[taken - self._before :]
        yield from self._blocks


def _streams(plan: RunPlan) -> tuple[np.random.Generator, np.random.Generator]:
    """Of arrivals, and of what arrives."""
    arrivals, queries = np.random.SeedSequence(plan.seed).spawn(2)
    return np.random.default_rng(arrivals), np.random.default_rng(queries)


def _arrivals(plan: RunPlan, rng: np.random.Generator) -> Iterator[Times]:
    return over_window(plan.arrivals, plan.duration_s).blocks(plan.rate_qps, plan.total_s, rng)
