from __future__ import annotations

import pytest

from hebe.models.architectures import build_dense_net
from hebe.models.catalog import entry
from hebe.models.ranking_model import initial_rows
from hebe.models.repository import ModelRepository

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
