import pytest

from hebe.embeddings.hash_map_store import HashMapStore
from hebe.embeddings.volatile_options import VolatileOptions

from .store_conformance import TABLES, StoreConformance


class TestHashMapStore(StoreConformance):
    @pytest.fixture(params=[1, 3, 16])
    def make_store(self, request):
        return lambda: HashMapStore(TABLES, VolatileOptions(num_partitions=request.param))
