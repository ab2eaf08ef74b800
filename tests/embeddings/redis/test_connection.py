import sys
from pathlib import Path

import pytest

from hebe.embeddings.redis.connection import RedisAccess, RedisAddress, parse_addresses
from hebe.embeddings.redis.opening import open_nodes
from hebe.embeddings.store import StoreError


def test_addresses():
    assert parse_addresses("127.0.0.1:7000, a.b:1;[::1]:65535,unix:/run/r.sock,a.b:1") == (
        RedisAddress("127.0.0.1", 7000),
        RedisAddress("a.b", 1),
        RedisAddress("::1", 65535),
        RedisAddress("/run/r.sock", 0),
    )
    assert [str(each) for each in parse_addresses(["[::1]:1", "unix:/x", "h:2"])] == ["[::1]:1", "unix:/x", "h:2"]


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x", "unix:", "host:١"])
def test_what_is_no_address(text):
    with pytest.raises(ValueError, match="must be HOST:PORT or unix:PATH"):
        parse_addresses(text)


@pytest.mark.parametrize(
    "text",
    [
        "redis://:secret@127.0.0.1:6399", "redis://:secret@cache", "me:secret@cache:1", "me:secret,@cache:1",
        "me:secret;1@cache:1", "secret /cache:1", "cache:1,me:secret@other:1", "secret cache:1", "redis://secret:1",
    ],
)  # fmt: skip
def test_a_url_is_refused_without_its_password(text):
    """Were it taken for a host, the log and /v2/status would tell it."""
    for address in (text, [text]):
        with pytest.raises(
            ValueError, match="must be HOST:PORT or unix:PATH, without scheme, user, password"
        ) as raised:
            parse_addresses(address)
        assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_node_connections": 0}, "num_node_connections is 0: must be at least 1"),
        ({"timeout_s": 0.0}, "timeout_s is 0.0: must be above 0"),
        ({"timeout_s": float("nan")}, "timeout_s is nan: must be above 0"),
        ({"tls_client_key": Path("k")}, "tls_client_certificate and tls_client_key go together"),
    ],
)
def test_fields_out_of_range(fields, message):
    with pytest.raises(ValueError, match=message):
        RedisAccess(**fields)


def test_files_of_tls_that_cannot_be_used(tmp_path):
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    for file in (bad, tmp_path / "none.pem"):
        with pytest.raises(ValueError, match=f"tls_ca_certificate {file}"):
            RedisAccess(enable_tls=True, tls_ca_certificate=file).tls_context()
        with pytest.raises(ValueError, match=f"tls_client_certificate {file}"):
            RedisAccess(enable_tls=True, tls_client_certificate=file, tls_client_key=file).tls_context()
    assert RedisAccess(tls_ca_certificate=bad).tls_context() is None


def test_a_directory_of_authorities_without_a_certificate_is_told(tmp_path):
    (tmp_path / "notes.txt").write_text("no certificate")
    (tmp_path / "sub").mkdir()
    with pytest.raises(ValueError, match=f"tls_ca_certificate {tmp_path}: no file of this directory is a certificate"):
        RedisAccess(enable_tls=True, tls_ca_certificate=tmp_path).tls_context()


def test_a_password_is_not_shown():
    assert "geheim" not in repr(RedisAccess(password="geheim"))


def test_a_unix_socket_is_no_way_into_a_cluster():
    with pytest.raises(ValueError, match="a Unix socket leads to one instance, not to a cluster"):
        open_nodes("unix:/run/redis.sock,127.0.0.1:7000", RedisAccess())


def test_a_missing_library_is_named(monkeypatch):
    for name in ("redis", "redis.cluster", "redis.connection", "redis.exceptions"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("nodes", "deadline", "faults"):
        monkeypatch.delitem(sys.modules, f"hebe.embeddings.redis.{name}", raising=False)
    with pytest.raises(StoreError, match=r"pip install 'hebe-serve\[redis\]'"):
        open_nodes("127.0.0.1:7000", RedisAccess())
