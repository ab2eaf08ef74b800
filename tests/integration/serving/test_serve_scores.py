"""Served scores are plain PyTorch's, whatever the protocol, the form of the inputs, and how queries were batched.

By default 600 queries of `dlrm-rmc1` (small) at a tenth of its rows. The whole of it, 10,000 queries with
production query sizes and all rows, takes some minutes and 3 GiB: `make acceptance` (HEBE_ACCEPTANCE=full).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio

from hebe.cli.terminal.server_process import ServerProcess
from hebe.models.catalog import entry
from hebe.workload.forms import query_sizes
from tests.integration.conftest import Served

from .served import TOLERANCE, Inputs, Reference, draw, store, triton_inputs

FULL = os.environ.get("HEBE_ACCEPTANCE") == "full"
QUERIES = 10_000 if FULL else 600
AT_ONCE = 6

Infer = Callable[[str, Inputs], Awaitable[np.ndarray]]


@pytest.fixture(scope="module")
def rmc1(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The server with `dlrm-rmc1`: the shared one, or for the full run one of its own at full size."""
    if not FULL:
        yield request.getfixturevalue("served")
        return
    root = tmp_path_factory.mktemp("rmc1")
    spec = entry("dlrm-rmc1", "small")
    store(root / "models", spec)
    options = ["--workers", "2", "--sla-ms", "3600000"]
    with ServerProcess(root / "models", root / "log", options, ready_timeout_s=300.0) as process:
        yield Served(process, root / "models", {spec.name: Reference(root / "models", spec.name)})


def client_over(module, url: str) -> tuple[object, Infer]:
    """A client of `tritonclient.http.aio` or `tritonclient.grpc.aio`, and a call that gives the scores."""
    client = module.InferenceServerClient(url)

    async def infer(model: str, inputs: Inputs) -> np.ndarray:
        answer = await client.infer(model, triton_inputs(module, inputs))
        return answer.as_numpy("score")

    return client, infer


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # aiohttp, of tritonclient's ways
async def test_dlrm_rmc1_scores_are_plain_pytorchs(rmc1: Served):
    """Half the queries over HTTP, half over gRPC, several under way, so that batches hold parts of several."""
    reference = rmc1.references["dlrm-rmc1"]
    rng = np.random.default_rng(7)
    if FULL:
        sizes = query_sizes("production").draw(QUERIES, rng)
    else:
        sizes = np.where(rng.random(QUERIES) < 0.98, rng.integers(1, 24, QUERIES), rng.integers(100, 500, QUERIES))
    http, infer_http = client_over(tritonclient.http.aio, rmc1.http)
    grpc, infer_grpc = client_over(tritonclient.grpc.aio, rmc1.grpc)
    worst = 0.0
    spread: list[float] = []
    numbers = iter(range(QUERIES))

    async def ask() -> None:
        nonlocal worst
        for number in numbers:
            inputs = draw(reference.spec, int(sizes[number]), np.random.default_rng([11, number]))
            scores = await (infer_http, infer_grpc)[number % 2]("dlrm-rmc1", inputs)
            wanted = reference.scores(inputs)
            assert scores.dtype == np.float32
            assert scores.shape == wanted.shape == (inputs.items, 1)
            assert np.isfinite(scores).all()
            worst = max(worst, float(np.abs(scores - wanted).max()))
            spread.append(float(wanted.std()) if inputs.items > 1 else 0.0)

    try:
        await asyncio.gather(*(ask() for _ in range(AT_ONCE)))
    finally:
        await http.close()
        await grpc.close()
    assert len(spread) == QUERIES
    print(f"{QUERIES} queries, {int(sizes.sum())} items: largest difference {worst:.3g}")
    assert max(spread) > 0.01, "scores that hardly differ would hide a mistake"
    assert worst <= TOLERANCE


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("name", ["dlrm-rmc1", "ranker", "din", "one-input"])
def test_jagged_inputs_give_the_scores_of_fixed_ones(served: Served, rng, name: str, protocol: str):
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[protocol]
    inputs = draw(served.spec(name), 150, rng)
    with module.InferenceServerClient(getattr(served, protocol)) as client:
        fixed, jagged = (
            client.infer(name, triton_inputs(module, form)).as_numpy("score") for form in (inputs, inputs.jagged())
        )
    np.testing.assert_array_equal(jagged, fixed)
    np.testing.assert_allclose(fixed, served.references[name].scores(inputs), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(
    ("name", "jagged"),
    [
        ("din", ("item_history", "category_history")),
        ("dien", ("item_history", "category_history")),
        ("recos-bst", ("item_history", "category_history")),
        ("ranker", ("history", "ad")),
        ("one-input", ("thing",)),
    ],
)
def test_jagged_features_of_any_length(served: Served, rng, name: str, jagged: tuple[str, ...], protocol: str):
    """Items without a behaviour, with some, with all; query sizes on both sides of the batch size."""
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[protocol]
    with module.InferenceServerClient(getattr(served, protocol)) as client:
        for items in (1, 7, 130):
            inputs = draw(served.spec(name), items, rng, jagged)
            inputs.arrays[f"{jagged[0]}.lengths"] = inputs.arrays[f"{jagged[0]}.lengths"].astype(np.int32)
            scores = client.infer(name, triton_inputs(module, inputs)).as_numpy("score")
            np.testing.assert_allclose(scores, served.references[name].scores(inputs), rtol=0, atol=TOLERANCE)


async def test_queries_of_several_models_at_once_do_not_mix(served: Served):
    """Small queries, many at a time: batches of several queries, two models' workers on the same cores."""
    client, infer = client_over(tritonclient.grpc.aio, served.grpc)
    names = ["ranker", "one-input", "din"]
    numbers = iter(range(240))

    async def ask() -> None:
        for number in numbers:
            rng = np.random.default_rng([3, number])
            name = names[number % 3]
            inputs = draw(served.spec(name), int(rng.integers(1, 30)), rng)
            scores = await infer(name, inputs)
            np.testing.assert_allclose(scores, served.references[name].scores(inputs), rtol=0, atol=TOLERANCE)

    try:
        await asyncio.gather(*(ask() for _ in range(24)))
    finally:
        await client.close()
