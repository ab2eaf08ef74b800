import socket
import threading
import time
from pathlib import Path

import pytest

from hebe.embeddings.redis_connection import (
    ConnectionPool,
    RedisAccess,
    RedisAddress,
    error_of,
    fault_of,
    parse_addresses,
)
from hebe.embeddings.redis_protocol import Command, ErrorReply, command
from hebe.embeddings.store import StoreError, StoreUnavailable

from ..redis_servers import RedisServer

PING = Command(0, command(b"PING"))
SOON = 20.0


def deadline(wait_s=SOON):
    return time.monotonic() + wait_s


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


def test_a_password_is_not_shown():
    assert "geheim" not in repr(RedisAccess(password="geheim"))


def test_what_servers_say_becomes_the_right_error():
    address = RedisAddress("h", 1)
    for code in ("LOADING", "CLUSTERDOWN", "MASTERDOWN", "READONLY"):
        fault = error_of(address, ErrorReply(code, "for now"))
        assert isinstance(fault, StoreUnavailable)
        assert f"Redis h:1: {code} for now" in str(fault)
    for code, text in (("ERR", "unknown command"), ("NOPERM", "no"), ("OOM", "command not allowed")):
        assert not isinstance(error_of(address, ErrorReply(code, text)), StoreUnavailable)
    for fault in (TimeoutError(), EOFError(), ConnectionRefusedError(111, "refused")):
        assert isinstance(fault_of(address, fault, 0.5), StoreUnavailable)


class TestPool:
    @pytest.fixture
    def server(self):
        with RedisServer() as server:
            yield server

    def pool(self, server, **fields):
        return ConnectionPool(RedisAddress.parse(server.address), RedisAccess(**fields), None)

    def ping(self, connection):
        connection.send([PING.request], deadline())
        assert connection.receive(PING) == b"PONG"

    def test_connections_are_used_again_and_are_never_more_than_allowed(self, server):
        pool = self.pool(server, num_node_connections=2)
        first, second = pool.take(deadline()), pool.take(deadline())
        with pytest.raises(StoreUnavailable, match="all 2 connections are in use"):
            pool.take(deadline(0.01))
        pool.give_back(first)
        assert pool.take(deadline()) is first
        pool.drop(first)
        third = pool.take(deadline())
        self.ping(third)
        pool.give_back(third)
        pool.give_back(second)
        pool.close()

    def test_who_waits_gets_the_connection_that_is_given_back(self, server):
        pool = self.pool(server, num_node_connections=1)
        connection = pool.take(deadline())
        timer = threading.Timer(0.05, pool.give_back, [connection])
        timer.start()
        assert pool.take(deadline()) is connection
        timer.join()
        pool.give_back(connection)
        pool.close()

    def test_connections_that_the_server_has_closed_are_not_used(self, server):
        pool = self.pool(server)
        connection = pool.take(deadline())
        pool.give_back(connection)
        server.restart()
        fresh = pool.take(deadline())
        assert fresh is not connection
        self.ping(fresh)
        pool.give_back(fresh)
        pool.close()

    def test_a_connection_given_back_after_closing_is_closed(self, server):
        pool = self.pool(server)
        connection = pool.take(deadline())
        pool.close()
        pool.give_back(connection)
        with pytest.raises(OSError, match="Bad file descriptor"):
            self.ping(connection)

    def test_a_failed_connection_takes_no_place(self, server):
        pool = self.pool(server, num_node_connections=1)
        server.kill()
        for _ in range(3):
            with pytest.raises(ConnectionRefusedError):
                pool.take(deadline())
        server.start()
        connection = pool.take(deadline())
        self.ping(connection)
        pool.drop(connection)


def test_a_server_that_drips_bytes_costs_no_more_than_the_deadline():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def drip():
            client, _ = listener.accept()
            with client:
                while not stop.wait(0.01):
                    client.send(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        address = RedisAddress("127.0.0.1", listener.getsockname()[1])
        connection = ConnectionPool(address, RedisAccess(), None).take(deadline())
        connection.send([PING.request], deadline(0.2))
        with pytest.raises(TimeoutError):
            connection.receive(PING)
        stop.set()
        thread.join()
        connection.close()


def test_a_refused_password_is_not_repeated():
    with RedisServer(users={"hebe": "right"}) as server:
        pool = ConnectionPool(
            RedisAddress.parse(server.address), RedisAccess(user_name="hebe", password="geheim"), None
        )
        with pytest.raises(StoreError, match=r"WRONGPASS \(user_name hebe and password refused\)") as raised:
            pool.take(deadline())
        assert "geheim" not in str(raised.value)
