import math
import re
from xml.etree import ElementTree

import numpy as np

from hebe.report.plots.pool import cost_frontier, shares_by_size, tail_against_bound, utilisation_bars
from hebe.report.plots.style import LIMIT


def words(svg):
    ElementTree.fromstring(svg)
    return re.findall(r"<text[^>]*>([^<]+)</text>", svg)


def test_a_frontier_names_its_lines_points_and_budget():
    lines = {"bound": ([2.0, 3.0], [10.0, 20.0]), "other": ([1.0, 2.0, 3.0], [1.0, 5.0, 9.0])}
    svg = cost_frontier(lines, {"chosen": (1.9, 8.0)}, 2.0)
    assert {"bound", "other", "chosen", "budget 2", "price per hour", "queries/s"} <= set(words(svg))


def test_a_frontier_of_nothing_is_still_a_plot():
    assert "budget 2" in words(cost_frontier({}, {}, 2.0))


def corners(svg):
    """Of the line drawn in the first colour."""
    path = re.search(r'<path d="([^"]*)"[^>]*style="fill: none; stroke: var\(--series-1\)', svg)[1]
    return len(re.findall(r"[ML]", path))


def test_a_frontier_is_flat_between_budgets_unless_it_is_sampled():
    line = {"bound": ([1.0, 2.0, 4.0], [1.0, 5.0, 9.0])}
    assert (corners(cost_frontier(line, {}, 5.0)), corners(cost_frontier(line, {}, 5.0, sampled=line))) == (7, 3)


def test_shares_have_a_colour_a_type_and_leave_empty_sizes_out():
    svg = shares_by_size([1, 11, 21, 31], {"gpu": [0.0, np.nan, 1.0], "cpu": [1.0, np.nan, 0.0]})
    assert {"gpu", "cpu", "query size (items)", "100%"} <= set(words(svg))
    full = shares_by_size([1, 11, 21, 31], {"gpu": [0.0, 0.5, 1.0], "cpu": [1.0, 0.5, 0.0]})
    assert svg != full


def test_a_size_between_empty_ones_is_drawn():
    alone, none = (shares_by_size([1, 11, 21, 31], {"gpu": [np.nan, share, np.nan]}) for share in (1.0, np.nan))
    assert alone != none


def test_utilisation_says_each_share():
    assert {"1 x gpu", "5 x cpu", "95.0%", "7.5%"} <= set(words(utilisation_bars({"1 x gpu": 0.95, "5 x cpu": 0.075})))


def test_each_model_has_its_mean_and_the_bound_is_in_sight():
    svg = tail_against_bound({"ranker": [0.5, 0.7], "filter": [0.1]})
    assert {"ranker", "filter", "0.60", "0.10", "1", "tail latency / bound"} <= set(words(svg))


def test_what_is_late_has_another_colour():
    assert tail_against_bound({"m": [2.0]}).count("var(--limit)") > tail_against_bound({"m": [0.9]}).count(
        "var(--limit)"
    )
    assert LIMIT not in tail_against_bound({"m": [2.0]})


def test_what_never_ends_is_drawn_at_the_edge():
    assert {"inf", "100"} <= set(words(tail_against_bound({"m": [math.inf, 1.0]})))


def test_no_model_is_still_a_plot():
    assert "tail latency / bound" in words(tail_against_bound({}))
