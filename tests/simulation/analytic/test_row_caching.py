from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.simulation.analytic.model_work import Gather, ModelWork
from hebe.simulation.analytic.row_caching import RowPopularity
from hebe.workload.reuse_profile import PRODUCTION_2021, ReuseProfile


def work_of(*gathers):
    return ModelWork("m", gathers, ((),), 0, 0, 0, 0)


def gather(table, rows, lookups, row_bytes=128):
    return Gather(f"{table}{lookups}", table, rows, row_bytes, lookups, row_bytes, True)


SKEWED = ReuseProfile("two groups", (0.1, 0.9), (0.7, 0.3))


def test_lru_hits_are_those_of_an_lru_cache():
    work = work_of(gather("a", 2000, 3), gather("b", 500, 1))
    rng = np.random.default_rng(0)
    cache, hits, seen = OrderedDict(), np.zeros(2), np.zeros(2)
    for step in range(40_000):
        for index, (rows, lookups) in enumerate(((2000, 3), (500, 1))):
            for rank in SKEWED.draw_ranks(rows, lookups, rng):
                key = index, int(rank)
                if step > 10_000:
                    hits[index] += key in cache
                    seen[index] += 1
                cache[key] = True
                cache.move_to_end(key)
                if len(cache) > 600:
                    cache.popitem(last=False)
    estimated = RowPopularity(work, SKEWED).lru_shares(600 * 128)
    assert estimated == pytest.approx(hits / seen, abs=0.01)


def test_without_a_profile_all_rows_are_alike():
    popularity = RowPopularity(work_of(gather("a", 1000, 5)), None)
    assert popularity.lru_shares(250 * 128) == pytest.approx([0.25], rel=1e-6)
    assert popularity.hottest_shares(250 * 128) == pytest.approx([0.25])


def test_the_hottest_rows_per_byte_come_first():
    popularity = RowPopularity(work_of(gather("a", 1000, 10), gather("b", 1000, 1)), SKEWED)
    # Room for both tables' hot tenth: a's is looked up ten times as often, then a's cold rows as much as b's hot ones.
    assert popularity.hottest_shares(100 * 128) == pytest.approx([0.7, 0.0])
    assert popularity.hottest_shares(200 * 128) == pytest.approx([0.7, 0.7])
    assert popularity.hottest_shares(50 * 128) == pytest.approx([0.35, 0.0])


def test_features_of_one_table_share_its_rows():
    popularity = RowPopularity(work_of(gather("a", 1000, 1), gather("a", 1000, 9)), SKEWED)
    shares = popularity.hottest_shares(100 * 128)
    assert shares == pytest.approx([0.7, 0.7])


@settings(deadline=None, max_examples=50)
@given(st.floats(0, 2e6), st.floats(0, 2e6), st.booleans())
def test_a_larger_cache_hits_more_often(one, other, hottest):
    popularity = RowPopularity(work_of(gather("a", 10_000, 4), gather("b", 300, 2, 40)), PRODUCTION_2021)
    shares = popularity.hottest_shares if hottest else popularity.lru_shares
    small, large = shares(min(one, other)), shares(max(one, other))
    assert (small <= large + 1e-9).all()
    assert (small >= 0).all()
    assert (large <= 1 + 1e-9).all()


def test_a_cache_holds_nothing_or_everything():
    popularity = RowPopularity(work_of(gather("a", 1000, 1)), PRODUCTION_2021)
    assert popularity.lru_shares(0) == [0.0]
    assert popularity.hottest_shares(0) == [0.0]
    assert popularity.lru_shares(1000 * 128) == pytest.approx([1.0])
    assert popularity.hottest_shares(1000 * 128) == pytest.approx([1.0])
