import subprocess
import sys
from statistics import median

import pytest

from hebe.cli.terminal.server_process import ServerProcess
from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.models.architectures.build import build_dense_net
from hebe.models.catalog import entry
from hebe.models.repository.memory_estimate import estimate_memory, making_bytes
from hebe.models.repository.repository import ModelRepository
from hebe.models.training.criteo_sample import generate_criteo
from hebe.models.training.training import needed_bytes
from tests.integration.serving.served import store

GROWTH = """
import sys
from pathlib import Path
from hebe.models.architectures.build import build_dense_net
from hebe.models.catalog import entry
from hebe.models.architectures.ranking_model import initial_rows
from hebe.models.repository.repository import ModelRepository
from hebe.models.training.training import train

def status_bytes(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))

name, scale, models, data = sys.argv[1:]
spec, repository = entry(name, scale=float(scale)), ModelRepository(models)
before = status_bytes("VmRSS:")
if data:
    train(spec, data, repository)
else:
    rows = {table.name: initial_rows(spec, table.name, 0) for table in spec.tables}
    repository.write(spec, rows, build_dense_net(spec).state_dict())
print(status_bytes("VmHWM:") - before)
"""
"""Prints by how much the process grows while it trains or makes a model."""


@pytest.mark.parametrize(
    ("name", "scale", "workers", "threads", "batch_size", "tiers"),
    [
        ("dlrm-rmc1", 0.1, 1, 2, 256, ""),  # all tables
        ("mlperf-dlrmv2", 0.001, 2, 1, 256, ""),  # a large DenseNet
        ("recos-bst", 0.01, 2, 2, 256, ""),  # large activations
        ("ncf", 0.1, 1, 1, 256, ""),
        ("mt-wnd", 0.05, 1, 2, 256, ""),  # one that is large beside its tables: copies of its weights would show
        ("dlrm-rmc2", 0.01, 1, 1, 1024, ""),  # large queries
        ("din", 0.1, 1, 1, 1024, ""),
        ("dien", 0.2, 1, 1, 256, ""),  # thousands of ops
        ("dlrm-rmc1", 0.01, 2, 2, 1024, "parallel_hash_map"),  # each thread has the rows of its batch
    ],
)
def test_the_estimate_is_within_a_tenth_of_what_a_server_takes(
    tmp_path, name, scale, workers, threads, batch_size, tiers
):
    spec = entry(name, scale=scale)
    store(tmp_path / "models", spec)
    stored = ModelRepository(tmp_path / "models").open(spec.name)
    options = ["--workers", str(workers), "--worker-threads", str(threads), "--batch-size", str(batch_size)]
    hierarchy = None
    if tiers:
        (tmp_path / "tiers.toml").write_text(f'[volatile_db]\ntype = "{tiers}"\n')
        hierarchy = HierarchyConfig.from_toml(tmp_path / "tiers.toml")
        options += ["--hierarchy", str(tmp_path / "tiers.toml")]
    estimate = estimate_memory(
        stored.spec, stored.dense_net(), workers, batch_size, worker_threads=threads, hierarchy=hierarchy
    )
    near = pytest.approx(estimate.total_bytes, rel=0.1)
    sizes = [started_bytes(tmp_path, options)]
    if sizes[0] != near:  # of a thread's heaps, of 64 MiB, one more or less is in use as it happens
        while len(sizes) < 5 and sum(size == near for size in sizes) < 3:  # with three so is the median of five
            sizes.append(started_bytes(tmp_path, options))
    assert median(sizes) == near, sizes


def started_bytes(root, options):
    """The resident size of a server that is ready."""
    with ServerProcess(root / "models", root / "log", options) as server:
        return server.resident_bytes


def growth_bytes(*arguments):
    ran = subprocess.run([sys.executable, "-c", GROWTH, *map(str, arguments)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return int(ran.stdout)


def test_training_and_making_take_what_their_estimates_say(tmp_path):
    data = tmp_path / "data.tsv"
    generate_criteo(data, 2_000)
    for name, scale, path, needed in (("recos-dlrm", 0.15, data, needed_bytes), ("mt-wnd", 0.05, "", making_bytes)):
        spec = entry(name, scale=scale)
        needed = needed(spec, build_dense_net(spec))
        assert 0.7 * needed < growth_bytes(name, scale, tmp_path / name, path) < 1.15 * needed
