import asyncio
import math

import numpy as np
import pytest

from hebe.load_generator.queries.model_inputs import ModelInput, ModelInputs
from hebe.load_generator.queries.query_pool import QueryPool
from hebe.load_generator.senders.sender import Outcome
from hebe.load_generator.single_query import Answer, ask_one
from hebe.workload.key_skew import UniformKeys
from hebe.workload.query_sizes import FixedSizes

from .fake_server import FakeServer

POOL = QueryPool(ModelInputs((ModelInput("dense", "FP32", (1,), None),)), UniformKeys(), 10, np.random.default_rng(0))


async def ask(server, timeout_s=10.0, stop=None):
    rng = np.random.default_rng(1)
    return await ask_one(server, POOL, FixedSizes(3), rng, timeout_s, stop or asyncio.Event(), index=7)


async def test_an_answer():
    server = FakeServer()
    answer = await ask(server)
    assert answer.outcome is Outcome.ANSWERED
    assert answer.fault == ""
    ((index, items, offset),) = server.sent
    assert (index, items) == (7, 3)
    assert 0 <= offset <= POOL.items - 3


@pytest.mark.parametrize(
    ("outcome", "kind", "fault"),
    [
        (Outcome.REFUSED, "503", ""),
        (Outcome.FAILED, "connection refused", "connection refused message of connection refused"),
    ],
)
async def test_a_refusal_is_no_fault_and_a_failure_is(outcome, kind, fault):
    answer = await ask(FakeServer(verdict=lambda _: (outcome, kind)))
    assert answer == Answer(outcome, kind, f"message of {kind}")
    assert answer.fault == fault


@pytest.mark.parametrize(("kind", "too_large"), [("413", True), ("message too large", True), ("503", False)])
async def test_a_refusal_for_its_size_is_told_from_others(kind, too_large):
    answer = await ask(FakeServer(verdict=lambda _: (Outcome.REFUSED, kind)))
    assert answer.fault == ""
    assert answer.too_large == (f"{kind} message of {kind}" if too_large else "")


async def test_a_query_without_an_answer_is_given_up():
    server = FakeServer(delay_s=math.inf)
    answer = await ask(server, timeout_s=0.01)
    assert answer.fault == "no answer in 0.01 s"
    assert server.given_up == [7]


async def test_whoever_stops_it_does_not_wait_for_the_answer():
    server, stop = FakeServer(delay_s=math.inf), asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, stop.set)
    answer = await ask(server, math.inf, stop)
    assert answer.fault == "interrupted"
    assert server.given_up == [7]
