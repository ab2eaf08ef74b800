"""Online updates into a server under load: killed in the middle, and fed with messages that no trainer would send."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.updates.contract import Topic, TopicPartition, UpdateLog, UpdateMessage
from hebe.embeddings.updates.directory.log import DirectoryCarrier, LogDirectory, LogDirectoryOptions
from hebe.embeddings.updates.directory.segments import PartitionEnd, segment_path
from hebe.embeddings.updates.kafka.log import KafkaLog, KafkaOptions, topic_name
from hebe.embeddings.updates.message import encode
from hebe.embeddings.updates.redis_streams.log import RedisStreamsLog, RedisStreamsOptions
from hebe.kernels.hash_tables.xxh64 import key_partitions
from tests.integration.serving.served import HebeServe, eventually
from tests.integration.tiers.row_reader import (
    LATE_S,
    TABLE,
    Keys,
    Load,
    Reader,
    Told,
    Versions,
    percentile_s,
    row_reader,
    rows_of,
    serving,
    store_reader,
)
from tests.servers.kafka_broker import KafkaBroker
from tests.servers.redis_servers import RedisServer

from .trainer import QUICK, Trainer

SPEC = row_reader()
[ROWS] = [table.rows for table in SPEC.tables]
DIM = SPEC.tables[0].dim
PARTITIONS = 4
BY_HAND = "by-hand"
VISIBLE_S = 60.0
"""Within which a server must have all that the log has."""


class Served:
    """A server that follows `log`, as `source` has it, and can be killed and started again where it was."""

    def __init__(self, root: Path, log: UpdateLog, source: Mapping[str, Any], persistent: bool = True) -> None:
        self.root, self.versions, self.log = root, Versions(SPEC), log
        store_reader(root / "models", SPEC)
        self._tiers: dict[str, Mapping[str, Any]] = {
            "cache": {"cache_fraction": 0.1},
            "volatile_db": {"type": "parallel_hash_map", "num_partitions": 2},
            "update_source": {"poll_timeout_ms": 50, **source},
        }
        if persistent:
            self._tiers["persistent_db"] = {"type": "rocks_db", "path": str(root / "rocksdb")}
        self._running = contextlib.ExitStack()
        self._address = ""
        self.server = self.start()

    def start(self) -> HebeServe:
        """Start it, and wait until it is ready."""
        self._running.close()
        self.server = self._running.enter_context(serving(self.root, self._tiers))
        if self._address:
            self.versions.restarted(self._address, self.server.grpc)
        self._address = self.server.grpc
        return self.server

    def close(self) -> None:
        self._running.close()

    def load(self) -> Load:
        """Clients that read from it, and leave the cores to others now and then."""
        return Load([self.server], SPEC, self.versions, pause_s=0.02)

    def wait_until_newest(self) -> None:
        """Every key is answered with its newest row, over HTTP; from now on it must be."""
        with Reader(self.server, SPEC, self.versions, "http") as reader:
            eventually(reader.all_newest, "all that was sent is seen", VISIBLE_S)
        self.versions.settled[:] = self.versions.sent

    @property
    def place(self) -> Path:
        """Of level 3."""
        return self.root / "rocksdb" / SPEC.name / "1"


class ServedFromDirectory(Served):
    """A server that follows a log directory."""

    log: LogDirectory


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFromDirectory]:
    root = tmp_path_factory.mktemp("updates")
    log = LogDirectory(root / "log", LogDirectoryOptions(partitions=PARTITIONS))
    with contextlib.closing(
        ServedFromDirectory(root, log, {"type": "log_directory", "address": str(root / "log")})
    ) as running:
        yield running


@pytest.fixture
def kafka() -> Iterator[KafkaBroker]:
    """It makes topics of 4 partitions by itself."""
    with KafkaBroker() as broker:
        yield broker


def kafka_log(broker: KafkaBroker) -> KafkaLog:
    return KafkaLog(KafkaOptions(broker.brokers, create_topics=False))


def kafka_source(broker: KafkaBroker) -> dict[str, Any]:
    return {"type": "kafka_message_queue", "brokers": broker.brokers, "metadata_refresh_interval_ms": 200}


@pytest.fixture(params=["log_directory", "redis_streams", "kafka"])
def followed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    """A server for each kind of log."""
    if request.param == "log_directory":
        yield request.getfixturevalue("served")
        return
    with contextlib.ExitStack() as opened:
        log: UpdateLog
        if request.param == "redis_streams":
            redis = opened.enter_context(RedisServer())
            log = RedisStreamsLog(RedisStreamsOptions(redis.address, num_partitions=PARTITIONS))
            source = {"type": "redis_streams", "address": redis.address}
        else:
            broker = request.getfixturevalue("kafka")
            log, source = kafka_log(broker), kafka_source(broker)
        opened.enter_context(contextlib.closing(log))
        yield opened.enter_context(contextlib.closing(Served(tmp_path, log, source)))


def partition_keys(partition: int) -> Keys:
    """The keys of the table that belong to a partition of the log."""
    keys = np.arange(ROWS)
    return keys[key_partitions(keys, PARTITIONS) == partition]


class Hand:
    """Writes messages of one producer into a partition as bytes, in whatever order and state."""

    def __init__(self, log: LogDirectory, partition: int, versions: Versions) -> None:
        self.log, self.at = log, TopicPartition(SPEC.name, TABLE, partition)
        self._carrier, self._versions = DirectoryCarrier(log), versions

    def message(self, sequence: int, keys: Keys, rows: np.ndarray | None = None) -> bytes:
        """The bytes of message `sequence`: the next version of `keys`, or other rows."""
        own = self._versions.raise_versions(keys) if rows is None else rows
        return encode(UpdateMessage(BY_HAND, sequence, time.time(), keys, own), self.at)

    def append(self, *payloads: bytes) -> None:
        for payload in payloads:
            self._carrier.append(self.at, payload)

    def close(self) -> None:
        self._carrier.close()


def test_duplicate_reordered_truncated_and_corrupt_messages(served: ServedFromDirectory, tmp_path: Path):
    """Under load, and while a trainer sends to the other partitions: what can be applied is, the rest is named."""
    versions = served.versions
    before = set(quarantined(served))
    keys = partition_keys(0)
    mine = [keys[first : first + 20] for first in range(0, 200, 20)]
    others = np.concatenate([partition_keys(1), partition_keys(2)])
    producer = served.log.producer(QUICK)
    with (
        producer,
        Trainer(producer, SPEC.name, versions, others),
        served.load() as load,
        contextlib.closing(Hand(served.log, 0, versions)) as hand,
    ):
        load.wait_for(50)
        first, again, third, fourth = (hand.message(number, mine[0]) for number in range(4))
        hand.append(first, again, first, again, first)
        hand.append(fourth, third, third)  # the fourth waits for the third, and is the last word
        whole = hand.message(4, mine[1])
        flipped = bytearray(hand.message(5, mine[2]))
        flipped[60] ^= 4
        hand.append(whole[:-7], whole[:11], b"", bytes(flipped), os.urandom(300))
        hand.append(hand.message(6, mine[3], np.full((20, DIM), np.nan, np.float32)))
        hand.append(hand.message(7, mine[3], np.ones((20, DIM + 1), np.float32)))
        torn_write(served.log, hand.at)
        hand.append(hand.message(8, mine[3]))
        lost = damaged_segment(served, 3, tmp_path / "scratch")
        producer.send(SPEC.name, TABLE, mine[1], rows_of(mine[1], versions.sent[mine[1]], DIM))
        for keys in (mine[2], lost):
            producer.send(SPEC.name, TABLE, keys, versions.raise_versions(keys))
        load.wait_for(100)
        eventually(lambda: len(set(quarantined(served)) - before) >= 8, "poison is put aside", VISIBLE_S)
    with served.load() as load:
        served.wait_until_newest()
        load.wait_for(100)
        assert percentile_s(load.answers, 99) < LATE_S
    reasons = " ".join(reason for name, reason in quarantined(served).items() if name not in before)
    assert "are missing in partition 3" in served.server.log
    for reason in ("truncated", "its checksum does not fit", "not an update message", "not all finite", "have dim"):
        assert reason in reasons
        assert reason in served.server.log
    assert "are missing in partition 0" in served.server.log


def torn_write(log: LogDirectory, at: TopicPartition) -> None:
    """What a trainer that died while it wrote leaves at the end of a partition."""
    newest = max(log.partition_path(at).glob("*.segment"))
    whole = newest.read_bytes()
    with newest.open("ab") as segment:
        segment.write(whole[: len(whole) // 7])


def damaged_segment(served: ServedFromDirectory, partition: int, scratch: Path) -> Keys:
    """A new segment at the end of a partition, of whose three messages the disk has changed the second: its keys."""
    hand = Hand(LogDirectory(scratch, LogDirectoryOptions(partitions=PARTITIONS)), partition, served.versions)
    end = PartitionEnd(served.log.partition_path(hand.at))
    segment = segment_path(hand.log.partition_path(hand.at), end.next_offset())
    end.close()
    segment.parent.mkdir(parents=True)
    segment.touch()
    first, second, third = (partition_keys(partition)[start : start + 30] for start in (0, 30, 60))
    hand.append(hand.message(0, first))
    place = segment.stat().st_size
    hand.append(hand.message(1, second), hand.message(2, third))
    hand.close()
    content = bytearray(segment.read_bytes())
    content[place + 200] ^= 1
    segment.write_bytes(content)
    partition_path = served.log.partition_path(hand.at)
    partition_path.mkdir(parents=True, exist_ok=True)
    segment.replace(segment_path(partition_path, int(segment.stem)))
    return second


def quarantined(served: ServedFromDirectory) -> dict[str, str]:
    """The messages put aside, each with the reason."""
    place = served.place.with_name(f"{served.place.name}.quarantine")
    return {
        file.name: json.loads(file.with_name(f"{file.name}.json").read_text())["fault"]
        for file in place.glob("*.message")
        if file.with_name(f"{file.name}.json").exists()
    }


def test_killed_in_the_middle_of_updates_and_started_again(followed: Served):
    """Killed with -9 while a trainer sends and clients read; soon after it is back, all rows are what the log says."""
    served = followed
    versions = served.versions
    before = versions.sent.copy()
    producer = served.log.producer(QUICK)
    with producer, Trainer(producer, SPEC.name, versions, np.arange(ROWS)) as trainer:
        with served.load() as load:
            eventually(lambda: (versions.sent > 0).sum() > ROWS / 2, "updates come", VISIBLE_S)
            load.wait_for(200)
            assert served.server.end(signal.SIGKILL) == -signal.SIGKILL
        sent = trainer.batches
        eventually(lambda: trainer.batches > sent + 20, "the trainer goes on", VISIBLE_S)
        served.start()
        with served.load() as load:
            load.wait_for(100)
            assert percentile_s(load.answers, 99) < LATE_S
    with served.load() as load:
        served.wait_until_newest()
        load.wait_for(100)
    assert "are missing" not in served.server.log
    assert served.server.end(signal.SIGTERM) == 0
    with contextlib.closing(RocksDbStore(served.place, read_only=True)) as store:
        rows, found = np.zeros((ROWS, DIM), np.float32), np.zeros(ROWS, np.bool_)
        store.query(TABLE, np.arange(ROWS), rows, found)
        assert np.array_equal(found, ~versions.deleted)
        assert np.array_equal(rows[found], rows_of(np.arange(ROWS), versions.sent, DIM)[found])
        replayed = replay(served.log, set(np.flatnonzero(versions.sent > before).tolist()))
        assert {key for key, row in replayed.items() if row is None} == set(np.flatnonzero(versions.deleted).tolist())
        assert {key: rows[key].tolist() for key in replayed if found[key]} == {
            key: row for key, row in replayed.items() if row is not None
        }


def test_the_process_of_the_persistent_store_is_killed(served: ServedFromDirectory):
    """It is started anew; queries are answered meanwhile, and no update is lost."""
    versions = served.versions
    served.start()
    producer = served.log.producer(QUICK)
    with producer, Trainer(producer, SPEC.name, versions, np.arange(ROWS)) as trainer, served.load() as load:
        for _ in range(2):
            sent = trainer.batches
            first = store_process(served.server)
            os.kill(first, signal.SIGKILL)
            eventually(lambda first=first: store_process(served.server) not in (None, first), "a new one", VISIBLE_S)
            eventually(lambda sent=sent: trainer.batches > sent + 20, "updates come", VISIBLE_S)
            load.wait_for(100)
    with served.load() as load:
        served.wait_until_newest()
        load.wait_for(100)
        assert percentile_s(load.answers, 99) < LATE_S
    assert "its process ended (-9)" in served.server.log  # once only where the second had not opened the store yet
    assert served.server.end(signal.SIGKILL) == -signal.SIGKILL
    with contextlib.closing(RocksDbStore(served.place, read_only=True)) as store:
        rows, found = np.zeros((ROWS, DIM), np.float32), np.zeros(ROWS, np.bool_)
        store.query(TABLE, np.arange(ROWS), rows, found)
        assert np.array_equal(found, ~versions.deleted)
        assert np.array_equal(rows[found], rows_of(np.arange(ROWS), versions.sent, DIM)[found])


def test_a_server_without_level_3_has_all_of_kafka_again_before_it_answers(kafka: KafkaBroker, tmp_path: Path):
    """Killed with -9 under load. It says so where Kafka has no longer all, and goes on with what comes."""
    log = kafka_log(kafka)
    with contextlib.closing(Served(tmp_path, log, kafka_source(kafka), persistent=False)) as served:
        versions = served.versions
        with log.producer(QUICK) as producer:
            with Trainer(producer, SPEC.name, versions, np.arange(ROWS)), served.load() as load:
                eventually(lambda: (versions.sent > 0).sum() > ROWS / 2, "updates come", VISIBLE_S)
                load.wait_for(100)
                assert served.server.end(signal.SIGKILL) == -signal.SIGKILL
            versions.settled[:] = versions.sent
            served.start()
            with Reader(served.server, SPEC, versions, "http") as reader:
                assert reader.all_newest()
            assert "removed from the log" not in served.server.log
            assert served.server.metrics().value("hebe_updates_gaps_total") == 0
            assert served.server.end(signal.SIGTERM) == 0
            for partition in range(PARTITIONS):
                kafka.delete_records(topic_name(Topic(SPEC.name, TABLE)), partition, partition)
            versions.settled[:] = 0
            served.start()
            told = [line for line in served.server.log.splitlines() if "were removed from the log before" in line]
            assert len(told) == PARTITIONS - 1, "that are lacking something"
            assert all(f"of model {SPEC.name}, table {TABLE}" in line and "are lost here" in line for line in told)
            metrics = served.server.metrics()
            assert metrics.value("hebe_updates_gaps_total", ingestion="tiers") == PARTITIONS - 1
            assert metrics.value("hebe_updates_missing_total", ingestion="tiers") == sum(range(PARTITIONS))
            keys = np.arange(ROWS)
            producer.send(SPEC.name, TABLE, keys, versions.raise_versions(keys))
            producer.flush()
        served.wait_until_newest()


def store_process(server: HebeServe) -> int | None:
    """The process that has a server's persistent store."""
    for children in Path(f"/proc/{server.process.pid}/task").glob("*/children"):
        for child in children.read_text().split():
            with contextlib.suppress(OSError):
                if b"hebe.embeddings.rocksdb.process_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
    return None


def replay(log: UpdateLog, sent: set[int]) -> dict[int, list[float] | None]:
    """What trainers have said in the log of each key, of those `sent` at least, read from its first message to its end;
    `Hand` is none.
    """
    source = log.source(None, [Topic(SPEC.name, TABLE)])
    said: dict[int, list[float] | None] = {}
    give_up_s = time.monotonic() + VISIBLE_S
    with contextlib.closing(source):
        # A log may take a while to hand over its first: an empty poll means its end only after all keys.
        while (deliveries := source.poll(1000, 2.0)) or not sent <= said.keys():
            assert time.monotonic() < give_up_s, f"{len(sent - said.keys())} of {len(sent)} keys are not in the log"
            for delivery in deliveries:
                message = delivery.message
                if message is None or message.producer == BY_HAND:
                    continue
                for place, key in enumerate(message.keys.tolist()):
                    said[key] = None if message.rows is None else message.rows[place].tolist()
    return said


@pytest.mark.parametrize("tiered", [True, False], ids=["tiers", "table memory"])
def test_new_keys_are_unknown_until_an_update_has_added_them_to_a_tier(tmp_path: Path, tiered: bool):
    """Of a model whose feature takes them; table memory has no place for them, and says so. Others refuse them."""
    taking, refusing = row_reader().taking_new_keys(), row_reader("refusing")
    for spec in (taking, refusing):
        store_reader(tmp_path / "models", spec)
    described: dict[str, dict[str, Any]] = {
        "update_source": {"type": "log_directory", "address": str(tmp_path / "log"), "poll_timeout_ms": 50}
    }
    if tiered:
        described["volatile_db"] = {"type": "parallel_hash_map", "num_partitions": 2}
    keys = np.array([7, ROWS, 2**63 - 1, 8])
    added = np.full((2, DIM), 0.75, np.float32)
    with (
        serving(tmp_path, described) as server,
        Reader(server, taking, Versions(taking)) as reader,
        Reader(server, refusing, Versions(refusing)) as other,
        contextlib.closing(LogDirectory(tmp_path / "log")) as log,
        log.producer(QUICK) as producer,
    ):
        rows, told = reader.read(keys)
        assert told == Told(0, 0, 2)
        np.testing.assert_allclose(rows[1:3], 0, atol=1e-3)
        producer.send(taking.name, TABLE, keys[1:3], added)
        producer.flush()
        if tiered:
            eventually(lambda: reader.read(keys)[1] == Told(0, 0, 0), "they are known")
            np.testing.assert_allclose(reader.read(keys)[0][1:3], added, atol=1e-3)
        else:
            eventually(lambda: "table memory has the rows that the model was loaded with" in server.log, "it is told")
            assert reader.read(keys)[1] == Told(0, 0, 2)
        with pytest.raises(InferenceServerException, match=f"key {ROWS} of item 0 is out of range"):
            other.read(keys)
