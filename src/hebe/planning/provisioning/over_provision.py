"""The over-provision rate from load history (Hercules, IV.C): how far a load rises until the next plan."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hebe.planning.error import Parameter, PlanningError
from hebe.planning.provisioning.program import Floats
from hebe.planning.provisioning.provisioning import as_numbers


def over_provision_rate(
    times_s: npt.ArrayLike, loads_qps: npt.ArrayLike, interval_s: float, quantile: float = 0.99
) -> Floats:
    """By which share of itself each load rose within `interval_s`, at `quantile` of all moments: 0.1 is a tenth.

    `times_s` `[n]`, increasing seconds; `loads_qps` `[n]` or `[n, models]`, the load at each. For every moment whose
    interval lies within the history, the rise is from its load to the largest one until the interval ends, that at its
    end included. Moments without any load have no share to rise by and are left out.

    Returns float64 `[]` or `[models]`, at least 0. Raises `PlanningError` naming the argument, also where the history
    is too coarse or too short to tell.
    """
    times, loads = as_numbers("times_s", times_s), as_numbers("loads_qps", loads_qps)
    if not (np.isfinite(interval_s) and interval_s > 0):
        raise PlanningError(Parameter("interval_s"), f" is {interval_s!r}: must be a positive number of seconds")
    if not 0 <= quantile <= 1:
        raise PlanningError(f"quantile is {quantile!r}: must lie between 0 and 1")
    if times.ndim != 1 or loads.ndim not in (1, 2) or len(loads) != len(times):
        raise PlanningError(f"loads_qps: has shape {loads.shape} for {times.shape} times: one row for each time")
    if not np.isfinite(times).all() or not (np.diff(times) > 0).all():
        raise PlanningError("times_s: must be finite and increase")
    if not (np.isfinite(loads) & (loads >= 0)).all():
        raise PlanningError("loads_qps: must be finite and at least 0")
    ends = np.searchsorted(times, times + interval_s * (1 + 1e-9), side="right")
    whole = times + interval_s <= (times[-1] if len(times) else 0.0) * (1 + 1e-12)
    if not whole.any():
        raise PlanningError("times_s: the history is shorter than ", Parameter("interval_s"), f", {interval_s:g} s")
    if (ends[whole] - np.flatnonzero(whole)).max() < 2:
        raise PlanningError(
            "times_s: the history has no two times within ",
            Parameter("interval_s"),
            f", {interval_s:g} s: take a finer history",
        )
    highest = _window_maximum(loads, ends)[whole]
    before = loads[whole]
    rise = np.divide(highest - before, before, out=np.full(before.shape, np.nan), where=before > 0)
    if np.isnan(rise).all(axis=0).any():
        raise PlanningError(
            f"loads_qps: a load is 0 at all times that {interval_s:g} s of history follow, so it tells no rise"
        )
    return np.asarray(np.nanquantile(rise, quantile, axis=0), dtype=np.float64)


def _window_maximum(values: Floats, ends: npt.NDArray[np.int64]) -> Floats:
    """The largest of `values[i:ends[i]]` for every i, along the first axis; `ends[i] > i`.

    Two overlapping windows of a power of two cover any other, so the largest of doubling windows suffice.
    """
    starts = np.arange(len(values))
    widths = ends - starts
    levels = np.floor(np.log2(widths)).astype(np.int64)
    result = np.empty_like(values)
    doubled = values
    for level in range(int(levels.max()) + 1):
        chosen = levels == level
        size = 1 << level
        result[chosen] = np.maximum(doubled[starts[chosen]], doubled[ends[chosen] - size])
        grown = doubled.copy()
        grown[: len(values) - size] = np.maximum(doubled[: len(values) - size], doubled[size:])
        doubled = grown
    return result
