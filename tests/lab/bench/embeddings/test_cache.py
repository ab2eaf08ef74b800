import numpy as np
import pytest
from rich.progress import Progress

from hebe.embeddings.cache.host_cache import HostCache
from hebe_lab.bench.embeddings import cache as embeddings_cache


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    tiny = embeddings_cache._Effort(
        runs=3, batches=2, rows=9_000, lru_runs=2, lru_rows=20_000, lru_batches=6, rounds=1, round_s=0.01
    )
    monkeypatch.setattr(embeddings_cache, "_QUICK", tiny)


def measure():
    with Progress(disable=True) as progress:
        return {figure.name: figure for figure in embeddings_cache.cache_figures(True, progress)}


def test_measures_what_it_promises():
    figures = measure()
    assert {name: figure.target for name, figure in figures.items()} == {
        "cache.over_index_select": ">= 0.8",
        "cache.refresh_over_copy": ">= 0.3",
        "cache.concurrency_64_over_peak": ">= 0.8",
        "cache.hit_rate_gap": "<= 0.02",
    }
    ratios = [figure.value for name, figure in figures.items() if name != "cache.hit_rate_gap"]
    assert all(value > 0 for value in ratios)
    assert figures["cache.concurrency_64_over_peak"].value <= 1
    assert abs(figures["cache.hit_rate_gap"].value) < 0.05  # of a dozen batches; nothing here depends on time
    assert "cache of 1,024 of 20,000 rows" in figures["cache.hit_rate_gap"].note


def test_a_cache_that_lacks_what_it_dumped_is_noticed(monkeypatch):
    monkeypatch.setattr(HostCache, "query", lambda *_: 0)
    with pytest.raises(RuntimeError, match="the cache lacks keys"):
        measure()


def test_a_cache_that_gives_other_rows_is_noticed(monkeypatch):
    query = HostCache.query

    def wrong(self, table, keys, rows, found):
        hits = query(self, table, keys, rows, found)
        if keys.size == embeddings_cache.BATCH:
            rows += 1
        return hits

    monkeypatch.setattr(HostCache, "query", wrong)
    with pytest.raises(RuntimeError, match="the cache and index_select disagree"):
        measure()


def test_the_exact_lru():
    lru = embeddings_cache._ExactLru(3)
    assert lru.ask(np.array([1, 2, 3, 1])) == 0
    assert lru.ask(np.array([4])) == 0
    assert lru.ask(np.array([2, 3, 1, 4, 3])) == 4
