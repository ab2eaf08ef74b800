from rich.progress import Progress

from hebe.bench import search_modelled


def test_measures_what_it_promises(monkeypatch) -> None:
    monkeypatch.setattr(search_modelled, "MODELS", ("dlrm-rmc1", "din"))
    monkeypatch.setattr(search_modelled, "_QUICK_BATCH_SIZES", (128, 1024))
    with Progress(disable=True) as progress:
        figures = {figure.name: figure for figure in search_modelled.modelled_figures(True, progress)}
    kinds = ("over_exhaustive", "evaluations_share", "algorithm_1_over_exhaustive", "deeprecsys_over_exhaustive")
    assert set(figures) == {f"search.{kind}.{model}" for kind in kinds for model in search_modelled.MODELS}
    for model in search_modelled.MODELS:
        found, exact, simple = (figures[f"search.{kind}.{model}"].value for kind in (kinds[0], *kinds[2:]))
        assert 0 < max(exact, simple) <= found <= 1
        assert found > 0.97
        assert 0 < figures[f"search.evaluations_share.{model}"].value < 0.5, "of a space that is small here"
    assert "pipeline-on-host" in figures["search.over_exhaustive.dlrm-rmc1"].note
