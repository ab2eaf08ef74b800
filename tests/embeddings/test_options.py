import numpy as np
import pytest

from hebe.embeddings import options as volatile_options
from hebe.embeddings.options import LookupOptions, RocksDbOptions, VolatileOptions, default_partitions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hit_rate_threshold": 1.5}, "hit_rate_threshold"),
        ({"default_values": {"a": float("nan")}}, "table a is nan: must be finite"),
        ({"default_values": {"a": -float("inf")}}, "table a is -inf: must be finite"),
        ({"default_values": {"a": 1e39}}, r"table a is 1e\+39: must be finite"),
        ({"default_values": {"a": -3.41e38}}, r"table a is -3.41e\+38: must be finite"),
    ],
)
def test_options_out_of_range(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        LookupOptions(**options)


def test_each_number_that_a_row_holds_may_be_the_default() -> None:
    most = float(np.finfo(np.float32).max)
    assert LookupOptions(default_values={"a": most, "b": -most}).default_values == {"a": most, "b": -most}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_partitions", 0),
        ("num_partitions", 65537),
        ("overflow_margin", 0),
        ("overflow_resolution_target", 0.0),
        ("overflow_resolution_target", 1.01),
        ("overflow_resolution_target", float("nan")),
    ],
)
def test_fields_out_of_range_are_errors(field, value):
    with pytest.raises(ValueError, match=f"{field} is"):
        VolatileOptions(**{"num_partitions": 4, field: value})


@pytest.mark.parametrize(("cores", "partitions"), [(3, 3), (128, 16), (None, 1)])
def test_a_hash_map_has_a_partition_a_core_within_reason(monkeypatch, cores, partitions):
    monkeypatch.setattr(volatile_options.os, "cpu_count", lambda: cores)
    assert default_partitions() == partitions


@pytest.mark.parametrize("field", ["num_threads", "max_batch_size", "block_cache_bytes"])
def test_what_is_out_of_range_is_named(field):
    with pytest.raises(ValueError, match=f"{field} is -1: must"):
        RocksDbOptions(**{field: -1})
