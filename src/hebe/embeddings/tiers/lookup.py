"""How a batch of distinct keys of several tables is answered from the tiers: HPS Algorithm 1, and what it leaves out.

Level 1 is asked first. If its hit rate is below the threshold, the missing rows are fetched from level 2, then level 3,
while the batch waits; otherwise they get the table's default vector, and are fetched in the background for later ones.
(Algorithm 1 divides the missing keys by the size of the cache; by the number of keys asked for, which the text means,
the threshold is a hit rate.) Beyond the paper, each key's answer says how it came about, a caller may
bound the time that it takes, and a key that no tier has is unknown rather than missing.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hebe.embeddings.options import LookupOptions
from hebe.embeddings.store import EmbeddingCache, FoundMask, KeyArray, RowArray
from hebe.embeddings.tiers.background import BackgroundWork
from hebe.embeddings.tiers.batch_lookup import (
    DEFAULTED,
    FOUND,
    STALE,
    UNKNOWN,
    Answer,
    BatchFetch,
    BatchLookup,
    LookupCounts,
    StateArray,
)
from hebe.embeddings.tiers.tier_client import TierGuard
from hebe.embeddings.tiers.update_tracking import RecentUpdates, UpdateLag, UpdateTimes
from hebe.embeddings.tiers.volatile_tier import VolatileTier
from hebe.embeddings.updates.heard_updates import HeardUpdates, LogPlace
from hebe.kernels.lookup import table_batch

UPDATED_BY_OTHERS_S = 60.0
"""So long after an update level 3 of this server, which has it, is asked for the key rather than a shared level 2: the
row there is for another server to write, which may be behind, or gone, and its partitions others' a while later. Longer
after level 2 was away (`UpdateLag`)."""
_SHARE_OF_LEVEL_2 = 0.5
"""Of a caller's time, where level 3 can still answer if level 2 does not."""


class TieredLookup:
    """The tiers of one model, or of several that share them. Any number of threads may look up at once.

    `dims` gives the embedding dim by table. Without `persistent` level 2 is taken to hold whatever there is.
    """

    def __init__(
        self,
        dims: Mapping[str, int],
        cache: EmbeddingCache,
        volatile: VolatileTier | None,
        persistent: TierGuard | None,
        options: LookupOptions,
        background: BackgroundWork,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.dims = dict(dims)
        self.cache = cache
        self.volatile = volatile
        self.persistent = persistent
        self.options = options
        self.counts = LookupCounts()
        self.background = background
        self._clock = clock
        self._counting = threading.Lock()
        self._updates = {table: RecentUpdates() for table in dims}
        self._began_s = clock()
        self._update_times = UpdateTimes(dims, clock)
        self.level_2_lag = UpdateLag(UPDATED_BY_OTHERS_S if persistent is not None else 0.0, clock)
        """Of what other servers write there; where it is watched, by who watches. Without level 3 only the log tells:
        then nothing is as new as what level 1 has had from an update."""
        self._settling = threading.Lock()
        self._heard = {table: HeardUpdates() for table in dims}
        self._following = {table: threading.Lock() for table in dims}
        """Held while rows of level 1 are brought up to date, in no query's way: an older one never replaces a newer."""
        table_batch.warm_up()

    def look_up(
        self,
        table: str,
        keys: KeyArray,
        rows: RowArray,
        timeout_s: float = math.inf,
        *,
        wait: bool = False,
    ) -> StateArray | None:
        """`look_up_tables` of one table, keys int64 `[n]`, rows float32 `[n, dim]`: returns the states of keys, None
        if all were found. Raises ValueError for rows that are not C-contiguous.
        """
        if not rows.flags.c_contiguous:
            raise ValueError("rows are not C-contiguous")
        starts, bases = np.array([0, len(keys)]), np.array([0, rows.size])
        wanted = BatchLookup((table,), keys, starts, rows.reshape(-1), bases)
        self.look_up_tables(wanted, timeout_s, wait=wait)
        return wanted.states

    def look_up_tables(self, wanted: BatchLookup, timeout_s: float = math.inf, *, wait: bool = False) -> None:
        """Fill rows and states; every row is written.

        Takes at most about `timeout_s` for lower tiers, which are asked for the rows of all tables at once, and `wait`s
        for them whatever the hit rate if told so. One that is not `counted` asks as any other does and leaves no trace:
        no tier is given rows for it or told of it. Raises `StoreError` for an unknown table, after `close`.
        """
        missing, stale, hits, olds = self._query_cache(wanted)
        counts = LookupCounts(int(hits.sum()), stale=int(olds.sum()))
        left = counts.cache_misses = len(wanted.keys) - counts.cache_hits
        # Few operations on whole arrays from here on, as each lets go of the interpreter lock and has to wait for it.
        if counts.stale:
            wanted.states = stale.view(np.uint8)  # STALE is 1, FOUND 0
            if wanted.counted:
                self._renew_later(wanted.parts(np.flatnonzero(stale)))
        if left and not wait and self.options.hit_rate_threshold < 1:
            counts.defaulted = self._default_where_enough_hit(wanted, missing, hits)
            left -= counts.defaulted
        if left:
            fetch = self._fetch(wanted, missing, left, timeout_s, counts, note=wanted.counted)
            if wanted.counted:
                self._put(fetch)
            self._note_states(fetch, counts)
        if wanted.counted:
            self._count(counts)

    def prefetch(self, table: str, keys: KeyArray) -> bool:
        """Bring the rows of `keys` into level 1 in the background; False if there was too much to do already."""
        return self._insert_later([(table, np.unique(keys))])

    def default(self, table: str) -> np.float32:
        """What the default vector of `table` is filled with."""
        return np.float32(self.options.default_values.get(table, 0.0))

    def fetch(self, table: str, keys: KeyArray, timeout_s: float, *, note: bool = True) -> tuple[RowArray, StateArray]:
        """Rows float32 `[n, dim]` and states of distinct `keys` from level 2, then level 3, within `timeout_s`. Those
        that level 2 had and that may be older than they should be, as level 3 could not be asked, are DEFAULTED.

        `note`: level 2 hears of it afterwards: what it had was used, and what it lacked is put into it.
        """
        fetch = self._fetch_parts([(table, keys)], timeout_s, LookupCounts(), note=note)
        states = np.full(len(keys), fetch.state, np.uint8)
        states[fetch.found if fetch.damaged is None else fetch.found | fetch.damaged] = DEFAULTED
        states[fetch.to_keep] = FOUND
        return fetch.wanted.rows_of(0, self.dims[table]), states

    def updates_seen(self, table: str) -> int:
        """Pass it to `put` with rows fetched since, so that an update which overtook them is not hidden."""
        return self._updates[table].number

    def put(self, table: str, keys: KeyArray, rows: RowArray, seen: int, *, present_only: bool = False) -> None:
        """Put fetched rows into level 1: those that it lacks, or (`present_only`) newer versions of those it has; but
        none that an update has overtaken.
        """
        if present_only:
            with self._following[table]:
                newest = ~self._updates[table].overtaken(keys, seen)
                self.cache.update(table, keys[newest], rows[newest])
        elif keys.size:
            self.cache.replace(table, keys, rows)
            self._mark_overtaken(table, keys, seen)

    def updated(self, table: str, keys: KeyArray, rows: RowArray | None, place: LogPlace | None = None) -> None:
        """Lower tiers have newer rows of `keys`, these, or have deleted them (None): level 1 follows, as far as it
        holds them. Told by one thread a table, in the order of the updates, which stand in `place` of the log.
        """
        if self._others_write_level_2:
            self._update_times.note(table, keys)  # first: who then knows of the update passes level 2 over
        with self._following[table]:
            self._updates[table].add(keys)
            if rows is None:
                self.cache.delete(table, keys)
            else:
                self.cache.update(table, keys, rows)
            if place is not None:
                self._heard[table].note(place)
        self._take_back(table, keys, rows)

    def outdated(self, table: str, keys: KeyArray, rows: RowArray | None, place: LogPlace | None = None) -> None:
        """Level 2 has newer rows of `keys`, these, or has deleted them (None): level 1's are stale until they are
        renewed. Those are not that an update has given it, since when level 2 has been passed over: where level 2 alone
        could renew them, any update of late; over level 3, which may be behind, one of this or a later `place`.
        """
        with self._following[table]:
            self._updates[table].add(keys)
            since_s, starts = max(self.level_2_lag.since_s, self._began_s), np.array([0, len(keys)])
            heard = self._update_times.since(since_s, [table], keys, starts)
            if heard is not None and self.persistent is not None:
                heard = None if place is None else heard & self._heard[table].has(place)
            self.cache.mark_stale(table, keys if heard is None else keys[~heard])
        self._take_back(table, keys, rows)

    def overtaken(self, table: str, keys: KeyArray) -> None:
        """What this server wrote of `keys` to level 2 may have come there after newer rows of another server: level 2
        is to have none of them, and level 3 is asked.
        """
        if self.volatile is not None:
            self.volatile.delete(table, keys, self._updates[table])

    def renew(self, table: str, keys: KeyArray, *, doubted: bool = False) -> tuple[int, int, int]:
        """Bring those rows of level 1 up to date that have these keys. Returns how many were, how many are gone since
        no lower tier has them any more, and how many could not be asked for: they are stale from now on if `doubted`.
        """
        seen = self.updates_seen(table)
        rows, states = self.fetch(table, keys, math.inf, note=False)
        found, gone = states == FOUND, states == UNKNOWN
        self.put(table, keys[found], rows[found], seen, present_only=True)
        if gone.any():
            self.cache.delete(table, keys[gone])
        left = states == DEFAULTED
        if doubted and left.any():
            self.cache.mark_stale(table, keys[left])
        return int(found.sum()), int(gone.sum()), int(left.sum())

    def fill_level_2(self, table: str, keys: KeyArray) -> None:
        """Put what level 3 has of distinct `keys` into level 2, unless it has them. Raises `StoreError`."""
        if self.volatile is not None and self.persistent is not None:
            batch = BatchLookup.of([(table, keys)], self.dims)
            seen, found = self.updates_seen(table), np.zeros(len(keys), np.bool_)
            self.persistent.store.query(table, keys, batch.rows_of(0, self.dims[table]), found)
            self.volatile.fill(Answer(batch, found), [seen], self._updates)

    def settle(self) -> bool:
        """Have level 2 delete now what it could not be told to delete; whether nothing of that is left."""
        volatile = self.volatile
        if volatile is not None and volatile.owes(self._updates) and self._settling.acquire(blocking=False):
            try:
                volatile.settle(self._updates)
            finally:
                self._settling.release()
        return volatile is None or not volatile.owes(self._updates)

    def take_back_unsure(self) -> None:
        """Level 2 gives back what it was given since level 3 had all updates."""
        if self.volatile is not None:
            self.volatile.take_back_unsure(self._updates)

    def close(self) -> None:
        """Give memory and files back. Call it when no lookup runs any more, and the background work has ended."""
        with contextlib.ExitStack() as closing:  # one that fails does not keep the others open
            for each in (self.cache, self.volatile, self.persistent):
                if each is not None:
                    closing.callback(each.close)

    def _query_cache(self, wanted: BatchLookup) -> tuple[FoundMask, FoundMask, KeyArray, KeyArray]:
        """What level 1 has: which keys it lacks, which are stale, and by table how many it has and are stale."""
        missing, stale = np.empty((2, len(wanted.keys)), np.bool_)
        hits, olds = self.cache.query_tables(
            wanted.tables, wanted.keys, wanted.starts, wanted.rows, wanted.bases, missing, stale, use=wanted.counted
        )
        return missing, stale, hits, olds

    def _default_where_enough_hit(self, wanted: BatchLookup, missing: FoundMask, hits: KeyArray) -> int:
        """Of tables whose hit rate reaches the threshold, `missing` keys get the default vector, and are fetched in the
        background for later batches if this one is `counted`; they are missing no more. Returns how many these are.
        """
        asked = np.diff(wanted.starts)
        enough = hits >= self.options.hit_rate_threshold * asked
        if not (enough & (hits < asked)).any():
            return 0
        later = missing & np.repeat(enough, asked)
        places = np.flatnonzero(later)
        wanted.set_states(places, DEFAULTED)
        missing[places] = False
        self._set_defaults(wanted, later)
        if wanted.counted:
            self._insert_later(wanted.parts(places))
        return int(places.size)

    def _set_defaults(self, wanted: BatchLookup, chosen: FoundMask) -> None:
        """The keys that are `chosen` get the default vectors of their tables."""
        values = np.array([self.default(table) for table in wanted.tables], np.float32)
        table_batch.set_rows(values, chosen, wanted.starts, wanted.bases, wanted.rows)

    def _note_states(self, fetch: BatchFetch, counts: LookupCounts) -> None:
        """Of keys that no tier had, or could be asked for, and of those whose rows may be older than level 3's; where
        there is none, than updates which level 2 may have been lacking for long.
        """
        if fetch.doubted is not None and (self.persistent is not None or self._is_level_2_late):
            places = np.flatnonzero(fetch.found & fetch.doubted)
            fetch.wanted.set_states(places, STALE)
            counts.stale += places.size
        if fetch.left:
            fetch.wanted.set_states(np.flatnonzero(fetch.rest), fetch.state)
            unknown = fetch.left if fetch.state == UNKNOWN else 0
            if unknown and fetch.damaged is not None:
                damaged = np.flatnonzero(fetch.damaged)
                fetch.wanted.set_states(damaged, DEFAULTED)
                unknown -= damaged.size
            counts.unknown += unknown
            counts.defaulted += fetch.left - unknown

    def _fetch_parts(
        self, parts: Sequence[tuple[str, KeyArray]], timeout_s: float, counts: LookupCounts, *, note: bool = True
    ) -> BatchFetch:
        """`_fetch` of all keys of `parts`, (table, keys)."""
        wanted = BatchLookup.of(parts, self.dims)
        count = len(wanted.keys)
        return self._fetch(wanted, np.ones(count, np.bool_), count, timeout_s, counts, note=note)

    def _fetch(
        self,
        wanted: BatchLookup,
        missing: FoundMask,
        count: int,
        timeout_s: float,
        counts: LookupCounts,
        *,
        note: bool = True,
    ) -> BatchFetch:
        """The rows of the `count` keys that are `missing`, or default vectors, from the lower tiers to their places: a
        tier is asked for those of all tables at once.
        """
        give_up_s = self._clock() + timeout_s
        fetch = BatchFetch(wanted, missing, count, [self.updates_seen(table) for table in wanted.tables])
        volatile = self.volatile
        if volatile is not None:
            if volatile.owes(self._updates):
                self._settle_later(volatile)
            elif volatile.guard is None:
                fetch.fill_from(volatile.store)
            else:
                behind = self._behind_in_level_2(wanted)
                if self.persistent is None or not self.persistent.available:
                    fetch.doubted, behind = behind, None
                fetch.ask(volatile.guard, timeout_s * (1 if self.persistent is None else _SHARE_OF_LEVEL_2), behind)
            counts.volatile_hits += count - fetch.left
            if note and fetch.left < count:
                used = fetch.found_parts()
                self.background.submit(lambda: volatile.touch(used), _held_bytes(used))
        if self.persistent is not None and fetch.left:
            left = fetch.left
            answer = fetch.ask(self.persistent, give_up_s - self._clock())
            counts.persistent_hits += left - fetch.left
            fills = note and self.options.cache_missed_embeddings
            if answer is not None and fills and volatile is not None and volatile.may_fill and volatile.has_room:
                lacked, seen = self._lacked_by_level_2(answer), fetch.seen
                self.background.submit(lambda: volatile.fill(lacked, seen, self._updates), lacked.held_bytes)
        if fetch.left:
            self._set_defaults(wanted, fetch.rest)
        return fetch

    @property
    def _others_write_level_2(self) -> bool:
        """While this server knows of updates that they have yet to write there."""
        return self.volatile is not None and self.volatile.guard is not None

    def _behind_in_level_2(self, wanted: BatchLookup) -> FoundMask | None:
        """Keys of which level 2 may have an older row than there is; None if there are none."""
        return self._update_times.since(self.level_2_lag.since_s, wanted.tables, wanted.keys, wanted.starts)

    @property
    def _is_level_2_late(self) -> bool:
        """Whether it may have been lacking an update for longer than one is on its way there as a rule."""
        return self._clock() - self.level_2_lag.since_s > UPDATED_BY_OTHERS_S

    def _lacked_by_level_2(self, answer: Answer) -> Answer:
        """Level 3's answer without the keys for which level 2 was not asked."""
        behind = self._behind_in_level_2(answer.batch)
        return answer if behind is None else Answer(answer.batch, answer.found & ~behind)

    def _settle_later(self, volatile: VolatileTier) -> None:
        """In the background, one at a time, have level 2 delete what it could not be told to delete."""

        def act() -> None:
            try:
                volatile.settle(self._updates)
            finally:
                self._settling.release()

        if volatile.available and self._settling.acquire(blocking=False) and not self.background.submit(act):
            self._settling.release()

    def _put(self, fetch: BatchFetch, *, doubted: bool = False) -> None:
        """`put` of what was found, but for rows that may be older than they should be; if `doubted`, these as stale."""
        wanted, chosen = fetch.wanted, fetch.found if doubted else fetch.to_keep
        seen = [self.updates_seen(table) for table in wanted.tables]
        if seen != list(fetch.seen):
            chosen = chosen.copy()
            for number, table in enumerate(wanted.tables):
                mine = slice(wanted.starts[number], wanted.starts[number + 1])
                chosen[mine] &= ~self._updates[table].overtaken(wanted.keys[mine], fetch.seen[number])
        self.cache.replace_tables(wanted.tables, wanted.keys, wanted.starts, wanted.rows, wanted.bases, chosen)
        for number, table in enumerate(wanted.tables):
            if seen[number] != self.updates_seen(table):
                mine = slice(wanted.starts[number], wanted.starts[number + 1])
                self._mark_overtaken(table, wanted.keys[mine][chosen[mine]], seen[number])
        if doubted and fetch.doubted is not None:
            for table, keys in wanted.parts(np.flatnonzero(chosen & fetch.doubted)):
                self.cache.mark_stale(table, keys)

    def _take_back(self, table: str, keys: KeyArray, rows: RowArray | None) -> None:
        """Level 2 gives back what it was given of `keys` before this update of them."""
        if self.volatile is not None:
            self.volatile.take_back(table, keys, rows, self._updates[table])

    def _mark_overtaken(self, table: str, keys: KeyArray, seen: int) -> None:
        """Those of `keys`, just put into level 1, are stale there that have had an update since `seen`."""
        overtaken = self._updates[table].overtaken(keys, seen)
        if overtaken.any():
            self.cache.mark_stale(table, keys[overtaken])

    def _insert_later(self, parts: Sequence[tuple[str, KeyArray]]) -> bool:
        """In the background, bring what level 1 then still lacks of (table, keys) into it."""

        def act() -> None:
            wanted = BatchLookup.of(parts, self.dims)
            missing, _, hits, _ = self._query_cache(wanted)
            left = len(wanted.keys) - int(hits.sum())
            if left:
                counts = LookupCounts()
                fetch = self._fetch(wanted, missing, left, math.inf, counts)
                # Or else a key that is updated again and again would get default vectors for as long.
                self._put(fetch, doubted=self.persistent is None)
                self._count(counts)

        return self.background.submit(act, _held_bytes(parts))

    def _renew_later(self, parts: Sequence[tuple[str, KeyArray]]) -> None:
        """In the background, what of (table, keys) is then still stale in level 1."""

        def act() -> None:
            wanted = BatchLookup.of(parts, self.dims)
            _, stale, _, _ = self._query_cache(wanted)
            for table, keys in wanted.parts(np.flatnonzero(stale)):
                self.renew(table, keys)

        self.background.submit(act, _held_bytes(parts))

    def _count(self, counts: LookupCounts) -> None:
        with self._counting:
            self.counts.add(counts)


def _held_bytes(parts: Sequence[tuple[str, KeyArray]]) -> int:
    """Of the keys of `parts`, (table, keys)."""
    return sum(keys.nbytes for _, keys in parts)
