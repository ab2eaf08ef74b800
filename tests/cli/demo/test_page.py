"""The page that shows what the demo measured."""

import re

import pytest

from hebe.cli.demo.page import document, percentiles_ms
from hebe.load_generator.search.qps_search import Probe
from hebe.load_generator.search.rate_search import Crossing, Phase
from hebe.report.html import page

from .demo_results import demo_result, load_report, measured_result, refused_probe


def page_of(result, commands=()):
    return page(document(result, list(commands)))


def test_the_page_shows_all_of_it_and_escapes_what_others_named():
    shown = page_of(measured_result(), ["hebe serve 'a & b'"])
    assert shown.count("<svg") == 5
    for absent in ("the host of this", "itself a limit", "A remark"):
        assert absent not in shown
    for text in (
        "latency-bounded throughput",
        "90 to 111",
        "equal to the offline AUC",
        "hebe serve &#39;a &amp; b&#39;",
    ):
        assert text in shown
    assert "clicks &lt;&amp;&gt;.tsv" in shown
    assert not re.search(r'(src|href)="(?!#)', shown)


def test_a_page_of_a_server_too_slow_for_its_sla_shows_what_there_is():
    result = demo_result(0.5)
    result.denied_share = 0.42
    result.crossing, result.search_cut_short = Crossing(0.0, 0.0, 0.0), True
    result.probes.append(Probe(Phase.RAMP, 0.1, False, load_report(0.1, 900.0)))
    shown = page_of(result)
    assert "offline it is 0.500000" in shown
    assert "(the search ran out of time)" in shown
    assert "below 0.1" in shown
    assert "the host of this virtual machine gave 42% of the cores" in shown
    assert shown.count("<svg") == 2


def test_limits_and_remarks_are_told():
    result = demo_result()
    result.limits, result.remarks = ("sent <late>", "too few connections"), ("few keys", "short probes")
    shown = page_of(result)
    assert "itself a limit: sent &lt;late&gt;; too few connections." in shown
    assert "A remark on the search: few keys." in shown
    assert "A remark on the search: short probes." in shown


def test_a_probe_that_refused_is_shown_as_missed():
    result = demo_result()
    result.probes.append(refused_probe())
    shown = page_of(result)
    assert "SLA missed: p95 among queries without an answer" in shown
    assert ">missed<" in shown


def test_rows_of_one_kind_have_no_auc():
    shown = page_of(demo_result(float("nan"), labels="0000"))
    assert "labels of one kind only" in shown
    assert "AUC offline" not in shown


def test_percentiles_are_in_milliseconds():
    run = measured_result().runs[0]
    p50, p95, p99 = percentiles_ms(run)
    assert 0 < p50 < p95 < p99
    assert p50 == pytest.approx(run.report.latencies.percentile_s(50) * 1e3)
