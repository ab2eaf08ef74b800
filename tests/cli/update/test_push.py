"""Pushes that are cut short, and what `hebe update push` asks the log before it writes, over real logs."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from hebe.cli.main import main
from hebe.cli.update import push as module
from hebe.cli.update.push import UpdateFileError, open_update_file
from hebe.embeddings.updates.contract import Topic, TopicPartition
from hebe.embeddings.updates.directory.log import LogDirectory
from tests.servers.kafka_broker import KafkaBroker
from tests.servers.redis_servers import RedisServer

USERS = Topic("dlrm", "users")


TIMEOUT_S = 60.0


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")  # so that no error is broken over lines


@pytest.fixture
def many(tmp_path):
    """A file of 100,000 rows of dim 2."""
    np.savez(tmp_path / "many.npz", keys=np.arange(100_000), rows=np.ones((100_000, 2), np.float32))
    return tmp_path / "many.npz"


def rows_in(log):
    """How many rows the log has of the table."""
    with contextlib.closing(log.source(None, [USERS])) as source:
        count = 0
        while found := source.poll(100, 0.2):
            count += sum(len(delivery.message.keys) for delivery in found)
        return count


@pytest.mark.parametrize(
    ("number", "code", "why"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_who_ends_a_push_is_told_what_the_log_took(tmp_path, many, number, code, why):
    log = LogDirectory(tmp_path / "log")
    command = ["update", "push", str(log.path), "dlrm", "users", str(many), "--rows-per-s", "20000", "--json"]
    pushing = subprocess.Popen(
        [sys.executable, "-m", "hebe", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    end_s = time.monotonic() + TIMEOUT_S
    while not log.next_offset(TopicPartition("dlrm", "users", 0)):
        assert time.monotonic() < end_s
        time.sleep(0.01)
    pushing.send_signal(number)
    out, err = pushing.communicate(timeout=TIMEOUT_S)
    assert pushing.returncode == code, err
    count = rows_in(log)
    assert 0 < count < 100_000
    assert f"error: {why}; the log took {count:,} rows; to go on, push the same again" in err
    last = json.loads(out.splitlines()[-1])
    assert (last["rows"], last["deletes"], last["unsure"]) == (count, 0, 0)
    assert why in last["error"]


def test_a_log_that_dies_in_a_push_took_what_is_said(many, capsys):
    with RedisServer() as server:

        def kill_once_it_has_rows():
            with server.client() as client:
                while not sum(client.xlen(stream) for stream in client.scan_iter(_type="stream")):
                    time.sleep(0.01)
            time.sleep(0.2)  # until the answer has come; the next message is full after 0.4 s
            server.kill()

        threading.Thread(target=kill_once_it_has_rows, daemon=True).start()
        options = ["--rows-per-s", "20000", "--timeout", "0.5", "--json"]
        with pytest.raises(SystemExit) as end:
            main(["update", "push", f"redis://{server.address}", "dlrm", "users", str(many), *options])
    captured = capsys.readouterr()
    assert end.value.code == 1
    last = json.loads(captured.out.splitlines()[-1])
    assert 0 < last["rows"] < 100_000
    assert 0 < last["unsure"] <= 8192, "the message that Redis was given when it died"
    said = f"the log took {last['rows']:,} rows, and it may have up to {last['unsure']:,} more; to go on"
    assert said in captured.err
    assert server.address in last["error"]


def push(capsys, url, table, rows, *options, code=0):
    """What was told of a push of these rows under the keys from 0."""
    with tempfile.TemporaryDirectory() as directory:
        np.savez(f"{directory}/rows.npz", keys=np.arange(len(rows)), rows=rows)
        with pytest.raises(SystemExit) as end:
            main(["update", "push", str(url), "dlrm", table, f"{directory}/rows.npz", *options])
    captured = capsys.readouterr()
    assert end.value.code == code, captured.err
    return captured


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("nofile", None, "is of no kind that can be pushed"),
        ("none.npz", None, "No such file"),
        ("none.csv", None, "No such file"),
        ("empty.csv", "", "has no keys"),
        ("bad.csv", "1,2,x\n", "the row of key 1 has a value that is no number"),
    ],
)
@pytest.mark.parametrize("second", [False, True])
def test_files_that_cannot_be_pushed_leave_no_new_log(tmp_path, many, capsys, name, content, said, second):
    """Of a second file what only reading it tells comes later, when rows of the first are in the log."""
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(SystemExit) as end:
        main(["update", "push", f"{tmp_path}/log", "dlrm", "users", *[str(many)] * second, f"{tmp_path}/{name}"])
    assert (end.value.code, said in capsys.readouterr().err) == (1, True)
    assert (tmp_path / "log").exists() == (second and content is not None)


@pytest.fixture(params=["directory", "redis", "kafka"])
def url(request, tmp_path):
    """A log of each kind."""
    if request.param == "directory":
        yield tmp_path / "log"
    elif request.param == "redis":
        with RedisServer() as server:
            yield f"redis://{server.address}"
    else:
        with KafkaBroker() as broker:
            for table in ("users", "items", "itms"):
                broker.create_topic(f"hebe.dlrm.{table}", 2)
            yield f"kafka://{broker.brokers}"


def test_rows_of_another_dim_than_those_of_the_log_are_refused(url, capsys):
    two, three = np.ones((100, 2), np.float32), np.ones((9, 3), np.float32)
    push(capsys, url, "users", two)
    said = "table users: these rows have dim 3, the newest in the log have 2: a server whose table has dim 2 would put"
    refused = push(capsys, url, "users", three, "--json", code=1)
    assert said in refused.err
    assert "nothing was pushed" in refused.err
    assert json.loads(refused.out)["rows"] == 0
    push(capsys, url, "items", three)
    push(capsys, url, "items", two, "--delete")
    push(capsys, url, "users", three[:1], "--any-dim")
    push(capsys, url, "users", two)  # of some partitions the newest message is still of these
    push(capsys, url, "users", np.ones((100, 3), np.float32), "--any-dim")
    push(capsys, url, "users", three)


def test_a_table_that_the_log_does_not_have_beside_others_of_the_model_is_told(tmp_path, capsys):
    rows = np.ones((4, 2), np.float32)
    assert push(capsys, tmp_path / "log", "items", rows).err == ""
    told = push(capsys, tmp_path / "log", "itms", rows, "--json")
    assert told.err.splitlines()[0] == "no table itms of model dlrm in the log so far; there are items"
    assert json.loads(told.out)["rows"] == 4
    assert "no table" not in push(capsys, tmp_path / "log", "itms", rows).err


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
