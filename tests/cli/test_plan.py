"""`hebe plan provision`, as a user runs it: files in, a plan file and a page out, and every fault named."""

import json
import re
import tomllib
from dataclasses import replace

import numpy as np
import pytest

from hebe.cli.main import main
from hebe.profile import EfficiencyTuple
from hebe.profiling.server_profile import write_server_profile
from hebe.spec import SlaTarget

from ..profiling.profiles import SERVER, profile

EFFICIENCY = """model,server_type,qps,power_watts,estimated,configuration.workers,configuration.fused
rm1,cpu,100,100,false,10,true
rm1,gpu,200,250,true,,
rm2,cpu,50,100,,4,
rm2,gpu,400,260,,,
"""
SERVERS = "server_type,available,price_per_hour\ncpu,700,1.0\ngpu,50,3.5\n"
HOURS = 6


def diurnal(step_s=600.0):
    times = np.arange(0, HOURS * 3600, step_s)
    shape = 0.6 - 0.4 * np.cos(2 * np.pi * times / (24 * 3600))
    return times, 10_000 * shape, 15_000 * shape


def wide(step_s=600.0):
    lines = [f"{time:g},{a:.1f},{b:.1f}" for time, a, b in zip(*diurnal(step_s), strict=True)]
    return "\n".join(["time_s,rm1,rm2", *lines]) + "\n"


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A directory with the three files; `write` changes one of them."""
    monkeypatch.chdir(tmp_path)

    def write(name, text):
        (tmp_path / name).write_text(text, encoding="utf-8")

    write("efficiency.csv", EFFICIENCY)
    write("servers.csv", SERVERS)
    write("loads.csv", wide())
    return write


def run(capsys, *arguments, files=("efficiency.csv", "servers.csv", "loads.csv")):
    with pytest.raises(SystemExit) as exit_:
        main(["plan", "provision", *files, "--time-limit-s", "0", *map(str, arguments)])
    captured = capsys.readouterr()
    return exit_.value.code or 0, captured.out, captured.err


def planned(capsys, *arguments, **options):
    code, out, err = run(capsys, "--json", *arguments, **options)
    assert code == 0, err
    return json.loads(out.splitlines()[-1])


def wrong_usage(capsys, *arguments, **options):
    code, _, err = run(capsys, *arguments, **options)
    assert code == 2
    return " ".join(err.replace("│", " ").split())


def fault(capsys, *arguments, **options):
    code, out, err = run(capsys, *arguments, **options)
    assert code == 1
    assert not out
    return " ".join(err.split()).removeprefix("error: ")


@pytest.mark.usefixtures("files")
def test_prints_a_table_and_writes_plan_and_page(capsys, tmp_path):
    code, out, _ = run(capsys, "--plan", "day/plan.toml")
    assert code == 0
    for words in ("server type", "gpu", "rm2", "this plan", "greedy", "oblivious", "priority-aware", "saved at peak"):
        assert words in out
    assert "Plan: day/plan.toml" in out
    assert "1 of 4 efficiency tuples are estimated" in out
    page = (tmp_path / "day" / "plan.html").read_text()
    assert page.count("<svg") == 4
    for title in ("Servers by type", "Provisioned power", "Price", "Load by model"):
        assert title in page


@pytest.mark.usefixtures("files")
def test_the_plan_file_says_what_to_start_and_what_is_predicted(capsys, tmp_path):
    answer = planned(capsys, "--over-provision", "0.1", "--plan", "plan.toml")
    plan = tomllib.loads((tmp_path / "plan.toml").read_text())
    assert (plan["kind"], plan["version"], plan["objective"]) == ("provisioning", 1, "power")
    tuples = {(one["model"], one["server_type"]): EfficiencyTuple.from_dict(one) for one in plan["efficiency"]}
    assert tuples["rm1", "cpu"] == EfficiencyTuple("rm1", "cpu", 100, 100, {"workers": 10, "fused": True})
    assert tuples["rm1", "gpu"].estimated
    available = {one["server_type"]: one["available"] for one in plan["server"]}
    times, *loads = diurnal()
    assert [interval["start_s"] for interval in plan["interval"]] == times.tolist()
    for at, interval in enumerate(plan["interval"]):
        used = dict.fromkeys(available, 0)
        power = 0.0
        for number, (model, servers) in enumerate(interval["servers"].items()):
            capacity = sum(count * tuples[model, kind].qps for kind, count in servers.items())
            assert capacity == pytest.approx(interval["capacity_qps"][model])
            assert capacity >= 1.1 * loads[number][at] * (1 - 1e-3)
            for kind, count in servers.items():
                used[kind] += count
                power += count * tuples[model, kind].power_watts
        assert all(used[kind] <= available[kind] for kind in used)
        assert power == pytest.approx(interval["power_watts"])
    assert plan["predicted"]["power_watts"] == answer["power_watts"]
    assert answer["power_watts"]["peak"] == max(interval["power_watts"] for interval in plan["interval"])
    assert plan["over_provision_rates"] == answer["over_provision_rates"] == {"rm1": 0.1, "rm2": 0.1}


@pytest.mark.usefixtures("files")
def test_json_holds_the_figures_and_what_is_saved_over_each_baseline(capsys):
    answer = planned(capsys)
    assert 0 <= answer["gap"] < 0.1
    assert answer["intervals"] == HOURS * 6
    assert answer["covered"] == {"rm1": pytest.approx(1, abs=0.05), "rm2": pytest.approx(1, abs=0.05)}
    assert set(answer["baselines"]) == {"priority-aware", "greedy", "oblivious"}
    for other in answer["baselines"].values():
        saved = 1 - answer["power_watts"]["mean"] / other["power_watts"]["mean"]
        assert other["saved"]["power_watts"]["mean"] == pytest.approx(saved)
    assert answer["plan"] == "day.toml"
    assert answer["page"] == "day.html"
    assert planned(capsys, "--no-baselines")["baselines"] == {}


def test_the_over_provision_rate_comes_from_the_loads_or_from_a_history(files, capsys):
    own = planned(capsys)["over_provision_rates"]
    assert 0 < own["rm1"] < 0.2
    files("history.csv", "time_s,rm1,rm2\n0,10,10\n600,15,20\n1200,15,10\n")
    told = planned(capsys, "--history", "history.csv", "--quantile", "1")["over_provision_rates"]
    assert told == {"rm1": pytest.approx(0.5), "rm2": pytest.approx(1.0)}


def test_minimises_price_where_asked(files, capsys):
    by_price, by_power = (planned(capsys, "--minimise", objective) for objective in ("price", "power"))
    assert by_price["price_per_hour"]["mean"] <= by_power["price_per_hour"]["mean"]
    files("servers.csv", "server_type,available\ncpu,700\ngpu,50\n")
    assert planned(capsys)["price_per_hour"] is None
    assert "servers.csv: price_per_hour is missing" in fault(capsys, "--minimise", "price")


def test_finer_loads_are_planned_by_the_interval(files, capsys):
    files("loads.csv", wide(60))
    assert planned(capsys)["interval_s"] == 600
    assert planned(capsys, "--interval-s", 1800)["intervals"] == HOURS * 2
    assert "--interval-s is 90: must be a multiple of the loads' step, 60 s" in fault(capsys, "--interval-s", 90)


def test_a_single_moment_is_planned_once_for_the_interval(files, capsys):
    files("loads.csv", "time_s,rm1,rm2\n0,10,10\n")
    assert planned(capsys, "--over-provision", 0)["interval_s"] == 600
    assert planned(capsys, "--over-provision", 0, "--interval-s", 60)["interval_s"] == 60


def test_the_same_plan_from_toml_and_json_and_one_line_for_each_model(files, capsys, tmp_path):
    def content(name):
        """All but the names of the files that it was made from."""
        plan = tomllib.loads((tmp_path / name).read_text())
        assert set(plan.pop("made_from")) >= {"efficiency", "servers", "loads"}
        return plan

    planned(capsys, "--plan", "a.toml")
    rows = [line.split(",") for line in EFFICIENCY.splitlines()[1:]]
    kinds = [line.split(",") for line in SERVERS.splitlines()[1:]]
    servers = "".join(
        f'[[server]]\nserver_type = "{kind}"\navailable = {count}\nprice_per_hour = {price}\n'
        for kind, count, price in kinds
    )
    tuples = [
        {"model": row[0], "server_type": row[1], "qps": float(row[2]), "power_watts": float(row[3])}
        | ({"estimated": True} if row[4] == "true" else {})
        for row in rows
    ]
    tuples[0]["configuration"] = {"workers": 10, "fused": True}
    tuples[2]["configuration"] = {"workers": 4}
    files("servers.toml", servers)
    files("efficiency.json", json.dumps({"efficiency": tuples}))
    lines = [line.split(",") for line in wide().splitlines()[1:]]
    long = [f"{time},{model},{load}" for time, *pair in lines for model, load in zip(("rm1", "rm2"), pair, strict=True)]
    files("long.csv", "\n".join(["time_s,model,qps", *long]) + "\n")
    planned(capsys, "--plan", "b.toml", files=("efficiency.json", "servers.toml", "long.csv"))
    assert content("a.toml") == content("b.toml")
    files("efficiency.json", json.dumps(tuples))
    planned(capsys, "--plan", "c.toml", files=("efficiency.json", "servers.toml", "long.csv"))
    assert content("a.toml") == content("c.toml")
    entries = [dict(zip(("time_s", "model", "qps"), line.split(","), strict=True)) for line in long]
    for entry in entries:
        entry["qps"] = float(entry["qps"])
    files("loads.json", json.dumps({"load": entries}, indent=1))
    entry_lines = ([f"{name} = {value!r}" for name, value in entry.items()] for entry in entries)
    files("loads.toml", "\n".join(line for one in entry_lines for line in ("[[load]]", *one)))
    columns = [dict(zip(("time_s", "rm1", "rm2"), map(float, line), strict=True)) for line in lines]
    files("wide.json", json.dumps([one | {"time_s": int(one["time_s"])} for one in columns]))
    for loads in ("loads.json", "loads.toml", "wide.json"):
        planned(capsys, "--history", loads, "--plan", "d.toml", files=("efficiency.json", "servers.toml", loads))
        assert content("a.toml") == content("d.toml")


def test_a_plan_names_the_files_it_was_made_from_as_seen_from_itself(files, capsys, tmp_path):
    files("before.csv", wide())
    planned(capsys, "--history", "before.csv", "--plan", "plans/a.toml")
    assert tomllib.loads((tmp_path / "plans" / "a.toml").read_text())["made_from"] == {
        "efficiency": "../efficiency.csv",
        "servers": "../servers.csv",
        "loads": "../loads.csv",
        "history": "../before.csv",
    }


def test_dates_and_a_byte_order_mark_as_spreadsheets_write_them(files, capsys, tmp_path):
    files("loads.csv", "\ufefftime_s,rm1\r\n2024-05-01 00:00:00,100\r\n2024-05-01 00:10:00,110\r\n\r\n")
    assert planned(capsys)["intervals"] == 2
    assert tomllib.loads((tmp_path / "day.toml").read_text())["start"] == "2024-05-01 00:00:00"
    load = "[[load]]\nmodel = 'rm1'\nqps = 100\ntime_s = 2024-05-01 00:{}:00Z\n"
    files("loads.toml", "\ufeff" + load.format("00") + load.format("10"))
    files("servers.toml", "\ufeff[[server]]\nserver_type = 'cpu'\navailable = 70\n")
    files("efficiency.json", '\ufeff[{"model": "rm1", "server_type": "cpu", "qps": 9, "power_watts": 9}]')
    assert planned(capsys, files=("efficiency.json", "servers.toml", "loads.toml"))["intervals"] == 2
    assert tomllib.loads((tmp_path / "day.toml").read_text())["start"] == "2024-05-01 00:00:00+00:00"


@pytest.mark.parametrize("time_limit_s", [0, 0.2])
def test_the_gap_is_that_of_whole_servers(files, capsys, time_limit_s):
    """Each model needs one server, whatever its load; set-ups cost nothing, for none are made."""
    files("loads.csv", "time_s,rm1,rm2\n0,1,2\n600,1,2\n1200,1,2\n")
    answer = planned(capsys, "--time-limit-s", time_limit_s)
    assert (answer["servers"]["peak"], answer["gap"], answer["started"]) == (2, 0.0, 0)
    _, out, _ = run(capsys, "--time-limit-s", time_limit_s)
    assert "is at most 0.00% above the least possible" in out


def test_servers_that_serve_another_model_until_then_are_late_and_cover_nothing_meanwhile(files, capsys, tmp_path):
    files("efficiency.csv", "model,server_type,qps,power_watts\na,cpu,100,1\nb,cpu,100,1\n")
    files("servers.csv", "server_type,available\ncpu,10\n")
    files("loads.csv", "time_s,a,b\n0,900,100\n600,700,300\n1200,500,500\n1800,300,700\n2400,100,900\n")
    moved = ("--over-provision", "0", "--set-up-s", "300")
    answer = planned(capsys, *moved)
    assert answer["covered"] == {"a": 1.0, "b": pytest.approx(0.6)}
    assert (answer["started"], answer["late"]) == (8, 8)
    plan = tomllib.loads((tmp_path / "day.toml").read_text())
    assert plan["predicted"]["covered"]["b"] == pytest.approx(0.6)
    assert [interval.get("late") for interval in plan["interval"]] == [None, *[{"b": {"cpu": 2}}] * 4]
    _, out, _ = run(capsys, *moved)
    words = (
        "8 servers, in 4 intervals, can only be set up when the interval begins, since another model is served on them"
    )
    assert words in " ".join(out.split())
    assert "60.0%" in out
    files("servers.csv", "server_type,available\ncpu,12\n")
    answer = planned(capsys, *moved)
    assert (answer["covered"], answer["late"]) == ({"a": 1.0, "b": 1.0}, 0)
    assert "are 300 s late" not in run(capsys, *moved)[1]


def test_profiles_in_a_directory_are_efficiency_tuples(files, capsys, tmp_path):
    profiles = tmp_path / "profiles"
    write_server_profile(profiles / "dlrm.json", profile())
    files("servers.csv", f"server_type,available\n{SERVER.name},70\n")
    files("loads.csv", "time_s,dlrm\n0,1000\n600,1400\n")
    named = (str(profiles), "servers.csv", "loads.csv")
    told = profile().efficiency

    def rests_on():
        assert run(capsys, "--over-provision", "0", "--plan", "day.toml", files=named)[0] == 0
        return tomllib.loads((tmp_path / "day.toml").read_text())["efficiency"]

    assert rests_on() == [told.to_dict()]
    measured = replace(told, qps=told.qps / 2)
    write_server_profile(profiles / "dlrm.json", replace(profile(), measured=measured, measured_at="2026-05-04"))
    assert rests_on() == [measured.to_dict()]
    named = (str(profiles / "dlrm.json"), "servers.csv", "loads.csv")
    assert rests_on() == [measured.to_dict()]

    named = (str(profiles), "servers.csv", "loads.csv")
    write_server_profile(profiles / "twice.json", profile())
    assert "twice.json: dlrm on small-2-cores is given twice, before in" in fault(capsys, files=named)
    (profiles / "twice.json").write_text("{}")
    assert "twice.json: kind None, format None: must be kind 'server profile'" in fault(capsys, files=named)
    (tmp_path / "empty").mkdir()
    assert "empty: holds no profile" in fault(capsys, files=("empty", "servers.csv", "loads.csv"))


def two_profiles(folder, **changes):
    """Of dlrm on two server types, the second one's subject changed."""
    one, spec = profile(), replace(SERVER, name="large")
    write_server_profile(folder / "a.json", one)
    efficiency = replace(one.efficiency, server_type="large")
    subject = replace(one.subject, server="large", **changes)
    write_server_profile(folder / "b.json", replace(one, subject=subject, server=spec, efficiency=efficiency))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"sla": SlaTarget(100.0)},
            "dlrm was profiled for unlike SLA targets, whose throughputs do not compare: profiles/a.json p95 within"
            " 20 ms, profiles/b.json p95 within 100 ms: profile one of them again",
        ),
        (
            {"version": 4},
            "in unlike versions, whose throughputs do not compare: profiles/a.json version 3 (files ab12)",
        ),
        ({"identity": "cd34"}, "profiles/b.json version 3 (files cd34): profile one of them again"),
    ],
)
def test_throughputs_that_do_not_compare_are_not_planned_with(files, capsys, tmp_path, changes, told):
    two_profiles(tmp_path / "profiles", **changes)
    files("servers.csv", f"server_type,available\n{SERVER.name},70\nlarge,5\n")
    files("loads.csv", "time_s,dlrm\n0,1000\n600,1400\n")
    named = ("profiles", "servers.csv", "loads.csv")
    assert told in fault(capsys, files=named)
    files("servers.csv", f"server_type,available\n{SERVER.name},70\n")  # the other one is not on offer
    planned(capsys, "--over-provision", "0", files=named)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"load": "sizes fixed:10, seed 0"},
            "dlrm was not profiled alike on all server types, so that its throughputs may not compare: a.json with"
            " sizes production, b.json with sizes fixed:10.",
        ),
        ({"load": "sizes production, seed 0, quick"}, "b.json with sizes production, quick."),
        ({"loaded": "scripted, int8"}, "b.json with the model loaded so: scripted, int8."),
        ({"load": "sizes production, seed 7, 500 bytes of hot rows by these keys"}, None),
    ],
)
def test_what_was_unlike_when_throughputs_were_measured_is_told(files, capsys, tmp_path, changes, told):
    two_profiles(tmp_path / "profiles", **changes)
    files("servers.csv", f"server_type,available\n{SERVER.name},70\nlarge,5\n")
    files("loads.csv", "time_s,dlrm\n0,1000\n600,1400\n")
    code, out, _ = run(capsys, "--over-provision", "0", "--json", files=("profiles", "servers.csv", "loads.csv"))
    assert code == 0
    remarks = json.loads(out.splitlines()[-1])["remarks"]
    assert [remark.endswith(told) for remark in remarks] == ([] if told is None else [True])


def test_a_single_moment_can_be_planned(files, capsys):
    files("loads.csv", "time_s,rm1,rm2\n0,100,100\n")
    assert planned(capsys, "--over-provision", "0.2")["intervals"] == 1
    message = "loads.csv: rm1: the history is shorter than --interval-s, 600 s; or give --over-provision"
    assert fault(capsys) == message


def test_a_power_that_holds_for_all_models_is_the_server_types(files, capsys):
    files("efficiency.csv", "model,server_type,qps\nrm1,cpu,100\nrm1,gpu,200\n")
    files("servers.csv", "server_type,available,power_watts\ncpu,70,100\ngpu,5,250\n")
    files("loads.csv", "time_s,rm1\n0,1000\n600,1000\n")
    assert planned(capsys)["power_watts"]["peak"] == 1000
    files("servers.csv", "server_type,available,power_watts\ncpu,70,100\ngpu,5,\n")
    assert "efficiency.csv: line 3: power_watts is missing or 0, and gpu has none" in fault(capsys)


def test_a_baseline_that_cannot_is_told_and_left_out(files, capsys):
    # the greedy one gives rm1 some of the gpus that only they can serve rm2 with
    files("efficiency.csv", "model,server_type,qps,power_watts\nrm1,cpu,1,9\nrm1,gpu,9,9\nrm2,cpu,0,0\nrm2,gpu,9,9\n")
    files("servers.csv", "server_type,available\ncpu,90\ngpu,4\n")
    files("loads.csv", "time_s,rm1,rm2\n0,36,36\n600,36,36\n")
    answer = planned(capsys)
    assert answer["servers"]["peak"] == 40
    assert "rm2 lacks" in answer["baselines"]["greedy"]["error"]
    _, out, _ = run(capsys)
    assert "greedy: interval 0, from 0 s: greedy provisioning: rm2 lacks" in out


def test_demand_that_does_not_fit_says_what_does(files, capsys, tmp_path):
    files("loads.csv", "time_s,rm1,rm2\n0,1000,1000\n600,90000,90000\n")
    message = fault(capsys, "--over-provision", "0")
    assert message.startswith(
        "loads.csv: line 3: time_s 600: the load cannot be met: more than the servers can serve: "
    )
    assert "all of cpu, gpu are taken by rm1, rm2; 0.4" in message
    assert re.search(r"of this load fits, all models alike, in queries/s: rm1 3\d,\d+, rm2 3\d,\d+: add ser", message)
    assert "over-provision" not in message
    assert not (tmp_path / "day.toml").exists()
    raised = fault(capsys, "--over-provision", "0.1")
    assert "the load cannot be met, with over-provision rates of rm1 0.1, rm2 0.1: more than" in raised
    assert raised.endswith("add servers of these types, or lower the over-provision rate")
    entries = [{"time_s": at, "model": "rm1", "qps": qps} for at, qps in ((0, 9), (300, 1e14), (600, 1e13), (900, 9))]
    files("loads.json", json.dumps(entries, indent=0))
    message = fault(
        capsys, "--over-provision", "0", "--interval-s", "600", files=("efficiency.csv", "servers.csv", "loads.json")
    )
    assert message.startswith("loads.json: line 12, load 3: time_s 600: the load cannot be met: more than the servers")
    assert "all of cpu, gpu are taken by rm1; 8e-09 of this load fits" in message
    files("servers.csv", "server_type,available\ncpu,0\ngpu,0\n")
    files("loads.csv", "time_s,rm1\n0,9\n")
    assert fault(capsys, "--over-provision", "0") == (
        "loads.csv: line 2: time_s 0: the load cannot be met: no available server type can serve rm1: on each its qps"
        " or the type's available is 0"
    )


def test_the_load_that_is_told_to_fit_does(files, capsys):
    files("efficiency.csv", "model,server_type,qps,power_watts\nrm1,cpu,1000,100\n")
    files("servers.csv", "server_type,available\ncpu,1\n")
    files("loads.csv", "time_s,rm1\n0,2000\n")
    message = fault(capsys, "--over-provision", "0.1")
    assert "; 0.4545 of this load fits, all models alike, in queries/s: rm1 909: add servers" in message
    files("loads.csv", "time_s,rm1\n0,909\n")
    assert planned(capsys, "--over-provision", "0.1")["servers"]["peak"] == 1
    files("loads.csv", "time_s,rm1\n0,909.1\n")
    message = fault(capsys, "--over-provision", "0.1")
    assert "; 0.9999 of this load fits, all models alike, in queries/s: rm1 909: add servers" in message


def test_that_nothing_fits_in_whole_servers_is_told(files, capsys):
    files("efficiency.csv", "model,server_type,qps,power_watts\nrm1,cpu,1000,100\nrm2,cpu,1000,100\n")
    files("servers.csv", "server_type,available\ncpu,1\n")
    files("loads.csv", "time_s,rm1,rm2\n0,20,10\n")
    assert fault(capsys, "--over-provision", "0") == (
        "loads.csv: line 2: time_s 0: the load cannot be met: only fractions of servers would meet it: of cpu rm1, rm2"
        " would take all; no share of this load was found to fit in whole servers, all models alike: add a server of"
        " these types"
    )


def test_an_older_plan_is_replaced_only_by_a_whole_one(files, capsys, tmp_path):
    planned(capsys)
    before = (tmp_path / "day.toml").read_text()
    files("loads.csv", "time_s,rm1\n0,nan\n")
    fault(capsys)
    assert (tmp_path / "day.toml").read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "day.html", "day.toml", "efficiency.csv", "loads.csv", "servers.csv",
    ]  # fmt: skip


BAD = [
    ("efficiency.csv", "model,server_type,qps,watts\nrm1,cpu,1,1\n", "line 1: unknown field 'watts': known are model,"),
    ("efficiency.csv", "model,server_type\nrm1,cpu\n", "line 1: qps is missing"),
    ("efficiency.csv", "model,server_type,qps,qps\nrm1,cpu,1,1\n", "line 1: column 'qps' is there twice"),
    ("efficiency.csv", "model,,qps\nrm1,cpu,1\n", "line 1: column 2 has no name"),
    ("efficiency.csv", "", "line 1: must be a header"),
    ("efficiency.csv", "model,server_type,qps\n", "holds no efficiency entries"),
    ("efficiency.csv", f"{EFFICIENCY}rm1,cpu,1,1,,,\n", "line 6: rm1 on cpu is given twice, before at"),
    ("efficiency.csv", EFFICIENCY.replace("rm2,gpu,400", "rm2,gpu,nan"), "line 5: qps is 'nan': must be a finite"),
    ("efficiency.csv", EFFICIENCY.replace("rm2,gpu,400", "rm2,gpu,-4"), "line 5: qps is '-4': must be a finite"),
    ("efficiency.csv", EFFICIENCY.replace("rm2,gpu,400", "rm2,gpu,"), "line 5: qps is missing"),
    ("efficiency.csv", EFFICIENCY.replace("rm2,gpu", "rm2,"), "line 5: server_type is '': must be a name"),
    ("efficiency.csv", EFFICIENCY.replace("false", "perhaps"), "line 2: estimated is 'perhaps'"),
    (
        "efficiency.csv",
        EFFICIENCY.replace("rm2,gpu,400,260,,,\n", ""),
        "rm2 on gpu is missing: add it, with a qps of 0",
    ),
    ("efficiency.csv", EFFICIENCY.replace("rm2,gpu,400,260,,,", "rm2,gpu,4"), "line 5: has 3 fields: must have 7"),
    ("efficiency.csv", EFFICIENCY.replace("rm2,gpu,400", "rm2,gpu,1e308"), "line 5: qps is '1e308': must be 0, or lie"),
    ("efficiency.csv", EFFICIENCY.replace("rm2,gpu,400", "rm2,gpu,1e-300"), "line 5: qps is '1e-300': must be 0, or"),
    pytest.param(
        "efficiency.csv",
        EFFICIENCY.replace("rm2,gpu,400", f"rm2,gpu,{'9' * 5000}"),
        f"line 5: qps is '{'9' * 59}...: must be a finite number",
        id="many digits",
    ),
    (
        "efficiency.csv",
        EFFICIENCY.replace(",10,true", ",nan,true"),
        "line 2: configuration.workers is nan: must be a fi",
    ),
    ("efficiency.csv", EFFICIENCY.replace(".fused", "."), "line 1: column 'configuration.' names no setting"),
    ("servers.csv", "server_type,available\ncpu,1e7\n", "line 2: available is 10,000,000: at most 1,000,000"),
    (
        "servers.csv",
        "server_type,available\ncpu,1e19\n",
        "line 2: available is '1e19': must be 0, or lie between 1e-15",
    ),
    ("servers.csv", "server_type,available\ncpu,many\n", "line 2: available is 'many': must be a number"),
    ("servers.csv", "server_type,available\ncpu,1.5\n", "line 2: available is 1.5: must be a whole number"),
    ("servers.csv", f"{SERVERS}cpu,1,1\n", "line 4: server_type cpu is given twice"),
    ("servers.csv", f"{SERVERS}tpu,1,\n", "line 4: price_per_hour is given for some server types only"),
    ("loads.csv", "time_s,rm1\n0,1\n600,\n1200,1\n", "line 3: rm1 is empty: the load has a gap"),
    ("loads.csv", "time_s,rm1\n0,1\n600,1\n1800,1\n2400,1\n", "line 4: time_s 1800 is 1200 s after the time before, o"),
    ("loads.csv", "time_s,rm1\n0,1\n600,1\n1300,1\n", "line 4: time_s 1300 is 700 s after the time before, others 600"),
    ("loads.csv", "time_s,rm1\n0,1\n700,1\n1300,1\n", "line 3: time_s 700 is 700 s after the time before, others 600"),
    (
        "loads.csv",
        "time_s,rm1\n2026-03-29T01:00,1\n2026-03-29T04:00+02:00,1\n2026-03-29T03:00,1\n",
        "line 3: time_s 2026-03-29T04:00+02:00 is a date with a UTC offset, but 2026-03-29T01:00 at loads.csv: line 2"
        " is a date without a UTC offset: give all times alike",
    ),
    (
        "loads.csv",
        "time_s,model,qps\n0,rm1,1\n1970-01-01T00:10Z,rm1,1\n",
        "line 3: time_s 1970-01-01T00:10Z is a date with a UTC offset, but 0 at loads.csv: line 2 is in seconds: give",
    ),
    ("efficiency.csv", "model;server_type;qps\nrm1;cpu;1\n", "line 1: has semicolons: must have commas between the co"),
    ("servers.csv", "server_type\tavailable\ncpu\t1\n", "line 1: has tabs: must have commas between the columns"),
    ("loads.csv", "time_s,rm1\n0,1\n600,1\n600,1\n", "line 4: time_s 600 is given twice"),
    ("loads.csv", "time_s,rm1\n600,1\n0,1\n", "line 3: time_s 0 is earlier than the line before"),
    ("loads.csv", "time_s,rm1\n0,1\n600,1e16\n", "line 3: rm1 is '1e16': must be 0, or lie between 1e-15 and 1e+15"),
    ("loads.csv", "time_s,rm1\n0,1\n600,1e-30\n", "line 3: rm1 is '1e-30': must be 0, or lie between"),
    ("loads.csv", "time_s,rm1\n0,1\n600,-1\n", "line 3: rm1 is '-1': must be a finite number of at least 0"),
    ("loads.csv", "time_s,rm1\n0,1\n600,nan\n", "line 3: rm1 is 'nan'"),
    ("loads.csv", "time_s,rm1\n0,1\nnan,2\n", "line 3: time_s is 'nan': must be finite"),
    ("loads.csv", "time_s,rm1\n0,1\nnoon,2\n", "line 3: time_s is 'noon': must be seconds or an ISO 8601"),
    (
        "loads.csv",
        "time_s,rm1,rm9\n0,1,1\n",
        "line 1: model 'rm9' has no efficiency tuples: known models are rm1, rm2",
    ),
    ("loads.csv", "rm1,rm2\n0,1\n", "line 1: time_s is missing"),
    ("loads.csv", "time_s\n0\n", "line 1: must have the load of each model"),
    ("loads.csv", "time_s,rm1\n", "holds no load entries"),
    ("loads.csv", "time_s,model,qps\n0,rm1,1\n0,rm1,2\n", "line 3: rm1 at time_s 0 is given twice"),
    ("loads.csv", "time_s,model,qps\n0,rm1,1\n0,rm2,1\n600,rm1,1\n", "line 4: no load of rm2 at time_s 600: a gap"),
    ("loads.csv", "time_s,model,qps\n0,rm9,1\n", "line 2: model 'rm9' has no efficiency tuples"),
    ("loads.csv", 'time_s,rm1\n0,"1\n', "cannot be read"),
]


@pytest.mark.parametrize(("name", "text", "message"), BAD)
def test_bad_files_are_named_by_line_and_field(files, capsys, name, text, message):
    files(name, text)
    found = fault(capsys, "--over-provision", "0.1")
    assert message in found
    assert name in found


BAD_TYPED = [
    (
        "s.toml",
        "[[server]]\nserver_type = 'cpu'\n\n[[server]]\nserver_type = 3\navailable = 1",
        "line 1, server 1: availa",
    ),
    ("s.toml", "[[server]]\nserver_type = 3\navailable = 1", "line 1, server 1: server_type is 3: must be a name"),
    ("s.toml", "server = [{server_type = 'cpu', available = -1}]", "server 1: available is -1"),
    ("s.toml", "[[server]\n", "cannot be read: "),
    ("s.toml", "[[servers]]\nserver_type = 'cpu'", "holds no array 'server'"),
    ("s.toml", "name = 1\n[[server]]\nserver_type = 'cpu'", "unknown field 'name': known is server"),
    ("s.toml", "server = [1]", "server: must hold tables only"),
    ("s.json", '[{"server_type": "cpu", "available": true}]', "server 1: available is True"),
    ("s.json", '[{"server_type": "cpu", "available": 1, "available": 2}]', "field 'available' is there twice"),
    ("s.json", '[{"server_type": "cpu", "available": NaN}]', "server 1: available is nan"),
    ("s.json", "[3]", "server 1: is 3: must be an object"),
    ("s.json", "[", "cannot be read: "),
    (
        "s.json",
        '[\n {"server_type": "{[\\"", \n"available": 1}, {\n}]',
        "s.json: line 3, server 2: server_type is missing",
    ),
    ("s.json", '{"server":\n[{"server_type": "cpu", "available": -1}]}', "s.json: line 2, server 1: available is -1"),
    (
        "s.json",
        '[\n{"server_type": "cpu", "available" 1}]',
        "cannot be read: Expecting ':' delimiter: line 2 column 36",
    ),
    *(
        pytest.param(name, text, f"{name}: cannot be read: {message}", id=f"{message} {name}")
        for message, texts in {
            "it holds a whole number of more than 4,300 digits": (f"[{'9' * 5000}]", f"a = {'9' * 5000}"),
            "it is nested too deep": ("[" * 100_000, "a = " + "[" * 100_000),
        }.items()
        for name, text in zip(("s.json", "s.toml"), texts, strict=True)
    ),
    ("s.json", "[]", "holds no server entries"),
    ("s.yaml", "", "ends in '.yaml': must be a .csv, .toml or .json file"),
    ("none.csv", None, "cannot be read: No such file"),
]


@pytest.mark.parametrize(("name", "text", "message"), BAD_TYPED)
def test_bad_toml_and_json_files_are_named_by_entry_and_field(files, capsys, name, text, message):
    if text is not None:
        files(name, text)
    found = fault(capsys, files=("efficiency.csv", name, "loads.csv"))
    assert message in found
    assert name in found


def test_a_server_type_without_tuples_is_named_where_they_are_missing(files, capsys):
    files("servers.csv", f"{SERVERS}tpu,1,1\n")
    assert fault(capsys) == "efficiency.csv: rm1 on tpu is missing: add it, with a qps of 0 if tpu cannot serve rm1"


@pytest.mark.usefixtures("files")
def test_files_that_are_no_text_are_refused(capsys, tmp_path):
    (tmp_path / "loads.csv").write_bytes(b"time_s,rm1\n\xff\xfe,1\n")
    assert "loads.csv: cannot be read" in fault(capsys)
    assert "loads.txt: ends in '.txt': must be a .csv, .toml or .json file" in fault(
        capsys, files=("efficiency.csv", "servers.csv", "loads.txt")
    )


BAD_LOADS = [
    ("l.json", '[{"time_s": 0, "rm1": 1}, {"time_s": 600}]', "line 1, load 2: rm1 is missing"),
    (
        "l.json",
        '[{"time_s": 0}, {"time_s": 600, "rm1": 1}]',
        "line 1, load 2: rm1 is there, but not in the first entry",
    ),
    ("l.json", '[{"time_s": 0, "rm1": null}]', "line 1, load 1: rm1 is empty: the load has a gap"),
    ("l.json", '[{"time_s": null, "rm1": 1}]', "line 1, load 1: time_s is None: must be seconds or an ISO 8601"),
    ("l.json", '[{"time_s": true, "rm1": 1}]', "line 1, load 1: time_s is True: must be seconds or an ISO 8601"),
    ("l.json", '[{"time_s": 0, "rm9": 1}]', "line 1, load 1: model 'rm9' has no efficiency tuples"),
    ("l.json", '{"loads": []}', "holds no array 'load'"),
    ("l.json", "[]", "holds no load entries"),
    (
        "l.toml",
        "[[load]]\ntime_s = 00:10:00\nrm1 = 1",
        "line 1, load 1: time_s is datetime.time(0, 10): must be seconds",
    ),
    (
        "l.toml",
        "[[load]]\ntime_s = 2026-03-29T01:00:00\nrm1 = 1\n[[load]]\ntime_s = 2026-03-29T02:00:00Z\nrm1 = 1\n",
        "line 4, load 2: time_s 2026-03-29 02:00:00+00:00 is a date with a UTC offset, but 2026-03-29 01:00:00 at",
    ),
    ("l.toml", "[[load]]\ntime_s = 0\nmodel = 'rm1'\n", "line 1, load 1: model 'model' has no efficiency tuples"),
]


@pytest.mark.parametrize(("name", "text", "message"), BAD_LOADS)
def test_bad_loads_in_toml_and_json_are_named_by_entry_and_field(files, capsys, name, text, message):
    files(name, text)
    found = fault(capsys, "--over-provision", "0", files=("efficiency.csv", "servers.csv", name))
    assert message in found
    assert name in found


def test_a_history_without_a_model_is_named(files, capsys):
    files("history.json", '[{"time_s": 0, "rm1": 1}, {"time_s": 600, "rm1": 1}]')
    assert fault(capsys, "--history", "history.json") == (
        "history.json: line 1, load 1: rm2 is missing, of which there are loads to plan for"
    )


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--minimise", "carbon"], "must be power or price"),
        (["--plan", "loads.csv"], "loads.csv is read: write to another file"),
        (["--page", "./servers.csv"], "servers.csv is read"),
        (["--plan", "x.html"], "x.html is written by --plan too"),
        (["--over-provision", "nan"], "--over-provision: nan: must be at least 0"),
        (["--quantile", "2"], "--quantile: 2: must lie between 0 and 1"),
        (["--quantile", "nan"], "--quantile: nan: must lie between 0 and 1"),
        (["--set-up-s", "-1"], "--set-up-s: -1: must be at least 0"),
        (["--gap", "nan"], "--gap: nan: must be at least 0"),
        (["--time-limit-s", "inf"], "--time-limit-s: inf: must be at least 0"),
        (["--interval-s", "0"], "--interval-s: 0: must be a finite number of more than 0"),
    ],
)
def test_wrong_usage(capsys, arguments, message):
    assert message in wrong_usage(capsys, *arguments)


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "provision", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert "Example: hebe plan provision efficiency.csv servers.csv loads.csv" in out
