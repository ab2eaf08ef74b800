"""What queueing theory says exactly, to hold the simulator to."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats


def mm1_latency_s(rate_qps: float, service_s: float) -> float:
    """Mean latency of the M/M/1 queue: Poisson arrivals, exponential service of mean `service_s`."""
    _check(rate_qps, service_s, 1)
    return service_s / (1 - rate_qps * service_s)


def mdc_latency_s(rate_qps: float, service_s: float, workers: int) -> float:
    """Mean latency of the M/D/c queue: Poisson arrivals, every service `service_s`, `workers` servers.

    Crommelin's argument (1932): whoever is in service now has left `service_s` later, and nobody else has, so that the
    number present is a Markov chain from one such moment to the next: max(n - c, 0) plus a Poisson number. Its
    stationary distribution is solved for, up to where it is negligible; Little's law makes it a latency.
    """
    _check(rate_qps, service_s, workers)
    arriving = rate_qps * service_s
    load = arriving / workers
    # The tail falls about as fast as exp(-2 (1 - load) / load) per query (heavy traffic): cut off below exp(-40).
    states = math.ceil(workers + arriving + 12 * math.sqrt(arriving) + 20 * load / (1 - load) + 40)
    present = np.arange(states)
    left = np.maximum(present - workers, 0)
    chain = stats.poisson.pmf(present[None, :] - left[:, None], arriving)
    chain[:, -1] += 1 - chain.sum(axis=1)
    balance = chain.T - np.eye(states)
    balance[-1] = 1.0
    shares = np.linalg.solve(balance, np.append(np.zeros(states - 1), 1.0))
    return float(shares @ present) / rate_qps


def _check(rate_qps: float, service_s: float, workers: int) -> None:
    if not (rate_qps > 0 and service_s > 0 and workers >= 1 and rate_qps * service_s < workers):
        raise ValueError(
            f"rate_qps {rate_qps}, service_s {service_s}, workers {workers}: must be positive, and the load below 1"
        )
