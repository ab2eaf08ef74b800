"""The workers of one lane of a server: started on their cores, with what each runs and what the scheduler is told of it
(Hercules, section IV.B, Figure 10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from hebe.query import Batch
from hebe.runtime.accelerator import Accelerator
from hebe.runtime.executor import BatchOutcome
from hebe.runtime.loaded_model import LoadedModel
from hebe.runtime.pinning import PlacedLane
from hebe.runtime.worker import Finished, Measured, Runner, Worker
from hebe.scheduling.events import WorkerRole
from hebe.scheduling.lane_roles import roles_of
from hebe.server_configuration import Placement

_MOST_REHEARSED_ITEMS = 1024
"""Of the largest batch of a warm-up, which is run several times while the server waits: larger ones take after it."""


@dataclass(frozen=True, slots=True)
class LaneWorker:
    """A worker's thread, what it does, and the number of the worker in its lane; a worker may have several threads."""

    thread: Worker
    role: WorkerRole
    number: int


def start_lane(
    model: LoadedModel,
    placed: PlacedLane,
    number: int,
    ids: Iterator[int],
    finished: Finished,
    *,
    max_items: int,
    threads: int = 1,
    gives_way: bool = False,
    accelerator: Accelerator | None = None,
) -> list[LaneWorker]:
    """Start lane `number` of a model, each worker warmed up; worker ids are drawn from `ids`.

    Workers that run the whole model on the host have so many `threads`, started one after the other, since warm-ups
    tell how long a batch takes with none beside it. Raises what a warm-up raised, what `Accelerator.hot_sparse_net`
    does, and ValueError for a lane on an `accelerator` that is not there; no thread is left then.
    """
    lane = placed.lane
    first, dense = roles_of(lane, number, max_items)
    hot = None
    if lane.placement.on_accelerator and accelerator is None:
        raise ValueError(f"lane {lane.placement}: this server has no accelerator")
    if accelerator is not None and lane.placement is Placement.HOT_SPARSE_ON_ACCELERATOR:
        hot = accelerator.hot_sparse_net(model, lane.dense_workers)
    on_accelerator, op_workers = lane.placement.on_accelerator, lane.cores_per_worker
    started: list[LaneWorker] = []

    def start(
        role: WorkerRole, cores: tuple[tuple[int, ...], ...], make: Callable[[], tuple[Runner, _Rehearse]]
    ) -> None:
        beginning = []
        for worker, own in enumerate(cores):
            runner, rehearse = make()
            warm_up = partial(_warm_up, model, rehearse, role.batch_size)
            thread = Worker(next(ids), runner, own, warm_up, finished, gives_way=gives_way)
            beginning.append(LaneWorker(thread, role, worker if role is first else len(placed.workers) + worker))
        started.extend(beginning)
        for each in beginning:
            each.thread.started.result()

    def whole() -> tuple[Runner, _Rehearse]:
        executor = model.new_executor(first.batch_size, hot, op_workers, on_accelerator=on_accelerator)
        return executor, executor.run

    try:
        if dense is None:
            for _ in range(1 if on_accelerator else threads):
                start(first, placed.all_workers, whole)
            return started
        pipeline = model.new_pipeline(
            first.batch_size, dense.batch_size, hot, op_workers, on_accelerator=on_accelerator
        )

        def sparse() -> tuple[Runner, _Rehearse]:
            runner = pipeline.sparse()
            return runner, runner.rehearse

        def dense_one() -> tuple[Runner, _Rehearse]:
            runner = pipeline.dense()
            return runner, runner.rehearse

        start(dense, placed.dense_workers, dense_one)
        start(first, placed.workers, sparse)
        return started
    except BaseException:
        for each in started:
            each.thread.stop()
        raise


_Rehearse = Callable[[Batch], BatchOutcome]


def _warm_up(model: LoadedModel, rehearse: _Rehearse, batch_size: int) -> Measured:
    return model.warm_up(rehearse, min(batch_size, _MOST_REHEARSED_ITEMS))
