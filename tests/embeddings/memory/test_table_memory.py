import mmap
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.embeddings.memory import table_memory
from hebe.embeddings.memory.table_memory import (
    HUGE_PAGE_BYTES,
    RowFormat,
    TableMemory,
    drop_mapped_pages,
    planned_bytes,
)
from hebe.embeddings.store import StoreError
from hebe.kernels.lookup.row_format import decode_rows, encode_rows

MIB = 1 << 20


def resident_bytes(pattern: str) -> int:
    """Resident size of the mappings whose line in smaps holds `pattern`."""
    total = 0
    for mapping in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())[1:]:
        if pattern in mapping.split("\n", 1)[0]:
            total += 1024 * int(re.search(r"^Rss:\s+(\d+)", mapping, re.MULTILINE)[1])
    return total


def pages_held(memory: np.ndarray) -> int:
    """Pages of `memory` that the system holds for it, whatever else this process takes meanwhile."""
    first, end = memory.ctypes.data // mmap.PAGESIZE, (memory.ctypes.data + memory.nbytes) // mmap.PAGESIZE
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pagemap:
        pagemap.seek(8 * first)
        entries = np.frombuffer(pagemap.read(8 * (end - first)), np.uint64)
    return np.count_nonzero(entries >> np.uint64(62))  # in memory, or in swap


def table_file(path: Path, rows: np.ndarray) -> np.ndarray:
    """`rows` as a read-only memory map of a file."""
    path.write_bytes(rows.tobytes())
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(mapped, np.float32).reshape(rows.shape)


NARROW = [RowFormat.FP16, RowFormat.INT8]


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 50), st.integers(1, 70))),
    st.sampled_from(list(RowFormat)),
)
def test_tables_lie_apart_on_cache_lines_within_the_planned_bytes(shapes, row_format):
    memory = TableMemory(shapes, row_format)
    assert memory.memory_bytes == planned_bytes(shapes, row_format)
    assert memory.flat.nbytes <= memory.memory_bytes
    for number, (name, (rows, dim)) in enumerate(shapes.items()):
        stored = memory.stored(name)
        assert stored.shape == (rows, row_format.row_bytes(dim))
        assert stored.ctypes.data % 64 == 0
        assert not stored.any()
        stored[:] = number + 1
    for number, name in enumerate(shapes):
        assert (memory.stored(name) == number + 1).all()
    memory.close()


@pytest.mark.parametrize("row_format", NARROW)
def test_rows_are_encoded_while_filled_piece_by_piece(row_format, monkeypatch):
    monkeypatch.setattr(table_memory, "CHUNK_BYTES", 100)
    rng = np.random.default_rng(0)
    tables = {"a": rng.standard_normal((50, 7)).astype(np.float32), "b": rng.standard_normal((9, 64)).astype("f4")}
    memory, calls = TableMemory({"a": (50, 7), "b": (8, 64)}, row_format), []
    wide = np.repeat(tables["b"], 2, axis=1)[:, ::2]  # not one piece of memory
    memory.fill({"a": iter([tables["a"][:20], tables["a"][20:]]), "b": wide}, lambda *call: calls.append(call))
    for name, rows in (("a", tables["a"]), ("b", tables["b"][:8])):
        expected = np.empty((len(rows), row_format.row_bytes(rows.shape[1])), np.uint8)
        encode_rows(row_format, rows, expected)
        assert np.array_equal(memory.stored(name), expected)
        read = np.empty_like(rows)
        decode_rows(row_format, memory.stored(name), read)
        assert np.allclose(read, rows, atol=0.02)
    total = 4 * (50 * 7 + 8 * 64)
    assert calls[-1] == (total, total)  # as float32, which is what is loaded
    with pytest.raises(StoreError, match=f"table a is stored as {row_format}: its rows cannot be read in place"):
        memory.rows("a")
    memory.close()


@pytest.mark.parametrize(
    ("row_format", "number", "most"),
    [
        (RowFormat.FP16, 70_000.0, "65504"),
        (RowFormat.FP16, np.nan, "65504"),
        (RowFormat.INT8, -np.inf, r"3\.40282e\+38"),
        (RowFormat.INT8, np.nan, r"3\.40282e\+38"),
    ],
)
def test_rows_that_a_format_cannot_hold_are_named(row_format, number, most, monkeypatch):
    monkeypatch.setattr(table_memory, "CHUNK_BYTES", 100)
    rows = np.ones((50, 7), np.float32)
    rows[33, 5] = number
    memory = TableMemory({"a": (50, 7)}, row_format)
    expected = f"table a: row 33 has a number that is not finite or beyond {most}, which {row_format} rows cannot hold"
    with pytest.raises(StoreError, match=expected):
        memory.fill({"a": rows})
    memory.close()
    exact = TableMemory({"a": (50, 7)})
    exact.fill({"a": rows})  # fp32 holds anything
    exact.close()


def test_filled_from_arrays_and_pieces_with_progress(monkeypatch):
    monkeypatch.setattr(table_memory, "CHUNK_BYTES", 100)
    rng = np.random.default_rng(0)
    a, b = rng.random((50, 7), np.float32), rng.random((9, 64), np.float32)
    memory, calls = TableMemory({"a": (50, 7), "b": (8, 64)}), []
    memory.fill({"a": iter([a[:20], a[20:20], a[20:]]), "b": b}, lambda done, total: calls.append((done, total)))
    assert np.array_equal(memory.rows("a"), a)
    assert np.array_equal(memory.rows("b"), b[:8])  # the first rows of a longer source
    total = a.nbytes + b[:8].nbytes
    assert calls[-1] == (total, total)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert len(calls) > 10
    memory.close()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (np.zeros((4, 3)), r"table a is float64 \[4, 3\]: must be float32 \[4, 3\]"),
        (np.zeros((4, 2), np.float32), r"table a is float32 \[4, 2\]: must be float32 \[4, 3\]"),
        (np.zeros(12, np.float32), r"table a is float32 \[12\]"),
        (np.zeros((3, 3), np.float32), "table a has 3 rows: must have 4"),
        ([], "table a has 0 rows: must have 4"),
    ],
)
def test_sources_that_do_not_fit_are_errors(source, message):
    memory = TableMemory({"a": (4, 3)})
    with pytest.raises(StoreError, match=message):
        memory.fill({"a": source})
    with pytest.raises(StoreError, match="table a is missing"):
        memory.fill({})
    with pytest.raises(StoreError, match="no table b in memory"):
        memory.rows("b")
    memory.close()


@pytest.mark.parametrize("at_a_time_bytes", [table_memory._GIVE_BACK_BYTES, 12 * MIB])
def test_memory_comes_back_on_close_even_if_a_view_is_held(at_a_time_bytes, monkeypatch):
    monkeypatch.setattr(table_memory, "_GIVE_BACK_BYTES", at_a_time_bytes)
    memory = TableMemory({"a": (64 * MIB // 256, 64)})
    memory.flat[:] = 1
    view = memory.rows("a")
    assert pages_held(view) == view.nbytes // mmap.PAGESIZE
    memory.close()
    memory.close()
    assert pages_held(view) == 0
    assert not view[:10].any()  # harmless
    with pytest.raises(StoreError, match="table memory is closed"):
        memory.rows("a")


def test_loading_a_mapped_file_never_holds_it_twice(tmp_path):
    rows = np.random.default_rng(0).random((40 * MIB // 256, 64), np.float32)
    source = table_file(tmp_path / "a.table", rows)
    memory, most = TableMemory({"a": rows.shape}), []
    memory.fill({"a": source}, lambda *_: most.append(resident_bytes("a.table")))
    torn = 2 * mmap.PAGESIZE * len(most)  # chunks need not end where pages do
    assert max(most) <= table_memory.CHUNK_BYTES + torn
    assert resident_bytes("a.table") <= torn
    assert np.array_equal(memory.rows("a"), rows)
    assert np.array_equal(source, rows)
    memory.close()


def test_only_pages_that_can_be_had_again_are_dropped(tmp_path):
    rows = np.random.default_rng(0).random((5000, 8), np.float32)
    (tmp_path / "file").write_bytes(rows.tobytes())
    private = np.memmap(tmp_path / "file", np.float32, "c", shape=rows.shape)
    private[:] += 1  # changes that are not in the file
    anonymous = np.frombuffer(mmap.mmap(-1, rows.nbytes), np.float32).reshape(rows.shape)
    anonymous[:] = rows + 1
    for source in (private, anonymous, rows + 1):
        source.flags.writeable = False
        drop_mapped_pages(source)
        drop_mapped_pages(source[::2])
        assert np.array_equal(source, rows + 1)
    mapped = table_file(tmp_path / "other", rows)
    drop_mapped_pages(mapped[100:][::3])  # not one piece: left alone
    drop_mapped_pages(mapped[17:4000])
    assert np.array_equal(mapped, rows)


def test_more_than_there_is_is_refused_before_it_is_taken(monkeypatch):
    monkeypatch.setattr(table_memory, "available_bytes", lambda: 3 * MIB)
    with pytest.raises(StoreError, match=r"tables need 4,194,304 bytes of memory and 3,145,728 are available"):
        TableMemory({"a": (HUGE_PAGE_BYTES // 4 + 1, 1)})
    monkeypatch.setattr(table_memory, "available_bytes", lambda: None)
    with pytest.raises(StoreError, match=r"cannot map .* bytes for tables: .*free some, choose a narrower"):
        TableMemory({"a": (2**50, 64)})


def test_available_bytes_is_what_the_machine_says():
    available = table_memory.available_bytes()
    assert available is not None
    assert 0 < available < 1 << 50


def test_available_is_what_the_group_that_has_least_left_leaves(tmp_path):
    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    def available():
        return table_memory.available_bytes(tmp_path / "proc", tmp_path / "cgroup")

    assert available() is None
    write("proc/meminfo", "MemTotal: 900 kB\nMemAvailable: 500 kB\n")
    assert available() == 500 << 10
    write("proc/self/cgroup", "4:memory:/docker/abc\n0::/hebe.slice/hebe.service\n")
    write("cgroup/hebe.slice/memory.max", f"{400 << 10}\n")
    write("cgroup/hebe.slice/memory.current", f"{100 << 10}\n")
    assert available() == 300 << 10
    write("cgroup/memory/docker/abc/memory.limit_in_bytes", f"{300 << 10}\n")
    write("cgroup/memory/docker/abc/memory.usage_in_bytes", f"{250 << 10}\n")
    write("cgroup/memory/docker/abc/memory.stat", f"total_inactive_file {20 << 10}\ntotal_active_file 1024\n")
    assert available() == 71 << 10
    write("cgroup/memory/docker/abc/memory.limit_in_bytes", f"{100 << 10}\n")
    assert available() == 0


def test_works_without_huge_pages(monkeypatch):
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    memory = TableMemory({"a": (4, 3)})
    memory.fill({"a": np.ones((4, 3), np.float32)})
    assert (memory.rows("a") == 1).all()
    memory.close()
