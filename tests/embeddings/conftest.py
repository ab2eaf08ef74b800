"""Redis for the tests of a file, and stores in it."""

import contextlib

import pytest

from hebe.embeddings.redis_store import RedisStore

from ..redis_servers import RedisCluster, RedisServer, make_certificates
from .redis_stores import FOUR, NAMESPACES, PATIENT
from .store_conformance import TABLES


@pytest.fixture(scope="module")
def redis_server():
    with RedisServer(unix_socket=True) as server:
        yield server


@pytest.fixture
def redis():
    """One of the test's own, over TCP: to be killed, and looked into."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def redis_cluster():
    with RedisCluster(replicas=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def tls_files(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def open_redis():
    """Opens stores, and closes them after the test."""
    with contextlib.ExitStack() as stack:

        def opened(addresses, options=FOUR, *, dims=TABLES, namespace=None, access=PATIENT, **more):
            address = getattr(addresses, "address", None) or getattr(addresses, "addresses", addresses)
            namespace = namespace or next(NAMESPACES)
            store = RedisStore(dims, address, options, namespace=namespace, access=access, **more)
            return stack.enter_context(contextlib.closing(store))

        yield opened
