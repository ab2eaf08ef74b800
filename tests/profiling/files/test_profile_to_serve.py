from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from hebe.models.architectures.build import build_dense_net
from hebe.models.architectures.ranking_model import initial_rows
from hebe.models.repository.repository import ModelRepository
from hebe.planning.server_split.search import Reached, SearchResult
from hebe.profile import EfficiencyTuple, ProfileError
from hebe.profiling.files.accelerator_use import AcceleratorUse
from hebe.profiling.files.profile_to_serve import configurations_to_serve, keep_measured
from hebe.profiling.files.server_profile import read_server_profile, write_server_profile
from hebe.server_configuration import Lane, Placement, to_dict
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling, SlaTarget
from tests.examples.profiles import SERVER, SUBJECT, profile

PIPELINE = (Lane(Placement.PIPELINE_ON_HOST, 1, 1, 32, 1),)
HOT = (Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, 1, 1, 32, 1, 64),)
USE = AcceleratorUse(48, "uniform")
SPARSE = (Lane(Placement.SPARSE_ON_HOST, 1, 1, 32, 1, 64),)


def spec(name):
    return ModelSpec(
        name,
        "dlrm",
        tables=(EmbeddingTableSpec("things", 30, 4),),
        features=(FeatureSpec("thing", "things", 1, Pooling.SUM),),
        dense_dim=2,
        towers={"bottom": (4,), "top": (1,)},
    )


def write(repository, name):
    model = spec(name)
    tables = {table.name: initial_rows(model, table.name, 0) for table in model.tables}
    return ModelRepository(repository).write(model, tables, build_dense_net(model, 0).state_dict())


def profile_of(stored, lanes=PIPELINE, use=USE):
    """A profile of a stored model whose best configuration is `lanes`."""
    reached = Reached(200.0, 30.0, 5.0)
    return replace(
        profile(),
        subject=replace(
            profile().subject,
            model=stored.name,
            version=stored.version,
            identity=stored.identity,
            sla=SlaTarget(30.0, 99.0),
        ),
        efficiency=EfficiencyTuple(stored.name, SERVER.name, 200.0, 30.0, to_dict(lanes), estimated=True),
        search=SearchResult(lanes, reached, lanes, {lanes: reached}, (), 1),
        scalability=None,
        accelerator=use if lanes[0].placement.on_accelerator else None,
    )


@pytest.fixture
def stored(tmp_path):
    return write(tmp_path / "models", "ranker")


def served(tmp_path, *paths, server=SERVER.name):
    return configurations_to_serve(tmp_path / "models", paths, SUBJECT.loaded, server)


def test_models_are_served_as_their_profiles_say(tmp_path, stored):
    other = write(tmp_path / "models", "lone")
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    measured = replace(profile_of(stored).efficiency, qps=210.0)
    made = replace(profile_of(stored), measured=measured, measured_at="before", power_budget_watts=35.0)
    write_server_profile(paths[0], made)
    write_server_profile(paths[1], profile_of(other, SPARSE))
    found = served(tmp_path, *paths)
    assert list(found) == ["ranker", "lone"]
    ranker = found["ranker"]
    assert (ranker.lanes, ranker.version, ranker.identity) == (PIPELINE, stored.version, stored.identity)
    assert (ranker.sla, ranker.accelerator) == (SlaTarget(30.0, 99.0), None)
    assert (ranker.power_budget_watts, found["lone"].power_budget_watts) == (35.0, None)
    assert (ranker.efficiency.qps, ranker.measured, ranker.measured_at) == (200.0, measured, "before")
    ranker.keep(replace(measured, qps=220.0), "now")
    now = read_server_profile(paths[0])
    assert (now.efficiency, now.measured.qps, now.measured_at) == (ranker.efficiency, 220.0, "now")
    assert read_server_profile(paths[1]) == profile_of(other, SPARSE)


@pytest.mark.parametrize("lanes", [HOT, SPARSE])
def test_an_accelerator_is_as_it_was_while_profiling(tmp_path, stored, lanes):
    write_server_profile(tmp_path / "a.json", profile_of(stored, lanes))
    assert served(tmp_path, tmp_path / "a.json")["ranker"].accelerator(stored.spec).memory_bytes == 48


def test_a_gpu_that_is_not_here_is_named(tmp_path, stored, monkeypatch):
    write_server_profile(tmp_path / "a.json", profile_of(stored, SPARSE, replace(USE, gpu="NVIDIA X9")))
    assert read_server_profile(tmp_path / "a.json").accelerator.gpu == "NVIDIA X9"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ProfileError, match=r"made with the accelerator NVIDIA X9: .*; profile ranker again here"):
        served(tmp_path, tmp_path / "a.json")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA X10")
    with pytest.raises(ProfileError, match=r"NVIDIA X9: the GPU here is NVIDIA X10; profile ranker again here"):
        served(tmp_path, tmp_path / "a.json")


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (AcceleratorUse(48, "uniform", "gone.safetensors"), "gone.safetensors: cannot be read"),
        (AcceleratorUse(48, "reuse:gone.csv"), "gone.csv"),
    ],
)
def test_hot_rows_need_what_told_them(tmp_path, stored, use, says):
    write_server_profile(tmp_path / "a.json", profile_of(stored, HOT, use))
    with pytest.raises(ProfileError, match=rf"a.json: which rows are hot .*{says}.*; profile ranker again"):
        served(tmp_path, tmp_path / "a.json")


def test_hot_rows_by_a_file_that_was_rewritten_are_not_those_that_were_measured(tmp_path, stored):
    path = tmp_path / "keys.safetensors"
    save_file({"things": np.array([3, 3, 1], np.int64)}, path)
    write_server_profile(tmp_path / "a.json", profile_of(stored, HOT, AcceleratorUse.now(48, "uniform", str(path))))
    served(tmp_path, tmp_path / "a.json")
    save_file({"things": np.array([3, 3, 2], np.int64)}, path)
    says = r"a.json: which rows are hot .*keys.safetensors has changed since it was profiled; profile ranker again"
    with pytest.raises(ProfileError, match=says):
        served(tmp_path, tmp_path / "a.json")
    path.unlink()
    with pytest.raises(ProfileError, match=r"keys\.safetensors: cannot be read"):
        served(tmp_path, tmp_path / "a.json")


@pytest.mark.parametrize(
    ("usable", "of", "server", "says"),
    [
        ((0, 1, 2, 3), None, "small-4-cores", r"\(taskset -c 0-1 hebe serve .*models --profile .*a.json\), or serve"),
        ((0, 1, 2, 3), (1, 3), "small-4-cores", r"\(taskset -c 1,3 hebe serve "),
        ((4, 5, 6), (1, 3), "small-3-cores", r"\(taskset -c 4-5 hebe serve "),
        ((7,), None, "small-1-cores", r"hebe profile .*models --model ranker --cores 7\), or serve ranker without one"),
        ((0, 1, 2, 3), None, "large-4-cores", r"hebe profile .*models --model ranker\), or serve ranker without one"),
    ],
)
def test_how_to_serve_on_the_cores_that_it_was_made_on_is_said(tmp_path, stored, monkeypatch, usable, of, server, says):
    monkeypatch.setattr("hebe.profiling.files.profile_to_serve.available_cores", lambda: usable)
    monkeypatch.setattr(os, "cpu_count", lambda: 3 if server == "small-3-cores" else 4)
    write_server_profile(tmp_path / "a.json", replace(profile_of(stored), cores=of))
    with pytest.raises(ProfileError, match=says):
        served(tmp_path, tmp_path / "a.json", server=server)


@pytest.mark.parametrize(
    ("change", "server", "says"),
    [
        ({"version": 2}, SERVER.name, "is of version 2 of ranker, not of 1: profile it again"),
        ({"identity": "ff"}, SERVER.name, "was written anew since it was profiled"),
        ({"model": "gone"}, SERVER.name, "is of gone, which .*models does not have; it has: ranker"),
        ({}, "large-64-cores", "was made on a server small-2-cores, and this one is large-64-cores"),
    ],
)
def test_a_profile_that_does_not_fit_is_refused(tmp_path, stored, change, server, says):
    made = profile_of(stored)
    changed = replace(
        made,
        subject=replace(made.subject, **change),
        efficiency=replace(made.efficiency, model=change.get("model", "ranker")),
    )
    path = tmp_path / "a.json"
    write_server_profile(path, changed)
    with pytest.raises(ProfileError, match=f"a.json: .*{says}"):
        served(tmp_path, path, server=server)
    assert read_server_profile(path) == changed


def test_what_to_do_is_said(tmp_path, stored, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    write_server_profile(tmp_path / "a.json", profile_of(stored))
    with pytest.raises(ProfileError, match=r"\(hebe profile .*models --model ranker\), or serve ranker without one"):
        served(tmp_path, tmp_path / "a.json", server="another")


def test_two_profiles_of_one_model_are_refused(tmp_path, stored):
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in paths:
        write_server_profile(path, profile_of(stored))
    with pytest.raises(ProfileError, match=r"b.json and .*a.json are both profiles of ranker: give one of them"):
        served(tmp_path, *paths)


@pytest.mark.parametrize("content", [b"", b'{"kind": 1}', b"\x00" * 10, None])
def test_a_file_that_is_no_profile_is_refused(tmp_path, content):
    (tmp_path / "models").mkdir()
    if content is not None:
        (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ProfileError, match=r"a\.json: "):
        served(tmp_path, tmp_path / "a.json")


def test_a_profile_that_was_made_meanwhile_stays(tmp_path, stored):
    path, before = tmp_path / "a.json", profile_of(stored)
    after = replace(before, created="2026-06-01T00:00:00+00:00")
    write_server_profile(path, after)
    with pytest.raises(ProfileError, match="holds another profile by now"):
        keep_measured(path, before, replace(before.efficiency, qps=1.0), "now")
    assert read_server_profile(path) == after


def test_what_serving_measures_goes_into_the_file_that_a_link_leads_to(tmp_path, stored):
    path, before = tmp_path / "monday.json", profile_of(stored)
    write_server_profile(path, before)
    (tmp_path / "current.json").symlink_to(path)
    keep_measured(tmp_path / "current.json", before, replace(before.efficiency, qps=1.0), "now")
    assert (tmp_path / "current.json").is_symlink()
    assert read_server_profile(path).measured_at == "now"


def test_where_the_disk_is_full_the_file_stays(tmp_path, stored, monkeypatch):
    path, before = tmp_path / "a.json", profile_of(stored)
    write_server_profile(path, before)

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        keep_measured(path, before, replace(before.efficiency, qps=1.0), "now")
    assert read_server_profile(path) == before
