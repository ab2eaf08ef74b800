import gc
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.dlpack import to_dlpack

from hebe.embeddings.config.hierarchy_config import (
    ConfigError,
    HierarchyConfig,
    PersistentConfig,
    VolatileConfig,
    VolatileType,
)
from hebe.embeddings.config.toml_writer import hierarchy_toml
from hebe.embeddings.hps.hps import HPS
from hebe.embeddings.store import StoreError
from hebe.embeddings.tiers.batch_lookup import RowState
from hebe.embeddings.updates.directory.log import LogDirectory
from tests.embeddings.example_tiers import damage_rows
from tests.examples.hps_examples import write_json
from tests.examples.sparse_models import any_keys, write_sparse_model
from tests.servers.redis_servers import RedisServer

ROWS, DIMS = 3000, {"deep": 16, "wide": 1}
DEFAULTS = {"deep": 0.0, "wide": -2.5}


@pytest.fixture(scope="module")
def tables() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Keys and rows of each table."""
    rng = np.random.default_rng(7)
    return {name: (any_keys(rng, ROWS), rng.standard_normal((ROWS, dim), np.float32)) for name, dim in DIMS.items()}


@pytest.fixture(scope="module")
def directory(tables, tmp_path_factory) -> Path:
    """Sparse models of both tables."""
    path = tmp_path_factory.mktemp("wdl")
    for name, (keys, rows) in tables.items():
        write_sparse_model(path / f"{name}.model", keys, rows)
    return path


def ps(directory: Path, **parts) -> dict:
    """A configuration of HPS with the two tables, `parts` beside the models; level 1 holds a twentieth."""
    model = {
        "model": "wdl",
        "sparse_files": [str(directory / f"{name}.model") for name in DIMS],
        "embedding_table_names": list(DIMS),
        "embedding_vecsize_per_table": list(DIMS.values()),
        "default_value_for_each_table": list(DEFAULTS.values()),
        "maxnum_catfeature_query_per_table_per_sample": [2, 2],
        "deployed_device_list": [0],
        "gpucacheper": 0.05,
        "hit_rate_threshold": 1.0,
    }
    return {"supportlonglong": True, "models": [model], **parts}


def expected(tables, table: str, keys: np.ndarray) -> np.ndarray:
    known = dict(zip(tables[table][0].tolist(), tables[table][1], strict=True))
    default = np.full(DIMS[table], DEFAULTS[table], np.float32)
    flat = [known.get(key, default) for key in keys.reshape(-1).tolist()]
    return np.array(flat, np.float32).reshape(*keys.shape, DIMS[table])


def zipf_keys(tables, table: str, rng: np.random.Generator, count: int) -> np.ndarray:
    """Repeated keys, a tenth of which no table has."""
    keys = tables[table][0][np.minimum(rng.zipf(1.2, count) - 1, ROWS - 1)]
    unknown = rng.random(count) < 0.1
    keys[unknown] = rng.integers(-(2**40), 2**40, int(unknown.sum()))
    return keys


@pytest.fixture(scope="module")
def hps(directory, tmp_path_factory):
    place = tmp_path_factory.mktemp("hps")
    volatile = {"type": "parallel_hash_map", "num_partitions": 4, "overflow_margin": 200, "initial_cache_rate": 0.2}
    config = ps(directory, volatile_db=volatile, persistent_db={"type": "rocks_db", "path": str(place / "stores")})
    with HPS(write_json(place / "ps.json", config)) as made:
        yield made


@pytest.mark.parametrize("table", ["deep", "wide"])
def test_rows_are_those_of_a_dict_through_all_tiers(hps, tables, table) -> None:
    rng = np.random.default_rng(11)
    for _ in range(30):
        keys = zipf_keys(tables, table, rng, 500)
        states = np.full(500, 99, np.uint8)
        rows = hps.lookup(keys, "wdl", table, states=states)
        assert rows.dtype == np.float32
        assert np.array_equal(rows, expected(tables, table, keys))
        assert np.array_equal(states == RowState.UNKNOWN, ~np.isin(keys, tables[table][0]))
        assert set(np.unique(states)) <= {RowState.FOUND, RowState.UNKNOWN}
    state = hps.state("wdl")
    assert state.counts.cache_hits
    assert state.counts.volatile_hits
    assert state.counts.persistent_hits
    assert state.cache_capacity_rows < ROWS


def test_tables_by_index_and_what_there_is(hps, tables) -> None:
    keys = tables["wide"][0][:5]
    assert np.array_equal(hps.lookup(keys, "wdl", 1, 0), tables["wide"][1][:5])
    assert hps.models == ("wdl",)
    assert [(spec.name, spec.rows, spec.dim) for spec in hps.tables("wdl")] == [("deep", ROWS, 16), ("wide", ROWS, 1)]
    for table in (2, -1, "none"):
        with pytest.raises(KeyError, match="has no table"):
            hps.lookup(keys, "wdl", table)
    with pytest.raises(KeyError, match="there is no model dlrm; there are wdl"):
        hps.lookup(keys, "dlrm", 0)


@pytest.mark.parametrize(
    "keys", [[-1], [-1, -1], [5, -1, 5, -1], [-1, -(2**63), 2**63 - 1, 0], [-1, 0], [0, -1], []], ids=str
)
def test_every_int64_is_a_key(hps, tables, keys) -> None:
    asked = np.array(keys, np.int64)
    assert np.array_equal(hps.lookup(asked, "wdl", "deep"), expected(tables, "deep", asked))
    assert np.array_equal(hps.lookup(keys, "wdl", "deep"), expected(tables, "deep", asked)), "also in a list"
    assert hps.lookup(asked, "wdl", "deep").shape == (len(keys), 16)
    assert hps.prefetch(keys, "wdl", "deep")


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_batch_is_what_a_dict_gives(hps, tables, data) -> None:
    known = st.sampled_from(tables["wide"][0][:20].tolist())
    keys = data.draw(st.lists(st.one_of(known, st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1)), max_size=30))
    asked = np.array(keys, np.int64)
    assert np.array_equal(hps.lookup(asked, "wdl", "wide"), expected(tables, "wide", asked))


def test_shapes_and_kinds_of_keys(hps, tables) -> None:
    keys = tables["deep"][0][:24].reshape(2, 3, 4)
    rows = expected(tables, "deep", keys)
    assert np.array_equal(hps.lookup(keys, "wdl", "deep"), rows)
    assert np.array_equal(hps.lookup(keys.view(np.uint64), "wdl", "deep"), rows), "HPS' Python takes unsigned keys"
    assert np.array_equal(hps.lookup(keys.transpose(2, 0, 1), "wdl", "deep"), rows.transpose(2, 0, 1, 3))
    assert np.array_equal(hps.lookup(keys.tolist(), "wdl", "deep"), rows)
    assert np.array_equal(hps.lookup(keys[0, 0, 0], "wdl", "deep"), rows[0, 0, 0])
    small = np.array([0, 7, -1], np.int32)
    assert np.array_equal(hps.lookup(small, "wdl", "wide"), expected(tables, "wide", small))
    assert np.array_equal(keys, tables["deep"][0][:24].reshape(2, 3, 4)), "the caller's keys stay as they are"


def test_torch_in_torch_out(hps, tables) -> None:
    keys = torch.from_numpy(tables["deep"][0][:12].copy()).reshape(4, 3)
    rows = hps.lookup(keys, "wdl", "deep")
    assert isinstance(rows, torch.Tensor)
    assert rows.dtype == torch.float32
    assert np.array_equal(rows.numpy(), expected(tables, "deep", keys.numpy()))
    out = torch.full((3, 4, 16), torch.nan)
    assert hps.lookup(keys.T, "wdl", "deep", out=out) is out
    assert torch.equal(out, rows.transpose(0, 1))
    rows[:] = 1  # it is the caller's: no tier looks into it again
    assert np.array_equal(hps.lookup(keys, "wdl", "deep").numpy(), expected(tables, "deep", keys.numpy()))


def test_capsules_as_hps_takes_them(hps, tables) -> None:
    keys = torch.from_numpy(tables["deep"][0][:6].copy())
    for wrap in (to_dlpack, lambda tensor: tensor):
        vectors = torch.zeros(7 * 16)
        hps.lookup_fromdlpack(wrap(keys), wrap(vectors), "wdl", 0, 0)
        assert np.array_equal(vectors[:96].numpy().reshape(6, 16), tables["deep"][1][:6])
        assert not vectors[96:].any(), "no more than the rows is written"
    with pytest.raises(ValueError, match=r"vectors are float32 \[95\]: .* hold 6 rows of 16"):
        hps.lookup_fromdlpack(to_dlpack(keys), to_dlpack(torch.zeros(95)), "wdl", 0)
    with pytest.raises(ValueError, match="must be float32"):
        hps.lookup_fromdlpack(to_dlpack(keys), to_dlpack(torch.zeros(96, dtype=torch.float64)), "wdl", 0)


class Elsewhere:
    """An array of a GPU's."""

    def __dlpack__(self, **_: object) -> object:
        raise AssertionError("it was asked for")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


def test_arrays_that_are_wrong(hps, tables) -> None:
    keys = tables["deep"][0][:4]
    read_only = np.empty((4, 16), np.float32)
    read_only.flags.writeable = False
    for out in (
        np.empty((4, 15), np.float32),
        np.empty((4, 16)),
        np.empty((16, 4), np.float32).T,
        read_only,
        torch.empty(4, 15),
    ):
        with pytest.raises(ValueError, match=r"out is .*: must be float32 \[4, 16\], C-contiguous and writeable"):
            hps.lookup(keys, "wdl", "deep", out=out)
    with pytest.raises(TypeError, match="keys are float64: must be whole numbers"):
        hps.lookup(keys / 2, "wdl", "deep")
    with pytest.raises(TypeError, match="keys are float32"):
        hps.lookup(torch.zeros(3), "wdl", "deep")
    with pytest.raises(TypeError, match="keys are on DLPack device 2"):
        hps.lookup(Elsewhere(), "wdl", "deep")
    with pytest.raises(ValueError, match=r"states are int64 \[4\]: must be uint8 \[4\]"):
        hps.lookup(keys, "wdl", "deep", states=np.zeros(4, np.int64))


@pytest.mark.parametrize("timeout_s", [-1, -0.001, np.nan, -np.inf, np.float32(-2)])
def test_a_time_that_is_none_is_refused(hps, tables, timeout_s) -> None:
    with pytest.raises(ValueError, match=r"timeout_s is .*: must be at least 0"):
        hps.lookup(tables["deep"][0][:4], "wdl", "deep", timeout_s=timeout_s)


@pytest.mark.parametrize("timeout_s", ["x", None, True, [1.0]])
def test_what_is_no_time_is_refused_also_where_all_keys_are_in_level_1(hps, tables, timeout_s) -> None:
    with pytest.raises(TypeError, match=r"timeout_s is .*: must be a number of seconds"):
        hps.lookup(tables["deep"][0][:0], "wdl", "deep", timeout_s=timeout_s)


def test_any_number_of_seconds_is_a_time(hps, tables) -> None:
    keys = tables["wide"][0][:4]
    for timeout_s in (60, np.int64(60), np.float32(60), np.inf):
        assert np.array_equal(hps.lookup(keys, "wdl", np.int64(1), timeout_s=timeout_s), tables["wide"][1][:4])


@pytest.mark.parametrize("table", [1.0, None, True, np.True_, [0]])
def test_what_names_no_table_is_refused(hps, tables, table) -> None:
    for ask in (hps.lookup, hps.prefetch):
        with pytest.raises(TypeError, match=r"table is .*: must be a name or an index"):
            ask(tables["deep"][0][:4], "wdl", table)
    with pytest.raises(TypeError, match=r"model is \['wdl'\]: must be a name"):
        hps.lookup(tables["deep"][0][:4], ["wdl"], 0)


@pytest.mark.parametrize(
    ("keys", "wide"), [([2**70], 2**70), (2**64, 2**64), ([[1], [-(2**63) - 1]], -(2**63) - 1), ((-1, 2**63), 2**63)]
)
def test_a_whole_number_that_no_int64_holds_is_named(hps, keys, wide) -> None:
    with pytest.raises(ValueError, match=f"keys have {wide} among them: each must fit into int64"):
        hps.lookup(keys, "wdl", "deep")


def test_lists_of_other_things_are_no_keys(hps) -> None:
    for keys in ([0.5, 1], ["a"], [None], [True], [2**70, "a"]):
        with pytest.raises(TypeError, match=r"keys are .*: must be whole numbers"):
            hps.lookup(keys, "wdl", "deep")


def test_threads_share_it(hps, tables) -> None:
    def work(seed: int) -> bool:
        rng = np.random.default_rng(seed)
        for _ in range(10):
            keys = zipf_keys(tables, "deep", rng, 200)
            assert np.array_equal(hps.lookup(keys, "wdl", "deep"), expected(tables, "deep", keys))
        return True

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(16)))


def test_prefetched_rows_are_in_level_1(hps, tables) -> None:
    keys = tables["wide"][0][-40:]
    assert hps.prefetch(keys, "wdl", "wide")
    hps._models["wdl"].tiers.background.drain()
    before = hps.state("wdl").counts.cache_misses
    hps.lookup(keys, "wdl", "wide")
    assert hps.state("wdl").counts.cache_misses == before
    hps.refresh("wdl")


def test_misses_are_defaulted_above_the_threshold_unless_told_to_wait(directory, tables) -> None:
    data = ps(directory)
    data["models"][0] |= {"hit_rate_threshold": 0.0, "init_ec": False}
    data["models"][0]["default_value_for_each_table"] = [3.0, 3.0]
    file = write_json(directory / "asynchronous.json", data)
    with HPS(file) as hps:
        keys, states = tables["deep"][0][:50], np.zeros(50, np.uint8)
        rows = hps.lookup(keys, "wdl", "deep", states=states)
        assert (states == RowState.DEFAULTED).all()
        assert (rows == 3).all()
        assert np.array_equal(hps.lookup(keys, "wdl", "deep", wait=True), tables["deep"][1][:50])


def test_stores_are_loaded_once_and_outlive_their_files(tables, tmp_path, caplog) -> None:
    files = tmp_path / "files"
    keys, rows = tables["deep"]
    write_sparse_model(files / "deep.model", np.append(keys, keys[:2]), np.append(rows, rows[:2], axis=0))
    write_sparse_model(files / "wide.model", *tables["wide"])
    config = ps(
        files, volatile_db={"type": "disabled"}, persistent_db={"type": "rocks_db", "path": str(tmp_path / "s")}
    )
    file = write_json(tmp_path / "ps.json", config)
    told: list[tuple[int, int]] = []
    with HPS(file, progress=lambda done, total: told.append((done, total))) as hps:
        assert np.array_equal(hps.lookup(keys, "wdl", "deep"), rows)
    assert told[-1][0] == told[-1][1] == 4 * ROWS * 17
    assert "2 repeated keys" in caplog.text
    assert "deployed_device_list: not honoured" in caplog.text
    told.clear()
    with HPS(file, progress=lambda done, total: told.append((done, total))) as hps:
        assert np.array_equal(hps.lookup(keys, "wdl", "deep"), rows)
    assert not told, "it was there already"
    for part in files.glob("*/*"):
        part.unlink()
    for part in files.iterdir():
        part.rmdir()
    (tmp_path / "s" / "wdl" / "1" / "cache_keys.safetensors").unlink()
    with HPS(file) as hps:
        assert [spec.rows for spec in hps.tables("wdl")] == [ROWS, ROWS]
        assert np.array_equal(hps.lookup(keys, "wdl", "deep"), rows)
        assert hps.state("wdl").cached_rows, "level 1 begins with keys of the store"


def test_a_damaged_store_is_told_at_once_if_it_is_to_be_verified(directory, tables, tmp_path) -> None:
    config = ps(
        directory, volatile_db={"type": "disabled"}, persistent_db={"type": "rocks_db", "path": str(tmp_path / "s")}
    )
    config["models"][0] |= {"init_ec": False}
    file, keys = write_json(tmp_path / "ps.json", config), tables["deep"][0]
    HPS(file).close()
    with HPS(file, verify=True) as hps:
        assert np.array_equal(hps.lookup(keys, "wdl", "deep"), tables["deep"][1])
    damage_rows(tmp_path / "s" / "wdl" / "1", 0.5)
    with HPS(file) as hps:
        states = np.empty(len(keys), np.uint8)
        rows = hps.lookup(keys, "wdl", "deep", states=states)
        assert 0 < (states == RowState.DEFAULTED).sum() < 4096 / 64
        assert np.array_equal(rows[states == RowState.FOUND], tables["deep"][1][states == RowState.FOUND])
        assert not (states == RowState.UNKNOWN).any()
    with pytest.raises(StoreError, match=r"cannot read table .*remove the directory"):
        HPS(file, verify=True)


def test_a_volatile_store_alone_serves_all_rows_whatever_share_of_them_hps_was_to_begin_with(
    directory, tables, tmp_path
) -> None:
    """HPS puts all of them in, and our documentation promises its users no less."""
    volatile = {"type": "parallel_hash_map", "num_partitions": 4, "overflow_margin": 200, "initial_cache_rate": 0.5}
    with HPS(write_json(tmp_path / "ps.json", ps(directory, volatile_db=volatile))) as hps:
        for table, (keys, rows) in tables.items():
            assert np.array_equal(hps.lookup(keys, "wdl", table), rows)


def test_our_toml_and_a_configuration_in_memory(directory, tables, tmp_path) -> None:
    table = {"name": "deep", "dim": 16, "sparse_file": str(directory / "deep.model")}
    config = HierarchyConfig.from_mapping({"volatile_db": {"type": "parallel_hash_map"}, "tables": {"m": [table]}})
    (tmp_path / "hebe.toml").write_text(hierarchy_toml(config))
    keys, rows = tables["deep"]
    for source in (config, tmp_path / "hebe.toml", str(tmp_path / "hebe.toml")):
        with HPS(source) as hps:
            assert np.array_equal(hps.lookup(keys, "m", 0), rows)


def test_over_redis(directory, tables, tmp_path) -> None:
    with RedisServer() as server:
        table = {"name": "deep", "dim": 16, "sparse_file": str(directory / "deep.model")}
        volatile = {"type": "redis", "address": server.address, "num_partitions": 4, "timeout_ms": 60_000}
        config = HierarchyConfig.from_mapping(
            {"cache": {"cache_fraction": 0.05}, "volatile_db": volatile, "tables": {"m": [table]}}
        )
        rng = np.random.default_rng(5)
        with HPS(config) as hps, HPS(config) as other:  # two servers' worth, one Redis
            for _ in range(10):
                keys = zipf_keys(tables, "deep", rng, 300)
                for each in (hps, other):
                    assert np.array_equal(each.lookup(keys, "m", "deep"), expected(tables, "deep", keys))
            assert other.state("m").counts.volatile_hits
        keys, rows = tables["deep"]
        write_sparse_model(tmp_path / "deep.model", keys, rows + 1)
        retrained = replace(
            config, tables={"m": (replace(config.tables["m"][0], sparse_file=str(tmp_path / "deep.model")),)}
        )
        with HPS(retrained) as hps, HPS(config) as old:
            assert np.array_equal(hps.lookup(keys, "m", 0), rows + 1), "rows of other files are other rows"
            assert np.array_equal(old.lookup(keys, "m", 0), rows)


def test_a_redis_that_has_lost_its_rows_is_not_given_those_of_files_that_were_written_into(
    tables, tmp_path, caplog
) -> None:
    keys, rows = tables["deep"]
    path = write_sparse_model(tmp_path / "deep.model", keys, rows)
    with RedisServer() as server:
        volatile = {"type": "redis", "address": server.address, "timeout_ms": 60_000}
        table = {"name": "deep", "dim": 16, "sparse_file": str(path)}
        cache = {"cache_fraction": 0.01, "init_ec": False}
        config = HierarchyConfig.from_mapping({"cache": cache, "volatile_db": volatile, "tables": {"m": [table]}})
        with HPS(config) as hps:
            (path / "emb_vector").write_bytes(rows[::-1].tobytes())  # of keys in another order, which are yet to come
            server.client().flushall()
            give_up_s, states = time.monotonic() + 60, np.zeros(keys.size, np.uint8)
            while "emb_vector has changed since it was loaded" not in caplog.text:
                assert time.monotonic() < give_up_s
                time.sleep(0.05)
            found = hps.lookup(keys, "m", "deep", states=states, wait=True)
            assert np.array_equal(found[states == RowState.FOUND], rows[states == RowState.FOUND])
            assert (states == RowState.DEFAULTED).any()


@pytest.mark.parametrize("where", ["rocks_db", "hash_map", "redis"])
def test_rows_that_are_not_finite_are_refused_wherever_they_are_loaded(tables, tmp_path, where) -> None:
    keys, rows = tables["deep"]
    order = np.argsort(keys)
    bad = rows.copy()
    bad[order[[2000, 2500]], [3, 15]] = np.nan, -np.inf
    write_sparse_model(tmp_path / "deep.model", keys, bad)
    table = {"name": "deep", "dim": 16, "sparse_file": str(tmp_path / "deep.model")}
    said = f"deep.model/emb_vector of table deep: 2 of 3,000 rows are not finite .* of key {keys[order[2000]]}:"
    with RedisServer() as server:
        tiers = {
            "rocks_db": {"persistent_db": {"type": "rocks_db", "path": str(tmp_path / "stores")}},
            "hash_map": {"volatile_db": {"type": "parallel_hash_map"}},
            "redis": {"volatile_db": {"type": "redis", "address": server.address, "timeout_ms": 60_000}},
        }[where]
        config = HierarchyConfig.from_mapping({**tiers, "tables": {"m": [table]}})
        with pytest.raises(StoreError, match=said):
            HPS(config)
        write_sparse_model(tmp_path / "deep.model", keys, rows)
        with HPS(config) as hps:
            assert np.array_equal(hps.lookup(keys, "m", 0), rows)


def test_a_typo_in_a_models_or_a_tables_name_is_told(directory, caplog) -> None:
    table = {"name": "wide", "dim": 1, "sparse_file": str(directory / "wide.model")}
    base = {"volatile_db": {"type": "parallel_hash_map"}, "tables": {"m": [table]}}
    wrong = base | {"models": {"m": {"default_value_for_each_table": {"wdie": 1.0}}}}
    with pytest.raises(ConfigError, match=r"\[models.m\].*has table wdie.*did you mean wide\?\); there are wide"):
        HPS(HierarchyConfig.from_mapping(wrong))
    with HPS(HierarchyConfig.from_mapping(base | {"models": {"mm": {}}})):
        assert "[models.mm] is for a model that there is not (did you mean m?); there are m" in caplog.messages


@pytest.mark.parametrize("by_model", [True, False])
def test_updates_that_the_rows_have_already_are_passed_over(directory, tables, tmp_path, by_model) -> None:
    table = {"name": "wide", "dim": 1, "sparse_file": str(directory / "wide.model")}
    config = HierarchyConfig.from_mapping(
        {
            "volatile_db": {"type": "parallel_hash_map", "num_partitions": 2},
            "update_source": {"type": "log_directory", "address": str(tmp_path / "log"), "poll_timeout_ms": 10},
            "tables": {"m": [table], "other": [table]},
        }
    )
    keys, rows = tables["wide"][0][:4], tables["wide"][1][:4, 0].tolist()
    with LogDirectory(tmp_path / "log").producer() as trainer:
        for model in ("m", "other"):
            trainer.send(model, "wide", keys[:2], np.array([[41], [42]], np.float32))
        trainer.flush()
        rows_as_of = datetime.now(UTC)
        for model in ("m", "other"):
            trainer.send(model, "wide", keys[1:3], np.array([[52], [53]], np.float32))
        trainer.flush()
    with HPS(config, rows_as_of={"m": rows_as_of} if by_model else rows_as_of) as hps:
        assert hps.drain_updates(30.0)
        newer = [rows[0], 52, 53, rows[3]]
        whole = [41, 52, 53, rows[3]]
        assert hps.lookup(keys, "m", "wide")[:, 0].tolist() == newer
        assert hps.lookup(keys, "other", "wide")[:, 0].tolist() == (whole if by_model else newer)
    with HPS(config) as hps:
        assert hps.drain_updates(30.0)
        assert hps.lookup(keys, "m", "wide")[:, 0].tolist() == whole
    with HPS(config, rows_as_of=datetime.now()) as hps:  # local time
        assert hps.drain_updates(30.0)
        assert hps.lookup(keys, "m", "wide")[:, 0].tolist() == rows
    with pytest.raises(ValueError, match="rows_as_of is given of model mm; there are m, other"):
        HPS(config, rows_as_of={"mm": rows_as_of})
    with pytest.raises(TypeError, match="rows_as_of is 5: must be a datetime"):
        HPS(config, rows_as_of=5)


def test_online_updates_arrive(directory, tables, tmp_path) -> None:
    table = {"name": "wide", "dim": 1, "sparse_file": str(directory / "wide.model")}
    config = HierarchyConfig.from_mapping(
        {
            "persistent_db": {"type": "rocks_db", "path": str(tmp_path / "stores"), "timeout_ms": 60_000},
            "update_source": {"type": "log_directory", "address": str(tmp_path / "log"), "poll_timeout_ms": 10},
            "tables": {"m": [table]},
        }
    )
    keys = tables["wide"][0][:3]
    with HPS(config) as hps, LogDirectory(tmp_path / "log").producer() as trainer:
        assert np.array_equal(hps.lookup(keys, "m", "wide"), tables["wide"][1][:3])
        trainer.send("m", "wide", keys[:2], np.array([[41], [42]], np.float32))
        trainer.delete("m", "wide", keys[2:])
        trainer.flush()
        assert hps.drain_updates(30.0)
        hps.refresh("m")
        assert hps.lookup(keys, "m", "wide").tolist() == [[41], [42], [0]]
    with HPS(config) as hps:
        assert hps.lookup(keys, "m", "wide").tolist() == [[41], [42], [0]], "the store keeps them"


def test_level_1_is_a_share_of_the_rows_that_updates_have_added_too(directory, tmp_path) -> None:
    table = {"name": "wide", "dim": 1, "sparse_file": str(directory / "wide.model")}
    config = HierarchyConfig.from_mapping(
        {
            "cache": {"cache_fraction": 0.02},
            "persistent_db": {"type": "rocks_db", "path": str(tmp_path / "stores"), "timeout_ms": 60_000},
            "update_source": {"type": "log_directory", "address": str(tmp_path / "log"), "poll_timeout_ms": 10},
            "tables": {"m": [table]},
        }
    )
    new = np.arange(40_000) + 2**50
    with HPS(config) as hps, LogDirectory(tmp_path / "log").producer() as trainer:
        assert hps.state("m").cache_capacity_rows == 64
        trainer.send("m", "wide", new, np.ones((new.size, 1), np.float32))
        trainer.flush()
        assert hps.drain_updates(60.0)
        hps.refresh("m")
        assert hps.state("m").cache_capacity_rows == 896
    with HPS(config) as hps:
        assert hps.state("m").cache_capacity_rows == 896


def test_a_full_volatile_store_alone_follows_updates_of_the_rows_that_it_has(directory, tables, tmp_path) -> None:
    """New keys that find no room are left out and told; what frees room lets later ones in."""
    table = {"name": "deep", "dim": 16, "sparse_file": str(directory / "deep.model")}
    config = HierarchyConfig.from_mapping(
        {
            "volatile_db": {"type": "parallel_hash_map", "num_partitions": 2, "memory_bytes": 600_000},
            "update_source": {"type": "log_directory", "address": str(tmp_path / "log"), "poll_timeout_ms": 10},
            "tables": {"m": [table]},
        }
    )
    known, new = tables["deep"][0], np.arange(10_000)
    with HPS(config) as hps, LogDirectory(tmp_path / "log").producer() as trainer:

        def send(keys: np.ndarray, value: float | None) -> None:
            if value is None:
                trainer.delete("m", "deep", keys)
            else:
                trainer.send("m", "deep", keys, np.full((len(keys), 16), value, np.float32))
            trainer.flush()
            assert hps.drain_updates(30.0)

        def shares(keys: np.ndarray, value: float) -> float:
            rows, states = np.empty((len(keys), 16), np.float32), np.empty(len(keys), np.uint8)
            hps.lookup(keys, "m", "deep", out=rows, states=states)
            assert (rows[states == RowState.FOUND] == value).all()
            assert np.isin(states, [RowState.FOUND, RowState.UNKNOWN]).all()
            return float((states == RowState.FOUND).mean())

        send(np.concatenate([new, known]), 7)
        assert shares(known, 7) == 1
        assert 0 < shares(new, 7) < 0.5
        told = hps._models["m"].updates.statistics()["tiers"]
        assert told.refused == round((1 - shares(new, 7)) * new.size)
        assert not told.is_failing
        assert told.failures == 0
        send(known, None)
        assert shares(known, 7) == 0, "tombstones go in"
        send(new[-1000:], 8)
        assert shares(new[-1000:], 8) == 1, "where they made room"


def test_faults_leave_nothing_open(directory, tmp_path, threads_begun) -> None:
    config = HierarchyConfig.from_mapping(
        {
            "persistent_db": {"type": "rocks_db", "path": str(tmp_path / "stores")},
            "tables": {
                "a": [{"name": "deep", "dim": 16, "sparse_file": str(directory / "deep.model")}],
                "b": [{"name": "deep", "dim": 16, "sparse_file": str(directory / "none.model")}],
            },
        }
    )
    with pytest.raises(StoreError, match=r"model b: neither its sparse files .*none\.model.* are there"):
        HPS(config)
    assert not threads_begun()
    with pytest.raises(StoreError, match="cannot be read"):
        HPS(replace(config, volatile_db=VolatileConfig(VolatileType.HASH_MAP), persistent_db=PersistentConfig()))
    with pytest.raises(ConfigError, match="No such file"):
        HPS(tmp_path / "none.json")


def test_closing(directory, tables, threads_begun) -> None:
    data = write_json(directory / "closing.json", ps(directory))
    hps = HPS(data)
    keys = tables["deep"][0][:3]
    hps.close()
    hps.close()
    assert not threads_begun()
    with pytest.raises(StoreError, match="closed"):
        hps.lookup(keys, "wdl", "deep")
    hps = HPS(data)
    del hps
    gc.collect()
    assert not threads_begun(), "one that is forgotten closes itself"
