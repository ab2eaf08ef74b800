"""Tables and queries at their limits, through a server's tiers: narrow and wide rows, a cache smaller than a batch,
keys at the ends of int64, many clients at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
from tritonclient.utils import InferenceServerException

from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.embeddings.hps.hps import HPS
from hebe.embeddings.memory.model_rows import ModelRows
from hebe.embeddings.tiers.batch_lookup import RowState
from hebe.embeddings.tiers.tiers import Tiers
from hebe.embeddings.updates.contract import LogPlace, TopicPartition
from hebe.embeddings.updates.directory.log import LogDirectory
from hebe.spec import ModelSpec
from tests.examples.sparse_models import write_sparse_model
from tests.integration.serving.served import (
    TOLERANCE,
    HebeServe,
    Reference,
    draw,
    eventually,
    small_dlrm,
    store,
    triton_inputs,
)
from tests.integration.updates.trainer import QUICK, Trainer
from tests.servers.redis_servers import RedisServer

from .row_reader import (
    FEATURE,
    LATE_S,
    LOOKUPS,
    TABLE,
    Load,
    Reader,
    Versions,
    percentile_s,
    row_reader,
    rows_of,
    serving,
    store_reader,
)

READER = row_reader()
TINY = row_reader("tiny")
"""Its cache holds 64 rows."""
UPDATED = [row_reader("updated-narrow", dim=1), row_reader("updated-wide", rows=400, dim=1024)]
"""A trainer updates these."""
NARROW, WIDE = small_dlrm("narrow", dim=1), small_dlrm("wide", rows=200, dim=1024)
ENDS = np.array([-(2**63), -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("limits")


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[HebeServe]:
    """All of these models, each with a cache of its own over a hash map and RocksDB."""
    for spec in (READER, TINY, *UPDATED):
        store_reader(root / "models", spec)
    for spec in (NARROW, WIDE):
        store(root / "models", spec)
    tiers = {
        "cache": {"cache_fraction": 0.1},
        "models.tiny": {"cache_fraction": 0.0001},
        "volatile_db": {"type": "parallel_hash_map", "initial_cache_rate": 0.3},
        "persistent_db": {"type": "rocks_db", "path": str(root / "rocksdb")},
        "update_source": {
            "type": "log_directory",
            "address": str(root / "log"),
            "poll_timeout_ms": 50,
            "interval_s": 0.1,
        },
    }
    with serving(root, tiers, "--max-queue", "4096", "--sla-ms", "3600000", "--workers", "3") as running:
        yield running


@pytest.mark.parametrize("spec", [NARROW, WIDE], ids=lambda spec: spec.name)
def test_scores_of_narrow_and_wide_rows_are_plain_pytorchs(server: HebeServe, root: Path, spec):
    reference = Reference(root / "models", spec.name)
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        for seed in range(10):
            inputs = draw(spec, 100, np.random.default_rng(seed))
            result = client.infer(spec.name, triton_inputs(tritonclient.grpc, inputs))
            said = result.get_response().parameters
            assert [said[f"{kind}_fraction"].double_param for kind in ("defaulted", "stale", "unknown")] == [0, 0, 0]
            np.testing.assert_allclose(result.as_numpy("score"), reference.scores(inputs), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("spec", UPDATED, ids=lambda spec: spec.name)
def test_narrow_and_wide_rows_are_updated_under_load(server: HebeServe, root: Path, spec: ModelSpec):
    """While clients read; soon after, every row is what was sent last, and none is older from then on."""
    versions, keys = Versions(spec), np.arange(spec.tables[0].rows)
    with (
        LogDirectory(root / "log").producer(QUICK) as producer,
        Load([server], spec, versions) as load,
        Reader(server, spec, versions) as reader,
    ):
        with Trainer(producer, spec.name, versions, keys):
            eventually(lambda: (versions.sent > 0).sum() > len(keys) / 2, "updates come")
            load.wait_for(100)
        eventually(reader.all_newest, "all that was sent is seen")
        versions.settled[:] = versions.sent
        load.wait_for(50)


def test_a_cache_smaller_than_one_batch(server: HebeServe):
    """Each batch asks for some ten times the rows that fit; all of them are answered, and right."""
    versions = Versions(TINY)
    with Load([server], TINY, versions, items=200) as load:
        load.wait_for(100)
        assert all(answer.told is not None and answer.told.all_found for answer in load.answers)
        assert percentile_s(load.answers, 99) < LATE_S


@pytest.mark.parametrize("key", [*ENDS[[0, 1, 2, 5, 6]], TINY.tables[0].rows])
def test_keys_that_a_model_has_no_rows_of_are_refused_by_name(server: HebeServe, key: int):
    versions = Versions(READER)
    with Reader(server, READER, versions) as reader:
        with pytest.raises(
            InferenceServerException, match=f"'{FEATURE}'.*key {key} of item 1 is out of range"
        ) as fault:
            reader.read(np.array([0, 1, 2, 3, 4, 5, key, 7]))
        assert fault.value.status() == "StatusCode.INVALID_ARGUMENT"
        assert reader.answer(np.arange(8)).fault is None


class EndsOfInt64:
    """A table whose rows have these keys."""

    rows, place = len(ENDS), "of this test"

    def __init__(self, dim: int) -> None:
        self._rows = rows_of(ENDS, np.arange(1, len(ENDS) + 1), dim)

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """See `KeyedRows`."""
        yield ENDS, self._rows

    def first_keys(self, count: int) -> np.ndarray:
        """See `KeyedRows`."""
        return ENDS[:count]


@pytest.mark.parametrize("dim", [1, 1024])
def test_keys_at_the_ends_of_int64_go_through_all_tiers(tmp_path: Path, dim: int):
    """Found from level 3, then level 2, then level 1; updated, deleted, and told from their neighbours."""
    [table] = row_reader(rows=len(ENDS), dim=dim).tables
    described = {
        "cache": {"init_ec": False, "cache_fraction": 1.0},
        "volatile_db": {"type": "parallel_hash_map", "num_partitions": 3, "initial_cache_rate": 0.0},
        "persistent_db": {"type": "rocks_db", "path": "rows"},
        "update_source": {"type": "log_directory", "address": "log"},
    }
    config = HierarchyConfig.from_mapping(described)
    rows = ModelRows("m", 1, [table], {TABLE: EndsOfInt64(dim)}, "identity")
    tiers = Tiers.open(rows, config, tmp_path / "rows")
    try:
        lookup = tiers.lookup
        wanted = rows_of(ENDS, np.arange(1, len(ENDS) + 1), dim)
        neighbours = np.array([-(2**63) + 2, -2, 2, 2**63 - 3])
        keys, rows = np.concatenate([neighbours, ENDS]), np.empty((4 + len(ENDS), dim), np.float32)
        for _ in range(3):
            states = lookup.look_up(TABLE, keys, rows)
            assert states is not None
            assert states.tolist() == 4 * [RowState.UNKNOWN] + len(ENDS) * [RowState.FOUND]
            assert not rows[:4].any()
            np.testing.assert_array_equal(rows[4:], wanted)
            tiers.background.drain()
        counts = lookup.counts
        assert (counts.persistent_hits, counts.cache_hits, counts.unknown) == (len(ENDS), 2 * len(ENDS), 3 * 4)

        wanted[:3] += 1
        for tier in tiers.stores_of_this_process().values():
            tier.insert(TABLE, ENDS[:3], wanted[:3])
            assert tier.delete(TABLE, ENDS[-1:]) == 1
        lookup.begin(TopicPartition("m", TABLE, 0), -1, "log")
        lookup.written(TABLE, ENDS[:3], wanted[:3], LogPlace(0, np.zeros(3, np.int64), 0))
        lookup.written(TABLE, ENDS[-1:], None, LogPlace(0, np.ones(1, np.int64), 1))
        wanted[-1] = 0
        states = lookup.look_up(TABLE, ENDS, rows[4:])
        assert states is not None
        assert states.tolist() == (len(ENDS) - 1) * [RowState.FOUND] + [RowState.UNKNOWN]
        np.testing.assert_array_equal(rows[4:], wanted)
    finally:
        tiers.close()


@pytest.mark.parametrize("level_3", [True, False], ids=["redis-and-rocksdb", "redis"])
def test_keys_at_the_ends_of_int64_go_through_redis_and_an_update_log(tmp_path: Path, level_3: bool):
    """All are found, then newer rows of all but the ends, which are deleted, and then those have rows again."""
    dim = 3
    before, after = (rows_of(ENDS, np.full(len(ENDS), version), dim) for version in (1, 2))
    sparse = write_sparse_model(tmp_path / "ends.model", ENDS, before)
    with RedisServer() as redis:
        described: dict[str, Any] = {
            "cache": {"init_ec": False, "cache_fraction": 0.2},
            "volatile_db": {"type": "redis", "address": redis.address, "num_partitions": 3, "timeout_ms": 60_000},
            "update_source": {"type": "log_directory", "address": str(tmp_path / "log"), "interval_s": 0.0},
            "tables": {"m": [{"name": TABLE, "dim": dim, "sparse_file": str(sparse)}]},
        }
        if level_3:
            path = str(tmp_path / "rocksdb")
            described["persistent_db"] = {"type": "rocks_db", "path": path, "timeout_ms": 60_000}
        with HPS(HierarchyConfig.from_mapping(described)) as hps, LogDirectory(tmp_path / "log").producer() as trainer:

            def check(rows: np.ndarray, unknown: np.ndarray) -> None:
                trainer.flush()
                assert hps.drain_updates(30.0)
                states = np.empty(len(ENDS), np.uint8)
                np.testing.assert_array_equal(hps.lookup(ENDS, "m", TABLE, states=states), rows)
                assert np.array_equal(states == RowState.UNKNOWN, unknown)

            with redis.client() as client:
                while sum(client.hlen(key) - 1 for key in client.scan_iter("hebe2:*:rows")) < len(ENDS):
                    time.sleep(0.02)  # it is filled beside queries
            none, ends = np.zeros(len(ENDS), np.bool_), np.isin(ENDS, [-(2**63), 2**63 - 1])
            check(before, none)
            assert hps.state("m").counts.volatile_hits
            trainer.send("m", TABLE, ENDS, after)
            trainer.delete("m", TABLE, ENDS[ends])
            check(np.where(ends[:, None], np.float32(0), after), ends)
            trainer.send("m", TABLE, ENDS[ends], after[ends] + 1)
            check(after + ends[:, None].astype(np.float32), none)


def test_64_clients_do_not_collapse(server: HebeServe):
    """With 64 at once no less than half of the throughput that 4 have, in turns; every row is right.

    Each has a connection of its own, and three workers share the one cache. The best of each: what else runs on a
    machine only makes them less.
    """
    rates = asyncio.run(throughput_by_clients(server, [4, 64], rounds=3, seconds=0.7))
    few, many = (max(rates[clients]) for clients in (4, 64))
    print(f"{few:.0f} queries/s with 4 clients, {many:.0f} with 64")
    assert many >= 0.5 * few, rates


async def throughput_by_clients(
    server: HebeServe, clients: list[int], rounds: int, seconds: float
) -> dict[int, list[float]]:
    """Queries answered a second by that many at once, once a round."""
    rates: dict[int, list[float]] = {count: [] for count in clients}
    channel = [("grpc.use_local_subchannel_pool", 1)]  # else all channels of a process share one connection
    opened = [
        tritonclient.grpc.aio.InferenceServerClient(server.grpc, channel_args=channel) for _ in range(max(clients))
    ]
    rng = np.random.default_rng(3)

    async def ask(client: tritonclient.grpc.aio.InferenceServerClient, end_s: float) -> int:
        answered = 0
        while time.monotonic() < end_s:
            keys = rng.integers(0, READER.tables[0].rows, 16 * LOOKUPS)
            tensor = tritonclient.grpc.InferInput(FEATURE, [16, LOOKUPS], "INT64")
            tensor.set_data_from_numpy(keys.reshape(-1, LOOKUPS))
            result = await client.infer(READER.name, [tensor])
            assert not result.get_response().parameters["defaulted_fraction"].double_param
            scores = result.as_numpy("score").astype(np.float64)
            rows = np.log(scores / (1 - scores)).reshape(len(keys), -1)
            newest = rows_of(keys, np.zeros(len(keys), np.int64), rows.shape[1])
            np.testing.assert_allclose(rows, newest, rtol=0, atol=1e-4)
            answered += 1
        return answered

    try:
        await asyncio.gather(*(ask(client, time.monotonic() + seconds) for client in opened))
        assert connections_to(server.grpc) >= len(opened)
        for _ in range(rounds):
            for count in clients:
                began_s = time.monotonic()
                answered = await asyncio.gather(*(ask(client, began_s + seconds) for client in opened[:count]))
                rates[count].append(sum(answered) / (time.monotonic() - began_s))
    finally:
        await asyncio.gather(*(client.close() for client in opened))
    return rates


def connections_to(where: str) -> int:
    """TCP connections that are open to HOST:PORT of this machine."""
    port, established = f"{int(where.rpartition(':')[2]):04X}", "01"
    tables = [Path("/proc/net", name).read_text().splitlines() for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table]
    return sum(fields[2].endswith(f":{port}") and fields[3] == established for fields in lines)
