import pytest
from rich.progress import Progress

from hebe.report.figures import Figure
from hebe_lab.bench.runner import benchmark_descriptions, benchmark_parts, run_benchmark
from hebe_lab.bench.search import search
from hebe_lab.bench.search.modelled import MODELS


@pytest.fixture(autouse=True)
def parts(monkeypatch):
    def part(name):
        return lambda quick, _progress: [Figure(f"{name}.quick", float(quick), "ratio")]

    monkeypatch.setattr(search, "PARTS", {name: part(name) for name in search.PARTS})


def test_is_one_benchmark_of_parts_each_model_its_own():
    assert "search" in benchmark_descriptions()
    assert benchmark_parts("search") == ("modelled", *(f"live-{model}" for model in MODELS), "hot_rows")
    assert not [name for name in benchmark_descriptions() if name.startswith(("search_", "hot_rows"))]


def test_measures_all_parts_or_one():
    file = run_benchmark("search", True, Progress(disable=True))
    assert [(each.name, each.value) for each in file.figures] == [
        ("modelled.quick", 1.0), *((f"live-{model}.quick", 1.0) for model in MODELS), ("hot_rows.quick", 1.0),
    ]  # fmt: skip
    file = run_benchmark("search", False, Progress(disable=True), only="live-din")
    assert (file.name, [each.name for each in file.figures]) == ("search-live-din", ["live-din.quick"])
