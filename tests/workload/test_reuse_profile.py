import numpy as np
import pytest

from hebe.workload.reuse_profile import (
    PRODUCTION_2021,
    ReuseHistogram,
    ReuseProfile,
    fit_reuse_profile,
    read_reuse_histogram,
)
from hebe.workload.text_errors import WorkloadError
from tests.places import SHARED_DATA

# embedding_bag/2021/locality_stats.txt of facebookresearch/dlrm_datasets, fbgemm_t856_bs65536.pt.
PUBLISHED = ReuseHistogram(
    "fbgemm_t856_bs65536.pt",
    bounds=(*(2.0**i for i in range(16)), np.inf),
    row_fractions=(0.473, 0.152, 0.139, 0.112, 0.072, 0.032, 0.011, 0.005, 0.002, 0.001, *[0.0] * 7),
    lookup_fractions=(
        *(0.069, 0.044, 0.068, 0.101, 0.121, 0.104, 0.073, 0.058, 0.052),
        *(0.050, 0.049, 0.048, 0.048, 0.043, 0.031, 0.023, 0.019),
    ),
)
REAL = SHARED_DATA / "dlrm_datasets" / "reuse_histograms.csv"


def write_csv(path, rows, header="year,file,kind,bin_lo,bin_hi,fraction"):
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def as_rows(histogram):
    lows = (0.0, *histogram.bounds[:-1])
    for kind, fractions in (
        ("rows_by_reuse", histogram.row_fractions),
        ("lookups_by_reuse", histogram.lookup_fractions),
    ):
        for low, high, fraction in zip(lows, histogram.bounds, fractions, strict=True):
            yield f"2021,{histogram.name},{kind},{low:g},{high:g},{fraction}"


def test_mean_reuse_is_the_published_one():
    assert PUBLISHED.mean_reuse == pytest.approx(6.9, abs=0.05)


def test_the_default_is_the_fit_of_the_published_histogram():
    fitted = fit_reuse_profile(PUBLISHED)
    assert fitted.row_shares == pytest.approx(PRODUCTION_2021.row_shares, rel=2e-3, abs=1e-5)
    assert fitted.lookup_shares == pytest.approx(PRODUCTION_2021.lookup_shares, rel=2e-3, abs=2e-5)


def test_sampling_the_fit_gives_the_published_histogram():
    profile = fit_reuse_profile(PUBLISHED)
    # A table so large that a batch of 6.88 lookups for each touched row has the published expected counts.
    coldest = profile.lookup_shares[-1] / profile.row_shares[-1]
    rows = 400_000
    lookups = round(0.25 / coldest * rows)
    ranks = profile.draw_ranks(rows, lookups, np.random.default_rng(1))
    counts = np.bincount(ranks, minlength=rows)
    touched = counts[counts > 0]
    assert touched.mean() == pytest.approx(PUBLISHED.mean_reuse, rel=0.02)
    edges = [0, *PUBLISHED.bounds]
    for i in range(9):  # beyond, a table of this size has too few rows
        inside = touched[(touched > edges[i]) & (touched <= edges[i + 1])]
        assert len(inside) / len(touched) == pytest.approx(PUBLISHED.row_fractions[i], abs=0.004)
        assert inside.sum() / lookups == pytest.approx(PUBLISHED.lookup_fractions[i], abs=0.006)


def test_reads_a_file_and_picks_a_histogram(tmp_path):
    other = ReuseHistogram("other", PUBLISHED.bounds, PUBLISHED.row_fractions, PUBLISHED.lookup_fractions)
    path = write_csv(tmp_path / "h.csv", [*as_rows(PUBLISHED), *as_rows(other)])
    assert read_reuse_histogram(path) == PUBLISHED
    assert read_reuse_histogram(path, "other") == other


@pytest.mark.skipif(not REAL.exists(), reason="the published files are not beside this checkout")
def test_the_typed_in_histogram_is_the_real_file():
    assert read_reuse_histogram(REAL) == PUBLISHED


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:0], "has no histogram"),
        (lambda rows: [rows[0].replace("0.473", "much")], "line 2: fraction is 'much': must be a number"),
        (lambda rows: [rows[0].replace("0.473", "1.5")], "line 2: fraction is 1.5: must lie in"),
        (lambda rows: [*rows[:3], "2021,fbgemm_t856_bs65536.pt,sales,0,1,0.1"], "line 5: kind is 'sales'"),
        (lambda rows: rows[:-1], "the same bins"),
    ],
)
def test_bad_files_are_named_by_line_and_field(tmp_path, change, message):
    path = write_csv(tmp_path / "bad.csv", change(list(as_rows(PUBLISHED))))
    with pytest.raises(WorkloadError, match=message) as caught:
        read_reuse_histogram(path)
    assert str(path) in str(caught.value)


def test_missing_column_file_and_name(tmp_path):
    path = write_csv(tmp_path / "bad.csv", ["1,2"], header="year,file")
    with pytest.raises(WorkloadError, match="line 1: column kind is missing"):
        read_reuse_histogram(path)
    with pytest.raises(WorkloadError, match="cannot be read"):
        read_reuse_histogram(tmp_path / "none.csv")
    with pytest.raises(WorkloadError, match="no histogram of file 'x'"):
        read_reuse_histogram(write_csv(tmp_path / "ok.csv", as_rows(PUBLISHED)), "x")


def test_shares_must_sum_to_one():
    with pytest.raises(WorkloadError, match="lookup_shares"):
        ReuseProfile("p", (0.5, 0.5), (0.5, 0.4))
    with pytest.raises(WorkloadError, match="as many"):
        ReuseProfile("p", (1.0,), ())


def test_one_row_is_always_row_zero():
    assert not PRODUCTION_2021.draw_ranks(1, 100, np.random.default_rng(0)).any()
