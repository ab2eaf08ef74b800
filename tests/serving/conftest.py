"""A model host without models: scores are simple functions of what was sent, so that every byte is accounted for."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pytest
import uvloop

from hebe.query import FloatArray, JaggedKeys, KeyArray, KeyCounts, Query, QueryResult
from hebe.runtime.tier_state import IngestionStatistics, TiersState
from hebe.scheduling.events import Stage
from hebe.server_configuration import Lane, Placement
from hebe.serving.access.auth import Gate
from hebe.serving.access.byte_budget import ByteBudget
from hebe.serving.access.listening import ServerTls, TlsFiles
from hebe.serving.data_plane import DataPlane
from hebe.serving.grpc.call_limits import GrpcLimits
from hebe.serving.grpc.service import GrpcServer, start_grpc
from hebe.serving.hosting.profile_in_use import ProfileInUse
from hebe.serving.http.routes import HttpFrontEnd
from hebe.serving.http1.messages import HttpLimits
from hebe.serving.http1.server import HttpServer, start_http
from hebe.serving.monitoring.logs import RequestLog
from hebe.serving.monitoring.tracing import Tracer
from hebe.serving.requests.errors import ModelNotReady, QueryRefused, UnknownModel
from hebe.serving.statistics import Statistics
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling, SlaTarget

RANKER = ModelSpec(
    name="ranker",
    architecture="dlrm",
    tables=(EmbeddingTableSpec("users", 1000, 4), EmbeddingTableSpec("ads", 50, 4)),
    features=(
        FeatureSpec("user", "users", 1, Pooling.SUM),
        FeatureSpec("history", "ads", 3, Pooling.MEAN),
    ),
    dense_dim=2,
    sla=SlaTarget(50.0),
)
LONE = ModelSpec(
    name="lone",
    architecture="ncf",
    tables=(EmbeddingTableSpec("things", 10, 4),),
    features=(FeatureSpec("thing", "things", 2, Pooling.SUM),),
    outputs=3,
)


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The server runs on uvloop; a program that embeds it may not, so connections are tested on both."""
    if item.path.parent.name == "http1":
        return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


def scores_of(spec: ModelSpec, query: Query) -> FloatArray:
    """Per item a different weighted sum of its keys and dense values, in [0, 1): any slip of an item or key shows."""
    total = np.zeros(query.items)
    for weight, feature in enumerate(spec.features, 1):
        keys = query.features[feature.name]
        if isinstance(keys, JaggedKeys):
            padded = np.append(np.cumsum(keys.values), 0)
            sums = padded[keys.offsets[1:] - 1] - padded[keys.offsets[:-1] - 1]
        else:
            sums = keys.sum(axis=1)
        total += weight * sums
    if query.dense is not None:
        total += 0.25 * query.dense.astype(np.float64).sum(axis=1)
    columns = total[:, None] + np.arange(spec.outputs)
    return (np.abs(columns) % 997 / 997).astype(np.float32)


class FakeModel:
    def __init__(self, spec: ModelSpec, version: int = 1) -> None:
        self.spec = spec
        self.version = version
        self.max_items = 64
        self.batch_size = 16
        self.fuses, self.max_wait_s = True, 0.0
        self.configuration = (Lane(Placement.MODEL_ON_HOST, 1, batch_size=16),)
        self.profile: ProfileInUse | None = None
        self.splits = 1
        self.workers = 1
        self.on_gpu = False
        self.threads = 2
        self.workers_beside_front_end = 0
        self.queue_depth = 0
        self.worked_s: dict[tuple[int, Stage], float] = {}
        self.trouble = ""
        self.trouble_s: float | None = None
        self.tiers: TiersState | None = None
        self.tier_kinds: dict[str, str] = {}
        self.updates: dict[str, IngestionStatistics] = {}
        self.table_memory_bytes = 4096
        self.row_format = "fp32"
        self.prefetched: list[Mapping[str, KeyArray]] = []
        self.has_room = True
        self.sla_s = spec.sla.latency_s
        self.percentile = spec.sla.percentile
        self.queries: list[Query] = []
        self.cancelled = 0
        self.delay_s = 0.0
        self.fault: Exception | None = None
        self.refuses: QueryRefused | None = None
        self.refuses_of_late = True
        self.defaulted_keys = 0
        self.defaulted_share: float | None = None
        self.not_finite: dict[int, float] = {}
        self._ids = itertools.count(1)
        self._observer: Callable[[int, float, float], None] | None = None

    @property
    def ready(self) -> bool:
        return not self.trouble

    @property
    def tells_of_keys(self) -> bool:
        return self.tiers is not None

    @property
    def degraded(self) -> tuple[str, ...]:
        return () if self.tiers is None else tuple(level.name for level in self.tiers.degraded)

    async def prefetch(self, keys: Mapping[str, KeyArray]) -> bool:
        await asyncio.sleep(0)
        self.prefetched.append(keys)
        return self.has_room

    def observe_batches(self, observer: Callable[[int, float, float], None]) -> None:
        self._observer = observer

    def new_query_id(self) -> int:
        return next(self._ids)

    def refusal(self, query: Query) -> QueryRefused | None:
        assert not query.features
        return self.refuses

    async def infer(self, query: Query) -> QueryResult:
        self.queries.append(query)
        queue_s = max(time.monotonic() - query.arrival_s, 0.0)
        if self.delay_s:
            try:
                await asyncio.sleep(self.delay_s)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if self.fault is not None:
            raise self.fault
        if self._observer is not None:
            self._observer(query.items, 0.0001, 0.0002)
        latency_s = max(time.monotonic() - query.arrival_s, queue_s + 0.0003)
        scores = scores_of(self.spec, query)
        for item, score in self.not_finite.items():
            scores[item, -1] = score
        return QueryResult(
            query.query_id, scores, latency_s, queue_s, 0.0001, 0.0002, KeyCounts(10, self.defaulted_keys)
        )


@dataclass
class FakeEntry:
    name: str
    version: int
    state: str
    reason: str = ""
    since_s: float | None = None


class FakeHost:
    def __init__(self) -> None:
        self.models = {spec.name: FakeModel(spec) for spec in (RANKER, LONE)}
        self.stored = {"ranker", "lone"}
        self.clock = time.monotonic
        self.live = True
        self.ready = True
        self.loads: list[tuple[str, int | None]] = []
        self.load_failures: dict[str, int] = {}

    @property
    def hosted(self) -> tuple[FakeModel, ...]:
        return tuple(self.models.values())

    @property
    def entries(self) -> tuple[FakeEntry, ...]:
        return tuple(self.listed())

    def wants(self, name: str) -> bool:
        return name in self.stored

    def find(self, name: str, version: str | None = None) -> FakeModel:
        model = self.models.get(name)
        if model is None:
            if name in self.stored:
                raise ModelNotReady(f"model {name} is being loaded")
            raise UnknownModel(f"model {name!r} is not loaded")
        if version and version != str(model.version):
            raise UnknownModel(f"model {name} has no version {version!r}")
        return model

    async def index(self) -> list[FakeEntry]:
        return self.listed()

    def listed(self) -> list[FakeEntry]:
        return [
            FakeEntry(name, 1, "READY") if name in self.models else FakeEntry(name, 1, "UNAVAILABLE", "unloaded")
            for name in sorted(self.stored)
        ]

    async def load(self, name: str, version: int | None = None) -> None:
        self.loads.append((name, version))
        await asyncio.sleep(0)
        if name not in self.stored:
            raise UnknownModel(f"repository has no model {name!r}")
        self.models[name] = FakeModel(RANKER if name == "ranker" else LONE)

    async def unload(self, name: str) -> None:
        await asyncio.sleep(0)
        if self.models.pop(name, None) is None:
            raise UnknownModel(f"model {name!r} is not loaded")


@dataclass
class FrontEnds:
    """Front ends of a fake host, running on an event loop in a thread."""

    host: FakeHost
    data_plane: DataPlane
    loop: asyncio.AbstractEventLoop
    http: HttpServer
    grpc: GrpcServer

    @property
    def http_url(self) -> str:
        return f"127.0.0.1:{self.http.port}"

    @property
    def grpc_url(self) -> str:
        return f"127.0.0.1:{self.grpc.port}"


def _of_a_closed_loop(context: dict) -> bool:
    """Whether a loop failed to hand on an event that a client's loop did not live to hear.

    gRPC has one queue of events for all loops of the process, and whichever runs reads them. The end of a call that was
    cancelled may come after its loop has been closed, `asyncio.run` or not.
    """
    fault = context.get("exception")
    return "_handle_events" in context["message"] and "Event loop is closed" in str(fault)


def serve(
    gate: Gate | None = None,
    limits: HttpLimits | None = None,
    tls: TlsFiles | ServerTls | None = None,
    tracer: Tracer | None = None,
    http_port: int = 0,
    grpc_port: int = 0,
    grpc_limits: GrpcLimits | None = None,
    budget: ByteBudget | None = None,
    named: str = "127.0.0.1",
) -> Iterator[FrontEnds]:
    """Start the front ends in a thread, yield them, stop them."""
    host = FakeHost()
    data_plane = DataPlane(host, Statistics(), tracer)  # type: ignore[arg-type]
    for model in host.hosted:
        data_plane.model_loaded(model)  # type: ignore[arg-type]
    limits = limits or HttpLimits(max_request_bytes=1 << 20)
    gate = gate or Gate()
    log = RequestLog(host.clock)
    budget = budget or ByteBudget(16 * limits.max_request_bytes)
    tls = ServerTls(tls) if isinstance(tls, TlsFiles) else tls
    front_end = HttpFrontEnd(data_plane, gate, log, limits, budget, named)
    loop = uvloop.new_event_loop()
    faults: list[dict] = []
    loop.set_exception_handler(lambda _loop, context: None if _of_a_closed_loop(context) else faults.append(context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    running: list[HttpServer | GrpcServer] = []

    def on_loop(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(20)

    try:
        address = "127.0.0.1"
        options = {"clock": host.clock, "tls": tls, "limits": limits, "budget": budget}
        http = on_loop(start_http(front_end, address, http_port, **options))
        running.append(http)
        most, calls = limits.max_request_bytes, limits.max_connections
        grpc_limits = grpc_limits or GrpcLimits(most, limits.max_json_bytes, calls)
        grpc = on_loop(start_grpc(data_plane, gate, log, address, grpc_port, tls, grpc_limits, budget))
        running.append(grpc)
        yield FrontEnds(host, data_plane, loop, http, grpc)
    finally:
        for server in running:
            on_loop(server.stop(1.0))
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        assert not faults, "a callback or task of the server failed"


@pytest.fixture(name="scores_of")
def scores_of_fixture() -> Callable[[ModelSpec, Query], FloatArray]:
    return scores_of


@pytest.fixture
def fake_host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def front_ends() -> Iterator[FrontEnds]:
    yield from serve()


@pytest.fixture
def serve_with() -> Iterator[Callable[..., FrontEnds]]:
    """Front ends with a gate or limits of the test's own."""
    yield from serving()


@pytest.fixture(scope="module")
def serve_for_module() -> Iterator[Callable[..., FrontEnds]]:
    """Front ends that a whole module of tests shares."""
    yield from serving()


def serving() -> Iterator[Callable[..., FrontEnds]]:
    running = []

    def start(**options) -> FrontEnds:
        running.append(serve(**options))
        return next(running[-1])

    yield start
    for front_ends in running:
        next(front_ends, None)
