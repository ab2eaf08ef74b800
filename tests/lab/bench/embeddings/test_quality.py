import shutil

import numpy as np
import pytest
from rich.progress import Progress

from hebe_lab.bench.embeddings import quality


def test_two_tiers_are_compared_with_the_better_one():
    shares = {
        "Redis over RocksDB": np.array([0.6, 0.6]),
        "Redis": np.array([0.3, 0.5]),
        "RocksDB": np.array([0.5, 0.5]),
    }
    figure = quality._figure(20, shares, dict.fromkeys(shares, 21.0))
    assert (figure.name, figure.target) == ("quality.two_tiers_over_best_one.20_ms", ">= 1.0")
    assert figure.value == pytest.approx(1.2)
    assert "RocksDB 0.500 (p95 21.0 ms)" in figure.note


def test_batches_are_looked_up_by_turns(monkeypatch):
    class Contestant:
        def __init__(self, took_s):
            self.took_s, self.asked = took_s, 0

        def look_up(self, keys, deadline_s):
            assert (keys.shape, deadline_s) == ((8, 800), 0.02)
            self.asked += 1
            return 0.5, self.took_s

    monkeypatch.setattr(quality, "_PAUSE_S", 0.0)
    contestants = {"in time": Contestant(0.024), "late": Contestant(0.026)}
    shares, took_ms = quality._measure(contestants, 0.02, 2, 3)
    assert [each.asked for each in contestants.values()] == [6, 6]
    assert shares["in time"] == pytest.approx([0.5, 0.5])
    assert shares["late"].tolist() == [0, 0]
    assert took_ms["late"] == pytest.approx(26.0)


def test_without_redis_there_is_nothing_to_compare(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with Progress(disable=True) as progress, pytest.raises(RuntimeError, match="redis-server"):
        quality.run(True, progress)
