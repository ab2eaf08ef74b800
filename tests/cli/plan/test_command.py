"""`hebe plan provision`, as a user runs it: files in, a plan file and a page out, and every fault named."""

import json
import tomllib
from dataclasses import replace

import pytest

from hebe.cli.main import main
from hebe.profile import EfficiencyTuple
from hebe.profiling.files.server_profile import write_server_profile
from tests.examples.profiles import SERVER, profile
from tests.examples.provisioning_files import EFFICIENCY, HOURS, SERVERS, diurnal, wide


@pytest.fixture
def files(write):
    """A directory with the three files; `write` changes one of them."""
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


def test_the_same_plan_from_toml_and_json_and_one_line_for_each_model(files, capsys, tmp_path):
    def content(name):
        """All but the names of the files that it was made from."""
        plan = tomllib.loads((tmp_path / name).read_text())
        assert set(plan.pop("made_from")) >= {"efficiency", "servers", "loads"}
        return plan

    files("loads.csv", wide(3600.0))
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
    lines = [line.split(",") for line in wide(3600.0).splitlines()[1:]]
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


def test_an_older_plan_is_replaced_only_by_a_whole_one(files, capsys, tmp_path):
    planned(capsys)
    before = (tmp_path / "day.toml").read_text()
    files("loads.csv", "time_s,rm1\n0,nan\n")
    fault(capsys)
    assert (tmp_path / "day.toml").read_text() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "day.html", "day.toml", "efficiency.csv", "loads.csv", "servers.csv",
    ]  # fmt: skip


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--minimise", "carbon"], "must be power or price"),
        (["--plan", "loads.csv"], "loads.csv is read: write to another file"),
        (["--page", "./servers.csv"], "servers.csv is read"),
        (["--plan", "x.html"], "x.html is written by --plan too"),
        (["--plan", "."], "--plan: .: nothing can be written to . (Is a directory)"),
        (["--over-provision", "nan"], "--over-provision: nan: must be at least 0"),
        (["--quantile", "2"], "--quantile: 2: must lie between 0 and 1"),
        (["--quantile", "nan"], "--quantile: nan: must lie between 0 and 1"),
        (["--over-provision", "0.1", "--history", "loads.csv"], "--history: the rate is given by --over-provision"),
        (["--over-provision", "0", "--quantile", "0.9"], "--quantile: the rate is given by --over-provision"),
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
