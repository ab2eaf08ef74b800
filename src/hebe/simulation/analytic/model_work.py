"""What serving a model costs in bytes and FLOPs, for one item and for one batch, told from its spec alone.

SparseNet: rows are gathered by cache lines, so a row of 40 bytes costs one line or two, as it happens to lie.
DenseNet: see `dense_ops`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hebe.simulation.analytic.dense_ops import FLOAT_BYTES, DenseOp, Stage, dense_stages
from hebe.spec import ModelSpec

LINE_BYTES = 64
KEY_BYTES = 8
"""Keys travel as INT64."""


@dataclass(frozen=True, slots=True)
class Gather:
    """One feature's lookups: `lookups` rows an item out of `table`, `rows` of `row_bytes`; `output_bytes` are left.

    `reduces`: the rows are summed or averaged, which near-memory ranks can do themselves.
    """

    feature: str
    table: str
    rows: int
    row_bytes: int
    lookups: int
    output_bytes: int
    reduces: bool

    @property
    def line_bytes_per_row(self) -> float:
        """Mean bytes moved for one row, whole cache lines: rows lie one after another from a line's start."""
        shared = math.gcd(self.row_bytes, LINE_BYTES)
        return self.row_bytes + LINE_BYTES - shared

    @property
    def bytes_per_item(self) -> float:
        """Bytes moved to gather one item's rows."""
        return self.lookups * self.line_bytes_per_row


@dataclass(frozen=True, slots=True)
class ModelWork:
    """All that the analytic servers know of a model. Bytes and FLOPs are per item unless they say otherwise."""

    model: str
    gathers: tuple[Gather, ...]
    stages: tuple[Stage, ...]
    table_bytes: int
    pooled_bytes: int
    """The SparseNet's output."""
    key_bytes: int
    dense_input_bytes: int

    @property
    def ops(self) -> tuple[DenseOp, ...]:
        """The DenseNet's ops, stage by stage."""
        return tuple(op for stage in self.stages for chain in stage for op in chain)

    @property
    def gather_bytes(self) -> float:
        """Bytes moved out of memory if no row is cached."""
        return sum(gather.bytes_per_item for gather in self.gathers)

    @property
    def flops(self) -> float:
        """FLOPs of the DenseNet's matrix products."""
        return sum(op.flops for op in self.ops)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the DenseNet's weights, all of them."""
        return sum(op.weight_bytes for op in self.ops)


def model_work(spec: ModelSpec) -> ModelWork:
    """The work of `spec`; raises `PlanningError` for an architecture whose ops are not known."""
    gathers = tuple(
        Gather(
            slot.feature.name,
            slot.feature.table,
            spec.table(slot.feature.table).rows,
            FLOAT_BYTES * slot.dim,
            slot.feature.lookups,
            FLOAT_BYTES * slot.width,
            slot.feature.pooling.reduces and slot.feature.lookups > 1,
        )
        for slot in spec.slots
    )
    return ModelWork(
        model=spec.name,
        gathers=gathers,
        stages=dense_stages(spec),
        table_bytes=spec.table_bytes,
        pooled_bytes=FLOAT_BYTES * spec.sparse_width,
        key_bytes=KEY_BYTES * spec.lookups_per_item,
        dense_input_bytes=FLOAT_BYTES * spec.dense_dim,
    )
