"""What is shown and written of a day's plan: of one whose servers can be counted by hand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hebe.cli.plan.provision_results import document, plan_content
from hebe.report.html import write_page
from tests.cli.shown import shown
from tests.examples.provisioning_files import plan_day

ASKED = {"over_provision": 0.0, "set_up_s": 300.0, "baselines": True}


@pytest.fixture
def moved(tmp_path, monkeypatch):
    """All ten servers are taken by a and b, and two go from a to b at each of four intervals."""
    monkeypatch.chdir(tmp_path)
    Path("efficiency.csv").write_text(
        "model,server_type,qps,power_watts,estimated,configuration.workers\na,cpu,100,1000,true,4\nb,cpu,100,1000,,\n"
    )
    Path("servers.csv").write_text("server_type,available,price_per_hour\ncpu,10,2\n")
    Path("loads.csv").write_text("time_s,a,b\n0,900,100\n600,700,300\n1200,500,500\n1800,300,700\n2400,100,900\n")
    return plan_day(**ASKED)


def test_the_figures_are_those_of_the_day(moved):
    figures = json.loads(json.dumps(document(moved).data))
    assert figures["power_watts"] == {"peak": 10_000.0, "mean": 10_000.0}
    assert figures["servers"] == {"peak": 10, "mean": 10.0}
    assert figures["price_per_hour"] == {"peak": 20.0, "mean": 20.0}
    assert figures["energy_kwh"] == pytest.approx(10 * 5 / 6 + 8 / 12), "and of eight set-ups"
    assert (figures["intervals"], figures["started"], figures["late"]) == (5, 8, 8)
    assert figures["covered"] == {"a": 1.0, "b": pytest.approx(0.6)}
    assert figures["over_provision_rates"] == {"a": 0.0, "b": 0.0}
    for other in figures["baselines"].values():
        saved = 1 - figures["power_watts"]["mean"] / other["power_watts"]["mean"]
        assert other["saved"]["power_watts"]["mean"] == pytest.approx(saved)


def test_the_plan_file_says_what_runs_and_which_servers_are_late(moved):
    content = plan_content(moved, Path("plans/day.toml"))
    assert content["made_from"] == {
        "efficiency": "../efficiency.csv", "servers": "../servers.csv", "loads": "../loads.csv",
    }  # fmt: skip
    assert [interval["servers"]["b"] for interval in content["interval"]] == [{"cpu": n} for n in (1, 3, 5, 7, 9)]
    assert [interval.get("late") for interval in content["interval"]] == [None, *[{"b": {"cpu": 2}}] * 4]
    assert content["interval"][1]["load_qps"] == {"a": 700.0, "b": 300.0}
    assert content["predicted"]["covered"]["b"] == pytest.approx(0.6)
    assert content["efficiency"][0]["configuration"] == {"workers": 4}


def test_the_terminal_tells_types_models_schedulers_and_what_is_not_as_it_should_be(moved):
    text = shown(document(moved))
    assert "cpu 10 10 10.0 100.0%" in text
    assert "b 900 0 9 5.0 60.0%" in text
    assert "this plan 10 10 10 10.0 20 8 8" in text
    assert "The mean power, set-ups included, is at most " in text
    assert "8 servers, in 4 intervals, can only be set up when the interval begins, since another model" in text
    assert "they are 300 s late" in text
    assert "1 of 2 efficiency tuples are estimated, not measured." in text


@pytest.mark.usefixtures("moved")
def test_with_servers_to_spare_none_is_late():
    Path("servers.csv").write_text("server_type,available\ncpu,12\n")
    spare = plan_day(**ASKED)
    assert document(spare).data["late"] == 0
    assert document(spare).data["covered"] == {"a": 1.0, "b": 1.0}
    assert document(spare).data["price_per_hour"] is None
    text = shown(document(spare))
    assert "s late" not in text
    assert "price" not in text


@pytest.mark.usefixtures("moved")
def test_where_every_interval_could_do_for_nothing_no_gap_is_told(tmp_path):
    Path("efficiency.csv").write_text(
        "model,server_type,qps,power_watts\n"
        + "".join(f"{pair},100,9\n" for pair in ("a,own", "b,own", "a,hired", "b,hired"))
    )
    Path("servers.csv").write_text("server_type,available,price_per_hour\nown,10,0\nhired,10,2\n")
    made = plan_day(**ASKED, minimise="price")
    assert made.day.cost > 0
    assert document(made).data["gap"] is None
    assert "gap" not in plan_content(made, Path("day.toml"))["predicted"]
    assert "mean price, set-ups included, is above the least possible is not proven" in shown(document(made))
    write_page(document(made), tmp_path / "day.html")
    assert "nothing is proven" in (tmp_path / "day.html").read_text()


def test_a_baseline_that_cannot_and_remarks_are_told(moved):
    text = shown(document(replace(moved, baselines={"greedy": "rm2 lacks servers"}, remarks=("Unlike.",))))
    assert "greedy: rm2 lacks servers" in text
    assert "Unlike." in text
    assert document(replace(moved, baselines={"greedy": "none"})).data["baselines"] == {"greedy": {"error": "none"}}


def test_the_page_has_a_picture_of_each_kind(moved, tmp_path):
    write_page(document(moved), tmp_path / "day.html")
    page = (tmp_path / "day.html").read_text()
    assert page.count("<svg") == 4
    for title in ("Servers by type", "Provisioned power", "Price", "Load by model", "60.0%"):
        assert title in page
