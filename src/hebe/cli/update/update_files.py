"""Rows, or keys to delete, out of the files that people have: a few thousand at a time, checked, never unpickled.

.npz           NumPy arrays `keys` and `rows`
.safetensors   tensors `keys` and `rows`; or one tensor `weight`, whose keys are its row numbers
.csv           lines KEY,V0,V1,...; a first line that begins with "key" names the columns
a directory    HugeCTR's sparse model: files `key` and `emb_vector`
"""

from __future__ import annotations

import csv
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hebe.embeddings.store import KeyArray, RowArray
from hebe.workload.text_errors import why_unreadable

CHUNK_ROWS = 8192
_FORMS = ".npz, .safetensors or .csv, or a directory of HugeCTR's"

UpdateChunk = tuple[KeyArray, RowArray | None]
"""Keys int64 `[n]` with rows float32 `[n, dim]`, or None: they are to be deleted."""


class UpdateFileError(ValueError):
    """A file that cannot be pushed; names it, says why and what to do."""


@dataclass(frozen=True, slots=True)
class UpdateFile:
    """What is to be pushed of one file. `rows`: how many there are, None where only reading it tells."""

    path: Path
    rows: int | None
    chunks: Iterator[UpdateChunk]


def open_update_file(path: Path, *, delete: bool) -> UpdateFile:
    """What `path` has, the keys alone if they are to be deleted. Raises `UpdateFileError`, also while it is read, and
    OSError if it cannot be read."""
    if path.is_dir():
        return _hugectr(path, delete)
    match path.suffix.lower():
        case ".npz":
            return _arrays(path, _npz_arrays(path, delete), delete)
        case ".safetensors":
            return _arrays(path, _tensors(path, delete), delete)
        case ".csv":
            path.stat()  # raises for a file that is not there, as those do which are read at once
            return UpdateFile(path, None, _csv_chunks(path, delete))
    raise UpdateFileError(f"{path}: is of no kind that can be pushed; give {_FORMS}")


def _npz_arrays(path: Path, delete: bool) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in ("keys", *([] if delete else ["rows"])) if name in file}
    except (zipfile.BadZipFile, ValueError, EOFError, KeyError) as fault:
        raise UpdateFileError(f"{path}: is no .npz file of plain arrays: {fault}") from None


def _tensors(path: Path, delete: bool) -> dict[str, Any]:
    import safetensors

    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            names = set(file.keys())
            if names == {"weight"}:
                weight = file.get_tensor("weight")
                return {"keys": np.arange(len(weight), dtype=np.int64), "rows": weight}
            return {name: file.get_tensor(name) for name in ("keys", *([] if delete else ["rows"])) if name in names}
    except (safetensors.SafetensorError, TypeError) as fault:  # TypeError: a type that NumPy has not, as bfloat16
        raise UpdateFileError(f"{path}: cannot be read as safetensors: {fault}") from None


def _arrays(path: Path, arrays: dict[str, Any], delete: bool) -> UpdateFile:
    """The file that holds these arrays."""
    for name in ("keys",) if delete else ("keys", "rows"):
        if name not in arrays:
            raise UpdateFileError(f"{path}: has no array {name}; give keys int64 [n] and rows float32 [n, dim]")
    keys, rows = arrays["keys"], None if delete else arrays["rows"]
    if keys.ndim != 1 or not np.can_cast(keys.dtype, np.int64) or keys.dtype.kind not in "iu":
        raise UpdateFileError(f"{path}: keys are {keys.dtype} {list(keys.shape)}: must be int64 [n]")
    if rows is not None and (rows.ndim != 2 or rows.dtype.kind != "f" or len(rows) != len(keys)):
        raise UpdateFileError(
            f"{path}: rows are {rows.dtype} {list(rows.shape)}: must be float32 [{len(keys)}, dim], one for each key"
        )
    if not len(keys):
        raise _empty(path)
    return UpdateFile(path, len(keys), _parts(path, keys, rows))


def _parts(path: Path, keys: Any, rows: Any) -> Iterator[UpdateChunk]:
    for first in range(0, len(keys), CHUNK_ROWS):
        part = slice(first, first + CHUNK_ROWS)
        yield keys[part].astype(np.int64), None if rows is None else _finite(path, keys[part], rows[part])


def _finite(path: Path, keys: Any, rows: Any) -> RowArray:
    """`rows` as float32. Raises `UpdateFileError` naming the first key whose row is not a row of numbers."""
    with np.errstate(over="ignore"):
        narrowed: RowArray = np.ascontiguousarray(rows, np.float32)
    bad = np.flatnonzero(~np.isfinite(narrowed).all(axis=1))
    if bad.size:
        raise UpdateFileError(f"{path}: the row of key {keys[bad[0]]} has values that no float32 holds, inf or nan")
    return narrowed


def _csv_chunks(path: Path, delete: bool) -> Iterator[UpdateChunk]:
    with open(path, newline="", encoding="utf-8-sig") as file:  # spreadsheets put a mark before it
        lines = csv.reader(file)
        keys: list[int] = []
        rows: list[list[str]] = []
        dim = None
        try:
            for cells in lines:
                if not cells or (lines.line_num == 1 and cells[0].strip().lower() == "key"):
                    continue
                dim = len(cells) - 1 if dim is None else dim
                if not delete and len(cells) - 1 != max(dim, 1):
                    found = f"line {lines.line_num} has {len(cells)} cells"
                    raise UpdateFileError(f"{path}: {found}: must have a key and {max(dim, 1)} values")
                keys.append(_key(path, lines.line_num, cells[0]))
                rows.append(cells[1:])
                if len(keys) == CHUNK_ROWS:
                    yield _csv_chunk(path, keys, rows, delete)
                    keys, rows = [], []
        except UnicodeDecodeError as fault:
            raise UpdateFileError(f"{path}: {why_unreadable(path, fault)}") from None
        except csv.Error as fault:
            raise UpdateFileError(f"{path}: line {lines.line_num + 1}: is no CSV: {fault}") from None
        if dim is None:
            raise _empty(path)
        if keys:
            yield _csv_chunk(path, keys, rows, delete)


def _empty(path: Path) -> UpdateFileError:
    return UpdateFileError(f"{path}: has no keys: whatever was to write it has written nothing, or not yet")


def _key(path: Path, line: int, text: str) -> int:
    try:
        key = int(text)
    except ValueError:
        raise UpdateFileError(f"{path}: line {line}: {text!r} is no key: must be a whole number") from None
    if not -(1 << 63) <= key < 1 << 63:
        raise UpdateFileError(f"{path}: line {line}: key {key} does not fit into 64 bits")
    return key


def _csv_chunk(path: Path, keys: list[int], rows: list[list[str]], delete: bool) -> UpdateChunk:
    array = np.array(keys, np.int64)
    if delete:
        return array, None
    try:
        numbers = np.array(rows).astype(np.float64)
    except ValueError:
        key = next(key for key, cells in zip(keys, rows, strict=True) if not all(map(_is_number, cells)))
        raise UpdateFileError(f"{path}: the row of key {key} has a value that is no number") from None
    return array, _finite(path, array, numbers)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _hugectr(path: Path, delete: bool) -> UpdateFile:
    from hebe.embeddings.hps.hugectr_files import KEY_FILE, VECTOR_FILE, SparseFiles

    for name in (KEY_FILE, VECTOR_FILE):
        if not (path / name).is_file():
            raise UpdateFileError(
                f"{path}: has no file {name}: a directory must be HugeCTR's sparse model; or give {_FORMS}"
            )
    count, values = os.path.getsize(path / KEY_FILE) // 8, os.path.getsize(path / VECTOR_FILE) // 4
    if not count or values % count or not values:
        raise UpdateFileError(
            f"{path}: {VECTOR_FILE} has {values:,} values for {count:,} keys: not as many for each; a file is cut short"
        )
    files = SparseFiles(path, values // count)
    chunks = (part for keys, rows in files.chunks() for part in _parts(path, keys, None if delete else rows))
    return UpdateFile(path, files.rows, chunks)
