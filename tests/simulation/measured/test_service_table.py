import numpy as np
import pytest

from hebe.profile import LatencyProfile
from hebe.simulation.measured.service_table import ServiceTable, ServiceTableError


def test_quantiles_are_interpolated_between_measured_sizes() -> None:
    table = ServiceTable.from_samples({"gpu": {10: [2e-3, 1e-3], 20: [4e-3, 3e-3]}})
    assert table.largest == 20
    assert table.samples == 2
    np.testing.assert_allclose(table.quantiles_s[0, [1, 10, 15, 20]], [[1e-3, 2e-3]] * 2 + [[2e-3, 3e-3], [3e-3, 4e-3]])
    np.testing.assert_allclose(table.mean_s[0, [9, 14, 19]], [1.5e-3, 2.5e-3, 3.5e-3])


def test_types_with_fewer_samples_keep_their_distribution() -> None:
    table = ServiceTable.from_samples({"a": {1: list(np.linspace(1, 2, 101))}, "b": {1: [1.0, 2.0, 3.0]}})
    assert table.quantiles_s.shape == (2, 2, 101)
    assert table.mean_s[1, 0] == pytest.approx(2.0, abs=0.01)


def test_a_profile_and_back() -> None:
    profile = LatencyProfile((1, 100), (1e-3, 5e-3), (1e-5, 1e-4))
    table = ServiceTable.from_profiles({"cpu": profile}, largest=100)
    again = table.profile("cpu", [1, 100])
    np.testing.assert_allclose(again.service_s, profile.service_s, rtol=1e-6)
    np.testing.assert_allclose(again.spread_s, profile.spread_s, rtol=0.15)


def test_some_types_in_another_order() -> None:
    table = ServiceTable.from_samples({"a": {1: [1.0, 1.0]}, "b": {1: [2.0, 2.0]}})
    assert table.of_types(["b"]).mean_s.tolist() == [[2.0]]
    with pytest.raises(ServiceTableError, match="server type c: not measured; there are a, b"):
        table.of_types(["c"])


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ({}, "no server type"),
        ({"a": {}}, "server type a: not measured at any size"),
        ({"a": {10: [1.0]}, "b": {20: [1.0]}}, "measured up to 10 items, another to 20"),
        ({"a": {10: [1.0, -1.0]}}, "server type a, 10 items"),
        ({"a": {10: [1.0, float("nan")]}}, "server type a, 10 items"),
        ({"a": {0: [1.0], 10: [1.0]}}, "server type a, 0 items"),
        ({"a": {1 << 27: [1.0]}}, "sizes up to 134,217,728 items, 1 server types and 1 samples of each size take more"),
    ],
)
def test_samples_are_checked(samples: dict[str, dict[int, list[float]]], message: str) -> None:
    with pytest.raises(ServiceTableError, match=message):
        ServiceTable.from_samples(samples)


def test_beyond_the_last_size_the_spread_stays() -> None:
    profile = LatencyProfile((1, 100), (1e-3, 5e-3), (1e-5, 1e-4))
    table = ServiceTable.from_profiles({"cpu": profile}, largest=200)
    wide = np.ptp(table.quantiles_s[0], axis=1)
    assert wide[200] == pytest.approx(wide[100])
    assert table.mean_s[0, -1] == pytest.approx(profile.service_time_s(200))
