from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.models import catalog
from hebe.planning.error import PlanningError
from hebe.simulation.analytic.batch_phases import BatchPhases, SharedServerModel
from hebe.simulation.analytic.server_types import HERA_SOCKET
from hebe.workload.reuse_profile import PRODUCTION_2021

SHARED = SharedServerModel(HERA_SOCKET, 11)
PHASES = {
    name: BatchPhases(SHARED, catalog.entry(f"hera-{name}")) for name in ("dlrm-a", "dlrm-d", "ncf", "wnd", "dien")
}
ROOM = 3e6


def seconds(times):
    return times.gather_s + times.spill_s + times.compute_s


@pytest.mark.parametrize("name", PHASES)
def test_a_larger_cache_never_costs_more(name):
    times = [PHASES[name].times([50, 256], cache) for cache in (1e6, 2e6, 4e6, 1e8)]
    for less, more in pairwise(times):
        assert (more.memory_bytes <= less.memory_bytes * (1 + 1e-9)).all()
        assert (seconds(more) <= seconds(less) * (1 + 1e-9)).all()


@given(st.sampled_from(sorted(PHASES)), st.integers(1, 500), st.integers(1, 500), st.floats(1e5, 1e8))
def test_more_items_never_cost_less(name, one, other, cache):
    small, large = sorted((one, other))
    times = PHASES[name].times([small, large], cache)
    for part in (times.gather_s, times.spill_s, times.gather_bytes, times.spill_bytes, seconds(times)):
        assert np.isfinite(part).all()
        assert part[0] <= part[1] * (1 + 1e-9) + 1e-12
    assert (times.compute_s >= 0).all()


def test_gathered_rows_take_their_start_and_their_bytes():
    """DLRM (D): 640 rows of 1 KiB an item, hardly any of which are cached."""
    times = PHASES["dlrm-d"].times([100], ROOM)
    assert times.gather_bytes[0] == pytest.approx(100 * 640 * 1024, rel=0.01)
    assert times.gather_s[0] == pytest.approx(100 * 640 * (28e-9 + 1024 / 12e9), rel=0.01)


def test_a_cache_that_holds_everything_leaves_computing():
    times = PHASES["ncf"].times([100], 1e12)
    assert times.memory_bytes[0] == pytest.approx(0.0)
    assert times.compute_s[0] > 0


def test_weights_that_do_not_fit_are_read_for_every_batch():
    weights = 4 * (1376 * 1024 + 1024 * 512 + 512 * 256)
    assert PHASES["wnd"].times([1], 1e5).spill_bytes[0] == pytest.approx(weights, rel=0.1)


def test_skewed_lookups_hit_where_even_ones_do_not():
    skewed = BatchPhases(SHARED, catalog.entry("hera-dlrm-a"), PRODUCTION_2021)
    assert skewed.times([100], ROOM).gather_bytes[0] < 0.9 * PHASES["dlrm-a"].times([100], ROOM).gather_bytes[0]


def test_the_socket():
    assert SHARED.way_bytes == pytest.approx(2e6)
    assert SHARED.memory.bandwidth_bytes_per_s == pytest.approx(0.7 * 128e9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cache_ways": 0}, "cache_ways is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"core_cache_bytes": 0.0}, "core_cache_bytes is 0.0"),
        ({"row_bytes_per_s": float("nan")}, "row_bytes_per_s is nan"),
        ({"row_start_s": -1.0}, "row_start_s is -1.0"),
        ({"server": replace(HERA_SOCKET, llc_bytes=0)}, "server's llc_bytes is 0"),
    ],
)
def test_a_server_that_says_too_little_is_refused(change, message):
    with pytest.raises(PlanningError, match=f"hera-socket: {message}"):
        replace(SHARED, **change)
