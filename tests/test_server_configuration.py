import json

import pytest

from hebe.server_configuration import Lane, Placement, from_dict, to_dict
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
        (("model-on-host", 1, 1, 10**30), "batch_size is 10+: at most 1048576"),
        (("sparse-on-host", 0, 1, 64, 1), "workers is 0"),
        (("hot-sparse-on-accelerator", 0, 1, 64, 0), "dense_workers is 0"),
    ],
)
def test_a_lane_that_cannot_be_is_named(fields, message):
    with pytest.raises(SpecError, match=f"lane {fields[0]}: {message}"):
        Lane(*fields)


def test_an_unknown_placement_is_refused():
    with pytest.raises(SpecError, match="placement is 'nowhere': choose model-on-host, "):
        Lane("nowhere", 1)


MAIN = Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, 3, 2, 64, 2, 4096)
BESIDE = Lane(Placement.MODEL_ON_HOST, 4)


@pytest.mark.parametrize("configuration", [(MAIN,), (BESIDE,), (MAIN, BESIDE)])
def test_a_configuration_survives_the_way_through_plain_settings(configuration):
    settings = json.loads(json.dumps(to_dict(configuration)))
    assert from_dict(settings) == configuration
    assert len(settings) == 6 * len(configuration)
    assert settings["placement"] == str(configuration[0].placement)
    assert settings.get("beside_workers") == (4 if len(configuration) == 2 else None)


def test_more_than_two_lanes_have_no_settings():
    with pytest.raises(SpecError, match="3 lanes: at most 2"):
        to_dict((MAIN, BESIDE, BESIDE))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 1}, "unknown setting 'colour': known are placement, workers"),
        ({"workers": None}, "workers is None: must be a whole number"),
        ({"placement": ["x"]}, "placement is "),
        ({"batch_size": "64"}, "batch_size is '64'"),
        ({"beside_workers": 2}, "setting 'beside_placement' is missing"),
    ],
)
def test_settings_that_are_no_configuration_are_named(change, message):
    with pytest.raises(SpecError, match=message):
        from_dict(to_dict((MAIN,)) | change)


@pytest.mark.parametrize("name", ["placement", "workers", "fused_items"])
def test_a_missing_setting_is_named(name):
    settings = to_dict((MAIN,))
    del settings[name]
    with pytest.raises(SpecError, match=f"setting '{name}' is missing"):
        from_dict(settings)
