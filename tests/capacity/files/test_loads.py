"""Loads over time, from one column a model or one line a model and time, and what makes them no loads."""

import json

import numpy as np
import pytest

from hebe.capacity.errors import PlanFileError
from hebe.capacity.files.loads import read_loads
from hebe.workload.text_errors import WorkloadError


def read(path):
    return read_loads(path, ("rm1", "rm2"))


def test_one_column_a_model_and_one_line_a_model_are_the_same(write):
    wide = read(write("wide.csv", "time_s,rm2,rm1\n300,1,4\n600,2,5\n900,3,6\n"))
    entries = [
        {"time_s": time_s, "model": model, "qps": qps}
        for time_s, pair in ((600, (2, 5)), (300, (1, 4)), (900, (3, 6)))
        for model, qps in zip(("rm2", "rm1"), pair, strict=True)
    ]
    long = read(write("long.json", json.dumps(entries)))
    for loads in (wide, long):
        assert loads.models == ("rm2", "rm1")
        assert loads.spacing_s == 300
        np.testing.assert_array_equal(loads.times_s, [0, 300, 600])
        np.testing.assert_array_equal(loads.qps, [[1, 4], [2, 5], [3, 6]])
    assert (wide.start, wide.where[1]) == ("300", "wide.csv: line 3: time_s 600")


def test_a_single_moment_has_no_spacing(write):
    assert read(write("loads.csv", "time_s,rm1\n7,1\n")).spacing_s == 0


def test_dates_with_one_offset_or_another_are_moments(write):
    loads = read(write("loads.csv", "time_s,rm1\n2026-03-29T01:00Z,1\n2026-03-29T04:00+02:00,2\n"))
    assert (loads.spacing_s, loads.start) == (3600, "2026-03-29T01:00Z")


def test_eight_digits_of_text_may_be_a_date_and_a_number_is_seconds(write):
    assert read(write("loads.csv", "time_s,rm1\n20240131,1\n20240201,2\n")).spacing_s == 86400
    entries = [{"time_s": 20240131, "rm1": 1}, {"time_s": 20240201, "rm1": 2}]
    assert read(write("loads.json", json.dumps(entries))).spacing_s == 70


BAD = [
    ("loads.csv", "time_s,rm1\n0,1\n600,\n1200,1\n", "line 3: rm1 is empty: the load has a gap"),
    ("loads.csv", "time_s,rm1\n0,1\n600,1\n1800,1\n2400,1\n", "line 4: time_s 1800 is 1200 s after the time before, o"),
    ("loads.csv", "time_s,rm1\n0,1\n600,1\n1300,1\n", "line 4: time_s 1300 is 700 s after the time before, others 600"),
    ("loads.csv", "time_s,rm1\n0,1\n700,1\n1300,1\n", "line 3: time_s 700 is 700 s after the time before, others 600"),
    (
        "loads.csv",
        "time_s,rm1\n2026-03-29T01:00,1\n2026-03-29T04:00+02:00,1\n2026-03-29T03:00,1\n",
        "line 3: time_s 2026-03-29T04:00+02:00 is a date with a UTC offset, but 2026-03-29T01:00 at loads.csv: line 2"
        " is a date without a UTC offset: give all times alike",
    ),
    (
        "loads.csv",
        "time_s,model,qps\n0,rm1,1\n1970-01-01T00:10Z,rm1,1\n",
        "line 3: time_s 1970-01-01T00:10Z is a date with a UTC offset, but 0 at loads.csv: line 2 is in seconds: give",
    ),
    (
        "loads.csv",
        "time_s,rm1\n20240131,1\n20240201.0,1\n",
        "line 3: time_s 20240201.0 is in seconds, but 20240131 at loads.csv: line 2 is a date without a UTC offset",
    ),
    ("loads.csv", "time_s,rm1\n0,1\n600,1\n600,1\n", "line 4: time_s 600 is given twice"),
    ("loads.csv", "time_s,rm1\n600,1\n0,1\n", "line 3: time_s 0 is earlier than the line before"),
    ("loads.csv", "time_s,rm1\n0,1\n600,1e16\n", "line 3: rm1 is '1e16': must be 0, or lie between 1e-15 and 1e+15"),
    ("loads.csv", "time_s,rm1\n0,1\n600,1e-30\n", "line 3: rm1 is '1e-30': must be 0, or lie between"),
    ("loads.csv", "time_s,rm1\n0,1\n600,-1\n", "line 3: rm1 is '-1': must be a finite number of at least 0"),
    ("loads.csv", "time_s,rm1\n0,1\n600,nan\n", "line 3: rm1 is 'nan'"),
    ("loads.csv", "time_s,rm1\n0,1\nnan,2\n", "line 3: time_s is 'nan': must be finite"),
    ("loads.csv", "time_s,rm1\n0,1\nnoon,2\n", "line 3: time_s is 'noon': must be seconds or an ISO 8601"),
    (
        "loads.csv",
        "time_s,rm1,rm9\n0,1,1\n",
        "line 1: model 'rm9' has no efficiency tuples: known models are rm1, rm2",
    ),
    ("loads.csv", "rm1,rm2\n0,1\n", "line 1: time_s is missing"),
    ("loads.csv", "time_s\n0\n", "line 1: must have the load of each model"),
    ("loads.csv", "time_s,rm1\n", "holds no load entries"),
    ("loads.csv", "time_s,model,qps\n0,rm1,1\n0,rm1,2\n", "line 3: rm1 at time_s 0 is given twice"),
    ("loads.csv", "time_s,model,qps\n0,rm1,1\n0,rm2,1\n600,rm1,1\n", "line 4: no load of rm2 at time_s 600: a gap"),
    ("loads.csv", "time_s,model,qps\n0,rm9,1\n", "line 2: model 'rm9' has no efficiency tuples"),
    ("loads.csv", 'time_s,rm1\n0,"1\n', "cannot be read"),
    ("l.json", '[{"time_s": 0, "rm1": 1}, {"time_s": 600}]', "line 1, load 2: rm1 is missing"),
    (
        "l.json",
        '[{"time_s": 0}, {"time_s": 600, "rm1": 1}]',
        "line 1, load 2: rm1 is there, but not in the first entry",
    ),
    ("l.json", '[{"time_s": 0, "rm1": null}]', "line 1, load 1: rm1 is empty: the load has a gap"),
    ("l.json", '[{"time_s": null, "rm1": 1}]', "line 1, load 1: time_s is None: must be seconds or an ISO 8601"),
    ("l.json", '[{"time_s": true, "rm1": 1}]', "line 1, load 1: time_s is True: must be seconds or an ISO 8601"),
    ("l.json", '[{"time_s": 0, "rm9": 1}]', "line 1, load 1: model 'rm9' has no efficiency tuples"),
    ("l.json", '{"loads": []}', "holds no array 'load'"),
    ("l.json", "[]", "holds no load entries"),
    (
        "l.toml",
        "[[load]]\ntime_s = 00:10:00\nrm1 = 1",
        "line 1, load 1: time_s is datetime.time(0, 10): must be seconds",
    ),
    (
        "l.toml",
        "[[load]]\ntime_s = 2026-03-29T01:00:00\nrm1 = 1\n[[load]]\ntime_s = 2026-03-29T02:00:00Z\nrm1 = 1\n",
        "line 4, load 2: time_s 2026-03-29 02:00:00+00:00 is a date with a UTC offset, but 2026-03-29 01:00:00 at",
    ),
    ("l.toml", "[[load]]\ntime_s = 0\nmodel = 'rm1'\n", "line 1, load 1: model 'model' has no efficiency tuples"),
]


@pytest.mark.parametrize(("name", "text", "message"), BAD)
def test_bad_loads_are_named_by_line_or_entry_and_field(write, name, text, message):
    path = write(name, text)
    with pytest.raises((PlanFileError, WorkloadError)) as fault:
        read(path)
    assert str(fault.value).startswith(name)
    assert message in str(fault.value)


def test_files_that_are_no_text_are_refused(write):
    path = write("loads.csv", "")
    path.write_bytes(b"time_s,rm1\n\xff\xfe,1\n")
    with pytest.raises(PlanFileError, match=r"loads\.csv: line 2: byte 0xff is not UTF-8: save the file as UTF-8"):
        read(path)
