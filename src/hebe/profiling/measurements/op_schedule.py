"""Op workers on paper: which op runs where and when if several workers share one batch, and how long they idle.

Hercules' op-parallelism (section III-A, Figure 5): the ops of a batch that do not wait for each other run side by
side, but Predict-FC waits for Bottom-FC and the SparseNet, and workers are idle meanwhile. Times and dependencies in,
a schedule out; `op_times` measures both.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass

from hebe.op_graph import OpGraph, OpGraphError


@dataclass(frozen=True, slots=True)
class OpSpan:
    """When and where one op runs: seconds from the beginning of the batch."""

    op: str
    worker: int
    start_s: float
    stop_s: float


@dataclass(frozen=True, slots=True)
class OpSchedule:
    """The ops in the order in which they begin, and when the last one ends."""

    workers: int
    spans: tuple[OpSpan, ...]
    length_s: float

    @property
    def busy_s(self) -> float:
        """Of all workers together."""
        return sum(span.stop_s - span.start_s for span in self.spans)

    @property
    def idle_share(self) -> float:
        """Of the workers' time until the last op ends, 0 to 1."""
        return max(0.0, 1.0 - self.busy_s / (self.workers * self.length_s)) if self.length_s > 0 else 0.0


def schedule_ops(graph: OpGraph, seconds: Mapping[str, float], workers: int) -> OpSchedule:
    """List scheduling: a worker that is free takes, of the ops whose inputs are there, the one with the longest way to
    the end (of equal ones the first in the graph).

    `seconds` gives each op's time. Raises ValueError for fewer than one worker, `OpGraphError` for an op without a
    time or with one that is negative or not finite.
    """
    if workers < 1:
        raise ValueError(f"workers is {workers}: must be at least 1")
    order = {op.name: i for i, op in enumerate(graph.ops)}
    inputs = {op.name: op.inputs() for op in graph.ops}
    readers: dict[str, list[str]] = {name: [] for name in order}
    for name, read in inputs.items():
        if name not in seconds or not (math.isfinite(seconds[name]) and seconds[name] >= 0):
            raise OpGraphError(f"op {name}: its time is {seconds.get(name)!r}: must be seconds of at least 0")
        for other in read:
            readers[other].append(name)
    left_s: dict[str, float] = {}
    for name in reversed(order):
        left_s[name] = seconds[name] + max((left_s[reader] for reader in readers[name]), default=0.0)

    waits_for = {name: len(read) for name, read in inputs.items()}
    ready = [(-left_s[name], order[name], name) for name in order if not waits_for[name]]
    heapq.heapify(ready)
    free = list(range(workers))
    running: list[tuple[float, int, int, str]] = []
    spans, now_s = [], 0.0
    while ready or running:
        while ready and free:
            _, _, name = heapq.heappop(ready)
            worker = heapq.heappop(free)
            spans.append(OpSpan(name, worker, now_s, now_s + seconds[name]))
            heapq.heappush(running, (now_s + seconds[name], order[name], worker, name))
        now_s = running[0][0]
        while running and running[0][0] == now_s:
            _, _, worker, done = heapq.heappop(running)
            heapq.heappush(free, worker)
            for reader in readers[done]:
                waits_for[reader] -= 1
                if not waits_for[reader]:
                    heapq.heappush(ready, (-left_s[reader], order[reader], reader))
    return OpSchedule(workers, tuple(spans), now_s)


def idle_share(graph: OpGraph, seconds: Mapping[str, float], workers: int) -> float:
    """Share of the workers' time, 0 to 1, that they wait for ops to become ready or for the last one to end."""
    return schedule_ops(graph, seconds, workers).idle_share
