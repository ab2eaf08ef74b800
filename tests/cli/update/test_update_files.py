import re

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from hebe.cli.update import push as module
from hebe.cli.update.push import UpdateFileError, open_update_file

KEYS = np.array([5, -(2**63), 2**63 - 1, 0, 5], np.int64)
ROWS = np.arange(15, dtype=np.float32).reshape(5, 3) / 7
ORDER = np.array([1, 3, 4, 2])
"""Of HugeCTR's directory: ascending keys, the last row of a repeated one."""


def write_csv(path, keys, rows, heading="key,v0,v1,v2\n"):
    lines = (",".join([str(key), *map(repr, row)]) for key, row in zip(keys.tolist(), rows.tolist(), strict=True))
    path.write_text(heading + "".join(f"{line}\n" for line in lines))


def write(path, keys=KEYS, rows=ROWS):
    """A file of the kind that the suffix says."""
    if path.suffix == ".npz":
        np.savez(path, keys=keys, rows=rows)
    elif path.suffix == ".safetensors":
        safetensors.numpy.save_file({"keys": keys, "rows": rows}, path)
    elif path.suffix == ".csv":
        write_csv(path, keys, rows)
    else:
        path.mkdir()
        keys.tofile(path / "key")
        rows.tofile(path / "emb_vector")
    return path


def read(path, delete=False):
    file = open_update_file(path, delete=delete)
    chunks = list(file.chunks)
    keys = np.concatenate([keys for keys, _ in chunks])
    assert keys.dtype == np.int64
    assert file.rows in (None, len(keys))
    assert all((rows is None) == delete for _, rows in chunks)
    if delete:
        return keys, None
    assert all(rows.dtype == np.float32 and rows.flags.c_contiguous for _, rows in chunks)
    return keys, np.concatenate([rows for _, rows in chunks])


@pytest.mark.parametrize("name", ["a.npz", "a.safetensors", "a.csv", "a.CSV", "directory"])
@pytest.mark.parametrize("chunk_rows", [2, 8192])
def test_every_kind_gives_what_was_written(tmp_path, monkeypatch, name, chunk_rows):
    monkeypatch.setattr(module, "CHUNK_ROWS", chunk_rows)
    path = tmp_path / name
    write(path) if path.suffix != ".CSV" else write_csv(path, KEYS, ROWS, "")
    keys, rows = read(path)
    order = ORDER if name == "directory" else slice(None)
    assert keys.tolist() == KEYS[order].tolist()
    np.testing.assert_array_equal(rows, ROWS[order])
    assert read(path, delete=True)[0].tolist() == keys.tolist()


def test_one_weight_has_its_row_numbers_for_keys(tmp_path):
    safetensors.numpy.save_file({"weight": ROWS}, tmp_path / "t.safetensors")
    keys, rows = read(tmp_path / "t.safetensors")
    assert keys.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(rows, ROWS)


@pytest.mark.parametrize("kind", [">i8", "<i4", ">u4", "u1"])
def test_keys_may_be_of_any_kind_that_64_bits_hold(tmp_path, kind):
    np.savez(tmp_path / "a.npz", keys=np.array([7, 200]).astype(kind), rows=ROWS[:2].astype(">f8"))
    keys, rows = read(tmp_path / "a.npz")
    assert (keys.tolist(), keys.dtype) == ([7, 200], np.int64)
    np.testing.assert_array_equal(rows, ROWS[:2])


@pytest.mark.parametrize("heading", ["key,v0,v1,v2\n", ""])
def test_csv_of_a_spreadsheet_begins_with_a_mark(tmp_path, heading):
    write_csv(tmp_path / "a.csv", KEYS, ROWS, "\ufeff" + heading)
    keys, rows = read(tmp_path / "a.csv")
    assert keys.tolist() == KEYS.tolist()
    np.testing.assert_array_equal(rows, ROWS)


def test_keys_alone_are_enough_to_delete(tmp_path):
    np.savez(tmp_path / "a.npz", keys=KEYS)
    (tmp_path / "a.csv").write_text("7\n\n8,passed over\n9,1,2\n")
    assert read(tmp_path / "a.npz", delete=True)[0].tolist() == KEYS.tolist()
    assert read(tmp_path / "a.csv", delete=True)[0].tolist() == [7, 8, 9]
    with pytest.raises(UpdateFileError, match="has no array rows; give keys int64"):
        open_update_file(tmp_path / "a.npz", delete=False)


@pytest.mark.parametrize(("keys", "rows"), [(np.int32, np.float16), (np.uint8, np.float64), (np.uint32, np.float32)])
def test_narrower_and_wider_numbers_are_taken(tmp_path, keys, rows):
    path = write(tmp_path / "a.npz", np.array([3, 1], keys), np.array([[0.5], [1.25]], rows))
    assert [array.tolist() for array in read(path)] == [[3, 1], [[0.5], [1.25]]]


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3))
def test_csv_keeps_every_bit_of_a_value(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    rows = np.array([values], np.float32)
    write_csv(path, np.array([1]), rows)
    assert read(path)[1].tobytes() == rows.tobytes()


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({}, "has no array keys"),
        ({"keys": KEYS[:, None], "rows": ROWS}, "keys are int64 [5, 1]: must be int64 [n]"),
        ({"keys": KEYS.astype(float), "rows": ROWS}, "keys are float64 [5]"),
        ({"keys": KEYS.astype(np.uint64), "rows": ROWS}, "keys are uint64 [5]"),
        ({"keys": KEYS.astype(">u8"), "rows": ROWS}, "keys are >u8 [5]"),
        ({"keys": KEYS, "rows": ROWS[:4]}, "rows are float32 [4, 3]: must be float32 [5, dim], one for each key"),
        ({"keys": KEYS, "rows": ROWS[:, 0]}, "rows are float32 [5]"),
        ({"keys": KEYS, "rows": ROWS.astype(int)}, "rows are int64 [5, 3]"),
        (
            {"keys": KEYS, "rows": np.where(np.isclose(ROWS, ROWS[2, 1]), np.nan, ROWS)},
            f"the row of key {KEYS[2]} has values",
        ),
        ({"keys": KEYS, "rows": ROWS.astype(np.float64) * 1e300}, "the row of key 5 has values that no float32 holds"),
        ({"keys": np.array([object()]), "rows": ROWS}, "is no .npz file of plain arrays"),
    ],
)
def test_arrays_that_are_no_rows_are_named(tmp_path, arrays, said):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(UpdateFileError, match=re.escape(said)) as raised:
        list(open_update_file(tmp_path / "a.npz", delete=False).chunks)
    assert str(raised.value).startswith(str(tmp_path / "a.npz"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1,2,3\n2,2\n", "line 2 has 2 cells: must have a key and 2 values"),
        ("1\n", "line 1 has 1 cells: must have a key and 1 values"),
        ("1,2\nx,2\n", "line 2: 'x' is no key: must be a whole number"),
        ("1.0,2\n", "'1.0' is no key"),
        (f"{2**63},2\n", f"line 1: key {2**63} does not fit into 64 bits"),
        ("1,2\n7,x\n", "the row of key 7 has a value that is no number"),
        ("7,inf\n", "the row of key 7 has values that no float32 holds"),
        ("1,2\n\udcff,2\n", "line 2: byte 0xff is not UTF-8"),
    ],
)
def test_csv_faults_name_the_line_or_the_key(tmp_path, text, said):
    (tmp_path / "a.csv").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UpdateFileError, match=re.escape(said)) as raised:
        list(open_update_file(tmp_path / "a.csv", delete=False).chunks)
    assert str(raised.value).startswith(str(tmp_path / "a.csv"))


def test_what_cannot_be_read_says_what_to_do(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"not a zip")
    (tmp_path / "a.safetensors").write_bytes(b"x" * 20)
    (tmp_path / "a.pickle").write_bytes(b"")
    safetensors.torch.save_file(
        {"keys": torch.zeros(1, dtype=torch.int64), "rows": torch.zeros(1, 1, dtype=torch.bfloat16)},
        tmp_path / "b.safetensors",
    )
    write(tmp_path / "short")
    (tmp_path / "short" / "emb_vector").write_bytes(bytes(8 * 4))
    (tmp_path / "empty").mkdir()
    for name, said in (
        ("a.npz", "is no .npz file of plain arrays"),
        ("a.safetensors", "cannot be read as safetensors"),
        ("b.safetensors", "b.safetensors: "),  # what NumPy makes of bfloat16 depends on who has been imported
        ("a.pickle", "is of no kind that can be pushed; give .npz, .safetensors or .csv, or a directory"),
        ("short", "emb_vector has 8 values for 5 keys"),
        ("empty", "has no file key: a directory must be HugeCTR's sparse model"),
    ):
        with pytest.raises(UpdateFileError, match=re.escape(said)):
            open_update_file(tmp_path / name, delete=False)
    for name in ("none.npz", "none.safetensors", "none.csv"):
        with pytest.raises(OSError, match="No such file"):
            list(open_update_file(tmp_path / name, delete=False).chunks)


@pytest.mark.parametrize("delete", [False, True])
@pytest.mark.parametrize("name", ["a.npz", "a.safetensors", "a.csv"])
def test_files_without_a_key_are_no_update(tmp_path, name, delete):
    path = write(tmp_path / name, KEYS[:0], ROWS[:0])
    for content in (path.read_bytes(), b"", b"\n\n") if name == "a.csv" else (path.read_bytes(),):
        path.write_bytes(content)
        with pytest.raises(UpdateFileError, match=f"{name}: has no keys: whatever was to write it has written nothing"):
            list(open_update_file(path, delete=delete).chunks)
