from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hebe.workload.rate_trace import RateTrace, moment_of, parse_time_s, read_rate_trace
from hebe.workload.text_errors import WorkloadError
from tests.places import SHARED_DATA

LOADS = SHARED_DATA / "load"


def written(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    return path


def test_counts_become_rates(tmp_path):
    trace = read_rate_trace(written(tmp_path, "timestamp,value\n2014-07-01 00:00:00,120\n2014-07-01 00:01:00,60.0\n"))
    np.testing.assert_allclose(trace.edges_s, [0, 60, 120])
    np.testing.assert_allclose(trace.rates_qps, [2, 1])
    assert trace.duration_s == 120


def test_a_count_is_of_one_step_and_a_step_without_a_line_is_a_gap(tmp_path):
    lines = ["timestamp,value", "2014-07-01 02:00:00,1800", "2014-07-01 02:30:00,3600", "2014-07-01 05:00:00,900"]
    trace = read_rate_trace(
        written(tmp_path, "\n".join([*lines, "2014-07-01 05:30:00,1800", "2014-07-01 06:30:00,180"]))
    )
    np.testing.assert_allclose(trace.edges_s / 1800, [0, 1, 2, 6, 7, 8, 9, 10])
    np.testing.assert_allclose(trace.rates_qps, [1, 2, 0, 0.5, 1, 0, 0.1])
    assert trace.gaps == tuple(
        f"{tmp_path}/trace.csv: line {line} is {late} s after the line before, others 1800 s: a gap"
        for line, late in (
            ("4: timestamp 2014-07-01 05:00:00", 9000), ("6: timestamp 2014-07-01 06:30:00", 3600),
        )
    )  # fmt: skip
    assert trace.remarks == (
        f"{trace.gaps[0]} (and 1 more like it): no query is sent in steps that have no line, as if none had been"
        " counted.",
    )


def test_counts_of_months_or_of_a_late_clock_have_no_gap(tmp_path):
    days = {"2026-01-01": 31, "2026-02-01": 28, "2026-03-01": 31, "2026-04-01": 30, "2026-05-01": 30}
    counts = [f"{day},{days[day] * 86400}" for day in days]
    trace = read_rate_trace(written(tmp_path, "\n".join(["month,queries", *counts])))
    np.testing.assert_allclose(trace.rates_qps, np.ones(5))
    assert (trace.gaps, trace.remarks) == ((), ())


def test_a_moment_with_an_offset_is_in_utc_and_one_without_is_of_the_wall():
    for text in ("1970-01-01T02:00+02:00", "1969-12-31T23:00-01:00", "1970-01-01T00:00Z", "1970-01-01 00:00", "0"):
        assert parse_time_s(text, "") == 0.0
    assert parse_time_s("1970-01-01T00:00:30.5+01:00", "") == 30.5 - 3600


def test_a_date_without_hyphens_is_none_of_seconds(tmp_path):
    days = "20240131,864000\n20240201,1728000\n20240202,864000\n"
    trace = read_rate_trace(written(tmp_path, f"date,queries\n{days}"))
    np.testing.assert_allclose(trace.edges_s, np.arange(4) * 86400)
    np.testing.assert_allclose(trace.rates_qps, [10, 20, 10])
    for text, same in (("20240131", "2024-01-31"), (" 20240131T1030 ", "2024-01-31 10:30"), ("2024W051", "2024-01-29")):
        assert parse_time_s(text, "") == parse_time_s(same, "")
    # Nor are seconds a date: with a point, with other digits, or of no such month, day or year.
    for seconds in ("20240131.0", "1706659200", "2024013", "20241331", "20240230", "12000131", "31000131"):
        assert parse_time_s(seconds, "") == float(seconds)
        assert moment_of(seconds) is None


@pytest.mark.parametrize("hours", [("T01:00+01:00", "T03:00+02:00"), ("T02:00+02:00", "T02:00+01:00")])
def test_an_hour_in_which_clocks_change_is_an_hour(tmp_path, hours):
    """In spring they skip one, in autumn they have one twice."""
    first, second = (f"2026-03-29{hour}" for hour in hours)
    trace = read_rate_trace(written(tmp_path, f"time,count\n{first},7200\n{second},3600\n"))
    np.testing.assert_allclose(trace.edges_s, [0, 3600, 7200])
    np.testing.assert_allclose(trace.rates_qps, [2, 1])


def test_rates_stay_rates_and_seconds_are_seconds(tmp_path):
    trace = read_rate_trace(written(tmp_path, "time_s,rate_qps\n100,5\n110,0\n\n130,7\n"))
    np.testing.assert_allclose(trace.edges_s, [0, 10, 30, 50])
    np.testing.assert_allclose(trace.rates_qps, [5, 0, 7])
    assert trace.gaps == (), "a rate holds until the next line"


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.floats(1e-3, 1e5), st.floats(0, 1e6)), min_size=2, max_size=30).filter(
        lambda intervals: any(rate > 0 for _, rate in intervals)
    )
)
def test_any_trace_is_read_as_it_is_written(tmp_path_factory, intervals):
    gaps, rates = (np.array(column) for column in zip(*intervals, strict=True))
    gaps[-1] = gaps[-2]
    edges = np.concatenate(([0.0], np.cumsum(gaps)))
    rows = "".join(f"{start!r},{rate!r}\n" for start, rate in zip(edges[:-1].tolist(), rates.tolist(), strict=True))
    trace = read_rate_trace(written(tmp_path_factory.mktemp("trace"), f"time_s,rate_qps\n{rows}"))
    np.testing.assert_allclose(trace.edges_s, edges, rtol=1e-9)
    np.testing.assert_array_equal(trace.rates_qps, rates)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: must be a header"),
        ("1,2\n3,4\n", "line 1: must be a header"),
        ("time_s,rate_qps\n0,1\n1\n", "line 3: has 1 fields"),
        ("time_s,rate_qps\n0,1\nsoon,2\n", "line 3: time_s is 'soon'"),
        ("time_s,rate_qps\n0,1\n0,2\n", "line 3: time_s is 0: must be later"),
        ("time_s,rate_qps\n0,1\nnan,2\n", "line 3: time_s is 'nan': must be finite"),
        ("timestamp,value\n0,1\n1,-2\n", "line 3: value is '-2': must be finite and at least 0"),
        ("timestamp,value\n0,1\n1,many\n", "line 3: value is 'many': must be a number"),
        ("timestamp,value\n0,1\n", "has 1 data lines"),
        ("timestamp,value\n0,0\n1,0\n", "value is 0 on every line"),
    ],
)
def test_bad_files_are_named_by_line_and_field(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(WorkloadError, match=message) as caught:
        read_rate_trace(path)
    assert str(path) in str(caught.value)


def test_missing_and_binary_files(tmp_path):
    with pytest.raises(WorkloadError, match="cannot be read"):
        read_rate_trace(tmp_path / "none.csv")
    (tmp_path / "b.csv").write_bytes(b"time,rate\n\xff\xfe,1\n")
    with pytest.raises(WorkloadError, match=r"b\.csv: line 2: byte 0xff is not UTF-8"):
        read_rate_trace(tmp_path / "b.csv")


def test_impossible_traces():
    with pytest.raises(WorkloadError, match="one edge more"):
        RateTrace(np.array([0.0, 1.0]), np.array([1.0, 2.0]))
    with pytest.raises(WorkloadError, match="start at 0 and increase"):
        RateTrace(np.array([0.0, 1.0, 1.0]), np.array([1.0, 2.0]))
    with pytest.raises(WorkloadError, match="not all 0"):
        RateTrace(np.array([0.0, 1.0]), np.array([0.0]))


@pytest.mark.parametrize(
    ("header", "start", "minutes", "intervals", "number"),
    [
        ("timestamp,value", "2014-07-01 00:00:00", 30, 10_320, str),  # as nyc_taxi.csv
        ("timestamp,value", "2014-04-10 00:04:00", 5, 4_032, "{}.0".format),  # as elb_request_count_8c0756.csv
        ("period,count", "1998-04-30 21:30:00", 1, 20_000, str),  # as worldcup98_per_minute.csv
    ],
)
def test_made_up_loads_in_the_formats_of_the_recorded_ones(tmp_path, header, start, minutes, intervals, number):
    counts = np.random.default_rng(intervals).integers(0, 30_000, intervals)
    moments = (datetime.fromisoformat(start) + timedelta(minutes=minutes * i) for i in range(intervals))
    rows = [f"{moment},{number(count)}" for moment, count in zip(moments, counts, strict=True)]
    trace = read_rate_trace(written(tmp_path, "\n".join([header, *rows])))
    np.testing.assert_array_equal(trace.edges_s, 60.0 * minutes * np.arange(intervals + 1))
    np.testing.assert_allclose(trace.rates_qps, counts / (60.0 * minutes))


@pytest.mark.skipif(not LOADS.exists(), reason="the recorded loads are not beside this checkout")
@pytest.mark.parametrize(
    ("name", "intervals", "gaps", "days"),
    [
        ("nyc_taxi.csv", 10_320, 0, 215),
        ("elb_request_count_8c0756.csv", 4_032, 8, 14),
        ("worldcup98_per_minute.csv", 125_300, 7, 87),
    ],
)
def test_recorded_loads(name, intervals, gaps, days):
    trace = read_rate_trace(LOADS / name)
    assert len(trace.gaps) == gaps
    assert len(trace.rates_qps) == intervals + gaps
    assert trace.duration_s == pytest.approx(days * 86400, rel=0.01)
