"""How stores of each kind take updates: with positions, without new keys, or neither."""

from typing import ClassVar

import numpy as np

from hebe.embeddings.rocksdb.store import RocksDbStore
from hebe.embeddings.updates.ingestion.store_batches import StoreBatch
from hebe.embeddings.updates.ingestion.updated_stores import StoredPosition, UpdatedStores
from tests.embeddings.stores.dict_store import DictStore
from tests.embeddings.updates.conformance.list_source import DIMS

KEYS = np.arange(3)


class Bounded(DictStore):
    why_refused = "it is full"

    @property
    def refused_keys(self):
        return {"users": 2}


class Narrow(DictStore):
    unheld_rows: ClassVar = {"users": 3}


def batch(deletes=False):
    rows = None if deletes else np.ones((3, DIMS["users"]), np.float32)
    return StoreBatch(KEYS, rows, 3, None, (), "p/7")


def test_rows_are_put_and_keys_deleted_with_and_without_a_position(tmp_path):
    plain, positioned = DictStore(DIMS), RocksDbStore(tmp_path, DIMS)
    stores = UpdatedStores({"persistent_db": positioned, "volatile_db": plain})
    assert list(stores) == ["persistent_db", "volatile_db"]
    for deletes, size in ((False, 3), (True, 0)):
        for tier in stores:
            stores.write(tier, "users", batch(deletes), ("log", size) if deletes else None)
        assert plain.size("users") == positioned.size("users") == size
    assert stores.positions() == {"log": StoredPosition(0, "p/7")}
    positioned.close()


def test_positions_are_those_that_all_stores_have_reached(tmp_path):
    assert UpdatedStores({"volatile_db": DictStore(DIMS)}).positions() is None
    first, second = (RocksDbStore(tmp_path / name, DIMS) for name in ("first", "second"))
    stores = UpdatedStores({"first": first, "second": second})
    assert stores.positions() == {}
    for tier, position in (("first", ("log", 7)), ("second", ("log", 5)), ("second", ("other", 1))):
        stores.write(tier, "users", batch(), position)
    assert stores.positions() == {"log": StoredPosition(5, "p/7")}
    first.apply("users", KEYS, None, ("log", 4), mark="q/0", anew=True)
    assert stores.positions() == {"log": StoredPosition(4, "q/0")}
    stores.write("first", "users", batch(), ("log", 3), anew=True)
    assert stores.positions() == {"log": StoredPosition(3, "p/7")}
    first.close()
    second.close()


def test_keys_without_a_place_are_known_of_stores_that_may_take_no_new_ones():
    stores = UpdatedStores({"resident": Bounded(DIMS), "volatile_db": DictStore(DIMS)})
    told = [stores.refused_keys("resident", table) for table in ("users", "items")]
    assert told == [(2, "it is full"), (0, "it is full")]
    assert stores.refused_keys("volatile_db", "users") is None


def test_rows_that_were_clipped_are_known_of_stores_of_a_narrow_format():
    stores = UpdatedStores({"resident": Narrow(DIMS), "volatile_db": DictStore(DIMS)})
    assert [stores.unheld_rows("resident", table) for table in ("users", "items")] == [3, 0]
    assert stores.unheld_rows("volatile_db", "users") == 0
