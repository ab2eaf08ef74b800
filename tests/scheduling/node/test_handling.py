"""What a batch costs to be begun and heard of."""

from __future__ import annotations

import pytest

from hebe.scheduling.node.batching import Handling


def handling(*beside_s: float, times: int = 500) -> Handling:
    """That has seen so many batches of each kind, one kind after the other."""
    seen = Handling()
    for each_s in beside_s:
        for _ in range(times):
            seen.observe(each_s)
    return seen


def test_nothing_is_known_at_first_and_costs_nothing():
    assert (Handling().of_late_s, Handling().cost_s) == (0.0, 0.0)
    assert handling(0.0).cost_s == 0.0


def test_where_nobody_waits_a_batch_costs_what_it_takes_itself():
    for takes_s in (0.00005, 0.0001, 0.0003):
        seen = handling(takes_s)
        assert seen.of_late_s == pytest.approx(takes_s)
        assert seen.cost_s == pytest.approx(takes_s, rel=0.1)


@pytest.mark.parametrize("busy", [0.3, 0.6, 0.8])
def test_where_batches_wait_one_more_costs_what_a_queue_says(busy):
    """What all customers wait for a server with one time of service, a second, is its rate times what each waits."""
    takes_s = 0.001
    wait_s = takes_s * busy / (2 * (1 - busy))
    seen = handling(takes_s)
    for _ in range(200):  # before what is least is thought to have become more
        seen.observe(takes_s + wait_s)

    def spent(share: float) -> float:
        return share * (takes_s + takes_s * share / (2 * (1 - share)))

    one_more_s = (spent(busy + 1e-6) - spent(busy - 1e-6)) / 2e-6
    assert seen.cost_s == pytest.approx(one_more_s, rel=0.15)


def test_what_it_costs_falls_again():
    assert handling(0.0002, 0.005, 0.0002).of_late_s == pytest.approx(0.0002, rel=1e-4)


def test_what_it_takes_alone_may_become_more():
    assert handling(0.0002, 0.001, times=100).cost_s > 0.005
    assert handling(0.0002, 0.001, times=50_000).cost_s == pytest.approx(0.001, rel=0.01)


def test_a_stall_counts_as_little_more_than_twice_what_is_usual():
    seen = handling(0.001)
    seen.observe(3.0)
    assert seen.of_late_s < 0.0011
