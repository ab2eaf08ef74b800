"""How long batches take on a server all of whose workers are busy, as its scheduler sees it.

More than a worker takes alone (`service_measurement`): workers compete for memory and for the interpreter lock, and
each batch is scheduled, handed over and reported. Of batches of few items that is the greater part.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

import numpy as np

from hebe.load_generator.queries.query_pool import QueryPool
from hebe.profiling.error import ProfilingError
from hebe.profiling.measurements.driver_sender import DriverSender
from hebe.scheduling.events import Action, BatchFinished, Event, Stage, StartBatch
from hebe.scheduling.node.lane_roles import roles_of
from hebe.serving.engine.driver import NodeDriver, clock

_PARTS = 16
"""Batches of a query: what each query costs is mostly shared by so many."""
_SHORTEST_S, _LONGEST_S, _FIRST_S = 0.3, 6.0, 60.0
"""It takes so long at least, at most, and where a stage has finished no batch by then."""
_BATCHES = 4
"""Of each worker, at least, unless that takes longer than the longest."""
_SLOWEST_SHARE = 0.05
"""Of the batches, left out of the mean: the machine did something else meanwhile."""
_LOOK_S = 0.01


class BatchTimes:
    """An `Observer`: how long batches of exactly `items` took, from when the scheduler started one until it heard that
    it had finished. `first` is what workers run that take queries."""

    def __init__(self, items: int, first: Stage) -> None:
        self.taken_s: dict[Stage, list[float]] = defaultdict(list)
        self._items, self._first = items, first
        self._begun: dict[int, tuple[Stage, float]] = {}

    def __call__(self, now: float, event: Event, actions: list[Action]) -> None:
        """Note the event."""
        if isinstance(event, BatchFinished):
            begun = self._begun.pop(event.worker_id, None)
            if begun is not None and not event.failed:
                stage, since_s = begun
                self.taken_s[stage].append(now - since_s)
        for action in actions:
            if isinstance(action, StartBatch) and action.batch.items == self._items:
                stage = Stage.DENSE if action.handed else self._first
                self._begun[action.worker_id] = stage, now

    def typical(self) -> dict[Stage, tuple[float, float]]:
        """By stage, the mean without the slowest few, on which throughput hangs, and the median absolute deviation."""
        return {stage: _typical(taken_s) for stage, taken_s in self.taken_s.items()}


async def busy_service_times(driver: NodeDriver, pool: QueryPool, items: int) -> dict[Stage, tuple[float, float]]:
    """Seconds that batches of `items` take and their spread, by stage, while more queries wait than there are workers.

    The driver has one lane, whose batch size is `items`, and admits all. Raises `ProfilingError` if a stage has
    finished no batch in a minute, and what the driver says of a query that it does not answer.
    """
    lane = driver.lanes[0].lane
    first = roles_of(lane, 0, items)[0].stage
    stages = 1 if first is Stage.WHOLE else 2
    fewest = _BATCHES * driver.configured_workers
    parts = 1 if lane.placement.on_accelerator else max(min(_PARTS, pool.items // items), 1)  # it takes queries whole
    query_items = items * parts
    sender, rng = DriverSender(driver, pool), np.random.default_rng(0)
    times = BatchTimes(items, first)

    async def ask() -> None:
        while True:
            await driver.infer(sender.query(query_items, int(rng.integers(0, pool.items - query_items + 1))))

    clients = [asyncio.ensure_future(ask()) for _ in range(2 * driver.configured_workers + 1)]
    driver.observer = times
    began_s = clock()
    try:
        counts: list[int] = []
        enough = False
        while clock() < began_s + (_SHORTEST_S if enough else _LONGEST_S if len(counts) == stages else _FIRST_S):
            ended, _ = await asyncio.wait(clients, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            for client in ended:
                client.result()
            counts = [len(taken_s) for taken_s in times.taken_s.values()]
            enough = len(counts) == stages and min(counts) >= fewest
    finally:
        driver.observer = None
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    if len(times.taken_s) < stages:
        raise ProfilingError(
            f"not every stage finished a batch of {items} items within {_FIRST_S:g} s: leave out batches so large "
            "(--batch-sizes), or is the machine busy?"
        )
    return times.typical()


def _typical(taken_s: list[float]) -> tuple[float, float]:
    rising = np.sort(taken_s)
    kept = rising[: int(np.ceil((1 - _SLOWEST_SHARE) * rising.size))]
    return float(kept.mean()), float(np.median(np.abs(rising - np.median(rising))))
