import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hebe.embeddings.updates.contract import UpdateMessage
from hebe.embeddings.updates.ingestion.store_batches import store_batches

MESSAGES = st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=20)


def messages_of(shapes):
    messages, key = [], 0
    for number, (goes, count) in enumerate(shapes):
        keys = np.arange(key, key + count)
        rows = None if goes else np.stack([keys, keys + 0.5], 1).astype(np.float32)
        messages.append(
            (UpdateMessage("p", number, float(number), keys, rows), 10 * number, 10 * number + 1, f"p/{number}")
        )
        key += count
    return messages


@given(MESSAGES, st.integers(1, 15))
def test_batches_hold_the_messages_in_order(shapes, most):
    batches = list(store_batches(messages_of(shapes), most))
    assert all(1 <= len(batch.keys) <= most for batch in batches)
    keys = [key for batch in batches for key in batch.keys.tolist()]
    assert keys == list(range(sum(count for _, count in shapes)))
    goes = [goes for goes, count in shapes for _ in range(count)]
    assert [batch.rows is None for batch in batches for _ in batch.keys] == goes
    for batch in batches:
        if batch.rows is not None:
            assert batch.rows[:, 0].tolist() == batch.keys.tolist()
    offsets = [offset for batch in batches for offset in batch.offsets.tolist()]
    assert offsets == [10 * number for number, (_, count) in enumerate(shapes) for _ in range(count)]
    assert [sent for batch in batches for sent in batch.sent_s] == list(range(len(shapes)))


@given(MESSAGES, st.integers(1, 15))
def test_a_position_comes_when_all_up_to_it_is_there(shapes, most):
    ends = np.cumsum([count for _, count in shapes]).tolist()
    applied = 0
    for batch in store_batches(messages_of(shapes), most):
        applied += len(batch.keys)
        if batch.position is not None:
            assert batch.position % 10 == 1
            assert applied == ends[batch.position // 10]
            assert batch.mark == f"p/{batch.position // 10}"
        else:
            assert applied not in ends
    assert applied == (ends or [0])[-1]


def test_small_messages_are_joined():
    batches = list(store_batches(messages_of([(False, 3), (False, 3), (False, 3), (True, 1), (True, 1)]), 8))
    assert [(len(batch.keys), batch.rows is None, batch.position) for batch in batches] == [
        (6, False, 11),
        (3, False, 21),
        (2, True, 41),
    ]


def test_of_a_key_in_several_messages_the_last_row_counts():
    def message(number, keys):
        rows = np.array([[number, key] for key in keys], np.float32)
        return UpdateMessage("p", number, float(number), np.array(keys), rows), 5 + number, number, ""

    (batch,) = store_batches([message(0, [7, 3, 9]), message(1, [3, 5]), message(2, [9, 3])], 8)
    assert batch.keys.tolist() == [3, 5, 7, 9]
    assert batch.rows[:, 0].tolist() == [2, 1, 0, 2]
    assert batch.rows[:, 1].tolist() == batch.keys.tolist()
    place = batch.place_in(3)
    assert (place.partition, place.offsets.tolist(), place.position) == (3, [7, 6, 5, 7], 2)
    assert (batch.count, batch.position, batch.sent_s) == (7, 2, (0.0, 1.0, 2.0))


def test_of_a_key_that_goes_several_times_one_is_left():
    messages = [
        (UpdateMessage("p", number, float(number), np.array([4, 2]), None), number, number, "") for number in range(2)
    ]
    (batch,) = store_batches(messages, 8)
    assert (batch.keys.tolist(), batch.rows, batch.count) == ([2, 4], None, 4)


def test_a_message_that_is_cut_has_each_key_once():
    """Or else a store that goes by offsets would take the first of its rows for the last."""
    keys = np.array([5, 1, 5, 2, 3, 5])
    rows = np.arange(6, dtype=np.float32)[:, None]
    for most in (2, 4, 6, 100):
        batches = list(store_batches([(UpdateMessage("p", 0, 1.0, keys, rows), 7, 7, "p/0")], most))
        found = [pair for batch in batches for pair in zip(batch.keys.tolist(), batch.rows[:, 0].tolist(), strict=True)]
        assert sorted(found) == [(1, 1.0), (2, 3.0), (3, 4.0), (5, 5.0)]
        assert [batch.position for batch in batches] == [None] * (len(batches) - 1) + [7]
        assert sum(batch.count for batch in batches) == 6
        assert all(batch.offsets.tolist() == [7] * len(batch.keys) <= [7] * most for batch in batches)
