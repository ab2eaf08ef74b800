"""The load generator's queries, sent to a driver within this process: what a server takes, without its front ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hebe.load_generator.queries.model_inputs import ModelInput, ModelInputs
from hebe.load_generator.queries.query_pool import QueryPool
from hebe.load_generator.senders.sender import OnDone, OnSent, Outcome, ignore_done, ignore_sent
from hebe.query import Query, QueryResult
from hebe.serving.engine.driver import NodeDriver, clock
from hebe.serving.requests.errors import QueryFailed, QueryRefused
from hebe.spec import ModelSpec, SlaTarget


def inputs_of(spec: ModelSpec, sla: SlaTarget) -> ModelInputs:
    """What a model wants to be sent, as its server would tell a load generator."""
    inputs = [
        ModelInput(feature.name, "INT64", (feature.lookups,), spec.table(feature.table).rows)
        for feature in spec.features
    ]
    if spec.dense_dim:
        inputs.append(ModelInput("dense", "FP32", (spec.dense_dim,), None))
    return ModelInputs(tuple(inputs), sla)


def query_of(pool: QueryPool, spec: ModelSpec, items: int, offset: int) -> Query:
    """The query of so many items from `offset` of `pool`, whose inputs are those of `inputs_of` the model."""
    arrays: list[Any] = [array[offset : offset + items] for array in pool.arrays]
    features = dict(zip((feature.name for feature in spec.features), arrays, strict=False))
    return Query(0, items, 0.0, features=features, dense=arrays[-1] if spec.dense_dim else None)


OnResult = Callable[[QueryResult], None]


def ignore_result(_result: QueryResult) -> None:
    """Whoever measures latencies alone."""


class DriverSender:
    """A `Sender` of queries of a pool, whose inputs are those of `inputs_of`; `on_result` is told every answer."""

    connections = 1
    full = False

    def __init__(self, driver: NodeDriver, pool: QueryPool, on_result: OnResult = ignore_result) -> None:
        self.on_sent: OnSent = ignore_sent
        self.on_done: OnDone = ignore_done
        self._driver, self._pool, self._on_result = driver, pool, on_result
        self._asked: dict[int, asyncio.Task[None]] = {}

    async def open(self) -> None:
        """There is nothing to connect."""

    def send(self, index: int, items: int, offset: int) -> None:
        """Give a query to the driver."""
        query = self.query(items, offset)
        self.on_sent(index)
        self._asked[index] = asyncio.get_running_loop().create_task(self._ask(index, query))

    def query(self, items: int, offset: int) -> Query:
        """The query of so many items from `offset` of the pool, which arrives now."""
        query = query_of(self._pool, self._driver.model.spec, items, offset)
        query.query_id, query.arrival_s = self._driver.new_query_id(), clock()
        return query

    def give_up(self, index: int) -> None:
        """Withdraw a query."""
        if (task := self._asked.pop(index, None)) is not None:
            task.cancel()

    async def close(self) -> None:
        """Withdraw all that is left."""
        for index in list(self._asked):
            self.give_up(index)

    async def _ask(self, index: int, query: Query) -> None:
        kind = message = ""
        try:
            self._on_result(await self._driver.infer(query))
            outcome = Outcome.ANSWERED
        except QueryRefused as refused:
            outcome, kind, message = Outcome.REFUSED, refused.reason, refused.message
        except QueryFailed as failed:
            outcome, kind, message = Outcome.FAILED, type(failed).__name__, str(failed)
        if self._asked.pop(index, None) is not None:
            self.on_done(index, outcome, kind, message)
