"""The page that shows what the demo measured."""

import re

import pytest

from hebe.cli.demo_page import percentiles_ms, write_page
from hebe.load_generator.qps_search import Probe
from hebe.load_generator.rate_search import Crossing, Phase

from .demo_results import demo_result, load_report, measured_result, refused_probe


def page_of(result, tmp_path, commands=()):
    path = tmp_path / "demo" / "index.html"
    write_page(result, list(commands), path)
    return path.read_text()


def test_the_page_shows_all_of_it_and_escapes_what_others_named(tmp_path):
    page = page_of(measured_result(), tmp_path, ["hebe serve 'a & b'"])
    assert page.count("<svg") == 5
    for absent in ("the host of this", "itself a limit", "A remark"):
        assert absent not in page
    for text in (
        "latency-bounded throughput",
        "90 to 111",
        "equal to the offline AUC",
        "hebe serve &#39;a &amp; b&#39;",
    ):
        assert text in page
    assert "clicks &lt;&amp;&gt;.tsv" in page
    assert not re.search(r'(src|href)="(?!#)', page)


def test_a_page_of_a_server_too_slow_for_its_sla_shows_what_there_is(tmp_path):
    result = demo_result(0.5)
    result.denied_share = 0.42
    result.crossing, result.search_cut_short = Crossing(0.0, 0.0, 0.0), True
    result.probes.append(Probe(Phase.RAMP, 0.1, False, load_report(0.1, 900.0)))
    page = page_of(result, tmp_path)
    assert "offline it is 0.500000" in page
    assert "(the search ran out of time)" in page
    assert "below 0.1" in page
    assert "the host of this virtual machine gave 42% of the cores" in page
    assert page.count("<svg") == 2


def test_limits_and_remarks_are_told(tmp_path):
    result = demo_result()
    result.limits, result.remarks = ("sent <late>", "too few connections"), ("few keys", "short probes")
    page = page_of(result, tmp_path)
    assert "itself a limit: sent &lt;late&gt;; too few connections." in page
    assert "A remark on the search: few keys." in page
    assert "A remark on the search: short probes." in page


def test_a_probe_that_refused_is_shown_as_missed(tmp_path):
    result = demo_result()
    result.probes.append(refused_probe())
    page = page_of(result, tmp_path)
    assert "SLA missed: p95 among queries without an answer" in page
    assert ">missed<" in page


def test_rows_of_one_kind_have_no_auc(tmp_path):
    page = page_of(demo_result(float("nan"), labels="0000"), tmp_path)
    assert "labels of one kind only" in page
    assert "AUC offline" not in page


def test_percentiles_are_in_milliseconds():
    run = measured_result().runs[0]
    p50, p95, p99 = percentiles_ms(run)
    assert 0 < p50 < p95 < p99
    assert p50 == pytest.approx(run.report.latencies.percentile_s(50) * 1e3)
