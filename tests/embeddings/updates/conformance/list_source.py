"""A source of updates that is a list, with faults to order: what tests of ingestion put in the place of a log."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

import numpy as np

from hebe.embeddings.updates.contract import Delivery, TopicPartition, UpdateMessage

from .update_conformance import rows_for

DIMS = {"users": 3, "items": 1}


class ListSource:
    """A source of one partition of each of some tables, with faults to order."""

    def __init__(self, tables=("users",)):
        self.places = {TopicPartition("m", table, 0) for table in tables}
        self.mine = frozenset(self.places)
        self.log = defaultdict(list)
        self.next = defaultdict(int)
        self.committed = {}
        self.faults, self.commit_faults, self.heartbeats, self.closed = [], [], 0, False
        self.seeks = []
        self.identity, self.shares = "L", True
        self.first = dict.fromkeys(self.places, 0)
        self.lost, self.leaves, self.left = {}, 0, frozenset()
        self.lock = threading.RLock()

    def add(
        self, sequence, keys, stamp=0.0, table="users", producer="p", dim=None, goes=False, sent_s=None, span_s=0.0
    ):
        keys = np.array(keys, np.int64)
        rows = None if goes else rows_for(keys, stamp, DIMS[table] if dim is None else dim)
        message = UpdateMessage(producer, sequence, time.time() if sent_s is None else sent_s, keys, rows, span_s)
        self.put(Delivery(TopicPartition("m", table, 0), 0, message))

    def put(self, delivery):
        with self.lock:
            log = self.log[delivery.at]
            log.append(Delivery(delivery.at, len(log), delivery.message, delivery.fault, delivery.payload))

    def poll(self, max_messages, timeout_s):
        with self.lock:
            if self.left:
                self.mine, self.left = self.left, frozenset()
                self.next.update({at: self.committed.get(at, -1) + 1 for at in self.mine})
            if self.faults:
                raise self.faults.pop(0)
            if not max_messages:
                self.heartbeats += 1
                return []
            found = []
            for at in sorted(self.mine):
                news = self.log[at][self.next[at] :][: max_messages - len(found)]
                self.next[at] += len(news)
                found += news
        if not found:
            time.sleep(timeout_s)
        return found

    def seek(self, at, offset):
        self.seeks.append((at.table, offset))
        self.next[at] = min(offset + 1, len(self.log[at]))

    def commit(self, offsets):
        """As of Kafka and Redis: of what was handed over since the partition became ours, or a seek."""
        with self.lock:
            if self.commit_faults:
                raise self.commit_faults.pop(0)
            self.committed.update({at: offset for at, offset in offsets.items() if offset < self.next[at]})

    def assigned(self):
        return self.mine

    def lag(self):
        return {at: len(self.log[at]) - 1 - self.committed.get(at, -1) for at in self.mine}

    def lost_beginning(self, at):
        return self.lost.get(at)

    def first_offset(self, at):
        return self.first[at]

    def last_offset(self, at):
        return len(self.log[at]) - 1

    def log_identity(self):
        return self.identity

    def leave(self):
        with self.lock:
            self.leaves += 1
            self.mine, self.left = frozenset(), self.mine

    def close(self):
        self.closed = True
