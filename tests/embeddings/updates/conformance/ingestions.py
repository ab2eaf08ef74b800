"""Ingestions that are quick to try again, into stores of which tests see the rows."""

import time

from hebe.embeddings.updates.contract import TopicPartition
from hebe.embeddings.updates.ingestion.ingestion import UpdateIngestion
from hebe.embeddings.updates.ingestion.options import IngestionOptions

from .list_source import DIMS

AT = TopicPartition("m", "users", 0)
QUICK = IngestionOptions(failure_backoff_ms=1, poll_timeout_ms=5)
TIMEOUT_S = 20.0


def make_ingestion(source, store, options=QUICK, **more):
    return UpdateIngestion(source, {"store": store}, "m", DIMS, options, **more)


def wait_until(done):
    end_s = time.monotonic() + TIMEOUT_S
    while not done():
        assert time.monotonic() < end_s
        time.sleep(0.002)


def rows_of(store, table="users"):
    return {key: row.tolist() for key, row in store.tables[table].items()}


class Listener:
    """Calls `written`, and notes what else it is told: (AT, position, identity), and (table, offsets) before writes."""

    def __init__(self, written=lambda *_: None):
        self.written, self.begun, self.announced = written, [], []

    def begin(self, at, position, identity):
        self.begun.append((at, position, identity))

    def writing(self, table, place):
        self.announced.append((table, place.offsets.tolist()))
