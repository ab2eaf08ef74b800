"""Everything that the embedding hierarchy promises: its cache, its hash map, narrow rows, and updates while serving.

Each part can be measured alone, as `hebe bench embeddings --only cache`. The AUC of narrow rows is of a model trained
on made-up rows, or on those of Criteo's `train.txt` where `data` has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from rich.progress import Progress

from hebe.report.figures import Figure
from hebe_lab.bench.embeddings.cache import cache_figures
from hebe_lab.bench.embeddings.rows import rows_figures
from hebe_lab.bench.embeddings.stores import stores_figures
from hebe_lab.bench.embeddings.updates import updates_figures

DESCRIPTION = "The embedding hierarchy: cache, hash map, narrow rows, and online updates while serving."

CLICK_LOG = "train.txt"

PARTS: Mapping[str, Callable[[bool, Progress, Path | None], list[Figure]]] = {
    "cache": lambda quick, progress, _: cache_figures(quick, progress),
    "hash_map": lambda quick, progress, _: stores_figures(quick, progress),
    "rows": lambda quick, progress, data: rows_figures(quick, progress, _click_log(data)),
    "updates": lambda quick, progress, _: updates_figures(quick, progress),
}
"""By how the names of their figures begin."""


def run(quick: bool, progress: Progress, data: Path | None = None, only: str | None = None) -> list[Figure]:
    """Measure `cache.*`, `hash_map.*`, `rows.*`, `updates.*`, or `only` one of these parts. Needs two cores."""
    return [
        figure for name, measure in PARTS.items() if only in (None, name) for figure in measure(quick, progress, data)
    ]


def _click_log(data: Path | None) -> Path | None:
    return data / CLICK_LOG if data is not None and (data / CLICK_LOG).is_file() else None
