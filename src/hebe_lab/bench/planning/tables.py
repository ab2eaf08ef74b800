"""Made-up inputs for the planners' benchmarks: service tables and scalability profiles like those of real servers."""

from __future__ import annotations

import numpy as np

from hebe.profile import ScalabilityProfile
from hebe.simulation.measured.service_table import ServiceTable
from hebe.workload.query_sizes import ProductionSizes

TYPES = ("base", "wide", "small", "burst")
"""An accelerator with a high fixed cost, then three processors, as the four EC2 types of Kairos' measurements are."""

PRICES_PER_HOUR = (0.526, 0.432, 0.149, 0.1664)
_FIXED_MS = (6.0, 0.4, 0.4, 0.5)
_ITEM_MS = (0.004, 0.03, 0.05, 0.06)
_SPREAD = 0.08
SLA_MS = 25.0
LARGEST = ProductionSizes().largest


def service_table(pace: float = 1.0, samples: int = 99, seed: int = 0) -> ServiceTable:
    """Service times linear in the items, `pace` times as long as the built-in ones, with a lognormal spread of 8%.

    With pace 1 only the base type serves every query of the production sizes within `SLA_MS`.
    """
    spread = np.sort(np.random.default_rng(seed).lognormal(0.0, _SPREAD, samples))
    items = np.arange(LARGEST + 1)
    median_ms = np.array([fixed + each * items for fixed, each in zip(_FIXED_MS, _ITEM_MS, strict=True)])
    return ServiceTable(TYPES, pace * median_ms[:, :, None] * spread / 1e3)


def scalability_profiles(
    models: int, cores: int, cache_ways: int, bandwidth_bytes_per_s: float, seed: int = 0
) -> list[ScalabilityProfile]:
    """Two models in five run out of memory bandwidth at a third to three quarters of the cores, the others never."""
    chance = np.random.default_rng(seed)
    counts = tuple(sorted({1, 2, *np.linspace(4, cores, 4).astype(int).tolist()}))
    ways = tuple(range(1, cache_ways + 1))
    profiles = []
    for number in range(models):
        bound = chance.random() < 0.4
        most = chance.uniform(cores / 3, 3 * cores / 4) if bound else 2.0 * cores
        used = np.minimum(counts, most)
        kept = 1 - chance.uniform(0.01, 0.6) * (1 - np.array(ways) / cache_ways) ** 2
        qps = chance.uniform(10.0, 5000.0) * used
        share = chance.uniform(0.8, 1.0) / most if bound else chance.uniform(0.005, 0.03)
        profiles.append(
            ScalabilityProfile(
                f"model-{number}",
                counts,
                qps.tolist(),
                (used * share * bandwidth_bytes_per_s).tolist(),
                ways,
                (qps[:, None] * kept).tolist(),
            )
        )
    return profiles
