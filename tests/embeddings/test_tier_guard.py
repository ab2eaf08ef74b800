import threading
import time

import numpy as np
import pytest

from hebe.embeddings.circuit_breaker import BreakerOptions
from hebe.embeddings.store import StoreError, StoreUnavailable
from hebe.embeddings.tier_guard import GuardOptions, TierGuard

from .dict_store import DictStore

DIMS = {"users": 3}


def asked(guard: TierGuard, keys: list[int], timeout_s: float = 20.0) -> tuple[np.ndarray, list[bool]]:
    rows, found = np.zeros((len(keys), 3), np.float32), np.zeros(len(keys), np.bool_)
    assert guard.query("users", np.array(keys), rows, found, timeout_s) == found.sum()
    return rows, found.tolist()


def test_answers_as_its_store_does() -> None:
    store = DictStore(DIMS)
    store.insert("users", np.array([1, 3]), np.array([[1, 1, 1], [3, 3, 3]], np.float32))
    guard = TierGuard("tier", store, DIMS, GuardOptions(timeout_s=20.0))
    rows, found = asked(guard, [3, 2, 1])
    assert found == [True, False, True]
    assert rows.tolist() == [[3] * 3, [0] * 3, [1] * 3]
    assert asked(guard, [1, 1])[1] == [True, True]
    state = guard.state
    assert (state.name, state.available, state.failures, state.fault) == ("tier", True, 0, None)
    guard.close()
    assert store.closed
    with pytest.raises(StoreError, match="closed"):
        asked(guard, [1])


def test_an_answer_that_comes_too_late_touches_nothing_of_the_callers() -> None:
    store = DictStore(DIMS)
    store.insert("users", np.array([1]), np.ones((1, 3), np.float32))
    guard = TierGuard("tier", store, DIMS, GuardOptions(timeout_s=20.0))
    store.gate.clear()
    rows, found = np.zeros((1, 3), np.float32), np.zeros(1, np.bool_)
    with pytest.raises(StoreUnavailable, match="within 10 ms"):
        guard.query("users", np.array([1]), rows, found, 0.01)
    store.gate.set()
    guard.close()
    assert not rows.any()
    assert not found.any()


def test_after_failures_callers_are_told_at_once() -> None:
    store = DictStore(DIMS)
    breaker = BreakerOptions(failures=2, pause_s=1000.0, longest_pause_s=1000.0)
    guard = TierGuard("tier", store, DIMS, GuardOptions(timeout_s=20.0, breaker=breaker))
    store.fault = RuntimeError("a driver's own")
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="RuntimeError: a driver's own"):
            asked(guard, [1])
    store.fault = None
    with pytest.raises(StoreUnavailable, match="not available: RuntimeError"):
        asked(guard, [1])
    assert store.queries == []
    assert not guard.state.available
    guard.close()


@pytest.mark.parametrize("options", [{"timeout_s": 0.0}, {"timeout_s": float("inf")}, {"timeout_s": 1.0, "threads": 0}])
def test_options_out_of_range(options) -> None:
    with pytest.raises(ValueError, match="must be"):
        GuardOptions(**options)


def test_since_when_a_tier_is_left_alone(caplog) -> None:
    store, now_s = DictStore(DIMS), [100.0]
    breaker = BreakerOptions(failures=2, pause_s=1000.0, longest_pause_s=1000.0)
    guard = TierGuard("tier", store, DIMS, GuardOptions(20.0, breaker=breaker), lambda: now_s[0])
    store.fault = RuntimeError("it is gone")
    for failures in range(2):
        assert guard.state.unavailable_s is None
        assert guard.state.failures == failures
        with pytest.raises(StoreUnavailable):
            asked(guard, [1])
    now_s[0] += 90.0
    assert guard.state.unavailable_s == 90.0
    guard.close()
    assert caplog.messages == ["tier is left alone until it answers again: RuntimeError: it is gone"]


def test_a_tier_that_is_back_is_left_alone_no_more(caplog) -> None:
    store = DictStore(DIMS)
    breaker = BreakerOptions(failures=1, pause_s=0.01, longest_pause_s=0.01)
    guard = TierGuard("tier", store, DIMS, GuardOptions(20.0, breaker=breaker))
    store.fault = RuntimeError("it is gone")
    with pytest.raises(StoreUnavailable):
        asked(guard, [1])
    store.fault = None
    give_up_s = time.monotonic() + 30.0
    while not guard.state.available:
        assert time.monotonic() < give_up_s
        time.sleep(0.001)
    guard.close()  # the probe has ended
    assert guard.state.unavailable_s is None
    assert caplog.messages[-1] == "tier answers again"


def test_questions_after_a_load_run_on_threads_of_their_own() -> None:
    asked_by: list[int] = []

    class Watched(DictStore):
        def query(self, *arguments):
            asked_by.append(threading.get_native_id())
            return super().query(*arguments)

    guard = TierGuard("tier", Watched({"t": 1}), {"t": 1}, GuardOptions(30.0, threads=1))

    def ask() -> None:
        guard.query("t", np.array([1]), np.empty((1, 1), np.float32), np.zeros(1, np.bool_), 30.0)

    ask()
    ask()
    guard.renew_threads()
    ask()
    assert asked_by[0] == asked_by[1] != asked_by[2]
    guard.close()
