"""A model with rows and weights drawn from a seed, stored: for load tests, benchmarks and studies."""

from __future__ import annotations

from hebe.models.architectures.build import build_dense_net
from hebe.models.architectures.ranking_model import initial_rows
from hebe.models.repository.memory_estimate import check_memory, making_bytes
from hebe.models.repository.repository import ModelRepository, StoredModel, WriteProgress
from hebe.spec import ModelSpec


def write_initial_model(
    repository: ModelRepository,
    spec: ModelSpec,
    seed: int,
    made_by: str,
    progress: WriteProgress | None = None,
) -> StoredModel:
    """Draw a model from `seed` alone and write it as the next version, with `made_by` and seed as its provenance.

    Raises as `check_memory`, before anything is drawn, and `ModelRepository.write`.
    """
    dense_net = build_dense_net(spec, seed)
    check_memory(f"making {spec.name}", making_bytes(spec, dense_net), "free some")
    rows = {table.name: initial_rows(spec, table.name, seed) for table in spec.tables}
    provenance = {"made_by": made_by, "seed": seed}
    return repository.write(spec, rows, dense_net.state_dict(), provenance=provenance, progress=progress)
