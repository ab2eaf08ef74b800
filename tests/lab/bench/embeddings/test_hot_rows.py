import pytest
from rich.progress import Progress

from hebe_lab.bench.embeddings import hot_rows
from hebe_lab.bench.embeddings.hot_rows import _Effort


@pytest.fixture
def effort(monkeypatch):
    tiny = _Effort(table_bytes=2 << 20, timed_bytes=2 << 20, keys=30_000, runs=3, batches=2)
    monkeypatch.setattr(hot_rows, "_QUICK", tiny)
    monkeypatch.setattr(hot_rows, "MODELS", ("dlrm-rmc3", "din", "mt-wnd"))


@pytest.mark.usefixtures("effort")
def test_measures_what_it_promises() -> None:
    with Progress(disable=True) as progress:
        figures = {figure.name: figure for figure in hot_rows.figures(True, progress)}
    kinds = ("coverage_error", "trace_over_profile", "time_over_whole", "host_time_over_whole")
    assert list(figures) == [f"hot_rows.{kind}" for kind in kinds]
    error, trace = (figures[f"hot_rows.{kind}"] for kind in kinds[:2])
    assert 0 <= error.value < 0.02, "within reach even of few keys"
    assert error.target == "<= 0.02"
    assert all(model in error.note for model in hot_rows.MODELS)
    assert 0.5 < trace.value < 1, "of a sample less can be told than of the profile"
    assert all(figures[f"hot_rows.{kind}"].runs == 3 for kind in kinds[2:])


@pytest.mark.usefixtures("effort")
def test_a_lookup_that_differs_is_no_figure(monkeypatch) -> None:
    monkeypatch.setattr(hot_rows.HotSparseNet, "add", lambda *_: None)
    with Progress(disable=True) as progress, pytest.raises(RuntimeError, match="dlrm-rmc3: the lookup with hot rows"):
        hot_rows.figures(True, progress)
