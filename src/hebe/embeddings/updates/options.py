"""How a server applies updates, as its configuration says."""

from __future__ import annotations

import hashlib
from pathlib import Path

from hebe.embeddings.config.hierarchy_config import UpdateConfig
from hebe.embeddings.updates.ingestion.options import IngestionOptions
from hebe.spec import NAME_PATTERN

PATIENCE_S = 30.0
"""For so long rows that have to catch up with the log wait for a log of which nothing more comes: then they answer as
they are, and go on catching up once it does."""


def ingestion_options(source: UpdateConfig) -> IngestionOptions:
    """How updates are applied, as configured."""
    return IngestionOptions(
        max_rows_per_s=source.max_rows_per_s or None,
        interval_s=source.interval_s,
        max_batch_size=source.max_batch_size,
        max_commit_interval=source.max_commit_interval,
        failure_backoff_ms=source.failure_backoff_ms,
        poll_timeout_ms=source.poll_timeout_ms,
    )


def quarantine_of(source: UpdateConfig, model: str, place: Path | None) -> Path | None:
    """Where messages go that cannot be applied: as configured, or next to level 3 in `place`; None: nowhere."""
    if source.quarantine:
        return Path(source.quarantine) / model
    return None if place is None else place.with_name(f"{place.name}.quarantine")


def reader_name(*parts: str) -> str:
    """The name of a reader of a log: made of these, or of a digest of them where that would be too long a name."""
    name = ".".join(parts)
    if NAME_PATTERN.match(name):
        return name
    return hashlib.blake2b(name.encode(), digest_size=20).hexdigest()
