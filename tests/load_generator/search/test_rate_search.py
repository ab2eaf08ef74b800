"""The search for a rate, against queues whose knee is known; the crossing, from verdicts drawn from a known curve."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit

from hebe.load_generator.search.rate_search import CONFIDENCE, Crossing, Phase, RateSearch, crossing_of
from hebe.workload.query_sizes import ProductionSizes


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

    def holds(self, rate):
        arrivals = np.cumsum(self.rng.exponential(1 / rate, self.queries))
        return np.percentile(latencies(arrivals, np.full(self.queries, self.service_s)), 95) <= self.bound_s

    KNEE = 124.1
    """At 7.5 ms a query and p95 within 0.1 s, half of the runs of 600 queries hold: 4,000 runs a rate."""


class ProductionQueue:
    """One worker, service in proportion to production query sizes (M/G/1), runs of `probe_s` as `QpsSearch` makes them.

    The bound is on p95; `knee` is the rate at which half of 4,000 runs held.
    """

    def __init__(self, item_s, bound_s, probe_s, knee):
        self.item_s, self.bound_s, self.probe_s, self.knee = item_s, bound_s, probe_s, knee

    def holds(self, rate, rng):
        warm_up_s, most_missed = 0.5, 0.05
        duration_s = warm_up_s + min(max(self.probe_s, 10 / most_missed / rate), 4 * self.probe_s)
        count = rng.poisson(rate * duration_s)
        arrivals = np.sort(rng.random(count)) * duration_s
        late = latencies(arrivals, ProductionSizes().draw(count, rng) * self.item_s) > self.bound_s
        return bool(np.mean(late[arrivals >= warm_up_s]) <= most_missed)


PRODUCTION_QUEUES = [
    ProductionQueue(1 / 238 / 100, 0.05, 5.0, 53.8),
    ProductionQueue(1 / 238 / 100, 0.05, 10.0, 52.8),
    ProductionQueue(1 / 238 / 200, 0.02, 5.0, 77.3),
    ProductionQueue(1 / 238 / 200, 0.02, 10.0, 76.6),
]


def latencies(arrivals, services):
    """Of one worker, by Lindley's recursion: a query starts when it arrives, or when all before it are done."""
    done = np.cumsum(services)
    return done + np.maximum.accumulate(arrivals - (done - services)) - arrivals


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
    assert found.qps == pytest.approx(Queue.KNEE, rel=0.05)
    assert found.low_qps < found.qps < found.high_qps
    assert found.high_qps / found.low_qps < 1.25


def test_the_interval_covers_the_knee_as_often_as_it_says():
    covered = 0
    for seed in range(60):
        search = RateSearch(start_qps=40)
        run(search, Queue(service_s=0.0075, bound_s=0.1, seed=seed).holds)
        found = search.result()
        covered += found.low_qps <= Queue.KNEE <= found.high_qps
    assert covered >= 54


@pytest.mark.parametrize("queue", PRODUCTION_QUEUES, ids=lambda queue: f"{queue.knee:g}qps-{queue.probe_s:g}s")
def test_the_interval_covers_the_knee_where_few_large_queries_decide(queue):
    covered, widths = 0, []
    for seed in range(100):
        rng = np.random.default_rng((7, seed))
        search = RateSearch(0.3 * queue.knee, lowest_qps=5 / queue.probe_s)
        run(search, lambda rate, rng=rng: queue.holds(rate, rng))
        found = search.result()
        covered += found.low_qps <= queue.knee <= found.high_qps
        widths.append(found.high_qps / found.low_qps)
    assert covered >= 90
    assert np.median(widths) < 1.45, "an interval of everything covers it too"


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
    assert search.result().qps == pytest.approx(300, rel=0.05)
    assert search.next_rate() is not None


def test_a_round_that_ends_at_the_lowest_rate_is_no_crossing():
    # It held at 40 once, and never again: as with a server that has died.
    search = RateSearch(40, lowest_qps=5, rounds=3)
    tried = run(search, lambda rate, seen=[]: seen.append(rate) or len(seen) == 1)
    assert tried.count(5) >= 3
    assert search.crossings == []
    found = search.result()
    assert (found.qps, found.low_qps) == (0, 0)
    assert 0 < found.high_qps <= 80


def test_rounds_that_end_at_the_highest_rate_say_at_least():
    verdicts = iter([True, True, False])  # a false alarm at 1000
    search = RateSearch(400, highest_qps=1000, rounds=2)
    run(search, lambda _: next(verdicts, True))
    assert search.result() == Crossing(1000, search.result().low_qps, 1000, capped=True)
    assert 400 < search.result().low_qps <= 1000


@pytest.mark.parametrize("seed", range(20))
def test_the_interval_stays_where_rates_were_tried(seed):
    rng = np.random.default_rng(seed)
    search = RateSearch(300, resolution=0.05, rounds=2)
    tried = run(search, lambda rate: bool(rng.random() < 1 / (1 + (rate / 500) ** 4)))
    found = search.result()
    assert min(tried) <= found.low_qps <= found.qps <= found.high_qps <= max(tried)


def test_nothing_holds():
    search = RateSearch(100, lowest_qps=1)
    tried = run(search, lambda _: False)
    assert tried[-2:] == [1, 1]
    found = search.result()
    assert (found.qps, found.low_qps, found.capped) == (0, 0, False)
    assert 1 <= found.high_qps < 2, "what it takes below the lowest rate is not known"


def test_nothing_holds_at_the_only_rate_that_is_tried():
    search = RateSearch(1, lowest_qps=1)
    run(search, lambda _: False)
    assert search.result() == Crossing(0, 0, 1)


@pytest.mark.parametrize("start", [3, 1])
def test_a_false_alarm_at_the_lowest_rate_is_overcome(start):
    search = RateSearch(start, lowest_qps=1)
    tried = run(search, lambda rate, seen=[]: seen.append(rate) or (rate <= 1.3 and seen.count(1) != 1))
    assert tried.count(1) >= 2
    assert search.result().qps == pytest.approx(1.3, rel=0.1)


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
    assert 0 <= found.low_qps <= found.qps <= found.high_qps <= 1e6
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


CROSSING = math.log(500.0)


def verdicts_of(rates, width, rng):
    return list(rng.random(len(rates)) < expit((CROSSING - np.log(rates)) / width))


@pytest.mark.parametrize("width", [0.02, 0.08, 0.3])
def test_the_interval_covers_the_crossing_as_often_as_it_says(width):
    rng = np.random.default_rng(1)
    covered, middles = 0, []
    for _ in range(150):
        rates = np.exp(CROSSING + rng.normal(0, 1.5 * width, 30))
        middle, lower, upper = crossing_of(rates, verdicts_of(rates, width, rng))
        assert lower <= middle <= upper
        covered += lower <= CROSSING <= upper
        middles.append(middle)
    assert covered / 150 >= CONFIDENCE - 0.05
    assert abs(np.mean(middles) - CROSSING) < width / 2


def test_more_verdicts_narrow_the_interval():
    rng = np.random.default_rng(2)
    rates = np.exp(CROSSING + rng.normal(0, 0.1, 200))
    verdicts = verdicts_of(rates, 0.08, rng)
    _, few_lower, few_upper = crossing_of(rates[:10], verdicts[:10])
    _, lower, upper = crossing_of(rates, verdicts)
    assert upper - lower < (few_upper - few_lower) / 2


def test_where_all_hold_the_crossing_is_beyond_and_where_none_does_below():
    rates = [400.0, 450.0, 500.0]
    above, lower, _ = crossing_of(rates, [True] * 3)
    below, _, upper = crossing_of(rates, [False] * 3)
    assert below < math.log(400.0) < math.log(500.0) < above
    assert lower > math.log(400.0)
    assert upper < math.log(500.0)


def test_a_single_disturbed_run_does_not_move_it_far():
    rates = [300.0] * 5 + [400.0] * 5 + [600.0] * 5 + [700.0] * 5
    verdicts = [True] * 10 + [False] * 10
    clean, *_ = crossing_of(rates, verdicts)
    verdicts[0] = False
    disturbed, *_ = crossing_of(rates, verdicts)
    assert disturbed == pytest.approx(clean, abs=0.02)


def test_one_verdict_is_enough_for_an_answer():
    middle, lower, upper = crossing_of([100.0], [True])
    assert lower < middle < upper
    assert middle > math.log(100.0)
