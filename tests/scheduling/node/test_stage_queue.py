"""The bounded queues between sparse and dense workers."""

from __future__ import annotations

from hebe.query import Batch
from hebe.scheduling.node.stage_queue import HandOver


def batch(batch_id: int, items: int) -> Batch:
    return Batch(batch_id, (), items)


def handed(*sizes: int) -> HandOver:
    hand_over = HandOver()
    for batch_id, items in enumerate(sizes):
        hand_over.begin(3)
        hand_over.hand(3, batch(batch_id, items))
    return hand_over


def test_a_batch_is_under_way_until_a_dense_worker_takes_it():
    hand_over = HandOver()
    assert (hand_over.under_way(0), hand_over.items(0), hand_over.waits(0), bool(hand_over)) == (0, 0, False, False)
    hand_over.begin(0)
    hand_over.begin(0)
    assert (hand_over.under_way(0), bool(hand_over)) == (2, False)
    hand_over.hand(0, batch(7, 10))
    assert (hand_over.under_way(0), hand_over.items(0), hand_over.waits(0), bool(hand_over)) == (2, 10, True, True)
    assert hand_over.take(0, 100, fuse=False) == (batch(7, 10),)
    assert (hand_over.under_way(0), hand_over.waits(0)) == (1, False)
    hand_over.give_up(0)
    assert hand_over.under_way(0) == 0


def test_which_batches_wait_is_told_of_all_lanes():
    hand_over = handed(40, 40)
    hand_over.begin(0)
    assert hand_over.handed == {0, 1}
    hand_over.hand(0, batch(7, 10))
    hand_over.take(3, 10, fuse=False)
    assert hand_over.handed == {1, 7}


def test_batches_are_fused_in_order_as_far_as_they_fit():
    hand_over = handed(40, 40, 40, 10)
    assert [each.batch_id for each in hand_over.take(3, 100, fuse=True)] == [0, 1]
    assert [each.batch_id for each in hand_over.take(3, 100, fuse=False)] == [2]
    assert [each.batch_id for each in hand_over.take(3, 5, fuse=True)] == [3], "the first is taken whatever its size"


def test_what_a_lost_worker_took_is_next_again():
    hand_over = handed(40, 40, 40)
    taken = hand_over.take(3, 100, fuse=True)
    hand_over.put_back(3, taken)
    assert hand_over.under_way(3) == 3
    assert [each.batch_id for each in hand_over.take(3, 1000, fuse=True)] == [0, 1, 2]


def test_lanes_are_apart_and_what_is_in_lost_ones_is_dropped():
    hand_over = handed(40, 40)
    hand_over.begin(5)
    hand_over.hand(5, batch(9, 1))
    assert [each.batch_id for each in hand_over.drop_but({5})] == [0, 1]
    assert (hand_over.under_way(3), hand_over.under_way(5), hand_over.items(5)) == (0, 1, 1)
