from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hebe.models import catalog
from hebe.models.ranking_model import RankingModel
from hebe.spec import ModelSpec, Pooling, SpecError

EVERY = [(name, size) for name in catalog.names() for size in catalog.sizes(name)]
SHARED_DATA = Path(__file__).parents[2] / ".." / "shared" / "data"


def test_holds_every_configuration_of_the_sources() -> None:
    expected = {
        "hercules": "dlrm-rmc1 dlrm-rmc2 dlrm-rmc3 mt-wnd din dien",
        "hera": "dlrm-a dlrm-b dlrm-c dlrm-d ncf dien din wnd",
        "kairos": "ncf rm2 wnd mtwnd dien",
        "recos": "wnd din dlrm bst",
        "deeprecsys": "rm1 rm2 rm3 wnd mtwnd ncf din dien",
        "mlperf": "dlrmv2",
    }
    published = [f"{source}-{name}" for source, names in expected.items() for name in names.split()]
    found = [catalog.entry(name).name for name in published]
    assert sorted([*found, "peers-dlrm", "criteo-dlrm"]) == sorted(catalog.names())


@pytest.mark.parametrize("name", ["dlrm-rmc1", "dlrm-rmc2", "dlrm-rmc3", "mt-wnd", "din", "dien"])
def test_plain_names_with_two_sizes_are_hercules(name: str) -> None:
    assert catalog.sizes(name) == ["small", "production"]
    assert catalog.entry(name) == catalog.entry(f"hercules-{name}", "small")
    assert "Hercules" in catalog.entry(name).source


@pytest.mark.parametrize("name", ["dlrm-a", "dlrm-b", "dlrm-c", "dlrm-d", "ncf", "wnd"])
def test_plain_names_of_hera(name: str) -> None:
    assert catalog.entry(name) == catalog.entry(f"hera-{name}")
    assert "Hera" in catalog.entry(name).source


@pytest.mark.parametrize(("name", "size"), EVERY)
def test_every_entry_says_where_it_comes_from_and_survives_storage(name: str, size: str) -> None:
    spec = catalog.entry(name, size)
    assert spec.name == name
    assert spec.size == size
    assert spec.scale == 1.0
    assert spec.source
    assert spec.notes
    assert ModelSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


@pytest.mark.parametrize(("name", "size"), EVERY)
def test_every_entry_builds_and_scores_at_a_tiny_scale(name: str, size: str) -> None:
    spec = catalog.entry(name, size, scale=1e-6)
    model = RankingModel(spec, seed=1)
    generator = torch.Generator().manual_seed(2)
    features = {
        feature.name: torch.randint(0, spec.table(feature.table).rows, (3, feature.lookups), generator=generator)
        for feature in spec.features
    }
    with torch.no_grad():
        scores = model(torch.randn(3, spec.dense_dim, generator=generator), features)
    assert scores.shape == (3, spec.outputs)
    assert bool(torch.isfinite(scores).all())
    assert bool(((scores >= 0) & (scores <= 1)).all())


# Name, size, tables, GB of tables as the source states them (None: not stated).
STATED = [
    ("dlrm-rmc1", "small", 10, None),
    ("dlrm-rmc2", "production", 100, None),
    ("dlrm-rmc3", "production", 10, None),
    ("mt-wnd", "production", 26, None),
    ("din", "production", 3, None),
    ("dien", "small", 3, None),
    ("dlrm-a", None, 8, 2.0),
    ("dlrm-b", None, 40, 25.0),
    ("dlrm-c", None, 10, 2.5),
    ("dlrm-d", None, 8, 8.0),
    ("ncf", None, 4, 0.1),
    ("wnd", None, 27, 3.5),
    ("hera-dien", None, None, 3.9),
    ("hera-din", None, None, 2.7),
    ("deeprecsys-rm1", None, 8, 4.10),
    ("deeprecsys-rm2", None, 32, 4.10),
    ("deeprecsys-rm3", None, 10, 2.56),
    ("deeprecsys-wnd", None, 27, 3.46),
    ("deeprecsys-mtwnd", None, 43, 3.90),
    ("deeprecsys-ncf", None, 4, 0.086),
    ("deeprecsys-din", None, None, 5.90),
    ("deeprecsys-dien", None, None, 3.90),
    ("mlperf-dlrmv2", None, 26, 104.542509056),
]


@pytest.mark.parametrize(("name", "size", "tables", "gigabytes"), STATED)
def test_totals_are_the_stated_ones(name: str, size: str | None, tables: int | None, gigabytes: float | None) -> None:
    spec = catalog.entry(name, size)
    if tables is None:
        # Candidate and behaviours share one item table, where the source gives each behaviour its own.
        assert "share" in spec.notes
    else:
        assert len(spec.tables) == tables
    if gigabytes is not None:
        # Hera cuts or rounds to two digits; 0.1 GB stands for NCF's 0.086.
        tolerance = 0.02 if name == "ncf" else 0.025 * gigabytes
        assert spec.table_bytes / 1e9 == pytest.approx(gigabytes, abs=tolerance)


# Name, SLA target in ms, percentile, lookups per table, dim, dense width.
TARGETS = [
    ("dlrm-rmc1", 20, 95, 80, 32, 256),
    ("dlrm-rmc2", 50, 95, 120, 32, 256),
    ("dlrm-rmc3", 50, 95, 20, 32, 2560),
    ("mt-wnd", 100, 95, 1, 32, 13),
    ("dlrm-a", 100, 95, 80, 64, 128),
    ("dlrm-b", 400, 95, 120, 64, 256),
    ("dlrm-c", 100, 95, 20, 32, 2560),
    ("dlrm-d", 100, 95, 80, 256, 256),
    ("ncf", 5, 95, 1, 64, 0),
    ("wnd", 25, 95, 1, 32, 512),
    ("kairos-ncf", 5, 99, 1, 64, 0),
    ("kairos-rm2", 350, 99, 120, 64, 256),
    ("kairos-wnd", 25, 99, 1, 32, 512),
    ("kairos-mtwnd", 25, 99, 1, 32, 512),
    ("deeprecsys-rm1", 100, 95, 80, 32, 128),
    ("deeprecsys-rm2", 400, 95, 120, 64, 256),
    ("peers-dlrm", 100, 99, 80, 64, 128),
    ("criteo-dlrm", 25, 95, 1, 16, 13),
]


@pytest.mark.parametrize(("name", "latency_ms", "percentile", "lookups", "dim", "dense_dim"), TARGETS)
def test_targets_lookups_and_widths_are_the_stated_ones(
    name: str, latency_ms: float, percentile: float, lookups: int, dim: int, dense_dim: int
) -> None:
    spec = catalog.entry(name)
    assert (spec.sla.latency_ms, spec.sla.percentile) == (latency_ms, percentile)
    assert {feature.lookups for feature in spec.features} == {lookups}
    assert {table.dim for table in spec.tables} == {dim}
    assert spec.dense_dim == dense_dim


@pytest.mark.parametrize(
    ("name", "latency_ms", "percentile"),
    [
        ("din", 100, 95),
        ("dien", 100, 95),
        ("hera-din", 100, 95),
        ("hera-dien", 35, 95),
        ("kairos-dien", 35, 99),
        ("deeprecsys-din", 100, 95),
        ("deeprecsys-dien", 35, 95),
        ("mlperf-dlrmv2", 60, 99),
    ],
)
def test_targets_of_the_rest(name: str, latency_ms: float, percentile: float) -> None:
    sla = catalog.entry(name).sla
    assert (sla.latency_ms, sla.percentile) == (latency_ms, percentile)


@pytest.mark.parametrize("name", [name for name in catalog.names() if catalog.entry(name).sequences])
def test_candidate_and_behaviours_share_their_table(name: str) -> None:
    spec = catalog.entry(name)
    candidates = {feature.table for feature in spec.features if feature.pooling.reduces}
    assert {feature.table for feature in spec.sequences} <= candidates
    assert {feature.pooling for feature in spec.sequences} == {Pooling.ATTENTION}


def test_dlrm_v2_is_mlperfs() -> None:
    spec = catalog.entry("mlperf-dlrmv2")
    assert sum(table.rows for table in spec.tables) == 204_184_588
    assert spec.lookups_per_item == 214
    assert dict(spec.settings) == {"cross_layers": 3, "cross_rank": 512}
    assert spec.towers["top"] == (1024, 1024, 512, 256, 1)
    published = SHARED_DATA / "mlperf_dlrmv2" / "dlrm_v2_params.json"
    if published.exists():
        figures = json.loads(published.read_text())
        assert [table.rows for table in spec.tables] == figures["num_embeddings_per_feature"]
        assert [feature.lookups for feature in spec.features] == figures["multi_hot_sizes"]
        assert list(spec.towers["bottom"]) == figures["dense_arch_layer_sizes"]


def test_scale_shrinks_rows_down_to_a_floor_and_is_recorded() -> None:
    full, half, least = (catalog.entry("mt-wnd", "production", scale) for scale in (1.0, 0.5, 1e-9))
    assert half.scale == 0.5
    assert half.name == full.name
    for before, after, floor in zip(full.tables, half.tables, least.tables, strict=True):
        assert after.rows == max(round(before.rows / 2), min(before.rows, 64))
        assert floor.rows == min(before.rows, 64)
    assert half.features == full.features


@pytest.mark.parametrize("scale", [0.0, -1.0, 1.5, float("nan"), float("inf")])
def test_refuses_scales_out_of_range(scale: float) -> None:
    with pytest.raises(SpecError, match=r"scale is .*: must be above 0 and at most 1"):
        catalog.entry("ncf", scale=scale)


def test_an_unknown_name_is_answered_with_close_ones() -> None:
    with pytest.raises(SpecError, match=r"'dlrm-rcm1' is not in the catalog; did you mean .*dlrm-rmc1"):
        catalog.entry("dlrm-rcm1")
    with pytest.raises(SpecError, match=r"'zzzz' is not in the catalog; there are peers-dlrm"):
        catalog.sizes("zzzz")


def test_an_unknown_size_is_answered_with_the_sizes() -> None:
    with pytest.raises(SpecError, match="model dlrm-rmc1: size 'huge' is unknown; its sizes: small, production"):
        catalog.entry("dlrm-rmc1", "huge")
