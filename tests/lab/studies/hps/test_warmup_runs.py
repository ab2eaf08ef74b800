"""Small caches warmed through the real tiers."""

import numpy as np

from hebe_lab.studies.hps.setting import HASH_MAP, DataSet
from hebe_lab.studies.hps.warmup import Trace, median_trace, rows_that_fit, run_warm_up, tiers_config


def trace(latency_ms, iterations=60):
    return Trace(np.arange(iterations) / iterations, np.full(iterations, latency_ms), np.zeros(iterations), 0)


def test_runs_of_one_case_become_one():
    first, second, third = (trace(latency_ms) for latency_ms in (1.0, 50.0, 2.0))
    second.hit_rate[7] = 1.0
    combined = median_trace([first, second, third])
    np.testing.assert_array_equal(combined.latency_ms, third.latency_ms)
    np.testing.assert_array_equal(combined.hit_rate, first.hit_rate)


def test_an_async_miss_is_defaulted_and_a_sync_one_is_not(tmp_path):
    data, rng = DataSet(2, 3000), np.random.default_rng(3)
    batches = [data.draw(256, rng) for _ in range(30)]
    advanced = []
    waiting, never = (
        run_warm_up(
            data, tiers_config(HASH_MAP, 0.1, threshold, tmp_path, filled=False), batches, lambda: advanced.append(1)
        )
        for threshold in (1.0, 0.0)
    )
    assert len(advanced) == 60
    assert not waiting.defaulted.any()
    assert never.defaulted[0] == 1.0
    assert waiting.hit_rate[0] == never.hit_rate[0] == 0.0
    assert waiting.hit_rate[-5:].min() > 0.3
    assert waiting.latency_ms.min() > 0


def test_rows_are_bounded_by_the_memory(monkeypatch):
    monkeypatch.setattr("hebe_lab.studies.hps.warmup.available_bytes", lambda: 1 << 30)
    assert rows_that_fit(2, 1000) == 1000
    rows = rows_that_fit(2, 1 << 40)
    assert 0.5 * (1 << 30) < 2 * rows * 512 * 1.6 < 0.7 * (1 << 30)
