"""A persistent store that is served no more goes: its directory, and what the log of updates keeps for it."""

from __future__ import annotations

import logging
from pathlib import Path

from hebe.embeddings.config.hierarchy_config import UpdateConfig
from hebe.embeddings.online_updates import group_of_store
from hebe.embeddings.rocksdb.directory import remove
from hebe.embeddings.store import StoreError
from hebe.embeddings.updates.replay import forget_group

log = logging.getLogger("hebe.updates")


def remove_store(model: str, place: Path, source: UpdateConfig) -> None:
    """Remove the store of `model` in `place`, and have the log of `source` forget the group that it took updates in:
    one in Redis would keep all messages for it.

    Raises `StoreError`, having removed nothing, as `rocksdb.directory.remove` does. That the log could not be
    reached, or that the group has a member, is only told.
    """
    group = group_of_store(source, model, place)
    remove(place)
    if group is None:
        return
    try:
        forget_group(source, group)
    except (StoreError, ValueError) as fault:
        log.warning(
            "the update log keeps messages for group %s, whose store was removed, until `hebe update forget`: %s",
            group, fault,
        )  # fmt: skip
