"""From start to stop: loading, replacing, failing to load, unloading, signals."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc as grpc_core
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from hebe.models.architectures.build import build_dense_net
from hebe.models.architectures.ranking_model import initial_rows
from hebe.models.repository.repository import ModelRepository

from .served import (
    PATIENCE_S,
    TOLERANCE,
    Changing,
    Inputs,
    Reference,
    address,
    binary_body,
    draw,
    error_of,
    eventually,
    hebe_serve,
    is_ready,
    post,
    small_dlrm,
    store,
    triton_inputs,
)

WATCHED = small_dlrm("watched", 800_000, 16)
"""A model large enough, 77 MB, to see in the process's size whether it is there."""


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Changing]:
    """`damaged` cannot be loaded when the server starts."""
    root = tmp_path_factory.mktemp("changing")
    for spec in (small_dlrm("swapped", 100_000, 16), small_dlrm("kept"), small_dlrm("damaged"), WATCHED):
        store(root / "models", spec, seed=1)
    table = root / "models" / "damaged" / "1" / "tables" / "ads.safetensors"
    shutil.copy(table, root / "ads.safetensors")
    os.truncate(table, table.stat().st_size - 4)
    with hebe_serve(root / "models", root / "log") as server:
        eventually(lambda: "not every model is loaded" in server.log, "loading ends", 5 * PATIENCE_S)
        yield Changing(server, root / "models")
        assert server.end(signal.SIGTERM) == 0
        assert "Traceback" not in server.log


def test_a_server_without_one_of_its_models_serves_the_others_and_is_not_ready(changing: Changing, rng):
    server = changing.server

    def health() -> Any:
        with grpc_core.insecure_channel(server.grpc) as channel:
            return health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest()).status

    assert not is_ready(server.http)
    assert health() == health_pb2.HealthCheckResponse.NOT_SERVING
    inputs = draw(small_dlrm("kept"), 5, rng)
    wanted = Reference(changing.repository, "kept").scores(inputs)
    np.testing.assert_allclose(changing.scores("kept", inputs)[1], wanted, rtol=0, atol=TOLERANCE)
    entry = changing.index()["damaged"]
    assert (entry["state"], entry["version"]) == ("UNAVAILABLE", "1")
    assert "ads.safetensors" in entry["reason"]
    assert "request refused" not in server.log, "that it is not ready is no news"
    body, header_length = binary_body(inputs)
    headers = {"Inference-Header-Content-Length": str(header_length)}
    message = error_of(post(server.http, "/v2/models/damaged/infer", body, headers), 503)
    assert message == f"model damaged is unavailable: {entry['reason']}"

    shutil.copy(changing.repository.parent / "ads.safetensors", changing.repository / "damaged" / "1" / "tables")
    assert changing.load("damaged")[0] == 200
    assert is_ready(server.http)
    assert health() == health_pb2.HealthCheckResponse.SERVING
    assert changing.index()["damaged"]["reason"] == ""
    wanted = Reference(changing.repository, "damaged").scores(inputs)
    np.testing.assert_allclose(changing.scores("damaged", inputs)[1], wanted, rtol=0, atol=TOLERANCE)


async def test_versions_change_under_load_without_a_failed_or_wrong_answer(changing: Changing):
    """Versions 1 -> 2 -> 1 while four clients ask without pause."""
    server, name = changing.server, "swapped"
    assert store(changing.repository, small_dlrm(name, 100_000, 16), seed=2) == 2
    spec = small_dlrm(name, 100_000, 16)
    asked = [draw(spec, items, np.random.default_rng(items)) for items in (1, 3, 20, 400)]
    wanted = {
        version: [Reference(changing.repository, name, version).scores(inputs) for inputs in asked]
        for version in (1, 2)
    }
    for one, other in zip(*wanted.values(), strict=True):
        assert np.abs(one - other).min() > 10 * TOLERANCE, "the versions must be told apart by their scores"
    answered: list[tuple[int, int, int]] = []
    """In which phase each was sent and answered, and by which version. A version changes in those of odd number."""
    phase, over = 0, False

    async def ask(module: Any, url: str) -> None:
        async with module.InferenceServerClient(url) as client:
            number = 0
            while not over:
                inputs, sent = asked[number % len(asked)], phase
                result = await client.infer(name, triton_inputs(module, inputs))
                response = result.get_response()
                version = int(response["model_version"] if isinstance(response, dict) else response.model_version)
                np.testing.assert_allclose(
                    result.as_numpy("score"), wanted[version][number % len(asked)], rtol=0, atol=TOLERANCE
                )
                answered.append((sent, phase, version))
                number += 1

    async def answers(enough: int) -> None:
        while sum(sent == phase for sent, _, _ in answered) < enough:
            assert not any(client.done() for client in clients)
            await asyncio.sleep(0.01)

    clients = [
        asyncio.ensure_future(ask(module, url))
        for module, url in ((tritonclient.http.aio, server.http), (tritonclient.grpc.aio, server.grpc))
        for _ in range(2)
    ]
    try:
        await asyncio.wait_for(answers(40), PATIENCE_S)
        for version in (2, 1):
            phase += 1
            status, _, body = await asyncio.to_thread(changing.load, name, None if version == 2 else 1)
            assert status == 200, body
            phase += 1
            await asyncio.wait_for(answers(40), PATIENCE_S)
            assert changing.index()[name] == {"name": name, "version": str(version), "state": "READY", "reason": ""}
    finally:
        over = True
        await asyncio.gather(*clients)
    for settled, version in ((0, 1), (2, 2), (4, 1)):
        assert {by for sent, got, by in answered if sent == got == settled} == {version}


def _write_with_nan(repository: Path, name: str) -> None:
    spec = ModelRepository(repository).open(name).spec
    state = build_dense_net(spec, 5).state_dict()
    next(iter(state.values())).view(-1)[0] = float("nan")
    ModelRepository(repository).write(spec, {t.name: initial_rows(spec, t.name, 5) for t in spec.tables}, state)


def _damage_dense(version: Path) -> None:
    content = bytearray((version / "dense.safetensors").read_bytes())
    content[-3] ^= 8
    (version / "dense.safetensors").write_bytes(content)


def _edit(version: Path) -> None:
    text = (version / "model.toml").read_text()
    (version / "model.toml").write_text(text.replace("dense_dim = 4", "dense_dim = 5"))


DAMAGE: dict[str, tuple[Callable[[Path], None] | None, str]] = {
    "truncated table": (lambda v: os.truncate(v / "tables" / "users.safetensors", 1000), "users.safetensors"),
    "missing table": (lambda v: (v / "tables" / "ads.safetensors").unlink(), "ads.safetensors"),
    "damaged weights": (_damage_dense, "dense.safetensors"),
    "edited model.toml": (_edit, "model.toml: truncated, damaged or edited by hand"),
    "weights that are not numbers": (None, "a score that is not finite"),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_version_that_fails_to_load_changes_nothing_but_the_reason(changing: Changing, rng, how: str):
    damage, says = DAMAGE[how]
    inputs = draw(small_dlrm("kept"), 30, rng)
    wanted = Reference(changing.repository, "kept", 1).scores(inputs)
    if damage is None:
        _write_with_nan(changing.repository, "kept")
    else:
        store(changing.repository, small_dlrm("kept"), seed=3)
        damage(changing.repository / "kept" / "2")
    try:
        message = error_of(changing.load("kept"), 400)
        assert message.startswith("model kept: ")
        assert says in message
        entry = changing.index()["kept"]
        assert (entry["version"], entry["state"]) == ("1", "READY")
        assert entry["reason"].startswith("version 2 failed to load: ")
        assert says in entry["reason"]
        version, scores = changing.scores("kept", inputs)
        assert version == 1
        np.testing.assert_allclose(scores, wanted, rtol=0, atol=TOLERANCE)
    finally:
        shutil.rmtree(changing.repository / "kept" / "2")
    assert changing.load("kept")[0] == 200
    assert changing.index()["kept"]["reason"] == ""


def test_a_load_by_request_is_verified_where_the_server_was_told_to(small_repository: Path, tmp_path: Path, rng):
    """One bit of one row of version 2 differs, of which nothing but a checksum can know."""
    assert store(small_repository, small_dlrm("ranker"), seed=4) == 2
    damaged = small_repository / "ranker" / "2" / "tables" / "users.safetensors"
    inputs = draw(small_dlrm("ranker"), 9, rng)

    def flip() -> None:
        with damaged.open("r+b") as file:
            file.seek(-70, os.SEEK_END)
            (byte,) = file.read(1)
            file.seek(-70, os.SEEK_END)
            file.write(bytes([byte ^ 1]))

    with hebe_serve(small_repository, tmp_path / "log", "--verify") as server:
        server.wait_until_ready()
        changing = Changing(server, small_repository)
        assert changing.load("ranker", 1)[0] == 200
        flip()
        message = error_of(changing.load("ranker"), 400)
        assert message.startswith(f"model ranker: {damaged}: checksum differs: ")
        entry = changing.index()["ranker"]
        assert (entry["version"], entry["state"]) == ("1", "READY")
        assert "users.safetensors: checksum differs" in entry["reason"]
        assert is_ready(server.http)
        for version in (1, 2):
            answered, scores = changing.scores("ranker", inputs)
            assert answered == version
            wanted = Reference(small_repository, "ranker", version).scores(inputs)
            np.testing.assert_allclose(scores, wanted, rtol=0, atol=TOLERANCE)
            if version == 1:
                flip()
                assert changing.load("ranker")[0] == 200


def test_memory_comes_back(changing: Changing, rng):
    """After unloading, after a replacement, and after a load that fails once the tables are in memory."""
    server, table_bytes = changing.server, WATCHED.table_bytes
    inputs = draw(WATCHED, 10, rng)
    wanted = Reference(changing.repository, "watched").scores(inputs)
    with_it = server.resident_bytes
    assert post(server.http, "/v2/repository/models/watched/unload", b"")[0] == 200
    without = server.resident_bytes
    assert with_it - without > 0.8 * table_bytes
    for _ in range(2):
        assert changing.load("watched")[0] == 200
    eventually(lambda: server.resident_bytes < without + 1.3 * table_bytes, "the replaced one's memory is back")
    np.testing.assert_allclose(changing.scores("watched", inputs)[1], wanted, rtol=0, atol=TOLERANCE)
    _write_with_nan(changing.repository, "watched")
    error_of(changing.load("watched"), 400)
    assert server.resident_bytes < without + 1.3 * table_bytes
    assert post(server.http, "/v2/repository/models/watched/unload", b"")[0] == 200
    assert server.resident_bytes < without + 0.3 * table_bytes


@pytest.fixture
def small_repository(tmp_path: Path) -> Path:
    store(tmp_path / "models", small_dlrm("ranker"))
    return tmp_path / "models"


def requests_until(ended: threading.Event, inputs: Inputs) -> Iterator[service_pb2.ModelInferRequest]:
    """One request, then none, on a stream that stays open."""
    request = service_pb2.ModelInferRequest(model_name="ranker")
    for tensor in triton_inputs(tritonclient.grpc, inputs):
        request.inputs.append(tensor._get_tensor())
        request.raw_input_contents.append(tensor._get_content())
    yield request
    ended.wait(PATIENCE_S)


def test_readiness_comes_once_and_means_that_queries_are_answered(small_repository: Path, tmp_path: Path, rng):
    inputs = draw(small_dlrm("ranker"), 3, rng)
    with hebe_serve(small_repository, tmp_path / "log") as server:
        body = b'{"inputs": []}'
        while not is_ready(server.http):
            status, headers, content = post(server.http, "/v2/models/ranker/infer", body)
            if status == 503:
                assert "ranker is being loaded" in json.loads(content)["error"]
                assert int(headers["retry-after"]) >= 1
        with tritonclient.http.InferenceServerClient(server.http) as client:
            assert client.infer("ranker", triton_inputs(tritonclient.http, inputs)).as_numpy("score").shape == (3, 1)
        assert is_ready(server.http)
        # Connections that hang about do not hold the end up.
        idle = socket.create_connection(address(server.http))
        with grpc_core.insecure_channel(server.grpc) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            ended = threading.Event()
            stream = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(requests_until(ended, inputs))
            assert next(stream).infer_response.model_name == "ranker"
            assert server.end(signal.SIGINT) == 0
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert list(stream) == [], "it ends as a stream that is over, not as an error"
            ended.set()
        assert idle.recv(1) == b""
        idle.close()
        assert "Traceback" not in server.log
        assert server.log.rstrip().splitlines()[-1].endswith("stopped")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_answers_what_was_admitted(small_repository: Path, tmp_path: Path, rng, number: signal.Signals):
    """Queries that wait for company, so that they are under way when the signal comes; then they wait no more."""
    reference = Reference(small_repository, "ranker")
    options = ["--max-wait-ms", "300000", "--workers", "1"]
    with hebe_serve(small_repository, tmp_path / "log", *options) as server:
        server.wait_until_ready()
        asked = [draw(reference.spec, 4, rng) for _ in range(6)]

        def ask(place: int) -> np.ndarray:
            if place % 2:
                with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
                    result = client.infer("ranker", triton_inputs(tritonclient.grpc, asked[place]))
                return result.as_numpy("score")
            # Not by tritonclient.http, which is gevent's and must stay on one thread.
            body, header_length = binary_body(asked[place])
            headers = {"Inference-Header-Content-Length": str(header_length)}
            status, _, answer = post(server.http, "/v2/models/ranker/infer", body, headers)
            assert status == 200, answer
            return np.array(json.loads(answer)["outputs"][0]["data"], np.float32).reshape(-1, 1)

        with ThreadPoolExecutor(len(asked)) as pool:
            answers = [pool.submit(ask, place) for place in range(len(asked))]
            eventually(lambda: server.metrics().value("hebe_queue_depth") == len(asked), "all wait")
            assert server.end(number) == 0
            for inputs, answer in zip(asked, answers, strict=True):
                np.testing.assert_allclose(answer.result(), reference.scores(inputs), rtol=0, atol=TOLERANCE)
        assert "Traceback" not in server.log
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address(server.http))
