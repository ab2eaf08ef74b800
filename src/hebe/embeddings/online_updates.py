"""Online updates of one served model: from the configured log into its tiers and resident tables (HPS 6).

Each log of updates is read by as many ingestions as there are stores of a different kind:

    tiers          level 3, then a hash map, then level 1: each store at its own pace, and its position is the store's
    volatile_db    Redis, by one of the servers that share it (`tiers.redis_keeper`): its position is that of the rows
                   there
    resident       table memory: it is read from the oldest message at each start, as `tiers` is without level 3

Level 1 takes the rows of updates that come past. Where there is neither level 3 nor a hash map, `tiers` only listens,
from the position on that Redis had when level 1 was filled.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from hebe.embeddings.config.hierarchy_config import HierarchyConfig, UpdateConfig, UpdateType
from hebe.embeddings.memory.resident_rows import ResidentRows
from hebe.embeddings.memory.table_memory import TableMemory
from hebe.embeddings.rocksdb.directory import update_member
from hebe.embeddings.store import EmbeddingStore
from hebe.embeddings.tiers.tiers import Tiers
from hebe.embeddings.updates.contract import Topic, UpdateLog
from hebe.embeddings.updates.ingestion.ingestion import UpdateIngestion
from hebe.embeddings.updates.ingestion.statistics import IngestionStatistics
from hebe.embeddings.updates.opening import open_configured_log
from hebe.embeddings.updates.options import PATIENCE_S, ingestion_options, quarantine_of, reader_name

log = logging.getLogger("hebe.updates")


class OnlineUpdates:
    """Made by `open`. Close it before the tiers and the table memory."""

    def __init__(
        self, model: str, update_log: UpdateLog, source: UpdateConfig, since_s: float | None, quarantine: Path | None
    ) -> None:
        self._model, self._log, self._source, self._since_s = model, update_log, source, since_s
        self._quarantine = quarantine
        self._ingestions: dict[str, UpdateIngestion] = {}
        self._forgetful: set[str] = set()
        self._tiers: Tiers | None = None

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
        updates = cls(model, open_configured_log(source), source, since_s, quarantine_of(source, model, place))
        try:
            if memory is not None and memory.shapes:
                resident = {table: dim for table, (_, dim) in memory.shapes.items()}
                defaults = config.cache_of(model).default_value_for_each_table
                updates._begin("resident", None, resident, {"resident": ResidentRows(memory, defaults)})
            if tiers is not None:
                own = tiers.stores_of_this_process()
                reader = None
                if "persistent_db" in own:
                    assert place is not None
                    reader = reader_of_store(source.group, model, place)
                updates._begin("tiers", reader, tiers.lookup.dims, own, tiers)
                updates._tiers = tiers
                if tiers.keeper is not None:
                    tiers.keeper.start()
        except BaseException:
            updates.close()
            raise
        return updates

    def _begin(
        self,
        name: str,
        reader: str | None,
        dims: Mapping[str, int],
        stores: Mapping[str, EmbeddingStore],
        tiers: Tiers | None = None,
    ) -> None:
        if reader is None and stores:
            self._forgetful.add(name)
        options = ingestion_options(self._source)
        if not stores:  # it only listens, and writes nothing that queries would wait for
            options = replace(options, max_rows_per_s=None)
        self._ingestions[name] = UpdateIngestion(
            self._log.source(reader, [Topic(self._model, table) for table in dims]),
            stores,
            self._model,
            dims,
            options,
            listener=None if tiers is None else tiers.lookup,
            begin=None if tiers is None or stores else tiers.written,
            missed=None if tiers is None or stores else tiers.refresh.ask,
            quarantine=self._quarantine,
            since_s=self._since_s,
            catches_up=name in self._forgetful,
        )

    def catch_up(self, patience_s: float = PATIENCE_S, go_on: Callable[[], None] = lambda: None) -> bool:
        """Wait until tables in memory have what the log holds: they begin with the model's own rows at each start.
        `go_on` is called every second or so, and raises to end it.

        False where the log is away, or nothing more comes of it, for `patience_s`; then they go on catching up while
        queries are answered.
        """
        done = True
        for name in self._forgetful:
            done &= self._ingestions[name].catch_up(patience_s if done else 0.0, go_on)
        if not done:
            what = "tables in memory have not caught up with the update log, of which nothing came for %g s; they go on"
            log.warning(what, patience_s)
        return done

    def statistics(self) -> dict[str, IngestionStatistics]:
        """By where they go: `tiers`, `resident`, and `volatile_db` while this server is the one that writes Redis."""
        return {name: ingestion.statistics() for name, ingestion in self._all().items()}

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that is in the log now is applied, by whichever server; False if that takes longer."""
        give_up_s = time.monotonic() + timeout_s
        done = all(each.drain(max(give_up_s - time.monotonic(), 0.0)) for each in self._ingestions.values())
        keeper = None if self._tiers is None else self._tiers.keeper
        return done and (keeper is None or keeper.drain(max(give_up_s - time.monotonic(), 0.0)))

    def close(self) -> None:
        """Finish the batches that are being applied. Closing twice is harmless."""
        with contextlib.ExitStack() as closing:  # the last one first; one that fails does not keep the others open
            closing.callback(self._log.close)
            for ingestion in reversed(self._ingestions.values()):
                closing.callback(ingestion.close)

    def _all(self) -> dict[str, UpdateIngestion]:
        """As they are now, of Redis' too."""
        found = dict(self._ingestions)
        keeper = None if self._tiers is None else self._tiers.keeper
        if keeper is not None and (ingestion := keeper.ingestion) is not None:
            found["volatile_db"] = ingestion
        return found


def reader_of_store(group: str, model: str, place: Path) -> str:
    """The name under which the level 3 in `place` reports how far it is in the log: of this store alone, the same one
    after a restart.

    It goes by host, directory and name of level 3: containers may have the first two from one image, a copy the last.
    How far it is in the log the store says, whatever the name.
    """
    where = f"{socket.gethostname()}:{place.resolve()}:{update_member(place)}"
    return reader_name(group, model, hashlib.blake2b(where.encode(), digest_size=6).hexdigest())
