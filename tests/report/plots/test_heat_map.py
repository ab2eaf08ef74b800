import xml.etree.ElementTree as ET

import numpy as np
import pytest

from hebe.report.plots.heat_map import heat_map

NAMES = ["DLRM (A)", "NCF", "a<b"]
VALUES = np.array([[1.0, 0.5, 0.25], [0.5, 1.0, np.nan], [0.25, np.nan, 0.75]])


def texts(svg):
    return [element.text for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_every_known_cell_shows_its_value_and_every_side_its_names():
    shown = texts(heat_map(VALUES, NAMES, NAMES, "Affinity", "higher is better"))
    assert shown.count("1.00") == 2
    assert shown.count("0.50") == 2
    assert not any("nan" in text for text in shown)
    for name in NAMES:
        assert shown.count(name) == 2
    assert "Affinity" in shown
    assert "higher is better" in shown


def test_it_needs_nothing_from_anywhere_and_follows_the_reader_s_colours():
    svg = heat_map(VALUES, NAMES, NAMES, "Affinity")
    assert svg.startswith("<svg")
    assert "var(--series-1)" in svg
    assert "prefers-color-scheme:dark" in svg
    assert "<image" not in svg


@pytest.mark.parametrize("values", [np.full((2, 2), 0.7), np.full((2, 2), np.nan)])
def test_a_matrix_without_differences_is_drawn(values):
    assert "svg" in heat_map(values, ["a", "b"], ["c", "d"], "Flat")


def test_a_large_matrix_is_averaged_and_stays_small():
    values = np.add.outer(np.arange(100.0), np.arange(100.0))
    names = [f"model{number}" for number in range(100)]
    svg = heat_map(values, names, names, "Many", digits=0)
    shown = texts(svg)
    assert "model0 … model3" in shown
    assert "3" in shown  # the mean of rows 0 to 3 and columns 0 to 3
    assert len(svg) < 1_000_000


def test_names_that_do_not_match_the_values_are_refused():
    with pytest.raises(ValueError, match=r"heat map 'Affinity': \(3, 3\) values for 2 rows and 3 columns"):
        heat_map(VALUES, NAMES[:2], NAMES, "Affinity")
