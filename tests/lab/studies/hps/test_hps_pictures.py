"""Lines of the hps studies, and their smoothing."""

import numpy as np

from hebe_lab.studies.hps.setting import lines, running_median


def test_lines_name_their_series_and_axes():
    svg = lines({"ours": ([32, 256], [1.0, 5.0]), "theirs": ([32, 256], [2.0, 9.0])}, "batch", "ms", "T", marked=True)
    for text in ("ours", "theirs", "batch", "ms", ">T<", ">32<", ">256<"):
        assert text in svg
    logarithmic = lines({"a": ([1, 10], [1.0, 100.0])}, "x", "y", "T", logarithmic=True)
    assert ">50<" in logarithmic


def test_a_running_median_forgets_outliers_and_keeps_steps():
    values = np.r_[np.zeros(20), np.ones(20)]
    spiked = values.copy()
    spiked[[5, 30]] = 100.0
    np.testing.assert_array_equal(running_median(spiked), values)
