import contextlib
import gc
import itertools
import json
import os
import shutil
import time

import numpy as np
import pytest

from hebe.embeddings.store import StoreError, StoreUnavailable
from hebe.embeddings.updates.contract import Topic, TopicPartition, UpdateMessage
from hebe.embeddings.updates.directory import segments as segment_files
from hebe.embeddings.updates.directory.log import DirectoryCarrier, Fsync, LogDirectory, LogDirectoryOptions
from hebe.embeddings.updates.directory.reports import read_report, write_report
from hebe.embeddings.updates.directory.segments import segment_path, segments
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
        found += [(d.offset, None if d.message is None else int(d.message.keys[0]), d.error) for d in news]
    return found


def test_who_begins_where_messages_are_gone_has_what_is_left(tmp_path):
    log = LogDirectory(tmp_path / "log", SMALL_SEGMENTS)
    append(log, 100)
    [oldest, *_] = segments(log.partition_path(AT))
    assert oldest > 10
    expected = [(number, number, None) for number in range(oldest, 100)]
    for newest in (False, True):
        source = log.source("g", [USERS], newest=newest)
        assert read(source) == ([] if newest else expected)
        source.seek(AT, 7)  # who asks for what is gone begins with the oldest, and is no poorer for it
        assert read(source) == expected
        source.close()


def follow(source, keys):
    """(offset, key, fault) until the last of these keys has come."""
    found = []
    for news in iter_polls(source):
        found += [(d.offset, None if d.message is None else int(d.message.keys[0]), d.error) for d in news]
        if found and found[-1][1] == keys[-1]:
            return found
    raise AssertionError(found)


def iter_polls(source, timeout_s=60.0):
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        with contextlib.suppress(StoreUnavailable):
            yield source.poll(50, 0.05)


def test_a_log_that_was_emptied_under_all_of_them_is_reported_and_gone_on_with(tmp_path):
    """The messages alone, not log.json: the trainer goes on, and so do those who read."""
    log = LogDirectory(tmp_path / "log", LogDirectoryOptions(partitions=1))
    carrier = DirectoryCarrier(log)
    carrier.partitions(USERS)
    source = log.source("g", [USERS])
    append_to(carrier, range(10))
    assert len(follow(source, range(10))) == 10
    source.commit({AT: 9})
    shutil.rmtree(log.path / "topics")
    append_to(carrier, range(10, 15))
    carrier.flush(1.0)
    told, *found = follow(source, range(10, 15))
    assert told[1] is None
    assert "went back" in told[2]
    assert found == [(number - 10, number, None) for number in range(10, 15)]
    source.commit({AT: 4})
    assert not any(source.lag().values())
    assert not any(log.reader_lag("g").values())
    fresh = log.source(None, [USERS])
    assert [key for _, key, _ in read(fresh)] == list(range(10, 15))
    for each in (fresh, source, carrier):
        each.close()


@pytest.mark.parametrize("newest", [False, True])
@pytest.mark.parametrize("pushed", [False, True])
def test_a_log_in_the_place_of_another_is_reported_at_once(tmp_path, newest, pushed):
    log = LogDirectory(tmp_path / "log", LogDirectoryOptions(partitions=1))
    carrier = DirectoryCarrier(log)
    carrier.partitions(USERS)
    append_to(carrier, [0])
    source = log.source("g", [USERS], newest=newest)
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
        log.identity,
    ):
        with pytest.raises(StoreUnavailable, match=r"its log\.json is gone: put the log back, or start one that"):
            call()
    assert not (tmp_path / "log").exists(), "nobody makes half a log"
    LogDirectory(tmp_path / "log", LogDirectoryOptions(partitions=1))
    if pushed:
        append_to(carrier, range(20, 23))
        carrier.flush(1.0)
    [told] = source.poll(10, 1.0)
    assert (told.at, told.message, told.restarts) == (AT, None, True)
    found = source.poll(10, 0.0)
    assert [(d.offset, int(d.message.keys[0])) for d in found] == ([(0, 20), (1, 21), (2, 22)] if pushed else [])
    assert source.log_identity() == log.identity() != before
    if pushed:
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
        with pytest.raises(StoreError, match="had 1 partitions a topic, now it has 2"):
            append_to(carrier, [3])
    carrier.close()


def test_a_log_that_lost_its_end_is_reported_and_read_again(tmp_path):
    """The machine lost power, and the end of the log was not on the disk."""
    log = LogDirectory(tmp_path / "log", LogDirectoryOptions(partitions=1))
    append(log, 50)
    file = segment_path(log.partition_path(AT), 0)
    size = file.stat().st_size
    append(log, 50, first=50)
    source = log.source("g", [USERS])
    assert len(follow(source, range(100))) == 100
    source.commit({AT: 99})
    os.truncate(file, size)
    append(log, 30, first=200)
    assert log.reader_lag("g") == {AT: 80}
    told, *found = follow(source, range(200, 230))
    assert told[1] is None
    assert "went back" in told[2]
    expected = [*range(50), *range(200, 230)]
    assert found == [(number, key, None) for number, key in enumerate(expected)]
    source.commit({AT: 60})
    assert log.reader_lag("g") == {AT: 19}
    source.close()


def test_who_asks_again_how_far_a_log_and_a_reader_are_has_what_came_since_read(tmp_path, monkeypatch):
    """Servers ask every few seconds, and the newest segment may hold tens of thousands of messages."""
    path, reads, read_file = tmp_path / "log", [], segment_files._read
    append(LogDirectory(path, LogDirectoryOptions(partitions=1)), 50)
    log = LogDirectory(path)
    source = log.source("g", [USERS])
    assert len(follow(source, range(50))) == 50
    source.commit({AT: 9})
    source.close()
    log.close()
    monkeypatch.setattr(segment_files, "_read", lambda *what: reads.append(what) or read_file(*what))

    def look():
        reads.clear()
        return log.reader_lag("g"), len(reads)

    assert look() == ({AT: 40}, 50)
    assert look() == ({AT: 40}, 0)
    append(log, 3, first=50)
    assert look() == ({AT: 43}, 3)
    os.truncate(segment_path(log.partition_path(AT), 0), 0)
    assert look() == ({AT: 0}, 0)
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
    assert f"messages {3 + place} to {gap} were removed" in fault
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
def test_a_readers_name_cannot_leave_its_place(tmp_path, name):
    log = LogDirectory(tmp_path / "log")
    for call in (log.report_path, log.reader_lag, lambda reader: log.source(reader, [USERS])):
        with pytest.raises(SpecError, match="reader name"):
            call(name)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["log", "log.json"]


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
    write_report(log.report_path("servers"), {})
    for place in ("readers", "topics", "topics/m", "groups"):  # which older versions had
        (log.path / place).mkdir(exist_ok=True)
        (log.path / place / ".DS_Store").write_bytes(b"")
    assert log.topics() == [Topic("m", "users")]
    assert log.readers() == ["servers"]


def test_a_report_expires_by_itself(tmp_path):
    log = LogDirectory(tmp_path / "log", LogDirectoryOptions(partitions=1))
    append(log, 5)
    with contextlib.closing(log.source("g", [USERS])) as source:
        follow(source, range(5))
        source.commit({AT: 2})
    assert (log.readers(), log.reader_lag("g")) == (["g"], {AT: 2})
    with pytest.raises(StoreError):
        log.forget_reader("g")
    file = log.report_path("g")
    report = json.loads(file.read_text())
    file.write_text(json.dumps(report | {"reported_s": report["reported_s"] - 86401}))
    assert log.reader_lag("g") == {}
    assert (log.readers(), file.exists()) == ([], False)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"offsets": {"m/users/0": 3}}', '{"reported_s": 1e10, "offsets": 3}']
)
def test_a_report_that_is_damaged_is_none(tmp_path, content):
    """As after a loss of power."""
    log = LogDirectory(tmp_path / "log")
    write_report(log.report_path("g"), {AT: 3})
    log.report_path("g").write_text(content)
    assert read_report(log.report_path("g")) is None
    assert log.reader_lag("g") == {}
    write_report(log.report_path("g"), {AT: 3})
    assert read_report(log.report_path("g")) == {AT: 3}
