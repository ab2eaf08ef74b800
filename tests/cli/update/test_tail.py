import contextlib
import time

import numpy as np
import pytest

from hebe.cli.update import tail as module
from hebe.cli.update.tail import LogTail, age_text, described, line_of
from hebe.embeddings.store import StoreUnavailable
from hebe.embeddings.updates.contract import Delivery, Topic, TopicPartition, UpdateMessage
from hebe.embeddings.updates.directory.log import LogDirectory

AT = TopicPartition("dlrm", "users", 3)
TIMEOUT_S = 30.0


@pytest.fixture
def log(tmp_path):
    return LogDirectory(tmp_path / "log")


def push(log, table, keys, model="dlrm"):
    with log.producer() as producer:
        producer.send(model, table, np.array(keys), np.ones((len(keys), 2), np.float32))


def keys_of(tail, count):
    """By table, the keys of what comes until there are so many."""
    found, end_s = [], time.monotonic() + TIMEOUT_S
    while len(found) < count:
        assert time.monotonic() < end_s
        found += [(d.at.table, key) for d in tail.poll() for key in d.message.keys.tolist()]
    return sorted(found)


class SourceThatIsAway:
    def poll(self, *_):
        raise StoreUnavailable("the log is away")

    def close(self):
        pass


def test_all_topics_are_followed_also_those_that_come_later(log, monkeypatch):
    monkeypatch.setattr(module, "_LOOK_S", 0.0)
    push(log, "users", [1, 2])
    with contextlib.closing(LogTail(log, None, [], from_start=True)) as tail:
        assert tail.topics == [Topic("dlrm", "users")]
        assert keys_of(tail, 2) == [("users", 1), ("users", 2)]
        push(log, "items", [3])
        push(log, "users", [4])
        assert keys_of(tail, 2) == [("items", 3), ("users", 4)]
        assert tail.topics == [Topic("dlrm", "items"), Topic("dlrm", "users")]


def test_only_what_comes_and_only_of_what_was_named(log, monkeypatch):
    monkeypatch.setattr(module, "_LOOK_S", 0.0)
    push(log, "users", [1])
    with contextlib.closing(LogTail(log, "dlrm", ["users", "later"], from_start=False)) as tail:
        assert tail.topics == [Topic("dlrm", "later"), Topic("dlrm", "users")]
        assert tail.poll() == []
        push(log, "others", [2])
        push(log, "users", [3], model="wide")
        push(log, "later", [4])
        push(log, "users", [5])
        assert keys_of(tail, 2) == [("later", 4), ("users", 5)]
        assert len(tail.topics) == 2
    assert log.readers() == [], "it must not hold messages for itself"


def test_an_empty_log_is_waited_for(log, monkeypatch):
    monkeypatch.setattr(module, "_LOOK_S", 0.0)
    with contextlib.closing(LogTail(log, None, [], from_start=False)) as tail:
        assert (tail.topics, tail.poll()) == ([], [])
        push(log, "users", [1])
        assert keys_of(tail, 1) == [("users", 1)]


def test_what_was_read_is_shown_when_the_log_goes_away_in_the_middle_of_a_round(log, monkeypatch):
    monkeypatch.setattr(module, "_LOOK_S", 0.0)
    push(log, "users", [1])
    with contextlib.closing(LogTail(log, None, [], from_start=True)) as tail:
        push(log, "items", [2])
        monkeypatch.setattr(log, "source", lambda *_, **__: SourceThatIsAway())
        assert keys_of(tail, 1) == [("users", 1)]
        assert len(tail.topics) == 2, "there are two sources"
        with pytest.raises(StoreUnavailable, match="away"):
            tail.poll()


def test_rows_deletes_and_poison_in_words_and_as_data():
    rows = UpdateMessage("abc", 7, 100.0, np.arange(1000), np.zeros((1000, 4), np.float32))
    said = described(Delivery(AT, 17, rows), 100.25, 2)
    assert said == {
        "model": "dlrm", "table": "users", "partition": 3, "offset": 17, "producer": "abc", "sequence": 7,
        "rows": 1000, "deletes": 0, "dim": 4, "sent_s": 100.0, "age_s": 0.25, "keys": [0, 1],
    }  # fmt: skip
    assert line_of(said).plain == "dlrm/users 3@17  1,000 rows of dim 4  abc #7  0.25 s old  keys 0, 1, ..."
    goes = described(Delivery(AT, 18, UpdateMessage("abc", 8, 100.0, np.array([5]), None)), 100.0, 0)
    assert (goes["rows"], goes["deletes"], goes["dim"], "keys" in goes) == (0, 1, None, False)
    assert line_of(goes).plain == "dlrm/users 3@18  1 deletes  abc #8  0 s old"
    poison = described(Delivery(AT, 19, None, "truncated [x]", b"12345"), 100.0, 2)
    assert poison == {
        "model": "dlrm", "table": "users", "partition": 3, "offset": 19, "fault": "truncated [x]", "bytes": 5
    }  # fmt: skip
    assert line_of(poison).plain == "dlrm/users 3@19  poison, 5 bytes: truncated [x]"


@pytest.mark.parametrize(
    ("age_s", "text"),
    [
        (0.031, "0.031 s old"),
        (59.4, "59 s old"),
        (300, "5 min old"),
        (7300, "2 h old"),
        (1e6, "12 days old"),
        (-3, "3 s ahead of this machine's clock"),
    ],
)
def test_ages_have_units_that_fit(age_s, text):
    assert age_text(age_s) == text
