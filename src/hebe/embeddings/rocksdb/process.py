"""A persistent store in a process of its own, for a server that applies online updates to it.

RocksDB's binding keeps the interpreter lock while it writes, some microseconds a row: in the server's own process the
workers would wait for it (`hebe bench embeddings --only updates`). Here the lock that it keeps is its own.

A process that dies, or does not answer, is ended and started anew by the next call; until then calls raise
`StoreUnavailable`, upon which updates are written again, and queries do without (`tiers.tier_client`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hebe.embeddings.forked import close_in_children
from hebe.embeddings.options import RocksDbOptions
from hebe.embeddings.rocksdb.directory import store_error
from hebe.embeddings.rocksdb.process_wire import raise_fault, receive, send
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import (
    FoundMask,
    KeyArray,
    RowArray,
    StoreUnavailable,
    check_batch_size,
    check_keys,
    check_query,
    check_rows,
)

log = logging.getLogger("hebe.tiers")

Result = TypeVar("Result")

_ANSWER_S = 120.0
"""A process that does not answer for so long is ended: RocksDB itself gives up sooner when its disk is too slow."""
_DYING_S = 1.0
"""A process that is told to end, or has closed its connections, has so long for it."""
_RESTART_S = 1.0
"""Between two starts: a store that fails as soon as it is opened is not asked for more often."""


class StoreProcess:
    """The `EmbeddingStore` and `PositionedStore` in directory `path`, whose tables have embedding dims `dims`.

    `readers` calls may read at once, and one more may write. The process has cores from the thread that starts it.
    Raises `StoreError` as `RocksDbStore` does.
    """

    def __init__(self, path: Path, dims: Mapping[str, int], options: RocksDbOptions, readers: int) -> None:
        self.path = path
        self.dims = dict(dims)
        self._options, self._readers = options, readers
        self._starting = threading.Lock()
        self._closed = False
        self._started_s = time.monotonic()
        self._child: _Child | None = _Child(path, options, readers)
        self.known_rows = self._child.known_rows
        """Of all tables, after the last write that was answered, or the last start."""

    @classmethod
    def take_over(cls, store: RocksDbStore, readers: int) -> StoreProcess:
        """Close `store` and open it in a process of its own."""
        store.close()
        return cls(store.path, store.dims, store.options, readers)

    @property
    def process_id(self) -> int | None:
        """Of the process; None while there is none."""
        child = self._child
        return None if child is None else child.process.pid

    def query(self, table: str, keys: KeyArray, rows: RowArray, found: FoundMask) -> int:
        """See `EmbeddingStore.query`."""
        check_query(table, keys, rows, found, self._dim(table))
        head, body = self._ask({"call": "query", "table": table}, keys)
        count: int = head["result"]
        mask = np.frombuffer(body, np.bool_, len(keys))
        arrived = np.frombuffer(body, np.float32, offset=len(keys)).reshape(count, -1) if count else rows[:0]
        found[:] = mask
        if count == len(keys):
            rows[:] = arrived
        else:
            rows[mask] = arrived
        return count

    def insert(self, table: str, keys: KeyArray, rows: RowArray) -> None:
        """See `EmbeddingStore.insert`."""
        check_rows(table, keys, rows, self._dim(table))
        self._ask({"call": "insert", "table": table}, keys, rows, writes=True)

    def update(self, table: str, keys: KeyArray, rows: RowArray) -> int:
        """See `EmbeddingStore.update`."""
        check_rows(table, keys, rows, self._dim(table))
        return self._result(int, {"call": "update", "table": table}, keys, rows, writes=True)

    def delete(self, table: str, keys: KeyArray) -> int:
        """See `EmbeddingStore.delete`."""
        self._dim(table)
        check_keys(table, keys)
        return self._result(int, {"call": "delete", "table": table}, keys, writes=True)

    def apply(
        self,
        table: str,
        keys: KeyArray,
        rows: RowArray | None,
        position: tuple[str, int] | None = None,
        *,
        mark: str = "",
        anew: bool = False,
        offsets: KeyArray | None = None,  # noqa: ARG002  (of stores that keep them by key)
    ) -> bool:
        """See `RocksDbStore.apply`."""
        dim = self._dim(table)
        if rows is None:
            check_keys(table, keys)
        else:
            check_rows(table, keys, rows, dim)
        noted = {} if position is None else {"log": position[0], "offset": position[1], "mark": mark, "anew": anew}
        return self._result(bool, {"call": "apply", "table": table, **noted}, keys, rows, writes=True)

    def positions(self) -> dict[str, int]:
        """See `RocksDbStore.positions`."""
        return self._result(dict[str, int], {"call": "positions"})

    def marks(self) -> dict[str, str]:
        """See `RocksDbStore.marks`."""
        return self._result(dict[str, str], {"call": "marks"})

    def dump_keys(self, table: str, batch_size: int) -> Iterator[KeyArray]:
        """See `EmbeddingStore.dump_keys`. In ascending order."""
        check_batch_size(batch_size)
        after: int | None = None
        while True:
            _, body = self._ask({"call": "dump_keys", "table": table, "batch_size": batch_size, "after": after})
            keys = np.frombuffer(body, np.int64)
            if not keys.size:
                return
            after = int(keys[-1])
            yield keys

    def size(self, table: str) -> int:
        """See `EmbeddingStore.size`."""
        return self._result(int, {"call": "size", "table": table})

    def close(self) -> None:
        """See `EmbeddingStore.close`. Waits for calls that run, and for the process to end."""
        with self._starting:
            self._closed = True
            child, self._child = self._child, None
        if child is not None:
            child.close()

    def _dim(self, table: str) -> int:
        """Of a table. What crosses to the process are bytes: arrays of another kind would be others there."""
        if self._closed:
            raise store_error(self.path, "is closed")
        if table not in self.dims:
            raise store_error(self.path, f"no table {table}; there are {', '.join(self.dims)}")
        return self.dims[table]

    def _result(
        self,
        result: Callable[[Any], Result],
        head: dict[str, Any],
        keys: KeyArray | None = None,
        rows: RowArray | None = None,
        *,
        writes: bool = False,
    ) -> Result:
        """Have a call answered whose answer is a `result` alone. Raises as `_ask` does."""
        answer, _ = self._ask(head, keys, rows, writes=writes)
        return result(answer["result"])

    def _ask(
        self, head: dict[str, Any], keys: KeyArray | None = None, rows: RowArray | None = None, *, writes: bool = False
    ) -> tuple[dict[str, Any], memoryview]:
        """Have a call answered. Raises the `StoreError` that it raised there, or `StoreUnavailable`."""
        arrays: list[Any] = []
        if keys is not None:
            head["keys"] = len(keys)
            arrays.append(keys)
        if rows is not None:
            head["rows"] = rows.shape
            arrays.append(rows)
        child = self._running()
        try:
            with child.connection(writes=writes) as connection:
                send(connection, head, *arrays)
                answer, body = receive(connection)
        except BaseException as fault:
            status = child.end()
            if isinstance(fault, BlockingIOError):
                what = f"its process did not answer within {_ANSWER_S:g} s"
            elif isinstance(fault, OSError | EOFError):
                what = f"its process ended ({status})"
            else:
                what = f"a call was broken off ({type(fault).__name__}) and its process ended"
            with self._starting:
                if self._child is child:
                    self._child = None
                    log.warning("persistent store %s: %s; it is started anew when it is needed", self.path, what)
            if isinstance(fault, OSError | EOFError):
                raise self._unavailable(what) from fault
            raise
        raise_fault(answer)
        if writes:
            self.known_rows = answer["known_rows"]
        return answer, body

    def _running(self) -> _Child:
        """The process, started anew if there is none."""
        with self._starting:
            if self._closed:
                raise store_error(self.path, "is closed")
            if self._child is None:
                if time.monotonic() < self._started_s + _RESTART_S:
                    raise self._unavailable("its process ended")
                self._started_s = time.monotonic()
                self._child = _Child(self.path, self._options, self._readers)
                self.known_rows = self._child.known_rows
            return self._child

    def _unavailable(self, what: str) -> StoreUnavailable:
        return StoreUnavailable(f"persistent store {self.path}: {what}", f"persistent store: {what}")


class _Child:
    """One process and the connections to it: the first one writes, the others read, each in one thread at a time."""

    def __init__(self, path: Path, options: RocksDbOptions, readers: int) -> None:
        ours, theirs = zip(*(socket.socketpair() for _ in range(readers + 1)), strict=True)
        self._writer: list[socket.socket] = [ours[0]]
        self._readers: list[socket.socket] = list(ours[1:])
        self._all = ours
        self._changed = threading.Condition()
        self._ended = False
        descriptors = [each.fileno() for each in theirs]
        command = [sys.executable, "-P", "-m", "hebe.embeddings.rocksdb.process_main", str(path)]
        try:
            self.process = subprocess.Popen(
                [*command, json.dumps(asdict(options)), *map(str, descriptors)],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                # Ctrl-C does not reach it before the server has stopped. Not a session of its own, beside which the
                # kernel would share out cores evenly (sched_autogroup), whatever priority its threads have.
                process_group=0,
            )
        except OSError as fault:
            self._close_idle()
            raise store_error(path, f"its process cannot be started: {fault}") from fault
        finally:
            for each in theirs:
                each.close()
        try:
            with self.connection(writes=True) as connection:
                answer, _ = receive(connection)  # however long it takes to open it
            raise_fault(answer)
            self.known_rows: int = answer["known_rows"]
        except (OSError, EOFError) as fault:
            raise store_error(path, f"its process ended ({self.end()}) while it opened the store") from fault
        except BaseException:
            self.end()
            raise
        for each in ours:
            close_in_children(each)
            timeout = struct.pack("ll", int(_ANSWER_S), 0)  # of the kernel: Python's own costs another call each time
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)

    @contextlib.contextmanager
    def connection(self, *, writes: bool) -> Iterator[socket.socket]:
        """A connection for this thread alone. Raises EOFError if the process was ended.

        Whatever the block raises, half a message may be on its way then: the process is ended.
        """
        idle = self._writer if writes else self._readers
        with self._changed:
            self._changed.wait_for(lambda: idle or self._ended)
            if not idle:
                raise EOFError("the process was ended")
            mine = idle.pop()
        try:
            yield mine
        except BaseException:
            self.end()
            raise
        finally:
            with self._changed:
                idle.append(mine)
                if self._ended:
                    self._close_idle()
                self._changed.notify_all()

    def close(self) -> None:
        """Have the store closed, after the calls that run; the process is ended if that takes too long."""
        give_up_s = time.monotonic() + _ANSWER_S
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._are_idle, _ANSWER_S)
        with contextlib.suppress(OSError, EOFError, subprocess.TimeoutExpired), self.connection(writes=True) as writer:
            send(writer, {"call": "close"})
            receive(writer)
            self.process.wait(max(give_up_s - time.monotonic(), 0.0))
        self.end()

    def end(self) -> int:
        """End the process, if it runs, and let go of the connections; returns its exit status."""
        with self._changed:
            if not self._ended:
                self._ended = True
                for each in self._all:
                    with contextlib.suppress(OSError):
                        each.shutdown(socket.SHUT_RDWR)  # whoever waits for an answer learns of it
                self._close_idle()
                self._changed.notify_all()
        try:
            return self.process.wait(_DYING_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    @property
    def _are_idle(self) -> bool:
        return len(self._writer) + len(self._readers) == len(self._all)

    def _close_idle(self) -> None:
        for idle in (self._writer, self._readers):
            while idle:
                idle.pop().close()
