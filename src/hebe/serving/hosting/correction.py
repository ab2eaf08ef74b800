"""What a server shows while it serves, against what its profile says of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hebe.profile import EfficiencyTuple

NEAR = 0.9
"""A load of this share of the latency-bounded throughput is as good as all of it: for power, and to show that a figure
was too low."""

COUNTED_ON = 0.8
"""Of the load that workers would have time for, counted on where that is less than what the profile says: queries wait
for each other before the workers are busy all the time."""


@dataclass(frozen=True, slots=True)
class MeasuredLoad:
    """Some time of serving, long enough for its tail latency to mean something.

    `kept` says whether the SLA target held; `qps` arrived, and where it did not hold, were answered at all.
    `power_watts` is the peak that was drawn meanwhile; it is `power_estimated` where it could not be read.
    `busy_share` of their time the workers of the busiest stage were at work, of the lane that had most time left; None
    where that is not known. `lasting`: for so long that it was not by luck.
    """

    qps: float
    kept: bool
    power_watts: float
    power_estimated: bool
    busy_share: float | None = None
    lasting: bool = False


def corrected(efficiency: EfficiencyTuple, load: MeasuredLoad, profile_qps: float) -> EfficiencyTuple:
    """The tuple after `load` was seen, of which the profile says `profile_qps`; the same one if it says nothing new.

    About as many queries within the SLA as it has, or more, where it was lowered before: it has those, or what the
    workers' time would suffice for, up to what the profile says. More than that only if they were kept for long, since
    what is too much for a server is kept by luck now and then. Fewer, and too late: it has no more than those. Power
    rises to the highest seen; an estimate of it gives way to what was read near the full load, and never the other way
    round.
    """
    qps, power, estimated = efficiency.qps, efficiency.power_watts, efficiency.estimated
    if not load.kept:
        qps = min(qps, load.qps)
    elif qps < profile_qps and load.qps >= NEAR * qps:
        qps = max(qps, _would_serve(load, profile_qps))
    if load.kept and load.lasting:
        qps = max(qps, load.qps)
    if estimated and not load.power_estimated and load.qps >= NEAR * qps:
        power, estimated = load.power_watts, False
    elif estimated == load.power_estimated:
        power = max(power, load.power_watts)
    if (qps, power, estimated) == (efficiency.qps, efficiency.power_watts, efficiency.estimated):
        return efficiency
    return replace(efficiency, qps=qps, power_watts=power, estimated=estimated)


def _would_serve(load: MeasuredLoad, profile_qps: float) -> float:
    """Up to what the profile says: what was served, or more by the workers' time that this took."""
    has_time_for = 0.0 if load.busy_share is None else load.qps / max(load.busy_share, 1e-6)
    if has_time_for >= profile_qps:
        return profile_qps
    return min(max(load.qps, COUNTED_ON * has_time_for), profile_qps)
