"""A server that starts as a profile says, answers as any other, and corrects the profile by what it serves."""

from __future__ import annotations

import json
import signal
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

import hebe
from hebe.cli.main import main
from hebe.cli.serve import profiled_configurations
from hebe.load_generator.discovery import get_json
from hebe.load_generator.target import Target, parse_endpoint
from hebe.machine.pinning import available_cores
from hebe.machine.this_server import this_server
from hebe.models.repository.repository import ModelRepository
from hebe.planning.server_split.search import Reached, SearchResult
from hebe.profile import EfficiencyTuple, LatencyProfile
from hebe.profiling.files.accelerator_use import AcceleratorUse
from hebe.profiling.files.profiled_model import ProfileSubject
from hebe.profiling.files.server_profile import ServerProfile, read_server_profile, write_server_profile
from hebe.runtime.accelerator import Accelerator
from hebe.runtime.loaded_model import LoadOptions
from hebe.server_configuration import Lane, Placement, to_dict
from hebe.serving import server as server_module
from hebe.serving.hosting import profile_in_use
from hebe.serving.hosting.model_host import HostOptions
from hebe.serving.hosting.profile_correction import ProfileCorrection
from hebe.spec import ModelSpec, SlaTarget

from .served import (
    PATIENCE_S,
    TOLERANCE,
    Changing,
    HebeServe,
    Reference,
    draw,
    eventually,
    hebe_serve,
    small_dlrm,
    store,
    triton_inputs,
)

BATCH = 16
WHOLE = (Lane(Placement.MODEL_ON_HOST, 1, 1, BATCH),)
SPLITS = {
    "whole": WHOLE,
    "pipeline": (Lane(Placement.PIPELINE_ON_HOST, 1, 1, BATCH, 1),),
    "sparse on host": (Lane(Placement.SPARSE_ON_HOST, 1, 1, BATCH, 1, 64),),
    "hot rows": (Lane(Placement.HOT_SPARSE_ON_ACCELERATOR, 1, 1, BATCH, 1, 64),),
}
SLA = SlaTarget(5000.0, 60.0)
"""Not the model's own, in reach of a busy machine, and kept or missed after few queries."""


def split(name: str) -> tuple[Lane, ...]:
    """One of `SPLITS`; with one core, only the whole model fits."""
    return SPLITS[name] if len(available_cores()) > 1 else WHOLE


def write_profile(root: Path, lanes: tuple[Lane, ...], qps: float = 0.5) -> Path:
    """A profile of `ranker` on this server, whose best configuration is `lanes`."""
    stored, server = ModelRepository(root / "models").open("ranker"), this_server()
    reached = Reached(qps, 1.0, 5.0)
    load = "sizes fixed:8, arrivals poisson, keys zipf:1.05, seed 0, quick"
    made = ServerProfile(
        ProfileSubject("ranker", stored.version, stored.identity, LoadOptions().words(), server.name, SLA, load),
        server,
        "hercules",
        "2026-05-04T03:02:01+00:00",
        EfficiencyTuple("ranker", server.name, qps, 1.0, to_dict(lanes), estimated=True),
        "CPU utilization",
        {"whole": LatencyProfile((16,), (0.001,), (0.0,))},
        None,
        SearchResult(lanes, reached, lanes, {lanes: reached}, (), 1),
        AcceleratorUse(2000, "zipf:1.05") if lanes[0].placement.on_accelerator else None,
    )
    path = root / "ranker.json"
    write_server_profile(path, made)
    return path


def status_of(where: str) -> dict:
    code, document = get_json(Target(parse_endpoint(where, "http"), ""), "/v2/status", "")
    assert code == 200
    (model,) = document["models"]
    return model


@pytest.fixture
def models(tmp_path: Path) -> Path:
    store(tmp_path / "models", small_dlrm("ranker"))
    return tmp_path / "models"


def test_a_server_starts_as_its_profile_says(tmp_path: Path, models: Path, capsys: pytest.CaptureFixture[str]):
    lanes = split("pipeline")
    path = write_profile(tmp_path, lanes)
    with hebe_serve(models, tmp_path / "log", "--profile", str(path)) as server:
        server.wait_until_ready()
        ask_both(server, models)
        model = status_of(server.http)
        assert model["configuration"] == model["profile"]["configuration"] == to_dict(lanes)
        assert (model["workers"], model["batch_size"]) == (lanes[0].cores, BATCH)
        assert (model["sla"]["latency_ms"], model["sla"]["percentile"]) == (SLA.latency_ms, SLA.percentile)
        assert (model["profile"]["qps"], model["profile"]["estimated"]) == (0.5, True)
        assert (model["measured"]["qps"], model["measured"]["at"]) == (None, None)
        assert server.metrics().value("hebe_profile_qps", model="ranker", version="1") == 0.5
        assert server.metrics().value("hebe_measured_qps") == 0, "no sample"
        with pytest.raises(SystemExit) as ended:
            main(["status", server.http])
        assert ended.value.code == 0
        assert f"{lanes[0].placement}, 1 " in capsys.readouterr().out

        with tritonclient.http.InferenceServerClient(server.http) as operator:
            operator.load_model("ranker", config=json.dumps(to_dict(WHOLE)))
            assert status_of(server.http)["profile"] is None, "of another configuration"
            operator.load_model("ranker", config=json.dumps(to_dict(lanes)))
        assert status_of(server.http)["profile"] == model["profile"]

        store(models, small_dlrm("ranker"), seed=1)  # its profile is of another version
        assert Changing(server, models).load("ranker")[0] == 200
        ask_both(server, models)
        model = eventually(lambda: (now := status_of(server.http))["version"] == 2 and now, "the new version")
        assert model["configuration"] == to_dict(lanes)
        assert (model["profile"], model["measured"]) == (None, None)
        assert server.metrics().value("hebe_profile_qps") == 0
        assert "profile it anew" in server.log
        assert "it is of version 1" in server.log
        assert server.end(signal.SIGTERM) == 0
    assert read_server_profile(path).measured is None


def ask_both(server: HebeServe, models: Path) -> None:
    """Scores over both protocols are plain PyTorch's."""
    inputs = draw(small_dlrm("ranker"), 3 * BATCH + 5, np.random.default_rng(3))
    expected = Reference(models, "ranker").scores(inputs)
    for module, where in ((tritonclient.http, server.http), (tritonclient.grpc, server.grpc)):
        with module.InferenceServerClient(where) as client:
            scores = client.infer("ranker", triton_inputs(module, inputs)).as_numpy("score")
        np.testing.assert_allclose(scores, expected, atol=TOLERANCE)


@pytest.mark.usefixtures("this_process")
@pytest.mark.parametrize("name", ["pipeline", "hot rows"])
def test_what_it_serves_corrects_the_profile(name: str, tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch):
    lanes = split(name)
    path = write_profile(tmp_path, lanes)
    before = read_server_profile(path)
    monkeypatch.setattr(server_module, "ProfileCorrection", partial(ProfileCorrection, every_s=0.1))
    monkeypatch.setattr(profile_in_use, "LASTING_S", 0.0)
    configurations, made = profiled_configurations(models, [path], LoadOptions()), []
    make = configurations["ranker"].accelerator

    def accelerator(spec: ModelSpec) -> Accelerator:
        made.append(make(spec))
        return made[-1]

    if make is not None:
        configurations = {"ranker": replace(configurations["ranker"], accelerator=accelerator)}
    options = HostOptions(configurations=configurations)
    spec, rng = small_dlrm("ranker"), np.random.default_rng(5)
    reference = Reference(models, "ranker")
    with hebe.Server(models, hebe.ServerOptions(http_port=0, grpc_port=0, metrics_port=0, models=options)) as server:
        where = f"127.0.0.1:{server.http_port}"
        with tritonclient.http.InferenceServerClient(where) as client:

            def corrected() -> dict | None:
                for items in (1, BATCH, 2 * BATCH + 1):
                    inputs = draw(spec, items, rng)
                    scores = client.infer("ranker", triton_inputs(tritonclient.http, inputs)).as_numpy("score")
                    np.testing.assert_allclose(scores, reference.scores(inputs), atol=TOLERANCE)
                model = status_of(where)
                return model if model["measured"]["at"] else None

            model = eventually(corrected, "a correction", PATIENCE_S)
        assert model["configuration"] == to_dict(lanes)
        assert model["profile"]["qps"] == 0.5
        assert model["measured"]["qps"] > 0.5
        assert model["measured"]["window"]["kept"] is True
    now = read_server_profile(path)
    assert replace(now, measured=None, measured_at=None) == before
    assert now.measured.qps >= model["measured"]["qps"]
    assert now.measured.configuration == before.efficiency.configuration
    assert not any(each._nets for each in made), "its memory is given back"
    assert not [thread.name for thread in threading.enumerate() if "power" in thread.name]


def other_server(profile: dict) -> None:
    for told in (profile["server"], profile["efficiency"]):
        told["name" if "name" in told else "server_type"] = "abacus-1-cores"
    profile["subject"]["server"] = "abacus-1-cores"


def other_version(profile: dict) -> None:
    profile["subject"]["version"] = 7


def written_anew(profile: dict) -> None:
    profile["subject"]["identity"] = "0" * 64


def no_such_model(profile: dict) -> None:
    profile["subject"]["model"] = profile["efficiency"]["model"] = "gone"


def damaged(profile: dict) -> None:
    del profile["efficiency"]


@pytest.mark.usefixtures("this_process")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (other_server, "was made on a server abacus-1-cores, and this one is"),
        (other_version, "is of version 7 of ranker, not of 1: profile it again"),
        (written_anew, "its files differ. Profile it again"),
        (no_such_model, "is of gone, which"),
        (damaged, "'efficiency' is missing"),
    ],
)
def test_a_profile_that_does_not_fit_starts_nothing(
    tmp_path: Path, models: Path, capsys: pytest.CaptureFixture[str], change, says
):
    path = write_profile(tmp_path, WHOLE)
    profile = json.loads(path.read_text())
    change(profile)
    path.write_text(json.dumps(profile))
    content = path.read_bytes()
    with pytest.raises(SystemExit) as ended:
        main(["serve", str(models), "--profile", str(path), "--http-port=0", "--grpc-port=0", "--metrics-port=0"])
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert len(told.splitlines()) == 1
    assert told.startswith(f"error: {path}: ")
    assert says in told
    assert path.read_bytes() == content


@pytest.mark.usefixtures("this_process")
def test_another_sla_keeps_the_configuration_and_not_the_tuple(tmp_path: Path, models: Path):
    configurations = profiled_configurations(models, [write_profile(tmp_path, WHOLE)], LoadOptions())
    options = HostOptions(configurations=configurations, sla_ms=77.0)
    with hebe.Server(models, hebe.ServerOptions(http_port=0, grpc_port=0, metrics_port=0, models=options)) as server:
        model = status_of(f"127.0.0.1:{server.http_port}")
    assert (model["sla"]["latency_ms"], model["sla"]["percentile"]) == (77.0, SLA.percentile)
    assert model["configuration"] == to_dict(WHOLE)
    assert model["profile"] is None
