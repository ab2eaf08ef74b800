import pytest

from hebe.bench.server_process import ServerProcess
from hebe.models.catalog import entry
from hebe.models.memory_estimate import estimate_memory
from hebe.models.repository import ModelRepository

from .served import store


@pytest.mark.parametrize(
    ("name", "scale", "workers"),
    [
        ("dlrm-rmc1", 0.1, 1),  # all tables
        ("mlperf-dlrmv2", 0.001, 2),  # a large DenseNet
        ("recos-bst", 0.01, 2),  # large activations
    ],
)
def test_the_estimate_is_within_a_tenth_of_what_a_server_takes(tmp_path, name, scale, workers):
    spec = entry(name, scale=scale)
    store(tmp_path / "models", spec)
    stored = ModelRepository(tmp_path / "models").open(spec.name)
    estimate = estimate_memory(stored.spec, stored.dense_net(), workers, batch_size=256)
    options = ["--workers", str(workers), "--batch-size", "256"]
    with ServerProcess(tmp_path / "models", tmp_path / "log", options) as server:
        measured = server.resident_bytes
    assert measured == pytest.approx(estimate.total_bytes, rel=0.1)
