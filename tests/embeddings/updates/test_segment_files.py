import errno
import fcntl
import os
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.embeddings.store import StoreError, StoreUnavailable
from hebe.embeddings.updates import segment_files as module
from hebe.embeddings.updates.segment_files import (
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
