"""What is made of measurements that are made up."""

from __future__ import annotations

import math
from contextlib import contextmanager

import pytest
from rich.progress import Progress

from hebe.planning.server_split.search import Reached
from hebe.profiling.error import ProfilingError
from hebe.profiling.steady_machine import Disturbance
from hebe.server_configuration import Placement
from hebe.spec import SlaTarget
from hebe_lab.bench.search import live as search_gain
from hebe_lab.bench.search import search


class Seeming:
    """The more cores, the better, and workers of two cores half as good again."""

    sla, noise, busy_profiles = SlaTarget(50, 95), 0.05, None

    def __init__(self):
        self.asked = []
        self.measure = lambda _, qps: qps

    def __call__(self, configuration):
        (lane,) = configuration
        better = 1.5 if lane.cores_per_worker == 2 and lane.placement is Placement.MODEL_ON_HOST else 1.0
        qps = self.measure(configuration, 100.0 * lane.cores * better * (1 if lane.batch_size == 256 else 0.5))
        self.asked.append(configuration)
        return Reached(qps)

    def narrow(self, configuration):
        yield math.inf
        return self(configuration)


class Machine:
    disturbance = Disturbance(0.0, 1.0)

    def forget(self):
        pass


@pytest.fixture
def live(monkeypatch):
    seeming = Seeming()

    @contextmanager
    def live_evaluator(*_, **__):
        yield seeming

    monkeypatch.setattr(search_gain, "live_evaluator", live_evaluator)
    monkeypatch.setattr(search_gain, "bench_repository", lambda *_: None)
    monkeypatch.setattr(search_gain, "target_within_reach", lambda *_, **__: Seeming.sla)
    monkeypatch.setattr(search_gain, "predictor", lambda *_: Seeming())
    monkeypatch.setattr(search_gain, "available_cores", lambda: range(16))
    monkeypatch.setattr(search_gain, "steady_machine", lambda *_: Machine())
    return seeming


def figures():
    with Progress(disable=True) as progress:
        return search_gain.gain_figures("dlrm-rmc1", True, progress)


def test_the_search_is_compared_with_deeprecsys_in_turns(live):
    (gain,) = figures()
    assert gain.name == "hercules.over_deeprecsys.dlrm-rmc1.16_cores"
    assert gain.value == pytest.approx(1.5)
    assert gain.target == ">= 1.3"
    assert "by workers and cores per worker 1.50" in gain.note
    assert len(set(live.asked)) < 0.1 * search_gain.space_of(16, (256, 1024)).size()


def test_what_only_seemed_better_than_deeprecsys_does_not_count(live):
    live.measure = lambda configuration, qps: qps / 2 if configuration in live.asked and qps > 1600 else qps
    (gain,) = figures()
    assert gain.value == 1.0
    assert "as DeepRecSys" in gain.note


def test_nothing_is_made_of_what_reaches_nothing(live):
    live.measure = lambda *_: 0.0
    with pytest.raises(ProfilingError, match="what was measured is no figure"):
        figures()


def test_at_most_one_core_is_left_for_the_front_end():
    space = search_gain.space_of(12, (64,))
    lanes = [lane for placement in space.placements for lane in space.lanes(placement)]
    assert {lane.cores_per_worker for lane in lanes} == {1, 2, 4, 8}
    assert all(lane.cores + lane.cores_per_worker > 11 for lane in lanes)
    assert {12 - lane.cores for lane in lanes if lane.cores_per_worker == 1} == {0, 1}


@pytest.mark.parametrize(("cores", "asked"), [(4, "live_figures"), (5, "gain_figures")])
def test_what_cannot_all_be_tried_is_compared_by_the_search_alone(monkeypatch, cores, asked):
    for name in ("live_figures", "gain_figures"):
        monkeypatch.setattr(search, name, lambda *_, name=name: [name])
    monkeypatch.setattr(search, "available_cores", lambda: range(cores))
    with Progress(disable=True) as progress:
        assert search.run(True, progress, "live-din") == [asked]
