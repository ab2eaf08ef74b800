"""DeepRecSys (Gupta et al., ISCA 2020): the configurations of its artifact, models/configs, with the paper's SLAs."""

from __future__ import annotations

from hebe.models.catalog import disagreements
from hebe.models.catalog.layout import behaviours, plain, user_and_item
from hebe.models.catalog.paper_table import PaperTable
from hebe.spec import ModelSpec

_SOURCE = "DeepRecSys (Gupta et al., ISCA 2020), artifact's models/configs; SLA: the paper's table of SLA targets"
_MILLION = 1_000_000

_ALL = (
    "SLA p95; the same as in Hera Table I, and in Kairos Table 3 for MT-WnD; the artifact's own search takes 25 ms for "
    "every model."
)
_DLRM = "First bottom width: the dense input. Interaction: concatenation."
_MT_WND = f"Number of tasks: the artifact's default is 1, the paper says N; 4 are taken. {disagreements.MT_WND}"
_NCF = (
    "Tables of 140k rows (users) and 28k (items), twice: each half of NeuMF has one of either here. The artifact adds "
    f"the two vectors that NeuMF multiplies. {disagreements.NCF}"
)
_DIN = (
    "The artifact gives each of 250 behaviours a table of 0.1M rows, and candidate and context one of 10M; an item is "
    "an item here, so behaviours and candidate share one table of 35M rows: 5.9 GB all the same. 3 lookups a table: 3 "
    "for user and context, one row for the candidate and each behaviour. Its attention unit is an unweighted sum; here "
    f"it is DIN's own, 36-1. {disagreements.DIN}"
)
_DIEN = (
    "43 tables: user, 40 behaviours of 0.5M rows each, candidate and context of 5M; behaviours and candidate share one "
    "table of 25M rows here: 3.9 GB and 43 lookups all the same. GRU width 64. The artifact's script runs DIN instead. "
    f"{disagreements.DIEN}"
)

_PAPER = PaperTable(_SOURCE, notes=_ALL, dlrm_notes=_DLRM, interaction="concat", prefix="deeprecsys-")

RM1 = _PAPER.dlrm("rm1", plain([4 * _MILLION] * 8, 32, 80), (128, 64, 32), (256, 64, 1), 100.0, disagreements.RM1)
RM2 = _PAPER.dlrm("rm2", plain([_MILLION // 2] * 32, 64, 120), (256, 128, 64), (128, 64, 1), 400.0, disagreements.RM2)
RM3 = _PAPER.dlrm(
    "rm3", plain([2 * _MILLION] * 10, 32, 20), (2560, 1024, 256, 32), (512, 256, 1), 100.0, disagreements.RM3
)
WND = _PAPER.entry(
    "wnd",
    plain([_MILLION] * 27, 32, 1),
    25.0,
    disagreements.WND,
    architecture="wide-and-deep",
    dense_dim=512,
    towers={"deep": (1024, 512, 256)},
)
MT_WND = _PAPER.entry(
    "mtwnd",
    plain([_MILLION // 2] * 41 + [5 * _MILLION] * 2, 32, 1),
    25.0,
    _MT_WND,
    architecture="multi-task-wide-and-deep",
    dense_dim=512,
    outputs=4,
    towers={"trunk": (1024, 512), "task": (512, 256, 128)},
)
NCF = _PAPER.entry(
    "ncf",
    user_and_item(140_000, 28_000, 64),
    5.0,
    _NCF,
    architecture="ncf",
    towers={"mlp": (256, 256, 128, 64, 64)},
)
DIN = _PAPER.entry(
    "din",
    behaviours({"item": 35 * _MILLION}, {"user": _MILLION, "context": 10 * _MILLION}, 32, 250, lookups=3),
    100.0,
    _DIN,
    architecture="din",
    towers={"attention": (36, 1), "top": (200, 80, 2)},
)
DIEN = _PAPER.entry(
    "dien",
    behaviours({"item": 25 * _MILLION}, {"user": _MILLION // 2, "context": 5 * _MILLION}, 32, 40),
    35.0,
    _DIEN,
    architecture="dien",
    towers={"top": (200, 80, 2)},
    settings={"hidden": 64},
)

ENTRIES: tuple[tuple[ModelSpec, ...], ...] = tuple((spec,) for spec in (RM1, RM2, RM3, WND, MT_WND, NCF, DIN, DIEN))
