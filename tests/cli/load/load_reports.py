"""What runs and searches of load found, as if they had been, for the tests of those who show it."""

from collections import Counter
from dataclasses import replace

from hebe.latency import LatencyRecorder
from hebe.load_generator.load_report import LoadReport
from hebe.load_generator.search.qps_search import LatencyBoundedThroughput, Probe
from hebe.load_generator.search.rate_search import Crossing, Phase
from hebe.spec import SlaTarget

SLA = SlaTarget(20.0, 99.0)


def report(sla=SLA, cut_short="", refused=0):
    recorded, lag = LatencyRecorder(sla), LatencyRecorder()
    recorded.record_many([0.001 * n for n in range(1, 101)], items=500)
    lag.record_many([0.0001] * 100)
    recorded.refused = Counter({"503": refused} if refused else {})
    return LoadReport(50.0, 2.0, 1.0, recorded, 100, 500, lag, 0.1, 0, 8, cut_short, {"503": "full"} if refused else {})


CROSSING = Crossing(150.0, 140.0, 160.0)


def found(crossing=CROSSING, *, rounds=8, **of_the_failed_probe):
    """A search of two probes, of which the second one failed."""
    failed = replace(report(refused=3), **of_the_failed_probe)
    probes = (Probe(Phase.RAMP, 100.0, True, report()), Probe(Phase.ROUND, 200.0, False, failed))
    return LatencyBoundedThroughput(SLA, crossing, probes, False, rounds, ("caches look warm",))
