import json
import math
from dataclasses import replace

import pytest

from hebe.latency import LatencyRecorder
from hebe.load_generator.load_report import FAILING, NOT_SENT, UNANSWERED, LoadReport
from hebe.load_generator.senders.sender import OUT_OF_FILES, OUT_OF_PORTS
from hebe.spec import SlaTarget

SLA = SlaTarget(100.0)


def report(latencies=(0.01,) * 100, sla=SLA, lag=(0.0001,) * 100, **changes):
    recorded, late = LatencyRecorder(sla), LatencyRecorder()
    recorded.record_many(list(latencies), items=300)
    late.record_many(list(lag))
    fields = {
        "requested_qps": 50.0,
        "duration_s": 2.0,
        "warm_up_s": 1.0,
        "latencies": recorded,
        "answered_in_window": 90,
        "items_in_window": 270,
        "lag": late,
        "cpu_share": 0.2,
        "waited": 0,
        "connections": 8,
        "cut_short": "",
        "messages": {},
    }
    return LoadReport(**(fields | changes))


def test_rates():
    r = report()
    assert r.achieved_qps == 50
    assert r.throughput_qps == 45
    assert r.throughput_items == 135
    assert r.bottlenecks == ()


def test_the_sla_is_held_against_all_arrivals():
    assert report().sla_met is True
    slow = [0.01] * 94 + [0.2] * 6
    assert report(latencies=slow).sla_met is False
    assert report(latencies=slow).tail_latency_ms == pytest.approx(200)
    refused = report()
    refused.latencies.refuse("503", 6)
    assert refused.tail_latency_ms == pytest.approx(10)
    assert refused.sla_met is False
    assert report(cut_short=FAILING).sla_met is False
    assert report(sla=None).sla_met is None


@pytest.mark.parametrize("percentile", [50.0, 95.0, 99.0, 99.9])
@pytest.mark.parametrize(("late", "refused"), [(0, 0), (4, 1), (5, 0), (5, 1), (0, 5), (0, 6), (1, 0), (0, 1), (0, 90)])
def test_the_tail_of_all_keeps_the_bound_just_where_the_sla_is_met(percentile, late, refused):
    sla = SlaTarget(100.0, percentile)
    r = report(latencies=[0.01] * (100 - late - refused) + [0.2] * late, sla=sla)
    r.latencies.fail("500", refused)
    assert (r.tail_latency_of_all_ms <= 100.0) == r.sla_met
    assert r.latencies_of_all_ms().size == 100
    assert (r.latencies_of_all_ms() <= 100.0).sum() == 100 - late - refused
    told = json.loads(json.dumps(r.to_dict(), allow_nan=False))["tail_latency_of_all_ms"]
    assert told == (r.tail_latency_of_all_ms if math.isfinite(r.tail_latency_of_all_ms) else None)


def test_of_many_latencies_too_the_tail_of_all_keeps_the_bound_just_where_the_sla_is_met():
    for bound_ms in (19.0, 19.7, 20.0, 20.3, 20.6):
        for share, met in ((0.9999, True), (1.0001, False)):
            many = report([share * bound_ms / 1e3] * 19_000 + [1.0] * 1_000, SlaTarget(bound_ms))
            assert many.sla_met is met
            assert (many.tail_latency_of_all_ms <= bound_ms) is met
            assert many.tail_latency_of_all_ms == pytest.approx(bound_ms, rel=0.01)


def test_the_tail_of_all_where_nothing_was_answered_or_nothing_came():
    refused = report(latencies=[])
    refused.latencies.refuse("503", 7)
    assert refused.tail_latency_of_all_ms == math.inf
    assert set(refused.latencies_of_all_ms()) == {math.inf}
    assert math.isnan(report(latencies=[]).tail_latency_of_all_ms)


def test_the_latencies_of_all_keep_their_share_where_they_stand_for_more():
    many = report(latencies=[0.01] * 60_000)
    many.latencies.refuse("503", 20_000)
    samples = many.latencies_of_all_ms()
    assert len(samples) < 30_000
    assert (samples == math.inf).mean() == pytest.approx(0.25, abs=1e-4)


def test_it_says_where_more_was_answered_than_arrived():
    assert report(answered_in_window=105, answered_of_warm_up=9).left_queue == ""
    assert report(answered_in_window=90, answered_of_warm_up=20).left_queue == ""
    # One or two under way as the window begins are no queue, and what a run that was broken off left is no answer.
    few = {"latencies": (0.01,) * 9, "answered_in_window": 10}
    assert report(**few, answered_of_warm_up=1).left_queue == ""
    assert report(answered_in_window=165, answered_of_warm_up=70, cut_short="interrupted").left_queue == ""
    words = report(answered_in_window=165, answered_of_warm_up=70, remarks=("few keys",)).to_dict()["remarks"]
    assert words[0] == "few keys"
    assert words[1].startswith("more was answered than arrived: 70 of the 165 answers were to queries of the warm-up")


def test_it_says_when_the_generator_is_the_bottleneck():
    late = report(lag=[0.0001] * 98 + [0.02] * 2)
    assert late.generator_limits == ("1% of queries were sent over 20 ms late (bound 5 ms)",)
    # A tight SLA wants a punctual generator.
    assert report(lag=[0.002] * 100, sla=SlaTarget(10.0)).generator_limits[0].endswith("(bound 1 ms)")
    assert report(lag=[0.002] * 100).generator_limits == ()
    assert report(cpu_share=0.95).generator_limits == ("the generator used 95% of a core",)
    behind = report()
    behind.latencies.fail(NOT_SENT, 1)
    assert behind.generator_limits == ()
    behind.latencies.fail(NOT_SENT, 9_000_000)
    assert behind.generator_limits == ("9,000,001 of 9,000,101 queries could not be sent in time",)
    waited = report(lag=[0.5] * 100, waited=50)
    assert waited.generator_limits == ()
    assert "50 of 100 queries waited for a free connection (gRPC: call)" in waited.bottlenecks[0]


def test_it_says_when_its_system_gave_it_no_connection():
    without = report()
    without.latencies.fail(OUT_OF_FILES, 3)
    without.latencies.fail(OUT_OF_PORTS, 1)
    assert without.generator_limits == (
        "the generator ran out of open files, and 3 of 104 queries could not be sent: raise its limit of them"
        " (ulimit -n), or give fewer --connections",
        "the generator ran out of ports, and 1 of 104 queries could not be sent: give fewer --connections",
    )
    assert without.bottlenecks == without.generator_limits


def test_a_wait_for_connections_does_not_hide_that_the_generator_was_late():
    behind = LatencyRecorder()
    behind.record_many([0.02] * 100)
    late = report(lag=[0.5] * 100, waited=50, behind=behind)
    assert late.generator_limits == ("1% of queries were sent over 20 ms late (bound 5 ms)",)
    # Without such a wait, opening a connection is the generator's as well.
    assert report(lag=[0.5] * 100, behind=behind).generator_limits[0].startswith("1% of queries were sent over 500 ms")


def test_the_servers_time_is_from_the_send():
    assert report(latencies=[0.07] * 100, lag=[0.05] * 100).server_s == pytest.approx(0.02)
    assert report(latencies=[0.02] * 100, lag=[0.05] * 100).server_s == 0
    assert math.isnan(report(latencies=()).server_s)
    assert math.isnan(report(latencies=(), lag=()).server_s)


def test_connections_limit_a_run_that_would_have_met_the_sla_without_the_wait():
    late = {"latencies": [0.04] * 80 + [0.14] * 20, "lag": [0.02] * 100}
    limit = report(**late, waited=40).connection_limit
    assert limit is not None
    assert (limit.kind, limit.weight) == ("connections", 0.4)
    assert "40 of 100 queries waited" in limit.text
    assert report(**late, waited=40).generator_limits == (), "one run does not tell it from an overloaded server"
    assert report(**late, waited=0).connection_limit is None
    assert report(**late, waited=10).connection_limit is None, "ten others were late as well"
    slow = report(latencies=[0.15] * 100, lag=[0.02] * 100, waited=100)
    assert slow.connection_limit is None, "the server alone takes longer than 100 ms"
    assert report(**late, sla=None, waited=40).connection_limit is None
    assert report(latencies=(), lag=(), waited=0).connection_limit is None


def test_of_few_queries_the_last_one_is_not_a_percentile():
    assert report(lag=[0.001] * 9 + [0.027]).generator_limits == (
        "one of 10 queries was sent over 27 ms late (bound 5 ms)",
    )


def test_what_was_scored_in_time():
    assert report(items_in_time=240).goodput_items == 120
    assert math.isnan(report(duration_s=0.0).goodput_items)


def test_json():
    data = report(items_in_time=240, remarks=("so and so",)).to_dict()
    assert (data["goodput_items_per_s"], data["remarks"]) == (120, ["so and so"])
    text = json.dumps(data, allow_nan=False)
    assert json.loads(text)["p95_ms"] == pytest.approx(10)
    assert data["sla_met"] is True
    assert sum(count for _, count in data["histogram_ms"]) == 100


def test_json_of_an_empty_run():
    empty = report(latencies=(), lag=(), duration_s=0.0, cpu_share=math.nan)
    data = json.loads(json.dumps(empty.to_dict(), allow_nan=False))
    assert data["achieved_qps"] is None
    assert data["tail_latency_ms"] is None
    assert data["sla_met"] is None
    assert data["bottlenecks"] == []


def test_it_says_that_queries_failed_and_by_what_most_of_them():
    failed = report()
    assert failed.failures_told == ""
    failed.latencies.fail(NOT_SENT, 7)
    failed.latencies.fail(UNANSWERED, 7)
    assert failed.failures_told == "", "that is the generator's own"
    failed.latencies.fail("connection refused", 1200)
    assert failed.failures_told == "1,200 of 1,314 queries failed: connection refused"
    failed.latencies.fail("connection closed", 3)
    most = "1,203 of 1,317 queries failed, most of them (1,200): connection refused"
    assert failed.failures_told == most
    gone = replace(failed, server_gone="connection refused [Errno 111]")
    assert gone.failures_told == (
        "the server is gone: after the run not even one query alone was answered (connection refused [Errno 111]); "
        + most
    )
    assert gone.to_dict()["server_gone"] == "connection refused [Errno 111]"


def test_connections_that_fail_are_not_the_generators_lateness():
    failed = report(lag=[0.32] * 100)
    assert failed.generator_limits == ("1% of queries were sent over 320 ms late (bound 5 ms)",)
    failed.latencies.fail("connection refused", 50)
    assert failed.generator_limits == ()
    behind = LatencyRecorder()
    behind.record_many([12.34] * 100)
    assert replace(failed, behind=behind).generator_limits[0] == (
        "1% of queries were sent over 12,000 ms late (bound 5 ms)"
    )
