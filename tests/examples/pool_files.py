"""Generated files for `hebe plan pool` and `hebe simulate`: a fast dear server type, a cheap one too slow for large
queries, and one in between."""

import contextlib
import io
import os
from pathlib import Path

import numpy as np
import pytest

import hebe
from hebe.cli.main import main

SERVICE_MS = {"gpu": (4.0, 0.02), "cpu": (1.0, 0.12), "small": (2.0, 0.2)}
"""Fixed milliseconds and those per item."""
PRICES = {"gpu": 0.5, "cpu": 0.1, "small": 0.05}
SIZES = (1, 10, 50, 100)
WORKLOAD = [
    "--sizes",
    "quantiles:5,10,20,40,100",
    "--sla-ms",
    "12",
    "--percentile",
    "95",
    "--queries",
    "300",
    "--seeds",
    "2",
]

FROM_HERE = {**os.environ, "PYTHONPATH": str(Path(hebe.__file__).parents[1])}
"""Environment of a process, in any folder, that is to import what this one imports."""

WITHOUT_TORCH = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "numba"):
            raise ImportError(f"{name} is not to be imported here")
sys.meta_path.insert(0, Refuse())
from hebe.cli.main import main
main(sys.argv[1:])
"""
"""Source of a process that runs a command and cannot import torch."""


def samples(model="m", types=SERVICE_MS, sizes=SIZES, count=5, seed=0):
    """Lines of a file of samples; a first call that is slow, and some spread."""
    rng = np.random.default_rng(seed)
    lines = ["model,server_type,items," + ",".join(f"ms_{at}" for at in range(count))]
    for name in types:
        fixed, per_item = SERVICE_MS[name]
        for size in sizes:
            drawn = (fixed + per_item * size) * rng.uniform(0.95, 1.05, count)
            drawn[0] *= 5
            lines.append(f"{model},{name},{size}," + ",".join(f"{value:.4f}" for value in drawn))
    return lines


def write(path: Path, lines) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def times_file(folder: Path, name="times.csv", **changes) -> Path:
    return write(folder / name, samples(**changes))


def prices_file(folder: Path, prices=PRICES, name="prices.csv") -> Path:
    return write(folder / name, ["server_type,price_per_hour", *(f"{kind},{price}" for kind, price in prices.items())])


def profiles_toml(folder: Path, types=SERVICE_MS, name="profiles.toml") -> Path:
    lines = []
    for kind in types:
        fixed, per_item = SERVICE_MS[kind]
        service_s = [(fixed + per_item * size) / 1e3 for size in SIZES]
        lines += ["[[profile]]", 'model = "m"', f'server_type = "{kind}"', f"batch_sizes = {list(SIZES)}",
                  f"service_s = {service_s}", f"spread_s = {[value / 50 for value in service_s]}"]  # fmt: skip
    return write(folder / name, lines)


def plan_pool(folder: Path, plan: Path, *options: str) -> tuple[str, str]:
    """Plan a pool from files made in `folder`, for a fixture that many tests share: what goes to stdout and stderr."""
    arguments = [times_file(folder), "--prices", prices_file(folder), "--budget", 1.2, *WORKLOAD, "--plan", plan]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as exit_:
        main(["plan", "pool", *map(str, arguments), *options])
    assert not exit_.value.code, err.getvalue()
    return out.getvalue(), err.getvalue()
