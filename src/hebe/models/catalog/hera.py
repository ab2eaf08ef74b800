"""Hera (Choi et al.), Table I: eight models and their SLA targets."""

from __future__ import annotations

from hebe.models.catalog import disagreements
from hebe.models.catalog.layout import behaviours, plain, user_and_item
from hebe.models.catalog.paper_table import PaperTable
from hebe.spec import ModelSpec

_SOURCE = "Hera (Choi et al.), Table I"
_MILLION = 1_000_000

_ALL = "SLA p95. Rows are not stated; they follow from the stated size."
_DLRM = "First dense width: the dense input's, which the stated FC sizes confirm. Interaction: dot (Section II-A)."
_NCF = (
    "140k users and 28k items as in DeepRecSys: 0.086 GB where Table I rounds to 0.1. The MLP reads its two vectors. "
    f"{disagreements.NCF}"
)
_DIEN = (
    "43 tables as in DeepRecSys: user, 40 behaviours of 0.5M rows each, candidate and context of 5M; behaviours and "
    "candidate share one table of 25M rows here: 3.9 GB and 43 lookups all the same. GRU width: DeepRecSys', 64. "
    f"{disagreements.DIEN}"
)
_DIN = (
    "4 tables, of the rows that DeepRecSys lists: user 1M, behaviours 0.1M (once, as the stated size has it), "
    "candidate and context 10M; behaviours and candidate share one table of 10.1M rows here: 2.7 GB all the same. 3 "
    "lookups a table: 3 for user and context, one row for the candidate and for each of DeepRecSys' 250 behaviours. "
    f"Attention unit: 36-1, of DIN's paper. {disagreements.DIN}"
)
_WND = f"Dense width not stated: 512, as DeepRecSys, which makes the stated FC size of 8 MB. {disagreements.WND}"

_PAPER = PaperTable(_SOURCE, notes=_ALL, dlrm_notes=_DLRM, interaction="dot")

DLRM_A = _PAPER.dlrm("dlrm-a", plain([_MILLION] * 8, 64, 80), (128, 64, 64), (256, 64, 1), 100.0, disagreements.RM1)
DLRM_B = _PAPER.dlrm(
    "dlrm-b",
    plain([2_500_000] * 40, 64, 120),
    (256, 128, 64),
    (128, 64, 1),
    400.0,
    f"25 GB over 40 tables: 2.5M rows each, 25.6 GB. {disagreements.RM2}",
)
DLRM_C = _PAPER.dlrm(
    "dlrm-c", plain([2 * _MILLION] * 10, 32, 20), (2560, 1024, 256, 32), (512, 256, 1), 100.0, disagreements.RM3
)
DLRM_D = _PAPER.dlrm(
    "dlrm-d",
    plain([_MILLION] * 8, 256, 80),
    (256, 256, 256),
    (256, 64, 1),
    100.0,
    f"The stated FC size, 0.2 MB, is DLRM (A)'s; these widths make 0.9 MB. {disagreements.DLRM_D}",
)
NCF = _PAPER.entry(
    "ncf", user_and_item(140_000, 28_000, 64), 5.0, _NCF, architecture="ncf", towers={"mlp": (256, 256, 128)}
)
DIEN = _PAPER.entry(
    "hera-dien",
    behaviours({"item": 25 * _MILLION}, {"user": _MILLION // 2, "context": 5 * _MILLION}, 32, 40),
    35.0,
    _DIEN,
    architecture="dien",
    towers={"top": (200, 80, 2)},
    settings={"hidden": 64},
)
DIN = _PAPER.entry(
    "hera-din",
    behaviours({"item": 10_100_000}, {"user": _MILLION, "context": 10 * _MILLION}, 32, 250, lookups=3),
    100.0,
    _DIN,
    architecture="din",
    towers={"attention": (36, 1), "top": (200, 80, 2)},
)
WND = _PAPER.entry(
    "wnd",
    plain([_MILLION] * 27, 32, 1),
    25.0,
    _WND,
    architecture="wide-and-deep",
    dense_dim=512,
    towers={"deep": (1024, 512, 256)},
)

ENTRIES: tuple[tuple[ModelSpec, ...], ...] = tuple(
    (spec,) for spec in (DLRM_A, DLRM_B, DLRM_C, DLRM_D, NCF, DIEN, DIN, WND)
)
