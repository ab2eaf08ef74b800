"""A search that measures what is predicted to win."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hebe.planning.guided_search import FEWEST, guided_search
from hebe.planning.parallelism import Limits, Reached, exhaustive_search
from hebe.planning.parallelism_space import ParallelismSpace
from hebe.server_configuration import Lane, Placement

SPACE = ParallelismSpace(6, (16, 64, 256, 1024))


def true_qps(configuration) -> float:
    """Two hills: one of each placement."""
    lane = configuration[0]
    used = lane.workers * lane.cores_per_worker**0.7 + 0.8 * lane.dense_workers
    return used * 100.0 / (1 + abs(lane.batch_size - 256) / 256)


def off(factor: float, seed: int = 0):
    """Off by about a factor, and by up to a tenth more, the same for the same configuration."""

    def predict(configuration) -> Reached:
        lane = configuration[0]
        key = (lane.workers, lane.cores_per_worker, lane.batch_size, lane.dense_workers, seed)
        return Reached(true_qps(configuration) * factor * (0.95 + 0.1 * (hash(key) % 97) / 97))

    return predict


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
    found = guided_search(SPACE, lambda one: Reached(true_qps(one)), measured(asked))
    assert found.evaluations == FEWEST
    assert found.best == asked[0]


def test_one_prediction_that_is_far_off_is_not_the_last_word():
    """The best is predicted second: what is predicted first reaches half of that."""
    best = exhaustive_search(SPACE, measured([])).best
    first = (replace(best[0], batch_size=16),)

    def predict(configuration) -> Reached:
        return Reached(true_qps(best) * 1.1 if configuration == first else true_qps(configuration))

    asked: list = []
    assert guided_search(SPACE, predict, measured(asked)).best == best
    assert asked[:2] == [first, best]


def test_what_is_over_the_power_budget_does_not_end_the_search():
    def evaluate(configuration) -> Reached:
        return Reached(true_qps(configuration), 10.0 * configuration[0].cores)

    found = guided_search(SPACE, off(1.0), evaluate, Limits(power_budget_watts=55.0))
    assert found.best is not None
    assert found.best[0].cores < SPACE.cores


def test_leaders_are_measured_again_with_what_is_left_of_the_share():
    asked: list = []

    def lucky(configuration) -> Reached:
        asked.append(configuration)
        return Reached(true_qps(configuration) * (1.05 if len(asked) == 2 else 1.0), 10.0)

    found = guided_search(SPACE, lambda one: Reached(true_qps(one)), lucky, Limits(noise=0.06))
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

    found = guided_search(small, lambda one: Reached(100.0 / one[0].workers), evaluate)
    assert found.best == (Lane(Placement.MODEL_ON_HOST, 2, 1, 16),)
    assert found.evaluations == len(asked) == FEWEST


def test_beyond_the_share_the_best_and_what_is_within_its_noise_are_measured_once_more():
    """On two cores three configurations are a fifth: one of them was lucky once."""
    small = ParallelismSpace(2, (16, 64, 256, 1024))
    answers = [[104.0, 96.0], [101.0, 101.0], [50.0]]
    asked: list = []

    def evaluate(configuration) -> Reached:
        asked.append(configuration)
        place = list(dict.fromkeys(asked)).index(configuration)
        return Reached(answers[place][asked.count(configuration) - 1], 10.0)

    found = guided_search(small, off(1.0), evaluate, Limits(noise=0.06))
    assert (found.best, found.reached.qps) == (asked[1], 101.0)
    assert [asked.count(each) for each in asked[:3]] == [2, 2, 1], "the third one is far worse"
    assert found.evaluations == len(asked) == 5


def test_beyond_the_share_nothing_is_measured_a_third_time():
    asked: list = []
    small = ParallelismSpace(2, (16, 64, 256, 1024))
    found = guided_search(small, off(1.0), measured(asked), Limits(noise=0.9))
    assert len(set(asked)) == len(found.steps) == FEWEST <= 0.2 * small.size()
    assert [asked.count(each) for each in dict.fromkeys(asked)] == [2, 2, 2]


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
    assert len(set(asked)) == int(0.2 * SPACE.size())


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

    found = guided_search(SPACE, lambda one: Reached(0.0, 0.0, float(one[0].workers)), evaluate)
    assert found.best is None
    assert found.closest[0].workers == 1
    assert len(asked) == len(set(asked)) < 0.3 * SPACE.size()
