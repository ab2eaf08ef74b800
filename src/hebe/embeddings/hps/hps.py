"""Rows by key, for callers in this process: what HugeCTR's `HPS` is, over our tiers.

    with hebe.HPS("ps.json") as hps:                          # or our own TOML (`hebe model import-hps`)
        rows = hps.lookup(keys, "wdl", "table1")              # NumPy in, NumPy out; torch in, torch out

Keys are any int64 and may repeat; those that no tier has get their table's default vector.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import math
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.embeddings.forked import OpeningProcess
from hebe.embeddings.hps.config import read_hps_config
from hebe.embeddings.hps.tables import find_tables, version_of
from hebe.embeddings.memory.model_rows import ModelRows
from hebe.embeddings.memory.table_memory import Progress
from hebe.embeddings.online_updates import OnlineUpdates
from hebe.embeddings.store import KeyArray, RowArray
from hebe.embeddings.tiers.batch_lookup import RowState, StateArray
from hebe.embeddings.tiers.tiers import Tiers, TiersState
from hebe.kernels.lookup import deduplicate
from hebe.kernels.lookup.deduplicate import Deduplicator, KeyPlan, KeyTable
from hebe.spec import EmbeddingTableSpec

log = logging.getLogger("hebe.hps")

_HOST_DEVICES = {1: "CPU", 3: "CUDA host", 11: "ROCm host", 13: "CUDA managed"}
"""DLPack's numbers of devices whose memory this process can read."""
_ONE_COLUMN = KeyPlan([KeyTable([(0, 1)], 1)])


class HPS:
    """The tables of all models of a configuration, read through the tiers that it describes.

    `config`: a `ps.json` of HugeCTR's HPS, a TOML file of ours, or a `HierarchyConfig`; what of a `ps.json` cannot be
    honoured is logged. Stores are loaded from the sparse files where they have no rows of these yet, which may take
    long; `progress(bytes done, bytes in all)` is called while files are checked and then loaded.

    Online updates are followed if configured. `rows_as_of`: when training read out the rows of the sparse files, of all
    models or by model (local time, unless it has a zone): updates that were sent before are in them and passed over.
    None, or of a model that is not named: all that the log holds are applied. `verify`: read every row that persistent
    stores have already, and refuse one in which a row is damaged; `progress` counts rows meanwhile.

    Any number of threads may look up at once. A process forked from this one cannot use it: calls raise
    `UsedAfterFork`, and `close` does nothing. Pickling it keeps the configuration, from which it is opened again.
    Raises `ConfigError`, `StoreError`, and ValueError and TypeError for `rows_as_of`; nothing stays open then.
    """

    def __init__(
        self,
        config: str | os.PathLike[str] | HierarchyConfig,
        *,
        rows_as_of: datetime | Mapping[str, datetime] | None = None,
        progress: Progress | None = None,
        verify: bool = False,
    ) -> None:
        self._process = OpeningProcess(self)
        if not isinstance(config, HierarchyConfig):
            config = Path(config).absolute()
        hierarchy = config if isinstance(config, HierarchyConfig) else read_config(config)
        self._opened_from = config, rows_as_of
        for said in hierarchy.models_beside(hierarchy.tables):
            log.warning("%s", said)
        since_s = _since_s(rows_as_of, hierarchy)
        self._models: dict[str, _Model] = {}
        self._scratch = threading.local()
        with contextlib.ExitStack() as opened:
            for name in hierarchy.tables:
                self._models[name] = model = _Model(name, hierarchy, since_s.get(name), progress, verify=verify)
                opened.callback(model.close)
            deduplicate.warm_up()
            self._close = weakref.finalize(self, _close_unless_forked, self._process, opened.pop_all())

    @property
    def models(self) -> tuple[str, ...]:
        """The models that there are."""
        return tuple(self._models)

    def tables(self, model: str) -> tuple[EmbeddingTableSpec, ...]:
        """The tables of `model` in the order of their indices. Raises KeyError for a model that there is not."""
        return self._model(model).specs

    def table(self, model: str, table: str | int) -> EmbeddingTableSpec:
        """A table by name or index. Raises KeyError."""
        return self._model(model).table(table)

    @property
    def closed(self) -> bool:
        """Whether `close` has been called, or another process has opened it."""
        return not (self._close.alive and self._process.is_this)

    def lookup(
        self,
        keys: Any,
        model: str,
        table: str | int,
        device_id: int = 0,  # noqa: ARG002
        *,
        out: Any = None,
        states: StateArray | None = None,
        timeout_s: float = math.inf,
        wait: bool = False,
    ) -> Any:
        """The rows of `keys`, whole numbers of any shape: float32 `[*keys.shape, dim]`, of the kind that `keys` are.

        Kinds are NumPy arrays (and lists), and whatever has `__dlpack__` and lies in this machine's memory, as torch
        tensors do; it is read in place. `table` is a name or HPS' index; `device_id`, HPS' too, makes no difference.
        `out` is filled and returned if given. `states`, uint8 of `keys`' shape, is filled with a `RowState` for each.
        Slower tiers are asked for at most about `timeout_s`, and waited for whatever the hit rate if told to `wait`.

        Raises KeyError for a model or table that there is not, TypeError and ValueError for wrong arguments,
        `StoreError` when level 1 fails or after `close`.
        """
        _check_seconds("timeout_s", timeout_s)
        owner = self._model(model)
        spec = owner.table(table)
        wanted = _keys(keys)
        shape = (*wanted.shape, spec.dim)
        if out is None:
            rows = np.empty(shape, np.float32)
            answer: Any = rows if isinstance(keys, np.ndarray) else _like(keys, rows)
        else:
            rows, answer = _checked_out(_host_array(out, "out"), shape), out
        if states is not None and (states.dtype != np.uint8 or states.shape != wanted.shape):
            raise ValueError(f"states are {states.dtype} {list(states.shape)}: must be uint8 {list(wanted.shape)}")
        told = self._fill(owner, spec, wanted, rows.reshape(-1, spec.dim), timeout_s, wait)
        if states is not None:
            states[...] = RowState.FOUND if told is None else told.reshape(states.shape)
        return answer

    def lookup_fromdlpack(self, keys: Any, vectors: Any, model: str, table: str | int, device_id: int = 0) -> None:
        """Fill `vectors` with the rows of `keys`: DLPack capsules as `torch.utils.dlpack.to_dlpack` makes them, or
        whatever has `__dlpack__`. `vectors` float32, at least as large as the rows. Raises as `lookup`.
        """
        spec = self._model(model).table(table)
        wanted = _host_array(_Capsule.of(keys), "keys")
        target = _host_array(_Capsule.of(vectors), "vectors")
        if target.dtype != np.float32 or not target.flags.c_contiguous or target.size < wanted.size * spec.dim:
            raise ValueError(
                f"vectors are {target.dtype} {list(target.shape)}: must be float32, C-contiguous, and hold "
                f"{wanted.size} rows of {spec.dim}"
            )
        # NumPy has what comes in a capsule of the first DLPack for read-only, whether it is or not.
        numbers = wanted.size * spec.dim
        rows = np.ctypeslib.as_array((ctypes.c_float * numbers).from_address(target.ctypes.data))
        self.lookup(wanted, model, table, device_id, out=rows.reshape(*wanted.shape, spec.dim))

    def prefetch(self, keys: Any, model: str, table: str | int) -> bool:
        """Bring the rows of `keys` into level 1 in the background; False if there was too much to do already."""
        owner = self._model(model)
        wanted = _int64(_keys(keys)).reshape(-1)
        return owner.tiers.lookup.prefetch(owner.table(table).name, wanted)

    def refresh(self, model: str) -> None:
        """Bring level 1 of `model` up to date with the lower tiers, now, and let it grow with these (`CacheGrowth`)."""
        tiers = self._model(model).tiers
        tiers.growth.look()
        tiers.refresh.refresh()

    def state(self, model: str) -> TiersState:
        """How the tiers of `model` are, and what lookups came to: found, defaulted, stale, unknown keys."""
        return self._model(model).tiers.state

    def drain_updates(self, timeout_s: float) -> bool:
        """Wait until all online updates that are in the log now are applied; False if that takes longer."""
        self._process.check("this HPS")
        return all(model.updates.drain(timeout_s) for model in self._models.values() if model.updates is not None)

    def close(self) -> None:
        """Give memory, files and connections back. Call it when no lookup runs any more; closing twice is harmless."""
        self._close()

    def __reduce__(self) -> tuple[Any, ...]:
        config, rows_as_of = self._opened_from
        return functools.partial(HPS, rows_as_of=rows_as_of), (config,)

    def __enter__(self) -> HPS:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _model(self, name: str) -> _Model:
        self._process.check("this HPS")
        if not isinstance(name, str):
            raise TypeError(f"model is {name!r}: must be a name")
        if name not in self._models:
            raise KeyError(f"there is no model {name}; there are {', '.join(self._models) or 'none'}")
        return self._models[name]

    def _fill(
        self,
        owner: _Model,
        spec: EmbeddingTableSpec,
        keys: npt.NDArray[Any],
        rows: RowArray,
        timeout_s: float,
        wait: bool,
    ) -> StateArray | None:
        """The rows of keys that may repeat, and the state of each; None if all were found."""
        if not keys.size:
            return None
        scratch: _Scratch | None = getattr(self._scratch, "own", None)
        if scratch is None:
            scratch = self._scratch.own = _Scratch()
        distinct, places = scratch.deduplicate(_int64(keys))
        lookup = owner.tiers.lookup
        if places is None:
            return lookup.look_up(spec.name, distinct, rows, timeout_s, wait=wait)
        found = scratch.rows(distinct.size, spec.dim)
        states = lookup.look_up(spec.name, distinct, found, timeout_s, wait=wait)
        np.take(found, places, axis=0, out=rows, mode="clip")  # no other mode writes straight into `out`
        return None if states is None else states[places]


def read_config(path: Path) -> HierarchyConfig:
    """A configuration with tables: HPS' JSON or our TOML, by the file's ending. Raises `ConfigError`.

    What of HPS' cannot be honoured is logged.
    """
    if path.suffix.lower() != ".json":
        return HierarchyConfig.from_toml(path)
    read = read_hps_config(path)
    for decision in read.not_honoured:
        log.warning("%s: %s %s: not honoured: %s", path, decision.place, decision.parameter, decision.note)
    return read.hierarchy


def _since_s(rows_as_of: datetime | Mapping[str, datetime] | None, config: HierarchyConfig) -> dict[str, float]:
    """From when on updates are applied, by model, Unix seconds. Raises ValueError for a model that there is not."""
    if rows_as_of is None:
        return {}
    of_models = rows_as_of if isinstance(rows_as_of, Mapping) else dict.fromkeys(config.tables, rows_as_of)
    for name, told in of_models.items():
        if name not in config.tables:
            raise ValueError(f"rows_as_of is given of model {name}; there are {', '.join(config.tables) or 'none'}")
        if not isinstance(told, datetime):
            raise TypeError(f"rows_as_of is {told!r}: must be a datetime, or one by model")
    return {name: told.timestamp() for name, told in of_models.items()}


def _close_unless_forked(process: OpeningProcess, opened: contextlib.ExitStack) -> None:
    """Close what `process` opened, there alone."""
    if process.is_this:
        opened.close()


class _Model:
    """One model's tables, open."""

    def __init__(
        self, name: str, config: HierarchyConfig, since_s: float | None, progress: Progress | None, *, verify: bool
    ) -> None:
        self.name = name
        config.check_tables(name, [table.name for table in config.tables[name]])
        found = find_tables(config, name)
        if found.duplicates:
            log.warning("model %s: %d repeated keys: the last row counts", name, found.duplicates)
        self.specs = found.specs
        identity = found.identity(progress)
        self._by_name = {spec.name: spec for spec in self.specs}
        rows = ModelRows(name, version_of(identity), found.specs, found.sources, identity, since_s)
        self.tiers = Tiers.open(rows, config, found.persistent_dir, progress, verify=verify)
        self.updates: OnlineUpdates | None = None
        try:
            self.tiers.start()
            self.updates = OnlineUpdates.open(name, None, self.tiers, config, found.persistent_dir, since_s)
            if self.updates is not None:
                self.updates.catch_up()
        except BaseException:
            if self.updates is not None:
                self.updates.close()
            self.tiers.close()
            raise

    def table(self, table: str | int) -> EmbeddingTableSpec:
        """By name, or by HPS' index. Raises KeyError, and TypeError for what is neither."""
        if isinstance(table, str):
            if table in self._by_name:
                return self._by_name[table]
        elif isinstance(table, bool | np.bool_) or not isinstance(table, int | np.integer):
            raise TypeError(f"table is {table!r}: must be a name or an index")
        elif 0 <= table < len(self.specs):
            return self.specs[table]
        raise KeyError(f"model {self.name} has no table {table}; it has {', '.join(self._by_name)}")

    def close(self) -> None:
        if self.updates is not None:
            self.updates.close()
        self.tiers.close()


class _Scratch:
    """What one thread needs to look up keys that may repeat; its buffers grow to the largest lookup seen."""

    def __init__(self) -> None:
        self._deduplicator = Deduplicator()
        self._rows: RowArray = np.empty(0, np.float32)

    def deduplicate(self, keys: KeyArray) -> tuple[KeyArray, npt.NDArray[np.int64] | None]:
        """Distinct keys, and the place among them of each of `keys`; None if they are all distinct and in order."""
        names = np.array(keys).reshape(-1, 1)
        distinct = self._deduplicator.run(names, _ONE_COLUMN).keys
        lone = names == -1  # a key like others here; the deduplicator leaves it out
        if lone.any():
            distinct = np.append(distinct, np.int64(-1))
        if distinct.size == keys.size and not lone[:-1].any():
            return distinct, None
        return distinct, np.where(lone, distinct.size - 1, -2 - names).reshape(-1)

    def rows(self, count: int, dim: int) -> RowArray:
        """Room for so many rows, `[count, dim]`; what was there is overwritten."""
        if count * dim > self._rows.size:
            self._rows = np.empty(max(count * dim, 2 * self._rows.size), np.float32)
        return self._rows[: count * dim].reshape(count, dim)


class _Capsule:
    """A DLPack capsule as an object that hands it over, once, as `np.from_dlpack` wants it."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    @classmethod
    def of(cls, given: Any) -> Any:
        """A capsule wrapped, all else as it is."""
        return cls(given) if type(given).__name__ == "PyCapsule" else given

    def __dlpack__(self, **_: object) -> object:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # NumPy looks into the capsule, and refuses what is elsewhere


def _check_seconds(name: str, seconds: float) -> None:
    if isinstance(seconds, bool | np.bool_) or not isinstance(seconds, int | float | np.integer | np.floating):
        raise TypeError(f"{name} is {seconds!r}: must be a number of seconds")
    if not seconds >= 0:  # nor is nan
        raise ValueError(f"{name} is {seconds}: must be at least 0")


def _keys(given: Any) -> npt.NDArray[Any]:
    """`given` as an array of whole numbers. Raises TypeError if that cannot be, ValueError for numbers that no int64
    holds.
    """
    keys = _host_array(given, "keys")
    if not keys.size and isinstance(given, list | tuple):
        keys = keys.astype(np.int64)  # an empty list has no numbers that could say what they are
    if keys.dtype.kind not in "iu":
        if isinstance(given, int | list | tuple):
            _check_range(np.array(given, object).reshape(-1).tolist())
        raise TypeError(f"keys are {keys.dtype}: must be whole numbers")
    return keys


def _check_range(keys: list[Any]) -> None:
    """Raises ValueError if these are whole numbers, of which NumPy makes no array: not all of them are of 64 bits."""
    if all(isinstance(key, int | np.integer) and not isinstance(key, bool) for key in keys):
        wide = next((key for key in keys if not -(1 << 63) <= key < 1 << 63), None)
        if wide is None:
            return
        raise ValueError(f"keys have {wide} among them: each must fit into int64")


def _host_array(given: Any, what: str) -> npt.NDArray[Any]:
    """`given` as a NumPy array, without a copy if it has `__dlpack__`. Raises TypeError if that cannot be."""
    if isinstance(given, np.ndarray):
        return given
    if not hasattr(given, "__dlpack__"):
        return np.asarray(given)
    device = int(given.__dlpack_device__()[0])
    if device not in _HOST_DEVICES:
        raise TypeError(f"{what} are on DLPack device {device}: must be in this machine's memory (keys.cpu())")
    try:
        return np.from_dlpack(given)
    except (BufferError, RuntimeError, TypeError, ValueError) as fault:
        raise TypeError(f"{what} cannot be read by way of DLPack: {fault}") from None


def _like(keys: Any, rows: RowArray) -> Any:
    """`rows` as the kind of array that `keys` are, sharing memory; NumPy's for lists and unknown kinds."""
    maker: Callable[[Any], Any] | None = None
    if hasattr(keys, "__dlpack__"):
        if hasattr(keys, "__array_namespace__"):
            maker = getattr(keys.__array_namespace__(), "from_dlpack", None)
        else:
            library: Any = sys.modules.get(type(keys).__module__.partition(".")[0])
            maker = getattr(library, "from_dlpack", None)
    return rows if maker is None else maker(rows)


def _int64(keys: npt.NDArray[Any]) -> KeyArray:
    """Keys of any whole type; unsigned ones of 64 bits, which HPS' Python takes, keep their bits."""
    return keys.view(np.int64) if keys.dtype == np.uint64 else keys.astype(np.int64, copy=False)


def _checked_out(out: npt.NDArray[Any], shape: tuple[int, ...]) -> RowArray:
    if out.dtype != np.float32 or out.shape != shape or not out.flags.c_contiguous or not out.flags.writeable:
        raise ValueError(
            f"out is {out.dtype} {list(out.shape)}: must be float32 {list(shape)}, C-contiguous and writeable"
        )
    return out
