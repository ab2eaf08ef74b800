import copy
import json
import os
from dataclasses import replace

import pytest

from hebe.planning.server_split.search import Reached
from hebe.profile import EfficiencyTuple, ProfileError
from hebe.profiling.files.op_use import OpUse
from hebe.profiling.files.server_profile import (
    ServerProfile,
    check_fits,
    check_replaceable,
    core_list,
    lane_to_scale,
    read_server_profile,
    write_server_profile,
)
from hebe.profiling.steady_machine import Disturbance
from hebe.server_configuration import Lane, Placement, to_dict
from hebe.spec import SlaTarget
from tests.examples.profiles import SERVER, SUBJECT, profile

PROFILE = profile()
FITTING = (SUBJECT.model, SUBJECT.version, SUBJECT.identity, SUBJECT.loaded, SERVER.name)


def test_a_profile_survives_the_way_to_disk_and_back(tmp_path):
    path = tmp_path / "new" / "dlrm.json"
    for written in (
        PROFILE,
        replace(PROFILE, scalability=None, server=replace(SERVER, accelerator=None)),
        replace(PROFILE, cores=(0, 1, 5)),
        replace(PROFILE, power_budget_watts=90.5),
        replace(PROFILE, subject=replace(PROFILE.subject, layout="cores 1x2, sockets 1x2, last-level caches 1x2")),
        replace(PROFILE, busy_latency={"whole": PROFILE.latency["whole"]}),
        replace(PROFILE, op_use=OpUse(64, {"attention": 0.001}, {2: 0.4, 3: 1.0})),
        replace(PROFILE, disturbance=Disturbance(0.25, 0.5, 3, 4.5, 0.1)),
        replace(PROFILE, measured=replace(PROFILE.efficiency, qps=500.0), measured_at="2026-05-05T00:00:00+00:00"),
    ):
        write_server_profile(path, written)
        assert read_server_profile(path) == written
        assert os.listdir(path.parent) == ["dlrm.json"]


def test_scalability_is_of_workers_like_those_that_run_the_model_on_the_host():
    alone = Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, 0, 1, 16, 2)
    whole, sparse = Lane(Placement.MODEL_ON_HOST, 14, 1, 256), Lane(Placement.SPARSE_ON_HOST, 2, 3, 64, 1)
    assert lane_to_scale((alone, whole), {}) == whole
    assert lane_to_scale((alone, sparse), {}) == sparse
    assert lane_to_scale((sparse, whole), {}) == whole


def test_where_all_runs_on_the_accelerator_they_are_like_the_best_that_was_tried():
    alone = Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, 0, 1, 16, 2)
    small, large = (Lane(Placement.MODEL_ON_HOST, 14, 1, items) for items in (32, 512))
    pipeline = Lane(Placement.PIPELINE_ON_HOST, 7, 1, 64, 7)
    tried = {(small,): 40.0, (large,): 90.0, (pipeline,): 99.0, (alone, small): 500.0, (alone,): 600.0}
    assert lane_to_scale((alone,), {each: Reached(qps) for each, qps in tried.items()}) == large
    assert lane_to_scale((alone,), {(alone,): Reached(600.0)}) == Lane(Placement.MODEL_ON_HOST, 1, 1, 256)


def test_a_profile_of_an_older_version_is_of_all_cores_and_has_no_power_budget():
    data = PROFILE.to_dict()
    del data["cores"], data["disturbance"], data["power_budget_watts"]
    assert ServerProfile.from_dict(data) == PROFILE


def test_cores_are_told_as_options_take_them():
    assert core_list((0,)) == "0"
    assert core_list((8, 0, 1, 2)) == "0-2,8"
    assert core_list((1, 3, 5, 6)) == "1,3,5-6"


def test_where_it_cannot_be_written_the_older_one_stays(tmp_path, monkeypatch):
    path = tmp_path / "dlrm.json"
    write_server_profile(path, PROFILE)

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*dlrm.json'"):
        write_server_profile(path, replace(PROFILE, strategy="random"))
    assert os.listdir(tmp_path) == ["dlrm.json"]
    assert read_server_profile(path) == PROFILE


def test_of_a_link_what_it_leads_to_is_replaced(tmp_path):
    path = tmp_path / "current.json"
    path.symlink_to("profiles/monday.json")
    for written in (PROFILE, replace(PROFILE, strategy="random")):
        write_server_profile(path, written)
        assert read_server_profile(tmp_path / "profiles" / "monday.json") == written
    assert path.is_symlink()
    assert os.listdir(tmp_path / "profiles") == ["monday.json"]


def test_what_is_no_file_is_written_into_and_stays(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write_server_profile(path, PROFILE)
    assert path.is_fifo()
    assert ServerProfile.from_dict(json.loads(os.read(reader, 1 << 16))) == PROFILE
    os.close(reader)


def test_two_writers_with_the_same_number_do_not_take_each_others_file(tmp_path, monkeypatch):
    """As two containers have on one volume: here the second writes while the first is about to rename."""
    path, real = tmp_path / "dlrm.json", os.replace

    def rename(temporary, file):
        monkeypatch.setattr(os, "replace", real)
        write_server_profile(path, replace(PROFILE, strategy="random"))
        real(temporary, file)

    monkeypatch.setattr(os, "replace", rename)
    write_server_profile(path, PROFILE)
    assert read_server_profile(path) == PROFILE
    assert os.listdir(tmp_path) == ["dlrm.json"]


def change(*path_and_value):
    """The plain data of the profile with one thing changed."""
    *path, last, value = path_and_value
    data = json.loads(json.dumps(PROFILE.to_dict()))
    inner = data
    for name in path:
        inner = inner[name]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([1], r"profile is \[1\]: must be an object"),
        ({}, "kind None, format None: must be kind 'server profile', format 1"),
        (change("format", 2), "kind 'server profile', format 2: must be"),
        (change("kind", "pool"), "kind 'pool'"),
        (change("colour", "red"), "profile: unknown field 'colour'"),
        (change("strategy", None), "profile: field 'strategy' is missing"),
        (change("strategy", 3), "strategy is 3"),
        (change("created", " "), "created is ' '"),
        (change("subject", "version", 0), "subject: version is 0"),
        (change("subject", "server", "another"), "subject: server is another, but the server is small-2-cores"),
        (change("server", "cores", 0), "cores is 0"),
        (change("server", "colour", 1), "server: unknown field 'colour'"),
        (change("server", "accelerator", {}), "server: accelerator: field 'name' is missing"),
        (change("server", "accelerator", "name", 3), "accelerator name 3"),
        (change("efficiency", []), r"efficiency is \[\]"),
        (change("efficiency", "qps", -1), "efficiency: .*qps is -1"),
        (change("efficiency", "qps", 0), "a configuration that keeps the SLA target"),
        (change("efficiency", "model", "din"), "efficiency is of din on small-2-cores"),
        (change("efficiency", "configuration", "workers", 7), "is not the one that the search found best"),
        (change("latency", 3), "latency is 3"),
        (change("power_budget_watts", 0), "power_budget_watts is 0.0: must be more than 0, or null"),
        (change("power_budget_watts", "90"), "profile: power_budget_watts is '90': must be a number"),
        (change("cores", 3), "cores is 3: must be a list"),
        (change("cores", []), r"cores is \[\]: must be numbers of cores, or null"),
        (change("cores", [-1]), r"cores is \[-1\]"),
        (change("cores", [True]), r"cores is \[True\]"),
        (change("latency", "whole", "service_s", None), "'service_s' is missing"),
        (change("latency", "whole", 1), "latency: whole is 1"),
        (change("scalability", "workers", []), "workers is empty"),
        (change("search", "best", 99), "search: best is 99: must be the place of one of the"),
        (change("search", "best", True), "search: best is True"),
        (change("search", "evaluations", 1), "search: evaluations is 1"),
        (change("search", "tried", 0, "qps", "many"), "search: tried 0: qps is 'many'"),
        (change("search", "tried", 0, "configuration", "workers", 0), "workers is 0"),
        (change("search", "tried", []), "search: step 0: taken is 0: must be the place of one of the 0 tried"),
        (change("search", "steps", 1, "at", 99), "search: step 1: at is 99"),
        (change("search", "steps", 0, "taken", -1), "search: step 0: taken is -1"),
        (change("search", "steps", 0, "candidates", 1), "search: step 0: candidates is 1: must be a list"),
        (change("measured", {}), "measured: .*missing"),
        (
            change("accelerator", {"memory_bytes": 1, "keys": "uniform", "key_trace": None}),
            "where the configuration uses",
        ),
        (change("accelerator", {"memory_bytes": 1.5, "keys": "uniform", "key_trace": None}), "memory_bytes is 1.5"),
        (change("accelerator", {"memory_bytes": 1, "keys": 3, "key_trace": None}), "keys must be text"),
        (change("accelerator", {"memory_bytes": 1}), "accelerator: field 'keys' is missing"),
        (change("measured_at", "now"), "measured and measured_at: give both or neither"),
        (change("measured_at", 5), "measured_at is 5: must be text"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path, data, message):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(data))
    with pytest.raises(ProfileError, match=f"profile.json: .*({message})"):
        read_server_profile(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no JSON text"),
        (b'{"kind": "server pro', "is no JSON text"),
        (b"\xff\xfe", "is no JSON text"),
        (b'{"kind": NaN}', "NaN is no number"),
        (b"[" * 100_000, "is no JSON text"),
    ],
)
def test_what_is_no_profile_is_told(tmp_path, content, message):
    path = tmp_path / "profile.json"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match=f"profile.json: .*{message}"):
        read_server_profile(path)
    with pytest.raises(ProfileError, match=r"none.json: cannot be read: No such file"):
        read_server_profile(tmp_path / "none.json")


def test_a_profile_of_what_keeps_no_target_cannot_be():
    nothing = EfficiencyTuple("dlrm", SERVER.name, 0.0, 0.0, dict(PROFILE.efficiency.configuration))
    with pytest.raises(ProfileError, match="keeps the SLA target"):
        replace(PROFILE, efficiency=nothing)


def test_a_profile_starts_the_server_that_it_is_of(tmp_path):
    path = tmp_path / "profile.json"
    write_server_profile(path, PROFILE)
    check_fits(read_server_profile(path), *FITTING)
    assert to_dict(read_server_profile(path).configuration) == dict(PROFILE.efficiency.configuration)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, "din", "is of model dlrm, not of din"),
        (1, 4, "is of version 3 of dlrm, not of 4: profile it again"),
        (2, "cd34", "version 3 of dlrm was written anew since it was profiled"),
        (3, "compiled, rows int8", "was made with the model loaded so: scripted; and here it is: compiled"),
        (4, "large-64-cores", "was made on a server small-2-cores, and this one is large-64-cores"),
    ],
)
def test_a_profile_of_something_else_is_refused(place, value, message):
    asked = list(FITTING)
    asked[place] = value
    with pytest.raises(ProfileError, match=f"^(the profile )?{message}"):
        check_fits(PROFILE, *asked)


def test_a_profile_of_cores_that_lie_otherwise_is_refused():
    siblings, apart = "cores 1x2, sockets 1x2, last-level caches 1x2", "cores 2x1, sockets 1x2, last-level caches 1x2"
    made = replace(PROFILE, subject=replace(PROFILE.subject, layout=siblings), cores=(0, 1))
    check_fits(made, *FITTING, siblings)
    check_fits(made, *FITTING)
    check_fits(PROFILE, *FITTING, apart)  # of an older version: it is not known
    with pytest.raises(
        ProfileError, match=f"on cores 0-1 that lie otherwise .*: {siblings}; and these lie so: {apart}"
    ):
        check_fits(made, *FITTING, apart)


APART = "cores 2x1, sockets 1x2, last-level caches 1x2"


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"identity": "cd34"},
        {"loaded": "compiled"},
        {"sla": SlaTarget(5.0, 99.0)},
        {"load": "any"},
        {"layout": APART},
    ],
)
def test_a_newer_profile_of_the_same_takes_its_place(tmp_path, changed):
    """Where an older version has not noted how cores lie to each other, they may lie as these do."""
    path = tmp_path / "profile.json"
    subject = replace(SUBJECT, **changed)
    check_replaceable(path, subject)
    path.touch()
    check_replaceable(path, subject)
    write_server_profile(path, PROFILE)
    check_replaceable(path, subject)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": "din"}, "of model dlrm, not din: write"),
        ({"version": 4}, "of version 3, not 4: write"),
        ({"server": "large"}, "of server small-2-cores, not large: write"),
        ({"layout": "cores 1x2"}, f"of cores that lie so: {APART}, not cores 1x2: write"),
        ({"version": 4, "server": "large"}, "of version 3, not 4, and of server small-2-cores, not large: write"),
    ],
)
def test_a_profile_of_something_else_is_not_replaced(tmp_path, changed, message):
    path = tmp_path / "profile.json"
    write_server_profile(path, replace(PROFILE, subject=replace(SUBJECT, layout=APART)))
    with pytest.raises(ProfileError, match=rf"{path} holds another profile, {message} .*\(--output\).*\(--replace\)$"):
        check_replaceable(path, replace(SUBJECT, **changed))


@pytest.mark.parametrize("content", ['{"my": "config"}', "[", "text"])
def test_what_is_no_profile_is_not_replaced(tmp_path, content):
    path = tmp_path / "profile.json"
    path.write_text(content)
    with pytest.raises(ProfileError, match=rf"^{path}: .*\. What is no profile is not overwritten: .*\(--output\)"):
        check_replaceable(path, SUBJECT)


def test_a_profile_is_its_own():
    latency = dict(PROFILE.latency)
    held = replace(PROFILE, latency=latency)
    latency.clear()
    assert held.latency == PROFILE.latency
    assert ServerProfile.from_dict(copy.deepcopy(PROFILE.to_dict())) == PROFILE
