"""How many queries one server of a profile takes, by the service times that plans read from it."""

import re
from dataclasses import replace

import pytest

from hebe.profile import LatencyProfile
from hebe.profiling.files.query_service_times import times_of_queries, why_no_times
from hebe.server_configuration import Lane, Placement
from hebe.simulation.fleet.fleet_case import FleetCase, capacity_case
from hebe.simulation.fleet.policy_choice import PolicyChoice, PolicyKind
from hebe.simulation.fleet.query_stream import QueryStream
from hebe.simulation.measured.service_table import ServiceTable
from hebe.spec import SlaTarget
from tests.examples.server_profiles import ON_HOST, PIPELINE, server_profile

EIGHT = Lane(Placement.MODEL_ON_HOST, workers=8, batch_size=64)
SLA = SlaTarget(50.0, 95.0)


def profile(alone_s=0.01, load="sizes fixed:64, seed 0", **changes):
    """Of eight workers, one of which takes `alone_s` for a query with nothing beside it: 400 queries/s were measured,
    half of what eight of these could do."""
    made = server_profile(lanes=(EIGHT,), fixed_s=alone_s, item_s=1e-9)
    search = made.search
    reached = replace(search.reached, qps=400.0)
    return replace(
        made,
        subject=replace(made.subject, sla=SLA, load=load),
        efficiency=replace(made.efficiency, qps=400.0),
        search=replace(search, reached=reached, tried={search.best: reached}),
        **changes,
    )


def times(**changes):
    return times_of_queries(profile(**changes), "m.json")


def test_one_server_takes_about_what_was_measured_of_it():
    found = times()
    table = ServiceTable.from_profiles({"cpu": found.latency}, 64)
    case = FleetCase(
        table, (found.workers,), PolicyChoice(PolicyKind.FCFS), SLA, 64,
        QueryStream("poisson", "fixed:64", 10_000, 0), 400.0,
    )  # fmt: skip
    assert capacity_case(case)[0] == pytest.approx(400.0, rel=0.05)
    assert "m.json: m on cpu: the service times are of one worker alone. They are taken 1." in found.remark
    assert "about the 400 queries/s that were measured: profile m again" in found.remark


def test_times_of_busy_workers_count_as_they_are():
    found = times(busy_latency={"whole": LatencyProfile((1, 64), (0.018, 0.02), (0.0, 0.0))})
    assert found.latency.service_time_s(64) == pytest.approx(0.02)
    assert found.remark == ""


def test_how_hopeful_times_of_busy_workers_are_is_said():
    found = times(busy_latency={"whole": LatencyProfile((1, 64), (0.005, 0.005), (0.0, 0.0))})
    assert found.latency.service_time_s(64) == pytest.approx(0.005)
    assert found.remark.startswith(
        "m.json: m on cpu: 400 queries/s were measured, where by its service times one server"
    )
    assert re.search(r"as if these were [34]\.\d\d times as long: what a query costs beside its batches", found.remark)


def test_times_that_explain_what_was_measured_stay():
    found = times(alone_s=0.03)
    assert found.latency.service_time_s(64) == pytest.approx(0.03, rel=0.01)
    assert found.remark == ""


@pytest.mark.parametrize("load", ["whatever came", "sizes quantiles:x, seed 0"])
def test_where_the_load_is_not_known_that_is_said(load):
    found = times(load=load)
    assert found.latency.service_time_s(64) == pytest.approx(0.01, rel=0.01)
    assert "how the workers hinder each other cannot be told from its load" in found.remark


def test_a_query_above_the_batch_size_takes_as_long_as_its_parts_one_after_another():
    one = times_of_queries(server_profile(lanes=(replace(ON_HOST, workers=1),)), "m.json").latency
    whole_s = one.service_time_s(64)
    assert one.service_time_s(128) == pytest.approx(2 * whole_s)
    assert one.service_time_s(65) == pytest.approx(whole_s + one.service_time_s(1))
    assert one.batch_sizes[-1] == 4096


def test_servers_whose_times_are_not_one_number_say_so():
    assert why_no_times(server_profile(), "m.json") == ""
    assert why_no_times(server_profile(lanes=(PIPELINE,)), "m.json").startswith(
        "m.json: m on cpu runs as pipeline-on-host, in stages that work side by side or fuse queries: how long"
    )
    assert "runs in two lanes, with service times of their own" in why_no_times(
        server_profile(lanes=(ON_HOST, ON_HOST)), "m.json"
    )
    untold = replace(server_profile(), latency={})
    assert why_no_times(untold, "m.json").startswith("m.json: m on cpu: latency: whole is missing")
