"""Configurations in virtual time, over measured service times."""

from __future__ import annotations

import pytest

from hebe.profile import LatencyProfile
from hebe.scheduling.events import Stage
from hebe.server_configuration import Lane, Placement
from hebe.simulation.fleet.capacity import in_one
from hebe.simulation.node.profiled_server import ProfiledServer
from hebe.spec import SlaTarget
from hebe.workload.query_sizes import FixedSizes

HOST, PIPELINE = Placement.MODEL_ON_HOST, Placement.PIPELINE_ON_HOST


def profile(item_s: float, fixed_s: float = 1e-4) -> LatencyProfile:
    sizes = (1, 256)
    return LatencyProfile(sizes, tuple(fixed_s + item_s * size for size in sizes), (0.0, 0.0))


HALVES = {Stage.SPARSE: profile(0.5e-4), Stage.DENSE: profile(0.5e-4)}
PROFILES = {
    (HOST, 1): {1: {Stage.WHOLE: profile(1e-4)}},
    (HOST, 2): {2: {Stage.WHOLE: profile(0.7e-4)}},
    (PIPELINE, 1): {2: HALVES, 3: HALVES},
}
SERVER = ProfiledServer(PROFILES, FixedSizes(100), SlaTarget(200, 95))


def qps(*lane, **fields) -> float:
    return SERVER((Lane(*lane, **fields),)).qps


def test_it_reaches_most_of_what_its_workers_can_do():
    assert 0.75 * 100 < qps(HOST, 1, 1, 128) < 1.3 * 100, "in so short a run, with one in twenty late"
    assert qps(HOST, 2, 1, 128) == pytest.approx(2 * qps(HOST, 1, 1, 128), rel=0.15)
    assert qps(HOST, 1, 1, 128) < qps(HOST, 1, 2, 128) < qps(HOST, 2, 1, 128)


def test_a_balanced_pipeline_does_as_much_as_two_workers():
    assert qps(PIPELINE, 1, 1, 128, 1) == pytest.approx(qps(HOST, 2, 1, 128), rel=0.15)
    assert qps(PIPELINE, 1, 1, 128, 1) == pytest.approx(qps(PIPELINE, 2, 1, 128, 1), rel=0.1), "dense is the bottleneck"


def test_lanes_stand_side_by_side():
    both = SERVER((Lane(PIPELINE, 1, 1, 128, 1), Lane(HOST, 1, 1, 128))).qps
    assert both == pytest.approx(qps(HOST, 3, 1, 128), rel=0.2)


@pytest.mark.parametrize("sla_ms", [200.0, 5000.0, 1e6])
def test_no_target_is_so_long_that_more_is_reached_than_workers_do(sla_ms):
    """All queries of a run may be in time there, at any rate."""
    server = ProfiledServer(PROFILES, FixedSizes(100), SlaTarget(sla_ms, 95))
    alone_s = 1e-4 + 1e-4 * 100
    assert 0.75 / alone_s < server((Lane(HOST, 1, 1, 100),)).qps <= 1 / alone_s
    assert server((Lane(PIPELINE, 1, 1, 100, 1),)).qps <= 2 / alone_s


def test_each_lane_has_service_times_of_its_own():
    """A slow one beside a fast one: those of the last were all lanes'."""
    profiles = {**PROFILES, (Placement.HOT_SPARSE_ON_ACCELERATOR, 1): {1: {Stage.WHOLE: profile(1e-5)}}}
    server = ProfiledServer(profiles, FixedSizes(100), SlaTarget(25, 95))
    fast, slow = Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, 0, dense_workers=1), Lane(HOST, 1, 1, 128)
    alone, both, turned = (server(lanes).qps for lanes in ((fast,), (fast, slow), (slow, fast)))
    assert alone < both < 1.3 * alone
    assert turned == pytest.approx(both, rel=0.05)
    late = ProfiledServer(profiles, FixedSizes(100), SlaTarget(0.5, 95))((slow, fast))
    assert late.tail_latency_ms == pytest.approx(1.1, rel=0.01), "that of the faster one"


def test_an_sla_out_of_reach_is_told_with_a_latency():
    reached = ProfiledServer(PROFILES, FixedSizes(100), SlaTarget(5, 95))((Lane(HOST, 1, 1, 128),))
    assert reached.qps == 0
    assert reached.tail_latency_ms == pytest.approx(10.1, rel=0.01)


@pytest.mark.parametrize("each", [3, 1])
def test_a_worker_of_which_nothing_was_measured_is_named(each):
    """Nor of workers of as few cores, or of as many, between which it might lie."""
    server = ProfiledServer({(PIPELINE, 2): {3: HALVES}}, FixedSizes(100), SlaTarget(200, 95))
    with pytest.raises(ValueError, match=f"sparse workers of lanes with {each} cores per worker, pipeline-on-host"):
        server((Lane(PIPELINE, 1, each, 128, 1),))


def test_workers_between_those_that_were_measured_lie_between_by_one_over_their_cores():
    def of(*known: int) -> ProfiledServer:
        profiles = {(HOST, each): {4: {Stage.WHOLE: profile(1e-4 / each, 1e-3)}} for each in known}
        return ProfiledServer(profiles, FixedSizes(100), SlaTarget(200, 95))

    lane = (Lane(HOST, 1, 2, 128),)
    assert of(1, 4)(lane).qps == pytest.approx(of(2)(lane).qps)
    assert of(1, 2, 4)(lane) == of(2)(lane)


def noted(steps, bounds: list):
    """The steps as they are, with what they yield."""
    while True:
        try:
            bounds.append(next(steps))
        except StopIteration as end:
            return end.value
        yield bounds[-1]


@pytest.mark.parametrize("sla_ms", [8.0, 15.0, 200.0, 1e6])
def test_it_is_known_step_by_step_what_is_reached_at_most(sla_ms):
    runs = []
    server = ProfiledServer(PROFILES, FixedSizes(100), SlaTarget(sla_ms, 95), on_run=lambda: runs.append(1))
    alone = [Lane(HOST, 1, 1, 64), Lane(HOST, 3, 1, 128), Lane(HOST, 1, 2, 32), Lane(PIPELINE, 1, 1, 128, 1)]
    for configuration in [*((lane,) for lane in alone), (alone[3], alone[0])]:
        reached = server(configuration)
        steps = server.narrow(configuration)
        runs.clear()
        bounds = [next(steps)]
        assert not runs, "the first at once"
        assert in_one(noted(steps, bounds)) == reached
        assert reached.qps <= min(bounds)
        assert len(runs) > 3


def test_workers_that_slow_each_other_down_do_so_in_proportion_to_how_many_there_are():
    def at(*cores: int) -> list[float]:
        known = {1: {Stage.WHOLE: profile(1e-4)}, 3: {Stage.WHOLE: profile(3e-4)}}
        server = ProfiledServer({(HOST, 1): known}, FixedSizes(100), SlaTarget(200, 95))
        return [server((Lane(HOST, workers, 1, 128),)).qps for workers in cores]

    one, two, three, four = at(1, 2, 3, 4)
    assert one == pytest.approx(qps(HOST, 1, 1, 128))
    assert two == pytest.approx(one, rel=0.25), "two workers of half the speed"
    assert three == pytest.approx(one, rel=0.25)
    assert four == pytest.approx(4 / 3 * three, rel=0.15), "beyond what is known as at its end"
