"""Planning problems for tests: made up, and from the recorded measurements of Kairos."""

import csv
from collections import defaultdict

import numpy as np
import pytest

from hebe.planning.pool.pool_problem import PoolProblem
from hebe.planning.pool.query_size_monitor import size_weights
from hebe.workload.query_sizes import ProductionSizes
from tests.places import SHARED_DATA

KAIROS = SHARED_DATA / "kairos"
recorded = pytest.mark.skipif(not KAIROS.exists(), reason="the recorded data is not beside this checkout")
SLA_S = {"ncf": 0.005, "rm2": 0.350, "wnd": 0.025, "mtwnd": 0.025, "dien": 0.035}
"""Kairos, Table 3."""
PRICES = {"g4dn.xlarge": 0.526, "c5n.2xlarge": 0.432, "r5n.large": 0.149, "t3.xlarge": 0.1664}
"""$/h; Kairos, Table 4."""
BUDGET = 2.5


def production_weights():
    return size_weights(ProductionSizes().draw(200_000, np.random.default_rng(0)), 999)


def three_types(largest=100, **changes):
    """A fast dear type that serves every size in time, two cheap slow ones that do not."""
    items = np.arange(1, largest + 1)
    service_s = np.array([4e-3 + 6e-5 * items, 1e-3 + 2e-4 * items, 2e-3 + 3e-4 * items])
    weights = np.exp(-items / 30)
    given = {
        "types": ("gpu", "cpu", "small"),
        "price_per_hour": np.array([0.5, 0.2, 0.12]),
        "service_s": service_s,
        "size_weights": weights / weights.sum(),
        "sla_s": 0.0125,
    }
    return PoolProblem(**{**given, **changes})


def any_problem(rng, types, sizes):
    """Service times about proportional to the size beyond a fixed part, with noise, and an SLA that some types miss."""
    items = np.arange(1, sizes + 1)
    fixed_s, per_item_s = rng.uniform(1e-4, 3e-3, types), rng.uniform(5e-6, 5e-5, types)
    service_s = (fixed_s[:, None] + per_item_s[:, None] * items) * rng.uniform(0.95, 1.05, (types, sizes))
    sla_s = max(rng.uniform(0.3, 1.2) * np.median(service_s[:, -1]), 1.1 * service_s.min())
    names = tuple(f"type{kind}" for kind in range(types))
    return PoolProblem(names, rng.uniform(0.1, 0.6, types), service_s, rng.dirichlet(np.ones(sizes)), sla_s)


def kairos_problem(model):
    """The recorded means of loading and execution, between the measured sizes by the line through them."""
    points = defaultdict(list)
    with open(KAIROS / "latency_summary.csv", newline="") as file:
        for row in csv.DictReader(file):
            if row["model"] == model:
                points[row["instance"]].append((int(row["batch"]), float(row["mean_ms"]) / 1e3))
    items = np.arange(1, 1000)
    service_s = np.array([np.interp(items, *zip(*sorted(points[name]), strict=True)) for name in PRICES])
    return PoolProblem(tuple(PRICES), np.array(list(PRICES.values())), service_s, production_weights(), SLA_S[model])
