"""States of tiers and online updates, as a loaded model tells them, for the fake `ranker`."""

from __future__ import annotations

from hebe.embeddings.updates.contract import TopicPartition
from hebe.embeddings.updates.ingestion.sequence_check import Gap
from hebe.embeddings.updates.ingestion.statistics import IngestionCounter
from hebe.runtime.tier_state import IngestionStatistics, LookupCounts, RefreshReport, TierSize, TiersState, TierState

KINDS = {"cache": "host_cache", "volatile_db": "redis", "persistent_db": "rocks_db"}
REDIS_FAULT = "Redis 10.0.0.7:6379: Connection refused"


BLOCK_FAULT = "persistent store /rows: Corruption: block checksum mismatch"


def tiers_state(
    *, redis: bool = True, rocksdb: bool = True, fault: str = REDIS_FAULT, damage_age_s: float | None = None
) -> TiersState:
    """A cache over Redis and RocksDB, each of which answers or has not for 90 s; RocksDB may have met damage."""
    return TiersState(
        levels=(
            TierState("volatile_db", True, 0, None, None)
            if redis
            else TierState("volatile_db", False, 7, fault, 2.5, 90.0),
            TierState("persistent_db", True, 0, None, None)
            if rocksdb and damage_age_s is None
            else TierState("persistent_db", True, 1, BLOCK_FAULT, damage_age_s, None, BLOCK_FAULT, damage_age_s, 9000.0)
            if rocksdb
            else TierState("persistent_db", False, 3, "IO error", 1.0, 60.0),
        ),
        sizes={"persistent_db": TierSize(70_000)},
        cached_rows=800,
        cache_capacity_rows=1024,
        cache_bytes=1 << 20,
        cache_evictions=30,
        cache_unheld=9,
        hash_map_evictions=8,
        counts=LookupCounts(cache_hits=90, cache_misses=10, volatile_hits=6, persistent_hits=3, unknown=1),
        insertions_waiting=4,
        insertions_dropped=2,
        refreshes=5,
        last_refresh=RefreshReport(800, 790, 6, 4, 0.25),
    )


def no_updates() -> IngestionStatistics:
    """Of an ingestion into the persistent store to which nothing has come."""
    return IngestionCounter(["persistent_db"]).read()


def update_statistics(*, failing: bool = False) -> IngestionStatistics:
    """Of an ingestion into the persistent store that has met everything once."""
    at = TopicPartition("ranker", "users", 0)
    counter = IngestionCounter(["persistent_db"])
    counter.add(messages=4, rows=40, deletes=3, duplicates=2, reordered=9, passed_over=8)
    counter.visible("persistent_db", [0.0])  # sent in 1970: beyond every bucket
    counter.gap(Gap(at, "trainer", 5, 7))
    counter.add(refused=6, unheld=5)
    counter.poison("its checksum is wrong", "message 7 of partition 0: its checksum is wrong (kept nowhere)")
    counter.lag({at: 11})
    if failing:
        counter.failed("Kafka 10.0.0.8:9092: timed out")
        counter.lag(None)
    return counter.read()


KEYS_IN_TIME = {"cut_by_deadline": 0, "recently_defaulted": None}
"""Of the keys of a status: none has been cut off by its deadline, and no query was answered in the last seconds."""
