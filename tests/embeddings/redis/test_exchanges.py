import numpy as np
import pytest

from hebe.embeddings.options import VolatileOptions
from hebe.embeddings.redis.exchanges import RedisTable, exchanges
from hebe.embeddings.redis.layout import PartitionCommands, elements
from hebe.kernels.hash_tables.xxh64 import key_partitions

OPTIONS = VolatileOptions(4)


def table_of(name, dim):
    return RedisTable(name, dim, 7, tuple(PartitionCommands("m", name, number, dim, OPTIONS) for number in range(4)))


TABLES = [table_of("wide", 100), table_of("none", 7), table_of("narrow", 1)]


@pytest.mark.parametrize("most_keys", [1, 7, 1000])
def test_every_key_crosses_once_with_its_partition(most_keys):
    keys, starts = np.random.default_rng(0).integers(-50, 50, 60), np.array([0, 25, 25, 60])
    seen = []
    for exchange in exchanges(TABLES, keys, starts, most_keys):
        assert 1 <= len(exchange.places) <= most_keys
        seen += exchange.places.tolist()
        assert sum(len(share.names) for share in exchange.shares) == len(exchange.places)
        for share in exchange.shares:
            places = exchange.places[share.own]
            assert (np.diff(places) > 0).all(), "keys of a partition stay in order"
            assert share.names == elements(keys[places])
            number = TABLES.index(share.table)
            assert ((starts[number] <= places) & (places < starts[number + 1])).all()
            [partition] = set(key_partitions(keys[places], 4).tolist())
            assert share.partition is share.table.partitions[partition]
    assert sorted(seen) == list(range(60))


def test_an_exchange_has_16_mib_of_rows_at_most():
    wide, narrow = table_of("wide", 1 << 20), table_of("narrow", 1)
    sizes = [len(each.places) for each in exchanges([narrow, wide], np.arange(20), np.array([0, 10, 20]), 1000)]
    assert sizes == [10 + 3, 4, 3]
    wider = table_of("wider", 5 << 20)
    assert [len(each.places) for each in exchanges([wider], np.arange(2), np.array([0, 2]), 1000)] == [1, 1]


def test_no_keys_at_all():
    assert list(exchanges(TABLES, np.empty(0, np.int64), np.zeros(4, np.int64), 10)) == []
