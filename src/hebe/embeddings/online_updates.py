"""Online updates of one served model: from the configured log into its tiers and resident tables (HPS 6).

Each log of updates is read by as many ingestions as there are stores of a different kind of company:

    tiers          level 3, then a hash map, then level 1, in a group of this node's own: each at its own pace
    volatile_db    Redis, in one group of all servers, which share its partitions
    resident       table memory, in no group: it is read from the oldest message at each start, as `tiers` is without
                   level 3

Level 1 takes the rows of updates that come past, and hears from `volatile_db` which of its rows are outdated. Where
there is neither level 3 nor a hash map, `tiers` only listens, so that it still hears of what other servers write.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import socket
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from hebe.embeddings.hierarchy_config import HierarchyConfig, UpdateType
from hebe.embeddings.resident_rows import ResidentRows
from hebe.embeddings.store import EmbeddingStore, KeyArray, RowArray
from hebe.embeddings.table_memory import TableMemory
from hebe.embeddings.tiers import Tiers
from hebe.embeddings.updates.contract import Topic, UpdateLog
from hebe.embeddings.updates.ingestion import IngestionOptions, UpdateIngestion, UpdateListener
from hebe.embeddings.updates.ingestion_statistics import IngestionStatistics
from hebe.embeddings.updates.opening import open_configured_log

log = logging.getLogger("hebe.updates")

CATCH_UP_S = 30.0
"""How long a model that is loaded waits for what it has in memory alone to have all updates that the log holds."""


class OnlineUpdates:
    """Made by `open`. Close it before the tiers and the table memory."""

    def __init__(
        self, update_log: UpdateLog, ingestions: Mapping[str, UpdateIngestion], forgetful: Collection[str]
    ) -> None:
        self._log = update_log
        self._ingestions = dict(ingestions)
        self._forgetful = frozenset(forgetful)

    @classmethod
    def open(
        cls,
        model: str,
        memory: TableMemory | None,
        tiers: Tiers | None,
        config: HierarchyConfig,
        place: Path | None,
        since_s: float | None = None,
    ) -> OnlineUpdates | None:
        """Begin to apply updates of `model` to its tables in `memory` and behind `tiers`; None if none come.

        Level 3 lies in `place`. Updates sent before `since_s` (Unix seconds) are in the rows already.
        Raises `StoreError` when the log cannot be opened, ValueError for an address that is none.
        """
        source = config.update_source
        if source.type is UpdateType.NULL:
            return None
        options = IngestionOptions(
            max_rows_per_s=source.max_rows_per_s or None,
            interval_s=source.interval_s,
            max_batch_size=source.max_batch_size,
            max_commit_interval=source.max_commit_interval,
            failure_backoff_ms=source.failure_backoff_ms,
            poll_timeout_ms=source.poll_timeout_ms,
        )
        update_log = open_configured_log(source)
        quarantine = None if place is None else place.with_name(f"{place.name}.quarantine")
        ingestions: dict[str, UpdateIngestion] = {}
        forgetful: set[str] = set()

        with contextlib.ExitStack() as opened:
            opened.callback(update_log.close)

            def begin(
                name: str,
                group: str | None,
                dims: Mapping[str, int],
                stores: Mapping[str, EmbeddingStore],
                listener: UpdateListener | None = None,
            ) -> None:
                if group is None and stores:
                    forgetful.add(name)
                topics = [Topic(model, table) for table in dims]
                reader = update_log.source(group, topics, newest=not stores)
                ingestions[name] = opened.enter_context(
                    UpdateIngestion(
                        reader,
                        stores,
                        model,
                        dims,
                        options,
                        listener=listener,
                        quarantine=quarantine,
                        since_s=since_s,
                    )
                )

            if memory is not None and memory.shapes:
                resident = {table: dim for table, (_, dim) in memory.shapes.items()}
                defaults = config.cache_of(model).default_value_for_each_table
                begin("resident", None, resident, {"resident": ResidentRows(memory, defaults)})
            if tiers is not None:
                lookup, own = tiers.lookup, tiers.stores_of_this_process()
                group = _group_of_this_node(source.group, model, place) if "persistent_db" in own else None
                begin("tiers", group, lookup.dims, own, lookup.updated)
                volatile = lookup.volatile
                if volatile is not None and volatile.guard is not None:

                    def outdated(table: str, keys: KeyArray, _rows: RowArray | None) -> None:
                        lookup.outdated(table, keys)

                    group = f"{source.group}.{tiers.content}"
                    begin("volatile_db", group, lookup.dims, {"volatile_db": volatile.store}, outdated)
            opened.pop_all()
        return cls(update_log, ingestions, forgetful)

    def catch_up(self, timeout_s: float = CATCH_UP_S) -> bool:
        """Wait until tables in memory have what the log holds: they begin with the model's own rows at each start.

        False if that took longer; then they go on catching up while queries are answered.
        """
        give_up_s = time.monotonic() + timeout_s
        if all(self._ingestions[name].drain(max(give_up_s - time.monotonic(), 0.0)) for name in self._forgetful):
            return True
        log.warning("tables in memory have not caught up with the update log after %g s; they go on", timeout_s)
        return False

    def statistics(self) -> dict[str, IngestionStatistics]:
        """By where they go: `tiers`, `volatile_db`, `resident`."""
        return {name: ingestion.statistics() for name, ingestion in self._ingestions.items()}

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that is in the log now is applied; False if that takes longer."""
        give_up_s = time.monotonic() + timeout_s
        return all(each.drain(max(give_up_s - time.monotonic(), 0.0)) for each in self._ingestions.values())

    def close(self) -> None:
        """Finish the batches that are being applied, leave the groups. Closing twice is harmless."""
        for ingestion in self._ingestions.values():
            ingestion.close()
        self._log.close()


def _group_of_this_node(group: str, model: str, place: Path | None) -> str:
    """A group that this node alone is in, the same one after a restart: by host and directory of its level 3."""
    where = hashlib.blake2b(f"{socket.gethostname()}:{place}".encode(), digest_size=6).hexdigest()
    return f"{group}.{model}.{where}"
