"""HugeCTR's sparse model: a directory a table, with its keys and its vectors in files of their own.

    key          int64, one a row, in any order (HugeCTR stores them so whatever `supportlonglong` says;
                 uint32 is read too where that is false)
    emb_vector   float32, `dim` a row, in the order of the keys
    meta         int64, one a row, where there is one: how often the key was seen; larger is hotter

Rows are read when they are asked for, hours later too, by who fills a Redis anew that has lost them: files that are not
what they were are an error by then. Everything else in the directory (`slot_id`, ...) is passed over.

Files are kept open and read where they lie, not mapped (`OpenFile`): whatever becomes of one, reading it is at worst
an error, where the first number past the end of a mapped file that somebody has cut short ends the process (SIGBUS).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import os
import weakref
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hebe.embeddings.memory.table_memory import CHUNK_BYTES
from hebe.embeddings.store import KeyArray, RowArray, StoreError

log = logging.getLogger("hebe.hps")

KEY_FILE, VECTOR_FILE, META_FILE = "key", "emb_vector", "meta"
_COMPARED_KEYS = 1 << 20


class SparseFiles:
    """One table of HugeCTR's, `dim` numbers a row: `hebe.embeddings.memory.model_rows.KeyedRows`.

    Where a key is repeated the last of its rows counts, as it does for HPS; `duplicates` tells how many rows do not.
    `wide_keys`: HPS' `supportlonglong`. Raises `StoreError` naming the file that is missing, empty, cut short or of
    another dim.
    """

    def __init__(self, path: Path, dim: int, *, wide_keys: bool = True) -> None:
        self.path, self.dim = Path(path), dim
        self._files = {name: self._opened(name) for name in (KEY_FILE, VECTOR_FILE)}
        self.marks = self._marks_now()
        """By file, by what the system knows it (`OpenFile.mark`). Of before it was read: what is in it later is other.
        """
        self._known = self.marks
        """Of the last time that the content was seen to be what it was."""
        self._checksum: str | None = None
        key_bytes, vector_bytes = self.marks[KEY_FILE][0], self.marks[VECTOR_FILE][0]
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
        self._key_type = "<u4" if narrow else "<i8"
        if not wide_keys and not all(0 <= int(part.min()) <= int(part.max()) < 1 << 32 for part in self._key_parts()):
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
        return (8 + 4 * self.dim) * self.stored_rows

    def checksum(self, advance: Callable[[int], None] | None = None) -> str:
        """Of all keys and vectors, the same on every machine; reads the files. `advance(bytes)` while it does."""
        checksum = self._digest(advance)
        if self._marks_now() == self.marks:  # else it is not sure that it is of what was read before, as `_order` was
            self._checksum = checksum
        return checksum

    def _digest(self, advance: Callable[[int], None] | None = None) -> str:
        digest = hashlib.blake2b(f"{self.dim} 8".encode(), digest_size=16)
        keys = _parts(self._keys, self.stored_rows, CHUNK_BYTES // 8)
        vectors = _parts(self._floats, self.dim * self.stored_rows, CHUNK_BYTES // 4)
        for part in itertools.chain(keys, vectors):
            digest.update(part.view(np.uint8).data)
            if advance is not None:
                advance(part.nbytes)
        return digest.hexdigest()

    def chunks(self) -> Iterator[tuple[KeyArray, RowArray]]:
        """All rows in ascending order of key, at most `CHUNK_BYTES` at a time; each key once.

        Raises `StoreError` if a file has other content than when its checksum was taken, or than before the last chunk.
        """
        self._refuse_other_content()
        step, order = max(1, CHUNK_BYTES // (4 * self.dim)), self._order
        all_keys = None if order is None else self._keys(0, self.stored_rows)
        for first in range(0, self.rows, step):
            if order is None or all_keys is None:
                places = np.arange(first, min(first + step, self.rows))
                keys = self._keys(first, places.size)
            else:
                places = order[first : first + step]
                keys = all_keys[places]
            with _named(self, VECTOR_FILE):
                rows = self._files[VECTOR_FILE].rows("<f4", self.dim, places)
            self._refuse_changed(self._known)
            yield keys, rows

    def _refuse_other_content(self) -> None:
        """Raise `StoreError` unless the files are as they were. If only what the system knows of them has changed, as
        when they are given another name, or removed, their content tells.
        """
        now = self._marks_now()
        if now == self._known:
            return
        sizes_differ = any(now[name][0] != self._known[name][0] for name in now)
        if sizes_differ or self._checksum is None:
            self._refuse_changed(self._known)
        log.info("%s may have changed: its content is compared with what was loaded", self.path)
        if self._digest() != self._checksum:
            self._refuse_changed(self._known)
        self._refuse_changed(now)
        self._known = now

    def _refuse_changed(self, marks: dict[str, tuple[int, ...]]) -> None:
        """Raise `StoreError` naming a file that is not as `marks` say."""
        for name, now in self._marks_now().items():
            if now != marks[name]:
                what = "has changed since it was loaded: load it anew"
                raise self._fault(name, f"{what} (new files go in the place of old ones, not into them)")

    def first_keys(self, count: int) -> KeyArray:
        """The `count` distinct keys that were seen most often, those first, where `meta` says so; else the first in the
        file.
        """
        seen = self._seen()
        if seen is None:
            candidates = self._keys(0, min(count + self.duplicates, self.stored_rows))
        else:
            most = min(count + self.duplicates, seen.size)
            chosen = np.sort(np.argpartition(seen, seen.size - most)[seen.size - most :])
            hottest_first = chosen[np.argsort(~seen[chosen], kind="stable")]  # `~`: in descending order
            candidates = self._keys(0, self.stored_rows)[hottest_first]
        _, first = np.unique(candidates, return_index=True)
        return np.ascontiguousarray(candidates[np.sort(first)[:count]])

    @cached_property
    def _order(self) -> npt.NDArray[np.intp] | None:
        """The places of the distinct keys in ascending order; None where they lie in the file in just that order."""
        if self._ascends():
            return None
        keys = self._keys(0, self.stored_rows)
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        last = np.ones(keys.size, np.bool_)
        np.not_equal(ordered[1:], ordered[:-1], out=last[:-1])
        return order[last]

    def _ascends(self) -> bool:
        """Whether each key is above the one before."""
        before: int | None = None
        for part in self._key_parts():
            if (before is not None and part[0] <= before) or not (part[1:] > part[:-1]).all():
                return False
            before = int(part[-1])
        return True

    def _seen(self) -> KeyArray | None:
        if not (self.path / META_FILE).exists():
            return None
        with _named(self, META_FILE):
            file = OpenFile(self.path / META_FILE)
            size = file.mark()[0]
            if size == 8 * self.stored_rows:
                return file.numbers("<i8", 0, self.stored_rows)
        raise self._fault(META_FILE, f"has {size:,} bytes: must have 8 for each of the keys")

    def _opened(self, name: str) -> OpenFile:
        with _named(self, name):
            if (self.path / name).stat().st_size:
                return OpenFile(self.path / name)
        raise self._fault(name, "is empty")

    def _marks_now(self) -> dict[str, tuple[int, ...]]:
        return {name: file.mark() for name, file in self._files.items()}

    def _key_parts(self) -> Iterator[KeyArray]:
        """All keys in the order of the file."""
        return _parts(self._keys, self.stored_rows, _COMPARED_KEYS)

    def _keys(self, first: int, count: int) -> KeyArray:
        with _named(self, KEY_FILE):
            return self._files[KEY_FILE].numbers(self._key_type, first, count).astype(np.int64, copy=False)

    def _floats(self, first: int, count: int) -> npt.NDArray[np.float32]:
        with _named(self, VECTOR_FILE):
            return self._files[VECTOR_FILE].numbers("<f4", first, count)

    def _fault(self, name: str, what: str) -> StoreError:
        return StoreError(f"{self.path / name} {what}", f"HugeCTR file {name} {what}")


def _parts(read: Callable[[int, int], npt.NDArray[Any]], count: int, step: int) -> Iterator[npt.NDArray[Any]]:
    """What `read(first, count)` gives of `count` numbers, `step` at a time."""
    for first in range(0, count, step):
        yield read(first, min(step, count - first))


@contextlib.contextmanager
def _named(files: SparseFiles, name: str) -> Iterator[None]:
    """Faults of the file system name the file."""
    try:
        yield
    except OSError as fault:
        raise files._fault(name, f"cannot be read: {fault.strerror or fault}") from None


class OpenFile:
    """The file that is at `path` now; another one that is put in its place later is not read. Raises OSError, as all
    that reads does, for a file that has become shorter too.
    """

    def __init__(self, path: Path) -> None:
        self._number = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._number)

    def mark(self) -> tuple[int, ...]:
        """What the system knows it by: length, times of change of content and of anything (nanoseconds), inode and
        device.
        """
        told = os.fstat(self._number)
        return told.st_size, told.st_mtime_ns, told.st_ctime_ns, told.st_ino, told.st_dev

    def numbers(self, dtype: npt.DTypeLike, first: int, count: int) -> npt.NDArray[Any]:
        """`count` numbers from number `first` on."""
        found = np.empty(count, dtype)
        if count:
            self._read(found.data.cast("B"), first * found.itemsize)
        return found

    def rows(self, dtype: npt.DTypeLike, dim: int, places: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
        """The rows, of `dim` numbers each, whose numbers are `places`: `[len(places), dim]`."""
        found = np.empty((len(places), dim), dtype)
        if not found.size:
            return found
        target, row_bytes = found.data.cast("B"), dim * found.itemsize
        begins = np.flatnonzero(np.concatenate([[True], np.diff(places) != 1]))  # of what lies in the file as here
        ends = np.append(begins[1:], len(places)) * row_bytes
        for first, end, place in zip(
            (begins * row_bytes).tolist(), ends.tolist(), (places[begins] * row_bytes).tolist(), strict=True
        ):
            self._read(target[first:end], place)
        return found

    def _read(self, target: memoryview, place: int) -> None:
        while (count := os.preadv(self._number, [target], place)) < len(target):
            if not count:
                raise OSError("it has become shorter")
            target, place = target[count:], place + count
