"""A closed loop in a process of its own: so many queries under way at all times, nothing computed between them.

    python -m hebe_lab.bench.serving.closed_loop \
        http://127.0.0.1:8000 --model dlrm-rmc1 --items 256 --concurrency 4 --seconds 5

Prints one JSON line. Measures saturation and added latency; what a server can take under an SLA is the open loop's
question (`hebe load`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import uvloop

from hebe.latency import percentile_of
from hebe.load_generator.discovery import call_metadata, discover, grpc_channel
from hebe.load_generator.queries.query_pool import QueryPool
from hebe.load_generator.queries.request_body import request_body
from hebe.load_generator.senders.grpc.grpc_sender import GrpcSender
from hebe.load_generator.senders.http_sender import HttpSender
from hebe.load_generator.senders.sender import Outcome, Sender
from hebe.load_generator.target import Target, parse_endpoint
from hebe.machine.pinning import interrupt_nobody, pin_thread
from hebe.machine.process_limits import keep_large_allocations
from hebe.workload.forms import query_sizes
from hebe.workload.key_skew import UniformKeys
from hebe_lab.bench.serving.bench_model import measured_in_child


@dataclass(frozen=True, slots=True)
class ClosedLoopResult:
    """Answers per second, their latency in milliseconds, and how many queries were refused or failed."""

    throughput_qps: float
    p50_ms: float
    p99_ms: float
    answered: int
    refused: int
    failed: int


def closed_loop(
    url: str, model: str, sizes: str, concurrency: int, seconds: float, cores: Sequence[int] | None = None
) -> ClosedLoopResult:
    """Run this module as a child process on `cores` and return what it measured.

    Raises RuntimeError if it fails or does not end.
    """
    arguments = [url, "--model", model, "--sizes", sizes, "--concurrency", str(concurrency), "--seconds", str(seconds)]
    if cores:
        arguments += ["--cores", ",".join(map(str, cores))]
    what = f"closed loop against {url}"
    return ClosedLoopResult(**measured_in_child("hebe_lab.bench.serving.closed_loop", arguments, seconds, what))


def _measure_grpc_alone(target: Target, sizes: str, seconds: float) -> ClosedLoopResult:
    """One blocking call after the other, by gRPC's own client: the wake-ups of an event loop would count as the
    server's.
    """
    distribution = query_sizes(sizes)
    rng = np.random.default_rng(1)
    pool = QueryPool(discover(target), UniformKeys(), distribution.largest, rng)
    body = request_body(target, pool)
    drawn = distribution.draw(256, rng)
    requests = [
        b"".join(body.parts(int(items), int(offset)))
        for items, offset in zip(drawn, pool.offsets(drawn, rng), strict=True)
    ]
    latencies: list[float] = []
    with grpc_channel(target) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        started_s = now = time.perf_counter()
        warm_s = started_s + min(1.0, seconds / 3)
        while now < warm_s + seconds:
            infer(requests[len(latencies) % 256], timeout=target.patience_s(), metadata=call_metadata(target))
            before, now = now, time.perf_counter()
            latencies.append(now - before)
            if before < warm_s:
                latencies.clear()
    return _result(latencies, seconds)


async def _measure(target: Target, sizes: str, concurrency: int, seconds: float) -> ClosedLoopResult:
    distribution = query_sizes(sizes)
    rng = np.random.default_rng(1)
    model = await asyncio.to_thread(discover, target)
    pool = QueryPool(model, UniformKeys(), distribution.largest, rng)
    sender: Sender = (GrpcSender if target.endpoint.protocol == "grpc" else HttpSender)(
        target, request_body(target, pool)
    )
    await sender.open()
    drawn = distribution.draw(4096, rng)
    offsets = pool.offsets(drawn, rng)
    sent_s: dict[int, float] = {}
    latencies: list[float] = []
    counts = {Outcome.REFUSED: 0, Outcome.FAILED: 0}
    warm_s = time.perf_counter() + min(1.0, seconds / 3)
    end_s = warm_s + seconds
    finished = asyncio.Event()
    following = concurrency

    def send(index: int) -> None:
        sent_s[index] = time.perf_counter()
        sender.send(index, int(drawn[index % 4096]), int(offsets[index % 4096]))

    def done(index: int, outcome: Outcome, kind: str, message: str) -> None:  # noqa: ARG001
        nonlocal following
        now = time.perf_counter()
        if now >= end_s:
            finished.set()
            return
        if now >= warm_s:
            if outcome is Outcome.ANSWERED:
                latencies.append(now - sent_s[index])
            else:
                counts[outcome] += 1
        del sent_s[index]
        send(following)
        following += 1

    sender.on_done = done
    for index in range(concurrency):
        send(index)
    await finished.wait()
    await sender.close()
    return _result(latencies, seconds, counts[Outcome.REFUSED], counts[Outcome.FAILED])


def _result(latencies: list[float], seconds: float, refused: int = 0, failed: int = 0) -> ClosedLoopResult:
    if not latencies:
        raise RuntimeError(f"no query was answered: {refused} refused, {failed} failed")
    p50_s, p99_s = (percentile_of(latencies, at) for at in (50, 99))
    return ClosedLoopResult(len(latencies) / seconds, p50_s * 1e3, p99_s * 1e3, len(latencies), refused, failed)


def main() -> None:
    """Measure as the command line says and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--model", required=True)
    parser.add_argument("--sizes", required=True, help="query sizes as for hebe load")
    parser.add_argument("--concurrency", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--cores", default="", help="comma-separated; default: all")
    arguments = parser.parse_args()
    if arguments.cores:
        pin_thread([int(core) for core in arguments.cores.split(",")])
        interrupt_nobody()
    keep_large_allocations()
    target = Target(parse_endpoint(arguments.url), arguments.model)
    if target.endpoint.protocol == "grpc" and arguments.concurrency == 1:
        result = _measure_grpc_alone(target, arguments.sizes, arguments.seconds)
    else:
        result = uvloop.run(_measure(target, arguments.sizes, arguments.concurrency, arguments.seconds))
    print(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
