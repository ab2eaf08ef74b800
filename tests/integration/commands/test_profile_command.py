"""`hebe profile` as a process of its own, on a small model: how it ends, and what it says on the way."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hebe.machine.pinning import available_cores
from hebe.profiling.files.journal import FILE_NAME
from tests.integration.serving.served import PATIENCE_S, eventually, small_dlrm, store
from tests.integration.tiers.forked_hebe import ForkedHebe


@pytest.fixture
def models(tmp_path: Path) -> Path:
    store(tmp_path / "models", small_dlrm("ranker"))
    return tmp_path / "models"


@pytest.fixture
def profile(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ForkedHebe]]:
    """`hebe profile` with these options in `tmp_path`, on one core, with two batch sizes and queries of one size."""
    monkeypatch.chdir(tmp_path)
    core = str(available_cores()[0])
    running: list[ForkedHebe] = []

    def start(*options: str) -> ForkedHebe:
        arguments = [
            "profile", str(models), "--model", "ranker", "--quick", "--cores", core, "--batch-sizes", "8,16",
            "--sizes", "fixed:8", *options,
        ]  # fmt: skip
        running.append(ForkedHebe(arguments, tmp_path / "stdout", tmp_path / "stderr"))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()
        process.close()


def test_an_sla_that_nothing_keeps_ends_with_the_best_one_reached(tmp_path: Path, profile: Callable[..., ForkedHebe]):
    """With admission, as while serving: under the lightest load all queries are refused."""
    ended = profile("--sla-ms", "0.001", "--json").wait(PATIENCE_S)
    stderr = (tmp_path / "stderr").read_text()
    assert ended == 3, stderr
    told = json.loads((tmp_path / "stdout").read_text())
    assert told["closest"]["tail_latency_ms"] > 0.001
    said = " ".join(stderr.split())
    assert (
        "No configuration keeps p95 within 0.001 ms. The best one reached, model-on-host, 1 worker of 1 core, " in said
    )
    assert "evaluation 2: model-on-host, 1 worker of 1 core, batches of " in said
    assert not (tmp_path / "profiles" / "ranker.json").exists()


def test_sigterm_ends_it_as_an_interrupt_does(tmp_path: Path, profile: Callable[..., ForkedHebe]):
    process = profile("--strategy", "exhaustive", "--sla-ms", "500")

    def evaluated() -> bool:
        said = (tmp_path / "stderr").read_text() if (tmp_path / "stderr").exists() else ""
        assert process.poll() is None, f"it ended before its first evaluation: {said}"
        return "\nevaluation 1: " in f"\n{said}"

    eventually(evaluated, "it has evaluated one")
    os.kill(process.pid, signal.SIGTERM)
    ended, err = process.wait(PATIENCE_S), (tmp_path / "stderr").read_text()
    assert ended == 143, err
    lines = (tmp_path / "profiles" / "journal" / FILE_NAME).read_text().splitlines()
    measurements = "1 measurement is" if len(lines) == 1 else f"{len(lines)} measurements are"
    said = f"Terminated. {measurements} in profiles/journal: the same command goes on. Best so far: "
    assert " ".join((tmp_path / "stdout").read_text().split()).startswith(said)
    assert "Traceback" not in err
