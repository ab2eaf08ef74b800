import re

import pytest

from hebe.report.plots.style import drawing, legend_below, to_svg


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
