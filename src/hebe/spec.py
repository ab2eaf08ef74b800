"""What is served and where: models, their tables, service-level targets, servers. Frozen, validated once.

Each raises `SpecError` when made of what contradicts itself.
Nothing here knows how a model is computed (`hebe.models`) or where rows live (`hebe.embeddings`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")
"""What models, tables and features may be called: safe as a directory, a tensor name and a metric label."""

SettingValue = int | float | str | bool


class SpecError(ValueError):
    """A specification that contradicts itself; the message names the field and what it should be."""


def check_name(kind: str, name: str) -> None:
    """Raise `SpecError` unless `name` is usable as a `kind` (model, table, feature) name."""
    if not isinstance(name, str) or not NAME_PATTERN.match(name):
        raise SpecError(
            f"{kind} name {name!r}: use letters, digits, '_', '.', '-' (at most 128), first a letter or digit"
        )


def _check_count(what: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SpecError(f"{what} is {value!r}: must be a whole number of at least {least}")
    if value > sys.maxsize:
        raise SpecError(f"{what} is {value!r}: must be below 2^63")


def is_finite(number: float) -> bool:
    """Unlike `math.isfinite` of whole numbers of any size, of which a float holds those up to about 10^308."""
    return abs(number) <= sys.float_info.max


class Pooling(StrEnum):
    """What becomes of the rows that one item looks up for one feature.

    SUM and MEAN reduce them to one vector before the DenseNet. CONCAT and ATTENTION hand all of them over;
    ATTENTION marks a behaviour sequence that the DenseNet weighs itself (DIN, DIEN, BST).
    """

    SUM = "sum"
    MEAN = "mean"
    CONCAT = "concat"
    ATTENTION = "attention"

    @property
    def reduces(self) -> bool:
        """Whether one vector per item is left, whatever the number of lookups."""
        return self in (Pooling.SUM, Pooling.MEAN)


class OutOfRange(StrEnum):
    """What becomes of a key that is no row of its table: the query is refused, or the key is brought into the table.

    WRAP takes it modulo the rows, never negative (the hash trick). CLAMP takes the nearest row, CLAMP_LOW and
    CLAMP_HIGH only for keys below 0 and only for keys above the last row. UNKNOWN looks keys above the last row up as
    they are: updates may have added them, and else they have the table's default vector. Keys below 0 are refused
    then, as -1 is padding.
    """

    REFUSE = "refuse"
    WRAP = "wrap"
    CLAMP = "clamp"
    CLAMP_LOW = "clamp_low"
    CLAMP_HIGH = "clamp_high"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class EmbeddingTableSpec:
    """One embedding table: `rows` x `dim` float32."""

    name: str
    rows: int
    dim: int

    def __post_init__(self) -> None:
        check_name("table", self.name)
        _check_count(f"table {self.name}: rows", self.rows, 1)
        _check_count(f"table {self.name}: dim", self.dim, 1)

    @property
    def size_bytes(self) -> int:
        """Raw float32 size of all rows."""
        return self.rows * self.dim * 4


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """One embedding feature, that is one INT64 input: which table its keys index and how rows are pooled.

    Several features may share a table (DIN looks up the candidate and the behaviours in one item table).
    `lookups` is the rows per item of a fixed `[items, lookups]` input, and the most that a jagged one may have.
    `out_of_range` says what becomes of keys outside of the table. `whole`: each item has all of its `lookups`, in the
    jagged form too, since the DenseNet takes the maximum over their rows.
    """

    name: str
    table: str
    lookups: int
    pooling: Pooling
    out_of_range: OutOfRange = OutOfRange.REFUSE
    whole: bool = False

    def __post_init__(self) -> None:
        check_name("feature", self.name)
        check_name("table", self.table)
        _check_count(f"feature {self.name}: lookups", self.lookups, 1)
        object.__setattr__(self, "pooling", Pooling(self.pooling))
        object.__setattr__(self, "out_of_range", OutOfRange(self.out_of_range))
        if not isinstance(self.whole, bool):
            raise SpecError(f"feature {self.name}: whole is {self.whole!r}: must be true or false")

    @property
    def takes_new_keys(self) -> bool:
        """Whether keys above the table's last row are looked up."""
        return self.out_of_range is OutOfRange.UNKNOWN

    def to_dict(self) -> dict[str, Any]:
        """Plain data for TOML and JSON: the fields, `out_of_range` and `whole` only where not the default."""
        fields: dict[str, Any] = {
            "name": self.name,
            "table": self.table,
            "lookups": self.lookups,
            "pooling": str(self.pooling),
        }
        if self.out_of_range is not OutOfRange.REFUSE:
            fields["out_of_range"] = str(self.out_of_range)
        return fields | {"whole": True} if self.whole else fields


SAFEGUARD = 0.98
"""Kairos' xi: what is predicted to end beyond this share of the SLA counts as late (Kairos section 5.1)."""


@dataclass(frozen=True, slots=True)
class SlaTarget:
    """A latency bound and the percentile at which it must hold."""

    latency_ms: float
    percentile: float = 95.0

    def __post_init__(self) -> None:
        if not (is_finite(self.latency_ms) and self.latency_ms > 0):
            raise SpecError(f"SLA latency_ms is {self.latency_ms!r}: must be a positive number of milliseconds")
        if not 0 < self.percentile < 100:
            raise SpecError(f"SLA percentile is {self.percentile!r}: must lie between 0 and 100, both excluded")

    @property
    def latency_s(self) -> float:
        """The bound in seconds."""
        return self.latency_ms / 1e3


@dataclass(frozen=True, slots=True)
class FeatureSlot:
    """Where one feature's vectors stand in the SparseNet's output row.

    The SparseNet hands one float32 tensor `[items, width]` to the DenseNet; this feature occupies
    columns `[column, column + width)`: `dim` of them if its pooling reduces, else `lookups * dim`, row after row.
    """

    feature: FeatureSpec
    dim: int
    column: int
    width: int


@dataclass(frozen=True)
class ModelSpec:
    """A ranking model: its features and tables, its towers, its SLA, and where the figures come from.

    `architecture` names the module in `hebe.models` that builds the DenseNet and says which `towers` (layer
    widths by tower name) and `settings` (scalars) it reads. `outputs` is the number of scores per item.
    `scale` is the factor that rows were shrunk by (1.0: as published); `size` is the published variant.
    """

    name: str
    architecture: str
    tables: tuple[EmbeddingTableSpec, ...]
    features: tuple[FeatureSpec, ...]
    dense_dim: int = 0
    towers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    settings: Mapping[str, SettingValue] = field(default_factory=dict)
    outputs: int = 1
    sla: SlaTarget = SlaTarget(100.0)
    size: str = ""
    scale: float = 1.0
    source: str = ""
    notes: str = ""

    def __post_init__(self) -> None:
        check_name("model", self.name)
        check_name("architecture", self.architecture)
        _check_count(f"model {self.name}: dense_dim", self.dense_dim, 0)
        _check_count(f"model {self.name}: outputs", self.outputs, 1)
        if not self.features:
            raise SpecError(f"model {self.name}: has no embedding feature; a ranking model needs at least one")
        _check_unique(f"model {self.name}: table", [table.name for table in self.tables])
        _check_unique(f"model {self.name}: feature", [feature.name for feature in self.features])
        known = {table.name for table in self.tables}
        for feature in self.features:
            if feature.table not in known:
                raise SpecError(f"model {self.name}: feature {feature.name} reads unknown table {feature.table}")
            if feature.name in ("dense", "score") or feature.name.endswith((".values", ".lengths")):
                raise SpecError(f"model {self.name}: feature name {feature.name} is reserved by the protocol")
        unused = known - {feature.table for feature in self.features}
        if unused:
            raise SpecError(f"model {self.name}: no feature reads table(s) {', '.join(sorted(unused))}")
        if self.reads_keys and self.takes_new_keys:
            raise SpecError(
                f"model {self.name}: its DenseNet computes with keys, and was checked with those of its tables' rows: "
                "features cannot take new keys (out_of_range unknown)"
            )
        if not (is_finite(self.scale) and self.scale > 0):
            raise SpecError(f"model {self.name}: scale is {self.scale!r}: must be a positive number")
        towers = {}
        for tower, widths in self.towers.items():
            for width in widths:
                _check_count(f"model {self.name}: tower {tower}: width", width, 1)
            towers[tower] = tuple(widths)
        object.__setattr__(self, "towers", MappingProxyType(towers))
        object.__setattr__(self, "settings", MappingProxyType(dict(self.settings)))

    def __reduce__(self) -> tuple[Any, ...]:
        # The read-only mappings can be neither copied nor pickled; their content can.
        return ModelSpec.from_dict, (self.to_dict(),)

    def table(self, name: str) -> EmbeddingTableSpec:
        """The table called `name`; raises KeyError."""
        for table in self.tables:
            if table.name == name:
                return table
        raise KeyError(name)

    @property
    def slots(self) -> tuple[FeatureSlot, ...]:
        """The layout of the SparseNet's output, features in order."""
        slots, column = [], 0
        for feature in self.features:
            dim = self.table(feature.table).dim
            width = dim if feature.pooling.reduces else dim * feature.lookups
            slots.append(FeatureSlot(feature, dim, column, width))
            column += width
        return tuple(slots)

    @property
    def sparse_width(self) -> int:
        """Columns of the SparseNet's output, the DenseNet's `sparse` input."""
        return sum(slot.width for slot in self.slots)

    @property
    def sequences(self) -> tuple[FeatureSpec, ...]:
        """The features handed over unreduced; the DenseNet's `lengths` input has one column for each."""
        return tuple(feature for feature in self.features if not feature.pooling.reduces)

    @property
    def behaviours(self) -> tuple[FeatureSpec, ...]:
        """The parts of the behaviour sequence, aligned position by position; none where the model has no sequence."""
        return tuple(feature for feature in self.features if feature.pooling is Pooling.ATTENTION)

    @property
    def reads_keys(self) -> bool:
        """Whether the DenseNet has a fourth input, `keys`: int64 `[n, lookups_per_item]`, the batch's key matrix.

        True of imported models that compute with keys (a mask `keys != 0`); it is their setting `reads_keys`.
        """
        return bool(self.settings.get("reads_keys", False))

    @property
    def takes_new_keys(self) -> bool:
        """Whether a feature looks keys above its table's last row up."""
        return any(feature.takes_new_keys for feature in self.features)

    def taking_new_keys(self) -> ModelSpec:
        """The spec with each feature that refuses keys out of range taking those above its table's last row. Raises
        `SpecError` where the DenseNet computes with keys.
        """
        features = tuple(
            replace(feature, out_of_range=OutOfRange.UNKNOWN) if feature.out_of_range is OutOfRange.REFUSE else feature
            for feature in self.features
        )
        return replace(self, features=features)

    @property
    def lookups_per_item(self) -> int:
        """Rows gathered for one item over all features: the columns of a batch's key matrix."""
        return sum(feature.lookups for feature in self.features)

    @property
    def table_bytes(self) -> int:
        """Raw float32 size of all tables."""
        return sum(table.size_bytes for table in self.tables)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for TOML and JSON; `from_dict` reads it back to an equal spec."""
        return {
            "name": self.name,
            "architecture": self.architecture,
            "dense_dim": self.dense_dim,
            "outputs": self.outputs,
            "size": self.size,
            "scale": self.scale,
            "source": self.source,
            "notes": self.notes,
            "sla": {"latency_ms": self.sla.latency_ms, "percentile": self.sla.percentile},
            "towers": {name: list(widths) for name, widths in self.towers.items()},
            "settings": dict(self.settings),
            "tables": [{"name": t.name, "rows": t.rows, "dim": t.dim} for t in self.tables],
            "features": [feature.to_dict() for feature in self.features],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelSpec:
        """The inverse of `to_dict`. Raises `SpecError` naming a missing, unknown or ill-typed field."""
        known = {
            "name", "architecture", "dense_dim", "outputs", "size", "scale", "source", "notes",
            "sla", "towers", "settings", "tables", "features",
        }  # fmt: skip
        unknown = set(data) - known
        if unknown:
            raise SpecError(f"model spec: unknown field(s) {', '.join(sorted(unknown))}")
        try:
            rest = {k: v for k, v in data.items() if k not in ("sla", "towers", "tables", "features")}
            return cls(
                tables=tuple(EmbeddingTableSpec(**table) for table in data["tables"]),
                features=tuple(FeatureSpec(**feature) for feature in data["features"]),
                towers={name: tuple(widths) for name, widths in data.get("towers", {}).items()},
                sla=SlaTarget(**data["sla"]) if "sla" in data else SlaTarget(100.0),
                **rest,
            )
        except SpecError:
            raise
        except KeyError as missing:
            raise SpecError(f"model spec: field {missing} is missing") from None
        except (TypeError, ValueError, AttributeError) as fault:
            raise SpecError(f"model spec: {fault}") from None


def _check_unique(kind: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise SpecError(f"{kind} {name} appears twice")
        seen.add(name)


@dataclass(frozen=True, slots=True)
class AcceleratorSpec:
    """An accelerator in a server: what its share of a batch can be computed from.

    `pcie_bandwidth_bytes_per_s` is what copies from the host reach; `compute_units` (a GPU's SMs) say how many outputs
    must be computed side by side to fill it; `launch_overhead_s` is what one kernel costs however small it is.
    """

    name: str
    peak_flops_per_s: float
    memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    pcie_bandwidth_bytes_per_s: float
    compute_units: int = 1
    launch_overhead_s: float = 0.0
    idle_power_watts: float = 0.0
    peak_power_watts: float = 0.0

    def __post_init__(self) -> None:
        check_name("accelerator", self.name)
        where = f"accelerator {self.name}"
        _check_count(f"{where}: memory_bytes", self.memory_bytes, 1)
        _check_count(f"{where}: compute_units", self.compute_units, 1)
        for name in ("peak_flops_per_s", "memory_bandwidth_bytes_per_s", "pcie_bandwidth_bytes_per_s"):
            _check_amount(f"{where}: {name}", getattr(self, name), positive=True)
        _check_amount(f"{where}: launch_overhead_s", self.launch_overhead_s)
        _check_power(where, self.idle_power_watts, self.peak_power_watts)


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """A server type as planners see it: what it has, not what runs on it.

    `memory_bandwidth_bytes_per_s` is the peak of all memory channels together; 0, as any other field at its default,
    means "not stated". `near_memory_ranks` is how many ranks of a channel gather and sum rows side by side within the
    memory (Hercules' NMPx2, x4, x8); 0 is plain memory. Power without the accelerator's: `idle_power_watts` and
    `peak_power_watts` are all of it, of which memory takes the `memory_*` part, which rises with memory traffic.
    """

    name: str
    cores: int
    memory_bytes: int
    memory_bandwidth_bytes_per_s: float = 0.0
    idle_power_watts: float = 0.0
    peak_power_watts: float = 0.0
    price_per_hour: float = 0.0
    clock_hz: float = 0.0
    flops_per_cycle_per_core: float = 0.0
    llc_bytes: int = 0
    near_memory_ranks: int = 0
    memory_idle_power_watts: float = 0.0
    memory_peak_power_watts: float = 0.0
    accelerator: AcceleratorSpec | None = None

    def __post_init__(self) -> None:
        check_name("server type", self.name)
        where = f"server type {self.name}"
        _check_count(f"{where}: cores", self.cores, 1)
        _check_count(f"{where}: memory_bytes", self.memory_bytes, 1)
        for name in ("llc_bytes", "near_memory_ranks"):
            _check_count(f"{where}: {name}", getattr(self, name), 0)
        for name in ("memory_bandwidth_bytes_per_s", "price_per_hour", "clock_hz", "flops_per_cycle_per_core"):
            _check_amount(f"{where}: {name}", getattr(self, name))
        _check_power(where, self.idle_power_watts, self.peak_power_watts)
        _check_power(where, self.memory_idle_power_watts, self.memory_peak_power_watts, "memory_")
        if self.memory_idle_power_watts > self.idle_power_watts:
            raise SpecError(f"{where}: memory_idle_power_watts must be at most idle_power_watts, which it is part of")
        if self.memory_peak_power_watts - self.memory_idle_power_watts > self.peak_power_watts - self.idle_power_watts:
            raise SpecError(f"{where}: memory_peak_power_watts rises more above idle than peak_power_watts, its whole")

    @property
    def peak_flops_per_s(self) -> float:
        """All cores together; 0 if not stated."""
        return self.cores * self.clock_hz * self.flops_per_cycle_per_core


def _check_amount(what: str, value: object, *, positive: bool = False) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and is_finite(value)
    if not number or value < 0 or (positive and value == 0):  # type: ignore[operator]
        raise SpecError(f"{what} is {value!r}: must be a finite number {'above 0' if positive else 'of at least 0'}")


def _check_power(where: str, idle_watts: object, peak_watts: object, prefix: str = "") -> None:
    _check_amount(f"{where}: {prefix}idle_power_watts", idle_watts)
    _check_amount(f"{where}: {prefix}peak_power_watts", peak_watts)
    if idle_watts > peak_watts:  # type: ignore[operator]
        raise SpecError(
            f"{where}: {prefix}idle_power_watts is {idle_watts!r}: must be at most {prefix}peak_power_watts, "
            f"{peak_watts!r}"
        )
