"""Pushes that are cut short, and what `hebe update push` asks the log before it writes, over real logs."""

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import pytest
from tests.servers.kafka_broker import KafkaBroker
from tests.servers.redis_servers import RedisServer

from hebe.cli.main import main
from hebe.embeddings.updates.contract import Topic, TopicPartition
from hebe.embeddings.updates.directory.log import LogDirectory

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
        threading.Timer(1.0, server.kill).start()
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
