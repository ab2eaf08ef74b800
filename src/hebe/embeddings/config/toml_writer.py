"""A hierarchy configuration as the TOML file that it is read back from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import tomli_w

from hebe.embeddings.config.hierarchy_config import HierarchyConfig, PersistentType, UpdateType, VolatileType, idle_keys
from hebe.embeddings.options import UNLIMITED


def hierarchy_toml(config: HierarchyConfig, remarks: Iterable[str] = ()) -> str:
    """The file's text; `HierarchyConfig.from_toml` makes an equal configuration of it. `remarks` stand on top.

    Values are written even where they are defaults: a default may change, or be another machine's. Tiers that are
    disabled are left out, which is what leaving them out means.
    """
    data: dict[str, Any] = {}
    if config.cache != HierarchyConfig().cache:
        data["cache"] = _plain(config.cache)
    if config.volatile_db.type is not VolatileType.DISABLED:
        data["volatile_db"] = _plain(config.volatile_db)
    if config.persistent_db.type is not PersistentType.DISABLED:
        data["persistent_db"] = _plain(config.persistent_db)
    if config.update_source.type is not UpdateType.NULL:
        data["update_source"] = _plain(config.update_source)
    if config.models:
        data["models"] = {name: _plain(own) for name, own in config.models.items()}
    if config.tables:
        data["tables"] = {model: [_plain(table) for table in own] for model, own in config.tables.items()}
    head = "".join(f"# {line}".rstrip() + "\n" for remark in remarks for line in (remark.splitlines() or [""]))
    return f"{head}\n{tomli_w.dumps(data, multiline_strings=False)}" if head else tomli_w.dumps(data)


def _plain(part: Any) -> dict[str, Any]:
    """A part's fields as TOML has them: what is not set, and what is beyond TOML's numbers, is left out.

    So is what a file is refused for, as it would do nothing: what its type does not read, and `cache_fraction` beside
    `cache_bytes`, which wins.
    """
    fields, idle = {}, idle_keys(part)
    for each in dataclasses.fields(part):
        value = getattr(part, each.name)
        if each.name in idle:
            continue
        if value is None or value == "" or (isinstance(value, int) and value == UNLIMITED):
            continue
        if each.name == "cache_fraction" and part.cache_bytes is not None:
            continue
        fields[each.name] = dict(value) if isinstance(value, Mapping) else _unwrapped(value)
    return fields


def _unwrapped(value: Any) -> Any:
    """A member of an enumeration as the text that it is."""
    return str(value) if isinstance(value, str) else value
