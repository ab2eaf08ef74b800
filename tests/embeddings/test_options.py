import numpy as np
import pytest

from hebe.embeddings.options import LookupOptions


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
