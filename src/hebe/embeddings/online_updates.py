"""Online updates of one served model: from the configured log into its tiers and resident tables (HPS 6).

Each log of updates is read by as many ingestions as there are stores of a different kind of company:

    tiers          level 3, then a hash map, then level 1, in a group of this node's own: each at its own pace
    volatile_db    Redis, in one group of all its servers, which share its partitions: that of this Redis
                   (`redis.identity`); where nothing else has the rows, of this generation of them (`redis.generations`)
    resident       table memory, in no group: it is read from the oldest message at each start, as `tiers` is without
                   level 3

Level 1 takes the rows of updates that come past, and hears from `volatile_db` which of its rows are outdated. What
Redis and level 3 may lack of them is watched (`levels_watch`): Redis is given rows of level 3 only while that has all
updates, as what an older one had would be new to other servers. Where there is neither level 3 nor a hash map, `tiers`
only listens, so that it still hears of what other servers write: all that Redis did not have when level 1 was filled;
level 1 is refreshed where it has missed some.

`remove_store` removes a persistent store that is served no more: its directory, and what the log of updates keeps for
it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from hebe.embeddings.config.hierarchy_config import HierarchyConfig, UpdateConfig, UpdateType
from hebe.embeddings.memory.resident_rows import ResidentRows
from hebe.embeddings.memory.table_memory import TableMemory
from hebe.embeddings.redis.fills import RedisFills
from hebe.embeddings.redis.generations import RedisGenerations
from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.rocksdb.directory import has_update_member, remove, update_member
from hebe.embeddings.store import EmbeddingStore, KeyArray, StoreError
from hebe.embeddings.tiers.levels_watch import LevelsWatch
from hebe.embeddings.tiers.tiers import Tiers
from hebe.embeddings.updates.contract import Topic, UpdateLog
from hebe.embeddings.updates.ingestion.ingestion import UpdateIngestion
from hebe.embeddings.updates.ingestion.statistics import IngestionStatistics
from hebe.embeddings.updates.ingestion.updated_stores import Overtaken, UpdateListener
from hebe.embeddings.updates.opening import open_configured_log
from hebe.embeddings.updates.replay import (
    PATIENCE_S,
    forget_group,
    group_name,
    ingestion_options,
    quarantine_of,
    shared_group,
)

log = logging.getLogger("hebe.updates")


class OnlineUpdates:
    """Made by `open`. Close it before the tiers and the table memory."""

    def __init__(self, model: str, update_log: UpdateLog, source: UpdateConfig, since_s: float | None) -> None:
        self._model, self._log, self._source, self._since_s = model, update_log, source, since_s
        self._ingestions: dict[str, UpdateIngestion] = {}
        self._forgetful: set[str] = set()
        self._levels: LevelsWatch | None = None
        self._changing = threading.Lock()
        self._closed = False

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
        updates = cls(model, open_configured_log(source), source, since_s)
        quarantine = quarantine_of(source, model, place)
        try:
            if memory is not None and memory.shapes:
                resident = {table: dim for table, (_, dim) in memory.shapes.items()}
                defaults = config.cache_of(model).default_value_for_each_table
                updates._begin("resident", None, resident, {"resident": ResidentRows(memory, defaults)}, quarantine)
            if tiers is not None:
                lookup, own = tiers.lookup, tiers.stores_of_this_process()
                group = older = None
                if "persistent_db" in own:
                    assert place is not None
                    group, older = _groups_of_this_node(source.group, model, place)
                level_1 = None if own else tiers
                updates._begin("tiers", group, lookup.dims, own, quarantine, lookup.updated, older, level_1)
                if lookup.volatile is not None and lookup.volatile.fills is not None:
                    if "persistent_db" in own:
                        assert isinstance(lookup.volatile.store, RedisStore)
                        assert place is not None
                        notes = RedisFills(lookup.volatile.store, tiers.content, update_member(place))
                        lookup.volatile.fills.notes = notes
                    updates._follow(tiers, lookup.volatile.store, quarantine)
                    assert updates._levels is not None
                    updates._levels.start()
        except BaseException:
            updates.close()
            raise
        return updates

    def _begin(
        self,
        name: str,
        group: str | None,
        dims: Mapping[str, int],
        stores: Mapping[str, EmbeddingStore],
        quarantine: Path | None,
        listener: UpdateListener | None = None,
        older_group: str | None = None,
        level_1: Tiers | None = None,
        *,
        has_beginning: bool = False,
        overtaken: Overtaken | None = None,
    ) -> None:
        """`level_1`: of tiers without stores of their own, which only listens, and was filled before."""
        if group is None and stores:
            self._forgetful.add(name)
        reader = self._log.source(group, [Topic(self._model, table) for table in dims], newest=not stores)
        if older_group is not None:
            with contextlib.suppress(StoreError):  # the log is away, or a server of before is in that group
                reader.poll(0, 0.0)  # so that a log in Redis keeps for `group` what it kept for that one
                self._log.forget_group(older_group)
        options = ingestion_options(self._source)
        if not stores:  # who listens hears what all servers of a Redis write together, each at that rate
            options = replace(options, max_rows_per_s=None)
        self._ingestions[name] = UpdateIngestion(
            reader,
            stores,
            self._model,
            dims,
            options,
            listener=listener,
            written=None if level_1 is None or level_1.written is None else level_1.written.committed,
            if_unknown=None if level_1 is None else level_1.refresh.ask,
            quarantine=quarantine,
            since_s=self._since_s,
            has_beginning=has_beginning,
            catches_up=name in self._forgetful,
            overtaken=overtaken,
        )

    def _follow(self, tiers: Tiers, store: EmbeddingStore, quarantine: Path | None) -> None:
        """Help to bring Redis up to date, in the group of the rows there, now and when they come to be others."""
        lookup, rows_in_redis = tiers.lookup, tiers.rows_in_redis
        assert rows_in_redis is not None
        over_level_3 = lookup.persistent is not None
        # Of an older version, whose servers had one for each content, however many Redis there were.
        older = shared_group(self._source, tiers.content, None) if over_level_3 else None

        level_3 = self._ingestions["tiers"] if over_level_3 else None
        topics = [Topic(self._model, table) for table in lookup.dims]
        self._levels = levels = LevelsWatch(tiers, self._log, topics, lambda: self._group_in_redis(tiers), level_3)
        followed: str | None = None
        has_followed = False

        def overtaken(table: str, keys: KeyArray) -> None:
            if isinstance(rows_in_redis, RedisGenerations):
                rows_in_redis.doubt()
            else:
                lookup.overtaken(table, keys)

        def stop() -> None:
            nonlocal followed
            if followed is not None:
                self._ingestions.pop("volatile_db").close()
                with contextlib.suppress(StoreError):  # while others are in it: the last one does it
                    self._log.forget_group(followed)
                followed = None

        def leave() -> None:
            with self._changing:
                if not self._closed:
                    stop()

        def follow() -> None:
            nonlocal followed, has_followed
            with self._changing:
                group = self._group_in_redis(tiers)
                if self._closed or group in (None, followed):
                    return
                stop()
                if has_followed:
                    levels.other_group()
                    tiers.refresh.ask()  # level 1 may have rows that had gone back before that was noticed
                stores = {"volatile_db": store}
                self._begin(
                    "volatile_db", group, lookup.dims, stores, quarantine, lookup.outdated, older,
                    has_beginning=over_level_3, overtaken=overtaken,
                )  # fmt: skip
                followed, has_followed = group, True

        if isinstance(rows_in_redis, RedisGenerations):
            rows_in_redis.leaving = leave
        rows_in_redis.changed = follow
        follow()

    def _group_in_redis(self, tiers: Tiers) -> str | None:
        """The group of those who put updates into Redis; None while the name of the rows there is not known."""
        assert tiers.rows_in_redis is not None
        name = tiers.rows_in_redis.current
        return None if name is None else shared_group(self._source, tiers.content, name)

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
        """By where they go: `tiers`, `volatile_db`, `resident`."""
        return {name: ingestion.statistics() for name, ingestion in self._all().items()}

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that is in the log now is applied; False if that takes longer."""
        give_up_s = time.monotonic() + timeout_s
        return all(each.drain(max(give_up_s - time.monotonic(), 0.0)) for each in self._all().values())

    def close(self) -> None:
        """Finish the batches that are being applied, leave the groups. Closing twice is harmless."""
        with self._changing:
            self._closed = True
        with contextlib.ExitStack() as closing:  # the last one first; one that fails does not keep the others open
            closing.callback(self._log.close)
            for ingestion in reversed(self._ingestions.values()):
                closing.callback(ingestion.close)
            if self._levels is not None:
                closing.callback(self._levels.close)

    def _all(self) -> dict[str, UpdateIngestion]:
        """As they are now. Without `_changing`, which is held while threads end: statistics are asked for on the event
        loop, and a copy is one step.
        """
        return dict(self._ingestions)


def _groups_of_this_node(group: str, model: str, place: Path) -> tuple[str, str]:
    """A group that this node alone is in, the same one after a restart, and the one that older versions had it in.

    It goes by host, directory and name of level 3: containers may have the first two from one image, a copy the last.
    How far it is in the log the store says, whatever the group (`UpdateIngestion`).
    """

    def named(where: str) -> str:
        digest = hashlib.blake2b(f"{socket.gethostname()}:{where}".encode(), digest_size=6)
        return group_name(group, model, digest.hexdigest())

    return named(f"{place.resolve()}:{update_member(place)}"), named(str(place))


def group_of_store(source: UpdateConfig, model: str, place: Path) -> str | None:
    """The group in which the level 3 in `place`, of that model, has taken updates here; None where it has not."""
    if source.type is UpdateType.NULL or not has_update_member(place):
        return None
    return _groups_of_this_node(source.group, model, place)[0]


def remove_store(model: str, place: Path, source: UpdateConfig) -> None:
    """Remove the store of `model` in `place`, and have the log of `source` forget the group that it took updates in:
    one in Redis would keep all messages for it.

    Raises `StoreError`, having removed nothing, as `rocksdb.directory.remove` does. That the log could not be
    reached, or that the group has a member, is only told.
    """
    group = group_of_store(source, model, place)
    remove(place)
    if group is None:
        return
    try:
        forget_group(source, group)
    except (StoreError, ValueError) as fault:
        log.warning(
            "the update log keeps messages for group %s, whose store was removed, until `hebe update forget`: %s",
            group, fault,
        )  # fmt: skip
