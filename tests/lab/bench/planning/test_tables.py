import numpy as np
import pytest

from hebe.workload.query_sizes import ProductionSizes
from hebe_lab.bench.planning.tables import LARGEST, PRICES_PER_HOUR, SLA_MS, TYPES, scalability_profiles, service_table

PROFILES = scalability_profiles(200, 40, 11, 100e9, seed=3)


def test_only_the_base_type_serves_every_query_in_time():
    table = service_table()
    late = (table.quantiles_s[:, LARGEST] > SLA_MS / 1e3).any(1)
    assert dict(zip(TYPES, late.tolist(), strict=True)) == {"base": False, "wide": True, "small": True, "burst": True}
    assert len(PRICES_PER_HOUR) == len(TYPES)


def test_larger_queries_take_longer_and_pace_is_a_factor():
    table, slower = service_table(), service_table(pace=2.0)
    assert (np.diff(table.quantiles_s, axis=1) > 0).all()
    np.testing.assert_allclose(slower.quantiles_s, 2.0 * table.quantiles_s)
    small = ProductionSizes().draw(100, np.random.default_rng(0)).min()
    assert table.quantiles_s[0, small].mean() > table.quantiles_s[1:, small].mean(1).max(), (
        "the base type's cost is fixed"
    )


def test_samples_spread_by_eight_percent_and_come_from_the_seed():
    table = service_table(samples=300, seed=4)
    assert np.log(table.quantiles_s[0, 1]).std() == pytest.approx(0.08, rel=0.1)
    np.testing.assert_array_equal(table.quantiles_s, service_table(samples=300, seed=4).quantiles_s)
    assert not np.array_equal(table.quantiles_s, service_table(samples=300, seed=5).quantiles_s)


def test_profiles_are_as_many_as_models_and_come_from_the_seed():
    assert len(PROFILES) == len({profile.model for profile in PROFILES}) == 200
    assert scalability_profiles(200, 40, 11, 100e9, seed=3) == PROFILES
    assert scalability_profiles(3, 40, 11, 100e9, seed=4) != PROFILES[:3]


def test_two_models_in_five_run_out_of_memory_bandwidth():
    counts = np.array(PROFILES[0].workers)
    assert (counts[0], counts[-1]) == (1, 40)
    bound = 0
    for profile in PROFILES:
        per_worker = np.array(profile.qps) / counts
        scales = per_worker[-1] == pytest.approx(per_worker[0])
        bound += not scales
        used = np.array(profile.bandwidth_bytes_per_s)
        assert (np.diff(used) >= 0).all()
        assert scales or 0.8 * 100e9 <= used[-1] * (1 + 1e-9) <= 100e9 * (1 + 2e-9)
    assert bound / len(PROFILES) == pytest.approx(0.4, abs=0.1)


def test_fewer_cache_ways_never_serve_more():
    for profile in PROFILES[:20]:
        qps = np.array(profile.qps_by_cache_ways)
        assert (np.diff(qps, axis=1) >= 0).all()
        np.testing.assert_allclose(qps[:, -1], profile.qps)
