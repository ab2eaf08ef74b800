"""Hercules (Ke et al., HPCA 2022), Table I: six models, small and production size; SLA targets of its Figure 15."""

from __future__ import annotations

from hebe.models.catalog.layout import Layout, plain, spread
from hebe.spec import ModelSpec, SlaTarget

SOURCE = "Hercules (Ke et al., HPCA 2022), Table I; SLA: caption of Figure 15"
DIM = 32
SMALL_ROWS = 1_000_000

_NOTES = (
    "Embedding dim is not stated; 32, the last width of the bottom tower. The first bottom width is taken as that of "
    "the dense input, as in the DeepRecSys configurations that Hercules builds on. Interaction is not stated; dot, "
    "DLRM's own. SLA percentile is not stated; p95."
)


def _dlrm(
    name: str, size: str, layout: Layout, bottom: tuple[int, ...], top: tuple[int, ...], sla_ms: float, notes: str
) -> ModelSpec:
    tables, features = layout
    return ModelSpec(
        name=name,
        architecture="dlrm",
        tables=tables,
        features=features,
        dense_dim=bottom[0],
        towers={"bottom": bottom[1:], "top": top},
        settings={"interaction": "dot"},
        sla=SlaTarget(sla_ms, 95.0),
        size=size,
        source=SOURCE,
        notes=f"{notes} {_NOTES}",
    )


def _rmc1(size: str, rows: list[int]) -> ModelSpec:
    return _dlrm(
        "dlrm-rmc1",
        size,
        plain(rows, DIM, 80),
        (256, 128, 32),
        (256, 64, 1),
        20.0,
        "'~10' tables: 10. Lookups 20-160: 80, as DeepRecSys RM1. Rows 1M-5M (production): evenly spaced.",
    )


ENTRIES: tuple[tuple[ModelSpec, ...], ...] = (
    (
        _rmc1("small", [SMALL_ROWS] * 10),
        _rmc1("production", spread(1_000_000, 5_000_000, 10)),
    ),
)
