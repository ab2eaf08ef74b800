import io

from rich.console import Console

from hebe.report.document import Commands, Heading, KeyNumber, KeyNumbers, Picture, Table, Text, Tone
from hebe.report.tables import Column
from hebe.report.terminal import on_terminal


def undrawn():
    raise AssertionError("the terminal shows no pictures")


TABLE = Table("Waits [ms]", ["load", "ours"], [["30%", 1.5], ["60%", None]], "a [note]", "only on the page")


def lines(*blocks, width=80, styled=False):
    options = {"force_terminal": True, "color_system": "standard"} if styled else {}
    console = Console(file=io.StringIO(), width=width, **options)
    for part in on_terminal(blocks):
        console.print(part, crop=False)
    return console.file.getvalue().splitlines()


def test_tables_and_texts_are_shown_and_nothing_else():
    assert lines(
        Heading("Section"),
        KeyNumbers([KeyNumber("p95", "8.1", "ms")]),
        "an explanation",
        Picture(undrawn, "a caption"),
        Text("said"),
        Commands(["hebe figures"]),
    ) == ["said"]


def test_a_table_has_its_title_and_its_note():
    assert lines(TABLE) == ["Waits [ms]", "load  ours", " 30%   1.5", " 60%", "a [note]"]


def test_tables_stand_between_blank_lines_and_texts_do_not():
    one = Table("", ["a"], [["1"]])
    assert lines(Text("first"), Text("second"), one, one, Text("last")) == [
        "first", "second", "", "a", "1", "", "a", "1", "", "last",
    ]  # fmt: skip


def test_a_table_without_rows_is_not_shown():
    assert lines(Text("first"), Table("none", ["a"], []), Text("last")) == ["first", "last"]


def test_a_title_is_never_broken():
    assert lines(Table("docs/figures/serve.json (quick)", ["a"], [["1"]]), width=10)[0] == (
        "docs/figures/serve.json (quick)"
    )


def test_what_names_a_row_is_bold_and_tones_are_coloured():
    named = Table("", [Column("model"), Column("SLA", right=True)], [["rm2", Text("missed", Tone.BAD)]])
    row = lines(named, styled=True)[-1]
    assert "\x1b[1mrm2" in row
    assert "\x1b[1;31mmissed" in row
    first_of_numbers = Table("", [Column("rank", right=True)], [["1"]])
    assert lines(first_of_numbers, styled=True)[-1].strip() == "1"
    assert lines(Text("late", Tone.WARNING), styled=True) == ["\x1b[33mlate\x1b[0m"]
