"""Made-up provisioning problems of any size, for benchmarks and tests: unlike servers and models, scarce best ones."""

from __future__ import annotations

import numpy as np

from hebe.planning.error import PlanningError
from hebe.planning.provisioning.program import Floats
from hebe.planning.provisioning.provisioning import FleetOptions

_RESOURCES = 3
"""Memory bandwidth, general compute, accelerator: what server types have and models need, each in its own mixture."""
_CANNOT_RUN = 0.15
_SERVERS_PER_MODEL = 100
_LOAD = 0.9


def generate_fleet(models: int, server_types: int, seed: int = 0) -> tuple[FleetOptions, Floats]:
    """What servers there are, and the demand in queries/s `[models]`; the same for the same arguments.

    A server type has a lognormal amount of each of three resources, and a model needs them in a random mixture: its
    throughput is what they allow one after the other, times up to a tenth or so of noise. Power is an idle part and
    one that grows with the resources and with how busy the model keeps them. There are about a hundred servers for
    each model in all, and 15% of all pairs cannot run, none of the first type. The demand is 0.9 of what the servers
    would serve if each type were divided among the models in the same shares, so it can be met; since a good plan does
    better than that, about half of the servers suffice, and the best types are exhausted.
    """
    if models < 1 or server_types < 1:
        raise PlanningError(f"generated fleet: {models} models on {server_types} server types: must be at least 1 each")
    draw = np.random.default_rng(seed)
    resources = draw.lognormal(0.0, 0.6, (server_types, _RESOURCES))
    needs = draw.dirichlet([0.7] * _RESOURCES, models)
    pace_qps = draw.lognormal(np.log(2000.0), 0.7, (models, 1))
    qps = pace_qps / (needs @ (1.0 / resources.T)) * draw.lognormal(0.0, 0.1, (models, server_types))
    idle_watts = 60.0 * np.sqrt(resources.mean(axis=1))
    busy_watts = 120.0 * resources.mean(axis=1)
    power_watts = idle_watts + busy_watts * draw.uniform(0.5, 1.0, (models, server_types))
    most = max(round(2 * _SERVERS_PER_MODEL * models / server_types), 1)
    available = draw.integers(1, most + 1, server_types)
    cannot_run = draw.random((models, server_types)) < _CANNOT_RUN
    cannot_run[:, 0] = False
    qps[cannot_run] = 0.0
    shares = draw.dirichlet([2.0] * models)
    demand_qps = _LOAD * shares * (qps * available).sum(axis=1)
    options = FleetOptions(
        tuple(f"model-{number}" for number in range(models)),
        tuple(f"type-{number}" for number in range(server_types)),
        qps,
        power_watts,
        available,
        price_per_hour=0.3 * resources.mean(axis=1) ** 0.8,
    )
    return options, demand_qps
