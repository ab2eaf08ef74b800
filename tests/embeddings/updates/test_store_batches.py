import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hebe.embeddings.updates.contract import UpdateMessage
from hebe.embeddings.updates.store_batches import store_batches

MESSAGES = st.lists(st.tuples(st.booleans(), st.integers(1, 12)), max_size=20)


def messages_of(shapes):
    messages, key = [], 0
    for number, (goes, count) in enumerate(shapes):
        keys = np.arange(key, key + count)
        rows = None if goes else np.stack([keys, keys + 0.5], 1).astype(np.float32)
        messages.append((UpdateMessage("p", number, float(number), keys, rows), 10 * number))
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
    assert [sent for batch in batches for sent in batch.sent_s] == list(range(len(shapes)))


@given(MESSAGES, st.integers(1, 15))
def test_a_position_comes_when_all_up_to_it_is_there(shapes, most):
    ends = np.cumsum([count for _, count in shapes]).tolist()
    applied = 0
    for batch in store_batches(messages_of(shapes), most):
        applied += len(batch.keys)
        if batch.position is not None:
            assert applied == ends[batch.position // 10]
        else:
            assert applied not in ends
    assert applied == (ends or [0])[-1]


def test_small_messages_are_joined():
    batches = list(store_batches(messages_of([(False, 3), (False, 3), (False, 3), (True, 1), (True, 1)]), 8))
    assert [(len(batch.keys), batch.rows is None, batch.position) for batch in batches] == [
        (6, False, 10),
        (3, False, 20),
        (2, True, 40),
    ]
