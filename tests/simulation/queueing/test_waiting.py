import heapq
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.simulation.queueing.waiting import NO_WAIT, FusedService, Wait, largest_rate, parallel_wait, share_beyond
from hebe.workload.query_sizes import ProductionSizes

QUERIES = 40_000
SIZES = ProductionSizes().draw(QUERIES, np.random.default_rng(1))
CLASSES = np.rint(np.quantile(SIZES, (np.arange(200) + 0.5) / 200))


def split_latencies(rate_qps, workers, batch_size, second_per_item, overhead_s):
    """Queries split into batches that any of `workers` takes, first come first served: simulated."""
    arrivals = np.cumsum(np.random.default_rng(2).exponential(1 / rate_qps, QUERIES))
    free, done = [0.0] * workers, np.zeros(QUERIES)
    for query, (arrival, items) in enumerate(zip(arrivals, SIZES.tolist(), strict=True)):
        while items > 0:
            part = min(items, batch_size)
            end = max(heapq.heappop(free), arrival) + overhead_s + second_per_item * part
            heapq.heappush(free, end)
            done[query], items = max(done[query], end), items - part
    return (done - arrivals)[QUERIES // 10 :]


def split_classes(workers, batch_size, second_per_item, overhead_s):
    whole, rest = np.divmod(CLASSES, batch_size)
    batch_s, rest_s = overhead_s + second_per_item * batch_size, (rest > 0) * overhead_s + second_per_item * rest
    own = np.where(whole > 0, np.ceil((whole + (rest > 0)) / workers) * batch_s, rest_s)
    return whole * batch_s + rest_s, own


@pytest.mark.parametrize("load", [0.6, 0.9])
@pytest.mark.parametrize(("workers", "batch_size"), [(20, 64), (20, 256), (10, 1000), (4, 128)])
def test_the_tail_of_split_queries_is_that_of_a_simulated_queue(workers, batch_size, load):
    work, own = split_classes(workers, batch_size, 5e-5, 2e-4)
    rate = load * workers / work.mean()
    simulated = np.percentile(split_latencies(rate, workers, batch_size, 5e-5, 2e-4), 95)
    wait = parallel_wait(rate, work, own, workers)
    assert share_beyond(0.85 * simulated, own, wait) > 0.05
    assert share_beyond(1.2 * simulated, own, wait) < 0.05


def test_one_server_waits_as_pollaczek_and_khinchine_say():
    work = np.array([1.0, 3.0])
    wait = parallel_wait(0.3, work, work, 1)
    assert wait.probability == pytest.approx(0.6)
    assert wait.probability * wait.mean_s == pytest.approx(0.3 * 5.0 / (2 * 0.4))


def test_an_overload_has_no_wait_that_ends():
    work = np.array([1.0])
    assert parallel_wait(2.0, work, work, 2) is None
    assert parallel_wait(0.0, work, work, 2) == NO_WAIT


@settings(deadline=None, max_examples=50)
@given(st.floats(0.01, 0.95), st.floats(0.01, 0.95), st.integers(1, 40))
def test_more_load_means_later(one, other, workers):
    work, own = split_classes(workers, 128, 5e-5, 2e-4)
    capacity = workers / work.mean()
    late = [
        share_beyond(0.03, own, parallel_wait(load * capacity, work, own, workers))
        for load in (min(one, other), max(one, other))
    ]
    assert late[0] <= late[1] + 1e-12


def test_two_waits_add_up():
    rng = np.random.default_rng(0)
    first, second = Wait(0.7, 2.0), Wait(0.4, 1.0)
    drawn = sum((rng.random(400_000) < w.probability) * rng.exponential(w.mean_s, 400_000) for w in (first, second))
    own = np.array([0.0, 1.0])
    for bound in (0.5, 2.0, 6.0):
        expected = np.mean([(drawn > bound).mean(), (drawn > bound - 1.0).mean()])
        assert share_beyond(bound, own, first, second) == pytest.approx(expected, abs=0.004)
    assert share_beyond(2.0, own, NO_WAIT, second) == share_beyond(2.0, own, second)
    equal = share_beyond(2.0, own, first, first)
    assert equal == pytest.approx(share_beyond(2.0, own, first, Wait(0.7, 2.0001)), rel=1e-3)
    assert share_beyond(0.5, own, first) == pytest.approx(0.5 * (0.7 * math.exp(-0.25) + 1.0))


ITEMS = np.array([1.0, 65_536.0])


def fused(workers, overhead_s, second_per_item, largest=65_536.0):
    return FusedService(workers, largest, ITEMS, overhead_s + second_per_item * ITEMS)


def fused_latencies(rate_qps, overhead_s, second_per_item):
    """A worker that takes all that waits: simulated."""
    arrivals = np.cumsum(np.random.default_rng(2).exponential(1 / rate_qps, QUERIES))
    done, query, now = np.zeros(QUERIES), 0, 0.0
    while query < QUERIES:
        now = max(now, arrivals[query])
        last = int(np.searchsorted(arrivals, now, side="right"))
        now += overhead_s + second_per_item * SIZES[query:last].sum()
        done[query:last], query = now, last
    return (done - arrivals)[QUERIES // 10 :]


@pytest.mark.parametrize(
    ("overhead_s", "load", "low", "high"),
    [(0.02, 0.3, 0.9, 1.15), (0.02, 0.8, 0.85, 1.15), (0.002, 0.8, 0.85, 1.15), (0.0005, 0.9, 0.85, 1.15)],
)
def test_the_tail_of_fused_queries_is_near_that_of_a_simulated_queue(overhead_s, load, low, high):
    second_per_item = 1e-5
    rate = load / (SIZES.mean() * second_per_item)
    simulated = np.percentile(fused_latencies(rate, overhead_s, second_per_item), 95)
    service = fused(1, overhead_s, second_per_item)
    estimated = service.latency_s(rate, CLASSES.mean(), (CLASSES**2).mean(), 95.0)
    assert low < estimated / simulated < high


def test_batches_grow_until_they_keep_up():
    service = fused(1, 0.01, 1e-5)
    # b = 50,000 * (0.01 + b / 100,000)
    assert service.batch_items(50_000, 200) == pytest.approx(1000)
    assert service.batch_items(100, 200) == 200
    assert service.batch_items(100_000, 200) == math.inf
    assert fused(1, 0.01, 1e-5, largest=900.0).batch_items(50_000, 200) == math.inf


def test_batches_that_outgrow_the_limit_are_no_answer():
    assert fused(1, 0.01, 1e-5, largest=1001.0).latency_s(250, 200, 60_000, 95.0) == math.inf
    assert fused(1, 0.01, 1e-5).latency_s(250, 200, 60_000, 95.0) < 0.1


def test_the_largest_rate_is_found():
    assert largest_rate(lambda rate: rate <= 123.4, 1000.0) == pytest.approx(123.4, rel=1e-5)
    assert largest_rate(lambda _: False, 1000.0) == 0.0
    assert largest_rate(lambda _: True, 1000.0) == pytest.approx(1000.0)
