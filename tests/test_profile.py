from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.profile import EfficiencyTuple, LatencyProfile, ProfileError, ScalabilityProfile

PROFILE = LatencyProfile((1, 10, 100), (0.001, 0.002, 0.011), (0.0, 0.1, 0.2))


def test_interpolates_between_sizes_and_extends_the_slope_from_half_the_last():
    assert PROFILE.service_time_s(1) == 0.001
    assert PROFILE.service_time_s(55) == pytest.approx(0.0065)
    assert PROFILE.service_time_s(200) == pytest.approx(0.021)


def test_beyond_the_last_size_noise_between_neighbours_does_not_decide():
    noisy = LatencyProfile((10, 100, 190, 200), (0.002, 0.011, 0.0215, 0.021), (0.0,) * 4)
    assert noisy.service_time_s(400) == pytest.approx(0.021 + 200 * (0.021 - 0.011) / 100)
    assert LatencyProfile((90, 100), (0.02, 0.03), (0.0, 0.0)).service_time_s(110) == pytest.approx(0.04)


def test_beyond_the_last_size_it_never_falls():
    falling = LatencyProfile((10, 100), (0.02, 0.01), (0.0, 0.0))
    assert falling.service_time_s(200) == falling.service_time_s(100) == 0.01


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_sizes": []}, "batch_sizes is empty; measure at least one size"),
        ({"batch_sizes": "123"}, "batch_sizes is '123': must be a list of whole numbers"),
        ({"batch_sizes": [1.5, 10, 100]}, "batch_sizes is [1.5, 10, 100]: must be a list of whole numbers"),
        ({"batch_sizes": [True, 10, 100]}, "batch_sizes is [True, 10, 100]: must be a list of whole numbers"),
        ({"service_s": [1.0, "2", 3.0]}, "service_s is [1.0, '2', 3.0]: must be a list of numbers"),
        ({"spread_s": 0.0}, "spread_s is 0.0: must be a list of numbers"),
        ({"spread_s": [0, 0, 10**400]}, f"spread_s is [0, 0, {10**400}]: must be a list of numbers"),
    ],
)
def test_a_file_s_fault_is_told_once_and_no_size_is_rounded(change, message):
    with pytest.raises(ProfileError) as caught:
        LatencyProfile.from_dict(PROFILE.to_dict() | change)
    assert str(caught.value) == f"latency profile: {message}"


@pytest.mark.parametrize("name", ["batch_sizes", "service_s", "spread_s"])
def test_a_latency_profile_names_the_field_that_it_lacks(name):
    with pytest.raises(ProfileError, match=f"'{name}' is missing"):
        LatencyProfile.from_dict({key: value for key, value in PROFILE.to_dict().items() if key != name})


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
        ({"qps": 10**400}, "qps is 10+: must be a finite number"),
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


SCALABILITY = ScalabilityProfile(
    "ncf",
    workers=(2, 4, 8),
    qps=(20.0, 40.0, 80.0),
    bandwidth_bytes_per_s=(1e9, 2e9, 4e9),
    cache_ways=(1, 2, 4),
    qps_by_cache_ways=((), (10.0, 20.0, 40.0), (40.0, 60.0, 80.0)),
    memory_bytes=(3e9, 4e9, 6e9),
    estimated=True,
    cores_per_worker=2,
)


def test_a_scalability_profile_survives_the_way_to_disk_and_back():
    assert ScalabilityProfile.from_dict(json.loads(json.dumps(SCALABILITY.to_dict()))) == SCALABILITY
    assert hash(pickle.loads(pickle.dumps(SCALABILITY))) == hash(SCALABILITY)


def test_workers_have_one_core_where_nothing_is_said():
    older = {name: value for name, value in SCALABILITY.to_dict().items() if name != "cores_per_worker"}
    assert ScalabilityProfile.from_dict(older) == replace(SCALABILITY, cores_per_worker=1)


def test_a_scalability_profile_is_linear_between_what_was_measured():
    table = SCALABILITY.qps_table()
    assert table.shape == (9, 5)
    np.testing.assert_allclose(table[:, 4], [0, 10, 20, 30, 40, 50, 60, 70, 80])
    np.testing.assert_allclose(table[4], [0, 10, 20, 30, 40])
    np.testing.assert_allclose(table[8], [0, 40, 60, 70, 80])
    np.testing.assert_allclose(table[6, 1], 60 * (0.25 + 0.5) / 2)  # between the shares at 4 and at 8 workers
    np.testing.assert_allclose(table[2], table[4] / 2)  # nothing measured at 2: as at 4
    np.testing.assert_allclose(SCALABILITY.bandwidth_table()[[0, 1, 3, 8]], [0, 0.5e9, 1.5e9, 4e9])
    np.testing.assert_allclose(SCALABILITY.memory_table()[[0, 1, 3, 8]], [0, 3e9, 3.5e9, 6e9])


def test_workers_that_do_harm_stay_idle():
    worse = ScalabilityProfile("d", (4, 8), (40.0, 30.0), (1e9, 1e9), (2, 4), ((30.0, 40.0), ()))
    assert worse.qps_table()[:, 4].tolist() == [0, 10, 20, 30, 40, 40, 40, 40, 40]
    assert worse.memory_table().tolist() == [0] * 9


def test_a_model_whose_target_is_out_of_reach_has_no_throughput():
    hopeless = ScalabilityProfile("d", (4,), (0.0,), (0.0,), (4,), ((0.0,),))
    assert not hopeless.qps_table().any()


@given(st.data())
def test_more_workers_and_more_ways_never_serve_less(data):
    rate = st.floats(0, 1e6)
    workers = sorted(data.draw(st.sets(st.integers(1, 20), min_size=1, max_size=5)))
    ways = sorted(data.draw(st.sets(st.integers(1, 12), min_size=1, max_size=5)))
    qps = [data.draw(rate) for _ in workers]
    rows = [[*(data.draw(rate) for _ in ways[1:]), whole] if data.draw(st.booleans()) else [] for whole in qps]
    rows[-1] = [*(data.draw(rate) for _ in ways[1:]), qps[-1]]
    table = ScalabilityProfile("m", workers, qps, [0.0] * len(workers), ways, rows).qps_table()
    assert np.isfinite(table).all()
    assert (np.diff(table, axis=0) >= 0).all()
    assert (np.diff(table, axis=1) >= 0).all()
    assert not table[0].any()
    assert not table[:, 0].any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "a b "}, "model is 'a b '"),
        ({"workers": []}, "scalability profile of ncf: workers is empty"),
        ({"workers": 3}, "workers is 3: must be a list"),
        ({"workers": [2, 2, 8]}, r"workers is \[2, 2, 8\]: must be positive and strictly increasing"),
        ({"workers": [0, 4, 8]}, "strictly increasing"),
        ({"workers": [2.5, 4, 8]}, "workers is .* whole numbers"),
        ({"cache_ways": [True, 2, 4]}, "cache_ways is .* whole numbers"),
        ({"cache_ways": [1, 2]}, "qps_by_cache_ways at 4 workers has 3 values where 2 are expected"),
        ({"qps": [1.0, 2.0]}, "qps has 2 values where 3 are expected"),
        ({"qps": [20.0, float("nan"), 80.0]}, "qps has nan"),
        ({"qps": [20.0, -1.0, 80.0]}, "qps has -1.0"),
        ({"qps": [20.0, "fast", 80.0]}, "qps has 'fast'"),
        ({"memory_bytes": [1.0, 10**400, 80.0]}, "memory_bytes has 10+: must be a finite number"),
        ({"bandwidth_bytes_per_s": []}, "bandwidth_bytes_per_s has 0 values"),
        ({"memory_bytes": [1.0]}, "memory_bytes has 1 values"),
        ({"qps_by_cache_ways": []}, "qps_by_cache_ways has 0 rows for 3 worker counts"),
        ({"qps_by_cache_ways": [[], [], []]}, "qps_by_cache_ways has no row"),
        ({"qps_by_cache_ways": [[], [], [40.0, 60.0, 70.0]]}, "at 8 workers: the last, 70.0, must be qps"),
        ({"estimated": "no"}, "estimated is 'no'"),
        ({"cores_per_worker": 0}, "cores_per_worker is 0: must be a whole number of at least 1"),
        ({"cores_per_worker": 1.5}, "cores_per_worker is 1.5: must be a whole number of at least 1"),
        ({"cores_per_worker": True}, "cores_per_worker is True: must be a whole number of at least 1"),
        ({"colour": "red"}, "unknown field 'colour'"),
    ],
)
def test_bad_scalability_profiles_are_refused_by_field(change, message):
    with pytest.raises(ProfileError, match=message):
        ScalabilityProfile.from_dict(SCALABILITY.to_dict() | change)


@pytest.mark.parametrize(
    "name", ["model", "workers", "qps", "bandwidth_bytes_per_s", "cache_ways", "qps_by_cache_ways"]
)
def test_a_scalability_profile_names_the_field_that_it_lacks(name):
    with pytest.raises(ProfileError, match=f"'{name}' is missing"):
        ScalabilityProfile.from_dict({key: value for key, value in SCALABILITY.to_dict().items() if key != name})
