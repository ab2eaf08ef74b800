import contextlib
import re
import subprocess
import sys
from functools import partial
from urllib.parse import urlencode

import pytest

from hebe.embeddings.config.hierarchy_config import ConfigError, UpdateConfig, UpdateType
from hebe.embeddings.store import StoreError
from hebe.embeddings.updates.contract import Topic
from hebe.embeddings.updates.directory.log import LogDirectory, LogDirectoryOptions
from hebe.embeddings.updates.kafka.log import KafkaLog
from hebe.embeddings.updates.opening import open_configured_log, open_update_log
from hebe.embeddings.updates.redis_streams.log import RedisStreamsLog
from tests.embeddings.updates.conformance.update_conformance import push, tables_of, take_rows
from tests.servers.redis_servers import RedisServer, make_certificates


def test_a_directory_is_a_log(tmp_path):
    log = open_update_log(str(tmp_path / "log"), directory=LogDirectoryOptions(partitions=7))
    assert isinstance(log, LogDirectory)
    assert log.partitions == 7
    expected = push(log, range(10))
    again = open_update_log(f"file://{tmp_path}/l%6Fg")
    source = again.source(None, [Topic("m", "users")])
    assert tables_of(take_rows(source, 10)) == {"users": expected}
    source.close()
    assert open_update_log(f"FILE://localhost{tmp_path}/log").identity() == log.identity()


@pytest.mark.parametrize(
    ("url", "addresses", "user_name", "password", "tls"),
    [
        ("redis://cache", "cache:6379", "default", "", False),
        ("redis://cache:7000,other:7001", "cache:7000;other:7001", "default", "", False),
        ("rediss://me:p%40ss@cache:7000", "cache:7000", "me", "p@ss", True),
        ("rediss://cache?tls_server_name_identification=me@cache", "cache:6379", "default", "", True),
        ("unix:///run/redis%20x.sock", "unix:/run/redis x.sock", "default", "", False),
    ],
)
def test_redis_by_its_url(url, addresses, user_name, password, tls):
    for log, expected in (
        (open_update_log(url), password),
        (open_update_log(url, password="of a file"), "of a file"),
    ):
        assert isinstance(log, RedisStreamsLog)
        access = log.options.access
        assert (log.options.addresses, access.user_name, access.password) == (addresses, user_name, expected)
        assert access.enable_tls == tls
        log.close()


def test_how_much_a_log_in_redis_keeps_is_said_by_its_url():
    query = "most_bytes=5000&most_entries=7&most_age_s=2.5&num_partitions=3"
    for url in (f"redis://cache?{query}", f"rediss://cache?{query}", f"unix:///run/redis.sock?{query}"):
        for log in (open_update_log(url), open_configured_log(UpdateConfig(UpdateType.REDIS_STREAMS, url))):
            assert isinstance(log, RedisStreamsLog)
            options = log.options
            assert (options.most_bytes, options.most_entries) == (5000, 7)
            assert (options.most_age_s, options.num_partitions) == (2.5, 3)
            log.close()


def test_kafka_by_its_url():
    security = {"security.protocol": "ssl", "ssl.ca.location": "/ca.pem"}
    log = open_update_log("kafka://one:9092,other:9093", security=security)
    assert isinstance(log, KafkaLog)
    assert (log.options.brokers, log.options.security) == ("one:9092;other:9093", security)
    assert log.options.client_settings["ssl.ca.location"] == "/ca.pem"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "its address is empty; give a directory, redis://HOST:PORT"),
        ("file://elsewhere/log", "give file:///DIRECTORY, of this machine"),
        ("http://me:secret@x", "http://...: there is no such kind; give a directory"),
        ("amqp://me:secret@x", "there is no such kind"),
        ("redis://me:secret@cache:7000/3", "redis://cache:7000: no database"),
        ("redis://me:secret@cache:70000", "HOST:PORT"),
        ("redis://me:secret@cache:7000?tls_client_key=x", "and, only after rediss://"),
        ("unix:///run/redis.sock?tls_client_key=x", "and, only after rediss://"),
        ("rediss://me:secret@cache:7000?tls_key=x", "a query has num_partitions, most_entries, most_bytes, most_age_s"),
        ("redis://me:secret@cache:7000?most_bytes=1G", "most_bytes is '1G': must be a whole number"),
        ("redis://me:secret@cache:7000?most_bytes=-1", "most_bytes is -1: must lie in [0, "),
        ("unix:///run/redis.sock?most_age_s=", "most_age_s is '': must be a number"),
        ("rediss://me:secret@cache:7000?tls_client_key=", "each with its value"),
        ("rediss://me:secret@cache:7000?tls_client_key=x", "tls_client_certificate and tls_client_key go together"),
        ("rediss://me:secret@cache:7000?tls_ca_certificate=/nowhere", "tls_ca_certificate /nowhere: "),
        ("redis://:secret/word@cache:7000", "redis://...: no database"),
        ("redis://:secret#word@cache:7000", "redis://...: no database"),
        ("rediss://me:secret?word@cache:7000", "rediss://...: a query has num_partitions"),
        (
            "redis://:secret?most_bytes=x@cache:7000",
            "redis://...: most_bytes is 'x@cache:7000': must be a whole number",
        ),
        ("redis://me:[secret]@cache:7000", "redis://...: is no URL; in a password, write / as %2F"),
        ("redis://me:secret\u2100@cache:7000", "redis://...: is no URL"),
        ("kafka://me:secret@one:9092", "settings of its client, not of the URL"),
        ("kafka://one", "must be HOST:PORT"),
    ],
)
def test_what_is_no_log_is_said_without_its_password(url, said):
    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        open_update_log(url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.3:9092", "[::1]:6379", "one:9092,other:9092", "me:secret@cache:6379", "cache:6379/0",
        "redis:/cache:6379", "redis:cache", "redis:cache:6379", "unix:/run/redis.sock", "kafka:/one:9092,other:9092",
    ],
)  # fmt: skip
def test_an_address_without_its_scheme_is_no_directory(tmp_path, monkeypatch, address):
    """The pusher would be told that its rows are in the log, and no server would ever see them."""
    monkeypatch.chdir(tmp_path)
    for opened in (open_update_log, lambda at: open_configured_log(UpdateConfig(UpdateType.LOG_DIRECTORY, at))):
        with pytest.raises(ValueError, match=r"give kafka://HOST:PORT or redis://HOST:PORT") as raised:
            opened(address)
        assert "secret" not in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_a_directory_with_a_name_like_an_address(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    identity = open_update_log("./cache:6379").identity()
    assert open_update_log("cache:6379").identity() == identity, "it is there already"
    for name in ("../updates:1", str(tmp_path / "updates:1"), "updates", "updates/of:1", "updates.10:00:x"):
        assert isinstance(open_update_log(name), LogDirectory)


@pytest.mark.parametrize(("buffer_bytes", "most_bytes"), [(1024, 1_000_000), (8_388_608, 8_389_632)])
def test_what_may_be_received_is_hps_receive_buffer_or_what_trainers_send(buffer_bytes, most_bytes):
    """HPS gives Kafka so much, and 1024, as the largest message; it is no buffer of a socket."""
    config = UpdateConfig(UpdateType.KAFKA, "one:9092", receive_buffer_size=buffer_bytes)
    log = open_configured_log(config)
    assert isinstance(log, KafkaLog)
    assert log.options.most_message_bytes == most_bytes
    assert not any("socket.receive" in name for name in log.options.client_settings)


def test_a_log_of_a_configuration(tmp_path):
    (tmp_path / "password").write_text("of a file\n")
    log = open_configured_log(UpdateConfig(UpdateType.LOG_DIRECTORY, str(tmp_path / "log")))
    assert isinstance(log, LogDirectory)
    password_file = str(tmp_path / "password")
    for address, addresses, tls in (
        ("one:7000;other:7000", "one:7000;other:7000", False),
        ("unix:/run/redis.sock", "unix:/run/redis.sock", False),
        ("rediss://me@one:7000", "one:7000", True),
    ):
        log = open_configured_log(UpdateConfig(UpdateType.REDIS_STREAMS, address, password_file=password_file))
        assert isinstance(log, RedisStreamsLog)
        assert (log.options.addresses, log.options.access.password) == (addresses, "of a file")
        assert log.options.access.enable_tls == tls
        log.close()
    (tmp_path / "kafka").write_text("security.protocol = ssl\n")
    for address in ("one:9092;other:9093", "kafka://one:9092,other:9093"):
        log = open_configured_log(
            UpdateConfig(
                UpdateType.KAFKA, address, metadata_refresh_interval_ms=77, security_file=str(tmp_path / "kafka")
            )
        )
        assert isinstance(log, KafkaLog)
        assert log.options.security == {"security.protocol": "ssl"}
        assert (log.options.brokers, log.options.metadata_refresh_interval_ms) == ("one:9092;other:9093", 77)


def test_redis_with_certificates_of_its_own(tls_files, tmp_path):
    files = {
        "tls_ca_certificate": str(tls_files.authority),
        "tls_client_certificate": str(tls_files.client_certificate),
        "tls_client_key": str(tls_files.client_key),
    }
    named = {**files, "tls_server_name_identification": "localhost"}
    with RedisServer(tls=tls_files, users={"hebe": "geheim"}) as server:
        (tmp_path / "password").write_text("geheim\n")
        password_file, address = str(tmp_path / "password"), server.address
        redis = partial(UpdateConfig, UpdateType.REDIS_STREAMS, password_file=password_file)
        logs = [
            open_update_log(f"rediss://hebe:geheim@{address}?{urlencode(files)}"),
            open_configured_log(redis(f"rediss://hebe@{address}", **named)),
            open_configured_log(redis(f"redis://hebe@{address}", enable_tls=True, **files)),
            open_configured_log(redis(f"rediss://hebe@{address}?{urlencode(named)}")),
        ]
        expected = push(logs[0], range(10))
        for log in logs:
            with contextlib.closing(log), contextlib.closing(log.source(None, [Topic("m", "users")])) as source:
                assert tables_of(take_rows(source, 10)) == {"users": expected}
        for wrong in (
            {"tls_ca_certificate": make_certificates(tmp_path).authority},
            {"tls_server_name_identification": "else.where"},
        ):
            strange = open_configured_log(redis(f"rediss://hebe@{address}", **{**files, **wrong}))
            with contextlib.closing(strange), pytest.raises(StoreError, match="certificate is not accepted"):
                strange.topics()


def test_a_configuration_that_contradicts_itself():
    with pytest.raises(ValueError, match=r"redis://\.\.\.: is no kafka_message_queue"):
        open_configured_log(UpdateConfig(UpdateType.KAFKA, "redis://me:secret@one:7000"))
    with pytest.raises(ConfigError, match="password_file /nowhere"):
        open_configured_log(UpdateConfig(UpdateType.REDIS_STREAMS, "one:7000", password_file="/nowhere"))


def test_a_directory_is_not_made_by_who_only_reads(tmp_path):
    for address in (str(tmp_path / "none"), f"file://{tmp_path}/none"):
        with pytest.raises(StoreError, match="there is no log; it is made by who writes to it first"):
            open_update_log(address, create=False)
        with pytest.raises(StoreError, match="there is no log"):
            open_configured_log(UpdateConfig(UpdateType.LOG_DIRECTORY, address), create=False)
    assert not (tmp_path / "none").exists()
    identity = open_update_log(str(tmp_path / "log")).identity()
    assert open_update_log(str(tmp_path / "log"), create=False).identity() == identity


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(StoreError, match=r"pip install 'hebe-serve\[kafka\]'"):
        open_update_log("kafka://one:9092")


def test_what_carries_a_log_is_imported_only_when_it_is_named(tmp_path):
    code = (
        "import sys; from hebe.embeddings.updates.opening import open_update_log; open_update_log(sys.argv[1]);"
        "print([name for name in ('confluent_kafka', 'redis', 'hebe.embeddings.updates.redis_streams.log')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "log"], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
