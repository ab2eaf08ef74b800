"""Applies online updates to stores, in the background: in order, complete, and never in a query's way (HPS 6).

    source.poll ──▶ PartitionOrder (drops duplicates, reports gaps) ──▶ store_batches ──▶ each store, in turn
                                                                                          listener
                                                                                          source.commit

Where each update is, `PartitionProgress` knows. Offsets are committed after all stores have the rows. A store that has
`apply` (`PositionedStore`) keeps the offset with the rows, and says where to begin: one that knows nothing of a log is
given all that it holds. So is one whose position is not the log's: with the offset it keeps which message was there
(`mark`), and that is compared with what the log has there now, as the log may have gone back, and grown again, while
nobody read it. A store or log that fails is tried again for as long as it takes. Nothing is passed over but what can
never be applied; that is put aside and named.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVarTuple

import numpy as np

from hebe.embeddings.store import StoreError
from hebe.embeddings.updates.contract import Delivery, TopicPartition, UpdateMessage, UpdateSource, delivery_bytes
from hebe.embeddings.updates.ingestion.error_reports import Incidents
from hebe.embeddings.updates.ingestion.flush_waiters import Advance, Drains
from hebe.embeddings.updates.ingestion.options import IngestionOptions
from hebe.embeddings.updates.ingestion.partition_progress import PartitionProgress, Stage, seek_offset
from hebe.embeddings.updates.ingestion.sequence_check import Gap
from hebe.embeddings.updates.ingestion.statistics import IngestionCounter, IngestionStatistics
from hebe.embeddings.updates.ingestion.store_batches import Positioned, StoreBatch, store_batches
from hebe.embeddings.updates.ingestion.updated_stores import (
    StoredPosition,
    UpdatedStore,
    UpdatedStores,
    UpdateListener,
)

log = logging.getLogger("hebe.updates")

_Arguments = TypeVarTuple("_Arguments")

LISTENER = "cache"
"""The tier as which the listener counts in the statistics: level 1, which follows what the others have."""

_POLL_MESSAGES = 64
_WAITING_BYTES = 64 << 20
"""So much of an interval is kept in memory; then it is applied, and all that follows at once."""
_LOOK_S = 0.1
"""Within an interval news are taken so often: all at its end would hold up queries for as long as that takes."""
_LEISURE = 4.0
"""Within an interval so many times as long as a batch took is waited before the next one, for the same reason."""
_COMMIT_S = 1.0
_LAG_S = 2.0
_DRAIN_LAG_S = 0.2
_STEP_S = 1.0
_IDLE_POLL_S = 1.0
"""While it waits for a store or for the rate, the source looks after itself so often."""
_LONGEST_BACKOFF = 64
"""Times `failure_backoff_ms`: the longest wait before a failed call is tried again."""
_HELD_POLL_S = 0.1


class UpdateIngestion:
    """A thread that applies the updates of model `model` out of `source` to `stores`, until it is closed.

    `stores` by tier name are written in their order, so the one that others are filled from comes first. `dims` gives
    the embedding dim by table: messages for others, of another dim, or with rows that are not finite are poison, as are
    those that the source could not read, and go to directory `quarantine`. The source is closed with the ingestion, the
    stores are not.

    Messages all of whose rows were sent before `since_s` (Unix seconds) are passed over: the rows of the model that was
    loaded have them. Give the time at which training read the rows that it exported, or sooner: the same updates once
    more do no harm.

    Where no store keeps positions, `begin` gives the offset after which each partition is read. Partitions that it does
    not name begin where the source does: with the newest message, or the oldest of a partition that comes later.

    `listener` follows what is applied; without stores, all that comes. `missed` is called each time that the
    log has lost messages.

    `has_beginning`: what the log has removed before it was read is in the rows that the stores began with, and not
    reported.

    `catches_up`: the rate is not bounded before `catch_up` has returned.
    """

    def __init__(
        self,
        source: UpdateSource,
        stores: Mapping[str, UpdatedStore],
        model: str,
        dims: Mapping[str, int],
        options: IngestionOptions | None = None,
        *,
        listener: UpdateListener | None = None,
        begin: Mapping[TopicPartition, int] | None = None,
        missed: Callable[[], None] | None = None,
        quarantine: Path | None = None,
        since_s: float | None = None,
        has_beginning: bool = False,
        catches_up: bool = False,
    ) -> None:
        self.model, self.dims, self.options = model, dict(dims), options or IngestionOptions()
        self._source, self._stores, self._listener = source, UpdatedStores(stores), listener
        self._begin_after = dict(begin or {})
        self._since_s = -math.inf if since_s is None else since_s
        self._has_beginning = has_beginning
        self._catches_up = catches_up
        self._counter = IngestionCounter([*self._stores, *([] if listener is None else [LISTENER])])
        self._incidents = Incidents(model, self._counter, quarantine, missed)
        self._partitions: dict[TopicPartition, PartitionProgress] = {}
        self._waiting_bytes = 0
        """Of what was delivered since the last interval began."""
        self._committed_s = self._lag_s = self._polled_s = self._due_s = time.monotonic()
        self._next_s = 0.0
        """When the rate lets the next batch through."""
        self._closing = threading.Event()
        self._drains, self._advance = Drains(), Advance()
        self._thread = threading.Thread(target=self._run, name="hebe-updates", daemon=True)
        self._thread.start()

    def statistics(self) -> IngestionStatistics:
        """What was done so far, and how far behind it is."""
        return self._counter.read()

    def applied(self) -> dict[TopicPartition, int | None]:
        """By partition, the offset up to which the stores have all; None while that is not known."""
        partitions = dict(self._partitions)  # in one step: the thread goes on
        return {at: progress.known_applied for at, progress in partitions.items()}

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that is in the log now is applied, and committed unless more comes meanwhile; False if that
        takes longer.
        """
        return self._drains.wait(timeout_s)

    def catch_up(self, patience_s: float, step: Callable[[], None] = lambda: None) -> bool:
        """`drain`, however long that takes; False once it has come no further for `patience_s`, as where the log is
        away. `step` is called every second or so; what it raises ends the wait.
        """
        try:
            return self._drains.wait(min(_STEP_S, patience_s), self._advance.goes_on(patience_s, step))
        finally:
            self._catches_up = False

    def close(self) -> None:
        """Finish the batch that is being applied, commit, and leave the source. Closing twice is harmless."""
        self._closing.set()
        self._thread.join()

    def __enter__(self) -> UpdateIngestion:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        backoff_s = self.options.failure_backoff_ms / 1000
        while not self._closing.is_set():
            try:
                self._collect()
                if not self._closing.is_set():
                    self._cycle()
            except Exception as error:  # a thread that ended would stop all updates, unnoticed
                self._incidents.failed("taking updates from the log", error)
                self._forget_lag()
                self._due_s = time.monotonic()
                self._closing.wait(backoff_s)
                backoff_s = self._longer(backoff_s)
                continue
            backoff_s = self.options.failure_backoff_ms / 1000
        with contextlib.suppress(Exception):
            self._commit()
        with contextlib.suppress(Exception):
            self._source.close()

    def _cycle(self) -> None:
        """Take what there is, apply it, commit."""
        self._begin_new()
        if not self._has_news:
            self._take_news()
            self._begin_new()
        news = self._has_news
        self._due_s = time.monotonic() + (self.options.interval_s if news and not self._hurries else 0.0)
        self._waiting_bytes = 0
        for at in list(self._partitions):
            self._order(at)
        for progress in list(self._partitions.values()):
            self._apply_ready(progress)
        idle = not news and not self._holds
        if idle:
            self._commit()
        else:
            self._commit_if_due()
        if self._due(self._lag_s, _DRAIN_LAG_S if self._drains else _LAG_S) or (idle and self._drains):
            if self._drains:
                self._commit()
            self._drains.note(self._ask_lag(), self._has, self._source.last_offset, idle=idle)
        self._incidents.succeeded()

    def _ask_lag(self) -> Mapping[TopicPartition, int]:
        lag = self._source.lag()
        self._counter.lag(lag)
        self._lag_s = time.monotonic()
        return lag

    def _forget_lag(self) -> None:
        """While the log cannot be asked; it is as soon as it answers."""
        self._counter.lag(None)
        self._lag_s = -math.inf

    def _has(self, at: TopicPartition, end: int) -> bool:
        """Whether the stores are known to have a partition up to offset `end`."""
        progress = self._partitions.get(at)
        applied = None if progress is None else progress.known_applied
        return applied is not None and applied >= end

    @property
    def _has_news(self) -> bool:
        """Whether there is anything to bring into order, or to apply."""
        return any(progress.delivered or progress.ready for progress in self._partitions.values())

    @property
    def _holds(self) -> bool:
        """Whether messages wait for others that they have overtaken."""
        return any(progress.order.held for progress in self._partitions.values())

    @property
    def _hurries(self) -> bool:
        """Whether the next interval is not waited for."""
        return bool(self._drains) or self._holds or self._waiting_bytes >= _WAITING_BYTES

    def _collect(self) -> None:
        """Until the next interval, take what comes, a little at a time."""
        while (left_s := self._due_s - time.monotonic()) > 0 and not self._hurries and not self._closing.is_set():
            self._pause(min(left_s, _LOOK_S))
            self._take_all(0.0)
            self._commit_if_due()

    def _take_news(self) -> None:
        """Ask the source for messages, and wait a while if it has none."""
        timeout_s = self.options.poll_timeout_ms / 1000
        if self._drains or self._holds:
            timeout_s = min(timeout_s, _HELD_POLL_S)
        if self.options.interval_s:
            self._take_all(timeout_s)
        else:
            self._poll(timeout_s)

    def _take_all(self, timeout_s: float) -> None:
        """Ask the source for messages until it has no more, or as many as are kept, or all is to end."""
        while self._poll(timeout_s) and self._waiting_bytes < _WAITING_BYTES and not self._closing.is_set():
            timeout_s = 0.0

    def _poll(self, timeout_s: float) -> bool:
        """Whether there was anything."""
        news = self._source.poll(_POLL_MESSAGES, timeout_s)
        self._polled_s = time.monotonic()
        for delivery in news:
            self._partitions.setdefault(delivery.at, PartitionProgress(delivery.at)).delivered.append(delivery)
            self._waiting_bytes += delivery_bytes(delivery)
            if self._drains:  # nobody else asks
                self._advance.note(delivery.at, delivery.offset)
        return bool(news)

    def _due(self, last_s: float, every_s: float) -> bool:
        return time.monotonic() >= last_s + every_s

    def _is_current(self, progress: PartitionProgress) -> bool:
        """Whether a partition was not begun again since."""
        return self._partitions.get(progress.at) is progress

    def _begin_new(self) -> None:
        """Begin with partitions of which it is not known yet where the stores are."""
        known = self._partitions
        new = [at for at in self._source.assigned() if at not in known or known[at].stage is Stage.NEW]
        if not new:
            return
        stored, identity = self._stores.positions(), self._source.log_identity()
        for at in sorted(new):
            progress = known.setdefault(at, PartitionProgress(at))
            place = f"/{at.model}/{at.table}/{at.partition}"
            others = [position.offset for name, position in (stored or {}).items() if name.endswith(place)]
            if stored is not None and others and f"{identity}{place}" not in stored:
                self._incidents.other_log(at, max(others))
                progress.had_updates = True
            self._begin(progress, stored, identity)

    def _begin(self, progress: PartitionProgress, stored: Mapping[str, StoredPosition] | None, identity: str) -> None:
        """Have a partition read from where the stores are: those that keep positions at `stored`, or else where
        `begin` of the ingestion, or the source says.
        """
        at = progress.at
        position = None
        if stored is not None:
            name = progress.position_name = f"{identity}/{at.model}/{at.table}/{at.partition}"
            position = stored.get(name)
        elif at not in self._begin_after:
            delivered = list(progress.delivered)
            progress.begin_after(self._source.begun_after(at))
            progress.delivered.extend(delivered)
            self._note_begin(progress, identity)
            return
        elif self._begin_after[at] >= 0:
            position = StoredPosition(self._begin_after[at])
        if position is not None and (last := self._source.last_offset(at)) < position.offset:
            self._incidents.went_back(at, position.offset, f"it ends with offset {last}")
            position, progress.had_updates = None, True
        self._seek(progress, position, identity)
        self._begin_after.pop(at, None)

    def _seek(self, progress: PartitionProgress, position: StoredPosition | None, identity: str) -> None:
        """Have a partition read from `position` of the stores on: with None, from its oldest message."""
        self._source.seek(progress.at, seek_offset(position))
        progress.begin(position)
        self._note_begin(progress, identity)

    def _note_begin(self, progress: PartitionProgress, identity: str) -> None:
        progress.unjudged &= not self._has_beginning
        if self._listener is not None:
            self._notify(self._listener.begin, progress.at, progress.applied, identity)

    def _order(self, at: TopicPartition) -> None:
        """Bring what was delivered into order; a delivery stays until all that can fail is done."""
        while (progress := self._partitions[at]).stage is not Stage.NEW and progress.delivered:
            delivery = progress.delivered[0]
            if delivery.restarts:
                self._restart(progress, delivery)
            elif delivery.message is None and delivery.payload is None:  # what happened to the log itself
                progress.delivered.popleft()
                progress.had_updates = True
                self._incidents.of_source(delivery)
            elif self._is_known(progress, delivery):
                self._judge_beginning(progress, delivery)
                progress.delivered.popleft()
                if (gap := progress.take(delivery)) is not None:
                    self._incidents.gap(gap)

    def _restart(self, old: PartitionProgress, delivery: Delivery) -> None:
        """The log went back, or is another one: the source has begun again with the oldest message that it has."""
        identity, stored, name = self._source.log_identity(), self._stores.positions(), old.position_name
        progress = PartitionProgress(old.at, position_name=name, had_updates=True)
        if name is None or name.startswith(f"{identity}/"):
            # Under that name the stores' position is that of before: it counts no more, and the next takes its place.
            progress.begin(None)
            progress.delivered.extend(list(old.delivered)[1:])
            self._note_begin(progress, identity)
        else:
            self._begin(progress, stored, identity)
        self._partitions[old.at] = progress
        self._incidents.of_source(delivery)

    def _is_known(self, progress: PartitionProgress, delivery: Delivery) -> bool:
        """Whether the log has, at the position of the stores, what they took from it, as far as the next delivery
        shows. If not, all that it holds is asked for: how far it went back is not known, nor what came since.
        """
        position, mark = progress.position, progress.mark
        found = progress.other_mark(delivery)
        if found is None or position is None:
            return True
        self._seek(progress, None, self._source.log_identity())
        progress.had_updates = True
        self._incidents.went_back(progress.at, position, f"it has message {found} there, which was {mark}")
        return False

    def _judge_beginning(self, progress: PartitionProgress, delivery: Delivery) -> None:
        """With the first message of a partition: report a beginning that is gone, unless the model's rows have it."""
        message = delivery.message
        if message is None or not progress.unjudged:
            return
        progress.order.whole = delivery.offset == self._source.first_offset(progress.at) and not progress.had_updates
        lost = self._source.lost_beginning(progress.at)
        progress.unjudged = False
        if lost is not None and message.newest_s >= self._since_s:
            self._incidents.lost_beginning(Gap(progress.at, None, *lost))

    def _apply_ready(self, progress: PartitionProgress) -> None:
        if not self._is_current(progress):  # begun again while another one was written
            return
        self._make_ready(progress, time.monotonic())
        if progress.at.table in self.dims:  # stores know no other, nor its position
            progress.make_ready_to_pass()
        while progress.ready:
            if self._closing.is_set():
                return
            batch = progress.ready[0]
            self._wait_for_rate(batch.count)
            began_s = time.monotonic()
            if not self._apply(progress, batch):
                return
            progress.ready.popleft()
            progress.batches += 1
            if batch.position is not None:
                progress.applied = batch.position
                self._advance.note(progress.at, batch.position, applied=True)
            self._commit_if_due()
            self._look_after_source()
            self._take_leisure(began_s)
        if progress.order.position is not None:
            progress.applied = progress.order.position

    def _take_leisure(self, began_s: float) -> None:
        """After a batch begun at that time, unless the next interval has come."""
        now_s = time.monotonic()
        if now_s < self._due_s and not self._hurries:
            self._pause(min(_LEISURE * (now_s - began_s), self._due_s - now_s))

    def _make_ready(self, progress: PartitionProgress, now_s: float) -> None:
        """Make batches of what is in order, or has waited long enough, by `now_s`."""
        at, order = progress.at, progress.order
        duplicates, reordered = order.duplicates, order.reordered
        release = order.release(now_s)
        older = {  # what was sent before is in the model too
            (message.producer, message.sequence)
            for delivery in release.deliveries
            if (message := delivery.message) is not None and message.newest_s < self._since_s
        }
        self._counter.add(duplicates=order.duplicates - duplicates, reordered=order.reordered - reordered)
        for gap in release.gaps:
            if (gap.producer, gap.last + 1) not in older:
                self._incidents.gap(gap)
        messages: list[Positioned] = []
        for delivery, position, mark in zip(release.deliveries, release.positions, release.marks, strict=True):
            message = delivery.message
            if message is None:
                self._incidents.poison(delivery, delivery.error or "no message")
            elif message.newest_s < self._since_s:
                # Before it is looked at: an older model may have had other tables.
                self._incidents.passed_over(at, message.sent_s, self._since_s)
            elif (error := self._error(at, message)) is not None:
                self._incidents.poison(delivery, error)
            else:
                messages.append((message, delivery.offset, position, mark))
        progress.ready.extend(store_batches(messages, self.options.max_batch_size))

    def _error(self, at: TopicPartition, message: UpdateMessage) -> str | None:
        """Why a message can never be applied."""
        if at.model != self.model or at.table not in self.dims:
            return f"there is no table {at.table} of model {at.model} here"
        if message.rows is None:
            return None
        dim = self.dims[at.table]
        if message.rows.shape[1] != dim:
            return f"its rows have dim {message.rows.shape[1]}, those of table {at.table} have {dim}"
        if not np.isfinite(message.rows).all():
            return "its rows are not all finite"
        return None

    def _apply(self, progress: PartitionProgress, batch: StoreBatch) -> bool:
        """Write a batch into each store, however often that takes; False if it was not: all is to end, or the partition
        is to be begun again.
        """
        table = progress.at.table
        for tier in self._stores:
            if not self._write(progress, tier, batch):
                return False
            self._counter.visible(tier, batch.sent_s)
            if (refused := self._stores.refused_keys(tier, table)) is not None:
                self._incidents.refused(tier, table, *refused)
            self._incidents.unheld(tier, table, self._stores.unheld_rows(tier, table))
        if (position := progress.new_position(batch)) is not None:
            progress.position = position[1]
        applied = {"deletes": batch.count} if batch.rows is None else {"rows": batch.count}
        self._counter.add(messages=len(batch.sent_s), **applied)
        if self._listener is not None:
            place = batch.place_in(progress.at.partition)
            if self._notify(self._listener.written, table, batch.keys, batch.rows, place):
                self._counter.visible(LISTENER, batch.sent_s)
        return True

    def _write(self, progress: PartitionProgress, tier: str, batch: StoreBatch) -> bool:
        table, backoff_s = progress.at.table, self.options.failure_backoff_ms / 1000
        while True:
            if self._listener is not None and batch.keys.size:
                self._notify(self._listener.writing, table, batch.place_in(progress.at.partition))
            try:
                position = progress.new_position(batch)
                self._stores.write(tier, table, batch, position, anew=progress.position is None)
            except Exception as error:  # whatever it is: going on without these rows would lose them
                self._incidents.failed(f"writing table {table} to the {tier} store", error)
            else:
                self._incidents.succeeded()
                return True
            self._pause(backoff_s)
            backoff_s = self._longer(backoff_s)
            if self._closing.is_set():
                return False

    def _notify(self, call: Callable[[*_Arguments], None], *arguments: *_Arguments) -> bool:
        """Whether the listener took it."""
        try:
            call(*arguments)
        except Exception:  # of whoever listens; the stores have the rows
            log.exception("online updates: the listener failed")
            return False
        return True

    def _commit_if_due(self) -> None:
        # So many batches of a partition at most: a commit costs as much as there are partitions.
        most = max((progress.batches for progress in self._partitions.values()), default=0)
        if most >= self.options.max_commit_interval or self._due(self._committed_s, _COMMIT_S):
            self._commit()

    def _commit(self) -> None:
        self._committed_s = time.monotonic()
        due: dict[TopicPartition, int] = {}
        for at, progress in self._partitions.items():
            progress.batches = 0
            if (offset := progress.to_report) is not None:
                due[at] = offset
        if due:
            self._source.commit(due)
            for at, offset in due.items():
                self._partitions[at].reported = offset

    def _wait_for_rate(self, keys: int) -> None:
        if self.options.max_rows_per_s is None or self._catches_up:
            return
        now_s = time.monotonic()
        self._pause(self._next_s - now_s)
        self._next_s = max(self._next_s, now_s) + keys / self.options.max_rows_per_s

    def _pause(self, seconds: float) -> None:
        """Wait, unless the ingestion is being closed; the source looks after itself meanwhile."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0 and not self._closing.wait(min(left_s, _IDLE_POLL_S)):
            self._look_after_source()

    def _look_after_source(self) -> None:
        """Let the source repeat its reports, and see how far behind the stores are by now."""
        if self._due(self._polled_s, _IDLE_POLL_S):
            self._polled_s = time.monotonic()
            try:
                self._source.poll(0, 0.0)
                if self._due(self._lag_s, _LAG_S):
                    self._ask_lag()
            except StoreError:
                self._forget_lag()

    def _longer(self, backoff_s: float) -> float:
        return min(2 * backoff_s, _LONGEST_BACKOFF * self.options.failure_backoff_ms / 1000)
