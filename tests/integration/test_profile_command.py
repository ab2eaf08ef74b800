"""`hebe profile` as a process of its own, on a small model: how it ends, and what it says on the way."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hebe.profiling.journal import FILE_NAME
from hebe.runtime.pinning import available_cores

from .served import PATIENCE_S, small_dlrm, store


@pytest.fixture
def models(tmp_path: Path) -> Path:
    store(tmp_path / "models", small_dlrm("ranker"))
    return tmp_path / "models"


def command(models: Path, *options: str) -> list[str]:
    """On one core, with two batch sizes and queries of one size."""
    core = str(available_cores()[0])
    return [
        sys.executable, "-m", "hebe", "profile", str(models), "--model", "ranker", "--quick", "--cores", core,
        "--batch-sizes", "8,16", "--sizes", "fixed:8", *options,
    ]  # fmt: skip


def test_an_sla_that_nothing_keeps_ends_with_the_best_one_reached(tmp_path: Path, models: Path):
    """With admission, as while serving: under the lightest load all queries are refused."""
    ended = subprocess.run(
        command(models, "--sla-ms", "0.001", "--json"),
        cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 3, ended.stderr
    told = json.loads(ended.stdout)
    assert told["closest"]["tail_latency_ms"] > 0.001
    said = " ".join(ended.stderr.split())
    assert (
        "No configuration keeps p95 within 0.001 ms. The best one reached, model-on-host, 1 worker of 1 core, " in said
    )
    assert "evaluation 2: model-on-host, 1 worker of 1 core, batches of " in said
    assert not (tmp_path / "profiles" / "ranker.json").exists()


def test_sigterm_ends_it_as_an_interrupt_does(tmp_path: Path, models: Path):
    with subprocess.Popen(
        command(models, "--strategy", "exhaustive", "--sla-ms", "500"),
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stderr is not None
            seen = []
            for line in process.stderr:
                seen.append(line)
                if line.startswith("evaluation 1: "):
                    break
            else:
                pytest.fail(f"it ended before its first evaluation: {seen}")
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 143, err
    lines = (tmp_path / "profiles" / "journal" / FILE_NAME).read_text().splitlines()
    said = f"Terminated. {len(lines)} evaluations are in profiles/journal: the same command goes on. Best so far: "
    assert " ".join(out.split()).startswith(said)
    assert "Traceback" not in err
