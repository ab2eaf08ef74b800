"""What a server has put into a shared Redis and may have to take back, noted there: it is taken back also where the
server is killed before, or stopped.

The next server on the same level 3 does it when it starts, as the one before must be gone; any other of the Redis does
it for one that has not been heard of for a while, and does no harm where that one lives: level 3 has the rows.

    hebe:{CONTENT}:fillers           set: servers that may have fills
    hebe:{CONTENT}:alive/SERVER      string, empty; expires if the server is not heard of
    hebe:{CONTENT}:fills/SERVER      sorted set: a table and keys -> when they were put there, by the server's clock
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

import numpy as np

from hebe.embeddings.redis.layout import Command, Reply
from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.store import KeyArray

_ALIVE_S = 20.0
"""With what a fill may be behind (`shared_fills`), less than others wait before they believe Redis."""
_TAKEN_AT_ONCE = 16


class RedisFills:
    """Those of `server`, a name that no other one has at a time, into the rows of `content`, which `store` has.

    Raises `StoreError` where Redis does not do what it is asked.
    """

    def __init__(self, store: RedisStore, content: str, server: str) -> None:
        self._store, self._server = store, server.encode()
        self._prefix = b"hebe:{%s}:" % quote(content, safe="").encode()
        self._fillers = self._prefix + b"fillers"
        self._begun = False

    def note(self, parts: Sequence[tuple[str, KeyArray]], now_s: float) -> None:
        """These are about to be put there, at `now_s` of a clock of this process."""
        scored = [value for table, keys in parts for value in (b"%.6f" % now_s, _entry(table, keys))]
        self._ask(*self._living(), self._on(b"ZADD", self._fills_of(self._server), *scored))

    def forget(self, until_s: float) -> None:
        """What was put there before then need not be taken back any more."""
        if self._begun:
            own = self._fills_of(self._server)
            self._ask(self._on(b"ZREMRANGEBYSCORE", own, b"-inf", b"(%.6f" % until_s))

    def look(self) -> None:
        """Say that this server lives, and take back what those have put there that do not."""
        *_, told = self._ask(*self._living(), self._on(b"SMEMBERS", self._fillers))
        if not self._begun:
            self._take_back(self._server)
            self._begun = True
        servers = [server for server in told if isinstance(server, bytes)] if isinstance(told, list) else []
        alive = self._ask(*(self._on(b"EXISTS", self._alive(server)) for server in servers))
        for server, lives in zip(servers, alive, strict=True):
            if not lives and self._take_back(server):
                self._ask(self._on(b"SREM", self._fillers, server))

    def _take_back(self, server: bytes) -> bool:
        """Whether nothing of what it has put there is left, but for tables that this server does not have."""
        key = self._fills_of(server)
        while True:
            [entries] = self._ask(self._on(b"ZRANGE", key, b"0", b"%d" % (_TAKEN_AT_ONCE - 1)))
            if not isinstance(entries, list) or not entries:
                return True
            for entry in entries:
                assert isinstance(entry, bytes)
                table, keys = _of_entry(entry)
                if table not in self._store.dims:
                    return False
                self._store.delete(table, keys)
                self._ask(self._on(b"ZREM", key, entry))

    def _living(self) -> tuple[Command, Command]:
        alive = self._on(b"SET", self._alive(self._server), b"", b"PX", b"%d" % round(1000 * _ALIVE_S))
        return alive, self._on(b"SADD", self._fillers, self._server)

    def _alive(self, server: bytes) -> bytes:
        return self._prefix + b"alive/" + server

    def _fills_of(self, server: bytes) -> bytes:
        return self._prefix + b"fills/" + server

    def _on(self, verb: bytes, key: bytes, *arguments: bytes) -> Command:
        return Command(key, (verb, key, *arguments))

    def _ask(self, *commands: Command) -> list[Reply]:
        return self._store.carry_out(commands)


def _entry(table: str, keys: KeyArray) -> bytes:
    return table.encode() + b"\0" + keys.astype("<i8").tobytes()


def _of_entry(entry: bytes) -> tuple[str, KeyArray]:
    table, _, keys = entry.partition(b"\0")
    return table.decode(), np.frombuffer(keys, "<i8").astype(np.int64)
