"""What levels 2 and 3 are known to have of the updates in a log."""

import math
import time
from types import SimpleNamespace

import numpy as np
import pytest

from hebe.embeddings import levels_watch
from hebe.embeddings.levels_watch import LevelsWatch
from hebe.embeddings.updates.contract import Topic
from hebe.embeddings.updates.ingestion import UpdateIngestion
from hebe.embeddings.updates.ingestion_options import IngestionOptions
from hebe.embeddings.updates.log_directory import LogDirectory, LogDirectoryOptions

from .dict_store import DictStore

TOPIC = Topic("m", "users")


class Watched:
    """A watch over tiers whose level 2 alone has rows, and what it tells."""

    def __init__(self, place, written: dict | None) -> None:
        self.log = LogDirectory(place, LogDirectoryOptions(partitions=2))
        self.told: list[float] = []
        self.refreshes = 0
        self.group = "g"
        lag = SimpleNamespace(written=self.told.append, waits=False)
        tiers = SimpleNamespace(
            lookup=SimpleNamespace(level_2_lag=lag), written=written, refresh=SimpleNamespace(ask=self._ask)
        )
        self.watch = LevelsWatch(tiers, self.log, [TOPIC], lambda: self.group, None)

    def _ask(self) -> None:
        self.refreshes += 1

    def send(self) -> None:
        with self.log.producer() as producer:
            producer.send("m", "users", np.arange(100), np.ones((100, 1), np.float32))

    def write(self, group: str) -> None:
        """The servers of a group put all that there is into level 2."""
        source = self.log.source(group, [TOPIC])
        options = IngestionOptions(interval_s=0.0, poll_timeout_ms=10.0)
        with UpdateIngestion(source, {"volatile_db": DictStore({"users": 1})}, "m", {"users": 1}, options) as ingestion:
            assert ingestion.drain(60.0)


@pytest.fixture(autouse=True)
def asks_with_each_look(monkeypatch):
    monkeypatch.setattr(levels_watch, "_PROGRESS_S", 0.0)


def test_what_is_heard_from_the_start_on_is_doubted_until_it_is_written(tmp_path) -> None:
    began_s = time.monotonic()
    watched = Watched(tmp_path, written={})
    assert began_s <= watched.told[-1] <= time.monotonic(), "what level 1 was filled with is heard of yet"
    begun = watched.told[-1]
    watched.send()
    watched.watch.look()
    watched.watch.look()
    assert watched.told[-1] == begun
    watched.write("g")
    asked_s = time.monotonic()
    watched.watch.look()
    assert watched.told[-1] >= asked_s
    assert watched.refreshes == 0


def test_where_nobody_knows_what_was_there_all_is_doubted_until_it_is_known_and_then_asked_for(tmp_path) -> None:
    watched = Watched(tmp_path, written=None)
    watched.send()
    watched.watch.look()
    assert watched.told == [-math.inf]
    watched.write("g")
    watched.watch.look()
    assert watched.told[-1] > 0
    assert watched.refreshes == 1


def test_other_rows_have_other_updates(tmp_path) -> None:
    watched = Watched(tmp_path, written={})
    watched.send()
    watched.write("g")
    watched.watch.look()
    watched.group = "other"
    watched.watch.other_group()
    assert watched.told[-1] == -math.inf
    watched.watch.look()
    assert watched.told[-1] == -math.inf
    watched.write("other")
    watched.watch.look()
    assert watched.told[-1] > 0
    assert watched.refreshes == 1


def test_a_look_that_took_longer_than_the_rows_lasted_says_nothing(tmp_path, monkeypatch) -> None:
    watched, asked = Watched(tmp_path, written={}), levels_watch.ends_and_committed

    def meanwhile(*what):
        answer = asked(*what)
        watched.watch.other_group()
        return answer

    monkeypatch.setattr(levels_watch, "ends_and_committed", meanwhile)
    watched.watch.look()
    assert watched.told[-1] == -math.inf


def test_while_it_is_not_known_who_writes_level_2_nothing_is_said(tmp_path) -> None:
    watched = Watched(tmp_path, written=None)
    watched.group = None
    watched.watch.look()
    assert watched.told == [-math.inf]
