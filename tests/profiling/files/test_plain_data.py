import json
import math
from dataclasses import asdict

import pytest

from hebe.planning.server_split.search import Reached
from hebe.profile import LatencyProfile, ProfileError
from hebe.profiling.files.plain_data import (
    LATER_RUN_FIELDS,
    checked_fields,
    checked_list,
    disturbance_from_dict,
    disturbance_to_dict,
    parse_json,
    point_from_dict,
    point_to_dict,
    run_disturbance_from_dict,
    run_from_dict,
    run_to_dict,
    times_from_dict,
    times_to_dict,
)
from hebe.profiling.files.points import ScalabilityPoint
from hebe.profiling.steady_machine import Disturbance, RunDisturbance
from hebe.scheduling.events import Stage
from hebe.server_configuration import Lane, Placement, to_dict

CONFIGURATION = (Lane(Placement.SPARSE_ON_HOST, 2, 1, 64, 1, 256), Lane(Placement.MODEL_ON_HOST, 1))


@pytest.mark.parametrize(
    "reached",
    [
        Reached(12.5, 30.25, 7.0),
        Reached(0.0),
        Reached(1 / 3, 1e-300, math.inf),
        Reached(12.5, 30.25, 7.0, 12.0, 13.0, "RAPL", False, 1e9, False, 0.75, 1),
    ],
)
def test_a_run_survives_the_way_to_disk_and_back(reached):
    data = json.loads(json.dumps(run_to_dict(CONFIGURATION, reached), allow_nan=False))
    assert run_from_dict("run", data) == (CONFIGURATION, reached)


def test_a_run_of_an_older_version_does_not_say_where_its_watts_are_from():
    data = run_to_dict(CONFIGURATION, Reached(12.5, 30.25, 7.0, 12.0, 13.0, "RAPL", False, 1e9, False, 0.75))
    for name in LATER_RUN_FIELDS:
        del data[name]
    assert run_from_dict("run", data)[1] == Reached(12.5, 30.25, 7.0, 12.0, 13.0)


def test_whole_numbers_of_a_file_become_what_was_measured():
    data = run_to_dict(CONFIGURATION, Reached(0.0)) | {"qps": 3, "power_watts": 4}
    assert run_from_dict("run", data)[1] == Reached(3.0, 4.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qps": None}, "run: qps is None: must be a number"),
        ({"qps": True}, "run: qps is True"),
        ({"power_watts": -1}, "run: power_watts is -1"),
        ({"tail_latency_ms": 10**400}, "run: tail_latency_ms is 10+: must be a finite number"),
        ({"qps": math.inf}, "run: qps is inf: must be a finite number"),
        ({"tail_latency_ms": math.inf}, "run: tail_latency_ms is inf: must be a finite number"),
        ({"high_qps": math.inf}, "run: high_qps is inf: must be a finite number"),
        ({}, "run: power_watts is 0: a server that serves draws power"),
        ({"power_watts": None}, "run: power_watts is None"),
        ({"power_source": 3}, "run: power_source is 3: must be text or null"),
        ({"power_estimated": None}, "run: power_estimated is None: must be true or false"),
        ({"bandwidth_bytes_per_s": -1}, "run: bandwidth_bytes_per_s is -1"),
        ({"cpu_share": 1.01, "power_watts": 1}, "run: cpu_share is 1.01: must be at most 1"),
        ({"cpu_share": -0.1}, "run: cpu_share is -0.1"),
        ({"runs_of_nothing": 0.5}, "run: runs_of_nothing is 0.5: must be a whole number"),
        ({"runs_of_nothing": True}, "run: runs_of_nothing is True"),
        ({"configuration": 3}, "run: configuration is 3: must be an object"),
        ({"watts": 3}, "run: unknown field 'watts'"),
    ],
)
def test_what_is_no_run_is_named(change, message):
    with pytest.raises(ProfileError, match=message):
        run_from_dict("run", run_to_dict(CONFIGURATION, Reached(1.0)) | change)


@pytest.mark.parametrize("cache_ways", [None, 3])
def test_a_point_of_scalability_survives_the_way_to_disk_and_back(cache_ways):
    point = ScalabilityPoint(1 / 3, 1e11, estimated=True)
    data = json.loads(json.dumps(point_to_dict(CONFIGURATION, cache_ways, point), allow_nan=False))
    assert point_from_dict("point", data) == (CONFIGURATION, cache_ways, point)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qps": -1}, "point: qps is -1: must be a number"),
        ({"qps": math.inf}, "point: qps is inf: must be a finite number"),
        ({"bandwidth_bytes_per_s": None}, "point: bandwidth_bytes_per_s is None"),
        ({"cache_ways": 0}, "point: cache_ways is 0: must be null, or a whole number of at least 1"),
        ({"cache_ways": True}, "point: cache_ways is True"),
        ({"estimated": 1}, "point: estimated is 1: must be true or false"),
        ({"configuration": 3}, "point: configuration is 3: must be an object"),
        ({"watts": 3}, "point: unknown field 'watts'"),
    ],
)
def test_what_is_no_point_of_scalability_is_named(change, message):
    with pytest.raises(ProfileError, match=message):
        point_from_dict("point", point_to_dict(CONFIGURATION, 3, ScalabilityPoint(1.0, 2.0, estimated=False)) | change)


DISTURBED = RunDisturbance(0.25, 100, 0.012, 3, 4.5, 0.1)


def test_what_disturbed_measurements_survives_the_way_to_disk_and_back():
    assert run_disturbance_from_dict("run", json.loads(json.dumps(asdict(DISTURBED)))) == DISTURBED
    disturbance = Disturbance(0.25, 0.5, 3, 4.5, 0.1)
    assert disturbance_from_dict("all", json.loads(json.dumps(disturbance_to_dict(disturbance)))) == disturbance


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"denied": -0.1}, "run: denied is -0.1: must be a number of at least 0"),
        ({"slowest_s": 0}, "run: slowest_s is 0: the work"),
        ({"busy": None}, "run: busy is None"),
        ({"watts": 3}, "run: unknown field 'watts'"),
    ],
)
def test_what_is_no_disturbance_of_a_run_is_named(change, message):
    with pytest.raises(ProfileError, match=message):
        run_disturbance_from_dict("run", asdict(DISTURBED) | change)


TIMED = Lane(Placement.PIPELINE_ON_HOST, 1, 1, 64, 1)
TIMES = {
    Stage.SPARSE: LatencyProfile((16, 64), (0.001, 0.002), (0.0, 0.0001)),
    Stage.DENSE: LatencyProfile((16, 64), (0.003, 0.004), (0.0, 0.0001)),
}


def test_times_of_batches_survive_the_way_to_disk_and_back():
    data = json.loads(json.dumps(times_to_dict(TIMED, (16, 64), TIMES), allow_nan=False))
    assert times_from_dict("times", data) == (TIMED, (16, 64), TIMES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lane": 3}, "times: lane is 3: must be an object"),
        ({"lane": to_dict(CONFIGURATION)}, "times: must be of one lane"),
        ({"batch_sizes": [1.5]}, "times: must be of one lane, and of whole numbers of items"),
        ({"stages": {"hot": {}}}, "times: stages: unknown stage 'hot'"),
        ({"stages": {"whole": {}}}, "'batch_sizes' is missing"),
        ({"watts": 3}, "times: unknown field 'watts'"),
    ],
)
def test_what_are_no_times_of_batches_is_named(change, message):
    with pytest.raises(ProfileError, match=message):
        times_from_dict("times", times_to_dict(TIMED, (16, 64), TIMES) | change)


@pytest.mark.parametrize("text", ["", "{", "NaN", '{"a": Infinity}', "[" * 100_000, b"\xff"])
def test_what_is_no_json_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_fields_are_all_there_and_no_others():
    assert checked_fields("x", {"a": 1, "b": 2}, ("a", "b")) == {"a": 1, "b": 2}
    assert checked_fields("x", {"a": 1, "b": 2}, ("a",), ("b", "c")) == {"a": 1, "b": 2}
    with pytest.raises(ProfileError, match="x: field 'b' is missing"):
        checked_fields("x", {"a": 1}, ("a", "b"))
    with pytest.raises(ProfileError, match=r"x is \{\}: must be a list"):
        checked_list("x", {})
