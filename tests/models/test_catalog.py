from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch

from hebe.models import catalog
from hebe.models.architectures.ranking_model import RankingModel
from hebe.spec import ModelSpec, Pooling, SpecError
from tests.places import SHARED_DATA

EVERY = [(name, size) for name in catalog.names() for size in catalog.sizes(name)]


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


M = 1_000_000

# Name, size, dense tower (its input first), other towers, least and most rows of a table, SLA in ms, percentile: read
# not in the code but in Table I of Hercules (SLA: caption of Figure 15), Table I of Hera, Table 3 of Kairos with
# DeepRecSys' models/configs, and MLPerf's reference.
PUBLISHED = [
    ("dlrm-rmc1", "small", "256-128-32", "256-64-1", (M, M), 20, 95),
    ("dlrm-rmc1", "production", "256-128-32", "256-64-1", (M, 5 * M), 20, 95),
    ("dlrm-rmc2", "small", "256-128-32", "512-128-1", (M, M), 50, 95),
    ("dlrm-rmc2", "production", "256-128-32", "512-128-1", (M, 5 * M), 50, 95),
    ("dlrm-rmc3", "small", "2560-512-32", "512-128-1", (M, M), 50, 95),
    ("dlrm-rmc3", "production", "2560-512-32", "512-128-1", (10 * M, 20 * M), 50, 95),
    ("mt-wnd", "small", "13", "4x(1024-512-256)", (M, M), 100, 95),
    ("mt-wnd", "production", "13", "4x(1024-512-256)", (3, 40 * M), 100, 95),
    ("din", "small", "-", "attention 36-1, 200-80-2", (M // 10, M), 100, 95),
    ("din", "production", "-", "attention 36-1, 200-80-2", (M // 10, 600 * M), 100, 95),
    ("dien", "small", "-", "200-80-2", (M // 10, M), 100, 95),
    ("dien", "production", "-", "200-80-2", (M // 10, 600 * M), 100, 95),
    ("dlrm-a", "production", "128-64-64", "256-64-1", (M, M), 100, 95),
    ("dlrm-b", "production", "256-128-64", "128-64-1", (2_500_000, 2_500_000), 400, 95),
    ("dlrm-c", "production", "2560-1024-256-32", "512-256-1", (2 * M, 2 * M), 100, 95),
    ("dlrm-d", "production", "256-256-256", "256-64-1", (M, M), 100, 95),
    ("ncf", "production", "-", "256-256-128", (28_000, 140_000), 5, 95),
    ("hera-dien", "production", "-", "200-80-2", (M // 2, 25 * M), 35, 95),
    ("hera-din", "production", "-", "attention 36-1, 200-80-2", (M, 10_100_000), 100, 95),
    ("wnd", "production", "512", "1024-512-256", (M, M), 25, 95),
    ("kairos-ncf", "production", "-", "256-256-128-64-64", (28_000, 140_000), 5, 99),
    ("kairos-rm2", "production", "256-128-64", "128-64-1", (M // 2, M // 2), 350, 99),
    ("kairos-wnd", "production", "512", "1024-512-256", (M, M), 25, 99),
    ("kairos-mtwnd", "production", "512", "1024-512, 4x(512-256-128)", (M // 2, 5 * M), 25, 99),
    ("kairos-dien", "production", "-", "200-80-2", (M // 2, 25 * M), 35, 99),
    ("deeprecsys-rm1", "production", "128-64-32", "256-64-1", (4 * M, 4 * M), 100, 95),
    ("deeprecsys-rm2", "production", "256-128-64", "128-64-1", (M // 2, M // 2), 400, 95),
    ("deeprecsys-rm3", "production", "2560-1024-256-32", "512-256-1", (2 * M, 2 * M), 100, 95),
    ("deeprecsys-wnd", "production", "512", "1024-512-256", (M, M), 25, 95),
    ("deeprecsys-mtwnd", "production", "512", "1024-512, 4x(512-256-128)", (M // 2, 5 * M), 25, 95),
    ("deeprecsys-ncf", "production", "-", "256-256-128-64-64", (28_000, 140_000), 5, 95),
    ("deeprecsys-din", "production", "-", "attention 36-1, 200-80-2", (M, 35 * M), 100, 95),
    ("deeprecsys-dien", "production", "-", "200-80-2", (M // 2, 25 * M), 35, 95),
    ("mlperf-dlrmv2", "production", "13-512-256-128", "1024-1024-512-256-1", (3, 40 * M), 60, 99),
]


def widths(layers: Iterable[int]) -> str:
    return "-".join(map(str, layers))


@pytest.mark.parametrize(
    ("name", "size", "dense", "others", "rows", "latency_ms", "percentile"), PUBLISHED, ids=lambda value: str(value)
)
def test_widths_rows_and_targets_are_the_published_ones(
    name: str, size: str, dense: str, others: str, rows: tuple[int, int], latency_ms: float, percentile: float
) -> None:
    spec = catalog.entry(name, size)
    towers = dict(spec.towers)
    found = [spec.dense_dim, *towers.pop("bottom", ())]
    assert (widths(found) if spec.dense_dim else "-") == dense
    texts = [f"attention {widths(towers['attention'])}"] if "attention" in towers else []
    texts += [widths(towers[tower]) for tower in ("trunk", "deep", "mlp", "top") if tower in towers]
    texts += [f"{spec.outputs}x({widths(towers['task'])})"] if "task" in towers else []
    assert ", ".join(texts) == others
    assert (min(table.rows for table in spec.tables), max(table.rows for table in spec.tables)) == rows
    assert (spec.sla.latency_ms, spec.sla.percentile) == (latency_ms, percentile)


def test_every_published_entry_is_in_the_table() -> None:
    ours = {"peers-dlrm", "criteo-dlrm"}
    listed = {(name, size) for name, size, *_ in PUBLISHED}
    assert {(name, size) for name, size in EVERY if name not in ours and not name.startswith("recos-")} == listed


# What DeepRecSys' models/configs hold, by file: our entry, dense tower, top tower, task tower, tables (count, rows),
# dim, lookups, tables of behaviours (DIN: the second table is one of so many).
DEEPRECSYS = {
    "dlrm_rm1": ("rm1", "128-64-32", "256-64-1", "", [(8, 4 * M)], 32, 80, 1),
    "dlrm_rm2": ("rm2", "256-128-64", "128-64-1", "", [(32, M // 2)], 64, 120, 1),
    "dlrm_rm3": ("rm3", "2560-1024-256-32", "512-256-1", "", [(10, 2 * M)], 32, 20, 1),
    "wide_and_deep": ("wnd", "512", "1024-512-256-1", "", [(27, M)], 32, 1, 1),
    "mtwnd": ("mtwnd", "512", "1024-512", "512-256-128", [(41, M // 2), (2, 5 * M)], 32, 1, 1),
    "ncf": ("ncf", "512", "256-256-128-64-64", "", [(2, 140_000), (2, 28_000)], 64, 1, 1),
    "din": ("din", "1", "200-80-2", "", [(1, M), (1, M // 10), (2, 10 * M)], 32, 3, 250),
    "dien": ("dien", "512", "200-80-2", "", [(41, M // 2), (2, 5 * M)], 32, 1, 1),
}


def transcribed(file: str) -> dict[str, object]:
    _, dense, top, task, tables, dim, lookups, behaviours = DEEPRECSYS[file]
    config: dict[str, object] = {
        "arch_mlp_bot": dense,
        "arch_mlp_top": top,
        "arch_embedding_size": widths(rows for count, rows in tables for _ in range(count)),
        "arch_sparse_feature_size": dim,
        "num_indices_per_lookup": lookups,
        "arch_interaction_op": "cat",
    }
    more: dict[str, object] = {"arch_mlp_tasks": task, "user_behavior_tables": behaviours if file == "din" else 0}
    return config | {field: value for field, value in more.items() if value}


@pytest.mark.parametrize("file", DEEPRECSYS)
def test_entries_of_deeprecsys_are_its_configurations(file: str) -> None:
    config = transcribed(file)
    published = SHARED_DATA / "deeprecsys" / "configs" / f"{file}.json"
    if published.exists():
        held = json.loads(published.read_text())
        assert {field: held[field] for field in config} == config
        config = held
    spec = catalog.entry(f"deeprecsys-{DEEPRECSYS[file][0]}")
    dense, top = (list(map(int, config[field].split("-"))) for field in ("arch_mlp_bot", "arch_mlp_top"))
    rows = list(map(int, config["arch_embedding_size"].split("-")))
    rows += [rows[1]] * (config.get("user_behavior_tables", 1) - 1)
    assert {table.dim for table in spec.tables} == {config["arch_sparse_feature_size"]}
    assert sum(table.rows for table in spec.tables) == sum(rows)
    if spec.architecture == "dlrm":
        assert [spec.dense_dim, *spec.towers["bottom"]] == dense
        assert spec.settings["interaction"] == "concat"
    elif spec.dense_dim:
        assert [spec.dense_dim] == dense
    (tower,) = {"top", "deep", "trunk", "mlp"} & set(spec.towers)
    assert list(spec.towers[tower]) == (top[:-1] if tower == "deep" else top), "the layer to one score is not a tower's"
    if "arch_mlp_tasks" in config:
        assert widths(spec.towers["task"]) == config["arch_mlp_tasks"]
    if spec.sequences:  # behaviours share a table with the candidate, and are sequences
        assert spec.lookups_per_item == {"din": 3 + 3 + 1 + 250, "dien": len(rows)}[spec.architecture]
    else:
        assert sorted(table.rows for table in spec.tables) == sorted(rows)
        assert {feature.lookups for feature in spec.features} == {config["num_indices_per_lookup"]}


# Entries that stand for the same model.
FAMILIES = [
    ["dlrm-rmc1", "dlrm-a", "deeprecsys-rm1"],
    ["dlrm-rmc2", "dlrm-b", "deeprecsys-rm2", "kairos-rm2"],
    ["dlrm-rmc3", "dlrm-c", "deeprecsys-rm3"],
    ["mt-wnd", "deeprecsys-mtwnd", "kairos-mtwnd"],
    ["wnd", "deeprecsys-wnd", "kairos-wnd", "recos-wnd"],
    ["ncf", "deeprecsys-ncf", "kairos-ncf"],
    ["din", "hera-din", "deeprecsys-din", "recos-din"],
    ["dien", "hera-dien", "deeprecsys-dien", "kairos-dien"],
]


def source_of(name: str) -> str:
    return catalog.entry(name).source.split()[0]


@pytest.mark.parametrize(
    ("name", "other"), [pair for family in FAMILIES for pair in itertools.permutations(family, 2)], ids=str
)
def test_entries_that_differ_name_each_others_source(name: str, other: str) -> None:
    for size in catalog.sizes(name):
        spec, differing = catalog.entry(name, size), catalog.entry(other)
        fields = [(each.sla, dict(each.towers), dict(each.settings), each.table_bytes) for each in (spec, differing)]
        if fields[0] != fields[1] and source_of(other) != "RecOS":  # which publishes nothing: its entries are Hera's
            assert "Sources disagree: " in spec.notes
            assert source_of(other) in spec.notes


def test_every_family_has_all_entries_of_that_name() -> None:
    in_families = {name for family in FAMILIES for name in family}
    alone = {"dlrm-d", "recos-dlrm", "recos-bst", "mlperf-dlrmv2", "peers-dlrm", "criteo-dlrm"}
    assert in_families | alone == set(catalog.names())
    assert "No other source has it" in catalog.entry("dlrm-d").notes
    assert "DeepRecSys', which" not in catalog.entry("hera-din").notes


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


@pytest.mark.parametrize(
    ("name", "origin"),
    [(f"kairos-{name}", f"deeprecsys-{name}") for name in ("ncf", "rm2", "wnd", "mtwnd", "dien")]
    + [("recos-wnd", "hera-wnd"), ("recos-din", "hera-din")],
)
def test_an_entry_that_says_it_has_anothers_configuration_has_it(name: str, origin: str) -> None:
    spec, configuration = catalog.entry(name), catalog.entry(origin)
    own = {field: getattr(spec, field) for field in ("name", "sla", "source", "notes")}
    assert replace(configuration, **own) == spec
    said = origin if name.startswith("kairos-") else "Hera's"
    assert said in spec.notes


def test_the_model_to_compare_servers_with_is_heras_first_with_fewer_rows() -> None:
    spec, origin = catalog.entry("peers-dlrm"), catalog.entry("dlrm-a")
    fields = ("architecture", "features", "dense_dim", "towers", "settings")
    assert [getattr(spec, field) for field in fields] == [getattr(origin, field) for field in fields]
    assert [(table.rows, table.dim) for table in spec.tables] == [
        (table.rows // 10, table.dim) for table in origin.tables
    ]
