import shutil
import subprocess

import numpy as np
import pytest
import torch

from hebe_lab.bench.embeddings import sparse as gather_limit
from hebe_lab.bench.embeddings.sparse import DIM, gather_candidates

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
