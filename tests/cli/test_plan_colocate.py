"""`hebe plan colocate`, as a user runs it: files in, a plan file and a page out, and every fault named."""

import json
import tomllib
from dataclasses import replace

import pytest

from hebe.cli.colocation_plan_file import read_colocation_plan
from hebe.cli.main import main
from hebe.planning.colocation import hera
from hebe.planning.colocation_server import ScalabilityTables, ServerResources
from hebe.profile import ScalabilityProfile

from ..profiling.server_profiles import ON_HOST, profile_file, scaling

SERVER = "cores,cache_ways,bandwidth_bytes_per_s,memory_bytes\n4,3,1e9,4e9\n"
DEMAND = "model,qps\nncf,9000\nrm,70\ndin,400\n"
WAYS = (1, 2, 3)


def points(model, qps_a_worker, limit, kept, traffic):
    """Lines of a model: `limit` workers can be used, and `kept` is left with one and with two ways."""
    lines = []
    for workers in range(1, 5):
        whole = qps_a_worker * min(workers, limit)
        for ways, share in zip(WAYS, (*kept, 1.0), strict=True):
            last = f"{traffic * min(workers, limit):g},{1e8 * workers:g}" if ways == 3 else ","
            lines.append(f"{model},{workers},{ways},{whole * share:g},{last},false")
    return lines


HEADER = "model,workers,cache_ways,qps,bandwidth_bytes_per_s,memory_bytes,estimated"
LINES = [
    HEADER,
    *points("rm", 10, 2, (0.9, 0.95), 2e8),
    *points("ncf", 1000, 4, (0.5, 0.8), 1e7),
    *points("din", 50, 4, (0.7, 0.9), 5e7),
]
PROFILES = "\n".join(LINES) + "\n"


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A directory with the three files; `write` changes one of them."""
    monkeypatch.chdir(tmp_path)

    def write(name, text):
        (tmp_path / name).write_text(text, encoding="utf-8")

    write("profiles.csv", PROFILES)
    write("server.csv", SERVER)
    write("demand.csv", DEMAND)
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


def test_servers_are_planned_for_more_than_the_demand(files, capsys, tmp_path):
    code, shown, _ = run(capsys)
    assert code == 0
    assert "No headroom" in shown
    assert "planned for" not in shown
    exact = tomllib.loads((tmp_path / "shared.toml").read_text())
    assert exact["over_provision_rate"] == 0
    assert exact["planned_qps"] == exact["demand_qps"] == {"ncf": 9000, "rm": 70, "din": 400}

    answer = planned(capsys, "--over-provision", 0.5)
    assert answer["over_provision_rate"] == 0.5
    assert answer["demand_qps"] == exact["demand_qps"]
    assert answer["planned_qps"] == {"ncf": 13500, "rm": 105, "din": 600}
    assert all(answer["capacity_qps"][model] >= qps * (1 - 1e-9) for model, qps in answer["planned_qps"].items())
    plan = tomllib.loads((tmp_path / "shared.toml").read_text())
    assert plan["over_provision_rate"] == 0.5
    assert plan["demand_qps"] == exact["demand_qps"]
    assert plan["planned_qps"] == answer["planned_qps"]
    _, shown, _ = run(capsys, "--over-provision", 0.5)
    for words in ("Planned for 150% of the demand", "planned for", "13,500", "9,000"):
        assert words in shown
    assert "Planned for 150% of the demand" in (tmp_path / "shared.html").read_text()
    files("demand.csv", "model,qps\nncf,9000\nrm,0\n")
    assert planned(capsys, "--over-provision", 1)["planned_qps"] == {"ncf": 18000}


def test_the_plan_file_says_what_it_was_made_from(files, capsys, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "demand.csv").rename(tmp_path / "in" / "demand.csv")
    planned(capsys, "--plan", "out/plan.toml", files=("profiles.csv", "server.csv", "in/demand.csv"))
    plan = tomllib.loads((tmp_path / "out" / "plan.toml").read_text())
    assert plan["made_from"] == {
        "profiles": "../profiles.csv",
        "server": "../server.csv",
        "demand": "../in/demand.csv",
    }
    assert "server_type" not in plan["server"]
    files("server.csv", SERVER.replace("\n4,", ",server_type\n4,").replace("4e9\n", "4e9,big\n"))
    planned(capsys, files=("profiles.csv", "server.csv", "in/demand.csv"))
    assert tomllib.loads((tmp_path / "shared.toml").read_text())["server"]["server_type"] == "big"


def test_lines_become_the_profile_that_was_measured(files, capsys, tmp_path):
    planned(capsys)
    profiles = tomllib.loads((tmp_path / "shared.toml").read_text())["scalability"]
    ncf = ScalabilityProfile.from_dict(profiles[1])
    assert ncf.workers == (1, 2, 3, 4)
    assert ncf.qps == (1000, 2000, 3000, 4000)
    assert ncf.cache_ways == WAYS
    assert ncf.qps_by_cache_ways[3] == (2000, 3200, 4000)
    assert ncf.memory_bytes == (1e8, 2e8, 3e8, 4e8)
    tables = ScalabilityTables.of(list(map(ScalabilityProfile.from_dict, profiles)), ServerResources(4, 3, 1e9, 4e9))
    servers = hera(tables, {"ncf": 9000, "rm": 70, "din": 400}).servers
    assert planned(capsys, "--policy", "hera")["servers"] == servers
    without = [line for line in LINES if not line.startswith(("ncf,1,1,", "ncf,1,2,"))]
    files("profiles.csv", "\n".join(without))
    planned(capsys)
    profiles = tomllib.loads((tmp_path / "shared.toml").read_text())["scalability"]
    assert profiles[1]["qps_by_cache_ways"][0] == []


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


def in_steps(model, *, memory=(1e9, 1e9, 1e9), cores_per_worker=4):
    """As `hebe profile` measures it with workers of four cores, on 16."""
    workers, qps = (1, 2, 4), (100.0, 200.0, 400.0)
    return ScalabilityProfile(
        model, workers, qps, (1e8, 2e8, 4e8), (1, 2), ((), (), (400.0, 400.0)), memory, False, cores_per_worker
    )


@pytest.mark.parametrize("written", [4, 1], ids=["now", "before"])
def test_workers_of_several_cores_take_them_all(files, capsys, tmp_path, written):
    """Files of before do not say how many cores the workers had that scalability was measured with."""
    files("server.csv", "cores,cache_ways,bandwidth_bytes_per_s,memory_bytes\n16,2,1e10,1e11\n")
    files("demand.csv", "model,qps\nm,4000\nn,4000\n")
    lane = replace(ON_HOST, workers=4, cores_per_worker=4)
    for model in ("m", "n"):
        scalability = in_steps(model, cores_per_worker=written)
        profile_file(tmp_path / "p" / f"{model}.json", model=model, lanes=(lane,), scalability=scalability)
    answer = planned(capsys, files=("p", "server.csv", "demand.csv"))
    assert answer["servers"] == answer["least_servers"] == 20
    assert answer["worker_scalability"] == {"m": "high", "n": "high"}
    plan = tomllib.loads((tmp_path / "shared.toml").read_text())
    assert [one["cores_per_worker"] for one in plan["scalability"]] == [4, 4]
    for group in plan["group"]:
        assert sum(each["workers"] * each["cores_per_worker"] for each in group["tenant"]) <= 16
    _, shown, _ = run(capsys, files=("p", "server.csv", "demand.csv"))
    assert "4 x 4 / 2" in shown or "2 x 4 / 1" in shown
    assert read_colocation_plan(tmp_path / "shared.toml").servers == 20

    files("scalability.json", json.dumps([in_steps(model).to_dict() for model in ("m", "n")]))
    assert planned(capsys, files=("scalability.json", "server.csv", "demand.csv"))["servers"] == 20


def test_a_model_whose_worker_takes_more_cores_than_are_left_is_not_on_that_server(files, capsys, tmp_path):
    """Three workers of n do as well beside nobody as beside two idle cores that m can do nothing with."""
    files("server.csv", "cores,cache_ways,bandwidth_bytes_per_s,memory_bytes\n6,2,1e10,1e11\n")
    files("demand.csv", "model,qps\nm,1\nn,1000\n")
    large = ScalabilityProfile("m", (1,), (1.0,), (0.0,), (1, 2), ((1.0, 1.0),), (8e10,), False, 4)
    rows = ((), (30.0, 30.0))
    small = ScalabilityProfile("n", (1, 3), (10.0, 30.0), (0.0, 0.0), (1, 2), rows, (8e10, 8e10))
    files("scalability.json", json.dumps([large.to_dict(), small.to_dict()]))
    for policy in ("optimal", "hera"):
        planned(capsys, "--policy", policy, files=("scalability.json", "server.csv", "demand.csv"))
        plan = read_colocation_plan(tmp_path / "shared.toml")
        assert plan.servers == 35
        assert all(tenant.workers for group in plan.groups for tenant in group.tenants)


def test_a_model_whose_memory_is_not_known_does_not_share_a_server_whose_memory_is(files, capsys, tmp_path):
    files("server.csv", "cores,cache_ways,bandwidth_bytes_per_s,memory_bytes\n2,2,1e10,128e9\n")
    files("demand.csv", "model,qps\nm,40\nn,90\n")
    profile_file(tmp_path / "p" / "m.json", model="m", scalability=scaling("m", (20.0, 25.0)))
    known = replace(scaling("n", (30.0, 60.0)), memory_bytes=(80e9, 80e9))
    profile_file(tmp_path / "p" / "n.json", model="n", scalability=known)
    assert fault(capsys, files=("p", "server.csv", "demand.csv")) == (
        "p: scalability profile of m: memory_bytes is not known, but the server's is, 1.28e+11: profile the model"
        " again, or leave out the server's, and memory is no limit"
    )
    profile_file(tmp_path / "p" / "m.json", model="m", scalability=replace(known, model="m"))
    answer = planned(capsys, files=("p", "server.csv", "demand.csv"))
    assert all(len(group["tenant"]) == 1 for group in answer["groups"]), "80 GB and 80 GB do not fit 128 GB"
    _, shown, _ = run(capsys, files=("p", "server.csv", "demand.csv"))
    assert "Memory is no limit" not in shown
    files("server.csv", "cores,cache_ways,bandwidth_bytes_per_s\n2,2,1e10\n")
    _, shown, _ = run(capsys, files=("p", "server.csv", "demand.csv"))
    assert "Memory is no limit here: server.csv has no memory_bytes." in shown


def test_lines_without_memory_are_refused_where_the_server_s_is_given(files, capsys):
    files("m.csv", "model,workers,cache_ways,qps,bandwidth_bytes_per_s\nm,1,3,1000,1e7\n")
    files("demand.csv", "model,qps\nm,1500\n")
    message = fault(capsys, files=("m.csv", "server.csv", "demand.csv"))
    assert message.startswith("m.csv: scalability profile of m: memory_bytes is not known, but the server's is, 4e+09")
    files("m.csv", "model,workers,cache_ways,qps,bandwidth_bytes_per_s,memory_bytes\nm,1,3,1000,1e7,0\n")
    assert planned(capsys, files=("m.csv", "server.csv", "demand.csv"))["servers"] == 2, "told to be none"


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_memory_that_falls_with_workers_is_refused(files, capsys, kind):
    """One worker of 1e10 bytes does not fit the server, two of 2e8 together would."""
    lines = ["m,1,3,1000,1e7,1e10,", "m,2,1,1000,,,", "m,2,3,2000,2e7,2e8,"]
    files("m.csv", "\n".join([HEADER, *lines]))
    profile = ScalabilityProfile("m", (1, 2), (1e3, 2e3), (1e7, 2e7), (1, 3), ((), (1e3, 2e3)), (1e10, 2e8))
    files("m.json", json.dumps([profile.to_dict()]))
    files("demand.csv", "model,qps\nm,1500\n")
    message = fault(capsys, files=(f"m.{kind}", "server.csv", "demand.csv"))
    place = "m.csv" if kind == "csv" else "m.json: line 1, scalability 1"
    assert message == (
        f"{place}: scalability profile of m: memory_bytes falls from 1e+10 with 1 workers to 2e+08 with 2: more workers"
        " need as much at least; measure it again"
    )


def test_a_model_that_nobody_asks_for_needs_no_server(files, capsys):
    files("demand.csv", "model,qps\nncf,4000\n")
    answer = planned(capsys)
    assert answer["servers"] == 1
    assert answer["capacity_qps"] == {"ncf": 4000}


def test_a_server_of_one_core_is_not_shared(files, capsys):
    files("server.csv", "cores,cache_ways,bandwidth_bytes_per_s\n1,3,1e9\n")
    files("profiles.csv", "\n".join([HEADER, *(line for line in LINES if line.split(",")[1] == "1")]))
    code, out, _ = run(capsys, "--policy", "hera")
    assert code == 0
    assert "A server with a single core or cache way is not shared." in out


def test_estimated_profiles_are_told(files, capsys):
    files("profiles.csv", PROFILES.replace(",false", ",true"))
    _, out, _ = run(capsys)
    assert "3 of 3 scalability profiles are estimated" in out


def test_an_older_plan_is_replaced_only_by_a_whole_one(files, capsys, tmp_path):
    planned(capsys)
    before = (tmp_path / "shared.toml").read_text()
    files("demand.csv", "model,qps\nncf,nan\n")
    fault(capsys)
    assert (tmp_path / "shared.toml").read_text() == before
    assert len(list(tmp_path.iterdir())) == 5


def changed(line, text):
    return "\n".join([*LINES[:line], text, *LINES[line + 1 :]])


BAD = [
    ("profiles.csv", HEADER.replace("qps", "rate"), "holds no scalability entries"),
    ("profiles.csv", PROFILES.replace("cache_ways", "ways"), "line 1: unknown field 'ways': known are model, workers,"),
    ("profiles.csv", "model,workers,qps,bandwidth_bytes_per_s\nrm,1,9,1\n", "line 1: cache_ways is missing"),
    ("profiles.csv", changed(1, "rm,0,1,9,,,"), "line 2: workers is 0: must be at least 1"),
    ("profiles.csv", changed(1, "rm,1,1.5,9,,,"), "line 2: cache_ways is 1.5: must be a whole number"),
    ("profiles.csv", changed(1, "rm,1,4,9,,,"), "line 2: cache_ways is 4: the server has 3"),
    ("profiles.csv", changed(1, "rm,1,1,-9,,,"), "line 2: qps is '-9': must be a finite number of at least 0"),
    ("profiles.csv", changed(1, "rm,1,2,9,,,"), "line 3: rm with 1 workers, 2 ways is given twice: see"),
    ("profiles.csv", changed(3, "rm,1,3,10,,,"), "line 4: bandwidth_bytes_per_s is missing"),
    ("profiles.csv", changed(3, ""), "profiles.csv: rm with 1 workers lacks the line with 3 cache_ways"),
    ("profiles.csv", changed(1, ""), "profiles.csv: rm with 1 workers lacks the line with 1 cache_ways"),
    ("profiles.csv", changed(1, "rm,1,1,9,,,perhaps"), "line 2: estimated is 'perhaps'"),
    ("profiles.csv", changed(6, "rm,2,3,20,4e8,,"), "line 7: memory_bytes is missing, which rm has with other workers"),
    ("server.csv", SERVER.replace("\n4,", "\n1e12,"), "line 2: server: cores is 1,000,000,000,000: must be at m"),
    ("server.csv", SERVER.replace("4,3,", "4,1e3,"), "line 2: server: cache_ways is 1,000: must be at most 32"),
    ("server.csv", "cores,cache_ways\n4,3\n", "line 1: bandwidth_bytes_per_s is missing"),
    ("server.csv", SERVER + "8,3,1e9,4e9\n", "line 3: is a second server"),
    ("server.csv", SERVER.replace("\n4,", "\n0,"), "line 2: server: cores is 0: must be a whole number of at least 1"),
    ("server.csv", SERVER.replace("\n4,", "\n3.5,"), "line 2: cores is 3.5: must be a whole number"),
    ("server.csv", SERVER.replace("1e9", "0"), "line 2: server: bandwidth_bytes_per_s is 0.0: must be a pos"),
    ("demand.csv", "model,qps\nncf,many\n", "line 2: qps is 'many': must be a number"),
    ("demand.csv", "model,qps\nwnd,1\n", "line 2: model 'wnd' has no scalability profile: known models a"),
    ("demand.csv", "model,qps\nncf,1\nncf,2\n", "line 3: model ncf is given twice"),
    ("demand.csv", "model,rate\nncf,1\n", "line 1: unknown field 'rate'"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "message"), BAD)
def test_bad_files_are_named_by_line_and_field(files, capsys, name, text, message):
    files(name, text)
    found = fault(capsys)
    assert message in found
    assert name in found


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "server.csv",
            SERVER.replace("\n4,", "\n2,"),
            "profiles.csv: scalability profile of rm: workers go up to 4: the server has 2 cores",
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
            "demand.csv: qps: would take 2.5e+08 servers, most of them for model ncf",
        ),
    ],
)
def test_files_that_do_not_go_together_are_refused(files, capsys, name, text, message):
    files(name, text)
    assert message in fault(capsys)


def test_bad_profiles_of_json_are_named_by_entry_and_field(files, capsys):
    profile = ScalabilityProfile("rm", (1,), (1.0,), (0.0,), (3,), ((1.0,),)).to_dict()
    for change, message in (
        ({"qps": [-1.0]}, "scalability 1: scalability profile of rm: qps has -1.0"),
        ({"colour": 1}, "scalability 1: unknown field 'colour'"),
    ):
        files("profiles.json", json.dumps([profile | change]))
        assert message in fault(capsys, files=("profiles.json", "server.csv", "demand.csv"))
    files("profiles.json", json.dumps([profile, profile]))
    assert "scalability 2: model rm is given twice" in fault(
        capsys, files=("profiles.json", "server.csv", "demand.csv")
    )


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "best"], "must be one of optimal, hera, one-model-a-server"),
        (["--plan", "demand.csv"], "demand.csv is read: write to another file"),
        (["--page", "./server.csv"], "server.csv is read"),
        (["--plan", "x.html"], "x.html is written by --plan too"),
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
