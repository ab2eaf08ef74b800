"""The run: install, start, check, measure in turns, compare."""

from __future__ import annotations

import json
import os
import subprocess
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .hebe_server import HEBE, HEBE_ENVIRONMENT
from .installation import Installation, InstallError
from .measurement import ClientStalledError, Measurement, MeasurementError
from .perf_analyzer import PerfAnalyzer
from .processes import ServerError
from .queries import QuerySet
from .served.dlrm import RawModel
from .server import ProtocolEndpoint, RawEndpoint, RunningServer, ServedModel, Server, post
from .wrk import Wrk

MODEL = "peers-dlrm"
SEED = 1
RAW_HEADERS = {"Content-Type": "application/octet-stream"}
CONCURRENCIES = (1, 4, 16)
TOLERANCE = 1e-5
"""How far a server's scores may be from plain PyTorch's before it is not measured."""
IDLE_S = 1.0


class ModelError(RuntimeError):
    """Hebe could not write the model that all serve."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One thing that is measured: a server reached by a client over a protocol (http, grpc or raw)."""

    server: str
    client: str
    protocol: str

    def __str__(self) -> str:
        return f"{self.server} {self.protocol} ({self.client})"


@dataclass
class Results:
    """All measurements, a list of rounds for each contender and concurrency, and what went wrong."""

    rounds: dict[tuple[Contender, int], list[Measurement]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    servers: dict[str, dict[str, float | str]] = field(default_factory=dict)

    def add(self, contender: Contender, concurrency: int, measurement: Measurement) -> None:
        """Record one round."""
        self.rounds.setdefault((contender, concurrency), []).append(measurement)

    def drop(self, server: str) -> None:
        """Forget a server that went down: a figure of it would be of what it did before."""
        self.rounds = {key: value for key, value in self.rounds.items() if key[0].server != server}

    def samples(self, contender: Contender, concurrency: int, quantity: str) -> list[float]:
        """One quantity of `Measurement` over the rounds; empty if there are none."""
        return [getattr(one, quantity) for one in self.rounds.get((contender, concurrency), [])]

    def write(self, path: Path) -> None:
        """Every measurement, as JSON."""
        rows = [
            {**asdict(contender), "concurrency": concurrency, "rounds": [asdict(one) for one in measurements]}
            for (contender, concurrency), measurements in self.rounds.items()
        ]
        text = json.dumps({"servers": self.servers, "faults": self.faults, "measurements": rows}, indent=1)
        path.write_text(text + "\n")


class Run:
    """One run over `servers`, leaving its files in `workspace`; `say` prints a line of progress."""

    def __init__(
        self, workspace: Path, installation: Installation, servers: Sequence[Server], say: Callable[[str], None]
    ) -> None:
        self.workspace = workspace
        self.results = Results()
        self._installation = installation
        self._query_files = workspace / "queries"
        self._servers = list(servers)
        self._say = say
        self._running: list[RunningServer] = []
        self._clients: dict[str, PerfAnalyzer | Wrk] = {}

    def measure(self, rounds: int, seconds: float, concurrencies: Sequence[int]) -> Results:
        """The whole run; servers are ended however it ends. Raises `ModelError`."""
        self._install()
        try:
            model = new_model(self.workspace / "repository", self._say)
            self._prepare_queries(model)
            self._start(model)
            self._time(rounds, seconds, concurrencies)
        finally:
            for running in self._running:
                running.process.stop()
        return self.results

    def _install(self) -> None:
        for client in (PerfAnalyzer, Wrk):
            try:
                self._clients[client.name] = client.install(self._installation)
            except InstallError as fault:
                self._fault(f"{client.name} is left out", fault)
        for server in list(self._servers):
            try:
                server.install(self._installation)
            except InstallError as fault:
                self._fault(f"{server.name} is left out", fault)
                self._servers.remove(server)

    def _prepare_queries(self, model: ServedModel) -> None:
        spec = tomllib.loads((model.folder / "model.toml").read_text())["spec"]
        self._queries = QuerySet.draw(
            features=tuple(feature["name"] for feature in spec["features"]),
            rows=min(table["rows"] for table in spec["tables"]),
            lookups=spec["features"][0]["lookups"],
            dense_dim=spec["dense_dim"],
            seed=SEED,
        )
        self._headers, protocol_bodies = self._queries.protocol_requests()
        raw_bodies = self._queries.raw_bodies()
        self._query_files.mkdir()
        for name, bodies in (("protocol", protocol_bodies), ("raw", raw_bodies)):
            for index, body in enumerate(bodies):
                (self._query_files / f"{name}-{index}").write_bytes(body)
        self._bodies = {"http": protocol_bodies, "raw": raw_bodies}
        for batched in (True, False):
            self._queries.write_perf_analyzer_data(self._perf_analyzer_data(batched), batched)
        self._say(f"a query has {len(raw_bodies[0]):,} bytes")
        reference = RawModel(model.folder, scripted=False)
        self._scores = [np.frombuffer(reference.scores_of_body(body), np.float32) for body in raw_bodies]

    def _perf_analyzer_data(self, batched: bool) -> Path:
        return self._query_files / f"perf-analyzer-{'items' if batched else 'queries'}.json"

    def _start(self, model: ServedModel) -> None:
        for server in self._servers:
            started_s = time.monotonic()
            try:
                running = server.start(model, self.workspace)
            except (ServerError, OSError) as fault:
                self._fault(f"{server.name} is left out", fault)
                continue
            self._running.append(running)
            try:
                error = self._largest_error(running, model.name)
                if not error <= TOLERANCE:
                    raise ValueError(f"its scores are off by up to {error:.2g}, more than {TOLERANCE:.0e}")
            except (OSError, ValueError, KeyError) as fault:
                running.process.stop()
                self._running.remove(running)
                self._fault(f"{server.name} is left out", f"a query failed: {fault}; its log is {running.process.log}")
                continue
            settings = f" ({server.settings})" if server.settings else ""
            self._say(
                f"{server.name}{settings} is up after {time.monotonic() - started_s:.1f} s, "
                f"scores within {error:.1e} of plain PyTorch"
            )
        self._note_idle_servers()

    def _largest_error(self, running: RunningServer, model: str) -> float:
        """Answer every query once; the greatest difference from the reference scores."""
        error = 0.0
        for index, expected in enumerate(self._scores):
            if isinstance(running.endpoint, ProtocolEndpoint):
                url = running.endpoint.infer_url(model)
                scores = protocol_scores(*post(url, self._bodies["http"][index], self._headers))
            else:
                _, answer = post(running.endpoint.url, self._bodies["raw"][index], RAW_HEADERS)
                scores = np.frombuffer(answer, np.float32)
            if scores.shape != expected.shape:
                raise ValueError(f"answered {scores.size} scores to a query of {expected.size} items")
            error = max(error, float(np.abs(scores - expected).max()))
        return error

    def _note_idle_servers(self) -> None:
        """All servers stay up during the run, so what they use while idle is taken from the one measured."""
        before = {running.name: running.process.cpu_s() for running in self._running}
        time.sleep(IDLE_S)
        for running in self._running:
            idle = (running.process.cpu_s() - before[running.name]) / IDLE_S
            resident = running.process.resident_bytes()
            self.results.servers[running.name] = {
                "settings": str(running.server.settings or "defaults"),
                "idle_cores": idle,
                "resident_bytes": resident,
            }
            self._say(f"{running.name}: {idle:.2f} cores when idle, {resident / 2**20:,.0f} MiB resident")

    def _contenders(self) -> list[tuple[Contender, RunningServer]]:
        # One client after the other, so that the servers that are compared stand side by side in time.
        found = []
        for client in self._clients:
            for running in self._running:
                if client not in running.server.clients:
                    continue
                if isinstance(running.endpoint, RawEndpoint):
                    protocols: tuple[str, ...] = ("raw",)
                else:
                    protocols = ("http", "grpc") if client == PerfAnalyzer.name else ("http",)
                found += [(Contender(running.name, client, protocol), running) for protocol in protocols]
        return found

    def _time(self, rounds: int, seconds: float, concurrencies: Sequence[int]) -> None:
        self._say("warming up")
        for contender, running in self._contenders():
            try:
                self._run_client(contender, running, max(concurrencies), min(1.0, seconds))
            except MeasurementError as fault:
                self._say(f"{contender} while warming up: {fault}")
        for index in range(rounds):
            for concurrency in concurrencies:
                contenders = self._contenders()
                for contender, running in contenders if index % 2 == 0 else reversed(contenders):
                    measurement = self._measure(contender, running, concurrency, seconds)
                    if measurement is None:
                        continue
                    self.results.add(contender, concurrency, measurement)
                    self._say(
                        f"round {index + 1}/{rounds}, concurrency {concurrency:>2}: {contender}: "
                        f"{measurement.queries_per_s:,.0f} queries/s, "
                        f"p50 {measurement.p50_ms:.2f} ms, p99 {measurement.p99_ms:.2f} ms"
                    )

    def _measure(
        self, contender: Contender, running: RunningServer, concurrency: int, seconds: float
    ) -> Measurement | None:
        """One measurement, taken again if the client stalled; None if it does not count."""
        if running not in self._running:
            return None
        try:
            running.process.check_alive()
            try:
                return self._run_client(contender, running, concurrency, seconds)
            except ClientStalledError as fault:
                self._say(f"{contender} at concurrency {concurrency} again: {fault}")
                return self._run_client(contender, running, concurrency, seconds)
        except MeasurementError as fault:
            self._fault(f"{contender} at concurrency {concurrency} does not count", fault)
        except ServerError as fault:
            running.process.stop()
            self._running.remove(running)
            self.results.drop(contender.server)
            self._fault(f"{contender.server} is left out", fault)
        return None

    def _run_client(
        self, contender: Contender, running: RunningServer, concurrency: int, seconds: float
    ) -> Measurement:
        client, endpoint = self._clients[contender.client], running.endpoint
        if isinstance(client, PerfAnalyzer):
            assert isinstance(endpoint, ProtocolEndpoint)
            address = endpoint.http_address if contender.protocol == "http" else endpoint.grpc_address
            data = self._perf_analyzer_data(endpoint.batched)
            return client.measure(MODEL, contender.protocol, address, data, endpoint.batched, concurrency, seconds)
        if isinstance(endpoint, ProtocolEndpoint):
            url, form, headers = endpoint.infer_url(MODEL), "protocol", self._headers
        else:
            url, form, headers = endpoint.url, "raw", RAW_HEADERS
        bodies = self._query_files / form
        return client.measure(url, bodies, len(self._scores), headers, concurrency, seconds)

    def _fault(self, what: str, fault: Exception | str) -> None:
        self.results.faults.append(f"{what}: {fault}")
        self._say(f"{what}: {fault}")


def new_model(repository: Path, say: Callable[[str], None]) -> ServedModel:
    """Have Hebe write the model. Raises `ModelError`."""
    say(f"writing {MODEL} with seed {SEED}")
    command = [*HEBE, "model", "new", MODEL, "--repository", str(repository), "--seed", str(SEED)]
    done = subprocess.run(command, env={**os.environ, **HEBE_ENVIRONMENT}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ModelError(f"hebe model new {MODEL} failed:\n{done.stdout}{done.stderr}")
    return ServedModel(repository, MODEL)


def protocol_scores(headers: Mapping[str, str], body: bytes) -> npt.NDArray[np.float32]:
    """The scores in an infer answer with binary tensors; raises `ValueError` or `KeyError` if there are none."""
    length = int(headers.get("Inference-Header-Content-Length") or 0)
    outputs = json.loads(body[:length])["outputs"]
    offset = length
    for output in outputs:
        size = output["parameters"]["binary_data_size"]
        if output["name"] == "score":
            return np.frombuffer(body, np.float32, size // 4, offset)
        offset += size
    raise KeyError("score")
