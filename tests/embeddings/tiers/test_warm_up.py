from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hebe.embeddings.rocksdb.directory import CACHE_KEYS
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import StoreError
from tests.embeddings.example_tiers import ask, config_of, damage_rows, held


def test_level_1_is_warm_before_anything_is_asked(open_tiers) -> None:
    tiers = open_tiers(config_of())
    assert len(held(tiers)) > 200
    assert held(tiers) <= set(range(tiers.cache.tables["users"].capacity))
    assert tiers.lookup.counts.cache_misses == 0
    assert not held(open_tiers(config_of(cache={"init_ec": False}), version=2))


def test_a_restart_is_as_warm_as_the_run_before_and_so_is_the_next_version(open_tiers, tmp_path) -> None:
    wanted = list(range(2000, 2200))
    first = open_tiers(config_of(cache={"init_ec": False}))
    ask(first, wanted)
    first.close()
    assert held_on_disk(tmp_path / "model/1") == set(wanted)
    again = open_tiers(config_of())
    assert held(again) == set(wanted)
    again.close()
    assert held(open_tiers(config_of(), version=2)) == set(wanted)


def held_on_disk(place: Path) -> set[int]:
    return set(load_file(place / CACHE_KEYS)["users"].tolist())


def test_known_frequencies_fill_a_cache_that_has_no_past(open_tiers, tmp_path) -> None:
    hottest_first = np.arange(2999, -1, -1)
    save_file({"users": hottest_first}, tmp_path / "known.safetensors")
    tiers = open_tiers(config_of(cache={"warm_up_keys": str(tmp_path / "known.safetensors")}))
    capacity = tiers.cache.tables["users"].capacity
    assert min(held(tiers)) >= 3000 - capacity
    assert held(tiers) >= set(range(2999, 2999 - capacity // 2, -1)), "where a slabset is full the coldest give way"
    saved = tiers.cache.keys_by_use("users")
    assert set(saved.tolist()) == held(tiers)
    steps = np.arange(saved.size) // (saved.size // 8)
    assert (np.diff([np.median(saved[steps == step]) for step in range(8)]) < 0).all(), "the hottest first"
    assert held(tiers, "items") <= set(range(600)), "a table that the file lacks begins with its first rows"


def test_known_frequencies_that_are_not_there_are_an_error(open_tiers, tmp_path) -> None:
    with pytest.raises(StoreError, match=r"warm_up_keys .*typo\.safetensors: there is no such file"):
        open_tiers(config_of(cache={"warm_up_keys": str(tmp_path / "typo.safetensors")}))
    open_tiers(config_of(cache={"warm_up_keys": str(tmp_path / "typo.safetensors"), "init_ec": False}))


@pytest.mark.parametrize("parts", [{}, {"volatile_db": {"type": "parallel_hash_map"}}])
def test_rows_that_the_disk_has_damaged_are_told_when_they_are_to_warm_a_tier(open_tiers, tmp_path, parts) -> None:
    place = tmp_path / "model" / "1"
    open_tiers(config_of(**parts)).close()
    (place / CACHE_KEYS).unlink()
    damage_rows(place, 0.02)
    with pytest.raises(StoreError, match=f"{place}: cannot read table .*remove the directory"):
        open_tiers(config_of(**parts))
    RocksDbStore(place, read_only=True).close()  # nobody holds it
