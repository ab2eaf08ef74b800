import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from hebe.embeddings.updates.contract import Topic
from hebe.embeddings.updates.directory.log import LogDirectory
from hebe_lab.bench.embeddings.update_producer import ProducerProcess, UpdatedTable, _part

TABLES = [UpdatedTable("a", 5_000, 4, 1), UpdatedTable("b", 30, 2, 2)]
WITHIN_S = 60.0


def producing(root):
    """Which gives way to no other test."""
    return ProducerProcess(root / "log", "m", TABLES, 400.0, niceness=0)


def poll_all(log, table, rows):
    """Messages of a table, until there are so many rows."""
    source = log.source(None, [Topic("m", table)])
    found, give_up_s = [], time.monotonic() + WITHIN_S
    while sum(len(message.keys) for message in found) < rows and time.monotonic() < give_up_s:
        found += [delivery.message for delivery in source.poll(64, 0.05)]
    source.close()
    return found


def test_rows_come_between_start_and_stop_and_are_all_in_the_log(tmp_path):
    log = LogDirectory(tmp_path / "log")
    with producing(tmp_path) as producer:
        pid = producer._process.pid
        assert log.topics() == []
        producer.start()
        give_up_s = time.monotonic() + WITHIN_S
        while len(log.topics()) < 2 and time.monotonic() < give_up_s:
            time.sleep(0.01)
        sent = producer.stop()
        producer.start()
        again = producer.stop()
    total = sent.rows + again.rows
    assert sent.rows % 40 == again.rows % 40 == 0
    assert sent.rows >= 40
    assert sent.seconds > 0
    assert sent.cpu_s >= 0
    for table in TABLES:
        messages = poll_all(log, table.name, total // 2)
        assert sum(len(message.keys) for message in messages) == total // 2
        for message in messages:
            assert message.rows.shape == (len(message.keys), table.dim)
            assert message.keys.min() >= 0
            assert message.keys.max() < table.rows
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_part_has_distinct_keys_and_the_hot_ones_of_the_load_generator():
    from hebe_lab.bench.embeddings.update_producer import SKEW

    chance = np.random.default_rng(1)
    name, keys, rows = _part(TABLES[0], 500, chance)
    assert (name, rows.shape, rows.dtype) == ("a", (500, 4), np.float32)
    assert np.unique(keys).size == 500
    hottest = np.bincount(SKEW.draw(5_000, 10_000, chance, spread_seed=1)).argmax()
    assert hottest in keys
    assert np.unique(_part(TABLES[1], 500, chance)[1]).tolist() == list(range(30))


def test_a_producer_that_dies_is_noticed(tmp_path):
    with producing(tmp_path) as producer:
        producer._process.kill()
        producer._process.wait(WITHIN_S)
        with pytest.raises(RuntimeError, match="the producer of updates has ended"):
            producer.start()


def test_a_producer_that_does_not_start_is_noticed(tmp_path):
    (tmp_path / "log").write_text("not a directory")
    with pytest.raises(RuntimeError, match="has ended"), producing(tmp_path):
        pass


def test_it_ends_with_its_input(tmp_path):
    command = [sys.executable, "-m", "hebe_lab.bench.embeddings.update_producer", str(tmp_path / "log"), "--model", "m"]
    command += ["--rows-per-s", "100", "--niceness", "0", "--table", json.dumps(TABLES[1])]
    done = subprocess.run(command, input="start\n", capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (0, ['"ready"', '"started"'])
    wrong = subprocess.run(command, input="halt\n", capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert wrong.returncode == 1
    assert "write start or stop" in wrong.stderr
