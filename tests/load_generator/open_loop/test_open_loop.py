import asyncio
import gc
import math
import time
from dataclasses import replace

import grpc
import grpc.aio
import numpy as np
import pytest

from hebe.load_generator.load_report import FAILING, INTERRUPTED, NOT_SENT, UNANSWERED, WITHDRAWN
from hebe.load_generator.open_loop import open_loop
from hebe.load_generator.open_loop.open_loop import RunPlan, garbage_set_aside, run_open_loop
from hebe.load_generator.queries.model_inputs import ModelInput, ModelInputs
from hebe.load_generator.queries.query_pool import QueryPool
from hebe.load_generator.queries.schedule import Schedule
from hebe.load_generator.senders.grpc.grpc_sender import GrpcSender
from hebe.load_generator.senders.sender import Outcome
from hebe.load_generator.target import Target, parse_endpoint
from hebe.spec import SlaTarget
from hebe.workload.arrivals import ConstantArrivals
from hebe.workload.key_skew import UniformKeys
from hebe.workload.query_sizes import FixedSizes
from tests.load_generator.fake_server import FakeServer, Saturated

POOL = QueryPool(ModelInputs((ModelInput("dense", "FP32", (1,), None),)), UniformKeys(), 1000, np.random.default_rng(0))
PLAN = RunPlan(200.0, 0.3, 0.1, ConstantArrivals(), FixedSizes(3), seed=1, sla=SlaTarget(1000.0))


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
    assert (report.items_sent, report.items_in_time) == (240, 180)
    assert report.goodput_items == pytest.approx(600)


async def test_items_in_time_are_those_within_the_sla():
    report = await run_open_loop(replace(PLAN, sla=SlaTarget(20.0)), POOL, FakeServer(delay_s=0.05))
    assert (report.latencies.items, report.items_in_time) == (180, 0)
    report = await run_open_loop(replace(PLAN, sla=None), POOL, FakeServer(delay_s=0.05))
    assert report.items_in_time == 180


async def test_the_loop_is_open():
    # Nothing is answered before everything has been sent, and still everything is sent.
    server = FakeServer(delay_s=0.5)
    report = await run_open_loop(PLAN, POOL, server)
    assert report.latencies.answers == 60
    assert report.throughput_qps == 0
    assert report.latencies.percentile_s(1) >= 0.45


async def test_answers_to_the_warm_up_are_told():
    # As from a server that stalls: all that was sent until then is answered at once, in the window.
    server = FakeServer(delay_s=0.15)
    report = await run_open_loop(replace(PLAN, warm_up_s=0.1, duration_s=1.0), POOL, server)
    assert report.answered_of_warm_up == 20
    assert report.answered_in_window > report.answered_of_warm_up
    assert (await run_open_loop(replace(PLAN, warm_up_s=0.0), POOL, FakeServer())).answered_of_warm_up == 0


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


async def interrupted(plan, server, at=120, later_s=0.0):
    """The report of a run that somebody interrupts so long after query `at` was sent."""
    stop = asyncio.Event()
    send = server.send

    def watched(index, items, offset):
        send(index, items, offset)
        if index == at:
            asyncio.get_running_loop().call_later(later_s, stop.set)

    server.send = watched
    return await asyncio.wait_for(run_open_loop(plan, POOL, server, stop), 20)


async def test_a_server_that_hangs_has_not_met_its_sla_when_somebody_loses_patience():
    server = FakeServer(delay_s=math.inf)
    plan = replace(PLAN, duration_s=30.0, sla=SlaTarget(20.0))
    report = await interrupted(plan, server)
    assert report.cut_short == INTERRUPTED
    # All of the window, which were due longer ago than 20 ms when nobody waited any more.
    assert report.latencies.failed[UNANSWERED] == report.latencies.arrivals > 50
    assert report.sla_met is False


async def test_what_may_still_be_in_time_when_interrupted_is_not_counted():
    server = FakeServer(delay_s=math.inf)
    plan = replace(PLAN, duration_s=30.0, sla=SlaTarget(10_000.0))
    report = await interrupted(plan, server)
    assert report.latencies.arrivals == 0
    assert report.sla_met is None


async def test_without_an_sla_all_that_is_in_flight_when_interrupted_is_unanswered():
    server = FakeServer(delay_s=math.inf)
    plan = replace(PLAN, duration_s=30.0, sla=None)
    report = await interrupted(plan, server)
    assert report.latencies.failed[UNANSWERED] == report.latencies.arrivals > 50


async def test_queries_that_wait_for_a_connection_when_interrupted_are_unanswered():
    server = Saturated()
    plan = replace(PLAN, duration_s=30.0, sla=SlaTarget(20.0))
    report = await interrupted(plan, server)
    assert report.latencies.failed[UNANSWERED] == report.latencies.arrivals > 50
    assert len(server.given_up) == len(server.sent)


async def test_an_interrupt_while_waiting_for_the_last_answers_is_one():
    server = FakeServer(delay_s=math.inf)
    report = await interrupted(PLAN, server, at=79, later_s=0.2)
    assert report.cut_short == INTERRUPTED
    assert report.duration_s == pytest.approx(0.3)
    assert report.latencies.arrivals == report.latencies.failed[UNANSWERED]


async def test_an_interrupt_while_waiting_for_the_last_answers_sends_nothing_more():
    """Each call that is given up leaves its place to the next of the line."""
    joined = []

    class Body:
        def parts(self, items, offset):
            joined.append((items, offset))
            return [b"request"]

    class Hanging(grpc.GenericRpcHandler):
        def service(self, _call):
            return grpc.unary_unary_rpc_method_handler(self.infer)

        async def infer(self, _request, _context):
            await asyncio.sleep(60)

    server = grpc.aio.server(handlers=[Hanging()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sender = GrpcSender(Target(parse_endpoint(f"grpc://127.0.0.1:{port}"), "m", connections=4), Body())
    await sender.open()
    try:
        report = await interrupted(replace(PLAN, sla=None), sender, at=79, later_s=0.2)
    finally:
        await sender.close()
        await server.stop(None)
    assert report.cut_short == INTERRUPTED
    assert len(joined) == 4
    assert report.latencies.failed == {UNANSWERED: 60}
    assert report.lag.answers == 0, "the four are of the warm-up"


async def test_a_generator_that_is_far_behind_counts_what_is_left_at_once_and_says_so(monkeypatch):
    monkeypatch.setattr(open_loop, "MOST_BEHIND_S", 0.1)
    plan = replace(PLAN, rate_qps=1e7, duration_s=0.5, sla=None)
    began_s = time.thread_time()
    report = await run_open_loop(plan, POOL, FakeServer())
    assert time.thread_time() - began_s < 4.0, "one by one, five millions take longer"
    assert report.latencies.arrivals == pytest.approx(5_000_000, rel=1e-4)
    assert report.latencies.failed[NOT_SENT] > 4_000_000
    assert any("could not be sent in time" in limit for limit in report.generator_limits)


async def test_counting_what_is_left_can_be_interrupted(monkeypatch):
    monkeypatch.setattr(open_loop, "MOST_BEHIND_S", 0.0)
    stop = asyncio.Event()
    times_after = Schedule.times_after

    def watched(schedule, taken):
        for number, times in enumerate(times_after(schedule, taken)):
            if number == 3:
                stop.set()
            yield times

    monkeypatch.setattr(Schedule, "times_after", watched)
    plan = replace(PLAN, rate_qps=1e10, duration_s=0.2, warm_up_s=0.0, sla=None)
    report = await asyncio.wait_for(run_open_loop(plan, POOL, FakeServer(), stop), 20)
    assert report.cut_short == INTERRUPTED
    assert report.latencies.arrivals == pytest.approx(2e9, rel=1e-3), "about as many as were due"


async def test_a_run_that_ends_at_its_first_tick_tells_no_share_of_a_core(monkeypatch):
    # All is refused, and there is no warm-up: at the first tick the SLA is out of reach.
    server = FakeServer(delay_s=0.0, verdict=lambda _: (Outcome.REFUSED, "503"))
    monkeypatch.setattr(time, "thread_time", lambda: 10 * time.monotonic())  # as if it had worked ten times as much
    plan = replace(PLAN, rate_qps=2000.0, duration_s=0.3, warm_up_s=0.0, sla=SlaTarget(1e4, 99.0))
    report = await run_open_loop(replace(plan, stop_when_failing=True), POOL, server)
    assert report.cut_short == FAILING
    assert math.isnan(report.cpu_share)
    assert {limit.kind for limit in report.limits} <= {"late"}
    report = await run_open_loop(plan, POOL, server)
    assert report.cpu_share > 5
    assert "cpu" in {limit.kind for limit in report.limits}


async def test_what_the_schedule_was_behind_is_the_generators_own():
    class Slow(FakeServer):
        def send(self, index, items, offset):
            if index == 40:
                time.sleep(0.05)
            super().send(index, items, offset)

    report = await run_open_loop(PLAN, POOL, Slow())
    assert report.behind.answers == 60
    assert report.behind.percentile_s(100) > 0.03


async def test_waiting_for_a_connection_is_noticed():
    server = Saturated()
    plan = replace(PLAN, answer_timeout_s=0.2)
    report = await run_open_loop(plan, POOL, server)
    assert report.waited == 60
    assert report.latencies.failed.total() == 60
    assert any("--connections" in reason for reason in report.bottlenecks)
    # Somebody else may have had the core for a moment.
    assert {limit.kind for limit in report.limits} <= {"late"}
    assert (report.lag.answers, report.behind.answers) == (0, 60)


async def test_unsent_queries_of_a_failing_run_are_withdrawn():
    server = Saturated()
    plan = replace(PLAN, duration_s=30.0, sla=SlaTarget(20.0), stop_when_failing=True)
    report = await asyncio.wait_for(run_open_loop(plan, POOL, server), 20)
    assert report.cut_short == FAILING
    assert set(report.latencies.failed) == {WITHDRAWN}
    assert {limit.kind for limit in report.limits} <= {"late"}
    assert len(server.given_up) == len(server.sent)


async def test_progress_moves_forward():
    seen = []
    await run_open_loop(PLAN, POOL, FakeServer(), on_progress=seen.append)
    assert seen
    assert [p.elapsed_s for p in seen] == sorted(p.elapsed_s for p in seen)
    assert seen[-1].total_s == pytest.approx(0.4)
    assert all(p.answers <= p.arrivals for p in seen)


def test_what_is_there_is_set_aside_once_for_many_runs_and_comes_back_after_the_last(monkeypatch):
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 375)  # as when Python 3.12 begins
    gc.unfreeze()  # what the collected tests are
    before = gc.get_objects()
    with garbage_set_aside():
        assert len(gc.get_objects()) < len(before) / 2
        for _ in range(2):
            made = [[] for _ in range(10)]
            with garbage_set_aside():
                assert all(any(each is other for other in gc.get_objects()) for each in made), "what is new is not"
            assert len(gc.get_objects()) < len(before) / 2
    assert len(gc.get_objects()) > len(before) / 2
