from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hebe.embeddings.store import last_of_each


@given(st.lists(st.integers(-3, 3) | st.sampled_from([-(1 << 63), (1 << 63) - 1]), max_size=12))
def test_of_each_key_the_last_place_in_ascending_order(keys):
    places = {key: place for place, key in enumerate(keys)}
    assert last_of_each(np.array(keys, np.int64)).tolist() == [places[key] for key in sorted(places)]
