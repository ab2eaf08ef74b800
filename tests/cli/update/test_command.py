"""`hebe update` over real logs: a directory in most tests, Redis and Kafka where they differ."""

import contextlib
import json
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from hebe.cli.main import main
from hebe.cli.update import command as module
from hebe.embeddings.updates.contract import Topic, TopicPartition
from hebe.embeddings.updates.directory.log import DirectoryCarrier, LogDirectory
from hebe.embeddings.updates.kafka.log import KafkaLog, KafkaOptions
from hebe.embeddings.updates.redis_streams.log import RedisStreamsLog, RedisStreamsOptions
from tests.servers.kafka_broker import KafkaBroker
from tests.servers.redis_servers import RedisServer

USERS = Topic("dlrm", "users")
TIMEOUT_S = 60.0


def run(capsys, *arguments, code=0):
    with pytest.raises(SystemExit) as exit_:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert exit_.value.code == code, captured.err
    return captured


def results_of(captured):
    return [json.loads(line) for line in captured.out.splitlines()]


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")  # so that no error is broken over lines


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log"


@pytest.fixture
def rows(tmp_path):
    """A file of 100 rows of dim 2."""
    np.savez(tmp_path / "rows.npz", keys=np.arange(100), rows=np.ones((100, 2), np.float32))
    return tmp_path / "rows.npz"


def tables_of(log):
    """All rows that the log makes of a table."""
    source, table = log.source(None, [USERS]), {}
    found, end_s = [], time.monotonic() + TIMEOUT_S
    while not (found and not any(source.lag().values())):
        assert time.monotonic() < end_s
        news = source.poll(100, 0.2)
        source.commit({delivery.at: delivery.offset for delivery in news})
        found += news
    source.close()
    for delivery in found:
        for place, key in enumerate(delivery.message.keys.tolist()):
            if delivery.message.rows is None:
                table.pop(key, None)
            else:
                table[key] = delivery.message.rows[place].tolist()
    return table


def test_what_is_pushed_is_in_the_log(path, rows, tmp_path, capsys):
    said = run(capsys, "update", "push", path, "dlrm", "users", rows).out
    assert "100 rows of table users of model dlrm are in the log" in said
    (tmp_path / "more.csv").write_text("key,a,b\n7,0.5,0.25\n1000,1,2\n")
    (tmp_path / "gone.csv").write_text("8\n9\n")
    pushed = run(capsys, "update", "push", path, "dlrm", "users", tmp_path / "more.csv", rows, "--json")
    [result] = results_of(pushed)
    assert (result["rows"], result["deletes"], result["table"]) == (102, 0, "users")
    run(capsys, "update", "push", path, "dlrm", "users", tmp_path / "more.csv")
    [result] = results_of(
        run(capsys, "update", "push", path, "dlrm", "users", tmp_path / "gone.csv", "--delete", "--json")
    )
    assert (result["rows"], result["deletes"]) == (0, 2)
    expected = {key: [1.0, 1.0] for key in range(100) if key not in (8, 9)}
    assert tables_of(LogDirectory(path)) == expected | {7: [0.5, 0.25], 1000: [1.0, 2.0]}


def test_messages_are_as_large_as_told(path, rows, capsys):
    run(capsys, "update", "push", path, "dlrm", "users", rows, "--max-rows", "10", "--linger-ms", "0")
    captured = run(capsys, "update", "tail", path, "--from-start", "--count", "10", "--json")
    *messages, last = results_of(captured)
    assert len(messages) == last["messages"] == 10
    assert {message["rows"] for message in messages} <= set(range(1, 11))


def test_a_rate_is_kept(path, rows, capsys):
    [result] = results_of(run(capsys, "update", "push", path, "dlrm", "users", rows, "--rows-per-s", "400", "--json"))
    assert result["seconds"] >= 0.19
    assert result["rows_per_s"] <= 100 / 0.19
    assert len(tables_of(LogDirectory(path))) == 100


def test_a_paced_push_is_even(monkeypatch):
    class Clock:
        now_s, slept = 0.0, []

    monkeypatch.setattr(module.time, "monotonic", lambda: Clock.now_s)
    monkeypatch.setattr(
        module.time, "sleep", lambda s: (Clock.slept.append(s), setattr(Clock, "now_s", Clock.now_s + s))
    )
    chunks = [(np.arange(1000), np.zeros((1000, 1))), (np.arange(50), None)]
    parts = [(len(keys), rows is None, Clock.now_s) for keys, rows in module._paced(chunks, 1000)]
    assert [count for count, _, _ in parts] == [50] * 21
    assert [goes for _, goes, _ in parts] == [False] * 20 + [True]
    assert [begun for _, _, begun in parts] == pytest.approx([place / 20 for place in range(21)])


def test_a_broken_file_says_how_far_it_came(path, rows, tmp_path, capsys):
    (tmp_path / "bad.csv").write_text("1,2,3\nx,1,2\n")
    failed = run(capsys, "update", "push", path, "dlrm", "users", rows, tmp_path / "bad.csv", "--json", code=1)
    assert "bad.csv: line 2: 'x' is no key: must be a whole number; the log took 100 rows; to go on" in failed.err
    last = results_of(failed)[-1]
    assert "line 2" in last["error"]
    assert (last["rows"], last["deletes"], last["unsure"]) == (100, 0, 0)
    assert len(tables_of(LogDirectory(path))) == 100
    (tmp_path / "other.csv").write_text("1,2,3,4\n")
    failed = run(capsys, "update", "push", path, "dlrm", "users", rows, tmp_path / "other.csv", code=1)
    assert "table users: rows of table users had dim 2, these have 3; the log took 100 rows" in failed.err
    failed = run(capsys, "update", "push", path, "dlrm", "a/b", rows, code=1)
    assert "a/b" in failed.err
    failed = run(capsys, "update", "push", path, "dlrm", "users", rows, "--max-rows", "0", code=2)
    assert "--max-rows is 0" in failed.err
    failed = run(capsys, "update", "push", path, "dlrm", "users", rows, "--linger-ms", "-500", code=2)
    assert "--linger-ms, in seconds, is -0.5" in failed.err


def test_tail_shows_what_each_message_is(path, rows, tmp_path, capsys):
    carrier = DirectoryCarrier(LogDirectory(path))
    carrier.partitions(USERS)
    carrier.append(TopicPartition("dlrm", "users", 2), b"broken [bold]")
    carrier.close()
    (tmp_path / "gone.csv").write_text("1\n2\n")
    for name, flags in ((rows, []), (tmp_path / "gone.csv", ["--delete"])):
        run(capsys, "update", "push", path, "dlrm", "users", name, *flags)
    log = LogDirectory(path)
    count = sum(len(list((path / "topics/dlrm/users").glob(f"{p}/*.segment"))) for p in range(log.partitions))
    assert count == log.partitions
    *messages, last = results_of(
        run(capsys, "update", "tail", path, "--from-start", "--count", "6", "--keys", "1", "--json")
    )
    assert (last["messages"], last["poison"]) == (6, 1)
    assert sum(message.get("rows", 0) for message in messages) == last["rows"] == 100
    assert all(
        0 <= message["age_s"] < TIMEOUT_S and len(message["keys"]) == 1 for message in messages if "keys" in message
    )
    shown = run(capsys, "update", "tail", path, "--from-start", "--count", "6").out
    assert "poison, 13 bytes: 13 bytes: truncated" in shown
    assert "rows of dim 2" in shown
    assert "6 messages, 1 of them poison: 100 rows" in shown


def follow(log, *options):
    """A `tail --json` of its own process."""
    return subprocess.Popen(
        [sys.executable, "-m", "hebe", "update", "tail", str(log), "--json", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def messages_of(watching, rows):
    """What it shows until it has shown so many rows."""
    shown = []
    while sum(message.get("rows", 0) for message in shown) < rows:
        shown.append(json.loads(watching.stdout.readline()))
    return shown


def interrupted(watching):
    """Its last words after Ctrl-C."""
    watching.send_signal(signal.SIGINT)
    out, err = watching.communicate(timeout=TIMEOUT_S)
    assert watching.returncode == 130, err
    assert "Traceback" not in err
    return json.loads(out.splitlines()[-1])


def test_tail_shows_what_comes_until_ctrl_c(path, rows, capsys):
    LogDirectory(path)
    watching = follow(path)
    assert "the log has no such topics yet" in watching.stderr.readline()
    run(capsys, "update", "push", path, "dlrm", "users", rows)
    shown = messages_of(watching, 100)
    assert {(message["model"], message["table"], message["dim"]) for message in shown} == {("dlrm", "users", 2)}
    assert interrupted(watching) == {"messages": len(shown), "rows": 100, "deletes": 0, "poison": 0}


def test_lag_is_shown_by_reader_and_bounded(path, rows, capsys):
    assert "nothing has reported" in run_lag_of_new_log(path, capsys)
    run(capsys, "update", "push", path, "dlrm", "users", rows, "--max-rows", "5", "--linger-ms", "0")
    source, total = LogDirectory(path).source("hebe.dlrm", [USERS]), 0
    for _ in range(1000):
        news = source.poll(1, 1.0)
        source.commit({delivery.at: delivery.offset for delivery in news})
        total += len(news)
        if total == 4:
            break
    expected = {at.partition: lag for at, lag in source.lag().items()}
    left = sum(expected.values())
    assert left > 1
    [result] = results_of(run(capsys, "update", "lag", path, "--json"))
    [reader] = result["readers"]
    assert (reader["reader"], reader["messages"], result["behind"]) == ("hebe.dlrm", left, [])
    assert {part["partition"]: part["messages"] for part in reader["partitions"]} == expected
    shown = run(capsys, "update", "lag", path).out
    assert "hebe.dlrm" in shown
    assert "dlrm/users" in shown
    assert run(capsys, "update", "lag", path, "--max-lag", left).err == ""
    behind = run(capsys, "update", "lag", path, "--max-lag", left - 1, "--json", code=1)
    assert results_of(behind)[-1]["behind"] == ["hebe.dlrm"]
    assert f"more than {left - 1} messages behind: hebe.dlrm" in behind.err
    nothing = {"reader": "hebe.dlrm", "messages": 0, "partitions": [], "not_begun": []}
    for more, readers in (
        (["--model", "dlrm", "--table", "items"], []),
        (["--model", "wide", "--reader", "hebe.dlrm"], [nothing]),
    ):
        [result] = results_of(run(capsys, "update", "lag", path, "--max-lag", "0", "--json", *more))
        assert result["readers"] == readers
    failed = run(capsys, "update", "lag", path, "--reader", "hebe.typo", "--max-lag", "0", code=1)
    assert "the log has no reader hebe.typo; its readers: hebe.dlrm" in failed.err
    source.close()


def run_lag_of_new_log(path, capsys):
    LogDirectory(path)
    return run(capsys, "update", "lag", path, "--max-lag", "0").out


def test_a_table_that_came_when_its_servers_were_away_lags(path, rows, capsys):
    run(capsys, "update", "push", path, "dlrm", "users", rows)
    log = LogDirectory(path)
    with contextlib.closing(log.source("hebe.dlrm.1", [USERS, Topic("dlrm", "items")])) as source:
        apply_all(source)
    run(capsys, "update", "lag", path, "--max-lag", "0")
    run(capsys, "update", "push", path, "dlrm", "items", rows, "--max-rows", "5")
    run(capsys, "update", "push", path, "dlrm", "in-memory", rows)
    run(capsys, "update", "push", path, "wide", "users", rows)
    [result] = results_of(run(capsys, "update", "lag", path, "--max-lag", "0", "--json", code=1))
    [reader] = result["readers"]
    behind = {part["table"]: 0 for part in reader["partitions"]}
    for part in reader["partitions"]:
        behind[part["table"]] += part["messages"]
    assert behind == {"users": 0, "items": reader["messages"]}
    assert reader["messages"] >= 20
    assert reader["not_begun"] == ["dlrm/in-memory"], "which may lie in memory: it is shown and not counted"
    assert "not begun" in run(capsys, "update", "lag", path).out


def apply_all(source):
    end_s = time.monotonic() + TIMEOUT_S
    source.poll(0, 0.0)
    while any(source.lag().values()):
        assert time.monotonic() < end_s
        source.commit({delivery.at: delivery.offset for delivery in source.poll(100, 0.2)})
    source.poll(0, 0.0)  # which reports partitions that have nothing, too


def test_a_log_that_nothing_reads_is_not_up_to_date(path, rows, capsys):
    run(capsys, "update", "push", path, "dlrm", "users", rows)
    assert "nothing has reported" in run(capsys, "update", "lag", path).out
    failed = run(capsys, "update", "lag", path, "--max-lag", "1000000", code=1)
    assert "nothing reads dlrm/users: no server has begun, or all have their tables in memory alone" in failed.err
    run(capsys, "update", "lag", path, "--max-lag", "0", "--model", "wide")
    with contextlib.closing(LogDirectory(path).source("hebe.dlrm.1", [Topic("dlrm", "items")])) as source:
        for _ in range(2):
            source.poll(1, 0.0)  # a reader that has nothing yet: its name says whose it is
        [result] = results_of(run(capsys, "update", "lag", path, "--json"))
    [reader] = result["readers"]
    assert (reader["reader"], reader["not_begun"]) == ("hebe.dlrm.1", ["dlrm/users"])
    assert "nothing reads dlrm/users" in run(capsys, "update", "lag", path, "--max-lag", "0", code=1).err


def test_the_log_of_a_servers_configuration(path, rows, tmp_path, capsys):
    LogDirectory(path)
    file = tmp_path / "tiers.toml"
    file.write_text(f'[update_source]\ntype = "log_directory"\naddress = "{path}"\n')
    run(capsys, "update", "push", file, "dlrm", "users", rows)
    assert len(tables_of(LogDirectory(path))) == 100
    file.write_text("")
    assert "has no type: that server takes no updates" in run(capsys, "update", "tail", file, code=1).err
    file.write_text("[update_sources]")
    assert "did you mean update_source" in run(capsys, "update", "tail", file, code=1).err


@pytest.mark.parametrize("command", [["tail"], ["lag"]])
def test_a_log_is_not_made_by_looking_for_it(tmp_path, capsys, command):
    failed = run(capsys, "update", *command, tmp_path / "none", code=1)
    assert f"update log {tmp_path / 'none'}: there is no log" in failed.err
    assert not (tmp_path / "none").exists()
    assert "there is no such kind" in run(capsys, "update", *command, "amqp://x", code=2).err
    assert "give --model too" in run(capsys, "update", *command, tmp_path, "--table", "users", code=2).err


def test_what_is_missing_or_away_is_said(rows, capsys, monkeypatch):
    away = "redis://127.0.0.1:1"
    assert "127.0.0.1:1" in run(capsys, "update", "lag", away, code=1).err
    failed = run(capsys, "update", "push", away, "dlrm", "users", rows, "--timeout", "0.2", code=1)
    assert "127.0.0.1:1" in failed.err
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    assert "pip install 'hebe-serve[kafka]'" in run(capsys, "update", "lag", "kafka://127.0.0.1:1", code=1).err


def test_a_password_that_is_no_text_is_refused_by_its_file(tmp_path, capsys):
    (tmp_path / "password").write_bytes(b"\xff\xfe")
    failed = run(capsys, "update", "lag", "redis://127.0.0.1:1", "--password-file", tmp_path / "password", code=1)
    assert failed.err == f"error: password_file {tmp_path}/password: is not text in UTF-8\n"


def test_over_redis_with_a_password_out_of_a_file(rows, tmp_path, capsys):
    (tmp_path / "password").write_text("secret\n")
    with RedisServer(users={"hebe": "secret"}) as server:
        url, options = f"redis://hebe@{server.address}", ["--password-file", tmp_path / "password"]
        run(capsys, "update", "push", url, "dlrm", "users", rows, *options)
        *messages, last = results_of(
            run(capsys, "update", "tail", url, "--from-start", "--count", "1", "--json", *options)
        )
        assert last["rows"] == messages[0]["rows"] > 0
        failed = run(capsys, "update", "lag", url, code=1)
        assert "secret" not in failed.err
        shown = results_of(run(capsys, "update", "lag", url, "--json", *options))
        assert shown[-1]["readers"] == []


def test_options_say_how_the_log_of_a_servers_configuration_is_reached(rows, tmp_path, capsys):
    """The server's own password may be for the server alone to read."""
    (tmp_path / "password").write_text("secret\n")
    file, options = tmp_path / "tiers.toml", ["--password-file", tmp_path / "password"]
    with RedisServer(users={"hebe": "secret"}) as server:
        own = f'password_file = "{tmp_path}/none"'
        file.write_text(f'[update_source]\ntype = "redis_streams"\naddress = "redis://hebe@{server.address}"\n{own}\n')
        run(capsys, "update", "push", file, "dlrm", "users", rows, *options)
        assert results_of(run(capsys, "update", "lag", file, "--json", *options))[-1]["readers"] == []
        assert f"password_file {tmp_path}/none" in run(capsys, "update", "lag", file, code=1).err
        (tmp_path / "client.properties").write_text("security.protocol=plaintext\n")
        failed = run(capsys, "update", "lag", file, "--kafka-settings", tmp_path / "client.properties", code=2)
    assert "--kafka-settings" in failed.err
    assert "which only kafka_message_queue reads" in failed.err


def test_kafkas_settings_replace_those_of_a_servers_configuration(tmp_path, capsys):
    file, settings = tmp_path / "tiers.toml", tmp_path / "client.properties"
    settings.write_text("security.protocol=plaintext\n")
    with KafkaBroker() as broker:
        broker.create_topic("hebe.dlrm.users", 2)
        file.write_text(
            f'[update_source]\ntype = "kafka_message_queue"\naddress = "{broker.brokers}"\n'
            f'security_file = "{tmp_path}/none"\n'
        )
        assert f"{tmp_path}/none" in run(capsys, "update", "lag", file, "--reader", "hebe.dlrm", code=2).err
        failed = run(capsys, "update", "lag", file, "--reader", "hebe.dlrm", "--kafka-settings", settings, code=1)
        assert "the log has nothing of reader hebe.dlrm" in failed.err
        failed = run(capsys, "update", "lag", file, "--password-file", settings, code=2)
    assert "which only redis_streams reads" in failed.err


def test_tail_outlasts_a_log_that_is_away():
    """A server that is killed and comes back, empty: said once, and then what is new is shown."""
    with RedisServer() as server:
        log = RedisStreamsLog(RedisStreamsOptions(server.address))
        push_now(log, [1])
        watching = follow(f"redis://{server.address}", "--from-start")
        messages_of(watching, 1)
        server.kill()
        assert "trying again" in watching.stderr.readline()
        server.restart()
        push_now(log, [2, 3])
        messages_of(watching, 2)
        assert interrupted(watching)["rows"] == 3
        log.close()


def push_now(log, keys):
    with log.producer() as producer:
        producer.send("dlrm", "users", np.array(keys), np.ones((len(keys), 2), np.float32))


def test_over_kafka(rows, tmp_path, capsys):
    """Whose mock does not list readers, so they are named."""
    with KafkaBroker() as broker:
        broker.create_topic("hebe.dlrm.users", 2)
        url = f"kafka://{broker.brokers}"
        settings = tmp_path / "client.properties"
        settings.write_text("security.protocol=plaintext\n")
        run(capsys, "update", "push", url, "dlrm", "users", rows, "--kafka-settings", settings)
        captured = run(capsys, "update", "tail", url, "--from-start", "--count", "2", "--json")
        assert results_of(captured)[-1]["rows"] == 100
        failed = run(capsys, "update", "lag", url, "--reader", "hebe.dlrm", code=1)
        assert "the log has nothing of reader hebe.dlrm, and does not list its readers" in failed.err
        with contextlib.closing(KafkaLog(KafkaOptions(broker.brokers)).source("hebe.dlrm", [USERS])) as source:
            apply_all(source)
        [result] = results_of(run(capsys, "update", "lag", url, "--reader", "hebe.dlrm", "--json"))
        [reader] = result["readers"]
        assert (reader["messages"], {part["table"] for part in reader["partitions"]}) == (0, {"users"})
        assert "readers are not listed" in run(capsys, "update", "lag", url, code=1).err
        settings.write_text("plugin.library.paths=evil.so\n")
        failed = run(capsys, "update", "lag", url, "--kafka-settings", settings, code=2)
        assert "line 1: must be NAME=VALUE" in failed.err
        assert "--kafka-settings" in failed.err


def test_what_a_reader_has_reported_expires_by_itself_but_in_kafka(path, rows, capsys):
    run(capsys, "update", "push", path, "dlrm", "users", rows)
    with contextlib.closing(LogDirectory(path).source("hebe.dlrm.1", [USERS])) as source:
        apply_all(source)
    assert "expires by itself" in run(capsys, "update", "forget", path, "hebe.dlrm.1", code=1).err
    with RedisServer() as server:
        url = f"redis://{server.address}"
        assert "expires by itself" in run(capsys, "update", "forget", url, "hebe.dlrm.1", code=1).err


def test_a_reader_of_kafka_is_forgotten(capsys, monkeypatch):
    """Whose mock brokers forget none."""
    readers = ["hebe.dlrm.1", "hebe.dlrm.2"]
    monkeypatch.setattr(KafkaLog, "readers", lambda _log: readers)
    monkeypatch.setattr(
        KafkaLog, "forget_reader", lambda _log, reader: reader in readers and not readers.remove(reader)
    )
    command = ["update", "forget", "kafka://127.0.0.1:1"]
    assert "reader hebe.dlrm.1 is forgotten" in run(capsys, *command, "hebe.dlrm.1").out
    failed = run(capsys, *command, "hebe.dlrm.1", code=1)
    assert "the log has no reader hebe.dlrm.1; its readers: hebe.dlrm.2" in failed.err
    [result] = results_of(run(capsys, *command, "hebe.dlrm.2", "--json"))
    assert result == {"reader": "hebe.dlrm.2"}
    assert "its readers: none" in run(capsys, *command, "hebe.dlrm.2", code=1).err


@pytest.mark.parametrize("command", ["tail", "push", "lag", "forget"])
def test_help_teaches(capsys, command):
    shown = run(capsys, "update", command, "--help").out
    assert "Example: hebe update" in shown
    assert "--json" in shown
    assert f" {command} " in run(capsys, "update", "--help").out
