"""`hebe estimate`, and what the planners make of its files."""

import json
import subprocess
import sys
import tomllib

import numpy as np
import pytest

from hebe.capacity.files.server_specs import BUILT_IN, TEMPLATE
from hebe.cli.main import main
from hebe.profile import EfficiencyTuple, ScalabilityProfile
from tests.examples.pool_files import FROM_HERE, WITHOUT_TORCH

NCF, WND = "kairos-ncf", "kairos-wnd"
TYPES = ("--server", "c5n.2xlarge", "--server", "r5n.large")
FEW = ("--sizes", "quantiles:10,50,200", "--sla-ms", "60", "--percentile", "95")


def run(capsys, *words):
    with pytest.raises(SystemExit) as exit_:
        main(list(map(str, words)))
    captured = capsys.readouterr()
    return exit_.value.code, captured.out, captured.err


@pytest.fixture(scope="module")
def estimates(tmp_path_factory):
    """The files for two models on two types."""
    out = tmp_path_factory.mktemp("estimates") / "out"
    with pytest.raises(SystemExit) as exit_:
        main(["estimate", NCF, WND, *TYPES, *FEW, "--out", str(out)])
    assert exit_.value.code == 0
    return out


def test_it_tells_each_pair_and_how_far_off_it_is(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run(capsys, "estimate", NCF, *TYPES, *FEW, "--out", tmp_path)
    assert code == 0
    assert len([line for line in out.splitlines() if line.startswith(NCF)]) == 2
    assert "model-on-host" in out
    assert "not measured" in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80 + len(str(tmp_path))


def test_json_holds_what_the_files_hold(capsys, tmp_path):
    code, out, err = run(capsys, "estimate", NCF, *TYPES, *FEW, "--out", tmp_path, "--json")
    told = json.loads(out)
    assert code == 0
    written = tomllib.loads((tmp_path / "efficiency.toml").read_text())["efficiency"]
    assert [one["qps"] for one in told["estimates"]] == [one["qps"] for one in written]
    assert [(one["sla_ms"], one["percentile"]) for one in told["estimates"]] == [(60.0, 95.0)] * 2
    assert told["estimates"][0]["service_times"]["workers"] == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(name.rpartition("/")[2] for name in told["files"])
    assert "best configuration" in err


def test_every_figure_in_the_files_is_marked_as_estimated(estimates):
    files = {path.name: tomllib.loads(path.read_text()) for path in estimates.glob("*.toml")}
    tuples = [EfficiencyTuple.from_dict(one) for one in files["efficiency.toml"]["efficiency"]]
    assert [(one.model, one.server_type) for one in tuples] == [
        (NCF, "c5n.2xlarge"), (NCF, "r5n.large"), (WND, "c5n.2xlarge"), (WND, "r5n.large"),
    ]  # fmt: skip
    assert all(one.estimated and one.qps > 0 for one in tuples)
    assert all(one["estimated"] for one in files["service_times.toml"]["profile"])
    shared = [ScalabilityProfile.from_dict(one) for one in files["scalability-c5n.2xlarge.toml"]["scalability"]]
    assert [one.model for one in shared] == [NCF, WND]
    assert all(one.estimated for one in shared)
    assert all("not measured" in path.read_text().splitlines()[0] for path in estimates.glob("*.toml"))


def test_servers_over_a_day_are_planned_from_it(estimates, capsys, tmp_path):
    (tmp_path / "servers.csv").write_text("server_type,available\nc5n.2xlarge,40\nr5n.large,60\n")
    (tmp_path / "loads.csv").write_text(f"time_s,{NCF},{WND}\n0,4000,900\n600,6000,1500\n")
    code, out, _ = run(
        capsys, "plan", "provision", estimates / "efficiency.toml", tmp_path / "servers.csv", tmp_path / "loads.csv",
        "--plan", tmp_path / "day.toml",
    )  # fmt: skip
    assert code == 0
    assert "4 of 4 efficiency tuples are estimated" in " ".join(out.split())
    assert tomllib.loads((tmp_path / "day.toml").read_text())["kind"] == "provisioning"


@pytest.mark.usefixtures("few_budgets")
def test_a_pool_is_planned_and_simulated_from_it(estimates, capsys, tmp_path):
    prices = tmp_path / "prices.csv"
    prices.write_text("server_type,price_per_hour\nc5n.2xlarge,0.432\nr5n.large,0.149\n")
    times = estimates / "service_times.toml"
    remark = f"Service times of {WND} on c5n.2xlarge, r5n.large are estimated, not measured."
    code, out, told = run(
        capsys, "plan", "pool", times, "--model", WND, "--prices", prices, "--budget", 0.6, *FEW, "--queries", 400,
        "--seeds", 1, "--plan", tmp_path / "pool.toml", "--json",
    )  # fmt: skip
    assert code == 0
    assert remark in json.loads(out)["remarks"]
    assert remark in " ".join(told.split())
    assert remark in (tmp_path / "pool.html").read_text()
    assert all(one["estimated"] for one in tomllib.loads((tmp_path / "pool.toml").read_text())["server"])
    code, out, _ = run(
        capsys, "simulate", "--plan", tmp_path / "pool.toml", "--rate", 50, "--queries", 400, "--seeds", 1, "--json"
    )
    assert code == 0
    assert any("are estimated, not measured" in remark for remark in json.loads(out)["remarks"])


@pytest.mark.parametrize("model", [NCF, WND])
@pytest.mark.parametrize("server", ["c5n.2xlarge", "r5n.large"])
def test_simulated_query_by_query_a_server_does_what_its_tuple_says(estimates, capsys, model, server):
    code, out, _ = run(
        capsys, "simulate", estimates / "service_times.toml", "--model", model, "--pool", f"{server}=1", *FEW,
        "--policy", "fcfs", "--find-qps", "--queries", 8_000, "--seeds", 1, "--json",
    )  # fmt: skip
    assert code == 0
    tuples = tomllib.loads((estimates / "efficiency.toml").read_text())["efficiency"]
    (told,) = (one["qps"] for one in tuples if (one["model"], one["server_type"]) == (model, server))
    found = json.loads(out)["find_qps"]["value"]
    assert 0.8 < found / told < 1.2


def test_models_that_share_a_server_are_planned_from_it(estimates, capsys, tmp_path):
    (tmp_path / "demand.csv").write_text(f"model,qps\n{NCF},900\n{WND},120\n")
    code, out, _ = run(
        capsys, "plan", "colocate", estimates / "scalability-c5n.2xlarge.toml", estimates / "server-c5n.2xlarge.toml",
        tmp_path / "demand.csv", "--plan", tmp_path / "shared.toml",
    )  # fmt: skip
    assert code == 0
    assert "2 of 2 scalability profiles are estimated" in " ".join(out.split())
    assert tomllib.loads((tmp_path / "shared.toml").read_text())["kind"] == "colocation"


def test_a_server_of_ones_own_is_a_file(capsys, tmp_path):
    code, out, _ = run(capsys, "estimate", "--template")
    assert (code, out) == (0, f"# A server type for `hebe estimate MODEL --server FILE`. {TEMPLATE[2:]}")
    (tmp_path / "mine.toml").write_text(out)
    code, out, _ = run(
        capsys, "estimate", NCF, "--server", tmp_path / "mine.toml", *FEW, "--strategy", "hercules", "--out",
        tmp_path / "out", "--json",
    )  # fmt: skip
    (told,) = json.loads(out)["estimates"]
    assert (code, told["server_type"]) == (0, "my-server")
    assert told["qps"] > 0
    assert (tmp_path / "out" / "scalability-my-server.toml").is_file()


def test_skewed_keys_and_uniform_ones(capsys, tmp_path):
    qps = []
    for keys in ("reuse", "uniform"):
        words = ("--server", "T2", "--strategy", "deeprecsys", "--keys", keys, "--out", tmp_path / keys, "--json")
        qps.append(json.loads(run(capsys, "estimate", "dlrm-rmc1", *words)[1])["estimates"][0]["qps"])
    assert qps[0] > qps[1] > 0


def test_what_cannot_be_served_is_said_and_written_as_0(capsys, tmp_path):
    code, out, _ = run(
        capsys, "estimate", NCF, WND, "--server", "r5n.large", "--sizes", "fixed:100", "--sla-ms", "2", "--percentile",
        "95", "--out", tmp_path,
    )  # fmt: skip
    assert code == 0  # the smaller model is served
    assert "the SLA target is out of reach: p95 is" in " ".join(out.split())
    tuples = tomllib.loads((tmp_path / "efficiency.toml").read_text())["efficiency"]
    assert [one["qps"] > 0 for one in tuples] == [True, False]
    assert [one["model"] for one in tomllib.loads((tmp_path / "service_times.toml").read_text())["profile"]] == [NCF]


def test_where_nothing_can_be_served_the_exit_code_says_so(capsys, tmp_path):
    code, out, _ = run(
        capsys, "estimate", "dlrm-rmc2", "--size", "production", "--server", "r5n.large", "--out", tmp_path, "--json"
    )
    (told,) = json.loads(out)["estimates"]
    assert (code, told["qps"]) == (3, 0.0)
    assert "its tables take" in told["reason"]
    assert [path.name for path in tmp_path.iterdir()] == ["efficiency.toml"]


def test_what_models_shared_in_an_earlier_run_does_not_stay_beside_other_tuples(capsys, tmp_path):
    words = ("--server", "r5n.large", "--out", tmp_path)
    assert run(capsys, "estimate", NCF, *words, *FEW)[0] == 0
    assert {path.name for path in tmp_path.iterdir()} >= {"scalability-r5n.large.toml", "server-r5n.large.toml"}
    assert run(capsys, "estimate", "dlrm-rmc2", "--size", "production", *words)[0] == 3
    assert [path.name for path in tmp_path.iterdir()] == ["efficiency.toml"]


def test_a_model_under_two_names_is_estimated_once(capsys, tmp_path):
    words = ("--server", "r5n.large", *FEW, "--out", tmp_path, "--json")
    code, out, _ = run(capsys, "estimate", "ncf", "hera-ncf", *words)
    assert (code, [one["model"] for one in json.loads(out)["estimates"]]) == (0, ["ncf"])


def test_where_planning_and_simulation_differ_it_says_how_they_would_not(capsys, tmp_path):
    words = ("--server", "g4dn.xlarge", "--out", tmp_path)
    code, out, _ = run(capsys, "estimate", "dlrm-rmc1", *words)
    assert code == 0
    assert "--strategy one-stage" in out
    assert "--strategy one-stage" not in run(capsys, "estimate", "dlrm-rmc1", *words, "--strategy", "one-stage")[1]


def test_the_built_in_types_are_listed(capsys):
    code, out, _ = run(capsys, "estimate", "--list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:]] == list(BUILT_IN)
    listed = json.loads(run(capsys, "estimate", "--list", "--json")[1])["server_types"]
    assert [one["name"] for one in listed] == list(BUILT_IN)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "name at least one; hebe model list"),
        ([NCF], 2, "name at least one; --list"),
        (["kairos-ncv", "--server", "T2"], 2, "did you mean kairos-ncf"),
        ([NCF, "--server", "T22"], 1, "server type 'T22' is not built in"),
        ([NCF, "--server", "T2", "--server", "none.toml"], 1, "none.toml: cannot be read"),
        ([NCF, "--server", "T2", "--strategy", "luck"], 2, "'luck': choose grid"),
        ([NCF, "--server", "T2", "--sla-ms", "0"], 2, "must be a finite number of more than 0"),
        ([NCF, "--server", "T2", "--percentile", "100"], 2, "must lie between 0 and 100"),
        ([NCF, "--server", "T2", "--keys", "zipf:1"], 2, "must be uniform or reuse"),
        ([NCF, "--server", "T2", "--sizes", "odd"], 2, "query sizes 'odd': must be one of"),
        ([NCF, "--server", "T2", "--scale", "2"], 2, "scale is 2.0: must be"),
        ([NCF, "--server", "T2", "--repository", ".", "--scale", "0.5"], 2, "a stored model has its size"),
    ],
)
def test_wrong_words_are_named(capsys, tmp_path, words, code, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, _, err = run(capsys, "estimate", *words)
    assert found == code
    assert message in " ".join(err.replace("│", " ").split())
    assert not any(tmp_path.iterdir())


def test_a_stored_model_is_estimated(capsys, tmp_path):
    repository = tmp_path / "models"
    assert run(capsys, "model", "new", NCF, "--scale", "0.01", "--repository", repository)[0] == 0
    words = ("--repository", repository, "--server", "r5n.large", *FEW, "--out", tmp_path / "out", "--json")
    code, out, _ = run(capsys, "estimate", NCF, *words)
    assert code == 0
    assert np.isfinite(json.loads(out)["estimates"][0]["qps"])
    assert run(capsys, "estimate", "other", *words)[0] == 1


def test_it_needs_no_torch(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, "estimate", NCF, *TYPES, *FEW, "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
        env=FROM_HERE,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "efficiency.toml").is_file()
