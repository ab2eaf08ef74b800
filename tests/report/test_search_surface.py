import math
import xml.etree.ElementTree as ET

import pytest

from hebe.report.search_surface import search_surface
from hebe.server_configuration import Lane, Placement

MODEL, PIPELINE = Placement.MODEL_ON_HOST, Placement.PIPELINE_ON_HOST
HOT = Placement.HOT_SPARSE_ON_ACCELERATOR


def lane(workers, batch_size, cores=1):
    return (Lane(MODEL, workers, cores, batch_size),)


def pipeline(workers, dense, batch_size=64):
    return (Lane(PIPELINE, workers, 1, batch_size, dense),)


TRIED = [
    (lane(1, 16), 100.0), (lane(1, 64), 0.0), (lane(2, 16), 220.0), (lane(2, 64), 330.0), (lane(1, 16, 2), 140.0),
    (pipeline(1, 1), 50.0), (pipeline(1, 1, 256), 75.0), (pipeline(2, 1), 60.0), (pipeline(1, 2), 80.0),
]  # fmt: skip
MOVES = [(None, lane(1, 16)), (lane(1, 16), lane(2, 64)), (None, pipeline(1, 1)), (pipeline(1, 1), pipeline(1, 2))]


def texts(svg):
    return [element.text for element in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_each_panel_has_the_cells_that_were_tried():
    shown = texts(search_surface(TRIED, MOVES, lane(2, 64), "Search of dlrm"))
    assert "Search of dlrm" in shown
    assert {"model-on-host, 1 core each", "pipeline-on-host"} <= set(shown)
    assert {"100", "220", "330", "60", "80"} <= set(shown)
    assert shown.count("–") == 1, "what keeps no SLA target was tried, though it reaches nothing"
    assert "75" in shown, "of a pipeline's batch sizes the best is shown"
    assert "50" not in shown


def test_what_was_only_looked_into_is_told_and_not_drawn():
    shown = texts(search_surface(TRIED, MOVES, lane(2, 64)))
    assert "model-on-host, 2 cores each" not in shown
    assert any("Not drawn: 1 other count" in text for text in shown)
    with_it = texts(search_surface(TRIED, [*MOVES, (None, lane(1, 16, 2))], lane(2, 64)))
    assert "model-on-host, 2 cores each" in with_it
    assert not any("Not drawn" in text for text in with_it)


def test_without_a_path_all_is_drawn():
    shown = texts(search_surface(TRIED, [], None))
    assert {"model-on-host, 1 core each", "model-on-host, 2 cores each", "pipeline-on-host"} <= set(shown)


def test_a_pipeline_of_one_allotment_is_drawn_by_batch_sizes():
    tried = [(pipeline(1, 1, size), size / 1.0) for size in (16, 64, 256)]
    shown = texts(search_surface(tried, [(None, tried[0][0])], tried[2][0]))
    assert {"pipeline-on-host, 1 core each", "batch size", "sparse workers"} <= set(shown)
    assert {"16", "64", "256"} <= set(shown)


def test_a_second_lane_has_panels_of_its_own():
    main = Lane(HOT, 0, dense_workers=1)
    tried = [((main,), 100.0), ((main, *lane(1, 16)), 130.0), ((main, *lane(2, 16)), 150.0)]
    moves = [(None, (main,)), (None, tried[1][0]), (tried[1][0], tried[2][0])]
    shown = texts(search_surface(tried, moves, tried[2][0]))
    assert any(text.startswith("hot-sparse-on-accelerator") for text in shown)
    assert "beside it model-on-host, 1 core each" in shown


@pytest.mark.parametrize("cores", [1, 20])
def test_a_space_of_any_size_is_drawn_in_a_picture_that_stays_small(cores):
    tried = [
        (lane(workers, size, each), math.sqrt(workers * each * size))
        for each in range(1, cores + 1)
        for workers in range(1, cores // each + 1)
        for size in (4, 16, 64, 256, 1024)
    ]
    tried += [(pipeline(workers, dense), 1.0) for workers in range(1, cores) for dense in range(1, cores - workers + 1)]
    svg = search_surface(tried, [], tried[-1][0])
    assert svg.startswith("<svg")
    assert len(svg) < 1_500_000


def test_nothing_tried_is_an_empty_picture():
    assert "svg" in search_surface([], [], None)


def test_it_needs_nothing_from_anywhere_and_follows_the_reader_s_colours():
    svg = search_surface(TRIED, MOVES, lane(2, 64), "a < b")
    assert "var(--series-1)" in svg
    assert "var(--series-2)" in svg
    assert "<image" not in svg
    assert "a &lt; b" in svg
