"""Write one small file of every format that Hebe writes and later reads, as this commit writes it, into a new folder.

    python scripts/record_files.py FOLDER

`tests/recorded_files` was made so. Later commits must read what it holds (`tests/test_recorded_files.py`), whatever
becomes of modules, classes and functions. Commands write the files where there is one, public classes the others.
`expected.json` says what is in them: what this script put in, or what this commit made of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

import hebe
from hebe.cli.terminal.server_process import ServerProcess
from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.embeddings.updates.contract import Topic
from hebe.embeddings.updates.directory.log import LogDirectory, LogDirectoryOptions
from hebe.embeddings.updates.producer import BatchingOptions
from hebe.machine.pinning import available_cores
from hebe.models.repository.initial_model import write_initial_model
from hebe.models.repository.repository import ModelRepository
from hebe.profiling.evaluator import ScalabilityPoint
from hebe.profiling.files.journal import open_journal
from hebe.profiling.files.server_profile import read_server_profile
from hebe.report.figures import Figure, FigureFile
from hebe.report.measured_on import current_commit
from hebe.runtime.loaded_model import LoadOptions
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling, SlaTarget
from hebe_lab.baselines.gain_by_cause import GainByCause
from hebe_lab.saved_parts import KeptParts
from hebe_lab.studies.hercules.server import Measured

SEED = 7
ITEMS = 4
"""Of the query that every model is asked."""
TABLE_ROWS, DIM = 300, 8
"""Of the served model's two tables."""
WAIT_S = 120.0

_NCF = ("gmf_user", "mlp_user", "gmf_item", "mlp_item")
_NETWORK = '''"""A module to import: a bag, a padded sequence, and numbers."""

import torch
from torch import nn


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.user = nn.EmbeddingBag(20, 4, mode="mean")
        self.item = nn.Embedding(30, 4, padding_idx=0)
        self.top = nn.Sequential(nn.Linear(3 + 4 + 8, 6), nn.ReLU(), nn.Linear(6, 1), nn.Sigmoid())

    def forward(self, numbers, user, item):
        return self.top(torch.cat([numbers, self.user(user), self.item(item).flatten(1)], 1))


def make():
    return Network(), (torch.rand(3, 3), torch.randint(0, 20, (3, 5)), torch.randint(0, 30, (3, 2)))
'''
_TIERS = """\
[cache]
cache_fraction = 0.2

[persistent_db]
type = "rocks_db"
path = "stores"

[update_source]
type = "log_directory"
address = "updates"
poll_timeout_ms = 20
interval_s = 0.05
"""
_PROFILE_TIERS = """\
[cache]
cache_fraction = 0.5
refresh_interval = 0.0

[cache.default_value_for_each_table]
users = 0.5

[volatile_db]
type = "parallel_hash_map"
num_partitions = 2
overflow_policy = "evict_oldest"
"""
"""A profile keeps a checksum of the tiers that its model was read through."""
_HPS = {
    "supportlonglong": True,
    "models": [
        {
            "model": "wdl",
            "sparse_files": ["wdl0_sparse.model", "wdl1_sparse.model"],
            "max_batch_size": 64,
            "default_value_for_each_table": [0.0, 0.5],
            "maxnum_des_feature_per_sample": 26,
            "maxnum_catfeature_query_per_table_per_sample": [2, 26],
            "embedding_vecsize_per_table": [1, 3],
            "embedding_table_names": ["table1", "table2"],
            "deployed_device_list": [0],
            "gpucacheper": 0.5,
            "gpucache": True,
        }
    ],
    "volatile_db": {"type": "parallel_hash_map", "num_partitions": 2},
    "persistent_db": {"type": "rocks_db", "path": "stores", "num_threads": 2},
}
_SERVICE_MS = {"gpu": (4.0, 0.02), "cpu": (1.0, 0.12), "small": (2.0, 0.2)}
"""Of the servers to plan with: fixed milliseconds, and those for each item."""
_EFFICIENCY = """\
model,server_type,qps,power_watts,estimated,configuration.workers,configuration.fused
ranker,cpu,100,100,false,1,true
ranker,gpu,150,250,true,,
filter,cpu,120,100,,1,
filter,gpu,200,260,,,
"""
_FLEET = "server_type,available,price_per_hour\ncpu,40,1.0\ngpu,5,3.5\n"
_LOADS = "time_s,ranker,filter\n0,500,900\n600,1100.5,800\n1200,300,0\n"
_SCALABILITY = """\
model,workers,cache_ways,qps,bandwidth_bytes_per_s,memory_bytes,estimated
filter,1,1,500,,,false
filter,1,2,1000,1e7,1e8,false
filter,2,2,2000,2e7,2e8,false
ranker,1,1,9,,,false
ranker,1,2,10,2e8,1e8,false
ranker,2,2,11,4e8,2e8,false
"""
_SHARED_SERVER = "cores,cache_ways,bandwidth_bytes_per_s,memory_bytes\n2,2,1e9,4e9\n"
_SHARED_DEMAND = "model,qps\nfilter,4000\nranker,60\n"

Rows = npt.NDArray[np.float32]
Keys = npt.NDArray[np.int64]


def main() -> None:
    """Write everything into the folder that the command line names, which must not be there."""
    if len(sys.argv) != 2 or Path(sys.argv[1]).exists():
        sys.exit("usage: python scripts/record_files.py FOLDER, which is not there yet")
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True)
    os.environ["PYTHONPATH"] = str(Path(hebe.__file__).resolve().parents[1])
    expected: dict[str, Any] = {"commit": current_commit()}
    parts: dict[str, Callable[[Path], dict[str, Any]]] = {
        "models": record_models,
        "serving": record_serving,
        "profiles": record_profile,
        "plans": record_plans,
        "estimates": record_estimates,
        "hps": record_hps,
        "studies": record_studies,
    }
    for name, record in parts.items():
        print(f"{name} ...", flush=True)
        (folder / name).mkdir()
        expected[name] = record(folder / name)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(sums))
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    print(f"{len(files)} files, {sum(path.stat().st_size for path in files):,} bytes in {folder}")


def record_models(place: Path) -> dict[str, Any]:
    """A repository: a model of each architecture, a model of two versions, and a module that was imported."""
    for spec in _specs():
        write_initial_model(ModelRepository(place), spec, SEED, "scripts/record_files.py")
    write_initial_model(ModelRepository(place), _specs()[0], SEED + 1, "scripts/record_files.py")
    source = place.parent / "network.py"
    source.write_text(_NETWORK)
    as_of = "2026-05-04T03:02:01+00:00"
    _hebe(
        place.parent, "model", "import", "--factory", "network.py:make", "--name", "imported", "--repository", place,
        "--rows-as-of", as_of.replace("+00:00", "+0000"), "--sla-ms", "40",
    )  # fmt: skip
    source.unlink()
    shutil.rmtree(place.parent / "__pycache__", ignore_errors=True)
    expected: dict[str, Any] = {}
    for name in ModelRepository(place).names():
        for version in ModelRepository(place).versions(name):
            expected[f"{name}/{version}"] = _asked(place, name, version)
    return expected


def record_serving(place: Path) -> dict[str, Any]:
    """What a server that takes online updates leaves: a store with positions, level 1's keys, a log and a group."""
    (place / "tiers.toml").write_text(_TIERS)
    spec = _served()
    stored = write_initial_model(ModelRepository(place / "models"), spec, SEED, "scripts/record_files.py")
    rows = {table.name: dict(enumerate(np.array(stored.table(table.name)))) for table in spec.tables}
    sent: list[dict[str, Any]] = []
    rng = np.random.default_rng(SEED)
    log = LogDirectory(place / "updates", LogDirectoryOptions(partitions=2, segment_bytes=1024))

    def send(table: str, keys: Keys, deletes: bool = False, applied: bool = True) -> None:
        drawn = None if deletes else rng.standard_normal((len(keys), DIM)).astype(np.float32)
        with log.producer(BatchingOptions(max_rows=8, linger_s=0.01)) as producer:
            if drawn is None:
                producer.delete(spec.name, table, keys)
            else:
                producer.send(spec.name, table, keys, drawn)
        sent.append(_update(table, keys, drawn))
        if applied:
            _apply(rows[table], keys, drawn)

    send("users", np.arange(10, 70, dtype=np.int64))
    send("ads", np.array([0, 5, 299, 1 << 40, 7_000_000_001], np.int64))
    log_options = ["--http-port", "0", "--hierarchy", "tiers.toml", "--workers", "1"]
    here = Path.cwd()
    os.chdir(place)  # the server's files are named from there on
    try:
        with ServerProcess(Path("models"), place / "server.log", log_options[2:]) as server:
            _wait(lambda: _all_applied(log), "the updates that were there are applied")
            pushed = rng.standard_normal((6, DIM)).astype(np.float32)
            keys = np.array([3, 4, 10, 11, 250, 5_000_000_000], np.int64)
            np.savez(place / "rows.npz", keys=keys, rows=pushed)
            _hebe(place, "update", "push", "updates", spec.name, "users", "rows.npz")
            sent.append(_update("users", keys, pushed))
            _apply(rows["users"], keys, pushed)
            np.savez(place / "rows.npz", keys=np.array([4, 200], np.int64))
            _hebe(place, "update", "push", "updates", spec.name, "users", "rows.npz", "--delete")
            sent.append(_update("users", np.array([4, 200], np.int64), None))
            _apply(rows["users"], np.array([4, 200], np.int64), None)
            _wait(lambda: _all_applied(log), "the updates that were pushed are applied")
            for user in (250, 10, 299, 11):  # the keys that level 1 used last
                _infer(server.http_url, spec, user)
    finally:
        os.chdir(here)
    (place / "rows.npz").unlink()
    (place / "server.log").unlink()
    send("users", np.array([1, 2, 3], np.int64), applied=False)  # of which the reader is behind
    [reader] = log.readers()
    lag = {f"{at.table}/{at.partition}": behind for at, behind in log.reader_lag(reader).items()}
    ends = {f"{at.table}/{at.partition}": log.next_offset(at) for at in log.reader_lag(reader)}
    identity, partitions = log.identity(), log.partitions
    log.close()
    store = place / "stores" / spec.name / "1"
    shown = json.loads(_hebe(place, "store", "show", store.relative_to(place), "--json"))
    for diary in (store / "rows").glob("LOG*"):  # RocksDB's own, for people: it names this machine
        diary.unlink()
    return {
        "model": spec.name,
        "rows": {
            table: {str(key): row.tolist() for key, row in sorted(held.items())} for table, held in rows.items()
        },
        "identity": shown["identity"],
        "positions": shown["positions"],
        "update_member": (store / "update_member").read_text(),
        "cache_keys": {
            table: keys.tolist() for table, keys in load_file(store / "cache_keys.safetensors").items()
        },
        "log": {"identity": identity, "partitions": partitions, "ends": ends, "updates": sent},
        "reader": reader,
        "lag": lag,
        "reported": json.loads((place / "updates" / "readers" / f"{reader}.json").read_text())["offsets"],
    }  # fmt: skip


def record_profile(place: Path) -> dict[str, Any]:
    """A profile of the served model with its journal, and the plan that follows from it."""
    (place / "tiers.toml").write_text(_PROFILE_TIERS)
    cores = ",".join(map(str, available_cores()[:2]))
    command = [
        "profile", "../serving/models", "--model", "served", "--quick", "--cores", cores, "--batch-sizes", "8,16",
        "--sizes", "fixed:8", "--sla-ms", "500", "--journal", "journal", "--output",
    ]  # fmt: skip
    _hebe(place, *command, "served.json")
    journal = (place / "journal" / "evaluations.jsonl").read_text()
    _hebe(place, *command, "again.json")
    if (place / "journal" / "evaluations.jsonl").read_text() != journal:
        sys.exit("the same command was not answered by the journal alone")
    _record_point(place)
    journal = (place / "journal" / "evaluations.jsonl").read_text()
    profile = json.loads((place / "served.json").read_text())
    prices = f"server_type,price_per_hour\n{profile['server']['name']},0.5\n"
    (place / "prices.csv").write_text(prices)
    command = [
        "plan", "pool", "served.json", "--prices", "prices.csv", "--budget", "2", "--sla-ms", "500", "--sizes",
        "fixed:8", "--no-simulate", "--plan", "plan.toml", "--json",
    ]  # fmt: skip
    plan = json.loads(_hebe(place, *command))
    for name in ("served.svg", "again.svg", "again.json", "plan.toml", "plan.html"):  # nobody reads them
        (place / name).unlink()
    return {
        "profile": profile,
        "journal": [json.loads(line) for line in journal.splitlines()],
        "plan": plan,
        "loaded": LoadOptions().words(),
        "loaded_with_tiers": LoadOptions(hierarchy=HierarchyConfig.from_toml(place / "tiers.toml")).words(),
    }


def _record_point(place: Path) -> None:
    """A point of the scalability profile with one cache way, which the command measures where ways can be set aside."""
    profile = read_server_profile(place / "served.json")
    with open_journal(place / "journal", profile.subject) as journal:
        journal.scaling(lambda _configuration, _ways: ScalabilityPoint(640.0, 2.5e6, True, 12.5))(
            profile.configuration, 1
        )


def record_plans(place: Path) -> dict[str, Any]:
    """A plan of each kind, what it was made from, and what it does in virtual time."""
    (place / "times.csv").write_text(_times(("ranker", "filter"), ("gpu", "cpu")))
    (place / "pool_times.csv").write_text(_times(("m",), tuple(_SERVICE_MS)))
    (place / "prices.csv").write_text("server_type,price_per_hour\ngpu,0.5\ncpu,0.1\nsmall,0.05\n")
    (place / "efficiency.csv").write_text(_EFFICIENCY)
    (place / "servers.csv").write_text(_FLEET)
    (place / "loads.csv").write_text(_LOADS)
    (place / "scalability.csv").write_text(_SCALABILITY)
    (place / "shared_server.csv").write_text(_SHARED_SERVER)
    (place / "demand.csv").write_text(_SHARED_DEMAND)
    (place / "shared_times.csv").write_text(_flat_times({"filter": 0.7, "ranker": 60.0}))
    made = {
        "pool.toml": [
            "pool", "pool_times.csv", "--prices", "prices.csv", "--budget", "1.2", "--sizes",
            "quantiles:5,10,20,40,100", "--sla-ms", "12", "--percentile", "95", "--queries", "300", "--seeds", "2",
        ],
        "day.toml": ["provision", "efficiency.csv", "servers.csv", "loads.csv"],
        "shared.toml": ["colocate", "scalability.csv", "shared_server.csv", "demand.csv"],
    }  # fmt: skip
    simulated = {
        "pool.toml": ["--rate", "100", "--queries", "300", "--seeds", "1"],
        "day.toml": ["times.csv", "--sla-ms", "ranker=100,filter=50", "--sizes", "fixed:10", "--queries", "200"],
        "shared.toml": [
            "shared_times.csv", "--sla-ms", "filter=5,ranker=300", "--percentile", "95", "--sizes", "fixed:10",
            "--queries", "200", "--seeds", "1",
        ],
    }  # fmt: skip
    expected: dict[str, Any] = {}
    for plan, command in made.items():
        _hebe(place, "plan", *command, "--plan", plan)
        (place / plan).with_suffix(".html").unlink()
        options = simulated[plan]
        result = json.loads(_hebe(place, "simulate", *options, "--plan", plan, "--json"))
        expected[plan] = {
            "content": tomllib.loads((place / plan).read_text()),
            "options": options,
            "simulated": result,
        }
    return expected


def record_estimates(place: Path) -> dict[str, Any]:
    """The description of a server type, and the files that `hebe estimate` writes for the other commands."""
    (place / "server.toml").write_text(_hebe(place, "estimate", "--template"))
    _hebe(
        place, "estimate", "dlrm-rmc1", "din", "--server", "server.toml", "--scale", "0.001", "--out", ".",
    )  # fmt: skip
    return {path.name: tomllib.loads(path.read_text()) for path in sorted(place.glob("*.toml"))}


def record_hps(place: Path) -> dict[str, Any]:
    """HugeCTR's files, and what `hebe model import-hps` makes of them."""
    rng = np.random.default_rng(SEED)
    expected: dict[str, Any] = {}
    for number, dim in enumerate((1, 3)):
        directory = place / f"wdl{number}_sparse.model"
        directory.mkdir()
        keys = np.array([-5, 0, 7, 1 << 50, 11, 12, 13, 14], np.int64)
        rows = rng.standard_normal((len(keys), dim)).astype(np.float32)
        keys.tofile(directory / "key")
        rows.tofile(directory / "emb_vector")
        expected[f"table{number + 1}"] = _update(f"table{number + 1}", keys, rows)
    (place / "ps.json").write_text(json.dumps(_HPS, indent=1))
    _hebe(place, "model", "import-hps", "ps.json", "--out", "hebe.toml", "--persistent-dir", "stores", "--load")
    for diary in place.glob("stores/*/*/rows/LOG*"):
        diary.unlink()
    return {
        "folder": str(place),
        "tables": expected,
        "identity": json.loads(_hebe(place, "store", "show", "stores/wdl/1", "--json"))["identity"],
        "hierarchy": tomllib.loads((place / "hebe.toml").read_text()),
        "checksums": {
            name: files["checksum"]
            for name, files in json.loads((place / "stores/wdl/1.files.json").read_text()).items()
        },
    }


def record_studies(place: Path) -> dict[str, Any]:
    """A file of figures, and a part that a study has kept."""
    figures = (
        Figure("recorded.ratio", 0.93, "ratio", 0.91, 0.95, 3, ">= 0.90", 0.95, "in turns"),
        Figure("recorded.queries", 1250.0, "queries/s"),
    )
    file = FigureFile.here("recorded", "python scripts/record_files.py", 1.25, True, figures)
    file.write(place / "figures")
    gain = GainByCause(100.0, 1.2, 1.25, 1.0, 1.2)
    part = Measured(SlaTarget(20.0, 95.0), gain, "1 worker", "2 workers", (99.0, 101.0), (178.0, 182.0), 9, "calm")
    of = {"command": "hebe study recorded --quick", "commit": "0" * 40, "machine": {"processor": "any", "cores": 2}}
    KeptParts(place / "recorded.parts", of).part("dlrm-rmc1", lambda: part, Measured.from_dict)
    return {
        "figures": json.loads((place / "figures" / "recorded.json").read_text()),
        "of": of,
        "part": json.loads((place / "recorded.parts" / "dlrm-rmc1.json").read_text())["part"],
    }


def _specs() -> list[ModelSpec]:
    """A model of each architecture, as small as may be."""
    return [
        _plain("dlrm", {"bottom": (9, 8), "top": (6, 1)}, {"interaction": "dot"}),
        _plain("dlrm-dcnv2", {"bottom": (9, 6), "top": (6, 1)}, {"cross_layers": 2, "cross_rank": 3}),
        _plain("wide-and-deep", {"deep": (7, 4)}),
        _plain("multi-task-wide-and-deep", {"trunk": (7, 5), "task": (4,)}, outputs=2),
        _interest("din", {"attention": (6, 1), "top": (7, 2)}),
        _interest("dien", {"top": (7, 2)}, {"hidden": 5}),
        _interest("bst", {"top": (7, 1)}, {"heads": 2, "blocks": 1, "feed_forward": 9}),
        ModelSpec(
            "ncf",
            "ncf",
            tuple(EmbeddingTableSpec(name, 10, 4) for name in _NCF),
            tuple(FeatureSpec(name, name, 1, Pooling.SUM) for name in _NCF),
            towers={"mlp": (5, 3)},
        ),
    ]


def _plain(
    architecture: str,
    towers: Mapping[str, tuple[int, ...]],
    settings: Mapping[str, int | str] | None = None,
    outputs: int = 1,
) -> ModelSpec:
    return ModelSpec(
        architecture,
        architecture,
        (EmbeddingTableSpec("users", 12, 8), EmbeddingTableSpec("ads", 10, 8)),
        (FeatureSpec("user", "users", 1, Pooling.SUM), FeatureSpec("ad", "ads", 3, Pooling.MEAN)),
        4,
        towers,
        settings or {},
        outputs,
        SlaTarget(25.0, 99.0),
        source="scripts/record_files.py",
        notes="Small.",
    )


def _interest(
    architecture: str, towers: Mapping[str, tuple[int, ...]], settings: Mapping[str, int] | None = None
) -> ModelSpec:
    return ModelSpec(
        architecture,
        architecture,
        (EmbeddingTableSpec("user", 10, 4), EmbeddingTableSpec("item", 10, 6), EmbeddingTableSpec("category", 5, 2)),
        (
            FeatureSpec("category_history", "category", 3, Pooling.ATTENTION),
            FeatureSpec("user", "user", 1, Pooling.SUM),
            FeatureSpec("item", "item", 1, Pooling.SUM),
            FeatureSpec("item_history", "item", 3, Pooling.ATTENTION),
            FeatureSpec("category", "category", 1, Pooling.SUM),
        ),
        towers=towers,
        settings=settings or {},
    )


def _served() -> ModelSpec:
    """What is served and profiled; its features take new keys."""
    spec = ModelSpec(
        "served",
        "dlrm",
        (EmbeddingTableSpec("users", TABLE_ROWS, DIM), EmbeddingTableSpec("ads", TABLE_ROWS, DIM)),
        (FeatureSpec("user", "users", 1, Pooling.SUM), FeatureSpec("ad", "ads", 2, Pooling.SUM)),
        4,
        {"bottom": (8, DIM), "top": (8, 1)},
    )
    return spec.taking_new_keys()


def _asked(place: Path, name: str, version: int) -> dict[str, Any]:
    """A query, its scores, and what the repository says of a model."""
    stored = ModelRepository(place).open(name, version)
    rng = np.random.default_rng(SEED)
    features = {
        feature.name: rng.integers(0, stored.spec.table(feature.table).rows, (ITEMS, feature.lookups))
        for feature in stored.spec.features
    }
    dense = rng.random((ITEMS, stored.spec.dense_dim), dtype=np.float32) if stored.spec.dense_dim else None
    scores = hebe.load(place, name, version).predict(features, dense)
    return {
        "features": {feature: keys.tolist() for feature, keys in features.items()},
        "dense": None if dense is None else dense.tolist(),
        "scores": scores.tolist(),
        "identity": stored.identity,
        "tables_identity": stored.tables_identity,
        "imported": stored.imported,
        "rows_as_of_s": _rows_as_of_s(stored.path),
        "spec": stored.spec.to_dict(),
        "last_rows": {table.name: np.array(stored.table(table.name)[-1]).tolist() for table in stored.spec.tables},
    }


def _rows_as_of_s(version: Path) -> float:
    """What model.toml says."""
    text: str = tomllib.loads((version / "model.toml").read_text())["provenance"]["rows_as_of"]
    return datetime.fromisoformat(text).timestamp()


def _update(table: str, keys: Keys, rows: Rows | None) -> dict[str, Any]:
    return {"table": table, "keys": keys.tolist(), "rows": None if rows is None else rows.tolist()}


def _apply(held: dict[int, Rows], keys: Keys, rows: Rows | None) -> None:
    for at, key in enumerate(keys.tolist()):
        if rows is None:
            held.pop(key, None)
        else:
            held[key] = rows[at]


def _all_applied(log: LogDirectory) -> bool:
    """Whether a reader has all topics, and all of their messages."""
    readers = log.readers()
    lag = log.reader_lag(readers[0]) if readers else {}
    return {at.topic for at in lag} == {Topic("served", "users"), Topic("served", "ads")} and not any(lag.values())


def _infer(url: str, spec: ModelSpec, user: int) -> None:
    """Ask the server for one item."""
    inputs: list[dict[str, Any]] = [
        {"name": "user", "datatype": "INT64", "shape": [1, 1], "data": [user]},
        {"name": "ad", "datatype": "INT64", "shape": [1, 2], "data": [5, 299]},
        {"name": "dense", "datatype": "FP32", "shape": [1, 4], "data": [0.1, 0.2, 0.3, 0.4]},
    ]
    request = urllib.request.Request(
        f"{url}/v2/models/{spec.name}/infer",
        json.dumps({"inputs": inputs}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        answer.read()


def _wait(until: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + WAIT_S
    while not until():
        if time.monotonic() > end_s:
            sys.exit(f"not after {WAIT_S:g} s: {what}")
        time.sleep(0.05)


def _times(models: tuple[str, ...], types: tuple[str, ...]) -> str:
    """Samples of service times, the first of which is slow."""
    rng = np.random.default_rng(SEED)
    lines = ["model,server_type,items," + ",".join(f"ms_{at}" for at in range(5))]
    for model in models:
        for kind in types:
            fixed, per_item = _SERVICE_MS[kind]
            for items in (1, 10, 50, 100):
                drawn = (fixed + per_item * items) * rng.uniform(0.95, 1.05, 5)
                drawn[0] *= 5
                lines.append(f"{model},{kind},{items}," + ",".join(f"{value:.4f}" for value in drawn))
    return "\n".join(lines) + "\n"


def _flat_times(typical_ms: Mapping[str, float]) -> str:
    lines = ["model,server_type,items," + ",".join(f"ms_{at}" for at in range(5))]
    for model, ms in typical_ms.items():
        for items in (1, 100):
            drawn = [ms * factor for factor in (2, 0.97, 0.99, 1.01, 1.03)]
            lines.append(f"{model},cpu,{items}," + ",".join(f"{value:.4f}" for value in drawn))
    return "\n".join(lines) + "\n"


def _hebe(folder: Path, *arguments: object) -> str:
    """Run the command in `folder`; what it prints, of which `--json` makes the last line JSON. Ends all if it fails."""
    command = [sys.executable, "-m", "hebe", *map(str, arguments)]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"{' '.join(command)} in {folder}: exit code {ended.returncode}\n{ended.stderr}")
    return ended.stdout


if __name__ == "__main__":
    main()
