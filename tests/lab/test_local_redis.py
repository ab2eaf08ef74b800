import os
import shutil
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

from hebe.embeddings.options import VolatileOptions
from hebe.embeddings.redis.connection import RedisAccess
from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.store import StoreUnavailable
from hebe_lab import local_redis as module
from hebe_lab.local_redis import local_redis, redis_is_installed
from tests.servers.redis_servers import wait_until

KEPT = """
import os, sys
from hebe_lab.local_redis import local_redis
with local_redis() as address:
    print(address, flush=True)
    sys.stdin.read()
"""


def store_at(address):
    return RedisStore({"t": 4}, address, VolatileOptions(4), namespace="local", access=RedisAccess(timeout_s=30.0))


def answers(store):
    try:
        store.size("t")
    except StoreUnavailable:
        return False
    return True


@pytest.mark.parametrize("nodes", [1, 3])
def test_it_is_empty_takes_rows_and_is_gone_afterwards(nodes):
    assert redis_is_installed()
    keys, rows = np.arange(100), np.arange(400, dtype=np.float32).reshape(100, 4)
    with local_redis(nodes) as address:
        store = store_at(address)
        assert store.size("t") == 0
        store.insert("t", keys, rows)
        got, found = np.zeros_like(rows), np.zeros(100, np.bool_)
        assert store.query("t", keys, got, found) == 100
        assert np.array_equal(got, rows)
    with pytest.raises(StoreUnavailable):
        store.size("t")
    store.close()


def test_a_socket_that_is_there_takes_no_connections_yet(tmp_path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "redis.sock"))
        assert not module._listens(str(tmp_path / "redis.sock"))
        server.listen()
        assert module._listens(str(tmp_path / "redis.sock"))


def test_it_ends_with_an_error_of_its_user():
    with pytest.raises(ZeroDivisionError), local_redis() as address:
        raise ZeroDivisionError
    assert not os.path.exists(address.removeprefix("unix:"))


def test_it_ends_even_if_its_user_is_killed():
    user = subprocess.Popen([sys.executable, "-c", KEPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    address = user.stdout.readline().strip()
    try:
        store = store_at(address)
        assert store.size("t") == 0
        user.send_signal(signal.SIGKILL)
        user.communicate()
        wait_until(lambda: not answers(store), 30.0)
        store.close()
    finally:
        user.kill()
        user.communicate()
        shutil.rmtree(os.path.dirname(address.removeprefix("unix:")), ignore_errors=True)


def test_one_that_cannot_start_is_an_error(monkeypatch):
    monkeypatch.setattr(module, "_ENDS_WITH_US", "exit 3")
    with pytest.raises(RuntimeError, match="redis-server does not start"), local_redis():
        pytest.fail("it has not started")


def test_it_takes_server_and_client_to_be_installed(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda program: program if program == "redis-server" else None)
    assert not redis_is_installed()
