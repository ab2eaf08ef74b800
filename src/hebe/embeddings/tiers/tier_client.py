"""A tier that may stall or fail, asked so that nobody waits longer than he can: time-outs and a circuit breaker.

HPS has neither, and a stalled Redis stalls its server. Here a question, one for all tables of a batch with one verdict
(`TierQuestion`), runs on threads of the guard, into buffers of its own, since a caller that has given up takes his
away. After some failures in a row the tier is left alone and callers are told at once; a probe from time to time, in no
query's way, finds out when it is back. It asks for some of what was asked for in vain, since a tier may be gone in
part.

Damage here and there is no reason for that: a question is answered without the rows that are damaged. Where most of
what is asked for is, it is: the model should not seem ready then.

The tier has its time-out for each question, counted from when a thread puts it to the store, however soon its caller
gives up: callers with little time neither make a busy tier fail nor keep one that hangs from failing.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from hebe.embeddings.circuit_breaker import BreakerOptions, CircuitBreaker
from hebe.embeddings.store import (
    EmbeddingStore,
    FoundMask,
    KeyArray,
    RowArray,
    StoreDamaged,
    StoreError,
    StoreUnavailable,
    TablesStore,
    in_words,
)

log = logging.getLogger("hebe.tiers")

_MOST_DAMAGED, _FEW_DAMAGED = 0.5, 256
"""A question of which a larger share of the keys is damaged, and more than one block holds, has failed."""

_PROBED_KEYS = 256
"""So many a probe asks for at most, or one of each table: enough to meet what fails, without being a load."""

_MOST_DAMAGE_TOLD = 100
"""Places of damage that are told in the log, once each."""

ClockFunction = Callable[[], float]
_Sample = tuple[Sequence[str], KeyArray, KeyArray, KeyArray]
"""What a question asks: see `TierQuestion.sample`."""


@dataclass(frozen=True, slots=True)
class GuardOptions:
    """`timeout_s` is the longest wait for an answer, `threads` how many calls of the store may be under way.

    `questions_per_thread` times as many questions may be without an answer, put to the store or in the line; further
    ones are refused.

    Raises ValueError naming a field that is out of range.
    """

    timeout_s: float
    threads: int = 4
    breaker: BreakerOptions = field(default_factory=BreakerOptions)
    questions_per_thread: int = 32

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s < float("inf"):
            raise ValueError(f"timeout_s is {self.timeout_s}: must be above 0")
        if self.threads < 1:
            raise ValueError(f"threads is {self.threads}: must be at least 1")
        if self.questions_per_thread < 1:
            raise ValueError(f"questions_per_thread is {self.questions_per_thread}: must be at least 1")


@dataclass(frozen=True, slots=True)
class TierState:
    """What operators see of a tier. `fault` says why the last call failed that did, `damage` which rows could not be
    read the last time that some could not, and they could not first `damaged_s` ago; times are seconds ago.
    """

    name: str
    available: bool
    failures: int
    fault: str | None
    fault_age_s: float | None
    unavailable_s: float | None = None
    """How long it has been left alone; None while it is available."""
    damage: str | None = None
    damage_age_s: float | None = None
    damaged_s: float | None = None


class TierGuard:
    """Guards `store`, whose tables have the embedding dims `dims`. `name` is how operators know the tier."""

    def __init__(
        self,
        name: str,
        store: EmbeddingStore,
        dims: Mapping[str, int],
        options: GuardOptions,
        clock: ClockFunction = time.monotonic,
    ) -> None:
        self.name = name
        self.store = store
        self._dims = dict(dims)
        self.options = options
        self._clock = clock
        self._lock = threading.Lock()
        self._breaker = CircuitBreaker(options.breaker)
        self._failures = 0
        self._fault: str | None = None
        self._fault_s = 0.0
        self._damage: tuple[str, float] | None = None
        """What the last damage that was met is, and when that was."""
        self._first_damage_s: float | None = None
        self._left_alone_s: float | None = None
        self._told_damage: set[str] = set()
        self._unanswered: set[TierQuestion] = set()
        """Those in the line or put to the store. It and the next change by single operations, which need no lock."""
        self._at_work: dict[int, TierQuestion] = {}
        """What each thread, by its identifier, has put to the store."""
        self._threads = self._new_threads()
        self._closing = threading.Event()
        self._prober: threading.Thread | None = None
        self._to_probe: tuple[_Sample, bool] | None = None
        """What to probe with, as `_probe` takes it, while no thread could be had for it."""

    @property
    def available(self) -> bool:
        """Whether questions pass: the breaker is closed. Questions that are overdue by now count for it."""
        self._count_overdue(self._clock())
        return self._breaker.closed

    @property
    def state(self) -> TierState:
        """The tier as operators see it."""
        self._count_overdue(self._clock())
        with self._lock:
            now_s, (damage, met_s) = self._clock(), self._damage or (None, 0.0)
            return TierState(
                self.name,
                self._breaker.closed,
                self._failures,
                self._fault,
                None if self._fault is None else now_s - self._fault_s,
                None if self._left_alone_s is None else now_s - self._left_alone_s,
                damage,
                None if damage is None else now_s - met_s,
                None if self._first_damage_s is None else now_s - self._first_damage_s,
            )

    def query_tables(
        self, tables: Sequence[str], keys: KeyArray, starts: KeyArray, bases: KeyArray, timeout_s: float
    ) -> tuple[RowArray, FoundMask, FoundMask | None]:
        """Rows of several tables, which of them are there, and which cannot be read since they are damaged (None: all
        can), within `timeout_s` and the tier's own time-out.

        Arrays as those of `TablesStore.fill_tables`. Raises `StoreUnavailable` when the tier is being left alone,
        fails, has not answered in time, or has too many questions to answer.
        """
        asked_s = self._clock()
        hangs = self._count_overdue(asked_s)
        if not self._breaker.closed:
            raise StoreUnavailable(f"{self.name} is not available: {self._fault}", f"{self.name} is not available")
        wait_s = min(timeout_s, self.options.timeout_s)
        if wait_s <= 0:
            raise StoreUnavailable(f"{self.name}: no time is left", f"{self.name}: no time is left")
        if self._closing.is_set():
            raise StoreError(f"{self.name} is closed")
        if hangs and len(keys):
            # It counts too, though no thread can begin it: with few threads the breaker would never open.
            what = f"{self.name} has left all threads without an answer for {self.options.timeout_s * 1e3:.0f} ms"
            with self._lock:
                self._count_failure(TierQuestion(self.store, tables, keys, starts, bases), what, asked_s)
            raise StoreUnavailable(what, what)
        if len(self._unanswered) >= self.options.questions_per_thread * self.options.threads:
            what = f"{self.name} has {len(self._unanswered)} questions to answer: too many for another"
            raise StoreUnavailable(what, what)
        question = TierQuestion(self.store, tables, keys, starts, bases)
        if question.pieces:
            self._unanswered.add(question)
        for _ in range(min(question.pieces, self.options.threads)):
            self._threads.submit(self._ask, question)
        if not question.wait(wait_s):
            what = f"{self.name} has not answered within {wait_s * 1e3:.0f} ms"
            raise StoreUnavailable(what, what)
        if question.fault is not None:
            raise StoreUnavailable(f"{self.name}: {question.fault}", question.fault.client_message) from question.fault
        return question.rows, question.found, None if question.damage is None else question.damaged

    def renew_threads(self) -> None:
        """Let go of the threads that there are, for others that are started now; while no question is under way.

        A thread has priority and cores from the one that starts it, which by itself is whoever asks first: a load,
        which gives way to all else, or a worker on its core. Raises RuntimeError if the system has too few left.
        """
        old, self._threads = self._threads, self._new_threads()
        old.shutdown()
        all_run = threading.Barrier(self.options.threads)  # one that waits is not idle, and so another is started
        try:
            for _ in range(self.options.threads):
                self._threads.submit(all_run.wait)
        except BaseException:
            all_run.abort()  # those that there are would wait for the others for ever
            raise

    def _new_threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.options.threads, thread_name_prefix=f"hebe-{self.name}")

    def close(self) -> None:
        """End the threads, once each has its answer, and close the store."""
        self._closing.set()
        try:
            self._threads.shutdown(wait=True, cancel_futures=True)
            if self._prober is not None:
                self._prober.join()
        finally:
            self.store.close()

    def _ask(self, question: TierQuestion) -> None:
        thread = threading.get_ident()
        try:
            if question.begin(self._clock()):
                self._at_work[thread] = question
                self._work(question)
        finally:
            self._at_work.pop(thread, None)
            self._unanswered.discard(question)

    def _work(self, question: TierQuestion) -> None:
        try:
            answered = question.work()
        except Exception as fault:  # a driver's own too, that its store let through
            told = fault if isinstance(fault, StoreError) else StoreError(f"{type(fault).__name__}: {fault}")
            self._failed(question, str(told))
            question.end(told)
            return
        now_s = self._clock()
        if now_s - question.started_s > self.options.timeout_s:
            self._failed(question, f"{self.name} has answered after {(now_s - question.started_s) * 1e3:.0f} ms")
        elif answered and question.damage is not None and _is_mostly_damaged(question):
            self._failed(question, str(question.damage), mostly_damaged=True)
        elif answered:
            with self._lock:
                if self._breaker.closed:
                    self._breaker.succeeded(now_s)
        if answered:
            if question.damage is not None:
                self._note_damage(question, str(question.damage))
            question.end()

    def _count_overdue(self, now_s: float) -> bool:
        """Count questions as failures that the store has by now had for longer than the time-out.

        Returns whether each thread waits for such a one, so that none can begin another.
        """
        if self._to_probe is not None:
            self._probe_after_all(now_s)
        if not self._at_work:
            return False
        timeout_s = self.options.timeout_s
        overdue = [question for question in list(self._at_work.values()) if now_s - question.started_s > timeout_s]
        for question in overdue:
            if not question.failure_counted:
                self._failed(question, f"{self.name} has not answered within {timeout_s * 1e3:.0f} ms")
        return len(overdue) == self.options.threads

    def _failed(self, question: TierQuestion, fault: str, *, mostly_damaged: bool = False) -> None:
        """Count it, once a question: one that was not answered in time may fail as well."""
        with self._lock:
            if not question.failure_counted:
                question.failure_counted = True
                self._count_failure(question, fault, question.started_s, mostly_damaged=mostly_damaged)

    def _note_damage(self, question: TierQuestion, fault: str) -> None:
        """Of a question that was answered all the same, but for some rows."""
        with self._lock:
            self._failures += not question.failure_counted
            self._fault, self._fault_s = self._damage = fault, self._clock()
            if self._first_damage_s is None:
                self._first_damage_s = self._fault_s
            news = fault not in self._told_damage and len(self._told_damage) < _MOST_DAMAGE_TOLD
            if news:
                self._told_damage.add(fault)
        if news:
            log.warning("%s has rows that cannot be read, and queries do without: %s", self.name, fault)

    def _count_failure(
        self, question: TierQuestion, fault: str, began_s: float, *, mostly_damaged: bool = False
    ) -> None:
        """Of a question that began then. With the lock held."""
        self._failures += 1
        self._fault, self._fault_s = fault, self._clock()
        opens = self._breaker.failed(began_s, self._fault_s)
        if opens:
            self._left_alone_s = self._fault_s
            log.warning("%s is left alone until it answers again: %s", self.name, fault)
        if opens and not self._closing.is_set():
            self._to_probe = question.sample(self._dims, _PROBED_KEYS), mostly_damaged
            self._begin_to_probe(self._to_probe)

    def _begin_to_probe(self, about: tuple[_Sample, bool]) -> None:
        """With the lock held. Where the system has no thread left, whoever asks or looks when a probe is due tries."""
        prober = threading.Thread(target=self._probe, args=about, name=f"hebe-{self.name}-probe", daemon=True)
        try:
            prober.start()
        except (RuntimeError, MemoryError) as fault:
            log.warning("%s cannot be probed yet: %s", self.name, in_words(fault))
        else:
            self._prober, self._to_probe = prober, None

    def _probe_after_all(self, now_s: float) -> None:
        """There was no thread to probe with: try again if a probe is due, which else counts as one that failed."""
        with self._lock:
            due_s = self._breaker.probe_s
            if self._to_probe is None or due_s is None or now_s < due_s or self._closing.is_set():
                return
            self._begin_to_probe(self._to_probe)
            if self._to_probe is not None:
                self._breaker.probe_failed(now_s)

    def _probe(self, sample: _Sample, was_damaged: bool) -> None:
        """Ask for `sample` of the question that failed when a probe is due, until it is answered in time.

        `was_damaged`: that question was mostly. Else damage is an answer.
        """
        while not self._closing.is_set():
            with self._lock:
                due_s = self._breaker.probe_s
            if due_s is None:
                return
            if self._closing.wait(max(due_s - self._clock(), 0.0)):
                return
            started_s = self._clock()
            fault = self._probe_fault(sample, was_damaged)
            if fault is None and self._clock() - started_s > self.options.timeout_s:
                fault = "a probe was answered too late"
            if fault is None and self._count_overdue(self._clock()):
                fault = "a probe was answered, but no thread has its answer yet"
            with self._lock:
                if fault is None:
                    self._breaker.succeeded(self._clock())
                    self._left_alone_s = None
                    log.warning("%s answers again", self.name)
                    return
                self._fault, self._fault_s = fault, self._clock()
                self._breaker.probe_failed(self._fault_s)

    def _probe_fault(self, sample: _Sample, was_damaged: bool) -> str | None:
        question = TierQuestion(self.store, *sample)
        try:
            question.work()
        except Exception as fault:
            return in_words(fault)
        if was_damaged and np.count_nonzero(question.damaged) > _MOST_DAMAGED * len(question.damaged):
            return str(question.damage)
        return None


def _is_mostly_damaged(question: TierQuestion) -> bool:
    count = int(np.count_nonzero(question.damaged))
    return count > max(_MOST_DAMAGED * len(question.damaged), _FEW_DAMAGED)


_MOST_FAULTS = 256
"""After so many, keys of a piece that fails are taken for damaged as they are: a question takes no time without end."""
_NO_KEYS, _NO_ROWS = np.empty(0, np.int64), np.empty(0, np.float32)


class TierQuestion:
    """Keys of several tables for `store`, and the rows that come, in buffers of its own: who asked may have given up.

    Arrays as those of `TablesStore.fill_tables`. Such a store is asked in one piece, another one for a table at a time,
    by as many threads as `work`: they wait for its disk side by side. Where that has damage, it is asked around it.
    """

    def __init__(
        self, store: EmbeddingStore, tables: Sequence[str], keys: KeyArray, starts: KeyArray, bases: KeyArray
    ) -> None:
        self._store, self._tables = store, tuple(tables)
        self._keys, self._starts, self._bases = keys.copy(), starts.copy(), bases.copy()
        self.rows: RowArray = np.empty(bases[-1], np.float32)
        self.found: FoundMask = np.zeros(len(keys), np.bool_)
        self.fault: StoreError | None = None
        """Why it has failed."""
        self.damage: StoreDamaged | None = None
        """Why it is answered without the rows of some keys, those that are `damaged`."""
        self.damaged: FoundMask = np.zeros(len(keys), np.bool_)
        self.failure_counted = False
        self.started_s = math.inf
        """When its first thread began: what it waits in the line before says nothing about the tier."""
        tables_asked = np.flatnonzero(np.diff(starts)).tolist()
        self._waiting = deque(tables_asked[:1] if isinstance(store, TablesStore) else tables_asked)
        self.pieces = len(self._waiting)
        self._answered: list[int] = []
        self._over = threading.Event()

    def begin(self, now_s: float) -> bool:
        """Whether a thread that comes to it now finds something to do: others may have begun all, or nobody waits."""
        if not self._waiting:
            return False
        self.started_s = min(self.started_s, now_s)
        return True

    def wait(self, timeout_s: float) -> bool:
        """Whether it is over by then. If not, nobody waits any more: pieces that no thread has begun are dropped."""
        if not self.pieces or self._over.wait(timeout_s):
            return True
        dropped = 0
        with contextlib.suppress(IndexError):
            while True:
                self._waiting.popleft()
                dropped += 1
        if dropped == self.pieces:  # no thread has its buffers, or ever will: it may be long in the line yet
            self._keys, self.rows = _NO_KEYS, _NO_ROWS
        return False

    def work(self) -> bool:
        """Put pieces to the store while there are any. Returns whether all are answered, of which this thread put one.

        Raises what the store raises; the pieces that are left are dropped.
        """
        worked = False
        while True:
            try:
                number = self._waiting.popleft()
            except IndexError:
                return worked and len(self._answered) == self.pieces
            try:
                self._put(number)
            except Exception:
                self._waiting.clear()
                raise
            self._answered.append(number)
            worked = True

    def sample(self, dims: Mapping[str, int], most_keys: int) -> tuple[Sequence[str], KeyArray, KeyArray, KeyArray]:
        """Tables, keys, starts and bases of a smaller question: some keys of each table, from all over it. Whether that
        is answered tells whether this one would be.
        """
        keys = self._keys
        if not keys.size:  # dropped, with nobody waiting
            keys = np.zeros(self._starts[-1], np.int64)
        parts = list(pairwise(self._starts.tolist()))
        most = max(1, most_keys // max(1, sum(last > first for first, last in parts)))
        chosen = [np.linspace(first, last - 1, min(most, last - first), dtype=np.int64) for first, last in parts]
        counts = [len(places) for places in chosen]
        numbers = [count * dims[table] for count, table in zip(counts, self._tables, strict=True)]
        return self._tables, keys[np.concatenate(chosen)], np.cumsum([0, *counts]), np.cumsum([0, *numbers])

    def end(self, fault: StoreError | None = None) -> None:
        """Have who waits learn that it is answered, or has failed."""
        self.fault = self.fault or fault
        self._over.set()

    def _put(self, number: int) -> None:
        keys, starts, bases, rows, found = self._keys, self._starts, self._bases, self.rows, self.found
        if isinstance(self._store, TablesStore):
            wanted = np.ones(len(keys), np.bool_)
            self._store.fill_tables(self._tables, keys, starts, rows, bases, wanted, found)
        else:
            own = slice(starts[number], starts[number + 1])
            there = rows[bases[number] : bases[number + 1]].reshape(own.stop - own.start, -1)
            self._put_table(self._tables[number], keys[own], there, found[own], self.damaged[own])

    def _put_table(self, table: str, keys: KeyArray, rows: RowArray, found: FoundMask, damaged: FoundMask) -> None:
        """One table's keys. Where something is damaged, all others are found in smaller and smaller pieces, of
        ascending keys: what lies beside each other is damaged together.
        """
        try:
            self._store.query(table, keys, rows, found)
            return
        except StoreDamaged as fault:
            self.damage = fault
        order = np.argsort(keys)
        keys, there, had, bad = keys[order], np.empty_like(rows), np.empty_like(found), np.zeros_like(damaged)
        pieces, faults = [(0, len(keys))], 0
        while pieces:
            first, last = pieces.pop()
            part = slice(first, last)
            try:
                self._store.query(table, keys[part], there[part], had[part])
            except StoreDamaged as fault:
                self.damage, faults = fault, faults + 1
                if last - first == 1 or faults > _MOST_FAULTS:
                    had[part], bad[part] = False, True
                else:
                    middle = (first + last) // 2
                    pieces += [(middle, last), (first, middle)]
        rows[order], found[order], damaged[order] = there, had, bad
