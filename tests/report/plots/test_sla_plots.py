import math
import re
from xml.etree import ElementTree

from hebe.report.plots.pool import tail_against_bound
from hebe.report.plots.style import LIMIT


def words(svg):
    ElementTree.fromstring(svg)
    return re.findall(r"<text[^>]*>([^<]+)</text>", svg)


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
