import pytest

from hebe.embeddings import options as volatile_options
from hebe.embeddings.options import VolatileOptions, default_partitions


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
