import pytest

from hebe.embeddings.options import RocksDbOptions


@pytest.mark.parametrize("field", ["num_threads", "max_batch_size", "block_cache_bytes"])
def test_what_is_out_of_range_is_named(field):
    with pytest.raises(ValueError, match=f"{field} is -1: must"):
        RocksDbOptions(**{field: -1})
