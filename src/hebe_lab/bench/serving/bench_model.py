"""Models that benchmarks measure, made from the catalog once and kept under out/."""

from __future__ import annotations

from pathlib import Path

from rich.progress import Progress

BENCH_MODELS = Path("out/bench/models")


def bench_repository(name: str, size: str | None, progress: Progress, scale: float = 1.0) -> Path:
    """A repository that holds catalog model `name` alone, initialised from seed 1; made if it is not there."""
    from hebe.models.catalog import entry
    from hebe.models.repository.initial_model import write_initial_model
    from hebe.models.repository.repository import ModelRepository

    spec = entry(name, size=size, scale=scale)
    repository = ModelRepository(BENCH_MODELS / f"{name}-{size or 'default'}-{scale:g}")
    if repository.versions(name) and repository.open(name).spec == spec:
        return repository.root
    task = progress.add_task(f"making {name}", total=spec.table_bytes)
    write_initial_model(
        repository, spec, 1, "hebe bench", lambda done, total: progress.update(task, completed=done, total=total)
    )
    progress.remove_task(task)
    return repository.root
