import asyncio
import heapq
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from hebe.latency import LatencyRecorder
from hebe.load_generator.error import LoadError
from hebe.load_generator.load_report import FAILING, NOT_SENT, WITHDRAWN, LoadReport
from hebe.load_generator.queries.model_inputs import ModelInput, ModelInputs
from hebe.load_generator.queries.query_pool import QueryPool
from hebe.load_generator.search import qps_search
from hebe.load_generator.search.qps_search import LatencyBoundedThroughput, Probe, QpsSearch, Workload
from hebe.load_generator.search.rate_search import Crossing, Phase, RateSearch
from hebe.load_generator.senders.sender import OUT_OF_FILES, OUT_OF_PORTS, Outcome
from hebe.load_generator.session import find_qps
from hebe.load_generator.target import Target, parse_endpoint
from hebe.spec import SlaTarget
from hebe.workload.arrivals import BurstArrivals, ConstantArrivals, TraceArrivals
from hebe.workload.key_skew import UniformKeys
from hebe.workload.query_sizes import FixedSizes
from hebe.workload.rate_trace import RateTrace
from tests.load_generator.fake_server import FakeServer

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


async def search(server, settings=QUICK, workload=WORKLOAD, start_qps=400.0, stop=None, **options):
    stop = stop or asyncio.Event()
    return await asyncio.wait_for(settings.run(workload, POOL, server, start_qps, stop, **options), 30)


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
    assert (found.crossing.qps, found.crossing.low_qps) == (0, 0)
    assert len(found.probes) > 3


@pytest.mark.parametrize("kind", [OUT_OF_FILES, OUT_OF_PORTS])
async def test_queries_that_the_generator_could_not_send_are_its_limit_and_no_reason_to_ask(kind):
    found = await search(Mortal(0, lambda _: (Outcome.FAILED, kind)))
    assert (found.crossing.qps, found.crossing.low_qps) == (0, 0)
    assert found.bottlenecks[0].startswith(f"the generator ran {kind}, and ")


async def test_a_search_waits_for_answers_as_long_as_its_sla_allows(monkeypatch):
    waited = []

    async def run_open_loop(plan, *_):
        waited.append(plan.answer_timeout_s)
        raise LoadError("enough is known")

    monkeypatch.setattr(qps_search, "run_open_loop", run_open_loop)
    for sla in (SLA, SlaTarget(60_000.0)):
        with pytest.raises(LoadError, match="enough is known"):
            await search(FakeServer(), replace(QUICK, sla=sla))
    assert waited == [30.0, 60.0]


async def test_refusals_are_no_reason_to_ask():
    server = FakeServer(delay_s=0.0, verdict=lambda _: (Outcome.REFUSED, "503"))
    found = await search(server)
    assert (found.crossing.qps, found.crossing.low_qps) == (0, 0)


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


def test_the_least_rate_that_was_tried_is_told():
    assert (found([report()]).lowest_qps, found([report()]).to_dict()["lowest_qps"]) == (100.0, 100.0)
    assert found([]).to_dict()["lowest_qps"] is None


def loaded(rate_qps, passed, server_s, waited_s=0.0, waited=0.0):
    """A probe of a hundred queries, of which the share `waited` waited for a connection for so long."""
    latencies, lag = LatencyRecorder(HALF), LatencyRecorder()
    waits_s = np.where(np.arange(100) < 100 * waited, waited_s, 0.0)
    latencies.record_many(server_s + waits_s)
    lag.record_many(waits_s)
    waits = int(np.count_nonzero(waits_s))
    report = LoadReport(rate_qps, 1.0, 0.0, latencies, 100, 100, lag, 0.1, waits, 8, "", {})
    assert report.sla_met is passed
    return Probe(Phase.ROUND, rate_qps, passed, report)


HALF = SlaTarget(100.0, 50.0)
LIGHT = (loaded(10.0, True, 0.02), loaded(50.0, True, 0.02))
ALIKE = (loaded(105.0, False, 0.022, 0.1, 0.9), loaded(98.0, False, 0.024, 0.2, 0.8))


def connection_limits(probes, found_qps=100.0):
    crossing = Crossing(found_qps, 0.9 * found_qps, 1.1 * found_qps)
    result = LatencyBoundedThroughput(HALF, crossing, tuple(probes), False)
    return [reason for reason in result.bottlenecks if "--connections" in reason]


def test_too_few_connections_for_a_server_that_is_as_fast_as_before_are_said():
    assert connection_limits([*LIGHT, *ALIKE]) == [
        "90 of 100 queries waited for a free connection (gRPC: call) while the server answered in time: more"
        " --connections may find more, at worst of 2 probes"
    ]
    # Even where only a rate close to the one found has held.
    assert connection_limits([loaded(90.0, True, 0.02), *ALIKE])
    # Where no rate held, a server that answers in time is not what takes so long.
    assert connection_limits([loaded(1.0, False, 0.02, 0.1, 0.9), loaded(2.0, False, 0.02, 0.1, 0.9)], found_qps=0.0)


def test_connections_that_an_overloaded_server_has_in_use_are_not_the_limit():
    # Twice the load, and it takes four times as long: with eight queries at once, it answers no more than with four.
    busy = [loaded(105.0, False, 0.08, 0.1, 0.9), loaded(98.0, False, 0.08, 0.2, 0.8)]
    assert connection_limits([*LIGHT, *busy]) == []


def test_connections_are_not_the_limit_of_probes_that_mostly_failed_otherwise():
    slow = [loaded(rate, False, 0.2) for rate in (101.0, 102.0, 104.0)]
    assert connection_limits([*LIGHT, *ALIKE, *slow]) == []
    assert connection_limits([*LIGHT, *slow]) == []
    assert connection_limits([loaded(1.0, False, 0.2)], found_qps=0.0) == []
    # Nor of those far above.
    assert connection_limits([*LIGHT, loaded(160.0, False, 0.02, 0.1, 0.9)]) == []


def simulated(rng, sla, rate_qps, duration_s, service, connections, workers):
    """The report of a run to a server of so many workers over so many connections, in arithmetic instead of time;
    `service(queries)` is the seconds that one takes as the server has so many. Ends early as the open loop does."""
    due_s = np.cumsum(rng.exponential(1 / rate_qps, round(rate_qps * duration_s)))
    in_use, busy, free = [], [], [0.0] * workers
    sent_s, done_s = np.empty_like(due_s), np.empty_like(due_s)
    for index, now in enumerate(due_s.tolist()):
        sent = now if len(in_use) < connections else max(now, heapq.heappop(in_use))
        while busy and busy[0] <= sent:
            heapq.heappop(busy)
        done = max(sent, heapq.heappop(free)) + service(len(busy) + 1)
        for heap in (in_use, busy, free):
            heapq.heappush(heap, done)
        sent_s[index], done_s[index] = sent, done
    late_s = np.sort(due_s[done_s - due_s > sla.latency_s]) + sla.latency_s
    most = int((1 - sla.percentile / 100) * (len(due_s) + 3 * math.sqrt(len(due_s)))) + 1
    end_s = late_s[most] if len(late_s) > most else math.inf
    sent, unsent = (due_s < end_s) & (sent_s < end_s), (due_s < end_s) & (sent_s >= end_s)
    latencies, lag = LatencyRecorder(sla), LatencyRecorder()
    latencies.record_many((done_s - due_s)[sent])
    latencies.fail(WITHDRAWN, int(unsent.sum()))
    lag.record_many((sent_s - due_s)[sent])
    waited = int(np.count_nonzero((sent_s > due_s) & (due_s < end_s)))
    cut_short = FAILING if math.isfinite(end_s) else ""
    return LoadReport(rate_qps, duration_s, 0.0, latencies, 0, 0, lag, 0.1, waited, connections, cut_short, {})


MANY = 1000


@pytest.mark.parametrize(
    ("connections", "workers", "service_s", "said"),
    [
        # As many at once as there are connections, and it takes no longer, or a little.
        (2, MANY, lambda _, __: 0.02, True),
        (1, MANY, lambda _, __: 0.09, True),
        (16, MANY, lambda rng, _: rng.exponential(0.03), True),
        (16, MANY, lambda _, queries: 0.02 + 0.001 * queries, True),
        (64, MANY, lambda _, queries: 0.02 + 0.0002 * queries, True),
        # Fewer at once than there are connections, all of which may be in use and all in time.
        (4, 1, lambda rng, _: rng.exponential(0.005), False),
        (16, 1, lambda _, __: 0.005, False),
        (16, 1, lambda rng, _: rng.exponential(0.005), False),
        (16, 4, lambda rng, _: rng.exponential(0.01), False),
        (32, 16, lambda rng, _: rng.exponential(0.02), False),
        (256, 1, lambda rng, _: rng.exponential(0.005), False),
        # Slower than the SLA allows, whatever is asked.
        (8, 1, lambda _, __: 0.11, False),
        (1, 1, lambda _, __: 0.11, False),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_searches_tell_too_few_connections_from_overloaded_servers(connections, workers, service_s, said, seed):
    rng, sla = np.random.default_rng(seed), SlaTarget(100.0)
    rates, probes = RateSearch(20.0, lowest_qps=2.0), []
    while (rate_qps := rates.next_rate()) is not None:
        duration_s = max(200 / rate_qps, 1.0)
        report = simulated(rng, sla, rate_qps, duration_s, lambda n: service_s(rng, n), connections, workers)
        probes.append(Probe(rates.phase, rate_qps, report.sla_met, report))
        rates.record(report.sla_met)
    found = LatencyBoundedThroughput(sla, rates.result(), tuple(probes), False)
    assert any("--connections" in reason for reason in found.bottlenecks) is said


async def test_no_probe_begins_after_the_time_of_the_search():
    found = await search(FakeServer(), replace(QUICK, longest_s=0.0))
    assert (found.crossing, found.probes, found.interrupted) == (None, (), True)
    seen = []
    stopped = replace(QUICK, longest_s=0.05)
    found = await search(FakeServer(), stopped, on_probe=lambda *probe: seen.append(probe))
    assert (len(found.probes), len(seen), found.interrupted) == (1, 1, True), "of a tenth of a second"
    assert not (await search(FakeServer())).interrupted


async def test_a_search_that_is_stopped_while_it_asks_whether_the_server_is_alive_returns_what_it_has():
    stop = asyncio.Event()

    class Dying(FakeServer):
        """Fails all queries; somebody presses Ctrl-C when one is asked alone."""

        def send(self, index, items, offset):
            super().send(index, items, offset)
            if index == 0 and len(self.sent) > 1:
                stop.set()

    server = Dying(verdict=lambda _: (Outcome.FAILED, "connection closed"))
    found = await search(server, stop=stop)
    assert found.interrupted
    assert len(found.probes) == 1


@pytest.mark.parametrize(
    ("percentile", "rate_qps", "remark"),
    [
        (99.9, 10.0, "for p99.9: of the 200 queries of one at this rate 0.2 may miss it,.* --duration 250 or more"),
        (95.0, 3.0, "for p95: of the 60 queries of one at this rate 3 may miss it,.* --duration 17 or more"),
        (95.0, 9.0, "of the 180 queries"),
        (95.0, 9.9, None),
        (95.0, 10.0, None),
        (95.0, 1000.0, None),
        (99.9, 500.0, None),
        (95.0, 0.0, None),
    ],
)
def test_probes_too_short_for_their_percentile_are_remarked_on(percentile, rate_qps, remark):
    remarks = QpsSearch(SlaTarget(20.0, percentile), 5.0).remarks(ConstantArrivals(), rate_qps)
    if remark is None:
        assert remarks == ()
    else:
        (text,) = remarks
        assert re.search(remark, text)


@pytest.mark.parametrize("arrivals", [ConstantArrivals(), BurstArrivals(5.0, 1.0, 7.0)])
@pytest.mark.parametrize(("percentile", "rate_qps"), [(99.9, 10.0), (95.0, 3.0), (99.0, 7.3)])
def test_the_duration_that_is_said_to_be_long_enough_is(arrivals, percentile, rate_qps):
    settings = QpsSearch(SlaTarget(20.0, percentile), 5.0)
    (remark,) = settings.remarks(arrivals, rate_qps)
    enough_s = float(re.search(r"--duration (\S+) or more", remark).group(1))
    assert enough_s > 5.0
    assert replace(settings, probe_s=enough_s).remarks(arrivals, rate_qps) == ()


@pytest.mark.parametrize(("percentile", "said"), [(99.9, True), (80.0, False)])
async def test_a_search_of_few_queries_says_so(percentile, said):
    settings = QpsSearch(SlaTarget(5000.0, percentile), 0.1, 0.0, 2, 0.3, highest_qps=250)
    found = await search(FakeServer(), settings)
    assert found.crossing.qps == 250
    assert any("--duration" in remark for remark in found.remarks) is said


def test_plain_data():
    data = json.loads(json.dumps(found([report()]).to_dict(), allow_nan=False))
    assert (data["qps"], data["remarks"]) == (100.0, ["a remark"])
    assert math.isclose(data["probes"][0]["achieved_qps"], 100.0)
