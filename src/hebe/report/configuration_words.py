"""A server's split as people read it."""

from __future__ import annotations

from collections.abc import Sequence

from hebe.server_configuration import Lane, Placement


def configuration_words(configuration: Sequence[Lane]) -> str:
    """One line: `model-on-host, 2 workers of 1 core, batches of 64`; a second lane behind `; beside it`."""
    return "; beside it ".join(_lane_words(lane) for lane in configuration)


def _lane_words(lane: Lane) -> str:
    parts = [str(lane.placement)]
    pipeline = lane.placement is not Placement.MODEL_ON_HOST
    if lane.workers:
        workers = _counted(lane.workers, "sparse worker" if pipeline else "worker")
        parts.append(f"{workers} of {_counted(lane.cores_per_worker, 'core')}")
    if lane.dense_workers:
        where = "on the accelerator" if lane.placement.on_accelerator else "of 1 core"
        parts.append(f"{_counted(lane.dense_workers, 'dense worker')} {where}")
    if lane.workers:
        parts.append(f"batches of {lane.batch_size:,}")
    if lane.placement.on_accelerator:
        parts.append(f"fusing up to {lane.fused_items:,} items" if lane.fused_items else "a query at a time")
    return ", ".join(parts)


def _counted(count: int, name: str) -> str:
    return f"{count} {name}{'' if count == 1 else 's'}"
