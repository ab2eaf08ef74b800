import io
from pathlib import Path

import pytest
from rich.console import Console

from hebe.report.figures import Figure, FigureFile
from hebe.report.tables import figure_tables, format_estimate, format_number


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


def printed(files, width):
    console = Console(file=io.StringIO(), width=width)
    console.print(figure_tables(files), crop=False)
    return console.file.getvalue().splitlines()


@pytest.fixture
def files():
    ratio = Figure("serve.over_inprocess.http", 0.8187, "ratio", 0.7108, 0.9633, 7, ">= 0.90", paper="half of it")
    rate = Figure("serve.inprocess_qps", 1163.7, "queries/s", note="[on two cores]")
    serve = FigureFile("serve", "hebe bench serve", "a", {}, 1.0, False, (ratio, rate))
    sparse = FigureFile("sparse", "hebe bench sparse", "a", {}, 1.0, True, (Figure("sparse.bound", 4.3, "GB/s"),))
    return [(Path("docs/figures/serve.json"), serve), (Path("docs/figures/sparse.json"), sparse)]


def test_each_file_is_a_heading_over_its_own_columns(files):
    assert printed(files, 120) == [
        "docs/figures/serve.json",
        "figure                      value            spread  unit       target   met     paper",
        "serve.over_inprocess.http  0.8187  0.7108 to 0.9633  ratio      >= 0.90  missed  half of it",
        "serve.inprocess_qps         1,164                    queries/s",
        "",
        "docs/figures/sparse.json (quick)",
        "figure        value  unit",
        "sparse.bound    4.3  GB/s",
    ]


def test_80_columns_cost_the_spread_and_never_a_name(files):
    table = printed(files, 80)
    assert max(map(len, table)) <= 80
    assert table[1].split() == ["figure", "value", "unit", "target", "met", "paper"]
    assert table[2].split(maxsplit=6) == [
        "serve.over_inprocess.http", "0.8187", "ratio", ">=", "0.90", "missed", "half of it",
    ]  # fmt: skip
    assert table[4] == "(not enough room for: spread)"


def test_the_path_of_a_file_is_never_broken(files):
    assert printed(files, 10)[0] == "docs/figures/serve.json"
