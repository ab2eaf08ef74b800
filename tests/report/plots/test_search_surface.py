import math
import xml.etree.ElementTree as ET

import pytest

from hebe.report.plots.search_surface import MOST_PANELS, search_surface
from hebe.server_configuration import Lane, Placement

MODEL, PIPELINE = Placement.MODEL_ON_HOST, Placement.PIPELINE_ON_HOST
SPARSE, HOT = Placement.SPARSE_ON_HOST, Placement.HOT_SPARSE_ON_ACCELERATOR


def lane(workers, batch_size, cores=1):
    return (Lane(MODEL, workers, cores, batch_size),)


def pipeline(workers, dense, batch_size=64, cores=1):
    return (Lane(PIPELINE, workers, cores, batch_size, dense),)


def sparse(workers, co_located, fused_items, batch_size=64, cores=1):
    return (Lane(SPARSE, workers, cores, batch_size, co_located, fused_items),)


TRIED = [
    (lane(1, 16), 100.0), (lane(1, 64), 0.0), (lane(2, 16), 220.0), (lane(2, 64), 330.0), (lane(1, 16, 2), 140.0),
    (pipeline(1, 1), 50.0), (pipeline(1, 1, 256), 75.0), (pipeline(2, 1), 60.0), (pipeline(1, 2), 80.0),
]  # fmt: skip
MOVES = [(None, lane(1, 16)), (lane(1, 16), lane(2, 64)), (None, pipeline(1, 1)), (pipeline(1, 1), pipeline(1, 2))]


SVG = "{http://www.w3.org/2000/svg}"


def texts(svg):
    return [element.text for element in ET.fromstring(svg).iter(f"{SVG}text")]


def test_each_panel_has_the_cells_that_were_tried():
    shown = texts(search_surface(TRIED, MOVES, lane(2, 64), "Search of dlrm"))
    assert "Search of dlrm" in shown
    assert {"model-on-host, 1 core each", "pipeline-on-host, 1 core each"} <= set(shown)
    assert {"100", "220", "330", "60", "80"} <= set(shown)
    assert shown.count("–") == 1, "what keeps no SLA target was tried, though it reaches nothing"
    assert "75" in shown, "of a pipeline's batch sizes the best is shown"
    assert "50" not in shown


def test_what_was_only_looked_into_is_told_and_not_drawn():
    shown = texts(search_surface(TRIED, MOVES, lane(2, 64)))
    assert "model-on-host, 2 cores each" not in shown
    assert "Not drawn: 1 configuration with placements and cores per worker that no step led to." in shown
    with_it = texts(search_surface(TRIED, [*MOVES, (None, lane(1, 16, 2))], lane(2, 64)))
    assert "model-on-host, 2 cores each" in with_it
    assert not any("Not drawn" in text for text in with_it)


def test_without_a_path_all_is_drawn():
    shown = texts(search_surface(TRIED, [], lane(2, 64)))
    titles = {"model-on-host, 1 core each", "model-on-host, 2 cores each", "pipeline-on-host, 1 core each"}
    assert titles <= set(shown)
    assert "Star: the best." in shown
    assert not any("Not drawn" in text or "Circle" in text for text in shown)


def test_of_more_than_there_is_room_for_what_was_measured_most_is_drawn_and_the_rest_counted():
    """The best one's too, however little else was measured there."""
    tried = [(lane(workers, 16, each), 1.0) for each in range(1, 13) for workers in range(1, 24 // each + 1)]
    shown = texts(search_surface(tried, [], lane(2, 16, 12)))
    cores = [int(text.split()[1]) for text in shown if text.startswith("model-on-host, ")]
    assert cores == [*range(1, MOST_PANELS), 12]
    assert sum(each[0].cores_per_worker in (9, 10, 11) for each, _ in tried) == 6
    assert "Not drawn for want of room: 6 configurations with other placements and cores per worker." in shown


def test_pipelines_of_other_cores_per_worker_have_a_panel_of_their_own():
    """Climbs would lie over each other."""
    tried = [(pipeline(workers, dense, cores=each), 1.0) for each in (1, 2) for workers in (1, 2) for dense in (1, 2)]
    moves = [(None, pipeline(1, 1)), (None, pipeline(1, 1, cores=2))]
    shown = texts(search_surface(tried, moves, pipeline(2, 2)))
    assert {"pipeline-on-host, 1 core each", "pipeline-on-host, 2 cores each"} <= set(shown)
    assert shown.count("dense workers") == shown.count("sparse workers") == 2


FUSED = [
    (sparse(1, 1, 0), 10.0), (sparse(1, 1, 1024), 20.0), (sparse(1, 2, 1024), 30.0), (sparse(2, 2, 1024), 40.0),
    (sparse(2, 2, 1024, 256), 35.0),
]  # fmt: skip


def test_where_fusion_was_tried_it_is_an_axis_beside_co_located_workers():
    """As Hercules, Figure 11 d-f; and what the host does has a panel beside it."""
    moves = [(None, FUSED[0][0]), *((FUSED[at][0], FUSED[at + 1][0]) for at in range(3))]
    svg = search_surface(FUSED, moves, FUSED[3][0])
    shown = texts(svg)
    assert {"sparse-on-host, 1 core each: the accelerator", "co-located workers", "fused items"} <= set(shown)
    assert {"sparse-on-host, 1 core each: the host", "sparse workers", "batch size"} <= set(shown)
    assert {"a query", "1,024", "20", "40", "30", "35"} <= set(shown), "of a cell's configurations the best is shown"
    assert shown.count("40") == 2, "on the host, and on the accelerator"
    drawn = ET.fromstring(svg).findall(f".//{SVG}path[@clip-path]")
    lines = [path for path in drawn if "stroke-width: 1.6" in path.get("style", "")]
    assert len(lines) == 3, "two steps on the accelerator, then one on the host"


def test_where_the_host_does_nothing_only_the_accelerator_is_drawn():
    tried = [((Lane(HOT, 0, dense_workers=1, fused_items=fused),), 1.0 + fused) for fused in (0, 256)]
    shown = texts(search_surface(tried, [], tried[1][0]))
    assert [text for text in shown if text.startswith("hot-sparse")] == [
        "hot-sparse-on-accelerator, 1 core each: the accelerator"
    ]


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
