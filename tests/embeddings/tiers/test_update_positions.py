"""What a server knows of updates, against a dict of the last one of each key."""

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from hebe.embeddings.store import UNKNOWN_POSITION
from hebe.embeddings.tiers.update_positions import UpdatePositions
from hebe.kernels.hash_tables.xxh64 import key_partitions

TABLES = ("users", "items")
KEYS = np.arange(40)
TABLE, NUMBER = st.sampled_from(TABLES), st.integers(0, 5)
SOME_KEYS = st.lists(st.sampled_from(KEYS.tolist()), unique=True)


class Machine(RuleBasedStateMachine):
    """Partitions are begun, in any order, and given updates; messages come whole, in part, or put back into order."""

    def __init__(self):
        super().__init__()
        self.positions = UpdatePositions(TABLES)
        self.begun = {}
        self.last = {}
        self.stored = {}
        self.writing = {}
        self.counts = dict.fromkeys(TABLES, 0)

    def at(self, table, number):
        return table, number % self.counts[table]

    @rule(table=TABLE, number=NUMBER, position=st.integers(-1, 30))
    def begin(self, table, number, position):
        changes = self.positions.changes
        self.positions.begin(table, number, position)
        assert self.positions.changes > changes
        if number >= self.counts[table]:  # keys move: each may have had whatever its partition is begun after
            self.last = {at: last for at, last in self.last.items() if at[0] != table}
            for other in range(self.counts[table], number + 1):
                self.stored[table, other] = self.writing[table, other] = -1
            self.counts[table] = number + 1
        self.begun[table, number] = self.stored[table, number] = self.writing[table, number] = position
        self.last = {at: last for at, last in self.last.items() if at[:2] != (table, number)}

    @rule(table=TABLE, number=NUMBER, keys=SOME_KEYS, step=st.integers(1, 3), follows=st.booleans(), back=st.booleans())
    def write(self, table, number, keys, step, follows, back):
        if not self.counts[table]:
            return
        at = self.at(table, number)
        own = [key for key in keys if key_partitions(np.array([key]), self.counts[table])[0] == at[1]]
        offset = self.writing[at] + step
        position = None if follows else offset
        if back:
            offset -= 1
        self.positions.writing(*at, offset)
        self.writing[at] = max(self.writing[at], offset)
        self.settled_is_right()
        changes, before = self.positions.changes, self.required()
        self.positions.written(*at, np.array(own, np.int64), np.full(len(own), offset), position)
        assert self.positions.changes > changes
        for key in own:
            self.last[*at, key] = max(offset, self.last.get((*at, key), -1))
        if position is not None:
            self.stored[at] = position
            self.writing[at] = max(self.writing[at], position)
        assert (self.required() >= before).all(), "it grows"

    def required(self):
        return self.positions.of_keys(TABLES, np.tile(KEYS, 2), np.array([0, len(KEYS), 2 * len(KEYS)])).required

    @invariant()
    def nothing_is_less_than_it_is(self):
        known = self.positions.of_keys(TABLES, np.tile(KEYS, 2), np.array([0, len(KEYS), 2 * len(KEYS)]))
        numbers = np.concatenate([self.positions.partitions_of(table, KEYS) for table in TABLES]).tolist()
        for place, (table, key) in enumerate((table, key) for table in TABLES for key in KEYS.tolist()):
            if not self.counts[table]:
                assert known.stored[place] == known.required[place] == -1
                continue
            at = table, numbers[place]
            assert known.stored[place] == self.stored[at]
            assert known.required[place] >= max(self.last.get((*at, key), -1), self.begun.get(at, -1))
            assert known.required[place] <= max(self.writing[at], self.stored[at])

    @invariant()
    def settled_is_right(self):
        assert self.positions.active == any(self.counts.values())
        for table in TABLES:
            assert self.positions.count(table) == self.counts[table]
            every = [(table, number) for number in range(self.counts[table])]
            expected = [
                UNKNOWN_POSITION if self.writing[at] > self.stored[at] else self.stored[at] for at in every
            ]  # fmt: skip
            assert self.positions.settled(table).tolist() == expected


def test_it_never_reports_less_than_what_is_known():
    how = settings(max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Machine, settings=how)


def test_of_few_keys_each_is_known_alone():
    positions, keys = UpdatePositions(["users"]), np.arange(1000)
    positions.begin("users", 0, 10)
    positions.written("users", 0, keys[:5], np.arange(11, 16), 20)
    known = positions.of_keys(("users",), keys, np.array([0, 1000]))
    assert known.required[:5].tolist() == [11, 12, 13, 14, 15]
    assert np.count_nonzero(known.required[5:] != 10) < 5, "others have no update, but for a few that share a slot"
    assert set(known.stored.tolist()) == {20}


def test_what_was_noted_is_forgotten_where_the_partition_begins_again():
    positions, keys = UpdatePositions(["users"]), np.arange(100)
    numbers = key_partitions(keys, 2)
    for number in range(2):
        positions.begin("users", number, -1)
    for number in range(2):
        positions.written("users", number, keys[numbers == number], np.full(np.count_nonzero(numbers == number), 7), 7)
    positions.begin("users", 1, 3)
    known = positions.of_keys(("users",), keys, np.array([0, 100]))
    assert known.required.tolist() == np.where(numbers == 0, 7, 3).tolist()


def test_keys_that_move_to_other_partitions_may_have_had_any_update():
    positions, keys = UpdatePositions(["users"]), np.arange(100)
    positions.begin("users", 0, -1)
    positions.written("users", 0, keys, np.full(100, 7), 9)
    positions.begin("users", 1, 4)
    known = positions.of_keys(("users",), keys, np.array([0, 100]))
    assert known.required.tolist() == np.where(key_partitions(keys, 2) == 0, 9, 4).tolist()
