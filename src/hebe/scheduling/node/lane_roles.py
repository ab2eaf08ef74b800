"""What the workers of a lane do, as the scheduler is told (Hercules, section IV.B, Figure 10)."""

from __future__ import annotations

from hebe.scheduling.events import Stage, WorkerRole
from hebe.server_configuration import Lane, Placement

_MOST_HANDED = 64
"""Batches under way in a lane at most, however many an accelerator could fuse: each has buffers."""


def roles_of(lane: Lane, number: int, max_items: int) -> tuple[WorkerRole, WorkerRole | None]:
    """What the workers of lane `number` do that take queries, and the dense ones if there are any.

    `max_items`: the largest query.
    """
    if lane.placement is Placement.MODEL_ON_HOST:
        return WorkerRole(Stage.WHOLE, lane.batch_size, lane=number), None
    fused = lane.fused_items
    if not lane.workers:  # all rows that it reads are on the accelerator, which takes queries as they are
        return WorkerRole(Stage.WHOLE, fused or max_items, fuse=fused > 0, lane=number), None
    dense_items = max(fused, lane.batch_size)
    room = lane.dense_workers * max(dense_items // lane.batch_size, 1)
    most_handed = min(lane.workers + room, max(_MOST_HANDED, lane.workers))
    return (
        WorkerRole(Stage.SPARSE, lane.batch_size, lane=number, most_handed=most_handed),
        WorkerRole(Stage.DENSE, dense_items, fuse=fused > 0, lane=number, most_handed=most_handed),
    )
