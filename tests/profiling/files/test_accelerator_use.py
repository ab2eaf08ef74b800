"""What an accelerator holds is told by a trace of keys, or by the load."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

from hebe.embeddings.memory.table_memory import RowFormat
from hebe.profile import ProfileError
from hebe.profiling.error import ProfilingError
from hebe.profiling.files.accelerator_use import AcceleratorUse, HotShare
from hebe.runtime.loaded_model import LoadOptions
from hebe.spec import EmbeddingTableSpec, FeatureSpec, ModelSpec, Pooling
from hebe.workload.key_frequencies import key_frequencies
from hebe.workload.key_skew import ZipfKeys

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


HUNDRED = replace(SPEC, tables=(EmbeddingTableSpec("things", 100, 4),))


@pytest.mark.parametrize(
    ("memory_bytes", "keys", "row_format", "share", "is_hotter"),
    [
        (160, "uniform", RowFormat.FP32, HotShare(0.1, 0.1), False),
        (160, "zipf:1", RowFormat.FP32, HotShare(0.1, 0.5646), True),
        (160, "zipf:1", RowFormat.INT8, HotShare(0.2, 0.6935), True),
        (1520, "uniform", RowFormat.FP32, HotShare(0.95, 0.95), False),
        (1600, "uniform", RowFormat.FP32, HotShare(1.0, 1.0), True),
        (1, "zipf:1", RowFormat.FP32, HotShare(0.0, 0.0), False),
    ],
)
def test_the_share_of_hot_rows(memory_bytes, keys, row_format, share, is_hotter):
    told = AcceleratorUse(memory_bytes, keys).hot_share(HUNDRED, LoadOptions(row_format=row_format))
    assert (told.bytes, told.lookups) == pytest.approx((share.bytes, share.lookups), abs=1e-4)
    assert told.is_hotter == is_hotter


def test_rows_that_a_trace_chose_have_the_share_that_the_load_gives_them(tmp_path):
    path = tmp_path / "keys.safetensors"
    use = AcceleratorUse(160, "zipf:1", str(path))
    shares = key_frequencies(HUNDRED, ZipfKeys(1.0))["things"] / 2
    for rows, lookups in ((np.argsort(-shares)[:10], 0.5646), (np.argsort(shares)[:10], 0.0202)):
        save_file({"things": np.ascontiguousarray(rows)}, path)
        told = use.hot_share(HUNDRED, LoadOptions())
        assert (told.bytes, told.lookups) == pytest.approx((0.1, lookups), abs=1e-4)
        assert told.is_hotter == (lookups > 0.1)


def test_a_file_that_was_rewritten_is_told_from_what_it_was(tmp_path):
    path = tmp_path / "keys.safetensors"
    save_file({"things": np.array([3, 3, 1], np.int64)}, path)
    use = AcceleratorUse.now(100, "uniform", str(path))
    assert AcceleratorUse.from_dict(use.to_dict()) == use
    assert use.words == f"100 bytes of hot rows by {path} ({use.checksum})"
    use.check_unchanged()
    save_file({"things": np.array([3, 3, 2], np.int64)}, path)
    assert AcceleratorUse.now(100, "uniform", str(path)).checksum != use.checksum
    with pytest.raises(ValueError, match=r"keys.safetensors has changed since it was profiled"):
        use.check_unchanged()
    path.unlink()
    with pytest.raises(ProfilingError, match="cannot be read"):
        use.check_unchanged()


def test_a_reuse_profile_of_a_file_has_a_checksum_too(tmp_path):
    path = tmp_path / "reuse.csv"
    path.write_text("one")
    use = AcceleratorUse.now(100, f"reuse:{path}")
    assert use.checksum is not None
    path.write_text("another")
    with pytest.raises(ValueError, match=r"reuse.csv has changed"):
        use.check_unchanged()
    assert AcceleratorUse.now(100, "zipf:1.1").checksum is None


def test_what_an_older_version_wrote_has_no_checksum(tmp_path):
    older = {"memory_bytes": 100, "keys": "uniform", "key_trace": str(tmp_path / "gone")}
    AcceleratorUse.from_dict(older).check_unchanged()
    with pytest.raises(ProfileError, match=r"accelerator: gpu is 'a.+b': must be one line of text"):
        AcceleratorUse(100, "uniform", gpu="a\nb")
    assert AcceleratorUse(100, "uniform", gpu="GPU X").words == "100 bytes of hot rows on GPU X by these keys"
    with pytest.raises(ProfileError, match="accelerator: checksum is 3: must be text, or null"):
        AcceleratorUse.from_dict(older | {"checksum": 3})
