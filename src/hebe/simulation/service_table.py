"""Service times by server type and query size, with their measured spread: what a table server draws from.

The form of Kairos' published measurements (some tens of samples at each of some sizes), and of what `hebe profile`
writes. Between measured sizes, equal quantiles are interpolated linearly.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hebe.profile import LatencyProfile

Floats = npt.NDArray[np.float64]
_RowKey = tuple[str, str, int]


class ServiceTableError(ValueError):
    """Measurements that cannot be used; the message names file, line and field, or type and size."""


@dataclass(frozen=True)
class ServiceTable:
    """Of one model: `types` names; `quantiles_s` float64 [types, largest + 1, samples], ascending along the samples.

    Entry 0 along the sizes is not used. Each sample is equally likely.
    """

    types: tuple[str, ...]
    quantiles_s: Floats

    def __post_init__(self) -> None:
        shape = self.quantiles_s.shape
        if not self.types or len(shape) != 3 or shape[0] != len(self.types) or shape[1] < 2 or not shape[2]:
            raise ServiceTableError(f"{len(self.types)} types, but quantiles_s is {shape}: give [types, sizes + 1, n]")
        if len(set(self.types)) != len(self.types):
            raise ServiceTableError(f"service table: a server type is named twice: {', '.join(self.types)}")
        if not (np.isfinite(self.quantiles_s).all() and self.quantiles_s.min() > 0):
            raise ServiceTableError("service table: every service time must be a positive number of seconds")

    @classmethod
    def from_samples(cls, samples_s: Mapping[str, Mapping[int, Sequence[float]]]) -> ServiceTable:
        """From samples by server type and query size. Below the smallest size its samples hold; the largest is the
        last size. Each type's sample count may differ: all are brought to that of the largest, by quantiles."""
        if not samples_s:
            raise ServiceTableError("service table: no server type was measured")
        for server_type, by_size in samples_s.items():
            if not by_size:
                raise ServiceTableError(f"server type {server_type}: not measured at any size")
        largest = max(max(by_size) for by_size in samples_s.values())
        count = max(len(samples) for by_size in samples_s.values() for samples in by_size.values())
        levels = (np.arange(count) + 0.5) / count
        quantiles_s = np.empty((len(samples_s), largest + 1, count))
        for at, (server_type, by_size) in enumerate(samples_s.items()):
            sizes = sorted(by_size)
            if sizes[-1] != largest:
                raise ServiceTableError(
                    f"server type {server_type}: measured up to {sizes[-1]} items, another to {largest}"
                )
            measured = np.empty((len(sizes), count))
            for row, size in enumerate(sizes):
                samples = np.asarray(by_size[size], dtype=np.float64)
                if size < 1 or not samples.size or not np.isfinite(samples).all() or samples.min() <= 0:
                    raise ServiceTableError(
                        f"server type {server_type}, {size} items: samples must be positive seconds"
                    )
                measured[row] = np.quantile(samples, levels, method="hazen")
            for level in range(count):
                quantiles_s[at, :, level] = np.interp(np.arange(largest + 1), sizes, measured[:, level])
        return cls(tuple(samples_s), quantiles_s)

    @classmethod
    def from_profiles(cls, profiles: Mapping[str, LatencyProfile], largest: int) -> ServiceTable:
        """From latency profiles by server type: normal quantiles around the median, 1.4826 spreads wide, within a third
        and three times of it. Beyond the last size that was measured the spread stays what it was there, while the
        median goes on as `LatencyProfile.service_time_s` says."""
        normal = np.array([-1.645, -1.036, -0.674, -0.385, -0.126, 0.126, 0.385, 0.674, 1.036, 1.645])
        quantiles_s = np.empty((len(profiles), largest + 1, normal.size))
        for at, profile in enumerate(profiles.values()):
            median = np.array([profile.service_time_s(max(size, 1)) for size in range(largest + 1)])
            spread = np.interp(np.arange(largest + 1), profile.batch_sizes, profile.spread_s)
            drawn = median[:, None] + 1.4826 * spread[:, None] * normal
            quantiles_s[at] = np.clip(drawn, median[:, None] / 3, 3 * median[:, None])
        return cls(tuple(profiles), quantiles_s)

    @property
    def largest(self) -> int:
        """The largest query size."""
        return int(self.quantiles_s.shape[1]) - 1

    @property
    def samples(self) -> int:
        """How many equally likely draws there are."""
        return int(self.quantiles_s.shape[2])

    @property
    def mean_s(self) -> Floats:
        """Mean service seconds, float64 [types, largest]: entry [t, n - 1] is for n items."""
        return np.asarray(self.quantiles_s[:, 1:].mean(axis=2))

    def of_types(self, types: Sequence[str]) -> ServiceTable:
        """The same for some types, in this order. Raises `ServiceTableError` for one that is not there."""
        for name in types:
            if name not in self.types:
                raise ServiceTableError(f"server type {name}: not measured; there are {', '.join(self.types)}")
        return ServiceTable(tuple(types), self.quantiles_s[[self.types.index(name) for name in types]])

    def profile(self, server_type: str, sizes: Sequence[int]) -> LatencyProfile:
        """Median and spread at some sizes."""
        at = self.types.index(server_type)
        medians = np.median(self.quantiles_s[at, list(sizes)], axis=1)
        spreads = np.median(np.abs(self.quantiles_s[at, list(sizes)] - medians[:, None]), axis=1)
        return LatencyProfile(tuple(sizes), tuple(map(float, medians)), tuple(map(float, spreads)))


def read_service_tables(paths: Sequence[Path], *, only: str | None = None) -> dict[str, ServiceTable]:
    """Tables by model from CSV files with columns model, instance, batch, ms_0 ... ms_N, as Kairos' measurements are.

    Several files (execution, loading) are added sample by sample, so that all must have the same rows; the slowest
    sample of a row, the first call, is left out, as the Kairos artifact does. Empty lines are skipped. `only`: the rows
    of other models are left aside. Raises `ServiceTableError` naming file, line, field, or the row that is missing.
    """
    rows: dict[_RowKey, Floats] = {}
    places: dict[_RowKey, tuple[str, list[str]]] = {}
    lines_of: list[dict[_RowKey, int]] = []
    for number, path in enumerate(paths):
        lines_of.append(seen := {})
        try:
            lines = csv.reader(path.read_text(encoding="utf-8-sig").splitlines())
        except (OSError, UnicodeDecodeError) as fault:
            raise ServiceTableError(f"{path}: cannot be read: {fault}") from None
        header = next(lines, [])
        if header[:3] != ["model", "instance", "batch"] or len(header) < 5:
            raise ServiceTableError(
                f"{path}, line 1: columns must be model, instance, batch, then at least two of samples"
            )
        for at, fields in enumerate(lines, start=2):
            if not any(text.strip() for text in fields):
                continue
            key, samples = _row(path, at, header, fields)
            if key in seen:
                raise ServiceTableError(f"{path}, line {at}: {key[0]}, {key[1]}, {key[2]} items is there twice")
            seen[key] = at
            if only is not None and key[0] != only:
                continue
            if number and key in rows and rows[key].size != samples.size:
                raise ServiceTableError(
                    f"{path}, line {at}: {samples.size} samples, but {rows[key].size} in another file"
                )
            rows[key] = rows[key] + samples if key in rows else samples
            places.setdefault(key, (f"{path}, line {at}", header[3:]))
    _check_same_rows(paths, lines_of, rows)
    by_model: dict[str, dict[str, dict[int, list[float]]]] = {}
    for (model, server_type, size), samples in rows.items():
        kept = np.sort(samples)[:-1] / 1e3
        if kept[0] <= 0:
            where, names = places[model, server_type, size]
            together = " in all files together" if len(paths) > 1 else ""
            raise ServiceTableError(
                f"{where}, field {names[int(samples.argmin())]}: is 0{together}: samples must be positive milliseconds"
            )
        by_model.setdefault(model, {}).setdefault(server_type, {})[size] = kept.tolist()
    return {model: ServiceTable.from_samples(samples) for model, samples in by_model.items()}


def _check_same_rows(paths: Sequence[Path], lines_of: Sequence[Mapping[_RowKey, int]], rows: Iterable[_RowKey]) -> None:
    """Raises `ServiceTableError` for the first of `rows` that one of the files lacks: a part would count as none."""
    for key in rows:
        for path, lines in zip(paths, lines_of, strict=True):
            if key in lines:
                continue
            has, line = next((has, of[key]) for has, of in zip(paths, lines_of, strict=True) if key in of)
            raise ServiceTableError(
                f"{path}: has no row of {key[0]}, {key[1]}, {key[2]} items, which {has} has in line {line}: files are"
                " added row by row; give every file every row, with zeros where there is nothing to add"
            )


def _row(path: Path, at: int, header: list[str], fields: list[str]) -> tuple[_RowKey, Floats]:
    if len(fields) != len(header):
        raise ServiceTableError(f"{path}, line {at}: {len(fields)} fields, the header has {len(header)}")
    try:
        size = int(fields[2])
    except ValueError:
        raise ServiceTableError(f"{path}, line {at}, field batch: {fields[2]!r} is not a whole number") from None
    samples = []
    for name, text in zip(header[3:], fields[3:], strict=True):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= 0):
            raise ServiceTableError(f"{path}, line {at}, field {name}: {text!r} is not a number of milliseconds")
        samples.append(value)
    if size < 1:
        raise ServiceTableError(f"{path}, line {at}, field batch: {size} must be at least 1 item")
    return (fields[0], fields[1], size), np.array(samples)
