"""Servers that models share, planned from files by every policy."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hebe.capacity.errors import PlanFileError
from hebe.planning.colocation.colocation import hera
from hebe.planning.colocation.shared_server import ScalabilityTables, ServerResources
from hebe.profile import ScalabilityProfile
from tests.examples.three_models import HEADER, LINES, SERVER, plan_three_models, write_three_models


@pytest.fixture(autouse=True)
def three_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_three_models()


def planned(**changes):
    return plan_three_models(**changes)


def fault(**changes):
    with pytest.raises(PlanFileError) as caught:
        planned(**changes)
    return str(caught.value)


def test_the_plan_is_that_of_the_policy_asked_for_and_others_are_counted():
    made = {policy: planned(policy=policy) for policy in ("optimal", "hera", "one-model-a-server")}
    for policy, one in made.items():
        assert one.plan.servers == one.servers[policy]
        assert list(one.servers) == ["one-model-a-server", "random", "hera-random", "hera", "optimal"]
    assert made["optimal"].servers["optimal"] == min(made["optimal"].servers.values())
    profiles = list(made["hera"].profiles)
    tables = ScalabilityTables.of(profiles, ServerResources(4, 3, 1e9, 4e9))
    assert made["hera"].plan.groups == hera(tables, {"ncf": 9000, "rm": 70, "din": 400}).groups


def test_what_is_planned_for_is_the_demand_and_some_more():
    made = planned(over_provision=0.5)
    assert made.demand_qps == {"ncf": 9000, "rm": 70, "din": 400}
    assert made.plan.demand_qps == {"ncf": 13500, "rm": 105, "din": 600}
    assert all(made.plan.capacity_qps[model] >= qps * (1 - 1e-9) for model, qps in made.plan.demand_qps.items())


def test_a_model_that_nobody_asks_for_needs_no_server():
    Path("demand.csv").write_text("model,qps\nncf,4000\nrm,0\n")
    made = planned()
    assert made.plan.servers == 1
    assert made.plan.capacity_qps == {"ncf": 4000}
    assert made.demand_qps == {"ncf": 4000}


def test_a_server_of_one_core_is_not_shared():
    Path("server.csv").write_text("cores,cache_ways,bandwidth_bytes_per_s\n1,3,1e9\n")
    Path("profiles.csv").write_text("\n".join([HEADER, *(line for line in LINES if line.split(",")[1] == "1")]))
    made = planned(policy="hera")
    assert (made.affinity, made.algorithm_1) == (None, None)
    assert all(len(group.tenants) == 1 for group in made.plan.groups)
    assert list(made.servers) == ["one-model-a-server", "optimal"]


def test_a_plan_with_more_models_a_server_than_asked_for_proves_nothing():
    assert planned(policy="hera", most_models=1).plan.least_servers is None
    assert planned(policy="optimal", most_models=1).plan.least_servers is not None


def test_workers_of_several_cores_take_them_all():
    Path("server.csv").write_text("cores,cache_ways,bandwidth_bytes_per_s,memory_bytes\n16,2,1e10,1e11\n")
    Path("demand.csv").write_text("model,qps\nm,4000\nn,4000\n")
    rows = ((), (), (400.0, 400.0))
    in_steps = ScalabilityProfile(
        "m", (1, 2, 4), (100.0, 200.0, 400.0), (1e8, 2e8, 4e8), (1, 2), rows, (1e9, 1e9, 1e9), False, 4
    )
    profiles = [in_steps, replace(in_steps, model="n")]
    Path("scalability.json").write_text(json.dumps([profile.to_dict() for profile in profiles]))
    made = planned(profiles=Path("scalability.json"))
    assert made.plan.servers == made.plan.least_servers == 20
    for group in made.plan.groups:
        assert sum(tenant.workers * tenant.cores_per_worker for tenant in group.tenants) <= 16


@pytest.mark.parametrize("policy", ["optimal", "hera"])
def test_a_model_whose_worker_takes_more_cores_than_are_left_is_not_on_that_server(policy):
    """Three workers of n do as well beside nobody as beside two idle cores that m can do nothing with."""
    Path("server.csv").write_text("cores,cache_ways,bandwidth_bytes_per_s,memory_bytes\n6,2,1e10,1e11\n")
    Path("demand.csv").write_text("model,qps\nm,1\nn,1000\n")
    large = ScalabilityProfile("m", (1,), (1.0,), (0.0,), (1, 2), ((1.0, 1.0),), (8e10,), False, 4)
    rows = ((), (), (30.0, 30.0))
    small = ScalabilityProfile("n", (1, 3, 6), (10.0, 30.0, 30.0), (0.0,) * 3, (1, 2), rows, (8e10,) * 3)
    Path("scalability.json").write_text(json.dumps([large.to_dict(), small.to_dict()]))
    plan = planned(policy=policy, profiles=Path("scalability.json")).plan
    assert plan.servers == 35
    assert all(tenant.workers for group in plan.groups for tenant in group.tenants)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "server.csv",
            SERVER.replace("\n4,", "\n2,"),
            "profiles.csv: lines 2 to 13: scalability profile of rm: workers go up to 4: the server has 2 cores",
        ),
        (
            "server.csv",
            SERVER.replace("\n4,", "\n8,"),
            "profiles.csv: lines 2 to 13: scalability profile of rm: workers go up to 4: the server has cores and "
            "memory for more",
        ),
        (
            "server.csv",
            SERVER.replace("1e9", "1e8"),
            "scalability profile of rm: bandwidth_bytes_per_s goes up to 4e+08",
        ),
        (
            "server.csv",
            SERVER.replace("4e9", "1e7"),
            "scalability profile of rm: memory_bytes is 1e+08 with one worker",
        ),
        ("demand.csv", "model,qps\nncf,0\n", "demand.csv: qps: is 0 for every model"),
        (
            "demand.csv",
            "model,qps\nncf,1e12\n",
            "demand.csv: line 2: qps: would take 2.5e+08 servers, most of them for model ncf",
        ),
    ],
)
def test_files_that_do_not_go_together_are_refused(name, text, message):
    Path(name).write_text(text)
    assert message in fault()


def test_lines_without_memory_are_refused_where_the_server_s_is_given():
    Path("m.csv").write_text("model,workers,cache_ways,qps,bandwidth_bytes_per_s\nm,1,3,1000,1e7\n")
    Path("demand.csv").write_text("model,qps\nm,1500\n")
    message = fault(profiles=Path("m.csv"))
    assert message.startswith("m.csv: line 2: scalability profile of m: memory_bytes is not known, but the server's is")
    Path("m.csv").write_text("model,workers,cache_ways,qps,bandwidth_bytes_per_s,memory_bytes\nm,4,3,1000,1e7,0\n")
    assert planned(profiles=Path("m.csv")).plan.servers == 2, "told to be none"


def test_affinity_is_of_every_pair():
    made = planned()
    assert made.affinity.shape == made.algorithm_1.shape == (3, 3)
    assert np.isfinite(made.affinity).all()
    assert [str(kind) for kind in made.scalability] == ["low", "high", "high"]
