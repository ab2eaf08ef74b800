import pytest

from hebe.embeddings.lookup_options import LookupOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [({"hit_rate_threshold": 1.5}, "hit_rate_threshold"), ({"default_values": {"a": float("nan")}}, "table a")],
)
def test_options_out_of_range(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        LookupOptions(**options)
