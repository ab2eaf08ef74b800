import pytest
import torch
from rich.progress import Progress

from hebe_lab.bench.embeddings import sparse


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    monkeypatch.setattr(sparse, "_QUICK", sparse._Effort(runs=3, batches=2, pooled_rows=1 << 17, onehot_rows=500))


def test_measures_what_it_promises():
    with Progress(disable=True) as progress:
        figures = {figure.name: figure for figure in sparse.run(True, progress)}
    assert {name for name, figure in figures.items() if figure.target} == {
        "sparse.over_torch.pooled80",
        "sparse.over_torch.onehot26",
        "sparse.share_of_gather_limit",
    }
    assert all(figure.value > 0 and figure.runs == 3 for figure in figures.values())
    assert "0.0312 GiB, 64 items" in figures["sparse.over_torch.pooled80"].note


def test_a_table_that_does_not_fit_twice_is_halved(monkeypatch):
    monkeypatch.setattr(sparse, "available_bytes", lambda: 50 << 20)
    with Progress(disable=True) as progress:
        note = sparse.run(True, progress)[0].note
    assert "0.0156 GiB" in note
    assert "(0.0312 GiB do not fit twice)" in note


def test_a_wrong_competitor_is_noticed(monkeypatch):
    monkeypatch.setattr(sparse, "_torch_lookup", lambda *_: torch.zeros(64, 64))
    with Progress(disable=True) as progress, pytest.raises(RuntimeError, match="the lookup and torch disagree"):
        sparse.run(True, progress)
