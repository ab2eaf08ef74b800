"""What levels 2 and 3 are known to have of the updates in a log."""

import math
import time
from types import SimpleNamespace

import numpy as np
import pytest

from hebe.embeddings.store import StoreUnavailable
from hebe.embeddings.tiers import levels_watch
from hebe.embeddings.tiers.levels_watch import LevelsWatch
from hebe.embeddings.tiers.shared_fills import SharedFills
from hebe.embeddings.updates.boot_clock import boot_s
from hebe.embeddings.updates.contract import Topic, TopicPartition
from hebe.embeddings.updates.directory.log import LogDirectory, LogDirectoryOptions
from hebe.embeddings.updates.group_progress import GroupLook, ends_and_committed
from hebe.embeddings.updates.ingestion.ingestion import UpdateIngestion
from hebe.embeddings.updates.ingestion.options import IngestionOptions
from tests.embeddings.stores.dict_store import DictStore

TOPIC = Topic("m", "users")


class Watched:
    """A watch over tiers whose level 2 alone has rows, or which have `level_3`, and what it tells."""

    def __init__(self, place, written: GroupLook | None, level_3: "Level3 | None" = None) -> None:
        self.log = LogDirectory(place, LogDirectoryOptions(partitions=2))
        self.told: list[float] = []
        self.refreshes = self.taken_back = 0
        self.owes = False
        self.group: str | None = "g"
        self.fills = SharedFills()
        lookup = SimpleNamespace(
            level_2_lag=SimpleNamespace(written=self.told.append, waits=False),
            volatile=SimpleNamespace(fills=self.fills),
            take_back_unsure=self._take_back,
            settle=lambda: not self.owes,
        )
        tiers = SimpleNamespace(
            lookup=lookup,
            written=written,
            refresh=SimpleNamespace(ask=self._ask),
            fill_level_2=lambda _while_current: None,
        )
        self.watch = LevelsWatch(tiers, self.log, [TOPIC], lambda: self.group, level_3)

    def _take_back(self) -> None:
        self.taken_back += 1

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
    watched = Watched(tmp_path, written=GroupLook(12.0, {}, {}))
    assert watched.told == [12.0], "what level 1 was filled with is heard of yet"
    watched.send()
    watched.watch.look()
    watched.watch.look()
    assert watched.told == [12.0]
    watched.write("g")
    asked_s = time.monotonic()
    watched.watch.look()
    assert watched.told[-1] >= asked_s
    assert watched.refreshes == 0


def test_where_much_was_yet_to_be_written_when_level_1_was_filled_all_is_doubted_until_it_is(tmp_path) -> None:
    """As where Redis has answered without the log: this server does not know that any sooner than it has read it."""
    before = LogDirectory(tmp_path, LogDirectoryOptions(partitions=2))
    with before.producer() as producer:
        producer.send("m", "users", np.arange(100), np.ones((100, 1), np.float32))
    watched = Watched(tmp_path, written=GroupLook(12.0, *ends_and_committed(before, [TOPIC], "g")))
    assert watched.told == [-math.inf]
    watched.watch.look()
    assert watched.told == [-math.inf]
    watched.write("g")
    watched.watch.look()
    assert watched.told[-1] > 12.0
    assert watched.refreshes == 0, "level 1 hears of all that"


def test_what_was_being_written_when_level_1_was_filled_is_there_with_the_next_look(tmp_path) -> None:
    part = TopicPartition("m", "users", 0)
    watched = Watched(tmp_path, written=GroupLook(12.0, {part: 0}, {part: -1}))
    watched.send()
    watched.write("g")
    watched.send()
    watched.watch.look()
    assert watched.told == [-math.inf, 12.0]
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
    watched = Watched(tmp_path, written=GroupLook(12.0, {}, {}))
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
    watched, asked = Watched(tmp_path, written=GroupLook(12.0, {}, {})), levels_watch.committed_offsets

    def meanwhile(*what):
        answer = asked(*what)
        watched.watch.other_group()
        return answer

    monkeypatch.setattr(levels_watch, "committed_offsets", meanwhile)
    watched.watch.look()
    assert watched.told[-1] == -math.inf


def test_while_it_is_not_known_who_writes_level_2_nothing_is_said(tmp_path) -> None:
    watched = Watched(tmp_path, written=None)
    watched.group = None
    watched.watch.look()
    assert watched.told == [-math.inf]


class Level3:
    """What an ingestion tells of a level 3, and how often it was waited for."""

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, int | None] = {}
        self.drained = False
        self.drains = 0

    def applied(self) -> dict[TopicPartition, int | None]:
        return dict(self.offsets)

    def drain(self, _timeout_s: float) -> bool:
        self.drains += 1
        return self.drained


def test_level_3_has_what_it_has_applied_of_all_partitions(tmp_path) -> None:
    level_3 = Level3()
    watched = Watched(tmp_path, written=None, level_3=level_3)
    watched.fills.level_3_has_s = -math.inf
    watched.send()
    first, second = (TopicPartition("m", "users", partition) for partition in range(2))
    level_3.offsets, level_3.drained = {first: 0}, True
    watched.watch.look()
    assert not watched.fills.allowed, "a server of before has the other partition, and nothing more came of this one"
    level_3.offsets[second] = -1
    level_3.drained = False
    watched.watch.look()
    assert not watched.fills.allowed
    level_3.offsets[second] = 0
    asked_s = boot_s()
    watched.watch.look()
    assert watched.fills.level_3_has_s >= asked_s
    assert level_3.drains == 2
    has_s = watched.fills.level_3_has_s
    watched.send()
    watched.watch.look()
    watched.watch.look()
    assert watched.fills.level_3_has_s == has_s, "until what has come is applied"
    level_3.offsets = {first: 1, second: 1}
    watched.watch.look()
    assert watched.fills.level_3_has_s > has_s
    assert level_3.drains == 2


def test_what_level_2_was_given_is_forgotten_once_level_3_has_all_and_nothing_is_owed(tmp_path) -> None:
    level_3, told = Level3(), []

    class Notes:
        def look(self) -> None:
            told.append("look")
            raise StoreUnavailable("away")

        def forget(self, until_s: float) -> None:
            told.append(until_s)

    watched = Watched(tmp_path, written=None, level_3=level_3)
    watched.fills.notes = Notes()
    watched.fills.level_3_has_s = -math.inf
    watched.owes = True
    watched.watch.look()
    assert told == ["look"]
    watched.owes = False
    watched.watch.look()
    assert told == ["look", "look", watched.fills.level_3_has_s]


def test_where_the_log_does_not_tell_how_far_level_3_is_it_has_all_once_nothing_comes(tmp_path) -> None:
    level_3 = Level3()
    watched = Watched(tmp_path, written=None, level_3=level_3)
    watched.fills.level_3_has_s = -math.inf
    watched.send()
    level_3.offsets = {TopicPartition("m", "users", partition): None for partition in range(2)}
    watched.watch.look()
    assert not watched.fills.allowed
    level_3.drained = True
    watched.watch.look()
    assert watched.fills.allowed


def test_a_level_3_that_is_not_known_to_have_all_takes_back_what_it_gave(tmp_path, monkeypatch) -> None:
    watched = Watched(tmp_path, written=None, level_3=Level3())
    watched.watch.look()
    assert watched.taken_back == 0
    watched.fills.level_3_has_s = -math.inf
    monkeypatch.setattr(watched.log, "source", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        watched.watch.look()
    assert watched.taken_back == 1, "though the log is away"
