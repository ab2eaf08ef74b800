"""All updates that a log has, put into rows that are as the model has them, before anything is answered from these; and
how many of them others have put there.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hebe.embeddings.config.hierarchy_config import UpdateConfig, UpdateType
from hebe.embeddings.store import EmbeddingStore, StoreError, StoreUnavailable
from hebe.embeddings.updates.contract import Topic, UpdateSource
from hebe.embeddings.updates.group_progress import GroupLook, ends_and_committed
from hebe.embeddings.updates.ingestion.ingestion import UpdateIngestion
from hebe.embeddings.updates.ingestion.options import IngestionOptions
from hebe.embeddings.updates.opening import open_configured_log
from hebe.spec import NAME_PATTERN

log = logging.getLogger("hebe.updates")

PATIENCE_S = 30.0
"""For so long rows that have to catch up with the log wait for a log of which nothing more comes: then they answer as
they are, and go on catching up once it does."""
_STEP_S = 1.0


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
    """Where messages go that cannot be applied: as configured, or beside level 3 in `place`; None: nowhere."""
    if source.quarantine:
        return Path(source.quarantine) / model
    return None if place is None else place.with_name(f"{place.name}.quarantine")


def shared_group(source: UpdateConfig, content: str, rows_name: str | None) -> str:
    """The group of the servers that together put updates into one Redis, whose rows have this name there: that of a
    generation, or, over a level 3, of the Redis (`redis.identity`). None: as older versions had it there.
    """
    return group_name(source.group, content, *filter(None, [rows_name]))


def group_name(*parts: str) -> str:
    """A name made of these, or of a digest of them where that would be too long a name."""
    name = ".".join(parts)
    if NAME_PATTERN.match(name):
        return name
    return hashlib.blake2b(name.encode(), digest_size=20).hexdigest()


def forget_group(source: UpdateConfig, group: str) -> None:
    """Have the log of `source` keep nothing for `group`, which is no more; Kafka keeps nothing for any, and forgets it
    by itself. Raises `StoreError` while it has a member, or the log cannot be reached.
    """
    if source.type in (UpdateType.NULL, UpdateType.KAFKA):
        return
    with contextlib.closing(open_configured_log(source)) as update_log:
        if group in update_log.groups():
            update_log.forget_group(group)


def look_at_group(model: str, dims: Mapping[str, int], source: UpdateConfig, group: str) -> GroupLook | None:
    """How much the log has of the tables of `model`, and members of `group` have written. None while it cannot be
    reached.
    """
    asked_s = time.monotonic()
    try:
        with contextlib.closing(open_configured_log(source)) as update_log:
            return GroupLook(asked_s, *ends_and_committed(update_log, [Topic(model, table) for table in dims], group))
    except StoreError as fault:
        log.warning("how much of the log of %s is in Redis is not known until it can be read: %s", model, fault)
        return None


def replay(
    model: str,
    dims: Mapping[str, int],
    source: UpdateConfig,
    group: str,
    store: EmbeddingStore,
    since_s: float | None,
    step: Callable[[], None],
) -> None:
    """Apply to `store` what the log of `source` has now for the tables of `model`, sent after `since_s` (Unix seconds),
    as the one member of `group`, which is new; as fast as it goes, and however long it takes. `step` is called every
    second or so, and raises to end it.

    Where the log cannot be reached, or nothing more comes of it, for `PATIENCE_S`, what is left is for the members of
    the group that follow: the log says how much that is.
    """
    if source.type is UpdateType.NULL:
        return
    tables = [Topic(model, table) for table in dims]
    reader = _reader(model, source, group, tables, step)
    if reader is None:
        return
    options = replace(ingestion_options(source), max_rows_per_s=None)  # nobody is answered from these rows yet
    quarantine = quarantine_of(source, model, None)
    stores = {"volatile_db": store}
    with UpdateIngestion(reader, stores, model, dims, options, quarantine=quarantine, since_s=since_s) as ingestion:
        if not ingestion.catch_up(PATIENCE_S, step):
            told = ingestion.statistics()
            why = told.last_error if told.is_failing else "nothing more comes of it"
            log.warning("rows of %s have not caught up with the log, and go on: %s", model, why)


def _reader(
    model: str, source: UpdateConfig, group: str, tables: Sequence[Topic], step: Callable[[], None]
) -> UpdateSource | None:
    """A member of `group`; None where the log has nothing of `tables`, or has been away for long enough."""
    give_up_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            with contextlib.closing(open_configured_log(source)) as update_log:
                return update_log.source(group, tables) if set(tables) & set(update_log.topics()) else None
        except StoreUnavailable as fault:
            if time.monotonic() >= give_up_s:
                log.warning("rows of %s are without the updates of the log until it can be read: %s", model, fault)
                return None
        step()
        time.sleep(_STEP_S)
