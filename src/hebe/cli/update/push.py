"""What `hebe update push` reads, what it asks the log before it writes, and what it says when it was cut short: how
much the log has, and how to go on from there.

Rows, or keys to delete, come out of the files that people have, a few thousand at a time, checked, never unpickled:

.npz           NumPy arrays `keys` and `rows`
.safetensors   tensors `keys` and `rows`; or one tensor `weight`, whose keys are its row numbers
.csv           lines KEY,V0,V1,...; a first line that begins with "key" names the columns
a directory    HugeCTR's sparse model: files `key` and `emb_vector`
"""

from __future__ import annotations

import contextlib
import csv
import os
import time
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from hebe.cli.terminal.output import INTERRUPTED, TERMINATED, debugging, make_console, print_error, print_json
from hebe.embeddings.store import KeyArray, RowArray
from hebe.workload.text_errors import why_unreadable

if TYPE_CHECKING:
    from hebe.embeddings.updates.contract import Topic, UpdateLog, UpdateProducer

_MOST_NAMED = 20
_LONGEST_LOOK_S = 2.0


def warn_of_new_table(log: UpdateLog, topic: Topic) -> None:
    """Say that the log has other tables of that model, and not this one: nobody may read what a typo names."""
    from hebe.embeddings.store import StoreError

    try:
        tables = [known.table for known in log.topics() if known.model == topic.model]
    except StoreError:  # a log that is away, or lists nothing, is told when it is written to, or takes it
        return
    if tables and topic.table not in tables:
        names = ", ".join(tables[:_MOST_NAMED]) + (", ..." if len(tables) > _MOST_NAMED else "")
        make_console(as_json=True).print(
            f"no table {topic.table} of model {topic.model} in the log so far; there are {names}", markup=False
        )


def of_known_dim(chunks: Iterable[UpdateChunk], log: UpdateLog, topic: Topic) -> Iterator[UpdateChunk]:
    """The chunks, none if their rows have another dim than the newest that the log has of the table: servers would put
    them aside. Raises `UpdateFileError` then.
    """

    known: frozenset[int] | None = None
    for keys, rows in chunks:
        if rows is not None and known is None:
            known = _newest_dims(log, topic)
            if known and rows.shape[1] not in known:
                dims = " and ".join(map(str, sorted(known)))
                raise UpdateFileError(
                    f"table {topic.table}: these rows have dim {rows.shape[1]}, the newest in the log have {dims}: a "
                    f"server whose table has dim {dims} would put them aside; --any-dim pushes them all the same, as "
                    "for a new version of the model"
                )
        yield keys, rows


def _newest_dims(log: UpdateLog, topic: Topic) -> frozenset[int]:
    """Dims of the newest messages that the log has of `topic`, one of each partition; none where it does not say."""
    from hebe.embeddings.store import StoreError

    dims: set[int] = set()
    with contextlib.suppress(StoreError):  # told when it is written to
        if topic not in log.topics():
            return frozenset()
        with contextlib.closing(log.source(None, [topic])) as source:
            source.poll(0, 0.0)  # only then partitions are assigned
            newest = {at: source.last_offset(at) for at in source.assigned()}
            waiting = {at for at, offset in newest.items() if offset >= 0}
            for at in waiting:
                source.seek(at, newest[at] - 1)
            end_s = time.monotonic() + _LONGEST_LOOK_S
            while waiting and (left_s := end_s - time.monotonic()) > 0:
                for delivery in source.poll(len(newest), left_s):
                    waiting.discard(delivery.at)
                    if delivery.message is not None and delivery.message.rows is not None:
                        dims.add(delivery.message.rows.shape[1])
    return frozenset(dims)


def end_cut_short(fault: BaseException, producer: UpdateProducer, topic: Topic, *, delete: bool, as_json: bool) -> None:
    """Say why a push into `topic` ended and what the log has of it, and exit.

    Returns where the fault is a bug, whose traceback is the message, or shall be shown as one: then what the log has
    was said.
    """
    in_log, unsure = producer.keys_in_log()
    what = "deletes" if delete else "rows"
    said = _said_of(in_log, unsure, what)
    reason, code = _why(fault, topic)
    if reason is None or debugging():
        print_error(said)
        return
    print_error(f"{reason}; {said}")
    if as_json:
        counts = {"rows": 0, "deletes": 0} | {what: in_log, "unsure": unsure}
        print_json({"error": f"{reason}; {said}", "model": topic.model, "table": topic.table, **counts})
    raise typer.Exit(code) from None


def _why(fault: BaseException, topic: Topic) -> tuple[str | None, int]:
    """The reason in words, None where there are none, and the exit code."""
    from hebe.cli.main import explain

    if isinstance(fault, KeyboardInterrupt):
        return "interrupted", INTERRUPTED
    if isinstance(fault, SystemExit):
        return ("terminated", fault.code) if fault.code in TERMINATED else (None, 1)
    if type(fault) is ValueError:  # of the producer: arrays that are no rows of this table
        return f"table {topic.table}: {fault}", 1
    return explain(fault) if isinstance(fault, Exception) else None, 1


def _said_of(in_log: int, unsure: int, what: str) -> str:
    if not in_log and not unsure:
        return "nothing was pushed"
    more = f", and it may have up to {unsure:,} more" if unsure else ""
    return (
        f"the log took {in_log:,} {what}{more}; to go on, push the same again: {what} that come twice change nothing, "
        "unless newer ones of the same keys came in between"
    )


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
