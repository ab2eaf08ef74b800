import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes

from hebe.latency import EXACT_ANSWERS, LatencyRecorder
from hebe.report.plots.latency import (
    LoadPoint,
    grouped_bars,
    latency_histogram,
    latency_tail,
    throughput_against_latency,
    time_per_stage,
)
from hebe.spec import SlaTarget

SLA = SlaTarget(25.0, 95.0)
SAMPLES = np.random.default_rng(0).lognormal(1.0, 0.6, 5000)
POINTS = [LoadPoint(rate, 3.0 / (1.0 - rate / 500.0), True) for rate in (300.0, 100.0, 400.0)]
MISSED, REFUSED = LoadPoint(450.0, 30.0, False), LoadPoint(500.0, np.inf, False)
ORDINARY = {
    "histogram": lambda: latency_histogram(SAMPLES, SLA),
    "tail": lambda: latency_tail({"http": SAMPLES, "grpc": 0.8 * SAMPLES}, SLA),
    "throughput": lambda: throughput_against_latency(POINTS, SLA, 380.0, (370.0, 390.0)),
    "stages": lambda: time_per_stage({"p50": {"queue": 0.1, "dense": 1.0}, "p99": {"queue": 3.0, "sparse": 1.5}}),
    "bars": lambda: grouped_bars({"1": {"a": 900.0, "b": 300.0}, "4": {"a": 2000.0}}, "queries/s", "Rate"),
}


def texts(svg):
    """Every text of the plot; fails unless it is one well-formed element that depends on nothing outside."""
    root = ElementTree.fromstring(svg)
    assert root.tag.endswith("svg")
    assert root.get("role") == "img"
    assert not re.search(r'(href|src)="(?!#)|url\((?!#)', svg)
    assert not re.search(r"#0[0-9a]0[0-9a]0[0-9a]\b", svg), "a stand-in colour was left"
    return ["".join(node.itertext()).strip() for node in root.iter() if node.tag.endswith("}text")]


def path_of(svg, group):
    """The coordinates of the first path within the group of that id."""
    root = ElementTree.fromstring(svg)
    found = next(node for node in root.iter() if node.get("id") == group)
    path = next(node for node in found.iter() if node.tag.endswith("}path"))
    return np.array([[float(number) for number in pair] for pair in re.findall(r"([-\d.]+) ([-\d.]+)", path.get("d"))])


@pytest.mark.parametrize("name", ORDINARY)
def test_each_plot_is_self_contained_and_always_the_same(name):
    svg = ORDINARY[name]()
    assert texts(svg)
    assert "prefers-color-scheme:dark" in svg
    assert svg == ORDINARY[name]()


def test_histogram_marks_percentiles_and_the_sla():
    found = texts(latency_histogram(SAMPLES, SLA, title="All queries"))
    assert "All queries" in found
    assert "SLA: p95 ≤ 25 ms" in found
    for name, percentile in (("p50", 50), ("p95", 95), ("p99", 99), ("p99.9", 99.9)):
        (label,) = [text for text in found if text.startswith(f"{name} ")]
        assert float(label.split()[1]) == pytest.approx(np.percentile(SAMPLES, percentile), rel=5e-3)


@pytest.mark.parametrize("answers", [1000, EXACT_ANSWERS + 1, 5 * EXACT_ANSWERS])
def test_a_histogram_counts_every_answer(answers, monkeypatch):
    recorder, heights = LatencyRecorder(SLA), []
    recorder.record_many(np.random.default_rng(0).lognormal(-5.0, 0.5, answers))
    draw = Axes.hist
    monkeypatch.setattr(Axes, "hist", lambda *given, **how: heights.append(draw(*given, **how)[0]))
    svg = latency_histogram(recorder, SLA)
    assert heights[0].sum() == pytest.approx(answers)
    assert f"histogram of {answers} latencies" in svg


def marked_ms(svg):
    """The percentiles that a histogram marks."""
    labels = (text.split() for text in texts(svg) if re.match(r"p[\d.]+ [\d.,]+$", text))
    return {float(name[1:]): float(value.replace(",", "")) for name, value in labels}


@pytest.mark.parametrize("answers", [1, 19, 20, 390, 1000, EXACT_ANSWERS + 390])
def test_percentiles_are_those_of_the_recorder_also_at_a_gap(answers):
    recorder = LatencyRecorder(SLA)
    recorder.record_many([0.060 if n % 20 == 0 else 0.005 for n in range(answers)])
    expected = {at: float(f"{recorder.percentile_s(at) * 1e3:.3g}") for at in (50.0, 95.0, 99.0, 99.9)}
    assert marked_ms(latency_histogram(recorder, SLA)) == expected
    if answers <= EXACT_ANSWERS:
        assert marked_ms(latency_histogram(recorder.samples_s() * 1e3)) == expected


def test_percentiles_of_samples_count_those_without_an_answer():
    assert marked_ms(latency_histogram([1.0] * 96 + [np.nan] * 4)) == {50.0: 1.0, 95.0: 1.0}


def places(svg):
    """Left end and base line of each text, by text, in the SVG's units: downwards is more."""
    root = ElementTree.fromstring(svg)
    found = {}
    for node in root.iter():
        if node.tag.endswith("}text"):
            x, y = node.get("x"), node.get("y")
            if x is None:
                x, y = re.search(r"translate\(([-\d.]+) ([-\d.]+)\)", node.get("transform")).groups()
            found["".join(node.itertext()).strip()] = (float(x), float(y))
    return found


@pytest.mark.parametrize("bound_ms", [0.8, 3.0, 7.4, 12.0, 40.0])
def test_no_line_of_a_histogram_crosses_a_label(bound_ms):
    svg = latency_histogram(SAMPLES, SlaTarget(bound_ms, 95.0))
    named = sorted((place, text) for text, place in places(svg).items() if re.match(r"(p[\d.]+ [\d.]+$)|SLA", text))
    labels = [place for place, _ in named]
    assert len(labels) == 5
    lines = sorted(
        (float(x), min(float(top), float(bottom)))
        for x, bottom, again, top in re.findall(r'd="M ([\d.]+) ([\d.]+) \s*L ([\d.]+) ([\d.]+) \s*" clip-path', svg)
        if x == again
    )
    lines = [line for line in lines if any(0 < label[0] - line[0] < 6 for label in labels)]
    for number, (_, base) in enumerate(labels):
        assert all(top > base for x, top in lines if x > labels[number][0]), "a line to the right of it ends below it"
    assert max(x for (x, _), text in named if text.startswith("SLA")) < 0.82 * 518.4, "there is room for it"


def test_tail_axis_goes_as_far_as_the_samples():
    assert {"p50", "p90", "p95", "p99", "p99.9"} <= set(texts(latency_tail({"a": SAMPLES})))
    assert "p99.99" not in texts(latency_tail({"a": SAMPLES}))
    assert "p99" not in texts(latency_tail({"a": SAMPLES[:50]}))
    assert {"http", "grpc"} <= set(texts(ORDINARY["tail"]()))


def heights_of(svg):
    """The series' line, in the SVG's units: (x, y), downwards is more."""
    return path_of(svg, "line2d_" + re.search(r'id="line2d_(\d+)">\s*<path[^>]*clip-path[^>]*series-1', svg)[1])


def test_the_tail_holds_each_latency_up_to_its_rank():
    svg = latency_tail({"a": [1.0] * 95 + [10.0] * 5})
    steps = np.abs(np.diff(heights_of(svg), axis=0))
    assert (steps.min(axis=1) < 0.01).all(), "no slope, which would begin to rise before p95"
    (rise,) = np.flatnonzero(steps[:, 1] > 1)
    assert heights_of(svg)[rise, 0] == pytest.approx(places(svg)["p95"][0], abs=12), "there, but for half of the label"


def test_the_tail_leaves_the_plot_where_queries_had_no_answer():
    answered = latency_tail({"a": [5.0] * 100}, SLA)
    refused = latency_tail({"a": [5.0] * 80 + [np.inf] * 20}, SLA)
    bound = places(refused)["SLA: p95 ≤ 25 ms"][1]
    assert heights_of(answered)[:, 1].min() > bound
    assert heights_of(refused)[:, 1].min() < bound - 20


def test_throughput_is_drawn_in_order_of_rate_with_its_bound():
    svg = ORDINARY["throughput"]()
    found = texts(svg)
    assert "p95 latency of all queries (ms)" in found
    assert "380 queries/s within the SLA" in found
    assert "SLA: p95 ≤ 25 ms" in found
    assert (np.diff(heights_of(svg)[:, 0]) > 0).all()
    assert not any("missed" in text for text in found)
    below = places(svg)
    assert below["380 queries/s within the SLA"][1] > below["arrival rate (queries/s)"][1], "no point is under it"


def test_points_that_missed_the_sla_look_otherwise():
    svg = throughput_against_latency([*POINTS, MISSED], SLA, 380.0)
    assert {"SLA met", "SLA missed"} <= set(texts(svg))
    assert not any("without an answer" in text for text in texts(svg))
    assert "4 measurements, 3 within the SLA" in svg
    assert "SLA met" not in texts(throughput_against_latency([MISSED], SLA))


@pytest.mark.parametrize("points", [[*POINTS, REFUSED], [REFUSED], [REFUSED, LoadPoint(510.0, 1e6, False)]])
def test_a_tail_among_refused_queries_stands_beyond_the_sla(points):
    svg = throughput_against_latency(points, SLA)
    root = ElementTree.fromstring(svg)
    label = "SLA missed: p95 among queries without an answer"
    assert label in texts(svg)
    marks = [
        [float(use.get("y")) for use in group.iter() if use.tag.endswith("}use")]
        for group in root.iter()
        if re.fullmatch(r"line2d_\d+", group.get("id", "")) and 'x="' in ElementTree.tostring(group, "unicode")
    ]
    bound = min(
        float(y)
        for y in re.findall(r'd="M [\d.]+ ([\d.]+) \s*L [\d.]+ \1 \s*" clip-path="[^"]*" style="[^"]*limit', svg)
    )
    axes_top = min(float(y) for y in re.findall(r'd="M [\d.]+ [\d.]+ \s*L [\d.]+ ([\d.]+) \s*" style="fill: none', svg))
    highest = min(y for ys in marks for y in ys)
    assert axes_top < highest < bound


def test_stages_stack_and_show_their_total():
    found = texts(ORDINARY["stages"]())
    assert {"queue", "sparse", "dense", "p50", "p99"} <= set(found)
    assert {"1.1", "4.5"} <= set(found)


def test_an_absent_bar_is_not_drawn_as_zero():
    found = texts(ORDINARY["bars"]())
    assert {"900", "300", "2,000"} <= set(found)
    assert "0" in found
    assert found.count("0") == 1


@pytest.mark.parametrize(
    "plot",
    [
        lambda: latency_histogram([]),
        lambda: latency_histogram([np.nan, np.inf], SLA),
        lambda: latency_tail({}, SLA),
        lambda: latency_tail({"a": []}),
        lambda: throughput_against_latency([], SLA),
        lambda: throughput_against_latency([LoadPoint(1.0, np.nan, False)], SLA),
        lambda: time_per_stage({}),
        lambda: grouped_bars({}, "ms", "x"),
    ],
)
def test_nothing_measured_is_said(plot):
    assert "nothing measured" in texts(plot())


@pytest.mark.parametrize(
    ("samples", "sla"),
    [
        ([3.0], None),
        ([2.0] * 50, SlaTarget(1e6)),
        ([0.0, 1.0], SlaTarget(1e-3)),
        ([1e-4, 1e4], SlaTarget(3.0)),
        (np.arange(1.0, 2001.0), SlaTarget(3.0)),
    ],
)
def test_odd_samples_are_drawn_without_a_warning(samples, sla):
    texts(latency_histogram(samples, sla))
    texts(latency_tail({"a": samples, "b": []}, sla))
    texts(throughput_against_latency([LoadPoint(float(x), x, True) for x in samples[:3]], sla or SLA))


def test_labels_are_text_not_markup():
    name = 'a<b>&"$x_1$'
    for svg in (
        time_per_stage({name: {name: 1.0}}, title=name),
        grouped_bars({name: {name: 1.0}}, name, name),
        latency_tail({name: SAMPLES, "b": SAMPLES}, title=name),
    ):
        assert name in texts(svg)
        assert ElementTree.fromstring(svg).get("aria-label").startswith(name)
