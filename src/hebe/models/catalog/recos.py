"""RecOS (Guo et al.): WnD, DIN, DLRM and BST "from in-house production", of which nothing is published.

The paper names the four architectures and cites their papers; neither tables nor widths nor latency targets are
given. The figures here are those of the cited papers, or of DeepRecSys and Hera, as each entry's notes say.
"""

from __future__ import annotations

from dataclasses import replace

from hebe.models.catalog import disagreements, hera
from hebe.models.catalog.layout import behaviours, plain
from hebe.spec import ModelSpec, SlaTarget

_SOURCE = "RecOS (Guo et al.), Section 4.1 (architecture only)"
_MILLION = 1_000_000
_UNPUBLISHED = "RecOS publishes neither the configuration nor a latency target. "

_TABLES, _FEATURES = plain([_MILLION] * 26, 16, 1)
DLRM = ModelSpec(
    name="recos-dlrm",
    architecture="dlrm",
    tables=_TABLES,
    features=_FEATURES,
    dense_dim=13,
    towers={"bottom": (512, 256, 64, 16), "top": (512, 256, 1)},
    settings={"interaction": "dot"},
    sla=SlaTarget(100.0, 95.0),
    size="production",
    source=_SOURCE,
    notes=(
        f"{_UNPUBLISHED}Widths, dim and the 13 + 26 features are those of the Criteo example in DLRM's paper (Naumov "
        "et al. 2019); 1M rows a table is this project's figure; SLA as Hera's DLRM (A). The other sources' DLRMs, "
        "which disagree among themselves, are dlrm-rmc1 to 3 (Hercules), dlrm-a to d (Hera) and deeprecsys-rm1 to 3 "
        "(DeepRecSys)."
    ),
)

_TABLES, _FEATURES = behaviours({"item": 12 * _MILLION, "category": 100_000}, {"user": 10 * _MILLION}, dim=32, steps=20)
BST = ModelSpec(
    name="recos-bst",
    architecture="bst",
    tables=_TABLES,
    features=_FEATURES,
    towers={"top": (1024, 512, 256, 1)},
    settings={"heads": 8, "blocks": 1},
    sla=SlaTarget(100.0, 95.0),
    size="production",
    source=_SOURCE,
    notes=(
        f"{_UNPUBLISHED}20 behaviours, 8 heads, 1 block and the top tower are those of BST's paper (Chen et al. 2019), "
        "which gives dims from 4 to 64: 32 is taken. Rows are this project's figures; SLA as Hera's DIN."
    ),
)
WND = replace(
    hera.WND,
    name="recos-wnd",
    source=_SOURCE,
    notes=(
        f"{_UNPUBLISHED}Configuration and SLA are Hera's wnd; its widths are those of Cheng et al. 2016. "
        f"{disagreements.WND}"
    ),
)
DIN = replace(
    hera.DIN,
    name="recos-din",
    source=_SOURCE,
    notes=f"{_UNPUBLISHED}Configuration and SLA are Hera's, see hera-din. {disagreements.DIN}",
)

ENTRIES: tuple[tuple[ModelSpec, ...], ...] = ((WND,), (DIN,), (DLRM,), (BST,))
