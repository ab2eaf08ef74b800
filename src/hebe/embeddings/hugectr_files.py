"""HugeCTR's sparse model: a directory a table, with its keys and its vectors in files of their own.

    key          int64, one a row, in any order (HugeCTR stores them so whatever `supportlonglong` says;
                 uint32 is read too where that is false)
    emb_vector   float32, `dim` a row, in the order of the keys
    meta         int64, one a row, where there is one: how often the key was seen; larger is hotter

The files are mapped, not read. Everything else in the directory (`slot_id`, ...) is passed over.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hebe.embeddings.store import KeyArray, RowArray, StoreError
from hebe.embeddings.table_memory import CHUNK_BYTES, drop_mapped_pages

KEY_FILE, VECTOR_FILE, META_FILE = "key", "emb_vector", "meta"
_COMPARED_KEYS = 1 << 20


class SparseFiles:
    """One table of HugeCTR's, `dim` numbers a row: `hebe.embeddings.keyed_rows.KeyedRows`.

    Where a key is repeated the last of its rows counts, as it does for HPS; `duplicates` tells how many rows do not.
    `wide_keys`: HPS' `supportlonglong`. Raises `StoreError` naming the file that is missing, empty, cut short or of
    another dim.
    """

    def __init__(self, path: Path, dim: int, *, wide_keys: bool = True) -> None:
        self.path, self.dim = Path(path), dim
        self.marks = {name: self._mark(name) for name in (KEY_FILE, VECTOR_FILE)}
        """By file, by what the system knows it: length, times of change of content and of anything (nanoseconds),
        inode and device. Of before it was opened: what is put in its place later is another one.
        """
        key_bytes, vector_bytes = self._size(KEY_FILE), self._size(VECTOR_FILE)
        if vector_bytes % (4 * dim):
            raise self._fault(
                VECTOR_FILE,
                f"has {vector_bytes:,} bytes, which are no whole rows of {dim} float32: "
                "it is cut short, or the embedding dim is another",
            )
        self.stored_rows = vector_bytes // (4 * dim)
        """Rows in the file, repeated keys included."""
        narrow = not wide_keys and key_bytes == 4 * self.stored_rows
        if key_bytes != 8 * self.stored_rows and not narrow:
            raise self._fault(
                KEY_FILE,
                f"has {key_bytes:,} bytes, {self.stored_rows:,} int64 keys have {8 * self.stored_rows:,}: one of "
                f"{KEY_FILE} and {VECTOR_FILE} is cut short, or the embedding dim is not {dim}",
            )
        keys = self._mapped(KEY_FILE, "<u4" if narrow else "<i8")
        self._keys: KeyArray = keys.astype(np.int64) if narrow else keys
        self._vectors: RowArray = self._mapped(VECTOR_FILE, "<f4").reshape(-1, dim)
        if not wide_keys and not 0 <= int(self._keys.min()) <= int(self._keys.max()) < 1 << 32:
            raise self._fault(
                KEY_FILE, "has keys that 32 bits cannot hold, and supportlonglong is false: set it to true"
            )

    @property
    def rows(self) -> int:
        """How many distinct keys there are."""
        return self.stored_rows - self.duplicates

    @property
    def place(self) -> str:
        """The file of the rows."""
        return str(self.path / VECTOR_FILE)

    @property
    def duplicates(self) -> int:
        """Rows whose key comes again further behind."""
        return 0 if self._order is None else self.stored_rows - self._order.size

    @property
    def size_bytes(self) -> int:
        """Of all keys and vectors."""
        return self._keys.nbytes + self._vectors.nbytes

    def checksum(self, advance: Callable[[int], None] | None = None) -> str:
        """Of all keys and vectors, the same on every machine; reads the files. `advance(bytes)` while it does."""
        digest = hashlib.blake2b(f"{self.dim} {self._keys.dtype.itemsize}".encode(), digest_size=16)
        arrays: tuple[npt.NDArray[Any], ...] = (self._keys, self._vectors.reshape(-1))
        for array in arrays:
            step = CHUNK_BYTES // array.itemsize
            for first in range(0, array.size, step):
                part = array[first : first + step]
                digest.update(part.view(np.uint8).data)
                drop_mapped_pages(part)
                if advance is not None:
                    advance(part.nbytes)
        return digest.hexdigest()

    def chunks(self) -> Iterator[tuple[KeyArray, RowArray]]:
        """All rows in ascending order of key, at most `CHUNK_BYTES` at a time; each key once."""
        step, order = max(1, CHUNK_BYTES // (4 * self.dim)), self._order
        for first in range(0, self.rows, step):
            if order is None:
                rows = self._vectors[first : first + step]
                yield np.array(self._keys[first : first + step]), rows
                drop_mapped_pages(rows)
            else:
                chosen = order[first : first + step]
                yield self._keys[chosen], self._vectors[chosen]

    def first_keys(self, count: int) -> KeyArray:
        """The `count` distinct keys that were seen most often, those first, where `meta` says so; else the first in the
        file.
        """
        seen = self._seen()
        if seen is None:
            candidates: KeyArray = self._keys[: count + self.duplicates]
        else:
            most = min(count + self.duplicates, seen.size)
            chosen = np.sort(np.argpartition(seen, seen.size - most)[seen.size - most :])
            candidates = self._keys[chosen[np.argsort(~seen[chosen], kind="stable")]]  # `~`: in descending order
        _, first = np.unique(candidates, return_index=True)
        return np.ascontiguousarray(candidates[np.sort(first)[:count]])

    @cached_property
    def _order(self) -> npt.NDArray[np.intp] | None:
        """The places of the distinct keys in ascending order; None where they lie in the file in just that order."""
        keys = self._keys
        if _ascends(keys):
            return None
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        last = np.ones(keys.size, np.bool_)
        np.not_equal(ordered[1:], ordered[:-1], out=last[:-1])
        return order[last]

    def _seen(self) -> KeyArray | None:
        file = self.path / META_FILE
        if not file.exists():
            return None
        if self._size(META_FILE) != 8 * self.stored_rows:
            raise self._fault(META_FILE, f"has {file.stat().st_size:,} bytes: must have 8 for each of the keys")
        return self._mapped(META_FILE, "<i8")

    def _mark(self, name: str) -> tuple[int, ...]:
        with _named(self, name):
            told = (self.path / name).stat()
        return told.st_size, told.st_mtime_ns, told.st_ctime_ns, told.st_ino, told.st_dev

    def _size(self, name: str) -> int:
        with _named(self, name):
            size = (self.path / name).stat().st_size
        if not size:
            raise self._fault(name, "is empty")
        return size

    def _mapped(self, name: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        with _named(self, name):
            return np.memmap(self.path / name, dtype, mode="r").view(np.ndarray)

    def _fault(self, name: str, what: str) -> StoreError:
        return StoreError(f"{self.path / name} {what}", f"HugeCTR file {name} {what}")


@contextlib.contextmanager
def _named(files: SparseFiles, name: str) -> Iterator[None]:
    """Faults of the file system name the file."""
    try:
        yield
    except OSError as fault:
        raise files._fault(name, f"cannot be read: {fault.strerror or fault}") from None


def _ascends(keys: KeyArray) -> bool:
    """Whether each key is above the one before."""
    parts = (keys[first : first + _COMPARED_KEYS + 1] for first in range(0, keys.size, _COMPARED_KEYS))
    return all(bool((part[1:] > part[:-1]).all()) for part in parts)
