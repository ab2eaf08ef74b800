import io
import sys

import pytest
from rich.console import Console

from hebe_lab.description import description_table, module_description


@pytest.fixture
def describe(tmp_path, monkeypatch):
    """Writes a module and returns its description."""
    monkeypatch.syspath_prepend(tmp_path)
    numbers = iter(range(100))

    def write(text):
        name = f"described_{next(numbers)}"
        (tmp_path / f"{name}.py").write_text(text)
        found = module_description(name)
        assert name not in sys.modules
        return found

    return write


def test_a_description_is_read_without_running_the_module(describe):
    assert describe('import no_such_module\nDESCRIPTION = "one line"\nraise SystemExit') == "one line"


@pytest.mark.parametrize(
    "text",
    [
        'DESCRIPTION: str = "one line"',
        'TITLE = DESCRIPTION = "one line"',
        'DESCRIPTION = "one " "line"',
        'OTHER: int\nDESCRIPTION: str\nOTHER, it[0] = 1, 2\nDESCRIPTION = "one line"\nDESCRIPTION = "another"',
    ],
)
def test_it_may_be_assigned_in_every_plain_way(describe, text):
    assert describe(text) == "one line"


@pytest.mark.parametrize("text", ["", "DESCRIPTIONS = 'x'", "def f():\n    DESCRIPTION = 'x'", "DESCRIPTION: str"])
def test_a_module_without_one_has_none(describe, text):
    assert describe(text) is None


def test_a_module_that_is_not_there_has_none():
    assert module_description("hebe.report.no_such_module") is None


def test_what_has_to_be_run_is_refused(describe):
    with pytest.raises(ValueError, match="malformed node"):
        describe("DESCRIPTION = f'{1}'")


def test_a_list_has_a_line_for_each_and_no_headings():
    console = Console(file=io.StringIO(), width=40)
    console.print(description_table({"serve": "What serving costs.", "embeddings": "Where rows lie."}), crop=False)
    assert console.file.getvalue().splitlines() == [
        "serve       What serving costs.",
        "embeddings  Where rows lie.",
    ]
