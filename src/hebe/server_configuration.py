"""How one server is split for a model: Hercules' placements and m x o x d, as plain data.

A `Lane` raises `SpecError` when made of what its placement does not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from hebe.spec import SettingValue, SpecError

MOST_FUSED_ITEMS = 65_536
"""Batches of more items are not estimated."""
MOST_BATCH_ITEMS = 1 << 20


class Placement(StrEnum):
    """Which part of a model runs where (Hercules, Figure 10)."""

    MODEL_ON_HOST = "model-on-host"
    """Workers run the whole model."""
    PIPELINE_ON_HOST = "pipeline-on-host"
    """Sparse workers hand on to dense workers of one core each."""
    SPARSE_ON_HOST = "sparse-on-host"
    """Sparse workers on the host, the DenseNet on the accelerator."""
    HOT_SPARSE_ON_ACCELERATOR = "hot-sparse-on-accelerator"
    """DenseNet and hottest rows on the accelerator; sparse workers on the host sum the others."""

    @property
    def on_accelerator(self) -> bool:
        """Whether the accelerator takes part."""
        return self in (Placement.SPARSE_ON_HOST, Placement.HOT_SPARSE_ON_ACCELERATOR)


class AcceleratorChoice(StrEnum):
    """What the accelerator of a server shall be."""

    AUTO = "auto"
    """A GPU if there is one, else a second CPU device."""
    CPU = "cpu"
    """A second CPU device."""
    CUDA = "cuda"
    """A GPU."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One way for queries through a server; a server may have several side by side.

    `workers` of `cores_per_worker` run the model, or its SparseNet, in batches of at most `batch_size` items, into
    which queries are split. `dense_workers` run the DenseNet: of one core each on the host; co-located on the
    accelerator, with a core each that launches. There a worker takes queries one by one, or with `fused_items` all
    that wait, up to so many items.
    """

    placement: Placement
    workers: int = 0
    cores_per_worker: int = 1
    batch_size: int = 256
    dense_workers: int = 0
    fused_items: int = 0

    def __post_init__(self) -> None:
        if self.placement not in list(Placement):
            raise SpecError(f"lane: placement is {self.placement!r}: choose {', '.join(Placement)}")
        object.__setattr__(self, "placement", Placement(self.placement))
        for name, least in (
            ("workers", 0), ("cores_per_worker", 1), ("batch_size", 1), ("dense_workers", 0), ("fused_items", 0),
        ):  # fmt: skip
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise SpecError(f"lane {self.placement}: {name} is {value!r}: must be a whole number from {least}")
        if self.batch_size > MOST_BATCH_ITEMS:
            raise SpecError(f"lane {self.placement}: batch_size is {self.batch_size}: at most {MOST_BATCH_ITEMS}")
        if self.placement is not Placement.HOT_SPARSE_ON_ACCELERATOR and self.workers < 1:
            raise SpecError(f"lane {self.placement}: workers is 0: must be at least 1")
        if (self.placement is Placement.MODEL_ON_HOST) != (self.dense_workers == 0):
            needed = "0: its workers run the whole model" if self.dense_workers else "at least 1"
            raise SpecError(f"lane {self.placement}: dense_workers is {self.dense_workers}: must be {needed}")
        if self.fused_items and not self.placement.on_accelerator:
            raise SpecError(f"lane {self.placement}: fused_items is for accelerators; a host splits queries")
        if self.fused_items > MOST_FUSED_ITEMS:
            raise SpecError(f"lane {self.placement}: fused_items is {self.fused_items}: at most {MOST_FUSED_ITEMS}")

    @property
    def cores(self) -> int:
        """Host cores that it takes."""
        return self.workers * self.cores_per_worker + self.dense_workers


LANES = ("", "beside_")
"""What the settings of the first lane begin with, and those of a second one beside it."""


def to_dict(configuration: Sequence[Lane]) -> dict[str, SettingValue]:
    """One lane or two as plain settings: `workers`, `batch_size`..., those of a second lane as `beside_workers`...

    Raises `SpecError` for more than two lanes. `from_dict` reads them back.
    """
    if len(configuration) > len(LANES):
        raise SpecError(f"configuration: {len(configuration)} lanes: at most {len(LANES)} have settings")
    settings: dict[str, SettingValue] = {}
    for prefix, lane in zip(LANES, configuration, strict=False):
        settings |= {f"{prefix}{name}": value for name, value in asdict(lane).items()}
        settings[f"{prefix}placement"] = str(lane.placement)
    return settings


def from_dict(settings: Mapping[str, Any]) -> tuple[Lane, ...]:
    """The inverse of `to_dict`; raises `SpecError` naming a missing, unknown or ill-typed setting."""
    names = [field.name for field in fields(Lane)]
    expected = [f"{prefix}{name}" for prefix in LANES for name in names]
    if unknown := [name for name in settings if name not in expected]:
        raise SpecError(f"configuration: unknown setting {unknown[0]!r}: known are {', '.join(expected)}")
    lanes = []
    for prefix in LANES:
        if prefix and not any(name.startswith(prefix) for name in settings):
            break
        if missing := [name for name in names if f"{prefix}{name}" not in settings]:
            raise SpecError(f"configuration: setting '{prefix}{missing[0]}' is missing")
        lanes.append(Lane(**{name: settings[f"{prefix}{name}"] for name in names}))
    return tuple(lanes)
