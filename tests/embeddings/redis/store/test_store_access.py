"""TLS, users and passwords between a store and its Redis."""

import shutil

import numpy as np
import pytest

from hebe.embeddings.redis.connection import RedisAccess
from hebe.embeddings.store import StoreError, StoreUnavailable
from tests.embeddings.stores.redis_stores import fetched, put
from tests.servers.redis_servers import RedisServer, make_certificates


def tls_access(tls_files, **fields):
    given = {
        "timeout_s": 30.0,
        "enable_tls": True,
        "tls_ca_certificate": tls_files.authority,
        "tls_client_certificate": tls_files.client_certificate,
        "tls_client_key": tls_files.client_key,
    }
    return RedisAccess(**{**given, **fields})


def test_tls_user_and_password(open_redis, tls_files):
    with RedisServer(tls=tls_files, users={"hebe": "geheim"}) as server:
        access = tls_access(tls_files, user_name="hebe", password="geheim")
        store = open_redis(server, access=access)
        keys = np.arange(3000)
        put(store, keys)
        assert fetched(store, keys).all()
        name = tls_access(tls_files, user_name="hebe", password="geheim", tls_server_name_identification="localhost")
        assert open_redis(server, access=name).size("users") == 0


def test_authorities_in_a_directory(open_redis, tls_files, tmp_path):
    """HPS' documentation has it: all valid certificates of the directory count."""
    for name in ("one", "trusted"):
        (tmp_path / name).mkdir()
    shutil.copy(make_certificates(tmp_path / "one").authority, tmp_path / "trusted" / "another.pem")
    (tmp_path / "trusted" / "notes.txt").write_text("no certificate")
    with RedisServer(tls=tls_files) as server:
        with pytest.raises(StoreError, match="certificate is not accepted"):
            open_redis(server, access=tls_access(tls_files, tls_ca_certificate=tmp_path / "trusted")).size("users")
        shutil.copy(tls_files.authority, tmp_path / "trusted" / "ours.pem")
        store = open_redis(server, access=tls_access(tls_files, tls_ca_certificate=tmp_path / "trusted"))
        assert store.size("users") == 0


def test_tls_that_does_not_fit(open_redis, tls_files, tmp_path):
    others = make_certificates(tmp_path)
    with RedisServer(tls=tls_files) as server:
        for fields, expected, message in (
            ({"tls_ca_certificate": others.authority}, StoreError, "certificate is not accepted"),
            (
                {"tls_server_name_identification": "else.where"},
                StoreError,
                "certificate is not accepted: .*else.where",
            ),
            ({"tls_client_certificate": None, "tls_client_key": None}, StoreUnavailable, "Redis 127.0.0.1"),
            ({"enable_tls": False}, StoreError, "Redis 127.0.0.1"),
        ):
            with pytest.raises(expected, match=message):
                open_redis(server, access=tls_access(tls_files, **fields)).size("users")


def test_a_server_without_tls_where_it_is_asked_for(open_redis, tls_files):
    message = "has not answered the TLS handshake within 0.3 s: it is stalled, or speaks no TLS"
    with RedisServer() as plain, pytest.raises(StoreUnavailable, match=message):
        open_redis(plain, access=tls_access(tls_files, timeout_s=0.3)).size("users")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"user_name": "hebe", "password": "wrong-one"}, "WRONGPASS"),
        ({"user_name": "nobody", "password": "geheim"}, "WRONGPASS"),
        ({"password": "geheim"}, "WRONGPASS"),
        ({}, "NOAUTH"),
    ],
)
def test_refused_users(open_redis, fields, code):
    with RedisServer(users={"hebe": "geheim"}) as server:
        store = open_redis(server, access=RedisAccess(timeout_s=30.0, **fields))
        with pytest.raises(StoreError, match=code) as raised:
            put(store, [1])
        assert not isinstance(raised.value, StoreUnavailable)
        for secret in ("geheim", "wrong-one"):
            assert secret not in f"{raised.value}{raised.value.client_message}"


def test_a_user_who_may_not_write(open_redis):
    with RedisServer(users={"hebe": "a"}) as server:
        with server.client() as client:
            client.acl_setuser("reader", True, passwords="+b", keys="*", commands=["+@read", "+cluster|slots"])
        store = open_redis(server, access=RedisAccess(timeout_s=30.0, user_name="reader", password="b"))
        assert not fetched(store, [1]).any()
        with pytest.raises(StoreError, match="NOPERM"):
            put(store, [1])


def test_a_password_of_the_default_user(open_redis):
    with RedisServer(users={"default": "geheim"}) as server:
        store = open_redis(server, access=RedisAccess(timeout_s=30.0, password="geheim"))
        put(store, [1])
        assert fetched(store, [1]).all()
