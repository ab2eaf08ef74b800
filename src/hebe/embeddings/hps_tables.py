"""The tables of a model that a configuration names (`TableConfig`), ready for the tiers to be filled from them."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path

from hebe.embeddings.hierarchy_config import ConfigError, HierarchyConfig, PersistentType, TableConfig
from hebe.embeddings.hugectr_files import SparseFiles
from hebe.embeddings.rocksdb_store import RocksDbStore
from hebe.embeddings.store import StoreError
from hebe.embeddings.store_directory import read_record
from hebe.spec import EmbeddingTableSpec

VERSION = 1
"""HPS' models have no versions; a repository's begin with this one."""


@dataclass(frozen=True, slots=True)
class HpsTables:
    """`specs` in HPS' order, each with as many rows as it has keys; `sources` by name; `identity` changes with their
    content. `persistent_dir` is where the persistent store of the model is or will be, None without one.
    """

    specs: tuple[EmbeddingTableSpec, ...]
    sources: dict[str, SparseFiles]
    identity: str
    persistent_dir: Path | None

    @property
    def duplicates(self) -> int:
        """Rows in all files whose key comes again further behind."""
        return sum(source.duplicates for source in self.sources.values())


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
        place = Path(config.persistent_db.path) / model / str(VERSION)
    if place is not None and not any(_is_there(table) for table in tables):
        return _stored_tables(model, tables, place)
    sources = {
        table.name: SparseFiles(Path(table.sparse_file), table.dim, wide_keys=table.supportlonglong) for table in tables
    }
    specs = tuple(EmbeddingTableSpec(table.name, sources[table.name].rows, table.dim) for table in tables)
    digest = hashlib.blake2b(digest_size=16)
    for name, source in sources.items():
        digest.update(f"{name} {source.identity} ".encode())
    return HpsTables(specs, sources, digest.hexdigest(), place)


def _is_there(table: TableConfig) -> bool:
    return bool(table.sparse_file) and Path(table.sparse_file).exists()


def _stored_tables(model: str, tables: tuple[TableConfig, ...], place: Path) -> HpsTables:
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
    return HpsTables(specs, {}, record.identity, place)
