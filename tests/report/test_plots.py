import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from hebe.report.plots import (
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
POINTS = [LoadPoint(rate, 3.0 / (1.0 - rate / 500.0)) for rate in (300.0, 100.0, 400.0)]
ORDINARY = {
    "histogram": lambda: latency_histogram(SAMPLES, SLA),
    "tail": lambda: latency_tail({"http": SAMPLES, "grpc": 0.8 * SAMPLES}, SLA),
    "throughput": lambda: throughput_against_latency({"http": POINTS}, SLA, 380.0, (370.0, 390.0)),
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


def test_tail_axis_goes_as_far_as_the_samples():
    assert {"p50", "p90", "p95", "p99", "p99.9"} <= set(texts(latency_tail({"a": SAMPLES})))
    assert "p99.99" not in texts(latency_tail({"a": SAMPLES}))
    assert "p99" not in texts(latency_tail({"a": SAMPLES[:50]}))
    assert {"http", "grpc"} <= set(texts(ORDINARY["tail"]()))


def test_throughput_is_drawn_in_order_of_rate_with_its_bound():
    svg = ORDINARY["throughput"]()
    found = texts(svg)
    assert "p95 latency (ms)" in found
    assert "380 queries/s within the SLA" in found
    assert "SLA: p95 ≤ 25 ms" in found
    line = path_of(svg, "line2d_" + re.search(r'id="line2d_(\d+)">\s*<path[^>]*clip-path[^>]*series-1', svg)[1])
    assert (np.diff(line[:, 0]) > 0).all()


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
        lambda: throughput_against_latency({}, SLA),
        lambda: throughput_against_latency({"a": [LoadPoint(1.0, np.inf)]}, SLA),
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
    texts(throughput_against_latency({"a": [LoadPoint(float(x), x) for x in samples[:3]]}, sla or SLA))


def test_labels_are_text_not_markup():
    name = 'a<b>&"$x_1$'
    for svg in (
        time_per_stage({name: {name: 1.0}}, title=name),
        grouped_bars({name: {name: 1.0}}, name, name),
        latency_tail({name: SAMPLES, "b": SAMPLES}, title=name),
    ):
        assert name in texts(svg)
        assert ElementTree.fromstring(svg).get("aria-label").startswith(name)
