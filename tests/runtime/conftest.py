from __future__ import annotations

import numpy as np
import pytest
import torch

from hebe.machine.gpu import find_accelerator
from hebe.models.architectures.build import build_dense_net
from hebe.models.architectures.ranking_model import initial_rows
from hebe.models.catalog import entry
from hebe.models.repository.repository import ModelRepository
from hebe.query import JaggedKeys
from hebe.server_configuration import AcceleratorChoice

SMALL = {"peers-dlrm": 0.05, "din": 1e-6, "dlrm-rmc1": 1e-4, "wnd": 1e-4}
"""Catalog models at a scale at which each takes a moment."""


@pytest.fixture(scope="session")
def repository(tmp_path_factory):
    """A repository with one version of each of the small models."""
    root = tmp_path_factory.mktemp("repository")
    for name, scale in SMALL.items():
        spec = entry(name, scale=scale)
        tables = {table.name: initial_rows(spec, table.name, seed=3) for table in spec.tables}
        ModelRepository(root).write(spec, tables, build_dense_net(spec, seed=3).state_dict())
    return root


@pytest.fixture(params=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
def device(request):
    """Each accelerator of this machine."""
    return find_accelerator(AcceleratorChoice(request.param))


@pytest.fixture
def jagged_inputs():
    """Makes the keys and numbers of a query whose items have as many keys of each feature as they happen to have, and
    as many of all parts of a behaviour sequence.
    """

    def make(spec, items, rng):
        steps = rng.integers(1, max(feature.lookups for feature in spec.features) + 1, items)
        features = {}
        for feature in spec.features:
            lengths = steps if feature in spec.behaviours else rng.integers(1, feature.lookups + 1, items)
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            features[feature.name] = JaggedKeys(rng.integers(0, spec.table(feature.table).rows, offsets[-1]), offsets)
        return features, rng.random((items, spec.dense_dim), dtype=np.float32) if spec.dense_dim else None

    return make
