"""When offsets are committed: after the stores have the rows, and often enough."""

import threading
from collections import defaultdict

from hebe.embeddings.store import StoreUnavailable
from hebe.embeddings.updates.contract import TopicPartition
from hebe.embeddings.updates.ingestion import ingestion as module
from hebe.embeddings.updates.ingestion.options import IngestionOptions
from tests.embeddings.stores.dict_store import DictStore
from tests.embeddings.updates.conformance.ingestions import AT, TIMEOUT_S, make_ingestion, rows_of, wait_until
from tests.embeddings.updates.conformance.list_source import DIMS, ListSource


def test_offsets_are_committed_after_the_store_has_the_rows():
    source, store, asked = ListSource(), DictStore(DIMS), threading.Event()
    store.gate.clear()
    insert = store.insert
    store.insert = lambda *arguments: asked.set() or insert(*arguments)
    source.add(0, [1, 2])
    ingestion = make_ingestion(source, store)
    assert asked.wait(TIMEOUT_S)
    assert not source.committed
    store.gate.set()
    wait_until(lambda: source.committed == {AT: 0})
    assert set(rows_of(store)) == {1, 2}
    ingestion.close()


def test_a_fault_of_the_log_between_two_batches_loses_none():
    """Of any kind: what the source had handed over is not handed over again."""
    source, store = ListSource(), DictStore(DIMS)
    source.commit_faults = [StoreUnavailable("away"), RuntimeError("odd"), StoreUnavailable("away")]
    for number in range(30):
        source.add(number, [number])
    options = IngestionOptions(failure_backoff_ms=1, poll_timeout_ms=5, max_batch_size=2, max_commit_interval=2)
    with make_ingestion(source, store, options) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert set(rows_of(store)) == set(range(30))
    assert (ingestion.statistics().failures, ingestion.statistics().messages) == (3, 30)
    assert source.committed == {AT: 29}


def test_batches_until_a_commit_are_counted_by_partition(monkeypatch):
    """A commit writes as many offsets as there are partitions: it is not made for a batch of each."""
    monkeypatch.setattr(module, "_COMMIT_S", 1e6)
    source, store = ListSource(("users", "items")), DictStore(DIMS)
    for number in range(3):
        source.add(number, [number])
        source.add(number, [number], table="items")
    committed = defaultdict(list)
    insert = store.insert

    def noted_insert(table, keys, rows):
        committed[table].append(source.committed.get(TopicPartition("m", table, 0)))
        insert(table, keys, rows)

    store.insert = noted_insert
    options = IngestionOptions(failure_backoff_ms=1, poll_timeout_ms=5, max_batch_size=1, max_commit_interval=2)
    with make_ingestion(source, store, options) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert committed == {"users": [None, None, 1], "items": [None, None, 1]}


def test_a_slow_store_commits_as_it_goes_and_the_source_looks_after_itself(monkeypatch):
    monkeypatch.setattr(module, "_IDLE_POLL_S", 0.0)
    monkeypatch.setattr(module, "_COMMIT_S", 0.0)
    source, store = ListSource(), DictStore(DIMS)
    for number in range(4):
        source.add(number, [number])

    seen = []

    def slow_insert(table, keys, rows):
        assert (table, rows.shape) == ("users", (1, 3))
        seen.append((keys.tolist(), source.idle_polls, source.committed.get(AT)))

    store.insert = slow_insert
    options = IngestionOptions(failure_backoff_ms=1, poll_timeout_ms=5, max_batch_size=1)
    with make_ingestion(source, store, options) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert seen == [([0], 0, None), ([1], 1, 0), ([2], 2, 1), ([3], 3, 2)]
    assert source.committed == {AT: 3}
    assert ingestion.statistics().failures == 0


def test_offsets_are_committed_after_so_many_batches():
    source, store, commits = ListSource(), DictStore(DIMS), []
    source.commit = lambda offsets: commits.append(dict(offsets)) or source.committed.update(offsets)
    for number in range(64 * 4):
        source.add(number, [number])
    options = IngestionOptions(max_batch_size=4, max_commit_interval=16, poll_timeout_ms=5)
    with make_ingestion(source, store, options) as ingestion:
        assert ingestion.drain(TIMEOUT_S)
    assert [commit[AT] for commit in commits][:4] == [63, 127, 191, 255]
