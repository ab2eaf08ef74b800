"""The tables of a model that a configuration names (`TableConfig`), ready for the tiers to be filled from them.

PATH/MODEL/1             the model's persistent store, if it has one
PATH/MODEL/1.files.json  checksums of the sparse files that were read for it, and by what the system knows these
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hebe.embeddings.config.hierarchy_config import (
    ConfigError,
    HierarchyConfig,
    PersistentType,
    TableConfig,
    VolatileType,
)
from hebe.embeddings.hps.hugectr_files import SparseFiles
from hebe.embeddings.memory.table_memory import Progress
from hebe.embeddings.rocksdb.directory import read_record
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import StoreError
from hebe.spec import EmbeddingTableSpec

log = logging.getLogger("hebe.hps")

_PLACE = "1"
_MOST_RECORD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class HpsTables:
    """`specs` in HPS' order, each with as many rows as it has keys; `sources` by name, none where a persistent store
    that was loaded under `stored_identity` has all rows. `persistent_dir` is where that store is or will be, None
    without one. `shared`: other processes may use the same rows.
    """

    specs: tuple[EmbeddingTableSpec, ...]
    sources: dict[str, SparseFiles]
    persistent_dir: Path | None
    shared: bool
    stored_identity: str | None = None

    @property
    def duplicates(self) -> int:
        """Rows in all files whose key comes again further behind."""
        return sum(source.duplicates for source in self.sources.values())

    def identity(self, progress: Progress | None = None) -> str:
        """What changes with the tables' content, and with that alone: the same for all servers that share a Redis.

        Reads the files, unless the persistent store's record knows them; `progress(bytes done, bytes in all)`
        meanwhile. Where nothing outlives this process it is nothing.
        """
        if self.stored_identity is not None:
            return self.stored_identity
        if not self.shared and self.persistent_dir is None:
            return ""
        known = _read_checksums(self.persistent_dir)
        done, total = 0, sum(source.size_bytes for source in self.sources.values())

        def advance(count_bytes: int) -> None:
            nonlocal done
            done += count_bytes
            if progress is not None:
                progress(done, total)

        digest, checked = hashlib.blake2b(digest_size=16), {}
        for name, source in self.sources.items():
            # Archives, layers of containers and copies often give all files the same time of change.
            files = {file: list(mark) for file, mark in source.marks.items()}
            before = known.get(name)
            if not isinstance(before, dict) or {**before, "checksum": ""} != {**files, "checksum": ""}:
                before = {**files, "checksum": source.checksum(advance)}
            checked[name] = before
            digest.update(f"{name} {before['checksum']} ".encode())
        if checked != known:
            _write_checksums(self.persistent_dir, checked)
        return digest.hexdigest()


def version_of(identity: str) -> int:
    """A number for content, where a model of a repository has its version: rows of other files are other rows."""
    return int(identity[:12] or "1", 16)


def find_tables(config: HierarchyConfig, model: str) -> HpsTables:
    """The tables of `model`: HugeCTR's files, or where these are gone what the persistent store was loaded with.

    Raises `ConfigError` for a model that has no tables, `StoreError` for files that are missing or damaged.
    """
    tables = config.tables.get(model, ())
    if not tables:
        known = ", ".join(config.tables) or "none"
        raise ConfigError(f"model {model} has no tables in this configuration; models with tables: {known}")
    place = None
    if config.persistent_db.type is PersistentType.ROCKS_DB:
        place = Path(config.persistent_db.path) / model / _PLACE
    shared = config.volatile_db.type not in (VolatileType.DISABLED, VolatileType.HASH_MAP)
    if place is not None and not any(_is_there(table) for table in tables):
        return _stored_tables(model, tables, place, shared)
    sources = {
        table.name: SparseFiles(Path(table.sparse_file), table.dim, wide_keys=table.supportlonglong) for table in tables
    }
    specs = tuple(EmbeddingTableSpec(table.name, sources[table.name].rows, table.dim) for table in tables)
    return HpsTables(specs, sources, place, shared)


def _is_there(table: TableConfig) -> bool:
    return bool(table.sparse_file) and Path(table.sparse_file).exists()


def _stored_tables(model: str, tables: tuple[TableConfig, ...], place: Path, shared: bool) -> HpsTables:
    """What the store in `place` was loaded with."""
    record = read_record(place)
    if record is None or record.identity is None:
        where = ", ".join(table.sparse_file for table in tables if table.sparse_file) or "no sparse_file is named"
        raise StoreError(
            f"model {model}: neither its sparse files ({where}) nor a persistent store that was loaded with them "
            f"({place}) are there",
            f"model {model}: its tables are not there",
        )
    dims = {table.name: table.dim for table in tables}
    if record.dims != dims:
        raise StoreError(
            f"model {model}: the persistent store {place} has tables {record.dims}, the configuration {dims}",
            f"model {model}: its persistent store has other tables",
        )
    with contextlib.closing(RocksDbStore(place, read_only=True)) as store:
        specs = tuple(EmbeddingTableSpec(name, max(1, store.size(name)), dim) for name, dim in dims.items())
    return HpsTables(specs, {}, place, shared, record.identity)


def _record_file(place: Path) -> Path:
    return place.with_name(f"{place.name}.files.json")


def _read_checksums(place: Path | None) -> dict[str, Any]:
    """What is known of files that were read before; nothing where that cannot be read, which costs reading them."""
    if place is None or not _record_file(place).exists():
        return {}
    try:
        with open(_record_file(place), "rb") as file:
            known = json.loads(file.read(_MOST_RECORD_BYTES))
    except (OSError, ValueError) as fault:
        log.warning("%s cannot be read: %s", _record_file(place), fault)
        return {}
    return known if isinstance(known, dict) else {}


def _write_checksums(place: Path | None, checked: dict[str, Any]) -> None:
    if place is None:
        return
    file = _record_file(place)
    new = file.with_name(f"{file.name}.new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps(checked, indent=1))
        os.replace(new, file)
    except OSError as fault:  # the next start reads the files once more, that is all
        log.warning("checksums cannot be kept in %s: %s", file, fault.strerror)
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
