"""Asks the tiers below level 1 for the rows of a batch, within its time (`tier_choice` says which of them)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from hebe.embeddings.clients.tier_choice import Level, Plan, TierChoice, Way
from hebe.embeddings.clients.tier_client import TierClient
from hebe.embeddings.clients.tier_request import MAX_PIECE_KEYS, TierRequest
from hebe.embeddings.store import FoundMask, KeyArray, StoreUnavailable
from hebe.embeddings.tiers.batch_lookup import Answer, BatchFetch, BatchLookup, PlaceArray

Review = Callable[[Answer], FoundMask | None]
"""Of level 2's answer, before it is used: for which of its keys, found or not, level 3 may have newer rows; None: for
none."""


_CLOCK_S = 1e-3
"""So much before the deadline is at the deadline."""


@dataclass(slots=True)
class Answers:
    """What came of a batch: hits by tier, and answers with what level 2 `lacked` and level 3 has."""

    level_2_hits: int = 0
    level_3_hits: int = 0
    of_level_2: FoundMask | None = None
    """Which keys' rows are level 2's."""
    lacked: list[Answer] = field(default_factory=list)


@dataclass(slots=True)
class _Asked:
    """A request to a tier for the keys at `places` of a batch."""

    client: TierClient
    level: Level
    request: TierRequest
    places: PlaceArray
    began_s: float


class LowerTiers:
    """Level 2 where it is behind a client, and level 3; either may be None. Any number of threads may ask at once."""

    def __init__(self, level_2: TierClient | None, level_3: TierClient | None) -> None:
        self._clients = {Level.TWO: level_2, Level.THREE: level_3}
        self._choice = TierChoice()
        self._lock = threading.Lock()

    def ask(
        self,
        fetch: BatchFetch,
        timeout_s: float,
        *,
        ask_level_2: bool = True,
        review: Review = lambda _: None,
        late: Callable[[Answer], None] | None = None,
        lacked: Callable[[Answer], None] | None = None,
    ) -> Answers:
        """Take what the tiers have of all that is left, within `timeout_s` (`inf`: while they keep answering).

        What comes later goes to `late`, and what level 2 lacked by a probe, and level 3 has, to `lacked`, on a thread
        of the tiers. Keys that `review` names are asked of level 3 as well: where that does not answer, they are
        `doubted`.
        """
        give_up_s = time.monotonic() + timeout_s
        near = self._clients[Level.TWO] if ask_level_2 else None
        far = self._clients[Level.THREE]
        asking = _Asking(self, fetch, give_up_s, review, late, level_3_knows=far is not None)
        places = np.flatnonzero(fetch.rest)
        near, far = (each if each is not None and each.available else None for each in (near, far))
        plan = self._plan(places.size, timeout_s, near, far)
        second = plan.way is Way.SIDE_BY_SIDE
        far_asked: list[_Asked] = []
        if second:
            asking.start(far, Level.THREE, places[plan.level_2_keys :], far_asked, beside=True)
        near_asked: list[_Asked] = []
        asking.start(near, Level.TWO, places[: plan.level_2_keys], near_asked, beside=second)
        for each in near_asked:
            asking.take_level_2(each, min(plan.level_2_s, give_up_s - time.monotonic()))
        left = asking.left()
        for each in far_asked:
            left[each.places] = False
        asking.start(far, Level.THREE, np.flatnonzero(left), far_asked, beside=second)
        for each in far_asked:
            asking.take_level_3(each, give_up_s - time.monotonic())
        with self._lock:
            self._choice.came(plan, places.size - fetch.left, time.monotonic() - give_up_s + timeout_s)
        if plan.probe and near is not None and far is not None:
            if not near_asked:
                self._probe(near, Level.TWO, fetch, places, lacked)
            elif not any(2 * each.places.size > places.size for each in far_asked):
                self._probe(far, Level.THREE, fetch, places, None)
        return asking.end()

    def _plan(self, keys: int, timeout_s: float, near: TierClient | None, far: TierClient | None) -> Plan:
        if near is None:
            return Plan(Way.LEVEL_3, 0, 0.0)
        if far is None:
            return Plan(Way.IN_TURN, keys, timeout_s)
        with self._lock:
            return self._choice.plan(keys, timeout_s)

    def piece_keys(self, client: TierClient, level: Level, left_s: float) -> int:
        """As `TierChoice.piece_keys`."""
        with self._lock:
            return self._choice.piece_keys(level, MAX_PIECE_KEYS, min(left_s, client.options.timeout_s))

    def learn(self, level: Level, request: TierRequest) -> None:
        """How long a request took that has ended, whoever waited for it."""
        keys, found = int(np.count_nonzero(request.answered)), int(np.count_nonzero(request.found))
        with self._lock:
            self._choice.answered(level, keys, found, request.ended_s - request.asked_s)

    def _probe(
        self,
        client: TierClient,
        level: Level,
        fetch: BatchFetch,
        places: PlaceArray,
        lacked: Callable[[Answer], None] | None,
    ) -> None:
        """Ask a tier for the keys at `places` with nobody waiting, to learn how it does; those that it has not and
        that the batch has found by now are `lacked`.
        """
        wanted = fetch.wanted
        keys, (starts, bases) = wanted.keys[places], wanted.spans(places)
        found, rows = fetch.found[places], wanted.rows_at(places) if lacked is not None else None

        def ended(request: TierRequest) -> None:
            self.learn(level, request)
            if lacked is not None and rows is not None:
                batch = BatchLookup(wanted.tables, keys, starts, rows, bases)
                lacked(Answer(batch, found & request.answered & ~request.found))

        with contextlib.suppress(StoreUnavailable):
            client.start(wanted.tables, keys, starts, bases, on_end=ended)


class _Asking:
    """One batch on its way through the lower tiers."""

    def __init__(
        self,
        tiers: LowerTiers,
        fetch: BatchFetch,
        give_up_s: float,
        review: Review,
        late: Callable[[Answer], None] | None,
        *,
        level_3_knows: bool,
    ) -> None:
        """`level_3_knows`: only level 3 can say that there is no row of a key."""
        self._tiers, self._fetch, self._give_up_s = tiers, fetch, give_up_s
        self._review, self._late, self._level_3_knows = review, late, level_3_knows
        self.answers = Answers()
        self._cut = np.zeros(len(fetch.found), np.bool_)
        """Which keys the deadline has cut off."""
        self._lacked: FoundMask | None = fetch.unknown.copy() if level_3_knows else None
        """Which keys level 2 is known not to have: of one in this process, those that it has left."""
        if level_3_knows:
            fetch.unknown[:] = False

    def left(self) -> FoundMask:
        """Which keys have no row yet, or one that may be older than level 3's."""
        fetch = self._fetch
        return fetch.rest if fetch.doubted is None else fetch.rest | fetch.doubted

    def start(
        self, client: TierClient | None, level: Level, places: PlaceArray, asked: list[_Asked], *, beside: bool
    ) -> None:
        """Add a request to `asked`, unless there is nothing to ask, nobody to ask, or no time."""
        if client is None or not places.size:
            return
        began_s = time.monotonic()
        left_s = self._give_up_s - began_s
        if left_s <= 0:
            self._cut[places] = True
            return
        wanted, tiers, stored = self._fetch.wanted, self._tiers, self._fetch.stored(places)

        def ended(request: TierRequest) -> None:
            if not beside:
                tiers.learn(level, request)
            if self._late is not None and request.late.any():
                positions = request.positions if level is Level.TWO else stored
                self._keep_late(level, request, positions, self._late)

        try:
            starts, bases = wanted.spans(places)
            piece_keys = tiers.piece_keys(client, level, left_s)
            request = client.start(
                wanted.tables, wanted.keys[places], starts, bases, piece_keys=piece_keys, on_end=ended
            )
        except StoreUnavailable:
            return
        asked.append(_Asked(client, level, request, places, began_s))

    def take_level_2(self, asked: _Asked, timeout_s: float) -> None:
        """Wait for level 2's answer, and take it, but for what level 3 may have newer rows of."""
        fetch, places = self._fetch, asked.places
        answered = self._wait(asked, timeout_s)
        request = asked.request
        found = request.found & answered
        fetch.take(places, request.rows, found)
        fetch.place(places, found, request.positions, request.row_positions)
        self.answers.of_level_2 = np.zeros(len(fetch.found), np.bool_)
        self.answers.of_level_2[places] = found
        if not self._level_3_knows:
            fetch.unknown[places] = answered & ~asked.request.found & ~asked.request.damaged
        if self._lacked is None:
            self._lacked = np.zeros(len(fetch.found), np.bool_)
        self._lacked[places] = answered & ~asked.request.found
        doubted = self._review(_answer_of(request, found, request.positions))
        if doubted is not None:
            self._lacked[places] &= ~doubted
            fetch.doubted = np.zeros(len(fetch.found), np.bool_)
            fetch.doubted[places] = doubted & found

    def take_level_3(self, asked: _Asked, timeout_s: float) -> None:
        """Wait for level 3's answer, and take it, also in place of doubted rows."""
        fetch, places, request = self._fetch, asked.places, asked.request
        answered = self._wait(asked, timeout_s)
        found = request.found & answered
        fetch.take(places, request.rows, found)
        if fetch.doubted is not None:
            gone = fetch.doubted[places] & answered & ~found  # also where its row is damaged
            fetch.found[places[gone]] = False
            fetch.left += int(np.count_nonzero(gone))
            fetch.doubted[places] &= ~answered
        fetch.unknown[places] = answered & ~request.found & ~request.damaged
        if self.answers.of_level_2 is not None:
            self.answers.of_level_2[places] &= ~answered
        self.answers.level_3_hits += int(np.count_nonzero(found))
        if self._lacked is not None and (lacked := found & self._lacked[places]).any():
            self.answers.lacked.append(_answer_of(request, lacked))

    def end(self) -> Answers:
        """What came of it; noted is how many of the keys that are left the deadline has cut off."""
        fetch, answers = self._fetch, self.answers
        if fetch.doubted is not None and not fetch.doubted.any():
            fetch.doubted = None
        if answers.of_level_2 is not None:
            answers.level_2_hits = int(np.count_nonzero(answers.of_level_2))
        if fetch.left:
            fetch.cut = int(np.count_nonzero(self._cut & fetch.rest))
        return answers

    def _wait(self, asked: _Asked, timeout_s: float) -> FoundMask:
        """Which keys are answered by then."""
        answered = asked.client.wait(asked.request, timeout_s)
        if not answered.all():
            now_s = time.monotonic()
            self._fetch.wanted.in_vain_s += now_s - asked.began_s
            if asked.request.error is None and now_s >= self._give_up_s - _CLOCK_S:
                self._cut[asked.places[~answered]] = True
        return answered

    def _keep_late(
        self, level: Level, request: TierRequest, positions: KeyArray | None, late: Callable[[Answer], None]
    ) -> None:
        answer = _answer_of(request, request.found & request.late, positions)
        doubted = self._review(answer) if level is Level.TWO else None
        late(answer if doubted is None else Answer(answer.batch, answer.found & ~doubted, positions))


def _answer_of(request: TierRequest, found: FoundMask, positions: KeyArray | None = None) -> Answer:
    batch = BatchLookup(request.tables, request.keys, request.starts, request.rows, request.bases)
    return Answer(batch, found, positions)
