import select
import socket
import threading
import time

import pytest
import redis
from redis._parsers.resp2 import _RESP2Parser

from hebe.embeddings.redis import deadline as redis_deadline
from hebe.embeddings.redis.connection import RedisAccess, RedisAddress
from hebe.embeddings.redis.deadline import connection_options, deadline, packed, pool_of
from tests.servers.redis_servers import RedisServer, make_certificates

PING = [(b"PING",)]


def within(wait_s=30.0):
    return deadline(time.monotonic() + wait_s)


@pytest.fixture
def server():
    with RedisServer() as server:
        yield server


def pool_for(address, **fields):
    return pool_of(RedisAddress.parse(address), connection_options(RedisAccess(**fields)))


def ping(connection):
    connection.send_packed_command(packed(connection, PING))
    assert connection.read_response() == b"PONG"


def test_connections_are_used_again_and_are_never_more_than_allowed(server):
    pool = pool_for(server.address, num_node_connections=2)
    with within():
        first, second = pool.get_connection(), pool.get_connection()
        with deadline(time.monotonic() + 0.01), pytest.raises(redis.ConnectionError, match="No connection available"):
            pool.get_connection()
        pool.release(first)
        assert pool.get_connection() is first
        ping(first)
        ping(second)
    pool.disconnect()


def test_who_waits_gets_the_connection_that_is_given_back(server):
    pool = pool_for(server.address, num_node_connections=1)
    with within():
        connection = pool.get_connection()
        timer = threading.Timer(0.05, pool.release, [connection])
        timer.start()
        assert pool.get_connection() is connection
    timer.join()
    pool.disconnect()


def test_connections_that_the_server_has_closed_are_made_anew(server):
    pool = pool_for(server.address)
    with within():
        pool.release(pool.get_connection())
        server.restart()
        connection = pool.get_connection()
        ping(connection)
    connection.disconnect()


def test_a_failed_connection_takes_no_place(server):
    pool = pool_for(server.address, num_node_connections=1)
    server.kill()
    with within():
        for _ in range(3):
            with pytest.raises(redis.ConnectionError, match="refused"):
                pool.get_connection()
        server.start()
        ping(pool.get_connection())
    pool.disconnect()


def test_the_deadline_is_that_of_the_exchange_and_not_of_the_connection(server):
    """A connection that was made with time to spare is used again with little."""
    pool = pool_for(server.address)
    with within():
        pool.release(pool.get_connection())
    server.pause()
    begin_s = time.monotonic()
    with within(0.2):
        connection = pool.get_connection()
        connection.send_packed_command(packed(connection, PING))
        with pytest.raises(redis.TimeoutError):
            connection.read_response()
    assert 0.15 < time.monotonic() - begin_s < 10.0
    server.resume()
    pool.release(connection)
    with within():
        ping(pool.get_connection())
    pool.disconnect()


@pytest.mark.parametrize("parser", [{}, {"parser_class": _RESP2Parser}])
def test_replies_that_come_together(server, parser):
    pool = pool_of(RedisAddress.parse(server.address), connection_options(RedisAccess()) | parser)
    large = bytes(range(256)) * 4000
    requests = [
        (b"PING",),
        (b"GET", b"none"),
        (b"SET", b"a", large),
        (b"MGET", b"a", b"b"),
        (b"STRLEN", b"a"),
        (b"OOPS",),
    ]
    with within():
        connection = pool.get_connection()
        for _ in range(3):
            connection.send_packed_command(packed(connection, requests))
            *replies, refused = [connection.next_reply() for _ in requests]
            assert replies == [b"PONG", None, b"OK", [large, None], len(large)]
            assert isinstance(refused, redis.ResponseError)
            assert "OOPS" in str(refused)
    pool.disconnect()


@pytest.mark.parametrize(
    ("second", "raises"),
    [
        (b"", redis.TimeoutError),
        (b"$100\r\nsome of it", redis.TimeoutError),
        (b"-LOADING it will take a while\r\n", redis.BusyLoadingError),
        (b"<html>", redis.InvalidResponse),
    ],
)
def test_what_a_server_says_instead_of_a_reply(second, raises):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        pool = pool_for(f"127.0.0.1:{listening.getsockname()[1]}")
        begin_s = time.monotonic()
        with within(0.5):
            connection = pool.get_connection()
            server, _ = listening.accept()
            with server:
                server.sendall(b"+OK\r\n" + second)
                assert connection.next_reply() == b"OK"
                with pytest.raises(raises):
                    connection.next_reply()
        assert time.monotonic() - begin_s < 10.0
        pool.disconnect()


def test_a_login_that_is_not_answered_ends_by_the_deadline():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pool = pool_for(f"127.0.0.1:{silent.getsockname()[1]}", password="geheim")
        begin_s = time.monotonic()
        with within(0.2), pytest.raises(redis.TimeoutError):
            pool.get_connection()
        assert 0.15 < time.monotonic() - begin_s < 10.0


def test_a_share_of_what_is_left(server):
    pool = pool_for(server.address)
    server.pause()
    begin_s = time.monotonic()
    with deadline(begin_s + 30.0, share=0.01):
        connection = pool.get_connection()
        connection.send_packed_command(packed(connection, PING))
        with pytest.raises(redis.TimeoutError):
            connection.read_response()
    assert 0.2 < time.monotonic() - begin_s < 20.0


def test_deadlines_are_those_of_the_thread(server):
    pool = pool_for(server.address)
    waits = []

    def other():
        with deadline(time.monotonic() + 1000.0):
            waits.append(pool.timeout)

    with within():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        waits.append(pool.timeout)
    assert waits[0] > 900.0
    assert waits[1] < 31.0


def test_a_refused_password_is_not_repeated():
    with RedisServer(users={"hebe": "right"}) as server, within():
        pool = pool_for(server.address, user_name="hebe", password="geheim")
        with pytest.raises(redis.AuthenticationError) as raised:
            pool.get_connection()
        assert "geheim" not in f"{raised.value}{pool!r}"


@pytest.mark.parametrize("library", [True, False])
def test_packed_commands(monkeypatch, library):
    if not library:
        monkeypatch.setattr(redis_deadline, "_pack_command", None)
    large = bytes(range(256)) * 300
    connection = redis.Connection()
    wire = b"".join(packed(connection, [(b"GET", b"a b"), (b"SET", b"", large), (b"PING",)]))
    assert wire == (
        b"*2\r\n$3\r\nGET\r\n$3\r\na b\r\n*3\r\n$3\r\nSET\r\n$0\r\n\r\n$76800\r\n" + large + b"\r\n*1\r\n$4\r\nPING\r\n"
    )


def test_session_tickets_do_not_make_a_connection_unusable(tmp_path):
    """They come after the handshake, and on a busy machine before the pool looks whether a new connection is silent."""
    files = make_certificates(tmp_path)
    options = {
        "enable_tls": True,
        "tls_ca_certificate": files.authority,
        "tls_client_certificate": files.client_certificate,
        "tls_client_key": files.client_key,
    }
    with RedisServer(tls=files) as server, within():
        pool = pool_for(server.address, **options)
        connection = pool.make_connection()
        connection.connect()
        assert select.select([connection._sock], [], [], 30.0)[0], "they have come"
        assert not connection.can_read()
        ping(connection)
        connection.send_packed_command(packed(connection, PING))
        assert select.select([connection._sock], [], [], 30.0)[0]
        assert connection.can_read(), "a reply that nobody has taken"
        connection.disconnect()
        connection.connect()
        ping(connection)
        assert not connection.can_read()
        server.kill()
        assert select.select([connection._sock], [], [], 30.0)[0]
        with pytest.raises(redis.ConnectionError):
            connection.can_read()
        pool.disconnect()
