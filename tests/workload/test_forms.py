import pytest

from hebe.workload import forms
from hebe.workload.arrivals import BurstArrivals, ConstantArrivals, PoissonArrivals, TraceArrivals
from hebe.workload.key_skew import ReuseKeys, UniformKeys, ZipfKeys
from hebe.workload.query_sizes import (
    FixedSizes,
    LogNormalSizes,
    NormalSizes,
    ProductionSizes,
    QuantileSizes,
)
from hebe.workload.text_errors import RecordingError, WorkloadError


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("production", ProductionSizes()),
        ("mlperf", QuantileSizes()),
        ("fixed:256", FixedSizes(256)),
        ("normal:165:16", NormalSizes(165.0, 16.0, 245)),
        ("normal:2000:10", NormalSizes(2000.0, 10.0, 2050)),
        ("lognormal", LogNormalSizes(5.1, 0.2)),
        ("lognormal:4:0.5", LogNormalSizes(4.0, 0.5, 666)),
        ("quantiles:10,20,30", QuantileSizes((10, 20, 30))),
    ],
)
def test_query_sizes(form, expected):
    assert forms.query_sizes(form) == expected


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("poisson", PoissonArrivals()),
        ("constant", ConstantArrivals()),
        ("burst", BurstArrivals()),
        ("burst:3:2:20", BurstArrivals(3.0, 2.0, 20.0)),
    ],
)
def test_arrivals(form, expected):
    assert forms.arrivals(form) == expected


def test_trace_arrivals(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("time_s,rate_qps\n0,1\n1,2\n")
    once, fast = forms.arrivals(f"trace:{path}"), forms.arrivals(f"trace:{path}:60")
    assert isinstance(once, TraceArrivals)
    assert once.speed is None
    assert isinstance(fast, TraceArrivals)
    assert fast.speed == 60.0
    assert fast.trace.duration_s == 2.0


def test_key_skew(tmp_path):
    assert forms.key_skew("uniform") == UniformKeys()
    assert forms.key_skew("zipf:1.2") == ZipfKeys(1.2)
    assert forms.key_skew("reuse") == ReuseKeys()
    path = tmp_path / "h.csv"
    path.write_text(
        "file,kind,bin_hi,fraction\n"
        "a,rows_by_reuse,1,0.7\na,rows_by_reuse,2,0.2\na,rows_by_reuse,inf,0.1\n"
        "a,lookups_by_reuse,1,0.4\na,lookups_by_reuse,2,0.2\na,lookups_by_reuse,inf,0.4\n"
    )
    for form in (f"reuse:{path}", f"reuse:{path}:a"):
        skew = forms.key_skew(form)
        assert isinstance(skew, ReuseKeys)
        assert skew.profile.name == "a"


@pytest.mark.parametrize(
    ("parse", "form", "listed"),
    [
        (forms.query_sizes, "fixed", "fixed:ITEMS"),
        (forms.query_sizes, "fixed:many", "production"),
        (forms.query_sizes, "", "mlperf"),
        (forms.arrivals, "poison", "poisson"),
        (forms.arrivals, "burst:1", "burst[:FACTOR:BURST_S:PERIOD_S]"),
        (forms.key_skew, "zipf", "zipf:ALPHA"),
        (forms.key_skew, "zipf:1:2", "uniform"),
    ],
)
def test_unknown_forms_list_the_valid_ones(parse, form, listed):
    with pytest.raises(WorkloadError) as caught:
        parse(form)
    assert repr(form) in str(caught.value)
    assert listed in str(caught.value)


def test_a_known_form_with_a_bad_value_says_what_is_wrong():
    with pytest.raises(WorkloadError, match="at least 1 item"):
        forms.query_sizes("fixed:0")
    with pytest.raises(WorkloadError, match="at most 2,147,483,647"):
        forms.query_sizes("fixed:99999999999")
    with pytest.raises(WorkloadError, match="the mean is -5 items"):
        forms.query_sizes("normal:-5:3")
    with pytest.raises(WorkloadError, match="alpha"):
        forms.key_skew("zipf:-1")


def test_a_file_that_a_form_names_has_an_error_of_its_own():
    for parse, form in ((forms.arrivals, "trace:nowhere.csv"), (forms.key_skew, "reuse:nowhere.csv")):
        for asked in (form, f"{form}:2"):
            with pytest.raises(RecordingError, match=r"nowhere\.csv: cannot be read"):
                parse(asked)
    for parse, form in ((forms.arrivals, "often"), (forms.query_sizes, "fixed:0"), (forms.key_skew, "zipf:-1")):
        with pytest.raises(WorkloadError) as caught:
            parse(form)
        assert not isinstance(caught.value, RecordingError)
