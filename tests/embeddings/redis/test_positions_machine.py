"""What positions promise, against a model: two servers share a Redis that loses, forgets and goes back, while updates
come.

A server knows the updates that its own level 3 has. No row of Redis that it uses may be older; and once all that the
log has is written, every row in Redis is as the log says. Writers stand still between any two of their exchanges.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hebe.embeddings.options import VolatileOptions
from hebe.embeddings.redis.layout import NOTHING, Progress, mark_of
from hebe.embeddings.redis.store import RedisStore
from hebe.embeddings.redis.writer import RedisWriter
from hebe.embeddings.store import UNKNOWN_POSITION, StoreUnavailable
from hebe.embeddings.tiers.update_positions import UpdatePositions
from hebe.kernels.hash_tables.xxh64 import key_partitions
from tests.embeddings.stores.redis_stores import NAMESPACES, PATIENT

TABLE, DIM = "users", 2
KEYS = np.arange(8)
LOG_PARTITIONS, PARTITIONS = 2, 3
LOG_PARTITION = key_partitions(KEYS, LOG_PARTITIONS)
PARTITION = key_partitions(KEYS, PARTITIONS)
PIECE_KEYS = 2
"""Larger messages are cut."""
NEVER_UPDATED = float(NOTHING)
SOME_KEYS = st.lists(st.sampled_from(KEYS[:3].tolist()), min_size=1, unique=True) | st.lists(
    st.sampled_from(KEYS.tolist()), min_size=1, unique=True
)
MESSAGES = st.lists(st.tuples(SOME_KEYS, st.booleans()), min_size=1, max_size=3)
WHO = st.integers(0, 1)
STEPS = st.integers(1, 4)
MISHAPS = ["go back", "go back", "restart", "new writer", "lose the connection", "flush", "lose a partition"]


@dataclass(frozen=True)
class Message:
    """Of one log partition: `keys` get rows that tell the key and the offset, or are deleted."""

    offset: int
    keys: tuple[int, ...]
    deletes: bool


@dataclass(frozen=True)
class Batch:
    """What stores are given at once; `position` None: more of the message follows."""

    log_partition: int
    offsets: dict[int, int]
    deletes: bool
    position: int | None


class Log:
    """By partition its messages; offsets have holes."""

    def __init__(self) -> None:
        self.partitions: list[list[Message]] = [[] for _ in range(LOG_PARTITIONS)]

    def append(self, keys: list[int], deletes: bool, hole: int) -> None:
        for number, messages in enumerate(self.partitions):
            own = tuple(key for key in keys if LOG_PARTITION[key] == number)
            if own:
                messages.append(Message(self.end(number) + 1 + hole, own, deletes))

    def end(self, number: int) -> int:
        return self.partitions[number][-1].offset if self.partitions[number] else NOTHING

    def ends(self) -> list[int]:
        return [self.end(number) for number in range(LOG_PARTITIONS)]

    def updates(self, key: int) -> list[tuple[int, bool]]:
        """Offset, and whether the key is deleted."""
        return [(each.offset, each.deletes) for each in self.partitions[LOG_PARTITION[key]] if key in each.keys]

    def last_update(self, key: int, position: int) -> int:
        return max([offset for offset, _ in self.updates(key) if offset <= position], default=NOTHING)

    def state(self, key: int, position: int) -> float | None:
        """The offset that the row tells which the key has there; None: no row."""
        last = self.last_update(key, position)
        return None if (last, True) in self.updates(key) else float(last)

    def batches(self, number: int, position: int, most_messages: int) -> list[Batch]:
        """The next messages after a position, of one kind, as a batch that has the last update of each key; one that is
        large alone, and cut.
        """
        after = [each for each in self.partitions[number] if each.offset > position][:most_messages]
        taken = list(itertools.takewhile(lambda each: each.deletes == after[0].deletes, after))
        if taken and len(taken[0].keys) > PIECE_KEYS:
            first = taken[0]
            cut = [first.keys[at : at + PIECE_KEYS] for at in range(0, len(first.keys), PIECE_KEYS)]
            pieces = [Batch(number, dict.fromkeys(keys, first.offset), first.deletes, None) for keys in cut[:-1]]
            return [*pieces, Batch(number, dict.fromkeys(cut[-1], first.offset), first.deletes, first.offset)]
        taken = list(itertools.takewhile(lambda each: len(each.keys) <= PIECE_KEYS, taken))
        if not taken:
            return []
        offsets = {key: each.offset for each in taken for key in each.keys}
        return [Batch(number, offsets, taken[0].deletes, taken[-1].offset)]


def row_of(key: int, offset: float) -> list[float]:
    return [float(key), offset]


class Work:
    """A call in a thread of its own that stands still before each exchange with Redis, until it is let go on."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._go, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self._cancelled = self.over = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._stands.acquire()

    def stand(self) -> None:
        """Called by the thread itself."""
        self._stands.release()
        self._go.acquire()
        if self._cancelled:
            raise StoreUnavailable("the connection is lost")

    def go_on(self) -> None:
        if not self.over:
            self._go.release()
            self._stands.acquire()

    def cancel(self) -> None:
        self._cancelled = True
        while not self.over:
            self.go_on()
        self._thread.join()

    def _run(self, call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            self.error = error
        self.over = True
        self._stands.release()


class SteppedStore(RedisStore):
    """One whose exchanges are counted by `work`, while there is any."""

    work: Work | None = None

    def ask(self, asked):
        if self.work is not None:
            self.work.stand()
        return super().ask(asked)


class Writer:
    """A `RedisWriter`, and the batches that it is to write."""

    def __init__(self, store: SteppedStore, log: Log) -> None:
        self.log, self.store = log, store
        self.writer = RedisWriter(store, "model", "log", lambda _: LOG_PARTITIONS)
        noted = self.writer.positions()
        self.at = [noted.get(f"log/model/{TABLE}/{number}", NOTHING) for number in range(LOG_PARTITIONS)]
        self.ready: deque[Batch] = deque()
        self.work: Work | None = None

    def step(self, number: int, messages: int, steps: int | None) -> None:
        """Some exchanges of what is being written, or else of what comes next; None: all that there is."""
        if steps is None:
            self.write_all()
            return
        if self.work is None:
            if not self.ready:
                self.ready.extend(self.log.batches(number, self.at[number], messages))
            if not self.ready:
                return
            self.work = self.store.work = Work(self._write)
            self.work.start()
        for _ in range(steps):
            self.work.go_on()
        if self.work.over:
            self._end()

    def write_all(self) -> None:
        self.finish()
        for number in range(LOG_PARTITIONS):
            while (self.ready or self.at[number] < self.log.end(number)) and not self.writer.lost:
                self.step(number, 3, 99)

    def finish(self) -> None:
        while self.work is not None:
            self.step(0, 1, 99)

    def lose_connection(self) -> None:
        """What is being written is not; it is tried again later."""
        if self.work is not None:
            self.work.cancel()
            self._end()

    def _end(self) -> None:
        assert self.work is not None
        error, self.work, self.store.work = self.work.error, None, None
        if error is None:
            batch = self.ready.popleft()
            if batch.position is not None:
                self.at[batch.log_partition] = batch.position
        elif not isinstance(error, StoreUnavailable):
            raise error

    def _write(self) -> None:
        batch = self.ready[0]
        keys, offsets = np.array(list(batch.offsets)), np.array(list(batch.offsets.values()))
        rows = np.array([row_of(*each) for each in batch.offsets.items()], np.float32)
        name = f"log/model/{TABLE}/{batch.log_partition}"
        position = None if batch.position is None else (name, batch.position)
        self.writer.apply(TABLE, keys, None if batch.deletes else rows, position, offsets=offsets)


class Redis:
    """The one that is shared: writers, copies of what it held, and what may happen to it."""

    def __init__(self, server, client, *, alone: bool) -> None:
        self.client, self.namespace = client, next(NAMESPACES)
        self.stores: list[SteppedStore] = []
        self._server, self._alone = server, alone
        client.flushdb()
        self.writers: list[Writer | None] = [None, None]
        self.writing = [self.open() for _ in range(2)]
        self.copies: deque[dict[bytes, bytes]] = deque(maxlen=8)

    def open(self) -> SteppedStore:
        # One partition an exchange: a writer may stand still after each.
        store = SteppedStore(
            {TABLE: DIM}, self._server.address, VolatileOptions(PARTITIONS), namespace=self.namespace, access=PATIENT,
            max_batch_size=1, alone=self._alone,
        )  # fmt: skip
        store.log_partitions = lambda _: LOG_PARTITIONS
        self.stores.append(store)
        return store

    def copy(self) -> None:
        names = self.client.keys("*")
        self.copies.append({name: self.client.dump(name) for name in names})

    def restore(self, ago: int) -> None:
        """What it held some copies ago."""
        copy = self.copies[-1 - ago % len(self.copies)]
        self.client.flushdb()
        for name, value in copy.items():
            self.client.restore(name, 0, value)

    def whole(self) -> bool:
        return all(state is not None for state in self.writing[0].states()[TABLE])

    def close(self) -> None:
        for writer in self.writers:
            if writer is not None:
                writer.lose_connection()
        for store in self.stores:
            store.close()


def answers(store: RedisStore, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each key whether it has a row, which offset it tells, and the position up to which it has all updates."""
    count = len(keys)
    rows, found, positions = np.zeros((count, DIM), np.float32), np.zeros(count, np.bool_), np.zeros(count, np.int64)
    starts, bases = np.array([0, count]), np.array([0, rows.size])
    store.fill_tables((TABLE,), keys, starts, rows.reshape(-1), bases, np.ones(count, np.bool_), found, positions)
    assert np.array_equal(rows[found, 0], keys[found])
    return found, rows[:, 1], positions


def put_in(store: RedisStore, offsets: dict[int, float], positions: np.ndarray) -> int:
    """Fill with rows that tell these offsets, at these positions by log partition."""
    keys = np.array(list(offsets), np.int64)
    rows = np.array([row_of(*each) for each in offsets.items()], np.float32).reshape(len(keys), DIM)
    numbers = LOG_PARTITION[keys]
    chosen = positions[numbers] != UNKNOWN_POSITION
    starts, bases = np.array([0, len(keys)]), np.array([0, rows.size])
    return store.fill((TABLE,), keys, starts, rows.reshape(-1), bases, chosen, positions[numbers], numbers)


class Server:
    """One that has a level 3 of its own, and applies updates to it at its own pace."""

    def __init__(self, redis: Redis, log: Log) -> None:
        self.redis, self.log = redis, log
        self.rows: dict[int, float] = dict.fromkeys(KEYS.tolist(), NEVER_UPDATED)
        self.at = [NOTHING] * LOG_PARTITIONS
        self.ready: deque[Batch] = deque()
        self.restart()

    def restart(self) -> None:
        """It forgets all but its level 3."""
        self.ready.clear()
        self.store = self.redis.open()
        self.updates = UpdatePositions([TABLE])
        for number, position in enumerate(self.at):
            self.updates.begin(TABLE, number, position)

    def apply(self, number: int, messages: int) -> None:
        if not self.ready:
            self.ready.extend(self.log.batches(number, self.at[number], messages))
        if not self.ready:
            return
        batch = self.ready.popleft()
        self.updates.writing(TABLE, batch.log_partition, max(batch.offsets.values()))
        for key, offset in batch.offsets.items():
            if batch.deletes:
                self.rows.pop(key, None)
            else:
                self.rows[key] = float(offset)
        keys, offsets = np.array(list(batch.offsets)), np.array(list(batch.offsets.values()))
        self.updates.written(TABLE, batch.log_partition, keys, offsets, batch.position)
        if batch.position is not None:
            self.at[batch.log_partition] = batch.position

    def apply_all(self) -> None:
        for number in range(LOG_PARTITIONS):
            while self.ready or self.at[number] < self.log.end(number):
                self.apply(number, 3)

    def known(self, key: int) -> int:
        """The offset of the last update of a key that its level 3 has, or is being given."""
        given = [batch.position for batch in self.ready if batch.log_partition == LOG_PARTITION[key]]
        if given and self.rows.get(key, NOTHING) == (end := given[-1]):
            return int(end or 0)
        return self.log.last_update(key, self.at[LOG_PARTITION[key]])

    def look_up(self, keys: list[int]) -> dict[int, float | None]:
        """The offset that each key's answer tells, as the tiered lookup would: what Redis has, unless it lacks an
        update that is known, and else what level 3 has.
        """
        asked = np.array(keys, np.int64)
        found, offsets, positions = answers(self.store, asked)
        required = self.updates.of_keys((TABLE,), asked, np.array([0, len(asked)])).required
        used = found & (positions >= required)
        return {
            key: float(offset) if use else self.rows.get(key)
            for key, offset, use in zip(keys, offsets.tolist(), used.tolist(), strict=True)
        }


class OverLevel3(RuleBasedStateMachine):
    """Redis over a level 3 in each of two servers."""

    redis_server, client = None, None

    @initialize()
    def begin(self) -> None:
        self.log = Log()
        self.redis = Redis(self.redis_server, self.client, alone=False)
        self.servers = [Server(self.redis, self.log) for _ in range(2)]
        self.fills: deque[tuple[int, dict[int, float], np.ndarray]] = deque(maxlen=4)
        self.new_writer(0)

    @rule(messages=MESSAGES, hole=st.integers(0, 1), who=st.none() | WHO)
    def append(self, messages, hole, who):
        for keys, deletes in messages:
            self.log.append(keys, deletes, hole)
        if who is not None:
            self.servers[who].apply_all()

    @rule(who=WHO, number=WHO, messages=STEPS)
    def apply(self, who, number, messages):
        self.servers[who].apply(number, messages)

    def new_writer(self, who):
        """As the keeper does it: partitions without a state begin where the log ends."""
        if self.redis.writers[who] is not None:
            self.redis.writers[who].lose_connection()
        marks = np.array([mark_of(end) for end in self.log.ends()], np.int64)
        self.redis.writing[who].begin(Progress.SEALED, {TABLE: marks})
        self.redis.writers[who] = Writer(self.redis.writing[who], self.log)

    @rule(who=WHO, number=WHO, messages=STEPS, steps=st.sampled_from([None, 1, 2, 4]))
    def write(self, who, number, messages, steps):
        self.redis.copy()
        writer = self.redis.writers[who]
        if writer is None or writer.writer.lost:
            self.new_writer(who)
        else:
            writer.step(number, messages, steps)

    @rule(who=WHO)
    def raise_marks(self, who):
        self.redis.copy()
        writer = self.redis.writers[who]
        if writer is not None and writer.work is None:
            with contextlib.suppress(StoreUnavailable):
                writer.writer.raise_marks()

    @rule(who=WHO, keys=SOME_KEYS, between=st.none() | st.tuples(WHO, STEPS))
    def read_to_fill(self, who, keys, between):
        """Level 3 is read; what it has is put into Redis with a later rule. Updates may come between."""
        server = self.servers[who]
        before = server.updates.settled(TABLE)
        offsets = {key: server.rows[key] for key in keys if key in server.rows}
        if between is not None:
            server.apply(*between)
        after = server.updates.settled(TABLE)
        self.fills.append((who, offsets, np.where(before == after, after, UNKNOWN_POSITION)))

    @precondition(lambda self: self.fills)
    @rule(which=st.integers(0, 3))
    def fill(self, which):
        self.redis.copy()
        who, offsets, positions = self.fills[which % len(self.fills)]
        if offsets:
            put_in(self.servers[who].store, offsets, positions)

    @rule(keys=SOME_KEYS)
    def evict(self, keys):
        for key in keys:
            partition = self.redis.writing[0].table(TABLE).partitions[PARTITION[key]]
            self.client.hdel(partition.rows, int(key).to_bytes(8, "little"))

    @rule(who=WHO, what=st.sampled_from(MISHAPS), ago=st.integers(0, 7))
    def mishap(self, who, what, ago):
        server, writer = self.servers[who], self.redis.writers[who]
        match what:
            case "go back" if self.redis.copies:  # a replica takes over that lacks the last writes, or an old copy
                self.redis.restore(ago)
            case "new writer":
                self.new_writer(who)
            case "restart":
                while server.ready:  # it would write again what its level 3 has of a message in part
                    server.apply(0, 1)
                server.restart()
            case "lose the connection" if writer is not None:
                writer.lose_connection()
            case "flush":
                self.client.flushdb()
            case "lose a partition":
                self.redis.writing[0].clear(TABLE, [who])

    @invariant()
    def no_answer_is_older_than_what_is_known(self):
        for server in self.servers if hasattr(self, "servers") else ():
            for key, offset in server.look_up(KEYS.tolist()).items():
                known = server.known(key)
                if offset != server.rows.get(key):
                    assert offset > known, f"key {key} of offset {offset}, and {known} is known"
                    assert (int(offset), False) in self.log.updates(key)

    def teardown(self) -> None:
        if not hasattr(self, "redis"):
            return
        try:
            self.all_is_as_the_log_says()
        finally:
            self.redis.close()

    def all_is_as_the_log_says(self) -> None:
        self.redis.writing.append(self.redis.open())
        self.redis.writers.append(None)
        self.new_writer(2)
        last = self.redis.writers[2]
        assert last is not None
        last.write_all()
        last.writer.raise_marks()
        assert not last.writer.lost
        self.rows_are_as_the_log_says()
        for who, offsets, positions in self.fills:
            if offsets:
                put_in(self.servers[who].store, offsets, positions)
        for writer in self.redis.writers[:2]:
            if writer is not None:
                writer.write_all()  # those that stood still go on, if nothing was lost
        self.rows_are_as_the_log_says()
        for server in self.servers:
            server.apply_all()
            assert server.look_up(KEYS.tolist()) == self.truth()

    def rows_are_as_the_log_says(self) -> None:
        found, offsets, positions = answers(self.redis.open(), KEYS)
        end, truth = self.log.ends(), self.truth()
        for key in KEYS[found].tolist():
            assert offsets[key] == truth[key], f"key {key} is there of offset {offsets[key]}, and was {truth[key]}"
            assert positions[key] == end[LOG_PARTITION[key]]

    def truth(self) -> dict[int, float | None]:
        return {key: self.log.state(key, self.log.end(LOG_PARTITION[key])) for key in KEYS.tolist()}


class Alone(RuleBasedStateMachine):
    """Redis alone, which two servers put the model's rows into."""

    redis_server, client = None, None

    @initialize()
    def begin(self) -> None:
        self.log = Log()
        self.redis = Redis(self.redis_server, self.client, alone=True)
        self.reader = self.redis.open()
        self.filled: list[list[int]] = [[], []]

    @rule(messages=MESSAGES)
    def append(self, messages):
        for keys, deletes in messages:
            self.log.append(keys, deletes, 0)

    @rule(who=WHO)
    def begin_to_fill(self, who):
        """What a server finds that lacks rows, by its partition, it fills in the steps that follow."""
        self.redis.writing[who].begin(Progress.BEGUN)
        states = self.redis.writing[who].states()[TABLE]
        self.filled[who] = [number for number, state in enumerate(states) if state.progress is Progress.BEGUN]

    @rule(who=WHO, keys=SOME_KEYS)
    def fill(self, who, keys):
        self.redis.copy()
        own = {key: NEVER_UPDATED for key in keys if PARTITION[key] in self.filled[who]}
        if own:
            put_in(self.redis.writing[who], own, np.full(LOG_PARTITIONS, NOTHING))

    @rule(who=WHO)
    def fill_all(self, who):
        self.fill(who, KEYS.tolist())
        # Of others nothing is known: one may have been lost and begun again since.
        own, counts = np.isin(range(PARTITIONS), self.filled[who]), np.bincount(PARTITION, minlength=PARTITIONS)
        least = np.where(own, counts, np.iinfo(np.int64).max)
        if self.redis.writing[who].advance(Progress.FILLED, {TABLE: least}):
            self.new_writer(who)

    def new_writer(self, who: int) -> None:
        if self.redis.writers[who] is not None:
            self.redis.writers[who].lose_connection()
            self.redis.writers[who] = None
        with contextlib.suppress(StoreUnavailable):
            self.redis.writers[who] = Writer(self.redis.writing[who], self.log)

    @rule(who=WHO, number=WHO, messages=STEPS, steps=st.sampled_from([None, 1, 2, 4]))
    def write(self, who, number, messages, steps):
        self.redis.copy()
        writer = self.redis.writers[who]
        if writer is not None and not writer.writer.lost:
            writer.step(number, messages, steps)

    @rule(who=WHO)
    def seal(self, who):
        writer = self.redis.writers[who]
        if writer is None or writer.writer.lost:
            return
        writer.write_all()
        with contextlib.suppress(StoreUnavailable):
            writer.writer.raise_marks()
            self.redis.copy()
            self.redis.writing[who].advance(Progress.SEALED)

    @rule(number=st.integers(0, PARTITIONS - 1))
    def lose_a_partition(self, number):
        self.redis.writing[0].clear(TABLE, [number])

    @precondition(lambda self: self.redis.copies)
    @rule(ago=st.integers(0, 7))
    def go_back(self, ago):
        self.redis.restore(ago)

    @invariant()
    def answers_are_of_what_is_whole(self):
        for number, state in enumerate(self.redis.writing[0].states()[TABLE] if hasattr(self, "redis") else ()):
            keys = KEYS[number == PARTITION]
            if state is not None and state.progress is Progress.SEALED:
                self.answers_are_right(keys, state.complete)
            else:
                with pytest.raises(StoreUnavailable):
                    answers(self.reader, keys)

    def answers_are_right(self, keys, complete):
        found, offsets, positions = answers(self.reader, keys)
        for key, is_there, offset, position in zip(keys, found, offsets, positions, strict=True):
            written = complete[LOG_PARTITION[key]] if complete.size else NOTHING
            later = [(each, gone) for each, gone in self.log.updates(key) if each > written]
            if is_there:
                possible = [self.log.state(key, written), *(each for each, gone in later if not gone)]
                assert offset in possible
                assert position == UNKNOWN_POSITION or offset >= self.log.last_update(key, position)
            else:
                assert self.log.state(key, written) is None or any(gone for _, gone in later)

    def teardown(self) -> None:
        if not hasattr(self, "redis"):
            return
        try:
            self.all_is_as_the_log_says()
        finally:
            self.redis.close()

    def all_is_as_the_log_says(self) -> None:
        self.begin_to_fill(0)
        self.fill_all(0)
        self.seal(0)
        for who in range(2):
            self.fill(who, KEYS.tolist())  # those that stood still go on
        if self.redis.writers[1] is not None:
            self.redis.writers[1].write_all()
        found, offsets, positions = answers(self.redis.open(), KEYS)
        end = self.log.ends()
        for key in KEYS.tolist():
            truth = self.log.state(key, end[LOG_PARTITION[key]])
            assert truth == (offsets[key] if found[key] else None)
            assert not found[key] or positions[key] == end[LOG_PARTITION[key]]


def run(machine: type[OverLevel3] | type[Alone], redis_server, examples: int) -> None:
    with redis_server.client() as client:
        machine.redis_server, machine.client = redis_server, client
        checks = list(HealthCheck)
        how = settings(max_examples=examples, stateful_step_count=40, deadline=None, suppress_health_check=checks)
        run_state_machine_as_test(machine, settings=how)


def test_over_a_level_3_no_answer_is_older_than_what_is_known(redis_server):
    run(OverLevel3, redis_server, 40)


def test_redis_alone_answers_only_what_is_whole(redis_server):
    run(Alone, redis_server, 25)
