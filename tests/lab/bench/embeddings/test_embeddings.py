import pytest
from rich.progress import Progress

from hebe.report.figures import Figure
from hebe_lab.bench.embeddings import embeddings
from hebe_lab.bench.runner import benchmark_descriptions, benchmark_parts, run_benchmark


@pytest.fixture
def asked(monkeypatch):
    """Each part measures one thing, and notes what it was given."""
    given = {}

    def part(name):
        def figures(quick, _progress, data=None):
            given[name] = (quick, data)
            return [Figure(f"{name}.x", 1, "ratio")]

        return figures

    for name, figures in (("cache", "cache"), ("hash_map", "stores"), ("rows", "rows"), ("updates", "updates")):
        monkeypatch.setattr(embeddings, f"{figures}_figures", part(name))
    return given


def test_is_one_benchmark_of_four_parts():
    assert "embeddings" in benchmark_descriptions()
    assert benchmark_parts("embeddings") == ("cache", "hash_map", "rows", "updates")
    assert not [name for name in benchmark_descriptions() if name.startswith("embeddings_")]


def test_measures_all_parts_or_one(asked):
    file = run_benchmark("embeddings", True, Progress(disable=True))
    assert [figure.name for figure in file.figures] == ["cache.x", "hash_map.x", "rows.x", "updates.x"]
    assert set(asked.values()) == {(True, None)}
    asked.clear()
    file = run_benchmark("embeddings", False, Progress(disable=True), only="hash_map")
    assert (file.name, [figure.name for figure in file.figures]) == ("embeddings-hash_map", ["hash_map.x"])
    assert asked == {"hash_map": (False, None)}


def test_trains_on_the_click_log_where_there_is_one(asked, tmp_path):
    run_benchmark("embeddings", True, Progress(disable=True), tmp_path)
    assert asked["rows"] == (True, None)
    (tmp_path / "train.txt").write_text("")
    run_benchmark("embeddings", True, Progress(disable=True), tmp_path)
    assert asked["rows"] == (True, tmp_path / "train.txt")
    assert asked["cache"] == (True, None)
