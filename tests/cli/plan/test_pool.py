"""`hebe plan pool` as a user runs it, on generated files."""

import json
import subprocess
import sys
import tomllib
from dataclasses import replace

import pytest

from hebe.cli.main import main
from tests.examples.pool_files import (
    FROM_HERE,
    PRICES,
    SERVICE_MS,
    WITHOUT_TORCH,
    WORKLOAD,
    plan_pool,
    prices_file,
    profiles_toml,
    samples,
    times_file,
    write,
)
from tests.examples.server_profiles import ON_HOST, PIPELINE, profile_file

pytestmark = pytest.mark.usefixtures("few_budgets")

FEW = ["--types", "gpu,cpu", "--queries", "100", "--seeds", "1", "--budget", "0.7"]
"""For plans of which it does not matter how good they are."""


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as exit_:
        main(["plan", "pool", *map(str, arguments)])
    captured = capsys.readouterr()
    return exit_.value.code or 0, captured.out, captured.err


def planned(capsys, folder, *options, times=None, prices=None):
    times = times or times_file(folder)
    prices = prices or prices_file(folder)
    code, out, err = run(capsys, times, "--prices", prices, "--budget", 1.2, *WORKLOAD, *options, "--json")
    assert code == 0, err
    return json.loads(out.splitlines()[-1]), err


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder in which a pool was planned, the result and what was shown."""
    folder = tmp_path_factory.mktemp("made")
    out, err = plan_pool(folder, folder / "plans" / "pool.toml", "--json")
    return folder, json.loads(out.splitlines()[-1]), err


def test_plans_a_pool_and_predicts_its_throughput(made):
    _, result, shown = made
    chosen = result["proposals"]["chosen"]
    assert chosen["price_per_hour"] == pytest.approx(sum(PRICES[kind] * n for kind, n in chosen["counts"].items()))
    assert chosen["price_per_hour"] <= 1.2 * (1 + 1e-9)
    assert chosen["qps_low"] <= chosen["qps"] <= chosen["qps_high"]
    assert 0.5 < chosen["qps"] / chosen["bound_qps"] < 1.2
    assert all(0 < share <= 1 for share in chosen["utilisation"].values())
    # More than the best of its kind alone, and than Kairos' pick, on the same queries but for noise.
    assert chosen["qps"] > result["proposals"]["one type"]["qps"]
    assert chosen["qps"] > 0.95 * result["proposals"]["Kairos"]["qps"]
    assert result["base_type"] == "gpu"
    assert result["ranked"][0]["bound_qps"] >= result["ranked"][-1]["bound_qps"]
    assert "Kairos' pick, of" in shown
    assert "p95 within 12 ms" in shown


def test_the_plan_file_starts_a_fleet(made):
    folder, result, _ = made
    plan = tomllib.loads((folder / "plans" / "pool.toml").read_text())
    assert (plan["kind"], plan["version"], plan["model"]) == ("pool", 1, "m")
    assert plan["sla"] == {"latency_ms": 12.0, "percentile": 95.0}
    assert plan["made_from"] == {"service_times": ["../times.csv"], "prices": "../prices.csv"}
    counts = {server["server_type"]: server["count"] for server in plan["server"]}
    assert list(counts) == ["gpu", "cpu", "small"]  # base first
    assert {kind: count for kind, count in counts.items() if count} == result["proposals"]["chosen"]["counts"]
    assert plan["policy"] == result["policy"]
    assert plan["predicted"]["qps"] == result["proposals"]["chosen"]["qps"]
    page = (folder / "plans" / "pool.html").read_text()
    for words in ("What a budget buys", "Who serves which query sizes", "Utilisation", "Kairos&#39; ranking"):
        assert words in page
    assert page.count("<svg") == 3
    assert [path.name for path in (folder / "plans").iterdir() if path.name.startswith(".")] == []


def test_the_same_seed_gives_the_same_plan(capsys, tmp_path):
    first, _ = planned(capsys, tmp_path, *FEW, "--seed", 3)
    again, _ = planned(capsys, tmp_path, *FEW, "--seed", 3)
    other, _ = planned(capsys, tmp_path, *FEW, "--seed", 4)
    assert first == again
    assert first["proposals"]["chosen"]["qps"] != other["proposals"]["chosen"]["qps"]


def test_files_of_samples_are_added(capsys, tmp_path):
    execution, loading = times_file(tmp_path), times_file(tmp_path, name="loading.csv", seed=1)
    prices = prices_file(tmp_path)
    options = ["--prices", prices, "--budget", 1.2, *WORKLOAD, "--no-simulate", "--json"]
    _, once, _ = run(capsys, execution, *options)
    # Twice the time, twice the SLA: half the throughput.
    _, twice, _ = run(capsys, execution, loading, *options, "--sla-ms", 24)
    bounds = [json.loads(out)["proposals"]["fluid, whole"]["bound_qps"] for out in (once, twice)]
    assert bounds[1] == pytest.approx(bounds[0] / 2, rel=0.05)


def test_profiles_in_toml_and_json(capsys, tmp_path):
    toml = profiles_toml(tmp_path)
    as_json = tmp_path / "profiles.json"
    as_json.write_text(json.dumps(tomllib.loads(toml.read_text())))
    first, _ = planned(capsys, tmp_path, "--no-simulate", times=toml)
    second, _ = planned(capsys, tmp_path, "--no-simulate", times=as_json)
    assert first["proposals"] == second["proposals"]
    split = write(tmp_path / "rest.toml", profiles_toml(tmp_path, types=["small"]).read_text().splitlines())
    two = profiles_toml(tmp_path, types=["gpu", "cpu"], name="two.toml")
    code, out, err = run(
        capsys, two, split, "--prices", prices_file(tmp_path), "--budget", 1.2, *WORKLOAD, "--no-simulate", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["proposals"] == first["proposals"]


def test_profiles_that_hebe_profile_wrote(capsys, tmp_path):
    """A server of two workers is as good as two servers of one, at half the price."""
    for folder, workers in (("two", 2), ("one", 1)):
        lanes = (replace(ON_HOST, workers=workers),)
        profile_file(tmp_path / folder / "cpu.json", lanes=lanes)
        profile_file(tmp_path / folder / "gpu.json", lanes=lanes, server="gpu", fixed_s=4e-3, item_s=1e-5)
    dear, cheap = {"gpu": 0.5, "cpu": 0.1}, {"gpu": 0.25, "cpu": 0.05}
    few = ["--queries", "330", "--seeds", "1", "--budget", "0.6"]
    two, _ = planned(capsys, tmp_path, *few, times=tmp_path / "two", prices=prices_file(tmp_path, dear))
    one, shown = planned(capsys, tmp_path, *few, times=tmp_path / "one", prices=prices_file(tmp_path, cheap))
    assert two["model"] == "m"
    assert two["proposals"]["chosen"]["qps"] > 0
    for name in ("fluid, whole", "fluid, splitting", "one type"):
        bounds = [answer["proposals"][name]["bound_qps"] for answer in (two, one)]
        assert bounds[0] == pytest.approx(bounds[1], rel=0.1)
    chosen = two["proposals"]["chosen"]
    assert 0.4 < chosen["qps"] / chosen["bound_qps"] < 1.2
    plan = tomllib.loads((tmp_path / "pool.toml").read_text())
    assert plan["made_from"]["service_times"] == ["one"]
    # one seed has no interval
    assert "qps_low" not in plan["predicted"]
    assert " to " not in shown.partition("proposal")[2].partition("\n\n")[0]


def test_a_profile_that_is_no_service_time_is_refused(capsys, tmp_path):
    path = profile_file(tmp_path / "cpu.json", lanes=(PIPELINE,))
    code, _, err = run(capsys, path, "--prices", prices_file(tmp_path, {"cpu": 1.0}), "--budget", 2, *WORKLOAD)
    assert code == 1
    assert f"{path}: m on cpu runs as pipeline-on-host" in err


FAULTS = {
    "no such file": (lambda f: f / "none.csv", None, [], "none.csv: cannot be read: No such file"),
    "header only": (lambda f: write(f / "h.csv", samples()[:1]), None, [], "h.csv: holds no service times"),
    "two models": (
        lambda f: write(f / "t.csv", [*samples(), *samples("n")[1:]]), None, [], "choose one by --model: m, n",
    ),
    "no such model": (times_file, None, ["--model", "x"], "times.csv: holds no model x: there are m"),
    "other kind of file": (lambda f: write(f / "t.txt", samples()), None, [], "t.txt: service times must be .csv"),
    "profile without field": (
        lambda f: write(f / "p.toml", ["[[profile]]", 'model = "m"']), None, [],
        "p.toml: line 1, profile 1: server_type is missing",
    ),
    "profile twice": (
        lambda f: write(f / "p.toml", 2 * profiles_toml(f).read_text().splitlines()), None, [],
        "p.toml: line 19, profile 4: m on gpu is given twice",
    ),
    "profile nan": (
        lambda f: write(f / "p.toml", profiles_toml(f).read_text().replace("0.005,", "nan,").splitlines()), None, [],
        "p.toml: line 1, profile 1: service_s must be positive",
    ),
    "profile of half items": (
        lambda f: write(f / "p.toml", profiles_toml(f).read_text().replace("[1, 10", "[1.5, 10").splitlines()),
        None,
        [],
        "p.toml: line 1, profile 1: batch_sizes is [1.5, 10, 50, 100]: must be a list of whole numbers",
    ),
    "budget too small": (
        times_file, None, ["--budget", 0.09, "--types", "gpu"],
        "--budget of 0.09 buys no pool that serves every query size in time: the cheapest that does is 1 gpu at 0.5",
    ),
    "SLA too short": (
        times_file, None, ["--sla-ms", 1], "--sla-ms is 1: below the fastest service time of m in",
    ),
    "SLA that nothing meets": (
        times_file, None, ["--sla-ms", 3, "--types", "small"], "no server type serves queries of 20 items",
    ),
    "sizes beyond": (
        times_file, None, ["--sizes", "fixed:101"], "queries of 101 items, but service times reach to 100 items",
    ),
    "too few queries": (times_file, None, ["--queries", 50], "--queries is 50: must lie in "),
}  # fmt: skip


@pytest.mark.parametrize(("times", "prices", "options", "message"), FAULTS.values(), ids=FAULTS)
def test_bad_input_is_one_line_that_names_it(capsys, tmp_path, times, prices, options, message):
    times = times(tmp_path)
    prices = prices_file(tmp_path) if prices is None else write(tmp_path / "prices.csv", prices)
    code, out, err = run(capsys, times, "--prices", prices, "--budget", 1.2, *WORKLOAD, *options, "--json")
    assert code == 1
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert message in json.loads(out)["error"]
    assert not (tmp_path / "pool.toml").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--budget", 0], "--budget: 0: must be a finite number of more than 0"),
        (["--budget", -1], "more than 0"),
        (["--budget", "nan"], "more than 0"),
        (["--budget", "inf"], "more than 0"),
        (["--sla-ms", 0], "more than 0"),
        (["--percentile", "100"], "between 0 and 100"),
        (["--queries", 0], "--queries: 0: must be at least 1"),
        (["--queries", -5], "--queries: -5: must be at least 1"),
        (["--seeds", 0], "at least 1"),
        (["--ranked", 0], "at least 1"),
        (["--sizes", "huge"], "--sizes: query sizes 'huge': must be one of production, mlperf"),
        (["--types", "gpu,"], "--types: 'gpu,': must be names separated by commas"),
        (["--most", "gpu"], "--most: 'gpu': must be TYPE=COUNT"),
        (["--plan", "times.csv"], "is read: write to another file"),
        (["--plan", "p.html", "--page", "p.html"], "is written by --plan too"),
        (["--plan", "."], "--plan: .: nothing can be written to . (Is a directory)"),
    ],
)
def test_wrong_usage_is_exit_code_2(capsys, tmp_path, options, message):
    code, _, err = run(
        capsys, times_file(tmp_path), "--prices", prices_file(tmp_path), "--budget", 1, *WORKLOAD, *options
    )
    assert code == 2
    assert message in " ".join(err.replace("│", " ").split())


def test_help_teaches_with_an_example(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    text = " ".join(out.split())
    assert "Example: hebe plan pool times.csv --prices prices.csv --model rm2 --sla-ms 350 --budget 2.5" in text


def test_runs_without_torch(tmp_path):
    """And imports neither torch nor numba on the way."""
    arguments = ["plan", "pool", times_file(tmp_path), "--prices", prices_file(tmp_path), "--budget", "1.2"]
    arguments += [*WORKLOAD, *FEW]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *map(str, arguments)],
        env=FROM_HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "pool.toml").exists()


def test_a_plan_replaces_an_older_one_whole(capsys, tmp_path):
    write(tmp_path / "pool.toml", ["old"])
    planned(capsys, tmp_path, "--no-simulate")
    assert tomllib.loads((tmp_path / "pool.toml").read_text())["kind"] == "pool"
    # A plan that fails leaves the older one.
    code, _, _ = run(capsys, times_file(tmp_path), "--prices", "none.csv", "--budget", 1, *WORKLOAD)
    assert code == 1
    assert tomllib.loads((tmp_path / "pool.toml").read_text())["kind"] == "pool"


def test_the_generated_types_are_what_the_tests_say():
    limit_ms = 0.98 * 12
    at_100 = {kind: fixed + 100 * per_item for kind, (fixed, per_item) in SERVICE_MS.items()}
    assert at_100["gpu"] < limit_ms < at_100["cpu"] < at_100["small"]
