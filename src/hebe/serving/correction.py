"""What a server shows while it serves, against what its profile says of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hebe.profile import EfficiencyTuple

NEAR = 0.9
"""Power at a load of this share of the latency-bounded throughput stands for power at all of it."""


@dataclass(frozen=True, slots=True)
class MeasuredLoad:
    """Some time of serving, long enough for its tail latency to mean something.

    `qps` arrived, `kept` says whether the SLA target held, `power_watts` is the peak that was drawn meanwhile; it is
    `power_estimated` where it could not be read.
    """

    qps: float
    kept: bool
    power_watts: float
    power_estimated: bool


def corrected(efficiency: EfficiencyTuple, load: MeasuredLoad) -> EfficiencyTuple:
    """The tuple after `load` was seen; the same one if it says nothing new.

    More queries within the SLA than it has: it has so many. Fewer, and too late: it has no more than those. Power
    rises to the highest seen; an estimate of it gives way to what was read near the full load, and never the other way
    round.
    """
    qps, power, estimated = efficiency.qps, efficiency.power_watts, efficiency.estimated
    if load.qps > qps if load.kept else load.qps < qps:
        qps = load.qps
    if estimated and not load.power_estimated and load.qps >= NEAR * qps:
        power, estimated = load.power_watts, False
    elif estimated == load.power_estimated:
        power = max(power, load.power_watts)
    if (qps, power, estimated) == (efficiency.qps, efficiency.power_watts, efficiency.estimated):
        return efficiency
    return replace(efficiency, qps=qps, power_watts=power, estimated=estimated)
