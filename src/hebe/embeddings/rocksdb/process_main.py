"""The process that `process` starts: it has a persistent store open and answers on the connections it was given.

It ends when its parent closes them, however that ends: what was written is in RocksDB's log by then.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import numpy.typing as npt

from hebe.embeddings.options import RocksDbOptions
from hebe.embeddings.rocksdb.process_wire import fault_head, receive, send
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import KeyArray, RowArray, StoreError

_SWITCH_INTERVAL_S = 1e-4
"""So long may an update hold up a query where both run Python."""

_NICENESS = 15
"""Of the thread that writes, and of RocksDB's own: where cores are short, updates fall behind before queries wait."""

Answer = tuple[dict[str, Any], tuple[npt.NDArray[Any], ...]]


def main(arguments: list[str]) -> int:
    """Arguments: the store's directory, its options in JSON, and the descriptors of the connections."""
    path, options, *descriptors = arguments
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)  # they are for the server, which closes the store when it has stopped
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    writer, *readers = (socket.socket(fileno=int(descriptor)) for descriptor in descriptors)
    opened = Future[RocksDbStore]()
    for connection in readers:  # begun before this thread gives way: a query waits for them
        Thread(target=_read, args=(opened, connection), daemon=True).start()
    os.nice(_NICENESS)
    try:
        store = RocksDbStore(Path(path), options=RocksDbOptions(**json.loads(options)))
    except StoreError as fault:
        send(writer, fault_head(fault))
        return 1
    opened.set_result(store)
    send(writer, {"known_rows": store.known_rows})
    _serve(store, writer)
    return 0


def _read(opened: Future[RocksDbStore], connection: socket.socket) -> None:
    """Answer on one connection once the store is open."""
    _serve(opened.result(), connection)


def _serve(store: RocksDbStore, connection: socket.socket) -> None:
    """Answer on one connection until all is over."""
    try:
        while True:
            head, body = receive(connection)
            try:
                answer, arrays = _answer(store, head, body)
            except StoreError as fault:
                answer, arrays = fault_head(fault), ()
            except Exception as fault:
                answer, arrays = fault_head(StoreError(f"{type(fault).__name__}: {fault}", "it failed")), ()
            send(connection, answer, *arrays)
            if head["call"] == "close":
                os._exit(0)
    except (OSError, EOFError):
        os._exit(0)  # the parent is gone; other threads may be in RocksDB
    except BaseException:  # half a message may have been read: no later one could be made out
        traceback.print_exc()
        os._exit(1)


def _answer(store: RocksDbStore, head: Mapping[str, Any], body: memoryview) -> Answer:
    call, table = head["call"], head.get("table", "")
    keys: KeyArray = np.frombuffer(body, np.int64, head.get("keys", 0))
    rows: RowArray | None = None
    if "rows" in head:
        rows = np.frombuffer(body, np.float32, offset=keys.nbytes).reshape(head["rows"])
    match call:
        case "query":
            return _query(store, table, keys)
        case "apply":
            if "log" not in head:
                return _written(store, store.apply(table, keys, rows))
            position, mark, anew = (head["log"], head["offset"]), head["mark"], head["anew"]
            return _written(store, store.apply(table, keys, rows, position, mark=mark, anew=anew))
        case "insert":
            assert rows is not None
            store.insert(table, keys, rows)
            return _written(store, None)
        case "update":
            assert rows is not None
            return _written(store, store.update(table, keys, rows))
        case "delete":
            return _written(store, store.delete(table, keys))
        case "positions":
            return {"result": store.positions()}, ()
        case "marks":
            return {"result": store.marks()}, ()
        case "size":
            return {"result": store.size(table)}, ()
        case "dump_keys":
            page = next(store.dump_keys(table, head["batch_size"], after=head["after"]), np.empty(0, np.int64))
            return {}, (page,)
        case "close":
            store.close()
            return {}, ()
    raise StoreError(f"there is no call {call}")


def _written(store: RocksDbStore, result: Any) -> Answer:
    """With how many rows there are now: whoever wants to know them need not ask."""
    return {"result": result, "known_rows": store.known_rows}, ()


def _query(store: RocksDbStore, table: str, keys: KeyArray) -> Answer:
    """The mask of the keys that are there, and their rows alone."""
    found = np.zeros(len(keys), np.bool_)
    rows = np.empty((len(keys), store.dims.get(table, 0)), np.float32)
    count = store.query(table, keys, rows, found)
    return {"result": count}, (found, rows if found.all() else rows[found])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
