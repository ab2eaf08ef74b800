"""Commands carried out on the servers that have their hash slots: one instance, or a cluster whose nodes fail.

redis-py connects, logs in, speaks the protocol, and knows which node has which slot. What it does not have is an
exchange with all nodes at once that ends by a deadline: its pipelines over a cluster try failed commands again one
after the other, each with time-outs of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

from hebe.embeddings.redis.connection import CLIENT_MESSAGE, NEEDS_REDIS, RedisAccess, RedisAddress
from hebe.embeddings.redis.deadline import TimedPool, connection_options, deadline, packed, pool_of
from hebe.embeddings.redis.errors import is_no_cluster, is_no_connection, store_error
from hebe.embeddings.redis.layout import Command, Reply
from hebe.embeddings.store import StoreError, StoreUnavailable

try:
    import redis
    from redis.cluster import ClusterNode, NodesManager
    from redis.crc import key_slot
    from redis.exceptions import AskError, ClusterDownError, MovedError, ReadOnlyError, ResponseError, TryAgainError
except ImportError as fault:
    raise StoreError(NEEDS_REDIS) from fault

_MOST_REDIRECTIONS = 5
_TRY_AGAIN_S = 0.01
_FAULTS = (redis.RedisError, redis.RedisClusterException, OSError, ValueError)

_Answer = Reply | ResponseError
_Servers = TimedPool | NodesManager


class RedisNodes:
    """The servers behind `addresses`, for any number of threads. Nothing is connected before the first command.

    Raises ValueError for files of TLS that cannot be used, and for a Unix socket among several addresses.
    """

    def __init__(self, addresses: Sequence[RedisAddress], access: RedisAccess) -> None:
        if len(addresses) > 1 and not all(address.port for address in addresses):
            raise ValueError("address: a Unix socket leads to one instance, not to a cluster; give it alone")
        self._seeds = tuple(addresses)
        self._timeout_s = access.timeout_s
        self._connections = access.num_node_connections
        self._options = connection_options(access)
        self._changing = threading.Lock()
        self._referring = threading.Lock()
        self._servers: _Servers | None = None
        """The connections to one instance, or a cluster. None: to be asked for."""
        self._suspect: str | None = None
        """The cluster is to be asked for its slots anew, this node last."""
        self._closed = False

    def execute(self, commands: Sequence[Command]) -> list[Reply]:
        """Carry commands out where their slots are, all servers at work at once; the replies, in the same order.

        Commands of one slot keep their order. Raises `StoreUnavailable` when a server concerned is lost, silent until
        the time-out, or not ready; `StoreError` for other refusals. Some commands may then have been carried out.
        """
        end_s = time.monotonic() + self._timeout_s
        answers: list[_Answer] = [None] * len(commands)
        pending, asking = list(range(len(commands))), dict[int, RedisAddress]()
        for _ in range(1 + _MOST_REDIRECTIONS):
            if not pending:
                return answers  # type: ignore[return-value]  # what is no reply was raised
            servers = self._learn(end_s)
            with deadline(end_s):
                shares = self._shares(servers, commands, pending, asking)
                self._exchange(servers, commands, shares, asking, answers)
            pending, asking = self._redirected(servers, answers, shares, asking)
        what = f"Redis {self._seeds[0]}: the cluster is changing, redirected {_MOST_REDIRECTIONS} times"
        raise StoreUnavailable(what, CLIENT_MESSAGE)

    def owners(self, keys: Sequence[bytes]) -> list[RedisAddress]:
        """The servers that have the slots of these Redis keys, as far as is known. Raises as `execute` does."""
        servers = self._learn(time.monotonic() + self._timeout_s)
        return [self._owner(servers, key) for key in keys]

    def close(self) -> None:
        """Close connections, those in use when their exchange is over. Harmless twice."""
        with self._changing:
            self._closed = True
            for pool in _pools(self._servers):
                pool.disconnect(inuse_connections=False)

    def _learn(self, end_s: float) -> _Servers:
        """Which servers there are; one of several that is silent costs half of what is left of the time."""
        servers = self._servers
        if servers is not None and self._suspect is None and not self._closed:
            return servers
        if not self._changing.acquire(timeout=max(0.0, end_s - time.monotonic())):  # another thread asks, and waits
            raise store_error(self._seeds[0], redis.TimeoutError(), self._timeout_s)
        try:
            if self._closed:
                raise StoreError(f"the store on Redis {self._seeds[0]} is closed", CLIENT_MESSAGE)
            servers = self._servers
            if servers is None:
                with deadline(end_s, 0.5 if len(self._seeds) > 1 else 1.0):
                    servers = self._servers = self._found()
            elif self._suspect is not None and isinstance(servers, NodesManager):
                with deadline(end_s, 0.5):
                    seeds = [(seed.host, seed.port) for seed in self._seeds]
                    servers.initialize(seeds, last_failed_node_name=self._suspect)
            self._suspect = None
            return servers
        except (*_FAULTS, LookupError, TypeError) as fault:
            if is_no_cluster(fault):
                what = f"Redis {self._seeds[0]} is no cluster: give its address alone"
                raise StoreError(what, CLIENT_MESSAGE) from None
            raise store_error(self._seeds[0], fault, self._timeout_s) from None
        finally:
            self._changing.release()

    def _found(self) -> _Servers:
        first = self._seeds[0]
        if len(self._seeds) == 1:
            pool = pool_of(first, self._options)
            if not first.port or _is_alone(pool):
                return pool
            pool.disconnect()
        return NodesManager(
            [ClusterNode(seed.host, seed.port) for seed in self._seeds],
            from_url=True,  # so that it uses the kind of pool it is given
            connection_pool_class=TimedPool,
            **self._options,
        )

    def _shares(
        self, servers: _Servers, commands: Sequence[Command], pending: list[int], asking: dict[int, RedisAddress]
    ) -> dict[RedisAddress, list[int]]:
        """Which of the pending commands go to which server."""
        shares: dict[RedisAddress, list[int]] = {}
        by_key: dict[bytes, list[int]] = {}  # most commands have the key of the one before
        for index in pending:
            key = commands[index].key
            if index in asking:
                shares.setdefault(asking[index], []).append(index)
            elif key in by_key:
                by_key[key].append(index)
            else:
                by_key[key] = shares.setdefault(self._owner(servers, key), [])
                by_key[key].append(index)
        return shares

    def _owner(self, servers: _Servers, key: bytes) -> RedisAddress:
        if isinstance(servers, TimedPool):
            return self._seeds[0]
        slot = key_slot(key)
        nodes = servers.slots_cache.get(slot)  # the master first; the method that says so costs ten times as much
        if not nodes:
            self._suspect = ""
            raise StoreUnavailable(f"Redis {self._seeds[0]}: no node serves slot {slot}", CLIENT_MESSAGE)
        return RedisAddress(nodes[0].host, nodes[0].port)

    def _exchange(
        self,
        servers: _Servers,
        commands: Sequence[Command],
        shares: dict[RedisAddress, list[int]],
        asking: dict[int, RedisAddress],
        answers: list[_Answer],
    ) -> None:
        """Send each server its share, then read all replies. Connections are taken in one order: no two calls can
        wait for each other's."""
        taken: list[tuple[RedisAddress, TimedPool, Any]] = []
        address = self._seeds[0]
        try:
            for address in sorted(shares):
                pool = self._pool(servers, address)
                taken.append((address, pool, pool.get_connection()))
                requests: list[tuple[bytes, ...]] = []
                for index in shares[address]:
                    requests += [(b"ASKING",)] * (index in asking) + [commands[index].arguments]
                connection = taken[-1][2]
                connection.send_packed_command(packed(connection, requests))
            for address, pool, connection in list(taken):
                for index in shares[address]:
                    if index in asking:
                        connection.next_reply()
                    answers[index] = connection.next_reply()
                taken.pop(0)
                self._give_back(pool, connection)
        except _FAULTS as fault:
            if is_no_connection(fault):
                what = f"Redis {address}: all {self._connections} connections are in use"
                raise StoreUnavailable(what, CLIENT_MESSAGE) from None
            self._suspect = f"{address.host}:{address.port}"
            raise store_error(address, fault, self._timeout_s) from None
        finally:
            for _, pool, connection in taken:  # broken, or with replies left that nobody will read
                connection.disconnect()
                self._give_back(pool, connection)

    def _pool(self, servers: _Servers, address: RedisAddress) -> TimedPool:
        if isinstance(servers, TimedPool):
            return servers
        node = servers.get_node(address.host, address.port) or ClusterNode(address.host, address.port)
        if node.redis_connection is None:  # one that redis-py was referred to
            with self._referring:
                servers.create_redis_connections([node])
        pool = node.redis_connection.connection_pool
        assert isinstance(pool, TimedPool)
        return pool

    def _give_back(self, pool: TimedPool, connection: Any) -> None:
        if self._closed:
            connection.disconnect()
        pool.release(connection)

    def _redirected(
        self,
        servers: _Servers,
        answers: list[_Answer],
        shares: dict[RedisAddress, list[int]],
        asked: dict[int, RedisAddress],
    ) -> tuple[list[int], dict[int, RedisAddress]]:
        """Which commands are to be tried again, and those of them that go where a slot is moving to.

        Raises the error of an answer that is no redirection.
        """
        pending: list[int] = []
        asking: dict[int, RedisAddress] = {}
        wait = False
        for owner, share in shares.items():
            for index in share:
                answer = answers[index]
                if not isinstance(answer, ResponseError):
                    continue
                if isinstance(answer, TryAgainError):  # of a command's Redis keys, some have moved and some have not
                    wait = True
                    if index in asked:
                        asking[index] = asked[index]
                elif isinstance(answer, AskError) and isinstance(servers, NodesManager):
                    answer.host = answer.host or owner.host  # a node that does not know its own leaves it out
                    if isinstance(answer, MovedError):
                        servers.move_slot(answer)
                    else:
                        asking[index] = RedisAddress(answer.host, answer.port)
                else:
                    if isinstance(answer, ClusterDownError | ReadOnlyError):
                        self._suspect = f"{owner.host}:{owner.port}"
                    elif isinstance(answer, MovedError):
                        self._servers = None  # the instance has become a node of a cluster: ask anew
                    raise store_error(owner, answer, self._timeout_s)
                pending.append(index)
        if wait:
            time.sleep(_TRY_AGAIN_S)
        return sorted(pending), asking


def _is_alone(pool: TimedPool) -> bool:
    """Whether a server is no node of a cluster. Raises what redis-py raises."""
    connection = pool.get_connection()
    try:
        connection.send_command("CLUSTER", "SLOTS")
        connection.read_response()
    except ResponseError as refused:
        if not is_no_cluster(refused):
            raise
        return True
    finally:
        pool.release(connection)
    return False


def _pools(servers: _Servers | None) -> list[TimedPool]:
    if servers is None or isinstance(servers, TimedPool):
        return [servers] if servers is not None else []
    nodes = [*servers.nodes_cache.values(), *servers.startup_nodes.values()]
    return [node.redis_connection.connection_pool for node in nodes if node.redis_connection is not None]
