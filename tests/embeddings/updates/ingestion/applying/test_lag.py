"""How far behind an ingestion says that it is, also while log or store fail: a number of the past would call nobody."""

import pytest

from hebe.embeddings.store import StoreUnavailable
from hebe.embeddings.updates.ingestion import ingestion as module
from hebe.embeddings.updates.ingestion.options import IngestionOptions
from tests.embeddings.stores.dict_store import DictStore
from tests.embeddings.updates.conformance.ingestions import QUICK, make_ingestion, wait_until
from tests.embeddings.updates.conformance.list_source import DIMS, ListSource


def lag_of(ingestion):
    return ingestion.statistics().lag_messages


def may_be_gone(source, asked):
    """Have what is asked of the source fail while the first of what this returns says so."""
    gone, answer = [False], getattr(source, asked)

    def asked_of_a_log_that_may_be_gone(*arguments):
        if gone[0]:
            raise StoreUnavailable("no broker answers")
        return answer(*arguments)

    setattr(source, asked, asked_of_a_log_that_may_be_gone)
    return gone


@pytest.mark.parametrize("asked", ["poll", "lag"])
def test_it_is_unknown_while_the_log_cannot_be_asked(monkeypatch, asked):
    source = ListSource()
    gone = may_be_gone(source, asked)
    gone[0] = True
    monkeypatch.setattr(module, "_LAG_S", 0.0)
    source.add(0, [0])
    with make_ingestion(source, DictStore(DIMS)) as ingestion:
        wait_until(lambda: ingestion.statistics().failures > 1)
        assert lag_of(ingestion) is None, "and not 0: nobody has ever told"
        gone[0] = False
        wait_until(lambda: lag_of(ingestion) == 0)
        gone[0] = True
        source.add(1, [1])
        wait_until(lambda: lag_of(ingestion) is None)
        monkeypatch.setattr(module, "_LAG_S", 1e6)
        gone[0] = False
        wait_until(lambda: lag_of(ingestion) is not None)  # it is asked as soon as the log answers again


@pytest.mark.parametrize("fault", [None, StoreUnavailable("the disk is full")])
def test_it_grows_while_a_store_takes_nothing_or_the_rate_lets_little_through(monkeypatch, fault):
    monkeypatch.setattr(module, "_IDLE_POLL_S", 0.002)
    monkeypatch.setattr(module, "_LAG_S", 0.0)
    source, store = ListSource(), DictStore(DIMS)
    gone = may_be_gone(source, "lag")
    store.fault = fault
    options = QUICK if fault else IngestionOptions(poll_timeout_ms=5, max_batch_size=1, max_rows_per_s=0.1)
    for number in range(3):
        source.add(number, [number])
    with make_ingestion(source, store, options) as ingestion:
        wait_until(lambda: lag_of(ingestion) in (2, 3))
        for number in range(3, 10):
            source.add(number, [number])
        wait_until(lambda: lag_of(ingestion) in (9, 10))
        gone[0] = True
        wait_until(lambda: lag_of(ingestion) is None)
        gone[0] = False
        wait_until(lambda: lag_of(ingestion) in (9, 10))
