"""A model whose scores are the rows that it looked up, clients that read them under load, and what they may find.

The model is a Wide&Deep with a zero deep half and an identity for its wide one: an item's scores are the sigmoids of
its rows, number by number. So a client sees of every key which row it was answered with, and of which version: rows
are a function of key and version, and the updates that a test sends raise the versions.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from hebe.embeddings.options import VolatileOptions
from hebe.embeddings.redis.layout import Command
from hebe.embeddings.redis.store import RedisStore
from hebe.models.architectures.build import build_dense_net
from hebe.models.repository.repository import ModelRepository
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling, SlaTarget
from tests.integration.serving.served import PATIENCE_S, HebeServe, eventually

TABLE = "users"
FEATURE = "user"
LOOKUPS = 4
ITEMS = 8
"""Of a query under load."""
_VERSIONS, _VERSIONS_OF_DIM_1 = 2048, 256
_TOLERANCE = 1e-4
"""Of a row's numbers, which lie in [0, 2): what the sigmoid and back costs, with some reserve."""
_IDENTITY_DIGITS = 12
"""So much of a content's identity is in the names of its rows in Redis (`hebe.embeddings.memory.model_rows`)."""
_DOCUMENTED = {"429", "503", "504", "StatusCode.RESOURCE_EXHAUSTED", "StatusCode.UNAVAILABLE"}
"""Statuses of a request that is refused rather than wrong (`hebe.serving.requests.errors`)."""

_ENDS_S = 20.0
"""Within which a killed process has given its memory back, however busy the machine."""

LATE_S = 3.0
"""What 99 of 100 answers must be faster than, whatever stalls: the model's latency bound, 1 s, and the time that a busy
machine takes beside it."""

Keys = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]


def row_reader(name: str = "reader", rows: int = 4000, dim: int = 4) -> ModelSpec:
    """The model: one table, one feature of four lookups an item."""
    return ModelSpec(
        name,
        "wide-and-deep",
        tables=(EmbeddingTableSpec(TABLE, rows, dim),),
        features=(FeatureSpec(FEATURE, TABLE, LOOKUPS, Pooling.CONCAT),),
        outputs=LOOKUPS * dim,
        towers={"deep": (1,)},
        sla=SlaTarget(1000.0),
    )


def store_reader(repository: Path, spec: ModelSpec) -> None:
    """Write `spec` with rows of version 0."""
    zeros = {name: torch.zeros_like(weight) for name, weight in build_dense_net(spec).state_dict().items()}
    [table] = spec.tables
    rows = rows_of(np.arange(table.rows), np.zeros(table.rows, np.int64), table.dim)
    ModelRepository(repository).write(spec, {TABLE: rows}, zeros | {"wide.weight": torch.eye(spec.outputs)})


def rows_of(keys: Keys, versions: Keys, dim: int) -> Rows:
    """Rows float32 `[n, dim]` of keys in versions below 2048, or 256 with dim 1: the first number tells the version.

    No number but the first of several is near 0, so that no row is taken for a default vector.
    """
    with np.errstate(over="ignore"):
        mixed = keys.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + versions.astype(np.uint64)
        mixed = mixed[:, None] * np.uint64(0xC2B2AE3D27D4EB4F) + np.arange(dim, dtype=np.uint64)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
    rows = ((mixed >> np.uint64(40)) / (1 << 24) + 0.5).astype(np.float32)
    if dim > 1:
        rows[:, 0] = versions / (_VERSIONS / 2)
    else:  # versions are 39 tolerances apart, and the lower half between two tells 16 kinds of keys from one another
        sixteenths = np.floor((rows[:, 0] - 0.5) * 16)
        rows[:, 0] = 0.5 + (versions + sixteenths / 32) / _VERSIONS_OF_DIM_1
    return rows


def versions_in(rows: Rows) -> Keys:
    """The version that each of rows float32 `[n, dim]` tells, whatever they are."""
    if rows.shape[1] > 1:
        told = np.rint(rows[:, 0] * (_VERSIONS / 2))
    else:
        told = np.rint((rows[:, 0] - 0.5) * _VERSIONS_OF_DIM_1 - 0.25)
    return np.clip(told, 0, _VERSIONS - 1).astype(np.int64)


@dataclass(frozen=True)
class Shown:
    """The highest version of each key that a server has answered with, stale or not, and since when."""

    versions: Keys
    since_s: npt.NDArray[np.float64]

    def note(self, keys: Keys, versions: Keys) -> None:
        """An answer was that."""
        newer = versions > self.versions[keys]
        np.maximum.at(self.versions, keys[newer], versions[newer])
        self.since_s[keys[newer]] = time.monotonic()


class Versions:
    """Which version each key of the table has, as a test says: what was sent of it, and what must be seen by now.

    A delete is a version as well, one without a row. So every answer tells how far the updates of a key had come, and
    no server may go back from there: or for `catch_up_s` at most, where it shares a level 2 with others that may apply
    updates sooner than it does.
    """

    def __init__(self, spec: ModelSpec, catch_up_s: float = 0.0) -> None:
        [table] = spec.tables
        self._catch_up_s = catch_up_s
        self.rows, self.dim = table.rows, table.dim
        self.sent = np.zeros(table.rows, np.int64)
        self.settled = np.zeros(table.rows, np.int64)
        self._deletes = np.zeros((table.rows, _VERSIONS), np.bool_)
        """Which versions of a key are deletes."""
        self._shown: dict[str, Shown] = {}
        """By server."""
        self._showing = threading.Lock()

    @property
    def deleted(self) -> npt.NDArray[np.bool_]:
        """Whether the last that was sent of each key is a delete."""
        return self._deletes[np.arange(self.rows), self.sent]

    def raise_versions(self, keys: Keys) -> Rows:
        """Rows of the next version of distinct `keys`, to be sent; they count as sent from now on."""
        self.sent[keys] += 1
        assert self.sent[keys].max(initial=0) < (_VERSIONS if self.dim > 1 else _VERSIONS_OF_DIM_1)
        return rows_of(keys, self.sent[keys], self.dim)

    def delete(self, keys: Keys) -> None:
        """Deletes of distinct `keys` are to be sent."""
        self._deletes[keys, self.sent[keys] + 1] = True
        self.sent[keys] += 1

    def due(self, server: str, keys: Keys) -> Keys:
        """The versions below which the server at that address may not answer from now on, unless it says so."""
        with self._showing:
            shown = self._shown_by(server)
            lasting = time.monotonic() - shown.since_s[keys] >= self._catch_up_s
            return np.maximum(self.settled[keys], np.where(lasting, shown.versions[keys], 0))

    def restarted(self, before: str, now: str) -> None:
        """The server is at another address, and must not fall behind what it has shown at the one before."""
        with self._showing:
            shown = self._shown_by(before)
            self._shown[now] = Shown(shown.versions.copy(), shown.since_s.copy())

    def fault(self, server: str, keys: Keys, rows: Rows, due: Keys, told: Told) -> str | None:
        """What is wrong with `rows` of `keys` as an answer of a server; `due` as it was when they were asked for."""
        default = (np.abs(rows) < _TOLERANCE).all(1)
        versions = versions_in(rows)
        right = np.abs(rows - rows_of(keys, versions, self.dim)).max(1) < _TOLERANCE
        right &= ~self._deletes[keys, versions]
        if not (right | default).all():
            first = int(np.flatnonzero(~(right | default))[0])
            return f"key {keys[first]} was answered with {rows[first]}, which is no row of its"
        if (~default & (versions > self.sent[keys])).any():
            return "a row is of a version that was never sent"
        if int(default.sum()) != told.defaulted + told.unknown:
            return f"{default.sum()} default vectors, of which {told.defaulted} + {told.unknown} were told"
        old = np.flatnonzero(~default & (versions < due))
        if old.size > told.stale:
            return f"{server} has older rows than it must, {told.stale} told: {self._named(keys, versions, due, old)}"
        versions[default] = self._deletes_from(keys[default], due[default])
        lost = np.flatnonzero(default & (versions < 0))
        if lost.size > told.defaulted:
            return f"{server} has no rows, {told.defaulted} told as defaulted: {self._named(keys, versions, due, lost)}"
        with self._showing:
            certain = ~default if told.defaulted else np.ones(len(keys), np.bool_)
            self._shown_by(server).note(keys[certain], versions[certain])
        return None

    def _deletes_from(self, keys: Keys, due: Keys) -> Keys:
        """The first delete of each key in a version of at least `due`, -1 where there is none."""
        later = self._deletes[keys] & (np.arange(_VERSIONS) >= due[:, None])
        return np.where(later.any(1), later.argmax(1), -1)

    def _shown_by(self, server: str) -> Shown:
        return self._shown.setdefault(server, Shown(np.zeros(self.rows, np.int64), np.zeros(self.rows)))

    def _named(self, keys: Keys, versions: Keys, due: Keys, places: npt.NDArray[np.intp]) -> str:
        return ", ".join(
            f"key {keys[place]} in version {versions[place]} after {due[place]} of {self.sent[keys[place]]}"
            for place in places[:5]
        )


@dataclass(frozen=True)
class Told:
    """What a response says of its keys."""

    defaulted: int
    stale: int
    unknown: int

    @property
    def all_found(self) -> bool:
        """Whether every key was answered with its newest row, as the response says."""
        return not (self.defaulted or self.stale or self.unknown)


@dataclass(frozen=True)
class Answer:
    """One request under load: what came of it, and what is wrong with it."""

    asked_s: float
    took_s: float
    told: Told | None
    status: str = ""
    fault: str | None = None


class Reader:
    """One connection to a server, over HTTP or gRPC; for one thread."""

    def __init__(self, server: HebeServe, spec: ModelSpec, versions: Versions, protocol: str = "grpc") -> None:
        self._spec, self._versions, self._protocol = spec, versions, protocol
        self._server = server.grpc
        self._client: Any
        if protocol == "grpc":
            self._client = tritonclient.grpc.InferenceServerClient(server.grpc)
        else:
            self._client = tritonclient.http.InferenceServerClient(
                server.http, connection_timeout=PATIENCE_S, network_timeout=PATIENCE_S
            )

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def read(self, keys: Keys, timeout_us: int | None = None, **parameters: Any) -> tuple[Rows, Told]:
        """The rows float32 `[n, dim]` of `keys`, a multiple of LOOKUPS. Raises `InferenceServerException`."""
        module = tritonclient.grpc if self._protocol == "grpc" else tritonclient.http
        tensor = module.InferInput(FEATURE, [len(keys) // LOOKUPS, LOOKUPS], "INT64")
        tensor.set_data_from_numpy(keys.reshape(-1, LOOKUPS))
        options: dict[str, Any] = {"client_timeout": PATIENCE_S} if self._protocol == "grpc" else {}
        result = self._client.infer(
            self._spec.name, [tensor], timeout=timeout_us, parameters=parameters or None, **options
        )
        scores = result.as_numpy("score").astype(np.float64)
        rows = np.log(scores / (1 - scores)).reshape(len(keys), -1).astype(np.float32)
        told = result.get_response()
        if self._protocol == "grpc":
            said = {
                name: value.double_param if value.HasField("double_param") else value.int64_param
                for name, value in told.parameters.items()
            }
        else:
            said = told["parameters"]
        assert said["total_keys"] == len(keys)
        counts = [round(said[f"{kind}_fraction"] * len(keys)) for kind in ("defaulted", "stale", "unknown")]
        return rows, Told(*counts)

    def answer(self, keys: Keys, **parameters: Any) -> Answer:
        """`read`, and what is wrong with it."""
        due, asked_s = self._versions.due(self._server, keys), time.monotonic()
        try:
            rows, told = self.read(keys, **parameters)
        except InferenceServerException as fault:
            return Answer(asked_s, time.monotonic() - asked_s, None, str(fault.status()), str(fault.message()))
        took_s = time.monotonic() - asked_s
        return Answer(asked_s, took_s, told, fault=self._versions.fault(self._server, keys, rows, due, told))

    def all_newest(self) -> bool:
        """Whether the server answers every key of the table with its newest row, or that it is unknown if deleted."""
        versions = self._versions
        for first in range(0, versions.rows, 1000):
            keys = np.arange(first, min(first + 1000, versions.rows))
            try:
                rows, told = self.read(keys)
            except InferenceServerException:
                return False
            deleted = versions.deleted[keys]
            wanted = rows_of(keys, versions.sent[keys], versions.dim)
            wanted[deleted] = 0
            if told != Told(0, 0, int(deleted.sum())) or np.abs(rows - wanted).max() > _TOLERANCE:
                return False
        return True


@dataclass
class Load:
    """Threads that read random keys of `servers` between entering and leaving, half over HTTP, half over gRPC.

    On leaving it is checked that nothing that they got is wrong: `check`. Those of a server that is killed end with it.
    """

    servers: Sequence[HebeServe]
    spec: ModelSpec
    versions: Versions
    threads: int = 4
    pause_s: float = 0.01
    items: int = ITEMS
    parameters: Mapping[str, Any] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"load-{number}") for number in range(self.threads)
        ]
        self._broken: list[BaseException] = []

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if fault is None:
            self.check()

    def check(self) -> None:
        """Fail if any answer so far was wrong, or any refusal of an undocumented kind."""
        assert not self._broken, self._broken
        answers = list(self.answers)
        wrong = [answer for answer in answers if answer.told is not None and answer.fault is not None]
        assert not wrong, f"{len(wrong)} of {len(answers)} answers, the first: {wrong[0]}"
        odd = [answer for answer in answers if answer.told is None and answer.status not in _DOCUMENTED]
        assert not odd, f"{len(odd)} of {len(answers)} answers, the first: {odd[0]}"

    def since(self, asked_s: float) -> list[Answer]:
        """Answers to what was asked from then on."""
        return [answer for answer in list(self.answers) if answer.asked_s >= asked_s]

    def wait_for(
        self, count: int, holds: Callable[[Answer], bool] = lambda _: True, patience_s: float = PATIENCE_S
    ) -> None:
        """Return once so many answers to what is asked from now on are such."""
        from_s = time.monotonic()

        def enough() -> bool:
            self.check()
            return sum(map(holds, self.since(from_s))) >= count

        eventually(enough, f"{count} such answers", patience_s)

    def wait_until_whole(
        self,
        patience_s: float = PATIENCE_S,
        in_a_row: int = 100,
        holds: Callable[[Told], bool] = lambda told: told.all_found,
    ) -> float:
        """Return once so many answers in a row had every row; returns how long ago the first of them was asked for.
        `holds`: what is enough, where some keys are deleted.
        """
        from_s = time.monotonic()

        def whole() -> bool:
            self.check()
            last = self.since(from_s)[-in_a_row:]
            return len(last) == in_a_row and all(answer.told is not None and holds(answer.told) for answer in last)

        eventually(whole, "every key answered with its newest row", patience_s)
        return time.monotonic() - from_s

    def _run(self, number: int) -> None:
        rng = np.random.default_rng(number)
        protocol = ("grpc", "http")[number % 2]
        server = self.servers[number % len(self.servers)]
        try:
            with Reader(server, self.spec, self.versions, protocol) as reader:
                while not self._stop.is_set():
                    keys = rng.integers(0, self.versions.rows, self.items * LOOKUPS)
                    answer = reader.answer(keys, **self.parameters)
                    if answer.told is None and server.process.poll() is not None:
                        return
                    self.answers.append(answer)
                    self._stop.wait(self.pause_s)
        except BaseException as fault:  # told by `check`
            if not self._has_ended(server):
                self._broken.append(fault)

    def _has_ended(self, server: HebeServe) -> bool:
        """Whether the server was killed, which breaks connections a moment before its end is known."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(_ENDS_S)
        return server.process.poll() is not None


def percentile_s(answers: Sequence[Answer], percentile: float) -> float:
    """Latency in seconds of those that were answered."""
    return float(np.percentile([answer.took_s for answer in answers if answer.told is not None], percentile))


def write_hierarchy(path: Path, tiers: Mapping[str, Mapping[str, Any]]) -> Path:
    """A file for `--hierarchy`: tables of strings, numbers and truth values, which JSON writes as TOML does."""
    lines = []
    for table, values in tiers.items():
        lines += [f"[{table}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


def open_level_2(root: Path, spec: ModelSpec, addresses: str | Sequence[str], partitions: int) -> RedisStore:
    """What running servers of the first version of `spec` in `root / "models"` have in Redis, for another client."""
    identity = ModelRepository(root / "models").open(spec.name, 1).tables_identity
    dims = {table.name: table.dim for table in spec.tables}
    content = f"{spec.name}.1.{identity[:_IDENTITY_DIGITS]}"
    store = RedisStore(dims, addresses, VolatileOptions(partitions), namespace=content)
    pointer = f"hebe2:{{{content}}}:log".encode()
    [log] = store.carry_out([Command(pointer, (b"GET", pointer))])
    store.use(f"{content}/{log.decode() if isinstance(log, bytes) else '-'}")
    return store


@contextlib.contextmanager
def serving(
    root: Path, tiers: Mapping[str, Mapping[str, Any]], *options: str, name: str = "server", ready: bool = True
) -> Iterator[HebeServe]:
    """A server of the models in `root / "models"` with these tiers; never outlives the block."""
    hierarchy = write_hierarchy(root / f"{name}.toml", tiers)
    settings = ["--hierarchy", str(hierarchy), "--workers", "1", "--sla-ms", "1000", *options]
    server = HebeServe(root / "models", root / f"{name}.log", *settings)
    try:
        if ready:
            server.wait_until_ready()
        yield server
    finally:
        server.close()
