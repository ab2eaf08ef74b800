"""How many queries one server of a profile takes, by the service times that plans read from it."""

from dataclasses import replace

import pytest

from hebe.cli.fleet_simulation import FleetCase, QueryStream, capacity_case
from hebe.cli.plan_profiles import sizes_of
from hebe.cli.service_times import read_service_times
from hebe.profile import LatencyProfile
from hebe.profiling.server_profile import write_server_profile
from hebe.server_configuration import Lane, Placement
from hebe.simulation.policy_choice import PolicyChoice, PolicyKind
from hebe.spec import SlaTarget

from ..profiling.profiles import SUBJECT
from .server_profiles import server_profile

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


def read(path, made):
    write_server_profile(path, made)
    return read_service_times([path], None)


def capacity_qps(times):
    case = FleetCase(
        times.table, times.workers_per_server, PolicyChoice(PolicyKind.FCFS), SLA, 64,
        QueryStream("poisson", "fixed:64", 10_000, 0), 400.0,
    )  # fmt: skip
    return capacity_case(case)[0]


def test_one_server_takes_about_what_was_measured_of_it(tmp_path):
    times = read(tmp_path / "m.json", profile())
    assert capacity_qps(times) == pytest.approx(400.0, rel=0.05)
    (remark,) = times.remarks
    assert "m on cpu: the service times are of one worker alone. They are taken 1." in remark
    assert "about the 400 queries/s that were measured: profile m again" in remark


def test_times_of_busy_workers_count_as_they_are(tmp_path):
    busy = {"whole": LatencyProfile((1, 64), (0.018, 0.02), (0.0, 0.0))}
    times = read(tmp_path / "m.json", profile(busy_latency=busy))
    assert times.table.mean_s[0, 63] == pytest.approx(0.02)
    assert times.remarks == []


def test_times_that_explain_what_was_measured_stay(tmp_path):
    times = read(tmp_path / "m.json", profile(alone_s=0.03))
    assert times.table.mean_s[0, 63] == pytest.approx(0.03, rel=0.01)
    assert times.remarks == []


@pytest.mark.parametrize("load", ["whatever came", "sizes quantiles:x, seed 0"])
def test_where_the_load_is_not_known_that_is_said(tmp_path, load):
    times = read(tmp_path / "m.json", profile(load=load))
    assert times.table.mean_s[0, 63] == pytest.approx(0.01, rel=0.01)
    assert "how the workers hinder each other cannot be told from its load" in times.remarks[0]


def test_remarks_are_of_the_types_that_are_looked_at(tmp_path):
    write_server_profile(tmp_path / "p" / "one.json", profile())
    write_server_profile(tmp_path / "p" / "two.json", server_profile(server="gpu"))
    times = read_service_times([tmp_path / "p"], None)
    assert len(times.remarks) == 1
    assert times.of_types(["gpu"], "").remarks == []


def test_the_sizes_that_were_sent_are_in_the_words_of_the_load():
    assert sizes_of(SUBJECT) == "production"
    assert sizes_of(replace(SUBJECT, load="sizes quantiles:1,2,3, arrivals poisson")) == "quantiles:1,2,3"
    assert sizes_of(replace(SUBJECT, load="any")) is None
