"""Generations of rows, in a Redis that alone has them: what it has lost is put there anew, whole or not at all.

With a level 3, Redis holds copies, and what it lacks is filled in as it is asked for. Without one, a Redis that was
restarted empty, or a fill that died halfway, would leave keys without rows, which nobody could tell from unknown ones.
So rows come to Redis in generations, each in a namespace of its own. One server puts in the rows of the model, then all
updates that the log has; then it seals every partition, and makes this generation the current one. A partition without
seal has lost its rows: nobody answers from it, and the next generation is made. It is made too, while the current one
answers, where rows may be older than they were: another Redis process has come to have them (`RedisStore.runs`), or a
server has said so (`doubt`). The current one goes when the next one is whole, or where Redis has no memory for both.

One that cannot be filled, for want of memory perhaps, is tried again after a pause, twice as long each time, since each
attempt sends all rows; at once where another process has come to have the partitions, or its `maxmemory` has changed.

    hebe:{CONTENT}:generation    string: the name of the current one, whose rows are in namespace CONTENT.NAME
    hebe:{CONTENT}:generations   set: the names of those that may have rows
    hebe:{CONTENT}:filling       string: the name of the one that is being made; expires if its maker dies
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from urllib.parse import quote

from hebe.embeddings.circuit_breaker import BreakerOptions, CircuitBreaker
from hebe.embeddings.periodic import Lookout
from hebe.embeddings.redis.connection import RedisFull
from hebe.embeddings.redis.identity import FollowedName
from hebe.embeddings.redis.layout import Command, LayoutRule, Reply
from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.store import StoreError, StoreUnavailable

log = logging.getLogger("hebe.tiers")

StillMine = Callable[[], None]
"""Called often by who fills: raises `StoreUnavailable` where another server has begun to, or this one is closed, and
what `go_on` of `join` does."""
Fill = Callable[[RedisStore, str, StillMine], None]
"""Puts all rows of a generation of this name into a store, and all updates that there are."""

_EXPIRES_MS = 30_000
_RENEW_S = 5.0
_LOOK_S = 1.0
_CHECK_S = 10.0
"""So often all partitions are looked at; one that a query finds to have lost its rows is told at once."""
_PAUSES = BreakerOptions(failures=1, pause_s=2.0, longest_pause_s=300.0)
"""Between attempts to fill, unless Redis has changed."""

_RENEW = b"""
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
_PUBLISH = b"""
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[1])
redis.call('DEL', KEYS[1])
return 1
"""
_LET_GO = b"""
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class RedisGenerations(FollowedName):
    """Keeps `store`, and `asked`, which answers queries, at the current generation of `content`, and makes one where
    none is whole: `fill` puts the rows in, and `forget` has nothing kept elsewhere for a generation of this name that
    is no more (it raises `StoreError` where that has to be tried again). `join` once, then `start`.

    `current` is the name of the generation that the stores have. These, which may be one, begin without rows, with
    `LayoutRule.REQUIRED`; they are not closed here.
    """

    def __init__(
        self, store: RedisStore, asked: RedisStore, content: str, fill: Fill, forget: Callable[[str], None]
    ) -> None:
        super().__init__()
        self.leaving: Callable[[], None] | None = None
        """Called before the stores come to have another generation: what is on its way to the one of before may be
        older than what the other has."""
        self._store, self._content, self._fill, self._forget = store, content, fill, forget
        self._stores = (store, asked)
        tag = quote(content, safe="").encode()
        self._pointer, self._names, self._claim = (
            b"hebe:{%s}:%s" % (tag, what) for what in (b"generation", b"generations", b"filling")
        )
        self._runs: list[bytes] | None = None
        """Which processes had the rows when it was last looked."""
        self._left: list[str] = []
        """Generations that are over, of which something is left."""
        self._go_on: Callable[[], None] | None = None
        """While `join` runs."""
        self._renewed_s = 0.0
        self._checked_s = 0.0
        self._doubted: str | None = None
        """The generation of which that is yet to be noted in Redis."""
        self._attempts = CircuitBreaker(_PAUSES)
        """Open while the last attempt to fill is one that failed."""
        self._fault: StoreError | None = None
        """Why it failed."""
        self._attempted: tuple[list[bytes], list[bytes]] | None = None
        """The Redis processes then, and their memory bounds."""
        self._lookout = Lookout("generations", _LOOK_S, self._look_again, "Redis cannot be filled")

    def join(self, go_on: Callable[[], None] = lambda: None) -> None:
        """Come to the current generation; make it, or wait while another server does, however long that takes. `go_on`
        is called now and then, and raises to end it. Raises `StoreError`.
        """
        self._go_on, waits = go_on, False
        try:
            while not self._look(thoroughly=True):
                if not waits:
                    log.info("waiting for another server, which puts rows of %s into Redis", self._content)
                waits = True
                time.sleep(_LOOK_S)
                go_on()
        finally:
            self._go_on = None

    def start(self) -> None:
        """Follow the current generation from now on, and make the next one should it be lost."""
        self._checked_s = time.monotonic()
        self._lookout.start()

    def doubt(self) -> None:
        """Rows of the current one may be older than they were: the next one is made, by whichever server is first."""
        self._doubted = self.current

    def close(self) -> None:
        """Stop; one that is being made is left to others. Closing twice is harmless."""
        self._lookout.close()

    def _look_again(self) -> None:
        due = not self._attempts.closed or time.monotonic() > self._checked_s + _CHECK_S
        thoroughly = due or any(store.loss.is_set() for store in self._stores)
        self._look(thoroughly)
        if thoroughly:
            left, self._left = self._left, []
            for name in left:
                self._clear_other(name)
            self._checked_s = time.monotonic()

    def _look(self, thoroughly: bool) -> bool:
        """Follow what is current; see, if `thoroughly`, that it is whole. Returns whether there is one to answer."""
        for store in self._stores:
            store.loss.clear()
        name, runs = self._current(), self._store.runs()
        if name is not None and name != self.current:
            self._follow(name)
            thoroughly = True
        if name is not None and self._doubted is not None:
            if self._doubted == name:
                self._store.doubt()
                thoroughly = True
            self._doubted = None
        if name is not None and not thoroughly and runs == self._runs:
            return True
        if name is None or not self._store.is_whole():
            return self._make(name)
        if self._store.strayed(runs):
            self._make(name)  # it answers meanwhile
        else:
            self._runs = runs
            self._note_success()
        return True

    def _make(self, lost: str | None) -> bool:
        """The next generation after `lost`, unless another server makes it; returns whether this one did.

        Raises what the last attempt did while it is too early for another one.
        """
        processes = self._store.runs(), self._store.memory_bounds()
        if processes == self._attempted:
            self._raise_if_too_early()
        name = secrets.token_hex(6)
        if self._ask(b"SET", self._claim, name, "NX", "PX", str(_EXPIRES_MS)) is None:
            return False
        self._attempted = processes
        self._renewed_s = time.monotonic()
        new = self._store.beside(self._namespace(name), LayoutRule.AWAITED)
        try:
            if self._current() != lost:  # another one has made it just now
                self._run_script(_LET_GO, [self._claim], name)
                return False
            if lost is not None or self.current is not None:
                log.warning("Redis may have lost rows of %s: they are put there anew", self._content)
            self._ask(b"SADD", self._names, name)
            new.begin()
            new.note_runs(new.runs())
            self._fill(new, name, lambda: self._keep_claim(name))
            if new.strayed(new.runs()):  # notes have gone, and so have rows; or another process may lack some
                raise StoreUnavailable("Redis may have lost rows while they were put there")
            new.seal()
            # While nobody else makes one: what others begin to make from here on is theirs.
            over = [other for other in self._known() if other != name]
            if self._run_script(_PUBLISH, [self._claim, self._pointer], name) != 1:
                raise _TakenOver
        except BaseException as fault:
            self._clear(new, name)
            with contextlib.suppress(StoreError):
                self._run_script(_LET_GO, [self._claim], name)
                if lost is not None and isinstance(fault, RedisFull):
                    self._clear_other(lost)  # to make room for the next one
            if isinstance(fault, _TakenOver):
                return False
            if isinstance(fault, Exception):
                self._note_failure(fault)
            raise
        finally:
            new.close()
        self._note_success()
        log.warning("Redis has all rows of %s", self._content)
        self._follow(name)
        for other in over:
            self._clear_other(other)
        return True

    def _raise_if_too_early(self) -> None:
        due_s, fault = self._attempts.probe_s, self._fault
        if fault is not None and due_s is not None and time.monotonic() < due_s:
            kind = StoreUnavailable if isinstance(fault, StoreUnavailable) else StoreError
            raise kind(str(fault), fault.client_message)

    def _note_failure(self, fault: Exception) -> None:
        self._fault = fault if isinstance(fault, StoreError) else StoreError(str(fault))
        now_s = time.monotonic()
        if not self._attempts.failed(now_s, now_s):  # it was open
            self._attempts.probe_failed(now_s)
        for store in self._stores:
            store.refill_fault = str(self._fault)

    def _note_success(self) -> None:
        """There is a generation that is whole and new, whoever has made it."""
        self._attempts.succeeded(time.monotonic())
        self._fault = None
        for store in self._stores:
            store.refill_fault = None

    def _follow(self, name: str) -> None:
        if self.leaving is not None:
            self.leaving()
        for store in self._stores:
            store.use(self._namespace(name))
        self.follow(name)

    def _keep_claim(self, name: str) -> None:
        """See `StillMine`."""
        if self._lookout.closing.is_set():
            raise StoreUnavailable("the server is being closed")
        if self._go_on is not None:
            self._go_on()
        now_s = time.monotonic()
        if now_s <= self._renewed_s + _RENEW_S:
            return
        try:
            mine = self._run_script(_RENEW, [self._claim], name, str(_EXPIRES_MS))
        except StoreUnavailable:
            if now_s > self._renewed_s + _EXPIRES_MS / 2e3:
                raise
            return  # what has taken long need not be done anew because a call was not answered in time
        if mine != 1:
            raise _TakenOver
        self._renewed_s = now_s

    def _clear_other(self, name: str) -> None:
        other = self._store.beside(self._namespace(name), LayoutRule.AWAITED)
        try:
            self._clear(other, name)
        finally:
            other.close()

    def _clear(self, store: RedisStore, name: str) -> None:
        """Remove a generation, as far as can be now; what is left is tried again, by who makes the next one too."""
        try:
            store.clear()
            self._forget(name)
            self._ask(b"SREM", self._names, name)
        except StoreError as fault:
            self._left.append(name)
            log.debug("something of generation %s stays for now: %s", name, fault)

    def _namespace(self, name: str) -> str:
        return f"{self._content}.{name}"

    def _current(self) -> str | None:
        name = self._ask(b"GET", self._pointer)
        return name.decode(errors="replace") if isinstance(name, bytes) else None

    def _known(self) -> list[str]:
        names = self._ask(b"SMEMBERS", self._names)
        return (
            [each.decode(errors="replace") for each in names if isinstance(each, bytes)]
            if isinstance(names, list)
            else []
        )

    def _ask(self, verb: bytes, key: bytes, *arguments: str) -> Reply:
        [reply] = self._store.carry_out([Command(key, (verb, key, *map(str.encode, arguments)))])
        return reply

    def _run_script(self, script: bytes, keys: list[bytes], *arguments: str) -> Reply:
        asked = (b"EVAL", script, b"%d" % len(keys), *keys, *map(str.encode, arguments))
        [reply] = self._store.carry_out([Command(keys[0], asked)])
        return reply


class _TakenOver(StoreUnavailable):
    """Another server has begun to fill Redis, since this one took too long."""

    def __init__(self) -> None:
        super().__init__("another server has begun to fill Redis")
