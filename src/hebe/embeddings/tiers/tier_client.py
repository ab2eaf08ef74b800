"""A tier that may stall or fail, asked so that nobody waits longer than he can: time-outs and a circuit breaker.

HPS has neither, and a stalled Redis stalls its server. Here a question, one for all tables of a batch, runs on threads
of the guard, into buffers of its own, since a caller that has given up takes his away. After some failures in a row
the tier is left alone and callers are told at once; a probe from time to time, in no query's way, finds out when it is
back. It asks for some of what was asked for in vain, since a tier may be gone in part.

Damage here and there is no reason for that: a question is answered without the rows that are damaged. Where most of
what is asked for is, it is: the model should not seem ready then.

The tier has its time-out for each question, counted from when a thread puts it to the store, however soon its caller
gives up: callers with little time neither make a busy tier fail nor keep one that hangs from failing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from hebe.embeddings.circuit_breaker import BreakerOptions, CircuitBreaker
from hebe.embeddings.store import (
    EmbeddingStore,
    FoundMask,
    KeyArray,
    RowArray,
    StoreError,
    StoreUnavailable,
    in_words,
)
from hebe.embeddings.tiers.tier_question import TierQuestion

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
