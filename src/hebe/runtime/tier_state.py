"""What a loaded model tells of its tiers and online updates, for rooms that do not look into `embeddings`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hebe.embeddings.clients.tier_client import TierState
from hebe.embeddings.tiers.batch_lookup import LookupCounts
from hebe.embeddings.tiers.refresh import RefreshReport
from hebe.embeddings.tiers.tiers import TierSize, TiersState
from hebe.embeddings.updates.ingestion.statistics import IngestionStatistics, VisibleHistogram

if TYPE_CHECKING:
    from hebe.embeddings.memory.table_memory import RowFormat
    from hebe.runtime.loaded_model import LoadedModel, LoadOptions

__all__ = [
    "IngestionStatistics",
    "LookupCounts",
    "RefreshReport",
    "TierSize",
    "TierState",
    "TiersState",
    "VisibleHistogram",
    "row_format",
    "tier_kinds",
]


def tier_kinds(model: LoadedModel, options: LoadOptions) -> dict[str, str]:
    """What each tier of `model`, loaded with `options`, is, by name, level 1 first; empty if all rows are resident."""
    tiers = model.hierarchy.tiers
    if tiers is None:
        return {}
    kinds = {"cache": "host_cache"}
    if tiers.lookup.volatile is not None and options.hierarchy is not None:
        kinds["volatile_db"] = str(options.hierarchy.volatile_db.type)
    if tiers.lookup.persistent is not None:
        kinds["persistent_db"] = "rocks_db"
    return kinds


def row_format(model: LoadedModel) -> RowFormat:
    """How the rows of `model` that are in memory are stored: those of level 1 where tables are read through tiers."""
    tiers = model.hierarchy.tiers
    if tiers is None:
        return model.hierarchy.memory.row_format
    return next(iter(tiers.cache.tables.values())).row_format
