"""A day planned from its files: rates, intervals, baselines, and what is said where the load cannot be met."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hebe.capacity.errors import PlanFileError
from hebe.planning.error import PlanningError
from hebe.profiling.files.server_profile import write_server_profile
from tests.examples.profiles import SERVER, profile
from tests.examples.provisioning_files import HOURS, SERVERS, plan_day, wide, write_provisioning_files


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A directory with the three files; `write` changes one of them."""
    monkeypatch.chdir(tmp_path)
    write_provisioning_files()
    return lambda name, text: Path(name).write_text(text, encoding="utf-8")


def planned(**changes):
    return plan_day(**changes)


def fault(**changes):
    with pytest.raises((PlanFileError, PlanningError)) as caught:
        planned(**changes)
    return str(caught.value)


def test_the_over_provision_rate_comes_from_the_loads_or_from_a_history(files):
    own = planned().rates
    assert 0 < own[0] < 0.2
    files("history.csv", "time_s,rm1,rm2\n0,10,10\n600,15,20\n1200,15,10\n")
    assert planned(history=Path("history.csv"), quantile=1.0).rates == pytest.approx([0.5, 1.0])
    assert planned(over_provision=0.3).rates == pytest.approx([0.3, 0.3])


def test_a_history_may_have_more_models_and_one_of_nothing_tells_no_rise_of_a_load(files):
    files("history.csv", "time_s,rm1,rm2\n0,10,10\n600,15,20\n1200,15,10\n")
    both = planned(history=Path("history.csv"), quantile=1.0).rates
    files("loads.csv", "time_s,rm1\n0,100\n600,120\n")
    assert planned(history=Path("history.csv"), quantile=1.0).rates == pytest.approx(both[:1])
    files("loads.csv", "time_s,rm1,rm2\n0,100,100\n600,120,100\n")
    files("history.csv", "time_s,rm1,rm2\n0,10,0\n600,15,0\n1200,15,0\n")
    assert "rm2: a load is 0 at all times" in fault(history=Path("history.csv"))
    assert "or give over_provision" in fault(history=Path("history.csv"))
    files("loads.csv", "time_s,rm1,rm2\n0,100,0\n600,120,0\n")
    assert planned(history=Path("history.csv"), quantile=1.0).rates == pytest.approx([0.5, 0.0])


def test_a_history_without_a_model_is_named(files):
    files("history.json", '[{"time_s": 0, "rm1": 1}, {"time_s": 600, "rm1": 1}]')
    assert fault(history=Path("history.json")) == (
        "history.json: line 1, load 1: rm2 is missing, of which there are loads to plan for"
    )


def test_minimises_price_where_asked(files):
    by_price, by_power = (planned(minimise=objective).day for objective in ("price", "power"))
    assert by_price.price_per_hour.mean() <= by_power.price_per_hour.mean()
    files("servers.csv", "server_type,available\ncpu,700\ngpu,50\n")
    assert planned().day.price_per_hour is None
    assert "servers.csv: price_per_hour is missing" in fault(minimise="price")


def test_finer_loads_are_planned_by_the_interval(files):
    files("loads.csv", wide(60))
    assert planned().day.interval_s == 600
    longer = planned(interval_s=1800.0)
    assert len(longer.day.counts) == HOURS * 2
    assert longer.edges_s.tolist() == list(range(0, HOURS * 3600 + 1, 1800))
    assert "interval_s is 90: must be a multiple of the loads' step, 60 s" in fault(interval_s=90.0)


def test_a_single_moment_is_planned_once_for_the_interval(files):
    files("loads.csv", "time_s,rm1,rm2\n0,100,100\n")
    assert planned(over_provision=0.0).day.interval_s == 600
    assert planned(over_provision=0.0, interval_s=60.0).day.interval_s == 60
    assert len(planned(over_provision=0.2).day.counts) == 1
    assert fault() == "loads.csv: rm1: the history is shorter than interval_s, 600 s; or give over_provision"


def test_a_baseline_that_cannot_is_told_and_left_out(files):
    # the greedy one gives rm1 some of the gpus that only they can serve rm2 with
    files("efficiency.csv", "model,server_type,qps,power_watts\nrm1,cpu,1,9\nrm1,gpu,9,9\nrm2,cpu,0,0\nrm2,gpu,9,9\n")
    files("servers.csv", "server_type,available\ncpu,90\ngpu,4\n")
    files("loads.csv", "time_s,rm1,rm2\n0,36,36\n600,36,36\n")
    made = planned(baselines=True)
    assert made.day.servers.max() == 40
    assert made.baselines["greedy"].startswith("interval 0, from 0 s: greedy provisioning: rm2 lacks")
    assert "greedy" not in made.days
    assert next(iter(made.days)) == "this plan"
    assert planned().baselines == {}


def test_tuples_that_were_not_measured_alike_are_remarked_on_if_both_count(files):
    one = profile()
    write_server_profile(Path("profiles/a.json"), one)
    other = replace(
        one,
        subject=replace(one.subject, server="large", load="sizes fixed:10, seed 0"),
        server=replace(SERVER, name="large"),
        efficiency=replace(one.efficiency, server_type="large"),
    )
    write_server_profile(Path("profiles/b.json"), other)
    files("loads.csv", "time_s,dlrm\n0,1000\n600,1400\n")
    files("servers.csv", f"server_type,available\n{SERVER.name},70\nlarge,5\n")
    (remark,) = planned(efficiency=Path("profiles"), over_provision=0.0).remarks
    assert remark.startswith("dlrm was not profiled alike on all server types")
    files("servers.csv", f"server_type,available\n{SERVER.name},70\n")  # the other one is not on offer
    assert planned(efficiency=Path("profiles"), over_provision=0.0).remarks == ()


def test_a_server_type_without_tuples_is_named_where_they_are_missing(files):
    files("servers.csv", f"{SERVERS}tpu,1,1\n")
    assert fault() == "efficiency.csv: rm1 on tpu is missing: add it, with a qps of 0 if tpu cannot serve rm1"


def test_demand_that_does_not_fit_says_what_does(files):
    files("loads.csv", "time_s,rm1,rm2\n0,1000,1000\n600,90000,90000\n")
    message = fault(over_provision=0.0)
    assert message.startswith(
        "loads.csv: line 3: time_s 600: the load cannot be met: more than the servers can serve: "
    )
    assert "all of cpu, gpu are taken by rm1, rm2; 0.4" in message
    assert re.search(r"of this load fits, all models alike, in queries/s: rm1 3\d,\d+, rm2 3\d,\d+: add ser", message)
    assert "over-provision" not in message
    raised = fault(over_provision=0.1)
    assert "the load cannot be met, with over-provision rates of rm1 0.1, rm2 0.1: more than" in raised
    assert raised.endswith("add servers of these types, or lower the over-provision rate")


def test_the_place_of_a_load_that_does_not_fit_is_that_of_its_interval(files):
    entries = [{"time_s": at, "model": "rm1", "qps": qps} for at, qps in ((0, 9), (300, 1e14), (600, 1e13), (900, 9))]
    files("loads.json", json.dumps(entries, indent=0))
    message = fault(over_provision=0.0, interval_s=600.0, loads=Path("loads.json"))
    assert message.startswith("loads.json: line 12, load 3: time_s 600: the load cannot be met: more than the servers")
    assert "all of cpu, gpu are taken by rm1; 8e-09 of this load fits" in message


def test_that_no_type_can_serve_a_model_is_told(files):
    files("servers.csv", "server_type,available\ncpu,0\ngpu,0\n")
    files("loads.csv", "time_s,rm1\n0,9\n")
    assert fault(over_provision=0.0) == (
        "loads.csv: line 2: time_s 0: the load cannot be met: no available server type can serve rm1: on each its qps"
        " or the type's available is 0"
    )


def test_the_load_that_is_told_to_fit_does(files):
    files("efficiency.csv", "model,server_type,qps,power_watts\nrm1,cpu,1000,100\n")
    files("servers.csv", "server_type,available\ncpu,1\n")
    files("loads.csv", "time_s,rm1\n0,2000\n")
    message = fault(over_provision=0.1)
    assert "; 0.4545 of this load fits, all models alike, in queries/s: rm1 909: add servers" in message
    files("loads.csv", "time_s,rm1\n0,909\n")
    np.testing.assert_array_equal(planned(over_provision=0.1).day.servers, [1])
    files("loads.csv", "time_s,rm1\n0,909.1\n")
    message = fault(over_provision=0.1)
    assert "; 0.9999 of this load fits, all models alike, in queries/s: rm1 909: add servers" in message


def test_that_nothing_fits_in_whole_servers_is_told(files):
    files("efficiency.csv", "model,server_type,qps,power_watts\nrm1,cpu,1000,100\nrm2,cpu,1000,100\n")
    files("servers.csv", "server_type,available\ncpu,1\n")
    files("loads.csv", "time_s,rm1,rm2\n0,20,10\n")
    assert fault(over_provision=0.0) == (
        "loads.csv: line 2: time_s 0: the load cannot be met: only fractions of servers would meet it: of cpu rm1, rm2"
        " would take all; no share of this load was found to fit in whole servers, all models alike: add a server of"
        " these types"
    )
