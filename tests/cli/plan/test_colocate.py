"""`hebe plan colocate`, as a user runs it: files in, a plan file and a page out, and every fault named."""

import json
import tomllib
from dataclasses import replace

import pytest

from hebe.cli.main import main
from hebe.profile import ScalabilityProfile
from tests.examples.server_profiles import profile_file, scaling
from tests.examples.three_models import write_three_models


@pytest.fixture
def files(write):
    """A directory with the three files; `write` changes one of them."""
    write_three_models()
    return write


def run(capsys, *arguments, files=("profiles.csv", "server.csv", "demand.csv")):
    with pytest.raises(SystemExit) as exit_:
        main(["plan", "colocate", *files, *map(str, arguments)])
    captured = capsys.readouterr()
    return exit_.value.code or 0, captured.out, captured.err


def planned(capsys, *arguments, **options):
    code, out, err = run(capsys, "--json", *arguments, **options)
    assert code == 0, err
    assert len(out.splitlines()) == 1
    return json.loads(out)


def fault(capsys, *arguments, **options):
    code, out, err = run(capsys, *arguments, **options)
    assert code == 1
    assert not out
    return " ".join(err.split()).removeprefix("error: ")


@pytest.mark.usefixtures("files")
def test_prints_tables_and_writes_plan_and_page(capsys, tmp_path):
    code, out, _ = run(capsys, "--plan", "fleet/plan.toml")
    assert code == 0
    for words in ("models on a server", "workers / ways", "rm", "scalability", "optimal (chosen)", "Hera", "Proven"):
        assert words in out
    assert "Plan: fleet/plan.toml" in out
    page = (tmp_path / "fleet" / "plan.html").read_text()
    assert page.count("<svg") == 3
    assert "Co-location affinity" in page


@pytest.mark.usefixtures("files")
def test_the_plan_file_says_what_to_start_and_what_is_predicted(capsys, tmp_path):
    answer = planned(capsys, "--most-models", 3)
    plan = tomllib.loads((tmp_path / "shared.toml").read_text())
    assert (plan["kind"], plan["version"], plan["policy"]) == ("colocation", 2, "optimal")
    capacity = dict.fromkeys(plan["demand_qps"], 0.0)
    for group in plan["group"]:
        assert sum(tenant["workers"] for tenant in group["tenant"]) <= plan["server"]["cores"] == 4
        assert sum(tenant["cache_ways"] for tenant in group["tenant"]) <= plan["server"]["cache_ways"] == 3
        for tenant in group["tenant"]:
            capacity[tenant["model"]] += group["servers"] * tenant["qps"]
    assert capacity == pytest.approx(plan["predicted"]["capacity_qps"])
    assert all(capacity[model] >= qps * (1 - 1e-9) for model, qps in plan["demand_qps"].items())
    assert plan["predicted"]["servers"] == answer["servers"] == sum(group["servers"] for group in plan["group"])
    assert plan["predicted"]["least_servers"] <= answer["servers"]
    assert {ScalabilityProfile.from_dict(one).model for one in plan["scalability"]} == {"ncf", "rm", "din"}


@pytest.mark.usefixtures("files")
def test_json_holds_the_plan_the_affinity_and_every_policy(capsys):
    answer = planned(capsys)
    assert answer["demand_qps"] == {"ncf": 9000, "rm": 70, "din": 400}
    assert answer["models"] == ["rm", "ncf", "din"]
    assert answer["worker_scalability"] == {"rm": "low", "ncf": "high", "din": "high"}
    assert len(answer["affinity"]) == 3
    servers = answer["servers_by_policy"]
    assert list(servers) == ["one-model-a-server", "random", "hera-random", "hera", "optimal"]
    assert answer["least_servers"] <= answer["servers"] == servers["optimal"] == min(servers.values())
    assert (answer["plan"], answer["page"]) == ("shared.toml", "shared.html")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("policy", ["hera", "one-model-a-server"])
def test_another_policy_can_be_chosen(capsys, policy):
    answer = planned(capsys, "--policy", policy)
    assert answer["servers"] == answer["servers_by_policy"][policy]
    if policy == "one-model-a-server":
        assert {len(group["tenant"]) for group in answer["groups"]} == {1}


def test_the_same_plan_from_toml_and_json(files, capsys, tmp_path):
    first = planned(capsys, "--plan", "a.toml")
    profiles = tomllib.loads((tmp_path / "a.toml").read_text())["scalability"]
    files("profiles.json", json.dumps({"scalability": profiles}))
    files(
        "server.toml",
        '[[server]]\nserver_type = "s"\ncores = 4\ncache_ways = 3\nbandwidth_bytes_per_s = 1e9\nmemory_bytes = 4e9',
    )
    files("demand.json", json.dumps([{"model": model, "qps": qps} for model, qps in first["demand_qps"].items()]))
    again = planned(capsys, "--plan", "b.toml", files=("profiles.json", "server.toml", "demand.json"))
    assert {**first, "plan": "", "page": ""} == {**again, "plan": "", "page": ""}
    one, other = (tomllib.loads((tmp_path / name).read_text()) for name in ("a.toml", "b.toml"))
    assert other.pop("made_from") == {"profiles": "profiles.json", "server": "server.toml", "demand": "demand.json"}
    assert other["server"].pop("server_type") == "s"
    one.pop("made_from")
    assert one == other


@pytest.mark.usefixtures("files")
def test_servers_are_planned_for_more_than_the_demand(capsys, tmp_path):
    answer = planned(capsys, "--over-provision", 0.5)
    assert answer["over_provision_rate"] == 0.5
    assert answer["planned_qps"] == {"ncf": 13500, "rm": 105, "din": 600}
    plan = tomllib.loads((tmp_path / "shared.toml").read_text())
    assert plan["planned_qps"] == answer["planned_qps"]
    assert "Planned for 150% of the demand" in (tmp_path / "shared.html").read_text()


def test_profiles_that_hebe_profile_wrote(files, capsys, tmp_path):
    files("server.csv", "cores,cache_ways,bandwidth_bytes_per_s\n2,2,1e10\n")
    files("demand.csv", "model,qps\nm,40\nn,90\n")
    folder = tmp_path / "p"
    profile_file(folder / "m.json", model="m", scalability=scaling("m", (20.0, 25.0)))
    profile_file(folder / "n.json", model="n", scalability=scaling("n", (30.0, 60.0)))
    answer = planned(capsys, files=("p", "server.csv", "demand.csv"))
    assert answer["models"] == ["m", "n"]
    assert answer["capacity_qps"]["n"] >= 90
    plan = tomllib.loads((tmp_path / "shared.toml").read_text())
    assert ScalabilityProfile.from_dict(plan["scalability"][0]) == scaling("m", (20.0, 25.0))
    assert plan["server"]["server_type"] == "cpu"
    files("demand.csv", "model,qps\nm,40\n")
    assert planned(capsys, files=("p/m.json", "server.csv", "demand.csv"))["servers"] == 2

    profile_file(folder / "n.json", model="n", server="gpu", scalability=scaling("n", (30.0, 60.0)))
    assert fault(capsys, files=("p", "server.csv", "demand.csv")) == (
        "p/n.json: n was profiled on gpu, but p/m.json is of cpu: give the profiles of the one type of server that all"
        " models share"
    )
    profile_file(folder / "n.json", model="m", scalability=scaling("m", (30.0, 60.0)))
    assert "p/n.json: m on cpu is given twice, before in p/m.json" in fault(
        capsys, files=("p", "server.csv", "demand.csv")
    )
    profile_file(folder / "n.json", model="n")
    assert "p/n.json: scalability is null: it was not measured; profile n again" in fault(
        capsys, files=("p", "server.csv", "demand.csv")
    )
    files("server.csv", "cores,cache_ways,bandwidth_bytes_per_s\n2,11,1e10\n")
    assert "scalability profile of m: cache_ways go up to 2: the server has 11" in fault(
        capsys, files=("p/m.json", "server.csv", "demand.csv")
    )


def test_a_model_whose_memory_is_not_known_does_not_share_a_server_whose_memory_is(files, capsys, tmp_path):
    files("server.csv", "cores,cache_ways,bandwidth_bytes_per_s,memory_bytes\n2,2,1e10,128e9\n")
    files("demand.csv", "model,qps\nm,40\nn,90\n")
    profile_file(tmp_path / "p" / "m.json", model="m", scalability=scaling("m", (20.0, 25.0)))
    known = replace(scaling("n", (30.0, 60.0)), memory_bytes=(80e9, 80e9))
    profile_file(tmp_path / "p" / "n.json", model="n", scalability=known)
    assert fault(capsys, files=("p", "server.csv", "demand.csv")) == (
        "p/m.json: scalability profile of m: memory_bytes is not known, but the server's is, 1.28e+11: profile the"
        " model again, or leave out the server's, and memory is no limit"
    )
    profile_file(tmp_path / "p" / "m.json", model="m", scalability=replace(known, model="m"))
    answer = planned(capsys, files=("p", "server.csv", "demand.csv"))
    assert all(len(group["tenant"]) == 1 for group in answer["groups"]), "80 GB and 80 GB do not fit 128 GB"
    _, shown, _ = run(capsys, files=("p", "server.csv", "demand.csv"))
    assert "Memory is no limit" not in shown
    files("server.csv", "cores,cache_ways,bandwidth_bytes_per_s\n2,2,1e10\n")
    _, shown, _ = run(capsys, files=("p", "server.csv", "demand.csv"))
    assert "Memory is no limit here: server.csv has no memory_bytes." in shown


def test_an_older_plan_is_replaced_only_by_a_whole_one(files, capsys, tmp_path):
    planned(capsys)
    before = (tmp_path / "shared.toml").read_text()
    files("demand.csv", "model,qps\nncf,nan\n")
    fault(capsys)
    assert (tmp_path / "shared.toml").read_text() == before
    assert len(list(tmp_path.iterdir())) == 5


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "best"], "must be one of optimal, hera, one-model-a-server"),
        (["--plan", "demand.csv"], "demand.csv is read: write to another file"),
        (["--page", "./server.csv"], "server.csv is read"),
        (["--plan", "x.html"], "x.html is written by --plan too"),
        (["--plan", "."], "--plan: .: nothing can be written to . (Is a directory)"),
        (["--most-models", "0"], "--most-models: 0: must be at least 1"),
        (["--time-limit-s", "-1"], "--time-limit-s: -1: must be a finite number of more than 0"),
        (["--least-slope", "nan"], "--least-slope: nan: must be at least 0"),
        (["--over-provision", "-0.1"], "--over-provision: -0.1: must be at least 0"),
        (["--over-provision", "inf"], "--over-provision: inf: must be at least 0"),
    ],
)
def test_wrong_usage(capsys, arguments, message):
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in " ".join(err.replace("│", " ").split())


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "colocate", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert "Example: hebe plan colocate profiles.csv server.toml demand.csv" in out
