"""How clients reach a Kafka cluster, what topics are called there, and what its faults are to us.

    topic of table T of model M   hebe.M.T, with "-" written "--", "_" "-u" and "." "-d" in both names

Kafka takes names that differ only in "." and "_" for the same, so ours have no "_".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hebe.embeddings.store import StoreError, StoreUnavailable
from hebe.embeddings.updates.contract import Topic
from hebe.spec import SpecError, check_name

SECURITY_SETTINGS = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "ssl.cipher.suites",
        "ssl.crl.location",
    }
)
"""librdkafka's settings that `KafkaOptions.security` may hold. None that loads code, runs a command or weakens the
order or safety of messages is among them."""

LONGEST_TOPIC_NAME = 249
_MOST_FILE_BYTES = 1 << 16

_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_ESCAPES = {"-": "--", "_": "-u", ".": "-d"}
_PLAIN = {escaped: plain for plain, escaped in _ESCAPES.items()}
_TOPIC = re.compile(r"hebe\.((?:[A-Za-z0-9]|-[-ud])+)\.((?:[A-Za-z0-9]|-[-ud])+)")


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """Where the cluster is and how it is spoken to. Raises ValueError naming a field that is out of range.

    `brokers` are HOST:PORT with ";" between them. `num_partitions` and `replication_factor` (-1: the cluster's own) are
    those of topics that a producer makes, if it may (`create_topics`). `request_timeout_s` bounds the wait for any
    answer. `security` holds settings of librdkafka, out of `SECURITY_SETTINGS`.
    """

    brokers: str = "127.0.0.1:9092"
    metadata_refresh_interval_ms: int = 30_000
    num_partitions: int = 16
    replication_factor: int = -1
    create_topics: bool = True
    request_timeout_s: float = 5.0
    most_message_bytes: int = 1_000_000
    most_buffered_bytes: int = 64 << 20
    security: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if "@" in self.brokers:  # it may have a password, which no message tells
            raise ValueError("brokers must be HOST:PORT, without user or password: these are security settings")
        addresses = self.brokers.split(";")
        for address in addresses:
            host, colon, port = address.rpartition(":")
            if not colon or not re.fullmatch(r"[A-Za-z0-9._:\[\]-]+", host) or not port.isdecimal():
                raise ValueError(f'brokers is {self.brokers!r}: must be HOST:PORT, several with ";" between them')
            if not 0 < int(port) < 65536:
                raise ValueError(f"brokers is {self.brokers!r}: port {port} must lie in [1, 65535]")
        for name, value, least, most in (
            ("metadata_refresh_interval_ms", self.metadata_refresh_interval_ms, 10, 3_600_000),
            ("num_partitions", self.num_partitions, 1, 65536),
            ("request_timeout_s", self.request_timeout_s, 0.05, 300),
            ("most_message_bytes", self.most_message_bytes, 1000, 1_000_000_000),
            ("most_buffered_bytes", self.most_buffered_bytes, 1 << 20, 1 << 40),
        ):
            if not least <= value <= most:
                raise ValueError(f"{name} is {value}: must lie in [{least}, {most}]")
        if self.replication_factor != -1 and not 1 <= self.replication_factor <= 32767:
            raise ValueError(f"replication_factor is {self.replication_factor}: must be -1 or in [1, 32767]")
        self._check_security()

    @classmethod
    def of_url(cls, url: str, security: Mapping[str, str] | None = None) -> KafkaOptions:
        """Of `kafka://HOST:PORT[,HOST:PORT...]`, all else as by default. Raises ValueError."""
        scheme, _, brokers = url.partition("://")
        if scheme.lower() != "kafka":
            raise ValueError(f"update log {scheme}://...: must be kafka://HOST:PORT[,HOST:PORT...]")
        if "@" in brokers:
            raise ValueError("update log kafka://...: users and passwords are settings of its client, not of the URL")
        return cls(brokers.rstrip("/").replace(",", ";"), security=security or {})

    def _check_security(self) -> None:
        """No message here tells a value: they may be secrets."""
        for name, value in self.security.items():
            if name not in SECURITY_SETTINGS:
                raise ValueError(
                    f"security: there is no setting {name}; there are {', '.join(sorted(SECURITY_SETTINGS))}"
                )
            if not isinstance(value, str) or "\0" in value:
                raise ValueError(f"security: {name} must be text")
        protocol = self.security.get("security.protocol", "plaintext").lower()
        if protocol not in _PROTOCOLS:
            raise ValueError(f"security: security.protocol must be one of {', '.join(_PROTOCOLS)}")
        if protocol.startswith("sasl"):
            if self.security.get("sasl.mechanism") not in _MECHANISMS:
                raise ValueError(f"security: sasl.mechanism must be one of {', '.join(_MECHANISMS)}")
            for name in ("sasl.username", "sasl.password"):
                if not self.security.get(name):
                    raise ValueError(f"security: {protocol} needs {name}")
        for name, needed in (("sasl.", "sasl"), ("ssl.", "ssl")):
            used = sorted(setting for setting in self.security if setting.startswith(name))
            if used and needed not in protocol:
                raise ValueError(f"security: {used[0]} is given, but security.protocol is {protocol}")

    @property
    def client_settings(self) -> dict[str, Any]:
        """Settings of librdkafka that all our clients have."""
        timeout_ms = round(1000 * self.request_timeout_s)
        return {
            "bootstrap.servers": self.brokers.replace(";", ","),
            "client.id": "hebe",
            "topic.metadata.refresh.interval.ms": self.metadata_refresh_interval_ms,
            "topic.metadata.refresh.fast.interval.ms": min(100, self.metadata_refresh_interval_ms),
            "socket.timeout.ms": max(10, timeout_ms),
            "socket.connection.setup.timeout.ms": max(1000, timeout_ms),
            "socket.keepalive.enable": True,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1000,
            "log_level": 2,  # what is not critical is told by the calls' own faults, once
            **self.security,
        }


def read_security(path: Path) -> dict[str, str]:
    """`KafkaOptions.security` out of a file of lines NAME=VALUE, like the one that Kafka's own tools take.

    Empty lines and those that begin with "#" are passed over. Raises ValueError naming file and line, never a value.
    """
    found: dict[str, str] = {}
    try:
        if path.stat().st_size > _MOST_FILE_BYTES:
            raise ValueError(f"{path}: is larger than {_MOST_FILE_BYTES:,} bytes")
        lines = path.read_text().splitlines()
    except OSError as fault:
        raise ValueError(f"{path}: {fault.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: is not text in UTF-8") from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or name not in SECURITY_SETTINGS:
            raise ValueError(
                f"{path}: line {number}: must be NAME=VALUE with one of {', '.join(sorted(SECURITY_SETTINGS))}"
            )
        found[name] = value
    return found


def topic_name(topic: Topic) -> str:
    """The name of a topic in Kafka. Raises ValueError for one that Kafka cannot have."""
    parts = []
    for kind, name in (("model", topic.model), ("table", topic.table)):
        check_name(kind, name)
        parts.append("".join(_ESCAPES.get(letter, letter) for letter in name))
    full = ".".join(("hebe", *parts))
    if len(full) > LONGEST_TOPIC_NAME:
        raise ValueError(f"model {topic.model}, table {topic.table}: their topic has {len(full)} letters, "
                         f"Kafka allows {LONGEST_TOPIC_NAME}")  # fmt: skip
    return full


def topic_of(name: str) -> Topic | None:
    """The topic that `topic_name` calls this; None for the names of others."""
    match = _TOPIC.fullmatch(name)
    if match is None:
        return None
    model, table = (re.sub("-[-ud]", lambda pair: _PLAIN[pair[0]], part) for part in match.groups())
    try:
        check_name("model", model)
        check_name("table", table)
    except SpecError:
        return None
    return Topic(model, table)


def import_kafka() -> Any:
    """The module `confluent_kafka`. Raises `StoreError` naming the extra that brings it."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as fault:
        raise StoreError("Kafka needs confluent-kafka: pip install 'hebe-serve[kafka]'") from fault
    return confluent_kafka


def open_client(kind: Any, settings: Mapping[str, Any]) -> Any:
    """`kind(settings)`. Raises `StoreError`, without the values of settings, where these are refused."""
    try:
        return kind(dict(settings))
    except Exception as fault:  # confluent_kafka's own, whose base is Exception
        # Its words name the file that is wrong, never a secret: those are not looked at before they are sent.
        reason = fault.args[0].str() if fault.args and hasattr(fault.args[0], "str") else str(fault)
        raise StoreError(f"Kafka: these settings are refused: {reason}", "the update log cannot be reached") from None


def unavailable(what: str, reason: object = "") -> StoreUnavailable:
    """The fault of a cluster that may heal by itself."""
    return StoreUnavailable(f"Kafka: {what}{f': {reason}' if reason else ''}", "the update log does not answer")


def reason_of(fault: BaseException) -> str:
    """What a `KafkaException`, or the error in it, says in its own words."""
    error: Any = fault.args[0] if getattr(fault, "args", None) else fault
    return f"{error.name()}: {error.str()}" if hasattr(error, "str") else str(fault)


def identity_of(metadata: Any) -> str:
    """The identity of the log: the cluster's own."""
    return f"kafka:{metadata.cluster_id}"
