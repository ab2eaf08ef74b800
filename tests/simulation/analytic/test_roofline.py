from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.models import catalog
from hebe.planning.error import PlanningError
from hebe.simulation.analytic.calibration import CAFFE2, HEBE
from hebe.simulation.analytic.model_work import model_work
from hebe.simulation.analytic.roofline import GRID, RISE, HostRoofline, MemoryContention, at_items, device_batch
from hebe.simulation.analytic.server_types import HERCULES, V100
from hebe.spec import ServerSpec

T2, T5 = HERCULES["T2"], HERCULES["T5"]


RMC1 = model_work(catalog.entry("dlrm-rmc1"))


RMC3 = model_work(catalog.entry("dlrm-rmc3"))


DIN = model_work(catalog.entry("din"))


FREE = replace(CAFFE2, op_overhead_s=0.0, co_residence=0.0, copy_overhead_s=0.0)


LAST = GRID[-1]


def cold(work):
    return np.zeros(len(work.gathers))


def test_bound_by_memory_a_batch_takes_its_bytes_over_the_bandwidth():
    host = HostRoofline(replace(T2, memory_bandwidth_bytes_per_s=1e9), RMC1, FREE)
    cost = host.model_batch(1, 20, cold(RMC1))
    seconds = host.contended_s(cost, 20)
    assert seconds[-1] == pytest.approx(20 * LAST * RMC1.gather_bytes / (0.7 * 1e9), rel=1e-3)
    assert host.contended_s(cost, 20, 0.5)[-1] == pytest.approx(2 * seconds[-1])


def test_bound_by_computing_a_batch_takes_its_flops_over_the_peak():
    ideal = replace(FREE, matrix_peak_share=1.0, matrix_half_rows=0.0, core_cache_bytes_per_s=1e15)
    host = HostRoofline(T2, RMC3, ideal)
    seconds = host.dense_batch(1, 1).alone_s
    assert seconds == pytest.approx(GRID * RMC3.flops / (T2.clock_hz * T2.flops_per_cycle_per_core), rel=1e-6)
    device = device_batch(V100, RMC3, replace(FREE, accelerator_matrix_share=1.0, accelerator_access_share=1e3), None)
    assert device.full_s[-1] == pytest.approx(
        LAST * RMC3.flops / V100.peak_flops_per_s + sum(op.kernels for op in RMC3.ops) * V100.launch_overhead_s,
        rel=0.02,
    )


def test_a_core_gathers_what_its_misses_allow():
    host = HostRoofline(T2, RMC1, FREE)
    seconds = host.sparse_batch(1, 1, cold(RMC1), cold(RMC1)).alone_s[-1]
    assert seconds == pytest.approx(LAST * RMC1.gather_bytes / FREE.core_gather_bytes_per_s, rel=0.02)


def test_what_is_cached_comes_from_no_memory():
    host = HostRoofline(T2, RMC1, FREE)
    some = host.model_batch(1, 1, np.full(10, 0.4))
    none = host.model_batch(1, 1, cold(RMC1))
    assert some.memory_bytes[-1] == pytest.approx(0.6 * none.memory_bytes[-1])
    assert some.alone_s[-1] < none.alone_s[-1]


@pytest.mark.parametrize("work", [RMC1, RMC3, DIN])
def test_more_cores_shorten_a_batch_as_far_as_ops_are_independent(work):
    host = HostRoofline(T2, work, CAFFE2)
    alone = [host.model_batch(cores, 1, cold(work)).alone_s[-1] for cores in range(1, 21)]
    assert all(after <= before for before, after in pairwise(alone))
    assert alone[-1] >= alone[0] / 20
    assert host.model_batch(4, 1, cold(work)).core_s == pytest.approx(host.model_batch(1, 1, cold(work)).core_s)


def test_with_one_op_for_all_tables_more_cores_do_not_help_gathering():
    cached = np.ones(len(RMC1.gathers))
    fused = HostRoofline(T2, RMC1, HEBE)
    assert fused.sparse_batch(4, 1, cached, cold(RMC1)).alone_s == pytest.approx(
        fused.sparse_batch(1, 1, cached, cold(RMC1)).alone_s
    )
    by_table = HostRoofline(T2, RMC1, CAFFE2)
    assert (
        by_table.sparse_batch(5, 1, cold(RMC1), cold(RMC1)).alone_s[-1]
        < 0.3 * by_table.sparse_batch(1, 1, cold(RMC1), cold(RMC1)).alone_s[-1]
    )


def test_idle_op_workers_lie_in_the_papers_range():
    # Hercules, Figure 5(c): 25% to 74% of the cycles with 2 to 4 op workers, batch size 256, all six models.
    idle = {}
    for name in ("dlrm-rmc1", "dlrm-rmc2", "dlrm-rmc3", "mt-wnd", "din", "dien"):
        work = model_work(catalog.entry(name))
        host = HostRoofline(T2, work, CAFFE2)
        for cores in (2, 4):
            cost = host.model_batch(cores, 1, cold(work))
            idle[name, cores] = 1 - float(at_items(cost.core_s, 256) / (cores * at_items(cost.alone_s, 256)))
    assert max(idle.values()) == pytest.approx(0.74, abs=0.02)
    assert all(idle[name, 4] > idle[name, 2] for name, _ in idle)


def test_workers_disturb_each_other():
    host = HostRoofline(T2, RMC1, CAFFE2)
    one, many = host.model_batch(1, 1, cold(RMC1)), host.model_batch(1, 21, cold(RMC1))
    assert many.alone_s == pytest.approx(2.0 * one.alone_s)


def test_weights_that_do_not_fit_into_the_cache_are_read_for_every_batch():
    private, shared = HostRoofline(T2, RMC3, CAFFE2), HostRoofline(T2, RMC3, HEBE)
    assert private.resident_weight_bytes(20) == 0.5 * T2.llc_bytes
    assert shared.resident_weight_bytes(20) == RMC3.weight_bytes
    cached = np.ones(len(RMC3.gathers))
    spilled = private.model_batch(1, 20, cached).memory_bytes
    assert spilled == pytest.approx(np.full(len(GRID), RMC3.weight_bytes - 0.5 * T2.llc_bytes / 20))
    assert shared.model_batch(1, 20, cached).memory_bytes == pytest.approx(np.zeros(len(GRID)))


def test_near_memory_ranks_sum_rows_and_leave_others_alone():
    plain, near = HostRoofline(T2, RMC1, FREE), HostRoofline(T5, RMC1, FREE)
    assert near.near_bandwidth_bytes_per_s == 8 * plain.bandwidth_bytes_per_s
    cost = near.model_batch(1, 20, cold(RMC1))
    assert cost.near_bytes[-1] == pytest.approx(LAST * RMC1.gather_bytes)
    assert cost.memory_bytes[-1] == pytest.approx(LAST * RMC1.pooled_bytes)
    assert near.contended_s(cost, 10**6)[-1] == pytest.approx(
        10**6 * LAST * RMC1.gather_bytes / near.near_bandwidth_bytes_per_s
    )
    behaviours = HostRoofline(T5, DIN, FREE).model_batch(1, 20, cold(DIN))
    assert behaviours.near_bytes[-1] == 0.0


def test_what_an_accelerator_serves_is_not_gathered_on_the_host():
    host = HostRoofline(T2, RMC1, CAFFE2)
    everything, most = np.ones(10), np.full(10, 0.9)
    assert host.sparse_batch(1, 1, cold(RMC1), everything).memory_bytes[-1] == 0.0
    assert host.sparse_batch(1, 1, cold(RMC1), most).memory_bytes[-1] == pytest.approx(0.1 * LAST * RMC1.gather_bytes)


def copied_per_item(work, hits):
    copy_s = device_batch(V100, work, FREE, hits).copy_s
    return copy_s[-1] / LAST * V100.pcie_bandwidth_bytes_per_s


def test_what_is_copied_to_an_accelerator():
    pooled, keys, dense = RMC1.pooled_bytes, RMC1.key_bytes, RMC1.dense_input_bytes
    assert copied_per_item(RMC1, None) == pytest.approx(pooled + dense)
    assert copied_per_item(RMC1, np.ones(10)) == pytest.approx(keys + dense)
    assert copied_per_item(RMC1, np.full(10, 0.9)) == pytest.approx(keys + dense + pooled)
    # Of behaviours, which are not summed, only the rows that are not there travel.
    hot = np.full(len(DIN.gathers), 0.9)
    assert copied_per_item(DIN, hot) == pytest.approx(DIN.key_bytes + DIN.dense_input_bytes + 0.1 * DIN.pooled_bytes)


def test_co_located_workers_share_link_and_accelerator():
    cost = device_batch(V100, RMC3, CAFFE2, np.ones(10))
    assert cost.contended_s(1) == pytest.approx(cost.alone_s)
    assert (cost.contended_s(8) >= 8 * cost.copy_s).all()
    assert (cost.contended_s(8) >= 8 * cost.full_s).all()


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 20), st.integers(1, 20), st.floats(0, 1), st.sampled_from([RMC1, RMC3, DIN]))
def test_batches_cost_more_the_larger_and_less_an_item(cores, workers, hit, work):
    host = HostRoofline(T2, work, CAFFE2)
    seconds = host.contended_s(host.model_batch(cores, workers, np.full(len(work.gathers), hit)), workers)
    assert (np.diff(seconds) > 0).all()
    assert (np.diff(seconds / GRID) <= 1e-15).all()


@settings(deadline=None, max_examples=40)
@given(st.floats(1e9, 1e12), st.floats(1e9, 1e12))
def test_more_bandwidth_is_never_slower(one, other):
    slow, fast = (
        HostRoofline(replace(T2, memory_bandwidth_bytes_per_s=bandwidth), RMC1, CAFFE2)
        for bandwidth in (min(one, other), max(one, other))
    )
    cost = slow.model_batch(1, 20, cold(RMC1))
    assert (fast.contended_s(cost, 20) <= slow.contended_s(cost, 20)).all()


def test_between_and_beyond_the_grid_costs_are_straight():
    costs = 2.0 + 3.0 * GRID
    assert at_items(costs, [0, 1, 777, 2 * LAST]) == pytest.approx([0.0, 5.0, 2333.0, 2.0 + 6.0 * LAST])


@pytest.mark.parametrize("field", ["clock_hz", "flops_per_cycle_per_core", "memory_bandwidth_bytes_per_s"])
def test_a_server_type_that_states_too_little_is_named(field):
    with pytest.raises(PlanningError, match=f"server type T2: {field} is 0"):
        HostRoofline(replace(T2, **{field: 0.0}), RMC1, CAFFE2)
    with pytest.raises(PlanningError, match="clock_hz"):
        HostRoofline(ServerSpec("bare", 1, 1), RMC1, CAFFE2)


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
