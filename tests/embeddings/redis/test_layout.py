from itertools import repeat

import numpy as np
import pytest
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from hebe.embeddings.options import OverflowPolicy, VolatileOptions
from hebe.embeddings.redis.layout import COMMAND_KEYS, PartitionCommands, elements, pairs


def commands_of(
    partition: int = 0, partitions: int = 4, namespace: str = "ads.1", table: str = "users", **options: object
) -> PartitionCommands:
    return PartitionCommands(namespace, table, partition, 3, VolatileOptions(partitions, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("partitions", [1, 3, 16, 256])
def test_partitions_lie_evenly_over_a_cluster(partitions):
    slots = [key_slot(commands_of(each, partitions).rows) for each in range(partitions)]
    assert [slot * partitions // REDIS_CLUSTER_HASH_SLOTS for slot in slots] == list(range(partitions))


@pytest.mark.parametrize("policy", list(OverflowPolicy))
def test_all_redis_keys_of_a_partition_lie_in_one_slot(policy):
    commands = commands_of(2, overflow_policy=policy)
    names = commands.clear().arguments[1:]
    assert len(set(names)) == len(names) == (1 if policy is OverflowPolicy.EVICT_RANDOM else 2)
    assert {key_slot(name) for name in names} == {key_slot(commands.rows)}


def test_no_two_tables_share_a_redis_key_whatever_they_are_called():
    named = [("a", "b/c"), ("a/b", "c"), ("a", "b%2Fc"), ("a", "b"), ("a}", "b"), ("a{", "b")]
    rows = [commands_of(namespace=namespace, table=table).rows for namespace, table in named]
    assert len(set(rows)) == len(rows)
    assert all(name.count(b"{") == name.count(b"}") == 1 for name in rows)


def test_a_layout_is_another_with_every_option_that_moves_rows():
    changed = [{}, {"partitions": 8}, {"overflow_policy": OverflowPolicy.EVICT_OLDEST}]
    layouts = {commands_of(**each).layout for each in changed}
    layouts.add(PartitionCommands("ads.1", "users", 0, 4, VolatileOptions(4)).layout)
    assert len(layouts) == 4
    assert commands_of(overflow_margin=5).layout == commands_of().layout, "each server may prune as it will"


def test_a_large_batch_is_cut_so_that_others_come_in_between():
    keys = [b"%08d" % number for number in range(2 * COMMAND_KEYS + 1)]
    commands = commands_of()
    for asked, names in ((commands.query(keys), 3), (commands.delete(keys), 2)):
        parts = [command.arguments[names:] for command in asked]
        assert [len(part) for part in parts] == [COMMAND_KEYS, COMMAND_KEYS, 1]
        assert [key for part in parts for key in part] == keys
    *puts, size = commands.insert(keys, keys[::-1], 0.0)
    assert [pair for put in puts for pair in put.arguments[2:]] == [
        each for pair in zip(keys, keys[::-1], strict=True) for each in pair
    ]
    assert size == commands.size()


def test_what_was_used_is_told_where_that_decides_who_is_evicted():
    keys = [b"%08d" % number for number in range(3)]
    for policy, told in {"evict_random": 0, "evict_oldest": 1, "evict_least_used": 1}.items():
        commands = commands_of(overflow_policy=OverflowPolicy(policy))
        assert len(list(commands.touch(keys, [1, 2, 1], 1e9))) == told
        assert len(list(commands.forget(keys))) == told


@pytest.mark.parametrize("order", ["<", ">"])
def test_keys_are_eight_bytes_whatever_they_are(order):
    keys = np.array([0, -1, 2**63 - 1, -(2**63), 5 << 56], f"{order}i8")
    assert elements(keys) == [int(key).to_bytes(8, "little", signed=True) for key in keys]


@pytest.mark.parametrize("dim", [1, 3, 100_000])
def test_rows_are_the_bytes_of_their_numbers(dim):
    rows = np.random.default_rng(dim).random((4, dim), np.float32)
    rows[:, -1] = 0  # ends in zero bytes, which are part of it
    assert elements(rows) == [row.astype("<f4").tobytes() for row in rows]
    assert elements(rows[::2]) == elements(rows)[::2]


def test_nothing():
    assert elements(np.empty(0, np.int64)) == elements(np.empty((0, 3), np.float32)) == []


def test_pairs():
    assert list(pairs([b"a", b"b"], [b"1", b"2"])) == [b"a", b"1", b"b", b"2"]
    assert list(pairs(repeat(b"s"), [b"1", b"2"])) == [b"s", b"1", b"s", b"2"]
