import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.planning.error import PlanningError
from hebe.simulation.analytic.roofline import RISE, MemoryContention

MEMORY = MemoryContention(100e9)


def test_an_idle_memory_slows_nobody_down():
    assert MEMORY.slowdown(0.0) == 1.0
    assert MEMORY.slowdown(50e9) == pytest.approx(1.0, abs=0.01)


@given(st.floats(0, 1e13), st.floats(0, 1e13))
def test_more_demand_is_served_more_slowly_and_never_beyond_the_bandwidth(one, other):
    small, large = sorted((one, other))
    assert 1.0 <= MEMORY.slowdown(small) <= MEMORY.slowdown(large)
    assert large / MEMORY.slowdown(large) <= 100e9 * (1 + 1e-3)


@given(st.floats(0, 100e9))
def test_both_views_agree(moved):
    """What is moved asks for moved x factor: the slowdown of that demand is the factor."""
    factor = MEMORY.slowdown_at(moved)
    assert MEMORY.slowdown(moved * factor) == pytest.approx(factor, rel=1e-3)


def test_the_curve_ends_at_its_rise_and_overload_is_shared():
    assert MEMORY.slowdown_at(100e9) == pytest.approx(1 + RISE)
    assert MEMORY.slowdown(300e9) == pytest.approx(3.0, rel=0.01)
    assert MEMORY.slowdown(1e13) == pytest.approx(100.0)


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, float("nan")])
def test_a_memory_without_bandwidth_is_refused(bandwidth):
    with pytest.raises(PlanningError, match="bandwidth_bytes_per_s"):
        MemoryContention(bandwidth)
