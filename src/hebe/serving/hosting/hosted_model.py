"""One version of a model in memory, as the front ends see it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import structlog

from hebe.machine.pinning import PlacedLane, PlacedServer
from hebe.machine.process_limits import give_back_freed
from hebe.query import KeyArray, Query, QueryResult
from hebe.runtime.tier_state import IngestionStatistics, RefreshReport, TiersState, row_format
from hebe.scheduling.events import Stage
from hebe.server_configuration import Lane
from hebe.serving.engine.driver import BatchObserver, NodeDriver
from hebe.serving.hosting.answer_quality import WINDOW_S, AnswerQuality
from hebe.serving.hosting.profile_in_use import ProfileInUse
from hebe.serving.requests.errors import QueryRefused
from hebe.spec import ModelSpec

log = structlog.get_logger("hebe.models")


class HostedModel:
    """One version of a model in memory, with its workers.

    `max_items`: the largest query size taken. `tier_kinds`: what each tier is, by name, level 1 first; empty where all
    rows are resident. `profile`: of this version, where there is one.
    """

    def __init__(
        self,
        driver: NodeDriver,
        max_items: int,
        tier_kinds: Mapping[str, str],
        profile: ProfileInUse | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spec: ModelSpec = driver.model.spec
        self.version = driver.model.version
        self.identity = driver.model.identity
        self.tier_kinds = dict(tier_kinds)
        self.max_items = max_items
        self.sla_s = driver.config.sla_s
        self.percentile = driver.config.percentile
        self._takes_new_keys = self.spec.takes_new_keys
        self._profile = profile
        self._driver = driver
        self._clock = clock
        self._quality, self._was_poor = AnswerQuality(), False

    @property
    def configuration(self) -> tuple[Lane, ...]:
        """How the server is split for it."""
        return tuple(placed.lane for placed in self._driver.lanes)

    @property
    def lanes(self) -> tuple[PlacedLane, ...]:
        """The same, with the cores."""
        return self._driver.lanes

    @property
    def on_gpu(self) -> bool:
        """Whether a part of it runs on a GPU."""
        return self._driver.on_gpu

    @property
    def splits(self) -> int:
        """How often the server was split for it."""
        return self._driver.splits

    @property
    def profile(self) -> ProfileInUse | None:
        """The profile that it runs by; None while it is split otherwise."""
        return self._profile if self._profile and self._profile.configuration == self.configuration else None

    @property
    def batch_size(self) -> int:
        """Most items in a batch of the workers that take queries; of two lanes, the first one's."""
        return self.configuration[0].batch_size

    @property
    def fuses(self) -> bool:
        """Whether queries share batches of the workers that take them; of two lanes, of the first one's."""
        lane = self.configuration[0]
        return self._driver.config.fuse if lane.workers else lane.fused_items > 0

    @property
    def max_wait_s(self) -> float:
        """How long a query waits at most for others to share a batch with."""
        return self._driver.config.max_wait_s

    def split_anew(self, placed: PlacedServer) -> None:
        """Run on these workers instead; no query is lost. Blocks until the old ones are gone. Raises as
        `NodeDriver.reconfigure`; then all is as it was.
        """
        self._driver.reconfigure(placed.lanes, threads=placed.threads, gives_way=placed.gives_way)

    @property
    def workers(self) -> int:
        """Workers that run."""
        return self._driver.workers

    @property
    def threads(self) -> int:
        """Threads of each worker that runs the whole model on the host."""
        return self._driver.threads

    @property
    def workers_beside_front_end(self) -> int:
        """Workers, where they share cores with the front end and leave them to it whenever it wants them; else 0."""
        return self._driver.configured_workers if self._driver.gives_way else 0

    @property
    def worked_s(self) -> Mapping[tuple[int, Stage], float]:
        """Seconds that a worker has been at work so far, by lane and stage, since the server was split."""
        return self._driver.worked_s

    @property
    def queue_depth(self) -> int:
        """Queries waiting for a worker."""
        return self._driver.queue_depth

    @property
    def idle(self) -> bool:
        """Whether every query that was admitted has been answered."""
        return self._driver.idle

    @property
    def tiered(self) -> bool:
        """Whether its tables are read through tiers."""
        return self._driver.model.hierarchy.tiers is not None

    @property
    def tells_of_keys(self) -> bool:
        """Whether rows of its keys may be late, stale or unknown, which its answers tell."""
        return self.tiered or self._takes_new_keys

    @property
    def ready(self) -> bool:
        """Whether it can answer: workers run, batches do not all fail, missing rows can be had from somewhere, and its
        recent answers, if there are any, are not mostly default vectors.
        """
        return self._driver.healthy and self._driver.model.can_answer and self._poor_since_s() is None

    @property
    def runs(self) -> bool:
        """Whether all workers run, and the last batches did not all fail."""
        return self._driver.healthy

    @property
    def fails(self) -> bool:
        """Whether its last batches all failed."""
        return self._driver.fails

    @property
    def trouble(self) -> str:
        """Why it is not ready; empty where it is."""
        if not self._driver.healthy:
            stopped = self._driver.configured_workers - self.workers
            return f"{stopped} of its workers have ended" if stopped else "its last batches all failed"
        if not self._driver.model.can_answer:
            return f"no tier has its rows: {' and '.join(self.degraded)} cannot be asked"
        return self._poor_answers() if self._poor_since_s() is not None else ""

    @property
    def trouble_s(self) -> float | None:
        """For how long there has been that `trouble`. None where there is none, and where workers have ended: nobody
        notes when."""
        if not self._driver.healthy:
            return self._driver.failing_s if self.workers >= self._driver.configured_workers else None
        tiers = self.tiers
        if tiers is None or self._driver.model.can_answer:
            since_s = self._poor_since_s()
            return None if since_s is None else self._clock() - since_s
        return min((level.unavailable_s for level in tiers.degraded if level.unavailable_s is not None), default=None)

    @property
    def defaulted_share(self) -> float | None:
        """Of the keys of its answers of the last seconds, those that got a default vector for want of time; None where
        it has not answered.
        """
        return self._quality.defaulted_share(self._clock())

    def _poor_since_s(self) -> float | None:
        """Since when its recent answers have been mostly default vectors. Logs once that they are, and are no more."""
        since_s = self._quality.poor_since_s(self._clock())
        if self._was_poor is not (since_s is not None):
            self._was_poor = since_s is not None
            text = self._poor_answers() if self._was_poor else "answers are mostly default vectors no more"
            (log.warning if self._was_poor else log.info)(text, model=self.spec.name, version=self.version)
        return since_s

    def _poor_answers(self) -> str:
        now_s = self._clock()
        share, cut = self._quality.defaulted_share(now_s) or 0.0, self._quality.cut_share(now_s)
        what = f"in the last {WINDOW_S} s {share:.0%} of the keys of its answers got default vectors"
        if cut > 0.5:
            return f"{what}, as rows come after the deadline: allow more time (--sla-ms) or a larger cache"
        return f"{what}, as tiers fail or the cache has too few rows: see its tiers, or allow a larger cache"

    @property
    def degraded(self) -> tuple[str, ...]:
        """Names of the tiers whose circuit is open, since they failed."""
        tiers = self.tiers
        return () if tiers is None else tuple(level.name for level in tiers.degraded)

    @property
    def tiers(self) -> TiersState | None:
        """How the tiers of its tables are, None where all rows are resident."""
        return self._driver.model.tiers_state

    @property
    def updates(self) -> Mapping[str, IngestionStatistics]:
        """What has become of online updates, by ingestion; empty where none come."""
        return self._driver.model.update_statistics

    @property
    def table_memory_bytes(self) -> int:
        """Memory taken by rows: resident ones, the cache's, and a hash map's."""
        return self._driver.model.hierarchy.memory_bytes

    @property
    def row_format(self) -> str:
        """How rows in memory are stored: those of level 1 where tables are tiered."""
        return str(row_format(self._driver.model))

    async def prefetch(self, keys: Mapping[str, KeyArray]) -> bool:
        """Have rows brought into level 1, `keys` int64 by table; False if there is too much to do already."""
        return await asyncio.to_thread(self._driver.model.prefetch, keys)

    def refresh(self) -> RefreshReport | None:
        """Bring level 1 up to date with the tiers below; None where there is none. Blocks. Raises as they do."""
        return self._driver.model.refresh()

    def observe_batches(self, observer: BatchObserver) -> None:
        """Have every batch reported to `observer` (items, sparse seconds, dense seconds), on a worker's thread."""
        self._driver.on_batch = observer

    def new_query_id(self) -> int:
        """An id that no other query of this model has."""
        return self._driver.new_query_id()

    @property
    def refuses_of_late(self) -> bool:
        """Whether a query was refused in the last second, so that it pays to ask of the next one before it is read."""
        return self._driver.refuses_of_late

    def refusal(self, query: Query) -> QueryRefused | None:
        """How `query`, of which only size and deadline need be known, would be refused now; None if it might run."""
        return self._driver.refusal(query)

    async def infer(self, query: Query) -> QueryResult:
        """Score a checked query; raises `QueryRefused`, `QueryFailed`. Cancelling the task withdraws it."""
        result = await self._driver.infer(query)
        if query.counted and self.tiered:
            self._quality.add(result.keys, self._clock())
        return result

    def warm_up_query(self) -> Query:
        """A query with keys of its own making, as large as a batch, so that it waits for no company."""
        query = self._driver.model.random_query(self.batch_size)
        query.query_id = self.new_query_id()
        return query

    def begin_shutdown(self) -> None:
        """Refuse queries from now on, and let none of those admitted wait for company any more."""
        self._driver.begin_shutdown()

    def close(self) -> None:
        """Answer what was admitted, stop the workers, free the memory. Blocks."""
        self._driver.close()
        self._driver.model.close()
        give_back_freed()
