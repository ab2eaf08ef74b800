"""A trainer in a process of its own: rows to a log directory at a steady rate, for as long as it is told to.

    python -m hebe_lab.bench.embeddings.update_producer \
        LOG --model dlrm-rmc1 --rows-per-s 50000 --table '["table0", 100000, 32, 7]'

Reads `start` or `stop`, one a line, and answers each with a JSON line. Keys and rows are drawn beforehand and it gives
way to everybody, so that it takes little of the machine that it shares with the server.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np

from hebe.embeddings.store import KeyArray, RowArray
from hebe.embeddings.updates.directory.log import LogDirectory
from hebe.embeddings.updates.producer import BatchingProducer
from hebe.kernels.hash_tables.xxh64 import key_partitions
from hebe.machine.pinning import interrupt_nobody, lower_priority
from hebe.workload.key_skew import ZipfKeys

SKEW = ZipfKeys(1.2)
PERIOD_S = 0.1
"""So often a part of each table's rows is sent."""

_NICENESS = 19
_DRAWN_PERIODS = 50
"""So many parts of each table are drawn; then they come again."""
_LARGEST = 0.05
"""Of a row's numbers: about those of rows that nobody has trained."""
_ANSWER_S = 60.0


class UpdatedTable(NamedTuple):
    """A table that is trained, and which of its rows are hot (`KeySkew.draw`)."""

    name: str
    rows: int
    dim: int
    spread_seed: int


@dataclass(frozen=True, slots=True)
class Sent:
    """From a start to a stop: rows sent, seconds, and the process' own time."""

    rows: int
    seconds: float
    cpu_s: float


class ProducerProcess:
    """This module as a child process, which ends with the context. Raises RuntimeError when it fails."""

    def __init__(
        self, log: Path, model: str, tables: Sequence[UpdatedTable], rows_per_s: float, niceness: int = _NICENESS
    ) -> None:
        self._command = [sys.executable, "-m", "hebe_lab.bench.embeddings.update_producer", str(log), "--model", model]
        self._command += ["--rows-per-s", str(rows_per_s), "--niceness", str(niceness)]
        for table in tables:
            self._command += ["--table", json.dumps(table)]

    def __enter__(self) -> ProducerProcess:
        # Ctrl-C is for us, who then end it; should we end otherwise, its input does. Not in a session of its own, where
        # its low priority would count for nothing (`embeddings.rocksdb.process`).
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
        )
        try:
            self._answer()  # it has drawn what it will send
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def start(self) -> None:
        """Have rows come, from now on."""
        self._tell("start")

    def stop(self) -> Sent:
        """End that. What was sent is in the log."""
        return Sent(**json.loads(self._tell("stop")))

    def _tell(self, word: str) -> str:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{word}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError("the producer of updates has ended") from None
        return self._answer()

    def _answer(self) -> str:
        stream, lines = self._process.stdout, list[str]()
        assert stream is not None
        reader = threading.Thread(target=lambda: lines.append(stream.readline()), daemon=True)
        reader.start()
        reader.join(_ANSWER_S)
        if not any(lines):
            raise RuntimeError(f"the producer of updates {'has ended' if lines else 'does not answer'}")
        return lines[0]

    def _end(self) -> None:
        self._process.kill()
        self._process.communicate()


class _Trainer:
    """Sends in a thread, between `start` and `stop`. A part has no key twice, as what a trainer has changed since."""

    def __init__(self, producer: BatchingProducer, model: str, tables: Sequence[UpdatedTable], rows_per_s: float):
        chance = np.random.default_rng(1)
        self._producer, self._model = producer, model
        wanted = max(1, round(rows_per_s * PERIOD_S / len(tables)))
        self._periods = [[_part(table, wanted, chance) for table in tables] for _ in range(_DRAWN_PERIODS)]
        self._period_s = sum(keys.size for _, keys, _ in self._periods[0]) / rows_per_s
        key_partitions(np.empty(0, np.int64), 1)  # compiled before the first row is due
        self._stop = threading.Event()
        self._sent = 0
        self._next = 0

    def start(self) -> None:
        self._sent = 0
        self._stop.clear()
        self._began_s, self._began_cpu_s = time.monotonic(), time.process_time()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def stop(self) -> Sent:
        self._stop.set()
        self._thread.join()
        seconds = time.monotonic() - self._began_s
        self._producer.flush(_ANSWER_S / 2)
        return Sent(self._sent, seconds, time.process_time() - self._began_cpu_s)

    def _send(self) -> None:
        due_s = self._began_s
        while not self._stop.wait(max(due_s - time.monotonic(), 0.0)):
            for table, keys, rows in self._periods[self._next]:
                self._producer.send(self._model, table, keys, rows)
                self._sent += keys.size
            self._next = (self._next + 1) % len(self._periods)
            due_s += self._period_s


def _part(table: UpdatedTable, wanted: int, chance: np.random.Generator) -> tuple[str, KeyArray, RowArray]:
    """As many distinct keys as `wanted`, or as the table has, the hot ones first; and rows for them."""
    wanted = min(wanted, table.rows)
    keys = np.empty(0, np.int64)
    while keys.size < wanted:
        drawn = np.concatenate([keys, SKEW.draw(table.rows, 2 * wanted, chance, table.spread_seed)])
        _, first = np.unique(drawn, return_index=True)
        keys = drawn[np.sort(first)][:wanted]
    rows = chance.uniform(-_LARGEST, _LARGEST, (wanted, table.dim)).astype(np.float32)
    return table.name, keys, rows


def main() -> None:
    """Send as the command line and then the input say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows-per-s", type=float, required=True, help="of all tables together")
    parser.add_argument("--table", action="append", required=True, help="[name, rows, dim, spread_seed] as JSON")
    parser.add_argument("--niceness", type=int, default=_NICENESS)
    arguments = parser.parse_args()
    lower_priority(arguments.niceness)
    interrupt_nobody()
    tables = [UpdatedTable(*json.loads(table)) for table in arguments.table]
    with LogDirectory(arguments.log).producer() as producer:
        trainer = _Trainer(producer, arguments.model, tables, arguments.rows_per_s)
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            match line.strip():
                case "start":
                    trainer.start()
                    print(json.dumps("started"), flush=True)
                case "stop":
                    print(json.dumps(asdict(trainer.stop())), flush=True)
                case word:
                    raise SystemExit(f"{word!r}: write start or stop")


if __name__ == "__main__":
    main()
