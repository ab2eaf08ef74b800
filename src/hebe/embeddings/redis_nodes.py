"""Which Redis server has which hash slot, and commands carried out there: one instance, or a cluster whose nodes fail.

The servers themselves tell (`CLUSTER SLOTS`); an instance that is no cluster has all slots. What they told is asked
for anew after a connection was lost or a server said that a slot is elsewhere. No call here lasts longer than the
time-out, whatever the servers do.
"""

from __future__ import annotations

import binascii
import threading
import time
from collections.abc import Sequence
from typing import Any

from hebe.embeddings.redis_connection import (
    CLIENT_MESSAGE,
    ConnectionPool,
    RedisAccess,
    RedisAddress,
    RedisConnection,
    error_of,
    fault_of,
)
from hebe.embeddings.redis_protocol import Command, ErrorReply, ProtocolError, Reply, command
from hebe.embeddings.store import StoreError, StoreUnavailable

SLOTS = 16384
_MOST_REDIRECTIONS = 5
_TRY_AGAIN_S = 0.01
_NO_CLUSTER = ("cluster support disabled", "unknown command")
_ASKING = command(b"ASKING")
_CLUSTER_SLOTS = Command(0, command(b"CLUSTER", b"SLOTS"))
_FAULTS = (OSError, EOFError, ProtocolError)


def hash_slot(tag: bytes) -> int:
    """The slot of a key whose hash tag is `tag`: CRC16 (XMODEM) modulo 16384."""
    return binascii.crc_hqx(tag, 0) % SLOTS


class RedisNodes:
    """The servers behind `addresses`, for any number of threads. Nothing is connected before the first command."""

    def __init__(self, addresses: Sequence[RedisAddress], access: RedisAccess) -> None:
        self._seeds = tuple(addresses)
        self._access = access
        self._context = access.tls_context()
        self._changing = threading.Lock()
        self._pools: dict[RedisAddress, ConnectionPool] = {}
        self._owners: list[RedisAddress | None] | None = None
        """Of each slot; None: to be asked for."""
        self._known: tuple[RedisAddress, ...] = self._seeds
        """Whom to ask, the most trusted first."""
        self._closed = False

    def execute(self, commands: Sequence[Command]) -> list[Reply]:
        """Carry commands out where their slots are, all servers at work at once; the replies, in the same order.

        Commands of one slot keep their order. Raises `StoreUnavailable` when a server concerned is lost, silent until
        the time-out, or not ready; `StoreError` for other refusals. Some commands may then have been carried out.
        """
        deadline_s = time.monotonic() + self._access.timeout_s
        replies: list[Reply] = [None] * len(commands)
        pending, asking = list(range(len(commands))), dict[int, RedisAddress]()
        for _ in range(1 + _MOST_REDIRECTIONS):
            if not pending:
                return replies
            shares = self._shares(commands, pending, asking, deadline_s)
            self._exchange(commands, shares, asking, replies, deadline_s)
            pending, asking = self._redirected(replies, shares, asking)
        what = f"Redis {self._seeds[0]}: the cluster is changing, redirected {_MOST_REDIRECTIONS} times"
        raise StoreUnavailable(what, CLIENT_MESSAGE)

    def close(self) -> None:
        """Close all connections. Harmless twice."""
        with self._changing:
            self._closed = True
            for pool in self._pools.values():
                pool.close()

    def _shares(
        self, commands: Sequence[Command], pending: list[int], asking: dict[int, RedisAddress], deadline_s: float
    ) -> dict[RedisAddress, list[int]]:
        """Which of the pending commands go to which server."""
        owners = self._owners or self._ask_for_owners(deadline_s)
        shares: dict[RedisAddress, list[int]] = {}
        for index in pending:
            slot = commands[index].slot
            owner = asking.get(index) or owners[slot]
            if owner is None:
                self._forget_owners(None)
                raise StoreUnavailable(f"Redis {self._seeds[0]}: no node serves slot {slot}", CLIENT_MESSAGE)
            shares.setdefault(owner, []).append(index)
        return shares

    def _redirected(
        self, replies: list[Reply], shares: dict[RedisAddress, list[int]], asked: dict[int, RedisAddress]
    ) -> tuple[list[int], dict[int, RedisAddress]]:
        """Which commands are to be tried again, and those of them that go where a slot is moving to.

        Raises the error of a reply that is no redirection.
        """
        pending: list[int] = []
        asking: dict[int, RedisAddress] = {}
        moved: list[RedisAddress] = []
        wait = False
        for owner, share in shares.items():
            for index in share:
                reply = replies[index]
                if not isinstance(reply, ErrorReply):
                    continue
                if reply.code == "ASK":
                    asking[index] = _target(reply, owner)
                elif reply.code == "MOVED":
                    moved.append(_target(reply, owner))
                elif reply.code == "TRYAGAIN":  # of a command's Redis keys, some have moved and some have not
                    wait = True
                    if index in asked:
                        asking[index] = asked[index]
                else:
                    if reply.code in ("CLUSTERDOWN", "READONLY"):
                        self._forget_owners(owner)
                    raise error_of(owner, reply)
                pending.append(index)
        if moved:
            with self._changing:
                self._owners = None
                self._known = tuple(dict.fromkeys((*moved, *self._known)))
        if wait:
            time.sleep(_TRY_AGAIN_S)
        return sorted(pending), asking

    def _exchange(
        self,
        commands: Sequence[Command],
        shares: dict[RedisAddress, list[int]],
        asking: dict[int, RedisAddress],
        replies: list[Reply],
        deadline_s: float,
    ) -> None:
        """Send each server its share, then read all replies. Connections are taken in one order: no two calls can
        wait for each other's."""
        taken: list[tuple[ConnectionPool, RedisConnection]] = []
        address = self._seeds[0]
        try:
            for address in sorted(shares):
                pool = self._pool(address)
                taken.append((pool, pool.take(deadline_s)))
                requests: list[bytes] = []
                for index in shares[address]:
                    requests += [_ASKING, commands[index].request] if index in asking else [commands[index].request]
                taken[-1][1].send(requests, deadline_s)
            for pool, connection in list(taken):
                address = pool.address
                for index in shares[address]:
                    if index in asking:
                        connection.receive(_CLUSTER_SLOTS)
                    replies[index] = connection.receive(commands[index])
                taken.remove((pool, connection))
                pool.give_back(connection)
        except _FAULTS as fault:
            self._forget_owners(address)
            raise fault_of(address, fault, self._access.timeout_s) from None
        finally:
            for pool, connection in taken:
                pool.drop(connection)

    def _ask_for_owners(self, deadline_s: float) -> list[RedisAddress | None]:
        """Ask the known servers one after the other; a silent one costs half of what is left of the time."""
        fault: StoreError | None = None
        known = tuple(dict.fromkeys((*self._known, *self._seeds)))
        for number, address in enumerate(known):
            now_s = time.monotonic()
            wait_s = (deadline_s - now_s) / (1 if number == len(known) - 1 else 2)
            try:
                reply = self._ask(address, now_s + wait_s)
                if isinstance(reply, ErrorReply) and any(text in reply.text for text in _NO_CLUSTER):
                    if len(self._seeds) > 1:
                        raise StoreError(f"Redis {address} is no cluster: give its address alone", CLIENT_MESSAGE)
                    return self._learnt(address, [address] * SLOTS, ())
                if isinstance(reply, ErrorReply):
                    raise error_of(address, reply)
                return self._learnt(address, *_owners(reply, address))
            except _FAULTS as lost:
                fault = fault or fault_of(address, lost, self._access.timeout_s)
            except StoreUnavailable as refused:
                fault = fault or refused
        with self._changing:
            self._known = (*known[1:], known[0])
        assert fault is not None
        raise fault

    def _ask(self, address: RedisAddress, deadline_s: float) -> Reply:
        pool = self._pool(address)
        connection = pool.take(deadline_s)
        try:
            connection.send([_CLUSTER_SLOTS.request], deadline_s)
            reply = connection.receive(_CLUSTER_SLOTS)
        except BaseException:
            pool.drop(connection)
            raise
        pool.give_back(connection)
        return reply

    def _learnt(
        self,
        teller: RedisAddress,
        owners: list[RedisAddress | None] | list[RedisAddress],
        nodes: Sequence[RedisAddress],
    ) -> list[RedisAddress | None]:
        learnt = list[RedisAddress | None](owners)
        with self._changing:
            self._owners = learnt
            self._known = tuple(dict.fromkeys((teller, *nodes, *self._seeds)))
            for address in [address for address in self._pools if address not in self._known]:
                self._pools.pop(address).close()
        return learnt

    def _forget_owners(self, failed: RedisAddress | None) -> None:
        """Ask anew before the next commands, and `failed` last."""
        with self._changing:
            self._owners = None
            self._known = (*(address for address in self._known if address != failed), *([failed] if failed else []))

    def _pool(self, address: RedisAddress) -> ConnectionPool:
        with self._changing:
            if self._closed:
                raise StoreError(f"the store on Redis {self._seeds[0]} is closed", CLIENT_MESSAGE)
            if address not in self._pools:
                self._pools[address] = ConnectionPool(address, self._access, self._context)
            return self._pools[address]


def _owners(reply: Any, teller: RedisAddress) -> tuple[list[RedisAddress | None], list[RedisAddress]]:
    """The owner of each slot and all nodes, of a reply to `CLUSTER SLOTS`."""
    owners: list[RedisAddress | None] = [None] * SLOTS
    nodes: list[RedisAddress] = []
    try:
        for first, last, *members in reply:
            # A node that does not know its own address leaves it out.
            addresses = [RedisAddress(host.decode() if host else teller.host, port) for host, port, *_ in members]
            owners[first : last + 1] = [addresses[0]] * (last + 1 - first)
            nodes += addresses
    except (TypeError, ValueError, IndexError, AttributeError):
        raise ProtocolError from None
    return owners, nodes


def _target(redirection: ErrorReply, teller: RedisAddress) -> RedisAddress:
    """Where `MOVED SLOT HOST:PORT` or `ASK SLOT HOST:PORT` points; the host may be left out."""
    host, _, port = redirection.text.rpartition(" ")[2].rpartition(":")
    if not port.isdigit():
        raise error_of(teller, redirection)
    return RedisAddress(host or teller.host, int(port))
