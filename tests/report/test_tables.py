import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from hebe.report.tables import Column, FittingTable, format_estimate, format_number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.931234, "0.9312"),
        (1.0, "1"),
        (3330.4, "3,330"),
        (1234567.0, "1,234,567"),
        (1.2e-05, "1.2e-05"),
        (-41.25, "-41.25"),
        (3e17, "3e+17"),
    ],
)
def test_numbers_are_short(value, text):
    assert format_number(value) == text
    assert format_estimate(value, estimated=False) == text
    assert format_estimate(value, estimated=True) == f"~{text}"


def lines(table, width):
    """What a terminal of `width` columns gets, without markup; no line may end in blanks."""
    console = Console(file=io.StringIO(), width=width)
    console.print(table, crop=False)
    printed = console.file.getvalue().split("\n")[:-1]
    assert not [line for line in printed if line != line.rstrip()]
    return printed


def example():
    table = FittingTable(
        "name", Column("value", right=True), Column("spread", spare=2), Column("note", folds=True, spare=1)
    )
    table.add_row("serve.over_inprocess.http", "0.93", "0.91 to 0.95", "as measured on two cores")
    table.add_row("serve.p50", "1,189", "", "")
    return table


def test_with_room_every_row_is_one_line():
    assert lines(example(), 80) == [
        "name                       value  spread        note",
        "serve.over_inprocess.http   0.93  0.91 to 0.95  as measured on two cores",
        "serve.p50                  1,189",
    ]


def test_notes_fold_at_words_before_anything_is_left_out():
    assert lines(example(), 60) == [
        "name                       value  spread        note",
        "serve.over_inprocess.http   0.93  0.91 to 0.95  as measured",
        "                                                on two cores",
        "serve.p50                  1,189",
    ]


def test_the_most_spare_column_goes_first_and_is_named():
    assert lines(example(), 50) == [
        "name                       value  note",
        "serve.over_inprocess.http   0.93  as measured on",
        "                                  two cores",
        "serve.p50                  1,189",
        "(not enough room for: spread)",
    ]
    assert lines(example(), 39)[-1] == "(not enough room for: spread, note)"


@given(width=st.integers(1, 200))
def test_no_name_is_ever_broken_and_no_number_cut(width):
    printed = lines(example(), width)
    assert [line.split()[:2] for line in printed if line.startswith("serve")] == [
        ["serve.over_inprocess.http", "0.93"],
        ["serve.p50", "1,189"],
    ]
    rows = [line for line in printed if not line.startswith("(not enough room")]
    assert max(map(len, rows)) <= max(width, len("serve.over_inprocess.http   0.93"))


def test_an_empty_column_and_empty_headings_are_not_shown():
    table = FittingTable("", Column("never", right=True), Column(folds=True))
    table.add_row("fast", "", "is [fast]")
    assert lines(table, 80) == ["fast  is [fast]"]


def test_titles_stand_between_rows():
    table = FittingTable("name")
    table.add_title("from a source with a long name")
    table.add_row("a")
    assert lines(table, 10) == ["name", "from a source with a long name", "a"]


def test_styled_and_wide_text_is_aligned_by_what_it_shows():
    table = FittingTable("name", Column("n", right=True))
    table.add_row(Text("模型", "bold red"), "1")
    table.add_row("ab", "22")
    assert lines(table, 80) == ["name   n", "模型   1", "ab    22"]


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        FittingTable("a", "b").add_row("x")
