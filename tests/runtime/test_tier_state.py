"""What loaded models tell of their tiers, and how they are told to fill and refresh the cache."""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pytest

from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.embeddings.memory.table_memory import RowFormat
from hebe.runtime import loaded_model
from hebe.runtime.loaded_model import LoadedModel, LoadOptions
from hebe.runtime.tier_state import row_format, tier_kinds

NAME = "wnd"


@pytest.fixture
def load(repository, tmp_path):
    """Loads a small model with tiers as configured, and closes it."""
    with contextlib.ExitStack() as opened:

        def make(**config):
            cache = {"cache_fraction": 0.5, "init_ec": False, **config.pop("cache", {})}
            if "rocks_db" in config:
                config["persistent_db"] = {"type": "rocks_db", "path": str(tmp_path / "rows")}
                del config["rocks_db"]
            options = LoadOptions(hierarchy=HierarchyConfig.from_mapping({"cache": cache, **config}))
            model = LoadedModel.load(repository, NAME, options=options)
            opened.callback(model.close)
            return model, options

        yield make


def test_kinds(load, repository):
    assert tier_kinds(*load(rocks_db=True)) == {"cache": "host_cache", "persistent_db": "rocks_db"}
    assert tier_kinds(*load(volatile_db={"type": "parallel_hash_map"})) == {
        "cache": "host_cache",
        "volatile_db": "parallel_hash_map",
    }
    with contextlib.closing(LoadedModel.load(repository, NAME)) as resident:
        assert tier_kinds(resident, LoadOptions()) == {}
        assert resident.tiers_state is None
        assert resident.can_answer


def test_row_formats(load, repository):
    model, _ = load(volatile_db={"type": "parallel_hash_map"}, cache={"row_format": "fp16"})
    assert row_format(model) == "fp16"
    options = LoadOptions(row_format=RowFormat.INT8)
    with contextlib.closing(LoadedModel.load(repository, NAME, options=options)) as resident:
        assert row_format(resident) == "int8"


def test_prefetching_in_pieces_of_bounded_size(load, monkeypatch):
    monkeypatch.setattr(loaded_model, "_PREFETCHED_KEYS", 7)
    model, _ = load(volatile_db={"type": "parallel_hash_map"})
    table = max(model.spec.tables, key=lambda table: table.rows)
    keys = np.arange(min(table.rows, 40)) // 2
    assert model.prefetch({table.name: keys, "no table of this model": keys})
    tiers = model.hierarchy.tiers
    tiers.background.drain()
    rows, found = np.empty((20, table.dim), np.float32), np.zeros(20, np.bool_)
    assert tiers.cache.query(table.name, keys[::2].copy()[:20], rows[: len(keys) // 2], found[: len(keys) // 2]) == (
        len(keys) // 2
    )


def test_prefetching_more_than_may_wait_says_so(load, monkeypatch):
    monkeypatch.setattr(loaded_model, "_PREFETCHED_KEYS", 1)
    model, _ = load(volatile_db={"type": "parallel_hash_map"}, cache={"thread_pool_size": 1, "insertion_queue": 2})
    table = max(model.spec.tables, key=lambda table: table.rows)
    begun, go_on = threading.Event(), threading.Event()

    def hold_up() -> None:
        begun.set()
        assert go_on.wait(30)

    background = model.hierarchy.tiers.background
    assert background.submit(hold_up)
    assert begun.wait(30)
    assert not model.prefetch({table.name: np.arange(8)})
    assert background.dropped == 1, "the rest is not even tried"
    go_on.set()
    background.drain()
    assert model.prefetch({table.name: np.arange(2)})


def test_prefetching_resident_tables_needs_no_work(repository):
    with contextlib.closing(LoadedModel.load(repository, NAME)) as model:
        assert model.prefetch({model.spec.tables[0].name: np.arange(3)})
        assert model.refresh() is None


def test_refreshing_tells_what_it_came_to(load):
    model, _ = load(volatile_db={"type": "parallel_hash_map"}, cache={"init_ec": True})
    report = model.refresh()
    assert report is not None
    assert report.rows == report.replaced == model.tiers_state.cached_rows > 0
    assert report.unreachable == 0
    assert model.tiers_state.last_refresh == report
