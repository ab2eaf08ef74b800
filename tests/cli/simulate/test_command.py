"""`hebe simulate` as a user runs it, on generated files."""

import json
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace

import pytest
import tomli_w

from hebe.cli.main import main
from hebe.simulation.fleet.policy_choice import PolicyKind
from hebe.spec import SlaTarget
from tests.examples.pool_files import FROM_HERE, WITHOUT_TORCH, plan_pool, samples, times_file, write
from tests.examples.server_profiles import ON_HOST, profile_file

POOL = ["--pool", "gpu=1,cpu=4"]
LOAD = ["--sizes", "quantiles:5,10,20,40,100", "--sla-ms", "12", "--queries", "400", "--seeds", "2"]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_:
        main(["simulate", *map(str, arguments)])
    captured = capsys.readouterr()
    return exit_.value.code or 0, captured.out, captured.err


def simulated(capsys, *arguments):
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out.splitlines()[-1]), err


def test_at_a_low_rate_latency_is_the_service_time(capsys, tmp_path):
    """One server, nobody waits: what 10 items take is what a query of 10 items takes."""
    result, shown = simulated(
        capsys, times_file(tmp_path), "--pool", "gpu=1", "--policy", "fcfs", "--sizes", "fixed:10", "--sla-ms", 12,
        "--queries", 400, "--seeds", 2, "--rate", 1,
    )  # fmt: skip
    expected_ms = 4.0 + 0.02 * 10
    assert result["latency_ms"]["p50"]["value"] == pytest.approx(expected_ms, rel=0.06)
    assert result["attainment"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert result["utilisation"]["gpu"] == pytest.approx(expected_ms / 1e3, rel=0.2)
    assert result["throughput_qps"]["value"] == pytest.approx(1.0, rel=0.2)
    for words in ("latency p50", "SLA attainment", "100.00%", "utilisation, 1 x gpu", "2 runs of 400 queries each"):
        assert words in shown


def test_an_overloaded_pool_misses_and_answers_what_it_can(capsys, tmp_path):
    result, shown = simulated(
        capsys, times_file(tmp_path), "--pool", "gpu=2", "--policy", "fcfs", "--sizes", "fixed:50", "--sla-ms", 12,
        "--queries", 2000, "--seeds", 1, "--rate", 4000,
    )  # fmt: skip
    assert result["attainment"]["value"] < 0.1
    assert result["throughput_qps"]["value"] == pytest.approx(2 / 5e-3, rel=0.06)
    assert result["utilisation"]["gpu"] == pytest.approx(1.0, abs=0.01)
    assert "missed" in shown


@pytest.mark.parametrize("policy", ["fcfs", "matching", "splitting"])
def test_profiles_that_hebe_profile_wrote(capsys, tmp_path, policy):
    """A server works at as many queries as it has workers: two servers of one do the same."""
    two, one = (
        profile_file(tmp_path / f"{workers}.json", lanes=(replace(ON_HOST, workers=workers),)) for workers in (2, 1)
    )
    results = [
        simulated(capsys, times, "--pool", pool, *LOAD, "--policy", policy, "--rate", 300)[0]
        for times, pool in ((two, "cpu=2"), (one, "cpu=4"), (one, "cpu=2"))
    ]
    for measure in ("latency_ms", "attainment", "throughput_qps", "utilisation"):
        assert results[0][measure] == results[1][measure]
    assert results[0]["pool"] == {"cpu": 2}
    assert results[0]["utilisation"]["cpu"] < 0.7 * results[2]["utilisation"]["cpu"]
    code, _, err = run(capsys, two, "--pool", "cpu=6000", *LOAD, "--rate", 300)
    assert code == 1
    assert "the pool has 12,000 workers: at most 10,000 are simulated" in err


@pytest.mark.parametrize("policy", ["fcfs", "threshold", "threshold:30", "clockwork", "matching", "splitting"])
def test_every_policy_runs(capsys, tmp_path, policy):
    result, _ = simulated(capsys, times_file(tmp_path), *POOL, *LOAD, "--policy", policy, "--rate", 300)
    assert result["policy"]["name"] == policy.partition(":")[0]
    assert result["throughput_qps"]["value"] > 250
    assert set(result["utilisation"]) == {"gpu", "cpu"}


def test_finds_the_largest_rate_at_which_the_sla_holds(capsys, tmp_path):
    options = [times_file(tmp_path), *POOL, *LOAD, "--percentile", 95, "--policy", "fcfs"]
    found, _ = simulated(capsys, *options, "--find-qps")
    qps = found["find_qps"]["value"]
    assert found["find_qps"]["low"] <= qps <= found["find_qps"]["high"]
    assert found["latency_ms"]["p95"]["value"] <= 12
    below, _ = simulated(capsys, *options, "--rate", 0.8 * qps)
    above, _ = simulated(capsys, *options, "--rate", 1.3 * qps)
    assert below["attainment"]["value"] > 0.95 > above["attainment"]["value"]


def test_a_rate_that_no_pool_holds_is_said(capsys, tmp_path):
    """Queries of 100 items take longer than the SLA on the only type, whole."""
    result, shown = simulated(
        capsys, times_file(tmp_path), "--pool", "cpu=2", "--policy", "fcfs", "--find-qps",
        *LOAD, "--sizes", "quantiles:10,100",
    )  # fmt: skip
    assert result["find_qps"]["value"] == 0
    assert "latency_ms" not in result
    assert "No rate keeps p99 within 12 ms" in shown


@pytest.mark.parametrize("arrivals", ["poisson", "constant", "burst:3:0.1:0.4", "trace:load.csv", "trace:load.csv:120"])
def test_arrivals(capsys, tmp_path, arrivals):
    write(tmp_path / "load.csv", ["time_s,rate_qps", "0,1", "60,4", "120,1"])
    result, _ = simulated(capsys, times_file(tmp_path), *POOL, *LOAD, "--rate", 200, "--arrivals", arrivals)
    assert result["throughput_qps"]["value"] == pytest.approx(200, rel=0.3)
    assert result["arrivals"] == arrivals


def test_gaps_of_a_recorded_load_are_told(capsys, tmp_path):
    write(tmp_path / "gaps.csv", ["time_s,count", "0,60", "60,90", "240,60", "300,60"])
    result, shown = simulated(
        capsys, times_file(tmp_path), *POOL, *LOAD, "--rate", 200, "--arrivals", "trace:gaps.csv:240"
    )
    (remark,) = [remark for remark in result["remarks"] if "gaps.csv" in remark]
    assert remark.startswith(
        "gaps.csv: line 4: time_s 240 is 180 s after the line before, others 60 s: a gap: no query"
    )
    assert remark in shown


def test_the_queries_told_are_those_sent(capsys, tmp_path):
    """At 200 queries/s a period has 500 of them, and whole ones are sent."""
    burst = ["--arrivals", "burst:2:1:2.5", "--queries", 2600]
    result, shown = simulated(capsys, times_file(tmp_path), *POOL, *LOAD, "--rate", 200, *burst)
    assert result["queries"] == pytest.approx(3000, rel=0.06)
    assert "2 runs of 2,600" not in shown


def test_uneven_arrivals_lower_the_largest_rate(capsys, tmp_path):
    options = [times_file(tmp_path), *POOL, *LOAD, "--policy", "fcfs", "--percentile", 90, "--find-qps"]
    options += ["--queries", 2000, "--seeds", 1]
    even, burst = (simulated(capsys, *options, "--arrivals", form)[0] for form in ("constant", "burst:6:0.3:1"))
    assert burst["find_qps"]["value"] < 0.8 * even["find_qps"]["value"]


def test_a_search_covers_a_period_of_the_arrivals(capsys, tmp_path):
    """A run that ends before the first burst would find too much."""
    options = [times_file(tmp_path), *POOL, *LOAD, "--arrivals", "burst:6:1:10", "--find-qps"]
    code, _, err = run(capsys, *options)
    assert code == 1
    assert "--queries is 400: must lie in " in err
    assert "a period of the arrivals" in err


def test_the_same_seed_sends_the_same_queries(capsys, tmp_path):
    options = [times_file(tmp_path), *POOL, *LOAD, "--rate", 300]
    first, again, other = (simulated(capsys, *options, "--seed", seed)[0] for seed in (1, 1, 5))
    assert first == again
    assert first["latency_ms"] != other["latency_ms"]


def test_a_page_has_the_latency_distribution_and_utilisation(capsys, tmp_path):
    code, out, err = run(
        capsys, times_file(tmp_path), *POOL, *LOAD, "--rate", 300, "--page", tmp_path / "pages" / "run.html"
    )
    assert code == 0, err
    assert "Page:" in out
    page = (tmp_path / "pages" / "run.html").read_text()
    assert page.count("<svg") == 3
    for words in ("Simulation", "Latency by percentile", "Utilisation", "4 x cpu", "SLA attainment"):
        assert words in page


def test_the_path_of_a_page_is_told_as_it_is(capsys, tmp_path):
    page = tmp_path / "pages[" / "b] [draft].html"
    _, said = simulated(capsys, times_file(tmp_path), *POOL, *LOAD, "--rate", 300, "--page", page)
    assert f"Page: {page}" in said


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A folder with the files that a plan was made from, and the plan in a folder of its own."""
    folder = tmp_path_factory.mktemp("planned")
    plan_pool(folder, folder / "plans" / "plan.toml", "--no-simulate")
    return folder


@pytest.fixture
def plan(planned, tmp_path):
    """One of the test's own."""
    shutil.copytree(planned, tmp_path, dirs_exist_ok=True)
    return tmp_path / "plans" / "plan.toml"


def test_a_plan_says_pool_policy_sla_sizes_and_files(capsys, plan):
    written = tomllib.loads(plan.read_text())
    result, _ = simulated(capsys, "--plan", plan, "--rate", 300, "--queries", 400, "--seeds", 1)
    assert result["pool"] == {one["server_type"]: one["count"] for one in written["server"] if one["count"]}
    assert result["policy"] | {"partitions": result["partitions"]} == written["policy"]
    assert (result["sla_ms"], result["percentile"]) == (12.0, 95.0)
    assert result["sizes"] == "quantiles:5,10,20,40,100"


def test_options_change_what_a_plan_says(capsys, plan):
    result, _ = simulated(
        capsys, "--plan", plan, "--rate", 300, "--queries", 400, "--seeds", 1, "--pool", "gpu=2", "--policy", "fcfs",
        "--sla-ms", 20, "--percentile", 90, "--sizes", "fixed:10",
    )  # fmt: skip
    assert (result["pool"], result["policy"]) == ({"gpu": 2}, {"name": "fcfs"})
    assert (result["sla_ms"], result["percentile"], result["sizes"]) == (20.0, 90.0, "fixed:10")


def test_a_plan_may_be_a_link(capsys, plan, tmp_path):
    link = tmp_path / "current.toml"
    link.symlink_to(plan)
    by_link, direct = (simulated(capsys, "--plan", path, "--rate", 300)[0] for path in (link, plan))
    assert by_link == direct


@pytest.mark.parametrize(("gpus", "smalls"), [(1, 10), (2, 0)])
def test_a_plan_with_other_counts_is_that_pool(capsys, plan, gpus, smalls):
    """The plan has no gpu, whose time is worth 0 in it."""
    planned = tomllib.loads(plan.read_text())
    assert [(entry["server_type"], entry["count"] > 0) for entry in planned["server"]] == [
        ("gpu", False), ("cpu", False), ("small", True),
    ]  # fmt: skip
    planned["server"][0]["count"], planned["server"][2]["count"] = gpus, smalls
    plan.write_text(tomli_w.dumps(planned))
    pool = ["--pool", f"gpu={gpus},small={smalls}"]
    changed, asked = (simulated(capsys, "--plan", plan, "--rate", 300, *options)[0] for options in ([], pool))
    assert changed["policy"]["prices_qps"]["gpu"] > 0
    assert changed == asked


def test_the_plan_s_prediction_stands_beside_what_is_found(capsys, plan):
    with_prediction = plan.read_text().replace("[predicted]", "[predicted]\nqps = 1234.0")
    plan.write_text(with_prediction)
    _, shown = simulated(capsys, "--plan", plan, "--find-qps", "--queries", 400, "--seeds", 1)
    assert "The plan predicted 1,234 queries/s." in shown


@pytest.mark.parametrize(
    "other",
    [("--sla-ms", 24), ("--percentile", 90), ("--sizes", "fixed:10"), ("--policy", "fcfs"), ("--arrivals", "constant")],
)
def test_a_prediction_for_something_else_is_not_held_against_what_is_found(capsys, plan, other):
    plan.write_text(plan.read_text().replace("[predicted]", "[predicted]\nqps = 1234.0"))
    _, shown = simulated(capsys, "--plan", plan, "--find-qps", "--queries", 400, "--seeds", 1, *other)
    assert "The plan predicted" not in shown


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "pool"', 'kind = "fleet"', "kind is 'fleet': must be a plan to simulate: 'pool' (hebe plan pool), "),
        ('"../times.csv"', '"../gone.csv"', "gone.csv: cannot be read: No such file"),
        ('kind = "pool"', "kind = ", "plan.toml: cannot be read"),
    ],
)
def test_a_spoilt_plan_is_one_line(capsys, plan, old, new, message):
    content = plan.read_text()
    assert old in content
    plan.write_text(content.replace(old, new, 1))
    code, _, err = run(capsys, "--plan", plan, "--rate", 300)
    assert code == 1
    assert message in err
    assert len(err.strip().splitlines()) == 1


FAULTS = {
    "unknown model": (["--model", "x"], "holds no model x: there are m"),
    "sizes beyond": (["--sizes", "fixed:200"], "queries of 200 items, but service times reach to 100 items"),
    "no trace": (["--arrivals", "trace:none.csv"], "none.csv: cannot be read"),
    "SLA too short": (["--sla-ms", 1], "--sla-ms is 1: below the fastest service time of m"),
    "too few queries": (["--queries", 50], "--queries is 50: must lie in 100.."),
    "pool that cannot": (
        ["--pool", "cpu=1", "--policy", "splitting", "--sizes", "fixed:100"],
        "splitting: the pool cannot serve queries of 100 items within the SLA",
    ),
}


@pytest.mark.parametrize(("options", "message"), FAULTS.values(), ids=FAULTS)
def test_bad_input_is_one_line_that_names_it(capsys, tmp_path, options, message):
    code, out, err = run(capsys, times_file(tmp_path), *POOL, *LOAD, "--rate", 100, *options, "--json")
    assert code == 1
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert message in json.loads(out)["error"]


def test_bad_service_times_name_file_line_and_field(capsys, tmp_path):
    times = write(tmp_path / "t.csv", [*samples(), "m,gpu,70,1,2,x,4,5"])
    code, _, err = run(capsys, times, *POOL, *LOAD, "--rate", 100)
    assert code == 1
    assert "t.csv: line 14: ms_2 is 'x'" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([*POOL, "--sla-ms", 12], "either --rate QPS or --find-qps"),
        ([*POOL, "--sla-ms", 12, "--rate", 1, "--find-qps"], "either --rate QPS or --find-qps"),
        (["--sla-ms", 12, "--rate", 1], "give a pool, or a plan"),
        ([*POOL, "--rate", 1], "give a latency bound, or a plan"),
        ([*POOL, "--sla-ms", 0, "--rate", 1], "more than 0"),
        ([*POOL, "--sla-ms", "soon", "--rate", 1], "'soon': must be milliseconds, or MODEL=MS,MODEL=MS"),
        ([*POOL, "--sla-ms", "m=soon", "--rate", 1], "'m=soon': must be milliseconds, or MODEL=MS,MODEL=MS"),
        ([*POOL, "--sla-ms", "m=12,m=13", "--rate", 1], "'m=13': must be MODEL=MS, each model once"),
        ([*POOL, "--sla-ms", "m=12", "--rate", 1], "a pool has one model: give one number"),
        ([*POOL, "--sla-ms", 12, "--load-factor", 2], "of a pool give --rate"),
        ([*POOL, "--sla-ms", 12, "--load-factor", 0], "more than 0"),
        ([*POOL, "--sla-ms", 12, "--rate", "nan"], "more than 0"),
        ([*POOL, "--sla-ms", 12, "--rate", 1, "--percentile", "0"], "between 0 and 100"),
        ([*POOL, "--sla-ms", 12, "--rate", 1, "--queries", 0], "--queries: 0: must be at least 1"),
        ([*POOL, "--sla-ms", 12, "--rate", 1, "--queries", -5], "--queries: -5: must be at least 1"),
        ([*POOL, "--sla-ms", 12, "--rate", 1, "--seeds", 0], "at least 1"),
        ([*POOL, *LOAD, "--rate", 1, "--sizes", "huge"], "--sizes: query sizes 'huge': must be one of production, ml"),
        ([*POOL, *LOAD, "--rate", 1, "--sizes", "fixed:0"], "--sizes: query size is 0: must be at least 1 item"),
        ([*POOL, *LOAD, "--rate", 1, "--arrivals", "often"], "--arrivals: arrivals 'often': must be one of poisson"),
        ([*POOL, *LOAD, "--rate", 1, "--policy", "best"], "--policy: 'best': must be one of fcfs"),
        (["--pool", "cpu", *LOAD, "--rate", 1], "--pool: 'cpu': must be TYPE=COUNT"),
        (["--pool", "cpu=0", *LOAD, "--rate", 1], "--pool: has no server: must have at least one"),
        ([*POOL, "--sla-ms", 12, "--rate", 1, "--partitions", 0], "at least 1"),
        ([*POOL, "--sla-ms", 12, "--rate", 1, "--page", "times.csv"], "is read: write to another file"),
        (
            [*POOL, "--sla-ms", 12, "--rate", 1, "--page", "/proc/x.html"],
            "--page: /proc/x.html: nothing can be written",
        ),
    ],
)
def test_wrong_usage_is_exit_code_2(capsys, tmp_path, options, message):
    code, _, err = run(capsys, times_file(tmp_path), *options)
    assert code == 2
    assert message in " ".join(err.replace("│", " ").split())


def test_without_a_bound_profiles_tell_what_they_were_made_for(capsys, tmp_path):
    asked = [tmp_path / "profiles", "--pool", "cpu=1,gpu=1", "--rate", 50, "--queries", 200, "--seeds", 1]
    load = "sizes quantiles:5,10,20, arrivals poisson, keys uniform, seed 0"
    for server in ("cpu", "gpu"):
        profile_file(tmp_path / "profiles" / f"{server}.json", server=server, sla=SlaTarget(30.0, 90.0), load=load)
    result, _ = simulated(capsys, *asked)
    assert [result[name] for name in ("sla_ms", "percentile", "sizes")] == [30.0, 90.0, "quantiles:5,10,20"]
    result, _ = simulated(capsys, *asked, "--percentile", 80, "--sizes", "fixed:7")
    assert [result[name] for name in ("sla_ms", "percentile", "sizes")] == [30.0, 80.0, "fixed:7"]
    result, _ = simulated(capsys, *asked, "--sla-ms", 40)
    assert (result["sla_ms"], result["percentile"]) == (40.0, 99.0)
    profile_file(tmp_path / "profiles" / "gpu.json", server="gpu", sla=SlaTarget(40.0, 90.0), load=load)
    code, _, err = run(capsys, *asked)
    assert (code, "unlike SLA targets: p90 within 30 ms, p90 within 40 ms: give --sla-ms" in err) == (1, True)


def test_without_files_or_plan_is_exit_code_2(capsys):
    code, _, err = run(capsys, *POOL, "--sla-ms", 12, "--rate", 1)
    assert code == 2
    assert "give files of service times, or a plan" in " ".join(err.replace("│", " ").split())


def test_help_teaches_with_an_example(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    text = " ".join(out.replace("│", " ").split())
    assert "Example: hebe simulate --plan pool.toml --find-qps" in text
    *others, last = PolicyKind
    assert f"{', '.join(others)} or {last}".replace("threshold", "threshold[:ITEMS]") in text


def test_runs_without_torch(tmp_path):
    profile_file(tmp_path / "times" / "cpu.json")
    profile_file(tmp_path / "times" / "gpu.json", server="gpu")
    arguments = ["simulate", tmp_path / "times", *POOL, *LOAD, "--rate", "300", "--page", tmp_path / "page.html"]
    command = [sys.executable, "-c", WITHOUT_TORCH, *map(str, arguments)]
    done = subprocess.run(command, env=FROM_HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").exists()
