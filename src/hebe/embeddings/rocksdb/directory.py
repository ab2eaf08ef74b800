"""The directory of a persistent store: whether it is ours, what it holds, who uses it, and how it goes.

    store.json   format, tables, identity of what was loaded, seal, checksum; without it there is no store
    store.lock   readers share it, a writer has it alone
    rows/        the database
    rows.tmp/    a copy on its way to become the database, and rows.old/ the one whose place it took
    load.sst     a file of rows on its way into the database
    replacement/ a store of other rows that a load fills, whose database then takes this one's place
    cache_keys.safetensors   which keys level 1 held when it was last closed (`tiers`)
    update_member            a random name of this store in logs of updates, which no copy has; made when it is needed

Nothing is removed that is not by name one of these, and nothing that somebody uses.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from hebe.embeddings.forked import close_in_children
from hebe.embeddings.store import StoreDamaged, StoreError

FORMAT = 3

_RECORD, _LOCK, _ROWS, _NEW_ROWS, _LOAD_FILE = "store.json", "store.lock", "rows", "rows.tmp", "load.sst"
_NEW_RECORD = f"{_RECORD}.new"
CACHE_KEYS = "cache_keys.safetensors"
_UPDATE_MEMBER = "update_member"
_NOTES = (CACHE_KEYS, f"{CACHE_KEYS}.new", _UPDATE_MEMBER, f"{_UPDATE_MEMBER}.new")
"""Of the rows that are there."""
_FILES = (_LOAD_FILE, _NEW_RECORD, *_NOTES)
"""Beside record and lock."""
_REPLACEMENT = "replacement"
_PATIENCE_S, _ASK_AGAIN_S = 0.5, 0.02
"""For a lock: the process that has a killed server's store (`process`) outlives it by a moment."""
_OLD_ROWS = f"{_ROWS}.old"
_DATABASES = (_ROWS, _OLD_ROWS, _NEW_ROWS, f"{_NEW_ROWS}.tmp")
"""The last is RocksDB's, while it makes a checkpoint."""
_DATABASE_FILE = re.compile(
    r"([0-9]+\.(sst|log)|CURRENT|IDENTITY|LOCK|LOG(\.old\.[0-9]+)?|MANIFEST-[0-9]+|OPTIONS-[0-9]+"
    r"|[A-Z0-9-]+\.dbtmp|rocksdict-config\.json)\Z"
)


@dataclass(frozen=True, slots=True)
class StoreRecord:
    """What a store says of itself: embedding dim by table, and the identity of what was loaded, None until it is.

    A table that is being loaded into a store is not among them until all of its rows are there.
    `seal` tells the database's list of files as its writer left it; None while there is a writer, or if it was killed.
    `opening`: the next writer has begun to open the database, which changes that list; until it is open the seal stays.
    """

    dims: dict[str, int]
    identity: str | None
    seal: str | None = None
    opening: bool = False

    @property
    def holds_rows(self) -> bool:
        """Whether it is more than a load that did not finish."""
        return bool(self.dims) or self.identity is not None

    def fits(self, dims: Mapping[str, int], identity: str) -> bool:
        """Whether it was loaded under this identity, and those of these tables that it has are as wide there."""
        return self.identity == identity and all(self.dims.get(table, dim) == dim for table, dim in dims.items())


def database_path(path: Path) -> Path:
    """Where the store in `path` has its database."""
    return path / _ROWS


def new_database_path(path: Path) -> Path:
    """Where a database of the store in `path` is put together before it takes its place."""
    return path / _NEW_ROWS


def replacement_path(path: Path) -> Path:
    """Where a load fills a store that is to replace the one in `path`."""
    return path / _REPLACEMENT


def load_file_path(path: Path) -> Path:
    """Where a load of the store in `path` writes rows for the database to take over."""
    return path / _LOAD_FILE


def files_bytes(path: Path) -> int:
    """What the files of the store in `path` take, without what they share with others taken off. Raises OSError."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def read_record(path: Path) -> StoreRecord | None:
    """The record of the store in `path`; None where there is nothing, or what a load or removal left unfinished.

    Raises `StoreError` for a directory that is somebody else's, and a record that is corrupted or of another format.
    """
    try:
        text = (path / _RECORD).read_text()
    except FileNotFoundError:
        if path.exists() and _foreign_entry(path) is not None:
            if not (path / _LOCK).exists() and _has_database(path):
                raise no_store(path) from None
            raise store_error(path, "is not empty and holds no store: give another path") from None
        return None
    try:
        record = json.loads(text)
        if record["format"] != FORMAT:
            advice = "remove the directory and load it anew"
            raise store_error(path, f"has format {record['format']}, this version reads {FORMAT}: {advice}")
        # An identity that the disk has changed would be taken for another one, and the store with its updates replaced.
        if record.pop("check") != _check(record):
            raise ValueError("its checksum does not fit")
        dims = {str(table): int(dim) for table, dim in record["dims"].items()}
        return StoreRecord(dims, record["identity"], record["seal"], record.get("opening", False))
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        raise store_error(path, f"store.json is corrupted ({fault}): remove the directory") from fault


def has_record(path: Path) -> bool:
    """Whether there is a store in `path`, whatever its record says."""
    return (path / _RECORD).exists()


def no_store(path: Path) -> StoreError:
    """That there is none in `path`, or only what is left of one."""
    if not _has_database(path):
        return store_error(path, "there is none")
    return store_error(
        path,
        f"{_RECORD} is missing beside {_ROWS}, as where a load or a removal was stopped, or a copy is not whole: "
        "put it back, or remove the directory and load it anew",
    )


def _has_database(path: Path) -> bool:
    return (path / _ROWS / "CURRENT").exists()


def write_record(path: Path, record: StoreRecord) -> None:
    """Replace the record of the store in `path`. The caller has the lock for itself."""
    content = {"format": FORMAT, **asdict(record)}
    _replace_file(path / _RECORD, json.dumps({**content, "check": _check(content)}, indent=1))


def update_member(path: Path) -> str:
    """The name in logs of updates of the store in `path`, which has one from now on. The caller writes the store alone,
    in this process or one of its own. Raises `StoreError`.
    """
    file = path / _UPDATE_MEMBER
    with faults(path, "cannot be written"):
        with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
            if re.fullmatch("[0-9a-f]{16}", name := file.read_text()):
                return name
        name = secrets.token_hex(8)
        _replace_file(file, name)
        return name


def _replace_file(file: Path, text: str) -> None:
    """Put `text` there as a whole, by way of a file beside it."""
    temporary = file.with_name(f"{file.name}.new")
    with open(temporary, "w") as written:
        written.write(text)
        written.flush()
        os.fsync(written.fileno())
    os.replace(temporary, file)


def _check(content: Mapping[str, Any]) -> int:
    """CRC-32 of a record's fields."""
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def take_lock(path: Path, *, exclusive: bool) -> IO[bytes]:
    """Lock the store in `path` until the returned file is closed. Raises `StoreError` if others are in the way."""
    file = path / _LOCK
    lock = open(file, "ab" if exclusive else "rb")  # noqa: SIM115 (held until the store is closed)
    give_up_s = time.monotonic() + _PATIENCE_S
    try:
        while True:
            try:
                fcntl.flock(lock, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up_s:
                    raise
                time.sleep(_ASK_AGAIN_S)
        if not os.path.samestat(os.fstat(lock.fileno()), file.stat()):
            raise BlockingIOError("removed meanwhile")
    except OSError as fault:
        lock.close()
        raise in_use(path) from fault
    close_in_children(lock)
    return lock


def in_use(path: Path) -> StoreError:
    """That others have the store in `path`."""
    return store_error(
        path,
        "is in use by another process or model: stop that first (a server that takes updates, and a load, have a store "
        "alone; those that only read share it)",
    )


def clear(path: Path) -> None:
    """Remove all of the store in `path` but its lock, which the caller has for itself.

    Raises `StoreError`, having removed nothing, if there is anything that is not the store's.
    """
    _refuse_foreign(path)
    (path / _RECORD).unlink(missing_ok=True)  # first: a removal that is interrupted leaves no store
    _clear_databases(path, (*_DATABASES, _REPLACEMENT))
    for name in _FILES:
        (path / name).unlink(missing_ok=True)


def clear_notes(path: Path) -> None:
    """Remove what was noted of rows that go: which of them level 1 held, and who they are in logs of updates."""
    for name in _NOTES:
        (path / name).unlink(missing_ok=True)


def clear_load(path: Path) -> None:
    """Remove what is left of a load that did not finish: its file, which may be a link to one of the database's, is
    written anew. A replacement that is being filled stays. The caller has the lock for itself.
    """
    load_file_path(path).unlink(missing_ok=True)
    with contextlib.suppress(StoreError):
        remove(replacement_path(path))


def clear_unfinished(path: Path) -> None:
    """Remove what is left of a new database that has not taken its place. The caller has the lock for itself.

    Raises `StoreError`, having removed nothing, if there is anything that is not the store's.
    """
    _refuse_foreign(path)
    _clear_databases(path, _DATABASES[1:])


def replace_database(path: Path, record: StoreRecord) -> None:
    """Put the new database of the store in `path` in the old one's place. The caller has the lock for itself.

    For the moment between the first line and the last but one there is no store.
    """
    (path / _RECORD).unlink(missing_ok=True)
    if (path / _ROWS).exists():
        os.rename(path / _ROWS, path / _OLD_ROWS)
    os.rename(path / _NEW_ROWS, path / _ROWS)
    write_record(path, record)
    _clear_databases(path, (_OLD_ROWS,))


def remove(path: Path, *, unless_loaded: bool = False) -> None:
    """Remove the store in `path`, or what is left of one, and the directory; not a whole one if `unless_loaded`.

    Raises `StoreError`, having removed nothing, if there is none, if it is in use, or if there is anything else.
    """
    with faults(path, "cannot be removed"):
        if path.is_symlink() or (read_record(path) is None and not (path / _LOCK).exists()):
            raise store_error(path, "there is none")
        with take_lock(path, exclusive=True):
            record = read_record(path)
            if unless_loaded and record is not None and record.identity is not None:
                return
            clear(path)
            (path / _LOCK).unlink()
            with contextlib.suppress(OSError):  # somebody begins a store here, or has something mounted here
                path.rmdir()


_NO_ROOM = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


@contextlib.contextmanager
def faults(path: Path, what: str) -> Iterator[None]:
    """Turn whatever RocksDB and the file system raise into a `StoreError` that names the path; their own words, which
    name files too, are not for clients.
    """
    try:
        yield
    except (StoreError, GeneratorExit):
        raise
    except Exception as fault:  # rocksdict raises plain Exception
        kind = next((kind for kind in ("Corruption", "IO error") if str(fault).startswith(kind)), "it failed")
        advice = ": restore a checkpoint, or remove the directory and load it anew" if kind == "Corruption" else ""
        if any(full in str(fault) for full in _NO_ROOM):
            advice = ": free some disk space; writes go on then"
        raised = StoreDamaged if kind == "Corruption" else StoreError
        raise raised(
            f"persistent store {path}: {what}: {fault}{advice}", f"persistent store: {what}: {kind}"
        ) from fault


def store_error(path: Path, what: str) -> StoreError:
    """A fault that is told without naming files."""
    return StoreError(f"persistent store {path}: {what}", f"persistent store: {what}")


def _clear_databases(path: Path, names: Iterable[str]) -> None:
    for name in names:
        if (path / name).exists():
            shutil.rmtree(path / name)


def _refuse_foreign(path: Path) -> None:
    foreign = _foreign_entry(path)
    if foreign is not None:
        raise store_error(path, f"holds {foreign}, which is not the store's: move it away")


def _foreign_entry(path: Path) -> str | None:
    """The first entry below `path` that no store has; the lock makes the others ours."""
    names = sorted(os.listdir(path))
    if names and _LOCK not in names and _RECORD not in names:
        return names[0]
    for name in names:
        if name not in (_RECORD, _LOCK, _REPLACEMENT, *_FILES, *_DATABASES) or (path / name).is_symlink():
            return name
    for name in _DATABASES:
        rows = path / name
        if not rows.exists():
            continue
        if not rows.is_dir():
            return name
        strangers = [entry.name for entry in os.scandir(rows) if not _DATABASE_FILE.match(entry.name) or entry.is_dir()]
        if strangers:
            return f"{name}/{min(strangers)}"
    if _REPLACEMENT not in names:
        return None
    inner = _foreign_entry(path / _REPLACEMENT) if (path / _REPLACEMENT).is_dir() else ""
    return None if inner is None else f"{_REPLACEMENT}/{inner}"
