from pathlib import Path

import numpy as np
import pytest

from hebe.report.figures import Figure
from hebe.studies.study import Heading, Picture, StudyError, StudyOptions, StudyResult, Table


def test_options_pick_by_effort():
    assert [
        options.pick(1, 3, 10) for options in (StudyOptions(quick=True), StudyOptions(), StudyOptions(full=True))
    ] == [
        1,
        3,
        10,
    ]
    with pytest.raises(StudyError, match="quick and full"):
        StudyOptions(quick=True, full=True)


def test_a_data_file_is_found_or_named(tmp_path):
    (tmp_path / "kairos").mkdir()
    (tmp_path / "kairos" / "a.csv").write_text("")
    options = StudyOptions(data=tmp_path)
    assert options.data_file("kairos/a.csv") == tmp_path / "kairos" / "a.csv"
    assert StudyOptions(data=tmp_path / "kairos").data_file("kairos/a.csv") == tmp_path / "kairos" / "a.csv"
    with pytest.raises(StudyError, match=r"kairos/b\.csv: there is no such file; --data names the directory"):
        options.data_file("kairos/b.csv")
    with pytest.raises(StudyError, match="--data DIR"):
        StudyOptions().data_file("kairos/a.csv")


def test_cells_are_shown_as_text():
    row = ["rm2", 1234567, 0.123456, None, True, np.int64(1000), np.float64(2.0), 1e-7]
    table = Table("t", list("abcdefgh"), [row])
    assert table.texts() == [["rm2", "1,234,567", "0.1235", "", "yes", "1,000", "2", "1e-07"]]


def test_columns_without_words_are_numeric():
    rows = [["rm2", 1, "30%", None, "4 g4dn.xlarge", "1.2 to 1.3", True], ["ncf", 2.5, "<1%", None, "1 t3", "", False]]
    assert Table("t", list("abcdefg"), rows).numeric() == [False, True, True, True, False, False, False]
    assert Table("t", list("ab"), []).numeric() == [True, True]


def test_a_row_of_the_wrong_length_is_refused():
    with pytest.raises(StudyError, match=r"table 'waits', row \[1\]: 1 cells, 2 columns"):
        Table("waits", ["a", "b"], [[1, 2], [1]])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float64("nan")])
def test_a_cell_that_is_no_number_is_refused(value):
    with pytest.raises(StudyError, match="table 'waits', ours: "):
        Table("waits", ["load", "ours"], [["30%", value]])


def test_a_picture_is_svg():
    with pytest.raises(StudyError, match="must be one <svg> element"):
        Picture(str(Path("picture.png")))


def test_what_leads_must_be_among_the_figures():
    figure = Figure("a.b", 1.0, "ratio")
    table = Table("t", ["a"], [[1]])
    assert StudyResult([figure], [Heading("x"), "words", table], ["a.b"]).tables == [table]
    with pytest.raises(StudyError, match=r"lead a\.c: there is no figure of that name"):
        StudyResult([figure], [], ["a.b", "a.c"])
