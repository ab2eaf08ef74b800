import itertools
import os

import numpy as np
import pytest

from hebe.embeddings.store import StoreError
from hebe.embeddings.updates.batching import BatchingOptions
from hebe.embeddings.updates.contract import Topic, TopicPartition, UpdateMessage
from hebe.embeddings.updates.log_directory import DirectoryCarrier, Fsync, LogDirectory, LogDirectoryOptions
from hebe.embeddings.updates.message import encode
from hebe.embeddings.updates.segment_files import segment_path, segments
from hebe.spec import SpecError

from .beginning_conformance import BeginningConformance
from .fault_conformance import FaultConformance
from .update_conformance import UpdateLogConformance

USERS = Topic("m", "users")
AT = TopicPartition("m", "users", 0)
SMALL_SEGMENTS = LogDirectoryOptions(partitions=1, segment_bytes=1024, retention_bytes=3072)


class TestLogDirectory(UpdateLogConformance, FaultConformance, BeginningConformance):
    @pytest.fixture
    def make_log(self, tmp_path):
        return lambda: LogDirectory(tmp_path / "log")

    @pytest.fixture
    def carrier_of(self):
        return DirectoryCarrier

    @pytest.fixture
    def trimmable(self, tmp_path):
        log = LogDirectory(tmp_path / "log", LogDirectoryOptions(segment_bytes=1024))

        def trim(count):
            known = segments(log.partition_path(AT))
            for first, following in itertools.pairwise(known):
                if following <= count:
                    segment_path(log.partition_path(AT), first).unlink()

        return log, trim


def append(log, count, first=0):
    """Messages of one key each, about 6 a segment of `SMALL_SEGMENTS`."""
    carrier = DirectoryCarrier(log)
    carrier.partitions(USERS)
    for number in range(first, first + count):
        rows = np.full((1, 24), number, np.float32)
        carrier.append(AT, encode(UpdateMessage("p", number, 0.0, np.array([number]), rows), AT))
    carrier.close()


def read(source):
    """(offset, first key or None) of all that is there."""
    found = []
    while news := source.poll(5, 0.0):
        assert len(news) <= 5
        found += [(d.offset, None if d.message is None else int(d.message.keys[0]), d.fault) for d in news]
    return found


def test_a_group_is_told_what_retention_took_from_it(tmp_path):
    log = LogDirectory(tmp_path / "log", SMALL_SEGMENTS)
    append(log, 10)
    source = log.source("g", [USERS])
    assert [offset for offset, *_ in read(source)] == list(range(10))
    source.commit({AT: 4})
    source.close()
    append(log, 90, first=10)
    [oldest, *_] = segments(log.partition_path(AT))
    assert oldest > 10
    fault = f"messages 5 to {oldest - 1} were removed from the log before this group had read them"
    source = log.source("g", [USERS])
    expected = [(oldest - 1, None, fault), *((number, number, None) for number in range(oldest, 100))]
    assert read(source) == expected
    source.seek(AT, 7)  # who asks for what is gone begins with the oldest, and is no poorer for it
    assert read(source) == expected[1:]
    source.close()
    for group, newest in (("new", False), ("newest", True), (None, False)):
        source = log.source(group, [USERS], newest=newest)
        assert read(source) == ([] if newest else expected[1:])
        source.close()


def test_a_beginning_that_is_damaged_is_no_lost_one(tmp_path):
    """It is told as what it is, and only that."""
    log = LogDirectory(tmp_path / "log", SMALL_SEGMENTS)
    append(log, 10)
    first = segment_path(log.partition_path(AT), 0)
    content = bytearray(first.read_bytes())
    content[5] ^= 1
    first.write_bytes(content)
    source = log.source(None, [USERS])
    [damaged, *rest] = read(source)
    assert damaged[2].startswith("bytes 0 to")
    assert rest == [(number, number, None) for number in range(1, 10)]
    assert source.lost_beginning(AT) is None
    source.close()


def test_a_reader_that_is_overtaken_is_told_too(tmp_path):
    log = LogDirectory(tmp_path / "log", SMALL_SEGMENTS)
    append(log, 3)
    source = log.source("g", [USERS])
    assert len(read(source)) == 3
    append(log, 200, first=3)
    found = read(source)
    [place] = [place for place, (_, _, fault) in enumerate(found) if fault]
    before, (gap, _, fault), after = found[:place], found[place], found[place + 1 :]
    assert [offset for offset, *_ in before] == list(range(3, 3 + place))
    assert fault == f"messages {3 + place} to {gap} were removed from the log before this group had read them"
    assert [(offset, key) for offset, key, _ in after] == [(number, number) for number in range(gap + 1, 203)]
    source.close()


def test_what_is_no_log_is_left_alone(tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear").write_text("")
    with pytest.raises(StoreError, match="is not empty and holds no log: give another directory"):
        LogDirectory(tmp_path / "letters")
    for record, said in (("{", "corrupted"), ('{"format": 99}', "has format 99"), ('{"format": 1}', "corrupted")):
        (tmp_path / "log").mkdir(exist_ok=True)
        (tmp_path / "log" / "log.json").write_text(record)
        with pytest.raises(StoreError, match=said):
            LogDirectory(tmp_path / "log")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be opened"):
        LogDirectory(tmp_path / "file")


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../other", "a/b", "a/../b", "/", "/tmp", "a\\b", "a\n", "a\0", ".hidden", "~", "*", "a" * 129],
)
def test_a_groups_name_cannot_leave_its_place(tmp_path, name):
    """A group is forgotten with its directory and all that is in it: nothing else may be named."""
    log = LogDirectory(tmp_path / "log")
    for path in (tmp_path / "other", log.path / "groups" / "a" / "b", log.path / "topics"):
        path.mkdir(parents=True)
        (path / "kept").write_text("")
    before = sorted(tmp_path.rglob("*"))
    for call in (log.group_path, log.forget_group, log.group_lag, lambda group: log.source(group, [USERS])):
        with pytest.raises(SpecError, match="group name"):
            call(name)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_group_that_is_a_link_is_not_followed(tmp_path):
    log = LogDirectory(tmp_path / "log")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "kept").write_text("")
    (log.path / "groups").mkdir()
    (log.path / "groups" / "g").symlink_to(tmp_path / "other")
    with pytest.raises(StoreError, match="cannot be forgotten"):
        log.forget_group("g")
    assert (tmp_path / "other" / "kept").exists()


@pytest.mark.parametrize("field", ["partitions", "segment_bytes", "retention_bytes", "retention_s"])
def test_options_out_of_range_are_named(field):
    with pytest.raises(ValueError, match=field):
        LogDirectoryOptions(**{field: -1})


@pytest.mark.parametrize("fsync", list(Fsync))
def test_messages_are_forced_to_the_disk_as_told(tmp_path, monkeypatch, fsync):
    synced = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    log = LogDirectory(tmp_path / "log", LogDirectoryOptions(partitions=1, fsync=fsync))
    with log.producer(BatchingOptions(max_rows=1)) as producer:
        producer.send("m", "users", np.arange(3), np.ones((3, 1), np.float32))
        producer.flush()
        count = len(synced)
    assert count == {Fsync.NEVER: 0, Fsync.FLUSH: 1, Fsync.APPEND: 3}[fsync]


def test_files_that_are_none_of_its_own_are_passed_over(tmp_path):
    log = LogDirectory(tmp_path / "log")
    with log.producer() as producer:
        producer.send("m", "users", np.array([1]), np.ones((1, 3), np.float32))
    log.source("servers", [Topic("m", "users")]).close()
    for place in ("groups", "topics", "topics/m"):
        (log.path / place / ".DS_Store").write_bytes(b"")
    assert log.topics() == [Topic("m", "users")]
    assert log.groups() == ["servers"]
