"""Applies online updates to stores, in the background: in order, complete, and never in a query's way (HPS 6).

    source.poll ──▶ PartitionOrder (duplicates go, gaps are told) ──▶ store_batches ──▶ each store, in turn
                                                                                        listener
                                                                                        source.commit

Offsets are committed after all stores have the rows. A store that has `apply` (`PositionedStore`) keeps the offset with
the rows, and is believed about it rather than the group: one that knows nothing of a log is given all that it holds. So
is one whose position is not the log's: with the offset it keeps which message was there (`mark`), and that is compared
with what the log has there now, as the log may have gone back, and grown again, while nobody read it. A store or log
that fails is tried again for as long as it takes; where others may write to the store as well, they are let do it
meanwhile. One who stood still in the middle of a write may end it after another member has written newer rows: then
these are old, which is told to who can mend it. Nothing is passed over but what can never be applied; that is put aside
and named.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from hebe.embeddings.store import EmbeddingStore, StoreError
from hebe.embeddings.updates.contract import (
    CountingSource,
    Delivery,
    TopicPartition,
    UpdateMessage,
    UpdateSource,
    delivery_bytes,
)
from hebe.embeddings.updates.ingestion.error_reports import Incidents
from hebe.embeddings.updates.ingestion.flush_waiters import Advance, Drains
from hebe.embeddings.updates.ingestion.options import IngestionOptions
from hebe.embeddings.updates.ingestion.partition_progress import PartitionProgress, pending_offsets, seek_offset
from hebe.embeddings.updates.ingestion.sequence_check import Gap
from hebe.embeddings.updates.ingestion.statistics import IngestionCounter, IngestionStatistics
from hebe.embeddings.updates.ingestion.store_batches import Positioned, StoreBatch, store_batches
from hebe.embeddings.updates.ingestion.updated_stores import Overtaken, StoredPosition, UpdatedStores, UpdateListener

log = logging.getLogger("hebe.updates")

LISTENER = "cache"
"""The tier as which the listener counts in the statistics: level 1, which hears of what the others have."""

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
_HEARTBEAT_S = 1.0
_LONGEST_BACKOFF = 64
"""Times `failure_backoff_ms`: the longest wait before a failed call is tried again."""
_HELD_POLL_S = 0.1
_LEAVE_S = 5.0
"""A store that others write to as well, and that has failed here for so long, is left to them."""
_AWAY_S = 10.0
"""For so long: then a write is tried again, and if that fails it is left to them at once."""


class UpdateIngestion:
    """A thread that applies the updates of model `model` out of `source` to `stores`, until it is closed.

    `stores` by tier name are written in their order, so the one that others are filled from comes first. `dims` gives
    the embedding dim by table: messages for others, of another dim, or with rows that are not finite are poison, as are
    those that the source could not read, and go to directory `quarantine`. The source is closed with the ingestion, the
    stores are not.

    Messages all of whose rows were sent before `since_s` (Unix seconds) are passed over: the rows of the model that was
    loaded have them. Give the time at which training read the rows that it exported, or sooner: the same updates once
    more do no harm.

    Without stores it only listens, for a server whose Redis is written by others and whose cache must hear of it. Give
    it a source without a group then, that begins with the newest message. It begins earlier where `written` tells, by
    partition, the offset up to which others had written all before the cache was filled; `if_unknown` is called when it
    has begun without, and each time that it has missed messages, as the log may keep them for those alone who write.

    `has_beginning`: what the log has removed before the group began is in the rows that the stores began with, and not
    told of.

    `catches_up`: the rate is not bounded before `catch_up` has returned.

    `overtaken`, for stores that other members of the group write as well, is called after a write during which the
    partition may have come to be another's: it may have written newer rows of the same keys before that write ended.
    """

    def __init__(
        self,
        source: UpdateSource,
        stores: Mapping[str, EmbeddingStore],
        model: str,
        dims: Mapping[str, int],
        options: IngestionOptions | None = None,
        *,
        listener: UpdateListener | None = None,
        written: Mapping[TopicPartition, int] | None = None,
        if_unknown: Callable[[], None] | None = None,
        quarantine: Path | None = None,
        since_s: float | None = None,
        has_beginning: bool = False,
        catches_up: bool = False,
        overtaken: Overtaken | None = None,
    ) -> None:
        self.model, self.dims, self.options = model, dict(dims), options or IngestionOptions()
        self._source, self._stores, self._listener = source, UpdatedStores(stores), listener
        self._written = None if written is None else dict(written)
        self._if_unknown = if_unknown
        self._since_s = -math.inf if since_s is None else since_s
        self._has_beginning = has_beginning
        self._catches_up = catches_up
        self._overtaken = overtaken
        self._counter = IngestionCounter([*self._stores, *([] if listener is None else [LISTENER])])
        self._incidents = Incidents(model, self._counter, quarantine, if_unknown)
        self._partitions: dict[TopicPartition, PartitionProgress] = {}
        """Those that are ours."""
        self._deliveries: deque[Delivery] = deque()
        """What the source has handed over and nobody has looked at."""
        self._waiting_bytes = 0
        """Of these."""
        self._committed_s = self._lag_s = self._polled_s = self._due_s = time.monotonic()
        self._next_s = 0.0
        """When the rate lets the next batch through."""
        self._fails_since_s = math.inf
        """When the stores began to fail, unless they took the last batch."""
        self._has_left = False
        """The group, for stores that have not taken a batch since."""
        self._closing = threading.Event()
        self._drains, self._advance = Drains(), Advance()
        self._thread = threading.Thread(target=self._run, name="hebe-updates", daemon=True)
        self._thread.start()

    def statistics(self) -> IngestionStatistics:
        """What was done so far, and how far behind it is."""
        return self._counter.read()

    def applied(self) -> dict[TopicPartition, int | None]:
        """By partition that is ours, the offset up to which the stores have all; None while that is not known. Not the
        same as what is committed: a group may be ahead of a store that was made anew.
        """
        partitions = dict(self._partitions)  # in one step: the thread goes on
        return {at: progress.known_applied for at, progress in partitions.items()}

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that is in the log now is applied, and committed unless more comes meanwhile; False if that
        takes longer, as it does while a member of a group has no partition.
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
            except Exception as fault:  # a thread that ended would stop all updates, unnoticed
                self._incidents.failed("taking updates from the log", fault)
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
        if self._has_news:
            self._forget_lost()
        else:
            self._take_news()
        news = self._has_news
        self._due_s = time.monotonic() + (self.options.interval_s if news and not self._hurries else 0.0)
        self._waiting_bytes = 0
        self._meet_new()
        while self._deliveries:
            self._take(self._deliveries[0])
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
            lag = self._ask_lag()
            # Without a partition: either there is none, or it is not known yet whether there will be.
            if (lag or not self._source.shares) and not self._lacks_own:
                self._drains.note(lag, self._has, self._source.last_offset, idle=idle)
        if not self._has_left:
            self._incidents.succeeded()

    @property
    def _lacks_own(self) -> bool:
        """Whether it is alone in its group, and others have partitions all the same: itself, before it was killed."""
        return self._stores.keep_positions and isinstance(self._source, CountingSource) and self._source.lacks

    def _ask_lag(self) -> Mapping[TopicPartition, int]:
        lag = self._source.lag()
        # What it has left to others may be applied by nobody.
        self._counter.lag(None if self._has_left or self._lacks_own else lag)
        self._lag_s = time.monotonic()
        return lag

    def _forget_lag(self) -> None:
        """While the log cannot be asked; it is as soon as it answers."""
        self._counter.lag(None)
        self._lag_s = -math.inf

    def _has(self, at: TopicPartition, end: int, left: int) -> bool:
        """Whether the stores have a partition up to offset `end`, of which the group has not committed `left`."""
        progress = self._partitions.get(at)
        return progress is not None and progress.has(end, left)

    @property
    def _has_news(self) -> bool:
        """Whether there is anything to bring into order, or to apply."""
        return bool(self._deliveries) or any(progress.ready for progress in self._partitions.values())

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
        self._deliveries.extend(news)
        self._waiting_bytes += sum(map(delivery_bytes, news))
        if self._drains:  # nobody else asks
            for delivery in news:
                self._advance.note(delivery.at, delivery.offset)
        self._forget_lost()  # before the next poll, which tells only of what is lost from then on
        return bool(news)

    def _due(self, last_s: float, every_s: float) -> bool:
        return time.monotonic() >= last_s + every_s

    def _forget_lost(self) -> frozenset[TopicPartition]:
        """Forget the partitions that others have now; what was read of them they read anew. Returns ours."""
        assigned = self._source.assigned()
        self._partitions = {at: progress for at, progress in self._partitions.items() if at in assigned}
        self._deliveries = deque(delivery for delivery in self._deliveries if delivery.at in assigned)
        return assigned

    def _is_ours(self, progress: PartitionProgress) -> bool:
        """Whether a partition has not been forgotten since."""
        return self._partitions.get(progress.at) is progress

    def _meet_new(self) -> None:
        """Begin with partitions that have become ours: where stores are that keep positions, or else the group."""
        new = [at for at in self._forget_lost() if at not in self._partitions or not self._partitions[at].met]
        if not new:
            return
        stored, identity = self._stores.positions(), self._source.log_identity()
        for at in new:
            progress = self._partitions.setdefault(at, PartitionProgress(at))
            self._meet(progress, stored, identity)
            if self._written is not None:
                offset = self._written.get(at, -1)  # what came since is all news
                self._begin(progress, None if offset < 0 else StoredPosition(offset))
                self._written.pop(at, None)
            progress.met = True
        if self._written is None and self._if_unknown is not None:
            self._if_unknown()

    def _meet(self, progress: PartitionProgress, stored: Mapping[str, StoredPosition] | None, identity: str) -> None:
        at = progress.at
        if stored is None:
            progress.unjudged = not self._has_beginning
        else:
            name = progress.position_name = f"{identity}/{at.model}/{at.table}/{at.partition}"
            position = stored.get(name)
            if position is None:
                place = name.removeprefix(identity)
                progress.had_updates |= any(other.endswith(place) for other in stored)
            elif (last := self._source.last_offset(at)) < position.offset:
                self._incidents.went_back(at, position.offset, f"it ends with offset {last}")
                position, progress.had_updates = None, True
            self._begin(progress, position)

    def _begin(self, progress: PartitionProgress, position: StoredPosition | None) -> None:
        """Have a partition read from where the stores are in it: with None, from its oldest message."""
        # The group may be ahead of a store that was made anew, and then it is the store that counts.
        self._source.seek(progress.at, seek_offset(position))
        self._deliveries = deque(delivery for delivery in self._deliveries if delivery.at != progress.at)
        progress.begin(position)

    def _take(self, delivery: Delivery) -> None:
        """Bring the next delivery into its order; it leaves `_deliveries` when all that can fail is done."""
        progress = self._partitions[delivery.at]
        if delivery.offset <= progress.handed:
            progress = self._begin_anew(progress, delivery.offset)
            if not self._deliveries or self._deliveries[0] is not delivery:
                return  # the store knows that log too, and where to go on in it
        if not self._is_known(progress, delivery):
            return  # all of the partition comes anew
        self._judge_beginning(progress, delivery)
        self._deliveries.popleft()
        if (gap := progress.take(delivery)) is not None:
            self._incidents.gap(gap)

    def _is_known(self, progress: PartitionProgress, delivery: Delivery) -> bool:
        """Whether the log has, at the position of the stores, what they took from it, as far as the next delivery
        shows. If not, all that it holds is asked for: how far it went back is not known, nor what came since.
        """
        position, mark = progress.position, progress.mark
        found = progress.other_mark(delivery)
        if found is None or position is None:
            return True
        self._begin(progress, None)
        progress.had_updates = True
        self._incidents.went_back(progress.at, position, f"it has message {found} there, which was {mark}")
        return False

    def _judge_beginning(self, progress: PartitionProgress, delivery: Delivery) -> None:
        """With the first message of a partition: tell of a beginning that is gone, unless the model's rows have it."""
        message = delivery.message
        if message is None or not progress.unjudged:
            return
        progress.order.whole = delivery.offset == self._source.first_offset(progress.at) and not progress.had_updates
        lost = self._source.lost_beginning(progress.at)
        progress.unjudged = False
        if lost is not None and message.newest_s >= self._since_s:
            self._incidents.lost_beginning(Gap(progress.at, None, *lost))

    def _begin_anew(self, old: PartitionProgress, offset: int) -> PartitionProgress:
        """The log has gone back behind what it had handed over: it was emptied, restored or made anew."""
        at, name = old.at, old.position_name
        identity, stored = self._source.log_identity(), self._stores.positions()
        log.warning(
            "online updates: partition %d of model %s, table %s begins anew, at offset %d, after offset %d of what was "
            "there before",
            at.partition, at.model, at.table, offset, max(old.handed, old.stored_up_to),
        )  # fmt: skip
        self._make_ready(old, math.inf)
        del self._partitions[at]
        progress = self._partitions[at] = old.of_new_log()
        known_by_this_name = name is not None and name.startswith(f"{identity}/")
        # Under the old name the store's position is that of the old log: then the group alone says how far it is, and
        # the next position takes that one's place.
        self._meet(progress, None if known_by_this_name else stored, identity)
        if known_by_this_name:
            progress.position_name = name
        progress.met = True
        return progress

    def _apply_ready(self, progress: PartitionProgress) -> None:
        if not self._is_ours(progress):  # lost while another one was written
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
                if self._is_ours(progress) and not self._closing.is_set():
                    del self._partitions[progress.at]  # so that it is met anew should it come back
                return
            progress.ready.popleft()
            progress.batches += 1
            if batch.position is not None:
                progress.apply_up_to(batch.position)
                self._advance.note(progress.at, batch.position, applied=True)
            self._commit_if_due()
            self._stay_member()
            self._take_leisure(began_s)
            if not self._is_ours(progress):
                return
        if progress.order.position is not None:
            progress.apply_up_to(progress.order.position)

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
                self._incidents.poison(delivery, delivery.fault or "no message")
            elif message.newest_s < self._since_s:
                # Before it is looked at: an older model may have had other tables.
                self._incidents.passed_over(at, message.sent_s, self._since_s)
            elif (fault := self._fault(at, message)) is not None:
                self._incidents.poison(delivery, fault)
            else:
                messages.append((message, delivery.offset, position, mark))
        progress.ready.extend(store_batches(messages, self.options.max_batch_size))

    def _fault(self, at: TopicPartition, message: UpdateMessage) -> str | None:
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
        """Write a batch into each store, however often that takes; False if it is not ours to write any more."""
        table = progress.at.table
        for tier in self._stores:
            if not self._insist(progress, tier, batch):
                return False
            self._counter.visible(tier, batch.sent_s)
            if (refused := self._stores.refused_keys(tier, table)) is not None:
                self._incidents.refused(tier, table, *refused)
            self._incidents.unheld(tier, table, self._stores.unheld_rows(tier, table))
        if (position := progress.new_position(batch)) is not None:
            progress.position = position[1]
        applied = {"deletes": batch.count} if batch.rows is None else {"rows": batch.count}
        self._counter.add(messages=len(batch.sent_s), **applied)
        if self._listener is not None and batch.keys.size:
            try:
                self._listener(table, batch.keys, batch.rows, batch.place_in(progress.at.partition))
            except Exception:  # of whoever listens; the stores have the rows
                log.exception("online updates: the listener failed")
            else:
                self._counter.visible(LISTENER, batch.sent_s)
        return True

    def _insist(self, progress: PartitionProgress, tier: str, batch: StoreBatch) -> bool:
        table, backoff_s = progress.at.table, self.options.failure_backoff_ms / 1000
        while self._is_ours(progress) and progress.at in self._source.assigned():
            done = False
            try:
                position = progress.new_position(batch)
                self._stores.write(tier, table, batch, position, anew=progress.position is None)
            except Exception as fault:  # whatever it is: going on without these rows would lose them
                self._incidents.failed(f"writing table {table} to the {tier} store", fault)
            else:
                done = True
                self._fails_since_s, self._has_left = math.inf, False
                self._incidents.succeeded()
            if self._overtaken is not None and progress.at not in self._source.assigned():
                # One that failed may have put some of the rows there all the same.
                self._incidents.overtaken(progress.at, len(batch.keys))
                self._overtaken(table, batch.keys)
                return False
            if done:
                return True
            if self._is_for_others():
                self._leave()
                return False
            self._pause(backoff_s)
            backoff_s = self._longer(backoff_s)
            if self._closing.is_set():
                return False
        return False

    def _is_for_others(self) -> bool:
        """After a write that failed: whether other members of the group had better try."""
        self._fails_since_s = min(self._fails_since_s, time.monotonic())
        shared = self._source.shares and not self._stores.keep_positions  # or else they are this server's own
        return shared and (self._has_left or self._due(self._fails_since_s, _LEAVE_S))

    def _leave(self) -> None:
        """Leave the group for a while; the next poll joins it again."""
        self._has_left = True
        with contextlib.suppress(StoreError):  # then what is ours is free when we are missed
            self._source.leave()
        self._forget_lost()
        self._closing.wait(_AWAY_S)

    def _commit_if_due(self) -> None:
        # So many batches of a partition at most: a commit costs as much as there are partitions.
        most = max((progress.batches for progress in self._partitions.values()), default=0)
        if most >= self.options.max_commit_interval or self._due(self._committed_s, _COMMIT_S):
            self._commit()

    def _commit(self) -> None:
        for progress in self._partitions.values():
            progress.batches = 0
        self._committed_s = time.monotonic()
        pending = pending_offsets(self._partitions.values())
        if pending:
            self._source.commit(pending)
            for at in pending:
                self._partitions[at].pending = None

    def _wait_for_rate(self, keys: int) -> None:
        if self.options.max_rows_per_s is None or self._catches_up:
            return
        now_s = time.monotonic()
        self._pause(self._next_s - now_s)
        self._next_s = max(self._next_s, now_s) + keys / self.options.max_rows_per_s

    def _pause(self, seconds: float) -> None:
        """Wait, unless the ingestion is being closed, and stay a member of the group meanwhile."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0 and not self._closing.wait(min(left_s, _HEARTBEAT_S)):
            self._stay_member()

    def _stay_member(self) -> None:
        """Show the group that this member lives, forget what it has given to others meanwhile, and see how far behind
        it is by now.
        """
        if self._due(self._polled_s, _HEARTBEAT_S):
            self._polled_s = time.monotonic()
            try:
                self._source.poll(0, 0.0)
                self._forget_lost()
                if self._due(self._lag_s, _LAG_S):
                    self._ask_lag()
            except StoreError:
                self._forget_lag()

    def _longer(self, backoff_s: float) -> float:
        return min(2 * backoff_s, _LONGEST_BACKOFF * self.options.failure_backoff_ms / 1000)
