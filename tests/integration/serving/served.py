"""What the tests of a running server share: stored models, their plain-PyTorch reference, queries, raw HTTP."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
import tritonclient.http
from prometheus_client.parser import text_string_to_metric_families

from hebe.models.architectures.build import build_dense_net
from hebe.models.architectures.ranking_model import RankingModel, initial_rows
from hebe.models.repository.repository import ModelRepository
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling, SlaTarget
from tests.integration.tiers.forked_hebe import ForkedHebe

TOLERANCE = 1e-5
"""Largest difference allowed between a served score and plain PyTorch's."""

PATIENCE_S = 120.0
"""How long a thing that must happen may take on a busy machine before a test gives it up."""


def small_dlrm(name: str, rows: int = 1000, dim: int = 8) -> ModelSpec:
    """A DLRM of two tables, three features and a dense input; its SLA is an hour, since what runs tests may be slow."""
    return ModelSpec(
        name,
        "dlrm",
        tables=(EmbeddingTableSpec("users", rows, dim), EmbeddingTableSpec("ads", rows // 2, dim)),
        features=(
            FeatureSpec("user", "users", 1, Pooling.SUM),
            FeatureSpec("history", "ads", 5, Pooling.MEAN),
            FeatureSpec("ad", "ads", 2, Pooling.SUM),
        ),
        dense_dim=4,
        towers={"bottom": (16, dim), "top": (16, 1)},
        sla=SlaTarget(3_600_000.0),
    )


def store(repository: Path, spec: ModelSpec, seed: int = 0) -> int:
    """Write `spec` with rows and weights drawn from `seed` as the next version, which is returned."""
    tables = {table.name: initial_rows(spec, table.name, seed) for table in spec.tables}
    return ModelRepository(repository).write(spec, tables, build_dense_net(spec, seed).state_dict()).version


@dataclass
class Inputs:
    """One query by the protocol's input names."""

    items: int
    arrays: dict[str, np.ndarray]

    def jagged(self) -> Inputs:
        """The same query with every feature written as NAME.values and NAME.lengths."""
        arrays: dict[str, np.ndarray] = {}
        for name, array in self.arrays.items():
            if name == "dense" or name.endswith((".values", ".lengths")):
                arrays[name] = array
            else:
                arrays[f"{name}.values"] = array.reshape(-1)
                arrays[f"{name}.lengths"] = np.full(self.items, array.shape[1], np.int64)
        return Inputs(self.items, arrays)


class Reference:
    """A stored version in plain PyTorch: `nn.EmbeddingBag` weights and the DenseNet as the files have them."""

    def __init__(self, repository: Path, name: str, version: int | None = None) -> None:
        stored = ModelRepository(repository).open(name, version)
        self.spec = stored.spec
        self._model = RankingModel(stored.spec, seed=987)
        with torch.no_grad():
            for table in stored.spec.tables:
                self._model.table_weight(table.name).copy_(torch.from_numpy(np.array(stored.table(table.name))))
        self._model.dense_net.load_state_dict(stored.dense_state())
        self._model.eval()

    def scores(self, inputs: Inputs) -> np.ndarray:
        """float32 `[items, outputs]`."""
        features: dict[str, Any] = {}
        for feature in self.spec.features:
            if feature.name in inputs.arrays:
                features[feature.name] = torch.from_numpy(inputs.arrays[feature.name])
            else:
                values, lengths = (inputs.arrays[f"{feature.name}.{part}"] for part in ("values", "lengths"))
                features[feature.name] = torch.from_numpy(values), torch.from_numpy(lengths.astype(np.int64))
        dense = inputs.arrays.get("dense")
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # more would wait for one another, on cores that the server's workers hold
        try:
            with torch.no_grad():
                return self._model(None if dense is None else torch.from_numpy(dense), features).numpy()
        finally:
            torch.set_num_threads(threads)


def draw(spec: ModelSpec, items: int, rng: np.random.Generator, jagged: Iterable[str] = ()) -> Inputs:
    """A query of uniform keys; features in `jagged` have between 0 and all of their lookups per item, parts of a
    behaviour sequence as many each.
    """
    arrays: dict[str, np.ndarray] = {}
    steps = rng.integers(0, spec.behaviours[0].lookups + 1, items) if spec.behaviours else None
    for feature in spec.features:
        rows = spec.table(feature.table).rows
        if feature.name in jagged:
            lengths = steps if feature in spec.behaviours else rng.integers(0, feature.lookups + 1, items)
            arrays[f"{feature.name}.values"] = rng.integers(0, rows, int(lengths.sum()))
            arrays[f"{feature.name}.lengths"] = lengths
        else:
            arrays[feature.name] = rng.integers(0, rows, (items, feature.lookups))
    if spec.dense_dim:
        arrays["dense"] = rng.random((items, spec.dense_dim), dtype=np.float32)
    return Inputs(items, arrays)


def triton_inputs(module: Any, inputs: Inputs, **options: Any) -> list[Any]:
    """`inputs` as `InferInput` of `tritonclient.http` or `tritonclient.grpc`; `options` go to HTTP's setter."""
    made = []
    for name, array in inputs.arrays.items():
        datatype = {"int64": "INT64", "int32": "INT32", "float32": "FP32"}[array.dtype.name]
        entry = module.InferInput(name, list(array.shape), datatype)
        entry.set_data_from_numpy(array, **options)
        made.append(entry)
    return made


# Raw HTTP


def address(url: str) -> tuple[str, int]:
    """Host and port of a URL, or of HOST:PORT."""
    parts = urlsplit(url if "//" in url else f"//{url}")
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def binary_body(inputs: Inputs, **fields: Any) -> tuple[bytes, int]:
    """An inference body with binary tensors, and the length of its JSON."""
    listed = [
        {
            "name": name,
            "datatype": {"int64": "INT64", "int32": "INT32", "float32": "FP32"}[array.dtype.name],
            "shape": list(array.shape),
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in inputs.arrays.items()
    ]
    head = json.dumps({"inputs": listed, **fields}).encode()
    return head + b"".join(array.tobytes() for array in inputs.arrays.values()), len(head)


def request_bytes(model: str, body: bytes, header_length: int | None = None, extra: str = "") -> bytes:
    """A whole inference request as it goes over the socket."""
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{extra}"
    if header_length is not None:
        head += f"Inference-Header-Content-Length: {header_length}\r\n"
    return head.encode() + b"\r\n" + body


def post(url: str, path: str, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, Any, bytes]:
    """(status, headers, body) of one POST on a connection of its own."""
    connection = http.client.HTTPConnection(*address(url), timeout=PATIENCE_S)
    try:
        connection.request("POST", path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def error_of(answer: tuple[int, Any, bytes], status: int) -> str:
    """The message of an error answer, which must have `status`."""
    got, headers, body = answer
    assert got == status, body
    assert headers["content-type"] == "application/json"
    document = json.loads(body)
    assert list(document) == ["error"]
    message: str = document["error"]
    assert message
    return message


def read_to_end(connection: socket.socket) -> bytes:
    """All that the peer sends until it closes."""
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except ConnectionResetError:
        pass
    return received


class Dripping:
    """A client that sends a request byte by byte, and notes what it got and when the server had enough of it."""

    def __init__(self, where: str, at_once: bytes, then: bytes) -> None:
        self._connection = socket.create_connection(address(where), timeout=PATIENCE_S)
        self._connection.sendall(at_once)
        self._then = then
        self.answer = b""
        self.took_s = 0.0
        self.thread = Thread(target=self._drip)
        self.thread.start()

    def _drip(self) -> None:
        started_s = time.monotonic()
        self._connection.settimeout(0.25)
        for number in range(4 * int(PATIENCE_S)):
            try:
                self._connection.send(self._then[number : number + 1])
                if part := self._connection.recv(65536):
                    self.answer += part
                    continue
                break
            except TimeoutError:
                continue
            except OSError:
                break
        self.took_s = time.monotonic() - started_s
        self._connection.close()


# Metrics


class Metrics:
    """One scrape of a metrics page."""

    def __init__(self, url: str) -> None:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            self.content_type = answer.headers["content-type"]
            self.families = {family.name: family for family in text_string_to_metric_families(answer.read().decode())}

    def value(self, sample: str, **labels: str) -> float:
        """The sum over the samples of that name whose labels contain `labels`."""
        return sum(
            found.value
            for family in self.families.values()
            for found in family.samples
            if found.name == sample and labels.items() <= found.labels.items()
        )


def eventually(holds: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Wait until `holds()` is true and return it."""
    give_up_s = time.monotonic() + patience_s
    while not (found := holds()):
        assert time.monotonic() < give_up_s, f"not within {patience_s:g} s: {what}"
        time.sleep(0.02)
    return found


# Processes


class HebeServe:
    """`hebe serve` as a child that a test may signal: not awaited until ready, its end is the test's business."""

    def __init__(self, repository: Path, log: Path, *options: str) -> None:
        arguments = ["serve", str(repository), "--json", *options]
        for port in ("--http-port", "--grpc-port", "--metrics-port"):
            if port not in options:
                arguments += [port, "0"]
        self._log, self._printed = log, log.with_name(f"{log.name}.stdout")
        for path in (self._log, self._printed):
            path.write_text("")
        self.process = ForkedHebe(arguments, self._printed, self._log)

    @property
    def log(self) -> str:
        """What it wrote to stderr so far."""
        return self._log.read_text()

    @cached_property
    def listening(self) -> dict[str, str]:
        def first_line() -> str:
            printed, end, _ = self._printed.read_text().partition("\n")
            assert end or self.process.poll() is None, self.log
            return printed if end else ""

        listening: dict[str, str] = json.loads(eventually(first_line, "an address is told"))["listening"]
        return listening

    @property
    def http(self) -> str:
        """HOST:PORT, once it listens."""
        return self.listening["http"].partition("://")[2]

    @property
    def grpc(self) -> str:
        """HOST:PORT, once it listens."""
        return self.listening["grpc"]

    def metrics(self) -> Metrics:
        """A scrape of its metrics page."""
        return Metrics(self.listening["metrics"])

    @property
    def resident_bytes(self) -> int:
        """Its resident size now."""
        fields = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def wait_until_ready(self) -> None:
        """Return once it answers that it is ready; fail if it ends instead."""

        def ready() -> bool:
            assert self.process.poll() is None, self.log
            return is_ready(self.http)

        eventually(ready, "ready", 5 * PATIENCE_S)

    def end(self, number: signal.Signals | None = None) -> int:
        """Send a signal, or none, and wait for the end; returns the exit status."""
        if number is not None:
            os.killpg(self.process.pid, number)
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        """Kill it if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.close()


@contextmanager
def hebe_serve(repository: Path, log: Path, *options: str) -> Iterator[HebeServe]:
    """A `HebeServe` that never outlives the block."""
    server = HebeServe(repository, log, *options)
    try:
        yield server
    finally:
        server.close()


@dataclass
class Changing:
    """A server whose models a test changes."""

    server: HebeServe
    repository: Path

    def index(self) -> dict[str, dict[str, str]]:
        """The repository index by name."""
        status, _, body = post(self.server.http, "/v2/repository/index", b"")
        assert status == 200
        return {model["name"]: model for model in json.loads(body)}

    def load(self, name: str, version: int | None = None) -> tuple[int, Any, bytes]:
        """The answer to a request to load."""
        parameters = {} if version is None else {"parameters": {"version": str(version)}}
        return post(self.server.http, f"/v2/repository/models/{name}/load", json.dumps(parameters).encode())

    def scores(self, name: str, inputs: Inputs) -> tuple[int, np.ndarray]:
        """(version that answered, scores), over HTTP."""
        with tritonclient.http.InferenceServerClient(self.server.http) as client:
            result = client.infer(name, triton_inputs(tritonclient.http, inputs))
        return int(result.get_response()["model_version"]), result.as_numpy("score")


def is_ready(where: str) -> bool:
    """Whether the server at HOST:PORT says that it is ready."""
    connection = http.client.HTTPConnection(*address(where), timeout=PATIENCE_S)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    finally:
        connection.close()
