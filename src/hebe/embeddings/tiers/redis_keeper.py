"""Keeps the rows of one model in Redis: has them put in, and updates written there, by one server at a time.

Which server does it is a question of load, not of truth: positions order all that is written (`redis.layout`), so two
at once do no harm. The one that holds the lease

    begins      partitions that have no state, as in a Redis that was restarted empty: over a level 3 where the update
                log ends now, since rows come from there; alone before all updates
    fills       where Redis is alone: the model's rows, where they are absent
    writes      all updates that come after the position that Redis has, and says each second how far it is
    seals       where Redis is alone: once it has all updates that the log had

A partition that the log cannot bring up to date is emptied and begun again. The namespace of the rows is that of the
model's rows and of the log, so that positions compare:

    hebe2:{CONTENT}:log             string: identity of the log whose updates the rows have
    hebe2:{CONTENT}:lost            string: identity of the log that they had updates of before, if that is gone
    hebe2:{CONTENT/LOG}:writer      string: who holds the lease; expires
    hebe2:{CONTENT/LOG}:marks       hash: partition of the log -> the message that the rows are up to
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import numpy as np

from hebe.embeddings.config.hierarchy_config import HierarchyConfig, UpdateType
from hebe.embeddings.memory.model_rows import ModelRows, keyed_chunks
from hebe.embeddings.periodic import Periodic
from hebe.embeddings.redis.layout import NOTHING, Command, PartitionState, Progress, Reply, mark_of
from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.redis.writer import RedisWriter
from hebe.embeddings.store import KeyArray, StoreError, StoreUnavailable
from hebe.embeddings.updates.contract import Topic, TopicPartition, UpdateLog, UpdateSource
from hebe.embeddings.updates.ingestion.ingestion import UpdateIngestion
from hebe.embeddings.updates.opening import open_configured_log
from hebe.embeddings.updates.options import PATIENCE_S, ingestion_options, quarantine_of, reader_name
from hebe.kernels.hash_tables import xxh64

log = logging.getLogger("hebe.tiers")

_LOOK_S = 1.0
_LEASE_MS = 5000
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
"""After an attempt to bring rows up that failed; each one that follows is twice as long."""
_NO_LOG = "-"
"""In place of the log's identity, where updates do not come, or the log was away for too long."""
_MOST = int(np.iinfo(np.int64).max)

_CLAIM = b"""
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
_RELEASE = b"""
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""

States = dict[str, list[PartitionState | None]]


class RedisKeeper:
    """Of the rows of `rows`, through `store`; `queried` answers queries and has the same rows. Neither is closed here.

    `place`: that of a level 3 below; None where Redis is alone. `join` before anything is asked of a Redis alone, then
    `start`. `identity` is that of the log, once it is known.
    """

    def __init__(
        self, store: RedisStore, queried: RedisStore, rows: ModelRows, config: HierarchyConfig, place: Path | None
    ) -> None:
        self._store, self._stores, self._rows, self._config = store, (store, queried), rows, config
        self._source = config.update_source
        self._quarantine = quarantine_of(self._source, rows.model, place)
        self._alone = store.alone
        self._topics = [Topic(rows.model, table) for table in rows.dims]
        where = hashlib.blake2b(store.where.encode(), digest_size=6).hexdigest()
        self._reader = reader_name(self._source.group, rows.content, where)
        keys = b"hebe2:{%s}:" % quote(rows.content, safe="").encode()
        self._pointer, self._lost_key = keys + b"log", keys + b"lost"
        self._token = secrets.token_hex(8).encode()
        self._log: UpdateLog | None = None
        self._log_away_s: float | None = None
        self.identity: str | None = None
        self.lost_log: str | None = None
        """What is lost with a log that is another one now; None where nothing is."""
        self.ingestion: UpdateIngestion | None = None
        """While this server writes."""
        self._writer: RedisWriter | None = None
        self._unreachable = threading.Event()
        """Set where the log has lost updates that Redis was to have, and a level 3 has them."""
        self.unfilled: list[str] = []
        """Tables that were begun over a level 3, and are to be filled from there."""
        self.fill: Callable[[Callable[[], bool]], object] = lambda _go_on: None
        """Called by the server that writes, where a level 3 is below: puts rows into Redis while it may go on."""
        self._replaced = False
        """Whether the log went back, and is not the one any more that rows in Redis have updates of."""
        self._had_updates = False
        self._attempt_s, self._pause_s = -math.inf, _FIRST_PAUSE_S
        self._error: StoreError | None = None
        self._periodic = Periodic("redis-keeper", _LOOK_S, self.look, "rows in Redis cannot be looked after")
        self._closing = self._periodic.closing
        self._go_on: Callable[[], None] = lambda: None
        self._one_at_a_time = threading.Lock()

    @property
    def follows_log(self) -> bool:
        """Whether updates come."""
        return self._source.type is not UpdateType.NULL

    def join(self, go_on: Callable[[], None] = lambda: None) -> None:
        """Return when all rows are there, put in by this server or another one, however long that takes. `go_on` is
        called now and then, and raises to end it. Raises `StoreError`.
        """
        self._go_on, waits = go_on, False
        try:
            while not self.look():
                if not waits:
                    log.info("waiting for another server, which puts rows of %s into Redis", self._rows.content)
                waits = True
                time.sleep(0.2)
                go_on()
        finally:
            self._go_on = lambda: None

    def start(self) -> None:
        """Look after the rows from now on; once is enough."""
        self._periodic.start()

    def close(self) -> None:
        """Stop; another server goes on. Closing twice is harmless."""
        self._periodic.close()
        with self._one_at_a_time:
            self._stop_writing()
            if self.identity is not None:
                with contextlib.suppress(StoreError):
                    self._run_script(_RELEASE, self._lease_key, self._token)
            if self._log is not None:
                self._log.close()
                self._log = None

    def positions(self) -> dict[TopicPartition, int]:
        """Up to where all rows in Redis have the updates of the log, by its partition. Raises `StoreError`."""
        found = {}
        for table, states in self._store.states().items():
            complete = [state.complete for state in states if state is not None and state.marks.size]
            if len(complete) == len(states) and len({each.size for each in complete}) == 1:
                for number, offset in enumerate(np.min(complete, axis=0).tolist()):
                    found[TopicPartition(self._rows.model, table, number)] = offset
        return found

    def drain(self, timeout_s: float) -> bool:
        """Wait until Redis has all updates that are in the log now; False if that takes longer."""
        give_up_s = time.monotonic() + timeout_s
        while self._log is None or self.identity in (None, _NO_LOG):
            if self._closing.wait(0.05) or time.monotonic() > give_up_s:
                return False
        with contextlib.closing(self._log.source(None, self._topics, newest=True)) as reader:
            reader.poll(0, 0.0)
            ends = {at: reader.last_offset(at) for at in reader.assigned()}
        while True:
            with contextlib.suppress(StoreError):
                has = self.positions()
                if all(has.get(at, NOTHING) >= end for at, end in ends.items()):
                    return True
            if self._closing.wait(0.05) or time.monotonic() > give_up_s:
                return False

    def look(self) -> bool:
        """Do what is to be done now. Returns whether rows are whole: sealed, where Redis is alone. Raises
        `StoreError`.
        """
        with self._one_at_a_time:
            if self._closing.is_set():
                raise StoreUnavailable("the server is being closed")
            if not self._follow_log():
                return False
            if not self._claim():
                self._stop_writing()
                return self._are_whole(self._read_states())
            states = self._read_states()
            if self._needs_work(states):
                if not self._bring_up(states):
                    return False
            elif self._writer is not None:
                self._writer.raise_marks()
        if not self._alone:
            end_s = time.monotonic() + 10 * _LOOK_S
            self.fill(lambda: time.monotonic() < end_s and not self._closing.is_set() and self._claim())
        return True

    def _follow_log(self) -> bool:
        """Have the rows be those with updates of the log that there is; False while it is not known which that is."""
        identity = self._log_identity()
        if identity is None or identity == self.identity:
            return self.identity is not None
        self._stop_writing()
        if self.follows_log and identity != _NO_LOG:
            reply = self._ask(b"GET", self._pointer)
            if self.identity is None and isinstance(reply, bytes):
                self._use(reply.decode(errors="replace"))
            if self.identity not in (None, identity):
                self._leave_log()
            elif isinstance(lost := self._ask(b"GET", self._lost_key), bytes):
                self._note_loss(lost.decode(errors="replace"))
            self._ask(b"SET", self._pointer, identity.encode())
        self._use(identity)
        return True

    def _leave_log(self) -> None:
        """Rows have updates of another log than there is now: whatever of these it held and has not is lost."""
        self._read_states()
        if self._had_updates and self.identity not in (None, _NO_LOG):
            self._note_loss(self.identity)
            self._ask(b"SET", self._lost_key, self.identity.encode())  # for servers that begin later
        self._store.clear()

    def _note_loss(self, identity: str) -> None:
        rows = f"rows of {self._rows.content} in Redis"
        self.lost_log = f"{rows} had updates of update log {identity}, and there is another one now"
        log.warning("%s: updates that only the other one held are lost", self.lost_log)

    def _use(self, identity: str) -> None:
        self.identity = identity
        self._replaced = False
        untrusted = self.follows_log and identity == _NO_LOG
        for store in self._stores:
            store.use(f"{self._rows.content}/{identity}")
            if untrusted:
                store.oldest_trusted = _MOST
            else:  # with a log that was lost, the model's rows are older than those that were there
                store.oldest_trusted = 0 if self._alone and self.lost_log is not None else NOTHING

    def _log_identity(self) -> str | None:
        if not self.follows_log:
            return _NO_LOG
        try:
            if self._log is None:
                self._log = open_configured_log(self._source)
            identity = self._log.identity()
        except StoreUnavailable as error:
            now_s = time.monotonic()
            if self._log_away_s is None:
                self._log_away_s = now_s
            if self.identity is not None:
                return None
            known = self._ask(b"GET", self._pointer)
            if isinstance(known, bytes):
                return known.decode(errors="replace")
            if now_s < self._log_away_s + PATIENCE_S:
                return None
            log.warning("rows of %s are without updates until the log can be read: %s", self._rows.content, error)
            return _NO_LOG
        self._log_away_s = None
        return identity

    def _read_states(self) -> States:
        states = self._store.states()
        self._had_updates |= any(
            state is not None and (state.complete > NOTHING).any() for own in states.values() for state in own
        )
        return states

    def _needs_work(self, states: States) -> bool:
        if self._unreachable.is_set() or (self._writer is not None and self._writer.lost):
            return True
        if self.follows_log and self.identity != _NO_LOG and self.ingestion is None:
            return True
        return any(state is None or state.progress is not Progress.SEALED for own in states.values() for state in own)

    def _are_whole(self, states: States) -> bool:
        return not self._alone or all(
            state is not None and state.progress is Progress.SEALED for own in states.values() for state in own
        )

    def _bring_up(self, states: States) -> bool:
        """Have all rows there, and updates written from where Redis is in the log; False where they lack updates, and
        the log cannot be read.
        """
        now_s = time.monotonic()
        if now_s < self._attempt_s + self._pause_s and self._error is not None:
            kind = StoreUnavailable if isinstance(self._error, StoreUnavailable) else StoreError
            raise kind(str(self._error), self._error.client_message)
        try:
            self._stop_writing()
            source = self._open_source()
            if source is None and self._alone and self.follows_log and self.identity != _NO_LOG:
                if self._are_whole(states):  # but for what nobody can read now
                    return True
                self._report("they lack updates, and the update log cannot be read")
                if time.monotonic() > (self._log_away_s or math.inf) + PATIENCE_S:
                    self._use(_NO_LOG)
                return False
            try:
                self._begin(states, source)
                if self._alone:
                    self._put_model_rows()
                if source is not None:
                    self._start_writing(source)
            except BaseException:
                if source is not None and self.ingestion is None:
                    source.close()
                raise
            if self._alone:
                self._seal()
        except Exception as error:
            self._attempt_s = time.monotonic()
            if self._error is not None:
                self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            self._error = error if isinstance(error, StoreError) else StoreError(str(error))
            self._report(str(self._error))
            raise
        self._error, self._pause_s = None, _FIRST_PAUSE_S
        self._report(None)
        return True

    def _report(self, error: str | None) -> None:
        """Why rows are not there, to those who ask for them; None: they are."""
        for store in self._stores:
            store.error = error

    def _open_source(self) -> UpdateSource | None:
        """A reader of the log; None where there is none to read now."""
        if self._log is None or self.identity == _NO_LOG:
            return None
        source = self._log.source(self._reader, self._topics)
        try:
            source.poll(0, 0.0)
        except StoreUnavailable:
            source.close()
            return None
        except BaseException:
            source.close()
            raise
        return source

    def _begin(self, states: States, source: UpdateSource | None) -> None:
        """Give each partition a state; empty those that the log cannot bring up to date."""
        ends = {} if source is None else {at: source.last_offset(at) for at in source.assigned()}
        emptied = self._replaced or self._unreachable.is_set()
        marks: dict[str, KeyArray] = {}
        for table, own in states.items():
            count = len([at for at in ends if at.table == table])
            partitions = (TopicPartition(self._rows.model, table, number) for number in range(count))
            last = np.array([ends[at] for at in partitions], np.int64)
            if source is not None:
                broken = [
                    number
                    for number, state in enumerate(own)
                    if state is not None and (emptied or not _can_go_on(state, last))
                ]
                if broken:
                    what = (
                        "rows of table %s in Redis do not go with the update log: %d of its partitions are filled again"
                    )
                    log.warning(what, table, len(broken))
                    self._store.clear(table, broken)
            marks[table] = np.array([mark_of(end) for end in last.tolist()], np.int64)
        self._unreachable.clear()
        self._replaced = False
        if self._alone:
            self._store.begin(Progress.BEGUN)
        elif source is not None or not self.follows_log or self.identity == _NO_LOG:
            self._store.begin(Progress.SEALED, marks)
            lacking = [table for table, own in states.items() if not any(own)]
            self.unfilled += [table for table in lacking if table not in self.unfilled]

    def _put_model_rows(self) -> None:
        """Where they are absent, of partitions that lack some."""
        states, volatile, options = self._store.states(), self._config.volatile_db, self._store.options
        least = {}
        for spec in self._rows.tables:
            lacks = np.array([state is None or state.progress is Progress.BEGUN for state in states[spec.name]])
            counts = np.zeros(options.num_partitions, np.int64)
            if lacks.any():
                if spec.name not in self._rows.sources:
                    raise StoreError(f"table {spec.name} is missing")
                most = options.num_partitions * options.overflow_margin
                wanted = min(math.ceil(volatile.initial_cache_rate * spec.rows), spec.rows, most)
                for keys, rows in keyed_chunks(spec, self._rows.sources[spec.name], wanted):
                    partitions = xxh64.key_partitions(keys, options.num_partitions)
                    counts += np.bincount(partitions, minlength=options.num_partitions)
                    nothing = np.full(len(keys), NOTHING)
                    self._store.fill(
                        (spec.name,), keys, np.array([0, len(keys)]), rows.reshape(-1), np.array([0, rows.size]),
                        lacks[partitions], nothing, np.zeros(len(keys), np.int64),
                    )  # fmt: skip
                    self._step()
            # One that lacked none, and is lost and begun again by another server meanwhile, is not filled by this one.
            least[spec.name] = np.where(lacks, np.minimum(counts, self._store.target_rows), _MOST)
        if not self._store.advance(Progress.FILLED, least):
            what = f"Redis {self._store.where} has lost rows while they were put there: has it memory for all of them?"
            raise StoreUnavailable(what)

    def _start_writing(self, source: UpdateSource) -> None:
        assert self.identity is not None

        def log_partitions(table: str) -> int:
            return sum(at.table == table for at in source.assigned())

        writer = RedisWriter(self._store, self._rows.model, self.identity, log_partitions)
        self._writer = writer
        self.ingestion = UpdateIngestion(
            source,
            {"volatile_db": writer},
            self._rows.model,
            self._rows.dims,
            ingestion_options(self._source),
            quarantine=self._quarantine,
            missed=None if self._alone else self._unreachable.set,
            since_s=self._rows.as_of_s,
            has_beginning=not self._alone,
            catches_up=self._alone,
        )

    def _seal(self) -> None:
        """Once all updates are written that the log has now, or nothing more comes of it."""
        if self.ingestion is not None and self._writer is not None:
            if not self.ingestion.catch_up(PATIENCE_S, self._step):
                statistics = self.ingestion.statistics()
                why = statistics.last_error if statistics.is_failing else "nothing more comes of it"
                log.warning("rows of %s have not caught up with the log, and go on: %s", self._rows.content, why)
            self._writer.raise_marks()
        if not self._store.advance(Progress.SEALED):
            raise StoreUnavailable(f"Redis {self._store.where} has lost rows while they were put there")
        log.info("Redis has all rows of %s", self._rows.content)

    def _stop_writing(self) -> None:
        ingestion, writer, self.ingestion, self._writer = self.ingestion, self._writer, None, None
        if ingestion is not None:
            ingestion.close()
        self._replaced |= writer is not None and writer.replaced

    def _step(self) -> None:
        """Within what takes long. Raises `StoreUnavailable` where the server is being closed."""
        if self._closing.is_set():
            raise StoreUnavailable("the server is being closed")
        self._go_on()
        self._claim()

    @property
    def _lease_key(self) -> bytes:
        return b"hebe2:{%s}:writer" % quote(self._store.namespace, safe="").encode()

    def _claim(self) -> bool:
        """Whether this server is the one that writes; prolongs the lease then."""
        return self._run_script(_CLAIM, self._lease_key, self._token, b"%d" % _LEASE_MS) == 1

    def _ask(self, verb: bytes, key: bytes, *arguments: bytes) -> Reply:
        [reply] = self._store.carry_out([Command(key, (verb, key, *arguments))])
        return reply

    def _run_script(self, script: bytes, key: bytes, *arguments: bytes) -> Reply:
        [reply] = self._store.carry_out([Command(key, (b"EVAL", script, b"1", key, *arguments))])
        return reply


def _can_go_on(state: PartitionState, ends: KeyArray) -> bool:
    """Whether a log that ends there has what a partition has updates of, as far as their number shows."""
    return not state.marks.size or (state.marks.size == ends.size and bool((state.complete <= ends).all()))
