"""What an accelerator holds is told by a trace of keys, or by the load."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

from hebe.profiling.accelerator_use import AcceleratorUse
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling

SPEC = ModelSpec(
    "ranker",
    "dlrm",
    tables=(EmbeddingTableSpec("things", 4, 4),),
    features=(FeatureSpec("thing", "things", 2, Pooling.SUM),),
    dense_dim=2,
    towers={"bottom": (4,), "top": (1,)},
)


def test_by_the_load():
    use = AcceleratorUse(100, "uniform")
    assert use.frequencies(SPEC)["things"] == pytest.approx(np.full(4, 0.5))
    assert use.accelerator(SPEC).memory_bytes == 100
    assert AcceleratorUse.from_dict(use.to_dict()) == use


def test_by_a_trace(tmp_path):
    save_file({"things": np.array([3, 3, 1], np.int64)}, tmp_path / "keys.safetensors")
    use = AcceleratorUse(100, "uniform", str(tmp_path / "keys.safetensors"))
    assert use.frequencies(SPEC)["things"].tolist() == [0, 1, 0, 2]
