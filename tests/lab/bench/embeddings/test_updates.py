"""How turns with and without updates become figures, and what ends them, without processes."""

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from rich.progress import Progress

from hebe.cli.terminal.server_process import ServerProcessError
from hebe.embeddings.updates.contract import Topic
from hebe.embeddings.updates.directory.log import LogDirectory
from hebe.models.catalog import entry
from hebe.workload.key_skew import spread_seed_of
from hebe_lab.bench.embeddings import updates as embeddings_updates
from hebe_lab.bench.embeddings.update_producer import ProducerProcess, Sent, UpdatedTable, _part
from hebe_lab.bench.embeddings.updates import MODEL, _Effort, _Measurement, _updated_tables

SPEC = entry(MODEL, "production", 1e-5)


EFFORT = _Effort(scale=1e-5, turns=3, probe_s=0.1, rounds=2, resolution=0.5, visible_s=2.0)


TIERS = ("volatile_db", "persistent_db", "cache")


class Server:
    """Applies of what the producer has sent `at_once` rows at once, and `per_look` each time that it is asked."""

    http_url, pid = "http://127.0.0.1:9", 1

    def __init__(self, at_once=900, per_look=50):
        self.at_once, self.per_look, self.sent, self.applied, self.dead = at_once, per_look, 0, 0, False

    def check(self):
        if self.dead:
            raise ServerProcessError("the server ended with exit status -9")

    def receive(self, rows):
        self.sent += rows
        self.applied += min(self.at_once, rows) - self.per_look

    def followed(self):
        self.applied = min(self.applied + self.per_look, self.sent)
        visible = {tier: {"p50": 0.1 * (1 + at), "p99": 0.2 * (1 + at)} for at, tier in enumerate(TIERS)}
        return {"rows": self.applied, "messages": 1234, "visible_s": visible}


class Producer:
    def __init__(self, server):
        self.server, self.sends = server, False

    def start(self):
        assert not self.sends
        self.sends = True

    def stop(self):
        self.sends = False
        self.server.receive(1000)
        return Sent(rows=1000, seconds=0.5, cpu_s=0.1)


@pytest.fixture
def measured(monkeypatch):
    """A measurement against a `Server`, on a clock that only sleeping moves; the turns' throughputs as they are due."""
    found = SimpleNamespace(now_s=0.0, turns=[], loads=[], with_qps=[95.0, 90.0, 85.0], without_qps=[100.0] * 3)

    def find_qps(_target, workload, **_):
        found.turns.append(found.producer.sends)
        found.loads.append(workload.seed)
        qps = (found.with_qps if found.producer.sends else found.without_qps).pop(0)
        return SimpleNamespace(crossing=SimpleNamespace(qps=qps) if qps else None)

    def run_load(_target, workload, rate_qps, seconds):
        found.loads.append(workload.seed)
        found.beside = (rate_qps, seconds, found.producer.sends)

    def sleep(seconds):
        found.now_s += seconds

    monkeypatch.setattr(embeddings_updates, "find_qps", find_qps)
    monkeypatch.setattr(embeddings_updates, "run_load", run_load)
    monkeypatch.setattr(embeddings_updates, "time", SimpleNamespace(monotonic=lambda: found.now_s, sleep=sleep))

    def make(server):
        found.server, found.producer = server, Producer(server)
        found.measurement = _Measurement(server, found.producer, SPEC, EFFORT, Progress(disable=True))
        monkeypatch.setattr(found.measurement, "_followed", server.followed)
        monkeypatch.setattr(found.measurement, "_cpu_s", lambda: 0.0)
        return found

    return make


def test_turns_alternate_in_order_and_become_ratios_of_medians(measured):
    found = measured(Server())
    figures = {figure.name: figure for figure in found.measurement.figures()}
    assert found.turns == [False, True, True, False, False, True]
    assert figures["updates.qps_kept"].value == pytest.approx(0.9)
    assert figures["updates.qps_without"].value == 100.0
    assert "90.0 of 100.0 queries/s" in figures["updates.qps_kept"].note
    assert "took 20% of a core" in figures["updates.qps_kept"].note
    assert len(set(found.loads)) == len(found.loads), "no two loads ask for the same keys"


def test_how_soon_updates_are_visible_is_measured_once_below_the_throughput(measured):
    found = measured(Server())
    figures = {figure.name: figure for figure in found.measurement.figures()}
    assert found.beside == (pytest.approx(70.0), EFFORT.visible_s, True)
    assert figures["updates.visible_p50_s"].value == pytest.approx(0.3), "in the last tier"
    assert figures["updates.visible_p99_s.volatile_db"].value == pytest.approx(0.2)
    assert "1,234 messages in 2 s, beside 70 queries/s" in figures["updates.visible_p99_s"].note


def test_what_is_not_applied_when_the_trainer_stops_is_told_and_waited_for(measured):
    found = measured(Server(at_once=900))
    figures = {figure.name: figure for figure in found.measurement.figures()}
    assert figures["updates.applied_over_sent"].value == pytest.approx(0.9)
    assert found.server.applied == found.server.sent == 4000


def test_updates_that_are_never_applied_are_an_error(measured):
    found = measured(Server(at_once=900, per_look=0))
    with pytest.raises(RuntimeError, match=r"updates are not applied within 60 s: .*'rows': 900"):
        found.measurement.figures()
    assert 60.0 < found.now_s < 75.0


def test_a_server_that_dies_is_not_waited_for(measured):
    server = Server(per_look=0)
    found = measured(server)
    stop = found.producer.stop

    def dies():
        server.dead = True
        return stop()

    found.producer.stop = dies
    with pytest.raises(ServerProcessError, match="exit status -9"):
        found.measurement.figures()
    assert found.now_s < 10.0


def test_a_target_that_is_met_at_no_load_gives_no_figure_without_updates_and_nothing_kept_with(measured):
    found = measured(Server())
    found.without_qps = [0.0]
    with pytest.raises(RuntimeError, match="meets 100 ms at no load, also without updates"):
        found.measurement.figures()
    found = measured(Server())
    found.without_qps, found.with_qps = [100.0] * 3, [0.0] * 3
    assert {figure.name: figure.value for figure in found.measurement.figures()}["updates.qps_kept"] == 0.0


def test_a_turn_begins_once_the_server_is_quiet_or_after_a_while(measured, monkeypatch):
    found = measured(Server())
    busy_s = iter(np.cumsum([0.2] * 8 + [0.0] * 100).tolist())
    monkeypatch.setattr(found.measurement, "_cpu_s", lambda: next(busy_s))
    found.measurement._wait_until_quiet()
    assert found.now_s == pytest.approx(4 * 0.25, abs=0.26)
    never_quiet_s = iter(np.cumsum([0.2] * 1000).tolist())
    monkeypatch.setattr(found.measurement, "_cpu_s", lambda: next(never_quiet_s))
    found.now_s = 0.0
    found.measurement._wait_until_quiet()
    assert found.now_s == pytest.approx(30.0, abs=0.5)


def test_the_trainer_updates_every_table_where_the_queries_are_hot():
    tables = _updated_tables(SPEC)
    assert [(table.name, table.rows, table.dim) for table in tables] == [
        (table.name, table.rows, table.dim) for table in SPEC.tables
    ]
    assert [table.spread_seed for table in tables] == [spread_seed_of(feature.name) for feature in SPEC.features]


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
