"""What is made of measurements that are made up."""

from __future__ import annotations

import math
import re
from contextlib import contextmanager

import pytest
from rich.progress import Progress

from hebe.planning.server_split.search import Reached
from hebe.profiling.error import ProfilingError
from hebe.profiling.steady_machine import Disturbance
from hebe.server_configuration import Lane, Placement
from hebe.spec import SlaTarget
from hebe_lab.bench.search import live as search_live
from hebe_lab.bench.search.live import Measured


class Seeming:
    """The more cores, the better, and pipelines a quarter better than that."""

    sla, noise, busy_profiles = SlaTarget(50, 95), 0.05, None

    def __call__(self, configuration):
        (lane,) = configuration
        pipeline = 1.25 if lane.placement is Placement.PIPELINE_ON_HOST else 1.0
        return Reached(100.0 * lane.cores * pipeline * (1 if lane.batch_size == 256 else 0.5))

    def narrow(self, configuration):
        yield math.inf
        return self(configuration)


class Machine:
    """Disturbed while all was tried, and less in the turns that are compared."""

    searching, in_turns = Disturbance(0.2, 0.4), Disturbance(0.04, 0.6)

    def __init__(self):
        self.forgotten = 0

    def forget(self):
        self.forgotten += 1

    @property
    def disturbance(self):
        return self.searching if self.forgotten < 2 else self.in_turns


@pytest.fixture(autouse=True)
def seeming(monkeypatch):
    @contextmanager
    def live_evaluator(*_, **__):
        yield Seeming()

    monkeypatch.setattr(search_live, "live_evaluator", live_evaluator)
    monkeypatch.setattr(search_live, "bench_repository", lambda *_: None)
    monkeypatch.setattr(search_live, "target_within_reach", lambda *_, **__: Seeming.sla)
    monkeypatch.setattr(search_live, "predictor", lambda *_: Seeming())
    monkeypatch.setattr(search_live, "available_cores", lambda: range(4))
    monkeypatch.setattr(search_live, "steady_machine", lambda *_: Machine())


def figures():
    with Progress(disable=True) as progress:
        return {figure.name: figure for figure in search_live.live_figures("dlrm-rmc1", True, progress)}


def test_searches_are_compared_with_everything_by_the_same_measurements():
    found = figures()
    assert found["search.over_exhaustive.dlrm-rmc1.live"].value == 1.0
    assert found["search.over_exhaustive.dlrm-rmc1.live.hercules"].value == 1.0
    shares = [found[f"search.evaluations_share.dlrm-rmc1.live{which}"].value for which in (".hercules", "")]
    assert 0 < shares[1] < shares[0]
    notes = [found[f"search.evaluations_share.dlrm-rmc1.live{which}"].note for which in (".hercules", "")]
    assert "--strategy hercules (Algorithm 1, refined): " in notes[0]
    assert "--strategy guided, the default (by measured service times): " in notes[1]
    assert all(re.search("lanes alone are [0-9]+; [0-9]+ repeats, which count as well", note) for note in notes)
    gain = found["hercules.over_deeprecsys.dlrm-rmc1"]
    assert gain.value == pytest.approx(1.25)
    assert "by workers and cores per worker 1.00, by the S-D pipeline 1.25; 4 cores" in gain.note
    assert gain.target == ">= 1.0"
    assert (
        "in turns the host gave 4% of the cores' time to others, and this machine's speed was at least 60%" in gain.note
    )
    assert "while all was tried the host gave 20% of the cores' time to others" in gain.note


def test_repeats_are_evaluations_too(monkeypatch):
    monkeypatch.setattr(Seeming, "__call__", lambda _, way: Reached(100.0 + way[0].workers / 10))
    share = figures()["search.evaluations_share.dlrm-rmc1.live.hercules"]
    counted = re.search(r"([0-9]+) configurations, where lanes alone are ([0-9]+); ([0-9]+) repeats", share.note)
    tried, every, repeats = (int(number) for number in counted.groups())
    assert repeats > 0
    assert share.value == (tried + repeats) / every


def test_what_a_search_asks_again_is_measured_anew_once_for_all_searches():
    one, other = ((Lane(Placement.MODEL_ON_HOST, workers, 1, 64),) for workers in (1, 2))
    asked = []

    def measure(configuration):
        asked.append(configuration)
        return Reached(100.0 + len(asked))

    measured = Measured({one: Reached(7.0), other: Reached(8.0)}, measure)
    for _ in range(2):
        ask = measured.one_search()
        assert [ask(each).qps for each in (one, other, one, one)] == [7.0, 8.0, 101.0, 102.0]
    assert asked == [one, one]


def test_what_searches_found_is_compared_as_it_is_measured_anew(monkeypatch):
    asked = []

    def luck(_, way):  # the first measurement of one configuration is too good; all of them reach the same
        asked.append(way)
        lucky = (way[0].workers, way[0].batch_size, way[0].placement) == (1, 64, Placement.MODEL_ON_HOST)
        return Reached(150.0 if lucky and asked.count(way) == 1 else 100.0 + way[0].workers)

    monkeypatch.setattr(Seeming, "__call__", luck)
    over = figures()["search.over_exhaustive.dlrm-rmc1.live"]
    assert over.value > 1.0, over.note
    assert over.note.endswith("in turns 104 and 101"), over.note


def test_the_same_configuration_is_as_good_as_itself_however_it_was_measured(monkeypatch):
    asked = []

    def slower_and_slower(_, way):
        asked.append(way)
        return Reached((500.0 if way[0].workers == 4 and way[0].batch_size == 256 else 490.0) - 10 * asked.count(way))

    monkeypatch.setattr(Seeming, "__call__", slower_and_slower)
    over = figures()["search.over_exhaustive.dlrm-rmc1.live"]
    assert over.value == 1.0
    assert "485 queries/s" in over.note
    assert "the best reaches 490" in over.note


def test_what_a_busy_host_allows_is_no_figure(monkeypatch):
    monkeypatch.setattr(Machine, "in_turns", Disturbance(0.3, 0.8))
    with pytest.raises(ProfilingError, match="no figure: in turns the host gave 30% of the cores' time to others"):
        figures()


def test_what_was_measured_on_a_machine_that_got_slower_is_no_figure(monkeypatch):
    monkeypatch.setattr(Machine, "in_turns", Disturbance(0.04, 0.4))
    with pytest.raises(ProfilingError, match="this machine's speed was at least 40% of its fastest"):
        figures()


def test_a_gain_over_what_reaches_nothing_in_its_turns_is_no_figure(monkeypatch):
    def alternated(_live, picks, _turns):
        return {each: [100.0, 0.0] if each == picks[0] else [120.0, 130.0] for each in picks}

    monkeypatch.setattr(search_live, "alternated", alternated)
    with pytest.raises(ProfilingError, match=r"reached 100, 0 and 120, 130.* queries/s; in turns the host gave 4%"):
        figures()


def test_a_target_that_nothing_keeps_is_no_figure(monkeypatch):
    monkeypatch.setattr(Seeming, "__call__", lambda *_: Reached(0.0))
    with pytest.raises(ProfilingError, match="dlrm-rmc1 keeps 50 ms in no configuration"):
        figures()


def test_the_same_configuration_gains_nothing(monkeypatch):
    monkeypatch.setattr(Seeming, "__call__", lambda _, way: Reached(100.0 * way[0].workers))
    gain = figures()["hercules.over_deeprecsys.dlrm-rmc1"]
    assert (gain.value, gain.low, gain.high) == (1.0, 1.0, 1.0)
    assert "4 workers of 1 core, batches of 64, as DeepRecSys" in gain.note
