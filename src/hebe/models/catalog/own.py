"""Configurations of this project's own: one to compare with other servers, one to train on Criteo-format data."""

from __future__ import annotations

from hebe.models.catalog.layout import plain
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling, SlaTarget

_PEERS_TABLES, _PEERS_FEATURES = plain([100_000] * 8, 64, 80)

PEERS_DLRM = ModelSpec(
    name="peers-dlrm",
    architecture="dlrm",
    tables=_PEERS_TABLES,
    features=_PEERS_FEATURES,
    dense_dim=128,
    towers={"bottom": (64, 64), "top": (256, 64, 1)},
    settings={"interaction": "dot"},
    sla=SlaTarget(100.0, 99.0),
    size="small",
    source="this project: the model on which Hebe is compared with other servers",
    notes="DLRM (A) of Hera with 100,000 rows a table instead of a million, so that it fits beside any server.",
)

CRITEO_DLRM = ModelSpec(
    name="criteo-dlrm",
    architecture="dlrm",
    tables=tuple(EmbeddingTableSpec(f"C{i}", 20_000, 16) for i in range(1, 27)),
    features=tuple(FeatureSpec(f"C{i}", f"C{i}", 1, Pooling.SUM) for i in range(1, 27)),
    dense_dim=13,
    towers={"bottom": (64, 32, 16), "top": (128, 64, 1)},
    settings={"interaction": "dot", "row_bound": 0.01},
    sla=SlaTarget(25.0, 95.0),
    size="small",
    source="this project: a small DLRM for data of the Criteo click-log format (13 counts, 26 categories)",
    notes=(
        "Categories are hashed into 20,000 rows a table. Rows start small (row_bound), since a row that training "
        "never saw should change a score little."
    ),
)

ENTRIES: tuple[tuple[ModelSpec, ...], ...] = ((PEERS_DLRM,), (CRITEO_DLRM,))
