import math
import os
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from hebe.embeddings.clients.circuit_breaker import BreakerOptions
from hebe.embeddings.clients.tier_client import TierClient, TierClientOptions
from hebe.embeddings.clients.tier_request import TierRequest
from hebe.embeddings.store import StoreError, StoreUnavailable
from tests.embeddings.stores.dict_store import DamagedStore, DictStore, OneTableStore

DIMS = {"users": 3, "items": 1}


class Unanswered(Exception):
    """Some keys were not, by when the caller left."""


def ask(client: TierClient, *arrays, timeout_s: float = 20.0, **options) -> TierRequest:
    """Of several tables: an answered request. Raises what it failed with, or `Unanswered`."""
    request = client.start(*arrays, **options)
    answered = client.wait(request, timeout_s)
    if request.error is not None:
        raise request.error
    if not answered.all():
        raise Unanswered
    return request


def asked(client: TierClient, keys: list[int], timeout_s: float = 20.0) -> tuple[np.ndarray, list[bool]]:
    """Of table users: the rows, those not found as zeros, and which were found."""
    starts = np.array([0, len(keys)])
    request = ask(client, ("users",), np.array(keys), starts, 3 * starts, timeout_s=timeout_s)
    return np.where(request.found[:, None], request.rows.reshape(-1, 3), 0), request.found.tolist()


def test_answers_as_its_store_does() -> None:
    store = DictStore(DIMS)
    store.insert("users", np.array([1, 3]), np.array([[1, 1, 1], [3, 3, 3]], np.float32))
    client = TierClient("tier", store, DIMS, TierClientOptions(timeout_s=20.0))
    rows, found = asked(client, [3, 2, 1])
    assert found == [True, False, True]
    assert rows.tolist() == [[3] * 3, [0] * 3, [1] * 3]
    assert asked(client, [1, 1])[1] == [True, True]
    state = client.state
    assert (state.name, state.available, state.failures, state.fault) == ("tier", True, 0, None)
    client.close()
    assert store.closed
    with pytest.raises(StoreError, match="closed"):
        asked(client, [1])


@pytest.mark.parametrize("one_table", [False, True])
def test_several_tables_are_one_request(one_table: bool) -> None:
    store = DictStore(DIMS)
    store.insert("items", np.array([1, 7]), np.array([[10], [70]], np.float32))
    store.insert("users", np.array([5]), np.full((1, 3), 50, np.float32))
    client = TierClient("tier", OneTableStore(store) if one_table else store, DIMS, TierClientOptions(timeout_s=20.0))
    starts, bases = np.array([0, 2, 2, 5]), np.array([0, 2, 2, 11])
    keys = np.array([7, 8, 4, 5, 5])
    request = ask(client, ("items", "items", "users"), keys, starts, bases)
    assert request.damage is None
    assert request.found.tolist() == [True, False, False, True, True]
    assert (request.rows[0], request.rows[5:].tolist()) == (70, [50] * 6)
    client.close()


def test_no_keys_are_answered_at_once_and_leave_nothing_in_the_line() -> None:
    client = TierClient("tier", DictStore(DIMS), DIMS, TierClientOptions(20.0, threads=1, requests_per_thread=1))
    for _ in range(3):
        assert asked(client, [])[1] == []
    client.close()


def both_asked(client: TierClient, timeout_s: float = 20.0) -> None:
    """For a key of either table."""
    ask(client, ("items", "users"), np.array([1, 2]), np.array([0, 1, 2]), np.array([0, 1, 4]), timeout_s=timeout_s)


def test_tables_of_a_store_that_answers_for_one_are_asked_for_side_by_side() -> None:
    store, meeting = DictStore(DIMS), threading.Barrier(2, timeout=30.0)
    query = store.query

    def met(*arguments):
        meeting.wait()
        return query(*arguments)

    store.query = met
    client = TierClient("tier", OneTableStore(store), DIMS, TierClientOptions(timeout_s=60.0, threads=2))
    both_asked(client, 60.0)
    client.close()


def test_tables_that_nobody_waits_for_any_more_are_not_asked_for() -> None:
    store = DictStore(DIMS)
    client = TierClient("tier", OneTableStore(store), DIMS, TierClientOptions(timeout_s=20.0, threads=1))
    store.gate.clear()
    with pytest.raises(Unanswered):
        both_asked(client, 0.01)
    store.gate.set()
    assert asked(client, [3])[1] == [False]
    assert ("users", [2]) not in store.queries
    client.close()


def test_tables_that_fail_together_count_once() -> None:
    store = DictStore(DIMS)
    client = TierClient("tier", OneTableStore(store), DIMS, TierClientOptions(timeout_s=20.0))
    store.fault = StoreError("gone")
    with pytest.raises(StoreError, match="gone"):
        both_asked(client)
    client.close()
    assert client.state.failures == 1


def test_an_answer_that_comes_too_late_touches_nothing_of_the_callers() -> None:
    store = DictStore(DIMS)
    store.insert("users", np.array([1]), np.ones((1, 3), np.float32))
    client = TierClient("tier", store, DIMS, TierClientOptions(timeout_s=20.0))
    store.gate.clear()
    keys, starts, bases = np.array([1]), np.array([0, 1]), np.array([0, 3])
    with pytest.raises(Unanswered):
        ask(client, ("users",), keys, starts, bases, timeout_s=0.01)
    for given in (keys, starts, bases):
        given[:] = -99  # they are the caller's again, who asks for something else with them
    store.gate.set()
    client.close()
    assert store.queries == [("users", [1])]


def test_after_failures_callers_are_refused_at_once() -> None:
    store = DictStore(DIMS)
    breaker = BreakerOptions(failures=2, pause_s=1000.0, longest_pause_s=1000.0)
    client = TierClient("tier", store, DIMS, TierClientOptions(timeout_s=20.0, breaker=breaker))
    store.fault = RuntimeError("a driver's own")
    for _ in range(2):
        with pytest.raises(StoreError, match="RuntimeError: a driver's own"):
            asked(client, [1])
    store.fault = None
    with pytest.raises(StoreUnavailable, match="not available: RuntimeError"):
        asked(client, [1])
    assert store.queries == []
    assert not client.state.available
    client.close()


def test_damaged_rows_are_logged_once_and_open_no_circuit(caplog) -> None:
    store = DictStore(DIMS)
    store.insert("users", np.array([1, 3]), np.array([[1, 1, 1], [3, 3, 3]], np.float32))
    client = TierClient("tier", DamagedStore(store, 2, 7), DIMS, TierClientOptions(timeout_s=20.0))
    starts = np.array([0, 4])
    for _ in range(5):
        request = ask(client, ("users",), np.array([1, 2, 3, 4]), starts, 3 * starts)
        assert request.damage is not None
        assert (request.found.tolist(), request.damaged.tolist()) == (
            [True, False, True, False],
            [False, True, False, False],
        )
    assert asked(client, [7])[1] == [False]
    state = client.state
    assert (state.available, state.failures, state.fault) == (True, 6, "the block of 7 is damaged")
    assert state.damage == "the block of 7 is damaged"
    assert state.damage_age_s == state.fault_age_s
    assert state.damaged_s > state.damage_age_s, "since it was first met"
    assert caplog.messages == [
        f"tier has damaged rows, and queries do without them: the block of {key} is damaged" for key in (2, 7)
    ]
    client.close()


def test_the_circuit_is_open_while_most_of_a_tier_is_damaged() -> None:
    store = DamagedStore(DictStore(DIMS), *range(600))
    client = TierClient("tier", store, DIMS, TierClientOptions(timeout_s=20.0, breaker=BreakerOptions(3, 0.01, 0.02)))
    keys, starts = np.arange(600), np.array([0, 600])
    for _ in range(3):
        assert client.available
        ask(client, ("users",), keys, starts, 3 * starts)
    assert not client.available, "three in a row"
    assert client.state.failures == 3
    give_up_s = time.monotonic() + 30.0
    while [len(asked_for) for asked_for in store.asked].count(256) < 3:  # only a probe asks for so many
        assert time.monotonic() < give_up_s
        assert not client.available, "what the probes ask for is damaged too"
        time.sleep(0.001)
    client.close()


def fail_and_come_back(store: DictStore, client: TierClient, meanwhile: Callable[[], None] = lambda: None) -> None:
    """One failure opens the client's breaker; a probe closes it."""
    store.fault = RuntimeError("it is gone")
    with pytest.raises(StoreError):
        asked(client, [1])
    meanwhile()
    store.fault = None
    give_up_s = time.monotonic() + 30.0
    while not client.state.available:
        assert time.monotonic() < give_up_s
        time.sleep(0.001)


@pytest.mark.parametrize("one_table", [False, True])
def test_the_circuit_is_open_while_a_part_of_a_tier_is_gone(one_table: bool, caplog) -> None:
    class PartlyGone(DictStore):
        gone = True

        def query(self, table, keys, rows, found):
            count = super().query(table, keys, rows, found)
            if self.gone and table == "items" and (keys > 0).any():
                raise StoreUnavailable("a node is silent")
            return count

    store = PartlyGone(DIMS)
    breaker = BreakerOptions(failures=1, pause_s=0.001, longest_pause_s=0.001)
    client = TierClient(
        "tier", OneTableStore(store) if one_table else store, DIMS, TierClientOptions(20.0, breaker=breaker)
    )
    starts, bases, keys = np.array([0, 2, 5]), np.array([0, 6, 9]), np.array([0, 4, 0, 7, 8])
    with pytest.raises(StoreUnavailable, match="silent"):
        ask(client, ("users", "items"), keys, starts, bases)
    give_up_s = time.monotonic() + 30.0
    while store.queries.count(("items", [0, 7, 8])) < 10:  # the question, and probes
        assert time.monotonic() < give_up_s
        time.sleep(0.001)
    state = client.state
    assert (state.available, state.failures, state.fault) == (False, 1, "a node is silent")
    store.gone = False
    while not client.available:
        assert time.monotonic() < give_up_s
        time.sleep(0.001)
    client.close()
    assert caplog.messages == ["tier: circuit open until it answers again: a node is silent", "tier answers again"], (
        "once each"
    )


def test_a_probe_that_meets_damage_is_answered() -> None:
    store = DictStore(DIMS)
    breaker = BreakerOptions(failures=1, pause_s=0.01, longest_pause_s=0.01)
    tier = DamagedStore(store)
    client = TierClient("tier", tier, DIMS, TierClientOptions(20.0, breaker=breaker))
    fail_and_come_back(store, client, lambda: tier.damaged.add(1))
    client.close()


@pytest.mark.parametrize(
    "options", [{"timeout_s": 0.0}, {"timeout_s": float("inf")}, {"threads": 0}, {"requests_per_thread": 0}]
)
def test_options_out_of_range(options) -> None:
    with pytest.raises(ValueError, match="must be"):
        TierClientOptions(**{"timeout_s": 1.0} | options)


def test_since_when_the_circuit_is_open(caplog) -> None:
    store, now_s = DictStore(DIMS), [100.0]
    breaker = BreakerOptions(failures=2, pause_s=1000.0, longest_pause_s=1000.0)
    client = TierClient("tier", store, DIMS, TierClientOptions(20.0, breaker=breaker), lambda: now_s[0])
    store.fault = RuntimeError("it is gone")
    for failures in range(2):
        assert client.state.unavailable_s is None
        assert client.state.failures == failures
        with pytest.raises(StoreError):
            asked(client, [1])
    now_s[0] += 90.0
    assert client.state.unavailable_s == 90.0
    client.close()
    assert caplog.messages == ["tier: circuit open until it answers again: RuntimeError: it is gone"]


def test_the_circuit_of_a_tier_that_is_back_closes(caplog) -> None:
    store = DictStore(DIMS)
    breaker = BreakerOptions(failures=1, pause_s=0.01, longest_pause_s=0.01)
    client = TierClient("tier", store, DIMS, TierClientOptions(20.0, breaker=breaker))
    fail_and_come_back(store, client)
    client.close()  # the probe has ended
    assert client.state.unavailable_s is None
    assert caplog.messages[-1] == "tier answers again"


def test_requests_after_a_load_run_on_threads_of_their_own() -> None:
    asked_by: list[int] = []

    class Watched(DictStore):
        def query(self, *arguments):
            asked_by.append(threading.get_native_id())
            return super().query(*arguments)

    client = TierClient("tier", Watched(DIMS), DIMS, TierClientOptions(30.0, threads=1))
    asked(client, [1])
    asked(client, [1])
    client.renew_threads()
    asked(client, [1])
    assert asked_by[0] == asked_by[1] != asked_by[2]
    client.close()


def test_threads_after_a_load_are_not_those_of_who_asks_first() -> None:
    """Such as the rehearsal of a version that is loaded beside another, on a thread that gives way for good."""
    niceness: set[int] = set()
    threads: set[int] = set()

    class Watched(DictStore):
        def query(self, *arguments):
            threads.add(threading.get_native_id())
            niceness.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            return super().query(*arguments)

    def ask_gently() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        asked(client, [1])

    own = os.getpriority(os.PRIO_PROCESS, 0)
    client = TierClient("tier", Watched(DIMS), DIMS, TierClientOptions(30.0, threads=3))
    client.renew_threads()
    first = threading.Thread(target=ask_gently)
    first.start()
    first.join()
    for _ in range(20):
        asked(client, [1])
    client.close()
    assert niceness == {own}
    assert 1 <= len(threads) <= 3


def test_a_tier_that_no_thread_was_there_to_probe_is_probed_when_there_is(threads_refused, caplog) -> None:
    store, now_s = DictStore(DIMS), [100.0]
    breaker = BreakerOptions(failures=1, pause_s=1.0, longest_pause_s=2.0)
    client = TierClient("tier", store, DIMS, TierClientOptions(20.0, breaker=breaker), lambda: now_s[0])
    threads_refused.add("hebe-tier-probe")
    store.fault = RuntimeError("it is gone")
    with pytest.raises(StoreError, match="it is gone"):
        asked(client, [1])
    store.fault = None
    now_s[0] = 101.5
    assert not client.available, "there is none when the first probe is due, either"
    threads_refused.clear()
    now_s[0] = 103.0
    assert not client.available
    assert store.queries == [], "the next one is due two seconds later"
    now_s[0] = 103.5
    with pytest.raises(StoreUnavailable, match="not available"):
        asked(client, [1])
    give_up_s = time.monotonic() + 30.0
    while not client.available:
        assert time.monotonic() < give_up_s
        time.sleep(0.001)
    client.close()
    assert caplog.messages[1:] == ["tier cannot be probed yet: can't start new thread"] * 2 + ["tier answers again"]


def test_a_tier_that_cannot_be_probed_is_closed(threads_refused) -> None:
    store = DictStore(DIMS)
    client = TierClient("tier", store, DIMS, TierClientOptions(20.0, breaker=BreakerOptions(failures=1)))
    threads_refused.add("hebe-tier-probe")
    store.fault = RuntimeError("it is gone")
    with pytest.raises(StoreError, match="it is gone"):
        asked(client, [1])
    client.close()
    assert store.closed


def test_threads_of_which_one_cannot_be_made_end_with_the_client(threads_refused, threads_begun) -> None:
    store = DictStore(DIMS)
    client = TierClient("tier", store, DIMS, TierClientOptions(20.0, threads=3))
    threads_refused.add("hebe-tier_2")
    with pytest.raises(RuntimeError, match="can't start new thread"):
        client.renew_threads()
    closing = threading.Thread(target=client.close, daemon=True)
    closing.start()
    closing.join(10.0)
    assert not closing.is_alive()
    assert store.closed
    assert not threads_begun()


class SlowStore(DictStore):
    """Takes `seconds` for each call, of a true clock."""

    def __init__(self, seconds: float) -> None:
        super().__init__(DIMS)
        self.seconds = seconds

    def query(self, *arguments) -> int:
        time.sleep(self.seconds)
        return super().query(*arguments)


@pytest.mark.parametrize("one_table", [False, True])
def test_a_request_may_take_longer_than_the_time_out_while_its_pieces_are_answered(one_table: bool) -> None:
    store = SlowStore(0.03)
    store.insert("users", np.arange(40), np.repeat(np.arange(40.0), 3).reshape(-1, 3))
    tier = OneTableStore(store) if one_table else store
    client = TierClient("tier", tier, DIMS, TierClientOptions(timeout_s=0.3, threads=1))
    starts = np.array([0, 40])
    began_s = time.monotonic()
    request = ask(client, ("users",), np.arange(40), starts, 3 * starts, timeout_s=math.inf, piece_keys=2)
    assert time.monotonic() - began_s > 0.6, "20 pieces"
    assert request.found.all()
    assert client.state.failures == 0
    client.close()


def test_what_is_answered_when_the_time_is_up_is_kept() -> None:
    client = TierClient("tier", SlowStore(0.05), DIMS, TierClientOptions(timeout_s=20.0, threads=1))
    late: list[TierRequest] = []
    starts = np.array([0, 40])
    request = client.start(("users",), np.arange(40), starts, 3 * starts, piece_keys=2, on_end=late.append)
    answered = client.wait(request, 0.3)
    assert 2 <= np.count_nonzero(answered) < 40
    client.close()
    assert late == [request]
    assert 0 <= np.count_nonzero(request.late) <= 2, "the piece that was in work; no other is asked for"


def test_requests_take_turns() -> None:
    store = SlowStore(0.01)
    client = TierClient("tier", store, DIMS, TierClientOptions(timeout_s=20.0, threads=1))
    starts = np.array([0, 40])
    large = client.start(("users",), np.arange(40), starts, 3 * starts, piece_keys=1)
    assert asked(client, [99])[1] == [False]
    assert not large.ended
    client.close()
