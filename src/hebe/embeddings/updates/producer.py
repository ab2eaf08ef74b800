"""The producer that trainers use, whatever carries its messages: parts rows by key, batches, numbers and sends them.

    send, delete ──▶ one batch a partition ──full, old or flushed──▶ messages waiting ──thread──▶ carrier

One thread talks to the carrier, so messages of a partition reach it in the order of their numbers. One that the carrier
does not take stays first in line and is tried again under the same number: consumers skip what arrives twice.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from hebe.embeddings.store import KeyArray, RowArray, StoreError, StoreUnavailable
from hebe.embeddings.updates.contract import Topic, TopicPartition, UpdateMessage, data_bytes
from hebe.embeddings.updates.limits import MOST_DIM, BatchingOptions
from hebe.embeddings.updates.message import encode, keys_of, most_keys
from hebe.kernels.hash_tables.xxh64 import key_partitions
from hebe.spec import check_name

FIRST_RETRY_S, LONGEST_RETRY_S = 0.05, 2.0


class UpdateCarrier(Protocol):
    """What a log does for the producer, called by one thread at a time."""

    def partitions(self, topic: Topic) -> int:
        """How many partitions the topic has; it is made if there is none. Raises `StoreUnavailable`."""
        ...

    def append(self, at: TopicPartition, payload: bytes) -> None:
        """Add a message to the end of its partition.

        Raises `StoreUnavailable` when that failed and can be tried again, having added it or not, and `StoreError` for
        what somebody must see to. A carrier that sends in the background may return before, if it keeps the order of a
        partition, tries again by itself and tells in `flush`.
        """
        ...

    def flush(self, timeout_s: float) -> None:
        """Return when all that was appended is in the log, for good. Raises `StoreUnavailable` when time is over."""
        ...

    def unconfirmed(self) -> Iterable[bytes]:
        """The messages that were appended and that the log has not said yet to have; also after `close`."""
        ...

    def close(self) -> None:
        """Let go of connections and files."""
        ...


@dataclass(slots=True)
class _Batch:
    """Rows (or tombstones) of one partition that are no message yet."""

    dim: int
    sent_s: float
    """Wall clock of the oldest."""
    newest_s: float
    """Wall clock of the newest."""
    due_s: float
    """When it goes out at the latest, by the monotonic clock."""
    keys: list[KeyArray] = field(default_factory=list)
    rows: list[RowArray] = field(default_factory=list)
    count: int = 0


class BatchingProducer:
    """An `UpdateProducer` over `carrier`, which it closes. May be used by several threads.

    `name` tells this producer from all others: by default it is random. `clock` is the wall clock.

    A call that raises `StoreUnavailable` has taken nothing, but `flush` and `close`: there the messages still wait.
    """

    def __init__(
        self,
        carrier: UpdateCarrier,
        options: BatchingOptions | None = None,
        name: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = secrets.token_hex(8) if name is None else name
        check_name("producer", self.name)
        self.options = options or BatchingOptions()
        self._carrier, self._clock = carrier, clock
        self._changed = threading.Condition()
        self._partitions: dict[Topic, int] = {}
        self._dims: dict[Topic, int] = {}
        self._batches: dict[TopicPartition, _Batch] = {}
        self._sequences: dict[TopicPartition, int] = {}
        self._waiting: deque[tuple[TopicPartition, bytes]] = deque()
        self._waiting_bytes = 0
        self._rows_bytes = 0
        self._appended_keys = self._tried_keys = 0
        """Of what the carrier took, and of the message that it was given and may have added before it failed."""
        self._fault: StoreError | None = None
        self._closing = False
        self._calling = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="hebe-update-producer", daemon=True)
        self._thread.start()

    def send(self, model: str, table: str, keys: KeyArray, rows: RowArray) -> None:
        """See `UpdateProducer.send`. Rows must be finite, and of one dim a table; the arrays are copied."""
        rows = np.asarray(rows)
        if rows.dtype != np.float32 or rows.ndim != 2 or not 1 <= rows.shape[1] <= MOST_DIM:
            raise ValueError(f"rows are {rows.dtype} {list(rows.shape)}: must be float32 [n, dim], dim to {MOST_DIM}")
        if not np.isfinite(rows).all():
            raise ValueError(f"rows of table {table} are not all finite: training has diverged")
        self._take(Topic(model, table), keys, rows)

    def delete(self, model: str, table: str, keys: KeyArray) -> None:
        """See `UpdateProducer.delete`."""
        self._take(Topic(model, table), keys, None)

    def flush(self, timeout_s: float = 10.0) -> None:
        """See `UpdateProducer.flush`. Raises at once what somebody must see to."""
        end_s = time.monotonic() + timeout_s
        with self._changed:
            for at in list(self._batches):
                self._cut(at)
            self._fault = None
            self._changed.notify_all()
            self._wait_until(lambda: not self._waiting, end_s)
        with self._calling:
            self._carrier.flush(max(0.0, end_s - time.monotonic()))

    def close(self, timeout_s: float = 10.0) -> None:
        """See `UpdateProducer.close`. Raises as `flush` does when messages are left, which are lost then."""
        with self._changed:
            if self._closing:
                return
        try:
            self.flush(timeout_s)
        finally:
            with self._changed:
                self._closing = True
                self._changed.notify_all()
            self._thread.join()
            self._carrier.close()

    def __enter__(self) -> BatchingProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def keys_in_log(self) -> tuple[int, int]:
        """See `UpdateProducer.keys_in_log`."""
        with self._calling:
            unconfirmed = sum(map(keys_of, self._carrier.unconfirmed()))
            return self._appended_keys - unconfirmed, unconfirmed + self._tried_keys

    @property
    def waiting_bytes(self) -> int:
        """Bytes of messages and batches that the log does not have yet."""
        return self._waiting_bytes + self._rows_bytes

    def _take(self, topic: Topic, keys: KeyArray, rows: RowArray | None) -> None:
        check_name("model", topic.model)
        check_name("table", topic.table)
        keys = np.asarray(keys)
        if keys.dtype != np.int64 or keys.ndim != 1:
            raise ValueError(f"keys are {keys.dtype} {list(keys.shape)}: must be int64 [n]")
        dim = 0 if rows is None else rows.shape[1]
        if rows is not None and len(rows) != len(keys):
            raise ValueError(f"{len(rows)} rows for {len(keys)} keys")
        if most_keys(self.name, topic, dim, self.options.max_message_bytes) < 1:
            raise ValueError(f"a row of dim {dim}: max_message_bytes is {self.options.max_message_bytes:,}")
        end_s = time.monotonic() + self.options.send_timeout_s
        parts = self._partitions_of(topic, end_s)
        size = data_bytes(keys, rows)
        owners = key_partitions(keys, parts)
        order = np.argsort(owners, kind="stable")
        keys, rows = keys[order], None if rows is None else rows[order]
        bounds = np.searchsorted(owners[order], np.arange(parts + 1))
        with self._changed:
            # A call of more than may wait is let in when nothing else does.
            most = self.options.max_waiting_bytes
            self._wait_until(lambda: not self._waiting or self.waiting_bytes + size <= most, end_s)
            if self._closing:
                raise StoreError("the update producer is closed")
            if rows is not None and self._dims.setdefault(topic, dim) != dim:
                raise ValueError(f"rows of table {topic.table} had dim {self._dims[topic]}, these have {dim}")
            for partition in np.flatnonzero(np.diff(bounds)).tolist():
                part = slice(bounds[partition], bounds[partition + 1])
                at = TopicPartition(topic.model, topic.table, partition)
                self._add(at, keys[part], None if rows is None else rows[part], dim)
            self._changed.notify_all()

    def _partitions_of(self, topic: Topic, end_s: float) -> int:
        while topic not in self._partitions:
            try:
                with self._calling:
                    if self._closing:
                        raise StoreError("the update producer is closed")
                    self._partitions[topic] = self._carrier.partitions(topic)
            except StoreUnavailable:
                if time.monotonic() + FIRST_RETRY_S >= end_s:
                    raise
                time.sleep(FIRST_RETRY_S)
        return self._partitions[topic]

    def _wait_until(self, ready: Callable[[], bool], end_s: float) -> None:
        """Wait under `_changed`. Raises the carrier's fault: one that heals when the time is over, others at once."""
        while not ready() and not self._closing:
            if self._fault is not None and not isinstance(self._fault, StoreUnavailable):
                raise self._fault
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise self._fault or StoreUnavailable(
                    f"the update log has not taken {self.waiting_bytes:,} bytes in time; they still wait"
                )
            self._changed.wait(left_s)

    def _add(self, at: TopicPartition, keys: KeyArray, rows: RowArray | None, dim: int) -> None:
        batch = self._batches.get(at)
        if batch is not None and batch.dim != dim:  # rows after tombstones, or the other way: in order
            self._cut(at)
            batch = None
        if batch is None:
            batch = self._batches[at] = self._new_batch(dim)
        # What a model has that was exported in between is not all of the batch: consumers go by both times.
        batch.newest_s = max(batch.newest_s, self._clock())
        batch.keys.append(keys)
        if rows is not None:
            batch.rows.append(rows)
        batch.count += len(keys)
        self._rows_bytes += len(keys) * (8 + 4 * dim)
        if batch.count >= self._message_keys(at, dim):
            self._cut(at, whole_only=True)

    def _message_keys(self, at: TopicPartition, dim: int) -> int:
        return min(self.options.max_rows, most_keys(self.name, at.topic, dim, self.options.max_message_bytes))

    def _cut(self, at: TopicPartition, whole_only: bool = False) -> None:
        """Make messages of the batch of a partition; `whole_only` leaves what fills none."""
        batch = self._batches.pop(at)
        keys = np.concatenate(batch.keys)
        rows = np.concatenate(batch.rows) if batch.rows else None
        step = self._message_keys(at, batch.dim)
        end = len(keys) - len(keys) % step if whole_only else len(keys)
        for first in range(0, end, step):
            part = slice(first, min(first + step, end))
            sequence = self._sequences.get(at, 0)
            span_s = batch.newest_s - batch.sent_s
            cut = None if rows is None else rows[part]
            message = UpdateMessage(self.name, sequence, batch.sent_s, keys[part], cut, span_s)
            payload = encode(message, at)
            self._sequences[at] = sequence + 1
            self._waiting.append((at, payload))
            self._waiting_bytes += len(payload)
        self._rows_bytes -= end * (8 + 4 * batch.dim)
        if end < len(keys):
            rest = self._batches[at] = self._new_batch(batch.dim)
            rest.keys, rest.count = [keys[end:]], len(keys) - end
            rest.rows = [] if rows is None else [rows[end:]]

    def _new_batch(self, dim: int) -> _Batch:
        now_s = self._clock()
        return _Batch(dim, now_s, now_s, time.monotonic() + self.options.linger_s)

    def _run(self) -> None:
        """The thread: cut what has waited long enough, give messages to the carrier in order, try again."""
        retry_s = FIRST_RETRY_S
        while True:
            with self._changed:
                now_s = time.monotonic()
                for old in [at for at, batch in self._batches.items() if batch.due_s <= now_s]:
                    self._cut(old)
                if not self._waiting:
                    if self._closing:
                        return
                    due_s = min((batch.due_s for batch in self._batches.values()), default=None)
                    self._changed.wait(None if due_s is None else due_s - now_s)
                    continue
                at, payload = self._waiting[0]
            try:
                with self._calling:
                    self._tried_keys = keys_of(payload)
                    self._carrier.append(at, payload)
                    self._appended_keys, self._tried_keys = self._appended_keys + self._tried_keys, 0
            except Exception as fault:  # a carrier's own kinds too: a thread that ends would lose all that waits
                with self._changed:
                    self._fault = fault if isinstance(fault, StoreError) else StoreError(f"update log: {fault!r}")
                    self._changed.notify_all()
                    if self._closing:
                        return
                    self._changed.wait_for(lambda: self._closing or self._fault is None, retry_s)
                retry_s = min(2 * retry_s, LONGEST_RETRY_S)
                continue
            retry_s = FIRST_RETRY_S
            with self._changed:
                self._waiting.popleft()
                self._waiting_bytes -= len(payload)
                self._fault = None
                self._changed.notify_all()
