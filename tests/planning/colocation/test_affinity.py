import numpy as np
import pytest
from hypothesis import given

from hebe.planning.colocation.affinity import (
    WorkerScalability,
    affinity_matrix,
    affinity_of,
    best_partition,
    contended_affinity,
    scalability_slope,
    worker_scalability,
)
from hebe.planning.colocation.shared_server import ServerResources
from hebe.planning.error import PlanningError

from .scalability import (
    BANDWIDTH_BOUND,
    CACHE_BOUND,
    CAPACITY_BOUND,
    COMPUTE_BOUND,
    KINDS,
    SERVER,
    profile,
    small_fleets,
    tables,
)

LOW, HIGH = WorkerScalability


def algorithm_1(made, a, b):
    """Hera's Algorithm 1 as printed, but for a model without any way."""
    server, half = made.server, made.server.cores // 2
    qps = made.qps[:, half]
    last = server.cache_ways
    llc = 0.0
    for ways in range(1, last):
        kept = [qps[model, share] / qps[model, last] for model, share in ((a, ways), (b, last - ways))]
        llc = max(llc, sum(kept) / 2)
    needed = made.traffic[a, half] + made.traffic[b, half]
    return llc, server.bandwidth_bytes_per_s / max(needed, server.bandwidth_bytes_per_s)


@given(small_fleets(least=2))
def test_the_matrix_is_algorithm_1_of_each_pair(made):
    matrix = affinity_matrix(made)
    for a in range(len(made.models)):
        for b in range(len(made.models)):
            llc, bandwidth = algorithm_1(made, a, b)
            assert matrix.cache[a, b] == pytest.approx(llc)
            assert matrix.bandwidth[a, b] == pytest.approx(bandwidth)
            assert matrix.system[a, b] == min(matrix.cache[a, b], matrix.bandwidth[a, b])


@given(small_fleets())
def test_affinity_is_symmetric_and_a_share(made):
    matrix = affinity_matrix(made)
    for part in (matrix.cache, matrix.bandwidth, matrix.system):
        np.testing.assert_array_equal(part, part.T)
        assert (part >= 0).all()
        assert (part <= 1).all()


@given(small_fleets())
def test_contended_affinity_is_symmetric_and_at_most_the_cache_s_part(made):
    contended = contended_affinity(made)
    np.testing.assert_array_equal(contended, contended.T)
    assert (contended >= 0).all()
    assert (contended <= affinity_matrix(made).cache * (1 + 1e-12)).all()


def test_contended_affinity_sees_slowdown_below_the_full_bandwidth():
    """Sixteen workers serve 1.6 times of what eight do while 96 of 100 GB/s are moved: two halves keep 0.8."""
    slowing = profile("slowing", 1.0)
    qps = [min(count, 8 + 0.6 * (count - 8)) for count in range(1, 17)]
    changed = {"qps": qps, "bandwidth_bytes_per_s": [rate / 12.8 * 96e9 for rate in qps]}
    changed["qps_by_cache_ways"] = [[rate] * 11 for rate in qps]
    made = tables(slowing.from_dict(slowing.to_dict() | changed), COMPUTE_BOUND)
    assert contended_affinity(made)[0, 0] == pytest.approx(0.8, rel=0.01)
    assert affinity_matrix(made).system[0, 0] == pytest.approx(100 / 120)
    assert contended_affinity(made)[1, 1] > 0.95


def test_the_best_partition_is_that_of_the_cache_s_affinity():
    made, half = tables(), SERVER.cores // 2
    kept = made.qps[:, half] / made.qps[:, half, -1:]
    cache = affinity_matrix(made).cache
    ways = {pair: best_partition(made, *pair) for pair in np.ndindex(cache.shape)}
    for (a, b), own in ways.items():
        assert (kept[a, own] + kept[b, SERVER.cache_ways - own]) / 2 == pytest.approx(cache[a, b])
    assert ways[2, 3] + ways[3, 2] == SERVER.cache_ways
    assert len(set(ways.values())) > 3


def test_affinity_by_hand():
    matrix = affinity_of([BANDWIDTH_BOUND, CACHE_BOUND], SERVER)
    # 8 workers of each: 76 + 8 GB/s fit; 76 + 76 do not. With one way and ten: (0.9 + 0.993) / 2.
    assert matrix.bandwidth[0, 1] == 1.0
    assert matrix.bandwidth[0, 0] == pytest.approx(100 / 152)
    assert matrix.cache[0, 1] == pytest.approx((0.9 + 0.3 + 0.7 * 0.99) / 2)
    assert matrix.cache[1, 1] == pytest.approx((0.3 + 0.7 * 0.75 + 0.3 + 0.7 * 0.64) / 2)
    assert matrix.system[0, 1] > matrix.system[1, 1]


def test_a_model_without_throughput_on_half_the_cores_keeps_nothing():
    slow = profile("slow", 1.0)
    never = slow.from_dict(slow.to_dict() | {"qps": [0.0] * 15 + [1.0], "qps_by_cache_ways": [[]] * 15 + [[1.0] * 11]})
    matrix = affinity_of([never, CACHE_BOUND], SERVER)
    assert matrix.cache[0, 0] == 0
    assert matrix.cache[0, 1] <= 0.5


def test_what_bandwidth_or_memory_holds_back_scales_badly():
    # From 12 to 16 workers: nothing; no more than 8; a third more, in proportion.
    assert dict(zip(tables().models, worker_scalability(tables()), strict=True)) == {
        "bandwidth-bound": LOW, "capacity-bound": LOW, "cache-bound": HIGH, "other-cache-bound": HIGH,
        "compute-bound": HIGH,
    }  # fmt: skip
    np.testing.assert_allclose(scalability_slope(tables(CAPACITY_BOUND, CACHE_BOUND)), [0, 1])


def test_the_slope_of_hera_s_example():
    """DLRM(D): "only achieving a further 4% throughput enhancements going from 12 to 16 workers"."""
    made = tables(profile("d", 1.0, limit=12))
    made.qps[0, 13:] *= 1.04
    made.alone[:] *= 1.04
    assert scalability_slope(made)[0] == pytest.approx(4 * 0.04 / 1.04)


@pytest.mark.parametrize("cores", [1, 2, 3, 5, 16])
def test_what_grows_in_proportion_has_slope_1_on_any_number_of_cores(cores):
    made = tables(profile("m", 3.0, memory_limit=cores), server=ServerResources(cores, 11, 100e9))
    np.testing.assert_allclose(scalability_slope(made), 1)


def test_the_bound_on_the_slope_can_be_moved():
    made = tables(profile("m", 1.0, limit=14))
    assert worker_scalability(made, 0.5) == [HIGH]
    assert worker_scalability(made, 0.9) == [LOW]
    with pytest.raises(PlanningError, match="least_slope is nan"):
        worker_scalability(made, float("nan"))


@pytest.mark.parametrize(("cores", "ways", "field"), [(1, 11, "cores is 1"), (16, 1, "cache_ways is 1")])
def test_a_server_that_cannot_be_shared_is_refused(cores, ways, field):
    single = profile("m", 1.0, memory_limit=1, memory=60e9)
    alone = single.from_dict(single.to_dict() | {"cache_ways": [ways], "qps_by_cache_ways": [[1.0]]})
    with pytest.raises(PlanningError, match=f"server: {field}: two models need at least 2"):
        affinity_of([alone], ServerResources(cores, ways, 100e9, 100e9))


def test_hundreds_of_models_at_once():
    many = [profile(f"m{number}", 1.0 + number, one_way=number / 500) for number in range(500)]
    matrix = affinity_of(many, SERVER)
    assert matrix.system.shape == (500, 500)
    assert len(KINDS) < len(matrix.models) == 500
    np.testing.assert_array_equal(matrix.system, matrix.system.T)
