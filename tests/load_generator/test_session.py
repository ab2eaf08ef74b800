"""What is said of a search as a whole; that it finds anything is
`tests/integration/commands/test_load_generator.py`."""

import math
import os
import re
import signal
import time
from functools import partial

import numpy as np
import pytest

from hebe.latency import LatencyRecorder
from hebe.load_generator import session
from hebe.load_generator.error import LoadError
from hebe.load_generator.load_report import LoadReport
from hebe.load_generator.queries.model_inputs import ModelInput, ModelInputs
from hebe.load_generator.search import qps_search
from hebe.load_generator.search.qps_search import LatencyBoundedThroughput, Probe, Workload
from hebe.load_generator.search.rate_search import Crossing, Phase
from hebe.load_generator.senders.sender import Outcome
from hebe.load_generator.session import find_qps, run_load
from hebe.load_generator.target import Target, parse_endpoint
from hebe.spec import SlaTarget
from hebe.workload.arrivals import BurstArrivals, ConstantArrivals, PoissonArrivals, TraceArrivals
from hebe.workload.query_sizes import FixedSizes, ProductionSizes, QuantileSizes
from hebe.workload.rate_trace import RateTrace

from .fake_server import FakeServer

SLA = SlaTarget(20.0)
POOL_ITEMS = 1000
MODEL = ModelInputs((ModelInput("feature", "INT64", (1,), 1_000_000),), SLA)


def probe(items_sent):
    report = LoadReport(
        100.0, 1.0, 0.0, LatencyRecorder(SLA), 0, 0, LatencyRecorder(), 0.1, 0, 1, "", {}, items_sent=items_sent
    )
    return Probe(Phase.ROUND, 100.0, True, report)


@pytest.fixture
def search(monkeypatch):
    """A search of probes that sent so many items: what it finds, and how it was set up."""
    asked = {}

    class Search:
        def __init__(self, *settings):
            asked["settings"] = settings

        async def run(self, *_):
            probes = tuple(probe(items) for items in asked["items"])
            return LatencyBoundedThroughput(SLA, Crossing(100, 90, 110), probes, False, 5, asked.get("remarks", ()))

    monkeypatch.setattr(session, "discover", lambda _: MODEL)
    monkeypatch.setattr(session, "HttpSender", lambda *_: FakeServer(delay_s=0.0))
    monkeypatch.setattr(session, "QpsSearch", Search)

    def run(*items, remarks=(), arrivals=None, **options):
        asked.update(items=items, remarks=remarks)
        target = Target(parse_endpoint("127.0.0.1:1"), "ranker")
        pool_bytes = POOL_ITEMS * MODEL.item_bytes
        workload = Workload(FixedSizes(10), arrivals or PoissonArrivals())
        return find_qps(target, workload, pool_bytes=pool_bytes, **options), asked["settings"]

    return run


def test_the_keys_of_all_probes_count_together(search):
    enough = search(POOL_ITEMS)[0]
    assert enough.remarks == ()
    found, _ = search(*[POOL_ITEMS] * 10)
    (remark,) = found.remarks
    assert "feature: the queries named at most 999 different keys" in remark
    assert "would have named 9,950:" in remark
    assert search(*[POOL_ITEMS // 10] * 10)[0].remarks == ()


def test_what_the_search_remarks_itself_is_kept(search):
    found, _ = search(POOL_ITEMS, remarks=("probes too short",))
    assert found.remarks == ("probes too short",)
    found, _ = search(*[POOL_ITEMS] * 10, remarks=("probes too short",))
    assert len(found.remarks) == 2


class Narrow(FakeServer):
    """Takes queries of at most so many items, and of the first `while_wide` any."""

    def __init__(self, most, while_wide=0):
        super().__init__(delay_s=0.0)
        self._most, self._while_wide = most, while_wide
        self.verdict = self._verdict

    def _verdict(self, _index):
        wide = self._while_wide > 0
        self._while_wide -= 1
        fits = wide or self.sent[-1][1] <= self._most
        return (Outcome.ANSWERED, "") if fits else (Outcome.REFUSED, "413")


def asking(monkeypatch, server, **options):
    monkeypatch.setattr(session, "discover", lambda _: MODEL)
    monkeypatch.setattr(session, "HttpSender", lambda *_: server)
    return Target(parse_endpoint("127.0.0.1:1"), "ranker", **options)


@pytest.mark.parametrize("measure", [partial(run_load, rate_qps=100.0, duration_s=1.0), find_qps])
@pytest.mark.parametrize(("encoding", "bound"), [("binary", "--max-request-bytes"), ("json", "--max-json-bytes")])
def test_queries_that_are_larger_than_the_server_takes_are_said_before_anything_is_measured(
    monkeypatch, measure, encoding, bound
):
    target = asking(monkeypatch, Narrow(998), encoding=encoding)
    with pytest.raises(LoadError) as caught:
        measure(target, Workload(ProductionSizes()), pool_bytes=10_000)
    assert "as large as they get, up to 999 items: 413 message of 413: give smaller --sizes" in str(caught.value)
    assert f"(hebe serve {bound})" in str(caught.value)


def test_queries_that_turn_out_too_large_are_told_and_no_sign_of_a_dead_server(monkeypatch):
    """As with JSON, of which not all that have so many items have so many bytes."""
    workload = Workload(QuantileSizes((1, 1, 1, 2)), ConstantArrivals())
    server = Narrow(1, while_wide=1)
    report = run_load(asking(monkeypatch, server), workload, 1000.0, 0.2, warm_up_s=0.0, sla=SLA)
    count = report.latencies.refused["413"]
    assert count + report.latencies.answers == report.latencies.arrivals
    assert f"{count} of {report.latencies.arrivals} queries were refused for their size" in report.remarks[0]
    server = Narrow(1, while_wide=1 + session.FIRST_QUERIES)
    found = find_qps(
        asking(monkeypatch, server),
        workload,
        SLA,
        probe_s=0.1,
        warm_up_s=0.0,
        rounds=2,
        resolution=0.3,
        highest_qps=500,
    )
    assert (found.crossing.qps, found.crossing.low_qps) == (0, 0)
    assert "were refused for their size, whatever the load" in " ".join(found.remarks)


def test_gaps_of_a_recorded_load_are_told(search):
    trace = RateTrace(np.array([0.0, 1.0, 2.0]), np.array([1.0, 0.0]), ("load.csv: line 9: a gap",))
    found, _ = search(*[POOL_ITEMS] * 10, arrivals=TraceArrivals(trace))
    assert found.remarks[0].startswith("load.csv: line 9: a gap: no query is sent in steps that have no line")
    assert len(found.remarks) == 2
    assert search(POOL_ITEMS, arrivals=TraceArrivals(trace))[0].remarks == found.remarks[:1]


class Silent(FakeServer):
    """Has answered so many queries when Ctrl-C is pressed, and answers none after them."""

    def __init__(self, answers):
        super().__init__(delay_s=0.0)
        self._answers = answers

    def send(self, index, items, offset):
        if len(self.sent) == self._answers:
            self.delay_s = math.inf
            os.kill(os.getpid(), signal.SIGINT)
        super().send(index, items, offset)


@pytest.mark.parametrize(
    ("measure", "answers"),
    [
        (partial(run_load, rate_qps=100.0, duration_s=1.0), 0),
        (find_qps, 0),
        (find_qps, 5),
    ],
)
def test_ctrl_c_before_anything_is_measured_does_not_wait_for_answers(monkeypatch, measure, answers):
    server = Silent(answers)
    monkeypatch.setattr(session, "discover", lambda _: MODEL)
    monkeypatch.setattr(session, "HttpSender", lambda *_: server)
    target = Target(parse_endpoint("127.0.0.1:1"), "ranker", answer_timeout_s=60.0)
    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        measure(target, Workload(FixedSizes(10)), pool_bytes=1000, catch_interrupt=True)
    assert time.monotonic() - began_s < 30.0
    assert (len(server.sent), len(server.given_up)) == (answers + 1, 1)


@pytest.mark.parametrize("period_s", [6088.996494532199, 1234.5649, 10 / 3, 999_999.96, 0.1])
def test_the_duration_that_an_error_gives_is_taken(monkeypatch, period_s):
    target = asking(monkeypatch, FakeServer())
    workload = Workload(FixedSizes(10), BurstArrivals(5.0, 0.05, period_s))
    with pytest.raises(LoadError) as caught:
        run_load(target, workload, 1.0, 1.5 * period_s)
    told_s = float(re.search(r"the rate: (\S+) s holds them", str(caught.value))[1])
    assert told_s == pytest.approx(2 * period_s, rel=1e-6)
    with pytest.raises(LoadError, match="no query arrives"):  # the next reason, at so low a rate
        run_load(target, workload, 1e-9, told_s, pool_bytes=1000)


@pytest.mark.parametrize("measure", [partial(run_load, rate_qps=100.0, duration_s=1.0), find_qps])
def test_an_sla_longer_than_the_time_out_is_not_judged_by_it(monkeypatch, measure):
    plans = []

    async def run_open_loop(plan, *_):
        plans.append(plan)
        raise LoadError("enough is known")

    monkeypatch.setattr(session, "run_open_loop", run_open_loop)
    monkeypatch.setattr(qps_search, "run_open_loop", run_open_loop)
    slow, server = SlaTarget(60_000.0), FakeServer(delay_s=0.0)
    with pytest.raises(LoadError, match="enough is known"):
        measure(asking(monkeypatch, server), Workload(FixedSizes(10)), sla=slow, pool_bytes=1000)
    assert [plan.answer_timeout_s for plan in plans] == [60.0]
    sent = len(server.sent)
    with pytest.raises(LoadError, match="answer_timeout_s is 30"):
        measure(asking(monkeypatch, server, answer_timeout_s=30.0), Workload(FixedSizes(10)), sla=slow)
    assert (len(plans), len(server.sent)) == (1, sent)


def test_a_search_has_as_long_as_it_is_told(search):
    assert search(10, longest_s=7.0)[1][-1] == 7.0


@pytest.mark.parametrize(
    ("well_again", "gone"), [(False, "connection refused message of connection refused"), (True, "")]
)
def test_after_a_run_in_which_queries_failed_one_is_asked_alone(monkeypatch, well_again, gone):
    server, judged = FakeServer(delay_s=0.0), []

    def verdict(index):
        judged.append(index)  # rather than sent: after a stall several are sent before the first of them is answered
        alone = server.sent[-1][0] == 0  # as the first and the last one are
        if len(judged) > 50 and not (alone and well_again):
            return Outcome.FAILED, "connection refused"
        return Outcome.ANSWERED, ""

    server.verdict = verdict
    workload = Workload(FixedSizes(10), ConstantArrivals())
    report = run_load(asking(monkeypatch, server), workload, 500.0, 0.2, warm_up_s=0.0, sla=SLA, pool_bytes=4000)
    assert report.failures == {"connection refused": len(server.sent) - 50 - 1}
    assert report.server_gone == gone


def test_after_a_run_in_which_none_failed_nothing_is_asked(monkeypatch):
    server = FakeServer(delay_s=0.0)
    workload = Workload(FixedSizes(10), ConstantArrivals())
    report = run_load(asking(monkeypatch, server), workload, 500.0, 0.1, warm_up_s=0.0, sla=SLA, pool_bytes=4000)
    assert len(server.sent) == 1 + report.latencies.arrivals
