import threading
import time

import numpy as np
import pytest

from hebe.embeddings.options import RefreshOptions
from hebe.embeddings.store import StoreError
from hebe.embeddings.tiers import refresh as refresh_module
from hebe.embeddings.tiers.batch_lookup import RowState
from hebe.embeddings.tiers.refresh import CacheRefresh
from tests.embeddings.stores.dict_tiers import DictTiers, wait_until


@pytest.fixture
def tiers():
    made = DictTiers(capacity=60)
    made.ask(list(range(40)))
    made.ask(list(range(20)), "items")
    made.background.drain()
    yield made
    made.close()


def newer(tiers: DictTiers, keys: list[int], value: float) -> None:
    """Lower tiers come to have newer rows than level 1."""
    for store in (tiers.volatile, tiers.persistent):
        store.insert("users", np.array(keys), np.full((len(keys), 3), value, np.float32))
    tiers.cache.mark_stale("users", np.array(keys))


def test_stale_rows_are_replaced_and_deleted_ones_leave(tiers) -> None:
    newer(tiers, [3, 4], 77)
    tiers.volatile.delete("users", np.array([5]))
    tiers.persistent.delete("users", np.array([5]))
    refresh = CacheRefresh(tiers.lookup, RefreshOptions(batch_rows=7))
    refresh.start()
    report = refresh.refresh()
    assert (report.rows, report.replaced, report.dropped, report.unreachable) == (60, 59, 1, 0)
    assert tiers.ask([2, 3, 4]) == ([2, 77, 77], None)
    assert 5 not in tiers.cache.tables["users"]
    assert tiers.cache.size("items") == 20
    refresh.close()


def test_shares_go_round_the_whole_cache(tiers) -> None:
    refresh = CacheRefresh(tiers.lookup, RefreshOptions(batch_rows=5))
    refresh.start()
    newer(tiers, list(range(40)), 8)
    seen = []
    for _ in range(4):
        seen.append(refresh.refresh(0.25).rows)
    assert seen == [15] * 4
    assert tiers.ask(list(range(40))) == ([8.0] * 40, None)
    assert refresh.refresh(0.25).rows == 15, "and begins anew"
    assert refresh.iterations == 5
    refresh.close()


def test_rows_that_come_meanwhile_take_nobodys_turn(tiers, monkeypatch) -> None:
    """Level 1 grows as it is filled, and in tables that are dumped first."""
    dump_keys = tiers.cache.dump_keys

    def grown(table: str, batch_size: int):
        if table == "users":
            tiers.cache.insert(table, np.arange(40, 60), np.ones((20, 3), np.float32))
        return dump_keys(table, batch_size)

    monkeypatch.setattr(tiers.cache, "dump_keys", grown)
    tiers.volatile.delete("items", np.array([19]))
    tiers.persistent.delete("items", np.array([19]))
    report = CacheRefresh(tiers.lookup, RefreshOptions(batch_rows=5)).refresh()
    assert (report.rows, report.replaced, report.dropped) == (80, 79, 1)
    assert 19 not in tiers.cache.tables["items"]


def test_what_no_tier_answers_for_stays_as_it_is(tiers) -> None:
    tiers.volatile.fault = tiers.persistent.fault = StoreError("gone")
    refresh = CacheRefresh(tiers.lookup, RefreshOptions())
    refresh.start()
    report = refresh.refresh()
    assert (report.replaced, report.unreachable) == (0, 60)
    assert tiers.ask([1, 2]) == ([1, 2], None)
    refresh.close()


def test_who_asks_for_a_refresh_doubts_what_there_is(tiers) -> None:
    """As when rows of level 2 have gone back: those that no tier answers for are renewed when they are used."""
    tiers.volatile.fault = tiers.persistent.fault = StoreError("gone")
    refresh = CacheRefresh(tiers.lookup, RefreshOptions())
    refresh.start()
    refresh.ask()
    wait_until(lambda: refresh.iterations == 1)
    assert tiers.ask([1, 2])[1] == [RowState.STALE] * 2
    tiers.volatile.fault = tiers.persistent.fault = None

    def renewed() -> bool:
        tiers.background.drain()
        return tiers.ask([1, 2])[1] is None

    wait_until(renewed)
    refresh.close()


def test_by_period_and_by_signal(tiers) -> None:
    refresh = CacheRefresh(tiers.lookup, RefreshOptions(refresh_interval=0.02))
    refresh.start()
    newer(tiers, [1], 9)
    wait_until(lambda: tiers.ask([1]) == ([9], None))
    refresh.close()
    refresh = CacheRefresh(tiers.lookup, RefreshOptions())
    refresh.start()
    newer(tiers, [1], 10)
    time.sleep(0.05)
    assert refresh.iterations == 0
    refresh.ask()
    wait_until(lambda: tiers.ask([1]) == ([10], None))
    refresh.close()


def test_once_after_the_delay_without_a_period(tiers) -> None:
    """All of the cache, whatever share a period covers, and not again."""
    refresh = CacheRefresh(
        tiers.lookup, RefreshOptions(refresh_delay=0.02, cache_refresh_percentage_per_iteration=0.1, batch_rows=5)
    )
    newer(tiers, list(range(40)), 9)
    refresh.start()
    wait_until(lambda: refresh.iterations == 1)
    assert refresh.last is not None
    assert refresh.last.rows == 60
    assert tiers.ask(list(range(40))) == ([9.0] * 40, None)
    time.sleep(0.1)
    assert refresh.iterations == 1
    refresh.close()


def test_the_period_runs_from_the_start_whatever_the_delay(tiers) -> None:
    """Of HPS' two parameters neither knows of the other."""
    refresh = CacheRefresh(
        tiers.lookup,
        RefreshOptions(
            refresh_interval=0.02, refresh_delay=600.0, cache_refresh_percentage_per_iteration=0.5, batch_rows=5
        ),
    )
    refresh.start()
    wait_until(lambda: refresh.iterations >= 3)
    refresh.close()
    assert refresh.last is not None
    assert refresh.last.rows == 30
    refresh = CacheRefresh(tiers.lookup, RefreshOptions(refresh_interval=600.0, refresh_delay=0.02))
    refresh.start()
    wait_until(lambda: refresh.iterations == 1)
    refresh.close()


def test_times_beyond_what_a_thread_can_wait_are_as_good_as_never(tiers) -> None:
    refresh = CacheRefresh(tiers.lookup, RefreshOptions(refresh_interval=1e300, refresh_delay=1e300))
    refresh.start()
    refresh.ask()
    wait_until(lambda: refresh.iterations == 1)
    refresh.close()


def test_queries_go_on_meanwhile(tiers) -> None:
    refresh = CacheRefresh(tiers.lookup, RefreshOptions(batch_rows=1))
    refresh.start()
    stop, wrong = threading.Event(), []

    def ask() -> None:
        while not stop.is_set():
            rows, _ = tiers.ask([1, 2, 3])
            if rows[2] != 3 or not {rows[0], rows[1]} <= {1.0, 2.0, 5.0}:
                wrong.append(rows)

    thread = threading.Thread(target=ask)
    thread.start()
    newer(tiers, [1, 2], 5)
    for _ in range(5):
        refresh.refresh()
    stop.set()
    thread.join()
    refresh.close()
    assert wrong == []


def test_faults_of_the_thread_are_told(tiers) -> None:
    faults: list[Exception] = []
    refresh = CacheRefresh(tiers.lookup, RefreshOptions(), faults.append)
    refresh.start()
    tiers.cache.fault = StoreError("broken")
    refresh.ask()
    wait_until(lambda: faults)
    refresh.close()
    assert str(faults[0]) == "broken"


def test_a_thread_that_met_a_fault_refreshes_on(tiers, monkeypatch) -> None:
    """Whatever fault, and what was asked for as well: the rows that are there may be old."""
    monkeypatch.setattr(refresh_module, "_TRY_AGAIN_S", 0.01)
    faults: list[Exception] = []
    refresh = CacheRefresh(tiers.lookup, RefreshOptions(), faults.append)
    refresh.start()
    newer(tiers, [1], 9)
    tiers.cache.fault = MemoryError()
    refresh.ask()
    wait_until(lambda: len(faults) >= 2)
    assert refresh.iterations == 0
    tiers.cache.fault = None
    wait_until(lambda: refresh.iterations == 1)
    assert tiers.ask([1]) == ([9], None)
    refresh.close()
    assert {type(fault) for fault in faults} == {MemoryError}


@pytest.mark.parametrize(
    "options",
    [
        {"refresh_interval": -1.0},
        {"refresh_delay": float("nan")},
        {"cache_refresh_percentage_per_iteration": 2.0},
        {"batch_rows": 0},
    ],
)
def test_options_out_of_range(options) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        RefreshOptions(**options)
