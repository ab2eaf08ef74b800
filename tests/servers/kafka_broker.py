"""A Kafka cluster for tests: librdkafka's mock brokers, which speak the protocol over TCP, in a process of their own.

They keep topics and committed offsets in memory while `down`, so clients see what a broker's restart looks like. Of a
partition they keep the last 5 MB or so. They answer neither TLS nor the admin protocol.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

API_PRODUCE, API_FETCH, API_OFFSET_COMMIT, API_HEARTBEAT = 0, 1, 8, 12
NOT_LEADER_FOR_PARTITION, REQUEST_TIMED_OUT, UNKNOWN_MEMBER_ID, TOPIC_AUTHORIZATION_FAILED = 6, 7, 25, 29
REBALANCE_IN_PROGRESS = 27


class KafkaBroker:
    """Starts on entering, ends on leaving; `brokers` is its address, in the form that clients take."""

    def __init__(self, count: int = 1, rebalance_delay_ms: int = 100) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), str(count), str(rebalance_delay_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.count = count
        self.brokers = str(self._answer()).replace(",", ";")

    def __enter__(self) -> KafkaBroker:
        return self

    def __exit__(self, *fault: object) -> None:
        self.stop()

    def create_topic(self, topic: str, partitions: int) -> None:
        self._call("create_topic", topic, partitions)

    def delete_topic(self, topic: str) -> None:
        self._call("delete_topic", topic)

    def delete_records(self, topic: str, partition: int, before_offset: int) -> None:
        """As retention does: messages before that offset are gone."""
        self._call("delete_records", topic, partition, before_offset)

    def down(self) -> None:
        """All brokers close their connections and their ports; what they hold stays."""
        for broker in range(1, self.count + 1):
            self._call("down", broker)

    def up(self) -> None:
        for broker in range(1, self.count + 1):
            self._call("up", broker)

    def fail_next(self, api: int, *errors: int) -> None:
        """The next requests of this kind are answered with these errors, one each."""
        self._call("fail_next", api, *errors)

    def pause(self) -> None:
        """Connections stay, nobody answers."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _call(self, *command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        assert self._answer() == 0, command

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def _serve(count: int, rebalance_delay_ms: int) -> None:
    """The broker process: brings the mock cluster up, says where it listens, and does what stdin says until it ends."""
    import confluent_kafka

    package = Path(confluent_kafka.__file__).parent
    library = ctypes.CDLL(str(next(package.with_name("confluent_kafka.libs").glob("librdkafka-*.so*"))))
    pointer = ctypes.c_void_p
    for name in ("rd_kafka_new", "rd_kafka_conf_new", "rd_kafka_mock_cluster_new"):
        getattr(library, name).restype = pointer
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    reason = ctypes.create_string_buffer(512)
    client = library.rd_kafka_new(0, pointer(library.rd_kafka_conf_new()), reason, len(reason))
    assert client, reason.value
    cluster = pointer(library.rd_kafka_mock_cluster_new(pointer(client), count))
    library.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, rebalance_delay_ms)

    def say(what: object) -> None:
        print(json.dumps(what), flush=True)

    say(library.rd_kafka_mock_cluster_bootstraps(cluster).decode())
    for line in sys.stdin:
        match json.loads(line):
            case ["create_topic", topic, partitions]:
                say(library.rd_kafka_mock_topic_create(cluster, topic.encode(), partitions, 1))
            case ["delete_topic", topic]:
                say(library.rd_kafka_mock_topic_delete(cluster, topic.encode()))
            case ["delete_records", topic, partition, before_offset]:
                offset = ctypes.c_int64(before_offset)
                say(library.rd_kafka_mock_partition_delete_records(cluster, topic.encode(), partition, offset))
            case ["down", broker]:
                say(library.rd_kafka_mock_broker_set_down(cluster, broker))
            case ["up", broker]:
                say(library.rd_kafka_mock_broker_set_up(cluster, broker))
            case ["fail_next", api, *errors]:
                array = (ctypes.c_int * len(errors))(*errors)
                library.rd_kafka_mock_push_request_errors_array(cluster, api, ctypes.c_size_t(len(errors)), array)
                say(0)
            case other:
                raise ValueError(f"no command {other}")


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))
