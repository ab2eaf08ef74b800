"""Hercules (Ke et al., HPCA 2022), Table I: six models, small and production size; SLA targets of its Figure 15."""

from __future__ import annotations

from typing import Any

from hebe.models.catalog import disagreements, mlperf
from hebe.models.catalog.layout import Layout, behaviours, plain, spread
from hebe.spec import ModelSpec, SlaTarget

_SOURCE = "Hercules (Ke et al., HPCA 2022), Table I; SLA: caption of Figure 15"
_DIM = 32
_MILLION = 1_000_000

_ALL = "Embedding dim not stated: 32, as DeepRecSys, which Hercules extends. SLA percentile not stated: p95."
_DLRM = (
    "'~10' and '~100' tables: 10 and 100. Lookups 20-160 (RMC1, RMC2) and 20-50 (RMC3): 80, 120 and 20, DeepRecSys' "
    "values within those ranges. Production rows 1M-5M (RMC3: 10M-20M): evenly spaced over the tables. First bottom "
    "width: that of the dense input, as in DeepRecSys. Interaction not stated: dot, DLRM's own."
)
_MT_WND = (
    "Number of tasks N not stated: 4 (click, watch time, like, rating, the objectives of Zhao et al. 2019). Dense "
    "width not stated: 13, for 26 tables of 3 to 40M rows are those of the Criteo terabyte logs, whose row counts as "
    "in MLPerf are the production size. SLA: Figure 15 lists five targets for six models; the last one, 100 ms, is "
    "taken for this last model too. No shared trunk is stated: the task towers read the inputs."
)
_INTEREST = (
    "Lookups '1, 100-1000': one-hot features of 1, behaviours of 100, the low end. Tables of 0.1M to 600M rows: those "
    "of the data set in DIN's paper: users 60M, items 600M, categories 0.1M; small caps them at 1M. Candidate and "
    "behaviours (item and category each) share tables."
)


def _model(name: str, size: str, layout: Layout, sla_ms: float, notes: str, **fields: Any) -> ModelSpec:
    tables, features = layout
    sla = SlaTarget(sla_ms, 95.0)
    notes = f"{notes} {_ALL}"
    return ModelSpec(name, tables=tables, features=features, sla=sla, size=size, source=_SOURCE, notes=notes, **fields)


def _rmc1(size: str, rows: list[int]) -> ModelSpec:
    towers = {"bottom": (128, 32), "top": (256, 64, 1)}
    layout, notes = plain(rows, _DIM, 80), f"{_DLRM} {disagreements.RM1}"
    return _model("dlrm-rmc1", size, layout, 20.0, notes, architecture="dlrm", dense_dim=256, towers=towers)


def _rmc2(size: str, rows: list[int]) -> ModelSpec:
    towers = {"bottom": (128, 32), "top": (512, 128, 1)}
    layout, notes = plain(rows, _DIM, 120), f"{_DLRM} {disagreements.RM2}"
    return _model("dlrm-rmc2", size, layout, 50.0, notes, architecture="dlrm", dense_dim=256, towers=towers)


def _rmc3(size: str, rows: list[int]) -> ModelSpec:
    towers = {"bottom": (512, 32), "top": (512, 128, 1)}
    layout, notes = plain(rows, _DIM, 20), f"{_DLRM} {disagreements.RM3}"
    return _model("dlrm-rmc3", size, layout, 50.0, notes, architecture="dlrm", dense_dim=2560, towers=towers)


def _mt_wnd(size: str, rows: list[int]) -> ModelSpec:
    return _model(
        "mt-wnd",
        size,
        plain(rows, _DIM, 1),
        100.0,
        f"{_MT_WND} {disagreements.MT_WND}",
        architecture="multi-task-wide-and-deep",
        dense_dim=13,
        outputs=4,
        towers={"task": (1024, 512, 256)},
    )


def _interest(name: str, size: str, users: int, items: int) -> ModelSpec:
    towers: dict[str, tuple[int, ...]] = {"top": (200, 80, 2)}
    if name == "din":
        towers["attention"] = (36, 1)
        notes = f"{_INTEREST} Attention 'FC': 36-1, of DIN's paper. {disagreements.DIN}"
    else:
        notes = f"{_INTEREST} GRU width not stated: that of a behaviour, as in DIEN's paper. {disagreements.DIEN}"
    layout = behaviours({"item": items, "category": 100_000}, {"user": users}, _DIM, 100)
    return _model(name, size, layout, 100.0, notes, architecture=name, towers=towers)


ENTRIES: tuple[tuple[ModelSpec, ...], ...] = (
    (_rmc1("small", [_MILLION] * 10), _rmc1("production", spread(_MILLION, 5 * _MILLION, 10))),
    (_rmc2("small", [_MILLION] * 100), _rmc2("production", spread(_MILLION, 5 * _MILLION, 100))),
    (_rmc3("small", [_MILLION] * 10), _rmc3("production", spread(10 * _MILLION, 20 * _MILLION, 10))),
    (_mt_wnd("small", [_MILLION] * 26), _mt_wnd("production", list(mlperf.ROWS))),
    *(
        (_interest(name, "small", _MILLION, _MILLION), _interest(name, "production", 60 * _MILLION, 600 * _MILLION))
        for name in ("din", "dien")
    ),
)
