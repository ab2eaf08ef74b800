"""The example of docs/planning.md for models that share servers, and service times that its throughputs can be of."""

from pathlib import Path

import pytest

from hebe.cli.main import main

from .pool_files import write

SCALABILITY = [
    "model,workers,cache_ways,qps,bandwidth_bytes_per_s,memory_bytes,estimated",
    "filter,1,1,500,,,false",
    "filter,1,2,1000,1e7,1e8,false",
    "filter,2,2,2000,2e7,2e8,false",
    "ranker,1,1,9,,,false",
    "ranker,1,2,10,2e8,1e8,false",
    "ranker,2,2,11,4e8,2e8,false",
]
SERVER = ["cores,cache_ways,bandwidth_bytes_per_s,memory_bytes", "2,2,1e9,4e9"]
DEMAND = ["model,qps", "filter,4000", "ranker,60"]

SERVICE_MS = {"filter": 0.7, "ranker": 60.0}
"""Of any query: at p95 within 5 ms and 300 ms, one worker then does about 1,000 and 10 queries/s."""
TARGETS = ["--sla-ms", "filter=5,ranker=300", "--percentile", "95", "--sizes", "fixed:10"]


def times_file(folder: Path, service_ms=SERVICE_MS, types=("cpu",), name="times.csv") -> Path:
    lines = ["model,server_type,items," + ",".join(f"ms_{at}" for at in range(5))]
    for model, typical_ms in service_ms.items():
        for kind in types:
            for items in (1, 100):
                drawn = [typical_ms * factor for factor in (2, 0.97, 0.99, 1.01, 1.03)]
                lines.append(f"{model},{kind},{items}," + ",".join(f"{value:.4f}" for value in drawn))
    return write(folder / name, lines)


def plan_file(folder: Path, name="shared.toml") -> Path:
    """What `hebe plan colocate` makes of the example."""
    files = [
        write(folder / "scalability.csv", SCALABILITY),
        write(folder / "server.csv", SERVER),
        write(folder / "demand.csv", DEMAND),
    ]
    with pytest.raises(SystemExit) as exit_:
        main(["plan", "colocate", *map(str, [*files, "--plan", folder / name])])
    assert not exit_.value.code
    return folder / name
