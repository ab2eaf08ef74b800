"""Online updates of one served model: from the configured log into its tiers and resident tables (HPS 6).

Each log of updates is read by as many ingestions as there are stores of a different kind of company:

    tiered tables      level 3, then a hash map          in a group of this node's own: each follows at its own pace
                       Redis                             in one group of all servers, which share its partitions
    resident tables    table memory                      in no group: it is read from the oldest message at each start

After the stores have a row, level 1 hears that its own is stale.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.embeddings.hierarchy_config import UpdateConfig, UpdateType, secret
from hebe.embeddings.resident_rows import ResidentRows
from hebe.embeddings.store import EmbeddingStore, KeyArray
from hebe.embeddings.updates.contract import Topic, UpdateLog
from hebe.embeddings.updates.ingestion import IngestionOptions, UpdateIngestion
from hebe.embeddings.updates.ingestion_statistics import IngestionStatistics
from hebe.spec import ModelSpec

log = logging.getLogger("hebe.updates")

CATCH_UP_S = 30.0
"""How long a model that is loaded waits for its resident tables to have all updates that the log holds."""


class OnlineUpdates:
    """Made by `open`, for as long as the hierarchy is open. Close it first."""

    def __init__(self, update_log: UpdateLog, ingestions: Mapping[str, UpdateIngestion]) -> None:
        self._log = update_log
        self._ingestions = dict(ingestions)

    @classmethod
    def open(
        cls, spec: ModelSpec, hierarchy: EmbeddingHierarchy, config: UpdateConfig, place: Path | None
    ) -> OnlineUpdates | None:
        """Begin to apply updates of model `spec.name` to `hierarchy`, whose level 3 lies in `place`; None if none come.

        Raises `StoreError` when the log cannot be opened, ValueError for an address that is none.
        """
        if config.type is UpdateType.NULL:
            return None
        options = IngestionOptions(
            max_rows_per_s=config.max_rows_per_s or None,
            max_batch_size=config.max_batch_size,
            max_commit_interval=config.max_commit_interval,
            failure_backoff_ms=config.failure_backoff_ms,
            poll_timeout_ms=config.poll_timeout_ms,
        )
        update_log = open_log(config)
        quarantine = None if place is None else place.with_name(f"{place.name}.quarantine")
        ingestions: dict[str, UpdateIngestion] = {}

        def begin(
            name: str,
            group: str | None,
            dims: Mapping[str, int],
            stores: Mapping[str, EmbeddingStore],
            listener: Callable[[str, KeyArray], None] | None,
        ) -> None:
            if dims:
                source = update_log.source(group, [Topic(spec.name, table) for table in dims])
                ingestions[name] = opened.enter_context(
                    UpdateIngestion(source, stores, spec.name, dims, options, listener=listener, quarantine=quarantine)
                )

        with contextlib.ExitStack() as opened:
            opened.callback(update_log.close)
            tiers = hierarchy.tiers
            tiered = dict(tiers.lookup.dims) if tiers is not None else {}
            resident = {table.name: table.dim for table in spec.tables if table.name not in tiered}
            begin("resident", None, resident, {"resident": ResidentRows(hierarchy.memory)}, None)
            if tiers is not None:
                own = tiers.stores_of_this_process()
                group = _group_of_this_node(config.group, spec.name, place) if "persistent_db" in own else None
                begin("tiers", group, tiered, own, tiers.lookup.updated)
                if tiers.lookup.volatile is not None and tiers.lookup.volatile.guard is not None:
                    shared = {"volatile_db": tiers.lookup.volatile.store}
                    begin("volatile_db", f"{config.group}.{spec.name}", tiered, shared, tiers.lookup.updated)
            opened.pop_all()
        return cls(update_log, ingestions)

    def catch_up(self, timeout_s: float = CATCH_UP_S) -> bool:
        """Wait until resident tables have what the log holds: they begin with the model's own rows at each start.

        False if that took longer; then they go on catching up while queries are answered.
        """
        ingestion = self._ingestions.get("resident")
        if ingestion is None or ingestion.drain(timeout_s):
            return True
        log.warning("resident tables have not caught up with the update log after %g s; they go on", timeout_s)
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


def open_log(config: UpdateConfig) -> UpdateLog:
    """The log that a configuration names. Raises ValueError, `StoreError`."""
    from hebe.embeddings.updates.log_directory import LogDirectory

    if config.type is UpdateType.LOG_DIRECTORY:
        return LogDirectory(Path(config.address))
    password = secret("", config.password_file)
    if config.type is UpdateType.REDIS_STREAMS:
        from hebe.embeddings.redis_connection import RedisAccess
        from hebe.embeddings.updates.redis_streams import RedisStreamsLog, RedisStreamsOptions

        return RedisStreamsLog(RedisStreamsOptions(config.address, RedisAccess(password=password)))
    from hebe.embeddings.updates.kafka import KafkaLog
    from hebe.embeddings.updates.kafka_options import KafkaOptions

    return KafkaLog(
        KafkaOptions(
            config.address,
            metadata_refresh_interval_ms=config.metadata_refresh_interval_ms,
            receive_buffer_size=config.receive_buffer_size,
        )
    )


def _group_of_this_node(group: str, model: str, place: Path | None) -> str:
    """A group that this node alone is in, the same one after a restart: by host and directory of its level 3."""
    where = hashlib.blake2b(f"{socket.gethostname()}:{place}".encode(), digest_size=6).hexdigest()
    return f"{group}.{model}.{where}"
