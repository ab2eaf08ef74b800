from __future__ import annotations

import copy
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.profile import EfficiencyTuple, LatencyProfile, ProfileError

PROFILE = LatencyProfile((1, 10, 100), (0.001, 0.002, 0.011), (0.0, 0.1, 0.2))


def test_interpolates_between_sizes_and_extends_the_last_slope():
    assert PROFILE.service_time_s(1) == 0.001
    assert PROFILE.service_time_s(55) == pytest.approx(0.0065)
    assert PROFILE.service_time_s(200) == pytest.approx(0.021)


def test_a_single_size_extends_in_proportion():
    assert LatencyProfile((10,), (0.01,), (0.0,)).service_time_s(20) == pytest.approx(0.02)


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_is_monotone_where_the_measurements_are(a, b):
    small, large = sorted((a, b))
    assert PROFILE.service_time_s(small) <= PROFILE.service_time_s(large)


def test_survives_the_way_to_disk_and_back():
    assert LatencyProfile.from_dict(PROFILE.to_dict()) == PROFILE


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        (((), (), ()), "batch_sizes"),
        (((1, 1), (1.0, 1.0), (0.0, 0.0)), "increasing"),
        (((1,), (1.0, 2.0), (0.0,)), "length"),
        (((1,), (0.0,), (0.0,)), "service_s"),
        (((1,), (float("nan"),), (0.0,)), "service_s"),
        (((1,), (1.0,), (-1.0,)), "spread_s"),
    ],
)
def test_bad_profiles_are_refused_by_field(fields, named):
    with pytest.raises(ProfileError, match=named):
        LatencyProfile(*fields)


@pytest.mark.parametrize("data", [{}, {"batch_sizes": "x", "service_s": [], "spread_s": []}])
def test_bad_files_are_refused(data):
    with pytest.raises(ProfileError):
        LatencyProfile.from_dict(data)


TUPLE = EfficiencyTuple("dlrm-rmc1", "CPU+GPU", 1200.0, 310.5, {"workers": 10, "fused": True}, estimated=True)


def test_an_efficiency_tuple_survives_the_way_to_disk_and_back():
    assert EfficiencyTuple.from_dict(json.loads(json.dumps(TUPLE.to_dict()))) == TUPLE
    assert hash(pickle.loads(pickle.dumps(TUPLE))) == hash(copy.deepcopy(TUPLE)) == hash(TUPLE)
    assert EfficiencyTuple("a", "b", 1.0, 2.0) != TUPLE


def test_a_server_type_that_cannot_serve_a_model_is_a_tuple_of_no_throughput():
    assert EfficiencyTuple("a", "b", 0, 0).qps == 0


def test_the_configuration_of_an_efficiency_tuple_is_its_own():
    settings = {"workers": 1}
    held = EfficiencyTuple("a", "b", 1.0, 2.0, settings)
    settings["workers"] = 2
    assert held.configuration == {"workers": 1}
    with pytest.raises(TypeError):
        held.configuration["workers"] = 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": ""}, "model is ''"),
        ({"server_type": " T1"}, "server_type is ' T1'"),
        ({"server_type": 3}, "server_type is 3"),
        ({"qps": -1.0}, "efficiency tuple of dlrm-rmc1 on CPU.GPU: qps is -1.0"),
        ({"qps": float("nan")}, "qps is nan"),
        ({"qps": True}, "qps is True"),
        ({"power_watts": "many"}, "power_watts is 'many'"),
        ({"power_watts": 0}, "power_watts is 0"),
        ({"configuration": 3}, "configuration is 3"),
        ({"configuration": {"workers": [1]}}, "configuration: 'workers' is"),
        ({"estimated": 1}, "estimated is 1"),
        ({"watts": 1}, "unknown field 'watts'"),
    ],
)
def test_bad_efficiency_tuples_are_refused_by_field(change, message):
    with pytest.raises(ProfileError, match=message):
        EfficiencyTuple.from_dict(TUPLE.to_dict() | change)


@pytest.mark.parametrize("name", ["model", "server_type", "qps", "power_watts"])
def test_an_efficiency_tuple_names_the_field_that_it_lacks(name):
    with pytest.raises(ProfileError, match=f"'{name}' is missing"):
        EfficiencyTuple.from_dict({key: value for key, value in TUPLE.to_dict().items() if key != name})
