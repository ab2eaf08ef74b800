"""Which cores a worker runs on, and putting it there.

Affinity is set per thread and inherited by threads that it starts later, so the op workers that a pinned worker starts
stay on the worker's cores.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hebe.server_configuration import Lane, Placement


def available_cores() -> tuple[int, ...]:
    """The cores this process may use, in order."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def allot_cores(workers: int, cores_per_worker: int, cores: Sequence[int]) -> list[tuple[int, ...]]:
    """Cores of each worker, taken from the highest down and shared in turn once all are given out.

    From the highest down because interrupts and the front end usually sit on the first ones. Raises ValueError for no
    workers, or for workers of no core or of more than there are.
    """
    if workers < 1 or cores_per_worker < 1:
        raise ValueError(f"workers is {workers} and cores per worker {cores_per_worker}: both must be at least 1")
    if cores_per_worker > len(cores):
        raise ValueError(f"cores per worker is {cores_per_worker}, but only {len(cores)} core(s) may be used")
    falling = list(reversed(cores))
    allotted = []
    for worker in range(workers):
        first = worker * cores_per_worker
        allotted.append(tuple(sorted(falling[(first + i) % len(falling)] for i in range(cores_per_worker))))
    return allotted


@dataclass(frozen=True, slots=True)
class PlacedLane:
    """A lane and the cores of each of its workers, and of each of its dense workers."""

    lane: Lane
    workers: tuple[tuple[int, ...], ...]
    dense_workers: tuple[tuple[int, ...], ...] = ()

    @property
    def all_workers(self) -> tuple[tuple[int, ...], ...]:
        """The cores of every worker."""
        return self.workers + self.dense_workers


def place_lanes(lanes: Sequence[Lane], cores: Sequence[int]) -> tuple[PlacedLane, ...]:
    """Cores for every worker of these lanes, of which none has another's. Raises ValueError if they are too few.

    Taken from the highest down, as `allot_cores` does, so that what is left over is the front end's.
    """
    needed = sum(lane.cores for lane in lanes)
    if needed > len(cores):
        raise ValueError(f"the configuration takes {needed} cores, but only {len(cores)} may be used here")
    left = list(cores)

    def take(count: int, each: int) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(sorted(left.pop() for _ in range(each))) for _ in range(count))

    placed = [
        PlacedLane(lane, take(lane.workers, lane.cores_per_worker), take(lane.dense_workers, 1)) for lane in lanes
    ]
    return tuple(placed)


def front_end_cores(allotted: Sequence[tuple[int, ...]], cores: Sequence[int]) -> tuple[int, ...]:
    """Cores that no worker has, for the front end; all of them if the workers have every one."""
    taken = {core for worker in allotted for core in worker}
    return tuple(core for core in cores if core not in taken) or tuple(cores)


def shared_with_front_end(
    allotted: Sequence[tuple[int, ...]], cores: Sequence[int], front_end: Sequence[int] | None = None
) -> bool:
    """Whether any worker has a core on which the front end runs as well: `front_end`, by default what is left of
    `cores`.
    """
    theirs = set(front_end_cores(allotted, cores) if front_end is None else front_end)
    return any(not theirs.isdisjoint(worker) for worker in allotted)


MOST_THREADS_PER_WORKER = 2
"""While one waits for the interpreter lock the other computes."""


def threads_per_worker(
    allotted: Sequence[tuple[int, ...]], cores: Sequence[int], front_end: Sequence[int] | None = None
) -> int:
    """How many threads each worker should have: two on a core of its own, where one can compute while the other waits
    for the interpreter lock, or for its next batch. On the front end's cores a second one would be in its way, and on
    several cores each of its op workers, on whom the others wait.
    """
    alone = not shared_with_front_end(allotted, cores, front_end) and all(len(worker) == 1 for worker in allotted)
    return MOST_THREADS_PER_WORKER if alone else 1


@dataclass(frozen=True, slots=True)
class PlacedServer:
    """The lanes of one model on a server's cores, and how their workers get on with the front end.

    `threads` and `gives_way` are as `lane_workers.start_lane` wants them.
    """

    lanes: tuple[PlacedLane, ...]
    threads: int
    gives_way: bool

    @property
    def workers(self) -> tuple[tuple[int, ...], ...]:
        """The cores of every worker."""
        return tuple(own for placed in self.lanes for own in placed.all_workers)


def beside_front_end(
    lanes: Sequence[PlacedLane], cores: Sequence[int], front_end: Sequence[int] | None = None
) -> PlacedServer:
    """These lanes beside a front end that has `front_end`, by default what they leave of `cores`, or all if nothing."""
    workers = [own for placed in lanes for own in placed.all_workers]
    on_host_alone = all(placed.lane.placement is Placement.MODEL_ON_HOST for placed in lanes)
    threads = threads_per_worker(workers, cores, front_end) if on_host_alone else 1
    return PlacedServer(tuple(lanes), threads, shared_with_front_end(workers, cores, front_end))


def pin_thread(cores: Sequence[int], thread_id: int = 0) -> None:
    """Restrict a thread (0: the calling one) to `cores`, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(thread_id, cores)


@contextlib.contextmanager
def pinned(cores: Sequence[int]) -> Iterator[None]:
    """The calling thread restricted to `cores`, and afterwards to those it had. Threads and processes inherit it."""
    before = available_cores()
    pin_thread(cores)
    try:
        yield
    finally:
        pin_thread(before)


def interrupt_nobody() -> None:
    """Have the calling thread, and those it starts, wait for a core rather than take it from a thread in its midst.

    For load generators that share a core with the server: one that wakes up inside the server's system call would stop
    it there, holding the interpreter lock, which a client on another machine cannot do.
    """
    if hasattr(os, "sched_setscheduler"):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def lower_priority(niceness: int) -> None:
    """Let the calling thread give way to others of this process: `niceness` of 1 (a little) to 19 (wherever it can)."""
    if hasattr(os, "setpriority"):
        thread_id = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread_id, max(os.getpriority(os.PRIO_PROCESS, thread_id), niceness))
