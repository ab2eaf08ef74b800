"""hercules-idle: a model of the catalog, made with small tables, and its op times."""

from __future__ import annotations

import shutil
from pathlib import Path

from rich.progress import Progress

from hebe.models.repository import ModelRepository
from hebe.runtime.loaded_model import LoadedModel
from hebe.runtime.op_times import OpTimes, measure_op_times
from hebe.studies.hercules_live import make_model


def timed_ops(entry: str, table_bytes: int, items: int, repeats: int, directory: Path, progress: Progress) -> OpTimes:
    """Op times of catalog model `entry` for batches of `items`; the model is gone afterwards."""
    repository = make_model(entry, table_bytes, directory, progress)
    try:
        model = LoadedModel.load(repository, entry)
        try:
            return measure_op_times(model, ModelRepository(repository).open(entry).dense_net(), items, repeats)
        finally:
            model.close()
    finally:
        shutil.rmtree(repository)
