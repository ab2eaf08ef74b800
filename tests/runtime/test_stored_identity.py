"""The identity of a stored version changes with its spec and its files, and with nothing else."""

from __future__ import annotations

import dataclasses

import pytest

from hebe.models.architectures import build_dense_net
from hebe.models.catalog import entry
from hebe.models.ranking_model import initial_rows
from hebe.models.repository import ModelRepository, RepositoryError
from hebe.runtime.stored_identity import stored_identity
from hebe.spec import SlaTarget

SPEC = entry("wnd", scale=1e-4)


def write(root, spec=SPEC, *, rows_seed=1, weights_seed=1):
    tables = {table.name: initial_rows(spec, table.name, rows_seed) for table in spec.tables}
    return ModelRepository(root).write(spec, tables, build_dense_net(spec, weights_seed).state_dict()).version


def test_it_tells_versions_apart_by_their_content(tmp_path):
    same = write(tmp_path), write(tmp_path)
    others = (
        write(tmp_path, rows_seed=2),
        write(tmp_path, weights_seed=2),
        write(tmp_path, dataclasses.replace(SPEC, sla=SlaTarget(123.0))),
    )
    identities = [stored_identity(tmp_path, SPEC.name, version) for version in (*same, *others)]
    assert identities[0] == identities[1]
    assert len(set(identities)) == 4


def test_a_version_that_there_is_not(tmp_path):
    write(tmp_path)
    with pytest.raises(RepositoryError, match="version 2"):
        stored_identity(tmp_path, SPEC.name, 2)
