import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.embeddings.clients.tier_choice import AnswerTimes, Level, TierChoice, Way

FAST, SLOW = (0.001, 1e-6), (0.004, 5e-6)
"""Seconds that a request and a key of it take."""


class Tiers:
    """Two tiers that answer after such times; level 2 has a share of the keys."""

    def __init__(self, two, three, *, has=1.0, beside=1.0):
        self.takes = {Level.TWO: two, Level.THREE: three}
        self.has, self.beside = has, beside
        self.choice = TierChoice()
        self.plans = []

    def answer(self, level, keys, *, found=None, slower=1.0):
        fixed_s, key_s = self.takes[level]
        took_s = slower * (fixed_s + key_s * keys) if keys else 0.0
        self.choice.answered(level, keys, keys if found is None else found, took_s)
        return took_s

    def batch(self, keys, left_s):
        """Ask as planned; returns how many rows are there in time."""
        plan = self.choice.plan(keys, left_s)
        self.plans.append(plan)
        asked = {Way.IN_TURN: keys, Way.LEVEL_3: 0, Way.SIDE_BY_SIDE: plan.level_2_keys}[plan.way]
        slower = self.beside if plan.way is Way.SIDE_BY_SIDE else 1.0
        rows, used_s = 0.0, 0.0
        if asked:
            took_s = self._ask(Level.TWO, asked, slower)
            rows += self.has * asked * min(1.0, min(plan.level_2_s, left_s) / took_s)
            used_s = min(took_s, plan.level_2_s) if plan.way is Way.IN_TURN else 0.0
        rest = keys - rows if plan.way is Way.IN_TURN else keys - asked
        if rest >= 1 and used_s < left_s:
            took_s = self._ask(Level.THREE, round(rest), slower)
            rows += rest * min(1.0, (left_s - used_s) / took_s)
        if plan.probe:
            self.answer(Level.TWO if plan.way is Way.LEVEL_3 else Level.THREE, keys, found=round(self.has * keys))
        self.choice.came(plan, round(rows), left_s)
        return rows

    def _ask(self, level, keys, slower):
        fixed_s, key_s = self.takes[level]
        took_s = slower * (fixed_s + key_s * keys)
        if slower == 1.0:
            self.choice.answered(level, keys, round(self.has * keys) if level is Level.TWO else keys, took_s)
        return took_s

    def ways(self, last):
        return {plan.way for plan in self.plans[-last:]}


def best_alone(tiers, keys, left_s):
    """The most rows that one of the tiers brings in time."""
    shares = {Level.TWO: tiers.has, Level.THREE: 1.0}
    return max(
        shares[level] * keys * min(1.0, left_s / (fixed_s + key_s * keys))
        for level, (fixed_s, key_s) in tiers.takes.items()
    )


@given(
    two=st.tuples(st.floats(1e-4, 0.01), st.floats(1e-7, 1e-5)),
    three=st.tuples(st.floats(1e-4, 0.01), st.floats(1e-7, 1e-5)),
    has=st.floats(0.1, 1.0),
    beside=st.floats(1.0, 3.0),
    left_s=st.floats(0.002, 0.1),
)
def test_two_tiers_bring_as_many_rows_in_time_as_the_better_one(two, three, has, beside, left_s):
    tiers = Tiers(two, three, has=has, beside=beside)
    for _ in range(400):
        tiers.batch(6000, left_s)
    rows = sum(tiers.batch(6000, left_s) for _ in range(200)) / 200
    assert rows >= 0.85 * best_alone(tiers, 6000, left_s)


def test_without_a_deadline_and_where_there_is_time_level_2_comes_first():
    tiers = Tiers(FAST, SLOW, has=0.9)
    assert tiers.choice.plan(100, math.inf).way is Way.IN_TURN
    for _ in range(20):
        tiers.batch(1000, 0.05)
    assert tiers.ways(20) == {Way.IN_TURN}
    plan = tiers.plans[-1]
    assert plan.level_2_s == pytest.approx(0.05 - 0.009, abs=0.002), "should it hang, level 3 answers all"
    assert plan.tight_s is None


def test_where_both_in_turn_would_be_late_level_3_is_asked_alone_until_level_2_is_faster():
    tiers = Tiers(SLOW, FAST, has=0.5)
    for _ in range(64):
        tiers.batch(1000, 0.008)
    assert tiers.ways(32) == {Way.LEVEL_3}
    assert 1 <= sum(plan.probe for plan in tiers.plans[-64:]) <= 16, "a bounded share of batches"
    tiers.takes[Level.TWO] = (1e-4, 1e-7)
    for _ in range(32 * 30):
        tiers.batch(1000, 0.008)
    assert tiers.ways(10) == {Way.IN_TURN}


def test_side_by_side_where_that_brings_most():
    tiers = Tiers(SLOW, SLOW)
    for _ in range(100):
        tiers.batch(6000, 0.01)
    assert [plan.way for plan in tiers.plans[-50:]].count(Way.SIDE_BY_SIDE) > 40
    tiers.beside = 3.0
    for _ in range(50):
        tiers.batch(6000, 0.01)
    assert [plan.way for plan in tiers.plans[-20:]].count(Way.SIDE_BY_SIDE) <= 3, "when it is tried again"


def test_pieces_are_smaller_where_little_is_in_time():
    tiers = Tiers(FAST, SLOW)
    assert tiers.choice.piece_keys(Level.TWO, 2048, 0.001) == 2048, "nothing is known yet"
    for keys in 3 * (100, 1000, 3000, 6000):
        tiers.answer(Level.TWO, keys)
    assert tiers.choice.piece_keys(Level.TWO, 2048, 0.1) == 2048
    assert tiers.choice.piece_keys(Level.TWO, 2048, 0.004) == pytest.approx(2000, rel=0.1)
    assert tiers.choice.piece_keys(Level.TWO, 2048, 0.0001) == 256


@given(fixed_ms=st.floats(0.0, 20.0), key_us=st.floats(0.1, 50.0), noise=st.floats(0.0, 0.2))
def test_a_line_is_fitted_to_answers_of_several_sizes(fixed_ms, key_us, noise):
    times, chance = AnswerTimes(), random.Random(1)
    for _ in range(100):
        keys = chance.choice([100, 500, 2000, 6000])
        exact_s = fixed_ms / 1e3 + keys * key_us / 1e6
        times.add(keys, exact_s * chance.uniform(1 - noise, 1 + noise))
    assert times.expected_s(4000) == pytest.approx(fixed_ms / 1e3 + 4000 * key_us / 1e6, rel=0.1 + 1.5 * noise)
    assert times.likely_s(4000) >= times.expected_s(4000)
    assert times.keys_in(times.expected_s(4000)) == pytest.approx(4000, rel=0.01)
    assert times.keys_in(0.0) == 0.0


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(0, 10.0)), max_size=50))
def test_no_samples_make_a_time_negative(samples):
    times = AnswerTimes()
    for keys, seconds in samples:
        times.add(keys, seconds)
        assert times.expected_s(0) >= 0
        assert times.expected_s(10**6) >= times.expected_s(1)
        assert times.keys_in(1.0) >= 0
