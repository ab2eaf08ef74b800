import pytest

from hebe.report.document import Heading, Table
from hebe.report.figures import Figure
from hebe_lab.study import StudyError, StudyOptions, StudyResult


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


def test_what_leads_must_be_among_the_figures():
    figure = Figure("a.b", 1.0, "ratio")
    table = Table("t", ["a"], [[1]])
    assert StudyResult([figure], [Heading("x"), "words", table], ["a.b"]).tables == [table]
    with pytest.raises(StudyError, match=r"lead a\.c: there is no figure of that name"):
        StudyResult([figure], [], ["a.b", "a.c"])
