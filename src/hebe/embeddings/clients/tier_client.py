"""Asks a tier that may stall or fail, so that nobody waits longer than they can: time-outs and a circuit breaker.

HPS has neither, and a stalled Redis stalls its server. Here a request, one for all tables of a batch (`TierRequest`),
is put to the store in pieces on threads of the client, which take turns among requests. The tier's time-out is for each
piece, counted from when a thread puts it to the store, however soon its caller leaves: a large request may take longer
than that while its pieces are answered, callers with little time do not make a busy tier fail, and they do not keep one
that hangs from failing.

After some failures in a row the circuit is open: callers are refused at once, and a probe from time to time, in no
query's way, finds out when the tier is back. It asks for some of what has failed, since a tier may be gone in part.

Damage here and there opens no circuit: a request is answered without the rows that are damaged. Where most of what is
asked for is damaged, it does: the model should not seem ready then.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from hebe.embeddings.clients.circuit_breaker import BreakerOptions, CircuitBreaker
from hebe.embeddings.clients.tier_request import MAX_PIECE_KEYS, Piece, TierRequest
from hebe.embeddings.store import EmbeddingStore, FoundMask, KeyArray, StoreError, StoreUnavailable, in_words

log = logging.getLogger("hebe.tiers")

_MAX_DAMAGED, _FEW_DAMAGED = 0.5, 256
"""A request of which a larger share of the keys is damaged, and more than one block holds, has failed."""

_PROBED_KEYS = 256
"""So many a probe asks for at most, or one of each table: enough to meet what fails, without being a load."""

_MAX_DAMAGE_LOGGED = 100
"""Places of damage that are logged, once each."""

ClockFunction = Callable[[], float]
_Sample = tuple[Sequence[str], KeyArray, KeyArray, KeyArray]
"""What a request asks: see `TierRequest.sample`."""


@dataclass(frozen=True, slots=True)
class TierClientOptions:
    """`timeout_s` is the longest wait for an answer to a piece, `threads` how many calls of the store run at once.

    `requests_per_thread` times as many requests may be without an answer, put to the store or in the line; further ones
    are refused.

    Raises ValueError naming a field that is out of range.
    """

    timeout_s: float
    threads: int = 4
    breaker: BreakerOptions = field(default_factory=BreakerOptions)
    requests_per_thread: int = 32

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s < float("inf"):
            raise ValueError(f"timeout_s is {self.timeout_s}: must be above 0")
        if self.threads < 1:
            raise ValueError(f"threads is {self.threads}: must be at least 1")
        if self.requests_per_thread < 1:
            raise ValueError(f"requests_per_thread is {self.requests_per_thread}: must be at least 1")


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
    """How long its circuit has been open; None while it is available."""
    damage: str | None = None
    damage_age_s: float | None = None
    damaged_s: float | None = None


class TierClient:
    """Asks `store`, whose tables have the embedding dims `dims`. `name` is how operators know the tier."""

    def __init__(
        self,
        name: str,
        store: EmbeddingStore,
        dims: Mapping[str, int],
        options: TierClientOptions,
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
        self._error: str | None = None
        self._error_s = 0.0
        self._damage: tuple[str, float] | None = None
        """What the last damage that was met is, and when that was."""
        self._first_damage_s: float | None = None
        self._opened_s: float | None = None
        self._logged_damage: set[str] = set()
        self._unanswered: set[TierRequest] = set()
        """Those in the line or put to the store. It and the next change by single operations, which need no lock."""
        self._in_work: dict[int, tuple[TierRequest, float]] = {}
        """Of which request each thread, by its identifier, has put a piece to the store, and when."""
        self._answered_s = clock()
        """When a piece was last answered."""
        self._threads = self._new_threads()
        self._closing = threading.Event()
        self._prober: threading.Thread | None = None
        self._to_probe: tuple[_Sample, bool] | None = None
        """What to probe with, as `_probe` takes it, while no thread could be had for it."""

    @property
    def available(self) -> bool:
        """Whether the circuit is closed. Pieces that are overdue by now count for it."""
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
                self._error,
                None if self._error is None else now_s - self._error_s,
                None if self._opened_s is None else now_s - self._opened_s,
                damage,
                None if damage is None else now_s - met_s,
                None if self._first_damage_s is None else now_s - self._first_damage_s,
            )

    def start(
        self,
        tables: Sequence[str],
        keys: KeyArray,
        starts: KeyArray,
        bases: KeyArray,
        *,
        piece_keys: int = MAX_PIECE_KEYS,
        on_end: Callable[[TierRequest], None] | None = None,
    ) -> TierRequest:
        """Ask for rows of several tables, in pieces of at most `piece_keys`: the request, to `wait` for, or not.

        Arrays as those of `TablesStore.fill_tables`, `on_end` as in `TierRequest`. Raises `StoreUnavailable` when the
        circuit is open, all threads hang, or too many requests wait; `StoreError` after `close`.
        """
        now_s = self._clock()
        hangs = self._count_overdue(now_s)
        if not self._breaker.closed:
            raise StoreUnavailable(f"{self.name} is not available: {self._error}", f"{self.name} is not available")
        if self._closing.is_set():
            raise StoreError(f"{self.name} is closed")
        request = TierRequest(
            self.store, tables, keys, starts, bases, piece_keys=piece_keys, asked_s=now_s, on_end=on_end
        )
        if not request.pieces:
            return request
        if hangs:
            # It counts too, though no thread can begin it: with few threads the circuit would never open.
            what = f"{self.name} has left all threads without an answer for {self.options.timeout_s * 1e3:.0f} ms"
            with self._lock:
                self._count_failure(request, what, now_s)
            raise StoreUnavailable(what, what)
        if len(self._unanswered) >= self.options.requests_per_thread * self.options.threads:
            what = f"{self.name} has {len(self._unanswered)} requests to answer: too many for another"
            raise StoreUnavailable(what, what)
        self._unanswered.add(request)
        for _ in range(min(request.pieces, self.options.threads)):
            self._threads.submit(self._work, request)
        return request

    def wait(self, request: TierRequest, timeout_s: float) -> FoundMask:
        """Wait for a request that was started here, for at most `timeout_s`, and while pieces keep being answered: of
        this request, or, while this one waits in the line, of others. Returns which of its keys are answered.
        """
        give_up_s = time.monotonic() + timeout_s
        while not request.ended:
            since_s = max(request.progress_s, self._answered_s) if request.waits else request.progress_s
            stalls_s = since_s + self.options.timeout_s - self._clock()
            left_s = min(give_up_s - time.monotonic(), stalls_s)
            if left_s <= 0 or request.wait(left_s):
                break
        return request.leave()

    def renew_threads(self) -> None:
        """Let go of the threads that there are, for others that are started now; while no request is in flight.

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

    def _work(self, request: TierRequest) -> None:
        """Put pieces to the store, one after the other, but for other requests' turns."""
        while (piece := request.begin(began_s := self._clock())) is not None:
            self._put(request, piece, began_s)
            if request.waits and len(self._unanswered) > 1:
                with contextlib.suppress(RuntimeError):  # it is being closed
                    self._threads.submit(self._work, request)
                    return
        if request.ended:
            self._unanswered.discard(request)

    def _put(self, request: TierRequest, piece: Piece, began_s: float) -> None:
        thread, error = threading.get_ident(), None
        self._in_work[thread] = request, began_s
        try:
            request.put(piece)
        except Exception as raised:  # a driver's own too, that its store let through
            error = raised if isinstance(raised, StoreError) else StoreError(f"{type(raised).__name__}: {raised}")
        now_s = self._clock()
        self._in_work.pop(thread, None)
        if error is not None:
            self._failed(request, str(error), began_s)
        else:
            self._answered_s = now_s
            if now_s - began_s > self.options.timeout_s:
                self._failed(request, f"{self.name} has answered after {(now_s - began_s) * 1e3:.0f} ms", began_s)
        if request.done(piece, now_s, error):
            self._unanswered.discard(request)
            self._judge(request, began_s, now_s)
            request.end(now_s)

    def _judge(self, request: TierRequest, began_s: float, now_s: float) -> None:
        """What a request that ends now, a piece of which began at `began_s`, means for the circuit."""
        if request.damage is not None:
            if _is_mostly_damaged(request):
                self._failed(request, str(request.damage), began_s, mostly_damaged=True)
            self.note_damage(str(request.damage), is_failure=not request.failure_counted)
        if not request.failure_counted:
            with self._lock:
                if self._breaker.closed:
                    self._breaker.succeeded(now_s)

    def _count_overdue(self, now_s: float) -> bool:
        """Count requests as failures of which the store has had a piece for longer than the time-out.

        Returns whether each thread waits for such a one, so that none can begin another.
        """
        if self._to_probe is not None:
            self._probe_after_all(now_s)
        if not self._in_work:
            return False
        timeout_s = self.options.timeout_s
        overdue = [each for each in list(self._in_work.values()) if now_s - each[1] > timeout_s]
        for request, began_s in overdue:
            if not request.failure_counted:
                self._failed(request, f"{self.name} has not answered within {timeout_s * 1e3:.0f} ms", began_s)
        return len(overdue) == self.options.threads

    def _failed(self, request: TierRequest, error: str, began_s: float, *, mostly_damaged: bool = False) -> None:
        """Count it, once a request: one that was not answered in time may fail as well."""
        with self._lock:
            if not request.failure_counted:
                request.failure_counted = True
                self._count_failure(request, error, began_s, mostly_damaged=mostly_damaged)

    def note_damage(self, error: str, *, is_failure: bool = True) -> None:
        """A request was answered all the same, but for some rows, or the store has removed them."""
        with self._lock:
            self._failures += is_failure
            self._error, self._error_s = self._damage = error, self._clock()
            if self._first_damage_s is None:
                self._first_damage_s = self._error_s
            news = error not in self._logged_damage and len(self._logged_damage) < _MAX_DAMAGE_LOGGED
            if news:
                self._logged_damage.add(error)
        if news:
            log.warning("%s has damaged rows, and queries do without them: %s", self.name, error)

    def _count_failure(self, request: TierRequest, error: str, began_s: float, *, mostly_damaged: bool = False) -> None:
        """Of a call that began then. With the lock held."""
        self._failures += 1
        self._error, self._error_s = error, self._clock()
        opens = self._breaker.failed(began_s, self._error_s)
        if opens:
            self._opened_s = self._error_s
            log.warning("%s: circuit open until it answers again: %s", self.name, error)
        if opens and not self._closing.is_set():
            self._to_probe = request.sample(self._dims, _PROBED_KEYS), mostly_damaged
            self._begin_to_probe(self._to_probe)

    def _begin_to_probe(self, about: tuple[_Sample, bool]) -> None:
        """With the lock held. Where the system has no thread left, whoever asks or looks when a probe is due tries."""
        prober = threading.Thread(target=self._probe, args=about, name=f"hebe-{self.name}-probe", daemon=True)
        try:
            prober.start()
        except (RuntimeError, MemoryError) as error:
            log.warning("%s cannot be probed yet: %s", self.name, in_words(error))
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
        """Ask for `sample` of the request that failed when a probe is due, until it is answered in time.

        `was_damaged`: that request was mostly. Else damage is an answer.
        """
        while not self._closing.is_set():
            with self._lock:
                due_s = self._breaker.probe_s
            if due_s is None:
                return
            if self._closing.wait(max(due_s - self._clock(), 0.0)):
                return
            started_s = self._clock()
            error = self._probe_error(sample, was_damaged)
            if error is None and self._clock() - started_s > self.options.timeout_s:
                error = "a probe was answered too late"
            if error is None and self._count_overdue(self._clock()):
                error = "a probe was answered, but no thread has its answer yet"
            with self._lock:
                if error is None:
                    self._breaker.succeeded(self._clock())
                    self._opened_s = None
                    log.warning("%s answers again", self.name)
                    return
                self._error, self._error_s = error, self._clock()
                self._breaker.probe_failed(self._error_s)

    def _probe_error(self, sample: _Sample, was_damaged: bool) -> str | None:
        request = TierRequest(self.store, *sample)
        try:
            while (piece := request.begin(self._clock())) is not None:
                request.put(piece)
        except Exception as error:
            return in_words(error)
        if was_damaged and np.count_nonzero(request.damaged) > _MAX_DAMAGED * len(request.damaged):
            return str(request.damage)
        return None


def _is_mostly_damaged(request: TierRequest) -> bool:
    count = int(np.count_nonzero(request.damaged))
    return count > max(_MAX_DAMAGED * len(request.damaged), _FEW_DAMAGED)
