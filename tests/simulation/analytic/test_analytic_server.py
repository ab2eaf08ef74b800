from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.models import catalog
from hebe.planning.error import PlanningError
from hebe.server_configuration import Lane, Placement
from hebe.simulation.analytic.analytic_server import AnalyticServer, Use
from hebe.simulation.analytic.calibration import HEBE
from hebe.simulation.analytic.server_types import HERCULES
from hebe.spec import SlaTarget
from hebe.workload.query_sizes import FixedSizes, ProductionSizes
from hebe.workload.reuse_profile import PRODUCTION_2021

SIZES = ProductionSizes().draw(5000, np.random.default_rng(0))
T2, T3, T7 = HERCULES["T2"], HERCULES["T3"], HERCULES["T7"]
RMC1, RMC3, DIN = catalog.entry("dlrm-rmc1"), catalog.entry("dlrm-rmc3"), catalog.entry("din")
ALL_CORES = Lane(Placement.MODEL_ON_HOST, 20, 1, 256)
LANES = [
    ALL_CORES,
    Lane(Placement.PIPELINE_ON_HOST, 5, 3, 256, 5),
    Lane(Placement.SPARSE_ON_HOST, 6, 2, 256, 2, 8192),
    Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, 0, 1, 256, 2, 8192),
    Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, 0, 1, 256, 2),
]


def server_of(server=T7, model=RMC1, **fields):
    return AnalyticServer(server, model, SIZES, PRODUCTION_2021, **fields)


@pytest.mark.parametrize("lane", LANES, ids=lambda lane: f"{lane.placement}-{lane.fused_items}")
def test_the_tail_latency_at_the_bounded_throughput_is_the_bound(lane):
    server = server_of()
    for latency_ms in (10.0, 50.0):
        qps = server.evaluate([lane], SlaTarget(latency_ms)).qps
        assert server.tail_latency_s(lane, 0.99 * qps, 95.0) <= latency_ms / 1e3
        assert server.tail_latency_s(lane, 1.01 * qps, 95.0) >= 0.98 * latency_ms / 1e3
        assert server.reaches(lane, SlaTarget(latency_ms), 0.99 * qps)
        assert not server.reaches(lane, SlaTarget(latency_ms), 1.01 * qps)


@pytest.mark.parametrize("lane", LANES, ids=lambda lane: f"{lane.placement}-{lane.fused_items}")
def test_a_looser_target_allows_more(lane):
    server = server_of()
    qps = [server.evaluate([lane], SlaTarget(bound, 99.0)).qps for bound in (1.0, 5.0, 20.0, 100.0, 1000.0)]
    assert qps == sorted(qps)
    assert qps[-1] > 0


@settings(deadline=None, max_examples=25)
@given(st.sampled_from(LANES), st.floats(1.0, 8.0), st.sampled_from(["memory", "clock", "pcie", "gpu"]))
def test_better_hardware_serves_no_less(lane, factor, part):
    faster = {
        "memory": replace(T7, memory_bandwidth_bytes_per_s=factor * T7.memory_bandwidth_bytes_per_s),
        "clock": replace(T7, clock_hz=factor * T7.clock_hz),
        "pcie": replace(
            T7,
            accelerator=replace(
                T7.accelerator, pcie_bandwidth_bytes_per_s=factor * T7.accelerator.pcie_bandwidth_bytes_per_s
            ),
        ),
        "gpu": replace(
            T7, accelerator=replace(T7.accelerator, peak_flops_per_s=factor * T7.accelerator.peak_flops_per_s)
        ),
    }[part]
    sla = SlaTarget(30.0)
    assert server_of(faster).evaluate([lane], sla).qps >= 0.999 * server_of().evaluate([lane], sla).qps


def test_memory_bound_throughput_is_bandwidth_over_bytes():
    slow = replace(T2, memory_bandwidth_bytes_per_s=4e9)
    server = AnalyticServer(slow, RMC1, SIZES, None)
    qps = server.evaluate([ALL_CORES], SlaTarget(1e5)).qps
    # Uniform keys: what the last-level cache holds of 1.28 GB is a fiftieth.
    bound = 0.7 * 4e9 / (SIZES.mean() * 10 * 80 * 128)
    assert 0.95 * bound < qps < 1.05 * bound


def test_a_target_below_the_service_time_is_out_of_reach():
    evaluation = server_of().evaluate([ALL_CORES], SlaTarget(0.01))
    assert evaluation.qps == 0.0
    assert evaluation.power_watts == pytest.approx(T7.idle_power_watts + T7.accelerator.idle_power_watts)


def test_power_rises_with_what_is_used():
    server = server_of()
    idle = T7.idle_power_watts + T7.accelerator.idle_power_watts
    peak = T7.peak_power_watts + T7.accelerator.peak_power_watts
    assert server.power_watts(Use()) == pytest.approx(idle)
    assert server.power_watts(Use(20.0, 1.0, 1.0)) == pytest.approx(peak)
    assert server.power_watts(Use(10.0, 0.5, 0.5)) == pytest.approx((idle + peak) / 2)
    assert server.power_watts(Use(memory_share=1.0)) == pytest.approx(idle + 0.77 * 50.0)


def test_plain_and_near_memory_differ_for_sums_alone():
    sla = SlaTarget(50.0)
    assert server_of(T3).evaluate([ALL_CORES], sla).qps > 1.5 * server_of(T2).evaluate([ALL_CORES], sla).qps
    assert server_of(T3, DIN).evaluate([ALL_CORES], sla).qps == pytest.approx(
        server_of(T2, DIN).evaluate([ALL_CORES], sla).qps
    )


def test_lanes_side_by_side_share_cores_and_memory():
    server, sla = server_of(), SlaTarget(20.0)
    main, beside = Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, 0, 1, 256, 2, 8192), Lane("model-on-host", 9, 2, 512)
    both = server.evaluate([main, beside], sla)
    alone = server.evaluate([main], sla).qps, server.evaluate([beside], sla).qps
    assert max(alone) < both.qps < 1.01 * sum(alone)
    twice = server.evaluate([replace(ALL_CORES, workers=10), replace(ALL_CORES, workers=10)], sla)
    assert twice.use.memory_share <= 1.0
    assert twice.qps <= 1.05 * server.evaluate([ALL_CORES], sla).qps


def test_shared_weights_and_one_op_for_all_tables_serve_more():
    sla = SlaTarget(50.0)
    caffe2, hebe = server_of(model=RMC3), server_of(model=RMC3, calibration=HEBE)
    assert hebe.evaluate([ALL_CORES], sla).qps > caffe2.evaluate([ALL_CORES], sla).qps


def test_a_latency_profile_has_the_service_time_of_each_batch():
    server = server_of(T2)
    profile = server.latency_profile(ALL_CORES, [1, 16, 256])
    assert profile.batch_sizes == (1, 16, 256)
    assert list(profile.service_s) == sorted(profile.service_s)
    fixed = AnalyticServer(T2, RMC1, FixedSizes(256).draw(10, np.random.default_rng(0)), PRODUCTION_2021)
    assert fixed.tail_latency_s(ALL_CORES, 1e-3, 95.0) == pytest.approx(profile.service_s[-1])
    with pytest.raises(PlanningError, match="does not fit on the accelerator"):
        server_of(replace(T7, accelerator=replace(T7.accelerator, memory_bytes=100_000))).latency_profile(LANES[3], [1])


def test_cores_that_wait_for_another_are_idle():
    server = server_of(T2, RMC3)
    assert server.idle_share(Lane("model-on-host", 1, 1), 256) == pytest.approx(0.0)
    idle = [server.idle_share(Lane("model-on-host", 1, cores), 256) for cores in (2, 4, 8)]
    assert 0.3 < idle[0] < idle[1] < idle[2] < 0.9
    assert server_of().idle_share(LANES[3], 256) == 0.0


def test_copies_are_a_part_of_a_batch():
    server = server_of(model=RMC3)
    assert 0.6 < server.copying_share(LANES[4], 238) < 0.9
    assert server.copying_share(ALL_CORES, 238) == 0.0


def test_what_does_not_fit_on_the_accelerator_serves_nothing():
    production = catalog.entry("dlrm-rmc3", "production")
    lane = Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, 0, 1, 256, 1)
    assert server_of(model=production).evaluate([lane], SlaTarget(50.0)).qps == 0.0
    assert server_of(model=production).tail_latency_s(lane, 1.0, 95.0) == float("inf")
    assert server_of(model=production).evaluate([replace(lane, workers=4)], SlaTarget(50.0)).qps > 0.0


def test_an_overload_never_ends():
    assert server_of().tail_latency_s(ALL_CORES, 1e6, 95.0) == float("inf")


def test_bad_input_is_named():
    with pytest.raises(PlanningError, match=r"model din: its tables take 84.5 GB but server type T1 has 64.0 GB"):
        server_of(HERCULES["T1"], catalog.entry("din", "production"))
    with pytest.raises(PlanningError, match="query sizes: give at least one"):
        AnalyticServer(T2, RMC1, np.array([], dtype=np.int64))
    with pytest.raises(PlanningError, match="query sizes"):
        AnalyticServer(T2, RMC1, np.array([5, 0]))
    with pytest.raises(PlanningError, match=r"1 lanes of 40 cores: server type T2 has 20"):
        server_of(T2).evaluate([replace(ALL_CORES, workers=40)], SlaTarget(20.0))
    with pytest.raises(PlanningError, match="0 lanes"):
        server_of(T2).evaluate([], SlaTarget(20.0))
    with pytest.raises(PlanningError, match=r"lane sparse-on-host: server type T2 has no accelerator"):
        server_of(T2).evaluate([LANES[2]], SlaTarget(20.0))
