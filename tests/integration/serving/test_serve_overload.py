"""Far more queries than can be answered in time: some are answered, the rest are refused, and then all is well."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

from hebe.models.catalog import entry

from .served import (
    PATIENCE_S,
    TOLERANCE,
    Reference,
    address,
    binary_body,
    draw,
    error_of,
    eventually,
    hebe_serve,
    post,
    request_bytes,
    small_dlrm,
    store,
    triton_inputs,
)

BURST = 120


def refused(error: InferenceServerException) -> bool:
    """Whether it is the refusal of an overloaded server, in either protocol."""
    return error.status() in ("503", "StatusCode.UNAVAILABLE") and str(error.message()).startswith("refused: ")


async def test_a_burst_is_answered_or_refused(tmp_path: Path):
    """DIEN's queries are short and take long: the last of so many at once would wait for dozens of latency bounds."""
    spec = entry("dien", "small", scale=0.001)
    store(tmp_path / "models", spec)
    reference = Reference(tmp_path / "models", spec.name)
    asked = [draw(spec, 20, np.random.default_rng(number)) for number in range(4)]
    wanted = [reference.scores(inputs) for inputs in asked]
    with hebe_serve(tmp_path / "models", tmp_path / "log", "--workers", "1", "--sla-ms", "60") as server:
        server.wait_until_ready()
        outcomes: Counter[str] = Counter()

        async def ask(client: Any, module: Any, number: int) -> None:
            try:
                result = await client.infer(spec.name, triton_inputs(module, asked[number % 4]))
            except InferenceServerException as error:
                outcomes["refused" if refused(error) else str(error)] += 1
                return
            np.testing.assert_allclose(result.as_numpy("score"), wanted[number % 4], rtol=0, atol=TOLERANCE)
            outcomes["answered"] += 1

        async with (
            tritonclient.http.aio.InferenceServerClient(server.http, conn_limit=BURST) as http,
            tritonclient.grpc.aio.InferenceServerClient(server.grpc) as grpc,
        ):
            clients = [(http, tritonclient.http.aio), (grpc, tritonclient.grpc.aio)]
            await asyncio.gather(*(ask(*clients[number % 2], number) for number in range(BURST)))
            assert outcomes.total() == BURST
            assert set(outcomes) <= {"answered", "refused"}
            assert outcomes["refused"] > 0, "the burst was none"
            metrics = server.metrics()
            assert metrics.value("hebe_queries_total") == outcomes["answered"]
            assert metrics.value("hebe_queries_refused_total") == outcomes["refused"]
            assert metrics.value("hebe_queue_depth") == 0

            # A query at a time is answered again, though a slow machine may have to ask more than once.
            answered = outcomes["answered"]
            while outcomes["answered"] < answered + 3:
                await ask(*clients[outcomes.total() % 2], outcomes.total())
                assert outcomes.total() < 20 * BURST
        assert "Traceback" not in server.log


def test_a_full_queue_refuses_and_a_withdrawn_query_makes_room(tmp_path: Path, rng):
    """Small queries that wait for company, as many as may wait; their going lets others in."""
    store(tmp_path / "models", small_dlrm("ranker"))
    reference = Reference(tmp_path / "models", "ranker")
    options = ["--workers", "1", "--max-wait-ms", "600000", "--max-queue", "5"]
    with hebe_serve(tmp_path / "models", tmp_path / "log", *options, "--batch-size", "64") as server:
        server.wait_until_ready()
        inputs = draw(reference.spec, 2, rng)
        body, header_length = binary_body(inputs)
        with ExitStack() as waiting:
            for _ in range(5):
                connection = waiting.enter_context(socket.create_connection(address(server.http), timeout=PATIENCE_S))
                connection.sendall(request_bytes("ranker", body, header_length))
            eventually(lambda: server.metrics().value("hebe_queue_depth") == 5, "all wait")
            for module, url in ((tritonclient.http, server.http), (tritonclient.grpc, server.grpc)):
                with module.InferenceServerClient(url) as client:
                    with pytest.raises(InferenceServerException) as caught:
                        client.infer("ranker", triton_inputs(module, inputs))
                assert refused(caught.value)
                assert caught.value.message() == "refused: the queue is full, max_queue is 5"
            # What is refused leaves nothing behind: these are 65 MB.
            large = draw(reference.spec, 8192, rng)
            body, header_length = binary_body(large)
            before = server.resident_bytes
            for _ in range(100):
                headers = {"Inference-Header-Content-Length": str(header_length)}
                assert "queue is full" in error_of(post(server.http, "/v2/models/ranker/infer", body, headers), 503)
            assert server.resident_bytes < before + (25 << 20)
        eventually(lambda: server.metrics().value("hebe_queue_depth") == 0, "whoever is gone waits no more")
        full = draw(reference.spec, 64, rng)

        def ask(_: int) -> np.ndarray:
            with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
                return client.infer("ranker", triton_inputs(tritonclient.grpc, full)).as_numpy("score")

        with ThreadPoolExecutor(3) as pool:
            for scores in pool.map(ask, range(6)):
                np.testing.assert_allclose(scores, reference.scores(full), rtol=0, atol=TOLERANCE)
        metrics = server.metrics()
        assert metrics.value("hebe_queries_refused_total", reason="queue_full") == 102
        assert metrics.value("hebe_queries_refused_total", reason="cancelled") == 5
