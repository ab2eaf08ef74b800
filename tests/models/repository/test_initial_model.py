from __future__ import annotations

import numpy as np
import pytest
import torch

from hebe.models.catalog import entry
from hebe.models.repository import initial_model
from hebe.models.repository.initial_model import write_initial_model
from hebe.models.repository.repository import ModelRepository

SPEC = entry("ncf", scale=1e-4)


def test_a_seed_says_all(tmp_path):
    repository = ModelRepository(tmp_path)
    first, second, other = (write_initial_model(repository, SPEC, seed, "a test") for seed in (3, 3, 4))
    assert [each.version for each in (first, second, other)] == [1, 2, 3]
    assert (other.provenance["made_by"], other.provenance["seed"]) == ("a test", 4)
    table = SPEC.tables[0].name
    assert np.array_equal(first.table(table), second.table(table))
    assert not np.array_equal(first.table(table), other.table(table))
    for name, weights in first.dense_state().items():
        assert torch.equal(weights, second.dense_state()[name])


def test_what_does_not_fit_into_memory_is_not_begun(tmp_path, monkeypatch):
    def refuse(*_):
        raise ValueError("making ncf needs more than there is")

    monkeypatch.setattr(initial_model, "check_memory", refuse)
    with pytest.raises(ValueError, match="more than there is"):
        write_initial_model(ModelRepository(tmp_path), SPEC, 0, "a test")
    assert list(tmp_path.iterdir()) == []
