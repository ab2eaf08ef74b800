"""Made-up data: the form, the seed, the skew, the share of missing fields."""

import numpy as np
import pytest

from hebe.models.training.criteo import CriteoFile
from hebe.models.training.criteo_sample import generate_criteo


def test_rows_are_of_criteos_form_and_skewed(tmp_path):
    path = tmp_path / "sample.tsv"
    generate_criteo(path, 12_000, seed=3)
    file = CriteoFile(path)
    assert file.count_rows() == 12_000
    (batch,) = file.batches(20_000)
    assert 0.22 < batch.labels.mean() < 0.28
    assert 0.02 < np.isnan(batch.integers).mean() < 0.4
    assert 0.0 < (batch.categories == b"").mean() < 0.4
    values, counts = np.unique(batch.categories[:, 2], return_counts=True)
    assert len(values) > 1000
    assert counts.max() > 20 * counts.mean()
    assert list(tmp_path.iterdir()) == [path]


def test_a_seed_gives_the_same_bytes_and_another_seed_others(tmp_path):
    for name, seed in (("a.tsv.gz", 1), ("b.tsv.gz", 1), ("c.tsv.gz", 2)):
        generate_criteo(tmp_path / name, 200, seed)
    assert (tmp_path / "a.tsv.gz").read_bytes() == (tmp_path / "b.tsv.gz").read_bytes()
    assert (tmp_path / "a.tsv.gz").read_bytes() != (tmp_path / "c.tsv.gz").read_bytes()
    assert CriteoFile(tmp_path / "a.tsv.gz").count_rows() == 200


def test_no_rows_is_an_error_and_no_partial_file_is_left(tmp_path):
    with pytest.raises(ValueError, match="rows is 0"):
        generate_criteo(tmp_path / "sample.tsv", 0)
    with pytest.raises(FileNotFoundError):
        generate_criteo(tmp_path / "nowhere" / "sample.tsv", 1)
    assert list(tmp_path.iterdir()) == []
