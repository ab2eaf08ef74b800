"""Tables and pages of what was measured, without the command that measures it."""

import re
from dataclasses import replace

import pytest

from hebe.cli.load.results import load_caption, run_document, search_document
from hebe.load_generator.search.rate_search import Crossing
from hebe.report.html import write_page
from hebe.spec import SlaTarget
from tests.cli.shown import printed

from .load_reports import SLA, found, report


def run_shown(report, width=160):
    return printed(run_document(report, "m"), width)


def search_shown(found, width=160):
    return printed(search_document(found, "m"), width)


def test_a_run_is_a_table_of_its_latencies_and_what_was_not_answered():
    lines = {line[:14].strip(): line[14:].strip() for line in run_shown(report(refused=25)).splitlines()}
    assert lines["arrivals"] == "125 in 2 s, 62.5/s"
    assert lines["answered"] == "50 queries/s, 250 items/s"
    assert lines["latency p50"].startswith("50")
    assert lines["latency p99"].startswith("99")
    assert lines["latency p99.9"].startswith(("99", "100"))
    assert lines["SLA p99"] == "16.0% of arrivals in 20 ms, missed"
    assert lines["refused"] == "25 (503)"
    assert lines["failed"] == "0"
    assert lines["generator"] == "10.0% of a core, 8 connections"
    assert "503: full" in run_shown(report(refused=25))


def test_a_run_that_ended_early_or_has_no_sla_says_so():
    assert "ended early" not in run_shown(report())
    early = run_shown(report(sla=None, cut_short="interrupted"))
    assert re.search(r"ended early +interrupted", early)
    assert "SLA" not in early


def test_remarks_on_a_run_are_shown():
    assert "feature_0: few" in run_shown(replace(report(), remarks=("feature_0: few different keys",)))


def test_that_queries_failed_is_the_first_remark():
    failed = replace(report(refused=2), cpu_share=0.97, server_gone="connection refused")
    failed.latencies.fail("connection refused", 50)
    lines = run_shown(failed, width=300).splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("The server is gone: after the run"))
    assert lines[first].rstrip().endswith("50 of 152 queries failed: connection refused")
    assert first < next(n for n, line in enumerate(lines) if line.startswith(("503: full", "The load generator")))
    assert "queries failed" not in run_shown(report(refused=2))


def test_more_answers_than_arrivals_are_explained():
    some = run_shown(replace(report(), answered_in_window=165, answered_of_warm_up=70), width=300)
    assert "more was answered than arrived: 70 of the 165 answers were to queries of the warm-up" in some


def test_a_search_is_a_table_of_probes_and_a_result():
    text = search_shown(found())
    headings, ramp, round_ = (re.split("  +", line.strip()) for line in text.splitlines()[:3])
    assert headings[2:8] == ["arrived/s", "answered/s", "p50 ms", "p95 ms", "p99 ms", "p99.9 ms"]
    assert ramp[2:4] == ["50", "50"]
    assert [float(cell) for cell in ramp[4:8]] == pytest.approx([50, 95, 99, 100], rel=0.02)
    assert (ramp[:2], ramp[-3:]) == (["ramp", "100"], ["0", "0", "met"])
    assert (round_[:2], round_[-3:]) == (["round", "200"], ["3", "0", "missed"])
    for words in ("150 queries/s (95% interval 140 to 160) with p99 within 20 ms", "503: full", "caches look warm"):
        assert words in text
    assert "bottleneck" not in text
    assert "itself a bottleneck: the generator used 97% of a core" in search_shown(found(cpu_share=0.97))


@pytest.mark.parametrize(
    ("crossing", "text"),
    [
        (None, "Interrupted before there was an estimate (p99 within 20 ms)."),
        (Crossing(1e6, 1e6, 1e6, capped=True), "At least 1,000,000 queries/s"),
    ],
)
def test_searches_without_a_result_say_why(crossing, text):
    assert text in search_shown(found(crossing))


NO_LOWER = "no lower rate was tried: give a longer --duration"


def test_a_search_that_nothing_held_in_says_down_to_which_rate_it_looked(tmp_path):
    none = replace(found(Crossing(0, 0, 0)), probes=found().probes[1:])
    assert f"p99 within 20 ms is not kept at 200 queries/s or more; {NO_LOWER}" in search_shown(none)
    assert (none.to_dict()["qps"], none.to_dict()["lowest_qps"]) == (0, 200)
    write_page(search_document(none, "m"), tmp_path / "load.html")
    page = (tmp_path / "load.html").read_text()
    assert "below 200" in page
    assert "queries/s within the SLA" not in page, "there is no such rate to draw"


def test_a_search_whose_lowest_rate_held_but_now_and_then_does_not_say_that_none_does():
    some = search_shown(found(Crossing(0, 0, 130)))
    assert f"Latency-bounded throughput below about 100 queries/s with p99 within 20 ms; {NO_LOWER}" in some
    assert "met" in some
    assert "not kept" not in some


def test_an_interrupted_search_with_an_estimate_is_told_as_one():
    assert "(95% interval 140 to 160; interrupted)" in search_shown(replace(found(), interrupted=True))


def test_a_percentile_of_the_sla_that_is_none_of_the_usual_ones_has_a_column():
    odd = replace(found(), sla=SlaTarget(20.0, 90.0))
    assert re.search("p50 ms +p90 ms +p95 ms +p99 ms +p99.9 ms", search_shown(odd))


def test_the_table_of_a_search_fits_a_narrow_terminal():
    text = search_shown(found(), width=60)
    assert max(len(line) for line in text.splitlines() if not line.startswith("(not enough room")) <= 60
    assert "missed" in text
    assert "p99 ms" in text, "that of the SLA"


def test_the_best_rate_that_held_is_told_in_a_terminal_of_any_width():
    text = " ".join(search_shown(found(), width=60).split())
    told = re.search(
        r"At 100 queries/s, the highest rate that held: 50 answered/s,"
        r" p50 (\S+), p95 (\S+), p99 (\S+), p99\.9 (\S+) ms",
        text,
    )
    assert [float(each) for each in told.groups()] == pytest.approx([50, 95, 99, 100], rel=0.02)
    none = replace(found(), probes=found().probes[1:])
    assert "that held" not in search_shown(none)


def test_the_page_of_a_search_has_its_probes_and_tells_missed_ones(tmp_path):
    write_page(search_document(found(), "m"), tmp_path / "load.html")
    page, text = (tmp_path / "load.html").read_text(), search_shown(found())
    table = re.search(r"<table>.*</table>", page, re.S)[0]
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>.*?</tr>", table, re.S)[1:]]
    assert [(row[1], row[9], row[11]) for row in cells] == [("100", "0", "met"), ("200", "3", "missed")]
    assert all(cell in text for row in cells for cell in row)
    # 3 of 103 are refused, and 1% of them may be late.
    assert "SLA missed: p99 among queries without an answer" in page
    assert "SLA met" in page
    for remark in ("caches look warm", "503: full", load_caption(SLA, "one probe")):
        assert remark in page


def test_the_page_of_a_run_tells_of_queries_without_an_answer(tmp_path):
    write_page(run_document(report(), "m"), tmp_path / "load.html")
    assert "had no answer" not in (tmp_path / "load.html").read_text()
    write_page(run_document(replace(report(refused=25), remarks=("few keys",)), "m"), tmp_path / "load.html")
    page = (tmp_path / "load.html").read_text()
    assert "25 of 125 queries had no answer: they are not in it." in page
    assert "16.0% of arrivals in 20 ms" in page
    assert "few keys" in page
