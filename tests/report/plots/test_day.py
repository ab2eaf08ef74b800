import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from hebe.report.plots.day import lines_over_day, stacked_over_day

EDGES = np.arange(25) * 3600.0
DAY = 10 + 5 * np.sin(np.arange(24) / 4)


def texts(svg):
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    assert not re.search(r'(href|src)="(?!#)|url\((?!#)', svg)
    assert not re.search(r"#0[0-9a]0[0-9a]0[0-9a]\b", svg), "a stand-in colour was left"
    return ["".join(node.itertext()).strip() for node in root.iter() if node.tag.endswith("}text")]


@pytest.mark.parametrize("draw", [stacked_over_day, lines_over_day])
def test_names_every_series_the_unit_and_the_hours(draw):
    svg = draw(EDGES, {"T1": DAY, "T2": 2 * DAY}, "servers", "Servers by type")
    found = texts(svg)
    assert {"T1", "T2", "servers", "Servers by type", "hours from the start", "12"} <= set(found)
    assert svg == draw(EDGES, {"T1": DAY, "T2": 2 * DAY}, "servers", "Servers by type")


def test_a_type_that_is_never_used_is_not_in_the_stack():
    assert "T2" not in texts(stacked_over_day(EDGES, {"T1": DAY, "T2": 0 * DAY}, "servers", "Servers"))


def test_of_very_many_layers_the_smallest_are_joined():
    layers = {f"T{number}": np.full(24, number) for number in range(1, 31)}
    found = texts(stacked_over_day(EDGES, layers, "servers", "Servers"))
    names = [text for text in found if re.fullmatch(r"T\d+|others", text)]
    assert sorted(names) == sorted([*(f"T{number}" for number in range(20, 31)), "others"])


@pytest.mark.parametrize("draw", [stacked_over_day, lines_over_day])
def test_a_single_short_interval_can_be_drawn(draw):
    assert "T1" in texts(draw([0.0, 600.0], {"T1": [3]}, "servers", "Servers"))


@pytest.mark.parametrize("draw", [stacked_over_day, lines_over_day])
def test_nothing_to_draw_is_an_empty_plot(draw):
    assert "Servers" in texts(draw(EDGES, {}, "servers", "Servers"))


def test_limits_are_named_levels_across_the_day_and_in_sight():
    """Even where all values lie far below them, or there are none."""
    for values in ([1.0, 0.5], [0.02, 0.01], [0.0, np.nan]):
        svg = lines_over_day(
            [0.0, 600.0, 1200.0], {"m": values}, "in time", "SLA attainment", limits={"p95": 0.95},
            text=lambda share: f"{share:.0%}",
        )  # fmt: skip
        assert {"p95", "m", "0%", "80%"} <= set(texts(svg))


def test_lines_of_one_colour_differ_by_their_dashes():
    svg = lines_over_day(EDGES, {f"m{number}": DAY + number for number in range(8)}, "queries/s", "Load")
    dashed = re.findall(r"stroke: var\(--series-1\)[^\"]*|[^\"]*stroke-dasharray[^\"]*stroke: var\(--series-1\)", svg)
    assert any("stroke-dasharray" in style for style in dashed)
    assert any("stroke-dasharray" not in style for style in dashed)
