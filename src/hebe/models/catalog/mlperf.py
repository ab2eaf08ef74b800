"""MLPerf Inference's DLRM-v2: Criteo terabyte logs, multi-hot, DCNv2 interaction, LoadGen's server scenario."""

from __future__ import annotations

from hebe.models.catalog.layout import plain
from hebe.spec import ModelSpec, SlaTarget

_BIG = 40_000_000

# fmt: off
ROWS = (
    _BIG, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, _BIG, 3_067_956, 405_282, 10, 2_209, 11_938, 155, 4, 976,
    14, _BIG, _BIG, _BIG, 590_152, 12_973, 108, 36,
)
"""Rows of the 26 tables: the categories of the Criteo terabyte logs, at most 40M each."""

LOOKUPS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
"""Rows per item and table (multi-hot sizes)."""
# fmt: on

_TABLES, _FEATURES = plain(ROWS, 128, LOOKUPS)

DLRM_V2 = ModelSpec(
    name="mlperf-dlrmv2",
    architecture="dlrm-dcnv2",
    tables=_TABLES,
    features=_FEATURES,
    dense_dim=13,
    towers={"bottom": (512, 256, 128), "top": (1024, 1024, 512, 256, 1)},
    settings={"cross_layers": 3, "cross_rank": 512},
    sla=SlaTarget(60.0, 99.0),
    size="production",
    source=(
        "MLPerf Inference, recommendation/dlrm_v2 and loadgen/mlperf.conf (server scenario); multi-hot sizes: "
        "facebookresearch/dlrm, torchrec_dlrm"
    ),
    notes="104.5 GB of float32 tables; 214 lookups an item. No other source has it.",
)

ENTRIES: tuple[tuple[ModelSpec, ...], ...] = ((DLRM_V2,),)
