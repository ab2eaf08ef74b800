import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hebe.planning.error import PlanningError
from hebe.planning.pool.split_options import split_options
from tests.examples.pool_problems import any_problem, three_types


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(2, 30), st.integers(1, 5))
def test_every_usable_option_is_what_it_says(seed, types, sizes, most_parts):
    problem = any_problem(np.random.default_rng(seed), types, sizes)
    options = split_options(problem, most_parts)
    np.testing.assert_array_equal(options.parts[:types], np.eye(types))
    items = np.arange(1, sizes + 1)
    for at in range(len(options)):
        parts = options.parts[at]
        assert 1 <= parts.sum() <= most_parts
        fits = np.isfinite(options.finish_s[at])
        first, second = options.first[at], options.second[at]
        on = [(first, options.first_items[at], options.first_load_s[at])]
        if second != first:
            on.append((second, options.second_items[at], options.second_load_s[at]))
        assert {kind for kind, _, _ in on} == set(np.flatnonzero(parts))
        np.testing.assert_allclose(sum(parts[kind] * each for kind, each, _ in on)[fits], items[fits], rtol=1e-9)
        longest_s = np.zeros(sizes)
        for kind, each, load_s in on:
            assert (each[fits] >= 1).all()
            part_s = np.interp(each, items, problem.service_s[kind])
            np.testing.assert_allclose(load_s[fits], parts[kind] * part_s[fits])
            longest_s = np.maximum(longest_s, part_s)
        assert (longest_s[fits] <= problem.limit_s).all()
        np.testing.assert_allclose(options.finish_s[at][fits], longest_s[fits])


def test_parts_on_unlike_types_finish_together():
    problem = three_types()
    options = split_options(problem, 3)
    at = options.parts.tolist().index([1, 2, 0])
    fits = np.isfinite(options.finish_s[at])
    assert fits.sum() > 20
    gpu_s = np.interp(options.first_items[at], np.arange(1, 101), problem.service_s[0])
    cpu_s = np.interp(options.second_items[at], np.arange(1, 101), problem.service_s[1])
    np.testing.assert_allclose(gpu_s[fits], cpu_s[fits], rtol=1e-6)


def test_one_part_is_the_whole_query():
    problem = three_types()
    options = split_options(problem, 1)
    np.testing.assert_array_equal(options.finish_s, np.where(problem.in_time, problem.service_s, np.inf))


def test_splitting_reaches_sizes_that_no_type_serves_whole():
    problem = three_types(sla_s=0.008)
    assert not np.isfinite(split_options(problem, 1).finish_s[:, -1]).any()
    assert np.isfinite(split_options(problem, 4).finish_s[:, -1]).any()


def test_options_that_never_pay_are_left_out():
    """Where a type serves the whole query, parts on it only add its fixed time."""
    assert len(split_options(three_types(sla_s=1.0), 4)) == 3


def test_usable_needs_as_many_servers_as_parts():
    options = split_options(three_types(), 4)
    usable = options.among(options.usable(np.array([1, 2, 0])))
    assert (usable.parts <= [1, 2, 0]).all()
    assert [0, 2, 0] in usable.parts.tolist()
    assert len(options.usable(np.zeros(3, dtype=np.int64))) == 0


def test_bad_input():
    for parts in (0, 17):
        with pytest.raises(PlanningError, match=f"most_parts is {parts}"):
            split_options(three_types(), parts)
