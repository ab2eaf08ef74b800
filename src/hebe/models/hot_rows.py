"""Which rows of a model an accelerator should hold: Hot-SparseNet (Hercules IV.B, Figure 10a).

Rows of all tables are ranked together, by how often they are looked up for each byte that they take, and taken from
the top for as long as they fit. How often is known from a trace of keys, or expected of a load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from hebe.embeddings.memory.table_memory import RowFormat
from hebe.models.repository.stored_file import RepositoryError
from hebe.query import KeyArray, bring_into_range
from hebe.spec import ModelSpec

Frequencies = Mapping[str, npt.NDArray[np.float64]]
"""By table, how often each row is looked up, `[rows]`: counted or expected, on one scale for all tables."""

MOST_TRACE_BYTES = 16 << 30
"""Of a trace file; a table of it is in memory at a time."""


@dataclass(frozen=True, slots=True)
class HotRows:
    """`rows`: by table, keys of hot rows, int64, the most looked up first; tables without one are left out.

    `expected_coverage` is the share of all lookups that go to these rows by the frequencies that they were chosen by,
    `size_bytes` what they take.
    """

    rows: Mapping[str, KeyArray]
    expected_coverage: float
    size_bytes: int

    @property
    def count(self) -> int:
        """How many they are, over all tables."""
        return sum(len(own) for own in self.rows.values())


def choose_hot_rows(
    spec: ModelSpec, frequencies: Frequencies, capacity_bytes: int, row_format: RowFormat = RowFormat.FP32
) -> HotRows:
    """As many rows of `spec`'s tables, stored as `row_format` has them, as `capacity_bytes` hold: those that are looked
    up most a byte; of equals, those of the first table, then of the lowest key.

    Less than the widest row is left unused, unless all rows fit; those that are never looked up come last. Beside
    `frequencies` it needs a byte a row, and what it returns. Raises ValueError naming the table, for frequencies that
    are not `[rows]`, negative, not finite or all 0.
    """
    if capacity_bytes < 0:
        raise ValueError(f"a capacity of {capacity_bytes:,} bytes for hot rows: must be at least 0")
    unknown = set(frequencies) - {table.name for table in spec.tables}
    if unknown:
        raise ValueError(f"model {spec.name} has no table {', '.join(sorted(unknown))}, of which frequencies are given")
    ranked = {
        table.name: _Ranked(_checked(spec, table.name, frequencies), row_format.row_bytes(table.dim))
        for table in spec.tables
    }
    total = sum(float(own.frequencies.sum()) for own in ranked.values())
    if not total:
        raise ValueError(f"model {spec.name}: all frequencies are 0: nothing tells which rows are hot")
    fits, too_low = _threshold(tuple(ranked.values()), capacity_bytes)
    chosen = {name: own.above(fits) for name, own in ranked.items()}
    left_bytes = capacity_bytes - sum(len(chosen[name]) * own.row_bytes for name, own in ranked.items())
    if too_low < fits:
        for name, own in ranked.items():
            equals = np.flatnonzero(own.reach(too_low) & ~own.reach(fits))[: left_bytes // own.row_bytes]
            left_bytes -= len(equals) * own.row_bytes
            chosen[name] = np.concatenate([chosen[name], equals])
    covered = sum(float(own.frequencies[chosen[name]].sum()) for name, own in ranked.items())
    rows = {name: own for name, own in chosen.items() if own.size}
    return HotRows(
        rows, min(covered / total, 1.0), sum(len(own) * ranked[name].row_bytes for name, own in rows.items())
    )


@dataclass(frozen=True, slots=True)
class _Ranked:
    """The rows of a table by their worth: lookups a byte."""

    frequencies: npt.NDArray[np.float64]
    row_bytes: int

    def reach(self, worth: float) -> npt.NDArray[np.bool_]:
        """Which rows are worth as much."""
        return self.frequencies >= worth * self.row_bytes

    def above(self, worth: float) -> KeyArray:
        """Those rows, the most looked up first."""
        rows = np.flatnonzero(self.reach(worth))
        return rows[np.argsort(-self.frequencies[rows], kind="stable")]


def _threshold(tables: tuple[_Ranked, ...], capacity_bytes: int) -> tuple[float, float]:
    """The least worth from which on all rows fit, and the next lower number, from which on they do not; 0 and 0 where
    all fit.

    By bisection of the bits of a float64, which are in the order of the numbers: a dozen times faster than a sort of
    production tables' rows, and without its memory.
    """

    def used_bytes(worth: float) -> int:
        return sum(int(np.count_nonzero(own.reach(worth))) * own.row_bytes for own in tables)

    if used_bytes(0.0) <= capacity_bytes:
        return 0.0, 0.0
    # Not 0 where the worth of each row is too small for a float64.
    low, high = 0, _bits(2 * max(float(own.frequencies.max()) / own.row_bytes for own in tables)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if used_bytes(_number(middle)) <= capacity_bytes:
            high = middle
        else:
            low = middle
    return _number(high), _number(low)


def _bits(number: float) -> int:
    return int(np.float64(number).view(np.int64))


def _number(bits: int) -> float:
    return float(np.int64(bits).view(np.float64))


def _checked(spec: ModelSpec, name: str, frequencies: Frequencies) -> npt.NDArray[np.float64]:
    rows = spec.table(name).rows
    if name not in frequencies:
        raise ValueError(f"model {spec.name}: frequencies of table {name} are missing")
    own = np.asarray(frequencies[name], np.float64)
    if own.shape != (rows,):
        raise ValueError(
            f"frequencies of table {name} have shape {list(own.shape)}: must be [{rows}], one for each row"
        )
    if not np.isfinite(own).all() or own.min() < 0:
        raise ValueError(f"frequencies of table {name} must be finite numbers of at least 0")
    return own


def counted_frequencies(spec: ModelSpec, trace: Mapping[str, KeyArray]) -> dict[str, npt.NDArray[np.float64]]:
    """How often each row is looked up in `trace`: keys, int64 of any shape, by table, or by the feature that reads it,
    which brings them into range as it says. -1 is no key, except for a feature that brings it into range, as on the
    wire: of those, absent keys are left out.

    What the trace lacks is never looked up. Raises ValueError for other names, keys that are no row's, and a trace
    without any key.
    """
    counts = {table.name: np.zeros(table.rows) for table in spec.tables}
    for name, keys in trace.items():
        _count(spec, name, keys, counts)
    return _with_any(counts)


def read_key_trace(path: Path, spec: ModelSpec) -> dict[str, npt.NDArray[np.float64]]:
    """`counted_frequencies` of a trace in a file: safetensors, an int64 array of keys for each table or feature,
    with -1 for no key where that function says so.

    That is the form in which caches keep their keys as well. Raises `RepositoryError` naming file and array.
    """
    counts = {table.name: np.zeros(table.rows) for table in spec.tables}
    try:
        size_bytes = path.stat().st_size
        if size_bytes > MOST_TRACE_BYTES:
            raise RepositoryError(
                f"{path}: {size_bytes:,} bytes: a trace has at most {MOST_TRACE_BYTES:,}: give a part"
            )
        with safe_open(path, "np") as file:
            names = file.keys()
            for name in names:
                if (kind := file.get_slice(name).get_dtype()) != "I64":
                    raise RepositoryError(f"{path}: keys of {name} are {kind}: must be I64")
                _count(spec, name, file.get_tensor(name), counts)
        return _with_any(counts)
    except OSError as fault:
        raise RepositoryError(f"{path}: cannot be read: {fault.strerror or fault}") from None
    except (SafetensorError, ValueError) as fault:
        raise RepositoryError(f"{path}: is no key trace: {fault}") from None


def _count(spec: ModelSpec, name: str, keys: KeyArray, counts: dict[str, npt.NDArray[np.float64]]) -> None:
    """Add the keys of a table or feature to the counts of its table."""
    if keys.dtype != np.int64:
        raise ValueError(f"keys of {name} are {keys.dtype}: must be int64")
    table = name
    if name not in counts:
        feature = next((feature for feature in spec.features if feature.name == name), None)
        if feature is None:
            raise ValueError(f"model {spec.name} has no table or feature {name}; its tables: {', '.join(counts)}")
        table = feature.table
        keys = bring_into_range(keys, spec.table(table).rows, feature.out_of_range)
        if feature.takes_new_keys:
            keys = keys[keys < spec.table(table).rows]  # others are never hot
    rows, read = len(counts[table]), keys[keys != -1]
    if read.size and (read.min() < 0 or read.max() >= rows):
        raise ValueError(f"keys of {name} lie in [{read.min()}, {read.max()}]: table {table} has {rows} rows")
    counts[table] += np.bincount(read, minlength=rows)


def _with_any(counts: dict[str, npt.NDArray[np.float64]]) -> dict[str, npt.NDArray[np.float64]]:
    if not any(own.any() for own in counts.values()):
        raise ValueError("the trace has no key")
    return counts
