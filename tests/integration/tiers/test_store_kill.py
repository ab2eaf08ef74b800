"""A persistent store whose writer is killed with -9 at any moment: all that was acknowledged is there, and its
positions say exactly which updates its rows are.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hebe.embeddings.rocksdb.store import RocksDbStore, restore
from hebe.embeddings.store import StoreError
from tests.places import ROOT

TABLES = {"users": 256, "items": 3}
KEYS = 1500
PATIENCE_S = 60

WRITER = """
import sys
from pathlib import Path
from hebe.embeddings.rocksdb.store import RocksDbStore
from tests.integration.tiers.test_store_kill import TABLES, message
store = RocksDbStore(Path(sys.argv[1]), TABLES)
offsets = {table: store.positions().get(table, -1) for table in TABLES}
print("ready", flush=True)
number = 0
while True:
    table = list(TABLES)[number % 2]
    offsets[table] += 1
    number += 1
    keys, rows = message(table, offsets[table])
    assert store.apply(table, keys, rows, (table, offsets[table]))
    print(table, offsets[table], flush=True)
    if number % 60 == 0:
        store.checkpoint(Path(sys.argv[2]), replace=True)
"""


def message(table: str, offset: int) -> tuple[np.ndarray, np.ndarray | None]:
    """The update of this offset of a table's log: keys and rows, or keys that go."""
    rng = np.random.default_rng([offset, len(table)])
    keys = rng.integers(-KEYS, KEYS, 400)
    return keys, None if offset % 7 == 3 else np.repeat(rng.random((400, 1), np.float32), TABLES[table], 1)


class Expected:
    """The rows that the messages up to an offset make."""

    def __init__(self, table: str) -> None:
        self.table, self.offset = table, -1
        self.rows: dict[int, float] = {}

    def follow(self, offset: int) -> None:
        for number in range(self.offset + 1, offset + 1):
            keys, rows = message(self.table, number)
            for place, key in enumerate(keys.tolist()):
                if rows is None:
                    self.rows.pop(key, None)
                else:
                    self.rows[key] = float(rows[place, 0])
        self.offset = offset

    def check(self, store: RocksDbStore) -> None:
        keys = np.arange(-KEYS, KEYS)
        rows, found = np.zeros((len(keys), TABLES[self.table]), np.float32), np.zeros(len(keys), np.bool_)
        assert store.query(self.table, keys, rows, found) == len(self.rows) == store.size(self.table)
        assert (rows == rows[:, :1]).all()
        assert dict(zip(keys[found].tolist(), rows[found, 0].tolist(), strict=True)) == self.rows


def killed_after(path: Path, seconds: float, messages: int = 0) -> dict[str, int]:
    """Run the writer for so long once it has acknowledged so many messages; returns the last offsets of all."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path / "store"), str(path / "checkpoint")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )
    assert writer.stdout is not None
    with writer, writer.stdout as output:
        assert output.readline() == "ready\n"
        first = [output.readline() for _ in range(messages)]
        time.sleep(seconds)
        writer.send_signal(signal.SIGKILL)
        whole_lines = [line.split() for line in (*first, *output) if line.endswith("\n")]
        assert writer.wait(PATIENCE_S) == -signal.SIGKILL
    return {table: int(offset) for table, offset in whole_lines}


@pytest.mark.parametrize("seed", [1, 2])
def test_a_killed_writer_loses_nothing_and_knows_where_it_was(tmp_path: Path, seed: int):
    rng = np.random.default_rng(seed)
    expected = {table: Expected(table) for table in TABLES}
    for _ in range(4):
        acknowledged = killed_after(tmp_path, rng.uniform(0.05, 1.5))
        with contextlib.closing(RocksDbStore(tmp_path / "store", read_only=bool(rng.random() < 0.5))) as store:
            positions = store.positions()
            for table, rows in expected.items():
                known = acknowledged.get(table, rows.offset)
                assert known <= positions.get(table, -1) <= known + 1
                rows.follow(positions.get(table, -1))
                rows.check(store)
            assert store.verify() == {table: len(rows.rows) for table, rows in expected.items()}


def test_a_checkpoint_is_whole_whenever_its_writer_was_killed(tmp_path: Path):
    """The last one, or the one before where it was killed while it made it; there is none for a moment between them."""
    restored = 0
    for seconds in (0.0, 0.3, 0.5):
        killed_after(tmp_path, seconds, messages=130)
        with contextlib.suppress(StoreError):
            restore(tmp_path / "checkpoint", tmp_path / "restored", replace=True)
            restored += 1
        with contextlib.closing(RocksDbStore(tmp_path / "restored", read_only=True)) as store:
            for table in TABLES:
                rows = Expected(table)
                rows.follow(store.positions()[table])
                rows.check(store)
    assert restored
