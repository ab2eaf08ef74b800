"""A model in memory, ready to run: tables behind their hierarchy, the DenseNet prepared, executors on demand."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.embeddings.forked import OpeningProcess
from hebe.embeddings.hierarchy import EmbeddingHierarchy
from hebe.embeddings.memory.table_memory import RowFormat
from hebe.embeddings.online_updates import OnlineUpdates
from hebe.embeddings.rocksdb.directory import remove
from hebe.embeddings.store import StoreError
from hebe.embeddings.tiers.refresh import RefreshReport
from hebe.embeddings.tiers.tiers import TiersState
from hebe.embeddings.updates.ingestion.statistics import IngestionStatistics
from hebe.machine.gpu import is_gpu
from hebe.models.repository.memory_estimate import estimate_memory
from hebe.models.repository.repository import (
    VERSION_PATTERN,
    ModelRepository,
    RepositoryError,
    StoredModel,
    no_version_words,
)
from hebe.models.scripted_net import DenseFunction, ServedNet
from hebe.query import (
    Batch,
    FeatureKeys,
    FloatArray,
    JaggedKeys,
    KeyArray,
    Query,
    SubQuery,
    bring_into_range,
    key_limit,
    unlike_behaviours,
)
from hebe.runtime.executors.batch_outcome import BatchOutcome, Measured
from hebe.runtime.executors.dense_graph import GraphMode, prepare
from hebe.runtime.executors.executor import ModelExecutor
from hebe.runtime.executors.gil_free_executor import UnlockedExecutor
from hebe.runtime.executors.hot_sparse_net import HotSparseNet
from hebe.runtime.executors.pipeline import Pipeline
from hebe.spec import FeatureSpec, OutOfRange

_KEPT_ITEMS = 8192
"""Executors for more items are not kept: their buffers are large, and such queries rare."""

_PREFETCHED_KEYS = 4096
"""In one piece of work, so that what waits, and the rows that one piece fetches, stay small."""

_FROM_LEVEL_1 = 0.95
"""Share of the keys of a random query, of tables that are read through tiers, whose rows level 1 holds."""

_LONG_S = 0.0025

LoadProgress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all), first of verifying where that is asked for, then of loading."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model is brought into memory.

    `graph`: how the DenseNet runs. `table_memory_bytes`: most memory for embedding rows; what is beyond it is
    served from a persistent store under `persistent_dir`. None: all rows in memory. `hierarchy` describes the tiers
    that tables are read through, if any, and where online updates come from. `verify`: read every byte of the stored
    model and of its persistent store first, and refuse one whose checksums differ. `row_format`: how rows of resident
    tables are stored. `check_rows`: refuse tables whose rows, as they are copied into memory or a store, have another
    checksum than when they were written.
    """

    graph: GraphMode = GraphMode.SCRIPTED
    table_memory_bytes: int | None = None
    persistent_dir: Path | None = None
    verify: bool = False
    row_format: RowFormat = RowFormat.FP32
    hierarchy: HierarchyConfig | None = None
    check_rows: bool = True

    def words(self) -> str:
        """One line of all that may matter for how fast the model is; where files lie does not."""
        words = f"{self.graph}, rows {self.row_format}"
        if self.table_memory_bytes is not None:
            words += f", {self.table_memory_bytes} bytes of tables in memory"
        if self.hierarchy is not None:
            tiers = replace(self.hierarchy, volatile_db=replace(self.hierarchy.volatile_db, password=""))
            words += f", tiers {hashlib.sha256(repr(tiers).encode()).hexdigest()[:12]}"
        return words

    def store_directory(self, name: str, version: int) -> Path | None:
        """Where the persistent store of a version lies, None where there is none."""
        place = self.persistent_dir
        if place is None and self.hierarchy is not None and self.hierarchy.persistent_db.path:
            place = Path(self.hierarchy.persistent_db.path)
        return None if place is None else place / name / str(version)


def stored_versions(directory: str | os.PathLike[str]) -> dict[str, tuple[int, ...]]:
    """Models of a repository with their versions, oldest first; none where a model's directory cannot be listed, of
    which loading says why. Raises `RepositoryError`.
    """
    repository = ModelRepository(directory)
    versions: dict[str, tuple[int, ...]] = {}
    for name in repository.names():
        versions[name] = ()
        with contextlib.suppress(RepositoryError):
            versions[name] = repository.versions(name)
    return versions


def incomplete_versions(directory: str | os.PathLike[str], name: str | None = None) -> list[str]:
    """What to say of the directories of a model, or of all models, that look like versions and are none.

    Raises `RepositoryError`.
    """
    return [no_version_words(path) for path in ModelRepository(directory).incomplete(name)]


def repository_above(directory: str | os.PathLike[str]) -> Path | None:
    """Where `directory` is a model, or a version of one: the repository that it lies in."""
    return ModelRepository(directory).repository_above()


def stored_identity(directory: str | os.PathLike[str], name: str, version: int) -> str:
    """`LoadedModel.identity` of a version as it is stored now. Raises `RepositoryError` if there is none."""
    return ModelRepository(directory).open(name, version).identity


def remove_old_stores(
    directory: str | os.PathLike[str], name: str, version: int, options: LoadOptions
) -> dict[Path, str]:
    """Remove the persistent stores of those versions of model `name` below `version` that the repository at `directory`
    has no more, and have the update log keep nothing for them.

    Returns their paths, each with the reason why it was kept, empty where it is gone: one that is in use or holds
    anything but a store stays. Raises `RepositoryError`, OSError if a directory cannot be listed.
    """
    latest = options.store_directory(name, version)
    stored = ModelRepository(directory).versions(name)
    if latest is None or version not in stored or not latest.parent.is_dir():
        return {}
    outcomes: dict[Path, str] = {}
    for path in sorted(latest.parent.iterdir()):
        if VERSION_PATTERN.match(path.name) and int(path.name) < version and int(path.name) not in stored:
            try:
                remove(path)
                outcomes[path] = ""
            except StoreError as fault:
                outcomes[path] = str(fault)
    return outcomes


class LoadedModel:
    """One version of a model in memory. Made by `load`; `close` gives the memory back.

    `identity` tells it from others of the same number: it changes with the spec and with any stored file.

    A process forked from this one shares the memory of resident tables and may `predict` from it. Where tables are read
    through tiers, updates come or the DenseNet is compiled, calls raise `UsedAfterFork` there, and `close` does
    nothing.
    """

    def __init__(self, stored: StoredModel, hierarchy: EmbeddingHierarchy, dense: DenseFunction) -> None:
        self._process = OpeningProcess(self)
        self.spec = stored.spec
        self.version = stored.version
        self.identity = stored.identity
        self.hierarchy = hierarchy
        self.updates: OnlineUpdates | None = None
        self._stored, self._options, self._threads = stored, LoadOptions(), 1
        self._open_updates: Callable[[], OnlineUpdates | None] | None = None
        self._dense: DenseFunction | None = dense
        self._dense_on: dict[torch.device, DenseFunction] = {}
        self._moving = threading.Lock()
        self._idle: list[ModelExecutor] = []

    def plain_dense_net(self) -> torch.nn.Module:
        """The DenseNet as it is stored, neither scripted nor compiled. Raises as `StoredModel.dense_net`."""
        return self._stored.dense_net()

    @classmethod
    def load(
        cls,
        directory: str | os.PathLike[str],
        name: str,
        version: int | None = None,
        options: LoadOptions | None = None,
        threads: int = 1,
        progress: LoadProgress | None = None,
        *,
        start: bool = True,
    ) -> LoadedModel:
        """Load a model from the repository at `directory`: the given version, or the newest, for so many threads.

        What works beside queries is started, unless that is left to `start`.
        Raises `RepositoryError` if the repository has no such model or its files are damaged (of tables, what is copied
        unless `LoadOptions.check_rows` is off), `StoreError` if the tables do not fit or the persistent store cannot be
        used.
        """
        options = options or LoadOptions()
        _limit_torch_in_children()
        stored = ModelRepository(directory).open(name, version)
        if options.verify:
            stored.verify(progress)
        spec = stored.spec
        dense = prepare(stored.dense_net(), spec, options.graph, compile_threads=threads)
        rows_of = stored.checked_rows if options.check_rows else stored.table
        hierarchy = EmbeddingHierarchy.open(
            spec,
            {table.name: rows_of(table.name) for table in spec.tables},
            table_memory_bytes=options.table_memory_bytes,
            row_format=options.row_format,
            config=options.hierarchy,
            version=stored.version,
            persistent_dir=options.store_directory(name, stored.version),
            identity=stored.tables_identity,
            progress=progress,
            verify=options.verify,
            rows_as_of_s=stored.rows_as_of_s,
        )
        model = cls(stored, hierarchy, dense)
        model._options, model._threads = options, threads
        model._open_updates = lambda: _open_updates(stored, hierarchy, options)
        try:
            hierarchy.warm_up()
            if start:
                model.start()
        except BaseException:
            model.close()
            raise
        return model

    def start(self, go_on: Callable[[], None] = lambda: None) -> None:
        """Begin to refresh and to apply online updates, where these are configured, and wait until resident tables have
        what updates there are. `go_on` is called every second or so meanwhile, and raises to end it.

        Threads take priority and cores from the one that calls. Raises `StoreError`, ValueError.
        """
        if self.hierarchy.tiers is not None:
            self.hierarchy.tiers.start()
        if self._open_updates is not None:
            opening, self._open_updates = self._open_updates, None
            self.updates = opening()
            if self.updates is not None:
                self.updates.catch_up(go_on=go_on)

    def serving_bytes(self, workers: int, batch_size: int, threads: int) -> int:
        """What the model takes of a server's memory, served by so many workers with so many threads each, in batches of
        `batch_size` items: as `estimate_memory` of the way in which it is loaded.

        Raises `RepositoryError` if it is not stored any more.
        """
        options = self._options
        return estimate_memory(
            self.spec, self._stored.dense_net(), workers, batch_size, options.table_memory_bytes, threads,
            options.row_format, options.hierarchy,
        ).model_bytes  # fmt: skip

    @property
    def can_answer(self) -> bool:
        """Whether rows that level 1 lacks can be had from anywhere."""
        return self.hierarchy.tiers is None or self.hierarchy.tiers.can_answer

    def check_level_3(self) -> None:
        """Raises `StoreError` if rows of level 3 could not be read by anything so far, as they are damaged: a model is
        not to be served then, though most queries would do without them.
        """
        tiers = self.hierarchy.tiers
        if tiers is not None and tiers.lookup.persistent is not None:
            level_3 = tiers.lookup.persistent.state
            if level_3.damage is not None:
                raise StoreError(f"{level_3.name} has rows that cannot be read: {level_3.damage}")

    @property
    def tiers_state(self) -> TiersState | None:
        """How the tiers are, None where all tables are resident."""
        self._check_fork()
        return None if self.hierarchy.tiers is None else self.hierarchy.tiers.state

    @property
    def update_statistics(self) -> dict[str, IngestionStatistics]:
        """What has become of online updates, by where they go; empty where none come."""
        return {} if self.updates is None else self.updates.statistics()

    def prefetch(self, keys: Mapping[str, KeyArray]) -> bool:
        """Bring rows into level 1 in the background, `keys` int64 by table; False if there is too much to do, and some
        of them, or all, were left out. Resident tables, and others that are not read through tiers, need none of it.
        """
        self._check_fork()
        tiers = self.hierarchy.tiers
        if tiers is None:
            return True
        return all(
            tiers.lookup.prefetch(table, distinct[first : first + _PREFETCHED_KEYS])
            for table, own in keys.items()
            if table in tiers.lookup.dims
            for distinct in (np.unique(own),)
            for first in range(0, len(distinct), _PREFETCHED_KEYS)
        )

    def refresh(self) -> RefreshReport | None:
        """Bring level 1 up to date with the lower tiers, let it grow with these (`CacheGrowth`), and return what the
        refresh came to; None where there is no level 1.

        Raises `StoreError` after `close`.
        """
        self._check_fork()
        tiers = self.hierarchy.tiers
        if tiers is None:
            return None
        tiers.growth.look()
        return tiers.refresh.refresh()

    def new_executor(
        self,
        max_items: int,
        hot: HotSparseNet | None = None,
        op_workers: int = 1,
        *,
        device: torch.device | None = None,
    ) -> ModelExecutor:
        """An executor with buffers for batches of up to `max_items`, for one thread and its further `op_workers`, whose
        DenseNet runs on the accelerator `device`, or on the host.

        Raises `StoreError` if closed.
        """
        dense = self._dense_function(device)
        return ModelExecutor(self.spec, self.hierarchy, dense, max_items, hot, op_workers, device=device)

    @property
    def runs_unlocked(self) -> bool:
        """Whether there is a `new_unlocked_executor`: all rows are resident."""
        return self.hierarchy.looks_up_alone and isinstance(self._dense_function(), ServedNet)

    def new_unlocked_executor(self, max_items: int, op_workers: int = 1) -> UnlockedExecutor:
        """An executor of batches of up to `max_items`, for one thread and its further `op_workers`, that needs no
        interpreter lock.

        Raises `StoreError` if closed, ValueError unless the model `runs_unlocked`.
        """
        dense = self._dense_function()
        if not isinstance(dense, ServedNet):
            raise ValueError(f"model {self.spec.name}: its DenseNet is not scripted")
        return UnlockedExecutor(self.spec, self.hierarchy, dense, max_items, op_workers)

    def new_pipeline(
        self,
        batch_size: int,
        dense_items: int,
        hot: HotSparseNet | None = None,
        op_workers: int = 1,
        *,
        device: torch.device | None = None,
    ) -> Pipeline:
        """What `Pipeline` makes of the model. Raises `StoreError` if closed."""
        dense = self._dense_function(device)
        return Pipeline(self.spec, self.hierarchy, dense, batch_size, dense_items, hot, op_workers, device=device)

    def _dense_function(self, device: torch.device | None = None) -> DenseFunction:
        """The DenseNet of the host, which is a second CPU device's as well, or one for all workers of a GPU."""
        self._check_fork()
        if (dense := self._dense) is None:
            raise StoreError(f"model {self.spec.name}: is closed")
        if device is None or not is_gpu(device):
            return dense
        with self._moving:
            if device not in self._dense_on:
                self._dense_on[device] = prepare(
                    self.plain_dense_net(), self.spec, self._options.graph, self._threads, device
                )
            return self._dense_on[device]

    def predict(self, features: Mapping[str, FeatureKeys | FloatArray], dense: FloatArray | None = None) -> FloatArray:
        """Scores float32 `[items, outputs]` of one query, on the calling thread.

        `features` gives keys by feature name, whole numbers `[items, lookups]` or `JaggedKeys`; `dense` numbers
        `[items, dense_dim]` where the model has one, which may stand among them, as it does in a request.
        Any number of threads may call it at once; each call has an executor to itself, which is kept for the next one.
        Raises ValueError naming a wrong input, `UsedAfterFork`, and `StoreError` once closed.
        """
        self._check_fork()
        query = self.query(features, dense)
        executor = self._take_executor(query.items)
        outcome = executor.run(Batch(0, (SubQuery(query, 0, query.items),), query.items))
        if executor.max_items <= _KEPT_ITEMS and self._dense is not None:
            self._idle.append(executor)
        return outcome.scores

    def _take_executor(self, items: int) -> ModelExecutor:
        """An executor for `items` that nobody uses: one that was kept, unless it is too small."""
        if items > _KEPT_ITEMS:
            return self.new_executor(items)
        with contextlib.suppress(IndexError):  # none is idle
            executor = self._idle.pop()
            if executor.max_items >= items:
                return executor
        return self.new_executor(1 << (items - 1).bit_length())

    def query(self, features: Mapping[str, FeatureKeys | FloatArray], dense: FloatArray | None = None) -> Query:
        """A checked query of these inputs, for callers in this process: keys int64, `dense` float32, whatever whole
        numbers and numbers are given.

        Raises ValueError naming a wrong input.
        """
        if dense is None and self.spec.dense_dim and "dense" in features:
            features = dict(features)
            dense = cast(FloatArray, features.pop("dense"))
        expected = {feature.name for feature in self.spec.features}
        for wrong, names in (("missing", expected - set(features)), ("unknown", set(features) - expected)):
            if names:
                raise ValueError(f"model {self.spec.name}: {wrong} feature(s): {', '.join(sorted(names))}")
        checked: dict[str, FeatureKeys] = {}
        items = -1
        for feature in self.spec.features:
            given = features[feature.name]
            if isinstance(given, JaggedKeys):
                jagged = _checked_jagged(feature, given)
                values, offsets, count = jagged.values, jagged.offsets, len(jagged.offsets) - 1
            else:
                values, offsets = _whole_numbers(f"feature {feature.name}: keys", given), None
                if values.ndim != 2 or values.shape[1] != feature.lookups:
                    raise ValueError(
                        f"feature {feature.name}: has shape {list(values.shape)}: must be [items, {feature.lookups}]"
                    )
                count = len(values)
            items = count if items < 0 else items
            if count != items:
                raise ValueError(f"feature {feature.name}: has {count} items where the others have {items}")
            rows = self.spec.table(feature.table).rows
            if feature.out_of_range is not OutOfRange.REFUSE:
                values = bring_into_range(values, rows, feature.out_of_range)
            limit = key_limit(rows, feature.out_of_range)
            if values.size and (values.min() < 0 or values.max() >= limit):
                raise ValueError(f"feature {feature.name}: keys must lie in [0, {limit})")
            checked[feature.name] = values if offsets is None else JaggedKeys(values, offsets)
        if items < 1:
            raise ValueError("a query needs at least one item")
        if unlike := unlike_behaviours(checked, self.spec.behaviours):
            raise ValueError(unlike)
        if not self.spec.dense_dim:
            if dense is not None and np.size(dense):
                raise ValueError(f"dense: model {self.spec.name} has no dense input")
            return Query(0, items, 0.0, features=checked)
        if dense is None:
            raise ValueError(f"dense: must be float32 [{items}, {self.spec.dense_dim}]: it is missing")
        return Query(0, items, 0.0, features=checked, dense=_checked_dense(dense, (items, self.spec.dense_dim)))

    def random_query(self, items: int, seed: int = 0) -> Query:
        """A query for warm-up and measurement, which is not `counted`.

        Its keys are uniform, but for most of those of tables that are read through tiers, which are of rows that level
        1 holds: it was filled with what is asked for, and of keys that it lacks a batch takes many times as long.
        """
        rng = np.random.default_rng(seed)
        features: dict[str, FeatureKeys] = {}
        for feature in self.spec.features:
            keys: KeyArray = rng.integers(0, self.spec.table(feature.table).rows, (items, feature.lookups))
            held = self._held_keys(feature.table, keys.size)
            if held.size:
                keys = np.where(rng.random(keys.shape) < _FROM_LEVEL_1, rng.choice(held, keys.shape), keys)
            features[feature.name] = keys
        dense = rng.random((items, self.spec.dense_dim), dtype=np.float32) if self.spec.dense_dim else None
        return Query(0, items, 0.0, features=features, dense=dense, counted=False)

    def _held_keys(self, table: str, most: int) -> KeyArray:
        """At most so many keys that level 1 holds of `table` and a query may have; none where that is resident."""
        tiers = self.hierarchy.tiers
        if tiers is None or table not in tiers.lookup.dims:
            return np.empty(0, np.int64)
        held = next(tiers.cache.dump_keys(table, most), np.empty(0, np.int64))
        return held[(held >= 0) & (held < self.spec.table(table).rows)]

    def warm_up(
        self, run: Callable[[Batch], BatchOutcome], batch_size: int, repeats: int = 3, *, resting: bool = False
    ) -> Measured:
        """Run batches of several sizes up to `batch_size`; returns (items, outcome) of the last run of each.

        Faults in code and pages, lets the scripted DenseNet specialise, and gives the first service times. `resting`:
        after each run the core is left to others for as long as that took, and after one of more than `_LONG_S` there
        is none of a larger size, for which they would have to wait: what it takes follows from the others, of which
        there are two, since of one item alone, and a stall at that, it would seem to be many times as much.
        Raises ValueError for scores that are not finite, and what `run` raises.
        """
        sizes = sorted({max(batch_size >> shift, 1) for shift in range(0, 12, 2)})
        measured = []
        for items in sizes:
            query = self.random_query(items, seed=items)
            batch = Batch(0, (SubQuery(query, 0, items),), items)
            for _ in range(repeats):
                outcome = run(batch)
                if resting:
                    time.sleep(outcome.service_s)
            if not np.isfinite(outcome.scores).all():
                raise ValueError(
                    f"model {self.spec.name}: warm-up query of {items} items has a score that is not finite"
                )
            measured.append((items, outcome))
            if resting and outcome.service_s > _LONG_S and len(measured) > 1:
                break
        return measured

    @property
    def _usable_after_fork(self) -> bool:
        """Whether a forked process lacks nothing that it takes: a compiled DenseNet has OpenMP's threads."""
        resident = self.hierarchy.tiers is None and self.updates is None
        return resident and self._options.graph is not GraphMode.COMPILED

    def _check_fork(self) -> None:
        """Raise `UsedAfterFork` in a forked process that cannot use the model."""
        if not (self._process.is_this or self._usable_after_fork):
            self._process.check(f"model {self.spec.name}")

    def close(self) -> None:
        """Give the tables' memory back and let go of the DenseNet. No executor may run any more."""
        if not (self._process.is_this or self._usable_after_fork):
            return
        with self._moving:
            self._dense = None
            self._dense_on.clear()
        self._idle.clear()
        with contextlib.closing(self.hierarchy):
            if self.updates is not None:
                self.updates.close()


@functools.cache
def _limit_torch_in_children() -> None:
    """Have torch use one thread in forked processes, as its DataLoader does: they have none of the threads of its
    OpenMP, for which the first parallel op would wait for ever.
    """
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def _open_updates(stored: StoredModel, hierarchy: EmbeddingHierarchy, options: LoadOptions) -> OnlineUpdates | None:
    if options.hierarchy is None:
        return None
    place = options.store_directory(stored.name, stored.version)
    memory, tiers = hierarchy.memory, hierarchy.tiers
    return OnlineUpdates.open(stored.name, memory, tiers, options.hierarchy, place, stored.rows_as_of_s)


def _whole_numbers(what: str, given: npt.ArrayLike) -> KeyArray:
    """`given` as int64, C-contiguous. Raises ValueError unless it has whole numbers, all of which fit."""
    try:
        array = np.asarray(given)
    except ValueError:
        raise ValueError(
            f"{what} are no array; where items have different numbers of keys, give hebe.JaggedKeys(values, offsets)"
        ) from None
    if not array.size and isinstance(given, list | tuple):
        array = array.astype(np.int64)  # an empty list has no numbers that could say what they are
    if array.dtype.kind not in "iu":
        raise ValueError(f"{what} are {array.dtype}: must be whole numbers that int64 holds")
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{what}: {array.max()} does not fit int64")
    return np.ascontiguousarray(array, dtype=np.int64)


def _checked_jagged(feature: FeatureSpec, given: JaggedKeys) -> JaggedKeys:
    """`given` as int64, with lengths that the feature takes. Raises ValueError."""
    name, most = feature.name, feature.lookups
    values = _whole_numbers(f"feature {name}: values", given.values)
    offsets = _whole_numbers(f"feature {name}: offsets", given.offsets)
    if values.ndim != 1 or offsets.ndim != 1 or not offsets.size:
        raise ValueError(
            f"feature {name}: values have shape {list(values.shape)}, offsets {list(offsets.shape)}: must be [keys] "
            "and [items + 1]"
        )
    if offsets[0] != 0 or offsets[-1] != len(values):
        raise ValueError(f"feature {name}: offsets must run from 0 to the {len(values)} values")
    lengths = np.diff(offsets)
    wrong = (lengths < 0) | (lengths > most)
    if wrong.any():
        item = int(np.argmax(wrong))
        raise ValueError(f"feature {name}: length {lengths[item]} of item {item}: lengths must lie in [0, {most}]")
    if feature.whole and lengths.size and lengths.min() < most:
        item = int(np.argmin(lengths))
        raise ValueError(
            f"feature {name}: length {lengths[item]} of item {item} is too short: the model takes the maximum over all "
            f"{most} keys of {name}, so give {most} for each item"
        )
    return JaggedKeys(values, offsets)


def _checked_dense(given: npt.ArrayLike, shape: tuple[int, int]) -> FloatArray:
    """Dense values as float32, C-contiguous. Raises ValueError for another shape, and for one that is not finite in
    float32."""
    try:
        with np.errstate(over="ignore"):
            dense = np.ascontiguousarray(given, dtype=np.float32)
    except (ValueError, TypeError, OverflowError) as fault:
        raise ValueError(f"dense: {fault}: must be float32 {list(shape)}") from None
    if np.shape(given) != shape:
        raise ValueError(f"dense: has shape {list(np.shape(given))}: must be float32 {list(shape)}")
    if not np.isfinite(dense).all():
        item, column = divmod(int(np.argmin(np.isfinite(dense))), shape[1])
        raise ValueError(
            f"dense: value {np.asarray(given)[item, column]} of item {item}, column {column}: every value must be "
            "finite in float32"
        )
    return dense
