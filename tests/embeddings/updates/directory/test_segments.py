import errno
import fcntl
import os
import shutil
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.embeddings.store import StoreError, StoreUnavailable
from hebe.embeddings.updates.directory import segments as module
from hebe.embeddings.updates.directory.segments import (
    PartitionEnd,
    PartitionReader,
    PartitionWriter,
    file_faults,
    segment_path,
    segments,
)

FOREVER = {"retention_bytes": None, "retention_s": None}


def write(directory, payloads, segment_bytes=1 << 20, **retention):
    writer = PartitionWriter(directory, segment_bytes, **{**FOREVER, **retention})
    offsets = [writer.append(payload) for payload in payloads]
    writer.close()
    return offsets


def read(directory, offset=-1, most=1 << 30, most_bytes=1 << 30):
    reader = PartitionReader(directory, offset)
    records = reader.read(most, most_bytes)
    reader.close()
    return records


def good(records):
    return [(record.offset, record.payload) for record in records if record.fault is None]


PAYLOADS = st.lists(st.binary(max_size=200), min_size=1, max_size=30)


@given(PAYLOADS, st.integers(1, 400), st.integers(-1, 31))
def test_what_is_appended_is_read_back_from_any_offset(tmp_path_factory, payloads, segment_bytes, offset):
    directory = tmp_path_factory.mktemp("partition")
    assert write(directory, payloads, segment_bytes) == list(range(len(payloads)))
    assert good(read(directory, offset)) == list(enumerate(payloads))[offset + 1 :]
    end = PartitionEnd(directory)
    assert end.next_offset() == len(payloads)
    end.close()
    assert segments(directory)[0] == 0


@given(st.data(), PAYLOADS, st.integers(100, 400))
@settings(max_examples=60)
def test_damage_costs_no_more_than_what_it_hit(tmp_path_factory, data, payloads, segment_bytes):
    """Any bytes overwritten in any segment: nothing wrong is read, and what they did not touch is read."""
    directory = tmp_path_factory.mktemp("partition")
    write(directory, payloads, segment_bytes)
    first = data.draw(st.sampled_from(segments(directory)))
    file = segment_path(directory, first)
    content = bytearray(file.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    size = data.draw(st.integers(1, 60))
    content[place : place + size] = os.urandom(len(content[place : place + size]))
    file.write_bytes(content)
    records = read(directory)
    found = dict(good(records))
    assert all(payloads[offset] == payload for offset, payload in found.items())
    where, touched = 0, set()
    of_this = range(first, next((each for each in segments(directory) if each > first), len(payloads)))
    for number in of_this:
        end = where + module._HEADER.size + len(payloads[number])
        if where < place + size and end > place:
            touched.add(number)
        where = end
    assert set(range(len(payloads))) - touched <= set(found)
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))
    lost_inside = touched - set(found) - {len(payloads) - 1}
    if lost_inside and max(lost_inside) < max(found, default=-1):
        assert any(record.fault for record in records)


@pytest.mark.parametrize("left", range(1, 30))
def test_what_a_writer_that_died_left_is_nothing_and_is_cut_off(tmp_path, left):
    write(tmp_path, [b"first", b"second"])
    file = segment_path(tmp_path, 0)
    whole = file.stat().st_size
    os.truncate(file, whole - left)
    assert good(read(tmp_path)) == [(0, b"first")]
    reader = PartitionReader(tmp_path, -1)
    assert len(reader.read(10, 1 << 20)) == 1
    assert reader.read(10, 1 << 20) == []
    assert write(tmp_path, [b"again"]) == [1]
    assert good(reader.read(10, 1 << 20)) == [(1, b"again")]
    reader.close()


def test_a_reader_of_an_unfinished_end_writes_nothing(tmp_path, monkeypatch):
    """It may be of another user than the writers, or the disk be mounted to be read only."""
    write(tmp_path, [b"first", b"second"])
    file = segment_path(tmp_path, 0)
    os.truncate(file, file.stat().st_size - 1)
    really_open = os.open

    def open_to_read(path, flags, *more, **named):
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return really_open(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", open_to_read)
    reader = PartitionReader(tmp_path, -1)
    assert [good(reader.read(10, 1 << 20)) for _ in range(2)] == [[(0, b"first")], []]
    reader.close()
    (tmp_path / "append.lock").unlink()  # as of a copy that left it out
    assert good(read(tmp_path)) == [(0, b"first")]


def test_a_reader_of_an_unfinished_end_waits_for_who_writes_it(tmp_path):
    write(tmp_path, [b"first", b"second"])
    file = segment_path(tmp_path, 0)
    damaged = bytearray(file.read_bytes())
    damaged[0] ^= 1
    file.write_bytes(damaged)
    with (tmp_path / "append.lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert read(tmp_path) == []
    assert good(read(tmp_path)) == [(1, b"second")]


def test_a_reader_follows_a_writer_and_takes_no_more_than_asked(tmp_path):
    reader = PartitionReader(tmp_path, -1)
    assert reader.read(10, 1 << 20) == []
    writer = PartitionWriter(tmp_path, 200, **FOREVER)
    payloads = [bytes([number]) * 50 for number in range(20)]
    found = []
    for payload in payloads:
        writer.append(payload)
        found += reader.read(1, 1 << 20)
    writer.close()
    assert good(found) == list(enumerate(payloads))
    assert len(segments(tmp_path)) > 3
    assert [len(read(tmp_path, most=7)), len(read(tmp_path, most_bytes=120))] == [7, 3]
    reader.close()


def test_old_segments_go_by_size_and_by_age(tmp_path):
    payloads = [bytes([number]) * 100 for number in range(40)]
    write(tmp_path / "size", payloads, 500, retention_bytes=1500)
    kept = segments(tmp_path / "size")
    assert sum(segment_path(tmp_path / "size", first).stat().st_size for first in kept[:-1]) <= 1500
    assert good(read(tmp_path / "size")) == list(enumerate(payloads))[kept[0] :]
    write(tmp_path / "age", payloads[:20], 500)
    for first in segments(tmp_path / "age"):
        os.utime(segment_path(tmp_path / "age", first), (0, time.time() - 100))
    write(tmp_path / "age", payloads[20:], 500, retention_s=50)
    assert good(read(tmp_path / "age")) == list(enumerate(payloads))[segments(tmp_path / "age")[0] :]
    assert 10 < segments(tmp_path / "age")[0] <= 20


def test_a_reader_of_a_segment_that_goes_reads_it_to_its_end(tmp_path):
    payloads = [bytes([number]) * 100 for number in range(10)]
    write(tmp_path, payloads, 1000)
    reader = PartitionReader(tmp_path, -1)
    assert len(reader.read(2, 1 << 20)) == 2
    first, second = segments(tmp_path)[:2]
    segment_path(tmp_path, first).unlink()
    assert good(reader.read(100, 1 << 20)) == list(enumerate(payloads))[2:]
    assert good(read(tmp_path)) == list(enumerate(payloads))[second:]
    reader.close()


@pytest.mark.parametrize("anew", [0, 3])
def test_a_writer_goes_on_in_what_is_there_when_its_segment_was_removed(tmp_path, anew):
    """Whoever emptied the directory; another writer may have begun it anew meanwhile."""
    writer = PartitionWriter(tmp_path / "p", 1 << 20, **FOREVER)
    for number in range(5):
        writer.append(b"old %d" % number)
    shutil.rmtree(tmp_path / "p")
    write(tmp_path / "p", [b"other"] * anew) if anew else None
    assert [writer.append(b"new %d" % number) for number in range(5)] == list(range(anew, anew + 5))
    writer.sync()
    expected = [b"other"] * anew + [b"new %d" % number for number in range(5)]
    assert good(read(tmp_path / "p")) == list(enumerate(expected))
    writer.close()


def test_the_end_of_a_partition_goes_back_with_it(tmp_path):
    write(tmp_path / "p", [bytes(100)] * 20, 500)
    end = PartitionEnd(tmp_path / "p")
    assert end.next_offset() == 20
    newest = segment_path(tmp_path / "p", segments(tmp_path / "p")[-1])
    os.truncate(newest, 0)
    assert end.next_offset() == segments(tmp_path / "p")[-1] < 20
    shutil.rmtree(tmp_path / "p")
    assert end.next_offset() == 0
    write(tmp_path / "p", [b"x"] * 3)
    assert end.next_offset() == 3
    end.close()


@pytest.mark.parametrize("how", ["emptied", "made anew", "put back", "cut off"])
def test_a_reader_says_that_the_log_went_back(tmp_path, how):
    directory = tmp_path / "p"
    write(directory, [bytes(100)] * 10)
    begins = PartitionReader(directory, 9)
    assert not begins.read(100, 1 << 20)
    follows = PartitionReader(directory, -1)
    assert len(follows.read(100, 1 << 20)) == 10
    assert not follows.read(100, 1 << 20)
    assert not follows.went_back
    if how == "cut off":
        os.truncate(segment_path(directory, 0), 500)
    elif how == "put back":
        shutil.copytree(directory, tmp_path / "copy")
        shutil.rmtree(directory)
        shutil.copytree(tmp_path / "copy", directory)
    else:
        shutil.rmtree(directory)
    if how == "made anew":
        write(directory, [b"x"] * 30)
    for reader in (follows, begins):
        assert not reader.read(100, 1 << 20)
        assert reader.went_back
        assert not reader.read(100, 1 << 20)
        reader.close()
    later = PartitionReader(directory, 9)
    records = later.read(100, 1 << 20)
    assert ([record.offset for record in records], later.went_back) == {
        "emptied": ([], True),
        "cut off": ([], True),
        "put back": ([], False),
        "made anew": (list(range(10, 30)), False),
    }[how]
    later.close()


def test_a_log_that_ends_with_what_a_writer_has_not_finished_has_not_gone_back(tmp_path):
    write(tmp_path, [b"first", b"second"])
    file = segment_path(tmp_path, 0)
    reader = PartitionReader(tmp_path, 1)
    with open(file, "ab") as opened:
        opened.write(b"HREC unfinished")
    assert not reader.read(100, 1 << 20)
    assert not reader.went_back
    assert write(tmp_path, [b"third"]) == [2]
    assert good(reader.read(100, 1 << 20)) == [(2, b"third")]
    reader.close()


def test_what_retention_took_is_nothing_that_went_back(tmp_path):
    write(tmp_path, [bytes(100)] * 30, 500)
    reader = PartitionReader(tmp_path, -1)
    assert len(reader.read(2, 1 << 20)) == 2
    for first in segments(tmp_path)[:4]:
        segment_path(tmp_path, first).unlink()
    offsets = [record.offset for record in reader.read(100, 1 << 20)]
    assert offsets[-1] == 29
    assert len(offsets) < 28
    assert not reader.read(100, 1 << 20)
    assert not reader.went_back
    reader.close()


def test_writers_take_turns(tmp_path):
    count, writers = 50, 4

    def run(name):
        write(tmp_path, [b"%d %d" % (name, number) for number in range(count)], 300)

    threads = [threading.Thread(target=run, args=(name,)) for name in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    records = read(tmp_path)
    assert [record.offset for record in records] == list(range(count * writers))
    for name in range(writers):
        own = [record.payload for record in records if record.payload.startswith(b"%d " % name)]
        assert own == [b"%d %d" % (name, number) for number in range(count)]


def test_a_lock_that_is_kept_is_waited_for_and_then_said(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOCK_TIMEOUT_S", 0.05)
    write(tmp_path, [b"x"])
    lock = os.open(tmp_path / "append.lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(StoreUnavailable, match="another writer keeps it locked"):
        write(tmp_path, [b"y"])
    os.close(lock)
    assert write(tmp_path, [b"y"]) == [1]


def test_a_full_disk_leaves_no_half_message(tmp_path, monkeypatch):
    """The write stops in the middle: nothing of it is in the log, and the same message is taken later."""
    writer = PartitionWriter(tmp_path, 1 << 20, **FOREVER)
    writer.append(b"first")
    whole, pwrite = os.pwrite, iter([10, OSError(errno.ENOSPC, "No space left on device")])

    def fails(file, content, place):
        step = next(pwrite)
        if isinstance(step, OSError):
            raise step
        return whole(file, content[:step], place)

    monkeypatch.setattr(os, "pwrite", fails)
    with pytest.raises(StoreUnavailable, match="the disk is full; free some"):
        writer.append(b"second")
    monkeypatch.setattr(os, "pwrite", whole)
    assert good(read(tmp_path)) == [(0, b"first")]
    assert writer.append(b"second") == 1
    writer.close()
    assert good(read(tmp_path)) == [(0, b"first"), (1, b"second")]


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EACCES, StoreError),
        (errno.EROFS, StoreError),
        (errno.EIO, StoreUnavailable),
        (errno.ENOSPC, StoreUnavailable),
    ],
)
def test_faults_of_files_name_the_path_and_whether_they_may_heal(tmp_path, number, kind):
    with pytest.raises(StoreError, match=f"update log {tmp_path}: cannot append: ") as raised:
        with file_faults(tmp_path, "cannot append"):
            raise OSError(number, os.strerror(number))
    assert type(raised.value) is kind
    assert str(tmp_path) not in raised.value.client_message
