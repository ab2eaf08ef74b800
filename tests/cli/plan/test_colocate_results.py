"""What is shown and written of a plan of shared servers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hebe.cli.plan.colocate_results import document, plan_content
from hebe.planning.colocation.colocation import ColocationPlan, ServerGroup, Tenant
from hebe.report.html import page as page_of
from tests.cli.shown import shown
from tests.examples.three_models import plan_three_models, write_three_models

GROUPS = (
    ServerGroup((Tenant("ncf", 2, 2, 1800.0), Tenant("rm", 2, 1, 18.0)), 5, 1.25),
    ServerGroup((Tenant("din", 4, 3, 400.0),), 1, 1.0),
)


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A plan of six servers in two groups, that no planner made, beside what the planners know."""
    monkeypatch.chdir(tmp_path)
    write_three_models()
    planned = plan_three_models()
    plan = ColocationPlan("optimal", {"ncf": 9000.0, "rm": 70.0, "din": 400.0}, GROUPS, 5)
    servers = {"one-model-a-server": 8.0, "random": 7.25, "optimal": 6.0}
    return replace(planned, plan=plan, servers=servers, server_type="big")


def test_the_figures_are_those_of_the_plan(made):
    figures = json.loads(json.dumps(document(made).data))
    assert (figures["servers"], figures["least_servers"]) == (6, 5)
    assert figures["utilization"] == pytest.approx((5 * 1.25 + 1) / 6)
    assert figures["capacity_qps"] == {"ncf": 9000.0, "rm": 90.0, "din": 400.0}
    assert figures["worker_scalability"] == {"rm": "low", "ncf": "high", "din": "high"}
    assert figures["groups"][1]["tenant"] == [
        {"model": "din", "workers": 4, "cores_per_worker": 1, "cache_ways": 3, "qps": 400.0}
    ]


def test_the_plan_file_names_files_from_itself_and_says_what_the_server_is(made):
    content = plan_content(made, Path("fleet/plan.toml"))
    assert content["made_from"] == {
        "profiles": "../profiles.csv", "server": "../server.csv", "demand": "../demand.csv",
    }  # fmt: skip
    assert content["server"]["server_type"] == "big"
    assert content["server"]["memory_bytes"] == 4e9
    assert sum(group["servers"] for group in content["group"]) == content["predicted"]["servers"] == 6
    assert [profile["model"] for profile in content["scalability"]] == ["rm", "ncf", "din"]
    assert "server_type" not in plan_content(replace(made, server_type=None), Path("plan.toml"))["server"]


def test_the_terminal_tells_groups_models_policies_and_what_is_proven(made):
    text = shown(document(made))
    assert "ncf + rm 5 2 / 2, 2 / 1 1,800, 18 125%" in text
    assert "one model a server 8 0.0%" in text
    assert "random 7.2 9.4%" in text
    assert "optimal (chosen) 6 25.0%" in text
    assert "Proven: no plan with at most 2 models a server needs fewer than 5 servers." in text
    assert "No headroom" in text
    assert "planned for" not in text


def test_what_a_plan_rests_on_is_told(made):
    request = replace(made.request, over_provision=0.5)
    plan = replace(made.plan, demand_qps={"ncf": 13500.0, "rm": 105.0, "din": 600.0}, least_servers=6)
    estimated = tuple(replace(profile, estimated=True) for profile in made.profiles)
    text = shown(document(replace(made, request=request, plan=plan, profiles=estimated, affinity=None)))
    assert "Planned for 150% of the demand: an over-provision rate of 0.5." in text
    assert "9,000 13,500" in text
    assert "Proven optimal: no plan with at most 2 models a server needs fewer than 6" in text
    assert "3 of 3 scalability profiles are estimated, not measured." in text
    assert "A server with a single core or cache way is not shared." in text


def test_the_page_has_pictures_of_servers_and_affinity(made):
    page = page_of(document(made))
    assert page.count("<svg") == 3
    assert "Co-location affinity" in page
    assert page_of(document(replace(made, affinity=None))).count("<svg") == 1
