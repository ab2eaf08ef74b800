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
    """A source of one partition of each of some tables, with errors to order."""

    def __init__(self, tables=("users",)):
        self.places = frozenset(TopicPartition("m", table, 0) for table in tables)
        self.log = defaultdict(list)
        self.next = defaultdict(int)
        self.begun = defaultdict(lambda: -1)
        self.committed = {}
        self.faults, self.commit_faults, self.idle_polls, self.closed = [], [], 0, False
        self.seeks, self.restarted = [], []
        self.identity = "L"
        self.first = dict.fromkeys(self.places, 0)
        self.lost = {}
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
            log.append(Delivery(delivery.at, len(log), delivery.message, delivery.error, delivery.payload))

    def lose_end(self, length, identity=None):
        """As a log that goes back, or one of another identity in its place, while it is read: the rest is gone."""
        with self.lock:
            self.identity = identity or self.identity
            for at in sorted(self.places):
                self.log[at][length:] = []
                self.next[at], self.begun[at] = 0, -1
                self.committed.pop(at, None)
                self.restarted.append(Delivery(at, 0, None, "it went back", restarts=True))

    def poll(self, max_messages, timeout_s):
        with self.lock:
            if self.faults:
                raise self.faults.pop(0)
            if not max_messages:
                self.idle_polls += 1
                return []
            found, self.restarted = self.restarted, []
            for at in sorted(self.places):
                news = self.log[at][self.next[at] :][: max(0, max_messages - len(found))]
                self.next[at] += len(news)
                found += news
        if not found:
            time.sleep(timeout_s)
        return found

    def seek(self, at, offset):
        self.seeks.append((at.table, offset))
        self.next[at] = min(offset + 1, len(self.log[at]))
        self.begun[at] = offset
        self.committed.pop(at, None)

    def commit(self, offsets):
        """Of what was handed over."""
        with self.lock:
            if self.commit_faults:
                raise self.commit_faults.pop(0)
            self.committed.update({at: offset for at, offset in offsets.items() if offset < self.next[at]})

    def assigned(self):
        return self.places

    def lag(self):
        return {at: len(self.log[at]) - 1 - self.committed.get(at, self.begun[at]) for at in self.places}

    def begun_after(self, at):
        return self.begun[at]

    def lost_beginning(self, at):
        return self.lost.get(at)

    def first_offset(self, at):
        return self.first[at]

    def last_offset(self, at):
        return len(self.log[at]) - 1

    def log_identity(self):
        return self.identity

    def close(self):
        self.closed = True
