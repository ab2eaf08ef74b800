import asyncio
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from hebe.latency import LatencyRecorder
from hebe.load_generator.error import LoadError
from hebe.load_generator.load_report import NOT_SENT, LoadReport
from hebe.load_generator.model_inputs import ModelInput, ModelInputs
from hebe.load_generator.qps_search import LatencyBoundedThroughput, Probe, QpsSearch, Workload
from hebe.load_generator.query_pool import QueryPool
from hebe.load_generator.rate_search import Crossing, Phase
from hebe.load_generator.sender import Outcome
from hebe.load_generator.session import find_qps
from hebe.load_generator.target import Target, parse_endpoint
from hebe.spec import SlaTarget
from hebe.workload.arrivals import BurstArrivals, ConstantArrivals, TraceArrivals
from hebe.workload.key_skew import UniformKeys
from hebe.workload.query_sizes import FixedSizes
from hebe.workload.rate_trace import RateTrace

from .fake_server import FakeServer

POOL = QueryPool(ModelInputs((ModelInput("dense", "FP32", (1,), None),)), UniformKeys(), 10, np.random.default_rng(0))
WORKLOAD = Workload(FixedSizes(3), ConstantArrivals())
SLA = SlaTarget(5000.0, 80.0)
QUICK = QpsSearch(SLA, probe_s=0.1, warm_up_s=0.0, rounds=2, resolution=0.3, highest_qps=2000)


class Mortal(FakeServer):
    """Answers all of its first `life` queries at once; then comes what `death` says of each."""

    def __init__(self, life, death):
        super().__init__(delay_s=0.0)
        self._left = life
        self._death = death
        self.verdict = self._verdict

    def _verdict(self, _index):
        self._left -= 1
        return (Outcome.ANSWERED, "") if self._left >= 0 else self._death(-self._left)


async def search(server, settings=QUICK, workload=WORKLOAD, start_qps=400.0, **options):
    return await asyncio.wait_for(settings.run(workload, POOL, server, start_qps, asyncio.Event(), **options), 30)


async def test_a_server_that_dies_ends_the_search_and_is_named():
    server = Mortal(140, lambda _: (Outcome.FAILED, "connection refused"))
    with pytest.raises(LoadError) as caught:
        await search(server)
    message = str(caught.value)
    assert "the server answers no more" in message
    assert "connection refused message of connection refused" in message
    assert "the SLA held at 800 queries/s" in message
    assert "missed" not in message, "that it was missed at the next rate says nothing of the rate"


async def test_a_server_that_is_dead_from_the_start():
    with pytest.raises(LoadError, match=r"probe 1 of the search: connection closed.*until then no probe met the SLA"):
        await search(Mortal(0, lambda _: (Outcome.FAILED, "connection closed")))


async def test_failures_of_a_server_that_lives_are_missed_slas():
    server = FakeServer(delay_s=0.0)
    server.verdict = lambda index: (Outcome.FAILED, "500") if index % 5 in (1, 2) else (Outcome.ANSWERED, "")
    found = await search(server)
    assert found.crossing == Crossing(0, 0, 0)
    assert len(found.probes) > 3


async def test_refusals_are_no_reason_to_ask():
    server = FakeServer(delay_s=0.0, verdict=lambda _: (Outcome.REFUSED, "503"))
    found = await search(server)
    assert found.crossing == Crossing(0, 0, 0)


@pytest.mark.parametrize(
    ("arrivals", "probe_s", "rate_qps", "lasts_s"),
    [
        (ConstantArrivals(), 5.0, 1000.0, 5.0),
        (ConstantArrivals(), 5.0, 20.0, 10.0),
        (ConstantArrivals(), 5.0, 1.0, 20.0),
        (BurstArrivals(5.0, 1.0, 4.0), 5.0, 1000.0, 8.0),
        (BurstArrivals(5.0, 1.0, 7.0), 5.0, 1.0, 14.0),
        (TraceArrivals(RateTrace(np.array([0.0, 600.0]), np.array([1.0])), 100.0), 5.0, 1000.0, 6.0),
        (TraceArrivals(RateTrace(np.array([0.0, 600.0]), np.array([1.0]))), 5.0, 1000.0, 5.0),
    ],
)
def test_probes_last_for_whole_periods(arrivals, probe_s, rate_qps, lasts_s):
    settings = QpsSearch(SlaTarget(20.0, 95.0), probe_s)
    assert settings._duration_s(arrivals, rate_qps) == pytest.approx(lasts_s)


async def test_a_period_longer_than_any_probe_is_said():
    with pytest.raises(LoadError, match=r"arrivals repeat every 10 s, but a probe lasts 0\.4 s at most"):
        await search(FakeServer(), workload=replace(WORKLOAD, arrivals=BurstArrivals()))


def test_a_period_longer_than_any_probe_is_said_before_the_server_is_asked():
    nobody = Target(parse_endpoint("127.0.0.1:1"), "ranker")
    with pytest.raises(LoadError, match=r"arrivals repeat every 10 s, but a probe lasts 4 s at most"):
        find_qps(nobody, replace(WORKLOAD, arrivals=BurstArrivals()), SLA, probe_s=1.0)


async def test_a_probe_in_which_nothing_arrives_says_nothing():
    class Silence:
        period_s = None

        def blocks(self, _rate_qps, _duration_s, _rng):
            return iter(())

    with pytest.raises(LoadError, match=r"no query arrived in a probe of 0\.125 s at 400 queries/s"):
        await search(FakeServer(), workload=replace(WORKLOAD, arrivals=Silence()))


def found(reports):
    probes = tuple(Probe(Phase.ROUND, 100.0, False, report) for report in reports)
    return LatencyBoundedThroughput(SLA, Crossing(100.0, 90.0, 110.0), probes, False, remarks=("a remark",))


def report(late_s=0.0, not_sent=0, cpu_share=0.1):
    latencies, lag = LatencyRecorder(SLA), LatencyRecorder()
    latencies.record_many([0.01] * 100)
    latencies.fail(NOT_SENT, not_sent)
    lag.record_many([late_s] * 100)
    return LoadReport(100.0, 1.0, 0.0, latencies, 100, 100, lag, cpu_share, 0, 1, "", {})


def test_each_limit_of_the_generator_is_said_once_with_the_worst_number():
    several = found([report(late_s=0.02), report(late_s=0.05, cpu_share=0.93), report(late_s=0.03), report()])
    assert several.bottlenecks == (
        "1% of queries were sent over 50 ms late (bound 5 ms), at worst of 3 probes",
        "the generator used 93% of a core",
    )
    assert found([report()]).bottlenecks == ()


def test_plain_data():
    data = json.loads(json.dumps(found([report()]).to_dict(), allow_nan=False))
    assert (data["qps"], data["remarks"]) == (100.0, ["a remark"])
    assert math.isclose(data["probes"][0]["achieved_qps"], 100.0)
