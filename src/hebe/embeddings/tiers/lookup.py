"""How a batch of distinct keys of several tables is answered from the tiers: HPS Algorithm 1, and what it leaves out.

Level 1 is asked first. If its hit rate is below the threshold, the missing rows are fetched from level 2, then level 3,
while the batch waits; otherwise they get the table's default vector, and are fetched in the background for later ones.
(Algorithm 1 divides the missing keys by the size of the cache; by the number of keys asked for, which the text means,
the threshold is a hit rate.) Beyond the paper, each key's answer says how it came about, a caller may
bound the time that it takes, and a key that no tier has is unknown rather than missing.

Rows know up to which position in the update log they have all updates, and the lookup which updates there were
(`UpdatePositions`). A row of a Redis that lacks one of them is not used: level 3 is asked, and without it the row is
stale. Level 1 keeps no row that lacks an update, nor one that has later updates than it follows itself.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Mapping, Sequence

import numpy as np

from hebe.embeddings.clients.tier_client import TierClient
from hebe.embeddings.options import LookupOptions
from hebe.embeddings.store import UNKNOWN_POSITION, EmbeddingCache, FoundMask, KeyArray, RowArray
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
from hebe.embeddings.tiers.lower_tiers import LowerTiers
from hebe.embeddings.tiers.update_positions import UpdatePositions
from hebe.embeddings.tiers.volatile_tier import VolatileTier
from hebe.embeddings.updates.contract import LogPlace, TopicPartition
from hebe.kernels.hash_tables import key_positions
from hebe.kernels.lookup import table_batch


class TieredLookup:
    """The tiers of one model, or of several that share them. Any number of threads may look up at once.

    `dims` gives the embedding dim by table. Without `persistent` level 2 is taken to hold whatever there is. It is an
    `UpdateListener`: level 1 follows the updates that come past.
    """

    def __init__(
        self,
        dims: Mapping[str, int],
        cache: EmbeddingCache,
        volatile: VolatileTier | None,
        persistent: TierClient | None,
        options: LookupOptions,
        background: BackgroundWork,
    ) -> None:
        self.dims = dict(dims)
        self.cache = cache
        self.volatile = volatile
        self.persistent = persistent
        self._lower = LowerTiers(None if volatile is None else volatile.client, persistent)
        self.options = options
        self.counts = LookupCounts()
        self.background = background
        self.updates = UpdatePositions(dims)
        self._counting = threading.Lock()
        self._following = {table: threading.Lock() for table in dims}
        """Held while rows of level 1 are brought up to date, in no query's way: an older one never replaces a newer."""
        table_batch.warm_up()
        key_positions.warm_up()

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

    def fetch(
        self, table: str, keys: KeyArray, timeout_s: float, *, note: bool = True
    ) -> tuple[RowArray, StateArray, KeyArray]:
        """Rows float32 `[n, dim]`, states and positions of distinct `keys` from level 2, then level 3, within
        `timeout_s`. Those that level 1 should not have, as they lack an update or are ahead of it, are DEFAULTED.

        `note`: level 2 hears of it afterwards: what it had was used, and what it lacked is put into it.
        """
        wanted = BatchLookup.of([(table, keys)], self.dims)
        count = len(keys)
        fetch = self._fetch(wanted, np.ones(count, np.bool_), count, timeout_s, LookupCounts(), note=note)
        states = np.full(count, DEFAULTED, np.uint8)
        states[fetch.unknown] = UNKNOWN
        states[fetch.to_keep] = FOUND
        return wanted.rows_of(0, self.dims[table]), states, fetch.positions

    def put(
        self, table: str, keys: KeyArray, rows: RowArray, positions: KeyArray, *, present_only: bool = False
    ) -> None:
        """Put fetched rows into level 1: those that it lacks, or (`present_only`) newer versions of those it has; but
        none that an update has overtaken since: `positions` are those of the rows.
        """
        starts = np.array([0, len(keys)])
        if present_only:
            with self._following[table]:
                newest = self._are_newest((table,), keys, starts, positions)
                if newest is not None:
                    keys, rows = keys[newest], rows[newest]
                self.cache.update(table, keys, rows)
        elif keys.size:
            self.cache.replace(table, keys, rows)
            newest = self._are_newest((table,), keys, starts, positions)
            if newest is not None and not newest.all():
                self.cache.mark_stale(table, keys[~newest])

    def begin(self, at: TopicPartition, position: int, identity: str) -> None:  # noqa: ARG002
        """See `UpdateListener.begin`."""
        self.updates.begin(at.table, at.partition, position)

    def writing(self, table: str, place: LogPlace) -> None:
        """See `UpdateListener.writing`."""
        if place.offsets.size:
            self.updates.writing(table, place.partition, int(place.offsets.max()))

    def written(self, table: str, keys: KeyArray, rows: RowArray | None, place: LogPlace) -> None:
        """See `UpdateListener.written`: lower tiers have newer rows of `keys`, these, or have deleted them (None).
        Level 1 follows, as far as it holds them.
        """
        with self._following[table]:
            self.updates.written(table, place.partition, keys, place.offsets, place.position)
            if rows is None:
                self.cache.delete(table, keys)
            else:
                self.cache.update(table, keys, rows)

    def renew(self, table: str, keys: KeyArray, *, doubted: bool = False) -> tuple[int, int, int]:
        """Bring those rows of level 1 up to date that have these keys. Returns how many were, how many are gone since
        no lower tier has them any more, and how many could not be asked for: they are stale from now on if `doubted`.
        """
        rows, states, positions = self.fetch(table, keys, math.inf, note=False)
        found, gone = states == FOUND, states == UNKNOWN
        self.put(table, keys[found], rows[found], positions[found], present_only=True)
        if gone.any():
            self.cache.delete(table, keys[gone])
        left = states == DEFAULTED
        if doubted and left.any():
            self.cache.mark_stale(table, keys[left])
        return int(found.sum()), int(gone.sum()), int(left.sum())

    def fill_level_2(self, table: str, keys: KeyArray) -> int:
        """Put what level 3 has of distinct `keys` into level 2, where that lacks them. Returns how many it may have
        later updates of. Raises `StoreError`.
        """
        assert self.volatile is not None
        assert self.persistent is not None
        batch, settled = BatchLookup.of([(table, keys)], self.dims), self._settled((table,))
        found = np.zeros(len(keys), np.bool_)
        self.persistent.store.query(table, keys, batch.rows_of(0, self.dims[table]), found)
        return self.volatile.fill(Answer(batch, found), self._settled_since(settled), self.updates)

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
        """Of keys that no tier had, or could be asked for, and of those whose rows lack an update, or may."""
        if fetch.doubted is not None:
            places = np.flatnonzero(fetch.found & fetch.doubted)
            fetch.wanted.set_states(places, STALE)
            counts.stale += places.size
        if fetch.left:
            unknown = np.flatnonzero(fetch.unknown)
            fetch.wanted.set_states(np.flatnonzero(fetch.rest), DEFAULTED)
            fetch.wanted.set_states(unknown, UNKNOWN)
            fetch.wanted.cut = fetch.cut
            counts.unknown += unknown.size
            counts.defaulted += fetch.left - unknown.size
            counts.cut += fetch.cut

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
        changes, stored = self.updates.changes, None
        if self.updates.active:
            stored = self.updates.of_keys(wanted.tables, wanted.keys, wanted.starts).stored
        fetch, volatile = BatchFetch(wanted, missing, count, stored, changes), self.volatile
        if volatile is not None and volatile.client is None:
            counts.volatile_hits += fetch.fill_from(volatile.store)
        used = fetch.found.copy() if fetch.left < count else None
        if fetch.left:
            fills = note and self._fills_level_2
            settled = self._settled(wanted.tables) if fills else {}
            answers = self._lower.ask(
                fetch,
                timeout_s,
                review=self._review,
                late=self._keep_later if note else None,
                lacked=(lambda answer: self._fill_later(answer, settled)) if fills else None,
            )
            counts.volatile_hits += answers.level_2_hits
            counts.persistent_hits += answers.level_3_hits
            used = answers.of_level_2 if used is None else used
            for answer in answers.lacked if fills else ():
                self._fill_later(answer, settled)
        if note and volatile is not None and used is not None and used.any():
            parts = wanted.parts(np.flatnonzero(used))
            self.background.submit(lambda: volatile.touch(parts), _held_bytes(parts))
        if fetch.left:
            self._set_defaults(wanted, fetch.rest)
        return fetch

    def _review(self, answer: Answer) -> FoundMask | None:
        """Which rows of level 2 lack an update that is known, or may; None: none."""
        if answer.positions is None:
            return None
        if not self.updates.active:
            doubted = answer.positions == UNKNOWN_POSITION
            return doubted if doubted.any() else None
        batch = answer.batch
        required = self.updates.of_keys(batch.tables, batch.keys, batch.starts).required
        doubted = answer.positions < required
        return doubted if doubted.any() else None

    def _are_newest(
        self, tables: Sequence[str], keys: KeyArray, starts: KeyArray, positions: KeyArray
    ) -> FoundMask | None:
        """Which rows with these positions have all updates that are known by now; None: all."""
        if not self.updates.active:
            return None
        newest: FoundMask = positions >= self.updates.of_keys(tables, keys, starts).required
        return newest

    @property
    def _fills_level_2(self) -> bool:
        volatile = self.volatile
        return (
            volatile is not None
            and self.persistent is not None
            and self.options.cache_missed_embeddings
            and volatile.has_room
        )

    def _settled(self, tables: Sequence[str]) -> dict[str, KeyArray]:
        return {table: self.updates.settled(table) for table in tables}

    def _settled_since(self, before: Mapping[str, KeyArray]) -> dict[str, KeyArray]:
        """The positions that level 3 had `before` and has still; `UNKNOWN_POSITION` where an update came between."""
        settled = {}
        for table, old in before.items():
            now = self.updates.settled(table)
            same = old == now if old.size == now.size else np.zeros(len(now), np.bool_)
            settled[table] = np.where(same, now, UNKNOWN_POSITION)
        return settled

    def _fill_later(self, answer: Answer, before: Mapping[str, KeyArray]) -> None:
        """In the background, put rows into level 2 that it lacked and level 3 has."""
        volatile, settled = self.volatile, self._settled_since(before)
        assert volatile is not None

        def act() -> None:
            volatile.fill(answer, settled, self.updates)

        self.background.submit(act, answer.held_bytes)

    def _keep_later(self, answer: Answer) -> None:
        """In the background, put rows that came after the deadline into level 1, for later batches."""

        def act() -> None:
            for table, own in answer.spans():
                found = answer.found[own]
                positions = np.full(int(found.sum()), UNKNOWN_POSITION)
                if answer.positions is not None:
                    positions = answer.positions[own][found]
                rows = answer.rows_of(table)[found]
                self.put(table, answer.batch.keys[own][found], rows, positions)

        self.background.submit(act, answer.held_bytes)

    def _put(self, fetch: BatchFetch, *, doubted: bool = False) -> None:
        """`put` of what was found, but for rows that level 1 should not have; if `doubted`, these as stale."""
        wanted, chosen = fetch.wanted, fetch.found if doubted else fetch.to_keep
        self.cache.replace_tables(wanted.tables, wanted.keys, wanted.starts, wanted.rows, wanted.bases, chosen)
        stale = chosen & ~fetch.to_keep if doubted else None
        if self.updates.changes != fetch.changes:
            newest = self._are_newest(wanted.tables, wanted.keys, wanted.starts, fetch.positions)
            if newest is not None:
                stale = chosen & ~newest if stale is None else stale | (chosen & ~newest)
        if stale is not None and stale.any():
            for table, keys in wanted.parts(np.flatnonzero(stale)):
                self.cache.mark_stale(table, keys)

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
