from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.profile import LatencyProfile, ProfileError

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
