"""A search that measures what is predicted to win."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.planning.server_split.guided_search import FEWEST, FEWEST_REPEATS, guided_search
from hebe.planning.server_split.search import Limits, Reached, exhaustive_search, gradient_search
from hebe.planning.server_split.space import ParallelismSpace, host_placements
from hebe.server_configuration import Lane, Placement

SPACE = ParallelismSpace(6, (16, 64, 256, 1024))


def true_qps(configuration) -> float:
    """Two hills: one of each placement."""
    lane = configuration[0]
    used = lane.workers * lane.cores_per_worker**0.7 + 0.8 * lane.dense_workers
    return used * 100.0 / (1 + abs(lane.batch_size - 256) / 256)


@dataclass
class Predicted:
    """`reached` of a configuration; at first that may be `bound` times as much, then half of that more, and so on.
    What was asked for is `asked`."""

    reached: Callable[..., Reached]
    bound: float = 1e9
    asked: list = field(default_factory=list)

    def __call__(self, configuration) -> Reached:
        return self.reached(configuration)

    def narrow(self, configuration):
        reached, more = self(configuration), self.bound - 1.0
        yield (1 + more) * (reached.qps or 1.0)
        while more > 0.01:
            self.asked.append(configuration)
            more /= 2
            yield (1 + more) * reached.qps
        return reached


TRUTH = Predicted(lambda one: Reached(true_qps(one)))


def off(factor: float, seed: int = 0) -> Predicted:
    """Off by about a factor, and by up to a tenth more, the same for the same configuration."""

    def predict(configuration) -> Reached:
        lane = configuration[0]
        key = (lane.workers, lane.cores_per_worker, lane.batch_size, lane.dense_workers, seed)
        return Reached(true_qps(configuration) * factor * (0.95 + 0.1 * (hash(key) % 97) / 97))

    return Predicted(predict)


def measured(asked: list):
    def evaluate(configuration) -> Reached:
        asked.append(configuration)
        return Reached(true_qps(configuration), 10.0)

    return evaluate


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("seed", range(5))
def test_it_finds_the_best_within_what_predictions_are_off_and_measures_little(factor, seed):
    asked: list = []
    found = guided_search(SPACE, off(factor, seed), measured(asked), Limits(noise=0.06))
    best = exhaustive_search(SPACE, measured([])).reached.qps
    assert found.reached.qps >= 0.97 * best
    assert found.evaluations == len(asked) <= 0.2 * SPACE.size(), "those that are close are measured again within that"
    distinct = list(dict.fromkeys(asked))
    assert [step.candidates[0] for step in found.steps] == distinct


def test_nothing_is_measured_that_cannot_win():
    asked: list = []
    found = guided_search(SPACE, TRUTH, measured(asked))
    assert found.evaluations == FEWEST
    assert found.best == asked[0]


@given(
    st.lists(st.sampled_from([0.0, 1.0, 2.0, 5.0, 5.5]), min_size=6, max_size=6),
    st.sampled_from([1.0, 1.2, 3.0, 1e9]),
)
def test_it_measures_in_the_order_of_predictions_however_many_are_made(reached, bound):
    """Of 6 lanes on 2 cores; those of the same prediction in the order of the space. With noise beyond all bounds
    everything is measured that is predicted to reach anything."""
    small = ParallelismSpace(2, (16, 64))
    lanes = [(lane,) for placement in small.placements for lane in small.lanes(placement)][:6]
    by_lane = dict(zip(lanes, reached, strict=True))
    asked: list = []
    predict = Predicted(lambda one: Reached(by_lane.get(one, 0.0)), bound)
    guided_search(small, predict, measured(asked), Limits(noise=1e9), most_share=1.0)
    ranked = sorted(lanes, key=lambda lane: by_lane[lane], reverse=True)
    place = next(place for place, (lane,) in enumerate(ranked) if lane.workers == 2)
    if place >= FEWEST:
        ranked.insert(FEWEST - 1, ranked.pop(place))
    distinct = list(dict.fromkeys(asked))
    assert distinct[:FEWEST] == ranked[:FEWEST]
    worth_it = [lane for lane in ranked[FEWEST:] if by_lane[lane]]
    assert distinct[FEWEST:][: len(worth_it)] == worth_it


def test_what_others_reach_more_than_is_not_worked_out():
    every = {(lane,) for placement in SPACE.placements for lane in SPACE.lanes(placement)}
    known, close, far = (Predicted(TRUTH.reached, bound) for bound in (1.0, 2.0, 100.0))
    results = [guided_search(SPACE, predict, measured([])) for predict in (known, close, far)]
    assert results[0] == results[1] == results[2]
    assert not known.asked
    assert len(set(close.asked)) < SPACE.size() / 3
    assert set(far.asked) == every, "none is out of the question at first"
    whole = sum(1 for _ in far.narrow(next(iter(every))))
    assert len(far.asked) < 0.7 * whole * SPACE.size()


def test_of_a_space_that_is_too_large_what_hercules_search_comes_by_is_ranked(monkeypatch):
    monkeypatch.setattr("hebe.planning.server_split.guided_search.MOST_RANKED", SPACE.size() - 1)
    asked: list = []
    found = guided_search(SPACE, TRUTH, measured(asked))
    best = exhaustive_search(SPACE, measured([])).reached.qps
    assert found.reached.qps >= 0.97 * best
    assert any(lane.workers == SPACE.cores for (lane,) in asked[:FEWEST])


@pytest.mark.parametrize("budget_watts", [math.inf, 1.0])
def test_such_a_space_may_have_lanes_beside_the_accelerator_s(monkeypatch, budget_watts):
    monkeypatch.setattr("hebe.planning.server_split.guided_search.MOST_RANKED", 0)
    space = ParallelismSpace(6, (4, 8), (Placement.SPARSE_ON_HOST,), (1, 2, 3), (0, 1024))

    def reached(configuration) -> Reached:
        return Reached(sum(min(lane.cores, 3) for lane in configuration), 0.5)

    found = guided_search(space, Predicted(reached), reached, Limits(power_budget_watts=budget_watts))
    assert any(len(configuration) == 2 for configuration in found.tried)
    assert found.reached.qps == max(reached(configuration).qps for configuration in found.tried)


def test_one_prediction_that_is_far_off_is_not_the_last_word():
    """The best is predicted second: what is predicted first reaches half of that."""
    best = exhaustive_search(SPACE, measured([])).best
    first = (replace(best[0], batch_size=16),)

    def predict(configuration) -> Reached:
        return Reached(true_qps(best) * 1.1 if configuration == first else true_qps(configuration))

    asked: list = []
    assert guided_search(SPACE, Predicted(predict), measured(asked)).best == best
    assert asked[:2] == [first, best]


def test_what_is_over_the_power_budget_does_not_end_the_search():
    def evaluate(configuration) -> Reached:
        return Reached(true_qps(configuration), 10.0 * configuration[0].cores)

    found = guided_search(SPACE, off(1.0), evaluate, Limits(power_budget_watts=55.0))
    assert found.best is not None
    assert found.best[0].cores < SPACE.cores


def by_cores(asked: list, idle_watts: float = 20.0):
    def evaluate(configuration) -> Reached:
        asked.append(configuration)
        return Reached(true_qps(configuration), idle_watts + 10.0 * configuration[0].cores)

    return evaluate


@pytest.mark.parametrize("budget_watts", [30.0, 60.0, 100.0, 140.0])
@pytest.mark.parametrize("placements", [host_placements(1), host_placements(2)], ids=["model", "and pipeline"])
def test_what_must_draw_too_much_is_not_measured(budget_watts, placements):
    """Of 16 cores the budget is for 1, 4, 8 or 12, and what uses all of them is predicted first."""
    space = ParallelismSpace(16, (16, 64, 256), placements)
    limits, asked = Limits(budget_watts, noise=0.06), []
    found = guided_search(space, off(1.0), by_cores(asked), limits)
    climbed, best = (search(space, by_cores([]), limits) for search in (gradient_search, exhaustive_search))
    assert found.reached.qps == best.reached.qps
    assert found.evaluations == len(asked) < climbed.evaluations / 4
    assert sum(20 + 10 * lane.cores > budget_watts for (lane,) in asked) <= 2 * len(placements), "of 16 and of 5 cores"


def test_a_budget_that_is_not_felt_changes_nothing():
    asked: tuple[list, list, list] = [], [], []
    for own, budget_watts in zip(asked, (math.inf, 1000.0, 80.0), strict=True):
        guided_search(SPACE, off(1.0), by_cores(own), Limits(budget_watts, noise=0.06))
    assert asked[0] == asked[1] == asked[2], "6 cores draw 80 W"


@pytest.mark.parametrize(
    ("placement", "reached_qps", "is_passed_over"),
    [
        (Placement.MODEL_ON_HOST, 100.0, True),
        (Placement.MODEL_ON_HOST, 0.0, False),
        (Placement.SPARSE_ON_HOST, 100.0, False),
    ],
)
def test_where_power_says_nothing_of_others_these_are_measured(placement, reached_qps, is_passed_over):
    """A GPU's power does not go by the host's cores, and what reaches nothing was driven as hard as it could be."""
    space = ParallelismSpace(4, (16, 64), (placement,), (1,), (0,))
    asked: list = []

    def evaluate(configuration) -> Reached:
        asked.append(configuration)
        cores = sum(lane.cores for lane in configuration)
        return Reached(reached_qps, 90.0) if cores == 4 else Reached(50.0 * cores, 50.0)

    found = guided_search(space, Predicted(lambda one: Reached(100.0 * one[0].cores)), evaluate, Limits(55.0))
    assert found.best is not None
    assert ([lane.cores for lane, *_ in asked].count(4) == 1) == is_passed_over


def test_leaders_are_measured_again_with_what_is_left_of_the_share():
    asked: list = []

    def lucky(configuration) -> Reached:
        asked.append(configuration)
        return Reached(true_qps(configuration) * (1.05 if len(asked) == 2 else 1.0), 10.0)

    found = guided_search(SPACE, TRUTH, lucky, Limits(noise=0.06))
    best = exhaustive_search(SPACE, measured([])).reached.qps
    assert found.reached.qps == best
    assert found.evaluations > len(set(asked))


def test_a_worker_on_every_core_is_measured_whatever_is_predicted():
    """Predictions that are no use: what they put first reaches least."""
    asked: list = []
    small = ParallelismSpace(2, (16, 64, 256, 1024))

    def evaluate(configuration) -> Reached:
        asked.append(configuration)
        (lane,) = configuration
        return Reached(500.0 if lane.workers == 2 else 10.0, 10.0)

    found = guided_search(small, Predicted(lambda one: Reached(100.0 / one[0].workers)), evaluate)
    assert found.best == (Lane(Placement.MODEL_ON_HOST, 2, 1, 16),)
    assert found.evaluations == len(asked) == FEWEST


TWO_CORES = ParallelismSpace(2, tuple(1 << power for power in range(4, 11)))
"""What `hebe profile` searches on two cores: a fifth of 28 is five."""


def test_on_two_cores_the_best_and_what_is_within_its_noise_are_measured_once_more():
    """Of three configurations one was lucky once."""
    answers = [[104.0, 96.0], [101.0, 101.0], [50.0]]
    asked: list = []

    def evaluate(configuration) -> Reached:
        asked.append(configuration)
        place = list(dict.fromkeys(asked)).index(configuration)
        return Reached(answers[place][asked.count(configuration) - 1], 10.0)

    found = guided_search(TWO_CORES, off(1.0), evaluate, Limits(noise=0.06))
    assert (found.best, found.reached.qps) == (asked[1], 101.0)
    assert [asked.count(each) for each in asked[:3]] == [2, 2, 1], "the third one is far worse"
    assert found.evaluations == len(asked) == 5 <= 0.2 * TWO_CORES.size()


@pytest.mark.parametrize("space", [TWO_CORES, SPACE, ParallelismSpace(2, (64, 256))])
def test_however_alike_all_are_no_more_is_measured_than_the_share(space):
    asked: list = []
    found = guided_search(space, off(1.0), measured(asked), Limits(noise=0.9))
    most = max(FEWEST + FEWEST_REPEATS, int(0.2 * space.size()))
    assert found.evaluations == len(asked) == most
    assert len(found.steps) == len(set(asked)) == most - FEWEST_REPEATS, "the rest tells the best ones apart"


def test_what_is_doubted_takes_nothing_of_the_share():
    """What is predicted first seems to reach nothing, twice; as many others are measured as otherwise."""
    asked: list = []

    def evaluate(configuration) -> Reached:
        asked.append(configuration)
        return Reached(0.0 if configuration == asked[0] else true_qps(configuration), 10.0, 5.0)

    found = guided_search(SPACE, off(1.0), evaluate, Limits(noise=9.0, latency_ms=20.0))
    assert asked[:2] == [asked[0]] * 2
    assert asked.count(asked[0]) == 2
    assert found.best is not None
    assert len(set(asked)) == int(0.2 * SPACE.size()) - FEWEST_REPEATS


def test_where_nothing_that_should_win_keeps_the_target_algorithm_1_goes_on():
    """What is predicted to be best is late; only single workers with the smallest batches are not."""
    asked: list = []

    def evaluate(configuration) -> Reached:
        asked.append(configuration)
        (lane,) = configuration
        kept = lane.workers * lane.cores_per_worker == 1 and lane.batch_size == 16
        return Reached(50.0 if kept else 0.0, 10.0, 5.0)

    found = guided_search(SPACE, off(1.0), evaluate)
    assert found.best is not None
    assert (found.best[0].workers, found.best[0].batch_size) == (1, 16)
    assert len(asked) == len(set(asked)) == found.evaluations, "nothing is asked for twice"


def test_of_what_reaches_nothing_the_closest_is_told():
    asked: list = []

    def evaluate(configuration) -> Reached:
        asked.append(configuration)
        return Reached(0.0, 0.0, 5.0 + configuration[0].workers)

    found = guided_search(SPACE, Predicted(lambda one: Reached(0.0, 0.0, float(one[0].workers))), evaluate)
    assert found.best is None
    assert found.closest[0].workers == 1
    assert len(asked) == len(set(asked)) < 0.3 * SPACE.size()
