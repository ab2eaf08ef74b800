import sys

import pytest
from rich.progress import Progress

from hebe.report.figures import Figure
from hebe_lab.bench import BENCHMARKS
from hebe_lab.bench.runner import benchmark_descriptions, benchmark_parts, run_benchmark


@pytest.fixture
def example_bench(tmp_path, monkeypatch):
    """One more benchmark, `example_bench`."""
    (tmp_path / "example_bench.py").write_text(
        'DESCRIPTION: str = "counts to " "two"\n'
        "from hebe.report.figures import Figure\n"
        "def run(quick, progress):\n"
        "    progress.add_task('counting', total=2)\n"
        "    return [Figure('example.count', 1 if quick else 2, 'ratio', target='>= 2')]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(BENCHMARKS, "example_bench", "example_bench")
    yield "example_bench"
    sys.modules.pop("example_bench", None)


def test_benchmarks_are_found_by_their_description_without_import(example_bench):
    found = benchmark_descriptions()
    assert found[example_bench] == "counts to two"
    assert "runner" not in found
    assert "example_bench" not in sys.modules


def test_every_description_is_one_short_line():
    for name, description in benchmark_descriptions().items():
        assert "\n" not in description, name
        assert 0 < len(description) <= 100, name


@pytest.mark.parametrize("quick", [True, False])
def test_a_run_says_how_it_was_made(example_bench, quick):
    file = run_benchmark(example_bench, quick, Progress(disable=True))
    assert file.name == example_bench
    assert file.command == "hebe bench example_bench" + (" --quick" if quick else "")
    assert file.quick is quick
    assert file.seconds > 0
    assert file.figures == (Figure("example.count", 1 if quick else 2, "ratio", target=">= 2"),)


def test_only_a_benchmark_that_reads_measurements_is_given_them(example_bench, tmp_path):
    assert run_benchmark(example_bench, True, Progress(disable=True), tmp_path).command.endswith(" --quick")
    (tmp_path / "example_bench.py").write_text(
        "from hebe.report.figures import Figure\n"
        "def run(quick, progress, data=None):\n"
        "    return [Figure(f'example.{data.name if data else None}', 1, 'ratio')]\n"
    )
    sys.modules.pop("example_bench")
    file = run_benchmark(example_bench, False, Progress(disable=True), tmp_path / "recorded")
    assert [figure.name for figure in file.figures] == ["example.recorded"]
    assert file.command == "hebe bench example_bench --data DIR"


def test_a_part_alone_has_a_file_of_its_own(example_bench, tmp_path):
    assert benchmark_parts(example_bench) == ()
    (tmp_path / "example_bench.py").write_text(
        "from hebe.report.figures import Figure\n"
        "PARTS = {'one': 1, 'two': 2}\n"
        "def run(quick, progress, data=None, only=None):\n"
        "    return [Figure(f'example.{name}', 1, 'ratio') for name in PARTS if only in (None, name)]\n"
    )
    sys.modules.pop("example_bench")
    assert benchmark_parts(example_bench) == ("one", "two")
    file = run_benchmark(example_bench, True, Progress(disable=True), tmp_path / "recorded", "two")
    assert [figure.name for figure in file.figures] == ["example.two"]
    assert file.name == "example_bench-two"
    assert file.command == "hebe bench example_bench --quick --only two --data DIR"
    assert len(run_benchmark(example_bench, False, Progress(disable=True)).figures) == 2
