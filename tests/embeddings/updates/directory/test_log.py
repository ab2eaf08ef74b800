import contextlib
import gc
import itertools
import os
import shutil
import time

import numpy as np
import pytest

from hebe.embeddings.store import StoreError, StoreUnavailable
from hebe.embeddings.updates.contract import Topic, TopicPartition, UpdateMessage
from hebe.embeddings.updates.directory import log as module
from hebe.embeddings.updates.directory import segments as segment_files
from hebe.embeddings.updates.directory.group import committed_offset
from hebe.embeddings.updates.directory.log import DirectoryCarrier, Fsync, LogDirectory, LogDirectoryOptions
from hebe.embeddings.updates.directory.segments import segment_path, segments
from hebe.embeddings.updates.group_progress import ends_and_committed
from hebe.embeddings.updates.limits import BatchingOptions
from hebe.embeddings.updates.message import encode
from hebe.spec import SpecError
from tests.embeddings.updates.conformance.beginning_conformance import BeginningConformance
from tests.embeddings.updates.conformance.fault_conformance import FaultConformance
from tests.embeddings.updates.conformance.update_conformance import UpdateLogConformance

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
    append_to(carrier, range(first, first + count))
    carrier.close()


def append_to(carrier, numbers):
    for number in numbers:
        rows = np.full((1, 24), number, np.float32)
        carrier.append(AT, encode(UpdateMessage("p", number, 0.0, np.array([number]), rows), AT))


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


def follow(source, keys):
    """(offset, key, fault) until the last of these keys has come."""
    found = []
    for news in iter_polls(source):
        found += [(d.offset, None if d.message is None else int(d.message.keys[0]), d.fault) for d in news]
        if found and found[-1][1] == keys[-1]:
            return found
    raise AssertionError(found)


def iter_polls(source, timeout_s=60.0):
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        with contextlib.suppress(StoreUnavailable):
            yield source.poll(50, 0.05)


@pytest.mark.parametrize("group", ["g", None])
def test_a_log_that_was_emptied_under_all_of_them_is_told_and_gone_on_with(tmp_path, group):
    """The messages alone, not log.json: the trainer goes on, and so do those who read."""
    log = LogDirectory(tmp_path / "log", LogDirectoryOptions(partitions=1))
    carrier = DirectoryCarrier(log)
    carrier.partitions(USERS)
    source = log.source(group, [USERS])
    append_to(carrier, range(10))
    assert len(follow(source, range(10))) == 10
    source.commit({AT: 9})
    shutil.rmtree(log.path / "topics")
    append_to(carrier, range(10, 15))
    carrier.flush(1.0)
    told, *found = follow(source, range(10, 15))
    assert told[1] is None
    assert "it was emptied or went back" in told[2]
    assert found == [(number - 10, number, None) for number in range(10, 15)]
    source.commit({AT: told[0]})
    source.commit({AT: 4})
    assert not any(source.lag().values())
    if group is not None:
        assert not any(log.group_lag(group).values())
        assert committed_offset(log.group_path(group), AT) == 4
    fresh = log.source(None, [USERS])
    assert [key for _, key, _ in read(fresh)] == list(range(10, 15))
    for each in (fresh, source, carrier):
        each.close()


@pytest.mark.parametrize("group", ["g", None])
@pytest.mark.parametrize("newest", [False, True])
def test_a_log_that_was_made_anew_is_another_one(tmp_path, group, newest):
    log = LogDirectory(tmp_path / "log", LogDirectoryOptions(partitions=1))
    carrier = DirectoryCarrier(log)
    carrier.partitions(USERS)
    append_to(carrier, [0])
    source = log.source(group, [USERS], newest=newest)
    read(source)
    append_to(carrier, range(1, 10))
    follow(source, range(1, 10))
    source.commit({AT: 9})
    before = source.log_identity()
    shutil.rmtree(tmp_path / "log")
    for call in (
        lambda: append_to(carrier, [10]),
        lambda: carrier.partitions(USERS),
        lambda: carrier.flush(1.0),
        lambda: source.poll(10, 0.0),
    ):
        with pytest.raises(StoreUnavailable, match=r"its log\.json is gone: put the log back, or start one that"):
            call()
    assert not (tmp_path / "log").exists(), "nobody makes half a log"
    LogDirectory(tmp_path / "log", LogDirectoryOptions(partitions=1))
    append_to(carrier, range(20, 23))
    carrier.flush(1.0)
    told, *found = follow(source, range(20, 23))
    assert told[1:] == (None, "the log directory was made anew: what it held and was not applied yet is lost")
    assert found == [(number - 20, number, None) for number in range(20, 23)]
    assert source.log_identity() != before
    source.commit({AT: 2})
    assert not any(source.lag().values())
    source.close()
    carrier.close()


def test_a_producer_does_not_go_on_in_a_log_of_other_partitions(tmp_path):
    log = LogDirectory(tmp_path / "log", LogDirectoryOptions(partitions=1))
    carrier = DirectoryCarrier(log)
    append_to(carrier, range(3))
    shutil.rmtree(tmp_path / "log")
    LogDirectory(tmp_path / "log", LogDirectoryOptions(partitions=2))
    for _ in range(2):
        with pytest.raises(StoreError, match=r"had 1 partitions a topic, now it has 2.*start the producer anew too"):
            append_to(carrier, [3])
    carrier.close()


@pytest.mark.parametrize("live", [False, True])
def test_offsets_beyond_the_end_of_the_log_are_told_and_the_log_is_read_anew(tmp_path, live, caplog):
    """The machine lost power: what was committed was on its disk, and the end of the log was not."""
    log = LogDirectory(tmp_path / "log", LogDirectoryOptions(partitions=1))
    append(log, 50)
    file = segment_path(log.partition_path(AT), 0)
    size = file.stat().st_size
    append(log, 50, first=50)
    source = log.source("g", [USERS])
    assert len(follow(source, range(100))) == 100
    source.commit({AT: 99})
    if not live:
        source.close()
    os.truncate(file, size)
    append(log, 30, first=200)
    assert log.group_lag("g") == {AT: 80}
    if not live:
        source = log.source("g", [USERS])
    told, *found = follow(source, range(200, 230))
    assert told[1] is None
    assert "went back" in told[2]
    assert "went back" in caplog.text
    expected = [*range(50), *range(200, 230)]
    assert found == [(number, key, None) for number, key in enumerate(expected)]
    source.commit({AT: 60})
    source.close()
    source = log.source("g", [USERS])
    assert [key for _, key, _ in read(source)] == expected[61:]
    source.close()


def test_who_asks_again_how_far_a_log_and_a_group_are_has_what_came_since_read(tmp_path, monkeypatch):
    """Servers ask every few seconds, and the newest segment may hold tens of thousands of messages."""
    path, reads, read_file = tmp_path / "log", [], segment_files._read
    append(LogDirectory(path, LogDirectoryOptions(partitions=1)), 50)
    log = LogDirectory(path)
    source = log.source("g", [USERS])
    assert len(follow(source, range(50))) == 50
    source.commit({AT: 9})
    source.close()
    monkeypatch.setattr(segment_files, "_read", lambda *what: reads.append(what) or read_file(*what))

    def look():
        reads.clear()
        return *ends_and_committed(log, [USERS], "g"), len(reads)

    assert look() == ({AT: 49}, {AT: 9}, 50)
    assert look() == ({AT: 49}, {AT: 9}, 0)
    append(log, 3, first=50)
    assert look() == ({AT: 52}, {AT: 9}, 3)
    os.truncate(segment_path(log.partition_path(AT), 0), 0)
    assert look() == ({AT: -1}, {AT: -1}, 0)
    log.close()


def test_a_log_that_is_closed_or_forgotten_holds_no_files(tmp_path):
    def files():
        held = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
        return sum(str(file).startswith(str(tmp_path)) for file in held)

    log = LogDirectory(tmp_path / "log", LogDirectoryOptions(partitions=1))
    append(log, 5)
    for end in ("closed", "forgotten"):
        assert log.next_offset(AT) == 5
        assert files() == 1
        if end == "closed":
            log.close()
        else:
            del log
            gc.collect()
        assert files() == 0


def test_a_seek_beyond_the_end_of_the_log_is_told(tmp_path):
    log = LogDirectory(tmp_path / "log", LogDirectoryOptions(partitions=1))
    append(log, 20)
    source = log.source("g", [USERS])
    assert len(follow(source, range(20))) == 20
    source.seek(AT, 30)
    told, *found = follow(source, range(20))
    assert told[1] is None
    assert [key for _, key, _ in found] == list(range(20))
    source.close()


def test_a_group_whose_directory_was_cleared_keeps_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "REBALANCE_S", 0.0)
    log = LogDirectory(tmp_path / "log", LogDirectoryOptions(partitions=1))
    append(log, 10)
    source = log.source("g", [USERS])
    assert len(follow(source, range(10))) == 10
    source.commit({AT: 7})
    shutil.rmtree(log.path / "groups")
    assert not source.poll(10, 0.0)
    assert log.group_lag("g") == {AT: 2}
    source.commit({AT: 9})
    append(log, 5, first=10)
    assert follow(source, range(10, 15)) == [(number, number, None) for number in range(10, 15)]
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
