import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.embeddings.updates.contract import Delivery, TopicPartition, UpdateMessage
from hebe.embeddings.updates.ingestion import sequence_check
from hebe.embeddings.updates.ingestion.sequence_check import Gap, PartitionOrder

AT = TopicPartition("m", "t", 0)
POISON = object()


def deliver(order, numbers, first_offset=0, producer="p"):
    """Push messages with these numbers, at the offsets from `first_offset` on."""
    for offset, number in enumerate(numbers, first_offset):
        if number is POISON:
            order.push(Delivery(AT, offset, None, "broken"))
        else:
            name, sequence = number if isinstance(number, tuple) else (producer, number)
            order.push(Delivery(AT, offset, UpdateMessage(name, sequence, 0.0, np.arange(1), None)))


def released(release):
    return [d.message.sequence if d.message else POISON for d in release.deliveries]


def test_what_is_in_order_passes_at_once():
    order = PartitionOrder(AT)
    deliver(order, [0, 1, 2])
    release = order.release(0.0)
    assert released(release) == [0, 1, 2]
    assert release.positions == [0, 1, 2]
    assert not release.gaps
    assert (order.held, order.position, order.duplicates, order.reordered) == (0, 2, 0, 0)


def test_what_was_seen_is_dropped():
    order = PartitionOrder(AT)
    deliver(order, [0, 0, 1, 0, 1, 2, 2])
    release = order.release(0.0)
    assert released(release) == [0, 1, 2]
    assert release.positions == [1, 4, 6], "what is dropped is done with too"
    assert release.marks == ["p/0", "p/1", "p/2"]
    assert order.duplicates == 4
    assert order.position == 6


def test_what_was_swapped_is_put_back():
    order = PartitionOrder(AT)
    deliver(order, [1, 0, 3, 4, 2, 5])
    release = order.release(0.0)
    assert released(release) == [0, 1, 2, 3, 4, 5]
    assert release.positions == [-1, 1, 1, 2, 4, 5]
    assert release.marks == ["", "p/0", "p/0", "p/3", "p/2", "p/5"], "of what came there, whatever is done with"
    assert order.reordered == 2
    assert not release.gaps


def test_a_number_that_is_missing_is_waited_for_and_then_reported():
    order = PartitionOrder(AT)
    deliver(order, [0, 3, POISON, ("q", 0)])
    assert released(order.release(10.0)) == [0]
    assert order.held == 3
    assert order.position == 0, "what is held back is not done with"
    assert released(order.release(10.0 + 0.9 * sequence_check.WAIT_S)) == []
    release = order.release(10.0 + sequence_check.WAIT_S)
    assert released(release) == [3, POISON, 0]
    assert release.gaps == [Gap(AT, "p", 1, 2)]
    assert str(release.gaps[0]).startswith("messages 1 to 2 of producer p are missing in partition 0 of model m")
    assert order.position == 3


def test_one_that_comes_while_it_is_waited_for_is_no_gap():
    order = PartitionOrder(AT)
    deliver(order, [0, 2])
    assert released(order.release(0.0)) == [0]
    deliver(order, [1], 2)
    release = order.release(0.1)
    assert released(release) == [1, 2]
    assert release.positions == [0, 2]
    assert not release.gaps


def test_one_that_comes_too_late_is_dropped_as_its_rows_may_be_old():
    order = PartitionOrder(AT)
    deliver(order, [0, 2])
    order.release(0.0)
    assert order.release(100.0).gaps == [Gap(AT, "p", 1, 1)]
    deliver(order, [1, 3], 2)
    assert released(order.release(100.0)) == [3]
    assert order.duplicates == 1


def test_each_gap_has_its_own_wait():
    order = PartitionOrder(AT)
    deliver(order, [0, 2, 4])
    order.release(0.0)
    release = order.release(sequence_check.WAIT_S)
    assert (released(release), release.gaps) == ([2], [Gap(AT, "p", 1, 1)])
    assert released(order.release(1.5 * sequence_check.WAIT_S)) == []
    assert released(order.release(2 * sequence_check.WAIT_S)) == [4]


def test_little_is_held_back():
    order = PartitionOrder(AT)
    deliver(order, [0, 2, *range(3, 3 + sequence_check.MOST_HELD)])
    release = order.release(0.0)
    assert len(release.deliveries) == sequence_check.MOST_HELD + 2
    assert release.gaps == [Gap(AT, "p", 1, 1)]
    deliver(order, [1000], 1000)
    release = order.release(0.0)
    assert (released(release), len(release.gaps)) == ([1000], 1), "far too much is missing to wait for it"


def test_a_producer_met_in_the_middle_of_its_life_lacks_nothing():
    order = PartitionOrder(AT)
    deliver(order, [1000, 1001])
    release = order.release(0.0)
    assert (released(release), release.gaps) == ([1000, 1001], [])
    order = PartitionOrder(AT)
    deliver(order, [5])
    assert released(order.release(0.0)) == [], "0 to 4 may still come"
    release = order.release(sequence_check.WAIT_S)
    assert (released(release), release.gaps) == ([5], [])


def test_of_a_producer_that_is_new_in_a_whole_partition_the_first_numbers_are_not_passed_over():
    order = PartitionOrder(AT)
    order.whole = True
    deliver(order, [0, ("q", 3), ("r", 100)])
    assert released(order.release(0.0)) == [0], "those of q may still come"
    release = order.release(sequence_check.WAIT_S)
    assert released(release) == [3, 100]
    assert release.gaps == [Gap(AT, "q", 0, 2), Gap(AT, "r", 0, 99)]


def test_numbers_of_what_was_applied_before_are_learned():
    order = PartitionOrder(AT)
    for offset, (producer, sequence) in enumerate([("p", 0), ("p", 1), ("q", 0)]):
        order.learn(Delivery(AT, offset, UpdateMessage(producer, sequence, 0.0, np.arange(1), None)))
    deliver(order, [1, 2, ("q", 1)], 3)
    release = order.release(0.0)
    assert released(release) == [2, 1]
    assert (order.duplicates, release.gaps, order.position) == (1, [], 5)


def test_many_producers_take_bounded_memory(monkeypatch):
    monkeypatch.setattr(sequence_check, "MOST_PRODUCERS", 10)
    order = PartitionOrder(AT)
    order.whole = True
    deliver(order, [(f"p{index}", 0) for index in range(100)] + [("p90", 1)])
    assert len(order.release(0.0).deliveries) == 101
    assert len(order._next) == 10
    deliver(order, [("p90", 1), ("p89", 0)], 101)
    assert released(order.release(0.0)) == [0], "of p90 that is a repetition, p89 is new again"
    deliver(order, [("p88", 1000)], 103)
    assert not order.release(0.0).gaps, "which may have been met before"


@given(
    st.lists(st.sampled_from("pq"), min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3)), max_size=10),
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=10),
    st.integers(1, 9),
    st.randoms(use_true_random=False),
)
def test_any_mixture_of_swaps_and_repetitions_is_put_right(producers, swaps, repetitions, pieces, random):
    """Nothing lost, nothing twice, in order for each producer, and positions never pass what is outstanding."""
    counts = {"p": 0, "q": 0}
    numbers = []
    for producer in producers:
        numbers.append((producer, counts[producer]))
        counts[producer] += 1
    sent = list(numbers)
    for place, distance in swaps:
        if place + distance < len(sent):
            sent[place], sent[place + distance] = sent[place + distance], sent[place]
    for place, later in repetitions:
        if place < len(sent):
            sent.insert(place + later, sent[place])
    order, got, done, offset = PartitionOrder(AT), [], set(), 0
    while offset < len(sent):
        count = random.randint(1, pieces)
        deliver(order, sent[offset : offset + count], offset)
        offset += count
        release = order.release(0.0)
        assert not release.gaps
        for delivery, position in zip(release.deliveries, release.positions, strict=True):
            got.append((delivery.message.producer, delivery.message.sequence))
            done.add(got[-1])
            assert set(sent[: position + 1]) <= done
        for position, mark in zip(release.positions, release.marks, strict=True):
            assert mark == ("" if position < 0 else "{}/{}".format(*sent[position]))
    assert not order.held
    assert sorted(got) == sorted(numbers)
    for name in "pq":
        assert [number for producer, number in got if producer == name] == list(range(counts[name]))
    assert order.position == len(sent) - 1


@pytest.mark.parametrize("count", [1, 30])
def test_one_message_missing_is_one_gap(count):
    order = PartitionOrder(AT)
    deliver(order, [number for number in range(count + 2) if number != count])
    order.release(0.0)
    release = order.release(10.0)
    assert release.gaps == [Gap(AT, "p", count, count)]


def test_numbers_that_are_learnt_make_duplicates_and_gaps():
    order = PartitionOrder(AT)
    [three, one] = (UpdateMessage("p", number, 0.0, np.array([0]), None) for number in (3, 1))
    order.learn(Delivery(AT, 0, three))
    order.learn(Delivery(AT, 1, one))
    deliver(order, [3, 6], 10)
    release = order.release(0.0)
    assert (release.deliveries, order.duplicates) == ([], 1)
    assert order.release(10.0).gaps == [Gap(AT, "p", 4, 5)]


def test_a_mark_is_that_of_the_last_message_there_was_of_those_learnt_too():
    order = PartitionOrder(AT)
    assert order.mark_at(100) == ""
    for offset in (3, 4):
        order.learn(Delivery(AT, offset, UpdateMessage("p", offset, 0.0, np.array([0]), None)))
    order.learn(Delivery(AT, 4, None, "the log is another"))
    assert (order.mark_at(100), order.mark_at(3)) == ("p/4", "")
    deliver(order, [POISON, ("q", 0), POISON, ("q", 1)], 5)
    release = order.release(0.0)
    assert (release.positions, release.marks) == ([5, 6, 7, 8], ["p/4", "q/0", "q/0", "q/1"])
    deliver(order, [("q", 5)], 9)  # which waits for others
    assert order.release(0.0).marks == []
    deliver(order, [("q", 2)], 10)
    assert order.release(0.0).marks == ["q/1"]


def test_the_marks_of_many_messages_are_not_kept():
    order = PartitionOrder(AT)
    for begin in range(0, 20_000, 5000):
        deliver(order, range(begin, begin + 5000), begin)
        assert order.release(0.0).marks == [f"p/{number}" for number in range(begin, begin + 5000)]
        assert len(order._marks) == 1


def test_a_gap_says_where_it_is():
    assert str(Gap(AT, "p", 3, 4)) == "messages 3 to 4 of producer p are missing in partition 0 of model m, table t"
    assert "offsets 3 to 4 of partition 0 of model m, table t were removed" in str(Gap(AT, None, 3, 4))
