"""The server that models share, their scalability, and the demand, from files; and what is wrong with them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hebe.capacity.errors import PlanFileError
from hebe.capacity.files.colocation_inputs import read_demand, read_scalability, read_shared_server, shared_server_type
from hebe.planning.colocation.shared_server import ScalabilityTables, ServerResources
from hebe.profile import ScalabilityProfile
from tests.examples.server_profiles import ON_HOST, profile_file, scaling
from tests.examples.three_models import HEADER, LINES, PROFILES, SERVER, WAYS, write_three_models

RESOURCES = ServerResources(4, 3, 1e9, 4e9)


def scalability_of(path):
    return read_scalability(path, RESOURCES)


def demand_of(path, profiles="profiles.csv"):
    return read_demand(path, ScalabilityTables.of(scalability_of(Path(profiles)), RESOURCES))


READERS = {"profiles.csv": scalability_of, "server.csv": read_shared_server, "demand.csv": demand_of}


@pytest.fixture(autouse=True)
def three_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_three_models()


def fault(read, *arguments):
    with pytest.raises(PlanFileError) as caught:
        read(*arguments)
    return str(caught.value)


def test_the_server_and_the_demand_are_as_the_files_say():
    assert read_shared_server(Path("server.csv")) == ServerResources(4, 3, 1e9, 4e9)
    assert demand_of(Path("demand.csv")) == {"ncf": 9000, "rm": 70, "din": 400}
    Path("server.csv").write_text("cores,cache_ways,bandwidth_bytes_per_s\n4,3,1e9\n")
    assert read_shared_server(Path("server.csv")).memory_bytes == float("inf")


def test_lines_become_the_profile_that_was_measured():
    ncf = scalability_of(Path("profiles.csv"))[1]
    assert (ncf.model, ncf.workers, ncf.qps) == ("ncf", (1, 2, 3, 4), (1000, 2000, 3000, 4000))
    assert ncf.cache_ways == WAYS
    assert ncf.qps_by_cache_ways[3] == (2000, 3200, 4000)
    assert ncf.memory_bytes == (1e8, 2e8, 3e8, 4e8)
    Path("profiles.csv").write_text("\n".join(line for line in LINES if not line.startswith(("ncf,1,1,", "ncf,1,2,"))))
    assert scalability_of(Path("profiles.csv"))[1].qps_by_cache_ways[0] == ()


def test_whole_profiles_are_read_as_they_are():
    profiles = scalability_of(Path("profiles.csv"))
    Path("profiles.json").write_text(json.dumps([profile.to_dict() for profile in profiles]))
    assert scalability_of(Path("profiles.json")) == profiles


def test_the_type_of_the_servers_is_that_of_the_profiles_or_of_the_server_s_file():
    assert shared_server_type(Path("profiles.csv"), Path("server.csv")) is None
    Path("server.csv").write_text(SERVER.replace("\n4,", ",server_type\n4,").replace("4e9\n", "4e9,big\n"))
    assert shared_server_type(Path("profiles.csv"), Path("server.csv")) == "big"
    profile_file(Path("p/m.json"), model="m", scalability=scaling("m", (20.0, 25.0)))
    assert shared_server_type(Path("p"), Path("server.csv")) == "cpu"


@pytest.mark.parametrize("written", [4, 1], ids=["now", "before"])
def test_workers_have_the_cores_that_they_were_profiled_with(written):
    """Files of before do not say how many."""
    lane = replace(ON_HOST, workers=4, cores_per_worker=4)
    profile_file(Path("m.json"), lanes=(lane,), scalability=replace(scaling("m", (1.0, 2.0)), cores_per_worker=written))
    (profile,) = read_scalability(Path("m.json"), ServerResources(8, 2, 1e10))
    assert profile.cores_per_worker == 4


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
    ("profiles.csv", changed(3, ""), "profiles.csv: lines 2 to 13: rm with 1 workers lacks the line with 3 cache_ways"),
    ("profiles.csv", changed(1, ""), "profiles.csv: lines 3 to 13: rm with 1 workers lacks the line with 1 cache_ways"),
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
    ("demand.csv", "model,qps\nrm,1\nncf,1e12\n", "line 3: qps: would take 2.5e+08 servers, most of them for model"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "message"), BAD)
def test_bad_files_are_named_by_line_and_field(name, text, message):
    Path(name).write_text(text)
    found = fault(READERS[name], Path(name))
    assert found.startswith(name)
    assert message in found


def test_demand_that_no_server_meets_is_named_by_line():
    Path("none.csv").write_text(f"{HEADER}\nncf,1,3,10,,1e8,\nrm,1,3,0,,1e8,\n".replace(",,1e8", ",0,3e9"))
    Path("demand.csv").write_text("model,qps\nncf,1\nrm,3\n")
    assert fault(demand_of, Path("demand.csv"), "none.csv") == (
        "demand.csv: line 3: qps: of model rm is 3, but its profile has qps 0 throughout: no number of these servers"
        " meets its SLA target"
    )
    Path("demand.csv").write_text("model,qps\nncf,1\nrm,0\n")
    assert demand_of(Path("demand.csv"), "none.csv") == {"ncf": 1, "rm": 0}


def test_bad_profiles_of_json_are_named_by_entry_and_field():
    profile = ScalabilityProfile("rm", (1,), (1.0,), (0.0,), (3,), ((1.0,),), (3e9,)).to_dict()
    path = Path("profiles.json")
    for change, message in (
        ({"qps": [-1.0]}, "scalability 1: scalability profile of rm: qps has -1.0"),
        ({"colour": 1}, "scalability 1: unknown field 'colour'"),
        ({"memory_bytes": []}, "scalability 1: scalability profile of rm: memory_bytes is not known, but the server's"),
    ):
        path.write_text(json.dumps([profile | change]))
        assert message in fault(scalability_of, path)
    path.write_text(json.dumps([profile, profile]))
    assert "scalability 2: model rm is given twice" in fault(scalability_of, path)


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_memory_that_falls_with_workers_is_refused(kind):
    """One worker of 1e10 bytes does not fit a server, two of 2e8 together would."""
    lines = ["m,1,3,1000,1e7,1e10,", "m,2,1,1000,,,", "m,2,3,2000,2e7,2e8,"]
    Path("m.csv").write_text("\n".join([HEADER, *lines]))
    profile = ScalabilityProfile("m", (1, 2), (1e3, 2e3), (1e7, 2e7), (1, 3), ((), (1e3, 2e3)), (1e10, 2e8))
    Path("m.json").write_text(json.dumps([profile.to_dict()]))
    place = "m.csv: line 4" if kind == "csv" else "m.json: line 1, scalability 1"
    assert fault(scalability_of, Path(f"m.{kind}")) == (
        f"{place}: scalability profile of m: memory_bytes falls from 1e+10 with 1 workers to 2e+08 with 2: more workers"
        " need as much at least; measure it again"
    )
