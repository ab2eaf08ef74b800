"""The workers of one lane of a server: started on their cores, with what each runs and what the scheduler is told of it
(Hercules, section IV.B, Figure 10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from hebe.machine.pinning import PlacedLane
from hebe.runtime.accelerator import Accelerator
from hebe.runtime.executors.batch_outcome import Measured
from hebe.runtime.executors.gil_free_executor import UnlockedExecutor
from hebe.runtime.loaded_model import LoadedModel
from hebe.runtime.workers.gil_free_worker import Reports, UnlockedWorker
from hebe.runtime.workers.worker import Runner, Worker
from hebe.scheduling.events import WorkerRole
from hebe.scheduling.node.lane_roles import roles_of
from hebe.server_configuration import Placement

MOST_REHEARSED_ITEMS = 1024
"""Of the largest batch of a warm-up, which is run several times while the server waits: larger ones take after it."""


@dataclass(frozen=True, slots=True)
class LaneWorker:
    """A worker's thread, what it does, and the number of the worker in its lane; a worker may have several threads."""

    thread: Worker
    role: WorkerRole
    number: int

    @property
    def worker(self) -> tuple[int, int]:
        """Whose thread it is: lane, and number there."""
        return self.role.lane, self.number


@dataclass(frozen=True, slots=True)
class Crew:
    """The workers of one role in a lane: the cores of each, what it runs, and the number of the first of them."""

    role: WorkerRole
    cores: tuple[tuple[int, ...], ...]
    new_runner: Callable[[], Runner]
    first_number: int = 0


def crews_of(
    model: LoadedModel, placed: PlacedLane, number: int, max_items: int, accelerator: Accelerator | None
) -> list[Crew]:
    """Those of lane `number` that take queries, and the dense ones if there are any. `max_items`: the largest query.

    Raises what `Accelerator.hot_sparse_net` does, and ValueError for a lane on an accelerator that is not there.
    """
    lane = placed.lane
    op_workers, device, hot = lane.cores_per_worker, None, None
    if lane.placement.on_accelerator:
        if accelerator is None:
            raise ValueError(f"lane {lane.placement}: this server has no accelerator")
        device = accelerator.device
        if lane.placement is Placement.HOT_SPARSE_ON_ACCELERATOR:
            hot = accelerator.hot_sparse_net(model, lane.dense_workers)
    first, dense = roles_of(lane, number, max_items)
    if dense is None:
        new_executor: Callable[[], Runner]
        if device is None and model.runs_unlocked:
            new_executor = partial(model.new_unlocked_executor, first.batch_size, op_workers)
        else:
            new_executor = partial(model.new_executor, first.batch_size, hot, op_workers, device=device)
        return [Crew(first, placed.all_workers, new_executor)]
    pipeline = model.new_pipeline(first.batch_size, dense.batch_size, hot, op_workers, device=device)
    return [
        Crew(first, placed.workers, pipeline.sparse),
        Crew(dense, placed.dense_workers, pipeline.dense, len(placed.workers)),
    ]


def start_lane(
    model: LoadedModel,
    placed: PlacedLane,
    number: int,
    ids: Iterator[int],
    reports: Reports,
    *,
    max_items: int,
    threads: int = 1,
    gives_way: bool = False,
    accelerator: Accelerator | None = None,
    rehearsed: bool = False,
) -> list[LaneWorker]:
    """Start lane `number` of a model, each worker warmed up; worker ids are drawn from `ids`, outcomes are told to
    `reports.finished`.

    Workers that run the whole model on the host have so many `threads`, started one after the other, since warm-ups
    tell how long a batch takes with none beside it. `rehearsed`: the model has run before, and queries are answered on
    these cores meanwhile, so that warm-ups are as short as they can be.
    Raises what a warm-up raised, what `Accelerator.hot_sparse_net` does, and ValueError for a lane on an `accelerator`
    that is not there; no thread is left then.
    """
    several = placed.lane.placement is Placement.MODEL_ON_HOST
    started: list[LaneWorker] = []
    measured: set[WorkerRole] = set()
    try:
        # Those that are handed something first: there must be somebody to hand on to.
        for crew in reversed(crews_of(model, placed, number, max_items, accelerator)):
            warm_up_items = min(crew.role.batch_size, MOST_REHEARSED_ITEMS)
            for _ in range(threads if several else 1):
                for worker, cores in enumerate(crew.cores, start=crew.first_number):
                    runner = crew.new_runner()
                    if rehearsed:
                        warm_up = partial(_meet, model, runner, warm_up_items, measured=crew.role in measured)
                        measured.add(crew.role)
                    else:
                        warm_up = partial(model.warm_up, runner.rehearse, warm_up_items)
                    thread: Worker
                    if isinstance(runner, UnlockedExecutor):
                        thread = UnlockedWorker(next(ids), runner, cores, warm_up, reports, gives_way=gives_way)
                    else:
                        thread = Worker(next(ids), runner, cores, warm_up, reports.finished, gives_way=gives_way)
                    started.append(LaneWorker(thread, crew.role, worker))
                for each in started[-len(crew.cores) :]:
                    each.thread.started.result()
    except BaseException:
        for each in started:
            each.thread.stop()
        raise
    return started


def _meet(model: LoadedModel, runner: Runner, batch_size: int, *, measured: bool) -> Measured:
    """A warm-up of what was rehearsed before: one item, if the times of workers of this role are `measured` already."""
    if measured:
        model.warm_up(runner.rehearse, 1, repeats=1)
        return []
    return model.warm_up(runner.rehearse, batch_size, repeats=1, resting=True)
