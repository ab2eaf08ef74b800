import numpy as np
from safetensors.numpy import load_file, save_file

from hebe.embeddings.cache.cache_keys import CacheKeysFile, read_keys
from tests.embeddings.stores.dict_store import DictCache
from tests.servers.redis_servers import wait_until

DIMS = {"users": 3, "items": 1}


def cache_of(users: list[int]) -> DictCache:
    cache = DictCache(DIMS, 100)
    cache.insert("users", np.array(users), np.zeros((len(users), 3), np.float32))
    return cache


def test_what_a_cache_held_is_read_back(tmp_path) -> None:
    file = CacheKeysFile(tmp_path / "keys", cache_of([3, -(2**63), 2**63 - 1]), DIMS)
    file.start()
    file.close()
    file.close()
    held = read_keys([tmp_path / "keys"])
    assert sorted(held["users"].tolist()) == [-(2**63), 3, 2**63 - 1]
    assert held["items"].size == 0
    assert [path.name for path in tmp_path.iterdir()] == ["keys"]


def test_keys_are_saved_meanwhile_for_those_who_are_killed(tmp_path) -> None:
    cache = cache_of([1])
    file = CacheKeysFile(tmp_path / "keys", cache, DIMS, every_s=0.01)
    file.start()
    wait_until(lambda: read_keys([tmp_path / "keys"]).get("users", []) == [1], 30.0)
    cache.insert("users", np.array([2]), np.zeros((1, 3), np.float32))
    wait_until(lambda: sorted(read_keys([tmp_path / "keys"])["users"].tolist()) == [1, 2], 30.0)
    file.close()


def test_the_first_whole_file_is_taken_and_a_broken_one_is_told(tmp_path, caplog) -> None:
    (tmp_path / "broken").write_bytes(b"\xff" * 100)
    save_file({"users": np.array([7, 5]), "items": np.array([1.0])}, tmp_path / "whole")
    save_file({"users": np.array([9])}, tmp_path / "later")
    found = read_keys(tmp_path / name for name in ("missing", "broken", "whole", "later"))
    assert {table: keys.tolist() for table, keys in found.items()} == {"users": [7, 5]}
    assert "broken" in caplog.text
    assert read_keys([tmp_path / "missing"]) == {}


def test_a_directory_that_is_gone_is_told_and_harms_nobody(tmp_path, caplog) -> None:
    (tmp_path / "gone").mkdir()
    file = CacheKeysFile(tmp_path / "gone" / "keys", cache_of([1]), DIMS)
    file.start()
    (tmp_path / "gone").rmdir()
    file.close()
    assert "cannot be saved" in caplog.text


def test_keys_stay_readable_while_they_are_written_anew(tmp_path) -> None:
    cache = cache_of(list(range(50)))
    file = CacheKeysFile(tmp_path / "keys", cache, DIMS, every_s=0.001)
    file.start()
    wait_until((tmp_path / "keys").exists, 30.0)
    assert all(load_file(tmp_path / "keys")["users"].size == 50 for _ in range(100))
    file.close()


def test_a_lack_of_memory_is_told_and_passes(tmp_path, caplog) -> None:
    cache = cache_of([1])
    file = CacheKeysFile(tmp_path / "keys", cache, DIMS, every_s=0.001)
    cache.fault = MemoryError()
    file.start()
    wait_until(lambda: "cannot be saved" in caplog.text, 30.0)
    assert caplog.messages[0].endswith("/keys: MemoryError")
    cache.fault = None
    wait_until((tmp_path / "keys").exists, 30.0)
    cache.fault = MemoryError()
    file.close()
    assert read_keys([tmp_path / "keys"])["users"].tolist() == [1]
