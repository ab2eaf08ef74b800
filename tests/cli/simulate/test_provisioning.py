"""`hebe simulate` of a day that `hebe plan provision` planned, as a user runs it."""

import contextlib
import io
import json
import runpy
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w

from hebe.capacity import provisioning_simulation
from hebe.cli.main import main
from hebe.simulation.fleet import query_stream
from tests.cli.test_planning_page import DOCS, SCRIPT
from tests.examples.pool_files import write
from tests.examples.server_profiles import ON_HOST, profile_file

TIMES = [
    "model,server_type,items,ms_0,ms_1,ms_2",
    "a,slow,1,50,10,10", "a,slow,100,50,10,10", "a,fast,1,50,5,5", "a,fast,100,50,5,5",
    "b,slow,1,50,20,20", "b,slow,100,50,20,20", "b,fast,1,50,8,8", "b,fast,100,50,8,8",
]  # fmt: skip
"""Constant times, so that servers answer 100, 200, 50 and 125 queries/s; the first sample is left out."""
LOAD = ["--sla-ms", 100, "--percentile", 95, "--sizes", "fixed:10"]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def planned_day(tmp_path_factory):
    """The folder of a plan from a file of throughputs, at 0.8 of what servers can do, and its service times."""
    folder = tmp_path_factory.mktemp("day")
    write(folder / "times.csv", TIMES)
    write(
        folder / "efficiency.csv",
        ["model,server_type,qps,power_watts", "a,slow,80,100", "a,fast,160,150", "b,slow,40,100", "b,fast,100,150"],
    )
    write(folder / "servers.csv", ["server_type,available", "slow,20", "fast,3"])
    write(folder / "loads.csv", ["time_s,a,b", "0,300,100", "60,600,0", "120,500,300"])
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        command("plan", "provision", "efficiency.csv", "servers.csv", "loads.csv", "--interval-s", 60,
                "--over-provision", 0, "--time-limit-s", 0, "--plan", "day.toml")  # fmt: skip
    return folder


@pytest.fixture
def day(planned_day, tmp_path):
    """The plan in a folder of the test's own, which may change it."""
    shutil.copytree(planned_day, tmp_path, dirs_exist_ok=True)
    return tmp_path / "day.toml"


def command(*arguments):
    with pytest.raises(SystemExit) as exit_:
        main(list(map(str, arguments)))
    return exit_.value.code or 0


def run(capsys, *arguments):
    code = command("simulate", *arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def simulated(capsys, *arguments):
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out.splitlines()[-1]), " ".join(err.split())


def test_a_plan_that_holds_its_targets(capsys, day):
    result, shown = simulated(capsys, "times.csv", "--plan", day, *LOAD, "--queries", 500)
    assert result["intervals_met"] == 1.0
    assert result["missed"] == []
    assert {name: model["attainment"]["mean"] > 0.99 for name, model in result["models"].items()} == {
        "a": True, "b": True,
    }  # fmt: skip
    # Where there is no load there is nothing to meet.
    assert result["models"]["b"]["attainment"]["by_interval"][1] is None
    assert result["models"]["b"]["tail_ms"][1] is None
    assert "in 5 of 5 intervals of a model (100.0%)" in shown
    written = tomllib.loads(day.read_text())
    for kind, figures in result["server_types"].items():
        servers = [sum(of.get(kind, 0) for of in one["servers"].values()) for one in written["interval"]]
        assert figures["servers"] == servers
    # Servers answer a hundredth of a second's work each: what they work is what was asked for.
    served = {"a": {"slow": 100, "fast": 200}, "b": {"slow": 50, "fast": 125}}
    most = sum(count * served[m][k] for m, of in written["interval"][1]["servers"].items() for k, count in of.items())
    used = [figures["utilisation"][1] for figures in result["server_types"].values() if figures["servers"][1]]
    assert min(used) - 0.05 <= 600 / most <= max(used) + 0.05


def test_a_load_factor_that_overloads_shows_and_ends(capsys, day):
    result, shown = simulated(
        capsys, "times.csv", "--plan", day, *LOAD, "--queries", 3000, "--load-factor", 1.6, "--page", "sim.html"
    )
    assert result["load_factor"] == 1.6
    assert result["intervals_met"] < 0.3
    assert result["models"]["a"]["load_qps"] == [480, 960, 800]
    assert result["models"]["a"]["attainment"]["least"] < 0.5
    worst = result["missed"][0]
    assert worst["load_qps"] > worst["capacity_qps"]
    for words in ("missed at", "00:01", "load/capacity", "Planned load times 1.6"):
        assert words in shown
    page = Path("sim.html").read_text()
    assert page.count("<svg") == 2
    for words in ("Intervals that miss their SLA target", "SLA attainment", "Utilisation by server type", ">p95<"):
        assert words in page


def test_a_plan_is_written_and_read_through_a_link(capsys, tmp_path):
    profile_file(tmp_path / "profiles" / "slow.json", server="slow")
    write(tmp_path / "servers.csv", ["server_type,available", "slow,20"])
    write(tmp_path / "loads.csv", ["time_s,m", "0,30", "60,60"])
    (tmp_path / "plans").mkdir()
    (tmp_path / "current.toml").symlink_to(tmp_path / "plans" / "today.toml")
    files = ["profiles", "servers.csv", "loads.csv"]
    assert (
        command("plan", "provision", *files, "--interval-s", 60, "--over-provision", 0, "--plan", "current.toml") == 0
    )
    assert (tmp_path / "current.toml").is_symlink()
    capsys.readouterr()
    by_link, direct = (
        simulated(capsys, "--plan", path, "--queries", 400)[0] for path in ("current.toml", "plans/today.toml")
    )
    assert by_link == direct


def test_a_sample_holds_bursts(capsys, day):
    """The calm part of a period, in which 500 queries have come before it ends, is served with ease."""
    burst = ["--queries", 500, "--arrivals", "burst:5:2:12"]
    result, shown = simulated(capsys, "times.csv", "--plan", day, *LOAD, *burst)
    assert result["intervals_met"] < 0.5
    assert result["queries"] == 500
    # Whole periods of 12 s: 300, 600 and 500 queries/s of a, 100 and 300 of b.
    assert result["queries_sent"] == pytest.approx(12 * 1800, rel=0.05)
    assert "500 queries, or whole periods of them, for each model" in shown


@pytest.mark.parametrize(
    ("arrivals", "words"),
    [("burst:5:1:61", "repeat every 61 s, and the plan's intervals last 60 s"),
     ("burst:5:1:50", "up to 3,000,000 queries of a model arrive, more than 2,000,000")],
)  # fmt: skip
def test_arrivals_that_no_sample_can_hold_are_refused(capsys, day, arrivals, words):
    options = ["times.csv", "--plan", day, *LOAD, "--load-factor", 100, "--arrivals", arrivals]
    code, _, err = run(capsys, *options)
    assert code == 1
    assert words in " ".join(err.split())


def test_the_same_seed_sends_the_same_queries_to_every_policy(capsys, day):
    options = ["times.csv", "--plan", day, *LOAD, "--queries", 400]
    first, again, other = (simulated(capsys, *options, "--seed", seed)[0] for seed in (1, 1, 2))
    assert first == again
    assert first["models"] != other["models"]
    for policy in ("matching", "clockwork", "threshold:50"):
        result, _ = simulated(capsys, *options, "--policy", policy)
        assert result["policy"]["name"] == policy.partition(":")[0]
        assert result["models"]["a"]["load_qps"] == first["models"]["a"]["load_qps"]


def test_the_fastest_idle_server_is_taken(capsys, day):
    """Of the slow and the fast servers of model a, hardly ever busy, the fast ones answer, in 5 ms."""
    assert set(tomllib.loads(day.read_text())["interval"][1]["servers"]["a"]) == {"slow", "fast"}
    result, _ = simulated(capsys, "times.csv", "--plan", day, *LOAD, "--queries", 300, "--load-factor", 0.01)
    assert result["models"]["a"]["tail_ms"][1] == pytest.approx(5.0)


def test_all_runs_of_an_interval_count(capsys, day):
    options = ["times.csv", "--plan", day, *LOAD, "--sla-ms", 40, "--queries", 300, "--load-factor", 1.3]
    one, other = (simulated(capsys, *options, "--seed", seed)[0] for seed in (0, 1))
    assert one["models"] != other["models"]
    both, shown = simulated(capsys, *options, "--seeds", 2)
    expected = [
        (a + b) / 2
        for a, b in zip(*(made["models"]["a"]["attainment"]["by_interval"] for made in (one, other)), strict=True)
    ]
    assert both["models"]["a"]["attainment"]["by_interval"] == pytest.approx(expected)
    assert "300 queries for each model in each of 3 intervals, 2 times." in shown


def late(content):
    """All of model a's servers of the second interval are late."""
    content["set_up_s"] = 30.0
    content["interval"][1]["late"] = {"a": content["interval"][1]["servers"]["a"]}


def none(content):
    """Model a has no servers in the second interval."""
    content["interval"][1]["servers"]["a"] = {}


@pytest.mark.parametrize(("spoil", "attainment"), [(late, 0.5), (none, 0.0)])
def test_servers_that_are_missing_or_late_leave_queries_unanswered(capsys, day, spoil, attainment):
    content = tomllib.loads(day.read_text())
    spoil(content)
    day.write_text(tomli_w.dumps(content))
    result, shown = simulated(capsys, "times.csv", "--plan", day, *LOAD, "--queries", 2000)
    assert result["models"]["a"]["attainment"]["by_interval"][1] == pytest.approx(attainment, abs=0.02)
    assert result["models"]["a"]["tail_ms"][1] is None
    assert [(one["model"], one["start_s"]) for one in result["missed"]] == [("a", 60)]
    assert "not answered" in shown
    assert ("servers are late" in shown) == (spoil is late)


def test_servers_that_are_late_for_longer_than_an_interval_are_late_in_the_next_one_too(capsys, day):
    """The second interval's servers of model a are set up 30 s into the third one, in which no more are started."""
    content = tomllib.loads(day.read_text())
    late(content)
    content["set_up_s"] = 90.0
    content["interval"][2]["servers"]["a"] = content["interval"][1]["servers"]["a"]
    day.write_text(tomli_w.dumps(content))
    result, shown = simulated(capsys, "times.csv", "--plan", day, *LOAD, "--queries", 2000)
    assert result["models"]["a"]["attainment"]["by_interval"] == pytest.approx([1.0, 0.0, 0.5], abs=0.02)
    servers = sum(content["interval"][1]["servers"]["a"].values())
    assert [(one["start_s"], one["late_servers"]) for one in result["missed"]] == [(60, servers), (120, servers)]
    assert f"{servers} servers are late: they join 90 s after their interval begins" in shown


def test_of_a_changed_plan_the_servers_count_and_not_its_figures(capsys, day):
    content = tomllib.loads(day.read_text())
    planned = content["interval"][1]["capacity_qps"]["a"]
    content["interval"][1]["servers"]["a"] = {"fast": 1}
    day.write_text(tomli_w.dumps(content))
    result, _ = simulated(capsys, "times.csv", "--plan", day, *LOAD, "--queries", 300)
    assert planned >= 600
    assert result["models"]["a"]["capacity_qps"][1] == 160
    assert next(one for one in result["missed"] if one["start_s"] == 60)["capacity_qps"] == 160


def test_a_model_that_never_has_a_server_is_answered_by_nobody(capsys, day):
    content = tomllib.loads(day.read_text())
    for interval in content["interval"]:
        interval["servers"].pop("b")
    day.write_text(tomli_w.dumps(content))
    write(day.parent / "more.csv", [*TIMES, "b,other,1,50,9,9", "b,other,100,50,9,9"])  # a type that the plan lacks
    result, more = (
        simulated(capsys, times, "--plan", day, *LOAD, "--queries", 300)[0] for times in ("times.csv", "more.csv")
    )
    assert result["models"]["b"]["attainment"]["mean"] == 0.0
    assert result["models"]["a"]["attainment"]["mean"] > 0.99
    assert more["models"] == result["models"]
    assert more["server_types"] == result["server_types"]
    assert result["server_types"]["slow"]["mean_utilisation"] > 0.1


@pytest.mark.parametrize("arrivals", ["poisson", "constant"])
def test_a_query_that_is_too_large_is_told_before_the_day_is_simulated(capsys, day, monkeypatch, arrivals):
    """Those that the share of sizes is told from are many, and the queries of a day more."""

    def never(_case):
        raise AssertionError("nothing is simulated")

    monkeypatch.setattr(query_stream, "SIZE_DRAWS", 1)
    sizes = ",".join(["10"] * 99 + ["101"])
    options = ["times.csv", "--plan", day, *LOAD[:-1], f"quantiles:{sizes}", "--queries", 500, "--arrivals", arrivals]
    with monkeypatch.context() as patched:
        patched.setattr(provisioning_simulation, "run_stretch", never)
        code, _, err = run(capsys, *options)
    assert code == 1
    assert "has queries of 101 items, but service times reach to 100 items" in " ".join(err.split())
    assert simulated(capsys, *options[:7], "--sizes", "normal:40:13", "--queries", 500)[0]["intervals_met"] == 1.0


def test_a_sample_that_is_too_short_for_overload_is_said(capsys, day):
    _, shown = simulated(capsys, "times.csv", "--plan", day, *LOAD, "--queries", 100)
    assert "At the peak 100 queries of a last 1.667 times its SLA, so that a slight overload does not show" in shown
    assert "give --queries 2000." in shown
    assert "so that a slight" not in simulated(capsys, "times.csv", "--plan", day, *LOAD, "--queries", 2000)[1]


def test_from_profiles_nothing_more_is_needed(capsys, tmp_path):
    """Profile, plan, prove: the SLA target is the profiles', and so is the number of workers."""
    for model, workers in (("a", 2), ("b", 4)):
        lanes = (replace(ON_HOST, workers=workers),)
        profile_file(tmp_path / "profiles" / f"{model}.json", model=model, lanes=lanes)
    write(tmp_path / "servers.csv", ["server_type,available", "cpu,20"])
    write(tmp_path / "loads.csv", ["time_s,a,b", "0,500,1000", "600,900,1500"])
    assert command("plan", "provision", "profiles", "servers.csv", "loads.csv", "--over-provision", 0,
                   "--plan", "plans/day.toml") == 0  # fmt: skip
    capsys.readouterr()
    assert tomllib.loads(Path("plans/day.toml").read_text())["made_from"]["efficiency"] == "../profiles"
    options = ["--plan", "plans/day.toml", "--sizes", "quantiles:5,20,60", "--queries", 500]
    result, _ = simulated(capsys, *options)
    for model in ("a", "b"):
        assert (result["models"][model]["sla_ms"], result["models"][model]["percentile"]) == (20.0, 95.0)
        assert result["models"][model]["attainment"]["least"] > 0.99
    # Queries of 5 to 60 items take 1.5 to 7 ms of a worker's time: of 4 x 10 and 2 x 9 workers some share.
    assert 0.1 < result["server_types"]["cpu"]["mean_utilisation"] < 0.5
    overloaded, _ = simulated(capsys, *options, "--load-factor", 8)
    assert overloaded["models"]["a"]["attainment"]["mean"] < 0.5


def test_the_examples_of_the_documentation_plan_and_prove_a_day(capsys, tmp_path):
    for name, content in runpy.run_path(str(SCRIPT))["example_files"]().items():
        (tmp_path / name).write_text(content)
    commands = [
        line.split()[1:]
        for page in ("planning.md", "simulation.md")
        for line in (DOCS / page).read_text().splitlines()
        if line.startswith("hebe plan provision") or (line.startswith("hebe simulate") and "day" in line)
    ]
    assert commands[0][:2] == ["plan", "provision"]
    assert len(commands) == 3
    assert command(*commands[0]) == 0
    capsys.readouterr()
    planned, overloaded = (simulated(capsys, *words[1:])[0] for words in commands[1:])
    assert planned["intervals_met"] == 1.0
    assert set(planned["models"]) == {"ranker", "filter"}
    assert 0.4 < planned["server_types"]["new"]["mean_utilisation"] < 0.8
    assert overloaded["intervals_met"] < 1.0


FAULTS = {
    "no times": ([], "efficiency.csv, which it was made from, has throughputs and no service times: give files of"),
    "no SLA": (["times.csv"], "no SLA target of a: give --sla-ms MS for all models, or MODEL=MS,MODEL=MS"),
    "SLA of one model": (["times.csv", "--sla-ms", "a=60", "--sizes", "fixed:10"], "no SLA target of b: give --sla-ms"),
    "SLA of no model": (["times.csv", "--sla-ms", "a=60,x=9"], "--sla-ms: the plan has no model x: there are a, b"),
    "a type is missing": (
        ["slow.csv", "--sla-ms", 60, "--sizes", "fixed:10"],
        "slow.csv: no service times of a on fast, which the plan uses for a",
    ),
    "too few queries": (["times.csv", *LOAD, "--queries", 10], "--queries is 10: must lie in 20.."),
}


@pytest.mark.parametrize(("options", "message"), FAULTS.values(), ids=FAULTS)
def test_bad_input_is_one_line_that_names_it(capsys, day, options, message):
    write(day.parent / "slow.csv", [line for line in TIMES if "fast" not in line])
    code, out, err = run(capsys, *options, "--plan", day, "--json")
    assert code == 1
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert message in json.loads(out)["error"]


def test_a_model_with_more_servers_than_are_simulated_is_refused(capsys, day):
    content = tomllib.loads(day.read_text())
    content["interval"][1]["servers"]["a"]["slow"] = 20_000
    content["server"][0]["available"] = 30_000
    day.write_text(tomli_w.dumps(content))
    code, _, err = run(capsys, "times.csv", "--plan", day, *LOAD)
    assert code == 1
    assert "day.toml: interval 2: a has 20," in err
    assert "at most 10,000 are simulated" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pool", "slow=1"], "Invalid value for --pool: does not fit the plan in"),
        (["--rate", 10], "the plan says each model's load: give --load-factor"),
        (["--find-qps"], "the plan says each model's load: give --load-factor"),
        (["--model", "a"], "all models of the plan are simulated"),
        (["--partitions", 2], "it is for a pool"),
        (["--load-factor", 0], "more than 0"),
        (["--seeds", 0], "at least 1"),
        (
            ["--policy", "splitting"],
            "--policy: 'splitting': must be one of fcfs, threshold:ITEMS, clockwork, matching for the plan of a day",
        ),
        (["--policy", "threshold"], "--policy: 'threshold': must be one of"),
        (["--arrivals", "often"], "must be one of poisson"),
        (["--page", "times.csv"], "is read: write to another file"),
    ],
)
def test_options_that_do_not_fit_are_wrong_usage(capsys, day, options, message):
    code, _, err = run(capsys, "times.csv", "--plan", day, *LOAD, *options)
    assert code == 2
    assert message in " ".join(err.replace("│", " ").split())
