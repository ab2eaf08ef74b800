import re
from xml.etree import ElementTree

import matplotlib as mpl
import pytest

from hebe.report.plots.style import (
    GRID,
    INK,
    LIMIT,
    QUIET,
    SERIES,
    drawing,
    legend_below,
    name_places,
    plain_ticks,
    to_svg,
)

ROLES = [INK, QUIET, GRID, LIMIT, *SERIES]


def texts(svg):
    return re.findall(r"<text[^>]*>([^<]+)</text>", svg)


def test_every_colour_becomes_a_variable_that_the_plot_defines_for_day_and_night():
    with drawing() as (canvas, axes):
        for i, colour in enumerate(ROLES):
            axes.plot([0, 1], [i, i], color=colour)
        svg = to_svg(canvas, "all colours")
    ElementTree.fromstring(svg)
    style = svg[svg.index("<style>") : svg.index("</style>")]
    day, night = style.split("@media(prefers-color-scheme:dark)")
    used = set(re.findall(r"var\((--[\w-]+)\)", svg))
    assert len(used) == len(set(ROLES))
    assert set(re.findall(r"(--[\w-]+):", day)) == set(re.findall(r"(--[\w-]+):", night)) == used
    assert not any(colour in svg for colour in ROLES), "a stand-in colour was left"


@pytest.mark.parametrize("colour", ["#000000", "#0a010a", "#0a1b2c"])
def test_another_colour_stays_as_it_is(colour):
    with drawing() as (canvas, axes):
        axes.plot([0, 1], color=colour)
        assert colour in to_svg(canvas, "")


def test_a_plot_tells_what_it_shows_to_those_who_cannot_see_it():
    with drawing() as (canvas, _):
        root = ElementTree.fromstring(to_svg(canvas, 'p99 < 5 ms & "more"'))
    assert root.get("role") == "img"
    assert root.get("aria-label") == 'p99 < 5 ms & "more"'


def test_the_same_numbers_make_the_same_text():
    def draw():
        with drawing() as (canvas, axes):
            axes.plot([1, 2, 3])
            axes.fill_between([0, 1], [0, 1], hatch="//")
            return to_svg(canvas, "")

    assert draw() == draw()


def test_the_style_is_that_of_the_drawing_alone():
    before = dict(mpl.rcParams)
    with drawing(3.0, 2.0) as (canvas, _):
        assert mpl.rcParams["svg.fonttype"] == "none"
        assert canvas.get_size_inches().tolist() == [3.0, 2.0]
    with pytest.raises(KeyError), drawing():
        raise KeyError
    assert dict(mpl.rcParams) == before


def test_dollars_are_no_formulas():
    with drawing() as (canvas, axes):
        axes.set_title("$1 to $2 a day")
        assert "$1 to $2 a day" in texts(to_svg(canvas, ""))


def test_ticks_are_labelled_by_the_text_that_is_given_and_minor_ones_not_at_all():
    with drawing() as (canvas, axes):
        axes.set_xscale("log")
        axes.set_xlim(1, 100)
        plain_ticks(axes.xaxis, lambda value: f"{value:g} ms")
        axes.set_yticks([])
        found = set(texts(to_svg(canvas, "")))
    assert {"1 ms", "10 ms", "100 ms"} <= found
    assert all(text.endswith(" ms") for text in found)


def test_places_are_named_in_order():
    with drawing() as (canvas, axes):
        axes.bar(range(3), [1, 2, 3])
        axes.set_yticks([])
        name_places(axes, ["b", "a", "c"])
        assert texts(to_svg(canvas, "")) == ["b", "a", "c"]


def places(names, most_columns=6):
    """Of the names in a plot of 7.2 inches, left edges and baselines in points; the plot's height."""
    with drawing(width=7.2, height=4.2) as (canvas, axes):
        for name in names:
            axes.plot([0, 1], [0, 1], label=name)
        legend_below(canvas, most_columns)
        svg = to_svg(canvas, "plot")
    height = float(re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', svg)[1])
    pattern = r'<text[^>]* x="([-\d.]+)" y="([-\d.]+)"[^>]*>({})</text>'.format("|".join(names))
    return [(float(left), float(low)) for left, low, _ in re.findall(pattern, svg)], height


@pytest.mark.parametrize("letters", [4, 12, 25, 45])
def test_names_of_any_length_lie_within_the_plot(letters):
    spots, height = places([f"{number}{'m' * letters}" for number in range(8)])
    assert len(spots) == 8
    for left, low in spots:
        assert 0 <= left <= 7.2 * 72 - 9.7 * letters  # an m is 9.74 points wide
        assert 0 <= low <= height


def test_short_names_share_few_lines_and_long_ones_make_the_plot_taller():
    short, usual = places([f"T{number}" for number in range(12)])
    assert (len({low for _, low in short}), usual) == (2, pytest.approx(4.2 * 72, abs=0.01))
    long, taller = places([f"a-model-with-a-rather-long-name-of-many-words-{number}" for number in range(8)])
    assert len({low for _, low in long}) == 8
    assert taller > usual + 60
