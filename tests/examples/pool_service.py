"""Two server types to choose plans and race pools on, for small queries, with hardly any spread."""

from __future__ import annotations

import numpy as np

from hebe.planning.pool.pool_problem import PoolProblem
from hebe.simulation.measured.service_table import ServiceTable

TYPES = ("fast", "cheap")
LARGEST = 40
SLA_MS = 30.0


class EvenSizes:
    """Every size up to the largest equally often."""

    largest = LARGEST

    def draw(self, count, rng):
        return rng.integers(1, LARGEST + 1, count)


def table(item_ms=(0.4, 0.6), fixed_ms=(2.0, 0.2)):
    items = np.arange(LARGEST + 1)
    median_ms = np.array([fixed + each * items for fixed, each in zip(fixed_ms, item_ms, strict=True)])
    return ServiceTable(TYPES, median_ms[:, :, None] * np.array([0.98, 1.0, 1.02]) / 1e3)


def problem(service=None, prices=(1.0, 0.2)):
    service = service or table()
    weights = np.full(LARGEST, 1 / LARGEST)
    return PoolProblem(TYPES, np.array(prices), service.mean_s, weights, SLA_MS / 1e3)
