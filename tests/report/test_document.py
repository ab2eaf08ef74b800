from pathlib import Path

import numpy as np
import pytest

from hebe.report.document import Document, DocumentError, Heading, Picture, Table, Text, Tone, notes, verdict
from hebe.report.tables import Column


def test_cells_are_shown_as_text():
    row = ["rm2", 1234567, 0.123456, None, True, np.int64(1000), np.float64(2.0), 1e-7, Text("met", Tone.GOOD)]
    (shown,) = Table("t", list("abcdefghi"), [row]).texts()
    assert [cell.text for cell in shown] == ["rm2", "1,234,567", "0.1235", "", "yes", "1,000", "2", "1e-07", "met"]
    assert [cell.tone for cell in shown[-2:]] == [Tone.PLAIN, Tone.GOOD]


def test_columns_of_numbers_stand_to_the_right_and_others_fold():
    rows = [
        ["rm2", 1, "30%", None, "4 g4dn.xlarge", "(1, 0)", "1.2 to 1.3", True],
        ["ncf", 2.5, "<1%", None, "-", "~3 ms", "none", False],
    ]
    columns = Table("t", list("abcdefgh"), rows).laid_out()
    assert [column.right for column in columns] == [False, True, True, True, True, True, False, False]
    assert [column.folds for column in columns] == [not column.right for column in columns]
    assert [column.right for column in Table("t", list("ab"), []).laid_out()] == [True, True]


def test_a_column_that_is_laid_out_stays_so():
    asked = [Column("name", spare=1), Column("met", right=True, spare=2)]
    table = Table("t", [*asked, "by cells"], [["1", Text("missed"), Text("x")]])
    assert table.laid_out() == [*asked, Column("by cells", folds=True)]
    assert table.headings == ["name", "met", "by cells"]


def test_a_row_of_the_wrong_length_is_refused():
    with pytest.raises(DocumentError, match=r"table 'waits', row \[1\]: 1 cells, 2 columns"):
        Table("waits", ["a", "b"], [[1, 2], [1]])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float64("nan")])
def test_a_cell_that_is_no_number_is_refused(value):
    with pytest.raises(DocumentError, match="table 'waits', ours: "):
        Table("waits", ["load", Column("ours")], [["30%", value]])


def test_a_picture_is_svg_also_where_it_is_drawn_later():
    with pytest.raises(DocumentError, match="must be one <svg> element"):
        Picture(str(Path("picture.png")))
    assert Picture(lambda: "<svg/>").draw() == Picture("<svg/>").draw() == "<svg/>"
    later = Picture(lambda: "picture.png")
    with pytest.raises(DocumentError, match="must be one <svg> element"):
        later.draw()


def test_a_document_names_its_pictures_in_order():
    first, second = Picture("<svg/>", "first"), Picture("<svg/>", "second")
    assert Document("x", [first, "words", Table("t", ["a"], [[1]]), second]).pictures == [first, second]


def test_notes_are_a_section_where_there_are_any():
    assert notes([]) == []
    assert notes([Text("late")]) == [Heading("Notes"), Text("late")]


def test_a_verdict_is_marked():
    assert [verdict(met) for met in (True, False, None)] == [
        Text("met", Tone.GOOD),
        Text("missed", Tone.BAD),
        Text(""),
    ]
