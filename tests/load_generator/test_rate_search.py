import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.load_generator.rate_search import Phase, RateSearch


def run(search, holds):
    """Drive `search` with the verdicts of `holds(rate)`; the rates that it tried."""
    tried = []
    while (rate := search.next_rate()) is not None:
        tried.append(rate)
        assert len(tried) < 1000
        search.record(holds(rate))
    return tried


class Queue:
    """One worker that takes `service_s` for each query (M/D/1): whether p95 of a run stays within `bound_s`."""

    def __init__(self, service_s, bound_s, seed, queries=600):
        self.service_s, self.bound_s, self.queries = service_s, bound_s, queries
        self.rng = np.random.default_rng(seed)

    def latencies(self, rate, queries):
        arrivals = np.cumsum(self.rng.exponential(1 / rate, queries))
        # Lindley's recursion in closed form: a query starts when it arrives, or when all before it are done.
        turn = self.service_s * np.arange(queries)
        starts = np.maximum.accumulate(arrivals - turn) + turn
        return starts + self.service_s - arrivals

    def holds(self, rate):
        return np.percentile(self.latencies(rate, self.queries), 95) <= self.bound_s

    def knee(self):
        """The rate at which half of the runs hold."""
        low, high = 0.1 / self.service_s, 1.5 / self.service_s
        for _ in range(12):
            middle = (low + high) / 2
            if np.mean([self.holds(middle) for _ in range(60)]) >= 0.5:
                low = middle
            else:
                high = middle
        return low


def test_a_sharp_threshold_is_found_to_the_resolution():
    search = RateSearch(start_qps=10, resolution=0.02, rounds=3)
    tried = run(search, lambda rate: rate <= 777)
    found = search.result()
    assert found.qps == pytest.approx(777, rel=0.02)
    assert found.low_qps <= 777 <= found.high_qps
    assert tried[:3] == [10, 20, 40]
    assert len(tried) < 30


@pytest.mark.parametrize("start", [0.5, 50, 5000])
def test_the_start_does_not_matter(start):
    search = RateSearch(start)
    run(search, lambda rate: rate <= 130)
    assert search.result().qps == pytest.approx(130, rel=0.03)


@pytest.mark.parametrize("seed", range(5))
def test_finds_the_knee_of_a_queue(seed):
    queue = Queue(service_s=0.0075, bound_s=0.1, seed=seed)
    search = RateSearch(start_qps=30)
    run(search, queue.holds)
    found = search.result()
    assert found.qps == pytest.approx(queue.knee(), rel=0.05)
    assert found.low_qps < found.qps < found.high_qps
    assert found.high_qps / found.low_qps < 1.25


def test_the_interval_covers_the_knee_as_often_as_it_says():
    knee = Queue(service_s=0.0075, bound_s=0.1, seed=99).knee()
    covered = 0
    for seed in range(60):
        search = RateSearch(start_qps=40)
        run(search, Queue(service_s=0.0075, bound_s=0.1, seed=seed).holds)
        found = search.result()
        covered += found.low_qps <= knee <= found.high_qps
    assert covered >= 51  # 95% of 60 is 57; six fewer would happen once in a hundred


def test_phases_follow_one_another():
    search = RateSearch(100)
    phases = [search.phase]
    while (rate := search.next_rate()) is not None:
        search.record(rate <= 300)
        phases.append(search.phase)
    order = list(dict.fromkeys(phases))
    assert order == [Phase.RAMP, Phase.BRACKET, Phase.ROUND]


def test_results_come_with_the_first_round():
    search = RateSearch(100, rounds=4)
    while search.phase is not Phase.ROUND:
        assert search.result() is None
        search.record(search.next_rate() <= 300)
    while not search.crossings:
        assert search.result() is None
        search.record(search.next_rate() <= 300)
    assert search.result().qps == pytest.approx(300, rel=0.03)
    assert search.next_rate() is not None


def test_nothing_holds():
    search = RateSearch(100, lowest_qps=1)
    tried = run(search, lambda _: False)
    assert tried[-1] == 1
    assert search.result().qps == 0
    assert not search.result().capped


def test_everything_holds():
    search = RateSearch(100, highest_qps=1000)
    tried = run(search, lambda _: True)
    assert tried[-1] == 1000
    assert search.result().qps == 1000
    assert search.result().capped


def test_a_false_alarm_in_the_ramp_is_overcome():
    verdicts = iter([True, False])  # passes at 100, fails at 200 though 1000 would hold
    search = RateSearch(100)
    run(search, lambda rate: next(verdicts, rate <= 1000))
    assert search.result().qps == pytest.approx(1000, rel=0.1)


@settings(deadline=None, max_examples=60)
@given(
    st.floats(0.2, 1e5),
    st.floats(0.2, 1e5),
    st.floats(0.005, 0.3),
    st.integers(2, 8),
    st.integers(0, 2**32),
    st.floats(0, 0.5),
)
def test_any_verdicts_end_within_bounds(start, threshold, resolution, rounds, seed, noise):
    rng = np.random.default_rng(seed)
    search = RateSearch(start, 0.1, 1e6, resolution, rounds)
    tried = run(search, lambda rate: bool(rate * math.exp(noise * rng.standard_normal()) <= threshold))
    assert all(0.1 <= rate <= 1e6 for rate in tried)
    found = search.result()
    assert found.low_qps <= found.qps <= found.high_qps
    with pytest.raises(ValueError, match="over"):
        search.record(True)


@pytest.mark.parametrize(
    "settings_",
    [
        {"start_qps": 0},
        {"start_qps": math.nan},
        {"start_qps": 1, "resolution": 0},
        {"start_qps": 1, "rounds": 1},
        {"start_qps": 1, "lowest_qps": 5, "highest_qps": 2},
    ],
)
def test_rejects_senseless_settings(settings_):
    with pytest.raises(ValueError, match=" is "):
        RateSearch(**settings_)
