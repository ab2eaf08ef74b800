"""A tier that hangs, or answers too late, whose callers have less time than it has."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from hebe.embeddings.clients.circuit_breaker import BreakerOptions
from hebe.embeddings.clients.tier_client import TierClient, TierClientOptions
from hebe.embeddings.clients.tier_request import TierRequest
from hebe.embeddings.store import StoreError, StoreUnavailable
from tests.embeddings.stores.dict_store import DictStore

DIMS = {"users": 3}
SELDOM = {"pause_s": 1000.0, "longest_pause_s": 1000.0}
"""No probe comes within a test."""
OFTEN = {"pause_s": 0.001, "longest_pause_s": 0.001}


class HungStore(DictStore):
    """Has each call wait until `answer` is called for it; with `answers_probes` not those of a probe."""

    def __init__(self) -> None:
        super().__init__(DIMS)
        self.answers_probes = False
        self.begun, self._answers = threading.Semaphore(0), threading.Semaphore(0)

    def query(self, *arguments) -> int:
        if not (self.answers_probes and threading.current_thread().name.endswith("probe")):
            self.begun.release()
            self._answers.acquire()
        return super().query(*arguments)

    def wait_until_begun(self) -> None:
        assert self.begun.acquire(timeout=30.0)

    def answer(self, calls: int = 1) -> None:
        self._answers.release(calls)


class Tier:
    """A client over a `HungStore` with a time-out of 20 s of a clock that stands still at `now_s`."""

    def __init__(self) -> None:
        self.store = HungStore()
        self.now_s = 100.0
        self.callers = ThreadPoolExecutor(8)
        self.client: TierClient | None = None

    def client_with(
        self, threads: int, failures: int = 3, *, pauses: dict[str, float] = SELDOM, **options
    ) -> TierClient:
        breaker = BreakerOptions(failures, **pauses)
        options = TierClientOptions(20.0, threads, breaker, **options)
        self.client = TierClient("tier", self.store, DIMS, options, lambda: self.now_s)
        return self.client

    def start(self, key: int) -> TierRequest:
        starts = np.array([0, 1])
        return self.client.start(("users",), np.array([key]), starts, 3 * starts)

    def ask(self, key: int, timeout_s: float = 20.0) -> list[bool]:
        """Which were found; None if it was not answered. Times are of a true clock: it takes that long."""
        request = self.start(key)
        return request.found.tolist() if self.client.wait(request, timeout_s).all() else None

    def ask_beside(self, key: int) -> "Future[list[bool]]":
        """`ask` on a thread of its own."""
        return self.callers.submit(self.ask, key)

    def ask_and_leave(self, key: int) -> None:
        """Give up when the store has the request: before that, it would say nothing about the tier."""
        request = self.start(key)
        self.store.wait_until_begun()
        assert not request.leave().any()


@pytest.fixture
def tier() -> Iterator[Tier]:
    tier = Tier()
    yield tier
    tier.store.answer(1000)
    tier.callers.shutdown()
    tier.client.close()


def test_a_hung_tier_opens_the_circuit_however_little_time_its_callers_have(tier: Tier, caplog) -> None:
    client = tier.client_with(threads=4)
    for key in range(3):
        tier.ask_and_leave(key)
    tier.now_s = 120.0
    assert (client.available, client.state.failures) == (True, 0), "it has 20 s for each"
    tier.now_s = 120.5
    with pytest.raises(StoreUnavailable, match="not available: tier has not answered within 20000 ms"):
        tier.ask(9, 0.001)
    assert (client.state.available, client.state.failures) == (False, 3)
    tier.now_s = 150.0
    assert client.state.failures == 3, "each counts once"
    assert caplog.messages == ["tier: circuit open until it answers again: tier has not answered within 20000 ms"]


def test_whoever_looks_sees_that_it_hangs_if_nobody_asks_any_more(tier: Tier) -> None:
    client = tier.client_with(threads=1, failures=1)
    tier.ask_and_leave(1)
    assert client.available
    tier.now_s = 121.0
    assert not client.available


def test_a_tier_that_hangs_with_fewer_threads_than_failures_opens_the_circuit(tier: Tier) -> None:
    client = tier.client_with(threads=1, failures=3)
    tier.ask_and_leave(1)
    tier.now_s = 121.0
    nothing = np.zeros(1, np.int64)
    assert client.wait(client.start((), nothing[:0], nothing, nothing), 20.0).tolist() == [], "it needs no thread"
    for failures in (2, 3):
        assert client.available
        with pytest.raises(StoreUnavailable, match="left all threads without an answer for 20000 ms"):
            tier.ask(2)
        assert client.state.failures == failures
    assert not client.available


def test_a_tier_that_always_answers_late_opens_the_circuit(tier: Tier) -> None:
    client = tier.client_with(threads=1, failures=2)
    tier.store.answer(100)
    query = tier.store.query
    took_s = iter([21.0, 20.0, 21.0, 21.0])

    def slowly(*arguments) -> int:
        tier.now_s += next(took_s)
        return query(*arguments)

    tier.store.query = slowly
    for failures in (1, 1, 2):
        tier.ask(1)
        assert (client.state.failures, client.available) == (failures, True), (
            "one in time is between those that are late"
        )
    tier.ask(1)
    assert (client.state.failures, client.available) == (3, False)
    assert client.state.fault == "tier has answered after 21000 ms"


def test_a_request_that_fails_after_its_time_out_counts_once(tier: Tier) -> None:
    client = tier.client_with(threads=1, failures=2)
    tier.ask_and_leave(1)
    tier.now_s = 121.0
    assert client.state.failures == 1
    tier.store.fault = StoreError("too late, and gone")
    tier.store.answer()
    client.renew_threads()  # the request has ended
    assert (client.state.failures, client.state.available) == (1, True)
    assert "within 20000 ms" in client.state.fault


def test_what_waits_behind_others_in_the_line_does_not_make_a_busy_tier_fail(tier: Tier) -> None:
    client = tier.client_with(threads=1, failures=1)
    first = tier.ask_beside(1)
    tier.store.wait_until_begun()
    second = tier.ask_beside(2)
    for key in (3, 4, 5):
        assert tier.ask(key, 0.001) is None
    tier.now_s = 115.0
    tier.store.answer()
    assert first.result() == [False]
    tier.store.wait_until_begun()
    tier.now_s = 130.0
    assert client.available, "30 s after it was asked, the tier has had the second one for 15 s"
    tier.store.answer()
    assert second.result() == [False]
    assert (client.state.failures, client.available) == (0, True)


def test_a_thread_that_hangs_alone_does_not_make_the_others_fail(tier: Tier) -> None:
    client = tier.client_with(threads=2, failures=2)
    tier.ask_and_leave(1)
    tier.now_s = 121.0
    answered = tier.ask_beside(2)
    tier.store.wait_until_begun()
    tier.store.answer(2)  # whichever comes first: both are answered
    assert answered.result() == [False]
    client.renew_threads()
    assert (client.state.failures, client.available) == (1, True)


def test_too_many_requests_are_refused_and_those_that_nobody_waits_for_are_not_asked(tier: Tier) -> None:
    client = tier.client_with(threads=1, requests_per_thread=3)
    tier.ask_and_leave(1)
    for key in (2, 3):
        assert tier.ask(key, 0.001) is None
    with pytest.raises(StoreUnavailable, match="3 requests to answer"):
        tier.ask(4)
    assert (client.state.failures, client.available) == (0, True), "that it is busy is no failure"
    tier.store.answer(3)  # for each, if they were asked
    client.renew_threads()  # those that there were have ended
    tier.store.answer(4)
    for _ in range(4):  # there is room again
        assert tier.ask(5) == [False]
    assert [keys for _, keys in tier.store.queries] == [[1], [5], [5], [5], [5]]


def test_what_hung_before_a_tier_came_back_does_not_count_against_it(tier: Tier) -> None:
    client = tier.client_with(threads=3, failures=1, pauses=OFTEN)
    tier.store.answers_probes = True
    tier.ask_and_leave(1)
    tier.now_s = 110.0
    tier.ask_and_leave(2)
    tier.now_s = 121.0
    assert not client.state.available
    _wait_until(lambda: client.available)
    tier.now_s = 140.0
    assert (client.state.failures, client.available) == (2, True)


def test_a_tier_that_answers_probes_alone_is_not_back_before_a_thread_has_its_answer(tier: Tier) -> None:
    client = tier.client_with(threads=1, failures=1, pauses=OFTEN)
    tier.store.answers_probes = True
    tier.ask_and_leave(1)
    tier.now_s = 121.0
    assert not client.available
    _wait_until(lambda: "no thread has its answer" in client.state.fault)
    assert not client.available
    tier.store.answer()
    _wait_until(lambda: client.available)
    tier.store.answer()
    assert tier.ask(2) == [False]


def _wait_until(holds, patience_s: float = 30.0) -> None:
    give_up_s = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < give_up_s
        time.sleep(0.001)
