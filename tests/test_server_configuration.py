import pytest

from hebe.server_configuration import Lane, Placement
from hebe.spec import SpecError


def test_a_lane_takes_cores_for_both_of_its_stages():
    assert Lane(Placement.MODEL_ON_HOST, 10, 2).cores == 20
    assert Lane(Placement.PIPELINE_ON_HOST, 3, 4, 256, 8).cores == 20
    assert Lane("hot-sparse-on-accelerator", dense_workers=2).cores == 2
    assert Lane("sparse-on-host", 1, dense_workers=1).placement.on_accelerator


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("model-on-host", 0), "workers is 0: must be at least 1"),
        (("model-on-host", 1, 0), "cores_per_worker is 0"),
        (("model-on-host", 1, 1, 2.5), "batch_size is 2.5"),
        (("model-on-host", 1, 1, 64, 2), "dense_workers is 2: must be 0"),
        (("pipeline-on-host", 1, 1, 64, 0), "dense_workers is 0: must be at least 1"),
        (("pipeline-on-host", 1, 1, 64, 1, 512), "fused_items is for accelerators"),
        (("sparse-on-host", 1, 1, 64, 1, -1), "fused_items is -1"),
        (("sparse-on-host", 1, 1, 64, 1, 10**6), "fused_items is 1000000: at most 65536"),
        (("sparse-on-host", 0, 1, 64, 1), "workers is 0"),
        (("hot-sparse-on-accelerator", 0, 1, 64, 0), "dense_workers is 0"),
    ],
)
def test_a_lane_that_cannot_be_is_named(fields, message):
    with pytest.raises(SpecError, match=f"lane {fields[0]}: {message}"):
        Lane(*fields)


def test_an_unknown_placement_is_refused():
    with pytest.raises(ValueError, match="nowhere"):
        Lane("nowhere", 1)
