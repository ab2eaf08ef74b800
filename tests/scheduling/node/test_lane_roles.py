"""What the workers of each kind of lane are told."""

from __future__ import annotations

import pytest

from hebe.scheduling.events import Stage, WorkerRole
from hebe.scheduling.node.lane_roles import roles_of
from hebe.server_configuration import Lane, Placement


@pytest.mark.parametrize(
    ("lane", "first", "dense"),
    [
        (Lane(Placement.MODEL_ON_HOST, 2, 1, 64), WorkerRole(Stage.WHOLE, 64, lane=7), None),
        (
            Lane(Placement.PIPELINE_ON_HOST, 2, 1, 64, 3),
            WorkerRole(Stage.SPARSE, 64, lane=7, most_handed=5),
            WorkerRole(Stage.DENSE, 64, False, 7, 5),
        ),
        (
            Lane(Placement.SPARSE_ON_HOST, 2, 1, 64, 1, 1024),
            WorkerRole(Stage.SPARSE, 64, lane=7, most_handed=18),
            WorkerRole(Stage.DENSE, 1024, True, 7, 18),
        ),
        (
            Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, 2, 1, 64, 2, 65_536),
            WorkerRole(Stage.SPARSE, 64, lane=7, most_handed=64),
            WorkerRole(Stage.DENSE, 65_536, True, 7, 64),
        ),
        (Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, 0, 1, 64, 2), WorkerRole(Stage.WHOLE, 500, False, 7), None),
        (Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, 0, 1, 64, 2, 256), WorkerRole(Stage.WHOLE, 256, True, 7), None),
    ],
)
def test_roles(lane, first, dense):
    assert roles_of(lane, 7, max_items=500) == (first, dense)
