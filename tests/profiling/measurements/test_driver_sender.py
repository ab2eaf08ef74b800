"""Queries of a pool, given to a driver in this process."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from hebe.load_generator.queries.query_pool import QueryPool
from hebe.load_generator.senders.sender import Outcome
from hebe.profiling.measurements.driver_sender import DriverSender, inputs_of
from hebe.query import KeyCounts, QueryResult
from hebe.serving.requests.errors import QueryFailed, QueryRefused
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling, SlaTarget
from hebe.workload.key_skew import UniformKeys

SPEC = ModelSpec(
    "small",
    "dlrm",
    tables=(EmbeddingTableSpec("users", 50, 4), EmbeddingTableSpec("ads", 20, 4)),
    features=(FeatureSpec("user", "users", 1, Pooling.SUM), FeatureSpec("ad", "ads", 3, Pooling.SUM)),
    dense_dim=2,
    towers={"bottom": (4,), "top": (1,)},
)
SLA = SlaTarget(10, 95)


class Model:
    spec = SPEC


class Driver:
    """Answers with what it is told to, when it is told to."""

    model = Model()

    def __init__(self, fault: Exception | None = None) -> None:
        self.fault, self.queries = fault, []
        self.gate = asyncio.Event()
        self.gate.set()

    def new_query_id(self) -> int:
        return len(self.queries) + 1

    async def infer(self, query):
        self.queries.append(query)
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        return QueryResult(query.query_id, np.zeros((query.items, 1), np.float32), 0.0, 0.0, 0.0, 0.0, KeyCounts())


def sender_of(driver: Driver) -> tuple[DriverSender, list, QueryPool]:
    pool = QueryPool(inputs_of(SPEC, SLA), UniformKeys(), 10, np.random.default_rng(0), pool_bytes=4000)
    sender, told = DriverSender(driver, pool), []
    sender.on_done = lambda *what: told.append(what)
    return sender, told, pool


def test_a_model_wants_its_features_and_its_numbers():
    inputs = inputs_of(SPEC, SLA)
    assert [(each.name, each.datatype, each.columns, each.rows) for each in inputs.inputs] == [
        ("user", "INT64", (1,), 50), ("ad", "INT64", (3,), 20), ("dense", "FP32", (2,), None),
    ]  # fmt: skip
    assert inputs.sla == SLA


async def test_a_query_is_a_slice_of_the_pool():
    driver = Driver()
    sender, told, pool = sender_of(driver)
    await sender.open()
    sender.send(7, 5, 20)
    await asyncio.sleep(0)
    (query,) = driver.queries
    assert query.items == 5
    assert np.array_equal(query.features["ad"], pool.arrays[1][20:25])
    assert np.array_equal(query.dense, pool.arrays[2][20:25])
    await asyncio.sleep(0)
    assert told == [(7, Outcome.ANSWERED, "", "")]


@pytest.mark.parametrize(
    ("fault", "outcome", "kind"),
    [
        (QueryRefused("deadline", "too late"), Outcome.REFUSED, "deadline"),
        (QueryFailed("broken"), Outcome.FAILED, "QueryFailed"),
    ],
)
async def test_what_came_of_it_is_told(fault, outcome, kind):
    sender, told, _ = sender_of(Driver(fault))
    sender.send(1, 2, 0)
    for _ in range(3):
        await asyncio.sleep(0)
    assert told == [(1, outcome, kind, str(fault))]


async def test_a_query_that_is_given_up_is_withdrawn_and_not_told():
    driver = Driver()
    driver.gate.clear()
    sender, told, _ = sender_of(driver)
    for index in range(3):
        sender.send(index, 2, 0)
    await asyncio.sleep(0)
    sender.give_up(1)
    sender.give_up(1)
    driver.gate.set()
    for _ in range(3):
        await asyncio.sleep(0)
    assert [what[0] for what in told] == [0, 2]
    driver.gate.clear()
    sender.send(3, 2, 0)
    await sender.close()
    await asyncio.sleep(0)
    assert len(told) == 2
