from rich.progress import Progress

from hebe.bench import search
from hebe.report.figures import Figure


def test_measures_what_it_promises(monkeypatch) -> None:
    monkeypatch.setattr(search, "MODELS", ("dlrm-rmc1", "din"))
    monkeypatch.setattr(search, "_QUICK_BATCH_SIZES", (128, 1024))
    monkeypatch.setattr(search.hot_rows, "figures", lambda quick, _: [Figure("hot_rows.quick", quick + 0.0, "ratio")])
    with Progress(disable=True) as progress:
        figures = {figure.name: figure for figure in search.run(True, progress)}
    kinds = ("over_exhaustive", "evaluations_share", "algorithm_1_over_exhaustive", "deeprecsys_over_exhaustive")
    assert figures.pop("hot_rows.quick").value == 1.0
    assert set(figures) == {f"search.{kind}.{model}" for kind in kinds for model in search.MODELS}
    for model in search.MODELS:
        found, exact, simple = (figures[f"search.{kind}.{model}"].value for kind in (kinds[0], *kinds[2:]))
        assert 0 < max(exact, simple) <= found <= 1
        assert found > 0.97
        assert 0 < figures[f"search.evaluations_share.{model}"].value < 0.5, "of a space that is small here"
    assert "pipeline-on-host" in figures["search.over_exhaustive.dlrm-rmc1"].note
