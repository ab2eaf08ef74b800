"""One server for the tests that only send queries; those that change it start their own."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import structlog
import torch
import tritonclient.http

from hebe.cli.terminal.server_process import ServerProcess
from hebe.load_generator.open_loop import open_loop
from hebe.models.catalog import entry
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling
from tests.integration.serving.served import Reference, small_dlrm, store

RAW_BODY = ModelSpec(
    "one-input",
    "multi-task-wide-and-deep",
    tables=(EmbeddingTableSpec("things", 100, 4),),
    features=(FeatureSpec("thing", "things", 3, Pooling.CONCAT),),
    outputs=2,
    towers={"task": (8,)},
)


@pytest.fixture(autouse=True)
def _patient_generator(monkeypatch):
    """Where the machine stops for a while, the load generator sends what is left all the same."""
    monkeypatch.setattr(open_loop, "MOST_BEHIND_S", 60.0)


@dataclass
class Served:
    """A running server, where its models lie, and plain PyTorch's opinion of each."""

    process: ServerProcess
    repository: Path
    references: dict[str, Reference]

    @property
    def http(self) -> str:
        """HOST:PORT, as tritonclient wants it."""
        return self.process.http_url.removeprefix("http://")

    @property
    def grpc(self) -> str:
        """HOST:PORT."""
        return self.process.grpc_address

    def spec(self, name: str) -> ModelSpec:
        """The spec of a served model."""
        return self.references[name].spec


@pytest.fixture(scope="session", autouse=True)
def clients_are_closed_once() -> Iterator[None]:
    """tritonclient.http closes a client once more when it is collected, on whatever thread the collector happens to
    run; gevent, below it, takes that for an error. Tests close their clients themselves.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(tritonclient.http.InferenceServerClient, "__del__", raising=False)
        yield


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two workers, batches of at most 128 items (so that queries are split and fused), all models that tests send to.

    The SLA is an hour, since a machine that runs tests may be slow.
    """
    root = tmp_path_factory.mktemp("served")
    repository = root / "models"
    specs = [
        entry("dlrm-rmc1", "small", scale=0.1),
        entry("din", "small", scale=0.001),
        entry("dien", "small", scale=0.001),
        entry("recos-bst", scale=0.001),
        small_dlrm("ranker"),
        RAW_BODY,
    ]
    for seed, spec in enumerate(specs):
        store(repository, spec, seed)
    options = ["--workers", "2", "--batch-size", "128", "--sla-ms", "3600000"]
    options += ["--max-items", "1500", "--max-request-bytes", "12M"]
    with ServerProcess(repository, root / "server.log", options, ready_timeout_s=300.0) as process:
        yield Served(process, repository, {spec.name: Reference(repository, spec.name) for spec in specs})
        process.check()


@pytest.fixture
def this_process() -> Iterator[None]:
    """For tests that run a server in this process: leaves it as it was."""
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    threads, interval = torch.get_num_threads(), sys.getswitchinterval()
    yield
    gc.unfreeze()
    structlog.reset_defaults()
    torch.set_num_threads(threads)
    sys.setswitchinterval(interval)
    if affinity is not None:
        os.sched_setaffinity(0, affinity)


@pytest.fixture
def rng() -> np.random.Generator:
    """The same stream for every test."""
    return np.random.default_rng(20240)
