import math
import time
from collections.abc import Iterator

import numpy as np
import pytest

from hebe.embeddings.clients.circuit_breaker import BreakerOptions
from hebe.embeddings.clients.tier_client import TierClient, TierClientOptions
from hebe.embeddings.store import StoreError
from hebe.embeddings.tiers.batch_lookup import BatchFetch, BatchLookup
from hebe.embeddings.tiers.lower_tiers import LowerTiers
from tests.embeddings.stores.dict_store import DictStore
from tests.embeddings.stores.dict_tiers import wait_until

DIMS = {"users": 3}


class Both:
    """Two tiers of dicts; `piece_s`: how long level 3 takes for each call."""

    def __init__(self) -> None:
        self.two, self.three = DictStore(DIMS), DictStore(DIMS)
        self.piece_s = 0.0
        self.put(self.three, np.arange(100))
        options = TierClientOptions(20.0, 1, BreakerOptions(100))
        self.clients = [TierClient(str(store), store, DIMS, options) for store in (self.two, self.three)]
        self.tiers = LowerTiers(*self.clients)
        query = self.three.query

        def slowly(*arguments) -> int:
            time.sleep(self.piece_s)
            return query(*arguments)

        self.three.query = slowly

    def put(self, store: DictStore, keys, plus: float = 0.0) -> None:
        store.insert("users", np.array(keys), np.repeat(np.array(keys, np.float32) + plus, 3).reshape(-1, 3))

    def ask(self, keys, timeout_s: float = math.inf, **options):
        """The fetch of these keys, and the answers."""
        wanted = BatchLookup.of([("users", np.array(keys))], DIMS)
        fetch = BatchFetch(wanted, np.ones(len(keys), np.bool_), len(keys), None, 0)
        return fetch, self.tiers.ask(fetch, timeout_s, **options)


@pytest.fixture
def both() -> Iterator[Both]:
    both = Both()
    yield both
    for store in (both.two, both.three):
        store.gate.set()
    for client in both.clients:
        client.close()


def rows_of(fetch) -> list[float]:
    return np.where(fetch.found, fetch.wanted.rows_of(0, 3)[:, 1], -1).tolist()


def test_level_3_is_asked_for_what_level_2_lacks(both: Both) -> None:
    both.put(both.two, [1, 2], plus=0.5)
    fetch, answers = both.ask([1, 2, 3, 1000])
    assert rows_of(fetch) == [1.5, 2.5, 3, -1]
    assert both.three.queries == [("users", [3, 1000])]
    assert (answers.level_2_hits, answers.level_3_hits, fetch.left, fetch.cut) == (2, 1, 1, 0)
    assert fetch.unknown.tolist() == [False, False, False, True]
    [lacked] = answers.lacked
    assert lacked.batch.keys[lacked.found].tolist() == [3]


def test_rows_that_may_be_older_give_way_to_those_of_level_3(both: Both) -> None:
    both.put(both.two, [1, 2, 1000], plus=0.5)

    def all_but_1(answer):
        return answer.batch.keys != 1

    fetch, answers = both.ask([1, 2, 1000], review=all_but_1)
    assert rows_of(fetch) == [1.5, 2, -1]
    assert (fetch.doubted, fetch.unknown.tolist()) == (None, [False, False, True]), "level 3 has deleted it"
    assert (answers.level_2_hits, answers.level_3_hits, fetch.left, answers.lacked) == (1, 1, 1, [])
    both.three.fault = StoreError("gone")
    fetch, answers = both.ask([1, 2, 3], review=all_but_1)
    assert rows_of(fetch) == [1.5, 2.5, -1]
    assert fetch.doubted.tolist() == [False, True, False]
    assert fetch.to_keep.tolist() == [True, False, False]
    assert (fetch.left, fetch.cut, fetch.unknown.any()) == (1, 0, False), "a tier has failed, and no deadline cut it"


def test_what_the_deadline_cuts_off_is_told_and_what_came_is_kept(both: Both) -> None:
    both.piece_s = 0.1
    keys = np.arange(100).repeat(41)[:4100]  # more than two pieces
    began_s = time.monotonic()
    fetch, _ = both.ask(keys, 0.25, ask_level_2=False)
    assert 0.1 < time.monotonic() - began_s < 5
    assert 0 < fetch.left < 4100
    assert fetch.cut == fetch.left
    assert not fetch.unknown.any()
    assert np.array_equal(np.array(rows_of(fetch))[fetch.found], keys[fetch.found])
    fetch, _ = both.ask(keys, ask_level_2=False)
    assert (fetch.left, fetch.cut) == (0, 0), "without a deadline all pieces are waited for"
    fetch, _ = both.ask(keys, 0.0)
    assert (fetch.left, fetch.cut) == (4100, 4100)


def test_late_rows_are_handed_over(both: Both) -> None:
    late = []
    both.three.gate.clear()
    fetch, _ = both.ask([5, 1000], 0.02, late=late.append)
    assert (fetch.left, fetch.cut, late) == (2, 2, [])
    both.three.gate.set()
    wait_until(lambda: late)
    [(table, own)] = late[0].spans()
    found = late[0].found[own]
    assert (table, late[0].batch.keys[own][found].tolist()) == ("users", [5])
    assert late[0].rows_of(table)[found, 0].tolist() == [5]


def test_late_rows_that_may_be_older_are_not(both: Both) -> None:
    both.put(both.two, [1, 2], plus=0.5)
    late = []
    both.two.gate.clear()
    fetch, _ = both.ask([1, 2], 0.2, late=late.append, review=lambda answer: answer.batch.keys == 1)
    assert rows_of(fetch) == [1, 2], "level 3 has had its part of the time"
    both.two.gate.set()
    wait_until(lambda: late)
    assert late[0].batch.keys[late[0].found].tolist() == [2]


def test_a_tier_with_an_open_circuit_is_left_out(both: Both) -> None:
    both.clients[0] = client = TierClient(
        "two", both.two, DIMS, TierClientOptions(20.0, 1, BreakerOptions(1, 1e3, 1e3))
    )
    both.tiers = LowerTiers(*both.clients)
    both.two.fault = StoreError("gone")
    for _ in range(2):
        assert rows_of(both.ask([7])[0]) == [7]
    assert client.state.failures == 1
    assert LowerTiers(client, None).ask(both.ask([7], 0.0)[0], math.inf).level_2_hits == 0


def test_a_tier_that_is_passed_over_is_probed_and_filled(both: Both) -> None:
    two, slow = both.two.query, 0.02

    def slowly(*arguments) -> int:
        time.sleep(slow)
        return two(*arguments)

    both.two.query = slowly
    lacked = []

    def asked_often_enough() -> bool:
        both.ask([7], 0.01, lacked=lacked.append)
        return bool(lacked)

    wait_until(asked_often_enough)
    assert lacked[0].batch.keys[lacked[0].found].size == 1
    both.two.query = two
    wait_until(lambda: both.ask([7], 0.01)[1].of_level_2 is not None)
