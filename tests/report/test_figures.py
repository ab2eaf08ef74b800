import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hebe.report.figures import (
    Figure,
    FigureError,
    FigureFile,
    Target,
    median_and_spread,
    ratio_of_medians,
    read_figures,
)
from hebe.report.terminal import on_terminal

WHOLE = '{"name": "a", "command": "", "commit": "", "machine": {}, "seconds": 1.5, "quick": false, "figures": []}'


def example_file(**changes):
    fields = {
        "name": "serve",
        "command": "hebe bench serve",
        "commit": "abc",
        "machine": {"cpu": "x", "cores": 2},
        "seconds": 41.2,
        "quick": False,
        "figures": (
            Figure("serve.a", 0.93, "ratio", low=0.91, high=0.95, runs=7, target=">= 0.90"),
            Figure("serve.b", 3, "ms", target="< 1", paper="1.5x"),
        ),
    }
    return FigureFile(**{**fields, **changes})


@pytest.mark.parametrize(
    ("text", "value", "met"),
    [
        (">= 0.90", 0.9, True),
        (">= 0.90", 0.8999, False),
        ("< 1", 1.0, False),
        ("<1", 0.99, True),
        ("<= 1.1", 1.1, True),
        ("> -2e-3", 0, True),
        ("> .5", 0.5, False),
    ],
)
def test_target_says_whether_it_is_met(text, value, met):
    assert Target.parse(text).met_by(value) is met
    assert Figure("x", value, "ratio", target=text).met is met


@pytest.mark.parametrize("text", ["", "0.9", "=> 1", "about 1", ">= one", ">= 1 ms", ">= 1, < 2"])
def test_target_that_cannot_be_read_is_refused(text):
    with pytest.raises(FigureError, match="target"):
        Figure("x", 1, "ratio", target=text)


def test_without_target_nothing_is_met_or_missed():
    assert Figure("x", 1, "ratio").met is None


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("name", {"name": " "}),
        ("value", {"value": math.nan}),
        ("value", {"value": math.inf}),
        ("value", {"value": None}),
        ("value", {"value": True}),
        ("value", {"value": "1"}),
        ("low", {"low": math.nan, "high": 1}),
        ("low", {"low": 1.0}),
        ("low", {"low": 2, "high": 1}),
        ("runs", {"runs": 0}),
        ("runs", {"runs": 1.5}),
    ],
)
def test_figure_refuses_what_was_not_measured(field, fields):
    with pytest.raises(FigureError, match=field):
        Figure(**{"name": "x", "value": 1, "unit": "ratio", **fields})


def test_file_has_the_agreed_form_and_reads_back(tmp_path):
    file = example_file()
    path = file.write(tmp_path / "figures")
    assert path == tmp_path / "figures" / "serve.json"
    data = json.loads(path.read_text())
    assert list(data) == ["name", "command", "commit", "machine", "seconds", "quick", "figures"]
    assert data["figures"][0] == {
        "name": "serve.a", "value": 0.93, "low": 0.91, "high": 0.95, "runs": 7,
        "unit": "ratio", "target": ">= 0.90", "paper": None, "note": "",
    }  # fmt: skip
    assert FigureFile.read(path) == file
    assert [path.name for path in path.parent.iterdir()] == ["serve.json"]


def test_numpy_numbers_become_plain_ones(tmp_path):
    figure = Figure("x", np.float32(0.5), "ratio", low=np.float64(0.25), high=np.int64(1))
    file = example_file(figures=(figure,))
    assert FigureFile.read(file.write(tmp_path)).figures[0] == Figure("x", 0.5, "ratio", low=0.25, high=1.0)


def test_here_names_machine_and_commit():
    file = FigureFile.here("serve", "hebe bench serve", 1.0, True, [])
    assert file.commit
    assert set(file.machine) == {"cpu", "cores", "memory_bytes", "kernel", "python", "torch"}
    assert file.machine["cores"] >= 1
    assert file.quick


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a figure file"),
        ("[]", "not a figure file"),
        ('{"name": "x"}', "figures"),
        ("[" * 100_000, "not a figure file: nested too deep"),
        (WHOLE.replace("[]", "3"), "not a figure file: field 'figures' must be a list of figures$"),
        (WHOLE.replace("[]", "[3]"), "figure 1 of its list must be a JSON object$"),
        (WHOLE.replace("[]", '[{"name": "y", "value": 1}]'), "figure 1 of its list: field 'unit' is missing$"),
        (WHOLE.replace("[]", '[{"name": "y", "value": 1, "unit": 3}]'), "figure y: unit is 3$"),
        (WHOLE.replace("[]", '[{"name": "y", "value": 1, "unit": "ms", "target": 3}]'), "figure y: target is 3$"),
        ('{"name": "x", "figures": [], "colour": 1}', "colour"),
        (WHOLE.replace("[]", '[{"name": "y"}]'), "fields 'value', 'unit' are missing"),
        (WHOLE.replace('"a"', '"../a"'), "name"),
        (WHOLE.replace("1.5", "null"), "seconds"),
        (WHOLE.replace("false", "0"), "quick"),
    ],
)  # fmt: skip
def test_a_broken_file_is_named_with_its_field(tmp_path, text, message):
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(FigureError, match=message) as caught:
        FigureFile.read(path)
    assert str(path) in str(caught.value)


def test_one_figure_twice_in_a_file_is_refused():
    with pytest.raises(FigureError, match="twice"):
        example_file(figures=(Figure("x", 1, "ratio"), Figure("x", 2, "ratio")))


def test_read_figures_goes_by_name_and_needs_no_directory(tmp_path):
    assert read_figures(tmp_path / "none") == ([], [])
    example_file(name="b").write(tmp_path)
    example_file(name="a").write(tmp_path)
    assert [file.name for _, file in read_figures(tmp_path)[0]] == ["a", "b"]


def test_what_is_no_figure_file_is_told_by_its_full_path_beside_those_that_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example_file(name="b").write(tmp_path)
    (tmp_path / "a.json").write_text('{"figures": 3}')
    (tmp_path / "c.json").mkdir()
    found, faults = read_figures(Path())
    assert [(path, file.name) for path, file in found] == [(Path("b.json"), "b")]
    missing = "fields 'name', 'command', 'commit', 'machine', 'seconds', 'quick' are missing"
    assert list(map(str, faults)) == [
        f"{tmp_path}/a.json: not a figure file: {missing}",
        f"{tmp_path}/c.json: Is a directory",
    ]


positive = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=9)


@given(positive, positive)
def test_ratio_lies_within_its_interval_and_the_samples_range(a, b):
    value, low, high = ratio_of_medians(a, b)
    assert value == np.median(a) / np.median(b)
    assert min(a) / max(b) * (1 - 1e-9) <= low <= high <= max(a) / min(b) * (1 + 1e-9)
    assert ratio_of_medians(a, b) == (value, low, high)


def test_ratio_of_clear_samples():
    value, low, high = ratio_of_medians([2.0, 2.1, 1.9, 2.0, 2.05], [1.0, 1.0, 1.0, 1.0, 1.0])
    assert value == 2.0
    assert 1.9 <= low <= 2.0 <= high <= 2.1
    assert ratio_of_medians([3.0], [2.0]) == (1.5, 1.5, 1.5)
    assert median_and_spread([1.0, 2.0, 3.0])[0] == 2.0


@pytest.mark.parametrize(("a", "b"), [([], [1.0]), ([1.0], []), ([1.0], [0.0]), ([math.nan], [1.0])])
def test_ratio_refuses_samples_without_meaning(a, b):
    with pytest.raises(FigureError):
        ratio_of_medians(a, b)


def printed(files, width):
    console = Console(file=io.StringIO(), width=width)
    for part in on_terminal([file.table(path) for path, file in files]):
        console.print(part, crop=False)
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
