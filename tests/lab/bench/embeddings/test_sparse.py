import shutil
import subprocess

import numpy as np
import pytest
import torch
from rich.progress import Progress

from hebe_lab.bench.embeddings import sparse
from hebe_lab.bench.embeddings import sparse as gather_limit
from hebe_lab.bench.embeddings.sparse import DIM, gather_candidates


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    monkeypatch.setattr(sparse, "_QUICK", sparse._Effort(runs=3, batches=2, pooled_rows=1 << 17, onehot_rows=500))


def test_measures_what_it_promises():
    with Progress(disable=True) as progress:
        figures = {figure.name: figure for figure in sparse.run(True, progress)}
    assert {name for name, figure in figures.items() if figure.target} == {
        "sparse.over_torch.pooled80",
        "sparse.over_torch.onehot26",
        "sparse.share_of_gather_limit",
    }
    assert all(figure.value > 0 and figure.runs == 3 for figure in figures.values())
    assert "0.0312 GiB, 64 items" in figures["sparse.over_torch.pooled80"].note


def test_a_table_that_does_not_fit_twice_is_halved(monkeypatch):
    monkeypatch.setattr(sparse, "available_bytes", lambda: 50 << 20)
    with Progress(disable=True) as progress:
        note = sparse.run(True, progress)[0].note
    assert "0.0156 GiB" in note
    assert "(0.0312 GiB do not fit twice)" in note


def test_a_wrong_competitor_is_noticed(monkeypatch):
    monkeypatch.setattr(sparse, "_torch_lookup", lambda *_: torch.zeros(64, 64))
    with Progress(disable=True) as progress, pytest.raises(RuntimeError, match="the lookup and torch disagree"):
        sparse.run(True, progress)


TORCHS = "torch embedding_bag on the same memory"


def test_every_candidate_sums_the_same_rows():
    chance = np.random.default_rng(0)
    table = chance.integers(-9, 9, (100, DIM)).astype(np.float32)
    keys = chance.integers(0, 100, (7, 5))
    candidates = gather_candidates(table, 7, 5)
    expected = table[keys].sum(1)
    for name, gather in candidates.items():
        np.testing.assert_array_equal(np.asarray(gather(keys)), expected, err_msg=name)
    if gather_limit._compile() is not None:
        assert [*candidates] == [TORCHS, "C++ loop", "C++ loop with prefetch"]


@pytest.mark.parametrize("lacks", ["a compiler", "one that works"])
def test_without_a_compiler_torch_is_the_limit(monkeypatch, lacks):
    if lacks == "a compiler":
        monkeypatch.setattr(shutil, "which", lambda _: None)
    else:
        monkeypatch.setattr(shutil, "which", lambda _: "/bin/false")
        monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1))
    candidates = gather_candidates(np.ones((10, DIM), np.float32), 2, 3)
    assert [*candidates] == [TORCHS]
    assert torch.equal(candidates[TORCHS](np.zeros((2, 3), np.int64)), torch.full((2, DIM), 3.0))
