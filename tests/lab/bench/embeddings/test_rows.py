import numpy as np
import pytest
from rich.progress import Progress

from hebe.embeddings.memory.table_memory import RowFormat
from hebe.models.training.criteo_sample import generate_criteo
from hebe_lab.bench.embeddings import rows as embeddings_rows


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    tiny = embeddings_rows._Effort(runs=3, batches=2, table_rows=1 << 17, log_rows=600)
    monkeypatch.setattr(embeddings_rows, "_QUICK", tiny)


def measure(data=None):
    with Progress(disable=True) as progress:
        return {figure.name: figure for figure in embeddings_rows.rows_figures(True, progress, data)}


def test_measures_what_it_promises(tmp_path):
    generate_criteo(tmp_path / "clicks.tsv", 900)
    figures = measure(tmp_path / "clicks.tsv")
    assert {name: figure.target for name, figure in figures.items()} == {
        "rows.fp16_over_fp32": None,
        "rows.int8_over_fp32": ">= 1.6",
        "rows.fp16_auc_error": "< 0.001",
        "rows.int8_auc_error": "< 0.001",
    }
    for row_format in ("fp16", "int8"):
        assert figures[f"rows.{row_format}_over_fp32"].value > 0
        assert figures[f"rows.{row_format}_over_fp32"].runs == 3
        assert 0 <= figures[f"rows.{row_format}_auc_error"].value < 0.1
    assert "120 held-out rows of clicks.tsv" in figures["rows.int8_auc_error"].note
    assert "131,072 rows: 0.0312 GiB as fp32" in figures["rows.int8_over_fp32"].note


def test_trains_on_made_up_rows_and_halves_a_table_that_does_not_fit(monkeypatch):
    monkeypatch.setattr(embeddings_rows, "available_bytes", lambda: 50 << 20)
    figures = measure()
    assert "120 held-out made-up rows" in figures["rows.int8_auc_error"].note
    assert "65,536 rows" in figures["rows.int8_over_fp32"].note


def test_rows_that_disagree_are_noticed():
    def zeros(_):
        return np.zeros((embeddings_rows.ITEMS, embeddings_rows.DIM), np.float32)

    lookups = {RowFormat.FP32: zeros, RowFormat.INT8: lambda keys: zeros(keys) + 2}
    with Progress(disable=True) as progress, pytest.raises(RuntimeError, match="int8 rows and of fp32 rows disagree"):
        embeddings_rows._take_turns(lookups, 10, embeddings_rows._QUICK, progress)
