"""Service times by server type and query size, with their measured spread: what a table server draws from.

From samples, some tens at each of some sizes (`service_samples` reads them from files), or from latency profiles.
Between measured sizes, equal quantiles are interpolated linearly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hebe.profile import LatencyProfile

Floats = npt.NDArray[np.float64]

_MOST_ENTRIES = 1 << 27
"""Of a table: a GiB."""


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
        quantiles_s = _empty(len(samples_s), largest, count)
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
        quantiles_s = _empty(len(profiles), largest, normal.size)
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


def _empty(types: int, largest: int, samples: int) -> Floats:
    """Room for the quantiles, float64 `[types, largest + 1, samples]`."""
    if types * (largest + 1) * samples > _MOST_ENTRIES:
        raise ServiceTableError(
            f"service table: sizes up to {largest:,} items, {types} server types and {samples:,} samples of each size "
            "take more than 1 GiB: give sizes up to the largest query that is sent, and fewer samples"
        )
    return np.empty((types, largest + 1, samples))
