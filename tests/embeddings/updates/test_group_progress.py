import math

import numpy as np
import pytest

from hebe.embeddings.updates import group_progress
from hebe.embeddings.updates.contract import TopicPartition
from hebe.embeddings.updates.directory.log import LogDirectory, LogDirectoryOptions
from hebe.embeddings.updates.group_progress import GroupProgress, committed_offsets, ends_and_committed, log_ends
from hebe.embeddings.updates.kafka.log import KafkaLog
from tests.embeddings.updates.conformance.kafka_logs import quick
from tests.embeddings.updates.conformance.update_conformance import (
    ITEMS,
    USERS,
    last_offsets,
    push,
    rows_for,
    take_rows,
)
from tests.servers.kafka_broker import KafkaBroker

ONE, TWO = TopicPartition("m", "users", 0), TopicPartition("m", "users", 1)


def test_a_group_has_what_was_there_when_it_was_looked_and_is_committed_since() -> None:
    progress = GroupProgress()
    assert progress.has_all_until_s == -math.inf
    progress.look(10.0, {ONE: 5, TWO: -1}, {ONE: 4, TWO: -1})
    assert progress.has_all_until_s == -math.inf
    progress.look(20.0, {ONE: 8, TWO: 0}, {ONE: 7, TWO: -1})
    assert progress.has_all_until_s == 10.0, "though it is behind"
    progress.look(30.0, {ONE: 90, TWO: 0}, {ONE: 89, TWO: -1})
    assert progress.has_all_until_s == 10.0, "one partition stands still"
    progress.look(40.0, {ONE: 90, TWO: 0}, {ONE: 90, TWO: 0})
    assert progress.has_all_until_s == 40.0
    progress.look(50.0, {}, {})
    assert progress.has_all_until_s == 50.0


def test_a_log_that_went_back_is_gone_on_with() -> None:
    progress = GroupProgress()
    progress.look(10.0, {ONE: 50}, {ONE: 4})
    progress.look(20.0, {ONE: 3}, {ONE: 2})
    assert progress.has_all_until_s == -math.inf
    progress.look(30.0, {ONE: 4}, {ONE: 3})
    assert progress.has_all_until_s == 20.0


def test_of_a_group_that_stands_still_little_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_progress, "_MOST_KNOWN", 3)
    progress = GroupProgress()
    for number in range(100):
        progress.look(float(number), {ONE: number}, {ONE: -1})
    assert len(progress._looks) == 3
    progress.look(100.0, {ONE: 100}, {ONE: 50})
    assert progress.has_all_until_s == 1.0, "too early a time, never too late a one"
    progress.look(101.0, {ONE: 100}, {ONE: 100})
    assert progress.has_all_until_s == 101.0


def test_ends_and_what_is_committed_are_offsets_of_messages(tmp_path) -> None:
    log = LogDirectory(tmp_path / "log", LogDirectoryOptions(partitions=1))
    at, other = (TopicPartition(topic.model, topic.table, 0) for topic in (USERS, ITEMS))
    assert ends_and_committed(log, [USERS, ITEMS], "g") == ({at: -1, other: -1}, {at: -1, other: -1})
    with log.producer() as producer:
        for key in range(3):
            producer.send("m", "users", np.array([key]), rows_for(np.array([key]), 0))
            producer.flush()
    assert ends_and_committed(log, [USERS, ITEMS], "g") == ({at: 2, other: -1}, {at: -1, other: -1})
    source = log.source("g", [USERS])
    found = take_rows(source, 3)
    source.commit(last_offsets(found[:2]))
    assert ends_and_committed(log, [USERS, ITEMS], "g") == ({at: 2, other: -1}, {at: 1, other: -1})
    source.close()
    push(log, range(2))
    assert ends_and_committed(log, [USERS], "g") == ({at: 3}, {at: 1})


def test_where_the_log_has_nothing_left_a_group_has_all_that_there_is(broker: KafkaBroker) -> None:
    """Though it has committed nothing, as there was nothing to read when it began."""
    log = KafkaLog(quick(broker))
    broker.create_topic("hebe.m.users", 1)
    at = TopicPartition("m", "users", 0)
    push(log, range(3))
    [end] = log_ends(log, [USERS]).values()
    assert end >= 0
    assert committed_offsets(log, {at: end}, "g") == {at: -1}
    broker.delete_records("hebe.m.users", 0, end + 1)
    assert ends_and_committed(log, [USERS], "g") == ({at: end}, {at: end})
