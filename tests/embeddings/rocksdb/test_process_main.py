"""What the process of a store does that a `StoreProcess`, which starts it, never asks of it."""

import os
import socket
import subprocess
import sys

import numpy as np
import pytest

from hebe.embeddings.rocksdb.process_wire import raise_fault, receive, send
from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.store import StoreError
from hebe.spec import EmbeddingTableSpec


def asked(connection: socket.socket, head: dict, *arrays: np.ndarray) -> dict:
    send(connection, head, *arrays)
    answer, _ = receive(connection)
    raise_fault(answer)
    return answer


def test_a_call_that_fails_is_told_and_the_next_one_answered(tmp_path) -> None:
    table = EmbeddingTableSpec("t", 3, 2)
    RocksDbStore.load(tmp_path / "store", [table], {"t": np.ones((3, 2), np.float32)}, "identity").close()
    ours, theirs = zip(*(socket.socketpair() for _ in range(2)), strict=True)
    descriptors = [each.fileno() for each in theirs]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "hebe.embeddings.rocksdb.process_main",
            tmp_path / "store",
            "{}",
            *map(str, descriptors),
        ],
        pass_fds=descriptors,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        for each in theirs:
            each.close()
        writer, reader = ours
        writer.settimeout(60.0)
        reader.settimeout(60.0)
        assert receive(writer) == ({"known_rows": 3}, b"")
        with pytest.raises(StoreError, match="there is no call dance"):
            asked(reader, {"call": "dance"})
        with pytest.raises(StoreError, match="no table"):
            asked(reader, {"call": "size", "table": "other"})
        with pytest.raises(StoreError, match="ValueError"):
            asked(reader, {"call": "query", "table": "t", "keys": 9}, np.zeros(1, np.int64))
        assert asked(reader, {"call": "size", "table": "t"}) == {"result": 3}
        deleted = asked(writer, {"call": "delete", "table": "t", "keys": 1}, np.zeros(1, np.int64))
        assert deleted == {"result": 1, "known_rows": 2}
        assert asked(reader, {"call": "size", "table": "t"}) == {"result": 2}
        assert asked(writer, {"call": "close"}) == {}
        assert process.wait(60.0) == 0
    finally:
        process.kill()
        process.wait()
        for each in ours:
            each.close()
