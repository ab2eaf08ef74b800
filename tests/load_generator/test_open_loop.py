import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest

from hebe.load_generator.load_report import FAILING, INTERRUPTED
from hebe.load_generator.model_inputs import ModelInput, ModelInputs
from hebe.load_generator.open_loop import NOT_SENT, RunPlan, run_open_loop, scheduled
from hebe.load_generator.query_pool import QueryPool
from hebe.load_generator.sender import Outcome, ignore_done, ignore_sent
from hebe.spec import SlaTarget
from hebe.workload.arrivals import ConstantArrivals, PoissonArrivals
from hebe.workload.key_skew import UniformKeys
from hebe.workload.query_sizes import FixedSizes, ProductionSizes

POOL = QueryPool(ModelInputs((ModelInput("dense", "FP32", (1,), None),)), UniformKeys(), 1000, np.random.default_rng(0))
PLAN = RunPlan(200.0, 0.3, 0.1, ConstantArrivals(), FixedSizes(3), seed=1, sla=SlaTarget(1000.0))


def answer(_index):
    return Outcome.ANSWERED, ""


class FakeServer:
    """A sender whose answers come after `delay_s`; `verdict(index)` is the outcome and its kind."""

    connections = 1
    full = False

    def __init__(self, delay_s=0.001, verdict=answer):
        self.delay_s, self.verdict = delay_s, verdict
        self.on_sent, self.on_done = ignore_sent, ignore_done
        self.sent, self.given_up, self.timers = [], [], {}

    async def open(self):
        pass

    def send(self, index, items, offset):
        self.sent.append((index, items, offset))
        self.on_sent(index)
        if math.isfinite(self.delay_s):
            self.timers[index] = asyncio.get_running_loop().call_later(self.delay_s, self._answer, index)

    def _answer(self, index):
        outcome, kind = self.verdict(index)
        self.on_done(index, outcome, kind, f"message of {kind}")

    def give_up(self, index):
        self.given_up.append(index)
        if index in self.timers:
            self.timers.pop(index).cancel()

    async def close(self):
        pass


class Saturated(FakeServer):
    """A sender that never has a connection free."""

    full = True

    def send(self, index, items, offset):
        self.sent.append((index, items, offset))


async def test_every_scheduled_query_is_sent_and_counted():
    server = FakeServer()
    report = await run_open_loop(PLAN, POOL, server)
    assert len(server.sent) == 80
    assert [index for index, _, _ in server.sent] == list(range(80))
    assert {items for _, items, _ in server.sent} == {3}
    assert report.latencies.arrivals == 60  # without the warm-up
    assert report.latencies.answers == 60
    assert report.latencies.items == 180
    assert report.sla_met
    assert report.duration_s == pytest.approx(0.3)
    assert report.achieved_qps == pytest.approx(200)
    assert report.lag.answers == 60
    assert report.cut_short == ""


async def test_the_loop_is_open():
    # Nothing is answered before everything has been sent, and still everything is sent.
    server = FakeServer(delay_s=0.5)
    report = await run_open_loop(PLAN, POOL, server)
    assert report.latencies.answers == 60
    assert report.throughput_qps == 0
    assert report.latencies.percentile_s(1) >= 0.45


async def test_refusals_and_failures_are_told_apart():
    kinds = {0: (Outcome.REFUSED, "503"), 1: (Outcome.FAILED, "connection closed"), 2: (Outcome.REFUSED, "429")}
    server = FakeServer(verdict=lambda index: kinds.get(index % 10, (Outcome.ANSWERED, "")))
    report = await run_open_loop(PLAN, POOL, server)
    assert report.latencies.refused == {"503": 6, "429": 6}
    assert report.latencies.failed == {"connection closed": 6}
    assert report.latencies.sla_attainment == pytest.approx(0.7)
    assert report.sla_met is False
    assert report.messages["429"] == "message of 429"


async def test_what_is_not_answered_in_time_is_given_up():
    server = FakeServer(delay_s=math.inf)
    report = await run_open_loop(replace(PLAN, answer_timeout_s=0.1), POOL, server)
    assert report.latencies.failed == {"no answer in 0.1 s": 60}
    assert sorted(server.given_up) == list(range(80))


async def test_a_run_that_cannot_pass_ends_early():
    server = FakeServer(verdict=lambda _: (Outcome.REFUSED, "503"))
    plan = replace(PLAN, duration_s=30.0, stop_when_failing=True)
    report = await asyncio.wait_for(run_open_loop(plan, POOL, server), 20)
    assert report.cut_short == FAILING
    assert report.sla_met is False
    assert report.latencies.arrivals < 0.25 * 6000


async def test_queries_that_hang_end_a_failing_run_too():
    server = FakeServer(delay_s=math.inf)
    plan = replace(PLAN, duration_s=30.0, sla=SlaTarget(20.0), stop_when_failing=True, answer_timeout_s=1.0)
    report = await asyncio.wait_for(run_open_loop(plan, POOL, server), 25)
    assert report.cut_short == FAILING
    assert report.latencies.failed.total() == report.latencies.arrivals > 0


async def test_an_interrupted_run_reports_what_it_has():
    stop = asyncio.Event()

    def interrupt_at(index):
        if index == 60:
            stop.set()
        return Outcome.ANSWERED, ""

    server = FakeServer(verdict=interrupt_at)
    report = await asyncio.wait_for(run_open_loop(replace(PLAN, duration_s=30.0), POOL, server, stop), 20)
    assert report.cut_short == INTERRUPTED
    assert 40 <= report.latencies.answers < 6000
    assert report.latencies.failed.total() == 0
    assert report.duration_s < 20


async def test_waiting_for_a_connection_is_noticed():
    server = Saturated()
    plan = replace(PLAN, answer_timeout_s=0.2)
    report = await run_open_loop(plan, POOL, server)
    assert report.waited == 60
    assert report.latencies.failed.total() == 60
    assert any("--connections" in reason for reason in report.bottlenecks)
    assert report.generator_limits == ()


async def test_unsent_queries_of_a_failing_run_are_withdrawn():
    server = Saturated()
    plan = replace(PLAN, duration_s=30.0, sla=SlaTarget(20.0), stop_when_failing=True)
    report = await asyncio.wait_for(run_open_loop(plan, POOL, server), 20)
    assert report.cut_short == FAILING
    assert set(report.latencies.failed) == {NOT_SENT}
    assert len(server.given_up) == len(server.sent)


async def test_progress_moves_forward():
    seen = []
    await run_open_loop(PLAN, POOL, FakeServer(), on_progress=seen.append)
    assert seen
    assert [p.elapsed_s for p in seen] == sorted(p.elapsed_s for p in seen)
    assert seen[-1].total_s == pytest.approx(0.4)
    assert all(p.answers <= p.arrivals for p in seen)


def test_the_schedule_is_the_seed():
    plan = replace(PLAN, arrivals=PoissonArrivals(), sizes=ProductionSizes(), duration_s=5.0)
    one, again, other = (list(scheduled(replace(plan, seed=seed), POOL)) for seed in (1, 1, 2))
    assert one == again
    assert one != other
    assert len(one) == pytest.approx(1020, rel=0.1)
    for due_s, items, offset in one:
        assert 0 <= due_s < 5.1
        assert 0 <= offset <= POOL.items - items
