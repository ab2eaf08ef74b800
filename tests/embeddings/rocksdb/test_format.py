import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.embeddings.rocksdb.format import (
    Position,
    RowCount,
    count_note,
    decode_keys,
    encode_keys,
    encode_rows,
    position_note,
    read_notes,
)

INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text("aé:/\0", max_size=4)


@given(st.lists(INT64 | st.sampled_from((-(2**63), -1, 0, 2**63 - 1)), max_size=20))
def test_keys_lie_in_the_order_of_their_numbers(numbers):
    encoded = encode_keys(np.array(numbers, np.int64))
    assert decode_keys(encoded).tolist() == numbers
    assert decode_keys(sorted(encoded)).tolist() == sorted(numbers)


@pytest.mark.parametrize("dim", [1, 3, 128])
def test_a_row_is_its_floats_however_they_lie(dim):
    rows = np.random.default_rng(0).random((5, 2 * dim), np.float32)[:, ::2]
    assert [np.frombuffer(row, "<f4").tolist() for row in encode_rows(rows)] == rows.tolist()


@given(
    st.dictionaries(NAMES, st.builds(RowCount, INT64, INT64)),
    st.lists(st.builds(Position, NAMES, INT64, NAMES), unique_by=lambda position: position.log),
)
def test_notes_are_read_as_they_were_written(counts, positions):
    notes = [count_note(table, count) for table, count in counts.items()] + [position_note(each) for each in positions]
    assert read_notes(notes) == (counts, {each.log: each for each in positions})


def test_a_position_of_an_older_version_has_no_mark():
    key, value = position_note(Position("log", 7))
    assert len(value) == 8
    assert read_notes([(key, value)])[1] == {"log": Position("log", 7)}


@pytest.mark.parametrize(
    "note", [(b"other:t", bytes(16)), (b"rows:t", bytes(15)), (b"position:log", bytes(7)), (b"rows:\xff", bytes(16))]
)
def test_other_notes_are_corruption(note):
    with pytest.raises(ValueError, match="Corruption: note "):
        read_notes([count_note("t", RowCount(3, 2)), note])
