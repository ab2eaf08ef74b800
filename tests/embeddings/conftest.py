"""Redis for the tests of a file, and stores in it; tiers that are closed after a test."""

import contextlib

import pytest

from hebe.embeddings.config.hierarchy_config import HierarchyConfig
from hebe.embeddings.memory.model_rows import ModelRows
from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.store import StoreError
from hebe.embeddings.tiers.tiers import Tiers
from tests.embeddings.stores.dict_tiers import DictTiers
from tests.embeddings.stores.redis_stores import FOUR, NAMESPACES, PATIENT
from tests.embeddings.stores.store_conformance import TABLES
from tests.servers.redis_servers import RedisCluster, RedisServer, make_certificates

from .example_tiers import SOURCES, config_of
from .example_tiers import TABLES as ROW_TABLES
from .update_nodes import Node, rocks


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


@pytest.fixture
def open_tiers(tmp_path):
    opened: list[Tiers] = []

    def make(config: HierarchyConfig, version: int = 1, sources=SOURCES) -> Tiers:
        place = tmp_path / "model" / str(version)
        opened.append(Tiers.open(ModelRows("model", version, ROW_TABLES, sources, "identity"), config, place))
        return opened[-1]

    yield make
    for tiers in opened:
        tiers.close()


@pytest.fixture
def shared_redis_config(tmp_path, redis):
    """A configuration with `redis`, to which other servers write too."""
    volatile = {"type": "redis", "address": redis.address, "num_partitions": 4, "timeout_ms": 60_000}
    update_source = {"type": "log_directory", "address": str(tmp_path / "log"), "poll_timeout_ms": 10}
    return config_of(volatile_db=volatile, update_source=update_source)


@pytest.fixture
def make_tiers():
    made: list[DictTiers] = []

    def make(*arguments, **options) -> DictTiers:
        made.append(DictTiers(*arguments, **options))
        return made[-1]

    yield make
    for tiers in made:
        tiers.volatile.gate.set()
        tiers.persistent.gate.set()
        tiers.close()
        assert all(isinstance(fault, StoreError) for fault in tiers.faults), "a tier's own faults, of work on it"


@pytest.fixture
def make_node():
    nodes: list[Node] = []

    def make(*arguments, **options) -> Node:
        nodes.append(Node(*arguments, **options))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()


@pytest.fixture
def over_rocks(tmp_path):
    """The tiers of servers, each with a RocksDB over one Redis, by their name; and that Redis."""
    with RedisServer() as redis:
        volatile = {"type": "redis", "address": redis.address, "num_partitions": 4, "timeout_ms": 60_000}

        def tiers(name: str) -> dict:
            return {**rocks(tmp_path, name), "volatile_db": volatile}

        tiers.redis = redis
        yield tiers
