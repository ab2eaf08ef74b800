"""What an ingestion tells to be missing of producers that are new to it: what never came, and nothing else."""

import pytest

from hebe.embeddings.updates.ingestion import sequence_check
from hebe.embeddings.updates.ingestion.sequence_check import Gap
from tests.embeddings.stores.dict_store import DictStore
from tests.embeddings.updates.conformance.ingestions import AT, TIMEOUT_S, make_ingestion, rows_of, wait_until
from tests.embeddings.updates.conformance.list_source import DIMS, ListSource


@pytest.fixture(autouse=True)
def _little_is_waited_for(monkeypatch):
    monkeypatch.setattr(sequence_check, "WAIT_S", 0.02)


def gaps_of(source, store=None, **more):
    """What is told of a producer whose message 6 is the first that comes, after others of the log."""
    source.add(6, [6], producer="late")
    with make_ingestion(source, store or DictStore(DIMS), **more) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    return ingestion.statistics().last_gaps


def test_what_a_log_has_lost_before_anybody_read_it_is_told():
    """A Redis that fails over may lack what a trainer sent first."""
    source, store = ListSource(), DictStore(DIMS)
    source.add(0, [0])
    with make_ingestion(source, store) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
        source.add(6, [6], producer="late")
        wait_until(lambda: ingestion.statistics().gaps == 1)
        assert ingestion.drain(TIMEOUT_S)
    assert ingestion.statistics().last_gaps == (Gap(AT, "late", 0, 5),)
    assert set(rows_of(store)) == {0, 6}


def test_who_began_in_the_middle_of_the_log_does_not_know():
    source = ListSource()
    source.add(0, [0])
    assert gaps_of(source, begin={AT: 0}) == ()


@pytest.mark.parametrize("since_s", [99.0, 101.0])
def test_what_is_missing_is_in_the_model_if_what_came_after_it_is(since_s):
    source = ListSource()
    source.add(0, [0], sent_s=100.0)
    source.add(3, [1], sent_s=100.0)
    source.add(4, [2], producer="late", sent_s=100.0)
    source.add(5, [3], producer="late", sent_s=200.0)
    source.add(9, [4], producer="late", sent_s=200.0)
    with make_ingestion(source, DictStore(DIMS), since_s=since_s) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    recent = (Gap(AT, "late", 6, 8),)
    old = (Gap(AT, "p", 1, 2), Gap(AT, "late", 0, 3))
    assert ingestion.statistics().last_gaps == (recent if since_s > 100 else old + recent)


def test_what_was_applied_from_a_log_before_it_was_made_anew_is_not_missing():
    """In a store that tells of it, or where the source does. The trainer goes on with its numbers."""
    store = DictStore(DIMS)
    store.positions = lambda: {"OLD/m/users/0": 5}
    store.marks = lambda: {"OLD/m/users/0": "late/5"}
    store.apply = lambda table, keys, rows, *_, **__: store.insert(table, keys, rows)
    assert gaps_of(ListSource(), store) == ()
    source = ListSource()
    source.lose_end(0)
    assert gaps_of(source) == ()
    store.positions = lambda: {"OLD/m/users/1": 5, "OLD/m/items/0": 5}
    store.marks = dict
    assert gaps_of(ListSource(), store) == (Gap(AT, "late", 0, 5),), "those are of other partitions"


def test_a_log_that_goes_back_while_it_is_read_lacks_nothing_of_what_was_read():
    source = ListSource()
    with make_ingestion(source, DictStore(DIMS)) as ingestion:
        for number in range(6):
            source.add(number, [number], producer="late")
        assert ingestion.drain(TIMEOUT_S)
        with source.lock:
            source.lose_end(0, "NEW")
            source.add(6, [6], producer="late")
        wait_until(lambda: source.committed == {AT: 0})
    assert (ingestion.statistics().gaps, ingestion.statistics().messages) == (0, 7)
