"""Online updates over Redis Streams, for those who have Redis and no Kafka: one stream per partition of a table.

Needs Redis 6.2 or later, one instance or a cluster. How safe what it has taken is, is a matter of its `appendonly` and
`appendfsync`. A log that went back to an older state, or was emptied, is reported by a delivery with an error.

Where Redis' memory is used up (`maxmemory` with `noeviction`), messages that all readers have applied make room for new
ones; where there are none, producers wait until readers have caught up.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from hebe.embeddings.redis.connection import RedisAccess, parse_addresses
from hebe.embeddings.redis.opening import open_nodes
from hebe.embeddings.store import StoreError, StoreUnavailable
from hebe.embeddings.updates.contract import REPORT_EXPIRY_S, Topic, TopicPartition
from hebe.embeddings.updates.limits import MOST_PARTITIONS, BatchingOptions
from hebe.embeddings.updates.partitioned_source import PartitionedSource
from hebe.embeddings.updates.producer import BatchingProducer
from hebe.embeddings.updates.redis_streams.partition import (
    LogCommands,
    PartitionCommands,
    TopicCommands,
    count_of,
    int_of,
    partition_lags,
)
from hebe.embeddings.updates.redis_streams.source import RedisReading, ask_identity, identity_text
from hebe.spec import SpecError, check_name

_TLS_KINDS: Mapping[str, type[Path] | type[str]] = {
    "tls_ca_certificate": Path,
    "tls_client_certificate": Path,
    "tls_client_key": Path,
    "tls_server_name_identification": str,
}
_LIMIT_KINDS: Mapping[str, type[int] | type[float]] = {
    "num_partitions": int,
    "most_entries": int,
    "most_bytes": int,
    "most_age_s": float,
    "report_expiry_s": float,
}


@dataclass(frozen=True, slots=True)
class RedisStreamsOptions:
    """Where Redis is, and how its logs are kept. Raises ValueError naming a field that is out of range.

    `addresses` are HOST:PORT or unix:PATH, several of a cluster with ";" between them. `num_partitions` are those of
    topics that a producer makes. A partition keeps about `most_entries` messages (0: all) of `most_bytes` together (0:
    all) for `most_age_s` seconds (0: for ever), but always those that a reader has yet to apply, unless
    `trim_uncommitted`: what a reader misses then is reported. A reader that has reported nothing for `report_expiry_s`
    seconds is gone, and nothing is kept for it any longer. Each producer trims what it appends to by its own options.
    """

    addresses: str = "127.0.0.1:6379"
    access: RedisAccess = field(default_factory=RedisAccess)
    num_partitions: int = 16
    most_entries: int = 10_000
    most_bytes: int = 1 << 30
    most_age_s: float = 0.0
    trim_uncommitted: bool = False
    report_expiry_s: float = REPORT_EXPIRY_S

    def __post_init__(self) -> None:
        parse_addresses(self.addresses)
        for name, value, least, most in (
            ("num_partitions", self.num_partitions, 1, MOST_PARTITIONS),
            ("most_entries", self.most_entries, 0, 1 << 40),
            ("most_bytes", self.most_bytes, 0, 1 << 50),
            ("most_age_s", self.most_age_s, 0, 1e9),
            ("report_expiry_s", self.report_expiry_s, 1, 1e9),
        ):
            if not least <= value <= most:
                raise ValueError(f"{name} is {value}: must lie in [{least:g}, {most:g}]")

    @classmethod
    def of_url(cls, url: str) -> RedisStreamsOptions:
        """Of `redis://[USER:PASSWORD@]HOST:PORT`, `rediss://` (TLS) or `unix:///PATH`. Raises ValueError.

        A query `?most_bytes=N&most_entries=N&most_age_s=S&num_partitions=N&report_expiry_s=S` sets these, each where it
        is given, and after rediss:// `tls_ca_certificate=FILE&...` those fields of `RedisAccess`.
        """
        try:
            parts = urlsplit(url)
        except ValueError:  # whose words may tell a password
            raise ValueError("update log redis://...: is no URL; in a password, write / as %2F and so on") from None
        user, password = unquote(parts.username or "default"), unquote(parts.password or "")
        where = parts.netloc.rpartition("@")[2]
        # Without "@" there, it may be the first part of a password that has a character which ends it.
        tells = "@" not in parts.netloc and "@" in parts.path + parts.query + parts.fragment
        shown = f"{parts.scheme}://{'...' if tells else where}"
        if parts.fragment or (parts.scheme != "unix" and parts.path.strip("/") not in ("", "0")):
            raise ValueError(f"update log {shown}: no database or fragment is understood")
        tls: dict[str, Any] = {"enable_tls": True} if parts.scheme == "rediss" else {}
        limits: dict[str, Any] = {}
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name in _LIMIT_KINDS:
                limits[name] = _number(name, value, shown)
            elif not tls or name not in _TLS_KINDS or not value:
                raise ValueError(
                    f"update log {shown}: a query has {', '.join(_LIMIT_KINDS)}, and, only after "
                    f"rediss://, {', '.join(_TLS_KINDS)}, each with its value"
                )
            else:
                tls[name] = _TLS_KINDS[name](value)
        if parts.scheme == "unix":
            return cls(f"unix:{unquote(parts.path)}", RedisAccess(user, password), **limits)
        if parts.scheme not in ("redis", "rediss"):
            raise ValueError(f"update log {shown}: must be redis://, rediss:// or unix://")
        where = where if where.rpartition(":")[1] and where.rpartition(":")[2].isdigit() else f"{where}:6379"
        return cls(where.replace(",", ";"), RedisAccess(user, password, **tls), **limits)


def _number(name: str, value: str, where: str) -> int | float:
    kind = _LIMIT_KINDS[name]
    try:
        return kind(value)
    except ValueError:
        must = "a whole number" if kind is int else "a number"
        raise ValueError(f"update log {where}: {name} is {value[:40]!r}: must be {must}") from None


class RedisStreamsLog:
    """An `UpdateLog` in Redis. Nothing is connected before it is needed."""

    def __init__(self, options: RedisStreamsOptions | None = None) -> None:
        self.options = options or RedisStreamsOptions()
        self._nodes = open_nodes(self.options.addresses, self.options.access)

    def producer(self, options: BatchingOptions | None = None) -> BatchingProducer:
        """See `UpdateLog.producer`."""
        return BatchingProducer(RedisCarrier(self.options), options)

    def identity(self) -> str:
        """See `UpdateLog.identity`."""
        return identity_text(ask_identity(self._nodes))

    def source(self, reader: str | None, topics: Sequence[Topic], *, newest: bool = False) -> PartitionedSource:
        """See `UpdateLog.source`."""
        options = self.options
        nodes = open_nodes(options.addresses, options.access)
        reading = RedisReading(nodes, reader, topics, longest_wait_s=options.access.timeout_s / 2)
        return PartitionedSource(reading, reader, topics, newest=newest)

    def topics(self) -> list[Topic]:
        """See `UpdateLog.topics`."""
        [names] = self._nodes.execute([LogCommands.topics()])
        found = []
        for name in names if isinstance(names, list) else []:
            assert isinstance(name, bytes)
            model, _, table = name.decode(errors="replace").partition("/")
            try:
                check_name("model", model)
                check_name("table", table)
            except SpecError:
                continue  # not written by us
            found.append(Topic(model, table))
        return sorted(found)

    def readers(self) -> list[str]:
        """See `UpdateLog.readers`: those whose reports have not expired."""
        reports = [found for topic in self.topics() for found in self._reports(topic).values()]
        return sorted(set().union(*reports))

    def reader_lag(self, reader: str) -> Mapping[TopicPartition, int]:
        """See `UpdateLog.reader_lag`."""
        check_name("reader", reader)
        lags: dict[TopicPartition, int] = {}
        for topic in self.topics():
            offsets = {at: reported.get(reader) for at, reported in self._reports(topic).items()}
            if any(offset is not None for offset in offsets.values()):
                lags.update(partition_lags(self._nodes, {at: offset or 0 for at, offset in offsets.items()}))
        return lags

    def forget_reader(self, reader: str) -> bool:
        """Raises `StoreError`: a report expires by itself."""
        raise StoreError(
            f"Redis: what reader {reader} has reported expires by itself, after {self.options.report_expiry_s:g} s "
            "without a report; then the log is trimmed as new messages come"
        )

    def close(self) -> None:
        """See `UpdateLog.close`."""
        self._nodes.close()

    def _reports(self, topic: Topic) -> dict[TopicPartition, dict[str, int]]:
        """By partition and reader, up to which offset its store is."""
        [count] = self._nodes.execute([TopicCommands(topic).partitions()])
        parts = [TopicPartition(topic.model, topic.table, part) for part in range(count_of(count))]
        expiry_ms = round(1000 * self.options.report_expiry_s)
        answers = self._nodes.execute([PartitionCommands(at).reports(expiry_ms) for at in parts])
        reports: dict[TopicPartition, dict[str, int]] = {}
        for at, answer in zip(parts, answers, strict=True):
            pairs = answer if isinstance(answer, list) else []
            names = [name.decode(errors="replace") for name in pairs[::2] if isinstance(name, bytes)]
            reports[at] = dict(zip(names, map(int_of, pairs[1::2]), strict=True))
        return reports


class RedisCarrier:
    """The `UpdateCarrier` of Redis Streams. A message is in the log when `append` returns."""

    def __init__(self, options: RedisStreamsOptions) -> None:
        self._options = options
        self._nodes = open_nodes(options.addresses, options.access)
        self._counts: dict[Topic, int] = {}
        self._parts: dict[TopicPartition, PartitionCommands] = {}
        self._unsure: set[Topic] = set()

    def partitions(self, topic: Topic) -> int:
        """See `UpdateCarrier.partitions`."""
        commands = TopicCommands(topic)
        wanted = [commands.partitions(), LogCommands.has_topic(topic)]
        wanted += [LogCommands.identity(secrets.token_hex(8).encode())]
        count, is_known, _ = self._nodes.execute(wanted)
        if count is None or not is_known:  # only then, as a Redis without memory left refuses it
            made = [commands.set_partitions(self._options.num_partitions), commands.partitions()]
            count = self._nodes.execute([*made, LogCommands.add_topic(topic)])[1]
        count = count_of(count)
        self._unsure.discard(topic)
        known = self._counts.setdefault(topic, count)
        if known != count:
            raise StoreError(
                f"Redis: table {topic.table} of model {topic.model} had {known} partitions, now it has {count}: "
                "it is another log; restart the producer too"
            )
        return count

    def append(self, at: TopicPartition, payload: bytes) -> None:
        """See `UpdateCarrier.append`."""
        part = self._parts.get(at)
        if part is None:
            part = self._parts[at] = PartitionCommands(at)
        options = self._options
        age_ms = round(1000 * options.most_age_s)
        limits = options.most_entries, options.most_bytes, age_ms, options.trim_uncommitted
        expiry_ms = round(1000 * options.report_expiry_s)
        [first] = self._nodes.execute([part.append(payload, *limits, expiry_ms)])
        if first == 2:
            raise StoreUnavailable(
                f"Redis {options.addresses}: its memory is used up, and no message that all readers have applied is "
                "left to make room: let servers catch up, wait until the reports of those that are gone expire "
                "(report_expiry_s), or raise its maxmemory (OOM)",
                "the update log is full",
            )
        if first == 1:  # Redis may have been emptied: then the topic's number of partitions went with the rest
            self._unsure.add(at.topic)
        while self._unsure:
            self.partitions(next(iter(self._unsure)))

    def flush(self, timeout_s: float) -> None:
        """See `UpdateCarrier.flush`."""

    def unconfirmed(self) -> tuple[()]:
        """See `UpdateCarrier.unconfirmed`."""
        return ()

    def close(self) -> None:
        """See `UpdateCarrier.close`."""
        self._nodes.close()
