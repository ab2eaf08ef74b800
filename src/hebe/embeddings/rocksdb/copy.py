"""Making a whole store out of a copy of another's database: files of rows by links, and in place only when complete.

Files of rows never change once written, so on the same disk a link will do, which takes no room and no time; a disk
that fails takes both, so that a copy for that is to be made on another.

`LinksDirectory` is a temporary directory for links to the files of a database that may not be written where it is. It
is locked as long as its process uses it. A process that is killed leaves it behind, unlocked, and whoever opens a store
next removes it. The lock is the system's, so that neither a process id that was given anew nor another container on the
same directory can mislead.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hebe.embeddings.rocksdb.directory import (
    StoreRecord,
    clear,
    clear_load,
    clear_notes,
    clear_unfinished,
    database_path,
    faults,
    files_bytes,
    has_record,
    in_use,
    new_database_path,
    read_record,
    remove,
    replace_database,
    replacement_path,
    store_error,
    take_lock,
)
from hebe.embeddings.rocksdb.log_check import fingerprint
from hebe.embeddings.store import StoreError

_log = logging.getLogger(__name__)

_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)
"""Another disk, or a file system that has none, or no more of this file."""

_READERS_FILES = ("LOCK", "LOG")
"""What RocksDB writes and does not read."""


@contextlib.contextmanager
def new_store(path: Path, record: StoreRecord, *, replace: bool = False) -> Iterator[Path]:
    """Make a store at `path`: gives the path at which to put its database, which takes its place when the block ends.

    What is there already is an error unless it is a store and `replace`; it stays until the new one is complete. So is
    a place within another store. A block that raises leaves all as it was. `record` is that of the new store; its seal,
    if it has one, must be that of the database, which gets one if it needs no log. Raises `StoreError`.
    """
    with faults(path, "cannot be written"):
        refuse_within_stores(path)
        held = read_record(path)
        if held is not None and not replace:
            raise store_error(path, "there is a store already: give another path, or replace it (`--replace`)")
        path.mkdir(parents=True, exist_ok=True)
        try:
            with take_lock(path, exclusive=True):
                clear_unfinished(path)
                rows = new_database_path(path)
                try:
                    yield rows
                    replace_database(path, StoreRecord(record.dims, record.identity, _seal(path, rows, record.seal)))
                except BaseException:
                    clear_unfinished(path)
                    raise
        except BaseException:
            if held is None:
                with contextlib.suppress(StoreError):
                    remove(path)
            raise


@contextlib.contextmanager
def replace_store(path: Path, record: StoreRecord, needed_bytes: int) -> Iterator[Path]:
    """Replace the store in `path`, whose record is `record`, by one of other rows: gives the path at which to make that
    one, which takes its place when the block ends.

    A block that raises, having removed what it made, leaves the old one as it was. Only where the disk has no room for
    both, of which the new one takes `needed_bytes`, does the old one go first. The log says so. Raises `StoreError`.
    """
    what = "cannot be replaced"
    with faults(path, what), take_lock(path, exclusive=True):
        clear_load(path)
        clear_unfinished(path)
        free = shutil.disk_usage(path).free
        if free + files_bytes(path) < needed_bytes:
            raise store_error(path, f"{what}: that needs {needed_bytes:,} bytes of disk, {free:,} are free")
        stays = record.holds_rows and free >= needed_bytes
        if record.holds_rows:
            when = "when the new one is complete" if stays else "now, since the disk has no room for both"
            _log.warning("persistent store %s is of other files: it goes with its updates, %s", path, when)
        if not stays:
            clear(path)
    if not stays:
        yield path
        return
    beside = replacement_path(path)
    yield beside
    try:
        with faults(path, what):
            made = read_record(beside)
        if made is None:
            raise in_use(path)
        with new_store(path, made, replace=True) as rows:
            os.rename(database_path(beside), rows)
            clear_notes(path)
    finally:
        with contextlib.suppress(StoreError):
            remove(beside)


def refuse_within_stores(path: Path, source: Path | None = None) -> None:
    """Raise `StoreError` for a `path` that lies within a store, or is the `source` of what is to come there.

    A store takes what has the names of its own files for what it left unfinished, and removes it; for anything else it
    refuses to be replaced.
    """
    place = path.resolve()
    own = None if source is None else source.resolve()
    outer = [directory for directory in place.parents if directory == own or has_record(directory)]
    if outer or place == own:
        where = f"lies in {outer[0]}, a store itself" if outer else "is the store itself"
        raise store_error(path, f"{where}: give another path")


def _seal(path: Path, rows: Path, wanted: str | None) -> str | None:
    found = fingerprint(rows)
    if wanted is not None and found != wanted:
        raise store_error(path, "the copy's list of files is not that of the store: try again")
    return None if wanted is None and any(log.stat().st_size for log in rows.glob("*.log")) else found


def copy_files(source: Path, rows: Path) -> None:
    """Copy the database in `source`, which nobody writes, to `rows`. Raises OSError."""
    rows.mkdir()
    for file in sorted(source.iterdir()):
        target = rows / file.name
        if file.name.startswith(_READERS_FILES):
            continue
        if file.suffix == ".sst":
            try:
                os.link(file, target)
                continue
            except OSError as fault:
                if fault.errno not in _NO_LINKS:
                    raise
        shutil.copyfile(file, target)
        _sync(target)
    _sync(rows)


def _sync(path: Path) -> None:
    """Have a file, or a directory's names, on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


_PREFIX = "hebe-store-links-"


class LinksDirectory:
    """An empty directory at `path`, which goes with all that is in it on `close`."""

    def __init__(self) -> None:
        while True:
            self._directory = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
            self.path = Path(self._directory.name)
            self._lock = _lock(self.path)
            if self._lock is not None:
                return
            self._directory.cleanup()  # another's `remove_left_over` came before the lock

    def close(self) -> None:
        """Remove it. Does nothing if that is done."""
        self._directory.cleanup()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def remove_left_over() -> None:
    """Remove the directories that killed processes of this user left; what cannot be removed stays."""
    left: list[Path] = []
    with contextlib.suppress(OSError):  # of full disks none is a temporary directory
        left = list(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"))
    for path in left:
        with contextlib.suppress(OSError):
            lock = _lock(path)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _lock(path: Path) -> int | None:
    """Lock this user's directory at `path` until what is returned is closed; None if it is another's, or gone."""
    with contextlib.ExitStack() as opened:
        try:
            directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            opened.callback(os.close, directory)
            found = os.fstat(directory)
            if found.st_uid != os.geteuid():
                return None
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(found, path.lstat()):
                opened.pop_all()
                return directory
        except (BlockingIOError, FileNotFoundError):
            pass
    return None
