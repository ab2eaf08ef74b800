"""One query on its own, outside of any schedule: does the server answer at all, and how fast when it is idle."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import numpy as np

from hebe.load_generator.load_report import INTERRUPTED
from hebe.load_generator.queries.query_pool import QueryPool
from hebe.load_generator.senders.sender import TOO_LARGE, Outcome, Sender, ignore_sent
from hebe.workload.query_sizes import QuerySizes


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of the query: outcome, the code or kind ("503", "connection closed"), the server's message."""

    outcome: Outcome
    kind: str = ""
    message: str = ""

    @property
    def fault(self) -> str:
        """Why there is neither an answer nor a refusal; empty if there is."""
        return self._said if self.outcome is Outcome.FAILED else ""

    @property
    def too_large(self) -> str:
        """What the server says of a query that is larger than it takes; empty if it is not."""
        return self._said if self.kind in TOO_LARGE else ""

    @property
    def _said(self) -> str:
        return f"{self.kind} {self.message}".rstrip()


async def ask_one(
    sender: Sender,
    pool: QueryPool,
    sizes: QuerySizes,
    rng: np.random.Generator,
    timeout_s: float,
    stop: asyncio.Event,
    index: int = 0,
) -> Answer:
    """Send one query of the pool, its size and offset drawn with `rng`, and wait for what comes of it, until `stop`.

    `index` must not be under way already. Takes the sender's `on_sent` and `on_done`.
    """
    answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def done(_: int, outcome: Outcome, kind: str, message: str) -> None:
        if not answer.done():
            answer.set_result(Answer(outcome, kind, message))

    sender.on_sent, sender.on_done = ignore_sent, done
    size = sizes.draw(1, rng)
    sender.send(index, int(size[0]), int(pool.offsets(size, rng)[0]))
    stopped = asyncio.ensure_future(stop.wait())
    either: set[asyncio.Future[Any]] = {answer, stopped}
    try:
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
    if answer.done():
        return answer.result()
    sender.give_up(index)
    return Answer(Outcome.FAILED, INTERRUPTED if stop.is_set() else f"no answer in {timeout_s:g} s")
