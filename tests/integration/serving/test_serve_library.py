"""`hebe.Server` and `hebe.load` in a program of one's own."""

from __future__ import annotations

import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

import hebe
from hebe.machine.pinning import available_cores
from hebe.runtime.loaded_model import LoadedModel
from hebe.serving.requests.errors import LoadFailed, ServeError

from .served import TOLERANCE, Reference, draw, small_dlrm, store, triton_inputs

FREE_PORTS = hebe.ServerOptions(http_port=0, grpc_port=0, metrics_port=0)

pytestmark = pytest.mark.usefixtures("this_process")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    store(tmp_path / "models", small_dlrm("ranker"))
    return tmp_path / "models"


def test_a_server_starts_answers_stops_and_starts_again(repository: Path, rng, capsys: pytest.CaptureFixture[str]):
    before = set(threading.enumerate())  # of other tests
    inputs = draw(small_dlrm("ranker"), 9, rng)
    wanted = Reference(repository, "ranker").scores(inputs)
    server = hebe.Server(str(repository), FREE_PORTS)
    for _ in range(2):
        with server:
            assert server.ready
            assert [(model.spec.name, model.workers) for model in server.hosted] == [("ranker", len(available_cores()))]
            for module, port in ((tritonclient.http, server.http_port), (tritonclient.grpc, server.grpc_port)):
                with module.InferenceServerClient(f"127.0.0.1:{port}") as client:
                    scores = client.infer("ranker", triton_inputs(module, inputs)).as_numpy("score")
                np.testing.assert_allclose(scores, wanted, rtol=0, atol=TOLERANCE)
            named = urllib.request.Request(f"http://127.0.0.1:{server.http_port}/v2", headers={"Host": "a.example"})
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(named)
            with pytest.raises(ServeError, match="runs already; stop it first"):
                server.start()
        assert not server.ready
        assert server.hosted == ()
    server.stop()
    logged = capsys.readouterr()
    assert "all models loaded" in logged.err
    assert logged.out == "", "stdout is the program's own"
    assert not [each.name for each in threading.enumerate() if each.name.startswith("hebe-") and each not in before]


def test_a_server_that_is_stopped_while_a_model_starts_leaves_nothing(repository: Path, monkeypatch):
    before = set(threading.enumerate())  # of other tests
    starts, goes_on = threading.Event(), threading.Event()
    start = LoadedModel.start

    def slowly(model: LoadedModel, go_on: Callable[[], None]) -> None:
        starts.set()
        goes_on.wait(60.0)
        start(model, go_on)

    monkeypatch.setattr(LoadedModel, "start", slowly)
    server = hebe.Server(repository, FREE_PORTS)
    with ThreadPoolExecutor() as callers:
        starting = callers.submit(server.start)
        assert starts.wait(60.0)
        stopping = callers.submit(server.stop)
        while server._host.live:
            time.sleep(0.005)
        goes_on.set()
        stopping.result(60.0)
        with pytest.raises(LoadFailed, match="stopped before its models were loaded"):
            starting.result(60.0)
    assert not [each.name for each in threading.enumerate() if each.name.startswith("hebe-") and each not in before]


def test_in_the_foreground_it_serves_until_a_signal_and_gives_signals_back(repository: Path):
    caught: list[int] = []
    before = {
        signal.SIGINT: signal.getsignal(signal.SIGINT),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda number, _frame: caught.append(number)),
    }
    try:
        hebe.Server(repository, FREE_PORTS).run(announce=lambda _server: signal.raise_signal(signal.SIGTERM))
        assert caught == []
        signal.raise_signal(signal.SIGTERM)
        assert caught == [signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_what_keeps_it_from_starting_is_raised(repository: Path, tmp_path: Path):
    with pytest.raises(LoadFailed, match="nowhere: not a model repository"):
        hebe.Server(tmp_path / "nowhere", FREE_PORTS).start()
    with hebe.Server(repository, FREE_PORTS) as running:
        taken = hebe.ServerOptions(http_port=running.http_port, grpc_port=0, metrics_port=0)
        with pytest.raises(ServeError, match=f"HTTP port {running.http_port} on 127.0.0.1: already in use"):
            hebe.Server(repository, taken).start()
        assert running.ready


def test_a_model_scores_in_process_as_it_is_served(repository: Path, rng):
    inputs = draw(small_dlrm("ranker"), 9, rng)
    model = hebe.load(repository, "ranker")
    features = {name: array.tolist() for name, array in inputs.arrays.items() if name != "dense"}
    scores = model.predict(features, inputs.arrays["dense"].tolist())
    np.testing.assert_allclose(scores, Reference(repository, "ranker").scores(inputs), rtol=0, atol=TOLERANCE)
    with pytest.raises(ValueError, match="feature user: keys are float64: must be whole numbers"):
        model.predict(features | {"user": [[1.5]] * 9}, inputs.arrays["dense"])
    with pytest.raises(ValueError, match=r"dense: must be float32 \[9, 4\]"):
        model.predict(features)
    model.close()
