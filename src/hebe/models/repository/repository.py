"""The model repository on disk: versions of models, written whole or not at all, checked when read.

    ROOT/NAME/VERSION/              VERSION is 1, 2, 3...; the greatest is served by default
        model.toml                  spec, provenance, length and SHA-256 of every other file, and of itself
        tables/TABLE.safetensors    one tensor `weight`, float32 [rows, dim]; mapped, not loaded
        dense.safetensors           the DenseNet's weights
        graph.json                  imported models only: the DenseNet's ops

A version is written into a hidden directory beside its place, flushed, and renamed. What a crash leaves there
is removed by the next write of that model. A directory without model.toml, such as one made by hand, is no version,
whatever its name; its number is not given to another. No file holds code or a pickle.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from hebe.models.repository.stored_file import (
    FileRecord,
    RepositoryError,
    check_sha256,
    check_size,
    flush_directory,
    make_directories,
    read_checked,
    write_durably,
)
from hebe.models.repository.table_file import (
    CheckedRows,
    RowArray,
    RowChunks,
    check_table_header,
    file_size_bytes,
    map_table,
    write_table,
)
from hebe.op_graph import OpGraph, OpGraphError
from hebe.spec import NAME_PATTERN, EmbeddingTableSpec, ModelSpec, SpecError

if TYPE_CHECKING:
    import torch

__all__ = ["ModelRepository", "RepositoryError", "StoredModel"]

WriteProgress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""

_FORMAT = 1
_MODEL_FILE, _DENSE_FILE, _GRAPH_FILE = "model.toml", "dense.safetensors", "graph.json"
ROWS_AS_OF = "rows_as_of"
"""Of provenance: the time, in ISO 8601, of which the rows are."""
VERSION_PATTERN = re.compile(r"[1-9][0-9]{0,17}\Z")
_SEAL_PATTERN = re.compile(rb"(.*\n)# SHA-256 of all lines above: ([0-9a-f]{64})\n\Z", re.DOTALL)


@dataclass(frozen=True)
class StoredModel:
    """One version of a model on disk. Holds no weights; `table` and `dense_net` read them."""

    name: str
    version: int
    path: Path
    spec: ModelSpec
    provenance: Mapping[str, Any]
    files: Mapping[str, FileRecord]

    @property
    def identity(self) -> str:
        """A checksum that changes with the spec and with any file; the files are not read for it."""
        files = {file: record.sha256 for file, record in self.files.items()}
        content = json.dumps([self.spec.to_dict(), files], sort_keys=True, default=str)
        return hashlib.sha256(content.encode()).hexdigest()

    @property
    def tables_identity(self) -> str:
        """A checksum that changes with any row of any table; the files are not read for it."""
        checksums = " ".join(self.files[name].sha256 for name in sorted(self.files) if name.startswith("tables/"))
        return hashlib.sha256(checksums.encode()).hexdigest()

    @property
    def rows_as_of_s(self) -> float | None:
        """When the rows were read out of training, Unix seconds: online updates sent before are in them. None if that
        is not known. Raises `RepositoryError` if what provenance says of it is no time.
        """
        told = self.provenance.get(ROWS_AS_OF)
        if told is None:
            return None
        try:
            return datetime.fromisoformat(told).timestamp()
        except (TypeError, ValueError, OverflowError):
            raise RepositoryError(
                f"{self.path}: provenance.{ROWS_AS_OF} is {told!r}: must be a time such as 2026-05-04T03:02:01+00:00"
            ) from None

    @property
    def file_bytes(self) -> dict[str, int]:
        """Length of each file, by its path below the version's directory."""
        return {name: record.size_bytes for name, record in self.files.items()}

    @property
    def imported(self) -> bool:
        """Whether the DenseNet is a captured graph rather than an architecture of Hebe's own."""
        return _GRAPH_FILE in self.files

    def table(self, name: str) -> RowArray:
        """The rows of a table: read-only float32 `[rows, dim]`, mapped from its file without a copy.

        Its length and header are checked here, its rows by `verify`. Raises KeyError, `RepositoryError`.
        """
        spec, path, record = self._stored_table(name)
        check_size(path, record)
        return map_table(path, spec)

    def checked_rows(self, name: str) -> CheckedRows:
        """The rows of a table in pieces, to be copied: with the last one they are known to be as they were written.

        Raises as `table`; iterating raises `DamagedRows`.
        """
        spec, path, record = self._stored_table(name)
        return CheckedRows(path, spec, record)

    def _stored_table(self, name: str) -> tuple[EmbeddingTableSpec, Path, FileRecord]:
        spec = next((table for table in self.spec.tables if table.name == name), None)
        if spec is None:
            raise KeyError(f"model {self.name} has no table {name}")
        return spec, self.path / _table_file(name), self.files[_table_file(name)]

    def dense_state(self) -> dict[str, torch.Tensor]:
        """The DenseNet's weights by name, checksum verified. Raises `RepositoryError`."""
        import safetensors
        import safetensors.torch

        path = self.path / _DENSE_FILE
        try:
            return dict(safetensors.torch.load(read_checked(path, self.files[_DENSE_FILE])))
        except safetensors.SafetensorError as fault:
            raise RepositoryError(f"{path}: not a safetensors file: {fault}; write the model again") from None

    def graph(self) -> OpGraph | None:
        """The captured DenseNet's ops, checksum verified; None for a model that was not imported.

        Raises `RepositoryError`.
        """
        if not self.imported:
            return None
        path = self.path / _GRAPH_FILE
        try:
            return OpGraph.from_dict(json.loads(read_checked(path, self.files[_GRAPH_FILE])))
        except (OpGraphError, ValueError, RecursionError) as fault:
            raise RepositoryError(f"{path}: not an op graph: {fault}; import the model again") from None

    def dense_net(self) -> torch.nn.Module:
        """The DenseNet with its weights: evaluation mode, no gradients, `forward(dense, sparse, lengths)`.

        Raises `RepositoryError` where the weights are damaged or are not those that the spec's DenseNet has.
        """
        graph, state = self.graph(), self.dense_state()
        net: torch.nn.Module
        try:
            if graph is not None:
                from hebe.models.architectures.graph_module import KEYS, build

                if (KEYS in graph.inputs) is not self.spec.reads_keys:
                    raise ValueError(f"settings.reads_keys is {self.spec.reads_keys}, but the graph says otherwise")
                net = build(graph, state)
            else:
                from hebe.models.architectures.build import build_dense_net

                net = build_dense_net(self.spec, seed=0)
                net.load_state_dict(state, strict=True)
        except Exception as fault:  # spec and graph come from files: torch raises errors of many kinds for odd ones
            source = _GRAPH_FILE if graph is not None else f"architecture {self.spec.architecture}"
            raise RepositoryError(
                f"{self.path / _DENSE_FILE}: weights do not fit {source}: {fault}; write the model again"
            ) from None
        net.eval().requires_grad_(False)
        return net

    def verify(self, progress: WriteProgress | None = None) -> None:
        """Read every byte; raise `RepositoryError` naming the first file that is not as it was written."""
        total = sum(self.file_bytes.values())
        advance = _counter(progress, total)
        _read_model_toml(self.path / _MODEL_FILE)
        for name, record in self.files.items():
            check_sha256(self.path / name, record, advance)
        self.dense_net()


class ModelRepository:
    """The models below one directory. Several processes may read it, and write it, at once."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    def names(self) -> tuple[str, ...]:
        """Models that have at least one version, and those whose directory cannot be listed: `versions` says why.

        Raises `RepositoryError` where there is no directory.
        """
        return tuple(name for name in self._entries() if self._may_have_versions(name))

    def _entries(self) -> list[str]:
        """What may be models, by name."""
        try:
            return sorted(entry.name for entry in self.root.iterdir() if NAME_PATTERN.match(entry.name))
        except (FileNotFoundError, NotADirectoryError) as fault:
            raise RepositoryError(
                f"{self.root}: not a model repository: {fault.strerror}; "
                "`hebe model new NAME --repository DIR` starts one"
            ) from None
        except OSError as fault:
            raise RepositoryError(f"{self.root}: cannot be listed: {fault.strerror}") from None

    def _may_have_versions(self, name: str) -> bool:
        try:
            return bool(self.versions(name))
        except RepositoryError:
            return True

    def versions(self, name: str) -> tuple[int, ...]:
        """Versions of a model, oldest first; empty where there is none. One whose model.toml may not be looked for
        counts: opening it says why. Raises `RepositoryError` where the model's directory cannot be listed.
        """
        return tuple(number for number, has_spec in self._numbered(name) if has_spec)

    def incomplete(self, name: str | None = None) -> tuple[Path, ...]:
        """Directories that are called as versions are, but have no model.toml: made by hand, or by a copy that was cut
        short. Those of one model, or of all whose directory can be listed. Raises `RepositoryError` as `versions` does.
        """
        if name is not None:
            return tuple(self.root / name / str(number) for number, has_spec in self._numbered(name) if not has_spec)
        found: list[Path] = []
        for each in self._entries():
            with contextlib.suppress(RepositoryError):
                found += self.incomplete(each)
        return tuple(found)

    def _numbered(self, name: str) -> list[tuple[int, bool]]:
        """Directories called as versions are, by number, and whether each has a model.toml."""
        try:
            entries = [entry for entry in (self.root / name).iterdir() if VERSION_PATTERN.match(entry.name)]
            return sorted((int(entry.name), _has_spec(entry)) for entry in entries if entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as fault:
            raise RepositoryError(f"{self.root / name}: cannot be listed: {fault.strerror}") from None

    def repository_above(self) -> Path | None:
        """Where this directory is a model, or a version of one, rather than a repository: the repository above it."""
        levels = 0
        if _has_spec(self.root):
            levels = 2
        else:
            with contextlib.suppress(OSError):
                levels = any(VERSION_PATTERN.match(e.name) and _has_spec(e) for e in self.root.iterdir())
        return Path(os.path.normpath(self.root.joinpath(*[".."] * levels))) if levels else None

    def open(self, name: str, version: int | None = None) -> StoredModel:
        """A version of a model, by default the latest.

        Checks model.toml wholly, and the length and header of every other file; `StoredModel.verify` checks
        the rest. Raises `RepositoryError` for an unknown model or version, and for a file not as written.
        """
        versions = self.versions(name) if NAME_PATTERN.match(name) else ()
        if not versions:
            known = ", ".join(self.names()) or "none yet"
            raise RepositoryError(f"{self.root}: has no model {name!r}; it has: {known}{self._beside(name)}")
        if version is None:
            version = versions[-1]
        elif version not in versions:
            known = ", ".join(map(str, versions))
            raise RepositoryError(
                f"{self.root}: model {name} has no version {version}; it has: {known}{self._beside(name)}"
            )
        return _open_directory(self.root / name / str(version), name, version)

    def _beside(self, name: str) -> str:
        """What to say of directories that are no versions."""
        incomplete = self.incomplete(name) if NAME_PATTERN.match(name) else ()
        return f"; {no_version_words(incomplete[-1])}" if incomplete else ""

    def check_writable(self, spec: ModelSpec) -> None:
        """Raise `RepositoryError` where `write` could not store a version of `spec`: for those who have work before
        they have the rows. No directory is made.
        """
        directory = self.root.absolute() / spec.name
        # os.path's, since Path.exists raises where it may not look
        existing = next(path for path in (directory, *directory.parents) if os.path.exists(path))
        if not os.path.isdir(existing) or not os.access(existing, os.W_OK | os.X_OK):
            raise RepositoryError(f"{existing}: not a directory that can be written to; nothing was stored")
        _check_room(existing, sum(map(file_size_bytes, spec.tables)))

    def write(
        self,
        spec: ModelSpec,
        tables: Mapping[str, RowChunks],
        dense_state: Mapping[str, torch.Tensor],
        graph: OpGraph | None = None,
        provenance: Mapping[str, Any] | None = None,
        version: int | None = None,
        progress: WriteProgress | None = None,
    ) -> StoredModel:
        """Store a new version of model `spec.name`, by default one after the latest, and open it.

        `tables` gives each table's rows whole or as an iterable of chunks, which is read once and never held.
        `provenance` is plain TOML data: where the model comes from. What in it is no Unicode, as the name of a file may
        have, becomes `?`. Without a time `ROWS_AS_OF` it gets the present
        one: the rows have all online updates sent before. The version appears once it is complete and
        its DenseNet has been loaded back; until then, and if anything fails, there is nothing. Waits for another
        writer of the same model. Raises `RepositoryError`: wrong rows, wrong weights, version taken, disk full.
        """
        if set(tables) != {table.name for table in spec.tables}:
            wrong = sorted(set(tables) ^ {table.name for table in spec.tables})
            raise RepositoryError(f"model {spec.name}: tables given and tables of the spec differ: {', '.join(wrong)}")
        if version is not None and not VERSION_PATTERN.match(str(version)):
            raise RepositoryError(f"model {spec.name}: version is {version!r}: must be a positive whole number")
        provenance = {ROWS_AS_OF: datetime.now(UTC).isoformat(timespec="milliseconds"), **(provenance or {})}
        directory = self.root / spec.name
        try:
            make_directories(directory)
            with _writer_lock(directory):
                for abandoned in directory.glob(".writing-*"):
                    shutil.rmtree(abandoned)
                taken = [number for number, _ in self._numbered(spec.name)]
                if version is None:
                    version = max(taken, default=0) + 1
                elif version in taken:
                    raise RepositoryError(
                        f"{directory / str(version)}: exists and is never overwritten: choose another version"
                    )
                staged = directory / f".writing-{version}"
                try:
                    _write_directory(staged, spec, tables, dense_state, graph, provenance, progress)
                    _open_directory(staged, spec.name, version).dense_net()
                    staged.rename(directory / str(version))
                except BaseException:
                    shutil.rmtree(staged, ignore_errors=True)
                    raise
                flush_directory(directory)
        except OSError as fault:
            raise RepositoryError(
                f"{fault.filename or directory}: cannot be written: {fault.strerror}; nothing was stored"
            ) from None
        return self.open(spec.name, version)


@contextlib.contextmanager
def _writer_lock(directory: Path) -> Iterator[None]:
    """One writer a model at a time; the lock dies with its process."""
    with open(directory / ".lock", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def no_version_words(directory: Path) -> str:
    """What to say of a directory that is called as a version is and is none."""
    return (
        f"{directory} has no {_MODEL_FILE} and is no version: restore it from a backup, write the model again, or "
        "remove the directory"
    )


def _has_spec(directory: Path) -> bool:
    """Whether there is a model.toml in it, or may be one that this user may not see."""
    try:
        (directory / _MODEL_FILE).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _table_file(table: str) -> str:
    return f"tables/{table}.safetensors"


def _expected_files(spec: ModelSpec, with_graph: bool) -> set[str]:
    return {_table_file(table.name) for table in spec.tables} | {_DENSE_FILE} | ({_GRAPH_FILE} if with_graph else set())


def _counter(progress: WriteProgress | None, total_bytes: int) -> Callable[[int], None]:
    done_bytes = 0

    def advance(count_bytes: int) -> None:
        nonlocal done_bytes
        done_bytes += count_bytes
        if progress is not None:
            progress(done_bytes, total_bytes)

    return advance


def _write_directory(
    staged: Path,
    spec: ModelSpec,
    tables: Mapping[str, RowChunks],
    dense_state: Mapping[str, torch.Tensor],
    graph: OpGraph | None,
    provenance: Mapping[str, Any],
    progress: WriteProgress | None,
) -> None:
    import safetensors.torch

    small = {
        _DENSE_FILE: safetensors.torch.save(
            {name: tensor.detach().cpu().contiguous().clone() for name, tensor in dense_state.items()}
        )
    }
    if graph is not None:
        small[_GRAPH_FILE] = json.dumps(graph.to_dict(), indent=1).encode()
    total = sum(map(file_size_bytes, spec.tables)) + sum(map(len, small.values()))
    _check_room(staged.parent, total)
    advance = _counter(progress, total)
    (staged / "tables").mkdir(parents=True)
    records = {
        _table_file(table.name): write_table(staged / _table_file(table.name), table, tables[table.name], advance)
        for table in spec.tables
    }
    for name, content in small.items():
        records[name] = write_durably(staged / name, [content], advance)
    write_durably(staged / _MODEL_FILE, [_model_toml(spec, provenance, records)])
    flush_directory(staged / "tables")
    flush_directory(staged)


def _check_room(directory: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(directory).free
    if needed_bytes > free:
        raise RepositoryError(
            f"{directory}: the model needs {needed_bytes:,} bytes and the disk has {free:,} left; "
            "free some, write it to a repository on a larger disk, or, of hebe model new, choose a smaller --scale"
        )


def _model_toml(spec: ModelSpec, provenance: Mapping[str, Any], records: Mapping[str, FileRecord]) -> bytes:
    files = {name: {"size_bytes": record.size_bytes, "sha256": record.sha256} for name, record in records.items()}
    content = {"format": _FORMAT, "spec": spec.to_dict(), "provenance": dict(provenance), "files": files}
    try:
        text = tomli_w.dumps(content).encode(errors="replace")
    except (TypeError, ValueError) as fault:
        raise RepositoryError(
            f"model {spec.name}: provenance must be strings, numbers, lists and tables: {fault}"
        ) from None
    return text + f"# SHA-256 of all lines above: {hashlib.sha256(text).hexdigest()}\n".encode()


def _open_directory(path: Path, name: str, version: int) -> StoredModel:
    content = _read_model_toml(path / _MODEL_FILE)
    try:
        spec = ModelSpec.from_dict(content["spec"])
        _check_plain(spec)
        files = {file: FileRecord(**record) for file, record in content["files"].items()}
        provenance = content["provenance"]
        if not isinstance(provenance, dict):
            raise TypeError(f"provenance is {provenance!r}: must be a table")
    except SpecError as fault:
        raise RepositoryError(f"{path / _MODEL_FILE}: {fault}; write the model again") from None
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        raise RepositoryError(
            f"{path / _MODEL_FILE}: missing or malformed field: {fault}; write the model again"
        ) from None
    if spec.name != name:
        raise RepositoryError(
            f"{path / _MODEL_FILE}: its spec is of model {spec.name}, but it lies under {name}; "
            "a model cannot be renamed by renaming its directory"
        )
    expected = _expected_files(spec, _GRAPH_FILE in files)
    if set(files) != expected:
        wrong = ", ".join(sorted(set(files) ^ expected))
        raise RepositoryError(f"{path / _MODEL_FILE}: its files and its spec differ: {wrong}")
    for file, record in files.items():
        check_size(path / file, record)
    for table in spec.tables:
        check_table_header(path / _table_file(table.name), table)
    return StoredModel(name, version, path, spec, provenance, files)


def _check_plain(spec: ModelSpec) -> None:
    """Raise `SpecError` for fields of other types than documented that a spec from a file may have."""
    for field in ("size", "source", "notes"):
        if not isinstance(getattr(spec, field), str):
            raise SpecError(f"model {spec.name}: {field} is {getattr(spec, field)!r}: must be text")
    for name, value in spec.settings.items():
        if not isinstance(value, int | float | str):
            raise SpecError(f"model {spec.name}: settings.{name} is {value!r}: must be a number, text or a truth value")


def _read_model_toml(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise RepositoryError(f"{path}: no such file; restore it from a backup, or write the model again") from None
    except OSError as fault:
        raise RepositoryError(f"{path}: cannot be read: {fault.strerror}") from None
    sealed = _SEAL_PATTERN.match(content)
    if sealed is None or hashlib.sha256(sealed[1]).hexdigest().encode() != sealed[2]:
        raise RepositoryError(
            f"{path}: truncated, damaged or edited by hand: its last line is not the SHA-256 of the others; "
            "restore it from a backup, or write the model again"
        )
    try:
        fields = tomllib.loads(sealed[1].decode())
    except (ValueError, RecursionError) as fault:  # of TOML and of UTF-8
        raise RepositoryError(f"{path}: not TOML: {fault}; write the model again") from None
    if fields.get("format") != _FORMAT:
        raise RepositoryError(
            f"{path}: format {fields.get('format')!r}, this Hebe reads {_FORMAT}; use the Hebe that wrote it"
        )
    return fields
